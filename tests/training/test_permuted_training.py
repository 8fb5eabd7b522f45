"""Whole trainings under weight permutations: the optimiser's state moves with the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from permutation_cases import CASES, LAWS, difference, drawn, outputs, perceptrons, weights
from torch import Tensor, nn

from workbench.core.errors import UnsupportedError
from workbench.training.permutations import PermutationGroup, permute_state_

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMISERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
}


def trained(
    module: nn.Module,
    inputs: Tensor,
    optimiser: str,
    group: PermutationGroup | None = None,
    *,
    moves_state: bool = True,
) -> Mapping[str, Tensor]:
    """Six steps, permuted after each where there is a group; weights at the start's places."""
    parameters = dict(module.named_parameters())
    optimizer = OPTIMISERS[optimiser](list(parameters.values()))
    rng = np.random.default_rng(0)
    so_far = None if group is None else group.identity()
    for step in range(6):
        optimizer.zero_grad()
        outputs(module, inputs).roll(step, 0).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if group is not None and so_far is not None:
            permutation = group.draw(rng)
            permutation.apply_(parameters)
            if moves_state:
                permute_state_(permutation, optimizer, parameters)
            so_far = so_far.then(permutation)
    found = weights(module)
    if so_far is not None:
        so_far.inverse().apply_(found)
    return found


def farthest(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> float:
    return max(difference(here[name], there[name]) for name in here)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("case", ["digits_mlp, 3 layers", "digits_vit", "bert", "gpt2", "bloom"])
def test_shuffled_training_is_the_same_training(case: str, optimiser: str) -> None:
    module, inputs = CASES[case]()
    twin = copy.deepcopy(module)
    plain = trained(module, inputs, optimiser)
    assert farthest(plain, trained(twin, inputs, optimiser, PermutationGroup.of(twin))) < 1e-7
    assert difference(outputs(module, inputs), outputs(twin, inputs)) < 1e-7
    assert farthest(weights(module), weights(twin)) > 0.01


@LAWS
@given(module=perceptrons(), optimiser=st.sampled_from(sorted(OPTIMISERS)))
def test_shuffled_training_of_random_perceptrons(module: nn.Module, optimiser: str) -> None:
    inputs = torch.rand((4, module[0].in_features), dtype=torch.float64)  # type: ignore[index]
    twin = copy.deepcopy(module)
    plain = trained(module, inputs, optimiser)
    assert farthest(plain, trained(twin, inputs, optimiser, PermutationGroup.of(twin))) < 1e-7


@pytest.mark.parametrize("optimiser", ["momentum", "adamw"])
def test_state_that_stays_behind_spoils_the_training(optimiser: str) -> None:
    """The negative control of the tests above."""
    module, inputs = CASES["digits_mlp, 3 layers"]()
    twin = copy.deepcopy(module)
    plain = trained(module, inputs, optimiser)
    group = PermutationGroup.of(twin)
    assert farthest(plain, trained(twin, inputs, optimiser, group, moves_state=False)) > 1e-4


def test_state_of_unknown_shape_is_refused() -> None:
    module, inputs = CASES["digits_mlp"]()
    parameters = dict(module.named_parameters())
    optimizer = OPTIMISERS["adamw"](list(parameters.values()))
    outputs(module, inputs).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.state[parameters["0.weight"]]["exp_avg"] = torch.zeros(64)
    with pytest.raises(UnsupportedError, match=r"'exp_avg' of '0.weight' in shape \(64,\)"):
        permute_state_(drawn(PermutationGroup.of(module)), optimizer, parameters)
