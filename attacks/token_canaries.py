"""Canaries of a new token each: a token that was trained on is likelier after the public text.

The attack sees a language model's answers alone, after one training: see `workbench.games.new_tokens`. All
new tokens start alike, and no other record holds one; what tells them apart is whether they were trained on,
and noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.arguments import whole_number
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.games.new_tokens import NewTokensAttack, NewTokensSeen
from workbench.interfaces import Scores

MOST = 100_000


@register("attack", "token_canaries")
@dataclass(frozen=True, kw_only=True)
class TokenCanaries(NewTokensAttack):
    """Black-box audit of one training of a language model by canaries of a new token each (Panda et al.).

    Attributes:
        canaries: Their number.
        context: The public text that they follow; empty for the short text after which the public model is
            least certain of what follows, so that a canary's gradient lies in its own embedding.

    Raises:
        InputError: a parameter is out of range.
    """

    canaries: int = 2000
    context: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "canaries", whole_number("canaries", self.canaries, least=20, most=MOST))
        if not isinstance(self.context, str):
            raise InputError(f"context must be text, got {self.context!r}")

    def public_text(self, contexts: Sequence[str]) -> str:
        """Returns the given text, or the best of the bench's."""
        return self.context or contexts[0]

    def score(self, seen: NewTokensSeen, generator: np.random.Generator) -> Scores:
        """Returns how much likelier each token became, nats."""
        gained = seen.log_likelihoods - seen.before
        return Scores(values=gained, details={"mean_gain_nats": float(gained.mean())})
