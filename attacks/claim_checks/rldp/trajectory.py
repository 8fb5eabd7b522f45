"""RLDP's radii by themselves: what the first one tells of a record, in exact probabilities.

Lemma 7.14 takes clip norms and noise for functions of noised gradients. Algorithm 1, lines 15 to 17, sets the
warm-up's radii to medians of the raw norms of the batch. A radius that is one record's own norm can then be
seen where the record is, and nowhere else: an event of probability zero under the other data set, which no
epsilon covers. `rldp-corollary-7.15` shows the same to somebody who sees the updates and not the radii.
"""

from __future__ import annotations

import math

from workbench.attacks.claim_checks.rldp.controller import RECORDS
from workbench.attacks.claim_checks.rldp.ledger import DELTA, SAMPLING
from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, setting, settle, show
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

RADII = ("median", "public")


@register("claim_check", "rldp_first_radius")
@setting(
    "a record is replaced by one like the others, or added and removed; Poisson-sampled batches, q = 16 / "
    "73,271; the adversary knows the other records and sees the clip radii and noise multipliers, but no "
    "update; delta 1e-5; balls, nothing is sampled"
)
@in_balls
def first_radius(*, radii: str = "median", unlike: bool = True) -> Finding:
    """Lemma 7.14: at delta 1e-5, the clip norms and noise of a run are (epsilon, delta)-DP for some epsilon.

    Half of the other records have gradients of a large norm and half of a small one, and the record's lies
    between. Where it is drawn among equally many of both, the batch's size is odd and its norm the median.

    Args:
        radii: `"median"` (Algorithm 1, line 17), or `"public"`: of no record at all.
        unlike: Whether the record's norm differs from the others'.

    Raises:
        InputError: the radii are of another kind.
    """
    if radii not in RADII:
        raise InputError(f"radii must be one of {', '.join(RADII)}, got {radii!r}")
    q, half = ball(SAMPLING), (RECORDS - 1) // 2
    balanced = ball(0)
    for drawn in range(60):  # A lower bound: larger batches are left out.
        single = ball(math.comb(half, drawn)) * q**drawn * (1 - q) ** (half - drawn)
        balanced += single * single
    found = q * balanced if radii == "median" and unlike else ball(0)
    wrong = None
    if found > ball(DELTA):
        wrong = Counterexample(
            sentence=(
                f"the first radius is the record's own norm with probability {show(found)} where the record "
                f"is, and never where it is not: delta is at least {show(found)} at every epsilon"
            ),
            values={
                "sampling_probability": str(SAMPLING),
                "records": RECORDS,
                "true_positive": show(found),
                "false_positive": "0",
                "delta_claimed": DELTA,
            },
        )
    return settle(
        proof="such radii do not depend on the records" if radii == "public" else None,
        counterexample=wrong,
        evidence=(
            f"the record is drawn with probability q, and equally many of both halves with {show(balanced)}",
            "one radius after one step, for one adapter pair; later medians and the others' radii add to it",
            "so Lemma 7.14 does not speak of Algorithm 1, whose radii are no functions of noised gradients",
        ),
    )
