"""Planted records that a model would cut are refused before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import study_driver as driver

from workbench.accounting import ApproximateDP
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import embedded_settings
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency, Claim, Corpus, Insertions, Plan, Record, Released
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.studies.plan import check_fits
from workbench.training import setup as workers

CLAIM = Claim(
    guarantee=ApproximateDP(epsilon=1.0, delta=1e-5),
    about=Adjacency.ADD_REMOVE,
    released=Released.EVERY_UPDATE,
    source="the user",
)
ATTACK: dict[str, Any] = {"secrets": 3, "insertions": 2, "generations": 40, "references": 30}
LINE = r"max_length must hold every planted record, got 8; record '.*#secret-\d-\d' has \d\d+ tokens"


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins to train fails the test."""

    def begun(*_: object, **__: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(DPSGD, "steps", begun)
    monkeypatch.setattr(workers, "train", begun)


def plan(text: str, **changes: Any) -> Plan:
    """One planted record of this text, beside ten narratives."""
    corpus: Corpus = registry.create("corpus", "clinical", size=10, seed=0, attributes="brief")
    planted = Record(id="planted", text=text)
    given: dict[str, Any] = {
        "records": (*corpus.records, planted),
        "held_out": (),
        "model": "tiny_gpt2",
        "model_parameters": {"max_length": 8},
        "insertions": Insertions(planted=(planted,)),
        "steps": 1,
        "sampling_probability": 0.5,
        "learning_rate": 1e-3,
        "budget": CLAIM.guarantee,
    }
    return Plan(**{**given, **changes})


def test_a_training_refuses_them_before_its_first_step() -> None:
    with pytest.raises(InputError, match="got 8; record 'planted' has 33 tokens") as refused:
        DPSGD().train(plan("secret_id=O119XP9N56. " * 2))
    assert "\n" not in str(refused.value)
    with pytest.raises(AssertionError, match="something was trained"):
        DPSGD().train(plan("A secret."))


@pytest.mark.parametrize("control", [True, False])
def test_an_audit_refuses_them(tmp_path: Path, control: bool) -> None:
    settings = embedded_settings(
        claim=CLAIM,
        attacks=("canary_extraction",),
        attack_parameters={"canary_extraction": ATTACK},
        candidates=20,
        steps=2,
        sampling_probability=0.2,
        corpus_parameters={"attributes": "brief"},
        model="tiny_gpt2",
        model_parameters={"max_length": 8},
        workers=0,
        control=control,
    )
    with pytest.raises(InputError, match=LINE) as refused:
        audit_mechanisms(settings, out=tmp_path, command="test")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def extraction(**changes: Any) -> Any:
    """An extraction from a training without privacy."""
    return driver.experiment(
        mechanism="non_private",
        epsilon=None,
        delta=None,
        attack="canary_extraction",
        attack_parameters=ATTACK,
        corpus="clinical",
        corpus_parameters={"attributes": "brief"},
        **changes,
    )


def test_a_study_refuses_them_when_it_is_prepared() -> None:
    short = {"model": "tiny_gpt2", "model_parameters": {"max_length": 8}}
    found = extraction(**short, members=10, batch_size=4, epochs=1)
    with pytest.raises(InputError, match=rf"^group 'all', variant 'DP-Weights': .*{LINE}"):
        check_fits(driver.study_of(found))


def test_a_study_whose_model_cannot_be_built_yet_is_not_refused_for_it() -> None:
    check_fits(driver.study_of(extraction(model="qwen2_base", model_parameters={"path": "nowhere"})))
