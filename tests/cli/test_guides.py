"""The site's guides, concepts and FAQ: every command can be typed, and the Python says what it shows."""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.audit.claims import parse_claim
from workbench.cli.app import COMMANDS, loaded
from workbench.core import registry
from workbench.interfaces import Released
from workbench.studies.study import study_names

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(
    [
        *DOCS.glob("guides/*.md"),
        *DOCS.glob("concepts/*.md"),
        DOCS / "faq.md",
        DOCS / "gallery.md",
        DOCS / "index.md",
    ]
)
MADE = {"trainer.py", "scores.csv", "study.toml", "make_scores.py", "test_relative_loss.py"}
"""Files that a page has its reader make, or copy from the examples."""

OF_A_PACKAGE = {"relative_loss"}
"""Attacks of the package that the plug-in author's guide makes."""


def commands(page: Path) -> Iterator[str]:
    """What a page tells its reader to type, in blocks for a shell and within sentences."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"`(workbench [a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


SHOWN = [(page.stem, line) for page in PAGES for line in commands(page) if line.startswith("workbench ")]
PLACEHOLDER = re.compile(r"\b(FILE|FOLDER|STUDY|HOST|MODEL)\b|--[\w-]+$")


def test_the_pages_show_commands() -> None:
    assert len(SHOWN) > 40
    assert {page for page, _ in SHOWN} > {
        "auditor",
        "researcher",
        "accountant_author",
        "ci_owner",
        "plugin_author",
    }


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_every_command_can_be_typed(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    assert name in COMMANDS
    if words == name.split() or (PLACEHOLDER.search(line) and "=" not in line):  # Named, not shown whole.
        known = {
            option
            for parameter in loaded(name).params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word for word in words if word.startswith("--")} <= known
        return
    values = loaded(name).make_context(name, words[len(name.split()) :]).params
    for attack in values.get("attack") or ():
        assert attack in registry.entries("attack") or attack in OF_A_PACKAGE
    if values.get("mechanism"):
        assert values["mechanism"] in registry.entries("mechanism")
    if values.get("study"):
        assert values["study"] in study_names() or values["study"] in MADE
    for target in values.get("targets") or ():
        assert target in registry.entries("accountant") or target == "acct:epsilon"
    for key in ("scores", "train", "function"):
        if values.get(key):
            assert str(values[key]).partition(":")[0] in MADE | {"FILE.py"}
    if values.get("claim"):
        assert parse_claim(values["claim"], released=Released.EVERY_UPDATE).describe()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_the_python_of_a_page_says_what_it_shows(page: Path) -> None:
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


def test_the_study_of_the_guide_is_the_example() -> None:
    assert (DOCS / "examples" / "study.toml").is_file()


def test_no_page_names_a_folder_of_a_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(tmp|home|work|opt)/", page.read_text(encoding="utf-8")), page.name
