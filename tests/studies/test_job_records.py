"""Records that somebody edited, copied or made by hand: no traceback, no wrong number, and the work again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import study_driver as driver

from workbench.execution.store import Store
from workbench.studies.experiments import Status
from workbench.studies.jobs import jobs_of
from workbench.studies.results import error_of, read_record, read_results
from workbench.studies.run import RunOptions, run_study

STUDY = driver.study_of(driver.experiment(), driver.experiment(seed=1))
KEYS = [jobs_of(one).measuring.key for one in STUDY.experiments]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two experiments, run once."""
    out = tmp_path_factory.mktemp("study")
    run_study(STUDY, out=out, options=RunOptions(workers=0))
    return out


@pytest.fixture
def out(ran: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(ran, tmp_path / "copy"))


def put(out: Path, key: str, content: bytes) -> None:
    """Write a record by hand, with the checksum that it should have."""
    digest = hashlib.sha256(content).hexdigest().encode()
    wrapped = b'{"sha256": "' + digest + b'", "content": ' + content + b"}"
    (out / "store" / "records" / f"{key}.json").write_bytes(wrapped)


def statuses(out: Path) -> list[Status]:
    return [outcome.status for outcome in read_results(STUDY, Store(out / "store")).outcomes]


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.pop(name)


def holding(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.update({name: value})


EDITS = {
    "no status": without("status"),
    "unknown status": holding("status", "odd"),
    "unhashable status": holding("status", []),
    "failed without an error": holding("status", "failed"),
    "no identity": without("job"),
    "other identity": lambda record: record["job"].update(seed=7),
    "no claim": without("claim"),
    "no scores": without("scores"),
    "fewer scores": lambda record: record["scores"].pop(),
    "a score that is nan": lambda record: record["scores"].__setitem__(0, "nan"),
    "a score that is text": lambda record: record["scores"].__setitem__(0, "x"),
    "memberships of lists": lambda record: record.update(included=[[1]] * len(record["scores"])),
    "members alone": lambda record: record.update(included=[True] * len(record["scores"])),
    "no memberships": holding("included", None),
    "metrics in a list": holding("metrics", []),
    "a metric that is text": lambda record: record["metrics"].update(roc_auc="x"),
    "a metric that is too large": lambda record: record["metrics"].update(roc_auc=10**400),
    "costs in a text": holding("cost", "x"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_record_counts_as_absent_and_is_made_again(
    out: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    store = Store(out / "store")
    before = store.read(KEYS[0])
    record = store.read(KEYS[0])
    assert before is not None
    assert record is not None
    edit(record)
    put(out, KEYS[0], json.dumps(record).encode())
    assert statuses(out) == [Status.MISSING, Status.DONE]
    summary = run_study(STUDY, out=out, options=RunOptions(workers=0))
    assert (summary.done, summary.skipped, summary.failed) == (1, 1, 0)
    after = read_record(store, KEYS[0])
    assert after is not None
    assert after["scores"] == before["scores"]


@pytest.mark.parametrize(
    "content",
    [b"", b"odd", b'"\xff"', b"{}", b"[" * 100_000, b'{"status": ' + b"9" * 5000 + b"}"],
    ids=["empty", "no JSON", "no text", "no fields", "too deep", "too long a number"],
)
def test_what_is_no_record_counts_as_absent(out: Path, content: bytes) -> None:
    put(out, KEYS[0], content)
    assert statuses(out) == [Status.MISSING, Status.DONE]


def test_a_record_under_another_ones_key_counts_as_absent(out: Path) -> None:
    records = out / "store" / "records"
    shutil.copy(records / f"{KEYS[1]}.json", records / f"{KEYS[0]}.json")
    assert statuses(out) == [Status.MISSING, Status.DONE]


def test_an_error_is_told_on_one_line_whatever_the_record_holds() -> None:
    record = {"status": "failed", "error": {"kind": "\x1b[31m", "message": "a\nb"}}
    assert error_of(record) == "\\x1b[31m: a b"
