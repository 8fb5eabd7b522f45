"""What a job on a pool tells of itself: heard while it runs, and gone afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from telling_work import work

from workbench.execution import engine
from workbench.execution.engine import Engine, Job
from workbench.execution.progress import FILE, heard_in, told_in
from workbench.execution.store import Store


def test_what_is_told_is_heard_until_the_job_ends(tmp_path: Path) -> None:
    assert heard_in(tmp_path) is None
    with told_in(tmp_path, "somebody") as told:
        told("a part", 1, 7)
        told("a part", 2, 7)  # Too soon to be worth a file.
        assert heard_in(tmp_path) == ("somebody, a part", 1, 7)
        told("a part", 7, 7)
        assert heard_in(tmp_path) == ("somebody, a part", 7, 7)
        (tmp_path / FILE).write_text("[")
        assert heard_in(tmp_path) is None
    assert not list(tmp_path.iterdir())
    with told_in(None, "somebody") as told:
        told("a part", 1, 1)


def test_the_parent_passes_on_what_a_job_on_the_pool_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.05)
    heard: list[tuple[str, int, int]] = []
    with Engine(Store(tmp_path), 1, lambda *told: heard.append(told)) as running:
        records = running.run("working", [Job(identity={"a": 1}, payload=5)], work, keeps_folder=False)
    assert records[0]["done"] == 5
    assert ("somebody, a part", 3, 7) in heard
    assert heard[-1] == ("working", 1, 1)
