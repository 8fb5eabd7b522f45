"""Explicit tests that tell neighbours apart, with their error rates in ball arithmetic.

Any event whatever bounds privacy from below: where it has probability at least t under one neighbour and at
most f under the other, delta(epsilon) >= t - e^epsilon * f. So a claim is refuted by an event, and nothing
about the mechanism's worst case needs to be known. The events here are simple (a threshold, a count), so
their error rates are closed forms or rigorous tail bounds.

Balls take their precision from the caller (`workbench.attacks.claim_checks.shared.claims.in_balls`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, show
from workbench.core.keys import JSON

Ball = Any
Number = int | float | Fraction | str


@dataclass(frozen=True, kw_only=True)
class Distinguisher:
    """An event with its probabilities under two neighbours.

    Attributes:
        true_positive: Ball; the event is at least this likely under the one neighbour.
        false_positive: Ball; it is at most this likely under the other.
    """

    event: str
    true_positive: Ball
    false_positive: Ball

    def delta(self, epsilon: Ball) -> Ball:
        """A lower bound on delta(epsilon)."""
        return self.true_positive - epsilon.exp() * self.false_positive

    def epsilon(self, delta: Ball) -> Ball:
        """A lower bound on epsilon(delta); not finite where the event shows nothing."""
        return ((self.true_positive - delta) / self.false_positive).log()

    def describe(self) -> str:
        """The event with both probabilities."""
        return f"{self.event}: probability {show(self.true_positive)} against {show(self.false_positive)}"


def tail(threshold: Ball) -> Ball:
    """Pr[Z > threshold] of a standard normal Z."""
    return (threshold / ball(2).sqrt()).erfc() / 2


def gaussian_delta(mu: Ball, epsilon: Ball) -> Ball:
    """delta(epsilon) between N(0, 1) and N(mu, 1), exactly (Balle and Wang 2018, theorem 8)."""
    return tail(epsilon / mu - mu / 2) - epsilon.exp() * tail(epsilon / mu + mu / 2)


def subsampled_threshold(sigma: Ball, q: Ball, threshold: Ball) -> Distinguisher:
    """A Poisson-subsampled Gaussian sum against the sum without the record: the output is large."""
    without = tail(threshold / sigma)
    return Distinguisher(
        event=f"the output exceeds {show(threshold, 4)}",
        true_positive=(1 - q) * without + q * tail((threshold - 1) / sigma),
        false_positive=without,
    )


def randomised_response() -> Distinguisher:
    """One answer of randomised response at epsilon 1: the truth with probability e / (1 + e)."""
    truth = ball(1).exp() / (1 + ball(1).exp())
    return Distinguisher(
        event="the answer is the first category", true_positive=truth, false_positive=1 - truth
    )


def some_step(single: Distinguisher, steps: int) -> Distinguisher:
    """The single-step event happens in one of several independent steps."""
    return Distinguisher(
        event=f"in one of {steps} steps, {single.event}",
        true_positive=1 - (1 - single.true_positive) ** steps,
        false_positive=1 - (1 - single.false_positive) ** steps,
    )


def many_steps(single: Distinguisher, steps: int, least: int) -> Distinguisher:
    """The single-step event happens in at least `least` of the steps; Chernoff's bounds on both binomials.

    Pr[Bin(n, p) <= (1 - t) n p] <= exp(-t^2 n p / 2), and Pr[Bin(n, r) >= k] <= exp(-n KL(k / n || r))
    above the mean; the one neighbour's mean must exceed `least`, the other's must lie below it.
    """
    p, r = single.true_positive, single.false_positive
    mean, share = steps * p, ball(Fraction(least, steps))
    short = 1 - (least - 1) / mean
    missed = (-short * short * mean / 2).exp()
    divergence = share * (share / r).log() + (1 - share) * ((1 - share) / (1 - r)).log()
    return Distinguisher(
        event=f"in at least {least} of {steps} steps, {single.event}",
        true_positive=1 - missed if short > 0 else ball(0),
        false_positive=(-steps * divergence).exp() if share > r else ball(1),
    )


def against_claim(
    test: Distinguisher, *, epsilon: Ball, delta: Ball, where: Mapping[str, JSON], claim: str
) -> Counterexample | None:
    """The counterexample to a claimed (epsilon, delta) that the test makes; None where it makes none."""
    delta_lower = test.delta(epsilon)
    if not delta_lower > delta:
        return None
    return Counterexample(
        sentence=(
            f"{claim} gives epsilon {show(epsilon)} at delta {show(delta)}, but delta at that epsilon is at "
            f"least {show(delta_lower)}"
        ),
        values={
            **where,
            "claimed_epsilon": show(epsilon),
            "claimed_delta": show(delta),
            "delta_at_least": show(delta_lower),
            "event": test.describe(),
        },
    )


def best_threshold(sigma: float, q: float, epsilon: float) -> Fraction:
    """Where the log-likelihood ratio of a subsampled Gaussian reaches epsilon, as a short rational."""
    ratio = math.log((math.expm1(epsilon) + q) / q) if epsilon < 500 else epsilon - math.log(q)
    return Fraction(round((sigma * sigma * ratio + 0.5) * 1000), 1000)
