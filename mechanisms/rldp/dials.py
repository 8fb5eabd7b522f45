"""What RLDP's controller turns, and what it is paid for it (Section 2.4, Eqs. 10 to 20).

An action has n + 1 entries: n new log radii, and a push on the noise. Algorithm 1 (lines 24 to 34) says the
same. The text calls the first n entries changes of log C_i, but Eq. 10 sets C_i = min(exp(a_i), 1) itself,
whatever C_i was; so does this.

Past the budget the step of Eq. 11 is negative, and a push for less noise gives more. Eq. 13 keeps sigma
within a factor of two of its start, on both sides: nothing printed keeps it from falling below the noise
that the budget was calibrated to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from workbench.interfaces import FloatArray

LARGEST_STEP = 0.1
"""delta_max of Eq. 11."""

MOMENTUM = 0.8
"""beta_sigma of Eq. 14."""

FARTHEST = 2.0
"""Eq. 13: sigma is proposed within this factor of its start, on either side."""

SMALLEST_RATIO = -0.999
"""Eq. 19."""

PRICE_FLOOR = 1e-6
"""What Eq. 18 adds to the change of the ledger."""

SMALLEST_RADIUS = 1e-30
"""Radii below it, which Eq. 10 allows, would be no numbers of float32 once multiplied."""


@dataclass(frozen=True, kw_only=True)
class Dials:
    """What a step clips to and is noised by.

    Attributes:
        radii: C_i of each adapter, shape `(n,)`, > 0.
        noise_multiplier: sigma.
        first_noise_multiplier: sigma_0.
    """

    radii: FloatArray
    noise_multiplier: float
    first_noise_multiplier: float

    def with_radii(self, radii: FloatArray) -> Dials:
        """The same noise with these radii."""
        return replace(self, radii=radii)

    def turned(self, action: FloatArray, *, spent: float, largest_radius: float) -> Dials:
        """The dials after an action, shape `(n + 1,)`.

        Args:
            action: a_t.
            spent: epsilon_t / epsilon_max.
            largest_radius: What Eq. 10 caps radii by, 1 as printed.
        """
        log_noise = smoothed_log_noise(
            math.log(self.noise_multiplier), math.log(self.first_noise_multiplier), float(action[-1]), spent
        )
        return replace(
            self, radii=chosen_radii(action[:-1], largest_radius), noise_multiplier=math.exp(log_noise)
        )


def chosen_radii(log_radii: FloatArray, largest: float) -> FloatArray:
    """Eq. 10: C_i = min(exp(a_i), cap), at least `SMALLEST_RADIUS`."""
    # The exponent is capped first: exp of a large action would overflow.
    wished = np.exp(np.minimum(log_radii, math.log(largest)))
    return np.clip(wished, SMALLEST_RADIUS, largest).astype(np.float64)


def noise_step(spent: float) -> float:
    """Eq. 11's step_t; negative once more than the budget is spent."""
    return LARGEST_STEP * (1 - spent)


def smoothed_log_noise(log_noise: float, log_first_noise: float, push: float, spent: float) -> float:
    """Eqs. 11 to 14: log sigma_{t+1} after the push a_{n+1}."""
    wished = log_noise + math.tanh(push) * noise_step(spent)
    reach = math.log(FARTHEST)
    proposed = min(max(wished, log_first_noise - reach), log_first_noise + reach)
    return MOMENTUM * log_noise + (1 - MOMENTUM) * proposed


def reward(utility_gain: float, spent_gain: float, floor: float) -> float:
    """Eqs. 17 to 20: max(-R_max, log(1 + max(du / (d_epsilon + 1e-6), -0.999))).

    The ledger of line 14 falls where the noise rises, and then a loss of utility pays. Where it falls by 1e-6
    exactly, the ratio counts as zero.

    Args:
        utility_gain: du, nats a token.
        spent_gain: d_epsilon.
        floor: R_max; above 6.91 it does nothing, for Eq. 19 stops at log(0.001).
    """
    price = spent_gain + PRICE_FLOOR
    ratio = utility_gain / price if price != 0 else 0.0
    return max(-floor, math.log1p(max(ratio, SMALLEST_RATIO)))
