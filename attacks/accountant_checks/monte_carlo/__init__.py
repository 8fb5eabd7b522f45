"""Monte Carlo verdicts about a claimed (epsilon, delta): any mechanism that gives samples and log-densities.

A pair of neighbours gives outputs of the one and log-densities of both; delta(epsilon) is a mean, estimated
with a confidence interval that holds at every sample size. Each claim is judged in both directions of the
pair, each with half of the allowed error. `pair_of` makes the pair of an event, with exponential tilts that
reach deltas far below 1 / n; a user's own pair is any object with `sample`, `log_density_p` and
`log_density_q`, and `swapped` for its other direction.

One pair refutes a claim about all pairs; it never proves one. NOT_REFUTED is not "private".

>>> import numpy as np
>>> from workbench.accounting.events import Gaussian
>>> pair = pair_of(Gaussian(noise_multiplier=1.0))
>>> finding = judge_claim(pair, 1.0, 1e-3, n=10_000, rng=np.random.default_rng(1))
>>> str(finding.verdict)
'REFUTED'
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypedDict, Unpack, runtime_checkable

import numpy as np

from workbench.attacks.accountant_checks.monte_carlo.estimates import (
    DeltaEstimate,
    IntervalMethod,
    MeanInterval,
    ProposesSamples,
    estimate_delta,
    mean_interval,
)
from workbench.attacks.accountant_checks.monte_carlo.events import (
    Direction,
    ProductPair,
    pair_of,
    permuted_gaussians,
)
from workbench.attacks.accountant_checks.monte_carlo.mixtures import MixturePair, VectorMixturePair
from workbench.attacks.accountant_checks.monte_carlo.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    PairOfNeighbours,
    Swappable,
    member_of,
    random_direction,
)
from workbench.core.errors import InputError
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding, assume

__all__ = [
    "ClaimTest",
    "DeltaEstimate",
    "Direction",
    "DiscretePair",
    "GaussianPair",
    "IntervalMethod",
    "LaplacePair",
    "MeanInterval",
    "MixturePair",
    "PairOfNeighbours",
    "ProductPair",
    "ProposesSamples",
    "Scope",
    "Swappable",
    "VectorMixturePair",
    "estimate_both",
    "estimate_delta",
    "judge_claim",
    "mean_interval",
    "measure_claim",
    "pair_of",
    "permuted_gaussians",
    "random_direction",
]


def require_claim(epsilon: float, delta: float) -> None:
    """Refuse a claim that is none.

    Raises:
        InputError: epsilon is negative or not finite, or delta is no probability.
    """
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")
    if not 0 <= delta <= 1:
        raise InputError(f"delta must be in [0, 1], got {delta!r}")


@runtime_checkable
class Described(Protocol):
    """A pair that says what it is."""

    def describe(self) -> str:
        """The pair of neighbouring output laws in words."""


def describe_pair(pair: PairOfNeighbours) -> str:
    """The pair in words: its own, or its type."""
    return str(pair.describe()) if isinstance(pair, Described) else type(pair).__name__


class Scope(StrEnum):
    """Which neighbouring datasets a claim is about."""

    EVERY_PAIR = "every pair"
    """All neighbours: one pair can refute it, and never confirm it."""
    THIS_PAIR = "this pair"
    """This pair alone, which is then assumed to be the worst one."""


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """What sampling says about one claim on one pair.

    Attributes:
        kind: REFUTED where a lower end lies above the claimed delta; UNDERPOWERED where it does not, the
            claim lies inside an interval, and the interval is wider than the claim, so that a truth of twice
            the claim would have looked the same; else NOT_REFUTED.
        forward: delta(epsilon) in the pair's own direction.
        backward: In the other one; None for a pair that knows only one.
        confidence: With which both intervals hold together.
    """

    kind: VerdictKind
    pair: str
    epsilon: float
    delta: float
    forward: DeltaEstimate
    backward: DeltaEstimate | None
    confidence: float

    @property
    def estimates(self) -> tuple[tuple[Direction, DeltaEstimate], ...]:
        """The directions that were measured."""
        both = ((Direction.FORWARD, self.forward), (Direction.BACKWARD, self.backward))
        return tuple((direction, estimate) for direction, estimate in both if estimate is not None)

    @property
    def is_within(self) -> bool:
        """True where both directions were measured rigorously and their upper ends are at most delta."""
        ends = [estimate.rigorous and estimate.upper <= self.delta for _, estimate in self.estimates]
        return len(ends) == 2 and all(ends)

    def finding(self, scope: Scope | str = Scope.EVERY_PAIR) -> Finding:
        """The answer about a statement.

        Raises:
            InputError: there is no such scope.
        """
        about = member_of(Scope, scope, "scope")
        evidence = tuple(f"{direction}: {estimate.describe()}" for direction, estimate in self.estimates)
        claim = f"({self.epsilon:g}, {self.delta:g})-DP"
        certainty = f"{self.confidence:g} confidence"
        if self.kind is VerdictKind.REFUTED:
            return self._refuted(evidence, claim, certainty)
        if about is Scope.THIS_PAIR and self.is_within:
            top = max(estimate.upper for _, estimate in self.estimates)
            return Finding(
                verdict=VerdictKind.HOLDS_UNDER,
                summary=f"delta({self.epsilon:g}) <= {top:.6g} <= {self.delta:g} on {self.pair}, {certainty}",
                evidence=evidence,
                assumptions=(
                    assume(
                        "this pair of neighbours is the worst one",
                        lambda worst: worst == "this one",
                        left_open={"the worst pair of neighbours": ("this one", "another")},
                    ),
                ),
                confidence=self.confidence,
            )
        why = {
            VerdictKind.UNDERPOWERED: "too few samples: the interval is wider than the claimed delta",
            VerdictKind.NOT_REFUTED: "one pair cannot prove a claim about every pair"
            if self.is_within
            else "the interval does not decide",
        }[self.kind]
        return Finding(
            verdict=VerdictKind.UNDECIDED,
            summary=f"{claim} is not refuted on {self.pair} ({certainty}): {why}",
            evidence=evidence,
            confidence=self.confidence,
        )

    def _refuted(self, evidence: tuple[str, ...], claim: str, certainty: str) -> Finding:
        direction, worst = max(
            (entry for entry in self.estimates if entry[1].rigorous), key=lambda entry: entry[1].lower
        )
        return Finding(
            verdict=VerdictKind.REFUTED,
            summary=f"{claim} fails on {self.pair}, {direction}: "
            f"delta({self.epsilon:g}) >= {worst.lower:.6g} ({certainty})",
            evidence=evidence,
            counterexample={
                "pair": self.pair,
                "direction": str(direction),
                "epsilon": self.epsilon,
                "delta_claimed": self.delta,
                "delta_lower": worst.lower,
                "delta_estimate": worst.estimate,
                "delta_upper": worst.upper,
                "samples": worst.n,
            },
            confidence=self.confidence,
        )


class Sampling(TypedDict, total=False):
    """How `estimate_delta` samples: the interval's method, and the proposal, `"auto"` or `"plain"`."""

    method: IntervalMethod | str
    proposal: str


def estimate_both(
    pair: PairOfNeighbours,
    epsilon: float,
    *,
    n: int,
    rng: np.random.Generator,
    confidence: float = 0.95,
    **settings: Unpack[Sampling],
) -> tuple[DeltaEstimate, DeltaEstimate | None]:
    """delta(epsilon) in both directions, jointly at `confidence`: each interval gets half of the error.

    Args:
        rng: Source; each direction draws from a child of its own.
        confidence: Of both intervals together.
        settings: See `Sampling`.

    Returns:
        Forward and backward; None in the place of backward for a pair without `swapped`.

    Raises:
        InputError: an argument is out of range.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence!r}")
    first, second = rng.spawn(2)
    each = 1 - (1 - confidence) / 2
    forward = estimate_delta(pair, epsilon, n=n, rng=first, confidence=each, **settings)
    if not isinstance(pair, Swappable):
        return forward, None
    return forward, estimate_delta(pair.swapped(), epsilon, n=n, rng=second, confidence=each, **settings)


def measure_claim(
    pair: PairOfNeighbours,
    epsilon: float,
    delta: float,
    *,
    n: int,
    rng: np.random.Generator,
    confidence: float = 0.95,
    **settings: Unpack[Sampling],
) -> ClaimTest:
    """Sample both directions of a pair against a claim; see `ClaimTest.kind`.

    Args:
        pair, n, rng, confidence, settings: As of `estimate_both`; n is fixed in advance, and the method
            `asymptotic` never refutes.

    Raises:
        InputError: an argument is out of range.
    """
    require_claim(epsilon, delta)
    forward, backward = estimate_both(pair, epsilon, n=n, rng=rng, confidence=confidence, **settings)
    measured = [estimate for estimate in (forward, backward) if estimate is not None]
    kind = VerdictKind.NOT_REFUTED
    if any(estimate.rigorous and estimate.lower > delta for estimate in measured):
        kind = VerdictKind.REFUTED
    elif any(estimate.upper > delta and estimate.upper - estimate.lower > delta for estimate in measured):
        kind = VerdictKind.UNDERPOWERED
    return ClaimTest(
        kind=kind,
        pair=describe_pair(pair),
        epsilon=epsilon,
        delta=delta,
        forward=forward,
        backward=backward,
        confidence=confidence,
    )


def judge_claim(
    pair: PairOfNeighbours,
    epsilon: float,
    delta: float,
    *,
    scope: Scope | str = Scope.EVERY_PAIR,
    n: int,
    rng: np.random.Generator,
    confidence: float = 0.95,
    method: IntervalMethod | str = IntervalMethod.BETTING,
) -> Finding:
    """Judge a claimed (epsilon, delta) on one pair, in both directions.

    Args:
        pair, epsilon, delta, n, rng, confidence, method: As of `measure_claim`.
        scope: What the claim is about.

    Returns:
        REFUTED with the counterexample; HOLDS_UNDER, for scope `THIS_PAIR` alone, where both upper ends are
        at most delta; else UNDECIDED.

    Raises:
        InputError: an argument is out of range.
    """
    test = measure_claim(pair, epsilon, delta, n=n, rng=rng, confidence=confidence, method=method)
    return test.finding(scope)
