"""Black-box membership attacks: power on models that overfit, false alarms on correct DP-SGD, and orders.

On digits an MLP and its references are trained as ensembles; on clinical texts, each with a secret id, the
tiny GPT-2 one after the other. Each seed has its own corpus sample, coins and trainings, and all attacks of a
seed see the same models. The twins are trained alike by DP-SGD, and `one_run` holds each attack's scores
against their claim. Two attacks are compared by their paired difference over seeds.

Run `python benchmarks/attacks.py` (a quarter of an hour on one core). Results go to
`benchmarks/results/attacks.json` and `attacks.md`, after each task.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from shared import machine, options, quiet, write

from workbench.accounting import ApproximateDP
from workbench.attacks.lira import record_logits
from workbench.core import registry
from workbench.estimation import auc, one_run, tpr_at_fpr
from workbench.games.membership import MembershipSeen, References
from workbench.interfaces import BoolArray, FloatArray, Plan, Record, Subject
from workbench.training.ensemble.together import train_together
from workbench.training.loop import GradientMechanism
from workbench.training.shadows import shadow_memberships

DELTA, CONFIDENCE, FPR = 1e-5, 0.95, 0.01
Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, on what, with how many references; `epsilon` is the twins' claim."""

    name: str
    corpus: str
    parameters: Mapping[str, Any]
    candidates: int
    held_out: int
    model: str
    steps: int
    sampling_probability: float
    learning_rate: float
    optimizer: str
    references: int
    epsilon: float


TASKS = (
    Task(
        name="digits",
        corpus="digits",
        parameters={},
        candidates=400,
        held_out=400,
        model="digits_mlp",
        steps=400,
        sampling_probability=0.25,
        learning_rate=0.5,
        optimizer="sgd",
        references=64,
        epsilon=4.0,
    ),
    Task(
        name="clinical",
        corpus="clinical",
        parameters={"attributes": "short"},
        candidates=64,
        held_out=64,
        model="tiny_gpt2",
        steps=25,
        sampling_probability=0.12,
        learning_rate=3e-3,
        optimizer="adamw",
        references=2,
        epsilon=4.0,
    ),
)

ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "loss": ("loss", {}),
    "LiRA, 4": ("lira", {"shadows": 4}),
    "LiRA, 8": ("lira", {"shadows": 8}),
    "LiRA, 64": ("lira", {"shadows": 64}),
    "LiRA, 8, nine queries": ("lira", {"shadows": 8, "queries": 9}),
    "RMIA, 1": ("rmia", {"shadows": 1}),
    "RMIA, 2": ("rmia", {"shadows": 2}),
    "RMIA, 4": ("rmia", {"shadows": 4}),
    "RMIA, 64": ("rmia", {"shadows": 64}),
    "InfoRMIA, 4": ("rmia", {"shadows": 4, "score": "info"}),
    "quantile regression": ("quantile_regression", {}),
    "quantile regression, cross-fitted": ("quantile_regression", {"fit": "candidates"}),
    "gap (one label)": ("label_only", {"shifts": 1, "noisy_copies": 0}),
    "label only": ("label_only", {}),
}
IMAGES_ONLY = {"gap (one label)"}
"""Attacks that ask a text the same as another one."""

ORDERS = (
    ("digits", "RMIA, 2", "LiRA, 2", "RMIA beats LiRA with two references (Zarifzadeh et al. 2024)"),
    ("digits", "RMIA, 4", "LiRA, 4", "RMIA beats LiRA with four references (Zarifzadeh et al. 2024)"),
    ("digits", "RMIA, 1", "loss", "one reference is better than none (Zarifzadeh et al. 2024)"),
    ("digits", "RMIA, 64", "LiRA, 64", "RMIA beats LiRA with many references (Zarifzadeh et al. 2024)"),
    ("digits", "LiRA, 64", "LiRA, 8", "more shadows are better for LiRA (Carlini et al. 2022)"),
    ("digits", "LiRA, 8", "LiRA, 4", "more shadows are better for LiRA (Carlini et al. 2022)"),
    ("digits", "LiRA, 64", "loss", "LiRA beats the loss (Carlini et al. 2022)"),
    ("digits", "LiRA, 8, nine queries", "LiRA, 8", "several queries help LiRA (Carlini et al. 2022)"),
    ("digits", "quantile regression", "loss", "quantile regression beats the loss (Bertran et al. 2023)"),
    ("digits", "label only", "gap (one label)", "changed copies help (Choquette-Choo et al. 2021)"),
    ("digits", "label only", "loss", "labels tell as much as the loss (Choquette-Choo et al. 2021)"),
    ("clinical", "RMIA, 2", "LiRA, 2", "RMIA beats LiRA with two references (Zarifzadeh et al. 2024)"),
    ("clinical", "RMIA, 1", "loss", "one reference is better than none (Zarifzadeh et al. 2024)"),
    ("clinical", "quantile regression", "loss", "quantile regression beats the loss (Bertran et al. 2023)"),
    ("clinical", "label only", "loss", "labels tell as much as the loss (Choquette-Choo et al. 2021)"),
)


@dataclass(frozen=True, kw_only=True)
class Played:
    """Candidates of one training, their labels, and what the adversary has."""

    records: tuple[Record, ...]
    population: tuple[Record, ...]
    members: BoolArray
    included: BoolArray
    subjects: list[Subject]

    def seen(self, references: int) -> MembershipSeen:
        """The game with the first so many references."""
        return MembershipSeen(
            subject=self.subjects[0],
            records=self.records,
            population=self.population,
            references=References(
                subjects=tuple(self.subjects[1 : references + 1]), included=self.included[:references]
            ),
        )


def trained(task: Task, *, private: bool, seed: int) -> Played:
    """Target and references of one seed, by a mechanism with the claim or without privacy."""
    corpus = registry.create(
        "corpus",
        task.corpus,
        size=task.candidates,
        seed=seed,
        held_out=task.held_out,
        public=0,
        **task.parameters,
    )
    coins, insertions, shadows = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
    replaced = registry.create("attack", "loss").prepare(corpus, insertions).replaced
    records = replaced or corpus.records
    members = coins.random(len(records)) < 0.5
    included = shadow_memberships(len(records), task.references, shadows)
    plans = [
        Plan(
            records=tuple(record for record, used in zip(records, row, strict=True) if used),
            held_out=(),
            model=task.model,
            steps=task.steps,
            sampling_probability=task.sampling_probability,
            learning_rate=task.learning_rate,
            optimizer=task.optimizer,
            budget=ApproximateDP(epsilon=task.epsilon, delta=DELTA) if private else None,
            public_size=len(records) // 2,
            seed=1000 * seed + run,
        )
        for run, row in enumerate([members, *included])
    ]
    made: GradientMechanism = registry.create("mechanism", "dp_sgd" if private else "non_private")
    mechanism = made.without_quality()
    subjects: list[Any] = (
        train_together(mechanism, plans) if task.corpus == "digits" else [mechanism.train(p) for p in plans]
    )
    return Played(
        records=records, population=corpus.held_out, members=members, included=included, subjects=subjects
    )


def lira_with_two(played: Played) -> FloatArray:
    """LiRA's order with one reference in and one out, whose common variance changes no rank."""
    target, *logits = (record_logits(subject, played.records) for subject in played.subjects[:3])
    shadows, inside = np.array(logits), played.included[:2]
    sides = [np.where(side, shadows, 0).sum(0) / np.maximum(side.sum(0), 1) for side in (inside, ~inside)]
    both = inside.any(axis=0) & (~inside).any(axis=0)
    gap = float(np.mean((sides[0] - sides[1])[both]))
    mean_in = np.where(inside.any(axis=0), sides[0], sides[1] + gap)
    mean_out = np.where((~inside).any(axis=0), sides[1], sides[0] - gap)
    ratio: FloatArray = (target - mean_out) ** 2 - (target - mean_in) ** 2
    return ratio


def scorers(task: Task) -> dict[str, Callable[[Played, int], FloatArray]]:
    """The attacks of a task by name; each scores a training, with a seed of its own."""
    found: dict[str, Callable[[Played, int], FloatArray]] = {
        "LiRA, 2": lambda played, _: lira_with_two(played)
    }
    for name, (attack, parameters) in ATTACKS.items():
        made = registry.create("attack", attack, **parameters)
        if made.references_needed > task.references or (task.name != "digits" and name in IMAGES_ONLY):
            continue
        found[name] = lambda played, seed, made=made: (  # type: ignore[misc]
            made.score(played.seen(made.references_needed), np.random.default_rng(seed)).values
        )
    return found


def figures(task: Task, *, private: bool, seeds: int) -> dict[str, list[Figures]]:
    """Area, true-positive rate at 1 % and bound of each attack and seed."""
    found: dict[str, list[Figures]] = {name: [] for name in scorers(task)}
    for seed in range(seeds):
        started = time.perf_counter()
        played = trained(task, private=private, seed=seed)
        for name, score in scorers(task).items():
            scores, members = score(played, seed), played.members
            found[name].append(
                {
                    "auc": auc(scores, members, confidence=CONFIDENCE).estimate,
                    "tpr": tpr_at_fpr(scores, members, fpr=FPR, confidence=CONFIDENCE).estimate,
                    "lower": one_run(scores, members, delta=DELTA, confidence=CONFIDENCE).lower,
                }
            )
        print(task.name, private, seed, f"{time.perf_counter() - started:.0f} s", flush=True)
    return found


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean over seeds, and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def row(
    name: str, open_: list[dict[str, float]], kept: list[dict[str, float]], claim: float
) -> dict[str, Any]:
    """One attack on the models without privacy, and on their twins."""
    area, error = mean_and_error([each["auc"] for each in open_])
    return {
        "attack": name,
        "auc": area,
        "auc_error": error,
        "tpr": mean_and_error([each["tpr"] for each in open_])[0],
        "lower": float(np.median([each["lower"] for each in open_])),
        "refuted": sum(each["lower"] > claim for each in open_),
        "twin_auc": mean_and_error([each["auc"] for each in kept])[0],
        "twin_largest": max(each["lower"] for each in kept),
        "alarms": sum(each["lower"] > claim for each in kept),
        "seeds": {"without_privacy": open_, "twins": kept},
    }


def orders(found: Mapping[str, Mapping[str, list[Figures]]]) -> list[dict[str, Any]]:
    """What the papers found, here: the paired difference of the areas, and whether it clears two errors."""
    rows = []
    for task, first, second, words in (order for order in ORDERS if order[0] in found):
        pairs = zip(found[task][first], found[task][second], strict=True)
        gains = {key: [] for key in ("auc", "tpr")}  # type: dict[str, list[float]]
        for ours, theirs in pairs:
            for key, values in gains.items():
                values.append(ours[key] - theirs[key])
        gain, error = mean_and_error(gains["auc"])
        says = "yes" if gain > 2 * error else "no, the reverse" if gain < -2 * error else "not told apart"
        rows.append(
            {
                "task": task,
                "words": words,
                "first": first,
                "second": second,
                "gain": gain,
                "error": error,
                "tpr_gain": mean_and_error(gains["tpr"])[0],
                "says": says,
            }
        )
    return rows


def main() -> None:
    """Command line."""
    parser = options(__doc__)
    parser.add_argument("--digits-seeds", type=int, default=10, help="seeds of the digits")
    parser.add_argument("--text-seeds", type=int, default=10, help="seeds of the clinical texts")
    given = parser.parse_args()
    quiet(given.threads)
    seeds = {"digits": given.digits_seeds, "clinical": given.text_seeds}
    started, open_, tasks = time.perf_counter(), {}, []
    for task in TASKS:
        open_[task.name] = figures(task, private=False, seeds=seeds[task.name])
        twins = figures(task, private=True, seeds=seeds[task.name])
        rows = [row(name, each, twins[name], task.epsilon) for name, each in open_[task.name].items()]
        tasks.append({**vars(task), "seeds": seeds[task.name], "rows": rows})
        report = {
            "machine": machine(("torch", "numpy")),
            "minutes": (time.perf_counter() - started) / 60,
            "delta": DELTA,
            "confidence": CONFIDENCE,
            "tasks": tasks,
            "orders": orders(open_),
        }
        write(given.out, "attacks", report)


if __name__ == "__main__":
    main()
