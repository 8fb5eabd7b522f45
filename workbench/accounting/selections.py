"""Events that choose one of several candidates, and mechanisms of which only a promise is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from workbench.accounting.events import Event
from workbench.core.arguments import number, one_of
from workbench.core.errors import InputError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency


@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism(Event):
    """A candidate drawn with probability proportional to exp(score / scale); scores are sums over records.

    A record adds at most 1, up or down, to each candidate's score; where `monotone` is set it adds between 0
    and 1. Reporting the candidate of the largest score plus Gumbel noise of this scale is the same event
    (with Laplace or exponential noise it is not: ask about a `PrivateStep`). The mechanism has a bounded
    range: between neighbours, the largest privacy loss of a candidate exceeds the least by at most `range_of`
    (Dong, Durfee and Rogers 2020). Composed, the candidates of a step may depend on what came before.

    Raises:
        InputError: the scale is not finite and positive, or monotone is no boolean.
    """

    scale: float
    monotone: bool = False

    def __post_init__(self) -> None:
        self._set_positive("scale")
        if not isinstance(self.monotone, bool):
            raise InputError(f"monotone must be true or false, got {object_line(self.monotone)}")

    def describe(self) -> str:
        """`exponential mechanism (scale 1)`."""
        kind = ", monotone scores" if self.monotone else ""
        return f"exponential mechanism (scale {self.scale:g}{kind})"

    def range_of(self, adjacency: Adjacency) -> Fraction:
        """By how much the losses of two candidates differ at most, between neighbours.

        Raises:
            InputError: the adjacency is none.
        """
        adjacency = one_of(Adjacency, "adjacency", adjacency)
        replaced = 2 if adjacency is Adjacency.REPLACE_ONE else 1
        return Fraction(replaced * (1 if self.monotone else 2)) / Fraction(self.scale)


@dataclass(frozen=True, kw_only=True)
class PrivateStep(Event):
    """Any mechanism that is (epsilon, delta)-DP, and of which no more is known.

    The adjacency is that of the promise. Every such mechanism is a post-processing of one pair of
    distributions over four outputs, which is such a mechanism itself (Kairouz, Oh and Viswanath 2015, theorem
    3.4): the bounds are those of the worst mechanism that keeps the promise.

    Raises:
        InputError: epsilon is not in [0, 500], or delta not in [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", number("epsilon", self.epsilon, least=0, most=500))
        object.__setattr__(self, "delta", number("delta", self.delta, least=0, below=1))

    def describe(self) -> str:
        """`any (1, 0)-DP mechanism`."""
        return f"any ({self.epsilon:g}, {self.delta:g})-DP mechanism"


@dataclass(frozen=True, kw_only=True)
class BestOfRuns(Event):
    """The best output of K runs of any epsilon-DP mechanism, K drawn at random (Papernot and Steinke 2022).

    K is truncated negative binomial (shape 0: logarithmic, shape 1: geometric), or Poisson (infinite shape);
    which output is best is no secret, and ties are broken at random. Only the best is released. The adjacency
    is that of the promise.

    With f the generating function of K, an output of probability d that is better than a share of v of the
    others is the best with the probability d f'(u), on average over u in [v, v + d]. Between neighbours d
    changes by exp(epsilon) at most. Truncated negative binomial: f'(u) is proportional to a power -1 - shape,
    of 1 - (1 - gamma) u = gamma + (1 - gamma) (1 - u), and 1 - u is the chance of an event: it changes by
    exp(epsilon) at most, and the whole by exp((2 + shape) epsilon) (their corollary 3). Poisson: f'(u) is
    proportional to exp(mean u), and chances differ by tanh(epsilon / 2) at most.

    Raises:
        InputError: epsilon is not in (0, 100], the shape negative, or the mean not above 1 (Poisson: 0).
    """

    epsilon: float
    shape: float
    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", number("epsilon", self.epsilon, above=0, most=100))
        object.__setattr__(self, "shape", number("shape", self.shape, least=0))
        least = 0 if math.isinf(self.shape) else 1
        object.__setattr__(self, "mean", number("mean", self.mean, above=least, most=1e9))

    def describe(self) -> str:
        """`best of about 10 runs (shape 1) of any 0.1-DP mechanism`."""
        return f"best of about {self.mean:g} runs (shape {self.shape:g}) of any {self.epsilon:g}-DP mechanism"

    def loss(self) -> Fraction:
        """The largest privacy loss, or a little more."""
        if math.isinf(self.shape):
            # In both rounded up: tanh is below its argument, and off by less than a few roundings.
            return Fraction(self.epsilon) + Fraction(self.mean) * Fraction(
                min(math.tanh(self.epsilon / 2) * (1 + 1e-14), self.epsilon / 2)
            )
        return (2 + Fraction(self.shape)) * Fraction(self.epsilon)
