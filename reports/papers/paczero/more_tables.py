"""PACZero's Tables 8, 9, 12, 14 and 18: learning rates, clips, surrogates, drift, and directions a step."""

from __future__ import annotations

import math
from collections.abc import Iterable

from workbench.checks.published import PublishedCell
from workbench.reports.papers.paczero.cells import Context, Row, beside_printed, blank, rows_of
from workbench.reports.papers.paczero.layout import (
    AGGREGATION,
    CLIP,
    DECOMPOSITION,
    DEV,
    DRIFT,
    FT,
    HEADLINE,
    LORA,
    MI,
    NOT_HERE,
    RATES,
    SCORE,
    SENTIMENT,
    SURROGATES,
    TRACKS,
    UNANIMITY,
    ZPL,
    Setting,
    track_of,
)
from workbench.reports.shared.beside import beside
from workbench.reports.shared.paper_conditions import differences
from workbench.reports.shared.statistics import Sample, mean_interval, value_of
from workbench.studies.report import Cell, Table


def rates_table(context: Context) -> Table | None:
    """Table 8, by multiples of the headline rate of each track."""
    printed = context.published("table-8")
    if printed is None:
        return None
    rows: list[Row] = []
    for row in rows_of(printed):
        track, clip, rate = row
        factor = float(rate) / {FT: 1e-4, LORA: 1e-3}[track]
        own = headline_rate(context, track)
        variant = ZPL if float(clip) < 1e9 else f"{ZPL}, no clip"
        ours = None if own is None else _closest(context, variant, track, factor * own)
        cells = []
        for column, name in (("dev", DEV), ("test", SCORE)):
            cell = printed.cell(row, column)
            if ours is None:
                cells.append(blank(cell, NOT_HERE))
            else:
                cells.append(context.cell(cell, RATES, ours, name))
        rows.append((row, tuple(cells)))
    used = {
        f"{track} {own:g}" for track in TRACKS for own in (headline_rate(context, track),) if own is not None
    }
    return beside_printed(
        context,
        "table-8",
        f"Learning rates of {ZPL}, sentiment: percent",
        headers=printed.row_headers,
        columns=("dev", "test"),
        rows=rows,
        groups=(RATES,),
        notes=(
            "A row's rate is the paper's. Ours is the same multiple of our own headline rate as the paper's "
            f"is of its own (FT 1e-4, LoRA 1e-3); ours: {', '.join(sorted(used)) or 'none'}. A clip of 1e9 "
            "is none.",
        ),
    )


def headline_rate(context: Context, track: str) -> float | None:
    """The learning rate of our headline PACZero-ZPL runs on sentiment."""
    for task in (SENTIMENT, ""):
        settings = context.measured.settings(HEADLINE, variant=ZPL, track=track, task=task)
        if settings:
            return settings[0].learning_rate
    return None


def _closest(context: Context, variant: str, track: str, rate: float) -> Setting | None:
    """The setting with this rate, up to rounding."""
    for one in context.measured.settings(RATES, variant=variant, track=track):
        if math.isclose(one.learning_rate or 0.0, rate, rel_tol=1e-6):
            return one
    return None


def clips_table(context: Context) -> Table | None:
    printed = context.published("table-9")
    if printed is None:
        return None
    columns = ("dev", "test", "unanimity")
    rows: list[Row] = []
    for row in rows_of(printed):
        setting = Setting(variant=f"{MI}, c = {row[0]}", track=LORA, epsilon=float(row[1]))
        cells = tuple(
            context.cell(printed.cell(row, column), CLIP, setting, name)
            for column, name in zip(columns, (DEV, SCORE, UNANIMITY), strict=True)
        )
        rows.append((row, cells))
    return beside_printed(
        context,
        "table-9",
        "Clips, sentiment, LoRA: percent",
        headers=printed.row_headers,
        columns=columns,
        rows=rows,
        groups=(CLIP,),
        notes=("The paper's cells are of OPT-6.7B.",),
    )


def steps_like(context: Context, group: str, printed: Iterable[float], steps: float) -> int | None:
    """Our T in a group for a printed one: the same multiple of the largest; None where none is.

    Args:
        context: Of the report.
        group: Whose runs.
        printed: All T that the paper prints there.
        steps: The one that is wanted.
    """
    ours = sorted({one.steps for one in context.measured.settings(group) if one.steps is not None})
    if not ours:
        return None
    wanted = steps / max(printed) * ours[-1]
    return next((one for one in ours if math.isclose(one, wanted, rel_tol=0.02)), None)


def decomposition_table(context: Context) -> Table | None:
    printed = context.published("table-12")
    if printed is None:
        return None
    rows: list[Row] = []
    for row in rows_of(printed):
        name = row[0]
        cell = printed.cell(row, "test")
        steps = steps_like(context, DECOMPOSITION, (1000.0, 2000.0), float(row[1]))
        if name in SURROGATES:
            setting = Setting(variant=name, steps=steps)
        elif "constant" in name:
            setting = Setting(variant=f"{MI}, constant budget")
        else:
            setting = Setting(variant=MI, epsilon=0.33, steps=steps)
        if name in SURROGATES and steps is None:
            made = blank(cell, NOT_HERE)
        else:
            made = context.cell(cell, DECOMPOSITION, setting, SCORE)
        rows.append((row, (made,)))
    tracks = sorted({track_of(one.experiment) for one in context.measured.by_group[DECOMPOSITION]})
    return beside_printed(
        context,
        "table-12",
        "Surrogates of the release without privacy, sentiment: accuracy, percent",
        headers=printed.row_headers,
        columns=("test",),
        rows=rows,
        groups=(DECOMPOSITION,),
        notes=(
            "T is the paper's; ours are the same shares of our longest here.",
            f"The paper's track is LoRA, ours {', '.join(tracks)}." if tracks else "",
        ),
    )


def drift_table(context: Context) -> Table | None:
    printed = context.published("table-14")
    if printed is None:
        return None
    columns = printed.columns
    places = rows_of(printed)
    rungs = [float(row[0]) for row in places]
    first = steps_like(context, DRIFT, rungs, rungs[0])
    base = None if first is None else context.measured.sample(DRIFT, Setting(steps=first), SCORE)
    rows: list[Row] = []
    for row in places:
        steps = steps_like(context, DRIFT, rungs, float(row[0]))
        if steps is None:
            cells = [blank(printed.cell(row, column), NOT_HERE) for column in columns]
        else:
            setting = Setting(steps=steps)
            cells = [
                context.cell(printed.cell(row, column), DRIFT, setting, name)
                for column, name in zip(columns[:2], (DEV, SCORE), strict=True)
            ]
            sample = context.measured.sample(DRIFT, setting, SCORE)
            cells.append(_less(context, printed.cell(row, columns[2]), sample, base))
        rows.append((row, tuple(cells)))
    return beside_printed(
        context,
        "table-14",
        f"Accuracy of {ZPL} by T, without a checkpoint chosen by dev records: percent",
        headers=printed.row_headers,
        columns=columns,
        rows=rows,
        groups=(DRIFT,),
        notes=(
            "T is the paper's; ours are the same shares of our longest. The runs of one seed are one "
            "trajectory: their directions, subsets and coins are the same.",
            "We look at no dev records here, so that the last step is what is measured.",
        ),
    )


def _less(
    context: Context, printed: PublishedCell | None, sample: Sample | None, base: Sample | None
) -> Cell:
    """Mean difference over seeds to the shortest run."""
    if sample is None or base is None:
        return blank(printed, "a run is missing")
    found = differences(sample, base)
    if isinstance(found, str):
        return blank(printed, found)
    return beside(printed, value_of(mean_interval(found, confidence=context.confidence)))


def aggregation_table(context: Context) -> Table | None:
    printed = context.published("table-18")
    if printed is None:
        return None
    columns = ("test", "dev", "test less that at K = 1")
    rows: list[Row] = []
    for row in rows_of(printed):
        track, count = row
        setting = _directions(track, int(count))
        groups = (AGGREGATION,)
        cells = [
            context.cell(printed.cell(row, column), groups, setting, name)
            for column, name in zip(columns[:2], (SCORE, DEV), strict=True)
        ]
        base = context.measured.sample(groups, _directions(track, 1), SCORE)
        sample = context.measured.sample(groups, setting, SCORE)
        cells.append(_less(context, printed.cell(row, columns[2]), sample, base))
        rows.append((row, tuple(cells)))
    return beside_printed(
        context,
        "table-18",
        f"Directions a step, {MI} at 0.33 nats, sentiment: percent",
        headers=printed.row_headers,
        columns=columns,
        rows=rows,
        groups=(AGGREGATION,),
        notes=("The paper's cells with K above 1 are of one seed.",),
    )


def _directions(track: str, count: int) -> Setting:
    name = MI if count == 1 else f"{MI}, K = {count}"
    return Setting(variant=name, track=track, epsilon=0.33)
