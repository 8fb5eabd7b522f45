"""Bounds by ball arithmetic: where privacy has a closed form or can be counted exactly.

Every end is proved: Arb balls carry the rounding errors, ends are rounded outwards, inversions rest on
certified signs. What has neither a closed form nor an exact count (the T-fold subsampled Gaussian, mixed
compositions) is refused with `UnsupportedError`; `workbench.accounting.certified` bounds it.

    ===============================  ======================  ========================================
    event                            adjacency               how
    ===============================  ======================  ========================================
    Gaussian and its compositions    all three               closed form
    Laplace, once                    all three               closed form
    randomised response, composed    replace-one             counting of likelihood ratios
    finite pairs, composed           any: the pair is given  counting of likelihood ratios
    subsampled Gaussian, once        all three               closed form
    Gaussian mixture pair, once      any: the pair is given  certified signs, closed-form masses
    shuffled batches                 zero-out, replace-one   lower and upper end apart
    ===============================  ======================  ========================================

>>> from workbench.accounting.events import Gaussian
>>> from workbench.interfaces import Adjacency
>>> bounds = epsilon_bounds(Gaussian(noise_multiplier=1.0), 1e-5, Adjacency.ADD_REMOVE)
>>> round(bounds.lower, 6), bounds.relative_width < 1e-12
(4.377178, True)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
from flint import arb, ctx
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from workbench.accounting.balls.ball import Enclosure, ends, normal_tail, settle, to_arb, tpr_by_threshold
from workbench.accounting.balls.composition import GridChoice, GridCurve, StepLaw, composed_below
from workbench.accounting.balls.finite import FiniteCurve
from workbench.accounting.balls.gaussian import GaussianCurve, LaplaceCurve
from workbench.accounting.balls.mixture import MixtureCurve, ThresholdCurve, subsampled_orders
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import (
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    require_event,
)
from workbench.core.arguments import number, one_of
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, FloatArray


def supports(event: Event, adjacency: Adjacency) -> bool:
    """Whether the event has an exact answer here under this adjacency.

    Raises:
        InputError: the event or the adjacency is none.
    """
    try:
        _enclosure_of(event, adjacency)
    except UnsupportedError:
        return False
    return True


def delta_bounds(event: Event, epsilon: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Bounds:
    """delta at which the event is (epsilon, delta)-DP and no smaller one.

    Args:
        event: What is released.
        epsilon: In [0, inf].
        adjacency: How neighbours differ.

    Raises:
        InputError: epsilon is negative or NaN.
        UnsupportedError: there is no exact answer.
    """
    epsilon = number("epsilon", epsilon, least=0)
    enclosure = _enclosure_of(event, adjacency)
    if math.isinf(epsilon):
        return _bounds(enclosure.delta_limit_ends(), enclosure)
    return _bounds(enclosure.delta_ends(float(epsilon)), enclosure)


def epsilon_bounds(event: Event, delta: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Bounds:
    """Smallest epsilon >= 0 at which the event is (epsilon, delta)-DP.

    Args:
        event: What is released.
        delta: In [0, 1); at 0 the largest privacy loss, infinite where losses have no bound.
        adjacency: How neighbours differ.

    Raises:
        InputError: delta is out of range.
        UnsupportedError: there is no exact answer.
    """
    delta = number("delta", delta, least=0, below=1)
    enclosure = _enclosure_of(event, adjacency)
    if delta == 0:
        return _bounds(enclosure.pure_epsilon_ends(), enclosure)
    return _bounds(enclosure.epsilon_ends(float(delta)), enclosure)


def tpr_bounds(event: Event, fpr: float, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Bounds:
    """Largest true-positive rate of any test between neighbours at a false-positive rate, in either order.

    Args:
        event: What is released.
        fpr: In [0, 1].
        adjacency: How neighbours differ.

    Raises:
        InputError: fpr is out of range.
        InconclusiveError: no certified tests around the rate were found.
        UnsupportedError: there is no exact answer.
    """
    fpr = number("fpr", fpr, least=0, most=1)
    enclosure = _enclosure_of(event, adjacency)
    if fpr == 0:
        return _bounds(enclosure.delta_limit_ends(), enclosure)
    if fpr == 1:
        return _bounds((1.0, 1.0), enclosure)
    return _bounds(enclosure.tpr_ends(float(fpr)), enclosure)


def _bounds(ends: tuple[float, float], enclosure: Enclosure) -> Bounds:
    return Bounds(lower=ends[0], upper=ends[1], rigorous=True, method=enclosure.method)


def _enclosure_of(event: Event, adjacency: Adjacency) -> Enclosure:
    """What answers for the event, arguments checked before the cache sees them."""
    return _enclosure(require_event(event), one_of(Adjacency, "adjacency", adjacency))


@lru_cache(maxsize=256)
def _enclosure(event: Event, adjacency: Adjacency) -> Enclosure:
    """What answers for the event.

    Raises:
        UnsupportedError: nothing does; the message says why.
    """
    parts = list(event.parts())
    replace_one = adjacency is Adjacency.REPLACE_ONE
    squares = [_mu_squared(step, count, adjacency) for step, count in parts]
    if all(square is not None for square in squares):
        return GaussianCurve(sum((square for square in squares if square is not None), Fraction(0)))
    pairs = [_finite_pair(step, adjacency) for step, _ in parts]
    if all(pair is not None for pair in pairs):
        counted = zip(pairs, (count for _, count in parts), strict=True)
        return FiniteCurve([(pair, count) for pair, count in counted if pair is not None])
    if len(parts) == 1 and parts[0][1] == 1:
        step = parts[0][0]
        if isinstance(step, Laplace):
            return LaplaceCurve(_sensitivity(adjacency) / Fraction(step.scale))
        if isinstance(step, SubsampledGaussian):
            return ThresholdCurve(subsampled_orders(step, replace_one=replace_one))
        if isinstance(step, GaussianMixturePair):
            return MixtureCurve(step)
        if isinstance(step, ShuffledBatches):
            if adjacency is Adjacency.ADD_REMOVE:
                raise UnsupportedError(
                    "shuffled batches are bounded under zero-out and replace-one adjacency only: without a "
                    "record there are fewer to deal into batches, and the event does not say how"
                )
            return ShuffledEnclosure(step, replace_one=replace_one)
    raise UnsupportedError(
        f"{event.describe()} has no closed form and no exact count here; "
        "workbench.accounting.certified bounds compositions"
    )


def _sensitivity(adjacency: Adjacency) -> int:
    """By how much one record moves a sum of contributions of norm at most 1."""
    return 2 if adjacency is Adjacency.REPLACE_ONE else 1


def _mu_squared(step: Event, count: int, adjacency: Adjacency) -> Fraction | None:
    """The exact square of mu where the step is a Gaussian in this or another guise; None where it is none."""
    if isinstance(step, SubsampledGaussian) and step.sampling_probability == 1:
        step = Gaussian(noise_multiplier=step.noise_multiplier)
    if isinstance(step, ShuffledBatches) and step.batches == 1 and adjacency is not Adjacency.ADD_REMOVE:
        count, step = count * step.epochs, Gaussian(noise_multiplier=step.noise_multiplier)
    if isinstance(step, Gaussian):
        return count * (_sensitivity(adjacency) / Fraction(step.noise_multiplier)) ** 2
    if isinstance(step, GaussianMixturePair) and len(step.p_means) == len(step.q_means) == 1:
        distance = Fraction(step.p_means[0]) - Fraction(step.q_means[0])
        return count * (distance / Fraction(step.standard_deviation)) ** 2 if distance else None
    return None


def _finite_pair(step: Event, adjacency: Adjacency) -> FinitePair | None:
    """The pair of a finite mechanism; None where it is none.

    Raises:
        UnsupportedError: the mechanism has none under this adjacency.
    """
    if isinstance(step, RandomisedResponse):
        if adjacency is not Adjacency.REPLACE_ONE:
            raise UnsupportedError(
                "randomised response answers for a record that is there: its neighbours differ in one "
                f"record's category (replace-one adjacency), not by {adjacency}"
            )
        return step.pair()
    return step if isinstance(step, FinitePair) else None


_Gain = Callable[[FloatArray, FloatArray], FloatArray]
_SCAN = 400
_LARGEST_EXPONENT = 690.0
_FINE = 20_001
_BINS = 300
_LEAST_MASS = 1e-25
_BIN_BITS = 192
_CELLS = 1 << 12
_TAIL = 1e-16


@dataclass(frozen=True, kw_only=True)
class MaximumPair:
    """The law of the largest batch when the record's batch is shifted by `a`, and when by `b`.

    The event is "the largest is above C" where a > b, "at most C" where a < b.
    """

    a: int
    b: int
    batches: int
    sigma: Fraction

    def probability(self, shift: int, c: arb) -> arb:
        """Of the event, under one of the shifts."""
        sigma = to_arb(self.sigma)
        records, others = normal_tail((c - shift) / sigma), normal_tail(c / sigma)
        log_below = (-records).log1p() + (self.batches - 1) * (-others).log1p()
        return -log_below.expm1() if self.a > self.b else log_below.exp()

    def probabilities(self, c: arb) -> tuple[arb, arb]:
        """Of the event, under both."""
        return self.probability(self.a, c), self.probability(self.b, c)

    def floats(self, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same in floats, shape of `c`; steers the search and decides nothing."""
        sigma = float(self.sigma)
        rows = []
        for shift in (self.a, self.b):
            with np.errstate(divide="ignore", invalid="ignore"):
                log_below = np.log1p(-ndtr((shift - c) / sigma))
                log_below = log_below + (self.batches - 1) * np.log1p(-ndtr(-c / sigma))
            rows.append(-np.expm1(log_below) if self.a > self.b else np.exp(log_below))
        return rows[0], rows[1]

    def grid(self) -> FloatArray:
        """Where to look for C."""
        reach = 39 * float(self.sigma)
        return np.linspace(min(self.a, self.b, 0) - reach, max(self.a, self.b, 0) + reach, _SCAN)


class BinnedMaximum(StepLaw):
    """The privacy loss of one epoch that is reduced to the interval in which its largest batch falls."""

    def __init__(self, pair: MaximumPair) -> None:
        high_side = replace(pair, a=max(pair.a, pair.b), b=min(pair.a, pair.b))
        coarse = high_side.grid()
        fine = np.linspace(float(coarse[0]), float(coarse[-1]), _FINE)
        heaviest = np.maximum(*high_side.floats(fine))
        inside = fine[(heaviest > _LEAST_MASS) & (heaviest < 1 - 1e-12)]
        cuts = [float(c) for c in np.linspace(inside[0], inside[-1], _BINS)]
        with ctx.workprec(_BIN_BITS):
            above = [high_side.probabilities(arb(c)) for c in cuts]
            tails = [(arb(1), arb(1)), *above, (arb(0), arb(0))]
            bins = [(lower[0] - upper[0], lower[1] - upper[1]) for lower, upper in pairwise(tails)]
            if pair.a < pair.b:
                bins = [(q, p) for p, q in bins]
            atoms = [((p / q).log(), p, q) for p, q in bins if p > 0 and q > 0]
        self._atoms = sorted(atoms, key=lambda atom: -float(atom[0]))
        self._p, self._q = [arb(0)], [arb(0)]
        with ctx.workprec(_BIN_BITS):
            for _, p, q in self._atoms:
                self._p.append(self._p[-1] + p)
                self._q.append(self._q[-1] + q)

    def above(self, g: arb) -> tuple[arb, arb]:
        """Sums over the intervals; one whose loss is not told from g counts between 0 and 1 times."""
        near = float(g)
        count = bisect_left(self._atoms, -near, key=lambda atom: -float(atom[0]))
        while count < len(self._atoms) and not self._atoms[count][0] < g:
            count += 1
        certain = count
        while certain > 0 and not self._atoms[certain - 1][0] > g:
            certain -= 1
        return self._p[certain].union(self._p[count]), self._q[certain].union(self._q[count])

    def nodes(self, count: int = 4001) -> tuple[FloatArray, FloatArray]:
        """The intervals."""
        losses = np.array([float(loss) for loss, _, _ in self._atoms])
        return losses, np.array([max(float(p), 0.0) for _, p, _ in self._atoms])


class ShuffledEnclosure(Enclosure):
    """Shuffled batches under zero-out or replace-one, each end by an argument of its own.

    **Lower end** (Chua et al. 2024, "How Private are DP-SGD Implementations?"). Let the record contribute 1
    under one neighbour, 0 (zero-out) or -1 (replace-one) under the other, and every other record w, always
    along the first coordinate. Up to a constant the T batches of one epoch then give

        (1/T) sum_t N(a e_t, s^2 I)  and  (1/T) sum_t N(b e_t, s^2 I),
        (a, b) = (1 - w, -w) under zero-out, (1 - w, -1 - w) under replace-one.

    "Some batch is above C" has the probability 1 - Phi((C - a) / s) Phi(C / s)^(T - 1) under the first and
    the same with b under the second. Any event bounds delta from below, so C is chosen by a float search and
    only the final evaluation is in balls. w = -1 gives the paper's pair (2, 1). Several epochs are reduced,
    each to which of some intervals its largest batch falls in, a finite pair, and composed: the shuffles are
    independent (after Chua et al. 2024b, "Scalable DP-SGD: Shuffling vs. Poisson Subsampling").

    **Upper end.** Given the order of the records, each epoch releases the record's contribution once: the
    Gaussian event. The order does not depend on the record, and the divergence is jointly convex: the mixture
    over orders has no larger a delta.
    """

    method = (
        "lower end: largest batch of each shuffled epoch (Chua et al. 2024); upper end: the Gaussian event "
        "without amplification; ball arithmetic"
    )

    def __init__(self, event: ShuffledBatches, *, replace_one: bool) -> None:
        sigma = Fraction(event.noise_multiplier)
        shifts = ((2, 0), (1, -1), (0, 2)) if replace_one else ((2, 1), (1, 0), (1, 2), (0, 1))
        self._pairs = [MaximumPair(a=a, b=b, batches=event.batches, sigma=sigma) for a, b in shifts]
        self._epochs = event.epochs
        self._reduced: list[GridCurve] | None = None
        sensitivity = 2 if replace_one else 1
        self._above = GaussianCurve(event.epochs * (sensitivity / sigma) ** 2)

    def delta_ends(self, epsilon: float) -> tuple[float, float]:
        """The best event's P - exp(epsilon) Q, and the Gaussian's delta."""
        growth = math.exp(min(epsilon, _LARGEST_EXPONENT))
        best = 0.0
        for pair, c in self._candidates(lambda p, q: p - growth * q):
            point = arb(c)

            def value(pair: MaximumPair = pair, point: arb = point) -> arb:
                p, q = pair.probabilities(point)
                return p - arb(epsilon).exp() * q

            best = max(best, ends(settle(value, cap=2048))[0])
        for curve in self._composed():
            best = max(best, curve.delta_ends(epsilon)[0])
        return best, max(best, self._above.delta_ends(epsilon)[1])

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """The best event's log((P - delta) / Q), and the Gaussian's epsilon."""

        def gain(p: FloatArray, q: FloatArray) -> FloatArray:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where((p > delta) & (q > 0), np.log(np.maximum(p - delta, 0) / q), -np.inf)

        best = 0.0
        for pair, c in self._candidates(gain):
            point = arb(c)

            def value(pair: MaximumPair = pair, point: arb = point) -> arb:
                p, q = pair.probabilities(point)
                return ((p - arb(delta)) / q).log()

            best = max(best, ends(settle(value, cap=2048))[0])
        for curve in self._composed():
            best = max(best, curve.epsilon_ends(delta)[0])
        return best, max(best, self._above.epsilon_ends(delta)[1])

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """The best event of one epoch at this false-positive rate, and the Gaussian's power."""
        best = fpr
        for pair in self._pairs:
            sign = 1 if pair.a > pair.b else -1

            def tails(t: arb, pair: MaximumPair = pair, sign: int = sign) -> tuple[arb, arb]:
                return pair.probabilities(sign * t)

            best = max(best, tpr_by_threshold(tails, fpr, float(pair.sigma))[0])
        return best, max(best, self._above.tpr_ends(fpr)[1])

    def _composed(self) -> list[GridCurve]:
        """Curves below the composition's, of the reduced epochs; none for one epoch."""
        if self._reduced is None:
            choice = GridChoice(cells=_CELLS, tail=_TAIL)
            self._reduced = [
                composed_below([(BinnedMaximum(pair), self._epochs)], choice)
                for pair in (self._pairs if self._epochs > 1 else [])
            ]
        return self._reduced

    def _candidates(self, gain: _Gain) -> Iterator[tuple[MaximumPair, float]]:
        """Each pair with the C that gains most, where any gains."""
        for pair in self._pairs:
            grid = pair.grid()
            gains = np.nan_to_num(gain(*pair.floats(grid)), nan=-np.inf, neginf=-np.inf)
            index = int(np.argmax(gains))
            if not gains[index] > -math.inf:
                continue
            low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]

            def loss(c: float, pair: MaximumPair = pair) -> float:
                value = float(gain(*pair.floats(np.array([c])))[0])
                return -value if value > -math.inf else 1e9

            best = minimize_scalar(loss, bounds=(low, high), method="bounded")
            yield pair, float(best.x if best.fun <= -gains[index] else grid[index])
