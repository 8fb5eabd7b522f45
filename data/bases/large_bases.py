"""The larger GPT-2 base: `gpt2_large_base`, in the place of GPT-2-large beside `gpt2_base` in that of GPT-2.

It is the shipped `tiny_gpt2` grown to a quarter more width and twice the depth
(`workbench.data.bases.growing`), for on one core and in a minute a model of its size would not learn from
nothing what the shipped one knows. Then it is taught to tell records of generated encounters, in other forms
and words than those of corpus `clinical_records` (`workbench.data.bases.record_texts`): a larger model stands
nearer to a task than a smaller one, and this is how. `gpt2_base` has seen no record, so the two differ in
more than size. GPT-2-large has 36 blocks of width 1,280 and GPT-2 12 of width 768.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.registry import register
from workbench.data.bases import checkpoint, hugging_face, record_texts
from workbench.data.bases import models as base_models
from workbench.data.bases.catalogue import load_built
from workbench.data.bases.task_builds import Example, Lesson, TaskBase, TaskRecipe, pace, text_sha256
from workbench.training.generation_scores import TEXT_MARK

if TYPE_CHECKING:
    import torch

    from workbench.training.models import LanguageModel

GROWTH = 1
"""Raised whenever growing changes in a way that no recipe shows; part of the keys."""


@dataclass(frozen=True, kw_only=True)
class GrownRecipe(TaskRecipe):
    """A base that starts as the shipped `tiny_gpt2`, grown; `config` holds what differs from its own."""

    def to_json(self) -> dict[str, Any]:
        """What decides the weights, on a machine with given packages."""
        said = checkpoint.read_json(base_models.TINY_GPT2_FOLDER / checkpoint.RECIPE)
        return {**super().to_json(), "growth": GROWTH, "grown_from": said["sha256"]}

    def new_module(self) -> torch.nn.Module:
        """The grown module, its new weights drawn from the seed."""
        from transformers import AutoConfig

        from workbench.data.bases import vision
        from workbench.data.bases.growing import grown

        known = checkpoint.read_json(base_models.TINY_GPT2_FOLDER / checkpoint.CONFIG)
        config = AutoConfig.for_model(**{**known, **self.config})
        small = base_models.tiny_gpt2(seed=0, max_length=2).module
        return vision.seeded(lambda: grown(small, config), self.pace.seed)


GPT2_LARGE = GrownRecipe(
    name="gpt2_large_base",
    family="GPT-2",
    stands_for="GPT-2-large",
    parameters=2_884_160,
    model_type="gpt2",
    # The small constant of the normalisations goes with the width, for the grown function to be the same.
    config={"n_embd": 160, "n_head": 5, "n_layer": 8, "layer_norm_epsilon": 1e-5 * 128 / 160},
    steps=100,
    pace=pace(seed=0, peak_learning_rate=2e-3),
    text={
        "encounters": record_texts.ENCOUNTERS,
        "seed": record_texts.ENCOUNTER_SEED,
        "words": text_sha256(
            dict(record_texts.NAMES),
            record_texts.FORMS,
            dict(record_texts.SENTENCES),
            dict(record_texts.IN_WORDS),
        ),
    },
    examples=24,
    lm_share=0.1,
    lm_tokens=256,
)


class RecordLesson(Lesson):
    """Records with their texts, each followed by the end of the text."""

    def __init__(self, tokenizer: Any, records: record_texts.RecordTexts) -> None:
        """Keep the records."""
        super().__init__(tokenizer)
        self._records = records
        self._end = int(tokenizer.token_to_id(checkpoint.END))

    def example(self, generator: np.random.Generator) -> Example:
        """A record and its text."""
        record, text = self._records.example(generator)
        prompt = self.ids(f"{record}{TEXT_MARK}")
        return [*prompt, *self.ids(f" {text}"), self._end], len(prompt)


@dataclass(frozen=True, kw_only=True)
class GrownBase(TaskBase):
    """The base that is grown and has told records."""

    def lesson(self, work: Path) -> tuple[Path, Lesson, Mapping[str, Any]]:
        """Generate the encounters; the vocabulary is that of the shipped base."""
        from tokenizers import Tokenizer

        del work
        path = base_models.TINY_GPT2_FOLDER / checkpoint.TOKENIZER
        found = record_texts.record_texts()
        source = {
            "name": "records",
            "origin": "generated as for corpus clinical",
            "texts": len(found.encounters),
        }
        return path, RecordLesson(Tokenizer.from_file(str(path)), found), {"sources": [source]}


@register("base", "gpt2_large_base")
def _gpt2_large() -> GrownBase:
    """GPT-2 family, grown from the shipped base, has told generated records."""
    return GrownBase(recipe=GPT2_LARGE)


@register("model", "gpt2_large_base")
def gpt2_large_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """GPT-2 family, 2.9 million parameters, in the place of GPT-2-large; is built first.

    Args:
        seed: Unused: the weights are those of the build, whatever the seed.
        max_length: Longest record in tokens, 2 to 512.
        path: A local Hugging Face folder that stands in for it (see model `huggingface`).

    Raises:
        InputError: it is not built, `max_length` is out of range, or the folder holds no causal language
            model.
    """
    del seed
    return load_built(_gpt2_large(), max_length, path)


def _fingerprint(*, path: str | None = None, **_: object) -> str:
    """Hash of the base's files, or of the folder that stands in for it."""
    return _gpt2_large().fingerprint() if path is None else base_models._folder_fingerprint(path=path)


gpt2_large_base.fingerprint = _fingerprint  # type: ignore[attr-defined]  # for the keys of results
gpt2_large_base.check_folder = hugging_face.check_folder  # type: ignore[attr-defined]  # refuses one unread
