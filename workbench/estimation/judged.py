"""Games of one subject, judged: each at its share of the error, all combined, and read back from records."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.core.errors import InconclusiveError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream
from workbench.estimation.judge import combine, judge
from workbench.interfaces import Claim, Evidence


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
    # A game that can refute nothing takes no part in the error.
    able = sum(not game.game.beyond for game in games)
    share = 1.0 - (1.0 - confidence) / max(able, 1)
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
