"""`docs/commands/`: the pages are what the code gives, and what they show can be typed."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workbench.audit.claims import parse_claim
from workbench.cli.app import COMMANDS, callback_of, loaded, main
from workbench.cli.lists import LISTS, STUDIES
from workbench.core import registry
from workbench.interfaces import Released
from workbench.studies.study import study_names

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """`docs/build_commands.py`, which lies outside the packages."""
    specification = importlib.util.spec_from_file_location("build_commands", DOCS / "build_commands.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["build_commands"] = module  # Dataclasses look their module up.
    specification.loader.exec_module(module)
    return module


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The subcommand and its parameters, as the command line reads them; nothing is run."""
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    context = loaded(name).make_context(name, words[len(name.split()) :])
    return name, context.params


def test_the_pages_are_what_the_code_gives(builder: ModuleType) -> None:
    assert builder.differences() == [], "run: python docs/build_commands.py"


def test_a_page_that_differs_is_found(builder: ModuleType, tmp_path: Path) -> None:
    for name, text in builder.build().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert builder.differences(tmp_path) == []
    (tmp_path / "audit.md").write_text("# old", encoding="utf-8")
    (tmp_path / "run.md").unlink()
    (tmp_path / "gone.md").touch()
    found = ["run.md: missing", "audit.md: not what the code gives", "gone.md: of no command"]
    assert sorted(builder.differences(tmp_path)) == sorted(found)


def test_check_does_not_depend_on_the_terminal(tmp_path: Path) -> None:
    environment = {"COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "xterm-256color", "PATH": "/usr/bin:/bin"}
    finished = subprocess.run(
        [sys.executable, DOCS / "build_commands.py", "--check"],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        text=True,
        env=environment,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout == "docs/commands is up to date\n"


def test_every_subcommand_has_a_page_and_an_example(builder: ModuleType) -> None:
    names = [page.name for page in builder.pages()]
    wanted = {"audit", "claims", "list", "data fetch", "run", "report"}
    assert wanted | {"accountants list", "accountants check", "accountants ask"} <= set(names)
    assert sorted(COMMANDS) == names
    index = builder.build()["README.md"]
    for page in builder.pages():
        assert f"({page.file})" in index


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    assert COMMANDS[name].summary == str(callback_of(name).__doc__).splitlines()[0]


def test_pages_are_plain_and_within_the_width(builder: ModuleType) -> None:
    for name, text in builder.build().items():
        is_code = False
        for line in text.splitlines():
            is_code ^= line.startswith("```")
            assert line.isprintable(), (name, line)
            longest = max(map(len, line.split(" "))) + 4
            assert is_code or len(line) <= max(builder.WIDTH, longest), (name, line)


def test_a_page_says_all_that_the_code_says(builder: ModuleType) -> None:
    page = " ".join(builder.build()["run.md"].split())
    for part in (
        "workbench run [OPTION...] STUDY",
        "`--scheduler tcp://HOST:PORT`",
        "Default: the file's first.",
        "`--dry-run`",
        "- `1`: some failed",
        "- `130`: interrupted",
        "`STUDY`",
        "Required.",
    ):
        assert part in page
    page = " ".join(builder.build()["accountants-ask.md"].split())
    for part in (
        "--noise-multiplier NUMBER",
        "--adjacency add-remove|replace-one|zero-out",
        "Default: `add-remove`",
        "Default: `1.0`",
    ):
        assert part in page
    assert "`--control / --no-control`" in builder.build()["audit.md"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_examples_can_be_typed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(COMMANDS[name].command)
    assert program == "workbench"
    found, parameters = parsed(words)
    assert found == name
    if name in ("run", "report"):
        assert parameters["study"] in study_names()
    for target in parameters.get("targets") or ():
        assert target in registry.entries("accountant")
    if name == "list":
        assert parameters["what"] in {*LISTS, STUDIES}
    assert main([*name.split(), "--help"]) == 0
    assert COMMANDS[name].command.split()[-1] in capsys.readouterr().out


def test_the_help_of_an_audit_speaks_of_no_particular_mechanism() -> None:
    """Which mechanisms there are, and how they are audited, the registry and their own pages say."""
    page = (DOCS / "commands" / "audit.md").read_text(encoding="utf-8").partition("## Example")[0]
    assert not re.search(r"DP-SGD|permut|masked|secret subset|three adversaries|signs", page, re.IGNORECASE)


def test_a_docstring_without_exit_codes_is_refused(builder: ModuleType) -> None:
    def command() -> int:
        """Do something."""
        return 0

    with pytest.raises(ValueError, match="docstring needs"):
        builder._page("do", command)
    assert builder._exit_codes("Exit code: 0 a, b; 2 c.")[:2] == ("0 a, b", "2 c")


def test_every_claim_that_a_page_shows_can_be_typed() -> None:
    shown = [
        (page.name, found)
        for page in sorted(DOCS.rglob("*.md"))
        for found in re.findall(r"--claim \"([^\"]+)\"", page.read_text(encoding="utf-8"))
    ]
    assert "ferret.md" in [name for name, _ in shown]
    for name, text in shown:
        assert parse_claim(text, released=Released.EVERY_UPDATE).describe(), name
