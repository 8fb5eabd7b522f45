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

KILLS = 20
WORDS = (
    "audit --corpus digits --model digits_logistic --optimizer sgd --learning-rate 0.5 --candidates 60 "
    "--steps 40 --attack lira --attack-parameter lira.shadows=24 --no-control --workers 2 --quiet --out"
)


def started(folder: Path) -> subprocess.Popen[bytes]:
    """An audit in a session of its own, so that it can be killed with its workers."""
    command = [sys.executable, "-m", "workbench.cli", *WORDS.split(), str(folder / "out")]
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


@pytest.mark.exhaustive
def test_twenty_random_kills_change_no_result(tmp_path: Path) -> None:
    for name in ("killed", "calm"):
        (tmp_path / name).mkdir()
    begun = time.monotonic()
    assert started(tmp_path / "calm").wait() in (0, 1, 3)
    seconds = time.monotonic() - begun
    generator, kept, cut_short = np.random.default_rng(0), [], 0
    records = tmp_path / "killed/out/store/records"
    for _ in range(KILLS):
        process = started(tmp_path / "killed")
        try:
            # Half of the kills fall into the start, the others into the work.
            process.wait(timeout=generator.uniform(0.05, 0.9) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            cut_short += process.wait() == -signal.SIGKILL
        kept.append(len(list(records.glob("*.json"))))
    assert started(tmp_path / "killed").wait() in (0, 1, 3)
    assert kept == sorted(kept)
    assert cut_short >= KILLS // 4
    assert judged(tmp_path / "killed") == judged(tmp_path / "calm")
    print(f"{cut_short} of {KILLS} starts were killed; records kept after each: {kept}")
