"""Each event in 20 cells off every lattice, against a method that shares no code with the bounds.

Integrals by the midpoint rule, direct sums over integers, sums of exact fractions, closed forms. In each cell
the value lies within the certified bounds, and that of a mechanism with 3 % less noise does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.special import ive
from scipy.stats import binom, laplace, norm

from workbench.accounting import (
    Composed,
    CorrelatedGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    FinitePair,
    FixedBatch,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    PrivateStep,
    RandomisedResponse,
    SampledCorrelatedGaussian,
    Skellam,
    SubsampledGaussian,
    SubsampledLaplace,
    SubsampledUser,
    delta,
)
from workbench.interfaces import Adjacency

CELLS = 20
LESS = 0.97
"""What the noise of the wrong variant is multiplied by."""

ROUNDING = 1e-5
"""Relative error that is granted to integrals on a grid."""

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
Values = np.ndarray


def divergence(p: Values, q: Values, level: float) -> float:
    """The larger hockey-stick divergence of both orders, of masses."""
    growth = math.exp(level)
    return float(max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum()))


def masses(density: Callable[[Values], Values], reach: float, points: int = 30_001) -> Values:
    """Of the cells of a midpoint grid over [-reach, reach]."""
    edges = np.linspace(-reach, reach, points)
    return np.asarray(density((edges[1:] + edges[:-1]) / 2) * (edges[1] - edges[0]))


def mixture(weights: Values, means: Values, noise: float, reach: float) -> Values:
    """Masses of a mixture of Gaussians."""
    return masses(
        lambda x: sum(w * norm.pdf(x, m, noise) for w, m in zip(weights, means, strict=True)),  # type: ignore[arg-type, return-value]
        reach,
    )


def gaussian(noise: float, count: int, shift: float) -> Callable[[float], float]:
    """The closed form of Balle and Wang 2018, theorem 8."""
    mu = shift * math.sqrt(count) / noise
    return lambda level: float(
        norm.cdf(mu / 2 - level / mu) - math.exp(level) * norm.cdf(-mu / 2 - level / mu)
    )


def sampled(noise: float, rate: float, adjacency: Adjacency) -> Callable[[float], float]:
    """One step on a Poisson sample."""
    other = -1.0 if adjacency is REPLACE_ONE else 0.0
    sides = [
        mixture(np.array([1 - rate, rate]), np.array([0.0, at]), noise, 10 * noise + 1) for at in (1.0, other)
    ]
    return lambda level: divergence(sides[0], sides[1], level)


def sampled_laplace(scale: float, rate: float, adjacency: Adjacency) -> Callable[[float], float]:
    """One step; the grid has the kinks of both densities among its edges."""
    other = -1.0 if adjacency is REPLACE_ONE else 0.0
    reach = math.ceil(25 * scale) + 1.0
    sides = [
        masses(
            lambda x, at=at: (1 - rate) * laplace.pdf(x, 0, scale) + rate * laplace.pdf(x, at, scale),
            reach,
            int(2 * reach) * 1500 + 1,
        )
        for at in (1.0, other)
    ]
    return lambda level: divergence(sides[0], sides[1], level)


def integers(weights: Callable[[Values], Values], shift: int) -> Callable[[float], float]:
    """Noise on the integers, by direct sums."""
    x = np.arange(-600, 601)
    f = weights(x) / weights(x).sum()
    p, q = np.concatenate((np.zeros(shift), f)), np.concatenate((f, np.zeros(shift)))
    return lambda level: divergence(p, q, level)


def responses(parameter: float, categories: int, count: int) -> Callable[[float], float]:
    """How often the truth and the neighbour's category are told, in exact fractions."""
    noise = Fraction(parameter)
    other = noise / categories
    truth, third = 1 - noise + other, other * (categories - 2)

    def value(level: float) -> float:
        growth, total = Fraction(math.exp(level)), Fraction(0)
        for i in range(count + 1):
            for j in range(count + 1 - i):
                ways = math.comb(count, i) * math.comb(count - i, j) * third ** (count - i - j)
                gain = truth**i * other**j - growth * truth**j * other**i
                total += ways * gain if gain > 0 else 0
        return float(total)

    return value


def promise(pure: float, slack: float, count: int) -> Callable[[float], float]:
    """Kairouz, Oh and Viswanath 2015, theorem 3.3: the composition of the worst mechanism."""

    def value(level: float) -> float:
        told = np.arange(count + 1)
        losses = (2 * told - count) * pure
        chance = binom.pmf(told, count, 1 / (1 + math.exp(-pure)))
        gain = float((chance * np.maximum(-np.expm1(level - losses), 0)).sum())
        return 1 - (1 - slack) ** count * (1 - gain)

    return value


@dataclass(frozen=True)
class Case:
    """An event at random, and its delta with a share of its noise.

    Attributes:
        event: From four numbers in (0, 1).
        value: From these and the share of the noise: delta by epsilon.
        adjacency: Of all cells.
        rounding: Relative error that is granted to the independent method.
    """

    event: Callable[[Values], Event]
    value: Callable[[Values, float], Callable[[float], float]]
    adjacency: Adjacency = ADD_REMOVE
    rounding: float = ROUNDING


def between(u: float, least: float, most: float) -> float:
    """Log-uniform."""
    return least * (most / least) ** float(u)


def repeated(event: Event, count: int) -> Event:
    return Composed(events=((event, count),))


def noise(u: Values) -> float:
    return between(u[0], 0.6, 4.0)


def rate(u: Values) -> float:
    return between(u[1], 0.02, 0.9)


def whole(u: float, least: int, most: int) -> int:
    return least + int(u * (most - least + 1))


ENCODER = ((1.0, 0.0, 0.0), (-0.4, 1.0, 0.0), (-0.15, -0.4, 1.0))
"""Of three steps; its first column has the largest norm."""

COLUMN = math.sqrt(1 + 0.4**2 + 0.15**2)

BANDED = ((1.0, 0.0, 0.0), (-0.4, 1.0, 0.0), (0.0, -0.4, 1.0))
"""Two bands; the first and the third step are the first group's turns."""


def weights(u: Values) -> tuple[float, float, float]:
    """Of three components."""
    second = float(u[1]) / 2
    return 0.5, second, 0.5 - second


def blurred(u: Values, side: int, share: float) -> tuple[Fraction, ...]:
    """Three outputs, of which a random one takes the place of the right one with a chance of at least 0.3."""
    random = Fraction(share) * (Fraction(3, 10) + Fraction(float(u[0])) / 2)
    right = (
        (Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)),
        (Fraction(1, 5), Fraction(1, 2), Fraction(3, 10)),
    )
    return tuple((1 - random) * chance + random / 3 for chance in right[side])


CASES: dict[str, Case] = {
    "gaussian": Case(
        lambda u: repeated(Gaussian(noise_multiplier=noise(u)), whole(u[1], 1, 9)),
        lambda u, share: gaussian(share * noise(u), whole(u[1], 1, 9), 1.0),
        rounding=1e-9,
    ),
    "gaussian, replace-one": Case(
        lambda u: repeated(Gaussian(noise_multiplier=noise(u)), whole(u[1], 1, 9)),
        lambda u, share: gaussian(share * noise(u), whole(u[1], 1, 9), 2.0),
        REPLACE_ONE,
        rounding=1e-9,
    ),
    "subsampled gaussian": Case(
        lambda u: SubsampledGaussian(noise_multiplier=noise(u), sampling_probability=rate(u)),
        lambda u, share: sampled(share * noise(u), rate(u), ADD_REMOVE),
    ),
    "subsampled gaussian, replace-one": Case(
        lambda u: SubsampledGaussian(noise_multiplier=noise(u), sampling_probability=rate(u)),
        lambda u, share: sampled(share * noise(u), rate(u), REPLACE_ONE),
        REPLACE_ONE,
    ),
    "laplace": Case(
        lambda u: Laplace(scale=noise(u)),
        lambda u, share: lambda level: -math.expm1(min((level - 1 / (share * noise(u))) / 2, 0.0)),
        rounding=1e-9,
    ),
    "subsampled laplace": Case(
        lambda u: SubsampledLaplace(scale=noise(u), sampling_probability=rate(u)),
        lambda u, share: sampled_laplace(share * noise(u), rate(u), ADD_REMOVE),
    ),
    "subsampled laplace, replace-one": Case(
        lambda u: SubsampledLaplace(scale=noise(u), sampling_probability=rate(u)),
        lambda u, share: sampled_laplace(share * noise(u), rate(u), REPLACE_ONE),
        REPLACE_ONE,
    ),
    "randomised response": Case(
        lambda u: repeated(
            RandomisedResponse(noise_parameter=between(u[0], 0.2, 0.9), categories=whole(u[1], 2, 5)),
            whole(u[2], 1, 6),
        ),
        lambda u, share: responses(share * between(u[0], 0.2, 0.9), whole(u[1], 2, 5), whole(u[2], 1, 6)),
        REPLACE_ONE,
        rounding=1e-9,
    ),
    "discrete laplace": Case(
        lambda u: DiscreteLaplace(noise_parameter=1 / noise(u)),
        lambda u, share: integers(lambda x: np.exp(-np.abs(x) / (share * noise(u))), 1),
        rounding=1e-9,
    ),
    "discrete gaussian": Case(
        lambda u: DiscreteGaussian(sigma=2 * noise(u), largest_contribution=whole(u[1], 1, 3)),
        lambda u, share: integers(
            lambda x: np.exp(-(x**2) / (2 * (2 * share * noise(u)) ** 2)), whole(u[1], 1, 3)
        ),
        rounding=1e-9,
    ),
    "skellam": Case(
        lambda u: Skellam(variance=4 * noise(u) ** 2, largest_contribution=whole(u[1], 1, 3)),
        lambda u, share: integers(lambda x: ive(np.abs(x), 4 * (share * noise(u)) ** 2), whole(u[1], 1, 3)),
        rounding=1e-9,
    ),
    "several records a person": Case(
        lambda u: SubsampledUser(
            noise_multiplier=2 * noise(u), sampling_probability=rate(u), records=whole(u[2], 2, 5)
        ),
        lambda u, share: users(2 * share * noise(u), rate(u), whole(u[2], 2, 5)),
    ),
    "fixed batch": Case(
        lambda u: FixedBatch(noise_multiplier=2 * noise(u), dataset_size=97, batch_size=whole(u[1], 2, 90)),
        lambda u, share: sampled(share * noise(u), whole(u[1], 2, 90) / 97, ADD_REMOVE),
    ),
    "private step": Case(
        lambda u: repeated(PrivateStep(epsilon=1 / (2 * noise(u)), delta=1e-5 * u[1]), whole(u[2], 1, 8)),
        lambda u, share: promise(1 / (2 * share * noise(u)), 1e-5 * u[1], whole(u[2], 1, 8)),
        rounding=1e-9,
    ),
    "correlated gaussian": Case(
        lambda u: CorrelatedGaussian(noise_multiplier=noise(u), encoder=ENCODER),
        lambda u, share: gaussian(share * noise(u), 1, COLUMN),
        rounding=1e-9,
    ),
    "sampled correlated gaussian": Case(
        lambda u: SampledCorrelatedGaussian(
            noise_multiplier=noise(u), encoder=BANDED, sampling_probability=rate(u), groups=2
        ),
        lambda u, share: turns(share * noise(u), rate(u)),
    ),
    "exponential mechanism": Case(
        lambda u: ExponentialMechanism(scale=noise(u), monotone=bool(u[1] < 0.5)),
        lambda u, share: choices((1 if u[1] < 0.5 else 2) / (share * noise(u))),
    ),
    "gaussian mixture pair": Case(
        lambda u: GaussianMixturePair(
            p_means=(0.0, 1.0, 1 + float(u[2])),
            p_weights=weights(u),
            q_means=(0.0, -0.5),
            q_weights=(0.75, 0.25),
            standard_deviation=noise(u),
        ),
        lambda u, share: mixtures(
            share * noise(u), weights(u), (0.0, 1.0, 1 + float(u[2])), (0.75, 0.25), (0.0, -0.5)
        ),
    ),
    "finite pair": Case(
        lambda u: repeated(FinitePair(p=blurred(u, 0, 1.0), q=blurred(u, 1, 1.0)), whole(u[2], 1, 5)),
        lambda u, share: sequences(blurred(u, 0, share), blurred(u, 1, share), whole(u[2], 1, 5)),
        rounding=1e-9,
    ),
    "composed": Case(
        lambda u: Composed(
            events=((Gaussian(noise_multiplier=2 * noise(u)), 3), (Laplace(scale=between(u[1], 0.8, 5.0)), 1))
        ),
        lambda u, share: both(share * 2 * noise(u), 3, share * between(u[1], 0.8, 5.0)),
    ),
}


def users(noise: float, rate: float, records: int) -> Callable[[float], float]:
    """A binomial number of a person's records in the sum."""
    weights, means = binom.pmf(np.arange(records + 1), records, rate), np.arange(records + 1.0)
    reach = 10 * noise + records
    p, q = mixture(weights, means, noise, reach), mixture(np.ones(1), np.zeros(1), noise, reach)
    return lambda level: divergence(p, q, level)


def turns(noise: float, rate: float) -> Callable[[float], float]:
    """A record of the first group: the joint output of all steps, on a grid over what its columns span."""
    encoder = np.array(BANDED)
    basis, _ = np.linalg.qr(encoder[:, [0, 2]])
    columns = (encoder[:, [0, 2]].T @ basis).tolist()
    edges = np.linspace(-9 * noise - 2, 9 * noise + 2, 1501)
    x, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]

    def law(means: list[tuple[float, list[float]]]) -> Values:
        rows = [
            chance * np.multiply.outer(*(norm.pdf(x, place, noise) * width for place in mean))
            for chance, mean in means
        ]
        return np.asarray(sum(rows))

    taken = [
        (
            math.prod(rate if part else 1 - rate for part in parts),
            [
                sum(part * column[axis] for part, column in zip(parts, columns, strict=True))
                for axis in (0, 1)
            ],
        )
        for parts in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    p, q = law(taken), law([(1.0, [0.0, 0.0])])
    return lambda level: divergence(p, q, level)


def choices(distance: float) -> Callable[[float], float]:
    """Two candidates, whose odds the record multiplies by exp(distance): all odds on a grid."""
    odds = np.exp(np.linspace(-distance - 12, 12, 400_001))
    p, q = odds * math.exp(distance) / (1 + odds * math.exp(distance)), odds / (1 + odds)
    return lambda level: float(np.max(p - math.exp(level) * q))


def mixtures(
    noise: float, p_weights: Values, p_means: Values, q_weights: Values, q_means: Values
) -> Callable[[float], float]:
    """Both orders, on a grid."""
    reach = 10 * noise + 2
    p, q = (
        mixture(np.array(w), np.array(m), noise, reach)
        for w, m in ((p_weights, p_means), (q_weights, q_means))
    )
    return lambda level: divergence(p, q, level)


def sequences(p: tuple[Fraction, ...], q: tuple[Fraction, ...], count: int) -> Callable[[float], float]:
    """All sequences of outputs, in exact fractions."""
    sides = [
        [math.prod(side[output] for output in outputs) for outputs in product(range(len(p)), repeat=count)]
        for side in (p, q)
    ]

    def value(level: float) -> float:
        growth = Fraction(math.exp(level))
        return max(
            float(sum((max(a - growth * b, Fraction(0)) for a, b in zip(*order, strict=True)), Fraction(0)))
            for order in (sides, sides[::-1])
        )

    return value


def both(noise: float, count: int, scale: float) -> Callable[[float], float]:
    """Gaussians and one Laplace: given the latter's output, on a grid, the former's closed form."""
    mu, reach = math.sqrt(count) / noise, math.ceil(30 * scale) + 1.0
    p, q = (
        masses(lambda x, at=at: laplace.pdf(x, at, scale), reach, int(2 * reach) * 200 + 1)
        for at in (1.0, 0.0)
    )
    losses = np.log(p / q)

    def value(level: float) -> float:
        rest = level - losses
        gain = p * norm.cdf(mu / 2 - rest / mu) - math.exp(level) * q * norm.cdf(-mu / 2 - rest / mu)
        return float(gain.sum())

    return value


def cells(name: str) -> list[tuple[Values, float]]:
    """Numbers of each cell, and an epsilon at which delta is a hundredth to a half of what it is at 0."""
    generator = np.random.default_rng([20260730, *name.encode()])
    found = []
    for u in generator.random((CELLS, 4)):
        value, low, high = CASES[name].value(u, 1.0), 0.0, 8.0
        target = value(0.0) * between(u[3], 0.01, 0.5)
        for _ in range(8):
            middle = (low + high) / 2
            low, high = (middle, high) if value(middle) > target else (low, middle)
        found.append((u, low))
    return found


SLOW = {
    "sampled correlated gaussian",
    "skellam",
    "subsampled laplace",
    "subsampled laplace, replace-one",
    "discrete laplace",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_each_event_is_what_another_method_finds(name: str) -> None:
    case, outside = CASES[name], 0
    for u, level in cells(name):
        bounds = delta(case.event(u), level, adjacency=case.adjacency)
        right, wrong = case.value(u, 1.0)(level), case.value(u, LESS)(level)
        assert right > 0
        assert bounds.lower * (1 - case.rounding) <= right <= bounds.upper * (1 + case.rounding), (u, level)
        outside += not bounds.lower * (1 - case.rounding) <= wrong <= bounds.upper * (1 + case.rounding)
    assert outside == CELLS
