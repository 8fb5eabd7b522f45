"""How many guesses of membership a pure-epsilon mechanism lets anyone get right, over nested guess sets.

An attacker guesses "in" for the candidates with the highest scores and "out" for those with the lowest,
first few, then more: nested guess sets of sizes fixed beforehand. If every label is an independent coin,
the most that (epsilon, 0)-DP allows is that each guess is right with probability

    p_in  = prior e^eps / (1 - prior + prior e^eps)      for "in",
    p_out = (1 - prior) e^eps / (prior + (1 - prior) e^eps)   for "out",

independently (the numbers right are stochastically dominated by these, jointly over the nested sets:
reveal the labels one at a time; given the scores and the labels revealed, each posterior odds is at most
e^eps times the prior odds). So the whole path of the attack is compared with a random walk whose law is
known, and looking at every set size costs just what the exact boundary-crossing probability says, less
than a union bound.

The statistic of a path is the largest Clopper-Pearson epsilon over the sets, at one nominal level; its
exact distribution under the walk turns it into a bound. The statistic does not depend on the hypothesis
and the walk grows with epsilon, hence the test is monotone in epsilon and its inversion is valid as it
stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import betaincinv, expit, gammaln

from workbench.interfaces import FloatArray, IntArray

_TRIM = 1e-14
_STATISTIC_STEP = 0.01
_EPSILON_STEP = 2e-3
_GROWTH = 1.25
_NOMINAL_SHARE = 0.25
_UNREACHABLE = 2**62
_LARGEST_EPSILON = 700.0


def guess_probabilities(epsilon: float, prior: float) -> tuple[float, float]:
    """Largest probability that an "in" guess, and an "out" guess, is right under (epsilon, 0)-DP."""
    offset = math.log(prior) - math.log1p(-prior)
    return float(expit(epsilon + offset)), float(expit(epsilon - offset))


@dataclass(frozen=True)
class GuessSets:
    """Nested guess sets: the g-th says "in" of the `ins[g]` highest scores, "out" of the `outs[g]` lowest."""

    ins: tuple[int, ...]
    outs: tuple[int, ...]
    prior: float

    @cached_property
    def sizes(self) -> FloatArray:
        """Guesses in each set, shape `(sets,)`."""
        return np.asarray(self.ins, dtype=np.float64) + np.asarray(self.outs, dtype=np.float64)

    def correct(self, ranked_members: IntArray) -> IntArray:
        """Right guesses in each set.

        Args:
            ranked_members: Labels (0 or 1) in descending order of score, shape `(n,)`.

        Returns:
            Shape `(sets,)`.
        """
        from_top = np.concatenate([[0], np.cumsum(ranked_members)])
        from_bottom = np.concatenate([[0], np.cumsum(1 - ranked_members[::-1])])
        return np.asarray(from_top[list(self.ins)] + from_bottom[list(self.outs)], dtype=np.int64)

    def epsilons(self, correct: IntArray, level: float) -> FloatArray:
        """Clopper-Pearson epsilon of each set at a nominal level, not corrected for the number of sets.

        Args:
            correct: Right guesses, shape `(sets,)`; values outside [0, size] are clipped.
            level: Nominal error probability of each.

        Returns:
            Shape `(sets,)`; at most 0 where the guesses are no better than the prior allows anyway.
        """
        right = np.clip(correct, 0, self.sizes)
        with np.errstate(divide="ignore"):
            rate = np.where(right > 0, betaincinv(np.maximum(right, 1), self.sizes - right + 1, level), 0.0)
            return np.asarray(np.log(self._odds(rate)), dtype=np.float64)

    def plug_in(self, correct: IntArray, index: int) -> float:
        """Point estimate of epsilon at one set; infinite where every guess is right, at least 0."""
        rate = np.clip(correct / self.sizes, 1e-12, None)
        with np.errstate(divide="ignore"):
            value = float(np.log(self._odds(np.minimum(rate, 1.0)))[index])
        return max(0.0, value)

    def boundaries(self, statistic: float, level: float) -> IntArray:
        """Smallest number of right guesses in each set whose epsilon reaches `statistic`, shape `(sets,)`."""
        low = np.zeros(len(self.ins), dtype=np.int64)
        high = self.sizes.astype(np.int64) + 1
        while (low < high).any():
            middle = (low + high) // 2
            reached = (self.epsilons(middle, level) >= statistic) & (middle <= self.sizes)
            high = np.where(reached, middle, high)
            low = np.where(reached, low, np.minimum(middle + 1, high))
        return high

    def _odds(self, rate: FloatArray) -> FloatArray:
        """The e^epsilon at which the mean of the guesses' success probabilities is `rate`.

        With i "in" and o "out" guesses, a = prior, b = 1 - a: solves
        i a x / (b + a x) + o b x / (a + b x) = (i + o) rate, a quadratic equation in x.
        """
        a, b = self.prior, 1.0 - self.prior
        share = np.asarray(self.ins, dtype=np.float64) / self.sizes
        square = a * b * (1.0 - rate)
        linear = share * a * a + (1.0 - share) * b * b - rate * (a * a + b * b)
        constant = -rate * a * b
        root = np.sqrt(linear * linear - 4.0 * square * constant)
        # The positive root, in the form that does not cancel.
        return np.asarray(
            np.where(linear > 0, -2.0 * constant / (linear + root), (root - linear) / (2.0 * square)),
            dtype=np.float64,
        )


@lru_cache(maxsize=256)
def guess_sets(n: int, prior: float, side: str) -> GuessSets:
    """The pre-specified nested sets for n candidates: sizes grow by a quarter, from about ten guesses.

    Args:
        n: Number of candidates, at least 2.
        prior: Probability of the label "member".
        side: `"both"`, `"top"` ("in" guesses alone) or `"bottom"` ("out" guesses alone).
    """
    largest = n // 2
    first = 5 if side == "both" else 8
    counts = [min(first, largest)]
    while counts[-1] < largest:
        counts.append(min(largest, max(counts[-1] + 1, round(counts[-1] * _GROWTH))))
    none = (0,) * len(counts)
    sets = tuple(counts)
    return GuessSets(sets if side != "bottom" else none, sets if side != "top" else none, prior)


def _binomial(n: int, p: float) -> tuple[int, FloatArray]:
    """Probabilities of Binomial(n, p) where they matter: the first value, and the masses from it on."""
    if n == 0 or p <= 0.0 or p >= 1.0:
        return (n if p >= 1.0 else 0), np.ones(1)
    spread = 9.0 * math.sqrt(n * p * (1.0 - p)) + 40.0
    low, high = max(0, math.floor(n * p - spread)), min(n, math.ceil(n * p + spread))
    k = np.arange(low, high + 1, dtype=np.float64)
    logs = (
        gammaln(n + 1.0)
        - gammaln(k + 1.0)
        - gammaln(n - k + 1.0)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
    )
    return low, np.asarray(np.exp(logs), dtype=np.float64)


def crossing_probability(sets: GuessSets, epsilon: float, boundaries: IntArray) -> float:
    """Probability that the dominating walk reaches the boundary in at least one of the nested sets.

    Exact up to rounding; what is trimmed from the tails (1e-14 a set) is added, so the value errs
    upwards.

    Args:
        sets: The nested guess sets.
        epsilon: The pure epsilon of the hypothesis.
        boundaries: Right guesses that count as crossing, shape `(sets,)`.
    """
    p_in, p_out = guess_probabilities(epsilon, sets.prior)
    crossed, first, mass = 0.0, 0, np.ones(1)
    before_in = before_out = 0
    for count_in, count_out, boundary in zip(sets.ins, sets.outs, boundaries.tolist(), strict=True):
        for size, p in ((count_in - before_in, p_in), (count_out - before_out, p_out)):
            low, steps = _binomial(size, p)
            mass = np.convolve(mass, steps)
            first += low
        before_in, before_out = count_in, count_out
        cut = max(0, boundary - first)
        crossed += float(mass[cut:].sum())
        mass = mass[:cut]
        if mass.size == 0:
            return min(1.0, crossed)
        skip = int(np.searchsorted(np.cumsum(mass), _TRIM))
        keep = mass.size - int(np.searchsorted(np.cumsum(mass[::-1]), _TRIM))
        if skip >= keep:
            return min(1.0, crossed + float(mass.sum()))
        crossed += 2 * _TRIM
        mass, first = mass[skip:keep], first + skip
    return min(1.0, crossed)


@dataclass(frozen=True)
class DeltaStage:
    """How many guesses delta may make certain beyond the pure walk, for hypotheses from one epsilon on.

    Attributes:
        from_epsilon: First epsilon of the stage; it ends where the next one begins.
        shift: Right guesses given away beforehand.
        weights: Probability of each further number 0, 1, ... of certain guesses.
        price: Error probability paid for all that shift and weights leave out.
    """

    from_epsilon: float
    shift: int
    weights: tuple[float, ...]
    price: float


@lru_cache(maxsize=65536)
def _rejected_up_to(
    sets: GuessSets, stage: DeltaStage, end: float, statistic: float, significance: float
) -> float:
    """Largest epsilon of a stage (to 0.002, downwards) that a path with this statistic rejects.

    The error is monotone within the stage. Returns the stage's first epsilon where nothing is rejected.
    """
    boundaries = sets.boundaries(statistic, significance * _NOMINAL_SHARE)
    # A set too small to reach the statistic with every guess right does not reach it by a gift either.
    boundaries = np.where(boundaries + stage.shift > sets.sizes, _UNREACHABLE, boundaries)

    def error(epsilon: float) -> float:
        return stage.price + sum(
            weight * crossing_probability(sets, epsilon, boundaries - extra)
            for extra, weight in enumerate(stage.weights)
        )

    low = stage.from_epsilon
    if error(low) > significance:
        return low
    if math.isfinite(end) and error(end) <= significance:
        return end
    high = min(end, max(statistic, low + 0.1))
    while high < end and error(high) <= significance:
        low, high = high, min(end, 1.25 * high)
    step = 0.125
    while high - low > _EPSILON_STEP:
        # The answer lies near the statistic: gallop down from it, then halve.
        middle = max(high - step, (low + high) / 2)
        if error(middle) <= significance:
            low = middle
        else:
            high, step = middle, 2 * step
    return low


def epsilon_from_path(
    sets: GuessSets,
    correct: IntArray,
    stages: tuple[DeltaStage, ...],
    significance: float,
    *,
    floor: float = 0.0,
) -> float:
    """Lower confidence bound on epsilon from the right guesses of all nested sets.

    Every hypothesis is tested by its own stage; the bound is the end of the epsilons that are rejected
    without a gap from 0 on, so it exceeds the truth only where the test of the truth itself errs.

    Args:
        sets: The nested sets, fixed before the labels were seen.
        correct: Right guesses in each, shape `(sets,)`.
        stages: The price of delta, by ascending epsilon, the first from 0.
        significance: Probability that the bound exceeds the true epsilon, at most.
        floor: A bound that is known already; 0 is returned at once where this one can hardly exceed it.

    Returns:
        epsilon >= 0.
    """
    nominal = significance * _NOMINAL_SHARE
    ends = [stage.from_epsilon for stage in stages[1:]] + [math.inf]
    reached = 0.0
    if float(np.max(sets.epsilons(correct - stages[-1].shift, nominal))) < floor - 1.0:
        return 0.0
    for stage, end in zip(stages, ends, strict=True):
        statistic = float(np.max(sets.epsilons(correct - stage.shift, nominal)))
        if not statistic > 0.0:
            break
        statistic = min(_STATISTIC_STEP * math.floor(statistic / _STATISTIC_STEP), _LARGEST_EPSILON)
        reached = _rejected_up_to(sets, stage, end, statistic, significance)
        if reached < end:
            break
    return reached
