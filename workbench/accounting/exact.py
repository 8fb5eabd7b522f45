"""Bounds by ball arithmetic: where privacy has a closed form or can be counted exactly.

Every end is proved: Arb balls carry the rounding errors, ends are rounded outwards, inversions rest on
certified signs. What has neither a closed form nor an exact count (the T-fold subsampled Gaussian, mixed
compositions) is refused with `UnsupportedError`; `workbench.accounting.certified` bounds it.

    ===============================  ======================  ========================================
    event                            adjacency               how
    ===============================  ======================  ========================================
    Gaussian and its compositions    all three               closed form
    Laplace, once                    all three               closed form
    randomised response, composed    replace-one             counting of likelihood ratios
    finite pairs, composed           any: the pair is given  counting of likelihood ratios
    exponential mechanism, once      all three               closed form
    subsampled Gaussian, once        all three               closed form
    subsampled Laplace, once         all three               closed form
    Gaussian mixture pair, once      any: the pair is given  certified signs, closed-form masses
    shuffled batches                 zero-out, replace-one   lower and upper end apart
    ===============================  ======================  ========================================

>>> from workbench.accounting.events import Gaussian
>>> from workbench.interfaces import Adjacency, Direction
>>> bounds = epsilon_bounds(Gaussian(noise_multiplier=1.0), 1e-5, Adjacency.ADD_REMOVE)
>>> round(bounds.lower, 6), bounds.relative_width < 1e-12
(4.377178, True)
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from workbench.accounting.balls.ball import Enclosure
from workbench.accounting.balls.bounded_range import BoundedRangeCurve
from workbench.accounting.balls.finite import FiniteCurve
from workbench.accounting.balls.gaussian import GaussianCurve, LaplaceCurve
from workbench.accounting.balls.mixture import MixtureCurve, ThresholdCurve, subsampled_orders
from workbench.accounting.balls.sampled_laplace import SampledLaplaceCurve
from workbench.accounting.balls.shuffled import ShuffledEnclosure
from workbench.accounting.bounds import Bounds
from workbench.accounting.directions import require_direction
from workbench.accounting.events import (
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    require_event,
)
from workbench.accounting.samples import SubsampledLaplace
from workbench.accounting.selections import ExponentialMechanism
from workbench.core.arguments import number, one_of
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Direction

_MOST_OUTPUTS = 100
"""Outputs of a finite pair whose likelihood ratios are counted; more are for the grid."""


def supports(event: Event, adjacency: Adjacency, direction: Direction = Direction.BOTH) -> bool:
    """Whether the event has an exact answer here under this adjacency, in this direction.

    Raises:
        InputError: the event, the adjacency or the direction is none.
    """
    try:
        _enclosure_of(event, adjacency, direction)
    except UnsupportedError:
        return False
    return True


def delta_bounds(
    event: Event,
    epsilon: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    direction: Direction = Direction.BOTH,
) -> Bounds:
    """delta at which the event is (epsilon, delta)-DP and no smaller one; epsilon in [0, inf].

    Raises:
        InputError: epsilon is negative or NaN.
        UnsupportedError: there is no exact answer.
    """
    epsilon = number("epsilon", epsilon, least=0)
    enclosure = _enclosure_of(event, adjacency, direction)
    if math.isinf(epsilon):
        return _bounds(enclosure.delta_limit_ends(), enclosure)
    return _bounds(enclosure.delta_ends(float(epsilon)), enclosure)


def epsilon_bounds(
    event: Event,
    delta: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    direction: Direction = Direction.BOTH,
) -> Bounds:
    """Smallest epsilon >= 0 at which the event is (epsilon, delta)-DP.

    `delta` is in [0, 1); at 0 the answer is the largest privacy loss, infinite where losses have no bound.

    Raises:
        InputError: delta is out of range.
        UnsupportedError: there is no exact answer.
    """
    delta = number("delta", delta, least=0, below=1)
    enclosure = _enclosure_of(event, adjacency, direction)
    if delta == 0:
        return _bounds(enclosure.pure_epsilon_ends(), enclosure)
    return _bounds(enclosure.epsilon_ends(float(delta)), enclosure)


def tpr_bounds(
    event: Event,
    fpr: float,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    direction: Direction = Direction.BOTH,
) -> Bounds:
    """Largest true-positive rate of any test between neighbours at a false-positive rate, in either order.

    Raises:
        InputError: fpr is out of range.
        InconclusiveError: no certified tests around the rate were found.
        UnsupportedError: there is no exact answer.
    """
    fpr = number("fpr", fpr, least=0, most=1)
    enclosure = _enclosure_of(event, adjacency, direction)
    if fpr == 0:
        return _bounds(enclosure.delta_limit_ends(), enclosure)
    if fpr == 1:
        return _bounds((1.0, 1.0), enclosure)
    return _bounds(enclosure.tpr_ends(float(fpr)), enclosure)


def _bounds(ends: tuple[float, float], enclosure: Enclosure) -> Bounds:
    return Bounds(lower=ends[0], upper=ends[1], rigorous=True, method=enclosure.method)


def _enclosure_of(event: Event, adjacency: Adjacency, direction: Direction) -> Enclosure:
    """What answers for the event, arguments checked before the cache sees them."""
    adjacency = one_of(Adjacency, "adjacency", adjacency)
    return _enclosure(require_event(event), adjacency, require_direction(direction, adjacency))


@lru_cache(maxsize=256)
def _enclosure(event: Event, adjacency: Adjacency, direction: Direction) -> Enclosure:
    """What answers for the event.

    Raises:
        UnsupportedError: nothing does; the message says why.
    """
    parts = list(event.parts())
    replace_one = adjacency is Adjacency.REPLACE_ONE
    squares = [_mu_squared(step, count, adjacency) for step, count in parts]
    if all(square is not None for square in squares):
        return GaussianCurve(sum((square for square in squares if square is not None), Fraction(0)))
    pairs = [_finite_pair(step, adjacency) for step, _ in parts]
    if all(pair is not None for pair in pairs):
        counted = zip(pairs, (count for _, count in parts), strict=True)
        return FiniteCurve([(pair, count) for pair, count in counted if pair is not None], direction)
    if len(parts) == 1 and parts[0][1] == 1:
        step = parts[0][0]
        if isinstance(step, ExponentialMechanism):
            return BoundedRangeCurve(step.range_of(adjacency))
        if isinstance(step, Laplace):
            return LaplaceCurve(_sensitivity(adjacency) / Fraction(step.scale))
        if isinstance(step, SubsampledGaussian):
            return ThresholdCurve(subsampled_orders(step, replace_one=replace_one, direction=direction))
        if isinstance(step, SubsampledLaplace):
            scale, q = Fraction(step.scale), Fraction(step.sampling_probability)
            return SampledLaplaceCurve(scale, q, replace_one=replace_one, direction=direction)
        if isinstance(step, GaussianMixturePair):
            return MixtureCurve(step, direction)
        if isinstance(step, ShuffledBatches):
            if adjacency is Adjacency.ADD_REMOVE:
                raise UnsupportedError(
                    "shuffled batches are bounded under zero-out and replace-one adjacency only: without a "
                    "record there are fewer to deal into batches, and the event does not say how"
                )
            if direction is not Direction.BOTH:
                raise UnsupportedError(f"{step.describe()} is bounded in both directions together only")
            return ShuffledEnclosure(step, replace_one=replace_one)
    raise UnsupportedError(
        f"{event.describe()} has no closed form and no exact count here; "
        "workbench.accounting.certified bounds compositions"
    )


def _sensitivity(adjacency: Adjacency) -> int:
    """By how much one record moves a sum of contributions of norm at most 1."""
    return 2 if adjacency is Adjacency.REPLACE_ONE else 1


def _mu_squared(step: Event, count: int, adjacency: Adjacency) -> Fraction | None:
    """The exact square of mu where the step is a Gaussian in this or another guise; None where it is none."""
    if isinstance(step, SubsampledGaussian) and step.sampling_probability == 1:
        step = Gaussian(noise_multiplier=step.noise_multiplier)
    if isinstance(step, ShuffledBatches) and step.batches == 1 and adjacency is not Adjacency.ADD_REMOVE:
        count, step = count * step.epochs, Gaussian(noise_multiplier=step.noise_multiplier)
    if isinstance(step, Gaussian):
        return count * (_sensitivity(adjacency) / Fraction(step.noise_multiplier)) ** 2
    if isinstance(step, GaussianMixturePair) and len(step.p_means) == len(step.q_means) == 1:
        distance = Fraction(step.p_means[0]) - Fraction(step.q_means[0])
        return count * (distance / Fraction(step.standard_deviation)) ** 2 if distance else None
    return None


def _finite_pair(step: Event, adjacency: Adjacency) -> FinitePair | None:
    """The pair of a finite mechanism; None where it is none.

    Raises:
        UnsupportedError: the mechanism has none under this adjacency.
    """
    if isinstance(step, RandomisedResponse):
        if adjacency is not Adjacency.REPLACE_ONE:
            raise UnsupportedError(
                "randomised response answers for a record that is there: its neighbours differ in one "
                f"record's category (replace-one adjacency), not by {adjacency}"
            )
        return step.pair()
    return step if isinstance(step, FinitePair) and len(step.p) <= _MOST_OUTPUTS else None
