"""The transcript game of a FERRET study, judged in both currencies: the claimed nats, and the same number as
(epsilon, delta)-DP.

A trial is one training, so trials are independent and are the unit of replication here. The verdicts of one
currency are a family: the error of a false refutation is held over all its cells together (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.accounting import ApproximateDP, MutualInformation, NoGuarantee
from workbench.accounting.guarantees import guarantee_from_json
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.estimation.judge import judge
from workbench.estimation.low_fpr import LEVELS, RateAtFpr, rate_at_fpr
from workbench.games.transcript import beyond_transcript
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Guarantee,
    Released,
    Secret,
    Trials,
    VerdictKind,
)
from workbench.reports.papers.ferret.layout import CANARIES, GRANULARITIES
from workbench.reports.shared.beside import has_curve
from workbench.studies.experiments import Experiment, Outcome, Status

DELTA = 1e-5
"""At which the claimed number is read as (epsilon, delta)-DP where no experiment of the study has a delta."""

DEFAULTS = {"canary": "opposed", "others": "corpus", "knowledge": "batches"}
"""Parameters of the game, as the attack has them where the study names none."""

KNOWS_NO_BATCH = "records"
"""The knowledge of an adversary who has the other records alone."""

FURTHER = {KNOWS_NO_BATCH: "batches unknown"}
"""Values of the game's parameters in words, where their own name says too little."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A rate with its Clopper-Pearson interval."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, kw_only=True)
class TranscriptCell:
    """One cell of the transcript game, judged.

    Attributes:
        variant, epsilon, canary, others, knowledge: Where.
        claim: What the authors claim, nats.
        reading: The same number read as (epsilon, delta)-DP.
        trials: Number of independent trainings.
        success: Share of right guesses by the sign of the log-likelihood ratio, at prior 1/2.
        fpr, tpr: Rates of the same rule.
        at: True-positive rate at each rate of `LEVELS`.
        verdict: In the claim's own currency; None until judged.
        dp_verdict: Of the reading; None until judged.
    """

    variant: str
    epsilon: float
    canary: str
    others: str
    knowledge: str
    claim: MutualInformation
    reading: ApproximateDP
    trials: int
    success: Rate
    fpr: Rate
    tpr: Rate
    at: tuple[RateAtFpr, ...]
    evidence: Evidence
    verdict: VerdictKind | None = None
    dp_verdict: VerdictKind | None = None

    @property
    def game_words(self) -> str:
        """The record, and its game where that is another than usual: `"opposed, copies"`."""
        return game_words({"canary": self.canary, "others": self.others, "knowledge": self.knowledge})

    @property
    def record(self) -> str:
        """The record and its adversary: `"average record"`, `"average record, batches unknown"`."""
        further = "" if self.knowledge == DEFAULTS["knowledge"] else f", {_in_words(self.knowledge)}"
        return f"{self.canary} record{further}"

    def max_tpr(self, fpr: float) -> float:
        """What the reading allows at a false-positive rate."""
        return float(self.reading.max_tpr(np.array([fpr]))[0])


def game_words(parameters: Mapping[str, str]) -> str:
    """A game by its record, and by what is not as usual: `"opposed, copies"`, `"average, batches unknown"`.

    Args:
        parameters: All of `DEFAULTS`.
    """
    names = ("others", "knowledge")
    further = [_in_words(parameters[name]) for name in names if parameters[name] != DEFAULTS[name]]
    return ", ".join([parameters["canary"], *further])


def _in_words(value: str) -> str:
    return FURTHER.get(value, value)


def transcript_cells(
    outcomes: Sequence[Outcome], *, delta: float | None, confidence: float
) -> list[TranscriptCell]:
    """The finished cells of the transcript group, judged in both currencies, finest grouping first.

    Args:
        outcomes: Of the group; those without scores of both classes are left out.
        delta: At which the number is read as DP; None for `DELTA`.
        confidence: Of every interval by itself, and of each currency's verdicts together.
    """
    cells = [
        _cell(one, DELTA if delta is None else delta, confidence)
        for one in outcomes
        if has_curve(one) and one.experiment.epsilon is not None
    ]
    cells.sort(key=_order)
    own = [_claim_of(cell, cell.claim) for cell in cells]
    read = [_claim_of(cell, cell.reading) for cell in cells]
    verdicts = family_verdicts(own, [cell.evidence for cell in cells], confidence)
    readings = family_verdicts(read, [cell.evidence for cell in cells], confidence)
    return [
        replace(cell, verdict=verdict, dp_verdict=reading)
        for cell, verdict, reading in zip(cells, verdicts, readings, strict=True)
    ]


def family_verdicts(
    claims: Sequence[Claim], evidence: Sequence[Evidence], confidence: float
) -> list[VerdictKind]:
    """Verdicts of a family: any true claim among them is refuted with a chance of 1 - confidence at most.

    Each is judged at an equal share of the error (Bonferroni). A step-down method would need a judge that
    refutes no less at a larger share; its choice of a threshold hangs on the share. Games whose adversary
    knows more than a claim grants refute nothing, and take no part in the error.

    Args:
        claims, evidence: Of equal length.
        confidence: Of the family.
    """
    share = (1.0 - confidence) / max(1, sum(not one.game.beyond for one in evidence))
    return [
        judge(claim, one, confidence=1.0 - share, generator=np.random.default_rng(index)).kind
        for index, (claim, one) in enumerate(zip(claims, evidence, strict=True))
    ]


def _order(cell: TranscriptCell) -> tuple[int, str, float, int, str, str]:
    known = GRANULARITIES.index(cell.variant) if cell.variant in GRANULARITIES else len(GRANULARITIES)
    canary = CANARIES.index(cell.canary) if cell.canary in CANARIES else len(CANARIES)
    return known, cell.variant, cell.epsilon, canary, cell.others, cell.knowledge


def _cell(one: Outcome, delta: float, confidence: float) -> TranscriptCell:
    experiment = one.experiment
    scores = np.array(one.scores, dtype=np.float64)
    members = np.array(one.included, dtype=bool)
    parameters = _parameters(experiment)
    epsilon = float(experiment.epsilon or 0.0)
    claimed = _claimed(one, epsilon)
    game = GameTerms(
        description=(
            "half of the independent trainings hold the canary record, in random order; the adversary sees "
            f"mask, directions and signs of all {experiment.steps} steps"
        ),
        trials=Trials.INDEPENDENT,
        prior=0.5,
        released=Released.EVERY_UPDATE,
        adjacency=Adjacency.ADD_REMOVE,
        beyond=_beyond(experiment, parameters),
    )
    return TranscriptCell(
        variant=experiment.variant,
        epsilon=epsilon,
        canary=parameters["canary"],
        others=parameters["others"],
        knowledge=parameters["knowledge"],
        claim=claimed,
        reading=ApproximateDP(epsilon=claimed.nats, delta=delta),
        trials=scores.size,
        success=_rate((scores > 0.0) == members, confidence),
        fpr=_rate((scores > 0.0)[~members], confidence),
        tpr=_rate((scores > 0.0)[members], confidence),
        at=tuple(rate_at_fpr(scores, members, fpr=level, confidence=confidence) for level in LEVELS),
        evidence=Evidence(scores=scores, members=members, game=game, attack=experiment.attack),
    )


def _parameters(experiment: Experiment) -> dict[str, str]:
    return {**DEFAULTS, **{str(name): str(value) for name, value in experiment.attack_parameters.items()}}


def _beyond(experiment: Experiment, parameters: Mapping[str, str]) -> str:
    """What the adversary knows beyond the transcript; where zeros toss coins, which batches are empty too."""
    tosses = experiment.mechanism_parameters.get("zero_gradient") == "coin"
    others = "corpus" if tosses else parameters["others"]
    return beyond_transcript(parameters["canary"], others, parameters["knowledge"])


def _claimed(one: Outcome, epsilon: float) -> MutualInformation:
    """The nats that the record's claim states, a capped one's being the ceiling; else the budget's number."""
    form = None if one.claim is None else one.claim.get("guarantee")
    found: Guarantee = guarantee_from_json(form) if form and "currency" in form else NoGuarantee()
    if isinstance(found, MutualInformation):
        return found
    return MutualInformation(nats=epsilon, secret=Secret.RECORD)


def _rate(hits: BoolArray | FloatArray, confidence: float) -> Rate:
    count, n, error = int(np.sum(hits)), int(hits.size), (1.0 - confidence) / 2.0
    return Rate(
        estimate=count / n, lower=binomial_lower(count, n, error), upper=binomial_upper(count, n, error)
    )


def _claim_of(cell: TranscriptCell, guarantee: MutualInformation | ApproximateDP) -> Claim:
    about = Secret.RECORD if isinstance(guarantee, MutualInformation) else Adjacency.ADD_REMOVE
    return Claim(
        guarantee=guarantee,
        about=about,
        released=Released.EVERY_UPDATE,
        source="FERRET, Theorem 1" if about is Secret.RECORD else "a reading, not the authors' claim",
    )


def unfinished(outcomes: Sequence[Outcome]) -> list[str]:
    """Settings of the transcript group without scores, each with its reason."""
    found = []
    for one in outcomes:
        if has_curve(one):
            continue
        game = game_words(_parameters(one.experiment))
        epsilon = math.nan if one.experiment.epsilon is None else one.experiment.epsilon
        why = f"failed: {one.error}" if one.status is Status.FAILED else "not run yet"
        if one.status is Status.DONE:
            why = "no scores of both classes"
        found.append(f"{one.experiment.variant}, epsilon {epsilon:g}, {game}: {why}")
    return found
