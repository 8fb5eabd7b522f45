"""The noise that Theorem 6 asks for, and what DP-SGD without shuffling guarantees at it.

The paper compares trainings at the same claimed epsilon, never at the same noise. At the same noise a
certified accountant answers for the unshuffled run, and that answer concerns the shuffled one twice over:
shuffling is post-processing, so the upper end holds for it; and where a record's clipped gradient has equal
entries, shuffling every step's coordinates hides nothing of it (`_shuffled_pairs`), so that the lower end
holds for it too, as the mechanism is written in Definition 6 and Theorem 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.crossings import crossing, turns
from workbench.accounting.events import dp_sgd
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError
from workbench.core.keys import JSON
from workbench.interfaces import Adjacency

_SMALLEST, _LARGEST = 1e-2, 1e4
"""Noise multipliers among which a target's one is looked for."""
_STEPS_A_DECADE = 40
_PRECISION = 1e-6


@dataclass(frozen=True, kw_only=True)
class LeastNoise:
    """Where a target is met.

    Attributes:
        noise_multiplier: From here on, up to 1e4, every noise tried meets it; a millionth below misses it.
        met_below: True where some smaller noise tried, from 1e-2 on, meets it again: the printed formulas are
            not known to fall with the noise.
    """

    noise_multiplier: float
    met_below: bool


def least_noise(enough: Callable[[float], bool], target: str) -> LeastNoise:
    """The last crossing of a target, by a scan of 40 noises a decade from above and bisection.

    Args:
        enough: Whether a noise multiplier meets the target.
        target: In words, for the error.

    Raises:
        InconclusiveError: every noise tried meets it, or the largest does not.
    """
    decades = math.log10(_LARGEST / _SMALLEST)
    count = round(decades * _STEPS_A_DECADE)
    tried = [_SMALLEST * 10 ** (decades * step / count) for step in range(count + 1)]
    met = [enough(noise) for noise in tried]
    if all(met) or not met[-1]:
        where = "everywhere" if met[-1] else "not even at the largest"
        raise InconclusiveError(
            f"noise multiplier for {target}: met {where} in [{_SMALLEST:g}, {_LARGEST:g}]"
        )
    last = turns(met)[-1]
    found = crossing(enough, tried[last - 1], tried[last], middle=_geometric_mean, precision=_PRECISION)
    return LeastNoise(noise_multiplier=found, met_below=any(met[:last]))


def _geometric_mean(low: float, high: float) -> float:
    return math.sqrt(low * high)


@dataclass(frozen=True, kw_only=True)
class SameNoise:
    """A training's noise by Shuffled DPSGD's accountant, and DP-SGD's epsilon at it.

    Attributes:
        target_epsilon, delta: What the accountant was asked for.
        dimension: d.
        sampling_probability, steps: Of the training.
        batch_clip: c' / c.
        slack: Share of delta that Theorem 1 keeps.
        zeta_2: Which printed form of Theorem 6.
        noise_multiplier: sigma / c; the accountant finds the target met from here on, up to `_LARGEST`.
        certified: Bounds on the unshuffled run's epsilon at the same noise and delta, add-remove.
    """

    target_epsilon: float
    delta: float
    dimension: int
    sampling_probability: float
    steps: int
    batch_clip: float
    slack: float
    zeta_2: str
    noise_multiplier: float
    certified: Bounds

    def describe(self) -> str:
        """`target 0.5: sigma 0.31 by Theorem 6 (appendix), DP-SGD's epsilon in [...] at delta 5e-06`."""
        return (
            f"target {self.target_epsilon:g}: sigma {self.noise_multiplier:.6g} by Theorem 6 "
            f"({self.zeta_2}), DP-SGD's epsilon in {self.certified.describe()} at delta {self.delta:g}"
        )

    def to_json(self) -> dict[str, JSON]:
        """Plain form."""
        return {
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "dimension": self.dimension,
            "sampling_probability": self.sampling_probability,
            "steps": self.steps,
            "batch_clip_over_clip": self.batch_clip,
            "slack": self.slack,
            "zeta_2": self.zeta_2,
            "noise_multiplier": self.noise_multiplier,
            "dp_sgd_epsilon_lower": self.certified.lower,
            "dp_sgd_epsilon_upper": self.certified.upper,
            "rigorous": self.certified.rigorous,
        }


def unshuffled_at_same_noise(
    *,
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    dimension: int,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
) -> SameNoise:
    """The column that the paper lacks: certified epsilon of plain DP-SGD at the shuffled run's noise.

    Args:
        target_epsilon: What Shuffled DPSGD's accountant is to report, > 0.
        delta: In (0, 1), of the accountant and of the certified bounds.
        sampling_probability: In (0, 1].
        steps: T >= 1.
        dimension: d >= 1; 1 is the paper's accounting without shuffling.
        batch_clip: c' / c; the paper does not give it.
        slack: Share of delta that Theorem 1 keeps for the composition.
        zeta_2: `"appendix"` or `"main text"`.

    Raises:
        InputError: an argument is out of range.
        InconclusiveError: the accountant meets the target nowhere, or everywhere, in the searched range.
        UnsupportedError: there are no certified bounds at that noise.
    """
    if not 0 < target_epsilon < math.inf:
        raise InputError(f"target_epsilon must be finite and > 0, got {target_epsilon!r}")
    asked = registry.create(
        "accountant",
        "shuffled_dp_sgd",
        dimension=dimension,
        batch_clip=batch_clip,
        slack=slack,
        zeta_2=zeta_2,
    )

    def enough(noise: float) -> bool:
        run = dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps)
        found = asked.epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE)
        return bool(found <= target_epsilon)

    target = f"epsilon {target_epsilon:g} at delta {delta:g} by Theorem 6"
    noise = least_noise(enough, target).noise_multiplier
    run = dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps)
    return SameNoise(
        target_epsilon=target_epsilon,
        delta=delta,
        dimension=dimension,
        sampling_probability=sampling_probability,
        steps=steps,
        batch_clip=batch_clip,
        slack=slack,
        zeta_2=zeta_2,
        noise_multiplier=noise,
        certified=epsilon_bounds(run, delta),
    )
