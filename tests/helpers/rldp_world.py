"""Made-up results of an RLDP study whose truth is known, for the tests of its report.

A perplexity is a level of its variant and budget, times an effect of the seed that all methods share, times a
little noise. `World` says which levels hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.interfaces import Sampling
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults

BASELINES = ("Static", "AdaClip", "AutoClip", "DC-SGD-P", "DC-SGD-E", "GeoClip", "PSAC", "DP-LoRA")
RLDP = ("RLDP-H", "RLDP-L")
CONTROLS = ("RLDP, radii at rest",)
INTERVALS = (4, 8, 28)
EPOCHS, MEMBERS, BATCH = 10, 160, 16
STEPS = EPOCHS * MEMBERS // BATCH

Noise = np.random.Generator


@dataclass(frozen=True)
class World:
    """The truth.

    Attributes:
        drop: Percent by which RLDP's perplexity is below the baselines', at epsilon 8; twice that at 0.5.
        matches_at: Share of the steps at which RLDP reaches the baselines' last level; above 1 for never.
        area: AUC of RLDP; the baselines' is 0.5.
        similarity: RLDP-H's 1-gram similarity; the baselines' is 0.145.
        valid: Percent of RLDP's continuations that are valid; the baselines' is 95.
        overspends: What RLDP's ledger has at the end, over the budget.
        rise: Of sigma in the first tenth of the steps.
        worse_often: Percent by which the shortest interval is worse than the longest.
        noise: SD of a perplexity within a seed, percent.
        seeds: How many.
        places: Groups of the tables, and the models that are trained there.
        epsilons: Budgets of these groups.
    """

    drop: float = 5.0
    matches_at: float = 0.2
    area: float = 0.5
    similarity: float = 0.13
    valid: float = 95.0
    overspends: float = 0.0
    rise: float = 0.1
    worse_often: float = 10.0
    noise: float = 0.2
    seeds: int = 6
    places: tuple[tuple[str, str], ...] = (("gpt2", "gpt2_base"), ("llama-1b", "llama_base"))
    epsilons: tuple[float, ...] = (0.5, 8.0)


STANDS_FOR = {"gpt2": "GPT2", "llama-1b": "Llama-1B", "llama-3b": "Llama-3B", "mistral-7b": "Mistral-7B"}


def tags_of(group: str) -> dict[str, str]:
    """What the shipped study declares of a group of this name."""
    if group in STANDS_FOR:
        return {"part": "models", "stands_for": STANDS_FOR[group]}
    return {"part": "ablation", "knob": group.partition(", ")[2]} if group.startswith("ablation") else {}


def experiment(group: str, variant: str, seed: int, **changes: Any) -> Experiment:
    """One run of narratives."""
    return Experiment(
        **{
            "group": group,
            "tags": tags_of(group),
            "variant": variant,
            "mechanism": "rldp" if variant in RLDP else "dp_sgd",
            "attack": "canary_extraction",
            "corpus": "clinical",
            "model": "gpt2_base",
            "members": MEMBERS,
            "batch_size": BATCH,
            "epochs": EPOCHS,
            "learning_rate": 5e-4,
            "seed": seed,
            "adapter": "lora",
            "lora_rank": 8,
            "delta": 1e-5,
            **changes,
        }
    )


def runs(world: World, seed: int) -> Iterator[Experiment]:
    """Every experiment of a seed."""
    for group, model in world.places:
        yield experiment(group, "Non-private", seed, model=model, mechanism="non_private")
        for epsilon in world.epsilons:
            for variant in (*RLDP, *BASELINES, *CONTROLS):
                yield experiment(group, variant, seed, model=model, epsilon=epsilon)
    for interval in INTERVALS:
        knob = {"mechanism_parameters": {"decision_interval": interval}}
        yield experiment("ablation, interval", "RLDP", seed, epsilon=8.0, mechanism="rldp", **knob)
    for variant in ("Non-private", "DP-SGD, epsilon 1"):
        for count in (1, 10, 100):
            own = {"attack_parameters": {"insertions": count}, "members": 1600, "batch_size": 160}
            yield experiment("insertions", variant, seed, mechanism="non_private", **own)
    for variant in ("RLDP-H", "Static"):
        yield experiment("sampling", variant, seed, epsilon=8.0, sampling=Sampling.SHUFFLED)


def level(one: Experiment, world: World) -> float:
    """The true perplexity at the end."""
    if one.variant == "Non-private" or one.group == "insertions":
        return 1.5
    worse = 1.1 if one.epsilon == 0.5 else 1.0
    if one.variant in (*RLDP, "RLDP"):
        often = one.mechanism_parameters.get("decision_interval") == INTERVALS[0]
        drop = world.drop * (2.0 if one.epsilon == 0.5 else 1.0)
        return 2.0 * worse * (1.0 - drop / 100.0) * (1.0 + (world.worse_often / 100.0 if often else 0.0))
    return 2.0 * worse


def curve(last: float, bar: float, share: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Evaluations every tenth of the run that pass a bar at a share of it, and end at the last."""
    steps = tuple(float(step) for step in range(0, STEPS + 1, STEPS // 10))
    values = [last if step == STEPS else bar * (0.999 if step >= share * STEPS else 1.3) for step in steps]
    return steps, tuple(values)


def metrics_of(one: Experiment, world: World, noise: Noise) -> dict[str, float]:
    """What a run's record says of it, but its perplexity."""
    ours = one.variant in (*RLDP, "RLDP")
    found = {
        "roc_auc": (world.area if ours else 0.5) + 0.002 * float(noise.normal()),
        "attack_generated": 4000.0,
        "attack_valid": 40.0 * ((world.valid if ours else 95.0) + 0.2 * float(noise.normal())),
        **extraction(one, world, noise),
    }
    if ours and one.epsilon is not None:
        found |= {
            "ledger_epsilon": one.epsilon + world.overspends - 0.01,
            "certified_epsilon_one_adapter": 1.2 * one.epsilon,
            "certified_epsilon_joint": 4.0 * one.epsilon,
        }
    elif one.epsilon is not None:
        found["noise_multiplier"] = 1.5
    return found


def extraction(one: Experiment, world: World, noise: Noise) -> dict[str, float]:
    """What was extracted: something from ten insertions on without privacy, nothing elsewhere."""
    count = int(one.attack_parameters.get("insertions", 1))
    told = one.group == "insertions" and one.variant == "Non-private" and count >= 10
    chance = {1: 0.145, 2: 0.0037, 3: 9.1e-5, 4: 2.2e-6}
    found = {
        "attack_exposure_mean": (8.0 if told else 1.44) + 0.2 * float(noise.normal()),
        "attack_chance_exposure": 1.44,
        "attack_chance_exposure_low": 0.8,
        "attack_chance_exposure_high": 2.3,
        "attack_chance_exact_matches": 1e-9,
        "attack_exact_matches": 300.0 if told else 0.0,
        "attack_secrets_recovered": 8.0 if told else 0.0,
        "attack_prefix_matches": 10.0 if told else 2.0 + float(noise.integers(2)),
        "attack_chance_prefix": 2.4,
        "attack_secrets_memorised": 8.0 if told else 0.0,
        "attack_memorised_p_value": 1e-4 if told else float(noise.uniform(0.1, 1.0)),
        "attack_memorised": float(told),
    }
    for n, expected in chance.items():
        lower = world.similarity / 0.145 if one.variant == "RLDP-H" else 1.0
        found |= {
            f"attack_jaccard_{n}": expected * (5.0 if told else lower) * (1.0 + 0.01 * float(noise.normal())),
            f"attack_jaccard_{n}_p_value": 1e-4 if told else 0.6,
            f"attack_chance_jaccard_{n}": expected,
            f"attack_chance_jaccard_{n}_low": 0.9 * expected,
            f"attack_chance_jaccard_{n}_high": 1.1 * expected,
        }
    return found


def traces_of(one: Experiment, world: World, last: float, bar: float) -> dict[str, tuple[float, ...]]:
    """What a run did over its steps."""
    share = world.matches_at if one.variant in RLDP else 1.0
    steps, values = curve(last, bar if one.variant in RLDP else last, share)
    found = {"evaluation_steps": steps, "evaluation_perplexity": values}
    if one.variant in RLDP:
        wiggle = 1.0 + 0.01 * (one.seed % 3)
        tenth = STEPS // 10
        sigma = [0.5] * 5 + [0.5 + wiggle * world.rise] * (tenth - 5)
        sigma += np.linspace(sigma[-1], 0.9 * sigma[-1], STEPS - tenth).tolist()
        radii = [0.2] * 5 + [0.4 * wiggle] * (STEPS - 5)
        found |= {"noise_multiplier": tuple(sigma), "l2_clip_norm": tuple(radii)}
    return found


def outcome(one: Experiment, world: World, noise: Noise) -> Outcome:
    """A finished run."""
    luck = math.exp(
        0.02 * float(np.random.default_rng(one.seed).normal()) + world.noise / 100.0 * float(noise.normal())
    )
    last = level(one, world) * luck
    bar = 2.0 * (1.1 if one.epsilon == 0.5 else 1.0)
    bar *= 0.99 * math.exp(0.02 * float(np.random.default_rng(one.seed).normal()))
    scores = (-0.6 + 0.05 * noise.normal(size=8)).tolist()
    return Outcome(
        experiment=one,
        key=f"{one.group} {one.variant} {one.epsilon} {dict(one.mechanism_parameters)} "
        f"{dict(one.attack_parameters)} {one.seed}",
        status=Status.DONE,
        metrics=metrics_of(one, world, noise),
        scores=tuple(scores),
        included=(True, False) * 4,
        claim={"about": "replace-one" if one.variant in RLDP else "add-remove"},
        traces=traces_of(one, world, last, bar),
    )


def results(world: World | None = None) -> StudyResults:
    """A whole study in a world."""
    world = World() if world is None else world
    noise = np.random.default_rng(7)
    outcomes = [outcome(one, world, noise) for seed in range(world.seeds) for one in runs(world, seed)]
    study = Study(
        name="rldp",
        title="RLDP",
        profile="quick",
        replication="seed",
        experiments=tuple(one.experiment for one in outcomes),
        source_sha256="0" * 64,
        paper="rldp",
        report="rldp",
        notes=("A note of the study.",),
    )
    return StudyResults(study=study, outcomes=tuple(outcomes))
