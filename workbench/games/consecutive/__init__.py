"""The consecutive-weights game: was the canary in this permuted step, or in this run of them?

A mechanism releases its weights after each step, permuted by a secret permutation that leaves the network's
function unchanged. The adversary sees the weights before and after, and is scored in three ways: blind to the
permutation, by what no permutation changes, and after undoing it. `workbench.games.consecutive.play` releases
and trains.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from workbench.interfaces import Attack, BoolArray, FloatArray, IntArray, Mechanism

if TYPE_CHECKING:
    import torch

    from workbench.training.permutations import Reach

VIEWS = ("blind", "invariant", "tidying")
"""The adversaries that are judged, each by its own scores."""

SINGLE, RUN = "one release", "whole run"
"""The two games."""

PROBES = "probes"
"""Name, among a game's details, of the number of inputs on which the function was looked at."""

PLACES = ("moved", "fixed")
"""Where the canary's weight is: one that permutations move, or one that none moves."""

STATES = ("trained", "start")
"""The weights that single releases start from."""

OTHERS = ("none", "sample")
"""Who takes part besides the canary: nobody, or the records of the plan."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The parts of a game that are the same in all its releases.

    Attributes:
        names: Of the network's units.
        units: For each, the places in the flat weight vector that each index owns, shape `(m, k)`.
        coordinate: The canary's place.
        orbit: All places that a permutation may move it to, itself among them.
    """

    names: tuple[str, ...]
    units: tuple[IntArray, ...]
    coordinate: int
    orbit: IntArray


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A nearly normal statistic: its value, what the canary adds to it, and its deviation."""

    value: float
    shift: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class WeightRelease:
    """One release, as the adversary sees it.

    Attributes:
        expected: The weights before they are permuted, without the canary and without noise, shape `(d,)`.
        released: Shape `(d,)`.
        shift: What the canary would add to its weight.
        noise: Standard deviation of the noise of that weight.
        participation: Probability with which the canary takes part, where it is in the data.
        outputs: What the released network computes less what was expected, along one direction in output
            space; None where outputs were not looked at.
        of_run: One of the steps of a whole run, not a single release.
    """

    expected: FloatArray
    released: FloatArray
    shift: float
    noise: float
    participation: float = 1.0
    outputs: Projection | None = None
    of_run: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadRelease:
    """An adversary's inference from one release.

    `ratios`: log-likelihood ratio "took part" over "did not", by view. `indices`: the permutation that it
    found, of each unit in the scene's order.
    """

    ratios: Mapping[str, float]
    indices: tuple[IntArray, ...]


class PermutingMechanism(Mechanism):
    """A mechanism that may permute its weights after each step."""

    released_weights: ClassVar[Callable[..., torch.Tensor]]
    """One step for an auditor: the weights after it, permuted."""

    @property
    @abstractmethod
    def is_shuffling(self) -> bool:
        """Whether the weights that are released are permuted."""

    @abstractmethod
    def reach(self) -> Reach | None:
        """Which permutations are drawn from; None for all that leave the function as it is."""


@dataclass(frozen=True, kw_only=True)
class ConsecutiveSeen:
    """An adversary's inferences from n releases or runs, without the coins.

    `values`: its log-likelihood ratios, summed over the releases of a trial, shape `(n,)`. `where`: the
    round, and the adversary's name.
    """

    values: FloatArray
    where: str


class ConsecutiveAttack(Attack[ConsecutiveSeen]):
    """An attack that reads consecutive weights.

    Attributes:
        releases: Number of independent releases from one state.
        runs: Number of independent trainings, read step by step; 0 for none.
        state: Where single releases start: one of `STATES`.
        place: Where the canary's weight is: one of `PLACES`.
        others: Who else takes part: one of `OTHERS`.
        magnitude: The canary's raw gradient norm.
        probes: Inputs on which the released network is asked for its outputs; 0 for none.
        turns: Of the search for the direction in which outputs are looked at, in each step of a run; 0: in
            none.
        invariant, invariant_run: Statistics by which the invariant adversary is judged, in single releases
            and in runs.
    """

    game = "consecutive"
    releases: int
    runs: int
    state: str
    place: str
    others: str
    magnitude: float
    probes: int
    turns: int
    invariant: str
    invariant_run: str

    @abstractmethod
    def read(self, scene: Scene, release: WeightRelease) -> ReadRelease:
        """Returns ratios and permutation of one release."""

    @abstractmethod
    def as_printed(self, scores: FloatArray, members: BoolArray, delta: float) -> float:
        """Returns the epsilon that a paper's own audit would read off these scores; not a bound."""
