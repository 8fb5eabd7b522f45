"""Judges a claim by scores that somebody supplies."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from scipy.stats import binom, binomtest

from workbench.audit.claims import require_gaussian_curve
from workbench.audit.run import report_record
from workbench.core.errors import ArgumentError, InputError
from workbench.core.keys import JSON
from workbench.core.streams import stream
from workbench.estimation import check_game
from workbench.estimation.deciding import unknown_prior_range
from workbench.estimation.judge import judged_subject
from workbench.interfaces import Adjacency, BoolArray, Claim, Evidence, Family, FloatArray, GameTerms, Trials

UNEVEN_SIGNIFICANCE = 0.01
"""Labels less even than fair coins would give this rarely are taken to come from coins of another kind."""

FEWEST_ASKED = 1000
"""With fewer labels coins often give exactly one half of them: of 1,000 in 2.5 % of all cases."""

_LABELS = {
    Adjacency.ADD_REMOVE: "whether a record was in or out",
    Adjacency.REPLACE_ONE: "which of two records was in",
    Adjacency.ZERO_OUT: "whether a record or a null one was in",
}


def _require_coins(members: BoolArray) -> None:
    """Ask about labels of which exactly one half are members: a split makes them so, and coins seldom."""
    count = int(members.size)
    if count < FEWEST_ASKED or 2 * int(np.sum(members)) != count:
        return
    share = binom.pmf(count // 2, count, 0.5)
    raise ArgumentError(
        "prior",
        f"must be stated: exactly half of the {count} labels are members, as a split makes them and coins "
        f"seldom do ({100 * share:.2g} %). If a fair coin drew each label, it is 0.5; a split into halves is "
        "no draw by coins, and bounds for one run do not hold for it",
    )


def audit_scores(
    *,
    scores: FloatArray,
    members: BoolArray,
    claim: Claim,
    trials: Trials,
    prior: float | None,
    adjacency: Adjacency | None,
    confidence: float,
    seed: int,
    command: str,
    source: str,
    blind_texts: tuple[str, ...] = (),
    sequential: bool = False,
    family: Family = Family.ANY,
) -> dict[str, JSON]:
    """Judge a claim by scores that somebody supplies; returns the report record.

    Args:
        scores, members: Shape `(n,)`; the scores finite, higher = member.
        trials: How the scores depend on each other, as the user says.
        prior: Probability of the coin that chose the labels. None: one half, or, where the labels are not
            even enough for that, an unknown one, for which the bound then pays. That the labels are looked at
            first is not paid for; measured over priors that pass for one half, the error stays below 5 %.
        adjacency: Which neighbours the two labels stand for, as the user says; None for a claim about a
            secret.
        confidence: One-sided.
        seed: Of sample splits.
        command, source: The command line and the file's name, for the report.
        blind_texts: Text of each record, for the blind classifier; empty for none.
        sequential: Watch the scores in an order that the seed draws, and stop when the claim is refuted;
            their number is part of the plan.
        family: What the supplier declares; a Gaussian one is tested for, and decides within its share.

    Raises `InputError`: unusable input. `UnsupportedError`: these trials cannot judge the claim's currency,
    or are of another adjacency.
    """
    started = datetime.now(UTC)
    check_game(scores, members)
    even = prior is None and binomtest(int(np.sum(members)), members.size).pvalue >= UNEVEN_SIGNIFICANCE
    unknown = prior is None and not even
    if prior is None and trials is Trials.ONE_RUN and adjacency is not None:
        _require_coins(members)
    share = float(np.mean(members))
    if family is Family.GAUSSIAN:
        require_gaussian_curve(claim)
    if sequential and family is not Family.ANY:
        raise InputError(f"sequential and family {family} exclude each other: bets assume no family")
    if sequential and unknown and trials is Trials.ONE_RUN:
        raise InputError(
            f"prior must be stated with sequential, as {100 * share:.3g} % of the labels are members"
        )
    if sequential:  # In a sorted file the next score could be foreseen.
        order = stream(seed, "order").permutation(members.size)
        scores, members = scores[order], members[order]
        blind_texts = tuple(blind_texts[place] for place in order) if blind_texts else ()
    chosen = share if unknown else 0.5 if prior is None else prior
    coins = (
        f"coins of an unknown probability near {share:.3g}" if unknown else f"coins of probability {chosen:g}"
    )
    fixed = trials is Trials.INDEPENDENT and prior is None
    game = GameTerms(
        description=f"as the supplier of {source} says: labels "
        + ("known, each score of a release of its own" if fixed else f"drawn by {coins}")
        + ("" if adjacency is None else f"; a label says {_LABELS[adjacency]} ({adjacency})")
        + ("; scores watched in an order that the seed draws" if sequential else "")
        + (f"; family declared: {family}" if family is not Family.ANY else ""),
        trials=trials,
        prior=chosen,
        prior_range=unknown_prior_range(members) if unknown else None,
        adjacency=adjacency,
        released=claim.released,
        sequential=sequential,
        family=family,
    )
    evidence = Evidence(
        scores=scores,
        members=members,
        game=game,
        attack="scores",
        blind_texts=blind_texts,
        seeds={"audit": seed},
    )
    subject = judged_subject(source, "scores", claim, [evidence], confidence=confidence, seed=seed)
    return report_record(claim, [subject], seed=seed, command=command, started=started)
