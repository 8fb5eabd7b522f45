"""RLDP's accountants, as printed: Eq. 7 (a Gaussian-DP ledger) and Theorem 7.10 (a Renyi-DP one).

Source: Khadangi et al. 2025, "Efficient Differentially Private Fine-Tuning of LLMs via Reinforcement
Learning".

Where the paper leaves a choice or contradicts itself, the choice is a named option:

- Eq. 7 applies "the inverse standard normal CDF" to two arguments, mu = q * sqrt(t) * (exp(1 / sigma) - 1)
  and delta. `reading="duality"` turns mu into epsilon exactly, as the Gaussian-DP paper that it cites does;
  `reading="quantile"` takes the (1 - delta)-quantile of the loss N(mu^2 / 2, mu^2), which is never smaller.
- The central limit that it cites has mu = q * sqrt(t * (exp(1 / sigma^2) - 1)): `mu="central limit"`.
  Neither is a bound; the printed mu is the smaller of the two below sigma of about 0.55.
- Theorem 7.10 amplifies with q^2; Lemma 7.7, which it rests on, and the proof of Theorem 7.13 with q:
  `power`. The theorem is headed "via GDP accountant", but nothing in it is Gaussian DP.
- Definition 7.1 replaces one record, so Section 7.2 has sensitivity 2C and Lemmas 7.4 and 7.6 put the noise
  at sigma * 2C; Eq. 6 adds noise sigma * C. `noise_unit="clip norm"` follows Eq. 6, `"sensitivity"` the
  lemmas. The formulas name no adjacency, so they give the same number for add-remove and replace-one.
- Section 3.1 has the training data shuffled each epoch and also Poisson-sampled at rate B / N_train; both
  formulas are for Poisson sampling.
- Algorithm 1, line 14, evaluates the ledger at the current sigma, as though all steps had used it, where
  Section 2.3 promises "the actual parameters used": the accountants refuse runs whose noise changes, but for
  Theorem 7.10, which Theorem 7.8 extends to them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import minimize_scalar
from scipy.special import ndtri

from workbench.accounting.events import Event, gaussian_run
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.questions import (
    gaussian_runs,
    require_delta,
    require_option,
    require_positive,
)

READINGS = ("duality", "quantile")
MUS = ("printed", "central limit")
NOISE_UNITS = ("clip norm", "sensitivity")

_LARGEST_NOISE = 1e6
_SMALLEST_NOISE = 1e-100
"""The square of its inverse is still a number."""
_LARGEST_EXPONENT = 700.0
_LARGEST_DUAL_MU = 1e4


def eq_7_mu(
    *, noise_multiplier: float, sampling_probability: float, steps: int, mu: str = "printed"
) -> float:
    """The first argument of Eq. 7: q * sqrt(t) * (exp(1 / sigma) - 1), or the central limit's.

    Returns mu >= 0; infinite where the exponential overflows. Raises `InputError`: `mu` is no known option.
    """
    require_option("mu", mu, MUS)
    power = 1 if mu == "printed" else 2
    if noise_multiplier < _SMALLEST_NOISE:
        return math.inf
    exponent = noise_multiplier**-power
    if exponent > _LARGEST_EXPONENT:
        return math.inf
    growth = math.expm1(exponent)
    return sampling_probability * math.sqrt(steps) * (growth if mu == "printed" else math.sqrt(growth))


def eq_7_epsilon(mu: float, delta: float, *, reading: str = "duality") -> float:
    """Eq. 7's epsilon at a given mu.

    Raises `InputError`: `reading` is no known option, or delta is outside (0, 1).
    """
    require_option("reading", reading, READINGS)
    require_delta(delta)
    if math.isinf(mu):
        return math.inf
    # Beyond mu of 1e4 both readings agree to eight digits, and the root of the first drowns in rounding.
    if reading == "duality" and mu <= _LARGEST_DUAL_MU:
        return epsilon_of_delta(mu, delta)
    return max(0.0, mu * mu / 2 - mu * float(ndtri(delta)))


def subsampled_rho(
    alpha: float, *, noise_multiplier: float, sampling_probability: float, power: int
) -> float:
    """ln(1 + q^power * (exp((alpha - 1) * rho_0) - 1)) / (alpha - 1), nats.

    `power` 2 is Theorem 7.10, 1 is Lemma 7.7.
    """
    exponent = (alpha - 1) * (alpha / (2 * noise_multiplier**2))  # (alpha - 1) rho_0, Lemma 7.6
    if exponent < _LARGEST_EXPONENT:
        return math.log1p(sampling_probability**power * math.expm1(exponent)) / (alpha - 1)
    return max(0.0, exponent + power * math.log(sampling_probability)) / (alpha - 1)


def theorem_7_10_epsilon(steps: Sequence[tuple[float, float, int]], delta: float, *, power: int = 2) -> float:
    """min over alpha > 1 of the sum of the steps' rho_1(alpha) (Theorem 7.8) + ln(1 / delta) / (alpha - 1).

    `steps`: noise multiplier, sampling probability and number of equal steps. `delta`: in (0, 1). `power`: 2
    as printed in Theorem 7.10, 1 as in Lemma 7.7. Raises `InputError`: delta is outside (0, 1), or `power` is
    neither 1 nor 2.
    """
    require_delta(delta)
    if power not in (1, 2):
        raise InputError(f"power must be 1 or 2, got {power!r}")
    price = -math.log(delta)

    def total(log_order: float) -> float:
        """Epsilon by the Renyi order alpha = 1 + exp(log_order)."""
        alpha = 1 + math.exp(log_order)
        spent = math.fsum(
            count * subsampled_rho(alpha, noise_multiplier=sigma, sampling_probability=q, power=power)
            for sigma, q, count in steps
        )
        return spent + price / (alpha - 1)

    # The sum may have several valleys, so every grid cell next to the lowest point is searched.
    grid = [-9 + 0.25 * index for index in range(93)]
    low = min(range(len(grid)), key=lambda index: total(grid[index]))
    ends = (grid[max(low - 1, 0)], grid[min(low + 1, len(grid) - 1)])
    minimum = minimize_scalar(total, bounds=ends, method="bounded", options={"xatol": 1e-10})
    return min(float(minimum.fun), total(grid[low]))


@dataclass(frozen=True, kw_only=True)
class _RldpAccountant(ABC):
    """What both accountants share: which questions they take, and the search for the noise."""

    noise_unit: str = "clip norm"

    def __post_init__(self) -> None:
        require_option("noise_unit", self.noise_unit, NOISE_UNITS)

    @property
    @abstractmethod
    def name(self) -> str:
        """What tables call it."""

    @abstractmethod
    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Epsilon of a run; see the subclass."""

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """Algorithm 1, line 3: the smallest noise multiplier at which the budget is met, by bisection.

        Raises `InputError`: the target is not finite and positive, or no noise meets it.
        """
        require_positive("target_epsilon", target_epsilon)

        def meets(sigma: float) -> bool:
            run = gaussian_run(noise_multiplier=sigma, sampling_probability=sampling_probability, steps=steps)
            return self.epsilon(run, delta=delta, adjacency=adjacency) <= target_epsilon

        low, high = 1e-3, 1.0
        while not meets(high):
            low, high = high, 2 * high
            if high > _LARGEST_NOISE:
                raise InputError(
                    f"target_epsilon {target_epsilon!r} needs more noise than {_LARGEST_NOISE:g}"
                )
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if meets(middle) else (middle, high)
        return high

    def _steps(self, event: Event, adjacency: Adjacency) -> list[tuple[float, float, int]]:
        """Noise multiplier, sampling probability and count of each part, in the paper's unit of noise."""
        if adjacency not in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
            raise UnsupportedError(f"{self.name} answers for add-remove and replace-one, not {adjacency}")
        halved = self.noise_unit == "sensitivity" and adjacency is Adjacency.REPLACE_ONE
        scale = 0.5 if halved else 1.0
        runs = gaussian_runs(self.name, event, kind="subsampled Gaussians")
        return [(scale * run.noise_multiplier, run.sampling_probability, run.steps) for run in runs]


@register("accountant", "rldp_eq_7")
@dataclass(frozen=True, kw_only=True)
class RldpEq7(_RldpAccountant):
    """RLDP's privacy ledger, Eq. 7, for DP-SGD runs of constant noise.

    Attributes:
        reading: `"duality"` or `"quantile"`; see the module's text.
        mu: `"printed"` or `"central limit"`.
        noise_unit: `"clip norm"` (Eq. 6) or `"sensitivity"` (Section 7.2).

    Raises `InputError`: an option is unknown.
    """

    reading: str = "duality"
    mu: str = "printed"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_option("reading", self.reading, READINGS)
        require_option("mu", self.mu, MUS)

    @property
    def name(self) -> str:
        """The accountant's name in tables."""
        return "RLDP Eq. 7"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Eq. 7 for a homogeneous run.

        Raises `UnsupportedError`: the noise changes, or the event or adjacency is another. `InputError`:
        delta is outside (0, 1).
        """
        return eq_7_epsilon(self._mu(event, adjacency), delta, reading=self.reading)

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Delta at which Eq. 7, read by duality, gives this epsilon.

        Raises `UnsupportedError`: as `epsilon`; or the reading is another.
        """
        if self.reading != "duality":
            raise UnsupportedError(f"{self.name} answers delta by duality only, not by {self.reading}")
        return delta_of_epsilon(self._mu(event, adjacency), epsilon)

    def _mu(self, event: Event, adjacency: Adjacency) -> float:
        kinds: dict[tuple[float, float], int] = {}
        for sigma, q, count in self._steps(event, adjacency):
            kinds[sigma, q] = kinds.get((sigma, q), 0) + count
        if len(kinds) != 1:
            raise UnsupportedError(f"{self.name} is printed for constant noise, not {event.describe()}")
        ((sigma, q), count) = kinds.popitem()
        return eq_7_mu(noise_multiplier=sigma, sampling_probability=q, steps=count, mu=self.mu)


@register("accountant", "rldp_gdp")
@dataclass(frozen=True, kw_only=True)
class RldpCentralLimit(RldpEq7):
    """RLDP's Gaussian-DP ledger by its references: the mu of the central limit, read by duality; no bound.

    What Section 3.1 calibrates every baseline by, and what Opacus's `gdp` accountant computes; nothing needs
    to be installed for it. Eq. 7 as printed is `rldp_eq_7`.
    """

    mu: str = "central limit"

    @property
    def name(self) -> str:
        """The accountant's name in tables."""
        return "RLDP GDP (central limit)"


@register("accountant", "rldp_theorem_7_10")
@dataclass(frozen=True, kw_only=True)
class RldpTheorem710(_RldpAccountant):
    """RLDP's Theorem 7.10: Renyi divergences of subsampled Gaussians, summed and converted.

    `power`: 2 as printed in the theorem, 1 as in Lemma 7.7. `noise_unit`: `"clip norm"` (Eq. 6) or
    `"sensitivity"` (Section 7.2). Raises `InputError`: an option is unknown.
    """

    power: int = 2

    @property
    def name(self) -> str:
        """The accountant's name in tables."""
        return "RLDP Theorem 7.10"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The theorem's epsilon, optimised over real orders above 1.

        Raises `UnsupportedError`: the event or adjacency is another. `InputError`: delta is outside (0, 1).
        """
        return theorem_7_10_epsilon(self._steps(event, adjacency), delta, power=self.power)
