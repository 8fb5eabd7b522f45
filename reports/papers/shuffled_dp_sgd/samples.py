"""A Shuffled DPSGD study's outcomes by group and setting, and as samples over seeds.

A seed draws the records, the model's start, the samples, the noise and the permutations: runs of one seed
that differ in the method alone share records and start, and are compared as pairs.
"""

from __future__ import annotations

from collections.abc import Iterable

from workbench.reports.papers.shuffled_dp_sgd.layout import (
    AUDIT,
    GROUPS,
    NOISES,
    RATES,
    Setting,
    dataset_of,
    model_of,
    number_of,
    part_of,
    variant_of,
)
from workbench.reports.shared.paper_samples import SeededRuns
from workbench.studies.experiments import Outcome, StudyResults


class Measured(SeededRuns):
    """The outcomes of a study, by group.

    Args:
        results: With the unit of replication "seed".

    Raises:
        InputError: the study declares another unit of replication.
    """

    def __init__(self, results: StudyResults) -> None:
        super().__init__(results, GROUPS, number_of)

    def settings(self, groups: str | Iterable[str], **fixed: str | float | None) -> list[Setting]:
        """The settings of some groups' runs, in the study's order, each with all of its fields."""
        wanted = Setting(**fixed)  # type: ignore[arg-type]
        found: dict[Setting, None] = {}
        for group in (groups,) if isinstance(groups, str) else groups:
            for one in self.by_group.get(group, ()):
                experiment = one.experiment
                if wanted.holds(experiment):
                    own = Setting(
                        model=model_of(experiment),
                        dataset=dataset_of(experiment),
                        variant=variant_of(experiment),
                        epsilon=experiment.epsilon,
                    )
                    found[own] = None
        return list(found)

    def places(self, groups: str | Iterable[str]) -> list[tuple[str, str]]:
        """Model and dataset of the runs of some groups, as the paper names them, each once."""
        pairs = [(str(one.model), str(one.dataset)) for one in self.settings(groups)]
        return list(dict.fromkeys(pairs))

    def epsilons(self, groups: str | Iterable[str]) -> list[float]:
        """Budgets of the runs of some groups, ascending."""
        return sorted({one.epsilon for one in self.settings(groups) if one.epsilon is not None})

    def audits(self, *parts: str) -> list[Outcome]:
        """Runs of the audit whose group says one of these after its comma; all others where none is given."""
        runs = self.by_group[AUDIT]
        if parts:
            return [one for one in runs if part_of(one.experiment) in parts]
        return [one for one in runs if part_of(one.experiment) not in (RATES, NOISES)]
