"""Shuffled DPSGD's accountant, as printed, and the noise that it finds: Theorem 6 with Theorems 1 and 2.

Source: Yang, Ji and Xiang, "Weights Shuffling for Improving DPSGD in Transformer-based Models". After each
noisy step the hidden units of the network are permuted at random; Theorem 6 says how little noise is then
enough.

Where the paper leaves a choice or contradicts itself, the choice is a named option:

- Eq. 26 prints zeta_2 with c * c' in the exponent (`zeta_2="main text"`); its derivation, Eq. 83, has
  c * (c + c') (`zeta_2="appendix"`). The main text's delta is the larger.
- Theorem 1 asks for delta > sum of the steps' deltas and is silent about the split: `slack` is the share of
  delta that the composition keeps.
- Theorem 6 is stated for every c'; Algorithm 1 clips the whole batch's gradient to c'. Its value in the
  experiments is not given. As c' grows, Theorem 6 tends to the Gaussian mechanism; `batch_clip` is c' / c.
- In one dimension nothing is shuffled (Fig. 4: "d = 1 represents the unshuffled"): the accounting of
  sigma_0 in Algorithm 1, line 3.

Eq. 16 normalises the density by (2 pi sigma^2)^(|P_s| / 2), where d / 2 is meant; nothing here depends on
it.

The noise for a budget (`noise_multiplier_for`). Theorems 1 and 2 are inverted in closed form: of the budget's
delta, `slack` stays with the composition and each step gets an equal share of the rest. What remains is Eq.
25 at one step's epsilon and delta. Its left side h(sigma) need not fall as the noise grows. In 3,000 random
settings (epsilon 1e-4 to 20, delta 1e-14 to 0.9, d up to 1e9, c' / c from 1e-3 to 1e4, either zeta_2) it
crossed delta more than once in nine, all of them with zeta_2 of Eq. 26 (`"main text"`), few dimensions and a
small delta: for d = 8, c' = 0.021 c, epsilon 1.3278 and delta 1.345e-13, Eq. 25 holds from sigma = 0.637 c to
0.726 c, fails up to 0.987 c, and holds from there on. So all crossings are looked for, between two ends that
are proved:

- above `_all_above`, Eq. 25 holds everywhere: h is at most its first term, which is at most
  Phi(1 / (2 sigma) - epsilon sigma), falling in sigma;
- below `_all_below` it holds nowhere: where (d - 1) exp(-c c' / sigma^2) <= 1, zeta_1 >= -log 2 and
  sigma_Z1^2 >= s - log 4, with s = c^2 / sigma^2, while the subtracted term is at most the Gaussian
  mechanism's.

Between them, a grid of `POINTS` noise levels, even in log sigma, is searched: two crossings between
neighbours of the grid would be missed. The noise multiplier is the largest crossing: from there on Eq. 25
holds at every level. (The theorem as printed would let any level do at which Eq. 25 holds.)

>>> found = noise_multiplier_for(
...     epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=1000, dimension=85_800_000
... )
>>> 0.2 < found < 0.4
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from workbench.accounting.crossings import crossing, turns
from workbench.accounting.events import Event, Gaussian, SubsampledGaussian
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.questions import (
    require,
    require_delta,
    require_option,
    require_positive,
    require_run,
)

ZETA_2 = ("appendix", "main text")
VIT_PARAMETERS = 85_800_000
"""Trainable weights of the paper's ViT (Table I)."""

LARGEST_EPSILON = 1e5
"""Above it the accountant finds no epsilon, and no noise is worked out."""

LARGEST_DIMENSION = 10**18
POINTS = 600
"""Noise levels at which Eq. 25 is evaluated between the two ends."""

_FAR = 1e100
"""Noise beyond which squares leave the floats; from there on, and below its inverse, delta stays."""


def theorem_6_delta(
    *,
    epsilon: float,
    noise_multiplier: float,
    dimension: int,
    batch_clip: float = 1.0,
    zeta_2: str = "appendix",
) -> float:
    """Left side of Eq. 25, the delta at which Theorem 6 calls one shuffled Gaussian private.

    Args:
        epsilon: At least 0.
        noise_multiplier: sigma / c, > 0.
        dimension: d in 1..1e18; 1 is the Gaussian mechanism.
        batch_clip: c' / c, > 0.
        zeta_2: `"appendix"` or `"main text"`.

    Returns at most 1; negative values, which the printed formula takes at large epsilon, are given as 0.
    Raises `InputError`: an argument is out of range.
    """
    require("epsilon", epsilon, epsilon >= 0, ">= 0")
    require_positive("noise_multiplier", noise_multiplier)
    require("dimension", dimension, 1 <= dimension <= LARGEST_DIMENSION, ">= 1 and at most 1e18")
    require_positive("batch_clip", batch_clip)
    require_option("zeta_2", zeta_2, ZETA_2)
    if math.isinf(epsilon):
        return 0.0
    square = min(max(noise_multiplier, 1 / _FAR), _FAR) ** -2
    near, spread_1 = _shuffled_terms(dimension, batch_clip * square, square)
    far, spread_2 = _shuffled_terms(dimension, (1 + batch_clip) * square, square)
    zeta_1 = -near
    zeta_2_value = -(far if zeta_2 == "appendix" else near) - square
    first = float(log_ndtr(spread_1 / 2 + (zeta_1 - epsilon) / spread_1))
    second = epsilon + float(log_ndtr(spread_2 / 2 + (zeta_2_value - epsilon) / spread_2))
    return 0.0 if second >= first else math.exp(first) * -math.expm1(second - first)


def _shuffled_terms(dimension: int, product: float, square: float) -> tuple[float, float]:
    """log(1 + (d - 1) e^-x) and sigma_Z of Eq. 26; x = d * product / (d - 1), c^2 / sigma^2 = square."""
    if dimension == 1:
        return 0.0, math.sqrt(square)
    exponent = dimension * product / (dimension - 1)
    others = math.log(dimension - 1)
    single = _log1p_exp(others - exponent)
    double = _log1p_exp(others - 2 * exponent)
    grown = double - 2 * single + _log_expm1(square)
    return single, math.sqrt(_log1p_exp(grown))


def theorem_1_epsilon(steps: Sequence[tuple[float, int]], slack: float) -> float:
    """Eq. 11: the smaller of basic and advanced composition.

    `steps`: epsilons, each with the number of times that it occurs. `slack`: delta' = delta - sum of the
    steps' deltas. Raises `InputError`: slack is outside (0, 1).
    """
    require("slack", slack, 0 < slack < 1, "in (0, 1)")
    squares = math.fsum(count * value * value for value, count in steps)
    return min(
        math.fsum(count * value for value, count in steps),
        squares / 2 + math.sqrt(-2 * math.log(slack) * squares),
    )


def theorem_2(epsilon: float, delta: float, sampling_probability: float) -> tuple[float, float]:
    """log(1 + p * (e^epsilon - 1)) and p * delta."""
    if epsilon > 700:
        return epsilon + math.log(sampling_probability), sampling_probability * delta
    return math.log1p(sampling_probability * math.expm1(epsilon)), sampling_probability * delta


@dataclass(frozen=True, kw_only=True)
class ShuffledGaussianRun(Event):
    """T steps, each a Poisson-sampled, noised and batch-clipped sum whose coordinates are then permuted.

    Attributes:
        noise_multiplier: Noise over the clip norm c.
        sampling_probability: In (0, 1].
        steps: T >= 1.
        dimension: Number d of permuted coordinates.
        batch_clip: c' / c.

    Raises `InputError`: a parameter is out of range.
    """

    noise_multiplier: float
    sampling_probability: float
    steps: int
    dimension: int
    batch_clip: float = 1.0

    def __post_init__(self) -> None:
        require("noise_multiplier", self.noise_multiplier, 0 < self.noise_multiplier < math.inf, "> 0")
        require_run(sampling_probability=self.sampling_probability, steps=self.steps)
        require("dimension", self.dimension, self.dimension >= 1, ">= 1")
        require("batch_clip", self.batch_clip, 0 < self.batch_clip < math.inf, "> 0")

    def describe(self) -> str:
        """`10 x shuffled subsampled Gaussian (noise multiplier 1, sampling probability 0.1, ...)`."""
        return (
            f"{self.steps} x shuffled subsampled Gaussian (noise multiplier {self.noise_multiplier:g}, "
            f"sampling probability {self.sampling_probability:g}, dimension {self.dimension})"
        )


@dataclass(frozen=True, kw_only=True)
class ShuffledDPSGD:
    """Theorem 6 per step, amplified by Theorem 2 and composed by Theorem 1.

    A `ShuffledGaussianRun` says its own dimension. DP-SGD runs are taken as runs of this accountant's
    `dimension`: 1 is the paper's accounting for unshuffled DP-SGD, and at any other it is asked about a
    mechanism that is shuffled besides. Shuffling leaves the sum of a step's coordinates as it is, and a
    gradient may point along that sum, so the unshuffled run's certified lower bounds hold for the shuffled
    one.

    Attributes:
        dimension: For events that have none.
        batch_clip: c' / c, for events that have none.
        slack: Share of delta that Theorem 1 keeps for the composition, in (0, 1).
        zeta_2: `"appendix"` or `"main text"`.

    Raises `InputError`: an option is out of range.
    """

    dimension: int = 1
    batch_clip: float = 1.0
    slack: float = 0.5
    zeta_2: str = "appendix"

    def __post_init__(self) -> None:
        require("slack", self.slack, 0 < self.slack < 1, "in (0, 1)")
        require("dimension", self.dimension, self.dimension >= 1, ">= 1")
        require_option("zeta_2", self.zeta_2, ZETA_2)

    @property
    def name(self) -> str:
        """The accountant's name in tables."""
        return f"Shuffled DPSGD (d = {self.dimension})"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Epsilon of a run whose steps are all alike or not.

        Args:
            event: Shuffled or unshuffled subsampled Gaussians, in any number.
            delta: In (0, 1); every step gets an equal share of (1 - slack) * delta.
            adjacency: Add-remove or zero-out (a clipped record moves the sum by c; Theorem 2 blanks it).

        Raises `UnsupportedError`: the event or adjacency is another. `InputError`: delta is outside (0, 1).
        """
        if adjacency not in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT):
            raise UnsupportedError(f"{self.name} answers for add-remove and zero-out, not {adjacency}")
        require_delta(delta)
        runs = [(self._as_run(part), count) for part, count in event.parts()]
        total = sum(run.steps * count for run, count in runs)
        share = (1 - self.slack) * delta / total
        epsilons: list[tuple[float, int]] = []
        for run, count in runs:
            step = self._step_epsilon(run, share / run.sampling_probability)
            amplified, _ = theorem_2(step, share / run.sampling_probability, run.sampling_probability)
            epsilons.append((amplified, run.steps * count))
        return theorem_1_epsilon(epsilons, self.slack * delta)

    def _as_run(self, part: Event) -> ShuffledGaussianRun:
        if isinstance(part, ShuffledGaussianRun):
            return part
        if isinstance(part, SubsampledGaussian):
            q = part.sampling_probability
        elif isinstance(part, Gaussian):
            q = 1.0
        else:
            raise UnsupportedError(f"{self.name} answers for subsampled Gaussians, not {part.describe()}")
        return ShuffledGaussianRun(
            noise_multiplier=part.noise_multiplier,
            sampling_probability=q,
            steps=1,
            dimension=self.dimension,
            batch_clip=self.batch_clip,
        )

    def _step_epsilon(self, run: ShuffledGaussianRun, delta: float) -> float:
        """Smallest epsilon at which Theorem 6 gives at most delta."""

        def claimed(epsilon: float) -> float:
            """The delta that Theorem 6 claims at an epsilon."""
            return theorem_6_delta(
                epsilon=epsilon,
                noise_multiplier=run.noise_multiplier,
                dimension=run.dimension,
                batch_clip=run.batch_clip,
                zeta_2=self.zeta_2,
            )

        if delta >= 1 or claimed(0.0) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while claimed(high) > delta:
            low, high = high, 2 * high
            if high > LARGEST_EPSILON:
                return math.inf
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (low, middle) if claimed(middle) <= delta else (middle, high)
        return high


@register("accountant", "shuffled_dp_sgd")
def shuffled_dp_sgd(
    *, dimension: int = VIT_PARAMETERS, batch_clip: float = 1.0, slack: float = 0.5, zeta_2: str = "appendix"
) -> ShuffledDPSGD:
    """Shuffled DPSGD: Theorem 6 with subsampling and advanced composition, at the paper's ViT by default."""
    return ShuffledDPSGD(dimension=dimension, batch_clip=batch_clip, slack=slack, zeta_2=zeta_2)


@register("accountant", "shuffled_dp_sgd_unshuffled")
def shuffled_dp_sgd_unshuffled(*, slack: float = 0.5) -> ShuffledDPSGD:
    """Shuffled DPSGD's accounting for plain DP-SGD: the Gaussian's delta, Theorems 2 and 1."""
    return ShuffledDPSGD(dimension=1, slack=slack)


def _log1p_exp(value: float) -> float:
    """log(1 + e^value)."""
    return value + math.log1p(math.exp(-value)) if value > 0 else math.log1p(math.exp(value))


def _log_expm1(value: float) -> float:
    """log(e^value - 1), for value > 0."""
    return value + math.log(-math.expm1(-value)) if value > 1 else math.log(math.expm1(value))


def step_budget(
    *, epsilon: float, delta: float, sampling_probability: float, steps: int, slack: float
) -> tuple[float, float]:
    """Theorems 1 and 2 backwards: what each of T equal steps may take, before its subsampling.

    Args:
        epsilon: Of the whole run, in (0, 1e5].
        delta: Of the whole run, in (0, 1).
        sampling_probability: In (0, 1].
        steps: T >= 1.
        slack: Share of delta that Theorem 1 keeps for the composition, in (0, 1).

    Returns the largest epsilon, and the delta, of one step; the latter may be 1 or more. Raises `InputError`:
    an argument is out of range.
    """
    require("epsilon", epsilon, 0 < epsilon <= LARGEST_EPSILON, f"in (0, {LARGEST_EPSILON:g}]")
    require_delta(delta)
    require_run(sampling_probability=sampling_probability, steps=steps)
    require("slack", slack, 0 < slack < 1, "in (0, 1)")
    root = math.sqrt(-2 * math.log(slack * delta) * steps)
    # Eq. 11 is the smaller of two increasing functions, so its inverse is the larger of theirs.
    amplified = max(epsilon / steps, 2 * epsilon / (root + math.sqrt(root * root + 2 * steps * epsilon)))
    if amplified > 700:
        before = amplified - math.log(sampling_probability)
    else:
        before = math.log1p(math.expm1(amplified) / sampling_probability)
    return before, (1 - slack) * delta / (steps * sampling_probability)


def crossings_for(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    dimension: int,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
) -> tuple[float, ...]:
    """Every noise multiplier at which the run begins or ceases to meet the budget, increasing.

    An odd number of them: Eq. 25 holds from the first to the second, from the third to the fourth, ..., and
    from the last one on. Each is given from the side on which it holds.

    Args:
        epsilon: Budget of the whole run, in (0, 1e5].
        delta: Budget of the whole run, in (0, 1).
        sampling_probability: In (0, 1].
        steps: T >= 1.
        dimension: d >= 1; 1 is unshuffled DP-SGD by the same accounting.
        batch_clip: c' / c, > 0; nothing depends on it in one dimension.
        slack: Share of delta that Theorem 1 keeps for the composition, in (0, 1).
        zeta_2: `"appendix"` or `"main text"`.

    Raises `InputError`: an argument is out of range, or delta is so large that any noise would do.
    """
    per_step, share = step_budget(
        epsilon=epsilon, delta=delta, sampling_probability=sampling_probability, steps=steps, slack=slack
    )
    if share >= 1:
        raise InputError(f"delta must be so small that it takes noise to meet it, got {delta!r}")
    left_side = partial(
        theorem_6_delta, epsilon=per_step, dimension=dimension, batch_clip=batch_clip, zeta_2=zeta_2
    )

    left_side(noise_multiplier=1.0)  # refuses an option that is out of range

    def holds(log_sigma: float) -> bool:
        return left_side(noise_multiplier=math.exp(log_sigma)) <= share

    low = math.log(_all_below(per_step, share, dimension, batch_clip))
    high = math.log(_all_above(per_step, share))
    grid = [float(point) for point in np.linspace(low, high, POINTS)]
    met = [holds(point) for point in grid[:-1]] + [True]
    return tuple(math.exp(crossing(holds, grid[i - 1], grid[i])) for i in turns(met))


@lru_cache(maxsize=4096)
def noise_multiplier_for(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    dimension: int,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
) -> float:
    """sigma / c of Algorithm 1, line 2 (at d = 1 of line 3): from it on the run meets the budget.

    The last of `crossings_for`, with its arguments and errors.
    """
    return crossings_for(
        epsilon=epsilon,
        delta=delta,
        sampling_probability=sampling_probability,
        steps=steps,
        dimension=dimension,
        batch_clip=batch_clip,
        slack=slack,
        zeta_2=zeta_2,
    )[-1]


def _all_above(epsilon: float, delta: float) -> float:
    """sigma with Phi(1 / (2 sigma) - epsilon sigma) = delta, from where on Eq. 25 holds; widened a little."""
    quantile = float(ndtri(delta))
    root = math.sqrt(quantile * quantile + 2 * epsilon)
    # (root - quantile) / (2 epsilon), written so that nothing cancels where the quantile is positive.
    sigma = 1 / (root + quantile) if quantile > 0 else (root - quantile) / (2 * epsilon)
    return 1.001 * sigma


def _all_below(epsilon: float, delta: float, dimension: int, batch_clip: float) -> float:
    """A sigma at which, as at any smaller one, Eq. 25 does not hold."""
    alone = math.log(dimension - 1) / batch_clip if dimension > 1 else 0.0
    square = max(alone, 2 * epsilon, 2.0)
    while _least(square, epsilon) <= delta:
        square *= 2
    return 1 / math.sqrt(square)


def _least(square: float, epsilon: float) -> float:
    """What h is at least where (d - 1) exp(-c' / c * square) <= 1, with square = c^2 / sigma^2 > log 4."""
    spread = math.sqrt(square - math.log(4))
    first = float(ndtr(spread / 2 - (math.log(2) + epsilon) / spread))
    root = math.sqrt(square)
    # e^epsilon Phi(-x) <= e^(epsilon - x^2 / 2) / 2, and x^2 / 2 >= epsilon: no overflow.
    return first - 0.5 * math.exp(epsilon - (root / 2 + epsilon / root) ** 2 / 2)
