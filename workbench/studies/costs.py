"""What a study will cost before it runs, from what earlier jobs of the same kind took.

A kind is all that decides the speed: training or measuring, mechanism, model, adapter, optimizer, corpus, and
for a measuring the attack. Within a kind the seconds of a job are taken to be

    training:   a + b N + c E N + d T        (N members and held-out records, E epochs, T steps)
    measuring:  a + b n                      (n records read, by the target and by every shadow)
    game:       a + b t                      (t steps of a trial, weighted; a game trains by itself)

with coefficients >= 0, fitted to relative errors by least absolute deviations. Where records are too few to
tell the coefficients apart, their proportions are those of one model on one machine, and the records decide
the scale alone (`workbench.studies.cost_model`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np

from workbench.execution.store import Store
from workbench.studies.cost_model import (
    Sample,
    Samples,
    fitted,
    kind_of,
    kind_text,
    terms,
    terms_of,
    without_base,
)
from workbench.studies.experiments import Status, Study
from workbench.studies.jobs import JobKind, StudyJob, jobs_of

MOST_RECORDS = 600
"""Records that are read; their keys are hashes, so the first ones are a fair sample."""

PROBE_SECONDS = 20.0
"""Wall time after which `probe` tries nothing more, unless it is told otherwise."""


class Remaining(Protocol):
    """What is still to be done (`workbench.studies.jobs.Pending`)."""

    @property
    def trainings(self) -> Sequence[StudyJob]:
        """Trainings, each once."""

    @property
    def measurings(self) -> Sequence[StudyJob]:
        """Measurings, each once."""


@dataclass(frozen=True, kw_only=True)
class KindCost:
    """Jobs of one kind, and what they cost together.

    Attributes:
        name: `"training of MECHANISM on MODEL"`.
        jobs: How many are to be done.
        core_seconds: Of all of them; None where nothing comparable was ever run.
        measured_from: Number of jobs, earlier or tried, that this comes from.
        is_probed: They were tried for this estimate, and are no records of earlier runs.
        counted_as: "llama_base as gpt2_base": what it was taken from, where the jobs' own base was not run
            and could not be tried (it is not built, or time was over); empty for the jobs' own.
    """

    name: str
    jobs: int
    core_seconds: float | None
    measured_from: int
    is_probed: bool = False
    counted_as: str = ""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What a study will cost.

    Attributes:
        core_seconds: Of all jobs whose kind is known.
        per_kind: Kinds of jobs, in the order of the study.
        unknown: What is not in `core_seconds`, and why, a line a kind.
        measured_from: Records of earlier runs that it comes from.
        is_probed: At least one kind was tried on this machine for it.
        job_seconds: Core seconds by the job's key; jobs of unknown kinds are left out.
        longest_chain_seconds: The longest training and a measuring that waits for it.
    """

    core_seconds: float
    per_kind: tuple[KindCost, ...]
    unknown: tuple[str, ...]
    measured_from: int
    is_probed: bool = False
    job_seconds: Mapping[str, float] = field(default_factory=dict)
    longest_chain_seconds: float = 0.0

    def wall_seconds(self, workers: int) -> float:
        """Time until the last job of a known kind ends, with one core for each of `workers` (0 counts as 1).

        Work is spread evenly, but no job is split and no measuring starts before its training ends.
        """
        return max(self.core_seconds / max(1, workers), self.longest_chain_seconds)


def estimate(study: Study, store: Store, pending: Remaining) -> CostEstimate:
    """What the jobs that are still to be done will cost, from the store's records.

    Args:
        study: The study.
        store: Its store; records of other studies count where their jobs are of the same kinds.
        pending: What is to be done, of this study.
    """
    del study  # The jobs say all that counts.
    jobs = (*pending.trainings, *pending.measurings)
    return _estimated(jobs, _recorded(store), {})


def probe(
    study: Study,
    store: Store | None = None,
    pending: Remaining | None = None,
    *,
    seconds: float = PROBE_SECONDS,
) -> CostEstimate:
    """The same, after a few steps of every kind of which there is no record, on this machine.

    Takes about so many seconds at most; kinds that it does not come to are unknown. Writes no record.

    Args:
        study: The study.
        store: Where records may be; None for none.
        pending: What is to be done; None for all of the study.
        seconds: Wall time after which nothing more is tried.
    """
    from workbench.studies.cost_probe import Probe

    jobs = _all_jobs(study) if pending is None else (*pending.trainings, *pending.measurings)
    known = _recorded(store) if store is not None else {}
    tried, refused = Probe([job for job in jobs if kind_of(job) not in known], seconds).run()
    return _estimated(jobs, known, tried, refused)


def _all_jobs(study: Study) -> tuple[StudyJob, ...]:
    """All jobs of a study, each once."""
    found: dict[str, StudyJob] = {}
    for experiment in study.experiments:
        jobs = jobs_of(experiment)
        if jobs.refusal is None:
            found.update({job.key: job for job in (*jobs.trainings, jobs.measuring)})
    return tuple(found.values())


def _recorded(store: Store) -> Samples:
    """What jobs took, by kind."""
    found: Samples = {}
    for _, record in islice(store.records(), MOST_RECORDS):
        sample = _sample(record)
        if sample is not None:
            found.setdefault(sample[0], []).append(sample[1])
    return found


def _sample(record: Mapping[str, Any]) -> tuple[str, Sample] | None:
    """Kind, terms and seconds of a job that succeeded; None for any other record."""
    try:
        if record["status"] != Status.DONE:
            return None
        kind = JobKind(str(record["job"]["kind"]).removeprefix("study "))
        experiment = record["experiment"]
        own = terms(kind, experiment, len(record["job"].get("trainings", ())))
        seconds = float(record["cost"]["seconds"])
        is_cost = 0 < seconds < math.inf
        return (kind_text(kind, experiment), Sample(terms=own, seconds=seconds)) if is_cost else None
    except (KeyError, TypeError, ValueError, ArithmeticError):  # An audit lies in the same store, perhaps.
        return None


def _estimated(
    jobs: Sequence[StudyJob],
    known: Samples,
    tried: Samples,
    refused: Mapping[str, str] | None = None,
) -> CostEstimate:
    by_kind: dict[str, list[StudyJob]] = {}
    for job in jobs:
        by_kind.setdefault(kind_of(job), []).append(job)
    job_seconds: dict[str, float] = {}
    per_kind = []
    unknown = []
    for kind, of_kind in by_kind.items():
        counted, counted_as = kind, ""
        if kind not in known and kind not in tried:
            counted, counted_as = _of_another_base(kind, (*known, *tried))
        samples = known.get(counted) or tried.get(counted) or []
        name = _name(of_kind)
        total = None
        if samples:
            rates = fitted(of_kind[0].kind, samples)
            own = {job.key: float(np.dot(terms_of(job), rates)) for job in of_kind}
            job_seconds |= own
            total = math.fsum(own.values())
        else:
            why = (refused or {}).get(kind, "nothing comparable was run yet")
            unknown.append(f"{len(of_kind)} x {name}: {why}")
        per_kind.append(
            KindCost(
                name=name,
                jobs=len(of_kind),
                core_seconds=total,
                measured_from=len(samples),
                is_probed=bool(samples) and counted not in known,
                counted_as=counted_as,
            )
        )
    return CostEstimate(
        core_seconds=math.fsum(job_seconds.values()),
        per_kind=tuple(per_kind),
        unknown=tuple(unknown),
        measured_from=sum(len(known.get(kind, ())) for kind in by_kind),
        is_probed=any(one.is_probed for one in per_kind),
        job_seconds=job_seconds,
        longest_chain_seconds=_longest_chain(jobs, job_seconds),
    )


def _of_another_base(kind: str, found: Iterable[str]) -> tuple[str, str]:
    """A kind that is the same on another base model, and the two in words; `(kind, "")` without one."""
    wanted = without_base(kind)
    for other in found:
        if without_base(other) == wanted:
            return other, f"{json.loads(kind)['model']} as {json.loads(other)['model']}"
    return kind, ""


def _name(jobs: Sequence[StudyJob]) -> str:
    """What a reader calls a kind, with all of its mechanisms."""
    job, experiment = jobs[0], jobs[0].experiment
    mechanisms = ", ".join(dict.fromkeys(one.experiment.mechanism for one in jobs))
    attack = f" by {experiment.attack}" if job.kind is JobKind.MEASURING else ""
    adapter = f" with {experiment.adapter}" if experiment.adapter != "full" else ""
    return f"{job.kind} of {mechanisms} on {experiment.model}{adapter}{attack}"


def _longest_chain(jobs: Sequence[StudyJob], seconds: Mapping[str, float]) -> float:
    """The longest job, or measuring after the longest training that it waits for."""
    chains = (
        seconds.get(job.key, 0.0) + max((seconds.get(key, 0.0) for key in job.needs), default=0.0)
        for job in jobs
    )
    return max(chains, default=0.0)
