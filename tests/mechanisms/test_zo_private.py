"""DPZero and DP-AggZO: what a record may add, what noise is added, what is claimed, and what audits find."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from workbench.accounting import ApproximateDP, GaussianDP, MutualInformation
from workbench.accounting.subsampled_gaussian import mu_to_run_epsilon
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import gaussian_location
from workbench.interfaces import (
    Adjacency,
    Corpus,
    Family,
    GradientCanary,
    Insertions,
    Model,
    Plan,
    Released,
    Sampling,
    Secret,
    Signals,
)
from workbench.mechanisms.dp_aggzo import DPAggZO
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.dpzero import DPZero
from workbench.mechanisms.shared.private_zeroth_order import PrivateZerothOrder, scalar_signals
from workbench.training.fine_tuning import Seeds, build_model, seed_number, trainable
from workbench.training.loop import load_subject
from workbench.training.subject import TrainedSubject
from workbench.training.zeroth_order import Directions, ZerothOrder

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance."""

BUDGET = ApproximateDP(epsilon=1.0, delta=1e-5)
CANARY = GradientCanary(coordinate=5, magnitude=1e4)


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(DPAggZO):
    """A negative control: half the noise under the same claim."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """DP-AggZO's step with half the noise."""
        assert self.noise_multiplier is not None
        honest = DPAggZO(l2_clip_norm=self.l2_clip_norm, noise_multiplier=self.noise_multiplier / 2)
        return honest.privatise(signals, generator)


@dataclass(frozen=True, kw_only=True)
class WithoutNoise(DPZero):
    """A negative control: as good as no noise, under the same claim."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """DPZero's step with a twentieth of the clip norm as noise."""
        return DPZero(l2_clip_norm=self.l2_clip_norm, noise_multiplier=0.05).privatise(signals, generator)


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=60, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_logistic",
        steps=12,
        sampling_probability=0.2,
        learning_rate=0.01,
        optimizer="sgd",
        budget=BUDGET,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def weights(subject: TrainedSubject) -> list[Tensor]:
    return list(trainable(subject.model.module).values())


def built(plan: Plan) -> Model:
    model = build_model(plan)
    model.module.eval()
    return model


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-6, 0.3, 2.0, 50.0, 1e30])
@pytest.mark.parametrize("directions", [1, 7])
def test_no_record_adds_more_than_the_clip_norm(size: float, directions: int) -> None:
    """Adding a record moves the release, under the same noise, by the clipped vector and no more than c."""
    mechanism = DPAggZO(l2_clip_norm=2.0, noise_multiplier=1.0, directions=directions)
    generator = np.random.default_rng(3)
    others, direction = generator.normal(size=(5, directions)), generator.normal(size=directions)
    vector = size * direction / np.linalg.norm(direction)
    with_it, without = (
        mechanism.privatise(scalar_signals(rows), torch.Generator().manual_seed(1))
        for rows in (np.vstack([others, vector]), others)
    )
    added = (with_it - without).numpy()
    assert np.linalg.norm(added) <= 2.0 * (1 + 1e-12)
    np.testing.assert_allclose(added, vector * min(1.0, 2.0 / size if size else 1.0), rtol=1e-9, atol=1e-12)


def test_averaging_before_the_clip_is_a_clip_norm_of_k_times_c() -> None:
    before = DPAggZO(l2_clip_norm=0.5, directions=4, average="before", noise_multiplier=2.0)
    after = DPAggZO(l2_clip_norm=2.0, directions=4, noise_multiplier=2.0)
    plan = make_plan(steps=3)
    one, other = before.train(plan), after.train(plan)
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
    assert before.sensitivity == after.sensitivity == 2.0


@pytest.mark.parametrize("directions", [1, 3])
def test_a_step_is_the_loop_that_the_paper_prints(directions: int) -> None:
    """Differences, clip, noise, mean over q N and over K, and the move, against loops over a second model."""
    plan = make_plan(steps=1, sampling_probability=0.5, learning_rate=0.05)
    mechanism = DPAggZO(l2_clip_norm=1.5, noise_multiplier=0.7, directions=directions)
    subject = mechanism.train(plan)
    seeds = Seeds.of(plan)
    sample = np.flatnonzero(np.random.default_rng(seeds.sampling).random(60) < 0.5)
    model = built(plan)
    engine = ZerothOrder(model, scale=1e-3, seed=seed_number(seeds.public))
    sums = np.zeros(directions)
    for index in sample:
        record = [plan.records[index]]
        vector = np.array([engine.differences(record, k)[0][0] for k in range(directions)])
        sums += vector / max(1.0, float(np.linalg.norm(vector)) / 1.5)
    engine.settle()
    noise = torch.Generator().manual_seed(seed_number(seeds.noise))
    sums += torch.empty(directions, dtype=torch.float64).normal_(0.0, 0.7 * 1.5, generator=noise).numpy()
    parameters = list(trainable(model.module).values())
    start = [parameter.detach().double() for parameter in parameters]
    moved = [parameter.clone() for parameter in start]
    for k in range(directions):
        for number, place, z in Directions(parameters, seed_number(seeds.public)).parts(k):
            moved[number].view(-1)[place] -= 0.05 / directions * sums[k] / (0.5 * 60) * z.double()
    for found, wanted in zip(weights(subject), moved, strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=5e-6, rtol=0)
    assert max(float((new - old).abs().max()) for new, old in zip(moved, start, strict=True)) > 5e-4


@cache
def ks_p_value(kind: type[PrivateZerothOrder], standard_deviation: float) -> float:
    """P-value of 40,000 noises of empty samples of 4 scalars against the stated normal law."""
    mechanism = kind(l2_clip_norm=3.0, noise_multiplier=2.0, **({} if kind is DPZero else {"directions": 4}))
    signals, generator = scalar_signals(np.zeros((0, 4))), torch.Generator().manual_seed(5)
    noise = np.concatenate([mechanism.privatise(signals, generator).numpy() for _ in range(10_000)])
    return float(stats.kstest(noise / standard_deviation, "norm").pvalue)


def test_the_noise_is_gaussian_of_sigma_c() -> None:
    assert ks_p_value(DPAggZO, 6.0) > FALSE_ALARM


@pytest.mark.slow
def test_the_noise_test_refutes_half_and_a_tenth_too_much() -> None:
    assert ks_p_value(HalfTheNoise, 6.0) < FALSE_ALARM
    assert ks_p_value(DPAggZO, 6.6) < FALSE_ALARM


def test_one_direction_of_dp_aggzo_is_dpzero_to_the_bit() -> None:
    plan = make_plan(insertions=Insertions(gradient_canary=CANARY))
    one = DPZero(l2_clip_norm=1.0).train(plan)
    for average in ("after", "before"):
        other = DPAggZO(l2_clip_norm=1.0, directions=1, average=average).train(plan)
        assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))
        np.testing.assert_array_equal(
            one.transcript.canary_observations, other.transcript.canary_observations
        )


def test_the_noise_is_the_one_of_dp_sgd() -> None:
    for plan in (make_plan(), make_plan(sampling_probability=1.0, budget=GaussianDP(mu=0.5))):
        wanted = DPSGD().for_plan(plan).noise_multiplier
        assert wanted is not None
        assert wanted > 0
        assert DPZero().for_plan(plan).noise_multiplier == wanted
        assert DPAggZO(directions=64).for_plan(plan).noise_multiplier == wanted
        ours, theirs = DPZero().claim(plan), DPSGD().claim(plan)
        assert (ours.guarantee, ours.about, ours.released) == (
            theirs.guarantee,
            theirs.about,
            theirs.released,
        )
    given = DPZero(noise_multiplier=2.0).claim(make_plan())
    assert given.guarantee == DPSGD(noise_multiplier=2.0).claim(make_plan()).guarantee
    assert (given.about, given.released) == (Adjacency.ADD_REMOVE, Released.EVERY_UPDATE)
    assert DPZero().capabilities.family is DPAggZO().capabilities.family is Family.GAUSSIAN


def test_table_3s_recipe_is_calibrated() -> None:
    """T = 20,000 at q = 0.064 and 1,000 at the same: noise grows as epsilon falls and as T grows."""
    recipe = make_plan(sampling_probability=0.064, steps=1000)
    noises = [
        DPAggZO(directions=64)
        .for_plan(replace(recipe, budget=ApproximateDP(epsilon=e, delta=1e-5)))
        .noise_multiplier
        for e in (0.5, 2.0)
    ]
    longer = DPZero().for_plan(replace(recipe, steps=20_000, budget=ApproximateDP(epsilon=2.0, delta=1e-5)))
    assert noises[0] is not None
    assert noises[1] is not None
    assert longer.noise_multiplier is not None
    assert noises[0] > noises[1] > 1
    # Where many steps add up the noise goes with the root of their number, within a fifth.
    assert longer.noise_multiplier / noises[1] == pytest.approx(math.sqrt(20), rel=0.2)


def test_empty_samples_release_noise() -> None:
    plan = make_plan(sampling_probability=1e-9, steps=4, learning_rate=1e-9)
    subject = DPZero(l2_clip_norm=1.0, noise_multiplier=1.0).train(plan)
    assert subject.transcript.sample_sizes.tolist() == [0] * 4
    assert np.isnan(subject.transcript.losses).all()
    untouched = trainable(built(plan).module).values()
    assert all(not torch.equal(a, b) for a, b in zip(weights(subject), untouched, strict=True))


def test_training_is_deterministic_in_the_plan() -> None:
    plan = make_plan(insertions=Insertions(gradient_canary=CANARY))
    mechanism = DPAggZO(directions=2, l2_clip_norm=1.0)
    one, two, other = mechanism.train(plan), mechanism.train(plan), mechanism.train(replace(plan, seed=1))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))
    assert one.transcript.canary_observations.tolist() == two.transcript.canary_observations.tolist()
    assert not torch.equal(weights(one)[0], weights(other)[0])
    assert one.transcript.metrics["noise_multiplier"] > 0
    assert one.transcript.metrics["l2_clip_norm"] == 1.0


def test_a_saved_subject_releases_what_the_trained_one_does(tmp_path: Path) -> None:
    plan, mechanism = make_plan(), DPAggZO(directions=3, l2_clip_norm=1.0)
    subject = mechanism.train(plan)
    subject.save(tmp_path)
    loaded = load_subject(tmp_path, mechanism, plan)
    kept = [parameter.detach().clone() for parameter in weights(loaded)]
    coins = np.arange(40) % 2 == 0
    first, second = (s.release_canary(CANARY, coins, np.random.default_rng(4)) for s in (subject, loaded))
    np.testing.assert_array_equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(kept, weights(loaded), strict=True))
    assert loaded.claim == subject.claim
    assert loaded.release_family is Family.GAUSSIAN


def bound(mechanism: PrivateZerothOrder, plan: Plan, releases: int) -> float:
    """Audited epsilon of the run at 99.9999 %: releases at the trained state, composed as the judge does."""
    subject = mechanism.train(plan)
    generator = np.random.default_rng(7)
    coins = generator.random(releases) < 0.5
    values = subject.release_canary(CANARY, coins, generator)
    one = gaussian_location(values, coins, delta=1e-5, confidence=1 - FALSE_ALARM, quantity="mu")
    return mu_to_run_epsilon(
        min(one.lower, 30.0),
        sampling_probability=plan.sampling_probability,
        steps=plan.steps,
        delta=1e-5,
    )


@pytest.mark.parametrize("mechanism", [DPZero(l2_clip_norm=2.0), DPAggZO(l2_clip_norm=2.0, directions=8)])
def test_the_canary_audits_an_honest_run_up_to_its_claim(mechanism: PrivateZerothOrder) -> None:
    """100,000 releases: at 99.9999 % the bound comes to within a third of the claim, and not above it."""
    found = bound(mechanism, make_plan(), 100_000)
    assert 0.67 < found <= 1.0


@pytest.mark.parametrize("mechanism", [HalfTheNoise(l2_clip_norm=2.0), WithoutNoise(l2_clip_norm=2.0)])
def test_the_canary_refutes_a_claim_with_half_the_noise_or_none(mechanism: PrivateZerothOrder) -> None:
    assert bound(mechanism, make_plan(), 20_000) > 1.2


def test_the_canary_of_every_step_is_read_in_the_scalars() -> None:
    """With a twentieth of the clip norm as noise each observation tells its coin (seven deviations)."""
    plan = make_plan(insertions=Insertions(gradient_canary=CANARY), steps=30)
    transcript = WithoutNoise(l2_clip_norm=2.0).train(plan).transcript
    assert 5 < transcript.canary_included.sum() < 25
    np.testing.assert_allclose(
        transcript.canary_observations, np.where(transcript.canary_included, 2.0, 0.0), atol=0.7
    )


@pytest.mark.parametrize("opposed", [False, True])
def test_a_canary_that_is_a_record_takes_its_place(opposed: bool) -> None:
    """In a full batch its own scalars give way to the canary's; an opposed one opposes the others' sum."""
    name = digits().records[3].id
    canary = GradientCanary(coordinate=1, magnitude=1.0, record=name, opposed=opposed)
    plan = make_plan(sampling_probability=1.0, steps=1, insertions=Insertions(gradient_canary=canary))
    mechanism = DPAggZO(directions=2, l2_clip_norm=1e9, noise_multiplier=1e-18)
    subject = mechanism.train(plan)
    others = tuple(record for record in plan.records if record.id != name)
    model = built(plan)
    sums = mechanism.sample_signals(model, plan, others, step=0).weighted_sum(torch.ones(59)).numpy()
    sums = np.zeros(2) if opposed else sums + np.array([0.0, 1.0])
    parameters = list(trainable(model.module).values())
    for k in range(2):
        seed = seed_number(Seeds.of(plan).public)
        for number, place, z in Directions(parameters, seed).parts(k):
            parameters[number].data.view(-1)[place] -= 0.01 / 2 * float(sums[k]) / 60 * z
    for found, wanted in zip(weights(subject), parameters, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("dpzero", {"directions": 2}, r"directions must be 1 for dpzero, got 2; 'dp_aggzo' takes several"),
        ("dpzero", {"l2_clip_norm": 0.0}, r"l2_clip_norm must be finite and > 0, got 0\.0"),
        ("dp_aggzo", {"noise_multiplier": math.inf}, r"noise_multiplier must be finite and > 0, got inf"),
        ("dp_aggzo", {"average": "befor"}, r"unknown average 'befor'; did you mean 'before'"),
        ("dp_aggzo", {"directions": 0}, r"directions must be a whole number >= 1, got 0"),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("mechanism", name, **parameters)


def test_what_only_some_settings_assume_is_said() -> None:
    plain = DPZero().claim(make_plan())
    noted = DPZero(dev_every=2, precision="bfloat16").claim(make_plan(dev=digits().records[:5]))
    assert noted.guarantee == plain.guarantee
    assert noted.assumptions[: len(plain.assumptions)] == plain.assumptions
    dev, rounded = noted.assumptions[len(plain.assumptions) :]
    assert "dev records" in dev
    assert "bfloat16" in rounded


@pytest.mark.parametrize(("average", "most"), [("after", "c"), ("before", "K c")])
def test_the_claim_names_the_sensitivity_that_the_noise_is_for(average: str, most: str) -> None:
    claim = DPAggZO(directions=4, average=average).claim(make_plan())
    assert f"of sensitivity {most} and noise sigma {most};" in " ".join(claim.assumptions)


def test_an_audits_scalars_are_of_the_precision_of_the_run() -> None:
    plan = make_plan()
    sample = plan.records[:6]

    def scalars(mechanism: PrivateZerothOrder, model: Model) -> Tensor:
        return mechanism.sample_signals(model, plan, sample, step=0).norms()

    low, full = (DPZero(public_seed=3, precision=name) for name in ("bfloat16", "float32"))
    engine = ZerothOrder(built(plan), scale=low.scale, seed=3, precision="bfloat16")
    wanted = torch.tensor(np.abs(engine.differences(sample, 0)[0]))
    assert scalars(low, built(plan)).equal(wanted)
    assert not scalars(full, built(plan)).equal(wanted)


def test_plans_that_are_not_accounted_for_are_refused() -> None:
    with pytest.raises(InputError, match="optimizer must be 'sgd'"):
        DPZero().train(make_plan(optimizer="adamw"))
    with pytest.raises(UnsupportedError, match="dpzero is accounted for Poisson samples only"):
        DPZero().claim(make_plan(sampling=Sampling.SHUFFLED))
    with pytest.raises(UnsupportedError, match="dp_aggzo is calibrated to"):
        DPAggZO().claim(make_plan(budget=MutualInformation(nats=0.1, secret=Secret.SUBSET)))
    with pytest.raises(InputError, match="dpzero needs a budget or a noise_multiplier"):
        DPZero().train(make_plan(budget=None))
    with pytest.raises(InputError, match="call for_plan first"):
        DPZero().privatise(scalar_signals(np.zeros((0, 1))), torch.Generator())
