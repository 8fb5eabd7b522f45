"""Certified bounds beside the accountants that people use: time of a two-sided epsilon, and of a calibration.

Writes `benchmarks/results/certified.json`: for each contestant the best and the median milliseconds of a call
(contestants in turn, several rounds), as ratios to the certified bounds; and the relative widths of the
certified epsilon over a grid, with its median milliseconds. Takes about three minutes on one core.

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
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from workbench.accounting import certified
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
