"""CONTRIBUTING.md: its examples are written to files and run, as the page says."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from workbench.cli.app import main
from workbench.core import registry
from workbench.estimation import auc

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
FILES = {
    re.sub(r"^(# |\{# )|( #\})$", "", text.splitlines()[0]): text
    for language, text in BLOCKS
    if language != "sh"
}
COMMANDS = [
    line for language, text in BLOCKS if language == "sh" for line in text.replace("\\\n", "").splitlines()
]
ROOMS = ("attacks", "mechanisms", "workbench")
EXIT_CODES = {"tenth_noise": 1, "relative_loss": 0, "canary_loss": 1, "canary_loss.toml": 0, "zcdp": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's files, and its modules registered; both gone afterwards."""
    place = tmp_path_factory.mktemp("contributing")
    known = {kind: dict(entries) for kind, entries in registry._entries.items()}
    modules = set(sys.modules)
    for name, text in FILES.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in FILES:
        if name.endswith(".py") and name.startswith(ROOMS):
            imported(place, name)
    yield place
    for kind, entries in known.items():
        registry._entries[kind].clear()
        registry._entries[kind].update(entries)
    for name in set(sys.modules) - modules:
        if name.startswith("workbench."):
            del sys.modules[name]


def imported(place: Path, name: str) -> ModuleType:
    """A module of the page, under the name that its file would have in the repository."""
    dotted = name.removesuffix(".py").replace("/", ".")
    dotted = dotted if dotted.startswith("workbench.") else f"workbench.{dotted}"
    specification = importlib.util.spec_from_file_location(dotted, place / name)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[dotted] = module
    specification.loader.exec_module(module)
    return module


def test_the_page_has_an_example_of_each_part() -> None:
    parts = re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    assert parts == ["An attack", "A mechanism", "A game", "A study", "An accountant", "An estimator"]
    assert len(FILES) == 9
    assert len(COMMANDS) == 6


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_works(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    program, *words = shlex.split(command)
    assert program == "workbench"
    name = next(word for word in reversed(words) if word in EXIT_CODES)
    assert main(words) == EXIT_CODES[name], capsys.readouterr().err


@pytest.mark.slow
def test_a_new_game_is_audited_in_its_own_words(folder: Path) -> None:
    report = json.loads((folder / "canary_loss" / "report.json").read_text(encoding="utf-8"))
    (game,) = report["subjects"][0]["attacks"]
    assert game["game"]["description"].startswith("half of 40 independent trainings hold the canary record")
    assert len(game["scores"]) == 40
    scores, members = np.array(game["scores"]), np.array(game["members"], dtype=bool)
    assert auc(scores, members, confidence=0.95).estimate > 0.5


def test_a_new_estimator_passes_its_test(folder: Path) -> None:
    module = imported(folder, "tests/estimation/test_at_zero.py")
    assert module.test_the_bound_covers_the_truth() is None  # it asserts by itself
