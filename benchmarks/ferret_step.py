"""Training time and memory of FERRET, against DP-SGD and training without privacy, ours and two peers'.

Every contestant trains the same model on the same Poisson samples from the same seed: FERRET at each budget,
granularity and kind of silent step, our DP-SGD (automatic clipping) and our training without privacy, plain
PyTorch AdamW, and Opacus's DP-SGD with ghost clipping and with its per-sample hooks. (The paper's DP-SGD is
FastDP's, which is no package here.) All use AdamW and encode their texts in each step. What DP-SGD costs does
not depend on its budget, so it is run at one. The contestants take turns within each repeat, whose seed draws
samples and masks anew; a ratio's range is that of the repeats.

Which steps of a FERRET run fire is chance, so its expected time is also put together from its parts: the
probability 1 - (1-p)^G of a step in which some group fires times the median time of such steps, and the rest
times that of silent ones. The same parts give the shorter runs of the paper.

T s is the paper's (5 epochs, so that the shares are, too); N, B and T are smaller, and are printed.

Run `python benchmarks/ferret_step.py` (under four minutes on one core) or, shorter, with `--quick`. Results
go to `benchmarks/results/ferret_step.json` and `ferret_step.md`.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from shared import WithPositions, machine, options, quiet, trainable, write

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.checks.published import published
from workbench.core import registry
from workbench.interfaces import Plan, Secret
from workbench.mechanisms.accountants.ferret import ceiling_nats, firing_probability
from workbench.training.fine_tuning import Seeds, build_model
from workbench.training.samples import step_samples

DP_SGD, GHOST, HOOKS = "DP-SGD (ours, automatic clipping)", "DP-SGD (Opacus, ghost)", "DP-SGD (Opacus, hooks)"
NON_PRIVATE, PLAIN = "without privacy (ours)", "without privacy (PyTorch)"
BASELINES = (DP_SGD, GHOST, HOOKS, NON_PRIVATE, PLAIN)
PRINTED = {"max": "FERRET-MAX", "eighth": "FERRET-EIGHTH", "2": "FERRET-2"}
EPSILONS = (0.1, 0.5, 1.0, 2.0)
GRANULARITIES = ("max", "half", "quarter", "eighth", "2")
SILENT_STEPS = ("skip", "forward")
EPOCHS = 5
PAPER = {"records": 10_000, "batch_size": 50, "steps": 1000}


@dataclass(kw_only=True)
class Timed:
    """One training: seconds of each step, and the steps in which a group fired, where that is a question."""

    seconds: list[float]
    fired: set[int] = field(default_factory=set)


Run = Callable[[Plan], Timed]


def ours(name: str, **parameters: Any) -> Run:
    """A training by a mechanism of the bench, timed from outside."""

    def run(plan: Plan) -> Timed:
        mechanism = registry.create("mechanism", name, measures_quality=False, **parameters)
        ends: list[float] = []
        subject = mechanism.train(plan, lambda done, total: ends.append(time.perf_counter()))
        seconds = np.diff(ends).tolist()
        first = subject.transcript.metrics["training_seconds"] - sum(seconds)
        signs = subject.transcript.released_signs
        fired = set() if signs is None else set(signs.fired[:, 0].tolist())
        return Timed(seconds=[max(0.0, first), *seconds], fired=fired)

    return run


def stepping(plan: Plan, model: Any, step: Callable[[Mapping[str, Any]], None]) -> Timed:
    """A peer's loop over the samples that ours would draw."""
    samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
    seconds = []
    for _ in range(plan.steps):
        started = time.perf_counter()
        sample = [plan.records[i] for i in next(samples)]
        if sample:
            step(model.encode(sample))
        seconds.append(time.perf_counter() - started)
    return Timed(seconds=seconds)


def plain_torch(plan: Plan) -> Timed:
    """The loop of every tutorial: mean loss, backward, AdamW as it comes."""
    model = build_model(plan)
    optimizer = torch.optim.AdamW(
        model.module.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay
    )

    def step(batch: Mapping[str, Any]) -> None:
        optimizer.zero_grad()
        loss: Any = model.losses(batch).mean()
        loss.backward()
        optimizer.step()

    return stepping(plan, model, step)


def opacus(mode: str) -> Run:
    """DP-SGD by Opacus: `ghost` clipping, or per-sample gradients by `hooks`."""

    def run(plan: Plan) -> Timed:
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        model: Any = build_model(plan)
        module = model.module.train()  # dropout is off; Opacus records in training mode
        if module.config.model_type == "gpt2":
            module = WithPositions(module)
        adamw = torch.optim.AdamW(trainable(module), lr=plan.learning_rate, weight_decay=plan.weight_decay)
        batch_size = round(plan.sampling_probability * len(plan.records))
        options: dict[str, Any] = {
            "noise_multiplier": 1.0,
            "max_grad_norm": 1.0,
            "expected_batch_size": batch_size,
            "loss_reduction": "sum",
        }
        kind: Any
        if mode == "ghost":
            model.module = GradSampleModuleFastGradientClipping(
                module, max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum", strict=False
            )
            kind = DPOptimizerFastGradientClipping
        else:
            model.module = GradSampleModule(module, loss_reduction="sum", strict=False)
            kind = DPOptimizer
        optimizer = kind(adamw, **options)

        def step(batch: Mapping[str, Any]) -> None:
            optimizer.zero_grad(set_to_none=True)
            losses = model.losses(batch)
            if mode == "ghost":
                DPTensorFastGradientClipping(model.module, optimizer, losses, loss_reduction="sum").backward()
            else:
                losses.sum().backward()
            optimizer.step()

        return stepping(plan, model, step)

    return run


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A setting of FERRET that is timed."""

    granularity: str
    epsilon: float
    silent_steps: str

    def run(self, plan: Plan) -> Timed:
        """Train with this setting, and time it."""
        mechanism = ours("ferret", granularity=self.granularity, silent_steps=self.silent_steps)
        return mechanism(replace(plan, budget=MutualInformation(nats=self.epsilon, secret=Secret.RECORD)))


def baselines() -> dict[str, Run]:
    """The trainings that FERRET is compared with, by name."""

    def dp_sgd(plan: Plan) -> Timed:
        budget = ApproximateDP(epsilon=0.5, delta=1e-5)
        return ours("dp_sgd", clipping="automatic")(replace(plan, budget=budget))

    runs: tuple[Run, ...] = (dp_sgd, opacus("ghost"), opacus("hooks"), ours("non_private"), plain_torch)
    return dict(zip(BASELINES, runs, strict=True))


def plan_of(model: str, steps: int, batch_size: int, tokens: int) -> Plan:
    """`EPOCHS` epochs in so many steps, of docstrings."""
    records = batch_size * steps // EPOCHS
    corpus = registry.create("corpus", "docstrings", size=records, seed=0)
    return Plan(
        records=corpus.records,
        held_out=(),
        model=model,
        model_parameters={"max_length": tokens},
        steps=steps,
        sampling_probability=batch_size / records,
        learning_rate=2e-4,
        weight_decay=1e-3,
    )


def repeated(plan: Plan, contestants: Mapping[Any, Run], repeats: int) -> dict[Any, list[Timed]]:
    """Every contestant in each repeat, in an order that rotates."""
    names = list(contestants)
    found: dict[Any, list[Timed]] = {name: [] for name in names}
    for repeat in range(repeats):
        own = replace(plan, seed=repeat)
        for i in range(len(names)):
            name = names[(i + repeat * len(names) // repeats) % len(names)]
            found[name].append(contestants[name](own))
    return found


def cells() -> Iterator[Cell]:
    """Every setting of FERRET that is timed."""
    for silent in SILENT_STEPS:
        for granularity in GRANULARITIES:
            for epsilon in EPSILONS:
                yield Cell(granularity=granularity, epsilon=epsilon, silent_steps=silent)


def share_of_firing_steps(plan: Plan, groups: int, epsilon: float, epochs: int) -> tuple[float, float]:
    """p* (at most 1) and 1 - (1-p)^G, for a run of so many epochs of the plan's batches."""
    of_run: dict[str, Any] = {
        "groups": groups,
        "steps": plan.steps * epochs // EPOCHS,
        "sampling_probability": plan.sampling_probability,
    }
    p = 1.0 if epsilon >= ceiling_nats(**of_run) else firing_probability(budget_nats=epsilon, **of_run)
    return p, 1 - (1 - p) ** groups


def by_kind(runs: list[Timed]) -> tuple[list[float], list[float]]:
    """Seconds of the firing steps, and of the silent ones."""
    parts: tuple[list[float], list[float]] = ([], [])
    for run in runs:
        for step, seconds in enumerate(run.seconds):
            parts[step not in run.fired].append(seconds)
    return parts


def cell_result(cell: Cell, plan: Plan, tensors: int, found: Mapping[Any, list[Timed]]) -> dict[str, Any]:
    """One FERRET contestant's numbers."""
    groups = {"max": tensors, "2": 2}.get(cell.granularity) or math.ceil(
        tensors / {"half": 2, "quarter": 4, "eighth": 8}[cell.granularity]
    )
    # At a small budget few steps fire; a firing step costs the same at the next one.
    like = [replace(cell, epsilon=e) for e in sorted(EPSILONS, key=lambda e: abs(e - cell.epsilon))]
    firing, silent = (
        next(parts for other in like if (parts := by_kind(found[other])[kind])) for kind in (0, 1)
    )
    fire_seconds, silent_seconds = statistics.median(firing), statistics.median(silent)
    shares = {e: share_of_firing_steps(plan, groups, cell.epsilon, e) for e in (1, 3, EPOCHS)}
    expected = {e: share * fire_seconds + (1 - share) * silent_seconds for e, (_, share) in shares.items()}
    ratios = {}
    for name in BASELINES:
        if name not in found:
            continue
        each = [
            sum(own.seconds) / sum(base.seconds) for own, base in zip(found[cell], found[name], strict=True)
        ]
        step = statistics.median(s for run in found[name] for s in run.seconds)
        ratios[name] = {
            "expected": {str(e): seconds / step for e, seconds in expected.items()},
            "measured": statistics.median(each),
            "measured_range": [min(each), max(each)],
        }
    return {
        "granularity": cell.granularity,
        "epsilon": cell.epsilon,
        "silent_steps": cell.silent_steps,
        "groups": groups,
        "firing_probability": shares[EPOCHS][0],
        "share_of_firing_steps": {str(e): share for e, (_, share) in shares.items()},
        "measured_share": sum(len(run.fired) for run in found[cell]) / (plan.steps * len(found[cell])),
        "seconds_of_a_firing_step": fire_seconds,
        "seconds_of_a_silent_step": silent_seconds,
        "ratios": ratios,
    }


def peak_megabytes(run: Run, plan: Plan) -> float:
    """Peak memory of one short training in a process of its own, beyond what that process started with.

    NaN where the training fails.
    """

    def measure(sender: Any) -> None:
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            run(plan)
        except Exception:  # what fails is named where the baselines are tried
            sender.send(math.nan)
        else:
            sender.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    # Forked: the child starts with what is imported, and its own peak starts there.
    process = multiprocessing.get_context("fork").Process(target=measure, args=(sender,))
    process.start()
    sender.close()
    megabytes = float(receiver.recv())
    process.join()
    return megabytes


def memory(plan: Plan) -> dict[str, float]:
    """Peak megabytes of every baseline, and of FERRET's finest and coarsest; asked before any training."""
    short = replace(plan, steps=4)
    found = {name: peak_megabytes(run, short) for name, run in baselines().items()}
    for granularity in ("max", "2"):
        fires = ours(
            "ferret", granularity=granularity, firing_probability=1 / 2 if granularity == "2" else 0.02
        )
        found[f"FERRET-{granularity.upper()}"] = peak_megabytes(fires, replace(short, steps=40))
    return found


def result(model: str, steps: int, repeats: int, batch_size: int, tokens: int) -> dict[str, Any]:
    """The times and memory of one model, as they are written to the results."""
    plan = plan_of(model, steps, batch_size, tokens)
    megabytes = memory(plan)
    failures: dict[str, str] = {}
    contestants: dict[Any, Run] = {}
    for name, run in baselines().items():
        try:
            run(replace(plan, steps=2))
            contestants[name] = run
        except Exception as error:  # a peer's failure is a result
            failures[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    cell_list = list(cells())
    contestants |= {cell: cell.run for cell in cell_list}
    found = repeated(plan, contestants, repeats)
    module: Any = build_model(plan).module
    tensors = len(trainable(module))
    per_step = {
        name: [sum(run.seconds) / plan.steps for run in found[name]] for name in BASELINES if name in found
    }
    return {
        "model": model,
        "parameters": sum(p.numel() for p in trainable(module)),
        "tensors": tensors,
        "records": len(plan.records),
        "batch_size": batch_size,
        "tokens": tokens,
        "steps": steps,
        "epochs": EPOCHS,
        "repeats": repeats,
        "paper": PAPER,
        "baselines": {
            name: {
                "seconds_a_step": statistics.median(seconds),
                "range": [min(seconds), max(seconds)],
                "over_non_private": statistics.median(
                    a / b for a, b in zip(seconds, per_step[NON_PRIVATE], strict=True)
                ),
                "over_plain": statistics.median(a / b for a, b in zip(seconds, per_step[PLAIN], strict=True)),
            }
            for name, seconds in per_step.items()
        },
        "failures": failures,
        "peak_megabytes": megabytes,
        "cells": [cell_result(cell, plan, tensors, found) for cell in cell_list],
    }


def paper_ratio(granularity: str, epochs: int, epsilon: float, base: str) -> float | None:
    """Table 6: mean seconds of FERRET over those of `DPSGD` or `Non-DP`; None where it prints none."""
    if granularity not in PRINTED:
        return None
    table = published("ferret").table("table-6")
    column = f"{epsilon:.1f}"
    own = table.cell((PRINTED[granularity], str(epochs)), column)
    other = table.cell((base, str(epochs)), "inf" if base == "Non-DP" else column)
    return None if own is None or other is None else own.value / other.value


def names() -> dict[str, Any]:
    """What the page needs beside the results."""

    def cell(case: dict[str, Any], *key: Any) -> dict[str, Any]:
        return next(c for c in case["cells"] if (c["granularity"], c["silent_steps"], c["epsilon"]) == key)

    return {
        "dp_sgd": DP_SGD,
        "ghost": GHOST,
        "non_private": NON_PRIVATE,
        "plain": PLAIN,
        "printed": tuple(PRINTED),
        "pairs": lambda case: dict.fromkeys((c["granularity"], c["silent_steps"]) for c in case["cells"]),
        "cell": cell,
        "paper_ratio": paper_ratio,
    }


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, two repeats")
    parser.add_argument("--models", nargs="+", default=["tiny_gpt2"], help="registered language models")
    parser.add_argument("--steps", type=int, default=None, help="T, a multiple of 5 (default 40, quick 10)")
    parser.add_argument("--repeats", type=int, default=None, help="repeats (default 3, quick 2)")
    parser.add_argument("--batch-size", type=int, default=8, help="expected batch size B")
    parser.add_argument("--tokens", type=int, default=64, help="longest record in tokens")
    given = parser.parse_args()
    quiet(given.threads)
    steps, repeats = given.steps or (10 if given.quick else 40), given.repeats or (2 if given.quick else 3)
    report = {
        "machine": machine(),
        "models": [result(m, steps, repeats, given.batch_size, given.tokens) for m in given.models],
    }
    write(given.out, "ferret_step", report, **names())


if __name__ == "__main__":
    main()
