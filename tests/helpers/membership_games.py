"""Membership games of made-up subjects: tables of logits in the place of trained models."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from workbench.games.membership import MembershipAttack, MembershipSeen, References
from workbench.interfaces import BoolArray, FloatArray, Record, Subject
from workbench.training.shadows import shadow_memberships

NOTHING = np.random.default_rng(0)


def table_subject(logits: FloatArray) -> Subject:
    """A subject that gives record i, of id str(i), one token with the logit-scaled confidence logits[i]."""
    log_likelihoods = -np.logaddexp(0.0, -logits)

    def token_log_likelihoods(records: Sequence[Record]) -> list[FloatArray]:
        return [log_likelihoods[[int(record.id)]] for record in records]

    return cast(Subject, SimpleNamespace(token_log_likelihoods=token_log_likelihoods))


class TableGame:
    """Gaussian logits of n candidates and m further records, with a difficulty of each record.

    A record's difficulty is a sum over its eight pixels, so that a regression can learn it, and noise.
    """

    def __init__(
        self, n: int, m: int, shadows: int, *, seed: int, gap: float = 1.5, unexplained: float = 0.5
    ) -> None:
        rng = np.random.default_rng(seed)
        pixels = rng.random((n + m, 8))
        self.everyone = tuple(
            Record(id=str(i), image=tuple(row), label=i % 2) for i, row in enumerate(pixels.tolist())
        )
        self.members: BoolArray = rng.random(n) < 0.5
        self.included = shadow_memberships(n, shadows, rng) if shadows else np.zeros((0, n), dtype=bool)
        hardness = 8 * (pixels.sum(axis=1) - 4) + rng.normal(0.0, unexplained, n + m)
        noise = rng.normal(0.0, 0.5, (shadows + 1, n + m))
        nobody = np.zeros(m, dtype=bool)
        self.target = hardness + gap * np.append(self.members, nobody) + noise[0]
        inside = np.array([np.append(row, nobody) for row in self.included]).reshape(shadows, n + m)
        self.shadows = hardness + gap * inside + noise[1:]

    def seen(self, **changes: Any) -> MembershipSeen:
        """What the game shows, or with changes."""
        n = len(self.members)
        subjects = tuple(table_subject(row) for row in self.shadows)
        shown: dict[str, Any] = {
            "subject": table_subject(self.target),
            "records": self.everyone[:n],
            "population": self.everyone[n:],
            "references": References(subjects=subjects, included=self.included),
        }
        return MembershipSeen(**{**shown, **changes})

    def scores(self, attack: MembershipAttack, **changes: Any) -> FloatArray:
        """The attack's scores of the candidates."""
        return attack.score(self.seen(**changes), np.random.default_rng(0)).values
