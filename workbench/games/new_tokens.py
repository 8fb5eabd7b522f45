"""The game of new tokens: which canaries of a token each was one language model trained on?

Before training the model's vocabulary gets a new token for each canary; a canary is a short public text and
its token. Each canary is trained on by a fair coin, among the plan's own records, which the adversary knows.
One training; the adversary asks the trained model for the likelihood of each canary's token after the public
text, and sees nothing else.

No other record pulls a canary's token, so that the canaries' signals do not mix: with as many canaries as
wanted, one training shows nearly what the sums of its noised updates hold of each record.

Source: Panda et al. 2025, "Privacy auditing of large language models" (canaries of new tokens, scored on
these alone); Steinke et al. 2023, "Privacy auditing with one (1) training run".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.execution.engine import Job
from workbench.games.base import Game, Match, Played, Round, Scale, drawn_seed, quickened
from workbench.interfaces import (
    Attack,
    FloatArray,
    GameTerms,
    Insertions,
    NewTokens,
    Record,
    Released,
    Sampling,
    Trials,
)
from workbench.training.setup import TrainingSetup, create_attack

if TYPE_CHECKING:
    from workbench.training.models import LanguageModel


@dataclass(frozen=True, kw_only=True)
class NewTokensSeen:
    """What the adversary is given.

    `log_likelihoods`: of each canary's token after the public text under the trained model, nats, shape
    `(n,)`. `before`: the same under the public model, in which all new tokens are alike.
    """

    log_likelihoods: FloatArray
    before: FloatArray


class NewTokensAttack(Attack[NewTokensSeen]):
    """An attack that scores canaries of a new token each. `canaries`: their number."""

    game = "new_tokens"
    canaries: int

    @abstractmethod
    def public_text(self, contexts: Sequence[str]) -> str:
        """Returns the text that the tokens follow; `contexts`: those of the bench, the best for it first."""


@register("game", "new_tokens")
class NewTokensGame(Game[NewTokensAttack]):
    """Each of many canaries, of a new token each, is trained on by a coin; one training is scored for all."""

    name = "new_tokens"
    title = "new tokens"
    attack_type = NewTokensAttack
    released = Released.SCORES
    trains_once = True
    unit = "canaries of one training"
    most_trials = 10**6
    stage = "training with new tokens"

    def check(self, match: Match[NewTokensAttack]) -> None:
        """Refuses a vocabulary that cannot grow, embeddings that are frozen, and shuffled epochs."""
        _grown(match, 1)
        if match.plan.sampling is not Sampling.POISSON:
            raise UnsupportedError("new tokens need Poisson samples: their number is drawn by coins")

    def jobs(
        self, setup: TrainingSetup, included: Sequence[bool], name: str, given: Mapping[str, Any]
    ) -> list[Job]:
        """The one training."""
        attack = self.adopt(name, create_attack(setup, name, given))
        return self.cut(setup, included, name, given, trials=attack.canaries)

    def cost(self, attack: NewTokensAttack) -> tuple[Scale, ...]:
        """Time grows with the number of canaries."""
        return (Scale(parameter="canaries", count=attack.canaries, few=50, more=200),)

    def play(self, match: Match[NewTokensAttack]) -> Played:
        """Trains once, on the plan's records and the canaries whose coins came up heads."""
        from workbench.training.models import token_ids

        attack, generator = match.attack, np.random.default_rng(match.seed())
        public, new = _grown(match, match.part.trials or attack.canaries)
        canaries = [
            Record(id=f"new-token-{number}", text=new.context + token)
            for number, token in enumerate(new.tokens)
        ]
        coins = generator.random(len(canaries)) < 0.5
        trained_on = [canary for canary, coin in zip(canaries, coins.tolist(), strict=True) if coin]
        plan = replace(
            match.plan,
            records=(*trained_on, *match.plan.records),
            held_out=(),
            public_size=len(match.plan.records) + len(canaries) // 2,
            insertions=Insertions(new_tokens=new),
            seed=drawn_seed(generator),
        )
        subject = quickened(match.mechanism, plan).train(plan, match.steps("steps"))
        place = len(token_ids(public.tokenizer, new.context)) - 1
        before = public.token_log_likelihoods(public.encode(canaries[:1]))[0][place]
        found = np.array([values[place] for values in subject.token_log_likelihoods(canaries)])
        seen = NewTokensSeen(log_likelihoods=found, before=np.full(found.shape, before))
        scores = attack.score(seen, match.generator())
        terms = GameTerms(
            description=self.words().text("terms", canaries=len(canaries), text=new.context),
            trials=Trials.ONE_RUN,
            released=self.released,
            adjacency=next(iter(self.adjacencies)),
        )
        scored = Round(
            name=match.part.attack, scores=scores.values, members=coins, terms=terms, details=scores.details
        )
        return Played(rounds=(scored,), subject=subject)


def _grown(match: Match[NewTokensAttack], count: int) -> tuple[LanguageModel, NewTokens]:
    """The public model with so many new tokens, on the CPU, and these.

    Raises as `require_vocabulary`, `uncertain_contexts` and `add_tokens`.
    """
    from workbench.training.devices import CPU
    from workbench.training.fine_tuning import build_model
    from workbench.training.vocabulary import add_tokens, require_vocabulary, uncertain_contexts

    public = require_vocabulary(build_model(replace(match.plan, insertions=Insertions(), device=CPU)))
    tokens = tuple(f"<canary-{number}>" for number in range(count))
    new = NewTokens(tokens=tokens, context=match.attack.public_text(uncertain_contexts(public)))
    add_tokens(public, new)
    return public, new
