"""Neighbouring queries of the shuffled Gaussian in few dimensions, and what the paper asks of them.

The shuffled Gaussian (Yang, Ji and Xiang, Definition 6) gives the entries of f(x) + z in uniformly random
order: a mixture of one Gaussian for each order of f(x). Lengths are in units of the clip norm c.

Permutations keep the sum of the entries and permute the rest, so an output is two independent parts: its
component along (1, ..., 1), which is N(sum / sqrt(d), sigma^2), and its component across. Hence two cases
have exact answers, which `QueryPair.exact_delta` gives:

- f(x') is a reordering of f(x) moved along (1, ..., 1), as where all entries of the difference are equal: the
  components across have one law, and what remains is the Gaussian mechanism;
- d = 2: the component across is a number, and its two laws are mixtures of two Gaussians each
  (`plane_delta`).

**Two dimensions.** Along (1, 1) the outputs are N(0, 1) against N(s, 1); across it, equal mixtures of N(-a,
1), N(a, 1) against N(-b, 1), N(b, 1), independent of the first (lengths in units of the noise). Given the
second number v, whose loss is r(v), the first is the Gaussian mechanism at epsilon - r(v). So

    delta(epsilon) = mean over v of G(epsilon - r(v)),   G the Gaussian mechanism's delta, at any real number,

and r rises with |v| where a > b and falls where a < b, so that G(epsilon - r(v)) does. The mean of a monotone
function lies between its sums with the right and the left ends of any partition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType

import numpy as np
from scipy.special import log_ndtr, ndtr

from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds
from workbench.accounting.events import Gaussian, GaussianMixturePair
from workbench.attacks.accountant_checks.monte_carlo.mixtures import VectorMixturePair
from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray

LARGEST_DIMENSION = 6
"""Of a pair whose orders are enumerated: 720 components a side."""

_KEPT = 1 - 1e-12
"""Queries are built this much shorter than allowed, so that rounding cannot carry them over a limit."""
_ROUNDING = 1e-14
"""How far rounding may have moved a mean."""
_SAME = 1e-12
"""Entries and angles that differ by less count as the same."""


@dataclass(frozen=True, kw_only=True)
class QueryPair:
    """f(x) and f(x') in units of c.

    Attributes:
        name: Where the pair comes from, in words.
        first, second: The d entries of each, d >= 2.

    Raises:
        InputError: there are fewer than 2 entries, not equally many, or one is not finite.
    """

    name: str
    first: tuple[float, ...]
    second: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.first) < 2:
            raise InputError(f"first must be at least 2 numbers, got {len(self.first)}")
        if len(self.second) != len(self.first):
            raise InputError(f"second must be as many as first ({len(self.first)}), got {len(self.second)}")
        if not all(map(math.isfinite, self.first + self.second)):
            raise InputError("first and second must be finite numbers")

    @property
    def dimension(self) -> int:
        """The number d of entries of each query."""
        return len(self.first)

    @property
    def difference(self) -> tuple[float, ...]:
        """The difference g = f(x') - f(x) of the two queries, d entries."""
        return tuple(b - a for a, b in zip(self.first, self.second, strict=True))

    @property
    def distance(self) -> float:
        """The l2 norm of the difference of the two queries."""
        return math.hypot(*self.difference)

    @property
    def norm(self) -> float:
        """The l2 norm of the longer of the two queries."""
        return max(math.hypot(*self.first), math.hypot(*self.second))

    @property
    def shift_of_sums(self) -> float:
        """How far the components along (1, ..., 1) are apart: at most the distance, and nothing hides it."""
        return abs(math.fsum(self.difference)) / math.sqrt(self.dimension)

    def meets(self, batch_clip: float) -> bool:
        """True where Theorem 6's conditions hold as printed: distance <= c, |f(x)| <= c'."""
        return self.distance <= 1 and math.hypot(*self.first) <= batch_clip

    def caveats(self, batch_clip: float) -> tuple[str, ...]:
        """Objections that a defender of Theorem 6 may raise to this pair; empty where there is none."""
        longer = ("f(x') is longer than c'",) if self.norm > batch_clip else ()
        return longer + tuple(f"the proof leaves out that {reason}" for reason in self.left_out)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the paper's proof leaves out that this pair is; Theorem 6 itself says none of it.

        The main text's proof sets aside two queries whose entries are all equal; Lemma 2's proof sets aside
        differences within 45 degrees of (1, ..., 1), here of either sign.
        """
        reasons = []
        if all(max(query) - min(query) <= _SAME for query in (self.first, self.second)):
            reasons.append("both queries have equal entries")
        if self.shift_of_sums > self.distance * (math.sqrt(0.5) + _SAME):
            reasons.append("the difference is within 45 degrees of (1, ..., 1)")
        return tuple(reasons)

    def describe(self) -> str:
        """`one-hot difference from zero (d = 3, distance 1, norms 0 and 1)`."""
        norms = " and ".join(f"{math.hypot(*query):.4g}" for query in (self.first, self.second))
        return f"{self.name} (d = {self.dimension}, distance {self.distance:.4g}, norms {norms})"

    def shuffled(self, noise_multiplier: float) -> VectorMixturePair:
        """Both output laws, every order enumerated; orders that move neither query count once.

        Raises:
            InputError: the dimension is above `LARGEST_DIMENSION`.
        """
        d = self.dimension
        if d > LARGEST_DIMENSION:
            raise InputError(f"dimension must be at most {LARGEST_DIMENSION} to enumerate orders, got {d}")
        orders = np.array(list(permutations(range(d))))
        both = np.concatenate([np.array(query)[orders] for query in (self.first, self.second)], axis=1)
        # The orders that leave both queries alone are a subgroup, so that each row occurs equally often.
        kept = np.unique(both, axis=0)
        weights = np.full(len(kept), 1 / len(kept))
        return VectorMixturePair(
            p_means=kept[:, :d],
            p_weights=weights,
            q_means=kept[:, d:],
            q_weights=weights,
            standard_deviation=noise_multiplier,
        )

    def exact_delta(self, noise_multiplier: float, epsilon: float) -> Bounds | None:
        """delta(epsilon) of the shuffled outputs, the worse direction; None where only samples answer.

        Args:
            noise_multiplier: sigma / c, > 0.
            epsilon: >= 0.
        """
        across = [
            np.sort(np.array(query) - math.fsum(query) / len(query)) for query in (self.first, self.second)
        ]
        gap = float(np.linalg.norm(across[1] - across[0]))
        means = [float(side[1] - side[0]) / math.sqrt(2) for side in across]
        shift = self.shift_of_sums if self.shift_of_sums > _ROUNDING else 0.0
        moved = _ROUNDING if shift else _ROUNDING + self.shift_of_sums
        if gap <= _SAME:
            bounds = _gaussian(shift, noise_multiplier, epsilon)
            moved += gap
        elif self.dimension > 2:
            return None
        elif shift:
            a, b = (mean / noise_multiplier for mean in means)
            bounds = plane_delta(a, b, shift / noise_multiplier, epsilon)
        else:
            bounds = delta_bounds(_mixtures(means[0], means[1], noise_multiplier), epsilon)
        return _with_slack(bounds, (1 + math.exp(epsilon)) * moved / noise_multiplier)


def _gaussian(shift: float, noise_multiplier: float, epsilon: float) -> Bounds:
    """The Gaussian mechanism's delta; 0 without a shift."""
    if shift:
        return delta_bounds(Gaussian(noise_multiplier=noise_multiplier / shift), epsilon)
    return Bounds(lower=0.0, upper=0.0, rigorous=True, method="both laws are the same")


def _mixtures(p_mean: float, q_mean: float, deviation: float) -> GaussianMixturePair:
    """Equal mixtures at -m and m."""
    p, q = ((-mean, mean) if mean > 0 else (0.0,) for mean in (p_mean, q_mean))
    return GaussianMixturePair(
        p_means=p,
        p_weights=(1 / len(p),) * len(p),
        q_means=q,
        q_weights=(1 / len(q),) * len(q),
        standard_deviation=deviation,
    )


def _with_slack(bounds: Bounds, slack: float) -> Bounds:
    """Bounds for means that rounding moved: m standard deviations change a probability by less than m."""
    return Bounds(
        lower=max(0.0, bounds.lower - slack),
        upper=min(1.0, bounds.upper + slack),
        rigorous=bounds.rigorous,
        method=bounds.method,
        assumptions=bounds.assumptions,
    )


def _worst_direction(d: int) -> FloatArray:
    """The unit vector of Eqs. 43 and 44: one entry against all others."""
    vector = np.full(d, -1.0)
    vector[0] = d - 1
    unit: FloatArray = vector / math.sqrt(d * (d - 1))
    return unit


def _around(middle: FloatArray, difference: FloatArray) -> tuple[FloatArray, FloatArray]:
    return middle - difference / 2, middle + difference / 2


def _random_middle(difference: FloatArray, batch_clip: float, rng: np.random.Generator) -> FloatArray:
    """A random vector across the difference, so long that both queries get the norm c'."""
    raw = rng.standard_normal(len(difference))
    raw -= difference * (raw @ difference) / (difference @ difference)
    room = max(0.0, batch_clip**2 - float(difference @ difference) / 4)
    return np.asarray(raw * (math.sqrt(room) / np.linalg.norm(raw)))


Queries = tuple[FloatArray, FloatArray]
Builder = Callable[[int, float, np.random.Generator], Queries]


def _opposite(difference: FloatArray) -> Queries:
    """The difference, halved to both sides of zero."""
    return _around(np.zeros(len(difference)), difference)


def _level(d: int) -> FloatArray:
    """The unit vector of equal entries."""
    return np.full(d, 1 / math.sqrt(d))


def _random(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """A random difference beyond 45 degrees from (1, ..., 1), both queries of norm c'."""
    while True:
        g = rng.standard_normal(d)
        g /= np.linalg.norm(g)
        if abs(g.sum()) / math.sqrt(d) < math.sqrt(0.5):
            return _around(_random_middle(g, batch_clip, rng), g)


def _random_from_zero(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    first, second = _random(d, batch_clip, rng)
    return np.zeros(d), second - first


def _reordered(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """f(x') is f(x) with two entries exchanged: shuffling hides all of it."""
    first = np.zeros(d)
    first[:2] = 1 / math.sqrt(8), -1 / math.sqrt(8)
    second = first.copy()
    second[[0, 1]] = first[[1, 0]]
    return first, second


PAIRS: Mapping[str, Builder] = MappingProxyType(
    {
        # Eqs. 43 and 44 with both norms within c', and to the letter: |f(x')| = c' + c.
        "the proof's pair": lambda d, clip, _: ((clip - 1) * _worst_direction(d), clip * _worst_direction(d)),
        "the proof's pair as printed": lambda d, clip, _: (
            clip * _worst_direction(d),
            (clip + 1) * _worst_direction(d),
        ),
        "the proof's direction, opposite queries": lambda d, *_: _opposite(_worst_direction(d)),
        "one-hot difference from zero": lambda d, *_: (np.zeros(d), np.eye(d)[0]),
        "one-hot difference, opposite queries": lambda d, *_: _opposite(np.eye(d)[0]),
        # f(x) has equal entries, not zero; its length keeps f(x') within c.
        "one-hot difference from equal entries": lambda d, *_: (
            np.full(d, -1 / d),
            np.full(d, -1 / d) + np.eye(d)[0],
        ),
        "random queries": _random,
        "random difference from zero": _random_from_zero,
        # Otherwise along Eq. 44.
        "60 degrees from (1, ..., 1)": lambda d, *_: _opposite(
            np.full(d, 0.5 / math.sqrt(d)) + math.sqrt(0.75) * _worst_direction(d)
        ),
        "two entries exchanged": _reordered,
        # The entries of the queries differ (where c' > c / 2).
        "equal-entry difference": lambda d, clip, rng: _around(
            _random_middle(_level(d), clip, rng), _level(d)
        ),
        "equal-entry queries": lambda d, *_: _opposite(_level(d)),
        "equal-entry difference from zero": lambda d, *_: (np.zeros(d), _level(d)),
    }
)
"""Neighbouring queries by name, c apart; `two entries exchanged` is a negative control: its delta is 0."""


def query_pair(name: str, dimension: int, batch_clip: float, *, seed: int = 2026) -> QueryPair:
    """A pair of `PAIRS`; `QueryPair.meets` says whether Theorem 6 speaks of it at this c'.

    Args:
        dimension: d >= 2.
        batch_clip: c' / c, > 0.
        seed: Of the random ones; each name and dimension has a stream of its own.

    Raises:
        InputError: there is no such pair, or a number is out of range.
    """
    if name not in PAIRS:
        raise unknown_name("pair", name, PAIRS)
    if dimension < 2:
        raise InputError(f"dimension must be >= 2, got {dimension!r}")
    if not 0 < batch_clip < math.inf:
        raise InputError(f"batch_clip must be finite and > 0, got {batch_clip!r}")
    rng = np.random.default_rng([seed, dimension, list(PAIRS).index(name)])
    first, second = PAIRS[name](dimension, batch_clip, rng)
    return QueryPair(name=name, first=_entries(first), second=_entries(second))


def _entries(query: FloatArray) -> tuple[float, ...]:
    # Adding 0 makes -0 into 0, so that equal rows are found equal.
    return tuple(float(value) * _KEPT + 0.0 for value in query)


_CELLS = 1 << 16
_REACH = 14.0
"""Standard deviations beyond the means that are summed; less than 1e-43 is left out, and counted above."""
_RELATIVE, _ABSOLUTE = 1e-9, 1e-13
"""Allowances for rounding: of G, relative; of losses, which moves epsilon, absolute and by their size."""

METHOD = "monotone sums over the component across (1, 1)"
ASSUMPTIONS = ("float64 arithmetic is IEEE 754, and log_ndtr is good to 1e-11, relative",)


def plane_delta(p_mean: float, q_mean: float, shift: float, epsilon: float) -> Bounds:
    """The larger delta(epsilon) over both orders of the pair.

    Args:
        p_mean, q_mean: a and b, >= 0, different, in units of the noise.
        shift: s > 0, in units of the noise.
        epsilon: Finite, >= 0.

    Raises:
        InputError: an argument is out of range.
    """
    if not 0 < shift < math.inf:
        raise InputError(f"shift must be finite and > 0, got {shift!r}")
    if p_mean == q_mean or not 0 <= min(p_mean, q_mean) <= max(p_mean, q_mean) < math.inf:
        raise InputError(f"p_mean and q_mean must be >= 0 and different, got {p_mean!r} and {q_mean!r}")
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")
    both = [_one_order(a, b, shift, epsilon) for a, b in ((p_mean, q_mean), (q_mean, p_mean))]
    lower, upper = (max(order[end] for order in both) for end in (0, 1))
    absolute = _ABSOLUTE * (1 + max(p_mean, q_mean) ** 2 + math.exp(epsilon))
    return Bounds(
        lower=max(0.0, lower * (1 - _RELATIVE) - absolute),
        upper=min(1.0, upper * (1 + _RELATIVE) + absolute),
        rigorous=True,
        method=METHOD,
        assumptions=ASSUMPTIONS,
    )


def _one_order(a: float, b: float, shift: float, epsilon: float) -> tuple[float, float]:
    """Lower and upper sum of G(epsilon - r(|v|)) under the mixture of N(-a, 1) and N(a, 1)."""
    v = np.linspace(0.0, max(a, b) + _REACH, _CELLS + 1)
    losses = _log_cosh(a * v) - _log_cosh(b * v) - (a * a - b * b) / 2
    given = gaussian_delta_anywhere(epsilon - losses, shift)
    beyond = ndtr(a - v) + ndtr(-a - v)
    if a > b:  # rises: G at 0, and what it gains, weighted with the mass that is beyond
        gained = np.maximum(np.diff(given), 0.0)
        start = float(given[0])
        lower, upper = start + float(gained @ beyond[1:]), start + float(gained @ beyond[:-1])
        return lower, upper + float(beyond[-1])
    lost = np.maximum(-np.diff(given), 0.0)
    within = np.maximum(1 - beyond, 0.0)
    lower, upper = float(lost @ within[:-1]), float(lost @ within[1:])
    return lower + float(given[-1] * within[-1]), upper + float(given[-1])


def gaussian_delta_anywhere(epsilon: FloatArray, shift: float) -> FloatArray:
    """delta at any real epsilon, shape `(n,)`, between N(0, 1) and N(shift, 1): falls from 1 to 0."""
    above = log_ndtr(shift / 2 - epsilon / shift)
    below = epsilon + log_ndtr(-shift / 2 - epsilon / shift)
    values: FloatArray = np.exp(above) * -np.expm1(np.minimum(below - above, 0.0))
    return values


def _log_cosh(x: FloatArray) -> FloatArray:
    """For x >= 0."""
    values: FloatArray = x + np.log1p(np.exp(-2 * x)) - math.log(2)
    return values
