"""Quantile regression: its moments against a known truth, power where difficulty is learnt, validity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from membership_games import NOTHING, TableGame
from scipy import stats

from workbench.attacks import quantile
from workbench.attacks.quantile import QuantileRegressionAttack, conditional_moments, features
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.estimation import auc
from workbench.interfaces import FloatArray, Record


def area(scores: FloatArray, game: TableGame) -> float:
    return auc(scores, game.members, confidence=0.95).estimate


def test_moments_are_those_of_a_gaussian_that_varies_with_the_features() -> None:
    """Mean x, deviation exp(x): root mean square errors over 300 points, with 1,000 to learn from."""
    rng = np.random.default_rng(0)
    x, points = rng.uniform(-1, 1, (1000, 1)), np.linspace(-0.9, 0.9, 300)[:, None]
    values = x[:, 0] + np.exp(x[:, 0]) * rng.normal(size=1000)
    mean, deviation, explained = conditional_moments(x, values, points)
    assert np.sqrt(np.mean((mean - points[:, 0]) ** 2)) < 0.25
    assert np.sqrt(np.mean((np.log(deviation) - points[:, 0]) ** 2)) < 0.25
    assert explained == pytest.approx(1 / 3 / (1 / 3 + np.mean(np.exp(2 * x))), abs=0.05)


def test_constant_confidence_gives_finite_scores() -> None:
    mean, deviation, explained = conditional_moments(np.ones((30, 2)), np.full(30, 3.0), np.ones((4, 2)))
    assert mean == pytest.approx(np.full(4, 3.0))
    assert np.all(deviation > 0)
    assert np.isfinite(explained)


def test_kernel_ridge_is_that_of_the_definition_fitted_again_without_each_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    x, penalty = rng.normal(size=(12, 2)), 0.5
    monkeypatch.setattr(quantile, "WIDTHS", (1.0,))
    monkeypatch.setattr(quantile, "PENALTIES", (penalty,))
    distances = ((x[:, None] - x) ** 2).sum(axis=2)
    kernel, values = np.exp(-distances / 2), rng.normal(size=12)
    predicted, residuals = quantile.kernel_ridge(distances, values, distances[:2])
    centred = values - values.mean()
    whole = kernel @ np.linalg.solve(kernel + penalty * np.eye(12), centred) + values.mean()
    assert predicted == pytest.approx(whole[:2])
    for left in range(12):
        rest = np.arange(12) != left
        again = np.linalg.solve(kernel[np.ix_(rest, rest)] + penalty * np.eye(11), centred[rest])
        assert centred[left] - kernel[left, rest] @ again == pytest.approx(residuals[left])


@pytest.mark.parametrize("fit", ["held_out", pytest.param("candidates", marks=pytest.mark.slow)])
def test_it_beats_the_loss_where_difficulty_can_be_learnt(fit: str) -> None:
    """The paper's finding; means of five games of 300 records, in truth apart by more than 0.1."""
    gains = []
    for seed in range(5):
        game = TableGame(300, 200, 0, seed=seed)
        found = area(game.scores(QuantileRegressionAttack(fit=fit)), game)
        gains.append(found - area(game.scores(registry.create("attack", "loss")), game))
    assert np.mean(gains) > 0.1


def test_scores_of_non_members_are_calibrated() -> None:
    """Standard normal: the conditional quantiles of the paper, up to what 400 records cannot teach."""
    game = TableGame(600, 400, 0, seed=1)
    scores = game.scores(QuantileRegressionAttack())[~game.members]
    for level in (0.5, 0.8, 0.9):
        assert np.mean(scores > stats.norm.ppf(level)) == pytest.approx(1 - level, abs=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["held_out", "candidates"])
def test_no_trace_gives_no_advantage(fit: str) -> None:
    """Two-sided Mann-Whitney test at 0.001: the false-alarm rate of this test."""
    game = TableGame(800, 100, 0, seed=2, gap=0.0)
    scores = game.scores(QuantileRegressionAttack(fit=fit))
    assert stats.mannwhitneyu(scores[game.members], scores[~game.members]).pvalue > 0.001


def test_features_of_texts_are_plain_counts() -> None:
    records = [Record(id="a", text="Anna is 70"), Record(id="b", text="is is is"), Record(id="c", text="zx")]
    found = features(records, [True, True, False])
    assert found.shape == (3, 7)
    assert found[0, :3].tolist() == [10, 3, pytest.approx(8 / 3)]
    assert found[0, 4:].tolist() == pytest.approx([0.2, 0.1, 0.0])
    assert found[2, 6] == 1.0


def test_features_of_images_are_pixels_and_labels() -> None:
    records = [Record(id="a", image=(0.1, 0.2), label=3), Record(id="b", image=(0.3, 0.4), label=7)]
    assert features(records, [True, True]).tolist() == pytest.approx(
        np.array([[0.1, 0.2, 1, 0], [0.3, 0.4, 0, 1]])
    )


def test_too_few_records_are_refused() -> None:
    game = TableGame(10, 10, 0, seed=0)
    with pytest.raises(InputError, match="at least 20 held-out records; try fit = 'candidates', got 10"):
        QuantileRegressionAttack().score(game.seen(), NOTHING)
    with pytest.raises(InputError, match="needs at least 20 candidates, got 10"):
        QuantileRegressionAttack(fit="candidates").score(game.seen(), NOTHING)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"fit": "held-out"}, "unknown fit 'held-out'; did you mean 'held_out'"),
        ({"folds": 1}, "folds must be a whole number >= 2, got 1"),
        ({"folds": 21}, "folds must be at most 20, got 21"),
        ({"ending_marker": 5}, "ending_marker must be text, got 5"),
        ({"canaries": -1.0}, r"canaries must be in \[0, 1\], got -1"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("attack", "quantile_regression", **parameters)


def test_it_asks_for_no_references() -> None:
    assert registry.create("attack", "quantile_regression").references_needed == 0
