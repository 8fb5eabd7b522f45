"""A PACZero study's outcomes by group and setting, and as samples whose unit of replication is the seed.

A seed draws the universe, the held-out records, the directions, the candidate subsets and the secret: two
runs that differ in the method alone share all of these, and are compared as pairs.
"""

from __future__ import annotations

from workbench.reports.papers.paczero.layout import GROUPS, Setting, number_of, task_of, track_of, variant_of
from workbench.reports.shared.paper_samples import SeededRuns
from workbench.studies.experiments import StudyResults


class Measured(SeededRuns):
    """The outcomes of a study, by group.

    Args:
        results: With the unit of replication "seed".

    Raises:
        InputError: the study declares another unit of replication.
    """

    def __init__(self, results: StudyResults) -> None:
        super().__init__(results, GROUPS, number_of)

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
