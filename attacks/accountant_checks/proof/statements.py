"""Statements and their proofs, and invariants of rules that run step after step: budgets, clamps, schedules.

An invariant that holds at the start and survives any one step from any state that meets it holds forever: two
statements for Z3, and together a proof for every number of steps. Where the step does not preserve it, that
alone refutes nothing (the state may be out of reach); a run from the start that breaks it does, and is
searched for, some steps deep.

`prove_by_balls` is branch and bound in ball arithmetic, where Z3 is the wrong tool. A box on which the ball
of the function lies at or above zero is settled; a midpoint at which it lies below zero is a counterexample;
any other box is cut in two. Where the function touches zero inside the domain, the boxes around that point
never settle, and the answer is UNDECIDED, not PROVEN.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from workbench.attacks.accountant_checks.proof.evaluation import (
    ball,
    decimals,
    ends,
    interval,
    truth_at,
    value_at,
)
from workbench.attacks.accountant_checks.proof.solver import search
from workbench.attacks.accountant_checks.proof.terms import (
    And,
    Comparison,
    Formula,
    Implies,
    Term,
    Variable,
    variables_of,
)
from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Assumption, Finding

Evaluator = Callable[[Mapping[str, Fraction]], bool | None]
"""Whether a statement holds at an exact point; None where it cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement to prove: for all values in their domains, the assumptions imply the conclusion.

    Attributes:
        name: What it claims, in words; findings quote it.
        evaluate: A second opinion on a proposed counterexample, from outside the formula (the mechanism
            itself, say). It comes on top of the evaluation of the formula, and both must deny the statement.

    Raises:
        InputError: one variable name stands for two domains.
    """

    name: str
    conclusion: Formula
    assumptions: tuple[Formula, ...] = ()
    evaluate: Evaluator | None = None

    def __post_init__(self) -> None:
        variables_of(self.conclusion, *self.assumptions)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The quantified variables, by name."""
        return variables_of(self.conclusion, *self.assumptions)

    def fails_at(self, point: Mapping[str, Fraction]) -> bool:
        """Whether the point is certainly a counterexample, evaluated in rationals and balls, without Z3."""
        if not all(_in_domain(variable, point) for variable in self.variables):
            return False
        if truth_at(And(*self.assumptions, ~self.conclusion), point) is not True:
            return False
        return self.evaluate is None or self.evaluate(point) is False


def prove(statement: Statement, *, limit_seconds: float = 20) -> Finding:
    """Prove a statement, refute it with a confirmed counterexample, or say why neither was reached.

    Args:
        limit_seconds: Of wall time in all. A resource limit, counted in Z3's own units, goes with it and is
            usually reached first, so that the verdict does not hang on the machine's load.

    Returns:
        PROVEN (for all real or integer values in the domains), REFUTED or UNDECIDED. A statement whose
        assumptions nothing meets is UNDECIDED: it says nothing.

    Raises:
        InputError: the limit is not positive.
    """
    if not limit_seconds > 0:
        raise InputError(f"limit_seconds must be positive, got {limit_seconds:g}")
    if not statement.variables:
        return _closed(statement)
    started = time.monotonic()
    negation = And(*statement.assumptions, ~statement.conclusion)
    answer = search(negation, confirm=statement.fails_at, limit_seconds=limit_seconds)
    how = f"negation searched by Z3 ({answer.logic}), {answer.rounds} rounds of refinement of the enclosures"
    if answer.kind == "found":
        return _refuted(statement, answer.point, how)
    if answer.kind == "open":
        return undecided(statement.name, answer.why, how)
    left = max(1.0, limit_seconds - (time.monotonic() - started))
    return _proven(statement, how, limit_seconds=left)


def holds_under(
    statement: Statement, *, assumption: Assumption, formula: Formula, limit_seconds: float = 20
) -> Finding:
    """Prove a statement; where it is refuted, try it again under an assumption that it does not state.

    Args:
        assumption: The extra assumption, in words, consistent with the statement; see `assume`.
        formula: The same, for the solver.
        limit_seconds: Of each of the two searches.

    Returns:
        PROVEN where the bare statement holds; HOLDS_UNDER, with the bare one's counterexample, where only the
        narrower one does; REFUTED where neither does; UNDECIDED where the bare one is not settled.
    """
    bare = prove(statement, limit_seconds=limit_seconds)
    if bare.verdict is not VerdictKind.REFUTED:
        return bare
    narrower = replace(statement, assumptions=(*statement.assumptions, formula))
    again = prove(narrower, limit_seconds=limit_seconds)
    if again.verdict is not VerdictKind.PROVEN:
        note = f"under the assumption that {assumption.text}: {again.verdict} ({again.summary})"
        return replace(bare, evidence=(*bare.evidence, note))
    return Finding(
        verdict=VerdictKind.HOLDS_UNDER,
        summary=f"{statement.name}: holds under the assumption that {assumption.text}, and fails without it",
        evidence=(f"with it: {again.evidence[0]}", *again.evidence[1:], f"without it: {bare.summary}"),
        counterexample=bare.counterexample,
        assumptions=(assumption,),
    )


def _closed(statement: Statement) -> Finding:
    """A statement without variables: its value in ball arithmetic decides it."""
    held = truth_at(Implies(And(*statement.assumptions), statement.conclusion), {})
    how = "no variables: evaluated in exact rationals and ball arithmetic, up to 2048 bits"
    if held is None:
        return undecided(statement.name, "2048 bits do not tell its sides apart, or a term is undefined", how)
    if not held:
        why = "" if statement.fails_at({}) else "; the second opinion does not confirm that it is false"
        if why:
            return undecided(statement.name, f"evaluated as false{why}", how)
        return _refuted(statement, {}, how)
    return Finding(
        verdict=VerdictKind.PROVEN,
        summary=f"{statement.name}: proven",
        evidence=(how, *_sides(statement, {})),
    )


def _sides(statement: Statement, point: Mapping[str, Fraction]) -> tuple[str, ...]:
    """Both sides of a conclusion that compares two terms, at a point."""
    claim = statement.conclusion
    if not isinstance(claim, Comparison):
        return ()
    left, right = decimals(claim.left, point), decimals(claim.right, point)
    return (f"the conclusion reads {left} {claim.operator} {right}",)


def _in_domain(variable: Variable, point: Mapping[str, Fraction]) -> bool:
    value = point[variable.name]
    if variable.integer and value.denominator != 1:
        return False
    above = variable.low is None or value >= variable.low
    return above and (variable.high is None or value <= variable.high)


def _refuted(statement: Statement, at: Mapping[str, Fraction], how: str) -> Finding:
    point: dict[str, JSON] = {name: str(value) for name, value in sorted(at.items())}
    where = ", ".join(f"{name} = {_short(value)}" for name, value in sorted(at.items()))
    sides = tuple(f"{side}, which is false" for side in _sides(statement, at))
    point["found"] = sides[0] if sides else "the assumptions hold and the conclusion is false"
    again = "the point was evaluated again in exact rationals and ball arithmetic"
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary=f"{statement.name}: " + (f"fails at {where}" if where else "false") + _brief(sides),
        evidence=(how, *((again,) if where else ()), *sides),
        counterexample=point,
    )


def _brief(sides: tuple[str, ...]) -> str:
    return f" ({sides[0]})" if sides else ""


def undecided(name: str, why: str, *evidence: str) -> Finding:
    """The finding that a claim was neither proven nor refuted, and why."""
    summary = f"{name}: undecided; {why}"
    return Finding(verdict=VerdictKind.UNDECIDED, summary=summary, evidence=(*evidence, why))


def _proven(statement: Statement, how: str, *, limit_seconds: float) -> Finding:
    """PROVEN, once the assumptions are known to be met somewhere."""
    met = And(*statement.assumptions)

    def confirm(point: Mapping[str, Fraction]) -> bool:
        return truth_at(met, point) is True

    witness = search(met, confirm=confirm, limit_seconds=limit_seconds)
    if witness.kind == "none":
        return undecided(statement.name, "its assumptions contradict one another, so it says nothing", how)
    domain = ", ".join(map(_domain, statement.variables))
    evidence = [
        how,
        f"the negation is unsatisfiable: no counterexample exists for {domain or 'no variables'}",
    ]
    if statement.assumptions and witness.kind == "found":
        at = ", ".join(f"{name} = {_short(value)}" for name, value in sorted(witness.point.items()))
        evidence.append(f"the assumptions can be met, e.g. at {at}")
    elif statement.assumptions:
        evidence.append(f"no exact point that meets the assumptions was found ({witness.why})")
    return Finding(verdict=VerdictKind.PROVEN, summary=f"{statement.name}: proven", evidence=tuple(evidence))


def _domain(variable: Variable) -> str:
    kind = "integer" if variable.integer else "real"
    low = "-inf" if variable.low is None else variable.low
    high = "inf" if variable.high is None else variable.high
    return f"{kind} {variable.name} in [{low}, {high}]"


def _short(value: Fraction) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{float(value):.12g} (to 12 digits)"


State = Mapping[str, Term]
"""Terms by the names of parameters, state variables and (in a step) inputs."""


@dataclass(frozen=True, kw_only=True)
class TransitionSystem:
    """A rule that runs in steps, and what it is claimed never to break.

    Attributes:
        parameters: Variables that stay fixed during a run.
        state: Variables that a step changes.
        inputs: Variables that are free anew in each step: data, an adversary's or a policy's choice.
        start: State terms at the beginning, from the parameters.
        step: State terms after a step, from parameters, state and inputs.
        invariant: What is to hold in every state.
        guard: What a step presupposes (a step left to take; an input's range beyond its domain).
        inductive: A stronger property to carry the induction along with; true by default.
        assumption: What the parameters have to meet; true by default.
    """

    name: str
    parameters: tuple[Variable, ...] = ()
    state: tuple[Variable, ...]
    inputs: tuple[Variable, ...] = ()
    start: Callable[[State], State]
    step: Callable[[State], State]
    invariant: Callable[[State], Formula]
    guard: Callable[[State], Formula] = lambda _: And()
    inductive: Callable[[State], Formula] = lambda _: And()
    assumption: Callable[[State], Formula] = lambda _: And()


def prove_invariant(system: TransitionSystem, *, unroll: int = 3, limit_seconds: float = 10) -> Finding:
    """Prove an invariant by induction, or look for a run that breaks it.

    Args:
        unroll: Longest run that is searched, in steps.
        limit_seconds: Of each of the at most `unroll` + 3 questions to the solver.

    Returns:
        PROVEN for runs of any length; REFUTED with the inputs of a run that breaks it (`input@step`);
        UNDECIDED where it is not inductive and no short run breaks it.

    Raises:
        InputError: unroll is negative.
    """
    if unroll < 0:
        raise InputError(f"unroll must be >= 0, got {unroll}")
    fixed: dict[str, Term] = {variable.name: variable for variable in system.parameters}
    begin = {**fixed, **system.start(fixed)}
    kept = And(system.invariant(begin), system.inductive(begin))
    base = prove(
        Statement(
            name=f"{system.name}: start", conclusion=kept, assumptions=_stated(system.assumption(begin))
        ),
        limit_seconds=limit_seconds,
    )
    step = prove(_step(system, fixed), limit_seconds=limit_seconds)
    if base.verdict is VerdictKind.PROVEN and step.verdict is VerdictKind.PROVEN:
        evidence = ("induction over the steps, so for runs of any length",)
        notes = (*(f"start: {line}" for line in base.evidence), *(f"step: {line}" for line in step.evidence))
        return Finding(
            verdict=VerdictKind.PROVEN, summary=f"{system.name}: proven", evidence=(*evidence, *notes)
        )
    for length in range(unroll + 1):
        finding = prove(_run(system, fixed, length), limit_seconds=limit_seconds)
        if finding.verdict is VerdictKind.REFUTED:
            return replace(finding, evidence=(f"a run of {length} step(s) breaks it", *finding.evidence))
    why = f"not inductive, and no run of up to {unroll} steps was found to break it ({step.summary})"
    return undecided(system.name, why)


def _stated(*formulas: Formula) -> tuple[Formula, ...]:
    """The formulas that say something."""
    return tuple(formula for formula in formulas if str(formula) != "true")


def _step(system: TransitionSystem, fixed: State) -> Statement:
    before: dict[str, Term] = {**fixed, **{v.name: v for v in (*system.state, *system.inputs)}}
    after = {**fixed, **system.step(before)}
    return Statement(
        name=f"{system.name}: a step",
        conclusion=And(system.invariant(after), system.inductive(after)),
        assumptions=_stated(
            system.assumption(before),
            system.guard(before),
            system.invariant(before),
            system.inductive(before),
        ),
    )


def _run(system: TransitionSystem, fixed: State, length: int) -> Statement:
    """The invariant after a run of this length from the start."""
    now: dict[str, Term] = {**fixed, **system.start(fixed)}
    guards = [system.assumption(now)]
    for index in range(length):
        fresh = {v.name: replace(v, name=f"{v.name}@{index + 1}") for v in system.inputs}
        here = {**now, **fresh}
        guards.append(system.guard(here))
        now = {**fixed, **system.step(here)}
    return Statement(
        name=f"{system.name}: after {length} step(s)",
        conclusion=Implies(And(), system.invariant(now)),
        assumptions=_stated(*guards),
    )


BallFunction = Callable[[Mapping[str, Any]], Any]
"""A function of balls by variable name; returns a ball that contains its values there, or None."""

Box = Mapping[str, tuple[Fraction, Fraction]]


def prove_by_balls(
    name: str,
    function: Term | BallFunction,
    domain: Mapping[str, tuple[int | str | Fraction, int | str | Fraction]] | None = None,
    *,
    limit_boxes: int = 20_000,
    limit_seconds: float = 20,
    precision: int = 128,
) -> Finding:
    """Prove that a function is at least 0 everywhere on a box.

    Args:
        function: A term, or a function of Arb balls that returns an Arb ball.
        domain: Closed finite range of each variable; for a term, by default its variables' own domains.
        limit_boxes: Boxes that may be looked at; reached at the same box on every machine.
        limit_seconds: Of wall time.
        precision: Bits of the balls.

    Returns:
        PROVEN; REFUTED at an exact rational point; or UNDECIDED, with the box that is left.

    Raises:
        InputError: a range is missing, infinite or empty.
    """
    evaluate = _of_term(function) if isinstance(function, Term) else function
    box = _checked(function, domain)
    started = time.monotonic()
    waiting = deque([box])
    looked = 0
    tightest: Fraction | None = None
    while waiting:
        if looked >= limit_boxes or time.monotonic() - started > limit_seconds:
            return _left_open(name, waiting[0], looked, (limit_boxes, limit_seconds))
        box = waiting.popleft()
        looked += 1
        low, _ = _bounds(evaluate, {k: interval(*ends) for k, ends in box.items()}, precision)
        if low is not None and low >= 0:
            tightest = low if tightest is None else min(tightest, low)
            continue
        middle = {key: (a + b) / 2 for key, (a, b) in box.items()}
        for point in (middle, *_corners(box, looked)):
            _, high = _bounds(evaluate, {k: ball(value) for k, value in point.items()}, 2 * precision)
            if high is not None and high < 0:
                return _refuted_in_box(name, point, high, looked)
        if all(a == b for a, b in box.values()):
            return _left_open(name, box, looked, (limit_boxes, limit_seconds))
        waiting.extend(_halves(box))
    margin = "" if tightest is None else f"; smallest lower bound {float(tightest):.3g}"
    return Finding(
        verdict=VerdictKind.PROVEN,
        summary=f"{name}: proven",
        evidence=(f"ball arithmetic at {precision} bits settles all of {looked} boxes{margin}",),
    )


def _of_term(term: Term) -> BallFunction:
    def evaluate(values: Mapping[str, Any]) -> Any:
        return value_at(term, values)

    return evaluate


def _checked(function: Term | BallFunction, domain: Mapping[str, tuple[Any, Any]] | None) -> Box:
    if domain is None:
        if not isinstance(function, Term):
            raise InputError("domain must be given for a function of balls, got none")
        domain = {v.name: (v.low, v.high) for v in variables_of(function)}
    box = {}
    for key, (low, high) in domain.items():
        if low is None or high is None:
            raise InputError(f"domain of {key} must be finite, got [{low}, {high}]")
        box[key] = (Fraction(low), Fraction(high))
        if box[key][0] > box[key][1]:
            raise InputError(f"domain of {key} must not be empty, got [{low}, {high}]")
    return box


def _bounds(
    evaluate: BallFunction, values: Mapping[str, Any], precision: int
) -> tuple[Fraction | None, Fraction | None]:
    import flint

    with flint.ctx.workprec(precision):
        value = evaluate(values)
        if value is None:
            return None, None
        if isinstance(value, int):
            value = Fraction(value)
        return ends(value)


def _corners(box: Box, looked: int) -> list[dict[str, Fraction]]:
    """The lower and the upper corner of the first boxes: where extremes often lie."""
    if looked > 8:
        return []
    return [{key: pair[side] for key, pair in box.items()} for side in (0, 1)]


def _halves(box: Box) -> list[dict[str, tuple[Fraction, Fraction]]]:
    """The box cut across its widest side."""
    widest = max(box, key=lambda key: box[key][1] - box[key][0])
    low, high = box[widest]
    middle = (low + high) / 2
    return [{**box, widest: (low, middle)}, {**box, widest: (middle, high)}]


def _text(box: Box) -> str:
    return ", ".join(f"{key} in [{float(a):.6g}, {float(b):.6g}]" for key, (a, b) in sorted(box.items()))


def _refuted_in_box(name: str, point: Mapping[str, Fraction], high: Fraction, looked: int) -> Finding:
    example: dict[str, JSON] = {key: str(value) for key, value in sorted(point.items())}
    example["found"] = f"at most {float(high):.12g}"
    at = ", ".join(f"{key} = {value}" for key, value in sorted(point.items()))
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary=f"{name}: fails at {at}, where the margin is at most {float(high):.6g}",
        evidence=(f"ball arithmetic at an exact point, after {looked} boxes",),
        counterexample=example,
    )


def _left_open(name: str, box: Box, looked: int, limits: tuple[int, float]) -> Finding:
    why = (
        f"not settled on {_text(box)} after {looked} boxes (limits: {limits[0]} boxes, {limits[1]:g} s); "
        "the margin may be zero there"
    )
    return undecided(name, why)
