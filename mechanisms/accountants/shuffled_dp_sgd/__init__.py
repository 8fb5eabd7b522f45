"""Shuffled DPSGD's accountant, as printed: Theorem 6, with advanced composition and subsampling.

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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import log_ndtr

from workbench.accounting.events import Event, Gaussian, SubsampledGaussian
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency

ZETA_2 = ("appendix", "main text")
VIT_PARAMETERS = 85_800_000
"""Trainable weights of the paper's ViT (Table I)."""

LARGEST_EPSILON = 1e5
"""Above it the accountant finds no epsilon, and no noise is worked out."""

LARGEST_DIMENSION = 10**18
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

    Returns:
        At most 1; negative values, which the printed formula takes at large epsilon, are given as 0.

    Raises:
        InputError: an argument is out of range.
    """
    _require("epsilon", epsilon, epsilon >= 0, ">= 0")
    _require("noise_multiplier", noise_multiplier, 0 < noise_multiplier < math.inf, "finite and > 0")
    _require("dimension", dimension, 1 <= dimension <= LARGEST_DIMENSION, ">= 1 and at most 1e18")
    _require("batch_clip", batch_clip, 0 < batch_clip < math.inf, "finite and > 0")
    if zeta_2 not in ZETA_2:
        raise InputError(f"zeta_2 must be one of {', '.join(ZETA_2)}, got {zeta_2!r}")
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

    Args:
        steps: Epsilons, each with the number of times that it occurs.
        slack: delta' = delta - sum of the steps' deltas.

    Raises:
        InputError: slack is outside (0, 1).
    """
    _require("slack", slack, 0 < slack < 1, "in (0, 1)")
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

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    sampling_probability: float
    steps: int
    dimension: int
    batch_clip: float = 1.0

    def __post_init__(self) -> None:
        _require("noise_multiplier", self.noise_multiplier, 0 < self.noise_multiplier < math.inf, "> 0")
        q = self.sampling_probability
        _require("sampling_probability", q, 0 < q <= 1, "in (0, 1]")
        _require("steps", self.steps, self.steps >= 1, ">= 1")
        _require("dimension", self.dimension, self.dimension >= 1, ">= 1")
        _require("batch_clip", self.batch_clip, 0 < self.batch_clip < math.inf, "> 0")

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

    Raises:
        InputError: an option is out of range.
    """

    dimension: int = 1
    batch_clip: float = 1.0
    slack: float = 0.5
    zeta_2: str = "appendix"

    def __post_init__(self) -> None:
        _require("slack", self.slack, 0 < self.slack < 1, "in (0, 1)")
        _require("dimension", self.dimension, self.dimension >= 1, ">= 1")
        if self.zeta_2 not in ZETA_2:
            raise InputError(f"zeta_2 must be one of {', '.join(ZETA_2)}, got {self.zeta_2!r}")

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"Shuffled DPSGD (d = {self.dimension})"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Epsilon of a run whose steps are all alike or not.

        Args:
            event: Shuffled or unshuffled subsampled Gaussians, in any number.
            delta: In (0, 1); every step gets an equal share of (1 - slack) * delta.
            adjacency: Add-remove or zero-out (a clipped record moves the sum by c; Theorem 2 blanks it).

        Raises:
            UnsupportedError: the event or adjacency is another.
            InputError: delta is outside (0, 1).
        """
        if adjacency not in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT):
            raise UnsupportedError(f"{self.name} answers for add-remove and zero-out, not {adjacency}")
        _require("delta", delta, 0 < delta < 1, "in (0, 1)")
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
    *,
    dimension: int = VIT_PARAMETERS,
    batch_clip: float = 1.0,
    slack: float = 0.5,
    zeta_2: str = "appendix",
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


def _require(name: str, value: float, good: bool, wanted: str) -> None:
    if not good:
        raise InputError(f"{name} must be {wanted}, got {value!r}")
