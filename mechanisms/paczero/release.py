"""PACZero's releases, and the one place where the secret is read (Ertan et al. 2026, Algorithm 1).

All that decides about a release is public, or at least a function of past releases and their noise: the
candidates' signs, the posterior, the budget, sigma. The secret index lives in `SecretSubset`, which tells one
thing only: the sign of a release that the ledger has charged, and never where the release is a coin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.mechanisms.accountants.paczero import Charge, PacZeroLedger

Signs = npt.NDArray[np.int8]


class SecretSubset:
    """The index of the secret subset.

    Attributes:
        reads: How often it was looked at.
    """

    def __init__(self, index: int) -> None:
        """Keep the index."""
        self.__index = index
        self.reads = 0

    def sign(self, signs: Signs, charge: Charge) -> int:
        """The secret's sign, for a release that was charged as this.

        Raises:
            InputError: the release is a coin, which may depend on no secret.
        """
        if math.isinf(charge.noise):
            raise InputError(
                f"noise must be finite where the secret's sign is asked for, got {charge.noise!r}"
            )
        self.reads += 1
        return int(signs[self.__index])


@dataclass(frozen=True, kw_only=True)
class Release:
    """A released bit.

    Attributes:
        charge: What the ledger says of it.
        value: The secret's sign with its noise; the bit itself where there is none, NaN for a coin.
        bit: -1 or 1.
    """

    charge: Charge
    value: float
    bit: int


class SubsetReleases:
    """Charges and releases, one after the other."""

    def __init__(
        self,
        ledger: PacZeroLedger,
        secret: SecretSubset,
        generator: np.random.Generator,
        *,
        unanimous_release: str = "secret",
    ) -> None:
        """Begin a run.

        Args:
            ledger: A fresh one.
            secret: Which candidate is trained on.
            generator: Of the noise and the coins; as secret as the index.
            unanimous_release: `"secret"`: on unanimity the secret's sign, as printed; `"majority"`: the sign
                that has more of the posterior, which looks at no secret.
        """
        self.ledger = ledger
        self._secret, self._generator, self._unanimous = secret, generator, unanimous_release

    def release(self, signs: Signs) -> Release:
        """Lines 8 to 15 for one direction.

        Args:
            signs: Of every candidate, -1 or 1, shape `(M,)`.

        Raises:
            InputError: as `PacZeroLedger.charge`.
        """
        charge = self.ledger.charge(signs.astype(np.float64))
        if charge.unanimous:
            return self._agreed(signs, charge)
        if math.isinf(charge.noise):
            return Release(charge=charge, value=math.nan, bit=self._coin())
        value = self._secret.sign(signs, charge) + charge.noise * float(self._generator.standard_normal())
        self.ledger.observe(signs.astype(np.float64), value)
        return Release(charge=charge, value=value, bit=_sign(value))

    def _agreed(self, signs: Signs, charge: Charge) -> Release:
        """Line 10."""
        if self._unanimous == "majority":
            bit = _sign(2.0 * charge.agreement - 1.0)
        else:
            bit = self._secret.sign(signs, charge)
        return Release(charge=charge, value=float(bit), bit=bit)

    def _coin(self) -> int:
        """Eq. 8: of neither secret nor data."""
        return 1 - 2 * int(self._generator.integers(2))


def _sign(value: float) -> int:
    """With sign(0) = +1 (appendix C)."""
    return 1 if value >= 0 else -1


def signs_of_means(held: FloatArray, scalars: FloatArray) -> Signs:
    """Signs of subsets' means, exact for the scalars as they are; sign(0) = +1 (appendix C).

    Clipped scalars often add up to 0, which a rounded sum misses.

    Args:
        held: 1 where a subset holds a record, else 0, shape `(M, N)`; no row is empty.
        scalars: Finite, shape `(N, K)`.

    Returns:
        -1 or 1, shape `(M, K)`.
    """
    sums: FloatArray = held @ scalars
    doubtful = np.abs(sums) <= np.abs(scalars).sum(axis=0) * (len(scalars) * 2.0**-52)
    for subset, column in np.argwhere(doubtful):
        sums[subset, column] = math.fsum(held[subset] * scalars[:, column])
    found: Signs = np.where(sums >= 0, 1, -1).astype(np.int8)
    return found
