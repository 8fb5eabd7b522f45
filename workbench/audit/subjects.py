"""What an audit trains and attacks: the subject, ordinary members, and the control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit.settings import AuditSettings
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream
from workbench.execution.engine import Engine, Job
from workbench.games.base import Game, Match, Part, game_named, match_of, play_part
from workbench.interfaces import Adjacency, Attack, BoolArray, Evidence
from workbench.training.setup import (
    TrainingJob,
    TrainingSetup,
    content_digest,
    create_attack,
    load_corpus,
    train,
    with_attacks,
)
from workbench.training.shadows import shadow_memberships

MAIN, MEMBERS, CONTROL = "main", "members", "control"
"""What is trained: for the claim, for attacks on ordinary members that say nothing of it, and as control."""


@dataclass(frozen=True, kw_only=True)
class PlayedBy:
    """An attack of an audit with the game that it plays.

    Attributes:
        name: Registry name of the attack.
        given: Its parameters; of several games of one attack, those of this game.
        attack, game: Made of them.
    """

    name: str
    given: Mapping[str, Any]
    attack: Attack[Any]
    game: Game[Any]

    @property
    def is_cut(self) -> bool:
        """Whether the game is of trainings of its own alone, and is cut into parts."""
        return self.game.most_trials > 0


def attacks_of(settings: AuditSettings) -> tuple[PlayedBy, ...]:
    """Every game of the settings' attacks, in their order.

    Raises:
        InputError: an unknown name, or a parameter that is unknown or out of range.
    """
    found = []
    for name in settings.attacks:
        given = dict(settings.attack_parameters.get(name, {}))
        game = game_named(name)
        for own in game.variants(given):
            attack = registry.create("attack", name, **own)
            found.append(PlayedBy(name=name, given=own, attack=game.adopt(name, attack), game=game))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """A training of an audit, with the games that are played with it.

    Attributes:
        settings: Its own.
        attacks: Those that it is attacked by.
    """

    settings: AuditSettings
    attacks: tuple[PlayedBy, ...]

    @property
    def shared(self) -> tuple[PlayedBy, ...]:
        """Those that attack the trained subject."""
        return tuple(one for one in self.attacks if not one.is_cut)

    @cached_property
    def setup(self) -> TrainingSetup:
        """Of the training; with the parameters of the attacks on the trained subject."""
        return self.settings.setup([one.name for one in self.shared])

    @cached_property
    def included(self) -> BoolArray:
        """Which candidates are members: coins of the seed alone."""
        coins = stream(self.settings.seed, "coins")
        return coins_of(self.settings.candidates, coins, self.settings.capabilities.adjacency)

    @cached_property
    def shadow_included(self) -> BoolArray:
        """The same of each shadow model, as many as an attack asks for."""
        needed = max((self._references(one.name) for one in self.shared), default=0)
        if not needed:
            return np.zeros((0, 0), dtype=bool)
        generator = stream(self.settings.seed, "shadows")
        return shadow_memberships(self.settings.candidates, needed, generator)

    def match(self, one: PlayedBy) -> Match[Any]:
        """What a game is played with, before anything is trained."""
        given = one.given if one.is_cut else None
        included = tuple(self.included.tolist())
        return match_of(Part(setup=self.setup, attack=one.name, parameters=given, included=included), {})

    def parts(self, one: PlayedBy) -> list[Job]:
        """The parts of a game that is cut."""
        return one.game.jobs(self.setup, self.included.tolist(), one.name, one.given)

    def trainings(self) -> list[Job]:
        """The target first, then the shadows; nothing where nobody attacks what is trained."""
        rows = [self.included, *self.shadow_included] if self.shared else []
        return [self._training(row, run) for run, row in enumerate(rows)]

    def on_trained(self, engine: Engine) -> list[Job]:
        """One job for each attack on the trained subject; the shadows go to those that ask for them."""
        trainings, content = self.trainings(), content_digest(self.setup)
        folders = [_trained_folder(engine, job.key) for job in trainings]
        jobs = []
        for one in self.shared:
            count = self._references(one.name)
            payload = Part(
                setup=self.setup,
                attack=one.name,
                included=tuple(self.included.tolist()),
                shadows=tuple(tuple(row.tolist()) for row in self.shadow_included[:count]),
            )
            used = [job.key for job in trainings[: count + 1]]
            identity = {"kind": "attack", "setup": plain(self.setup), "attack": one.name, "subjects": used}
            inputs = {str(run): folder for run, folder in enumerate(folders[: count + 1])}
            label = f"{one.name} on {self.setup.mechanism}"
            jobs.append(Job(identity=identity, payload=payload, inputs=inputs, label=label, content=content))
        return jobs

    def _training(self, included: BoolArray, run: int) -> Job:
        setup, content = self.setup, content_digest(self.setup)
        if run > 0:  # A shadow has no gradient canary, so attacks that only insert one leave its key alone.
            inserting = {n: p for n, p in setup.attack_parameters.items() if _inserts_records(setup, n)}
            setup = with_attacks(setup, inserting)
        payload = TrainingJob(setup=setup, included=tuple(included.tolist()), run=run)
        identity = {"kind": "training", "job": plain(payload), "content": content}
        label = setup.mechanism + (f", shadow {run}" if run else "")
        return Job(identity=identity, payload=payload, label=label, content=content)

    def _references(self, name: str) -> int:
        return create_attack(self.setup, name).references_needed


def _inserts_records(setup: TrainingSetup, name: str) -> bool:
    insertions = create_attack(setup, name).prepare(load_corpus(setup), stream(setup.seed, "insertions"))
    return bool(insertions.replaced or insertions.planted)


def _trained_folder(engine: Engine, key: str) -> Path:
    folder = engine.store.subject_folder(key)
    if folder is None:
        raise InputError(f"store {engine.store.folder} has lost subject {key}")
    return folder


def coins_of(candidates: int, generator: np.random.Generator, adjacency: Adjacency) -> BoolArray:
    """Which candidates are members, shape `(n,)`.

    By a coin each; under replace-one by a coin for each pair of candidates half the pool apart, so that to
    turn a coin replaces a record (one candidate too many for pairs is no member).
    """
    coins: BoolArray = generator.random(candidates) < 0.5
    if adjacency is Adjacency.REPLACE_ONE:
        half = candidates // 2
        coins[half : 2 * half] = ~coins[:half]
        coins[2 * half :] = False
    return coins


def audited_by(settings: AuditSettings) -> dict[str, Audited]:
    """What is trained and attacked, by its part in the audit.

    Scores of one training say nothing of a claim in nats, which bounds an average over trainings: there the
    attacks on ordinary members have a training of their own, and the control is trained for them alone.

    Raises:
        InputError: an unknown attack, or a parameter out of range.
    """
    attacks = attacks_of(settings)
    on_members = tuple(one for one in attacks if one.game.trains_once and settings.secret is not None)
    rest = tuple(one for one in attacks if one not in on_members)
    found = {}
    if rest:
        found[MAIN] = Audited(settings=settings, attacks=rest)
    if on_members:
        found[MEMBERS] = Audited(settings=settings.for_members(), attacks=on_members)
    compared = found.get(MAIN) if settings.secret is None else found.get(MEMBERS)
    if compared is not None and settings.control and settings.mechanism != settings.control_mechanism:
        found[CONTROL] = replace(compared, settings=compared.settings.as_control())
    return found


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was trained and attacked, read back from the store.

    Attributes:
        games: All that were played, in the order of the attacks.
        facts: What the report says of the training, by field.
    """

    games: tuple[Evidence, ...] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)


def play(audited: Mapping[str, Audited], engine: Engine) -> dict[str, Found]:
    """Do the work that the store lacks: games of whole trainings first, for they are most of it."""
    cut = [(part, one) for part, subject in audited.items() for one in subject.attacks if one.is_cut]
    records: dict[tuple[str, int], Sequence[Mapping[str, JSON]]] = {}
    for stage, same in groupby(
        sorted(cut, key=lambda pair: pair[1].game.stage), lambda pair: pair[1].game.stage
    ):
        wanted = [(part, one, audited[part].parts(one)) for part, one in same]
        done = iter(
            engine.run(stage, [job for *_, jobs in wanted for job in jobs], play_part, keeps_folder=False)
        )
        records |= {(part, id(one)): [next(done) for _ in jobs] for part, one, jobs in wanted}
    trainings = {part: subject.trainings() for part, subject in audited.items()}
    done = iter(
        engine.run("training", [job for jobs in trainings.values() for job in jobs], train, keeps_folder=True)
    )
    trained = {part: [next(done) for _ in jobs] for part, jobs in trainings.items()}
    asked = {part: audited[part].on_trained(engine) for part, jobs in trainings.items() if jobs}
    done = iter(
        engine.run(
            "attacking", [job for jobs in asked.values() for job in jobs], play_part, keeps_folder=False
        )
    )
    for part in asked:
        records |= {(part, id(one)): [next(done)] for one in audited[part].shared}
    return {
        part: _found(subject, [records[part, id(one)] for one in subject.attacks], trained[part])
        for part, subject in audited.items()
    }


def _found(
    subject: Audited, records: Sequence[Sequence[Mapping[str, JSON]]], trained: Sequence[Mapping[str, JSON]]
) -> Found:
    settings, facts = subject.settings, {"parameters": plain(subject.setup)}
    games: list[Evidence] = []
    for one, own in zip(subject.attacks, records, strict=True):
        name = one.game.name_of(one.name, one.attack)
        games += one.game.evidence(name, own, seed=settings.seed, confidence=settings.confidence)
        facts |= one.game.facts(own, confidence=settings.confidence)
    if trained:
        facts |= {name: trained[0][name] for name in ("metrics", "losses", "cost")}
        facts["own_claim"] = trained[0]["claim"]
    return Found(games=tuple(games), facts=facts)
