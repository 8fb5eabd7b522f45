"""Choices between candidates and bare promises: against enumerations, closed forms and another library."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from workbench.accounting import Composed, ExponentialMechanism, Gaussian, PrivateStep, delta, epsilon, tpr
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency

CELLS = [
    (scale, monotone, adjacency)
    for scale in (0.5, 2.0, 20.0)
    for monotone in (False, True)
    for adjacency in Adjacency
]


def change(monotone: bool, adjacency: Adjacency) -> tuple[float, float]:
    """Least and largest change of one candidate's score."""
    least, most = (0.0 if monotone else -1.0), 1.0
    return (least - most, most - least) if adjacency is Adjacency.REPLACE_ONE else (least, most)


def choice(scores: np.ndarray, scale: float) -> np.ndarray:
    weights = np.exp((scores - scores.max()) / scale)
    return weights / weights.sum()


def hockey_stick(p: np.ndarray, q: np.ndarray, level: float) -> float:
    return float(np.maximum(p - math.exp(level) * q, 0).sum())


def largest_of_two(scale: float, lowest: float, highest: float, level: float) -> float:
    """The largest divergence of choices between two candidates, over a fine grid of the others' scores."""
    reach = (highest - lowest) / scale + 3
    odds = np.exp(np.linspace(-reach, reach, 20_001))
    grown = odds * math.exp((highest - lowest) / scale)
    p, q = grown / (1 + grown), odds / (1 + odds)
    gains = [np.maximum(a - math.exp(level) * b, 0) for a, b in ((p, q), (1 - q, 1 - p))]
    return float(max(gain.max() for gain in gains))


@pytest.mark.parametrize(("scale", "monotone", "adjacency"), CELLS)
def test_one_choice_is_the_worst_of_all_pairs_of_candidates(
    scale: float, monotone: bool, adjacency: Adjacency
) -> None:
    event, (lowest, highest) = (
        ExponentialMechanism(scale=scale, monotone=monotone),
        change(monotone, adjacency),
    )
    for share in (0.0, 0.3, 0.8):
        level = share * (highest - lowest) / scale
        found = delta(event, level, adjacency=adjacency)
        twin = largest_of_two(scale, lowest, highest, level)
        assert isinstance(found, Bounds)
        assert twin <= found.upper * (1 + 1e-12)
        assert found.lower <= twin * (1 + 1e-5)
        assert found.relative_width < 1e-12
    assert delta_bounds(event, 1.001 * (highest - lowest) / scale, adjacency=adjacency).upper == 0


@pytest.mark.parametrize(("scale", "monotone", "adjacency"), CELLS)
def test_no_scores_leave_the_bounds(scale: float, monotone: bool, adjacency: Adjacency) -> None:
    """Random scores, changes and candidates; every second one changes only to the ends, as the worst do."""
    generator = np.random.default_rng(5)
    event, (lowest, highest) = (
        ExponentialMechanism(scale=scale, monotone=monotone),
        change(monotone, adjacency),
    )
    thrice = Composed(events=((event, 3),))
    level = 0.8 * (highest - lowest) / scale
    once, composed = (delta_bounds(e, level, adjacency=adjacency) for e in (event, thrice))
    fpr = 0.05
    power = tpr(event, fpr, adjacency=adjacency)
    assert isinstance(power, Bounds)
    for trial in range(60):
        scores = generator.normal(scale=2 * scale, size=int(generator.integers(2, 5)))
        moved = generator.uniform(lowest, highest, size=len(scores))
        if trial % 2:
            moved = np.where(moved > (lowest + highest) / 2, highest, lowest)
        p, q = choice(scores + moved, scale), choice(scores, scale)
        for one, other in ((p, q), (q, p)):
            assert hockey_stick(one, other, level) <= once.upper * (1 + 1e-9) + 1e-15
            products = [
                np.array([math.prod(row) for row in itertools.product(r, repeat=3)]) for r in (one, other)
            ]
            assert hockey_stick(products[0], products[1], level) <= composed.upper * (1 + 1e-9)
            order = np.argsort(-one / other)
            rates = (
                np.concatenate(([0.0], np.cumsum(other[order]))),
                np.concatenate(([0.0], np.cumsum(one[order]))),
            )
            assert np.interp(fpr, *rates) <= power.upper * (1 + 1e-9)


def test_the_power_of_one_choice_is_attained_by_two_candidates() -> None:
    event, fpr, growth = ExponentialMechanism(scale=1.0), 0.05, math.exp(2.0)
    odds = fpr / (1 - fpr)
    found = tpr(event, fpr)
    assert isinstance(found, Bounds)
    assert found.lower == pytest.approx(growth * odds / (1 + growth * odds), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("scale", "count"), [(4.0, 2), (10.0, 5), (30.0, 50), (100.0, 2000)])
def test_composed_choices_lie_between_two_candidates_and_the_pure_promise(
    scale: float, count: int, adjacency: Adjacency
) -> None:
    event = ExponentialMechanism(scale=scale)
    whole = float(event.range_of(adjacency))
    found = epsilon_bounds(Composed(events=((event, count),)), 1e-6, adjacency=adjacency)
    pure = epsilon_bounds(Composed(events=((PrivateStep(epsilon=whole), count),)), 1e-6)
    assert 0 < found.lower <= found.upper < pure.upper
    assert found.upper < 1.3 * found.lower
    assert "dominating pair" in found.method
    # A bounded range spends range^2 / 8 of concentrated privacy (Cesar and Rogers 2021).
    rho = count * whole**2 / 8
    assert found.lower <= rho + 2 * math.sqrt(rho * math.log(1e6))


def test_choices_compose_with_other_events() -> None:
    event = Composed(events=((ExponentialMechanism(scale=10.0), 4), (Gaussian(noise_multiplier=5.0), 2)))
    found = epsilon_bounds(event, 1e-5)
    gaussian = epsilon_bounds(Composed(events=((Gaussian(noise_multiplier=5.0), 2),)), 1e-5)
    assert gaussian.upper < found.lower <= found.upper < gaussian.upper + 0.8


@pytest.mark.parametrize(
    ("level", "slack", "count"), [(1.0, 0.0, 1), (0.5, 1e-6, 10), (0.1, 1e-5, 30), (2.0, 0.01, 3)]
)
def test_promises_compose_as_in_another_library(level: float, slack: float, count: int) -> None:
    from dp_accounting.pld import common

    event = Composed(events=((PrivateStep(epsilon=level, delta=slack), count),))
    theirs = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(level, slack))
    composed = theirs.self_compose(count)
    for share in (0.3, 0.7):
        at = share * level * count
        found = delta_bounds(event, at)
        assert found.lower <= composed.get_delta_for_epsilon(at) * (1 + 1e-9)
        assert composed.get_delta_for_epsilon(at) <= found.upper * (1 + 1e-2)
        assert found.relative_width < 1e-9
        # Kairouz, Oh and Viswanath 2015, theorem 3.3, summed naively.
        kept = (1 - slack) ** count
        naive = sum(
            math.comb(count, k)
            * max(math.exp((count - k) * level) - math.exp(at + k * level), 0.0)
            / (1 + math.exp(level)) ** count
            for k in range(count + 1)
        )
        truth = 1 - kept + kept * naive
        assert found.lower <= truth * (1 + 1e-9)
        assert truth <= found.upper * (1 + 1e-9)


def test_a_promise_alone_is_itself() -> None:
    assert epsilon(PrivateStep(epsilon=1.0), 1e-12).upper == pytest.approx(1.0)
    assert epsilon(PrivateStep(epsilon=1.0, delta=0.1), 0.05).upper == math.inf
    assert epsilon(PrivateStep(epsilon=0.0), 1e-6).upper < 1e-12


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": 0.0}, "scale must be finite and > 0, got 0.0"),
        ({"scale": 1.0, "monotone": 1}, "monotone must be true or false, got 1"),
    ],
)
def test_a_mechanism_out_of_range_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExponentialMechanism(**given)  # type: ignore[arg-type]
