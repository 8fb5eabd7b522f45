"""The transcript game: what it trains, what it lets the adversary read, and what that is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from signs_stand_in import SignsStandIn, small_plan

from workbench.accounting import MutualInformation
from workbench.attacks.claim_checks.ferret.sign_channel import OpposedTranscript
from workbench.attacks.sign_transcript import SignTranscript
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.judge import judge
from workbench.estimation.low_fpr import CERTAIN, rate_at_fpr, success_of_sign
from workbench.games.transcript import (
    CANARIES,
    KNOWLEDGE,
    OTHERS,
    FiredStep,
    TranscriptGame,
    TranscriptTrials,
    WatchedMechanism,
    play_transcripts,
)
from workbench.interfaces import (
    BoolArray,
    Evidence,
    FloatArray,
    Plan,
    Record,
    Released,
    Sampling,
    Secret,
    Trials,
    VerdictKind,
)
from workbench.mechanisms.ferret import FERRET

ALL_GAMES = [(c, o, k) for c in CANARIES for o in OTHERS for k in KNOWLEDGE]


def play(
    mechanism: Any, plan: Plan, canary: str = "opposed", others: str = "copies", **more: Any
) -> TranscriptTrials:
    """A game, small unless told otherwise."""
    given: dict[str, Any] = {"knowledge": "batches", "trials": 20, "seed": 3, **more}
    return play_transcripts(mechanism, plan, canary=canary, others=others, **given)


class Wrapped(WatchedMechanism):
    """A mechanism around another one, with its defaults."""

    public_seed = None
    zero_gradient = "silent"
    dither_standard_deviation = 0.0


def scored(played: TranscriptTrials) -> FloatArray:
    """The attack's scores."""
    return SignTranscript().score(played.observations, np.random.default_rng(0)).values


@cache
def digits_plan(nats: float = 0.5, **changes: Any) -> Plan:
    """Forty digits, 18 tensors: all five granularities differ."""
    corpus = registry.create("corpus", "digits", size=40, seed=0)
    plan = Plan(
        records=corpus.records,
        held_out=corpus.held_out[:2],
        model="digits_mlp",
        model_parameters={"hidden": 8, "hidden_layers": 8},
        steps=20,
        sampling_probability=0.2,
        learning_rate=1e-3,
        budget=MutualInformation(nats=nats, secret=Secret.RECORD),
    )
    return replace(plan, **changes)


# -------------------------------------------------------------------------------------------------- the game


@pytest.mark.parametrize(("canary", "others", "knowledge"), ALL_GAMES)
def test_without_the_canary_signs_are_those_of_the_others(canary: str, others: str, knowledge: str) -> None:
    """No false certainty, whatever is played: the likelihood without the canary is zero in no such trial."""
    played = play(SignsStandIn(), small_plan(), canary, others, knowledge=knowledge, trials=40)
    outside = [t for t, inside in zip(played.observations.trials, played.included, strict=True) if not inside]
    assert sum(t.step.size for t in outside) > 50
    for reading in outside:
        assert (reading.without is None) == (knowledge == "records")
        if reading.without is not None:
            assert np.array_equal(np.sign(reading.without), reading.sign)
    assert not np.any(scored(played)[~played.included] >= CERTAIN)


def test_half_of_the_trials_hold_the_canary_and_nothing_else_differs() -> None:
    mechanism = SignsStandIn()
    plan = replace(small_plan(), held_out=small_plan().records[:1])
    played = play(mechanism, plan)
    assert played.included.sum() == 10
    assert not np.array_equal(played.included, np.sort(played.included)[::-1])
    own, *trials = mechanism.seen
    assert len(own.records) == 6
    assert played.subject.plan is own
    assert len({p.seed for p in mechanism.seen}) == 21
    for inside, p in zip(played.included, trials, strict=True):
        others = [record for record in p.records if record.id != "r5"]
        assert len(p.records) - len(others) == int(inside)
        assert [record.id for record in others] == [f"r{i}" for i in range(5)]
        assert {record.image for record in others} == {plan.records[0].image}
        assert (p.public_size, p.held_out) == (6, ())
        assert p.insertions == trials[0].insertions
    assert played.canary == "r5"


def test_same_seed_same_game() -> None:
    first, again, other = (play(SignsStandIn(), small_plan(), seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.included, again.included)
    assert np.array_equal(scored(first), scored(again))
    assert not np.array_equal(scored(first), scored(other))


def test_an_average_canary_is_another_record_each_time() -> None:
    mechanism = SignsStandIn()
    played = play(mechanism, small_plan(), "average", "corpus", trials=60)
    missing = {
        ({f"r{i}" for i in range(6)} - {record.id for record in p.records}).pop()
        for p in mechanism.seen
        if len(p.records) == 5
    }
    assert missing == {f"r{i}" for i in range(6)}
    assert played.canary == ""
    assert all([r.id for r in p.records] == sorted(r.id for r in p.records) for p in mechanism.seen)


def test_an_outlier_is_a_thousandfold_image_with_a_wrong_label() -> None:
    mechanism, plan = SignsStandIn(), small_plan()
    play(mechanism, plan, "outlier", "corpus")
    (found,) = {p.records[5] for p in mechanism.seen if len(p.records) == 6}
    before = plan.records[5]
    assert found.image == tuple(1000.0 * x for x in before.image or ())
    assert found.label != before.label
    assert found.label in {record.label for record in plan.records}


def test_an_outlier_among_texts_repeats_a_rare_word() -> None:
    mechanism = SignsStandIn(firing_probability=0.0)
    records = tuple(Record(id=f"t{i}", text="an ordinary text " * 4) for i in range(3))
    play(mechanism, replace(small_plan(), records=records), "outlier", "corpus")
    (found,) = {p.records[2] for p in mechanism.seen if len(p.records) == 3}
    assert found.id == "t2"
    assert set(found.text.split()) == {"zyzzyva"}


def test_progress_is_told_of_each_trial() -> None:
    told: list[tuple[int, int]] = []
    play(SignsStandIn(), small_plan(), trials=4, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_what_the_judge_is_told() -> None:
    plan = small_plan()
    for canary, others, knowledge in ALL_GAMES:
        game = TranscriptGame().terms(plan, canary=canary, others=others, knowledge=knowledge)
        assert game.trials is Trials.INDEPENDENT
        assert game.released is Released.EVERY_UPDATE
        assert (game.prior, game.is_single_release) == (0.5, False)
        assert ("in which steps those took part" in game.description) == (knowledge == "batches")
    with pytest.raises(InputError, match="did you mean 'opposed'"):
        TranscriptGame().terms(plan, canary="oposed", others="corpus", knowledge="batches")


# ------------------------------------------------------------------------------- what the adversary can read


def test_a_reading_follows_from_transcript_and_public_knowledge() -> None:
    """Every number is worked out again from mask, directions, signs and other records, without the label.

    The weights of each step are rebuilt from released signs alone, in both worlds in the same way.
    """
    plan = small_plan(steps=12)
    mechanism = SignsStandIn()
    played = play(mechanism, plan, "outlier", "corpus", trials=20, knowledge="records")
    canary = next(p for p in mechanism.seen if len(p.records) == 6).records[5]
    for reading, trained in zip(played.observations.trials, mechanism.seen[1:], strict=True):
        public = np.random.default_rng(np.random.SeedSequence(trained.seed).spawn(2)[0])
        weights, at = np.zeros((4, 10)), 0
        for step in range(plan.steps):
            fired = np.flatnonzero(public.random(2) < 0.5)
            directions = [public.normal(size=(4, 10)) * (np.arange(4) % 2 == g)[:, None] for g in fired]
            changed = weights.copy()
            for u in (d / np.linalg.norm(d) for d in directions):
                assert reading.step[at] == step
                assert reading.canary[at] == pytest.approx(_inner(canary, weights, u), rel=1e-9)
                assert reading.others is not None
                for record, found in zip(plan.records[:5], reading.others[at], strict=True):
                    assert found == pytest.approx(_inner(record, weights, u), rel=1e-9)
                changed -= 0.1 * reading.sign[at] * u
                at += 1
            weights = changed
        assert at == reading.step.size


def _inner(record: Record, weights: FloatArray, direction: FloatArray) -> float:
    """Inner product of a softmax regression's gradient with a direction."""
    image = np.asarray(record.image)
    chances = np.exp(image @ weights)
    chances /= chances.sum()
    chances[record.label] -= 1
    return float(np.sum(np.outer(image, chances) * direction))


@pytest.mark.parametrize("canary", ["opposed", "outlier"])
def test_ferret_answers_alike_with_and_without_the_canary(canary: str) -> None:
    """Until the first sign the two worlds are one: the same questions have the same answers, to the bit."""
    mechanism = FERRET(granularity="quarter", firing_probability=0.5)

    class Fixed(Wrapped):
        """Every training from the same public seed and weights, so that only the records differ."""

        def claim(self, plan: Plan) -> Any:
            return mechanism.claim(plan)

        def train(self, plan: Plan, progress: Any = None) -> Any:
            return mechanism.train(plan)

        def train_watched(self, plan: Plan, watch: Callable[[FiredStep], None], progress: Any = None) -> Any:
            fixed = replace(mechanism, public_seed=11, measures_quality=False)
            return fixed.train_watched(replace(plan, initial_seed=7), watch)

    plan = digits_plan(records=digits_plan().records[:9], steps=4)
    played = play(Fixed(), plan, canary, "corpus", knowledge="records", trials=6)
    before = played.observations.trials[0]
    at = before.step == before.step[0]
    assert at.any()
    for reading in played.observations.trials:
        assert before.others is not None
        assert reading.others is not None
        assert np.array_equal(reading.canary[at], before.canary[at])
        assert np.array_equal(reading.others[at], before.others[at])
    assert not np.any(scored(played)[~played.included] >= CERTAIN)


def test_texts_are_read_in_the_mechanisms_own_arithmetic() -> None:
    """A sign that only the reader's rounding turned would be proof of a canary that is not there."""
    mechanism = FERRET(granularity="quarter", firing_probability=0.5, measures_quality=False)
    records = tuple(Record(id=f"t{i}", text=f"the {i}th of some ordinary texts") for i in range(4))
    expected: list[FloatArray] = []

    class Listening(Wrapped):
        """Notes what each record's own sum is, to the bit."""

        def claim(self, plan: Plan) -> Any:
            return mechanism.claim(plan)

        def train(self, plan: Plan, progress: Any = None) -> Any:
            return mechanism.train(plan)

        def train_watched(self, plan: Plan, watch: Callable[[FiredStep], None], progress: Any = None) -> Any:
            def both(fired: FiredStep) -> None:
                expected.append(np.stack([fired.of_sum([record]) for record in records[:3]], axis=1))
                watch(fired)

            return mechanism.train_watched(plan, both)

    words: dict[str, Any] = {"model": "tiny_gpt2", "model_parameters": {"max_length": 8}}
    plan = replace(digits_plan(), records=records, held_out=(), steps=2, **words)
    played = play(Listening(), plan, "outlier", "corpus", knowledge="records", trials=4)
    found = [trial.others for trial in played.observations.trials if trial.others is not None]
    assert np.array_equal(np.concatenate(found), np.concatenate(expected))
    assert len(np.concatenate(expected)) > 10


# ------------------------------------------------------------------------------------------ what it is worth


@pytest.mark.slow
@pytest.mark.parametrize("zero_gradient", ["silent", "coin"])
@pytest.mark.parametrize("noise", ["shuffled labels", "no gradient"])
def test_pure_noise_refutes_nothing(noise: str, zero_gradient: str) -> None:
    """30 games at 95 % confidence against a claim of 1e-6 nats; the same games with their labels refute it.

    More than 7 refutations have probability 3e-4 where each has 5 % at most.
    """
    plan = small_plan()
    if noise == "no gradient":
        plan = replace(plan, records=tuple(replace(r, image=(0.0,) * 4) for r in plan.records))
    refuted = {"blind": 0, "labelled": 0}
    for seed in range(30):
        played = play(SignsStandIn(zero_gradient=zero_gradient), plan, others="copies", trials=40, seed=seed)
        blind = np.random.default_rng(seed).permutation(played.included)
        for name, labels in (("blind", blind), ("labelled", played.included)):
            refuted[name] += _refuted(played, plan, labels, seed)
    assert refuted["blind"] <= binom.isf(1e-3, 30, 0.05)
    if noise == "no gradient":
        assert refuted["labelled"] <= binom.isf(1e-3, 30, 0.05)
    else:
        assert refuted["labelled"] >= 20


@pytest.mark.parametrize(
    ("canary", "others", "knowledge", "beyond"),
    [
        ("opposed", "copies", "batches", False),
        ("opposed", "corpus", "batches", True),
        ("average", "copies", "batches", True),
        ("average", "corpus", "records", False),
    ],
)
def test_a_game_says_what_it_grants_beyond_the_transcript(
    canary: str, others: str, knowledge: str, beyond: bool
) -> None:
    game = TranscriptGame().terms(small_plan(), canary=canary, others=others, knowledge=knowledge)
    assert bool(game.beyond) is beyond


def _refuted(played: TranscriptTrials, plan: Plan, labels: BoolArray, seed: int) -> bool:
    """Is a claim of next to nothing refuted by these labels?"""
    evidence = Evidence(
        scores=scored(played),
        members=labels,
        game=TranscriptGame().terms(plan, canary="opposed", others="copies", knowledge="batches"),
        attack="sign_transcript",
    )
    claim = replace(SignsStandIn().claim(plan), guarantee=MutualInformation(nats=1e-6, secret=Secret.RECORD))
    verdict = judge(claim, evidence, confidence=0.95, generator=np.random.default_rng(seed))
    return verdict.kind is VerdictKind.REFUTED


def test_power_where_the_truth_is_known() -> None:
    """An opposed canary among copies: true-positive rates and success lie where the Z-channel says.

    600 trials; each of three intervals at 99.9 %. A channel with half the firing lies outside.
    """
    mechanism = SignsStandIn(firing_probability=0.3)
    plan = small_plan(records=12, steps=8, s=0.25)
    played = play(mechanism, plan, trials=600, seed=1)
    values = scored(played)
    truth = OpposedTranscript(groups=2, steps=8, firing_probability=0.3, sampling_probability=0.25)
    certain = rate_at_fpr(values, played.included, fpr=0.0, confidence=0.999)
    assert certain.alarms == 0
    assert certain.tpr.lower <= float(truth.tpr_without_alarms()) <= certain.tpr.upper
    success = success_of_sign(values, played.included, confidence=0.999)
    assert success.lower <= float(truth.success()) <= success.upper
    weaker = replace(truth, firing_probability=0.15)
    assert float(weaker.tpr_without_alarms()) < certain.tpr.lower
    assert float(weaker.success()) < success.lower


GRANULARITIES = ("max", "half", "quarter", "eighth", "2")


@pytest.mark.slow
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("nats", [0.1, 0.5, 1.0])
def test_ferret_where_the_truth_is_known(granularity: str, nats: float) -> None:
    """FERRET itself: rates at 99.99 % beside the closed form, and success at 99.9 % beside what nats allow.

    That no more than the claim allows is guessed is known of this canary (`OpposedTranscript.information`).
    """
    plan = digits_plan(nats)
    played = play(FERRET(granularity=granularity), plan, trials=300, seed=2)
    metrics = played.subject.transcript.metrics
    truth = OpposedTranscript(
        groups=int(metrics["groups"]),
        steps=plan.steps,
        firing_probability=metrics["firing_probability"],
        sampling_probability=plan.sampling_probability,
    )
    values = scored(played)
    certain = rate_at_fpr(values, played.included, fpr=0.0, confidence=0.9999)
    assert certain.alarms == 0
    assert certain.tpr.lower <= float(truth.tpr_without_alarms()) <= certain.tpr.upper
    allowed = played.subject.claim.guarantee.max_success(0.5)
    assert success_of_sign(values, played.included, confidence=0.998).lower <= allowed


@pytest.mark.slow
def test_ferret_plays() -> None:
    """One game of FERRET: signs as predicted, in a model whose five granularities differ."""
    groups = set()
    for granularity in GRANULARITIES:
        torch.manual_seed(0)
        played = play(FERRET(granularity=granularity), digits_plan(1.0), others="corpus", trials=10)
        groups.add(played.subject.transcript.metrics["groups"])
        assert not np.any(scored(played)[~played.included] >= CERTAIN)
        assert sum(t.step.size for t in played.observations.trials) > 0
    assert len(groups) == 5


# -------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trials": 7}, "trials must be an even number >= 4, got 7"),
        ({"canary": "oposed"}, "did you mean 'opposed'"),
        ({"others": "copis"}, "did you mean 'copies'"),
        ({"knowledge": "record"}, "did you mean 'records'"),
    ],
)
def test_refused_settings(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        play(SignsStandIn(), small_plan(), **changes)


def test_refused_plans() -> None:
    plan = small_plan()
    with pytest.raises(InputError, match="at most 16 other records, got 17; knowledge 'batches'"):
        play(SignsStandIn(), small_plan(records=18), knowledge="records")
    play(SignsStandIn(), small_plan(records=17, steps=1), knowledge="records", trials=4)
    with pytest.raises(UnsupportedError, match="needs Poisson samples"):
        play(SignsStandIn(), replace(plan, sampling=Sampling.SHUFFLED))
    with pytest.raises(InputError, match="distinct ids"):
        play(SignsStandIn(), replace(plan, records=plan.records[:1] * 3))


def test_refused_mechanisms() -> None:
    plan = small_plan()
    with pytest.raises(UnsupportedError, match="DPSGD releases no masked signs"):
        play(registry.create("mechanism", "dp_sgd"), plan)
    with pytest.raises(InputError, match=r"public_seed must be None in a transcript game, .* got 4"):
        play(SignsStandIn(public_seed=4), plan)
    with pytest.raises(UnsupportedError, match=r"dither_standard_deviation 0\.1"):
        play(SignsStandIn(dither_standard_deviation=0.1), plan)
