"""Base models of a study: folders that stand in for them, and building what is missing before a run."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from workbench.cli import starting_points as first
from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.data.bases.models import TINY_GPT2_FOLDER
from workbench.studies import bases, starting_points
from workbench.studies.bases import BuildStage, BuildStep
from workbench.training import setup as workers

STUDY = """
schema = 1
title = "Two bases"
replication = "model"

[base]
attack = "loss"
attack_parameters = { canaries = 0.0 }
corpus = "clinical"
model_parameters = { max_length = 24 }
mechanism = "non_private"
members = 4
epochs = 1
batch_size = 2
learning_rate = 1e-3
seed = 0

[[group]]
name = "all"
grid = { model = ["gpt2_base", "llama_base"] }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the study, and with two folders that hold a model; no base is built."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(STUDY, encoding="utf-8")
    for name in ("own", "other"):
        shutil.copytree(TINY_GPT2_FOLDER, tmp_path / name)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(bases, "is_built", lambda name: name == "gpt2_base")
    workers.forget_corpora()
    yield tmp_path
    workers.forget_corpora()


def command(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code and both outputs, a line each where the terminal would fold them."""
    code = main(shlex.split(words))
    out, err = capsys.readouterr()
    return code, out, err


# What a user may say


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["llama_base"], "--base must be NAME=FOLDER, got 'llama_base'"),
        (["llama_base="], "--base must be NAME=FOLDER, got 'llama_base='"),
        (["llama=own"], "--base: unknown base 'llama'; did you mean 'llama_base'?"),
        (["llama_base=nowhere"], "--base: llama_base must be a folder that exists, got 'nowhere'"),
        (
            ["llama_base=empty"],
            "--base: llama_base: path must be a folder with config.json, empty has none",
        ),
        (["llama_base=two.toml"], "--base: llama_base must be a folder that exists, got 'two.toml'"),
        (["llama_base=own", "llama_base=other"], "--base: llama_base is given twice"),
        (
            ["bloom_base=own"],
            "--base: no experiment of study 'two' starts from 'bloom_base'; "
            "they start from gpt2_base, llama_base",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["run", "report"])
def test_what_cannot_be_is_refused_in_one_line(
    verb: str, given: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(f"{verb} two.toml {' '.join(f'--base {one}' for one in given)}", capsys)
    assert (code, out, err) == (2, "", f"error: {message}\n")
    assert not Path("studies").exists()


def test_a_stand_in_changes_the_experiments_of_its_base_alone(home: Path) -> None:
    from workbench.studies.study import load_study

    study = load_study("two.toml")
    changed = starting_points.with_stand_ins(study, starting_points.stand_ins({"llama_base": "own"}))
    assert [dict(one.model_parameters) for one in changed.experiments] == [
        {"max_length": 24},
        {"max_length": 24, "path": str(home / "own")},
    ]
    assert starting_points.missing_bases(study) == ("llama_base",)
    assert starting_points.missing_bases(changed) == ()


@pytest.mark.slow
def test_a_stand_in_is_run_remembered_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command("run two.toml --workers 0 --base llama_base=own", capsys)
    assert code == 0
    assert "To go on: workbench report two.toml --base llama_base=own" in out
    assert json.loads(Path("studies/two/run.json").read_text())["bases"] == {
        "llama_base": str(Path("own").resolve())
    }
    for words in ("", " --base llama_base=own", " --base llama_base=own --format json"):
        code, out, err = command(f"report two.toml{words}", capsys)
        assert (code, err) == (0, "")
        assert "made from 2 experiments" in out
    code, _, err = command("report two.toml --base llama_base=other --only llama_base=1", capsys)
    assert code == 2  # No field of that name: the selection comes before the stand-ins.


def test_what_is_in_the_folder_is_in_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = "run two.toml --workers 0 --base llama_base=own --only model=llama_base"
    assert command(words, capsys)[0] == 0
    assert "No work to do" in command(words, capsys)[1]
    with Path("own/notes.txt").open("w") as file:
        file.write("another model")
    workers.forget_corpora()
    assert "Done: 1 experiment, 1 training" in command(words, capsys)[1]


# What is missing is built first


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was asked to be built; building tells four steps and makes the base usable."""
    asked: list[tuple[str, ...]] = []

    def ensure(names: Sequence[str], progress: Callable[[BuildStep], None] | None, *, workers: int) -> None:
        asked.append(tuple(names))
        for done in range(5):
            if progress is not None:
                step = BuildStep(name=names[0], stage=BuildStage.TRAINING, done=done, total=4, loss=2.0)
                progress(step)
                progress(step)

    monkeypatch.setattr(bases, "ensure", ensure)
    return asked


def test_a_run_builds_what_is_missing_and_says_so_before(
    built: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, err = command("run two.toml --workers 0 --only model=llama_base", capsys)
    assert built == [("llama_base",)]
    first, *others = err.splitlines()
    assert first == "1 base model to build first, once: llama_base (as `workbench models build` does)"
    assert others[:2] == [
        "llama_base: training, step 0 of 4, loss 2.000",
        "llama_base: training, step 1 of 4, loss 2.000",
    ]
    assert sum("training, step" in line for line in others) == 5


def test_a_quiet_run_builds_without_a_word(
    built: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, err = command("run two.toml --workers 0 --only model=llama_base --quiet", capsys)
    assert built == [("llama_base",)]
    assert "to build" not in err


@pytest.mark.parametrize("words", ["--only model=gpt2_base", "--base llama_base=own"])
def test_nothing_is_built_that_nobody_needs(
    words: str, built: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(f"run two.toml --workers 0 {words}", capsys)[0] == 0
    assert built == []


@pytest.mark.slow
def test_a_dry_run_builds_nothing_says_so_and_counts_all(
    built: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = command("run two.toml --dry-run --json plan.json", capsys)
    assert code == 0
    assert built == []
    assert "1 base model would be built first, once: llama_base" in out
    totals: dict[str, Any] = json.loads(Path("plan.json").read_text())["totals"]
    assert (totals["trainings"], totals["measurings"]) == (2, 2)


def test_an_interrupted_build_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ensure(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bases, "ensure", ensure)
    code, _, err = command("run two.toml --workers 0 --base gpt2_base=own", capsys)
    assert code == 130
    assert "to go on with the rest: workbench run two.toml --base gpt2_base=own --workers 0" in err
    assert not Path("studies").exists()


def test_a_build_that_fails_ends_the_run_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ensure(*_: object, **__: object) -> None:
        raise InputError("base 'llama_base': no space left on device")

    monkeypatch.setattr(bases, "ensure", ensure)
    code, _, err = command("run two.toml --workers 0", capsys)
    assert code == 2
    assert "error: base 'llama_base': no space left on device" in err
    assert not Path("studies").exists()


def test_a_build_is_told_once_a_quarter() -> None:
    console = Console(record=True, width=200)
    tell = first._told(console)
    for done in range(101):
        tell(BuildStep(name="llama_base", stage=BuildStage.TRAINING, done=done, total=100))
    tell(BuildStep(name="llama_base", stage=BuildStage.JUDGING))
    lines = console.export_text().splitlines()
    assert len(lines) == 6
    assert lines[-1] == "llama_base: judging"
