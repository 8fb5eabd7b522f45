"""A study's outcomes by group and setting, and as samples whose unit of replication is the seed.

What the reports of several papers share. A seed draws the data and what a run leaves to chance: two runs that
differ in the method alone share all of it, and are compared as pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

import numpy as np

from workbench.core.errors import InputError
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Experiment, Outcome, Status, StudyResults

UNIT = "seed"

NOT_HERE = "not part of this profile"
"""Why a printed setting has no run of ours."""


def group_of(experiment: Experiment) -> str:
    """Its group; what a group's name says after a comma ("headline, LoRA") tells only how it is run."""
    return experiment.group.partition(",")[0]


class RunSetting(Hashable, Protocol):
    """What tells the runs of a group apart but the seed."""

    def holds(self, experiment: Experiment) -> bool:
        """Whether an experiment is one of its runs."""


class SeededRuns:
    """The outcomes of a study, by group.

    Args:
        results: With the unit of replication "seed".
        groups: Names that a report knows; others are kept, too.
        number_of: A number of a finished outcome by its name; NaN where it has none.

    Raises:
        InputError: the study declares another unit of replication.
    """

    def __init__(
        self, results: StudyResults, groups: Sequence[str], number_of: Callable[[Outcome, str], float]
    ) -> None:
        if results.study.replication != UNIT:
            raise InputError(
                f"replication must be {UNIT!r}: the paper's means are over seeds, got "
                f"{results.study.replication!r}"
            )
        self._number_of = number_of
        self._found: dict[tuple[str, RunSetting], list[Outcome]] = {}
        self.outcomes = results.outcomes
        self.by_group: dict[str, list[Outcome]] = {name: [] for name in groups}
        for outcome in results.outcomes:
            self.by_group.setdefault(group_of(outcome.experiment), []).append(outcome)

    @property
    def seeds(self) -> list[int]:
        """All seeds, ascending."""
        return sorted({one.experiment.seed for one in self.outcomes})

    def runs(self, groups: str | Iterable[str], setting: RunSetting) -> list[Outcome]:
        """The runs of a setting, whatever came of them, by seed; of the first of the groups that has any."""
        for group in (groups,) if isinstance(groups, str) else groups:
            place = (group, setting)
            if place not in self._found:
                found = [one for one in self.by_group.get(group, ()) if setting.holds(one.experiment)]
                self._found[place] = sorted(found, key=lambda one: one.experiment.seed)
            if self._found[place]:
                return self._found[place]
        return []

    def done(self, groups: str | Iterable[str], setting: RunSetting) -> list[Outcome]:
        """Those of `runs` that are done."""
        return [one for one in self.runs(groups, setting) if one.status is Status.DONE]

    def sample(self, groups: str | Iterable[str], setting: RunSetting, name: str) -> Sample | None:
        """A number of the finished runs of a setting, one a seed; None where there is none.

        Where several runs of a seed fit the setting, their mean stands for the seed.
        """
        found = [(one.experiment.seed, self._number_of(one, name)) for one in self.done(groups, setting)]
        kept = [(seed, value) for seed, value in found if usable(value)]
        if not kept:
            return None
        by_seed: dict[int, list[float]] = {}
        for seed, value in kept:
            by_seed.setdefault(seed, []).append(value)
        return Sample(np.array([float(np.mean(values)) for values in by_seed.values()]), tuple(by_seed), UNIT)

    def complete(self, groups: str | Iterable[str], setting: RunSetting, name: str) -> Sample | str:
        """As `sample`, where every run of the setting is done; else the reason.

        What is left of a setting with a lost run would be the seeds that went well, which decide nothing.
        """
        runs = self.runs(groups, setting)
        lost = [one for one in runs if one.status is not Status.DONE]
        if lost and len(lost) < len(runs):
            first = next((one.error for one in lost if one.error), "not run yet")
            return f"{len(lost)} of {len(runs)} runs are lost ({first})"
        sample = self.sample(groups, setting, name)
        return self.missing(groups, setting) if sample is None else sample

    def is_awaited(self, groups: str | Iterable[str], setting: RunSetting) -> bool:
        """Whether a run of a setting is not made yet."""
        return any(one.status is Status.MISSING for one in self.runs(groups, setting))

    def missing(self, groups: str | Iterable[str], setting: RunSetting) -> str:
        """Why a setting has no number, in words."""
        runs = self.runs(groups, setting)
        if not runs:
            return NOT_HERE
        failed = next((one.error for one in runs if one.error), "")
        if failed:
            return f"its run failed: {failed}"
        if any(one.status is Status.MISSING for one in runs):
            return "not run yet"
        return "the run has no such number"
