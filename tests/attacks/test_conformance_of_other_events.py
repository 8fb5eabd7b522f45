"""The quick grid catches a naive accountant of each event that few libraries know, and no sound one."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from workbench.accounting import (
    BatchMean,
    BestOfRuns,
    CappedPoisson,
    Composed,
    CorrelatedGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    FinitePair,
    GaussianMixturePair,
    PrivateStep,
    RandomAllocation,
    SampledCorrelatedGaussian,
    ShuffledBatches,
    Skellam,
    SparseVector,
    SubsampledGaussian,
    SubsampledLaplace,
    SubsampledUser,
    certified,
)
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.attacks.accountant_checks.conformance import CheckStatus, run_checks
from workbench.attacks.accountant_checks.conformance.cells import families
from workbench.attacks.accountant_checks.conformance.questions import now
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Direction

Answer = Callable[[Any, int, float], float]
"""Epsilon of an event, repeated so often, at a delta."""

FAMILIES = {
    CappedPoisson: "capped_batches",
    BatchMean: "batch_means",
    CorrelatedGaussian: "correlated_noise",
    SampledCorrelatedGaussian: "correlated_noise",
    ExponentialMechanism: "choices",
    BestOfRuns: "choices",
    SparseVector: "choices",
    PrivateStep: "promises",
    FinitePair: "promises",
    SubsampledLaplace: "other_samples",
    SubsampledUser: "other_samples",
    DiscreteLaplace: "integer_noise",
    DiscreteGaussian: "integer_noise",
    Skellam: "integer_noise",
    RandomAllocation: "random_allocation",
    ShuffledBatches: "shuffled_batches",
    GaussianMixturePair: "gaussian_mixtures",
}


class OfOneKind:
    """An accountant of some kinds of events, repeated, under add-remove and zero-out."""

    def __init__(self, name: str, answers: dict[type[Event], Answer]) -> None:
        self.name, self.answers = name, answers

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        ((part, count), *others) = event.parts()
        if others or type(part) not in self.answers or adjacency is Adjacency.REPLACE_ONE:
            raise UnsupportedError(f"{self.name} does not answer for {event.describe()}")
        return self.answers[type(part)](part, count, delta)


def sampled(noise: float, rate: float, count: int, delta: float) -> float:
    step = SubsampledGaussian(noise_multiplier=noise, sampling_probability=rate)
    return certified.epsilon_bounds(Composed(events=((step, count),)), delta).upper


def without_the_cap(event: CappedPoisson, count: int, delta: float) -> float:
    return sampled(event.noise_multiplier, event.sampling_probability, count, delta)


def by_a_fixed_divisor(event: BatchMean, count: int, delta: float) -> float:
    return sampled(event.noise_multiplier, event.sampling_probability, count, delta)


def without_the_correlation(event: CorrelatedGaussian, count: int, delta: float) -> float:
    return epsilon_of_delta(math.sqrt(event.participations * count) / event.noise_multiplier, delta)


def columns_of_norm_one(event: SampledCorrelatedGaussian, count: int, delta: float) -> float:
    turns = -(-len(event.encoder) // event.groups)
    return sampled(event.noise_multiplier, event.sampling_probability, count * turns, delta)


def one_score_moves(event: ExponentialMechanism, count: int, delta: float) -> float:
    return count / event.scale


def selection_for_free(event: BestOfRuns, count: int, delta: float) -> float:
    return count * event.epsilon


def one_answer_above(event: SparseVector, count: int, delta: float) -> float:
    return count * (1 / event.threshold_scale + 2 / event.query_scale)


def deltas_do_not_add(event: PrivateStep, count: int, delta: float) -> float:
    return count * event.epsilon if delta >= event.delta else math.inf


def epsilons_by_their_root(event: PrivateStep, count: int, delta: float) -> float:
    return math.sqrt(count) * event.epsilon if delta >= count * event.delta else math.inf


def first_order_only(event: FinitePair, count: int, delta: float) -> float:
    run = Composed(events=((event, count),))
    return certified.epsilon_bounds(run, delta, direction=Direction.REMOVE).upper


def without_what_one_side_shows(event: FinitePair, count: int, delta: float) -> float:
    both = [(p, q) for p, q in zip(event.p, event.q, strict=True) if p and q]
    return count * max(abs(math.log(p / q)) for p, q in both)


def rate_times_epsilon(event: SubsampledLaplace, count: int, delta: float) -> float:
    return count * event.sampling_probability / event.scale


def one_record_of_each(event: SubsampledUser, count: int, delta: float) -> float:
    return sampled(event.noise_multiplier, event.sampling_probability, count, delta)


def epsilons_of_laplace_by_their_root(event: DiscreteLaplace, count: int, delta: float) -> float:
    return math.sqrt(count) * event.noise_parameter * event.largest_contribution


def contribution_of_one(event: DiscreteGaussian, count: int, delta: float) -> float:
    return epsilon_of_delta(math.sqrt(count) / event.sigma, delta)


def variance_of_each_poisson(event: Skellam, count: int, delta: float) -> float:
    sensitivity = event.largest_contribution * math.sqrt(count)
    return epsilon_of_delta(sensitivity / math.sqrt(2 * event.variance), delta)


def one_batch_of_a_sample(event: RandomAllocation, count: int, delta: float) -> float:
    return sampled(event.noise_multiplier, 1 / event.steps, count, delta)


def as_poisson_samples(event: ShuffledBatches, count: int, delta: float) -> float:
    steps = count * event.batches * event.epochs
    return sampled(event.noise_multiplier, 1 / event.batches, steps, delta)


def second_order_only(event: GaussianMixturePair, count: int, delta: float) -> float:
    run = Composed(events=((event, count),))
    return certified.epsilon_bounds(run, delta, direction=Direction.ADD).upper


NAIVE: list[tuple[type[Event], Any]] = [
    (CappedPoisson, without_the_cap),
    (BatchMean, by_a_fixed_divisor),
    (CorrelatedGaussian, without_the_correlation),
    (SampledCorrelatedGaussian, columns_of_norm_one),
    (ExponentialMechanism, one_score_moves),
    (BestOfRuns, selection_for_free),
    (SparseVector, one_answer_above),
    (PrivateStep, deltas_do_not_add),
    (PrivateStep, epsilons_by_their_root),
    (FinitePair, first_order_only),
    (FinitePair, without_what_one_side_shows),
    (SubsampledLaplace, rate_times_epsilon),
    (SubsampledUser, one_record_of_each),
    (DiscreteLaplace, epsilons_of_laplace_by_their_root),
    (DiscreteGaussian, contribution_of_one),
    (Skellam, variance_of_each_poisson),
    (RandomAllocation, one_batch_of_a_sample),
    (ShuffledBatches, as_poisson_samples),
    (GaussianMixturePair, second_order_only),
]


def gaussian(squared_sensitivity: float, noise: float, count: int, delta: float) -> float:
    return epsilon_of_delta(math.sqrt(count * squared_sensitivity * (1 + 1e-9)) / noise, delta)


def squared_columns(encoder: tuple[tuple[float, ...], ...]) -> Any:
    return (np.array(encoder) ** 2).sum(axis=0)


def correlated(event: CorrelatedGaussian, count: int, delta: float) -> float:
    """The triangle inequality over the participations."""
    largest = event.participations**2 * squared_columns(event.encoder).max()
    return gaussian(largest, event.noise_multiplier, count, delta)


def sampled_correlated(event: SampledCorrelatedGaussian, count: int, delta: float) -> float:
    """As if everybody were drawn."""
    squares = squared_columns(event.encoder)
    largest = max(squares[group :: event.groups].sum() for group in range(event.groups))
    return gaussian(largest, event.noise_multiplier, count, delta)


def promise(event: PrivateStep, count: int, delta: float) -> float:
    return count * event.epsilon if Fraction(delta) >= count * Fraction(event.delta) else math.inf


def finite_pair(event: FinitePair, count: int, delta: float) -> float:
    """What one side alone shows is a delta, the rest a pure promise; both add up."""
    both = [(p, q) for p, q in zip(event.p, event.q, strict=True) if p and q]
    alone = 1 - min(sum(p for p, _ in both), sum(q for _, q in both))
    largest = max(abs(math.log(p / q)) for p, q in both)
    return count * largest if Fraction(delta) >= count * alone else math.inf


SOUND: dict[type[Event], Answer] = {
    CappedPoisson: lambda event, count, delta: gaussian(4.0, event.noise_multiplier, count, delta),
    BatchMean: lambda event, count, delta: (
        certified.epsilon_bounds(Composed(events=((event, count),)), delta).upper
    ),
    CorrelatedGaussian: correlated,
    SampledCorrelatedGaussian: sampled_correlated,
    ExponentialMechanism: lambda event, count, delta: (
        count * float(event.range_of(Adjacency.ADD_REMOVE)) * (1 + 1e-12)
    ),
    BestOfRuns: lambda event, count, delta: count * float(event.loss()) * (1 + 1e-12),
    SparseVector: lambda event, count, delta: (
        count * (1 / event.threshold_scale + 2 * event.cutoff / event.query_scale) * (1 + 1e-12)
    ),
    PrivateStep: promise,
    FinitePair: finite_pair,
}


LONG = ("one_answer_above", "one_batch_of_a_sample", "without_the_cap")


CASES = [
    pytest.param(*case, id=case[1].__name__, marks=[pytest.mark.slow] * (case[1].__name__ in LONG))
    for case in NAIVE
]

BETWEEN = "never_below_certified_lower[between]"


@pytest.mark.parametrize(("kind", "answer"), CASES)
def test_a_naive_accountant_of_each_event_is_caught_by_the_quick_grid(kind: type[Event], answer: Any) -> None:
    check = f"never_below_certified_lower[{FAMILIES[kind]}]"
    result = run_checks(OfOneKind(answer.__name__, {kind: answer}), only=[check]).results[0]
    assert result.status is CheckStatus.FAILED, result.describe()
    assert result.fails_ci
    for report in result.under_reports:
        assert report.claimed < report.certified_lower
        assert report.rigorous


@pytest.mark.parametrize(
    ("kind", "answer"),
    [case for case in CASES if case.values[0] not in (ShuffledBatches, GaussianMixturePair)],
)
def test_it_is_caught_between_the_grids_values_under_one_of_three_seeds(
    kind: type[Event], answer: Any
) -> None:
    accountant = OfOneKind(answer.__name__, {kind: answer})
    for seed in range(3):
        (result,) = run_checks(accountant, only=[BETWEEN], seed=seed).results
        assert result.cells.judged > 0
        assert all(report.claimed < report.certified_lower for report in result.under_reports)
        if result.status is CheckStatus.FAILED:
            return
    raise AssertionError("no seed shows it")


@pytest.mark.parametrize("kind", SOUND, ids=[kind.__name__ for kind in SOUND])
def test_a_sound_accountant_of_each_event_is_not_flagged(kind: type[Event]) -> None:
    check = f"never_below_certified_lower[{FAMILIES[kind]}]"
    report = run_checks(OfOneKind("sound", {kind: SOUND[kind]}), only=[check, BETWEEN])
    for result in report.results:
        assert result.status is CheckStatus.PASSED, result.describe()
        assert result.cells.judged >= 1
        assert result.cells.out_of_time == result.cells.without_truth == 0


def test_what_is_no_number_fails_wherever_it_is_met() -> None:
    accountant = OfOneKind("nothing", {ExponentialMechanism: lambda event, count, delta: math.nan})
    report = run_checks(accountant, only=["never_below_certified_lower[choices]", "edge_cases"])
    assert report.fails_ci
    assert report.result("edge_cases").hidden > 0


class OfTheOtherAdjacency:
    """Answers for replaced records as for added ones, and else what is true."""

    def __init__(self, kind: type[Event]) -> None:
        self.name, self._kind = "of_the_other_adjacency", kind

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        if {type(part) for part, _ in event.parts()} != {self._kind}:
            raise UnsupportedError(f"{self.name} does not answer for {event.describe()}")
        return certified.epsilon_bounds(event, delta, adjacency=Adjacency.ADD_REMOVE).upper


@pytest.mark.parametrize(
    "kind",
    [
        SubsampledLaplace,
        DiscreteLaplace,
        Skellam,
        CorrelatedGaussian,
        SampledCorrelatedGaussian,
        ExponentialMechanism,
        pytest.param(SparseVector, marks=pytest.mark.slow),
    ],
)
def test_replaced_records_taken_for_added_ones_are_caught(kind: type[Event]) -> None:
    check = f"never_below_certified_lower[{FAMILIES[kind]}]"
    result = run_checks(OfTheOtherAdjacency(kind), only=[check]).results[0]
    assert result.status is CheckStatus.FAILED, result.describe()
    assert {report.adjacency for report in result.under_reports} == {"replace-one"}


def test_each_event_has_cells_on_both_grids() -> None:
    for grid, least in (("quick", 1), ("full", 16)):
        for kind, family in FAMILIES.items():
            parts = [next(cell.question.event.parts())[0] for cell in families(grid)[family]]
            assert sum(isinstance(part, kind) for part in parts) >= least, (grid, kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_whole_quick_grid_decides_within_a_minute_of_processor_time(seed: int) -> None:
    """All checks: of an accountant that knows all these events soundly, and of one that is naive in all."""
    naive = {kind: answer for kind, answer in NAIVE if kind in SOUND}
    for answers, is_sound in ((SOUND, True), (naive, False)):
        start = now()
        report = run_checks(OfOneKind("of_all", answers), seed=seed)
        assert now() - start < 60
        assert report.fails_ci is not is_sound
        failed = {result.name for result in report.failed}
        expected = {
            f"never_below_certified_lower[{family}]" for kind, family in FAMILIES.items() if kind in SOUND
        } | {BETWEEN}
        assert failed == (set() if is_sound else expected)
