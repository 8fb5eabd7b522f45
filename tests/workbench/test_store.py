"""The store: atomic records that notice damage, and keys that depend on content alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import store as store_module
from workbench.accounting import ApproximateDP
from workbench.errors import InputError
from workbench.interfaces import Trials
from workbench.store import Store, canonical, key_of, plain, write_atomically

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_canonical_form_reads_back(value: object) -> None:
    assert json.loads(canonical(value)) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=2, max_size=6))
def test_key_ignores_order_and_sees_content(form: dict[str, int]) -> None:
    shuffled = dict(reversed(list(form.items())))
    changed = {**form, next(iter(form)): 10**9 + sum(form.values())}
    assert key_of(form) == key_of(shuffled)
    assert key_of(form) != key_of(changed) or form == changed


def test_key_depends_on_the_schema_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of({"seed": 0})
    monkeypatch.setattr(store_module, "SCHEMA", store_module.SCHEMA + 1)
    assert key_of({"seed": 0}) != before


def test_plain_forms() -> None:
    form = plain(
        {
            "array": np.array([1.0, math.inf, math.nan]),
            "coin": np.bool_(True),
            "enum": Trials.ONE_RUN,
            "guarantee": ApproximateDP(epsilon=1.0, delta=0.0),
        }
    )
    assert form["array"] == [1.0, "inf", "nan"]
    assert form["coin"] is True
    assert form["enum"] == "one-run"
    assert form["guarantee"] == {"currency": "(epsilon, delta)-DP", "epsilon": 1.0, "delta": 0.0}
    with pytest.raises(TypeError, match="no plain form for object"):
        plain(object())


def test_record_round_trip(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = key_of({"a": 1})
    assert not store.has(key)
    store.append(key, {"scores": np.arange(3.0)})
    assert store.read(key) == {"scores": [0.0, 1.0, 2.0]}
    assert dict(store.records()) == {key: {"scores": [0.0, 1.0, 2.0]}}
    assert [path.name for path in (tmp_path / "records").iterdir()] == [f"{key}.json"]


@pytest.mark.parametrize("keep", [0, 1, 20, 60])
def test_record_cut_short_counts_as_absent(tmp_path: Path, keep: int) -> None:
    store = Store(tmp_path)
    store.append("k", {"value": 1.5})
    path = tmp_path / "records" / "k.json"
    path.write_text(path.read_text()[:keep])
    assert store.read("k") is None
    assert not list(store.records())


def test_edited_record_counts_as_absent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append("k", {"value": 1.5})
    path = tmp_path / "records" / "k.json"
    path.write_text(path.read_text().replace("1.5", "2.5"))
    assert not store.has("k")


def test_subject_folder_is_adopted_whole(tmp_path: Path) -> None:
    store = Store(tmp_path)
    scratch = store.scratch_folder()
    (scratch / "weights").write_text("w")
    assert store.subject_folder("k") is None
    assert (store.adopt_subject("k", scratch) / "weights").read_text() == "w"
    later = store.scratch_folder()
    (later / "weights").write_text("other")
    store.adopt_subject("k", later)
    assert store.subject_folder("k") == tmp_path / "subjects" / "k"
    assert (tmp_path / "subjects" / "k" / "weights").read_text() == "w"
    assert not later.exists()


def test_sweep_removes_only_what_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    scratch = store.scratch_folder()
    store.sweep()
    assert scratch.exists()
    monkeypatch.setattr(store_module, "STALE_SECONDS", -1.0)
    store.sweep()
    assert not scratch.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_atomically(path, "old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", refuse)
    with pytest.raises(InputError, match=r"cannot write .*report\.json: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["report.json"]


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="as a store"):
        Store(tmp_path / "file")
