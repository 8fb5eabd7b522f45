"""What is read of consecutive weights that were permuted: the nouns that a game and its adversary share.

Free of any deep-learning framework, so that an attack can be named without loading one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workbench import estimation
from workbench.interfaces import BoolArray, FloatArray, IntArray

VIEWS = ("blind", "invariant", "tidying")
"""The adversaries that are judged, each by its own scores."""

JUDGED_BY = "tidying"
"""The adversary whose scores stand for a study's experiment where there is room for one alone."""

SINGLE, RUN = "one release", "whole run"
"""The two games."""

PROBES = "probes"
"""Name of the number of inputs on which the function was looked at, among a game's details."""

PLACES = ("moved", "fixed")
"""Where the canary's weight is: one that permutations move, or one that none moves."""

STATES = ("trained", "start")
"""The weights that single releases start from."""

OTHERS = ("none", "sample")
"""Who stands beside the canary: nobody, or the records of the plan."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is the same in all releases of a game.

    Attributes:
        names: Of the network's units.
        units: Of each the places in the flat vector of the weights that each index owns, shape `(m, k)`.
        coordinate: The canary's place.
        orbit: All places that a permutation may move it to, itself among them.
    """

    names: tuple[str, ...]
    units: tuple[IntArray, ...]
    coordinate: int
    orbit: IntArray


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A statistic that is nearly normal: its value, what the canary adds to it, and its deviation."""

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
        outputs: What the released network computes less what was expected, along one direction in the space
            of its outputs; None where nobody asked for it.
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
    """What an adversary makes of one release.

    Attributes:
        ratios: Log-likelihood ratio "took part" over "did not", by view.
        indices: The permutation that it found, of each unit in the scene's order.
    """

    ratios: Mapping[str, float]
    indices: tuple[IntArray, ...]


class ReleaseReader(Protocol):
    """An attack that reads consecutive weights."""

    place: str
    others: str
    magnitude: float
    probes: int
    """Inputs on which the released network is asked for its outputs; 0 for none."""
    turns: int
    """Of the search for the direction in which outputs are looked at, in each step of a run; 0: in none."""

    def read(self, scene: Scene, release: WeightRelease) -> ReadRelease:
        """Ratios and permutation of one release."""


def other_areas(scores: Mapping[str, FloatArray], members: BoolArray) -> dict[str, float]:
    """`auc (STATISTIC)` of each statistic that is measured and not judged by itself.

    One that says nothing of the canary's weight, whose scores are all alike, is left out.

    Args:
        scores: By view or statistic.
        members: Shape `(n,)`.
    """
    return {
        f"auc ({name})": estimation.auc(values, members, confidence=0.95).estimate
        for name, values in scores.items()
        if name not in VIEWS and np.ptp(values) > 0.0
    }
