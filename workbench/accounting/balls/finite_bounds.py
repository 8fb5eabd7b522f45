"""From bounds in balls to finite pairs of distributions: one that tells no more, and one that tells no less.

A set S of outcomes is a test, with the true-positive rate P(S) and the false-positive rate Q(S). With P(S)
rounded down and Q(S) rounded up it is a point on or below the pair's trade-off curve, which is concave and
joins (0, 0) to (1, 1): so is the concave hull of such points. The hull is the curve of a finite pair, whose
outcomes are its segments; that pair is a post-processing of the true one (Blackwell 1953), alone and in every
composition.

From above: the hockey-stick divergence at level u is convex in u, and 1 at 0. Where it is at most some
numbers at some levels it is at most their convex hull from below, which is the curve of a finite pair, with
the last number as the mass of infinite loss ("connect the dots", Doroshenko et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from flint import arb

from workbench.accounting.balls.ball import ends
from workbench.accounting.events import FinitePair

Point = tuple[Fraction, Fraction]


def pair_below(outcomes: Sequence[tuple[arb, arb]]) -> FinitePair:
    """A finite pair that the outcomes, of probabilities (P, Q) in balls, can be turned into.

    Args:
        outcomes: All of them; the balls' true values sum to 1 on both sides.
    """
    likely = [(p, q) for p, q in outcomes if ends(p)[1] > 0 or ends(q)[1] > 0]
    ordered = sorted(likely, key=_odds, reverse=True)
    inside, outside = list(accumulate(ordered, _added)), list(accumulate(ordered[::-1], _added))[::-1]
    return _pair([_point(test, rest) for test, rest in zip(inside, outside[1:], strict=False)])


def pair_of_tests(tests: Sequence[tuple[arb, arb]]) -> FinitePair:
    """A finite pair that tells no more than a pair with these tests does.

    Args:
        tests: True- and false-positive rate of each.
    """
    return _pair([(_ends(fpr)[1], _ends(tpr)[0]) for tpr, fpr in tests])


def pair_above(levels: Sequence[Fraction], divergences: Sequence[arb]) -> FinitePair:
    """A finite pair that tells no less than one whose divergences at these levels are at most these.

    Args:
        levels: Above 0, rising.
        divergences: Of P from level times Q, each in a ball.
    """
    # A divergence at a level is no larger than at the levels below.
    bounds = accumulate((_ends(ball)[1] for ball in divergences), min)
    points = [(Fraction(0), Fraction(-1)), *((u, -bound) for u, bound in zip(levels, bounds, strict=True))]
    corners: list[Point] = []
    for point in points:
        while len(corners) > 1 and _slope(corners[-2], corners[-1], point) <= 0:
            corners.pop()
        corners.append(point)
    # With losses log(u) at the corners, the curve falls by as much Q-mass as lies above.
    above = [Fraction(1), *((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(corners)), Fraction(0)]
    q = [before - after for before, after in pairwise(above)]
    p = [corner[0] * mass for corner, mass in zip(corners, q, strict=True)]
    return FinitePair(p=(*p, 1 - sum(p, Fraction(0))), q=(*q, Fraction(0)))


def _odds(outcome: tuple[arb, arb]) -> float:
    """About P / (P + Q); decides which tests are looked at, and no bound."""
    p, q = (max(float(ball.mid()), 0.0) for ball in outcome)
    return p / (p + q) if p + q > 0 else 0.5


def _added(first: tuple[arb, arb], second: tuple[arb, arb]) -> tuple[arb, arb]:
    return first[0] + second[0], first[1] + second[1]


def _point(inside: tuple[arb, arb], outside: tuple[arb, arb]) -> Point:
    """(Q(S) rounded up, P(S) rounded down), by the sums over S or by those outside, whichever are closer."""
    (p_low, _), (_, q_high) = (_ends(ball) for ball in inside)
    (_, p_rest), (q_rest, _) = (_ends(ball) for ball in outside)
    return min(q_high, 1 - q_rest), max(p_low, 1 - p_rest)


def _ends(probability: arb) -> tuple[Fraction, Fraction]:
    """Its ends, within [0, 1]."""
    low, high = ends(probability)
    return Fraction(max(low, 0.0)), Fraction(min(high, 1.0))


def _pair(points: Sequence[Point]) -> FinitePair:
    """The pair whose curve is the hull of the points."""
    segments = [(b[1] - a[1], b[0] - a[0]) for a, b in pairwise(_hull(points))]
    return FinitePair(p=tuple(p for p, _ in segments), q=tuple(q for _, q in segments))


def _hull(points: Sequence[Point]) -> list[Point]:
    """The corners of the concave hull of the points and of (0, 0) and (1, 1), from the left."""
    corners: list[Point] = [(Fraction(0), Fraction(0))]
    inner = sorted(point for point in points if point[0] < 1 and point[1] > point[0])
    for point in [*inner, (Fraction(1), Fraction(1))]:
        while len(corners) > 1 and _slope(corners[-2], corners[-1], point) <= 0:
            corners.pop()
        corners.append(point)
    return corners


def _slope(a: Point, b: Point, c: Point) -> Fraction:
    """Positive where b lies above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) - (c[1] - a[1]) * (b[0] - a[0])
