"""Refuses data that a pair of unit-apart Gaussians cannot have produced.

Each guard rejects data of its own family with probability at most about `GUARD_LEVEL` (a hundredth):
half of it for each of two tests. It is a pre-test: a run that is refused yields no bound, so the share
of runs whose bound exceeds the truth is at most what it is without the guard, and among the runs that
pass at most that divided by 0.99. A guard has little power in small samples; passing it proves nothing,
and the bound still carries the family's label.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy.special import fdtr, fdtrc, ndtri, owens_t, stdtr
from scipy.stats import normaltest, rankdata, shapiro

from workbench.core.errors import UnsupportedError
from workbench.interfaces import BoolArray, FloatArray

GUARD_LEVEL = 0.01
_DISTINCT_SHARE = 0.9
_SHAPIRO_LIMIT = 2000


def _refuse(reason: str) -> UnsupportedError:
    """The refusal, with the way out."""
    return UnsupportedError(
        f"scores are outside the Gaussian family: {reason}; use an estimator of family ANY"
    )


def require_continuous(scores: FloatArray) -> None:
    """Refuse scores of which more than a tenth repeat others.

    Raises:
        UnsupportedError: too many ties for a continuous distribution.
    """
    distinct = int(np.unique(scores).size)
    if distinct < _DISTINCT_SHARE * scores.size:
        raise _refuse(f"only {distinct} of {scores.size} values are distinct")


def require_common_normal(inside: FloatArray, outside: FloatArray) -> None:
    """Refuse two samples that are not normal with one variance.

    F test of equal variances, and a normality test of the pooled residuals (Shapiro-Wilk up to 2,000
    scores, D'Agostino-Pearson above), each at half of `GUARD_LEVEL`.

    Args:
        inside: Scores of the members, at least two.
        outside: Scores of the non-members, at least two.

    Raises:
        UnsupportedError: a class is constant, or a test rejects.
    """
    variances = float(inside.var(ddof=1)), float(outside.var(ddof=1))
    if min(variances) == 0.0:
        raise _refuse("a class has zero variance (a release without noise)")
    ratio, df = variances[0] / variances[1], (inside.size - 1, outside.size - 1)
    p_variance = 2.0 * min(float(fdtr(*df, ratio)), float(fdtrc(*df, ratio)))
    if p_variance < GUARD_LEVEL / 2:
        raise _refuse(
            f"variances of members and non-members differ (ratio {ratio:.3g}, p = {p_variance:.2g})"
        )
    residuals = np.concatenate([inside - inside.mean(), outside - outside.mean()])
    if residuals.size < 20:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test = shapiro if residuals.size <= _SHAPIRO_LIMIT else normaltest
        p_normal = float(test(residuals / residuals.std()).pvalue)
    if p_normal < GUARD_LEVEL / 2:
        raise _refuse(f"residuals are not normal (p = {p_normal:.2g})")


def triple_probability(auc: FloatArray | float) -> FloatArray:
    """P[a member's score exceeds two non-members'] where the ROC is that of N(mu, 1) against N(0, 1).

    Args:
        auc: Phi(mu / sqrt 2), in [0, 1].
    """
    return np.asarray(auc - 2.0 * owens_t(ndtri(auc), 1.0 / math.sqrt(3.0)), dtype=np.float64)


def require_gaussian_roc(scores: FloatArray, members: BoolArray) -> None:
    """Refuse scores whose ROC is not that of two normals with one variance, up to any increasing transform.

    Let A be the share of non-members below each member's score and B the share of members above each
    non-member's. A symmetric ROC (equal variances) has E[A^2] = E[B^2]; a normal one has
    (E[A^2] + E[B^2]) / 2 = triple_probability(AUC). Both are tested by their U-statistics with the
    variance of their projections, each at half of `GUARD_LEVEL`.

    Args:
        scores: Shape `(n,)`.
        members: Shape `(n,)`.

    Raises:
        UnsupportedError: a test rejects.
    """
    n1, n0 = int(members.sum()), int(np.sum(~members))
    if min(n1, n0) < 10:
        return
    order = np.argsort(scores, kind="stable")
    is_member = members[order]
    below = (np.cumsum(~is_member) / n0)[is_member]
    above = 1.0 - (np.cumsum(is_member) / n1)[~is_member]
    # Projections of mean(A^2) and mean(B^2) on each sample, in sorted order.
    weight_above = np.zeros(scores.size)
    weight_above[~is_member] = above
    weight_below = np.zeros(scores.size)
    weight_below[is_member] = below
    through_members = 2.0 * (np.cumsum(weight_above) / n0)[is_member]
    through_nonmembers = 2.0 * ((weight_below.sum() - np.cumsum(weight_below)) / n1)[~is_member]
    auc = float(below.mean())
    squares = float(np.mean(below**2)), float(np.mean(above**2))
    asymmetry = squares[0] - squares[1]
    _require_zero(
        asymmetry, below**2 - through_members, through_nonmembers - above**2, "its ROC is not symmetric"
    )
    if not 0.0 < auc < 1.0:
        return
    step = 1e-4 * min(auc, 1.0 - auc)
    slope = float(triple_probability(auc + step) - triple_probability(auc - step)) / (2 * step)
    excess = sum(squares) / 2 - float(triple_probability(auc))
    _require_zero(
        excess,
        (below**2 + through_members) / 2 - slope * below,
        (through_nonmembers + above**2) / 2 - slope * above,
        "its ROC is not that of two normals",
    )


def _require_zero(value: float, inside: FloatArray, outside: FloatArray, reason: str) -> None:
    """Tests a two-sample U-statistic against 0, from its projections on members and non-members.

    Its variance is estimated, and badly so where few scores carry it: Student's t with a third of the smaller
    class as degrees of freedom keeps the level (by simulation, classes of 50 and more, mu up to 2).
    """
    variance = float(inside.var(ddof=1) / inside.size + outside.var(ddof=1) / outside.size)
    if variance <= 0.0:
        return
    p_value = 2.0 * float(stdtr(min(inside.size, outside.size) / 3.0, -abs(value) / math.sqrt(variance)))
    if p_value < GUARD_LEVEL / 2:
        raise _refuse(f"{reason} (p = {p_value:.2g})")


def mann_whitney(scores: FloatArray, members: BoolArray) -> float:
    """AUC: P[member > non-member] + P[tie] / 2 over all pairs, in [0, 1]."""
    n1 = int(members.sum())
    ranks = rankdata(scores)
    return float((ranks[members].sum() - n1 * (n1 + 1) / 2) / (n1 * (scores.size - n1)))
