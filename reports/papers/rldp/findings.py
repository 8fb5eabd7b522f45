"""RLDP's conclusions, held to a study's results by stated tests over seeds.

What conditions say together is told in `_paper_findings`. A conclusion that is said of most settings is
replicated where enough of them are shown together, and not replicated where too many are shown not to hold
together (partial conjunctions: Benjamini and Heller 2008). What each kind of conclusion claims stands in
`data/published/rldp.toml`.
"""

from __future__ import annotations

from functools import partial

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.ferret.findings import decided
from workbench.reports.papers.rldp.cells import Context
from workbench.reports.papers.rldp.paper_claims import contradictions
from workbench.reports.papers.rldp.questions import ASKED, MARGIN_AUC, SLACK_PERCENT
from workbench.reports.papers.shuffled_dp_sgd.findings import mostly
from workbench.reports.shared.paper_findings import Decide, finding
from workbench.reports.shared.paper_samples import UNIT
from workbench.studies.report import ReplicationFinding

NOTHING = "this profile has no such runs"


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
        if claim.test == "mostly lowest":
            decide = partial(mostly, float(claim.parameters["share"]))
        found.append(
            finding(
                claim,
                ASKED[claim.test](context, claim),
                confidence=context.confidence,
                test=partial(_words, context, claim),
                against=contradictions(paper, claim),
                nothing=NOTHING,
                decide=decide,
            )
        )
    return found


def _words(context: Context, claim: QualitativeClaim, count: int) -> str:
    """The test of a conclusion in words."""
    known = claim.parameters
    numbers = {
        name: f"{float(known.get(name, 0.0)):g}"
        for name in ("percent", "low", "high", "level", "share", "below", "most", "of")
    }
    return WORDS[claim.test].format(
        unit=UNIT,
        at=context.level,
        count=count,
        slack=f"{SLACK_PERCENT:g}",
        margin=f"{MARGIN_AUC:g}",
        rest=_REST.format(at=context.level, count=count),
        **numbers,
    )


_REST = (
    "Replicated where each of the {count} conditions is shown at level {at}; not replicated where one is "
    "shown "
    "not to hold (Holm over the {count}) and not shown to hold. Our models and records stand in for the "
    "paper's."
)
_BEST = "The best baseline is that of each {unit}, the lowest of all, chosen on the data: a harder bar. "
_MEAN = "RLDP is the mean of its two forms. "
WORDS = {
    "lower": (
        "One-sided paired t tests over {unit}s of the logarithms of perplexities, against each baseline (so "
        "that "
        "the best need not be chosen); shown not to hold where it is shown not to be lower by even {slack} "
        "%. " + _MEAN + "{rest}"
    ),
    "mean gain": (
        "A one-sided t test over {unit}s that the drop, averaged over all settings, is above 0; shown not to "
        "hold "
        "where it is shown to be below {slack} %. " + _BEST + _MEAN + "{rest}"
    ),
    "gain in range": (
        "Two one-sided t tests over {unit}s, for each setting, that the drop is between {low} and {high} %. "
        + _BEST
        + _MEAN
        + "{rest}"
    ),
    "gain larger": (
        "One-sided paired t tests over {unit}s, for each model; shown not to hold where the difference is "
        "shown "
        "to be below {slack} points. " + _BEST + _MEAN + "{rest}"
    ),
    "steps at most": (
        "One-sided t tests over {unit}s that the share of the steps is below {percent} %; a run that never "
        "matches counts as 100 %, which is at least its share. Where all {unit}s give one number, a sign "
        "test. " + _BEST + _MEAN + "{rest}"
    ),
    "mean steps at most": (
        "A one-sided t test over {unit}s that the share of the steps, averaged over all settings, is below "
        "{percent} %; a run that never matches counts as 100 %. " + _BEST + _MEAN + "{rest}"
    ),
    "varies less": (
        "The test of Pitman and Morgan, one-sided, of the variances of paired samples; half the deviation is "
        "not "
        "asked for. {rest}"
    ),
    "area at most": (
        "One-sided paired t tests over {unit}s, against each baseline, that RLDP's AUC is less than {margin} "
        "above "
        "(or shown to be above). {rest}"
    ),
    "area nearer": (
        "One-sided paired t tests over {unit}s, against each baseline, that RLDP's AUC is nearer to 1/2 (or "
        "shown "
        "to be further). {rest}"
    ),
    "mostly lowest": (
        "For each setting the largest p-value of one-sided paired t tests over {unit}s against every "
        "baseline; "
        "replicated where partial conjunction tests show at level {at} that at least the share {share} of "
        "the "
        "settings holds, not replicated where they show that more than the rest does not."
    ),
    "similarity below": "One-sided t tests over {unit}s that the similarity is below {level} (or above). "
    "{rest}",
    "at most the largest": (
        "For each setting one-sided paired t tests over {unit}s: shown where RLDP is shown to be below one "
        "of "
        "the baselines (Bonferroni), shown not to hold where it is shown to be above each. {rest}"
    ),
    "alike": (
        "Equivalence: two one-sided paired t tests over {unit}s that the shares of valid continuations "
        "differ by "
        "less than {percent} points. {rest}"
    ),
    "noise rises": (
        "Two one-sided t tests over {unit}s that the largest sigma of the first {percent} % of the steps is "
        "above the first, by less than {most}. Where all {unit}s give one number, a sign test. Not tested "
        "where no decision is made in these steps. {rest}"
    ),
    "noise falls": (
        "Two one-sided t tests over {unit}s that the last sigma is {low} to {high} % below the largest. Not "
        "tested where so few decisions (Eqs. 11 to 14) could not lower it by {low} %. {rest}"
    ),
    "radii widen": (
        "Two one-sided t tests over {unit}s that the mean radius after the first {percent} % of the steps is "
        "{low} to {high} times the first. Not tested where no decision is made in these steps. {rest}"
    ),
    "ledger": (
        "Each run's own ledger after its last step is seen to be at most its budget, and at most {below} "
        "below. "
        "There is no test. The ledger is no bound: what the noise was worth stands beside it."
    ),
    "every configuration": (
        "One-sided paired t tests over {unit}s of the logarithms of perplexities, each configuration against "
        "each "
        "baseline of its model and budget; shown not to hold where it is shown not to be lower by even "
        "{slack} "
        "%. {rest}"
    ),
    "short interval": (
        "One-sided paired t tests over {unit}s of the logarithms of perplexities, each interval of at most "
        "{most} "
        "/ {of} of the longest against the longest; shown not to hold where it is shown not to be higher by "
        "even "
        "{slack} %. {rest}"
    ),
    "not measured": "A time of the paper's card, and an energy: neither is measured.",
}
"""The test of each kind of conclusion in words."""
