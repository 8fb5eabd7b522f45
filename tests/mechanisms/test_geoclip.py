"""GeoClip: the map of least noise, its low-rank stream, and that the geometry follows releases alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import FALSE_ALARM, toy_plan, watched_plan
from kept_releases import keep_releases
from scipy import stats
from torch import Tensor

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import GradientCanary
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.geoclip import (
    FollowingGeometry,
    GeoClip,
    Geometry,
    LowRankCovariance,
    Stretching,
)
from workbench.training.canary import SignalsWithCanary
from workbench.training.flat import FlatLayout
from workbench.training.per_record import EmptySignals, MatrixSignals

CANARY = GradientCanary(coordinate=3, magnitude=1e3)
VARIANTS: dict[str, dict[str, object]] = {
    "exact": {"covariance": "exact", "covariance_decay": 0.8},
    "dropped": {"covariance": "low-rank", "rank": 4},
    "kept": {"covariance": "low-rank", "rank": 4, "outside": "kept", "least_variance": 1e-4},
}


def settled(variant: str, **changes: object) -> GeoClip:
    mechanism = GeoClip(noise_multiplier=1.0, measures_quality=False, **VARIANTS[variant])  # type: ignore[arg-type]
    return replace(mechanism, **changes)  # type: ignore[arg-type]


def axes(dimension: int, rank: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(dimension, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0]


def a_geometry(variant: str, dimension: int = 9) -> Geometry:
    rank = dimension if variant == "exact" else 4
    variances = torch.logspace(-3, 0, rank, dtype=torch.float64)
    stretching = Stretching(gamma=1.0, least=1e-4, most=10.0)
    shift = torch.linspace(-1, 1, dimension, dtype=torch.float64)
    return stretching.geometry(shift, axes(dimension, rank), variances, keep_outside=variant == "kept")


def explicit(geometry: Geometry) -> Tensor:
    """M as a matrix of d columns: the naive twin."""
    basis, scales = geometry.basis, torch.diag(geometry.scales)
    if geometry.outside is None:
        return scales @ basis.T
    return basis @ scales @ basis.T + geometry.outside * (torch.eye(len(basis)) - basis @ basis.T)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_geometry_is_its_matrix(variant: str) -> None:
    geometry = a_geometry(variant)
    matrix = explicit(geometry)
    rows = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    moved = rows.double() - geometry.shift
    torch.testing.assert_close(geometry.norms(rows), (moved @ matrix.T).norm(dim=1))
    torch.testing.assert_close(geometry.coordinates(moved), moved @ matrix.T)
    inverse = torch.linalg.pinv(matrix)
    torch.testing.assert_close(geometry.undo(geometry.coordinates(moved)), moved @ (inverse @ matrix).T)
    torch.testing.assert_close(geometry.kept(moved), moved @ (inverse @ matrix).T)
    axes_of_noise = torch.linalg.norm(inverse) ** 2 / geometry.axes
    assert math.isclose(geometry.radius, math.sqrt(float(axes_of_noise)), rel_tol=1e-9)


def test_the_map_has_the_expected_norm_and_the_least_noise() -> None:
    variances, generator = torch.tensor([4.0, 1.0, 0.01, 0.09], dtype=torch.float64), np.random.default_rng(0)
    geometry = Stretching(gamma=2.0, least=1e-9, most=10.0).geometry(
        torch.zeros(4, dtype=torch.float64), axes(4, 4), variances, keep_outside=False
    )
    assert math.isclose(float((geometry.scales**2 * variances).sum()), 2.0)
    noise = float(geometry.scales.pow(-2).sum())
    assert math.isclose(noise, float(variances.sqrt().sum()) ** 2 / 2.0)
    for _ in range(200):  # other scales of the same axes, with the same expected norm
        other = geometry.scales.numpy() * generator.lognormal(0, 0.3, 4)
        other *= math.sqrt(2.0 / np.sum(other**2 * variances.numpy()))
        assert np.sum(other**-2.0) >= noise * (1 - 1e-12)


def test_the_stream_holds_the_average_while_it_has_room_and_its_leading_axes_after() -> None:
    stretching = Stretching(gamma=1.0, least=1e-8, most=10.0)
    start = LowRankCovariance(
        basis=torch.zeros(12, 0, dtype=torch.float64),
        variances=torch.zeros(0, dtype=torch.float64),
        rank=3,
        decay=0.7,
        stretching=stretching,
        keep_outside=False,
    )
    generator = torch.Generator().manual_seed(4)
    stream, whole = start, torch.zeros(12, 12, dtype=torch.float64)
    for step in range(1, 7):
        assert (stream.geometry(torch.zeros(12)) is None) == (step <= 3)
        gradient = torch.randn(12, generator=generator, dtype=torch.float64)
        stream, before = stream.after(gradient), stream
        whole = 0.7 * (before.basis * before.variances) @ before.basis.T + 0.3 * torch.outer(
            gradient, gradient
        )
        values = torch.linalg.eigvalsh(whole).flip(0)[:3]
        torch.testing.assert_close(stream.variances, values[: min(step, 3)])
        found = (stream.basis * stream.variances) @ stream.basis.T
        missing = torch.linalg.eigvalsh(whole - found).abs().max()
        assert float(missing) <= float(torch.linalg.eigvalsh(whole).flip(0)[3]) + 1e-12
    assert len(start.after(torch.zeros(12)).variances) == 0  # a release of nothing has no direction


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_release_is_that_of_dp_sgd(variant: str) -> None:
    rows = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    signals = MatrixSignals(FlatLayout.of(torch.nn.Linear(9, 1, bias=False)), rows, torch.zeros(6))
    found = settled(variant, l2_clip_norm=0.7).privatise(signals, torch.Generator().manual_seed(2))
    ours = DPSGD(l2_clip_norm=0.7, noise_multiplier=1.0)
    torch.testing.assert_close(found, ours.privatise(signals, torch.Generator().manual_seed(2)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_later_releases_have_unit_noise_and_unit_sensitivity_in_the_new_coordinates(variant: str) -> None:
    mechanism, geometry = settled(variant), a_geometry(variant)
    layout = FlatLayout.of(torch.nn.Linear(9, 1, bias=False))
    generator = torch.Generator().manual_seed(3)
    shift = geometry.shift.float()
    nobody = SignalsWithCanary(EmptySignals(layout), CANARY, included=False, trials=3000)
    noise = mechanism.release(nobody, geometry, 2.5, generator)
    unit = geometry.coordinates(noise.double() - 2.5 * geometry.shift)
    tail = stats.chi2.cdf(float(unit.square().sum()), unit.numel())
    assert 2 * min(tail, 1 - tail) > FALSE_ALARM
    spread = np.cov(unit.numpy().T) - np.eye(geometry.axes)
    assert np.abs(spread).max() < stats.norm.isf(FALSE_ALARM / 200) * math.sqrt(2 / 3000)
    rows = torch.cat(
        [1e-3 * torch.randn(3, 9, generator=generator), 1e4 * torch.randn(3, 9, generator=generator)]
    )
    for row in rows:
        alone = MatrixSignals(layout, (row + shift)[None], torch.zeros(1))
        moved = geometry.coordinates(mechanism.clipped_sum(alone, geometry).double())
        assert float(moved.norm()) <= 1 + 1e-4


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_step_of_a_run_is_read_on_one_scale(variant: str) -> None:
    transcript = settled(variant, l2_clip_norm=2.0).train(watched_plan(CANARY, steps=80)).transcript
    assert len(np.unique(transcript.traces["l2_clip_norm"])) > 60
    whitened = transcript.canary_observations - transcript.canary_included
    assert stats.kstest(whitened, stats.norm(0.0, 1.0).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_geometry_is_a_function_of_what_was_released(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep_releases(monkeypatch, FollowingGeometry)
    plan = toy_plan(steps=20)
    mechanism = settled(variant, covariance_of="mean" if variant == "kept" else "record")
    traces = mechanism.train(plan).transcript.traces
    batch = plan.sampling_probability * len(plan.records)
    dimension = len(kept[0])
    covariance = mechanism.first_covariance(dimension)
    decay = mechanism.smoothing(mechanism.variant(dimension)).mean_decay
    shift, radius = torch.zeros(dimension, dtype=torch.float64), mechanism.l2_clip_norm
    for step, released in enumerate(kept):
        assert math.isclose(traces["l2_clip_norm"][step], radius, rel_tol=1e-9)
        shift = decay * shift + (1 - decay) * released.double() / batch
        centred = released.double() / batch - shift
        covariance = covariance.after(centred if variant == "kept" else math.sqrt(batch) * centred)
        found = covariance.geometry(shift)
        radius = radius if found is None else found.radius
    if variant == "dropped":
        span = torch.stack(kept).double()
        assert int(torch.linalg.matrix_rank(span, rtol=1e-4)) == 4


@pytest.mark.parametrize("covariance_of", ["record", "mean"])
def test_the_expected_squared_norm_is_gamma_of_a_record_or_of_a_mean(covariance_of: str) -> None:
    """Of records whose law does not change, with hardly any noise: gamma, or B times as much."""
    mechanism = settled(
        "exact", covariance_of=covariance_of, gamma=0.01, covariance_decay=0.98, noise_multiplier=1e-3
    )
    run = FollowingGeometry(mechanism, toy_plan(), registry.create("model", "toy_regression", seed=0))
    layout, generator = FlatLayout.of(torch.nn.Linear(10, 1, bias=False)), torch.Generator().manual_seed(5)
    count, spread = round(run.batch_size), torch.logspace(-1, 0, 10)
    assert count == run.batch_size > 1

    def rows(many: int) -> Tensor:
        return torch.randn(many, 10, generator=generator) * spread

    squares = []
    for step in range(900):
        drawn = rows(count)
        run.privatise(MatrixSignals(layout, drawn, torch.zeros(count)), generator)
        if step >= 300 and step % 20 == 0:
            squares.append(float(run.geometry.norms(rows(200)).square().mean()))
    wanted = 0.01 * (1.0 if covariance_of == "record" else count)
    assert np.mean(squares) == pytest.approx(wanted, rel=0.15)


def test_the_exact_covariance_is_for_small_models() -> None:
    assert [GeoClip().variant(d) for d in (256, 257)] == ["exact", "low-rank"]
    with pytest.raises(InputError, match="covariance 'exact' takes at most 4096"):
        GeoClip(covariance="exact").variant(5000)


@pytest.mark.parametrize(
    "parameters",
    [
        {"covariance": "full"},
        {"covariance_of": "records"},
        {"rank": 0},
        {"outside": "lost"},
        {"gamma": 0.0},
        {"mean_decay": 1.0},
        {"covariance_decay": -0.1},
        {"least_variance": 20.0},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_parameters_out_of_range_are_refused_by_name(parameters: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(parameters))):
        GeoClip(**parameters)  # type: ignore[arg-type]
