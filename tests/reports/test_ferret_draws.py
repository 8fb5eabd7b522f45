"""The luck of a draw of members, held to draws that are repeated."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.reports.papers.ferret.places import Drawn, Placements, draw_error, guessing_deviation
from workbench.reports.shared.statistics import Sample

MODELS, RECORDS = 5, 100


def drawn(scores: np.ndarray, members: np.ndarray) -> Drawn:
    """AUCs of models, rows of `scores`, on one draw."""
    wins = [(row[members][:, None] > row[~members][None, :]) for row in scores]
    placements = tuple(Placements(draw="one", inside=one.mean(1), outside=one.mean(0)) for one in wins)
    areas = np.array([one.mean() for one in wins])
    return Drawn(areas, tuple(map(str, range(len(scores)))), "model", placements=placements)


@pytest.mark.parametrize("own", [0.1, 3.0])
def test_the_error_is_the_deviation_over_draws(own: float) -> None:
    rng = np.random.default_rng(0)
    means, gaps, errors, paired = [], [], [], []
    for _ in range(300):
        members = rng.permutation(2 * RECORDS) < RECORDS
        hard = rng.normal(0.0, 1.0, 2 * RECORDS)
        first = hard + rng.normal(0.0, own, (MODELS, 2 * RECORDS))
        second = first + rng.normal(0.0, 0.5, 2 * RECORDS)
        one, other = drawn(first, members), drawn(second, members)
        means.append(one.values.mean())
        gaps.append(one.values.mean() - other.values.mean())
        errors.append(draw_error([(one, 1.0)]))
        paired.append(draw_error([(one, 1.0), (other, -1.0)]))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.12)
    assert np.mean(paired) == pytest.approx(np.std(gaps), rel=0.12)


def test_what_two_samples_share_cancels_and_other_metrics_have_none() -> None:
    rng = np.random.default_rng(1)
    members = np.arange(2 * RECORDS) < RECORDS
    one = drawn(rng.normal(size=(MODELS, 2 * RECORDS)), members)
    assert draw_error([(one, 1.0), (one, -1.0)]) < 1e-12
    assert draw_error([(one, -2.0)]) == pytest.approx(2.0 * draw_error([(one, 1.0)]))
    assert draw_error([(Sample(np.ones(3), ("a", "b", "c"), "model"), 1.0)]) == 0.0


def test_the_deviation_of_guessing() -> None:
    # sqrt((n1 + n0 + 1) / (12 n1 n0)), Mann and Whitney 1947: sqrt(401 / 480000) = 0.0289.
    assert guessing_deviation(200) == pytest.approx(0.0289, abs=5e-5)
