"""The judge: each verdict for its reason, in each currency and game, and no false refutation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from workbench.accounting import (
    ApproximateDP,
    GaussianDP,
    MutualInformation,
    NoGuarantee,
    RenyiDP,
)
from workbench.accounting.subsampled_gaussian import calibrate_noise_multiplier
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.deciding import implied_epsilon, unknown_prior_range
from workbench.estimation.judge import combine, judge, judged_subject
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    Family,
    FloatArray,
    GameTerms,
    Guarantee,
    Released,
    Secret,
    Trials,
    Verdict,
    VerdictKind,
)


def make_claim(guarantee: Guarantee) -> Claim:
    about = guarantee.secret if isinstance(guarantee, MutualInformation) else Adjacency.ADD_REMOVE
    return Claim(guarantee=guarantee, about=about, released=Released.EVERY_UPDATE, source="the test")


EPSILON_ONE = make_claim(ApproximateDP(epsilon=1.0, delta=1e-5))


def make_evidence(
    shift: float,
    *,
    n: int = 1000,
    seed: int = 0,
    trials: Trials = Trials.ONE_RUN,
    texts: bool = False,
    **game: object,
) -> Evidence:
    """Unit normals, shifted for members; a text of the record's number, which tells nothing."""
    generator = np.random.default_rng(seed)
    members = generator.random(n) < 0.5
    scores = generator.normal(size=n) + shift * members
    return Evidence(
        scores=scores,
        members=members,
        game=GameTerms(description="a test", trials=trials, **game),  # type: ignore[arg-type]
        attack="test",
        blind_texts=tuple(f"record {i}" for i in range(n)) if texts else (),
    )


def judged(claim: Claim, evidence: Evidence, confidence: float = 0.95) -> Verdict:
    return judge(claim, evidence, confidence=confidence, generator=np.random.default_rng(1))


@pytest.mark.parametrize("trials", list(Trials))
def test_separated_scores_refute_and_noise_does_not(trials: Trials) -> None:
    refuted = judged(EPSILON_ONE, make_evidence(4.0, trials=trials))
    assert refuted.kind is VerdictKind.REFUTED
    assert refuted.bound is not None
    assert refuted.bound.lower > 1.0
    for said in ("REFUTED", "95 %", "epsilon = 1", "delta = 1e-05", "add-remove", str(trials), "any (eps"):
        assert said in refuted.sentence
    kept = judged(EPSILON_ONE, make_evidence(0.0, trials=trials))
    assert kept.kind is VerdictKind.NOT_REFUTED
    assert "does not show that the claim is true" in kept.sentence
    assert {interval.name for interval in kept.intervals} >= {"auc", "advantage", "accuracy"}


@pytest.mark.parametrize("guarantee", [ApproximateDP(epsilon=1.0, delta=1e-5), GaussianDP(mu=0.5)])
def test_one_score_for_everybody_is_an_observation_of_independent_trials(guarantee: Guarantee) -> None:
    """Scores that tell are the control. In one run a constant is no observation, but somebody's mistake."""
    told = make_evidence(4.0, trials=Trials.INDEPENDENT)
    assert judged(make_claim(guarantee), told).kind is VerdictKind.REFUTED
    verdict = judged(make_claim(guarantee), replace(told, scores=np.full(1000, -0.1)))
    assert verdict.kind is VerdictKind.NOT_REFUTED
    assert verdict.bound is not None
    assert verdict.bound.lower == 0.0
    assert "All 1000 scores are the same number" in verdict.sentence
    assert next(one for one in verdict.intervals if one.name == "auc").estimate == 0.5
    one_run = judged(EPSILON_ONE, replace(make_evidence(4.0), scores=np.full(1000, -0.1)))
    assert one_run.kind is VerdictKind.INVALID
    assert "the test attack gives all 1000 candidates of the subject the same score, -0.1" in one_run.sentence
    assert (one_run.bound, one_run.bounds) == (None, ())


def test_one_score_for_everybody_is_an_observation_in_every_currency_and_family() -> None:
    gaussian = make_evidence(
        0.0, trials=Trials.INDEPENDENT, family=Family.GAUSSIAN, steps=10, sampling_probability=0.1
    )
    for claim, evidence in (
        (EPSILON_ONE, gaussian),
        (
            make_claim(MutualInformation(nats=0.1, secret=Secret.RECORD)),
            make_evidence(0.0, trials=Trials.INDEPENDENT),
        ),
    ):
        verdict = judged(claim, replace(evidence, scores=np.zeros(1000)))
        assert verdict.kind is VerdictKind.NOT_REFUTED
        assert "All 1000 scores are the same number" in verdict.sentence


def test_a_constant_attack_leaves_the_others_their_results() -> None:
    told, silent = make_evidence(4.0), replace(make_evidence(4.0), scores=np.full(1000, 2.5), attack="silent")
    whole = judged_subject("dp_sgd", "subject", EPSILON_ONE, [told, silent], confidence=0.95, seed=0)
    assert [attack["verdict"]["kind"] for attack in whole["attacks"]] == ["REFUTED", "INVALID"]
    assert whole["verdict"]["kind"] == "REFUTED"
    alone = judged_subject("dp_sgd", "subject", EPSILON_ONE, [silent], confidence=0.95, seed=0)
    assert (
        "the silent attack gives all 1000 candidates of dp_sgd the same score, 2.5"
        in (alone["verdict"]["sentence"])
    )


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("scores", [np.arange(40.0), np.where(np.arange(40) < 20, np.arange(40.0), 1e300)])
def test_a_bound_that_does_not_decide_ends_no_audit(scores: FloatArray, place: int) -> None:
    """One member, or one non-member, cannot be split into halves; 1e300 has no square."""
    members = (np.arange(40) == 7) == bool(place)
    evidence = replace(make_evidence(0.0, n=40, trials=Trials.INDEPENDENT), scores=scores, members=members)
    verdict = judged(EPSILON_ONE, evidence)
    assert verdict.kind is VerdictKind.UNDERPOWERED
    assert verdict.bounds[0].name == "clopper_pearson_all"
    assert "clopper_pearson_split" not in {bound.name for bound in verdict.bounds}


def test_a_claim_out_of_reach_is_underpowered_and_says_how_many_trials_would_do() -> None:
    claim = make_claim(ApproximateDP(epsilon=6.0, delta=1e-5))
    verdict = judged(claim, make_evidence(50.0, n=60))
    assert verdict.kind is VerdictKind.UNDERPOWERED
    assert verdict.trials_needed is not None
    assert verdict.trials_needed > 60
    enough = [judged(claim, make_evidence(50.0, n=verdict.trials_needed, seed=seed)) for seed in range(12)]
    assert sum(found.kind is VerdictKind.REFUTED for found in enough) >= 10  # Of 95 %; else once in 8,000.
    fewer = round(0.9 * verdict.trials_needed)
    assert judged(claim, make_evidence(50.0, n=fewer)).kind is VerdictKind.UNDERPOWERED


@pytest.mark.parametrize("trials", list(Trials))
def test_a_claim_that_stands_says_what_a_perfect_attack_could_have_shown(trials: Trials) -> None:
    evidence = make_evidence(0.3, trials=trials)
    kept = judged(EPSILON_ONE, evidence)
    perfect = judged(EPSILON_ONE, replace(evidence, scores=evidence.members.astype(float)))
    assert kept.kind is VerdictKind.NOT_REFUTED
    assert kept.bound is not None
    assert perfect.kind is VerdictKind.REFUTED
    assert perfect.bound is not None
    assert perfect.ceiling is None
    assert kept.ceiling == pytest.approx(perfect.bound.lower, abs=0.3)  # The resampling tosses new coins.
    said = f"A perfect attack on this many trials could have shown at most epsilon >= {kept.ceiling:.4g}."
    assert said in kept.sentence
    assert said in combine([kept, kept], confidence=0.9).sentence
    few = judged(EPSILON_ONE, make_evidence(0.3, n=10, trials=trials))
    assert few.kind is VerdictKind.UNDERPOWERED
    assert f"could show at most epsilon >= {few.ceiling:.4g}, and the claim" in few.sentence


def test_the_ceiling_is_in_the_currency_of_the_claim_and_open_for_releases_without_noise() -> None:
    independent = make_evidence(0.0, trials=Trials.INDEPENDENT)
    for guarantee, quantity in (
        (GaussianDP(mu=1.0), "mu"),
        (MutualInformation(nats=0.1, secret=Secret.RECORD), "success"),
    ):
        verdict = judged(make_claim(guarantee), independent)
        assert verdict.ceiling is not None
        assert f"could have shown at most {quantity} >= {verdict.ceiling:.4g}." in verdict.sentence
    releases = make_evidence(0.0, trials=Trials.INDEPENDENT, family=Family.GAUSSIAN, steps=10)
    verdict = judged(EPSILON_ONE, releases)
    assert verdict.ceiling == math.inf
    assert "A perfect attack has no ceiling here" in verdict.sentence
    inverted = judged(EPSILON_ONE, make_evidence(-3.0))
    assert inverted.ceiling is None


def test_inverted_scores_are_invalid_though_they_separate() -> None:
    verdict = judged(EPSILON_ONE, make_evidence(-3.0))
    assert verdict.kind is VerdictKind.INVALID
    assert "below one half" in verdict.sentence
    assert verdict.bound is None


def test_an_area_below_one_half_is_told_and_makes_no_verdict_kinder() -> None:
    """At -0.18 the AUC is some 0.45: below one half at 95 %, and not enough for INVALID (p < 0.001)."""
    evidence = make_evidence(-0.18, seed=3)
    verdict = judged(EPSILON_ONE, evidence)
    area = next(one for one in verdict.intervals if one.name == "auc")
    assert area.upper < 0.5
    assert verdict.kind is VerdictKind.NOT_REFUTED
    assert verdict.sentence.endswith(f"[{1 - area.upper:.3f} to {1 - area.lower:.3f}].")
    assert "does not show privacy: the flipped score has AUC" in verdict.sentence
    assert "flipped" not in judged(EPSILON_ONE, make_evidence(0.0)).sentence
    inverted = judged(EPSILON_ONE, make_evidence(-3.0))
    assert inverted.kind is VerdictKind.INVALID
    assert "does not show privacy" in inverted.sentence
    refuted = judged(EPSILON_ONE, make_evidence(4.0))
    whole = combine([verdict, refuted], confidence=0.9)
    assert whole.kind is VerdictKind.REFUTED
    assert whole.bound == refuted.bound
    assert "flipped" not in whole.sentence
    (reason,) = whole.reasons
    assert reason.startswith(f"In another of its games: AUC {area.estimate:.3f} [")
    assert combine([refuted, judged(EPSILON_ONE, make_evidence(0.0))], confidence=0.9).reasons == ()


def test_a_shift_that_a_blind_classifier_sees_is_invalid() -> None:
    evidence = make_evidence(4.0, n=400, texts=True)
    assert judged(EPSILON_ONE, evidence).kind is VerdictKind.REFUTED
    texts = tuple(
        f"record {i} of {'2019' if inside else '2024'}" for i, inside in enumerate(evidence.members)
    )
    shifted = Evidence(
        scores=evidence.scores,
        members=evidence.members,
        game=evidence.game,
        attack="test",
        blind_texts=texts,
    )
    verdict = judged(EPSILON_ONE, shifted)
    assert verdict.kind is VerdictKind.INVALID
    assert "different distributions" in verdict.sentence


def test_mutual_information_is_judged_by_success_over_independent_trials() -> None:
    claim = make_claim(MutualInformation(nats=1 / 128, secret=Secret.RECORD))
    independent = make_evidence(2.0, trials=Trials.INDEPENDENT)
    refuted = judged(claim, independent)
    assert refuted.kind is VerdictKind.REFUTED
    assert "success" in refuted.sentence
    assert judged(claim, make_evidence(0.0, trials=Trials.INDEPENDENT)).kind is VerdictKind.NOT_REFUTED
    tiny = make_evidence(20.0, n=12, trials=Trials.INDEPENDENT)
    strict = make_claim(MutualInformation(nats=0.6, secret=Secret.RECORD))
    assert judged(strict, tiny).kind is VerdictKind.UNDERPOWERED
    with pytest.raises(UnsupportedError, match="trials must be independent, got one-run"):
        judged(claim, make_evidence(2.0))


@pytest.mark.parametrize("guarantee", [GaussianDP(mu=0.3), RenyiDP(alpha=20.0, epsilon=0.3)])
def test_other_currencies_are_judged_in_one_run(guarantee: Guarantee) -> None:
    stated = implied_epsilon(guarantee)
    assert stated.epsilon > 0.3
    assert judged(make_claim(guarantee), make_evidence(5.0)).kind is VerdictKind.REFUTED
    assert judged(make_claim(guarantee), make_evidence(0.1)).kind is VerdictKind.NOT_REFUTED


def test_a_claim_of_nothing_cannot_be_judged() -> None:
    with pytest.raises(InputError, match="promises nothing"):
        judged(make_claim(NoGuarantee()), make_evidence(1.0))


@pytest.mark.parametrize("confidence", [0.5, 1.0, math.nan])
def test_bad_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(InputError, match="confidence must be in"):
        judged(EPSILON_ONE, make_evidence(1.0), confidence)


STEPS, Q = 40, 0.25


def release_evidence(mu: float, *, seed: int = 0, n: int = 2000, noise: float = 1.0) -> Evidence:
    generator = np.random.default_rng(seed)
    members = generator.random(n) < 0.5
    return Evidence(
        scores=mu * members + noise * generator.normal(size=n),
        members=members,
        game=GameTerms(
            description="releases",
            trials=Trials.INDEPENDENT,
            family=Family.GAUSSIAN,
            steps=STEPS,
            sampling_probability=Q,
        ),
        attack="releases",
    )


def test_single_releases_are_composed_before_they_are_judged() -> None:
    noise = calibrate_noise_multiplier(
        target_epsilon=1.0, target_delta=1e-5, sampling_probability=Q, steps=STEPS
    )
    sound = judged(EPSILON_ONE, release_evidence(1.0 / noise))
    assert sound.kind is VerdictKind.NOT_REFUTED
    assert sound.bound is not None
    assert 0.7 < sound.bound.lower < 1.0
    assert "composed over T = 40 releases" in sound.bound.assumption
    broken = judged(EPSILON_ONE, release_evidence(10.0 / noise))
    assert broken.kind is VerdictKind.REFUTED
    assert broken.bound is not None
    assert broken.bound.family is Family.SUBSAMPLED_GAUSSIAN


def test_noise_free_releases_are_refuted_without_a_family() -> None:
    verdict = judged(EPSILON_ONE, release_evidence(1.0, noise=0.0))
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert verdict.bound.family is Family.ANY
    assert any("Gaussian family" in reason for reason in verdict.reasons)


def test_the_run_of_a_participating_record_is_weaker_than_its_release() -> None:
    """A release that shows e^a carries to log(1 + q (e^a - 1)), far below a: here q saves it."""
    generator = np.random.default_rng(0)
    members = generator.random(4000) < 0.5
    game = GameTerms(description="r", trials=Trials.INDEPENDENT, steps=100, sampling_probability=0.002)
    evidence = Evidence(
        scores=members + 0.3 * generator.normal(size=4000), members=members, game=game, attack="t"
    )
    assert judged(EPSILON_ONE, evidence).kind is not VerdictKind.REFUTED


def randomised_response(seed: int, n: int) -> Evidence:
    """The tight pure epsilon = 1 mechanism, in one run."""
    generator = np.random.default_rng([7, seed])
    members = generator.random(n) < 0.5
    honest = generator.random(n) < math.e / (1.0 + math.e)
    return Evidence(
        scores=np.where(honest, members, ~members).astype(np.float64),
        members=members,
        game=GameTerms(description="randomised response", trials=Trials.ONE_RUN),
        attack="test",
    )


@pytest.mark.slow
def test_true_claims_are_refuted_at_most_as_often_as_the_confidence_says() -> None:
    """400 audits of a tight true claim: at most 5 % + 3 standard errors (0.033); false alarm below 0.2 %."""
    repetitions = 400
    kinds = [judged(EPSILON_ONE, randomised_response(seed, 500)).kind for seed in range(repetitions)]
    refuted = kinds.count(VerdictKind.REFUTED) / repetitions
    assert refuted <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)
    assert VerdictKind.INVALID not in kinds
    false = make_claim(ApproximateDP(epsilon=0.3, delta=1e-5))
    caught = [judged(false, randomised_response(seed, 500)).kind for seed in range(40)]
    assert caught.count(VerdictKind.REFUTED) > 20


def test_combining_keeps_the_strongest_answer() -> None:
    refuted = judged(EPSILON_ONE, make_evidence(4.0))
    kept = judged(EPSILON_ONE, make_evidence(0.0))
    invalid = judged(EPSILON_ONE, make_evidence(-3.0))
    weak = judged(make_claim(ApproximateDP(epsilon=6.0, delta=0.0)), make_evidence(0.0, n=60))
    assert combine([kept, refuted, invalid], confidence=0.95).kind is VerdictKind.REFUTED
    assert combine([kept, invalid], confidence=0.95).kind is VerdictKind.INVALID
    assert combine([weak, kept], confidence=0.95).kind is VerdictKind.NOT_REFUTED
    assert combine([weak, weak], confidence=0.95).kind is VerdictKind.UNDERPOWERED
    with pytest.raises(InputError, match="verdicts must not be empty"):
        combine([], confidence=0.95)


def test_a_claim_is_not_tested_by_a_game_that_shows_more_than_it_covers() -> None:
    hidden_state = Claim(
        guarantee=EPSILON_ONE.guarantee, about=Adjacency.ADD_REMOVE, released=Released.SCORES, source="test"
    )
    evidence = make_evidence(4.0, released=Released.EVERY_UPDATE)
    assert judged(EPSILON_ONE, evidence).kind is VerdictKind.REFUTED
    with pytest.raises(UnsupportedError, match="the claim covers scores; the test attack sees every update"):
        judged(hidden_state, evidence)


@pytest.mark.parametrize(
    "claim", [EPSILON_ONE, make_claim(MutualInformation(nats=0.1, secret=Secret.RECORD))], ids=["dp", "nats"]
)
def test_an_adversary_who_knows_more_than_was_claimed_refutes_nothing(claim: Claim) -> None:
    evidence = make_evidence(4.0, trials=Trials.INDEPENDENT)
    assert judged(claim, evidence).kind is VerdictKind.REFUTED
    knowing = replace(evidence, game=replace(evidence.game, beyond="the order of the batches"))
    verdict = judged(claim, knowing)
    assert verdict.kind is VerdictKind.UNDECIDED
    assert "also knows the order of the batches, which the claim does not grant" in verdict.sentence
    weak = replace(make_evidence(0.0, trials=Trials.INDEPENDENT), game=knowing.game)
    kept = judged(claim, weak)
    assert kept.kind is VerdictKind.NOT_REFUTED
    assert combine([verdict, kept], confidence=0.95).kind is VerdictKind.NOT_REFUTED
    assert combine([verdict], confidence=0.95).kind is VerdictKind.UNDECIDED


def test_a_claim_is_not_tested_by_other_neighbours() -> None:
    claim = Claim(
        guarantee=EPSILON_ONE.guarantee,
        about=Adjacency.REPLACE_ONE,
        released=Released.EVERY_UPDATE,
        source="test",
    )
    with pytest.raises(UnsupportedError, match="adjacency is replace-one; the test attack plays add-remove"):
        judged(claim, make_evidence(4.0, adjacency=Adjacency.ADD_REMOVE))


def uneven(share: float, *, shift: float = 0.0, seed: int = 0, n: int = 1000, **game: object) -> Evidence:
    """Labels from coins of another probability than one half."""
    generator = np.random.default_rng([11, seed])
    members = generator.random(n) < share
    return Evidence(
        scores=generator.normal(size=n) + shift * members,
        members=members,
        game=GameTerms(description="uneven", **game),  # type: ignore[arg-type]
        attack="test",
    )


@pytest.mark.parametrize("share", [0.1, 0.6, 0.9])
def test_labels_that_are_not_the_coins_they_should_be_are_invalid(share: float) -> None:
    verdict = judged(EPSILON_ONE, uneven(share, trials=Trials.ONE_RUN))
    assert verdict.kind is VerdictKind.INVALID
    assert "coins of probability 0.5 do not give" in verdict.sentence


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
def test_an_unknown_prior_is_paid_for(share: float) -> None:
    """Noise is refuted in at most 5 % + 3 standard errors of 300 runs; separated scores still are."""
    refuted = 0
    for seed in range(300):
        noise = uneven(share, seed=seed, n=300, trials=Trials.ONE_RUN)
        known = unknown_prior_range(noise.members)
        noise = replace(noise, game=replace(noise.game, prior=share, prior_range=known))
        refuted += (
            judged(make_claim(ApproximateDP(epsilon=0.01, delta=1e-5)), noise).kind is VerdictKind.REFUTED
        )
    assert refuted / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    told = uneven(share, shift=8.0, trials=Trials.ONE_RUN)
    told = replace(told, game=replace(told.game, prior=share, prior_range=unknown_prior_range(told.members)))
    assert judged(EPSILON_ONE, told).kind is VerdictKind.REFUTED


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_success_is_measured_at_the_prior_of_the_game(share: float) -> None:
    """Noise with nine members in ten is guessed right nine times in ten, which is no merit."""
    claim = make_claim(MutualInformation(nats=0.01, secret=Secret.RECORD))
    noise = uneven(share, trials=Trials.INDEPENDENT)
    assert judged(claim, noise).kind is VerdictKind.NOT_REFUTED
    told = uneven(share, shift=6.0, trials=Trials.INDEPENDENT)
    assert judged(claim, told).kind is VerdictKind.REFUTED


def test_mutual_information_is_not_judged_by_one_release_of_a_run() -> None:
    claim = make_claim(MutualInformation(nats=0.01, secret=Secret.RECORD))
    with pytest.raises(UnsupportedError, match="is about a whole run"):
        judged(claim, release_evidence(3.0))


def test_six_releases_are_too_few_even_for_a_perfect_canary() -> None:
    members = np.array([True, False] * 3)
    game = replace(release_evidence(1.0).game)
    evidence = Evidence(scores=members.astype(np.float64), members=members, game=game, attack="releases")
    assert judged(EPSILON_ONE, evidence).kind is VerdictKind.UNDERPOWERED


def test_a_refutation_says_what_it_assumes() -> None:
    assert "It assumes: labels are independent coins" in judged(EPSILON_ONE, make_evidence(4.0)).sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guarantee", "quantity"),
    [
        (GaussianDP(mu=1.0), "mu"),
        pytest.param(RenyiDP(alpha=4.0, epsilon=2.0), "renyi", marks=pytest.mark.slow),
    ],
)
def test_curves_are_judged_in_their_own_currency_from_independent_trials(
    guarantee: Guarantee, quantity: str
) -> None:
    """Both claims are exactly true of unit normals one apart (alpha mu^2 / 2 = 2); 10 audits at 95 %: more
    than 4 refuted in under 0.1 % of runs of this test."""
    claim = make_claim(guarantee)
    refuted = 0
    for seed in range(10):
        verdict = judged(claim, make_evidence(1.0, n=100, seed=seed, trials=Trials.INDEPENDENT))
        refuted += verdict.kind is VerdictKind.REFUTED
        assert verdict.bound is not None
        assert verdict.bound.quantity == quantity
    assert refuted <= 4
    told = judged(claim, make_evidence(4.0, trials=Trials.INDEPENDENT))
    assert told.kind is VerdictKind.REFUTED
    assert quantity in told.sentence
    strong = make_claim(GaussianDP(mu=20.0))
    assert judged(strong, make_evidence(50.0, trials=Trials.INDEPENDENT)).kind is VerdictKind.UNDERPOWERED
