"""Rates at false-positive rates near zero: intervals that cover, by logic where a score is certain."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from workbench.core.errors import InputError
from workbench.estimation.low_fpr import (
    CERTAIN,
    LEVELS,
    low_fpr_details,
    rate_at_fpr,
    success_of_sign,
)
from workbench.interfaces import BoolArray, FloatArray

HALF = np.arange(400) < 200


def played(generator: np.random.Generator, shown: float) -> FloatArray:
    """Members are certain with probability `shown`; all other scores are -K of a public K in 0..3."""
    scores = -generator.integers(4, size=HALF.size).astype(float)
    return np.where(HALF & (generator.random(HALF.size) < shown), CERTAIN, scores)


def true_tpr(shown: float, fpr: float) -> float:
    """Of a threshold at a public K: no rate below a quarter lets one in."""
    return shown if fpr < 0.25 else shown + (1 - shown) / 4


@pytest.mark.parametrize("fpr", [0.3, *(pytest.param(level, marks=pytest.mark.slow) for level in LEVELS)])
def test_intervals_cover(fpr: float) -> None:
    """600 games; an interval of 90 % misses in more than 83 of them with probability 1e-3 at most."""
    generator = np.random.default_rng(1)
    misses, informative = 0, 0
    for _ in range(600):
        found = rate_at_fpr(played(generator, 0.3), HALF, fpr=fpr, confidence=0.9)
        misses += not found.tpr.lower <= true_tpr(0.3, fpr) <= found.tpr.upper
        informative += found.tpr.lower > 0.2
    assert misses <= binom.isf(1e-3, 600, 0.1)
    assert informative > 500


def test_counts_are_those_of_the_rule() -> None:
    scores = np.array([CERTAIN, CERTAIN, 2.0, 1.0, 3.0, 0.0, -1.0, -2.0])
    members = np.array([True, True, True, True, False, False, False, False])
    exact = rate_at_fpr(scores, members, fpr=0.0, confidence=0.95)
    assert (exact.hits, exact.members, exact.alarms, exact.nonmembers) == (2, 4, 0, 4)
    assert exact.tpr.estimate == 0.5
    assert "zero by logic" in exact.tpr.assumption
    assert rate_at_fpr(scores, members, fpr=0.2, confidence=0.95).hits == 2
    quarter = rate_at_fpr(scores, members, fpr=0.25, confidence=0.95)
    assert (quarter.hits, quarter.alarms) == (4, 1)


def test_logic_needs_no_thousand_nonmembers() -> None:
    """At 0.1 % of 200 non-members a threshold chosen on the data shows nothing; the certain rule does."""
    scores = played(np.random.default_rng(2), 0.5)
    assert rate_at_fpr(scores, HALF, fpr=0.001, confidence=0.95).tpr.lower > 0.35
    ordinary = np.where(scores >= CERTAIN, 5.0, scores)
    assert rate_at_fpr(ordinary, HALF, fpr=0.001, confidence=0.95).tpr.lower == 0.0


def test_a_certain_nonmember_breaks_the_rule() -> None:
    scores = played(np.random.default_rng(3), 0.5)
    scores[-1] = CERTAIN
    found = rate_at_fpr(scores, HALF, fpr=0.0, confidence=0.95)
    assert found.alarms == 1
    assert found.tpr.lower == 0.0
    assert rate_at_fpr(scores, HALF, fpr=0.001, confidence=0.95).tpr.lower == 0.0


def test_success_pays_for_no_threshold() -> None:
    """1,000 games at a success of 0.65; a 95 % interval misses 72 times with probability 1e-3 at most."""
    generator = np.random.default_rng(4)
    misses = 0
    for _ in range(1000):
        found = success_of_sign(played(generator, 0.3), HALF, confidence=0.95)
        misses += not found.lower <= 0.65 <= found.upper
    assert misses <= binom.isf(1e-3, 1000, 0.05)
    guessed = success_of_sign(np.where(HALF, 1.0, -1.0), HALF, confidence=0.95)
    assert (guessed.estimate, guessed.upper) == (1.0, 1.0)
    with pytest.raises(InputError, match="half of the trials, got 1 of 3"):
        success_of_sign(np.arange(3.0), np.array([True, False, False]), confidence=0.95)


def test_details_have_every_level() -> None:
    named = low_fpr_details(played(np.random.default_rng(5), 0.3), HALF)
    parts = ("tpr", "tpr_lower", "tpr_upper", "hits", "alarms")
    wanted = {f"{part}_at_fpr_{level:g}" for part in parts for level in LEVELS}
    wanted |= {"trials_in", "trials_out", "success", "success_lower", "success_upper"}
    assert set(named) == wanted
    assert named["hits_at_fpr_0"] / 200 == named["tpr_at_fpr_0"]
    uneven = low_fpr_details(np.arange(5.0), np.array([True, False, False, True, False]))
    assert "success" not in uneven


@pytest.mark.parametrize(("fpr", "confidence"), [(-0.1, 0.9), (1.0, 0.9), (0.1, 1.0)])
def test_refusals(fpr: float, confidence: float) -> None:
    members: BoolArray = np.array([True, False])
    with pytest.raises(InputError, match=r"fpr|confidence"):
        rate_at_fpr(np.array([1.0, 0.0]), members, fpr=fpr, confidence=confidence)
