"""What watching a training costs: steps under `workbench.watch` against the same steps without it.

Trainings of the digits by DP-SGD (vmap), of the digits by Opacus, and of the tiny GPT-2. Blocks of steps are
watched and not, in turns; a ratio is the median over pairs of neighbouring blocks of the watched block's CPU
time over the other's, beside the quartiles. Each watched block writes its file and may look at its claim. The
median ratio decides whether the goal is met; on a machine that does other work it is noise of ten per cent
and more. The time in the hooks, beside it, leaves out looks, wrapped draws and what slows down around them.

Run `python benchmarks/watch.py` (a few minutes on one core) or, shorter, with `--quick`. Results go to
`benchmarks/results/watch.json` and `watch.md`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from shared import machine, options, quiet, turns, write
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import workbench
from workbench.audit.watched.record import BatchCounter, Watch
from workbench.core import registry

GOAL = 0.03
CLAIM = "epsilon=1000,delta=1e-5,adjacency=add-remove"
RECORDS = 1797


@dataclass(frozen=True)
class Training:
    """A training that goes on.

    Attributes:
        name: For the table.
        optimizer: What is watched.
        step: One step.
        stated: What the user says to `watch`.
        steps: Of a block.
    """

    name: str
    optimizer: Any
    step: Callable[[], None]
    stated: dict[str, Any]
    steps: int


def network(width: int) -> torch.nn.Sequential:
    """A perceptron for 8 x 8 images."""
    return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))


def dp_sgd(batch: int, width: int) -> Training:
    """DP-SGD in plain PyTorch."""
    module = network(width)
    parameters = dict(module.named_parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    images, labels = torch.rand(RECORDS, 64), torch.arange(RECORDS) % 10

    def loss(held: Any, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(module, held, (image[None],)), label[None])

    per_record = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        chosen = torch.nonzero(torch.rand(RECORDS) < batch / RECORDS)[:, 0]
        held = {name: p.detach() for name, p in parameters.items()}
        each = per_record(held, images[chosen], labels[chosen])
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factors = (1.0 / norms.clamp(min=1e-9)).clamp(max=1.0)
        for name, parameter in parameters.items():
            noise = torch.normal(0.0, 1.5, parameter.shape)
            parameter.grad = (torch.einsum("n,n...->...", factors, each[name]) + noise) / batch
        optimizer.step()

    stated = {"clip": 1.0, "divisor": float(batch)}
    return Training(f"DP-SGD, digits, batch {batch}, width {width}", optimizer, step, stated, 150)


def opacus(batch: int, width: int) -> Training:
    """Opacus, batches of one size so that blocks are alike."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = GradSampleModule(network(width))
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=1.5,
        max_grad_norm=1.0,
        expected_batch_size=batch,
    )
    images, labels = torch.rand(batch, 64), torch.arange(batch) % 10

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(module(images), labels).backward()
        optimizer.step()

    return Training(f"Opacus, digits, batch {batch}, width {width}", optimizer, step, {}, 150)


def gpt2(batch: int, tokens: int) -> Training:
    """The tiny GPT-2 by AdamW, without privacy."""
    model: Any = registry.create("model", "tiny_gpt2", seed=0)
    ids = torch.randint(0, model.module.config.vocab_size, (batch, tokens))
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model.module(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return Training(f"tiny GPT-2, batch {batch} x {tokens}", optimizer, step, {}, 8)


def in_hooks(training: Training, file: Path) -> float:
    """CPU seconds a step in the two hooks, the first decile of each: that of an undisturbed step."""
    hooks = {Watch: "_before_step", BatchCounter: "_called"}
    found: dict[str, list[float]] = {name: [] for name in hooks.values()}

    def timed(name: str, hook: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            started = time.process_time()
            hook(*args)
            found[name].append(time.process_time() - started)

        return call

    with ExitStack() as stack:
        for kind, name in hooks.items():
            stack.enter_context(patch.object(kind, name, timed(name, getattr(kind, name))))
        for _ in range(3):
            block(training, file)
    return sum(decile(times) for times in found.values())


def decile(values: Sequence[float]) -> float:
    """The first."""
    return statistics.quantiles(values, n=10)[0] if len(values) > 1 else 0.0


def block(training: Training, file: Path | None) -> float:
    """CPU seconds of a block of steps, watched where there is a file."""
    context: AbstractContextManager[Any] = nullcontext()
    if file is not None:
        context = workbench.watch(
            training.optimizer, claim=CLAIM, records=RECORDS, file=file, **training.stated
        )
    with context:
        training.step()  # The first finds the module that is called.
        started = time.process_time()
        for _ in range(training.steps):
            training.step()
        return time.process_time() - started


def measured(training: Training, folder: Path, blocks: int) -> dict[str, Any]:
    """One row."""
    for _ in range(training.steps):
        training.step()
    seconds: dict[str, list[float]] = {"plain": [], "watched": []}
    for _, name in turns(list(seconds), blocks):
        seconds[name].append(block(training, folder / "run.json" if name == "watched" else None))
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["watched"], strict=True)]
    least = min(seconds["plain"]) / training.steps
    hook = in_hooks(training, folder / "run.json")
    return {
        "name": training.name,
        "parameters": sum(p.numel() for g in training.optimizer.param_groups for p in g["params"]),
        "step_seconds": statistics.median(seconds["plain"]) / training.steps,
        "least_step_seconds": least,
        "blocks": blocks,
        "steps_a_block": training.steps,
        "quartiles": statistics.quantiles(ratios, n=4),
        "least_over_least": min(seconds["watched"]) / min(seconds["plain"]),
        "hook_seconds": hook,
        "hook_share": hook / least,
        "met": statistics.median(ratios) <= 1 + GOAL,
    }


def main() -> None:
    """Command line."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer blocks")
    given = parser.parse_args()
    quiet(given.threads)
    torch.manual_seed(0)
    host, blocks = machine(), 6 if given.quick else 12
    with tempfile.TemporaryDirectory() as folder:
        trainings = [
            dp_sgd(20, 32),
            dp_sgd(256, 128),
            opacus(20, 32),
            opacus(256, 128),
            gpt2(2, 32),
            gpt2(16, 64),
        ]
        rows = [measured(training, Path(folder), blocks) for training in trainings]
    write(given.out, "watch", {"machine": host, "goal": GOAL, "of": rows})


if __name__ == "__main__":
    main()
