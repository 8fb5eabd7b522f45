"""Lower bounds on a Rényi divergence from scores, with no family assumed.

P and Q are the outputs of the worlds with and without the record. What is bounded is the smallest rho for
which the mechanism is (alpha, rho)-Rényi DP: D_alpha(P || Q) <= rho and D_alpha(Q || P) <= rho, in nats, for
every pair of worlds that the game plays.

**One event.** An event is post-processing: at its probabilities (q, p) under Q and P the divergence of two
coins, both ways, is at most rho. So p <= f(q) with f = `RenyiDP.max_tpr`. The set of (q, p) with
p^alpha q^(1 - alpha) + (1 - p)^alpha (1 - q)^(1 - alpha) <= exp((alpha - 1) rho) is convex (each term is
jointly convex), the other direction's too, hence f is concave; it grows with rho. The set is mapped to itself
by swapping p with q, and by taking the event's complement.

**Independent trials, events.** Each threshold of a grid of ranks, and each direction, has the exact p-value
of `event_p_value`, in which the false-positive rate is integrated out; Bonferroni over the grid. A rho is
rejected if a p-value is at most its level; if a rho at or above the truth is rejected, so is the truth, since
f grows with rho. This finds at most the divergence of the best two cells: 0.66 of the 1 nat between unit
normals one apart at alpha = 2.

**Independent trials, curve.** To find more, all thresholds are read at once. Let U_1 < U_2 < ... be n uniform
order statistics, and l_r Beta quantiles with P[some U_r < l_r, r in a grid] <= s (computed exactly, below).
With the members' scores x_1 >= x_2 >= ..., P[S >= x_r] is distributed as U_r or above it (where scores tie),
so all P[S >= x_r] >= l_r; with the non-members' y_1 <= y_2 <= ..., likewise all Q[S > y_r] <= 1 - l_r. So
each threshold y with the largest member's rank above it gives a point that the ROC passes at or above it. The
true ROC is concave (Neyman and Pearson), hence at or above the concave hull of these points, (0, 0) and
(1, 1). By Blackwell's theorem the pair that has the hull as its ROC is a post-processing of (P, Q), and has
no larger divergence, in either direction: log(sum of dp^alpha dq^(1 - alpha) over the hull's edges) /
(alpha - 1). Members and non-members have half of s each, and s is `CURVE_SHARE` of the whole error.

**The exact band.** P[N(l_r) < r for all r in the grid], N(x) = number of n uniforms below x, is that of a
Poisson process of rate n on [0, 1] given that it has n points. Its increments are independent, so the law of
N(l_r) on the paths that were never at r or above is a chain of convolutions. What is cut from the tails is
missing in the probability of no crossing, so the error that is computed errs upwards.

**One run.** The recursion of `workbench.estimation.gdp_one_run` uses of the curve that every event keeps to
it in both directions, that it is concave and that it does not fall. f does, so the proof there holds with f
in the place of f_mu, word by word. This uses two cells alone. Orders of 16 and more are close to pure DP,
where `one_run` tells more of few candidates: there half of the error is its epsilon bound at delta = 1e-5,
held against what rho implies (Canonne, Kamath and Steinke 2020, proposition 12):

    epsilon = rho + log(1 - 1 / alpha) + log(1 / (alpha delta)) / (alpha - 1).

**The curve as computed.** f is tabulated at points that are rounded upwards. Between two of them a concave
function lies below the line through the two points to the left, and below the one through the two points to
the right; the smaller of the two is used, times 1 + 1e-7 for the rounding of the points. So the computed
curve is at or above f, and its inverse at or below that of f, and no rho at or above the truth is rejected
where f does not reject the truth.

Source: Mironov 2017 (Rényi DP, post-processing); Blackwell 1951, as in Dong, Roth and Su 2022, theorem 2.10;
Moscovich, Nadler and Spiegelman 2016 (the band of equal local levels); Mahloujifar, Melis and Chaudhuri 2024
(one run). How they are put together is ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import betaincinv, gammaln

from workbench.accounting import RenyiDP
from workbench.core.arguments import number
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.gdp_one_run import ONE_END, Names, is_excluded, named
from workbench.estimation.inputs import INDEPENDENT_SCORES, check_game, check_probability
from workbench.estimation.one_run import SIDES, check_sides, one_run, ranked_labels
from workbench.estimation.searching import change_bracket
from workbench.estimation.tradeoff import counted_events, event_p_value
from workbench.interfaces import BoolArray, Bound, Family, FloatArray, IntArray, Trials

CURVE_SHARE = 0.2
"""Share of the error that the bound from the whole curve has; the rest is that of single events."""

LARGEST_RENYI = 256.0
"""Where the search ends: no number of scores tells a larger divergence from none."""

EPSILON_SHARE, EPSILON_FROM_ALPHA, EPSILON_DELTA = 0.5, 16.0, 1e-5
"""Share of the error in one run that the bound by the implied epsilon has, from which order on, and delta."""

_SMALLEST_RATE = 1e-13
_NODES = 400
_SLACK = 1.0 + 1e-7
_RELATIVE_STEP, _ABSOLUTE_STEP = 2e-3, 1e-4
_BAND_GROWTH = 1.25
_BAND_ROUNDING = 1e-9
_TRIM = 1e-15
_SMALLEST_ALPHA = 1.001


def binary_renyi(p: float, q: float, alpha: float) -> float:
    """Divergence D_alpha of Bernoulli(p) from Bernoulli(q), nats, larger direction; may be infinite."""
    cells = np.array([p, 1.0 - p]), np.array([q, 1.0 - q])
    return max(_divergence(*cells, alpha), _divergence(*cells[::-1], alpha))


def _divergence(p: FloatArray, q: FloatArray, alpha: float) -> float:
    """D_alpha of two distributions on the same cells, shape `(cells,)`; at least 0."""
    cells = p > 0.0
    with np.errstate(divide="ignore"):
        logs = alpha * np.log(p[cells]) + (1.0 - alpha) * np.log(q[cells])
    return max(0.0, float(np.logaddexp.reduce(logs)) / (alpha - 1.0))


@dataclass(frozen=True, kw_only=True)
class RenyiCurve:
    """An upper bound of the trade-off curve of (alpha, rho)-Rényi DP, with its inverse.

    Attributes:
        fpr, tpr: Points of the curve, both strictly increasing from 0 to 1, shape `(points,)`.
    """

    fpr: FloatArray
    tpr: FloatArray

    @cached_property
    def slopes(self) -> FloatArray:
        """Slope of each piece between neighbouring points, shape `(points - 1,)`."""
        return np.asarray(np.diff(self.tpr) / np.diff(self.fpr), dtype=np.float64)

    @cached_property
    def _lists(self) -> tuple[list[float], list[float], list[float]]:
        return self.fpr.tolist(), self.tpr.tolist(), self.slopes.tolist()

    def max_tpr(self, rates: FloatArray) -> FloatArray:
        """At or above the largest TPR that is allowed at each FPR in [0, 1], same shape; 1 at most."""
        last = self.slopes.size - 1
        piece = np.clip(np.searchsorted(self.fpr, rates, side="left") - 1, 0, last)
        left, right = np.maximum(piece - 1, 0), np.minimum(piece + 1, last)
        from_left = self.tpr[piece] + self.slopes[left] * (rates - self.fpr[piece])
        from_right = self.tpr[piece + 1] + self.slopes[right] * (rates - self.fpr[piece + 1])
        allowed = np.minimum(
            np.where(piece > 0, from_left, 1.0),
            np.where(piece < last, np.minimum(from_right, self.tpr[piece + 1]), 1.0),
        )
        return np.asarray(np.minimum(1.0, allowed * _SLACK), dtype=np.float64)

    def min_fpr(self, rate: float) -> float:
        """At or below the smallest FPR at which a TPR in [0, 1] is allowed."""
        fpr, tpr, slopes = self._lists
        aim = rate / _SLACK
        piece = bisect_left(tpr, aim) - 1
        if piece < 0:
            return 0.0
        least = fpr[piece]
        if piece > 0:
            least = max(least, fpr[piece] + (aim - tpr[piece]) / slopes[piece - 1])
        if piece + 1 < len(slopes):
            least = max(least, fpr[piece + 1] - (tpr[piece + 1] - aim) / slopes[piece + 1])
        return min(least, fpr[piece + 1])


@lru_cache(maxsize=1024)
def renyi_curve(alpha: float, rho: float) -> RenyiCurve:
    """Tabulates the curve of (alpha, rho)-Rényi DP; alpha > 1, rho >= 0 in nats.

    The half of the curve below the diagonal fpr + tpr = 1 is computed, the other is its mirror image: for an
    event with rates (q, p) the complement, with the worlds swapped, has the rates (1 - p, 1 - q).
    """
    low = np.geomspace(_SMALLEST_RATE, 0.5, _NODES)
    if rho == 0.0:  # The identity; bisection would see the rounding of divergences near 0.
        return RenyiCurve(fpr=np.array([0.0, *low, 1.0]), tpr=np.array([0.0, *low, 1.0]))
    high = RenyiDP(alpha=alpha, epsilon=rho).max_tpr(low)
    half = low + high <= 1.0
    low, high = low[half], high[half]
    fpr = np.concatenate([[0.0], low, 1.0 - high[::-1], [1.0]])
    tpr = np.concatenate([[0.0], high, 1.0 - low[::-1], [1.0]])
    kept = [0]
    for i in range(1, fpr.size - 1):
        far = fpr[i] > fpr[kept[-1]] and tpr[i] > tpr[kept[-1]]
        if far and fpr[i] < 1.0 and tpr[i] < 1.0:
            kept.append(i)
    kept.append(fpr.size - 1)
    return RenyiCurve(fpr=fpr[kept], tpr=tpr[kept])


def _searched(rejected: Callable[[float], bool]) -> float:
    """Largest rho that is rejected, rounded downwards; 0 is known to be."""
    return change_bracket(rejected, absolute=_ABSOLUTE_STEP, relative=_RELATIVE_STEP, most=LARGEST_RENYI)[0]


def _events_lower(ranked: IntArray, alpha: float, significance: float) -> tuple[float, float]:
    """Lower bound over all thresholds, in both directions, and the plug-in divergence of the best one."""
    lower, estimate = 0.0, 0.0
    sides = [(labels, *counted_events(labels)) for labels in (ranked, 1 - ranked[::-1])]
    level = significance / sum(ranks.size for _, ranks, _ in sides)
    for labels, ranks, hits in sides:
        n1 = int(labels.sum())
        n0 = labels.size - n1
        for rank, hit in zip(ranks.tolist(), hits.tolist(), strict=True):

            def rejected(rho: float, event: tuple[int, int, int, int] = (rank, hit, n1, n0)) -> bool:
                return event_p_value(*event, renyi_curve(alpha, rho).max_tpr) <= level

            if rejected(lower):
                lower = _searched(rejected)
                estimate = binary_renyi((hit + 0.5) / (n1 + 1.0), rank / (n0 + 1.0), alpha)
    return lower, estimate


@lru_cache(maxsize=64)
def _order_band(n: int, significance: float) -> tuple[IntArray, FloatArray]:
    """Ranks of a grid, and a lower limit of each of these order statistics of n uniforms, together.

    Some of them lies below its limit with probability at most `significance`. The grid is geometric from both
    ends; all limits are Beta quantiles at one level. Both arrays have shape `(ranks,)`.
    """
    half = [1]
    while half[-1] < (n + 1) // 2:
        half.append(max(half[-1] + 1, round(half[-1] * _BAND_GROWTH)))
    kept = [rank for rank in half if rank <= (n + 1) // 2]
    ranks = np.array(sorted({*kept, *(n + 1 - rank for rank in kept)}), dtype=np.int64)
    low, high = math.log(significance / ranks.size), math.log(significance)
    for _ in range(25):
        middle = (low + high) / 2.0
        limits = betaincinv(ranks, n + 1.0 - ranks, math.exp(middle))
        fits = below_band_probability(n, ranks, limits) <= significance
        low, high = (middle, high) if fits else (low, middle)
    # At the lowest level Bonferroni's inequality holds.
    return ranks, np.asarray(betaincinv(ranks, n + 1.0 - ranks, math.exp(low)), dtype=np.float64)


def below_band_probability(n: int, ranks: IntArray, limits: FloatArray) -> float:
    """P[some order statistic of n uniforms lies below its limit], rounded upwards by 1e-9 at most.

    Ranks and limits are increasing, shape `(ranks,)`.
    """
    mass, first, before = np.ones(1), 0, 0.0
    for rank, limit in zip(ranks.tolist(), limits.tolist(), strict=True):
        rate = n * (limit - before)
        before = limit
        spread = 9.0 * math.sqrt(rate) + 40.0
        least, most = max(0, math.floor(rate - spread)), min(n, math.ceil(rate + spread))
        mass = np.convolve(mass, _poisson(np.arange(least, most + 1), rate))
        first += least
        mass = mass[: max(0, rank - first)]
        skip = int(np.searchsorted(np.cumsum(mass), _TRIM))
        mass, first = mass[skip:], first + skip
    rest = n - first - np.arange(mass.size)
    kept = float(mass @ _poisson(rest, n * (1.0 - before))) / float(_poisson(np.array([n]), float(n))[0])
    return min(1.0, 1.0 - kept + _BAND_ROUNDING)


def _poisson(counts: IntArray, rate: float) -> FloatArray:
    """Poisson probabilities of counts, same shape; rate > 0."""
    return np.asarray(np.exp(counts * math.log(rate) - rate - gammaln(counts + 1.0)), dtype=np.float64)


def _curve_lower(values: FloatArray, labels: BoolArray, alpha: float, significance: float) -> float:
    """Lower bound from the concave hull of points that the ROC passes at or above, all at once."""
    inside, outside = np.sort(values[labels])[::-1], np.sort(values[~labels])
    ranks, least_tpr = _order_band(inside.size, significance / 2.0)
    high_cuts = inside[ranks - 1]
    ranks, least_tnr = _order_band(outside.size, significance / 2.0)
    low_cuts = outside[ranks - 1]
    at = np.searchsorted(low_cuts, high_cuts, side="left") - 1  # The last low cut below each high one.
    fpr, tpr = 1.0 - least_tnr[at[at >= 0]], least_tpr[at >= 0]
    hull = concave_hull(np.concatenate([[0.0], fpr, [1.0]]), np.concatenate([[0.0], tpr, [1.0]]))
    cells = np.diff(hull, axis=0)
    return max(_divergence(cells[:, 1], cells[:, 0], alpha), _divergence(cells[:, 0], cells[:, 1], alpha))


def concave_hull(x: FloatArray, y: FloatArray) -> FloatArray:
    """Corners of the smallest concave function above points from (0, 0) to (1, 1), shape `(corners, 2)`."""
    corners: list[tuple[float, float]] = []
    for right, top in sorted(zip(x.tolist(), y.tolist(), strict=True)):
        while len(corners) >= 2:
            (a, b), (c, d) = corners[-2:]
            if (d - b) * (right - a) > (top - b) * (c - a):
                break
            corners.pop()
        corners.append((right, top))
    return np.asarray(corners, dtype=np.float64)


def renyi_lower(
    scores: FloatArray,
    members: BoolArray,
    *,
    alpha: float,
    confidence: float,
    generator: np.random.Generator | None = None,
) -> Bound:
    """Returns a lower bound of the Rényi divergence of order alpha from independent trials.

    It exceeds the smallest rho for which the mechanism is (alpha, rho)-Rényi DP (the larger of the two
    directions) with probability at most 1 - confidence, whatever the distributions of the scores. Single
    events have 80 % of the error, the whole curve 20 %; the bound is the larger one. See the module for the
    proof. Scores that are all alike give 0.

    Args:
        scores, members: See `check_game`; labels may be chosen in any way.
        alpha: Order, at least 1.001.
        generator: Breaks ties; a fixed one by default (it knows nothing of the labels).

    Returns:
        A bound in nats at `alpha`; the estimate is the divergence of the two cells of the event that gave
        the largest bound, with half a hit and half a miss added, and not below the bound.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: alpha is too close to 1.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    require_order(alpha)
    lower, estimate = 0.0, 0.0
    if values.min() < values.max():
        ranked = ranked_labels(
            values, labels, generator if generator is not None else np.random.default_rng(0)
        )
        lower, estimate = _events_lower(ranked, alpha, (1.0 - CURVE_SHARE) * (1.0 - confidence))
        lower = max(lower, _curve_lower(values, labels, alpha, CURVE_SHARE * (1.0 - confidence)))
    return Bound(
        name="renyi_lower",
        quantity="renyi",
        lower=lower,
        estimate=max(estimate, lower),
        confidence=confidence,
        family=Family.ANY,
        trials=Trials.INDEPENDENT,
        assumption=INDEPENDENT_SCORES,
        n=values.size,
        alpha=alpha,
    )


def require_order(alpha: float) -> None:
    """Refuses an order at which divergences cannot be computed exactly enough."""
    number("alpha", alpha, above=1, below=math.inf)
    if alpha < _SMALLEST_ALPHA:
        raise UnsupportedError(f"alpha must be at least {_SMALLEST_ALPHA:g} to be judged, got {alpha!r}")


@lru_cache(maxsize=65536)
def _is_excluded(alpha: float, rho: float, test: Names) -> bool:
    """Whether the names of one run exclude (alpha, rho)-Rényi DP."""
    return is_excluded(renyi_curve(alpha, rho).min_fpr, **vars(test))


def named_renyi_lower(
    ranked: IntArray, alpha: float, prior: float, sides: Mapping[str, float], significance: float
) -> tuple[float, float]:
    """Returns a lower confidence bound from one run, and a plug-in estimate, as `mu_lower` does for mu."""
    lower, estimate = 0.0, 0.0
    for test in named(ranked, prior, sides, significance):

        def rejected(rho: float, test: Names = test) -> bool:
            return _is_excluded(alpha, rho, test)

        if rejected(lower):
            lower = _searched(rejected)
            estimate = binary_renyi(*test.rates(least_wrong=0.5), alpha)
    return lower, max(estimate, lower)


def renyi_one_run(
    scores: FloatArray,
    members: BoolArray,
    *,
    alpha: float,
    confidence: float,
    prior: float = 0.5,
    sides: Mapping[str, float] | None = None,
    generator: np.random.Generator | None = None,
) -> Bound:
    """Returns a lower bound of the Rényi divergence of order alpha from coin labels of one run.

    It exceeds the smallest rho for which the mechanism is (alpha, rho)-Rényi DP, for adding or removing one
    record, with probability at most 1 - confidence. Nothing is assumed of the mechanism or of the dependence
    between scores. See the module for the proof.

    Args:
        scores, members: See `check_game`; the labels are independent coins, tossed before the run.
        alpha: Order, at least 1.001.
        prior, sides, generator: See `gdp_one_run`.

    Returns:
        A bound in nats at `alpha`; the estimate is the divergence of two coins with the rates of the names
        that gave the largest bound, half a name wrong where none was, and not below the bound.

    Raises `InputError`: an argument is unusable. `UnsupportedError`: alpha is too close to 1.
    """
    values, labels = check_game(scores, members)
    check_probability("confidence", confidence)
    check_probability("prior", prior)
    require_order(alpha)
    if sides is None:
        sides = SIDES if prior == 0.5 else ONE_END
    check_sides(sides)
    if "both" in sides and prior != 0.5:
        raise InputError(f"sides must not hold 'both' where prior is not 0.5, got prior {prior!r}")
    if generator is None:
        generator = np.random.default_rng(0)
    ranked, error = ranked_labels(values, labels, generator), 1.0 - confidence
    share = EPSILON_SHARE if alpha >= EPSILON_FROM_ALPHA else 0.0
    lower, estimate = named_renyi_lower(ranked, alpha, prior, sides, (1.0 - share) * error)
    if share > 0.0:
        epsilon = one_run(
            values,
            labels,
            delta=EPSILON_DELTA,
            confidence=1.0 - share * error,
            prior=prior,
            sides=sides,
            generator=generator,
        )
        lower = max(lower, epsilon.lower - implied_excess(alpha))
        estimate = max(lower, estimate)
    return Bound(
        name="renyi_one_run",
        quantity="renyi",
        lower=lower,
        estimate=estimate,
        confidence=confidence,
        family=Family.ANY,
        trials=Trials.ONE_RUN,
        assumption=(
            f"labels are independent coins with probability {prior:g} of membership; scores may depend on "
            "each other"
        ),
        n=values.size,
        alpha=alpha,
    )


def implied_excess(alpha: float) -> float:
    """Returns by how much the epsilon at `EPSILON_DELTA` exceeds rho under (alpha, rho)-Rényi DP, at most."""
    return math.log1p(-1.0 / alpha) - (math.log(EPSILON_DELTA) + math.log(alpha)) / (alpha - 1.0)


def perfect_renyi(n: int, *, alpha: float, confidence: float) -> float:
    """Returns the bound of one run, fair coins and an attack that ranks all n >= 4 candidates right."""
    members = np.arange(n) < n // 2
    return renyi_one_run(-np.arange(n, dtype=np.float64), members, alpha=alpha, confidence=confidence).lower
