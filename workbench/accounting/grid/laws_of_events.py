"""The laws of the privacy losses of events, for the grid."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from workbench.accounting.balls.capped import Capped
from workbench.accounting.events import (
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
)
from workbench.accounting.grid.bounded_range import BoundedRangeLaw
from workbench.accounting.grid.composition import Step
from workbench.accounting.grid.fixed_batch import FixedBatchLaw
from workbench.accounting.grid.integer_noise import IntegerNoiseLaw
from workbench.accounting.grid.laws import (
    AtomicLaw,
    GaussianLaw,
    LaplaceLaw,
    LossLaw,
    MixtureLaw,
    ReplaceLaw,
    SubsampledLaw,
)
from workbench.accounting.grid.mixed import MixedLaw
from workbench.accounting.grid.sampled_laplace import SampledLaplaceLaw
from workbench.accounting.integers import IntegerNoise
from workbench.accounting.samples import CappedPoisson, FixedBatch, SubsampledLaplace
from workbench.accounting.selections import ExponentialMechanism
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency


def law_of(event: Event, adjacency: Adjacency) -> LossLaw:
    """The losses of an elementary event; Gaussians are merged before."""
    shift = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    if isinstance(event, SubsampledGaussian):
        sigma, q = event.noise_multiplier, event.sampling_probability
        return ReplaceLaw(sigma, q) if shift == 2 else SubsampledLaw(sigma, q)
    if isinstance(event, Laplace):
        return LaplaceLaw(shift / event.scale)
    if isinstance(event, RandomisedResponse):
        if adjacency is not Adjacency.REPLACE_ONE:
            raise UnsupportedError(
                "randomised response hides a category, not a membership: "
                f"its adjacency is replace-one, not {adjacency}"
            )
        return finite_law(event.pair(), lattice=True)
    if isinstance(event, FinitePair):
        return finite_law(event, lattice=False)
    if isinstance(event, ExponentialMechanism):
        return BoundedRangeLaw(event.range_of(adjacency))
    if isinstance(event, SubsampledLaplace):
        return SampledLaplaceLaw(event.scale, event.sampling_probability, replace_one=shift == 2)
    if isinstance(event, IntegerNoise):
        return IntegerNoiseLaw(event, int(shift) * event.largest_contribution)
    if isinstance(event, FixedBatch):
        return FixedBatchLaw(event.noise_multiplier, math.nextafter(float(event.sampling_probability), 1.0))
    if isinstance(event, CappedPoisson):
        return _capped_law(event, adjacency)
    if isinstance(event, GaussianMixturePair):
        p = tuple(zip(event.p_weights, event.p_means, strict=True))
        q_side = tuple(zip(event.q_weights, event.q_means, strict=True))
        return MixtureLaw(p, q_side, event.standard_deviation)
    if isinstance(event, ShuffledBatches):
        raise UnsupportedError(
            f"{event.describe()} has certified bounds alone, for both directions together, under zero-out "
            "and replace-one; not under add-remove, where the batches without a record are not determined, "
            "nor in a composition"
        )
    raise UnsupportedError(f"{event.describe()} has no certified bounds in a composition")


def _capped_law(event: CappedPoisson, adjacency: Adjacency) -> LossLaw:
    """A Poisson sample where there is room, a fixed batch where there is none."""
    sigma, q = event.noise_multiplier, event.sampling_probability
    shares = Capped.of(q, event.dataset_size - 1, event.largest_batch)
    within: LossLaw = SubsampledLaw(sigma, q)
    kept = shares.kept_when_full[1]
    beyond: LossLaw = FixedBatchLaw(sigma, kept)
    if adjacency is Adjacency.ADD_REMOVE:
        beyond = SubsampledLaw(sigma / 2, kept)
    if adjacency is Adjacency.REPLACE_ONE:
        within = ReplaceLaw(sigma, q)
    return MixedLaw(((shares.room[1], within), (shares.full[1], beyond)))


def _log_ratio(p: Fraction, q: Fraction) -> float:
    """log(p / q), to a relative error of 8 u."""
    ratio = p / q
    if abs(ratio - 1) < Fraction(1, 2):
        return math.log1p(float(ratio - 1))
    try:
        return math.log(float(ratio))
    except (OverflowError, ValueError):
        raise UnsupportedError(
            f"the outputs of a finite pair are too unlike for the grid: {float(p):g} against {float(q):g}"
        ) from None


def finite_law(pair: FinitePair, *, lattice: bool) -> LossLaw:
    """Losses of a finite pair; for randomised response they are multiples of one number."""
    both = [(p, q) for p, q in zip(pair.p, pair.q, strict=True) if p > 0 and q > 0]
    if not both:
        raise UnsupportedError("a finite pair without a common output tells the neighbours apart for certain")
    losses = np.array([_log_ratio(p, q) for p, q in both])
    order = np.argsort(losses)
    values = np.array([[float(p), float(q)] for p, q in both])[order]
    return AtomicLaw(
        losses[order],
        values[:, 0],
        values[:, 1],
        p_infinite=float(sum(p for p, q in zip(pair.p, pair.q, strict=True) if q == 0)),
        q_infinite=float(sum(q for p, q in zip(pair.p, pair.q, strict=True) if p == 0)),
        lattice=float(losses.max()) if lattice else None,
    )


def counted(event: Event, adjacency: Adjacency) -> tuple[list[tuple[Event, int]], list[Fraction]]:
    """Elementary events with their counts; and mu^2 of all unsubsampled Gaussians, which add up."""
    shift = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    squares, counts = list[Fraction](), dict[Event, int]()
    for part, count in event.parts():
        plain = isinstance(part, Gaussian) or (
            isinstance(part, SubsampledGaussian) and part.sampling_probability == 1
        )
        if plain:
            squares.append(count * (shift / Fraction(part.noise_multiplier)) ** 2)  # type: ignore[attr-defined]
        else:
            counts[part] = counts.get(part, 0) + count
    return sorted(counts.items(), key=lambda item: repr(item[0])), squares


def steps_of(event: Event, adjacency: Adjacency) -> list[Step]:
    """Elementary laws with their counts, the merged Gaussian last."""
    parts, squares = counted(event, adjacency)
    steps = [Step(law=law_of(part, adjacency), count=count) for part, count in parts]
    if squares:
        steps.append(Step(law=GaussianLaw(math.sqrt(math.fsum(map(float, squares)))), count=1))
    return steps
