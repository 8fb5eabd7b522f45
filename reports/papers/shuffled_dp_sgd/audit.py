"""Shuffled DPSGD's Table VI: three adversaries on the same releases, by claimed epsilon, with a control.

The games were judged where they were played; here they are shown. How much of the permutations the tidying
adversary found stands in a table of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.checks.published import PublishedCell
from workbench.estimation import auc_below_half
from workbench.games.consecutive import RUN, SINGLE, VIEWS
from workbench.reports.papers.shuffled_dp_sgd.cells import Context, listed
from workbench.reports.papers.shuffled_dp_sgd.layout import SHUFFLED, own_model_of, part_of, variant_of
from workbench.reports.shared.beside import NOT_IN_PAPER
from workbench.reports.shared.numbers import number, real
from workbench.reports.shared.paper_cells import Row, blank, printed_place, rows_of
from workbench.reports.shared.paper_samples import UNIT
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

WHERES = (SINGLE, RUN)
TOGETHER, AS_PRINTED = "all games together", "Eq. 45 as printed"
COLUMNS = (*(f"{view}, {where}" for view in VIEWS for where in WHERES), TOGETHER, AS_PRINTED)
WORDS = {
    "REFUTED": "refuted",
    "NOT_REFUTED": "not refuted",
    "UNDERPOWERED": "underpowered",
    "INVALID": "invalid",
}
"""The judge's answers."""

CONTROL = "control"
"""What stands behind the comma of the group of runs whose claim is true."""

NO_AUDIT = "the run has no judged games"


def audit_table(context: Context) -> Table | None:
    """Bounds and verdicts of every adversary in both games; None where nothing is printed or audited."""
    runs = context.measured.audits()
    printed = context.published("table-6")
    theirs = {} if printed is None else _printed_audits(context)
    rows: list[Row] = []
    several = len({one.experiment.seed for one in runs}) > 1
    for one in runs:
        rows.append((_headers(one, several), _cells(one, theirs)))
    seen = {one.experiment.epsilon for one in runs if is_claimed(one)}
    for epsilon, cell in theirs.items():
        if epsilon not in seen:
            empty = tuple(
                Cell(paper=cell, why_blank="ours: not part of this profile")
                if column == AS_PRINTED
                else Cell(why_blank="ours: not part of this profile")
                for column in COLUMNS
            )
            rows.append(((SHUFFLED, f"{epsilon:g}", *([""] if several else [])), empty))
    if not rows:
        return None
    return printed_place(
        printed,
        "table-6",
        "The audit: lower bounds on epsilon, and verdicts, by adversary",
        headers=("training", "claimed epsilon", *([UNIT] if several else [])),
        columns=COLUMNS,
        rows=rows,
        notes=tuple(_notes(runs)),
        decimals=dict.fromkeys(COLUMNS, 3),
    )


def is_claimed(outcome: Outcome) -> bool:
    """Whether a run is of Shuffled DPSGD, and not of the control."""
    return outcome.experiment.mechanism == "shuffled_dp_sgd"


def _printed_audits(context: Context) -> dict[float, PublishedCell]:
    """The audited epsilon by the claimed one."""
    printed = context.published("table-6")
    found = {}
    for row in [] if printed is None else rows_of(printed):
        claimed = context.printed("table-6", row, "theoretical epsilon")
        audited = context.printed("table-6", row, "audited epsilon")
        if claimed is not None and audited is not None:
            found[claimed.value] = audited
    return found


def training_of(one: Outcome) -> str:
    """Method, and how it was trained where that has a name of its own."""
    part = part_of(one.experiment).removeprefix(CONTROL).strip()
    name = f"{variant_of(one.experiment)}, {part}" if part else variant_of(one.experiment)
    return name if is_claimed(one) else f"{name} (control)"


def _headers(one: Outcome, several: bool) -> tuple[str, ...]:
    epsilon = one.experiment.epsilon
    seed = (str(one.experiment.seed),) if several else ()
    return (training_of(one), "none" if epsilon is None else f"{epsilon:g}", *seed)


def games_of(outcome: Outcome) -> dict[str, Mapping[str, Any]]:
    """The judged games of a run by `"VIEW, WHERE"`; empty where it has none."""
    if outcome.status is not Status.DONE or outcome.audit is None:
        return {}
    return {f"{one['view']}, {one['where']}": one for one in outcome.audit["games"]}


def _cells(one: Outcome, theirs: Mapping[float, PublishedCell]) -> tuple[Cell, ...]:
    epsilon = one.experiment.epsilon
    printed = theirs.get(epsilon) if epsilon is not None and is_claimed(one) else None
    why = one.error or {Status.MISSING: "not run yet"}.get(one.status, NO_AUDIT)
    games = games_of(one)
    if not games:
        return tuple(
            Cell(paper=printed if column == AS_PRINTED else None, why_blank=f"ours: {why}")
            for column in COLUMNS
        )
    cells = [_game(games.get(column)) for column in COLUMNS[: len(VIEWS) * len(WHERES)]]
    verdict = None if one.audit is None else one.audit["verdict"]
    cells.append(_together(verdict))
    blind = games.get(f"{VIEWS[0]}, {WHERES[0]}")
    value = math.nan if blind is None else real(blind["details"].get("as_printed"))
    cells.append(
        blank(printed, "no such game")
        if math.isnan(value)
        else Cell(paper=printed, ours=Value(estimate=value), why_blank="" if printed else "not audited there")
    )
    return tuple(cells)


def _game(game: Mapping[str, Any] | None) -> Cell:
    """The lower bound with the game's own verdict."""
    if game is None:
        return Cell(why_blank="ours: the game was not played")
    bound, verdict = game["bound"], game["verdict"]
    if bound is None:
        return Cell(why_blank=f"ours: {_kind(verdict)}, so there is no bound")
    lower = real(bound["lower"])
    said = f", {_kind(verdict)}" if verdict is not None else ""
    shown = Value(estimate=lower, text=f"{number(lower, 3)}{said}", n=int(game["n"]))
    return Cell(ours=shown, why_blank=NOT_IN_PAPER)


def _together(verdict: Mapping[str, Any] | None) -> Cell:
    if verdict is None:
        return Cell(why_blank="ours: nobody claims anything")
    lower = math.nan if verdict["bound"] is None else real(verdict["bound"]["lower"])
    return Cell(ours=Value(estimate=lower, text=_kind(verdict)), why_blank=NOT_IN_PAPER)


def _kind(verdict: Mapping[str, Any] | None) -> str:
    kind = "" if verdict is None else str(verdict["kind"])
    return WORDS.get(kind, kind.lower().replace("_", " "))


def _notes(runs: Sequence[Outcome]) -> Iterator[str]:
    audited = [one for one in runs if games_of(one)]
    if audited:
        together = sorted({real(one.audit["confidence"]) for one in audited if one.audit is not None})
        each = sorted({real(one.audit["judged_at"]) for one in audited if one.audit is not None})
        deltas = sorted({one.experiment.delta for one in audited if one.experiment.delta is not None})
        models = dict.fromkeys(own_model_of(one.experiment) for one in audited)
        yield (
            f"Lower bounds on epsilon at delta {listed(deltas)} under adding or removing one record, each at "
            f"{listed(100.0 * one for one in each)} % confidence, all games of a row together at "
            f"{listed(100.0 * one for one in together)} %, for any mechanism; a claim is refuted where a "
            "bound exceeds it. Each row stands by itself: the chance that any row is refuted falsely is at "
            'most their sum. "Not refuted" is not "private". n is the number of trials '
            f"({', '.join(models)})."
        )
        yield (
            "One adversary more than the paper's: blind looks at the weight where it was, invariant at what "
            "no permutation changes, tidying matches rows, columns and heads to the weights before and puts "
            "them back. One release: from one state; whole run: all steps of independent trainings."
        )
    yield (
        "Eq. 45 as printed: of the blind adversary on one release, at the best threshold on the same scores, "
        "without confidence: a point estimate that decides nothing. The paper audits ViT at epsilon 0.5 and "
        "1, and prints no interval."
    )
    if any(not is_claimed(one) for one in runs):
        yield (
            "Control: plain DP-SGD with the noise of a certified accountant, read by the same adversaries; "
            "its claim is true, and a refutation of it would be an error of ours."
        )


def _below_half(area: Mapping[str, Any]) -> str | None:
    """What must be said of a judged game whose AUC lies below one half."""
    ends = (real(area[name]) for name in ("estimate", "lower", "upper"))
    return auc_below_half(*ends, confidence=real(area["confidence"]))


def areas_table(context: Context) -> Table | None:
    """How well each statistic tells the canary, judged or not; None where no run says so."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    runs = context.measured.audits()
    several = len({one.experiment.seed for one in runs}) > 1
    for one in runs:
        for game in games_of(one).values():
            key = (*_headers(one, several), str(game["where"]))
            own = found.setdefault(key, {})
            own[str(game["view"])] = real(game["auc"]["estimate"])
            told = game["details"].items()
            own |= {str(name)[5:-1]: real(area) for name, area in told if str(name).startswith("auc (")}
    below = [
        f"{', '.join(_headers(one, several))}, {name}: {said}"
        for one in runs
        for name, game in games_of(one).items()
        if (said := _below_half(game["auc"]))
    ]
    columns = tuple(dict.fromkeys(name for own in found.values() for name in own))
    if not columns:
        return None
    rows = [
        (
            headers,
            tuple(
                Cell(ours=Value(estimate=own[name]))
                if name in own
                else Cell(why_blank="ours: it was not looked at, or is alike in all trials")
                for name in columns
            ),
        )
        for headers, own in found.items()
    ]
    return Table(
        id="audit-areas",
        title="ROC AUC of every statistic that the adversaries can read",
        row_headers=("training", "claimed epsilon", *([UNIT] if several else []), "game"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            "Of scores of trials with the canary against those without; 0.5 is guessing. Blind, invariant "
            "and tidying are judged; the others are what the invariant adversary might be judged by: "
            "function (outputs on probe inputs), sorted (entries), sums, norms (of the indices that a unit "
            "permutes). Which one it is judged by was fixed before, on other seeds.",
            *below,
        ),
        decimals=dict.fromkeys(columns, 3),
    )
