"""Sums with correlated noise: matrix factorisation, trees and banded Toeplitz noise, whole or on samples.

A run releases A x = B (C x + z) for the rows x of the steps' sums, z Gaussian: that is a post-processing of C
x + z. One record changes the rows of the steps in which it takes part by vectors of norm at most 1, so the
whole run is one Gaussian event whose sensitivity is the largest norm of C x over the patterns in which a
record may take part. Steps may depend on earlier outputs where C is lower triangular (Denisov, McMahan, Rush,
Smith and Thakurta 2022, theorem 2.1). They may where C is taller, as for trees, and a row is released once
the last step in it is done: whatever an adversary picks by the rows before, the squared shifts of all rows
add up to at most the squared sensitivity. So the log-likelihood ratio is a Brownian motion with drift that is
stopped by a clock of at most that much, and dominated by the one that runs on (Smith and Thakurta 2022, on
adaptive Gaussian composition).

With X = C^T C and a pattern of steps, the squared sensitivity is at most the sum of |X_st| over the
pattern's pairs, and at least the sum of s_s s_t X_st for any signs, which a record with contributions u or
-u attains. Both are equal for one participation, and where X has no negative entries (Choquette-Choo,
McMahan, Rush and Thakurta 2023, theorem 2). The largest sum over patterns is bounded by one row after the
other: exactly where X is zero between steps that are as far apart as participations are, as for banded C.

**On samples** (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta and Xu 2023, theorem 4). The records
are split into b groups, by a rule that looks at one record at a time and is no secret; step t draws a Poisson
sample from group t mod b. C is b-banded: C_rt = 0 unless t <= r < t + b. A record of group j meets the
columns t = j, j + b, ... only, whose rows [t, t + b) do not overlap. In one such block the outputs are z,
plus the other records' sums, plus the record's contribution x times the column of C in b rows if it is drawn,
which a coin decides that no other output depends on. x is chosen before the block. The others' sums depend on
the block's earlier outputs and on coins that are the same for both neighbours: given the coins, taking them
away row by row is a bijection that keeps volumes. What is left is (1 - p) N(0) + p N(v), |v| at most the
column's norm c_t, against N(0), or against the same with another v under replace-one: a subsampled Gaussian
of noise multiplier s / c_t. Averages over coins are joint convexity, blocks compose adaptively. Others that
contribute nothing and x always in one direction (under replace-one its reverse) attain it: the k-th
participation has the loss of that subsampled Gaussian, independently of the others. So the run is as private
as the group whose norms are worst. Both ends are these norms, where one group has the largest ones in each
place.
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
        encoder: The rows of C, square and lower triangular; or more rows than columns, each released once the
            last step in it is done. `workbench.accounting.encoders` makes some.
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
        most = len(self.encoder[0])
        for name in ("participations", "separation"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1, most=most))

    def describe(self) -> str:
        """`correlated Gaussian (noise multiplier 1, 100 steps, 1 participations)`."""
        apart = f" at least {self.separation} apart" if self.participations > 1 else ""
        return (
            f"correlated Gaussian (noise multiplier {self.noise_multiplier:g}, {len(self.encoder[0])} steps, "
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
        lower = max(
            _sum_over_signs(x[np.ix_(steps, steps)], error[np.ix_(steps, steps)]) for steps in patterns
        )
        slack = Fraction(1, 10**9)
        return max(Fraction(lower) * (1 - slack), Fraction(0)), Fraction(upper) * (1 + slack)

    def _regular(self) -> list[list[int]]:
        """Patterns with all participations as close as they may be."""
        count, apart = len(self.encoder[0]), self.separation
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
        return min(self.participations, -(-len(self.encoder[0]) // self.separation))

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


def _sum_over_signs(products: FloatArray, error: FloatArray) -> float:
    """A lower end of the largest sum of s_i s_j times the products, over signs s.

    The better of two choices: all alike, and each next one as the sum so far has it.

    Args:
        products: Of a pattern's columns, each off by `error` at most.
    """
    alike, chosen = np.ones(len(products)), np.ones(len(products))
    for step in range(1, len(products)):
        chosen[step] = 1.0 if products[step, :step] @ chosen[:step] >= 0 else -1.0
    sums = []
    for signs in (alike, chosen):
        terms = signs[:, None] * signs * products - error
        sums.append(float(terms.sum() - 1e-12 * np.abs(terms).sum()))
    return max(sums)


@dataclass(frozen=True, kw_only=True)
class SampledCorrelatedGaussian(Event):
    """A whole run of correlated noise whose encoder is banded, on Poisson samples of groups that take turns.

    Each record belongs to one of `groups` groups, by a rule that looks at that record alone; step t draws
    each record of group t mod `groups` with probability `sampling_probability`, in secret.

    Attributes:
        noise_multiplier: Standard deviation of z over one record's largest contribution to one step.
        encoder: The rows of C, square and lower triangular, no entry `groups` or more below the diagonal.
        sampling_probability: Of each record of the group whose turn it is.
        groups: How many groups there are.

    Raises:
        InputError: a parameter is out of range, or the matrix has another shape or more bands.
    """

    noise_multiplier: float
    encoder: tuple[tuple[float, ...], ...]
    sampling_probability: float
    groups: int

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        rows = _square(self.encoder)
        object.__setattr__(self, "encoder", rows)
        q = number("sampling_probability", self.sampling_probability, above=0, most=1)
        object.__setattr__(self, "sampling_probability", q)
        groups = whole_number("groups", self.groups, least=1, most=MOST_STEPS)
        object.__setattr__(self, "groups", groups)
        if len(rows) != len(rows[0]):
            raise InputError(f"encoder must be a square, got {len(rows)} rows of {len(rows[0])}")
        for index, row in enumerate(rows):
            if any(row[: max(index + 1 - groups, 0)]):
                raise InputError(
                    f"encoder must have at most {groups} bands, as many as groups, got {row!r}"[:200]
                )

    def describe(self) -> str:
        """`correlated Gaussian on samples (noise multiplier 1, 100 steps, ...)`."""
        return (
            f"correlated Gaussian on samples (noise multiplier {self.noise_multiplier:g}, "
            f"{len(self.encoder)} steps, sampling probability {self.sampling_probability:g}, "
            f"{self.groups} groups)"
        )

    def squared_norms(self) -> list[list[Fraction]]:
        """For each group the squared norms of its columns of C, the largest first, without zeros."""
        each = []
        for group in range(min(self.groups, len(self.encoder))):
            norms = [self._squared_norm(step) for step in range(group, len(self.encoder), self.groups)]
            each.append(sorted((norm for norm in norms if norm), reverse=True))
        return each

    def _squared_norm(self, step: int) -> Fraction:
        rows = self.encoder[step : step + self.groups]
        return sum((Fraction(row[step]) ** 2 for row in rows), Fraction(0))


def _square(rows: Any) -> tuple[tuple[float, ...], ...]:
    """A matrix as rows of plain numbers: lower triangular where it is square, else taller than it is wide."""
    try:
        matrix = tuple(tuple(row) for row in rows)
    except TypeError:
        raise InputError(f"encoder must be rows of numbers, got {object_line(rows)}") from None
    steps = len(matrix[0]) if matrix else 0
    if not 1 <= steps <= MOST_STEPS or len(matrix) < steps or any(len(row) != steps for row in matrix):
        raise InputError(
            f"encoder must be a square of 1 to {MOST_STEPS} rows, or have more rows than columns, "
            f"got {len(matrix)} of {object_line(rows)}"
        )
    checked = tuple(tuple(number("encoder", v, least=-1e100, most=1e100) for v in row) for row in matrix)
    for index, row in enumerate(checked):
        if len(checked) == steps and any(row[index + 1 :]):
            raise InputError(f"encoder must be lower triangular, got {row!r} as row {index}"[:200])
    if not any(any(abs(value) > 1e-100 for value in row) for row in checked):
        raise InputError("encoder must have an entry other than 0, got none")
    return checked
