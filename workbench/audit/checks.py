"""What an audit refuses before it trains: plans, claims and games that do not go together."""

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
    """What the mechanism itself claims of the run that decides.

    Args:
        settings: Of the audit.
        audited: What is to be trained and attacked.

    Raises:
        InputError: a plan that cannot be met, such as a budget above the mechanism's ceiling.
        UnsupportedError: the games do not test the claim, or see more than it covers.
    """
    attacks = [one for part, subject in audited.items() if part != CONTROL for one in subject.attacks]
    _require_kind(settings)
    claims = {part: _checked_plan(subject) for part, subject in audited.items()}
    own = claims.get(MAIN) or next(iter(claims.values()))
    _require_alike(settings, own)
    for subject in audited.values():
        for one in subject.attacks:
            one.game.check(subject.match(one))
    _require_tested(settings, attacks)
    _require_covered(settings, own, attacks)
    return own


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
    """Refuse a claim of another kind than the mechanism's games test."""
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
    for one in attacks:
        tested = one.game.adjacencies if isinstance(claim.about, Adjacency) else one.game.secrets
        if claim.about not in tested and not (one.game.trains_once and secret is claim.about):
            ends = f"and the claim says adjacency {claim.about}"
            if isinstance(claim.about, Secret):
                ends = f"which a claim about the {claim.about} says nothing of"
            raise UnsupportedError(f"attack {one.name!r} adds a record or removes it, {ends}")
    if isinstance(claim.about, Secret) and all(one.game.trains_once for one in attacks):
        tried = ", ".join(one.name for one in attacks)
        raise UnsupportedError(
            f"{claim.guarantee.describe()} bounds an average over independent trainings, which scores of "
            f"one training ({tried}) cannot test: add --attack {_testing(settings, claim.about)}"
        )


def _testing(settings: AuditSettings, secret: Secret) -> str:
    """The attack that tests nats about a secret where the mechanism is audited by default."""
    from workbench.games.base import game_named

    default = default_settings(settings.mechanism, settings.mechanism_parameters)
    return next(name for name in default.attacks if secret in game_named(name).secrets)


def _require_about(settings: AuditSettings, attacks: list[PlayedBy]) -> None:
    """Refuse games of trainings whose coins a claim in nats says nothing of."""
    claim, secret = settings.claim, settings.secret
    if not isinstance(claim.about, Secret):
        return
    for one in attacks:
        if not one.game.trains_once and one.game.adjacencies and secret not in one.game.secrets:
            raise UnsupportedError(
                f"attack {one.name!r} adds a record or removes it, which a claim about the {secret} says "
                "nothing of"
            )


def _require_alike(settings: AuditSettings, own: Claim) -> None:
    """Refuse a mechanism whose own claim, with its parameters, is about something else than the games."""
    name, secret = settings.mechanism, settings.secret
    if secret is not None and own.about is not secret:
        given = ", ".join(f"{key}={value}" for key, value in settings.mechanism_parameters.items())
        raise UnsupportedError(
            f"the games of an audit test nats about {_ABOUT[secret]}; {name}{given and f' with {given}'} "
            f"claims {own.describe()}"
        )
    if isinstance(settings.claim.about, Adjacency) and secret is not None:
        own = replace(own, about=settings.capabilities.adjacency)
    if isinstance(settings.claim.about, Adjacency) and own.about is not settings.claim.about:
        raise UnsupportedError(
            f"claim says adjacency {settings.claim.about}; {name} and the games are {own.about}"
        )


def _require_covered(settings: AuditSettings, own: Claim, attacks: list[PlayedBy]) -> None:
    """Refuse attacks that see more than the claim, or the mechanism's own, covers."""
    claim, name = settings.claim, settings.mechanism
    for one in attacks:
        seen = one.game.released
        for whose, covered in (("claim", claim.released), (name, own.released)):
            if not covered.covers(seen):
                raise UnsupportedError(
                    f"{whose} covers {covered}, and attack {one.name!r} sees {seen}; name attacks that it "
                    "covers"
                )
    if not own.released.covers(claim.released):
        raise UnsupportedError(
            f"claim covers {claim.released}, and {name} promises nothing beyond its {own.released}: "
            f"claim released={own.released}"
        )
