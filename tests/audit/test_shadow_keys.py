"""The store keeps shadows and target apart: no key, seed or file of a shadow is ever the target's."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import AuditSettings, default_settings
from workbench.audit.subjects import CONTROL, MAIN, Audited, audited_by
from workbench.execution.store import Store
from workbench.training.setup import ShadowsJob, TrainingJob, make_plan

SMALL: dict[str, Any] = {
    "corpus": "digits",
    "corpus_parameters": {},
    "model_parameters": {},
    "attacks": ("lira",),
    "attack_parameters": {"lira": {"shadows": 4}},
    "candidates": 40,
    "steps": 3,
    "workers": 0,
}
ONE_BY_ONE = "digits_vit"
TOGETHER = "digits_logistic"


def settings_of(model: str, seed: int = 0) -> AuditSettings:
    return default_settings("dp_sgd", **SMALL, model=model, seed=seed)


def with_rows(audited: Audited, rows: Any) -> Audited:
    """The same training with other shadows' members."""
    changed = replace(audited)
    changed.__dict__["shadow_included"] = np.array(rows)
    return changed


@pytest.mark.parametrize("model", [ONE_BY_ONE, TOGETHER])
def test_a_shadow_of_the_targets_own_members_has_a_key_and_seed_of_its_own(model: str) -> None:
    """The worst draw of the shadows' coins: every shadow is trained on just what the target is."""
    audited = audited_by(settings_of(model))[MAIN]
    worst = with_rows(audited, [audited.included] * 4)
    target, *shadows = worst.trainings()
    assert len(shadows) == (1 if model == TOGETHER else 4)
    assert target.key not in {job.key for job in shadows}
    assert isinstance(target.payload, TrainingJob)
    assert target.payload.run == 0
    plan = make_plan(audited.setup, audited.included, 0)
    seeds = {make_plan(audited.setup, audited.included, run).seed for run in range(1, 65)}
    assert len(seeds) == 64
    assert plan.seed not in seeds
    for job in shadows:
        assert isinstance(job.payload, ShadowsJob) or job.payload.run > 0


@pytest.mark.parametrize("model", [ONE_BY_ONE, TOGETHER])
def test_audits_that_share_a_store_share_no_target_with_a_shadow(model: str) -> None:
    """Of several seeds, and of subject and control."""
    targets, shadows = set(), set()
    for seed in range(5):
        for part, audited in audited_by(settings_of(model, seed)).items():
            assert part in (MAIN, CONTROL)
            target, *rest = audited.trainings()
            targets.add(target.key)
            shadows |= {job.key for job in rest}
    assert len(targets) == 10
    assert not targets & shadows


def test_what_is_stored_of_a_shadow_does_not_depend_on_the_targets_coins() -> None:
    """Its key is the same whoever the target's members are, so it holds nothing of them."""
    audited = audited_by(settings_of(ONE_BY_ONE))[MAIN]
    other = replace(audited)
    other.__dict__["included"] = ~audited.included
    (target, *shadows), (turned, *same) = audited.trainings(), other.trainings()
    assert target.key != turned.key
    assert [job.key for job in shadows] == [job.key for job in same]


@pytest.mark.parametrize("model", [ONE_BY_ONE, TOGETHER])
def test_no_file_in_the_store_is_that_of_another_model(model: str, tmp_path: Path) -> None:
    settings = replace(settings_of(model), control=False)
    audit_mechanisms(settings, out=tmp_path, command="")
    files = sorted(Store(tmp_path / "store").folder.rglob("*.safetensors"))
    assert len(files) == 5
    contents = [file.read_bytes() for file in files]
    assert all(first != second for first, second in combinations(contents, 2))
