"""The report of a watched run: `workbench audit --run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from workbench.audit.run import report_record
from workbench.audit.watched.judging import Judged, judged
from workbench.audit.watched.run_file import Step, WatchedRun, read_run
from workbench.core.arguments import number
from workbench.core.keys import JSON, plain
from workbench.estimation.judge import claim_form
from workbench.interfaces import Claim


def audit_run(
    path: Path, *, claim: Claim, confidence: float = 0.95, seed: int = 0, command: str = ""
) -> dict[str, JSON]:
    """Hold the run that a file tells of against a claim.

    Args:
        path: Written by `workbench.watch`.
        claim: Of (epsilon, delta)-DP about a record.
        confidence: One-sided.
        seed, command: For the report; nothing is random here.

    Returns:
        The report record; its `run` has what was watched.

    Raises:
        InputError: the file is damaged, or `confidence` is out of range.
        UnsupportedError: the claim is of another kind.
    """
    started = datetime.now(UTC)
    number("confidence", confidence, above=0.5, below=1)
    run = read_run(path)
    found = judged(claim, run, confidence=confidence)
    verdict = plain(found.verdict)
    subject: dict[str, JSON] = {
        "name": path.name,
        "role": "user",
        "claim": claim_form(claim),
        "verdict": verdict,
        "metrics": {},
        "losses": [],
        "parameters": {},
        "attacks": [],
    }
    report = report_record(claim, [subject], seed=seed, command=command, started=started)
    form = {
        "subject": path.name,
        "claim": claim.describe(),
        "verdict": verdict,
        "rows": _rows(claim, run, found),
    }
    return report | {"run": {**form, "cost": report["cost"]}}


def _draws(steps: Sequence[Step]) -> str:
    """How many draws were seen, and before how many steps if not before all."""
    seen = [step.draws for step in steps if step.draws is not None]
    return f"{sum(seen):,}" + (
        f" before the {len(seen):,} steps that were read" if len(seen) < len(steps) else ""
    )


def _rows(claim: Claim, run: WatchedRun, found: Judged) -> list[list[str]]:
    """The run as it was, for a reader: names and values, then each fault and what is not known."""
    header, steps, sampler = run.header, run.steps, found.sampler
    batches = [step.batch for step in steps if step.batch is not None]
    counted = ", ".join(sorted({step.counted for step in steps if step.counted}))
    norms = [step.norm for step in steps if step.norm is not None]
    most = found.noise.most[np.isfinite(found.noise.most)]
    delta = claim.guarantee.to_json()["delta"]
    estimate = f"{found.estimate:.4g}" if math.isfinite(found.estimate) else "not known"
    rows = [
        ["optimizer steps", f"{len(steps)} of {header.parameters:,} parameters ({header.optimizer})"],
        ["end of the run", run.end or "not in the file: cut off, or still going on"],
        ["records", "not said" if header.records is None else f"{header.records:,}"],
        ["batches", f"{_range(batches)}, by {counted}" if batches else "not seen"],
        ["norm of an update", _range(norms) if norms else "not seen"],
        ["draws of noise", _draws(steps)],
        ["noise over what one record adds", f"at most {_range(most)}" if most.size else "not known"],
        ["epsilon", f"at least {found.lower:.4g}, estimate {estimate}, at delta = {delta:g}"],
    ]
    if sampler is not None:
        rows.insert(4, ["rate", f"{sampler.rate:.3g} [{sampler.lower:.3g}, {sampler.upper:.3g}]"])
    rows += [[f"fault: {fault.part}", fault.says] for fault in found.faults]
    return rows + [["not known", reason] for reason in found.unknown]


def _range(values: object) -> str:
    """Least, median and largest."""
    least, middle, most = np.quantile(np.asarray(values, dtype=np.float64), [0.0, 0.5, 1.0])
    return f"{middle:.4g}" if least == most else f"{middle:.4g} [{least:.4g}, {most:.4g}]"
