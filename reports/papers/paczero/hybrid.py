"""The schedule that the paper leaves for later: does what is left of the budget's posterior help PACZero-ZPL?

Section 6 expects a higher unanimity rate than of PACZero-ZPL from scratch. Gaussian noise excludes no
candidate, so that in exact arithmetic unanimity asks for all M in both: a gain can come from the tolerance
alone, or from where the weights are.
"""

from __future__ import annotations

from workbench.reports.papers.paczero.cells import Context, Row, blank, scale_notes
from workbench.reports.papers.paczero.layout import (
    DEV,
    FT,
    HEADLINE,
    HYBRID,
    MI,
    SCORE,
    UNANIMITY,
    UNIT,
    ZPL,
    Setting,
)
from workbench.reports.shared.paper_conditions import differences
from workbench.reports.shared.statistics import mean_interval, value_of
from workbench.studies.report import Cell, Table

COLUMNS = ("test %", "dev %", "unanimity %", "nats used", "test less ZPL's", "unanimity less ZPL's")
_NUMBERS = (SCORE, DEV, UNANIMITY, "nats_used")


def hybrid_table(context: Context) -> Table | None:
    """The hybrid beside PACZero-MI of its budget and PACZero-ZPL; None without hybrid runs."""
    measured = context.measured
    hybrids = measured.settings(HYBRID)
    if not hybrids:
        return None
    task = hybrids[0].task
    base = Setting(variant=ZPL, task=task, track=FT)
    rows: list[Row] = []
    for one in hybrids:
        rows.append(_row(context, HYBRID, one, base))
        rows.append(
            _row(context, HEADLINE, Setting(variant=MI, task=task, track=FT, epsilon=one.epsilon), base)
        )
    rows.append(_row(context, HEADLINE, base, base))
    return Table(
        id="hybrid",
        title="The budget first, then PACZero-ZPL",
        row_headers=("method",),
        columns=COLUMNS,
        rows=tuple(dict(rows).items()),
        notes=(
            "The paper has no numbers of it (section 6 expects more unanimous steps than of PACZero-ZPL from "
            f"scratch). Differences are paired over {UNIT}s; brackets are the {context.interval}.",
            *scale_notes(context, (HYBRID,)),
        ),
        decimals=dict.fromkeys(COLUMNS, 2) | {"nats used": 3},
    )


def _row(context: Context, group: str, setting: Setting, base: Setting) -> Row:
    budget = "" if setting.epsilon is None else f", {setting.epsilon:g} nats"
    cells = [context.cell(None, group, setting, name) for name in _NUMBERS]
    for name in (SCORE, UNANIMITY):
        if setting == base:
            cells.append(Cell(why_blank="this is it"))
            continue
        ours = context.measured.sample(group, setting, name)
        theirs = context.measured.sample(HEADLINE, base, name)
        found = "a run is missing" if ours is None or theirs is None else differences(ours, theirs)
        if isinstance(found, str):
            cells.append(blank(None, found))
        else:
            cells.append(Cell(ours=value_of(mean_interval(found, confidence=context.confidence))))
    return (f"{setting.variant}{budget}",), tuple(cells)
