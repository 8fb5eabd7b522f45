"""PACZero's surrogates and MeZO: what each form moves by, and that what has no signal learns nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from workbench.accounting import MutualInformation, NoGuarantee
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Corpus, FloatArray, GradientCanary, Model, Plan, Secret
from workbench.mechanisms.mezo import MeZO
from workbench.mechanisms.paczero import PACZero
from workbench.mechanisms.zo_surrogate import FORMS, ZOSurrogate
from workbench.training.fine_tuning import build_model, trainable
from workbench.training.subject import TrainedSubject


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=60, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_logistic",
        steps=6,
        sampling_probability=1.0,
        learning_rate=0.01,
        optimizer="sgd",
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def weights(subject: TrainedSubject) -> list[Tensor]:
    return list(trainable(subject.model.module).values())


def same(one: TrainedSubject, other: TrainedSubject) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def model_of(plan: Plan) -> Model:
    model = build_model(plan)
    model.module.eval()
    return model


@pytest.mark.parametrize("directions", [1, 3])
def test_the_raw_full_surrogate_is_mezo(directions: int) -> None:
    plan = make_plan()
    one = ZOSurrogate(form="raw_full", directions=directions).train(plan)
    other = MeZO(directions=directions).train(plan)
    assert same(one, other)
    assert not same(one, ZOSurrogate(form="raw_half", directions=directions).train(plan))


SCALARS = np.random.default_rng(0).normal(0.1, 1.0, size=(60, 5))


def coefficients(mechanism: ZOSurrogate, scalars: FloatArray, plan: Plan) -> FloatArray:
    """One step's coefficients."""
    steps = mechanism.steps(plan, model_of(plan))
    return steps.coefficients(scalars, np.arange(60))


@pytest.mark.parametrize("form", ["raw_full", "quant_full", "raw_half", "quant_half"])
@pytest.mark.parametrize("clip", [math.inf, 0.5])
def test_each_form_moves_by_its_mean_or_sign(form: str, clip: float) -> None:
    plan = make_plan()
    mechanism = ZOSurrogate(form=form, directions=5, clip=clip, subset_count=8)
    found = coefficients(mechanism, SCALARS, plan)
    chosen = mechanism.counted(plan)
    assert chosen.sum() == (60 if form.endswith("full") else 30)
    for k in range(5):
        values = [min(clip, max(-clip, x)) for x, used in zip(SCALARS[:, k], chosen, strict=True) if used]
        mean = math.fsum(values) / len(values)
        wanted = mean if form.startswith("raw") else (1.0 if mean >= 0 else -1.0)
        assert found[k] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("form", ["quant_full", "quant_half"])
def test_the_sign_of_zero_is_plus_one(form: str) -> None:
    found = coefficients(ZOSurrogate(form=form, directions=5), np.zeros((60, 5)), make_plan())
    assert found.tolist() == [1.0] * 5


@pytest.mark.parametrize("subsets", ["pairs", "halves"])
def test_the_secret_half_is_the_one_that_paczero_draws(subsets: str) -> None:
    """Found as the candidate that PACZero's own run with a drawn secret is the same as."""
    plan = make_plan(budget=MutualInformation(nats=3.0, secret=Secret.SUBSET), steps=12)
    paczero = PACZero(subset_count=6, subsets=subsets, measures_quality=False)
    drawn, held = paczero.train(plan), paczero.candidate_subsets(plan)
    alike = [m for m in range(6) if same(drawn, paczero.train_on(plan, secret=m))]
    assert 0 < len(alike) < 6
    half = ZOSurrogate(form="raw_half", subset_count=6, subsets=subsets).counted(plan)
    assert any(np.array_equal(half, held[m]) for m in alike)


def test_the_random_sign_is_a_coin_that_no_scalar_moves() -> None:
    """300 coins fall 90 to 210 times on one side but for odds of 1e-11, and are fresh in every step."""
    plan = make_plan()
    mechanism = ZOSurrogate(form="random_sign", directions=300)
    steps = mechanism.steps(plan, model_of(plan))
    generator = np.random.default_rng(1)
    first, second = (steps.coefficients(generator.normal(size=(60, 300)), np.arange(60)) for _ in range(2))
    again = coefficients(mechanism, np.ones((60, 300)), plan)
    assert set(first) == {-1.0, 1.0}
    assert 90 < (first > 0).sum() < 210
    assert first.tolist() == again.tolist() != second.tolist()


def test_signal_learns_and_coins_do_not() -> None:
    plan = make_plan(steps=150, learning_rate=0.02)
    after = {
        form: float(ZOSurrogate(form=form, subset_count=8).train(plan).losses(plan.records).mean())
        for form in FORMS
    }
    before = float(
        np.mean(ZOSurrogate().train(replace(plan, steps=1, learning_rate=1e-9)).losses(plan.records))
    )
    assert all(after[form] < before - 0.1 for form in FORMS if form != "random_sign")
    assert after["random_sign"] > before - 0.05


def test_training_is_deterministic_in_the_plan() -> None:
    for form in ("quant_half", "random_sign"):
        mechanism = ZOSurrogate(form=form, subset_count=8)
        assert same(mechanism.train(make_plan()), mechanism.train(make_plan()))
        assert not same(mechanism.train(make_plan()), mechanism.train(make_plan(seed=1)))


@pytest.mark.parametrize("mechanism", [ZOSurrogate(), MeZO()])
def test_they_promise_nothing_and_have_no_privatise_step_to_audit(mechanism: ZOSurrogate | MeZO) -> None:
    assert mechanism.claim(make_plan()).guarantee == NoGuarantee()
    subject = mechanism.train(make_plan(steps=1))
    canary = GradientCanary(coordinate=0, magnitude=1.0)
    with pytest.raises(UnsupportedError, match="no privatised sum of gradients"):
        subject.release_canary(canary, np.array([True]), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"form": "raw_ful"}, r"unknown form 'raw_ful'; did you mean 'raw_full'"),
        ({"subsets": "pair"}, r"unknown subsets 'pair'; did you mean 'pairs'"),
        ({"subset_count": 3}, r"subset_count must be an even whole number >= 2, got 3"),
        ({"clip": 0.0}, r"clip must be > 0, got 0\.0"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("mechanism", "zo_surrogate", **parameters)


def test_samples_are_refused() -> None:
    with pytest.raises(InputError, match=r"sampling_probability must be 1 for zo_surrogate.* got 0\.5"):
        ZOSurrogate().train(make_plan(sampling_probability=0.5))
