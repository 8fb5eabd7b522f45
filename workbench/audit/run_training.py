"""Audits a user's training function: let it train, attack, replay, and make the report record."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from workbench.accounting import ApproximateDP
from workbench.audit.canaries.run import Found as CanariesFound
from workbench.audit.canaries.run import play as play_canaries
from workbench.audit.canaries.run import unplayed
from workbench.audit.neighbours import flipped, require_played, trials_of
from workbench.audit.replay.run import ReplayJob, judged_record
from workbench.audit.replay.run import play as play_replay
from workbench.audit.replay.stated import Stated
from workbench.audit.retraining import play as play_retraining
from workbench.audit.retraining import records_of
from workbench.audit.run import report_record
from workbench.audit.settings import AuditSettings
from workbench.audit.user_training import SOURCE, UserJob, UserTraining, game_of, train_user
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON
from workbench.core.streams import stream
from workbench.estimation.judge import claim_form, judged_subject, refutes_already, share_of
from workbench.execution.engine import Engine, Job
from workbench.interfaces import Adjacency, Claim, Evidence, Released
from workbench.training.crafts import CanaryKind, require_kind, usual_kind
from workbench.training.setup import TrainingSetup, content_digest, forget_corpora, prepare


def audit_training(
    function_spec: str,
    settings: AuditSettings,
    engine: Engine,
    *,
    runs: int,
    command: str,
    replayed: Claim | None = None,
    watched: Claim | None = None,
    canaries: int = 0,
    canary_kind: CanaryKind | None = None,
    retrained: Claim | None = None,
    trainings: int = 0,
    stated: Stated | None = None,
    begins: Callable[[], None] = lambda: None,
) -> dict[str, JSON]:
    """Audit a user's training function: flip coins, let it train, score every candidate, and replay it.

    Args:
        function_spec: `path/to/file.py:function`; the contract is in `workbench.audit.user_training`.
        settings: Claim, corpus, candidates, seed, confidence and `sequential` are used.
        engine: Has the workers and the store (`starting.started`).
        runs: Independent trainings, each with fresh coins; their scores are pooled.
        command: As in `audit_mechanisms`.
        replayed: The claim that forced replay of the first run is held against, if it is one of
            (epsilon, delta)-DP; None for no replay. It takes half of the error where it can be played.
        watched: The claim that updates are held against in a training with canaries; None for no canaries.
            Their scores are held against the settings' claim. Each of the two games has as much of the error
            as that of natural records, whether it can be played or not.
        canaries, canary_kind: Their number, at least 2 if there are any, and how they are crafted; None for
            `usual_kind`.
        retrained: The claim that updates are held against in the retraining game; None for no such game. Its
            scores are held against the settings' claim; each has a share as the games with canaries have.
        trainings: Those of the retraining game, at least 20; with `settings.sequential` it ends as soon as
            they refute the claim.
        stated: What the training is said to do: a replay tells which part does otherwise.
        begins: Called when all is checked, before anything is trained.

    Returns the report record. Raises `InputError`: the function cannot be loaded, fails, or breaks its
    contract. `UnsupportedError`: scores of one run cannot judge the claim's currency.
    """
    if runs < 1:
        raise InputError(f"runs must be at least 1, got {runs}")
    adjacency = require_played(settings.claim.about)
    started = datetime.now(UTC)
    forget_corpora()
    training = _loaded(function_spec, settings, engine)
    natural = replace(settings, attack_parameters={})  # But for the secrets of texts.
    setup = replace(natural.setup(settings.attacks[:1]), mechanism="user")
    kind = canary_kind or CanaryKind.LOUD
    if watched is not None:
        candidates = prepare(setup)[0]
        kind = canary_kind or usual_kind(candidates)
        require_kind(candidates, kind, "canary_kind")
    store = engine.store
    inputs = {} if settings.scheduler is None else {SOURCE: training.copied_to(store.scratch_folder())}
    jobs = _user_jobs(training, setup, adjacency, runs=runs, inputs=inputs)
    if retrained is not None:
        records_of(setup, jobs[0].payload.included)
    begins()
    name, others, planned = function_spec.rpartition(":")[2], [], _planned(watched, retrained)
    form: dict[str, JSON] | None = None
    records = engine.run("training", jobs, train_user, keeps_folder=False)
    if replayed is not None and is_replayable(replayed):
        first = ReplayJob(setup=setup, spec=function_spec, included=jobs[0].payload.included)
        replay = play_replay(engine, first, training=training, inputs=inputs, content=jobs[0].content)
        found, form = judged_record(
            replayed, replay, confidence=0.5 + 0.5 * settings.confidence, stated=stated
        )
        others = [found] if found is not None else []
    watching: list[CanariesFound] = []
    against: list[Claim] = []
    if watched is not None:
        payload, crafts = jobs[0].payload, (canaries, kind)
        watching += play_canaries(
            engine, watched, payload, training=training, crafts=crafts, runs=runs, inputs=inputs
        )
        against += [settings.claim, watched]
    if retrained is not None:
        share = share_of(settings.confidence, planned, with_others=bool(others))
        watching += play_retraining(
            engine,
            retrained,
            jobs[0].payload,
            training=training,
            trainings=trainings,
            inputs=inputs,
            stop=partial(_refutes, settings, confidence=share) if settings.sequential else None,
        )
        against += [settings.claim, retrained]
    store.sweep()
    games, held = [_natural_evidence(setup, jobs, records, adjacency)], [settings.claim]
    for game, claim in zip(watching, against, strict=True):
        if game.evidence is not None:
            games.append(game.evidence)
            held.append(claim)
    subject = judged_subject(
        name,
        "user",
        settings.claim,
        games,
        confidence=settings.confidence,
        seed=settings.seed,
        others=others,
        claims=held,
        planned=planned,
    )
    report = report_record(settings.claim, [subject], seed=settings.seed, command=command, started=started)
    return report | ({"replay": {"subject": name, **form}} if form else {}) | unplayed(name, watching)


def _loaded(function_spec: str, settings: AuditSettings, engine: Engine) -> UserTraining:
    """The user's function; workers start with the variables that its file sets."""
    before = dict(os.environ)
    training = UserTraining(function_spec, settings.device)
    if dict(os.environ) != before:
        engine.close()
    return training


def is_replayable(claim: Claim) -> bool:
    """Whether forced replay judges such a claim."""
    return isinstance(claim.guarantee, ApproximateDP) and claim.guarantee.delta > 0


def _planned(*of_updates: Claim | None) -> int:
    """How many games are to be played: that of natural records, one for scores, and one for updates.

    Coins may make a training fail, so a game that was not played keeps its share of the error.
    """
    asked = [claim for claim in of_updates if claim is not None]
    return 1 + len(asked) + sum(claim.released is Released.EVERY_UPDATE for claim in asked)


def _refutes(settings: AuditSettings, claim: Claim | None, evidence: Evidence, *, confidence: float) -> bool:
    """Whether a sequential game refutes a claim, or the settings' own, with the trials so far."""
    held = settings.claim if claim is None else claim
    return refutes_already(held, evidence, confidence=confidence, seed=settings.seed)


def _user_jobs(
    training: UserTraining,
    setup: TrainingSetup,
    adjacency: Adjacency,
    *,
    runs: int,
    inputs: Mapping[str, Path],
) -> list[Job]:
    """Trainings of a user's function on natural records, each with coins of its own."""
    content, jobs = content_digest(setup), []
    for run in range(runs):
        coins = flipped(stream(setup.seed, "coins", run), setup.candidates, adjacency)
        payload = UserJob(setup=setup, spec=training.spec, included=tuple(coins.tolist()), run=run)
        jobs.append(training.job("user", payload, inputs=inputs, content=content))
    return jobs


def _natural_evidence(
    setup: TrainingSetup,
    jobs: Sequence[Job],
    records: Sequence[Mapping[str, JSON]],
    adjacency: Adjacency,
) -> Evidence:
    """The scores of natural records, pooled over the trainings."""
    candidates, _ = prepare(setup)
    is_of_texts = len(jobs) == 1 and adjacency is Adjacency.ADD_REMOVE and bool(candidates[0].text)
    texts = tuple(record.text for record in candidates) if is_of_texts else ()
    found = [record["scores"] for record in records], [job.payload.included for job in jobs]
    scores, coins = trials_of(*found, adjacency)
    return Evidence(
        scores=scores.ravel(),
        members=coins.ravel(),
        game=game_of(adjacency),
        attack="released scores",
        blind_texts=texts,
        seeds={"audit": setup.seed},
        cost={"seconds": sum(float(record["cost"]["seconds"]) for record in records)},
        details={"runs": float(len(jobs))},
    )


def audit_replay(
    function_spec: str,
    settings: AuditSettings,
    engine: Engine,
    *,
    command: str,
    stated: Stated | None = None,
) -> dict[str, JSON]:
    """Replay a user's training function on all candidates, and hold what it measures against the claim.

    Args:
        function_spec, settings, engine, command, stated: As in `audit_training`.

    Returns:
        The report record; its `replay` has all that was measured.

    Raises:
        InputError: the function cannot be loaded, fails, or breaks its contract.
        UnsupportedError: the claim is not one of (epsilon, delta)-DP.
    """
    if not is_replayable(settings.claim):
        described = settings.claim.guarantee.describe()
        raise UnsupportedError(
            "replay composes Gaussian noise, and judges claims of (epsilon, delta)-DP with a delta above 0; "
            f"got {described}"
        )
    started = datetime.now(UTC)
    forget_corpora()
    training, setup = _loaded(function_spec, settings, engine), settings.setup(())
    store = engine.store
    inputs = {} if settings.scheduler is None else {SOURCE: training.copied_to(store.scratch_folder())}
    payload = ReplayJob(setup=setup, spec=function_spec, included=(True,) * settings.candidates)
    content = content_digest(setup)
    record = play_replay(engine, payload, training=training, inputs=inputs, content=content)
    store.sweep()
    _, form = judged_record(settings.claim, record, confidence=settings.confidence, stated=stated)
    name = function_spec.rpartition(":")[2]
    subject: dict[str, JSON] = {
        "name": name,
        "role": "user",
        "claim": claim_form(settings.claim),
        "verdict": form["verdict"],
        "metrics": {},
        "losses": [],
        "parameters": {},
        "attacks": [],
    }
    report = report_record(settings.claim, [subject], seed=settings.seed, command=command, started=started)
    return report | {"replay": {"subject": name, **form}}
