"""Pretraining a task base: its vocabulary, its examples, its updates; killable as every base is.

The vocabulary is one of whole words, so that the options of a task are single tokens. What a base of ratings
begins with are word vectors of which one coordinate is a linear fit of the ratings; an example ends with the
words that are to be learned, and every token before them counts for less.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.data.bases import builds, checkpoint
from workbench.data.bases.pretraining import Pace, Training
from workbench.interfaces import FloatArray
from workbench.studies.bases import BuildProgress, BuildStage, BuildStep

if TYPE_CHECKING:
    import torch

Example = tuple[list[int], int]
"""Tokens, and the place of the first that is to be learned for itself."""

SPACE = "▁"
UNKNOWN = "<unk>"
UNKNOWN_ID, END_ID = 0, 1
SCHEMA = 2
"""Raised whenever examples or vocabularies change in a way that no recipe shows; part of their keys."""

_WORD, _ENDING, _LETTER, _SPECIAL = -8.0, -9.0, -12.0, -30.0
"""Scores of tokens: a text is cut into as few as possible, words before their parts."""
_LETTERS = [chr(code) for code in range(33, 127)]


@dataclass(frozen=True, kw_only=True)
class TaskRecipe(builds.Recipe):
    """All that a task base is made of, besides the text.

    Attributes:
        text: Hash of what is worded in code, and of what is read.
        examples: In a step.
        lm_share: Weight of the other tokens' loss.
        lm_tokens: Other tokens of a step that are looked at, at most.
        embedding_pace: Share of the learning rate at which word vectors move.
    """

    text: Mapping[str, Any]
    examples: int
    lm_share: float
    lm_tokens: int
    embedding_pace: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """What decides the weights, on a machine with given packages."""
        said = super().to_json()
        own = ("examples", "lm_share", "lm_tokens", "embedding_pace")
        return {
            **said,
            "task": SCHEMA,
            "text": dict(self.text),
            **{name: getattr(self, name) for name in own},
        }


class Lesson(ABC):
    """What a base is taught: examples, drawn, in tokens; and what its word vectors begin with."""

    def __init__(self, tokenizer: Any) -> None:
        """Keep the tokenizer.

        Args:
            tokenizer: Of `tokenizers`.
        """
        self._tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        """Tokens of a text."""
        found: list[int] = self._tokenizer.encode(text).ids
        return found

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self._tokenizer.get_vocab_size())

    @abstractmethod
    def example(self, generator: np.random.Generator) -> Example:
        """One example."""

    def first_coordinate(self) -> FloatArray | None:
        """What stands in the first coordinate of each token's vector before training; None draws it."""
        return None


@dataclass(frozen=True, kw_only=True)
class TaskBase(builds.BuiltBase):
    """A base that is pretrained for a task, on other wordings of it."""

    recipe: TaskRecipe

    @abstractmethod
    def lesson(self, work: Path) -> tuple[Path, Lesson, Mapping[str, Any]]:
        """The vocabulary's file, written in `work`, the lesson, and what the recipe says of the text."""

    def pretrain(self, work: Path, progress: BuildProgress) -> None:
        """Train, and write the folder `work/whole`."""
        recipe, total = self.recipe, self.recipe.steps
        progress(BuildStep(name=recipe.name, stage=BuildStage.TEXT, total=total))
        tokenizer, lesson, said = self.lesson(work)
        run = builds.run_name(recipe, checkpoint.file_sha256(tokenizer))
        sized = replace(recipe, config={**recipe.config, "vocab_size": lesson.vocabulary})
        module = sized.new_module()
        _begin(module, lesson.first_coordinate())
        training = TaskTraining(lesson, module, recipe)
        training.resume(work, run)
        start = BuildStep(name=recipe.name, stage=BuildStage.TRAINING, total=total)
        builds.train(training, start, (work, run), progress)
        folder, read = builds.write_checkpoint(training, tokenizer, work)
        builds.write_recipe(recipe, training, folder, read, {**said, "validation": {}})


def _begin(module: torch.nn.Module, first: FloatArray | None) -> None:
    """Put the given values into the first coordinate of the word vectors."""
    import torch

    if first is not None:
        embeddings: Any = module
        with torch.no_grad():
            embeddings.get_input_embeddings().weight[:, 0] = torch.from_numpy(first).float()


class TaskTraining(Training):
    """A run over examples in the place of a token stream."""

    def __init__(self, lesson: Lesson, module: torch.nn.Module, recipe: TaskRecipe) -> None:
        """A fresh run; the module is trained in place."""
        super().__init__(np.zeros(0, dtype=np.int64), module, recipe.pace)
        import torch

        self._lesson, self._recipe = lesson, recipe
        parts: Any = module
        vectors = parts.get_input_embeddings().weight
        decay, bare = 0.1, 0.0
        groups = [
            ([vectors], decay, recipe.embedding_pace),
            ([p for p in module.parameters() if p.dim() > 1 and p is not vectors], decay, 1.0),
            ([p for p in module.parameters() if p.dim() <= 1], bare, 1.0),
        ]
        self._shares = [share for _, _, share in groups]
        self.optimizer = torch.optim.AdamW(
            [{"params": params, "weight_decay": decay} for params, decay, _ in groups],
            lr=recipe.pace.peak_learning_rate,
            betas=(0.9, 0.95),
        )

    def update(self, steps: int) -> float:
        """One update of a run of `steps` steps; returns the loss of what is to be learned, nats."""
        import torch
        from torch.nn.functional import cross_entropy

        rate = self.pace.learning_rate(self.step, steps)
        for group, share in zip(self.optimizer.param_groups, self._shares, strict=True):
            group["lr"] = rate * share
        generator = np.random.default_rng([self.pace.seed, self.step])
        examples = [self._lesson.example(generator) for _ in range(self._recipe.examples)]
        ids, taught, other = (torch.from_numpy(part) for part in _arrays(examples))
        left = other.flatten().nonzero()[:, 0]
        drawn = left[torch.from_numpy(generator.permutation(len(left))[: self._recipe.lm_tokens])]
        parts: Any = self.module
        hidden = parts.get_decoder()(input_ids=ids[:, :-1]).last_hidden_state.flatten(0, 1)
        targets = ids[:, 1:].flatten()
        chosen = taught.flatten()
        loss = cross_entropy(parts.get_output_embeddings()(hidden[chosen]), targets[chosen])
        rest = cross_entropy(parts.get_output_embeddings()(hidden[drawn]), targets[drawn])
        self.optimizer.zero_grad()
        torch.autograd.backward(loss + self._recipe.lm_share * rest)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())


def _arrays(examples: Sequence[Example]) -> tuple[Any, Any, Any]:
    """Tokens padded on the right; which of all but the first are to be learned; and which others count."""
    length = max(len(ids) for ids, _ in examples)
    ids = np.full((len(examples), length), END_ID, dtype=np.int64)
    taught = np.zeros((len(examples), length - 1), dtype=np.bool_)
    other = np.zeros((len(examples), length - 1), dtype=np.bool_)
    for i, (row, first) in enumerate(examples):
        ids[i, : len(row)] = row
        taught[i, first - 1 : len(row) - 1] = True
        other[i, : first - 1] = True
    return ids, taught, other & (ids[:, 1:] != UNKNOWN_ID)


def write_tokenizer(path: Path, words: Sequence[str], endings: Sequence[str], *, is_lower: bool) -> Any:
    """Write a vocabulary of words, ends of words and letters, and return it.

    Decoding a text's tokens gives the text, in lower case if so wanted, with a space around each newline.

    Args:
        path: The file.
        words: Each a token after a space; those without a letter also without one.
        endings: Tokens inside words.
        is_lower: Level case first.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces = {UNKNOWN: _SPECIAL, checkpoint.END: _SPECIAL, f"{SPACE}\n": _WORD}
    for word in words:
        pieces[f"{SPACE}{word}"] = _WORD
        if not any(letter.isalnum() for letter in word):
            pieces.setdefault(word, _WORD)
    for ending in endings:
        pieces.setdefault(ending, _ENDING)
    for letter in (*_LETTERS, SPACE):
        pieces.setdefault(letter, _LETTER)
    tokenizer: Any = Tokenizer(models.Unigram(list(pieces.items()), unk_id=UNKNOWN_ID, byte_fallback=False))
    # A newline is a word, also at the end, and what follows it begins one.
    steps = [normalizers.Replace(Regex(r"\n(?=[^\n])"), "\n "), normalizers.Replace("\n", " \n")]
    tokenizer.normalizer = normalizers.Sequence([*steps, *([normalizers.Lowercase()] if is_lower else [])])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    tokenizer.save(str(path))
    return tokenizer


def text_sha256(*parts: object) -> str:
    """Hash of what is worded in code."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pace(seed: int, peak_learning_rate: float) -> Pace:
    """The pace of a run whose batches are counted in examples."""
    return Pace(
        seed=seed,
        batch_tokens=0,
        block=0,
        positions=0,
        peak_learning_rate=peak_learning_rate,
        warm_up_steps=50,
        is_bf16=False,
    )
