"""Plans a run: what its store lacks, and what that will cost; and refuses what does not go together."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.errors import RoomError
from workbench.execution.store import Store

if TYPE_CHECKING:
    from workbench.studies.costs import CostEstimate
    from workbench.studies.experiments import Experiment, Study
    from workbench.studies.results import Pending


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One group and variant, with the number of its jobs to do and of its experiments by status.

    A training that two rows share is counted in both, but once in the totals.
    """

    group: str
    variant: str
    trainings: int
    measurings: int
    done: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run: rows for the table, jobs, and what they cost."""

    rows: tuple[PlanRow, ...]
    pending: Pending
    cost: CostEstimate


def check_fits(study: Study) -> None:
    """Refuse models, corpora and mechanisms of a study that do not go together, one seed for all.

    Raises:
        InputError: of which group and variant, and why (`workbench.training.setup.check_fit`).
    """
    from workbench.core.keys import canonical
    from workbench.studies.file import place
    from workbench.studies.jobs import setup_of
    from workbench.training import setup as workers

    seen: set[str] = set()
    for experiment in study.experiments:
        combination = canonical([getattr(experiment, name) for name in _DECIDE_FIT])
        if combination in seen:
            continue
        seen.add(combination)
        with place(f"group {experiment.group!r}, variant {experiment.variant!r}"):
            workers.check_fit(setup_of(experiment))


def check_records(study: Study) -> None:
    """Refuse corpora of a study that have too few records on this machine; the largest of each is made.

    Raises:
        InputError: of which group and variant, and how many there are.
    """
    from workbench.core.keys import canonical
    from workbench.studies.file import place
    from workbench.studies.jobs import setup_of
    from workbench.training.setup import load_corpus

    largest: dict[str, Experiment] = {}
    for experiment in study.experiments:
        corpus = canonical([experiment.corpus, experiment.corpus_parameters])
        if corpus not in largest or experiment.members > largest[corpus].members:
            largest[corpus] = experiment
    for experiment in largest.values():
        with place(f"group {experiment.group!r}, variant {experiment.variant!r}"):
            try:
                load_corpus(setup_of(experiment))
            except RoomError as error:
                raise error.of("2 x members") from None


_DECIDE_FIT = tuple(
    f"{name}{suffix}" for name in ("mechanism", "attack", "corpus", "model") for suffix in ("", "_parameters")
)


def make_plan(study: Study, out: Path, *, retry_failed: bool, probe_seconds: float | None) -> Plan:
    """Read the store in a folder, which may be missing, and estimate the cost; writes nothing.

    Args:
        retry_failed: Failures count as not done.
        probe_seconds: Try a few steps of what no record tells the cost of, for so long; None for not at all.
    """
    from workbench.studies import costs
    from workbench.studies.results import pending

    with store_in(out / "store") as store:
        waiting = pending(study, store, retry_failed=retry_failed)
        rows = _rows(study, store, waiting)
        cost = costs.estimate(store, waiting)
        if probe_seconds is not None and cost.unknown:
            cost = costs.probe(store, waiting, seconds=probe_seconds)
    return Plan(rows=rows, pending=waiting, cost=cost)


def _rows(study: Study, store: Store, waiting: Pending) -> tuple[PlanRow, ...]:
    """A row for each group and variant, in the order of the study."""
    from workbench.studies.experiments import Status
    from workbench.studies.jobs import StudyJob, jobs_of
    from workbench.studies.results import Known

    known = Known(store)
    to_train = {job.key for job in waiting.trainings}
    to_measure = {job.key for job in waiting.measurings}
    parts: dict[tuple[str, str], dict[str, StudyJob]] = {}
    for experiment in study.experiments:
        job = jobs_of(experiment).measuring
        parts.setdefault((experiment.group, experiment.variant), {})[job.key] = job
    rows = []
    for (group, variant), jobs in parts.items():
        left = [job for key, job in jobs.items() if key in to_measure]
        over = [known.status(job)[0] for key, job in jobs.items() if key not in to_measure]
        row = PlanRow(
            group=group,
            variant=variant,
            trainings=len({key for job in left for key in job.needs} & to_train),
            measurings=len(left),
            done=over.count(Status.DONE),
            failed=over.count(Status.FAILED),
        )
        rows.append(row)
    return tuple(rows)


@contextmanager
def store_in(folder: Path) -> Iterator[Store]:
    """The store of a folder; where there is none, an empty one elsewhere, so that looking makes no folder."""
    with tempfile.TemporaryDirectory() as empty:
        store = Store(folder if folder.is_dir() else Path(empty))
        try:
            yield store
        finally:
            store.close()
