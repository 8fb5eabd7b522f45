"""Ball-arithmetic bounds against sources, enumeration, independent methods and their own laws."""

from __future__ import annotations

import doctest
import itertools
import math
from fractions import Fraction

import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.accounting import certified, exact
from workbench.accounting.balls import ball, finite
from workbench.accounting.balls.shuffled import BinnedMaximum, GridChoice, MaximumPair, composed_below
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import (
    Composed,
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.accounting.exact import delta_bounds, epsilon_bounds, supports, tpr_bounds
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency

NARROW = 1e-12
LOSSES = st.floats(0.0, 5.0)
DELTAS = st.floats(-30, -0.8).map(lambda power: 10**power)


def overlap(one: Bounds, other: Bounds) -> bool:
    """True where both may hold the same truth."""
    return max(one.lower, other.lower) <= min(one.upper, other.upper)


def times(event: Event, count: int) -> Event:
    return Composed(events=((event, count),))


def subsampled_as_mixture(event: SubsampledGaussian, *, replace_one: bool) -> GaussianMixturePair:
    q, sigma = event.sampling_probability, event.noise_multiplier
    other: tuple[float, ...] = (0.0, -1.0) if replace_one else (0.0,)
    return GaussianMixturePair(
        p_means=(0.0, 1.0),
        p_weights=(1 - q, q),
        q_means=other,
        q_weights=(1 - q, q) if replace_one else (1.0,),
        standard_deviation=sigma,
    )


def brute_force(pair: FinitePair, count: int) -> FinitePair:
    """The composition's outputs, one by one."""
    p = tuple(math.prod(row, start=Fraction(1)) for row in itertools.product(pair.p, repeat=count))
    q = tuple(math.prod(row, start=Fraction(1)) for row in itertools.product(pair.q, repeat=count))
    return FinitePair(p=p, q=q)


def naive_delta(pair: FinitePair, epsilon: float) -> float:
    """Sum of positive parts in floats; the larger order."""
    growth = math.exp(epsilon)
    rows = list(zip(pair.p, pair.q, strict=True))
    forward = math.fsum(max(0.0, float(a) - growth * float(b)) for a, b in rows)
    return max(forward, math.fsum(max(0.0, float(b) - growth * float(a)) for a, b in rows))


def naive_tpr(pair: FinitePair, fpr: float) -> float:
    """Neyman-Pearson by sorting; the larger order."""
    best = 0.0
    for p, q in ((pair.p, pair.q), (pair.q, pair.p)):
        left, power = fpr, 0.0
        rows = sorted(zip(p, q, strict=True), key=lambda row: -math.inf if row[1] == 0 else -row[0] / row[1])
        for a, b in rows:
            share = 1.0 if b == 0 else min(1.0, max(0.0, left) / float(b))
            power, left = power + share * float(a), left - float(b)
        best = max(best, power)
    return best


PAIR = FinitePair(
    p=(Fraction(1, 2), Fraction(1, 3), Fraction(1, 6), Fraction(0)),
    q=(Fraction(1, 4), Fraction(1, 4), Fraction(3, 8), Fraction(1, 8)),
)
HALVES = FinitePair(p=(Fraction(2, 3), Fraction(1, 3)), q=(Fraction(1, 3), Fraction(2, 3)))


def test_the_doctest_runs() -> None:
    assert doctest.testmod(exact).failed == 0


def test_ends_are_rounded_outwards() -> None:
    with ctx.workprec(200):
        third = arb(1) / 3
    low, high = ball.ends(third)
    assert Fraction(low) < Fraction(1, 3) < Fraction(high)
    assert math.nextafter(low, 1) == high
    assert ball.ends(arb(0.25)) == (0.25, 0.25)
    assert ball.ends(arb.nan()) == (-math.inf, math.inf)
    assert ball.ends(arb.pos_inf()) == (math.inf, math.inf)


def test_the_global_precision_stays_what_it_was() -> None:
    before = ctx.prec
    epsilon_bounds(Gaussian(noise_multiplier=1.5), 1e-7)
    tpr_bounds(SubsampledGaussian(noise_multiplier=1.5, sampling_probability=0.1), 0.01)
    with pytest.raises(InputError):
        delta_bounds(Gaussian(noise_multiplier=1.5), -1.0)
    assert ctx.prec == before


class TestGaussian:
    def test_known_value(self) -> None:
        """mu = 1, delta = 1e-5: 4.377 (Dong, Roth and Su 2022, by theorem 8 of Balle and Wang 2018)."""
        found = epsilon_bounds(Gaussian(noise_multiplier=1.0), 1e-5)
        assert found.rigorous
        assert found.relative_width < NARROW
        assert found.lower < 4.3771780956813 < found.upper

    @pytest.mark.parametrize("mu", [1e-6, 1e-3, 1.0, 30.0, 1e4])
    @pytest.mark.parametrize("delta", [1e-300, 1e-40, 1e-5, 0.3, 0.999])
    def test_whole_range_is_narrow_and_inverts(self, mu: float, delta: float) -> None:
        event = Gaussian(noise_multiplier=1 / mu)
        found = epsilon_bounds(event, delta)
        assert found.relative_width < 1e-9
        if found.lower > 0:
            assert delta_bounds(event, found.lower).upper >= delta >= delta_bounds(event, found.upper).lower

    def test_replace_one_doubles_the_sensitivity(self) -> None:
        replaced = epsilon_bounds(Gaussian(noise_multiplier=2.0), 1e-5, Adjacency.REPLACE_ONE)
        assert replaced == epsilon_bounds(Gaussian(noise_multiplier=1.0), 1e-5)
        zeroed = epsilon_bounds(Gaussian(noise_multiplier=2.0), 1e-5, Adjacency.ZERO_OUT)
        assert zeroed == epsilon_bounds(Gaussian(noise_multiplier=2.0), 1e-5)

    @given(st.integers(1, 1000), st.floats(0.1, 50), DELTAS)
    @settings(max_examples=25, deadline=None)
    def test_composition_in_any_order_and_grouping(self, count: int, sigma: float, delta: float) -> None:
        one, two = Gaussian(noise_multiplier=sigma), Gaussian(noise_multiplier=2 * sigma)
        together = epsilon_bounds(Composed(events=((one, 4 * count), (two, 4))), delta)
        apart = epsilon_bounds(Composed(events=((two, 2), (times(one, count), 4), (two, 2))), delta)
        assert together == apart
        assert overlap(together, epsilon_bounds(times(two, 16 * count + 4), delta))

    def test_a_sampling_probability_of_one_is_no_sampling(self) -> None:
        sampled = times(SubsampledGaussian(noise_multiplier=3.0, sampling_probability=1.0), 9)
        assert epsilon_bounds(sampled, 1e-5) == epsilon_bounds(Gaussian(noise_multiplier=1.0), 1e-5)

    @given(st.floats(0.001, 0.999), st.floats(0.2, 5))
    @settings(max_examples=25, deadline=None)
    def test_trade_off_touches_delta(self, fpr: float, sigma: float) -> None:
        """TPR <= e^eps FPR + delta(eps) at every epsilon (Dong, Roth and Su 2022, proposition 2.12)."""
        event = Gaussian(noise_multiplier=sigma)
        tpr = tpr_bounds(event, fpr)
        assert tpr.width < 1e-14
        for epsilon in (0.0, 0.5, 2.0):
            assert tpr.lower <= math.exp(epsilon) * fpr + delta_bounds(event, epsilon).upper


class TestLaplace:
    def test_closed_form(self) -> None:
        """delta = 1 - exp((eps - a) / 2) (Balle, Barthe and Gaboardi 2018, theorem 3)."""
        found = delta_bounds(Laplace(scale=2.0), 0.1)
        assert found.lower <= -math.expm1((0.1 - 0.5) / 2) * (1 + 1e-14)
        assert found.relative_width < 1e-15
        assert delta_bounds(Laplace(scale=2.0), 0.5).upper == 0

    def test_pure_epsilon(self) -> None:
        assert epsilon_bounds(Laplace(scale=4.0), 0.0).upper == 0.25
        assert epsilon_bounds(Laplace(scale=4.0), 0.0, Adjacency.REPLACE_ONE).lower == 0.5
        assert epsilon_bounds(Laplace(scale=4.0), 0.5).upper == 0.0

    @given(st.floats(0.05, 20), DELTAS)
    @settings(max_examples=30, deadline=None)
    def test_inverse(self, scale: float, delta: float) -> None:
        epsilon = epsilon_bounds(Laplace(scale=scale), delta)
        if epsilon.lower > 0:
            assert delta_bounds(Laplace(scale=scale), epsilon.lower).upper >= delta
            assert delta_bounds(Laplace(scale=scale), epsilon.upper).lower <= delta

    @pytest.mark.parametrize("fpr", [1e-6, 0.01, 0.2, 0.5, 0.9])
    def test_trade_off_against_the_floor_over_epsilon(self, fpr: float) -> None:
        """The curve is the least line e^eps fpr + delta(eps), epsilon of either sign."""
        event = Laplace(scale=1.0)
        grid = [k / 1000 for k in range(1001)]
        lines = [math.exp(e) * fpr + delta_bounds(event, e).upper for e in grid]
        lines += [1 - math.exp(-e) * (1 - delta_bounds(event, e).upper - fpr) for e in grid]
        found = tpr_bounds(event, fpr)
        assert found.lower <= min(lines) <= found.upper * (1 + 1e-6)

    def test_both_orders_are_one(self) -> None:
        """The Laplace law is symmetric: no order is worse, unlike the subsampled Gaussian's."""
        pair = GaussianMixturePair(
            p_means=(0.0,), p_weights=(1.0,), q_means=(1.0,), q_weights=(1.0,), standard_deviation=1.0
        )
        swapped = GaussianMixturePair(
            p_means=(1.0,), p_weights=(1.0,), q_means=(0.0,), q_weights=(1.0,), standard_deviation=1.0
        )
        assert epsilon_bounds(pair, 1e-5) == epsilon_bounds(swapped, 1e-5)


class TestFinite:
    @pytest.mark.parametrize("epsilon", [0.0, 0.3, math.log(2), 2.5])
    @pytest.mark.parametrize("count", [1, 2, 4])
    @pytest.mark.parametrize("pair", [PAIR, HALVES])
    def test_counting_equals_enumeration(self, pair: FinitePair, count: int, epsilon: float) -> None:
        found = delta_bounds(times(pair, count), epsilon)
        assert found.rigorous
        assert found.lower - 1e-14 <= naive_delta(brute_force(pair, count), epsilon) <= found.upper + 1e-14

    @pytest.mark.parametrize("fpr", [0.001, 0.125, 0.3, 0.75, 0.99])
    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("pair", [PAIR, HALVES])
    def test_power_equals_enumeration(self, pair: FinitePair, count: int, fpr: float) -> None:
        found = tpr_bounds(times(pair, count), fpr)
        assert found.width < 1e-13
        assert found.lower - 1e-12 <= naive_tpr(brute_force(pair, count), fpr) <= found.upper + 1e-12

    def test_infinite_losses(self) -> None:
        assert epsilon_bounds(PAIR, 0.1).lower == math.inf
        assert delta_bounds(PAIR, math.inf) == delta_bounds(PAIR, 700.0)
        assert delta_bounds(PAIR, math.inf).lower == 0.125 == delta_bounds(PAIR, math.inf).upper
        assert tpr_bounds(PAIR, 0.0).lower == 0.125

    def test_epsilon_where_delta_is_the_infinite_mass(self) -> None:
        """Then epsilon is the largest finite loss of that order: log((3/8) / (1/6))."""
        found = epsilon_bounds(PAIR, 0.125)
        assert found.relative_width < NARROW
        assert found.lower <= math.log(9 / 4) <= found.upper

    def test_binary_response_against_its_printed_form(self) -> None:
        """k-fold randomised response (Kairouz, Oh and Viswanath 2015, theorem 3.3), summed in floats."""
        unit = math.log(3)
        for count, epsilon in ((10, 2.0), (40, 8.0)):
            terms = [
                math.comb(count, j)
                * max(0.0, math.exp((count - j) * unit) - math.exp(epsilon + j * unit))
                / 4.0**count
                for j in range(count + 1)
            ]
            response = times(RandomisedResponse(noise_parameter=0.5), count)
            found = delta_bounds(response, epsilon, Adjacency.REPLACE_ONE)
            assert found.lower * (1 - 1e-12) <= math.fsum(terms) <= found.upper * (1 + 1e-12)

    @pytest.mark.parametrize("categories", [2, 3, 10])
    def test_k_ary_response_against_enumeration(self, categories: int) -> None:
        event = RandomisedResponse(noise_parameter=0.25, categories=categories)
        count = 2 if categories == 10 else 4
        other = Fraction(1, 4) / categories
        truth, rest = 1 - (categories - 1) * other, (other,) * (categories - 2)
        listed = brute_force(FinitePair(p=(truth, other, *rest), q=(other, truth, *rest)), count)
        for epsilon in (0.0, 1.0, 3.0):
            found = delta_bounds(times(event, count), epsilon, Adjacency.REPLACE_ONE)
            assert found.lower - 1e-14 <= naive_delta(listed, epsilon) <= found.upper + 1e-14

    def test_ten_million_categories(self) -> None:
        event = RandomisedResponse(noise_parameter=0.25, categories=10**7)
        found = epsilon_bounds(event, 1e-9, Adjacency.REPLACE_ONE)
        truth, other = 0.75 + 0.25e-7, 0.25e-7
        assert found.lower - 1e-9 <= math.log((truth - 1e-9) / other) <= found.upper + 1e-9

    def test_ten_thousand_responses(self) -> None:
        """Composition is not forgotten: epsilon is near the mean loss, thousands of times one response's."""
        event = times(RandomisedResponse(noise_parameter=0.1), 10_000)
        found = epsilon_bounds(event, 1e-6, Adjacency.REPLACE_ONE)
        assert found.relative_width < NARROW
        # Mean loss 0.9 log(19) a response; four standard deviations cover a delta of 1e-6 amply.
        mean, deviation = 0.9 * math.log(19) * 1e4, math.sqrt(1 - 0.81) * math.log(19) * 100
        assert mean < found.lower < mean + 6 * deviation

    def test_heterogeneous_composition(self) -> None:
        event = Composed(events=((HALVES, 1), (PAIR, 2), (RandomisedResponse(noise_parameter=0.5), 1)))
        rows = [HALVES, PAIR, PAIR, RandomisedResponse(noise_parameter=0.5).pair()]
        p = tuple(math.prod(row, start=Fraction(1)) for row in itertools.product(*(r.p for r in rows)))
        q = tuple(math.prod(row, start=Fraction(1)) for row in itertools.product(*(r.q for r in rows)))
        found = delta_bounds(event, 1.0, Adjacency.REPLACE_ONE)
        assert found.lower - 1e-14 <= naive_delta(FinitePair(p=p, q=q), 1.0) <= found.upper + 1e-14

    def test_same_distribution_twice_gives_nothing_away(self) -> None:
        same = FinitePair(p=HALVES.p, q=HALVES.p)
        assert epsilon_bounds(times(same, 100), 0.0).upper == 0
        assert tpr_bounds(same, 0.3).upper == pytest.approx(0.3, abs=1e-15)

    def test_disjoint_distributions_give_everything_away(self) -> None:
        apart = FinitePair(p=(Fraction(1), Fraction(0)), q=(Fraction(0), Fraction(1)))
        assert delta_bounds(apart, 5.0).lower == 1.0
        assert epsilon_bounds(apart, 0.5).lower == math.inf

    def test_too_many_classes_are_refused(self) -> None:
        primes = [2, 3, 5, 7, 11, 13]
        total = sum(primes)
        wide = FinitePair(
            p=tuple(Fraction(prime, total) for prime in primes),
            q=tuple(Fraction(prime, total) for prime in reversed(primes)),
        )
        with pytest.raises(UnsupportedError, match="certified"):
            delta_bounds(times(wide, 100), 1.0)

    @given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
    @settings(max_examples=50, deadline=None)
    def test_coprime_base(self, numbers: list[int]) -> None:
        base = finite.coprime_base(numbers)
        assert all(math.gcd(a, b) == 1 for a, b in itertools.combinations(base, 2))
        for number in numbers:
            for factor in base:
                while number % factor == 0:
                    number //= factor  # noqa: PLW2901
            assert number == 1

    @given(st.lists(st.integers(0, 5), min_size=2, max_size=5), st.integers(1, 9))
    @settings(max_examples=50, deadline=None)
    def test_polynomial_powers(self, row: list[int], count: int) -> None:
        row[0], row[-1] = max(row[0], 1), max(row[-1], 1)
        naive = [1]
        for _ in range(count):
            longer = [0] * (len(naive) + len(row) - 1)
            for (i, a), (j, b) in itertools.product(enumerate(naive), enumerate(row)):
                longer[i + j] += a * b
            naive = longer
        power = finite.polynomial_power([arb(entry) for entry in row], count)
        assert len(power) == len(naive)
        assert all(ball.contains(entry) for ball, entry in zip(power, naive, strict=True))


class TestSubsampledGaussian:
    EVENTS = (
        SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.01),
        SubsampledGaussian(noise_multiplier=0.3, sampling_probability=1e-4),
        SubsampledGaussian(noise_multiplier=5.0, sampling_probability=0.5),
    )

    @pytest.mark.parametrize("event", EVENTS)
    @pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.3, 2.0])
    @pytest.mark.parametrize("replace_one", [False, True])
    def test_closed_form_equals_certified_signs(
        self, event: SubsampledGaussian, epsilon: float, replace_one: bool
    ) -> None:
        """Two ways to the same number: the quadratic's root, and the search for sign changes."""
        adjacency = Adjacency.REPLACE_ONE if replace_one else Adjacency.ADD_REMOVE
        pair = subsampled_as_mixture(event, replace_one=replace_one)
        closed, searched = delta_bounds(event, epsilon, adjacency), delta_bounds(pair, epsilon)
        # The pair's weights are floats, normalised: 1 - q is not exactly what the event's is.
        assert closed.lower == pytest.approx(searched.upper, rel=1e-9)
        assert closed.relative_width < NARROW
        assert searched.relative_width < NARROW

    @pytest.mark.parametrize("event", EVENTS)
    def test_neighbours_order(self, event: SubsampledGaussian) -> None:
        """Replace-one is at least as bad as add-remove, and sampling never hurts."""
        for delta in (1e-10, 1e-5):
            kept = epsilon_bounds(event, delta)
            assert kept.lower <= epsilon_bounds(event, delta, Adjacency.REPLACE_ONE).upper
            assert (
                kept.lower <= epsilon_bounds(Gaussian(noise_multiplier=event.noise_multiplier), delta).upper
            )
            assert kept == epsilon_bounds(event, delta, Adjacency.ZERO_OUT)

    def test_inverse(self) -> None:
        for event, adjacency in itertools.product(self.EVENTS, Adjacency):
            epsilon = epsilon_bounds(event, 1e-9, adjacency)
            assert epsilon.relative_width < NARROW
            if epsilon.lower > 0:
                assert delta_bounds(event, epsilon.lower, adjacency).upper >= 1e-9
                assert delta_bounds(event, epsilon.upper, adjacency).lower <= 1e-9

    @pytest.mark.parametrize("fpr", [1e-8, 0.01, 0.5, 0.999])
    def test_trade_off_lies_under_every_line(self, fpr: float) -> None:
        event = self.EVENTS[2]
        for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
            found = tpr_bounds(event, fpr, adjacency)
            assert found.relative_width < 1e-12
            lines = [
                math.exp(k / 50) * fpr + delta_bounds(event, k / 50, adjacency).upper for k in range(150)
            ]
            lines += [
                1 - math.exp(-k / 50) * (1 - fpr - delta_bounds(event, k / 50, adjacency).upper)
                for k in range(150)
            ]
            assert found.lower <= min(lines) <= found.upper * (1 + 1e-3)

    @given(st.floats(0.3, 20), st.floats(1e-4, 0.9), DELTAS)
    @settings(max_examples=25, deadline=None)
    def test_falls_with_noise_and_delta_rises_with_sampling(
        self, sigma: float, q: float, delta: float
    ) -> None:
        event = SubsampledGaussian(noise_multiplier=sigma, sampling_probability=q)
        here = epsilon_bounds(event, delta)
        quieter = SubsampledGaussian(noise_multiplier=1.1 * sigma, sampling_probability=q)
        oftener = SubsampledGaussian(noise_multiplier=sigma, sampling_probability=min(1.0, 1.1 * q))
        assert epsilon_bounds(quieter, delta).lower <= here.upper
        assert epsilon_bounds(event, 2 * delta).lower <= here.upper
        assert epsilon_bounds(oftener, delta).upper >= here.lower


class TestMixtures:
    PAIR = GaussianMixturePair(
        p_means=(-2.0, 2.0),
        p_weights=(0.5, 0.5),
        q_means=(0.0, 1.0),
        q_weights=(0.5, 0.5),
        standard_deviation=1.0,
    )

    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
    def test_several_sign_changes_against_a_riemann_sum(self, epsilon: float) -> None:
        """A midpoint rule on a range that leaves out less than 1e-20; its error here is below 1e-7."""
        step = 1e-4
        points = [-14 + step * (k + 0.5) for k in range(280_000)]

        def density(x: float, means: tuple[float, ...]) -> float:
            return math.fsum(math.exp(-((x - m) ** 2) / 2) for m in means) / 2 / math.sqrt(2 * math.pi)

        rows = [(density(x, self.PAIR.p_means), density(x, self.PAIR.q_means)) for x in points]
        growth = math.exp(epsilon)
        forward = step * math.fsum(max(0.0, a - growth * b) for a, b in rows)
        backward = step * math.fsum(max(0.0, b - growth * a) for a, b in rows)
        found = delta_bounds(self.PAIR, epsilon)
        assert found.relative_width < NARROW
        assert found.lower == pytest.approx(max(forward, backward), abs=1e-7)

    def test_both_orders_count(self) -> None:
        """One component's tail shows more in one order than in the other; swapping must not matter."""
        swapped = GaussianMixturePair(
            p_means=self.PAIR.q_means,
            p_weights=self.PAIR.q_weights,
            q_means=self.PAIR.p_means,
            q_weights=self.PAIR.p_weights,
            standard_deviation=1.0,
        )
        assert delta_bounds(self.PAIR, 1.0) == delta_bounds(swapped, 1.0)

    def test_equal_mixtures_give_nothing_away(self) -> None:
        same = GaussianMixturePair(
            p_means=(-1.0, 1.0),
            p_weights=(0.25, 0.75),
            q_means=(1.0, -1.0),
            q_weights=(0.75, 0.25),
            standard_deviation=0.5,
        )
        assert delta_bounds(same, 0.0).upper == 0
        assert epsilon_bounds(same, 1e-9).upper == 0

    @pytest.mark.slow
    def test_power_of_a_pair_without_a_threshold(self) -> None:
        """Between the lines of epsilon and the power of the test |x| > c (midpoint of the means aside)."""
        found = tpr_bounds(self.PAIR, 0.05)
        assert found.width < 1e-9
        lines = [math.exp(k / 20) * 0.05 + delta_bounds(self.PAIR, k / 20).upper for k in range(80)]
        assert found.lower <= min(lines) <= found.upper * 1.01


class TestShuffledBatches:
    def test_lower_end_is_the_probability_of_its_event(self) -> None:
        """Chua et al. 2024: max over C of P(max > C) - e^eps Q(max > C), pair (2, 1); here on a grid of C."""
        sigma, batches, epsilon = 0.4, 1000, 4.0

        def below(x: float) -> float:
            return math.erfc(-x / sigma / math.sqrt(2)) / 2

        best = max(
            1
            - below(c - 2) * below(c) ** (batches - 1)
            - math.exp(epsilon) * (1 - below(c - 1) * below(c) ** (batches - 1))
            for c in (k / 1000 for k in range(4000))
        )
        event = ShuffledBatches(noise_multiplier=sigma, batches=batches)
        found = delta_bounds(event, epsilon, Adjacency.ZERO_OUT)
        assert best - 1e-9 <= found.lower <= best * (1 + 1e-3)

    def test_leaks_more_than_poisson_batches(self) -> None:
        """The paper's point: at little noise a shuffled epoch is worse than Poisson accounting says."""
        event = ShuffledBatches(noise_multiplier=0.4, batches=1000)
        accounted = gaussian_run(noise_multiplier=0.4, sampling_probability=1e-3, steps=1000)
        poisson = certified.delta_bounds(accounted, 4.0, adjacency=Adjacency.ADD_REMOVE)
        assert delta_bounds(event, 4.0, Adjacency.ZERO_OUT).lower > 1.5 * poisson.upper

    @pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
    def test_one_batch_is_a_gaussian(self, adjacency: Adjacency) -> None:
        event = ShuffledBatches(noise_multiplier=2.0, batches=1, epochs=4)
        assert epsilon_bounds(event, 1e-5, adjacency) == epsilon_bounds(
            Gaussian(noise_multiplier=1.0), 1e-5, adjacency
        )

    @pytest.mark.parametrize(("a", "b"), [(2, 1), (1, 2), (1, -1)])
    def test_reduced_epochs_compose_to_the_gaussian_where_there_is_one_batch(self, a: int, b: int) -> None:
        """Binning costs under a per cent, and never lands above the truth."""
        pair = MaximumPair(a=a, b=b, batches=1, sigma=Fraction(1))
        curve = composed_below([(BinnedMaximum(pair), 6)], GridChoice(cells=2048, tail=1e-14))
        truth = epsilon_bounds(times(Gaussian(noise_multiplier=1 / abs(a - b)), 6), 1e-5)
        assert 0.99 * truth.lower < curve.epsilon_ends(1e-5)[0] <= truth.upper

    @pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
    def test_more_epochs_leak_more(self, adjacency: Adjacency) -> None:
        one, five = (
            epsilon_bounds(ShuffledBatches(noise_multiplier=0.5, batches=50, epochs=n), 1e-6, adjacency)
            for n in (1, 5)
        )
        assert one.upper < five.lower <= five.upper

    @given(st.floats(0.3, 3), st.integers(2, 10_000), DELTAS)
    @settings(max_examples=20, deadline=None)
    def test_ends_are_in_order_and_invert(self, sigma: float, batches: int, delta: float) -> None:
        event = ShuffledBatches(noise_multiplier=sigma, batches=batches)
        for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE):
            epsilon = epsilon_bounds(event, delta, adjacency)
            assert epsilon.lower <= epsilon.upper
            if epsilon.lower > 0:
                assert delta_bounds(event, epsilon.lower, adjacency).upper >= delta
            tpr = tpr_bounds(event, 0.01, adjacency)
            assert 0.01 <= tpr.lower <= tpr.upper <= 1

    def test_add_remove_is_refused(self) -> None:
        event = ShuffledBatches(noise_multiplier=1.0, batches=10)
        assert not supports(event, Adjacency.ADD_REMOVE)
        with pytest.raises(UnsupportedError, match="zero-out"):
            delta_bounds(event, 1.0)


class TestQuestions:
    def test_what_is_supported(self) -> None:
        response = RandomisedResponse(noise_parameter=0.5)
        sampled = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.1)
        assert supports(times(Gaussian(noise_multiplier=1.0), 5), Adjacency.ADD_REMOVE)
        assert supports(sampled, Adjacency.REPLACE_ONE)
        assert supports(times(response, 10), Adjacency.REPLACE_ONE)
        assert not supports(response, Adjacency.ADD_REMOVE)
        assert not supports(times(sampled, 2), Adjacency.ADD_REMOVE)
        assert not supports(times(Laplace(scale=1.0), 2), Adjacency.ADD_REMOVE)

    @pytest.mark.parametrize("epsilon", [-1.0, math.nan])
    def test_bad_epsilon(self, epsilon: float) -> None:
        with pytest.raises(InputError, match="epsilon must be >= 0"):
            delta_bounds(Laplace(scale=1.0), epsilon)

    @pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
    def test_bad_delta(self, delta: float) -> None:
        with pytest.raises(InputError, match="delta must be in"):
            epsilon_bounds(Laplace(scale=1.0), delta)

    @pytest.mark.parametrize("fpr", [-0.1, 1.1, math.nan])
    def test_bad_fpr(self, fpr: float) -> None:
        with pytest.raises(InputError, match="fpr must be in"):
            tpr_bounds(Laplace(scale=1.0), fpr)

    def test_ends_of_the_range(self) -> None:
        gaussian = Gaussian(noise_multiplier=1.0)
        assert delta_bounds(gaussian, math.inf).upper == 0
        assert epsilon_bounds(gaussian, 0.0).lower == math.inf
        assert tpr_bounds(gaussian, 0.0).upper == 0
        assert tpr_bounds(gaussian, 1.0).lower == 1

    @given(LOSSES, LOSSES)
    @settings(max_examples=20, deadline=None)
    def test_delta_falls_as_epsilon_rises(self, one: float, other: float) -> None:
        low, high = sorted((one, other))
        for event in (Gaussian(noise_multiplier=1.0), Laplace(scale=0.4), PAIR, HALVES, TestMixtures.PAIR):
            assert delta_bounds(event, high).lower <= delta_bounds(event, low).upper
