"""delta(epsilon) of one pair in one direction, from samples, with a confidence interval at any sample size.

The intervals are of a mean of independent values in [0, 1]. Each of their two ends may fail with half of
`1 - confidence`. Nothing is assumed of the values beyond independence, one common mean, and the range;
`ASYMPTOTIC`, the normal approximation, is the exception, and no verdict ever rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri, rel_entr

from workbench.attacks.accountant_checks.monte_carlo.events import ProductPair, ProductTilt, as_product
from workbench.attacks.accountant_checks.monte_carlo.mixtures import StaircaseProposal
from workbench.attacks.accountant_checks.monte_carlo.pairs import PairOfNeighbours, member_of
from workbench.core.errors import InconclusiveError, InputError
from workbench.estimation.bounded_mean import betting_lower
from workbench.interfaces import FloatArray


class IntervalMethod(StrEnum):
    """The method by which the confidence interval is computed."""

    HOEFFDING = "hoeffding"
    """Width 1 / sqrt(n), whatever the values (Hoeffding 1963, theorem 2)."""
    CHERNOFF = "chernoff"
    """Relative entropy between observed and true mean (Hoeffding 1963, theorem 1): narrow near 0 and 1."""
    EMPIRICAL_BERNSTEIN = "empirical_bernstein"
    """Width by the sample variance (Maurer and Pontil 2009, theorem 4)."""
    BETTING = "betting"
    """Hedged capital (Waudby-Smith and Ramdas 2024, section 4): the narrowest at most sample sizes."""
    ASYMPTOTIC = "asymptotic"
    """Normal approximation: no guarantee at any n, never decides."""


@dataclass(frozen=True, kw_only=True)
class MeanInterval:
    """lower <= mean <= upper, all in [0, 1]."""

    lower: float
    estimate: float
    upper: float


def mean_interval(
    values: FloatArray, *, confidence: float, method: IntervalMethod = IntervalMethod.EMPIRICAL_BERNSTEIN
) -> MeanInterval:
    """Two-sided confidence interval of the mean of independent values in [0, 1].

    Args:
        values: Shape `(n,)`, n >= 2; for `BETTING` in the order in which they were drawn.
        confidence: Two-sided, in (0, 1).
        method: See `IntervalMethod`.

    Raises:
        InputError: fewer than two values, a value outside [0, 1], or confidence out of range.
    """
    if values.ndim != 1 or len(values) < 2:
        raise InputError(f"values must be a row of at least two numbers, got shape {values.shape}")
    if not (float(values.min()) >= 0 and float(values.max()) <= 1):
        raise InputError(f"values must be in [0, 1], got {float(values.min())!r} to {float(values.max())!r}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence!r}")
    mean, log_odds = float(values.mean()), -math.log((1 - confidence) / 2)
    if method is IntervalMethod.BETTING:
        lower, upper = _betting(values, log_odds)
    elif method is IntervalMethod.CHERNOFF:
        lower, upper = _chernoff(mean, log_odds / len(values))
    else:
        half = _half_width(values, log_odds, method)
        lower, upper = mean - half, mean + half
    return MeanInterval(lower=max(0.0, min(lower, mean)), estimate=mean, upper=min(1.0, max(upper, mean)))


def _half_width(values: FloatArray, log_odds: float, method: IntervalMethod) -> float:
    """Half width of the symmetric intervals; each end fails with probability exp(-log_odds)."""
    n = len(values)
    if method is IntervalMethod.HOEFFDING:
        return math.sqrt(log_odds / (2 * n))
    variance = float(values.var(ddof=1))
    if method is IntervalMethod.ASYMPTOTIC:
        return -float(ndtri(math.exp(-log_odds))) * math.sqrt(variance / n)
    each = log_odds + math.log(2)  # theorem 4 spends one half on the variance
    return math.sqrt(2 * variance * each / n) + 7 * each / (3 * (n - 1))


def _chernoff(mean: float, radius: float) -> tuple[float, float]:
    """Means whose Bernoulli relative entropy from the observed one is at most `radius`, rounded outwards."""
    return _chernoff_lower(mean, radius), 1 - _chernoff_lower(1 - mean, radius, mirrored=mean)


def _chernoff_lower(mean: float, radius: float, *, mirrored: float | None = None) -> float:
    """The smallest such mean; `mirrored` is 1 - mean where that is known more precisely."""
    rest = 1 - mean if mirrored is None else mirrored

    def excess(log_m: float) -> float:
        # 1 - m, which is at least 1 - mean, however small that is.
        return float(rel_entr(mean, math.exp(log_m)) + rel_entr(rest, max(rest, -math.expm1(log_m)))) - radius

    if mean <= 0:
        return 0.0
    if rest <= 0:
        return math.exp(-radius)
    # At the low end the first term alone is radius + mean, and the second is never below -mean.
    low = math.log(mean) - radius / mean - 1
    if low < -700 or excess(low) <= 0:
        return 0.0
    high = math.log(mean) if rest > 0.5 else math.log1p(-rest)
    return math.exp(float(brentq(excess, low, high, xtol=1e-14)) - 1e-12)


def _betting(values: FloatArray, log_odds: float) -> tuple[float, float]:
    """Means that neither of two gamblers refutes, one staking on "larger", one on "smaller".

    See `workbench.estimation.bounded_mean`.
    """
    return betting_lower(values, log_odds), 1 - betting_lower(1 - values, log_odds)


_BLOCK = 1 << 21
"""Numbers that one block of draws may hold."""
_SLACK = 1e-9
"""Relative allowance for double-precision rounding of weights, normalisers and bounds."""
_SLACK_A_DRAW = 1e-12
"""The same for each draw that a product's sample consists of."""
_LOSS_SLACK = 1e-10
"""Allowance for rounding of losses, absolute for epsilon up to 1, relative above.

Atoms of a loss lie exactly at the epsilon of interest (randomised response at its own epsilon): rounded up,
they would refute a true claim of delta 0.
"""


@runtime_checkable
class OfDimension(Protocol):
    """A pair whose samples may have several numbers each."""

    @property
    def dimension(self) -> int:
        """How many numbers a sample consists of."""


@runtime_checkable
class Wide(Protocol):
    """A pair whose densities take more memory than its samples."""

    @property
    def width(self) -> int:
        """Numbers that one sample takes in memory while its density is computed."""


@runtime_checkable
class ProposesSamples(Protocol):
    """A pair that also brings a proposal of its own, for importance sampling."""

    @property
    def log_weight_bound(self) -> float | None:
        """A proven bound on log(p / g) over outputs with a loss above epsilon; None where none is known."""

    def sample_proposal(self, n: int, rng: np.random.Generator) -> object:
        """`n` independent draws from the proposal g, first axis `n`."""

    def log_density_proposal(self, x: object) -> FloatArray:
        """log g, normalised, against the same measure as p, shape `(n,)`."""


@dataclass(frozen=True, kw_only=True)
class DeltaEstimate:
    """delta(epsilon) of one direction of a pair: P's mean of (1 - exp(epsilon - L))_+.

    Attributes:
        lower, estimate, upper: Ends of the interval and the estimate (which need not be in it for heavy
            weights).
        confidence: Two-sided.
        rigorous: True where the interval holds at this n; False for normal approximations, on which no
            verdict may rest.
        log_bound: Logarithm of the largest possible weighted integrand; NaN where none is known.
    """

    epsilon: float
    lower: float
    estimate: float
    upper: float
    confidence: float
    n: int
    method: IntervalMethod
    rigorous: bool
    proposal: str
    log_bound: float

    def describe(self) -> str:
        """One line with the numbers, confidence and method."""
        kind = "" if self.rigorous else ", asymptotic only"
        return (
            f"delta({self.epsilon:g}) in [{self.lower:.6g}, {self.upper:.6g}], estimate {self.estimate:.6g} "
            f"({self.confidence:g} confidence{kind}; {self.n} samples, {self.method}, {self.proposal})"
        )


@dataclass(frozen=True, kw_only=True)
class Integrand:
    """Independent non-negative values whose mean is the part of delta that sampling decides.

    Attributes:
        log_bound: Logarithm of the bound on each value; NaN where none is known.
        surely: Part of delta that is known without sampling, rounded down.
        at_most: The same, rounded up, with all that the proposal leaves out and what rounded losses may hide.
        drawn_from: The proposal; None for samples of P or of the pair's own proposal.
        own_proposal: True where the pair's own proposal is drawn from.
    """

    pair: PairOfNeighbours
    epsilon: float
    log_bound: float
    surely: float
    at_most: float
    proposal: str
    drawn_from: StaircaseProposal | ProductTilt | None
    own_proposal: bool

    def values(self, n: int, rng: np.random.Generator) -> Iterator[FloatArray]:
        """`n` values over their bound, in [0, 1], in blocks; over 1, where no bound is known.

        Losses count from a hair above epsilon on, so that rounding cannot raise the mean; what that leaves
        out is in `at_most`.

        Raises:
            InconclusiveError: a density is NaN, or a value exceeds the stated bound.
        """
        block = max(1, _BLOCK // self._width)
        draw = self._draw if self.drawn_from is None else self.drawn_from.draw
        for start in range(0, n, block):
            size = min(block, n - start)
            losses, log_weights = draw(size, rng)
            scale = 0.0 if math.isnan(self.log_bound) else self.log_bound
            yield self._scaled(losses, log_weights, scale)

    @property
    def _width(self) -> int:
        """Numbers that one sample takes in memory."""
        if isinstance(self.pair, Wide):
            return max(1, self.pair.width)
        return max(1, self.pair.dimension) if isinstance(self.pair, OfDimension) else 1

    def _draw(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Losses and log-weights, from P or from the pair's own proposal."""
        pair = self.pair
        if self.own_proposal and isinstance(pair, ProposesSamples):
            x = np.asarray(pair.sample_proposal(n, rng))
            log_p = pair.log_density_p(x)
            with np.errstate(invalid="ignore"):
                return log_p - pair.log_density_q(x), log_p - pair.log_density_proposal(x)
        x = pair.sample(n, rng)
        log_p = pair.log_density_p(x)
        if np.isneginf(log_p).any():
            raise InconclusiveError("log_density_p must be finite at the samples of P, got -inf")
        return log_p - pair.log_density_q(x), np.zeros(n)

    def _scaled(self, losses: FloatArray, log_weights: FloatArray, scale: float) -> FloatArray:
        """weight * (1 - exp(epsilon - L))_+ / exp(scale); never overflows for a true bound."""
        threshold = self.epsilon + loss_slack(self.epsilon)
        inside = losses > threshold
        if np.isnan(losses[log_weights > -math.inf]).any() or np.isnan(log_weights).any():
            raise InconclusiveError("log-densities must be numbers at the samples, got NaN")
        result = np.zeros(len(losses))
        excess = losses[inside] - threshold
        with np.errstate(over="ignore"):
            result[inside] = np.exp(log_weights[inside] - scale) * -np.expm1(-excess)
        if math.isnan(self.log_bound):
            return result
        largest = float(result.max(initial=0.0))
        # Log-weights and the bound come from sums of size |log_bound|: rounding grows with it.
        if largest > 1 + _SLACK * (1 + abs(scale)):
            raise InconclusiveError(
                f"weighted integrand must be at most its bound, got {largest:.6g} times the bound"
            )
        return np.minimum(result, 1.0)


def loss_slack(epsilon: float) -> float:
    """Allowance for the rounding of losses near epsilon."""
    return _LOSS_SLACK * max(1.0, epsilon)


def integrand(pair: PairOfNeighbours, epsilon: float, *, proposal: str = "auto") -> Integrand:
    """Set up sampling of delta(epsilon).

    Args:
        epsilon: Finite, >= 0.
        proposal: `"auto"`: the best exponential tilt where the pair has tilts (`pair_of`), else the pair's
            own proposal where it has one, else P; `"plain"`: P.

    Raises:
        InputError: an argument is out of range.
    """
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")
    if proposal not in ("auto", "plain"):
        raise InputError(f"proposal must be 'auto' or 'plain', got {proposal!r}")
    pair = as_product(pair)
    if isinstance(pair, ProductPair):
        return _product_integrand(pair, epsilon, plain=proposal == "plain")
    log_bound, own_proposal, words = 0.0, False, "samples of P"
    if proposal == "auto" and isinstance(pair, ProposesSamples):
        own_proposal, words = True, "the pair's own proposal"
        known = pair.log_weight_bound
        log_bound = math.nan if known is None else known
        words += ", weight bound unknown" if known is None else f", weight at most exp({known:.4f})"
    return Integrand(
        pair=pair,
        epsilon=epsilon,
        log_bound=log_bound,
        surely=0.0,
        at_most=_hidden(epsilon, log_bound),
        proposal=words,
        drawn_from=None,
        own_proposal=own_proposal,
    )


def _hidden(epsilon: float, log_reach: float) -> float:
    """What losses that rounding hides can add: the slack, on at most P(L > epsilon) <= exp(log_reach)."""
    return loss_slack(epsilon) * math.exp(min(0.0, log_reach))


def _product_integrand(pair: ProductPair, epsilon: float, *, plain: bool) -> Integrand:
    """The staircase for a single mixture, the best exponential tilt for all else, or P."""
    single = pair.single_mixture
    surely = pair.infinite_mass
    drawn_from: StaircaseProposal | ProductTilt
    if single is not None and not plain:
        drawn_from = single.sharp_proposal(epsilon)
        log_bound = drawn_from.log_bound
        left_out = drawn_from.left_out + _hidden(epsilon, drawn_from.log_reach)
        words = f"staircase, weighted integrand at most exp({log_bound:.4f})"
    else:
        tilt = 0.0 if plain else pair.best_tilt(epsilon)
        drawn_from, log_bound = pair.tilted(tilt), pair.log_bound(tilt, epsilon)
        left_out = pair.truncated_share(tilt) * math.exp(min(0.0, log_bound))
        left_out += _hidden(epsilon, pair.log_envelope(tilt) - tilt * epsilon)
        words = f"exponential tilt {tilt:.4g}, weighted integrand at most exp({log_bound:.4f})"
    return Integrand(
        pair=pair,
        epsilon=epsilon,
        log_bound=log_bound,
        surely=surely * (1 - _SLACK),
        at_most=surely * (1 + _SLACK) + left_out,
        proposal="samples of P" if plain else words,
        drawn_from=drawn_from,
        own_proposal=False,
    )


def estimate_delta(
    pair: PairOfNeighbours,
    epsilon: float,
    *,
    n: int,
    rng: np.random.Generator,
    confidence: float = 0.95,
    method: IntervalMethod | str = IntervalMethod.BETTING,
    proposal: str = "auto",
) -> DeltaEstimate:
    """delta(epsilon) = P's mean of (1 - exp(epsilon - L))_+ with a two-sided confidence interval.

    The number of samples is fixed before the first is drawn: an interval that was looked at, and sampled on
    where it displeased, holds with `betting` only if all samples entered it in one row, and with no other.

    Args:
        pair: P against Q, one direction; `estimate_both` takes the two.
        epsilon: Finite, >= 0.
        n: Number of independent samples, >= 2; 8 bytes each are kept.
        confidence: Two-sided, in (0, 1).
        method: Of the interval. Without a proven bound on the weights it is `asymptotic`, whatever is asked.
        proposal: See `integrand`.

    Raises:
        InputError: an argument is out of range.
        InconclusiveError: log-densities are no numbers, or contradict a stated bound.
    """
    how = member_of(IntervalMethod, method, "method")
    if n < 2:
        raise InputError(f"n must be at least 2, got {n!r}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence!r}")
    plan = integrand(pair, epsilon, proposal=proposal)
    bounded = not math.isnan(plan.log_bound)
    how = how if bounded else IntervalMethod.ASYMPTOTIC
    lower, estimate, upper = _mean_ends(plan, n, rng, confidence, how)
    slack = relative_slack(plan.pair)
    return DeltaEstimate(
        epsilon=epsilon,
        lower=max(0.0, plan.surely + lower * (1 - slack)),
        estimate=plan.surely + estimate,
        upper=min(1.0, math.nextafter(plan.at_most + upper * (1 + slack), math.inf)),
        confidence=confidence,
        n=n,
        method=how,
        rigorous=bounded and how is not IntervalMethod.ASYMPTOTIC,
        proposal=plan.proposal,
        log_bound=plan.log_bound,
    )


def relative_slack(pair: PairOfNeighbours) -> float:
    """Allowance for the rounding of weights and normalisers."""
    return _SLACK + (_SLACK_A_DRAW * pair.draws if isinstance(pair, ProductPair) else 0.0)


def _mean_ends(
    plan: Integrand, n: int, rng: np.random.Generator, confidence: float, how: IntervalMethod
) -> tuple[float, float, float]:
    """Lower end, mean and upper end of the sampled part of delta."""
    if plan.log_bound == -math.inf:  # nothing is left to sample
        return 0.0, 0.0, 0.0
    values, start = np.empty(n), 0
    for block in plan.values(n, rng):
        values[start : start + len(block)] = block
        start += len(block)
    bound = 1.0 if math.isnan(plan.log_bound) else math.exp(plan.log_bound)
    scale = float(values.max()) if math.isnan(plan.log_bound) else 1.0
    if scale > 1:  # no bound is known: bring the values into [0, 1] for the normal approximation
        values, bound = values / scale, scale
    interval = mean_interval(values, confidence=confidence, method=how)
    return bound * interval.lower, bound * interval.estimate, bound * interval.upper
