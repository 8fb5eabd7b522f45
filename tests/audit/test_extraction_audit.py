"""Canary extraction in audits and studies: its numbers arrive, and its words repeat them and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_driver as driver

from workbench.accounting import ApproximateDP
from workbench.attacks.canary_extraction import NOT_SHOWN, SHOWN, CanaryExtraction
from workbench.attacks.loss import LossAttack
from workbench.audit import run
from workbench.audit.run import audit_mechanisms
from workbench.audit.scores import audit_scores
from workbench.audit.settings import embedded_settings
from workbench.cli import terminal
from workbench.core import registry
from workbench.core.keys import plain
from workbench.execution.store import Store
from workbench.interfaces import Adjacency, Claim, Released, Trials
from workbench.reports.shared.pages.audit import aside_view, html
from workbench.studies.experiments import Status
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study

FEW = {"secrets": 3, "insertions": 2, "generations": 40, "references": 30}


def details(**changes: float) -> dict[str, Any]:
    """What the attack leaves, as a record keeps it."""
    found: dict[str, Any] = {
        "memorised": 0.0,
        "memorised_p_value": 0.5,
        "confidence": 0.95,
        "secrets": 10.0,
        "insertions": 1.0,
        "presentations": 9.6,
        "generated": 4000.0,
        "valid": 3000.0,
        "exact_matches": 0.0,
        "chance_exact_matches": 1e-11,
        "secrets_recovered": 0.0,
        "prefix_matches": 2.0,
        "chance_prefix": 1.5,
        "prefix_p_value": 0.4,
        "prefix_called": 4.0,
        "exposure_mean": 1.5,
        "exposure_highest": 3.0,
        "exposure_most": 9.97,
        "exposure_low": 1.1,
        "exposure_high": 1.9,
        "exposure_p_value": 0.4,
        "exposure_called": 2.6,
        "chance_exposure": 1.44,
        "chance_exposure_low": 0.7,
        "chance_exposure_high": 2.4,
        "secret_p_value": 0.9,
        "secrets_memorised": 0.0,
        "secrets_for_power": 2.0,
    }
    for n in (1, 2, 3, 4):
        own = {"": 0.14, "_p_value": 0.3}
        found |= {f"jaccard_{n}{name}": value for name, value in own.items()}
        found |= {f"chance_jaccard_{n}{end}": 0.15 for end in ("", "_low", "_high")}
    return found | changes


def form(**changes: Any) -> dict[str, Any]:
    """The form of one subject's extraction."""
    found = CanaryExtraction.aside("dp_sgd", "subject", details(**changes))
    assert found is not None
    return found


def test_what_is_not_shown_is_never_called_private() -> None:
    found = form()
    text = " ".join(found["says"])
    assert found["verdict"] == NOT_SHOWN
    assert "is not shown (p = 0.5, at 95 % confidence); this is no statement that they are private" in text
    assert "What would have been shown: 2 fully memorised secrets of 10, with a probability of 80 %" in text
    assert "each in 1 training record;" in text


def test_what_is_memorised_is_counted() -> None:
    found = form(memorised=1.0, memorised_p_value=0.0004, secrets_recovered=6.0, exact_matches=2270.0)
    text = " ".join(found["says"])
    assert found["verdict"] == SHOWN
    assert "6 of 10 are generated verbatim, in 2,270 of 4,000 continuations" in text
    assert "What would have been shown" not in text


def test_the_verdict_is_beside_the_claim() -> None:
    many, one = (" ".join(form(insertions=count)["says"]) for count in (100.0, 1.0))
    assert "multiplies a claim's epsilon by the 100 records that tell a secret: this verdict" in many
    assert "multiplies" not in one
    assert "This verdict is beside the claim, and has no part in the exit code." in one


def test_every_number_has_its_chance_level_beside_it() -> None:
    rows = {row["name"]: row for row in form()["rows"]}
    assert rows["mean exposure, bits (at most 9.97)"]["chance"] == "1.44 [0.7 to 2.4]"
    assert rows["its interval among all secrets there are"]["measured"] == "1.1 to 1.9"
    similar = rows["their mean 1-gram similarity"]
    assert (similar["measured"], similar["chance"], similar["p_value"]) == (
        "0.14",
        "0.15 [0.15 to 0.15]",
        "0.3",
    )
    assert len(rows) == 10


def test_numbers_that_are_none_are_said_to_be() -> None:
    """A record keeps what is not finite as text."""
    rows = {row["name"]: row for row in form(valid=0.0, jaccard_2="nan", chance_jaccard_2="nan")["rows"]}
    assert rows["their mean 2-gram similarity"]["measured"] == "none"


def test_subjects_that_nothing_was_extracted_from_have_no_form() -> None:
    assert LossAttack.aside("a", "subject", {"x": 1.0}) is None


def test_the_page_draws_what_is_not_shown_as_undecided() -> None:
    views = aside_view(CanaryExtraction.aside_terms(), [form(), form(memorised=1.0)])["views"]
    assert [view["kind"] for view in views] == ["undecided", "refuted"]
    assert [view["word"] for view in views] == ["Not shown", "Memorised"]


CLAIM = Claim(
    guarantee=ApproximateDP(epsilon=1.0, delta=1e-5),
    about=Adjacency.ADD_REMOVE,
    released=Released.EVERY_UPDATE,
    source="the user",
)


class OtherAside(LossAttack):
    """An attack whose aside has a heading of its own."""

    @classmethod
    def aside(cls, name: str, role: str, details: Mapping[str, Any]) -> dict[str, Any]:
        return {**form(), "subject": name, "role": role}

    @classmethod
    def aside_terms(cls) -> dict[str, str]:
        return {"key": "other", "heading": "Another attack's numbers"}


def test_another_attacks_aside_has_its_own_heading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = replace(registry.entries("attack")["loss"], factory=OtherAside)
    monkeypatch.setitem(registry._entries["attack"], "loss", entry)
    report = audit_scores(
        scores=np.arange(40.0),
        members=np.arange(40) % 2 == 0,
        claim=CLAIM,
        trials=Trials.ONE_RUN,
        prior=None,
        adjacency=Adjacency.ADD_REMOVE,
        confidence=0.95,
        seed=0,
        command="test",
        source="a file",
    )
    report["subjects"][0]["attacks"][0]["attack"] = "loss"
    report |= run._asides(report["subjects"])
    read = json.loads(json.dumps(plain(report)))
    page = html(report=read)
    assert '<h2 id="other">Another attack&#39;s numbers</h2>' in page
    terminal.print_report(read, quiet=False)
    assert "Another attack's numbers from a file" in capsys.readouterr().out
    assert "Canary extraction" not in page


SETTINGS = embedded_settings(
    claim=CLAIM,
    attacks=("canary_extraction",),
    attack_parameters={"canary_extraction": FEW},
    candidates=20,
    steps=2,
    sampling_probability=0.2,
    corpus_parameters={"attributes": "brief"},
    workers=0,
)


@pytest.mark.slow
def test_an_audit_tells_what_it_extracted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = audit_mechanisms(SETTINGS, out=tmp_path, command="test")
    assert [(one["subject"], one["role"]) for one in report["extraction"]] == [
        ("dp_sgd", "subject"),
        ("non_private", "control"),
    ]
    assert report["exit_code"] in (0, 3)
    read = json.loads(json.dumps(report))
    page = html(report=read)
    assert "Canary extraction" in page
    assert "mean exposure, bits" in page
    terminal.print_report(read, quiet=False)
    printed = capsys.readouterr().out
    assert "Canary extraction from dp_sgd" in printed
    assert "Canary extraction from non_private (control)" in printed
    assert "no statement that they are private" in printed


@pytest.mark.slow
def test_reports_without_extraction_are_as_they_were(tmp_path: Path) -> None:
    report = audit_mechanisms(
        replace(SETTINGS, attacks=("loss",), attack_parameters={}, control=False),
        out=tmp_path,
        command="test",
    )
    assert "extraction" not in report
    assert "Canary extraction" not in html(report=json.loads(json.dumps(report)))


@pytest.mark.slow
def test_a_study_measures_extraction_and_membership_by_one_training(tmp_path: Path) -> None:
    found = driver.experiment(
        mechanism="non_private",
        epsilon=None,
        delta=None,
        attack="canary_extraction",
        attack_parameters=FEW,
        corpus="clinical",
        corpus_parameters={"attributes": "brief"},
        model="tiny_gpt2",
        members=10,
        batch_size=4,
        epochs=1,
    )
    study = driver.study_of(found, replace(found, attack_parameters={**FEW, "prompt": "bare"}))
    summary = run_study(study, out=tmp_path, options=RunOptions(workers=0))
    assert (summary.done, summary.failed, summary.trained) == (2, 0, 1)
    paper, bare = read_results(study, Store(tmp_path / "store")).outcomes
    assert paper.status is Status.DONE
    assert paper.scores == bare.scores
    for name in ("jaccard_1", "chance_jaccard_1", "exposure_mean", "memorised", "valid", "presentations"):
        assert f"attack_{name}" in paper.metrics
    assert paper.metrics["attack_prompt_tokens"] > bare.metrics["attack_prompt_tokens"]
    assert 0.0 <= paper.metrics["roc_auc"] <= 1.0
