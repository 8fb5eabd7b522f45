"""Coverage of the Monte Carlo intervals, and the samples that they need to refute a false claim.

Writes `benchmarks/results/monte_carlo.json` and the figure `benchmarks/results/monte_carlo.svg`: for each
truth and method the share of 95% intervals that miss and their mean relative half width; DP-Weights'
algorithm 1 as printed beside them; then, for an epsilon claimed at 80% and at 50% of the truth, the number of
samples in each direction that refutes it in at least eight runs of ten, with plain samples of P and with the
bench's proposals. Takes about two minutes on one core.

    python benchmarks/monte_carlo.py [--repetitions 400]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from workbench.accounting import certified
from workbench.accounting.events import Event, Gaussian, Laplace, SubsampledGaussian, gaussian_run
from workbench.attacks.accountant_checks.monte_carlo import (
    GaussianPair,
    IntervalMethod,
    ProductPair,
    estimate_delta,
    measure_claim,
    pair_of,
    random_direction,
)
from workbench.interfaces import VerdictKind

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from oracles.dp_weights_algorithm_1 import dp_weights_algorithm_1_as_printed

SEED, SAMPLES = 2026, 1000
RESULTS = Path(__file__).parent / "results"
METHODS = [method for method in IntervalMethod if method is not IntervalMethod.ASYMPTOTIC]
STEP = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.01)
EVENTS: dict[str, Event] = {
    "Gaussian": Gaussian(noise_multiplier=1.0),
    "Laplace": Laplace(scale=1.0),
    "subsampled Gaussian, 1 step": STEP,
    "subsampled Gaussian, 100 steps": gaussian_run(
        noise_multiplier=1.0, sampling_probability=0.01, steps=100
    ),
}
POWER = ("Gaussian", "subsampled Gaussian, 1 step", "subsampled Gaussian, 100 steps")
LARGEST, LARGEST_OF_MANY_STEPS = 1 << 20, 1 << 14
"""Numbers of samples after which a search gives up."""


def truths() -> Iterator[tuple[str, Any, float, float, float]]:
    """Name, pair, epsilon, and the certified enclosure of delta(epsilon)."""
    yield "noise (P = Q)", GaussianPair(shift=(0.0,), standard_deviation=1.0), 0.5, 0.0, 0.0
    for name, event in EVENTS.items():
        for delta in (1e-2, 1e-5, 1e-8):
            if isinstance(event, Laplace) and delta < 1e-2:
                continue
            known = certified.epsilon_bounds(event, delta)
            epsilon = (known.lower + known.upper) / 2
            if epsilon > 0:
                exact = certified.delta_bounds(event, epsilon)
                yield f"{name}, delta {delta:g}", pair_of(event), epsilon, exact.lower, exact.upper
    event = EVENTS["Gaussian"]
    epsilon = certified.epsilon_bounds(event, 1e-8).upper
    exact = certified.delta_bounds(event, epsilon)
    shift = random_direction(50, np.random.default_rng(SEED))
    pair = GaussianPair(shift=shift, standard_deviation=1.0)
    yield "Gaussian in 50 dimensions, delta 1e-08", pair, epsilon, exact.lower, exact.upper


def coverage(repetitions: int) -> Iterator[dict[str, Any]]:
    """One row for each truth, method and proposal."""
    for number, (name, pair, epsilon, low, high) in enumerate(truths()):
        few = repetitions // 4 if "100 steps" in name else repetitions
        for method in METHODS:
            for proposal in ("auto", "plain"):
                rng = np.random.default_rng([SEED, number])
                start = time.perf_counter()
                rows = [
                    estimate_delta(pair, epsilon, n=SAMPLES, rng=rng, method=method, proposal=proposal)
                    for _ in range(few)
                ]
                seconds = (time.perf_counter() - start) / few
                missed = sum(row.upper < low or row.lower > high for row in rows)
                half = float(np.mean([row.upper - row.lower for row in rows])) / 2
                yield {
                    "truth": name,
                    "epsilon": round(epsilon, 6),
                    "delta": (low + high) / 2,
                    "method": str(method),
                    "proposal": proposal,
                    "repetitions": few,
                    "share_missed": round(missed / few, 4),
                    "half_width_over_delta": float(f"{half / high:.3g}") if high > 0 else None,
                    "mean_upper": float(f"{np.mean([row.upper for row in rows]):.3g}"),
                    "milliseconds_a_call": round(1e3 * seconds, 3),
                }


def algorithm_1(repetitions: int) -> Iterator[dict[str, Any]]:
    """What DP-Weights' algorithm 1 as printed answers at epsilon 1 on a distance of 1, 1,000 samples each."""
    for truth in (1e-1, 1e-2, 1e-3, 1e-5, 1e-8):
        sigma = certified.calibrate_noise_multiplier(
            target_epsilon=1.0, target_delta=truth, sampling_probability=1.0, steps=1
        )
        rng = np.random.default_rng([SEED, 7])
        runs = [
            dp_weights_algorithm_1_as_printed(
                epsilon=1.0, sensitivity=1.0, delta=truth / 10, num_samples=SAMPLES, rng=rng, sigma=sigma
            )
            for _ in range(repetitions)
        ]
        rates = np.array([run.violation_rate for run in runs])
        yield {
            "true_delta": truth,
            "claimed_delta": truth / 10,
            "mean_rate": float(f"{rates.mean():.3g}"),
            "share_below_truth": round(float(np.mean(rates < truth)), 4),
            "share_within_20_per_cent": round(float(np.mean(np.abs(rates - truth) < 0.2 * truth)), 4),
            "share_that_passes_the_false_claim": round(float(np.mean([run.passes for run in runs])), 4),
        }


def samples_needed(
    pair: ProductPair, epsilon: float, delta: float, proposal: str, largest: int
) -> int | None:
    """Smallest power of two that refutes in eight runs of ten; None above `largest`."""
    n = 16
    while n <= largest:
        rng = np.random.default_rng([SEED, n])
        refuted, left = 0, 10
        while left and refuted + left >= 8 and refuted < 8:
            test = measure_claim(pair, epsilon, delta, n=n, rng=rng, proposal=proposal)
            refuted += test.kind is VerdictKind.REFUTED
            left -= 1
        if refuted >= 8:
            return n
        n *= 2
    return None


def power() -> Iterator[dict[str, Any]]:
    """One row for each event, delta, share of the true epsilon that is claimed, and proposal."""
    for name in POWER:
        pair = pair_of(EVENTS[name])
        largest = LARGEST if pair.draws == 1 else LARGEST_OF_MANY_STEPS
        for delta in (1e-3, 1e-5, 1e-8):
            truth = certified.epsilon_bounds(EVENTS[name], delta).lower
            if truth <= 0:
                continue
            for share in (0.8, 0.5):
                for proposal in ("auto", "plain"):
                    needed = samples_needed(pair, share * truth, delta, proposal, largest)
                    yield {
                        "event": name,
                        "delta": delta,
                        "epsilon": round(truth, 6),
                        "claimed_share": share,
                        "proposal": proposal,
                        "samples": needed,
                        "largest_tried": largest,
                    }


def figure(rows: list[dict[str, Any]]) -> str:
    """Bars of the samples needed, on a logarithmic axis; an open bar where even the most did not do."""
    bar, left, width = 16, 330, 420
    top, scale = 58, width / (math.log10(LARGEST) - 1)
    height = top + bar * len(rows) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="20" font-size="14">Samples that refute an epsilon claimed too small '
        "(95% confidence, 8 runs of 10)</text>",
        '<text x="10" y="38" fill="#1b6ca8">dark: importance sampling</text>',
        '<text x="190" y="38" fill="#b3541e">pale: samples of P; dashed: not by the most tried</text>',
    ]
    for exponent in range(2, 7):
        x = left + scale * (exponent - 1)
        parts.append(f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{height - 30}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 14}" text-anchor="middle">1e{exponent}</text>')
    for i, row in enumerate(rows):
        y = top + bar * i
        known = row["samples"] is not None
        length = scale * (math.log10(row["samples"] or row["largest_tried"]) - 1)
        color = "#1b6ca8" if row["proposal"] == "auto" else "#b3541e"
        fill = (color if row["proposal"] == "auto" else "#f0c9ae") if known else "none"
        dashes = "" if known else ' stroke-dasharray="3 3"'
        label = f"{row['event']}, delta {row['delta']:g}, {row['claimed_share']:.0%} claimed"
        parts.append(f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{label}</text>')
        parts.append(
            f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{bar - 4}" fill="{fill}" '
            f'stroke="{color}"{dashes}/>'
        )
        number = str(row["samples"]) if known else f"not by {row['largest_tried']}"
        parts.append(f'<text x="{left + length + 4:.1f}" y="{y + 11}">{number}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    repetitions = parser.parse_args().repetitions
    document: dict[str, Any] = {
        "confidence": 0.95,
        "samples": SAMPLES,
        "seed": SEED,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    for name, rows in (
        ("coverage", coverage(repetitions)),
        ("dp_weights_algorithm_1_as_printed", algorithm_1(repetitions)),
        ("power", power()),
    ):
        document[name] = []
        for row in rows:
            document[name].append(row)
            print(" ".join(f"{value}" for value in row.values()), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "monte_carlo.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "monte_carlo.svg").write_text(figure(document["power"]), encoding="utf-8")


if __name__ == "__main__":
    main()
