"""Whatever happens to a run, the same command goes on, and its results are those of an undisturbed run.

Real trainings, real processes and real signals; results are compared byte by byte, costs left out. The quick
tests run the study in a process that is killed; the slow ones on pools, with twenty kills.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import study_driver as driver

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.outputs import write_atomically
from workbench.execution import store as store_module
from workbench.execution.store import Store, StoreError
from workbench.studies.jobs import jobs_of
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study

experiment, study_of, text_of = driver.experiment, driver.study_of, driver.text_of

HERE = RunOptions(workers=0)
SEEDS = 3
MANY_SEEDS = 10
"""Of a study that twenty kills do not see to its end."""

MARK = "WORKBENCH_TEST_MARK"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample study's folder after one run in this process that nothing disturbed."""
    out = tmp_path_factory.mktemp("undisturbed")
    run_study(driver.sample_study(SEEDS), out=out, options=HERE)
    return out


@pytest.fixture(scope="module")
def long_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a longer study."""
    out = tmp_path_factory.mktemp("long")
    run_study(driver.sample_study(MANY_SEEDS), out=out, options=HERE)
    return out


def results(out: Path, seeds: int = SEEDS) -> str:
    return str(text_of(read_results(driver.sample_study(seeds), Store(out / "store"))))


def tables(out: Path, seeds: int = SEEDS) -> dict[str, bytes]:
    """The report's tables as files, by name."""
    found = read_results(driver.sample_study(seeds), Store(out / "store"))
    for table in registry.create("study_report", "generic", results=found).tables:
        text = registry.create("report", "table_csv", table=table)
        write_atomically(out / "tables" / f"{table.id}.csv", text)
    return {path.name: path.read_bytes() for path in (out / "tables").iterdir()}


def moments(seed: int, count: int, longest: float) -> tuple[str, ...]:
    """When to kill: so many records after the start, and so many seconds later; one in five as it starts."""
    generator = random.Random(seed)
    return tuple(
        f"{generator.choice((0, 1, 1, 1, 2))}:{generator.uniform(0.0, longest):.3f}" for _ in range(count)
    )


def drive(
    out: Path, *, parents: int = 1, workers: int = 0, seeds: int = SEEDS, kills: tuple[str, ...] = ()
) -> tuple[str, int, int]:
    """The results that the driver prints; how many parents it killed before their end, and while at work."""
    mark = uuid.uuid4().hex
    numbers = [seeds, parents, workers, *kills]
    done = subprocess.run(
        [sys.executable, driver.__file__, str(out), *map(str, numbers)],
        cwd=out.parent,
        env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not _alive(mark), "a worker outlived its parent"
    counted = re.search(r"killed before their end: (\d+), with a job under way: (\d+)", done.stderr)
    assert counted, done.stderr
    return done.stdout, int(counted[1]), int(counted[2])


def _alive(mark: str) -> list[str]:
    """Processes that were started with the mark in their environment and live on, ten seconds later."""
    found: list[str] = []
    for _ in range(100):
        found = [place.name for place in Path("/proc").glob("[0-9]*") if mark in _environment(place)]
        if not found:
            return []
        time.sleep(0.1)
    return found


def _environment(process: Path) -> str:
    try:
        return (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def assert_tidy(out: Path) -> None:
    """Nothing half-written lies about, once a later run has swept."""
    store = Store(out / "store")
    store.sweep()
    assert not list((out / "store" / "scratch").iterdir())
    for path in (out / "store" / "records").iterdir():
        assert store.has(path.stem), path
    for path in (out / "store" / "subjects").iterdir():
        assert store.subject_folder(path.name) is not None, path


def test_the_workers_of_a_killed_parent_would_be_seen(tmp_path: Path) -> None:
    """The negative control of the search for orphans."""
    mark = uuid.uuid4().hex
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
        env={MARK: mark},
        stdout=subprocess.PIPE,
    )
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        assert str(sleeper.pid) in [p.name for p in Path("/proc").glob("[0-9]*") if mark in _environment(p)]
    finally:
        sleeper.kill()
        sleeper.communicate()


@pytest.mark.slow
def test_tables_that_differ_would_be_seen(undisturbed: Path, tmp_path: Path) -> None:
    """The negative control of the comparison: one experiment's accuracy, in its last digit."""
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    whole = tables(out)
    assert any(b"accuracy" in content and b"DP-SGD" in content for content in whole.values())
    store = Store(out / "store")
    key = jobs_of(driver.sample_study(SEEDS).experiments[3]).measuring.key
    record = store.read(key)
    assert record is not None
    record["metrics"]["accuracy"] += 1e-12
    store.append(key, record)
    assert tables(out) != whole


# (a) The parent is killed


@pytest.mark.slow
def test_killed_parents_and_two_at_a_time_change_nothing(undisturbed: Path, tmp_path: Path) -> None:
    """The quick form of what follows: four kills, then two parents at the same time."""
    text, killed, at_work = drive(tmp_path / "out", parents=2, kills=moments(1, 4, 0.1))
    assert killed >= 3
    assert at_work >= 1
    assert text == results(undisturbed)
    assert tables(tmp_path / "out") == tables(undisturbed)
    assert_tidy(tmp_path / "out")


@pytest.mark.slow
def test_twenty_kills_in_this_process_change_nothing(long_undisturbed: Path, tmp_path: Path) -> None:
    text, killed, at_work = drive(tmp_path / "out", seeds=MANY_SEEDS, kills=moments(2, 20, 0.06))
    assert killed == 20
    assert at_work >= 10
    assert text == results(long_undisturbed, MANY_SEEDS)
    assert tables(tmp_path / "out", MANY_SEEDS) == tables(long_undisturbed, MANY_SEEDS)
    assert_tidy(tmp_path / "out")


@pytest.mark.slow
def test_twenty_kills_of_a_pools_parent_change_nothing_and_leave_no_orphan(
    long_undisturbed: Path, tmp_path: Path
) -> None:
    text, killed, at_work = drive(tmp_path / "out", workers=2, seeds=MANY_SEEDS, kills=moments(3, 20, 0.06))
    assert killed == 20
    assert at_work >= 10
    assert text == results(long_undisturbed, MANY_SEEDS)
    assert tables(tmp_path / "out", MANY_SEEDS) == tables(long_undisturbed, MANY_SEEDS)
    assert_tidy(tmp_path / "out")


# (c) Damage on disk


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 30, -1])
def test_records_cut_short_are_done_again(undisturbed: Path, tmp_path: Path, keep: int) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    study = driver.sample_study(SEEDS)
    chosen = jobs_of(study.experiments[0])
    for key in (chosen.measuring.key, chosen.trainings[0].key, jobs_of(study.experiments[3]).measuring.key):
        path = out / "store" / "records" / f"{key}.json"
        path.write_bytes(path.read_bytes()[:keep])
    assert results(out) != results(undisturbed)
    summary = run_study(study, out=out, options=HERE)
    assert (summary.done, summary.trained) == (2, 1)
    assert results(out) == results(undisturbed)
    assert_tidy(out)


@pytest.mark.parametrize("file", ["parameters.safetensors", "subject.json", "manifest.json"])
@pytest.mark.parametrize("keep", [None, *(pytest.param(keep, marks=pytest.mark.slow) for keep in (0, 50))])
def test_subjects_that_lost_something_are_trained_again(
    undisturbed: Path, tmp_path: Path, file: str, keep: int | None
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    study = driver.sample_study(SEEDS)
    chosen = jobs_of(study.experiments[1])
    damaged = out / "store" / "subjects" / chosen.trainings[0].key / file
    if keep is None:
        damaged.unlink()
    else:
        damaged.write_bytes(damaged.read_bytes()[:keep])
    (out / "store" / "records" / f"{chosen.measuring.key}.json").unlink()
    summary = run_study(study, out=out, options=HERE)
    assert (summary.done, summary.trained) == (1, 1)
    assert results(out) == results(undisturbed)
    assert_tidy(out)


# (d) Several parents


@pytest.mark.slow
def test_two_parents_on_one_store_agree(undisturbed: Path, tmp_path: Path) -> None:
    text, *_ = drive(tmp_path / "out", parents=2)
    assert text == results(undisturbed)
    assert_tidy(tmp_path / "out")


@pytest.mark.slow
def test_two_parents_with_pools_agree_after_kills(undisturbed: Path, tmp_path: Path) -> None:
    text, *_ = drive(tmp_path / "out", parents=2, workers=1, kills=("0:3.0", "3:0.1"))
    assert text == results(undisturbed)
    assert_tidy(tmp_path / "out")


# (e) The disk is full


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def _fail_after(count: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """The real function, as often as there is space."""
    calls = 0

    def limited(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > count:
            _full()
        return real(*arguments, **named)

    return limited


@pytest.mark.slow
@pytest.mark.parametrize("where", ["fsync", "rename"])
@pytest.mark.parametrize("count", [0, 5])
def test_a_store_that_cannot_be_written_ends_the_run(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, count: int
) -> None:
    study = driver.sample_study(SEEDS)
    with monkeypatch.context() as full:
        # The first file that is written whole is run.json, which is not the store's.
        more = where == "fsync"
        full.setattr(store_module.os, where, _fail_after(count + more, getattr(os, where)))
        with pytest.raises(
            StoreError, match=rf"^cannot write to store {tmp_path}/store: No space left on device$"
        ):
            run_study(study, out=tmp_path, options=HERE)
    assert_tidy(tmp_path)
    assert issubclass(StoreError, InputError)  # Exit code 2 of every command.
    run_study(study, out=tmp_path, options=HERE)
    assert results(tmp_path) == results(undisturbed)


@pytest.mark.slow
def test_a_worker_that_finds_the_disk_full_is_no_failed_experiment(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.training.subject import TrainedSubject

    study = driver.sample_study(SEEDS)
    with monkeypatch.context() as full:
        full.setattr(TrainedSubject, "save", _fail_after(2, TrainedSubject.save))
        with pytest.raises(
            StoreError, match=rf"^cannot write to store {tmp_path}/store: No space left on device$"
        ):
            run_study(study, out=tmp_path, options=HERE)
    failed = [o for o in read_results(study, Store(tmp_path / "store")).outcomes if o.error]
    assert all(outcome.experiment.variant in ("diverges", "too large") for outcome in failed)
    assert_tidy(tmp_path)
    run_study(study, out=tmp_path, options=HERE)
    assert results(tmp_path) == results(undisturbed)


STUDY_FILE = """
schema = 1
title = "A small study"
replication = "seed"

[base]
mechanism = "dp_sgd"
attack = "loss"
corpus = "digits"
model = "digits_logistic"
members = 40
epochs = 2
batch_size = 10
learning_rate = 0.01
epsilon = 8.0
delta = 1e-4

[[group]]
name = "all"
grid = { seed = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] }
"""

FULL_DISK = """
mount -t tmpfs -o size=200k tmpfs "$1" || exit 77
"$2" -c "$4" run small.toml --out "$1/out" --workers "$3" --quiet
echo "exit code $?" >&2
mount -o remount,size=16m tmpfs "$1" || exit 77
"$2" -c "$4" run small.toml --out "$1/out" --workers "$3" --quiet
echo "exit code $?" >&2
cp -r "$1/out" kept
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_is_one_line_and_exit_code_2_and_goes_on_later(tmp_path: Path, workers: int) -> None:
    """A real file system of 200 kB, in a name space of its own; skipped where a user may not have one."""
    (tmp_path / "small.toml").write_text(STUDY_FILE)
    (tmp_path / "disk").mkdir()
    command = ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", str(tmp_path / "disk"), sys.executable]
    main = "import sys; from workbench.cli.app import main; sys.exit(main())"
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    done = subprocess.run(
        [*command, str(workers), main],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no mount is permitted here: {done.stderr.strip()}")
    lines = done.stderr.strip().splitlines()
    store = tmp_path / "disk" / "out" / "store"
    assert lines[:2] == [f"error: cannot write to store {store}: No space left on device", "exit code 2"]
    assert lines[-1] == "exit code 0"
    assert len(list((tmp_path / "kept" / "store" / "records").iterdir())) == 24
    assert_tidy(tmp_path / "kept")
