"""Shuffled DPSGD: Theorem 6 in few dimensions, pair by pair, against delta itself.

At the noise that Theorem 6 gives a budget, delta(epsilon) of neighbouring queries is found exactly where
their shuffled laws reduce to known ones, and otherwise by samples of all d! orders. Queries are within the
theorem's conditions; what its proof leaves out besides is said of each pair. `theorem_6_grid` is the whole
table; the ledger's checks take a part of it.

Eq. 26 prints a smaller zeta_2 than the derivation (Eq. 83), so by the main text more noise is needed than by
the appendix. The true delta falls as noise grows (more can be added to an output): a pair that breaks the
main text's claim breaks the appendix's.

A family of questions is asked together: every interval that is sampled gets an equal share of the allowed
error (Bonferroni), and each share covers both orders of its pair. Exact answers cost none of it. So with
probability `confidence` no claim that is true of its pair is called broken, anywhere in the family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from workbench.accounting.certified import delta_bounds
from workbench.accounting.events import Gaussian
from workbench.attacks.accountant_checks.monte_carlo import estimate_both, judge_claim, permuted_gaussians
from workbench.attacks.claim_checks.shared.claims import (
    BITS,
    CONFIDENCE,
    Counterexample,
    ball,
    gaussian_delta,
    setting,
    settle,
)
from workbench.attacks.claim_checks.shuffled_dp_sgd.noise import LeastNoise, least_noise
from workbench.attacks.claim_checks.shuffled_dp_sgd.pairs import PAIRS, QueryPair, query_pair
from workbench.attacks.claim_checks.shuffled_dp_sgd.statements import claimed_delta, eq_25
from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

_APPENDIX, _MAIN = "appendix", "main text"
ZETA_2 = (_APPENDIX, _MAIN)
UNSHUFFLED = "Theorem 5"
"""In the place of a form of zeta_2: the plain Gaussian's delta, which shuffling never exceeds."""

SAMPLED_PAIRS = (
    "the proof's pair",
    "the proof's direction, opposite queries",
    "one-hot difference from zero",
    "one-hot difference, opposite queries",
    "one-hot difference from equal entries",
    "random queries",
    "random difference from zero",
    "60 degrees from (1, ..., 1)",
    "two entries exchanged",
)
"""Pairs that the proof leaves out in no dimension."""

EQUAL_PAIRS = ("equal-entry difference", "equal-entry difference from zero", "equal-entry queries")
"""Pairs that shuffling does not hide at all."""


def theorem_noise(
    *, epsilon: str, delta: str, dimension: int, batch_clip: str = "1", accounting: str = _APPENDIX
) -> LeastNoise:
    """sigma / c at which one release is claimed to be (epsilon, delta)-DP; Eq. 25 in balls of 192 bits.

    Args:
        epsilon, delta: The budget, as decimals.
        batch_clip: c' / c.
        accounting: A form of zeta_2, or `UNSHUFFLED`.

    Raises:
        InputError: there is no such accounting.
        InconclusiveError: no noise in the searched range is the least.
    """
    from flint import ctx

    if accounting not in (*ZETA_2, UNSHUFFLED):
        raise InputError(f"accounting must be one of {', '.join((*ZETA_2, UNSHUFFLED))}, got {accounting!r}")

    def enough(noise: float) -> bool:
        sigma = ball(noise)
        if accounting == UNSHUFFLED:
            return bool(gaussian_delta(1 / sigma, ball(epsilon)) <= ball(delta))
        claimed = eq_25(ball(epsilon), sigma, dimension, ball(batch_clip), main_text=accounting == _MAIN)
        return bool(claimed <= ball(delta))

    with ctx.workprec(BITS):
        return least_noise(
            enough, f"({epsilon}, {delta}) by {accounting}, d = {dimension}, c' = {batch_clip}"
        )


def release_claim(
    *, epsilon: str, delta: str, dimension: int, batch_clip: str = "1", accounting: str = _APPENDIX
) -> ReleaseClaim:
    """The claim at its noise; see `theorem_noise`."""
    noise = theorem_noise(
        epsilon=epsilon, delta=delta, dimension=dimension, batch_clip=batch_clip, accounting=accounting
    )
    name = accounting if accounting == UNSHUFFLED else f"Theorem 6 ({accounting})"
    return ReleaseClaim(
        accounting=name,
        epsilon=float(Fraction(epsilon)),
        delta=float(Fraction(delta)),
        noise_multiplier=noise.noise_multiplier,
        batch_clip=float(Fraction(batch_clip)),
    )


def theorem_6_grid(
    *,
    dimensions: Sequence[int] = (2, 3, 4, 5, 6),
    budgets: Sequence[tuple[str, str]] = (("0.1", "0.00001"), ("1", "0.00001")),
    batch_clips: Sequence[str] = ("1", "2"),
    accountings: Sequence[str] = ZETA_2,
    pairs: Sequence[str] = tuple(PAIRS),
    samples: int = 20_000,
    seed: int = 2026,
    scale: float = 1.0,
) -> tuple[ShuffledDelta, ...]:
    """delta(epsilon) of pairs at Theorem 6's noise, all sampled intervals together at 99.9 %.

    Args:
        dimensions: d of 2 to 6; exact pairs take any d.
        budgets: (epsilon, delta) of one release.
        batch_clips: c' / c.
        accountings: Forms of zeta_2, or `UNSHUFFLED`: there, nothing may be found above the claim.
        pairs: Names in `PAIRS`; those that break the theorem's printed conditions at a c' are left out there.
        samples: In each order of each pair that has no exact answer.
        scale: Multiplies the claimed delta, at the same noise.

    Raises:
        InputError: an argument is out of range.
        InconclusiveError: a budget has no least noise.
    """
    questions = []
    for dimension in dimensions:
        for clip in batch_clips:
            chosen = [query_pair(name, dimension, float(Fraction(clip)), seed=seed) for name in pairs]
            fitting = [pair for pair in chosen if pair.meets(float(Fraction(clip)))]
            for epsilon, delta in budgets:
                for accounting in accountings:
                    claim = release_claim(
                        epsilon=epsilon,
                        delta=delta,
                        dimension=dimension,
                        batch_clip=clip,
                        accounting=accounting,
                    )
                    scaled = replace(claim, delta=min(1.0, claim.delta * scale))
                    questions += [(pair, scaled) for pair in fitting]
    return shuffled_deltas(questions, samples=samples, seed=seed, confidence=CONFIDENCE)


def _answer(rows: Sequence[ShuffledDelta], *notes: str) -> Finding:
    """Refuted where a row is above its claim; else undecided, as pairs prove no claim.

    The counterexample is the row furthest above a claim by the main text, which asks for more noise, and one
    by the appendix only where there is none.
    """
    above = [row for row in rows if row.relation == "above"]
    most = max(above, key=lambda row: (_MAIN in row.claim.accounting, row.excess), default=None)
    within = sum(row.relation == "within" for row in rows)
    count = f"{len(above)} of {len(rows)} rows are above the claim, {within} within it"
    finding = settle(
        *notes, count, *describe_rows(rows), counterexample=most.counterexample() if most else None
    )
    sampled = any(row.confidence is not None for row in rows)
    summary = finding.summary if most else f"{count}; pairs prove no claim"
    return replace(finding, summary=summary, confidence=CONFIDENCE if sampled else None)


@register("claim_check", "shuffled_theorem_6_small_d")
@setting(
    "two adjacent queries, both of norm at most c' and at most c apart, in 2 to 6 dimensions; the adversary "
    "knows both and sees one noisy vector in random order; samples of all orders and exact answers, all "
    "intervals together at 99.9 %"
)
def small_dimensions(
    *,
    seed: int = 2026,
    samples: int = 4_000,
    dimensions: Sequence[int] = (2, 3, 4, 5, 6),
    accounting: str = "both",
    scale: float = 1.0,
) -> Finding:
    """Theorem 6 at its own noise, for pairs that its proof does not leave out.

    `seed`: of the random pairs and of the samples. `samples`: in each order of a pair, where no exact answer
    is known. `dimensions`: d. `accounting`: a form of zeta_2, `"both"`, or `"Theorem 5"` for the plain
    Gaussian's noise. `scale`: multiplies the claimed delta.
    """
    rows = theorem_6_grid(
        dimensions=dimensions,
        budgets=(("1", "0.00001"),),
        batch_clips=("1",),
        accountings=ZETA_2 if accounting == "both" else (accounting,),
        pairs=SAMPLED_PAIRS,
        samples=samples,
        seed=seed,
        scale=scale,
    )
    covered = [row for row in rows if not row.caveats]
    return _answer(
        covered,
        "epsilon 1 and delta 1e-5 for one release, c' = c; sigma solves Eq. 25",
        "the allowed error is shared by all sampled intervals; fixed numbers of samples, tilted",
    )


@register("claim_check", "shuffled_theorem_6_equal_entries")
@setting(
    "two adjacent queries, both of norm at most c' and at most c apart, whose difference has equal entries; "
    "the adversary knows both and sees one shuffled noisy vector; certified, nothing is sampled"
)
def equal_entries(
    *,
    dimensions: Sequence[int] = (2, 3, 6, 1000),
    batch_clips: Sequence[str] = ("1", "10"),
    accounting: str = "both",
    scale: float = 1.0,
) -> Finding:
    """Theorem 6 at its own noise where the difference has equal entries: shuffling hides nothing of it.

    `dimensions`: d, of any size. `batch_clips`: c' / c. `accounting`: a form of zeta_2, `"both"`, or
    `"Theorem 5"` for the plain Gaussian's noise. `scale`: multiplies the claimed delta.
    """
    rows = theorem_6_grid(
        dimensions=dimensions,
        budgets=(("1", "0.00001"),),
        batch_clips=batch_clips,
        accountings=ZETA_2 if accounting == "both" else (accounting,),
        pairs=EQUAL_PAIRS[:1],
        scale=scale,
    )
    return _answer(
        rows,
        "f(x') is f(x) plus the same number in every entry, and f(x) has unequal entries: Theorem 6's "
        "statement covers it, the exception of its main text does not, Lemma 2's proof passes over it",
        "the sum of the entries over sqrt(d) is N(., sigma^2) and moves by c; the rest has one law for both",
    )


@register("claim_check", "shuffled_theorem_6_sampled")
@setting(
    "two adjacent queries of norms 2 and 1 along (1, -1), within c' = 2 and c = 1 apart; the adversary knows "
    "both and sees one noisy vector in random order, in both of its dimensions; intervals at 99.9 %"
)
def shuffled_pair(*, seed: int = 2026, samples: int = 1_000_000, scale: float = 1.0) -> Finding:
    """Theorem 6 for the pair that its proof calls the worst, by samples of the shuffled vectors themselves.

    `seed`: of the samples. `samples`: in each direction of the pair. `scale`: multiplies the claimed delta.
    """
    long, short = 2 / math.sqrt(2), 1 / math.sqrt(2)
    pair = permuted_gaussians((long, -long), (short, -short), standard_deviation=3.0)
    claimed = scale * float(claimed_delta(ball("0.1"), ball(3), 2, ball(2)))
    rng = np.random.default_rng(seed)
    return judge_claim(pair, 0.1, min(claimed, 1.0), n=samples, rng=rng, confidence=CONFIDENCE)


Relation = Literal["above", "within", "open"]


@dataclass(frozen=True, kw_only=True)
class ReleaseClaim:
    """(epsilon, delta) claimed for one shuffled Gaussian release.

    Attributes:
        accounting: Who claims it, in words: `"Theorem 6 (appendix)"`.
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
    """Bounds on delta(epsilon) of one pair, and the delta that is claimed.

    Attributes:
        claim: What is claimed of every pair.
        lower, upper: delta(epsilon) lies between them, the larger over both orders of the pair.
        unshuffled: delta(epsilon) of the same pair without shuffling, which no shuffling exceeds (Theorem 5).
        confidence: Of the interval; None for an exact answer.
        samples: In each order; 0 for an exact answer.
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
        """Objections to the pair under the claim's c'; empty where there is none."""
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
        certainty = "is at least" if self.confidence is None else "is at least (by samples)"
        return Counterexample(
            sentence=(
                f"{self.claim.describe()}; but on {self.pair.describe()} delta({self.claim.epsilon:g}) "
                f"{certainty} {self.lower:.4g}"
            ),
            values=self.to_json(),
        )

    def to_json(self) -> dict[str, JSON]:
        """The deltas, the pair and their assumptions as a JSON object."""
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
