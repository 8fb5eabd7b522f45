"""The protocol of games: who plays what, and what is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.games.base import Game, Part, Round, game_named, game_of, match_of, play_part
from workbench.games.release import ReleaseAttack, ReleaseSeen
from workbench.interfaces import Adjacency, GameTerms, Released, Scores, Trials
from workbench.training.setup import TrainingSetup

ATTACKS = sorted(registry.entries("attack"))
GAMES = sorted(registry.entries("game"))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_played_by_its_own_game_alone(name: str) -> None:
    """So an attack never sees what another game shows."""
    attack = registry.create("attack", name)
    assert attack.game in GAMES
    assert game_named(name).name == game_of(attack).name == attack.game
    for own in GAMES:
        game: Game[Any] = registry.create("game", own)
        assert game.name == own
        if own == attack.game:
            assert game.adopt(name, attack) is attack
            continue
        with pytest.raises(InputError, match=f"^attack '{name}' plays a {game.title} game, so it must be a "):
            game.adopt(name, attack)


class Elsewhere(ReleaseAttack):
    """An attack of a game that there is none of."""

    game = "nowhere"

    def score(self, seen: ReleaseSeen, generator: np.random.Generator) -> Scores:
        """Nothing."""
        return Scores(values=seen.values)


class NoAttack:
    """Has all that an attack has, but is none."""

    game = "release"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Elsewhere, "unknown game 'nowhere'"),
        (NoAttack, "attack 'stand_in' must be a subclass of workbench.interfaces.Attack"),
    ],
)
def test_what_no_game_can_play_is_refused(
    factory: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.Entry(name="stand_in", factory=factory, summary="")
    monkeypatch.setitem(registry._entries["attack"], "stand_in", entry)
    with pytest.raises(InputError, match=message):
        game_named("stand_in")
    with pytest.raises(InputError, match=message):
        match_of(part("stand_in"), {})


def part(attack: str) -> Part:
    is_text = attack == "canary_extraction"
    setup = TrainingSetup(
        mechanism="dp_sgd",
        corpus="clinical" if is_text else "digits",
        budget=ApproximateDP(epsilon=1.0, delta=1e-5),
        candidates=20,
        model="tiny_gpt2" if is_text else "digits_logistic",
        steps=2,
        sampling_probability=0.5,
        learning_rate=0.1,
        attack_parameters={attack: {}},
    )
    return Part(setup=setup, attack=attack, included=(True, False) * 10)


@pytest.mark.parametrize("name", [name for name in ATTACKS if game_named(name).uses_target])
def test_a_game_against_a_subject_needs_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^attack '{name}' needs a trained subject, got none$"):
        play_part(part(name), {}, tmp_path, lambda *_: None)


@pytest.mark.parametrize("count", [23, 25, 0])
def test_an_attack_that_gives_another_number_of_scores_is_named(count: int) -> None:
    terms = GameTerms(
        description="a game", trials=Trials.ONE_RUN, released=Released.SCORES, adjacency=Adjacency.ADD_REMOVE
    )
    with pytest.raises(InputError, match=rf"^attack 'theirs' must give .* \(24,\), got shape \({count},\)"):
        Round(name="theirs", scores=np.zeros(count), members=np.arange(24) < 12, terms=terms)
