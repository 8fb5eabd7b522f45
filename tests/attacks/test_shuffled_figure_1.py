"""Fig. 1 of Shuffled DPSGD: bounds over all fine grids hold sums over some, and decide by the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from workbench.attacks.claim_checks.shared.claims import ball
from workbench.attacks.claim_checks.shuffled_dp_sgd.statements import figure_1, grid_sums
from workbench.interfaces import VerdictKind


def on_grid(step: float, offset: float, *, shuffled: bool) -> float:
    """The sum of squared differences times the step's square, point by point."""
    line = np.arange(-10 + offset * step, 10 + 1e-9, step)
    x, y = np.meshgrid(line, line)

    def normal(u: float, v: float) -> NDArray[np.float64]:
        return np.asarray(np.exp(-((x - u) ** 2 + (y - v) ** 2) / 2) / (2 * np.pi))

    first, second = normal(2, 0), normal(-2, 0)
    if shuffled:
        first, second = (first + normal(0, 2)) / 2, (second + normal(0, -2)) / 2
    return step**2 * float(((first - second) ** 2).sum())


@pytest.mark.parametrize("shuffled", [False, True])
def test_all_fine_grids_are_within_the_bounds(shuffled: bool) -> None:
    bounds = grid_sums(ball(2), ball(10), shuffled=shuffled)
    found = [
        on_grid(step, offset, shuffled=shuffled)
        for step in (0.07, 0.5, 0.8, 1.0)
        for offset in (0.0, 0.3, 0.5)
    ]
    assert float(bounds.lower) <= min(found) < max(found) <= float(bounds.upper)
    assert found[0] == pytest.approx(float(bounds.integral), rel=1e-12)
    # The bound is not idle: the coarsest grids come near it, and coarser ones leave it.
    assert max(found) - float(bounds.integral) > 0.5 * float(bounds.upper - bounds.integral)
    assert on_grid(1.4, 0.0, shuffled=shuffled) > float(bounds.upper)


def test_the_printed_distances_are_of_no_grid() -> None:
    found = figure_1()
    assert found.verdict is VerdictKind.REFUTED
    assert found.counterexample["after_of_that_before"] == "13.1027"
    step = 0.0213315
    norms = [on_grid(step, 0.2, shuffled=shuffled) ** 0.5 / step for shuffled in (False, True)]
    assert norms == pytest.approx([18.53, 13.1027], abs=2e-3)
    assert "does bring these two laws closer" in " ".join(found.evidence)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("18.53", "13.10", VerdictKind.PROVEN),
        ("18.53", "13.12", VerdictKind.REFUTED),
        ("18.53", "13.11", VerdictKind.UNDECIDED),
        # So coarse that no more is known than that there are points.
        ("2.0", "1.2", VerdictKind.UNDECIDED),
    ],
)
def test_the_verdict_follows_from_the_numbers(before: str, after: str, verdict: VerdictKind) -> None:
    assert figure_1(before=before, after=after).verdict is verdict
