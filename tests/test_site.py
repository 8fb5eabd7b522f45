"""The documentation site: its pictures, its reference, and the check of its links."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import workbench
from workbench import accounting, estimation, interfaces

DOCS = Path(__file__).parents[1] / "docs"


def loaded(name: str) -> ModuleType:
    """A script of `docs/`, which lies outside the packages."""
    specification = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def shown(page: str) -> set[str]:
    """What a page of the reference shows, without the modules' names."""
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    return {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, flags=re.MULTILINE)}


PICTURES = loaded("pictures")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "sampling"))
        for name in sorted(PICTURES.PICTURES)
    ],
)
def test_pictures_are_what_the_library_gives(name: str) -> None:
    kept = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert PICTURES.PICTURES[name]() == kept, "run: python docs/pictures.py"


def test_no_picture_is_left_over() -> None:
    assert {path.stem for path in (DOCS / "pictures").iterdir()} == set(PICTURES.PICTURES)


def test_the_reference_shows_all_public_names() -> None:
    assert set(workbench._ON_DEMAND) | {"audit"} <= shown("workbench")
    assert set(accounting.__all__) == shown("accounting")
    assert set(estimation.__all__) == shown("estimation")
    assert set(interfaces.__all__) <= shown("interfaces")


def test_the_check_of_the_site_finds_what_is_wrong(tmp_path: Path) -> None:
    check = loaded("check_site")
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">.</a><a href="b.html#gone">.</a><a href="c.html">.</a>'
        '<script src="https://example.org/x.js"></script><a href="https://example.org">.</a>',
        encoding="utf-8",
    )
    (tmp_path / "b.html").write_text('<h1 id="there">.</h1>', encoding="utf-8")
    assert check.problems(tmp_path) == [
        "a.html: b.html#gone: no such anchor",
        "a.html: c.html: no such file",
        "a.html: loads https://example.org/x.js",
    ]
