"""The candidate-subset game: what it draws, what the adversary reads, and how its evidence is judged."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import subsets_stand_in as stand_in
import torch
from scipy.stats import binom

from workbench.accounting import MutualInformation
from workbench.attacks.subset_posterior import SubsetPosterior
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.information import PlugIn, plug_in_information
from workbench.estimation.judge import judge
from workbench.estimation.subset_trials import (
    SubsetEvidence,
    log_score,
    perfect_log_score,
)
from workbench.games.subset import SubsetGame, beyond_subset
from workbench.games.subset.play import (
    SubsetObservations,
    SubsetReading,
    SubsetRelease,
    SubsetTrials,
    balanced,
    game_details,
    play_subsets,
    play_world,
    record_success,
    series_details,
    step_curves,
    trial_series,
)
from workbench.interfaces import Claim, Plan, Record, Released, Secret, Verdict, VerdictKind
from workbench.mechanisms.mezo import MeZO
from workbench.mechanisms.paczero import PACZero


def plan(records: int = 32, steps: int = 12, **changes: Any) -> Plan:
    chosen = tuple(Record(id=str(i), image=(0.0,), label=0) for i in range(records))
    fixed: dict[str, Any] = {"sampling_probability": 1.0, "learning_rate": 1.0, "optimizer": "sgd"}
    return Plan(records=chosen, held_out=(), model="none", steps=steps, **{**fixed, **changes})


def digits(records: int = 12, steps: int = 10, **changes: Any) -> Plan:
    """A real plan: random images, a small network."""
    generator = np.random.default_rng(0)
    chosen = tuple(
        Record(id=str(i), image=tuple(generator.random(64).tolist()), label=i % 10) for i in range(records)
    )
    fixed: dict[str, Any] = {
        "sampling_probability": 1.0,
        "learning_rate": 3e-3,
        "optimizer": "sgd",
        "model": "digits_mlp",
        "model_parameters": {"hidden": 4},
    }
    return Plan(records=chosen, held_out=(), steps=steps, **{**fixed, **changes})


def evidence(played: SubsetTrials, attack: SubsetPosterior, beyond: str = "") -> SubsetEvidence:
    scores = attack.score(played.observations, np.random.default_rng(1))
    series = trial_series(played, attack.beliefs(played.observations))
    return SubsetEvidence(
        scores=scores.values,
        members=played.included,
        game=SubsetGame().terms(view=attack.view, beyond=beyond),
        attack="subset_posterior",
        candidates=played.shape[0],
        record_success=series["record_success"],
        log_scores=series["log_score"],
    )


def verdict(given: SubsetEvidence, nats: float, confidence: float = 0.95) -> Verdict:
    claim = Claim(
        guarantee=MutualInformation(nats=nats, secret=Secret.SUBSET),
        about=Secret.SUBSET,
        released=Released.EVERY_UPDATE,
        source="the test",
    )
    return judge(claim, given, confidence=confidence, generator=np.random.default_rng(0))


@cache
def game(nats: float, altered: str = "no", subsets: str = "pairs", trials: int = 60) -> SubsetTrials:
    mechanism = stand_in.SubsetsStandIn(nats=nats, altered=altered, subsets=subsets)
    return play_subsets(mechanism, plan(), trials=trials, seed=4)


@pytest.mark.parametrize("subsets", ["pairs", "halves"])
def test_every_trial_draws_its_own_world_secret_and_target(subsets: str) -> None:
    """A blind guess is right half of the time for each target: half of its trial's candidates hold it.

    Of 60 fair coins fewer than 15 or more than 45 show heads with probability below 0.02 %.
    """
    mechanism = stand_in.SubsetsStandIn(nats=0.5, subsets=subsets)
    played = play_subsets(mechanism, plan(), trials=60, seed=4)
    worlds = [seed for seed, secret in mechanism.seen if secret is not None]
    assert len(set(worlds)) == 60
    assert played.shape == (16, 32)
    for trial, one in enumerate(played.observations.trials):
        held = played.candidates(trial)
        np.testing.assert_array_equal(held, mechanism.candidate_subsets(replace(plan(), seed=worlds[trial])))
        assert one.holds_target.sum() == 8
        assert any(np.array_equal(one.holds_target, held[:, i]) for i in range(32))
        assert played.included[trial] == one.holds_target[played.secrets[trial]]
        assert one.signs.shape == (12, 16)
        assert one.signs.dtype == np.int8
    assert binom.cdf(14, 60, 0.5) < 1e-4
    assert 15 <= played.included.sum() <= 45
    assert len(set(played.secrets.tolist())) > 8
    assert played.budgets.shape == (60, 12)
    assert played.budgets.sum(axis=1).max() <= 0.5 + 1e-9
    again = play_subsets(mechanism, plan(), trials=60, seed=4)
    np.testing.assert_array_equal(again.secrets, played.secrets)
    np.testing.assert_array_equal(again.observations.trials[7].bits, played.observations.trials[7].bits)
    told: list[tuple[int, int]] = []
    play_subsets(mechanism, plan(), trials=20, seed=5, progress=lambda *at: told.append(at))
    assert told[-1] == (20, 20)


def test_what_it_refuses() -> None:
    with pytest.raises(UnsupportedError, match="no secret candidate subset"):
        play_subsets(MeZO(), plan(), trials=20, seed=0)
    with pytest.raises(InputError, match="public_seed must be None"):
        play_subsets(stand_in.SubsetsStandIn(public_seed=3), plan(), trials=20, seed=0)
    with pytest.raises(InputError, match="at least 1"):
        play_subsets(stand_in.SubsetsStandIn(), plan(), trials=0, seed=0)
    with pytest.raises(UnsupportedError, match="exactly half"):  # No record is in half of an odd number.
        play_subsets(stand_in.SubsetsStandIn(count=15, subsets="halves"), plan(), trials=20, seed=0)


@pytest.mark.slow
def test_honest_claims_stand_and_altered_mechanisms_fall() -> None:
    """60 trials; how often this happens over many games is `test_subset_power`'s."""
    attack = SubsetPosterior()
    for nats in (0.0, 0.33, 1.0):
        assert verdict(evidence(game(nats), attack), nats).kind is VerdictKind.NOT_REFUTED
    for nats, altered in ((0.0, "coins"), (0.33, "noise")):
        found = verdict(evidence(game(nats, altered), attack), nats)
        assert found.kind is VerdictKind.REFUTED
        assert found.bound is not None
        assert found.bound.lower > (0.5 if found.bound.quantity == "success" else nats)
        assert sorted(bound.quantity for bound in found.bounds) == ["nats", "success"]


def test_a_verdict_quotes_all_that_was_tested() -> None:
    for altered in ("no", "coins"):
        said = verdict(evidence(game(0.0, altered), SubsetPosterior()), 0.0).sentence
        assert "97.5 % confidence (estimator records_guessed)" in said
        assert "97.5 % confidence (estimator log_score)" in said
        assert said.count("; the claim allows") == 1
    # One nat allows every guess about one record, so that the index alone is asked for.
    alone = verdict(evidence(game(1.0), SubsetPosterior()), 1.0).sentence
    assert "nats >=" in alone
    assert "success" not in alone


@pytest.mark.parametrize("subsets", ["pairs", "halves"])
def test_what_decides_on_zero_nats_is_blind_on_average_over_the_secrets(subsets: str) -> None:
    """At 0 nats what is seen is the same for each secret: so the mean over them is the expectation, exactly.

    For every transcript, not on average over them: half of the guesses are right, and no nats are shown.
    """
    played = game(0.0, subsets=subsets, trials=20)
    held = [played.candidates(trial) for trial in range(20)]
    assert subsets == "pairs" or not all(balanced(one).all() for one in held)
    for belief, one in zip(SubsetPosterior().beliefs(played.observations), held, strict=True):
        right = [record_success(belief.guess, one, secret) for secret in range(16)]
        assert np.mean(right) == pytest.approx(0.5, abs=1e-12)
        assert np.ptp(right) > 0.05
        assert np.mean([log_score(belief.guess, secret) for secret in range(16)]) <= 0.0


def test_a_trusting_adversary_is_blind_to_false_coins() -> None:
    """The control of the one before: without doubt, what is said to be a coin teaches nothing."""
    found = evidence(game(0.0, "coins"), SubsetPosterior(doubt=0.0))
    np.testing.assert_array_equal(found.record_success, 0.5)
    np.testing.assert_allclose(found.log_scores, 0.0, atol=1e-12)
    assert verdict(found, 0.0).kind is VerdictKind.NOT_REFUTED


def test_which_test_decides_follows_from_the_claim_alone() -> None:
    """From ln 2 nats on every guess may be right, from ln M on every index may be known."""
    honest = evidence(game(1.0), SubsetPosterior())
    assert [bound.quantity for bound in verdict(honest, 1.0).bounds] == ["nats"]
    assert verdict(honest, 1.0).bounds[0].confidence == 0.95
    assert {bound.confidence for bound in verdict(honest, 0.5).bounds} == {0.975}
    vacuous = verdict(honest, math.log(16))
    assert vacuous.kind is VerdictKind.UNDERPOWERED
    assert "allows every guess to be right" in vacuous.sentence


def test_a_refutation_has_the_confidence_of_both_tests_and_each_bound_its_own() -> None:
    """The better of two bounds at 97.5 % each is wrong in up to 5 % of games, so falsity is shown at 95 %."""
    found = verdict(evidence(game(0.0, "coins"), SubsetPosterior()), 0.0)
    assert found.kind is VerdictKind.REFUTED
    assert found.sentence.startswith("REFUTED: at 95 % confidence the claim of mutual information")
    assert "with 97.5 % confidence (estimator records_guessed)" in found.sentence
    assert found.significance == pytest.approx(0.05)


def test_too_few_trials_are_underpowered_and_say_how_many_would_do() -> None:
    few = evidence(game(1.0, trials=20), SubsetPosterior())
    found = verdict(few, 2.6, confidence=0.999)
    assert found.kind is VerdictKind.UNDERPOWERED
    needed = found.trials_needed
    assert needed is not None
    assert needed > 20
    perfect = replace(few, log_scores=np.full(needed, perfect_log_score(16)), record_success=np.ones(needed))
    assert verdict(perfect, 2.6, confidence=0.999).kind is VerdictKind.REFUTED


def test_knowing_more_than_the_claim_grants_refutes_nothing() -> None:
    honest, bits = PACZero(), PACZero(posterior="bits")
    assert [beyond_subset(one, "values") != "" for one in (honest, bits)] == [False, True]
    assert [beyond_subset(one, "bits") for one in (honest, bits)] == ["", ""]
    beyond = beyond_subset(bits, "values")
    found = verdict(evidence(game(0.33, "noise"), SubsetPosterior(), beyond), 0.33)
    assert found.kind is VerdictKind.UNDECIDED
    assert "the values behind the released bits" in found.sentence


def test_the_series_and_curves_sum_the_game_up() -> None:
    played, attack = game(0.33), SubsetPosterior()
    beliefs = attack.beliefs(played.observations)
    series, curves = trial_series(played, beliefs), step_curves(played, beliefs)
    details = series_details(series, candidates=16, confidence=0.95)
    assert curves["entropy"][-1] == pytest.approx(details["mean_entropy"])
    assert curves["budget"][-1] == pytest.approx(details["charged_nats"])
    assert curves["unanimity"].mean() == pytest.approx(details["unanimity_rate"])
    assert details["information"] == pytest.approx(math.log(16) - details["mean_entropy"])
    assert details["information_lower"] < details["charged_nats"] < details["information_upper"]
    scored = attack.score(played.observations, np.random.default_rng(0)).details
    for name in ("mean_entropy", "information", "information_lower", "unanimity_rate"):
        assert scored[name] == pytest.approx(details[name])
    assert 0.0 < scored["information_bits"] < scored["information"]
    # Who sees bits alone guesses as that view of the attack does, and no better than who sees values.
    from_bits = SubsetPosterior(view="bits", doubt=0.0)
    alone = trial_series(played, from_bits.beliefs(played.observations))
    np.testing.assert_array_equal(series["bits_success"], alone["record_success"])
    assert 0.5 < details["bits_success"] < details["success"]
    assert game_details(played, beliefs) == details


@pytest.mark.parametrize(
    ("parameters", "nats"), [({}, 0.5), ({"posterior": "bits"}, 0.5), ({"directions": 2}, 3.0)]
)
def test_it_agrees_with_the_ledger(parameters: dict[str, Any], nats: float) -> None:
    """The attack's posterior and the mechanism's: two programs, one entropy after every step."""
    mechanism = PACZero(subset_count=8, variant="mi", measures_quality=False, **parameters)
    budget = MutualInformation(nats=nats, secret=Secret.SUBSET)
    view = "bits" if parameters.get("posterior") == "bits" else "values"
    releases: list[SubsetRelease] = []
    own = digits(steps=6, budget=budget, seed=12)
    subject = mechanism.train_on(own, secret=3, watch=releases.append)
    (belief,) = SubsetPosterior(view=view, doubt=0.0).beliefs(observed(releases))
    expected = subject.transcript.traces["posterior_entropy"]
    np.testing.assert_allclose(
        belief.entropies[mechanism.directions - 1 :: mechanism.directions], expected, rtol=1e-9
    )
    assert expected[-1] < math.log(8) - 0.01


def observed(releases: list[SubsetRelease]) -> SubsetObservations:
    reading = SubsetReading(
        signs=np.stack([one.signs for one in releases]),
        noise=np.array([one.noise for one in releases]),
        bits=np.array([one.bit for one in releases]),
        values=np.array([one.value for one in releases]),
        holds_target=np.zeros(releases[0].signs.size, dtype=bool),
    )
    return SubsetObservations(trials=(reading,))


@pytest.mark.parametrize(("variant", "nats"), [("zpl", 0.0), ("mi", 2.0)])
def test_zpl_gives_the_secret_no_way_into_the_weights(variant: str, nats: float) -> None:
    """One plan, every secret: at 0 nats all weights and bits are equal to the last bit; with nats they "
    "are not."""
    mechanism = PACZero(subset_count=8, variant=variant, measures_quality=False)
    own = digits(steps=8, budget=MutualInformation(nats=nats, secret=Secret.SUBSET), seed=3)
    weights, bits, disagreements = [], [], 0
    for secret in range(8):
        releases: list[SubsetRelease] = []
        subject = mechanism.train_on(own, secret=secret, watch=releases.append)
        weights.append(torch.cat([p.detach().flatten() for p in subject.model.module.parameters()]))
        bits.append(tuple(one.bit for one in releases))
        disagreements += sum(one.noise > 0.0 for one in releases)
    assert disagreements >= 8
    same = all(torch.equal(weights[0], other) for other in weights)
    assert same == (variant == "zpl")
    assert (len(set(bits)) == 1) == (variant == "zpl")


def test_a_counted_world_shares_what_is_public() -> None:
    """The world is one, the secrets and the noise are each training's own."""
    mechanism = PACZero(subset_count=4, variant="mi", measures_quality=False)
    own = digits(steps=2, budget=MutualInformation(nats=0.6, secret=Secret.SUBSET))
    played = play_world(mechanism, own, trials=40, world=7, seed=1)
    assert set(played.secrets.tolist()) == {0, 1, 2, 3}
    assert set(played.codes.tolist()) <= {0, 1, 2, 3}
    assert len(set(played.codes.tolist())) > 1
    assert played.charged.max() <= 0.6
    again = play_world(mechanism, own, trials=40, world=7, seed=1)
    np.testing.assert_array_equal(again.codes, played.codes)
    with pytest.raises(InputError, match="at most 16"):
        play_world(mechanism, replace(own, steps=17), trials=2, world=7, seed=1)
    with pytest.raises(InputError, match="at least 2"):
        play_world(mechanism, own, trials=1, world=7, seed=1)


def counted_less_charged(share: float) -> PlugIn:
    """Counted nats less the charge of a ledger that tells this share of what it charged."""
    mechanism = PACZero(subset_count=4, variant="mi", measures_quality=False)
    own = digits(steps=3, budget=MutualInformation(nats=0.5, secret=Secret.SUBSET))
    played = play_world(mechanism, own, trials=250, world=7, seed=1)
    return plug_in_information(played.secrets, played.codes, confidence=0.998, charged=share * played.charged)


@pytest.mark.slow
def test_counted_nats_are_not_above_the_ledgers_charge() -> None:
    """Bits tell less than the values that are charged; an asymptotic false alarm of 0.1 %.

    The control: a ledger that tells a tenth of its charges is shown to tell too little.
    """
    assert counted_less_charged(1.0).lower < 0.0
    assert counted_less_charged(0.1).lower > 0.0
