"""Audits registered mechanisms: train what is not yet trained, attack, judge, and make the report record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.accounting import MutualInformation
from workbench.audit.settings import AuditSettings, default_settings
from workbench.audit.subjects import CONTROL, MAIN, MEMBERS, Audited, Found, PlayedBy, audited_by, play
from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.version import __version__
from workbench.estimation.judge import claim_form, judged_subject
from workbench.execution.engine import Engine, Progress, hardware, versions
from workbench.execution.store import Store
from workbench.games.base import Game, game_named, read_as_dp
from workbench.games.words import Judged
from workbench.interfaces import (
    Adjacency,
    Attack,
    Claim,
    Evidence,
    Secret,
    Trials,
    VerdictKind,
)
from workbench.training.setup import (
    check_fit,
    create_mechanism,
    forget_corpora,
    make_plan,
    mechanism_of,
)

REPORT_SCHEMA = 1

EXIT_CODES = {
    VerdictKind.NOT_REFUTED: 0,
    VerdictKind.REFUTED: 1,
    VerdictKind.UNDERPOWERED: 3,
    VerdictKind.INVALID: 3,
    VerdictKind.UNDECIDED: 3,
}


_ABOUT = {Secret.RECORD: "one record", Secret.SUBSET: "the candidate subset"}
_ASKED = {
    Secret.RECORD: "test one record's membership",
    Secret.SUBSET: "ask which candidate subset was the secret",
}


def checked(settings: AuditSettings, audited: Mapping[str, Audited]) -> Claim:
    """Check an audit; returns what the mechanism itself claims of the run that decides.

    Raises `InputError`: a plan that cannot be met, such as a budget above the mechanism's ceiling.
    `UnsupportedError`: the games do not test the claim, or see more than it covers.
    """
    attacks = [attack for part, subject in audited.items() if part != CONTROL for attack in subject.attacks]
    _require_kind(settings)
    claims = {part: _checked_plan(subject) for part, subject in audited.items()}
    claim = claims.get(MAIN) or next(iter(claims.values()))
    _require_alike(settings, claim)
    for subject in audited.values():
        for attack in subject.attacks:
            attack.game.check(subject.match(attack))
    _require_tested(settings, attacks)
    _require_watchable(settings, attacks)
    _require_covered(settings, claim, attacks)
    return claim


def _checked_plan(subject: Audited) -> Claim:
    """The claim of a plan that can be followed, with a model that reads the data."""
    from workbench.training.fine_tuning import build_model  # slow to import
    from workbench.training.loop import require_readable

    plan, mechanism = make_plan(subject.setup, subject.included, 0), create_mechanism(subject.setup)
    mechanism.check(plan)
    claim = mechanism.claim(plan)
    require_readable(build_model(plan), plan)
    check_fit(subject.setup)
    return claim


def _require_kind(settings: AuditSettings) -> None:
    """Refuse a claim of another kind than the games test: differential privacy, or nats about a secret."""
    claim, secret = settings.claim, settings.secret
    if isinstance(claim.about, Secret) and secret is None:
        raise UnsupportedError(
            f"the games of an audit test differential privacy; {claim.guarantee.describe()} needs "
            "scores of independent trials"
        )
    if isinstance(claim.about, Secret) and secret is not None and claim.about is not secret:
        raise UnsupportedError(
            f"the games of an audit {_ASKED[secret]}; a claim about the {claim.about} needs scores of "
            "independent trials"
        )
    if isinstance(claim.about, Adjacency) and secret is Secret.SUBSET:
        raise UnsupportedError(
            f"nats about {_ABOUT[secret]} are no promise about a single record: claim "
            f"nats=...,secret={secret}, got {claim.guarantee.describe()}"
        )


def _require_tested(settings: AuditSettings, attacks: list[PlayedBy]) -> None:
    """Refuse attacks whose games decide about other neighbours than the claim, or about another secret."""
    claim, secret = settings.claim, settings.secret
    for attack in attacks:
        tested = attack.game.adjacencies if isinstance(claim.about, Adjacency) else attack.game.secrets
        if claim.about not in tested and not (attack.game.trains_once and secret is claim.about):
            ends = f"and the claim says adjacency {claim.about}"
            if isinstance(claim.about, Secret):
                ends = f"which a claim about the {claim.about} says nothing of"
            does = "adds a record or removes it" if attack.game.adjacencies else "decides about no record"
            raise UnsupportedError(f"attack {attack.name!r} {does}, {ends}: leave it out")
    if isinstance(claim.about, Secret) and all(attack.game.trains_once for attack in attacks):
        tried = ", ".join(attack.name for attack in attacks)
        raise UnsupportedError(
            f"{claim.guarantee.describe()} bounds an average over independent trainings, which scores of "
            f"one training ({tried}) cannot test: {_testing(settings, claim.about)}"
        )


def _require_watchable(settings: AuditSettings, attacks: list[PlayedBy]) -> None:
    """Refuse a sequential audit of other games than those of independent trainings, or of nats."""
    if not settings.sequential:
        return
    claim = settings.claim
    if settings.secret is not None or isinstance(claim.guarantee, MutualInformation):
        raise UnsupportedError(
            f"sequential goes with claims of epsilon, mu or Renyi DP, not with {claim.guarantee.describe()}"
            f" of {settings.mechanism}"
        )
    for attack in attacks:
        if not attack.is_cut or attack.game.trains_once:
            raise UnsupportedError(
                f"sequential goes with attacks of many trainings, and {attack.name!r} scores one: leave it "
                "out"
            )


def _testing(settings: AuditSettings, secret: Secret) -> str:
    """What to add: an attack that tests nats about the secret, of the mechanism's default audit if it can."""
    default = default_settings(settings.mechanism, settings.mechanism_parameters)
    for name in (*default.attacks, *sorted(registry.entries("attack"))):
        if secret in game_named(name).secrets:
            return f"add the attack {name}"
    return f"no registered attack tests nats about the {secret}"


def _require_alike(settings: AuditSettings, mechanism_claim: Claim) -> None:
    """Refuse a mechanism whose own claim, with its parameters, is about something else than the games."""
    name, secret = settings.mechanism, settings.secret
    if secret is not None and mechanism_claim.about is not secret:
        given = ", ".join(f"{key}={value}" for key, value in settings.mechanism_parameters.items())
        raise UnsupportedError(
            f"the games of an audit test nats about {_ABOUT[secret]}; {name}{given and f' with {given}'} "
            f"claims {mechanism_claim.describe()}"
        )
    if isinstance(settings.claim.about, Adjacency) and secret is not None:
        mechanism_claim = replace(mechanism_claim, about=settings.capabilities.adjacency)
    if isinstance(settings.claim.about, Adjacency) and mechanism_claim.about is not settings.claim.about:
        raise UnsupportedError(
            f"claim says adjacency {settings.claim.about}; {name} and the games are {mechanism_claim.about}"
        )


def _require_covered(settings: AuditSettings, mechanism_claim: Claim, attacks: list[PlayedBy]) -> None:
    """Refuse attacks that see more than the claim, or the mechanism's own, covers."""
    claim, name = settings.claim, settings.mechanism
    for attack in attacks:
        seen = attack.game.released
        for whose, covered in (("claim", claim.released), (name, mechanism_claim.released)):
            if not covered.covers(seen):
                raise UnsupportedError(
                    f"{whose} covers {covered}, and attack {attack.name!r} sees {seen}; name attacks that it "
                    "covers"
                )
    if not mechanism_claim.released.covers(claim.released):
        raise UnsupportedError(
            f"claim covers {claim.released}, and {name} promises nothing beyond its "
            f"{mechanism_claim.released}: claim released={mechanism_claim.released}"
        )


@dataclass(frozen=True, kw_only=True)
class View:
    """One claim with the games that judge it.

    `key`: `"claim"`, the one that decides, or `"reading"`, or what a game calls its ordinary members.
    `facts`: what the report says of the training, by field.
    """

    key: str
    claim: Claim
    games: Sequence[Evidence]
    facts: Mapping[str, JSON]


def judged_views(
    settings: AuditSettings, claimed: Claim, audited: Mapping[str, Audited], played: Mapping[str, Found]
) -> tuple[list[dict[str, JSON]], dict[str, JSON] | None]:
    """Judge every view and the control, each at the audit's confidence.

    `claimed`: what the mechanism claims. `audited`, `played`: what was trained and attacked, by its part in
    the audit. Returns the subjects of the report, one a view, that of the claim under audit first and the
    control last; and the views in words, or None.
    """
    views = _views(settings, audited, played)
    by_view = {view.key: _judged(settings, view, {"own_claim": plain(claimed)}) for view in views}
    control = None
    if CONTROL in played:
        held = audited[CONTROL].settings
        claim = held.claim if settings.secret is None else views[-1].claim
        games, facts = played[CONTROL].games, played[CONTROL].facts
        control = _judged(held, View(key="control", claim=claim, games=games, facts=facts))
    attacks = tuple(attack.attack for attack in audited[MAIN].attacks) if MAIN in audited else ()
    judged = Judged(
        by_view=by_view,
        control=control,
        attacks=attacks,
        mechanism=settings.mechanism,
        confidence=settings.confidence,
    )
    return [*by_view.values(), *([control] if control else [])], _words(settings, audited, judged)


def _words(settings: AuditSettings, audited: Mapping[str, Audited], judged: Judged) -> dict[str, JSON] | None:
    """The words of the claim's only game, of a game of its nats, or of the mechanism; None for none."""
    games = {attack.game.name: attack.game for attack in audited[MAIN].attacks} if MAIN in audited else {}
    able = list(games.values()) if len(games) == 1 else []
    if settings.secret is not None:
        known: list[Game[Any]] = [registry.create("game", name) for name in registry.entries("game")]
        able += [game for game in known if settings.secret in game.secrets]
    wordings = (game.views(judged) for game in able)
    mechanism = mechanism_of(settings.mechanism, settings.mechanism_parameters)
    return next((wording for wording in wordings if wording is not None), mechanism.views(judged))


def _judged(
    settings: AuditSettings, view: View, otherwise: Mapping[str, Any] | None = None
) -> dict[str, JSON]:
    role = {"claim": "subject", "control": "control"}.get(view.key, "reading")
    judged = judged_subject(
        settings.mechanism, role, view.claim, view.games, confidence=settings.confidence, seed=settings.seed
    )
    return {**judged, **(otherwise or {}), **view.facts}


def _views(
    settings: AuditSettings, audited: Mapping[str, Audited], played: Mapping[str, Found]
) -> list[View]:
    """The views that there are games for, the deciding one first."""
    main, members = played.get(MAIN, Found()), played.get(MEMBERS, Found())
    claim = settings.claim
    games = [attack.game for attack in audited[MAIN].attacks] if MAIN in audited else []
    if settings.secret is None:
        return [View(key="claim", claim=claim, games=main.games, facts=main.facts)]
    independent = [game for game in main.games if game.game.trials is Trials.INDEPENDENT]
    decides = independent
    if not isinstance(claim.guarantee, MutualInformation):
        decides = [*main.games, *members.games]
    views = [View(key="claim", claim=claim, games=decides, facts=main.facts)]
    if independent and any(game.adjacencies for game in games):
        views.append(View(key="reading", claim=_other_currency(settings), games=independent, facts={}))
    if members.games:
        key, held = next(
            (game.members_claim(claim, settings.delta) for game in games), read_as_dp(claim, settings.delta)
        )
        views.append(View(key=key, claim=held, games=members.games, facts=members.facts))
    return views


def _other_currency(settings: AuditSettings) -> Claim:
    """The same number as DP, or, where DP is claimed, as nats about one record."""
    if isinstance(settings.claim.guarantee, MutualInformation):
        return read_as_dp(settings.claim, settings.delta)[1]
    source = "the budget that the mechanism is given"
    return replace(settings.claim, guarantee=settings.budget, about=Secret.RECORD, source=source)


def audit_mechanisms(
    settings: AuditSettings, *, out: Path, command: str, progress: Progress | None = None
) -> dict[str, JSON]:
    """Train, attack and judge a registered mechanism and the control; returns the report record.

    A mechanism that budgets in nats is judged in several views, each a claim of its own
    (`workbench.games.currencies`). The store lies in `out/store`. `command`: the command line, for the
    report. `progress`: called as the work goes on. Raises `InputError`: an unknown name, an unusable
    parameter, or a place that cannot be written. `UnsupportedError`: the mechanism cannot meet the claimed
    guarantee, or no game can judge it.
    """
    started = datetime.now(UTC)
    forget_corpora()
    settings = settings.about_claimed()
    audited = audited_by(settings)
    mechanism_claim = checked(settings, audited)
    store = Store(out / "store")
    with Engine(store, workers=settings.workers, scheduler=settings.scheduler, progress=progress) as engine:
        played = play(audited, engine)
    store.sweep()
    subjects, views = judged_views(settings, mechanism_claim, audited, played)
    report = report_record(settings.claim, subjects, seed=settings.seed, command=command, started=started)
    return report | ({"views": views} if views else {}) | _asides(subjects)


def _asides(subjects: list[dict[str, JSON]]) -> dict[str, JSON]:
    """What attacks report besides the verdict on the claim, by key, and `asides`, their terms by key."""
    known = registry.entries("attack")
    forms: dict[str, list[JSON]] = {}
    terms: dict[str, JSON] = {}
    for subject in subjects:
        for form in subject["attacks"]:
            attack: object = known[str(form["attack"]).partition(" (")[0]].factory
            if not (isinstance(attack, type) and issubclass(attack, Attack)):
                continue
            told = attack.aside(str(subject["name"]), str(subject["role"]), form["details"])
            if told is not None:
                key = attack.aside_terms()["key"]
                terms[key] = attack.aside_terms()
                forms.setdefault(key, []).append(told)
    return {**forms, "asides": terms} if forms else {}


def report_record(
    claim: Claim, subjects: list[dict[str, JSON]], *, seed: int, command: str, started: datetime
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
        "seed": seed,
        "exit_code": EXIT_CODES[VerdictKind(verdict["kind"])],
        "claim": claim_form(claim),
        "verdict": verdict,
        "subjects": subjects,
        "cost": {"seconds": (now - started).total_seconds()},
    }
