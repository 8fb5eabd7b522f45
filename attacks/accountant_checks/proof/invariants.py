"""Invariants of rules that run step after step: budgets, clamps, schedules.

An invariant that holds at the start and survives any one step from any state that meets it holds forever: two
statements for Z3, and together a proof for every number of steps. Where the step does not preserve it, that
alone refutes nothing (the state may be out of reach); a run from the start that breaks it does, and is
searched for, some steps deep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from workbench.attacks.accountant_checks.proof.statements import Statement, prove
from workbench.attacks.accountant_checks.proof.terms import And, Formula, Implies, Term, Variable
from workbench.core.errors import InputError
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

State = Mapping[str, Term]
"""Terms by the names of parameters, state variables and (in a step) inputs."""


@dataclass(frozen=True, kw_only=True)
class TransitionSystem:
    """A rule that runs in steps, and what it is claimed never to break.

    Attributes:
        name: What is claimed, in words.
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
        system: See `TransitionSystem`.
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
        notes = (
            *(f"start: {line}" for line in base.evidence),
            *(f"step: {line}" for line in step.evidence),
        )
        return Finding(
            verdict=VerdictKind.PROVEN, summary=f"{system.name}: proven", evidence=(*evidence, *notes)
        )
    for length in range(unroll + 1):
        found = prove(_run(system, fixed, length), limit_seconds=limit_seconds)
        if found.verdict is VerdictKind.REFUTED:
            return replace(found, evidence=(f"a run of {length} step(s) breaks it", *found.evidence))
    why = f"not inductive, and no run of up to {unroll} steps was found to break it ({step.summary})"
    return Finding(verdict=VerdictKind.UNDECIDED, summary=f"{system.name}: undecided; {why}", evidence=(why,))


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
