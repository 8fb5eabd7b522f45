"""All gradient mechanisms, by the same checks; and the same faults in all of them, for the judge to find.

The judge works at confidence 1 - 1e-6: of each sound mechanism it is wrong with that probability.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_mechanisms import FAULTS, Broken
from conformance import (
    CANARY,
    CHECKS,
    FALSE_ALARM,
    SUM_CHECKS,
    TRANSFORMER,
    Case,
    lora_plan,
    noise_p_value,
    play,
    shares,
    smallest_gpt2,
    transformer_plan,
)
from torch import Tensor

from workbench.core import registry
from workbench.interfaces import Signals, VerdictKind


@pytest.fixture
def gpt2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the smallest GPT-2 for one test."""
    registry.entries("model")
    entry = registry.Entry(name=TRANSFORMER, factory=smallest_gpt2, summary="")
    monkeypatch.setitem(registry._entries["model"], TRANSFORMER, entry)


# ------------------------------------------------------------------------------- how each scales its noise


def of_adaclip(mechanism: Any, signals: Signals) -> Tensor:
    """sigma b, coordinate by coordinate."""
    scale: Tensor = mechanism.initial(signals).scale().double() * mechanism.sum_noise_multiplier()
    return scale


def of_dc_sgd(mechanism: Any, signals: Signals) -> Tensor:
    """The sum's noise, and behind it that of the counts."""
    total = mechanism.sum_noise_multiplier() * mechanism.l2_clip_norm
    return torch.tensor([total] * signals.dimension + [mechanism.count_noise()] * mechanism.bins).double()


def of_dp_lora(mechanism: Any, signals: Signals) -> Tensor:
    """That of each group."""
    groups = len(mechanism.clipping_groups(signals.layout))
    noise = mechanism.group_noise_multiplier(groups) * mechanism.l2_clip_norm
    return torch.full((signals.dimension,), noise, dtype=torch.float64)


def of_rldp(mechanism: Any, signals: Signals) -> Tensor:
    """sigma_0 C_0, pair by pair, or sqrt(n) times that."""
    factor = mechanism.noise_factor(len(mechanism.clipping_groups(signals.layout)))
    noise = mechanism.noise_multiplier * mechanism.initial_clip_norm * factor
    return torch.full((signals.dimension,), noise, dtype=torch.float64)


RLDP = {"adjacency": "add-remove", "warm_up": 1, "decision_interval": 4}

SUMS = [
    Case(mechanism="dp_sgd"),
    Case(mechanism="dp_sgd", parameters={"clipping": "automatic"}, name="dp_sgd, automatic"),
    Case(mechanism="adaclip", scales=of_adaclip),
    # The count, a twentieth of what is paid, is released in a run only.
    Case(
        mechanism="autoclip", parameters={"estimate": "private"}, least_share=0.97, name="autoclip, private"
    ),
    Case(mechanism="psac"),
    Case(mechanism="dc_sgd", scales=of_dc_sgd, name="DC-SGD-P"),
    Case(mechanism="dc_sgd", parameters={"choice": "expected-error"}, scales=of_dc_sgd, name="DC-SGD-E"),
    Case(mechanism="geoclip"),
    Case(mechanism="dp_lora", plan=lora_plan, scales=of_dp_lora),
    Case(mechanism="rldp", parameters=RLDP, scales=of_rldp, is_apart=True),
    Case(
        mechanism="rldp",
        parameters={**RLDP, "noise_for": "all adapters"},
        scales=of_rldp,
        name="rldp, paid jointly",
    ),
]
"""Mechanisms whose release is noise of stated scales around a clipped sum."""

RAW_RADIUS = Case(mechanism="autoclip", name="autoclip, raw quantile")
"""Its radius, and so its noise, is a function of the sample."""

OTHERS = [RAW_RADIUS, Case(mechanism="shuffled_dp_sgd", scales=None)]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", [*SUMS, *OTHERS], ids=str)
def test_a_training(case: Case, check: str, tmp_path: Path, one_thread: None) -> None:
    CHECKS[check](case, tmp_path)


@pytest.mark.parametrize("check", SUM_CHECKS)
@pytest.mark.parametrize("case", [*SUMS, RAW_RADIUS], ids=str)
def test_a_training_of_poisson_samples(case: Case, check: str, tmp_path: Path, one_thread: None) -> None:
    SUM_CHECKS[check](case, tmp_path)


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_the_sum_of_nobody_is_the_stated_noise(case: Case, one_thread: None) -> None:
    mechanism = case.settled()
    assert noise_p_value(case, mechanism) > FALSE_ALARM
    louder: Any = mechanism
    assert noise_p_value(case, replace(louder, noise_multiplier=1.1 * louder.noise_multiplier)) > FALSE_ALARM


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_no_record_adds_more_than_is_accounted_and_some_add_all_of_it(case: Case, one_thread: None) -> None:
    found = shares(case, case.settled())
    assert case.least_share < max(found) < 1 + 1e-3


@pytest.mark.parametrize("fault", ["no clipping", "half the noise"])
def test_the_checks_of_a_release_catch_faults(fault: str, one_thread: None) -> None:
    case = SUMS[0]
    sound: Any = case.settled()
    broken: Any = Broken(sound=sound, fault=fault)
    object.__setattr__(broken, "noise_multiplier", sound.noise_multiplier)
    object.__setattr__(broken, "l2_clip_norm", sound.l2_clip_norm)
    if fault == "no clipping":
        assert max(shares(case, broken)) > 100
    else:
        assert noise_p_value(case, broken) < FALSE_ALARM


def test_a_radius_of_the_sample_itself_is_caught(one_thread: None) -> None:
    """The record moves the radius, and with it the noise and what all others add."""
    assert max(shares(RAW_RADIUS, RAW_RADIUS.settled())) > 1.5


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_the_judge_refutes_no_sound_mechanism_and_sees_all_of_what_it_releases(
    case: Case, one_thread: None
) -> None:
    verdict, (low, high), noise = play(case, case.make(), case.canary)
    assert verdict.kind is VerdictKind.NOT_REFUTED, verdict.sentence
    full = 1 / noise
    assert low < full < high


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("case", SUMS, ids=str)
def test_the_judge_refutes_every_fault(case: Case, fault: str, one_thread: None) -> None:
    """Of one group by a canary in that group: one in all of them sees the others' noise, too."""
    canary = CANARY if fault == "noise forgotten on one group" else case.canary
    verdict, _, _ = play(case, Broken(sound=case.make(), fault=fault), canary)
    assert verdict.kind is VerdictKind.REFUTED, verdict.sentence


TRANSFORMERS = [replace(case, plan=transformer_plan) for case in SUMS]


@pytest.mark.slow
@pytest.mark.parametrize("check", {**CHECKS, **SUM_CHECKS})
@pytest.mark.parametrize("case", TRANSFORMERS, ids=str)
def test_a_training_of_adapters(case: Case, check: str, tmp_path: Path, gpt2: None, one_thread: None) -> None:
    {**CHECKS, **SUM_CHECKS}[check](case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", TRANSFORMERS, ids=str)
def test_releases_of_adapters_are_what_is_accounted(case: Case, gpt2: None, one_thread: None) -> None:
    mechanism = case.settled()
    assert noise_p_value(case, mechanism) > FALSE_ALARM
    assert case.least_share < max(shares(case, mechanism)) < 1 + 1e-3
    verdict, (low, high), noise = play(case, case.make(), case.canary)
    assert verdict.kind is VerdictKind.NOT_REFUTED, verdict.sentence
    assert low < 1 / noise < high


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("case", TRANSFORMERS, ids=str)
def test_the_judge_refutes_every_fault_of_adapters(
    case: Case, fault: str, gpt2: None, one_thread: None
) -> None:
    canary = CANARY if fault == "noise forgotten on one group" else case.canary
    verdict, _, _ = play(case, Broken(sound=case.make(), fault=fault), canary)
    assert verdict.kind is VerdictKind.REFUTED, verdict.sentence
