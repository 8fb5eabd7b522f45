"""Terms and formulas at a point, in exact rationals and ball arithmetic: the check of what a solver found.

Arithmetic on rationals stays exact; a transcendental function turns its value into a ball (Arb), whose
radius is carried along. Truth has three values: True, False, and None where the balls are too wide to tell,
or where a term is undefined (a division by zero, the logarithm of a negative number). Connectives follow
Kleene: false implies anything, also something undefined.

`facts` are linear ones about transcendental functions, with rational coefficients, each rigorous on its whole
range. A solver for polynomials never sees exp, log, Phi or lgamma: it sees a fresh variable y for f(u), and
tangents and chords on the side where the curvature makes them bounds, and values at breakpoints where f is
monotone. Every coefficient comes from a ball and is rounded outwards; no truncated series stands for a
function. Where the solver's point contradicts f itself, the prover adds a breakpoint there (incremental
linearisation, as in Cimatti, Griggio, Irfan, Roveri and Sebastiani 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from workbench.attacks.accountant_checks.proof.terms import (
    Application,
    Choice,
    Comparison,
    Connective,
    Constant,
    Expression,
    Formula,
    Operation,
    Power,
    Term,
    Variable,
)
from workbench.core.errors import InputError

PRECISIONS = (128, 512, 2048)
"""Bits of the balls, tried in turn until the truth is settled."""

_MOST_BITS = 1 << 20
"""Exact rationals larger than this are rounded to balls."""

Value = Any
"""A `Fraction`, an Arb ball, or None for undefined."""


def ball(value: Fraction) -> Any:
    """A ball around a rational, at the current precision."""
    import flint

    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def interval(low: Fraction, high: Fraction) -> Any:
    """A ball that contains [low, high]."""
    return ball(low) if low == high else ball(low).union(ball(high))


def ends(value: Any) -> tuple[Fraction | None, Fraction | None]:
    """Rationals below and above everything in a ball; None for an infinite end."""
    if isinstance(value, Fraction):
        return value, value
    return _end(value.lower(), up=False), _end(value.upper(), up=True)


def _end(value: Any, *, up: bool) -> Fraction | None:
    """The exact rational that an end of a ball is; outwards, where that is absurdly small."""
    if not value.is_finite():
        return None
    mantissa, exponent = (int(part) for part in value.mid().man_exp())
    size = exponent + abs(mantissa).bit_length()
    if size > _MOST_BITS:
        return None
    if size < -_MOST_BITS and mantissa:
        outwards = (mantissa > 0) == up
        return Fraction(1 if up else -1, 1 << _MOST_BITS) if outwards else Fraction(0)
    return Fraction(mantissa) * Fraction(2) ** exponent


def truth_at(formula: Formula, point: Mapping[str, Fraction]) -> bool | None:
    """Whether a formula holds at an exact point; None where 2048 bits do not tell, or it is undefined."""
    import flint

    for bits in PRECISIONS:
        with flint.ctx.workprec(bits):
            held = truth(formula, point)
        if held is not None:
            return held
    return None


def decimals(term: Term, point: Mapping[str, Fraction], digits: int = 15) -> str:
    """The value of a term at an exact point, for people: exact where short, else rounded decimals."""
    import flint

    with flint.ctx.workprec(PRECISIONS[0] * 2):
        value = value_at(term, point)
        if value is None:
            return "undefined"
        if isinstance(value, Fraction):
            text = str(value)
            return text if len(text) <= digits + 5 else str(ball(value).str(digits, radius=False))
        return str(value.str(digits, radius=False))


def truth(formula: Formula, values: Mapping[str, Value]) -> bool | None:
    """Truth at the current precision, where each variable is a rational or a ball (then: throughout it)."""
    return _Evaluator(values).truth(formula)


def value_at(term: Term, values: Mapping[str, Value]) -> Value:
    """Value at the current precision: exact, a ball that contains it, or None where it may be undefined."""
    return _Evaluator(values).value(term)


class _Evaluator:
    """One point or box; the values of shared parts are kept."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self._kept: dict[int, tuple[Expression, Value]] = {}

    def truth(self, formula: Formula) -> bool | None:
        """Whether the formula holds; None where that cannot be told."""
        if isinstance(formula, Comparison):
            left, right = self.value(formula.left), self.value(formula.right)
            return None if left is None or right is None else _compare(formula.operator, left, right)
        if not isinstance(formula, Connective):
            raise InputError(f"formula must be a comparison or a connective, got {type(formula).__name__}")
        parts = (self.truth(part) for part in formula.parts)
        if formula.operator == "not":
            inner = next(parts)
            return None if inner is None else not inner
        deciding = formula.operator == "or"
        held: bool | None = not deciding
        for part in parts:
            if part is deciding:
                return deciding
            if part is None:
                held = None
        return held

    def value(self, term: Term) -> Value:
        kept = self._kept.get(id(term))
        if kept is None:
            kept = self._kept[id(term)] = (term, self._value(term))
        return kept[1]

    def _value(self, term: Term) -> Value:
        match term:
            case Constant(value=value):
                return value
            case Variable(name=name):
                if name not in self._values:
                    raise InputError(f"point must give every variable, got none for {name!r}")
                return self._values[name]
            case Operation(operator=operator, left=left, right=right):
                return _operate(operator, self.value(left), self.value(right))
            case Power(base=base, exponent=exponent):
                return _power(self.value(base), exponent)
            case Application(function=function, argument=argument):
                inner = self.value(argument)
                return None if inner is None else _apply(function, inner, _starts_at_zero(argument))
            case Choice():
                return self._choice(term)
            case _:
                raise InputError(f"term is of an unknown kind: {type(term).__name__}")

    def _choice(self, term: Choice) -> Value:
        condition = self.truth(term.condition)
        if condition is not None:
            return self.value(term.then if condition else term.otherwise)
        then, otherwise = self.value(term.then), self.value(term.otherwise)
        if then is None or otherwise is None:
            return None
        return _as_ball(then).union(_as_ball(otherwise))


def _starts_at_zero(term: Term) -> bool:
    """Whether a term is a variable that is never negative, so that rounding below 0 means nothing."""
    return isinstance(term, Variable) and term.low is not None and term.low >= 0


def _as_ball(value: Value) -> Any:
    return ball(value) if isinstance(value, Fraction) else value


def _compare(operator: str, left: Value, right: Value) -> bool | None:
    """A comparison of two rationals or balls; None where balls overlap."""
    if not (isinstance(left, Fraction) and isinstance(right, Fraction)):
        left, right = _as_ball(left), _as_ball(right)
    pairs = {
        "<=": (left <= right, left > right),
        "<": (left < right, left >= right),
        ">=": (left >= right, left < right),
        ">": (left > right, left <= right),
        "=": (left <= right and left >= right, left < right or left > right),
    }
    yes, no = pairs[operator]
    return True if yes else False if no else None


def _operate(operator: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    exact = isinstance(left, Fraction) and isinstance(right, Fraction)
    if not exact:
        left, right = _as_ball(left), _as_ball(right)
    if operator == "+":
        return _short(left + right)
    if operator == "-":
        return _short(left - right)
    if operator == "*":
        return _short(left * right)
    if (exact and right == 0) or (not exact and right.contains(0)):
        return None
    return _short(left / right)


def _power(base: Value, exponent: int) -> Value:
    if base is None:
        return None
    if isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        return base**exponent if bits * exponent < _MOST_BITS else ball(base) ** exponent
    return base**exponent


def _short(value: Value) -> Value:
    """The value; a ball around it where it is a rational of absurd length."""
    if (
        isinstance(value, Fraction)
        and value.denominator.bit_length() + value.numerator.bit_length() > _MOST_BITS
    ):
        return ball(value)
    return value


def _apply(function: str, argument: Value, nonnegative: bool) -> Value:
    """A function of `terms.FUNCTIONS`; exact where that is easy, None where it may be undefined."""
    if isinstance(argument, Fraction):
        exact = _exact(function, argument)
        if exact is not None:
            return exact
        argument = ball(argument)
    if function == "sqrt":
        result = (argument.nonnegative_part() if nonnegative else argument).sqrt()
    elif function == "exp":
        result = argument.exp()
    elif function == "normal_cdf":
        result = normal_cdf_ball(argument)
    elif not argument > 0:
        return None
    else:
        result = argument.log() if function == "log" else argument.lgamma()
    return None if result.is_nan() else result


def normal_cdf_ball(argument: Any) -> Any:
    """Phi of a ball; monotone, so the images of its ends suffice."""
    import flint

    root = flint.arb(2).sqrt()
    low = (-argument.lower() / root).erfc() / 2
    high = (-argument.upper() / root).erfc() / 2
    return low.union(high)


def _exact(function: str, argument: Fraction) -> Fraction | None:
    """The function's value where it is a rational that is known without computing."""
    known = {("exp", 0): 1, ("log", 1): 0, ("log_gamma", 1): 0, ("log_gamma", 2): 0}
    if argument.denominator == 1 and (function, argument.numerator) in known:
        return Fraction(known[function, argument.numerator])
    if function == "normal_cdf" and argument == 0:
        return Fraction(1, 2)
    if function == "sqrt" and argument >= 0:
        roots = math.isqrt(argument.numerator), math.isqrt(argument.denominator)
        if roots[0] ** 2 == argument.numerator and roots[1] ** 2 == argument.denominator:
            return Fraction(*roots)
    return None


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
    """A bound for low <= u <= high: y relation square * (u - centre)^2 + slope * u + intercept.

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
