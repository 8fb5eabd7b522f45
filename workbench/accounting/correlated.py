"""Sums with correlated noise: matrix factorisation, trees and banded Toeplitz noise, without amplification.

A run releases A x = B (C x + z) for the rows x of the steps' sums, z Gaussian: that is a post-processing of
C x + z. One record changes the rows of the steps in which it takes part by vectors of norm at most 1, so the
whole run is one Gaussian event whose sensitivity is the largest norm of C x over the patterns in which a
record may take part. Steps may depend on earlier outputs where C is lower triangular (Denisov, McMahan, Rush,
Smith and Thakurta 2022, theorem 2.1).

With X = C^T C and a pattern of steps, the squared sensitivity is at most the sum of |X_st| over the pattern's
pairs, and at least the sum of X_st, which a record with the same contribution in each step attains. Both are
equal for one participation, and where X has no negative entries (Choquette-Choo, McMahan, Rush and Thakurta
2023, theorem 2). The largest sum over patterns is bounded by one row after the other: exactly where X
is zero between steps that are as far apart as participations are, as for banded C.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from workbench.accounting.events import Event
from workbench.core.arguments import number, whole_number
from workbench.core.errors import InputError
from workbench.core.one_line import object_line
from workbench.interfaces import FloatArray

MOST_STEPS = 2000
_ROUND_OFF = 2.0**-53


@dataclass(frozen=True, kw_only=True)
class CorrelatedGaussian(Event):
    """The releases of a whole run whose noise is correlated by an encoder matrix C.

    Attributes:
        noise_multiplier: Standard deviation of z over one record's largest contribution to one step.
        encoder: The rows of C, square and lower triangular.
        participations: The most steps in which one record takes part.
        separation: The least distance of two such steps; 1 for any.

    Raises:
        InputError: a parameter is out of range, or the matrix has another shape.
    """

    noise_multiplier: float
    encoder: tuple[tuple[float, ...], ...]
    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        object.__setattr__(self, "encoder", _square(self.encoder))
        most = len(self.encoder)
        for name in ("participations", "separation"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1, most=most))

    def describe(self) -> str:
        """`correlated Gaussian (noise multiplier 1, 100 steps, 1 participations)`."""
        apart = f" at least {self.separation} apart" if self.participations > 1 else ""
        return (
            f"correlated Gaussian (noise multiplier {self.noise_multiplier:g}, {len(self.encoder)} steps, "
            f"{self.participations} participations{apart})"
        )

    @cached_property
    def squared_sensitivity(self) -> tuple[Fraction, Fraction]:
        """Lower and upper end of the squared sensitivity under add-remove and zero-out."""
        matrix = np.array(self.encoder)
        x = matrix.T @ matrix
        # A sum of n products in any order is off by at most n u of the sum of their sizes, and a little.
        error = 2 * (len(matrix) + 2) * _ROUND_OFF * (np.abs(matrix).T @ np.abs(matrix))
        most, least = np.abs(x) + error, x - error
        rows = np.diag(most).copy()
        if self.participations > 1:
            rows += self._best_others(most)
        upper, pattern = self._best_pattern(rows)
        patterns = [pattern, [int(np.argmax(np.diag(least)))], *self._regular()]
        blocks = [least[np.ix_(steps, steps)] for steps in patterns]
        lower = max(float(block.sum() - 1e-12 * np.abs(block).sum()) for block in blocks)
        slack = Fraction(1, 10**9)
        return max(Fraction(lower) * (1 - slack), Fraction(0)), Fraction(upper) * (1 + slack)

    def _regular(self) -> list[list[int]]:
        """Patterns with all participations as close as they may be."""
        count, apart = len(self.encoder), self.separation
        return [list(range(start, count, apart))[: self.participations] for start in range(count)]

    def _best_others(self, most: FloatArray) -> FloatArray:
        """For each step s, the largest sum of most[s, t] over the other steps t of a pattern with s."""
        count, apart = len(most), self.separation
        steps = np.arange(count)
        far = np.where(np.abs(steps[:, None] - steps[None, :]) >= apart, most, 0.0)
        # A ring of the last `apart` + 1 tables: that of the steps up to t stands at t + apart.
        table, ring = np.zeros((self._participations, apart + 1, count)), apart + 1
        for t in range(count):
            before, taken = table[:, (t + apart - 1) % ring], table[:-1, t % ring] + far[:, t]
            after = before.copy()
            after[1:] = np.maximum(after[1:], taken)
            table[:, (t + apart) % ring] = after
        best: FloatArray = table[-1, (count - 1 + apart) % ring] * (1 + 1e-12)
        return best

    @property
    def _participations(self) -> int:
        """As many as there is room for."""
        return min(self.participations, -(-len(self.encoder) // self.separation))

    def _best_pattern(self, rows: FloatArray) -> tuple[float, list[int]]:
        """The largest sum of rows over a pattern, and the pattern."""
        count, apart, most = len(rows), self.separation, self._participations
        table = np.zeros((most + 1, count + apart))
        for t in range(count):
            table[:, t + apart] = table[:, t + apart - 1]
            table[1:, t + apart] = np.maximum(table[1:, t + apart], table[:-1, t] + rows[t])
        left, t, pattern = most, count - 1, list[int]()
        while t >= 0 and left:
            if table[left, t + apart] > table[left, t + apart - 1]:
                pattern.append(t)
                left, t = left - 1, t - apart
            else:
                t -= 1
        return float(table[-1, -1]), pattern


def _square(rows: Any) -> tuple[tuple[float, ...], ...]:
    """A lower triangular matrix as rows of plain numbers."""
    try:
        matrix = tuple(tuple(row) for row in rows)
    except TypeError:
        raise InputError(f"encoder must be rows of numbers, got {object_line(rows)}") from None
    if not 1 <= len(matrix) <= MOST_STEPS or any(len(row) != len(matrix) for row in matrix):
        raise InputError(
            f"encoder must be a square of 1 to {MOST_STEPS} rows, got {len(matrix)} of {object_line(rows)}"
        )
    checked = tuple(tuple(number("encoder", v, least=-1e100, most=1e100) for v in row) for row in matrix)
    for index, row in enumerate(checked):
        if any(row[index + 1 :]):
            raise InputError(f"encoder must be lower triangular, got {row!r} as row {index}"[:200])
    if not any(any(abs(value) > 1e-100 for value in row) for row in checked):
        raise InputError("encoder must have an entry other than 0, got none")
    return checked
