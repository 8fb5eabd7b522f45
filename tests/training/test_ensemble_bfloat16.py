"""Ensembles by products in bfloat16: no record adds more than C, and slow machines are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Plan
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.shared.gaussian_sums import flat_factors
from workbench.training import precision
from workbench.training.ensemble.network import (
    StackedNetwork,
    StackedSignals,
    layers_of,
    norm_margin,
)
from workbench.training.ensemble.stacked import flat_of
from workbench.training.ensemble.together import Ensemble, train_together

CLIP = 0.7


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is fast at bfloat16."""
    monkeypatch.setattr(precision, "product_share", lambda left, right, device: 0.4)


def plan(**changes: object) -> Plan:
    records = registry.create("corpus", "digits", size=120, seed=0).records
    given = {
        "records": records,
        "held_out": (),
        "model": "digits_mlp",
        "steps": 20,
        "sampling_probability": 0.3,
        "learning_rate": 0.5,
        "optimizer": "sgd",
        "budget": ApproximateDP(epsilon=8.0, delta=1e-5),
        "public_size": 120,
    }
    return Plan(**{**given, **changes})  # type: ignore[arg-type]


def signals_of(scale: float, records: int = 64) -> StackedSignals:
    """Signals of three networks, with inputs of a scale."""
    generator = torch.Generator().manual_seed(3)
    module = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 10))
    weights = torch.randn(3, flat_of(module).numel(), generator=generator).mul_(0.2)
    images = torch.randn(3, records, 50, generator=generator).mul_(scale)
    labels = torch.randint(10, (3, records), generator=generator)
    return StackedNetwork(layers_of(module), weights, "bfloat16").signals(images, labels)


def added(signals: StackedSignals, factors: Tensor) -> Tensor:
    """Norm of what each record adds to the sums, in float64, from the numbers that are multiplied."""
    squares = torch.zeros(factors.shape, dtype=torch.float64)
    parts = zip(signals._layers, signals._inputs, signals._errors, strict=True)
    for _, values, error in parts:
        weighted = (error * factors[:, None]).double()
        squares += weighted.square().sum(1) * (values.double().square().sum(1) + 1.0)
    return squares.sqrt()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e15])
def test_no_record_adds_more_than_the_clipping_norm(scale: float) -> None:
    signals = signals_of(scale)
    norms = signals.safe_norms()
    assert torch.isfinite(norms).all()
    assert float(added(signals, flat_factors(norms, CLIP)).max()) <= CLIP
    assert bool((norms.double() >= added(signals, torch.ones_like(norms))).all())


def test_without_the_margin_a_record_adds_more() -> None:
    """The control: the same numbers by plain norms exceed C in the last places."""
    signals = signals_of(1.0, records=400)
    factors = CLIP / signals.norms()
    assert float(added(signals, factors).max()) > CLIP


def test_the_margin_is_that_of_float32_and_not_of_bfloat16() -> None:
    layers = layers_of(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    assert 0.0 < norm_margin(layers) < 1e-5
    wide = layers_of(nn.Linear(100_000, 10))
    assert 100_000 * 2.0**-24 < norm_margin(wide) < 0.01


def test_sums_are_those_of_the_rounded_gradients() -> None:
    signals = signals_of(1.0)
    factors = flat_factors(signals.safe_norms(), CLIP)
    found = torch.zeros(3, 50 * 40 + 40 + 40 * 10 + 10)
    signals.add_sums(factors, found)
    (values, _), (error, _) = signals._inputs, signals._errors
    expected = torch.einsum("ron,rin,rn->roi", error.double(), values.double(), factors.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[:, : 50 * 40].double(), expected.flatten(1), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("fast")
def test_training_agrees_with_float32_up_to_bfloat16() -> None:
    mechanism = DPSGD(noise_multiplier=1.0, measures_quality=False)
    plans = [plan(seed=seed) for seed in range(3)]
    exact, reduced = (train_together(mechanism, plans, precision=name) for name in precision.PRECISIONS)
    for one, other in zip(exact, reduced, strict=True):
        before, after = flat_of(one.model.module), flat_of(other.model.module)
        assert 0.0 < float((before - after).norm() / before.norm()) < 0.02
        assert after.dtype == torch.float32
        losses = [np.mean(subject.losses(plans[0].records)) for subject in (one, other)]
        assert losses[0] == pytest.approx(losses[1], abs=0.05)


def test_a_machine_that_is_slow_at_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "product_share", lambda left, right, device: 3.1)
    with pytest.raises(
        UnsupportedError, match=r"takes? 3\.1 times as long as float32's.*leave it out"
    ) as refused:
        Ensemble(DPSGD(noise_multiplier=1.0), [plan()], precision="bfloat16")
    assert "\n" not in str(refused.value)


def test_the_share_is_measured() -> None:
    precision.product_share.cache_clear()
    share = precision.product_share((4, 32, 64), (4, 64, 48), torch.device("cpu"))
    assert 0.0 < share < math.inf


def test_adapters_and_unknown_precisions_are_refused() -> None:
    mechanism = DPSGD(noise_multiplier=1.0)
    texts = registry.create("corpus", "clinical", size=8, seed=0).records
    adapters = plan(records=texts, model="tiny_gpt2", adapter="lora", optimizer="adamw", learning_rate=1e-3)
    with pytest.raises(UnsupportedError, match="'bfloat16' is for stacked linear layers"):
        Ensemble(mechanism, [adapters], precision="bfloat16")
    with pytest.raises(InputError, match="unknown precision 'half'"):
        Ensemble(mechanism, [plan()], precision="half")


@pytest.mark.usefixtures("fast")
def test_a_device_gives_the_cpus_models(device: str) -> None:
    mechanism = DPSGD(noise_multiplier=1.0, measures_quality=False)
    here, there = (
        train_together(mechanism, [plan(steps=3, device=place)], precision="bfloat16")[0]
        for place in ("cpu", device)
    )
    assert next(there.model.module.parameters()).device.type == torch.device(device).type
    losses = [subject.losses(plan().records) for subject in (here, there)]
    np.testing.assert_allclose(losses[0], losses[1], atol=0.05)
