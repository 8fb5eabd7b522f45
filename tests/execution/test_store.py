"""The store: atomic records that notice damage, and keys that depend on content alone."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.accounting import ApproximateDP
from workbench.core import keys
from workbench.core.errors import InputError
from workbench.core.keys import canonical, key_of, plain
from workbench.core.outputs import write_atomically
from workbench.execution import store as store_module
from workbench.execution.store import Store, StoreError
from workbench.interfaces import Trials

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
    monkeypatch.setattr(keys, "SCHEMA", keys.SCHEMA + 1)
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


def test_sweep_leaves_what_a_living_parent_fills(tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    scratch = store.scratch_folder()
    other.sweep()
    store.sweep()
    assert scratch.exists()
    store.close()
    assert not list((tmp_path / "scratch").iterdir())
    assert store.scratch_folder().is_dir()  # It comes back.


def test_sweep_removes_what_a_killed_parent_left(tmp_path: Path) -> None:
    """The lock of a process that got a SIGKILL is free at once, and its scratch is removed."""
    code = (
        "import os, signal, sys; from pathlib import Path; from workbench.execution.store import Store\n"
        "store = Store(Path(sys.argv[1])); (store.scratch_folder() / 'weights').write_text('w')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    place = tmp_path / "store"
    killed = subprocess.run([sys.executable, "-c", code, str(place)], cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list((place / "scratch").iterdir())) == 1
    Store(place).sweep()
    assert not list((place / "scratch").iterdir())


def test_sweep_goes_on_where_a_dying_worker_still_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be removed keeps its lock, so the next sweep finds it abandoned, and need not wait."""
    place = tmp_path / "scratch" / "left"
    (place / "job").mkdir(parents=True)
    Store(tmp_path)
    (place / store_module.LOCK_FILE).write_text("")
    with monkeypatch.context() as writing:
        writing.setattr(store_module.shutil, "rmtree", lambda *_, **__: None)
        Store(tmp_path).sweep()
    assert (place / store_module.LOCK_FILE).exists()
    Store(tmp_path).sweep()
    assert not place.exists()


def test_sweep_removes_what_nobody_locked_once_it_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    (tmp_path / "scratch" / "unlocked" / "job").mkdir(parents=True)
    store.sweep()
    assert (tmp_path / "scratch" / "unlocked").exists()
    monkeypatch.setattr(store_module, "STALE_SECONDS", -1.0)
    store.sweep()
    assert not list((tmp_path / "scratch").iterdir())


def _adopted(store: Store, content: str = "weights") -> Path:
    filled = store.scratch_folder()
    (filled / "parameters").write_text(content)
    (filled / "subject.json").write_text("{}")
    return store.adopt_subject("k", filled)


@pytest.mark.parametrize("damage", ["lost", "cut", "edited", "grown", "no manifest", "cut manifest", "empty"])
def test_a_damaged_subject_counts_as_absent_and_is_replaced(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    place = _adopted(store)
    assert store.subject_folder("k") == place
    if damage == "lost":
        (place / "parameters").unlink()
    elif damage == "cut":
        (place / "parameters").write_text("weig")
    elif damage == "edited":
        (place / "parameters").write_text("heights")
    elif damage == "grown":
        (place / "more").write_text("")
    elif damage == "no manifest":
        (place / store_module.MANIFEST_FILE).unlink()
    elif damage == "cut manifest":
        (place / store_module.MANIFEST_FILE).write_text('{"param')
    else:
        shutil.rmtree(place)
        place.mkdir()
    fresh = Store(tmp_path)
    assert fresh.subject_folder("k") is None
    assert _adopted(fresh) == place
    assert fresh.subject_folder("k") == place
    assert (place / "parameters").read_text() == "weights"


def test_a_store_that_knew_a_subject_notices_its_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place = _adopted(store)
    assert store.subject_folder("k") == place
    (place / "parameters").write_text("w")
    assert store.subject_folder("k") is None


@pytest.mark.parametrize("damaged", [False, True])
def test_parents_that_adopt_at_the_same_moment_agree(tmp_path: Path, damaged: bool) -> None:
    """The later ones find the place taken, and take that for success; what is damaged makes room once."""
    stores = [Store(tmp_path) for _ in range(4)]
    for key in map(str, range(10)):
        filled = [store.scratch_folder() for store in stores]
        for folder in filled:
            (folder / "parameters").write_text(folder.name)
        barrier = threading.Barrier(len(stores))
        if damaged:
            (tmp_path / "subjects" / key).mkdir()
            (tmp_path / "subjects" / key / "parameters").write_text("w")

        def adopt(store: Store, folder: Path, key: str = key, barrier: threading.Barrier = barrier) -> Path:
            barrier.wait()
            return store.adopt_subject(key, folder)

        with ThreadPoolExecutor(len(stores)) as pool:
            places = set(pool.map(adopt, stores, filled))
        assert places == {tmp_path / "subjects" / key}
        assert all(store.subject_folder(key) in places for store in stores)
        assert not any(folder.exists() for folder in filled)


def test_a_subject_under_another_key_counts_as_absent(tmp_path: Path) -> None:
    place = _adopted(Store(tmp_path))
    place.rename(place.with_name("another"))
    assert Store(tmp_path).subject_folder("another") is None
    place.with_name("another").rename(place)
    assert Store(tmp_path).subject_folder("k") == place


def test_the_first_subject_stays(tmp_path: Path) -> None:
    _adopted(Store(tmp_path), "first")
    assert (_adopted(Store(tmp_path), "second") / "parameters").read_text() == "first"


def test_a_full_disk_is_one_line_that_names_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    filled = store.scratch_folder()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "replace", refuse)
    line = rf"^cannot write to store {tmp_path}: No space left on device$"
    with pytest.raises(StoreError, match=line):
        store.append("k", {"value": 1})
    assert not list((tmp_path / "records").iterdir())
    monkeypatch.setattr(store_module.os, "rename", refuse)
    with pytest.raises(StoreError, match=line):
        store.adopt_subject("k", filled)
    monkeypatch.setattr(store_module.tempfile, "mkdtemp", refuse)
    with pytest.raises(StoreError, match=line):
        store.scratch_folder()


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
