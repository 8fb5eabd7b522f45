"""delta(epsilon) of two shuffled Gaussian numbers: two-sided bounds without sampling.

Along (1, 1) the outputs are N(0, 1) against N(s, 1); across it, equal mixtures of N(-a, 1), N(a, 1) against
N(-b, 1), N(b, 1), independent of the first (lengths in units of the noise). Given the second number v, whose
loss is r(v), the first is the Gaussian mechanism at epsilon - r(v). So

    delta(epsilon) = mean over v of G(epsilon - r(v)),   G the Gaussian mechanism's delta, at any real number,

and r rises with |v| where a > b and falls where a < b, so that G(epsilon - r(v)) does. The mean of a monotone
function lies between its sums with the right and the left ends of any partition.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from workbench.accounting.bounds import Bounds
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

_CELLS = 1 << 16
_REACH = 14.0
"""Standard deviations beyond the means that are summed; less than 1e-43 is left out, and counted above."""
_RELATIVE, _ABSOLUTE = 1e-9, 1e-13
"""Allowances for rounding: of G, relative; of losses, which moves epsilon, absolute and by their size."""

METHOD = "monotone sums over the component across (1, 1)"
ASSUMPTIONS = ("float64 arithmetic is IEEE 754, and log_ndtr is good to 1e-11, relative",)


def plane_delta(p_mean: float, q_mean: float, shift: float, epsilon: float) -> Bounds:
    """The larger delta(epsilon) over both orders of the pair.

    Args:
        p_mean, q_mean: a and b, >= 0, different, in units of the noise.
        shift: s > 0, in units of the noise.
        epsilon: Finite, >= 0.

    Raises:
        InputError: an argument is out of range.
    """
    if not 0 < shift < math.inf:
        raise InputError(f"shift must be finite and > 0, got {shift!r}")
    if p_mean == q_mean or not 0 <= min(p_mean, q_mean) <= max(p_mean, q_mean) < math.inf:
        raise InputError(f"p_mean and q_mean must be >= 0 and different, got {p_mean!r} and {q_mean!r}")
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")
    both = [_one_order(a, b, shift, epsilon) for a, b in ((p_mean, q_mean), (q_mean, p_mean))]
    lower, upper = (max(order[end] for order in both) for end in (0, 1))
    absolute = _ABSOLUTE * (1 + max(p_mean, q_mean) ** 2 + math.exp(epsilon))
    return Bounds(
        lower=max(0.0, lower * (1 - _RELATIVE) - absolute),
        upper=min(1.0, upper * (1 + _RELATIVE) + absolute),
        rigorous=True,
        method=METHOD,
        assumptions=ASSUMPTIONS,
    )


def _one_order(a: float, b: float, shift: float, epsilon: float) -> tuple[float, float]:
    """Lower and upper sum of G(epsilon - r(|v|)) under the mixture of N(-a, 1) and N(a, 1)."""
    v = np.linspace(0.0, max(a, b) + _REACH, _CELLS + 1)
    losses = _log_cosh(a * v) - _log_cosh(b * v) - (a * a - b * b) / 2
    given = gaussian_delta_anywhere(epsilon - losses, shift)
    beyond = ndtr(a - v) + ndtr(-a - v)
    if a > b:  # rises: G at 0, and what it gains, weighted with the mass that is beyond
        gained = np.maximum(np.diff(given), 0.0)
        start = float(given[0])
        lower, upper = start + float(gained @ beyond[1:]), start + float(gained @ beyond[:-1])
        return lower, upper + float(beyond[-1])
    lost = np.maximum(-np.diff(given), 0.0)
    within = np.maximum(1 - beyond, 0.0)
    lower, upper = float(lost @ within[:-1]), float(lost @ within[1:])
    return lower + float(given[-1] * within[-1]), upper + float(given[-1])


def gaussian_delta_anywhere(epsilon: FloatArray, shift: float) -> FloatArray:
    """delta at any real epsilon, shape `(n,)`, between N(0, 1) and N(shift, 1): falls from 1 to 0."""
    above = log_ndtr(shift / 2 - epsilon / shift)
    below = epsilon + log_ndtr(-shift / 2 - epsilon / shift)
    values: FloatArray = np.exp(above) * -np.expm1(np.minimum(below - above, 0.0))
    return values


def _log_cosh(x: FloatArray) -> FloatArray:
    """For x >= 0."""
    values: FloatArray = x + np.log1p(np.exp(-2 * x)) - math.log(2)
    return values
