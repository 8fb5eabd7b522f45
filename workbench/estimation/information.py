"""Mutual information from counts: the bias-corrected plug-in estimator, with an interval.

For pairs (s, y) the plug-in estimator is the information of the observed frequencies. On average it is too
large, by about (cells - rows - columns + 1) / (2 n), which Miller and Madow's correction takes off (1955;
each of the three entropies gains (its cells - 1) / (2 n)). It is made for small worlds, where n is large
against the number of cells.

The interval is normal, by the delta method: the variance of ln p(s, y) / (p(s) p(y)) over n, and that of the
chi-square law that 2 n times the estimate has at independence, where the first term vanishes. It is
asymptotic: no verdict rests on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, xlogy

from workbench.core.errors import InputError
from workbench.estimation.inputs import check_probability
from workbench.interfaces import FloatArray, IntArray

LEAST_EXPECTED, MOST_SPARSE = 5.0, 0.2
"""Cochran's rule (1954) for chi-square laws of counts: at most a fifth of the cells expect less than five."""


@dataclass(frozen=True, kw_only=True)
class PlugIn:
    """An estimate of mutual information, nats.

    Attributes:
        plug_in: Of the observed frequencies, >= 0 unless charges are taken off.
        corrected: Less Miller and Madow's bias.
        lower, upper: Asymptotic interval around `corrected`; the lower end may be negative.
        n: Number of pairs.
        cells: Different pairs that were seen.
        sparse: Share of the cells (each observed secret with each observed symbol) in which independence
            would put fewer than `LEAST_EXPECTED` pairs. Above `MOST_SPARSE` the correction is too small, and
            the interval lies too high.
    """

    plug_in: float
    corrected: float
    lower: float
    upper: float
    n: int
    cells: int
    sparse: float


def plug_in_information(
    secrets: IntArray, symbols: IntArray, *, confidence: float, charged: FloatArray | None = None
) -> PlugIn:
    """Returns the information between two discrete variables, from independent pairs.

    Args:
        secrets, symbols: Whole numbers, shape `(n,)` each, n >= 2.
        confidence: Of the interval, two-sided, in (0, 1).
        charged: An accountant's charge in each pair, nats, shape `(n,)`; the estimates are then of the
            information less the expected charge, which varies with secret and symbol.

    Raises `InputError`: the shapes differ, there are fewer than two pairs, or confidence is out of range.
    """
    n = secrets.size
    if secrets.shape != symbols.shape or secrets.ndim != 1 or n < 2:
        raise InputError(
            "secrets and symbols must be two rows of one length >= 2, got "
            f"{secrets.shape} and {symbols.shape}"
        )
    if charged is not None and charged.shape != secrets.shape:
        raise InputError(f"charged must have shape {secrets.shape}, got {charged.shape}")
    check_probability("confidence", confidence)
    _, rows = np.unique(secrets, return_inverse=True)
    _, columns = np.unique(symbols, return_inverse=True)
    counts = np.zeros((int(rows.max()) + 1, int(columns.max()) + 1))
    np.add.at(counts, (rows, columns), 1.0)
    joint = counts / n
    estimate = information(joint)
    seen = counts > 0
    freedom = max(int(seen.sum()) - counts.shape[0] - counts.shape[1] + 1, 0)
    density = np.zeros_like(joint)
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    density[seen] = np.log(joint[seen] / product[seen])
    gains = density[rows, columns]
    if charged is not None:
        gains = gains - charged
        estimate -= float(charged.mean())
    variance = float(gains.var()) / n + freedom / (2.0 * n**2)
    half = float(ndtri((1.0 + confidence) / 2.0)) * math.sqrt(variance)
    corrected = estimate - freedom / (2.0 * n)
    return PlugIn(
        plug_in=estimate,
        corrected=corrected,
        lower=corrected - half,
        upper=corrected + half,
        n=n,
        cells=int(seen.sum()),
        sparse=float(np.mean(n * product < LEAST_EXPECTED)),
    )


def information(joint: FloatArray) -> float:
    """Mutual information, nats, of a joint law: probabilities that add up to 1, shape `(M, K)`."""
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    return float(np.sum(xlogy(joint, joint) - xlogy(joint, product)))
