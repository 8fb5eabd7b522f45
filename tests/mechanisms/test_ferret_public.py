"""Are FERRET's public draws what they are called: Bernoulli(p) coins, and directions uniform on the sphere?

Each test is a function that returns p-values, is run on the mechanism's own draws, and again on draws that
are wrong on purpose. A right mechanism fails one of these tests with probability below `FALSE_ALARM`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from workbench.interfaces import BoolArray, FloatArray
from workbench.mechanisms.ferret.public import BLOCK, Direction, firing_mask

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance (a bound for each of them, Bonferroni inside)."""

GROUPS = tuple((f"layer.{i}.weight", f"layer.{i}.bias") for i in range(4))
STEPS, P, RUNS = 50, 0.1, 800


def masks(draw: Callable[[int], BoolArray]) -> FloatArray:
    """One mask a public seed, shape `(runs, T, G)`."""
    return np.stack([draw(seed) for seed in range(RUNS)]).astype(np.float64)


def mask_p_values(found: FloatArray, p: float) -> dict[str, float]:
    """Counts of each group against Binomial(T, p); and whether coins of groups, and of steps, differ."""
    runs, steps, groups = found.shape
    counts = found.sum(1).astype(int)
    edges = [0, 3, 4, 5, 6, 7, 8, steps + 1]
    law = np.diff([0.0 if e == 0 else float(stats.binom.cdf(e - 1, steps, p)) for e in edges])
    by_group = []
    for group in range(groups):
        observed = np.histogram(counts[:, group], bins=edges)[0]
        by_group.append(float(stats.chisquare(observed, law * runs).pvalue))
    # Totals over groups of one step: their variance is G p (1 - p) only where the groups' coins differ.
    totals = found.sum(2).ravel()
    variance = groups * p * (1 - p)
    fourth = groups * p * (1 - p) * (1 - 6 * p * (1 - p)) + 3 * variance**2
    z = (np.mean((totals - groups * p) ** 2) - variance) / math.sqrt((fourth - variance**2) / totals.size)
    after = (found[:, 1:] - p) * (found[:, :-1] - p)
    z_steps = after.mean() / (p * (1 - p)) * math.sqrt(after.size)
    return {
        "counts": min(1.0, groups * min(by_group)),
        "groups": float(2 * stats.norm.sf(abs(z))),
        "steps": float(2 * stats.norm.sf(abs(z_steps))),
    }


def test_firing_counts_are_binomial() -> None:
    found = mask_p_values(masks(lambda seed: firing_mask(seed, GROUPS, STEPS, P)), P)
    assert min(found.values()) > FALSE_ALARM / 3


@pytest.mark.parametrize(
    ("wrong", "which"),
    [
        (lambda seed: firing_mask(seed, GROUPS, STEPS, 1.1 * P), "counts"),
        (lambda seed: np.repeat(firing_mask(seed, GROUPS[:1], STEPS, P), 4, axis=1), "groups"),
        (lambda seed: np.repeat(firing_mask(seed, GROUPS, STEPS // 2, P), 2, axis=0), "steps"),
    ],
)
def test_the_mask_tests_refute_wrong_masks(wrong: Callable[[int], BoolArray], which: str) -> None:
    assert mask_p_values(masks(wrong), P)[which] < FALSE_ALARM / 3


SHAPES = ((2, 2), (3,))
D = 7
DRAWS = 4000


def whole(seed: int, step: int = 0) -> FloatArray:
    """A direction of two tensors, as one vector of 7 numbers."""
    own = [torch.zeros(shape) for shape in SHAPES]
    direction = Direction(seed, step, ("weight", "bias"), own)
    direction.inner(own)
    direction.write(1.0, own)
    return torch.cat([p.reshape(-1) for p in own]).double().numpy()


def sphere_p_values(found: FloatArray) -> dict[str, float]:
    """Tests that hold for the uniform law on the unit sphere of d = 7 alone, if for all axes: n unit vectors.

    The square of the coordinate along any fixed axis is Beta(1/2, (d - 1)/2), and its sign a fair coin; so is
    it along the vector drawn before.
    """
    n, d = found.shape
    law = stats.beta(0.5, (d - 1) / 2)
    slanted = np.arange(1.0, d + 1)
    slanted /= np.linalg.norm(slanted)
    axes = np.concatenate([np.eye(d), slanted[None]])
    along = found @ axes.T
    squares = [float(stats.kstest(column**2, law.cdf).pvalue) for column in along.T]
    signs = [float(stats.binomtest(int((column > 0).sum()), n).pvalue) for column in along.T]
    second = found.T @ found / n - np.eye(d) / d
    # Off the diagonal each entry has mean 0 and variance 1 / (d (d + 2) n).
    off = second[np.triu_indices(d, 1)] * math.sqrt(n * d * (d + 2))
    before = np.sum(found[1:] * found[:-1], axis=1)[::2]
    return {
        "squares": min(1.0, len(squares) * min(squares)),
        "signs": min(1.0, len(signs) * min(signs)),
        "products": min(1.0, len(off) * float(2 * stats.norm.sf(np.abs(off).max()))),
        "before": float(stats.kstest(before**2, law.cdf).pvalue),
    }


@pytest.mark.slow
def test_directions_are_uniform_on_the_sphere() -> None:
    by_seed = np.stack([whole(seed) for seed in range(DRAWS)])
    by_step = np.stack([whole(1, step) for step in range(DRAWS)])
    for found in (by_seed, by_step):
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-6)
        assert min(sphere_p_values(found).values()) > FALSE_ALARM / 8


def _normed(found: FloatArray) -> FloatArray:
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def _mixed(generator: np.random.Generator) -> FloatArray:
    found = generator.standard_normal((DRAWS, D))
    found[:, 1] = 0.9 * found[:, 1] + math.sqrt(1 - 0.81) * found[:, 0]
    return _normed(found)


WRONG: dict[str, Callable[[np.random.Generator], FloatArray]] = {
    "a cube's corners": lambda g: _normed(np.where(g.random((DRAWS, D)) < 0.5, -1.0, 1.0)),
    "a cube": lambda g: _normed(g.uniform(-1, 1, (DRAWS, D))),
    "a heavier coordinate": lambda g: _normed(g.standard_normal((DRAWS, D)) * [1.2, 1, 1, 1, 1, 1, 1]),
    "a shifted one": lambda g: _normed(g.standard_normal((DRAWS, D)) + 0.15 * np.eye(D)[0]),
    "coordinates that go together": _mixed,
    "each drawn twice": lambda g: np.repeat(_normed(g.standard_normal((DRAWS // 2, D))), 2, axis=0),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_the_sphere_tests_refute_directions_that_are_not_uniform(wrong: str) -> None:
    found = sphere_p_values(WRONG[wrong](np.random.default_rng(1)))
    assert min(found.values()) < FALSE_ALARM / 8


def test_a_large_direction_is_drawn_in_blocks_and_never_kept() -> None:
    parameter = nn.Parameter(torch.zeros(3, BLOCK // 2 + 1))
    direction = Direction(3, 0, ("big",), [parameter])
    gradient = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    inner = direction.inner([gradient])
    out = [torch.empty(parameter.shape)]
    direction.write(2.5, out)
    assert float(out[0].double().norm()) == pytest.approx(2.5, rel=1e-6)
    assert float((out[0].double() * gradient.double()).sum()) / 2.5 == pytest.approx(inner, rel=1e-5)
    held = [
        value for value in vars(direction).values() if isinstance(value, (torch.Tensor, list)) and len(value)
    ]
    assert held == [direction._parameters]


def test_steps_and_names_have_directions_of_their_own() -> None:
    own = [torch.zeros(64)]
    drawn = []
    for seed, step, name in ((0, 0, "a"), (0, 1, "a"), (1, 0, "a"), (0, 0, "b"), (0, 0, "a")):
        direction = Direction(seed, step, (name,), own)
        target = [torch.empty(64)]
        direction.inner(own)
        direction.write(1.0, target)
        drawn.append(target[0])
    assert torch.equal(drawn[0], drawn[-1])
    products = [abs(float(drawn[0] @ other)) for other in drawn[1:-1]]
    # |<u, v>| of independent directions in 64 dimensions exceeds 0.6 with probability 4e-8.
    assert max(products) < 0.6
