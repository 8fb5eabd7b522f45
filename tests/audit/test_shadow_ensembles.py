"""Shadows trained as an ensemble: the same models, in one job, and as many as take the time of four."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.attacks.lira import LiraAttack
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import AuditSettings, default_settings
from workbench.audit.subjects import CONTROL, MAIN, Audited, audited_by
from workbench.estimation import auc
from workbench.execution.store import Store
from workbench.games.membership import MembershipSeen, References
from workbench.training.setup import ShadowsJob, TrainingJob, create_mechanism, load_corpus, make_plan, train

SMALL: dict[str, Any] = {
    "corpus": "digits",
    "corpus_parameters": {},
    "model": "digits_logistic",
    "model_parameters": {},
    "attacks": ("lira",),
    "candidates": 60,
    "steps": 12,
    "workers": 0,
}


ADAPTERS: dict[str, Any] = {
    "corpus": "clinical",
    "corpus_parameters": {"attributes": "short"},
    "model": "tiny_gpt2",
    "model_parameters": {"max_length": 24},
    "adapter": "lora",
    "candidates": 24,
    "steps": 4,
    "sampling_probability": 0.2,
}


def settings_of(mechanism: str = "dp_sgd", **changes: Any) -> AuditSettings:
    return default_settings(mechanism, **{**SMALL, **changes})


def shadows_of(settings: AuditSettings) -> int:
    return int(settings.attack_parameters["lira"]["shadows"])


def test_an_audit_takes_64_shadows_where_an_ensemble_trains_them() -> None:
    """Not of other models or mechanisms, nor where the control's would be trained one at a time."""
    assert shadows_of(settings_of()) == shadows_of(settings_of("non_private", model="digits_mlp")) == 64
    assert shadows_of(settings_of(model="digits_vit")) == 4
    assert shadows_of(settings_of("autoclip")) == 4
    assert shadows_of(settings_of(control_mechanism="autoclip")) == 4
    assert shadows_of(settings_of(control_mechanism="autoclip", control=False)) == 64
    assert shadows_of(default_settings("dp_sgd")) == 4
    assert shadows_of(default_settings("dp_sgd", adapter="lora")) == 4
    assert shadows_of(settings_of(**ADAPTERS)) == 4
    chosen = settings_of(attack_parameters={"lira": {"shadows": 6}})
    assert shadows_of(chosen) == 6


def test_the_shadows_are_those_of_one_training_each(tmp_path: Path) -> None:
    """One job trains them all; each has its own members, and the losses of its twin."""
    audited = audited_by(settings_of(attack_parameters={"lira": {"shadows": 5}}))[MAIN]
    target, together = (job.payload for job in audited.trainings())
    assert isinstance(target, TrainingJob)
    assert isinstance(together, ShadowsJob)
    result = train(together, {}, tmp_path, lambda *_: None)
    assert result["cost"]["seconds"] > 0
    records = load_corpus(together.setup).records
    from workbench.training.loop import load_subject

    mechanism = create_mechanism(together.setup)
    for run, row in enumerate(together.included, start=1):
        plan = make_plan(together.setup, np.array(row), run)
        shadow = load_subject(tmp_path / str(run), mechanism, plan)
        assert shadow.losses(records) == pytest.approx(mechanism.train(plan).losses(records), rel=1e-4)
    assert len(set(together.included)) == 5


@pytest.mark.slow
def test_shadow_adapters_are_trained_together_in_jobs_of_a_few(tmp_path: Path) -> None:
    """So that workers share them; each run has its own members, and the losses of its twin."""
    audited = audited_by(settings_of(**ADAPTERS, attack_parameters={"lira": {"shadows": 5}}))[MAIN]
    target, *together = (job.payload for job in audited.trainings())
    assert isinstance(target, TrainingJob)
    assert [list(job.runs) for job in together] == [[1, 2, 3], [4, 5]]
    rows = [row for job in together for row in job.included]
    assert np.array_equal(np.array(rows), audited.shadow_included)
    from workbench.training.loop import load_subject

    mechanism, records = create_mechanism(target.setup), load_corpus(target.setup).records[:6]
    for job in together:
        train(job, {}, tmp_path, lambda *_: None)
    for run in (1, 5):
        plan = make_plan(together[0].setup, np.array(rows[run - 1]), run)
        shadow = load_subject(tmp_path / str(run), mechanism, plan)
        assert shadow.losses(records) == pytest.approx(mechanism.train(plan).losses(records), rel=1e-4)
    many = audited_by(settings_of(**ADAPTERS, attack_parameters={"lira": {"shadows": 20}}))[MAIN]
    assert [len(job.payload.included) for job in many.trainings()[1:]] == [8, 8, 4]


@pytest.mark.slow
def test_an_audit_of_adapters_attacks_the_shadows_of_all_jobs(tmp_path: Path) -> None:
    settings = settings_of(**{**ADAPTERS, "model_parameters": {"max_length": 160}}, control=False)
    report = audit_mechanisms(settings, out=tmp_path, command="c")
    (game,) = report["subjects"][0]["attacks"]
    assert game["details"]["shadows"] == 4.0
    assert len(dict(Store(tmp_path / "store").records())) == 4  # The target, two jobs of shadows, the attack.


def test_an_audit_with_an_ensemble_reports_its_shadows_and_does_no_work_twice(tmp_path: Path) -> None:
    settings = settings_of(control=False)
    report = audit_mechanisms(settings, out=tmp_path, command="c")
    (game,) = report["subjects"][0]["attacks"]
    assert game["details"]["shadows"] == 64.0
    assert "has 64 shadow models of its own" in game["game"]["description"]
    assert report["verdict"]["kind"] in ("NOT_REFUTED", "UNDERPOWERED")
    before = dict(Store(tmp_path / "store").records())
    assert len(before) == 3  # The target, its shadows, the attack.
    again = audit_mechanisms(settings, out=tmp_path, command="c")
    assert dict(Store(tmp_path / "store").records()) == before
    assert again["subjects"] == report["subjects"]


def _auc(audited: Audited, folder: Path, shadows: int) -> float:
    """Of LiRA with the first shadows of a control."""
    from workbench.training.loop import load_subject

    target, together = (job.payload for job in audited.trainings())
    mechanism, records = create_mechanism(target.setup), load_corpus(target.setup).records
    subject = mechanism.without_quality().train(make_plan(target.setup, audited.included, 0))
    rows = audited.shadow_included[:shadows]
    plans = [make_plan(together.setup, row, run) for run, row in enumerate(rows, start=1)]
    subjects = tuple(load_subject(folder / str(run), mechanism, p) for run, p in enumerate(plans, start=1))
    seen = MembershipSeen(
        subject=subject, records=records, references=References(subjects=subjects, included=rows)
    )
    scores = LiraAttack(shadows=shadows).score(seen, np.random.default_rng(0))
    return auc(scores.values, audited.included, confidence=0.95).estimate


@pytest.mark.slow
def test_64_shadows_tell_more_than_four(tmp_path: Path) -> None:
    """Ordinary training of the MLP on digits, six seeds: a paired gain in the mean AUC."""
    gains, areas = [], []
    for seed in range(6):
        settings = settings_of("dp_sgd", model="digits_mlp", candidates=400, steps=300, seed=seed)
        audited = audited_by(replace(settings, sampling_probability=0.2, control_learning_rate=1e-2))[CONTROL]
        folder = tmp_path / str(seed)
        folder.mkdir()
        train(audited.trainings()[1].payload, {}, folder, lambda *_: None)
        few, many = _auc(audited, folder, 4), _auc(audited, folder, 64)
        gains.append(many - few)
        areas.append(many)
    assert np.mean(gains) > 0.02
    assert min(areas) > 0.55
