"""How records come into the steps of a run that was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp
from scipy.stats import binom, chi2, chi2_contingency, hypergeom

from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.interfaces import BoolArray, FloatArray

BY_CHANCE = 1e-4
"""A sampler is taken for shuffled epochs, or uneven, where Poisson's looks so with less probability."""

SAMPLED = frozenset({"Poisson", "sampled", "sampled unevenly", "fixed batches"})
"""Kinds of samplers whose chances save privacy."""

MOST_SIZES = 2
"""Sizes of batches that are cut from a row of records: all have one, but for the last."""


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How a record comes into a step.

    Attributes:
        kind: `"every step"`, `"shuffled epochs"`, `"one of each epoch's steps"` where batches vary (balls in
            bins) or were not counted, `"fixed batches"` of random records, `"Poisson"`,
            `"sampled"` where batches were not counted or are of another kind, or `"sampled unevenly"`, some
            records more often than others.
        rate: Share of the steps that a record takes part in.
        lower, upper: Interval of the rate.
        batches: Steps of an epoch, where there are epochs.
        fewest: Batches of the largest size that the records fill, for the upper end: a record is in none with
            more than one chance in so many. 0 where all have one size.
        cut: Batches that have the largest size of all, where more have it than of Poisson samples; else 0.
    """

    kind: str
    rate: float
    lower: float
    upper: float
    batches: int = 0
    fewest: int = 0
    cut: int = 0


def sampler_of(
    present: BoolArray,
    error: float,
    compared: BoolArray | None = None,
    *,
    counted: int = 0,
    tries: int = 0,
    sizes: Sequence[int] = (),
) -> Sampler:
    """The sampler, from who took part in which step.

    Args:
        present: Shape `(places, T)`.
        error: Of the interval of the rate.
        compared: Where that is known, same shape; everywhere if None.
        counted, tries: Of all other records, how often they took part and how often they might have; where
            that is known, the rate is theirs.
        sizes: Of the batches, where all are known.
    """
    known = np.ones_like(present) if compared is None else compared
    places, steps = present.shape
    hits, cells = (counted, tries) if tries else (int((present & known).sum()), int(known.sum()))
    if not cells:
        return Sampler(kind="sampled", rate=0.0, lower=0.0, upper=1.0)
    if hits == cells:
        return Sampler(kind="every step", rate=1.0, lower=1.0, upper=1.0)
    for batches in range(2, steps // 2 + 1) if known.all() else ():
        epochs = steps // batches
        blocks = present[:, : epochs * batches].reshape(places, epochs, batches).sum(axis=2)
        chance = (1 - 1 / batches) ** (batches - 1)
        if (blocks == 1).all() and chance**blocks.size < BY_CHANCE:
            share = 1 / batches
            # Records that are each drawn a step of their own make batches of many sizes. Where the last batch
            # is smaller, equal chances of all batches tell the least, and of fewer ones the most: divergences
            # are convex in the chances, and symmetric.
            kind = "shuffled epochs" if 0 < len(set(sizes)) <= MOST_SIZES else "one of each epoch's steps"
            fewest = tries // len(sizes) // max(sizes) if len(set(sizes)) == MOST_SIZES else 0
            return Sampler(kind=kind, rate=share, lower=share, upper=share, batches=batches, fewest=fewest)
    each = np.stack([(present & known).sum(axis=1), (known & ~present).sum(axis=1)])
    each = each[:, each.sum(axis=0) > 0]
    compares = each.shape[1] > 1 and bool(each.sum(axis=1).all())
    uneven = compares and float(chi2_contingency(each, correction=False).pvalue) < BY_CHANCE
    kind, cut = "sampled", 0
    if sizes:
        # So many batches of one size, whatever it is; the last of an epoch may be smaller.
        (size, times), most = Counter(sizes).most_common(1)[0], tries // len(sizes)
        likeliest = float(binom.pmf(math.floor((most + 1) * hits / cells), most, hits / cells))
        chance = (most + 1) * float(binom.sf(times - 1, len(sizes), likeliest))
        kind = "Poisson"
        if chance < BY_CHANCE:
            kind = "fixed batches" if len(set(sizes)) <= MOST_SIZES else "sampled"
            cut = times * (kind == "sampled" and size == max(sizes) < most)
    return Sampler(
        kind="sampled unevenly" if uneven else kind,
        rate=hits / cells,
        lower=binomial_lower(hits, cells, error / 2),
        upper=binomial_upper(hits, cells, error / 2),
        cut=cut,
    )


def neighbouring(present: BoolArray) -> float:
    """Probability that so many hits of a row's follow each other where every order is as likely.

    As where one batch is used for several steps: then fewer samples than steps are drawn. Given the number of
    hits h of a row of T, the number of their runs is hypergeometric, and the rows are independent.

    Args:
        present: Which of the places take part in each step, shape `(m, T)`.
    """
    steps, chances, pairs = present.shape[1], np.ones(1), 0
    for row in present:
        hits = int(row.sum())
        if hits:
            pairs += int((row[1:] & row[:-1]).sum())
            chances = np.convolve(
                chances, hypergeom.pmf(hits - np.arange(hits), steps, steps - hits + 1, hits)
            )
    return float(min(1.0, chances[pairs:].sum()))


def in_one_part(present: BoolArray) -> float:
    """Probability that a row's hits lie so close to each other where every order is as likely.

    As where each record belongs to one of several models, which are trained one after the other. The
    probabilities of the rows are joined by Fisher's method.

    Args:
        present: See `neighbouring`.
    """
    steps, logs = present.shape[1], []
    for row in present:
        places = np.flatnonzero(row)
        if (hits := len(places)) > 1:
            spans = np.arange(hits - 1, places[-1] - places[0] + 1)
            ways = np.log(steps - spans) + _log_choose(spans - 1, hits - 2) - _log_choose(steps, hits)
            logs.append(min(0.0, float(logsumexp(ways))))
    return float(chi2.sf(-2.0 * sum(logs), 2 * len(logs))) if logs else 1.0


def _log_choose(count: Any, chosen: int) -> FloatArray:
    """The logarithm of the number of subsets, of each count."""
    found: FloatArray = (
        gammaln(np.asarray(count) + 1.0) - gammaln(chosen + 1.0) - gammaln(count - chosen + 1.0)
    )
    return found
