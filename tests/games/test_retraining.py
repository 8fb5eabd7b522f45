"""The retraining game: as ensembles or one at a time, fair to correct training, sharp on broken training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from workbench.accounting import ApproximateDP, GaussianDP
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.attacks.retrained_canary import RetrainedCanary
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import DEFAULT_CLAIM, AuditSettings, claim_of, default_settings
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.games.base import Part, match_of
from workbench.games.retraining import (
    Initialisation,
    RetrainingGame,
    RetrainingSeen,
    canary_losses,
)
from workbench.interfaces import Plan, Record, Signals
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.training.ensemble.together import Ensemble, fitted_weights

DELTA = 1e-5


@pytest.fixture
def broken() -> Iterator[None]:
    """Two DP-SGDs that claim what they do not do: a tenth of the noise, by a step of its own; no clipping."""

    class TenthOfTheNoise(DPSGD):
        def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
            quiet = replace(self, noise_multiplier=self.noise_multiplier / 10)  # type: ignore[operator]
            return DPSGD.privatise(quiet, signals, generator)

    class NoClipping(DPSGD):
        def clip_factors(self, norms: Tensor) -> Tensor:
            return torch.ones_like(norms)

    added = {"tenth_of_the_noise": TenthOfTheNoise, "no_clipping": NoClipping}
    for name, factory in added.items():
        registry.register("mechanism", name)(factory)
    yield
    for name in added:
        del registry._entries["mechanism"][name]


def settings_of(epsilon: float, *, mechanism: str = "dp_sgd", **changes: Any) -> AuditSettings:
    """Every record in each of a few steps, so that the claimed budget is what a run spends."""
    given: dict[str, Any] = {"trials": 400, "initialisation": "worst-case"}
    given |= changes.pop("attack", {})
    chosen: dict[str, Any] = {
        "claim": claim_of("dp_sgd", epsilon, DELTA),
        "attacks": ("retrained_canary",),
        "attack_parameters": {"retrained_canary": given},
        "corpus": "digits",
        "corpus_parameters": {},
        "model": "digits_logistic",
        "model_parameters": {},
        "candidates": 60,
        "steps": 6,
        "sampling_probability": 1.0,
        "optimizer": "sgd",
        "learning_rate": 1.0,
        "control": False,
        "workers": 0,
    }
    return default_settings(mechanism, **{**chosen, **changes})


def judged(settings: AuditSettings, out: Path) -> dict[str, Any]:
    """The one game of an audit's report."""
    (game,) = audit_mechanisms(settings, out=out, command="c")["subjects"][0]["attacks"]
    return game


def lower(game: dict[str, Any], estimator: str) -> float:
    """A bound of a judged game."""
    (bound,) = [bound for bound in game["verdict"]["bounds"] if bound["name"] == estimator]
    return float(bound["lower"])


@pytest.mark.slow
def test_an_audit_says_what_was_played_and_is_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts; with the initialisation in the game's name and words."""
    monkeypatch.setattr(RetrainingGame, "most_trials", 100)
    settings = settings_of(10.0, attack={"trials": 120})
    first, second = judged(settings, tmp_path / "a"), judged(settings, tmp_path / "b")
    assert first["attack"] == "retrained_canary (worst-case initialisation)"
    assert "initial weights, which are the worst case: chosen by the adversary" in str(first["game"])
    assert (len(first["scores"]), sum(first["members"])) == (120, 60)
    assert first["game"]["trials"] == "independent"
    assert len(list((tmp_path / "a" / "store" / "records").glob("*.json"))) == 2
    assert (first["scores"], first["members"]) == (second["scores"], second["members"])
    other = judged(replace(settings, seed=1), tmp_path / "c")
    assert first["scores"] != other["scores"]


@pytest.mark.slow
def test_the_game_of_the_plans_own_weights_has_no_such_name(tmp_path: Path) -> None:
    game = judged(settings_of(10.0, attack={"initialisation": "plan", "trials": 40}), tmp_path)
    assert game["attack"] == "retrained_canary"
    assert "which are the same in all trainings" in game["game"]["description"]


def test_a_sequential_game_ends_with_the_part_that_refutes(tmp_path: Path) -> None:
    given = {"initialisation": "plan", "trials": 1000}
    noiseless = default_settings("dp_sgd", {"noise_multiplier": 0.01})
    leaks = replace(
        settings_of(1.0, attack=given), mechanism_parameters=noiseless.mechanism_parameters, sequential=True
    )
    game = judged(leaks, tmp_path / "leaks")
    assert (game["verdict"]["kind"], game["verdict"]["bounds"][0]["name"]) == ("REFUTED", "sequential")
    assert len(game["scores"]) == len(game["members"]) <= 150
    kept = judged(
        replace(settings_of(8.0, attack=given | {"trials": 100}), sequential=True), tmp_path / "kept"
    )
    assert len(kept["scores"]) == 100
    assert kept["verdict"]["kind"] in ("NOT_REFUTED", "UNDERPOWERED")


@pytest.mark.slow
def test_what_decides_assumes_no_family_and_the_gaussian_bound_is_beside_it(tmp_path: Path) -> None:
    """At a true epsilon of 10 no bound exceeds it, and the Gaussian one says most of it."""
    game = judged(settings_of(10.0, attack={"trials": 1000}), tmp_path)
    assert game["verdict"]["kind"] in ("NOT_REFUTED", "UNDERPOWERED")
    families = {bound["name"]: bound["family"] for bound in game["verdict"]["bounds"]}
    assert families["clopper_pearson_all"] == "any (epsilon, delta)"
    assert families["gaussian_location"] == "Gaussian"
    assert lower(game, "clopper_pearson_all") > 2.0
    assert 7.3 < lower(game, "gaussian_location") < 10.5


@pytest.mark.slow
@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("mechanism", ["dp_sgd", "tenth_of_the_noise", "no_clipping"])
def test_broken_training_is_refuted_and_correct_training_is_not(mechanism: str, tmp_path: Path) -> None:
    """Claim 1. What has a step of its own is trained one at a time, not as its base describes itself."""
    attack = {"trials": 120, "initialisation": "plan"}
    game = judged(settings_of(1.0, mechanism=mechanism, attack=attack), tmp_path)
    assert (game["verdict"]["kind"] == "REFUTED") == (mechanism != "dp_sgd")


@pytest.mark.usefixtures("broken")
def test_worst_case_weights_are_refused_where_no_ensemble_takes_them(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="initialisation 'worst-case' needs an ensemble: TenthOfThe"):
        audit_mechanisms(settings_of(1.0, mechanism="tenth_of_the_noise"), out=tmp_path / "a", command="c")
    with pytest.raises(UnsupportedError, match="model 'digits_vit' is not such"):
        audit_mechanisms(settings_of(1.0, model="digits_vit"), out=tmp_path / "a", command="c")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"trials": 19}, "trials must be a whole number >= 20, got 19"),
        ({"trials": 30.5}, "trials must be a whole number >= 20, got 30.5"),
        ({"precision": "half"}, "unknown precision 'half'; known: bfloat16, float32"),
        ({"initialisation": "best"}, "unknown initialisation 'best'; known: plan, worst-case"),
    ],
)
def test_unusable_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RetrainedCanary(**parameters)


def plan_of(records: int = 30) -> Plan:
    corpus = registry.create("corpus", "digits", size=records, seed=0)
    return Plan(
        records=corpus.records,
        held_out=(),
        model="digits_mlp",
        steps=5,
        sampling_probability=0.5,
        learning_rate=0.3,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=5.0, delta=DELTA),
        public_size=records,
        initial_seed=3,
    )


def test_a_game_without_another_record_is_refused() -> None:
    setup = settings_of(1.0).setup()
    part = Part(setup=setup, attack="retrained_canary", included=(True, *[False] * 59))
    with pytest.raises(InputError, match="records must be two or more, got 1"):
        RetrainingGame().check(match_of(part, {}))


def test_losses_of_an_ensemble_are_those_of_trainings_one_at_a_time() -> None:
    """The same plans, by a mechanism that is trained together, and by one that is not."""

    class Alone(DPSGD):
        def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
            return DPSGD.privatise(self, signals, generator)

    plan, canary = RetrainedCanary().insert(plan_of(), np.random.default_rng(0))
    plans = [replace(plan, seed=seed) for seed in range(4)]
    seen: list[tuple[int, int]] = []
    losses = [
        canary_losses(
            mechanism,
            plans,
            canary,
            initial=None,
            precision="float32",
            progress=lambda *done: seen.append(done),
        )
        for mechanism in (DPSGD(measures_quality=False), Alone(measures_quality=False))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert seen == [(4, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_canary_is_bright_where_others_are_dark_and_text_repeats_a_rare_word() -> None:
    plan, canary = RetrainedCanary().insert(plan_of(), np.random.default_rng(0))
    *others, last = plan_of().records
    assert plan.records == (*others, canary)
    assert canary.id == last.id
    assert canary.label is not None
    assert canary.label != last.label
    assert canary.image is not None
    bright = np.array(canary.image) > 0
    means = np.mean([other.image for other in others], axis=0)
    assert bright.any()
    assert means[bright].max() <= max(0.05, means.min())
    texts = tuple(Record(id=str(i), text=f"text {i} of some length") for i in range(3))
    _, word = RetrainedCanary().insert(replace(plan_of(), records=texts), np.random.default_rng(0))
    assert word.text == "zyzzyva " * 8


def test_scores_rise_as_losses_fall() -> None:
    seen = RetrainingSeen(losses=np.array([1.0, 3.0, 2.0]))
    scores = RetrainedCanary().score(seen, np.random.default_rng(0)).values
    assert scores == pytest.approx([-np.log(np.expm1(loss)) for loss in seen.losses])
    given: Any = "worst-case"
    assert RetrainedCanary(initialisation=given).initialisation is Initialisation.WORST_CASE


@pytest.mark.slow
def test_a_claim_of_mu_is_judged_in_its_own_currency(tmp_path: Path) -> None:
    """Where every record takes part the run is exactly mu-GDP; the bound on mu assumes nothing of scores."""
    mu = mu_of_epsilon(10.0, DELTA)
    claim = replace(DEFAULT_CLAIM, guarantee=GaussianDP(mu=mu))
    game = judged(settings_of(10.0, claim=claim, attack={"trials": 1000}), tmp_path)
    (bound,) = game["verdict"]["bounds"]
    assert (bound["quantity"], bound["family"]) == ("mu", "any (epsilon, delta)")
    assert 1.2 < float(bound["lower"]) < mu
    assert game["verdict"]["kind"] in ("NOT_REFUTED", "UNDERPOWERED")


@pytest.mark.slow
def test_worst_case_weights_fit_the_others_and_hold_the_canary_for_something_else() -> None:
    plan, canary = RetrainedCanary().insert(plan_of(), np.random.default_rng(0))
    *others, decoy = fitted_records = RetrainedCanary().fitted(plan.records[:-1], canary)
    assert tuple(others) == plan.records[:-1]
    assert (decoy.image, decoy.label != canary.label) == (canary.image, True)
    weights = fitted_weights(replace(plan, records=fitted_records))
    ensemble = Ensemble(DPSGD(noise_multiplier=1.0), [plan], initial=weights)
    losses = ensemble.losses(plan.records)[0]
    assert losses[:-1].max() < 0.1
    assert losses[-1] > 3.0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["digits_logistic", "digits_mlp"])
def test_most_of_a_true_epsilon_of_ten_is_audited_and_nothing_is_refuted(model: str, tmp_path: Path) -> None:
    """Three seeds of 1,000 trainings: 7.3 in each (best published 7.21), by the Gaussian bound.

    That bound exceeds a truth of 10 in one run of twenty, two of three in 0.7 % of runs. What decides
    refutes none.
    """
    above = 0
    for seed in range(3):
        settings = settings_of(
            10.0, model=model, candidates=128, steps=20, seed=seed, attack={"trials": 1000}
        )
        game = judged(settings, tmp_path / str(seed))
        assert game["verdict"]["kind"] != "REFUTED"
        assert lower(game, "gaussian_location") > 7.3
        above += lower(game, "gaussian_location") > 10.0
    assert above <= 1
