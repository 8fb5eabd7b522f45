"""Statements and their proofs, and invariants of rules that run step after step: budgets, clamps, schedules.

An invariant that holds at the start and survives any one step from any state that meets it holds forever: two
statements for Z3, and together a proof for every number of steps. Where the step does not preserve it, that
alone refutes nothing (the state may be out of reach); a run from the start that breaks it does, and is
searched for, some steps deep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from workbench.attacks.accountant_checks.proof.evaluation import decimals, truth_at
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
from workbench.interfaces.findings import Finding

Evaluator = Callable[[Mapping[str, Fraction]], bool | None]
"""Whether a statement holds at an exact point; None where it cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """For all values of the variables in their domains: the assumptions imply the conclusion.

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
    statement: Statement, *, assumption: str, formula: Formula, limit_seconds: float = 20
) -> Finding:
    """Prove a statement; where it is refuted, try it again under an assumption that it does not state.

    Args:
        assumption: The extra assumption, in words.
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
        note = f"under the assumption that {assumption}: {again.verdict} ({again.summary})"
        return replace(bare, evidence=(*bare.evidence, note))
    return Finding(
        verdict=VerdictKind.HOLDS_UNDER,
        summary=f"{statement.name}: holds under the assumption that {assumption}, and fails without it",
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
