"""Formulas for Z3: a search for a point at which a formula holds, in rounds of ever tighter enclosures.

Polynomial parts go to Z3 as they are, square roots and quotients by their defining equations, transcendental
functions by the facts of `enclosure`. "Unsatisfiable" is then a proof. "Satisfiable" is only a
proposal: the point is evaluated again without Z3, and where a function's stand-in strayed from the function,
a breakpoint is added there and the search goes on. Every search has its own Z3 context, so searches in
several threads do not meet.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard

from workbench.attacks.accountant_checks.proof.evaluation import (
    NATURAL_POINTS,
    Fact,
    curved_facts,
    ends,
    facts,
    interval,
    usable,
    value_at,
)
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
    numbered,
    variables_of,
    walk,
)

_MOST_ROUNDS = 100
_STRAIGHT_ROUNDS = 25
"""Of refinement with straight lines, where parabolas can follow."""

_UNITS_A_SECOND = {"QF_NRA": 600_000, "general": 2_000_000}
"""Z3's resource units that usually take less than a second; counted, so that verdicts do not hang on load."""

_DENOMINATORS = (1, 10, 1000, 1_000_000)
"""Largest denominators at which simple rationals near the solver's point are tried."""


@dataclass(frozen=True)
class Search:
    """The result of a search for a point where a formula holds.

    Attributes:
        kind: `none` (proven: no such point), `found` (at `point`, confirmed) or `open`.
        point: Where the formula holds.
        why: For `open`: the reason, with the limit that was reached.
        rounds: Refinement rounds.
        logic: Which of Z3's solvers answered.
    """

    kind: str
    point: Mapping[str, Fraction]
    why: str
    rounds: int
    logic: str


Confirm = Callable[[Mapping[str, Fraction]], bool]


def search(formula: Formula, *, confirm: Confirm, limit_seconds: float) -> Search:
    """A point of the variables' domains at which the formula holds, or a proof that there is none.

    Straight lines are tried first. Where they do not settle it, and a function has parabolas to offer, these
    are added (`curved_facts`).

    Args:
        confirm: Evaluates a proposed point without Z3; only what it confirms is `found`.
        limit_seconds: Of wall time; the resource limit that goes with it is usually reached first.
    """
    problem = _Problem(formula)
    curved = any(curved_facts(app.function) for app in problem.apps.values())
    share = limit_seconds / 2 if curved else limit_seconds
    straight = _rounds(problem, confirm, share, most=_STRAIGHT_ROUNDS if curved else _MOST_ROUNDS)
    if straight.kind != "open" or not curved:
        return straight
    return _rounds(problem, confirm, share, most=_MOST_ROUNDS, curved=True)


class _Problem:
    """A formula, its variables, and the breakpoints of its transcendental functions so far."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.variables = variables_of(formula)
        self.numbers = numbered(formula)
        self.apps: dict[int, Application] = {
            self.numbers[id(node)]: node for node in walk(formula) if _is_transcendental(node)
        }
        self.points = {key: _first_points(app) for key, app in self.apps.items()}


def _rounds(
    problem: _Problem, confirm: Confirm, limit_seconds: float, *, most: int, curved: bool = False
) -> Search:
    """Solve, evaluate, refine, until there is an answer or a limit."""
    import z3

    logic = "QF_NRA" if curved else _logic(problem.formula)
    if any(variable.integer for variable in problem.variables):
        logic = "general"
    budget = int(limit_seconds * _UNITS_A_SECOND[logic])
    deadline = time.monotonic() + limit_seconds
    limit = f"within {limit_seconds:g} s and {budget} units of Z3's resource limit"
    strict = False
    for done in range(most):
        left = deadline - time.monotonic()
        if left <= 0 or budget <= 0:
            return Search("open", {}, f"not settled {limit}, after {done} rounds of refinement", done, logic)
        context = z3.Context()
        solver = z3.SolverFor(logic, ctx=context) if logic == "QF_NRA" else z3.Solver(ctx=context)
        solver.set("timeout", max(1, int(left * 1000)))
        solver.set("rlimit", budget)
        translation = Translation(context, problem.numbers, problem.points, defined=strict, curved=curved)
        solver.add(*translation.constraints(problem.formula, problem.variables))
        answer = solver.check()
        budget -= _spent(solver)
        if answer == z3.unsat and not strict:
            return Search("none", {}, "", done, logic)
        if answer == z3.unsat:
            return Search("open", {}, "only points at which a term is undefined remain", done, logic)
        if answer == z3.unknown:
            reason = solver.reason_unknown() or "unknown"
            return Search("open", {}, f"Z3 answers unknown ({reason}) {limit}, round {done}", done, logic)
        model = solver.model()
        for point in _proposals(translation.points(model)):
            if confirm(point):
                return Search("found", point, "", done, logic)
        moved = _refine(translation, model, problem, done)
        if not moved and strict:
            why = "the solver's model is not confirmed by independent evaluation"
            return Search("open", {}, why, done, logic)
        strict = strict or not moved
    return Search("open", {}, f"not settled after {most} rounds of refinement", most, logic)


def _proposals(points: list[dict[str, Fraction]]) -> Iterator[dict[str, Fraction]]:
    """The solver's points, simple rationals near the first before them: easier to read, and as good."""
    for most in _DENOMINATORS:
        yield {name: value.limit_denominator(most) for name, value in points[0].items()}
    yield from points


def _logic(formula: Formula) -> str:
    """Z3's solver for polynomials over the reals, or its general one where all is linear."""
    nonlinear = any(
        isinstance(node, Power)
        or (isinstance(node, Application) and node.function == "sqrt")
        or (isinstance(node, Operation) and node.operator in "*/" and not _linear(node))
        for node in walk(formula)
    )
    return "QF_NRA" if nonlinear else "general"


def _is_transcendental(node: Expression) -> TypeGuard[Application]:
    return isinstance(node, Application) and node.function != "sqrt"


def _linear(node: Operation) -> bool:
    scaled = isinstance(node.left, Constant) and node.operator == "*"
    return scaled or isinstance(node.right, Constant)


def _spent(solver: Any) -> int:
    """Resource units that the last check used."""
    statistics = solver.statistics()
    return int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else 1  # noqa: SIM118


def _first_points(app: Application) -> set[Fraction]:
    """Where an enclosure starts: the natural points, and the ends and middle of the argument's range."""
    import flint

    points = set(NATURAL_POINTS[app.function])
    box: dict[str, Any] = {}
    with flint.ctx.workprec(64):
        for variable in variables_of(app.argument):
            if variable.low is None or variable.high is None:
                return points
            box[variable.name] = interval(variable.low, variable.high)
        value = value_at(app.argument, box)
        if value is None:
            return points
        low, high = ends(value)
    for end in (low, high, None if low is None or high is None else (low + high) / 2):
        if end is not None and usable(app.function, end):
            points.add(end)
    return points


def _refine(translation: Translation, model: Any, problem: _Problem, done: int) -> bool:
    """Add a breakpoint to each function where the model's argument is; False where none is new."""
    moved = False
    for key, app in problem.apps.items():
        at = translation.value(app.argument, model)
        if at is None:
            continue
        known = problem.points[key]
        near = _between(at, sorted(known), 12 + 2 * done)
        if usable(app.function, near) and near not in known:
            known.add(near)
            moved = True
    return moved


def _between(at: Fraction, known: list[Fraction], bits: int) -> Fraction:
    """Where to cut: near the argument; in the middle of its cell where it lies close to one of the ends."""
    index = bisect(known, at)
    if 0 < index < len(known):
        low, high = known[index - 1], known[index]
        if min(at - low, high - at) < (high - low) / 8:
            return (low + high) / 2
    return _simple(at, bits)


def _simple(value: Fraction, bits: int) -> Fraction:
    """A dyadic rational of few bits near the value."""
    if value == 0:
        return value
    scale = Fraction(2) ** (bits - abs(value.numerator).bit_length() + value.denominator.bit_length())
    return Fraction(round(value * scale)) / scale


_APPROXIMATIONS = (8, 20, 60)
"""Decimal digits at which an algebraic coordinate is tried as a rational one."""


class Translation:
    """The translation of a formula into a Z3 context.

    Args:
        numbers: From `numbered`: parts that read alike become one symbol.
        points: Breakpoints of each transcendental function, by its number.
        defined: Ask that every term is defined: only in a search for a point that can be confirmed, never in
            a proof, for a term may be guarded by a condition.
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
        """The same formula as an expression of the solver Z3."""
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
