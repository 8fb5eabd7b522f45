"""Building a base: its recipe, pretraining that survives a kill, and a folder whose hashes are checked.

A base is a `Recipe`, small and declarative, and a `BuiltBase` that says what is trained on and what is kept;
all else is here, once. Under the user's cache, `bases/NAME-KEY` holds a base, where KEY is the hash of its
recipe. It is written in `bases/.NAME-KEY.work` and renamed, so a folder of that name is complete;
`recipe.json` names the hashes of its files, so a file that was changed since is noticed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from workbench.core.errors import InputError
from workbench.data.bases import checkpoint, hugging_face
from workbench.data.bases.pretraining import Pace, Training
from workbench.data.bases.texts import public as pretraining_text
from workbench.data.shared.parts import cache_folder, checked_count
from workbench.execution.processes import one_thread
from workbench.interfaces import ModelFacets
from workbench.studies.bases import BaseCard, BuildProgress, BuildStage, BuildStep

if TYPE_CHECKING:
    import torch

    from workbench.training.models import LanguageModel

SCHEMA = 1
"""Raised whenever building changes in a way that the recipes do not show; part of their keys."""

SHIPPED = Path(__file__).parents[1] / "models"
"""Where the package keeps the bases that it ships; the same bits on every machine."""

SAVE_SECONDS = 20.0
WAIT_SECONDS = 0.5
TOKENIZER_SETTINGS = "tokenizer_config.json"
HASHED = (checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER)
_TENTHS = 10

ModelT = TypeVar("ModelT", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings that a base is made from, besides the text.

    Attributes:
        name: Of the base.
        family: Kind of architecture, for people.
        stands_for: The model of the paper whose place it takes.
        parameters: Number of trainable numbers, embeddings included.
        model_type, config: Of transformers' configuration.
        steps, pace: How many updates, and how they are made.
    """

    name: str
    family: str
    stands_for: str
    parameters: int
    model_type: str
    config: Mapping[str, Any]
    steps: int
    pace: Pace

    def to_json(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON, on a machine with given packages."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model_type": self.model_type,
            "config": dict(self.config),
            "steps": self.steps,
            "pace": asdict(self.pace),
            "optimizer": "AdamW(betas=(0.9, 0.95), weight_decay=0.1 on matrices), gradient norm at most 1",
            "text": {"schema": pretraining_text.SCHEMA, "packages": list(pretraining_text.PACKAGES)},
        }

    @property
    def key(self) -> str:
        """The first 16 hex digits of the SHA-256 hash of the recipe's JSON."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def new_module(self) -> torch.nn.Module:
        """The untrained module, drawn from the seed."""
        from transformers import AutoConfig, AutoModelForCausalLM

        from workbench.data.bases import vision

        config = AutoConfig.for_model(self.model_type, **self.config)
        return vision.seeded(lambda: AutoModelForCausalLM.from_config(config), self.pace.seed)


@dataclass(frozen=True, kw_only=True)
class BuiltBase(ABC):
    """A base that is pretrained on the user's machine; implements `workbench.studies.bases.Base`."""

    files: ClassVar[tuple[str, ...]] = HASHED
    """Files whose hashes its recipe must name."""

    stages: ClassVar[tuple[BuildStage, ...]] = (BuildStage.TEXT, BuildStage.TRAINING)
    """What `progress` is told of."""

    recipe: Recipe

    @abstractmethod
    def begin(self, work: Path) -> tuple[Training, str, Callable[[], None]]:
        """A fresh run in the folder `work`, the hash of its data, and what writes `work/whole` at its end."""

    def pretrain(self, work: Path, progress: BuildProgress) -> None:
        """Train, going on with the state that `work` may hold, and write the folder `work/whole`."""
        recipe = self.recipe
        step = BuildStep(name=recipe.name, stage=BuildStage.TEXT, total=recipe.steps)
        if BuildStage.TEXT in self.stages:
            progress(step)
        training, data, write = self.begin(work)
        # What must be the same for a run to go on with another's state.
        run = json.dumps([recipe.key, data, versions()], sort_keys=True)
        training.resume(work, run)
        saved = time.monotonic()
        while training.step < recipe.steps:
            loss = training.advance(recipe.steps)
            try:
                progress(replace(step, stage=BuildStage.TRAINING, done=training.step, loss=loss))
            except BaseException:
                training.save(work, recipe.steps, run)
                raise
            if time.monotonic() - saved >= SAVE_SECONDS or training.step == recipe.steps:
                training.save(work, recipe.steps, run)
                saved = time.monotonic()
        if BuildStage.JUDGING in self.stages:
            progress(replace(step, stage=BuildStage.JUDGING, done=recipe.steps))
        write()

    def write_recipe(
        self, training: Training, folder: Path, module: torch.nn.Module, described: Mapping[str, Any]
    ) -> None:
        """Write the recipe of the weights in a folder, and what is `described` of their text and quality."""
        losses = np.array_split(np.array(training.losses), min(_TENTHS, len(training.losses)))
        known = {
            "recipe": self.recipe.to_json(),
            "key": self.recipe.key,
            "family": self.recipe.family,
            "parameters": sum(p.numel() for p in module.parameters()),
            "sha256": {name: checkpoint.file_sha256(folder / name) for name in self.files},
            "threads": 1,
            "wall_seconds": round(training.seconds, 1),
            "cpu_seconds": round(training.cpu_seconds, 1),
            "versions": versions(),
            "training_loss_by_tenths": [round(float(part.mean()), 3) for part in losses],
        }
        content = json.dumps({**known, **described}, indent=2, ensure_ascii=False) + "\n"
        (folder / checkpoint.RECIPE).write_text(content, encoding="utf-8")

    def folder(self) -> Path:
        """The folder of the base's files, built yet or not; the package's where it ships this recipe's."""
        shipped = SHIPPED / self.recipe.name
        recipe = shipped / checkpoint.RECIPE
        if recipe.is_file() and checkpoint.read_json(recipe)["key"] == self.recipe.key:
            return shipped
        return cache_folder() / "bases" / f"{self.recipe.name}-{self.recipe.key}"

    def is_built(self) -> bool:
        """True where its files are there, and have the hashes that its recipe names."""
        return self._damage() is None

    def _damage(self) -> str | None:
        """What is wrong with the folder; None where all is well, empty where there is none."""
        folder = self.folder()
        if not folder.is_dir():
            return ""
        try:
            hashes = checkpoint.read_json(folder / checkpoint.RECIPE)["sha256"]
            for file in self.files:
                path = checkpoint.tokenizer_file(folder) if file == checkpoint.TOKENIZER else folder / file
                if checkpoint.file_sha256(path) != hashes[file]:
                    return f"{path} is not the file that its recipe names"
        except (OSError, ValueError, KeyError, TypeError):
            return f"{folder} lacks a file, or has one that cannot be read"
        return None

    def checked_folder(self) -> Path:
        """The folder of a base; an `InputError` where it is not built, or a file of it was changed."""
        damage = self._damage()
        if damage is None:
            return self.folder()
        advice = f"run `workbench models build {self.recipe.name}`"
        if damage:
            raise InputError(f"model {self.recipe.name!r}: {damage}; {advice}")
        raise InputError(f"model {self.recipe.name!r} is not built: {advice}")

    def weights(self) -> tuple[Path, str]:
        """`checked_folder`, and the hash of the weights in it."""
        folder = self.checked_folder()
        return folder, str(checkpoint.read_json(folder / checkpoint.RECIPE)["sha256"][checkpoint.WEIGHTS])

    def card(self) -> BaseCard:
        """The base's size and quality, read without loading it."""
        recipe, folder = self.recipe, self.folder()
        known: dict[str, Any] = {}
        if self.is_built():
            quality = checkpoint.read_json(folder / checkpoint.RECIPE)["validation"].get("docstrings", {})
            known = {
                "size_bytes": (folder / checkpoint.WEIGHTS).stat().st_size,
                "perplexity": quality.get("perplexity_per_token"),
                "bits_per_byte": quality.get("bits_per_byte"),
            }
        return BaseCard(
            name=recipe.name,
            family=recipe.family,
            stands_for=recipe.stands_for,
            parameters=recipe.parameters,
            is_built=bool(known),
            place=folder,
            **known,
        )

    def fingerprint(self) -> str:
        """Hash of weights, configuration and vocabulary; an `InputError` where it is not built."""
        hashes = checkpoint.read_json(self.checked_folder() / checkpoint.RECIPE)["sha256"]
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def build(self, progress: BuildProgress) -> Path:
        """Pretrain it, or go on where a killed build stopped, unless it is built; returns the folder.

        `progress`: called between steps; what it raises stops the build, after its state is kept. Raises
        `InputError`: the cache cannot be written to, or the text cannot be had.
        """
        folder = self.folder()
        if folder.parent == SHIPPED:
            return self.checked_folder()
        work = folder.with_name(f".{folder.name}.work")
        folder.parent.mkdir(parents=True, exist_ok=True)
        name = self.recipe.name
        busy = BuildStep(name=name, stage=BuildStage.WAITING, total=self.recipe.steps)
        with locked(folder.with_name(f".{folder.name}.lock"), lambda: progress(busy)), one_thread():
            if not self.is_built():
                work.mkdir(exist_ok=True)
                self.pretrain(work, progress)
                if folder.exists():  # damaged
                    shutil.rmtree(work / "damaged", ignore_errors=True)
                    folder.replace(work / "damaged")
                (work / "whole").replace(folder)
            shutil.rmtree(work, ignore_errors=True)
        return folder


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a build depends on."""
    import safetensors
    import tokenizers
    import torch
    import transformers

    modules = (torch, transformers, tokenizers, safetensors)
    known = {module.__name__: str(module.__version__) for module in modules}
    return {**known, "python": platform.python_version()}


def new_folder(work: Path) -> Path:
    """An empty folder `work/whole`."""
    folder = work / "whole"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def write_checkpoint(
    module: torch.nn.Module,
    tokenizer: Path,
    work: Path,
    settings: Mapping[str, str] = checkpoint.TOKENIZER_SETTINGS,
) -> Path:
    """Write `work/whole` but for its recipe; returns the folder.

    Args:
        module: What is kept of the training.
        tokenizer: The vocabulary's file.
        work: Folder of the build.
        settings: What transformers needs to know of the tokenizer.
    """
    folder = new_folder(work)
    shutil.copyfile(tokenizer, folder / checkpoint.TOKENIZER)
    (folder / TOKENIZER_SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    checkpoint.write_weights(module, folder)
    return folder


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file, which the system frees when a process ends; `waiting` is called until then."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        while not _try_lock(handle):
            waiting()
            time.sleep(WAIT_SECONDS)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Whether this process holds the lock now; on a disk without locks every process does."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
    return True


def facets_of(make_base: Callable[[], BuiltBase]) -> ModelFacets:
    """What a base's model declares: the hash of its files, or of the folder that stands in for it, unread."""

    def fingerprint(*, path: str | None = None, **_: object) -> str:
        """Hash of the base's files, or of the folder that stands in for it."""
        return make_base().fingerprint() if path is None else hugging_face.folder_fingerprint(path=path)

    return ModelFacets(fingerprint=fingerprint, check_folder=hugging_face.check_folder)


def language_facets_of(make_base: Callable[[], BuiltBase]) -> ModelFacets:
    """What the model of a base of causal language models declares; see `facets_of`."""
    return replace(facets_of(make_base), has_one_base=is_not_folder)


def is_not_folder(*, path: str | None = None, **_: object) -> bool:
    """Whether no folder, of which nothing is known, stands in for a base."""
    return path is None


def language_model(base: BuiltBase, positions: int, max_length: int, path: str | None) -> LanguageModel:
    """A built base as a language model, or the folder `path` that stands in for it.

    Raises `InputError`: it is not built, `max_length` is not from 2 to `positions`, or the folder holds no
    causal language model.
    """
    from workbench.training.models import LanguageModel

    name = base.recipe.name
    checked_count("max_length", max_length, minimum=2)
    if path is not None:
        return hugging_face.stand_in(name, max_length, path)
    if max_length > positions:
        raise InputError(f"max_length must be at most {positions}, the positions of {name}, got {max_length}")
    folder, sha256 = base.weights()
    module = checkpoint.load_module(folder, sha256)
    return LanguageModel(module, checkpoint.load_tokenizer(folder), max_length, name, is_shared=True)
