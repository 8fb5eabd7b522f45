"""The digits network with more hidden layers, and its default, whose weights are those of one layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.mechanisms.ferret.public import GRANULARITIES, grouped


def test_the_default_is_one_hidden_layer_with_the_weights_it_always_had() -> None:
    found = registry.create("model", "digits_mlp", seed=3).module
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        before = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    assert found.state_dict().keys() == before.state_dict().keys()
    for own, other in zip(found.parameters(), before.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("layers", [1, 3, 8])
def test_each_layer_has_two_tensors(layers: int) -> None:
    model = registry.create("model", "digits_mlp", seed=0, hidden=5, hidden_layers=layers)
    assert len(list(model.module.parameters())) == 2 * layers + 2
    assert model.module(torch.zeros(2, 64)).shape == (2, 10)


def test_eight_layers_tell_the_granularities_apart() -> None:
    names = [
        n
        for n, _ in registry.create("model", "digits_mlp", seed=0, hidden_layers=8).module.named_parameters()
    ]
    assert {len(grouped(names, granularity)) for granularity in GRANULARITIES} == {18, 9, 5, 3, 2}


def test_no_layer_is_refused() -> None:
    with pytest.raises(InputError, match="hidden_layers must be at least 1, got 0"):
        registry.create("model", "digits_mlp", seed=0, hidden_layers=0)
