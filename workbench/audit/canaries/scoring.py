"""One number a canary: how far the recorded updates went where it pulls.

Nothing here sees a coin, so whatever the numbers are, they are a function of what the training released.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import FloatArray

RIDGE = 0.1
"""Added to the squared length, 1, of each direction; it steadies canaries that pull almost alike."""

SMALL = 0.1
"""A gradient below this share of the median one's length is not stretched to length 1: it moved little."""

USUAL_RATE, RATES = 0.3, (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of the steps that a member takes part in, and the one that is assumed until another is likelier."""

LIKELIER = 10.0
"""Natural logarithm of how much likelier all moves must be under another rate; stray moves look rare."""

SIZES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
"""Standard deviations by which a member moves its own number in a step that it takes part in."""


@torch.no_grad()
def moves(directions: Tensor, gradient: Tensor) -> FloatArray:
    """How much of each canary's direction is in an update, beside those of all others.

    The update is projected on all directions together (least squares, with a ridge), so that a canary is not
    given what another one did; then centred and scaled over the canaries, so that no step outweighs the
    others.

    Args:
        directions: Gradient of each canary, shape `(canaries, columns)`.
        gradient: The update, shape `(columns,)`.

    Returns:
        Shape `(canaries,)`; zeros where nothing can be said.
    """
    nothing = np.zeros(len(directions))
    if not (bool(torch.isfinite(directions).all()) and bool(torch.isfinite(gradient).all())):
        return nothing
    lengths = torch.linalg.vector_norm(directions, dim=1)
    typical = float(lengths.median())
    if typical <= 0:
        return nothing
    rows = directions / lengths.clamp(min=SMALL * typical)[:, None]
    identity = torch.eye(len(rows), dtype=torch.float64)
    found: FloatArray = torch.linalg.solve(
        (rows @ rows.T).double() + RIDGE * identity, (rows @ gradient).double()
    ).numpy()
    spread = float(found.std())
    return (found - found.mean()) / spread if spread > 0 else nothing


def scores_of(moved: FloatArray) -> FloatArray:
    """The log-likelihood ratio of each canary's moves, if it is a member against if it is not.

    In the model, a member takes part in a share of the steps, which moves its number by a constant in units
    of a normal deviation; share and constant are those of a grid under which all moves are likeliest, members
    or not with chance 1/2.

    Args:
        moved: What `moves` returns for each step, shape `(steps, canaries)`.

    Returns:
        Shape `(canaries,)`; higher = member.
    """
    best, scores = -math.inf, np.zeros(moved.shape[1])
    for rate, size in itertools.product(RATES, SIZES):
        ratios, likelihood = _ratios(moved, rate, size)
        likelihood += LIKELIER * (rate == USUAL_RATE)
        if likelihood > best:
            best, scores = likelihood, ratios
    return scores


def _ratios(moved: FloatArray, rate: float, size: float) -> tuple[FloatArray, float]:
    """The log-likelihood ratios of one model, and the log-likelihood of all moves under it."""
    share = rate / 2
    deviation = 1 / math.sqrt(1 + size**2 * share * (1 - share))  # The moves have mean 0 and variance 1.
    standard = moved / deviation + size * share
    absent = math.log1p(-rate) if rate < 1 else -math.inf
    ratios: FloatArray = np.logaddexp(absent, math.log(rate) + size * standard - size**2 / 2).sum(axis=0)
    outside = float((-0.5 * standard**2 - math.log(deviation)).sum())
    return ratios, outside + float((np.logaddexp(0.0, ratios) - math.log(2)).sum())


def paired(scores: FloatArray) -> FloatArray:
    """Compares the score of each canary in a run with its scores in the other runs.

    Subtracts what is the canary's own, whatever its coin: the mean of its other runs, shrunk by how much
    scores of one canary agree between runs (coins are independent, so they have no part in that).

    Args:
        scores: Shape `(runs, canaries)`.

    Returns:
        The same shape; a single run as it is.
    """
    runs = len(scores)
    if runs < 2:
        return scores
    covariance = np.atleast_2d(np.cov(scores))
    own = (covariance.sum() - np.trace(covariance)) / (runs * (runs - 1))
    rest = np.trace(covariance) / runs - own
    shrunk = own / (own + rest / (runs - 1)) if own > 0 else 0.0
    others = (scores.sum(axis=0) - scores) / (runs - 1)
    return np.asarray(scores - shrunk * others)
