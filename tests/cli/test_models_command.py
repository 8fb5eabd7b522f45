"""`workbench models`: what it prints, its exit codes, and that a stopped build can go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import models as models_command
from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.studies import bases
from workbench.studies.bases import BaseCard, BuildProgress, BuildStage, BuildStep

STEPS = 20


@dataclass
class FakeBase:
    """A base that is built by counting."""

    name: str
    place: Path
    built: bool = False
    fails: type[BaseException] | None = None
    builds: list[str] = field(default_factory=list)

    def is_built(self) -> bool:
        """Whether it was counted."""
        return self.built

    def build(self, progress: BuildProgress) -> Path:
        """Count."""
        self.builds.append(self.name)
        start = BuildStep(name=self.name, stage=BuildStage.TEXT, total=STEPS)
        progress(start)
        for step in range(1, STEPS + 1):
            progress(replace(start, stage=BuildStage.TRAINING, done=step, loss=7.0 - 0.1 * step))
            if self.fails is not None:
                raise self.fails("the cache is full")
        progress(replace(start, stage=BuildStage.JUDGING, done=STEPS))
        self.built = True
        return self.place

    def card(self) -> BaseCard:
        """What there is to know of it."""
        known: dict[str, Any] = {"size_bytes": 2_200_000, "perplexity": 95.2, "bits_per_byte": 2.18}
        return BaseCard(
            name=self.name,
            family="Abacus",
            stands_for="ABACUS-1B",
            parameters=1_234_567,
            is_built=self.built,
            place=self.place,
            **(known if self.built else {}),
        )


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeBase]:
    """Three bases, of which one is built."""
    found = {name: FakeBase(name, tmp_path / name) for name in ("alpha", "beta", "gamma")}
    found["beta"].built = True
    entries = {name: lambda base=base: base for name, base in found.items()}
    monkeypatch.setattr(bases.registry, "entries", lambda kind: entries)
    monkeypatch.setattr(bases.registry, "create", lambda kind, name: entries[name]())
    return found


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `workbench models ...` here; returns exit code, output and error stream."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["models", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


Ran = Callable[..., tuple[int, str, str]]


def test_without_a_subcommand_it_prints_its_help(ran: Ran) -> None:
    code, out, _ = ran()
    assert code == 0
    assert "build" in out
    assert "list" in out


def test_the_list_says_what_is_built(known: dict[str, FakeBase], ran: Ran) -> None:
    code, out, err = ran("list")
    assert (code, err) == (0, "")
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert set(rows) >= set(known)
    assert " no " in rows["alpha"]
    assert "95.2" not in rows["alpha"]
    for part in (" yes ", "Abacus", "ABACUS-1B", "1,234,567", "2.2 MB", "95.2", "2.18"):
        assert part in rows["beta"]
    code, out, err = ran("list", "--json")
    assert (code, err) == (0, "")
    said = {row["name"]: row for row in json.loads(out)}
    assert said["beta"]["perplexity"] == 95.2
    assert said["beta"]["place"] == str(known["beta"].place)
    assert said["alpha"]["perplexity"] is None
    assert [said[name]["is_built"] for name in ("alpha", "beta", "gamma")] == [False, True, False]


def test_build_builds_what_is_missing_and_then_has_nothing_to_do(
    known: dict[str, FakeBase], ran: Ran
) -> None:
    code, out, err = ran("build", "--workers", "0")
    assert code == 0
    assert [base.builds for base in known.values()] == [["alpha"], [], ["gamma"]]
    assert f"alpha: perplexity 95.2 a token, in {known['alpha'].place}" in out
    assert "Built 2 bases in " in out
    lines = err.splitlines()
    assert lines[0] == "alpha: reading the text"
    assert lines[1] == "alpha: step 1/20, loss 6.90"
    assert lines[2].startswith("alpha: step 2/20, loss 6.80, about ")
    assert lines[2].endswith(" remaining")
    assert lines[-1] == "gamma: judging"
    assert len(lines) == 2 * 13  # the text, the first step, a line a tenth, the judging
    code, out, err = ran("build")
    assert (code, out, err) == (0, "Nothing to build: alpha, beta, gamma are there\n", "")


def test_named_bases_are_built_alone_and_once(known: dict[str, FakeBase], ran: Ran) -> None:
    code, out, err = ran("build", "gamma", "gamma", "--workers", "0", "--quiet")
    assert (code, out, err) == (0, "", "")
    assert [base.builds for base in known.values()] == [[], [], ["gamma"]]
    assert ran("build", "beta")[1] == "Nothing to build: beta is there\n"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["alhpa"], "unknown base 'alhpa'; did you mean 'alpha'?"),
        (["alpha", "nothing like it"], "unknown base 'nothing like it'"),
        (["--workers", "-1"], "--workers must be in [0, 64], got -1"),
        (["--workers", "65"], "--workers must be in [0, 64], got 65"),
        (["--worker", "1"], "--worker"),
        (["--workers", "1", "--scheduler", "tcp://h:1"], "--workers and --scheduler exclude each other"),
        (["--scheduler", "h"], "--scheduler must be tcp://HOST:PORT, got 'h'"),
    ],
)
def test_bad_input_is_one_line_and_builds_nothing(
    words: Sequence[str], part: str, known: dict[str, FakeBase], ran: Ran
) -> None:
    code, out, err = ran("build", *words)
    assert (code, out) == (2, "")
    assert part in err
    assert err.count("\n") == 1
    assert not any(base.builds for base in known.values())


def test_what_a_build_refuses_is_one_line(known: dict[str, FakeBase], ran: Ran) -> None:
    known["alpha"].fails = InputError
    code, _, err = ran("build", "alpha", "--workers", "0", "--quiet")
    assert (code, err) == (2, "error: base 'alpha': the cache is full\n")


def test_an_interrupt_says_how_to_go_on(known: dict[str, FakeBase], ran: Ran) -> None:
    known["gamma"].fails = KeyboardInterrupt
    code, out, err = ran("build", "--workers", "0", "--quiet")
    assert (code, out) == (130, "")
    assert err == "error: interrupted: what is done is kept; to go on: workbench models build gamma\n"


def test_on_a_terminal_each_base_is_a_bar(
    known: dict[str, FakeBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    console = Console(force_terminal=True, width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    monkeypatch.setattr(models_command.terminal, "error_console", lambda: console)
    with models_command.build_display(quiet=False) as progress:
        known["alpha"].build(progress)
    console.file.close()
    text = console.export_text()
    assert "alpha" in text
    assert "20/20" in text
    assert "judging" in text


def test_listing_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from workbench.cli.app import main; main(['models', 'list']); "
        "main(['models', 'build', 'gpt2_base']); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "WORKBENCH_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-2:] == ["Nothing to build: gpt2_base is there", "False"]
    assert done.stderr == ""


@pytest.mark.slow
def test_ctrl_c_stops_the_processes_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(BUILDING, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "WORKBENCH_CACHE": str(tmp_path / "cache"), "TRANSFORMERS_VERBOSITY": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "step" in line:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
                break
        out, rest = process.communicate(timeout=120)
    assert process.returncode == 130
    assert out == ""
    said = [line for line in rest.splitlines() if "step" not in line and "reading" not in line]
    assert len(said) == 1
    assert said[0].startswith("error: interrupted: what is done is kept; to go on: workbench models build ")
    kept = list((tmp_path / "cache" / "bases").glob(".*.work/state"))
    assert kept


BUILDING = """
import sys
from workbench.cli.app import main
from workbench.data.bases.texts import public

if __name__ == "__main__":
    texts = [f"The square of {i}, which is what this text is about, is {i * i}." for i in range(3000)]
    found = {"packages": texts[:1500], "python": texts[1500:], "docstrings": texts[::100]}
    public._collect = lambda: found
    public.load()
    sys.exit(main(["models", "build", "llama_base", "bloom_base"]))
"""
