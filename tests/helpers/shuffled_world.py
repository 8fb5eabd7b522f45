"""Made-up results of a Shuffled DPSGD study whose truth is known, for the tests of its report.

A score is a level of its variant and setting, plus an effect of the seed that all methods share, plus a
little noise. `World` says which levels hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.core.keys import JSON
from workbench.studies.experiments import Experiment, Outcome, Status, Study, StudyResults

EPSILONS = (0.1, 0.5, 1.0)
SHUFFLED_VARIANTS = ("Shuffled DPSGD", "Shuffled DPSGD, c' = c", "Shuffled DPSGD, left alone at sigma_0")
SAME_SIGMA = "DPSGD at the same sigma"
TASKS = ("outcome", "pairs", "inference", "answers")
UNITS = ("mlp 0", "attention 0")
SIGMA = 0.3
"""Noise multiplier of Theorem 6 in the world."""

Noise = np.random.Generator


@dataclass(frozen=True)
class World:
    """The truth.

    Attributes:
        shuffled: Score of every shuffled variant, and of DP-SGD at the same sigma, by epsilon.
        baseline: Score of Ghost and DPSGD by epsilon.
        non_private: Score without privacy.
        behind: Points that the large generating model lies nearer to `non_private` than the others.
        apart: What shuffling changes in a twin's accuracy, percent.
        overhead: Share of the steps that shuffling takes.
        refuted: Claimed epsilons that the audit refutes.
        noise: SD of a score within a seed, points.
        seeds: How many.
    """

    shuffled: Mapping[float, float] = field(default_factory=lambda: {0.1: 80.0, 0.5: 80.1, 1.0: 80.2})
    baseline: Mapping[float, float] = field(default_factory=lambda: {0.1: 10.0, 0.5: 55.0, 1.0: 70.0})
    non_private: float = 82.0
    behind: float = 1.5
    apart: float = 0.0
    overhead: float = 0.01
    refuted: tuple[float, ...] = ()
    noise: float = 0.1
    seeds: int = 5


SWEEPS = {"audit, rates": "audit by rate", "audit, noise": "audit by noise"}


def tags_of(group: str, variant: str, corpus: str) -> dict[str, str]:
    """What the shipped study declares of a group and a variant of these names."""
    of_digits = {"dataset": "CIFAR-100"} if corpus == "digits" and group in ("vision", "invariance") else {}
    part = SWEEPS.get(group, group.partition(",")[0])
    return {"part": part, "method": variant.partition(" (")[0], **of_digits}


def experiment(group: str, variant: str, seed: int, **changes: Any) -> Experiment:
    """One run of digits."""
    return Experiment(
        **{
            "group": group,
            "tags": tags_of(group, variant, changes.get("corpus", "digits")),
            "variant": variant,
            "mechanism": "shuffled_dp_sgd",
            "attack": "loss",
            "corpus": "digits",
            "model": "digits_vit",
            "members": 400,
            "batch_size": 40,
            "epochs": 4,
            "learning_rate": 2e-3,
            "seed": seed,
            **changes,
        }
    )


def subjects(group: str) -> Iterator[dict[str, Any]]:
    """Model and records of each row of a group's table."""
    if group == "vision":
        yield {}
    elif group == "classification":
        for base in ("bert_base", "roberta_base"):
            for task in TASKS:
                yield {
                    "model": "text_classifier",
                    "model_parameters": {"base": base, "task": task},
                    "corpus": "clinical_tasks",
                    "corpus_parameters": {"task": task},
                }
    else:
        for base in ("gpt2_base", "gpt2_large_base"):
            for form in ("slots", "triples"):
                yield {
                    "model": "data_to_text",
                    "model_parameters": {"base": base},
                    "corpus": "clinical_records",
                    "corpus_parameters": {"form": form},
                }


def utility(world: World, seed: int) -> Iterator[tuple[Experiment, float]]:
    """Every run of Tables III to V of a seed, with its level."""
    for group in ("vision", "classification", "generation"):
        for own in subjects(group):
            near = world.behind if "gpt2_large_base" in str(own) else 0.0
            yield experiment(group, "Non-private", seed, mechanism="non_private", **own), world.non_private
            for epsilon in EPSILONS:
                budget = {"epsilon": epsilon, "delta": 1e-3, **own}
                for variant in ("Ghost", "DPSGD"):
                    made = experiment(group, variant, seed, mechanism="dp_sgd", **budget)
                    yield made, world.baseline[epsilon]
                for variant in (*SHUFFLED_VARIANTS, SAME_SIGMA):
                    yield experiment(group, variant, seed, **budget), world.shuffled[epsilon] + near


def twins(world: World, seed: int) -> Iterator[tuple[Experiment, float]]:
    """Every run of Table II of a seed, with its level."""
    for own in ({}, next(subjects("classification"))):
        for variant, level in (("Non-private", 82.0), ("Twin, unshuffled", 70.0)):
            shuffled = "Non-private, shuffled" if variant == "Non-private" else "Twin, shuffled"
            budget = {} if variant == "Non-private" else {"epsilon": 1.0, "delta": 1e-3}
            yield experiment("invariance", variant, seed, **own, **budget), level
            yield experiment("invariance", shuffled, seed, **own, **budget), level + world.apart


def metrics_of(one: Experiment, score: float) -> dict[str, float]:
    """What a run's record says of it."""
    found = {"test_perplexity_after": math.exp(1.0 - score / 100.0), "roc_auc": 0.5, "accuracy": 0.5}
    if one.model == "data_to_text":
        found |= {"test_bleu_after": score, "test_meteor_after": score / 100.0}
    else:
        found["test_accuracy_after"] = score / 100.0
    if one.mechanism == "dp_sgd":
        found |= {"noise_multiplier": 2.0 / float(one.epsilon or 1.0), "l2_clip_norm": 1.0}
    elif one.epsilon is not None:
        found |= {
            "noise_multiplier": SIGMA,
            "unshuffled_noise_multiplier": 9.0,
            "least_noise_multiplier": SIGMA,
            "l2_clip_norm": 1.0,
            "batch_clip_norm": 1.0 if "c' = c" in one.variant else 4.0,
            "dimension": 50_000.0,
            "falls_back": 0.0,
            "shuffled_share": 0.0 if one.variant in (SAME_SIGMA, "Twin, unshuffled") else 0.8,
        }
    if one.variant.endswith(", shuffled"):
        found["shuffle_distance"] = 12.5
    return found


def outcome(one: Experiment, level: float, world: World, generator: Noise) -> Outcome:
    """A finished run; twins of one seed have the same luck."""
    seed_effect = float(np.random.default_rng(one.seed).normal(scale=0.5))
    luck = 0.0 if one.group == "invariance" else world.noise * float(generator.normal())
    seconds = {"training_seconds": 10.0}
    if one.variant.endswith(", shuffled"):
        share = world.overhead * (1.0 + 0.02 * float(generator.normal()))
        whole = 10.0 / (1.0 - share)
        seconds = {"training_seconds": whole, "shuffling_seconds": share * whole}
    return Outcome(
        experiment=one,
        key=f"{one.group} {one.variant} {one.epsilon} {one.corpus_parameters} {one.seed}",
        status=Status.DONE,
        metrics=metrics_of(one, level + seed_effect + luck),
        cost=seconds,
        training_losses=(1.0, 0.5),
    )


def game(view: str, where: str, lower: float, epsilon: float) -> dict[str, JSON]:
    """One judged game as a study's record has it."""
    kind = "REFUTED" if lower > epsilon else "NOT_REFUTED"
    n = 1000 if where == "one release" else 100
    return {
        "view": view,
        "where": where,
        "n": n,
        "verdict": {"kind": kind, "bound": {"lower": lower}},
        "bound": {"lower": lower, "confidence": 0.9917},
        "auc": {"estimate": 0.6, "lower": 0.5, "upper": 0.7, "confidence": 0.99},
        "details": {"as_printed": 0.7} | ({"auc (sums)": 0.55} if view == "invariant" else {}),
        "game": {},
    }


def audit_form(epsilon: float, lower: float) -> dict[str, JSON]:
    """The judged games of a run whose tidying adversary finds a bound, and the others none."""
    games = [
        game(view, where, lower if view == "tidying" else 0.0, epsilon)
        for where in ("one release", "whole run")
        for view in ("blind", "invariant", "tidying")
    ]
    kind = "REFUTED" if lower > epsilon else "NOT_REFUTED"
    steps = 40
    exact = dict.fromkeys((*UNITS, "all"), 0.9)
    form = {
        "n": 1000,
        "exact": exact,
        "placed": dict.fromkeys(UNITS, 0.99),
        "exact_by_step": {name: [0.9] for name in exact},
        "placed_by_step": {name: [0.99] for name in UNITS},
    }
    fall = np.linspace(1.0, 0.6, steps).tolist()
    run = {
        **form,
        "n": 100 * steps,
        "exact_by_step": dict.fromkeys(exact, fall),
        "placed_by_step": dict.fromkeys(UNITS, fall),
    }
    return {
        "confidence": 0.95,
        "judged_at": 0.9917,
        "claim": {},
        "verdict": {"kind": kind, "bound": {"lower": lower}},
        "games": games,
        "recovery": {"one release": form, "whole run": run},
    }


def audits(world: World) -> Iterator[Outcome]:
    """The audited runs, the control, and the sweeps."""
    own: dict[str, Any] = {"attack": "weight_tidying", "model": "digits_mlp", "delta": 1e-5}
    for epsilon in EPSILONS:
        one = experiment("audit", "Shuffled DPSGD (audited)", 0, epsilon=epsilon, **own)
        lower = 1.8 if epsilon in world.refuted else 0.05
        yield replace(outcome(one, 0.0, world, np.random.default_rng(0)), audit=audit_form(epsilon, lower))
    for epsilon in (1.0, 0.5):
        one = experiment(
            "audit, control", "DPSGD (audited)", 0, epsilon=epsilon, **{**own, "mechanism": "dp_sgd"}
        )
        yield replace(outcome(one, 0.0, world, np.random.default_rng(0)), audit=audit_form(epsilon, 0.2))
    for rate in (1.0, 4.0, 16.0):
        one = experiment(
            "audit, rates", "Shuffled DPSGD (audited)", 0, epsilon=1.0, learning_rate=rate, **own
        )
        yield swept(one, world, 1.0 / rate)
    for noise in (0.25, 0.5, 1.0):
        one = experiment("audit, noise", f"Shuffled DPSGD (noise {noise})", 0, epsilon=1.0, **own)
        made = swept(one, world, 1.0 - 0.5 * noise)
        yield replace(made, metrics={**made.metrics, "least_noise_multiplier": noise})


def swept(one: Experiment, world: World, share: float) -> Outcome:
    """A run of one game, in which a share of the permutations is found."""
    form = audit_form(1.0, 0.05)
    single = {**form["recovery"]["one release"], "exact": {"all": share}, "n": 100}
    form = {**form, "recovery": {"one release": single}}
    return replace(outcome(one, 0.0, world, np.random.default_rng(0)), audit=form)


def results(world: World | None = None) -> StudyResults:
    """A whole study in a world."""
    world = World() if world is None else world
    generator = np.random.default_rng(5)
    outcomes = [
        outcome(one, level, world, generator)
        for seed in range(world.seeds)
        for one, level in (*utility(world, seed), *twins(world, seed))
    ]
    outcomes += audits(world)
    study = Study(
        name="shuffled_dp_sgd",
        title="Shuffled DPSGD",
        profile="quick",
        replication="seed",
        experiments=tuple(one.experiment for one in outcomes),
        source_sha256="0" * 64,
        paper="shuffled_dp_sgd",
        report="shuffled_dp_sgd",
        notes=("A note of the study.",),
    )
    return StudyResults(study=study, outcomes=tuple(outcomes))
