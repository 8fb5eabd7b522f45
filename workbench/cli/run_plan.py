"""What a run of a study will do and what it will cost: looked up and shown before anything starts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workbench.cli.display import Expected, duration, plural
from workbench.execution.store import Store

if TYPE_CHECKING:
    from workbench.studies.costs import CostEstimate
    from workbench.studies.experiments import Study
    from workbench.studies.run import Pending


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One group and variant: how many jobs are to do, and how many experiments are not.

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
    """What a run will do: rows for the table, jobs, and what they cost."""

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
        asked = canonical([getattr(experiment, name) for name in _DECIDE_FIT])
        if asked in seen:
            continue
        seen.add(asked)
        with place(f"group {experiment.group!r}, variant {experiment.variant!r}"):
            workers.check_fit(setup_of(experiment))


_DECIDE_FIT = tuple(
    f"{name}{suffix}" for name in ("mechanism", "attack", "corpus", "model") for suffix in ("", "_parameters")
)


def make_plan(study: Study, out: Path, *, retry_failed: bool, probe_seconds: float | None) -> Plan:
    """Look into the store, and estimate; writes nothing.

    Args:
        study: The study.
        out: Its folder, which may be missing.
        retry_failed: Failures count as not done.
        probe_seconds: Try a few steps of what no record tells the cost of, for so long; None for not at all.
    """
    from workbench.studies import costs
    from workbench.studies import jobs as study_jobs

    with _store(out) as store:
        waiting = study_jobs.pending(study, store, retry_failed=retry_failed)
        rows = _rows(study, store, waiting)
        cost = costs.estimate(study, store, waiting)
        if probe_seconds is not None and cost.unknown:
            cost = costs.probe(study, store, waiting, seconds=probe_seconds)
    return Plan(rows=rows, pending=waiting, cost=cost)


def _rows(study: Study, store: Store, waiting: Pending) -> tuple[PlanRow, ...]:
    """A row for each group and variant, in the order of the study."""
    from workbench.studies.experiments import Status
    from workbench.studies.jobs import Known, StudyJob, jobs_of

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
        over = [known.status(job) for key, job in jobs.items() if key not in to_measure]
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
def _store(out: Path) -> Iterator[Store]:
    """The store of a folder; where there is none, an empty one elsewhere, so that looking makes no folder."""
    with tempfile.TemporaryDirectory() as empty:
        store = Store(out / "store" if (out / "store").is_dir() else Path(empty))
        try:
            yield store
        finally:
            store.close()


def print_plan(console: Console, study: Study, plan: Plan) -> None:
    """What will run: a row for each group and variant, and the totals."""
    waiting = plan.pending
    profile = f" ({study.profile})" if study.profile else ""
    console.print(Text(f"{study.name}{profile}: {study.title}"), soft_wrap=True)
    table = Table(box=box.SIMPLE, pad_edge=False, show_footer=len(plan.rows) > 1)
    table.add_column("group", footer="in all", overflow="fold")
    table.add_column("variant", overflow="fold")
    totals = (len(waiting.trainings), len(waiting.measurings), waiting.done, waiting.failed)
    names = ("to train", "to measure", "done", "failed before")
    for name, total in zip(names, totals, strict=True):
        table.add_column(name, footer=str(total), justify="right", overflow="fold")
    for row in plan.rows:
        numbers = (row.trainings, row.measurings, row.done, row.failed)
        table.add_row(Text(row.group), Text(row.variant), *map(str, numbers))
    console.print(table)
    trainings = sum(row.trainings for row in plan.rows)
    experiments = sum(row.measurings + row.done + row.failed for row in plan.rows)
    if trainings > totals[0] or experiments > sum(totals[1:]):
        console.print(Text("What rows share is counted once in all."), soft_wrap=True)


def print_cost(console: Console, plan: Plan, *, workers: int | None, is_detailed: bool) -> None:
    """What the run will cost, as far as it is known, and from what it is known.

    Args:
        console: Where.
        plan: The plan.
        workers: At work at a time, 0 for this process; None where that is not known (a cluster).
        is_detailed: Say what is not counted, and why, also where nothing is.
    """
    cost = plan.cost
    if not plan.pending.measurings:
        return
    words = "not known yet"
    if cost.core_seconds > 0:
        words = f"{duration(cost.core_seconds)} of one core"
        if workers is not None:
            count = max(1, workers)
            words += f", about {duration(cost.wall_seconds(count))} with {plural(count, 'worker')}"
        sources = [f"from {plural(cost.measured_from, 'earlier record')}"] if cost.measured_from else []
        sources += ["by trying a few steps"] if cost.is_probed else []
        words += f" (measured {' and '.join(sources)})"
    console.print(Text(f"Cost: {words}"), soft_wrap=True)
    borrowed = dict.fromkeys(one.counted_as for one in cost.per_kind if one.counted_as)
    if borrowed:
        console.print(Text(f"  counted: {', '.join(borrowed)}"), soft_wrap=True)
    for line in cost.unknown if cost.core_seconds > 0 or is_detailed else ():
        console.print(Text(f"  not counted: {line}"), soft_wrap=True)


def expected_jobs(plan: Plan) -> list[Expected]:
    """The jobs of the run, each with what it is expected to cost."""
    seconds = plan.cost.job_seconds
    return [
        Expected(id=job.key, kind=str(job.kind), label=job.label, seconds=seconds.get(job.key))
        for job in (*plan.pending.trainings, *plan.pending.measurings)
    ]
