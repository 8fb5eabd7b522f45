"""DP-Weights: train with per-record clipping and no noise, then noise the finished weights (Zagardo 2024).

Source: Zagardo 2024, "Too Good to be True? Turn Any Model Differentially Private With DP-Weights", whose two
algorithms test the noise, and print it in passing (lines 2, 3 and 7 of Algorithm 1):

     -  for each step, hand (sum of g_i * min(1, C / |g_i|)) / B to the optimizer       `train_unreleased`
     2  DW    = E eta C / (N B)                                              Eq. 2, `weight_sensitivity`
     3  sigma = sqrt(2 log(1.25 / delta) DW / epsilon + 0.009760 / epsilon^0.078008)   "eq. 1", `for_plan`
           or   sqrt(2 log(1.25 / delta)) DW / epsilon + 0.009760 / epsilon^0.078008            "appendix"
     7  w_j <- w_j + N(0, sigma^2) for each trainable weight w_j                        Eq. 4, `release`

One training serves every epsilon: `train_unreleased` knows of no budget, and `release` draws the noise.

What the paper leaves open, or says twice:

- The form of sigma: Eq. 1 and Eq. 3 have the root over everything, step 2 of section 8.1.2 has the empirical
  term outside. `form` names the one; the formula is in `workbench.mechanisms.accountants.dp_weights`.
- The optimizer is not named. Eq. 2 reads like plain SGD, whose step is at most eta times the mean clipped
  gradient; an adaptive optimizer divides by the gradients' own size, of which C says nothing. A step of 5e-5
  (section 5.1.3) is usual for AdamW, and plain SGD would hardly move a model with it. The plan's optimizer
  is used, and neither Eq. 2 nor sigma depends on it (nor on momentum, or on a learning-rate schedule).
- delta is 1 / N^2 throughout the paper. Here it is the budget's; a claim says so where it is another.
- "Epochs" are passes over the data; with Poisson samples E is the expected number, q T.
- Section 8.1.2 proves the guarantee for epsilon up to a bound that depends on DW, and then states it without
  one, as do sections 8.1.3 and 8.1.5, and as the experiments use it (epsilon up to 1000). The claim here has
  none.

The noise is drawn afresh for each budget, form, clipping norm and training: the same noise z at two scales s
and t would give the weights w away, since (s (w + t z) - t (w + s z)) / (s - t) = w. Several releases of one
training are several releases, whose losses add up (section 8.1.4, "composition"); each claim is about its own
release alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from workbench.accounting import ApproximateDP
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import (
    Adjacency,
    Capabilities,
    Claim,
    Plan,
    PostHocMechanism,
    Released,
    Sampling,
    Signals,
    Subject,
)
from workbench.mechanisms.accountants.dp_weights import (
    FORMS,
    epsilon_of_noise_scale,
    noise_scale,
    sensitivity,
)
from workbench.mechanisms.shared.gaussian_sums import dp_budget, flat_factors, no_claim, require_positive
from workbench.training.fine_tuning import (
    Seeds,
    averaging_size,
    build_model,
    check_plan,
    epochs,
    torch_generator,
    trainable,
)
from workbench.training.loop import GradientMechanism, gaussian_noise
from workbench.training.lora import ALL_LINEAR
from workbench.training.subject import TrainedSubject

RELEASED_METRIC = "noise_scale"
"""The metric that a released subject has and an unreleased one lacks."""


@register("mechanism", "dp_weights")
@dataclass(frozen=True, kw_only=True)
class DPWeights(GradientMechanism, PostHocMechanism):
    """DP-Weights: clipped training without noise, Gaussian noise on the finished weights (Zagardo 2024).

    Attributes:
        l2_clip_norm: C, the most that one record adds to a step's sum.
        form: Of the noise scale: `"appendix"` (section 8.1.2) or `"eq. 1"`.
        noise_scale: sigma, in the units of the weights; None to take it from the budget.

    Raises `InputError`: a parameter is out of range.
    """

    release_parameters: ClassVar[frozenset[str]] = frozenset({"form", "noise_scale"})

    l2_clip_norm: float = 1.0
    form: str = "appendix"
    noise_scale: float | None = None

    @property
    def capabilities(self) -> Capabilities:
        """It releases the final weights alone, and no step."""
        return Capabilities(released=Released.FINAL_WEIGHTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise unknown_name("form", self.form, FORMS)
        require_positive(l2_clip_norm=self.l2_clip_norm, noise_scale=self.noise_scale)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The clipped sum, without noise: no step is released. Draws nothing from the generator."""
        return signals.weighted_sum(flat_factors(signals.norms(), self.l2_clip_norm))

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> TrainedSubject:
        """Train and release, by one budget. Raises as `train_unreleased` and `release`."""
        self.claim(plan)  # refuses an unusable budget before the training, not after it
        return self.release(self.train_unreleased(plan, progress), plan)

    def train_unreleased(
        self, plan: Plan, progress: Callable[[int, int], None] | None = None
    ) -> TrainedSubject:
        """The training alone: the same for every budget, form and noise scale. Never given away.

        Raises `InputError`: a field of the plan is unusable. `InconclusiveError`: training left the finite
        numbers.
        """
        bare = replace(self, form="appendix", noise_scale=None)
        unpromised = no_claim(
            "nobody's: weights without their noise are not released", Released.FINAL_WEIGHTS
        )
        return bare.trained(replace(plan, budget=None), unpromised, progress)

    def weight_sensitivity(self, plan: Plan) -> float:
        """Line 2: DW of Eq. 2, with B = q N."""
        size = averaging_size(plan)
        return sensitivity(
            epochs=epochs(plan),
            learning_rate=plan.learning_rate,
            l2_clip_norm=self.l2_clip_norm,
            records=size,
            batch_size=plan.sampling_probability * size,
        )

    def for_plan(self, plan: Plan) -> Self:
        """Line 3: with the noise scale of the plan's budget, unless one was given or there is no budget.

        Raises `UnsupportedError`: the budget is in another currency than (epsilon, delta)-DP. `InputError`:
        its epsilon or delta is 0.
        """
        if self.noise_scale is not None or plan.budget is None:
            return self
        budget = _budget(plan)
        change = self.weight_sensitivity(plan)
        scale = noise_scale(
            epsilon=budget.epsilon, delta=budget.delta, weight_sensitivity=change, form=self.form
        )
        return replace(self, noise_scale=scale)

    def release(self, trained: Subject, plan: Plan) -> TrainedSubject:
        """Line 7: the trained weights plus fresh Gaussian noise, a new subject; `trained` is left as it was.

        `trained`: what `train_unreleased` returned for this plan, or for it with another budget. `plan`: the
        plan, with the budget of this release. Raises `InputError`: the plan has no usable budget, or the
        subject is not this training's. `UnsupportedError`: the budget is in another currency than (epsilon,
        delta)-DP.
        """
        claim = self.claim(plan)
        settled = self.for_plan(plan)
        if settled.noise_scale is None:
            raise InputError("dp_weights needs a budget of (epsilon, delta)-DP, got none")
        source = self._unreleased(trained, plan)
        model = build_model(plan)
        model.module.eval()
        weights, noisy = trainable(source.model.module), trainable(model.module)
        generator = torch_generator(_noise_seed(settled, plan))
        with torch.no_grad():
            for name, weight in noisy.items():
                clean = weights[name].detach()
                weight.copy_(clean + gaussian_noise(clean, settled.noise_scale, generator))
        trained_metrics = source.transcript.metrics
        metrics = {
            # What the weights were worth before the noise is nobody's to know.
            **{name: value for name, value in trained_metrics.items() if not name.endswith("_after")},
            **self.qualities(model, plan, "after"),
            **settled.settings(),
            "weight_sensitivity": self.weight_sensitivity(plan),
        }
        transcript = replace(source.transcript, metrics=metrics)
        return TrainedSubject(mechanism=settled, model=model, plan=plan, claim=claim, transcript=transcript)

    def _unreleased(self, trained: Subject, plan: Plan) -> TrainedSubject:
        """The subject, if it is the unreleased training of this plan by this mechanism.

        Raises `InputError`: it is not.
        """
        if not isinstance(trained, TrainedSubject) or not isinstance(trained.mechanism, DPWeights):
            raise InputError("trained must be a subject of dp_weights.train_unreleased")
        if RELEASED_METRIC in trained.transcript.metrics:
            raise InputError("trained must be an unreleased subject, got one that has its noise already")
        if replace(trained.plan, budget=None) != replace(plan, budget=None):
            raise InputError("trained must be of the same plan, got one that differs in more than its budget")
        if trained.transcript.metrics["l2_clip_norm"] != self.l2_clip_norm:
            raise InputError(
                f"trained must be clipped at l2_clip_norm {self.l2_clip_norm:g}, got one that was "
                f"clipped at {trained.transcript.metrics['l2_clip_norm']:g}"
            )
        return trained

    def settings(self) -> Mapping[str, float]:
        """`l2_clip_norm`, and once it is settled the `noise_scale`."""
        noise = {} if self.noise_scale is None else {RELEASED_METRIC: self.noise_scale}
        return {"l2_clip_norm": self.l2_clip_norm, **noise}

    def claim(self, plan: Plan) -> Claim:
        """The paper's: the budget; for a noise scale of the user's, the epsilon that its formula gives.

        Raises `InputError`: there is no budget, or its epsilon or delta is 0. `UnsupportedError`: the budget
        is in another currency than (epsilon, delta)-DP.
        """
        check_plan(plan)
        guarantee = _budget(plan)
        if self.noise_scale is not None:
            prescribed = epsilon_of_noise_scale(
                noise=self.noise_scale,
                delta=guarantee.delta,
                weight_sensitivity=self.weight_sensitivity(plan),
                form=self.form,
            )
            guarantee = replace(guarantee, epsilon=prescribed)
        place = "section 8.1.2, step 2" if self.form == "appendix" else "sections 3.1 and 3.5, Eq. 1"
        return Claim(
            guarantee=guarantee,
            about=Adjacency.ADD_REMOVE,
            released=Released.FINAL_WEIGHTS,
            source=f"Zagardo 2024 (DP-Weights), section 8.1.5; noise scale: {place}",
            assumptions=self._assumptions(plan, guarantee),
        )

    def _assumptions(self, plan: Plan, guarantee: ApproximateDP) -> tuple[str, ...]:
        """What the paper assumes, and what it leaves to the plan."""
        size = averaging_size(plan)
        shuffled = plan.sampling is Sampling.SHUFFLED
        passes = "E counts the passes over the data" if shuffled else "E is q T, the expected participations"
        printed = 1.0 / size**2
        delta = f"the paper sets delta = 1 / N^2 = {printed:g}"
        if not math.isclose(guarantee.delta, printed, rel_tol=1e-9):
            delta += f"; the budget's delta, {guarantee.delta:g}, is another"
        return (
            f"per-record gradients are clipped to C = {self.l2_clip_norm:g} in every step (section 5.3)",
            f"E = {epochs(plan):g}, eta = {plan.learning_rate:g}, C, N = {size} and B = "
            f"{plan.sampling_probability * size:g} are known (section 5.3); {passes}",
            "no weight changes by more than DW = E eta C / (N B) with one record (section 8.1.2, step 1), "
            f"here {self.weight_sensitivity(plan):.6g}",
            "the noise on different weights is independent (section 8.1.4)",
            delta,
            f"the optimizer is not part of the statement; this run uses {plan.optimizer}",
        )


def _budget(plan: Plan) -> ApproximateDP:
    """The plan's budget, which the noise scale can be computed from."""
    budget = dp_budget(plan, "dp_weights")
    for name in ("epsilon", "delta"):
        value = getattr(budget, name)
        if not 0 < value < math.inf:
            raise InputError(f"{name} of a dp_weights budget must be finite and > 0, got {value!r}")
    return budget


def _noise_seed(settled: DPWeights, plan: Plan) -> np.random.SeedSequence:
    """A stream of the plan's noise for this release alone: another budget, or plan, draws other noise."""
    budget = _budget(plan)
    chosen = (
        *(float(budget.epsilon), float(budget.delta)),
        *(settled.noise_scale, settled.form, settled.l2_clip_norm),
        *(plan.model, sorted(plan.model_parameters.items()), plan.adapter, plan.lora_rank),
        *(() if plan.lora_alpha is None else ("alpha", float(plan.lora_alpha))),
        *(() if plan.lora_targets == ALL_LINEAR else (plan.lora_targets,)),
        *(plan.steps, plan.sampling_probability, str(plan.sampling), plan.public_size),
        *(plan.learning_rate, plan.optimizer, plan.insertions, [record.id for record in plan.records]),
    )
    digest = hashlib.sha256(repr(chosen).encode()).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    noise = Seeds.of(plan).noise
    return np.random.SeedSequence(noise.entropy, spawn_key=(*noise.spawn_key, *words))
