"""What a study will cost before it runs, from what earlier jobs of the same kind took.

A kind is all that decides the speed: training or measuring, mechanism, model, adapter, optimizer, corpus, and
for a measuring the attack. Within a kind the seconds of a job are taken to be

    training:   a + b S + c E N + d T        (S scored and held-out records, N members, E epochs, T steps)
    measuring:  a + b n                      (n records read, by the target and by every shadow)
    game:       a + b t                      (t steps of a trial, weighted; a game trains by itself)

with coefficients >= 0, fitted to relative errors by least absolute deviations. Where records are too few to
tell the coefficients apart, their proportions are those of one model on one machine, and the records decide
the scale alone. `probe` tries a few steps of what no record tells of.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting import MutualInformation
from workbench.core.errors import InputError
from workbench.core.keys import canonical, plain
from workbench.core.one_line import error_line
from workbench.execution.processes import one_thread
from workbench.execution.store import Store
from workbench.execution.tasks import silent
from workbench.games.base import game_of
from workbench.interfaces import FloatArray, Mechanism, Secret, Workload
from workbench.studies import bases, work
from workbench.studies.experiments import Status, steps_of
from workbench.studies.fields import STAND_IN
from workbench.studies.jobs import JobKind, Measuring, StudyJob, Training, jobs_of
from workbench.studies.results import Pending
from workbench.training.setup import create_attack, mechanism_of

MOST_RECORDS = 600
"""Records that are read; their keys are hashes, so the first ones are a fair sample."""

SHAPES = {JobKind.TRAINING: (0.2, 0.005, 0.01, 0.004), JobKind.MEASURING: (0.05, 0.0025)}
"""Core seconds by term, as `terms` gives them: `tiny_gpt2` on records of 64 tokens, one core of a server of
the year 2023. Only their proportions are used, and only where records leave them open."""

TRUST_IN_SHAPE = 0.02
"""Weight of the shape's proportions against the relative error of one record."""

READING_STEP = 15.0
"""What a step of a game costs that reads records, in steps that read none."""

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
    mechanism = _mechanism(experiment)
    if mechanism is not None and mechanism.capabilities.is_zeroth_order:  # What else they do is little.
        form["mechanism"] = ZEROTH_ORDER
    return canonical({"kind": str(kind), **form})


def _mechanism(experiment: Mapping[str, Any]) -> Mechanism | None:
    """The experiment's mechanism; None where a plug-in raises anything, of which its own job tells."""
    try:
        return mechanism_of(str(experiment["mechanism"]), experiment["mechanism_parameters"])
    except Exception:
        return None


def workload(experiment: Mapping[str, Any], *, steps: int, share: float, budget: float) -> Workload:
    """What so many steps with this share of the records cost, as the mechanism declares it."""
    mechanism = _mechanism(experiment)
    if mechanism is None:
        return Workload()
    return mechanism.workload(steps=steps, sampling_probability=share, budget=budget)


def read_beside(experiment: Mapping[str, Any]) -> int:
    """Number of held-out records, which a training may read before and after."""
    return int(experiment["corpus_parameters"].get("held_out") or 0)


def without_base(kind: str) -> str:
    """A kind without the name of its model, where that is a base: the bases are of one size.

    A folder that stands in for a base may be of any size, and counts as none.
    """
    form = json.loads(kind)
    if form["model"] not in bases.names() or form["model_parameters"].get(STAND_IN):
        return kind
    return canonical({**form, "model": ""})


def kind_of(job: StudyJob) -> str:
    """The kind of a job; see `kind_text`."""
    return kind_text(job.kind, plain(job.experiment))


def terms(kind: JobKind, experiment: Mapping[str, Any], subjects: int) -> tuple[float, ...]:
    """The terms of the cost model that the fitted coefficients are multiplied by.

    Args:
        experiment: Plain form of an experiment that wants the job.
        subjects: For a measuring: the target and its shadows; 0 for a game that trains by itself.

    Returns:
        For a training 1, the scored members with the held-out records (and half of these again for each look
        at them while it goes on: they are read before and after), E N (of it the share in steps that read
        records) and T, the last two for each pass of a step; for a measuring 1 and the records read, or the
        passes of a game's trial, those that are expected to read records counting `READING_STEP` times more.
    """
    members, batch_size = experiment["members"], experiment["batch_size"]
    if kind is JobKind.MEASURING and subjects:
        return (1.0, 2.0 * (experiment.get("scored_members") or members) * subjects)
    steps = steps_of(members, batch_size, experiment["epochs"])
    budget = float(experiment["epsilon"] or 0.0)
    load = workload(experiment, steps=steps, share=batch_size / members, budget=budget)
    if kind is JobKind.MEASURING:
        return (1.0, load.passes * steps * (1.0 + READING_STEP * load.read_share))
    read = float(experiment["epochs"] * members) * load.read_share
    scored = experiment.get("scored_members") or members
    records = float(scored + read_beside(experiment) * (1.0 + load.looks / 2.0))
    return (1.0, records, load.passes * read, float(load.passes * steps))


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
    """The estimated cost of a study, core seconds.

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
    """The measured costs of the jobs in a store, by kind."""
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


# Trying a few steps

PROBE_SECONDS = 20.0
"""Wall time after which `probe` tries nothing more, unless it is told otherwise."""

SIZES = ((16, 4, 2), (16, 4, 10), (64, 32, 2), (64, 4, 2))
"""Members, batch size and steps of what is tried, in this order: few enough to be quick, different enough to
tell the terms apart."""

MEASURED_SIZES = (SIZES[1], (64, 4, 10))
"""Those at which measurings are tried: the number of members alone decides what they take, but masked signs
may leave a model as it was for a few steps, and attacks find nothing to compare in models that are equal."""

MOST_BESIDE = 16
"""Held-out and public records of what is tried, at most; a large model would read a thousand for minutes."""


def probe(store: Store, pending: Pending, *, seconds: float = PROBE_SECONDS) -> CostEstimate:
    """Estimate as `estimate` does, after trying a few steps of each unknown kind of job on this machine.

    Takes about `seconds` of wall time; kinds that it does not come to are unknown. Writes no record.
    """
    jobs = (*pending.trainings, *pending.measurings)
    known = recorded(store)
    tried, refused = Probe([job for job in jobs if kind_of(job) not in known], seconds).run()
    return estimated(jobs, known, tried, refused)


class Probe:
    """Runs small jobs, each kind's smallest first, until `seconds` of wall time are over."""

    def __init__(self, jobs: Sequence[StudyJob], seconds: float) -> None:
        kinds: dict[str, StudyJob] = {}
        for job in sorted(jobs, key=lambda job: job.kind is JobKind.MEASURING):
            kinds.setdefault(kind_of(job), job)
        # Of kinds that differ in the base alone one will do, if the time is over before the others' turn.
        first = set({without_base(kind): kind for kind in reversed(kinds)}.values())
        self._jobs = {kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: kind not in first)}
        self._seconds = seconds
        self._trained: dict[str, Path] = {}
        self._tried: Samples = {}
        self._refused: dict[str, str] = {}

    def run(self) -> tuple[Samples, dict[str, str]]:
        """Samples by kind; and for the kinds without, why there is none."""
        if not self._jobs:
            return {}, {}
        with tempfile.TemporaryDirectory() as scratch, one_thread():
            ends = time.monotonic() + self._seconds
            self._warm_up(Path(scratch))
            for number in range(len(SIZES)):
                for kind, job in self._jobs.items():
                    sizes = _sizes(job)
                    if number < len(sizes) and kind not in self._refused:
                        self._try(kind, job, sizes[number], Path(scratch), ends)
        return self._tried, self._refused

    def _warm_up(self, scratch: Path) -> None:
        """Do once what a process does once (loading libraries, the first step), so that no kind is charged
        for it.
        """
        try:
            self._took(next(iter(self._jobs.values())), (4, 2, 1), scratch)
        except (Exception, SystemExit):
            return  # It is told of where it is tried in earnest.

    def _try(self, kind: str, job: StudyJob, size: tuple[int, int, int], scratch: Path, ends: float) -> None:
        """One more sample of a kind, if it is expected to fit into the time."""
        before = self._tried.get(kind, [])
        terms = _terms(job, size)
        expected = float(np.dot(terms, fitted(job.kind, before))) if before else 0.0
        if time.monotonic() + expected > ends:
            if not before:
                self._refused[kind] = (
                    f"not tried: the {self._seconds:g} seconds for trying were over (--try-for)"
                )
            return
        try:
            seconds = self._took(job, size, scratch)
        except (Exception, SystemExit) as error:
            # A plug-in may raise anything, and what it raises here it will raise in the run.
            self._refused[kind] = f"trying it failed: {error_line(error, 200)}"
            self._tried.pop(kind, None)
            return
        self._tried.setdefault(kind, []).append(Sample(terms=terms, seconds=seconds))

    def _took(self, job: StudyJob, size: tuple[int, int, int], scratch: Path) -> float:
        """Core seconds of a small job of the same kind (the caller has set one thread)."""
        payload = job.payload
        if isinstance(payload, Training):
            return self._train(_small(payload, size), scratch)
        refusal = jobs_of(job.experiment).refusal
        if refusal is not None:
            raise InputError(refusal.message)
        if not payload.trainings:
            return _game_seconds(payload, scratch)
        small = [_small(training, size) for training in payload.trainings]
        # Two that differ do for all, in turn: an attack that compares models finds nothing in one alone.
        folders = [self._trained_folder(training, scratch) for training in small[:2]]
        inputs = {str(run): folders[run % len(folders)] for run in range(len(small))}
        measuring = replace(
            payload,
            trainings=tuple(small),
            keys=tuple(f"{inputs[str(run)]} {run}" for run in range(len(small))),
            setup=_small(replace(small[0], setup=payload.setup), size).setup,
        )
        return _process_seconds(lambda: work.measure(measuring, inputs, _new_folder(scratch), silent))

    def _trained_folder(self, training: Training, scratch: Path) -> Path:
        """Where a small subject is kept; trained now, unless it was."""
        name = canonical(plain(training))
        if name not in self._trained:
            self._train(training, scratch)
        return self._trained[name]

    def _train(self, training: Training, scratch: Path) -> float:
        """Train a small subject and keep it, for the measurings that follow."""
        folder = _new_folder(scratch)
        seconds = _process_seconds(lambda: work.train(training, {}, folder, silent))
        self._trained[canonical(plain(training))] = folder
        return seconds


def _sizes(job: StudyJob) -> tuple[tuple[int, int, int], ...]:
    """The sizes that are tried of a job; a game has its own size, and is tried once."""
    if job.kind is JobKind.TRAINING:
        return SIZES
    return MEASURED_SIZES if job.needs else SIZES[:1]


def _game_seconds(payload: Measuring, scratch: Path) -> float:
    """Core seconds of a game that trains by itself, from a few of its trials at its own size."""
    attack = create_attack(payload.setup, payload.attack)
    scales = game_of(attack).cost(attack)

    def tried(**sizes: int) -> float:
        parameters = {**payload.setup.attack_parameters[payload.attack], **sizes}
        setup = replace(payload.setup, attack_parameters={payload.attack: parameters})
        few = replace(payload, setup=setup, content="")
        return _process_seconds(lambda: work.measure(few, {}, _new_folder(scratch), silent))

    if len(scales) == 1 and not scales[0].few:
        scale = scales[0]
        tried(**{scale.parameter: scale.more})  # Once for what a process does once.
        return tried(**{scale.parameter: scale.more}) * scale.count / scale.more
    few = {scale.parameter: scale.few for scale in scales}
    tried(**few)
    least = total = tried(**few)
    for scale in scales:
        if scale.count:
            more = max(0.0, tried(**{**few, scale.parameter: scale.more}) - least)
            total += more / (scale.more - scale.few) * (scale.count - scale.few)
    return total


def _terms(job: StudyJob, size: tuple[int, int, int]) -> tuple[float, ...]:
    """As `workbench.studies.costs.terms`, of a size that is no experiment's; a game has its own."""
    members, batch_size, steps = _sized(size, whole=job.experiment.batch_size == job.experiment.members)
    if job.kind is JobKind.MEASURING and not job.needs:
        return terms_of(job)
    if job.kind is JobKind.MEASURING:
        return (1.0, 2.0 * min(members, job.experiment.scored_members or members) * len(job.needs))
    form = plain(job.experiment)
    load = workload(form, steps=steps, share=batch_size / members, budget=_tried_nats(size))
    held_out = min(MOST_BESIDE, read_beside(form))
    read = steps * batch_size * load.read_share
    scored = min(members, job.experiment.scored_members or members)
    return (1.0, float(scored + held_out), load.passes * read, float(load.passes * steps))


def _sized(size: tuple[int, int, int], *, whole: bool) -> tuple[int, int, int]:
    """The size, with all members in every step where the job has them: some mechanisms know nothing else."""
    members, batch_size, steps = size
    return members, members if whole else batch_size, steps


def _tried_nats(size: tuple[int, int, int]) -> float:
    """A budget for which one group a step is expected to fire, of whatever number of groups."""
    members, batch_size, steps = size
    return steps * batch_size / members * math.log(2.0)


def _small(training: Training, size: tuple[int, int, int]) -> Training:
    whole = training.setup.sampling_probability == 1.0
    members, batch_size, steps = size = _sized(size, whole=whole)
    given = training.setup.corpus_parameters
    fewer = {name: min(MOST_BESIDE, given[name]) for name in ("held_out", "public") if given.get(name)}
    setup = replace(
        training.setup,
        corpus_parameters={**given, **fewer},
        candidates=2 * members,
        steps=steps,
        sampling_probability=batch_size / members,
    )
    budget = setup.budget
    if isinstance(budget, MutualInformation) and budget.secret is Secret.RECORD:
        setup = replace(setup, budget=replace(budget, nats=_tried_nats(size)))
    return replace(training, setup=setup, content="")


def _process_seconds(work: Callable[[], object]) -> float:
    """Core seconds of this process, > 0; what else the machine does is not counted."""
    started = time.process_time()
    work()
    return max(time.process_time() - started, 1e-6)


def _new_folder(scratch: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=scratch))
