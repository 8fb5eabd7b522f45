"""Epsilon lower bounds from the error rates at one threshold, fixed beforehand or chosen on half of the data.

Under (epsilon, delta)-DP every threshold obeys TPR <= e^eps FPR + delta, and the same with the classes
swapped: 1 - FPR <= e^eps (1 - TPR) + delta. The textbook bound takes one Clopper-Pearson limit for each rate
and pays for two. Here the two exact binomial p-values are combined instead, which loses less: at a
hypothetical FPR q the p-value of the hits against e^eps q + delta and that of the false alarms against q are
independent, so Fisher's product of the two is again a p-value; its supremum over all q is one for the whole
hypothesis. The supremum is taken over intervals of q, on each of which both p-values are monotone, so it errs
upwards, never down.

Scores must be independent, and identically distributed within each class.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import betainc, betaincc, betaincinv, expit, ndtri

from workbench.core.errors import InputError
from workbench.estimation.inputs import INDEPENDENT_SCORES, bound_of_trials, check_epsilon_game
from workbench.estimation.searching import change_bracket
from workbench.interfaces import BoolArray, Bound, FloatArray

_TOLERANCE = 1e-3


def binomial_lower(successes: int, trials: int, significance: float) -> float:
    """Clopper-Pearson lower limit of a probability; wrong with probability at most `significance`."""
    return float(betaincinv(successes, trials - successes + 1, significance)) if successes > 0 else 0.0


def binomial_upper(successes: int, trials: int, significance: float) -> float:
    """Clopper-Pearson upper limit of a probability; wrong with probability at most `significance`."""
    return 1.0 - binomial_lower(trials - successes, trials, significance)


def _rates_grid(false_alarms: int, nonmembers: int) -> tuple[FloatArray, FloatArray]:
    """False-positive rates from 0 to 1, and P[Binomial <= false_alarms] at each; shapes `(q,)`."""
    levels = expit(30.0 * np.sinh(2.5 * np.linspace(-1.0, 1.0, 201)) / math.sinh(2.5))
    inner = betaincinv(false_alarms + 1, nonmembers - false_alarms, levels)
    rates = np.concatenate([[0.0], inner, [1.0]])
    return rates, np.concatenate([[1.0], betaincc(false_alarms + 1, nonmembers - false_alarms, inner), [0.0]])


@lru_cache(maxsize=65536)
def ratio_lower(
    hits: int, members: int, false_alarms: int, nonmembers: int, *, delta: float, significance: float
) -> float:
    """Returns a lower bound on the epsilon with P[hit] <= e^eps P[false alarm] + delta, in one direction.

    Args:
        hits, members: Members beyond the threshold, of how many.
        false_alarms, nonmembers: Non-members beyond the threshold, of how many.
        delta: In [0, 1).
        significance: Probability that the bound exceeds the truth, at most.

    Returns:
        epsilon >= 0, rounded down by at most 0.001.
    """
    if hits == 0 or false_alarms == nonmembers:
        return 0.0
    rates, few_alarms = _rates_grid(false_alarms, nonmembers)

    def p_value(epsilon: float) -> float:
        allowed = np.minimum(1.0, np.exp(epsilon) * rates + delta)
        many_hits = betainc(hits, members - hits + 1, allowed)
        # On [q_i, q_i+1] hits are likeliest at the right end, few alarms at the left one.
        product = float(np.max(many_hits[1:] * few_alarms[:-1]))
        return product * (1.0 - math.log(product)) if product > 0 else 0.0

    return change_bracket(lambda epsilon: p_value(epsilon) <= significance, absolute=_TOLERANCE)[0]


def _plug_in(hits: int, members: int, false_alarms: int, nonmembers: int, delta: float) -> float:
    """Point estimate of epsilon in one direction; infinite without false alarms."""
    excess = hits / members - delta
    if excess <= 0:
        return 0.0
    return math.inf if false_alarms == 0 else max(0.0, math.log(excess * nonmembers / false_alarms))


def clopper_pearson(
    scores: FloatArray, members: BoolArray, *, threshold: float, delta: float, confidence: float
) -> Bound:
    """Returns an epsilon lower bound at a threshold that was fixed before the scores were seen.

    It covers both directions and exceeds the truth with probability at most 1 - confidence, half for each
    direction. A score at or above the threshold is a guess "member". Raises `InputError`: an argument is
    unusable.

    Source: Jagielski, Ullman and Oprea 2020, section 3 (the two-limit form).
    """
    values, labels = check_epsilon_game(scores, members, delta=delta, confidence=confidence)
    if not math.isfinite(threshold):
        raise InputError(f"threshold must be finite, got {threshold!r}")
    counts = _counts(values, labels, threshold)
    swapped = _swap(counts)
    share = (1.0 - confidence) / 2
    lower = max(ratio_lower(*c, delta=delta, significance=share) for c in (counts, swapped))
    estimate = max(_plug_in(*counts, delta), _plug_in(*swapped, delta))
    why = f"{INDEPENDENT_SCORES}; the threshold {threshold:g} was fixed beforehand"
    return bound_of_trials(
        "clopper_pearson", "epsilon", (lower, estimate), why, confidence, n=values.size, delta=delta
    )


def _counts(values: FloatArray, labels: BoolArray, threshold: float) -> tuple[int, int, int, int]:
    """Hits, members, false alarms, non-members at a threshold."""
    beyond = values >= threshold
    hits, alarms = int(np.sum(beyond & labels)), int(np.sum(beyond & ~labels))
    return hits, int(labels.sum()), alarms, int(np.sum(~labels))


def _swap(counts: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The same counts for the other direction: non-members below the threshold against members below it."""
    hits, members, alarms, nonmembers = counts
    return nonmembers - alarms, nonmembers, members - hits, members


def half_split(labels: BoolArray, generator: np.random.Generator) -> BoolArray:
    """Returns a random half of each class (rounded down), as a mask of shape `(n,)`.

    Raises `InputError`: a class has fewer than two.
    """
    if min(int(labels.sum()), int(np.sum(~labels))) < 2:
        raise InputError("members must hold at least two of each class to be split into halves")
    chosen = np.zeros(labels.size, dtype=bool)
    for group in (np.flatnonzero(labels), np.flatnonzero(~labels)):
        chosen[generator.permutation(group)[: group.size // 2]] = True
    return chosen


def _best_threshold(
    values: FloatArray, labels: BoolArray, delta: float, confidence: float
) -> tuple[float, bool]:
    """The threshold and direction (True: hits of members) whose approximate lower bound is largest."""
    thresholds = np.unique(values)
    inside, outside = np.sort(values[labels]), np.sort(values[~labels])
    tpr = (inside.size - np.searchsorted(inside, thresholds) + 0.5) / (inside.size + 1.0)
    fpr = (outside.size - np.searchsorted(outside, thresholds) + 0.5) / (outside.size + 1.0)
    z = float(ndtri(confidence))
    best = (-math.inf, float(thresholds[0]), True)
    for is_forward, up, down, n_up, n_down in (
        (True, tpr, fpr, inside.size, outside.size),
        (False, 1.0 - fpr, 1.0 - tpr, outside.size, inside.size),
    ):
        spread = np.sqrt((1.0 - up) / (n_up * up) + (1.0 - down) / (n_down * down))
        lower = np.log(np.maximum(up - delta, 1e-300) / down) - z * spread
        at = int(np.argmax(lower))
        if lower[at] > best[0]:
            best = (float(lower[at]), float(thresholds[at]), is_forward)
    return best[1], best[2]


def clopper_pearson_split(
    scores: FloatArray, members: BoolArray, *, delta: float, confidence: float, generator: np.random.Generator
) -> Bound:
    """Epsilon lower bound at a threshold and direction chosen on a random half, from the other half.

    It exceeds the truth with probability at most 1 - confidence. Raises `InputError`: an argument is
    unusable, or a class has fewer than two scores.
    """
    values, labels = check_epsilon_game(scores, members, delta=delta, confidence=confidence)
    first = half_split(labels, generator)
    threshold, is_forward = _best_threshold(values[first], labels[first], delta, confidence)
    counts = _counts(values[~first], labels[~first], threshold)
    used = counts if is_forward else _swap(counts)
    lower = ratio_lower(*used, delta=delta, significance=1.0 - confidence)
    estimate, n = _plug_in(*used, delta), values.size
    why = f"{INDEPENDENT_SCORES}; threshold chosen on a random half, judged on the other"
    return bound_of_trials(
        "clopper_pearson_split", "epsilon", (lower, estimate), why, confidence, n=n, delta=delta
    )
