"""What an audit of a training function says before it trains, and that it is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench.cli.app import main

BODY = """import pathlib, random
LOG = pathlib.Path({log!r})
def train(records, seed):
    with LOG.open("a") as file:
        file.write(f"{{len(records)}}\\n")
    return lambda others: [random.Random(f"{{seed}} {{r['id']}}").random() for r in others]
"""


@pytest.mark.parametrize("adjacency", [pytest.param("add-remove", marks=pytest.mark.slow), "replace-one"])
def test_how_many_records_go_where_is_said_first(
    adjacency: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    (tmp_path / "mine.py").write_text(BODY.format(log=str(log)))
    words = ["audit", "--train", f"{tmp_path / 'mine.py'}:train", "--corpus", "digits", "--candidates", "80"]
    words += ["--canaries", "40", "--no-replay", "--runs", "2", "--out", str(tmp_path / "out")]
    assert main([*words, "--claim", f"epsilon=1,delta=1e-5,adjacency={adjacency}"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    found = re.search(
        r"records: train is given (about )?40 of 80 candidates \(--candidates\) of 'digits'", said
    )
    assert found is not None
    assert (found[1] is None) == (adjacency == "replace-one")
    assert "in each of 2 trainings; all 80 are scored" in said
    half = "about 20" if adjacency == "add-remove" else "20"
    assert f"and in 2 other trainings {half} of 40 crafted records, beside natural ones" in said
    assert "replay" not in said
    assert said.index("records: train") < said.index("training: 0/2")
    sizes = [int(line) for line in log.read_text().split()]
    assert len(sizes) == 4
    assert all(abs(size - 40) <= (0 if adjacency == "replace-one" else 15) for size in sizes)


@pytest.mark.slow
def test_a_quiet_audit_says_nothing_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(BODY.format(log=str(tmp_path / "log")))
    words = ["audit", "--train", f"{tmp_path / 'mine.py'}:train", "--corpus", "digits", "--candidates", "40"]
    assert main([*words, "--canaries", "0", "--no-replay", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert "records:" not in capsys.readouterr().err
