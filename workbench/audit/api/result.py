"""The result of an audit, around its report record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.core import registry
from workbench.core.keys import JSON
from workbench.core.results import Result
from workbench.interfaces import Bound, Family, Trials, VerdictKind

_RUNS = {"replay": "forced replay", "run": "watched run"}
"""What a report holds of measured runs, and what they are called in its table."""


class AuditResult(Result):
    """A report: what was claimed, what each attack showed, and the verdict."""

    @property
    def verdict(self) -> VerdictKind:
        """`NOT_REFUTED` (which does not show that the claim is true), `REFUTED`, `UNDERPOWERED`, ..."""
        return VerdictKind(self.record["verdict"]["kind"])

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, with its bound, delta, confidence, adjacency and game."""
        sentence, kind = str(self.record["verdict"]["sentence"]), self.verdict.replace("_", " ")
        return sentence.removeprefix(f"{kind}: ")

    @property
    def exit_code(self) -> int:
        """0 not refuted, 1 refuted, 3 anything else."""
        return int(self.record["exit_code"])

    @property
    def claim(self) -> str:
        """The claim under audit."""
        return str(self.record["claim"]["text"])

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds of the subject under audit, attack by attack; the first of each attack decides."""
        attacks = self.record["subjects"][0]["attacks"]
        found = []
        for attack in attacks:
            verdict = attack["verdict"]
            decisive = [verdict["bound"]] if verdict["bound"] else []
            found += decisive + [bound for bound in verdict["bounds"] if bound not in decisive]
        return tuple(map(_bound, found))

    def rows(self) -> list[dict[str, Any]]:
        """A row a subject and attack, and one a measured run.

        `lower` and `upper` are of `quantity` at `delta` and `confidence`; `auc` has its interval.
        """
        rows = [_row(subject, attack) for subject in self.record["subjects"] for attack in subject["attacks"]]
        for key, name in _RUNS.items():
            if key in self.record:
                rows.append(self._run_row(self.record[key], name))
        return rows

    def _run_row(self, form: Mapping[str, JSON], name: str) -> dict[str, Any]:
        """The row of a measured run."""
        verdict = form["verdict"]
        claimed = self.record["claim"].get("guarantee", {})
        ends = {end: _number(form.get(end)) for end in ("lower", "upper")}
        return {
            **_EMPTY,
            "subject": form["subject"],
            "role": "user",
            "attack": name,
            "verdict": verdict["kind"],
            "quantity": "epsilon" if ends["lower"] is not None else None,
            **ends,
            "delta": _number(claimed.get("delta")),
            "confidence": _confidence(verdict),
            "trials": None,
        }

    def page(self) -> str:
        """Returns the page that `workbench audit` writes as report.html."""
        page: str = registry.create("report", "html", report=self.record)
        return page


_COLUMNS = (
    *("subject", "role", "attack", "verdict", "quantity", "lower", "upper", "delta", "confidence"),
    *("estimator", "trials", "auc", "auc_lower", "auc_upper"),
)
_EMPTY: Mapping[str, Any] = dict.fromkeys(_COLUMNS)


def _row(subject: Mapping[str, JSON], attack: Mapping[str, JSON]) -> dict[str, Any]:
    """The row of an attack."""
    verdict = attack["verdict"]
    bound = verdict["bound"] or next(iter(verdict["bounds"]), None) or {}
    area: Mapping[str, Any] = next((found for found in verdict["intervals"] if found["name"] == "auc"), {})
    return {
        **_EMPTY,
        "subject": subject["name"],
        "role": subject["role"],
        "attack": attack["attack"],
        "verdict": verdict["kind"],
        "quantity": bound.get("quantity"),
        "lower": _number(bound.get("lower")),
        "delta": _number(bound.get("delta")),
        "confidence": _number(bound.get("confidence")),
        "estimator": bound.get("name"),
        "trials": len(attack["scores"]),
        "auc": _number(area.get("estimate")),
        "auc_lower": _number(area.get("lower")),
        "auc_upper": _number(area.get("upper")),
    }


def _confidence(verdict: Mapping[str, JSON]) -> float | None:
    significance = _number(verdict.get("significance"))
    return None if significance is None else 1.0 - significance


def _number(value: Any) -> float | None:
    """A number of a record, which keeps those that are not finite as text."""
    return None if value is None else float(value)


def _bound(form: Mapping[str, JSON]) -> Bound:
    numbers = {
        name: _number(form.get(name)) for name in ("lower", "estimate", "confidence", "delta", "alpha")
    }
    words = {"family": Family(form["family"]), "trials": Trials(form["trials"])}
    return Bound(**{**form, **numbers, **words})
