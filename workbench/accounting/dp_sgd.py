"""The accountant of DP-SGD: T releases of a Poisson-subsampled Gaussian mechanism, add-remove adjacency.

Both directions of every question are answered on the safe side of the question that was asked. Claims are
upper bounds: `epsilon` and `calibrate_noise_multiplier` round the privacy loss up (dp-accounting's
pessimistic estimate). Audits are lower bounds: `mu_to_run_epsilon` rounds it down (optimistic). Without
subsampling, T Gaussian releases of parameter mu are one of parameter mu * sqrt(T), and the closed form of
`workbench.accounting.gaussian` is used.

>>> round(epsilon(noise_multiplier=1.0, sampling_probability=1.0, steps=1, delta=1e-5), 2)
4.38

Source: Koskela, Jälkö and Honkela 2020 (privacy loss distributions by FFT); Doroshenko et al. 2022
(connect-the-dots discretisation), as implemented in `dp_accounting.pld`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq

from workbench.accounting.gaussian import epsilon_of_delta, mu_of_epsilon
from workbench.errors import InconclusiveError, InputError, UnsupportedError

NOISE_SLACK = 2e-4
"""Relative width to which the smallest sufficient noise multiplier is bracketed."""

LARGEST_RELEASE_MU = 10.0
"""Lower bounds on a release's mu above this one are composed as this one: still a lower bound."""

LARGEST_EPSILON = 500.0
"""No noise is calibrated to a larger epsilon: its loss distribution outgrows the accountant's grid."""

_FINEST_GRID = 1e6
"""Most points on which a privacy loss distribution is laid out."""


def _require(*, sampling_probability: float, steps: int, delta: float) -> None:
    """Refuse a schedule or delta out of range."""
    if not 0 < sampling_probability <= 1:
        raise InputError(f"sampling_probability must be in (0, 1], got {sampling_probability!r}")
    if steps < 1:
        raise InputError(f"steps must be >= 1, got {steps!r}")
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta!r}")


def _loss_range(noise_multiplier: float, sampling_probability: float) -> float:
    """About the width of one step's privacy losses, ten standard deviations out."""
    mu = 1 / noise_multiplier
    return max(0.0, mu * mu / 2 + 10 * mu + math.log(sampling_probability)) + sampling_probability * mu


@cache
def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
    """Upper bound on the epsilon of a DP-SGD run at `delta`, add-remove adjacency.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm, > 0.
        sampling_probability: Poisson inclusion probability q of each record in each step, in (0, 1].
        steps: Number T of releases.
        delta: In (0, 1).

    Returns:
        epsilon >= 0; above the exact one by about 1e-3 of it at most.

    Raises:
        InputError: an argument is out of range.
    """
    _require(sampling_probability=sampling_probability, steps=steps, delta=delta)
    if not 0 < noise_multiplier < math.inf:
        raise InputError(f"noise_multiplier must be finite and > 0, got {noise_multiplier!r}")
    if sampling_probability == 1:
        return epsilon_of_delta(math.sqrt(steps) / noise_multiplier, delta)
    interval = min(1e-3, 0.02 * sampling_probability / noise_multiplier)
    interval = max(interval, _loss_range(noise_multiplier, sampling_probability) / 1e6)
    try:
        step = pld.from_gaussian_mechanism(
            noise_multiplier, sampling_prob=sampling_probability, value_discretization_interval=interval
        )
        return float(step.self_compose(steps).get_epsilon_for_delta(delta))
    except (ArithmeticError, IndexError, MemoryError, ValueError) as error:
        raise UnsupportedError(
            f"dp-accounting cannot account noise_multiplier {noise_multiplier:g}, q = "
            f"{sampling_probability:g}, T = {steps} at delta {delta:g}: {type(error).__name__}"
        ) from error


@cache
def calibrate_noise_multiplier(
    *, target_epsilon: float, target_delta: float, sampling_probability: float, steps: int
) -> float:
    """Smallest noise multiplier whose accounted epsilon does not exceed the target.

    Args:
        target_epsilon: Finite, > 0.
        target_delta: In (0, 1).
        sampling_probability: Poisson inclusion probability, in (0, 1].
        steps: Number of releases.

    Returns:
        A noise multiplier with `epsilon(...) <= target_epsilon`, at most 1e-3 (relative) above the
        smallest such.

    Raises:
        InputError: an argument is out of range, or delta is so large that any noise would do.
        InconclusiveError: the search ended above the target (a fault of the accountant).
    """
    _require(sampling_probability=sampling_probability, steps=steps, delta=target_delta)
    if not 0 < target_epsilon <= LARGEST_EPSILON:
        raise InputError(f"target_epsilon must be in (0, {LARGEST_EPSILON:g}], got {target_epsilon!r}")
    if _ever_sampled(sampling_probability, steps) <= target_delta:
        raise InputError(f"target_delta must be below the chance to be sampled at all, got {target_delta!r}")

    def accounted(noise_multiplier: float) -> float:
        return epsilon(
            noise_multiplier=noise_multiplier,
            sampling_probability=sampling_probability,
            steps=steps,
            delta=target_delta,
        )

    if sampling_probability == 1:
        noise_multiplier = math.sqrt(steps) / mu_of_epsilon(target_epsilon, target_delta)
        slack = 1e-12  # the closed form is exact up to rounding
    else:
        guess = _first_guess(target_epsilon, target_delta, sampling_probability, steps)
        noise_multiplier = _crossing(accounted, target_epsilon, guess)
        slack = NOISE_SLACK
    for _ in range(5):
        if accounted(noise_multiplier) <= target_epsilon:
            return noise_multiplier
        noise_multiplier *= 1 + slack
    raise InconclusiveError(
        f"no noise multiplier near {noise_multiplier:g} was accounted at epsilon <= {target_epsilon:g}"
    )


def _ever_sampled(sampling_probability: float, steps: int) -> float:
    """Probability that a record is in at least one of the samples: delta where the noise is zero."""
    return -math.expm1(steps * math.log1p(-sampling_probability)) if sampling_probability < 1 else 1.0


def _first_guess(target_epsilon: float, target_delta: float, q: float, steps: int) -> float:
    """Noise multiplier by the central limit theorem: mu = q sqrt(T (exp(1 / s^2) - 1)).

    Source: Bu, Dong, Long and Su 2020, corollary 5.4 and the text after it.
    """
    mu = mu_of_epsilon(target_epsilon, target_delta)
    return 1 / math.sqrt(math.log1p((mu / q) ** 2 / steps))


def _crossing(accounted: Callable[[float], float], target: float, guess: float) -> float:
    """The noise multiplier at which the falling function `accounted` passes the target, near `guess`."""

    def excess(log_noise: float) -> float:
        return math.log(max(accounted(math.exp(log_noise)), 1e-12) / target)

    low = high = math.log(guess)
    width = 0.05
    while excess(low) < 0:
        low, high, width = low - width, low, 2 * width
    while excess(high) > 0:
        low, high, width = high, high + width, 2 * width
    if low == high:
        return math.exp(low)
    root = float(brentq(excess, low, high, xtol=NOISE_SLACK / 4, rtol=1e-12))
    return math.exp(root + NOISE_SLACK / 2)


def mu_to_run_epsilon(mu_lower: float, *, sampling_probability: float, steps: int, delta: float) -> float:
    """Lower bound on a whole run's epsilon from a lower bound on the mu of one release.

    It assumes the family: that each release is a Gaussian of the same mu, on a Poisson sample that holds the
    record with probability q. A release of parameter mu is then one of noise multiplier 1 / mu at most, and
    the run is composed from T of them, with the privacy loss rounded down.

    Args:
        mu_lower: Lower bound on the mu of one release in which the record takes part; negative counts as 0,
            infinity is legal, NaN gives NaN.
        sampling_probability: q in (0, 1].
        steps: Number T of releases.
        delta: In (0, 1).

    Returns:
        epsilon in [0, inf]; below the exact value by about 0.1 % of it, more for T above some thousands.

    Raises:
        InputError: an argument is out of range.
    """
    _require(sampling_probability=sampling_probability, steps=steps, delta=delta)
    if math.isnan(mu_lower):
        return math.nan
    if mu_lower <= 0:
        return 0.0
    if sampling_probability == 1:
        return epsilon_of_delta(math.sqrt(steps) * mu_lower, delta)
    if _ever_sampled(sampling_probability, steps) <= delta:
        return 0.0
    if math.isinf(mu_lower):
        return math.inf
    # Rounded down to four digits, which only weakens the bound, so that near repeats are found in the cache.
    mu = min(mu_lower, LARGEST_RELEASE_MU)
    unit = 10.0 ** (math.floor(math.log10(mu)) - 3)
    mu = math.floor(mu / unit) * unit
    return _run_epsilon_lower(mu, sampling_probability, steps, delta)


@lru_cache(maxsize=4096)
def _run_epsilon_lower(mu: float, sampling_probability: float, steps: int, delta: float) -> float:
    """The optimistic epsilon of T subsampled releases of noise multiplier 1 / mu."""
    above = epsilon(
        noise_multiplier=1 / mu, sampling_probability=sampling_probability, steps=steps, delta=delta
    )
    if above == 0:
        return 0.0
    # Each step's losses are rounded down by half an interval on average, which adds up over T steps.
    width = _loss_range(1 / mu, sampling_probability) + 4 * above
    interval = max(1e-3 * above / steps, width / _FINEST_GRID)
    step = pld.from_gaussian_mechanism(
        1 / mu,
        sampling_prob=sampling_probability,
        value_discretization_interval=interval,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    below = float(step.self_compose(steps).get_epsilon_for_delta(delta))
    return min(max(below, 0.0), above)
