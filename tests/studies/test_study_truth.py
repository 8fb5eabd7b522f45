"""What a run records is true: whose failure it was, which files were read, and where it was computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import study_driver as driver

from workbench.core import registry
from workbench.core.errors import ContentError
from workbench.core.registry import Entry
from workbench.execution.backend import make_backend
from workbench.execution.store import Store, StoreError
from workbench.execution.tasks import DISK_FULL, WORKER_DIED, Event, Failed, Finished, Task
from workbench.studies import run as study_run
from workbench.studies import work
from workbench.studies.jobs import jobs_of, setup_of
from workbench.studies.run import RunOptions, run_study
from workbench.training import setup as workers

experiment, study_of = driver.experiment, driver.study_of

HERE = RunOptions(workers=0)


class _Meddled:
    """A backend in this process; `before` is called before a task, `after` with what came of some."""

    capacity = 1

    def __init__(
        self,
        before: Callable[[Task], None] = lambda task: None,
        after: Callable[[list[Event]], list[Event]] = lambda events: events,
        **arguments: Any,
    ) -> None:
        self.inner = make_backend(**arguments)
        self.before, self.after = before, after

    def submit(self, task: Task) -> None:
        self.before(task)
        self.inner.submit(task)

    def wait(self, timeout: float) -> list[Event]:
        return self.after(self.inner.wait(timeout))

    def __enter__(self) -> _Meddled:
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.close()


def _meddle(monkeypatch: pytest.MonkeyPatch, **hooks: Any) -> None:
    monkeypatch.setattr(study_run, "make_backend", lambda **given: _Meddled(**{**given, **hooks}))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> type[_Notes]:
    """A corpus for the length of a test."""
    registry.entries("corpus")
    entry = Entry(name="notes", factory=_Notes, summary="")
    monkeypatch.setitem(registry._entries["corpus"], "notes", entry)
    monkeypatch.setattr(_Notes, "shift", 0.0)
    workers.forget_corpora()
    return _Notes


class _Notes:
    """A corpus that reads what may change, as a file does."""

    shift = 0.0

    def __new__(cls, *, size: int, seed: int) -> Any:
        made = registry.create("corpus", "digits", size=size, seed=seed)
        moved = tuple(
            replace(record, image=tuple(value + cls.shift for value in record.image))
            for record in made.records
        )
        return replace(made, records=moved)


def test_a_failure_leaves_what_another_parent_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had each job under way; here its worker died, and the other parent has ended it meanwhile."""
    found = study_of(experiment())
    real = study_run.make_backend

    def after(events: list[Event]) -> list[Event]:
        with monkeypatch.context() as other:
            other.setattr(study_run, "make_backend", real)
            run_study(found, out=tmp_path, options=HERE)
        return [
            Failed(event.task, "worker 1", WORKER_DIED, "killed by SIGKILL")
            if isinstance(event, Finished)
            else event
            for event in events
        ]

    _meddle(monkeypatch, after=after)
    summary = run_study(found, out=tmp_path, options=HERE)
    assert (summary.done, summary.failed, summary.skipped) == (0, 0, 1)
    assert {record["status"] for _, record in Store(tmp_path / "store").records()} == {"done"}


def test_a_worker_with_other_files_ends_the_run_and_blames_no_experiment(
    tmp_path: Path, notes: type[_Notes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study_of(experiment(corpus="notes"))

    def change(task: Task) -> None:
        notes.shift = 0.5
        workers.forget_corpora()

    with monkeypatch.context() as meddled:
        _meddle(meddled, before=change)
        with pytest.raises(ContentError, match=r"this process: corpus 'notes' or model 'digits_logistic' is"):
            run_study(found, out=tmp_path, options=HERE)
    assert not list(Store(tmp_path / "store").records())
    assert run_study(found, out=tmp_path, options=HERE).done == 1


def test_a_clusters_full_disk_is_not_said_to_be_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's disk is its own there; whose is full, nobody here can tell."""

    def after(events: list[Event]) -> list[Event]:
        return [
            Failed(event.task, "far:1", DISK_FULL, "[Errno 28] No space left on device") for event in events
        ]

    _meddle(monkeypatch, after=after, scheduler=None)
    with pytest.raises(StoreError, match=r"store .*/store, or on the disk of worker far:1: No space left"):
        run_study(
            study_of(experiment()), out=tmp_path, options=RunOptions(workers=0, scheduler="tcp://far:1")
        )


def test_a_worker_that_remembers_older_files_reads_them_anew(tmp_path: Path, notes: type[_Notes]) -> None:
    """A worker of a cluster outlives the run that filled its caches."""
    found = experiment(corpus="notes")
    notes.shift = 0.5
    wanted = jobs_of(found).trainings[0].payload
    notes.shift = 0.0
    workers.forget_corpora()
    old = workers.load_corpus(setup_of(found)).records
    notes.shift = 0.5
    work.train(wanted, {}, tmp_path, lambda done, total: None)
    assert workers.load_corpus(setup_of(found)).records != old


def test_records_say_where_the_work_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_here", lambda: {"versions": {"torch": "9"}, "hardware": {"cores": 97}})
    found = study_of(experiment(), experiment(members=1000))
    run_study(found, out=tmp_path, options=HERE)
    records = [record for _, record in Store(tmp_path / "store").records()]
    where = {record["status"]: (record["versions"].get("torch"), record["hardware"]) for record in records}
    assert where["done"] == ("9", {"cores": 97})
    assert where["failed"] != where["done"]  # Refused by the parent.
