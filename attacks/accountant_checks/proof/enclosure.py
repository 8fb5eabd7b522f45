"""Transcendental functions as linear facts with rational coefficients, each rigorous on its whole range.

A solver for polynomials never sees exp, log, Phi or lgamma. It sees a fresh variable y for f(u), and facts
that f is known to satisfy: tangents and chords on the side where the curvature makes them bounds, values at
breakpoints where f is monotone. Every coefficient comes from a ball (Arb) and is rounded outwards, so each
fact is a theorem about f; no truncated series stands for a function. More breakpoints give tighter facts:
where the solver's point contradicts f itself, the prover adds one there (incremental linearisation, as in
Cimatti, Griggio, Irfan, Roveri and Sebastiani 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from workbench.attacks.accountant_checks.proof.evaluation import ball, ends, normal_cdf_ball

_BITS = 64
_PRECISION = 192

NATURAL_POINTS: dict[str, tuple[Fraction, ...]] = {
    "exp": (Fraction(0),),
    "log": (Fraction(1),),
    "normal_cdf": (Fraction(0),),
    "log_gamma": (Fraction(1), Fraction(2)),
}
"""Breakpoints that every enclosure has: where the function is rational, and where its curvature turns."""


@dataclass(frozen=True)
class Fact:
    """For low <= u <= high: y relation square * (u - centre)^2 + slope * u + intercept.

    Attributes:
        low, high: Range of the argument; None is unbounded.
        open_low: True where u = low is not included.
        relation: `<=`, `>=`, `<` or `>`.
        slope, intercept: Of the line.
        square, centre: Of the parabola on it; 0 for a straight line.
    """

    relation: str
    slope: Fraction
    intercept: Fraction
    low: Fraction | None = None
    high: Fraction | None = None
    open_low: bool = False
    square: Fraction = Fraction(0)
    centre: Fraction = Fraction(0)


@lru_cache(maxsize=20_000)
def value_bounds(function: str, at: Fraction) -> tuple[Fraction, Fraction]:
    """Rationals just below and just above f(at)."""
    import flint

    with flint.ctx.workprec(_PRECISION):
        low, high = ends(_function(function)(ball(at)))
    if low is None or high is None:
        raise OverflowError(f"{function}({float(at):g}) has no finite enclosure")
    return (low, high) if low == high else (rounded(low, up=False), rounded(high, up=True))


def facts(function: str, points: Iterable[Fraction]) -> list[Fact]:
    """Facts about y = f(u), from breakpoints; every one holds wherever f is defined on its range.

    Args:
        function: `exp`, `log`, `normal_cdf` or `log_gamma`.
        points: Breakpoints; those outside f's domain are passed over.
    """
    inside = sorted({point for point in points if usable(function, point)})
    cells = list(pairwise(inside))
    if function == "exp":
        return _exp_facts(inside, cells)
    if function == "log":
        return _log_facts(inside, cells)
    if function == "normal_cdf":
        return _normal_facts(inside, cells)
    return [fact for cell in cells for fact in _curved(function, cell, convex=True)]


def curved_facts(function: str) -> list[Fact]:
    """Parabolas that touch the function at its natural point: second order with Lagrange's remainder.

    On |u - c| <= r the remainder lies between half the smallest and half the largest second derivative there,
    times (u - c)^2. Lines cannot separate two functions that touch; these can. For exp at 0 and log at 1,
    where value and slope are rational; nothing for the others.
    """
    parabolas: list[Fact] = []
    unit, zero = Fraction(1), Fraction(0)
    for radius in (Fraction(1, 64), Fraction(1, 8), Fraction(1, 2), Fraction(2)):
        if function == "exp":
            least, most = value_bounds("exp", -radius)[0] / 2, value_bounds("exp", radius)[1] / 2
            parabolas.append(Fact(">=", unit, unit, low=-radius, high=radius, square=least, centre=zero))
            parabolas.append(Fact("<=", unit, unit, low=-radius, high=radius, square=most, centre=zero))
        elif function == "log" and radius < 1:
            low, high = 1 - radius, 1 + radius
            most, least = -1 / (2 * high**2), -1 / (2 * low**2)
            parabolas.append(Fact("<=", unit, -unit, low=low, high=high, square=most, centre=unit))
            parabolas.append(Fact(">=", unit, -unit, low=low, high=high, square=least, centre=unit))
    return parabolas


def usable(function: str, point: Fraction) -> bool:
    """Whether a breakpoint lies in the domain, and where the value is of sensible size."""
    if function == "exp":
        return abs(point) <= 1000
    if function == "normal_cdf":
        return abs(point) <= 40
    return 0 < point < Fraction(2) ** 2000


def rounded(value: Fraction, *, up: bool) -> Fraction:
    """A dyadic rational of about 64 significant bits, at or beyond the value on the side asked for."""
    if value == 0:
        return value
    shift = _BITS - (abs(value.numerator).bit_length() - value.denominator.bit_length())
    scaled = value * Fraction(2) ** shift
    return Fraction(math.ceil(scaled) if up else math.floor(scaled)) / Fraction(2) ** shift


def _function(function: str) -> Callable[[Any], Any]:
    return {
        "exp": lambda x: x.exp(),
        "log": lambda x: x.log(),
        "normal_cdf": normal_cdf_ball,
        "log_gamma": lambda x: x.lgamma(),
    }[function]


@lru_cache(maxsize=20_000)
def _slope_bounds(function: str, at: Fraction) -> tuple[Fraction, Fraction]:
    """Rationals below and above f'(at)."""
    import flint

    with flint.ctx.workprec(_PRECISION):
        x = ball(at)
        density = (-x * x / 2).exp() / (2 * flint.arb.pi()).sqrt()
        low, high = ends(density if function == "normal_cdf" else x.digamma())
    if low is None or high is None:
        raise OverflowError(f"the slope of {function} at {float(at):g} has no finite enclosure")
    return rounded(low, up=False), rounded(high, up=True)


def _chord(function: str, cell: tuple[Fraction, Fraction], *, above: bool) -> Fact:
    """The chord over a cell, its ends shifted outwards: above a convex function, or below a concave one."""
    a, b = cell
    side = 1 if above else 0
    left, right = value_bounds(function, a)[side], value_bounds(function, b)[side]
    slope = (right - left) / (b - a)
    return Fact("<=" if above else ">=", slope, left - slope * a, low=a, high=b)


def _tangent(function: str, at: Fraction, cell: tuple[Fraction, Fraction], *, below: bool) -> Fact:
    """The tangent at `at`, valid on the cell: below a convex function, or above a concave one.

    The slope is only known within its bounds; over the cell that moves the line by at most the error times
    the cell's width, which the intercept gives away.
    """
    steep = _slope_bounds(function, at)
    slope = (steep[0] + steep[1]) / 2
    slack = (steep[1] - steep[0]) * (cell[1] - cell[0])
    value = value_bounds(function, at)[0] - slack if below else value_bounds(function, at)[1] + slack
    return Fact(">=" if below else "<=", slope, value - slope * at, low=cell[0], high=cell[1])


def _curved(function: str, cell: tuple[Fraction, Fraction], *, convex: bool) -> list[Fact]:
    """Chord and both end tangents of a cell on which the curvature has one sign."""
    return [
        _chord(function, cell, above=convex),
        _tangent(function, cell[0], cell, below=convex),
        _tangent(function, cell[1], cell, below=convex),
    ]


def _exp_facts(points: list[Fraction], cells: list[tuple[Fraction, Fraction]]) -> list[Fact]:
    known = [Fact(">", Fraction(0), Fraction(0))]
    for point in points:
        # For every slope m > 0: exp(u) >= m (u - log m + 1), with equality at u = log m.
        slope = value_bounds("exp", point)[0]
        top = value_bounds("log", slope)[1]
        known.append(Fact(">=", slope, slope * (1 - top)))
        known.append(Fact("<=", Fraction(0), value_bounds("exp", point)[1], high=point))
    return known + [_chord("exp", cell, above=True) for cell in cells]


def _log_facts(points: list[Fraction], cells: list[tuple[Fraction, Fraction]]) -> list[Fact]:
    known = []
    for point in points:
        low, high = value_bounds("log", point)
        known.append(Fact("<=", 1 / point, high - 1, low=Fraction(0), open_low=True))
        known.append(Fact(">=", Fraction(0), low, low=point))
    return known + [_chord("log", cell, above=False) for cell in cells]


def _normal_facts(points: list[Fraction], cells: list[tuple[Fraction, Fraction]]) -> list[Fact]:
    known = [Fact(">", Fraction(0), Fraction(0)), Fact("<", Fraction(0), Fraction(1))]
    for point in points:
        low, high = value_bounds("normal_cdf", point)
        known.append(Fact("<=", Fraction(0), high, high=point))
        known.append(Fact(">=", Fraction(0), low, low=point))
    for cell in cells:
        if cell[1] <= 0 or cell[0] >= 0:
            known.extend(_curved("normal_cdf", cell, convex=cell[1] <= 0))
    return known
