"""delta(epsilon) of one pair in one direction, from samples, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from workbench.attacks.accountant_checks.monte_carlo.events import ProductPair, ProductTilt, as_product
from workbench.attacks.accountant_checks.monte_carlo.intervals import (
    IntervalMethod,
    interval_method,
    mean_interval,
)
from workbench.attacks.accountant_checks.monte_carlo.mixtures import StaircaseProposal
from workbench.attacks.accountant_checks.monte_carlo.pairs import PairOfNeighbours
from workbench.core.errors import InconclusiveError, InputError
from workbench.interfaces import FloatArray

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
        epsilon: Where.
        lower, estimate, upper: Ends of the interval and the estimate (which need not be in it for heavy
            weights).
        confidence: Two-sided.
        n: Number of independent samples.
        method: Of the interval.
        rigorous: True where the interval holds at this n; False for normal approximations, on which no
            verdict may rest.
        proposal: Where the samples came from, in words.
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
        pair: The pair, in the direction P against Q.
        epsilon: Where.
        log_bound: Logarithm of the bound on each value; NaN where none is known.
        surely: Part of delta that is known without sampling, rounded down.
        at_most: The same, rounded up, with all that the proposal leaves out and what rounded losses may hide.
        proposal: In words.
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
        width = getattr(self.pair, "width", getattr(self.pair, "dimension", 1))
        return max(1, width) if isinstance(width, int) else 1

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
        pair: The pair.
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
    log_bound, own, words = 0.0, False, "samples of P"
    if proposal == "auto" and isinstance(pair, ProposesSamples):
        own, words = True, "the pair's own proposal"
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
        own_proposal=own,
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
    where it displeased, holds with `betting` only if all samples entered it in one row (see
    `refute_sequentially`), and with no other method.

    Args:
        pair: P against Q, one direction; `estimate_both` takes the two.
        epsilon: Finite, >= 0.
        n: Number of independent samples, >= 2; 8 bytes each are kept.
        rng: Source of the samples.
        confidence: Two-sided, in (0, 1).
        method: Of the interval. Without a proven bound on the weights it is `asymptotic`, whatever is asked;
            `refute_sequentially` needs no bound.
        proposal: See `integrand`.

    Raises:
        InputError: an argument is out of range.
        InconclusiveError: log-densities are no numbers, or contradict a stated bound.
    """
    how = interval_method(method)
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
