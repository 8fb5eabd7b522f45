"""The records of a study: experiments, the study that names them, and their outcomes.

An experiment is one mechanism on one corpus and model, with one budget, one seed and one attack. Everything
in it is plain data, so that its key can be hashed and any worker can be handed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from workbench.core.keys import JSON, LATER
from workbench.interfaces import Currency, Guarantee, TrainingSpec

STEP_TIMES = ("training_seconds", "shuffling_seconds")
"""Costs of a training that are times of its steps alone: of all they do, and of permuting the weights."""


@dataclass(frozen=True, kw_only=True)
class Experiment(TrainingSpec):
    """An experiment of a study, as plain data.

    N candidates are members and as many again are non-members, by a split that is uniform over all such
    splits; the seed decides the corpus draw, the split, the training and the release.

    Attributes:
        group: The part of the study that it belongs to ("batch size"); no part of its identity.
        variant: What tables call its mechanism; no part of its identity.
        tags: Texts that reports group it by, from the study file; no part of its identity.
        mechanism, attack, corpus: Registry names, each with its parameters.
        members: N, the number of records that are trained on, >= 2.
        epochs: E, passes over the records; steps T = E * ceil(N / B), to the nearest whole number.
        batch_size: B, in [1, N]; with Poisson sampling the expected one, q = B / N.
        epsilon: The budget's number, in its `currency`; None for an experiment without a budget.
        delta: The budget's delta, resolved to a number; None without a budget, and not read by nats.
        seed: The unit of replication is usually this.
    """

    group: str
    variant: str
    mechanism: str
    attack: str
    corpus: str
    members: int
    epochs: float
    batch_size: int
    seed: int
    epsilon: float | None = None
    delta: float | None = None
    currency: Currency = Currency.DP
    mechanism_parameters: Mapping[str, Any] = field(default_factory=dict)
    attack_parameters: Mapping[str, Any] = field(default_factory=dict)
    corpus_parameters: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict, metadata=LATER)

    @property
    def budget(self) -> Guarantee | None:
        """The guarantee that the experiment's mechanism is to meet, in its currency; or None."""
        from workbench.accounting import ApproximateDP, MutualInformation

        if self.currency.secret is not None:
            if self.epsilon is None:
                return None
            return MutualInformation(nats=self.epsilon, secret=self.currency.secret)
        if self.epsilon is None or self.delta is None:
            return None
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta)

    @property
    def steps(self) -> int:
        """Number of updates T of the training."""
        return steps_of(self.members, self.batch_size, self.epochs)

    @property
    def name(self) -> str:
        """What displays and errors call it: `"DP-SGD, epsilon 4, batch_size 10, epochs 1, seed 0"`; or `"0.5
        nats"`.
        """
        budget = "" if self.epsilon is None else f", epsilon {self.epsilon:g}"
        if self.epsilon is not None and self.currency is not Currency.DP:
            budget = f", {self.epsilon:g} nats"
        return (
            f"{self.variant}{budget}, batch_size {self.batch_size}, epochs {self.epochs:g}, seed {self.seed}"
        )


def steps_of(members: int, batch_size: int, epochs: float) -> int:
    """Number of updates T = E * ceil(N / B), to the nearest whole number and at least one."""
    return max(1, round(epochs * -(-members // batch_size)))


FIELD_ORDER = (
    *("group", "variant", "mechanism", "attack", "corpus", "model", "members", "epochs", "batch_size"),
    *("learning_rate", "seed", "epsilon", "delta", "sampling", "optimizer", "weight_decay", "schedule"),
    *("warmup", "currency", "adapter", "lora_rank", "lora_alpha", "lora_targets", "device", "scored_members"),
    *("mechanism_parameters", "attack_parameters", "corpus_parameters", "model_parameters"),
)
"""The fields of an experiment in the order in which experiments are sorted and tables list them."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A named grid of experiments, under one profile.

    Attributes:
        name: Of the shipped study, or the file's stem.
        paper: Key of `workbench.checks.ledger.papers()`; empty where the study regenerates no paper.
        report: Registered study report that writes its tables; empty for the generic one.
        profile: `"quick"`, `"full"`, ...
        replication: The field of `Experiment` whose values are independent repeats (the declared unit of
            replication): two experiments that differ in other fields alone are not two replicates.
        experiments: In the order of the file; those with equal identities are kept, once per group.
        notes: What the profile changes against the paper, for the report; each with its reason.
        source_sha256: Hash of the study file.
    """

    name: str
    title: str
    profile: str
    replication: str
    experiments: tuple[Experiment, ...]
    source_sha256: str
    paper: str = ""
    report: str = ""
    notes: tuple[str, ...] = ()


class Status(StrEnum):
    """Whether an experiment was run, and succeeded."""

    DONE = "done"
    FAILED = "failed"
    """It raised, diverged, or killed its worker; the record says how."""
    MISSING = "missing"
    """Not run yet."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An experiment and its record.

    Attributes:
        metrics: Named numbers; empty unless done. Always among them: `perplexity_member`,
            `perplexity_non_member` (per token; classification models: exponentiated mean loss),
            `roc_auc`, `accuracy`, `precision`, `recall`, `f1` (threshold at the midpoint of the class means,
            chosen on the labels and not paid for: Zagardo 2024, section 3.3.3).
            A transcript game has no perplexities.
        scores: The attack's, shape `(2 S,)` as a list, one a trial in a transcript game; empty unless done.
        included: True where the candidate was a member, likewise.
        claim: Plain form of what the mechanism's authors claim; None unless done.
        error: For a failure: the kind of error and its one line.
        cost: `seconds`, `peak_memory_mb` of the measuring; `training_seconds`, of the steps alone, of the
            training that it needs (of the target, where there are shadows), and of a mechanism that permutes
            weights `shuffling_seconds`, which are part of them.
        training_losses: Mean loss of each step's sample in the target's training, nats, NaN where the
            mechanism looked at no record; empty unless done.
        traces: `Transcript.traces` of the target's training; empty unless done.
        audit: The judged games of an attack that plays several, as its game writes them; None for any other.
    """

    experiment: Experiment
    key: str
    status: Status
    metrics: Mapping[str, float] = field(default_factory=dict)
    scores: tuple[float, ...] = ()
    included: tuple[bool, ...] = ()
    claim: Mapping[str, JSON] | None = None
    error: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)
    training_losses: tuple[float, ...] = ()
    traces: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    audit: Mapping[str, JSON] | None = None


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """A study with the outcome of each of its experiments, in its order."""

    study: Study
    outcomes: tuple[Outcome, ...]

    def done(self, **fields: Any) -> list[Outcome]:
        """The outcomes that are done and whose experiments have these field values."""
        return [
            outcome
            for outcome in self.outcomes
            if outcome.status is Status.DONE
            and all(getattr(outcome.experiment, name) == value for name, value in fields.items())
        ]
