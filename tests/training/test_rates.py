"""A plan's learning rate over its steps, and its weight decay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import Plan, Schedule
from workbench.mechanisms.non_private import NonPrivate
from workbench.training.fine_tuning import build_model, learning_rate, make_optimizer, trainable


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=registry.create("corpus", "digits", size=20, seed=0).records,
        held_out=(),
        model="digits_logistic",
        steps=10,
        sampling_probability=1.0,
        learning_rate=0.05,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
@given(
    steps=st.integers(1, 60),
    warmup=st.floats(0, 0.99),
    schedule=st.sampled_from(list(Schedule)),
)
@settings(max_examples=40, deadline=None)
def test_rates_are_those_of_transformers(steps: int, warmup: float, schedule: Schedule) -> None:
    plan = make_plan(steps=steps, warmup=warmup, schedule=schedule)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=plan.learning_rate)
    warm = math.ceil(steps * warmup)
    theirs = (
        transformers.get_linear_schedule_with_warmup(optimizer, warm, steps)
        if schedule is Schedule.LINEAR
        else transformers.get_constant_schedule_with_warmup(optimizer, warm)
    )
    for step in range(steps):
        assert learning_rate(plan, step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12, abs=1e-300)
        optimizer.step()
        theirs.step()


def test_a_training_follows_its_schedule() -> None:
    plan = make_plan(optimizer="sgd", schedule="linear", warmup=0.3, weight_decay=0.01)
    subject = NonPrivate().train(plan)
    model = build_model(plan)
    optimizer = torch.optim.SGD(model.module.parameters(), lr=1.0, weight_decay=0.01)
    for step in range(10):
        optimizer.param_groups[0]["lr"] = learning_rate(plan, step)
        optimizer.zero_grad()
        model.losses(model.encode(plan.records)).mean().backward()
        optimizer.step()
    for ours, twin in zip(subject.model.module.parameters(), model.module.parameters(), strict=True):
        torch.testing.assert_close(ours, twin, atol=1e-6, rtol=1e-5)
    constant = NonPrivate().train(replace(plan, schedule=Schedule.CONSTANT, warmup=0.0))
    moved = next(iter(trainable(constant.model.module).values())) - next(model.module.parameters())
    assert float(moved.detach().abs().max()) > 1e-3


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_weight_decay_shrinks_weights_without_a_gradient(optimizer: str) -> None:
    plan = make_plan(optimizer=optimizer, weight_decay=0.5)
    module = nn.Linear(3, 2)
    before = [p.detach().clone() for p in module.parameters()]
    made = make_optimizer(plan, module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    for was, parameter in zip(before, module.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), was * (1 - 0.05 * 0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_decay": -0.1}, r"weight_decay must be finite and >= 0, got -0\.1"),
        ({"weight_decay": math.nan}, "weight_decay must be finite and >= 0, got nan"),
        ({"warmup": 1.0}, r"warmup must be in \[0, 1\), got 1\.0"),
        ({"warmup": -0.1}, r"warmup must be in \[0, 1\), got -0\.1"),
        ({"schedule": "linea"}, "unknown schedule 'linea'; did you mean 'linear'"),
    ],
)
def test_rates_that_cannot_be_followed_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NonPrivate().train(make_plan(**changes))
