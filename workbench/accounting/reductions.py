"""From a mechanism to pairs of distributions that bound it: one that dominates it, and some that it attains.

A pair dominates a mechanism where no pair of neighbours has a larger hockey-stick divergence at any level, in
either order; composition keeps that, also where later steps are chosen by earlier outputs (Zhu, Dong and Wang
2022, theorem 10). It gives the upper ends. A lower end needs two data sets: the pairs that are listed as
attained are the outputs of the mechanism on neighbours. Where one pair is both, only it is listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate

from flint import arb, ctx

from workbench.accounting.balls.allocation import allocation_pairs
from workbench.accounting.balls.ball import ends, settle, to_arb
from workbench.accounting.balls.batch_mean import batch_mean_pairs
from workbench.accounting.balls.capped import Capped, opposed_pair
from workbench.accounting.balls.repeated import attained_by_best
from workbench.accounting.balls.sparse_vector import attained_pairs
from workbench.accounting.correlated import CorrelatedGaussian, SampledCorrelatedGaussian
from workbench.accounting.events import (
    Composed,
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    SubsampledGaussian,
    require_event,
)
from workbench.accounting.integers import DiscreteLaplace
from workbench.accounting.samples import (
    NOISE_OF_MIXTURES,
    BatchMean,
    CappedPoisson,
    FixedBatch,
    RandomAllocation,
    SubsampledLaplace,
    SubsampledUser,
)
from workbench.accounting.selections import BestOfRuns, ExponentialMechanism, PrivateStep
from workbench.accounting.thresholds import SparseVector
from workbench.core.arguments import number, one_of
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency

_MOST_COMPONENTS = 400
"""Numbers of one person's records in a sample that count."""

_MOST_GROUPS = 3
"""Groups of records whose own compositions are bounded from below."""

_ALLOCATED_NOISE = (0.3, 50.0)
"""Noise multipliers for which sums over random batches have a grid."""

_CAPPED_NOISE = (0.1, 100.0)
_OFTEN, _MOST_CAPPED = 0.01, 0.99
"""Noise multipliers, least chance to meet the cap and largest rate for which opposed records are tried."""

_DIVIDED_NOISE = (0.1, 100.0)
_MOST_DIVIDED = 10**9
"""Noise multipliers and data sets for which sums over the real batch size are bounded."""

_LARGEST_LOSS = 500
"""Of mechanisms of which no more is known than their losses."""

_NOTHING = FinitePair(p=(Fraction(1),), q=(Fraction(1),))
"""A pair that tells nothing."""

_MOST_SHIFT = 16
"""Shifts of discrete Laplace noise whose outputs are rational numbers; the grid has more."""

_SHARES = (0.5, 0.55, 0.6, 0.7, 0.8, 0.9)
"""Where in its range the largest loss of a choice between two candidates is put."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What bounds an event under one adjacency.

    Attributes:
        dominating: An event whose own bounds hold for its dominating pair.
        attained: Events that are outputs on pairs of neighbours; none where the dominating pair is attained.
        beside: Further events whose bounds hold for the dominating pair; the least upper end counts.

    Raises:
        InputError: one of them is no event.
    """

    dominating: Event
    attained: tuple[Event, ...] = ()
    beside: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        several = (("attained", self.attained), ("beside", self.beside))
        for name, events in (("dominating", (self.dominating,)), *several):
            if not all(isinstance(event, Event) for event in events):
                raise InputError(f"{name} must be made of events, got {object_line(getattr(self, name))}")


def reduced(event: Event, adjacency: Adjacency) -> Reduction:
    """The pairs that bound an event.

    Raises:
        InputError: the event or the adjacency is none.
        UnsupportedError: no dominating pair is proved under this adjacency.
    """
    return _reduced(require_event(event), one_of(Adjacency, "adjacency", adjacency))


@lru_cache(maxsize=1024)
def _reduced(event: Event, adjacency: Adjacency) -> Reduction:
    parts = list(event.parts())
    if len(parts) == 1 and parts[0][1] == 1:
        return _step(parts[0][0], adjacency, once=True)
    steps = [(_step(part, adjacency, once=False), count) for part, count in parts]
    candidates = max(len(step.attained) for step, _ in steps)
    others = max(len(step.beside) for step, _ in steps)
    if (
        not candidates
        and not others
        and all(step.dominating is part for (step, _), (part, _) in zip(steps, parts, strict=True))
    ):
        return Reduction(dominating=event)
    dominating = Composed(events=tuple((step.dominating, count) for step, count in steps))
    attained = tuple(
        Composed(events=tuple((_candidate(step, index, step.attained), count) for step, count in steps))
        for index in range(candidates)
    )
    beside = tuple(
        Composed(events=tuple((_candidate(step, index, step.beside), count) for step, count in steps))
        for index in range(others)
    )
    return Reduction(dominating=dominating, attained=attained, beside=beside)


def _candidate(step: Reduction, index: int, pairs: tuple[Event, ...]) -> Event:
    """That of a step's pairs which joins the others' of this index; its dominating pair where it has none."""
    return pairs[min(index, len(pairs) - 1)] if pairs else step.dominating


def _step(event: Event, adjacency: Adjacency, *, once: bool) -> Reduction:
    """The pairs of an elementary event; `once` where it is neither repeated nor composed."""
    if isinstance(event, PrivateStep):
        return _private_step(event)
    if isinstance(event, ExponentialMechanism) and not once:
        return _choice(event, adjacency)
    if isinstance(event, SubsampledUser):
        return _user(event, adjacency)
    if isinstance(event, SubsampledLaplace) and event.sampling_probability == 1:
        return Reduction(dominating=Laplace(scale=event.scale))
    if isinstance(event, DiscreteLaplace):
        return _discrete_laplace(event, adjacency)
    if isinstance(event, FixedBatch):
        return _fixed_batch(event, adjacency)
    if isinstance(event, CorrelatedGaussian):
        return _gaussians(event.noise_multiplier, *event.squared_sensitivity)
    if isinstance(event, CappedPoisson):
        return _capped(event, adjacency)
    if isinstance(event, RandomAllocation):
        return _allocation(event, adjacency)
    if isinstance(event, BatchMean):
        return _batch_mean(event, adjacency)
    if isinstance(event, BestOfRuns):
        return _best(event, once=once)
    if isinstance(event, SparseVector):
        return _sparse_vector(event, adjacency, once=once)
    if isinstance(event, SampledCorrelatedGaussian):
        return _banded(event)
    return Reduction(dominating=event)


def _private_step(event: PrivateStep) -> Reduction:
    """The four outputs of Kairouz et al., with exp(epsilon) between two neighbouring floats."""
    low, high = ends(settle(lambda: arb(event.epsilon).exp()))
    lower, upper = (
        _four_outputs(Fraction(growth), Fraction(event.delta)) for growth in (max(low, 1.0), high)
    )
    return Reduction(dominating=upper, attained=() if low == high else (lower,))


def _discrete_laplace(event: DiscreteLaplace, adjacency: Adjacency) -> Reduction:
    """As many outputs as losses, s + 1 for a shift of s, with exp(noise parameter) between two floats.

    Noise of a smaller parameter is that of a larger one plus more: for r < t the quotient of the generating
    functions is a mixture of 0 and of the noise of t. (1 - r z) (1 - r / z) is r / t times that of t, plus
    (1 - r / t) (1 - r t).
    """
    shift = event.largest_contribution * (2 if adjacency is Adjacency.REPLACE_ONE else 1)
    if shift > _MOST_SHIFT or event.noise_parameter > _LARGEST_LOSS:
        return Reduction(dominating=event)
    low, high = ends(settle(lambda: to_arb(Fraction(event.noise_parameter)).exp()))
    lower, upper = (_geometric_pair(Fraction(growth), shift) for growth in (low, high))
    return Reduction(dominating=upper, attained=() if lower == upper else (lower,))


def _geometric_pair(growth: Fraction, shift: int) -> FinitePair:
    """Two-sided geometric noise around the shift against that around 0; what is outside of both is merged."""
    end = growth / (1 + growth)
    between = [(growth - 1) / (1 + growth) / growth**place for place in range(1, shift)]
    q = (end, *between, end / growth**shift)
    return FinitePair(p=q[::-1], q=q)


def _four_outputs(growth: Fraction, delta: Fraction) -> FinitePair:
    likely, unlikely = (1 - delta) * growth / (1 + growth), (1 - delta) / (1 + growth)
    if not delta:
        return FinitePair(p=(likely, unlikely), q=(unlikely, likely))
    return FinitePair(p=(delta, likely, unlikely, Fraction(0)), q=(Fraction(0), unlikely, likely, delta))


def _capped(event: CappedPoisson, adjacency: Adjacency) -> Reduction:
    """The event with its own law; attained by a record among others that contribute nothing, or oppose it."""
    noise, q = event.noise_multiplier, event.sampling_probability
    if event.dataset_size <= event.largest_batch:
        return Reduction(dominating=SubsampledGaussian(noise_multiplier=noise, sampling_probability=q))
    if q == 1:
        batch = FixedBatch(
            noise_multiplier=noise, dataset_size=event.dataset_size, batch_size=event.largest_batch
        )
        return _fixed_batch(batch, adjacency)
    others, cap = event.dataset_size - 1, event.largest_batch
    shares = Capped.of(q, others, cap)
    alone = SubsampledGaussian(noise_multiplier=noise, sampling_probability=shares.kept[0])
    least, most = _CAPPED_NOISE
    is_seldom = shares.full[0] < _OFTEN or q > _MOST_CAPPED or not least <= noise <= most
    if adjacency is Adjacency.ZERO_OUT or is_seldom:
        return Reduction(dominating=event, attained=(alone,))
    opposed = opposed_pair(noise, q, others, cap, replaced=adjacency is Adjacency.REPLACE_ONE)
    return Reduction(dominating=event, attained=(alone, opposed))


def _allocation(event: RandomAllocation, adjacency: Adjacency) -> Reduction:
    """The two finite pairs of `balls.allocation`; beside them the record's one step, as if it were known."""
    if event.steps == 1:
        return Reduction(dominating=Gaussian(noise_multiplier=event.noise_multiplier))
    if adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedError(
            f"{event.describe()} has no dominating pair that is proved under replace-one, "
            "but has one under add-remove and zero-out"
        )
    least, most = _ALLOCATED_NOISE
    if not least <= event.noise_multiplier <= most:
        raise UnsupportedError(
            f"random allocation is bounded for noise multipliers from {least:g} to {most:g}, "
            f"not for {event.noise_multiplier:g}"
        )
    upper, lower = allocation_pairs(event.noise_multiplier, event.steps)
    known = Gaussian(noise_multiplier=event.noise_multiplier)
    return Reduction(dominating=upper, attained=(lower,), beside=(known,))


def _batch_mean(event: BatchMean, adjacency: Adjacency) -> Reduction:
    """The two finite pairs of `balls.batch_mean`."""
    least, most = _DIVIDED_NOISE
    if not least <= event.noise_multiplier <= most or event.dataset_size > _MOST_DIVIDED:
        raise UnsupportedError(
            f"sums over the real batch size are bounded for noise multipliers from {least:g} to {most:g} "
            f"and up to {_MOST_DIVIDED:g} records, not for {event.describe()}"
        )
    upper, lower = batch_mean_pairs(
        event.noise_multiplier, event.sampling_probability, event.dataset_size, event.dimension, adjacency
    )
    return Reduction(dominating=upper, attained=(lower,))


def _best(event: BestOfRuns, *, once: bool) -> Reduction:
    """Two outputs with the largest loss, and mechanisms of three outputs."""
    if event.loss() > _LARGEST_LOSS:
        raise UnsupportedError(f"{event.describe()} may have losses beyond {_LARGEST_LOSS}")
    pairs = tuple(dict.fromkeys(attained_by_best(event.epsilon, event.shape, event.mean)))
    return Reduction(
        dominating=_two_outputs(event.loss(), event.loss()), attained=pairs if once else pairs[-4::2]
    )


def _sparse_vector(event: SparseVector, adjacency: Adjacency, *, once: bool) -> Reduction:
    """Two outputs with the largest loss of either order, and what few or many queries of two heights show."""
    most, least = event.losses(adjacency)
    if max(most, least) > _LARGEST_LOSS:
        raise UnsupportedError(f"{event.describe()} may have losses beyond {_LARGEST_LOSS}")
    moved = event.moved(adjacency)
    only_adds = event.monotone and adjacency is not Adjacency.REPLACE_ONE
    # By how much the first and the last queries rise with the record. The second is the first in reverse, or,
    # where records only add, the worst of the other order: composed, the first has to do.
    directions = [(moved, 0), (0, moved)] if only_adds else [(-moved, moved), (moved, -moved)]
    pairs = [
        pair
        for rises in directions[: 2 if once else 1]
        for pair in attained_pairs(
            threshold_scale=event.threshold_scale,
            query_scale=event.query_scale,
            cutoff=event.cutoff,
            rises=rises,
            few=not once,
        )
    ]
    return Reduction(dominating=_two_outputs(most, least), attained=tuple(dict.fromkeys(pairs)))


def _two_outputs(most: Fraction, least: Fraction) -> FinitePair:
    """The pair that dominates all whose losses lie between -least and most.

    All their hockey-stick curves are 1 - u up to exp(-least) and 0 from exp(most) on; between, this pair's is
    a straight line, and theirs are convex.
    """
    high, low = (Fraction(ends(settle(partial(_exponential, loss)))[1]) for loss in (most, least))
    if high == low == 1:
        return _NOTHING
    q = (low - 1) / (high * low - 1)
    return FinitePair(p=(high * q, 1 - high * q), q=(q, 1 - q))


def _exponential(loss: Fraction) -> arb:
    return to_arb(loss).exp()


def _choice(event: ExponentialMechanism, adjacency: Adjacency) -> Reduction:
    """Choices between two candidates, of whose scores the record raises one and lowers the other.

    The other records decide the odds r of the first candidate; the record multiplies them by exp(range).
    With it the first candidate has the loss t and the second t - range, for every t in (0, range) by some r.
    A smaller change of the scores gives smaller odds: exp(range) may be rounded down.
    """
    growth = Fraction(ends(settle(lambda: to_arb(event.range_of(adjacency)).exp()))[0])
    pairs = []
    whole = float(event.range_of(adjacency))
    for share in _SHARES:
        # P(first) = (exp(range) - exp(t)) / (exp(range) - 1) makes the first candidate's loss t, about.
        first = Fraction(-math.expm1((share - 1) * whole) / -math.expm1(-whole))
        odds = first / (1 - first) / growth
        pairs.append(FinitePair(p=(first, 1 - first), q=(odds / (1 + odds), 1 / (1 + odds))))
    return Reduction(dominating=event, attained=tuple(pairs))


def _gaussians(noise_multiplier: float, least: Fraction, most: Fraction) -> Reduction:
    """Gaussian events of a sensitivity whose square lies between two numbers."""
    upper = Gaussian(noise_multiplier=_noise_over(most, noise_multiplier, up=False))
    if not least:
        return Reduction(dominating=upper, attained=(_NOTHING,))
    lower = Gaussian(noise_multiplier=_noise_over(least, noise_multiplier, up=True))
    return Reduction(dominating=upper, attained=() if lower == upper else (lower,))


def _noise_over(squared: Fraction, noise_multiplier: float, *, up: bool) -> float:
    """noise_multiplier / sqrt(squared) as a float that is at least (up) or at most that."""
    exact = Fraction(noise_multiplier) ** 2 / squared
    found = math.sqrt(exact)
    for _ in range(8):
        if (Fraction(found) ** 2 >= exact) if up else (Fraction(found) ** 2 <= exact):
            return found
        found = math.nextafter(found, math.inf if up else 0.0)
    raise InputError(f"noise_multiplier must be within the range of floats, got {noise_multiplier!r}")


def _banded(event: SampledCorrelatedGaussian) -> Reduction:
    """Subsampled Gaussians of the norms of the columns: the groups' largest in each place, and each group's.

    Noise multipliers are rounded to 30 bits, so that norms that are equal but for rounding are.
    """
    groups = event.squared_norms()
    longest = max(map(len, groups))
    padded = [norms + [Fraction(0)] * (longest - len(norms)) for norms in groups]
    worst = [max(place) for place in zip(*padded, strict=True)]
    upper = _subsampled(event, worst, up=False)
    strongest = sorted(groups, key=lambda norms: sum(norms, Fraction(0)), reverse=True)
    attained = tuple(dict.fromkeys(_subsampled(event, norms, up=True) for norms in strongest if norms))
    return Reduction(dominating=upper, attained=() if upper in attained else attained[:_MOST_GROUPS])


def _subsampled(event: SampledCorrelatedGaussian, squared_norms: list[Fraction], *, up: bool) -> Event:
    """A composition of subsampled Gaussians of these norms, noise rounded up or down."""
    counts: dict[Event, int] = {}
    for squared in squared_norms:
        mantissa, exponent = math.frexp(_noise_over(squared, event.noise_multiplier, up=up))
        kept = math.ceil(mantissa * 2**30) if up else math.floor(mantissa * 2**30)
        step = SubsampledGaussian(
            noise_multiplier=math.ldexp(kept, exponent - 30), sampling_probability=event.sampling_probability
        )
        counts[step] = counts.get(step, 0) + 1
    return Composed(events=tuple(counts.items()))


def _user(event: SubsampledUser, adjacency: Adjacency) -> Reduction:
    """Mixtures over how many of a person's records take part.

    Given which records S of the person take part, the outputs are N(u) with |u| <= |S| against N(0). With t =
    N(0)(E), N(u)(E) lies between Phi(Phi^-1(t) - |S| / s) and Phi(Phi^-1(t) + |S| / s); a half-line attains
    one of them for all S at once. So the pair of the sum of w_i N(i) against N(0), w_i binomial, dominates in
    both orders, and identical records of norm 1 attain it. Either divergence grows where weight moves to
    larger i: weights are rounded so that their tails, normalised, are larger (upper) or smaller (lower).
    """
    noise, q, count = event.noise_multiplier, event.sampling_probability, event.records
    if count == 1:
        return Reduction(dominating=SubsampledGaussian(noise_multiplier=noise, sampling_probability=q))
    if adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedError(
            f"{event.describe()} has no dominating pair that is proved under replace-one, "
            "but has one under add-remove and zero-out"
        )
    if q == 1:
        return _gaussians(noise, Fraction(count) ** 2, Fraction(count) ** 2)
    upper, lower = (_mixture(_binomial(count, Fraction(q), up=up), noise) for up in (True, False))
    return Reduction(dominating=upper, attained=(lower,))


def _binomial(count: int, q: Fraction, *, up: bool) -> dict[int, float]:
    """Weights whose normalised tails are at least (up) or at most those of the binomial distribution."""
    with ctx.workprec(256):
        ball, other = to_arb(q), to_arb(1 - q)
        weights = [other**count]
        for i in range(count):
            weights.append(weights[-1] * (count - i) / (i + 1) * ball / other)
        below = list(accumulate(weights))
        low = next(i for i in range(count + 1) if below[i] > 1e-9)
        high = next(i for i in range(count, -1, -1) if weights[i] > 1e-100)
        if high - low > _MOST_COMPONENTS:
            raise UnsupportedError(
                f"records_per_user must be fewer at sampling_probability {float(q):g}, got {count}: more "
                f"than {_MOST_COMPONENTS} numbers of a person's records in one sample would count"
            )
        kept = {i: ends(weights[i])[1 if up else 0] for i in range(low + 1, high + 1)}
        if up and high < count:
            kept[count] = ends(sum(weights[high + 1 :], arb(0)))[1]
    rest = 1 - sum(map(Fraction, kept.values()), Fraction(0))
    first = float(rest)
    if (Fraction(first) > rest) if up else (Fraction(first) < rest):
        first = math.nextafter(first, 0.0 if up else 1.0)
    return {low if up else 0: first, **kept}


def _mixture(weights: dict[int, float], noise_multiplier: float) -> GaussianMixturePair:
    """Gaussians around whole numbers against one around 0."""
    return GaussianMixturePair(
        p_means=tuple(map(float, weights)),
        p_weights=tuple(weights.values()),
        q_means=(0.0,),
        q_weights=(1.0,),
        standard_deviation=noise_multiplier,
    )


def _fixed_batch(event: FixedBatch, adjacency: Adjacency) -> Reduction:
    """Batches of fixed size as Poisson samples of twice the sensitivity; see `grid.fixed_batch`.

    Under add-remove the record stands in for another of the batch, u = x - x_j against nothing: the Poisson
    sample's pair with a shift of 2, attained by a contribution of 1 among others of -1.
    """
    q = event.sampling_probability
    if adjacency is Adjacency.ZERO_OUT:
        raise UnsupportedError(f"{event.describe()} is bounded under add-remove and replace-one only")
    high, low = (math.nextafter(float(q), 1.0), math.nextafter(float(q), 0.0))
    if adjacency is Adjacency.ADD_REMOVE:
        upper, lower = (
            SubsampledGaussian(noise_multiplier=event.noise_multiplier / 2, sampling_probability=rate)
            for rate in (high, low)
        )
        return Reduction(dominating=upper, attained=(lower,))
    least, most = NOISE_OF_MIXTURES
    number("noise_multiplier", event.noise_multiplier, least=least, most=most)
    rest = math.nextafter(1 - low, 1.0)
    attained = GaussianMixturePair(
        p_means=(0.0, 2.0),
        p_weights=(rest, low),
        q_means=(0.0,),
        q_weights=(1.0,),
        standard_deviation=event.noise_multiplier,
    )
    return Reduction(dominating=event, attained=(attained,))
