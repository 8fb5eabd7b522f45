"""Neighbours that the sparse vector technique tells apart well, with the probabilities of what it answers.

The queries are `first` ones of one value, and then as many as may be above of another. With the record all of
the first are lower by D and all of the last higher, or only one of both: so a sequence that stays below first
and is above in the end is much more likely. What is counted is how many of the last were above, if all of the
first were below; that is a function of the answers. Given the threshold's noise z, the answers are
independent, so each probability is an integral over z, by Arb's rigorous quadrature between the points where
a Laplace density has its peak. What lies beyond `_REACH` scales of z is between 0 and its mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise

from flint import acb, arb, ctx

from workbench.accounting.balls.ball import to_arb
from workbench.accounting.balls.finite_bounds import pair_below
from workbench.accounting.events import FinitePair

_REACH = 100
_BITS = 96

_PLACES = ((0, 0, 0), (1, 0, 0), (4, 2, 0), (16, 2, 0), (64, 4, 1), (1024, 4, 0))
"""Number of first queries; their height in query scales above -log(number); and that of the last ones.

Heights of the last are in units of the larger scale. By a search in floats over scales, cutoffs and deltas:
the largest epsilon is at one of these, about.
"""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The queries of one neighbour, in the mechanism's units.

    Attributes:
        threshold_scale, query_scale: Of the noises.
        count: How many first queries there are.
        first, last: Heights of the first queries and of the last, above the threshold.
        cutoff: How many last queries there are.
    """

    threshold_scale: Fraction
    query_scale: Fraction
    count: int
    first: Fraction
    last: Fraction
    cutoff: int

    def probabilities(self) -> list[arb]:
        """All first ones below and none of the last above, up to half, more, or all; and the rest."""
        half = self.cutoff // 2
        groups = [
            range(1),
            range(1, half + 1),
            range(half + 1, self.cutoff),
            range(self.cutoff, self.cutoff + 1),
        ]
        with ctx.workprec(_BITS):
            found = [self._integral(partial(self._share, group)) for group in groups if group]
            return [*found, 1 - sum(found, arb(0))]

    def _share(self, counts: range, b: acb) -> acb:
        """The chance that so many of the last are above, each with chance b."""
        cutoff = self.cutoff
        total: acb = sum((math.comb(cutoff, j) * b**j * (1 - b) ** (cutoff - j) for j in counts), acb(0))
        return total

    def _integral(self, share: Callable[[acb], acb]) -> arb:
        """The mean over z of the chance that all first are below, times a function of the last ones'."""
        edge = _REACH * self.threshold_scale
        inside = {place for place in (Fraction(0), self.first, self.last) if abs(place) < edge}
        places = sorted({-edge, *inside, edge})
        total = arb(0).union(arb(-_REACH).exp())
        for low, high in pairwise(places):
            middle = (low + high) / 2

            def inner(z: acb, _: bool, middle: Fraction = middle) -> acb:
                below = 1 - self._above(z, self.first, middle)
                above = self._above(z, self.last, middle)
                return self._density(z, middle) * below**self.count * share(above)

            piece = acb.integral(inner, acb(to_arb(low)), acb(to_arb(high)), abs_tol=arb(2) ** -140)
            total += piece.real
        return total

    def _density(self, z: acb, middle: Fraction) -> acb:
        """Of the threshold's noise at z, on the side of 0 on which the middle is."""
        scale = to_arb(self.threshold_scale)
        return (-z / scale if middle > 0 else z / scale).exp() / (2 * scale)

    def _above(self, z: acb, height: Fraction, middle: Fraction) -> acb:
        """The chance that a query of this height reaches z, on the middle's side of the height."""
        away = (z - to_arb(height)) / to_arb(self.query_scale)
        return (-away).exp() / 2 if middle > height else 1 - away.exp() / 2


def attained_pairs(
    *, threshold_scale: float, query_scale: float, cutoff: int, rises: tuple[int, int], few: bool
) -> list[FinitePair]:
    """Finite pairs that neighbours attain, by the places above.

    Args:
        threshold_scale, query_scale, cutoff: Of the event.
        rises: By how much the first and the last queries are higher with the record than without.
        few: Only the places that count for larger deltas.
    """
    pairs = []
    for count, first, last in _PLACES[1:4] if few else _PLACES:
        heights = (
            query_scale * (first - math.log(max(count, 1))),
            last * max(threshold_scale, query_scale),
        )
        # On a grid, so that with and without differ by no more than they may.
        places = [Fraction(round(height * 2**20), 2**20) for height in heights]
        sides = [
            Answers(
                threshold_scale=Fraction(threshold_scale),
                query_scale=Fraction(query_scale),
                count=count,
                first=places[0] + sign * Fraction(rises[0], 2),
                last=places[1] + sign * Fraction(rises[1], 2),
                cutoff=cutoff,
            ).probabilities()
            for sign in (1, -1)
        ]
        pairs.append(pair_below(list(zip(*sides, strict=True))))
    return pairs
