"""The Dask backend against a real scheduler and real workers, which run elsewhere and are killed."""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from dask_cluster import FUNCTIONS, Cluster

from workbench.core.errors import InconclusiveError, InputError
from workbench.execution import dask as dask_backend
from workbench.execution.backend import make_backend
from workbench.execution.base import Backend
from workbench.execution.dask import about, compare, connect, read_folder, write_folder
from workbench.execution.tasks import OVERRAN, WORKER_DIED, Failed, Finished, Notice, Started, Stepped, Task

PATIENCE_SECONDS = 90.0

pytestmark = pytest.mark.dask


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(FUNCTIONS))
    import backend_tasks

    return backend_tasks


@pytest.fixture
def scratch(tmp_path):
    place = tmp_path / "scratch"
    place.mkdir()
    return lambda: Path(tempfile.mkdtemp(dir=place))


@pytest.fixture
def cluster(tmp_path):
    place = tmp_path / "cluster"
    place.mkdir()
    running = Cluster(place)
    try:
        yield running
    finally:
        running.close()


def drain(backend, done):
    """All events until the condition on them holds."""
    events, deadline = [], time.monotonic() + PATIENCE_SECONDS
    while not done(events):
        assert time.monotonic() < deadline, events
        events += backend.wait(0.5)
    return events


def ended(count):
    return lambda events: sum(isinstance(event, Finished | Failed) for event in events) >= count


def ends(events):
    """The last event of each task, by its id; there must be one."""
    last = [event for event in events if isinstance(event, Finished | Failed)]
    assert max(Counter(event.task.id for event in last).values()) == 1
    return {event.task.id: event for event in last}


def wait_for_workers(backend, count):
    """The list of workers is read while a task is under way; here none is."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(backend._workers) != count:
        assert time.monotonic() < deadline
        backend._refresh()
        time.sleep(0.1)


@pytest.fixture
def folders(tmp_path):
    left, right = tmp_path / "left", tmp_path / "right"
    (left / "below").mkdir(parents=True)
    (left / "below" / "three").write_text("3")
    right.mkdir()
    (right / "four").write_text("4")
    return {"left": left, "right": right}


@pytest.mark.slow
def test_results_are_those_of_this_process(tasks, scratch, cluster, folders, capfd):
    jobs = [Task(id=f"square {n}", work=tasks.square, payload=n) for n in range(3)]
    for kind in ("error", "exit", "disk", "number", "form"):
        jobs.append(Task(id=kind, work=tasks.fails, payload=kind))
    jobs.append(Task(id="lock", work=tasks.square, payload=threading.Lock()))
    inputs = [Task(id=f"inputs {n}", work=tasks.total_of_inputs, payload=n, inputs=folders) for n in range(4)]
    steps = Task(id="steps", work=tasks.many_steps, payload=500)
    with make_backend(workers=0, scheduler=None, scratch=scratch) as here:
        for job in jobs[:-1]:
            here.submit(job)
        expected = ends(drain(here, ended(len(jobs) - 1)))
    cluster.worker()
    cluster.worker()
    read = []

    def counted(path):
        read.append(path)
        return read_folder(path)

    with (
        pytest.MonkeyPatch.context() as patch,
        make_backend(workers=0, scheduler=cluster.address, scratch=scratch) as backend,
    ):
        patch.setattr(dask_backend, "read_folder", counted)
        assert isinstance(backend, Backend)
        wait_for_workers(backend, 2)
        for job in (*jobs, *inputs, steps):
            backend.submit(job)
        events = drain(backend, ended(len(jobs) + len(inputs) + 1))
        assert backend.wait(5.0) == []
    found = ends(events)
    for name, event in expected.items():
        other = found[name]
        assert type(other) is type(event)
        if isinstance(event, Finished):
            assert other.result == event.result
            assert (
                read_folder(other.folder)
                == read_folder(event.folder)
                == {"deep/number.txt": b"%d" % event.task.payload**2}
            )
        else:
            assert (other.kind, other.message) == (event.kind, event.message)
    assert found["lock"].kind == "TypeError"
    results = [found[job.id].result for job in inputs]
    assert [result["files"] for result in results] == [{"left/below/three": 3, "right/four": 4}] * 4
    assert all(str(cluster.place) in result["folder"] for result in results)
    assert Counter(read) == {folder.resolve(): 1 for folder in folders.values()}  # sent once, not four times
    assert found["steps"].result == {"threads": 1}
    told = [event.done for event in events if isinstance(event, Stepped) and event.task.id == "steps"]
    assert 2 <= len(told) <= 40
    assert told[-1] == 500
    assert len({event.worker for event in events if isinstance(event, Started)}) == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_killed_workers_tasks_move_on(tasks, scratch, cluster, folders, tmp_path):
    """The killed worker holds the inputs of all the tasks, too."""
    note = tmp_path / "process"
    first = cluster.worker("--no-nanny")
    with make_backend(workers=0, scheduler=cluster.address, scratch=scratch) as backend:
        wait_for_workers(backend, 1)
        backend.submit(Task(id="before", work=tasks.total_of_inputs, payload=0, inputs=folders))
        drain(backend, ended(1))
        backend.submit(Task(id="sleeps", work=tasks.sleeps_at_first, payload=str(note)))
        events = drain(backend, lambda _: note.exists())
        cluster.worker("--no-nanny")
        wait_for_workers(backend, 2)
        assert int(note.read_text()) == first.pid
        first.kill()
        for number in range(6):
            backend.submit(Task(id=str(number), work=tasks.total_of_inputs, payload=number, inputs=folders))
        events += drain(backend, ended(7))
        assert backend.capacity == 1
    found = ends(events)
    assert found.pop("sleeps").result == {"again": True}
    for number in range(6):
        result = found[str(number)].result
        assert result["files"] == {"left/below/three": 3, "right/four": 4}
        assert result["payload"] == number
    starts = [event.worker for event in events if isinstance(event, Started) and event.task.id == "sleeps"]
    assert len(set(starts)) == len(starts) == 2


@pytest.mark.slow
def test_a_killer_fails_alone(tasks, scratch, cluster):
    cluster.worker("--nworkers", "2")  # their nannies start them again
    with make_backend(workers=0, scheduler=cluster.address, scratch=scratch) as backend:
        wait_for_workers(backend, 2)
        backend.submit(Task(id="killer", work=tasks.kills_its_worker, payload=None))
        for number in range(10):
            backend.submit(Task(id=str(number), work=tasks.own_process, payload=0.05))
        events = drain(backend, ended(11))
    found = ends(events)
    killer = found.pop("killer")
    assert (type(killer), killer.kind) == (Failed, WORKER_DIED)
    assert "2 workers died" in killer.message
    assert all(isinstance(event, Finished) for event in found.values())
    starts = Counter(event.task.id for event in events if isinstance(event, Started))
    assert starts == {"killer": 2, **{str(number): 1 for number in range(10)}}


@pytest.mark.slow
def test_a_task_that_takes_too_long_fails_and_its_worker_gets_no_other_meanwhile(tasks, scratch, cluster):
    for _ in range(2):
        cluster.worker("--no-nanny")
    with make_backend(workers=0, scheduler=cluster.address, scratch=scratch) as backend:
        wait_for_workers(backend, 2)
        backend.submit(Task(id="slow", work=tasks.own_process, payload=8, limit_seconds=0.5, label="slow"))
        events = drain(backend, ended(1))
        [slow] = [event for event in events if isinstance(event, Started)]
        assert [event.kind for event in events if isinstance(event, Failed)] == [OVERRAN]
        assert Notice(f"worker {slow.worker} is still at slow") in events
        for number in range(3):
            backend.submit(Task(id=str(number), work=tasks.own_process, payload=0.1))
        events = drain(backend, ended(3))
        assert slow.worker not in {event.worker for event in events if isinstance(event, Started)}
        for name in ("both", "workers"):
            backend.submit(Task(id=name, work=tasks.own_process, payload=10))
        assert len({event.worker for event in drain(backend, ended(2))}) == 2  # the first is free again
        for name in ("all", "are", "stuck"):
            backend.submit(Task(id=name, work=tasks.own_process, payload=30, limit_seconds=0.5))
        with pytest.raises(InconclusiveError, match=f"all workers at {cluster.address} are at tasks that"):
            drain(backend, ended(3))


@pytest.mark.slow
def test_without_a_worker_it_says_so_once_and_waits(tasks, scratch, cluster, capfd):
    told = []
    with make_backend(workers=0, scheduler=cluster.address, scratch=scratch, listener=told.append) as backend:
        assert backend.capacity == 1
        backend.submit(Task(id="one", work=tasks.square, payload=3))
        started = time.monotonic()
        assert backend.wait(2.5) == []
        assert time.monotonic() - started >= 2.5
        assert told == [Notice(f"no worker at {cluster.address}: waiting for one")]
        cluster.worker("--no-nanny", "--nthreads", "3")
        events = drain(backend, ended(1))
        assert backend.capacity == 1  # a process does one task at a time
        assert events[0].result["square"] == 9
        assert told[1] == Notice(f"1 worker(s) at {cluster.address}: going on")
        backend.submit(Task(id="long", work=tasks.own_process, payload=100))
        drain(backend, lambda _: isinstance(told[-1], Started) and told[-1].task.id == "long")
        cluster.scheduler.kill()
        with pytest.raises(InconclusiveError, match=f"lost the scheduler {cluster.address}"):
            drain(backend, ended(1))
        started = time.monotonic()
    assert time.monotonic() - started < 6
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_worker_without_this_workbench_is_refused(scratch, cluster, tmp_path, capfd):
    other = tmp_path / "other"
    (other / "workbench").mkdir(parents=True)
    (other / "workbench" / "__init__.py").write_text("__version__ = '0.0.1'\n")
    cluster.worker("--no-nanny", path=other)
    client = connect(cluster.address, 30.0)
    client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
    client.close()
    with pytest.raises(
        InputError, match=r"worker tcp://\S+ (cannot run the|runs) workbench .*install"
    ) as caught:
        make_backend(workers=0, scheduler=cluster.address, scratch=scratch)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_workers_are_compared():
    own = about()
    assert compare("tcp://a:1", own) is None
    assert compare("tcp://a:1", {**own, "numpy": "0.1"}) == (
        f"worker tcp://a:1 has numpy 0.1 (here {own['numpy']}): numbers may differ in their last digits"
    )
    with pytest.raises(InputError, match=r"worker tcp://a:1 runs workbench 9.9 \(schema 7\), this is "):
        compare("tcp://a:1", {**own, "workbench": "9.9 (schema 7)"})


@pytest.mark.parametrize(
    "address", ["", "host", "tcp://host", "http://host:80", "tcp://:8786", "tcp://host:0", "tcp://h:x"]
)
def test_a_malformed_address_is_refused(scratch, address):
    with pytest.raises(InputError, match=r"scheduler must be an address such as tcp://127.0.0.1:8786, got '"):
        make_backend(workers=0, scheduler=address, scratch=scratch)


def test_nobody_answers(scratch, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            InputError, match=f"scheduler {address} did not answer in 0.3 s: Connection refused"
        ):
            dask_backend.DaskBackend(address, scratch, connect_seconds=0.3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-other\r\n", b"short"])
def test_a_server_of_another_kind_is_refused_before_a_client_waits_on_it(says, scratch, capfd):
    def serve(listener):
        line, _ = listener.accept()
        with line:
            line.sendall(says)
            if says == b"":
                line.recv(1)  # until the other side gives up

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(InputError, match=f"scheduler {address} does not answer as a Dask scheduler does"):
            dask_backend.DaskBackend(address, scratch, connect_seconds=0.5)
        server.join(timeout=10.0)
    assert not server.is_alive()
    assert capfd.readouterr() == ("", "")


def test_a_missing_extra_is_named(scratch, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'lm-privacy-workbench\[dask\]'"):
        make_backend(workers=0, scheduler="tcp://127.0.0.1:8786", scratch=scratch)


def test_folders_travel_as_bytes(folders, tmp_path):
    files = read_folder(folders["left"])
    assert files == {"below/three": b"3"}
    write_folder(files, tmp_path / "copy")
    assert read_folder(tmp_path / "copy") == files
    for name in ("../out", "/out", "below/../../out"):
        with pytest.raises(ValueError, match="leads out of its folder"):
            write_folder({name: b""}, tmp_path / "copy")
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path / "none")
