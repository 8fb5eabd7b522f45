"""MeZO: zeroth-order descent along random directions, without privacy (Malladi et al. 2023).

    g_i = (loss_i(theta + mu z) - loss_i(theta - mu z)) / (2 mu)
    theta <- theta - eta (mean of g_i) z

The loop is `workbench.training.zeroth_order`. With K directions the update is the mean over them (n-SPSA).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.core.registry import register
from workbench.interfaces import Capabilities, Claim, FloatArray, IntArray, Model, Plan
from workbench.mechanisms.shared.gaussian_sums import no_claim
from workbench.training.fine_tuning import averaging_size
from workbench.training.zeroth_order import ZerothOrderMechanism, ZerothOrderSteps


class _Means(ZerothOrderSteps):
    """The mean over the sample, by its expected size."""

    def coefficients(self, differences: FloatArray, sample: IntArray) -> FloatArray:
        """Sum over q N."""
        sums: FloatArray = differences.sum(axis=0)
        return sums / (self.plan.sampling_probability * averaging_size(self.plan))


@register("mechanism", "mezo")
@dataclass(frozen=True, kw_only=True)
class MeZO(ZerothOrderMechanism):
    """Zeroth-order descent without privacy (Malladi et al. 2023); promises nothing."""

    @property
    def capabilities(self) -> Capabilities:
        """MeZO is not private: nothing protects the records."""
        return replace(super().capabilities, is_private=False)

    def steps(self, plan: Plan, model: Model) -> ZerothOrderSteps:
        """The steps of a run that releases each step's mean of the scalars, without noise."""
        return _Means(self, plan, model)

    def claim(self, plan: Plan) -> Claim:
        """No privacy claim: training without noise guarantees nothing."""
        return no_claim("nobody's: training without noise makes no claim")
