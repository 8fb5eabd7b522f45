"""Audits that are killed at random moments, workers and all, say in the end what an undisturbed one says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask_cluster import Cluster

KILLS = 20
WORDS = (
    "audit --corpus digits --model digits_logistic --optimizer sgd --learning-rate 0.5 --candidates 60 "
    "--steps 40 --attack lira --attack-parameter lira.shadows=24 --no-control --quiet --out"
)


def started(folder: Path, *where: str) -> subprocess.Popen[bytes]:
    """An audit in a session of its own, so that it can be killed with its workers."""
    where = where or ("--workers", "2")
    command = [sys.executable, "-m", "workbench.cli", *WORDS.split(), str(folder / "out"), *where]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def judged(folder: Path) -> list[Any]:
    """What the report says of each attack, but for seconds."""
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    return [
        (attack["scores"], attack["members"], attack["verdict"])
        for subject in report["subjects"]
        for attack in subject["attacks"]
    ]


def killed(folder: Path, after: float) -> bool:
    """Whether an audit still went on so many seconds after its start, and was killed."""
    process = started(folder)
    try:
        process.wait(timeout=after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait() == -signal.SIGKILL
    assert process.returncode in (0, 1, 3)
    return False


@pytest.mark.exhaustive
def test_twenty_random_kills_change_no_result(tmp_path: Path) -> None:
    """An audit is killed and begun again until it ends, then another one, until twenty were killed."""
    calm = tmp_path / "calm"
    calm.mkdir()
    begun = time.monotonic()
    assert started(calm).wait() in (0, 1, 3)
    seconds = time.monotonic() - begun
    generator, kills, audits = np.random.default_rng(0), 0, 0
    while kills < KILLS:
        folder, kept = tmp_path / f"killed {audits}", [0]
        folder.mkdir()
        while killed(folder, generator.uniform(0.05, 0.9) * seconds):
            kills += 1
            kept.append(len(list((folder / "out/store/records").glob("*.json"))))
        assert kept == sorted(kept)
        assert judged(folder) == judged(calm)
        audits += 1
    print(f"{kills} kills of {audits} audits; records kept after each of the last one: {kept}")


@pytest.mark.dask
@pytest.mark.slow
def test_an_audit_whose_dask_worker_is_killed_says_the_same(tmp_path: Path) -> None:
    for name in ("calm", "cluster", "killed"):
        (tmp_path / name).mkdir()
    assert started(tmp_path / "calm").wait() in (0, 1, 3)
    cluster = Cluster(tmp_path / "cluster")
    try:
        workers = [cluster.worker("--no-nanny") for _ in range(2)]
        audit = started(tmp_path / "killed", "--scheduler", cluster.address)
        records = tmp_path / "killed/out/store/records"
        deadline = time.monotonic() + 300
        while len(list(records.glob("*.json"))) < 3:
            assert audit.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        workers[0].kill()
        assert audit.wait() in (0, 1, 3)
        assert workers[1].poll() is None
    finally:
        cluster.close()
    assert judged(tmp_path / "killed") == judged(tmp_path / "calm")
