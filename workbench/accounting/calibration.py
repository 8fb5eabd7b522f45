"""The least noise that keeps a target, from both sides, for any event that is made from its noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import FINEST_WIDTH, RELATIVE_WIDTH, epsilon_bounds
from workbench.accounting.directions import require_direction
from workbench.accounting.dp_events import event_of
from workbench.accounting.events import gaussian_run
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.accounting.searching import HIGHEST, smallest_meeting
from workbench.core.arguments import number, one_of, whole_number
from workbench.core.errors import ArgumentError, InputError, UnsupportedError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency, Direction

LEAST_DELTA = 1e-30
"""Below it bounds on epsilon are slow and wide, and a search by them does not end."""

_FALLS = "epsilon does not rise with the noise of the event that was given (the lower end rests on it)"


def calibrate(
    event: Callable[[float], object] | None = None,
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_probability: float = 1.0,
    steps: int = 1,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    direction: Direction | str = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> Bounds:
    """Bounds on the least noise at which an event is (target_epsilon, target_delta)-DP.

    At the upper end the target is kept by proof; at the lower one, and below, it is broken by proof.

        >>> found = calibrate(target_epsilon=1, target_delta=1e-5, sampling_probability=0.01, steps=1000)
        >>> round(found.lower, 2), round(found.upper, 2)
        (1.41, 1.41)

    Args:
        event: Makes an event of `workbench.accounting`, or dp-accounting's, from a noise in [0.01, 1e9];
            epsilon must not rise with it. Without it, the noise is the multiplier of a `gaussian_run`.
        target_epsilon: Finite, > 0.
        target_delta: In [1e-30, 1).
        sampling_probability: Of the Gaussian run, in (0, 1].
        steps: Of the Gaussian run, >= 1.
        adjacency: `"add-remove"`, `"replace-one"` or `"zero-out"`.
        direction: As of `workbench.accounting.epsilon`.
        relative_width: To which the ends are brought together, where the bounds on epsilon allow it. The
            lower end is 0 where they show no noise that breaks the target.

    Raises:
        InputError: an argument is out of range or of the wrong kind, or any noise keeps the target.
        InconclusiveError: no noise up to 1e9 keeps it.
        UnsupportedError: the event has no certified bounds under this adjacency.
    """
    adjacency = one_of(Adjacency, "adjacency", adjacency)
    direction = require_direction(direction, adjacency)
    target_epsilon = number("target_epsilon", target_epsilon, above=0, below=math.inf)
    target_delta = number("target_delta", target_delta, least=LEAST_DELTA, below=1)
    width = number("relative_width", relative_width, least=FINEST_WIDTH, below=1)
    make = _maker(event, sampling_probability, steps)
    options: dict[str, Any] = {
        "adjacency": adjacency,
        "direction": direction,
        "relative_width": max(width / 4, FINEST_WIDTH),
    }

    def bounds(log_noise: float) -> Bounds:
        known = event_of(make(math.exp(log_noise)), adjacency=adjacency)
        return epsilon_bounds(known, target_delta, **options)

    _ = bounds(0.0) if event is not None else None  # What no bounds support is refused, not searched.

    def end(log_noise: float, *, of: str) -> float:
        """An end of the bounds; infinite where the losses are too wide for any grid."""
        try:
            return float(getattr(bounds(log_noise), of))
        except UnsupportedError:
            return math.inf

    start = -math.log(mu_of_epsilon(target_epsilon, target_delta)) if event is None else 0.0
    try:
        (enough, _), _ = smallest_meeting(partial(end, of="upper"), target_epsilon, start, width / 4)
    except InputError:
        if event is not None and end(HIGHEST, of="lower") > target_epsilon:
            raise ArgumentError("event", "must be of less epsilon the larger its noise is") from None
        raise
    found = bounds(enough)
    short = _largest_breaking(partial(end, of="lower"), bounds, target_epsilon, enough, width / 4)
    return Bounds(
        lower=short,
        upper=math.exp(enough),
        rigorous=found.rigorous,
        method=f"by bounds on epsilon: {found.method}",
        assumptions=found.assumptions if event is None else (*found.assumptions, _FALLS),
    )


def _maker(
    event: Callable[[float], object] | None, sampling_probability: float, steps: int
) -> Callable[[float], object]:
    sampling_probability = number("sampling_probability", sampling_probability, above=0, most=1)
    steps = whole_number("steps", steps, least=1, most=None)
    if event is None:
        return lambda noise: gaussian_run(
            noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps
        )
    if not callable(event):
        raise InputError(f"event must make an event from a noise, got {object_line(event)}")
    if (sampling_probability, steps) != (1.0, 1):
        raise InputError("sampling_probability and steps are the Gaussian run's, not those of another event")
    return event


def _largest_breaking(
    lower: Callable[[float], float],
    bounds: Callable[[float], Bounds],
    target: float,
    enough: float,
    slack: float,
) -> float:
    """The largest noise found whose lower bound is above the target; 0 where none is."""
    try:
        _, (short, _) = smallest_meeting(lower, target, enough, slack)
        return math.exp(short) if bounds(short).lower > target else 0.0
    except (InputError, UnsupportedError):  # No noise is known to break it.
        return 0.0
