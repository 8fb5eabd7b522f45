"""FERRET's transcript game, judged in both currencies: the claimed nats, and the same number read as
(epsilon, delta)-DP; and beside them the attacks on ordinary members that the paper measured.

A trial is one training, so trials are independent and are the unit of replication here. The verdicts of one
currency are a family: the error of a false refutation is held over all its cells together (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    GameTerms,
    Guarantee,
    Interval,
    Released,
    Secret,
    Trials,
    VerdictKind,
)
from workbench.reports.papers.ferret.places import (
    AUC,
    COMPARISON,
    DPSGD,
    GRANULARITIES,
    HEAD_ROOM,
    LIRA,
    at,
    epochs_of,
    plain,
    sample,
    transcripts,
)
from workbench.reports.shared.context import Context
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.numbers import percent
from workbench.reports.shared.paper_cells import has_curve
from workbench.studies.experiments import Experiment, Outcome, Status
from workbench.studies.report import Cell, Table, Value

CANARIES = ("opposed", "outlier", "average")
"""Records of the game, from the worst case to an average one."""

DELTA = 1e-5
"""At which the claimed number is read as (epsilon, delta)-DP where no experiment of the study has a delta."""

DEFAULTS = {"canary": "opposed", "others": "corpus", "knowledge": "batches"}
"""Parameters of the game, as the attack has them where the study names none."""

KNOWS_NO_BATCH = "records"
"""The knowledge of an adversary who has the other records alone."""

FURTHER = {KNOWS_NO_BATCH: "batches unknown"}
"""Values of the game's parameters in words, where their own name says too little."""

VERDICTS = {
    VerdictKind.REFUTED: "refuted",
    VerdictKind.INVALID: "invalid",
    VerdictKind.NOT_REFUTED: "not refuted",
    VerdictKind.UNDERPOWERED: "underpowered",
    VerdictKind.UNDECIDED: "beyond the claim",
}
"""A verdict as a cell shows it; of several games the first of these stands for all."""

VACUOUS = "untestable"
"""A claim of ln 2 nats or more allows every guess about one record to be right."""


@dataclass(frozen=True, kw_only=True)
class TranscriptCell:
    """One cell of the transcript game, judged.

    Attributes:
        variant, epsilon, canary, others, knowledge: Where.
        claim: What the authors claim, nats.
        reading: The same number read as (epsilon, delta)-DP.
        success: Share of right guesses by the sign of the log-likelihood ratio, at prior 1/2.
        fpr, tpr: Rates of the same rule.
        at: True-positive rate at each rate of `LEVELS`.
        evidence: Scores and game.
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
    success: Interval
    fpr: Interval
    tpr: Interval
    at: tuple[RateAtFpr, ...]
    evidence: Evidence
    verdict: VerdictKind | None = None
    dp_verdict: VerdictKind | None = None

    @property
    def trials(self) -> int:
        """Number of independent trainings."""
        return int(self.evidence.scores.size)

    @property
    def game_words(self) -> str:
        """The record, and its game where that is another than usual: `"opposed, copies"`."""
        return game_words({"canary": self.canary, "others": self.others, "knowledge": self.knowledge})

    @property
    def record(self) -> str:
        """The record and its adversary: `"average record"`, `"average record, batches unknown"`."""
        usual = self.knowledge == DEFAULTS["knowledge"]
        return f"{self.canary} record" + ("" if usual else f", {FURTHER.get(self.knowledge, self.knowledge)}")

    def max_tpr(self, fpr: float) -> float:
        """The largest true-positive rate that the reading allows at a false-positive rate."""
        return float(self.reading.max_tpr(np.array([fpr]))[0])


def game_words(parameters: Mapping[str, str]) -> str:
    """A game by its record, and by what is not as usual: `"opposed, copies"`, `"average, batches unknown"`.

    Args:
        parameters: All of `DEFAULTS`.
    """
    values = (parameters[name] for name in ("others", "knowledge") if parameters[name] != DEFAULTS[name])
    return ", ".join([parameters["canary"], *(FURTHER.get(value, value) for value in values)])


def judged_cells(context: Context) -> list[TranscriptCell]:
    """The finished cells of the game, judged in both currencies, finest grouping first.

    The reading's delta is that of the study's DP-SGD where it has one.
    """
    return context.once("transcript cells", lambda: _judged(context))


def _judged(context: Context) -> list[TranscriptCell]:
    runs = [run.experiment for run in context.outcomes.part(COMPARISON)]
    deltas = [run.delta for run in runs if run.variant == DPSGD and run.delta is not None]
    cells = [
        _cell(run, max(deltas, default=DELTA), context.confidence)
        for run in transcripts(context)
        if has_curve(run) and run.experiment.epsilon is not None
    ]
    cells.sort(key=_order)
    evidence = [cell.evidence for cell in cells]
    verdicts, readings = (
        family_verdicts([_claim_of(guarantee) for guarantee in guarantees], evidence, context.confidence)
        for guarantees in ([cell.claim for cell in cells], [cell.reading for cell in cells])
    )
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
    """
    share = (1.0 - confidence) / max(1, sum(not item.game.beyond for item in evidence))
    return [
        judge(claim, item, confidence=1.0 - share, generator=np.random.default_rng(index)).kind
        for index, (claim, item) in enumerate(zip(claims, evidence, strict=True))
    ]


def _order(cell: TranscriptCell) -> tuple[int, str, float, int, str, str]:
    known = GRANULARITIES.index(cell.variant) if cell.variant in GRANULARITIES else len(GRANULARITIES)
    canary = CANARIES.index(cell.canary) if cell.canary in CANARIES else len(CANARIES)
    return known, cell.variant, cell.epsilon, canary, cell.others, cell.knowledge


def _cell(outcome: Outcome, delta: float, confidence: float) -> TranscriptCell:
    experiment, parameters = outcome.experiment, _parameters(outcome.experiment)
    scores, members = np.array(outcome.scores, dtype=np.float64), np.array(outcome.included, dtype=bool)
    claimed, guesses = _claimed(outcome), scores > 0.0
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
        epsilon=float(experiment.epsilon or 0.0),
        canary=parameters["canary"],
        others=parameters["others"],
        knowledge=parameters["knowledge"],
        claim=claimed,
        reading=ApproximateDP(epsilon=claimed.nats, delta=delta),
        success=_share("success", guesses == members, confidence),
        fpr=_share("FPR", guesses[~members], confidence),
        tpr=_share("TPR", guesses[members], confidence),
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


def _claimed(outcome: Outcome) -> MutualInformation:
    """The nats that the record's claim states, a capped one's being the ceiling; else the budget's number."""
    form = None if outcome.claim is None else outcome.claim.get("guarantee")
    guarantee: Guarantee = guarantee_from_json(form) if form and "currency" in form else NoGuarantee()
    if isinstance(guarantee, MutualInformation):
        return guarantee
    return MutualInformation(nats=float(outcome.experiment.epsilon or 0.0), secret=Secret.RECORD)


def _share(name: str, hits: BoolArray, confidence: float) -> Interval:
    """A share with its Clopper-Pearson interval."""
    count, n, error = int(np.sum(hits)), int(hits.size), (1.0 - confidence) / 2.0
    return Interval(
        name=name,
        estimate=count / n,
        lower=binomial_lower(count, n, error),
        upper=binomial_upper(count, n, error),
        confidence=confidence,
        assumption="independent trials",
    )


def _claim_of(guarantee: MutualInformation | ApproximateDP) -> Claim:
    about = Secret.RECORD if isinstance(guarantee, MutualInformation) else Adjacency.ADD_REMOVE
    return Claim(
        guarantee=guarantee,
        about=about,
        released=Released.EVERY_UPDATE,
        source="FERRET, Theorem 1" if about is Secret.RECORD else "a reading, not the authors' claim",
    )


# Tables


def transcript_table(context: Context) -> Table | None:
    """Every cell of the game: rates, success, what the claim and its DP reading allow, verdicts."""
    rows: list[Row] = []
    for cell in judged_cells(context):
        values = (
            *(_rate(point.tpr, point.members) for point in cell.at),
            _rate(cell.success, cell.trials),
            Value(estimate=cell.claim.max_success(0.5)),
            _verdict([cell], is_claim=True),
            Value(estimate=cell.max_tpr(LEVELS[-1])),
            _verdict([cell], is_claim=False),
        )
        rows.append(
            (
                (cell.variant, f"{cell.epsilon:g}", cell.game_words),
                tuple(Cell(ours=value) for value in values),
            )
        )
    columns = (
        *(f"TPR at FPR {percent(level)}" for level in LEVELS),
        "success",
        "allowed by the claim",
        "verdict, nats",
        f"allowed by DP at FPR {percent(LEVELS[-1])}",
        "verdict, DP reading",
    )
    if not transcripts(context):
        return None
    return table(context, "transcript", rows, may_be_empty=True, columns=columns)


def three_views(context: Context) -> Table | None:
    """A row for each grouping and epsilon: the worst record of the game beside the paper's attacks."""
    if not transcripts(context):
        return None
    cells = judged_cells(context)
    rows: list[Row] = []
    for variant, epsilon in dict.fromkeys((cell.variant, cell.epsilon) for cell in cells):
        here = [cell for cell in cells if (cell.variant, cell.epsilon) == (variant, epsilon)]
        rows.append(((variant, f"{epsilon:g}"), _views(context, here)))
    return table(context, "three-views", rows, may_be_empty=True)


def _views(context: Context, here: Sequence[TranscriptCell]) -> tuple[Cell, ...]:
    able = [cell for cell in here if not cell.evidence.game.beyond] or here
    worst = max(able, key=lambda cell: cell.success.estimate)
    average = [cell for cell in here if cell.canary == "average"]
    return (
        Cell(ours=_rate(worst.success, worst.trials)),
        Cell(ours=Value(estimate=worst.claim.max_success(0.5))),
        Cell(ours=_verdict(able, is_claim=True)),
        Cell(ours=_rate(worst.at[0].tpr, worst.at[0].members)),
        Cell(ours=Value(estimate=worst.max_tpr(0.0), text=f"{worst.max_tpr(0.0):.2g}")),
        Cell(ours=_verdict(able, is_claim=False)),
        _auc(context, worst, (COMPARISON, HEAD_ROOM)),
        _auc(context, worst, (LIRA,)),
        *(_average(average, knows_batches=knows) for knows in (True, False)),
    )


def _average(cells: Sequence[TranscriptCell], *, knows_batches: bool) -> Cell:
    """Success against the average record, by an adversary who knows the batches or not."""
    known_cell = next((cell for cell in cells if (cell.knowledge != KNOWS_NO_BATCH) == knows_batches), None)
    return (
        Cell(why_blank="this game was not played")
        if known_cell is None
        else Cell(ours=_rate(known_cell.success, known_cell.trials))
    )


def _auc(context: Context, cell: TranscriptCell, parts: Sequence[str]) -> Cell:
    """AUC of the same grouping and epsilon over the base models, of the longest training of a part."""
    for part in parts:
        for epochs in epochs_of(context, part)[-1:]:
            area = sample(context, at(cell.variant, epochs, cell.epsilon), AUC, part=part)
            if area is not None:
                return Cell(ours=plain(context.mean(area)))
    return Cell(why_blank="no run of the base models with this grouping, epsilon and attack is finished")


def _verdict(here: Sequence[TranscriptCell], *, is_claim: bool) -> Value:
    """The verdict over the records that were tried, of the claim or of its DP reading."""
    kinds = [cell.verdict if is_claim else cell.dp_verdict for cell in here]
    kind = next((verdict for verdict in VERDICTS if verdict in kinds), None)
    text = "not judged" if kind is None else VERDICTS[kind]
    if is_claim and kind is VerdictKind.UNDERPOWERED:
        first = here[kinds.index(kind)]
        text = VACUOUS if first.claim.max_success(0.5) >= 1.0 else text
    return Value(estimate=math.nan, text=text)


def _rate(interval: Interval, n: int) -> Value:
    return Value(estimate=interval.estimate, lower=interval.lower, upper=interval.upper, n=n)


def game_facts(context: Context) -> dict[str, Any]:
    """Facts about the game for the notes of both tables."""
    cells, games = judged_cells(context), transcripts(context)
    return {
        "delta": cells[0].reading.delta if cells else None,
        "able": sum(not cell.evidence.game.beyond for cell in cells),
        "known": [name for name in GRANULARITIES if any(cell.variant == name for cell in cells)],
        "games": len(games),
        "lost": unfinished(games),
        "last_level": percent(LEVELS[-1]),
    }


def unfinished(outcomes: Sequence[Outcome]) -> list[str]:
    """Games without scores, each with its reason."""
    notes = []
    for run in outcomes:
        if has_curve(run):
            continue
        epsilon = math.nan if run.experiment.epsilon is None else run.experiment.epsilon
        why = f"failed: {run.error}" if run.status is Status.FAILED else "not run yet"
        why = "no scores of both classes" if run.status is Status.DONE else why
        game = game_words(_parameters(run.experiment))
        notes.append(f"{run.experiment.variant}, epsilon {epsilon:g}, {game}: {why}")
    return notes
