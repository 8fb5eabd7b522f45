"""Privacy filters and odometers, for runs whose next step is chosen by what came before.

`Composed` is for events that are fixed before the run. Where noise, sampling rate or the number of steps
depend on earlier outputs, a filter says before each step whether the run may take it; the budget then holds
for the whole run, wherever it stops. What a filter has spent so far is no guarantee of its own: it depends on
outputs. An odometer needs no budget: it says at any time how far the loss has come, which holds at all times
of the run together but for a probability of delta.

>>> from workbench.accounting.events import Gaussian
>>> budget = GaussianFilter(mu=0.5)
>>> [budget.spend(Gaussian(noise_multiplier=3.0)) for _ in range(4)]
[True, True, False, False]
>>> run = GaussianOdometer(delta=1e-5)
>>> [round(run.spend(Gaussian(noise_multiplier=3.0)), 2) for _ in range(3)]
[1.96, 2.66, 3.23]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction

from flint import arb

from workbench.accounting.balls.ball import ends, settle, to_arb
from workbench.accounting.correlated import CorrelatedGaussian
from workbench.accounting.events import Event, Gaussian, Laplace, SubsampledGaussian, require_event
from workbench.accounting.guarantees import GaussianDP, RenyiDP
from workbench.accounting.selections import PrivateStep
from workbench.core.arguments import number, one_of
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency

_LARGEST_ORDER = 1000


@dataclass(kw_only=True)
class _Costs(ABC):
    """Counts what the steps of a run cost."""

    adjacency: Adjacency = Adjacency.ADD_REMOVE
    spent: Fraction = field(default=Fraction(0), init=False)

    def __post_init__(self) -> None:
        self.adjacency = one_of(Adjacency, "adjacency", self.adjacency)

    @abstractmethod
    def cost(self, event: Event) -> Fraction:
        """What an event costs at most."""

    def _moved(self) -> int:
        """By how much a record moves a sum of contributions of norm at most 1."""
        return 2 if self.adjacency is Adjacency.REPLACE_ONE else 1


@dataclass(kw_only=True)
class _Filter(_Costs):
    """Counts the costs of the steps that were admitted."""

    @abstractmethod
    def _whole(self) -> Fraction:
        """The budget."""

    def admits(self, event: Event) -> bool:
        """Whether the event still fits into the budget.

        Raises:
            InputError: it is no event.
            UnsupportedError: the filter has no cost for it.
        """
        return self.spent + self.cost(event) <= self._whole()

    def spend(self, event: Event) -> bool:
        """Count an event if it fits, and say whether it does; it may be run only then.

        Raises:
            InputError: it is no event.
            UnsupportedError: the filter has no cost for it.
        """
        fits = self.admits(event)
        if fits:
            self.spent += self.cost(event)
        return fits


class _GaussianCosts(_Costs):
    """Of Gaussian releases: their squared mu."""

    def cost(self, event: Event) -> Fraction:
        """The square of the event's mu.

        Raises:
            InputError: it is no event.
            UnsupportedError: it is not made of Gaussians.
        """
        total = Fraction(0)
        for part, count in require_event(event).parts():
            if isinstance(part, Gaussian):
                squared = Fraction(1)
            elif isinstance(part, CorrelatedGaussian):
                squared = part.squared_sensitivity[1]
            else:
                raise UnsupportedError(f"only Gaussian releases have a mu, not {part.describe()}")
            total += count * squared * (self._moved() / Fraction(part.noise_multiplier)) ** 2
        return total


@dataclass(kw_only=True)
class GaussianFilter(_GaussianCosts, _Filter):
    """Gaussian releases until their squared mu add up to the budget's (Smith and Thakurta 2022).

    Whatever an adversary picks by earlier outputs, the log-likelihood ratio of the run is a Brownian motion
    with drift that is stopped by a clock of at most mu^2: the run is a post-processing of the one that runs
    on, N(mu, 1) against N(0, 1). One release of all the budget attains it.

    Attributes:
        mu: The budget.
        adjacency: Which data sets are neighbours.
        spent: Sum of squared mu so far.

    Raises:
        InputError: mu is not finite and positive, or the adjacency is none.
    """

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mu = number("mu", self.mu, above=0, below=math.inf)

    def _whole(self) -> Fraction:
        return Fraction(self.mu) ** 2

    def guarantee(self) -> GaussianDP:
        """What the whole run keeps."""
        return GaussianDP(mu=self.mu)

    def event(self) -> Gaussian:
        """The whole run as one event, which can be composed with others and asked for its bounds."""
        noise = self._moved() / self.mu
        while Fraction(noise) * Fraction(self.mu) > self._moved():
            noise = math.nextafter(noise, 0.0)
        return Gaussian(noise_multiplier=noise)


@dataclass(kw_only=True)
class GaussianOdometer(_GaussianCosts):
    """How far the loss of Gaussian releases has come, for as long as they go on, whoever picks the next.

    With v the sum of squared mu so far, the log-likelihood ratio under the data set that is there is
    v / 2 + W(v), a Brownian motion on that clock, whatever an adversary picks by earlier outputs; a record
    that contributes less than it may has a slower clock, and the bound grows with v. The mixture
    of exp(t W - t^2 v / 2) over a normal t of variance 1 / r is a martingale: with probability at least
    1 - delta, at no time

        |W(v)| > sqrt((v + r) (2 log(1 / delta) + log((v + r) / r))).

    So, but for a probability of delta, at no time are the outputs so far more than exp(epsilon) times as
    likely with the data set that is there as with a neighbour. That implies (epsilon, delta)-DP where a run
    stops at a fixed v, and holds where outputs decide when it stops.

    Sources: Robbins 1970 for the boundary; Rogers et al. 2016 for odometers; Whitehouse et al. 2023 for this
    use.

    Attributes:
        delta: In (0, 1).
        narrowest_at: The mu, 1e-100 to 1e100, at which the bound is to be as narrow as it can be; it decides
            r. Elsewhere the bound holds too, and is wider, the more so the less was spent.
        adjacency: Which data sets are neighbours.
        spent: Sum of squared mu so far.

    Raises:
        InputError: a parameter is out of range.
    """

    delta: float
    narrowest_at: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delta = number("delta", self.delta, above=0, below=1)
        self.narrowest_at = number("narrowest_at", self.narrowest_at, above=1e-100, below=1e100)

    def spend(self, event: Event) -> float:
        """Count an event that was run, and give the epsilon that holds of the run so far.

        Raises:
            InputError: it is no event.
            UnsupportedError: it is not made of Gaussians.
        """
        self.spent += self.cost(event)
        return self.epsilon()

    def epsilon(self) -> float:
        """The epsilon that holds of the run so far, rounded up; 0 before the first step."""
        if not self.spent:
            return 0.0
        twice = -2 * math.log(self.delta)
        start = self.narrowest_at**2 / (twice + math.log(1 + twice))

        def bound() -> arb:
            clock, first = to_arb(self.spent), to_arb(Fraction(start))
            room = -2 * arb(self.delta).log() + ((clock + first) / first).log()
            return clock / 2 + ((clock + first) * room).sqrt()

        return ends(settle(bound))[1]


@dataclass(kw_only=True)
class RenyiFilter(_Filter):
    """Steps until their Renyi divergences of one order add up to a budget (Feldman and Zrnic 2021).

    Given what came before, the next likelihood ratio L has E_Q[L^alpha] at most exp((alpha - 1) cost), and
    the cost is known by then. So the product of all L^alpha, divided by these bounds, is a supermartingale
    under Q, and the whole run has at most exp((alpha - 1) budget). The same holds with P and Q exchanged.
    This is an upper end only: nothing is said of what such a run gives away.

    Attributes:
        alpha: The order, > 1; a whole number up to 1000 where steps are Poisson samples.
        budget: In nats, > 0.
        adjacency: Which data sets are neighbours.
        spent: Sum of divergences so far.

    Raises:
        InputError: a parameter is out of range.
    """

    alpha: float
    budget: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha = number("alpha", self.alpha, above=1, below=math.inf)
        self.budget = number("budget", self.budget, above=0, below=math.inf)

    def cost(self, event: Event) -> Fraction:
        """The event's Renyi divergence, rounded up: the larger one of both orders of the neighbours.

        Raises:
            InputError: it is no event.
            UnsupportedError: its divergence of this order is not computed here.
        """
        total = Fraction(0)
        for part, count in require_event(event).parts():
            high = ends(settle(lambda part=part: self._divergence(part)))[1]  # type: ignore[misc]
            if not math.isfinite(high):
                raise UnsupportedError(f"the divergence of {part.describe()} is out of reach")
            total += count * Fraction(max(high, 0.0))
        return total

    def _whole(self) -> Fraction:
        return Fraction(self.budget)

    def guarantee(self) -> RenyiDP:
        """What the whole run keeps."""
        return RenyiDP(alpha=self.alpha, epsilon=self.budget)

    def epsilon(self, delta: float) -> float:
        """An epsilon at which the whole run is (epsilon, delta)-DP.

        Source: Canonne, Kamath and Steinke 2020, proposition 12.

        Raises:
            InputError: delta is not in (0, 1).
        """
        delta = number("delta", delta, above=0, below=1)

        def bound() -> arb:
            alpha = arb(self.alpha)
            return arb(self.budget) - (alpha * arb(delta)).log() / (alpha - 1) + (1 - 1 / alpha).log()

        return max(ends(settle(bound))[1], 0.0)

    def _divergence(self, part: Event) -> arb:
        alpha = arb(self.alpha)
        if isinstance(part, SubsampledGaussian) and part.sampling_probability < 1:
            return self._sampled(part)
        if isinstance(part, Gaussian | SubsampledGaussian):
            return alpha / 2 * to_arb((self._moved() / Fraction(part.noise_multiplier)) ** 2)
        if isinstance(part, Laplace):
            # Mironov 2017, proposition 6.
            loss = to_arb(self._moved() / Fraction(part.scale))
            up, down = alpha / (2 * alpha - 1), (alpha - 1) / (2 * alpha - 1)
            return (up * ((alpha - 1) * loss).exp() + down * (-alpha * loss).exp()).log() / (alpha - 1)
        if isinstance(part, PrivateStep) and not part.delta:
            loss = arb(part.epsilon)
            likely = 1 / (1 + (-loss).exp())
            moment = likely * ((alpha - 1) * loss).exp() + (1 - likely) * ((1 - alpha) * loss).exp()
            return moment.log() / (alpha - 1)
        raise UnsupportedError(f"a Renyi budget has no cost for {part.describe()}")

    def _sampled(self, part: SubsampledGaussian) -> arb:
        """Mironov, Talwar and Zhang 2019, whose theorem 5 shows that the other order's is no larger."""
        if self.adjacency is Adjacency.REPLACE_ONE or self.alpha % 1 or self.alpha > _LARGEST_ORDER:
            raise UnsupportedError(
                f"a Renyi budget has a cost for {part.describe()} at whole orders up to {_LARGEST_ORDER} "
                "only, and not under replace-one"
            )
        order, q, total = int(self.alpha), arb(part.sampling_probability), arb(0)
        curvature = to_arb(1 / (2 * Fraction(part.noise_multiplier) ** 2))
        for k in range(order + 1):
            weight = math.comb(order, k) * q**k * (1 - q) ** (order - k)
            total += weight * (k * (k - 1) * curvature).exp()
        return total.log() / (order - 1)
