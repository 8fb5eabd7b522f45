"""The display of a run: what it counts, that the remaining time is sane, and what reaches a log."""

from __future__ import annotations

import errno
import io
import math
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from workbench.cli.app import main
from workbench.cli.display import Expected, RunProgress, duration, live_view, run_display
from workbench.cli.terminal import progress_display


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def jobs(trainings: int, measurings: int, *, seconds: float | None = None) -> list[Expected]:
    kinds = [("training", trainings), ("measuring", measurings)]
    return [
        Expected(id=f"{kind} {index}", kind=kind, label=f"{kind} [b]{index}[/b]", seconds=seconds)
        for kind, count in kinds
        for index in range(count)
    ]


def test_nothing_is_known_without_expectations_and_measurements() -> None:
    progress = RunProgress(jobs(2, 2), workers=2, clock=Clock())
    assert progress.remaining_seconds() is None
    assert progress.least_remaining_seconds() == 0.0
    progress.finished("training 0", 10.0)
    assert progress.remaining_seconds() is None  # No measuring has ended yet.
    assert progress.least_remaining_seconds() == 10.0
    progress.finished("measuring 0", 1.0)
    assert progress.remaining_seconds() == 10.0  # 11 seconds of work for two, but one of them has 10.
    progress.finished("training 1", 10.0)
    progress.failed("measuring 1")
    assert progress.remaining_seconds() == 0.0
    assert (progress.ended, progress.failures) == (4, 1)
    assert progress.counts() == {"training": (2, 2), "measuring": (2, 2)}


def test_expectations_count_until_measurements_set_them_right() -> None:
    progress = RunProgress(jobs(100, 0, seconds=1.0), workers=2, clock=Clock())
    assert progress.remaining_seconds() == pytest.approx(50.0)
    for index in range(20):
        progress.finished(f"training {index}", 3.0)
    # Twenty jobs took three times as long, one mean job's weight of the expectation is left.
    assert progress.remaining_seconds() == pytest.approx(80 / 2 * 61 / 21)


def test_steps_and_time_of_running_jobs_count() -> None:
    clock = Clock()
    progress = RunProgress(jobs(1, 0), workers=1, clock=clock)
    progress.started("training 0", "worker 1")
    clock.now += 10
    assert progress.remaining_seconds() is None
    progress.stepped("training 0", "worker 1", 1, 100)
    assert progress.remaining_seconds() is None  # One step is no pace.
    progress.stepped("training 0", "worker 1", 25, 100)
    assert progress.remaining_seconds() == pytest.approx(30.0)
    assert progress.lines() == [("worker 1", "training [b]0[/b]", 25, 100)]
    clock.now += 1000
    assert progress.remaining_seconds() == pytest.approx(3030.0)
    progress.stepped("training 0", "worker 1", 100, 100)
    assert progress.remaining_seconds() == 0.0


def test_a_job_that_is_late_is_not_over() -> None:
    clock = Clock()
    progress = RunProgress(jobs(1, 0, seconds=10.0), workers=1, clock=clock)
    progress.started("training 0", "w")
    clock.now += 4
    assert progress.remaining_seconds() == pytest.approx(6.0)
    clock.now += 400
    assert progress.remaining_seconds() == pytest.approx(1.0)


@settings(max_examples=100, deadline=None)
@given(
    seconds=st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=6),
    workers=st.one_of(st.none(), st.integers(0, 5)),
    events=st.lists(
        st.tuples(
            st.sampled_from(["start", "step", "finish", "fail", "skip", "wait"]),
            st.integers(0, 7),
            st.integers(-1, 12),
            st.floats(0, 1e6),
        ),
        max_size=25,
    ),
)
def test_the_remaining_time_is_never_negative_nor_infinite(
    seconds: list[float | None], workers: int | None, events: list[tuple[str, int, int, float]]
) -> None:
    """Whatever comes in whatever order, also of jobs that are unknown or over."""
    clock = Clock()
    given_jobs = [
        Expected(id=str(index), kind="training" if index % 2 else "measuring", label="", seconds=one)
        for index, one in enumerate(seconds)
    ]
    progress = RunProgress(given_jobs, workers=workers, clock=clock)
    for kind, index, steps, took in events:
        job = str(index)
        if kind == "start":
            progress.started(job, "w")
        elif kind == "step":
            progress.stepped(job, "w", steps, 10)
        elif kind == "finish":
            progress.finished(job, took)
        elif kind == "fail":
            progress.failed(job)
        elif kind == "skip":
            progress.skipped(job)
        else:
            clock.now += took
        left = progress.remaining_seconds()
        assert left is None or (math.isfinite(left) and left >= 0.0)
        least = progress.least_remaining_seconds()
        assert math.isfinite(least)
        assert 0.0 <= least <= (math.inf if left is None else left)
        assert 0 <= progress.ended <= len(given_jobs)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (200000, "55 h 33 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_log_gets_a_plain_line_for_every_tenth(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    progress = RunProgress(jobs(10, 30, seconds=1.0), workers=2, clock=Clock())
    with run_display("[i]study[/i]", progress, quiet=False) as display:
        display.changed()
        for job in progress.jobs:
            progress.started(job.id, "w")
            display.changed()
            if job.id == "training 3":
                progress.failed(job.id)
            else:
                progress.finished(job.id, 2.0)
            display.changed()
        display.say("[i]no\nworker[/i]")
    captured = capsys.readouterr()
    *lines, said = captured.err.splitlines()
    assert captured.out == ""
    assert said == "[i]no worker[/i]"
    assert len(lines) == 11
    assert all(line.isprintable() for line in lines)
    assert lines[0] == ("[i]study[/i]: trainings 0/10, measurings 0/30, 0.0 s elapsed, about 20 s remaining")
    assert lines[-1].startswith("[i]study[/i]: trainings 10/10, measurings 30/30, 1 failed")
    assert lines[-1].endswith("about 0.0 s remaining")


def test_quiet_and_no_work_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for progress, quiet in ((RunProgress(jobs(1, 1), workers=1), True), (RunProgress([], workers=1), False)):
        with run_display("study", progress, quiet=quiet) as display:
            display.changed()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("columns", [20, 60, 120])
def test_a_terminal_shows_a_line_for_each_worker(columns: int) -> None:
    progress = RunProgress(jobs(40, 40), workers=40, clock=Clock())
    for index in range(20):
        progress.started(f"training {index}", f"worker {index:02d}")
    progress.stepped("training 0", "worker 00", 7, 300)
    file = io.StringIO()
    Console(file=file, width=columns, force_terminal=True, color_system=None).print(
        live_view("study", progress)
    )
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == 1 + 2 + 16 + 1
    assert lines[-1].startswith("and 4 more")
    if columns >= 60:
        assert "worker 00 7/300 training [b]0[/b]" in shown
        assert "0/80 jobs" in lines[0]


def test_the_live_display_leaves_the_output_stream_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    progress = RunProgress(jobs(1, 0), workers=1)
    with run_display("study", progress, quiet=False) as display:
        progress.started("training 0", "w")
        display.changed()
        progress.finished("training 0", 1.0)
        display.changed()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "study" in captured.err


class _Gone(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_display_that_nobody_reads_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Gone())
    progress = RunProgress(jobs=[Expected(id="a", kind="training", label="A")], workers=1)
    with run_display("t", progress, quiet=False) as display:
        display.say("a notice")
        progress.skipped("a")
        display.changed()
    assert progress.ended == 1


def test_an_error_that_nobody_reads_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Gone())
    assert main(["run", "no such study"]) == 2


def test_two_workers_in_one_stage_do_not_take_turns_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(quiet=False) as progress:
        for done in range(0, 101, 5):
            progress("training", done, 100)
            progress("training", max(done - 30, 0), 100)
        progress("training", 0, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"training: {done}/100" for done in (*range(0, 101, 10), 0)]
