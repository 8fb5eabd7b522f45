"""Terms and formulas at a point, in exact rationals and ball arithmetic: the check of what a solver found.

Arithmetic on rationals stays exact; a transcendental function turns its value into a ball (Arb), whose
radius is carried along. Truth has three values: True, False, and None where the balls are too wide to tell,
or where a term is undefined (a division by zero, the logarithm of a negative number). Connectives follow
Kleene: false implies anything, also something undefined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
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
