"""Bounds on the privacy of shuffled batches, each end by an argument of its own.

**Lower end** (Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024, "How Private are DP-SGD
Implementations?"). Let the record contribute 1 under one neighbour, 0 under the other (zero-out) or -1
(replace-one), and every other record w, always in the direction of the first coordinate. In one epoch,
batch t releases a normal number of standard deviation s; up to the constant (batch size) w, the T batches
give

    (1/T) sum_t N(a e_t, s^2 I)  and  (1/T) sum_t N(b e_t, s^2 I),
    (a, b) = (1 - w, -w) under zero-out, (1 - w, -1 - w) under replace-one,

because the record is equally likely to be in each batch. The event "some batch is above C" has the
probability 1 - Phi((C - a) / s) Phi(C / s)^(T - 1) under the first and the same with b under the second.
Any event bounds delta from below, so C is chosen by a float search and only the final evaluation is in
balls. w = -1 gives the paper's pair (2, 1). With several epochs, each is reduced to which of some
intervals its largest batch falls in, a finite pair, and the reduced epochs are composed: the shuffles are
independent, and what is computed from an output shows no more than it (after Chua et al. 2024b, "Scalable
DP-SGD: Shuffling vs. Poisson Subsampling").

**Upper end.** Given the order of the records, each epoch releases the record's contribution once: the
Gaussian event. Which order it was does not depend on the record, and the divergence is jointly convex:
the mixture over orders has no larger a delta. An adversary learns at most sqrt(epochs) * sensitivity / s
in the sense of GDP.

Zero-out and replace-one only: removing a record changes how many records there are to be dealt into
batches, and the event does not say how.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from flint import arb, ctx
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from workbench.accounting.balls.ball import Enclosure, ends, normal_tail, settle, to_arb, tpr_by_threshold
from workbench.accounting.balls.composition import GridChoice, GridCurve, StepLaw, composed_below
from workbench.accounting.balls.gaussian import GaussianCurve
from workbench.accounting.events import ShuffledBatches
from workbench.interfaces import FloatArray

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
    """Shuffled batches under zero-out or replace-one."""

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
