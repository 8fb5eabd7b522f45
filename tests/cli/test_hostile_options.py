"""Every option that is a number, with values that nobody means: refused in one line, or answered."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.audit import run, run_training
from workbench.cli.app import COMMANDS, loaded, main
from workbench.core.errors import InputError

COMMAND_WORDS = {
    "audit": "audit --workers 0 --quiet --out out",
    "audit of scores": "audit --scores scores.csv --quiet --out out",
    "audit of a training": "audit --train train.py:train --retrain 20 --workers 0 --quiet --out out",
    "replay": "replay train.py:train --out out",
    "plan": "plan --game release --trials 50",
    "accountants ask": "accountants ask certified --noise-multiplier 1 --steps 2 --delta 1e-5",
    "accountants check": "accountants check certified",
    "run": "run study.toml --dry-run",
    "report": "report study.toml",
    "claims": "claims --ledger nowhere.toml",
}

MODES = {
    "audit of scores": {"--prior", "--seed", "--confidence"},
    "audit of a training": {
        *("--runs", "--canaries", "--retrain", "--candidates", "--workers", "--seed", "--confidence")
    },
}
"""Options of the command that go with a mode which is not its first."""

BY_THE_PLAN = ("--learning-rate", "--warmup", "--weight-decay", "--lora-alpha")
"""Options whose range the plan of the training checks."""

NEVER = (
    "nan",
    "-inf",
    "-1",
    "1e999",
    "1_000",
    "",
    "ten",
    "0x10",
    "1,5",
    "true",
    "\x1b[31m",
    "é\ud800",
    "9" * 400,
    "１０",
)
"""No option takes these as its number."""

PERHAPS = ("0", "inf", "1e-300", "-0.0", "0.999999999999", "1.5", " 5", str(10**18))
"""Numbers that some options take; then the command answers."""


def _numbers() -> Iterator[tuple[str, str]]:
    for name in COMMAND_WORDS:
        command: Any = loaded(name.partition(" of ")[0])
        for parameter in command.params:
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            foreign = MODES["audit of scores"] | MODES["audit of a training"] if name == "audit" else set()
            if parameter.name in command.numbers and flags:
                if name in MODES and flags[0] not in MODES[name]:
                    continue
                if flags[0] not in foreign - {"--seed", "--confidence", "--candidates", "--workers"}:
                    yield name, flags[0]


NUMBERS = tuple(_numbers())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with usable files; whatever would train is an error that says so."""
    monkeypatch.chdir(tmp_path)
    members = np.random.default_rng(0).random(40) < 0.5
    rows = [
        f"{score},{int(m)}"
        for score, m in zip(np.random.default_rng(1).normal(size=40), members, strict=True)
    ]
    Path("scores.csv").write_text("\n".join(["score,member", *rows]), encoding="utf-8")
    Path("train.py").write_text("def train(records, seed): ...\n", encoding="utf-8")

    def trains(*_: Any, **__: Any) -> None:
        raise InputError("all was accepted")

    monkeypatch.setattr(run, "audit_mechanisms", trains)
    for name in ("audit_training", "audit_replay"):
        monkeypatch.setattr(run_training, name, trains)


def outcome(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and error line; asserts that a refusal is one line."""
    code = main(words)
    captured = capsys.readouterr()
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in captured.err
    if code == 2:
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("error: ")
        assert len(captured.err) < 2500
        assert "\x1b" not in captured.err
    return code, captured.err


def with_option(name: str, flag: str, value: str) -> list[str]:
    """The command's words with an option set anew."""
    words = shlex.split(COMMAND_WORDS[name])
    if flag in words:
        place = words.index(flag)
        del words[place : place + 2]
    return [*words, f"{flag}={value}"]


def test_every_command_with_a_number_is_tried() -> None:
    tried = {name.partition(" of ")[0] for name, _ in NUMBERS}
    assert tried >= {name for name in COMMANDS if loaded(name).numbers - {"return"}} - {"models build"}
    assert len(NUMBERS) > 30


@pytest.mark.parametrize(("name", "flag"), NUMBERS)
def test_what_is_no_number_is_refused(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in NEVER:
        code, said = outcome(with_option(name, flag, value), capsys)
        assert code == 2, value
        assert flag in said or (flag in BY_THE_PLAN and value == "-1"), value


@pytest.mark.parametrize("flag", BY_THE_PLAN)
def test_what_the_plan_refuses_is_named_as_the_option(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    code, said = outcome([*shlex.split(COMMAND_WORDS["audit"]), "--adapter=lora", f"{flag}=-1"], capsys)
    assert code == 2
    assert f"{flag} must be" in said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flag"), NUMBERS)
def test_any_number_is_answered_or_refused(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "accountants check":
        pytest.skip("its answer takes a minute")
    for value in PERHAPS:
        outcome(with_option(name, flag, value), capsys)
