"""The stats layer: the paper's own numbers, degenerate input, and laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn import metrics

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.reports.shared.statistics import (
    Answer,
    Equivalence,
    NotTestable,
    Sample,
    StatisticalTest,
    adjust,
    comparison_by_unit,
    matched,
    mean_interval,
    paired_t,
    pooled_t_as_printed,
    power_of_t,
    spread_within_units,
    tost_paired,
    tost_welch,
    value_of,
    welch_t,
    wilcoxon_as_printed,
)
from workbench.reports.shared.statistics.metrics import MEASURES, coefficient_of_variation, comparison
from workbench.reports.shared.statistics.student import detectable_difference
from workbench.reports.shared.statistics.tests import pooled_t, wilcoxon

Pair = Callable[[Sample, Sample], Any]
TESTS: list[Pair] = [paired_t, welch_t, pooled_t, wilcoxon]
PRINTED: list[Pair] = [pooled_t_as_printed, wilcoxon_as_printed]
OTHERS: list[Pair] = [
    lambda a, b: tost_paired(a, b, margin=0.5),
    lambda a, b: tost_welch(a, b, margin=0.5),
]


def seeds(values: Sequence[float] | FloatArray) -> Sample:
    return Sample(np.array(values, dtype=np.float64), tuple(range(len(values))), "seed")


def answered(answer: Answer) -> StatisticalTest:
    assert isinstance(answer, StatisticalTest), answer
    return answer


def clustered(units: int, cells: int, rng: np.random.Generator) -> Sample:
    values = np.repeat(rng.normal(size=units), cells) + 0.1 * rng.normal(size=units * cells)
    names = tuple(int(unit) for unit in np.repeat(np.arange(units), cells))
    return Sample(values, names, "seed", tuple(range(cells)) * units)


def with_moments(mean: float, sd: float, n: int = 28) -> FloatArray:
    """n values whose mean and SD (ddof = 1) are exactly these."""
    values = np.arange(n, dtype=np.float64)
    return np.asarray(mean + sd * (values - values.mean()) / float(values.std(ddof=1)), dtype=np.float64)


class TestWhatDPWeightsPrints:
    """Goldens: DP-Weights, sections 4.3 and 4.4 and Tables 1 to 10."""

    @pytest.mark.parametrize(
        ("negative_ranks", "printed", "decimals"),
        [
            ((), 7.451e-09, 12),  # Tables 3 to 10, statistic 0.
            ((1,), 1.490e-08, 11),  # Table 8, member perplexity.
            ((9,), 2.459e-07, 10),  # Table 3, non-member perplexity.
            ((12,), 5.215e-07, 10),  # Table 3, member perplexity.
            ((21, 22), 9.319e-05, 8),  # Table 7, non-member perplexity: 43.
            ((24, 25), 0.0001937, 7),  # Table 9, non-member perplexity: 49.
            ((24, 26, 27), 0.003, 3),  # Table 6, member perplexity: 77.
        ],
    )
    def test_wilcoxon_pairs_are_scipys_exact_ones(
        self, negative_ranks: tuple[int, ...], printed: float, decimals: int
    ) -> None:
        differences = np.arange(1.0, 29.0)
        differences[[rank - 1 for rank in negative_ranks]] *= -1.0
        answer = answered(wilcoxon_as_printed(seeds(differences), seeds(np.zeros(28))))
        assert answer.statistic == sum(negative_ranks)
        assert round(answer.p_value, decimals) == pytest.approx(printed, abs=10.0**-decimals / 2)
        assert answer.unit == "measurement"

    def test_wilcoxon_with_zeros_is_the_normal_approximation_without_them(self) -> None:
        # Table 7 prints (0.0, 3.991e-05) for the ROC AUC: 22 differences of 28 are not zero.
        differences = np.concatenate([np.zeros(6), np.arange(1.0, 23.0)])
        answer = answered(wilcoxon_as_printed(seeds(differences), seeds(np.zeros(28))))
        assert answer.statistic == 0.0
        assert answer.p_value == pytest.approx(4.010e-05, rel=1e-3)

    def test_section_4_4_is_a_pooled_t_beside_welchs_interval(self) -> None:
        # Table 2, member perplexity: (mean, SD) over 28 epsilons for 1, 5, 10, 20 epochs.
        dp = [(32.62, 15.91), (12.47, 9.96), (7.24, 5.79), (4.37, 2.98)]
        tuned = [(10.68, 0.0), (3.47, 0.0), (2.82, 0.0), (1.96, 0.0)]
        sides = []
        for table in (dp, tuned):
            values = np.concatenate([with_moments(mean, sd) for mean, sd in table])
            sides.append(Sample(values, (1,) * 28 + (5,) * 28 + (10,) * 28 + (20,) * 28, "training"))
        answer = answered(pooled_t_as_printed(*sides))
        assert round(answer.statistic, 3) == 6.573
        assert answer.p_value == pytest.approx(3.47e-10, rel=2e-3)
        assert (round(answer.lower or 0.0, 2), round(answer.upper or 0.0, 2)) == (6.60, 12.29)
        assert answer.counts == (112, 112)
        # Neither test alone prints both.
        pooled = answered(pooled_t(*(side.every_measurement() for side in sides)))
        welch = answered(welch_t(*(side.every_measurement() for side in sides)))
        assert (round(pooled.lower or 0.0, 2), round(pooled.upper or 0.0, 2)) == (6.61, 12.27)
        assert welch.p_value == pytest.approx(1.25e-09, rel=5e-3)
        # Counting the four trainings as what they are, 4.4's "significant" is not.
        assert not answered(welch_t(*sides)).significant

    def test_r2_takes_the_first_model_for_the_truth(self) -> None:
        # Table 3 with the SDs of Table 2: R² = 1 - MSE / (SD² 27 / 28).
        for sd, mse, printed in (
            (15.91, 156.363, 0.359),
            (15.91, 725.739, -1.974),
            (20.20, 1341.057, -2.409),
        ):
            first = with_moments(30.0, sd)
            assert comparison(first, first + math.sqrt(mse))[0]["r2"] == pytest.approx(printed, abs=2e-3)

    def test_coefficients_of_variation_are_of_one_model(self) -> None:
        # Table 3's three columns for member perplexity: 0.488, 0.487, 0.0; Table 2's moments.
        assert coefficient_of_variation(with_moments(32.62, 15.91)) == pytest.approx(0.488, abs=6e-4)
        assert coefficient_of_variation(with_moments(41.46, 20.20)) == pytest.approx(0.487, abs=6e-4)
        assert coefficient_of_variation(np.full(28, 10.68)) == 0.0


class TestSample:
    def test_28_epsilons_of_one_model_are_one_unit(self) -> None:
        sample = Sample(np.arange(28.0), (7,) * 28, "seed", tuple(range(28)))
        assert sample.n_units == 1
        for test in TESTS + OTHERS:
            answer = test(sample, sample)
            assert isinstance(answer, NotTestable), answer
            assert "at least 2 seeds, got 1" in answer.why
        assert mean_interval(sample).lower is None
        assert mean_interval(sample).why == "no interval from one seed"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (([], ()), "values must be one or more"),
            (([[1.0]], (0,)), "values must be one or more"),
            (([1.0, math.nan], (0, 1)), "got nan for seed 1"),
            (([1.0, -math.inf], (0, 1)), "got -inf for seed 1"),
            (([1e200], (0,)), "below 1e"),
            (([1.0], (0, 1)), "units must name the unit of each of 1 values, got 2"),
            (([1.0, 2.0], (0, 0), "seed", ("a",)), "cells must name the cell of each of 2 values, got 1"),
            (([1.0, 2.0], (0, 0), "seed", ("a", "a")), "cells must differ within a seed, got 'a' twice"),
            (([1.0], (0,), ""), "unit must say"),
        ],
    )
    def test_unusable_input_is_named(self, arguments: tuple[Any, ...], words: str) -> None:
        with pytest.raises(InputError, match=words):
            Sample(*arguments)

    def test_values_are_kept_as_they_were(self) -> None:
        given_values = np.array([1.0, 2.0])
        sample = seeds(given_values)
        given_values[0] = 9.0
        assert sample.values[0] == 1.0
        with pytest.raises(ValueError, match="read-only"):
            sample.values[0] = 9.0

    def test_matching_is_by_unit_and_cell_not_by_order(self) -> None:
        first = Sample(np.array([1.0, 2.0, 3.0, 4.0]), (0, 0, 1, 1), "seed", ("a", "b", "a", "b"))
        second = Sample(np.array([40.0, 30.0, 10.0]), (1, 1, 0), "seed", ("b", "a", "a"))
        pairs = matched(first, second)
        assert pairs.first is not None
        assert pairs.second is not None
        assert pairs.left_out == 1
        assert list(pairs.second.values / pairs.first.values) == [10.0, 10.0, 10.0]
        assert answered(paired_t(first, second)).left_out == 1

    def test_samples_that_do_not_correspond_are_refused(self) -> None:
        two = Sample(np.array([1.0, 2.0, 3.0]), (0, 0, 1), "seed")
        with pytest.raises(InputError, match="name their cells"):
            matched(two, seeds([1.0, 2.0]))
        with pytest.raises(InputError, match="'seed' and 'model'"):
            welch_t(two, Sample(np.array([1.0]), (0,), "model"))
        with pytest.raises(InputError, match="or neither"):
            matched(Sample(np.array([1.0]), (0,), "seed", ("a",)), seeds([1.0]))
        disjoint = Sample(np.array([1.0, 3.0]), (8, 9), "seed")
        for test in (paired_t, wilcoxon, wilcoxon_as_printed):
            assert isinstance(test(disjoint, seeds([1.0, 2.0])), NotTestable)

    def test_the_spread_within_units_is_of_each_unit(self) -> None:
        sample = Sample(np.array([1.0, 3.0, 5.0, 7.0]), (0, 0, 1, 1), "seed")
        within = spread_within_units(sample)
        assert within is not None
        assert list(within.values) == pytest.approx([math.sqrt(2.0)] * 2)
        assert spread_within_units(seeds([1.0, 2.0])) is None


class TestDegenerateInput:
    """Each has a typed answer; a warning would fail the test."""

    @pytest.mark.parametrize("test", TESTS + PRINTED + OTHERS)
    def test_two_equal_sides_without_spread(self, test: Pair) -> None:
        answer = test(seeds([0.3, 0.3, 0.3]), seeds([0.3, 0.3, 0.3]))
        assert isinstance(answer, NotTestable)

    @pytest.mark.parametrize("test", [paired_t, welch_t, pooled_t])
    def test_a_constant_difference_has_no_p_value(self, test: Pair) -> None:
        # t would be infinite and p zero; 0.1 + 0.2 leaves rounding errors, which are no spread either.
        answer = test(seeds([0.3, 0.3, 0.3]), seeds([0.1 + 0.2 - 1.0] * 3))
        assert isinstance(answer, NotTestable)

    def test_rounding_errors_are_no_spread_of_differences(self) -> None:
        first = np.array([0.1, 0.7, 1.3, 1e6])
        answer = paired_t(seeds(first + 0.2), seeds(first))
        assert isinstance(answer, NotTestable)
        ranks = wilcoxon(seeds(first * 3.0 / 3.0), seeds(first))
        assert isinstance(ranks, NotTestable)

    def test_one_constant_side(self) -> None:
        answer = answered(welch_t(seeds([1.0, 2.0, 3.0]), seeds([5.0, 5.0, 5.0])))
        assert answer.df == pytest.approx(2.0)
        metrics, why = comparison(np.array([1.0, 2.0, 3.0]), np.full(3, 5.0))
        assert math.isnan(metrics["pearson"])
        assert "second model's values are constant" in why["pearson"]
        assert not math.isnan(metrics["r2"])

    def test_undefined_measures_say_why(self) -> None:
        _, why = comparison(np.zeros(4), np.array([1.0, -1.0, 2.0, -2.0]))
        assert set(why) == {"r2", "pearson", "mape", "cv_first", "cv_second"}
        one, why = comparison(np.array([1.0]), np.array([2.0]))
        assert one["rmse"] == 1.0
        assert {"r2", "pearson", "cv_first", "cv_second"} == set(why)

    @pytest.mark.parametrize("size", [2, 5, 28])
    def test_measures_are_those_of_sklearn_and_scipy(self, size: int) -> None:
        generator = np.random.default_rng(size)
        for scale in (1e-3, 1.0, 1e4):
            x, y = (scale * generator.normal(3.0, 1.0, size) for _ in range(2))
            measures, why = comparison(x, y)
            assert not why
            expected = {
                "mse": metrics.mean_squared_error(x, y),
                "rmse": metrics.root_mean_squared_error(x, y),
                "mae": metrics.mean_absolute_error(x, y),
                "medae": metrics.median_absolute_error(x, y),
                "mape": metrics.mean_absolute_percentage_error(x, y),
                "r2": metrics.r2_score(x, y),
                "pearson": stats.pearsonr(x, y).statistic,
            }
            assert set(expected) < set(MEASURES)
            assert {name: measures[name] for name in expected} == pytest.approx(expected, rel=1e-9)

    def test_measures_need_equal_lengths(self) -> None:
        with pytest.raises(InputError, match="got 2 and 3"):
            comparison(np.zeros(2), np.zeros(3))

    @pytest.mark.parametrize("confidence", [0.5, 1.0, -1.0, math.nan])
    def test_confidence_is_checked_everywhere(self, confidence: float) -> None:
        a, b = seeds([1.0, 2.0, 4.0]), seeds([2.0, 2.5, 3.0])
        for test in (paired_t, welch_t, pooled_t, wilcoxon, pooled_t_as_printed):
            with pytest.raises(InputError, match="confidence must be in"):
                test(a, b, confidence=confidence)
        with pytest.raises(InputError, match="confidence must be in"):
            mean_interval(a, confidence=confidence)
        with pytest.raises(InputError, match="confidence must be in"):
            tost_paired(a, b, margin=1.0, confidence=confidence)

    def test_other_arguments_are_checked(self) -> None:
        a, b = seeds([1.0, 2.0, 4.0]), seeds([2.0, 2.5, 3.0])
        for margin in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(InputError, match="margin must be a finite number above 0"):
                tost_welch(a, b, margin=margin)
        with pytest.raises(InputError, match="power must be in"):
            detectable_difference(1.0, (3,), power=0.01)
        with pytest.raises(InputError, match="each at least 2"):
            power_of_t(1.0, (1,))
        with pytest.raises(InputError, match="did you mean 'fdr_bh'"):
            adjust([paired_t(a, b)], method="bh")


class TestPower:
    def test_power_agrees_with_statsmodels_where_that_is_finite(self) -> None:
        from statsmodels.stats.power import TTestIndPower, TTestPower

        for n in (3, 5, 20):
            for effect in (0.0, 0.3, 1.0, 2.0):
                paired = float(TTestPower().power(effect, n, 0.05))
                independent = float(TTestIndPower().power(effect, n, 0.05, ratio=2.0))
                for theirs, counts in ((paired, (n,)), (independent, (n, 2 * n))):
                    if math.isfinite(theirs):
                        assert power_of_t(effect, counts) == pytest.approx(theirs, abs=1e-6)
                    else:
                        assert power_of_t(effect, counts) > 0.999

    def test_detectable_difference_has_that_power(self) -> None:
        for counts in ((2,), (3,), (5, 4), (40,)):
            effect = detectable_difference(2.0, counts) / 2.0
            assert power_of_t(effect, counts) == pytest.approx(0.8, abs=1e-6)
        assert detectable_difference(0.0, (3,)) == 0.0

    def test_not_significant_with_two_seeds_is_called_what_it_is(self) -> None:
        answer = answered(paired_t(seeds([1.0, 2.5]), seeds([0.5, 1.0])))
        assert not answer.significant
        assert answer.detectable is not None
        assert answer.detectable > 8.0 * float(np.std([0.5, 1.5], ddof=1))
        ranks = answered(wilcoxon(seeds([1.0, 2.5, 4.0]), seeds([0.5, 1.0, 1.0])))
        assert ranks.smallest_p == 0.25


class TestEquivalence:
    def test_only_both_tests_make_it_equivalent(self) -> None:
        rng = np.random.default_rng(0)
        base = rng.normal(size=8)
        near = tost_paired(seeds(base + 0.01 * rng.normal(size=8)), seeds(base), margin=0.1)
        far = tost_paired(seeds(base + 0.095 + 0.01 * rng.normal(size=8)), seeds(base), margin=0.1)
        assert isinstance(near, Equivalence)
        assert isinstance(far, Equivalence)
        assert near.equivalent
        assert far.p_below < 0.05 < far.p_above
        assert not far.equivalent

    def test_no_significant_difference_is_not_equivalence(self) -> None:
        a, b = seeds([1.0, 3.0, 2.0]), seeds([2.0, 1.0, 3.5])
        assert not answered(paired_t(a, b)).significant
        made = tost_paired(a, b, margin=0.5)
        assert isinstance(made, Equivalence)
        assert not made.equivalent

    @settings(deadline=None, max_examples=40)
    @given(st.integers(0, 2**32 - 1), st.floats(0.05, 3.0))
    def test_equivalent_exactly_if_the_interval_lies_within(self, seed: int, margin: float) -> None:
        rng = np.random.default_rng(seed)
        a, b = seeds(rng.normal(size=5)), seeds(rng.normal(size=6))
        for made in (tost_welch(a, b, margin=margin), tost_paired(a, seeds(b.values[:5]), margin=margin)):
            assert isinstance(made, Equivalence)
            assert made.p_value == max(made.p_below, made.p_above)
            if abs(made.p_value - 0.05) > 1e-9:
                assert made.equivalent == (-margin < made.lower and made.upper < margin)


class TestMany:
    def test_the_family_and_its_untestable_members_count(self) -> None:
        a, b = seeds([1.0, 2.0, 4.0, 3.0]), seeds([2.0, 3.1, 4.9, 4.05])
        raw = answered(paired_t(a, b))
        first, none = adjust([paired_t(a, b), paired_t(a, a)])
        assert answered(first).adjusted_p == pytest.approx(2.0 * raw.p_value)
        assert answered(first).family == 2
        assert isinstance(none, NotTestable)
        assert answered(first).correction == "Holm"
        assert adjust([]) == ()

    def test_an_equivalence_is_adjusted_too(self) -> None:
        base = np.array([1.0, 2.0, 4.0, 3.0])
        made = tost_paired(seeds(base + np.array([0.1, -0.1, 0.2, 0.0])), seeds(base), margin=0.28)
        assert isinstance(made, Equivalence)
        assert made.equivalent
        many = adjust([made, *([made] * 9)])[0]
        assert isinstance(many, Equivalence)
        assert not many.equivalent

    @settings(deadline=None, max_examples=12)
    @given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
    def test_holm_is_the_step_down_by_hand(self, raw: list[float]) -> None:
        template = answered(paired_t(seeds([1.0, 2.0, 4.0]), seeds([2.0, 3.1, 4.5])))
        results = [replace(template, p_value=p) for p in raw]
        adjusted = [answered(one).decisive_p for one in adjust(results)]
        order = sorted(range(len(raw)), key=raw.__getitem__)
        running = 0.0
        for step, place in enumerate(order):
            running = max(running, min(1.0, (len(raw) - step) * raw[place]))
            assert adjusted[place] == pytest.approx(running)
        assert all(one >= p for one, p in zip(adjusted, raw, strict=True))
        gentler = [answered(one).decisive_p for one in adjust(results, method="fdr_bh")]
        assert all(p <= g <= h + 1e-12 for p, g, h in zip(raw, gentler, adjusted, strict=True))


numbers = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))
two_sides = st.integers(2, 9).flatmap(
    lambda n: st.tuples(
        arrays(np.float64, n, elements=numbers, unique=True),
        arrays(np.float64, n, elements=numbers, unique=True),
    )
)


class TestLaws:
    @settings(deadline=None, max_examples=40)
    @given(two_sides)
    def test_measures(self, both: tuple[FloatArray, FloatArray]) -> None:
        first, second = both
        metrics = comparison(first, second)[0]
        assert tuple(metrics) == MEASURES
        assert metrics["rmse"] ** 2 == pytest.approx(metrics["mse"])
        assert metrics["mae"] <= metrics["rmse"] * (1.0 + 1e-12)
        assert metrics["medae"] <= np.max(np.abs(first - second)) + 1e-12
        assert math.isnan(metrics["pearson"]) or -1.0 <= metrics["pearson"] <= 1.0
        assert math.isnan(metrics["r2"]) or metrics["r2"] <= 1.0
        scaled = comparison(3.0 * first, 3.0 * second)[0]
        assert scaled["rmse"] == pytest.approx(3.0 * metrics["rmse"])
        assert scaled["r2"] == pytest.approx(metrics["r2"], nan_ok=True)
        assert scaled["mape"] == pytest.approx(metrics["mape"], nan_ok=True)
        order = np.random.default_rng(0).permutation(first.size)
        assert comparison(first[order], second[order])[0] == pytest.approx(metrics, nan_ok=True, abs=1e-9)

    @settings(deadline=None, max_examples=40)
    @given(two_sides)
    def test_tests(self, both: tuple[FloatArray, FloatArray]) -> None:
        first, second = (seeds(side) for side in both)
        order = np.random.default_rng(0).permutation(first.values.size)
        for test in (paired_t, welch_t, pooled_t, wilcoxon):
            answer, mirrored = test(first, second), test(second, first)
            if isinstance(answer, NotTestable):
                assert isinstance(mirrored, NotTestable)
                continue
            mirror = answered(mirrored)
            assert 0.0 <= answer.p_value <= 1.0
            assert mirror.p_value == pytest.approx(answer.p_value)
            assert mirror.estimate == pytest.approx(-answer.estimate, abs=1e-9)
            if answer.lower is not None and answer.upper is not None:
                assert mirror.upper == pytest.approx(-answer.lower)
                assert answer.lower < answer.estimate < answer.upper
                excluded = answer.lower > 0.0 or answer.upper < 0.0
                if abs(answer.p_value - 0.05) > 1e-9:
                    assert excluded == answer.significant
            mixed = answered(test(first.taken(list(order)), second.taken(list(order))))
            assert mixed.p_value == pytest.approx(answer.p_value)

    @settings(deadline=None, max_examples=40)
    @given(two_sides, st.floats(-50.0, 50.0), st.floats(0.1, 20.0))
    def test_shift_and_scale(self, both: tuple[FloatArray, FloatArray], shift: float, scale: float) -> None:
        first, second = both
        for test in (paired_t, welch_t, pooled_t):
            answer = test(seeds(first), seeds(second))
            moved = test(seeds(scale * first + shift), seeds(scale * second + shift))
            if isinstance(answer, StatisticalTest) and isinstance(moved, StatisticalTest):
                assert moved.statistic == pytest.approx(answer.statistic, rel=1e-5, abs=1e-6)
                assert moved.estimate == pytest.approx(scale * answer.estimate, rel=1e-6, abs=1e-6)

    @settings(deadline=None, max_examples=30)
    @given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 1000))
    def test_by_unit_tests_are_tests_of_the_unit_means(self, units: int, cells: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        first, second = clustered(units, cells, rng), clustered(units, cells, rng)
        answer = answered(paired_t(first, second))
        d = first.values.reshape(units, cells).mean(1) - second.values.reshape(units, cells).mean(1)
        assert answer.counts == (units,)
        assert answer.statistic == pytest.approx(d.mean() / (d.std(ddof=1) / math.sqrt(units)))


class TestByUnit:
    def test_each_measure_is_averaged_over_units_with_an_interval(self) -> None:
        rng = np.random.default_rng(0)
        first, second = clustered(4, 5, rng), clustered(4, 5, rng)
        made = comparison_by_unit(first, second)
        assert tuple(made) == MEASURES
        sides = zip(first.groups().values(), second.groups().values(), strict=True)
        each = [comparison(*both)[0]["rmse"] for both in sides]
        assert made["rmse"].estimate == pytest.approx(np.mean(each))
        assert made["rmse"].n_units == 4

    def test_units_without_a_value_are_named(self) -> None:
        first = Sample(np.array([1.0, 1.0, 1.0, 2.0, 1.0, 3.0]), (0, 0, 1, 1, 2, 2), "seed")
        second = Sample(np.array([1.0, 2.0, 1.0, 2.5, 2.0, 3.0]), (0, 0, 1, 1, 2, 2), "seed")
        made = comparison_by_unit(first, second)["r2"]
        assert made.n_units == 2
        assert "1 seed left out: the first model's values are constant" in made.why
        none = comparison_by_unit(first, Sample(np.zeros(6), (0, 0, 1, 1, 2, 2), "seed"))["pearson"]
        assert math.isnan(none.estimate)
        assert none.why
        other = Sample(np.array([1.0]), (9,), "seed")
        assert comparison_by_unit(other, seeds([1.0])) == {}

    def test_values_for_tables(self) -> None:
        sample = seeds([1.0, 2.0, 4.0])
        value = value_of(mean_interval(sample))
        assert value.n == 3
        assert value.estimate == pytest.approx(7.0 / 3.0)
        assert value.spread == pytest.approx(np.std([1, 2, 4], ddof=1))
        none = value_of(paired_t(seeds([1.0]), seeds([2.0])))
        assert math.isnan(none.estimate)
        assert none.text == "not testable"
        assert value_of(paired_t(sample, seeds([2.0, 2.0, 2.0]))).p_value is not None
        equivalent = value_of(tost_paired(sample, seeds([2.0, 2.0, 2.0]), margin=9.0))
        assert equivalent.lower is not None
