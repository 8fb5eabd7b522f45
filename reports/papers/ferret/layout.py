"""How FERRET lays out its tables, and what stands for what in our study."""

from __future__ import annotations

from dataclasses import dataclass

DPSGD, NON_DP = "DPSGD", "Non-DP"
MAX, HALF, QUARTER, EIGHTH, TWO = (f"FERRET-{size}" for size in ("MAX", "HALF", "QUARTER", "EIGHTH", "2"))
METHODS = (DPSGD, MAX, EIGHTH, TWO, NON_DP)
"""The paper's methods in the order of its tables."""

GRANULARITIES = (MAX, HALF, QUARTER, EIGHTH, TWO)
"""All groupings, finest first."""

EPOCHS = (1, 3, 5)
EPSILONS = (0.1, 0.5, 1.0, 2.0)

COMPARISON, HEAD_ROOM, LIRA, TRANSCRIPT, DITHER = "comparison", "head-room", "lira", "transcript", "dither"
UNKNOWN_BATCHES, UNTRAINED, RATES = "unknown batches", "untrained", "learning rates"
GROUPS = (COMPARISON, HEAD_ROOM, LIRA, TRANSCRIPT, UNKNOWN_BATCHES, DITHER, UNTRAINED, RATES)
"""Groups of the study's experiments."""

BESIDE = ("ceiling", "silent steps")
"""Groups whose variants get rows of their own in the comparison's tables."""

CANARIES = ("opposed", "outlier", "average")
"""Records of the transcript game, from the worst case to an average one."""

MODELS = {
    "qwen2_base": "DeepSeek-1.5B",
    "smollm_base": "SmolLM-360M",
    "llama_base": "TinyLlama-1.1B",
    "bloom_base": "BLOOM-560M",
    "gpt2_base": "GPT-2",
}
"""Which of the paper's models each of ours stands in for, in the order of its Tables 12 to 14."""

MODEL_MEAN = "Mean"
"""The paper's row for the mean over models."""

TEST, TRAIN = "perplexity_non_member", "perplexity_member"
AUC, ADVANTAGE, SECONDS, GAP = "roc_auc", "advantage", "training_seconds", "gap"
GROUP_COUNT, CEILING, FIRING, FIRED, SILENT = (
    "groups",
    "ceiling_nats",
    "firing_probability",
    "fired",
    "silent_steps",
)
"""Names of an outcome's metrics; `advantage` and `gap` (test less train perplexity) are computed here."""

LOW_FPR = 0.01
TPR_AT_LOW_FPR = "tpr_at_low_fpr"
"""The observed true-positive rate at this false-positive rate, computed here."""

WORDS = {
    TEST: "test perplexity",
    TRAIN: "train perplexity",
    AUC: "membership AUC",
    ADVANTAGE: "membership advantage",
    SECONDS: "training seconds",
    GAP: "generalization gap",
}
"""Metrics in a sentence."""

POSITIVE = (TEST, TRAIN, SECONDS)
"""Metrics that are compared by ratios, on a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a number of the comparison stands.

    Attributes:
        variant: Name of the method.
        epochs: E.
        epsilon: None for the non-private method.
    """

    variant: str
    epochs: int
    epsilon: float | None

    def __str__(self) -> str:
        budget = "" if self.epsilon is None else f", epsilon {self.epsilon:g}"
        return f"{self.variant}, {plural_epochs(self.epochs)}{budget}"


def plural_epochs(epochs: int) -> str:
    """`"1 epoch"`, `"5 epochs"`."""
    return f"{epochs} epoch" if epochs == 1 else f"{epochs} epochs"
