"""Observations of a Dirac canary per second: ours, trials batched or one by one, against an Opacus loop.

An observation is one full release: clip, sum, noise in all d coordinates, by the privatise step that trains.
Ours is `Subject.release_canary`, which computes the known records' gradients once and plays the trials from
there; the time includes that computation. Opacus runs its `DPOptimizer.step` with the canary's row appended
to every `grad_sample`, once with the known records' gradients kept as ours keeps them, once with a forward
and a backward pass before every release, as audits of a training loop are usually written. The contestants
take turns; a ratio is the median over repeats of (their time an observation / ours in the same repeat). Every
contestant's observations are checked: the mean difference of in and out must be C, the spread sigma C.

Run `python benchmarks/dirac_canary.py` (about a minute on one core). Results go to
`benchmarks/results/dirac_canary.json`.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from shared import RESULTS, WithPositions, machine, options, quiet, turns
from torch import Tensor, nn

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.interfaces import BoolArray, FloatArray, GradientCanary, Plan
from workbench.training.canary import FixedSignals, SignalsWithCanary
from workbench.training.fine_tuning import trainable
from workbench.training.samples import poisson_sample, sample_signals
from workbench.training.subject import TrainedSubject

CLIP_NORM, NOISE_MULTIPLIER, SEED = 1.0, 2.0, 7
CANARY = GradientCanary(coordinate=100, magnitude=100.0)
OURS = "ours, trials batched"

Observe = Callable[[BoolArray], FloatArray]
"""Plays one release a coin; returns the canary's released values less the known share."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and how many observations each contestant makes in a repeat."""

    name: str
    corpus: str
    model: str
    model_parameters: dict[str, Any]
    records: int
    sampling_probability: float
    observations: dict[str, int]


CASES = (
    Case(
        name="logistic regression on digits",
        corpus="digits",
        model="digits_logistic",
        model_parameters={},
        records=320,
        sampling_probability=0.1,
        observations={OURS: 20_000, "ours, one by one": 2_000, "gradients kept": 400, "each pass": 400},
    ),
    Case(
        name="tiny GPT-2 on clinical narratives",
        corpus="clinical",
        model="tiny_gpt2",
        model_parameters={"max_length": 96},
        records=320,
        sampling_probability=0.1,
        observations={OURS: 100, "ours, one by one": 40, "gradients kept": 6, "each pass": 4},
    ),
)


def make_subject(case: Case) -> TrainedSubject:
    """A model after one step of DP-SGD, whose releases are observed."""
    corpus = registry.create("corpus", case.corpus, size=case.records, seed=0)
    mechanism = registry.create(
        "mechanism", "dp_sgd", l2_clip_norm=CLIP_NORM, noise_multiplier=NOISE_MULTIPLIER
    )
    plan = Plan(
        records=corpus.records,
        held_out=(),
        model=case.model,
        model_parameters=case.model_parameters,
        steps=1,
        sampling_probability=case.sampling_probability,
        learning_rate=1e-3,
        budget=ApproximateDP(epsilon=1.0, delta=1e-5),
    )
    subject: TrainedSubject = mechanism.train(plan)
    return subject


def sample_of(subject: TrainedSubject) -> list[Any]:
    """The records that stand beside the canary, the same for every contestant."""
    plan = subject.plan
    chosen = poisson_sample(len(plan.records), plan.sampling_probability, np.random.default_rng(SEED))
    return [plan.records[i] for i in chosen]


def ours_batched(subject: TrainedSubject) -> Observe:
    """Our observations as an audit makes them: all coins in one call."""
    return lambda coins: subject.release_canary(CANARY, coins, np.random.default_rng(SEED))


def ours_one_by_one(subject: TrainedSubject) -> Observe:
    """The same releases without a trial axis."""
    sample = sample_of(subject)
    noise = torch.Generator().manual_seed(SEED)

    def observe(coins: BoolArray) -> FloatArray:
        fixed = FixedSignals(sample_signals(subject.model, sample, 64))
        values = []
        for coin in coins:
            watched = SignalsWithCanary(fixed, CANARY, bool(coin))
            released = subject.mechanism.privatise(watched, noise)
            values.append(float(watched.observed(released)))
        return np.array(values)

    return observe


def opacus(subject: TrainedSubject, keeps_gradients: bool) -> Observe:
    """A loop of `DPOptimizer.step` with learning rate zero and the canary's row appended."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module: nn.Module = copy.deepcopy(subject.model.module).train()
    if subject.model.kind == "language":
        module = WithPositions(module)
    wrapped = GradSampleModule(module, loss_reduction="sum", strict=False)
    parameters: list[Any] = list(trainable(wrapped).values())  # Opacus hangs attributes on them
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, lr=0.0),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=1,
        loss_reduction="sum",
        generator=torch.Generator().manual_seed(SEED),
    )
    model = copy.copy(subject.model)
    model.module = wrapped
    batch = model.encode(sample_of(subject))

    def known() -> list[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(model.losses(batch).sum())
        return [p.grad_sample for p in parameters]

    kept = [g.detach().clone() for g in known()]
    place = CANARY.coordinate  # lies in the first parameter of both models
    rows = [torch.cat([g, torch.zeros_like(g[:1])]) for g in kept]
    rows[0][-1].view(-1)[place] = CANARY.magnitude
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in kept], dim=1).norm(dim=1)
    factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)  # Opacus's own
    share = float(kept[0].flatten(1)[:, place] @ factors)

    def observe(coins: BoolArray) -> FloatArray:
        values = []
        for coin in coins:
            if keeps_gradients:
                optimizer.zero_grad(set_to_none=True)
                for p, with_canary, without in zip(parameters, rows, kept, strict=True):
                    p.grad_sample = (with_canary if coin else without).detach()  # Opacus marks what it used
            else:
                for p, gradient, with_canary in zip(parameters, known(), rows, strict=True):
                    p.grad_sample = torch.cat([gradient, with_canary[-1:]]) if coin else gradient
            optimizer.step()
            values.append(float(parameters[0].grad.view(-1)[place]) - share)
        return np.array(values)

    return observe


def check(values: FloatArray, coins: BoolArray) -> dict[str, float]:
    """Mean difference over C and spread over sigma C, each with its distance from 1 in standard errors."""
    scale = NOISE_MULTIPLIER * CLIP_NORM
    shift = float(values[coins].mean() - values[~coins].mean()) / CLIP_NORM
    residuals = np.concatenate([values[coins] - CLIP_NORM, values[~coins]]) / scale
    spread = float(np.sqrt(np.mean(residuals**2)))
    error = NOISE_MULTIPLIER * math.sqrt(1 / coins.sum() + 1 / (~coins).sum())
    return {
        "shift": shift,
        "shift_standard_errors": (shift - 1) / error,
        "spread": spread,
        "spread_standard_errors": (spread - 1) * math.sqrt(2 * len(values)),
    }


def result(case: Case, repeats: int) -> dict[str, Any]:
    """The times and checks of one case, as they are written to the results."""
    subject = make_subject(case)
    contestants: dict[str, tuple[Observe, int]] = {
        OURS: (ours_batched(subject), case.observations[OURS]),
        "ours, one by one": (ours_one_by_one(subject), case.observations["ours, one by one"]),
        "Opacus, gradients kept": (opacus(subject, True), case.observations["gradients kept"]),
        "Opacus, a pass each": (opacus(subject, False), case.observations["each pass"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    seen: dict[str, list[tuple[FloatArray, BoolArray]]] = {name: [] for name in contestants}
    for repeat, name in turns(list(contestants), repeats + 1):
        observe, count = contestants[name]
        coins = np.arange(count) % 2 == 0
        started = time.perf_counter()
        values = observe(coins)
        if repeat:  # the first round warms up
            seconds[name].append((time.perf_counter() - started) / count)
            seen[name].append((values, coins))
    described = {}
    for name, times in seconds.items():
        ratios = sorted(t / o for t, o in zip(times, seconds[OURS], strict=True))
        values, coins = (np.concatenate(parts) for parts in zip(*seen[name], strict=True))
        if name == OURS:  # every repeat replays the same generator: one of them counts
            values, coins = seen[name][0]
        described[name] = {
            "microseconds_per_observation": 1e6 * statistics.median(times),
            "observations_per_second": 1 / statistics.median(times),
            "times_ours": statistics.median(ratios),
            "times_ours_range": [ratios[0], ratios[-1]],
            "observations_per_repeat": contestants[name][1],
            "check": check(values, coins),
        }
    dimension = sum(p.numel() for p in trainable(subject.model.module).values())
    return {
        "case": case.name,
        "dimension": dimension,
        "sample_size": len(sample_of(subject)),
        "repeats": repeats,
        "contestants": described,
    }


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = options(__doc__, out=RESULTS / "dirac_canary.json")
    parser.add_argument("--repeats", type=int, default=7, help="repeats of each contestant")
    given = parser.parse_args()
    quiet(given.threads)
    described = machine(("torch", "transformers", "opacus", "numpy"))
    cases = [result(case, given.repeats) for case in CASES]
    report = {"machine": described, "cases": cases}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=2) + "\n")
    for case in cases:
        print(f"{case['case']}: d = {case['dimension']:,}, {case['sample_size']} known records")
        for name, found in case["contestants"].items():
            print(
                f"  {name:24s} {found['microseconds_per_observation']:12.1f} us an observation, "
                f"{found['times_ours']:9.1f} times ours"
            )


if __name__ == "__main__":
    main()
