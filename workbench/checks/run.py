"""Runs the checks of published claims: each ends with a finding or with a recorded failure.

A claim is a task of the executor that audits and studies run on; claims that one attack answers are a task
together, so that it trains once. One whose check raises, kills its worker or takes too long gets a failure;
the others go on. The answers do not depend on where the checks run.
"""

from __future__ import annotations

import inspect
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.checks.ledger import Method, PublishedClaim
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, MissingExtraError, missing_extra
from workbench.core.keys import JSON, plain
from workbench.core.one_line import one_line
from workbench.execution.backend import make_backend, run_tasks
from workbench.execution.engine import Progress
from workbench.execution.processes import temporary_scratch
from workbench.execution.tasks import (
    OVERRAN,
    WORKER_DIED,
    Event,
    Failed,
    Finished,
    Notice,
    Started,
    StepProgress,
    Task,
    remove_folder,
)
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Assumption, Finding, granted_values

LIMIT_SECONDS = 240.0
"""After this long a worker's check is ended, and counts as failed."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Numerical libraries read these once, as they load; the workers share the machine."""

_STAGE = "claims"

NOT_CHECKED = "not checked"
"""How a failure begins whose cause is a package that is not installed."""


@dataclass(frozen=True, kw_only=True)
class CheckedClaim:
    """A claim with the answer of its check: a finding, or a failure.

    Attributes:
        failure: In one line, why there is no answer; empty where there is one.
        details: The traceback of a failure, where there is one.

    Raises:
        InputError: there are both or neither of a finding and a failure.
    """

    claim: PublishedClaim
    finding: Finding | None
    seconds: float
    failure: str = ""
    details: str = ""

    def __post_init__(self) -> None:
        if (self.finding is None) != bool(self.failure):
            raise InputError(f"claim {self.claim.id!r} must have a finding or else a failure")

    @property
    def verdict(self) -> VerdictKind | None:
        """The finding's verdict; None where the check failed."""
        return self.finding.verdict if self.finding is not None else None

    @property
    def summary(self) -> str:
        """The finding's sentence, or the failure."""
        return self.finding.summary if self.finding is not None else self.failure

    def to_json(self) -> dict[str, JSON]:
        """Plain form; the fields of a finding are null or empty where the check failed."""
        empty: dict[str, JSON] = {
            "verdict": None,
            "summary": self.failure,
            "evidence": [],
            "counterexample": {},
        }
        form = self.finding.to_json() if self.finding is not None else empty
        form = {"assumptions": [], "confidence": None, **form}
        result: dict[str, JSON] = plain(
            {**self.claim.to_json(), **form, "failure": self.failure or None, "seconds": self.seconds}
        )
        return result


def check_claim(claim: PublishedClaim) -> CheckedClaim:
    """Run one claim's check, in this process.

    A claim that is not checkable is UNDECIDED, with the ledger's reason; so is one whose check ends with
    `InconclusiveError`. Every other exception is a recorded failure, `SystemExit` included. What a check
    prints goes to the error stream.
    """
    started = time.perf_counter()
    if claim.check is None:
        undecided = Finding(verdict=VerdictKind.UNDECIDED, summary=f"not checkable by us: {claim.why}")
        return CheckedClaim(claim=claim, finding=undecided, seconds=0.0)
    finding, failure, details = None, "", ""
    try:
        with redirect_stdout(sys.stderr):
            finding = _answer(claim.check, claim)
    except InconclusiveError as error:
        finding = Finding(verdict=VerdictKind.UNDECIDED, summary=one_line(str(error)) or "inconclusive")
    except (Exception, SystemExit) as error:
        missing = missing_extra(error) if isinstance(error, ImportError) else error
        if isinstance(missing, MissingExtraError):
            failure = f"{NOT_CHECKED}: {missing}"
        else:
            failure = f"the check failed: {one_line(f'{type(error).__name__}: {error}')}"
            details = traceback.format_exc()
    seconds = time.perf_counter() - started
    return CheckedClaim(claim=claim, finding=finding, failure=failure, details=details, seconds=seconds)


def _answer(check: str, claim: PublishedClaim) -> Finding:
    finding = registry.create("claim_check", check, **claim.parameters)
    if not isinstance(finding, Finding):
        raise TypeError(f"check {check!r} answered {type(finding).__name__}, not a Finding")
    for assumption in finding.assumptions:
        _require_open(assumption, check, claim.parameters)
    plain(finding.to_json())  # A finding that cannot be written down is no answer.
    return finding


def _require_open(assumption: Assumption, check: str, given: Mapping[str, Any]) -> None:
    """Refuse an assumption that misstates the check's parameters, or takes one of them for open.

    The claim's quantities are the parameters of its check: what an assumption holds to be claimed must be one
    of them, at the values that it has there, and nothing that it holds to be open may be one.
    """
    parameters = inspect.signature(registry.entries("claim_check")[check].factory).parameters
    for name, values in assumption.claimed.items():
        if name not in parameters:
            raise InputError(f"assumption {assumption.text!r} claims {name!r}, no parameter of {check!r}")
        stated = granted_values(plain({"value": given.get(name, parameters[name].default)})["value"])
        if tuple(values) != stated:
            raise InputError(f"assumption {assumption.text!r}: {name} is {stated} in the claim, got {values}")
    for name in assumption.left_open:
        if name in parameters:
            raise InputError(f"assumption {assumption.text!r} leaves open {name!r}, which the claim states")


def check_task(
    claims: Sequence[PublishedClaim], inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Some claims' checks as a task: by id the fields of a `CheckedClaim`, the finding in its plain form."""
    answers = [check_claim(claim) for claim in claims]
    return {
        answer.claim.id: {
            "finding": None if answer.finding is None else answer.finding.to_json(),
            "failure": answer.failure,
            "details": answer.details,
            "seconds": answer.seconds,
        }
        for answer in answers
    }


def groups(claims: Sequence[PublishedClaim]) -> list[tuple[PublishedClaim, ...]]:
    """Claims that one process checks in turn: those that an attack of one kind answers, the others alone.

    Entries of one attack differ in what they read of the same trainings, which the attack keeps. Attacks come
    first: they take longest, and the rest fills up what the last one leaves.
    """
    attacks: dict[str, list[PublishedClaim]] = {}
    for claim in claims:
        if claim.method is Method.ATTACK and claim.check is not None:
            attacks.setdefault(claim.check, []).append(claim)
    alone = [(claim,) for claim in claims if claim.method is not Method.ATTACK]
    return [*map(tuple, attacks.values()), *alone]


def check_claims(
    claims: Sequence[PublishedClaim],
    *,
    workers: int = 2,
    scheduler: str | None = None,
    progress: Progress | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> tuple[CheckedClaim, ...]:
    """Run the checks of some claims; one answer a claim, in the claims' order.

    Args:
        workers: Number of processes; 0 runs in this process, where no time limit holds.
        scheduler: Address of a Dask scheduler, which then has the workers; None for none.
        limit_seconds: Time for one check, > 0.

    Raises:
        InputError: the number of workers or the limit is out of range, or the scheduler cannot be used.
        InconclusiveError: the workers or their scheduler are gone.
    """
    if workers < 0:
        raise InputError(f"workers must be at least 0, got {workers}")
    if not limit_seconds > 0:
        raise InputError(f"limit_seconds must be > 0, got {limit_seconds!r}")
    report = progress or (lambda stage, done, total: None)
    tasks = {group[0].id: group for group in groups([one for one in claims if one.check is not None])}
    answers = {claim.id: check_claim(claim) for claim in claims if claim.check is None}
    waiting = iter(tasks.values())
    started: dict[str, float] = {}
    report(_STAGE, 0, len(claims))

    def take() -> Task | None:
        group = next(waiting, None)
        if group is None:
            return None
        name = group[0].id
        limit = limit_seconds * len(group)
        return Task(id=name, work=check_task, payload=group, label=name, limit_seconds=limit)

    def listen(event: Event) -> None:
        if isinstance(event, Started):
            started[event.task.id] = time.monotonic()
        elif isinstance(event, Notice):
            report(event.message, 0, 0)

    def conclude(event: Finished | Failed) -> None:
        """Keep the answers of a task's claims, or the failure of their checks."""
        group = tasks[event.task.id]
        if isinstance(event, Finished):
            remove_folder(event.folder)
            answers.update((claim.id, _read_back(claim, event.result[claim.id])) for claim in group)
        else:
            seconds = time.monotonic() - started.get(event.task.id, time.monotonic())
            answers.update((claim.id, _without_answer(claim, event, seconds)) for claim in group)
        report(_STAGE, len(answers), len(claims))

    # A single check is sooner done here than a worker has started.
    processes = workers if len(tasks) > 1 else 0
    if tasks:
        with (
            temporary_scratch() as scratch,
            make_backend(
                workers=processes,
                scheduler=scheduler,
                scratch=scratch,
                listener=listen,
                environment=ONE_THREAD,
            ) as backend,
        ):
            run_tasks(backend, take, conclude)
    report(_STAGE, len(claims), len(claims))
    return tuple(answers[claim.id] for claim in claims)


def _read_back(claim: PublishedClaim, form: Mapping[str, JSON]) -> CheckedClaim:
    finding = form["finding"]
    if finding is not None:
        read = {
            "verdict": VerdictKind(finding["verdict"]),
            "evidence": tuple(finding["evidence"]),
            "assumptions": tuple(Assumption.from_json(form) for form in finding["assumptions"]),
        }
        finding = Finding(**{**finding, **read})
    return CheckedClaim(claim=claim, **{**form, "finding": finding})


def _without_answer(claim: PublishedClaim, event: Failed, seconds: float) -> CheckedClaim:
    failure = f"the check failed: {event.kind}: {event.message}"
    if event.kind == WORKER_DIED:
        failure = f"the check's process died: {event.message}"
    elif event.kind == OVERRAN:
        failure = f"the check did not answer within {event.task.limit_seconds:g} s"
    return CheckedClaim(claim=claim, finding=None, failure=failure, details=event.traceback, seconds=seconds)
