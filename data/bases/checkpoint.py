"""Reading and writing our own checkpoints: safetensors and JSON, with the hash checked."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError
from workbench.interfaces import Record

if TYPE_CHECKING:
    import torch

WEIGHTS, CONFIG, TOKENIZER, RECIPE = "model.safetensors", "config.json", "tokenizer.json", "recipe.json"

END = "<|endoftext|>"

TOKENIZER_SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
"""What transformers asks for beside `tokenizer.json`, where it is to read a checkpoint's folder itself."""

SAMPLE = (
    "The patient is a man of about sixty years who was admitted to the hospital with pain in the chest.",
    "A river is a large stream of water that flows over the land to the sea.",
    "Return the mean of the values along the given axis of the array, as a number of type float.",
    "She wrote a letter to her brother, who lived in a small town near the coast.",
)
"""Sentences, written for this, whose perplexity the recipe states: a check that needs no corpus."""


def file_sha256(path: Path) -> str:
    """The SHA-256 hash of a file, in hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write_tensors(module: torch.nn.Module, folder: Path) -> None:
    """Write the module's parameters in bf16, tied ones once."""
    import torch
    from safetensors.torch import save_file

    tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in module.named_parameters()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)


def write_weights(module: torch.nn.Module, folder: Path) -> str:
    """Write the module's parameters as `write_tensors` does, and its config; returns the weights' SHA-256."""
    write_tensors(module, folder)
    config: Any = module.config
    (folder / CONFIG).write_text(config.to_json_string(), encoding="utf-8")
    return file_sha256(folder / WEIGHTS)


def load_tensors(folder: Path, sha256: str) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint in float32, after a check of their hash."""
    from safetensors.torch import load_file

    check_sha256(folder / WEIGHTS, sha256)
    return {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}


def load_module(folder: Path, sha256: str) -> torch.nn.Module:
    """The module of a checkpoint; an `InputError` where the weights have another hash, or do not fit."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tensors = load_tensors(folder, sha256)
    config: Any = AutoConfig.for_model(**read_json(folder / CONFIG))
    with torch.random.fork_rng(devices=[]):  # the initial weights, overwritten below, are drawn globally
        module: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    # Where the output layer is the input embedding, it is one parameter under two names, stored once.
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if unexpected or set(missing) - tied:
        raise InputError(f"{WEIGHTS} does not fit {CONFIG} in {folder}")
    return module.eval()


def check_sha256(path: Path, sha256: str) -> None:
    """Refuse a file with another hash than this, with an `InputError`."""
    actual = file_sha256(path)
    if actual != sha256:
        raise InputError(f"{path} has sha256 {actual}, its recipe says {sha256}: the file was changed")


def tokenizer_file(folder: Path) -> Path:
    """The vocabulary of a checkpoint; those that the package ships share two, each kept once."""
    own = folder / TOKENIZER
    holder = "clinic_gpt2" if folder.name.startswith("clinic_") else "tiny_gpt2"
    return own if own.is_file() else folder.with_name(holder) / TOKENIZER


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint, from its `tokenizer.json`."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file(folder)), eos_token=END, pad_token=END)


def sample_json(folder: Path, module: torch.nn.Module) -> dict[str, Any]:
    """Perplexity per token of `SAMPLE`, for the recipe and for the test that recomputes it."""
    from workbench.training.models import LanguageModel

    model = LanguageModel(module, load_tokenizer(folder), 256, "tiny_gpt2")
    batch = model.encode([Record(id=str(i), text=text) for i, text in enumerate(SAMPLE)])
    values = [value for row in model.token_log_likelihoods(batch) for value in row]
    return {"tokens": len(values), "perplexity_per_token": round(math.exp(-sum(values) / len(values)), 3)}
