"""DP-Weights' noise scale and composition formula, as printed.

Source: Zagardo 2024, "Too Good to be True? Turn Any Model Differentially Private With DP-Weights". Gaussian
noise is added once, to the weights of a model that was trained without noise.

Where the paper contradicts itself, the choice is a named option:

- The noise scale has two forms. `form="eq. 1"` (Eq. 1, Eq. 3, Algorithm 1) puts everything under the root:
  sqrt(2 log(1.25 / delta) * DW / epsilon + 0.009760 / epsilon^0.078008). `form="appendix"` (Algorithm 2 and
  Step 2 of Section 8.1.2) has sqrt(2 log(1.25 / delta)) * DW / epsilon + 0.009760 / epsilon^0.078008. At
  the experiments' parameters the first is ten times the second.
- `log` is the natural logarithm: it alone gives the printed 191.94103648752323 of Section 4.2. The printed
  composed delta, 1.001e-05, belongs to delta = 1e-8, hence N = 10,000 where delta = 1 / N^2; the
  experiments have N = 1000.
- The empirical term 0.009760 is in the units of the weights, so it matters what the sensitivity DW is: an
  accountant here takes it as a parameter, and reads an event's noise multiplier as noise over DW.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.accounting.events import Event, Gaussian
from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.questions import (
    require_adjacency,
    require_delta,
    require_option,
    require_positive,
)

FORMS = ("eq. 1", "appendix")
EMPIRICAL_TERM = 0.009760
EMPIRICAL_EXPONENT = 0.078008

_LARGEST_EXPONENT = 700.0


def sensitivity(
    *, epochs: float, learning_rate: float, l2_clip_norm: float, records: int, batch_size: float
) -> float:
    """Eq. 2: DW = E * eta * C / (N * B), said to bound the change of the finished weights by one record."""
    return epochs * learning_rate * l2_clip_norm / (records * batch_size)


def noise_scale(*, epsilon: float, delta: float, weight_sensitivity: float, form: str = "appendix") -> float:
    """Standard deviation of the noise for a budget, in either printed form.

    Raises `InputError`: the form is unknown, or a number is out of range.
    """
    require_option("form", form, FORMS)
    require_positive("epsilon", epsilon)
    require_positive("weight_sensitivity", weight_sensitivity)
    require_delta(delta)
    tail = 2 * math.log(1.25 / delta)
    extra = EMPIRICAL_TERM * math.exp(-EMPIRICAL_EXPONENT * math.log(epsilon))
    if form == "eq. 1":
        return math.sqrt(tail * weight_sensitivity / epsilon + extra)
    return math.sqrt(tail) * weight_sensitivity / epsilon + extra


def epsilon_of_noise_scale(
    *, noise: float, delta: float, weight_sensitivity: float, form: str = "appendix"
) -> float:
    """The epsilon at which the noise scale is `noise`: both forms fall as epsilon grows, from infinity to 0.

    Raises `InputError`: as `noise_scale`.
    """
    require_positive("noise", noise)

    def scale(log_epsilon: float) -> float:
        return noise_scale(
            epsilon=math.exp(log_epsilon), delta=delta, weight_sensitivity=weight_sensitivity, form=form
        )

    low, high = -_LARGEST_EXPONENT, _LARGEST_EXPONENT
    if scale(high) > noise:
        return math.inf
    while high - low > 1e-13 * max(1.0, abs(high)):
        middle = (low + high) / 2
        low, high = (low, middle) if scale(middle) <= noise else (middle, high)
    return math.exp(high)


def compose(*, epsilon: float, delta: float, count: int) -> tuple[float, float]:
    """Eqs. 8 and 9: epsilon * sqrt(2 k log(1 / delta)) and k * delta + delta.

    >>> compose(epsilon=1, delta=1e-8, count=1000)
    (191.94103648752323, 1.001e-05)
    """
    return epsilon * math.sqrt(2 * count * math.log(1 / delta)), count * delta + delta


@dataclass(frozen=True, kw_only=True)
class NoisedWeights(Event):
    """Finished weights released once with Gaussian noise on each, as DP-Weights does.

    `epochs`, `learning_rate`, `l2_clip_norm`, `records`, `batch_size`: of the training; they make Eq. 2.
    `standard_deviation`: of the noise on each weight. Raises `InputError`: a number is not positive.
    """

    epochs: float
    learning_rate: float
    l2_clip_norm: float
    records: int
    batch_size: int
    standard_deviation: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require_positive(name, value)

    def describe(self) -> str:
        """`noised weights (standard deviation 0.01, sensitivity 5e-08)`."""
        return (
            f"noised weights (standard deviation {self.standard_deviation:g}, "
            f"sensitivity {self.weight_sensitivity:g})"
        )

    @property
    def weight_sensitivity(self) -> float:
        """The sensitivity of the final weights that the paper's Eq. 2 states."""
        return sensitivity(
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            l2_clip_norm=self.l2_clip_norm,
            records=self.records,
            batch_size=self.batch_size,
        )


@dataclass(frozen=True, kw_only=True)
class DPWeights:
    """DP-Weights' noise scale, read as an accountant of Gaussian releases; Eqs. 8 and 9 where one repeats.

    `form`: `"eq. 1"` or `"appendix"`. `weight_sensitivity`: DW, in the units of the empirical term. Raises
    `InputError`: the form is unknown, or the sensitivity is not positive.
    """

    form: str = "appendix"
    weight_sensitivity: float = 1.0

    def __post_init__(self) -> None:
        require_option("form", self.form, FORMS)
        require_positive("weight_sensitivity", self.weight_sensitivity)

    @property
    def name(self) -> str:
        """The accountant's name in tables."""
        return f"DP-Weights ({self.form})"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The budget for which the paper prescribes the event's noise.

        `event`: a `Gaussian` or `NoisedWeights`, or equal copies of one. `delta`: of the whole event; of k >
        1 releases each gets delta / (k + 1), by Eq. 9. `adjacency`: add-remove (Section 8.1.2, Step 1).
        Raises `UnsupportedError`: the event or adjacency is another. `InputError`: delta is outside (0, 1).
        """
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        require_delta(delta)
        parts = list(event.parts())
        count = sum(times for _, times in parts)
        if len({part for part, _ in parts}) != 1:
            raise UnsupportedError(f"{self.name} answers for one release repeated, not {event.describe()}")
        part = parts[0][0]
        if isinstance(part, NoisedWeights):
            noise, change = part.standard_deviation, part.weight_sensitivity
        elif isinstance(part, Gaussian):
            change = self.weight_sensitivity
            noise = part.noise_multiplier * change
        else:
            raise UnsupportedError(f"{self.name} answers for Gaussian releases, not {part.describe()}")
        each = delta if count == 1 else delta / (count + 1)
        single = epsilon_of_noise_scale(noise=noise, delta=each, weight_sensitivity=change, form=self.form)
        return single if count == 1 else compose(epsilon=single, delta=each, count=count)[0]


@register("accountant", "dp_weights_eq_1")
def dp_weights_eq_1(*, weight_sensitivity: float = 1.0) -> DPWeights:
    """DP-Weights with everything under the root (Eq. 1)."""
    return DPWeights(form="eq. 1", weight_sensitivity=weight_sensitivity)


@register("accountant", "dp_weights_appendix")
def dp_weights_appendix(*, weight_sensitivity: float = 1.0) -> DPWeights:
    """DP-Weights with the empirical term beside the classical scale (Section 8.1.2)."""
    return DPWeights(form="appendix", weight_sensitivity=weight_sensitivity)
