"""The fixed words of the page: what each verdict means and does not mean, and names in full."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.interfaces import Trials, VerdictKind
from workbench.reports.shared.numbers import percent, real


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """How a verdict reads.

    Attributes:
        word: The verdict in words.
        means: What it says.
        means_not: What must not be read into it.
    """

    word: str
    means: str
    means_not: str


MEANINGS = {
    VerdictKind.REFUTED: Meaning(
        word="Refuted",
        means=(
            "The measurements contradict the claim. If the claim were true, an audit like this one would say "
            "so with probability at most {significance}, provided that the assumption named with the "
            "deciding bound holds."
        ),
        means_not=(
            "It does not say how much leaks: the bound is a lower one, and the true leakage may be larger. "
            "Nor does it say where the fault lies: in the method, in its code, or in the accounting."
        ),
    ),
    VerdictKind.NOT_REFUTED: Meaning(
        word="Not refuted",
        means=(
            "The attacks of this audit, in the games described below, found no evidence against the claim. "
            "A true claim is refuted by mistake with probability at most {significance}."
        ),
        means_not=(
            "It does not show that the claim is true, or that it is safe to publish the model. A stronger "
            "attack, more trials or an adversary who sees more may still refute the claim: an audit can "
            "disprove a guarantee, and can never prove one."
        ),
    ),
    VerdictKind.UNDERPOWERED: Meaning(
        word="Underpowered",
        means=(
            "The experiment was too small to answer. Even a perfect attack could not have reached the claim "
            "with this many trials at an error probability of {significance}."
        ),
        means_not="It says nothing for the claim and nothing against it. Repeat the audit with more trials.",
    ),
    VerdictKind.INVALID: Meaning(
        word="Invalid",
        means=(
            "The experiment broke its own assumptions, so its scores do not measure what the claim is about. "
            "The reasons stand below."
        ),
        means_not=(
            "It says nothing for the claim and nothing against it; high scores in a broken game are not "
            "leakage. Repair the experiment and repeat it."
        ),
    ),
    VerdictKind.PROVEN: Meaning(
        word="Proven",
        means="The statement has been proven, by the proof that the sentence names.",
        means_not="A proof covers the statement as written, not an implementation that departs from it.",
    ),
    VerdictKind.HOLDS_UNDER: Meaning(
        word="Holds under assumptions",
        means="The statement holds where the assumptions that the sentence names hold.",
        means_not="It says nothing about runs in which one of these assumptions fails.",
    ),
    VerdictKind.UNDECIDED: Meaning(
        word="Undecided",
        means="The check ended without settling the statement.",
        means_not="It says nothing for the statement and nothing against it.",
    ),
}

NO_NUMBER_OF_TRIALS = Meaning(
    word="Underpowered",
    means=(
        "The experiment could not answer: even a perfect attack would have shown no more than the claim "
        "allows."
    ),
    means_not="It says nothing for the claim and nothing against it.",
)
"""UNDERPOWERED where no number of trials can be named that would do."""

TRIALS = {
    Trials.INDEPENDENT: "independent: every score comes from its own release",
    Trials.ONE_RUN: "one run: all scores come from one release",
}

METRICS = {
    "auc": "AUC",
    "advantage": "Advantage (largest TPR − FPR)",
    "balanced_accuracy": "Balanced accuracy",
    "accuracy": "Accuracy",
}

ROLES = {
    "subject": "trained by the workbench",
    "control": "control: does not count",
    "reading": "a reading: does not count",
    "scores": "scores from a file",
    "user": "trained by the user's code",
    "checkpoint": "trained by somebody else",
}

HARDWARE = {"cpu": "processor", "cores": "cores", "memory_gb": "memory, GB"}

SYMBOLS = {"epsilon": "ε", "mu": "μ"}


def metric_name(name: str) -> str:
    """A metric's name in words; an unknown one as it stands."""
    prefix = "tpr_at_fpr_"
    if name.startswith(prefix):
        try:
            return f"TPR at FPR {percent(real(name.removeprefix(prefix)))}"
        except ValueError:
            return name
    return METRICS.get(name, name)
