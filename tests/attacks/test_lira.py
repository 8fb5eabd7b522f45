"""LiRA: equal to its formula written out; stronger than the loss attack where difficulty varies."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workbench.attacks.lira import LiraAttack, logit_confidence, offline_scores, online_scores
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.games.membership import MembershipSeen, References
from workbench.interfaces import BoolArray, FloatArray, Record, Subject
from workbench.training.content import settled
from workbench.training.shadows import shadow_memberships

NOTHING = np.random.default_rng(0)


def table_subject(logits: FloatArray) -> Subject:
    """A subject that gives record i, of id str(i), one token with the logit-scaled confidence logits[i]."""
    log_likelihoods = -np.logaddexp(0.0, -logits)

    def token_log_likelihoods(records: Sequence[Record]) -> list[FloatArray]:
        return [log_likelihoods[[int(record.id)]] for record in records]

    return cast(Subject, SimpleNamespace(token_log_likelihoods=token_log_likelihoods))


class Game:
    """Gaussian logits with a difficulty of each record: what LiRA's authors found models to do."""

    def __init__(self, n: int, shadows: int, *, seed: int, gap: float = 1.0, difficulty: float = 3.0) -> None:
        rng = np.random.default_rng(seed)
        self.records = [Record(id=str(i), text="x") for i in range(n)]
        self.members = rng.random(n) < 0.5
        self.included = shadow_memberships(n, shadows, rng)
        hardness = rng.normal(0.0, difficulty, n)
        noise = rng.normal(0.0, 0.5, (shadows + 1, n))
        self.target = hardness + gap * self.members + noise[0]
        self.shadows = hardness + gap * self.included + noise[1:]

    def references(self) -> References:
        return References(subjects=tuple(table_subject(row) for row in self.shadows), included=self.included)

    def seen(self, **changes: Any) -> MembershipSeen:
        given = {"subject": table_subject(self.target), "records": tuple(self.records)}
        return MembershipSeen(**{**given, "references": self.references(), **changes})

    def scores(self, **parameters: Any) -> FloatArray:
        return LiraAttack(shadows=len(self.shadows), **parameters).score(self.seen(), NOTHING).values


def auc(scores: FloatArray, members: BoolArray) -> float:
    wins = stats.mannwhitneyu(scores[members], scores[~members]).statistic
    return float(wins) / (int(members.sum()) * int((~members).sum()))


def tpr_at(scores: FloatArray, members: BoolArray, fpr: float) -> float:
    return float(np.mean(scores[members] > np.quantile(scores[~members], 1 - fpr)))


def naive(game: Game, mode: str, *, own: bool) -> FloatArray:
    """The paper's algorithms, one candidate at a time."""
    sides = [
        (game.shadows[game.included[:, i], i], game.shadows[~game.included[:, i], i])
        for i in range(len(game.records))
    ]
    kept = [side for pair in sides for side in (pair if mode == "online" else pair[1:])]
    pooled = np.sqrt(
        sum(float(np.sum((side - side.mean()) ** 2)) for side in kept) / sum(len(side) - 1 for side in kept)
    )
    values = []
    for logit, (inside, outside) in zip(game.target, sides, strict=True):
        deviation_in, deviation_out = (inside.std(ddof=1), outside.std(ddof=1)) if own else (pooled, pooled)
        if mode == "offline":
            values.append((logit - outside.mean()) / deviation_out)
        else:
            values.append(
                stats.norm.logpdf(logit, inside.mean(), deviation_in)
                - stats.norm.logpdf(logit, outside.mean(), deviation_out)
            )
    return np.array(values)


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("variance", ["fixed", "per_example"])
def test_scores_equal_the_formula_written_out(mode: str, variance: str) -> None:
    game = Game(30, 10, seed=0)
    expected = naive(game, mode, own=variance == "per_example")
    assert game.scores(mode=mode, variance=variance) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_auto_variance_is_fixed_below_64_shadows() -> None:
    few, many = Game(10, 62, seed=1), Game(10, 64, seed=1)
    assert np.array_equal(few.scores(), few.scores(variance="fixed"))
    assert np.array_equal(many.scores(), many.scores(variance="per_example"))


@given(st.floats(-700.0, -1e-6))
def test_logit_confidence_inverts_the_sigmoid(log_probability: float) -> None:
    logit = logit_confidence(np.array([log_probability]))
    assert -np.logaddexp(0.0, -logit) == pytest.approx([log_probability], rel=1e-9)


def test_logit_confidence_is_finite_and_increasing_to_the_end() -> None:
    log_probability = np.array([-1e4, -10.0, -1e-3, -1e-7, -1e-12, 0.0])
    logits = logit_confidence(log_probability)
    assert np.isfinite(logits).all()
    assert np.all(np.diff(logits) >= 0)
    assert logits[0] == pytest.approx(-1e4)
    assert logits[-1] == pytest.approx(24 * np.log(2), rel=1e-6)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_lira_beats_the_loss_attack_where_records_differ_in_difficulty(mode: str) -> None:
    """Means over ten games of 1,000 records; the gap is above 0.1 in truth, some ten standard errors."""
    gains = []
    for seed in range(10):
        game = Game(1000, 16, seed=seed, gap=1.5)
        loss = registry.create("attack", "loss")
        plain = loss.score(game.seen(references=References()), NOTHING).values
        gains.append(tpr_at(game.scores(mode=mode), game.members, 0.01) - tpr_at(plain, game.members, 0.01))
    assert np.mean(gains) > 0.1


@pytest.mark.slow
def test_online_sees_differences_of_gap_that_offline_cannot() -> None:
    """Only a quarter of the records leave a trace; the online ratio leaves the others near zero.

    Mean over ten games: 0.025 in truth, standard error 0.004.
    """
    differences = []
    for seed in range(10):
        game = Game(1000, 32, seed=seed, gap=0.0)
        trace = np.where(np.arange(1000) < 250, 1.5, 0.0)
        game.target += trace * game.members
        game.shadows += trace * game.included
        online, offline = game.scores(mode="online"), game.scores(mode="offline")
        differences.append(tpr_at(online, game.members, 0.01) - tpr_at(offline, game.members, 0.01))
    assert np.mean(differences) > 0.0


@pytest.mark.parametrize("parameters", [{}, {"mode": "offline"}, {"variance": "per_example"}])
def test_no_trace_gives_no_advantage(parameters: dict[str, Any]) -> None:
    """Two-sided Mann-Whitney test at 0.001 over 2,000 records: the false-alarm rate of this test."""
    game = Game(2000, 8, seed=3, gap=0.0)
    scores = game.scores(**parameters)
    assert stats.mannwhitneyu(scores[game.members], scores[~game.members]).pvalue > 0.001


@pytest.mark.parametrize("parameters", [{}, {"mode": "offline"}, {"variance": "per_example"}])
def test_members_score_higher(parameters: dict[str, Any]) -> None:
    """The negative control of the test above."""
    game = Game(300, 8, seed=4, gap=1.5)
    assert auc(game.scores(**parameters), game.members) > 0.75


def test_order_of_candidates_and_of_shadows_does_not_matter() -> None:
    game, rng = Game(40, 8, seed=5), np.random.default_rng(0)
    expected = game.scores()
    rows, columns = rng.permutation(8), rng.permutation(40)
    game.records = [game.records[i] for i in columns]
    game.shadows, game.included = game.shadows[rows], game.included[rows][:, columns]
    assert game.scores() == pytest.approx(expected[columns], rel=1e-9)


@pytest.mark.parametrize("variance", ["fixed", "per_example"])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_shadows_without_spread_give_finite_scores(mode: str, variance: str) -> None:
    game = Game(50, 8, seed=6)
    game.shadows = np.where(game.included, 1.0, 0.0)
    game.target = game.members.astype(float)
    scores = game.scores(mode=mode, variance=variance)
    assert np.isfinite(scores).all()
    assert auc(scores, game.members) == 1.0


def test_candidate_on_one_side_only_gets_the_common_gap() -> None:
    shadows = np.array([[1.0, 2.0, 5.0], [1.2, 2.2, 5.2], [0.0, 0.0, 5.0], [0.2, 0.2, 5.2]])
    included = np.array([[True, True, True], [True, True, True], [False, False, True], [False, False, True]])
    # The gaps are 1 and 2, so the third candidate's out mean is 5.1 - 1.5; between the means the ratio is 0.
    target = np.array([0.6, 1.1, 5.1 - 0.75])
    for own in (False, True):
        scores = online_scores(target, shadows, included, per_example_variance=own)
        assert scores[:2] == pytest.approx([0.0, 0.0], abs=1e-9)
    fixed = online_scores(target, shadows, included, per_example_variance=False)
    assert fixed[2] == pytest.approx(0.0, abs=1e-9)
    mirrored = online_scores(-target, -shadows, ~included, per_example_variance=False)
    assert mirrored == pytest.approx(-fixed, abs=1e-9)
    offline = offline_scores(target, shadows, included, per_example_variance=False)
    deviation = np.sqrt(2 * (2 * 0.1**2) / 2)
    assert offline[2] == pytest.approx((target[2] - 0.1) / deviation)


def test_too_few_references_are_refused() -> None:
    shadows, target = np.zeros((2, 3)), np.zeros(3)
    both = np.array([[True] * 3, [False] * 3])
    with pytest.raises(InputError, match="two references on one side, got none: add shadows"):
        online_scores(target, shadows, both, per_example_variance=False)
    with pytest.raises(InputError, match="references both in and out, got none"):
        online_scores(target, shadows, np.ones((2, 3), dtype=bool), per_example_variance=False)
    with pytest.raises(InputError, match="two references on one side, got none"):
        offline_scores(target, shadows, both, per_example_variance=False)


def test_references_must_match_the_candidates() -> None:
    game = Game(5, 4, seed=0)
    attack = LiraAttack(shadows=4)
    wrong = References(subjects=game.references().subjects, included=game.included[:, :4])
    with pytest.raises(InputError, match="included must have shape \\(4, 5\\), got \\(4, 4\\)"):
        attack.score(game.seen(references=wrong), NOTHING)
    nobody = References(included=np.zeros((0, 5), dtype=bool))
    with pytest.raises(InputError, match="lira needs at least 2 references, got 0"):
        attack.score(game.seen(references=nobody), NOTHING)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"shadows": 3}, "shadows must be a whole number >= 4, got 3"),
        ({"shadows": 4.5}, "shadows must be a whole number >= 4, got 4.5"),
        ({"ending_marker": 5}, "ending_marker must be text, got 5"),
        ({"queries": 0}, "queries must be a whole number >= 1, got 0"),
        ({"mode": "on-line"}, "unknown mode 'on-line'; did you mean 'online'"),
        ({"variance": "fix"}, "unknown variance 'fix'; did you mean 'fixed'"),
        ({"canaries": -0.1}, "canaries must be in \\[0, 1\\], got -0.1"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("attack", "lira", **parameters)


def row_subject(logits: FloatArray) -> Subject:
    """A subject that gives record i, of id str(i), the tokens of row i."""
    log_likelihoods = -np.logaddexp(0.0, -logits)

    def token_log_likelihoods(records: Sequence[Record]) -> list[FloatArray]:
        return [log_likelihoods[int(record.id)] for record in records]

    return cast(Subject, SimpleNamespace(token_log_likelihoods=token_log_likelihoods))


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_several_queries_of_a_text_are_the_mean_over_its_parts(mode: str) -> None:
    """Four tokens in two parts; each part is scored alone, with the shadows' same part."""
    game, rng = Game(30, 8, seed=0), np.random.default_rng(1)
    tables = [rng.normal(size=(30, 4)) for _ in range(9)]
    references = References(subjects=tuple(map(row_subject, tables[1:])), included=game.included)
    seen = game.seen(subject=row_subject(tables[0]), references=references)
    halves = []
    for part in (slice(0, 2), slice(2, 4)):
        target, *shadows = [
            logit_confidence((-np.logaddexp(0.0, -table[:, part])).mean(axis=1)) for table in tables
        ]
        score = online_scores if mode == "online" else offline_scores
        halves.append(score(target, np.array(shadows), game.included, per_example_variance=False))
    found = LiraAttack(shadows=8, mode=mode, queries=2).score(seen, NOTHING).values
    assert found == pytest.approx(np.mean(halves, axis=0))
    with pytest.raises(InputError, match="queries must be at most the scored tokens of each record, got 5"):
        LiraAttack(shadows=8, queries=5).score(seen, NOTHING)


def test_queries_of_an_image_are_its_moves() -> None:
    """A model that is sure where the first pixel is bright; the copies move it away."""
    game = Game(6, 8, seed=2)
    records = tuple(Record(id=str(i), image=(0.1 * i, 0.0, 0.0, 0.0), label=0) for i in range(6))

    def subject(logits: FloatArray) -> Subject:
        def token_log_likelihoods(asked: Sequence[Record]) -> list[FloatArray]:
            bright = [sum(record.image or ()) + (record.image or (0.0,))[0] for record in asked]
            values = [logits[int(r.id)] + b for r, b in zip(asked, bright, strict=True)]
            return [-np.logaddexp(0.0, -np.array([value])) for value in values]

        return cast(Subject, SimpleNamespace(token_log_likelihoods=token_log_likelihoods))

    references = References(subjects=tuple(map(subject, game.shadows)), included=game.included)
    seen = game.seen(subject=subject(game.target), records=records, references=references)
    alone, twice = (LiraAttack(shadows=8, queries=queries).score(seen, NOTHING).values for queries in (1, 2))
    assert twice == pytest.approx(alone, rel=1e-6, abs=1e-6)  # A move shifts target and shadows alike.
    with pytest.raises(InputError, match="queries must be at most 9 for images, got 10"):
        LiraAttack(shadows=8, queries=10).score(seen, NOTHING)


def test_lira_asks_for_its_shadows() -> None:
    attack = registry.create("attack", "lira", shadows=12)
    assert attack.references_needed == 12
    assert attack.game == "membership"


def test_queries_joined_later_and_leave_the_old_keys_as_they_were() -> None:
    assert "queries" not in settled("attack", "lira", {"shadows": 8})
    assert settled("attack", "lira", {"queries": 4})["queries"] == 4
