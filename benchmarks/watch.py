"""What watching a training costs: steps under `workbench.watch` against the same steps without it.

Trainings of the digits by DP-SGD (vmap), of the digits by Opacus, and of the tiny GPT-2. Steps are not
watched, watched, and watched with the gradient's norm and draws of noise read, in turns; of all steps of each
kind counts the first decile of their CPU times, which is disturbed least by what else the machine does. To a
watched step is added what is not done in each: lines of the file, looks at the claim, and sums of weights and
gradients, spread over all steps of half a minute of training; and a part in 32 of the reading, or all of it,
as in the first 256 steps. The ratio decides whether the goal is met; its quartiles are those of blocks that
are drawn again.

Run `python benchmarks/watch.py` (a few minutes on one core) or, shorter, with `--quick`. Results go to
`benchmarks/results/watch.json` and `watch.md`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from shared import machine, options, quiet, write
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import workbench
from workbench.audit import beyond
from workbench.audit.watched import record
from workbench.audit.watched.record import FIRST_COMPARED, Watch, _Looks
from workbench.audit.watched.run_file import READ_EVERY
from workbench.core import registry

GOAL = 0.03
CLAIM = "epsilon=1000,delta=1e-5,adjacency=add-remove"
RECORDS = 1797
SECONDS_FOR_LOOKS = 30.0


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

    return Training(f"tiny GPT-2, batch {batch} x {tokens}", optimizer, step, {}, 20)


def decile(values: Sequence[float]) -> float:
    """The first: that of a step that nothing else disturbs."""
    return statistics.quantiles(values, n=10)[0]


@contextmanager
def unwatched(run: Watch) -> Iterator[None]:
    """A while in which nothing of a watch is called, between steps that are not read."""
    inner, root, private = run._inner, run._batches._root, run._private
    hooks = [inner._optimizer_step_pre_hooks, inner._optimizer_step_post_hooks]
    hooks += [] if root is None else [root._forward_pre_hooks, root._forward_pre_hooks_with_kwargs]
    with ExitStack() as stack:
        for held in hooks:
            stack.enter_context(patch.dict(held, clear=True))
        if private is not None:
            stack.enter_context(patch.dict(vars(private)))
            vars(private).pop("clip_and_accumulate", None)
        run._draws.__exit__()
        stack.callback(run._draws.listen, False)
        stack.callback(run._draws.__enter__)
        yield


def block(training: Training, file: Path) -> dict[str, list[float]]:
    """CPU seconds of steps that are not watched, watched, and read, in turns, without those of sums."""
    found: dict[str, list[float]] = {"plain": [], "watched": [], "read": []}
    context = workbench.watch(training.optimizer, claim=CLAIM, records=RECORDS, file=file, **training.stated)
    # An odd number of watched steps comes before the first that is timed.
    with context as run, patch.object(record, "is_read", lambda step: step % 2 == 1):
        for _ in range(2 * (FIRST_COMPARED // 2) + 1):  # The first finds the module; sums are compared.
            training.step()
        for turn in range(3 * training.steps):
            name = ("plain", "watched", "read")[turn % 3]
            with unwatched(run) if name == "plain" else nullcontext():
                started = time.process_time()
                training.step()
                found[name].append(time.process_time() - started)
    return found


def now_and_then(training: Training, file: Path) -> float:
    """CPU seconds a step for lines of the file, looks at the claim, and sums."""
    spent: list[float] = []

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.process_time()
            made = method(*args)
            spent.append(time.process_time() - started)
            return made

        return call

    begun = time.process_time()
    with ExitStack() as stack:
        stack.enter_context(
            workbench.watch(training.optimizer, claim=CLAIM, records=RECORDS, file=file, **training.stated)
        )
        for place, name in ((Watch, "_flush"), (_Looks, "look"), (beyond, "_sums")):
            stack.enter_context(patch.object(place, name, timed(getattr(place, name))))
        steps = 0
        while time.process_time() - begun < SECONDS_FOR_LOOKS:
            training.step()
            steps += 1
    return sum(spent) / steps


def over_plain(blocks: Sequence[dict[str, list[float]]], spread: float, share: float) -> float:
    """A watched step over one that is not, where this share of the steps is read."""
    plain, watched, read = (decile([s for own in blocks for s in own[name]]) for name in blocks[0])
    return (watched + share * (read - watched) + spread) / plain


def measured(training: Training, folder: Path, blocks: int) -> dict[str, Any]:
    """One row."""
    for _ in range(training.steps):
        training.step()
    each = [block(training, folder / "run.json") for _ in range(blocks)]
    spread = now_and_then(training, folder / "run.json")
    generator, share = random.Random(0), 1 / READ_EVERY
    resampled = [over_plain(generator.choices(each, k=blocks), spread, share) for _ in range(200)]
    ratio = over_plain(each, spread, share)
    return {
        "name": training.name,
        "parameters": sum(p.numel() for g in training.optimizer.param_groups for p in g["params"]),
        "step_seconds": decile([s for own in each for s in own["plain"]]),
        "blocks": blocks,
        "steps_a_block": training.steps,
        "ratio": ratio,
        "quartiles": statistics.quantiles(resampled, n=4),
        "now_and_then_seconds": spread,
        "first_steps": over_plain(each, spread, 1.0),
        "met": ratio <= 1 + GOAL,
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
