"""Weights that are put aside on disk and read back."""

from __future__ import annotations

import pytest
import torch

from workbench.training.zeroth_order import ScratchWeights


def weights() -> list[torch.Tensor]:
    """Of several shapes and types; one of them does not lie in one piece."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(7, 3, generator=generator),
        torch.randn(4, 5, generator=generator).t(),
        torch.randn(3, generator=generator).bfloat16(),
        torch.zeros(0),
        torch.tensor(2.5),
    ]


def test_weights_come_back_bit_by_bit() -> None:
    own = weights()
    kept = ScratchWeights()
    assert not kept.restore(own)
    kept.keep([torch.ones_like(one) for one in own])
    kept.keep(own)
    for one in own:
        one.mul_(3.0)
    assert kept.restore(own)
    for one, first in zip(own, weights(), strict=True):
        assert torch.equal(one, first)
    kept.close()
    assert not kept.restore(own)
    kept.close()


def test_a_file_that_ends_early_is_an_error() -> None:
    kept = ScratchWeights()
    kept.keep(weights()[:1])
    with pytest.raises(OSError, match="too short"):
        kept.restore(weights())


def test_nothing_is_held_in_memory() -> None:
    kept = ScratchWeights()
    kept.keep(weights())
    assert not [one for one in vars(kept).values() if isinstance(one, torch.Tensor | list)]
