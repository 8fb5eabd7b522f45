"""The release game: is the gradient canary in this released update?

A coin puts a gradient canary into a step's sum, or leaves it out; the adversary sees the released update, and
knows every other record of the step. It is played twice: by independent releases at the trained state, and by
the steps of the training itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.core.streams import stream
from workbench.games.base import Game, Match, Played, Round, Scale
from workbench.interfaces import Adjacency, Attack, FloatArray, GameTerms, Release, Released, Trials
from workbench.training.setup import load_corpus

SINGLE, RUN = "one state", "every step"


@dataclass(frozen=True, kw_only=True)
class ReleaseSeen:
    """What the adversary sees of n releases, without the coins.

    `values`: released value of the canary's coordinate, shape `(n,)`. `where`: `SINGLE` (independent releases
    at the trained state) or `RUN` (one a training step).
    """

    values: FloatArray
    where: str


class ReleaseAttack(Attack[ReleaseSeen]):
    """An attack that inserts a gradient canary and scores what is released of it.

    `releases`: number of releases at the trained state.
    """

    game = "release"
    releases: int = 1000


@register("game", "release")
class ReleaseGame(Game[ReleaseAttack]):
    """Releases with and without a gradient canary are told apart, at one state and over the run's steps."""

    name = "release"
    title = "release"
    attack_type = ReleaseAttack
    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE})
    released = Released.EVERY_UPDATE
    uses_target = True
    unit = "releases"

    def check(self, match: Match[ReleaseAttack]) -> None:
        """Refuses a mechanism without noised sums, into which a canary could be put."""
        match.require(Release.SUMS, "noised sums")

    def cost(self, attack: ReleaseAttack) -> tuple[Scale, ...]:
        """Time grows with the number of releases."""
        return (Scale(parameter="releases", count=attack.releases, few=20, more=200),)

    def play(self, match: Match[ReleaseAttack]) -> Played:
        """Plays two rounds; the second only for the attack whose canary the run watched.

        A sum to which a record adds nothing is also that of a record of gradient zero, so both are games of
        replacement too. Where noise changes in a run, releases at one state stand for the steps with that
        noise.
        """
        setup, target, attack = match.part.setup, match.required_target(), match.attack
        canary = attack.prepare(load_corpus(setup), stream(setup.seed, "insertions")).gradient_canary
        if canary is None:
            raise InputError(f"attack {match.part.attack!r} inserted no gradient canary")
        generator = stream(setup.seed, "releases")
        coins = generator.random(attack.releases) < 0.5
        played = {SINGLE: (target.release_canary(canary, coins, generator), coins)}
        if canary == target.plan.insertions.gradient_canary:
            played[RUN] = (target.transcript.canary_observations, target.transcript.canary_included)
        adjacency = match.mechanism.capabilities.adjacency
        rounds = []
        for where, (values, included) in played.items():
            if not 2 <= np.sum(included) <= included.size - 2:
                continue  # A handful of steps may have tossed (nearly) one side only, which is no game.
            scores = attack.score(ReleaseSeen(values=values, where=where), match.generator())
            terms = GameTerms(
                description=self.words().text(
                    "terms", where=where, is_replaced=adjacency is Adjacency.REPLACE_ONE
                ),
                trials=Trials.INDEPENDENT,
                released=self.released,
                adjacency=adjacency,
                family=target.release_family,
                steps=match.mechanism.steps_at_first_noise(target.plan)
                if where == SINGLE
                else target.plan.steps,
                sampling_probability=target.plan.sampling_probability,
            )
            name = f"{match.part.attack} ({where})"
            rounds.append(
                Round(name=name, scores=scores.values, members=included, terms=terms, details=scores.details)
            )
        return Played(rounds=tuple(rounds), subject=target)
