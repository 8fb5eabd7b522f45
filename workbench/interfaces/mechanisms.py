"""The protocol of mechanisms: how subjects are trained, what is claimed of them, how they are audited by
default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

from workbench.interfaces.claims import Adjacency, Claim, Currency, Released
from workbench.interfaces.evidence import Family
from workbench.interfaces.training import Plan, Sampling, Subject


class Release(StrEnum):
    """What a mechanism's transcript holds for an adversary to read."""

    SUMS = "noised sums"
    """A privatised sum of gradients a step, into which a gradient canary can be put."""
    COUNTS = "noised counts"
    """Numbers that a step releases next to its sum, and that move no weight."""
    SIGNS = "signs"
    BITS = "bits about a candidate subset"
    PERMUTED_WEIGHTS = "permuted weights"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a mechanism, with its parameters, releases and needs.

    Attributes:
        currency: The unit of a budget's number.
        released: What the mechanism gives away, and its claim covers.
        releases: What its transcript holds.
        family: The family of one release's noise, for bounds that assume one.
        adjacency: Which neighbours its claim, and so its games, are about.
        adjacencies: Values of its parameter `adjacency`; empty for a mechanism without that parameter.
        sampling: How it may choose the records of a step.
        optimizer: The optimizer that it asks for.
        needs_task: The score that a model with a task has to give; empty for any model.
        is_private: Something protects the records; False for ordinary training.
        is_zeroth_order: It sees differences of losses along directions, and no gradients.
    """

    currency: Currency = Currency.DP
    released: Released = Released.EVERY_UPDATE
    releases: frozenset[Release] = frozenset({Release.SUMS})
    family: Family = Family.ANY
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    adjacencies: tuple[Adjacency, ...] = ()
    sampling: frozenset[Sampling] = frozenset(Sampling)
    optimizer: str = "adamw"
    needs_task: str = ""
    is_private: bool = True
    is_zeroth_order: bool = False


@dataclass(frozen=True, kw_only=True)
class AuditDefaults:
    """How the default audit of a mechanism differs from the embedded audit.

    Attributes:
        number: The claimed epsilon, or nats; None for the embedded epsilon.
        settings: Fields of `workbench.audit.settings.AuditSettings` by name.
        attack_parameters: Parameters of attacks, besides those of the embedded attacks.
        members_as_embedded: Fields that attacks on ordinary members take from the embedded audit.
    """

    number: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    attack_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    members_as_embedded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the time of a training grows with, besides its records and steps; for cost estimates.

    Attributes:
        passes: Over the records of a step.
        read_share: Expected share of the steps that read records.
        looks: At the held-out records, besides those before and after.
    """

    passes: int = 1
    read_share: float = 1.0
    looks: int = 0


class Mechanism(ABC):
    """The recipe of a subject; created with its parameters."""

    later_parameters: ClassVar[Mapping[str, object]] = {}
    """Parameters that were added later, with the value that means the earlier behaviour.

    At that value they stay out of store keys (`workbench.training.content.settled`). A subclass adds to its
    bases'.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the mechanism releases and needs, with these parameters."""
        return Capabilities()

    def audit_defaults(self) -> AuditDefaults:
        """How an audit plays by default; like the embedded audit, unless overridden."""
        return AuditDefaults()

    def views(self, judged: Any) -> dict[str, Any] | None:
        """Words an audit of the mechanism whose games have no words of their own; None for nothing to add.

        `judged` is a `workbench.games.words.Judged`; the form is that of `workbench.games.base.Game.views`.
        """
        return None

    def check(self, plan: Plan) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuses, before any work, a plan that the mechanism cannot follow.

        Raises `InputError`: a field is out of range, or does not go with the mechanism.
        """

    def without_quality(self) -> Self:
        """Returns the mechanism without measurements that cost time and do not change training."""
        return self

    def workload(self, *, steps: int, sampling_probability: float, budget: float) -> Workload:
        """Returns what the time of so many steps grows with; `budget` in the own currency, 0 for none."""
        return Workload()

    def steps_at_first_noise(self, plan: Plan) -> int:
        """Number of steps of the run whose noise is that of the first step."""
        return plan.steps

    @abstractmethod
    def claim(self, plan: Plan) -> Claim:
        """Returns what its authors claim of a run with this plan."""

    @abstractmethod
    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Subject:
        """Trains, deterministically in the plan; `progress(done, total)` is called after each step."""


class PostHocMechanism(Mechanism):
    """A mechanism that trains first and privatises the finished model: one training, many releases.

    `train` is `release(train_unreleased(plan), plan)`, and `claim` speaks of the release.
    """

    release_parameters: ClassVar[frozenset[str]]
    """Names of the mechanism's parameters that only `release` reads; a training's key leaves them out."""

    @abstractmethod
    def train_unreleased(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Subject:
        """Trains without releasing: reads neither `plan.budget` nor a release parameter. Never given away."""

    @abstractmethod
    def release(self, trained: Subject, plan: Plan) -> Subject:
        """Returns the subject that is given away, with fresh noise; deterministic in the plan and its budget.

        Two budgets draw independent noise; `trained` is left unchanged. Raises `InputError`: the plan has no
        usable budget.
        """
