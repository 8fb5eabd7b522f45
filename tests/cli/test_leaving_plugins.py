"""Plug-ins that call `sys.exit` where the parent itself asks them something."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from study_driver import probed

from workbench.cli import app as cli
from workbench.core import registry
from workbench.core.registry import Entry
from workbench.studies.experiments import Experiment, Study
from workbench.studies.jobs import Refusal, jobs_of


def experiment_of(mechanism: str) -> Experiment:
    return Experiment(
        group="all", variant="leaving", mechanism=mechanism, attack="loss", corpus="digits",
        model="digits_logistic", members=20, epochs=1, batch_size=10, learning_rate=0.1, seed=0,
        epsilon=8.0, delta=1e-4,
    )  # fmt: skip


def leaving(monkeypatch: pytest.MonkeyPatch, method: str, code: int) -> Experiment:
    """An experiment whose mechanism exits in a method."""
    base = registry.entries("mechanism")["non_private"].factory
    name = f"leaving_{method}_{code}"
    made: Any = type("Leaving", (base,), {method: lambda self, *args, **kwargs: sys.exit(code)})
    monkeypatch.setitem(registry._entries["mechanism"], name, Entry(name=name, factory=made, summary=""))
    return experiment_of(name)


@pytest.mark.parametrize("code", [0, 3, 130])
def test_a_mechanism_that_exits_in_its_claim_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    found = jobs_of(leaving(monkeypatch, "claim", code))
    assert found.refusal == Refusal(kind="SystemExit", message=str(code))


@pytest.mark.parametrize("code", [0, 3, 130])
def test_a_mechanism_that_exits_in_a_trial_costs_what_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    study = Study(
        name="mine", title="Mine", profile="", replication="seed", source_sha256="",
        experiments=(leaving(monkeypatch, "train", code),),
    )  # fmt: skip
    unknown = probed(study).unknown
    assert any(f"trying it failed: SystemExit: {code}" in line for line in unknown)


def test_an_exit_of_unknown_origin_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda *args, **kwargs: sys.exit(3))
    assert cli.main(["list", "attacks"]) == 70
    assert "SystemExit: 3" in capsys.readouterr().err
