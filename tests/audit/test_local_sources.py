"""A stored result is that of the user's sources: what they import, from where, and what is not counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbench.audit.local_sources import local_sources, sources_sha256
from workbench.audit.user_training import UserTraining

FILES = {
    "mine.py": "import os, numpy, torch, workbench\nimport near_of_h\nfrom packed_h.sub import part\n"
    "def train(records, seed):\n    import late_h\n    return lambda records: [0.0] * len(records)\n",
    "near_of_h.py": "import deep_h\n",
    "deep_h.py": "import near_of_h\n",
    "late_h.py": "",
    "numpy_of_mine.py": "",
    "packed_h/__init__.py": "",
    "packed_h/sub/__init__.py": "from ..other import VALUE\n",
    "packed_h/sub/part.py": "",
    "packed_h/other.py": "VALUE = 1\n",
    "packed_h/unused.py": "",
}
COUNTED = set(FILES) - {"numpy_of_mine.py", "packed_h/unused.py"}


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "mine.py"


def test_what_is_imported_is_found_and_what_is_installed_is_left_out(trainer: Path) -> None:
    assert {path.relative_to(trainer.parent).as_posix() for path in local_sources(trainer)} == COUNTED


@pytest.mark.parametrize("name", sorted(FILES))
def test_an_edit_counts_where_the_file_is_imported(name: str, trainer: Path) -> None:
    before = sources_sha256(trainer)
    edited = trainer.parent / name
    edited.write_text(f"{edited.read_text()}# Edited.\n")
    assert (sources_sha256(trainer) != before) == (name in COUNTED)


def test_a_training_function_has_the_hash_of_all(trainer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FILES:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py").partition("/")[0], raising=False)
    assert UserTraining(f"{trainer}:train").source_sha256 == sources_sha256(trainer)


def test_equal_sources_elsewhere_have_an_equal_hash(trainer: Path, tmp_path: Path) -> None:
    before = sources_sha256(trainer)
    trainer.rename(trainer.with_name("again.py"))
    (tmp_path / "again.py").rename(trainer)
    assert sources_sha256(trainer) == before


@pytest.mark.parametrize("text", ["def (", "x = '\0'", "import", "from . import *\nfrom ..... import a"])
def test_what_cannot_be_parsed_is_a_file_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(text)
    assert local_sources(path) == (path,)
