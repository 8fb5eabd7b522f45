"""Building a base: pretraining that survives a kill, a folder that appears whole, hashes that are checked.

Under the user's cache, `bases/NAME-KEY` holds a base, where KEY is the hash of its recipe. It is written in
`bases/.NAME-KEY.work` and renamed, so a folder of that name is complete; `recipe.json` names the hashes of
its files, so one that was changed since is noticed.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from workbench.core.errors import InputError
from workbench.data.bases import checkpoint, pretraining_text
from workbench.data.bases.pretraining import Pace, Training, token_stream, validation
from workbench.data.shared.parts import cache_folder
from workbench.studies.bases import BaseCard, BuildProgress, BuildStage, BuildStep

if TYPE_CHECKING:
    import torch

SCHEMA = 1
"""Raised whenever building changes in a way that the recipes do not show; part of their keys."""

SAVE_SECONDS = 20.0
WAIT_SECONDS = 0.5
TOKENIZER_SETTINGS = "tokenizer_config.json"
HASHED = (checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER)
_TENTHS = 10


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a base is made of, besides the text.

    Attributes:
        name: Of the base.
        family: Kind of architecture, for people.
        stands_for: The model of the paper whose place it takes.
        parameters: Number of trainable numbers, embeddings included.
        model_type: transformers' name of the architecture.
        config: Values of its configuration.
        steps: Updates.
        pace: How it is updated.
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
        """What decides the weights, on a machine with given packages."""
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
        """Hash of `to_json`."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def new_module(self) -> torch.nn.Module:
        """The untrained module, drawn from the seed."""
        from transformers import AutoConfig, AutoModelForCausalLM

        from workbench.data.bases import vision

        config = AutoConfig.for_model(self.model_type, **self.config)
        return vision.seeded(lambda: AutoModelForCausalLM.from_config(config), self.pace.seed)


@dataclass(frozen=True, kw_only=True)
class BuiltBase(ABC):
    """A base that is pretrained on the user's machine; implements `workbench.studies.bases.Base`.

    Attributes:
        recipe: What it is made of.
    """

    files: ClassVar[tuple[str, ...]] = HASHED
    """Whose hashes its recipe must name."""

    recipe: Recipe

    @abstractmethod
    def pretrain(self, work: Path, progress: BuildProgress) -> None:
        """Train, going on with the state that `work` may hold, and write the folder `work/whole`."""

    def folder(self) -> Path:
        """Where its files are, or will be."""
        return cache_folder() / "bases" / f"{self.recipe.name}-{self.recipe.key}"

    def _work(self) -> Path:
        return self.folder().with_name(f".{self.folder().name}.work")

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
                if checkpoint.file_sha256(folder / file) != hashes[file]:
                    return f"{folder / file} is not the file that its recipe names"
        except (OSError, ValueError, KeyError, TypeError):
            return f"{folder} lacks a file, or has one that cannot be read"
        return None

    def checked_folder(self) -> Path:
        """The folder of a base that can be used.

        Raises:
            InputError: it is not built, or a file of it was changed.
        """
        damage = self._damage()
        if damage is None:
            return self.folder()
        advice = f"run `workbench models build {self.recipe.name}`"
        if damage:
            raise InputError(f"model {self.recipe.name!r}: {damage}; {advice}")
        raise InputError(f"model {self.recipe.name!r} is not built: {advice}")

    def card(self) -> BaseCard:
        """What is known of it."""
        recipe, folder = self.recipe, self.folder()
        known: dict[str, Any] = {}
        if self.is_built():
            said = checkpoint.read_json(folder / checkpoint.RECIPE)["validation"].get("docstrings", {})
            known = {
                "size_bytes": (folder / checkpoint.WEIGHTS).stat().st_size,
                "perplexity": said.get("perplexity_per_token"),
                "bits_per_byte": said.get("bits_per_byte"),
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
        """Hash of weights, configuration and vocabulary.

        Raises:
            InputError: it is not built, or damaged.
        """
        hashes = checkpoint.read_json(self.checked_folder() / checkpoint.RECIPE)["sha256"]
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    def build(self, progress: BuildProgress) -> Path:
        """Pretrain it, or go on where a killed build stopped, unless it is built.

        Args:
            progress: Called between steps; what it raises stops the build, after its state is kept.

        Returns:
            The folder.

        Raises:
            InputError: the cache cannot be written to, or the text cannot be had.
        """
        folder, work = self.folder(), self._work()
        folder.parent.mkdir(parents=True, exist_ok=True)
        name = self.recipe.name
        busy = BuildStep(name=name, stage=BuildStage.WAITING, total=self.recipe.steps)
        with _locked(folder.with_name(f".{folder.name}.lock"), lambda: progress(busy)), _one_thread():
            if not self.is_built():
                work.mkdir(exist_ok=True)
                self.pretrain(work, progress)
                if folder.exists():  # damaged
                    shutil.rmtree(work / "damaged", ignore_errors=True)
                    folder.replace(work / "damaged")
                (work / "whole").replace(folder)
            shutil.rmtree(work, ignore_errors=True)
        return folder


@dataclass(frozen=True, kw_only=True)
class CachedBase(BuiltBase):
    """A base that is pretrained on the public text of `workbench.data.bases.pretraining_text`.

    Attributes:
        tokenizer: The vocabulary's file.
    """

    tokenizer: Path

    def pretrain(self, work: Path, progress: BuildProgress) -> None:
        """Train, and write the folder `work/whole`."""
        _make(self, work, progress)


def _make(base: CachedBase, work: Path, progress: BuildProgress) -> None:
    recipe, total = base.recipe, base.recipe.steps
    progress(BuildStep(name=recipe.name, stage=BuildStage.TEXT, total=total))
    with _locked(cache_folder() / ".base-text.lock", lambda: None):
        text = pretraining_text.load()
    texts = [one for source in text.sources for one in source.train]
    stream = token_stream(base.tokenizer, texts, recipe.pace.seed)
    run = run_name(recipe, hashlib.sha256(stream.tobytes()).hexdigest())
    training = Training(stream, recipe.new_module(), recipe.pace)
    training.resume(work, run)
    start = BuildStep(name=recipe.name, stage=BuildStage.TRAINING, total=total)
    train(training, start, (work, run), progress)
    progress(BuildStep(name=recipe.name, stage=BuildStage.JUDGING, done=total, total=total))
    _write(base, training, text, work)


def train(training: Training, start: BuildStep, state: tuple[Path, str], progress: BuildProgress) -> None:
    """Go on to the last step; the state is kept in a folder, under the run's name, every `SAVE_SECONDS`."""
    folder, run = state
    saved = time.monotonic()
    while training.step < start.total:
        loss = training.advance(start.total)
        try:
            progress(replace(start, done=training.step, loss=loss))
        except BaseException:
            training.save(folder, start.total, run)
            raise
        if time.monotonic() - saved >= SAVE_SECONDS or training.step == start.total:
            training.save(folder, start.total, run)
            saved = time.monotonic()


def run_name(recipe: Recipe, stream: str) -> str:
    """What must be the same for a run to go on with another's state."""
    return json.dumps([recipe.key, stream, versions()], sort_keys=True)


def versions() -> dict[str, str]:
    import safetensors
    import tokenizers
    import torch
    import transformers

    modules = (torch, transformers, tokenizers, safetensors)
    known = {module.__name__: str(module.__version__) for module in modules}
    return {**known, "python": platform.python_version()}


def _write(base: CachedBase, training: Training, text: pretraining_text.Text, work: Path) -> None:
    """Write `work/whole`: weights, configuration, vocabulary and recipe.

    The numbers of the validation are those of the rounded weights, as they are kept.
    """
    folder, module = write_checkpoint(training, base.tokenizer, work)
    said = {
        "sources": [source.to_json() for source in text.sources],
        "text_sha256": text.sha256,
        "validation": {
            "own": validation(module, base.tokenizer, [one for s in text.sources for one in s.held_out]),
            "docstrings": validation(module, base.tokenizer, text.docstrings),
        },
        "sample": checkpoint.sample_json(folder, module),
    }
    write_recipe(base.recipe, training, folder, module, said)


def write_checkpoint(training: Training, tokenizer: Path, work: Path) -> tuple[Path, torch.nn.Module]:
    """Write `work/whole` but for its recipe; returns the folder, and the module as it is read from there."""
    folder = work / "whole"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copyfile(tokenizer, folder / checkpoint.TOKENIZER)
    (folder / TOKENIZER_SETTINGS).write_text(
        json.dumps(checkpoint.TOKENIZER_SETTINGS, indent=2) + "\n", "utf-8"
    )
    sha256 = checkpoint.write_weights(training.module, folder)
    return folder, checkpoint.load_module(folder, sha256)


def write_recipe(
    recipe: Recipe,
    training: Training,
    folder: Path,
    module: torch.nn.Module,
    said: Mapping[str, Any],
    *,
    files: Iterable[str] = HASHED,
) -> None:
    """Write what a folder's weights are made of, and `said` of its text and its quality."""
    losses = np.array_split(np.array(training.losses), min(_TENTHS, len(training.losses)))
    known = {
        "recipe": recipe.to_json(),
        "key": recipe.key,
        "family": recipe.family,
        "parameters": sum(p.numel() for p in module.parameters()),
        "sha256": {name: checkpoint.file_sha256(folder / name) for name in files},
        "threads": 1,
        "wall_seconds": round(training.seconds, 1),
        "cpu_seconds": round(training.cpu_seconds, 1),
        "versions": versions(),
        "training_loss_by_tenths": [round(float(part.mean()), 3) for part in losses],
    }
    content = json.dumps({**known, **said}, indent=2, ensure_ascii=False) + "\n"
    (folder / checkpoint.RECIPE).write_text(content, encoding="utf-8")


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread, for the same bytes whatever the number of cores; put back as it was."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file, which the system frees when the process ends, however it ends.

    Args:
        path: The file; made, and left there.
        waiting: Called again and again while another process has it; what it raises ends the wait.
    """
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        while not _try_lock(handle):
            waiting()
            time.sleep(WAIT_SECONDS)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Whether this process has the lock now; a disk that knows no locks gives it to everybody."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
    return True
