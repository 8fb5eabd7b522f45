"""A study's outcomes as one table, and samples of it over the unit of replication.

A row of `Outcomes.table` is an experiment. Its columns are the tags that the study file declares (always
among them `part` and `method`: the group's and the variant's name where none is declared), the fields and
parameters (`epsilon`, `mechanism_parameters.clip`), the columns that the report declares, and the numbers of
the record (`metrics.roc_auc`). Nothing is read out of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.errors import InputError
from workbench.reports.shared.statistics.sample import Sample, usable
from workbench.studies.experiments import Experiment, Outcome, Status, StudyResults

UNIT = "seed"

NOT_HERE = "not part of this profile"
"""Why a printed setting has no run of ours."""

PART, METHOD = "part", "method"

Number = Callable[[Outcome], float]
"""A number of a finished outcome; NaN where it has none."""

Parts = str | Iterable[str]
"""The part of a study that runs belong to; of several, the first that has any run of a setting."""


@dataclass(frozen=True)
class Setting:
    """Values by column that select runs; a column that is not named may have any value."""

    values: tuple[tuple[str, Hashable], ...] = ()

    @classmethod
    def of(cls, **values: Hashable) -> Setting:
        """A setting of these columns; those that are None may be anything."""
        return cls(tuple(sorted((name, value) for name, value in values.items() if value is not None)))

    def get(self, name: str) -> Any:
        """The value of a column, or None."""
        return dict(self.values).get(name)

    def but(self, **values: Hashable) -> Setting:
        """The setting with other values of these columns; None for anything."""
        return Setting.of(**{**dict(self.values), **values})


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns and parts of a study's runs, as a report declares them.

    Attributes:
        unit: The unit of replication that the study must have; empty for any but those of `no_unit`.
        no_unit: Fields whose values are no independent repeats.
        parts: Parts that the report knows; a study must have one of them.
        columns: Further columns: the first of several fields or parameters that a run has, with other names
            for some of its values.
        means: Names that stand for the mean of several methods.
        without_budget: Methods without an epsilon, which stand beside every one.
    """

    unit: str = UNIT
    no_unit: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    columns: Mapping[str, tuple[tuple[str, ...], Mapping[str, Hashable]]]
    means: Mapping[str, tuple[str, ...]]
    without_budget: tuple[str, ...] = ()


def columns_of(experiment: Experiment) -> dict[str, Hashable]:
    """Fields, parameters and tags of an experiment, by the names of their columns."""
    columns: dict[str, Hashable] = {
        PART: experiment.group,
        METHOD: experiment.variant,
        "steps": experiment.steps,
    }
    for item in fields(Experiment):
        value = getattr(experiment, item.name)
        if item.name == "tags":
            columns |= value
        elif isinstance(value, Mapping):
            columns |= {f"{item.name}.{name}": inner for name, inner in value.items()}
        else:
            columns[item.name] = value
    return columns


class Outcomes:
    """The outcomes of a study's experiments, read as a table.

    Args:
        layout: What the report declares.
        numbers: Numbers of a run that are computed; any other is one of its record's metrics.

    Raises:
        InputError: the study has another unit of replication, or none of the parts.
    """

    def __init__(self, results: StudyResults, layout: Layout, numbers: Mapping[str, Number]) -> None:
        study = results.study
        if study.replication in layout.no_unit:
            raise InputError(
                f"replication must not be one of {', '.join(layout.no_unit)}, whose values are no "
                f"independent repeats here, got {study.replication!r}"
            )
        if layout.unit not in ("", study.replication):
            raise InputError(
                f"replication must be {layout.unit!r}: "
                f"the paper's means are over {layout.unit}s, got {study.replication!r}"
            )
        self.unit, self.layout, self._outcomes = study.replication, layout, results.outcomes
        self._numbers = numbers
        self._computed: dict[tuple[int, str], tuple[Outcome, float]] = {}
        self._read: set[str] | None = None
        self.table = pd.DataFrame([self._row(outcome) for outcome in results.outcomes], dtype=object)
        self._masks: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self._found: dict[tuple[str, Setting], list[Outcome]] = {}
        self._samples: dict[tuple[tuple[str, ...], Setting, str | Number], Sample | None] = {}
        if not any(self.part(name) for name in layout.parts):
            known = ", ".join(map(repr, layout.parts))
            raise InputError(f"study {study.name!r} must have a group whose part is one of {known}")

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        row = columns_of(outcome.experiment)
        for name, (sources, words) in self.layout.columns.items():
            value = next((row[source] for source in sources if row.get(source) is not None), None)
            row[name] = words.get(str(value), value)
        return {**row, "status": outcome.status, **{f"metrics.{k}": v for k, v in outcome.metrics.items()}}

    @contextmanager
    def reading(self) -> Iterator[set[str]]:
        """Collect the keys of all outcomes that are looked up meanwhile."""
        before, self._read = self._read, set()
        try:
            yield self._read
        finally:
            within, self._read = self._read, before
            self.note_read(within)

    def note_read(self, keys: Iterable[str]) -> None:
        """Count these outcomes as looked up, as a number that was computed earlier does."""
        if self._read is not None:
            self._read.update(keys)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """All outcomes, in the study's order."""
        self.note_read(outcome.key for outcome in self._outcomes)
        return self._outcomes

    @property
    def units(self) -> list[Any]:
        """All units of replication (the seeds, usually), ascending."""
        return sorted({getattr(outcome.experiment, self.unit) for outcome in self._outcomes})

    def part(self, parts: Parts) -> list[Outcome]:
        """All outcomes of some parts, part by part in the study's order."""
        return [
            outcome for name in _several(parts) for outcome in self._fitting(name, Setting(), in_order=False)
        ]

    def value(self, outcome: Outcome, column: str) -> Any:
        """The value in a column of an outcome; None where it has no such column."""
        return self._row(outcome).get(column)

    def values(self, parts: Parts, column: str, setting: Setting | None = None) -> list[Any]:
        """The values of a column in some runs: numbers ascending, anything else in the study's order."""
        if column not in self.table:
            return []
        column_values = self.table[column][self._mask(_several(parts), setting or Setting())].dropna()
        known = list(dict.fromkeys(column_values))
        return sorted(known) if all(isinstance(value, int | float) for value in known) else known

    def settings(self, parts: Parts, columns: Sequence[str], setting: Setting | None = None) -> list[Setting]:
        """The distinct settings of some runs in these columns, in the study's order."""
        known = [name for name in columns if name in self.table]
        rows = self.table.loc[self._mask(_several(parts), setting or Setting()), known]
        settings = (
            Setting.of(**{name: value for name, value in zip(known, row, strict=True) if pd.notna(value)})
            for row in rows.itertuples(index=False, name=None)
        )
        return list(dict.fromkeys(settings))

    def _mask(self, parts: Sequence[str], setting: Setting) -> Any:
        if self.table.empty:
            return np.zeros(0, dtype=bool)
        mask = self._is_in(PART, tuple(parts))
        for name, value in setting.values:
            if name not in self.table:
                return np.zeros(len(self.table), dtype=bool)
            wanted = self.layout.means.get(str(value), (value,)) if name == METHOD else (value,)
            mask = mask & self._is_in(name, tuple(wanted))
        return mask

    def _is_in(self, column: str, wanted: tuple[Any, ...]) -> Any:
        if (column, wanted) not in self._masks:
            self._masks[column, wanted] = self.table[column].isin(wanted).to_numpy()
        return self._masks[column, wanted]

    def _fitting(self, part: str, setting: Setting, *, in_order: bool = True) -> list[Outcome]:
        place = (part, setting)
        if place not in self._found:
            self._found[place] = [self._outcomes[i] for i in np.flatnonzero(self._mask([part], setting))]
        fitting = self._found[place]
        self.note_read(outcome.key for outcome in fitting)
        return sorted(fitting, key=lambda outcome: outcome.experiment.seed) if in_order else fitting

    def runs(self, parts: Parts, setting: Setting) -> list[Outcome]:
        """The runs of a setting, whatever came of them, by seed; of the first of the parts that has any."""
        by_part = (self._fitting(name, setting) for name in _several(parts))
        return next((runs for runs in by_part if runs), [])

    def done(self, parts: Parts, setting: Setting) -> list[Outcome]:
        """Those of `runs` that are done."""
        return [run for run in self.runs(parts, setting) if run.status is Status.DONE]

    def number(self, outcome: Outcome, name: str | Number) -> float:
        """A number of a finished outcome, by its name or computed; NaN where it has none."""
        if callable(name):
            return name(outcome)
        of = self._numbers.get(name)
        if of is None:
            return float(outcome.metrics.get(name, np.nan))
        place = (id(outcome), name)  # Kept with the outcome, so that no other one has its id.
        if place not in self._computed:
            self._computed[place] = (outcome, of(outcome))
        return self._computed[place][1]

    def sample(self, parts: Parts, setting: Setting, number: str | Number) -> Sample | None:
        """A number of the finished runs of a setting, one a unit; None where there is none.

        Where several runs of a unit fit the setting, their mean stands for the unit.
        """
        place = tuple(_several(parts)), setting, number
        runs = self.done(place[0], setting)
        if place not in self._samples:
            values = [self.number(run, number) for run in runs]
            units = [getattr(run.experiment, self.unit) for run in runs]
            kept = [(unit, value) for unit, value in zip(units, values, strict=True) if usable(value)]
            self._samples[place] = self._over_units(kept)
        return self._samples[place]

    def over_units(self, rows: pd.DataFrame) -> Sample | None:
        """The mean of the column `value` within each `unit`, in order of appearance; None without any row."""
        return self._over_units(rows[["unit", "value"]].itertuples(index=False, name=None))

    def _over_units(self, pairs: Iterable[tuple[Any, float]]) -> Sample | None:
        values: dict[Any, list[float]] = {}
        for name, value in pairs:
            values.setdefault(name, []).append(value)
        if not values:
            return None
        means = {name: float(np.mean(some)) for name, some in values.items()}
        return Sample(np.array(list(means.values())), tuple(means), self.unit)

    def complete(self, parts: Parts, setting: Setting, number: str | Number) -> Sample | str:
        """The sample of a number where every run of the setting is done; else the reason.

        What is left of a setting with a lost run would be the units that went well, which decide nothing.
        """
        runs = self.runs(parts, setting)
        lost = [run for run in runs if run.status is not Status.DONE]
        if lost and len(lost) < len(runs):
            first = next((run.error for run in lost if run.error), "not run yet")
            return f"{len(lost)} of {len(runs)} runs are lost ({first})"
        sample = self.sample(parts, setting, number)
        return self.missing(parts, setting) if sample is None else sample

    def is_awaited(self, parts: Parts, *settings: Setting) -> bool:
        """Whether a run of one of the settings is not made yet."""
        return any(run.status is Status.MISSING for setting in settings for run in self.runs(parts, setting))

    def missing(self, parts: Parts, setting: Setting) -> str:
        """Why a setting has no number, in words."""
        runs = self.runs(parts, setting)
        if not runs:
            return NOT_HERE
        failed = next((run.error for run in runs if run.error), "")
        if failed:
            return f"its run failed: {failed}"
        if any(run.status is Status.MISSING for run in runs):
            return "not run yet"
        return "the run has no such number"


def _several(parts: Parts) -> tuple[str, ...]:
    return (parts,) if isinstance(parts, str) else tuple(parts)
