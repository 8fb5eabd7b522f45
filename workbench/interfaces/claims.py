"""Claims: a guarantee, what it is about, and what an adversary is assumed to see."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from workbench.core.errors import UnsupportedError
from workbench.core.keys import JSON, HasPlainForm
from workbench.interfaces.arrays import FloatArray


class Adjacency(StrEnum):
    """Which pairs of data sets a differential-privacy claim calls neighbours."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"


class Direction(StrEnum):
    """Which order of two neighbours counts, where one of them is without the record."""

    BOTH = "both"
    ADD = "add"
    """The output without the record against that with it."""
    REMOVE = "remove"
    """The output with the record against that without it."""


class Secret(StrEnum):
    """The secret of a mutual-information claim."""

    RECORD = "record"
    """One record's membership, given every other record."""
    SUBSET = "candidate-subset"
    """Which of the public candidate subsets was trained on."""


class Released(StrEnum):
    """What the adversary sees, from most to least."""

    EVERY_UPDATE = "every update"
    FINAL_WEIGHTS = "final weights"
    SCORES = "scores"

    def covers(self, other: Released) -> bool:
        """Whether a claim about this release also covers `other`, which must show no more."""
        order = list(Released)
        return order.index(self) <= order.index(other)


class Currency(StrEnum):
    """The unit of the number that studies and commands call a budget's epsilon."""

    DP = "epsilon-delta"
    RECORD_NATS = "record-nats"
    """Mutual information in nats about one record."""
    SUBSET_NATS = "subset-nats"
    """Mutual information in nats about which candidate subset was trained on."""

    @property
    def secret(self) -> Secret | None:
        """The secret that the currency's nats are about; None for differential privacy."""
        return {Currency.RECORD_NATS: Secret.RECORD, Currency.SUBSET_NATS: Secret.SUBSET}.get(self)


class Guarantee(HasPlainForm):
    """A formal promise in its own currency; never converted silently."""

    currency: ClassVar[str]
    """Short name, as used in claims and tables: `"(epsilon, delta)-DP"`."""

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """Returns the largest true-positive rate allowed at each false-positive rate in [0, 1], of the same
        shape.

        Raises `UnsupportedError`: the guarantee has no trade-off curve.
        """
        raise UnsupportedError(f"{self.describe()} has no trade-off curve")

    @abstractmethod
    def max_success(self, prior: float = 0.5) -> float:
        """Returns the largest allowed probability of guessing membership right.

        `prior` is the probability that the record is a member, in (0, 1); the result is in [max(prior, 1 -
        prior), 1].
        """

    @abstractmethod
    def describe(self) -> str:
        """Returns the guarantee in words, with its numbers: `"(epsilon = 1, delta = 1e-05)-DP"`."""

    @abstractmethod
    def to_json(self) -> dict[str, JSON]:
        """Returns the plain form, with a `"currency"`; read by `workbench.accounting.guarantee_from_json`."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A guarantee with what it is about, its assumptions, and who claims it."""

    guarantee: Guarantee
    about: Adjacency | Secret
    released: Released
    source: str
    """Whose claim: a paper and equation, `"the user"`, or the accountant that computed it."""
    assumptions: tuple[str, ...] = ()

    def describe(self) -> str:
        """Returns one line: the guarantee, its adjacency or secret, and what is released."""
        kind = "adjacency" if isinstance(self.about, Adjacency) else "secret"
        return f"{self.guarantee.describe()}, {kind}: {self.about}, released: {self.released}"
