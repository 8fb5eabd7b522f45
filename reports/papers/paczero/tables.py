"""PACZero's Tables 1 to 6, 8, 9, 11, 12, 14 and 18, regenerated in lines *paper / ours / difference*.

Our one model stands beside the paper's OPT-1.3B. What a number of steps or a learning rate is called in a row
is the paper's; ours is the run at the same multiple of our own smallest T, or of our own headline rate.
"""

from __future__ import annotations

from workbench.checks.published import PublishedCell
from workbench.reports.papers.paczero.cells import (
    MODEL,
    ONE_MODEL,
    Context,
    Row,
    beside_printed,
    blank,
    rows_of,
)
from workbench.reports.papers.paczero.layout import (
    AGGZO,
    BASELINES,
    CLIFF,
    DEV,
    DPZERO,
    FT,
    HEADLINE,
    HYBRID,
    LORA,
    MEZO,
    MI,
    PLATEAU,
    QUESTION,
    SCORE,
    SENTIMENT,
    START,
    TRACKS,
    UNANIMITY,
    UNIT,
    UNTRAINED,
    ZPL,
    Setting,
)
from workbench.reports.papers.paczero.more_tables import (
    aggregation_table,
    clips_table,
    decomposition_table,
    drift_table,
    rates_table,
)
from workbench.studies.report import Cell, Table, Value

TASK_OF = {"SST-2": SENTIMENT, "SQuAD": QUESTION}
METHOD_OF = {"DPZero K=1": DPZERO, "DP-AggZO K=16": AGGZO, "DP-AggZO K=64": AGGZO, MI: MI, ZPL: ZPL}


def paper_tables(context: Context) -> list[Table]:
    """Every table of the paper that the study has runs for, or that is printed, in the paper's order."""
    makers = (
        _headline,
        lambda one: _plateau(one, "table-2", FT),
        _cliff,
        lambda one: _per_seed(one, "table-4", MI),
        lambda one: _per_seed(one, "table-5", ZPL),
        _unanimity,
        rates_table,
        clips_table,
        lambda one: _plateau(one, "table-11", LORA),
        decomposition_table,
        drift_table,
        aggregation_table,
    )
    return [table for table in (make(context) for make in makers) if table is not None]


def budget_of(words: str) -> float | None:
    """The number of a budget as Table 1 prints it: of `"0.33 nats"` or `"epsilon 2"`; None for 0 nats."""
    value = float(words.removesuffix(" nats").removeprefix("epsilon "))
    return value or None


def _headline(context: Context) -> Table | None:
    printed = context.published("table-1")
    columns = ("SST-2 1.3B", "SST-2 6.7B", "SQuAD 1.3B", "SQuAD 6.7B")
    places = [] if printed is None else rows_of(printed)
    if not places:
        places = _own_headline(context)
    places += [(track, "none", name) for track in TRACKS for name in (MEZO, UNTRAINED)]
    further = [one.variant for one in context.measured.settings(HYBRID)]
    places += [(FT, "0.33 nats", name) for name in dict.fromkeys(further) if name]
    rows = []
    for place in places:
        track, privacy, method = place
        variant = METHOD_OF.get(method, method)
        budget = None if privacy == "none" else budget_of(privacy)
        cells = []
        for column in columns:
            task, _, model = column.partition(" ")
            cell = context.printed("table-1", place, column)
            if method == MEZO and track == FT:
                cell = _mezo(context, task, model)
            setting = Setting(variant=variant, task=TASK_OF[task], track=track, epsilon=budget)
            number = SCORE
            if method == UNTRAINED:  # of the same seeds, whatever trains from there
                setting, number = Setting(task=TASK_OF[task], track=track), START
            if model != MODEL:
                cells.append(blank(cell, ONE_MODEL))
            else:
                cells.append(context.cell(cell, (HEADLINE, BASELINES, CLIFF, HYBRID), setting, number))
        rows.append((place, tuple(cells)))
    return beside_printed(
        context,
        "table-1",
        "Accuracy on sentiment (SST-2) and F1 on questions (SQuAD), percent",
        headers=("track", "privacy", "method"),
        columns=columns,
        rows=rows,
        groups=(HEADLINE, BASELINES, CLIFF, HYBRID),
        notes=(
            "The paper's DP and MeZO cells are Bao et al.'s, of other numbers of steps; MeZO's stand in its "
            "text. Its LoRA block has no DP cells.",
            _directions_note(context),
        ),
    )


def _own_headline(context: Context) -> list[tuple[str, ...]]:
    """Rows for our numbers alone."""
    found: dict[tuple[str, ...], None] = {}
    for group, words in ((HEADLINE, "nats"), (BASELINES, "epsilon")):
        for one in context.measured.settings(group):
            if words == "nats":
                budget = f"{one.epsilon or 0:g} nats"
            else:
                budget = f"epsilon {one.epsilon:g}" if one.epsilon else ""
            if budget:
                found[one.track or "", budget, one.variant or ""] = None
    return list(found)


def _mezo(context: Context, task: str, model: str) -> PublishedCell | None:
    place = "abstract" if model == MODEL else "section 4.2"
    return context.printed("statements", (place, f"non-private MeZO, {task} {model} FT"), "value")


def _directions_note(context: Context) -> str:
    counts = sorted(
        {
            int(one.experiment.mechanism_parameters.get("directions", 1))
            for group in (BASELINES, CLIFF)
            for one in context.measured.by_group[group]
            if one.experiment.variant == AGGZO
        }
    )
    if not counts:
        return ""
    return f"DP-AggZO: ours has K = {', '.join(map(str, counts))}."


def _plateau(context: Context, table_id: str, track: str) -> Table | None:
    printed = context.published(table_id)
    columns = ("test", "dev", "unanimity")
    ours = {one.epsilon for one in context.measured.settings(PLATEAU, track=track) if one.epsilon is not None}
    if printed is None and not ours:
        return None
    theirs = {} if printed is None else {float(row[0]): row for row in rows_of(printed)}
    rows: list[Row] = []
    for nats in sorted({*theirs, *ours}):
        row = theirs.get(nats, (f"{nats:g}",))
        setting = Setting(variant=MI, track=track, epsilon=nats)
        cells = tuple(
            context.cell(context.printed(table_id, row, column), PLATEAU, setting, name)
            for column, name in zip(columns, (SCORE, DEV, UNANIMITY), strict=True)
        )
        rows.append((row, cells))
    return beside_printed(
        context,
        table_id,
        f"Accuracy and unanimity by budget ({track}), percent",
        headers=("nats",),
        columns=columns,
        rows=rows,
        groups=(PLATEAU,),
        notes=("The paper's cells are of one seed.",),
    )


def _cliff(context: Context) -> Table | None:
    printed = context.published("table-3")
    ours = {one.epsilon for one in context.measured.settings(CLIFF) if one.epsilon is not None}
    if printed is None and not ours:
        return None
    theirs = {} if printed is None else {float(column): column for column in printed.columns}
    epsilons = sorted({*theirs, *ours})
    places = [(DPZERO, ""), (AGGZO, "")] if printed is None else rows_of(printed)
    rows: list[Row] = []
    for place in places:
        variant = METHOD_OF.get(place[0], place[0])
        cells = tuple(
            context.cell(
                context.printed("table-3", place, theirs.get(epsilon, "")),
                CLIFF,
                Setting(variant=variant, epsilon=epsilon),
                SCORE,
            )
            for epsilon in epsilons
        )
        rows.append((place, cells))
    return beside_printed(
        context,
        "table-3",
        "Differentially private zeroth-order training at small epsilon: accuracy, percent",
        headers=("method", "T"),
        columns=[f"ε = {epsilon:g}" for epsilon in epsilons],
        rows=rows,
        groups=(CLIFF,),
        notes=("T is the paper's.", _directions_note(context)),
    )


def _per_seed(context: Context, table_id: str, variant: str) -> Table | None:
    printed = context.published(table_id)
    if printed is None:
        return None
    columns = tuple(column for column in printed.columns if column != "n")
    rows: list[Row] = []
    for row in rows_of(printed):
        nats = float(row[2]) if len(row) > 2 else None
        setting = Setting(variant=variant, task=SENTIMENT, track=row[0], epsilon=nats)
        cells = []
        for column in columns:
            cell = printed.cell(row, column)
            if row[1] != MODEL:
                cells.append(blank(cell, ONE_MODEL))
            elif column == "mean":
                cells.append(context.cell(cell, HEADLINE, setting, SCORE))
            else:
                cells.append(_of_seed(context, cell, setting, int(column[0]) - 1))
        rows.append((row, tuple(cells)))
    return beside_printed(
        context,
        table_id,
        f"{variant} by {UNIT}, sentiment: accuracy, percent",
        headers=printed.row_headers,
        columns=columns,
        rows=rows,
        groups=(HEADLINE,),
        notes=(f"{UNIT}s of both in ascending order; the paper's and ours have nothing in common.",),
    )


def _of_seed(context: Context, printed: PublishedCell | None, setting: Setting, place: int) -> Cell:
    """One seed's number; its difference to the paper's means nothing."""
    sample = context.measured.sample(HEADLINE, setting, SCORE)
    if sample is None:
        return blank(printed, context.measured.missing(HEADLINE, setting))
    if place >= sample.values.size:
        return blank(printed, f"no such {UNIT}")
    return Cell(
        paper=printed,
        ours=Value(estimate=float(sample.values[place]), n=1),
        why_blank="" if printed is not None else f"paper: no such {UNIT}",
    )


def _unanimity(context: Context) -> Table | None:
    printed = context.published("table-6")
    if printed is None:
        return None
    rows: list[Row] = []
    for row in rows_of(printed):
        track, model, privacy = row
        nats = budget_of(privacy)
        cells = []
        for column in printed.columns:
            cell = printed.cell(row, column)
            variant = ZPL if nats is None else MI
            setting = Setting(variant=variant, task=TASK_OF[column], track=track, epsilon=nats)
            if model != MODEL:
                cells.append(blank(cell, ONE_MODEL))
            else:
                cells.append(context.cell(cell, HEADLINE, setting, UNANIMITY))
        rows.append((row, tuple(cells)))
    return beside_printed(
        context,
        "table-6",
        "Unanimity: share of the steps at which all subsets agree, percent",
        headers=printed.row_headers,
        columns=printed.columns,
        rows=rows,
        groups=(HEADLINE,),
        notes=("The paper's cells are of one representative seed.",),
    )
