"""The README: what it shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench.cli.app import main
from workbench.core import registry
from workbench.core.version import __version__

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAPERS = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130


def test_ci_runs_the_readme_test_command() -> None:
    commands = [block.strip() for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)]
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_links_and_pictures_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    local = [target for target in targets if "://" not in target]
    assert local
    missing = [target for target in local if not (ROOT / target).exists()]
    assert not missing


def test_named_files_of_the_rooms_exist() -> None:
    named = re.findall(r"`((?:workbench|attacks|mechanisms|data|reports)/[\w/]+\.py)`", PAPERS)
    assert len(named) >= 8
    assert not [name for name in named if not (ROOT / name).exists()]


def test_shown_names_are_registered() -> None:
    assert {"loss", "lira", "dirac_canary"} <= set(registry.entries("attack"))
    assert {"dp_sgd", "non_private"} <= set(registry.entries("mechanism"))
    known = {"clinical", "movie_reviews", "docstrings", "digits", "text_file", "huggingface_dataset"}
    assert known <= set(registry.entries("corpus"))


def test_the_citation_and_the_changelog_name_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert f"({__version__})" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_a_short_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-V"]) == 0
    assert capsys.readouterr().out == f"workbench {__version__}\n"
