"""Tries a few steps of every kind of job of which a store has no record, to estimate what they cost here."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from workbench.accounting import MutualInformation
from workbench.core.errors import InputError
from workbench.core.keys import canonical, plain
from workbench.core.one_line import error_line
from workbench.execution.processes import one_thread
from workbench.execution.store import Store
from workbench.execution.tasks import silent
from workbench.games.base import game_of
from workbench.interfaces import Currency, Secret
from workbench.studies import work
from workbench.studies.costs import (
    CostEstimate,
    Sample,
    Samples,
    estimated,
    fired_share,
    fitted,
    kind_of,
    read_beside,
    recorded,
    terms_of,
    without_base,
)
from workbench.studies.jobs import JobKind, Measuring, StudyJob, Training, jobs_of
from workbench.studies.results import Pending
from workbench.training.setup import create_attack

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
    """As `estimate`, after a few steps of every kind of job of which there is no record, on this machine.

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
        return (1.0, 2.0 * members * len(job.needs))
    read = float(steps * batch_size)
    if job.experiment.currency is Currency.RECORD_NATS:
        read *= fired_share(_tried_nats(size), batch_size / members, steps)
    directions = float(job.experiment.mechanism_parameters.get("directions", 1))
    held_out = min(MOST_BESIDE, read_beside(plain(job.experiment)))
    return (1.0, float(members + held_out), directions * read, directions * steps)


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
