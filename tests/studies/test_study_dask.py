"""A study on a real cluster of two workers, one of which is killed at work."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import study_driver as driver
from dask_cluster import Cluster

from workbench.execution.store import Store
from workbench.execution.tasks import Failed, Started, Stepped
from workbench.studies.experiments import Status
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study

pytestmark = [pytest.mark.dask, pytest.mark.slow]

CORES = 97
"""What the workers take their machine for, so that it can be told from this one."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    place = tmp_path / "cluster"
    place.mkdir()
    running = Cluster(place)
    try:
        yield running
    finally:
        running.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _sample() -> Any:
    """Short jobs of every kind, and trainings that are long enough to be killed in their midst."""
    long = [
        driver.experiment(mechanism="dp_sgd", variant="long", epochs=100, seed=seed) for seed in range(10, 16)
    ]
    return driver.study_of(*driver.sample_study(1).experiments, *long)


def test_a_killed_workers_experiments_move_on(tmp_path: Path, cluster: Any) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text(f"import os\nos.cpu_count = lambda: {CORES}\n")
    port = _free_port()
    doomed = cluster.worker("--no-nanny", "--worker-port", str(port), path=elsewhere)
    cluster.worker("--no-nanny", path=elsewhere)
    events: list[Any] = []
    killed: list[str] = []

    def listen(event: Any) -> None:
        events.append(event)
        at_work = isinstance(event, Stepped) and 0 < event.done < event.total / 2
        if at_work and event.worker == f"127.0.0.1:{port}" and event.total > 100 and not killed:
            killed.append(event.task.id)
            doomed.kill()

    options = RunOptions(scheduler=cluster.address)
    summary = run_study(_sample(), out=tmp_path / "out", options=options, listener=listen)
    run_study(_sample(), out=tmp_path / "here", options=RunOptions(workers=0))

    assert len(killed) == 1
    starts = [event.worker for event in events if isinstance(event, Started) and event.task.id == killed[0]]
    assert len(starts) == len(set(starts)) == 2
    variants = {event.task.label.partition(",")[0] for event in events if isinstance(event, Failed)}
    assert variants == {"diverges", "too large"}
    assert summary.done == 12
    stores = [Store(tmp_path / place / "store") for place in ("out", "here")]
    texts = [driver.text_of(read_results(_sample(), store)) for store in stores]
    assert texts[0] == texts[1]
    for _, record in stores[0].records():
        if record["status"] == Status.DONE:
            assert record["hardware"]["cores"] == CORES
        elif record["error"]["kind"] == "InconclusiveError":  # It ran over there, and nothing else is known.
            assert record["worker"].startswith("127.0.0.1:")
            assert "hardware" not in record
        else:  # This process refused it.
            assert record["hardware"]["cores"] == os.cpu_count()
