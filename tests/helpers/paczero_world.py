"""Made-up results of a PACZero study whose truth is known, for the tests of its report.

A score is a level of its group and setting, plus an effect of the seed that all methods share, plus a little
noise. `World` says which levels hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.interfaces import Currency
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults

BUDGETS = (1e-4, 1e-3, 1e-2, 0.11, 0.33, 0.68)
EPSILONS = (0.2, 0.3, 0.5, 1.0, 2.0)
SUBSET = Currency.SUBSET_NATS
SURROGATES = ("raw_full", "quant_full", "raw_half", "quant_half", "random_sign")
RUNGS = (100, 200, 300, 400, 500)


def cliff(epsilon: float) -> float:
    """Chance below one, useful from there on."""
    return 50.0 if epsilon < 1.0 else 80.0


def drift(steps: int) -> float:
    """Three points less a rung."""
    return 88.0 - 3.0 * (steps / 100 - 1.0)


@dataclass(frozen=True)
class World:
    """The truth.

    Attributes:
        plateau: Score by budget, nats.
        cliff: Score of DPZero by epsilon.
        drift: Score by T.
        surrogates: Score by surrogate.
        zpl, mezo: Scores of the headline.
        unanimity: Percent, by task and track.
        noise: SD of a score within a seed, points.
        seeds: How many.
    """

    plateau: Callable[[float], float] = lambda nats: 88.0
    cliff: Callable[[float], float] = cliff
    drift: Callable[[int], float] = drift
    surrogates: Mapping[str, float] = field(
        default_factory=lambda: {
            "raw_full": 85.0,
            "quant_full": 89.0,
            "raw_half": 85.0,
            "quant_half": 89.0,
            "random_sign": 50.0,
        }
    )
    zpl: float = 88.0
    mezo: float = 88.5
    unanimity: Mapping[tuple[str, str], float] = field(
        default_factory=lambda: {
            ("sentiment", "FT"): 40.0,
            ("sentiment", "LoRA"): 41.0,
            ("question", "FT"): 27.0,
            ("question", "LoRA"): 10.0,
        }
    )
    noise: float = 0.1
    seeds: int = 6


def tags_of(group: str, variant: str) -> dict[str, str]:
    """What the shipped study declares of a group and a variant of these names."""
    return {"part": group.partition(",")[0], "method": variant.partition(" (")[0]}


def experiment(group: str, variant: str, seed: int, **changes: Any) -> Experiment:
    """One run; T is `epochs`."""
    task = changes.pop("task", "sentiment")
    return Experiment(
        **{
            "group": group,
            "variant": variant,
            "tags": tags_of(group, variant),
            "mechanism": "paczero",
            "attack": "loss",
            "corpus": "movie_reviews",
            "model": "prompted",
            "model_parameters": {"task": task, "base": "tiny"},
            "members": 100,
            "batch_size": 100,
            "epochs": 100,
            "learning_rate": 1e-2,
            "optimizer": "sgd",
            "seed": seed,
            **changes,
        }
    )


def runs(world: World, seed: int) -> Iterator[tuple[Experiment, float]]:
    """Every run of a seed with its level."""
    nats = {"currency": SUBSET}
    for task in ("sentiment", "question"):
        for adapter in ("full", "lora"):
            shift = 0.0 if task == "sentiment" else -25.0 - (5.0 if adapter == "lora" else 0.0)
            name = "headline" if adapter == "full" else "headline, LoRA"
            suffix = "" if adapter == "full" else " (LoRA)"
            own: dict[str, Any] = {"task": task, "adapter": adapter}
            for budget in (0.33, 0.68):
                level = world.plateau(budget) + shift
                yield experiment(name, f"PACZero-MI{suffix}", seed, epsilon=budget, **nats, **own), level
            yield experiment(name, f"PACZero-ZPL{suffix}", seed, **own), world.zpl + shift
            yield experiment("baselines", "MeZO", seed, mechanism="mezo", **own), world.mezo + shift
        for epsilon in (2.0, 6.0):
            dp = {"mechanism": "dpzero", "epsilon": epsilon, "delta": 1e-5, "task": task}
            yield experiment("baselines", "DPZero", seed, **dp), 80.0 if task == "sentiment" else 70.0
    own = {"epsilon": 0.33, "mechanism_parameters": {"variant": "hybrid"}, **nats}
    yield experiment("hybrid", "PACZero hybrid", seed, **own), world.zpl
    for adapter in ("full", "lora"):
        for budget in BUDGETS:
            level = world.plateau(budget)
            own = {"epsilon": budget, "adapter": adapter, **nats}
            yield experiment("plateau", "PACZero-MI", seed, **own), level
        for count in (1, 4, 16):
            variant = "PACZero-MI" if count == 1 else f"PACZero-MI, K = {count}"
            own = {"epsilon": 0.33, "adapter": adapter, **nats}
            yield experiment("aggregation", variant, seed, **own), world.plateau(0.33)
    for epsilon in EPSILONS:
        dp = {"mechanism": "dpzero", "epsilon": epsilon, "delta": 1e-5}
        yield experiment("cliff", "DPZero", seed, **dp), world.cliff(epsilon)
        yield experiment("cliff", "DP-AggZO", seed, **dp), world.cliff(2.0 * epsilon)
    for steps in RUNGS:
        yield experiment("drift", "PACZero-ZPL, last", seed, epochs=steps), world.drift(steps)
    for steps in (100, 200):
        for name in SURROGATES:
            own = {"adapter": "lora", "epochs": steps, "mechanism": "zo_surrogate"}
            late = 0.0 if steps == 200 or "quant" not in name else -6.0
            yield experiment("decomposition", name, seed, **own), world.surrogates[name] + late
    for factor in (0.5, 1.0, 5.0):
        yield experiment("learning rates", "PACZero-ZPL", seed, learning_rate=factor * 1e-2), 60.0


def outcome(one: Experiment, level: float, world: World, generator: np.random.Generator) -> Outcome:
    """A finished run."""
    task = str(one.model_parameters["task"])
    track = "LoRA" if one.adapter == "lora" else "FT"
    seed_effect = float(np.random.default_rng(one.seed).normal(scale=0.5))
    score = (level + seed_effect + world.noise * float(generator.normal())) / 100.0
    metrics = {"test_accuracy_after" if task == "sentiment" else "test_f1_after": score, "roc_auc": 0.5}
    metrics["test_accuracy_before" if task == "sentiment" else "test_f1_before"] = 0.5
    traces: dict[str, tuple[float, ...]] = {}
    claim: dict[str, Any] = {"guarantee": {"currency": "none"}}
    if "PACZero" in one.variant:
        rate = (world.unanimity[task, track] + 0.3 * float(generator.normal())) / 100.0
        nats = one.epsilon or 0.0
        used = np.linspace(0.0, nats, one.epochs)
        metrics |= {"unanimity_rate": rate, "nats_used": float(used[-1])}
        traces = {
            "unanimous": tuple((generator.random(one.epochs) < rate).astype(float)),
            "budget_used": tuple(used),
            "posterior_entropy": tuple(math.log(128.0) - used),
            "dev_score": tuple(np.where(np.arange(one.epochs) % 50 == 49, score, np.nan)),
        }
        claim = {"guarantee": {"currency": "mutual information", "nats": nats, "secret": "candidate-subset"}}
    elif one.epsilon is not None:
        claim = {"guarantee": {"currency": "(epsilon, delta)-DP", "epsilon": one.epsilon, "delta": 1e-5}}
    return Outcome(
        experiment=one,
        key=f"{one.group} {one.variant} {one.epsilon} {one.adapter} {one.epochs} {one.seed} {task}",
        status=Status.DONE,
        metrics=metrics,
        scores=tuple(generator.normal(size=2 * one.members)),
        included=tuple(generator.permutation(2 * one.members) < one.members),
        claim=claim,
        training_losses=tuple(np.linspace(0.7, 0.3 + 0.01 * float(generator.random()), one.epochs)),
        traces=traces,
    )


def games(world: World, generator: np.random.Generator) -> Iterator[Outcome]:
    """Games inside the claim, and attacks outside it."""
    for variant, nats, success in (("PACZero-MI", 0.33, 0.62), ("PACZero-ZPL", None, 0.5)):
        base = experiment("inside the claim", variant, 0, epsilon=nats, attack="subset_posterior")
        own = replace(base, currency=SUBSET if nats else Currency.DP)
        made = outcome(own, 88.0, world, generator)
        shares = {
            "attack_success": success,
            "attack_success_lower": success - 0.02,
            "attack_success_upper": success + 0.02,
            "attack_bits_success": 0.5 + 0.8 * (success - 0.5),
            "attack_charged_nats": 0.9 * (nats or 0.0),
            "attack_information": 0.8 * (nats or 0.0),
            "attack_information_lower": 0.7 * (nats or 0.0),
            "attack_information_upper": 0.85 * (nats or 0.0),
            "attack_log_score": (nats or 0.0) - 0.3,
            "attack_log_score_lower": (nats or 0.0) - 0.5,
            "attack_log_score_upper": (nats or 0.0) - 0.1,
        }
        yield replace(made, metrics={**made.metrics, **shares})
    for seed in range(3):
        for attack in ("loss", "lira"):
            for variant, epsilon in (
                ("PACZero-MI", 0.33),
                ("PACZero-ZPL", None),
                ("DPZero", 2.0),
                ("MeZO", None),
            ):
                base = experiment("outside the claim", variant, seed, epsilon=epsilon, attack=attack)
                yield outcome(base, 88.0, world, generator)


def results(world: World | None = None) -> StudyResults:
    """A whole study in a world."""
    world = World() if world is None else world
    generator = np.random.default_rng(5)
    outcomes = [
        outcome(one, level, world, generator)
        for seed in range(world.seeds)
        for one, level in runs(world, seed)
    ]
    outcomes += games(world, generator)
    study = Study(
        name="paczero",
        title="PACZero",
        profile="quick",
        replication="seed",
        experiments=tuple(one.experiment for one in outcomes),
        source_sha256="0" * 64,
        paper="paczero",
        report="paczero",
        notes=("A note of the study.",),
    )
    return StudyResults(study=study, outcomes=tuple(outcomes))
