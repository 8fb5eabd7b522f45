"""The slow, independent methods: against closed forms, exact counts, each other, and the golden table."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from flint import arb, ctx
from oracles import ball_checks
from oracles.ball_checks import (
    composed_delta_inversion,
    composed_delta_polynomial,
    composed_epsilon_polynomial,
    golden_cells,
    golden_value,
    subsampled_gaussian_delta_quadrature,
)
from oracles.ball_steps import composed_curves, dominating_law, step_orders

from workbench.accounting import certified, exact
from workbench.accounting.balls.shuffled import Cells, GridChoice, dominated_law
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.interfaces import Adjacency

COARSE = GridChoice(cells=1 << 11, tail=1e-11)
ONE_STEP = (
    SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.01),
    SubsampledGaussian(noise_multiplier=0.3, sampling_probability=1e-4),
    SubsampledGaussian(noise_multiplier=5.0, sampling_probability=0.5),
)


def overlap(one: Bounds, other: Bounds) -> bool:
    """True where both may hold the same truth."""
    return max(one.lower, other.lower) <= min(one.upper, other.upper)


def golden() -> list[dict[str, float | int | str]]:
    text = resources.files("workbench.data").joinpath("certified/subsampled_gaussian.json").read_text()
    values: list[dict[str, float | int | str]] = json.loads(text)["values"]
    return values


@pytest.mark.parametrize("event", ONE_STEP)
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_quadrature_equals_the_closed_form(
    event: SubsampledGaussian, epsilon: float, adjacency: Adjacency
) -> None:
    integral = subsampled_gaussian_delta_quadrature(event, epsilon, adjacency)
    closed = exact.delta_bounds(event, epsilon, adjacency)
    assert overlap(integral, closed)
    assert integral.relative_width < 1e-6


def test_quadrature_rejects_another_sampling_probability() -> None:
    """A negative control: the two methods tell a thousandth of the sampling probability apart."""
    shifted = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.01 * 1.001)
    integral = subsampled_gaussian_delta_quadrature(shifted, 0.1, Adjacency.ADD_REMOVE)
    assert not overlap(integral, exact.delta_bounds(ONE_STEP[0], 0.1, Adjacency.ADD_REMOVE))


COUNTED: tuple[tuple[Event, Adjacency, float], ...] = (
    (Gaussian(noise_multiplier=1.0), Adjacency.ADD_REMOVE, 1e-3),
    (Composed(events=((Gaussian(noise_multiplier=8.0), 64),)), Adjacency.ADD_REMOVE, 2e-3),
    (Composed(events=((Gaussian(noise_multiplier=2.0), 3),)), Adjacency.REPLACE_ONE, 1e-3),
    (Laplace(scale=1.5), Adjacency.ADD_REMOVE, 1e-3),
    (Composed(events=((RandomisedResponse(noise_parameter=0.8), 30),)), Adjacency.REPLACE_ONE, 0.2),
    (ONE_STEP[0], Adjacency.ADD_REMOVE, 0.1),
    (ONE_STEP[2], Adjacency.REPLACE_ONE, 1e-3),
)


@pytest.mark.slow
@pytest.mark.parametrize(("event", "adjacency", "width"), COUNTED)
def test_polynomial_encloses_what_is_known_exactly(event: Event, adjacency: Adjacency, width: float) -> None:
    known = exact.epsilon_bounds(event, 1e-5, adjacency)
    found = composed_epsilon_polynomial(event, 1e-5, adjacency, choice=COARSE)
    assert found.rigorous
    assert found.lower <= known.upper
    assert known.lower <= found.upper
    assert found.relative_width < width


@pytest.mark.parametrize("law", [dominating_law, dominated_law])
@pytest.mark.parametrize("event", [ONE_STEP[0], Gaussian(noise_multiplier=1.5), Laplace(scale=2.0)])
def test_one_step_laws_are_probabilities(law: object, event: Event) -> None:
    """A dominating law holds all of P; a dominated one may drop losses below the grid, and never adds."""
    assert callable(law)
    for steps in step_orders(event, Adjacency.ADD_REMOVE):
        with ctx.workprec(128):
            made = law(steps[0][0], Cells(width=arb(0.05), offset=arb(0), low=-20, high=60))
            total = sum(made.masses, arb(0)) + made.infinite
            assert all(not mass < 0 for mass in made.masses)
        assert total.overlaps(arb(1)) if law is dominating_law else float(total) <= 1 + 1e-15


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "epsilon"), [(1.0, 0.1, 100, 4.0), (2.0, 0.5, 100, 10.0), (4.0, 0.1, 1000, 3.0)]
)
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_inversion_lies_between_the_fast_engines_bounds(
    sigma: float, q: float, steps: int, epsilon: float, adjacency: Adjacency
) -> None:
    run = gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps)
    inverted = composed_delta_inversion(run, epsilon, adjacency)
    assert not inverted.rigorous
    assert inverted.relative_width < 1e-6
    assert overlap(inverted, certified.delta_bounds(run, epsilon, adjacency=adjacency))


def test_inversion_equals_the_gaussians_closed_form() -> None:
    event = Composed(events=((Gaussian(noise_multiplier=6.0), 10), (Gaussian(noise_multiplier=9.0), 5)))
    for epsilon in (0.0, 1.0, 3.0, 5.0):
        inverted = composed_delta_inversion(event, epsilon)
        assert overlap(inverted, exact.delta_bounds(event, epsilon))


def test_inversion_gives_up_where_it_cannot_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ball_checks, "_LARGEST_NODE_COUNT", 1024)
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=1e-4, steps=2)
    with pytest.raises(InconclusiveError):
        composed_delta_inversion(run, 0.1)


@pytest.mark.slow
def test_all_three_agree_and_a_broken_accountant_does_not() -> None:
    """Remove is the larger order; the reverse alone, a well-known mistake, falls below the enclosure."""
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.1, steps=50)
    polynomial = composed_delta_polynomial(run, 2.0, choice=COARSE)
    assert polynomial.relative_width < 0.02
    assert overlap(polynomial, composed_delta_inversion(run, 2.0))
    assert overlap(polynomial, certified.delta_bounds(run, 2.0, adjacency=Adjacency.ADD_REMOVE))
    remove, add = step_orders(run, Adjacency.ADD_REMOVE)
    assert composed_curves(remove, COARSE)[0].delta_ends(2.0)[0] == polynomial.lower
    assert composed_curves(add, COARSE)[1].delta_ends(2.0)[1] < 0.9 * polynomial.lower


@pytest.mark.slow
def test_heterogeneous_composition() -> None:
    mixed = Composed(
        events=(
            (SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.1), 20),
            (Laplace(scale=10.0), 4),
            (Gaussian(noise_multiplier=10.0), 10),
        )
    )
    polynomial = composed_delta_polynomial(mixed, 1.5, choice=COARSE)
    assert polynomial.relative_width < 0.05
    assert overlap(polynomial, composed_delta_inversion(mixed, 1.5))
    assert overlap(polynomial, certified.delta_bounds(mixed, 1.5, adjacency=Adjacency.ADD_REMOVE))


def test_what_is_refused() -> None:
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.1, steps=5)
    with pytest.raises(InputError, match="epsilon must be"):
        composed_delta_polynomial(run, -1.0)
    with pytest.raises(InputError, match="delta must be"):
        composed_epsilon_polynomial(run, 0.0)
    with pytest.raises(InputError, match="order must be"):
        golden_value(1.0, 0.1, 5, 1e-5, "delete")
    pair = GaussianMixturePair(
        p_means=(0.0,), p_weights=(1.0,), q_means=(1.0,), q_weights=(1.0,), standard_deviation=1.0
    )
    with pytest.raises(UnsupportedError):
        composed_delta_polynomial(Composed(events=((pair, 2),)), 1.0)


def test_golden_table_is_complete_and_tight() -> None:
    values = golden()
    cells = [
        (v["noise_multiplier"], v["sampling_probability"], v["steps"], v["delta"], v["order"]) for v in values
    ]
    assert cells == list(golden_cells())
    for value in values:
        assert 0 < float(value["lower"]) <= float(value["upper"])
        assert float(value["upper"]) <= 1.01 * float(value["lower"])


@pytest.mark.parametrize("index", range(len(list(golden_cells()))))
def test_fast_engine_agrees_with_the_golden_table(index: int) -> None:
    """The larger order of the table against the engine's bounds, which take the larger order."""
    value = golden()[index]
    adjacency = Adjacency.REPLACE_ONE if value["order"] == "replace-one" else Adjacency.ADD_REMOVE
    run = gaussian_run(
        noise_multiplier=float(value["noise_multiplier"]),
        sampling_probability=float(value["sampling_probability"]),
        steps=int(value["steps"]),
    )
    found = certified.epsilon_bounds(run, float(value["delta"]), adjacency=adjacency)
    assert found.upper >= float(value["lower"])
    if value["order"] != "add":
        assert found.lower <= float(value["upper"])


@pytest.mark.slow
@pytest.mark.parametrize("index", [7, 14])
def test_golden_values_can_be_made_again(index: int) -> None:
    stored = golden()[index]
    made = golden_value(*list(golden_cells())[index])
    assert made["lower"] == pytest.approx(stored["lower"], rel=1e-9)
    assert made["upper"] == pytest.approx(stored["upper"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-5, 1e-12])
def test_polynomial_and_inversion_at_full_size(delta: float) -> None:
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
    epsilon = composed_epsilon_polynomial(run, delta)
    assert epsilon.relative_width < 1e-3
    below = composed_delta_inversion(run, epsilon.upper)
    above = composed_delta_inversion(run, epsilon.lower)
    assert below.lower <= delta <= above.upper
