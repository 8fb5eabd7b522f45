"""Shuffled DPSGD: Algorithm 1's clips, noises and branches, its permutations, and what is claimed for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from shuffled_plans import BUDGET, make_plan, weights
from torch import Tensor, nn
from watched_shuffles import WeightRelease, train_watched

from workbench.accounting import ApproximateDP, GaussianDP, NoGuarantee
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, GradientCanary, Insertions, Released, Sampling
from workbench.mechanisms.accountants.shuffled_dp_sgd import ShuffledDPSGD as Accountant
from workbench.mechanisms.accountants.shuffled_dp_sgd import ShuffledGaussianRun, noise_multiplier_for
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.shared import shuffling
from workbench.mechanisms.shuffled_dp_sgd import ShuffledDPSGD
from workbench.training.canary import SignalsWithCanary
from workbench.training.fine_tuning import build_model, trainable
from workbench.training.flat import FlatLayout
from workbench.training.loop import load_subject
from workbench.training.per_record import EmptySignals, MatrixSignals
from workbench.training.permutations import Permutation, PermutationGroup

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance, two-sided."""

MLP_NUMBERS = 4810
"""64 * 64 + 64 + 64 * 10 + 10; the last ten, an output bias, are left alone."""

MLP_NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")


class TwoLayers(nn.Module):
    """4 inputs, 3 hidden units, 2 outputs: 23 numbers, of which the output bias's 2 come last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)


LAYOUT = FlatLayout.of(TwoLayers())
SHUFFLED = slice(0, 21)


def settled(**changes: Any) -> ShuffledDPSGD:
    """Settled by hand for `LAYOUT`."""
    options: dict[str, Any] = {
        "noise_multiplier": 1e-9,
        "unshuffled_noise_multiplier": 1e-9,
        "dimension": 23,
        "covered_parameters": MLP_NAMES[:3],
        **changes,
    }
    return ShuffledDPSGD(**options)


def released(mechanism: ShuffledDPSGD, gradients: Tensor) -> Tensor:
    signals = MatrixSignals(LAYOUT, gradients, torch.zeros(len(gradients)))
    return mechanism.privatise(signals, torch.Generator().manual_seed(3))


def by_algorithm_1(gradients: Tensor, c: float, batch_clip: float, place: slice) -> Tensor:
    """Lines 8, 10 and 12 as they are printed, the latter for some coordinates."""
    total = torch.zeros(23)
    for gradient in gradients:
        total += gradient / max(1.0, float(gradient.norm()) / c)
    total[place] = total[place] / max(1.0, float(total[place].norm()) / batch_clip)
    return total


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
@pytest.mark.parametrize("batch_clip", [None, 0.3, 50.0])
@pytest.mark.parametrize(("uncovered", "place"), [("sigma_0", SHUFFLED), ("sigma", slice(0, 23))])
def test_a_step_is_algorithm_1(scale: float, batch_clip: float | None, uncovered: str, place: slice) -> None:
    gradients = scale * torch.randn(6, 23, generator=torch.Generator().manual_seed(2))
    mechanism = settled(l2_clip_norm=0.7, batch_clip_norm=batch_clip, uncovered=uncovered)
    expected = by_algorithm_1(gradients, 0.7, batch_clip or 0.7, place)
    torch.testing.assert_close(released(mechanism, gradients), expected, atol=1e-6, rtol=1e-5)


def test_trials_are_clipped_each_by_itself() -> None:
    gradients = torch.randn(6, 23, generator=torch.Generator().manual_seed(2))
    background = MatrixSignals(LAYOUT, gradients, torch.zeros(6))
    canary = GradientCanary(coordinate=2, magnitude=9.0)
    signals = SignalsWithCanary(background, canary, included=True, trials=3)
    found = settled(l2_clip_norm=0.7).privatise(signals, torch.Generator().manual_seed(0))
    appended = torch.cat([gradients, 9.0 * torch.eye(23)[2:3]])
    torch.testing.assert_close(
        found, by_algorithm_1(appended, 0.7, 0.7, SHUFFLED).expand(3, 23), atol=1e-6, rtol=1e-5
    )


def noise_p_value(mechanism: ShuffledDPSGD, place: slice, standard_deviation: float) -> float:
    """Two-sided p-value of the variance of 400 releases of an empty sample."""
    signals = SignalsWithCanary(
        EmptySignals(LAYOUT), GradientCanary(coordinate=0, magnitude=1.0), included=False, trials=400
    )
    noise = mechanism.privatise(signals, torch.Generator().manual_seed(5)).double()[:, place]
    tail = stats.chi2.cdf(float(noise.square().sum()) / standard_deviation**2, noise.numel())
    return float(2 * min(tail, 1 - tail))


def test_what_is_left_alone_gets_the_noise_of_dp_sgd() -> None:
    noisy = {"l2_clip_norm": 0.5, "noise_multiplier": 0.4, "unshuffled_noise_multiplier": 16.0}
    rest = slice(21, 23)
    assert noise_p_value(settled(**noisy), SHUFFLED, 0.2) > FALSE_ALARM
    assert noise_p_value(settled(**noisy), rest, 8.0) > FALSE_ALARM
    assert noise_p_value(settled(**noisy, uncovered="sigma"), rest, 0.2) > FALSE_ALARM
    fallen = settled(**noisy, covered_parameters=())
    assert noise_p_value(fallen, slice(0, 23), 8.0) > FALSE_ALARM
    # The test refutes one noise in the other's place, and one tenth too much.
    assert noise_p_value(settled(**noisy, uncovered="sigma"), rest, 8.0) < FALSE_ALARM
    assert noise_p_value(settled(**noisy), SHUFFLED, 0.22) < FALSE_ALARM


@pytest.mark.parametrize("uncovered", ["sigma_0", "sigma"])
@pytest.mark.parametrize(
    ("model", "optimizer", "decay"),
    [("digits_mlp", "sgd", 0.1), ("digits_mlp", "adamw", 0.1), ("digits_vit", "adamw", 0.0)],
)
def test_a_run_is_its_unshuffled_twin_in_another_order(
    model: str, optimizer: str, decay: float, uncovered: str
) -> None:
    steps = 12 if model == "digits_mlp" else 5
    rate = 0.05 if optimizer == "sgd" else 0.003
    plan = make_plan(model=model, optimizer=optimizer, learning_rate=rate, weight_decay=decay, steps=steps)
    mechanism = ShuffledDPSGD(
        carry_noise=True, uncovered=uncovered, unshuffled_noise_multiplier=0.5, measures_quality=False
    )
    shuffled, drawn = train_watched(mechanism, plan)
    twin = replace(mechanism, shuffle=False).train(plan)
    np.testing.assert_allclose(shuffled.transcript.losses, twin.transcript.losses, rtol=1e-5)
    np.testing.assert_allclose(shuffled.losses(plan.held_out), twin.losses(plan.held_out), rtol=1e-4)
    back = carried(drawn).inverse().applied(weights(shuffled), drawn[0].layout)
    torch.testing.assert_close(back, weights(twin), atol=1e-4, rtol=1e-4)
    apart = float((weights(shuffled) - weights(twin)).norm())
    assert apart > 100 * float((back - weights(twin)).norm())


def carried(drawn: list[WeightRelease]) -> Permutation:
    found = drawn[0].permutation
    for one in drawn[1:]:
        found = found.then(one.permutation)
    return found


def test_an_optimizer_state_that_stays_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(shuffling, "permute_state_", lambda *_: None)
    plan = make_plan(optimizer="adamw", learning_rate=0.003)
    mechanism = ShuffledDPSGD(carry_noise=True, measures_quality=False)
    shuffled, twin = mechanism.train(plan), replace(mechanism, shuffle=False).train(plan)
    gap = np.abs(shuffled.losses(plan.held_out) / twin.losses(plan.held_out) - 1)
    assert gap.max() > 1e-3


def test_each_step_is_permuted_afresh_and_as_stated() -> None:
    plan = make_plan(steps=3)
    watched, drawn = train_watched(ShuffledDPSGD(), plan)
    assert torch.equal(weights(watched), weights(ShuffledDPSGD().train(plan)))
    assert not torch.equal(weights(watched), weights(ShuffledDPSGD().train(make_plan(steps=3, seed=1))))
    assert len({one.permutation for one in drawn}) == 3
    assert [one.step for one in drawn] == [0, 1, 2]
    start = torch.cat([p.detach().reshape(-1) for p in trainable(build_model(plan).module).values()])
    assert torch.equal(drawn[0].before, start)
    assert torch.equal(drawn[1].before, drawn[0].after)
    assert torch.equal(drawn[2].after, weights(watched))
    _, twins = train_watched(ShuffledDPSGD(shuffle=False), plan)
    # The first step's noise does not depend on what is permuted after it.
    moved = drawn[0].permutation.applied(twins[0].after, drawn[0].layout)
    torch.testing.assert_close(drawn[0].after, moved)
    assert not torch.equal(drawn[0].after, twins[0].after)


def test_released_weights_are_permuted_after_the_step() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    group, layout = PermutationGroup.of(module), FlatLayout.of(module).places
    before, step = torch.arange(23.0), torch.ones(23)
    found = ShuffledDPSGD.released_weights(before, step, group, np.random.default_rng(7), layout=layout)
    (drawn,) = group.draw(np.random.default_rng(7)).indices.values()
    indices = torch.tensor(drawn.tolist())
    first = (before - 1)[:12].view(3, 4)[indices]
    second = (before - 1)[15:21].view(2, 3)[:, indices]
    expected = torch.cat(
        [first.reshape(-1), (before - 1)[12:15][indices], second.reshape(-1), (before - 1)[21:]]
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("dimension", "count"), [("trainable", MLP_NUMBERS), ("shuffled", MLP_NUMBERS - 10), (10**8, 10**8)]
)
def test_the_noise_is_theorem_6s(dimension: str | int, count: int) -> None:
    schedule = {"epsilon": 1.0, "delta": 1e-5, "sampling_probability": 0.2, "steps": 12}
    mechanism = ShuffledDPSGD(dimension=dimension, l2_clip_norm=0.5, batch_clip_norm=1.0)
    found = mechanism.for_plan(make_plan()).settings()
    sigma = noise_multiplier_for(**schedule, dimension=count, batch_clip=2.0)  # type: ignore[arg-type]
    sigma_0 = noise_multiplier_for(**schedule, dimension=1)  # type: ignore[arg-type]
    assert found == {
        "noise_multiplier": sigma,
        "unshuffled_noise_multiplier": sigma_0,
        "l2_clip_norm": 0.5,
        "batch_clip_norm": 1.0,
        "dimension": count,
        "falls_back": 0.0,
        "clips_batch": 1.0,
    }
    assert sigma < sigma_0 / 10


LOGISTIC = {"model": "digits_logistic"}


@pytest.mark.parametrize(
    ("options", "changes", "why"),
    [
        ({"batch_clip_norm": 1e9}, {}, "sigma = "),
        ({"covered_parameters": []}, {}, "no parameter is to be shuffled"),
        ({}, LOGISTIC, "left alone: 2 parameters (2 unknown architecture)"),
        ({"uncovered": "sigma"}, LOGISTIC, "left alone: 2 parameters"),
    ],
)
def test_where_shuffling_saves_nothing_it_is_dp_sgd(
    options: Mapping[str, Any], changes: Mapping[str, Any], why: str
) -> None:
    plan = make_plan(**changes)
    mechanism = ShuffledDPSGD(**options)
    sigma_0 = noise_multiplier_for(epsilon=1.0, delta=1e-5, sampling_probability=0.2, steps=12, dimension=1)
    subject = mechanism.train(plan)
    plain = DPSGD(noise_multiplier=sigma_0).train(plan)
    torch.testing.assert_close(weights(subject), weights(plain), atol=1e-6, rtol=1e-5)
    metrics = subject.transcript.metrics
    assert (metrics["falls_back"], metrics["permutations_drawn"], metrics["shuffled_share"]) == (1, 0, 0)
    assert subject.claim.guarantee == BUDGET
    assert "line 3 (DP-SGD)" in subject.claim.source
    assert (
        f"unpermuted weights, each sum of sensitivity c and noise sigma_0 c; {why}"
        in (subject.claim.assumptions[0])
    )


@pytest.mark.slow
def test_an_adapter_of_its_own_shape_is_left_alone() -> None:
    found = ShuffledDPSGD().for_plan(make_plan(model="digits_vit", adapter="lora"))
    assert found.falls_back


def test_the_claim_is_the_authors_and_says_what_it_leaves_out() -> None:
    claim = ShuffledDPSGD().claim(make_plan())
    assert claim.guarantee == BUDGET
    assert (claim.about, claim.released) == (Adjacency.ADD_REMOVE, Released.EVERY_UPDATE)
    assert "Theorems 6, 2 and 1, d = 4810; accountant shuffled_dp_sgd, zeta_2 of the appendix" in claim.source
    said = " | ".join(claim.assumptions)
    assert "an approximation of a lower bound on delta" in said
    assert "which move 99.79% of the weights" in said
    assert "with noise sigma_0 c: 1 parameter (1 added after the permuted sum); what they release" in said
    everything = ShuffledDPSGD(uncovered="sigma").claim(make_plan()).assumptions
    assert "with noise sigma c all the same: 1 parameter" in everything[-1]


def test_a_given_noise_is_accounted_for() -> None:
    plan = make_plan()
    given = ShuffledDPSGD(noise_multiplier=0.5, unshuffled_noise_multiplier=20.0)
    accountant = Accountant()
    runs = {
        name: ShuffledGaussianRun(
            noise_multiplier=noise, sampling_probability=0.2, steps=12, dimension=dimension
        )
        for name, noise, dimension in (("sigma", 0.5, MLP_NUMBERS), ("sigma_0", 20.0, 1))
    }
    expected = {
        name: accountant.epsilon(run, delta=1e-5, adjacency=Adjacency.ADD_REMOVE)
        for name, run in runs.items()
    }
    assert given.accounted(plan, 1e-5) == expected
    assert given.claim(plan).guarantee == ApproximateDP(epsilon=max(expected.values()), delta=1e-5)
    assert not given.for_plan(plan).falls_back
    back = ShuffledDPSGD().accounted(plan, 1e-5)
    assert back == pytest.approx({"sigma": 1.0, "sigma_0": 1.0})


def test_nothing_is_claimed_without_noise() -> None:
    for mechanism in (
        ShuffledDPSGD(noise_multiplier=0.0),
        ShuffledDPSGD(noise_multiplier=0.0, shuffle=False),
    ):
        assert mechanism.claim(make_plan()).guarantee == NoGuarantee()
    bare = ShuffledDPSGD(noise_multiplier=0.0, l2_clip_norm=1e6)
    subject = bare.train(make_plan(budget=None, steps=40, learning_rate=0.5))
    assert subject.transcript.metrics["permutations_drawn"] == 40
    assert subject.transcript.metrics["test_accuracy_after"] > 0.5
    assert ShuffledDPSGD(noise_multiplier=0.001).claim(make_plan()).guarantee == NoGuarantee()


def test_no_canary_is_read_in_sums_that_are_not_shown() -> None:
    canary = GradientCanary(coordinate=0, magnitude=1.0)
    with pytest.raises(UnsupportedError, match="play the games of attack weight_tidying"):
        ShuffledDPSGD().train(make_plan(insertions=Insertions(gradient_canary=canary)))
    subject = ShuffledDPSGD().train(make_plan(steps=1))
    with pytest.raises(UnsupportedError, match="ShuffledDPSGD releases no privatised sum of gradients"):
        subject.release_canary(canary, np.array([True]), np.random.default_rng(0))


def test_a_subject_comes_back_from_disk(tmp_path: Path) -> None:
    plan = make_plan(steps=2)
    subject = ShuffledDPSGD().train(plan)
    subject.save(tmp_path)
    loaded = load_subject(tmp_path, registry.create("mechanism", "shuffled_dp_sgd"), plan)
    assert loaded.claim == subject.claim
    assert torch.equal(weights(loaded), weights(subject))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dimension": "shuffeld"}, "unknown dimension 'shuffeld'; did you mean 'shuffled'"),
        ({"dimension": 0}, "dimension must be a whole number >= 1, got 0"),
        ({"dimension": True}, "dimension must be text or a whole number, got True"),
        ({"zeta_2": "apendix"}, "unknown zeta_2 'apendix'; did you mean 'appendix'"),
        ({"uncovered": "sigma_1"}, "unknown uncovered 'sigma_1'; did you mean 'sigma_0'"),
        ({"slack": 0.0}, r"slack must be in \(0, 1\), got 0\.0"),
        ({"batch_clip_norm": 0.0}, r"batch_clip_norm must be finite and > 0, got 0\.0"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier must be finite and >= 0, got -1\.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be finite and >= 0, got nan"),
        ({"shuffle": 3}, "shuffle must be true or false, got 3"),
        ({"covered_parameters": "0.weight"}, "covered_parameters must be a list of names, got '0.weight'"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("mechanism", "shuffled_dp_sgd", **parameters)


def test_plans_that_it_cannot_follow_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="Poisson samples only, got sampling 'shuffled'"):
        ShuffledDPSGD().train(make_plan(sampling=Sampling.SHUFFLED))
    with pytest.raises(InputError, match=r"needs a budget of \(epsilon, delta\)-DP, got none"):
        ShuffledDPSGD().train(make_plan(budget=None))
    with pytest.raises(UnsupportedError, match="not to mu-GDP"):
        ShuffledDPSGD().train(make_plan(budget=GaussianDP(mu=1.0)))
    with pytest.raises(InputError, match=r"unknown covered parameter '2\.bias'"):
        ShuffledDPSGD(covered_parameters=("2.bias",)).for_plan(make_plan())
    with pytest.raises(InputError, match="call for_plan first"):
        released(ShuffledDPSGD(), torch.zeros(1, 23))
