"""autodp's mechanisms, composed by Renyi divergences (its default) or by characteristic functions.

Library: autodp 0.2.3.1 (Wang et al.).
Adjacency: add-remove for sampling; the library normalises a Gaussian's and a Laplace's noise to the
sensitivity, so replace-one is asked with half the noise; randomised response under replace-one.

`autodp`: Gaussians alone are composed exactly (`ComposeGaussian`); anything else by `Composition`, that is by
Renyi divergences optimised over all real orders; Poisson sampling by `AmplificationBySampling` with the bound
that the library marks for the Gaussian. Promise: an upper bound on epsilon and delta, and from these a lower
bound on the false-negative rate.

`autodp_phi`: the analytical Fourier accountant, `ComposeAFA` of mechanisms with `phi_off=False`, sampling by
`AmplificationBySampling_pld` in each of the two directions, of which the larger answer is taken. Promise: an
approximation (Zhu, Dong and Wang 2022), with no bound on its quadrature's error. What a user should know, and
what this adapter leaves as it is: tried with SciPy 1.17. The library's inversion for epsilon hands
`minimize_scalar` the bounds [0, 1] on exp(epsilon), which SciPy honours since it prefers bounds, so that
epsilons come out negative; and the subsampled Gaussian needs `scipy.integrate.quadrature`, which SciPy 1.14
removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.accounting.events import Event, Gaussian, SubsampledGaussian
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import (
    Calibrator,
    DeltaAdapter,
    EpsilonAdapter,
    TradeoffAdapter,
    elementary,
    library,
)
from workbench.mechanisms.accountants.shared.questions import Target

NOISE_BOUNDS = (0.05, 200.0)
"""Where the calibrator searches; the library asks its user for them."""


def _zoo(name: str) -> Any:
    return library(f"autodp.{name}_zoo", distribution="autodp")


@register("accountant", "autodp")
class AutoDP(EpsilonAdapter, DeltaAdapter, TradeoffAdapter, Calibrator):
    """autodp's mechanisms and transformers, by Renyi divergences (Wang, Balle and Kasiviswanathan 2019).

    Its calibrator finds a noise whose epsilon is within 1e-3 of the target, on either side.
    """

    name = "autodp"

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        return float(self._mechanism(event, adjacency).get_approxDP(delta))

    def _delta(self, event: Event, epsilon: float, adjacency: Adjacency) -> float:
        return float(self._mechanism(event, adjacency).get_approx_delta(epsilon))

    def _false_negative_rate(self, event: Event, fpr: float, adjacency: Adjacency) -> float:
        return float(self._mechanism(event, adjacency).get_fDP(fpr))

    def _noise_multiplier(self, target: Target, adjacency: Adjacency) -> float:
        zoo = _zoo("mechanism")
        run: dict[str, Any] = {"sigma": None, "coeff": target.steps}
        recipe = zoo.ComposedGaussianMechanism
        if target.sampling_probability < 1:
            run["prob"] = target.sampling_probability
            recipe = zoo.SubsampleGaussianMechanism
        calibrate = _zoo("calibrator").generalized_eps_delta_calibrator()
        made = calibrate(recipe, target.epsilon, target.delta, NOISE_BOUNDS, params=run, para_name="sigma")
        return float(made.params["sigma"])

    def _mechanism(self, event: Event, adjacency: Adjacency) -> Any:
        """The library's mechanism for an event, with its parts composed."""
        transformers = _zoo("transformer")
        parts = list(event.parts())
        mechanisms = [self._part(part, adjacency) for part, _ in parts]
        counts = [count for _, count in parts]
        if all(isinstance(part, Gaussian) for part, _ in parts):
            return transformers.ComposeGaussian()(mechanisms, counts)
        if counts == [1]:
            return mechanisms[0]
        return transformers.Composition()(mechanisms, counts)

    def _part(self, part: Event, adjacency: Adjacency) -> Any:
        zoo, transformers = _zoo("mechanism"), _zoo("transformer")

        def subsampled(noise: float, q: float) -> Any:
            sample = transformers.AmplificationBySampling(PoissonSampling=True)
            return sample(zoo.ExactGaussianMechanism(sigma=noise), q, improved_bound_flag=True)

        return elementary(
            self.name,
            part,
            adjacency,
            gaussian=lambda noise, sensitivity: zoo.ExactGaussianMechanism(sigma=noise / sensitivity),
            laplace=lambda scale, sensitivity: zoo.LaplaceMechanism(b=scale / sensitivity),
            subsampled=subsampled,
            response=lambda event: zoo.RandresponseMechanism(p=float(event.pair().p[0])),
        )


@register("accountant", "autodp_phi")
class AutoDPPhi(EpsilonAdapter, DeltaAdapter):
    """autodp's analytical Fourier accountant (Zhu, Dong and Wang 2022); no bound."""

    name = "autodp_phi"

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        return max(float(made.get_approxDP(delta)) for made in self._directions(event, adjacency))

    def _delta(self, event: Event, epsilon: float, adjacency: Adjacency) -> float:
        return max(float(made.get_approx_delta(epsilon)) for made in self._directions(event, adjacency))

    def _directions(self, event: Event, adjacency: Adjacency) -> Iterator[Any]:
        """The composed mechanism, once for each direction in which neighbours can stand."""
        transformers = _zoo("transformer")
        parts = list(event.parts())
        sampled = any(isinstance(part, SubsampledGaussian) for part, _ in parts)
        for direction in ("add_only", "remove_only") if sampled else ("either",):
            sample = transformers.AmplificationBySampling_pld(PoissonSampling=True, neighboring=direction)
            mechanisms = [self._part(sample, part, adjacency) for part, _ in parts]
            yield transformers.ComposeAFA()(mechanisms, [count for _, count in parts])

    def _part(self, sample: Any, part: Event, adjacency: Adjacency) -> Any:
        """The library's mechanism for an elementary event, by its characteristic function alone."""
        zoo = _zoo("mechanism")

        def gaussian(noise: float, sensitivity: float = 1.0) -> Any:
            sigma = noise / sensitivity
            return zoo.GaussianMechanism(sigma, phi_off=False, RDP_off=True, approxDP_off=True)

        return elementary(
            self.name,
            part,
            adjacency,
            gaussian=gaussian,
            laplace=lambda scale, sensitivity: zoo.LaplaceMechanism(
                b=scale / sensitivity, phi_off=False, RDP_off=True
            ),
            subsampled=lambda noise, q: sample(gaussian(noise), q),
            response=lambda event: zoo.RandresponseMechanism(
                p=float(event.pair().p[0]), phi_off=False, RDP_off=True
            ),
        )
