"""Formulas for Z3: a search for a point at which a formula holds, in rounds of ever tighter enclosures.

Polynomial parts go to Z3 as they are, square roots and quotients by their defining equations, transcendental
functions by the facts of `_proof_enclosure`. "Unsatisfiable" is then a proof. "Satisfiable" is only a
proposal: the point is evaluated again without Z3, and where a function's stand-in strayed from the function,
a breakpoint is added there and the search goes on. Every search has its own Z3 context, so searches in
several threads do not meet.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard

from workbench.attacks.accountant_checks.proof.enclosure import NATURAL_POINTS, curved_facts, usable
from workbench.attacks.accountant_checks.proof.evaluation import ends, interval, value_at
from workbench.attacks.accountant_checks.proof.terms import (
    Application,
    Constant,
    Expression,
    Formula,
    Operation,
    Power,
    numbered,
    variables_of,
    walk,
)
from workbench.attacks.accountant_checks.proof.translation import Translation

_MOST_ROUNDS = 100
_STRAIGHT_ROUNDS = 25
"""Of refinement with straight lines, where parabolas can follow."""

_UNITS_A_SECOND = {"QF_NRA": 600_000, "general": 2_000_000}
"""Z3's resource units that usually take less than a second; counted, so that verdicts do not hang on load."""

_DENOMINATORS = (1, 10, 1000, 1_000_000)
"""Largest denominators at which simple rationals near the solver's point are tried."""


@dataclass(frozen=True)
class Search:
    """What a search came to.

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
        formula: What is looked for.
        confirm: Evaluates a proposed point without Z3; only what it confirms is `found`.
        limit_seconds: Of wall time; the resource limit that goes with it is usually reached first.
    """
    problem = _Problem(formula)
    curved = any(curved_facts(app.function) for app in problem.apps.values())
    share = limit_seconds / 2 if curved else limit_seconds
    found = _rounds(problem, confirm, share, most=_STRAIGHT_ROUNDS if curved else _MOST_ROUNDS)
    if found.kind != "open" or not curved:
        return found
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

    found = set(NATURAL_POINTS[app.function])
    box: dict[str, Any] = {}
    with flint.ctx.workprec(64):
        for variable in variables_of(app.argument):
            if variable.low is None or variable.high is None:
                return found
            box[variable.name] = interval(variable.low, variable.high)
        value = value_at(app.argument, box)
        if value is None:
            return found
        low, high = ends(value)
    for end in (low, high, None if low is None or high is None else (low + high) / 2):
        if end is not None and usable(app.function, end):
            found.add(end)
    return found


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
