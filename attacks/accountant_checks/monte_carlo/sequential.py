"""Refuting a claim as soon as the samples allow it, at no fixed number of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workbench.attacks.accountant_checks.monte_carlo.estimates import Integrand, integrand, relative_slack
from workbench.attacks.accountant_checks.monte_carlo.events import Direction
from workbench.attacks.accountant_checks.monte_carlo.pairs import PairOfNeighbours, Swappable
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, VerdictKind
from workbench.interfaces.findings import Finding

_SMALLEST_BLOCK, _LARGEST_BLOCK = 256, 1 << 18
_BET_CAP = 0.5


def require_claim(epsilon: float, delta: float) -> None:
    """Refuse a claim that is none.

    Raises:
        InputError: epsilon is negative or not finite, or delta is no probability.
    """
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")
    if not 0 <= delta <= 1:
        raise InputError(f"delta must be in [0, 1], got {delta!r}")


def describe_pair(pair: PairOfNeighbours) -> str:
    """The pair in words: its own, or its type."""
    describe = getattr(pair, "describe", None)
    return str(describe()) if callable(describe) else type(pair).__name__


def refute_sequentially(
    pair: PairOfNeighbours,
    epsilon: float,
    delta: float,
    *,
    max_n: int,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> Finding:
    """Try to refute a claim, and stop as soon as it is refuted: valid at every stopping time.

    In each direction a gambler stakes on delta(epsilon) > delta. Under the claim the capital is a
    non-negative supermartingale that starts at 1, so it ever reaches 2 / (1 - confidence) with probability at
    most half of 1 - confidence (Ville 1939). The stakes of a block of samples are set by the blocks before it
    (growth-optimal for their mean and variance; Waudby-Smith and Ramdas 2024, section 5). They are at most
    half of what the claim's mean allows, and weighted integrands are never negative: so the capital stays
    positive without any bound on the weights, and a pair's own proposal may refute where none is known.

    Args:
        pair: The pair of neighbours, both directions where it knows them.
        epsilon, delta: The claim.
        max_n: Number of samples in each direction after which it gives up.
        rng: Source of the samples.
        confidence: One minus the probability of a false REFUTED.

    Returns:
        REFUTED or UNDECIDED.

    Raises:
        InputError: an argument is out of range.
    """
    require_claim(epsilon, delta)
    if max_n < 1:
        raise InputError(f"max_n must be at least 1, got {max_n!r}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence!r}")
    directions = [(Direction.FORWARD, pair)]
    if isinstance(pair, Swappable):
        directions.append((Direction.BACKWARD, pair.swapped()))
    needed = math.log(2 / (1 - confidence))
    evidence = []
    for (direction, one), child in zip(directions, rng.spawn(len(directions)), strict=True):
        plan = integrand(one, epsilon)
        slack = relative_slack(plan.pair)
        log_capital, n = _best_capital(plan, delta * (1 + slack), max_n=max_n, rng=child, needed=needed)
        evidence.append(
            f"{direction}: capital exp({log_capital:.4g}) after {n} samples; exp({needed:.4g}) refutes"
        )
        if log_capital >= needed:
            return _refuted(
                pair=describe_pair(pair),
                direction=direction,
                claim=(epsilon, delta),
                n=n,
                confidence=confidence,
                evidence=tuple(evidence),
            )
    return Finding(
        verdict=VerdictKind.UNDECIDED,
        summary=f"({epsilon:g}, {delta:g})-DP is not refuted on {describe_pair(pair)} by {max_n} samples",
        evidence=tuple(evidence),
        confidence=confidence,
    )


def _refuted(
    *,
    pair: str,
    direction: Direction,
    claim: tuple[float, float],
    n: int,
    confidence: float,
    evidence: tuple[str, ...],
) -> Finding:
    """The finding where the capital sufficed after n samples."""
    epsilon, delta = claim
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary=f"({epsilon:g}, {delta:g})-DP fails on {pair}, {direction}: "
        f"delta({epsilon:g}) > {delta:g} ({confidence:g} confidence, {n} samples)",
        evidence=evidence,
        counterexample={
            "pair": pair,
            "direction": str(direction),
            "epsilon": epsilon,
            "delta_claimed": delta,
            "samples": n,
        },
        confidence=confidence,
    )


def _best_capital(
    plan: Integrand, delta: float, *, max_n: int, rng: np.random.Generator, needed: float
) -> tuple[float, int]:
    """Logarithm of the capital when it first suffices, or after `max_n` samples, and how many were drawn."""
    if plan.surely > delta:
        return math.inf, 0
    log_left = math.log(delta - plan.surely) if delta > plan.surely else -math.inf
    unit = 0.0 if math.isnan(plan.log_bound) else plan.log_bound
    if (
        not math.isnan(plan.log_bound) and unit <= log_left
    ):  # delta is at most the bound, and that is within the claim
        return 0.0, 0
    claimed = math.exp(log_left - unit)  # in units of the bound
    log_capital, drawn, seen = 0.0, 0, _Seen()
    for size in _block_sizes(max_n):
        for values in plan.values(size, rng):
            stake = seen.stake(claimed)
            log_capital += float(np.log1p(stake * (values - claimed)).sum())
            seen.add(values)
            drawn += len(values)
            if log_capital >= needed:
                return log_capital, drawn
    return log_capital, drawn


def _block_sizes(total: int) -> Iterator[int]:
    """Growing blocks that add up to `total`."""
    size = _SMALLEST_BLOCK
    while total > 0:
        yield min(size, total)
        total -= size
        size = min(2 * size, _LARGEST_BLOCK)


@dataclass
class _Seen:
    """Running moments of the values of all blocks so far."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: FloatArray) -> None:
        """One more block."""
        self.count += len(values)
        self.total += float(values.sum())
        self.squares += float((values**2).sum())

    def stake(self, claimed: float) -> float:
        """The stake whose expected logarithmic growth is about largest; 0 before there is anything to see."""
        if self.count == 0:
            return 0.0
        gain = self.total / self.count - claimed
        spread = self.squares / self.count - 2 * claimed * self.total / self.count + claimed**2
        if gain <= 0 or spread <= 0:
            return 0.0
        cap = _BET_CAP / claimed if claimed > 0 else math.inf
        return min(gain / spread, cap)
