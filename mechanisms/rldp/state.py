"""What RLDP's controller sees: statistics of the latest batch (Section 2.4), and the warm-up's norm buffer.

The entries, for n adapters, of which the vector has 5 n + 6:

    q_.25, q_.50, q_.75 of each adapter's norms nu_i (linear interpolation)     3 n
    utility u = -log PPL                                                        1
    the ledger's epsilon                                                        1
    dispersion: variance of all norms about their mean                          1
    loss                                                                        1
    mean and variance of each adapter's Fisher elements F_i = nu_i^2            2 n
    skewness and kurtosis of all norms                                          2

The paper speaks of twelve summaries and a ledger, and lists eleven with it. Whether Fisher moments are one
pair or one an adapter is not said: here one an adapter, as the elements are. What is printed as excess
kurtosis lacks the -3; a constant is lost in the normalisation that follows. A record's loss is here the mean
over its tokens and a batch's the mean over its records, so utility is minus the loss, as it is by Eq. 9: both
are kept, as listed. Fisher elements are those of the mean log-likelihood a token.

These are raw statistics of raw gradients: norms before any clipping, with a canary's among them where one
takes part, and losses before any noise. Nothing here is private.
"""

from __future__ import annotations

import math

import numpy as np

from workbench.interfaces import FloatArray

QUARTILES = (0.25, 0.5, 0.75)


def state_size(adapters: int) -> int:
    """Number of entries of the state vector."""
    return 5 * adapters + 6


def statistics(norms: FloatArray, loss: float, ledger_epsilon: float) -> FloatArray:
    """The state vector before normalisation, shape `(5 n + 6,)`; the order is that of the module's text.

    Args:
        norms: Norms of at least one record, shape `(records, n)`.
        loss: Mean loss of the batch, nats a token.
        ledger_epsilon: The ledger after the step.
    """
    centred = norms - norms.mean()
    variance = float(np.mean(centred**2))
    scale = math.sqrt(variance)
    # Equal norms have no shape: 0 / 0 counts as 0.
    shape = centred / scale if scale > 0 else centred
    fisher = norms**2
    return np.concatenate(
        [
            np.quantile(norms, QUARTILES, axis=0).ravel(),
            [-loss, ledger_epsilon, variance, loss],
            fisher.mean(0),
            fisher.var(0),
            [np.mean(shape**3), np.mean(shape**4)],
        ]
    ).astype(np.float64)


class NormBuffer:
    """The latest norms of each adapter, whose medians are the radii of the warm-up (Algorithm 1, line 17).

    The paper does not say how many it keeps; with the default it holds a whole warm-up of 50 batches of 16.
    """

    def __init__(self, capacity: int, adapters: int) -> None:
        """An empty buffer for `capacity` records' norms of each adapter."""
        self._capacity = capacity
        self._norms: FloatArray = np.zeros((0, adapters))

    def add(self, norms: FloatArray) -> None:
        """Append a batch's norms, shape `(records, n)`; the oldest are dropped."""
        self._norms = np.concatenate([self._norms, norms])[-self._capacity :]

    def medians(self, otherwise: FloatArray) -> FloatArray:
        """Median of each adapter's norms, shape `(n,)`; `otherwise` where there is no positive one.

        A radius must be positive (Section 2.3), and an adapter without gradients has median norm zero.
        """
        if not len(self._norms):
            return otherwise
        found = np.median(self._norms, axis=0)
        return np.where(found > 0, found, otherwise).astype(np.float64)
