"""Rounds of `workbench.run(..., until_decided=True)`: which looks come next, and what they cost."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ArgumentError
from workbench.core.one_line import object_line
from workbench.studies.deciding import CONFIDENCE, Decisions, Looks, Standing, require_known
from workbench.studies.report import Replication

if TYPE_CHECKING:
    from workbench.checks.published import PublishedPaper
    from workbench.studies.costs import CostEstimate
    from workbench.studies.experiments import Experiment, Study, StudyResults

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:s|min|m|h|d))+")
_PIECE = re.compile(r"([0-9.]+)(s|min|m|h|d)")


def seconds_of(argument: str, value: Any) -> float:
    """Read a length of time: seconds above 0, or a text such as `"90s"`, `"45m"`, `"3h"` or `"1h30m"`.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(value, str) and _DURATION.fullmatch(value):
        value = sum(float(count) * _UNITS[unit] for count, unit in _PIECE.findall(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ArgumentError(
            argument, f"must be a time such as 90s, 45m, 3h or 1h30m, got {object_line(value)}"
        )
    return float(value)


def published_of(study: Study) -> PublishedPaper | None:
    """The printed numbers of the study's paper; None where it has none."""
    from workbench.checks.published import published

    return published(study.paper) if study.paper else None


def decisions_of(study: Study, folder: Path, looks: Looks, *, confidence: float = CONFIDENCE) -> Decisions:
    """The conclusions of a study's paper, read from the store in a folder.

    Raises:
        InputError: the study has no conclusions to decide.
    """
    from workbench.studies.plan import store_in
    from workbench.studies.results import read_results

    def read(some: Study) -> StudyResults:
        """What the store has of some experiments."""
        with store_in(folder) as store:
            return read_results(some, store)

    return Decisions(study, published_of(study), looks, read, confidence=confidence)


@dataclass(frozen=True, kw_only=True)
class NextLooks:
    """The next look at each open conclusion.

    Attributes:
        jobs: Keys of the jobs to run for it.
        cost: Of all of them together.
        workers: That do them at a time.
    """

    jobs: Mapping[str, frozenset[str]]
    cost: CostEstimate
    workers: int

    def seconds(self, claims: Collection[str]) -> float:
        """Time for the next looks at some conclusions together, as far as it is known."""
        keys = frozenset[str]().union(*(self.jobs[claim] for claim in claims))
        return math.fsum(self.cost.job_seconds.get(key, 0.0) for key in keys) / self.workers

    def is_known(self, claim: str) -> bool:
        """Whether the cost of all jobs of a conclusion is known."""
        return self.jobs[claim] <= self.cost.job_seconds.keys()


def _may_tell(standing: Standing) -> bool:
    """Whether more seeds may decide it; not where nothing that is run can be tested."""
    finding = standing.finding
    return standing.is_open and not (finding.outcome is Replication.NOT_RUN and finding.needed is None)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The looks of a run at a paper's conclusions.

    Attributes:
        decisions: With the looks that were made, and those that the run under way is for.
        folder: Of the study's store.
        budget: Seconds that may be spent; None for any.
        chosen: Experiments of the study's own that are run; settings of others get no seeds.
        selection: What `--only` and `--limit` chose, in words; empty for everything.
        workers: At work at a time, 0 for this process; None where that is not known.
        started: When the first round began, by `time.monotonic`.
    """

    decisions: Decisions
    folder: Path
    chosen: Sequence[Experiment]
    selection: Sequence[str]
    budget: float | None
    workers: int | None
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(
        cls,
        study: Study,
        folder: Path,
        earlier: Looks,
        *,
        claims: Sequence[str],
        chosen: Sequence[Experiment],
        selection: Sequence[str],
        budget: float | None,
        workers: int | None,
    ) -> Rounds:
        """What an earlier run looked at, and a first look at whatever else is to be decided; empty for all.

        Raises:
            InputError: the paper does not draw such a conclusion, or there is none to decide.
        """
        paper = published_of(study)
        if paper is not None:
            require_known(claims, paper)
        known = [claim.id for claim in paper.claims] if paper is not None else []
        units = len({experiment.seed for experiment in study.experiments})
        looks = {claim: earlier.get(claim, (units,)) for claim in claims or known}
        decisions = decisions_of(study, folder, {**earlier, **looks})
        return cls(
            decisions=decisions,
            folder=folder,
            chosen=chosen,
            selection=selection,
            budget=budget,
            workers=workers,
        )

    def study(self) -> Study:
        """What is to be run for the looks."""
        return self.decisions.to_run(self.chosen)

    def next_looks(self, probe_seconds: float | None = None) -> NextLooks:
        """What the next look at each open conclusion asks for.

        Args:
            probe_seconds: For how long to try what no record tells the cost of; None for not at all.
        """
        from workbench.studies import costs
        from workbench.studies.plan import store_in
        from workbench.studies.results import pending

        standings = self.decisions.standings()
        claims = [claim for claim in self.decisions.looks if _may_tell(standings[claim])]
        with store_in(self.folder) as store:
            waiting = pending(self.decisions.next_study(claims), store)
            cost = costs.estimate(store, waiting)
            if probe_seconds is not None and cost.unknown:
                cost = costs.probe(store, waiting, seconds=probe_seconds)
            jobs = {}
            for claim in claims:
                some = pending(self.decisions.next_study([claim]), store)
                jobs[claim] = frozenset(job.key for job in (*some.trainings, *some.measurings))
        return NextLooks(jobs=jobs, cost=cost, workers=max(1, self.workers or 1))

    def rows(self) -> list[dict[str, Any]]:
        """How each conclusion that is to be decided stands, as plain data."""
        standings = self.decisions.standings()
        return [
            {
                "id": claim,
                "outcome": str(standings[claim].finding.outcome),
                "looks": standings[claim].looks,
                "units": standings[claim].units,
                "needed": standings[claim].finding.needed,
            }
            for claim in self.decisions.looks
        ]

    def looked(self) -> Rounds:
        """The same after the run that it was for."""
        return replace(self, decisions=self.decisions.again())

    def following(self, looks: NextLooks) -> Rounds | None:
        """The next round: looks that fit into the rest of the time together, cheapest first; or None."""
        chosen: list[str] = []
        spent = time.monotonic() - self.started
        for claim in sorted(looks.jobs, key=lambda claim: looks.seconds([claim])):
            if self.budget is None or spent + looks.seconds([*chosen, claim]) < self.budget:
                chosen.append(claim)
        return replace(self, decisions=self.decisions.with_next_looks(chosen)) if chosen else None
