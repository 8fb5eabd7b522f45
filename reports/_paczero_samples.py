"""A PACZero study's outcomes by group and setting, and as samples whose unit of replication is the seed.

A seed draws the universe, the held-out records, the directions, the candidate subsets and the secret: two
runs that differ in the method alone share all of these, and are compared as pairs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from workbench.errors import InputError
from workbench.experiments import Outcome, Status, StudyResults
from workbench.reports._paczero_layout import (
    GROUPS,
    NOT_HERE,
    UNIT,
    Setting,
    group_of,
    number_of,
    task_of,
    track_of,
    variant_of,
)
from workbench.reports._stat_sample import usable
from workbench.reports.statistics import Sample


class Measured:
    """The outcomes of a study, by group.

    Args:
        results: With the unit of replication "seed".

    Raises:
        InputError: the study declares another unit of replication.
    """

    def __init__(self, results: StudyResults) -> None:
        if results.study.replication != UNIT:
            raise InputError(
                f"replication must be {UNIT!r}: the paper's means are over seeds, got "
                f"{results.study.replication!r}"
            )
        self.outcomes = results.outcomes
        self.by_group: dict[str, list[Outcome]] = {name: [] for name in GROUPS}
        for outcome in results.outcomes:
            self.by_group.setdefault(group_of(outcome.experiment), []).append(outcome)

    @property
    def seeds(self) -> list[int]:
        """All seeds, ascending."""
        return sorted({one.experiment.seed for one in self.outcomes})

    def runs(self, groups: str | Iterable[str], setting: Setting) -> list[Outcome]:
        """The runs of a setting, whatever came of them, by seed; of the first of the groups that has any."""
        for group in (groups,) if isinstance(groups, str) else groups:
            found = [one for one in self.by_group.get(group, ()) if setting.holds(one.experiment)]
            if found:
                return sorted(found, key=lambda one: one.experiment.seed)
        return []

    def settings(self, group: str, **fixed: str | float | int | None) -> list[Setting]:
        """The settings of a group's runs, in the study's order, each with all of its fields."""
        wanted = Setting(**fixed)  # type: ignore[arg-type]
        found: dict[Setting, None] = {}
        for one in self.by_group.get(group, ()):
            experiment = one.experiment
            if wanted.holds(experiment):
                own = Setting(
                    variant=variant_of(experiment),
                    task=task_of(experiment),
                    track=track_of(experiment),
                    epsilon=experiment.epsilon,
                    steps=experiment.steps,
                    learning_rate=experiment.learning_rate,
                )
                found[own] = None
        return list(found)

    def sample(self, groups: str | Iterable[str], setting: Setting, name: str) -> Sample | None:
        """A number of the finished runs of a setting, one a seed; None where there is none.

        Where several runs of a seed fit the setting, their mean stands for the seed.
        """
        found = [
            (one.experiment.seed, number_of(one, name))
            for one in self.runs(groups, setting)
            if one.status is Status.DONE
        ]
        kept = [(seed, value) for seed, value in found if usable(value)]
        if not kept:
            return None
        by_seed: dict[int, list[float]] = {}
        for seed, value in kept:
            by_seed.setdefault(seed, []).append(value)
        return Sample(np.array([float(np.mean(values)) for values in by_seed.values()]), tuple(by_seed), UNIT)

    def missing(self, groups: str | Iterable[str], setting: Setting) -> str:
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
