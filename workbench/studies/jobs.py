"""Turns an experiment into jobs: what is trained, what is measured, and the keys under which both are kept.

A training's key holds all that decides the trained subject and nothing else, so experiments that differ in
what comes later (the attack, the budget of a mechanism that privatises the finished model) share one. Work
functions are pure in their payload and inputs: a job gives the same record in this process, on a pool, and on
a cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

import numpy as np

from workbench.accounting import NoGuarantee
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.keys import canonical, key_of, plain
from workbench.core.one_line import one_line
from workbench.core.streams import stream
from workbench.games.base import game_of
from workbench.interfaces import Attack, BoolArray, Mechanism, PostHocMechanism
from workbench.studies.experiments import Experiment
from workbench.training.content import settled
from workbench.training.setup import (
    TrainingSetup,
    content_digest,
    create_attack,
    create_mechanism,
    make_plan,
    prepare,
)
from workbench.training.shadows import shadow_memberships


def setup_of(experiment: Experiment) -> TrainingSetup:
    """The training setup of an experiment: 2 N candidates, T steps, q = B / N.

    Where the attack plants P records beside the members, q = B / (N + P): the batches stay as large.
    """
    return TrainingSetup(
        **experiment.spec(),
        steps=experiment.steps,
        sampling_probability=experiment.batch_size / (experiment.members + _planted(experiment)),
        mechanism=experiment.mechanism,
        mechanism_parameters=experiment.mechanism_parameters,
        corpus=experiment.corpus,
        corpus_parameters=experiment.corpus_parameters,
        budget=experiment.budget,
        candidates=2 * experiment.members,
        attack_parameters={experiment.attack: experiment.attack_parameters},
        seed=experiment.seed,
    )


def _planted(experiment: Experiment) -> int:
    """Number of records that the attack plants; 0 where it cannot be made, which its jobs report."""
    try:
        attack = registry.create("attack", experiment.attack, **experiment.attack_parameters)
    except Exception:  # Of any kind: a plug-in's attack, or a parameter that it refuses.
        return 0
    return attack.plants if isinstance(attack, Attack) else 0


class JobKind(StrEnum):
    """The two kinds of jobs of a study."""

    TRAINING = "training"
    MEASURING = "measuring"


@dataclass(frozen=True, kw_only=True)
class Training:
    """Payload: train run `run` of a setup; 0 is the target, 1, 2, ... are an attack's shadows.

    Attributes:
        setup: Without a budget where the training does not read one.
        run: Which.
        shadows: Number of shadows in all, which decides their splits; 0 for the target.
        unreleased: Stop before the release of a `PostHocMechanism`.
        content: `content_digest` of the setup, for a worker to check; empty for no check.
    """

    setup: TrainingSetup
    run: int
    shadows: int
    unreleased: bool
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Payload: release (where that comes after training), attack, and measure.

    Attributes:
        trainings: The target and its shadows; their subjects are the inputs `"0"`, `"1"`, ... Empty for an
            attack whose game trains by itself.
        attack: Registry name; its parameters are in the setup.
        content: As a training's, where there is none; else empty.
    """

    trainings: tuple[Training, ...]
    keys: tuple[str, ...]
    setup: TrainingSetup
    attack: str
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class StudyJob:
    """One task of a study: a training or a measurement.

    Attributes:
        key: Of its record, and of its subject's folder.
        identity: Plain data that decide the result; the key is its hash.
        payload: What the work function gets.
        experiment: The first experiment that wants it (others may want the same).
        needs: Keys of the trainings that must be there first, the target's before its shadows'; empty for
            a training.
    """

    key: str
    kind: JobKind
    identity: Mapping[str, Any]
    payload: Training | Measuring
    experiment: Experiment
    needs: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The job's name in displays."""
        run = self.payload.run if isinstance(self.payload, Training) else 0
        return self.experiment.name + (f", shadow {run}" if run else "")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why an experiment cannot even be prepared: the kind of error and its one line."""

    kind: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ExperimentJobs:
    """The jobs of one experiment: its trainings and its measurement.

    Attributes:
        measuring: Its own job; `measuring.key` is the experiment's key.
        trainings: Shared by key with other experiments; the target first. Empty where refused, and for an
            attack whose game trains by itself.
        refusal: Set where it cannot be prepared (a corpus that is too small, an attack that a study cannot
            play); it is then recorded as failed, and nothing is trained for it.
    """

    measuring: StudyJob
    trainings: tuple[StudyJob, ...]
    refusal: Refusal | None = None


def membership(training: Training) -> BoolArray:
    """Which candidates a run trains on, shape `(2 N,)`.

    The target's split is uniform over all splits into N and N, and depends on the seed and N alone, so that
    every variant of a seed trains on the same members. Shadows' memberships are drawn apart from it.
    """
    setup = training.setup
    if training.run > 0:
        shadows = shadow_memberships(setup.candidates, training.shadows, stream(setup.seed, "shadows"))
        row: BoolArray = shadows[training.run - 1]
        return row
    included = np.zeros(setup.candidates, dtype=np.bool_)
    chosen = stream(setup.seed, "split").permutation(setup.candidates)[: setup.candidates // 2]
    included[chosen] = True
    return included


def jobs_of(experiment: Experiment) -> ExperimentJobs:
    """The jobs of an experiment; what is wrong with it is a `refusal`, never an exception."""
    setup = setup_of(experiment)
    try:
        attack = create_attack(setup, experiment.attack)
        game = game_of(attack)
        game.adopt(experiment.attack, attack)
        if not (game.uses_target and game.trains_once):  # Its labels are not those of candidates.
            if experiment.scored_members is not None:
                raise InputError(
                    f"scored_members must not be given, got {experiment.scored_members}: attack "
                    f"{experiment.attack!r} scores no candidates"
                )
            return ExperimentJobs(measuring=_game(experiment, setup), trainings=())
        trainings = _trainings(experiment, setup, attack.references_needed)
    except (Exception, SystemExit) as error:
        # A plug-in may raise anything: the experiment fails, and the study goes on.
        kind = type(error).__name__
        refusal = Refusal(kind=kind, message=one_line(str(error), 500) or kind)
        return ExperimentJobs(measuring=_measuring(experiment, setup, ()), trainings=(), refusal=refusal)
    return ExperimentJobs(measuring=_measuring(experiment, setup, trainings), trainings=trainings)


def _trainings(experiment: Experiment, setup: TrainingSetup, references: int) -> tuple[StudyJob, ...]:
    mechanism = create_mechanism(setup)
    unreleased = isinstance(mechanism, PostHocMechanism)
    shared, described = _training_setup(setup, mechanism)
    inserted = _insertions_digest(_Keyed.of(setup, only=_DECIDE_INSERTIONS))
    content = content_digest(setup)
    jobs = []
    for run in range(references + 1):
        payload = Training(
            setup=shared, run=run, shadows=references if run else 0, unreleased=unreleased, content=content
        )
        identity = {
            "kind": f"study {JobKind.TRAINING}",
            "setup": described,
            "insertions": inserted,
            "content": content,
            "unreleased": unreleased,
            "run": run,
            "shadows": payload.shadows,
        }
        jobs.append(
            StudyJob(
                key=key_of(identity),
                kind=JobKind.TRAINING,
                identity=identity,
                payload=payload,
                experiment=experiment,
            )
        )
    return tuple(jobs)


def _training_setup(setup: TrainingSetup, mechanism: Mechanism) -> tuple[TrainingSetup, dict[str, Any]]:
    """The setup as training reads it, and its plain form without what decides no weight."""
    parameters = dict(setup.mechanism_parameters)
    if isinstance(mechanism, PostHocMechanism):
        parameters = {n: v for n, v in parameters.items() if n not in mechanism.release_parameters}
        setup = replace(setup, budget=None, mechanism_parameters=parameters)
    elif setup.budget is not None and not _reads_budget(_Keyed.of(setup, _DECIDE_PROMISES)):
        setup = replace(setup, budget=None)
    described: dict[str, Any] = plain(replace(setup, attack_parameters={}))
    del described["attack_parameters"]  # Their insertions stand for them.
    own_parameters = settled("mechanism", setup.mechanism, parameters)
    if isinstance(mechanism, PostHocMechanism):
        own_parameters = {n: v for n, v in own_parameters.items() if n not in mechanism.release_parameters}
    described["mechanism_parameters"] = own_parameters
    described["model_parameters"] = settled("model", setup.model, setup.model_parameters)
    return setup, described


_DECIDE_PROMISES = tuple(one.name for one in fields(TrainingSetup) if one.name != "seed")

_DECIDE_INSERTIONS = (
    "corpus",
    "corpus_parameters",
    "candidates",
    "model_parameters",
    "attack_parameters",
    "seed",
)


@dataclass(frozen=True)
class _Keyed:
    """A setup as a key of a cache: equal where their canonical texts are."""

    text: str
    setup: TrainingSetup

    @classmethod
    def of(cls, setup: TrainingSetup, only: Sequence[str] = ()) -> _Keyed:
        """With `only`, equal where these fields are."""
        return cls(canonical({name: getattr(setup, name) for name in only} if only else setup), setup)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.text == other.text


@lru_cache(maxsize=16384)
def _reads_budget(keyed: _Keyed) -> bool:
    """False where the mechanism promises nothing with the budget and nothing without it: then the weights
    are the same for all budgets. True where it fails on a plan without one.
    """
    mechanism = create_mechanism(keyed.setup)
    plan = make_plan(keyed.setup, membership(_target(keyed.setup)), 0)
    try:
        claims = [mechanism.claim(replace(plan, budget=None)), mechanism.claim(plan)]
    except Exception:  # Of any kind: a plug-in may take its budget for granted.
        return True
    return not all(isinstance(claim.guarantee, NoGuarantee) for claim in claims)


def _target(setup: TrainingSetup) -> Training:
    return Training(setup=setup, run=0, shadows=0, unreleased=False)


@lru_cache(maxsize=4096)
def _insertions_digest(keyed: _Keyed) -> str | None:
    """What the setup's attack puts into the training set; None where that is nothing, whatever the attack."""
    _, insertions = prepare(keyed.setup)
    if not (insertions.replaced or insertions.planted) and insertions.gradient_canary is None:
        return None
    text = repr(insertions)
    if insertions.gradient_canary is not None and insertions.gradient_canary.everywhere:
        text += ", everywhere"
    if insertions.planted:
        text += repr(insertions.planted)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _game(experiment: Experiment, setup: TrainingSetup) -> StudyJob:
    """The measuring of an attack that trains by itself: its own key holds what decides its trainings."""
    content = content_digest(setup)
    _, described = _training_setup(setup, create_mechanism(setup))
    measuring = _measuring(experiment, setup, ())
    identity = {**measuring.identity, "setup": described, "content": content}
    payload = replace(cast(Measuring, measuring.payload), content=content)
    return replace(measuring, key=key_of(identity), identity=identity, payload=payload)


def _measuring(experiment: Experiment, setup: TrainingSetup, trainings: Sequence[StudyJob]) -> StudyJob:
    keys = tuple(job.key for job in trainings)
    identity: dict[str, Any] = {
        "kind": f"study {JobKind.MEASURING}",
        "trainings": list(keys),
        "mechanism": experiment.mechanism,
        "mechanism_parameters": settled("mechanism", experiment.mechanism, experiment.mechanism_parameters),
        "budget": plain(experiment.budget),
        "attack": experiment.attack,
        "attack_parameters": settled("attack", experiment.attack, experiment.attack_parameters),
        "seed": experiment.seed,
    }
    if not trainings:  # Of a refused experiment, which no training tells apart from others.
        identity["setup"] = plain(setup)
    payload = Measuring(
        trainings=tuple(job.payload for job in trainings if isinstance(job.payload, Training)),
        keys=keys,
        setup=setup,
        attack=experiment.attack,
    )
    key, kind = key_of(identity), JobKind.MEASURING
    return StudyJob(key=key, kind=kind, identity=identity, payload=payload, experiment=experiment, needs=keys)
