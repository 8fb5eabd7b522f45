"""From a mechanism to pairs of distributions that bound it: one that dominates it, and some that it attains.

A pair dominates a mechanism where no pair of neighbours has a larger hockey-stick divergence at any level, in
either order; composition keeps that, also where later steps are chosen by earlier outputs (Zhu, Dong and Wang
2022, theorem 10). It gives the upper ends. A lower end needs two data sets: the pairs that are listed as
attained are the outputs of the mechanism on neighbours. Where one pair is both, only it is listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from flint import arb

from workbench.accounting.balls.ball import ends, settle, to_arb
from workbench.accounting.events import Composed, Event, FinitePair, require_event
from workbench.accounting.selections import ExponentialMechanism, PrivateStep
from workbench.core.arguments import one_of
from workbench.core.errors import InputError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency

_SHARES = (0.5, 0.55, 0.6, 0.7, 0.8, 0.9)
"""Where in its range the largest loss of a choice between two candidates is put."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What bounds an event under one adjacency.

    Attributes:
        dominating: An event whose own bounds hold for its dominating pair.
        attained: Events that are outputs on pairs of neighbours; none where the dominating pair is attained.

    Raises:
        InputError: one of them is no event.
    """

    dominating: Event
    attained: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        for name, events in (("dominating", (self.dominating,)), ("attained", self.attained)):
            if not all(isinstance(event, Event) for event in events):
                raise InputError(f"{name} must be made of events, got {object_line(getattr(self, name))}")


def reduced(event: Event, adjacency: Adjacency) -> Reduction:
    """The pairs that bound an event.

    Raises:
        InputError: the event or the adjacency is none.
        UnsupportedError: no dominating pair is proved under this adjacency.
    """
    return _reduced(require_event(event), one_of(Adjacency, "adjacency", adjacency))


@lru_cache(maxsize=1024)
def _reduced(event: Event, adjacency: Adjacency) -> Reduction:
    parts = list(event.parts())
    if len(parts) == 1 and parts[0][1] == 1:
        return _step(parts[0][0], adjacency, once=True)
    steps = [(_step(part, adjacency, once=False), count) for part, count in parts]
    candidates = max(len(step.attained) for step, _ in steps)
    if not candidates and all(
        step.dominating is part for (step, _), (part, _) in zip(steps, parts, strict=True)
    ):
        return Reduction(dominating=event)
    dominating = Composed(events=tuple((step.dominating, count) for step, count in steps))
    attained = tuple(
        Composed(events=tuple((_candidate(step, index), count) for step, count in steps))
        for index in range(candidates)
    )
    return Reduction(dominating=dominating, attained=attained)


def _candidate(step: Reduction, index: int) -> Event:
    """The attained pair of a step that joins the others' of this index."""
    return step.attained[min(index, len(step.attained) - 1)] if step.attained else step.dominating


def _step(event: Event, adjacency: Adjacency, *, once: bool) -> Reduction:
    """The pairs of an elementary event; `once` where it is neither repeated nor composed."""
    if isinstance(event, PrivateStep):
        return _private_step(event)
    if isinstance(event, ExponentialMechanism) and not once:
        return _choice(event, adjacency)
    return Reduction(dominating=event)


def _private_step(event: PrivateStep) -> Reduction:
    """The four outputs of Kairouz et al., with exp(epsilon) between two neighbouring floats."""
    low, high = ends(settle(lambda: arb(event.epsilon).exp()))
    lower, upper = (
        _four_outputs(Fraction(growth), Fraction(event.delta)) for growth in (max(low, 1.0), high)
    )
    return Reduction(dominating=upper, attained=() if low == high else (lower,))


def _four_outputs(growth: Fraction, delta: Fraction) -> FinitePair:
    likely, unlikely = (1 - delta) * growth / (1 + growth), (1 - delta) / (1 + growth)
    if not delta:
        return FinitePair(p=(likely, unlikely), q=(unlikely, likely))
    return FinitePair(p=(delta, likely, unlikely, Fraction(0)), q=(Fraction(0), unlikely, likely, delta))


def _choice(event: ExponentialMechanism, adjacency: Adjacency) -> Reduction:
    """Choices between two candidates, of whose scores the record raises one and lowers the other.

    The other records decide the odds r of the first candidate; the record multiplies them by exp(range).
    With it the first candidate has the loss t and the second t - range, for every t in (0, range) by some r.
    A smaller change of the scores gives smaller odds: exp(range) may be rounded down.
    """
    growth = Fraction(ends(settle(lambda: to_arb(event.range_of(adjacency)).exp()))[0])
    pairs = []
    whole = float(event.range_of(adjacency))
    for share in _SHARES:
        # P(first) = (exp(range) - exp(t)) / (exp(range) - 1) makes the first candidate's loss t, about.
        first = Fraction(-math.expm1((share - 1) * whole) / -math.expm1(-whole))
        odds = first / (1 - first) / growth
        pairs.append(FinitePair(p=(first, 1 - first), q=(odds / (1 + odds), 1 / (1 + odds))))
    return Reduction(dominating=event, attained=tuple(pairs))
