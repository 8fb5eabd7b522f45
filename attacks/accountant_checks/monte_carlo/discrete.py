"""A pair of neighbours over finitely many outputs, and its exponential tilt."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workbench.attacks.accountant_checks.monte_carlo.pairs import ExactTilt, Samples
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray


@dataclass(frozen=True, kw_only=True)
class DiscretePair:
    """Two distributions over the outputs 0, 1, ..., k - 1, as log-probabilities.

    Attributes:
        log_p, log_q: One entry an output; -inf for an output that never comes.

    Raises:
        InputError: lengths differ, or the probabilities do not sum to 1.
    """

    log_p: tuple[float, ...]
    log_q: tuple[float, ...]
    dimension: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        if len(self.log_p) != len(self.log_q):
            raise InputError(f"log_q must be as long as log_p ({len(self.log_p)}), got {len(self.log_q)}")
        for name, logs in (("log_p", self.log_p), ("log_q", self.log_q)):
            total = math.fsum(map(math.exp, logs))
            if not abs(total - 1) < 1e-12:
                raise InputError(f"{name} must be probabilities that sum to 1, their sum is {total!r}")

    def describe(self) -> str:
        """`discrete pair (2 outputs)`."""
        return f"discrete pair ({len(self.log_p)} outputs)"

    @property
    def _table(self) -> FloatArray:
        """Loss of each output; +inf where only P gives it."""
        log_p, log_q = np.array(self.log_p), np.array(self.log_q)
        with np.errstate(invalid="ignore"):
            loss: FloatArray = np.where(np.isneginf(log_p), -np.inf, log_p - log_q)
        return loss

    @property
    def infinite_mass(self) -> float:
        """P of the outputs that Q never gives."""
        return math.fsum(math.exp(p) for p, q in zip(self.log_p, self.log_q, strict=True) if q == -math.inf)

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """Output numbers."""
        return rng.choice(len(self.log_p), size=n, p=_normalised(np.array(self.log_p)))

    def log_density_p(self, x: Samples) -> FloatArray:
        """Log-probabilities under P."""
        return np.array(self.log_p)[_indices(x)]

    def log_density_q(self, x: Samples) -> FloatArray:
        """Log-probabilities under Q."""
        return np.array(self.log_q)[_indices(x)]

    def losses(self, x: Samples) -> FloatArray:
        """Loss of each output."""
        return self._table[_indices(x)]

    def swapped(self) -> DiscretePair:
        """P and Q exchanged."""
        return DiscretePair(log_p=self.log_q, log_q=self.log_p)

    def _tilted(self, t: float) -> FloatArray:
        """log(p * exp(t * L)) of each output, -inf where the loss is not finite."""
        table = self._table
        finite = np.isfinite(table)
        tilted = np.full(len(table), -np.inf)
        tilted[finite] = np.array(self.log_p)[finite] + t * table[finite]
        return tilted

    def log_envelope(self, t: float) -> float:
        """log M(t) over the finite losses."""
        return float(np.logaddexp.reduce(self._tilted(t)))

    def truncated_share(self, t: float) -> float:
        """Nothing else is left out."""
        return 0.0

    def tilt(self, t: float) -> ExactTilt:
        """Reweigh the table."""
        tilted = self._tilted(t)
        shares = _normalised(tilted) if np.isfinite(tilted).any() else None

        def sampler(n: int, rng: np.random.Generator) -> Samples:
            if shares is None:
                raise InputError("q must give some output of p, to be tilted")
            return rng.choice(len(tilted), size=n, p=shares)

        return ExactTilt(t=t, log_envelope=self.log_envelope(t), sampler=sampler)


def _normalised(logs: FloatArray) -> FloatArray:
    """Probabilities of these log-weights."""
    weights = np.exp(logs - logs.max())
    shares: FloatArray = weights / weights.sum()
    return shares


def _indices(x: Samples) -> npt.NDArray[np.int64]:
    """Output numbers, whatever type they travelled in."""
    return np.asarray(x).reshape(len(x)).astype(np.int64)
