"""An audit of a mechanism that budgets in nats: one number, read in three ways, each a claim of its own.

1. The claim under audit. In nats: judged by guesses over independent trainings, whose transcripts the
   adversary sees; they are held against the highest success that the nats allow.
2. A reading: the same number as (epsilon, delta)-DP, in the very same games. Nobody need have claimed it; it
   has no part in the exit code. Where the user claims (epsilon, delta)-DP the places are changed: that claim
   is under audit, by every game, and the nats are the reading.
3. Ordinary members of one training, as papers measure leakage: black-box attacks, held against the same
   (epsilon, delta)-DP. Scores of one training cannot test nats, which bound an average over trainings.

Each of the three is judged at the audit's own confidence, and within each the games share the error: a reader
who quotes one verdict quotes one claim.

Nats about a candidate subset have two views instead: the claim, by many trainings whose secret the adversary
asks for; and, outside the claim, records of the universe against fresh ones, held against the epsilon that
PACZero's paper prints beside its nats as comparable. Nobody claims that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.audit.settings import SECRETS, AuditSettings, currency_of
from workbench.audit.subjects import Audited, audited
from workbench.audit.subset_words import subset_view_forms
from workbench.audit.words import view_forms
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.estimation.judged import evidence_from, judged_subject
from workbench.execution.engine import Engine, Progress
from workbench.execution.store import Store
from workbench.games.plays import play_attack, released_to
from workbench.games.subset.parts import comparable_epsilon, counted, play_counted, pooled_curves, world_jobs
from workbench.games.transcript.parts import PLAYED, TranscriptGame, check_game, games_of, play, pooled
from workbench.interfaces import AccessLevel, Attack, Claim, Evidence, Secret, Trials
from workbench.training import setup as workers
from workbench.training.neighbours import GAME_ADJACENCY

MAIN, MEMBERS, CONTROL = "main", "members", "control"
"""What an audit trains: for the games of whole trainings, for the attacks on members, and as control."""

LARGEST_READING = 20.0
"""An epsilon that allows all but one in a billion guesses to be right; it stands for none."""

CONTROLS = {Secret.RECORD: "non_private", Secret.SUBSET: "mezo"}
"""The mechanism without privacy that a control is trained by: as near to the subject as there is one."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One way to read the number.

    Attributes:
        key: `"claim"`, `"reading"`, `"members"` or `"outside"`.
        claim: What is judged.
        games: By what.
        decides: Whether its verdict is the audit's.
    """

    key: str
    claim: Claim
    games: tuple[Evidence, ...]
    decides: bool


@dataclass(frozen=True, kw_only=True)
class _Played:
    """What was trained and attacked, read back from the store.

    Attributes:
        games: All that were played with it.
        facts: What the report says of the training, by field.
    """

    games: tuple[Evidence, ...] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)


def audit_views(
    settings: AuditSettings, *, out: Path, progress: Progress | None = None
) -> tuple[list[dict[str, JSON]], dict[str, JSON]]:
    """Train, play and judge a mechanism that budgets in nats, and the control.

    Args:
        settings: What to audit.
        out: Folder; the store lies in `out/store`.
        progress: Told of each finished job.

    Returns:
        The subjects of the report, one a view, that of the claim under audit first and the control last; and
        the views in words (`workbench.audit.words.view_forms`).

    Raises:
        InputError: an unknown name, or an unusable parameter.
        UnsupportedError: the mechanism cannot meet the claim, or no game of the audit can test it.
    """
    attacks = _attacks(settings)
    work = _work(settings, attacks)
    own = _checked(settings, work, attacks)
    store = Store(out / "store")
    with Engine(store, workers=settings.workers, scheduler=settings.scheduler, progress=progress) as engine:
        played = _run(settings, work, attacks.played, engine)
    store.sweep()
    main, members, control = (played.get(name, _Played()) for name in (MAIN, MEMBERS, CONTROL))
    views = _views(settings, (*main.games, *members.games))
    secret = secret_of(settings)
    subjects = []
    for view in views:
        role = "subject" if view.decides else "reading"
        report = {**_judged(settings, settings.mechanism, role, view), "own_claim": plain(own)}
        facts = {"claim": main, "members": members, "outside": members}.get(view.key, _Played()).facts
        subjects.append({**report, **facts})
    judged_control: dict[str, JSON] | None = None
    if control.games:
        view = View(key="control", claim=views[-1].claim, games=control.games, decides=False)
        judged_control = {**_judged(settings, CONTROLS[secret], "control", view), **control.facts}
    shown: dict[str, Any] = {"mechanism": settings.mechanism, "confidence": settings.confidence}
    keys = [view.key for view in views]
    if secret is Secret.SUBSET:
        curves = main.facts.get("curves", {})
        words = subset_view_forms(keys, subjects, control=judged_control, curves=curves, **shown)
    else:
        words = view_forms(keys, subjects, has_control=judged_control is not None, **shown)
    return [*subjects, *([judged_control] if judged_control else [])], words


def secret_of(settings: AuditSettings) -> Secret:
    """What the mechanism's nats are about."""
    return SECRETS[currency_of(settings.mechanism)]


def _work(settings: AuditSettings, attacks: _Attacks) -> dict[str, Audited]:
    """What is trained: the game's own plan, the target of the members' attacks, and the control.

    The control releases no signs, so it is trained for the members' attacks alone, and not without them.
    """
    parameters = settings.mechanism_parameters
    whole = attacks.of(AccessLevel.WEIGHTS, AccessLevel.RELEASE)
    work = {}
    if attacks.played or whole:
        work[MAIN] = audited(settings, settings.mechanism, "subject", parameters, whole)
    membership = attacks.of(AccessLevel.MEMBERSHIP)
    if membership:
        own = settings.for_members()
        work[MEMBERS] = audited(own, own.mechanism, "reading", parameters, membership)
        if settings.control:
            rate = own.control_learning_rate or own.learning_rate
            own = replace(own, learning_rate=rate)
            work[CONTROL] = audited(own, CONTROLS[secret_of(settings)], "control", {}, membership)
    return work


def as_nats(settings: AuditSettings) -> Claim:
    """The claim under audit as nats about one record: itself, or the same number."""
    claim = settings.claim
    if isinstance(claim.guarantee, MutualInformation):
        return claim
    return replace(
        claim, guarantee=settings.budget, about=Secret.RECORD, source="the budget that the mechanism is given"
    )


def as_dp(settings: AuditSettings) -> Claim:
    """The claim under audit as (epsilon, delta)-DP: itself, or the same number, which nobody claims."""
    claim = settings.claim
    if not isinstance(claim.guarantee, MutualInformation):
        return claim
    return Claim(
        guarantee=ApproximateDP(epsilon=claim.guarantee.nats, delta=settings.delta),
        about=GAME_ADJACENCY,
        released=claim.released,
        source="a reading of the same number, not the authors' claim",
    )


def outside(settings: AuditSettings) -> Claim:
    """What the records of the universe are held against: the epsilon that is said to be comparable.

    From ln 2 nats on no epsilon is; then the largest one that is ever held against scores stands for none.
    """
    guarantee = settings.claim.guarantee
    assert isinstance(guarantee, MutualInformation)  # `_checked` refuses others.
    return Claim(
        guarantee=ApproximateDP(
            epsilon=min(comparable_epsilon(guarantee.nats), LARGEST_READING), delta=settings.delta
        ),
        about=GAME_ADJACENCY,
        released=settings.claim.released,
        source="the comparable epsilon (PACZero, section 2): a reference point, nobody's claim",
    )


def _views(settings: AuditSettings, games: Sequence[Evidence]) -> list[View]:
    """The views that there are games for, the deciding one first."""
    independent = tuple(game for game in games if game.game.trials is Trials.INDEPENDENT)
    members = tuple(game for game in games if game.game.trials is Trials.ONE_RUN)
    if secret_of(settings) is Secret.SUBSET:
        views = [View(key="claim", claim=settings.claim, games=independent, decides=True)]
        if members:
            views.append(View(key="outside", claim=outside(settings), games=members, decides=False))
        return views
    nats, dp = as_nats(settings), as_dp(settings)
    if isinstance(settings.claim.guarantee, MutualInformation):
        views = [
            View(key="claim", claim=nats, games=independent, decides=True),
            View(key="reading", claim=dp, games=independent, decides=False),
        ]
    else:
        views = [View(key="claim", claim=dp, games=tuple(games), decides=True)]
        if independent:
            views.append(View(key="reading", claim=nats, games=independent, decides=False))
    if members:
        views.append(View(key="members", claim=dp, games=members, decides=False))
    return views


def _judged(settings: AuditSettings, name: str, role: str, view: View) -> dict[str, JSON]:
    return judged_subject(
        name, role, view.claim, view.games, confidence=settings.confidence, seed=settings.seed
    )


@dataclass(frozen=True, kw_only=True)
class _Attacks:
    """The attacks of an audit.

    Attributes:
        made: Each by name; a transcript attack with its first canary.
        shared: Names of those that attack the trained subject.
        played: The games that train for themselves.
    """

    made: Mapping[str, Attack]
    shared: tuple[str, ...]
    played: tuple[TranscriptGame, ...]

    def of(self, *access: AccessLevel) -> tuple[str, ...]:
        """Names of the attacks that play these games."""
        return tuple(name for name, attack in self.made.items() if attack.access in access)


def _attacks(settings: AuditSettings) -> _Attacks:
    """Make every attack of the settings.

    Raises:
        InputError: an unknown name, or a parameter that is unknown or out of range.
    """
    known = {name: entry.factory for name, entry in registry.entries("attack").items()}
    made: dict[str, Attack] = {}
    shared, played = [], []
    for name in settings.attacks:
        given = dict(settings.attack_parameters.get(name, {}))
        if getattr(known.get(name), "access", None) in PLAYED:
            games = games_of(name, given)
            made[name] = registry.create("attack", name, **games[0].parameters)
            played += games
        else:
            made[name] = registry.create("attack", name, **given)
            shared.append(name)
    return _Attacks(made=made, shared=tuple(shared), played=tuple(played))


def _checked(settings: AuditSettings, work: Mapping[str, Audited], attacks: _Attacks) -> Claim:
    """What the mechanism itself claims; refuses, before anything is written, what the games cannot test.

    Raises:
        InputError: a plan that cannot be met, such as a budget above the mechanism's ceiling.
        UnsupportedError: the claim's currency or adjacency is not that of the games.
    """
    from workbench.training.fine_tuning import build_model, check_plan
    from workbench.training.loop import require_readable

    claim, name, secret = settings.claim, settings.mechanism, secret_of(settings)
    if secret is Secret.SUBSET:
        _require_average(claim, attacks, secret)
    claims, plans = {}, {}
    for part, subject in work.items():
        plan = plans[part] = workers.make_plan(subject.setup, subject.included, 0)
        mechanism = workers.create_mechanism(subject.setup)
        wanted = getattr(mechanism, "optimizer", plan.optimizer)
        if plan.optimizer != wanted:
            raise InputError(
                f"optimizer must be {wanted!r} for {subject.setup.mechanism}, got {plan.optimizer!r}"
            )
        getattr(mechanism, "check", check_plan)(plan)
        claims[part] = mechanism.claim(plan)
    own = claims.get(MAIN, claims.get(MEMBERS))
    assert own is not None  # There is at least one attack, and each needs one of the two.
    if own.about is not secret:
        given = ", ".join(f"{key}={value}" for key, value in settings.mechanism_parameters.items())
        raise UnsupportedError(
            f"the games of an audit test nats about {_ABOUT[secret]}; {name}{given and f' with {given}'} "
            "claims "
            f"{own.describe()}"
        )
    first = next(iter(plans.values()))  # Plans differ in what is read where nobody chose it alone.
    require_readable(build_model(first), first)
    for subject in work.values():
        workers.check_fit(subject.setup)
    for game in attacks.played:
        check_game(game, workers.create_mechanism(work[MAIN].setup), plans[MAIN])
    if isinstance(claim.guarantee, MutualInformation):
        _require_average(claim, attacks, secret)
    elif claim.about is not GAME_ADJACENCY:
        raise UnsupportedError(f"claim says adjacency {claim.about}; the games are {GAME_ADJACENCY}")
    for attack in attacks.of(AccessLevel.RELEASE, AccessLevel.TRAJECTORY):
        raise UnsupportedError(f"attack {attack!r} reads noised sums, and {name} releases none: leave it out")
    _require_covered(claim, own, name, attacks)
    return own


_ABOUT = {Secret.RECORD: "one record", Secret.SUBSET: "the candidate subset"}
_ASKED = {
    Secret.RECORD: "test one record's membership",
    Secret.SUBSET: "ask which candidate subset was the secret",
}
_TESTS = {
    Secret.RECORD: ("sign_transcript", (AccessLevel.TRANSCRIPT, AccessLevel.WEIGHTS)),
    Secret.SUBSET: ("subset_posterior", (AccessLevel.SUBSET,)),
}
"""The attack that tests nats about a secret, and the access levels of all that do."""


def _require_average(claim: Claim, attacks: _Attacks, secret: Secret) -> None:
    """Refuse a claim that is about another secret than the games', or that no attack tests."""
    if not isinstance(claim.guarantee, MutualInformation):
        raise UnsupportedError(
            f"nats about {_ABOUT[secret]} are no promise about a single record: claim "
            f"nats=...,secret={secret}, "
            f"got {claim.guarantee.describe()}"
        )
    if claim.about is not secret:
        raise UnsupportedError(
            f"the games of an audit {_ASKED[secret]}; a claim about the {claim.about} needs --scores of "
            "independent trials"
        )
    best, able = _TESTS[secret]
    if not attacks.of(*able):
        raise UnsupportedError(
            f"{claim.guarantee.describe()} bounds an average over independent trainings, which scores of one "
            f"training ({', '.join(attacks.made)}) cannot test: add --attack {best}"
        )
    for name in attacks.of(AccessLevel.WEIGHTS) if secret is Secret.SUBSET else ():
        raise UnsupportedError(
            f"attack {name!r} adds a record or removes it, which a claim about the {secret} says nothing of"
        )


def _require_covered(claim: Claim, own: Claim, name: str, attacks: _Attacks) -> None:
    """Refuse attacks that see more than the claim, or the mechanism's own, covers."""
    for attack, made in attacks.made.items():
        seen = released_to(made)
        for whose, covered in (("claim", claim.released), (name, own.released)):
            if not covered.covers(seen):
                raise UnsupportedError(
                    f"{whose} covers {covered}, and attack {attack!r} sees {seen}; name attacks that it "
                    "covers"
                )
    if not own.released.covers(claim.released):
        raise UnsupportedError(
            f"claim covers {claim.released}, and {name} promises nothing beyond its {own.released}: "
            f"claim released={own.released}"
        )


def _run(
    settings: AuditSettings, work: Mapping[str, Audited], games: Sequence[TranscriptGame], engine: Engine
) -> dict[str, _Played]:
    """Do the work that the store lacks: games of whole trainings first, for they are most of it."""
    parts = [game.jobs(work[MAIN].setup, work[MAIN].included.tolist()) for game in games]
    flat = [job for jobs in parts for job in jobs]
    kinds = {game.access for game in games}
    stage = "playing candidate subsets" if AccessLevel.SUBSET in kinds else "playing transcripts"
    done = engine.run(stage, flat, play, keeps_folder=False) if flat else []
    small = []
    if AccessLevel.SUBSET in kinds:
        worlds = world_jobs(work[MAIN].setup, work[MAIN].included.tolist(), settings.counted)
        small = engine.run("counting bits", worlds, play_counted, keeps_folder=False)
    # Without an attack on it the main plan's own training would be seen by nobody.
    attacked = {name: one for name, one in work.items() if one.setup.attack_parameters}
    jobs = {name: subject.trainings() for name, subject in attacked.items()}
    flat = [job for own in jobs.values() for job in own]
    trained = dict(
        zip(
            [job.key for job in flat],
            engine.run("training", flat, workers.train, keeps_folder=True),
            strict=True,
        )
    )
    asked = {name: subject.attacks(engine.store) for name, subject in attacked.items()}
    flat = [job for own in asked.values() for job in own]
    answers = engine.run("attacking", flat, play_attack, keeps_folder=False)
    played: dict[str, _Played] = {}
    for name, subject in work.items():
        found, facts = [], {"parameters": plain(subject.setup)}
        if name == MAIN:
            for game, own in zip(games, parts, strict=True):
                taken, done = done[: len(own)], done[len(own) :]
                found.append(pooled(game, taken, seed=settings.seed, confidence=settings.confidence))
                if game.access is AccessLevel.SUBSET:
                    facts["curves"] = pooled_curves(taken)
                    facts["counted"] = counted(small, confidence=settings.confidence)
        for _ in asked.get(name, ()):
            found += [evidence_from(game) for game in answers.pop(0)["evidence"]]
        if name in jobs:
            record = trained[jobs[name][0].key]
            facts |= {one: record[one] for one in ("metrics", "losses", "cost")}
            facts["own_claim"] = record["claim"]
        played[name] = _Played(games=tuple(found), facts=facts)
    return played
