"""The noise of Shuffled DPSGD: Theorem 6 with Theorems 2 and 1, solved for sigma.

Theorems 1 and 2 are inverted in closed form: of the budget's delta, `slack` stays with the composition and
each step gets an equal share of the rest. What remains is Eq. 25 at one step's epsilon and delta.

Its left side h(sigma) need not fall as the noise grows. In 3,000 random settings (epsilon 1e-4 to 20, delta
1e-14 to 0.9, d up to 1e9, c' / c from 1e-3 to 1e4, either zeta_2) it crossed delta more than once in nine,
all of them with zeta_2 of Eq. 26 (`"main text"`), few dimensions and a small delta: for d = 8, c' = 0.021 c,
epsilon 1.3278 and delta 1.345e-13, Eq. 25 holds from sigma = 0.637 c to 0.726 c, fails up to 0.987 c, and
holds from there on. So all crossings are looked for, between two ends that are proved:

- above `_all_above`, Eq. 25 holds everywhere: h is at most its first term, which is at most
  Phi(1 / (2 sigma) - epsilon sigma), falling in sigma;
- below `_all_below` it holds nowhere: where (d - 1) exp(-c c' / sigma^2) <= 1, zeta_1 >= -log 2 and
  sigma_Z1^2 >= s - log 4, with s = c^2 / sigma^2, while the subtracted term is at most the Gaussian
  mechanism's.

Between them, a grid of `POINTS` noise levels, even in log sigma, is searched: two crossings between
neighbours of the grid would be missed. The noise multiplier is the largest crossing: from there on Eq. 25
holds at every level. (The theorem as printed would let any level do at which Eq. 25 holds.)

>>> found = noise_multiplier_for(
...     epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=1000, dimension=85_800_000
... )
>>> 0.2 < found < 0.4
True
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtr, ndtri

from workbench.accounting.crossings import crossing, turns
from workbench.core.errors import InputError
from workbench.mechanisms.accountants.shuffled_dp_sgd import LARGEST_EPSILON, theorem_6_delta

POINTS = 600
"""Noise levels at which Eq. 25 is evaluated between the two ends."""


def step_budget(
    *, epsilon: float, delta: float, sampling_probability: float, steps: int, slack: float
) -> tuple[float, float]:
    """Theorems 1 and 2 backwards: what each of T equal steps may take, before its subsampling.

    Args:
        epsilon: Of the whole run, in (0, 1e5].
        delta: Of the whole run, in (0, 1).
        sampling_probability: In (0, 1].
        steps: T >= 1.
        slack: Share of delta that Theorem 1 keeps for the composition, in (0, 1).

    Returns:
        The largest epsilon, and the delta, of one step; the latter may be 1 or more.

    Raises:
        InputError: an argument is out of range.
    """
    _require("epsilon", epsilon, 0 < epsilon <= LARGEST_EPSILON, f"in (0, {LARGEST_EPSILON:g}]")
    _require("delta", delta, 0 < delta < 1, "in (0, 1)")
    _require("sampling_probability", sampling_probability, 0 < sampling_probability <= 1, "in (0, 1]")
    _require("steps", steps, steps >= 1, ">= 1")
    _require("slack", slack, 0 < slack < 1, "in (0, 1)")
    root = math.sqrt(-2 * math.log(slack * delta) * steps)
    # Eq. 11 is the smaller of two increasing functions, so its inverse is the larger of theirs.
    amplified = max(epsilon / steps, 2 * epsilon / (root + math.sqrt(root * root + 2 * steps * epsilon)))
    if amplified > 700:
        before = amplified - math.log(sampling_probability)
    else:
        before = math.log1p(math.expm1(amplified) / sampling_probability)
    return before, (1 - slack) * delta / (steps * sampling_probability)


def crossings_for(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    dimension: int,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
) -> tuple[float, ...]:
    """Every noise multiplier at which the run begins or ceases to meet the budget, increasing.

    An odd number of them: Eq. 25 holds from the first to the second, from the third to the fourth, ..., and
    from the last one on. Each is given from the side on which it holds.

    Args:
        epsilon: Budget of the whole run, in (0, 1e5].
        delta: Budget of the whole run, in (0, 1).
        sampling_probability: In (0, 1].
        steps: T >= 1.
        dimension: d >= 1; 1 is unshuffled DP-SGD by the same accounting.
        batch_clip: c' / c, > 0; nothing depends on it in one dimension.
        slack: Share of delta that Theorem 1 keeps for the composition, in (0, 1).
        zeta_2: `"appendix"` or `"main text"`.

    Raises:
        InputError: an argument is out of range, or delta is so large that any noise would do.
    """
    per_step, share = step_budget(
        epsilon=epsilon, delta=delta, sampling_probability=sampling_probability, steps=steps, slack=slack
    )
    if share >= 1:
        raise InputError(f"delta must be so small that it takes noise to meet it, got {delta!r}")
    left_side = partial(
        theorem_6_delta, epsilon=per_step, dimension=dimension, batch_clip=batch_clip, zeta_2=zeta_2
    )

    left_side(noise_multiplier=1.0)  # refuses an option that is out of range

    def holds(log_sigma: float) -> bool:
        return left_side(noise_multiplier=math.exp(log_sigma)) <= share

    low = math.log(_all_below(per_step, share, dimension, batch_clip))
    high = math.log(_all_above(per_step, share))
    grid = [float(point) for point in np.linspace(low, high, POINTS)]
    met = [holds(point) for point in grid[:-1]] + [True]
    return tuple(math.exp(crossing(holds, grid[i - 1], grid[i])) for i in turns(met))


@lru_cache(maxsize=4096)
def noise_multiplier_for(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    dimension: int,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
) -> float:
    """sigma / c of Algorithm 1, line 2 (at d = 1 of line 3): from it on the run meets the budget.

    Args:
        epsilon: See `crossings_for`, of which this is the last.
        delta: See there.
        sampling_probability: See there.
        steps: See there.
        dimension: See there.
        batch_clip: See there.
        slack: See there.
        zeta_2: See there.

    Raises:
        InputError: as there.
    """
    return crossings_for(
        epsilon=epsilon,
        delta=delta,
        sampling_probability=sampling_probability,
        steps=steps,
        dimension=dimension,
        batch_clip=batch_clip,
        slack=slack,
        zeta_2=zeta_2,
    )[-1]


def _all_above(epsilon: float, delta: float) -> float:
    """sigma with Phi(1 / (2 sigma) - epsilon sigma) = delta, from where on Eq. 25 holds; widened a little."""
    quantile = float(ndtri(delta))
    root = math.sqrt(quantile * quantile + 2 * epsilon)
    # (root - quantile) / (2 epsilon), written so that nothing cancels where the quantile is positive.
    sigma = 1 / (root + quantile) if quantile > 0 else (root - quantile) / (2 * epsilon)
    return 1.001 * sigma


def _all_below(epsilon: float, delta: float, dimension: int, batch_clip: float) -> float:
    """A sigma at which, as at any smaller one, Eq. 25 does not hold."""
    alone = math.log(dimension - 1) / batch_clip if dimension > 1 else 0.0
    square = max(alone, 2 * epsilon, 2.0)
    while _least(square, epsilon) <= delta:
        square *= 2
    return 1 / math.sqrt(square)


def _least(square: float, epsilon: float) -> float:
    """What h is at least where (d - 1) exp(-c' / c * square) <= 1, with square = c^2 / sigma^2 > log 4."""
    spread = math.sqrt(square - math.log(4))
    first = float(ndtr(spread / 2 - (math.log(2) + epsilon) / spread))
    root = math.sqrt(square)
    # e^epsilon Phi(-x) <= e^(epsilon - x^2 / 2) / 2, and x^2 / 2 >= epsilon: no overflow.
    return first - 0.5 * math.exp(epsilon - (root / 2 + epsilon / root) ** 2 / 2)


def _require(name: str, value: float, good: bool, wanted: str) -> None:
    if not good:
        raise InputError(f"{name} must be {wanted}, got {value!r}")
