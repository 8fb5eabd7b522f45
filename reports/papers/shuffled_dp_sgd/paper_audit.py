"""What Shuffled DPSGD's audit, approximation and accountants say beside what they are taken for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import EPSILONS, cell, epsilons, said, words
from workbench.reports.papers.shuffled_dp_sgd.paper_formulas import release_epsilon

FloatArray = npt.NDArray[np.float64]

NULL_REPETITIONS = 200
"""Audits without a leak that are simulated."""


def eq_45(inside: FloatArray, outside: FloatArray, *, delta: float, floor: float) -> float:
    """Eq. 45's largest value over all thresholds at which neither error is below a floor.

    Args:
        inside: Scores with the canary.
        outside: Scores without it.
        delta: Of the claim, in [0, 1).
        floor: Errors below it are left out, > 0.

    Returns:
        At least 0. A point estimate: no confidence goes with it.
    """
    scores = np.concatenate([inside, outside])
    is_inside = np.concatenate([np.ones(inside.size), np.zeros(outside.size)])[np.argsort(-scores)]
    beta = (inside.size - np.cumsum(is_inside)) / inside.size
    alpha = np.cumsum(1.0 - is_inside) / outside.size
    kept = (alpha >= floor) & (beta >= floor)
    alpha, beta = alpha[kept], beta[kept]
    ratios = np.concatenate([(1.0 - alpha - delta) / beta, (1.0 - beta - delta) / alpha, [1.0]])
    return math.log(float(ratios.max()))


def null_audits(
    paper: PublishedPaper, *, repetitions: int = NULL_REPETITIONS, seed: int = 0
) -> tuple[float, float, float]:
    """Median, 5 % and 95 % quantile of Eq. 45 where canary and no canary have the same scores.

    Args:
        paper: For the number of observations (half with the canary), the floor and delta.
        repetitions: Audits.
        seed: Of the scores.
    """
    rng = np.random.default_rng(seed)
    half = round(said(paper, "section VI-F", "observations").value) // 2
    floor = said(paper, "section VI-F", "alpha left out below").value
    delta = said(paper, "section VI-A", "delta of CV tasks").value
    values = [eq_45(rng.random(half), rng.random(half), delta=delta, floor=floor) for _ in range(repetitions)]
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return float(middle), float(low), float(high)


def audit_remark(paper: PublishedPaper) -> str:
    """Table VI's audited epsilons beside what the estimator reads without a leak."""
    pairs = []
    for row in ("first", "second"):
        claimed, audited = (
            cell(paper, "table-6", (row,), f"{name} epsilon").value for name in ("theoretical", "audited")
        )
        pairs.append((claimed, audited))
    middle, low, high = null_audits(paper)
    floor = said(paper, "section VI-F", "alpha left out below").value
    observed = said(paper, "section VI-F", "observations").value
    known = {claimed for claimed, _ in pairs}
    left_out = [text for text in EPSILONS if float(text) not in known]
    found = _and([f"{audited:g} where {claimed:g} is claimed" for claimed, audited in pairs])
    parts = _and([f"{100 * audited / claimed:.0f} %" for claimed, audited in pairs])
    return (
        f"Table VI audits {found} ({parts}), without an interval. Eq. 45 is a lower bound for a test's true "
        f"error rates. On rates that {observed:.0f} observations give, at the best of all thresholds with "
        f"both at least {floor:g}, it reads {middle:.2f} in the median (5 % to 95 %: {low:.2f} to "
        f"{high:.2f}) where there is no canary at all ({NULL_REPETITIONS} simulated audits of equal scores, "
        f"half of them called canary). Epsilon {_and(left_out)}, with the largest gains, is not audited"
    )


def approximation_remark(paper: PublishedPaper) -> str:
    """The spread at which Fig. 2 tests the approximation, beside that at which Theorem 6 uses it."""
    tested = said(paper, "figure 2", "sigma of the normals").value
    delta = said(paper, "section VI-A", "delta of CV tasks").value
    d = round(1e6 * cell(paper, "table-1", ("ViT",), "trainable parameters").value)
    used = smallest_noise(d, delta)
    at_test = [release_epsilon(1.0 / tested, dimension=size, delta=delta) for size in (d, 1)]
    return (
        f"Fig. 2 tests the approximation for normals of standard deviation {tested:g}. Theorem 6's normals "
        f"have c / sigma. For {tested:g} sigma is {1.0 / tested:g} c, where it calls one release in ViT's "
        f"dimension {at_test[0]:.2g} private (epsilon; {at_test[1]:.2g} unshuffled, delta {delta:g}, c' = "
        f"c). The noise at which it gives epsilon 1 is {used:.3g} c: a standard deviation of "
        f"{1.0 / used:.2g}, {1.0 / used / tested:.0f} times Fig. 2's, and section VI-E itself calls the "
        "approximation less accurate at a high variance"
    )


def smallest_noise(dimension: int, delta: float, *, epsilon: float = 1.0) -> float:
    """Noise multiplier from which on Theorem 6 gives one release at most epsilon, to 0.001.

    Args:
        dimension: d.
        delta: Of the release.
        epsilon: Wanted.
    """

    def enough(sigma: float) -> bool:
        return release_epsilon(sigma, dimension=dimension, delta=delta) <= epsilon

    return _first(enough, [0.001 * k for k in range(100, 1000, 50)], 50)


def accountants_remark(paper: PublishedPaper) -> str:
    """What the two accountants that the paper names for DP-SGD say of one noise, at the audited training."""
    mine = words(paper, "Algorithm 1, line 3", "accountant of DP-SGD")
    theirs = words(paper, "section VI-A", "accountant of the baselines")
    steps = round(said(paper, "section VI-F", "training steps").value)
    records = cell(paper, "table-1-datasets", ("ViT", "CIFAR-100"), "training records").value
    rate = said(paper, "section VI-F", "batch size").value / records
    delta = said(paper, "section VI-A", "delta of CV tasks").value

    def asked(name: str, sigma: float) -> float:
        return _training_epsilon(name, sigma, rate=rate, steps=steps, delta=delta)

    sigma = _first(
        lambda value: asked("shuffled_dp_sgd_unshuffled", value) <= 1.0, [float(k) for k in range(2, 80)], 20
    )
    return (
        f"DP-SGD has two accountants: {theirs} for the baselines (section VI-A), {mine} for sigma_0, to "
        f"which Algorithm 1 falls back. For the audited training ({steps} steps, rate {rate:g}, delta "
        f"{delta:g}) the latter asks for sigma_0 = {sigma:.3g} c at epsilon 1, a noise to which the bench's "
        f"certified accountant gives epsilon {asked('certified', sigma):.2g}"
    )


def figure_3_remark(paper: PublishedPaper) -> str:
    """Epsilons and experiments of Fig. 3 beside those of the tables."""
    drawn = epsilons(paper, "figure 3")
    missing = [text for text in EPSILONS if float(text) not in drawn]
    parameters = [one for one in paper.table("statements").cells if one.row[1].startswith("parameters, ")]
    experiments = said(paper, "section VI-D", "experiments").value
    panels = words(paper, "figure 3", "panels")
    return (
        f"Fig. 3 draws sigma at epsilon {_and([f'{value:g}' for value in drawn])}, not at "
        f"{_and(missing)}, the epsilon of the largest gains in Tables III to V. Section VI-D speaks of "
        f"{experiments:g} experiments and lists {len(parameters)} sizes; the caption names the panels "
        f"{panels}. The number of steps and the batch size behind each curve are not printed"
    )


def not_printed_remark(paper: PublishedPaper) -> str:
    """What a repetition would need and the paper does not print."""
    utility = [one for name in ("table-3", "table-4", "table-5") for one in paper.table(name).cells]
    spreads = sum(one.spread is not None for one in utility)
    columns = " ".join(paper.table("table-1-datasets").columns)
    missing = [name for name in ("batch size", "batch clip", "sigma", "optimiser") if name not in columns]
    seeds = f"{spreads} of the {len(utility)} numbers of Tables III to V that our copy shows have a spread"
    return (
        f"Table I has no {_or(missing)}, and the text gives a batch size for the audit alone, so no sigma "
        f"can be recomputed; {seeds}, and no number of seeds is given"
    )


def _training_epsilon(name: str, sigma: float, *, rate: float, steps: int, delta: float) -> float:
    from workbench.accounting.events import gaussian_run
    from workbench.core.registry import create
    from workbench.interfaces import Adjacency

    run = gaussian_run(noise_multiplier=sigma, sampling_probability=rate, steps=steps)
    return float(create("accountant", name).epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE))


def _first(good: Callable[[float], bool], grid: list[float], parts: int) -> float:
    """Upper end of the last cell of a grid that is not good, cut into parts and searched again."""
    bad = max((k for k, value in enumerate(grid) if not good(value)), default=-1)
    if bad < 0 or bad + 1 == len(grid):
        return grid[min(bad + 1, len(grid) - 1)]
    low, high = grid[bad], grid[bad + 1]
    finer = [low + (high - low) * k / parts for k in range(parts + 1)]
    last = max(k for k, value in enumerate(finer) if k == 0 or not good(value))
    return finer[min(last + 1, parts)]


def _and(names: list[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def _or(names: list[str]) -> str:
    return " or ".join(", ".join(names).rsplit(", ", 1))
