"""The sparse vector technique: which of many queries are above a threshold, until so many are."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from workbench.accounting.events import Event
from workbench.core.arguments import one_of
from workbench.core.errors import InputError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency


@dataclass(frozen=True, kw_only=True)
class SparseVector(Event):
    """Whether each query plus Laplace noise reaches a threshold with Laplace noise, until `cutoff` ones do.

    The threshold's noise is drawn once, each query's anew; only the answers above or below are released, and
    queries may depend on earlier answers (Lyu, Su and Li 2017, algorithm 7 without its last step; with noise
    of scale 1 / epsilon_1 and 2 cutoff / epsilon_2 it is their algorithm 1). A record adds at most 1 to each
    query, up or down; where `monotone` is set it adds between 0 and 1.

    A sequence of answers with the threshold's noise at z has, with the threshold at z + D under the neighbour
    whose queries are at most D higher, at most exp(D / threshold_scale) times its density, no smaller chances
    to stay below, and exp(2 D / query_scale) times for each answer above: added up, `losses`.

    Attributes:
        threshold_scale: Of the threshold's Laplace noise.
        query_scale: Of each query's Laplace noise.
        cutoff: Answers above the threshold after which it ends.
        monotone: Whether records only ever add.

    Raises:
        InputError: a parameter is out of range, or monotone is no boolean.
    """

    threshold_scale: float
    query_scale: float
    cutoff: int = 1
    monotone: bool = False

    def __post_init__(self) -> None:
        self._set_positive("threshold_scale")
        self._set_positive("query_scale")
        self._set_whole("cutoff", least=1)
        if not isinstance(self.monotone, bool):
            raise InputError(f"monotone must be true or false, got {object_line(self.monotone)}")

    def describe(self) -> str:
        """`sparse vector (threshold scale 2, query scale 4, up to 1 above)`."""
        kind = ", monotone queries" if self.monotone else ""
        return (
            f"sparse vector (threshold scale {self.threshold_scale:g}, query scale {self.query_scale:g}, "
            f"up to {self.cutoff} above{kind})"
        )

    def moved(self, adjacency: Adjacency) -> int:
        """By how much a query differs at most between neighbours.

        Raises:
            InputError: the adjacency is none.
        """
        adjacency = one_of(Adjacency, "adjacency", adjacency)
        return 2 if adjacency is Adjacency.REPLACE_ONE and not self.monotone else 1

    def losses(self, adjacency: Adjacency) -> tuple[Fraction, Fraction]:
        """The largest loss of the output with the record against that without, and of the reverse.

        Where the record only adds, an answer below is no less likely without it at the same threshold, and
        one above is exp(D / query_scale) times less likely at most. In the reverse order the neighbour's
        threshold is higher by D, and an answer above again costs D, not 2 D.

        Raises:
            InputError: the adjacency is none.
        """
        adjacency = one_of(Adjacency, "adjacency", adjacency)
        moved = self.moved(adjacency)
        threshold = Fraction(moved) / Fraction(self.threshold_scale)
        answers = self.cutoff * Fraction(moved) / Fraction(self.query_scale)
        if self.monotone and adjacency is not Adjacency.REPLACE_ONE:
            return answers, threshold + answers
        return threshold + 2 * answers, threshold + 2 * answers
