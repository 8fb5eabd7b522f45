"""autodp's mechanisms, composed by Renyi divergences (its default).

Library: autodp 0.2.3.1 (Wang et al.). Gaussians alone are composed exactly (`ComposeGaussian`); anything else
by `Composition`, that is by Renyi divergences optimised over all real orders; Poisson sampling by
`AmplificationBySampling` with the bound that the library marks for the Gaussian.
Adjacency: add-remove for sampling; the library normalises a Gaussian's and a Laplace's noise to the
sensitivity, so replace-one is asked with half the noise; randomised response under replace-one.
Promise: an upper bound on epsilon and delta, and from these a lower bound on the false-negative rate.
"""

from __future__ import annotations

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
    require_fpr,
    require_target,
)

NOISE_BOUNDS = (0.05, 200.0)
"""Where the calibrator searches; the library asks its user for them."""


@register("accountant", "autodp")
class AutoDP:
    """autodp's mechanisms and transformers, by Renyi divergences (Wang, Balle and Kasiviswanathan 2019)."""

    name = "autodp"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Upper bound on epsilon.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: the library has no such event under this adjacency, or is not installed.
        """
        require_delta(delta)
        with quiet():
            return float(self._mechanism(event, adjacency).get_approxDP(delta))

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Upper bound on delta.

        Raises:
            InputError: epsilon is negative or not finite.
            UnsupportedError: the library has no such event under this adjacency, or is not installed.
        """
        require_epsilon(epsilon)
        with quiet():
            return float(self._mechanism(event, adjacency).get_approx_delta(epsilon))

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        """Upper bound on the TPR: 1 less the library's false-negative rate.

        Raises:
            InputError: fpr is outside [0, 1].
            UnsupportedError: the library has no such event under this adjacency, or is not installed.
        """
        require_fpr(fpr)
        with quiet():
            return 1.0 - float(self._mechanism(event, adjacency).get_fDP(fpr))

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """What `generalized_eps_delta_calibrator` finds: epsilon within 1e-3 of the target, on either side.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: another adjacency, or the library is not installed.
        """
        require_target(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
        )
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        zoo = library("autodp.mechanism_zoo", distribution="autodp")
        calibrators = library("autodp.calibrator_zoo", distribution="autodp")
        run: dict[str, Any] = {"sigma": None, "coeff": steps}
        recipe = zoo.ComposedGaussianMechanism
        if sampling_probability < 1:
            run["prob"] = sampling_probability
            recipe = zoo.SubsampleGaussianMechanism
        with quiet():
            calibrate = calibrators.generalized_eps_delta_calibrator()
            found = calibrate(recipe, target_epsilon, delta, NOISE_BOUNDS, params=run, para_name="sigma")
        return float(found.params["sigma"])

    def _mechanism(self, event: Event, adjacency: Adjacency) -> Any:
        """The library's mechanism for an event, with its parts composed."""
        zoo = library("autodp.mechanism_zoo", distribution="autodp")
        transformers = library("autodp.transformer_zoo", distribution="autodp")
        parts = list(event.parts())
        mechanisms = [self._part(zoo, transformers, part, adjacency) for part, _ in parts]
        counts = [count for _, count in parts]
        if all(isinstance(part, Gaussian) for part, _ in parts):
            return transformers.ComposeGaussian()(mechanisms, counts)
        if counts == [1]:
            return mechanisms[0]
        return transformers.Composition()(mechanisms, counts)

    def _part(self, zoo: Any, transformers: Any, part: Event, adjacency: Adjacency) -> Any:
        """The library's mechanism for an elementary event."""
        add_remove, replace_one = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
        sensitivity = 2.0 if adjacency is replace_one else 1.0
        if isinstance(part, Gaussian):
            require_adjacency(self.name, adjacency, add_remove, replace_one, of="Gaussian")
            return zoo.ExactGaussianMechanism(sigma=part.noise_multiplier / sensitivity)
        if isinstance(part, Laplace):
            require_adjacency(self.name, adjacency, add_remove, replace_one, of="Laplace")
            return zoo.LaplaceMechanism(b=part.scale / sensitivity)
        if isinstance(part, SubsampledGaussian):
            require_adjacency(self.name, adjacency, add_remove, of="subsampled Gaussian")
            sample = transformers.AmplificationBySampling(PoissonSampling=True)
            base = zoo.ExactGaussianMechanism(sigma=part.noise_multiplier)
            return sample(base, part.sampling_probability, improved_bound_flag=True)
        if isinstance(part, RandomisedResponse) and part.categories == 2:
            require_adjacency(self.name, adjacency, replace_one, of="randomised response")
            return zoo.RandresponseMechanism(p=float(part.pair().p[0]))
        raise UnsupportedError(f"{self.name} has no mechanism for {part.describe()}")
