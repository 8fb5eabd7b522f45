"""delta(epsilon) of shuffled queries against what is claimed for them: exactly, or by samples.

A family of questions is asked together: every interval that is sampled gets an equal share of the allowed
error (Bonferroni), and each share covers both orders of its pair. Exact answers cost none of it. So with
probability `confidence` no claim that is true of its pair is called broken, anywhere in the family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbench.accounting.certified import delta_bounds
from workbench.accounting.events import Gaussian
from workbench.attacks.accountant_checks.monte_carlo import estimate_both
from workbench.attacks.claim_checks.shared.claims import Counterexample
from workbench.attacks.claim_checks.shuffled_dp_sgd.pairs import QueryPair
from workbench.core.errors import InputError
from workbench.core.keys import JSON

Relation = Literal["above", "within", "open"]


@dataclass(frozen=True, kw_only=True)
class ReleaseClaim:
    """(epsilon, delta) claimed for one shuffled Gaussian release.

    Attributes:
        accounting: Who claims it, in words: `"Theorem 6 (appendix)"`.
        epsilon, delta: The claim.
        noise_multiplier: sigma / c at which it is made.
        batch_clip: c' / c.
    """

    accounting: str
    epsilon: float
    delta: float
    noise_multiplier: float
    batch_clip: float

    def describe(self) -> str:
        """`Theorem 6 (appendix): (1, 1e-05) at sigma 1.234, c' = 1`."""
        return (
            f"{self.accounting}: ({self.epsilon:g}, {self.delta:.4g}) at sigma {self.noise_multiplier:.6g}, "
            f"c' = {self.batch_clip:g}"
        )


@dataclass(frozen=True, kw_only=True)
class ShuffledDelta:
    """What is known of delta(epsilon) on one pair, beside the claim.

    Attributes:
        pair: The queries.
        claim: What is claimed of every pair.
        lower, upper: delta(epsilon) lies between them, the larger over both orders of the pair.
        unshuffled: delta(epsilon) of the same pair without shuffling, which no shuffling exceeds (Theorem 5).
        confidence: Of the interval; None for an exact answer.
        samples: In each order; 0 for an exact answer.
        method: In words.
    """

    pair: QueryPair
    claim: ReleaseClaim
    lower: float
    upper: float
    unshuffled: float
    confidence: float | None
    samples: int
    method: str

    @property
    def relation(self) -> Relation:
        """`above`: the claim fails on this pair; `within`: it holds on this pair; else `open`."""
        if self.lower > self.claim.delta:
            return "above"
        return "within" if self.upper <= self.claim.delta else "open"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the pair may be blamed for under the claim's c'."""
        return self.pair.caveats(self.claim.batch_clip)

    @property
    def excess(self) -> float:
        """The lower end over the claimed delta."""
        if self.claim.delta > 0:
            return self.lower / self.claim.delta
        return math.inf if self.lower > 0 else 0.0

    def describe(self) -> str:
        """`one-hot difference from zero [0.001, 0.0016] above`, with the caveats."""
        out = "".join(f" ({caveat})" for caveat in self.caveats)
        how = " exactly" if self.confidence is None else ""
        return f"{self.pair.name} [{self.lower:.4g}, {self.upper:.4g}]{how} {self.relation}{out}"

    def counterexample(self) -> Counterexample:
        """The pair, in a ledger's words."""
        found = "is at least" if self.confidence is None else "is at least (by samples)"
        return Counterexample(
            sentence=(
                f"{self.claim.describe()}; but on {self.pair.describe()} delta({self.claim.epsilon:g}) "
                f"{found} {self.lower:.4g}"
            ),
            values=self.to_json(),
        )

    def to_json(self) -> dict[str, JSON]:
        """Plain form."""
        return {
            "pair": self.pair.name,
            "dimension": self.pair.dimension,
            "f": list(self.pair.first),
            "f_prime": list(self.pair.second),
            "caveats": list(self.caveats),
            "accounting": self.claim.accounting,
            "epsilon": self.claim.epsilon,
            "claimed_delta": self.claim.delta,
            "noise_multiplier": self.claim.noise_multiplier,
            "batch_clip_over_clip": self.claim.batch_clip,
            "delta_lower": self.lower,
            "delta_upper": self.upper,
            "unshuffled_delta": self.unshuffled,
            "relation": self.relation,
            "confidence": self.confidence,
            "samples": self.samples,
            "method": self.method,
        }


def describe_rows(rows: Sequence[ShuffledDelta]) -> tuple[str, ...]:
    """One line a claim and dimension: what is claimed, and delta(epsilon) of each pair."""
    groups: dict[tuple[int, ReleaseClaim], list[ShuffledDelta]] = {}
    for row in rows:
        groups.setdefault((row.pair.dimension, row.claim), []).append(row)
    return tuple(
        f"d = {dimension}, {claim.describe()}, unshuffled {max(row.unshuffled for row in group):.4g}: "
        + "; ".join(row.describe() for row in group)
        for (dimension, claim), group in groups.items()
    )


def shuffled_deltas(
    questions: Sequence[tuple[QueryPair, ReleaseClaim]],
    *,
    samples: int,
    seed: int,
    confidence: float = 0.999,
    exact: bool = True,
) -> tuple[ShuffledDelta, ...]:
    """delta(epsilon) of every pair at its claim's noise, all intervals together at `confidence`.

    Args:
        questions: Pairs, each with a claim about it; a pair beyond the claim's conditions is measured too.
        samples: In each order of each pair, >= 2, fixed in advance.
        seed: Of the samples; each question draws from a stream of its own.
        confidence: Of all the sampled intervals together, in (0, 1).
        exact: False samples also where an exact answer is known, to hold the two against each other.

    Raises:
        InputError: an argument is out of range.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence!r}")
    answers = [_exactly(pair, claim) if exact else None for pair, claim in questions]
    sampled = sum(answer is None for answer in answers)
    each = 1 - (1 - confidence) / max(1, sampled)
    streams = np.random.default_rng(seed).spawn(len(questions))
    return tuple(
        answer if answer is not None else _by_samples(pair, claim, samples, rng, each)
        for answer, (pair, claim), rng in zip(answers, questions, streams, strict=True)
    )


def _unshuffled(pair: QueryPair, claim: ReleaseClaim) -> float:
    """The Gaussian mechanism's delta at this distance, rounded up."""
    if pair.distance == 0:
        return 0.0
    return delta_bounds(
        Gaussian(noise_multiplier=claim.noise_multiplier / pair.distance), claim.epsilon
    ).upper


def _exactly(pair: QueryPair, claim: ReleaseClaim) -> ShuffledDelta | None:
    bounds = pair.exact_delta(claim.noise_multiplier, claim.epsilon)
    if bounds is None or not bounds.rigorous:
        return None
    return ShuffledDelta(
        pair=pair,
        claim=claim,
        lower=bounds.lower,
        upper=bounds.upper,
        unshuffled=_unshuffled(pair, claim),
        confidence=None,
        samples=0,
        method=bounds.method,
    )


def _by_samples(
    pair: QueryPair, claim: ReleaseClaim, samples: int, rng: np.random.Generator, confidence: float
) -> ShuffledDelta:
    """Both orders by exponentially tilted samples; the interval of the larger delta spans both."""
    forward, backward = estimate_both(
        pair.shuffled(claim.noise_multiplier), claim.epsilon, n=samples, rng=rng, confidence=confidence
    )
    both = [estimate for estimate in (forward, backward) if estimate is not None]
    rigorous = [estimate for estimate in both if estimate.rigorous]
    return ShuffledDelta(
        pair=pair,
        claim=claim,
        lower=max((estimate.lower for estimate in rigorous), default=0.0),
        upper=max(estimate.upper for estimate in both) if len(rigorous) == 2 else 1.0,
        unshuffled=_unshuffled(pair, claim),
        confidence=confidence,
        samples=samples,
        method=f"{forward.method}, {forward.proposal}",
    )
