"""FERRET's own accounting, as printed (Zagardo 2025): nats of mutual information, and a dithered Rényi bound.

FERRET releases, for each of G parameter groups in each of T steps, with probability p the sign of the
gradient's inner product with a public random direction, else nothing. Its epsilon is a bound on mutual
information in *nats*. It is no epsilon of differential privacy, so `FerretAccountant` refuses to give one;
`FerretSameEpsilon` reads the nats as a DP epsilon, which is what the paper's comparison with DPSGD "at the
same epsilon" does.

Where the paper says two things:
- Section 2.1 defines the leakage as I(M(D); X_i), Lemma 2 as I(M(D_S); X_i | X_-i).
- Lemma 2 needs a bound on the leakage *given* that the record was sampled; Eq. 9 of that lemma prints the
  bound for the mechanism that is already subsampled.
- Section 11.6 passes from p to p^alpha, which for p in (0, 1) and alpha > 1 is smaller. Eq. 12 is printed
  with p^alpha (`form="eq-12"`); the line before that step is `form="step-2"`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from workbench.accounting.events import Event, GaussianMixturePair
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.questions import (
    require,
    require_delta,
    require_positive,
    require_run,
)

LN2 = math.log(2.0)

ORDERS = (1.01, 1.05, 1.1, 1.25, 1.5, 1.75, *(float(k) for k in range(2, 65)), 96.0, 128.0, 256.0, 512.0)
"""Rényi orders that are searched; the paper names none."""

Form = Literal["eq-12", "step-2"]


def total_nats(*, groups: int, steps: int, sampling_probability: float, firing_probability: float) -> float:
    """Eqs. 8 and 9: G T s p ln 2, the nats that a run is said to leak about a record.

    Args:
        groups: Number G of parameter groups, >= 1.
        steps: Number T of steps, >= 1.
        sampling_probability: Probability s with which a record is in a step's batch, in (0, 1].
        firing_probability: Probability p with which a group's sign is released, in [0, 1].

    Raises `InputError`: a parameter is out of range.
    """
    require("firing_probability", firing_probability, 0 <= firing_probability <= 1, "in [0, 1]")
    ceiling = ceiling_nats(groups=groups, steps=steps, sampling_probability=sampling_probability)
    return ceiling * firing_probability


def ceiling_nats(*, groups: int, steps: int, sampling_probability: float) -> float:
    """Eq. 13: G T s ln 2, what a run leaks at p = 1. Raises `InputError`: a parameter is out of range."""
    require("groups", groups, groups >= 1, ">= 1")
    require_run(sampling_probability=sampling_probability, steps=steps)
    return groups * steps * sampling_probability * LN2


def firing_probability(*, budget_nats: float, groups: int, steps: int, sampling_probability: float) -> float:
    """Theorem 1: the p at which Eq. 8 meets the budget, p* = epsilon / (G T s ln 2).

    Raises `InputError`: the budget is not in (0, G T s ln 2), where Theorem 1 says nothing.
    """
    ceiling = ceiling_nats(groups=groups, steps=steps, sampling_probability=sampling_probability)
    if not 0 < budget_nats < ceiling:
        raise InputError(f"budget_nats must be in (0, {ceiling:g}), got {budget_nats!r}")
    return budget_nats / ceiling


def dithered_renyi_nats(
    *,
    order: float,
    firing_probability: float,
    clip_norm: float,
    dither_standard_deviation: float,
    form: Form = "eq-12",
) -> float:
    """Eq. 12: the Rényi divergence, nats, that one group's dithered release is said to stay below.

    Args:
        order: alpha, > 1.
        firing_probability: p in [0, 1].
        clip_norm: C > 0, the norm of a fired update.
        dither_standard_deviation: Of the Gaussian that is added to every release, > 0.
        form: `"eq-12"`, p^a / (a-1) (exp(2 a (a-1) C^2 / sigma^2) + 1); or `"step-2"`, the line that
            section 11.6 derives it from, p / (a-1) (exp(2 a (a-1) C^2 / sigma^2) - 1).

    Returns nats; infinity where the exponential overflows. Raises `InputError`: a parameter is out of range.
    """
    require("order", order, 1 < order < math.inf, "finite and > 1")
    require("firing_probability", firing_probability, 0 <= firing_probability <= 1, "in [0, 1]")
    require_positive("clip_norm", clip_norm)
    sigma = dither_standard_deviation
    require_positive("dither_standard_deviation", sigma)
    if firing_probability == 0:
        return 0.0
    exponent = 2 * order * (order - 1) * (clip_norm / sigma) ** 2
    if form == "eq-12":
        logarithm = order * math.log(firing_probability) - math.log(order - 1)
        return _exp(logarithm + exponent) + _exp(logarithm)
    grown = math.expm1(exponent) if exponent < 700 else math.inf
    return firing_probability / (order - 1) * grown


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 709 else math.inf


@dataclass(frozen=True, kw_only=True)
class FerretRun(Event):
    """A whole FERRET run: T steps of G masked signs on Poisson samples.

    `groups`, `steps`, `sampling_probability`, `firing_probability`: G, T, s and p of Eq. 8. Raises
    `InputError`: a parameter is out of range.
    """

    groups: int
    steps: int
    sampling_probability: float
    firing_probability: float

    def __post_init__(self) -> None:
        self.nats()

    def describe(self) -> str:
        """`FERRET (2 groups, 1000 steps, sampling probability 0.005, firing probability 0.07)`."""
        return (
            f"FERRET ({self.groups} groups, {self.steps} steps, sampling probability "
            f"{self.sampling_probability:g}, firing probability {self.firing_probability:g})"
        )

    def nats(self) -> float:
        """Mutual information in nats that the run may leak by the paper's Eq. 8."""
        return total_nats(
            groups=self.groups,
            steps=self.steps,
            sampling_probability=self.sampling_probability,
            firing_probability=self.firing_probability,
        )


@dataclass(frozen=True, kw_only=True)
class DitheredFerretStep(Event):
    """One group's release in one step, with a Gaussian dither on fired and silent updates alike.

    Raises `InputError`: a parameter is out of range.
    """

    firing_probability: float
    clip_norm: float
    dither_standard_deviation: float

    def __post_init__(self) -> None:
        self.renyi_nats(2.0)

    def describe(self) -> str:
        """`dithered FERRET step (firing probability 0.01, clip norm 1, dither 0.5)`."""
        return (
            f"dithered FERRET step (firing probability {self.firing_probability:g}, "
            f"clip norm {self.clip_norm:g}, dither {self.dither_standard_deviation:g})"
        )

    def renyi_nats(self, order: float, form: Form = "eq-12") -> float:
        """Renyi divergence in nats of this step by the paper's Eq. 12, or by another `form` of it."""
        return dithered_renyi_nats(
            order=order,
            firing_probability=self.firing_probability,
            clip_norm=self.clip_norm,
            dither_standard_deviation=self.dither_standard_deviation,
            form=form,
        )

    def pair(self) -> GaussianMixturePair:
        """The worst pair: along the public direction, the two neighbours' updates are +C and -C."""
        p, norm = self.firing_probability, self.clip_norm
        parts = [(mean, weight) for mean, weight in ((0.0, 1 - p), (norm, p)) if weight > 0]
        means = tuple(mean for mean, _ in parts)
        weights = tuple(weight for _, weight in parts)
        return GaussianMixturePair(
            p_means=means,
            p_weights=weights,
            q_means=tuple(-mean for mean in means),
            q_weights=weights,
            standard_deviation=self.dither_standard_deviation,
        )


@register("accountant", "ferret")
@dataclass(frozen=True)
class FerretAccountant:
    """FERRET's nats, Eqs. 8, 9 and 13: `nats(run)`; refuses every question about differential privacy."""

    name: str = "ferret"

    def nats(self, event: Event) -> float:
        """Nats of mutual information of a run. Raises `UnsupportedError`: the event is no FERRET run."""
        total = 0.0
        for part, count in event.parts():
            if not isinstance(part, FerretRun):
                raise UnsupportedError(f"{self.name} answers for FERRET runs only, not {part.describe()}")
            total += count * part.nats()
        return total

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Never: the paper's epsilon counts nats. Raises `UnsupportedError`: always."""
        raise UnsupportedError(
            f"{self.name} counts nats of mutual information (Eq. 8), which imply no DP epsilon; ask nats()"
        )


@register("accountant", "ferret_same_epsilon")
@dataclass(frozen=True)
class FerretSameEpsilon:
    """FERRET's nats read as a DP epsilon, as its comparison with DPSGD at the same epsilon reads them."""

    name: str = "ferret_same_epsilon"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Eq. 8's nats, whatever delta and adjacency are.

        Raises `UnsupportedError`: the event is no FERRET run.
        """
        return FerretAccountant(name=self.name).nats(event)


@register("accountant", "ferret_dither")
@dataclass(frozen=True)
class FerretDither:
    """Eq. 12 summed over steps and converted as Mironov (2017, Proposition 3) converts.

    Attributes:
        name: What tables call it.
        form: Which line of section 11.6; see `dithered_renyi_nats`.
        orders: Rényi orders that are searched.
    """

    name: str = "ferret_dither"
    form: Form = "eq-12"
    orders: tuple[float, ...] = ORDERS

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """min over orders of (sum of Eq. 12 over the releases) + ln(1 / delta) / (order - 1).

        Takes `DitheredFerretStep`s and the Gaussian mixture pairs that these stand for; the pair is the whole
        statement, so every adjacency is answered alike. Raises `InputError`: delta is not in (0, 1).
        `UnsupportedError`: an event is neither.
        """
        require_delta(delta)
        steps = [(_dithered(part, self.name), count) for part, count in event.parts()]
        return min(
            sum(count * step.renyi_nats(order, self.form) for step, count in steps)
            - math.log(delta) / (order - 1)
            for order in self.orders
        )


def _dithered(event: Event, accountant: str) -> DitheredFerretStep:
    """The step itself, or the step whose worst pair the event is."""
    if isinstance(event, DitheredFerretStep):
        return event
    if isinstance(event, GaussianMixturePair):
        means = dict(zip(event.p_means, event.p_weights, strict=True))
        others = dict(zip(event.q_means, event.q_weights, strict=True))
        norm = max(map(abs, means))
        fired = {mean: weight for mean, weight in means.items() if mean != 0}
        mirrored = {-mean: weight for mean, weight in means.items()}
        if norm > 0 and len(fired) == 1 and others == mirrored:
            return DitheredFerretStep(
                firing_probability=next(iter(fired.values())),
                clip_norm=norm,
                dither_standard_deviation=event.standard_deviation,
            )
    raise UnsupportedError(
        f"{accountant} answers for dithered FERRET steps and their mixture pairs only, not {event.describe()}"
    )
