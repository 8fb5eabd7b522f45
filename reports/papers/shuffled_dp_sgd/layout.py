"""Names of a Shuffled DPSGD study: groups, variants, what stands in for what, and the numbers of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.reports.shared.paper_samples import group_of
from workbench.studies.experiments import Experiment, Outcome

VISION = "vision"
CLASSIFICATION = "classification"
GENERATION = "generation"
INVARIANCE = "invariance"
OVERHEAD = "overhead"
AUDIT = "audit"
GROUPS = (VISION, CLASSIFICATION, GENERATION, INVARIANCE, OVERHEAD, AUDIT)
"""Groups of the study; a study of ours alone may have any of them."""

UTILITY = (VISION, CLASSIFICATION, GENERATION)

NON_PRIVATE = "Non-private"
NON_PRIVATE_SHUFFLED = "Non-private, shuffled"
GHOST = "Ghost"
DPSGD = "DPSGD"
SHUFFLED = "Shuffled DPSGD"
SAME_CLIP = "Shuffled DPSGD, c' = c"
LEFT_ALONE = "Shuffled DPSGD, left alone at sigma_0"
SAME_SIGMA = "DPSGD at the same sigma"
TWIN = "Twin, unshuffled"
TWIN_SHUFFLED = "Twin, shuffled"

RATES, NOISES = "rates", "noise"
"""What stands behind the comma of an audit group whose runs differ in the learning rate, or in the noise."""

VIT, BERT, ROBERTA, GPT_2, GPT_2_LARGE = "ViT", "BERT", "RoBERTa", "GPT-2", "GPT-2-large"
PAPER_MODELS = {
    "digits_vit": VIT,
    "vit_base": VIT,
    "bert_base": BERT,
    "roberta_base": ROBERTA,
    "gpt2_base": GPT_2,
    "gpt2_large_base": GPT_2_LARGE,
}
"""Our models (or their bases), and those of the paper that they stand in for."""

CIFAR = "CIFAR-100"
PAPER_DATASETS = {
    "outcome": "SST-2",
    "pairs": "QQP",
    "inference": "MNLI",
    "answers": "QNLI",
    "slots": "E2E",
    "triples": "DART",
}
"""Our tasks and forms of records, and the paper's datasets that they stand in for."""

VISION_CHANCE = 10.0
"""Accuracy of guessing a digit, percent."""

ACCURACY, LOSS, BLEU, METEOR = "accuracy", "loss", "bleu", "meteor"
"""Numbers of a run on held-out records: percent; nats; 0 to 100; 0 to 1."""

STEP_SECONDS = "step seconds"
"""Seconds of a training step, of the steps alone."""

SHUFFLING_SHARE = "share of the steps that shuffling takes"
"""Percent, timed inside the steps."""

_SCORES = {
    ACCURACY: ("test_accuracy_after", 100.0),
    BLEU: ("test_bleu_after", 1.0),
    METEOR: ("test_meteor_after", 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What tells the runs of a group apart but the seed; None for any.

    Attributes:
        model: As the paper calls the one that ours stands in for: `"ViT"`.
        dataset: Likewise: `"SST-2"`.
        variant: Of the study.
        epsilon: The budget's number.
    """

    model: str | None = None
    dataset: str | None = None
    variant: str | None = None
    epsilon: float | None = None

    def holds(self, experiment: Experiment) -> bool:
        """Whether an experiment is one of its runs."""
        return (
            (self.epsilon is None or self.epsilon == experiment.epsilon)
            and (self.variant is None or self.variant == variant_of(experiment))
            and (self.model is None or self.model == model_of(experiment))
            and (self.dataset is None or self.dataset == dataset_of(experiment))
        )

    def __str__(self) -> str:
        """In words."""
        budget = "" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        return ", ".join(part for part in (self.variant, self.model, self.dataset, budget) if part)


def variant_of(experiment: Experiment) -> str:
    """Its variant, without the brackets that say what is done with it ("Shuffled DPSGD (audited)")."""
    return experiment.variant.partition(" (")[0]


def part_of(experiment: Experiment) -> str:
    """What its group's name says after the comma."""
    return experiment.group.partition(",")[2].strip()


def own_model_of(experiment: Experiment) -> str:
    """What is trained: the base of a model that is built on one, else the model."""
    return str(experiment.model_parameters.get("base", experiment.model))


def model_of(experiment: Experiment) -> str:
    """The paper's model that its model stands in for; its own name where there is none."""
    own = own_model_of(experiment)
    return PAPER_MODELS.get(own, own)


def own_dataset_of(experiment: Experiment) -> str:
    """Task or form of its records; its corpus where that has neither."""
    places = (experiment.corpus_parameters, experiment.model_parameters)
    found = (one.get(name) for one in places for name in ("task", "form"))
    return str(next((value for value in found if value), experiment.corpus))


def dataset_of(experiment: Experiment) -> str:
    """The paper's dataset that its records stand in for; their own name where there is none."""
    if model_of(experiment) == VIT:
        return CIFAR
    own = own_dataset_of(experiment)
    return PAPER_DATASETS.get(own, own)


def is_utility(experiment: Experiment) -> bool:
    """Whether an experiment belongs to Tables III to V."""
    return group_of(experiment) in UTILITY


def number_of(outcome: Outcome, name: str) -> float:
    """A number of a finished outcome; NaN where it has none.

    Args:
        outcome: Of a training, or of a game.
        name: One of the names above; else that of a metric.
    """
    metrics, cost = outcome.metrics, outcome.cost
    if name in _SCORES:
        metric, factor = _SCORES[name]
        return factor * float(metrics.get(metric, math.nan))
    if name == LOSS:
        perplexity = float(metrics.get("test_perplexity_after", math.nan))
        return math.log(perplexity) if perplexity > 0 else math.nan
    if name == STEP_SECONDS:
        return float(cost.get("training_seconds", math.nan)) / outcome.experiment.steps
    if name == SHUFFLING_SHARE:
        parts = (float(cost.get(part, math.nan)) for part in ("shuffling_seconds", "training_seconds"))
        shuffling, training = parts
        return 100.0 * shuffling / training if training > 0 else math.nan
    return float(metrics.get(name, math.nan))


def used_noise(outcome: Outcome) -> float:
    """The smallest noise multiplier of any weight: sigma_0 where Shuffled DPSGD fell back to DP-SGD."""
    least = number_of(outcome, "least_noise_multiplier")
    return number_of(outcome, "noise_multiplier") if math.isnan(least) else least
