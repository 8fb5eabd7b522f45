"""Monte Carlo for sums of lognormals, and how far approximations are from it.

Bounded memory, resumable, with bands that hold at every size.

>>> law = LognormalSum.identical(100, 0.25)
>>> draws = monte_carlo(law, repeats=2000, seed=1)
>>> bool(error(fenton_wilkinson(law), draws).lower == 0.0)
True
>>> hard = LognormalSum.identical(1000, 4.0)
>>> bool(error(fenton_wilkinson(hard), monte_carlo(hard, repeats=2000, seed=1)).lower > 0.5)
True
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums.laws import (
    LognormalFit,
    LognormalSum,
    LogSumLaw,
    fenton_wilkinson,
    kernel_density,
    least_squares,
    schwartz_yeh,
    sum_of_exponentials,
)

_LOWEST = -9.0
"""Normals below it are drawn from the lowest bin: a share of 1e-19 of the terms."""
_BERRY_ESSEEN = 0.56
"""Shevtsova 2010: for independent summands that need not be identical."""


class Drawable(Protocol):
    """What `monte_carlo` draws from."""

    @property
    def work(self) -> int:
        """Numbers that one draw takes."""
        ...

    @property
    def bias(self) -> float:
        """Bound on sup |F_drawn - F|."""
        ...

    def describe(self) -> str:
        """One line that names the law exactly."""
        ...

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """`size` draws of log S."""
        ...


@dataclass(frozen=True, kw_only=True)
class ErrorInterval:
    """sup |F_approximation - F| over all values.

    Attributes:
        lower, estimate, upper: Ends and plug-in value.
        confidence: That the ends hold the truth, 1 for a computed one.
    """

    lower: float
    estimate: float
    upper: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class ProbabilityInterval:
    """A probability, by Clopper and Pearson."""

    lower: float
    estimate: float
    upper: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class SumSample:
    """Independent draws of log S.

    Attributes:
        log_sums: Sorted, shape `(n,)`.
        bias: Bound on sup |F_drawn - F|, 0 where every term was drawn.
    """

    log_sums: FloatArray
    bias: float = 0.0

    def half_width(self, confidence: float) -> float:
        """DKW's: with this confidence no value of the distribution function is further off.

        Source: Massart 1990, with the tight constant: sqrt(log(2 / (1 - confidence)) / (2 n)).
        """
        _check_confidence(confidence)
        return math.sqrt(math.log(2 / (1 - confidence)) / (2 * self.log_sums.size)) + self.bias

    def cdf(self, log_sum: FloatArray) -> FloatArray:
        """Share of draws at or below each value."""
        at = np.searchsorted(self.log_sums, np.asarray(log_sum), side="right")
        shares: FloatArray = at / self.log_sums.size
        return shares

    def band(self, log_sum: FloatArray, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Ends that hold F at all values at once (DKW)."""
        half, middle = self.half_width(confidence), self.cdf(log_sum)
        return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)

    def probability(self, log_sum: float, confidence: float = 0.95) -> ProbabilityInterval:
        """P(log S <= log_sum) at one value that was fixed beforehand (Clopper-Pearson, widened by `bias`)."""
        _check_confidence(confidence)
        n = self.log_sums.size
        k = int(np.searchsorted(self.log_sums, log_sum, side="right"))
        share = (1 - confidence) / 2
        low = float(betaincinv(k, n - k + 1, share)) if k > 0 else 0.0
        high = float(betaincinv(k + 1, n - k, 1 - share)) if k < n else 1.0
        return ProbabilityInterval(
            lower=max(0.0, low - self.bias),
            estimate=k / n,
            upper=min(1.0, high + self.bias),
            confidence=confidence,
        )


def error(approximation: LogSumLaw, sample: SumSample, *, confidence: float = 0.95) -> ErrorInterval:
    """sup |F - F_S| of an approximation, by draws of S that the approximation has not seen.

    The empirical supremum is off by at most the DKW half width, so the interval holds with the confidence at
    every n; it holds for any number of approximations at once, since one band serves them all.

    Args:
        approximation: A continuous distribution function of log S.
        sample: Independent draws.
        confidence: In (0, 1).

    Raises:
        InputError: confidence is outside (0, 1).
    """
    half = sample.half_width(confidence)
    n = sample.log_sums.size
    values = approximation.cdf(sample.log_sums)
    ranks = np.arange(n)
    distance = float(max(np.max((ranks + 1) / n - values), np.max(values - ranks / n)))
    return ErrorInterval(
        lower=max(0.0, distance - half),
        estimate=distance,
        upper=min(1.0, distance + half),
        confidence=confidence,
    )


@dataclass(frozen=True, kw_only=True)
class CountedSum:
    """The same law, drawn by counts: the way to d = 1e8 in milliseconds instead of seconds.

    A group's normals are counted in narrow bins (one multinomial draw); the largest are drawn one by one; and
    what the others add beyond their bins' means is drawn as one normal number with the exact variance. By
    Berry and Esseen the distribution function is off by at most `bias` (evaluated at the expected counts),
    and intervals are widened by it. Groups of at most 4 * `tail` terms are drawn term by term.

    Attributes:
        law: What is drawn.
        tail: Expected number of a group's normals that are drawn one by one.
        bins: Bins of the others.

    Raises:
        InputError: tail or bins is below 1.
    """

    law: LognormalSum
    tail: int = 100_000
    bins: int = 4096

    def __post_init__(self) -> None:
        if self.tail < 1:
            raise InputError(f"tail must be >= 1, got {self.tail!r}")
        if self.bins < 1:
            raise InputError(f"bins must be >= 1, got {self.bins!r}")

    @property
    def work(self) -> int:
        """Numbers that one draw takes."""
        return sum(
            min(count, self.tail + self.bins) if self._counts(count) else count
            for _, count in self.law.groups
        )

    @property
    def bias(self) -> float:
        """Bound on sup |F_drawn - F|: Berry and Esseen's for the sum over the groups that are counted."""
        counts = [count for _, count in self.law.groups if self._counts(count)]
        return sum(self._table(count).berry_esseen for count in counts)

    def describe(self) -> str:
        """One line that names law and method."""
        return f"{self.law.describe()}; by counts, tail {self.tail}, bins {self.bins}"

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """`size` draws of log S, shape `(size,)`."""
        top = max(mu for mu, _ in self.law.groups)
        totals = np.zeros(size)
        for mu, count in self.law.groups:
            if self._counts(count):
                table = self._table(count)
                part = np.array([table.draw(rng) for _ in range(size)])
            else:
                part = sum_of_exponentials(rng, size, count, self.law.sigma, chunk=1 << 18)[0]
            totals += math.exp(mu - top) * part
        drawn: FloatArray = top + np.log(totals)
        return drawn

    def _counts(self, count: int) -> bool:
        return count > 4 * self.tail

    def _table(self, count: int) -> _Bins:
        return _bins(self.law.sigma, count, self.tail, self.bins)


@dataclass(frozen=True, eq=False)
class _Bins:
    """Tables of one group of identical terms: bins below `start`, single draws above."""

    sigma: float
    count: int
    start: float
    shares: FloatArray  # (bins + 1,); the last is P(Z > start)
    means: FloatArray  # (bins,): of e^(sigma Z) inside a bin
    variances: FloatArray
    berry_esseen: float

    def draw(self, rng: np.random.Generator) -> float:
        """One draw of the sum of e^(sigma Z_i)."""
        counts = rng.multinomial(self.count, self.shares)
        spread = math.sqrt(float(counts[:-1] @ self.variances))
        bulk = float(counts[:-1] @ self.means) + spread * float(rng.standard_normal())
        beyond = (1.0 - rng.random(int(counts[-1]))) * self.shares[-1]
        return bulk + float(np.exp(-self.sigma * ndtri(beyond)).sum())


@lru_cache(maxsize=16)
def _bins(sigma: float, count: int, tail: int, bins: int) -> _Bins:
    start = float(-ndtri(tail / count))
    edges = np.linspace(_LOWEST, start, bins + 1)
    below, above = ndtr(edges), ndtr(-edges)
    shares = np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
    at, weights = np.polynomial.legendre.leggauss(16)
    half = (edges[1] - edges[0]) / 2
    nodes = (edges[:-1] + half)[:, None] + half * at
    density = weights * np.exp(-(nodes**2) / 2)
    density /= density.sum(axis=1, keepdims=True)
    values = np.exp(sigma * nodes)
    means = (density * values).sum(axis=1)
    apart = values - means[:, None]
    variances = (density * apart**2).sum(axis=1)
    thirds = (density * np.abs(apart) ** 3).sum(axis=1)
    total = float(shares @ variances)
    bound = _BERRY_ESSEEN * float(shares @ thirds) / (total**1.5 * math.sqrt(count))
    all_shares = np.append(shares, tail / count)
    return _Bins(sigma, count, start, all_shares / all_shares.sum(), means, variances, bound)


def monte_carlo(
    law: Drawable,
    *,
    repeats: int,
    seed: int,
    block_numbers: int = 1 << 18,
    progress: Path | None = None,
    report: Callable[[int, int], None] | None = None,
) -> SumSample:
    """Draws of log S, in blocks that each have their own generator.

    Block b is drawn from `default_rng([seed, b])`, so a run that was stopped goes on where it was, a longer
    run begins with a shorter one's draws, and both give the numbers of a run in one go.

    Args:
        law: A `LognormalSum` (every term drawn), a `CountedSum`, or a dependent sum.
        repeats: Draws of S, >= 1.
        seed: Of all blocks, >= 0.
        block_numbers: Random numbers that a block may take; a single draw may take more, in chunks.
        progress: A file that every finished block is appended to, and that a later call goes on from.
        report: Called with (draws finished, draws wanted) after each block.

    Raises:
        InputError: repeats, seed or block_numbers is out of range, or the file belongs to another run.
    """
    for name, value, least in (
        ("repeats", repeats, 1),
        ("seed", seed, 0),
        ("block_numbers", block_numbers, 1),
    ):
        if value < least:
            raise InputError(f"{name} must be >= {least}, got {value!r}")
    rows = max(1, block_numbers // law.work)
    header: dict[str, str | int] = {"law": law.describe(), "seed": seed, "rows": rows}
    blocks = -(-repeats // rows)
    done: list[FloatArray] = []
    if progress is not None:
        done = list(_finished(progress, header, rows))[:blocks]
    for block in range(len(done), blocks):
        drawn = law.draw(np.random.default_rng([seed, block]), rows)
        if progress is not None:
            with progress.open("a", encoding="ascii") as stream:
                stream.write(" ".join([str(block), *(float(value).hex() for value in drawn), "end"]) + "\n")
        done.append(drawn)
        if report is not None:
            report(min(repeats, len(done) * rows), repeats)
    return SumSample(log_sums=np.sort(np.concatenate(done)[:repeats]), bias=law.bias)


def _finished(path: Path, header: dict[str, str | int], rows: int) -> Iterator[FloatArray]:
    """Blocks of an earlier run; a line that was cut off is removed, and a new file gets its first line."""
    first = json.dumps(header, sort_keys=True)
    text = path.read_text(encoding="ascii") if path.exists() else ""
    lines = text.splitlines(keepends=True)
    if not lines or (len(lines) == 1 and not lines[0].endswith("\n") and first.startswith(lines[0])):
        path.write_text(first + "\n", encoding="ascii")
        return
    if lines[0] != first + "\n":
        raise InputError(f"progress must be a file of the same law, seed and blocks, got {path}")
    blocks: list[FloatArray] = []
    for block, line in enumerate(lines[1:]):
        words = line.split()
        if not line.endswith("end\n") or len(words) != rows + 2 or words[0] != str(block):
            path.write_text("".join(lines[: block + 1]), encoding="ascii")
            break
        blocks.append(np.array([float.fromhex(word) for word in words[1:-1]]))
    yield from blocks


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence!r}")


# Comparisons

METHODS = ("fenton_wilkinson", "schwartz_yeh", "least_squares", "kernel_density")
"""The approximations; Monte Carlo is what they are judged by."""


class Quality(StrEnum):
    """What an interval of an error says at a tolerance."""

    GOOD = "good"
    NOT_GOOD = "not good"
    UNDECIDED = "undecided"


def approximate(
    method: str, law: LognormalSum, *, sample: SumSample | None = None, one_by_one: int = 1024
) -> LogSumLaw:
    """An approximation by its name.

    Args:
        method: One of `METHODS`.
        law: What is approximated.
        sample: Draws for the two methods that need them; never those that the error is measured with.
        one_by_one: Of `schwartz_yeh`.

    Raises:
        InputError: the name is unknown, or a method that needs draws got none.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if method == "fenton_wilkinson":
        return fenton_wilkinson(law)
    if method == "schwartz_yeh":
        return schwartz_yeh(law, one_by_one=one_by_one)
    if sample is None:
        raise InputError(f"sample must be given for {method}, got None")
    return least_squares(sample.log_sums) if method == "least_squares" else kernel_density(sample.log_sums)


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Fig. 2 at one sigma and d: distribution functions on one grid, and their errors.

    Attributes:
        law: The sum.
        log_sums: Grid of log S, shape `(points,)`.
        curves: For each method its distribution function on the grid, shape `(points,)`.
        monte_carlo: The draws' distribution function on the grid.
        band: Ends of its simultaneous band.
        errors: For each method sup |F - F_S| with its interval; the intervals hold all at once.
        sample: The draws.
    """

    law: LognormalSum
    log_sums: FloatArray
    curves: Mapping[str, FloatArray]
    monte_carlo: FloatArray
    band: tuple[FloatArray, FloatArray]
    errors: Mapping[str, ErrorInterval]
    sample: SumSample


def compare(
    law: LognormalSum,
    *,
    seed: int,
    repeats: int = 1000,
    draws: Drawable | None = None,
    confidence: float = 0.95,
    one_by_one: int = 1024,
    points: int = 201,
) -> Comparison:
    """All approximations of one sum against draws of it.

    Least squares and kernel density get draws of their own, as many as those that they are judged by.

    Args:
        law: The sum.
        seed: Of the draws, >= 0; the two methods that learn from draws use the next one.
        repeats: Draws; the paper took 1,000.
        draws: How the law is drawn: None for term by term, or a `CountedSum` of it.
        confidence: Of the band and the intervals.
        one_by_one: Of `schwartz_yeh`.
        points: Size of the grid, which spans the draws and a fifth beyond.

    Raises:
        InputError: an argument is out of range.
    """
    source = law if draws is None else draws
    judged = monte_carlo(source, repeats=repeats, seed=seed)
    learned = monte_carlo(source, repeats=repeats, seed=seed + 1)
    low, high = float(judged.log_sums[0]), float(judged.log_sums[-1])
    grid = np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), points)
    laws = {name: approximate(name, law, sample=learned, one_by_one=one_by_one) for name in METHODS}
    return Comparison(
        law=law,
        log_sums=grid,
        curves={name: fit.cdf(grid) for name, fit in laws.items()},
        monte_carlo=judged.cdf(grid),
        band=judged.band(grid, confidence),
        errors={name: error(fit, judged, confidence=confidence) for name, fit in laws.items()},
        sample=judged,
    )


def quality(interval: ErrorInterval, tolerance: float) -> Quality:
    """Good if the whole interval is at most the tolerance, not good if all of it is above.

    Raises:
        InputError: tolerance is outside (0, 1).
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance must be in (0, 1), got {tolerance!r}")
    if interval.upper <= tolerance:
        return Quality.GOOD
    return Quality.NOT_GOOD if interval.lower > tolerance else Quality.UNDECIDED


def largest_good_sigma(
    errors: Mapping[float, ErrorInterval], tolerance: float
) -> tuple[float | None, float | None]:
    """Where an approximation stops being good, at one d: between which two sigmas.

    Args:
        errors: For each sigma, the error's interval.
        tolerance: In (0, 1).

    Returns:
        The largest sigma up to which all are good (None: not even the smallest), and the smallest that is not
        good (None: none is). What lies between is undecided at this number of draws.

    Raises:
        InputError: tolerance is outside (0, 1).
    """
    good: float | None = None
    for sigma in sorted(errors):
        if quality(errors[sigma], tolerance) is not Quality.GOOD:
            break
        good = sigma
    bad: Iterable[float] = (s for s in errors if quality(errors[s], tolerance) is Quality.NOT_GOOD)
    return good, min(bad, default=None)


def tail_ratio(
    fit: LognormalFit, sample: SumSample, probability: float, *, confidence: float = 0.95
) -> ProbabilityInterval:
    """P(S <= x) over what the fit says it is, at the fit's own quantile x: 1 is right.

    A supremum of 0.01 says little about a tail of 0.001; this says what is left there.

    Args:
        fit: A lognormal that has not seen the sample.
        sample: Draws of log S.
        probability: The fit's, in (0, 1).
        confidence: Two-sided.

    Returns:
        Interval and estimate of the ratio (may exceed 1).

    Raises:
        InputError: probability or confidence is outside (0, 1).
    """
    if not 0 < probability < 1:
        raise InputError(f"probability must be in (0, 1), got {probability!r}")
    found = sample.probability(float(fit.quantile(probability)), confidence)
    return ProbabilityInterval(
        lower=found.lower / probability,
        estimate=found.estimate / probability,
        upper=found.upper / probability,
        confidence=confidence,
    )
