"""Epsilon lower bounds for releases that are known to be Gaussian: far tighter than those for any mechanism.

Two estimators of the Gaussian-DP parameter mu, the distance of two unit-variance normals: `gaussian_location`
from the scores (an exact noncentral-t bound, efficient), `gaussian_rank` from their order (the AUC, so any
increasing transform will do). Both convert mu to epsilon exactly. Gaussian noise on a fixed signal is such a
release; a whole training run, a subsampled step and a loss score are not.

Both first refuse data that the family cannot have produced. Each guard rejects data of its own family with
probability at most about `GUARD_LEVEL` (the ranks') or `VARIANCE_LEVEL + NORMALITY_LEVEL` (the values'). A
refused run yields no bound, so the share of runs whose bound exceeds the truth is at most what it is without
the guard, and among the runs that pass at most that divided by 0.99. A guard has little power in small
samples; passing it proves nothing, and the bound still names its family.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy.optimize import brentq
from scipy.special import fdtr, fdtrc, ndtr, ndtri, owens_t, stdtr, stdtrit
from scipy.stats import nct, normaltest, rankdata, shapiro

from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.inputs import bound_of_trials, check_game, check_probability
from workbench.interfaces import BoolArray, Bound, Family, FloatArray

GUARD_LEVEL = 0.01
"""Of the guard of ranks, half of it for each of two tests."""

VARIANCE_LEVEL, NORMALITY_LEVEL = 0.001, 0.004
"""Of the guard of values; a run that it refuses has no bound, which lowers the mean bound by as much."""

_DISTINCT_SHARE = 0.9
_SHAPIRO_LIMIT = 2000
_LARGEST_MU = 30.0
_LARGEST_T = 3e4
"""Beyond it scipy's series for the noncentral t does not converge, and its tail is too small."""


def noncentral_t_lower(t: float, df: int, confidence: float) -> float:
    """Largest noncentrality at which a noncentral t with df degrees reaches t with chance 1 - confidence.

    Exact lower confidence bound of the noncentrality; may be negative. A t above 30,000, whose tail cannot be
    computed, is taken as 30,000: still a bound, since it rises with t.
    """
    t = min(t, _LARGEST_T)

    def excess(noncentrality: float) -> float:
        return float(nct.sf(t, df, noncentrality)) - (1.0 - confidence)

    spread = math.sqrt(1.0 + t * t / (2.0 * df))
    low, high = t - 3.0 * spread, t
    while excess(low) > 0:
        low -= 3.0 * spread
    while excess(high) < 0:
        high += spread
    return float(brentq(excess, low, high, xtol=1e-9))


def _bound(
    name: str,
    mu: tuple[float, float],
    assumption: str,
    confidence: float,
    *,
    quantity: str,
    delta: float,
    n: int,
) -> Bound:
    """The bound in the wanted quantity, from the lower bound and the estimate of mu."""
    lower, estimate = max(0.0, mu[0]), max(0.0, mu[1])
    if quantity == "epsilon":
        lower, estimate = epsilon_of_delta(lower, delta), epsilon_of_delta(estimate, delta)
    stated = delta if quantity == "epsilon" else None
    ends, family = (lower, estimate), Family.GAUSSIAN
    return bound_of_trials(name, quantity, ends, assumption, confidence, n=n, delta=stated, family=family)


def _check(delta: float, confidence: float, quantity: str) -> None:
    check_probability("confidence", confidence)
    if quantity not in ("epsilon", "mu"):
        raise InputError(f"quantity must be 'epsilon' or 'mu', got {quantity!r}")
    if quantity == "epsilon":
        check_probability("delta", delta)


def gaussian_location(
    scores: FloatArray, members: BoolArray, *, delta: float, confidence: float, quantity: str = "epsilon"
) -> Bound:
    """Lower bound where members score N(a + mu s, s^2) and non-members N(a, s^2), a and s unknown.

    Exact: it exceeds the truth with probability at most 1 - confidence, refused runs counted in. The pooled t
    statistic is noncentral t with noncentrality mu sqrt(n1 n0 / n) and n - 2 degrees.

    Args:
        scores, members: See `check_game`; at least two of each class.
        delta: In (0, 1); read for quantity `"epsilon"`.
        quantity: `"epsilon"` or `"mu"`.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: the guard finds ties, zero or unequal
    variances, or scores that are not normal.
    """
    values, labels = check_game(scores, members)
    _check(delta, confidence, quantity)
    # The t statistic has no unit: scaled by a power of two, which is exact, squares do not overflow.
    values = np.ldexp(values, -math.frexp(float(np.abs(values).max()))[1])
    inside, outside = values[labels], values[~labels]
    if min(inside.size, outside.size) < 2:
        raise InputError("members must hold at least two of each class to estimate a variance")
    require_common_normal(inside, outside)
    require_continuous(values)
    df = values.size - 2
    pooled = ((inside.size - 1) * inside.var(ddof=1) + (outside.size - 1) * outside.var(ddof=1)) / df
    scale = math.sqrt(inside.size * outside.size / values.size)
    distance = float((inside.mean() - outside.mean()) / math.sqrt(pooled))
    lower = noncentral_t_lower(distance * scale, df, confidence) / scale
    why = "scores are independent normals with one variance, shifted for members (a Gaussian release)"
    n = values.size
    return _bound(
        "gaussian_location", (lower, distance), why, confidence, quantity=quantity, delta=delta, n=n
    )


def auc_standard_deviation(mu: float, n_members: int, n_nonmembers: int) -> float:
    """Exact standard deviation of the Mann-Whitney AUC where scores are N(mu, 1) against N(0, 1)."""
    auc = float(ndtr(mu / math.sqrt(2.0)))
    pairs = float(triple_probability(auc)) - auc * auc
    variance = (auc * (1.0 - auc) + (n_members + n_nonmembers - 2) * pairs) / (n_members * n_nonmembers)
    return math.sqrt(max(variance, 0.0))


def mu_lower_from_auc(auc: float, n_members: int, n_nonmembers: int, confidence: float) -> float:
    """Smallest mu >= 0 that a one-sided test on the AUC does not reject, with the variance under mu.

    The AUC is treated as normal about its mean under mu, with Student's quantile of n - 2 degrees for small
    samples. By simulation (20,000 runs each; classes of 10 and of 50, two to three and one to four; mu 0 to
    3) the bound exceeds the truth in at most 5.1 % of runs at 95 %, in fewer the larger mu is.
    """
    quantile = float(stdtrit(n_members + n_nonmembers - 2, confidence))

    def gap(mu: float) -> float:
        return (
            auc
            - float(ndtr(mu / math.sqrt(2.0)))
            - quantile * auc_standard_deviation(mu, n_members, n_nonmembers)
        )

    if gap(0.0) <= 0:
        return 0.0
    mu, step = 0.0, 0.25
    while gap(mu + step) > 0:
        mu += step
        if mu >= _LARGEST_MU:
            return mu
    return float(brentq(gap, mu, mu + step, xtol=1e-9))


def gaussian_rank(
    scores: FloatArray, members: BoolArray, *, delta: float, confidence: float, quantity: str = "epsilon"
) -> Bound:
    """Lower bound where some increasing transform of the scores is N(mu, 1) for members, N(0, 1) for others.

    From AUC = Phi(mu / sqrt 2); see `mu_lower_from_auc` for its error. Arguments as of `gaussian_location`.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: the guard finds ties, an asymmetric ROC,
    or one that no two normals have.
    """
    values, labels = check_game(scores, members)
    _check(delta, confidence, quantity)
    require_continuous(values)
    require_gaussian_roc(values, labels)
    auc = mann_whitney(values, labels)
    n1, n0 = int(labels.sum()), int(np.sum(~labels))
    lower = mu_lower_from_auc(auc, n1, n0, confidence)
    estimate = math.sqrt(2.0) * float(ndtri(auc))
    why = "scores are independent, and an increasing transform makes them a Gaussian release"
    return _bound(
        "gaussian_rank", (lower, estimate), why, confidence, quantity=quantity, delta=delta, n=values.size
    )


def _refuse(reason: str) -> UnsupportedError:
    """The refusal, with the way out."""
    return UnsupportedError(
        f"scores are outside the Gaussian family: {reason}; use an estimator of family ANY"
    )


def require_continuous(scores: FloatArray) -> None:
    """Refuses scores of which more than a tenth are repeated: no continuous distribution has such ties."""
    distinct = int(np.unique(scores).size)
    if distinct < _DISTINCT_SHARE * scores.size:
        raise _refuse(f"only {distinct} of {scores.size} values are distinct")


def require_common_normal(inside: FloatArray, outside: FloatArray) -> None:
    """Refuses two samples, of at least two each, that are not normal with one variance.

    F test of equal variances, and a normality test of the pooled residuals (Shapiro-Wilk up to 2,000
    scores, D'Agostino-Pearson above), at `VARIANCE_LEVEL` and `NORMALITY_LEVEL`.
    """
    variances = float(inside.var(ddof=1)), float(outside.var(ddof=1))
    if min(variances) == 0.0:
        raise _refuse("a class has zero variance (a release without noise)")
    ratio, df = variances[0] / variances[1], (inside.size - 1, outside.size - 1)
    p_variance = 2.0 * min(float(fdtr(*df, ratio)), float(fdtrc(*df, ratio)))
    if p_variance < VARIANCE_LEVEL:
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
    if p_normal < NORMALITY_LEVEL:
        raise _refuse(f"residuals are not normal (p = {p_normal:.2g})")


def triple_probability(auc: FloatArray | float) -> FloatArray:
    """P[a member's score exceeds two non-members'] where the ROC of N(mu, 1) against N(0, 1) has this AUC."""
    return np.asarray(auc - 2.0 * owens_t(ndtri(auc), 1.0 / math.sqrt(3.0)), dtype=np.float64)


def require_gaussian_roc(scores: FloatArray, members: BoolArray) -> None:
    """Refuses scores whose ROC is not that of two normals with one variance, up to any increasing transform.

    Let A be the share of non-members below each member's score and B the share of members above each
    non-member's. A symmetric ROC (equal variances) has E[A^2] = E[B^2]; a normal one has
    (E[A^2] + E[B^2]) / 2 = triple_probability(AUC). Both are tested by their U-statistics with the
    variance of their projections, each at half of `GUARD_LEVEL`.
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
    """Refuses a two-sample U-statistic that differs from 0, by its projections on members and non-members.

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
    """Returns the AUC: P[member > non-member] + P[tie] / 2 over all pairs, in [0, 1]."""
    n1 = int(members.sum())
    ranks = rankdata(scores)
    return float((ranks[members].sum() - n1 * (n1 + 1) / 2) / (n1 * (scores.size - n1)))
