"""Bounds on Poisson-sampled Gaussians by how many steps a record is in, for noise too small for any grid.

With d = 1 / noise multiplier, and the number of steps that the record is in as J ~ Bin(T, q):

- Lower end. With the record, and J >= k, the sum of some k outputs is above k d - c sqrt(k) with probability
  Phi(c) at least; without it with at most C(T, k) Phi(c - sqrt(k) d). The two bound epsilon.
- Upper end. Given the steps, the record moves the outputs by sqrt(J) d. The hockey-stick divergence is
  jointly convex, so delta is at most the mean of the Gaussians' over J. The other way about, the law with
  the record is (1 - q)^T times that without it at least, and epsilon is at most -T log(1 - q). Under
  replace-one both laws have a record: the upper ends add up.

The losses are about k d^2 / 2, and what these bounds give away is about log C(T, k): nothing for small noise.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, log_ndtr, ndtr, ndtri
from scipy.stats import binom

from workbench.accounting.bounds import Bounds
from workbench.accounting.directions import require_direction
from workbench.accounting.events import Event, SubsampledGaussian, require_event
from workbench.core.arguments import number, one_of
from workbench.interfaces import Adjacency, Direction, FloatArray

LOUD = 0.1
"""Noise multiplier below which these bounds may be narrower than a grid's."""

BEYOND_GRIDS = 0.02
"""Noise multiplier below which no grid holds the losses."""

_FARTHEST = 1e100
"""Distance beyond which losses leave the range of float64."""

_SLACK = 1e-9
"""Relative error that is allowed to each of SciPy's functions."""

_MOST = 200_000
"""Numbers of steps with the record that are summed over, at most."""

_MOST_STEPS = 10**9
"""Steps for which SciPy finds quantiles of numbers of steps at once."""

_TRIED = 200
"""Numbers of steps, and thresholds, that are tried for the lower end."""

METHOD = "by the number of steps that the record is in"

ASSUMPTIONS = (f"SciPy's binomial and normal tails and gammaln have relative errors below {_SLACK:g}",)
"""What the bounds rest on."""


def epsilon_bounds(event: Event, delta: float, adjacency: Adjacency, direction: Direction) -> Bounds | None:
    """Bounds on epsilon at delta, in (0, 1).

    None for events other than one sampled Gaussian, repeated, whose noise multiplier is below `LOUD`.

    Raises:
        InputError: an argument is out of range, or of the wrong kind.
        UnsupportedError: one direction alone under replace-one.
    """
    parts = list(require_event(event).parts())
    adjacency, delta = one_of(Adjacency, "adjacency", adjacency), number("delta", delta, above=0, below=1)
    direction = require_direction(direction, adjacency)
    if len(parts) != 1 or not isinstance(parts[0][0], SubsampledGaussian):
        return None
    part, steps = parts[0][0], parts[0][1]
    distance, rate = 1.0 / part.noise_multiplier, part.sampling_probability
    is_small = part.noise_multiplier < LOUD and distance < _FARTHEST and rate < 1
    if not is_small or steps > _MOST_STEPS or steps * rate > _MOST:
        return None
    largest = int(binom.isf(delta * _SLACK, steps, rate)) + 1
    without = -steps * math.log1p(-rate) * (1 + _SLACK)
    lower = _lower(distance, rate, steps, delta, largest)
    upper = _upper(distance, rate, steps, delta, min(largest, steps))
    if adjacency is Adjacency.REPLACE_ONE:
        upper += without
    elif direction is Direction.ADD:
        lower, upper = 0.0, without
    elif direction is Direction.BOTH:
        upper = max(upper, without)
    return Bounds(
        lower=lower,
        upper=upper,
        rigorous=True,
        method=METHOD,
        assumptions=ASSUMPTIONS,
    )


def is_seldom_in(event: Event, delta: float) -> bool:
    """Whether the record is in a step with a probability of at most delta, so that epsilon is 0.

    Then no outputs differ by more in probability, whatever they are, under any adjacency.

    Raises:
        InputError: it is no event, or delta is not in (0, 1).
    """
    delta, log_never = number("delta", delta, above=0, below=1), 0.0
    for part, count in require_event(event).parts():
        if not isinstance(part, SubsampledGaussian) or part.sampling_probability == 1:
            return False
        log_never += count * math.log1p(-part.sampling_probability)
    return -math.expm1(log_never) * (1 + _SLACK) <= delta


def is_beyond_grids(event: Event) -> bool:
    """Whether some sampled Gaussian has so little noise that no grid holds its losses.

    Raises:
        InputError: it is no event.
    """
    sampled = [part for part, _ in require_event(event).parts() if isinstance(part, SubsampledGaussian)]
    return any(part.noise_multiplier < BEYOND_GRIDS for part in sampled)


def _lower(distance: float, rate: float, steps: int, delta: float, largest: int) -> float:
    """The best of several numbers of steps and thresholds."""
    counts = np.unique(np.linspace(1, min(largest, steps), _TRIED).astype(int))
    reached = binom.sf(counts - 1, steps, rate) * (1 - _SLACK)
    counts, reached = counts[reached > delta], reached[reached > delta]
    best = 0.0
    for k, share in zip(counts.tolist(), reached.tolist(), strict=True):
        least = float(ndtri(delta / share))
        thresholds = least + np.geomspace(1e-6, 10.0, _TRIED)
        gained = share * ndtr(thresholds) * (1 - _SLACK) - delta
        subsets = gammaln(steps + 1) - gammaln(k + 1) - gammaln(steps - k + 1)
        error = _SLACK * (gammaln(steps + 1) + gammaln(k + 1) + gammaln(steps - k + 1))
        tails = log_ndtr(thresholds - math.sqrt(k) * distance)
        usable = gained > _SLACK * delta
        if usable.any():
            found = np.log(gained[usable]) - tails[usable] * (1 - _SLACK) - (subsets + error)
            best = max(best, float(found.max()) * (1 - _SLACK))
    return best


def _upper(distance: float, rate: float, steps: int, delta: float, largest: int) -> float:
    """Where the mean of the Gaussians' deltas, without their second term, is at most delta."""
    counts = np.arange(1, largest + 1)
    shares, moved = binom.pmf(counts, steps, rate), np.sqrt(counts) * distance
    beyond = float(binom.sf(largest, steps, rate))

    def mean(epsilon: float) -> float:
        tails: FloatArray = ndtr(moved / 2 - epsilon / moved)
        return (float(shares @ tails) + beyond) * (1 + 4 * _SLACK)

    low, high = 0.0, 1.0
    if mean(low) <= delta:
        return 0.0
    while mean(high) > delta:
        low, high = high, 2 * high
        if math.isinf(high):
            return math.inf
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) > delta else (low, middle)
    return high
