"""Neighbouring queries of the shuffled Gaussian in few dimensions, and what the paper asks of them.

The shuffled Gaussian (Yang, Ji and Xiang, Definition 6) gives the entries of f(x) + z in uniformly random
order: a mixture of one Gaussian for each order of f(x). Lengths are in units of the clip norm c.

Permutations keep the sum of the entries and permute the rest, so an output is two independent parts: its
component along (1, ..., 1), which is N(sum / sqrt(d), sigma^2), and its component across. Hence two cases
have exact answers, which `QueryPair.exact_delta` gives:

- f(x') is a reordering of f(x) moved along (1, ..., 1), as where all entries of the difference are equal: the
  components across have one law, and what remains is the Gaussian mechanism;
- d = 2: the component across is a number, and its two laws are mixtures of two Gaussians each
  (`_shuffled_plane`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType

import numpy as np

from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds
from workbench.accounting.events import Gaussian, GaussianMixturePair
from workbench.attacks.accountant_checks.monte_carlo.vector_mixtures import VectorMixturePair
from workbench.attacks.claim_checks.shuffled_dp_sgd.plane import plane_delta
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
        """d."""
        return len(self.first)

    @property
    def difference(self) -> tuple[float, ...]:
        """g = f(x') - f(x)."""
        return tuple(b - a for a, b in zip(self.first, self.second, strict=True))

    @property
    def distance(self) -> float:
        """Norm of g."""
        return math.hypot(*self.difference)

    @property
    def norm(self) -> float:
        """Of the longer query."""
        return max(math.hypot(*self.first), math.hypot(*self.second))

    @property
    def shift_of_sums(self) -> float:
        """How far the components along (1, ..., 1) are apart: at most the distance, and nothing hides it."""
        return abs(math.fsum(self.difference)) / math.sqrt(self.dimension)

    def meets(self, batch_clip: float) -> bool:
        """True where Theorem 6's conditions hold as printed: distance <= c, |f(x)| <= c'."""
        return self.distance <= 1 and math.hypot(*self.first) <= batch_clip

    def caveats(self, batch_clip: float) -> tuple[str, ...]:
        """What a defender of Theorem 6 may say of this pair: empty where nothing is to be said."""
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

        Args:
            noise_multiplier: sigma / c.

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
        across = [np.sort(np.array(query) - math.fsum(query) / len(query)) for query in self._sides]
        gap = float(np.linalg.norm(across[1] - across[0]))
        means = [float(side[1] - side[0]) / math.sqrt(2) for side in across]
        shift = self.shift_of_sums if self.shift_of_sums > _ROUNDING else 0.0
        moved = _ROUNDING if shift else _ROUNDING + self.shift_of_sums
        if gap <= _SAME:
            found = _gaussian(shift, noise_multiplier, epsilon)
            moved += gap
        elif self.dimension > 2:
            return None
        elif shift:
            a, b = (mean / noise_multiplier for mean in means)
            found = plane_delta(a, b, shift / noise_multiplier, epsilon)
        else:
            found = delta_bounds(_mixtures(means[0], means[1], noise_multiplier), epsilon)
        return _with_slack(found, (1 + math.exp(epsilon)) * moved / noise_multiplier)

    @property
    def _sides(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.first, self.second


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


def _with_slack(found: Bounds, slack: float) -> Bounds:
    """Bounds for means that rounding moved: m standard deviations change a probability by less than m."""
    return Bounds(
        lower=max(0.0, found.lower - slack),
        upper=min(1.0, found.upper + slack),
        rigorous=found.rigorous,
        method=found.method,
        assumptions=found.assumptions,
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


def _proof(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """Eqs. 43 and 44 with both norms within c': the longer query has norm c', the shorter c' - c."""
    u = _worst_direction(d)
    return (batch_clip - 1) * u, batch_clip * u


def _proof_as_printed(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """Eqs. 43 and 44 to the letter: |f(x)| = c' and |f(x')| = c' + c."""
    u = _worst_direction(d)
    return batch_clip * u, (batch_clip + 1) * u


def _proof_opposite(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    return _around(np.zeros(d), _worst_direction(d))


def _one_hot(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    return np.zeros(d), np.eye(d)[0]


def _one_hot_opposite(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    return _around(np.zeros(d), np.eye(d)[0])


def _one_hot_equal(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """f(x) has equal entries, not zero; its length keeps f(x') within c."""
    level = np.full(d, -1 / d)
    return level, level + np.eye(d)[0]


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


def _sixty_degrees(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """A difference at 60 degrees from (1, ..., 1), otherwise along Eq. 44, halved to both sides."""
    g = np.full(d, 0.5 / math.sqrt(d)) + math.sqrt(0.75) * _worst_direction(d)
    return _around(np.zeros(d), g)


def _reordered(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """f(x') is f(x) with two entries exchanged: shuffling hides all of it."""
    first = np.zeros(d)
    first[:2] = 1 / math.sqrt(8), -1 / math.sqrt(8)
    second = first.copy()
    second[[0, 1]] = first[[1, 0]]
    return first, second


def _equal_difference(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    """All entries of the difference are equal, those of the queries are not (where c' > c / 2)."""
    g = np.full(d, 1 / math.sqrt(d))
    return _around(_random_middle(g, batch_clip, rng), g)


def _equal_queries(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    return _around(np.zeros(d), np.full(d, 1 / math.sqrt(d)))


def _equal_from_zero(d: int, batch_clip: float, rng: np.random.Generator) -> Queries:
    return np.zeros(d), np.full(d, 1 / math.sqrt(d))


PAIRS: Mapping[str, Builder] = MappingProxyType(
    {
        "the proof's pair": _proof,
        "the proof's pair as printed": _proof_as_printed,
        "the proof's direction, opposite queries": _proof_opposite,
        "one-hot difference from zero": _one_hot,
        "one-hot difference, opposite queries": _one_hot_opposite,
        "one-hot difference from equal entries": _one_hot_equal,
        "random queries": _random,
        "random difference from zero": _random_from_zero,
        "60 degrees from (1, ..., 1)": _sixty_degrees,
        "two entries exchanged": _reordered,
        "equal-entry difference": _equal_difference,
        "equal-entry queries": _equal_queries,
        "equal-entry difference from zero": _equal_from_zero,
    }
)
"""Neighbouring queries by name, c apart; `two entries exchanged` is a negative control: its delta is 0."""


def query_pair(name: str, dimension: int, batch_clip: float, *, seed: int = 2026) -> QueryPair:
    """A pair of `PAIRS`; `QueryPair.meets` says whether Theorem 6 speaks of it at this c'.

    Args:
        name: Of the pair.
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
