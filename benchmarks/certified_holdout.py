"""Certified epsilons over cells drawn at random, beside dp-accounting and beside a contour integral.

Cells are log-uniform: sigma 0.3 to 50, q 1e-7 to 1, T 1 to 1e7, delta 1e-12 to 0.1. For each: both certified
ends and their time; the integral below, which shares no code with the certified bounds; and for each tenth
dp-accounting's PLD, whose pessimistic and optimistic grids enclose epsilon too, where it answers in time.

    delta(epsilon) = (1 / 2 pi i) int exp(K(z) - z epsilon) / (z (z + 1)) dz    along Re z = theta > 0

with K the cumulant function of the losses, by quadrature over the outputs. It is accurate where the integrand
decays, as with many steps. No certified interval may be disjoint from either.

Rows go to `benchmarks/results/certified_holdout.csv` as they are found, so that a stopped run goes on; a
summary to `benchmarks/results/certified_holdout.json`.

    python benchmarks/certified_holdout.py [--cells 1000] [--seed 1126] [--seconds 8] [--again]
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.special import logsumexp

from workbench.accounting import epsilon
from workbench.accounting.events import gaussian_run
from workbench.core.errors import WorkbenchError

RESULTS = Path(__file__).parent / "results" / "certified_holdout.csv"
COLUMNS = (
    "cell", "sigma", "q", "steps", "delta", "lower", "upper", "seconds",
    "pld_lower", "pld_upper", "pld_seconds", "contour", "method",
)  # fmt: skip
SLACK = 1e-6
"""Relative error of a contour integral that answers."""

FAR = 60.0
"""Noise deviations to which outputs are looked at."""

_ZOOMS, _ENOUGH = 4, 20
"""Times that outputs of weight are looked for more closely, and how many of them are enough."""

PLD_SLACK = 1e-9
"""Round-off that dp-accounting's ends are allowed."""


def cells(count: int, seed: int) -> Iterator[tuple[float, float, int, float]]:
    """Noise multiplier, sampling probability, steps and delta of each cell."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield (
            float(np.exp(generator.uniform(math.log(0.3), math.log(50)))),
            float(10 ** generator.uniform(-7, 0)),
            round(10 ** generator.uniform(0, 7)),
            float(10 ** generator.uniform(-12, -1)),
        )


class OutOfTimeError(Exception):
    """A peer took too long."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Stops what runs longer, between two of its steps."""

    def stop(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def by_pld(sigma: float, q: float, steps: int, delta: float, seconds: int) -> tuple[float, float, float]:
    """dp-accounting's optimistic and pessimistic epsilon, and seconds; NaN where it takes too long."""
    found, start = [math.nan, math.nan], time.perf_counter()
    try:
        with at_most(seconds):
            for place, pessimistic in ((1, True), (0, False)):
                law = pld.from_gaussian_mechanism(
                    sigma,
                    sampling_prob=q,
                    pessimistic_estimate=pessimistic,
                    use_connect_dots=pessimistic,
                )
                found[place] = float(law.self_compose(steps).get_epsilon_for_delta(delta))
    except (OutOfTimeError, MemoryError, ValueError, OverflowError):
        pass
    return found[0], found[1], time.perf_counter() - start


class Contour:
    """The contour integral of one order of the neighbours, at one tilt.

    Args:
        sigma, q, steps: Of the run.
        theta: The tilt.
        added: Whether the losses are those of the output without the record.
    """

    def __init__(self, sigma: float, q: float, steps: int, theta: float, *, added: bool) -> None:
        self._steps, self._theta = steps, theta
        # The tilt moves outputs towards 1 + theta, at most, or as far the other way.
        far = min(theta, FAR * sigma) + 1 + 14 * sigma
        count, low, high = math.ceil(8 * far / sigma), -far, far
        for _ in range(_ZOOMS):
            coarse = np.linspace(low, high, count)
            loss, log_weights = self._losses(coarse, sigma, q, added=added)
            exponents = theta * loss + log_weights
            matter = np.flatnonzero(exponents > np.max(exponents) - 50)
            low, high = coarse[max(matter[0] - 1, 0)], coarse[min(matter[-1] + 1, count - 1)]
            if len(matter) > _ENOUGH:
                break
            count = 200  # A steep tilt leaves little between two of these.
        self._cut = max(abs(low), abs(high)) >= far or len(matter) <= _ENOUGH
        x = np.linspace(low, high, math.ceil((high - low) / sigma * 40) + 400)
        self._loss, log_weights = self._losses(x, sigma, q, added=added)
        exponent = theta * self._loss
        log_mass = float(logsumexp(exponent + log_weights))
        self._masses = np.exp(exponent + log_weights - log_mass)
        if np.max(np.abs(exponent)) < 30:  # Without losing what is close to 0.
            log_mass = math.log1p(float(np.exp(log_weights) @ np.expm1(exponent)))
        self._log_mass = log_mass
        self._centre = float(self._masses @ self._loss)
        self.mean = steps * self._centre
        self.deviation = math.sqrt(steps * float(self._masses @ (self._loss - self._centre) ** 2))

    @staticmethod
    def _losses(x: np.ndarray, sigma: float, q: float, *, added: bool) -> tuple[np.ndarray, np.ndarray]:
        """Losses at equally spaced outputs, and the logs of their weights."""
        exponent = (x - 0.5) / sigma**2
        small = q * np.expm1(np.minimum(exponent, 700.0))
        mixed = np.logaddexp(math.log1p(-q), math.log(q) + exponent)
        loss = np.where(np.abs(small) < 0.1, np.log1p(np.clip(small, -0.1, 0.1)), mixed)
        base = math.log((x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi))) - (x / sigma) ** 2 / 2
        return (-loss, base) if added else (loss, base + loss)

    @cached_property
    def _along(self) -> tuple[np.ndarray, np.ndarray]:
        """Places on the contour, and the log of the sum's centred characteristic function there."""
        away = self._loss - self._centre
        # A sum that is close to normal is gone at ten deviations; others are looked at further out.
        for most, count in ((10.0, 401), (40.0, 2001)):
            u = np.linspace(0.0, most / self.deviation, count)
            # exp(i a) - 1 without losing what is close to 0.
            real = np.array([self._masses @ (-2 * np.sin(at * away / 2) ** 2) for at in u])
            imaginary = np.array([self._masses @ np.sin(at * away) for at in u])
            logs = self._steps * np.log1p(real + 1j * imaginary)
            if logs[-1].real < -30:
                return u, logs
        return np.array([]), np.array([])

    def log_delta(self, epsilon: float) -> float:
        """log delta at this epsilon; NaN where the integrand does not decay, or the poles are near."""
        if self._cut or self._theta * self.deviation <= 0.2:
            return math.nan
        u, logs = self._along
        if not len(u):
            return math.nan
        z = self._theta + 1j * u
        values = (np.exp(logs + 1j * u * (self.mean - epsilon)) / (z * (z + 1))).real
        # Simpson's rule.
        total = values[0] + values[-1] + 4 * values[1:-1:2].sum() + 2 * values[2:-1:2].sum()
        integral = float(total) * (u[1] - u[0]) / (3 * math.pi)
        if integral <= 0:
            return math.nan
        return self._steps * self._log_mass - self._theta * epsilon + math.log(integral)


def by_contour(sigma: float, q: float, steps: int, delta: float, near: float) -> float:
    """epsilon of a run over both orders; an end of [0.99, 1.01] near where beyond; NaN where unknown."""
    found = []
    for added in (False, True):

        def gap(log_theta: float, *, added: bool = added) -> float:
            return Contour(sigma, q, steps, math.exp(log_theta), added=added).mean - near

        low, high = math.log(1e-6), math.log(1e13)
        theta = 1e-6 if gap(low) > 0 else math.exp(brentq(gap, low, high, rtol=1e-3)) if gap(high) > 0 else 0
        if not theta:  # No loss of this order is as large.
            continue
        contour = Contour(sigma, q, steps, theta, added=added)

        def excess(epsilon: float, contour: Contour = contour) -> float:
            return contour.log_delta(epsilon) - math.log(delta)

        low, high = near * 0.99, near * 1.01
        ends = excess(low), excess(high)
        if math.isnan(sum(ends)):
            return math.nan
        inside = ends[0] > 0 > ends[1]
        found.append(brentq(excess, low, high, rtol=1e-10) if inside else low if ends[0] <= 0 else high)
    return max(found, default=math.nan)


def row_of(task: tuple[int, tuple[float, float, int, float], int, dict[str, Any]]) -> dict[str, Any]:
    """One cell, asked three ways; dp-accounting where its seconds are not 0, and no row has its answers."""
    place, cell, seconds, known = task
    sigma, q, steps, delta = cell
    run = gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps)
    start = time.perf_counter()
    try:
        bounds = epsilon(run, delta)
        lower, upper, method = bounds.lower, bounds.upper, bounds.method
    except WorkbenchError as error:
        lower, upper, method = 0.0, math.inf, f"refused: {error}"
    taken = time.perf_counter() - start
    middle = (lower + upper) / 2 if lower > 0 and math.isfinite(upper) else math.nan
    try:
        contour = by_contour(sigma, q, steps, delta, middle) if middle > 0 else math.nan
    except ValueError:  # A root is looked for at a tilt so steep that no float64 follows it.
        contour = math.nan
    theirs: tuple[Any, ...] = (math.nan,) * 3
    if known:
        theirs = tuple(known[name] for name in ("pld_lower", "pld_upper", "pld_seconds"))
    elif seconds:
        theirs = by_pld(sigma, q, steps, delta, seconds)
    values = (place, *cell, lower, upper, taken, *theirs, contour, method)
    return dict(zip(COLUMNS, values, strict=True))


def relative_width(row: dict[str, Any]) -> float:
    """Of a row's certified bounds: 0 where both ends are 0."""
    lower, upper = float(row["lower"]), float(row["upper"])
    return 0.0 if upper == lower else (upper - lower) / lower if lower > 0 else math.inf


def summary(rows: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Widths, disagreements and times."""
    widths = np.array([relative_width(row) for row in rows])
    seconds = [float(row["seconds"]) for row in rows]
    numbers = [{name: float(row[name]) for name in COLUMNS[5:-1]} for row in rows]
    contour = [row for row in numbers if not math.isnan(row["contour"])]
    theirs = [row for row in numbers if not (math.isnan(row["pld_upper"]) and math.isnan(row["pld_lower"]))]
    apart = sum(
        not row["lower"] * (1 - SLACK) <= row["contour"] <= row["upper"] * (1 + SLACK) for row in contour
    )
    # NaN compares as False: an end that is not known is beyond nothing.
    disjoint = sum(
        row["pld_upper"] < row["lower"] * (1 - PLD_SLACK) or row["pld_lower"] > row["upper"] * (1 + PLD_SLACK)
        for row in theirs
    )
    named = [
        {name: rows[int(at)][name] for name in ("sigma", "q", "steps", "delta", "lower", "upper")}
        for at in np.flatnonzero(widths > 1e-2)
    ]
    return {
        "cells": len(rows),
        "seed": seed,
        "refused": sum(row["method"].startswith("refused") for row in rows),
        "epsilon_is_0": sum(row["upper"] == 0 for row in numbers),
        "share_within_1e-3": float(np.mean(widths <= 1e-3)),
        "share_within_1e-2": float(np.mean(widths <= 1e-2)),
        "wider_than_1e-2": named,
        "median_width": float(np.median(widths)),
        "contour_answers": len(contour),
        "outside_by_contour": apart,
        "dp_accounting_answers": len(theirs),
        "disjoint_from_dp_accounting": disjoint,
        "median_seconds": statistics.median(seconds),
        "mean_seconds": statistics.fmean(seconds),
        "slowest_seconds": max(seconds),
    }


def main() -> None:
    """Ask what is not known yet, and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1126)
    parser.add_argument("--seconds", type=int, default=8, help="for dp-accounting, a cell")
    parser.add_argument("--every", type=int, default=10, help="ask dp-accounting at each so-manieth cell")
    parser.add_argument("--again", action="store_true", help="ask anew, all but dp-accounting")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    known: dict[int, dict[str, Any]] = {}
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            known = {int(row["cell"]): row for row in csv.DictReader(file)}
    drawn = list(cells(options.cells, options.seed))
    for place, row in known.items():
        if place < len(drawn) and float(row["sigma"]) != drawn[place][0]:
            raise SystemExit(f"{RESULTS} holds cells of another seed: remove it first")
    tasks = [
        (place, cell, 0 if place % options.every else options.seconds, known.get(place, {}))
        for place, cell in enumerate(drawn)
        if place not in known or options.again
    ]
    with RESULTS.open("a", newline="") as file, get_context("spawn").Pool(options.workers) as pool:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        for row in pool.imap_unordered(row_of, tasks):
            writer.writerow(row)
            file.flush()
            known[row["cell"]] = row
            print(f"{len(known)}/{options.cells}", flush=True)
    with RESULTS.open("w", newline="") as file:  # One row a cell, in their order.
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(known[place] for place in sorted(known))
    found = summary([known[place] for place in sorted(known)], options.seed)
    RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
