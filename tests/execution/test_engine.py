"""The engine: records in the jobs' order, what is known is not done again, and what a failed job raises."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from telling_work import fails, imported, work

from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.execution.engine import Engine, Job
from workbench.execution.store import Store, StoreError
from workbench.execution.tasks import DISK_FULL, Failed, Task, TaskError


def job(number: int, **changes: object) -> Job:
    """A job of this number."""
    return Job(identity={"number": number}, payload=number, label="somebody", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 1])
def test_parts_that_a_job_reports_are_passed_on_and_known_jobs_are_not_done_again(
    tmp_path: Path, workers: int
) -> None:
    heard: list[tuple[str, int, int]] = []
    store, inputs = Store(tmp_path), {"0": tmp_path}
    with Engine(store, workers=workers, progress=lambda *steps: heard.append(steps)) as engine:
        jobs = [job(2, inputs=inputs), job(1, inputs=inputs), job(2, inputs=inputs)]
        records = engine.run("working", jobs, work, keeps_folder=False)
        assert [record["done"] for record in records] == [2, 1, 2]
        assert records[0]["inputs"] == ["0"]
        assert list(records[0]) == ["done", "inputs", "job", "versions", "hardware"]
        assert heard[0] == ("working", 0, 2)
        assert ("somebody, a part", 3, 7) in heard
        assert heard[-1] == ("working", 2, 2)
        kept = engine.run("keeping", [job(3)], work, keeps_folder=True)
        assert (tmp_path / "subjects" / job(3).key / "file").read_text() == "3"
        heard.clear()
        assert engine.run("working", [jobs[1]], fails, keeps_folder=False) == [records[1]]
        assert engine.run("keeping", [job(3)], fails, keeps_folder=True) == kept
        assert heard == [("working", 1, 1), ("keeping", 1, 1)]
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.name == "file"]


def test_a_worker_that_is_warm_has_imported_what_was_named_and_no_store_is_made(tmp_path: Path) -> None:
    modules = ("sched", "not_installed_at_all")
    with Engine(tmp_path / "store", workers=1) as engine:
        engine.warm(*modules)
        assert not any(tmp_path.iterdir())
        asked = Job(identity={}, payload=modules)
        assert engine.run("asking", [asked], imported, keeps_folder=False)[0]["imported"] == ["sched"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_records_that_are_enough_are_the_result(tmp_path: Path, workers: int) -> None:
    asked: list[int] = []

    def enough(records: list[dict[str, object]]) -> bool:
        asked.append(len(records))
        return sum(int(str(record["done"])) for record in records) >= 9

    jobs = [job(number) for number in (2, 3, 4, 5, 6, 7, 8, 9)]
    with Engine(Store(tmp_path), workers=workers) as engine:
        records = engine.run("working", jobs, work, keeps_folder=False, enough=enough)
        assert [record["done"] for record in records] == [2, 3, 4]
        assert asked == [1, 2, 3]
        known = [job for job in jobs if engine.store.read(job.key)]
        assert jobs[:3] == known[:3]  # What was under way is kept too.
        assert engine.run("working", jobs, fails, keeps_folder=False, enough=enough) == records
        kept = engine.run("working", jobs[:2], fails, keeps_folder=False, enough=lambda _: False)
        assert kept == records[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("payload", "kind", "message"),
    [
        ("InputError", InputError, "two lines"),
        ("UnsupportedError", UnsupportedError, "two lines"),
        ("InconclusiveError", InconclusiveError, "two lines"),
        ("OSError", InputError, "No such file or directory: 'weights'"),
        ("bug", TaskError, "working somebody: ZeroDivisionError: two lines"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_failed_job_raises_what_it_raised_and_what_was_done_before_stays(
    payload: str, kind: type[Exception], message: str, workers: int, tmp_path: Path
) -> None:
    first, bad = (Job(identity={"kind": name}, payload=name, label="somebody") for name in ("well", payload))
    with (
        Engine(Store(tmp_path), workers=workers) as engine,
        pytest.raises(kind, match=f"^{message}$") as caught,
    ):
        engine.run("working", [first, bad], fails, keeps_folder=False)
    assert type(caught.value) is kind
    assert Store(tmp_path).has(first.key)
    assert not Store(tmp_path).has(bad.key)
    shown = "".join(traceback.format_exception(caught.value))
    assert ('raise getattr(errors, payload, ZeroDivisionError)("two\\nlines")' in shown) == (
        kind is TaskError
    )


@pytest.mark.slow
def test_a_job_that_kills_its_workers_is_inconclusive_in_one_line(tmp_path: Path) -> None:
    """Also where it leaves with exit code 0; the engine can be used again."""
    with Engine(Store(tmp_path), workers=2) as engine:
        deadly = Job(identity={"kind": "exit"}, payload="exit", label="somebody")
        with pytest.raises(InconclusiveError) as caught:
            engine.run("working", [deadly, Job(identity={}, payload="well")], fails, keeps_folder=False)
        assert str(caught.value) == (
            "working somebody: 2 workers died with it, the last one while it ran alone (exit code 0); "
            "run the same command again to go on"
        )
        assert Store(tmp_path).has(Job(identity={}, payload="well").key)
        assert engine.run("working", [job(1)], work, keeps_folder=False)[0]["done"] == 1


def test_a_full_disk_is_the_stores_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(id="any", work=work, payload=None)
    full = Failed(task, "worker 1", DISK_FULL, "[Errno 28] No space left on device")

    def run(backend: object, take: object, conclude: object) -> None:
        conclude(full)  # type: ignore[operator]

    monkeypatch.setattr("workbench.execution.engine.run_tasks", run)
    with (
        Engine(Store(tmp_path), workers=0) as engine,
        pytest.raises(StoreError, match=f"cannot write to store {tmp_path}: No space left"),
    ):
        engine.run("working", [job(1)], work, keeps_folder=False)
