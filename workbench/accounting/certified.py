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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np

from workbench.accounting import exact, inclusions
from workbench.accounting.balls import central_limit
from workbench.accounting.balls.largest_output import largest_output_pair
from workbench.accounting.bounds import Bounds
from workbench.accounting.directions import require_direction
from workbench.accounting.events import Event, SubsampledGaussian, gaussian_run, require_event
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.accounting.grid import many_steps, rare_losses
from workbench.accounting.grid.composition import MOST_GRIDS, Composition
from workbench.accounting.grid.laws import SubsampledLaw
from workbench.accounting.grid.laws_of_events import counted, steps_of
from workbench.accounting.grid.questions import (
    LEAST_MASS,
    ORDERS,
    DeltaQuestion,
    EpsilonQuestion,
    GridQuestion,
    RateQuestion,
    on_grid,
    several_on_grid,
)
from workbench.accounting.reductions import reduced
from workbench.accounting.searching import root, smallest_meeting
from workbench.core.arguments import number, one_of, whole_number
from workbench.core.errors import UnsupportedError, unknown_name
from workbench.interfaces import Adjacency, Direction

RELATIVE_WIDTH = 1e-3
"""Bounds are refined until they are at most this wide, where the finest grid allows it."""

FINEST_WIDTH = 1e-9
"""Least `relative_width` that may be asked for; what a grid can reach is seldom below 1e-6."""

_QUESTIONS: dict[many_steps.Question, type[GridQuestion]] = {
    "epsilon": EpsilonQuestion,
    "delta": DeltaQuestion,
    "tpr": RateQuestion,
}

_FIRST_GRIDS = 2
"""Grids after which rare losses are bounded apart, where the bounds are still wide."""

_SELDOM = 10.0
"""Steps that a record is in, on average, below which tests of the largest output may do."""

_RARE = 1e-3
"""Sampling probability below which large losses may be rare."""

METHOD = "dominating and dominated grids, tilted FFT"

ASSUMPTIONS = (
    "float64 arithmetic is IEEE 754, and the elementary functions keep the error bounds stated in "
    "workbench.accounting.grid.laws",
)
"""What grid bounds rest on; the tests compare the elementary functions with ball arithmetic."""


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
    return bounds_at(
        "epsilon", event, [delta], adjacency=adjacency, direction=direction, relative_width=relative_width
    )[0]


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
    return bounds_at(
        "delta", event, [epsilon], adjacency=adjacency, direction=direction, relative_width=relative_width
    )[0]


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
    return bounds_at(
        "tpr", event, [fpr], adjacency=adjacency, direction=direction, relative_width=relative_width
    )[0]


def bounds_at(
    kind: many_steps.Question,
    event: Event,
    values: Sequence[float],
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    direction: Direction = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> list[Bounds]:
    """Bounds at each of several values, for which compositions on a grid are computed together.

    Args:
        kind: What is asked at the values.
        event, adjacency, direction, relative_width: As in `epsilon_bounds`.
        values: Deltas, epsilons or false-positive rates.

    Raises:
        InputError, UnsupportedError: As `epsilon_bounds`.
    """
    if kind not in _QUESTIONS:
        raise unknown_name("kind", kind, _QUESTIONS)
    event, adjacency, direction = _question(event, adjacency, direction)
    checked = [_value(kind, value) for value in values]
    width = number("relative_width", relative_width, least=FINEST_WIDTH, below=1)
    with _within_range(event):

        def question(pair: Event) -> GridQuestion:
            return _QUESTIONS[kind](pair, adjacency, direction)

        shared = _shared(event, question, checked, width) if len(set(checked)) > 1 else {}

        def bounds(value: float, pair: Event) -> Bounds:
            ends = shared.get(pair, {}).get(value)
            return _of_pair(question(pair), value, width) if ends is None else _grid_bounds(*ends)

        return [_of_pairs(event, adjacency, partial(bounds, value)) for value in checked]


def _value(kind: many_steps.Question, value: float) -> float:
    """The value as a plain number; refuses what is out of range."""
    if kind == "epsilon":
        return number("delta", value, above=0, below=1)
    if kind == "delta":
        return number("epsilon", value, least=0, below=math.inf)
    return number("fpr", value, above=0, below=1)


def _shared(
    event: Event, ask: Callable[[Event], GridQuestion], values: Sequence[float], width: float
) -> dict[Event, dict[float, tuple[float, float]]]:
    """For each pair that is composed on a grid, the ends at those values where shared ones are narrow."""
    found: dict[Event, dict[float, tuple[float, float]]] = {}
    reduction = reduced(event, ask(event).adjacency)
    for pair in dict.fromkeys((reduction.dominating, *reduction.attained, *reduction.beside)):
        question = ask(pair)
        is_exact = exact.supports(pair, question.adjacency, question.direction)
        if is_exact or inclusions.is_beyond_grids(pair):
            continue
        with suppress(UnsupportedError, ArithmeticError):  # One by one, some may have an answer.
            found[pair] = several_on_grid(question, values, width)
    return found


def _of_pair(question: GridQuestion, value: float, width: float) -> Bounds:
    """Bounds of one pair; where they stay wide and a record is seldom drawn, by the largest output too."""
    found = _without_largest(question, value, width)
    if found.relative_width <= width or not _is_seldom_drawn(question):
        return found
    ((part, count),) = question.event.parts()
    assert isinstance(part, SubsampledGaussian)
    pair = largest_output_pair(part.noise_multiplier, part.sampling_probability, count)
    below = _of_pair(type(question)(pair, question.adjacency, Direction.REMOVE), value, width)
    if below.lower <= found.lower:
        return found
    return found.narrowed_by(
        Bounds(
            lower=below.lower,
            upper=math.inf,
            rigorous=True,
            method="lower end by tests of the largest output",
            assumptions=below.assumptions,
        )
    )


def _is_seldom_drawn(question: GridQuestion) -> bool:
    """Whether it is about one sampled Gaussian, repeated, of whose steps a record is in a few at most."""
    (part, count), *others = question.event.parts()
    is_forward = question.adjacency is not Adjacency.REPLACE_ONE and question.direction is not Direction.ADD
    return (
        not others
        and is_forward
        and isinstance(part, SubsampledGaussian)
        and part.sampling_probability * count < _SELDOM
    )


def _without_largest(question: GridQuestion, value: float, width: float) -> Bounds:
    """Bounds of one pair, which is the event of the question, by exact counts, grids and the limit."""
    pair, adjacency, direction = question.event, question.adjacency, question.direction
    if isinstance(question, RateQuestion):
        if exact.supports(pair, adjacency, direction):
            return exact.tpr_bounds(pair, value, adjacency, direction)
        return _by_limit(_grid_bounds(*on_grid(question, value, width)), width, question, "tpr", value)
    if isinstance(question, DeltaQuestion):
        if exact.supports(pair, adjacency, direction):
            return exact.delta_bounds(pair, value, adjacency, direction)
        found = _with_rare_losses(question, rare_losses.DELTA, value, width)
        return _by_limit(found, width, question, "delta", value)
    if exact.supports(pair, adjacency, direction):
        return exact.epsilon_bounds(pair, value, adjacency, direction)
    if inclusions.is_seldom_in(pair, value):
        return Bounds(lower=0.0, upper=0.0, rigorous=True, method=inclusions.METHOD)
    loud = inclusions.epsilon_bounds(pair, value, adjacency, direction)
    if loud is not None and inclusions.is_beyond_grids(pair):
        return loud
    found = _with_rare_losses(question, rare_losses.EPSILON, value, width)
    found = _by_limit(found, width, question, "epsilon", value)
    return found if loud is None else found.narrowed_by(loud)


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
            return EpsilonQuestion(run(log_noise), adjacency, Direction.BOTH).first_upper(
                target_delta, RELATIVE_WIDTH
            )
        except UnsupportedError:
            return math.inf

    def log_excess(log_noise: float) -> float:
        """log(epsilon / target), about; where it fails, large for little noise, else small."""
        try:
            composition = Composition(steps_of(run(log_noise), adjacency), tail=target_delta * 1e-7)
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
    own = bounds(reduction.dominating)
    if not reduction.attained and not reduction.beside:
        return own
    above = min((own, *map(bounds, reduction.beside)), key=lambda found: found.upper)
    each = [bounds(pair) for pair in reduction.attained] or [own]
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
    found: Bounds, width: float, asked: GridQuestion, kind: many_steps.Question, value: float
) -> Bounds:
    """Bounds that are no wider than asked for; others with those of the central limit, where it has any."""
    if found.relative_width <= width:
        return found
    event, adjacency = asked.event, asked.adjacency
    parts, squares = counted(event, adjacency)
    known = many_steps.known_parts(parts, adjacency)
    if known is None:
        return found
    rate = max(found.lower, LEAST_MASS) if kind == "delta" else value
    composition = Composition(steps_of(event, adjacency), rate * 1e-7, ORDERS[asked.direction])
    ends = many_steps.ends_of(known, squares, composition, question=kind, value=value)
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


def _with_rare_losses(question: GridQuestion, ends: rare_losses.Ends, value: float, width: float) -> Bounds:
    """Bounds by grids; where few losses of a sampled Gaussian are large, and grids leave much, by those.

    Args:
        question, value, width: What is asked.
        ends: Answer the question by rare losses.
    """
    event, adjacency, direction = question.event, question.adjacency, question.direction

    def by_grids(most: int = MOST_GRIDS) -> Bounds:
        return _grid_bounds(*on_grid(question, value, width, grids=most))

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
