"""The report of any study: each variant's metrics over the unit of replication, and the variants compared."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from typing import Any

import numpy as np

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.reports.shared.drawing.charts import Group as Strip
from workbench.reports.shared.drawing.charts import Line, Scales, line_chart, strip_chart
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import (
    CORRECTIONS,
    Answer,
    Equivalence,
    NotTestable,
    StatisticalTest,
    adjust,
    mean_interval,
    paired_t,
    tost_paired,
    tost_welch,
    value_of,
    welch_t,
)
from workbench.reports.shared.statistics.results import counted
from workbench.reports.shared.statistics.sample import Sample, usable
from workbench.studies.experiments import FIELD_ORDER, Experiment, Outcome, Status, StudyResults
from workbench.studies.report import Cell, Figure, StudyReport, Table, Value

Place = tuple[Hashable, ...]
"""Values of some axes, in their order."""

_SPLIT = {"corpus", "corpus_parameters", "members", "seed"}
"""The fields that decide which records are members."""


def axis_values(experiment: Experiment) -> dict[str, Hashable]:
    """Every setting of an experiment, parameters by their own names, in a form that compares and hashes."""
    settings: dict[str, Hashable] = {}
    for name in FIELD_ORDER:
        value = getattr(experiment, name)
        if isinstance(value, Mapping):
            settings.update({f"{name}.{key}": _plain(inner) for key, inner in value.items()})
        else:
            settings[name] = _plain(value)
    return settings


def _plain(value: Any) -> Hashable:
    if value is None or isinstance(value, str | int | float):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def slug(name: str, longest: int = 60) -> str:
    """A name as part of a file's: small letters, digits and dashes; names that differ may have the same."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:longest].strip("-") or "all"


def axis_text(value: Hashable) -> str:
    """How a row's header names a value of an axis."""
    if value is None:
        return "none"
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An outcome with the settings of its experiment, as `axis_values` names them."""

    outcome: Outcome
    settings: Mapping[str, Hashable]

    def at(self, axes: Sequence[str]) -> Place:
        """The run's settings of these axes."""
        return tuple(self.settings.get(axis) for axis in axes)

    def metric(self, name: str) -> float | None:
        """A measured number, or None where there is none."""
        return self.outcome.metrics.get(name) if self.outcome.status is Status.DONE else None


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group of a study's experiments.

    Attributes:
        axes: Settings that vary within a variant, other than the unit of replication.
        metrics: Named in any outcome that is done, in order of appearance.
        members: By variant, in order of appearance: all of its outcomes, done or not.
    """

    name: str
    unit: str
    axes: tuple[str, ...]
    metrics: tuple[str, ...]
    members: Mapping[str, tuple[Placed, ...]]

    def unit_of(self, placed: Placed) -> str | int:
        """The replicate that an outcome belongs to."""
        value = placed.settings.get(self.unit)
        return value if isinstance(value, int) else str(value)

    def rows(self, variant: str) -> dict[Place, list[Placed]]:
        """A variant's outcomes by their values of the group's axes, in order of appearance."""
        rows: dict[Place, list[Placed]] = {}
        for placed in self.members[variant]:
            rows.setdefault(placed.at(self.axes), []).append(placed)
        return rows


def _varying(members: Sequence[Placed], axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if len({placed.settings.get(axis) for placed in members}) > 1)


def groups_of(results: StudyResults) -> list[Group]:
    """The groups of a study, in order of appearance."""
    placed: dict[str, list[Placed]] = {}
    for outcome in results.outcomes:
        located = Placed(outcome=outcome, settings=axis_values(outcome.experiment))
        placed.setdefault(outcome.experiment.group, []).append(located)
    return [_group(name, results.study.replication, everything) for name, everything in placed.items()]


def _group(name: str, unit: str, everything: Sequence[Placed]) -> Group:
    members: dict[str, list[Placed]] = {}
    for placed in everything:
        members.setdefault(placed.outcome.experiment.variant, []).append(placed)
    known = dict.fromkeys(axis for placed in everything for axis in placed.settings)
    candidates = [axis for axis in known if axis not in {"group", "variant", unit}]
    varying = {axis for variant in members.values() for axis in _varying(variant, candidates)}
    done = [placed.outcome for placed in everything if placed.outcome.status is Status.DONE]
    return Group(
        name=name,
        unit=unit,
        axes=tuple(axis for axis in candidates if axis in varying),
        metrics=tuple(dict.fromkeys(metric for outcome in done for metric in outcome.metrics)),
        members={variant: tuple(placed) for variant, placed in members.items()},
    )


def why_none(members: Sequence[Placed], what: str) -> str:
    """Why there is no number at all: what came of the experiments."""
    failed = sum(placed.outcome.status is Status.FAILED for placed in members)
    missing = sum(placed.outcome.status is Status.MISSING for placed in members)
    done = (len(members) - failed - missing, "without this metric")
    parts = [(failed, "failed"), (missing, "not run yet"), done]
    return ", ".join(f"{counted(count, what)} {fate}" for count, fate in parts if count)


def row_sample(group: Group, members: Sequence[Placed], metric: str) -> Sample | str:
    """One metric of one row over the unit, or why there is none.

    A value that is not finite (a diverged perplexity), or whose square is not, leaves no mean; leaving it out
    would flatter it.
    """
    known = [(group.unit_of(placed), placed.metric(metric)) for placed in members]
    values = [(unit, value) for unit, value in known if value is not None]
    if not values:
        return why_none(members, group.unit)
    bad = sum(not usable(value) for _, value in values)
    if bad:
        return f"not finite in {bad} of {counted(len(values), group.unit)}"
    return Sample(np.array([value for _, value in values]), tuple(unit for unit, _ in values), group.unit)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Two variants' measurements of one metric, ready to be compared.

    Attributes:
        first, second: With the axes that vary in both as cells; averaged over axes that vary in one alone.
        paired: Whether equal units were trained on equal splits.
    """

    first: Sample
    second: Sample
    paired: bool


def sides(group: Group, first: str, second: str, metric: str) -> Sides | str:
    """Two variants of a group on one metric, or why they cannot be compared.

    An average over an axis that varies in one variant alone (a budget, which the baseline has not) is taken
    only where all of its experiments are done, so that a failed one does not shift it.
    """
    members = group.members[first], group.members[second]
    shared = tuple(axis for axis in group.axes if all(_varying(side, (axis,)) for side in members))
    a, b = (_side(group, side, metric, shared) for side in members)
    if isinstance(a, str):
        return f"{first}: {a}"
    if isinstance(b, str):
        return f"{second}: {b}"
    common = set(a.units) & set(b.units)
    if common and _splits(group, members[0], common) == _splits(group, members[1], common):
        return Sides(first=a, second=b, paired=True)
    complete = _complete_cells(a) & _complete_cells(b)
    if not complete:
        return f"no setting is done for every {group.unit} of both variants"
    return Sides(first=_only(a, complete), second=_only(b, complete), paired=False)


def _side(group: Group, members: Sequence[Placed], metric: str, shared: Sequence[str]) -> Sample | str:
    """A variant's metric by unit and shared place, averaged over its own axes where they are complete."""
    planned = Counter((group.unit_of(placed), placed.at(shared)) for placed in members)
    values: dict[tuple[str | int, Place], list[float]] = {}
    for placed in members:
        value = placed.metric(metric)
        if value is not None:
            values.setdefault((group.unit_of(placed), placed.at(shared)), []).append(value)
    bad = sum(not usable(value) for measured in values.values() for value in measured)
    if bad:
        return f"{counted(bad, 'measurement')} not finite"
    whole = {
        key: float(np.mean(measured)) for key, measured in values.items() if len(measured) == planned[key]
    }
    if not whole:
        return why_none(members, "experiment")
    units, places = zip(*whole, strict=True)
    return Sample(np.array(list(whole.values())), units, group.unit, places)


def _splits(group: Group, members: Sequence[Placed], units: set[str | int]) -> set[tuple[Hashable, ...]]:
    """What decides the members' draw, for each of these units of a variant."""
    splits: set[tuple[Hashable, ...]] = set()
    for placed in members:
        if group.unit_of(placed) in units:
            names = [name for name in placed.settings if name.partition(".")[0] in _SPLIT]
            splits.add((group.unit_of(placed), *((name, placed.settings[name]) for name in sorted(names))))
    return splits


def _complete_cells(sample: Sample) -> set[Hashable]:
    """Cells that every unit of a sample has."""
    return {cell for cell, size in Counter(sample.cells).items() if size == sample.n_units}


def _only(sample: Sample, cells: set[Hashable]) -> Sample:
    return sample.taken([place for place, cell in enumerate(sample.cells) if cell in cells])


COLUMNS = ("difference", "p", "p, adjusted", "detectable")
"""Columns of the comparisons; `"equivalence"` follows where a margin is given."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """One comparison of two variants on one metric."""

    first: str
    second: str
    metric: str
    test: Answer
    equivalence: Equivalence | NotTestable | None


@register("study_report", "generic")
def generic(
    *,
    results: StudyResults,
    published: PublishedPaper | None = None,
    confidence: float = 0.95,
    correction: str = "holm",
    margins: Mapping[str, float] | None = None,
    only_findings: bool = False,
) -> StudyReport:
    """Means with t intervals over the unit of replication, and all pairwise comparisons of variants.

    Args:
        correction: How p-values are adjusted within a group: a key of `CORRECTIONS`.
        margins: By metric: a difference smaller than this does not matter; metrics without one are not tested
            for equivalence.
        only_findings: Of which there are none here.

    Raises:
        InputError: a confidence, correction or margin that cannot be used, or a margin for an unknown metric.
    """
    stated = dict(margins or {})
    tables, figures, undrawn = list[Table](), list[Figure](), list[str]()
    groups = () if only_findings else groups_of(results)
    known = {metric for group in groups for metric in group.metrics}
    unknown = sorted(set(stated) - known)
    if unknown and known:
        raise InputError(f"margins names {unknown[0]!r}, which is no metric of this study: {sorted(known)}")
    for place, group in enumerate(groups, start=1):
        name = f"group-{place}-{slug(group.name)}"
        tables.append(_means(group, name, confidence))
        if len(group.members) > 1 and group.metrics:
            tables.append(_comparisons(group, name, confidence, correction, stated))
        pictures, note = figures_of(group, name, confidence)
        figures += pictures
        undrawn += [note] if note else []
    return StudyReport(
        name=results.study.name,
        title=results.study.title,
        profile=results.study.profile,
        tables=tuple(tables),
        figures=tuple(figures),
        findings=(),
        notes=(*results.study.notes, *_notes(results), *undrawn),
    )


def _means(group: Group, name: str, confidence: float) -> Table:
    """Rows: variant and axes; columns: metrics; cells: mean, t interval, SD and n over units."""
    rows = []
    for variant in group.members:
        for place, mine in group.rows(variant).items():
            cells = []
            for metric in group.metrics:
                sample = row_sample(group, mine, metric)
                if isinstance(sample, str):
                    cells.append(Cell(why_blank=sample))
                else:
                    cells.append(Cell(ours=value_of(mean_interval(sample, confidence=confidence))))
            rows.append(((variant, *(axis_text(value) for value in place)), tuple(cells)))
    return Table(
        id=name,
        title=f"{group.name}: means over {group.unit}s" if group.name else f"Means over {group.unit}s",
        row_headers=("variant", *group.axes),
        columns=group.metrics,
        rows=tuple(rows),
        notes=(
            f"Mean over {group.unit}s with a {100.0 * confidence:g} % t interval; the spread is the standard "
            f"deviation between {group.unit}s (ddof 1). The interval takes {group.unit}s for independent and "
            "their values for normal; a single one has neither interval nor spread.",
        ),
    )


def _comparisons(
    group: Group, name: str, confidence: float, correction: str, margins: Mapping[str, float]
) -> Table:
    """All pairs of variants on all metrics."""
    pairs = [
        _compared(group, (first, second, metric), confidence, margins.get(metric))
        for first, second in combinations(group.members, 2)
        for metric in group.metrics
    ]
    tests = adjust([pair.test for pair in pairs], method=correction)
    tested = [place for place, pair in enumerate(pairs) if pair.equivalence is not None]
    answers = [pair.equivalence for pair in pairs if pair.equivalence is not None]
    equivalences = dict(zip(tested, adjust(answers, method=correction), strict=True))
    columns = (*COLUMNS, "equivalence") if equivalences else COLUMNS
    rows = []
    for place, (pair, test) in enumerate(zip(pairs, tests, strict=True)):
        cells = _test_cells(test)
        if equivalences:
            cells = (*cells, _equivalence_cell(equivalences.get(place)))
        rows.append(((pair.first, pair.second, pair.metric), cells))
    return Table(
        id=f"{name}-comparisons",
        title=f"{group.name}: variants compared" if group.name else "Variants compared",
        row_headers=("first", "second", "metric"),
        columns=columns,
        rows=tuple(rows),
        notes=_comparison_notes(group, tests, tuple(equivalences.values()), confidence, correction),
    )


def _compared(group: Group, place: tuple[str, str, str], confidence: float, margin: float | None) -> _Pair:
    """One pair of variants: paired where units share their splits, else Welch."""
    first, second, metric = place
    both = sides(group, first, second, metric)
    test: Answer
    equivalence: Equivalence | NotTestable | None = None
    if isinstance(both, str):
        test = NotTestable(name="t test", why=both, n_units=0, unit=group.unit)
        if margin is not None:
            equivalence = NotTestable(name="TOST", why=both, n_units=0, unit=group.unit)
    elif both.paired:
        test = paired_t(both.first, both.second, confidence=confidence)
        if margin is not None:
            equivalence = tost_paired(both.first, both.second, margin=margin, confidence=confidence)
    else:
        test = welch_t(both.first, both.second, confidence=confidence)
        if margin is not None:
            equivalence = tost_welch(both.first, both.second, margin=margin, confidence=confidence)
    return _Pair(first=first, second=second, metric=metric, test=test, equivalence=equivalence)


def _test_cells(test: Answer) -> tuple[Cell, ...]:
    if isinstance(test, NotTestable):
        return tuple(Cell(why_blank=f"not testable: {test.why}") for _ in COLUMNS)
    n, detectable = test.n_units, test.detectable
    values = (
        Value(estimate=test.estimate, lower=test.lower, upper=test.upper, spread=test.spread, n=n),
        Value(estimate=test.p_value, n=n),
        Value(estimate=test.decisive_p, n=n),
        Value(estimate=math.nan if detectable is None else detectable, n=n),
    )
    return tuple(Cell(ours=value) for value in values)


def _equivalence_cell(result: Equivalence | NotTestable | None) -> Cell:
    if result is None:
        return Cell(why_blank="no margin was stated for this metric")
    if isinstance(result, NotTestable):
        return Cell(why_blank=f"not testable: {result.why}")
    words = "equivalent" if result.equivalent else "not shown"
    value = Value(
        estimate=math.nan,
        p_value=result.decisive_p,
        n=result.n_units,
        text=f"{words} within ±{result.margin:g}",
    )
    return Cell(ours=value)


def _comparison_notes(
    group: Group,
    tests: Sequence[Answer],
    equivalences: Sequence[Equivalence | NotTestable],
    confidence: float,
    correction: str,
) -> tuple[str, ...]:
    """What the comparisons rest on, and what they do not say."""
    done = [test for test in tests if isinstance(test, StatisticalTest)]
    names = sorted({test.name for test in done})
    significant = sum(test.significant for test in done)
    notes = [
        f"Differences are first less second, averaged within each {group.unit} before {group.unit}s are "
        f"compared ({', '.join(names) or 'no test could be run'}); {100.0 * confidence:g} % intervals, not "
        f"adjusted. A {group.unit} that both variants share, with the same split, makes a pair.",
        f"p-values are adjusted by {CORRECTIONS[correction]}'s method over the {len(tests)} comparisons of "
        f"this table: {significant} of {len(done)} testable differences remain at {1.0 - confidence:.3g}. A "
        'difference that is not shown is not absence: "detectable" is the smallest true difference that the '
        "test finds four times in five before that adjustment, if the spread seen is the true one.",
    ]
    if equivalences:
        equivalent = sum(isinstance(result, Equivalence) and result.equivalent for result in equivalences)
        notes.append(
            f"Equivalence is shown where two one-sided tests (TOST) both reject at {1.0 - confidence:.3g}, "
            f"adjusted over the {len(equivalences)} of this table: {equivalent} of them."
        )
    return tuple(notes)


def _notes(results: StudyResults) -> tuple[str, ...]:
    """Scale, unit of replication and failures."""
    unit = results.study.replication
    replicates = {
        group.unit_of(placed)
        for group in groups_of(results)
        for members in group.members.values()
        for placed in members
        if placed.outcome.status is Status.DONE
    }
    counts = {status: sum(o.status is status for o in results.outcomes) for status in Status}
    notes = [
        f"{counts[Status.DONE]} of {counted(len(results.outcomes), 'experiment')} done, "
        f"{counts[Status.FAILED]} failed, {counts[Status.MISSING]} not run yet. The unit of replication is "
        f"the {unit}: {len(replicates)} in all."
    ]
    if len(replicates) == 1:
        notes.append(f"With one {unit} nothing can be tested and no interval be given.")
    errors: dict[str, list[str]] = {}
    for outcome in results.outcomes:
        if outcome.status is Status.FAILED:
            errors.setdefault(outcome.error or "no reason recorded", []).append(outcome.experiment.name)
    for error, names in errors.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        notes.append(f"Failed ({len(names)}): {error} ({names[0]}{more}).")
    return tuple(notes)


# Pictures: lines over a numeric axis, or every replicate where no axis varies

MOST_SERIES = 8
"""More than these cannot be told apart; the tables hold them all."""


def figures_of(group: Group, name: str, confidence: float) -> tuple[list[Figure], str]:
    """A picture for each metric of a group, and a note where there are too many series for one.

    Args:
        group: Of a study.
        name: Start of the figures' ids.
        confidence: Of the t intervals that bands and whiskers show.
    """
    axis = _numeric_axis(group)
    series = _series(group, axis)
    if len(series) > MOST_SERIES:
        return [], f"{group.name}: {len(series)} series are too many for one picture; see its table."
    figures: list[Figure] = []
    for metric in group.metrics:
        identifier = _identifier(name, metric, figures)
        title = f"{group.name}: {metric}" if group.name else metric
        figure = (
            _strips(group, series, metric, (identifier, title))
            if axis is None
            else _lines(group, series, metric, axis, (identifier, title, confidence))
        )
        if figure is not None:
            figures.append(figure)
    return figures, ""


def _identifier(name: str, metric: str, figures: Sequence[Figure]) -> str:
    """A figure's id, which is a file's name: an attack may call its metrics anything."""
    wanted = f"{name}-{slug(metric)}"
    taken = {figure.id for figure in figures}
    numbered = (f"{wanted}-{number}" for number in count(2))
    return (
        wanted if wanted not in taken else next(candidate for candidate in numbered if candidate not in taken)
    )


def _numeric_axis(group: Group) -> str | None:
    """The axis to draw along: epsilon where it varies, else the first whose values are all numbers."""
    numeric = [
        axis
        for axis in group.axes
        if all(
            placed.settings.get(axis) is None or _is_number(placed.settings.get(axis))
            for members in group.members.values()
            for placed in members
        )
    ]
    return "epsilon" if "epsilon" in numeric else next(iter(numeric), None)


def _is_number(value: Hashable) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _series(group: Group, axis: str | None) -> dict[str, list[Placed]]:
    """Outcomes by what a legend calls them: the variant and its axes other than the one drawn along."""
    others = [name for name in group.axes if name != axis]
    series: dict[str, list[Placed]] = {}
    for variant, members in group.members.items():
        for placed in members:
            settings = zip(others, placed.at(others), strict=True)
            parts = [variant, *(f"{name} {axis_text(value)}" for name, value in settings)]
            series.setdefault(", ".join(parts), []).append(placed)
    return series


def _value(group: Group, members: Sequence[Placed], metric: str, confidence: float) -> Value | None:
    sample = row_sample(group, members, metric)
    return None if isinstance(sample, str) else value_of(mean_interval(sample, confidence=confidence))


def _lines(
    group: Group,
    series: dict[str, list[Placed]],
    metric: str,
    axis: str,
    words: tuple[str, str, float],
) -> Figure | None:
    """A line a series; one without the axis (no budget) is level."""
    identifier, title, confidence = words
    lines: list[Line] = []
    places: set[float] = set()
    for label, members in series.items():
        at: dict[float, list[Placed]] = {}
        level = [placed for placed in members if placed.settings.get(axis) is None]
        for placed in members:
            value = placed.settings.get(axis)
            if isinstance(value, int | float):
                at.setdefault(float(value), []).append(placed)
        if at:
            x = tuple(sorted(at))
            places.update(x)
            values = tuple(_value(group, at[place], metric, confidence) for place in x)
            lines.append(Line(label=label, x=x, values=values))
        if level:
            name = f"{label}, no {axis}" if at else label
            lines.append(Line(label=name, x=(), values=(_value(group, level, metric, confidence),)))
    if len(lines) > MOST_SERIES or all(value is None for line in lines for value in line.values):
        return None
    log_x = min(places) > 0.0 and max(places) >= 10.0 * min(places)
    spread = f"{100.0 * confidence:g} % t interval of the mean over {group.unit}s"
    scales = Scales(x_name=axis, y_name=metric, log_x=log_x)
    return line_chart(identifier, title, lines, scales, spread=spread)


def _strips(
    group: Group, series: dict[str, list[Placed]], metric: str, words: tuple[str, str]
) -> Figure | None:
    """Every replicate of every series."""
    strips = []
    for label, members in series.items():
        values = [value for value in (placed.metric(metric) for placed in members) if value is not None]
        strips.append(Strip(label=label, values=tuple(values)))
    if not any(math.isfinite(value) for strip in strips for value in strip.values):
        return None
    identifier, title = words
    return strip_chart(identifier, title, strips, x_name=metric, unit=f"one {group.unit}")
