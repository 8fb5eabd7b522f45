"""The exact likelihood-ratio attack on a transcript of masked signs.

Mask and directions are public, so the weights of every step are known to whoever sees the signs, and so is
the inner product of any record's gradient with each fired direction. What is left to chance is who took
part. The score of a training is the logarithm of the probability of its signs with the canary in the data
over that without it: by Neyman and Pearson no other score has a larger true-positive rate at any
false-positive rate.

With s the sampling probability, and the signs of all groups that fired in a step taken together (one coin
decides for all of them whether the canary took part):

- batches known: without the canary the signs are those of the others' sum b. With it they are those of b + c
  with probability s, else those of b. A step whose signs are not those of b is impossible without the canary.
- batches unknown: the same, averaged over all 2^(N-1) batches of the other records, each record taking part
  with probability s.

Steps multiply, because samples are independent and all else is a function of the signs before. An infinite
ratio becomes `workbench.estimation.low_fpr.CERTAIN`, above every finite one.

Source: Neyman and Pearson 1933; the mechanism's release is FERRET's Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.estimation.low_fpr import CERTAIN
from workbench.games.transcript import SignObservations, SignReading, TranscriptAttack
from workbench.interfaces import FloatArray, IntArray, Scores

CANARIES = ("opposed", "outlier", "average")
OTHERS = ("corpus", "copies")
KNOWLEDGE = ("batches", "records")
ZERO_GRADIENT = ("silent", "coin")

TIE = 1e-5
"""Share of the sum of absolute inner products below which a recomputed sum's sign may be rounding."""

LEAST_GAP = 1e-9
"""Scores that are all equal are told apart by less than this, at random."""


@register("attack", "sign_transcript")
class SignTranscript(TranscriptAttack):
    """Exact likelihood ratio over the released signs of FERRET; many independent trainings are scored.

    Attributes:
        canary: `"opposed"`, `"outlier"` or `"average"`.
        others: `"corpus"`, or `"copies"` of one record.
        knowledge: `"batches"`: the adversary knows which other records took part in each step; `"records"`:
            the other records alone, at most 16 of them.
        trials: Number of independent trainings that are judged, even.

    Raises:
        InputError: a parameter is out of range.
    """

    def __init__(
        self,
        *,
        canary: str = "opposed",
        others: str = "corpus",
        knowledge: str = "batches",
        trials: int = 1000,
    ) -> None:
        for name, value, known in (
            ("canary", canary, CANARIES),
            ("others", others, OTHERS),
            ("knowledge", knowledge, KNOWLEDGE),
        ):
            if value not in known:
                raise unknown_name(name, value, known)
        self.canary = canary
        self.others = others
        self.knowledge = knowledge
        self.trials = whole_number("trials", trials, least=20, even=True)

    def score(self, seen: SignObservations, generator: np.random.Generator) -> Scores:
        """Log-likelihood ratio of each training's signs; higher means that the canary was in the data.

        Scores are in nats, `CERTAIN` for an infinite ratio; details are `certain` (how many trials are
        impossible without the canary), and means over trials of `firings`, `fired_steps` and
        `silent_zero_firings` (firings that released nothing). The generator tells equal scores apart.
        """
        values = np.array([log_ratio(reading, seen) for reading in seen.trials])
        details = {
            "certain": float(np.sum(values >= CERTAIN)),
            "firings": _mean([trial.step.size for trial in seen.trials]),
            "fired_steps": _mean([np.unique(trial.step).size for trial in seen.trials]),
            "silent_zero_firings": _mean([int(np.sum(trial.sign == 0)) for trial in seen.trials]),
        }
        if values.size and values.min() == values.max():
            values = values + LEAST_GAP * generator.random(values.size)
        return Scores(values=values, details=details)


def _mean(counts: Sequence[int]) -> float:
    return float(np.mean(counts)) if counts else 0.0


def log_ratio(reading: SignReading, observations: SignObservations) -> float:
    """Log of the likelihood with the canary over that without it, in nats; +-`CERTAIN` for infinite ones.

    Args:
        reading: One training.
        observations: That it is one of; says how records are sampled and what a zero releases.

    Raises:
        InputError: the reading says neither which batches there were nor which records, or the observations
            are unusable.
    """
    s, rule = observations.sampling_probability, observations.zero_gradient
    if rule not in ZERO_GRADIENT:
        raise unknown_name("zero_gradient", rule, ZERO_GRADIENT)
    if not 0.0 < s <= 1.0:
        raise InputError(f"sampling_probability must be in (0, 1], got {s!r}")
    total, is_impossible_with = 0.0, False
    starts = np.flatnonzero(np.diff(reading.step, prepend=-1))
    for start, end in pairwise([*starts, reading.step.size]):  # no pair where nothing fired at all
        inside, outside = _step(reading, slice(int(start), int(end)), s, rule)
        if outside == 0.0:
            return CERTAIN
        if inside == 0.0:
            is_impossible_with = True
        else:
            total += math.log(inside / outside)
    return -CERTAIN if is_impossible_with else total


def _step(reading: SignReading, part: slice, s: float, rule: str) -> tuple[float, float]:
    """Probabilities of one step's signs with the canary in the data, and without it."""
    signs, canary = reading.sign[part], reading.canary[part]
    if reading.without is not None:
        alone = float(np.prod(_chances(reading.without[part], signs, rule)))
        joined = float(np.prod(_chances(reading.without[part] + canary, signs, rule)))
        return s * joined + (1.0 - s) * alone, alone
    if reading.others is None:
        raise InputError("a reading must hold the others' sum or their inner products, got neither")
    sums, sizes, weights = batches(reading.others[part], s)
    alone = float(weights @ _chances_near(sums, sizes, signs, rule).prod(0))
    own = np.abs(canary)[:, None]
    joined = float(weights @ _chances_near(sums + canary[:, None], sizes + own, signs, rule).prod(0))
    return s * joined + (1.0 - s) * alone, alone


def _chances(values: FloatArray, signs: IntArray, rule: str) -> FloatArray:
    """Probability of each released sign, given the inner product that it is the sign of."""
    at_zero = np.where(signs == 0, 1.0, 0.0) if rule == "silent" else np.where(signs == 0, 0.0, 0.5)
    chances: FloatArray = np.where(values == 0.0, at_zero, np.where(np.sign(values) == signs, 1.0, 0.0))
    return chances


def _chances_near(values: FloatArray, sizes: FloatArray, signs: IntArray, rule: str) -> FloatArray:
    """As `_chances`, shapes `(k, b)`, where the sums were added up in another order than the mechanism's.

    A sum so near zero that its sign may be rounding counts with equal parts for all that it could release.
    """
    found = _chances(values, signs[:, None], rule)
    symbols = (-1, 1, 0) if rule == "silent" else (-1, 1)
    legal = np.where(np.isin(signs, symbols), 1.0 / len(symbols), 0.0)[:, None]
    near: FloatArray = np.where((np.abs(values) <= TIE * sizes) & (sizes > 0.0), legal, found)
    return near


def batches(others: FloatArray, s: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Enumerate all batches of the other records.

    Args:
        others: Inner product of each record with each direction, shape `(k, n)`.
        s: Probability with which each takes part.

    Returns:
        Sums and sums of absolute values of each batch, shape `(k, 2^n)`, and the batches' probabilities,
        shape `(2^n,)`.
    """
    k, n = others.shape
    sums, sizes, weights = np.zeros((k, 1)), np.zeros((k, 1)), np.ones(1)
    for index in range(n):
        own = others[:, index : index + 1]
        sums = np.concatenate([sums, sums + own], axis=1)
        sizes = np.concatenate([sizes, sizes + np.abs(own)], axis=1)
        weights = np.concatenate([weights * (1.0 - s), weights * s])
    return sums, sizes, weights
