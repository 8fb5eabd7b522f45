"""`workbench.run`: runs the experiments of a study that its store does not have yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.core.arguments import names_of, number, path_of, whole_number, yes_or_no
from workbench.core.errors import ArgumentError, InputError, naming_extras
from workbench.core.keys import JSON, plain
from workbench.core.one_line import object_line
from workbench.core.outputs import require_folder_place
from workbench.core.results import Result
from workbench.execution.store import Store
from workbench.studies.plan import Plan, check_fits, check_records, make_plan
from workbench.studies.rounds import NextLooks, Rounds, seconds_of
from workbench.studies.starting_points import missing_bases, placed, stand_ins, with_stand_ins

if TYPE_CHECKING:
    from workbench.studies.experiments import Study
    from workbench.studies.run import RunEvent, RunSummary

SCHEMA = 1
"""Of the record; raised whenever the meaning of a field changes."""

MOST_WORKERS = 1024
"""More processes than that are a slip of the pen on any machine."""

MOST_TRYING = 86_400.0
"""Seconds that a dry run may try."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An experiment that is recorded as failed, and its error in one line."""

    experiment: str
    error: str


class RunResult(Result):
    """What was planned of a run, and what was done.

    Attributes:
        plan: What the store lacked.
        summary: What was done; None after a dry run.
        failures: Experiments that are recorded as failed.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        summary: RunSummary | None = None,
        failures: Sequence[Failure] = (),
        *,
        stopped: str = "",
    ) -> None:
        self.plan, self.summary, self.failures = prepared.plan, summary, tuple(failures)
        super().__init__(_record(prepared, summary, failures, stopped=stopped))

    @property
    def verdict(self) -> str:
        """`DONE`, `FAILED` (some experiments), `STOPPED`, or `PLANNED` after a dry run."""
        outcome = self.record["outcome"]
        if outcome is None:
            return "PLANNED"
        if outcome["stopped"]:
            return "STOPPED"
        return "FAILED" if self.failures else "DONE"

    @property
    def sentence(self) -> str:
        """How many experiments were done, and how many failed."""
        study, outcome = self.record["study"]["name"], self.record["outcome"]
        if outcome is None:
            waiting = self.record["totals"]
            return f"{study}: {waiting['trainings']} to train, {waiting['measurings']} to measure"
        done = f"{outcome['done']} experiments done, {outcome['skipped']} done before"
        return f"{study}: {done}, {len(self.failures)} failed, in {outcome['seconds']:.1f} s"

    @property
    def exit_code(self) -> int:
        """0 every chosen experiment is done, or planned; 1 some failed."""
        return 1 if self.failures else 0

    @property
    def bounds(self) -> tuple[()]:
        """None: a run judges nothing; see `workbench.report`."""
        return ()

    def rows(self) -> list[dict[str, Any]]:
        """A row a group and variant, as it was planned."""
        return [dict(row) for row in self.record["rows"]]


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run whose arguments are checked, and whose cost is known as far as records tell.

    Attributes:
        study, out: What to run, and the folder of its store.
        plan: What the store lacks.
        lacking: Base models that a dry run did not build.
        workers: Processes, 0 for this one; None for a cluster's.
        scheduler, retry_failed, bases: As given to `run`.
        device: Where the caller named one; else empty.
        source, command: The study as it was named, and how to go on.
        rounds: The looks that the run is for; None where no seeds are added.
    """

    study: Study
    out: Path
    plan: Plan
    lacking: tuple[str, ...]
    workers: int | None
    scheduler: str | None
    retry_failed: bool
    bases: Mapping[str, str]
    device: str
    source: str
    command: str
    rounds: Rounds | None = None

    def following(self, rounds: Rounds) -> PreparedRun:
        """The run that a further round needs."""
        study = rounds.study()
        plan = make_plan(study, self.out, retry_failed=False, probe_seconds=None)
        return replace(self, study=study, plan=plan, rounds=rounds, retry_failed=False)

    def execute(self, listener: Callable[[RunEvent], None] | None = None) -> RunResult:
        """Does what the store lacks. Raises as `workbench.studies.run.run_study`."""
        from workbench.studies.run import RunOptions, run_study

        how = RunOptions(
            workers=self.workers or 0,
            scheduler=self.scheduler,
            retry_failed=self.retry_failed,
            source=self.source,
            command=self.command,
            bases=self.bases,
            device=self.device,
            looks=None if self.rounds is None else self.rounds.decisions.looks,
            only=() if self.rounds is None else self.rounds.selection,
        )
        summary = run_study(self.study, out=self.out, options=how, listener=listener)
        return RunResult(self, summary, failures_of(self.study, self.out))

    def stopped(self, reason: str, seconds: float) -> RunResult | None:
        """What the store has of a run that stopped after some seconds; None where it cannot be read."""
        from workbench.studies.results import is_trained, pending
        from workbench.studies.run import RunSummary

        if not (self.out / "store").is_dir():
            return None
        # The store's place may be full, or gone: then the reason for the stop is what the user must see.
        with suppress(OSError, InputError), closing(Store(self.out / "store")) as store:
            waiting = pending(self.study, store)
            summary = RunSummary(
                done=waiting.done - self.plan.pending.done,
                failed=waiting.failed,
                skipped=self.plan.pending.done,
                trained=sum(is_trained(store, job.key) for job in self.plan.pending.trainings),
                seconds=seconds,
            )
            return RunResult(self, summary, failures_of(self.study, self.out), stopped=reason)
        return None


_NOTHING: Mapping[str, Any] = MappingProxyType({})


@naming_extras
def run(
    study: str | Path,
    *,
    profile: str | None = None,
    out: str | Path | None = None,
    only: str | Sequence[str] = (),
    base: Mapping[str, str | Path] = _NOTHING,
    limit: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    device: str | None = None,
    dry_run: bool = False,
    try_for: float | None = None,
    retry_failed: bool = False,
    until_decided: bool = False,
    conclusions: str | Sequence[str] = (),
    budget: float | str | None = None,
    listener: Callable[[RunEvent], None] | None = None,
) -> RunResult:
    """Run the experiments of a study that its store does not have yet.

    Whatever ends a run, what is done is kept, and the same call goes on with the rest. Corpora that are not
    shipped are fetched, and base models that are missing are built, first.

    Args:
        study: A shipped study's name, or a file.
        profile: One of the study's profiles; None for the first.
        out: Folder of the store; None for `studies/STUDY`.
        only: `"FIELD=VALUE"`: values of one field are alternatives, different fields must all fit.
        base: Folders that stand in for base models, by base.
        limit: Only the first experiments, up to this number.
        workers: Processes; 0 for this one; None for 2, or the cores if fewer.
        scheduler: Address of a Dask scheduler, which then has the workers.
        device: What models are trained on; None for that of the file.
        dry_run: Say what would run and what it costs, and stop.
        try_for: Most seconds for which a dry run tries steps, 20 unless given.
        retry_failed: Do experiments again that failed before.
        until_decided: Then add seeds in rounds to the paper's conclusions that are still open, by tests that
            pay for each look.
        conclusions: Ids of those to decide; none for all.
        budget: Begin no round that would end later than this after the start: seconds, or `"3h"`.
        listener: Gets the events of the run.

    Raises `InputError`: an argument is unusable, the study does not fit together, or the store cannot be
    written. `InconclusiveError`: the workers are gone. `KeyboardInterrupt`: what is done is kept.
    """
    prepared = prepare_run(
        study,
        profile=profile,
        out=out,
        only=only,
        base=base,
        limit=limit,
        workers=workers,
        scheduler=scheduler,
        device=device,
        dry_run=dry_run,
        try_for=try_for,
        retry_failed=retry_failed,
        until_decided=until_decided,
        conclusions=conclusions,
        budget=budget,
        command=f"workbench.run({object_line(study)}, ...)",
    )
    return RunResult(prepared) if dry_run else run_rounds(prepared, lambda one: one.execute(listener))


def run_rounds(
    prepared: PreparedRun,
    execute: Callable[[PreparedRun], RunResult],
    show: Callable[[Rounds, NextLooks], None] | None = None,
) -> RunResult:
    """Execute a run, and further rounds where it has any; the result is of all of them.

    `execute`: does one. `show`: gets the rounds after each, and what the next looks would cost.
    """
    results, current = [execute(prepared)], prepared
    while current.rounds is not None:
        rounds = current.rounds.looked()
        looks = rounds.next_looks()
        current = replace(current, rounds=rounds)
        if show is not None:
            show(rounds, looks)
        following = rounds.following(looks)
        if following is None:
            return _together(replace(current, plan=prepared.plan), results)
        current = current.following(following)
        results.append(execute(current))
    return results[-1]


def _together(prepared: PreparedRun, results: Sequence[RunResult]) -> RunResult:
    """Several rounds as one: what was there before the first counts as skipped, failures as of the last."""
    summaries = [result.summary for result in results if result.summary is not None]
    summary = replace(
        summaries[-1],
        done=sum(summary.done for summary in summaries),
        trained=sum(summary.trained for summary in summaries),
        skipped=summaries[0].skipped,
        seconds=sum(summary.seconds for summary in summaries),
    )
    return RunResult(prepared, summary, results[-1].failures)


def prepare_run(
    study: str | Path,
    *,
    profile: str | None,
    out: str | Path | None,
    only: str | Sequence[str],
    base: Mapping[str, str | Path],
    limit: int | None,
    workers: int | None,
    scheduler: str | None,
    device: str | None,
    dry_run: bool,
    try_for: float | None,
    retry_failed: bool,
    until_decided: bool,
    conclusions: str | Sequence[str],
    budget: float | str | None,
    command: str,
    fetch: Callable[[Study], None] | None = None,
    build: Callable[[Sequence[str]], None] | None = None,
) -> PreparedRun:
    """Check the arguments of `run`, fetch and build what the study needs, and plan the run.

    `fetch`, `build`: do so with words for a reader; None for without. Raises as `run`.
    """
    name = str(path_of("study", study))
    _check_numbers(workers=workers, limit=limit, try_for=try_for, dry_run=dry_run)
    deciding = yes_or_no("until_decided", until_decided)
    claims = names_of("conclusions", conclusions)
    for argument, given in (("conclusions", bool(claims)), ("budget", budget is not None)):
        if given and not deciding:
            raise ArgumentError(argument, "is said of `until_decided`, which is missing")
    seconds = None if budget is None else seconds_of("budget", budget)
    from workbench.studies.run import looks_of, selection_of
    from workbench.studies.study import load_study, select

    whole = load_study(name, profile=profile)
    try:
        chosen = select(whole, only=names_of("only", only), limit=limit)
    except InputError as error:
        raise ArgumentError("only", f": {error}") from error
    folders = stand_ins(base)
    chosen = placed(with_stand_ins(chosen, folders), device)
    place = Path("studies") / chosen.name if out is None else path_of("out", out)
    require_folder_place("out", place)
    (fetch or fetch_corpora)(chosen)
    check_records(chosen)
    check_fits(chosen)
    lacking = missing_bases(chosen)
    if not dry_run and lacking:
        (build or build_bases)(lacking)
        check_fits(chosen)  # Again: what a base reads is known once it is built.
    again = yes_or_no("retry_failed", retry_failed)
    count = None if scheduler is not None else min(2, os.cpu_count() or 1) if workers is None else workers
    rounds = None
    if deciding:
        whole, earlier = placed(with_stand_ins(whole, folders), device), looks_of(whole, place)
        selection = tuple(sorted(names_of("only", only))) + ((f"the first {limit}",) if limit else ())
        if earlier and (before := selection_of(whole, place)) != selection:
            words = (object_line(list(one)) if one else "nothing" for one in (before, selection))
            raise ArgumentError(
                "only", "must be as it was for the looks that {} holds, {}, got {}".format(place, *words)
            )
        rounds = Rounds.of(
            whole,
            place / "store",
            earlier,
            claims=claims,
            chosen=chosen.experiments,
            selection=selection,
            budget=seconds,
            workers=count,
        )
        chosen = rounds.study()
    plan = make_plan(
        chosen, place, retry_failed=again, probe_seconds=probe_seconds(try_for) if dry_run else None
    )
    return PreparedRun(
        study=chosen,
        out=place,
        plan=plan,
        lacking=lacking,
        workers=count,
        scheduler=scheduler,
        retry_failed=again,
        bases=folders,
        device=chosen.experiments[0].device if device else "",
        source=name,
        command=command,
        rounds=rounds,
    )


def _check_numbers(*, workers: Any, limit: Any, try_for: Any, dry_run: Any) -> None:
    if workers is not None:
        whole_number("workers", workers, least=0, most=MOST_WORKERS)
    if limit is not None:
        whole_number("limit", limit, least=1, most=None)
    if try_for is not None and not yes_or_no("dry_run", dry_run):
        raise ArgumentError("try_for", "is said of `dry_run`, which is missing")
    if try_for is not None:
        number("try_for", try_for, least=0, most=MOST_TRYING)


def probe_seconds(given: float | None) -> float:
    """How long a dry run may try small jobs."""
    from workbench.studies.costs import PROBE_SECONDS

    return PROBE_SECONDS if given is None else given


def fetch_corpora(study: Study, say: Callable[[str, str], None] | None = None) -> None:
    """Fetch the corpora of a study that are not shipped and not there yet.

    `say`: gets the corpus and a line. Raises `InputError`: one cannot be had.
    """
    from workbench.core import registry
    from workbench.interfaces import CorpusFacets

    known = registry.entries("corpus")
    for name in dict.fromkeys(experiment.corpus for experiment in study.experiments):
        facets = known[name].facets if name in known else None
        if isinstance(facets, CorpusFacets) and facets.fetch is not None:
            facets.fetch(None if say is None else partial(say, name))


def build_bases(names: Sequence[str]) -> None:
    """Build base models, two at a time; also for a cluster, whose workers must share this machine's cache."""
    from workbench.studies import bases

    bases.ensure(names, None, workers=min(2, os.cpu_count() or 1))


def failures_of(study: Study, out: Path) -> list[Failure]:
    """The chosen experiments that are recorded as failed, each once."""
    from workbench.studies.experiments import Status
    from workbench.studies.jobs import jobs_of
    from workbench.studies.results import Known

    failures: dict[str, Failure] = {}
    with closing(Store(out / "store")) as store:
        known = Known(store)
        for experiment in study.experiments:
            job = jobs_of(experiment).measuring
            status, error = known.status(job)
            if status is Status.FAILED:
                failures.setdefault(job.key, Failure(experiment=experiment.name, error=error))
    return list(failures.values())


def _record(
    prepared: PreparedRun, summary: RunSummary | None, failures: Sequence[Failure], *, stopped: str
) -> dict[str, JSON]:
    """What was planned and done, as plain data.

    Returns:
        `schema`, `study` (name, profile, source_sha256, experiments: shared ones in each group), `command`,
        `versions`, `rows` of the plan, `totals`, `cost`, `conclusions` (null without rounds: id, outcome,
        looks, units, needed), and
        `outcome` (null after a dry run): done, failed, skipped, trained, seconds, failures, and `stopped`:
        why the run did not come to its end, or null.
    """
    from workbench.execution.engine import versions

    study, plan = prepared.study, prepared.plan
    waiting, cost, workers = plan.pending, plan.cost, prepared.workers
    done = None
    if summary is not None:
        done = {**plain(summary), "failures": plain(list(failures)), "stopped": stopped or None}
    form: dict[str, JSON] = plain(
        {
            "schema": SCHEMA,
            "study": {
                "name": study.name,
                "profile": study.profile,
                "source_sha256": study.source_sha256,
                "experiments": len(study.experiments),
            },
            "command": prepared.command,
            "versions": versions(),
            "rows": plan.rows,
            "totals": {
                "trainings": len(waiting.trainings),
                "measurings": len(waiting.measurings),
                "done": waiting.done,
                "failed": waiting.failed,
            },
            "cost": {
                "core_seconds": cost.core_seconds,
                "wall_seconds": None if workers is None else cost.wall_seconds(workers),
                "per_kind": cost.per_kind,
                "unknown": cost.unknown,
                "measured_from": cost.measured_from,
                "is_probed": cost.is_probed,
            },
            "conclusions": None if prepared.rounds is None else prepared.rounds.rows(),
            "outcome": done,
        }
    )
    return form
