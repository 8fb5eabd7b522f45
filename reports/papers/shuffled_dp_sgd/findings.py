"""Shuffled DPSGD's conclusions, held to a study's results by stated tests over seeds.

What conditions say together is told in `_paper_findings`. Where a conclusion is said to hold almost always,
it is replicated where enough of its conditions are shown together, and not replicated where too many are
shown not to hold together (partial conjunctions: Benjamini and Heller 2008). What each kind of conclusion
claims stands in `data/published/shuffled_dp_sgd.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.ferret.conditions import Condition
from workbench.reports.papers.ferret.findings import decided
from workbench.reports.papers.shuffled_dp_sgd.cells import Context
from workbench.reports.papers.shuffled_dp_sgd.formulas import ALIKE, CLOSE
from workbench.reports.papers.shuffled_dp_sgd.layout import VISION_CHANCE
from workbench.reports.papers.shuffled_dp_sgd.paper_claims import contradictions
from workbench.reports.papers.shuffled_dp_sgd.questions import ASKED
from workbench.reports.shared.paper_conditions import SLACK
from workbench.reports.shared.paper_findings import Decide, finding
from workbench.reports.shared.paper_samples import UNIT
from workbench.studies.report import Replication, ReplicationFinding

NOTHING = "the paper names no setting"


def findings(context: Context, paper: PublishedPaper) -> list[ReplicationFinding]:
    """What our results say of each of the paper's conclusions, in its order.

    Args:
        context: Of the report.
        paper: The conclusions and the printed numbers.

    Raises:
        InputError: a conclusion names an unknown test, or lacks a parameter.
    """
    found = []
    for claim in paper.claims:
        if claim.test not in ASKED:
            raise unknown_name(f"test of claim {claim.id!r}:", claim.test, ASKED)
        decide: Decide = decided
        if claim.test == "mostly higher":
            decide = partial(mostly, float(claim.parameters["share"]))
        found.append(
            finding(
                claim,
                ASKED[claim.test](context, paper, claim),
                confidence=context.confidence,
                test=partial(_words, context, claim),
                against=contradictions(paper, claim),
                nothing=NOTHING,
                decide=decide,
            )
        )
    return found


def mostly(share: float, conditions: Sequence[Condition], confidence: float) -> tuple[Replication, str]:
    """Whether at least a share of the conditions hold, by partial conjunction tests."""
    level, total = 1.0 - confidence, len(conditions)
    needed = max(1, math.ceil(share * total - 1e-9))
    excess = total - needed + 1
    holding = sorted(one.hold_p for one in conditions)
    broken = sorted(one.break_p for one in conditions)
    shown = f"{sum(p <= level for p in holding)} of {total} comparisons are shown by themselves"
    if excess * holding[needed - 1] <= level:
        return Replication.REPLICATED, f"at least {needed} of {total} are shown to hold together; {shown}"
    if needed * broken[excess - 1] <= level:
        return (
            Replication.NOT_REPLICATED,
            f"at least {excess} of {total} are shown together not to hold; {shown}",
        )
    return Replication.NOT_TESTABLE, f"{needed} of {total} would have to hold; {shown}"


def _words(context: Context, claim: QualitativeClaim, count: int) -> str:
    """The test of a conclusion in words."""
    parameters = claim.parameters
    margin = parameters.get("margin", parameters.get("span", parameters.get("percent", 0.0)))
    kind = claim.test
    if kind == "figure":
        over_draws = parameters["metric"] == "cdf_error"
        kind = "figure, drawn" if over_draws else "figure"
    return WORDS[kind].format(
        unit=UNIT,
        margin=f"{float(margin):g}",
        points=f"{float(margin):g} point{'' if margin == 1 else 's'}",
        share=f"{float(parameters.get('share', 0.0)):g}",
        slack=f"{SLACK:g}",
        chance=f"{VISION_CHANCE:g}",
        alike=f"{ALIKE:g}",
        close=f"{CLOSE:g}",
        level=context.level,
        count=count,
        rest=_REST.format(level=context.level, count=count),
    )


_REST = (
    "Replicated where each of the {count} conditions is shown at level {level}; not replicated where one is "
    "shown not to hold (Holm over the {count}) and not shown to hold. Our models and records stand in for "
    "the paper's."
)
_BOTH = "MixOpt is Ghost's mechanism, and one comparison stands for both. "
_CLAIMED = "At one claimed epsilon, which is Theorem 6's for Shuffled DPSGD. "
_SEEN = (
    "Replicated where each of the {count} conditions is seen to hold, not replicated where one is seen not "
    "to: there is no test. Our models and records stand in for the paper's."
)
WORDS = {
    "equal": (
        "The largest difference between the shuffled and the unshuffled run of a {unit}, over all {unit}s, "
        "is at most half a unit of the paper's last printed digit. " + _SEEN
    ),
    "higher": (
        "One-sided paired t tests over {unit}s that the first is above the second; shown not to hold where a "
        "difference is shown to be below {slack} point (METEOR in points of 100). "
        + _CLAIMED
        + _BOTH
        + "{rest}"
    ),
    "mostly higher": (
        "One-sided paired t tests over {unit}s that the first is above the second, each shown not to hold "
        "where the difference is shown to be below {slack} point. "
        + _CLAIMED
        + _BOTH
        + "Replicated where partial conjunction tests show at level {level} that at least the share {share} "
        "of the comparisons holds, not replicated where they show that more than the rest does not."
    ),
    "at most": (
        "The judge's verdict on all games of three adversaries against an audited run together, at 95 % "
        "confidence: replicated where none of the {count} runs is refuted, not replicated where one is. Each "
        "may be refuted falsely with a probability of 5 %, any of them with at most {count} times that. The "
        "paper's own adversary is the blind one. Replicated says no more than that no lower bound exceeds "
        "its claim: it is no evidence that the claim holds. Our models and records stand in for the paper's."
    ),
    "within": (
        "One-sided paired t tests over {unit}s that the first is less than {points} below the second "
        "(or shown to be more). {rest}"
    ),
    "keeps": (
        "One-sided paired t tests over {unit}s that the first is above {share} times the second (or shown to "
        "be below). {rest}"
    ),
    "above": "An absolute level, which other images with other classes cannot test.",
    "near chance": (
        "Equivalence: two one-sided t tests over {unit}s that the accuracy is between 0 and twice the "
        "{chance} % of guessing one of our ten digits: the paper's margin is as large as its own rate. "
        + _BOTH
        + "{rest}"
    ),
    "flat": (
        "Equivalence: two one-sided paired t tests over {unit}s that any two epsilons differ by less than "
        "{points}. {rest}"
    ),
    "gain falls": (
        "One-sided t tests over {unit}s that the paired gain at an epsilon is above that at the next; shown "
        "not to hold where it is shown to be less than {slack} point above. " + _CLAIMED + _BOTH + "{rest}"
    ),
    "gain largest first": (
        "One-sided t tests over {unit}s that the paired gain at the smallest epsilon is above that at each "
        "other; shown not to hold where it is shown to be less than {slack} point above. "
        + _CLAIMED
        + _BOTH
        + "{rest}"
    ),
    "smaller gap": (
        "One-sided t tests over {unit}s that the smaller model's distance to training without privacy is "
        "above the larger one's; shown not to hold where it is shown to be less than {slack} point above. "
        "{rest}"
    ),
    "share": "A ratio of two times, which no study measures.",
    "overhead": (
        "One-sided t tests over {unit}s that drawing and applying permutations took at most {margin} % of "
        "the steps that they are part of (or shown to be more), on our models, whose steps are far smaller "
        "than the paper's. {rest}"
    ),
    "figure": (
        "Computed from the paper's own formulas by its accountant, without a sample, at batches of the "
        "audit's size and c' = c; almost the same: the largest sigma is at most {alike} times the smallest. "
        + _SEEN
    ),
    "figure, drawn": (
        "Sums are drawn at the paper's number of terms and spread; close: the distribution function is off "
        "by at most {close}, and poor above it, by the bound of Dvoretzky, Kiefer, Wolfowitz and Massart; "
        "low values are those up to the median. Our Schwartz-Yeh adds the first thousand terms one by one, "
        "and doubles from there on. {rest}"
    ),
}
"""The test of each kind of conclusion in words."""
