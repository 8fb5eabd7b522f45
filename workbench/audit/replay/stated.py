"""What a training is said to do, and where its run as it was is otherwise: the part that is at fault."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from workbench.audit.replay.faults import Fault
from workbench.audit.replay.measured import Measured
from workbench.audit.replay.sampler import Sampler
from workbench.core.arguments import number, parameters_of, whole_number
from workbench.core.errors import ArgumentError, unknown_name

NEAR = 0.02
"""Two numbers that differ by less than this share are one; more where chance does more."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What the user says of the training; None where they say nothing.

    Attributes:
        noise_multiplier: sigma, the noise over the clipping norm.
        l2_clip_norm: C, in the units of a record's gradient.
        sampling_probability: Of each record in each step.
        steps: Of the optimizer.
        divisor: What sums are divided by; unless stated, the rate times the number of records, or 1.
    """

    noise_multiplier: float | None = None
    l2_clip_norm: float | None = None
    sampling_probability: float | None = None
    steps: float | None = None
    divisor: float | None = None

    def describe(self) -> str:
        """Names and numbers."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value:g}" for name, value in given.items() if value is not None)


def stated_from(given: Any) -> Stated | None:
    """What is stated, by the names of `Stated`; None for nothing.

    Raises `InputError`: it is no mapping, there is no such name, or a number is out of range.
    """
    known = [field.name for field in fields(Stated)]
    made: dict[str, float] = {}
    for name, value in parameters_of("stated", given).items():
        try:
            if name not in known:
                raise ArgumentError("", f": {unknown_name('number', name, known)}")
            if name == "steps":
                made[name] = whole_number(name, value, least=1, most=None)
            elif name == "sampling_probability":
                made[name] = number(name, value, above=0, most=1)
            else:
                made[name] = number(name, value, above=0, below=math.inf)
        except ArgumentError as error:
            raise ArgumentError("stated", str(error)) from None
    return Stated(**made) if made else None


def otherwise(run: Measured, sampler: Sampler, multiplier: float, stated: Stated) -> tuple[Fault, ...]:
    """Where a run spends more than what is stated would.

    Args:
        multiplier: Noise over the most that one record adds.
    """
    found = []
    if stated.steps is not None and run.steps > stated.steps:
        found.append(
            Fault(part="accountant", says=f"there are {run.steps} steps, where {stated.steps:g} are stated")
        )
    rate = stated.sampling_probability
    if rate is not None and sampler.lower > rate * (1 + 1e-9):
        found.append(
            Fault(
                part="sampler",
                says=f"records take part at a rate of {sampler.rate:.3g} [{sampler.lower:.3g}, "
                f"{sampler.upper:.3g}], where {rate:g} is stated",
            )
        )
    return (*_noise_or_clip(run, sampler, multiplier, stated), *found)


def _noise_or_clip(run: Measured, sampler: Sampler, multiplier: float, stated: Stated) -> list[Fault]:
    """Noise below the stated, or a record that adds more than the stated clipping norm."""
    sigma, norm = stated.noise_multiplier, stated.l2_clip_norm
    scales = [scale for scale in run.noise.values() if scale > 0]
    near = max(NEAR, 4 / math.sqrt(2 * max(run.noise_values, 1)))
    if sigma is not None and not multiplier < (1 - near) * sigma:
        return []
    is_known = scales and sampler.rate > 0 and max(scales) < 1.01 * min(scales)
    is_known = is_known and not (run.noise_steps or run.by_weights)
    if norm is None or not is_known or math.isnan(run.length):
        if sigma is None:
            return []
        return [
            Fault(
                part="noise",
                says=f"the noise is {multiplier:.4g} times what one record adds, where {sigma:g} is stated: "
                "it is too small, or a record adds more than the clipping norm"
                + (" (state l2_clip_norm to tell which)" if norm is None else ""),
            )
        ]
    rate, spread = sampler.rate, (sampler.upper - sampler.lower) / (2 * sampler.rate)
    if stated.sampling_probability is not None:
        rate, spread = stated.sampling_probability, 0.0
    divisors = [rate * run.records, 1.0] if stated.divisor is None else [stated.divisor]
    near += spread if stated.divisor is None else 0.0
    of_norm = [
        (run.length * divisor / norm, scales[0] * divisor / ((sigma or math.nan) * norm), divisor)
        for divisor in divisors
    ]
    # Of the usual divisors, that by which one of the two is as stated.
    fitting = [own for own in of_norm if abs(own[0] - 1) < near or abs(own[1] - 1) < near]
    added, noisy, divisor = (fitting or of_norm)[0]
    found = []
    if added > 1 + near:
        found.append(
            Fault(
                part="clip",
                says=f"one record adds {added:.4g} times the stated clipping norm of {norm:g}, if sums are "
                f"divided by {divisor:.4g}",
            )
        )
    if noisy < 1 - near:
        found.append(
            Fault(
                part="noise",
                says=f"the noise is {noisy:.4g} times the stated {sigma:g} times the clipping norm of "
                f"{norm:g}, if sums are divided by {divisor:.4g}",
            )
        )
    return found
