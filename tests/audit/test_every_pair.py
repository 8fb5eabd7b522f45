"""Every mechanism under every attack, in audits and studies: played or refused in one line, never dropped."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.accounting import MutualInformation
from workbench.audit.run import audit_mechanisms, checked
from workbench.audit.settings import AuditSettings, claim_of, default_settings
from workbench.audit.subjects import audited_by
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.execution.store import Store
from workbench.games.base import game_named
from workbench.interfaces import Capabilities, Claim, Currency, Plan, Released, Secret
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.studies.experiments import Experiment, Study
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.training.setup import mechanism_of

MECHANISMS = sorted(registry.entries("mechanism"))
PAIRS = list(product(MECHANISMS, sorted(registry.entries("attack"))))
REFUSALS = (InputError, UnsupportedError, InconclusiveError)

REFUSED = {
    "canary_extraction": {"ferret", "paczero"},
    "dirac_canary": {"dp_weights", "ferret", "mezo", "paczero", "shuffled_dp_sgd", "zo_surrogate"},
    "joint_canary": {"dp_weights", "ferret", "mezo", "paczero", "shuffled_dp_sgd", "zo_surrogate"},
    "label_only": {"ferret", "paczero"},
    "lira": {"ferret", "paczero"},
    "loss": {"ferret", "paczero"},
    "quantile_regression": {"ferret", "paczero"},
    "retrained_canary": {"paczero", "rldp"},
    "rmia": {"ferret", "paczero"},
    "sign_transcript": {*MECHANISMS} - {"ferret"},
    "subset_posterior": {*MECHANISMS} - {"paczero"},
    "token_canaries": {"dp_lora", "ferret", "paczero", "rldp"},
    "trajectory": {"dp_weights", "ferret", "mezo", "paczero", "shuffled_dp_sgd", "zo_surrogate"},
    "weight_canary": {"paczero", "rldp"},
    "weight_tidying": {
        *("dc_sgd", "dp_lora", "dp_weights", "ferret", "mezo", "paczero", "rldp"),
        *("dp_aggzo", "dpzero", "zo_surrogate"),
    },
}
"""Mechanisms that an audit by this attack alone refuses; it plays the others."""


def training_of(mechanism: str, attack: str) -> dict[str, Any]:
    """A training that takes no second, with what the mechanism wants of it."""
    is_text = attack in ("canary_extraction", "token_canaries")
    found: dict[str, Any] = {
        "corpus": "clinical" if is_text else "digits",
        "corpus_parameters": {"attributes": "short"} if is_text else {},
        "model": "tiny_gpt2" if is_text else "digits_mlp",
        "model_parameters": {"max_length": 160} if is_text else {"hidden": 4},
        "learning_rate": 1e-2,
        "optimizer": mechanism_of(mechanism, {}).capabilities.optimizer,
    }
    if mechanism in ("dp_lora", "rldp"):
        found |= {"adapter": "lora", "lora_targets": "all-linear"}
    return found


def attack_parameters(attack: str) -> dict[str, Any]:
    """Few trials."""
    made = registry.create("attack", attack)
    few = {scale.parameter: 20 for scale in game_named(attack).cost(made)}
    few |= {
        "lira": {"shadows": 4},
        "quantile_regression": {"fit": "candidates"},
        "canary_extraction": {"secrets": 2, "generations": 40, "references": 40},
    }.get(attack, {})
    return few


def settings_of(mechanism: str, *attacks: str) -> AuditSettings:
    """A small audit of a mechanism by these attacks."""
    return default_settings(
        mechanism,
        {},
        **training_of(mechanism, attacks[0]),
        attacks=attacks,
        attack_parameters={attack: attack_parameters(attack) for attack in attacks},
        candidates=24,
        steps=3,
        sampling_probability=1.0 if mechanism in ("paczero", "zo_surrogate") else 0.25,
        members={},
        control=False,
        workers=0,
    )


def asked(settings: AuditSettings) -> Claim:
    """Everything that an audit does before it trains."""
    settings = settings.about_claimed()
    return checked(settings, audited_by(settings))


def is_one_line(error: BaseException | str) -> bool:
    return bool(str(error).strip()) and "\n" not in str(error)


@pytest.mark.parametrize(("mechanism", "attack"), PAIRS)
def test_a_pair_is_accepted_or_refused_in_one_line(mechanism: str, attack: str) -> None:
    if mechanism not in REFUSED[attack]:
        asked(settings_of(mechanism, attack))
        return
    with pytest.raises(REFUSALS) as caught:
        asked(settings_of(mechanism, attack))
    assert is_one_line(caught.value)


@pytest.mark.parametrize("attack", ["weight_tidying", "trajectory", "subset_posterior", "dirac_canary"])
def test_an_attack_that_cannot_be_played_beside_one_that_can_is_refused_by_name(attack: str) -> None:
    with pytest.raises(UnsupportedError, match=f"attack '{attack}'"):
        asked(settings_of("ferret", "sign_transcript", attack))


ON_DEVICES = [
    *[(mechanism, "loss") for mechanism in MECHANISMS if mechanism not in REFUSED["loss"]],
    *[("adaclip", attack) for attack in sorted(REFUSED) if "adaclip" not in REFUSED[attack]],
    *[("ferret", "sign_transcript"), ("paczero", "subset_posterior")],
]
"""Every mechanism and every attack, on a device."""

LONG = {"canary_extraction", "token_canaries", "weight_tidying"}


def scores_of(settings: AuditSettings, out: Path) -> dict[str, list[float]]:
    """The scores of an audit, by its games."""
    report = audit_mechanisms(settings, out=out, command="")
    return {game["attack"]: game["scores"] for subject in report["subjects"] for game in subject["attacks"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "attack"),
    [pytest.param(*pair, marks=[pytest.mark.slow] if pair[1] in LONG else []) for pair in ON_DEVICES],
)
def test_an_attack_on_a_device_scores_as_on_the_cpu(
    mechanism: str, attack: str, device: str, tmp_path: Path
) -> None:
    if (mechanism, device) == ("geoclip", "mps"):
        pytest.skip("geoclip needs float64")
    settings = settings_of(mechanism, attack)
    ours = scores_of(settings, tmp_path)
    theirs = scores_of(replace(settings, device=device), tmp_path)  # One store: each finds its own.
    assert list(theirs) == list(ours)
    for game, scores in ours.items():
        most = max(abs(score) for score in scores)
        # Rounding may flip a guess of a label, or the order of two weights: of few.
        close = np.isclose(theirs[game], scores, rtol=0.0, atol=1e-3 * most)
        assert close.mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_accepted_attack_stands_in_the_report(mechanism: str, tmp_path: Path) -> None:
    for attack, refused in REFUSED.items():
        if mechanism not in refused:
            refusal = ""
            try:
                report = audit_mechanisms(settings_of(mechanism, attack), out=tmp_path / attack, command="")
            except REFUSALS as error:
                refusal = str(error)
            if refusal:
                assert "zero in the first clipping group" in refusal  # Known once the model has run.
                assert is_one_line(refusal)
                continue
            games = [game["attack"] for subject in report["subjects"] for game in subject["attacks"]]
            assert {game.partition(" (")[0] for game in games} == {attack}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_study_plays_each_attack_or_records_a_refusal_of_one_line(mechanism: str, tmp_path: Path) -> None:
    study = Study(
        name="pairs",
        title="Pairs",
        profile="quick",
        replication="seed",
        experiments=tuple(experiment(mechanism, attack) for attack in REFUSED),
        source_sha256="0" * 64,
    )
    run_study(study, out=tmp_path, options=RunOptions(workers=0))
    outcomes = read_results(study, Store(tmp_path / "store")).outcomes
    assert len(outcomes) == len(REFUSED)
    for outcome in outcomes:
        if outcome.error:
            refusal = outcome.error.removeprefix("its training failed: ")
            assert refusal.split(":")[0] in {kind.__name__ for kind in REFUSALS}, outcome.error
            assert is_one_line(outcome.error)
        else:
            assert outcome.scores


def experiment(mechanism: str, attack: str) -> Experiment:
    """One experiment of a study, as small as the audits."""
    can = mechanism_of(mechanism, {}).capabilities
    number = mechanism_of(mechanism, {}).audit_defaults().number
    return Experiment(
        **training_of(mechanism, attack),
        group="pairs",
        variant=mechanism,
        mechanism=mechanism,
        attack=attack,
        attack_parameters=attack_parameters(attack),
        members=12,
        epochs=1,
        batch_size=12 if mechanism in ("paczero", "zo_surrogate") else 4,
        seed=0,
        epsilon=1.0 if number is None else number,
        delta=1e-5,
        currency=can.currency,
    )


def test_a_mechanism_of_nats_that_says_nothing_of_audits_is_told_what_to_add(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Plain(DPSGD):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(currency=Currency.RECORD_NATS)

        def claim(self, plan: Plan) -> Claim:
            nats = MutualInformation(nats=0.1, secret=Secret.RECORD)
            return Claim(guarantee=nats, about=Secret.RECORD, released=Released.EVERY_UPDATE, source="a test")

    registry.entries("mechanism")
    entry = registry.Entry(name="plain_nats", factory=Plain, summary="")
    monkeypatch.setitem(registry._entries["mechanism"], "plain_nats", entry)
    with pytest.raises(UnsupportedError, match="cannot test: add the attack "):
        asked(replace(settings_of("plain_nats", "loss"), claim=claim_of("plain_nats", 0.1, 1e-5)))
