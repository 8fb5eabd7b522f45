"""The small bases: the families that the FERRET and RLDP papers fine-tune, a million parameters each.

`gpt2_base` has the weights of the shipped `tiny_gpt2`; the others are pretrained once on the user's
machine (`workbench models build`, about two minutes of one core each) with the same vocabulary. Proportions
follow the models that they stand for, as far as a million parameters go: ratio of the feed-forward width,
query heads that share a key, tied or separate embeddings, depth. Any of them takes `path`: a local Hugging
Face folder, with which the same study runs the paper's own models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.bases import checkpoint, hugging_face
from workbench.data.bases import models as base_models
from workbench.data.bases.builds import BuiltBase, CachedBase, Recipe
from workbench.data.bases.pretraining import VOCABULARY, Pace
from workbench.data.shared.parts import checked_count
from workbench.studies.bases import BaseCard, BuildProgress

if TYPE_CHECKING:
    from workbench.training.models import LanguageModel

POSITIONS = 512
"""Tokens that a built base was trained on at most."""

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

_ALL = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
    "use_cache": False,
}

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="qwen2_base",
            family="Qwen2",
            # 28 layers of width 1,536; 12 query heads on 2 keys; feed-forward 8,960; separate embeddings.
            stands_for="DeepSeek-R1-Distill-Qwen-1.5B",
            parameters=1_125_728,
            model_type="qwen2",
            config={
                **_ALL,
                "hidden_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 6,
                "num_key_value_heads": 1,
                "intermediate_size": 560,
                "max_position_embeddings": POSITIONS,
                "tie_word_embeddings": False,
            },
            steps=540,
            pace=PACE,
        ),
        Recipe(
            name="llama_base",
            family="Llama",
            # 22 layers of width 2,048; 32 query heads on 4 keys; feed-forward 5,632; separate embeddings.
            stands_for="TinyLlama-1.1B",
            parameters=1_053_568,
            model_type="llama",
            config={
                **_ALL,
                "hidden_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "intermediate_size": 352,
                "max_position_embeddings": POSITIONS,
                "tie_word_embeddings": False,
            },
            steps=640,
            pace=PACE,
        ),
        Recipe(
            name="bloom_base",
            family="BLOOM",
            # 24 layers of width 1,024; 16 heads; ALiBi; tied embeddings.
            stands_for="BLOOM-560M",
            parameters=1_055_744,
            model_type="bloom",
            config={
                **_ALL,
                "hidden_size": 128,
                "n_layer": 4,
                "n_head": 4,
                "hidden_dropout": 0.0,
                "attention_dropout": 0.0,
            },
            steps=470,
            pace=PACE,
        ),
        Recipe(
            name="smollm_base",
            family="Llama",
            # 32 layers of width 960; 15 query heads on 5 keys; feed-forward 2,560; tied embeddings.
            stands_for="SmolLM-360M",
            parameters=984_672,
            model_type="llama",
            config={
                **_ALL,
                "hidden_size": 96,
                "num_hidden_layers": 8,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "intermediate_size": 256,
                "max_position_embeddings": POSITIONS,
                "tie_word_embeddings": True,
            },
            steps=440,
            pace=PACE,
        ),
        Recipe(
            name="mistral_base",
            family="Mistral",
            # 32 layers of width 4,096; 32 query heads on 8 keys; feed-forward 14,336; separate embeddings; a
            # window of 4,096 tokens, half of the context (Jiang et al. 2023).
            stands_for="Mistral-7B",
            parameters=948_752,
            model_type="mistral",
            config={
                **_ALL,
                "hidden_size": 112,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "intermediate_size": 392,
                "max_position_embeddings": POSITIONS,
                "sliding_window": PACE.block // 2,
                "tie_word_embeddings": False,
            },
            steps=300,
            pace=PACE,
        ),
    )
}
"""The bases that are built, by name."""


@dataclass(frozen=True)
class ShippedBase:
    """The base whose weights come with the package; implements `workbench.studies.bases.Base`."""

    folder: Path

    def is_built(self) -> bool:
        """True: nothing is to be built."""
        return True

    def build(self, progress: BuildProgress) -> Path:
        """The folder that is there."""
        return self.folder

    def card(self) -> BaseCard:
        """What its recipe says."""
        said = checkpoint.read_json(self.folder / checkpoint.RECIPE)["validation"]["docstrings"]
        return BaseCard(
            name="gpt2_base",
            family="GPT-2",
            stands_for="GPT-2",
            parameters=1_121_024,
            is_built=True,
            place=self.folder,
            size_bytes=(self.folder / checkpoint.WEIGHTS).stat().st_size,
            perplexity=said["perplexity_per_token"],
            bits_per_byte=said["bits_per_byte"],
        )


def cached(name: str) -> CachedBase:
    """The base of a recipe."""
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


def _fingerprint(name: str) -> Callable[..., str]:
    """What gives the hash of a base's files, or of the folder that stands in for it."""

    def fingerprint(*, path: str | None = None, **_: object) -> str:
        return cached(name).fingerprint() if path is None else base_models._folder_fingerprint(path=path)

    return fingerprint


def _load(name: str, max_length: int, path: str | None) -> LanguageModel:
    """The base of a recipe, or the folder that stands in for it."""
    return load_built(cached(name), max_length, path)


def load_built(base: BuiltBase, max_length: int, path: str | None) -> LanguageModel:
    """A built base as a language model, or the folder that stands in for it.

    Args:
        base: The base.
        max_length: Longest record in tokens, 2 to 512.
        path: The folder; None for the base.

    Raises:
        InputError: it is not built, `max_length` is out of range, or the folder holds no causal language
            model.
    """
    from workbench.training.models import LanguageModel

    name = base.recipe.name
    checked_count("max_length", max_length, minimum=2)
    if path is not None:
        return stand_in(name, max_length, path)
    if max_length > POSITIONS:
        raise InputError(f"max_length must be at most {POSITIONS}, the positions of {name}, got {max_length}")
    folder = base.checked_folder()
    sha256 = checkpoint.read_json(folder / checkpoint.RECIPE)["sha256"][checkpoint.WEIGHTS]
    module = checkpoint.load_module(folder, sha256)
    return LanguageModel(module, checkpoint.load_tokenizer(folder), max_length, name)


def stand_in(name: str, max_length: int, path: str) -> LanguageModel:
    """A local Hugging Face folder under the name of a base."""
    if not Path(path).expanduser().is_dir():
        raise InputError(f"path must be a local folder with a model, got {path!r}")
    model = hugging_face.load(path, seed=0, max_length=max_length)
    model.name = name
    return model


@register("model", "gpt2_base")
def gpt2_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """GPT-2 family, 1.1 million parameters: the shipped `tiny_gpt2`, in the place of GPT-2.

    Args:
        seed: Unused: the weights are the shipped ones, whatever the seed.
        max_length: Longest record in tokens, 2 to 512.
        path: A local Hugging Face folder that stands in for it (see model `huggingface`).

    Raises:
        InputError: `max_length` is out of range, or the folder holds no causal language model.
    """
    if path is not None:
        return stand_in("gpt2_base", max_length, path)
    model = base_models.tiny_gpt2(seed=seed, max_length=max_length)
    model.name = "gpt2_base"
    return model


def _gpt2_fingerprint(*, path: str | None = None, **_: object) -> str:
    return (
        base_models._tiny_gpt2_fingerprint() if path is None else base_models._folder_fingerprint(path=path)
    )


@register("model", "qwen2_base")
def qwen2_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Qwen2 family, 1.1 million parameters, in the place of DeepSeek-R1-Distill-Qwen-1.5B; is built first.

    Args:
        seed: Unused: the weights are those of the build, whatever the seed.
        max_length: Longest record in tokens, 2 to 512.
        path: A local Hugging Face folder that stands in for it (see model `huggingface`).

    Raises:
        InputError: it is not built, `max_length` is out of range, or the folder holds no causal language
            model.
    """
    del seed
    return _load("qwen2_base", max_length, path)


@register("model", "llama_base")
def llama_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, 1 million parameters, grouped-query attention, in the place of TinyLlama; is built first.

    Args:
        seed, max_length, path: See `qwen2_base`.

    Raises:
        InputError: see `qwen2_base`.
    """
    del seed
    return _load("llama_base", max_length, path)


@register("model", "bloom_base")
def bloom_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """BLOOM family (ALiBi), 1.1 million parameters, in the place of BLOOM-560M; is built first.

    Args:
        seed, max_length, path: See `qwen2_base`.

    Raises:
        InputError: see `qwen2_base`.
    """
    del seed
    return _load("bloom_base", max_length, path)


@register("model", "smollm_base")
def smollm_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Llama family, deep and thin, 1 million parameters, in the place of SmolLM-360M; is built first.

    Args:
        seed, max_length, path: See `qwen2_base`.

    Raises:
        InputError: see `qwen2_base`.
    """
    del seed
    return _load("smollm_base", max_length, path)


@register("model", "mistral_base")
def mistral_base(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
    """Mistral family (window of 128 tokens), 0.9 million parameters, in place of Mistral-7B; is built first.

    Args:
        seed, max_length, path: See `qwen2_base`.

    Raises:
        InputError: see `qwen2_base`.
    """
    del seed
    return _load("mistral_base", max_length, path)


def _described() -> None:
    """Give the models what the keys of results hold of their files, and what refuses a stand-in unread."""
    gpt2_base.fingerprint = _gpt2_fingerprint  # type: ignore[attr-defined]
    for model in (qwen2_base, llama_base, bloom_base, smollm_base, mistral_base):
        model.fingerprint = _fingerprint(model.__name__)  # type: ignore[attr-defined]
    for model in (gpt2_base, qwen2_base, llama_base, bloom_base, smollm_base, mistral_base):
        model.check_folder = hugging_face.check_folder  # type: ignore[attr-defined]


_described()
