"""Pretraining of a small model: batches, updates, and a saved state from which a killed run goes on.

A run is deterministic in its data, its recipe and the number of threads on one kind of machine: batches are
drawn from the seed and the number of the step alone, and the saved state holds everything else, so a run
that was killed and goes on ends with the same bytes as one that was left alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.data.bases.checkpoint import END

if TYPE_CHECKING:
    import torch

VOCABULARY = 2048
VALIDATION_BLOCK = 256
"""Tokens of context in which held-out text is judged."""

STATE = "state"

Tokens = npt.NDArray[np.int64]


def train_tokenizer(texts: Sequence[str], path: Path, vocabulary: int) -> None:
    """Train a byte-level BPE vocabulary of so many tokens and write it as `tokenizer.json`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
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


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The optimiser settings of a pretraining.

    Attributes:
        seed: Of the batches; whoever draws the weights and the texts' order uses it too.
        batch_tokens: Tokens a step.
        block: Tokens in most rows.
        positions: Tokens in the rows of every fourth step, so that all positions are trained.
        peak_learning_rate: After the warm-up; from there half a cosine down to a hundredth.
        warm_up_steps: Steps of the linear warm-up.
        is_bf16: Run the forward pass in bf16 where torch thinks it safe; the weights stay float32.
    """

    seed: int
    batch_tokens: int
    block: int
    positions: int
    peak_learning_rate: float
    warm_up_steps: int
    is_bf16: bool

    def learning_rate(self, step: int, steps: int) -> float:
        """The learning rate after `step` updates of a run of `steps`."""
        if step < self.warm_up_steps:
            return self.peak_learning_rate * (step + 1) / self.warm_up_steps
        done = (step - self.warm_up_steps) / max(1, steps - self.warm_up_steps)
        return self.peak_learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def example_pace(seed: int, peak_learning_rate: float) -> Pace:
    """The pace of a run whose batches are counted in examples."""
    tokens = {"batch_tokens": 0, "block": 0, "positions": 0}
    return Pace(seed=seed, peak_learning_rate=peak_learning_rate, warm_up_steps=50, is_bf16=False, **tokens)


class Training:
    """A pretraining run on a token stream: module, optimiser and step, saved and resumed whole.

    A run on other data overrides `loss`.
    """

    def __init__(self, module: torch.nn.Module, pace: Pace, stream: Tokens | None = None) -> None:
        """A fresh run, over a token stream where one is given; the module is trained in place."""
        import torch

        self.stream = np.zeros(0, dtype=np.int64) if stream is None else stream
        self.module = module
        self.pace = pace
        self.step = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.losses: list[float] = []
        self.optimizer = torch.optim.AdamW(
            self.parameter_groups(), lr=pace.peak_learning_rate, betas=(0.9, 0.95)
        )

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The optimiser's groups; `share` (1 by default) is a group's share of the learning rate."""
        matrices = [p for p in self.module.parameters() if p.dim() > 1]
        vectors = [p for p in self.module.parameters() if p.dim() <= 1]
        return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]

    def batch(self) -> torch.Tensor:
        """The rows of this step, drawn from seed and step alone."""
        import torch

        length = self.pace.positions if self.step % 4 == 3 else self.pace.block
        starts = self.generator().integers(
            0, len(self.stream) - length, size=self.pace.batch_tokens // length
        )
        return torch.from_numpy(np.stack([self.stream[s : s + length] for s in starts]))

    def generator(self) -> np.random.Generator:
        """Source of all that this step draws."""
        return np.random.default_rng([self.pace.seed, self.step])

    def advance(self, steps: int) -> float:
        """One update of a run of `steps` steps, timed; returns the batch's loss in nats."""
        started, cpu_started = time.perf_counter(), time.process_time()
        loss = self._update(steps)
        self.step += 1
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - cpu_started
        self.losses.append(loss)
        return loss

    def loss(self, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses, nats, of the next update of a run of `steps` steps: to descend, and to report."""
        import torch

        ids = self.batch()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.pace.is_bf16):
            logits = self.module(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        return loss, loss

    def _update(self, steps: int) -> float:
        import torch

        rate = self.pace.learning_rate(self.step, steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        descended, reported = self.loss(steps)
        self.optimizer.zero_grad()
        torch.autograd.backward(descended)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        return float(reported.detach())

    def save(self, folder: Path, steps: int, run: str = "") -> None:
        """Write the state in one atomic file; only a run of the same name `run` can resume it."""
        from safetensors.torch import save_file

        tensors = {f"module.{name}": p.detach() for name, p in self.module.named_parameters()}
        for i, kept in self.optimizer.state_dict()["state"].items():
            tensors.update({f"optimizer.{i}.{key}": value for key, value in kept.items()})
        numbers = {
            "step": str(self.step),
            "steps": str(steps),
            "seconds": repr(self.seconds),
            "cpu_seconds": repr(self.cpu_seconds),
            "losses": json.dumps(self.losses),
            "run": run,
        }
        new = folder / f"{STATE}.new"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, new, metadata=numbers)
        new.replace(folder / STATE)

    def resume(self, folder: Path, run: str = "") -> int | None:
        """Go on from a saved state of this run, if there is one; returns its number of steps."""
        from safetensors import SafetensorError, safe_open

        path = folder / STATE
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as opened:
                numbers: dict[str, str] = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
        if numbers.get("run") != run:
            return None
        self._restore(tensors)
        self.step = int(numbers["step"])
        self.losses = json.loads(numbers["losses"])
        self.seconds, self.cpu_seconds = float(numbers["seconds"]), float(numbers["cpu_seconds"])
        return int(numbers["steps"])

    def _restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copy weights and the optimiser's averages back."""
        import torch

        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(tensors[f"module.{name}"])
        kept: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                index, _, key = rest.partition(".")
                kept.setdefault(int(index), {})[key] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": kept, "param_groups": groups})


def _blocks(stream: Tokens, block: int) -> Iterator[Tokens]:
    """Rows of `block + 1` tokens that overlap by one, so that each token is predicted once; then the rest."""
    whole = (len(stream) - 1) // block
    for start in range(0, whole, 32):
        rows = range(start, min(start + 32, whole))
        yield np.stack([stream[i * block : (i + 1) * block + 1] for i in rows])
    if len(stream) - 1 > whole * block:
        yield stream[None, whole * block :]


def validation(module: torch.nn.Module, tokenizer: Path, texts: Sequence[str]) -> dict[str, float]:
    """Perplexity per token and bits per UTF-8 byte of texts, in rows of `VALIDATION_BLOCK` tokens."""
    import torch

    stream = token_stream(tokenizer, texts, seed=0)
    total = 0.0
    with torch.no_grad():
        for rows in _blocks(stream, VALIDATION_BLOCK):
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
