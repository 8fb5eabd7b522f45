"""The accountant of T releases of a Poisson-subsampled Gaussian mechanism, add-remove adjacency.

Every answer errs on the safe side of its question, by the bounds of `workbench.accounting.certified`. Claims
are upper bounds: `epsilon` and `calibrate_noise_multiplier` return a certified upper end. Audits are lower
bounds: `mu_to_run_epsilon` returns a certified lower end.

>>> round(epsilon(noise_multiplier=1.0, sampling_probability=1.0, steps=1, delta=1e-5), 2)
4.38
"""

from __future__ import annotations

import math
from functools import lru_cache

from workbench.accounting import certified
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import gaussian_run
from workbench.core.arguments import number, whole_number
from workbench.core.errors import InputError, UnsupportedError

LARGEST_RELEASE_MU = 10.0
"""Lower bounds on a release's mu above this one are composed as this one: still a lower bound."""

SMALLEST_RELEASE_MU = 1e-9
"""Lower bounds on a release's mu below this one count as 0."""

LARGEST_EPSILON = 2000.0
"""No noise is calibrated to a larger epsilon: the tests hold the bounds to another accountant up to here."""


def _schedule(
    sampling_probability: float, steps: int, delta: float, *, delta_name: str = "delta"
) -> tuple[float, int, float]:
    """The three as plain numbers; refuses what is out of range."""
    q = number("sampling_probability", sampling_probability, above=0, most=1)
    steps = whole_number("steps", steps, least=1, most=None)
    return q, steps, number(delta_name, delta, above=0, below=1)


@lru_cache(maxsize=4096)
def _run_bounds(noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> Bounds:
    """Certified epsilon of a run, add-remove adjacency; arguments are checked before the cache sees them."""
    run = gaussian_run(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=steps
    )
    return certified.epsilon_bounds(run, delta)


def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
    """Certified upper bound on the epsilon of a run at `delta`, add-remove adjacency.

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
    sampling_probability, steps, delta = _schedule(sampling_probability, steps, delta)
    noise_multiplier = number("noise_multiplier", noise_multiplier, above=0, below=math.inf)
    upper = _run_bounds(noise_multiplier, sampling_probability, steps, delta).upper
    if math.isinf(upper):
        raise UnsupportedError(
            f"no finite certified epsilon for noise_multiplier {noise_multiplier:g}, q = "
            f"{sampling_probability:g}, T = {steps} at delta {delta:g}"
        )
    return upper


def same_sigma_epsilon(
    *, noise_multiplier: float, sampling_probability: float, steps: int, delta: float
) -> Bounds:
    """Epsilon from both sides of a run at a noise multiplier that may come from elsewhere, and may be 0.

    For papers that compare runs at the same claimed epsilon, and never at the same noise.

    Args:
        noise_multiplier: Finite, >= 0.
        sampling_probability, steps, delta: As in `epsilon`.

    Returns:
        lower <= epsilon at `delta` under add-remove adjacency <= upper; without noise both are infinite, or 0
        where a record is unlikelier than delta to be sampled at all.

    Raises:
        InputError: an argument is out of range.
        UnsupportedError: no bound was found.
    """
    sampling_probability, steps, delta = _schedule(sampling_probability, steps, delta)
    noise_multiplier = number("noise_multiplier", noise_multiplier, least=0, below=math.inf)
    if noise_multiplier == 0:
        end = 0.0 if _ever_sampled(sampling_probability, steps) <= delta else math.inf
        return Bounds(lower=end, upper=end, rigorous=True, method="a sum without noise")
    return _run_bounds(noise_multiplier, sampling_probability, steps, delta)


def calibrate_noise_multiplier(
    *, target_epsilon: float, target_delta: float, sampling_probability: float, steps: int
) -> float:
    """Smallest noise multiplier whose certified epsilon does not exceed the target.

    Args:
        target_epsilon: In (0, `LARGEST_EPSILON`].
        target_delta: In (0, 1).
        sampling_probability, steps: As in `epsilon`.

    Returns:
        A noise multiplier with `epsilon(...) <= target_epsilon`, at most 2e-4 (relative) above one that
        the bound on the first grid does not certify.

    Raises:
        InputError: an argument is out of range, or delta is so large that any noise would do.
        InconclusiveError: no noise multiplier up to 1e9 was certified at the target.
    """
    sampling_probability, steps, target_delta = _schedule(
        sampling_probability, steps, target_delta, delta_name="target_delta"
    )
    target_epsilon = number("target_epsilon", target_epsilon, above=0, most=LARGEST_EPSILON)
    if _ever_sampled(sampling_probability, steps) <= target_delta:
        raise InputError(f"target_delta must be below the chance to be sampled at all, got {target_delta!r}")
    return _calibrated(target_epsilon, target_delta, sampling_probability, steps)


@lru_cache(maxsize=4096)
def _calibrated(target_epsilon: float, target_delta: float, sampling_probability: float, steps: int) -> float:
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
        sampling_probability, steps, delta: As in `epsilon`.

    Returns:
        epsilon in [0, inf]; below the exact value by about 0.1 % of it.

    Raises:
        InputError: an argument is out of range.
    """
    mu_lower = number("mu_lower", mu_lower)
    sampling_probability, steps, delta = _schedule(sampling_probability, steps, delta)
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
    return _run_bounds(noise, sampling_probability, steps, delta).lower
