"""Ensembles: each model equals its one-at-a-time twin, whoever is trained with it; what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from oracles.one_at_a_time import one_at_a_time
from torch import Tensor, nn

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.interfaces import Corpus, GradientCanary, Insertions, Plan, Sampling, Schedule, Signals
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.non_private import NonPrivate
from workbench.mechanisms.rldp import RLDP
from workbench.training.ensemble.network import StackedNetwork, layers_of
from workbench.training.ensemble.stacked import flat_of, twin_of
from workbench.training.ensemble.together import Ensemble, refusal, release_of, train_together
from workbench.training.fine_tuning import Seeds
from workbench.training.loop import GradientMechanism, WeightedRelease, gaussian_noise, load_subject

TOLERANCE = 1e-4
"""Of weights after tens of steps, relative to the largest: float32 rounding, 6e-8, carried along."""

PRIVATE = DPSGD(noise_multiplier=1.0, measures_quality=False)
PLAIN = NonPrivate(measures_quality=False)


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=300, seed=0)
    return corpus


def plans_of(count: int, **changes: object) -> list[Plan]:
    """Plans on random halves of the digits, with seeds of their own."""
    rng = np.random.default_rng(5)
    common = Plan(
        records=(),
        held_out=(),
        model="digits_mlp",
        steps=15,
        sampling_probability=0.1,
        learning_rate=0.5,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=8.0, delta=1e-5),
        public_size=150,
    )
    return [
        replace(
            common,
            **{
                "records": tuple(r for r in digits().records if rng.random() < 0.5),
                "seed": index,
                **changes,
            },  # type: ignore[arg-type]
        )
        for index in range(count)
    ]


def weights_of(mechanism: GradientMechanism, plan: Plan) -> Tensor:
    """What the one-at-a-time loop trains."""
    return flat_of(mechanism.train(plan).model.module)


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest weight."""
    return float((found - expected).abs().max() / expected.abs().max())


CASES: dict[str, tuple[GradientMechanism, dict[str, object]]] = {
    "mlp, DP-SGD": (PRIVATE, {}),
    "mlp, plain": (PLAIN, {}),
    "logistic, DP-SGD": (PRIVATE, {"model": "digits_logistic"}),
    "logistic, plain": (PLAIN, {"model": "digits_logistic"}),
    "two hidden layers": (PRIVATE, {"model_parameters": {"hidden": 20, "hidden_layers": 2}}),
    "AdamW with decay": (PRIVATE, {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}),
    "SGD with decay, schedule": (
        PLAIN,
        {"weight_decay": 0.01, "warmup": 0.2, "schedule": Schedule.LINEAR},
    ),
    "automatic clipping, calibrated": (DPSGD(clipping="automatic", measures_quality=False), {}),
    "shuffled, sums over the number of records": (
        PLAIN,
        {
            "sampling": Sampling.SHUFFLED,
            "public_size": None,
            "records": digits().records[:100],
            "sampling_probability": 0.13,
        },
    ),
    "every record": (PRIVATE, {"sampling_probability": 1.0, "steps": 4}),
    "empty samples": (PRIVATE, {"sampling_probability": 0.003}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_model_equals_its_twin(name: str) -> None:
    """Weights, losses and sample sizes, of models whose samples differ in size."""
    mechanism, changes = CASES[name]
    plans = plans_of(3, **changes)
    for plan, subject in zip(plans, train_together(mechanism, plans), strict=True):
        twin = mechanism.train(plan)
        expected = flat_of(twin.model.module)
        assert distance(flat_of(subject.model.module), expected) < TOLERANCE
        assert np.array_equal(subject.transcript.sample_sizes, twin.transcript.sample_sizes)
        assert subject.transcript.losses == pytest.approx(
            twin.transcript.losses, rel=1e-4, abs=1e-4, nan_ok=True
        )
        assert subject.claim == twin.claim
        assert set(subject.transcript.metrics) == set(twin.transcript.metrics)


def test_a_sample_wider_than_a_pass_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models with more passes than others keep their twins' weights."""
    monkeypatch.setattr("workbench.training.ensemble.network.WIDEST_PASS", 8)
    plans = plans_of(4)
    ensemble = Ensemble(PRIVATE, plans)
    ensemble.train()
    for found, plan in zip(ensemble.weights, plans, strict=True):
        assert distance(found, weights_of(PRIVATE, plan)) < TOLERANCE


@pytest.mark.parametrize("mechanism", [PRIVATE, PLAIN], ids=["private", "plain"])
def test_a_model_does_not_depend_on_who_is_trained_with_it(mechanism: GradientMechanism) -> None:
    """Alone, and among 2 and 9 others; on one processor to the last bit, here up to rounding."""
    plans = plans_of(10)
    alone = Ensemble(mechanism, plans[:1])
    alone.train()
    for size in (3, 10):
        many = Ensemble(mechanism, plans[:size])
        many.train()
        assert distance(many.weights[0], alone.weights[0]) < 1e-5


def test_equal_seeds_give_equal_models_and_other_seeds_other_noise() -> None:
    records = digits().records[:60]
    same = plans_of(3, records=records, seed=7)
    ensemble = Ensemble(PRIVATE, [*same[:2], replace(same[2], seed=8, initial_seed=7)])
    ensemble.train()
    assert torch.equal(ensemble.weights[0], ensemble.weights[1])
    assert not torch.equal(ensemble.weights[0], ensemble.weights[2])


def test_norms_and_sums_are_those_of_records_one_at_a_time() -> None:
    model = registry.create("model", "digits_mlp", seed=3, hidden=12, hidden_layers=2)
    batch = model.encode(digits().records[:7])
    twin = one_at_a_time(model, batch)
    flat = flat_of(model.module)
    network = StackedNetwork(layers_of(model.module), torch.stack([flat, 2 * flat]))
    signals = network.signals(batch["images"].expand(2, -1, -1), batch["labels"].expand(2, -1))
    assert signals.norms()[0].numpy() == pytest.approx(twin.norms().numpy(), rel=1e-5)
    assert signals.losses[0].numpy() == pytest.approx(twin.losses.numpy(), rel=1e-5)
    weights = torch.rand(2, 7)
    total = torch.ones(2, flat.numel())
    signals.add_sums(weights, total)
    assert distance(total[0] - 1, twin.weighted_sum(weights[0])) < 1e-5


def test_a_layer_without_bias_is_treated() -> None:
    module = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2))
    images, labels = torch.rand(1, 5, 4), torch.tensor([[0, 1, 1, 0, 1]])
    network = StackedNetwork(layers_of(module), flat_of(module)[None])
    total = torch.zeros(1, 4 * 3 + 3 * 2 + 2)
    network.signals(images, labels).add_sums(torch.ones(1, 5), total)
    loss = nn.functional.cross_entropy(module(images[0]), labels[0], reduction="sum")
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    assert distance(total[0], expected) < 1e-5


def test_losses_of_all_models_are_those_of_the_subjects(tmp_path: Path) -> None:
    """And the subjects survive a save."""
    plans = plans_of(2)
    ensemble = Ensemble(PRIVATE, plans)
    ensemble.train()
    losses = ensemble.losses(digits().held_out[:20])
    for index, subject in enumerate(ensemble.subjects()):
        assert losses[index] == pytest.approx(subject.losses(digits().held_out[:20]), rel=1e-4)
        (tmp_path / str(index)).mkdir()
        subject.save(tmp_path / str(index))
        loaded = load_subject(tmp_path / str(index), PRIVATE, plans[index])
        assert np.array_equal(loaded.losses(digits().records), subject.losses(digits().records))


def test_initial_weights_replace_the_plans_own() -> None:
    plans = plans_of(2, steps=1, learning_rate=1e-9)
    start = torch.linspace(-1.0, 1.0, 4810)
    ensemble = Ensemble(PLAIN, plans, initial=start)
    ensemble.train()
    assert torch.allclose(ensemble.weights, start.expand(2, -1), atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class TenthOfNoise(DPSGD):
    """Draws a tenth of the noise in its own `privatise`; its inherited description says otherwise."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        return replace(self, noise_multiplier=0.1).privatise(signals, generator)


@dataclass(frozen=True, kw_only=True)
class LargestTo(DPSGD):
    """Scales all records alike, so that the largest has norm C: a factor depends on the other records."""

    def clip_factors(self, norms: Tensor) -> Tensor:
        return self.l2_clip_norm / norms.max() * torch.ones_like(norms)


@dataclass(frozen=True, kw_only=True)
class Described(DPSGD):
    """Clips nothing, and says so; claims what it likes."""

    l2_clip_norm: float = 2.0

    def weighted_release(self) -> WeightedRelease:
        return WeightedRelease(factors=None, noise_scale=super().weighted_release().noise_scale)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        summed = signals.weighted_sum(torch.ones_like(signals.norms()))
        return summed + gaussian_noise(summed, self.weighted_release().noise_scale, generator)


@dataclass(frozen=True, kw_only=True)
class Renamed(Described):
    """Another default, and another number for the report."""

    l2_clip_norm: float = 3.0

    def settings(self) -> Mapping[str, float]:
        return {"own": 1.0}


@pytest.mark.parametrize("broken", [TenthOfNoise, LargestTo])
def test_a_mechanism_that_overrides_its_step_is_not_taken_for_its_base(broken: type[DPSGD]) -> None:
    """What the base describes is not what it does: it would be audited with noise that it does not add."""
    mechanism = broken(noise_multiplier=1.0)
    assert release_of(mechanism) is None
    with pytest.raises(UnsupportedError, match=f"{broken.__name__} does not release weighted sums"):
        Ensemble(mechanism, plans_of(1))


@pytest.mark.parametrize("described", [Described, Renamed])
def test_a_subclass_that_describes_itself_is_trained_as_it_is(described: type[DPSGD]) -> None:
    plans = plans_of(2)
    mechanism = described(noise_multiplier=0.5, measures_quality=False)
    ensemble = Ensemble(mechanism, plans)
    ensemble.train()
    assert distance(ensemble.weights[0], weights_of(mechanism, plans[0])) < TOLERANCE
    assert distance(ensemble.weights[0], weights_of(PRIVATE, plans[0])) > 0.01


def test_what_an_ensemble_cannot_train_is_refused() -> None:
    (plan,) = plans_of(1)
    canary = Insertions(gradient_canary=GradientCanary(coordinate=0, magnitude=1.0))
    for changed, reason in (
        (replace(plan, insertions=canary), "takes no gradient canary"),
        (replace(plan, model="digits_vit"), "model 'digits_vit' is not such"),
        (replace(plan, model="tiny_gpt2"), "model 'tiny_gpt2' is not such"),
        (replace(plan, model="digits_vit", adapter="lora"), "model 'digits_vit' is not known to be such"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            Ensemble(PRIVATE, [changed])
    assert "NonPrivate" in refusal(NonPrivate(shuffle=True), plan)
    assert "RLDP" in refusal(RLDP(), plan)
    assert refusal(PRIVATE, plan) == refusal(DPSGD(), plan) == ""
    ends_in_relu = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for module in (ends_in_relu, nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))):
        with pytest.raises(UnsupportedError, match="linear layers with ReLU between them, got module"):
            layers_of(module)
    with pytest.raises(UnsupportedError, match="trains all parameters of a module, in float32"):
        layers_of(nn.Linear(2, 2).double())


def test_plans_that_differ_in_more_than_data_and_seeds_are_refused() -> None:
    plans = plans_of(2)
    with pytest.raises(InputError, match="one spec and one budget"):
        Ensemble(PRIVATE, [plans[0], replace(plans[1], learning_rate=0.1)])
    with pytest.raises(InputError, match="plans must not be empty"):
        Ensemble(PRIVATE, [])
    with pytest.raises(InputError, match="plans must not be empty"):
        train_together(PRIVATE, [])


def test_a_model_that_leaves_the_finite_numbers_stops_the_ensemble() -> None:
    with pytest.raises(InconclusiveError, match=r"step \d+ released a number that is not finite"):
        train_together(PLAIN, plans_of(2, learning_rate=1e30))


def test_progress_counts_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.training.ensemble.together.WEIGHTS_AT_ONCE", 2 * 4810)
    seen: list[tuple[int, int]] = []
    subjects = train_together(PRIVATE, plans_of(5, steps=2), lambda done, total: seen.append((done, total)))
    assert len(subjects) == 5
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_a_twin_of_simple_layers_shares_what_is_frozen_and_what_is_tied_stays_so() -> None:
    first = torch.nn.Linear(4, 4)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    plain[0].weight.requires_grad_(False)
    tied = torch.nn.Sequential(first, torch.nn.ReLU(), first)
    for module, own in ((plain, 3), (tied, 2)):
        model: Any = SimpleNamespace(module=module)
        twin = twin_of(model).module
        before, after = list(module.parameters()), list(twin.parameters())
        assert len(before) == len(after)
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        assert sum(one is not other for one, other in zip(before, after, strict=True)) == own
        assert [p.requires_grad for p in before] == [p.requires_grad for p in after]
        with torch.no_grad():
            after[-1].add_(1)
        assert not torch.equal(before[-1], after[-1])
        assert torch.equal(twin(torch.ones(1, 4)), twin(torch.ones(1, 4)))


def test_the_seeds_of_a_plan_are_those_that_a_seed_spawns() -> None:
    (plan,) = plans_of(1, seed=7, initial_seed=None)
    seeds, spawned = Seeds.of(plan), np.random.SeedSequence(7).spawn(5)
    own = (seeds.sampling, seeds.noise, seeds.initialisation, seeds.canary_coins, seeds.public)
    for one, other in zip(own, spawned, strict=True):
        assert one.generate_state(8).tolist() == other.generate_state(8).tolist()
