"""`--device`: refused in one line where it is not here, before any work; and kept apart in the store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in_device import stand_in

from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.studies.fields import checked
from workbench.studies.jobs import jobs_of
from workbench.studies.starting_points import on_device
from workbench.studies.study import load_study
from workbench.training import devices

STUDY = """
schema = 1
title = "One training"
replication = "seed"
[base]
mechanism = "non_private"
attack = "loss"
corpus = "digits"
model = "digits_mlp"
model_parameters = { hidden = 4 }
members = 12
epochs = 1
batch_size = 12
learning_rate = 0.1
seed = 0
[[group]]
name = "all"
"""


@pytest.mark.parametrize(
    "command",
    [
        ["audit"],
        ["audit", "--train", "train.py:train"],
        ["audit", "--checkpoint", "f", "--members", "a.txt", "--nonmembers", "b.txt"],
        ["run", "small.toml"],
        ["replay", "train.py:train"],
    ],
    ids=" ".join,
)
def test_a_device_that_is_not_here_is_refused_before_any_work(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "devices_here", lambda: ("cpu",))
    (tmp_path / "small.toml").write_text(STUDY, encoding="utf-8")
    assert main([*command, "--device", "cuda:1"]) == 2
    error = capsys.readouterr().err
    assert error.splitlines() == ["error: --device must be a device of this machine (cpu), got 'cuda:1'"]
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


@pytest.mark.parametrize("mode", [["--scores", "scores.csv"], ["--run", "run.json"]])
def test_what_computes_nothing_takes_no_device(mode: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *mode, "--device", "cpu"]) == 2
    assert "--device goes with --checkpoint or --train or an audit of a mechanism" in capsys.readouterr().err


def test_a_study_runs_on_a_device_and_its_report_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(STUDY, encoding="utf-8")
    with stand_in("cuda"):
        words = ["run", "small.toml", "--workers", "0", "--device", "auto", "--quiet"]
        assert main(words) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "studies/small/run.json").read_text(encoding="utf-8"))["device"] == "cuda"
    assert main(["report", "small.toml"]) == 0, capsys.readouterr().err


def test_a_file_names_a_device_and_old_keys_stay(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY, encoding="utf-8")
    study = load_study(str(file))
    file.write_text(STUDY.replace("seed = 0", 'seed = 0\ndevice = "cuda"'), encoding="utf-8")
    there = load_study(str(file))
    assert [each.device for each in (*study.experiments, *there.experiments)] == ["cpu", "cuda"]
    assert there.experiments == on_device(study, "cuda").experiments
    (ours,), (theirs,) = study.experiments, there.experiments
    assert jobs_of(ours).trainings[0].key != jobs_of(theirs).trainings[0].key
    assert jobs_of(replace(theirs, device="cpu")).measuring.key == jobs_of(ours).measuring.key
    assert "device" not in jobs_of(ours).trainings[0].identity["setup"]
    with pytest.raises(InputError, match="device must be cpu, cuda, cuda:N or mps, got 'auto'"):
        checked("device", "auto")
