"""What is claimed: guarantees, about what, and what an adversary is assumed to see."""

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


class Secret(StrEnum):
    """What a mutual-information claim keeps secret."""

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
        """True where a claim about this release also covers the other one (it shows no more)."""
        order = list(Released)
        return order.index(self) <= order.index(other)


class Currency(StrEnum):
    """What the number counts that studies and commands call a budget's epsilon."""

    DP = "epsilon-delta"
    RECORD_NATS = "record-nats"
    """Mutual information in nats about one record."""
    SUBSET_NATS = "subset-nats"
    """Mutual information in nats about which candidate subset was trained on."""


class Guarantee(HasPlainForm):
    """A formal promise in its own currency; never converted in silence."""

    currency: ClassVar[str]
    """Short name, as used in claims and tables: `"(epsilon, delta)-DP"`."""

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """Largest true-positive rate that the guarantee allows at each false-positive rate.

        Args:
            fpr: False-positive rates in [0, 1], any shape.

        Returns:
            Array of the same shape, in [0, 1].

        Raises:
            UnsupportedError: the guarantee has no trade-off curve.
        """
        raise UnsupportedError(f"{self.describe()} has no trade-off curve")

    @abstractmethod
    def max_success(self, prior: float = 0.5) -> float:
        """Largest probability of guessing membership right that the guarantee allows.

        Args:
            prior: Probability that the record is a member, in (0, 1).

        Returns:
            A success probability in [max(prior, 1 - prior), 1].
        """

    @abstractmethod
    def describe(self) -> str:
        """The guarantee in words, with its numbers: `"(epsilon = 1, delta = 1e-05)-DP"`."""

    @abstractmethod
    def to_json(self) -> dict[str, JSON]:
        """Plain form with a `"currency"` key; `workbench.accounting.guarantee_from_json` reads it."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A guarantee, about what, under which assumptions, and whose claim it is."""

    guarantee: Guarantee
    about: Adjacency | Secret
    released: Released
    source: str
    """Whose claim: a paper and equation, `"the user"`, or the accountant that computed it."""
    assumptions: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line: the guarantee, its adjacency or secret, and what is released."""
        kind = "adjacency" if isinstance(self.about, Adjacency) else "secret"
        return f"{self.guarantee.describe()}, {kind}: {self.about}, released: {self.released}"
