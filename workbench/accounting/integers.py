"""Sums of integers plus integer noise: discrete Laplace, discrete Gaussian and Skellam.

In all of them a record contributes a vector of integers of l1 norm at most `largest_contribution`, and every
coordinate gets noise of its own; the sum moves by at most that norm under add-remove and zero-out, and by
twice that under replace-one.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from workbench.accounting.events import Event


@dataclass(frozen=True, kw_only=True)
class IntegerNoise(Event):
    """A sum of integer vectors plus integer noise whose probabilities are log-concave and symmetric."""

    largest_contribution: int = 1

    def __post_init__(self) -> None:
        self._set_whole("largest_contribution", least=1)

    @abstractmethod
    def noise(self) -> str:
        """The noise in words."""

    def describe(self) -> str:
        """`discrete Gaussian (sigma 2, contributions up to 1)`."""
        return f"{self.noise()}, contributions up to {self.largest_contribution})"


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplace(IntegerNoise):
    """Noise with probabilities proportional to exp(-noise_parameter |x|).

    Raises:
        InputError: a parameter is out of range.
    """

    noise_parameter: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_positive("noise_parameter")

    def noise(self) -> str:
        """`discrete Laplace (noise parameter 1`."""
        return f"discrete Laplace (noise parameter {self.noise_parameter:g}"


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(IntegerNoise):
    """Noise with probabilities proportional to exp(-x^2 / (2 sigma^2)) (Canonne, Kamath and Steinke 2020).

    Raises:
        InputError: a parameter is out of range.
    """

    sigma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_positive("sigma")

    def noise(self) -> str:
        """`discrete Gaussian (sigma 2`."""
        return f"discrete Gaussian (sigma {self.sigma:g}"


@dataclass(frozen=True, kw_only=True)
class Skellam(IntegerNoise):
    """Noise that is the difference of two Poisson variables, of this variance together (Agarwal et al. 2021).

    Raises:
        InputError: a parameter is out of range.
    """

    variance: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_positive("variance")

    def noise(self) -> str:
        """`Skellam (variance 4`."""
        return f"Skellam (variance {self.variance:g}"
