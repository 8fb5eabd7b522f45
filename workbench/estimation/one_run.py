"""Epsilon from one training run: guesses of membership, against what any mechanism could allow.

Labels are independent coins; scores may depend on each other in any way (one run, all canaries in it).
The guesses go to the most extreme scores, in nested sets of pre-specified sizes (`guess_counts`), so the
set that tells most is found without a union bound over sizes.

Delta (proof for one run). Let p be the chance that a guess is right under pure epsilon, C_i whether
guess i is right. Reveal the labels in the order of their index. Given the scores t and the labels before
i, guess i is right with probability at most p + x_i(t), where x_i is the excess of the posterior over p;
by Bayes E[x_i] = (1 - p_in) prior * integral of (P - e^eps Q)_+ <= (1 - p_in) prior delta for an "in"
guess, and (1 - p_out) (1 - prior) delta for an "out" guess. So
C_i <= B_i + F_i with independent coins B_i of probability p and F_i in {0, 1}, and E[sum F_i] <= c(eps)
n delta with c(eps) = (1 - p_in) prior + (1 - p_out) (1 - prior), or one of the two terms for guesses at
one end. By Markov, with probability at least 1 - c(eps) n delta / (k + 1) at most k guesses gain from
delta, and every count is at most the pure walk's count + k. k is a fixed function of n, delta, eps and
the confidence, chosen so that the price is at most a fifth of the error probability; hence the bound
stays useful where n delta is large.

Source: Steinke, Nasr and Jagielski 2023, theorem 5.2 (fair coins, one set; its price is 2 n delta max_i
P[v > Binomial >= v - i] / i). The nested sets, the prior and the form of the price are ours, proved
above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import betainc

from workbench.core.errors import InputError
from workbench.estimation.guess_counts import DeltaStage, epsilon_from_path, guess_probabilities, guess_sets
from workbench.estimation.inputs import check_game, check_probability
from workbench.interfaces import BoolArray, Bound, Family, FloatArray, IntArray, Trials

_DELTA_SHARE = 0.2
_FEW = 64

SIDES: Mapping[str, float] = {"both": 0.6, "top": 0.2, "bottom": 0.2}
"""Share of the error probability for guesses at both ends, "in" guesses alone and "out" guesses alone."""


def stages_in_one_run(
    n: int, delta: float, prior: float, side: str, significance: float
) -> tuple[DeltaStage, ...]:
    """The price of delta where scores depend on each other: Markov's inequality, see the module.

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
        start = _first_below(gain, affordable * (given + 1))
        price = gain(start) / (given + 1)
        stages.append(DeltaStage(from_epsilon=start, shift=given, weights=(1.0,), price=price))
        if start == 0.0:
            return tuple(reversed(stages))
        given = max(given + 1, given * 3 // 2)


def _first_below(decreasing: Callable[[float], float], level: float) -> float:
    """Smallest argument >= 0 at which a decreasing function is at most `level` (to rounding, upwards)."""
    if decreasing(0.0) <= level:
        return 0.0
    low, high = 0.0, 1.0
    while decreasing(high) > level:
        low, high = high, 2.0 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if decreasing(middle) > level else (low, middle)
    return high


def stages_if_independent(n: int, delta: float, significance: float) -> tuple[DeltaStage, ...]:
    """The price of delta where trials are independent: each is certain with probability delta at most.

    Every (epsilon, delta)-DP pair is a post-processing of the one that reveals the label with
    probability delta and else answers by pure-epsilon randomised response (Kairouz, Oh and Viswanath
    2015, theorem 3.1).
    """
    if delta == 0.0:
        return (DeltaStage(from_epsilon=0.0, shift=0, weights=(1.0,), price=0.0),)
    # P[Binomial(n, delta) > k] = I_delta(k + 1, n - k)
    k = np.arange(n, dtype=np.float64) if n < _FEW else np.arange(_FEW + 10 * n * delta, dtype=np.float64)
    tails = betainc(k + 1.0, np.maximum(n - k, 1.0), delta)
    enough = int(np.argmax(tails <= 0.01 * significance))
    if tails[enough] > 0.01 * significance:  # delta may make every guess certain
        return (DeltaStage(from_epsilon=0.0, shift=n, weights=(1.0,), price=0.0),)
    price = float(tails[enough])
    if enough > 3:
        return (DeltaStage(from_epsilon=0.0, shift=enough, weights=(1.0,), price=price),)
    at_least = np.concatenate([[1.0], tails[: enough + 1]])
    weights = tuple((at_least[:-1] - at_least[1:]).tolist())
    return (DeltaStage(from_epsilon=0.0, shift=0, weights=weights, price=price),)


def ranked_labels(scores: FloatArray, members: BoolArray, generator: np.random.Generator) -> IntArray:
    """Labels (0 or 1) in descending order of score, ties in random order; shape `(n,)`.

    A tie must not be broken by the place in the array: files list members first.
    """
    shuffled = generator.permutation(scores.size)
    order = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    return np.asarray(members[order], dtype=np.int64)


def guess_bound(
    ranked: IntArray,
    stages_of: Mapping[str, tuple[DeltaStage, ...]],
    prior: float,
    sides: Mapping[str, float],
    significance: float,
) -> tuple[float, float]:
    """Best bound over the sides, each at its share of the error probability, and a plug-in estimate.

    Args:
        ranked: Labels in descending order of score, shape `(n,)`.
        stages_of: The price of delta for each side.
        prior: Probability of the label "member".
        sides: Share of `significance` for each side; they sum to at most 1.
        significance: Probability that the bound exceeds the truth, at most.

    Returns:
        The lower bound, and the point estimate at the set with the largest uncorrected bound.
    """
    lower, best, estimate = 0.0, -math.inf, 0.0
    for side, share in sides.items():
        sets = guess_sets(ranked.size, prior, side)
        correct = sets.correct(ranked)
        error = share * significance
        lower = max(lower, epsilon_from_path(sets, correct, stages_of[side], error, floor=lower))
        uncorrected = sets.epsilons(correct, significance)
        at = int(np.argmax(uncorrected))
        if uncorrected[at] > best:
            best, estimate = float(uncorrected[at]), sets.plug_in(correct, at)
    return lower, estimate


def check_sides(sides: Mapping[str, float]) -> None:
    """Refuse unknown sides, and shares that are not positive or sum to more than 1.

    Raises:
        InputError: names the offending share.
    """
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
    """Epsilon lower bound from coin labels, whatever the dependence between the scores.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`: independent coins, tossed before the run.
        delta: In [0, 1).
        confidence: One-sided, in (0, 1).
        prior: Probability of the label "member" in the coin, in (0, 1); not the observed share.
        trials: `INDEPENDENT` where every score comes from its own release; delta then costs less.
        sides: Share of the error probability for guesses at `"both"` ends, the `"top"`, the `"bottom"`;
            fixed before the scores are seen.
        generator: Breaks ties; a fixed one by default (it knows nothing of the labels).

    Returns:
        Bound on epsilon. It exceeds the true epsilon (for adding or removing one record) with
        probability at most 1 - confidence.

    Raises:
        InputError: unusable scores, labels, delta, confidence, prior or sides.

    Source: Steinke, Nasr and Jagielski 2023, theorem 5.2, extended as the module says.
    """
    values, labels = check_game(scores, members)
    check_probability("delta", delta, zero_allowed=True)
    check_probability("confidence", confidence)
    check_probability("prior", prior)
    check_sides(sides)
    significance = 1.0 - confidence
    n = values.size
    stages_of = {
        side: stages_if_independent(n, delta, share * significance)
        if trials is Trials.INDEPENDENT
        else stages_in_one_run(n, delta, prior, side, share * significance)
        for side, share in sides.items()
    }
    ranked = ranked_labels(values, labels, generator if generator is not None else np.random.default_rng(0))
    lower, estimate = guess_bound(ranked, stages_of, prior, sides, significance)
    independent = trials is Trials.INDEPENDENT
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
