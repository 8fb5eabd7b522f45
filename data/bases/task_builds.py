"""Pretraining a task base: its vocabulary, its examples and its loss.

The vocabulary is one of whole words, so that the options of a task are single tokens. A base of ratings
begins with word vectors of which one coordinate is a linear fit of the ratings; an example ends with the
words that are to be learned, and every token before them counts for less.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.data.bases import builds, checkpoint
from workbench.data.bases.pretraining import Training
from workbench.interfaces import FloatArray

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
    """All settings that a task base is made from, besides the text.

    Attributes:
        text: Hash of what is worded in code, and of what is read.
        examples: Their number in a step.
        lm_share: Weight of the loss of the tokens before the learned words.
        lm_tokens: How many of these tokens a step looks at, at most.
        embedding_pace: Share of the learning rate at which word vectors move.
    """

    text: Mapping[str, Any]
    examples: int
    lm_share: float
    lm_tokens: int
    embedding_pace: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON, on a machine with given packages."""
        said = super().to_json()
        return {
            **said,
            "task": SCHEMA,
            "text": dict(self.text),
            "examples": self.examples,
            "lm_share": self.lm_share,
            "lm_tokens": self.lm_tokens,
            "embedding_pace": self.embedding_pace,
        }


class Lesson(ABC):
    """Training data of a base: random examples, in tokens, and first values of its word vectors."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    @abstractmethod
    def example(self, generator: np.random.Generator) -> Example:
        """Draw one training example."""

    def first_coordinate(self) -> FloatArray | None:
        """First coordinate of each token's vector before training; None leaves it as drawn."""
        return None


@dataclass(frozen=True, kw_only=True)
class TaskBase(builds.BuiltBase):
    """A base that is pretrained for a task, on other wordings of it."""

    recipe: TaskRecipe

    @abstractmethod
    def lesson(self, work: Path) -> tuple[Path, Lesson, Mapping[str, Any]]:
        """The vocabulary's file, written in `work`, the lesson, and what the recipe says of the text."""

    def begin(self, work: Path) -> tuple[Training, str, Callable[[], None]]:
        """A run over the lesson's examples."""
        recipe = self.recipe
        tokenizer, lesson, described = self.lesson(work)
        sized = replace(recipe, config={**recipe.config, "vocab_size": lesson.vocabulary})
        module: Any = sized.new_module()
        first = lesson.first_coordinate()
        if first is not None:
            vectors = module.get_input_embeddings().weight
            vectors.data[:, 0] = vectors.new_tensor(first)
        training = TaskTraining(lesson, module, recipe)

        def write() -> None:
            folder = builds.write_checkpoint(module, tokenizer, work)
            read = checkpoint.load_module(folder, checkpoint.file_sha256(folder / checkpoint.WEIGHTS))
            self.write_recipe(training, folder, read, {**described, "validation": {}})

        return training, checkpoint.file_sha256(tokenizer), write


class TaskTraining(Training):
    """A run over examples in the place of a token stream."""

    def __init__(self, lesson: Lesson, module: torch.nn.Module, recipe: TaskRecipe) -> None:
        """A fresh run; the module is trained in place."""
        self._lesson, self._recipe = lesson, recipe
        super().__init__(module, recipe.pace)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The word vectors, which move at a share of the learning rate, then the others."""
        module: Any = self.module
        vectors = module.get_input_embeddings().weight
        matrices = [p for p in module.parameters() if p.dim() > 1 and p is not vectors]
        return [
            {"params": [vectors], "weight_decay": 0.1, "share": self._recipe.embedding_pace},
            {"params": matrices, "weight_decay": 0.1},
            {"params": [p for p in module.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ]

    def loss(self, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of what is to be learned, with a share of that of other tokens, and without it."""
        import torch
        from torch.nn.functional import cross_entropy

        generator = self.generator()
        examples = [self._lesson.example(generator) for _ in range(self._recipe.examples)]
        ids, taught, other = (torch.from_numpy(part) for part in _arrays(examples))
        left = other.flatten().nonzero()[:, 0]
        drawn = left[torch.from_numpy(generator.permutation(len(left))[: self._recipe.lm_tokens])]
        module: Any = self.module
        hidden = module.get_decoder()(input_ids=ids[:, :-1]).last_hidden_state.flatten(0, 1)
        output = module.get_output_embeddings()
        targets = ids[:, 1:].flatten()
        chosen = taught.flatten()
        loss = cross_entropy(output(hidden[chosen]), targets[chosen])
        rest = cross_entropy(output(hidden[drawn]), targets[drawn])
        return loss + self._recipe.lm_share * rest, loss


def _arrays(examples: Sequence[Example]) -> tuple[Any, Any, Any]:
    """Padded tokens; which of all but the first are to be learned; and which others count."""
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

    Decoding a text's tokens gives the text, in lower case if so wanted, with a space around each newline. A
    word is a token after a space, one without a letter also elsewhere; endings are tokens inside words.
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
