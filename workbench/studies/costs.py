"""What a study will cost before it runs, from what earlier jobs of the same kind took.

A kind is all that decides the speed: training or measuring, mechanism, model, adapter, optimizer, corpus, and
for a measuring the attack. Within a kind the seconds of a job are taken to be

    training:   a + b N + c E N + d T        (N members and held-out records, E epochs, T steps)
    measuring:  a + b n                      (n records read, by the target and by every shadow)
    game:       a + b t                      (t steps of a trial, weighted; a game trains by itself)

with coefficients >= 0, fitted to relative errors by least absolute deviations. Where records are too few to
tell the coefficients apart, their proportions are those of one model on one machine, and the records decide
the scale alone. `workbench.studies.cost_probe` tries a few steps of what no record tells of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from workbench.core.keys import canonical, plain
from workbench.execution.store import Store
from workbench.interfaces import Currency, FloatArray
from workbench.studies.experiments import Status
from workbench.studies.fields import STAND_IN
from workbench.studies.jobs import JobKind, StudyJob
from workbench.studies.results import Pending
from workbench.training.setup import mechanism_of

MOST_RECORDS = 600
"""Records that are read; their keys are hashes, so the first ones are a fair sample."""

SHAPES = {JobKind.TRAINING: (0.2, 0.005, 0.01, 0.004), JobKind.MEASURING: (0.05, 0.0025)}
"""Core seconds by term, as `terms` gives them: `tiny_gpt2` on records of 64 tokens, one core of a server of
the year 2023. Only their proportions are used, and only where records leave them open."""

TRUST_IN_SHAPE = 0.02
"""Weight of the shape's proportions against the relative error of one record."""

FIRED_STEP = 15.0
"""What a step of a transcript game costs in which a group fires, in steps in which none does."""

ZEROTH_ORDER = "zeroth order"
"""Stands for the mechanism in kinds of zeroth-order training."""

ROUNDS = 8
"""Of reweighting, which turns least squares into least absolute deviations."""

SMALLEST_ERROR = 0.02
"""Relative error below which a record's weight grows no more."""

KIND_FIELDS = (
    "mechanism",
    "model",
    "model_parameters",
    "adapter",
    "optimizer",
    "corpus",
    "corpus_parameters",
)
"""What decides a job's speed besides its size; for a measuring, the attack does too."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A job that was run: its terms, and its core seconds."""

    terms: tuple[float, ...]
    seconds: float


Samples = dict[str, list[Sample]]
"""By kind."""


def kind_text(kind: JobKind, experiment: Mapping[str, Any]) -> str:
    """Canonical text of all that decides a job's speed but its size; `experiment` is in its plain form."""
    names = (*KIND_FIELDS, "attack", "attack_parameters") if kind is JobKind.MEASURING else KIND_FIELDS
    form = {name: experiment[name] for name in names}
    if _is_zeroth_order(experiment):  # Forward passes and directions: what else they do is little.
        form["mechanism"] = ZEROTH_ORDER
    return canonical({"kind": str(kind), **form})


def _is_zeroth_order(experiment: Mapping[str, Any]) -> bool:
    """Whether a mechanism sees only scalars along directions; such mechanisms cost alike."""
    try:
        made = mechanism_of(str(experiment["mechanism"]), experiment["mechanism_parameters"])
    except Exception:  # Of any kind: a plug-in's mechanism, whose own job says what is wrong.
        return False
    return made.capabilities.is_zeroth_order


def read_beside(experiment: Mapping[str, Any]) -> int:
    """Number of held-out records, which a training may read before and after."""
    return int(experiment["corpus_parameters"].get("held_out") or 0)


def without_base(kind: str) -> str:
    """A kind without the name of its model, where that is a base: the bases are of one size.

    A folder that stands in for a base may be of any size, and counts as none.
    """
    from workbench.studies import bases

    form = json.loads(kind)
    if form["model"] not in bases.names() or form["model_parameters"].get(STAND_IN):
        return kind
    return canonical({**form, "model": ""})


def kind_of(job: StudyJob) -> str:
    """The kind of a job; see `kind_text`."""
    return kind_text(job.kind, plain(job.experiment))


def terms(kind: JobKind, experiment: Mapping[str, Any], subjects: int) -> tuple[float, ...]:
    """What the fitted coefficients are multiplied by.

    Args:
        experiment: Plain form of an experiment that wants the job.
        subjects: For a measuring: the target and its shadows; 0 for a game that trains by itself.

    Returns:
        For a training 1, N with the held-out records (and half of these again for each look at them while it
        goes on: they are read before and after), E N (of a budget in nats about a record: the share of
        it that lies in steps in which a group fires) and T, the last two for each of a step's K directions;
        for a measuring 1 and the records read, or the steps of a game's trial, those in which a group is
        expected to fire counting `FIRED_STEP` times.
    """
    members, batch_size = experiment["members"], experiment["batch_size"]
    if kind is JobKind.MEASURING and subjects:
        return (1.0, 2.0 * members * subjects)
    steps = experiment["epochs"] * math.ceil(members / batch_size)
    nats = float(experiment["epsilon"] or 0.0)
    if kind is JobKind.MEASURING:
        return (1.0, steps * (1.0 + FIRED_STEP * fired_share(nats, batch_size / members, steps)))
    read = float(experiment["epochs"] * members)
    if experiment.get("currency") == Currency.RECORD_NATS:
        read *= fired_share(nats, batch_size / members, steps)
    directions = float(experiment["mechanism_parameters"].get("directions", 1))
    records = float(members + read_beside(experiment) * (1.0 + _looks(experiment, steps) / 2.0))
    return (1.0, records, directions * read, directions * steps)


def _looks(experiment: Mapping[str, Any], steps: int) -> int:
    """How often a training measures the held-out perplexity, besides before and after."""
    parameters = experiment["mechanism_parameters"]
    interval = int(parameters.get("evaluation_interval", 0))
    if interval < 1 or not parameters.get("measures_quality", True):
        return 0
    return 1 + math.ceil(steps / interval)


def fired_share(nats: float, sampling_probability: float, steps: int) -> float:
    """Share of steps in which a mechanism of masked signs is expected to read a record.

    With many groups, each firing of which costs s ln 2 nats (s the sampling probability), Poisson's share of
    steps with at least one firing.
    """
    return -math.expm1(-nats / (sampling_probability * steps * math.log(2.0)))


def terms_of(job: StudyJob) -> tuple[float, ...]:
    """The terms of a job; see `terms`."""
    return terms(job.kind, plain(job.experiment), len(job.needs))


def fitted(kind: JobKind, samples: Sequence[Sample]) -> FloatArray:
    """Core seconds by term, shape `(k,)`, >= 0, from at least one sample, each with seconds > 0.

    Each sample is a row `terms / seconds * x = 1`; the shape adds a row `x_j / (scale w_j) = 1` for each
    term, of small weight, which decides only what the samples leave open.
    """
    from scipy.optimize import nnls

    shape = np.array(SHAPES[kind])
    size = np.array([sample.terms for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    prior = shape * float(np.median(seconds / (size @ shape)))
    rows = size * prior / seconds[:, None]  # In units of the prior, where all coefficients are about 1.
    weights = np.ones(len(samples))
    scales: FloatArray = np.ones(len(shape))
    for _ in range(ROUNDS):
        system = np.vstack([weights[:, None] * rows, TRUST_IN_SHAPE * np.eye(len(shape))])
        wanted = np.concatenate([weights, np.full(len(shape), TRUST_IN_SHAPE)])
        scales, _ = nnls(system, wanted)
        errors = np.abs(rows @ scales - 1.0)
        weights = np.sqrt(SMALLEST_ERROR / np.maximum(errors, SMALLEST_ERROR))
    return scales * prior


@dataclass(frozen=True, kw_only=True)
class KindCost:
    """Number and cost of the pending jobs of one kind.

    Attributes:
        name: `"training of MECHANISM on MODEL"`.
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


def estimate(store: Store, pending: Pending) -> CostEstimate:
    """What pending jobs will cost, from the store's records of jobs of the same kinds, of any study."""
    return estimated((*pending.trainings, *pending.measurings), recorded(store), {})


def recorded(store: Store) -> Samples:
    """What the jobs in a store took, by kind."""
    samples: Samples = {}
    for _, record in islice(store.records(), MOST_RECORDS):
        sample = _sample(record)
        if sample is not None:
            samples.setdefault(sample[0], []).append(sample[1])
    return samples


def _sample(record: Mapping[str, Any]) -> tuple[str, Sample] | None:
    """Kind, terms and seconds of a job that succeeded; None for any other record."""
    try:
        if record["status"] != Status.DONE:
            return None
        kind = JobKind(str(record["job"]["kind"]).removeprefix("study "))
        experiment = record["experiment"]
        multipliers = terms(kind, experiment, len(record["job"].get("trainings", ())))
        seconds = float(record["cost"]["seconds"])
        is_cost = 0 < seconds < math.inf
        return (kind_text(kind, experiment), Sample(terms=multipliers, seconds=seconds)) if is_cost else None
    except (KeyError, TypeError, ValueError, ArithmeticError):  # An audit lies in the same store, perhaps.
        return None


def estimated(
    jobs: Sequence[StudyJob], known: Samples, tried: Samples, refused: Mapping[str, str] | None = None
) -> CostEstimate:
    """The cost of jobs, by what jobs of their kinds took: known from records, tried, or refused and why."""
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
            seconds = {job.key: float(np.dot(terms_of(job), rates)) for job in of_kind}
            job_seconds |= seconds
            total = math.fsum(seconds.values())
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
        is_probed=any(cost.is_probed for cost in per_kind),
        job_seconds=job_seconds,
        longest_chain_seconds=_longest_chain(jobs, job_seconds),
    )


def _of_another_base(kind: str, kinds: Iterable[str]) -> tuple[str, str]:
    """A kind that is the same on another base model, and the two in words; `(kind, "")` without one."""
    wanted = without_base(kind)
    for other in kinds:
        if without_base(other) == wanted:
            return other, f"{json.loads(kind)['model']} as {json.loads(other)['model']}"
    return kind, ""


def _name(jobs: Sequence[StudyJob]) -> str:
    """What messages call a kind of jobs, with all of its mechanisms."""
    job, experiment = jobs[0], jobs[0].experiment
    mechanisms = ", ".join(dict.fromkeys(job.experiment.mechanism for job in jobs))
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
