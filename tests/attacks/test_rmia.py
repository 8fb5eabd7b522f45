"""RMIA and InfoRMIA: their formulas written out, and power with few references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from membership_games import NOTHING, TableGame
from scipy import stats

from workbench.attacks.rmia import RmiaAttack, divergence, dominated_shares, marginal
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.estimation import auc
from workbench.games.membership import References
from workbench.interfaces import FloatArray, Record


def area(scores: FloatArray, game: TableGame) -> float:
    return auc(scores, game.members, confidence=0.95).estimate


def probabilities(logits: FloatArray) -> FloatArray:
    found: FloatArray = 1 / (1 + np.exp(-logits))
    return found


def sides(game: TableGame, values: FloatArray) -> FloatArray:
    """Means of the references with and without each candidate, shape `(2, n)`."""
    chosen = (game.included, ~game.included)
    places = range(len(game.members))
    return np.array([[values[side[:, x], x].mean() for x in places] for side in chosen])


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_score_is_the_share_of_the_population_that_a_record_dominates(mode: str, gamma: float) -> None:
    """One record at a time, as the paper writes it; the score adds less than one count."""
    game, a = TableGame(20, 15, 6, seed=0), 0.3
    target, shadows = probabilities(game.target), probabilities(game.shadows)
    others = [target[z] / (((1 + a) * shadows[:, z].mean() + 1 - a) / 2) for z in range(20, 35)]
    scores = game.scores(RmiaAttack(shadows=6, mode=mode, gamma=gamma, a=a))
    for x, score in enumerate(scores):
        without = shadows[~game.included[:, x], x].mean()
        within = shadows[game.included[:, x], x].mean() if mode == "online" else a * without + 1 - a
        ratio = target[x] / ((within + without) / 2)
        count = sum(ratio / other >= gamma for other in others)
        assert 0 < score * 16 - count < 1


def test_without_a_population_the_other_candidates_are_it() -> None:
    game = TableGame(20, 0, 6, seed=1)
    target, shadows = probabilities(game.target), probabilities(game.shadows)
    means = [
        (shadows[game.included[:, x], x].mean() + shadows[~game.included[:, x], x].mean()) / 2
        for x in range(20)
    ]
    ratios = target / np.array(means)
    for gamma in (0.8, 1.0, 1.2):
        scores = game.scores(RmiaAttack(shadows=6, gamma=gamma))
        for x, score in enumerate(scores):
            count = sum(ratios[x] / ratios[z] >= gamma for z in range(20) if z != x)
            assert 0 < score * 20 - count < 1


@pytest.mark.parametrize("population", [0, 30])
def test_both_scores_keep_the_order_of_the_ratio(population: int) -> None:
    """What the module says of one training."""
    game = TableGame(50, population, 4, seed=2)
    counts, information = (game.scores(RmiaAttack(score=score)) for score in ("rmia", "info"))
    assert stats.spearmanr(counts, information).statistic == pytest.approx(1.0)
    assert len(set(counts)) == 50


def test_information_is_the_ratio_and_the_divergence_of_the_population() -> None:
    game, a = TableGame(10, 40, 4, seed=3), 0.5
    target, shadows = probabilities(game.target), probabilities(game.shadows)
    z = ((1 + a) * shadows[:, 10:].mean(axis=0) + 1 - a) / 2
    relative = float(np.sum(z / z.sum() * np.log(z / target[10:])))
    inside, outside = (
        np.array([shadows[side[:, x], x].mean() for x in range(10)])
        for side in (game.included, ~game.included)
    )
    expected = np.log(target[:10] / ((inside + outside) / 2)) + relative
    assert game.scores(RmiaAttack(score="info", a=a)) == pytest.approx(expected)
    assert divergence(np.log(np.array([0.5, 2.0])), np.array([1.0, 3.0])) == pytest.approx(-0.5 * np.log(2))


def test_a_side_without_references_is_filled_in_by_the_line() -> None:
    """The first record is in both references, the second in none, the third in one."""
    values = np.array([[0.9, 0.4, 0.8], [0.7, 0.2, 0.3]])
    included = np.array([[True, False, True], [True, False, False]])
    found = marginal(values, included, mode="online", a=0.5)
    assert found == pytest.approx([(0.8 + 0.6) / 2, (0.3 + 0.65) / 2, 0.55])
    offline = marginal(values, included, mode="offline", a=0.5)
    assert offline == pytest.approx([0.7, 0.475, (0.3 + 0.65) / 2])
    none = marginal(np.zeros((1, 1)), np.array([[True]]), mode="online", a=1.0)
    assert none[0] > 0


def test_ratios_beyond_every_float_stay_in_order() -> None:
    shares = dominated_shares(np.array([-700.0, 0.0, 700.0]), np.array([-800.0, -1.0, 1.0]), 2.0)
    assert np.all(np.diff(shares) > 0)
    assert np.all((shares > 0) & (shares < 1))


@pytest.mark.parametrize("shadows", [1, 2])
def test_members_score_higher_with_one_or_two_references(shadows: int) -> None:
    """The loss's area is near 0.5, for difficulty varies more; means of ten games of 400 records."""
    games = [TableGame(400, 100, shadows, seed=seed, gap=2.0) for seed in range(10)]
    ours = np.mean([area(game.scores(RmiaAttack(shadows=shadows)), game) for game in games])
    loss = registry.create("attack", "loss")
    plain = np.mean([area(game.scores(loss), game) for game in games])
    assert ours > plain + 0.05


@pytest.mark.parametrize("parameters", [{}, {"mode": "offline"}, {"score": "info"}])
def test_no_trace_gives_no_advantage(parameters: dict[str, Any]) -> None:
    """Two-sided Mann-Whitney test at 0.001 over 1,000 records: the false-alarm rate of this test."""
    game = TableGame(1000, 200, 4, seed=5, gap=0.0)
    scores = game.scores(RmiaAttack(**parameters))
    assert stats.mannwhitneyu(scores[game.members], scores[~game.members]).pvalue > 0.001


def test_secrets_go_to_the_population_as_to_the_candidates() -> None:
    """With a marker that only records with a secret have."""
    texts = tuple(Record(id=str(i), text=f"text {i}") for i in range(6))
    game = TableGame(4, 2, 4, seed=0)
    attack = RmiaAttack(ending_marker="secret_id=", canaries=1.0)
    candidates = tuple(replace(record, text=f"{record.text} secret_id=AB") for record in texts[:4])
    seen = game.seen(records=candidates, population=texts[4:])
    with pytest.raises(InputError, match="is empty or beyond"):  # Found in all six; the table has one token.
        attack.score(seen, np.random.default_rng(0))
    with pytest.raises(InputError, match="ending_marker 'secret_id=' does not occur in record '4'"):
        RmiaAttack(ending_marker="secret_id=", canaries=0.0).score(seen, np.random.default_rng(0))


def test_references_must_match_the_candidates() -> None:
    game = TableGame(5, 0, 4, seed=0)
    references = game.seen().references
    wrong = References(subjects=references.subjects, included=references.included[:, :4])
    with pytest.raises(InputError, match=r"included must have shape \(4, 5\), got \(4, 4\)"):
        RmiaAttack().score(game.seen(references=wrong), NOTHING)
    nobody = References(included=np.zeros((0, 5), dtype=bool))
    with pytest.raises(InputError, match="rmia needs at least 1 reference, got 0"):
        RmiaAttack().score(game.seen(references=nobody), NOTHING)
    alone = TableGame(1, 0, 4, seed=0)
    with pytest.raises(InputError, match="needs a population or at least 2 candidates, got 1"):
        RmiaAttack().score(alone.seen(), NOTHING)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"shadows": 0}, "shadows must be a whole number >= 1, got 0"),
        ({"score": "inf"}, "unknown score 'inf'; did you mean 'info'"),
        ({"mode": "of-line"}, "unknown mode 'of-line'; did you mean 'offline'"),
        ({"a": 0.0}, r"a must be in \(0, 1\], got 0"),
        ({"gamma": -1.0}, "gamma must be .*, got -1"),
        ({"ending_marker": 5}, "ending_marker must be text, got 5"),
        ({"canaries": 2.0}, r"canaries must be in \[0, 1\], got 2"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("attack", "rmia", **parameters)


def test_rmia_asks_for_its_references() -> None:
    attack = registry.create("attack", "rmia", shadows=2)
    assert attack.references_needed == 2
    assert attack.game == "membership"
