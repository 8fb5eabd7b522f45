"""Certified two-sided bounds on epsilon(delta), delta(epsilon) and trade-off curves: the bench's yardstick.

Where a closed form or an exact count exists (Gaussians, Laplace once, finite mechanisms, one subsampled
step), `workbench.accounting.exact` evaluates it in ball arithmetic. Compositions of the rest lie between
a dominating and a dominated law on a grid (`_grids`), summed by an exponentially tilted FFT (`_tilted`);
discretisation, truncation, wrap-around and rounding are all carried in the bounds. They depend on no
accountant that the bench judges.

Both orders of every pair of neighbours are bounded and the larger counts.

>>> from workbench.accounting.events import dp_sgd
>>> run = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
>>> found = epsilon_bounds(run, 1e-5)
>>> round(found.lower, 3), round(found.upper, 3), found.rigorous
(1.828, 1.829, True)

Sources: Koskela, Jälkö and Honkela 2020 (composition by FFT); Doroshenko et al. 2022 (connect the dots);
Zhu, Dong and Wang 2022 (dominating pairs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache

import numpy as np

from workbench.accounting import exact
from workbench.accounting.atomic_laws import AtomicLaw, LaplaceLaw
from workbench.accounting.bounds import Bounds
from workbench.accounting.composition import Composition, Step
from workbench.accounting.events import (
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    dp_sgd,
)
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.accounting.loss_laws import (
    GaussianLaw,
    LossLaw,
    MixtureLaw,
    ReplaceLaw,
    SubsampledLaw,
)
from workbench.accounting.search import smallest_meeting
from workbench.accounting.tilted import TiltedSum
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency

RELATIVE_WIDTH = 1e-3
"""Bounds are refined until they are at most this wide, where the finest grid allows it."""

_TAIL = 1e-30
"""Mass that is cut off while the size of delta is still unknown."""

METHOD = "dominating and dominated grids, tilted FFT"

ASSUMPTIONS = (
    "float64 arithmetic is IEEE 754, and the elementary functions keep the error bounds stated in _loss_laws",
)
"""What grid bounds rest on; the tests compare the elementary functions with ball arithmetic."""


def _require_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta!r}")


def _law(event: Event, adjacency: Adjacency) -> LossLaw:
    """The losses of an elementary event; Gaussians are merged before."""
    shift = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    if isinstance(event, SubsampledGaussian):
        sigma, q = event.noise_multiplier, event.sampling_probability
        if q == 1:
            return GaussianLaw(shift / sigma)
        return ReplaceLaw(sigma, q) if shift == 2 else SubsampledLaw(sigma, q)
    if isinstance(event, Laplace):
        return LaplaceLaw(shift / event.scale)
    if isinstance(event, RandomisedResponse):
        if adjacency is not Adjacency.REPLACE_ONE:
            raise UnsupportedError(
                f"randomised response hides a category, not a membership: its adjacency is replace-one, "
                f"not {adjacency}"
            )
        return _finite_law(event.pair(), lattice=True)
    if isinstance(event, FinitePair):
        return _finite_law(event, lattice=False)
    if isinstance(event, GaussianMixturePair):
        p = tuple(zip(event.p_weights, event.p_means, strict=True))
        q_side = tuple(zip(event.q_weights, event.q_means, strict=True))
        return MixtureLaw(p, q_side, event.standard_deviation)
    if isinstance(event, ShuffledBatches):
        raise UnsupportedError(
            f"{event.describe()} has certified bounds alone, under zero-out and replace-one; not under "
            f"add-remove, where the batches without a record are not determined, nor in a composition"
        )
    raise UnsupportedError(f"{event.describe()} has no certified bounds in a composition")


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


def _finite_law(pair: FinitePair, *, lattice: bool) -> LossLaw:
    """Losses of a finite pair; for randomised response they are multiples of one number.

    Raises:
        UnsupportedError: the neighbours have no output in common, or one far likelier than under the other.
    """
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


def _steps(event: Event, adjacency: Adjacency) -> list[Step]:
    """Elementary laws with their counts, all unsubsampled Gaussians merged into one: their mu^2 add up."""
    shift = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    squares, counts = list[float](), dict[Event, int]()
    for part, count in event.parts():
        plain = isinstance(part, Gaussian) or (
            isinstance(part, SubsampledGaussian) and part.sampling_probability == 1
        )
        if plain:
            squares.append(count * (shift / part.noise_multiplier) ** 2)  # type: ignore[attr-defined]
        else:
            counts[part] = counts.get(part, 0) + count
    ordered = sorted(counts.items(), key=lambda item: repr(item[0]))
    steps = [Step(law=_law(part, adjacency), count=count) for part, count in ordered]
    if squares:
        steps.append(Step(law=GaussianLaw(math.sqrt(math.fsum(squares))), count=1))
    return steps


@contextmanager
def _within_range(event: Event) -> Iterator[None]:
    """Refuse an event whose numbers leave the range of float64, rather than warn and go on.

    Raises:
        UnsupportedError: something overflowed, or was divided by zero.
    """
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except ArithmeticError as error:
        raise UnsupportedError(f"{event.describe()} is out of the range of certified bounds") from error


def epsilon_bounds(event: Event, delta: float, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Bounds:
    """Bounds on the smallest epsilon >= 0 at which the event is (epsilon, delta)-DP.

    Args:
        event: See `workbench.accounting.events`.
        delta: In (0, 1).
        adjacency: Which data sets are neighbours; finite pairs and mixture pairs ignore it.

    Returns:
        Bounds at most `RELATIVE_WIDTH` wide where the grid allows it; the upper end may be infinite.

    Raises:
        InputError: delta is out of range.
        UnsupportedError: the event has no certified bounds under this adjacency.
    """
    _require_delta(delta)
    with _within_range(event):
        if exact.supports(event, adjacency):
            return exact.epsilon_bounds(event, delta, adjacency)
        return _grid_bounds(*_epsilon_on_grid(event, delta, adjacency))


def delta_bounds(event: Event, epsilon: float, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Bounds:
    """Bounds on the smallest delta at which the event is (epsilon, delta)-DP.

    Args:
        event: See `workbench.accounting.events`.
        epsilon: Finite, >= 0.
        adjacency: Which data sets are neighbours; finite pairs and mixture pairs ignore it.

    Raises:
        InputError: epsilon is out of range.
        UnsupportedError: the event has no certified bounds under this adjacency.
    """
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")
    with _within_range(event):
        if exact.supports(event, adjacency):
            return exact.delta_bounds(event, epsilon, adjacency)
        return _grid_bounds(*_delta_on_grid(event, epsilon, adjacency))


def tpr_bounds(event: Event, fpr: float, *, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Bounds:
    """Bounds on the largest true-positive rate of any membership test at a false-positive rate.

    Args:
        event: See `workbench.accounting.events`.
        fpr: In (0, 1).
        adjacency: Which data sets are neighbours; finite pairs and mixture pairs ignore it.

    Raises:
        InputError: fpr is out of range.
        UnsupportedError: the event has no certified bounds under this adjacency.
    """
    if not 0 < fpr < 1:
        raise InputError(f"fpr must be in (0, 1), got {fpr!r}")
    with _within_range(event):
        if exact.supports(event, adjacency):
            return exact.tpr_bounds(event, fpr, adjacency)
        return _grid_bounds(*_tpr_on_grid(event, fpr, adjacency))


def calibrate_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_probability: float,
    steps: int,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> float:
    """Smallest noise multiplier of a DP-SGD run whose certified upper epsilon does not exceed the target.

    Args:
        target_epsilon: Finite, > 0.
        target_delta: In (0, 1).
        sampling_probability: Poisson inclusion probability, in (0, 1].
        steps: Number of releases, >= 1.
        adjacency: Which data sets are neighbours.

    Returns:
        A noise multiplier whose upper bound is at most the target, at most 2e-4 (relative) above one
        whose upper bound on the same grid is not.

    Raises:
        InputError: an argument is out of range, or delta is so large that any noise would do.
        InconclusiveError: no noise multiplier up to 1e9 meets the target.
    """
    if not 0 < target_epsilon < math.inf:
        raise InputError(f"target_epsilon must be finite and > 0, got {target_epsilon!r}")
    _require_delta(target_delta)

    def run(log_noise: float) -> Event:
        noise = math.exp(log_noise)
        return dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps)

    def upper(log_noise: float) -> float:
        if exact.supports(run(log_noise), adjacency):
            return exact.epsilon_bounds(run(log_noise), target_delta, adjacency).upper
        return _epsilon_upper_on_grid(run(log_noise), target_delta, adjacency)

    def approximate(log_noise: float) -> float:
        composition = Composition(_steps(run(log_noise), adjacency), tail=target_delta * 1e-7)
        return max(cumulants.at_delta(target_delta).mean for cumulants in composition.cumulants)

    # The central limit's mu = q sqrt(T (exp(1 / s^2) - 1)), solved for s (Bu et al. 2020, corollary 5.4).
    mu = mu_of_epsilon(target_epsilon, target_delta)
    start = -0.5 * math.log(math.log1p((mu / sampling_probability) ** 2 / steps))
    return math.exp(smallest_meeting(upper, approximate, start, target_epsilon))


def _grid_bounds(lower: float, upper: float) -> Bounds:
    return Bounds(lower=max(0.0, lower), upper=upper, rigorous=True, method=METHOD, assumptions=ASSUMPTIONS)


@lru_cache(maxsize=4096)
def _epsilon_on_grid(event: Event, delta: float, adjacency: Adjacency) -> tuple[float, float]:
    """(lower, upper) over both orders of the pair."""
    composition = Composition(_steps(event, adjacency), tail=delta * 1e-7)
    saddles = [cumulants.at_delta(delta) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        if total.upper:
            return max(0.0, total.epsilon(delta, start, -shift) + shift)
        return max(0.0, total.epsilon(delta, start) - shift)

    return composition.refined(answer, saddles, max(saddle.mean for saddle in saddles), RELATIVE_WIDTH)


def _epsilon_upper_on_grid(event: Event, delta: float, adjacency: Adjacency) -> float:
    """Upper bound over both orders of the pair, on the first grid; the refined one is no larger."""
    composition = Composition(_steps(event, adjacency), tail=delta * 1e-7)
    saddles = [cumulants.at_delta(delta) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        return max(0.0, total.epsilon(delta, start, -shift) + shift)

    return composition.first_upper(answer, saddles, max(at.mean for at in saddles), RELATIVE_WIDTH)


@lru_cache(maxsize=4096)
def _delta_on_grid(event: Event, epsilon: float, adjacency: Adjacency) -> tuple[float, float]:
    """(lower, upper) over both orders of the pair."""
    composition = Composition(_steps(event, adjacency), tail=_TAIL)
    saddles = [cumulants.at_epsilon(epsilon) for cumulants in composition.cumulants]
    logs = [c.log_delta(at.theta) for c, at in zip(composition.cumulants, saddles, strict=True)]
    # The tails that are cut off must be small against a delta that may be tiny itself.
    guess = math.exp(max(min(max(logs), 0.0), -600.0))
    composition = Composition(_steps(event, adjacency), tail=guess * 1e-7)
    saddles = [cumulants.at_epsilon(epsilon) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        return total.delta(epsilon - shift if total.upper else epsilon + shift)

    return composition.refined(answer, saddles, epsilon, RELATIVE_WIDTH, at=lambda _: epsilon)


@lru_cache(maxsize=4096)
def _tpr_on_grid(event: Event, fpr: float, adjacency: Adjacency) -> tuple[float, float]:
    """(lower, upper) over both orders of the pair."""
    composition = Composition(_steps(event, adjacency), tail=fpr * 1e-7)
    saddles = [cumulants.at_fpr(fpr) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        factor = math.exp(shift if total.upper else -shift)
        return min(1.0, total.tpr(fpr) * factor)

    lower, upper = composition.refined(answer, saddles, max(at.mean for at in saddles), RELATIVE_WIDTH)
    return max(lower, fpr), max(upper, fpr)
