"""DP-Weights' Algorithm 1 as printed (Zagardo 2024, "DP-Weights", section 3.5).

It computes the share of outputs at which the absolute log-ratio of two densities
exceeds epsilon. How that relates to differential privacy:

- The share estimates P(|L| > epsilon), not delta(epsilon). delta(epsilon) <= P(L > epsilon) always, so a true
  probability of at most delta suffices for (epsilon, delta); it is not necessary. For N(0, 1) against N(1, 1)
  and epsilon = 1 the share is about 0.38, the delta 0.13: a rate above delta refutes nothing.
- It comes without an interval. Where no violation is seen in n samples, the 95% upper end of the probability
  is about 3 / n; the paper claims delta = 1 / N^2, for which n has to be three times the square of its data
  set's size, and does not say how many samples its result "0.000000" (section 4.1) rests on.
- Outputs are drawn on x alone (one direction). For one Gaussian against its shift the other direction has the
  same losses; for a subsampled or otherwise lopsided mechanism it has not.
- Line 10 compares with an epsilon that the list of required inputs leaves out (here: an argument).
- `N(x, sigma)` with sigma from line 3: taken as a standard deviation, in agreement with "variance sigma^2" in
  appendix 8.1.2.
- Equations 1 and 3 and line 3 put the sensitivity and the added term under the root, to the first power;
  algorithm 2 and appendix 8.1.2 multiply by the sensitivity outside it and add outside it. The two differ by
  orders of magnitude. Both are options; line 3 is the default.
- The sensitivity E * eta * C / (N * B) is an input of the check, not something that it tests: with another
  one (a step on the mean over a batch of B moves the weights by up to eta * C / B) it passes all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray


class NoiseScaleForm(StrEnum):
    """Which of the paper's two formulas for sigma."""

    UNDER_THE_ROOT = "under the root"
    """Equations 1 and 3, algorithm 1 line 3: sqrt(2 log(1.25 / delta) * sensitivity / epsilon + extra)."""
    OUTSIDE_THE_ROOT = "outside the root"
    """Algorithm 2, appendix 8.1.2: sqrt(2 log(1.25 / delta)) * sensitivity / epsilon + extra."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmOne:
    """What algorithm 1 returns, and the numbers that it used.

    Attributes:
        violation_rate: Share of samples with a privacy loss above epsilon.
        privacy_losses: Absolute log-ratios, shape `(num_samples,)`, nats.
    """

    violation_rate: float
    privacy_losses: FloatArray
    sigma: float
    sensitivity: float
    delta: float

    @property
    def passes(self) -> bool:
        """The paper's reading (sections 4.1, figure 1): the rate of violations is at most delta."""
        return self.violation_rate <= self.delta


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be finite and > 0, got {value!r}")


def dp_weights_sigma_as_printed(
    *,
    epsilon: float,
    delta: float,
    sensitivity: float,
    form: NoiseScaleForm | str = NoiseScaleForm.UNDER_THE_ROOT,
) -> float:
    """Standard deviation of the noise on each weight, by either printed formula.

    Args:
        epsilon: Finite, > 0.
        delta: In (0, 1).
        sensitivity: E * eta * C / (N * B), > 0.

    Raises:
        InputError: an argument is out of range.
    """
    _require_positive(epsilon=epsilon, sensitivity=sensitivity)
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta!r}")
    if form not in list(NoiseScaleForm):
        raise InputError(f"form must be one of {', '.join(NoiseScaleForm)}, got {form!r}")
    extra = 0.009760 / math.pow(epsilon, 0.078008)
    logarithm = 2 * math.log(1.25 / delta)
    if form == NoiseScaleForm.UNDER_THE_ROOT:
        return math.sqrt(logarithm * sensitivity / epsilon + extra)
    return math.sqrt(logarithm) * sensitivity / epsilon + extra


def dp_weights_algorithm_1_as_printed(
    *,
    epsilon: float,
    sensitivity: float,
    delta: float,
    num_samples: int,
    rng: np.random.Generator,
    form: NoiseScaleForm | str = NoiseScaleForm.UNDER_THE_ROOT,
    sigma: float | None = None,
) -> AlgorithmOne:
    """Algorithm 1, line by line; see the module's text for what its answer means.

    Args:
        epsilon: Of lines 3 and 10, finite, > 0.
        sensitivity: Line 2's distance, E * eta * C / (N * B).
        delta: In (0, 1); the paper's choice is 1 / N^2.
        num_samples: Number of outputs, >= 1.
        sigma: Puts another standard deviation in the place of line 3's, to see what the check can tell apart.

    Raises:
        InputError: an argument is out of range.
    """
    if num_samples < 1:
        raise InputError(f"num_samples must be >= 1, got {num_samples!r}")
    line_3 = dp_weights_sigma_as_printed(epsilon=epsilon, delta=delta, sensitivity=sensitivity, form=form)
    scale = line_3 if sigma is None else sigma
    _require_positive(sigma=scale)
    y = rng.normal(scale=scale, size=num_samples)  # line 7, x = 0
    losses = np.abs(((y - sensitivity) ** 2 - y**2) / (2 * scale**2))  # line 8: the constants cancel
    return AlgorithmOne(
        violation_rate=float(np.mean(losses > epsilon)),
        privacy_losses=losses,
        sigma=scale,
        sensitivity=sensitivity,
        delta=delta,
    )
