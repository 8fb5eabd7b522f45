"""The report on disk: small games inside the JSON, large ones in a file beside it, and back."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.accounting import ApproximateDP
from workbench.audit.report_file import MOST_INLINE, read_report, scores_beside, write_report
from workbench.audit.scores import audit_scores
from workbench.cli.junit import junit_xml
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import plain
from workbench.interfaces import Adjacency, Claim, Released, Trials

CLAIM = Claim(
    guarantee=ApproximateDP(epsilon=1.0, delta=1e-5),
    about=Adjacency.ADD_REMOVE,
    released=Released.SCORES,
    source="the test",
)


def report_of(n: int) -> dict[str, Any]:
    """An audit of n noise scores."""
    generator = np.random.default_rng(0)
    return audit_scores(
        scores=generator.normal(size=n),
        members=np.arange(n) % 2 == 0,
        claim=CLAIM,
        trials=Trials.ONE_RUN,
        prior=None,
        adjacency=Adjacency.ADD_REMOVE,
        confidence=0.95,
        seed=0,
        command="test",
        source="a file",
    )


@pytest.mark.slow
def test_a_large_game_lies_beside_the_report_and_comes_back(tmp_path: Path) -> None:
    report, n = report_of(MOST_INLINE + 1), MOST_INLINE + 1
    copy = tmp_path / "copies" / "copy.json"
    write_report(report, out=tmp_path, json_file=copy)
    for path in (tmp_path / "report.json", copy):
        assert path.stat().st_size < 20_000
        (attack,) = json.loads(path.read_text())["subjects"][0]["attacks"]
        assert attack["scores"]["count"] == n
        assert attack["scores"]["file"] == scores_beside(path).name
        assert plain(read_report(path)) == plain(report)
    first = (tmp_path / "report.scores.npz").read_bytes()
    assert first == (tmp_path / "copies" / "copy.scores.npz").read_bytes()
    assert junit_xml(read_report(copy)) == junit_xml(report)


def test_a_small_game_stays_in_the_report(tmp_path: Path) -> None:
    report = report_of(100)
    write_report(report, out=tmp_path, json_file=None)
    assert not (tmp_path / "report.scores.npz").exists()
    assert (
        json.loads((tmp_path / "report.json").read_text())
        == plain(report)
        == read_report(tmp_path / "report.json")
    )


def test_what_is_no_report_or_not_its_scores_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(report_of(MOST_INLINE + 1), out=tmp_path, json_file=None)
    beside = scores_beside(path)
    beside.write_bytes(beside.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"report\.scores\.npz was not written with it"):
        read_report(path)
    beside.unlink()
    with pytest.raises(InputError, match="No such file"):
        read_report(path)
    for content in ("[]", "{", '{"subjects": 3}'):
        path.write_text(content)
        with pytest.raises(InputError, match="is no report of an audit") as caught:
            read_report(path)
        assert "\n" not in str(caught.value)


def test_the_terms_of_supplied_scores_carry_the_adjacency_that_is_judged() -> None:
    paired = replace(CLAIM, about=Adjacency.REPLACE_ONE)
    given = {"scores": np.arange(40.0), "members": np.arange(40) % 2 == 0, "trials": Trials.ONE_RUN}
    rest = {"prior": None, "confidence": 0.95, "seed": 0, "command": "test", "source": "a file"}
    report = audit_scores(claim=paired, adjacency=Adjacency.REPLACE_ONE, **given, **rest)  # type: ignore[arg-type]
    game = report["subjects"][0]["attacks"][0]["game"]
    assert game["adjacency"] == "replace-one"
    assert game["description"].endswith("a label says which of two records was in (replace-one)")
    with pytest.raises(
        UnsupportedError, match="adjacency is replace-one; the scores attack plays add-remove"
    ):
        audit_scores(claim=paired, adjacency=Adjacency.ADD_REMOVE, **given, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [0, 1, 2])
def test_where_there_is_no_room_for_all_files_none_is_changed(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, sync, left = report_of(100), os.fsync, [room]

    def synced(handle: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        sync(handle)

    for name in ("report.json", "report.html"):
        (tmp_path / name).write_text("before", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", synced)
    with pytest.raises(InputError, match=r"cannot write .*No space left"):
        write_report(report, out=tmp_path, json_file=tmp_path / "more.json")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("report.json", "report.html"), "before"
    )
