"""RLDP's Tables 2 and 3, and the paired comparisons behind them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from workbench.reports.papers.rldp.cells import PAPER_BUDGETS, Context, Place, places, scale_notes
from workbench.reports.papers.rldp.layout import (
    BASELINES,
    FINAL,
    NON_PRIVATE,
    OURS,
    PAPER_MODELS,
    RLDP,
    Setting,
)
from workbench.reports.papers.rldp.samples import Bar, Matches
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import beside
from workbench.reports.shared.paper_cells import Row, blank, printed_place
from workbench.reports.shared.paper_samples import NOT_HERE, UNIT
from workbench.reports.shared.statistics import NotTestable, Sample, StatisticalTest
from workbench.studies.report import Cell, Table, Value

BEST, DROP, WHOSE = "best baseline", "drop, percent", "whose"

_BEST_NOTE = (
    f"Best baseline: the lowest final perplexity of any baseline in a {UNIT}, so chosen on the data, but "
    f"within each {UNIT}: it is at least as hard a bar as any one baseline's mean. The paper's is the best "
    "mean."
)


def utility_tables(context: Context) -> list[Table]:
    """Table 2, its paired comparisons, Table 3, and the steps behind it."""
    made = (_perplexities(context), comparisons_table(context), _shares(context), _matches(context))
    return [table for table in made if table is not None]


def _bars_value(context: Context, place: Place) -> tuple[Value, str] | str:
    """Mean of the seeds' bars, and whose they are."""
    group, _, epsilon = place
    bars = context.measured.bars(group, epsilon)
    if isinstance(bars, str):
        return bars
    values = Sample(np.array([bar.perplexity for bar in bars.values()]), tuple(bars), UNIT)
    return context.mean(values), _names(bars)


def _names(bars: dict[int, Bar]) -> str:
    counts = Counter(bar.variant for bar in bars.values())
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())


def _perplexities(context: Context) -> Table | None:
    rows: list[Row] = []
    columns = (RLDP, BEST, WHOSE, DROP, *OURS, *BASELINES, NON_PRIVATE)
    for place in places(context):
        group, model, epsilon = place
        budget = f"{epsilon:g}"
        printed = {name: context.printed("table-2", (model,), f"{name}, {budget}") for name in (RLDP, BEST)}
        setting = Setting(variant=RLDP, epsilon=epsilon)
        bars = _bars_value(context, place)
        drop = context.measured.drop(group, epsilon)
        cells = [
            context.cell(printed[RLDP], group, setting, FINAL),
            blank(printed[BEST], bars) if isinstance(bars, str) else beside(printed[BEST], bars[0]),
            Cell(why_blank=bars)
            if isinstance(bars, str)
            else Cell(ours=Value(estimate=math.nan, text=bars[1]), why_blank="not printed"),
            blank(None, drop) if isinstance(drop, str) else beside(None, context.mean(drop)),
        ]
        cells += [
            context.cell(
                None, group, Setting(variant=name, epsilon=None if name == NON_PRIVATE else epsilon), FINAL
            )
            for name in columns[len(cells) :]
        ]
        rows.append(((model, budget), tuple(cells)))
    if not rows:
        return None
    return printed_place(
        context.published("table-2"),
        "table-2",
        "Held-out perplexity at the end of training",
        headers=("model", "epsilon"),
        columns=columns,
        rows=rows,
        notes=(
            f"RLDP: the mean of RLDP-H and RLDP-L of a {UNIT}; the paper prints one number and never says "
            "which form it is of.",
            _BEST_NOTE,
            f"Drop: 1 less RLDP's perplexity over the best baseline's of the same {UNIT}. Whose: with the "
            f"number of {UNIT}s.",
            *scale_notes(context, PAPER_MODELS),
        ),
        decimals={name: 2 if name == DROP else 3 for name in columns if name != WHOSE},
    )


def log_ratio(context: Context, place: Place, first: str, second: str) -> StatisticalTest | NotTestable | str:
    """The paired t test of the logarithms of two methods' perplexities; the reason where there is none."""
    group, _, epsilon = place
    logs = []
    for name in (first, second):
        found = context.measured.complete(group, Setting(variant=name, epsilon=epsilon), FINAL)
        if isinstance(found, str):
            return found if found == NOT_HERE else f"{name}: {found}"
        logs.append(Sample(np.log(found.values), found.units, UNIT))
    return statistics.paired_t(logs[0], logs[1], confidence=context.confidence)


def comparisons_table(context: Context) -> Table | None:
    """RLDP against each baseline in each setting, paired over seeds; Holm over the table's comparisons."""
    asked: list[tuple[Place, str]] = [
        (place, name)
        for place in places(context)
        for name in BASELINES
        if context.measured.runs(place[0], Setting(variant=name, epsilon=place[2]))
    ]
    found = {where: log_ratio(context, where[0], RLDP, where[1]) for where in asked}
    tested = {where: one for where, one in found.items() if not isinstance(one, str)}
    if not tested:
        return None
    adjusted = dict(zip(tested, statistics.adjust(list(tested.values())), strict=True))
    rows: list[Row] = []
    for place in dict.fromkeys(place for place, _ in asked):
        cells = []
        for name in BASELINES:
            one = adjusted.get((place, name), found.get((place, name), NOT_HERE))
            cells.append(compared_cell(one))
        rows.append(((place[1], f"{place[2]:g}"), tuple(cells)))
    lower = sum(
        isinstance(one, StatisticalTest) and one.significant and one.estimate < 0 for one in adjusted.values()
    )
    higher = sum(
        isinstance(one, StatisticalTest) and one.significant and one.estimate > 0 for one in adjusted.values()
    )
    return Table(
        id="comparisons",
        title="RLDP's perplexity against each baseline's, percent",
        row_headers=("model", "epsilon"),
        columns=BASELINES,
        rows=tuple(rows),
        notes=(
            f"Paired t tests over {UNIT}s of logarithms, RLDP (the mean of its two forms) less the "
            f"baseline; intervals at {context.percent} each, p-values corrected for all {len(adjusted)} "
            "comparisons (Holm). Below zero RLDP is better. After correction RLDP is shown to be lower in "
            f"{lower}, higher in {higher}.",
            *scale_notes(context, PAPER_MODELS),
        ),
        decimals=dict.fromkeys(BASELINES, 2),
    )


def compared_cell(found: StatisticalTest | NotTestable | str) -> Cell:
    """A paired comparison of logarithms in percent, with its p-value; or why there is none."""
    if isinstance(found, str):
        return Cell(why_blank=found)
    if isinstance(found, NotTestable):
        return Cell(why_blank=found.why)
    ends = [None if end is None else 100.0 * math.expm1(end) for end in (found.lower, found.upper)]
    return Cell(
        ours=Value(
            estimate=100.0 * math.expm1(found.estimate),
            lower=ends[0],
            upper=ends[1],
            p_value=found.decisive_p,
            n=found.n_units,
        )
    )


def share_value(context: Context, found: Matches) -> Value:
    """The mean share of the steps; a text where a run never matches, for then it is at least so much."""
    if found.sample is None:
        return Value(estimate=math.nan)
    value = context.mean(found.sample)
    if not found.never:
        return value
    if found.never == found.runs:
        return replace(
            value, lower=None, upper=None, text=f"never ({found.runs} run{'s' * (found.runs > 1)})"
        )
    text = f"at least {value.estimate:.0f}; never in {found.never} of {found.runs} runs"
    return replace(value, lower=None, upper=None, text=text)


def _share_cell(context: Context, table: str, model: str, epsilon: float, found: Matches) -> Cell:
    printed = context.printed(table, (model,), f"{epsilon:g}")
    if found.sample is None:
        return blank(printed, found.why)
    made = beside(printed, share_value(context, found))
    return replace(made, difference=None) if found.never else made


_SHARE_NOTES = (
    "Percent of a run's steps to its first evaluation at or below the best baseline's final perplexity of "
    f"the same {UNIT}. A run that never gets there counts as 100 and is named: the true number is at least "
    "that.",
    _BEST_NOTE,
)


def _resolution(context: Context) -> str:
    """How fine the shares are."""
    shares = {
        100.0 * (steps[1] - steps[0]) / one.experiment.steps
        for one in context.measured.outcomes
        for steps in [one.traces.get("evaluation_steps", ())]
        if len(steps) > 1
    }
    if not shares:
        return ""
    low, high = f"{min(shares):.2g}", f"{max(shares):.2g}"
    return f"A run is evaluated every {low if low == high else f'{low} to {high}'} % of its steps."


def _shares(context: Context) -> Table | None:
    budgets = sorted({place[2] for place in places(context)})
    if not budgets:
        return None
    columns = tuple(f"{epsilon:g}" for epsilon in budgets)
    rows: list[Row] = []
    found = {
        (model, epsilon): context.measured.matches(group, epsilon)
        for group, model in PAPER_MODELS.items()
        for epsilon in budgets
    }
    for model in PAPER_MODELS.values():
        cells = [
            _share_cell(context, "table-3", model, epsilon, found[model, epsilon]) for epsilon in budgets
        ]
        rows.append(((model,), tuple(cells)))
    means = [
        _mean_cell(context, epsilon, [found[model, epsilon] for model in PAPER_MODELS.values()])
        for epsilon in budgets
    ]
    rows.append((("Mean",), tuple(means)))
    return printed_place(
        context.published("table-3"),
        "table-3",
        "Percent of the steps that RLDP takes to the best baseline's final perplexity",
        headers=("model",),
        columns=columns,
        rows=rows,
        notes=(
            *_SHARE_NOTES,
            f"RLDP: the mean of the shares of RLDP-H and RLDP-L. Mean: of the models that have runs, {UNIT} "
            f"by {UNIT}.",
            _resolution(context),
            *scale_notes(context, PAPER_MODELS),
        ),
        decimals=dict.fromkeys(columns, 1),
    )


def _mean_cell(context: Context, epsilon: float, found: list[Matches]) -> Cell:
    printed = context.printed("table-3", ("Mean",), f"{epsilon:g}")
    samples = [one.sample for one in found if one.sample is not None]
    if not samples:
        return blank(printed, found[0].why)
    merged = mean_over(samples)
    if isinstance(merged, str):
        return blank(printed, merged)
    never, runs = sum(one.never for one in found), sum(one.runs for one in found)
    whole = Matches(sample=merged, runs=runs, never=never)
    made = beside(printed, share_value(context, whole))
    alike = len(samples) == len(found) and epsilon in PAPER_BUDGETS and not never
    return made if alike else replace(made, difference=None)


def mean_over(samples: list[Sample]) -> Sample | str:
    """The mean of several settings, for each seed that all of them have."""
    shared = set.intersection(*(set(one.units) for one in samples))
    if not shared:
        return f"no {UNIT} has all of them"
    units = [unit for unit in samples[0].units if unit in shared]
    values = [dict(zip(one.units, one.values, strict=True)) for one in samples]
    return Sample(
        np.array([float(np.mean([found[unit] for found in values])) for unit in units]), tuple(units), UNIT
    )


def _matches(context: Context) -> Table | None:
    columns = (*OURS, *(f"{name}, against Static" for name in OURS), WHOSE)
    rows: list[Row] = []
    for group, model, epsilon in places(context):
        if not context.measured.by_group.get(group):
            continue
        cells = []
        for others in (BASELINES, ("Static",)):
            for name in OURS:
                found = context.measured.matches(group, epsilon, name, others)
                cells.append(
                    Cell(why_blank=found.why)
                    if found.sample is None
                    else Cell(ours=share_value(context, found))
                )
        bars = context.measured.bars(group, epsilon)
        cells.append(
            Cell(why_blank=bars)
            if isinstance(bars, str)
            else Cell(ours=Value(estimate=math.nan, text=_names(bars)))
        )
        rows.append(((model, f"{epsilon:g}"), tuple(cells)))
    if not rows:
        return None
    return Table(
        id="steps-to-match",
        title="Percent of the steps to a baseline's final perplexity, by form of RLDP",
        row_headers=("model", "epsilon"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            *_SHARE_NOTES,
            "Against Static alone there is nothing to choose. Table 3 has the mean of the two forms.",
            _resolution(context),
        ),
        decimals=dict.fromkeys(columns[:-1], 1),
    )
