"""Names of a PACZero study: groups, variants, tasks and tracks, and the numbers that are read of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workbench.reports.shared import paper_samples
from workbench.studies.experiments import Experiment, Outcome

HEADLINE = "headline"
BASELINES = "baselines"
PLATEAU = "plateau"
CLIFF = "cliff"
RATES = "learning rates"
CLIP = "clip"
DECOMPOSITION = "decomposition"
DRIFT = "drift"
AGGREGATION = "aggregation"
HYBRID = "hybrid"
INSIDE = "inside the claim"
OUTSIDE = "outside the claim"
GROUPS = (
    HEADLINE,
    BASELINES,
    PLATEAU,
    CLIFF,
    RATES,
    CLIP,
    DECOMPOSITION,
    DRIFT,
    AGGREGATION,
    HYBRID,
    INSIDE,
    OUTSIDE,
)
"""Groups of the study; a study of ours alone may have any of them."""

MI, ZPL = "PACZero-MI", "PACZero-ZPL"
MEZO, DPZERO, AGGZO = "MeZO", "DPZero", "DP-AggZO"
SURROGATES = ("raw_full", "quant_full", "raw_half", "quant_half", "random_sign")

FT, LORA = "FT", "LoRA"
TRACKS = (FT, LORA)

SENTIMENT, QUESTION = "sentiment", "question"
TASKS = {SENTIMENT: "SST-2", QUESTION: "SQuAD"}
"""Our tasks, and those of the paper that they stand in for."""

CHANCE = 50.0
"""Accuracy of guessing between two options, percent."""

UNIT, NOT_HERE = paper_samples.UNIT, paper_samples.NOT_HERE

SCORE, START, DEV, UNANIMITY = "score", "start", "dev", "unanimity"
"""Names of numbers that are computed: test accuracy or F1, that of the model before it is trained, best dev
score, unanimity rate; percent."""

UNTRAINED = "before training"
"""The row of the model before it is trained."""

_F1, _ACCURACY = "test_f1", "test_accuracy"


def variant_of(experiment: Experiment) -> str:
    """Its variant, without the brackets that say how it is run ("PACZero-MI (LoRA)")."""
    return experiment.variant.partition(" (")[0]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What tells the runs of a group apart but the seed; None for any.

    Attributes:
        variant: See `variant_of`.
        task: `"sentiment"`, `"question"`; empty for a model without tasks.
        track: `"FT"` or `"LoRA"`.
        epsilon: The budget's number.
        steps: T.
        learning_rate: eta.
    """

    variant: str | None = None
    task: str | None = None
    track: str | None = None
    epsilon: float | None = None
    steps: int | None = None
    learning_rate: float | None = None

    def holds(self, experiment: Experiment) -> bool:
        """Whether an experiment is one of its runs."""
        own = {
            "variant": variant_of(experiment),
            "task": task_of(experiment),
            "track": track_of(experiment),
            "epsilon": experiment.epsilon,
            "steps": experiment.steps,
            "learning_rate": experiment.learning_rate,
        }
        return all(wanted is None or own[name] == wanted for name, wanted in vars(self).items())

    def __str__(self) -> str:
        """In words."""
        parts = [
            self.variant or "",
            TASK_WORDS.get(self.task or "", self.task or ""),
            self.track or "",
            "" if self.epsilon is None else f"budget {self.epsilon:g}",
            "" if self.steps is None else f"T = {self.steps}",
            "" if self.learning_rate is None else f"rate {self.learning_rate:g}",
        ]
        return ", ".join(part for part in parts if part)


TASK_WORDS = {SENTIMENT: "sentiment", QUESTION: "questions"}


def task_of(experiment: Experiment) -> str:
    """The task of an experiment's model; empty where it has none."""
    return str(experiment.model_parameters.get("task", ""))


def track_of(experiment: Experiment) -> str:
    """`"FT"`, or `"LoRA"`."""
    return LORA if experiment.adapter == "lora" else FT


def number_of(outcome: Outcome, name: str) -> float:
    """A number of a finished outcome; NaN where it has none.

    Args:
        outcome: Of a training, or of a game.
        name: `SCORE`, `START`, `DEV` or `UNANIMITY`, in percent; else the name of a metric.
    """
    metrics = outcome.metrics
    if name in (SCORE, START):
        when = "after" if name == SCORE else "before"
        found = metrics.get(f"{_F1}_{when}", metrics.get(f"{_ACCURACY}_{when}", math.nan))
        return 100.0 * float(found)
    if name == UNANIMITY:
        return 100.0 * float(metrics.get("unanimity_rate", math.nan))
    if name == DEV:
        series = trace(outcome, "dev_score")
        known = series[np.isfinite(series)]
        return 100.0 * float(known.max()) if known.size else math.nan
    return float(metrics.get(name, math.nan))


def trace(outcome: Outcome, name: str) -> np.ndarray:
    """A series over steps, shape `(T,)`; empty where there is none."""
    return np.array(outcome.traces.get(name, ()), dtype=np.float64)
