"""The claims that an audit judges by what it found, and how its report says them.

A number in nats is read in three ways, each a claim of its own:

1. The claim under audit. In nats: judged by guesses over independent trainings, whose transcripts the
   adversary sees; they are held against the highest success that the nats allow.
2. A reading: the same number as (epsilon, delta)-DP, in the very same games. Nobody need have claimed it; it
   has no part in the exit code. Where the user claims (epsilon, delta)-DP the places are changed: that claim
   is under audit, by every game, and the nats are the reading.
3. Ordinary members of one training, as papers measure leakage: black-box attacks, held against the same
   (epsilon, delta)-DP. Scores of one training cannot test nats, which bound an average over trainings.

Each of the three is judged at the audit's own confidence, and within each the games share the error: a reader
who quotes one verdict quotes one claim.

A game that is about no record at all has no such reading, and may hold its ordinary members against something
else (`workbench.games.base.Game.beside`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.accounting import MutualInformation
from workbench.audit.settings import AuditSettings
from workbench.audit.subjects import CONTROL, MAIN, MEMBERS, Audited, Found
from workbench.audit.words import currency_views, steered_views
from workbench.core.keys import JSON, plain
from workbench.estimation.judged import judged_subject
from workbench.games.base import read_as_dp
from workbench.games.words import Judged
from workbench.interfaces import Claim, Evidence, Secret, Trials


@dataclass(frozen=True, kw_only=True)
class View:
    """One way to read the number.

    Attributes:
        key: `"claim"`, the one that decides, or `"reading"`, or what a game calls its ordinary members.
        claim: What is judged.
        games: By what.
        facts: What the report says of the training, by field.
    """

    key: str
    claim: Claim
    games: Sequence[Evidence]
    facts: Mapping[str, JSON]


def judged_views(
    settings: AuditSettings, own: Claim, audited: Mapping[str, Audited], found: Mapping[str, Found]
) -> tuple[list[dict[str, JSON]], dict[str, JSON] | None]:
    """Judge every view and the control, each at the audit's confidence.

    Args:
        settings: Of the audit.
        own: What the mechanism claims.
        audited, found: What was trained and attacked, by its part in the audit.

    Returns:
        The subjects of the report, one a view, that of the claim under audit first and the control last; and
        the views in words, or None.
    """
    views = _views(settings, audited, found)
    by_view = {view.key: _judged(settings, view, {"own_claim": plain(own)}) for view in views}
    control = None
    if CONTROL in found:
        held = audited[CONTROL].settings
        claim = held.claim if settings.secret is None else views[-1].claim
        games, facts = found[CONTROL].games, found[CONTROL].facts
        control = _judged(held, View(key="control", claim=claim, games=games, facts=facts))
    attacks = tuple(one.attack for one in audited[MAIN].attacks) if MAIN in audited else ()
    judged = Judged(
        by_view=by_view,
        control=control,
        attacks=attacks,
        mechanism=settings.mechanism,
        confidence=settings.confidence,
    )
    return [*by_view.values(), *([control] if control else [])], _words(settings, audited, judged)


def _words(settings: AuditSettings, audited: Mapping[str, Audited], judged: Judged) -> dict[str, JSON] | None:
    """What the games of the claim say of themselves, or else what such mechanisms and claims want said."""
    games = {one.game.name: one.game for one in audited[MAIN].attacks} if MAIN in audited else {}
    own = next(iter(games.values())).views(judged) if len(games) == 1 else None
    if own is not None:
        return own
    if settings.secret is not None:
        return currency_views(judged)
    return steered_views(judged) if settings.capabilities.is_steered else None


def _judged(
    settings: AuditSettings, view: View, otherwise: Mapping[str, Any] | None = None
) -> dict[str, JSON]:
    role = {"claim": "subject", "control": "control"}.get(view.key, "reading")
    judged = judged_subject(
        settings.mechanism, role, view.claim, view.games, confidence=settings.confidence, seed=settings.seed
    )
    return {**judged, **(otherwise or {}), **view.facts}


def _views(settings: AuditSettings, audited: Mapping[str, Audited], found: Mapping[str, Found]) -> list[View]:
    """The views that there are games for, the deciding one first."""
    main, members = found.get(MAIN, Found()), found.get(MEMBERS, Found())
    claim, played = settings.claim, [one.game for one in audited[MAIN].attacks] if MAIN in audited else []
    if settings.secret is None:
        return [View(key="claim", claim=claim, games=main.games, facts=main.facts)]
    independent = [game for game in main.games if game.game.trials is Trials.INDEPENDENT]
    decides = independent
    if not isinstance(claim.guarantee, MutualInformation):
        decides = [*main.games, *members.games]
    views = [View(key="claim", claim=claim, games=decides, facts=main.facts)]
    if independent and any(game.adjacencies for game in played):
        views.append(View(key="reading", claim=_other_currency(settings), games=independent, facts={}))
    if members.games:
        key, held = next(
            (game.beside(claim, settings.delta) for game in played), read_as_dp(claim, settings.delta)
        )
        views.append(View(key=key, claim=held, games=members.games, facts=members.facts))
    return views


def _other_currency(settings: AuditSettings) -> Claim:
    """The same number as DP, or, where DP is claimed, as nats about one record."""
    if isinstance(settings.claim.guarantee, MutualInformation):
        return read_as_dp(settings.claim, settings.delta)[1]
    source = "the budget that the mechanism is given"
    return replace(settings.claim, guarantee=settings.budget, about=Secret.RECORD, source=source)
