"""autodp's analytical Fourier accountant: characteristic functions of the privacy loss, inverted numerically.

Library: autodp 0.2.3.1 (Wang et al.), `ComposeAFA` of mechanisms with `phi_off=False`, sampling by
`AmplificationBySampling_pld` in each of the two directions, of which the larger answer is taken.
Adjacency: as `autodp`.
Promise: an approximation (Zhu, Dong and Wang 2022), with no bound on its quadrature's error.

What a user should know, and what this adapter leaves as it is: tried with SciPy 1.17. The library's inversion
for epsilon hands `minimize_scalar` the bounds [0, 1] on exp(epsilon), which SciPy honours since it prefers
bounds, so that epsilons come out negative; and the subsampled Gaussian needs `scipy.integrate.quadrature`,
which SciPy 1.14 removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.accounting.events import Event, Gaussian, Laplace, RandomisedResponse, SubsampledGaussian
from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.optional import library, quiet
from workbench.mechanisms.accountants.shared.questions import (
    require_adjacency,
    require_delta,
    require_epsilon,
)


@register("accountant", "autodp_phi")
class AutoDPPhi:
    """autodp's analytical Fourier accountant (Zhu, Dong and Wang 2022); no bound."""

    name = "autodp_phi"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Epsilon, the larger of both directions.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: the library has no such event under this adjacency, or is not installed.
        """
        require_delta(delta)
        with quiet():
            return max(float(made.get_approxDP(delta)) for made in self._directions(event, adjacency))

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Delta, the larger of both directions.

        Raises:
            InputError: epsilon is negative or not finite.
            UnsupportedError: the library has no such event under this adjacency, or is not installed.
        """
        require_epsilon(epsilon)
        with quiet():
            return max(float(made.get_approx_delta(epsilon)) for made in self._directions(event, adjacency))

    def _directions(self, event: Event, adjacency: Adjacency) -> Iterator[Any]:
        """The composed mechanism, once for each direction in which neighbours can stand."""
        zoo = library("autodp.mechanism_zoo", distribution="autodp")
        transformers = library("autodp.transformer_zoo", distribution="autodp")
        parts = list(event.parts())
        sampled = any(isinstance(part, SubsampledGaussian) for part, _ in parts)
        for direction in ("add_only", "remove_only") if sampled else ("either",):
            sample = transformers.AmplificationBySampling_pld(PoissonSampling=True, neighboring=direction)
            mechanisms = [self._part(zoo, sample, part, adjacency) for part, _ in parts]
            yield transformers.ComposeAFA()(mechanisms, [count for _, count in parts])

    def _part(self, zoo: Any, sample: Any, part: Event, adjacency: Adjacency) -> Any:
        """The library's mechanism for an elementary event, by its characteristic function alone."""
        add_remove, replace_one = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
        sensitivity = 2.0 if adjacency is replace_one else 1.0

        def gaussian(noise_multiplier: float) -> Any:
            return zoo.GaussianMechanism(noise_multiplier, phi_off=False, RDP_off=True, approxDP_off=True)

        if isinstance(part, Gaussian):
            require_adjacency(self.name, adjacency, add_remove, replace_one, of="Gaussian")
            return gaussian(part.noise_multiplier / sensitivity)
        if isinstance(part, Laplace):
            require_adjacency(self.name, adjacency, add_remove, replace_one, of="Laplace")
            return zoo.LaplaceMechanism(b=part.scale / sensitivity, phi_off=False, RDP_off=True)
        if isinstance(part, SubsampledGaussian):
            require_adjacency(self.name, adjacency, add_remove, of="subsampled Gaussian")
            return sample(gaussian(part.noise_multiplier), part.sampling_probability)
        if isinstance(part, RandomisedResponse) and part.categories == 2:
            require_adjacency(self.name, adjacency, replace_one, of="randomised response")
            return zoo.RandresponseMechanism(p=float(part.pair().p[0]), phi_off=False, RDP_off=True)
        raise UnsupportedError(f"{self.name} has no mechanism for {part.describe()}")
