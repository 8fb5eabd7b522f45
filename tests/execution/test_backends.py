"""Backends on this machine: in this process, and a pool of real processes that die in every way."""

from __future__ import annotations

import doctest
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from workbench.core.errors import InconclusiveError, InputError
from workbench.execution import backend as backend_module
from workbench.execution.backend import make_backend
from workbench.execution.base import Backend, TaskQueue
from workbench.execution.tasks import (
    DISK_FULL,
    OVERRAN,
    WORKER_DIED,
    Failed,
    Finished,
    Started,
    Stepped,
    Task,
    describe,
    throttled,
)

FUNCTIONS = Path(__file__).parent / "task_functions"
PATIENCE_SECONDS = 60.0


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(FUNCTIONS))  # spawned processes inherit the path
    import backend_tasks

    return backend_tasks


@pytest.fixture
def scratch(tmp_path):
    place = tmp_path / "scratch"
    place.mkdir()

    def make() -> Path:
        return Path(tempfile.mkdtemp(dir=place))

    make.place = place
    return make


def drain(backend, count):
    """All events until so many tasks have ended."""
    events, deadline = [], time.monotonic() + PATIENCE_SECONDS
    while sum(isinstance(event, Finished | Failed) for event in events) < count:
        assert time.monotonic() < deadline, events
        events += backend.wait(1.0)
    return events


def ends(events):
    """The last event of each task, by its id; there must be one."""
    last = [event for event in events if isinstance(event, Finished | Failed)]
    assert max(Counter(event.task.id for event in last).values()) == 1
    return {event.task.id: event for event in last}


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(process):
    """True for a process that runs: one that its parent has not yet waited for is dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(parent):
    """Processes of a parent, without multiprocessing's own tracker, which lives as long as the parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            owner = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if owner == parent and b"spawn_main" in command:
            found.append(int(folder.name))
    return found


@pytest.mark.slow
def test_both_backends_give_the_same_results_and_failures(tasks, scratch, tmp_path):
    folder = tmp_path / "input"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "three").write_text("3")
    jobs = [Task(id=f"square {n}", work=tasks.square, payload=n) for n in range(3)]
    jobs += [
        Task(id=kind, work=tasks.fails, payload=kind) for kind in ("error", "exit", "disk", "number", "form")
    ]
    jobs.append(Task(id="inputs", work=tasks.total_of_inputs, payload=1, inputs={"left": folder}))
    found = {}
    for workers in (0, 2):
        with make_backend(workers=workers, scheduler=None, scratch=scratch) as backend:
            assert isinstance(backend, Backend)
            assert backend.capacity == max(1, workers)
            for job in jobs:
                backend.submit(job)
            found[workers] = ends(drain(backend, len(jobs)))
            assert backend.wait(5.0) == []
    for here, there in ((found[0][job.id], found[2][job.id]) for job in jobs):
        assert type(here) is type(there)
        if isinstance(here, Finished):
            assert here.result == there.result
            for event in (here, there):
                files = {path.relative_to(event.folder): path for path in event.folder.rglob("*.txt")}
                assert {str(name) for name in files} == (
                    {"deep/number.txt"} if "square" in here.task.id else set()
                )
                assert event.seconds >= 0
        else:
            assert (here.kind, here.message) == (there.kind, there.message)
    ended = found[2]
    assert ended["square 2"].result == {"square": 4, "infinite": "inf"}
    assert ended["inputs"].result["files"] == {"left/below/three": 3}
    assert (ended["error"].kind, ended["error"].message) == ("ValueError", "two lines")
    assert ended["exit"].kind == "SystemExit"
    assert ended["disk"].kind == DISK_FULL
    assert (ended["number"].kind, ended["number"].message) == (
        "TypeError",
        "a task must return a dict, got int",
    )
    assert ended["form"].kind == "TypeError"
    kept = {
        event.folder for group in found.values() for event in group.values() if isinstance(event, Finished)
    }
    assert set(scratch.place.iterdir()) == kept


def test_in_this_process_steps_are_told_before_the_task_ends(tasks, scratch):
    told = []

    def listen(event):
        told.append((type(event), [path.name for path in scratch.place.rglob("*.txt")]))

    with make_backend(workers=0, scheduler=None, scratch=scratch, listener=listen) as backend:
        backend.submit(Task(id="one", work=tasks.square, payload=3))
        events = backend.wait(0.0)
    assert told == [(Started, []), (Stepped, [])]
    assert [type(event) for event in events] == [Finished]


def test_in_this_process_ctrl_c_is_the_users(tasks, scratch):
    with make_backend(workers=0, scheduler=None, scratch=scratch) as backend:
        backend.submit(Task(id="one", work=tasks.interrupts, payload=None))
        with pytest.raises(KeyboardInterrupt):
            backend.wait(1.0)
    assert list(scratch.place.iterdir()) == []


def test_a_listeners_own_error_is_not_the_tasks(tasks, scratch):
    def listen(event):
        if isinstance(event, Stepped):
            raise RuntimeError("the display broke")

    with make_backend(workers=0, scheduler=None, scratch=scratch, listener=listen) as backend:
        backend.submit(Task(id="one", work=tasks.square, payload=3))
        with pytest.raises(RuntimeError, match="the display broke"):
            backend.wait(1.0)
    assert list(scratch.place.iterdir()) == []


@pytest.mark.slow
def test_steps_and_names_come_from_the_pool(tasks, scratch):
    told = []
    with make_backend(workers=1, scheduler=None, scratch=scratch, listener=told.append) as backend:
        backend.submit(Task(id="steps", work=tasks.many_steps, payload=500))
        backend.submit(Task(id="interrupt", work=tasks.interrupts, payload=None))
        backend.submit(Task(id="signal", work=tasks.signals_itself, payload=None))
        backend.submit(Task(id="lock", work=tasks.square, payload=threading.Lock()))
        events = drain(backend, 4)
    assert all(isinstance(event, Finished | Failed) for event in events)
    ended = ends(events)
    assert ended["steps"].result == {"threads": 1}
    assert ended["interrupt"].kind == "KeyboardInterrupt"
    assert ended["signal"].result == {"alive": True}
    assert ended["lock"].kind == "TypeError"
    assert {event.worker for event in told} == {"worker 1"}
    assert [event.task.id for event in told if isinstance(event, Started)] == ["steps", "interrupt", "signal"]
    steps = [event for event in told if isinstance(event, Stepped)]
    assert isinstance(told[0], Started)
    assert 3 <= len(steps) <= 40  # of 500; four a second, and a loaded machine may take 10 s
    assert (steps[-1].done, steps[-1].total) == (500, 500)


@pytest.mark.slow  # a worker's start takes a second or two, and this one needs five
def test_a_killer_fails_alone(tasks, scratch):
    with make_backend(workers=2, scheduler=None, scratch=scratch) as backend:
        backend.submit(Task(id="killer", work=tasks.kills_its_worker, payload=None))
        for number in range(10):
            backend.submit(Task(id=str(number), work=tasks.own_process, payload=0.05))
        events = drain(backend, 11)
    ended = ends(events)
    killer = ended.pop("killer")
    assert (type(killer), killer.kind) == (Failed, WORKER_DIED)
    assert "2 workers died" in killer.message
    assert "exit code 3" in killer.message
    assert all(isinstance(event, Finished) for event in ended.values())
    starts = Counter(event.task.id for event in events if isinstance(event, Started))
    assert starts == {"killer": 2, **{str(number): 1 for number in range(10)}}
    assert {event.worker for event in events} == {"worker 1", "worker 2"}
    assert set(scratch.place.iterdir()) == {event.folder for event in ended.values()}


@pytest.mark.slow
def test_a_task_killed_from_outside_is_tried_again(tasks, scratch, tmp_path):
    place = tmp_path / "process"
    with make_backend(workers=1, scheduler=None, scratch=scratch) as backend:
        backend.submit(Task(id="one", work=tasks.sleeps_at_first, payload=str(place)))
        wait_for(place.exists, "the task to begin")
        os.kill(int(place.read_text()), signal.SIGKILL)
        events = drain(backend, 1)
        assert [type(event) for event in events] == [Started, Started, Finished]
        assert events[-1].result == {"again": True}
        backend.submit(Task(id="who", work=tasks.own_process, payload=0))
        idle = drain(backend, 1)[-1].result["process"]
        os.kill(idle, signal.SIGKILL)
        wait_for(lambda: not alive(idle), "the idle worker's death")
        backend.submit(Task(id="after", work=tasks.own_process, payload=0))
        events = drain(backend, 1)
    assert [type(event) for event in events] == [Started, Finished]
    assert events[-1].result["process"] != idle


def test_workers_that_cannot_start_end_the_run(tasks, scratch, tmp_path, monkeypatch):
    resource_tracker.ensure_running()  # or it would meet the broken start-up too
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with make_backend(workers=1, scheduler=None, scratch=scratch) as backend:
        backend.submit(Task(id="one", work=tasks.square, payload=1))
        with pytest.raises(InconclusiveError, match=r"3 worker processes in a row died .*exit code 7"):
            drain(backend, 1)
    assert list(scratch.place.iterdir()) == []


@pytest.mark.slow
def test_close_leaves_no_process_and_no_folder(tasks, scratch, tmp_path):
    place = tmp_path / "process"
    before = set(children(os.getpid()))
    backend = make_backend(workers=2, scheduler=None, scratch=scratch)
    for number in range(3):
        backend.submit(Task(id=str(number), work=tasks.sleeps_at_first, payload=f"{place} {number}"))
    wait_for((tmp_path / "process 0").exists, "the task to begin")
    ours = set(children(os.getpid())) - before
    assert len(ours) == 2
    backend.close()
    assert not any(alive(process) for process in ours)
    assert list(scratch.place.iterdir()) == []
    backend.close()


@pytest.mark.slow
def test_a_task_that_takes_too_long_ends_with_its_worker(tasks, scratch):
    with make_backend(workers=1, scheduler=None, scratch=scratch) as backend:
        backend.submit(Task(id="before", work=tasks.own_process, payload=0, limit_seconds=30.0))
        backend.submit(Task(id="slow", work=tasks.own_process, payload=100, limit_seconds=0.5))
        backend.submit(Task(id="after", work=tasks.own_process, payload=0))
        ended = ends(drain(backend, 3))
    slow = ended["slow"]
    assert (slow.kind, slow.message) == (OVERRAN, "it did not end within 0.5 s")
    assert ended["before"].result["process"] != ended["after"].result["process"]
    assert set(scratch.place.iterdir()) == {ended[name].folder for name in ("before", "after")}


@pytest.mark.slow
@pytest.mark.parametrize("grace", [10.0, 0.0])
def test_a_task_with_grace_may_keep_its_state_when_the_pool_is_closed(tasks, scratch, tmp_path, grace):
    note = tmp_path / "note"
    parts = []
    with make_backend(workers=1, scheduler=None, scratch=scratch) as backend:
        backend.submit(Task(id="long", work=tasks.keeps_its_state, payload=str(note), grace_seconds=grace))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(parts) < 3 and time.monotonic() < deadline:
            parts += [event.part for event in backend.wait(0.2) if isinstance(event, Stepped)]
        started = time.monotonic()
    assert time.monotonic() - started < 5.0
    assert parts[:3] == ["step 1", "step 2", "step 3"]  # a change of the part is reported at once
    assert [path.read_text() for path in (note,) if path.exists()] == (["BrokenPipeError"] if grace else [])
    assert list(scratch.place.iterdir()) == []


@pytest.mark.slow
def test_a_large_task_does_not_hold_the_parent_up(tasks, scratch):
    started = time.monotonic()
    with make_backend(workers=1, scheduler=None, scratch=scratch) as backend:
        backend.submit(Task(id="large", work=tasks.size, payload=b"0" * 2**22))
        assert time.monotonic() - started < 1.0
        [event] = ends(drain(backend, 1)).values()
    assert event.result == {"bytes": 2**22}


PARENT = """
import sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import backend_tasks
from workbench.execution.backend import make_backend
from workbench.execution.tasks import Task

if __name__ == "__main__":
    place = sys.argv[2]
    scratch = lambda: Path(tempfile.mkdtemp(dir=place))
    with make_backend(workers=2, scheduler=None, scratch=scratch) as backend:
        for number in range(2):
            note = f"{place}/{number}"
            backend.submit(Task(id=str(number), work=backend_tasks.sleeps_at_first, payload=note))
        try:
            while True:
                backend.wait(60.0)
        except KeyboardInterrupt:
            print("interrupted")
"""


@pytest.fixture
def parent(tmp_path):
    """A parent of its own session with two tasks under way, and its workers' ids."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(FUNCTIONS), str(tmp_path)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    notes = [tmp_path / "0", tmp_path / "1"]
    try:
        wait_for(lambda: all(note.exists() for note in notes) or process.poll() is not None, "the tasks")
        assert process.poll() is None, process.communicate()
        yield process, [int(note.read_text()) for note in notes]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_no_worker_outlives_a_killed_parent(parent):
    process, workers = parent
    assert all(alive(worker) for worker in workers)
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(worker) for worker in workers), "the workers to follow their parent")


@pytest.mark.slow
def test_ctrl_c_ends_parent_and_workers_in_silence(parent):
    process, workers = parent
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (output, errors, process.returncode) == ("interrupted\n", "", 0)
    assert not any(alive(worker) for worker in workers)


def test_a_full_disk_is_told_apart():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert describe(full)[0] == DISK_FULL
    assert describe(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))[0] == DISK_FULL
    wrapped = InputError("cannot write the record")
    wrapped.__cause__ = full
    assert describe(wrapped) == (DISK_FULL, "cannot write the record")
    assert describe(RuntimeError("I/O error: No space left on device (os error 28)"))[0] == DISK_FULL
    assert describe(OSError(errno.EACCES, "No permission"))[0] == "PermissionError"
    assert describe(ValueError()) == ("ValueError", "ValueError")


def test_a_scratch_folder_that_cannot_be_made_is_a_failure(tasks):
    def none_left():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for workers in (0, 1):
        with make_backend(workers=workers, scheduler=None, scratch=none_left) as backend:
            backend.submit(Task(id="one", work=tasks.square, payload=1))
            [event] = backend.wait(1.0)
        assert (type(event), event.kind) == (Failed, DISK_FULL)


def test_steps_are_throttled_and_the_last_is_told():
    told, now = [], 0.0
    progress = throttled(lambda done, total, part: told.append(done), lambda: now)
    for step in range(1, 1001):
        now += 0.001
        progress(step, 1000)
    assert told == [1, 251, 501, 751, 1000]


def test_a_suspect_waits_for_the_others_and_goes_first():
    queue = TaskQueue()
    killer, other = (Task(id=name, work=lambda *_: {}, payload=None) for name in ("killer", "other"))
    queue.add(killer)
    queue.add(other)
    assert queue.take([]) == (killer, False)
    assert not queue.died(killer, alone=False)
    assert queue.take([False]) is None
    assert queue.take([]) == (killer, True)
    assert queue.take([True]) is None
    assert queue.died(killer, alone=True)
    assert queue.take([]) == (other, False)
    assert not queue
    assert (queue.deaths(killer), queue.deaths(other)) == (2, 0)


def test_a_negative_number_of_workers_is_refused(scratch):
    with pytest.raises(InputError, match="workers must be 0 or more, got -1"):
        make_backend(workers=-1, scheduler=None, scratch=scratch)


def test_doctests():
    assert doctest.testmod(backend_module).failed == 0


def test_importing_the_backends_imports_no_slow_library(tmp_path):
    check = (
        "import sys, workbench.execution.backend; print({'torch', 'distributed', 'dask'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
