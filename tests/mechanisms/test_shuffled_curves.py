"""Figs. 3 and 4 of Shuffled DPSGD: the arrays against the accountant, and what the paper says of them."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.lognormal_reference import reference_error
from oracles.shuffled_curves import (
    FIGURE_3_EPSILONS,
    PAPER_RUNS,
    PaperRun,
    noise_curve,
    noise_map,
    paper_run,
)

from workbench.core.errors import InputError
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shuffled_dp_sgd import ShuffledDPSGD, ShuffledGaussianRun
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import LognormalSum, fenton_wilkinson

VIT = paper_run("ViT, CIFAR100")


def spent(run: PaperRun, noise: float, dimension: int, batch_size: int) -> float:
    """Epsilon of a whole training by the paper's accountant."""
    probability, steps = run.schedule(batch_size)
    event = ShuffledGaussianRun(
        noise_multiplier=noise, sampling_probability=probability, steps=steps, dimension=dimension
    )
    return ShuffledDPSGD().epsilon(event, delta=run.delta, adjacency=Adjacency.ADD_REMOVE)


def test_table_1_is_all_there() -> None:
    assert len(PAPER_RUNS) == 13  # one ViT, two models on four tasks, two on two
    assert VIT.schedule(1000) == (0.02, 500)
    assert paper_run("BERT, SST-2").delta == 1 / (2 * 67_349)
    assert paper_run("GPT-2-large, DART").delta == 1e-5


@pytest.mark.parametrize("name", ["ViT, CIFAR100", "GPT-2-large, E2E"])
def test_a_panel_of_fig_3_spends_its_budget_and_no_less(name: str) -> None:
    run = paper_run(name)
    curve = noise_curve(run)
    assert curve.epsilons.tolist() == list(FIGURE_3_EPSILONS)
    for epsilon, noise in zip(curve.epsilons.tolist(), curve.shuffled.tolist(), strict=True):
        assert spent(run, noise, run.dimension, 1000) == pytest.approx(epsilon, rel=1e-3)
        assert spent(run, noise * 1.01, run.dimension, 1000) < epsilon
        assert spent(run, noise / 1.01, run.dimension, 1000) > epsilon
    assert np.all(np.diff(curve.shuffled) < 0)
    assert np.all(np.diff(curve.unshuffled) < 0)


def test_the_shuffled_curve_is_flat_as_section_6_d_says_and_its_lognormals_are_not_fig_2s() -> None:
    curve = noise_curve(VIT)
    assert curve.shuffled[0] / curve.shuffled[-1] < 1.05
    assert curve.unshuffled[0] / curve.unshuffled[-1] > 5
    assert curve.lognormal_sigma.min() > 10 * 0.25
    for sigma, worst in ((0.25, 1e-4), (float(curve.lognormal_sigma[2]), 0.1)):
        law = LognormalSum.identical(VIT.dimension, sigma)
        off = reference_error(fenton_wilkinson(law), law, points=101)
        assert (off < worst) == (sigma == 0.25)


def test_fig_4_begins_with_the_unshuffled_noise_and_falls_with_the_dimension() -> None:
    grid = noise_map(epsilons=(0.5, 2.0), dimensions=(1, 10, 1000, VIT.dimension, 10**9))
    curve = noise_curve(VIT, epsilons=(0.5, 2.0))
    assert grid.shape == (2, 5)
    np.testing.assert_array_equal(grid[:, 0], curve.unshuffled)
    np.testing.assert_array_equal(grid[:, 3], curve.shuffled)
    assert np.all(np.diff(grid, axis=1) < 0)


def test_a_looser_batch_clip_takes_more_noise() -> None:
    tight, loose = (noise_curve(VIT, epsilons=(1.0,), batch_clip=clip).shuffled[0] for clip in (1.0, 10.0))
    assert tight < loose


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="did you mean 'ViT, CIFAR100'"):
        paper_run("ViT, CIFAR10")
    with pytest.raises(InputError, match=r"batch_size must be in 1\.\.50000, got 0"):
        noise_curve(VIT, batch_size=0)
