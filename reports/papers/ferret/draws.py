"""The luck of the draw of members, which all models of a seed share.

Every model and method of a seed has the same members and non-members. If the members happen to be the easier
texts, all models show an AUC above one half without any leak: an interval over models does not see that luck.
What each record adds to an AUC (DeLong et al. 1988) does, also where two AUCs on the same records differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import rankdata

from workbench.interfaces import FloatArray
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome


@dataclass(frozen=True, eq=False)
class Placements:
    """What each record adds to an AUC.

    Attributes:
        draw: Which records are members; equal for runs that share it.
        inside: Share of non-members that each member outscores, shape `(n1,)`; a tie counts one half.
        outside: Share of members that outscore each non-member, shape `(n0,)`.
    """

    draw: Hashable
    inside: FloatArray
    outside: FloatArray


@dataclass(frozen=True, eq=False)
class Drawn(Sample):
    """AUCs, each with the placements of its records.

    Attributes:
        placements: Of each value.
    """

    placements: tuple[Placements, ...] = field(default=(), kw_only=True)


def placements_of(outcome: Outcome) -> Placements:
    """Placements of an outcome that has scores of both classes."""
    scores, members = np.array(outcome.scores), np.array(outcome.included, dtype=bool)
    ranks, n1, n0 = rankdata(scores), int(members.sum()), int(np.sum(~members))
    experiment = outcome.experiment
    return Placements(
        draw=(experiment.corpus, experiment.seed, outcome.included),
        inside=(ranks[members] - rankdata(scores[members])) / n0,
        outside=1.0 - (ranks[~members] - rankdata(scores[~members])) / n1,
    )


def draw_error(parts: Sequence[tuple[Sample, float]]) -> float:
    """Standard error, from the draw of members, of a weighted sum of means over units; 0 without placements.

    Placements of runs with the same draw are added record by record, so that luck which two AUCs share
    cancels in their difference and does not cancel in their mean.

    Args:
        parts: Samples and the weight of each one's mean over units.
    """
    totals: dict[Hashable, tuple[FloatArray, FloatArray]] = {}
    for sample, weight in parts:
        if not isinstance(sample, Drawn):
            continue
        counts = Counter(sample.units)
        for unit, one in zip(sample.units, sample.placements, strict=True):
            share = weight / (len(counts) * counts[unit])
            inside, outside = totals.get(one.draw, (np.zeros(1), np.zeros(1)))
            totals[one.draw] = (inside + share * one.inside, outside + share * one.outside)
    return math.sqrt(sum(float(side.var(ddof=1)) / side.size for both in totals.values() for side in both))


def guessing_deviation(members: int) -> float:
    """Standard deviation of the AUC of pure guessing on so many members and as many non-members."""
    return math.sqrt((2.0 * members + 1.0) / (12.0 * members**2))
