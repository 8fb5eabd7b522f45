"""Runs an audit: train what is not yet trained, attack, join the labels, judge, and make the report record.

Three ways in, one record out: the embedded mechanisms, a user's training function, and a file of scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from workbench import __version__
from workbench.audit.extraction_words import extraction_forms
from workbench.audit.settings import (
    DEFAULT_CLAIM,
    AuditSettings,
    about_claimed,
    as_control,
    claim_of,
    currency_of,
    default_settings,
    steers,
)
from workbench.audit.shuffled_words import shuffled_view_forms
from workbench.audit.steered_words import steered_view_forms
from workbench.audit.subjects import audited as audited_subject
from workbench.audit.subjects import subject_report
from workbench.audit.user_training import GAME, SOURCE, UserJob, UserTraining, train_user
from workbench.audit.views import audit_views
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.outputs import write_atomically
from workbench.core.streams import stream
from workbench.estimation import check_game
from workbench.estimation.deciding import unknown_prior_range
from workbench.estimation.judged import claim_form, judged_subject
from workbench.execution.engine import Engine, Job, Progress, hardware, versions
from workbench.execution.store import Store
from workbench.games.plays import play_attack, released_to
from workbench.interfaces import (
    AccessLevel,
    Adjacency,
    BoolArray,
    Claim,
    Currency,
    Evidence,
    FloatArray,
    Game,
    Mechanism,
    Plan,
    Trials,
    VerdictKind,
)
from workbench.training import setup as workers
from workbench.training.neighbours import GAME_ADJACENCY, neighbours_of
from workbench.training.setup import TrainingSetup

__all__ = [
    "DEFAULT_CLAIM",
    "AuditSettings",
    "audit_mechanisms",
    "audit_scores",
    "audit_training",
    "claim_form",
    "claim_of",
    "default_settings",
    "judged_subject",
    "write_report",
]

REPORT_SCHEMA = 1

UNEVEN_SIGNIFICANCE = 0.01
"""Labels less even than fair coins would give this rarely are taken to come from coins of another kind."""

EXIT_CODES = {
    VerdictKind.NOT_REFUTED: 0,
    VerdictKind.REFUTED: 1,
    VerdictKind.UNDERPOWERED: 3,
    VerdictKind.INVALID: 3,
    VerdictKind.UNDECIDED: 3,
}


def audit_mechanisms(
    settings: AuditSettings, *, out: Path, command: str, progress: Progress | None = None
) -> dict[str, JSON]:
    """Train, attack and judge a registered mechanism (and the non-private control).

    A mechanism that budgets in nats is judged in two or three views, each a claim of its own
    (`workbench.audit.views`); the report then has `views`.

    Args:
        settings: What to audit.
        out: Folder; the store lies in `out/store`.
        command: The command line, for the report.
        progress: Told of each finished job.

    Returns:
        The report record.

    Raises:
        InputError: an unknown name, an unusable parameter, or a place that cannot be written.
        UnsupportedError: the mechanism cannot meet the claimed guarantee, or the game cannot judge it.
    """
    started = datetime.now(UTC)
    workers.forget_corpora()
    if currency_of(settings.mechanism) is not Currency.DP:
        subjects, views = audit_views(settings, out=out, progress=progress)
        return {**_report(settings, subjects, command=command, started=started), "views": views}
    settings = about_claimed(settings)
    asked = [settings]
    audited = [audited_subject(settings, settings.mechanism, "subject", settings.mechanism_parameters)]
    if settings.control and settings.mechanism != settings.control_mechanism:
        asked.append(as_control(settings))
        audited.append(audited_subject(asked[-1], settings.control_mechanism, "control", {}))
    from workbench.training.fine_tuning import check_plan

    # A plan that cannot be met fails here, before anything is trained or written.
    for own, subject in zip(asked, audited, strict=True):
        plan = workers.make_plan(subject.setup, subject.included, 0)
        mechanism = workers.create_mechanism(subject.setup)
        getattr(mechanism, "check", check_plan)(plan)
        workers.check_fit(subject.setup)
        _require_testable(own, subject.setup, mechanism.claim(plan))
        _require_readable(subject.setup, mechanism, plan)
    trainings = [subject.trainings() for subject in audited]
    flat = [job for jobs in trainings for job in jobs]
    store = Store(out / "store")
    with Engine(store, workers=settings.workers, scheduler=settings.scheduler, progress=progress) as engine:
        trained = engine.run("training", flat, workers.train, keeps_folder=True)
        attacks = [job for subject in audited for job in subject.attacks(store)]
        attacked = engine.run("attacking", attacks, play_attack, keeps_folder=False)
    store.sweep()
    records = dict(zip([job.key for job in flat], trained, strict=True))
    subjects = []
    for own, subject, jobs in zip(asked, audited, trainings, strict=True):
        played = [attacked.pop(0) for _ in subject.setup.attack_parameters]
        record = records[jobs[0].key]
        subjects.append(subject_report(own, subject, record, played))
    report = _report(settings, subjects, command=command, started=started)
    said = _views(settings, audited[0].setup, subjects)
    return {**report, "views": said} if said else report


def _views(
    settings: AuditSettings, setup: TrainingSetup, subjects: list[dict[str, JSON]]
) -> dict[str, JSON] | None:
    """The views in words of an audit that has some; the first subject's, beside the control's verdict."""
    beside = subjects[1] if len(subjects) > 1 else None
    if steers(settings.mechanism):
        return steered_view_forms(subjects[0], confidence=settings.confidence, control=beside)
    if any(_access(setup, name) is not AccessLevel.CONSECUTIVE for name in settings.attacks):
        return None
    return shuffled_view_forms(
        subjects[0], mechanism=settings.mechanism, confidence=settings.confidence, control=beside
    )


_OF_SUMS = {
    AccessLevel.RELEASE: "noised sums",
    AccessLevel.TRAJECTORY: "the clip radii of noised sums",
}
"""What these attacks need a mechanism to have, which not every one has."""

_ADDING = (AccessLevel.WEIGHTS, AccessLevel.CONSECUTIVE)
"""Games that have no version by replacement."""


def _access(setup: TrainingSetup, name: str) -> AccessLevel:
    return workers.create_attack(setup, name).access


def _require_testable(settings: AuditSettings, setup: TrainingSetup, own: Claim) -> None:
    """Refuse, before anything is trained, a claim that the audit's games do not test.

    Raises:
        UnsupportedError: the claim's currency, adjacency or release is not that of the games.
    """
    claim = settings.claim
    if not isinstance(claim.about, Adjacency):
        raise UnsupportedError(
            f"the games of an audit test differential privacy; {claim.guarantee.describe()} needs --scores "
            "of independent trials"
        )
    played = neighbours_of(setup.mechanism, setup.mechanism_parameters)
    if claim.about is not played or own.about is not claim.about:
        raise UnsupportedError(
            f"claim says adjacency {claim.about}; {setup.mechanism} and the games are {own.about}"
        )
    for name in settings.attacks:
        attack = workers.create_attack(setup, name)
        if attack.access is AccessLevel.TRANSCRIPT:
            raise UnsupportedError(
                f"attack {name!r} reads released signs, and {setup.mechanism} releases none"
            )
        if attack.access is AccessLevel.SUBSET:
            raise UnsupportedError(
                f"attack {name!r} asks which candidate subset was the secret, and {setup.mechanism} has none"
            )
        factory = registry.entries("mechanism")[setup.mechanism].factory
        if attack.access in _OF_SUMS and not getattr(factory, "releases_sums", True):
            raise UnsupportedError(
                f"attack {name!r} reads {_OF_SUMS[attack.access]}, and {setup.mechanism} releases none: "
                "leave it out"
            )
        if attack.access in _ADDING and played is not Adjacency.ADD_REMOVE:
            raise UnsupportedError(
                f"attack {name!r} adds a record or removes it, and the claim says adjacency {claim.about}"
            )
        seen = released_to(attack)
        for whose, covered in (("claim", claim.released), (setup.mechanism, own.released)):
            if not covered.covers(seen):
                raise UnsupportedError(
                    f"{whose} covers {covered}, and attack {name!r} sees {seen}; name attacks that it covers"
                )
    if not own.released.covers(claim.released):
        raise UnsupportedError(
            f"claim covers {claim.released}, and {setup.mechanism} promises nothing beyond its "
            f"{own.released}: claim released={own.released}"
        )


def _require_readable(setup: TrainingSetup, mechanism: Mechanism, plan: Plan) -> None:
    """Refuse, before anything is trained, an attack on consecutive weights that cannot be played.

    Raises:
        InputError: there is no record for the canary's place, or the model cannot read it.
        UnsupportedError: the mechanism or the model has nothing for it.
    """
    for name in setup.attack_parameters:
        attack: Any = workers.create_attack(setup, name)
        if attack.access is AccessLevel.CONSECUTIVE:
            from workbench.games.consecutive.play import check_shuffled
            from workbench.training.fine_tuning import build_model

            model = build_model(plan)
            try:
                model.encode(plan.records[-1:])
            except InputError as error:
                raise InputError(
                    f"model {setup.model!r} does not go with corpus {setup.corpus!r}: {error}"
                ) from error
            check_shuffled(mechanism, model, plan, attack)


def _report(
    settings: AuditSettings, subjects: list[dict[str, JSON]], *, command: str, started: datetime
) -> dict[str, JSON]:
    """The report record; the first subject decides. Canary extraction, where it was tried, is beside it."""
    verdict: Mapping[str, JSON] = subjects[0]["verdict"]
    now = datetime.now(UTC)
    extraction = extraction_forms(subjects)
    return {
        **({"extraction": extraction} if extraction else {}),
        "schema": REPORT_SCHEMA,
        "kind": "audit",
        "workbench_version": __version__,
        "versions": versions(),
        "hardware": hardware(),
        "created": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": command,
        "seed": settings.seed,
        "exit_code": EXIT_CODES[VerdictKind(verdict["kind"])],
        "claim": claim_form(settings.claim),
        "verdict": verdict,
        "subjects": subjects,
        "cost": {"seconds": (now - started).total_seconds()},
    }


def audit_training(
    function_spec: str,
    settings: AuditSettings,
    *,
    runs: int,
    out: Path,
    command: str,
    progress: Progress | None = None,
) -> dict[str, JSON]:
    """Audit a user's training function: flip coins, let it train, and score every candidate.

    Args:
        function_spec: `path/to/file.py:function`; the contract is in `workbench.audit.user_training`.
        settings: Claim, corpus, candidates, seed and confidence are used.
        runs: Independent trainings, each with fresh coins; their scores are pooled.
        out: Folder; the store lies in `out/store`.
        command: The command line, for the report.
        progress: Told of each finished run.

    Returns:
        The report record.

    Raises:
        InputError: the function cannot be loaded, fails, or breaks its contract.
        UnsupportedError: scores of one run cannot judge the claim's currency.
    """
    if runs < 1:
        raise InputError(f"runs must be at least 1, got {runs}")
    if settings.claim.about is not GAME_ADJACENCY:
        raise UnsupportedError(
            f"claim is about {settings.claim.about}; the bench adds or removes records and tests nothing else"
        )
    started = datetime.now(UTC)
    workers.forget_corpora()
    training = UserTraining(function_spec)
    setup = replace(
        settings.setup("user", {}),
        attack_parameters={"loss": dict(settings.attack_parameters.get("loss", {}))},
    )
    store = Store(out / "store")
    inputs = {} if settings.scheduler is None else {SOURCE: training.copied_to(store.scratch_folder())}
    content, jobs = workers.content_digest(setup), []
    for run in range(runs):
        coins = stream(settings.seed, "coins", run).random(settings.candidates) < 0.5
        payload = UserJob(setup=setup, spec=function_spec, included=tuple(coins.tolist()), run=run)
        identity = {
            "kind": "user",
            "source": training.source_sha256,
            "job": plain(payload),
            "content": content,
        }
        jobs.append(
            Job(identity=identity, payload=payload, inputs=inputs, label=function_spec, content=content)
        )
    # Never in this process: the user's code may end it, and an exit code of ours is a verdict.
    processes = max(1, settings.workers)
    with Engine(store, workers=processes, scheduler=settings.scheduler, progress=progress) as engine:
        records = engine.run("training", jobs, train_user, keeps_folder=False)
    store.sweep()
    candidates, _ = workers.prepare(setup)
    texts = tuple(record.text for record in candidates) if runs == 1 and candidates[0].text else ()
    evidence = Evidence(
        scores=np.concatenate([np.array(record["scores"], dtype=np.float64) for record in records]),
        members=np.concatenate([np.array(job.payload.included, dtype=bool) for job in jobs]),
        game=GAME,
        attack="released scores",
        blind_texts=texts,
        seeds={"audit": settings.seed},
        cost={"seconds": sum(float(record["cost"]["seconds"]) for record in records)},
        details={"runs": float(runs)},
    )
    name = function_spec.rpartition(":")[2]
    subject = judged_subject(
        name, "user", settings.claim, [evidence], confidence=settings.confidence, seed=settings.seed
    )
    return _report(settings, [subject], command=command, started=started)


def audit_scores(
    *,
    scores: FloatArray,
    members: BoolArray,
    claim: Claim,
    trials: Trials,
    prior: float | None,
    confidence: float,
    seed: int,
    command: str,
    source: str,
    blind_texts: tuple[str, ...] = (),
) -> dict[str, JSON]:
    """Judge a claim by somebody's scores.

    Args:
        scores: Shape `(n,)`, finite, higher = member.
        members: Shape `(n,)`.
        claim: What is claimed.
        trials: How the scores depend on each other, as the user says.
        prior: Probability of the coin that chose the labels. None: one half, or, where the labels are not
            even enough for that, an unknown one, for which the bound then pays. That the labels are looked at
            first is not paid for; measured over priors that pass for one half, the error stays below 5 %.
        confidence: One-sided.
        seed: Of sample splits.
        command: The command line, for the report.
        source: Name of the file, for the report.
        blind_texts: Text of each record, for the blind classifier; empty for none.

    Raises:
        InputError: unusable input.
        UnsupportedError: these trials cannot judge the claim's currency.
    """
    started = datetime.now(UTC)
    settings = AuditSettings(claim=claim, seed=seed, confidence=confidence)
    check_game(scores, members)
    even = prior is None and binomtest(int(np.sum(members)), members.size).pvalue >= UNEVEN_SIGNIFICANCE
    unknown = prior is None and not even
    share = float(np.mean(members))
    chosen = share if unknown else 0.5 if prior is None else prior
    coins = (
        f"coins of an unknown probability near {share:.3g}" if unknown else f"coins of probability {chosen:g}"
    )
    fixed = trials is Trials.INDEPENDENT and prior is None
    game = Game(
        description=f"as the supplier of {source} says: labels "
        + ("known, each score of a release of its own" if fixed else f"drawn by {coins}"),
        trials=trials,
        prior=chosen,
        prior_range=unknown_prior_range(members) if unknown else None,
        released=claim.released,
    )
    evidence = Evidence(
        scores=scores,
        members=members,
        game=game,
        attack="scores",
        blind_texts=blind_texts,
        seeds={"audit": seed},
    )
    subject = judged_subject(source, "scores", claim, [evidence], confidence=confidence, seed=seed)
    return _report(settings, [subject], command=command, started=started)


def write_report(report: Mapping[str, JSON], *, out: Path | None, json_file: Path | None) -> None:
    """Write `report.json` and `report.html` to a folder, and the record to a file of its own.

    Raises:
        InputError: a place cannot be written.
    """
    text = registry.create("report", "html", report=report) if out is not None else ""
    content = json.dumps(plain(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    if out is not None:
        write_atomically(out / "report.json", content)
        write_atomically(out / "report.html", text)
    if json_file is not None:
        write_atomically(json_file, content)
