"""The protocol of attacks: insert canaries before training, and score what the game shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from workbench.core.keys import JSON
from workbench.interfaces.arrays import FloatArray
from workbench.interfaces.data import Corpus
from workbench.interfaces.mechanisms import Mechanism
from workbench.interfaces.training import Insertions

Seen = TypeVar("Seen")
"""What the adversary of a game sees, without the labels."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """An attack's scores of candidates or trials; higher means member.

    `values`: shape `(n,)`, finite. `details`: named scalars for the report (for instance the number of shadow
    models).
    """

    values: FloatArray
    details: Mapping[str, float] = field(default_factory=dict)


class Attack(ABC, Generic[Seen]):
    """An attack that never sees the labels; it names its game and scores what that game shows (`Seen`).

    Attributes:
        game: Registry name of the game.
        references_needed: Number of shadow models that the scores want; 0 for none.
        title, label: What a report calls the attack's adversary, and what that adversary does.
        later_parameters: See `Mechanism.later_parameters`.
    """

    game: ClassVar[str]
    references_needed: int = 0
    title: ClassVar[str] = ""
    label: ClassVar[str] = ""
    later_parameters: ClassVar[Mapping[str, object]] = {}

    @property
    def plants(self) -> int:
        """Number of records that `prepare` plants: trained on in every run, never candidates."""
        return 0

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Returns the canaries to insert before training; none, unless overridden."""
        return Insertions()

    def informed(self, mechanism: Callable[[], Mechanism], given: Mapping[str, Any]) -> Self:
        """Returns the attack with what it may know of the mechanism, where its parameters leave that open.

        `mechanism` makes the attacked mechanism; `given` are the parameters that the attack was made with.
        """
        return self

    @classmethod
    def aside(cls, name: str, role: str, details: Mapping[str, JSON]) -> dict[str, JSON] | None:
        """Returns what a report adds about the attack's details next to the verdict; None for nothing.

        `name` and `role` are the subject's; `details` those of one of the attack's games. The form has
        `subject`, `role`, `verdict`, what it `says` in sentences, and table `rows` of `name`, `measured`,
        `chance` and `p_value`.
        """
        return None

    @classmethod
    def aside_terms(cls) -> dict[str, str]:
        """Returns what a report calls the attack's forms of `aside`.

        Returns `key` of the forms in the report record, `heading`, `note` and table `caption`, `chance` (what
        the column says in a terminal), and `shown`, the verdict that is drawn like a refutation.
        """
        return {"key": "aside", "heading": "Beside the claim"}

    @abstractmethod
    def score(self, seen: Seen, generator: np.random.Generator) -> Scores:
        """Scores the candidate records or trials that the game shows, in their order.

        `generator` is for random choices, such as telling equal scores apart.
        """
