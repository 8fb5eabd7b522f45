"""One audited subject: the jobs that train and attack it, and the report of its judged games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit.settings import AuditSettings
from workbench.core.errors import InputError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream
from workbench.estimation.judged import evidence_from, judged_subject
from workbench.execution.engine import Job
from workbench.execution.store import Store
from workbench.games.plays import AttackJob
from workbench.interfaces import Adjacency, BoolArray
from workbench.training import setup as workers
from workbench.training.neighbours import neighbours_of
from workbench.training.setup import TrainingJob, TrainingSetup
from workbench.training.shadows import shadow_memberships


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One subject of an audit: its place in the report and the jobs that make it."""

    name: str
    role: str
    setup: TrainingSetup
    included: BoolArray
    shadow_included: BoolArray

    def trainings(self) -> list[Job]:
        """The target first, then the shadows."""
        rows = [self.included, *self.shadow_included]
        return [self._training(row, run) for run, row in enumerate(rows)]

    def _training(self, included: BoolArray, run: int) -> Job:
        setup = self.setup
        if run > 0:  # A shadow has no gradient canary, so attacks that only insert one leave its key alone.
            inserting = {n: p for n, p in setup.attack_parameters.items() if _inserts_records(setup, n)}
            setup = workers.with_attacks(setup, inserting)
        payload = TrainingJob(setup=setup, included=tuple(included.tolist()), run=run)
        content = workers.content_digest(self.setup)
        identity = {"kind": "training", "job": plain(payload), "content": content}
        return Job(identity=identity, payload=payload, label=self.setup.mechanism, content=content)

    def attacks(self, store: Store) -> list[Job]:
        """One job an attack; the shadows go to those that ask for them."""
        trainings = self.trainings()
        folders = [_trained_folder(store, job.key) for job in trainings]
        jobs = []
        for name in self.setup.attack_parameters:
            count = workers.create_attack(self.setup, name).references_needed
            payload = AttackJob(
                setup=self.setup,
                attack=name,
                target_included=tuple(self.included.tolist()),
                shadow_included=tuple(tuple(row.tolist()) for row in self.shadow_included[:count]),
            )
            used = [job.key for job in trainings[: count + 1]]
            identity = {"kind": "attack", "setup": plain(self.setup), "attack": name, "subjects": used}
            inputs = {str(run): folder for run, folder in enumerate(folders[: count + 1])}
            jobs.append(
                Job(
                    identity=identity,
                    payload=payload,
                    inputs=inputs,
                    label=self.setup.mechanism,
                    content=workers.content_digest(self.setup),
                )
            )
        return jobs


def _inserts_records(setup: TrainingSetup, name: str) -> bool:
    insertions = workers.create_attack(setup, name).prepare(
        workers.load_corpus(setup), stream(setup.seed, "insertions")
    )
    return bool(insertions.replaced or insertions.planted)


def _trained_folder(store: Store, key: str) -> Path:
    folder = store.subject_folder(key)
    if folder is None:
        raise InputError(f"store {store.folder} has lost subject {key}")
    return folder


def audited(
    settings: AuditSettings,
    name: str,
    role: str,
    parameters: Mapping[str, Any],
    attacks: Sequence[str] | None = None,
) -> Audited:
    """A subject of these settings; its coins and its shadows' depend on the seed alone.

    Args:
        settings: Of the audit.
        name, parameters: The mechanism, by its registry name.
        role: In the report.
        attacks: Those that attack it; None for all of the settings'.

    Raises:
        InputError: an unknown attack, or a parameter out of range.
    """
    chosen = settings.attacks if attacks is None else attacks
    setup = settings.setup(name, parameters, chosen)
    coins = coins_of(settings.candidates, stream(settings.seed, "coins"), neighbours_of(name, parameters))
    needed = max((workers.create_attack(setup, one).references_needed for one in chosen), default=0)
    generator = stream(settings.seed, "shadows")
    shadows = shadow_memberships(settings.candidates, needed, generator) if needed else np.zeros((0, 0), bool)
    return Audited(name=name, role=role, setup=setup, included=coins, shadow_included=shadows)


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


def subject_report(
    settings: AuditSettings,
    subject: Audited,
    trained: Mapping[str, JSON],
    played: Sequence[Mapping[str, JSON]],
) -> dict[str, JSON]:
    """Judge every game of one subject, each at its share of the error, and combine."""
    games = [evidence_from(game) for record in played for game in record["evidence"]]
    report = judged_subject(
        subject.name, subject.role, settings.claim, games, confidence=settings.confidence, seed=settings.seed
    )
    report["metrics"] = trained["metrics"]
    report["losses"] = trained["losses"]
    report["own_claim"] = trained["claim"]
    report["parameters"] = plain(subject.setup)
    report["cost"] = trained["cost"]
    return report
