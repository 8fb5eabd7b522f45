"""Refuses, before anything is trained, plans, claims and games that do not go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workbench.audit.settings import AuditSettings, default_settings
from workbench.audit.subjects import CONTROL, MAIN, Audited, PlayedBy
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Claim, Secret
from workbench.training.setup import check_fit, create_mechanism, make_plan

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
    _require_covered(settings, claim, attacks)
    return claim


def _checked_plan(subject: Audited) -> Claim:
    """The claim of a plan that can be followed, with a model that reads the data."""
    from workbench.training.fine_tuning import build_model
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
            "--scores of independent trials"
        )
    if isinstance(claim.about, Secret) and secret is not None and claim.about is not secret:
        raise UnsupportedError(
            f"the games of an audit {_ASKED[secret]}; a claim about the {claim.about} needs --scores of "
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


def _testing(settings: AuditSettings, secret: Secret) -> str:
    """What to add: an attack that tests nats about the secret, of the mechanism's default audit if it can."""
    from workbench.core import registry
    from workbench.games.base import game_named

    default = default_settings(settings.mechanism, settings.mechanism_parameters)
    for name in (*default.attacks, *sorted(registry.entries("attack"))):
        if secret in game_named(name).secrets:
            return f"add --attack {name}"
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
