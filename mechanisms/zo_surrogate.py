"""PACZero's surrogates: its release with the privacy taken out, part by part (Ertan et al. 2026, Appendix K).

    raw_full      c = mean of g_i over all N records              (MeZO)
    quant_full    c = sign of that mean
    raw_half      c = mean of g_i over the secret half
    quant_half    c = sign of that mean
    random_sign   c = +1 or -1 by a fair coin: the control that can learn nothing
    theta <- (1 - eta lambda) theta - eta c z

Each direction of a step has its own c, and a coin of its own; K directions are averaged. sign(0) = +1
(Appendix C). `g_i` are clipped to [-clip, clip] first, as in Algorithm 1. The secret half is one candidate
subset of `paczero`, and under equal seeds the very one: the M subsets come from the public seed, the index
from the secret one. A quantised surrogate moves by eta whatever the size of the mean, a raw one by eta times
the mean: learning rates do not carry over between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import BoolArray, Capabilities, Claim, FloatArray, IntArray, Model, Plan
from workbench.mechanisms.shared.candidate_subsets import (
    SCHEMES,
    candidate_subsets,
    check_subset_count,
    signs_of_means,
)
from workbench.mechanisms.shared.gaussian_sums import no_claim
from workbench.training.fine_tuning import Seeds
from workbench.training.zeroth_order import ZerothOrderMechanism, ZerothOrderSteps

FORMS = ("raw_full", "quant_full", "raw_half", "quant_half", "random_sign")


@register("mechanism", "zo_surrogate")
@dataclass(frozen=True, kw_only=True)
class ZOSurrogate(ZerothOrderMechanism):
    """What PACZero's update would be without its noise, its quantisation or its subsets; promises nothing.

    Attributes:
        form: `"raw_full"`, `"quant_full"`, `"raw_half"`, `"quant_half"` or `"random_sign"`.
        subset_count: M, of `paczero`; even.
        subsets: `"pairs"` or `"halves"`, of `paczero`.
        clip: Of each scalar, > 0.

    Raises `InputError`: a parameter is out of range.
    """

    form: str = "raw_full"
    subset_count: int = 128
    subsets: str = "pairs"
    clip: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise unknown_name("form", self.form, FORMS)
        if self.subsets not in SCHEMES:
            raise unknown_name("subsets", self.subsets, SCHEMES)
        check_subset_count(self.subset_count)
        if not self.clip > 0:
            raise InputError(f"clip must be > 0, got {self.clip!r}")

    @property
    def capabilities(self) -> Capabilities:
        """A surrogate is not private: nothing protects the records."""
        return replace(super().capabilities, is_private=False)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that no run can follow.

        Raises `InputError`: the plan takes samples (a surrogate runs over all records in each step), or is
        none for a zeroth-order mechanism.
        """
        super().check(plan)
        if plan.sampling_probability != 1:
            raise InputError(
                "sampling_probability must be 1 for zo_surrogate, which runs over all records each step, "
                f"got {plan.sampling_probability!r}"
            )

    def steps(self, plan: Plan, model: Model) -> ZerothOrderSteps:
        """The surrogate's coefficients. Raises `InputError`: as `check`."""
        return _SurrogateSteps(self, plan, model)

    def claim(self, plan: Plan) -> Claim:
        """No privacy claim: a surrogate only measures utility."""
        return no_claim("nobody's: the surrogates show what each part of PACZero does for utility")

    def counted(self, plan: Plan) -> BoolArray:
        """Which records count: all, or those of the secret subset; shape `(N,)`.

        Raises `InputError`: there are fewer than two records to halve.
        """
        if not self.form.endswith("half"):
            return np.ones(len(plan.records), dtype=np.bool_)
        held = candidate_subsets(
            self.subsets, count=self.subset_count, records=len(plan.records), seed=self.seed_of(plan)
        )
        index = np.random.default_rng(Seeds.of(plan).noise.spawn(2)[0]).integers(len(held))
        chosen: BoolArray = held[index]
        return chosen


class _SurrogateSteps(ZerothOrderSteps):
    """One run of a surrogate."""

    def __init__(self, mechanism: ZOSurrogate, plan: Plan, model: Model) -> None:
        super().__init__(mechanism, plan, model)
        self._form, self._clip = mechanism.form, mechanism.clip
        self._counted = mechanism.counted(plan)
        self._coins = np.random.default_rng(Seeds.of(plan).noise.spawn(2)[1])

    def coefficients(self, differences: FloatArray, sample: IntArray) -> FloatArray:
        """Mean or sign of each direction's scalars, or coins."""
        if self._form == "random_sign":
            return np.where(self._coins.random(differences.shape[1]) < 0.5, 1.0, -1.0)
        clipped = np.clip(differences, -self._clip, self._clip)
        chosen = clipped[self._counted[sample]]
        if self._form.startswith("quant"):
            signs: FloatArray = signs_of_means(np.ones((1, len(chosen))), chosen)[0].astype(np.float64)
            return signs
        means: FloatArray = chosen.sum(axis=0) / len(chosen)
        return means
