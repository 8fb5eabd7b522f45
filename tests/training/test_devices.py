"""Training on a device: the numbers of the CPU, up to rounding, with nothing left behind there.

By a stand-in (`stand_in_device`), which computes on the CPU by a device's rules, and by the accelerator of
this machine, if it has one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conformance import digits_plan
from stand_in_device import stand_in

from workbench.accounting import MutualInformation
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import key_of, plain
from workbench.interfaces import Plan, Record, Secret
from workbench.training import devices
from workbench.training.devices import device_name, require_device, wide_dtype
from workbench.training.ensemble.together import train_together
from workbench.training.fine_tuning import build_model
from workbench.training.loop import GradientMechanism, load_subject
from workbench.training.per_record import METHODS, per_record_signals

TOLERANCE = 1e-3
"""Of losses after a few steps, in nats: float32 rounding, 6e-8 a product, carried along."""

PLANS: dict[str, dict[str, object]] = {
    "adaclip": {},
    "autoclip": {},
    "dc_sgd": {},
    "dp_aggzo": {},
    "dp_lora": {"adapter": "lora", "lora_rank": 1},
    "dp_sgd": {"optimizer": "adamw"},
    "dp_weights": {"sampling_probability": 1.0},
    "dpzero": {},
    "ferret": {"optimizer": "adamw", "budget": MutualInformation(nats=1.0, secret=Secret.RECORD)},
    "geoclip": {},
    "mezo": {"budget": None},
    "non_private": {"budget": None},
    "psac": {},
    "rldp": {"adapter": "lora", "lora_rank": 1},
    "shuffled_dp_sgd": {},
}

TEXTS = tuple(Record(id=str(i), text=f"seven boats wait for dawn {i * i % 17}") for i in range(12))


def mechanism_of(name: str) -> GradientMechanism:
    """A registered mechanism, without the perplexities."""
    made: GradientMechanism = registry.create("mechanism", name)
    return made


def adapters_plan(**changes: object) -> Plan:
    """LoRA adapters in a small language model."""
    plan = digits_plan(
        records=TEXTS, model="tiny_gpt2", model_parameters={"max_length": 16}, adapter="lora", lora_rank=1
    )
    return replace(plan, **{"learning_rate": 1e-2, "steps": 3, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpu", "CUDA", "cuda:", "cuda:-1", "cpu:0", ""])
def test_a_text_that_names_no_device_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"device must be cpu, cuda, cuda:N or mps, got '{name}'"):
        device_name(name)


def test_a_device_of_another_machine_is_refused_by_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices_here", lambda: ("mps", "cpu"))
    assert require_device("auto") == "mps"
    assert require_device("cpu") == "cpu"
    with pytest.raises(
        InputError, match=r"--device must be a device of this machine \(mps, cpu\), got 'cuda:1'"
    ):
        require_device("cuda:1", "--device")
    with pytest.raises(InputError, match=r"\(mps, cpu, auto\), got 'gpu'"):
        require_device("gpu")
    monkeypatch.setattr(devices, "devices_here", lambda: ("cpu",))
    assert require_device("auto") == "cpu"


def test_a_device_is_part_of_a_key_and_the_cpu_is_not() -> None:
    here, there = digits_plan(), digits_plan(device="cuda")
    assert "device" not in plain(here)
    assert key_of(here.spec()) != key_of(there.spec())


def test_a_plan_for_a_device_that_is_not_here_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices_here", lambda: ("cpu",))
    with pytest.raises(InputError, match="device must be a device of this machine"):
        build_model(digits_plan(device="mps"))


@pytest.mark.thinned
@pytest.mark.parametrize("name", sorted(PLANS))
def test_training_on_a_device_gives_the_cpus_model(name: str, device: str, tmp_path: Path) -> None:
    mechanism, plan = mechanism_of(name), digits_plan(steps=4, learning_rate=1e-2, **PLANS[name])
    there = replace(plan, device=device)
    if (name, device) == ("geoclip", "mps"):
        with pytest.raises(UnsupportedError, match="float64, which device 'mps' does not have"):
            mechanism.train(there)
        return
    ours, theirs = mechanism.train(plan), mechanism.train(there)
    assert {p.device.type for p in theirs.model.module.parameters()} == {torch.device(device).type}
    np.testing.assert_allclose(theirs.losses(plan.records), ours.losses(plan.records), atol=TOLERANCE)
    np.testing.assert_allclose(theirs.transcript.losses, ours.transcript.losses, atol=TOLERANCE)
    theirs.save(tmp_path)
    again = load_subject(tmp_path, mechanism, there)
    assert np.array_equal(again.losses(plan.records), theirs.losses(plan.records))


@pytest.mark.thinned
@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_a_language_model_are_those_of_the_cpu(method: str, device: str) -> None:
    signals = []
    for place in ("cpu", device):
        model = build_model(adapters_plan(device=place))
        signals.append(per_record_signals(model, model.encode(TEXTS), method=method))
    ours, theirs = signals
    assert theirs.norms().device.type == torch.device(device).type
    np.testing.assert_allclose(theirs.norms().cpu().numpy(), ours.norms().numpy(), rtol=1e-4)
    sums = [found.weighted_sum(torch.ones_like(found.norms())).cpu().numpy() for found in signals]
    np.testing.assert_allclose(sums[1], sums[0], atol=1e-4 * float(np.abs(sums[0]).max()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [digits_plan(steps=4, learning_rate=1e-2), adapters_plan()], ids=lambda p: p.model
)
def test_an_ensemble_on_a_device_gives_the_cpus_models(plan: Plan, device: str) -> None:
    mechanism = mechanism_of("dp_sgd")
    plans = [replace(plan, seed=seed, records=plan.records[seed:]) for seed in range(3)]
    ours = train_together(mechanism, plans)
    theirs = train_together(mechanism, [replace(each, device=device) for each in plans])
    for one, other in zip(ours, theirs, strict=True):
        assert next(other.model.module.parameters()).device.type == torch.device(device).type
        np.testing.assert_allclose(other.losses(plan.records), one.losses(plan.records), atol=TOLERANCE)


def test_the_stand_in_refuses_what_a_device_refuses() -> None:
    with stand_in("cuda"):
        there = torch.zeros(3, device="cuda")
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.zeros(3)
        with pytest.raises(TypeError, match="convert cuda"):
            there.numpy()
        with pytest.raises(RuntimeError, match="generator"):
            there.normal_(generator=torch.Generator())
        with pytest.raises(RuntimeError, match="draws on the device"):
            there.normal_()
        assert (there + 1).cpu().tolist() == [1.0, 1.0, 1.0]
        model = build_model(digits_plan(device="cuda"))
        # Negative control: a model whose batches stay on the CPU.
        batch = {name: tensor.cpu() for name, tensor in model.encode(digits_plan().records).items()}
        with pytest.raises(RuntimeError, match="same device"):
            per_record_signals(SimpleNamespace(module=model.module, losses=model.losses), batch)  # type: ignore[arg-type]
    with stand_in("mps"):
        with pytest.raises(TypeError, match="no float64"):
            torch.zeros(3, device="mps").double()
        assert torch.zeros(3, device="mps").to(wide_dtype(torch.device("mps"))).dtype is torch.float32
