"""Release mechanisms whose epsilon is known exactly: what an estimator's coverage is measured on.

>>> truths = {truth.name: truth for truth in known_truths()}
>>> round(truths["gaussian"].epsilon(1e-5), 2)
4.38
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from workbench.accounting.gaussian import epsilon_of_delta
from workbench.interfaces import BoolArray, FloatArray

_SUBSAMPLING = 0.5


@dataclass(frozen=True, kw_only=True)
class KnownTruth:
    """A pair of score distributions with a known trade-off between epsilon and delta.

    Attributes:
        name: Short name.
        epsilon: Smallest epsilon >= 0 at a delta in (0, 1), for both directions.
        mu: Smallest mu for which the pair is mu-GDP.
        sample: Draws scores of shape `(n,)` for labels of shape `(n,)`.
        is_gaussian: Whether it is a Gaussian release with one variance.
    """

    name: str
    epsilon: Callable[[float], float]
    mu: float
    sample: Callable[[BoolArray, np.random.Generator], FloatArray]
    is_gaussian: bool


def _noise(members: BoolArray, generator: np.random.Generator) -> FloatArray:
    """Scores that know nothing."""
    return generator.normal(size=members.size)


def _randomised_response(members: BoolArray, generator: np.random.Generator) -> FloatArray:
    """The label, told truthfully with probability e / (e + 1)."""
    truthful = generator.random(members.size) < math.e / (math.e + 1.0)
    return np.where(truthful, members, ~members).astype(np.float64)


def _laplace(members: BoolArray, generator: np.random.Generator) -> FloatArray:
    """Laplace noise of scale 1 on a shift of 1."""
    return generator.laplace(size=members.size) + members


def _gaussian(members: BoolArray, generator: np.random.Generator) -> FloatArray:
    """Normal noise of deviation 1 on a shift of 1."""
    return generator.normal(size=members.size) + members


def _subsampled(members: BoolArray, generator: np.random.Generator) -> FloatArray:
    """Normal noise of deviation 1 on a shift of 1 that takes place with probability one half."""
    return generator.normal(size=members.size) + (members & (generator.random(members.size) < _SUBSAMPLING))


def _subsampled_delta(epsilon: float) -> float:
    """Larger of the two hockey-stick divergences of the subsampled pair at epsilon.

    The likelihood ratio 1 - q + q exp(x - 1/2) is increasing in x, so each is an integral over a half-line.
    """
    q, bound = _SUBSAMPLING, math.exp(epsilon)
    cut = 0.5 + math.log((bound - 1.0 + q) / q)
    forward = (1 - q) * ndtr(-cut) + q * ndtr(1.0 - cut) - bound * ndtr(-cut)
    backward = 0.0
    if 1.0 / bound > 1.0 - q:
        cut = 0.5 + math.log((1.0 / bound - 1.0 + q) / q)
        backward = ndtr(cut) - bound * ((1 - q) * ndtr(cut) + q * ndtr(cut - 1.0))
    return float(max(forward, backward))


def _subsampled_epsilon(delta: float) -> float:
    """Inverts `_subsampled_delta`."""
    if _subsampled_delta(0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: _subsampled_delta(epsilon) - delta, 0.0, 30.0, xtol=1e-10))


def known_truths() -> tuple[KnownTruth, ...]:
    """Noise, randomised response and Laplace at epsilon 1, 1-GDP, and the last subsampled at one half."""
    return (
        KnownTruth(name="noise", epsilon=lambda delta: 0.0, mu=0.0, sample=_noise, is_gaussian=True),
        KnownTruth(
            name="randomised_response",
            # delta = p - e^eps (1 - p) with p = e / (e + 1)
            epsilon=lambda delta: max(0.0, math.log(math.e - delta * (math.e + 1.0))) if delta < 0.4 else 0.0,
            mu=2.0 * float(ndtri(math.e / (math.e + 1.0))),
            sample=_randomised_response,
            is_gaussian=False,
        ),
        KnownTruth(
            name="laplace",
            # delta = 1 - exp((eps - 1) / 2)
            epsilon=lambda delta: max(0.0, 1.0 + 2.0 * math.log1p(-delta)),
            mu=2.0 * float(ndtri(1.0 - 0.5 * math.exp(-0.5))),  # The threshold in the middle is the best.
            sample=_laplace,
            is_gaussian=False,
        ),
        KnownTruth(
            name="gaussian",
            epsilon=lambda delta: epsilon_of_delta(1.0, delta),
            mu=1.0,
            sample=_gaussian,
            is_gaussian=True,
        ),
        KnownTruth(
            name="subsampled_gaussian",
            epsilon=_subsampled_epsilon,
            mu=1.0,  # Approached as the threshold grows, where the half that is not sampled says nothing.
            sample=_subsampled,
            is_gaussian=False,
        ),
    )
