"""Runs an audit: train what is not yet trained, attack, join the labels, judge, and make the report record.

Three ways in, one record out: the embedded mechanisms, a user's training function, and a file of scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from workbench import __version__, registry, workers
from workbench.accounting import ApproximateDP
from workbench.canaries import SECRET_MARKER
from workbench.deciding import unknown_prior_range
from workbench.engine import Engine, Job, Progress, hardware, versions
from workbench.errors import InconclusiveError, InputError, UnsupportedError
from workbench.estimation import check_game
from workbench.interfaces import (
    JSON,
    Adjacency,
    BoolArray,
    Claim,
    Evidence,
    Family,
    FloatArray,
    Game,
    Released,
    Trials,
    VerdictKind,
)
from workbench.judge import combine, judge
from workbench.shadows import shadow_memberships
from workbench.store import Store, plain, write_atomically
from workbench.user_training import GAME, UserTraining
from workbench.workers import AttackJob, TrainingJob, TrainingSetup, UserJob, stream

REPORT_SCHEMA = 1

UNEVEN_SIGNIFICANCE = 0.01
"""Labels less even than fair coins would give this rarely are taken to come from coins of another kind."""

EXIT_CODES = {
    VerdictKind.NOT_REFUTED: 0,
    VerdictKind.REFUTED: 1,
    VerdictKind.UNDERPOWERED: 3,
    VerdictKind.INVALID: 3,
}

DEFAULT_CLAIM = Claim(
    guarantee=ApproximateDP(epsilon=1.0, delta=1e-5),
    about=Adjacency.ADD_REMOVE,
    released=Released.EVERY_UPDATE,
    source="the embedded default",
)


def _default_attack_parameters() -> dict[str, dict[str, Any]]:
    """Few shadows, for the three minutes of the embedded audit; the secret is what training memorises."""
    return {"loss": {"ending_marker": SECRET_MARKER}, "lira": {"ending_marker": SECRET_MARKER, "shadows": 4}}


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What `workbench audit` trains and attacks; the defaults are the embedded audit.

    Attributes:
        claim: The claim under audit; the mechanism is asked to meet its guarantee.
        mechanism, mechanism_parameters: The subject.
        control: Also audit `non_private` under the same claim (does not count for the exit code).
        attacks: Names, in the order of the report.
        attack_parameters: Parameters by attack name.
        corpus, corpus_parameters, model, model_parameters: What is trained on what.
        candidates: Size of the candidate pool; each is a member by a fair coin.
        steps, sampling_probability, learning_rate, optimizer, adapter: See `Plan`.
        control_learning_rate: The control's own step size; None for the subject's. Noise wants small steps,
            and a control that learns nothing controls nothing.
        seed: Of everything.
        confidence: Of the whole audit, shared by its attacks.
        workers: Processes; 0 runs in this process.

    Raises:
        InputError: a value is out of range.
    """

    claim: Claim = DEFAULT_CLAIM
    mechanism: str = "dp_sgd"
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    control: bool = True
    attacks: tuple[str, ...] = ("loss", "lira", "dirac_canary")
    attack_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=_default_attack_parameters)
    corpus: str = "clinical"
    corpus_parameters: Mapping[str, Any] = field(default_factory=lambda: {"attributes": "short"})
    model: str = "tiny_gpt2"
    model_parameters: Mapping[str, Any] = field(default_factory=lambda: {"max_length": 160})
    candidates: int = 128
    steps: int = 120
    sampling_probability: float = 0.08
    learning_rate: float = 3e-4
    control_learning_rate: float | None = 3e-3
    optimizer: str = "adamw"
    adapter: str = "full"
    seed: int = 0
    confidence: float = 0.95
    workers: int = 2

    def __post_init__(self) -> None:
        for name, least in {"candidates": 20, "steps": 1, "workers": 0, "seed": 0}.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0.0 < self.sampling_probability <= 1.0:
            raise InputError(f"sampling_probability must be in (0, 1], got {self.sampling_probability:g}")
        if not 0.5 < self.confidence < 1.0:
            raise InputError(f"confidence must be in (0.5, 1), got {self.confidence:g}")
        if not self.attacks:
            raise InputError("attacks must name at least one attack")
        if len(set(self.attacks)) < len(self.attacks):
            raise InputError(f"attacks must not repeat, got {', '.join(self.attacks)}")

    def setup(self, mechanism: str, parameters: Mapping[str, Any]) -> TrainingSetup:
        """The training setup of one mechanism."""
        return TrainingSetup(
            mechanism=mechanism,
            mechanism_parameters=parameters,
            corpus=self.corpus,
            corpus_parameters=self.corpus_parameters,
            model=self.model,
            model_parameters=self.model_parameters,
            budget=self.claim.guarantee,
            candidates=self.candidates,
            steps=self.steps,
            sampling_probability=self.sampling_probability,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            adapter=self.adapter,
            attack_parameters={name: dict(self.attack_parameters.get(name, {})) for name in self.attacks},
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class _Audited:
    """One subject of an audit: its place in the report and the jobs that make it."""

    name: str
    role: str
    setup: TrainingSetup
    included: BoolArray
    shadow_included: BoolArray

    def trainings(self) -> list[Job]:
        """The target first, then the shadows."""
        rows = [self.included, *self.shadow_included]
        return [self._training(row, run) for run, row in enumerate(rows)]

    def _training(self, included: BoolArray, run: int) -> Job:
        setup = self.setup
        if run > 0:  # A shadow has no gradient canary, so attacks that only insert one leave its key alone.
            inserting = {n: p for n, p in setup.attack_parameters.items() if _inserts_records(setup, n)}
            setup = workers.with_attacks(setup, inserting)
        payload = TrainingJob(setup=setup, included=tuple(included.tolist()), run=run)
        content = workers.content_digest(self.setup)
        return Job(identity={"kind": "training", "job": plain(payload), "content": content}, payload=payload)

    def attacks(self, store: Store) -> list[Job]:
        """One job an attack; the shadows go to those that ask for them."""
        trainings = self.trainings()
        folders = [_trained_folder(store, job.key) for job in trainings]
        jobs = []
        for name in self.setup.attack_parameters:
            count = workers.create_attack(self.setup, name).references_needed
            payload = AttackJob(
                setup=self.setup,
                attack=name,
                target=folders[0],
                target_included=tuple(self.included.tolist()),
                shadows=tuple(folders[1 : count + 1]),
                shadow_included=tuple(tuple(row.tolist()) for row in self.shadow_included[:count]),
            )
            used = [job.key for job in trainings[: count + 1]]
            identity = {"kind": "attack", "setup": plain(self.setup), "attack": name, "subjects": used}
            jobs.append(Job(identity=identity, payload=payload))
        return jobs


def _inserts_records(setup: TrainingSetup, name: str) -> bool:
    insertions = workers.create_attack(setup, name).prepare(
        workers.load_corpus(setup), stream(setup.seed, "insertions")
    )
    return bool(insertions.replaced)


def _trained_folder(store: Store, key: str) -> Path:
    folder = store.subject_folder(key)
    if folder is None:
        raise InputError(f"store {store.folder} has lost subject {key}")
    return folder


def audit_mechanisms(
    settings: AuditSettings, *, out: Path, command: str, progress: Progress | None = None
) -> dict[str, JSON]:
    """Train, attack and judge a registered mechanism (and the non-private control).

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
    audited = [_audited(settings, settings.mechanism, "subject", settings.mechanism_parameters)]
    if settings.control and settings.mechanism != "non_private":
        rate = settings.control_learning_rate or settings.learning_rate
        audited.append(_audited(replace(settings, learning_rate=rate), "non_private", "control", {}))
    from workbench.training.fine_tuning import check_plan

    for subject in audited:  # A plan that cannot be met fails here, before anything is trained or written.
        plan = workers.make_plan(subject.setup, subject.included, 0)
        check_plan(plan)
        own = workers.create_mechanism(subject.setup).claim(plan)
        _require_testable(settings, subject.setup, own)
    trainings = [subject.trainings() for subject in audited]
    flat = [job for jobs in trainings for job in jobs]
    store = Store(out / "store")
    with Engine(store, settings.workers, progress) as engine:
        trained = engine.run("training", flat, workers.train, keeps_folder=True)
        attacks = [job for subject in audited for job in subject.attacks(store)]
        attacked = engine.run("attacking", attacks, workers.attack, keeps_folder=False)
    store.sweep()
    records = dict(zip([job.key for job in flat], trained, strict=True))
    subjects = []
    for subject, jobs in zip(audited, trainings, strict=True):
        played = [attacked.pop(0) for _ in subject.setup.attack_parameters]
        record = records[jobs[0].key]
        subjects.append(_subject_report(settings, subject, record, played))
    return _report(settings, subjects, command=command, started=started)


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
    if claim.about is not workers.GAME_ADJACENCY or own.about is not claim.about:
        raise UnsupportedError(
            f"claim says adjacency {claim.about}; {setup.mechanism} and the games are {own.about}"
        )
    for name in settings.attacks:
        seen = workers.released_to(workers.create_attack(setup, name))
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


def _audited(settings: AuditSettings, name: str, role: str, parameters: Mapping[str, Any]) -> _Audited:
    setup = settings.setup(name, parameters)
    coins = stream(settings.seed, "coins").random(settings.candidates) < 0.5
    needed = max(workers.create_attack(setup, attack).references_needed for attack in settings.attacks)
    generator = stream(settings.seed, "shadows")
    shadows = shadow_memberships(settings.candidates, needed, generator) if needed else np.zeros((0, 0), bool)
    return _Audited(name=name, role=role, setup=setup, included=coins, shadow_included=shadows)


def _subject_report(
    settings: AuditSettings,
    subject: _Audited,
    trained: Mapping[str, JSON],
    played: Sequence[Mapping[str, JSON]],
) -> dict[str, JSON]:
    """Judge every game of one subject, each at its share of the error, and combine."""
    games = [_evidence_from(game) for record in played for game in record["evidence"]]
    report = judged_subject(
        subject.name, subject.role, settings.claim, games, confidence=settings.confidence, seed=settings.seed
    )
    report["metrics"] = trained["metrics"]
    report["losses"] = trained["losses"]
    report["own_claim"] = trained["claim"]
    report["parameters"] = plain(subject.setup)
    report["cost"] = trained["cost"]
    return report


def _evidence_from(game: Mapping[str, JSON]) -> Evidence:
    """Read back what `workers.attack` put in a record."""
    form = dict(game["game"])
    form.update(
        trials=Trials(form["trials"]), released=Released(form["released"]), family=Family(form["family"])
    )
    return Evidence(
        scores=np.array([float(value) for value in game["scores"]], dtype=np.float64),
        members=np.array(game["members"], dtype=bool),
        game=Game(**form),
        attack=game["attack"],
        blind_texts=tuple(game["blind_texts"]),
        seeds=game["seeds"],
        cost=game["cost"],
        details=game["details"],
    )


def judged_subject(
    name: str, role: str, claim: Claim, games: Sequence[Evidence], *, confidence: float, seed: int
) -> dict[str, JSON]:
    """The report of one subject: each game judged at its share of the error, and all combined.

    Raises:
        InconclusiveError: no game could be played.
        InputError: unusable scores or labels.
        UnsupportedError: a game cannot judge the claim's currency.
    """
    if not games:
        raise InconclusiveError(f"no game of {name} could be judged: too few releases or steps")
    share = 1.0 - (1.0 - confidence) / len(games)
    verdicts = [
        judge(claim, game, confidence=share, generator=stream(seed, "judge", index))
        for index, game in enumerate(games)
    ]
    attacks = [
        {
            "attack": game.attack,
            "game": plain(game.game),
            "verdict": plain(verdict),
            "scores": plain(game.scores),
            "members": plain(game.members),
            "details": plain(game.details),
            "cost": plain(game.cost),
            "seeds": plain(game.seeds),
        }
        for game, verdict in zip(games, verdicts, strict=True)
    ]
    return {
        "name": name,
        "role": role,
        "claim": claim_form(claim),
        "verdict": plain(combine(verdicts, confidence=confidence)),
        "metrics": {},
        "losses": [],
        "parameters": {},
        "attacks": attacks,
    }


def claim_form(claim: Claim) -> dict[str, JSON]:
    """Plain form of a claim, with its one line as `text`."""
    form: dict[str, JSON] = plain(claim)
    return {**form, "text": claim.describe()}


def _report(
    settings: AuditSettings, subjects: list[dict[str, JSON]], *, command: str, started: datetime
) -> dict[str, JSON]:
    """The report record; the first subject decides."""
    verdict: Mapping[str, JSON] = subjects[0]["verdict"]
    now = datetime.now(UTC)
    return {
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
        function_spec: `path/to/file.py:function`; the contract is in `workbench.user_training`.
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
    if settings.claim.about is not workers.GAME_ADJACENCY:
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
    jobs = []
    for run in range(runs):
        coins = stream(settings.seed, "coins", run).random(settings.candidates) < 0.5
        payload = UserJob(setup=setup, spec=function_spec, included=tuple(coins.tolist()), run=run)
        identity = {
            "kind": "user",
            "source": training.source_sha256,
            "job": plain(payload),
            "content": workers.content_digest(setup),
        }
        jobs.append(Job(identity=identity, payload=payload))
    store = Store(out / "store")
    # Never in this process: the user's code may end it, and an exit code of ours is a verdict.
    with Engine(store, max(1, settings.workers), progress) as engine:
        records = engine.run("training", jobs, workers.train_user, keeps_folder=False)
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
