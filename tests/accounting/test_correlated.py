"""Correlated noise: sensitivities against enumerated patterns and signs, epsilons against the closed form."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.correlated import CorrelatedGaussian
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency


def rows(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))


def prefix(count: int) -> np.ndarray:
    return np.tril(np.ones((count, count)))


def banded(count: int, width: int) -> np.ndarray:
    return np.asarray(sum(0.6**k * np.eye(count, k=-k) for k in range(width)))


def square_root(count: int) -> np.ndarray:
    """The lower triangular Toeplitz square root of the prefix sums."""
    entries = [math.comb(2 * k, k) / 4**k for k in range(count)]
    return np.asarray(sum(entry * np.eye(count, k=-k) for k, entry in enumerate(entries)))


def patterns(count: int, most: int, apart: int) -> list[tuple[int, ...]]:
    return [
        steps
        for size in range(1, most + 1)
        for steps in itertools.combinations(range(count), size)
        if all(b - a >= apart for a, b in itertools.pairwise(steps))
    ]


def brute_force(matrix: np.ndarray, most: int, apart: int) -> float:
    """Largest squared norm of C x over patterns and signs."""
    best = 0.0
    for steps in patterns(len(matrix), most, apart):
        for signs in itertools.product((1.0, -1.0), repeat=len(steps)):
            best = max(best, float(((matrix[:, list(steps)] @ np.array(signs)) ** 2).sum()))
    return best


MATRICES = {
    "prefix": prefix(7),
    "banded": banded(8, 3),
    "square root": square_root(7),
    "identity": np.eye(6),
    "signs": np.tril(np.random.default_rng(3).normal(size=(7, 7))),
}


@pytest.mark.parametrize(("most", "apart"), [(1, 1), (2, 1), (2, 3), (3, 2), (4, 2), (7, 1)])
@pytest.mark.parametrize("name", list(MATRICES))
def test_the_sensitivity_lies_around_the_enumerated_one(name: str, most: int, apart: int) -> None:
    matrix = MATRICES[name]
    event = CorrelatedGaussian(
        noise_multiplier=1.0, encoder=rows(matrix), participations=min(most, len(matrix)), separation=apart
    )
    lower, upper = map(float, event.squared_sensitivity)
    truth = brute_force(matrix, most, apart)
    assert lower * (1 - 1e-9) <= truth <= upper * (1 + 1e-9)
    if most == 1 or name == "identity" or (name == "banded" and apart >= 3):
        assert upper == pytest.approx(lower, rel=1e-8)
    if name != "signs":
        # Vectors of several dimensions do no better than one direction.
        generator = np.random.default_rng(4)
        for steps in patterns(len(matrix), most, apart)[::7]:
            x = generator.normal(size=(len(steps), 3))
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            assert ((matrix[:, list(steps)] @ x) ** 2).sum() <= truth * (1 + 1e-9)
    assert upper <= (4 if name == "signs" else 2) * lower


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("name", ["prefix", "banded", "square root"])
def test_a_run_is_the_gaussian_of_its_sensitivity(name: str, adjacency: Adjacency) -> None:
    matrix = MATRICES[name]
    event = CorrelatedGaussian(noise_multiplier=3.0, encoder=rows(matrix))
    moved = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    mu = moved * float(np.linalg.norm(matrix, axis=0).max()) / 3.0
    found = epsilon_bounds(event, 1e-5, adjacency=adjacency)
    truth = epsilon_of_delta(mu, 1e-5)
    assert found.lower * (1 - 1e-9) <= truth <= found.upper * (1 + 1e-9)
    assert found.relative_width < 1e-7


def test_contributions_of_opposite_signs_are_known_of_columns_that_oppose_each_other() -> None:
    event = CorrelatedGaussian(noise_multiplier=2.0, encoder=((1.0, 0.0), (-0.5, 1.0)), participations=2)
    # u and -u: the columns' difference is (1, -1.5).
    exact = epsilon_of_delta(math.sqrt(1 + 1.5**2) / 2.0, 1e-5)
    bounds = epsilon_bounds(event, 1e-5)
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower < 1e-7


def test_uncorrelated_noise_is_the_composition() -> None:
    event = CorrelatedGaussian(noise_multiplier=2.0, encoder=rows(np.eye(9)), participations=3, separation=4)
    found = epsilon_bounds(event, 1e-6)
    assert found.lower <= epsilon_of_delta(math.sqrt(3) / 2, 1e-6) <= found.upper


def test_a_long_run_is_quick() -> None:
    event = CorrelatedGaussian(
        noise_multiplier=5.0, encoder=rows(banded(400, 20)), participations=10, separation=20
    )
    found = epsilon_bounds(event, 1e-6)
    assert found.relative_width < 1e-7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoder": ()}, "encoder must be a square"),
        ({"encoder": ((1.0, 0.0),)}, "encoder must be a square"),
        ({"encoder": 3}, "encoder must be rows of numbers, got 3"),
        ({"encoder": ((1.0, 2.0), (0.0, 1.0))}, "encoder must be lower triangular"),
        ({"encoder": ((0.0,),)}, "encoder must have an entry other than 0"),
        ({"encoder": ((math.nan,),)}, "encoder must be"),
        ({"encoder": ((1.0,),), "participations": 2}, "participations must be at most 1, got 2"),
        ({"encoder": ((1.0,),), "noise_multiplier": -1.0}, "noise_multiplier must be finite and > 0"),
    ],
)
def test_a_matrix_out_of_range_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CorrelatedGaussian(**{"noise_multiplier": 1.0} | given)  # type: ignore[arg-type]
