"""The weight canary: what it inserts and scores, that it is fair to honest noise and finds what is broken."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.attacks.claim_checks.dp_weights.by_attack import order_known, papers_plan
from workbench.attacks.weight_canary import WeightCanary, audit_weights
from workbench.checks.ledger import load_ledger
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.judge import judge
from workbench.games.weights import WeightsGame, WeightsSeen, paired_changes, play_weights
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Corpus,
    Evidence,
    Insertions,
    Plan,
    Record,
    Released,
    Sampling,
    Trials,
    VerdictKind,
)
from workbench.interfaces.findings import Finding
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.dp_weights import DPWeights
from workbench.training.canary import SignalsWithCanaryRecord
from workbench.training.flat import FlatLayout
from workbench.training.per_record import EmptySignals

BUDGET = ApproximateDP(epsilon=1.0, delta=1e-4)
REFUTED, NOT_REFUTED, UNDECIDED = VerdictKind.REFUTED, VerdictKind.NOT_REFUTED, VerdictKind.UNDECIDED


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=40, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    """Two epochs of two steps: E eta C / B = 0.001."""
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_logistic",
        steps=4,
        sampling_probability=0.5,
        sampling=Sampling.SHUFFLED,
        learning_rate=0.01,
        optimizer="sgd",
        budget=BUDGET,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


CHANGE = 2 * 0.01 / 20
"""The most that a clipped record moves the weights of `make_plan`, where no other gradient answers to it."""


def honest(scale: float = 1.0) -> DPWeights:
    """A release whose noise is calibrated to `CHANGE` exactly, times a factor."""
    return DPWeights(noise_scale=scale * CHANGE / mu_of_epsilon(BUDGET.epsilon, BUDGET.delta))


CLAIM = Claim(
    guarantee=BUDGET,
    about=Adjacency.ADD_REMOVE,
    released=Released.FINAL_WEIGHTS,
    source="the exact Gaussian mechanism",
)


def test_the_canary_moves_the_weights_as_far_as_clipping_allows() -> None:
    for canary in ("coordinate", "spread"):
        plan, chosen = WeightCanary(canary=canary).insert(make_plan(), np.random.default_rng(1))
        assert chosen == plan.records[-1].id
        silent = plan.insertions.gradient_canary
        assert silent is not None
        absent = replace(plan, insertions=Insertions(gradient_canary=replace(silent, magnitude=1e-30)))
        inside, outside, noise = paired_changes(honest(), plan, absent)
        assert np.linalg.norm(inside - outside) == pytest.approx(CHANGE, rel=0.02)
        moved = np.count_nonzero(np.abs(inside - outside) > 0.02 * CHANGE)
        assert moved == (1 if canary == "coordinate" else 650)
        assert noise == honest().noise_scale


def test_a_canary_record_is_clipped_and_counted_like_any() -> None:
    layout = FlatLayout.of(registry.create("model", "digits_logistic", seed=0).module)
    plan, _ = WeightCanary(canary="spread").insert(make_plan(), np.random.default_rng(0))
    canary = plan.insertions.gradient_canary
    assert canary is not None
    signals = SignalsWithCanaryRecord(EmptySignals(layout), canary)
    assert (signals.n, signals.dimension) == (1, 650)
    released = DPWeights(l2_clip_norm=0.5).privatise(signals, None)  # type: ignore[arg-type]
    assert float(released.norm()) == pytest.approx(0.5, rel=1e-5)
    with pytest.raises(InputError, match="spread must be at most the 650 trainable parameters, got 651"):
        SignalsWithCanaryRecord(EmptySignals(layout), replace(canary, spread=651))
    with pytest.raises(InputError, match="spread must be >= 0, got -1"):
        SignalsWithCanaryRecord(EmptySignals(layout), replace(canary, spread=-1))


def test_the_odd_record_keeps_its_id_and_resembles_no_other() -> None:
    plan, chosen = WeightCanary(canary="record").insert(make_plan(), np.random.default_rng(0))
    odd, before = plan.records[-1], make_plan().records[-1]
    assert odd.id == before.id == chosen
    assert odd.label != before.label
    assert odd.image == (1.0,) * 64
    texts = (Record(id="a", text="the first"), Record(id="b", text="the second " * 20))
    plan, chosen = WeightCanary(canary="record").insert(make_plan(records=texts), np.random.default_rng(0))
    assert chosen == "b"
    assert set(plan.records[-1].text.split()) == {"zyzzyva"}


def test_trials_and_references_are_trainings_of_their_own() -> None:
    plan, chosen = WeightCanary().insert(make_plan(), np.random.default_rng(0))
    played = play_weights(honest(), plan, canary=chosen, trials=6, references=2, seed=3)
    assert played.observations.values.shape == (6, 650)
    assert played.observations.references.shape == (4, 650)
    assert played.observations.included.tolist() == [True, True, False, False]
    assert int(played.included.sum()) == 3
    assert played.observations.noise_scale == honest().noise_scale
    rows = np.concatenate([played.observations.values, played.observations.references])
    assert len(np.unique(rows, axis=0)) == 10
    again = play_weights(honest(), plan, canary=chosen, trials=6, references=2, seed=3)
    assert np.array_equal(again.observations.values, played.observations.values)
    assert np.array_equal(again.included, played.included)
    other = play_weights(honest(), plan, canary=chosen, trials=6, references=2, seed=4)
    assert not np.array_equal(other.observations.values, played.observations.values)


def test_a_trial_without_the_canary_knows_nothing_of_it() -> None:
    # Without noise to speak of, the trials' distance along the canary is its effect, and 0 without it.
    plan, chosen = WeightCanary(canary="coordinate").insert(make_plan(), np.random.default_rng(2))
    played = play_weights(honest(1e-9), plan, canary=chosen, trials=8, references=2, seed=0)
    canary = plan.insertions.gradient_canary
    assert canary is not None
    seen = played.observations.values[:, canary.coordinate % 650]
    inside, outside = seen[played.included], seen[~played.included]
    np.testing.assert_allclose(inside - outside.mean(), -CHANGE, rtol=0.05)


def gaussians(mu: float, trials: int, seed: int) -> tuple[WeightsSeen, BoolArray]:
    """Weights whose kinds lie mu deviations of noise 0.1 apart, along (3, 4, 0, ...) / 5."""
    generator, labels = np.random.default_rng(seed), np.arange(trials) < trials // 2
    shift = np.zeros(20)
    shift[:2] = mu * 0.1 * np.array([0.6, 0.8])
    kinds = np.arange(8) < 4
    references = kinds[:, None] * shift + 1e-6 * generator.standard_normal((8, 20))
    values = labels[:, None] * shift + 0.1 * generator.standard_normal((trials, 20))
    return WeightsSeen(values=values, references=references, included=kinds, noise_scale=0.1), labels


@pytest.mark.parametrize(("statistic", "share"), [("vector", 1.0), ("coordinate", 0.8)])
def test_the_statistic_is_the_best_for_gaussians(statistic: str, share: float) -> None:
    seen, labels = gaussians(2.0, 4000, seed=1)
    scores = WeightCanary(statistic=statistic).score(seen, np.random.default_rng(0))
    assert scores.details["mu_expected"] == pytest.approx(2.0 * share, rel=1e-3)
    assert scores.details["mean_distance"] == pytest.approx(0.2, rel=1e-3)
    inside, outside = scores.values[labels], scores.values[~labels]
    found = (inside.mean() - outside.mean()) / math.sqrt((inside.var() + outside.var()) / 2)
    assert found == pytest.approx(2.0 * share, abs=stats.norm.isf(1e-6) * math.sqrt(4 / 4000 * 1.5))


def refuted_of(verdicts: Iterator[VerdictKind]) -> int:
    return sum(kind is REFUTED for kind in verdicts)


def simulated(mu: float, statistic: str) -> Iterator[VerdictKind]:
    """Verdicts of 200 audits at 95 % of weights that are Gaussian, mu deviations apart."""
    attack = WeightCanary(statistic=statistic)
    game = WeightsGame().terms(make_plan(), canary="x", references=4)
    for seed in range(200):
        seen, labels = gaussians(mu, 60, seed)
        scores = attack.score(seen, np.random.default_rng(0))
        evidence = Evidence(scores=scores.values, members=labels, game=game, attack="weight_canary")
        yield judge(CLAIM, evidence, confidence=0.95, generator=np.random.default_rng(seed)).kind


@pytest.mark.slow
def test_weights_at_the_claims_own_distance_are_refuted_no_oftener_than_stated() -> None:
    # A true claim, and tight: at most 5 % of the audits refute it; 24 of 200 have a probability of 7e-5.
    assert refuted_of(simulated(mu_of_epsilon(1.0, 1e-4), "vector")) < 24


@pytest.mark.slow
def test_weights_that_are_far_apart_are_refuted() -> None:
    assert refuted_of(simulated(6.0, "vector")) > 150


def trained_audits(mechanism: DPWeights, canary: str, statistic: str) -> Iterator[VerdictKind]:
    """Verdicts of 20 audits at 95 %, of real trainings."""
    attack = WeightCanary(canary=canary, statistic=statistic, trials=60, references=2)
    for seed in range(20):
        yield audit_weights(mechanism, make_plan(), attack, claim=CLAIM, seed=seed).verdict.kind


@pytest.mark.slow
@pytest.mark.parametrize(("canary", "statistic"), [("coordinate", "coordinate"), ("spread", "vector")])
def test_honest_noise_is_not_refuted_in_repeated_audits(canary: str, statistic: str) -> None:
    # Calibrated to the distance exactly: more than 5 of 20 refutations have a probability of 3e-4.
    assert refuted_of(trained_audits(honest(), canary, statistic)) <= 5


@pytest.mark.slow
@pytest.mark.parametrize(("canary", "statistic"), [("coordinate", "coordinate"), ("spread", "vector")])
def test_a_hundredth_of_the_noise_is_refuted_again_and_again(canary: str, statistic: str) -> None:
    # The resampling of the deciding bound draws a blank now and then.
    assert refuted_of(trained_audits(honest(0.01), canary, statistic)) >= 15


@pytest.mark.slow
def test_one_training_of_each_kind_tells_honest_noise_from_a_hundredth_of_it() -> None:
    attack = WeightCanary(canary="coordinate", trials=100, references=2)
    kinds = [
        audit_weights(honest(scale), make_plan(), attack, claim=CLAIM, seed=5).verdict.kind
        for scale in (1.0, 0.01)
    ]
    assert kinds == [NOT_REFUTED, REFUTED]


def test_the_game_is_the_claims() -> None:
    attack = WeightCanary(trials=40, references=2)
    audit = audit_weights(honest(), make_plan(), attack, claim=CLAIM, seed=1)
    game = audit.evidence.game
    assert (game.trials, game.released, game.adjacency) == (
        Trials.INDEPENDENT,
        Released.FINAL_WEIGHTS,
        Adjacency.ADD_REMOVE,
    )
    assert audit.epsilon_reachable > 1.0
    assert audit.verdict.kind is NOT_REFUTED
    with pytest.raises(UnsupportedError, match="the claim covers scores; the weight_canary"):
        audit_weights(honest(), make_plan(), attack, claim=replace(CLAIM, released=Released.SCORES), seed=1)
    with pytest.raises(InputError, match="promises nothing"):
        audit_weights(honest(), make_plan(), attack, claim=replace(CLAIM, guarantee=NoGuarantee()), seed=1)


@pytest.mark.slow
def test_any_gradient_mechanism_can_be_played() -> None:
    # DP-SGD noises every update: its references are releases, and there is no noise besides.
    plan = make_plan(sampling=Sampling.POISSON, budget=ApproximateDP(epsilon=8.0, delta=1e-5))
    attack = WeightCanary(canary="coordinate", trials=40, references=8)
    audit = audit_weights(DPSGD(), plan, attack, seed=0)
    assert audit.verdict.kind is not REFUTED
    assert audit.evidence.details["noise_scale"] == 0.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"canary": "spred"}, "unknown canary 'spred'; did you mean 'spread'"),
        ({"statistic": "vektor"}, "unknown statistic 'vektor'; did you mean 'vector'"),
        ({"trials": math.inf}, "trials must be a whole number >= 20, got inf"),
        ({"trials": 19}, "trials must be a whole number >= 20, got 19"),
        ({"references": 1.5}, "references must be a whole number >= 2, got 1.5"),
        ({"magnitude": 0.0}, "magnitude must be finite and > 0, got 0.0"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("attack", "weight_canary", **parameters)


def test_what_is_no_game_is_refused() -> None:
    attack = WeightCanary()
    assert attack.game == "weights"
    assert attack.prepare(digits(), np.random.default_rng(0)) == Insertions()
    seen = WeightsSeen(values=np.zeros((3, 5)), references=np.zeros((0, 5)), included=np.zeros(0, dtype=bool))
    with pytest.raises(InputError, match="two references with the canary and two without"):
        attack.score(seen, np.random.default_rng(0))
    with pytest.raises(InputError, match="must hold 'nobody' once"):
        play_weights(honest(), make_plan(), canary="nobody", trials=4, references=2, seed=0)
    with pytest.raises(InputError, match="needs 4 trials and 2 references, got 2 and 2"):
        play_weights(honest(), make_plan(), canary=digits().records[0].id, trials=2, references=2, seed=0)


def check(**changes: object) -> Finding:
    """The ledger's check, on a small and quick training."""
    quick = {"epochs": 2, "batch_size": 50, "model": "digits_logistic", "trials": 100, "references": 4}
    answer: Finding = registry.create("claim_check", "dp_weights_attacked", **{**quick, **changes})
    return answer


@pytest.mark.slow
def test_the_ledgers_check_computes_its_verdict() -> None:
    sgd = {"optimizer": "sgd", "canary": "coordinate", "statistic": "coordinate"}
    # A larger step moves weights further than Eq. 2 says; at the papers' step the empirical term covers it.
    refuted, quiet = check(**sgd, learning_rate=2.0), check(**sgd)
    assert (refuted.verdict, quiet.verdict) == (REFUTED, UNDECIDED)
    assert refuted.confidence == 0.999
    assert refuted.counterexample["epsilon_lower"] > 1.0
    # More noise than the formula's mends it, less breaks what was quiet.
    assert check(**sgd, learning_rate=2.0, scale=100.0).verdict is UNDECIDED
    assert check(**sgd, scale=1e-5).verdict is REFUTED


def test_the_ledger_attacks_by_both_optimizers_over_one_epoch_and_many_by_weight_and_by_vector() -> None:
    checks = ("dp_weights_attacked", "dp_weights_fixed_order")
    asked = [claim.parameters for claim in load_ledger() if claim.check in checks]
    trained = {(one.get("optimizer", "adamw"), one.get("epochs", 10)) for one in asked}
    assert trained == {("adamw", 1), ("adamw", 10), ("sgd", 1), ("sgd", 10)}
    adam = [one for one in asked if one.get("optimizer", "adamw") == "adamw" and "epochs" not in one]
    assert {one.get("statistic", "vector") for one in adam} == {"coordinate", "vector"}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_finding() -> None:
    few = {"trials": 20, "references": 2}
    first = check(**few)
    assert first == check(**few)
    assert first.evidence != check(**few, seed=1).evidence


def test_the_public_order_is_exact_and_said_to_be_another_game() -> None:
    plan = papers_plan(
        learning_rate=0.5, optimizer="sgd", epochs=1, batch_size=50, epsilon=1.0, model="digits_logistic"
    )
    mechanism = DPWeights()
    lines = order_known(mechanism, plan, canary="coordinate", seed=0)
    noise = mechanism.for_plan(plan).noise_scale
    assert noise is not None
    found = re.search(r"all weights: mu = ([0-9.]+)", lines[0])
    assert found is not None
    # eta C / B, but for what the other records' gradients answer in the second of the two steps.
    assert float(found[1]) == pytest.approx(0.5 / 50 / noise, rel=0.05)
    assert all("not the judged game" in line for line in lines)
    assert order_known(DPSGD(), plan, canary="spread", seed=0) == ()
