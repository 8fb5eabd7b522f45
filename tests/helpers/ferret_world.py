"""Made-up results of a FERRET study whose truth is known, for the tests of its report.

A number is a level of its method, epochs and epsilon, times an effect of the model that all methods share,
times a little noise. `World` says which levels hold. All trainings share one draw of members, and records as
easy or hard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from workbench.estimation.low_fpr import CERTAIN
from workbench.interfaces import Currency
from workbench.reports.papers.ferret.places import MODELS
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults

BASES = tuple(name for name in MODELS if not name.startswith("micro_"))
METHODS = ("DPSGD", "FERRET-MAX", "FERRET-EIGHTH", "FERRET-2", "Non-DP")
EPSILONS = (0.1, 0.5, 1.0, 2.0)
EPOCHS = (1, 3, 5)
GROUPS = {"FERRET-MAX": 60, "FERRET-HALF": 30, "FERRET-QUARTER": 15, "FERRET-EIGHTH": 8, "FERRET-2": 2}


Effect = Callable[[str, int, float | None, float], float]
"""Of method, epochs, epsilon (None without one) and the model's size effect."""


def overfitting(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """Non-private training's log perplexity rises with the epochs."""
    return 0.5 * math.log(epochs) if epsilon is None else 0.0


def leaking(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """Non-private training's AUC rises with the epochs."""
    return 0.03 * math.log(epochs) if epsilon is None else 0.0


def slower(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """FERRET's log time rises with the budget."""
    return 0.0 if epsilon is None or variant == "DPSGD" else 0.03 * math.log(epsilon / 0.1)


def nothing(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """No effect."""
    return 0.0


@dataclass(frozen=True)
class World:
    """The truth.

    Attributes:
        perplexity, auc, seconds: Level by method.
        perplexity_effect, auc_effect, seconds_effect: Added to the level (log of perplexities and seconds).
        noise: Relative SD of a perplexity or time; a tenth of it, absolute, of an AUC.
        luck: What the draw of members adds to every AUC.
        leak: Share of member trials whose transcript is impossible without the canary, by game.
        dither: Factor of the final loss by sigma.
    """

    perplexity: Mapping[str, float] = field(
        default_factory=lambda: {
            "DPSGD": 12.0,
            "FERRET-MAX": 5.0,
            "FERRET-EIGHTH": 4.0,
            "FERRET-2": 6.0,
            "Non-DP": 8.0,
            "FERRET-HALF": 4.5,
            "FERRET-QUARTER": 4.5,
        }
    )
    auc: Mapping[str, float] = field(
        default_factory=lambda: {
            "DPSGD": 0.505,
            "FERRET-MAX": 0.505,
            "FERRET-EIGHTH": 0.505,
            "FERRET-2": 0.55,
            "Non-DP": 0.9,
            "FERRET-HALF": 0.52,
            "FERRET-QUARTER": 0.535,
        }
    )
    seconds: Mapping[str, float] = field(
        default_factory=lambda: {
            "DPSGD": 10.0,
            "FERRET-MAX": 2.2,
            "FERRET-EIGHTH": 2.4,
            "FERRET-2": 2.6,
            "Non-DP": 5.0,
            "FERRET-HALF": 2.2,
            "FERRET-QUARTER": 2.2,
        }
    )
    perplexity_effect: Effect = overfitting
    auc_effect: Effect = leaking
    seconds_effect: Effect = slower
    noise: float = 0.01
    luck: float = 0.0
    leak: Mapping[str, float] = field(
        default_factory=lambda: {
            "opposed": 0.8,
            "outlier": 0.4,
            "average": 0.02,
            "average, batches unknown": 0.0,
        }
    )
    dither: Mapping[float, float] = field(
        default_factory=lambda: {0.0: 1.0, 1e-4: 1.0, 1e-3: 1.0, 1e-2: 0.7, 0.1: 3.0, 1.0: 30.0}
    )


def made_up(
    world: World | None = None,
    *,
    groups: Sequence[str] = ("comparison", "head-room", "lira", "transcript", "dither", "untrained"),
    models: Sequence[str] = BASES,
    seeds: Sequence[int] = (0,),
    lost: Mapping[int, str] | None = None,
    epochs: Sequence[int] = EPOCHS,
    records: int = 40,
    trials: int = 200,
) -> StudyResults:
    """Results of the groups that are asked for.

    Args:
        world: The truth; None for the paper's.
        groups: Which.
        models, seeds, epochs: Of the trainings.
        lost: Numbers of outcomes that failed, with their error.
        records: Members, and as many non-members.
        trials: Of each cell of the transcript game.
    """
    world = world or World()
    rng = np.random.default_rng(7)
    sizes = {model: float(np.exp(rng.normal(0.0, 0.3))) for model in models}
    found: list[Outcome] = []
    for group in groups:
        if group == "transcript":
            found += _transcripts(world, rng, trials)
        elif group == "dither":
            found += _dither(world, rng)
        else:
            for variant, count, epsilon in _settings(group, epochs):
                for model in models:
                    for seed in seeds:
                        experiment = _experiment(
                            group, variant, model=model, epochs=count, epsilon=epsilon, seed=seed
                        )
                        found.append(_trained(world, experiment, sizes[model], rng, records))
    for place, error in (lost or {}).items():
        experiment = found[place].experiment
        found[place] = Outcome(experiment=experiment, key=str(place), status=Status.FAILED, error=error)
    return StudyResults(study=study_of(found), outcomes=tuple(found))


def study_of(outcomes: Sequence[Outcome], **fields: Any) -> Study:
    """A study of these outcomes."""
    values: dict[str, Any] = {
        "name": "ferret",
        "title": "T",
        "profile": "quick",
        "replication": "model",
        "experiments": tuple(outcome.experiment for outcome in outcomes),
        "source_sha256": "0",
        "paper": "ferret",
        "report": "ferret",
        "notes": ("A note of the study.",),
    }
    return Study(**{**values, **fields})


def _settings(group: str, epochs: Sequence[int]) -> list[tuple[str, int, float | None]]:
    if group == "untrained":
        return [("Base", 1, None)]
    if group == "head-room":
        return [
            (name, max(epochs), 0.5) for name in ("FERRET-MAX", "FERRET-HALF", "FERRET-QUARTER", "FERRET-2")
        ]
    counts = [max(epochs)] if group == "lira" else epochs
    return [
        (variant, count, epsilon)
        for variant in METHODS
        for count in counts
        for epsilon in ((None,) if variant == "Non-DP" else EPSILONS)
    ]


def tags_of(group: str, variant: str) -> dict[str, str]:
    """What the shipped study declares of a group and a variant of these names."""
    tags = {"part": "comparison"} if group in ("ceiling", "silent steps") else {}
    return tags | ({"capped": "FERRET-2"} if variant == "FERRET-2 (capped)" else {})


def _experiment(group: str, variant: str, **fields: Any) -> Experiment:
    values: dict[str, Any] = {
        "group": group,
        "tags": tags_of(group, variant),
        "variant": variant,
        "mechanism": "m",
        "attack": "lira" if group == "lira" else "loss",
        "corpus": "c",
        "members": 1000,
        "batch_size": 50,
        "learning_rate": 2e-4,
        "currency": Currency.RECORD_NATS if variant.startswith("FERRET") else Currency.DP,
        "delta": 1e-5 if variant == "DPSGD" else None,
    }
    return Experiment(**{**values, **fields})


def _trained(
    world: World, experiment: Experiment, size: float, rng: np.random.Generator, records: int
) -> Outcome:
    variant, epsilon, epochs = experiment.variant, experiment.epsilon, experiment.epochs
    if variant == "Base":
        metrics = {"perplexity_non_member": 20.1 * size, "perplexity_member": 20.0 * size}
        return Outcome(experiment=experiment, key="base", status=Status.DONE, metrics=metrics)
    place = (variant, epochs, epsilon, size)
    drift = world.perplexity_effect(*place) + rng.normal(0.0, world.noise)
    perplexity = world.perplexity[variant] * size * math.exp(drift)
    level = world.auc[variant] + world.auc_effect(*place) + world.luck
    auc = level + rng.normal(0.0, 0.1 * world.noise)
    slow = world.seconds_effect(*place) + rng.normal(0.0, world.noise)
    seconds = world.seconds[variant] * epochs * size * math.exp(slow)
    metrics = {
        "perplexity_non_member": perplexity,
        "perplexity_member": perplexity * 0.98,
        "roc_auc": auc,
    }
    if variant in GROUPS and epsilon is not None:
        groups = GROUPS[variant]
        ceiling = groups * experiment.steps * 0.05 * math.log(2.0)
        p = min(1.0, epsilon / ceiling)
        metrics |= {
            "groups": float(groups),
            "ceiling_nats": ceiling,
            "firing_probability": p,
            "fired": round(p * groups * experiment.steps),
            "silent_steps": 1.0,
        }
    scores, members = _scores(round(3.0 * (level - 0.5), 6), records)
    return Outcome(
        experiment=experiment,
        key=str(rng.integers(2**60)),
        status=Status.DONE,
        metrics=metrics,
        scores=scores,
        included=members,
        cost={"seconds": 1.0, "training_seconds": seconds},
    )


@cache
def _scores(shift: float, records: int) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    """Scores of the same records by every model, members' higher by a shift; and who is a member."""
    members = np.arange(2 * records) < records
    hard = np.random.default_rng(11).normal(0.0, 1.0, 2 * records)
    return tuple(map(float, hard + shift * members)), tuple(map(bool, members))


def _transcripts(world: World, rng: np.random.Generator, trials: int) -> list[Outcome]:
    found = []
    for variant in GROUPS:
        for epsilon in EPSILONS:
            for game, leak in world.leak.items():
                canary, _, is_unknown = game.partition(", ")
                group = "unknown batches" if is_unknown else "transcript"
                experiment = _experiment(
                    group, variant, model="digits_mlp", epochs=1, epsilon=epsilon, seed=0
                )
                played = {"canary": canary, **({"others": "copies"} if canary == "opposed" else {})}
                played |= {"knowledge": "records"} if is_unknown else {}
                experiment = _with(experiment, attack="sign_transcript", attack_parameters=played)
                members = rng.permutation(np.arange(trials) < trials // 2)
                certain = members & (rng.random(trials) < leak * min(1.0, epsilon))
                scores = np.where(certain, CERTAIN, rng.normal(-0.01, 0.02, trials))
                found.append(
                    Outcome(
                        experiment=experiment,
                        key=str(rng.integers(2**60)),
                        status=Status.DONE,
                        metrics={"roc_auc": 0.5},
                        scores=tuple(map(float, scores)),
                        included=tuple(map(bool, members)),
                        claim={
                            "guarantee": {
                                "currency": "mutual information",
                                "nats": epsilon,
                                "secret": "record",
                            }
                        },
                    )
                )
    return found


def _with(experiment: Experiment, **fields: Any) -> Experiment:
    return replace(experiment, **fields)


def _dither(world: World, rng: np.random.Generator) -> list[Outcome]:
    found = []
    steps = np.arange(200)
    starts = {seed: math.exp(rng.normal(0.0, 0.2)) for seed in range(10)}
    for sigma, factor in world.dither.items():
        for seed, start in starts.items():
            experiment = _with(
                _experiment("dither", "FERRET-MAX", model="toy_regression", epochs=1, epsilon=0.5, seed=seed),
                mechanism_parameters={"dither_standard_deviation": sigma},
            )
            noise = rng.normal(0.0, 0.01, steps.size)
            losses = start * (10.0 * np.exp(-steps / 30.0) + 0.1 * factor) * np.exp(noise)
            losses[rng.random(steps.size) < 0.3] = math.nan
            found.append(
                Outcome(
                    experiment=experiment,
                    key=str(rng.integers(2**60)),
                    status=Status.DONE,
                    metrics={"roc_auc": 0.5},
                    training_losses=tuple(map(float, losses)),
                )
            )
    return found
