"""What grids leave open: compositions of so many steps that rounding each one's losses adds up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from flint import arb, ctx

from workbench.accounting.balls.ball import to_arb
from workbench.accounting.balls.central_limit import PRECISION, Atoms, Part, Ramp, SampledRamp, Tilted
from workbench.accounting.events import Event, FinitePair, Laplace, RandomisedResponse
from workbench.accounting.grid.composition import Composition
from workbench.accounting.samples import SubsampledLaplace
from workbench.interfaces import Adjacency

FEWEST = 100
"""Steps from which on the error of the central limit may be small."""

_MOST_OUTPUTS = 100
"""Of a finite pair."""

Question = Literal["epsilon", "delta", "tpr"]


def known_parts(parts: Sequence[tuple[Event, int]], adjacency: Adjacency) -> list[tuple[Part, int]] | None:
    """The losses of each event, exactly; None where there are few steps, or events of another kind."""
    if sum(count for _, count in parts) < FEWEST:
        return None
    known = [(made, count) for part, count in parts if (made := _part(part, adjacency)) is not None]
    return known if len(known) == len(parts) else None


def ends_of(
    known: Sequence[tuple[Part, int]],
    squares: Sequence[Fraction],
    composition: Composition,
    *,
    question: Question,
    value: float,
) -> tuple[float, float] | None:
    """Bounds over the orders of the pair; None where a moment is not known well enough.

    Args:
        known: Losses with their counts, in the order of the composition's steps.
        squares: mu^2 of each Gaussian mechanism that is composed with them, as the composition's last step.
        composition: Of them.
        question: What is asked at `value`: epsilon at a delta, delta at an epsilon, or the true-positive rate
            at a false-positive rate.
    """
    lower, upper = 0.0, 0.0
    for mirrored in composition.orders:
        cumulants = composition.cumulants[mirrored]
        theta = {
            "epsilon": cumulants.at_delta,
            "delta": cumulants.at_epsilon,
            "tpr": cumulants.at_fpr,
        }[question](value).theta
        guesses = [(mean, math.sqrt(variance)) for mean, variance in cumulants.each(theta)[: len(known)]]
        if not all(spread > 0 for _, spread in guesses):
            return None
        with ctx.workprec(PRECISION):
            square = sum(map(to_arb, squares), arb(0))
            tilted = Tilted.of(known, square, theta, guesses, mirrored=mirrored)
            if tilted is None:
                return None
            ask = {"epsilon": tilted.epsilon_ends, "delta": tilted.delta_ends, "tpr": tilted.tpr_ends}
            low, high = ask[question](value)
        lower, upper = max(lower, low), max(upper, high)
    return lower, upper


def _part(event: Event, adjacency: Adjacency) -> Part | None:
    """The losses of one step, exactly; None for other events."""
    if isinstance(event, Laplace):
        return Ramp(Fraction(2 if adjacency is Adjacency.REPLACE_ONE else 1) / Fraction(event.scale))
    if isinstance(event, SubsampledLaplace) and event.sampling_probability < 1:
        c, q = 1 / Fraction(event.scale), Fraction(event.sampling_probability)
        return SampledRamp(c, q, replace_one=adjacency is Adjacency.REPLACE_ONE)
    pair = event.pair() if isinstance(event, RandomisedResponse) else event
    if isinstance(pair, FinitePair) and len(pair.p) <= _MOST_OUTPUTS:
        both = list(zip(pair.p, pair.q, strict=True))
        return Atoms(both) if all(p > 0 and q > 0 for p, q in both) else None
    return None
