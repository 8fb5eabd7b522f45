"""The progress of a study's run: what its workers do, and how long it will still take.

On a terminal a live display on the error stream, one line a worker; elsewhere (a log file) a plain line for
every tenth. The remaining time comes from what the jobs were expected to cost, corrected by what this run
has measured; where neither is known, no number is given.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from workbench.cli import terminal
from workbench.core.one_line import one_line

MOST_LINES = 16
"""Workers that the display shows; of more it says how many."""

_LATE = 0.1
"""Least share of a job's expected time that is left while it runs, where it reports no steps."""

_EXTRAPOLATED = 0.1
"""Least share of its steps after which a job's own pace is believed."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A job that is to be done, under the `id` that events use.

    Attributes:
        kind: `"training"` or `"measuring"`.
        label: What a worker's line says.
        seconds: Core seconds that it is expected to take; None where nothing is known.
    """

    id: str
    kind: str
    label: str
    seconds: float | None = None


@dataclass
class _Running:
    worker: str
    since: float
    done: int = 0
    total: int = 0


@dataclass
class _Kind:
    """Times of one kind of job in this run.

    Attributes:
        measured: Seconds of the finished jobs.
        expected: Seconds that those of them were expected to take for which an expectation was given.
        measured_of_expected: Seconds that these took.
        mean_expected: Of all jobs of the kind with an expectation.
    """

    measured: float = 0.0
    expected: float = 0.0
    measured_of_expected: float = 0.0
    mean_expected: float = 0.0
    finished: int = 0

    def job_seconds(self, expected: float | None) -> float | None:
        """What a job is likely to take: the expectation, scaled by how the finished ones did.

        The scale starts at 1 with the weight of one mean job, so that the first short job does not swing it.
        """
        if expected is not None and self.mean_expected > 0:
            scale = (self.measured_of_expected + self.mean_expected) / (self.expected + self.mean_expected)
            return expected * scale
        return self.measured / self.finished if self.finished else None


@dataclass
class RunProgress:
    """Which jobs are done, running and left; safe to read while another thread reports.

    Args:
        workers: Jobs that can run at a time, at least 1; None for as many as do (a cluster).
        clock: Seconds, never going back.
    """

    jobs: Sequence[Expected]
    workers: int | None
    clock: Callable[[], float] = time.monotonic
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._left = {job.id: job for job in self.jobs}
        self._running: dict[str, _Running] = {}
        self._kinds: dict[str, _Kind] = {job.kind: _Kind() for job in self.jobs}
        self._failed = 0
        self._begun = self.clock()
        for name, kind in self._kinds.items():
            known = [job.seconds for job in self.jobs if job.kind == name and job.seconds is not None]
            kind.mean_expected = sum(known) / len(known) if known else 0.0

    def started(self, job: str, worker: str) -> None:
        """A worker started a job; one that was taken from a lost worker starts anew."""
        with self.lock:
            if job in self._left:
                self._running[job] = _Running(worker=worker, since=self.clock())

    def stepped(self, job: str, worker: str, done: int, total: int) -> None:
        """Note that a job has done `done` of its `total` steps."""
        with self.lock:
            if job in self._left:
                running = self._running.setdefault(job, _Running(worker=worker, since=self.clock()))
                running.done, running.total = done, total

    def finished(self, job: str, seconds: float) -> None:
        """A job is done; it took so many seconds."""
        with self.lock:
            ended = self._end(job)
            if ended is None:
                return
            kind = self._kinds[ended.kind]
            kind.finished += 1
            kind.measured += seconds
            if ended.seconds is not None:
                kind.expected += ended.seconds
                kind.measured_of_expected += seconds

    def failed(self, job: str) -> None:
        """A job failed, or cannot be done because one that it needs failed."""
        with self.lock:
            if self._end(job) is not None:
                self._failed += 1

    def skipped(self, job: str) -> None:
        """A job needs nothing more: another run did it, or nothing waits for it any more."""
        with self.lock:
            self._end(job)

    @property
    def failures(self) -> int:
        """Number of failed jobs."""
        return self._failed

    @property
    def ended(self) -> int:
        """Number of jobs that are done, failed or skipped."""
        return len(self.jobs) - len(self._left)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Ended and all jobs, by kind."""
        with self.lock:
            left = [job.kind for job in self._left.values()]
        every = [job.kind for job in self.jobs]
        return {kind: (every.count(kind) - left.count(kind), every.count(kind)) for kind in self._kinds}

    def elapsed_seconds(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self._begun

    def remaining_seconds(self) -> float | None:
        """Wall time that is left, finite and >= 0; None where a job's cost is not known yet.

        The work that is left, spread over the workers; but no less than the longest job that runs.
        """
        seconds, is_whole = self._remaining()
        return seconds if is_whole else None

    def least_remaining_seconds(self) -> float:
        """Seconds left for the jobs whose cost is known: the whole takes at least about so long."""
        return self._remaining()[0]

    def _remaining(self) -> tuple[float, bool]:
        with self.lock:
            now = self.clock()
            left = [self._seconds_left(job, now) for job in self._left.values()]
            known = [seconds for seconds in left if seconds is not None]
            if not known:
                return 0.0, not left
            workers = len(self._running) if self.workers is None else self.workers
            seconds = max(math.fsum(known) / max(1, min(workers, len(left))), *known)
            return seconds, len(known) == len(left)

    def lines(self) -> list[tuple[str, str, int, int]]:
        """Worker, label of its job, steps done, steps in all (0 where it reports none); sorted by worker."""
        with self.lock:
            running = [
                (run.worker, self._left[job].label, run.done, run.total) for job, run in self._running.items()
            ]
        return sorted(running, key=lambda line: (len(line[0]), line))  # "worker 9" before "worker 10".

    def _end(self, job: str) -> Expected | None:
        self._running.pop(job, None)
        return self._left.pop(job, None)

    def _seconds_left(self, job: Expected, now: float) -> float | None:
        running = self._running.get(job.id)
        expected = self._kinds[job.kind].job_seconds(job.seconds)
        if running is None:
            return expected
        spent = max(0.0, now - running.since)
        if running.total > 0:
            share = min(max(running.done / running.total, 0.0), 1.0)
            if share >= _EXTRAPOLATED:
                return spent / share * (1.0 - share)
            return None if expected is None else expected * (1.0 - share)
        return None if expected is None else max(expected - spent, _LATE * expected)


def duration(seconds: float) -> str:
    """A time in words: `"12 s"`, `"3 min 20 s"`, `"2 h 05 min"`.

    >>> duration(7500.0)
    '2 h 05 min'
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plural(count: int, noun: str) -> str:
    """`"1 worker"`, `"2 workers"`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True)
class Display:
    """The callbacks of a display: `changed` after each change; `say` prints a line above it."""

    changed: Callable[[], None]
    say: Callable[[str], None]


@contextmanager
def run_display(title: str, progress: RunProgress, *, quiet: bool) -> Iterator[Display]:
    """Shows the progress for the length of the context; nothing where quiet."""
    console = terminal.error_console()

    def say(message: str) -> None:
        console.print(one_line(message), markup=False, highlight=False, soft_wrap=True)

    if quiet or not progress.jobs:
        yield Display(lambda: None, lambda message: None)
    elif console.is_terminal:
        with Live(
            get_renderable=lambda: live_view(title, progress),
            console=console,
            refresh_per_second=4,
            transient=True,
        ):
            yield Display(lambda: None, say)
    else:
        yield Display(_log(console, title, progress), say)


def live_view(title: str, progress: RunProgress) -> RenderableType:
    """The totals, then a line a worker."""
    failed = f", {progress.failures} failed" if progress.failures else ""
    head = Text(
        f"{title}: {progress.ended}/{len(progress.jobs)} jobs{failed}, {_times(progress)}", no_wrap=True
    )
    head.truncate(10**6, overflow="ellipsis")
    totals = Table.grid(padding=(0, 1))
    totals.add_column(no_wrap=True)
    totals.add_column(width=24)
    totals.add_column(no_wrap=True)
    for kind, (ended, every) in progress.counts().items():
        totals.add_row(Text(f"{kind}s"), ProgressBar(total=every, completed=ended), Text(f"{ended}/{every}"))
    lines = progress.lines()
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for worker, label, done, total in lines[:MOST_LINES]:
        table.add_row(Text(worker), Text(f"{done}/{total}" if total else ""), Text(label))
    more = [Text(f"and {len(lines) - MOST_LINES} more workers")] if len(lines) > MOST_LINES else []
    return Group(head, totals, table, *more)


def _log(console: Console, title: str, progress: RunProgress) -> Callable[[], None]:
    """Print a line for every tenth of the jobs."""
    printed = -1

    def changed() -> None:
        """Print how many jobs have ended, whenever another tenth of them has."""
        nonlocal printed
        tenth = 10 * progress.ended // len(progress.jobs)
        if tenth == printed:
            return
        printed = tenth
        counts = ", ".join(f"{kind}s {ended}/{every}" for kind, (ended, every) in progress.counts().items())
        failed = f", {progress.failures} failed" if progress.failures else ""
        line = f"{title}: {counts}{failed}, {_times(progress)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return changed


def _times(progress: RunProgress) -> str:
    left = progress.remaining_seconds()
    if left is not None:
        remaining = f"about {duration(left)} remaining"
    else:
        least = progress.least_remaining_seconds()
        remaining = f"at least {duration(least)} remaining" if least > 0 else "remaining time not known yet"
    return f"{duration(progress.elapsed_seconds())} elapsed, {remaining}"
