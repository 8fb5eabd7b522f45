"""`workbench.claims`: checks the privacy claims that papers print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.checks.ledger import Method, PublishedClaim, load_ledger, select_claims
from workbench.checks.run import NOT_CHECKED, CheckedClaim, check_claims
from workbench.core.arguments import names_of, path_of, whole_number
from workbench.core.errors import ArgumentError, unknown_name
from workbench.core.keys import JSON, plain
from workbench.core.results import Result
from workbench.execution.engine import Progress, versions

SCHEMA = 2
"""Of the record; raised whenever the meaning of a field changes."""

FAILED = "FAILED"
"""What stands in a verdict's place where the check gave none."""

PACKAGES = ("numpy", "scipy", "python-flint", "z3-solver", "dp-accounting")
"""Those that decide the ledger's numbers."""

_ORDER = ("PROVEN", "REFUTED", "HOLDS_UNDER", "UNDECIDED", FAILED)


class ClaimsResult(Result):
    """The checked claims.

    Attributes:
        checked: Each claim with the answer of its check.
    """

    def __init__(self, checked: Sequence[CheckedClaim]) -> None:
        self.checked = tuple(checked)
        super().__init__(ledger_json(checked))

    @property
    def verdict(self) -> str:
        """That of a single claim, else `CHECKED`; `FAILED` where a check did not answer.

        That a published claim is refuted is a finding, and no failure.
        """
        if self.exit_code:
            return FAILED
        return verdict_of(self.checked[0]) if len(self.checked) == 1 else "CHECKED"

    @property
    def sentence(self) -> str:
        """How many claims have which verdict."""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.record["counts"].items())
        noun = "claim" if len(self.checked) == 1 else "claims"
        said = f"{len(self.checked)} {noun}: {counts or 'none'} ({self.record['seconds']:.1f} s of checking)"
        missing = [answer.failure for answer in self.checked if answer.failure.startswith(NOT_CHECKED)]
        return f"{said}; {len(missing)} {missing[0]}" if missing else said

    @property
    def exit_code(self) -> int:
        """0 all checks answered, 2 one needs a package that is not installed, 3 one crashed or did not."""
        failures = [answer.failure for answer in self.checked if answer.finding is None]
        if not failures:
            return 0
        return 2 if all(failure.startswith(NOT_CHECKED) for failure in failures) else 3

    @property
    def bounds(self) -> tuple[()]:
        """None: a claim has a verdict, and its figures are in the answer of its check."""
        return ()

    def rows(self) -> list[dict[str, Any]]:
        """A row a claim."""
        return [
            {
                "claim": answer.claim.id,
                "paper": answer.claim.paper,
                "place": answer.claim.place,
                "method": str(answer.claim.method),
                "verdict": verdict_of(answer),
                "finding": answer.summary,
                "seconds": answer.seconds,
            }
            for answer in self.checked
        ]


def claims(
    *filters: str,
    method: Method | str | None = None,
    only: str | None = None,
    ledger: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> ClaimsResult:
    """Check the privacy claims that papers print: PROVEN, REFUTED, HOLDS UNDER, or UNDECIDED.

    Args:
        filters: Papers, or beginnings of ids; all claims without.
        method: Only claims that are checked by this method.
        only: The id of the one claim to check.
        ledger: Another ledger's file than the shipped one.
        workers: Processes, 2 unless given; 0 for this one.
        scheduler: Address of a Dask scheduler, which then has the workers.
        progress: Called with the stage, the claims done, and the claims in all.

    Raises `InputError`: an argument is unusable, or names no claim.
    """
    count = 2 if workers is None else whole_number("workers", workers, least=0)
    known = load_ledger(None if ledger is None else path_of("ledger", ledger))
    if not known:
        raise ArgumentError("ledger", f"{str(ledger)!r} holds no claim")
    chosen = _chosen(known, names_of("filters", filters), only, method)
    return ClaimsResult(check_claims(chosen, workers=count, scheduler=scheduler, progress=progress))


def ledger_json(checked: Sequence[CheckedClaim]) -> dict[str, JSON]:
    """The whole ledger as plain data; numbers that are not finite are texts.

    Returns:
        `schema`, `versions`, `counts` of each verdict, `seconds`, and `claims`: for each its id, paper,
        place, restatement, method, check, parameters, function, verdict (null where the check failed),
        summary, evidence, counterexample, assumptions, confidence, failure and seconds.
    """

    result: dict[str, JSON] = plain(
        {
            "schema": SCHEMA,
            "versions": versions(PACKAGES),
            "counts": _counts(checked),
            "seconds": sum(answer.seconds for answer in checked),
            "claims": [answer.to_json() for answer in checked],
        }
    )
    return result


def _chosen(
    known: Sequence[PublishedClaim], filters: Sequence[str], only: str | None, method: str | None
) -> Sequence[PublishedClaim]:
    """The claims that the options name."""
    if only is not None:
        matching = [claim for claim in known if claim.id == only]
        if not matching:
            raise unknown_name("claim", only, [claim.id for claim in known])
        return matching
    chosen = select_claims(known, filters)
    if method is None:
        return chosen
    if method not in list(Method):
        raise unknown_name("method", method, [str(known_method) for known_method in Method])
    return [claim for claim in chosen if claim.method == method]


def _counts(checked: Sequence[CheckedClaim]) -> dict[str, int]:
    counted = Counter(verdict_of(answer) for answer in checked)
    return {verdict: counted[verdict] for verdict in _ORDER if counted[verdict]}


def verdict_of(answer: CheckedClaim) -> str:
    """A claim's verdict in a word."""
    return FAILED if answer.verdict is None else str(answer.verdict)
