"""Epsilon lower bounds from guesses of membership, whatever the dependence between the scores.

Labels are independent coins; the scores may come from one run with all canaries in it. An attacker guesses
"in" for the candidates with the highest scores and "out" for those with the lowest, first few, then more:
nested guess sets of sizes fixed beforehand, so the set that tells most needs no union bound over sizes.

**Pure epsilon.** The most that (epsilon, 0)-DP allows is that each guess is right with probability

    p_in  = prior e^eps / (1 - prior + prior e^eps)      for "in",
    p_out = (1 - prior) e^eps / (prior + (1 - prior) e^eps)   for "out",

independently (the numbers right are stochastically dominated by these, jointly over the nested sets: reveal
the labels one at a time; given the scores and the labels revealed, each posterior odds is at most e^eps
times the prior odds). So the whole path of the attack is compared with a random walk whose law is known, and
looking at every set size costs just what the exact boundary-crossing probability says. The statistic of a
path is the largest Clopper-Pearson epsilon over the sets, each at a nominal level of its own, a fixed
function of the sizes; its exact distribution under the walk turns it into a bound. The statistic does not
depend on the hypothesis and the walk grows with epsilon, hence the test is monotone in epsilon and its
inversion is valid as it stands. The levels decide which attacks are favoured: of many thousand candidates,
small sets have lower ones, or their wide intervals would cost the largest set, which tells most of randomised
response, a twentieth of its epsilon.

**Delta (proof for one run).** Let p be the chance that a guess is right under pure epsilon, C_i whether
guess i is right. Reveal the labels in the order of their index. Given the scores t and the labels before i,
guess i is right with probability at most p + x_i(t), where x_i is the excess of the posterior over p; by
Bayes E[x_i] = (1 - p_in) prior * integral of (P - e^eps Q)_+ <= (1 - p_in) prior delta for an "in" guess,
and (1 - p_out) (1 - prior) delta for an "out" guess. So C_i <= B_i + F_i with independent coins B_i of
probability p and F_i in {0, 1}, and E[sum F_i] <= c(eps) n delta with c(eps) = (1 - p_in) prior +
(1 - p_out) (1 - prior), or one of the two terms for guesses at one end. By Markov, with probability at least
1 - c(eps) n delta / (k + 1) at most k guesses gain from delta, and every count is at most the pure walk's
count + k. k is a fixed function of n, delta, eps and the confidence, chosen so that the price is at most a
fifth of the error probability; hence the bound stays useful where n delta is large.

Source: Steinke, Nasr and Jagielski 2023, theorem 5.2 (fair coins, one set; its price is 2 n delta max_i
P[v > Binomial >= v - i] / i). The nested sets, the prior and the form of the price are ours, proved above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from scipy.special import betainc, betaincinv, expit, gammaln

from workbench.core.errors import InputError
from workbench.estimation.inputs import (
    INDEPENDENT_SCORES,
    bound_of_trials,
    check_epsilon_game,
    check_probability,
)
from workbench.estimation.searching import change_bracket
from workbench.interfaces import BoolArray, Bound, Family, FloatArray, IntArray, Trials

_TRIM = 1e-14
_STATISTIC_STEP, _EPSILON_STEP = 0.01, 2e-3
_FINE_FROM, _FINER = 20_000, 10.0
"""From so many guesses on steps are so many times finer: an interval is no wider than a few of the others."""

_GROWTH = 1.25
_NOMINAL_SHARE = 0.7
_TILT, _TILTED_FROM = 0.22, 1000
_UNREACHABLE = 2**62
_LARGEST_EPSILON = 700.0
_DELTA_SHARE = 0.2
_FEW = 64

SIDES: Mapping[str, float] = {"both": 0.6, "top": 0.2, "bottom": 0.2}
"""Share of the error probability for guesses at both ends, "in" guesses alone and "out" guesses alone."""


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

    @property
    def finer(self) -> float:
        """How many times finer than usual statistics and epsilons are told apart."""
        return _FINER if self.sizes.max() >= _FINE_FROM else 1.0

    @cached_property
    def nominal(self) -> FloatArray:
        """Nominal level of each set as a share of the error probability, shape `(sets,)`."""
        candidates = 2 * max(*self.ins, *self.outs)
        tilt = _TILT * min(max(math.log10(candidates / _TILTED_FROM), 0.0), 2.0)
        return np.asarray(_NOMINAL_SHARE * (self.sizes / self.sizes.max()) ** tilt, dtype=np.float64)

    def correct(self, ranked_members: IntArray) -> IntArray:
        """Right guesses in each set, shape `(sets,)`, from labels (0 or 1) in descending order of score."""
        from_top = np.concatenate([[0], np.cumsum(ranked_members)])
        from_bottom = np.concatenate([[0], np.cumsum(1 - ranked_members[::-1])])
        return np.asarray(from_top[list(self.ins)] + from_bottom[list(self.outs)], dtype=np.int64)

    def epsilons(self, correct: IntArray, level: float | FloatArray) -> FloatArray:
        """Clopper-Pearson epsilon of each set at its nominal level, not corrected for the number of sets.

        Right guesses and result have shape `(sets,)`; numbers outside [0, size] are clipped. At most 0 where
        the guesses are no better than the prior allows anyway.
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

    def boundaries(self, statistic: float, level: float | FloatArray) -> IntArray:
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
    """The nested sets for n >= 2 candidates: sizes grow by a quarter, from about ten guesses.

    `side` is `"both"`, `"top"` ("in" guesses alone) or `"bottom"` ("out" guesses alone).
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
    logs = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0) + k * math.log(p)
    logs += (n - k) * math.log1p(-p)
    return low, np.asarray(np.exp(logs), dtype=np.float64)


def crossing_probability(sets: GuessSets, epsilon: float, boundaries: IntArray) -> float:
    """Probability that the dominating walk reaches the boundary in at least one of the nested sets.

    Exact up to rounding; what is trimmed from the tails (1e-14 a set) is added, so the value errs upwards.
    `boundaries` holds the right guesses that count as crossing, shape `(sets,)`.
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

    from_epsilon: float = 0.0
    shift: int = 0
    weights: tuple[float, ...] = (1.0,)
    price: float = 0.0


Prices = Callable[[str, float], tuple[DeltaStage, ...]]
"""The price of delta for a side of the scores and its share of the error probability."""


@lru_cache(maxsize=65536)
def _rejected_up_to(
    sets: GuessSets, stage: DeltaStage, end: float, statistic: float, significance: float
) -> float:
    """Largest epsilon of a stage (to 0.002 or finer, downwards) that a path with this statistic rejects.

    The error is monotone within the stage. Returns the stage's first epsilon where nothing is rejected.
    """
    boundaries = sets.boundaries(statistic, significance * sets.nominal)
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
    while high - low > _EPSILON_STEP / sets.finer:
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
    floor: float = 0.0,
) -> float:
    """Returns a lower confidence bound on epsilon from the right guesses of all nested sets.

    Every hypothesis is tested by its own stage; the bound is the end of the epsilons that are rejected
    without a gap from 0 on, so it exceeds the truth only where the test of the truth itself errs.

    Args:
        sets: The nested sets, fixed before the labels were seen.
        correct: Right guesses in each, shape `(sets,)`.
        stages: The price of delta, by ascending epsilon, the first from 0.
        significance: Probability that the bound exceeds the true epsilon, at most.
        floor: A bound that is already known; 0 is returned at once where this one can hardly exceed it.
    """
    nominal = significance * sets.nominal
    ends = [stage.from_epsilon for stage in stages[1:]] + [math.inf]
    reached = 0.0
    if float(np.max(sets.epsilons(correct - stages[-1].shift, nominal))) < floor - 1.0:
        return 0.0
    for stage, end in zip(stages, ends, strict=True):
        statistic = float(np.max(sets.epsilons(correct - stage.shift, nominal)))
        if not statistic > 0.0:
            break
        step = _STATISTIC_STEP / sets.finer
        statistic = step * math.floor(min(statistic, _LARGEST_EPSILON) / step)
        reached = _rejected_up_to(sets, stage, end, statistic, significance)
        if reached < end:
            break
    return reached


def stages_in_one_run(
    n: int, delta: float, prior: float, side: str, significance: float
) -> tuple[DeltaStage, ...]:
    """Returns the price of delta where scores depend on each other, by Markov's inequality (see the module).

    Each stage gives away k guesses, k = 0, 1, 2, ... growing by half, for the epsilons at which this costs a
    fifth of the significance at most.
    """

    def gain(epsilon: float) -> float:
        p_in, p_out = guess_probabilities(epsilon, prior)
        top = (1.0 - p_in) * prior if side != "bottom" else 0.0
        bottom = (1.0 - p_out) * (1.0 - prior) if side != "top" else 0.0
        return n * delta * (top + bottom)

    affordable = _DELTA_SHARE * significance
    stages: list[DeltaStage] = []
    given = 0
    while True:
        level = affordable * (given + 1)
        # The smallest epsilon at which the gain is affordable, rounded upwards.
        start = change_bracket(partial(_exceeds, gain, level), relative=1e-9)[1]
        price = gain(start) / (given + 1)
        stages.append(DeltaStage(from_epsilon=start, shift=given, price=price))
        if start == 0.0:
            return tuple(reversed(stages))
        given = max(given + 1, given * 3 // 2)


def _exceeds(function: Callable[[float], float], level: float, argument: float) -> bool:
    return function(argument) > level


def stages_if_independent(n: int, delta: float, significance: float) -> tuple[DeltaStage, ...]:
    """Price of delta where trials are independent: each is certain with probability delta at most.

    Every (epsilon, delta)-DP pair is a post-processing of the one that reveals the label with probability
    delta and else answers by pure-epsilon randomised response (Kairouz, Oh and Viswanath 2015, theorem 3.1).
    """
    if delta == 0.0:
        return (DeltaStage(),)
    # P[Binomial(n, delta) > k] = I_delta(k + 1, n - k)
    k = np.arange(n, dtype=np.float64) if n < _FEW else np.arange(_FEW + 10 * n * delta, dtype=np.float64)
    tails = betainc(k + 1.0, np.maximum(n - k, 1.0), delta)
    enough = int(np.argmax(tails <= 0.01 * significance))
    if tails[enough] > 0.01 * significance:  # delta may make every guess certain
        return (DeltaStage(shift=n),)
    price = float(tails[enough])
    if enough > 3:
        return (DeltaStage(shift=enough, price=price),)
    at_least = np.concatenate([[1.0], tails[: enough + 1]])
    weights = tuple((at_least[:-1] - at_least[1:]).tolist())
    return (DeltaStage(weights=weights, price=price),)


def ranked_labels(scores: FloatArray, members: BoolArray, generator: np.random.Generator) -> IntArray:
    """Returns labels (0 or 1) in descending order of score, ties in random order; shape `(n,)`.

    A tie must not be broken by the place in the array: files list members first.
    """
    shuffled = generator.permutation(scores.size)
    order = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    return np.asarray(members[order], dtype=np.int64)


def guess_bound(
    ranked: IntArray, prices: Prices, prior: float, sides: Mapping[str, float], significance: float
) -> tuple[float, float]:
    """Returns the best bound over the sides, each at its share of the error, and a plug-in estimate.

    The estimate is that of the set with the largest uncorrected bound.

    Args:
        ranked: Labels in descending order of score, shape `(n,)`.
        prices: What delta costs.
        prior: Probability of the label "member".
        sides: Share of `significance` for each side; they sum to at most 1.
        significance: Probability that the bound exceeds the truth, at most.
    """
    lower, best, estimate = 0.0, -math.inf, 0.0
    for side, share in sides.items():
        sets = guess_sets(ranked.size, prior, side)
        correct = sets.correct(ranked)
        stages, error = prices(side, share * significance), share * significance
        lower = max(lower, epsilon_from_path(sets, correct, stages, error, floor=lower))
        uncorrected = sets.epsilons(correct, significance)
        at = int(np.argmax(uncorrected))
        if uncorrected[at] > best:
            best, estimate = float(uncorrected[at]), sets.plug_in(correct, at)
    return lower, estimate


def check_sides(sides: Mapping[str, float]) -> None:
    """Refuses unknown sides, and shares that are not positive or sum to more than 1."""
    for side, share in sides.items():
        if side not in SIDES or not share > 0:
            raise InputError(f"sides must map {sorted(SIDES)} to positive shares, got {side!r}: {share!r}")
    if not sides or sum(sides.values()) > 1 + 1e-12:
        raise InputError(f"sides must share at most 1, got {sum(sides.values())!r}")


def one_run(
    scores: FloatArray,
    members: BoolArray,
    *,
    delta: float,
    confidence: float,
    prior: float = 0.5,
    trials: Trials = Trials.ONE_RUN,
    sides: Mapping[str, float] = SIDES,
    generator: np.random.Generator | None = None,
) -> Bound:
    """Returns an epsilon lower bound from coin labels, whatever the dependence between the scores.

    It exceeds the true epsilon (for adding or removing one record) with probability at most 1 - confidence.

    Args:
        scores, members: See `check_game`; the labels are independent coins, tossed before the run.
        prior: Probability of the label "member" in the coin, in (0, 1); not the observed share.
        trials: `INDEPENDENT` where every score comes from its own release; delta then costs less.
        sides: Share of the error probability for guesses at `"both"` ends, the `"top"`, the `"bottom"`; fixed
            before the scores are seen.
        generator: Breaks ties; a fixed one by default (it knows nothing of the labels).

    Raises `InputError`: an argument is unusable.

    Source: Steinke, Nasr and Jagielski 2023, theorem 5.2, extended as the module says.
    """
    values, labels = check_epsilon_game(scores, members, delta=delta, confidence=confidence)
    check_probability("prior", prior)
    check_sides(sides)
    n, independent = values.size, trials is Trials.INDEPENDENT

    def prices(side: str, error: float) -> tuple[DeltaStage, ...]:
        if independent:
            return stages_if_independent(n, delta, error)
        return stages_in_one_run(n, delta, prior, side, error)

    ranked = ranked_labels(values, labels, generator if generator is not None else np.random.default_rng(0))
    lower, estimate = guess_bound(ranked, prices, prior, sides, 1.0 - confidence)
    dependence = "each score has its own release" if independent else "scores may depend on each other"
    coins = f"labels are independent coins with probability {prior:g} of membership"
    return Bound(
        name="one_run",
        quantity="epsilon",
        lower=lower,
        estimate=estimate,
        confidence=confidence,
        family=Family.ANY,
        trials=trials,
        assumption=f"{coins}; {dependence}",
        n=n,
        delta=delta,
    )


_RUN_OUT = 0.002


def _more_than(count: int, n: int, p: float) -> float:
    """P[Binomial(n, p) > count]."""
    return 0.0 if count >= n else float(betainc(count + 1, n - count, p))


@lru_cache(maxsize=4096)
def coin_sample_size(n_members: int, n_nonmembers: int) -> tuple[int, float]:
    """Returns the number N >= 1 of coins that the classes can serve, and the coin's probability of "member".

    Where N > 1, a class runs out with probability 0.002 at most. Sizes are rounded down (by less than a
    hundredth) to few distinct values, which makes tables reusable.
    """
    share = n_members / (n_members + n_nonmembers)
    prior = 0.5 if abs(share - 0.5) < 0.05 else float(f"{share:.2g}")
    low, high = 1, n_members + n_nonmembers
    while low < high:
        middle = (low + high + 1) // 2
        run_out = _more_than(n_members, middle, prior) + _more_than(n_nonmembers, middle, 1.0 - prior)
        low, high = (middle, high) if run_out <= _RUN_OUT else (low, middle - 1)
    step = 2 ** max(0, low.bit_length() - 8)
    return max(1, low - low % step), prior


def clopper_pearson_all(
    scores: FloatArray,
    members: BoolArray,
    *,
    delta: float,
    confidence: float,
    generator: np.random.Generator,
    sides: Mapping[str, float] = SIDES,
) -> Bound:
    """Returns an epsilon lower bound over all thresholds, from independent trials with any labels.

    It exceeds the truth with probability at most 1 - confidence. Scores that are all alike give the bound 0.
    With coin labels the nested guess sets search all thresholds at the price of an exact boundary-crossing
    probability. Fixed class sizes are turned into coin labels without an approximation: toss N coins of
    probability n1 / n, and give each the next unused member or non-member, in random order. While neither
    class runs out, that is a sample of independent (coin, score) pairs; where one does, the bound is 0. N is
    the largest number for which a class runs out with probability 0.002 at most, about n - 3 sqrt(n).

    Args:
        scores, members: See `check_game`.
        generator: Tosses the coins of the resampling and breaks ties.
        sides: See `one_run`.

    Raises `InputError`: an argument is unusable.
    """
    values, labels = check_epsilon_game(
        scores, members, delta=delta, confidence=confidence, constant_allowed=True
    )
    check_sides(sides)
    inside, outside = generator.permutation(values[labels]), generator.permutation(values[~labels])
    size, prior = coin_sample_size(inside.size, outside.size)
    wanted = int(generator.binomial(size, prior))
    lower, estimate = 0.0, float("nan")
    ordered = values.min() < values.max()  # One score for everybody: 0, whatever the coins say.
    if ordered and size >= 2 and wanted <= inside.size and size - wanted <= outside.size:
        drawn = np.concatenate([inside[:wanted], outside[: size - wanted]])
        coins = np.arange(size) < wanted
        ranked = ranked_labels(drawn, coins, generator)
        lower, estimate = guess_bound(ranked, _prices(size, delta), prior, sides, 1.0 - confidence)
    name, n = "clopper_pearson_all", values.size
    return bound_of_trials(
        name, "epsilon", (lower, estimate), INDEPENDENT_SCORES, confidence, n=n, delta=delta
    )


def perfect_guesses_bound(size: int, prior: float, delta: float, significance: float) -> float:
    """`clopper_pearson_all` where `size` coins fall in their proportion and every guess is right."""
    if size < 2:
        return 0.0
    ranked = (np.arange(size) < round(size * prior)).astype(np.int64)
    return guess_bound(ranked, _prices(size, delta), prior, SIDES, significance)[0]


def _prices(size: int, delta: float) -> Prices:
    return lambda _, error: stages_if_independent(size, delta, error)
