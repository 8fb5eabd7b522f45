"""A test of a guarantee's trade-off curve over all thresholds, for independent trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.special import betainc, betaincinv, expit

from workbench.estimation.inputs import check_game, check_probability
from workbench.estimation.one_run import ranked_labels
from workbench.interfaces import BoolArray, FloatArray, Guarantee, IntArray

Curve: TypeAlias = Callable[[FloatArray], FloatArray]
"""Largest TPR at each FPR."""

_GROWTH = 1.5
_LEVELS = expit(np.linspace(-25.0, 25.0, 401))
_WEIGHTS = np.diff(np.concatenate([[0.0], _LEVELS, [1.0]]))


@dataclass(frozen=True, kw_only=True)
class TradeoffTest:
    """Result of `tradeoff_violation`.

    Attributes:
        p_value: Valid p-value of "the guarantee holds", over all thresholds and both directions.
        rejected: Whether it is at most `significance`, the error probability of the test.
        fpr, tpr: Observed rates at the threshold and in the direction with the smallest p-value.
        max_tpr: What the guarantee allows at that FPR.
        n: Number of scores.
    """

    p_value: float
    rejected: bool
    significance: float
    fpr: float
    tpr: float
    max_tpr: float
    n: int


def rank_grid(n: int) -> IntArray:
    """Ranks 1, 2, 3, ... growing by half, up to n."""
    ranks = [1]
    while ranks[-1] < n:
        ranks.append(min(n, max(ranks[-1] + 1, round(ranks[-1] * _GROWTH))))
    return np.asarray(ranks, dtype=np.int64)


def event_p_value(rank: int, hits: int, members: int, nonmembers: int, max_tpr: Curve) -> float:
    """P[at least so many members above the rank-th highest non-member], if every rate is the largest allowed.

    The FPR there is Beta(rank, nonmembers + 1 - rank), and given it each member lies above with probability
    max_tpr(FPR) at most. The mean over the FPR is taken cell by cell at the cell's upper end, so it errs
    upwards.

    Args:
        rank: From 1 to `nonmembers`.
        hits: Members above it, of `members`.
        members, nonmembers: Sizes of the classes.
        max_tpr: Largest TPR that is allowed at each FPR, non-decreasing, or an upper bound of it.
    """
    if hits == 0:
        return 1.0
    rates = np.append(betaincinv(rank, nonmembers + 1.0 - rank, _LEVELS), 1.0)
    allowed = np.clip(max_tpr(rates), 0.0, 1.0)
    return float(_WEIGHTS @ betainc(hits, members - hits + 1.0, allowed))


def counted_events(ranked: IntArray) -> tuple[IntArray, IntArray]:
    """The ranks of `rank_grid` and the members above the non-member of each, from labels in falling order."""
    ranks = rank_grid(ranked.size - int(ranked.sum()))
    return ranks, np.cumsum(ranked)[ranked == 0][ranks - 1]


def _p_values(ranked: IntArray, guarantee: Guarantee) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each rank of the grid: p-value, observed FPR and TPR; each of shape `(ranks,)`."""
    n1 = int(ranked.sum())
    n0 = ranked.size - n1
    ranks, hits = counted_events(ranked)
    p = [
        event_p_value(k, v, n1, n0, guarantee.max_tpr)
        for k, v in zip(ranks.tolist(), hits.tolist(), strict=True)
    ]
    return np.asarray(p, dtype=np.float64), ranks / n0, hits / n1


def tradeoff_violation(
    scores: FloatArray,
    members: BoolArray,
    guarantee: Guarantee,
    *,
    significance: float,
    generator: np.random.Generator | None = None,
) -> TradeoffTest:
    """Tests TPR <= guarantee.max_tpr(FPR) over a geometric grid of thresholds, in both directions.

    For guarantees that hold for the pair of worlds in either order: the second direction swaps members and
    non-members. Bonferroni over thresholds and directions. A true guarantee is rejected with probability at
    most `significance`. `generator` breaks ties; a fixed one by default.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: the guarantee has no trade-off curve.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("significance", significance)
    if values.min() == values.max():  # Every threshold calls all or none.
        rates = {"fpr": 1.0, "tpr": 1.0, "max_tpr": 1.0}
        return TradeoffTest(p_value=1.0, rejected=False, significance=significance, n=values.size, **rates)
    ranked = ranked_labels(values, labels, generator if generator is not None else np.random.default_rng(0))
    directions = [_p_values(ranked, guarantee), _p_values(1 - ranked[::-1], guarantee)]
    p, fpr, tpr = (np.concatenate(parts) for parts in zip(*directions, strict=True))
    at = int(np.argmin(p))
    p_value = min(1.0, float(p[at]) * p.size)
    return TradeoffTest(
        p_value=p_value,
        rejected=p_value <= significance,
        significance=significance,
        fpr=float(fpr[at]),
        tpr=float(tpr[at]),
        max_tpr=float(guarantee.max_tpr(fpr[at : at + 1])[0]),
        n=values.size,
    )
