"""Histograms of gradient norms, and the clipping norms that DC-SGD reads off them (Wei et al. 2025).

Everything but `norm_histogram` takes counts that are noised already, and so costs no privacy. Noised counts
may be negative, and their total may be: what cannot be read off them is left as it was.

    >>> import torch
    >>> counts = norm_histogram(torch.tensor([0.2, 0.3, 1.1, 9.0]), width=0.5, bins=4)
    >>> counts.tolist()
    [2.0, 0.0, 1.0, 1.0]
    >>> percentile_norm(counts.numpy(), 0.5, percentile=0.6, present=1.0)
    1.25
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import FloatArray

CANDIDATES = 20
"""Clipping norms that are weighed at once: the present one times 1/10, 2/10, ..., 2."""
ROUNDS = 32
"""Most times that the candidates are laid about a new present one."""
FINEST = 1e-3
"""The smallest clipping norm over the width of a bin; the largest is the histogram's end."""
NARROWEST = 1e-12
"""The smallest width of a bin."""


def norm_bins(norms: Tensor, *, width: float, bins: int) -> Tensor:
    """The bin of each norm, shape `(n,)`; all beyond the histogram's end (NaN, too) are in the last."""
    places = torch.nan_to_num(norms.double() / width, nan=math.inf).clamp(max=bins - 1)
    return places.long()


def norm_histogram(norms: Tensor, *, width: float, bins: int) -> Tensor:
    """How many of the norms lie in each bin, shape `(bins,)`; one record changes one count by 1."""
    counts = torch.bincount(norm_bins(norms, width=width, bins=bins), minlength=bins)
    return counts.to(norms.dtype)


def bin_middles(bins: int, width: float) -> FloatArray:
    """The norm that stands for each bin, shape `(bins,)`."""
    middles: FloatArray = (np.arange(bins, dtype=np.float64) + 0.5) * width
    return middles


def percentile_norm(counts: FloatArray, width: float, *, percentile: float, present: float) -> float:
    """DC-SGD-P: the first bin up to which more than the share `percentile` of the records lies.

    Args:
        counts: Noised, shape `(bins,)`.
        width: Of a bin.
        percentile: In (0, 1).
        present: The clipping norm that is kept where the counts do not add up to anything.
    """
    total = float(counts.sum())
    if total <= 0:
        return present
    beyond = np.flatnonzero(np.cumsum(counts) > percentile * total)
    return float(bin_middles(len(counts), width)[beyond[0]])


def expected_error_norm(counts: FloatArray, width: float, *, variance: float, present: float) -> float:
    """DC-SGD-E: the clipping norm C that minimises variance C^2 + mean of max(norm - C, 0)^2.

    Candidates are laid about the present norm, and again about the best of them while that is an end one.

    Args:
        counts: Noised, shape `(bins,)`.
        width: Of a bin.
        variance: Of the mean gradient's noise, summed over its coordinates, at C = 1.
        present: The clipping norm in use; kept where the counts do not add up to anything.
    """
    total = float(counts.sum())
    if total <= 0:
        return present
    middles = bin_middles(len(counts), width)
    least, most = FINEST * width, len(counts) * width
    best = min(max(present, least), most)
    for _ in range(ROUNDS):
        candidates = best * np.arange(1, CANDIDATES + 1) / (CANDIDATES / 2)
        beyond = np.maximum(middles - candidates[:, None], 0.0)
        errors = variance * candidates**2 + (beyond**2 @ counts) / total
        index = int(np.argmin(errors))
        best = min(max(float(candidates[index]), least), most)
        if 0 < index < CANDIDATES - 1 or best in (least, most):
            break
    return best


def next_width(counts: FloatArray, width: float) -> float:
    """Twice the width where over half of the records is in the last bin, half where few are in the upper.

    Few: the upper half of the bins holds less than one bin's even share.
    """
    total, bins = float(counts.sum()), len(counts)
    if total <= 0:
        return width
    if counts[-1] > total / 2:
        return 2 * width
    if counts[bins // 2 :].sum() < total / bins:
        return max(width / 2, NARROWEST)
    return width
