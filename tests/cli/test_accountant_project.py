"""The example project of docs/accountants.md: its own pytest and its own CI job, in a copy of it.

The project has packages of its own named `data` and `reports`, as many projects do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROJECT = DOCS / "examples" / "accountant_project"
WORKFLOW = PROJECT / ".github" / "workflows" / "privacy-accounting.yml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, outside this repository."""
    copy = tmp_path / "project"
    shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in the project, without this run's own settings of pytest."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    words = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    return subprocess.run(words, cwd=project, env=inherited, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_its_tests_pass_beside_folders_named_data_and_reports(project: Path) -> None:
    assert (project / "data" / "__init__.py").is_file()
    assert (project / "reports" / "__init__.py").is_file()
    done = run(project, "pytest", "-q", "--accountant-seconds", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed, \d+ skipped", done.stdout)


@pytest.mark.slow
def test_its_tests_fail_with_the_broken_accountant(project: Path) -> None:
    broken = ("--accountant", "acct:epsilon_by_epochs", "--accountant-seconds", "5")
    done = run(project, "pytest", "-q", *broken, "-k", "epsilon_by_epochs and subsampled")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "smallest counterexample" in done.stdout
    assert "from acct import epsilon_by_epochs" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("epsilon", 0), ("epsilon_by_epochs", 1)])
def test_the_command_judges_both_accountants(name: str, code: int, project: Path) -> None:
    words = ("accountants", "check", f"acct:{name}", "--seconds", "5", "--quiet", "--junit", "out.xml")
    done = run(project, "workbench", *words, "--only", "never_below_certified_lower")
    assert done.returncode == code, done.stdout + done.stderr
    assert (project / "out.xml").is_file()


def test_the_workflow_runs_what_the_documentation_says() -> None:
    commands = re.findall(r"run: (.*)", WORKFLOW.read_text(encoding="utf-8"))
    assert [command.split()[0] for command in commands] == ["python", "pytest", "workbench"]
    page = (DOCS / "accountants.md").read_text(encoding="utf-8")
    assert commands[2] in page
    for link in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (DOCS / link).exists()
