"""The vision base: `vit_base`, the network of `digits_vit` after reading drawn letters.

It takes the place of ViT before CIFAR-100: like a model pretrained on ImageNet, it has seen pictures of
another kind, and its last layer is drawn anew. Pretrained once on the user's machine (`workbench models
build vit_base`, under a minute of one core); see `workbench.data.bases.letters`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.bases import builds, checkpoint, letters
from workbench.data.bases.pretraining import Pace, Training
from workbench.studies.bases import BuildProgress, BuildStage, BuildStep

if TYPE_CHECKING:
    import torch

    from workbench.data.bases import vision
    from workbench.training.models import Classifier

SHAPE = {"patch": 2, "width": 48, "layers": 2, "heads": 4}
"""Of `digits_vit`."""

EXAMPLES = 128
"""Letters a step."""

JUDGED = 1000
"""Letters, apart from those that are trained on, of which the recipe says how many are known."""

_JUDGING_SEED = 1


@dataclass(frozen=True, kw_only=True)
class LettersRecipe(builds.Recipe):
    """All that the vision base is made of."""

    def to_json(self) -> dict[str, Any]:
        """What decides the weights, on a machine with given packages."""
        drawing = hashlib.sha256(inspect.getsource(letters).encode()).hexdigest()
        return {**super().to_json(), "text": {"letters": drawing}, "examples": EXAMPLES}

    def new_module(self) -> torch.nn.Module:
        """The untrained network, drawn from the seed."""
        from workbench.data.bases import vision

        return vision.seeded(lambda: vision.VisionTransformer(**SHAPE, classes=_classes()), self.pace.seed)


RECIPE = LettersRecipe(
    name="vit_base",
    family="ViT",
    stands_for="ViT before CIFAR-100",
    parameters=58_726,
    model_type="vision transformer",
    config=SHAPE,
    steps=500,
    pace=Pace(
        seed=0,
        batch_tokens=0,
        block=0,
        positions=0,
        peak_learning_rate=3e-3,
        warm_up_steps=50,
        is_bf16=False,
    ),
)


def _classes() -> int:
    return len(letters.LETTERS)


class LettersTraining(Training):
    """A run over pictures in the place of a token stream."""

    def __init__(self, module: torch.nn.Module, pace: Pace) -> None:
        """A fresh run; the module is trained in place."""
        super().__init__(np.zeros(0, dtype=np.int64), module, pace)

    def update(self, steps: int) -> float:
        """One update of a run of `steps` steps; returns the batch's loss in nats."""
        import torch
        from torch.nn.functional import cross_entropy

        for group in self.optimizer.param_groups:
            group["lr"] = self.pace.learning_rate(self.step, steps)
        drawn, labels = letters.pictures(np.random.default_rng([self.pace.seed, self.step]), EXAMPLES)
        loss = cross_entropy(self.module(torch.from_numpy(drawn).float()), torch.from_numpy(labels))
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


@dataclass(frozen=True, kw_only=True)
class VisionBase(builds.BuiltBase):
    """The base that has read letters."""

    files: ClassVar[tuple[str, ...]] = (checkpoint.WEIGHTS, checkpoint.CONFIG)

    def pretrain(self, work: Path, progress: BuildProgress) -> None:
        """Train, and write the folder `work/whole`."""
        recipe = self.recipe
        run = builds.run_name(recipe, "")
        training = LettersTraining(recipe.new_module(), recipe.pace)
        training.resume(work, run)
        start = BuildStep(name=recipe.name, stage=BuildStage.TRAINING, total=recipe.steps)
        builds.train(training, start, (work, run), progress)
        folder = work / "whole"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        checkpoint.write_tensors(training.module, folder)
        (folder / checkpoint.CONFIG).write_text(json.dumps(dict(recipe.config), indent=2) + "\n", "utf-8")
        known = read(folder, checkpoint.file_sha256(folder / checkpoint.WEIGHTS))
        origin = {"name": "letters", "origin": "drawn by workbench.data.bases.letters"}
        said = {"sources": [origin], "validation": {"letters": {"accuracy": _accuracy(known)}}}
        builds.write_recipe(recipe, training, folder, known, said, files=self.files)


def _accuracy(module: torch.nn.Module) -> float:
    """Share of fresh letters that the network knows."""
    import torch

    drawn, labels = letters.pictures(np.random.default_rng(_JUDGING_SEED), JUDGED)
    with torch.no_grad():
        found = module(torch.from_numpy(drawn).float()).argmax(1).numpy()
    return float(np.mean(found == labels))


def read(folder: Path, sha256: str) -> vision.VisionTransformer:
    """The network of a folder, its last layer that of the letters, after a check of its hash.

    Raises:
        InputError: the weights are not those that the hash names, or do not fit.
    """
    from safetensors.torch import load_file

    from workbench.data.bases import vision

    checkpoint.check_sha256(folder / checkpoint.WEIGHTS, sha256)
    shape = checkpoint.read_json(folder / checkpoint.CONFIG)
    module: Any = vision.seeded(lambda: vision.VisionTransformer(**shape, classes=_classes()), 0)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / checkpoint.WEIGHTS).items()}
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(f"{checkpoint.WEIGHTS} does not fit {checkpoint.CONFIG} in {folder}") from error
    found: vision.VisionTransformer = module.eval()
    return found


@register("base", "vit_base")
def _vit() -> VisionBase:
    """ViT family, pretrained on drawn letters."""
    return VisionBase(recipe=RECIPE)


@register("model", "vit_base")
def vit_base(*, seed: int) -> Classifier:
    """ViT family, 58 thousand parameters, has read drawn letters; for `digits`; is built first.

    Args:
        seed: Of the last layer, which is drawn anew; the others are those of the build.

    Raises:
        InputError: it is not built.
    """
    from workbench.data.bases import vision
    from workbench.training.models import Classifier

    folder = _vit().checked_folder()
    recipe = checkpoint.read_json(folder / checkpoint.RECIPE)
    module = read(folder, recipe["sha256"][checkpoint.WEIGHTS])
    fresh: Any = vision.seeded(lambda: vision.VisionTransformer(**SHAPE), seed)
    module.head = fresh.head
    return Classifier(module, "vit_base")


def _fingerprint(**_: object) -> str:
    """Hash of the base's files."""
    return _vit().fingerprint()


def _described(model: Callable[..., Any]) -> None:
    """Give the model what the keys of results hold of its files."""
    model.fingerprint = _fingerprint  # type: ignore[attr-defined]


_described(vit_base)
