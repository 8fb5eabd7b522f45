"""An AUC below one half is said out loud: when, in which words, and how often by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.core.errors import InputError
from workbench.estimation import auc, auc_below_half, records_below_half, runs_below_half
from workbench.interfaces import BoolArray, FloatArray


def remark(scores: FloatArray, members: BoolArray, confidence: float = 0.95) -> str | None:
    """The remark on a game."""
    found = auc(scores, members, confidence=confidence)
    return auc_below_half(found.estimate, found.lower, found.upper, confidence=confidence)


def normal_game(seed: int, shift: float, n: int = 200) -> tuple[FloatArray, BoolArray]:
    """Half of the records are members; their scores are `shift` higher."""
    members = np.arange(n) < n // 2
    return np.random.default_rng(seed).normal(size=n) + shift * members, members


def test_a_flipped_score_is_told_with_the_area_of_its_mirror() -> None:
    scores, members = normal_game(0, -1.5)
    told = remark(scores, members)
    assert told is not None
    found = auc(-scores, members, confidence=0.95)
    assert f"the flipped score has AUC {found.estimate:.3f} [" in told
    assert f"[{found.lower:.3f} to {found.upper:.3f}]" in told
    for words in ("97.5 %", "one in 40", "broken", "flipped", "does not show privacy"):
        assert words in told
    assert remark(-scores, members) is None


@pytest.mark.parametrize(
    ("area", "ends", "is_told"),
    [
        (0.36, (0.2, 0.5), False),
        (0.36, (0.2, 0.499), True),
        (0.5, (0.4, 0.6), False),
        (0.7, (0.6, 0.8), False),
    ],
)
def test_the_whole_interval_must_lie_below(area: float, ends: tuple[float, float], is_told: bool) -> None:
    assert (auc_below_half(area, *ends) is not None) is is_told


def test_numbers_that_are_none_are_not_told_and_others_refused() -> None:
    assert auc_below_half(math.nan, 0.1, 0.2) is None
    with pytest.raises(InputError, match=r"auc must lie between lower and upper in \[0, 1\], got 0.3 <= 0.2"):
        auc_below_half(0.2, 0.3, 0.4)
    with pytest.raises(InputError, match="confidence must be in"):
        auc_below_half(0.2, 0.1, 0.4, confidence=1.0)


def test_chance_is_told_as_rarely_as_the_remark_says() -> None:
    """Of 1,000 games without a leak 25 are expected; this fails for fewer than 6 or more than 46.

    Each once in 10,000 runs of the test (binomial tails), were the seeds not fixed. Negative control: games
    with a flipped score are nearly all told.
    """
    count = sum(remark(*normal_game(seed, 0.0)) is not None for seed in range(1_000))
    assert 6 <= count <= 46
    assert sum(remark(*normal_game(seed, -1.0)) is not None for seed in range(50)) >= 48


def test_the_widest_distribution_is_told_no_more_often() -> None:
    """Members are tossed to either side of constant non-members: the largest variance that there is.

    The AUC is then a share of coin tosses and Clopper-Pearson's rate below 2.5 % for certain; of 1,000 games
    46 would be passed once in 10,000 runs.
    """
    members, count = np.arange(80) < 40, 0
    for seed in range(1_000):
        tosses = np.random.default_rng(seed).choice([-1.0, 1.0], size=80)
        count += remark(np.where(members, tosses, 0.0), members) is not None
    assert count <= 46


@pytest.mark.parametrize("area", [0.0, 0.2, 0.35, 0.45])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_number_of_records_is_the_smallest_whose_interval_is_below(
    area: float, confidence: float
) -> None:
    """The widest distribution of each area, counted up record by record."""
    needed = records_below_half(area, confidence=confidence)

    def upper(n: int) -> float:
        from scipy.special import betaincinv

        return float(betaincinv(area * n + 1.0, (1.0 - area) * n, (1.0 + confidence) / 2.0))

    assert needed == next(n for n in range(1, 2_000) if upper(n) < 0.5)


def test_so_many_records_of_the_widest_distribution_are_told_and_fewer_are_not() -> None:
    needed = records_below_half(0.4)
    for n, is_told in ((needed + 5, True), (needed - 5, False)):
        above = math.floor(0.4 * n) if is_told else math.ceil(0.4 * n)
        scores = np.concatenate([np.where(np.arange(n) < above, 1.0, -1.0), np.zeros(n)])
        assert (remark(scores, np.arange(2 * n) < n) is not None) is is_told


def test_an_area_that_is_not_below_has_no_number_of_records() -> None:
    for area in (0.5, 0.7, -0.1, math.nan):
        with pytest.raises(InputError, match=r"auc must be in \[0, 0.5\)"):
            records_below_half(area)
    with pytest.raises(InputError, match=r"further below 0\.5"):
        records_below_half(0.5 - 1e-12)


def test_a_study_says_how_many_runs_and_whether_luck_explains_them() -> None:
    quiet = {f"run {seed}": normal_game(seed, 0.0, n=60) for seed in range(40)}
    quiet["slightly flipped"] = normal_game(1, -0.6, n=60)
    told = {name for name, game in quiet.items() if remark(*game) is not None}
    assert "slightly flipped" in told
    (words,) = runs_below_half(quiet)
    assert f"in {len(told)} of 41 runs" in words
    assert "may be luck" in words
    assert "None of them shows privacy" in words
    flipped = {f"flipped {seed}": normal_game(seed, -2.0, n=60) for seed in range(5)}
    (words,) = runs_below_half({**quiet, **flipped})
    assert "5 of them stay below when corrected for 46 runs" in words
    assert "broken" in words
    assert "and 3 more" in words
    assert "flipped" in words.split("(", 1)[1][:20]  # the lowest come first
    above = {name: (-scores, members) for name, (scores, members) in flipped.items()}
    assert runs_below_half(above) == ()


def test_a_study_leaves_out_what_has_no_area() -> None:
    scores, members = normal_game(0, -2.0)
    odd = {
        "one class": (scores, np.ones(200, dtype=bool)),
        "nothing": (np.zeros(0), np.zeros(0, dtype=bool)),
        "diverged": (np.full(200, np.nan), members),
    }
    assert runs_below_half(odd) == ()
    (words,) = runs_below_half({**odd, "flipped": (scores, members)})
    assert "in 1 of 1 runs" in words


@pytest.mark.slow
def test_the_correction_for_many_runs_keeps_its_error() -> None:
    """200 studies of 20 runs without a leak: 5 are expected to be told beyond luck; 15 once in 10,000."""
    count = 0
    for study in range(200):
        runs = {f"{run}": normal_game(1_000 * study + run, 0.0, n=40) for run in range(20)}
        words = runs_below_half(runs)
        count += bool(words) and "may be luck" not in words[0]
    assert count <= 15
