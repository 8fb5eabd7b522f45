"""A zoo of bad accountants: each differs from the good one by one plausible bug."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from good_accountant import ADD_REMOVE, ORDERS, REPLACE_ONE, Good
from scipy.special import logsumexp, ndtr, ndtri

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, FloatArray


class EpochsAsSteps(Good):
    """Counts passes over the data, not updates."""

    name = "epochs counted as steps"

    def total(self, event: Event, adjacency: Adjacency) -> FloatArray:
        parts = []
        for part, count in event.parts():
            q = part.sampling_probability if isinstance(part, SubsampledGaussian) else 1.0
            parts.append(max(1, round(q * count)) * self.renyi(part, adjacency))
        return np.sum(parts, axis=0)


class SampledTwice(Good):
    """Multiplies the sampling probability in twice."""

    name = "q used twice"

    def subsampled(self, noise: float, q: float) -> FloatArray:
        return super().subsampled(noise, q * q)


class ReplaceAsAddRemove(Good):
    """Accounts replace-one neighbours as if one record were added."""

    name = "replace-one as add-remove"

    def renyi(self, part: Event, adjacency: Adjacency) -> FloatArray:
        return super().renyi(part, adjacency if isinstance(part, RandomisedResponse) else ADD_REMOVE)


class OneDirection(Good):
    """Compares the run without the record to the run with it, and not the other way round."""

    name = "the smaller direction only"

    def subsampled(self, noise: float, q: float) -> FloatArray:
        if q == 1:
            return self.gaussian(noise)
        x, step = np.linspace(-40 * noise, 40 * noise + 1, 20_001, retstep=True)
        log_p = -x * x / (2 * noise * noise) - math.log(noise * math.sqrt(2 * math.pi))
        log_ratio = -np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * noise * noise))
        moments = logsumexp(log_p[None, :] + np.outer(ORDERS - 1, log_ratio), axis=1) + math.log(step)
        return np.maximum(np.asarray(moments), 0.0) / (ORDERS - 1)


class WrongRoot(Good):
    """Takes the root of the noise along with that of the steps: the variance is the noise, not its square."""

    name = "square root of the wrong term"

    def gaussian(self, noise: float) -> FloatArray:
        return ORDERS / (2 * noise)


class DeltaNotSplit(Good):
    """Adds up the steps' exact epsilons, each at the whole delta."""

    name = "delta not split over the steps"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        return sum(count * self.one_step(part, delta) for part, count in event.parts())

    def one_step(self, part: Event, delta: float) -> float:
        """Epsilon of one step, exactly: delta(epsilon) = q delta_G(log(1 + (e^epsilon - 1) / q))."""
        if not isinstance(part, SubsampledGaussian):
            raise UnsupportedError(f"{self.name} does not account {part.describe()}")
        q = part.sampling_probability
        if delta >= q:
            return 0.0
        return math.log1p(q * math.expm1(epsilon_of_delta(1 / part.noise_multiplier, delta / q)))


class CountIgnored(Good):
    """Composes each event once, however often it is run."""

    name = "count ignored"

    def total(self, event: Event, adjacency: Adjacency) -> FloatArray:
        events = event.events if isinstance(event, Composed) else ((event, 1),)
        parts = [
            super(CountIgnored, self).total(part, adjacency)
            if isinstance(part, RandomisedResponse)
            else count * super(CountIgnored, self).total(part, adjacency)
            for part, count in events
        ]
        return np.sum(parts, axis=0)


class LogBase(Good):
    """Takes the logarithm of delta to base 10."""

    name = "log base"

    def convert(self, total: FloatArray, delta: float) -> float:
        return max(float(np.min(total - math.log10(delta) / (ORDERS - 1))), 0.0)


class SignSlipped(Good):
    """Divides by order + 1 in the conversion."""

    name = "sign slipped in the conversion"

    def convert(self, total: FloatArray, delta: float) -> float:
        found = total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS + 1)
        return max(float(np.min(found)), 0.0)


class TermsMinimisedApart(Good):
    """Takes the best order for the divergence, and another for the conversion."""

    name = "terms minimised apart"

    def convert(self, total: FloatArray, delta: float) -> float:
        rest = np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
        return max(float(np.min(total) + np.min(rest)), 0.0)


class CentralLimit(Good):
    """Takes the central limit theorem's value for a bound (Bu, Dong, Long and Su 2020)."""

    name = "central limit as a bound"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        square = 0.0
        for part, count in event.parts():
            if not isinstance(part, Gaussian | SubsampledGaussian) or adjacency is REPLACE_ONE:
                raise UnsupportedError(f"{self.name} does not account {part.describe()} under {adjacency}")
            q = getattr(part, "sampling_probability", 1.0)
            precision = part.noise_multiplier**-2
            square += count * (precision if q == 1 else q * q * math.expm1(precision))
        return epsilon_of_delta(math.sqrt(square), delta)


class NoiseWithBatch(Good):
    """Takes the noise on the batch's mean for the noise on its sum (batches of 1000 q records)."""

    name = "noise multiplier taken with the batch"

    def subsampled(self, noise: float, q: float) -> FloatArray:
        return super().subsampled(noise * max(1.0, 1000 * q), q)


class ClassicalGaussian(Good):
    """sqrt(2 ln(1.25 / delta)) / sigma, proven for epsilon below 1 only (Dwork and Roth 2014, theorem A.1).

    It holds well beyond: at delta 1e-5 it is below the truth where sigma is below 0.5754, that is where it
    answers more than 8.42; at delta 0.1, 1e-3, 1e-10 where it answers more than 5.74, 7.46, 9.85.
    """

    name = "classical Gaussian formula"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        parts = list(event.parts())
        if adjacency is REPLACE_ONE or not all(isinstance(part, Gaussian) for part, _ in parts):
            raise UnsupportedError(f"{self.name} does not account {event.describe()} under {adjacency}")
        mu = math.sqrt(sum(count * part.noise_multiplier**-2 for part, count in parts))
        return math.sqrt(2 * math.log(1.25 / delta)) * mu


class AdvancedWithoutSecondTerm(Good):
    """sqrt(2 T ln(1 / delta)) epsilon, without T epsilon (e^epsilon - 1) (Dwork and Roth 2014, theorem 3.20).

    It is below the truth where each answer tells much, or where there are many: sqrt(T) tanh(epsilon / 2)
    above sqrt(2 ln(1 / delta)), about.
    """

    name = "advanced composition without its second term"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        square = 0.0
        for part, count in event.parts():
            if not isinstance(part, RandomisedResponse):
                raise UnsupportedError(f"{self.name} does not account {part.describe()}")
            p, q, *_ = part.pair().p
            square += count * math.log(p / q) ** 2
        return math.sqrt(2 * math.log(1 / delta) * square)


class LinearAmplification(Good):
    """Amplifies by sampling with q epsilon, not log(1 + q (e^epsilon - 1)), and leaves delta as it is."""

    name = "amplification linear in epsilon"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        parts = list(event.parts())
        if len(parts) != 1 or not isinstance(parts[0][0], SubsampledGaussian):
            return super().epsilon(event, delta=delta, adjacency=adjacency)
        step, count = parts[0]
        assert isinstance(step, SubsampledGaussian)
        return step.sampling_probability * epsilon_of_delta(math.sqrt(count) / step.noise_multiplier, delta)


class FlipMisread(Good):
    """Takes the probability of a random answer for that of a false one."""

    name = "randomised response misread"

    def response(self, part: RandomisedResponse) -> FloatArray:
        flip = part.noise_parameter
        if flip >= 0.5:
            return np.zeros_like(ORDERS)
        log_p, log_q = np.log([1 - flip, flip]), np.log([flip, 1 - flip])
        return np.asarray(logsumexp(np.outer(ORDERS, log_p) + np.outer(1 - ORDERS, log_q), axis=1)) / (
            ORDERS - 1
        )


class LastEventOnly(Good):
    """Keeps one noise and one sampling probability: the last that it was given, for all steps."""

    name = "last event for all"

    def total(self, event: Event, adjacency: Adjacency) -> FloatArray:
        parts = list(event.parts())
        return sum(count for _, count in parts) * self.renyi(parts[-1][0], adjacency)


class LaplaceRepeatedAsOnce(Good):
    """Takes a Laplace mechanism's pure epsilon for that of all its repetitions."""

    name = "pure epsilon of one Laplace release"

    def total(self, event: Event, adjacency: Adjacency) -> FloatArray:
        total = super().total(event, adjacency)
        scales = [part.scale for part, _ in event.parts() if isinstance(part, Laplace)]
        pure = len(scales) == len(list(event.parts()))
        return np.minimum(total, 1 / min(scales)) if pure else total


class UnsafeSide(Good):
    """Returns the end of the bisection that is not private."""

    name = "calibration on the wrong side"

    def chosen(self, low: float, high: float) -> float:
        return low


class CalibratesAddRemove(Good):
    """Calibrates with half the target's logarithm of delta."""

    name = "calibration at another delta"

    def noise_multiplier(self, *, delta: float, **given: Any) -> float:
        return super().noise_multiplier(delta=math.sqrt(delta), **given)


class DeltaInBits(Good):
    """Takes the epsilon that it is asked about for bits."""

    name = "delta at an epsilon in bits"

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        return super().delta(event, epsilon=epsilon / math.log(2), adjacency=adjacency)


class DeltaUnderflows(Good):
    """Computes delta as a difference of two floats near 1."""

    name = "delta by cancellation"

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        parts = list(event.parts())
        if not all(isinstance(part, Gaussian) for part, _ in parts):
            raise UnsupportedError(f"{self.name} does not account {event.describe()}")
        mu = math.sqrt(sum(count * part.noise_multiplier**-2 for part, count in parts))
        exact = delta_of_epsilon(mu, epsilon)
        return (1.0 - (1.0 - exact)) if exact > 1e-6 else 0.0


class HalfTheShift(Good):
    """Trade-off curve of a Gaussian with half its shift."""

    name = "trade-off curve with half the shift"

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        parts = list(event.parts())
        if not all(isinstance(part, Gaussian) for part, _ in parts):
            raise UnsupportedError(f"{self.name} does not account {event.describe()}")
        mu = math.sqrt(sum(count * part.noise_multiplier**-2 for part, count in parts))
        return float(ndtr(ndtri(fpr) + mu / 2))


class NanWithoutSampling(Good):
    """Divides by log(1 - q)."""

    name = "NaN at q = 1"

    def gaussian(self, noise: float) -> FloatArray:
        return super().gaussian(noise) * np.nan


class NegativeEpsilon(Good):
    """Forgets that epsilon is at least 0."""

    name = "negative epsilon"

    def convert(self, total: FloatArray, delta: float) -> float:
        found = total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
        return float(np.min(found))


class IndexErrorAtTinyDelta(Good):
    """Reads a table beyond its end."""

    name = "table too short"

    def convert(self, total: FloatArray, delta: float) -> float:
        table = [super().convert(total, delta)] * 13
        return table[int(-math.log10(delta))]


class TwoBounds(Good):
    """Sound, but it uses a worse bound for short runs."""

    name = "a worse bound for short runs"

    def convert(self, total: FloatArray, delta: float) -> float:
        return super().convert(total, delta)

    def total(self, event: Event, adjacency: Adjacency) -> FloatArray:
        total = super().total(event, adjacency)
        steps = sum(count for _, count in event.parts())
        return total if steps >= 10 else 20 * total


class RisesWithNoise(Good):
    """Sound, but it stops at an order that suits little noise only, and then adds a constant."""

    name = "loose where there is much noise"

    def renyi(self, part: Event, adjacency: Adjacency) -> FloatArray:
        noise = getattr(part, "noise_multiplier", 1.0)
        return super().renyi(part, adjacency) + (2.0 if noise > 1.5 else 0.0)


class RisesWithDelta(Good):
    """Sound, but it takes a looser conversion above a certain delta."""

    name = "looser at large delta"

    def convert(self, total: FloatArray, delta: float) -> float:
        return super().convert(total, delta) * (1.0 if delta < 1e-4 else 10.0)


class FallsWithSampling(Good):
    """Sound, but its bound for rare sampling is worse than the one without."""

    name = "worse for rare sampling"

    def subsampled(self, noise: float, q: float) -> FloatArray:
        found = super().subsampled(noise, q)
        return found + 5.0 if q < 0.05 else found


class Loose(Good):
    """Sound, and ten times too large."""

    name = "ten times too large"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        return 10 * super().epsilon(event, delta=delta, adjacency=adjacency)


NEVER = "never_below_certified_lower"
CALIBRATION = "calibration_inverts_accounting_and_lands_on_the_private_side"


@dataclass(frozen=True, kw_only=True)
class Animal:
    """A bad accountant, and the check that is to catch it."""

    kind: type[Good]
    check: str
    stops_ci: bool = True


ANIMALS = (
    Animal(kind=EpochsAsSteps, check=f"{NEVER}[subsampled_gaussian]"),
    Animal(kind=SampledTwice, check=f"{NEVER}[subsampled_gaussian]"),
    Animal(kind=ReplaceAsAddRemove, check=f"{NEVER}[replace_one]"),
    Animal(kind=ReplaceAsAddRemove, check="adjacency_honoured_or_refused"),
    Animal(kind=OneDirection, check=f"{NEVER}[subsampled_gaussian]"),
    Animal(kind=WrongRoot, check=f"{NEVER}[gaussian]"),
    Animal(kind=DeltaNotSplit, check=f"{NEVER}[subsampled_gaussian]"),
    Animal(kind=CountIgnored, check=f"{NEVER}[randomised_response]"),
    Animal(kind=CountIgnored, check="n_fold_compose_equals_n_composes"),
    Animal(kind=LogBase, check=f"{NEVER}[gaussian]"),
    Animal(kind=SignSlipped, check=f"{NEVER}[gaussian]"),
    Animal(kind=TermsMinimisedApart, check=f"{NEVER}[gaussian]"),
    Animal(kind=CentralLimit, check=f"{NEVER}[subsampled_gaussian]"),
    Animal(kind=NoiseWithBatch, check=f"{NEVER}[subsampled_gaussian]"),
    Animal(kind=ClassicalGaussian, check=f"{NEVER}[gaussian]"),
    Animal(kind=AdvancedWithoutSecondTerm, check=f"{NEVER}[randomised_response]"),
    Animal(kind=LinearAmplification, check=f"{NEVER}[subsampled_gaussian]"),
    Animal(kind=FlipMisread, check=f"{NEVER}[randomised_response]"),
    Animal(kind=LastEventOnly, check=f"{NEVER}[heterogeneous]"),
    Animal(kind=LastEventOnly, check="order_of_composition_does_not_matter"),
    Animal(kind=LaplaceRepeatedAsOnce, check=f"{NEVER}[laplace]"),
    Animal(kind=CalibratesAddRemove, check=CALIBRATION),
    Animal(kind=DeltaInBits, check="delta_never_below_certified_lower"),
    Animal(kind=DeltaUnderflows, check="delta_never_below_certified_lower"),
    Animal(kind=HalfTheShift, check="tpr_never_below_certified_lower"),
    Animal(kind=UnsafeSide, check=CALIBRATION, stops_ci=False),
    Animal(kind=NanWithoutSampling, check="edge_cases"),
    Animal(kind=NegativeEpsilon, check="edge_cases", stops_ci=False),
    Animal(kind=IndexErrorAtTinyDelta, check="edge_cases", stops_ci=False),
    Animal(kind=TwoBounds, check="monotone_in_steps", stops_ci=False),
    Animal(kind=RisesWithNoise, check="monotone_in_noise", stops_ci=False),
    Animal(kind=RisesWithDelta, check="monotone_in_delta", stops_ci=False),
    Animal(kind=FallsWithSampling, check="monotone_in_sampling", stops_ci=False),
)
"""Every animal with the check that catches it."""


def broken_epsilon(
    *, noise_multiplier: float, sampling_probability: float, steps: int, delta: float
) -> float:
    """The least function with a bug: it forgets the root of the steps."""
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta!r}")
    return epsilon_of_delta(sampling_probability / noise_multiplier, delta)
