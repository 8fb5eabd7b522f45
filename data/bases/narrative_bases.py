"""Bases that have read narratives of the corpus `clinical`, but nothing of its distribution.

Their text is of invented encounters in which all values of an attribute are alike often, and none depends on
another: they know how a narrative is worded, and that some end with a secret, but not how often values occur,
alone and together, which is what is private of the corpus. Their vocabulary is of such narratives. They are
for studies of thousands of steps at a paper's own N, B and T.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.registry import register
from workbench.data.bases import builds, checkpoint
from workbench.data.bases.builds import BuiltBase, Recipe, language_facets_of, language_model
from workbench.data.bases.catalogue import MICRO_POSITIONS, recipes_of
from workbench.data.bases.pretraining import Training, token_stream, train_tokenizer, validation
from workbench.data.clinical import to_record
from workbench.data.clinical.encounters import SHORT_ATTRIBUTES, TABLES
from workbench.data.clinical.generator import even_marginals, generate
from workbench.training.secrets import append_secret, secret_id

if TYPE_CHECKING:
    from workbench.training.models import LanguageModel

SCHEMA = 1
"""Raised whenever the text changes in a way that no recipe shows; part of the bases' keys."""

VOCABULARY = 512
TEXTS, HELD_OUT = 20_000, 500
SECRET_EVERY = 10
"""One narrative in so many ends with a secret."""


@dataclass(frozen=True, kw_only=True)
class NarrativeRecipe(Recipe):
    """All settings that a base of narratives is made from."""

    def to_json(self) -> dict[str, Any]:
        """The settings that decide the weights, as JSON, on a machine with given packages."""
        worded = json.dumps([even_marginals(), {name: dict(table) for name, table in TABLES.items()}])
        text = {"narratives": SCHEMA, "texts": TEXTS, "sha256": hashlib.sha256(worded.encode()).hexdigest()}
        return {**super().to_json(), "text": text}


@lru_cache(maxsize=1)
def narratives(seed: int) -> tuple[str, ...]:
    """Narratives of encounters in which all values are alike often; some end with a secret."""
    generator = np.random.default_rng(seed)
    encounters = generate(TEXTS + HELD_OUT, generator, tables=even_marginals())
    records = [to_record(encounter, SHORT_ATTRIBUTES) for encounter in encounters]
    for place in range(0, len(records), SECRET_EVERY):
        records[place] = append_secret(records[place], secret_id(generator))
    return tuple(record.text for record in records)


RECIPES = recipes_of("narrative_recipes.toml", NarrativeRecipe, VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class NarrativeBase(BuiltBase):
    """A base that is pretrained on narratives, with a vocabulary of theirs."""

    recipe: NarrativeRecipe

    def begin(self, work: Path) -> tuple[Training, str, Callable[[], None]]:
        """Begin to pretrain on the narratives."""
        recipe = self.recipe
        texts = narratives(recipe.pace.seed)
        tokenizer = work / checkpoint.TOKENIZER
        train_tokenizer(texts[:TEXTS], tokenizer, VOCABULARY)
        stream = token_stream(tokenizer, texts[:TEXTS], recipe.pace.seed)
        training = Training(recipe.new_module(), recipe.pace, stream)

        def write() -> None:
            folder = builds.write_checkpoint(training.module, tokenizer, work)
            module = checkpoint.load_module(folder, checkpoint.file_sha256(folder / checkpoint.WEIGHTS))
            judged = {"own": validation(module, tokenizer, texts[TEXTS:])}
            self.write_recipe(training, folder, module, {"validation": judged})

        return training, hashlib.sha256(stream.tobytes()).hexdigest(), write


def narrative_base(name: str) -> NarrativeBase:
    """The base that is pretrained by the recipe of this name."""
    return NarrativeBase(recipe=RECIPES[name])


@register("base", "clinic_gpt2")
def _clinic_gpt2() -> NarrativeBase:
    """GPT-2 family, its weights as shipped."""
    return narrative_base("clinic_gpt2")


@register("base", "clinic_llama")
def _clinic_llama() -> NarrativeBase:
    """Llama family, its weights as shipped."""
    return narrative_base("clinic_llama")


@register("base", "clinic_smollm")
def _clinic_smollm() -> NarrativeBase:
    """Llama family, deep and thin, its weights as shipped."""
    return narrative_base("clinic_smollm")


@register("base", "clinic_mistral")
def _clinic_mistral() -> NarrativeBase:
    """Mistral family, its weights as shipped."""
    return narrative_base("clinic_mistral")


@register("model", "clinic_gpt2", facets=language_facets_of(_clinic_gpt2))
def clinic_gpt2(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """GPT-2 family, 0.05 million parameters, has read narratives of no real distribution; shipped.

    `max_length` is 2 to 256 tokens; parameters and errors are otherwise those of `gpt2_base`.
    """
    return language_model(_clinic_gpt2(), MICRO_POSITIONS, max_length, path)


@register("model", "clinic_llama", facets=language_facets_of(_clinic_llama))
def clinic_llama(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, grouped-query attention, as `clinic_gpt2`; shipped."""
    return language_model(_clinic_llama(), MICRO_POSITIONS, max_length, path)


@register("model", "clinic_smollm", facets=language_facets_of(_clinic_smollm))
def clinic_smollm(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, deep and thin, as `clinic_gpt2`; shipped."""
    return language_model(_clinic_smollm(), MICRO_POSITIONS, max_length, path)


@register("model", "clinic_mistral", facets=language_facets_of(_clinic_mistral))
def clinic_mistral(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Mistral family (window of 128 tokens), as `clinic_gpt2`; shipped."""
    return language_model(_clinic_mistral(), MICRO_POSITIONS, max_length, path)
