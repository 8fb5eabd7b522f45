"""Noise that some coordinates get in some steps alone: what is said of its form, and what is not.

Layers take turns, or each step has a random half of the weights. Beside the shares of false alarms stands
what is found where something is wrong.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from workbench.audit.replay.noise import Noise, gaps_of, is_repeated, noise_of, stretched, unseen_memory
from workbench.audit.replay.recording import Layout, Recording

STEPS, LARGE, SMALL = 40, 600, 150


def recording(gradients: Tensor) -> Recording:
    """Of one tensor, shape `(T, d)`."""
    layout = Layout(("weight",), (tuple(gradients.shape[1:]),))
    return Recording(layouts=[layout], optimizers=[0] * len(gradients), gradients=list(gradients))


def masks(kind: str, generator: torch.Generator) -> Tensor:
    """Which coordinates have noise in which steps, shape `(T, d)`."""
    if kind == "halves":
        return torch.rand(STEPS, LARGE + SMALL, generator=generator) < 0.5
    is_large = torch.arange(LARGE + SMALL) < LARGE
    return torch.stack([is_large if step % 2 == 0 else ~is_large for step in range(STEPS)])


def measured(drawn: Tensor) -> tuple[Noise, tuple[Recording, Recording]]:
    """The noise, and its run with that without any."""
    own = (recording(drawn), recording(torch.zeros_like(drawn)))
    return noise_of(*own, gaps_of(*own, noise_of(*own))), own


KINDS = ["turns", "halves"]


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_noise_of_one_scale_is_told_to_be_that(kind: str) -> None:
    """Each test errs in one of a thousand replays (`RARE`): three of 100 would be a fault."""
    generator = torch.Generator().manual_seed(3)
    alarms, scales = np.zeros(4, dtype=int), []
    for _ in range(100):
        where = masks(kind, generator)
        drawn = [0.3 * where * torch.randn(where.shape, generator=generator) for _ in "12"]
        (noise, own), (_, other) = map(measured, drawn)
        assert noise.is_masked
        scales.append(float(noise.scale.max()))
        alarms += [
            not noise.is_gaussian,
            noise.differs,
            noise.correlation > max(noise.chance, 0.05),
            noise.lagged > noise.lag_chance,
        ]
        assert stretched(noise, own, other)[0] == 1.0
        assert not noise.copies
        assert is_repeated(own, other) == 0
        assert 1.0 < unseen_memory(noise) < 1.2
    assert (alarms < 3).all(), alarms
    assert np.mean(scales) == pytest.approx(0.3, rel=1e-2)
    # As a whole it would be of another form.
    assert not noise_of(*own).is_gaussian


@pytest.mark.parametrize("kind", KINDS)
def test_noise_that_carries_on_is_seen(kind: str) -> None:
    generator = torch.Generator().manual_seed(4)
    for _ in range(10):
        where, last = masks(kind, generator), torch.zeros(LARGE + SMALL)
        drawn = torch.zeros(where.shape)
        for step, here in enumerate(where):
            last = torch.where(
                here, 0.5 * last + 0.75**0.5 * torch.randn(last.shape, generator=generator), last
            )
            drawn[step] = last * here
        noise, _ = measured(drawn)
        assert noise.correlation > max(noise.chance, 0.05) or noise.lagged > noise.lag_chance


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_fewer_directions_is_seen(kind: str) -> None:
    generator = torch.Generator().manual_seed(5)
    directions = torch.linalg.qr(torch.randn(LARGE + SMALL, 200, generator=generator))[0]
    where = masks(kind, generator)
    drawn = torch.randn(2, *where.shape, generator=generator) @ directions @ directions.T * where
    (noise, own), (_, other) = map(measured, drawn)
    assert stretched(noise, own, other)[0] > 1.5


def test_a_divisor_that_follows_the_batch_is_no_schedule() -> None:
    generator, sizes = torch.Generator().manual_seed(6), np.random.default_rng(6)
    where = masks("turns", generator)
    noises = [
        measured(
            where
            * torch.randn(where.shape, generator=generator)
            / torch.from_numpy(sizes.binomial(400, 0.1, STEPS)).float()[:, None]
        )[0]
        for _ in "12"
    ]
    assert noises[0].differs
    assert not noises[0].changes_like(noises[1])
    again = measured(
        where * torch.randn(where.shape, generator=generator) * (1 + torch.arange(STEPS))[:, None]
    )
    twin = measured(
        where * torch.randn(where.shape, generator=generator) * (1 + torch.arange(STEPS))[:, None]
    )
    assert again[0].changes_like(twin[0])


@pytest.mark.parametrize("few", [1, 2, 3])
def test_steps_of_a_few_numbers_are_no_copies_of_each_other(few: int) -> None:
    """The weights and the bias of a small head take turns: two single numbers are equal up to a factor."""
    generator = torch.Generator().manual_seed(few)
    for _ in range(20):
        where = torch.zeros(STEPS, 64 + few)
        where[::2, :64], where[1::2, 64:] = 1.0, 1.0
        runs = [
            (
                recording(where * torch.randn(where.shape, generator=generator)),
                recording(torch.zeros_like(where)),
            )
            for _ in "12"
        ]
        assert is_repeated(*runs) == 0
        assert not noise_of(*runs[0]).copies
        assert is_repeated(runs[0], runs[0]) == STEPS // 2
