"""Beside Shuffled DPSGD: DP-SGD with its noise, and ordinary training that is permuted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from shuffled_plans import BUDGET, make_plan, weights
from watched_shuffles import train_watched

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.accounting.subsampled_gaussian import epsilon
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import GradientCanary, Insertions
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.non_private import NonPrivate
from workbench.mechanisms.shuffled_dp_sgd import ShuffledDPSGD
from workbench.training.content import settled


def plain(**options: Any) -> ShuffledDPSGD:
    """DP-SGD with the noise of Theorem 6."""
    return ShuffledDPSGD(shuffle=False, clips_batch=False, uncovered="sigma", **options)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_without_line_12_and_permutations_it_is_dp_sgd_bit_for_bit(optimizer: str) -> None:
    plan = make_plan(optimizer=optimizer)
    sigma = ShuffledDPSGD(batch_clip_norm=3.0).for_plan(plan).noise_multiplier
    assert sigma is not None
    subject = plain(batch_clip_norm=3.0).train(plan)
    twin = DPSGD(noise_multiplier=sigma).train(plan)
    assert torch.equal(weights(subject), weights(twin))
    assert np.array_equal(subject.transcript.losses, twin.transcript.losses)
    metrics = subject.transcript.metrics
    assert metrics["noise_multiplier"] == metrics["least_noise_multiplier"] == sigma
    assert (metrics["batch_clip_norm"], metrics["clips_batch"], metrics["falls_back"]) == (3.0, 0.0, 0.0)
    # Line 12 makes a difference here, and is what was left out.
    clipped = replace(plain(batch_clip_norm=3.0), clips_batch=True).train(plan)
    assert not torch.equal(weights(clipped), weights(twin))


def test_with_another_clip_it_is_dp_sgd_but_for_rounding() -> None:
    plan = make_plan()
    subject = plain(l2_clip_norm=0.3).train(plan)
    twin = DPSGD(l2_clip_norm=0.3, noise_multiplier=subject.transcript.metrics["noise_multiplier"])
    torch.testing.assert_close(weights(subject), weights(twin.train(plan)), atol=1e-6, rtol=1e-5)


def certified(noise_multiplier: float) -> ApproximateDP:
    found = epsilon(noise_multiplier=noise_multiplier, sampling_probability=0.2, steps=12, delta=1e-5)
    return ApproximateDP(epsilon=found, delta=1e-5)


def test_an_unshuffled_run_claims_what_a_certified_accountant_finds() -> None:
    plan = make_plan()
    sigma = plain().for_plan(plan).noise_multiplier
    assert sigma is not None
    claim = plain().claim(plan)
    assert claim.guarantee == certified(sigma)
    assert claim.guarantee.epsilon > 10 * BUDGET.epsilon
    assert claim.source == (
        "DP-SGD with the noise of Theorem 6, accounted by workbench.accounting.certified (upper end)"
    )
    assert f"unpermuted weights, each sum of sensitivity c and noise of {sigma:.6g} c" in claim.assumptions[0]
    # Where some weights get sigma_0, the smaller of the two counts, be it the larger share or not.
    both = ShuffledDPSGD(shuffle=False, noise_multiplier=2.0, unshuffled_noise_multiplier=0.9)
    assert both.claim(plan).guarantee == certified(0.9)
    assert replace(both, uncovered="sigma").claim(plan).guarantee == certified(2.0)
    assert both.claim(replace(plan, budget=None)).guarantee == NoGuarantee()
    # A run that falls back is DP-SGD with sigma_0, whatever it would have shuffled.
    fallen = plain().claim(make_plan(model="digits_logistic"))
    assert (fallen.guarantee, "line 3 (DP-SGD)" in fallen.source) == (BUDGET, True)


def test_line_12_is_not_left_out_of_a_run_that_shuffles() -> None:
    with pytest.raises(InputError, match="clips_batch must be true where shuffle is, got False"):
        ShuffledDPSGD(clips_batch=False)
    with pytest.raises(InputError, match="clips_batch must be true or false, got 0"):
        registry.create("mechanism", "shuffled_dp_sgd", shuffle=False, clips_batch=0)


@pytest.mark.parametrize(
    ("model", "optimizer", "rate"), [("digits_mlp", "sgd", 0.5), ("digits_vit", "adamw", 0.003)]
)
def test_permuted_ordinary_training_computes_the_same(model: str, optimizer: str, rate: float) -> None:
    steps = 20 if model == "digits_mlp" else 5
    plan = make_plan(model=model, optimizer=optimizer, learning_rate=rate, steps=steps, budget=None)
    control, shuffled = NonPrivate().train(plan), NonPrivate(shuffle=True).train(plan)
    np.testing.assert_allclose(shuffled.transcript.losses, control.transcript.losses, rtol=1e-5)
    np.testing.assert_allclose(shuffled.losses(plan.held_out), control.losses(plan.held_out), rtol=1e-4)
    found, other = shuffled.transcript.metrics, control.transcript.metrics
    assert found["test_accuracy_after"] == other["test_accuracy_after"]
    assert found["permutations_drawn"] == steps
    assert found["shuffled_share"] > 0.9
    assert "shuffle_distance" not in other
    apart = float((weights(shuffled) - weights(control)).norm())
    assert found["shuffle_distance"] == pytest.approx(apart, rel=1e-3)
    assert apart > 0.5 * float(weights(control).norm())
    assert shuffled.claim.guarantee == NoGuarantee()


def test_a_permuted_control_says_so_to_an_auditor() -> None:
    assert (NonPrivate().is_shuffling, NonPrivate(shuffle=True).is_shuffling) == (False, True)
    canary = Insertions(gradient_canary=GradientCanary(coordinate=0, magnitude=1.0))
    with pytest.raises(UnsupportedError, match="non_private with shuffle = true takes no gradient canary"):
        NonPrivate(shuffle=True).train(make_plan(insertions=canary))


@pytest.mark.parametrize("carry_noise", [True, False])
def test_the_distance_is_to_the_weights_with_all_permutations_undone(carry_noise: bool) -> None:
    plan = make_plan(steps=5)
    subject, drawn = train_watched(ShuffledDPSGD(carry_noise=carry_noise), plan)
    back = weights(subject)
    for one in reversed(drawn):
        back = one.permutation.inverse().applied(back, one.layout)
    apart = float((weights(subject).double() - back.double()).norm())
    assert subject.transcript.metrics["shuffle_distance"] == pytest.approx(apart, rel=1e-9)
    assert apart > 1.0
    still = ShuffledDPSGD(shuffle=False).train(plan).transcript.metrics
    assert (still["shuffle_distance"], still["shuffled_share"]) == (0.0, 0.0)


def test_keys_of_what_was_stored_before_stay_as_they_are() -> None:
    assert settled("mechanism", "non_private", {}) == {"micro_batch_size": 64, "measures_quality": True}
    assert settled("mechanism", "non_private", {"shuffle": True})["shuffle"] is True
    assert "clips_batch" not in settled("mechanism", "shuffled_dp_sgd", {})
    assert settled("mechanism", "shuffled_dp_sgd", {"clips_batch": False})["clips_batch"] is False
