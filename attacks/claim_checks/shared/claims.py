"""How a check of a published statement reaches its verdict: from a proof and a counterexample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import wraps
from typing import Any, ParamSpec

from workbench.core.errors import InconclusiveError
from workbench.core.keys import JSON
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

P = ParamSpec("P")

BITS = 192
"""Working precision of the checks' ball arithmetic."""


@dataclass(frozen=True, kw_only=True)
class Counterexample:
    """A point at which a statement fails.

    Attributes:
        sentence: What fails there, with its numbers.
        values: The point, and what was found.
    """

    sentence: str
    values: Mapping[str, JSON] = field(default_factory=dict)


def settle(
    *,
    proof: str | None,
    counterexample: Counterexample | None,
    evidence: tuple[str, ...],
    assumption: str | None = None,
) -> Finding:
    """The verdict that a proof and a counterexample add up to.

    Args:
        proof: What was proven, in a sentence; None where the proof was tried and failed. Under `assumption`,
            where that is given.
        counterexample: To the statement as printed; None where none was found.
        evidence: What was computed.
        assumption: What the proof needs besides the statement's own words.

    Raises:
        InconclusiveError: a proof without an assumption meets a counterexample; one of them is wrong.
    """
    if proof and counterexample and not assumption:
        raise InconclusiveError(f"proven ({proof}) and refuted ({counterexample.sentence}) at once")
    if proof and not counterexample and not assumption:
        return Finding(verdict=VerdictKind.PROVEN, summary=proof, evidence=evidence)
    if proof and assumption:
        failing = f" Without that: {counterexample.sentence}" if counterexample else ""
        return Finding(
            verdict=VerdictKind.HOLDS_UNDER,
            summary=f"{proof}, if {assumption}.{failing}",
            evidence=evidence,
            counterexample=dict(counterexample.values) if counterexample else {},
            assumptions=(assumption,),
        )
    if counterexample:
        return Finding(
            verdict=VerdictKind.REFUTED,
            summary=counterexample.sentence,
            evidence=evidence,
            counterexample=dict(counterexample.values),
        )
    return Finding(
        verdict=VerdictKind.UNDECIDED,
        summary="neither a proof nor a counterexample was found",
        evidence=evidence,
    )


def from_statement(found: Finding, *, proof: str, note: str = "") -> Finding:
    """A statement's finding in a check's words: same verdict, same evidence and counterexample.

    Args:
        found: Of `workbench.attacks.accountant_checks.proof.prove`.
        proof: The summary where it is proven.
        note: A line put before the evidence.
    """
    refuted = found.verdict is VerdictKind.REFUTED
    return settle(
        proof=proof if found.verdict is VerdictKind.PROVEN else None,
        counterexample=Counterexample(sentence=found.summary, values=found.counterexample)
        if refuted
        else None,
        evidence=(note, *found.evidence) if note else found.evidence,
    )


def setting(text: str) -> Callable[[Callable[P, Finding]], Callable[P, Finding]]:
    """Put what a reader needs to understand a check's numbers first in its evidence.

    Args:
        text: Neighbours or secret, the adversary's game, delta, and how certain the numbers are.
    """

    def said(check: Callable[P, Finding]) -> Callable[P, Finding]:
        @wraps(check)
        def saying(*args: P.args, **kwargs: P.kwargs) -> Finding:
            found = check(*args, **kwargs)
            return replace(found, evidence=(f"setting: {text}", *found.evidence))

        return saying

    return said


def in_balls(check: Callable[P, Finding]) -> Callable[P, Finding]:
    """Run a check at the working precision, whatever precision its caller had set."""

    @wraps(check)
    def precisely(*args: P.args, **kwargs: P.kwargs) -> Finding:
        from flint import ctx

        with ctx.workprec(BITS):
            return check(*args, **kwargs)

    return precisely


def ball(value: int | float | Fraction | str) -> Any:
    """A ball around a rational (a float is taken as the rational that it is; a string as a decimal)."""
    from flint import arb

    exact = Fraction(value)
    return arb(exact.numerator) / exact.denominator


def show(value: Any, digits: int = 6) -> str:
    """A ball's midpoint in decimals."""
    return str(value.mid().str(digits, radius=False))


def binary_entropy(probability: Any) -> Any:
    """h(q) in nats, for a ball inside (0, 1)."""
    return -probability * probability.log() - (1 - probability) * (1 - probability).log()


def binary_kl(p: Any, q: Any) -> Any:
    """KL(p || q) in nats, for balls inside (0, 1)."""
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
