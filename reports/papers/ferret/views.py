"""FERRET's claim from three sides: its transcript in the claimed nats, in (epsilon, delta)-DP of the same
number, and the attacks on ordinary members that the paper measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.accounting import ApproximateDP
from workbench.estimation.low_fpr import LEVELS, RateAtFpr
from workbench.interfaces import Interval, VerdictKind
from workbench.reports.papers.ferret.cells import Context, column, draw_notes, has_budget, no_such_budget
from workbench.reports.papers.ferret.layout import (
    AUC,
    COMPARISON,
    DPSGD,
    GRANULARITIES,
    HEAD_ROOM,
    LIRA,
    LOW_FPR,
    TPR_AT_LOW_FPR,
    Setting,
    plural_epochs,
)
from workbench.reports.papers.ferret.samples import UNIT, over_models
from workbench.reports.papers.ferret.transcript import (
    FURTHER,
    KNOWS_NO_BATCH,
    Rate,
    TranscriptCell,
    transcript_cells,
    unfinished,
)
from workbench.reports.shared.numbers import percent
from workbench.studies.report import Cell, Table, Value

WORDS = {
    VerdictKind.REFUTED: "refuted",
    VerdictKind.NOT_REFUTED: "not refuted",
    VerdictKind.UNDERPOWERED: "underpowered",
    VerdictKind.INVALID: "invalid",
    VerdictKind.UNDECIDED: "beyond the claim",
}
"""A verdict as a cell shows it."""

MOST_LOST = 4
"""Games without scores that a note names."""

VACUOUS = "untestable"
"""A claim of ln 2 nats or more allows every guess about one record to be right."""

RULE = (
    "Success, and the points of the picture: the guess is “member” where the log-likelihood ratio is above "
    "0, a threshold fixed beforehand and the best one at prior 1/2, so that Clopper-Pearson intervals pay "
    "for nothing."
)


def judged_cells(context: Context) -> list[TranscriptCell]:
    """The transcript group, judged; the reading's delta is that of the study's DP-SGD where it has one."""
    deltas = {
        one.experiment.delta
        for one in context.measured.by_group[COMPARISON]
        if one.experiment.variant == DPSGD and one.experiment.delta is not None
    }
    return transcript_cells(
        context.measured.transcripts(), delta=max(deltas, default=None), confidence=context.confidence
    )


def view_tables(context: Context, cells: Sequence[TranscriptCell]) -> list[Table]:
    """The three views side by side, and the transcript game in full; none where no game was played."""
    if not context.measured.transcripts():
        return []
    return [three_views(context, cells), transcript_table(context, cells)]


def attacks_table(context: Context) -> Table | None:
    """LiRA beside the confidence attack on the same trainings: AUC and TPR at FPR 1 %; None without LiRA."""
    measured = context.measured
    variants, counts = measured.variants(LIRA), measured.epochs(LIRA)
    columns: list[float | None] = [*measured.epsilons(LIRA), None]
    rows = []
    for variant in variants:
        for epochs in counts:
            for attack, group in (("confidence", COMPARISON), ("LiRA", LIRA)):
                for name, metric in (("AUC", AUC), (f"TPR at FPR {percent(LOW_FPR)}", TPR_AT_LOW_FPR)):
                    cells = tuple(
                        _attack_cell(
                            context, group, Setting(variant=variant, epochs=epochs, epsilon=epsilon), metric
                        )
                        for epsilon in columns
                    )
                    if any(cell.ours is not None for cell in cells):
                        rows.append(((variant, str(epochs), attack, name), cells))
    if not rows:
        return None
    return Table(
        id="attacks",
        title="LiRA and the confidence attack on ordinary members",
        row_headers=("method", "epochs", "attack", "measure"),
        columns=tuple(map(column, columns)),
        rows=tuple(rows),
        notes=(
            "The paper says that it used both attacks and prints one AUC a cell, without saying of which. "
            f"Both on the {UNIT}s that LiRA was run on: mean ± standard deviation; brackets: "
            f"{context.interval}. TPR: as observed.",
            *draw_notes(context),
        ),
        decimals=dict.fromkeys(map(column, columns), 3),
    )


def _attack_cell(context: Context, group: str, setting: Setting, metric: str) -> Cell:
    measured = context.measured
    shared = [one.experiment.model for one in measured.runs(setting, LIRA)]
    none = no_such_budget(setting, has_budget=has_budget(measured, setting.variant))
    if none:
        return Cell(why_blank=none)
    if not shared:
        return Cell(why_blank="LiRA was not run here")
    sample = measured.sample(setting, metric, group=group, models=shared)
    if sample is None:
        return Cell(why_blank=measured.missing(setting, metric, group=group))
    return Cell(ours=over_models(sample, context.confidence).mean)


def transcript_table(context: Context, cells: Sequence[TranscriptCell]) -> Table:
    """Every cell of the game: rates, success, what the claim and its DP reading allow, verdicts."""
    names = [f"TPR at FPR {percent(level)}" for level in LEVELS]
    columns = (
        *names,
        "success",
        "allowed by the claim",
        "verdict, nats",
        f"allowed by DP at FPR {percent(LEVELS[-1])}",
        "verdict, DP reading",
    )
    rows = []
    for cell in cells:
        rates = [Cell(ours=_at(rate)) for rate in cell.at]
        rest = (
            _rate_cell(cell.success, cell.trials),
            Cell(ours=Value(estimate=cell.claim.max_success(0.5))),
            Cell(ours=_words(cell, own=True)),
            Cell(ours=Value(estimate=cell.max_tpr(LEVELS[-1]))),
            Cell(ours=_words(cell, own=False)),
        )
        rows.append(((cell.variant, f"{cell.epsilon:g}", cell.game_words), (*rates, *rest)))
    return Table(
        id="transcript",
        title="The transcript game: an exact likelihood-ratio attack on the released signs",
        row_headers=("method", "epsilon", "record"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            *_game_notes(context, cells),
            f"Brackets: {context.percent} intervals, each by itself. At FPR 0 the rule is “member where the "
            "signs are impossible without the record”, which is right by logic; at higher rates the "
            "interval pays for the choice of the threshold.",
            RULE,
            *_not_played(context),
        ),
        decimals=dict.fromkeys(columns, 3),
    )


def _not_played(context: Context) -> list[str]:
    """How many games lack scores, and the first few of them."""
    games = context.measured.transcripts()
    lost = unfinished(games)
    if not lost:
        return []
    more = "; …" if len(lost) > MOST_LOST else ""
    return [f"{len(lost)} of {len(games)} games have no scores: {'; '.join(lost[:MOST_LOST])}{more}"]


def three_views(context: Context, cells: Sequence[TranscriptCell]) -> Table:
    """A row for each grouping and epsilon: the worst record of the game beside the paper's attacks."""
    columns = (
        "worst record, success",
        "claim allows",
        "view 1: nats",
        "worst record, TPR at FPR 0",
        "DP allows",
        "view 2: DP reading",
        "view 3: confidence AUC",
        "view 3: LiRA AUC",
        "average record, batches known, success",
        "average record, success",
    )
    rows = []
    for variant, epsilon in dict.fromkeys((cell.variant, cell.epsilon) for cell in cells):
        here = [cell for cell in cells if (cell.variant, cell.epsilon) == (variant, epsilon)]
        rows.append(((variant, f"{epsilon:g}"), _view_row(context, here)))
    epochs = max(context.measured.epochs(), default=0)
    return Table(
        id="three-views",
        title="One claim from three sides",
        row_headers=("method", "epsilon"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            "View 1: what the authors claim, mutual information about one record, in the game that defines "
            "it. View 2: the same number read as (epsilon, delta)-DP; a reading, not the authors' claim. "
            "View 3: as the paper measures leakage, by attacks on ordinary members, longest training "
            f"({plural_epochs(epochs)} of the base models; {context.interval}).",
            "Views 1 and 2 are of another, smaller model and data set than view 3: the game needs many "
            "trainings. Both claims are about every record of every data set, so one record of one is "
            "enough to refute them; an AUC near 0.5 on ordinary members says nothing about the worst one.",
            *draw_notes(context),
            "Worst record: of the records whose game can refute, the one with the most right guesses (its "
            "number is not corrected for that choice; the verdicts are). Average record: guessed by the "
            "paper's own adversary, who has the other records and the transcript, and beside it by one who "
            "knows too in which steps the others took part.",
            *_game_notes(context, cells),
            RULE,
        ),
        decimals=dict.fromkeys(columns, 3),
    )


def _view_row(context: Context, here: Sequence[TranscriptCell]) -> tuple[Cell, ...]:
    able = [cell for cell in here if not cell.evidence.game.beyond] or here
    worst = max(able, key=lambda cell: cell.success.estimate)
    average = [cell for cell in here if cell.canary == "average"]
    return (
        _rate_cell(worst.success, worst.trials),
        Cell(ours=Value(estimate=worst.claim.max_success(0.5))),
        Cell(ours=_joined(able, own=True)),
        Cell(ours=_at(worst.at[0])),
        Cell(ours=Value(estimate=worst.max_tpr(0.0), text=f"{worst.max_tpr(0.0):.2g}")),
        Cell(ours=_joined(able, own=False)),
        _auc_cell(context, worst, (COMPARISON, HEAD_ROOM)),
        _auc_cell(context, worst, (LIRA,)),
        *(_average_cell(average, knows_batches=knows) for knows in (True, False)),
    )


def _average_cell(cells: Sequence[TranscriptCell], *, knows_batches: bool) -> Cell:
    """Success against the average record, by an adversary who knows the batches or not."""
    found = [cell for cell in cells if (cell.knowledge != KNOWS_NO_BATCH) == knows_batches]
    if not found:
        return Cell(why_blank="this game was not played")
    return _rate_cell(found[0].success, found[0].trials)


def _auc_cell(context: Context, cell: TranscriptCell, groups: Sequence[str]) -> Cell:
    """AUC of the same grouping and epsilon over the base models, of the group's longest training."""
    for group in groups:
        for epochs in context.measured.epochs(group)[-1:]:
            setting = Setting(variant=cell.variant, epochs=epochs, epsilon=cell.epsilon)
            sample = context.measured.sample(setting, AUC, group=group)
            if sample is not None:
                mean = over_models(sample, context.confidence).mean
                return Cell(ours=Value(estimate=mean.estimate, lower=mean.lower, upper=mean.upper, n=mean.n))
    return Cell(why_blank="no run of the base models with this grouping, epsilon and attack is finished")


def _joined(here: Sequence[TranscriptCell], *, own: bool) -> Value:
    """The verdict over the records that were tried: refuted if any refutes."""
    kinds = [cell.verdict if own else cell.dp_verdict for cell in here]
    for kind in (
        VerdictKind.REFUTED,
        VerdictKind.INVALID,
        VerdictKind.NOT_REFUTED,
        VerdictKind.UNDERPOWERED,
        VerdictKind.UNDECIDED,
    ):
        if kind in kinds:
            return _words(here[kinds.index(kind)], own=own)
    return Value(estimate=math.nan, text="not judged")


def _words(cell: TranscriptCell, *, own: bool) -> Value:
    kind = cell.verdict if own else cell.dp_verdict
    text = "not judged" if kind is None else WORDS.get(kind, str(kind))
    if own and kind is VerdictKind.UNDERPOWERED and cell.claim.max_success(0.5) >= 1.0:
        text = VACUOUS
    return Value(estimate=math.nan, text=text)


def _rate_cell(rate: Rate, trials: int) -> Cell:
    return Cell(ours=Value(estimate=rate.estimate, lower=rate.lower, upper=rate.upper, n=trials))


def _at(rate: RateAtFpr) -> Value:
    found: Interval = rate.tpr
    return Value(estimate=found.estimate, lower=found.lower, upper=found.upper, n=rate.members)


def _game_notes(context: Context, cells: Sequence[TranscriptCell]) -> list[str]:
    """The family of verdicts, what they mean, and the delta of the reading."""
    if not cells:
        return []
    reading: ApproximateDP = cells[0].reading
    level = f"{1.0 - context.confidence:.2g}"
    able = sum(not cell.evidence.game.beyond for cell in cells)
    words = f"{able} cells that can refute"
    known = [name for name in GRANULARITIES if any(cell.variant == name for cell in cells)]
    return [
        f"Independent trials are the replicates here (not {UNIT}s): each is a training of its own. Verdicts "
        f"are the judge's. In each currency the {words} are one family: each has an equal share of the "
        f"error, so that a true claim among them is refuted with probability at most {level} "
        f"({', '.join(known)}).",
        f"The DP reading has delta = {reading.delta:g}. “{VACUOUS}”: the claimed nats are at least ln 2, at "
        "which every guess about one record may be right; “underpowered”: not even a perfect attack could "
        "have refuted with so many trials; “not refuted” is not “private”. “"
        f"{WORDS[VerdictKind.UNDECIDED]}”: the adversary shows more than the number allows, but knows too in "
        "which steps the other records took part, which no transcript shows and no claim about one grants; "
        "such games refute nothing. The opposed record among copies needs no such knowledge; “"
        f"{FURTHER[KNOWS_NO_BATCH]}”: the likelihood is summed over every batch that there may have been.",
    ]
