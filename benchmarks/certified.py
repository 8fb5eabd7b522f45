"""Certified bounds beside the accountants that people use: time of a two-sided epsilon, and of a calibration.

Writes `benchmarks/results/certified.json`: for each contestant the best and the median milliseconds of a call
(contestants in turn, several rounds), as ratios to the certified bounds; the same of other events against
dp-accounting; and the relative widths of the certified epsilon over a grid, with its median milliseconds.
Takes about five minutes on one core.

    python benchmarks/certified.py [--rounds 7] [--cells 150]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from workbench.accounting import (
    CappedPoisson,
    Composed,
    DiscreteLaplace,
    Event,
    FixedBatch,
    GaussianMixturePair,
    Laplace,
    SubsampledLaplace,
    certified,
    to_dp_event,
)
from workbench.accounting.events import gaussian_run
from workbench.core import registry
from workbench.core.errors import WorkbenchError
from workbench.interfaces import Adjacency

RESULTS = Path(__file__).parent / "results" / "certified.json"
SIGMA, Q, STEPS, DELTA, TARGET, SEED = 1.0, 0.01, 1000, 1e-5, 1.0, 2026
PEERS = ("dp_accounting_pld", "opacus_prv", "prv_accountant")


def forget() -> None:
    """Empty the caches of the certified bounds, so that each call computes."""
    for cached in vars(certified).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of one call, with the caches emptied before it."""
    forget()
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def contest(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """All calls in turn, after one that warms up; times relative to the first."""
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(timed(call))
    ours = next(iter(times))
    return {
        name: {
            "best_ms": min(found),
            "median_ms": statistics.median(found),
            "ratio_of_best": min(found) / min(times[ours]),
        }
        for name, found in times.items()
    }


def epsilon_calls() -> dict[str, Callable[[], Any]]:
    """Two-sided epsilon by the certified bounds, one-sided by the peers."""
    run = gaussian_run(noise_multiplier=SIGMA, sampling_probability=Q, steps=STEPS)
    calls: dict[str, Callable[[], Any]] = {"certified": lambda: certified.epsilon_bounds(run, DELTA)}
    for name in PEERS:
        peer = registry.create("accountant", name)
        calls[name] = lambda peer=peer: peer.epsilon(run, delta=DELTA, adjacency=Adjacency.ADD_REMOVE)
    return calls


def calibration_calls() -> dict[str, Callable[[], Any]]:
    """The smallest noise for the target, certified and by the peers."""
    schedule = {"sampling_probability": Q, "steps": STEPS, "target_epsilon": TARGET}
    calls: dict[str, Callable[[], Any]] = {
        "certified": lambda: certified.calibrate_noise_multiplier(target_delta=DELTA, **schedule)
    }
    for name in PEERS[:2]:
        peer = registry.create("accountant", name)
        calls[name] = lambda peer=peer: peer.noise_multiplier(
            delta=DELTA, adjacency=Adjacency.ADD_REMOVE, **schedule
        )
    return calls


OTHERS: dict[str, tuple[Event, int]] = {
    "Laplace": (Laplace(scale=20.0), 100),
    "sampled Laplace": (SubsampledLaplace(scale=2.0, sampling_probability=0.01), 100),
    "discrete Laplace": (DiscreteLaplace(noise_parameter=0.1, largest_contribution=1), 100),
    "fixed batches": (FixedBatch(noise_multiplier=2.0, dataset_size=10_000, batch_size=100), 100),
    "capped Poisson samples": (
        CappedPoisson(
            noise_multiplier=2.0, sampling_probability=0.01, dataset_size=10_000, largest_batch=120
        ),
        100,
    ),
    "a mixture of Gaussians": (
        GaussianMixturePair(
            p_means=(0.0, 1.0, 2.0),
            p_weights=(0.9, 0.08, 0.02),
            q_means=(0.0,),
            q_weights=(1.0,),
            standard_deviation=2.0,
        ),
        100,
    ),
}
"""Events, and how often each is run, that dp-accounting has too."""


def other_events(rounds: int) -> dict[str, Any]:
    """Epsilon of events other than a sampled Gaussian, ours and dp-accounting's, each with its time."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    rows = {}
    for name, (event, count) in OTHERS.items():
        run = Composed(events=((event, count),))
        theirs = to_dp_event(run)
        adjacency, relation = Adjacency.ADD_REMOVE, NeighboringRelation.ADD_OR_REMOVE_ONE
        if isinstance(event, FixedBatch):
            adjacency, relation = Adjacency.REPLACE_ONE, NeighboringRelation.REPLACE_ONE
            # Their Renyi accountant takes noise over the sum's move, which is twice a contribution.
            halved = replace(event, noise_multiplier=event.noise_multiplier / 2)
            theirs = to_dp_event(Composed(events=((halved, count),)))
        has_losses = PLDAccountant(neighboring_relation=relation).supports(theirs)
        accountant: Any = partial(
            PLDAccountant if has_losses else RdpAccountant, neighboring_relation=relation
        )
        ours = partial(certified.epsilon_bounds, run, DELTA, adjacency=adjacency)

        def peer(accountant: Any = accountant, theirs: Any = theirs) -> float:
            return float(accountant().compose(theirs).get_epsilon(DELTA))

        found = ours()
        rows[name] = {
            "count": count,
            "certified": [found.lower, found.upper],
            "adjacency": str(adjacency),
            "peer": accountant.func.__name__,
            "peer_epsilon": peer(),
            "times": contest({"certified": ours, "dp_accounting": peer}, rounds),
        }
    return rows


def widths(cells: int) -> dict[str, Any]:
    """Relative widths over random cells of the goal grid: sigma 0.3 to 50, q 1e-4 to 1, T to 10,000."""
    generator = np.random.default_rng(SEED)
    found, times, refused = [], [], 0
    for _ in range(cells):
        run = gaussian_run(
            noise_multiplier=float(np.exp(generator.uniform(math.log(0.3), math.log(50)))),
            sampling_probability=float(10 ** generator.uniform(-4, 0)),
            steps=round(10 ** generator.uniform(0, 4)),
        )
        delta = float(10 ** generator.uniform(-10, -3))
        start = time.perf_counter()
        try:
            bounds = certified.epsilon_bounds(run, delta)
        except WorkbenchError:
            refused += 1
            continue
        times.append(1e3 * (time.perf_counter() - start))
        found.append(0.0 if bounds.upper == 0 else bounds.relative_width)
    return {
        "cells": cells,
        "refused": refused,
        "share_within_1e-3": float(np.mean(np.array(found) <= 1e-3)),
        "widest": max(found),
        "median_width": statistics.median(found),
        "median_ms": statistics.median(times),
        "slowest_ms": max(times),
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cells", type=int, default=150)
    options = parser.parse_args()
    results = {
        "setting": {"sigma": SIGMA, "q": Q, "steps": STEPS, "delta": DELTA, "target_epsilon": TARGET},
        "epsilon": contest(epsilon_calls(), options.rounds),
        "calibration": contest(calibration_calls(), max(2, options.rounds // 3)),
        "other_events": other_events(max(2, options.rounds // 3)),
        "widths": widths(options.cells),
        "machine": platform.processor() or platform.machine(),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
