"""The blind classifier: exact under exchangeable labels, awake to a shift, right against naive twins."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.blind_auc import auc_interval, blind_auc
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from workbench.core.errors import InputError
from workbench.estimation import blind
from workbench.estimation.blind import blind_p_value
from workbench.interfaces import BoolArray

VOCABULARY = [f"word{i}" for i in range(2000)]
ZIPF = 1 / np.arange(1, 2001)


def some_texts(n: int, generator: np.random.Generator, length: int = 40) -> list[str]:
    shares = ZIPF / ZIPF.sum()
    return [" ".join(VOCABULARY[k] for k in generator.choice(2000, length, p=shares)) for _ in range(n)]


def half(n: int, generator: np.random.Generator) -> BoolArray:
    return generator.permutation(np.arange(n) < n // 2)


def within(count: int, repetitions: int, probability: float) -> bool:
    """At most `probability` in truth passes with probability at least 0.9987 (three standard errors)."""
    return bool(count <= stats.binom.ppf(stats.norm.cdf(3.0), repetitions, probability))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "numbers", "clustered text"])
def test_false_alarms_stay_within_the_stated_rate(kind: str) -> None:
    """1,000 games with fair coins; false-alarm rate of this test: 0.0013 a level and kind."""
    rng = np.random.default_rng(5)
    repetitions, n = 1000, 40
    p_values = np.empty(repetitions)
    for repetition in range(repetitions):
        if kind == "numbers":
            data: list[str] | np.ndarray = rng.standard_t(2, size=(n, 12))
        else:
            data = some_texts(n, rng, length=10)
            if kind == "clustered text":
                data = [data[i // 4] for i in range(n)]
        p_values[repetition] = blind_p_value(data, rng.random(n) < 0.5, generator=rng, relabellings=99)
    for level in (0.05, 0.1, 0.2, 0.5):
        assert within(int(np.sum(p_values <= level)), repetitions, level)


@pytest.mark.slow
def test_two_stages_keep_the_rate_where_the_second_decides() -> None:
    """False-alarm rate of this test: 0.0013 a level; the stages are shortened to be cheap."""
    rng = np.random.default_rng(6)
    data = rng.normal(size=(30, 3))
    original = blind.FIRST_RELABELLINGS, blind.DOUBTFUL
    blind.FIRST_RELABELLINGS, blind.DOUBTFUL = 19, 0.3
    try:
        p_values = np.array(
            [blind_p_value(data, half(30, rng), generator=rng, relabellings=99) for _ in range(1000)]
        )
    finally:
        blind.FIRST_RELABELLINGS, blind.DOUBTFUL = original
    for level in (0.01, 0.05, 0.2, 0.4):
        assert within(int(np.sum(p_values <= level)), 1000, level)


@pytest.mark.parametrize("seed", range(5))
def test_a_word_in_a_third_of_the_member_texts_is_noticed(seed: int) -> None:
    """The negative control of the tests above: a real shift at n = 200."""
    rng = np.random.default_rng(seed)
    members = half(200, rng)
    shifted = [
        text + " zebra" if member and rng.random() < 0.3 else text
        for text, member in zip(some_texts(200, rng), members, strict=True)
    ]
    assert blind_p_value(shifted, members, generator=rng) < 0.001


def test_a_slight_shift_of_many_words_is_noticed() -> None:
    rng = np.random.default_rng(1)
    members = half(300, rng)
    tilted = ZIPF * np.where(np.arange(2000) % 2 == 0, 1.5, 1.0)
    shares = [ZIPF / ZIPF.sum(), tilted / tilted.sum()]
    texts = [" ".join(VOCABULARY[k] for k in rng.choice(2000, 60, p=shares[int(m)])) for m in members]
    assert blind_p_value(texts, members, generator=rng) < 0.001
    interval = blind_auc(texts, members, confidence=0.95, generator=rng)
    assert interval.lower > 0.55


@pytest.mark.parametrize(
    ("member_text", "other_text"),
    [
        ("完全な記録です。", "完全な記錄です。"),
        ("a  b", "a b"),
        ("dose: 5", "dose; 5"),
        ("short", "short " * 3),
    ],
)
def test_what_words_alone_miss_is_noticed(member_text: str, other_text: str) -> None:
    """Scripts without spaces, spacing, punctuation and length."""
    rng = np.random.default_rng(2)
    members = half(80, rng)
    texts = [
        base + " " + (member_text if member else other_text)
        for base, member in zip(some_texts(80, rng, length=5), members, strict=True)
    ]
    assert blind_p_value(texts, members, generator=rng) < 0.001


def test_brighter_member_images_are_noticed_and_equal_ones_are_not() -> None:
    rng = np.random.default_rng(3)
    members = half(200, rng)
    images = rng.random((200, 64))
    assert blind_p_value(images, members, generator=rng) > 0.001
    assert blind_p_value(images + 0.05 * members[:, None], members, generator=rng) < 0.001


def test_leave_one_out_scores_equal_retraining_without_each_record() -> None:
    rng = np.random.default_rng(4)
    features = rng.normal(size=(25, 40)).astype(np.float32)
    labels = rng.normal(size=25)
    penalty = blind.ridge_penalty(features)
    fast = blind._leave_one_out_matrix(features) @ labels
    for i in range(25):
        others = np.arange(25) != i
        twin = Ridge(alpha=penalty, fit_intercept=False).fit(features[others], labels[others])
        assert fast[i] == pytest.approx(float(twin.predict(features[i : i + 1])[0]), abs=1e-4)


def test_combined_p_value_equals_its_definition() -> None:
    rng = np.random.default_rng(8)
    statistics = rng.integers(0, 30, size=(2, 60)).astype(float)
    ranks = np.array([[np.sum(row >= value) for value in row] for row in statistics])
    smallest = ranks.min(axis=0)
    assert blind._combined_p_value(statistics) == np.mean([s <= smallest[0] for s in smallest])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=4, max_size=12), st.integers(0, 2**32 - 1))
def test_any_text_gives_a_probability(texts: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    p_value = blind_p_value(texts, rng.random(len(texts)) < 0.5, generator=rng, relabellings=19)
    assert 0.05 <= p_value <= 1.0


def test_auc_interval_covers_the_auc_of_useless_scores() -> None:
    """Useless scores have AUC 1/2 in truth; false-alarm rate of this test: 0.0013."""
    rng = np.random.default_rng(9)
    missed = 0
    for _ in range(600):
        data = rng.normal(size=(80, 4))
        interval = blind_auc(data, rng.random(80) < 0.5, confidence=0.9, generator=rng)
        missed += not interval.lower <= 0.5 <= interval.upper
    assert within(missed, 600, 0.1)


def test_auc_estimate_equals_scikit_learn() -> None:
    rng = np.random.default_rng(10)
    scores, labels = rng.integers(0, 10, size=100).astype(float), rng.random(100) < 0.4
    estimate, lower, upper = auc_interval(scores, labels, 0.95)
    assert estimate == pytest.approx(roc_auc_score(labels, scores))
    assert lower < estimate < upper


def test_degenerate_games_raise_no_alarm() -> None:
    rng = np.random.default_rng(0)
    same = ["the same text"] * 20
    assert blind_p_value(same, half(20, rng), generator=rng) == 1.0
    assert blind_p_value(some_texts(20, rng), np.ones(20, dtype=bool), generator=rng) == 1.0
    assert blind_p_value(np.ones((20, 3)), half(20, rng), generator=rng) == 1.0
    interval = blind_auc(same, np.zeros(20, dtype=bool), confidence=0.95, generator=rng)
    assert (interval.lower, interval.upper) == (0.0, 1.0)


def test_same_generator_same_answer_and_labels_swapped_same_evidence() -> None:
    texts = some_texts(60, np.random.default_rng(1))
    members = half(60, np.random.default_rng(2))
    first = blind_p_value(texts, members, generator=np.random.default_rng(3))
    assert first == blind_p_value(texts, members, generator=np.random.default_rng(3))
    assert first == pytest.approx(
        blind_p_value(texts, ~members, generator=np.random.default_rng(3)), abs=1e-6
    )


def test_large_samples_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blind, "MAX_RECORDS", 100)
    rng = np.random.default_rng(0)
    members = half(1000, rng)
    shifted = rng.normal(size=(1000, 3)) + members[:, None]
    assert blind_p_value(shifted, members, generator=rng) < 0.001


def test_five_hundred_texts_are_quick() -> None:
    """Half a second on an idle core; the limit leaves room for a busy machine (processor time)."""
    rng = np.random.default_rng(0)
    texts = some_texts(500, rng, length=100)
    started = time.process_time()
    blind_p_value(texts, half(500, rng), generator=rng)
    assert time.process_time() - started < 2.5


@pytest.mark.parametrize(
    ("data", "members", "message"),
    [
        (["a", "b"], np.array([True]), "data and members must have the same length, got 2 and 1"),
        (["a", "b"], np.array([0, 1]), "members must be a vector of booleans, got int64"),
        (np.array([[1.0], [np.nan]]), np.array([True, False]), "numeric data must be finite"),
        (np.array([1.0, 2.0]), np.array([True, False]), "of shape \\(n, d\\), got shape \\(2,\\)"),
    ],
)
def test_bad_input_is_named(data: list[str] | np.ndarray, members: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        blind_p_value(data, members, generator=np.random.default_rng(0))


def test_bad_numbers_are_named() -> None:
    members = np.array([True, False])
    with pytest.raises(InputError, match="relabellings must be at least 1, got 0"):
        blind_p_value(["a", "b"], members, generator=np.random.default_rng(0), relabellings=0)
    with pytest.raises(InputError, match="confidence must be in"):
        blind_auc(["a", "b"], members, confidence=1.0, generator=np.random.default_rng(0))
