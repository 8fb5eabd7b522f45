"""The best output of a random number of runs: what neighbours show of it, for a mechanism of pure privacy.

Such a mechanism: three outputs, of which the best has the probabilities b and g b with the record and
without, g = exp(epsilon), the middle one g a and a, and the worst the rest. That is epsilon-DP where a and b
are at most 1 / (g + 1). Of K runs with generating function f, the best output is at most the middle one with
probability f(1 - b), and the worst with f(1 - b - a): the law of the best of all runs is made of differences
of f.
"""

from __future__ import annotations

import math

from flint import arb, ctx

from workbench.accounting.balls.finite_bounds import pair_below
from workbench.accounting.events import FinitePair
from workbench.core.errors import UnsupportedError

_BITS = 192

_PLACES = ((0.0, 1.0), (0.5, 0.0), (2.0, 0.5), (8.0, 2.0), (32.0, 4.0), (128.0, 4.0))
"""b and a over the reciprocal of the mean number of runs."""

_SHARES = (
    *((1.0, a) for a in (1.0, 0.6, 0.3, 0.1, 0.03, 0.003)),
    *((0.7, a) for a in (0.3, 0.1, 0.05)),
    *((0.4, 0.5), (0.4, 0.1), (0.14, 0.07), (0.07, 0.07)),
    *((b, 1.0) for b in (0.0, 0.02, 0.5)),
)
"""b and a over the most that they may be. Both lists: where a search in floats found the largest deltas."""


class Runs:
    """The number of runs K: truncated negative binomial, or Poisson for an infinite shape.

    Args:
        shape: Of the truncated negative binomial; 0 for the logarithmic, 1 for the geometric distribution.
        mean: Of K.

    Raises:
        UnsupportedError: the mean is too large, or too close to 1.
    """

    def __init__(self, shape: float, mean: float) -> None:
        self._shape, self._mean = shape, mean
        self._gamma = arb(1) if math.isinf(shape) else self._solved()

    def generating(self, x: arb) -> arb:
        """E[x^K]."""
        if math.isinf(self._shape):
            return (arb(self._mean) * (x - 1)).exp()
        base = 1 - (1 - self._gamma) * x
        if self._shape == 0:
            return base.log() / self._gamma.log()
        power = arb(self._shape)
        return (base**-power - 1) / (self._gamma**-power - 1)

    def _mean_at(self, gamma: arb) -> arb:
        """E[K], which falls in gamma."""
        if self._shape == 0:
            return (1 - 1 / gamma) / gamma.log()
        power = arb(self._shape)
        return power * (1 - gamma) / (gamma * (1 - gamma**power))

    def _solved(self) -> arb:
        """A ball around the gamma of the mean, by certified bisection."""
        low, high = 1e-12, 1 - 1e-9
        if not (self._mean_at(arb(low)) > self._mean > self._mean_at(arb(high))):
            raise UnsupportedError(f"the number of runs is out of reach at a mean of {self._mean:g}")
        for _ in range(200):
            middle = math.sqrt(low) * math.sqrt(high)
            value = self._mean_at(arb(middle))
            if value > self._mean:
                low = middle
            elif value < self._mean:
                high = middle
            else:
                break
        return arb(low).union(arb(high))


def attained_by_best(epsilon: float, shape: float, mean: float) -> list[FinitePair]:
    """Finite pairs that neighbours attain, by the places above, in both orders where they differ."""
    pairs = []
    with ctx.workprec(_BITS):
        runs, growth = Runs(shape, mean), arb(epsilon).exp()
        largest = (1 - 1e-9) / (math.exp(epsilon) + 1)
        places = [(b * largest, a * largest) for b, a in _SHARES]
        places += [(min(b / mean, largest), min(a / mean, largest)) for b, a in _PLACES]
        for best, middle in places:
            b, a = arb(best), arb(middle)
            p = _best_of(runs, b, growth * a)
            q = _best_of(runs, growth * b, a)
            pairs += [pair_below(list(zip(one, other, strict=True))) for one, other in ((p, q), (q, p))]
    return pairs


def _best_of(runs: Runs, best: arb, middle: arb) -> list[arb]:
    """Probabilities of the best, the middle and the worst output of all runs, and of no run."""
    none = runs.generating(arb(0))
    worst, others = runs.generating(1 - best - middle), runs.generating(1 - best)
    return [1 - others, others - worst, worst - none, none]
