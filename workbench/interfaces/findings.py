"""The answer of a check of a published statement: a verdict with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.interfaces.evidence import VerdictKind

STATEMENT_VERDICTS = (VerdictKind.PROVEN, VerdictKind.REFUTED, VerdictKind.HOLDS_UNDER, VerdictKind.UNDECIDED)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer about one statement.

    Attributes:
        verdict: PROVEN; REFUTED, with a counterexample; HOLDS_UNDER, with an assumption that the statement
            does not make; UNDECIDED.
        summary: One sentence that a reader can quote, with the numbers.
        evidence: What was computed, one line each: method, parameters, values with their confidence or width.
        counterexample: Parameters at which the statement fails, and the values there.
        assumptions: For HOLDS_UNDER: what has to hold besides.
        confidence: Of a statistical verdict; None where nothing is random.

    Raises `InputError`: the verdict is not one of a statement's, or lacks what it must carry.
    """

    verdict: VerdictKind
    summary: str
    evidence: tuple[str, ...] = ()
    counterexample: Mapping[str, JSON] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.verdict not in STATEMENT_VERDICTS:
            raise InputError(f"verdict must be one of a statement's, got {self.verdict}")
        if self.verdict is VerdictKind.REFUTED and not self.counterexample:
            raise InputError("counterexample must be given with REFUTED, got none")
        if self.verdict is VerdictKind.HOLDS_UNDER and not self.assumptions:
            raise InputError("assumptions must be given with HOLDS_UNDER, got none")
        if not self.evidence and self.verdict is not VerdictKind.UNDECIDED:
            raise InputError(f"evidence must be given with {self.verdict}, got none")

    def to_json(self) -> dict[str, JSON]:
        """Returns the finding as a JSON object."""
        return {
            "verdict": str(self.verdict),
            "summary": self.summary,
            "evidence": list(self.evidence),
            "counterexample": dict(self.counterexample),
            "assumptions": list(self.assumptions),
            "confidence": self.confidence,
        }
