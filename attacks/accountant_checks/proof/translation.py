"""Formulas in Z3's terms: polynomials as they are, other functions by facts that they satisfy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from workbench.attacks.accountant_checks.proof.enclosure import Fact, curved_facts, facts
from workbench.attacks.accountant_checks.proof.terms import (
    Application,
    Choice,
    Comparison,
    Connective,
    Constant,
    Formula,
    Operation,
    Power,
    Term,
    Variable,
)

_APPROXIMATIONS = (8, 20, 60)
"""Decimal digits at which an algebraic coordinate is tried as a rational one."""


class Translation:
    """One formula in one Z3 context.

    Args:
        context: Of Z3.
        numbers: From `numbered`: parts that read alike become one symbol.
        points: Breakpoints of each transcendental function, by its number.
        defined: Ask that every term is defined: only in a search for a point that can be confirmed, never in
            a proof, for a term may be guarded by a condition.
        curved: Add `curved_facts`.
    """

    def __init__(
        self,
        context: Any,
        numbers: Mapping[int, int],
        points: Mapping[int, set[Fraction]],
        *,
        defined: bool,
        curved: bool,
    ) -> None:
        import z3

        self._z3 = z3
        self._context = context
        self._numbers = numbers
        self._points = points
        self._defined = defined
        self._curved = curved
        self._side: list[Any] = []
        self._kept: dict[int, Any] = {}
        self._made = 0
        self._symbols: dict[str, Any] = {}

    def constraints(self, formula: Formula, variables: Iterable[Variable]) -> list[Any]:
        """The formula, the domains, and what is known about every function in it."""
        make = {True: self._z3.Int, False: self._z3.Real}
        self._symbols = {v.name: make[v.integer](f"v!{v.name}", self._context) for v in variables}
        main = self.formula(formula)
        domains = []
        for variable in variables:
            symbol = self._real(variable)
            if variable.low is not None:
                domains.append(symbol >= self._number(variable.low))
            if variable.high is not None:
                domains.append(symbol <= self._number(variable.high))
        return [main, *domains, *self._side]

    def formula(self, formula: Formula) -> Any:
        """A formula in Z3's terms."""
        z3 = self._z3
        if isinstance(formula, Comparison):
            left, right = self.term(formula.left), self.term(formula.right)
            return {
                "<=": lambda: left <= right,
                "<": lambda: left < right,
                ">=": lambda: left >= right,
                ">": lambda: left > right,
                "=": lambda: left == right,
            }[formula.operator]()
        assert isinstance(formula, Connective)
        parts = [self.formula(part) for part in formula.parts]
        if not parts:
            return z3.BoolVal(formula.operator == "and", self._context)
        if formula.operator == "not":
            return z3.Not(parts[0])
        return z3.And(*parts) if formula.operator == "and" else z3.Or(*parts)

    def term(self, term: Term) -> Any:
        """A term in Z3's terms, each distinct one once."""
        key = self._numbers[id(term)]
        if key not in self._kept:
            self._kept[key] = self._term(term)
        return self._kept[key]

    def _term(self, term: Term) -> Any:
        match term:
            case Constant(value=value):
                return self._number(value)
            case Variable():
                return self._real(term)
            case Operation(operator="/", left=left, right=right):
                return self._quotient(self.term(left), right)
            case Operation(operator=operator, left=left, right=right):
                a, b = self.term(left), self.term(right)
                return a + b if operator == "+" else a - b if operator == "-" else a * b
            case Power(base=base, exponent=exponent):
                inner = self.term(base)
                power = self._number(Fraction(1))
                for _ in range(exponent):
                    power = power * inner
                return power
            case Choice(condition=condition, then=then, otherwise=otherwise):
                return self._z3.If(self.formula(condition), self.term(then), self.term(otherwise))
            case Application():
                return self._application(term)
            case _:
                raise TypeError(type(term).__name__)

    def _application(self, app: Application) -> Any:
        argument = self.term(app.argument)
        result = self._fresh()
        if app.function == "sqrt":
            root = self._z3.And(result >= 0, result * result == argument)
            self._side.append(self._z3.Implies(argument >= 0, root))
            self._require(argument >= 0)
            return result
        known = facts(app.function, self._points[self._numbers[id(app)]])
        for fact in known + (curved_facts(app.function) if self._curved else []):
            self._side.append(self._fact(fact, argument, result))
        if app.function in ("log", "log_gamma"):
            self._require(argument > 0)
        return result

    def _fact(self, fact: Fact, argument: Any, result: Any) -> Any:
        line = self._number(fact.slope) * argument + self._number(fact.intercept)
        if fact.square:
            away = argument - self._number(fact.centre)
            line = line + self._number(fact.square) * away * away
        relations = {"<=": result <= line, ">=": result >= line, "<": result < line, ">": result > line}
        guards = []
        if fact.low is not None:
            low = self._number(fact.low)
            guards.append(argument > low if fact.open_low else argument >= low)
        if fact.high is not None:
            guards.append(argument <= self._number(fact.high))
        said = relations[fact.relation]
        return self._z3.Implies(self._z3.And(*guards), said) if guards else said

    def _quotient(self, left: Any, right: Term) -> Any:
        if isinstance(right, Constant) and right.value != 0:
            return left * self._number(1 / right.value)
        divisor = self.term(right)
        result = self._fresh()
        self._side.append(self._z3.Implies(divisor != 0, result * divisor == left))
        self._require(divisor != 0)
        return result

    def _require(self, condition: Any) -> None:
        """Ask that a term is defined: only in the search for a counterexample that can be confirmed."""
        if self._defined:
            self._side.append(condition)

    def _number(self, value: Fraction) -> Any:
        return self._z3.RealVal(f"{value.numerator}/{value.denominator}", self._context)

    def _real(self, variable: Variable) -> Any:
        symbol = self._symbols[variable.name]
        return self._z3.ToReal(symbol) if variable.integer else symbol

    def _fresh(self) -> Any:
        self._made += 1
        return self._z3.Real(f"t!{self._made}", self._context)

    def points(self, model: Any) -> list[dict[str, Fraction]]:
        """The model's point, and rational points near it where a coordinate is algebraic."""
        values = {name: model.eval(symbol, model_completion=True) for name, symbol in self._symbols.items()}
        if all(_is_rational(self._z3, value) for value in values.values()):
            return [{name: _rational(value) for name, value in values.items()}]
        return [
            {name: self._near(value, digits) for name, value in values.items()} for digits in _APPROXIMATIONS
        ]

    def value(self, term: Term, model: Any) -> Fraction | None:
        """The model's value of a term, to about 60 digits; None where it has none."""
        value = model.eval(self.term(term), model_completion=True)
        if _is_rational(self._z3, value) or self._z3.is_algebraic_value(value):
            return self._near(value, _APPROXIMATIONS[-1])
        return None

    def _near(self, value: Any, digits: int) -> Fraction:
        return _rational(value if _is_rational(self._z3, value) else value.approx(digits))


def _is_rational(z3: Any, value: Any) -> bool:
    return bool(z3.is_rational_value(value) or z3.is_int_value(value))


def _rational(value: Any) -> Fraction:
    if hasattr(value, "numerator_as_long"):
        return Fraction(value.numerator_as_long(), value.denominator_as_long())
    return Fraction(value.as_long())
