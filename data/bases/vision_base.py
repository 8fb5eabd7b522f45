"""The vision base: `vit_base`, the network of `digits_vit` after reading drawn letters.

It takes the place of ViT before CIFAR-100: it has seen pictures of another kind, and its last layer is drawn
anew. Pretrained once on the user's machine (`workbench models build`, under a minute of one core).
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.bases import builds, checkpoint, letters
from workbench.data.bases.pretraining import Training, example_pace
from workbench.interfaces import ModelFacets
from workbench.studies.bases import BuildStage

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
    """All settings that the vision base is made from."""

    def to_json(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON, on a machine with given packages."""
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
    pace=example_pace(seed=0, peak_learning_rate=3e-3),
)


def _classes() -> int:
    return len(letters.LETTERS)


class LettersTraining(Training):
    """A run over pictures in the place of a token stream."""

    def loss(self, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss of freshly drawn letters."""
        import torch
        from torch.nn.functional import cross_entropy

        drawn, labels = letters.pictures(self.generator(), EXAMPLES)
        loss = cross_entropy(self.module(torch.from_numpy(drawn).float()), torch.from_numpy(labels))
        return loss, loss


@dataclass(frozen=True, kw_only=True)
class VisionBase(builds.BuiltBase):
    """The base that has read letters."""

    files = (checkpoint.WEIGHTS, checkpoint.CONFIG)
    stages = (BuildStage.TRAINING,)

    def begin(self, work: Path) -> tuple[Training, str, Callable[[], None]]:
        """Begin to train on pictures of drawn letters."""
        training = LettersTraining(self.recipe.new_module(), self.recipe.pace)
        return training, "", lambda: self._write(training, work)

    def _write(self, training: Training, work: Path) -> None:
        folder = builds.new_folder(work)
        checkpoint.write_tensors(training.module, folder)
        config = json.dumps(dict(self.recipe.config), indent=2) + "\n"
        (folder / checkpoint.CONFIG).write_text(config, "utf-8")
        known = read(folder, checkpoint.file_sha256(folder / checkpoint.WEIGHTS))
        origin = {"name": "letters", "origin": "drawn by workbench.data.bases.letters"}
        described = {"sources": [origin], "validation": {"letters": {"accuracy": _accuracy(known)}}}
        self.write_recipe(training, folder, known, described)


def _accuracy(module: torch.nn.Module) -> float:
    """Share of fresh letters that the network knows."""
    import torch

    drawn, labels = letters.pictures(np.random.default_rng(_JUDGING_SEED), JUDGED)
    with torch.no_grad():
        predicted = module(torch.from_numpy(drawn).float()).argmax(1).numpy()
    return float(np.mean(predicted == labels))


def read(folder: Path, sha256: str) -> vision.VisionTransformer:
    """The network of a folder, its last layer that of the letters, after a check of its hash."""
    from workbench.data.bases import vision

    tensors = checkpoint.load_tensors(folder, sha256)
    shape = checkpoint.read_json(folder / checkpoint.CONFIG)
    module: Any = vision.seeded(lambda: vision.VisionTransformer(**shape, classes=_classes()), 0)
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


def _fingerprint(**_: object) -> str:
    """Hash of the base's files."""
    return _vit().fingerprint()


@register("model", "vit_base", facets=ModelFacets(fingerprint=_fingerprint))
def vit_base(*, seed: int) -> Classifier:
    """ViT family, 58 thousand parameters, has read drawn letters; for `digits`; is built first.

    The last layer is drawn anew from the seed; the others are those of the build.
    """
    from workbench.data.bases import vision
    from workbench.training.models import Classifier

    module = read(*_vit().weights())
    fresh: Any = vision.seeded(lambda: vision.VisionTransformer(**SHAPE), seed)
    module.head = fresh.head
    return Classifier(module, "vit_base")
