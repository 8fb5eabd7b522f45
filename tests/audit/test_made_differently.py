"""Correct trainers made with other tools are not refuted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_here import judged_here

from workbench.audit.replay.judging import Replayed
from workbench.audit.replay.record import recorded
from workbench.cli.app import main

ZOO = Path(__file__).parents[1] / "zoo" / "made_differently.py"
TRAINERS = re.findall(r'^    "(\w+)": ', ZOO.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_a_correct_trainer_made_with_another_tool_is_not_refuted(name: str) -> None:
    found = judged_here(f"{ZOO}:{name}")
    assert isinstance(found, Replayed)
    assert found.verdict.kind == "NOT_REFUTED", found.verdict.sentence
    assert found.faults == ()
    assert 0.2 < found.lower < found.estimate < found.upper


UNCOMMON = {
    "sorted_by_label": "UNDECIDED",
    "own_generator": "UNDECIDED",
    "noisy_scorer": "NOT_REFUTED",
    "centred_by_a_noisy_mean": "UNDECIDED",
    "one_feature": "NOT_REFUTED",
    "growing": "UNDECIDED",
    "one_epoch": "NOT_REFUTED",
    "public_first": "NOT_REFUTED",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNCOMMON)
def test_a_trainer_that_keeps_its_claim_by_uncommon_means_is_not_refuted(name: str) -> None:
    epsilon = 19.3 if name == "one_epoch" else 1
    found = judged_here(
        f"{ZOO.with_name('uncommon.py')}:{name}", claim=f"epsilon={epsilon},delta=1e-5,adjacency=add-remove"
    )
    assert isinstance(found, Replayed)
    assert found.verdict.kind == UNCOMMON[name], found.verdict.sentence


class Halving(torch.optim.SGD):
    """Halves the gradient within its step."""

    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p.grad = p.grad / 2
        return super().step(closure)


def halving() -> float:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = Halving([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (4 * weight).sum().backward()
        optimizer.step()
    return float(weight.detach().sum())


def test_the_gradient_that_is_recorded_is_the_one_of_the_step_within_a_step() -> None:
    run = recorded(halving, seed=0, records=1)
    assert run.inner == [True] * 3
    assert all(torch.equal(gradient, torch.full((3,), 2.0)) for gradient in run.gradients)
    again = recorded(halving, seed=0, records=1, forced=run)
    assert (again.inner, again.result) == (run.inner, run.result)
    assert all(torch.equal(one, other) for one, other in zip(run.gradients, again.gradients, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(run.weights, again.weights, strict=True))


def test_another_optimizer_after_one_is_not_within_it() -> None:
    def both() -> None:
        weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        for weight in weights:
            weight.grad = torch.ones(2)
        for optimizer in [torch.optim.SGD([weight], lr=0.1) for weight in weights]:
            optimizer.step()

    assert recorded(both, seed=0, records=1).inner == [False, False]


@pytest.mark.slow
def test_adapters_of_a_language_model_are_not_refuted(tmp_path: Path) -> None:
    words = ["replay", f"{ZOO.with_name('language_model.py')}:lora", "--corpus", "clinical", "--quiet"]
    assert main([*words, "--candidates", "40", "--out", str(tmp_path)]) == 0
