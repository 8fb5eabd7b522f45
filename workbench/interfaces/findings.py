"""The answer of a check of a published statement: a verdict with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.interfaces.evidence import VerdictKind

STATEMENT_VERDICTS = (VerdictKind.PROVEN, VerdictKind.REFUTED, VerdictKind.HOLDS_UNDER, VerdictKind.UNDECIDED)


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """A condition that a statement needs and does not state; made by `assume`, which evaluates it.

    Attributes:
        text: The condition in words, as in "holds if ...".
        claimed: Quantities that the statement fixes or quantifies over, each with all values that it grants.
        left_open: Quantities that it does not speak of, each with values that they may take.
        fails_at: The first claimed values under which no open value meets the condition; None where there
            are none, so that the condition is consistent with the statement.

    Raises `InputError`: the text is empty, or there is nothing that the condition could be about.
    """

    text: str
    claimed: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)
    left_open: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict)
    fails_at: Mapping[str, JSON] | None = None

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InputError("text of an assumption must not be empty")
        if not self.claimed and not self.left_open:
            raise InputError(f"assumption {self.text!r} must name the quantities that it is about")

    @property
    def is_consistent(self) -> bool:
        """Whether the statement leaves room for the condition, at all values that it grants."""
        return self.fails_at is None

    def to_json(self) -> dict[str, JSON]:
        """Returns the assumption as a JSON object."""
        return {
            "text": self.text,
            "claimed": {name: list(values) for name, values in self.claimed.items()},
            "left_open": {name: list(values) for name, values in self.left_open.items()},
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Assumption:
        """The assumption of a finding, which is consistent, from its plain form."""
        values = {
            part: {name: tuple(given) for name, given in form[part].items()}
            for part in ("claimed", "left_open")
        }
        return cls(text=form["text"], **values)


def assume(
    text: str,
    holds: Callable[..., Any],
    *,
    claimed: Mapping[str, JSON | Sequence[JSON]] | None = None,
    left_open: Mapping[str, Sequence[JSON]] | None = None,
) -> Assumption:
    """An assumption whose consistency with the statement is computed.

    The statement is about every combination of its own quantities' values. Where one of them leaves no value
    of the open quantities under which the condition holds, the condition contradicts the statement.

    Args:
        text: The condition in words.
        holds: The condition, called with the value of each claimed and open quantity by position, in the
            order of `claimed` and then `left_open`.
        claimed: Name and value of what the statement fixes, or the values over which it quantifies.
        left_open: Names of what it does not fix, and values that this may take.

    >>> assume("s is 1", lambda s: s == 1, claimed={"s": 0.5}).is_consistent
    False
    >>> assume("s is 1", lambda s: s == 1, left_open={"s": (0.5, 1)}).is_consistent
    True
    """
    fixed = {name: granted_values(values) for name, values in (claimed or {}).items()}
    free = {name: tuple(values) for name, values in (left_open or {}).items()}
    fails_at = next(
        (
            dict(zip(fixed, point, strict=True))
            for point in _points(fixed)
            if not any(holds(*point, *rest) for rest in _points(free))
        ),
        None,
    )
    return Assumption(text=text, claimed=fixed, left_open=free, fails_at=fails_at)


def granted_values(values: JSON | Sequence[JSON]) -> tuple[JSON, ...]:
    """The values of a quantity that is fixed (a number, a text) or quantified over (a sequence)."""
    return tuple(values) if isinstance(values, Sequence) and not isinstance(values, str) else (values,)


def _points(quantities: Mapping[str, tuple[JSON, ...]]) -> Iterator[tuple[JSON, ...]]:
    return product(*quantities.values())


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer about one statement.

    Attributes:
        verdict: PROVEN; REFUTED, with a counterexample; HOLDS_UNDER, with an assumption that the statement
            does not make; UNDECIDED.
        summary: One sentence that a reader can quote, with the numbers.
        evidence: What was computed, one line each: method, parameters, values with their confidence or width.
        counterexample: Parameters at which the statement fails, and the values there.
        assumptions: For HOLDS_UNDER: what has to hold besides; each consistent with the statement, and about
            something that it leaves open (else the statement would be proven or refuted).
        confidence: Of a statistical verdict; None where nothing is random.

    Raises `InputError`: the verdict is not one of a statement's, or lacks what it must carry.
    """

    verdict: VerdictKind
    summary: str
    evidence: tuple[str, ...] = ()
    counterexample: Mapping[str, JSON] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.verdict not in STATEMENT_VERDICTS:
            raise InputError(f"verdict must be one of a statement's, got {self.verdict}")
        if self.verdict is VerdictKind.REFUTED and not self.counterexample:
            raise InputError("counterexample must be given with REFUTED, got none")
        if self.verdict is VerdictKind.HOLDS_UNDER and not self.assumptions:
            raise InputError("assumptions must be given with HOLDS_UNDER, got none")
        for assumption in self.assumptions:
            if not assumption.is_consistent:
                point = dict(assumption.fails_at or {})
                raise InputError(f"assumption {assumption.text!r} contradicts the statement at {point}")
            if not assumption.left_open:
                raise InputError(
                    f"assumption {assumption.text!r} must be about something that the statement leaves open"
                )
        if not self.evidence and self.verdict is not VerdictKind.UNDECIDED:
            raise InputError(f"evidence must be given with {self.verdict}, got none")

    def to_json(self) -> dict[str, JSON]:
        """Returns the finding as a JSON object."""
        return {
            "verdict": str(self.verdict),
            "summary": self.summary,
            "evidence": list(self.evidence),
            "counterexample": dict(self.counterexample),
            "assumptions": [assumption.to_json() for assumption in self.assumptions],
            "confidence": self.confidence,
        }
