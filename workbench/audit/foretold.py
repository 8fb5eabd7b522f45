"""How many records go where in an audit, said before anything is trained."""

from __future__ import annotations

from workbench.audit.neighbours import require_played
from workbench.audit.settings import AuditSettings
from workbench.interfaces import Adjacency


def of_training(
    name: str, settings: AuditSettings, *, runs: int, canaries: int, replays: bool, trainings: int
) -> list[str]:
    """Lines about an audit of a user's training function.

    Args:
        name: Of the function.
        settings: Corpus, candidates and claim are used.
        runs, canaries: Trainings on natural records, and crafted records in as many more.
        replays: Whether forced replay is played.
        trainings: Of the retraining game.

    Raises:
        UnsupportedError: the games do not test such a claim.
    """
    count, once = settings.candidates, "" if runs == 1 else f" in each of {runs} trainings"
    others = "another training" if runs == 1 else f"{runs} other trainings"
    if require_played(settings.claim.about) is Adjacency.ADD_REMOVE:
        members, half, coins = f"about {count // 2:,}", f"about {canaries // 2:,}", "each by a fair coin"
    else:
        members, half, coins = f"{count // 2:,}", f"{canaries // 2:,}", "one of each pair, by a fair coin"
    lines = [
        f"records: {name} is given {members} of {count:,} candidates (--candidates) of {settings.corpus!r}, "
        f"{coins}{once}; all {count:,} are scored"
    ]
    if canaries:
        lines.append(f"and in {others} {half} of {canaries:,} crafted records, beside natural ones")
    if replays:
        lines.append(
            f"and {members} candidates again, some sixty times or more, one of them replaced (forced replay)"
        )
    if trainings:
        lines.append(
            f"and up to {count // 2:,} candidates {trainings:,} times, half of them with a crafted one"
        )
    return lines
