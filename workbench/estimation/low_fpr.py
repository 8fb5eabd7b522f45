"""True-positive rates at very low false-positive rates, where some scores are certain.

An exact likelihood-ratio attack may find that a release is impossible without the record, and scores such a
trial `CERTAIN`. The rule "guess member where the score is certain" has a false-positive rate of exactly zero,
by logic and not by counting, and was not chosen on the data: the hits among the members are binomial, and a
Clopper-Pearson interval for them pays for no threshold. Where a rate above zero is allowed the threshold is
estimated, and `workbench.estimation.metrics.tpr_at_fpr` pays for it.

>>> import numpy as np
>>> scores = np.array([CERTAIN] * 50 + [0.1] * 50 + [0.0] * 100)
>>> members = np.arange(200) < 100
>>> rate = rate_at_fpr(scores, members, fpr=0.0, confidence=0.95)
>>> rate.hits, rate.alarms, round(rate.tpr.lower, 3), round(rate.tpr.upper, 3)
(50, 0, 0.398, 0.602)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from workbench.core.errors import InputError
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.estimation.inputs import check_game, check_probability
from workbench.estimation.metrics import roc_curve, tpr_at_fpr
from workbench.interfaces import BoolArray, FloatArray, Interval

CERTAIN = 1e9
"""Score of a trial whose release is impossible without the record: above every finite log ratio."""

LEVELS = (0.0, 0.001, 0.01)
"""False-positive rates that `low_fpr_details` reports."""

CERTAIN_RULE = (
    "guess member where the release is impossible without the record (likelihood exactly zero), a rule fixed "
    "beforehand whose false-positive rate is zero by logic; trials are independent"
)


@dataclass(frozen=True, kw_only=True)
class RateAtFpr:
    """A true-positive rate at one false-positive rate, with the counts behind it.

    Attributes:
        fpr: The false-positive rate that is allowed.
        hits, members: Members that the rule calls members, of how many.
        alarms, nonmembers: Non-members that the rule calls members, of how many.
        tpr: Estimate and two-sided interval of the rate that the attack reaches.
    """

    fpr: float
    hits: int
    members: int
    alarms: int
    nonmembers: int
    tpr: Interval


def rate_at_fpr(scores: FloatArray, members: BoolArray, *, fpr: float, confidence: float) -> RateAtFpr:
    """Returns the true-positive rate at a false-positive rate, with an interval that uses certain scores.

    At `fpr` 0 the rule is `CERTAIN_RULE`; its lower end is 0 where a non-member's score is certain, since the
    rule then fails. Above 0, the counts are those of the lowest threshold whose observed false-positive rate
    is at most `fpr`, and the interval pays for that threshold; its lower end may instead be that of the
    certain rule, which is allowed at every rate (a quarter of the error each).

    Args:
        scores, members: See `check_game`; a score of `CERTAIN` or above says that the release is impossible
            without the record. Trials are independent.
        fpr: In [0, 1).
        confidence: Two-sided, in (0, 1); holds in finite samples.

    Raises `InputError`: an argument is unusable.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("fpr", fpr, zero_allowed=True)
    check_probability("confidence", confidence)
    sure = values >= CERTAIN
    n1, n0 = int(labels.sum()), int(np.sum(~labels))
    certain, wrong = int(np.sum(sure & labels)), int(np.sum(sure & ~labels))
    error = 1.0 - confidence
    if fpr == 0.0:
        exact = Interval(
            name="tpr_at_fpr_0",
            estimate=certain / n1,
            lower=0.0 if wrong else binomial_lower(certain, n1, error / 2.0),
            upper=binomial_upper(certain, n1, error / 2.0),
            confidence=confidence,
            assumption=CERTAIN_RULE,
        )
        return RateAtFpr(fpr=0.0, hits=certain, members=n1, alarms=wrong, nonmembers=n0, tpr=exact)
    counted = tpr_at_fpr(values, labels, fpr=fpr, confidence=confidence)
    paid = tpr_at_fpr(values, labels, fpr=fpr, confidence=1.0 - error / 2.0).lower
    by_logic = 0.0 if wrong else binomial_lower(certain, n1, error / 4.0)
    curve = roc_curve(values, labels)
    at = int(np.flatnonzero(curve.fpr <= fpr)[-1])
    assumption = f"{counted.assumption}; or {CERTAIN_RULE}"
    interval = replace(counted, lower=max(paid, by_logic), assumption=assumption)
    return RateAtFpr(
        fpr=fpr,
        hits=round(float(curve.tpr[at]) * n1),
        members=n1,
        alarms=round(float(curve.fpr[at]) * n0),
        nonmembers=n0,
        tpr=interval,
    )


def success_of_sign(scores: FloatArray, members: BoolArray, *, confidence: float) -> Interval:
    """Returns the probability of guessing right at prior 1/2 by the sign of the log-likelihood ratio.

    The threshold is the best one for exact ratios and was fixed beforehand, so nothing is paid for it. The
    count is a sum of two binomials, whose tails a binomial of the same mean dominates (Hoeffding 1956,
    theorem 4). `confidence` is two-sided.

    Raises `InputError`: an argument is unusable, or not exactly half of the trials are members.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    if 2 * int(labels.sum()) != labels.size:
        raise InputError(f"members must be half of the trials, got {int(labels.sum())} of {labels.size}")
    right, error = int(np.sum((values > 0.0) == labels)), 1.0 - confidence
    return Interval(
        name="success",
        estimate=right / labels.size,
        lower=binomial_lower(right, labels.size, error / 2.0),
        upper=binomial_upper(right, labels.size, error / 2.0),
        confidence=confidence,
        assumption="trials are independent; the threshold 0 was fixed beforehand",
    )


def low_fpr_details(scores: FloatArray, members: BoolArray, *, confidence: float = 0.95) -> dict[str, float]:
    """Returns named numbers of an attack that may be certain, for records and reports.

    For each rate f of `LEVELS`: `tpr_at_fpr_f`, `tpr_lower_at_fpr_f`, `tpr_upper_at_fpr_f`, `hits_at_fpr_f`,
    `alarms_at_fpr_f`; the class sizes `trials_in`, `trials_out`; and `success`, `success_lower`,
    `success_upper` where half of the trials are members. Each interval has the two-sided confidence
    separately.

    Raises `InputError`: an argument is unusable.
    """
    named: dict[str, float] = {}
    for level in LEVELS:
        rate = rate_at_fpr(scores, members, fpr=level, confidence=confidence)
        named |= {
            f"tpr_at_fpr_{level:g}": rate.tpr.estimate,
            f"tpr_lower_at_fpr_{level:g}": rate.tpr.lower,
            f"tpr_upper_at_fpr_{level:g}": rate.tpr.upper,
            f"hits_at_fpr_{level:g}": float(rate.hits),
            f"alarms_at_fpr_{level:g}": float(rate.alarms),
            "trials_in": float(rate.members),
            "trials_out": float(rate.nonmembers),
        }
    if named["trials_in"] == named["trials_out"]:
        success = success_of_sign(scores, members, confidence=confidence)
        ends = {"success_lower": success.lower, "success_upper": success.upper}
        named |= {"success": success.estimate, **ends}
    return named
