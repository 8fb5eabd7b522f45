"""What a study's store holds: its records, what is still to be done, and the results.

A store is a folder, and folders are copied, merged and edited by hand. A record that is not of this job, or
whose fields are not what a job writes, counts as absent: the work is done again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.core.keys import JSON, key_of
from workbench.core.one_line import one_line
from workbench.execution.store import Store
from workbench.studies.experiments import STEP_TIMES, Outcome, Status, Study, StudyResults
from workbench.studies.jobs import StudyJob, jobs_of

MEASURED = ("metrics", "scores", "included", "claim", "cost")
"""Fields of the record of a measuring."""


def read_record(store: Store, key: str) -> dict[str, JSON] | None:
    """The record of a job; None where it is missing, damaged, another job's, or of no form that we write."""
    record = store.read(key)
    if record is None or not _is_of(key, record.get("job")):
        return None
    match record.get("status"):
        case Status.FAILED:
            error = record.get("error")
            is_whole = isinstance(error, dict) and {"kind", "message"} <= error.keys()
        case Status.DONE:
            is_whole = "trainings" not in record["job"] or _is_measured(record)
        case _:
            is_whole = False
    return record if is_whole else None


def _is_of(key: str, identity: object) -> bool:
    try:
        return isinstance(identity, dict) and key_of(identity) == key
    except RecursionError:
        return False


def error_of(record: Mapping[str, Any] | None) -> str:
    """The kind and message of a failed job's record, on one line; empty for any other."""
    if record is None or record["status"] != Status.FAILED:
        return ""
    return one_line(f"{record['error']['kind']}: {record['error']['message']}")


def is_trained(store: Store, key: str) -> bool:
    """True where a training's record says that it is done and its subject is there, undamaged."""
    record = read_record(store, key)
    done = record is not None and record["status"] == Status.DONE
    return done and store.subject_folder(key) is not None


def _is_measured(record: Mapping[str, Any]) -> bool:
    """Does the record of a measuring hold one finite score and one membership a candidate, and numbers?"""
    if not all(name in record for name in MEASURED):
        return False
    scores, included = record["scores"], record["included"]
    return (
        isinstance(scores, list)
        and isinstance(included, list)
        and len(scores) == len(included)
        and all(isinstance(label, bool) for label in included)
        and 0 < sum(included) < len(included)
        and all(_is_number(score) and math.isfinite(float(score)) for score in scores)
        and all(isinstance(record[name], dict) for name in ("metrics", "claim", "cost"))
        and all(_is_number(value) for name in ("metrics", "cost") for value in record[name].values())
    )


def _is_number(value: object) -> bool:
    """Is this what `plain` makes of a number, and one that a float can hold?"""
    try:
        return not isinstance(value, bool) and (
            (isinstance(value, int | float) and math.isfinite(value)) or value in ("nan", "inf", "-inf")
        )
    except OverflowError:
        return False


@dataclass(frozen=True, kw_only=True)
class _TrainingRecord:
    """What is read of a training's record; empty where the record is missing or holds no numbers."""

    error: str = ""
    losses: tuple[float, ...] = ()
    traces: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


def _training_record(record: Mapping[str, JSON] | None) -> _TrainingRecord:
    if record is None or record["status"] != Status.DONE:
        return _TrainingRecord(error=error_of(record))
    try:
        losses = tuple(map(float, record["losses"]))
        # Records of earlier versions have no traces.
        traces = {name: tuple(map(float, series)) for name, series in record.get("traces", {}).items()}
        cost = record["cost"]
        seconds = {name: float(cost[name]) for name in STEP_TIMES if name in cost}
    except (AttributeError, KeyError, TypeError, ValueError):  # A folder can be edited by hand.
        return _TrainingRecord()
    return _TrainingRecord(losses=losses, traces=traces, cost=seconds)


class Known:
    """A store's records of a study's jobs; the record of each training is read once, and may serve many."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._trainings: dict[str, _TrainingRecord] = {}

    def training(self, key: str) -> _TrainingRecord:
        """The record of a training in the store, read once."""
        if key not in self._trainings:
            self._trainings[key] = _training_record(read_record(self._store, key))
        return self._trainings[key]

    def status(self, measuring: StudyJob) -> tuple[Status, str]:
        """The status of an experiment, and why it failed, in one line; empty where it did not."""
        return self._status(measuring, read_record(self._store, measuring.key))

    def _status(self, measuring: StudyJob, record: Mapping[str, JSON] | None) -> tuple[Status, str]:
        if record is not None:
            return Status(record["status"]), error_of(record)
        for key in measuring.needs:
            if error := self.training(key).error:
                return Status.FAILED, f"its training failed: {error}"
        return Status.MISSING, ""

    def outcome(self, measuring: StudyJob, memberships: dict[tuple[bool, ...], tuple[bool, ...]]) -> Outcome:
        """The outcome of the experiment that wants a measuring; equal memberships are kept once."""
        record = read_record(self._store, measuring.key)
        status, error = self._status(measuring, record)
        if record is None or status is not Status.DONE:
            return Outcome(experiment=measuring.experiment, key=measuring.key, status=status, error=error)
        included = tuple(record["included"])
        training = self.training(measuring.needs[0]) if measuring.needs else _TrainingRecord()
        return Outcome(
            experiment=measuring.experiment,
            key=measuring.key,
            status=status,
            metrics={name: float(value) for name, value in record["metrics"].items()},
            scores=tuple(map(float, record["scores"])),
            included=memberships.setdefault(included, included),  # Every variant of a seed has the same.
            claim=record["claim"],
            cost={name: float(value) for name, value in record["cost"].items()} | dict(training.cost),
            training_losses=training.losses,
            traces=training.traces,
            audit=record.get("audit"),
        )


def read_results(study: Study, store: Store) -> StudyResults:
    """The outcome of every experiment of a study, in its order; nothing is run."""
    known = Known(store)
    by_key: dict[str, Outcome] = {}
    memberships: dict[tuple[bool, ...], tuple[bool, ...]] = {}
    outcomes = []
    for experiment in study.experiments:
        measuring = jobs_of(experiment).measuring
        if measuring.key not in by_key:
            by_key[measuring.key] = known.outcome(measuring, memberships)
        outcomes.append(replace(by_key[measuring.key], experiment=experiment))
    return StudyResults(study=study, outcomes=tuple(outcomes))


@dataclass(frozen=True, kw_only=True)
class Pending:
    """The jobs of a study that are still to be done.

    Attributes:
        trainings, measurings: To be done, each once, in the order of the study; of the trainings those that
            a measuring to be done needs.
        done, failed: How many measurings the store has, by status; a failed training fails those that
            need it.
    """

    trainings: tuple[StudyJob, ...]
    measurings: tuple[StudyJob, ...]
    done: int
    failed: int


def pending(study: Study, store: Store, *, retry_failed: bool = False) -> Pending:
    """The jobs of a study that the store lacks; with `retry_failed`, failures count as not done."""
    known = Known(store)
    measurings: dict[str, StudyJob] = {}
    trainings: dict[str, StudyJob] = {}
    done = failed = 0
    seen: set[str] = set()
    for experiment in study.experiments:
        jobs = jobs_of(experiment)
        if jobs.measuring.key in seen:
            continue
        seen.add(jobs.measuring.key)
        status, _ = known.status(jobs.measuring)
        if status is Status.DONE:
            done += 1
        elif status is Status.FAILED and not retry_failed:
            failed += 1
        else:
            measurings[jobs.measuring.key] = jobs.measuring
            for job in jobs.trainings:
                if job.key not in trainings and not is_trained(store, job.key):
                    trainings[job.key] = job
    return Pending(
        trainings=tuple(trainings.values()), measurings=tuple(measurings.values()), done=done, failed=failed
    )
