"""The accountant of DP-SGD: T releases of a Poisson-subsampled Gaussian mechanism, add-remove adjacency.

Both directions of every question are answered on the safe side of the question that was asked, out of
the certified bounds of `workbench.accounting.certified`. Claims are upper bounds: `epsilon` and
`calibrate_noise_multiplier` return a certified upper end. Audits are lower bounds: `mu_to_run_epsilon`
returns a certified lower end.

>>> round(epsilon(noise_multiplier=1.0, sampling_probability=1.0, steps=1, delta=1e-5), 2)
4.38
"""

from __future__ import annotations

import math
from functools import cache

from workbench.accounting import certified
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import dp_sgd
from workbench.core.errors import InputError, UnsupportedError

LARGEST_RELEASE_MU = 10.0
"""Lower bounds on a release's mu above this one are composed as this one: still a lower bound."""

SMALLEST_RELEASE_MU = 1e-9
"""Lower bounds on a release's mu below this one count as 0."""

LARGEST_EPSILON = 2000.0
"""No noise is calibrated to a larger epsilon: the tests hold the bounds to another accountant up to here."""


def _require(*, sampling_probability: float, steps: int, delta: float) -> None:
    """Refuse a schedule or delta out of range."""
    if not 0 < sampling_probability <= 1:
        raise InputError(f"sampling_probability must be in (0, 1], got {sampling_probability!r}")
    if steps < 1:
        raise InputError(f"steps must be >= 1, got {steps!r}")
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta!r}")


@cache
def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
    """Certified upper bound on the epsilon of a DP-SGD run at `delta`, add-remove adjacency.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm, > 0.
        sampling_probability: Poisson inclusion probability q of each record in each step, in (0, 1].
        steps: Number T of releases.
        delta: In (0, 1).

    Returns:
        epsilon >= 0; above the exact one by 1e-3 of it at most, where the finest grid allows it.

    Raises:
        InputError: an argument is out of range.
        UnsupportedError: no finite upper bound was found.
    """
    _require(sampling_probability=sampling_probability, steps=steps, delta=delta)
    if not 0 < noise_multiplier < math.inf:
        raise InputError(f"noise_multiplier must be finite and > 0, got {noise_multiplier!r}")
    run = dp_sgd(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=steps)
    found = certified.epsilon_bounds(run, delta).upper
    if math.isinf(found):
        raise UnsupportedError(
            f"no finite certified epsilon for noise_multiplier {noise_multiplier:g}, q = "
            f"{sampling_probability:g}, T = {steps} at delta {delta:g}"
        )
    return found


@cache
def same_sigma_epsilon(
    *, noise_multiplier: float, sampling_probability: float, steps: int, delta: float
) -> Bounds:
    """What a noise multiplier, wherever it comes from, is worth to plain DP-SGD: its epsilon from both sides.

    For a paper that compares runs at the same claimed epsilon, and never at the same noise.

    Args:
        noise_multiplier: Standard deviation of the noise over the clipping norm, >= 0.
        sampling_probability: Poisson inclusion probability q of each record in each step, in (0, 1].
        steps: Number T of releases.
        delta: In (0, 1).

    Returns:
        lower <= epsilon at `delta` under add-remove adjacency <= upper; without noise both are infinite, or 0
        where a record is unlikelier than delta to be sampled at all.

    Raises:
        InputError: an argument is out of range.
        UnsupportedError: no bound was found.
    """
    _require(sampling_probability=sampling_probability, steps=steps, delta=delta)
    if not 0 <= noise_multiplier < math.inf:
        raise InputError(f"noise_multiplier must be finite and >= 0, got {noise_multiplier!r}")
    if noise_multiplier == 0:
        found = 0.0 if _ever_sampled(sampling_probability, steps) <= delta else math.inf
        return Bounds(lower=found, upper=found, rigorous=True, method="a sum without noise")
    run = dp_sgd(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=steps)
    return certified.epsilon_bounds(run, delta)


@cache
def calibrate_noise_multiplier(
    *, target_epsilon: float, target_delta: float, sampling_probability: float, steps: int
) -> float:
    """Smallest noise multiplier whose certified epsilon does not exceed the target.

    Args:
        target_epsilon: In (0, `LARGEST_EPSILON`].
        target_delta: In (0, 1).
        sampling_probability: Poisson inclusion probability, in (0, 1].
        steps: Number of releases.

    Returns:
        A noise multiplier with `epsilon(...) <= target_epsilon`, at most 2e-4 (relative) above one that
        the bound on the first grid does not certify.

    Raises:
        InputError: an argument is out of range, or delta is so large that any noise would do.
        InconclusiveError: no noise multiplier up to 1e9 was certified at the target.
    """
    _require(sampling_probability=sampling_probability, steps=steps, delta=target_delta)
    if not 0 < target_epsilon <= LARGEST_EPSILON:
        raise InputError(f"target_epsilon must be in (0, {LARGEST_EPSILON:g}], got {target_epsilon!r}")
    if _ever_sampled(sampling_probability, steps) <= target_delta:
        raise InputError(f"target_delta must be below the chance to be sampled at all, got {target_delta!r}")
    return certified.calibrate_noise_multiplier(
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        sampling_probability=sampling_probability,
        steps=steps,
    )


def _ever_sampled(sampling_probability: float, steps: int) -> float:
    """Probability that a record is in at least one of the samples: delta where the noise is zero."""
    return -math.expm1(steps * math.log1p(-sampling_probability)) if sampling_probability < 1 else 1.0


def mu_to_run_epsilon(mu_lower: float, *, sampling_probability: float, steps: int, delta: float) -> float:
    """Lower bound on a whole run's epsilon from a lower bound on the mu of one release.

    It assumes the family: that each release is a Gaussian of the same mu, on a Poisson sample that holds
    the record with probability q. A release of parameter mu is then one of noise multiplier 1 / mu at
    most, and the run is composed from T of them, with the privacy loss rounded down.

    Args:
        mu_lower: Lower bound on the mu of one release in which the record takes part; negative counts as 0,
            infinity is legal, NaN gives NaN.
        sampling_probability: q in (0, 1].
        steps: Number T of releases.
        delta: In (0, 1).

    Returns:
        epsilon in [0, inf]; below the exact value by about 0.1 % of it.

    Raises:
        InputError: an argument is out of range.
    """
    _require(sampling_probability=sampling_probability, steps=steps, delta=delta)
    if math.isnan(mu_lower):
        return math.nan
    if mu_lower < SMALLEST_RELEASE_MU:
        return 0.0
    if _ever_sampled(sampling_probability, steps) <= delta:
        return 0.0
    if math.isinf(mu_lower):
        return math.inf
    mu = mu_lower
    if sampling_probability < 1:
        # Rounded down to four digits, which only weakens the bound, so that near repeats are cached.
        mu = min(mu_lower, LARGEST_RELEASE_MU)
        unit = 10.0 ** (math.floor(math.log10(mu)) - 3)
        mu = min(mu, math.floor(mu / unit) * unit)
    noise = math.nextafter(1 / mu, math.inf)
    run = dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps)
    return certified.epsilon_bounds(run, delta).lower
