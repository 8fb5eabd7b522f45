"""Correlated noise on samples, against integrals over all outputs and another library; encoders by name."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event as theirs
from dp_accounting.pld import privacy_loss_distribution as pld

from workbench.accounting import (
    Composed,
    CorrelatedGaussian,
    Gaussian,
    SampledCorrelatedGaussian,
    blt_encoder,
    epsilon,
    event_of,
    gaussian_run,
    toeplitz_encoder,
    tree_encoder,
)
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds
from workbench.accounting.encoders import Matrix
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency

AXIS = np.linspace(-7.5, 8.5, 81)
SPACE = np.stack(np.meshgrid(AXIS, AXIS, AXIS, indexing="ij"))
"""All outputs of a run of three steps, on a grid."""

ENCODERS: dict[str, Matrix] = {
    "identity": toeplitz_encoder(coefficients=(1.0,), steps=3),
    "Toeplitz": toeplitz_encoder(coefficients=(1.0, 0.6), steps=3),
    "signs": ((1.0, 0.0, 0.0), (-0.5, 0.8, 0.0), (0.0, 0.7, 1.1)),
}


def density(encoder: Matrix, sigma: float, q: float, contributions: dict[int, float]) -> np.ndarray:
    """Of all outputs, where these steps draw these contributions with probability q each."""
    total = np.zeros(SPACE.shape[1:])
    matrix = np.array(encoder)
    for drawn in itertools.product((False, True), repeat=len(contributions)):
        x = np.zeros(3)
        for (step, size), present in zip(contributions.items(), drawn, strict=True):
            x[step] = size * present
        weight = math.prod(q if present else 1 - q for present in drawn)
        away = SPACE - (matrix @ x)[:, None, None, None]
        total += weight * np.exp(-0.5 * (away**2).sum(axis=0) / sigma**2)
    return np.asarray(total * (AXIS[1] - AXIS[0]) ** 3 / (sigma * math.sqrt(2 * math.pi)) ** 3)


def divergence(p: np.ndarray, q: np.ndarray, level: float) -> float:
    return max(float(np.maximum(a - math.exp(level) * b, 0).sum()) for a, b in ((p, q), (q, p)))


@pytest.mark.thinned
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(("q", "level"), [(0.3, 0.2), (0.6, 0.5), (1.0, 0.3)])
@pytest.mark.parametrize("name", list(ENCODERS))
def test_a_short_run_has_the_divergence_of_all_its_outputs(
    name: str, q: float, level: float, adjacency: Adjacency
) -> None:
    """Two groups that take turns; a record of each, and contributions that both neighbours have."""
    encoder, sigma = ENCODERS[name], 1.2
    event = SampledCorrelatedGaussian(
        noise_multiplier=sigma, encoder=encoder, sampling_probability=q, groups=2
    )
    found = delta_bounds(event, level, adjacency=adjacency)
    replaced = -1.0 if adjacency is Adjacency.REPLACE_ONE else 0.0
    worst = max(
        divergence(
            density(encoder, sigma, q, dict.fromkeys(steps, 1.0)),
            density(encoder, sigma, q, dict.fromkeys(steps, replaced)),
            level,
        )
        for steps in ((0, 2), (1,))
    )
    assert found.lower * (1 - 1e-3) <= worst <= found.upper * (1 + 1e-3)
    assert found.relative_width < 2e-3
    generator = np.random.default_rng(7)
    for _ in range(2):
        first, second, other = generator.uniform(-1, 1, size=3)
        one = density(encoder, sigma, q, {0: first, 1: other, 2: second})
        two = density(encoder, sigma, q, {0: 0.0, 1: other, 2: 0.0})
        assert divergence(one, two, level) <= found.upper * (1 + 1e-3)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("sigma", "q", "bands", "steps"), [(2.0, 0.1, 4, 40), (1.0, 0.02, 10, 95)])
def test_a_toeplitz_run_is_a_run_of_fewer_steps(
    sigma: float, q: float, bands: int, steps: int, adjacency: Adjacency
) -> None:
    coefficients = tuple(0.8**k for k in range(bands))
    event = SampledCorrelatedGaussian(
        noise_multiplier=sigma,
        encoder=toeplitz_encoder(coefficients=coefficients, steps=steps),
        sampling_probability=q,
        groups=bands,
    )
    found = epsilon_bounds(event, 1e-5, adjacency=adjacency)
    norms = np.linalg.norm(np.array(event.encoder), axis=0)[::bands].round(12)
    composed = None
    for norm, count in zip(*np.unique(norms, return_counts=True), strict=True):
        step = pld.from_gaussian_mechanism(sigma / norm, sampling_prob=q, value_discretization_interval=1e-3)
        same = step.self_compose(int(count))
        composed = same if composed is None else composed.compose(same)
    assert composed is not None
    peer = composed.get_epsilon_for_delta(1e-5)
    assert found.relative_width < 2e-3
    if adjacency is Adjacency.REPLACE_ONE:
        assert found.lower > peer
    else:
        assert found.lower <= peer <= found.upper * (1 + 3e-3)


def test_norms_that_trade_places_are_bounded_by_the_larger_and_by_a_group() -> None:
    diagonal = np.diag([2.0, 1.0, 1.0, 3.0, 1.5, 1.0])
    event = SampledCorrelatedGaussian(
        noise_multiplier=8.0, encoder=tuple(map(tuple, diagonal.tolist())), sampling_probability=0.3, groups=2
    )
    found = epsilon_bounds(event, 1e-5)
    assert "upper end by a dominating pair" in found.method
    each = [
        epsilon_bounds(
            Composed(
                events=tuple(
                    (gaussian_run(noise_multiplier=8.0 / norm, sampling_probability=0.3, steps=1), 1)
                    for norm in norms
                )
            ),
            1e-5,
        )
        for norms in ((2.0, 1.5, 1.0), (3.0, 1.0, 1.0), (3.0, 1.5, 1.0))
    ]
    assert found.lower == pytest.approx(max(each[0].lower, each[1].lower), rel=1e-3)
    assert found.upper == pytest.approx(each[2].upper, rel=1e-3)
    assert found.lower < found.upper


def test_one_group_and_no_correlation_is_the_sampled_run() -> None:
    encoder = toeplitz_encoder(coefficients=(1.0,), steps=30)
    event = SampledCorrelatedGaussian(
        noise_multiplier=1.0, encoder=encoder, sampling_probability=0.05, groups=1
    )
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.05, steps=30)
    assert epsilon(event, 1e-5) == epsilon(run, 1e-5)
    whole = SampledCorrelatedGaussian(noise_multiplier=1.0, encoder=encoder, sampling_probability=1, groups=3)
    plain = CorrelatedGaussian(noise_multiplier=1.0, encoder=encoder, participations=10, separation=3)
    seen, known = epsilon_bounds(whole, 1e-5), epsilon_bounds(plain, 1e-5)
    assert seen.upper == pytest.approx(known.upper, rel=1e-6)


def test_runs_compose() -> None:
    encoder = toeplitz_encoder(coefficients=(1.0, 0.5), steps=10)
    run = SampledCorrelatedGaussian(noise_multiplier=2.0, encoder=encoder, sampling_probability=0.2, groups=2)
    both = Composed(events=((run, 2), (Gaussian(noise_multiplier=5.0), 1)))
    found = epsilon_bounds(both, 1e-6)
    assert epsilon_bounds(run, 1e-6).upper < found.lower
    assert found.relative_width < 2e-3


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 100])
def test_a_tree_is_as_many_releases_as_it_is_deep(steps: int) -> None:
    encoder = np.array(tree_encoder(steps=steps))
    # Every prefix is a sum of few released nodes, and no row is there before its last step.
    lasts = [int(np.flatnonzero(row)[-1]) for row in encoder]
    assert lasts == sorted(lasts)
    assert len(encoder) == 2 * steps - bin(steps).count("1")
    event = CorrelatedGaussian(noise_multiplier=4.0, encoder=tree_encoder(steps=steps))
    found, truth = epsilon_bounds(event, 1e-5), epsilon_of_delta(math.sqrt(steps.bit_length()) / 4, 1e-5)
    assert found.lower * (1 - 1e-9) <= truth <= found.upper * (1 + 1e-9)
    tree = epsilon(theirs.SingleEpochTreeAggregationDpEvent(4.0, [steps, 1]), 1e-5)
    assert isinstance(tree, Bounds)
    assert tree.lower <= truth <= tree.upper


def test_a_tree_of_several_participations_is_enclosed() -> None:
    encoder = np.array(tree_encoder(steps=6))
    event = CorrelatedGaussian(
        noise_multiplier=1.0, encoder=tree_encoder(steps=6), participations=2, separation=2
    )
    truth = max(
        float(((encoder[:, [a]] + encoder[:, [b]]) ** 2).sum()) for a in range(6) for b in range(a + 2, 6)
    )
    lower, upper = map(float, event.squared_sensitivity)
    assert lower == pytest.approx(truth, rel=1e-8)
    assert upper >= truth * (1 - 1e-9)


def test_the_named_matrices_have_their_entries() -> None:
    two = blt_encoder(output_scales=(0.5, 0.25), buffer_decays=(0.5, 1.0), steps=5)
    column = [1.0] + [0.5 * 0.5 ** (k - 1) + 0.25 for k in range(1, 5)]
    for row, col in itertools.product(range(5), repeat=2):
        assert two[row][col] == pytest.approx(column[row - col] if row >= col else 0.0)
    cut = toeplitz_encoder(coefficients=(1.0, 0.5, 0.25), steps=2)
    assert cut == ((1.0, 0.0), (0.5, 1.0))
    assert toeplitz_encoder(coefficients=(2.0,), steps=2) == ((2.0, 0.0), (0.0, 2.0))
    decaying = CorrelatedGaussian(noise_multiplier=1.0, encoder=two, participations=2, separation=2)
    lower, upper = decaying.squared_sensitivity
    assert float(lower) <= float(upper) <= 2 * float(lower)
    assert event_of(theirs.SingleEpochTreeAggregationDpEvent(1.0, 4)) == Composed(
        events=((Gaussian(noise_multiplier=1.0), 3),)
    )


SAMPLED = {"noise_multiplier": 1.0, "encoder": ENCODERS["Toeplitz"], "sampling_probability": 0.5, "groups": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": 1}, "encoder must have at most 1 bands"),
        ({"groups": 0}, "groups must be"),
        ({"sampling_probability": 0.0}, "sampling_probability must be in"),
        ({"encoder": ((1.0,), (1.0,))}, "encoder must be a square, got 2 rows of 1"),
        ({"encoder": ((1.0, 1.0), (0.0, 1.0))}, "encoder must be lower triangular"),
    ],
)
def test_a_run_on_samples_out_of_range_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SampledCorrelatedGaussian(**SAMPLED | given)  # type: ignore[arg-type]


def test_matrices_and_trees_out_of_range_are_named() -> None:
    with pytest.raises(InputError, match="buffer_decays must be as many as output_scales"):
        blt_encoder(output_scales=(1.0,), buffer_decays=(0.5, 0.5), steps=3)
    with pytest.raises(InputError, match="coefficients must hold at least one number"):
        toeplitz_encoder(coefficients=(), steps=3)
    with pytest.raises(InputError, match="steps must be at most 2000"):
        tree_encoder(steps=10**4)
    with pytest.raises(InputError, match="step_counts must hold"):
        event_of(theirs.SingleEpochTreeAggregationDpEvent(1.0, []))
    with pytest.raises(InputError, match="step_counts must be"):
        event_of(theirs.SingleEpochTreeAggregationDpEvent(1.0, 2.5))
