"""An AUC below one half, said out loud: it is no sign of privacy, but of a broken game or a flipped score.

An attack whose higher scores mean "member" has an AUC of one half where nothing leaks, and above where
something does. One that is significantly below has told members from non-members, in the wrong direction:
whoever reads the scores upside down has one less that AUC. So it counts neither for the mechanism nor for
the attack before the cause is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import betainc

from workbench.core.errors import InputError
from workbench.estimation.inputs import check_probability
from workbench.estimation.metrics import auc as area_under_curve
from workbench.interfaces import BoolArray, FloatArray

NAMED = 3
"""Most runs that a remark names."""

_MOST_RECORDS = 2**40


def auc_below_half(auc: float, lower: float, upper: float, *, confidence: float = 0.95) -> str | None:
    """What is to be said beside an AUC whose whole confidence interval lies below one half.

    An AUC of a half is remarked on by chance with probability `(1 - confidence) / 2` at most, as far as the
    interval covers. No verdict may become more favourable by such an AUC.

    Args:
        auc: The estimate, in [0, 1].
        lower, upper: Ends of its interval.
        confidence: Of the interval, two-sided, in (0, 1).

    Returns:
        The remark; None where the interval reaches one half, or a number is not finite.

    Raises:
        InputError: the three numbers are not in order within [0, 1], or a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    if not all(math.isfinite(value) for value in (auc, lower, upper)):
        return None
    if not 0.0 <= lower <= auc <= upper <= 1.0:
        raise InputError(
            f"auc must lie between lower and upper in [0, 1], got {lower:g} <= {auc:g} <= {upper:g}"
        )
    if upper >= 0.5:
        return None
    one_sided = (1.0 + confidence) / 2.0
    return (
        f"AUC {auc:.3f} [{lower:.3f} to {upper:.3f}] is below one half: members score lower than non-members "
        f"with confidence {100.0 * one_sided:.4g} % (where nothing leaks, {_one_in(1.0 - one_sided)} such "
        "games looks so by chance). The game is broken (members and non-members differ in distribution, or "
        "the labels are swapped) or the score is flipped. Such an AUC does not show privacy: the flipped "
        f"score has AUC {1.0 - auc:.3f} [{1.0 - upper:.3f} to {1.0 - lower:.3f}]."
    )


def _one_in(probability: float) -> str:
    return f"one in {round(1.0 / probability):,}"


def records_below_half(auc: float, *, confidence: float = 0.95) -> int:
    """From how many records of each class an AUC shows that it is below one half, whatever the scores.

    For printed AUCs whose number of records nobody says: with at least so many members and as many
    non-members the interval of `workbench.estimation.auc` lies below one half even at the largest variance
    that any pair of distributions has, AUC (1 - AUC) / min(n1, n0) (Birnbaum and Klose 1957). For a rounded
    AUC ask with the upper end of what it stands for.

    Args:
        auc: In [0, 1/2).
        confidence: Two-sided, in (0, 1).

    Returns:
        The smallest such number.

    Raises:
        InputError: an AUC outside [0, 1/2), or so near to it that no number of records would do.
    """
    check_probability("confidence", confidence)
    if not 0.0 <= auc < 0.5:
        raise InputError(f"auc must be in [0, 0.5), got {auc!r}")

    def shows(n: int) -> bool:
        """The Clopper-Pearson upper end of n auc hits in n coin tosses is below one half."""
        return bool(betainc(auc * n + 1.0, (1.0 - auc) * n, 0.5) > (1.0 + confidence) / 2.0)

    high = 1
    while not shows(high):
        high *= 2
        if high > _MOST_RECORDS:
            raise InputError(f"auc must be further below 0.5 to tell it from one half, got {auc!r}")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def runs_below_half(
    runs: Mapping[str, tuple[FloatArray, BoolArray]], *, confidence: float = 0.95
) -> tuple[str, ...]:
    """What is to be said of a study in which attacks have AUCs below one half: how many, and beyond chance?

    Each run has an interval of its own, so of many runs some are below by chance. Those are told apart by
    Bonferroni's correction for the number of runs, which holds however they depend on each other (runs of
    one seed share their members): where nothing leaks, the second sentence appears in at most
    `(1 - confidence) / 2` of studies.

    Args:
        runs: Scores and labels of each run, by its name. What has no AUC is left out: one class alone, or
            scores that are not finite.
        confidence: Two-sided, in (0, 1).

    Returns:
        No remark, or one.

    Raises:
        InputError: a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    usable = {name: game for name, game in runs.items() if _has_area(*game)}
    corrected = 1.0 - (1.0 - confidence) / max(1, len(usable))
    below, beyond = {}, 0
    for name, (scores, members) in usable.items():
        found = area_under_curve(scores, members, confidence=confidence)
        if found.upper < 0.5:
            below[name] = found
            beyond += area_under_curve(scores, members, confidence=corrected).upper < 0.5
    if not below:
        return ()
    lowest = sorted(below, key=lambda name: (below[name].estimate, name))
    named = "; ".join(
        f"{name}: {below[name].estimate:.3f} [{below[name].lower:.3f} to {below[name].upper:.3f}]"
        for name in lowest[:NAMED]
    )
    more = f"; and {len(below) - NAMED} more" if len(below) > NAMED else ""
    expected = len(usable) * (1.0 - confidence) / 2.0
    head = (
        f"AUC below one half: in {len(below)} of {len(usable)} runs the whole {100.0 * confidence:g} % "
        f"interval lies below ({named}{more}); where nothing leaks, chance gives {expected:.2g}. "
    )
    if not beyond:
        return (
            head
            + f"None stays below when corrected for {len(usable)} runs (Bonferroni), so they may be luck. "
            "None of them shows privacy.",
        )
    worst = below[lowest[0]].estimate
    return (
        head
        + f"{beyond} of them stay below when corrected for {len(usable)} runs (Bonferroni): there members "
        "score lower than non-members. The game is broken (members and non-members differ in distribution, "
        "or the labels are swapped) or the score is flipped. Such an AUC does not show privacy: flipped, the "
        f"lowest is {1.0 - worst:.3f}.",
    )


def _has_area(scores: FloatArray, members: BoolArray) -> bool:
    """Whether both classes are there, and all scores finite."""
    labels = np.asarray(members, dtype=bool)
    return bool(labels.any() and not labels.all() and np.isfinite(scores).all())
