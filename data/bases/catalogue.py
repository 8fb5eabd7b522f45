"""The small base models: the families that the FERRET and RLDP papers fine-tune, a million parameters each.

`gpt2_base` has the weights of the shipped `tiny_gpt2`; the others are pretrained once on the user's machine
(`workbench models build`, about two minutes of one core each) with the same vocabulary. Proportions follow
the models that they stand for: ratio of the feed-forward width, query heads that share a key, tied or
separate embeddings, depth. Each takes `path`, a local Hugging Face folder, to run the paper's own model.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.core.registry import register
from workbench.data.bases import builds, checkpoint, hugging_face
from workbench.data.bases import models as base_models
from workbench.data.bases.builds import BuiltBase, Recipe, language_facets_of, language_model
from workbench.data.bases.pretraining import VOCABULARY, Pace, Training, token_stream, validation
from workbench.data.bases.texts import public as pretraining_text
from workbench.data.shared.parts import cache_folder
from workbench.interfaces import ModelFacets
from workbench.studies.bases import BaseCard, BuildProgress, BuildStage

if TYPE_CHECKING:
    from workbench.training.models import LanguageModel

POSITIONS = 512
"""Tokens that a built base was trained on at most."""

MICRO_POSITIONS = 256
"""Tokens that a base of 0.1 million parameters was trained on at most."""

PACE = Pace(
    seed=0,
    batch_tokens=2048,
    block=256,
    positions=POSITIONS,
    peak_learning_rate=4e-3,
    warm_up_steps=50,
    # On processors without bf16 arithmetic autocast is many times slower.
    is_bf16=False,
)

RecipeT = TypeVar("RecipeT", bound=Recipe)

_ALL: dict[str, Any] = {
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
    "use_cache": False,
}


def recipes_of(file: str, make: type[RecipeT], vocabulary: int) -> dict[str, RecipeT]:
    """The recipes of a file here, by name; `positions` are those of `PACE` unless a table says others."""
    tables = tomllib.loads(files("workbench.data").joinpath("bases", file).read_text("utf-8"))
    found = {}
    for name, given in tables.items():
        positions = given.pop("positions", POSITIONS)
        pace = replace(PACE, positions=positions, block=min(PACE.block, positions))
        config = {**_ALL, "vocab_size": vocabulary, **given.pop("config")}
        found[name] = make(name=name, config=config, pace=pace, **given)
    return found


RECIPES = recipes_of("recipes.toml", Recipe, VOCABULARY)
"""The bases that are built, by name."""


@dataclass(frozen=True)
class ShippedBase:
    """The base whose weights come with the package; implements `workbench.studies.bases.Base`."""

    folder: Path

    def is_built(self) -> bool:
        """True: nothing is to be built."""
        return True

    def build(self, progress: BuildProgress) -> Path:
        """The folder of the shipped weights; nothing is built."""
        return self.folder

    def card(self) -> BaseCard:
        """The base's size and quality, as its recipe says."""
        quality = checkpoint.read_json(self.folder / checkpoint.RECIPE)["validation"]["docstrings"]
        return BaseCard(
            name="gpt2_base",
            family="GPT-2",
            stands_for="GPT-2",
            parameters=1_121_024,
            is_built=True,
            place=self.folder,
            size_bytes=(self.folder / checkpoint.WEIGHTS).stat().st_size,
            perplexity=quality["perplexity_per_token"],
            bits_per_byte=quality["bits_per_byte"],
        )


@dataclass(frozen=True, kw_only=True)
class CachedBase(BuiltBase):
    """A base that is pretrained on the public text, with the vocabulary of the shipped one."""

    stages = (BuildStage.TEXT, BuildStage.TRAINING, BuildStage.JUDGING)

    tokenizer: Path

    def begin(self, work: Path) -> tuple[Training, str, Callable[[], None]]:
        """Begin to pretrain on the public text."""
        recipe = self.recipe
        with builds.locked(cache_folder() / ".base-text.lock", lambda: None):
            text = pretraining_text.load()
        texts = [train_text for source in text.sources for train_text in source.train]
        stream = token_stream(self.tokenizer, texts, recipe.pace.seed)
        training = Training(recipe.new_module(), recipe.pace, stream)
        data = hashlib.sha256(stream.tobytes()).hexdigest()
        return training, data, lambda: self._write(training, text, work)

    def _write(self, training: Training, text: pretraining_text.Text, work: Path) -> None:
        """Write `work/whole`; the numbers of the validation are those of the rounded weights, as kept."""
        folder = builds.write_checkpoint(training.module, self.tokenizer, work)
        module = checkpoint.load_module(folder, checkpoint.file_sha256(folder / checkpoint.WEIGHTS))
        held_out = [held_out_text for source in text.sources for held_out_text in source.held_out]
        described = {
            "sources": [source.to_json() for source in text.sources],
            "text_sha256": text.sha256,
            "validation": {
                "own": validation(module, self.tokenizer, held_out),
                "docstrings": validation(module, self.tokenizer, text.docstrings),
            },
            "sample": checkpoint.sample_json(folder, module),
        }
        self.write_recipe(training, folder, module, described)


def cached(name: str) -> CachedBase:
    """The base that is pretrained by the recipe of this name."""
    return CachedBase(recipe=RECIPES[name], tokenizer=base_models.TINY_GPT2_FOLDER / checkpoint.TOKENIZER)


@register("base", "gpt2_base")
def _gpt2() -> ShippedBase:
    """The shipped `tiny_gpt2`."""
    return ShippedBase(base_models.TINY_GPT2_FOLDER)


@register("base", "qwen2_base")
def _qwen2_base() -> CachedBase:
    """Qwen2 family, pretrained on this machine."""
    return cached("qwen2_base")


@register("base", "llama_base")
def _llama_base() -> CachedBase:
    """Llama family, pretrained on this machine."""
    return cached("llama_base")


@register("base", "bloom_base")
def _bloom_base() -> CachedBase:
    """BLOOM family, pretrained on this machine."""
    return cached("bloom_base")


@register("base", "smollm_base")
def _smollm_base() -> CachedBase:
    """Llama family, pretrained on this machine."""
    return cached("smollm_base")


@register("base", "mistral_base")
def _mistral_base() -> CachedBase:
    """Mistral family, pretrained on this machine."""
    return cached("mistral_base")


@register("base", "micro_base")
def _micro_base() -> CachedBase:
    """GPT-2 family, its weights as shipped."""
    return cached("micro_base")


@register("base", "micro_qwen2")
def _micro_qwen2() -> CachedBase:
    """Qwen2 family, its weights as shipped."""
    return cached("micro_qwen2")


@register("base", "micro_llama")
def _micro_llama() -> CachedBase:
    """Llama family, its weights as shipped."""
    return cached("micro_llama")


@register("base", "micro_bloom")
def _micro_bloom() -> CachedBase:
    """BLOOM family (ALiBi), its weights as shipped."""
    return cached("micro_bloom")


@register("base", "micro_smollm")
def _micro_smollm() -> CachedBase:
    """Llama family, its weights as shipped."""
    return cached("micro_smollm")


@register("base", "micro_mistral")
def _micro_mistral() -> CachedBase:
    """Mistral family (window of 128 tokens), its weights as shipped."""
    return cached("micro_mistral")


def _gpt2_fingerprint(*, path: str | None = None, **_: object) -> str:
    """Hash of the shipped files, or of the folder that stands in for them."""
    if path is None:
        return base_models.tiny_gpt2_fingerprint()
    return hugging_face.folder_fingerprint(path=path)


@register(
    "model",
    "gpt2_base",
    facets=ModelFacets(
        fingerprint=_gpt2_fingerprint,
        check_folder=hugging_face.check_folder,
        has_one_base=builds.is_not_folder,
    ),
)
def gpt2_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """GPT-2 family, 1.1 million parameters: the shipped `tiny_gpt2`, in the place of GPT-2.

    `seed`: unused: the weights are the shipped ones, whatever the seed. `max_length`: longest record in
    tokens, 2 to 512. `path`: a local Hugging Face folder that stands in for it (see model `huggingface`).
    Raises `InputError`: `max_length` is out of range, or the folder holds no causal language model.
    """
    if path is not None:
        return hugging_face.stand_in("gpt2_base", max_length, path)
    model = base_models.tiny_gpt2(seed=seed, max_length=max_length)
    model.name = "gpt2_base"
    return model


@register("model", "qwen2_base", facets=language_facets_of(_qwen2_base))
def qwen2_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Qwen2 family, 1.1 million parameters, in the place of DeepSeek-R1-Distill-Qwen-1.5B; is built first.

    Parameters and errors are those of `gpt2_base`; it is an error, too, that it is not built.
    """
    return language_model(_qwen2_base(), POSITIONS, max_length, path)


@register("model", "llama_base", facets=language_facets_of(_llama_base))
def llama_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, 1 million parameters, grouped-query attention, in place of TinyLlama; is built first."""
    return language_model(_llama_base(), POSITIONS, max_length, path)


@register("model", "bloom_base", facets=language_facets_of(_bloom_base))
def bloom_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """BLOOM family (ALiBi), 1.1 million parameters, in the place of BLOOM-560M; is built first."""
    return language_model(_bloom_base(), POSITIONS, max_length, path)


@register("model", "smollm_base", facets=language_facets_of(_smollm_base))
def smollm_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, deep and thin, 1 million parameters, in the place of SmolLM-360M; is built first."""
    return language_model(_smollm_base(), POSITIONS, max_length, path)


@register("model", "mistral_base", facets=language_facets_of(_mistral_base))
def mistral_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Mistral family (window of 128 tokens), 0.9 million parameters, in place of Mistral-7B; built first."""
    return language_model(_mistral_base(), POSITIONS, max_length, path)


def _micro_model(base: CachedBase, max_length: int, path: str | None) -> LanguageModel:
    return language_model(base, MICRO_POSITIONS, max_length, path)


@register("model", "micro_base", facets=language_facets_of(_micro_base))
def micro_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """GPT-2 family, 0.1 million parameters, for studies at a paper's own N, B and T; ships with the package.

    `max_length` is 2 to 256 tokens; parameters and errors are otherwise those of `gpt2_base`.
    """
    return _micro_model(_micro_base(), max_length, path)


@register("model", "micro_qwen2", facets=language_facets_of(_micro_qwen2))
def micro_qwen2(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Qwen2 family, 0.1 million parameters, as `micro_base`; shipped."""
    return _micro_model(_micro_qwen2(), max_length, path)


@register("model", "micro_llama", facets=language_facets_of(_micro_llama))
def micro_llama(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, grouped-query attention, 0.1 million parameters, as `micro_base`; shipped."""
    return _micro_model(_micro_llama(), max_length, path)


@register("model", "micro_bloom", facets=language_facets_of(_micro_bloom))
def micro_bloom(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """BLOOM family (ALiBi), 0.1 million parameters, as `micro_base`; shipped."""
    return _micro_model(_micro_bloom(), max_length, path)


@register("model", "micro_smollm", facets=language_facets_of(_micro_smollm))
def micro_smollm(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, deep and thin, 0.07 million parameters, as `micro_base`; shipped."""
    return _micro_model(_micro_smollm(), max_length, path)


@register("model", "micro_mistral", facets=language_facets_of(_micro_mistral))
def micro_mistral(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Mistral family (window of 128 tokens), 0.1 million parameters, as `micro_base`; shipped."""
    return _micro_model(_micro_mistral(), max_length, path)
