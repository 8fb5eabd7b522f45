"""Runs the ledger's checks, each to a finding or to a recorded failure; no claim goes missing.

The checks run in this process or in worker processes, each of which takes one claim at a time. A worker that
dies or overruns takes its own claim's answer with it and nobody else's: the claim gets a failure, and another
worker takes its place. The answers do not depend on the number of processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from workbench.checks.ledger import PublishedClaim
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError
from workbench.core.keys import JSON, plain
from workbench.core.one_line import one_line
from workbench.execution.processes import interrupt_blocked
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the claims done, and the claims in all."""

LIMIT_SECONDS = 240.0
"""After this long a worker's check is ended, and counts as failed."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_STAGE = "claims"


@dataclass(frozen=True, kw_only=True)
class CheckedClaim:
    """A claim with what its check answered: a finding, or a failure.

    Attributes:
        claim: The ledger's entry.
        finding: The answer; None where the check failed.
        failure: In one line, why there is no answer; empty where there is one.
        details: The traceback of a failure, where there is one.
        seconds: Wall time of the check.

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
        found = self.finding.to_json() if self.finding is not None else empty
        found = {"assumptions": [], "confidence": None, **found}
        result: dict[str, JSON] = plain(
            {**self.claim.to_json(), **found, "failure": self.failure or None, "seconds": self.seconds}
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
        failure = f"the check failed: {one_line(f'{type(error).__name__}: {error}')}"
        details = traceback.format_exc()
    seconds = time.perf_counter() - started
    return CheckedClaim(claim=claim, finding=finding, failure=failure, details=details, seconds=seconds)


def _answer(check: str, claim: PublishedClaim) -> Finding:
    finding = registry.create("claim_check", check, **claim.parameters)
    if not isinstance(finding, Finding):
        raise TypeError(f"check {check!r} answered {type(finding).__name__}, not a Finding")
    plain(finding.to_json())  # A finding that cannot be written down is no answer.
    return finding


def check_claims(
    claims: Sequence[PublishedClaim],
    *,
    processes: int = 2,
    progress: Progress | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> tuple[CheckedClaim, ...]:
    """Run the checks of some claims.

    Args:
        claims: Entries of a ledger.
        processes: Number of workers; 0 runs in this process, where no time limit holds.
        progress: Told of each claim that is done.
        limit_seconds: Time for one check, > 0.

    Returns:
        One answer a claim, in the claims' order.

    Raises:
        InputError: the number of processes or the limit is out of range.
    """
    if processes < 0:
        raise InputError(f"processes must be at least 0, got {processes}")
    if not limit_seconds > 0:
        raise InputError(f"limit_seconds must be > 0, got {limit_seconds!r}")
    report = progress or (lambda stage, done, total: None)
    answers: dict[str, CheckedClaim] = {}
    report(_STAGE, 0, len(claims))
    checkable = [claim for claim in claims if claim.check is not None]
    pooled = processes > 0 and len(checkable) > 1
    steps = _in_workers(checkable, processes, limit_seconds) if pooled else map(check_claim, checkable)
    for claim in claims:
        if claim.check is None:
            answers[claim.id] = check_claim(claim)
    for answer in steps:
        answers[answer.claim.id] = answer
        report(_STAGE, len(answers), len(claims))
    report(_STAGE, len(claims), len(claims))
    return tuple(answers[claim.id] for claim in claims)


@dataclass(kw_only=True)
class _Worker:
    """A process with the claim that it is at."""

    process: BaseProcess
    pipe: Connection
    claim: PublishedClaim
    started: float


def _in_workers(
    claims: Sequence[PublishedClaim], processes: int, limit_seconds: float
) -> Iterator[CheckedClaim]:
    """Answers as they come, from at most so many processes."""
    waiting = list(reversed(claims))
    busy: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                busy.append(_start(waiting.pop()))
            now = time.monotonic()
            patience = min(worker.started + limit_seconds for worker in busy) - now
            ready = wait([worker.pipe for worker in busy], timeout=max(patience, 0.0))
            for worker in list(busy):
                late = time.monotonic() - worker.started > limit_seconds
                if worker.pipe not in ready and not late:
                    continue
                answer, alive = _collect(worker, limit_seconds, worker.pipe in ready)
                if alive and waiting:
                    worker.claim, worker.started = waiting.pop(), time.monotonic()
                    worker.pipe.send(worker.claim)
                else:
                    _end(worker)
                    busy.remove(worker)
                yield answer
    finally:
        for worker in busy:
            _end(worker)


def _start(claim: PublishedClaim) -> _Worker:
    """A new worker, at this claim."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    with _one_thread_in_children(), interrupt_blocked():
        process.start()
    theirs.close()
    ours.send(claim)
    return _Worker(process=process, pipe=ours, claim=claim, started=time.monotonic())


def _collect(worker: _Worker, limit_seconds: float, is_ready: bool) -> tuple[CheckedClaim, bool]:
    """The worker's answer, and whether it can take another claim."""
    seconds = time.monotonic() - worker.started
    failure = f"the check did not answer within {limit_seconds:g} s"
    if is_ready:
        try:
            answer: CheckedClaim = worker.pipe.recv()
            return answer, True
        except (EOFError, OSError):
            worker.process.join()
            failure = f"the check's process died (exit code {worker.process.exitcode})"
    return CheckedClaim(claim=worker.claim, finding=None, failure=failure, seconds=seconds), False


def _end(worker: _Worker) -> None:
    """End a worker for good, whatever it is at."""
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _serve(pipe: Connection) -> None:
    """A worker's life: claims in, answers out, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent is interrupted, and ends its workers.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            claim: PublishedClaim = pipe.recv()
        except EOFError:
            return
        pipe.send(check_claim(claim))


def _end_with_parent() -> None:
    """A check may take minutes: where the parent is killed, its worker does not finish it for nobody."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _one_thread_in_children() -> Iterator[None]:
    """Children read these once, as their numerical libraries load; two of them share the machine."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
