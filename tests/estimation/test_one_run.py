"""Guess counting against naive enumeration, and the one-run bound against hostile mechanisms."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from workbench.core.errors import InputError
from workbench.estimation.one_run import (
    DeltaStage,
    GuessSets,
    clopper_pearson_all,
    coin_sample_size,
    crossing_probability,
    epsilon_from_path,
    guess_probabilities,
    guess_sets,
    one_run,
    ranked_labels,
    stages_if_independent,
    stages_in_one_run,
)
from workbench.interfaces import Family, Trials

SETS = GuessSets(ins=(1, 2, 4), outs=(2, 2, 5), prior=0.5)
LOPSIDED = GuessSets(ins=(1, 2, 4), outs=(2, 2, 5), prior=0.3)
NO_DELTA = (DeltaStage(from_epsilon=0.0, shift=0, weights=(1.0,), price=0.0),)


def naive_crossing(sets, epsilon, boundaries):
    """Sums over every vector of right and wrong guesses."""
    p_in, p_out = guess_probabilities(epsilon, sets.prior)
    total = 0.0
    for right in itertools.product((0, 1), repeat=sets.ins[-1] + sets.outs[-1]):
        ins, outs = right[: sets.ins[-1]], right[sets.ins[-1] :]
        counts = [sum(ins[:i]) + sum(outs[:o]) for i, o in zip(sets.ins, sets.outs, strict=True)]
        if any(count >= boundary for count, boundary in zip(counts, boundaries, strict=True)):
            hits, misses = sum(ins), sum(outs)
            total += (
                p_in**hits
                * (1 - p_in) ** (len(ins) - hits)
                * p_out**misses
                * (1 - p_out) ** (len(outs) - misses)
            )
    return total


@pytest.mark.parametrize("sets", [SETS, LOPSIDED], ids=["fair", "lopsided"])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.5])
@pytest.mark.parametrize("boundaries", [(3, 4, 7), (4, 4, 9), (4, 5, 10), (2, 3, 9), (0, 5, 9)])
def test_crossing_probability_equals_enumeration(sets, epsilon, boundaries):
    fast = crossing_probability(sets, epsilon, np.asarray(boundaries))
    assert fast == pytest.approx(naive_crossing(sets, epsilon, boundaries), abs=1e-10)


def test_crossing_probability_of_large_sets_equals_the_binomial_tail():
    sets = GuessSets(ins=(30_000,), outs=(20_000,), prior=0.5)
    p, _ = guess_probabilities(1.0, 0.5)
    for boundary in (36_500, 36_800, 37_000):
        assert crossing_probability(sets, 1.0, np.asarray([boundary])) == pytest.approx(
            binom.sf(boundary - 1, 50_000, p), rel=1e-6
        )


def test_crossing_probability_rises_with_epsilon():
    values = [crossing_probability(SETS, epsilon, np.asarray((3, 4, 8))) for epsilon in np.linspace(0, 5, 50)]
    assert np.all(np.diff(values) > 0)


@pytest.mark.parametrize("sets", [SETS, LOPSIDED], ids=["fair", "lopsided"])
def test_boundaries_are_the_smallest_counts_that_reach_the_statistic(sets):
    for statistic in (0.05, 0.4, 1.0, 5.0):
        for g, size in enumerate(sets.sizes.astype(int)):
            counts = np.zeros(3, dtype=np.int64)
            reached = []
            for count in range(size + 1):
                counts[g] = count
                reached.append(sets.epsilons(counts, 0.3)[g] >= statistic)
            assert sets.boundaries(statistic, 0.3)[g] == (reached.index(True) if any(reached) else size + 1)


def test_a_single_set_gives_the_clopper_pearson_bound():
    sets = GuessSets(ins=(50,), outs=(50,), prior=0.5)
    for correct in (60, 75, 90, 100):
        # The p with P[Binomial(100, p) >= correct] = 0.05, by bisection on the tail itself.
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if binom.sf(correct - 1, 100, middle) <= 0.05 else (low, middle)
        expected = max(0.0, math.log(low / (1 - low)))
        assert expected - 0.07 <= epsilon_from_path(sets, np.asarray([correct]), NO_DELTA, 0.05) <= expected


@pytest.mark.parametrize("prior", [0.5, 0.3])
def test_error_is_at_most_the_significance_by_exact_enumeration(prior):
    """Randomised response, 6 candidates, confidence 1/2: sums over all labels and answers; no simulation."""
    epsilon, n = 1.2, 6
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    failed, bounded = 0.0, 0.0
    for members in itertools.product((False, True), repeat=n):
        if len(set(members)) < 2:
            continue
        weight = prior ** sum(members) * (1 - prior) ** (n - sum(members))
        for lies in itertools.product((False, True), repeat=n):
            answers = np.asarray(members) ^ np.asarray(lies)
            if answers.all() or not answers.any():
                continue
            chance = weight * truthful ** (n - sum(lies)) * (1 - truthful) ** sum(lies)
            lower = one_run(
                answers.astype(float),
                np.asarray(members),
                delta=0.0,
                confidence=0.5,
                prior=prior,
                sides={"both": 1.0},
            ).lower
            failed += chance * (lower > epsilon)
            bounded += chance * (lower > 0)
    assert failed <= 0.5
    assert bounded > 0.02  # the bound says something


def betray(n, chance, generator):
    """A (0, chance)-DP release: with that chance it tells every label, else nothing."""
    members = generator.random(n) < 0.5
    noise = generator.normal(size=n)
    return (members * 1.0 + 1e-3 * noise if generator.random() < chance else noise), members


@pytest.mark.slow
def test_delta_is_paid_for_against_a_mechanism_that_betrays_everybody_at_once():
    """True epsilon 0 at delta 0.15. Error at most 0.1; one that ignores delta errs in at least 0.15."""
    generator = np.random.default_rng(3)
    paid = unpaid = 0
    for _ in range(600):
        scores, members = betray(200, 0.15, generator)
        paid += one_run(scores, members, delta=0.15, confidence=0.9).lower > 0
        unpaid += one_run(scores, members, delta=0.0, confidence=0.9).lower > 0
    assert paid / 600 <= 0.1 + 3 * math.sqrt(0.09 / 600)
    assert unpaid / 600 > 0.1 + 3 * math.sqrt(0.09 / 600)


@pytest.mark.slow
def test_delta_is_paid_for_against_a_mechanism_that_betrays_a_share():
    """With chance 0.08 a twentieth of 1,000 labels is told: (0, 0.004)-DP. Ignoring delta, 95 % fails."""
    generator = np.random.default_rng(4)
    paid = unpaid = 0
    for _ in range(600):
        members = generator.random(1000) < 0.5
        scores = generator.normal(size=1000)
        if generator.random() < 0.08:
            told = generator.permutation(1000)[:50]
            scores[told] = np.where(members[told], 10.0, -10.0) + 1e-3 * scores[told]
        paid += one_run(scores, members, delta=0.004, confidence=0.95).lower > 0
        unpaid += one_run(scores, members, delta=0.0, confidence=0.95).lower > 0
    assert paid / 600 <= 0.05 + 3 * math.sqrt(0.0475 / 600)
    assert unpaid / 600 > 0.05 + 3 * math.sqrt(0.0475 / 600)


@pytest.mark.slow
def test_dependent_scores_keep_the_error_of_the_one_run_bound():
    """Scores share one random sign and one random scale; each label is told by randomised response."""
    generator = np.random.default_rng(5)
    above = 0
    for _ in range(1000):
        members = generator.random(200) < 0.5
        answers = members ^ (generator.random(200) > math.e / (math.e + 1))
        scale = math.exp(generator.normal())
        scores = scale * np.where(answers, 1.0, -1.0) + generator.normal()
        above += one_run(scores, members, delta=1e-5, confidence=0.95).lower > 1.0
    assert above / 1000 <= 0.05 + 3 * math.sqrt(0.0475 / 1000)


@pytest.mark.slow
@pytest.mark.parametrize("prior", [0.1, 0.8])
def test_a_prior_other_than_one_half_keeps_the_error_and_the_power(prior):
    """1,000 repetitions of randomised response at epsilon 1; the bound must also exceed half the truth."""
    generator = np.random.default_rng(6)
    lower = []
    for _ in range(1000):
        members = generator.random(1000) < prior
        answers = members ^ (generator.random(1000) > math.e / (math.e + 1))
        lower.append(one_run(answers * 1.0, members, delta=1e-5, confidence=0.95, prior=prior).lower)
    assert np.mean(np.asarray(lower) > 1.0) <= 0.05 + 3 * math.sqrt(0.0475 / 1000)
    assert np.mean(lower) > 0.5


def test_a_wrong_prior_is_caught_by_the_same_check():
    generator = np.random.default_rng(7)
    above = 0
    for _ in range(200):
        members = generator.random(1000) < 0.8
        above += (
            one_run(generator.normal(size=1000), members, delta=1e-5, confidence=0.95, prior=0.5).lower > 0
        )
    assert above / 200 > 0.5


def test_ties_are_not_broken_by_the_place_in_the_file():
    """Members come first and all scores but a few are equal: nothing is known, so nothing may be claimed."""
    members = np.arange(1000) < 500
    scores = np.zeros(1000)
    scores[::100] = 1e-9
    assert one_run(scores, members, delta=1e-5, confidence=0.95).lower == 0.0
    ranked = ranked_labels(scores, members, np.random.default_rng(0))
    assert 80 < ranked[:200].sum() < 120


def test_stages_cover_all_epsilons_and_cost_at_most_a_fifth():
    for n in (100, 1000, 10_000, 1_000_000):
        for side in ("both", "top", "bottom"):
            stages = stages_in_one_run(n, 1e-5, 0.5, side, 0.03)
            assert stages[0].from_epsilon == 0.0
            assert all(a.from_epsilon < b.from_epsilon for a, b in itertools.pairwise(stages))
            assert all(a.shift > b.shift for a, b in itertools.pairwise(stages))
            assert stages[-1].shift == 0
            assert all(stage.price <= 0.2 * 0.03 * (1 + 1e-6) for stage in stages)


@pytest.mark.parametrize(("n", "delta"), [(2, 0.9), (3, 0.5), (100, 1e-3), (1000, 1e-5), (100_000, 1e-5)])
def test_independent_weights_are_the_binomial_ones(n, delta):
    (stage,) = stages_if_independent(n, delta, 0.05)
    left_out = binom.sf(stage.shift + len(stage.weights) - 1, n, delta)
    assert left_out <= stage.price + 1e-12 <= 0.01 * 0.05 + 2e-12
    if stage.shift == 0:
        assert stage.weights == pytest.approx(binom.pmf(np.arange(len(stage.weights)), n, delta), abs=1e-9)


def test_independent_trials_pay_less_for_delta():
    generator = np.random.default_rng(8)
    members = generator.random(100_000) < 0.5
    scores = generator.normal(size=100_000) + members
    one, many = (
        one_run(scores, members, delta=1e-5, confidence=0.95, trials=trials)
        for trials in (Trials.ONE_RUN, Trials.INDEPENDENT)
    )
    assert 2.4 < one.lower < many.lower < 4.38
    assert (one.trials, many.trials, one.family) == (Trials.ONE_RUN, Trials.INDEPENDENT, Family.ANY)


def test_many_equally_good_guesses_show_nearly_all_of_their_epsilon():
    lower = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        members, right = generator.random(100_000) < 0.5, generator.random(100_000) < 1 / (1 + math.exp(-1))
        scores = np.where(right, members, ~members) + 1e-3 * generator.random(100_000)
        lower.append(one_run(scores, members, delta=0.0, confidence=0.95).lower)
    assert 0.96 < np.mean(lower) < 1.0


@pytest.mark.slow
def test_a_hundred_thousand_guesses_show_nearly_all_of_randomised_response():
    """More than 4 of 20 bounds above the truth have a chance of 0.3 % where each has one of 5 %."""
    generator, lower = np.random.default_rng(12), []
    for _ in range(20):
        members = generator.random(100_000) < 0.5
        honest = generator.random(100_000) < math.e / (math.e + 1.0)
        scores = np.where(honest, members, ~members).astype(float)
        lower.append(one_run(scores, members, delta=1e-5, confidence=0.95, generator=generator).lower)
    assert np.mean(lower) >= 0.97
    assert np.sum(np.asarray(lower) > 1.0) <= 4


def test_guess_sets_are_nested_and_end_at_half():
    for n in (2, 3, 10, 100, 12_345):
        sets = guess_sets(n, 0.5, "both")
        assert sets.ins == sets.outs
        assert all(a < b for a, b in itertools.pairwise(sets.ins))
        assert sets.ins[-1] == n // 2
    assert set(guess_sets(100, 0.5, "top").outs) == {0}
    assert set(guess_sets(100, 0.5, "bottom").ins) == {0}


@pytest.mark.parametrize(("inside", "outside"), [(50, 50), (500, 500), (500, 420), (30, 900), (5000, 5000)])
def test_coin_sample_seldom_runs_out(inside, outside):
    size, prior = coin_sample_size(inside, outside)
    assert binom.sf(inside, size, prior) + binom.sf(outside, size, 1 - prior) <= 0.002 + 1e-9
    assert size > 0.5 * min(inside / prior, outside / (1 - prior))


def test_all_thresholds_finds_a_leak_that_only_few_members_show():
    """One member in ten scores far above everybody: no bulk threshold sees it."""
    generator = np.random.default_rng(9)
    members = np.arange(2000) < 1000
    lower = []
    for _ in range(10):
        scores = generator.normal(size=2000) + 8.0 * (members & (generator.random(2000) < 0.1))
        lower.append(
            clopper_pearson_all(scores, members, delta=1e-5, confidence=0.95, generator=generator).lower
        )
    assert np.mean(lower) > 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.r_[np.nan, np.zeros(9)]}, "scores must be finite"),
        ({"scores": np.ones(10)}, "scores must not be constant"),
        ({"scores": np.ones((5, 2))}, "scores must have shape"),
        ({"members": np.ones(10, dtype=bool)}, "members must hold both classes"),
        ({"members": np.ones(9, dtype=bool)}, "members must have the shape"),
        ({"members": np.arange(10)}, "members must be boolean"),
        ({"delta": 1.0}, r"delta must be in \[0, 1\), got 1.0"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
        ({"prior": 0.0}, r"prior must be in \(0, 1\), got 0.0"),
        ({"sides": {"left": 1.0}}, "sides must map"),
        ({"sides": {"both": 0.8, "top": 0.8}}, "sides must share at most 1, got 1.6"),
    ],
)
def test_unusable_input_is_named(change, message):
    arguments = {
        "scores": np.arange(10.0),
        "members": np.arange(10) < 5,
        "delta": 1e-5,
        "confidence": 0.95,
        "prior": 0.5,
    } | change
    scores, members = arguments.pop("scores"), arguments.pop("members")
    with pytest.raises(InputError, match=message):
        one_run(scores, members, **arguments)


def test_one_score_for_everybody_shows_nothing() -> None:
    """However the coins of the resampling fall; a score that tells is the control."""
    members = np.arange(200) < 100
    for seed in range(20):
        rest = {"delta": 1e-5, "confidence": 0.5, "generator": np.random.default_rng(seed)}
        assert clopper_pearson_all(np.full(200, -0.1), members, **rest).lower == 0.0
        assert clopper_pearson_all(members.astype(float), members, **rest).lower > 1.0
