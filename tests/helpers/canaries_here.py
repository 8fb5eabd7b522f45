"""White-box canaries in a trainer of the digits, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from workbench.audit.canaries.run import CanaryJob, finite, in_range, train_with_canaries
from workbench.audit.retraining import RetrainingJob, train_once
from workbench.audit.settings import embedded_settings
from workbench.audit.user_training import UserTraining, as_dicts
from workbench.core.streams import stream
from workbench.estimation import clopper_pearson_all, one_run
from workbench.games.base import half_included
from workbench.interfaces import BoolArray, FloatArray
from workbench.training.crafts import CanaryKind, canaries
from workbench.training.setup import prepare


def played_here(
    spec: str, *, seed: int = 0, candidates: int = 400, count: int = 300, run: int = 0, corpus: str = "digits"
) -> tuple[FloatArray, BoolArray]:
    """The scores and coins of one training; fails with the reason where there are none."""
    settings = embedded_settings(corpus=corpus, corpus_parameters={}, candidates=candidates)
    coins = stream(seed, "canaries", 2, run).random(count) < 0.5
    natural = np.arange(candidates) < max(candidates // 2 - count // 2, 1)
    job = CanaryJob(
        setup=replace(settings, seed=seed).setup(()),
        spec=spec,
        included=tuple(natural.tolist()),
        coins=tuple(coins.tolist()),
        run=run,
    )
    record = train_with_canaries(job, {}, Path(), lambda done, total, name: None)
    assert "reason" not in record, record["reason"]
    return np.asarray(record["scores"]), coins


def scored_here(
    spec: str, *, seed: int = 0, candidates: int = 200, count: int = 200, kind: CanaryKind = CanaryKind.LOUD
) -> tuple[FloatArray, BoolArray]:
    """The finished model's scores of the canaries, and their coins; the updates are not looked at."""
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=candidates)
    records, _ = prepare(replace(settings, seed=seed).setup(()))
    natural, base = records[: candidates // 16], records[candidates // 16 :]
    crafted = canaries(base, count, stream(seed, "canaries", 1), kind)
    coins = stream(seed, "canaries", 2).random(count) < 0.5
    members = [*natural, *(record for record, inside in zip(crafted, coins, strict=True) if inside)]
    training = UserTraining(spec)
    return finite(training.answers(training.fitted(as_dicts(members), seed), crafted)), coins


def retrained_here(
    spec: str, *, trainings: int, seed: int = 0, candidates: int = 200
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Scores by the finished models and by the updates, and which of the trainings held the canary."""
    settings = embedded_settings(corpus="digits", corpus_parameters={}, candidates=candidates)
    setup = replace(settings, seed=seed).setup(())
    included = half_included(trainings, np.random.default_rng(seed))
    records = []
    for run, takes_part in enumerate(included.tolist()):
        job = RetrainingJob(
            setup=setup, spec=spec, included=(True,) * candidates, takes_part=takes_part, run=run
        )
        records.append(train_once(job, {}, Path(), lambda done, total, name: None))
    by_scores, by_updates = (np.array([record[name] for record in records]) for name in ("answer", "moved"))
    return in_range(by_scores), in_range(by_updates), included


def lower_of_trials(scores: FloatArray, included: BoolArray, *, confidence: float = 0.99) -> float:
    """The family-free bound of independent trials at delta = 1e-5."""
    generator = np.random.default_rng(0)
    return clopper_pearson_all(scores, included, delta=1e-5, confidence=confidence, generator=generator).lower


def lower_of(scores: FloatArray, coins: BoolArray, confidence: float = 0.9875) -> float:
    """The one-run bound at delta = 1e-5; at the share of the error that the game has in a default audit."""
    return one_run(scores, coins, delta=1e-5, confidence=confidence).lower
