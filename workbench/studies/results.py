"""Reads the results of a study back from its store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from workbench.core.keys import JSON
from workbench.execution.store import Store
from workbench.studies.experiments import STEP_TIMES, Experiment, Outcome, Status, Study, StudyResults
from workbench.studies.jobs import Known, StudyJob, jobs_of
from workbench.studies.records import error_of, read_record


def read_results(study: Study, store: Store) -> StudyResults:
    """The outcome of every experiment of a study, in its order; nothing is run.

    Args:
        study: The study.
        store: Its store.
    """
    known = Known(store)
    found: dict[str, Outcome] = {}
    memberships: dict[tuple[bool, ...], tuple[bool, ...]] = {}
    trainings = _Trainings(store)
    outcomes = []
    for experiment in study.experiments:
        jobs = jobs_of(experiment)
        key = jobs.measuring.key
        if key not in found:
            outcome = _outcome(experiment, jobs.measuring, store, known, memberships)
            found[key] = trainings.added_to(outcome, jobs.measuring)
        outcomes.append(replace(found[key], experiment=experiment))
    return StudyResults(study=study, outcomes=tuple(outcomes))


def _outcome(
    experiment: Experiment,
    measuring: StudyJob,
    store: Store,
    known: Known,
    memberships: dict[tuple[bool, ...], tuple[bool, ...]],
) -> Outcome:
    record = read_record(store, measuring.key)
    if record is None:
        failed = next((line for line in map(known.training_error, measuring.needs) if line), "")
        return Outcome(
            experiment=experiment,
            key=measuring.key,
            status=Status.FAILED if failed else Status.MISSING,
            error=f"its training failed: {failed}" if failed else "",
        )
    if record["status"] == Status.FAILED:
        return Outcome(experiment=experiment, key=measuring.key, status=Status.FAILED, error=error_of(record))
    included = tuple(record["included"])
    return Outcome(
        experiment=experiment,
        key=measuring.key,
        status=Status.DONE,
        metrics={name: float(value) for name, value in record["metrics"].items()},
        scores=tuple(map(float, record["scores"])),
        included=memberships.setdefault(included, included),  # Every variant of a seed has the same.
        claim=record["claim"],
        cost={name: float(value) for name, value in record["cost"].items()},
        audit=record.get("audit"),
    )


class _Trainings:
    """What the records of trainings say of them, each read once: many budgets may share one.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, _Parts] = {}

    def added_to(self, outcome: Outcome, measuring: StudyJob) -> Outcome:
        """The outcome with the losses, traces and seconds of its target's training, where it has one.

        A training's record may be gone while its measuring's is there: then they stay empty.
        """
        if outcome.status is not Status.DONE or not measuring.needs:
            return outcome
        found = self._of(measuring.needs[0])
        cost = {**outcome.cost, **found.cost}
        return replace(outcome, training_losses=found.losses, traces=found.traces, cost=cost)

    def _of(self, key: str) -> _Parts:
        if key not in self._read:
            record = read_record(self._store, key)
            self._read[key] = _Parts() if record is None else _training_parts(record)
        return self._read[key]


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What is read of a training's record."""

    losses: tuple[float, ...] = ()
    traces: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


def _training_parts(record: Mapping[str, JSON]) -> _Parts:
    """Losses, traces and `STEP_TIMES` of a training's record; empty where they are no numbers."""
    try:
        losses = tuple(map(float, record["losses"]))
        # Records of earlier versions have no traces.
        traces = {name: tuple(map(float, series)) for name, series in record.get("traces", {}).items()}
        cost = record["cost"]
        seconds = {name: float(cost[name]) for name in STEP_TIMES if name in cost}
    except (AttributeError, KeyError, TypeError, ValueError):  # A folder can be edited by hand.
        return _Parts()
    return _Parts(losses=losses, traces=traces, cost=seconds)
