"""Names of an RLDP study: groups, variants, what stands in for what, and the numbers of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workbench.reports.shared.paper_samples import group_of
from workbench.studies.experiments import Experiment, Outcome

PAPER_MODELS = {"gpt2": "GPT2", "llama-1b": "Llama-1B", "llama-3b": "Llama-3B", "mistral-7b": "Mistral-7B"}
"""Groups of the tables, and the paper's models in whose places they stand."""

ABLATION, INSERTIONS, SAMPLING = "ablation", "insertions", "sampling"
GROUPS = (*PAPER_MODELS, ABLATION, INSERTIONS, SAMPLING)
"""Groups of the study; a study of ours alone may have any of them."""

RLDP = "RLDP"
OURS = ("RLDP-H", "RLDP-L")
DC_SGD = "DC-SGD"
BASELINES = ("Static", "AdaClip", "AutoClip", "DC-SGD-P", "DC-SGD-E", "GeoClip", "PSAC", "DP-LoRA")
NON_PRIVATE = "Non-private"
METHODS = (*OURS, *BASELINES)
"""Variants of ours; the paper's tables have one DC-SGD."""

PARTS = {RLDP: OURS, DC_SGD: ("DC-SGD-P", "DC-SGD-E")}
"""Names that stand for the mean of several variants."""

NGRAMS = (1, 2, 3, 4)

FINAL, AUC, LOG_PROB, PERPLEXITY = "final perplexity", "roc_auc", "log-prob", "perplexity"
"""Held-out perplexity at the end of training; of the attacked records: AUC, mean log-likelihood of a token
(nats), and mean of their perplexities."""

VALID, GENERATED, VALID_SHARE = "attack_valid", "attack_generated", "share of valid continuations"
EXPOSURE, CHANCE_EXPOSURE = "attack_exposure_mean", "attack_chance_exposure"
EXACT, RECOVERED = "attack_exact_matches", "attack_secrets_recovered"
PREFIX, CHANCE_PREFIX = "attack_prefix_matches", "attack_chance_prefix"
MEMORISED, MEMORISED_P = "attack_memorised", "attack_memorised_p_value"
SECRETS_MEMORISED, PRESENTATIONS = "attack_secrets_memorised", "attack_presentations"
LEDGER, ONE_ADAPTER, JOINT = "ledger_epsilon", "certified_epsilon_one_adapter", "certified_epsilon_joint"

STEPS, CURVE = "evaluation_steps", "evaluation_perplexity"
NOISE, RADIUS = "noise_multiplier", "l2_clip_norm"
"""Traces of a run."""

KNOBS = {"interval": "decision_interval", "batch": "sac_batch_size", "updates": "sac_updates"}
"""What varies in an ablation, by what its group says after the comma: parameters of the mechanism."""


def jaccard(n: int) -> str:
    """The metric of n-gram similarities."""
    return f"attack_jaccard_{n}"


def chance_jaccard(n: int) -> str:
    """The metric of what chance gives there."""
    return f"attack_chance_jaccard_{n}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What tells the runs of a group apart but the seed; None for any.

    Attributes:
        variant: Of the study, or a name of `PARTS`.
        epsilon: The budget's number.
        part: What the group's name says after the comma.
        knob: A parameter of the mechanism, and its value.
        insertions: How often each secret is planted.
    """

    variant: str | None = None
    epsilon: float | None = None
    part: str | None = None
    knob: tuple[str, float] | None = None
    insertions: int | None = None

    def holds(self, experiment: Experiment) -> bool:
        """Whether an experiment is one of its runs."""
        return (
            (self.variant is None or variant_of(experiment) in PARTS.get(self.variant, (self.variant,)))
            and (self.epsilon is None or self.epsilon == experiment.epsilon)
            and (self.part is None or self.part == part_of(experiment))
            and (self.knob is None or experiment.mechanism_parameters.get(self.knob[0]) == self.knob[1])
            and (self.insertions is None or self.insertions == insertions_of(experiment))
        )

    def __str__(self) -> str:
        """In words."""
        return ", ".join(
            part
            for part in (
                self.variant,
                "" if self.epsilon is None else f"epsilon {self.epsilon:g}",
                self.part,
                "" if self.knob is None else f"{self.knob[0]} {self.knob[1]:g}",
                "" if self.insertions is None else f"{self.insertions} insertions",
            )
            if part
        )


def variant_of(experiment: Experiment) -> str:
    """Its variant, without the brackets that say what is done with it."""
    return experiment.variant.partition(" (")[0]


def part_of(experiment: Experiment) -> str:
    """What its group's name says after the comma."""
    return experiment.group.partition(",")[2].strip()


def insertions_of(experiment: Experiment) -> Any:
    """How often each secret is planted; None where the study does not say."""
    return experiment.attack_parameters.get("insertions")


def model_name(experiment: Experiment) -> str:
    """What is trained: the base of a model that is built on one, else the model."""
    return str(experiment.model_parameters.get("base", experiment.model))


def group_of_model(model: str) -> str:
    """The group that stands in the place of a model of the paper.

    Raises:
        KeyError: there is none.
    """
    return {name: group for group, name in PAPER_MODELS.items()}[model]


def model_of(experiment: Experiment) -> str:
    """The paper's model in whose place a run stands; its own name in other groups."""
    return PAPER_MODELS.get(group_of(experiment), model_name(experiment))


def number_of(outcome: Outcome, name: str) -> float:
    """A number of a finished outcome; NaN where it has none.

    Args:
        outcome: Of a training.
        name: One of the names above; else that of a metric.
    """
    if name == FINAL:
        curve = outcome.traces.get(CURVE, ())
        return float(curve[-1]) if curve else float(outcome.metrics.get("test_perplexity_after", math.nan))
    if name == LOG_PROB:
        return sum(outcome.scores) / len(outcome.scores) if outcome.scores else math.nan
    if name == PERPLEXITY:
        return _mean_perplexity(outcome.scores)
    if name == VALID_SHARE:
        valid, generated = (float(outcome.metrics.get(key, math.nan)) for key in (VALID, GENERATED))
        return 100.0 * valid / generated if generated > 0 else math.nan
    return float(outcome.metrics.get(name, math.nan))


def _mean_perplexity(scores: tuple[float, ...]) -> float:
    """Eq. 38's mean of exp(-log-likelihood); infinite where one overflows."""
    try:
        return sum(math.exp(-score) for score in scores) / len(scores) if scores else math.nan
    except OverflowError:
        return math.inf


def share_of_steps(outcome: Outcome, bar: float) -> float | None:
    """Percent of a run's steps to its first evaluation at or below a perplexity; None where it has none such.

    Args:
        outcome: Finished, with the traces of its evaluations.
        bar: The perplexity.
    """
    steps, curve = outcome.traces.get(STEPS, ()), outcome.traces.get(CURVE, ())
    reached = (step for step, value in zip(steps, curve, strict=True) if value <= bar)
    first = next(reached, None)
    return None if first is None else 100.0 * first / outcome.experiment.steps
