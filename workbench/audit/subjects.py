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
from workbench.estimation.judge import refutes_already, share_of
from workbench.execution.engine import Engine, Job
from workbench.games.base import Game, Match, Part, game_named, match_of, play_part
from workbench.interfaces import Adjacency, Attack, BoolArray, Evidence
from workbench.training.setup import (
    ShadowsJob,
    TrainingJob,
    TrainingSetup,
    content_digest,
    create_attack,
    create_mechanism,
    load_corpus,
    train,
    with_attacks,
)
from workbench.training.shadows import shadow_memberships

MAIN, MEMBERS, CONTROL = "main", "members", "control"
"""What is trained: for the claim, for attacks on ordinary members that say nothing of it, and as control."""

LOOKED_AT = 50
"""Trainings after which a sequential game looks at its scores again."""

ADAPTERS_AT_ONCE = 8
"""Most shadow adapters that one job trains."""


@dataclass(frozen=True, kw_only=True)
class PlayedBy:
    """An attack of an audit with the game that it plays.

    `given`: the attack's parameters; of several games of one attack, those of this game.
    """

    name: str
    given: Mapping[str, Any]
    attack: Attack[Any]
    game: Game[Any]

    @property
    def is_cut(self) -> bool:
        """Whether the game does only trainings of its own, and is cut into parts."""
        return self.game.most_trials > 0


def attacks_of(settings: AuditSettings) -> tuple[PlayedBy, ...]:
    """Every game of the settings' attacks, in their order.

    Raises `InputError`: an unknown name, or a parameter that is unknown or out of range.
    """
    played = []
    for name in settings.attacks:
        given = dict(settings.attack_parameters.get(name, {}))
        game = game_named(name)
        if settings.sequential:
            game.most_trials = min(game.most_trials, LOOKED_AT)
        for variant in game.variants(given):
            attack = registry.create("attack", name, **variant)
            played.append(PlayedBy(name=name, given=variant, attack=game.adopt(name, attack), game=game))
    return tuple(played)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """A training of an audit, with the games that are played with it."""

    settings: AuditSettings
    attacks: tuple[PlayedBy, ...]

    @property
    def shared(self) -> tuple[PlayedBy, ...]:
        """The attacks on the trained subject."""
        return tuple(attack for attack in self.attacks if not attack.is_cut)

    @cached_property
    def setup(self) -> TrainingSetup:
        """The setup of the training; with the parameters of the attacks on the trained subject."""
        return self.settings.setup([attack.name for attack in self.shared])

    @cached_property
    def included(self) -> BoolArray:
        """Which candidates are members: coins of the seed alone."""
        coins = stream(self.settings.seed, "coins")
        return coins_of(self.settings.candidates, coins, self.settings.capabilities.adjacency)

    @cached_property
    def shadow_included(self) -> BoolArray:
        """The members of each shadow model, as many models as an attack asks for."""
        needed = max((self._references(attack.name) for attack in self.shared), default=0)
        if not needed:
            return np.zeros((0, 0), dtype=bool)
        generator = stream(self.settings.seed, "shadows")
        return shadow_memberships(self.settings.candidates, needed, generator)

    def match(self, attack: PlayedBy) -> Match[Any]:
        """The match of an attack before anything is trained, for its game to check."""
        given = attack.given if attack.is_cut else None
        included = tuple(self.included.tolist())
        return match_of(Part(setup=self.setup, attack=attack.name, parameters=given, included=included), {})

    def parts(self, attack: PlayedBy) -> list[Job]:
        """The parts of a game that is cut."""
        return attack.game.jobs(self.setup, self.included.tolist(), attack.name, attack.given)

    @cached_property
    def shadows_together(self) -> bool:
        """Whether the shadows are trained as ensembles."""
        from workbench.training.ensemble.together import refusal

        mechanism = create_mechanism(self.setup)
        return len(self.shadow_included) > 0 and refusal(mechanism, self.setup) == ""

    def trainings(self) -> list[Job]:
        """The target first, then the shadows; nothing where no attack reads what is trained."""
        if not self.shared:
            return []
        target = self._training(self.included, 0)
        if self.shadows_together:
            return [target, *(self._shadows(runs) for runs in self._shadow_runs)]
        return [
            target,
            *(self._training(row, run) for run, row in enumerate(self.shadow_included, start=1)),
        ]

    def on_trained(self, engine: Engine) -> list[Job]:
        """One job for each attack on the trained subject; the shadows go to those that ask for them."""
        trainings, content = self.trainings(), content_digest(self.setup)
        folders = [_trained_folder(engine, job.key) for job in trainings]
        if self.shadows_together:
            parts = zip(folders[1:], self._shadow_runs, strict=True)
            folders = [folders[0], *(folder / str(run) for folder, runs in parts for run in runs)]
        jobs = []
        for attack in self.shared:
            count = self._references(attack.name)
            payload = Part(
                setup=self.setup,
                attack=attack.name,
                included=tuple(self.included.tolist()),
                shadows=tuple(tuple(row.tolist()) for row in self.shadow_included[:count]),
            )
            used = [job.key for job in trainings[: count + 1]]
            identity = {"kind": "attack", "setup": plain(self.setup), "attack": attack.name, "subjects": used}
            inputs = {str(run): folder for run, folder in enumerate(folders[: count + 1])}
            label = f"{attack.name} on {self.setup.mechanism}"
            jobs.append(Job(identity=identity, payload=payload, inputs=inputs, label=label, content=content))
        return jobs

    def _training(self, included: BoolArray, run: int) -> Job:
        setup, content = self._shadow_setup if run > 0 else self.setup, content_digest(self.setup)
        payload = TrainingJob(setup=setup, included=tuple(included.tolist()), run=run)
        identity = {"kind": "training", "job": plain(payload), "content": content}
        label = setup.mechanism + (f", shadow {run}" if run else "")
        return Job(identity=identity, payload=payload, label=label, content=content)

    @cached_property
    def _shadow_setup(self) -> TrainingSetup:
        """A shadow has no gradient canary, so attacks that only insert one leave its key alone."""
        given = self.setup.attack_parameters
        return with_attacks(self.setup, {n: p for n, p in given.items() if _inserts_records(self.setup, n)})

    @cached_property
    def _shadow_runs(self) -> tuple[range, ...]:
        """The runs of each job that trains shadows as an ensemble: all in one.

        Adapters, whose ensembles are as fast with few models as with many, in jobs of a few for the workers.
        """
        count = len(self.shadow_included)
        size = count if self.setup.adapter == "full" else min(ADAPTERS_AT_ONCE, -(-count // 2))
        return tuple(range(run, min(run + size, count + 1)) for run in range(1, count + 1, size))

    def _shadows(self, runs: range) -> Job:
        content = content_digest(self.setup)
        rows = tuple(tuple(row.tolist()) for row in self.shadow_included[runs.start - 1 : runs.stop - 1])
        payload = ShadowsJob(setup=self._shadow_setup, included=rows, first=runs.start)
        identity = {"kind": "shadows", "job": plain(payload), "content": content}
        label = f"{self.setup.mechanism}, {len(rows)} shadows"
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
    """What an audit trains and attacks, under `MAIN`, `MEMBERS` and `CONTROL`.

    Scores of one training say nothing of a claim in nats, which bounds an average over trainings: there the
    attacks on ordinary members have a training of their own, and the control is trained for them alone.
    Raises `InputError`: an unknown attack, or a parameter out of range.
    """
    attacks = attacks_of(settings)
    on_members = tuple(
        attack for attack in attacks if attack.game.trains_once and settings.secret is not None
    )
    rest = tuple(attack for attack in attacks if attack not in on_members)
    parts = {}
    if rest:
        parts[MAIN] = Audited(settings=settings, attacks=rest)
    if on_members:
        parts[MEMBERS] = Audited(settings=settings.for_members(), attacks=on_members)
    compared = parts.get(MAIN) if settings.secret is None else parts.get(MEMBERS)
    if compared is not None and settings.control and settings.mechanism != settings.control_mechanism:
        parts[CONTROL] = replace(compared, settings=compared.settings.as_control())
    return parts


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was trained and attacked, read back from the store.

    `games`: all that were played, in the order of the attacks. `facts`: what the report says of the training,
    by field.
    """

    games: tuple[Evidence, ...] = ()
    facts: Mapping[str, JSON] = field(default_factory=dict)


def play(audited: Mapping[str, Audited], engine: Engine) -> dict[str, Found]:
    """Do the work that the store lacks: games of whole trainings first, for they are most of it."""
    cut = [(part, attack) for part, subject in audited.items() for attack in subject.attacks if attack.is_cut]
    records: dict[tuple[str, int], Sequence[Mapping[str, JSON]]] = {}
    for stage, same in groupby(
        sorted(cut, key=lambda pair: pair[1].game.stage), lambda pair: pair[1].game.stage
    ):
        wanted = [(part, attack, audited[part].parts(attack)) for part, attack in same]
        if any(audited[part].settings.sequential for part, *_ in wanted):
            records |= {
                (part, id(attack)): _played_until_refuted(engine, stage, audited[part], attack, jobs)
                for part, attack, jobs in wanted
            }
            continue
        done = iter(
            engine.run(stage, [job for *_, jobs in wanted for job in jobs], play_part, keeps_folder=False)
        )
        records |= {(part, id(attack)): [next(done) for _ in jobs] for part, attack, jobs in wanted}
    trainings = {part: subject.trainings() for part, subject in audited.items()}
    done = iter(
        engine.run("training", [job for jobs in trainings.values() for job in jobs], train, keeps_folder=True)
    )
    trained = {part: [next(done) for _ in jobs] for part, jobs in trainings.items()}
    attacking = {part: audited[part].on_trained(engine) for part, jobs in trainings.items() if jobs}
    done = iter(
        engine.run(
            "attacking", [job for jobs in attacking.values() for job in jobs], play_part, keeps_folder=False
        )
    )
    for part in attacking:
        records |= {(part, id(attack)): [next(done)] for attack in audited[part].shared}
    return {
        part: _found(subject, [records[part, id(attack)] for attack in subject.attacks], trained[part])
        for part, subject in audited.items()
    }


def _played_until_refuted(
    engine: Engine, stage: str, subject: Audited, attack: PlayedBy, jobs: list[Job]
) -> list[dict[str, JSON]]:
    """The first parts of a game, up to the one with which its sequential test refutes the claim."""
    settings = subject.settings
    share = share_of(settings.confidence, len(subject.attacks))

    def enough(records: list[dict[str, JSON]]) -> bool:
        (evidence,) = _evidence(subject, attack, records)
        return refutes_already(settings.claim, evidence, confidence=share, seed=settings.seed)

    return engine.run(stage, jobs, play_part, keeps_folder=False, enough=enough)


def _evidence(
    subject: Audited, attack: PlayedBy, records: Sequence[Mapping[str, JSON]]
) -> tuple[Evidence, ...]:
    """What a game's parts show; of a sequential audit, for a test that looks at them in their order."""
    settings, name = subject.settings, attack.game.name_of(attack.name, attack.attack)
    found = attack.game.evidence(name, records, seed=settings.seed, confidence=settings.confidence)
    if not settings.sequential:
        return found
    return tuple(replace(one, game=replace(one.game, sequential=True)) for one in found)


def _found(
    subject: Audited, records: Sequence[Sequence[Mapping[str, JSON]]], trained: Sequence[Mapping[str, JSON]]
) -> Found:
    settings, facts = subject.settings, {"parameters": plain(subject.setup)}
    games: list[Evidence] = []
    for attack, parts in zip(subject.attacks, records, strict=True):
        games += _evidence(subject, attack, parts)
        facts |= attack.game.facts(parts, confidence=settings.confidence)
    if trained:
        facts |= {name: trained[0][name] for name in ("metrics", "losses", "cost")}
        facts["own_claim"] = trained[0]["claim"]
    return Found(games=tuple(games), facts=facts)
