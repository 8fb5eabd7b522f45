r"""Two public tutorials under forced replay, their files unchanged: one of Opacus, one of Hugging Face.

    OPACUS_EXAMPLE=mnist.py workbench replay benchmarks/tutorials.py:opacus_mnist \
        --claim "epsilon=4.70,delta=1e-5,adjacency=add-remove"
    HUGGING_FACE_EXAMPLE=run_clm_no_trainer.py workbench replay benchmarks/tutorials.py:hugging_face_clm \
        --corpus clinical --candidates 64 --claim "epsilon=8,delta=1e-5,adjacency=add-remove"
    OPACUS_EXAMPLE=mnist.py python benchmarks/tutorials.py opacus_mnist

The last trains once and prints what the tutorial says. The tutorials' files are not in this repository: the
variables hold paths of your copies. Each function writes the records where the tutorial reads its data, runs
the file as a script in a temporary folder, and returns the model that it saved. OPACUS_OPTIONS and
HUGGING_FACE_OPTIONS replace the options of `OPTIONS`. Results are stored by the hash of this file alone: give
each tutorial and each set of options a folder of its own (`--out`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import runpy
import shlex
import struct
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from workbench.core.errors import InputError

OPTIONS = {"OPACUS": "--epochs 4 --batch-size 20", "HUGGING_FACE": "--num_train_epochs 1"}
"""Words for each tutorial, beside those that say where things are. All other options are the tutorial's."""

SIDE = 28
"""Pixels of a side of MNIST's images."""

BLOCK = 64
"""Tokens of a record that the language model is trained on."""

Records = Sequence[Mapping[str, Any]]


def opacus_mnist(records: Records, seed: int) -> Digits:
    """Train by `examples/mnist.py` of Opacus.

    Args:
        records: With images, square and of values from 0 to 1; what is beyond is cut off, since MNIST's files
            hold bytes.
        seed: Of torch's generator, which the tutorial leaves as it is.

    Raises:
        InputError: no tutorial, no images, or the tutorial stops.
    """
    if any(record["image"] is None for record in records):
        raise InputError("opacus_mnist needs records with images, as those of --corpus digits")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = folder / "MNIST" / "raw"
        raw.mkdir(parents=True)
        _write_idx(raw, "train", _pixels(records), [record["label"] for record in records])
        # Of black images, so that what the tutorial says of its test follows from no record but by training.
        _write_idx(raw, "t10k", np.zeros((10, SIDE, SIDE), dtype=np.uint8), range(10))
        places = ["--device", "cpu", "--data-root", name, "--save-model"]
        script = _run("OPACUS", places, folder, seed)
        saved = torch.load(next(folder.glob("mnist_cnn_*.pt")), weights_only=True)
    network = script.names["SampleConvNet"]()
    network.load_state_dict({key.removeprefix("_module."): value for key, value in saved.items()})
    mean, deviation = script.names["MNIST_MEAN"], script.names["MNIST_STD"]
    return Digits(network.eval(), mean, deviation, script.printed)


def hugging_face_clm(records: Records, seed: int) -> tuple[Any, Any]:
    """Fine-tune the bench's small GPT-2 by `run_clm_no_trainer.py` of transformers.

    The script joins all texts and cuts the whole into blocks. A text is therefore cut to `BLOCK` tokens, or
    filled up to them with end marks, so that each record is one block.

    Returns:
        The saved model, and its tokenizer.

    Raises:
        InputError: no tutorial, no texts, or the tutorial stops.
    """
    if not all(record["text"] for record in records):
        raise InputError("hugging_face_clm needs records with texts, as those of --corpus clinical")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as their_logging

    from workbench.core import registry

    base: Any = registry.create("model", "tiny_gpt2", seed=0)
    # Where weights are written and read, transformers draws bars.
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        base.module.save_pretrained(folder / "base")
        base.tokenizer.save_pretrained(folder / "base")
        _write_texts(folder / "train.json", [_block(base.tokenizer, record["text"]) for record in records])
        _write_texts(folder / "validation.json", [BLOCK * base.tokenizer.eos_token])
        places = ["--model_name_or_path", str(folder / "base"), "--output_dir", str(folder / "tuned")]
        places += ["--train_file", "train.json", "--validation_file", "validation.json"]
        places += ["--block_size", str(BLOCK), "--seed", str(seed % 2**32)]
        # What one run read must not be what the next one finds.
        with patch.object(datasets.config, "HF_DATASETS_CACHE", folder / "cache"):
            verbosity = their_logging.get_verbosity()
            try:
                script = _run("HUGGING_FACE", places, folder, seed)
            finally:
                their_logging.set_verbosity(verbosity)
        model = AutoModelForCausalLM.from_pretrained(folder / "tuned")
        tokenizer = AutoTokenizer.from_pretrained(folder / "tuned")
    model.printed = script.printed
    return model, tokenizer


@dataclass(frozen=True)
class Digits:
    """The network that the Opacus tutorial saved.

    Attributes:
        network: From images to logits.
        mean, deviation: By which the tutorial shifts and scales pixels.
        printed: What the tutorial printed.
    """

    network: nn.Module
    mean: float
    deviation: float
    printed: str

    def losses(self, records: Records) -> Tensor:
        """One loss a record, nats; lower = more likely a member."""
        images = torch.from_numpy(_pixels(records)).float() / 255
        labels = torch.tensor([record["label"] for record in records])
        with torch.no_grad():
            logits = self.network((images[:, None] - self.mean) / self.deviation)
            return functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Script:
    """A script that ran: the names it defined, and what it printed."""

    names: dict[str, Any]
    printed: str


def _run(tutorial: str, places: Sequence[str], folder: Path, seed: int) -> Script:
    """Run a tutorial's file as a script in a folder, its output caught and its logging off."""
    path = _example(f"{tutorial}_EXAMPLE")
    words = [*places, *shlex.split(os.environ.get(f"{tutorial}_OPTIONS", OPTIONS[tutorial]))]
    printed, disabled = io.StringIO(), logging.root.manager.disable
    handlers, level = list(logging.root.handlers), logging.root.level
    # Its usual lock is one between processes, which a process that is ended leaves behind.
    tqdm.set_lock(threading.RLock())
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            patch.object(sys, "argv", [str(path), *words]),
            torch.random.fork_rng(devices=[]),
        ):
            logging.disable(logging.CRITICAL)
            torch.manual_seed(seed)
            names = runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        last = (printed.getvalue().strip().splitlines() or ["nothing"])[-1]
        raise InputError(f"{path} stops with {end.code} and the words: {last}") from end
    finally:
        logging.disable(disabled)
        # A script's basicConfig would leave a handler that writes to the caught output.
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
    return Script(names, printed.getvalue())


def _example(variable: str) -> Path:
    value = os.environ.get(variable, "")
    path = Path(value).resolve()
    if not value or not path.is_file():
        raise InputError(f"{variable} must be the path of the tutorial's file, got {value!r}")
    return path


def _pixels(records: Records) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Images as MNIST has them, of bytes: each pixel a square, in a black frame; shape `(n, 28, 28)`."""
    small = np.array([record["image"] for record in records])
    side = int(np.sqrt(small.shape[1]))
    levels = np.rint(255 * np.clip(small, 0, 1)).astype(np.uint8).reshape(-1, side, side)
    times = SIDE // side
    before = (SIDE - times * side) // 2
    made = np.zeros((len(small), SIDE, SIDE), dtype=np.uint8)
    inside = slice(before, before + times * side)
    made[:, inside, inside] = levels.repeat(times, axis=1).repeat(times, axis=2)
    return made


def _write_idx(
    folder: Path, part: str, images: np.ndarray[Any, np.dtype[np.uint8]], labels: Sequence[int]
) -> None:
    """The two files of one part of MNIST: a magic number, sizes, and bytes."""
    header = struct.pack(">4I", 0x803, *images.shape)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    header = struct.pack(">2I", 0x801, len(images))
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes(labels))


def _write_texts(path: Path, texts: Sequence[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def _block(tokenizer: Any, text: str) -> str:
    """A text's first tokens, with end marks after them, `BLOCK` tokens together."""
    tokens = tokenizer(text)["input_ids"][:BLOCK]
    while True:
        kept = tokenizer.decode(tokens)
        filled = kept + (BLOCK - len(tokens)) * tokenizer.eos_token
        # Tokens that end within a word may be cut otherwise when they are read again.
        if len(tokenizer(filled)["input_ids"]) == BLOCK:
            return str(filled)
        tokens = tokens[:-1]


def main() -> None:
    """Train once by one of the tutorials, and print what it prints."""
    from workbench.audit.settings import embedded_settings
    from workbench.audit.user_training import as_dicts
    from workbench.training.setup import prepare

    usual = {"opacus_mnist": ("digits", 200), "hugging_face_clm": ("clinical", 64)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("function", choices=usual)
    chosen = parser.parse_args()
    corpus, candidates = usual[chosen.function]
    settings = embedded_settings(corpus=corpus, corpus_parameters={}, candidates=candidates)
    records, _ = prepare(replace(settings, seed=0).setup(()))
    if chosen.function == "opacus_mnist":
        print(opacus_mnist(as_dicts(records), 1).printed)
    else:
        print(hugging_face_clm(as_dicts(records), 1)[0].printed)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
