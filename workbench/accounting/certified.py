"""Certified two-sided bounds on epsilon(delta), delta(epsilon) and trade-off curves: the bench's yardstick.

Where a closed form or an exact count exists (Gaussians, Laplace once, finite mechanisms, one subsampled
step), `workbench.accounting.exact` evaluates it in ball arithmetic. Compositions of the rest lie between
a dominating and a dominated law on a grid (`grid.rounding`), summed by an exponentially tilted FFT
(`grid.tilted`); discretisation, truncation, wrap-around and rounding are all carried in the bounds. Where
these are wide, as with very many Laplace steps, the central limit has others (`balls.central_limit`). They
depend on no accountant that the bench judges.

Both orders of every pair of neighbours are bounded and the larger counts, or the one that is asked for.

>>> from workbench.accounting.events import gaussian_run
>>> run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
>>> bounds = epsilon_bounds(run, 1e-5)
>>> round(bounds.lower, 3), round(bounds.upper, 3), bounds.rigorous
(1.828, 1.829, True)

Sources: Koskela, Jälkö and Honkela 2020 (composition by FFT); Doroshenko et al. 2022 (connect the dots);
Zhu, Dong and Wang 2022 (dominating pairs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import lru_cache

import numpy as np

from workbench.accounting import exact, inclusions
from workbench.accounting.balls import central_limit
from workbench.accounting.balls.capped import Capped
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
    gaussian_run,
    require_event,
)
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.accounting.grid import many_steps, rare_losses
from workbench.accounting.grid.bounded_range import BoundedRangeLaw
from workbench.accounting.grid.composition import MOST_GRIDS, Answer, Composition, Saddle, Step
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
from workbench.accounting.grid.tilted import TiltedSum
from workbench.accounting.integers import IntegerNoise
from workbench.accounting.reductions import reduced
from workbench.accounting.samples import CappedPoisson, FixedBatch, SubsampledLaplace
from workbench.accounting.searching import root, smallest_meeting
from workbench.accounting.selections import ExponentialMechanism
from workbench.core.arguments import number, one_of, whole_number
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Direction

RELATIVE_WIDTH = 1e-3
"""Bounds are refined until they are at most this wide, where the finest grid allows it."""

FINEST_WIDTH = 1e-9
"""Least `relative_width` that may be asked for; what a grid can reach is seldom below 1e-6."""

_TAIL = 1e-30
"""Mass that is cut off while the size of delta is still unknown."""

_ORDERS = {Direction.BOTH: (False, True), Direction.REMOVE: (False,), Direction.ADD: (True,)}
"""Which orders of a pair count: the forward one is p against q, with the record against without."""

_FIRST_GRIDS = 2
"""Grids after which rare losses are bounded apart, where the bounds are still wide."""

_RARE = 1e-3
"""Sampling probability below which large losses may be rare."""

METHOD = "dominating and dominated grids, tilted FFT"

ASSUMPTIONS = (
    "float64 arithmetic is IEEE 754, and the elementary functions keep the error bounds stated in "
    "workbench.accounting.grid.laws",
)
"""What grid bounds rest on; the tests compare the elementary functions with ball arithmetic."""


def _law(event: Event, adjacency: Adjacency) -> LossLaw:
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
        return _finite_law(event.pair(), lattice=True)
    if isinstance(event, FinitePair):
        return _finite_law(event, lattice=False)
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
            f"{event.describe()} has certified bounds alone, under zero-out and replace-one; not under "
            f"add-remove, where the batches without a record are not determined, nor in a composition"
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


def _finite_law(pair: FinitePair, *, lattice: bool) -> LossLaw:
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


def _counted(event: Event, adjacency: Adjacency) -> tuple[list[tuple[Event, int]], list[Fraction]]:
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


def _steps(event: Event, adjacency: Adjacency) -> list[Step]:
    """Elementary laws with their counts, the merged Gaussian last."""
    counted, squares = _counted(event, adjacency)
    steps = [Step(law=_law(part, adjacency), count=count) for part, count in counted]
    if squares:
        steps.append(Step(law=GaussianLaw(math.sqrt(math.fsum(map(float, squares)))), count=1))
    return steps


@contextmanager
def _within_range(event: Event) -> Iterator[None]:
    """Refuses, as unsupported, an event whose numbers leave the range of float64."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except ArithmeticError as error:
        raise UnsupportedError(f"{event.describe()} is out of the range of certified bounds") from error


def epsilon_bounds(
    event: Event,
    delta: float,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    direction: Direction = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> Bounds:
    """Bounds on the smallest epsilon >= 0 at which the event is (epsilon, delta)-DP.

    Args:
        event: See `workbench.accounting.events`.
        delta: In (0, 1).
        adjacency: Which data sets are neighbours; finite pairs and mixture pairs ignore it.
        direction: Both orders of the neighbours, or one; of a pair, p is the output with the record.
        relative_width: Of the lower end, at which bounds are no longer refined; at least `FINEST_WIDTH`.

    Returns:
        Bounds at most that wide where the grid allows it; the upper end may be infinite.

    Raises:
        InputError: an argument is out of range, or of the wrong kind.
        UnsupportedError: the event has no certified bounds under this adjacency.
    """
    event, adjacency, direction = _question(event, adjacency, direction)
    delta = number("delta", delta, above=0, below=1)
    width = number("relative_width", relative_width, least=FINEST_WIDTH, below=1)

    def bounds(pair: Event) -> Bounds:
        if exact.supports(pair, adjacency, direction):
            return exact.epsilon_bounds(pair, delta, adjacency, direction)
        if inclusions.is_seldom_in(pair, delta):
            return Bounds(lower=0.0, upper=0.0, rigorous=True, method=inclusions.METHOD)
        loud = inclusions.epsilon_bounds(pair, delta, adjacency, direction)
        if loud is not None and inclusions.is_beyond_grids(pair):
            return loud
        found = _with_rare_losses(
            _epsilon_on_grid, rare_losses.EPSILON, (pair, adjacency, direction), delta, width
        )
        found = _by_limit(found, width, (pair, adjacency, direction), "epsilon", delta)
        return found if loud is None else found.narrowed_by(loud)

    with _within_range(event):
        return _of_pairs(event, adjacency, bounds)


def delta_bounds(
    event: Event,
    epsilon: float,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    direction: Direction = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> Bounds:
    """Bounds on the smallest delta at which the event is (epsilon, delta)-DP.

    Args:
        event, adjacency, direction, relative_width: As in `epsilon_bounds`.
        epsilon: Finite, >= 0.

    Raises:
        InputError, UnsupportedError: As `epsilon_bounds`.
    """
    event, adjacency, direction = _question(event, adjacency, direction)
    epsilon = number("epsilon", epsilon, least=0, below=math.inf)
    width = number("relative_width", relative_width, least=FINEST_WIDTH, below=1)

    def bounds(pair: Event) -> Bounds:
        if exact.supports(pair, adjacency, direction):
            return exact.delta_bounds(pair, epsilon, adjacency, direction)
        found = _with_rare_losses(
            _delta_on_grid, rare_losses.DELTA, (pair, adjacency, direction), epsilon, width
        )
        return _by_limit(found, width, (pair, adjacency, direction), "delta", epsilon)

    with _within_range(event):
        return _of_pairs(event, adjacency, bounds)


def tpr_bounds(
    event: Event,
    fpr: float,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    direction: Direction = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> Bounds:
    """Bounds on the largest true-positive rate of any membership test at a false-positive rate.

    Args:
        event, adjacency, direction, relative_width: As in `epsilon_bounds`.
        fpr: In (0, 1).

    Raises:
        InputError, UnsupportedError: As `epsilon_bounds`.
    """
    event, adjacency, direction = _question(event, adjacency, direction)
    fpr = number("fpr", fpr, above=0, below=1)
    width = number("relative_width", relative_width, least=FINEST_WIDTH, below=1)

    def bounds(pair: Event) -> Bounds:
        if exact.supports(pair, adjacency, direction):
            return exact.tpr_bounds(pair, fpr, adjacency, direction)
        found = _grid_bounds(*_tpr_on_grid(pair, fpr, adjacency, direction, width))
        return _by_limit(found, width, (pair, adjacency, direction), "tpr", fpr)

    with _within_range(event):
        return _of_pairs(event, adjacency, bounds)


def calibrate_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_probability: float,
    steps: int,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> float:
    """Smallest noise multiplier of a `gaussian_run` whose certified upper epsilon does not exceed the target.

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
    adjacency = one_of(Adjacency, "adjacency", adjacency)
    target_epsilon = number("target_epsilon", target_epsilon, above=0, below=math.inf)
    target_delta = number("target_delta", target_delta, above=0, below=1)
    sampling_probability = number("sampling_probability", sampling_probability, above=0, most=1)
    steps = whole_number("steps", steps, least=1, most=None)

    def run(log_noise: float) -> Event:
        noise = math.exp(log_noise)
        return gaussian_run(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps)

    def upper(log_noise: float) -> float:
        """Certified upper epsilon; infinite where the losses are too wide for any grid."""
        try:
            if exact.supports(run(log_noise), adjacency):
                return exact.epsilon_bounds(run(log_noise), target_delta, adjacency).upper
            return _epsilon_upper_on_grid(run(log_noise), target_delta, adjacency)
        except UnsupportedError:
            return math.inf

    def log_excess(log_noise: float) -> float:
        """log(epsilon / target), about; where it fails, large for little noise, else small."""
        try:
            composition = Composition(_steps(run(log_noise), adjacency), tail=target_delta * 1e-7)
            epsilon = max(cumulants.at_delta(target_delta).mean for cumulants in composition.cumulants)
            return math.log(max(epsilon, 1e-300) / target_epsilon)
        except (UnsupportedError, ArithmeticError, ValueError):
            return -700.0 if log_noise > 0 else 700.0

    # The central limit's mu = q sqrt(T (exp(1 / s^2) - 1)), solved for s (Bu et al. 2020, corollary 5.4).
    mu = mu_of_epsilon(target_epsilon, target_delta)
    start = -0.5 * math.log(math.log1p((mu / sampling_probability) ** 2 / steps))
    enough, _ = smallest_meeting(upper, target_epsilon, root(log_excess, start))
    return math.exp(enough[0])


def _question(event: Event, adjacency: Adjacency, direction: Direction) -> tuple[Event, Adjacency, Direction]:
    """Event, adjacency and direction, checked."""
    adjacency = one_of(Adjacency, "adjacency", adjacency)
    return require_event(event), adjacency, require_direction(direction, adjacency)


def _of_pairs(event: Event, adjacency: Adjacency, bounds: Callable[[Event], Bounds]) -> Bounds:
    """The upper end by the event's dominating pair, the lower end by those that neighbours attain."""
    reduction = reduced(event, adjacency)
    above = bounds(reduction.dominating)
    if not reduction.attained:
        return above
    each = [bounds(pair) for pair in reduction.attained]
    below = max(each, key=lambda found: found.lower)
    return Bounds(
        lower=below.lower,
        upper=above.upper,
        rigorous=True,
        method=f"upper end by a dominating pair: {above.method}; "
        f"lower end by outputs on two data sets: {below.method}",
        assumptions=tuple(dict.fromkeys((*above.assumptions, *below.assumptions))),
    )


def _by_limit(
    found: Bounds,
    width: float,
    pair: tuple[Event, Adjacency, Direction],
    question: many_steps.Question,
    value: float,
) -> Bounds:
    """Bounds that are no wider than asked for; others with those of the central limit, where it has any."""
    if found.relative_width <= width:
        return found
    event, adjacency, direction = pair
    parts, squares = _counted(event, adjacency)
    known = many_steps.known_parts(parts, adjacency)
    if known is None:
        return found
    rate = max(found.lower, _TAIL) if question == "delta" else value
    composition = Composition(_steps(event, adjacency), rate * 1e-7, _ORDERS[direction])
    ends = many_steps.ends_of(known, squares, composition, question=question, value=value)
    if ends is None or not (ends[0] > found.lower or ends[1] < found.upper):
        return found
    beside = Bounds(
        lower=ends[0],
        upper=ends[1],
        rigorous=True,
        method="tilted central limit",
        assumptions=central_limit.ASSUMPTIONS,
    )
    return beside.narrowed_by(found)


def _with_rare_losses(
    on_grid: Callable[..., tuple[float, float]],
    ends: rare_losses.Ends,
    pair: tuple[Event, Adjacency, Direction],
    value: float,
    width: float,
) -> Bounds:
    """Bounds by grids; where few losses of a sampled Gaussian are large, and grids leave much, by those.

    Args:
        on_grid, ends: Answer the question at `value`.
        pair, value, width: What is asked.
    """
    event, adjacency, direction = pair

    def by_grids(most: int = MOST_GRIDS) -> Bounds:
        return _grid_bounds(*on_grid(event, value, adjacency, direction, width, grids=most))

    (part, count), *others = event.parts()
    is_known = adjacency is not Adjacency.REPLACE_ONE and direction is not Direction.ADD
    if others or not isinstance(part, SubsampledGaussian) or not is_known:
        return by_grids()
    if part.sampling_probability >= _RARE or count < rare_losses.FEWEST:
        return by_grids()
    with suppress(UnsupportedError):
        first = by_grids(_FIRST_GRIDS)
        if first.relative_width <= width:
            return first
    try:
        law = SubsampledLaw(part.noise_multiplier, part.sampling_probability)
        lower, upper = ends.forward(law, count, value)
        if direction is Direction.BOTH:
            upper = max(upper, ends.mirrored_upper(law, count, value))
    except UnsupportedError:
        return by_grids()
    found = Bounds(
        lower=max(0.0, lower),
        upper=upper,
        rigorous=True,
        method=rare_losses.METHOD,
        assumptions=ASSUMPTIONS,
    )
    if found.relative_width <= width:
        return found
    return found.narrowed_by(by_grids())


def _grid_bounds(lower: float, upper: float) -> Bounds:
    return Bounds(lower=max(0.0, lower), upper=upper, rigorous=True, method=METHOD, assumptions=ASSUMPTIONS)


def _epsilon_question(
    event: Event, delta: float, adjacency: Adjacency, direction: Direction, width: float
) -> tuple[Composition, tuple[Answer, list[Saddle], float, float]]:
    """The composition, and what to ask it."""
    composition = Composition(_steps(event, adjacency), delta * 1e-7, _ORDERS[direction])
    saddles = [cumulants.at_delta(delta) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        if total.upper:
            return max(0.0, total.epsilon(delta, start, -shift) + shift)
        return max(0.0, total.epsilon(delta, start) - shift)

    leading = max(saddles[mirrored].mean for mirrored in composition.orders)
    return composition, (answer, saddles, leading, width)


@lru_cache(maxsize=4096)
def _epsilon_on_grid(
    event: Event,
    delta: float,
    adjacency: Adjacency,
    direction: Direction,
    width: float,
    *,
    grids: int = MOST_GRIDS,
) -> tuple[float, float]:
    """(lower, upper) over the orders of the pair."""
    composition, question = _epsilon_question(event, delta, adjacency, direction, width)
    return composition.refined(*question, grids=grids)


def _epsilon_upper_on_grid(event: Event, delta: float, adjacency: Adjacency) -> float:
    """Upper bound over both orders of the pair, on the first grid; the refined one is no larger."""
    composition, question = _epsilon_question(event, delta, adjacency, Direction.BOTH, RELATIVE_WIDTH)
    return composition.first_upper(*question)


@lru_cache(maxsize=4096)
def _delta_on_grid(
    event: Event,
    epsilon: float,
    adjacency: Adjacency,
    direction: Direction,
    width: float,
    *,
    grids: int = MOST_GRIDS,
) -> tuple[float, float]:
    """(lower, upper) over the orders of the pair."""
    composition = Composition(_steps(event, adjacency), _TAIL, _ORDERS[direction])
    saddles = [cumulants.at_epsilon(epsilon) for cumulants in composition.cumulants]
    logs = [c.log_delta(at.theta) for c, at in zip(composition.cumulants, saddles, strict=True)]
    # The tails that are cut off must be small against a delta that may be tiny itself.
    largest = max(logs[mirrored] for mirrored in composition.orders)
    guess = math.exp(max(min(largest, 0.0), -600.0))
    composition = Composition(_steps(event, adjacency), guess * 1e-7, _ORDERS[direction])
    saddles = [cumulants.at_epsilon(epsilon) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        return total.delta(epsilon - shift if total.upper else epsilon + shift)

    return composition.refined(answer, saddles, epsilon, width, at=lambda _: epsilon, grids=grids)


@lru_cache(maxsize=4096)
def _tpr_on_grid(
    event: Event, fpr: float, adjacency: Adjacency, direction: Direction, width: float
) -> tuple[float, float]:
    """(lower, upper) over the orders of the pair."""
    composition = Composition(_steps(event, adjacency), fpr * 1e-7, _ORDERS[direction])
    saddles = [cumulants.at_fpr(fpr) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        factor = math.exp(shift if total.upper else -shift)
        return min(1.0, total.tpr(fpr) * factor)

    leading = max(saddles[mirrored].mean for mirrored in composition.orders)
    lower, upper = composition.refined(answer, saddles, leading, width)
    return max(lower, fpr), max(upper, fpr)
