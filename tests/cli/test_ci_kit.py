"""What a CI job takes from here: the Action, the hooks, the report's schema, and options for its log."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from workbench.cli.app import COMMANDS, main

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "workbench" / "action.yml"
CLAIM = "epsilon=1,delta=1e-5,adjacency=add-remove"


@pytest.fixture
def scores() -> str:
    """A membership game as CSV, which refutes the claim."""
    generator = np.random.default_rng(0)
    members = generator.integers(0, 2, size=300)
    rows = [f"{generator.normal(3.0 * member):.6f},{member}" for member in members]
    return "\n".join(["score,member", *rows]) + "\n"


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    return found


def checked(action: dict[str, Any]) -> str:
    """The program of the step that runs the command."""
    (step,) = [step for step in action["runs"]["steps"] if step.get("id") == "check"]
    program: str = step["run"]
    return program


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (f"--scores 'the scores.csv' --claim {CLAIM}", 1),
        pytest.param(
            f"--scores 'the scores.csv' --claim {CLAIM.replace('=1,', '=4,')}", 0, marks=pytest.mark.slow
        ),
        ("--scores $(touch made) --claim nonsense", 2),
        (f"--scores 'the scores.csv --claim {CLAIM}", 2),
    ],
)
def test_the_action_gives_the_verdict_and_keeps_the_reports(
    arguments: str, code: int, scores: str, tmp_path: Path
) -> None:
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    (tmp_path / "the scores.csv").write_text(scores, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COMMAND": "audit",
        "ARGUMENTS": arguments,
        "REPORTS": "kept reports",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    done = subprocess.run(
        [sys.executable, "-c", checked(action)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "output").read_text() == f"verdict={code}\n"
    assert not (tmp_path / "made").exists()
    if code != 2:
        report = json.loads((tmp_path / "kept reports" / "report.json").read_text())
        assert report["exit_code"] == code
        assert (tmp_path / "kept reports" / "junit.xml").is_file()
        assert (tmp_path / "kept reports" / "page" / "report.html").is_file()


def test_each_hook_starts_a_command() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert {hook["id"] for hook in hooks} == {"workbench-replay", "workbench-accountants"}
    for hook in hooks:
        program, *words = hook["entry"].split()
        name = " ".join(word for word in words if not word.startswith("-"))
        assert program == "workbench"
        assert name in COMMANDS
        assert main([*words, "--help"]) == 0
        assert hook["pass_filenames"] is False


@pytest.mark.parametrize("epsilon", ["1", "4"])
def test_a_report_fits_the_schema(epsilon: str, scores: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(scores, encoding="utf-8")
    claim = f"epsilon={epsilon},delta=1e-5,adjacency=add-remove"
    words = ["audit", "--scores", str(tmp_path / "s.csv"), "--claim", claim, "--out", str(tmp_path / "out")]
    code = main([*words, "-q"])
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, schema())
    assert report["exit_code"] == code == (1 if epsilon == "1" else 0)


@pytest.mark.slow
def test_the_report_of_a_replay_fits_the_schema(tmp_path: Path) -> None:
    trainer = f"{ROOT / 'tests' / 'zoo' / 'dp_sgd.py'}:no_noise"
    assert main(["replay", trainer, "--candidates", "40", "--out", str(tmp_path), "-q"]) == 1
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["replay"]["verdict"]["kind"] == "REFUTED"
    jsonschema.validate(report, schema())


def test_the_schema_refuses_what_is_no_report(scores: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(scores, encoding="utf-8")
    main(["audit", "--scores", str(tmp_path / "s.csv"), "--claim", CLAIM, "--out", str(tmp_path / "out")])
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    for name, value in {"schema": 2, "exit_code": 7, "verdict": {"kind": "PRIVATE"}, "seed": "0"}.items():
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**report, name: value}, schema())


class _Piped:
    """An input stream with these bytes."""

    def __init__(self, held: bytes) -> None:
        self.buffer = io.BytesIO(held)

    def isatty(self) -> bool:
        return False


def test_scores_come_from_the_input_stream(
    scores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Piped(scores.encode()))
    words = ["audit", "--scores", "-", "--claim", CLAIM, "--out", str(tmp_path / "out"), "--json", "-"]
    assert main(words) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"]["kind"] == "REFUTED"
    assert [subject["name"] for subject in report["subjects"]] == ["standard input"]


@pytest.mark.parametrize("held", [b"", b"\xff\xfe\x00", b"score,member\n1,7\n"])
def test_bad_scores_on_the_input_stream_are_named_as_such(
    held: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Piped(held))
    assert main(["audit", "--scores", "-", "--claim", CLAIM, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--scores -" in line
    assert "stdin.csv" not in line


def plain(printed: str) -> str:
    """Without colours."""
    return re.sub("\x1b\\[[0-9;]*m", "", printed)


def test_a_table_fits_in_80_columns(
    scores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.csv").write_text(scores, encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # Taken for a terminal.
    main(["audit", "--scores", str(tmp_path / "s.csv"), "--claim", CLAIM, "--out", str(tmp_path / "out")])
    table = plain(capsys.readouterr().out).partition("REFUTED:")[0]
    assert max(map(len, table.splitlines())) <= 80
    for cell in ("REFUTED", "epsilon >= ", "95 %, one_run", "scores"):
        assert cell in table
    main(["list", "claims"])
    assert max(map(len, plain(capsys.readouterr().out).splitlines())) <= 80


def test_an_error_shows_where_it_came_from_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "--scores", str(tmp_path / "none.csv"), "--claim", CLAIM]
    assert main(words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main([*words, "--verbose"]) == main(["--verbose", *words]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_colours_can_be_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["list", "claims"])
    assert "\x1b[1m" in capsys.readouterr().out
    main(["list", "claims", "--no-color"])
    assert "\x1b[3" not in capsys.readouterr().out
    assert "NO_COLOR" not in os.environ


@pytest.mark.parametrize(
    ("typed", "completed"), [("au", "audit"), ("audit --sco", "--scores"), ("accountants ch", "check")]
)
def test_a_shell_completes(typed: str, completed: str) -> None:
    words = ["workbench", *typed.split()]
    asked = {
        "_WORKBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "workbench.cli"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, [completed])


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_completion_is_installed_and_shown(option: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "workbench.cli", option, "bash"],
        # Without the detection the shell is named, whatever the test is started by.
        env={**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "completion" in done.stdout
    assert any(file.is_file() for file in tmp_path.rglob("*")) == (option == "--install-completion")
