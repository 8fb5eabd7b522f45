"""FERRET: masked signs of random projections, without noise (Zagardo 2025, Algorithm 1).

Source: Zagardo 2025, "FERRET: Private Deep Learning Faster And Better Than DPSGD". The lines of Algorithm 1,
and where they stand:

   1-3  inputs: N records, learning rate, C, B = s N, groups g of parameter tensors, budget epsilon   `FERRET`
     4  p* = epsilon / (G T s ln 2)                                                        `FERRET.for_plan`
     5  for t in 1..T:
     6      take a Poisson sample of the records, each with probability s                `workbench.training`
     7      gradients of its records
     8      for each group, with probability p*: it fires                                    `MaskedSigns`
     9      for each group that fires:                                                    `MaskedSigns._sign`
    10          draw a public direction u, uniform on the unit sphere
    11          sigma = sign <gradient of the sample's loss in g, u>
    12          Delta_g = sigma C u
    14      descend along Delta, Delta_g = 0 for silent groups                          `MaskedSigns.descend`
    16  output theta_T, and the claim                                                        `FERRET.claim`

Eq. 8, Theorem 1 and Eq. 12 are in `workbench.mechanisms.accountants.ferret`. What is given away: the mask and
the directions, as one public seed (`public`), and a sign for each firing. Only the gradients of the fired
groups are computed, and none in a step in which no group fires; the sign is that of the sum of the records'
gradients, which are never computed one by one.

Where the paper is open, or says two things:

- Zero gradients. The proof of Lemma 1 has it that the sign of a zero gradient is not queried. Since the mask
  is public, that silence is a third symbol, which says "the inner product was zero": Lemma 1's two outcomes
  become three, of at most ln 3 nats. `zero_gradient="silent"` does as printed; `"coin"` releases a fair sign
  instead. It is no rare case with LoRA, where one of each two matrices begins with gradient zero, nor for a
  sample that is empty, as Poisson samples may be.
- Theorem 1 is for epsilon below the ceiling G T s ln 2, Eq. 8 up to it. At equality (to a relative 1e-12) p =
  1 solves Eq. 8 and is taken. Beyond it no p does: an error, or with `above_ceiling="cap"` p = 1, and the
  claim is then the ceiling. The paper's own FERRET-2 with epsilon = 2 and one epoch (T = 200, s = 0.005: 1.39
  nats) lies beyond, and it does not say what was run.
- T. Section 6.4 takes T = 1000 for all runs, which is five epochs; runs of one and of three have 200 and 600
  steps. Here T is the plan's, so p* is higher for fewer epochs.
- Groups. EIGHTH is said to be buckets of 8 tensors, 2 "two groups of parameter tensors"; neither order nor
  remainder is given. Here buckets are of consecutive tensors in the order of `named_parameters`, and "2" cuts
  that list in halves. HALF and QUARTER occur in Table 3 alone, with half and a quarter of MAX's groups.
- Line 7 computes each record's gradient and line 11 takes the sign of the gradient's inner product: whether
  that is a sum or a mean does not matter to a sign. Nothing is clipped by record; C is only the update's
  norm.
- Line 14 descends along the fired groups alone, section 6.2 uses AdamW. AdamW's momentum goes on in silent
  steps and its weights decay if Delta = 0 is handed to it (`silent_groups="zero"`); `"absent"` leaves silent
  groups alone, as an optimizer does with parameters that have no gradient. Without momentum and decay (plain
  SGD, line 14 itself) the two are the same.
- Line 3 starts from random weights, the experiments from pre-trained ones: that is the plan's model.
- Lines 6 and 7 compute gradients before line 8 tosses the mask. The order changes no distribution, and
  tossing first spares silent steps everything. `silent_steps="forward"` still runs the forward pass, as the
  paper's times suggest (at epsilon = 0.1 about a third of a non-private run's).
- Lemma 2 covers Poisson samples and batches drawn afresh without replacement. Hugging Face's `Trainer`, with
  which the paper evidently trained, shuffles epochs, which is neither. The default is Poisson, as line 6 has
  it; shuffled plans are allowed, and their claim says so.
- Appendix B's dither is added to fired and silent updates alike. Then the signs are not given away, but the
  noisy updates are. Its two forms are in the accountant's docstring; Eq. 12 is said of one group in one step,
  and is added over G groups and T steps here.

The public seed is spawned from the plan's where none is given, which keeps the streams independent. But plan
seeds are small numbers, and whoever tries them out against the signs learns the batches too, which are
spawned from the same one. So a release to a real adversary wants a plan seed too large to be tried out, kept
secret, and a `public_seed` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from workbench.accounting import MutualInformation, NoGuarantee, RenyiDP
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.games.transcript import FiredStep, WatchedMechanism
from workbench.interfaces import (
    Adjacency,
    AuditDefaults,
    Capabilities,
    Claim,
    Currency,
    Guarantee,
    IntArray,
    Model,
    Plan,
    Record,
    Release,
    Released,
    ReleasedSigns,
    Sampling,
    Secret,
    Signals,
    Workload,
)
from workbench.mechanisms.accountants.ferret import (
    ceiling_nats,
    dithered_renyi_nats,
    firing_probability,
    total_nats,
)
from workbench.mechanisms.ferret.public import GRANULARITIES, FiredGroups, firing_mask, grouped
from workbench.mechanisms.shared.once_a_model import once_a_model
from workbench.training.fine_tuning import (
    FlatAdamW,
    Seeds,
    build_model,
    check_plan,
    seed_number,
    torch_generator,
    trainable,
)
from workbench.training.loop import GradientMechanism, gaussian_noise
from workbench.training.steps import Steps, diverged
from workbench.training.subject import TrainedSubject
from workbench.training.sums import SumGradients

Watch = Callable[[FiredStep], None]

_EQUAL = 1e-12
"""Relative difference of a budget from the ceiling that is rounding."""

_CHOICES = {
    "granularity": tuple(GRANULARITIES),
    "zero_gradient": ("silent", "coin"),
    "above_ceiling": ("refuse", "cap"),
    "silent_steps": ("skip", "forward"),
    "silent_groups": ("zero", "absent"),
    "dither_form": ("eq-12", "step-2"),
}


def fired_share(nats: float, sampling_probability: float, steps: int) -> float:
    """Expected share of steps in which a group fires: Poisson's, each of many firings costing s ln 2."""
    return -math.expm1(-nats / (sampling_probability * steps * math.log(2.0)))


@register("mechanism", "ferret")
@dataclass(frozen=True, kw_only=True)
class FERRET(GradientMechanism, WatchedMechanism):
    """FERRET: masked signs of random projections, a bound on mutual information, no noise (Zagardo 2025).

    Attributes:
        granularity: Tensors in a group: `"max"` (1), `"half"` (2), `"quarter"` (4), `"eighth"` (8), or `"2"`,
            two groups of half of them.
        clip_norm: C, the norm of a fired group's update.
        public_seed: Of the mask and the directions, >= 0; None to spawn it from the plan's.
        zero_gradient: What a firing of inner product zero releases: `"silent"` or `"coin"`.
        above_ceiling: What a budget beyond G T s ln 2 is met with: `"refuse"` or `"cap"`.
        silent_steps: What a step does in which no group fires: `"skip"`, or `"forward"` for its loss alone.
        silent_groups: What the optimizer is handed for a silent group: `"zero"`, or with `"absent"` nothing.
        firing_probability: p, in [0, 1]; None for Theorem 1's p* of the plan's budget.
        dither_standard_deviation: Of the Gaussian that Appendix B adds to every update; 0 for none.
        dither_order: alpha of the dithered claim.
        dither_form: Which line of section 11.6 the dithered claim is.

    Raises `InputError`: a parameter is out of range.
    """

    granularity: str = "max"
    clip_norm: float = 1.0
    public_seed: int | None = None
    zero_gradient: str = "silent"
    above_ceiling: str = "refuse"
    silent_steps: str = "skip"
    silent_groups: str = "zero"
    firing_probability: float | None = None
    dither_standard_deviation: float = 0.0
    dither_order: float = 2.0
    dither_form: str = "eq-12"

    @property
    def capabilities(self) -> Capabilities:
        """Masked signs, and nats about one record."""
        return Capabilities(currency=Currency.RECORD_NATS, releases=frozenset({Release.SIGNS}))

    def workload(self, *, steps: int, sampling_probability: float, budget: float) -> Workload:
        """See the base class; a silent step reads no record."""
        whole = super().workload(steps=steps, sampling_probability=sampling_probability, budget=budget)
        return replace(whole, read_share=fired_share(budget, sampling_probability, steps))

    def audit_defaults(self) -> AuditDefaults:
        """Thousands of small trainings: a network on the digits, N = 500 of 1,000 candidates, five epochs.

        Poisson samples with s = 0.05, for with FERRET's 0.005, 50 of its 10,000 records, a training takes ten
        times as long. Ordinary members are attacked as papers do, in the embedded language model.
        """
        return AuditDefaults(
            number=0.5,
            settings={
                "corpus": "digits",
                "corpus_parameters": {},
                "model": "digits_mlp",
                "model_parameters": {},
                "candidates": 1000,
                "steps": 100,
                "sampling_probability": 0.05,
                "learning_rate": 3e-3,
                "control_learning_rate": 1e-2,
                "attacks": ("sign_transcript", "loss", "lira"),
            },
            attack_parameters={"sign_transcript": {"canary": "opposed,average", "trials": 2000}},
            members_as_embedded=(
                *("corpus", "corpus_parameters", "model", "model_parameters", "candidates"),
                *("learning_rate", "control_learning_rate"),
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if not 0 < self.clip_norm < math.inf:
            raise InputError(f"clip_norm must be finite and > 0, got {self.clip_norm!r}")
        if self.public_seed is not None and self.public_seed < 0:
            raise InputError(f"public_seed must be >= 0, got {self.public_seed}")
        if self.firing_probability is not None and not 0 <= self.firing_probability <= 1:
            raise InputError(f"firing_probability must be in [0, 1], got {self.firing_probability!r}")
        if not 0 <= self.dither_standard_deviation < math.inf:
            raise InputError(
                f"dither_standard_deviation must be finite and >= 0, got {self.dither_standard_deviation!r}"
            )
        if not 1 < self.dither_order < math.inf:
            raise InputError(f"dither_order must be finite and > 1, got {self.dither_order!r}")
        if self.dither_standard_deviation > 0 and self.silent_groups == "absent":
            raise InputError("silent_groups must be 'zero' with a dither, which silent groups get too")

    def for_plan(self, plan: Plan) -> Self:
        """Line 4: with p* of the plan's budget, unless p was given, and with a public seed.

        Raises `InputError`: neither a budget nor p was given, or the budget is beyond the ceiling.
        `UnsupportedError`: the budget is in another currency than nats about a record.
        """
        seed = self.public_seed
        if seed is None:
            seed = seed_number(Seeds.of(plan).public)
        return replace(self, firing_probability=self._probability(plan), public_seed=seed)

    def _probability(self, plan: Plan) -> float:
        """p: the given one, or Theorem 1's."""
        if self.firing_probability is not None:
            return self.firing_probability
        budget = plan.budget
        if budget is None:
            raise InputError("ferret needs a budget or a firing_probability, got neither")
        if not isinstance(budget, MutualInformation) or budget.secret is not Secret.RECORD:
            raise UnsupportedError(
                f"ferret's budget is in nats of mutual information about a record, not {budget.describe()}"
            )
        ceiling = self._ceiling(plan)
        if budget.nats > ceiling * (1 + _EQUAL):
            if self.above_ceiling == "refuse":
                raise InputError(
                    f"epsilon must be at most {ceiling:.6g} nats, the ceiling G T s ln 2 of "
                    f"{self._groups(plan)} groups and {plan.steps} steps, got {budget.nats:g} "
                    "(above_ceiling = 'cap' takes p = 1, and claims the ceiling)"
                )
            return 1.0
        if budget.nats >= ceiling * (1 - _EQUAL):
            return 1.0
        return firing_probability(
            budget_nats=budget.nats,
            groups=self._groups(plan),
            steps=plan.steps,
            sampling_probability=plan.sampling_probability,
        )

    def _groups(self, plan: Plan) -> int:
        return len(grouped(_tensor_names(plan), self.granularity))

    def _ceiling(self, plan: Plan) -> float:
        return ceiling_nats(
            groups=self._groups(plan), steps=plan.steps, sampling_probability=plan.sampling_probability
        )

    def steps(self, plan: Plan, model: Model, watch: Watch | None = None) -> MaskedSigns:
        """The masked signs of one run; `watch` as in `train_watched`.

        Raises `InputError`: the model has other tensors than the one that p* was worked out for.
        `UnsupportedError`: the plan has a gradient canary that is no record.
        """
        if tuple(trainable(model.module)) != _tensor_names(plan):
            raise InputError(f"model {plan.model!r} has changed its tensors since it was first built")
        return MaskedSigns(self, plan, model, watch)

    def train_watched(
        self, plan: Plan, watch: Watch, progress: Callable[[int, int], None] | None = None
    ) -> TrainedSubject:
        """As `train`, calling `watch` in every step in which a group fired; watching changes no number.

        Raises `UnsupportedError`: with a dither, for then no sign is released. Else as `train`. `InputError,
        InconclusiveError`: as `train`.
        """
        check_plan(plan)
        if self.dither_standard_deviation > 0:
            raise UnsupportedError(
                "a dithered ferret releases noisy updates, in which no sign is to be watched"
            )
        settled = self.for_plan(plan)
        return settled.trained(
            plan, self.claim(plan), progress, lambda plan, model: settled.steps(plan, model, watch)
        )

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Never: FERRET releases signs of masked groups, no sum of per-record gradients.

        Raises `UnsupportedError`: always.
        """
        raise UnsupportedError(
            "ferret releases signs, no privatised sum in which a canary could be read; "
            "its own game is that of attack sign_transcript"
        )

    def claim(self, plan: Plan) -> Claim:
        """Line 16: Eq. 8's nats about a record; with a dither, Eq. 12's Rényi divergence.

        Raises as `for_plan`.
        """
        probability = self._probability(plan)
        if self.dither_standard_deviation > 0:
            return self._dithered_claim(plan, probability)
        guarantee: Guarantee | None = plan.budget
        if self.firing_probability is not None or probability == 1.0:
            nats = total_nats(
                groups=self._groups(plan),
                steps=plan.steps,
                sampling_probability=plan.sampling_probability,
                firing_probability=probability,
            )
            guarantee = MutualInformation(nats=nats, secret=Secret.RECORD)
        assert guarantee is not None
        return Claim(
            guarantee=guarantee,
            about=Secret.RECORD,
            released=Released.EVERY_UPDATE,
            source="Zagardo 2025 (FERRET), Eq. 8 and Theorem 1",
            assumptions=(
                _sampling_assumption(plan),
                "the mask and the directions are public, and drawn without regard to the records",
                f"a firing tells at most ln 2 nats, since it shows one of two signs{self._third_symbol()}",
                "nats are an average over what the record may be, given all other records (Lemma 2's reading "
                "of section 2.1): they bound no worst case, and are no epsilon of differential privacy",
            ),
        )

    def _third_symbol(self) -> str:
        if self.zero_gradient == "coin":
            return ""
        return "; that an inner product of zero is kept silent, which shows too, is left out of account"

    def _dithered_claim(self, plan: Plan, probability: float) -> Claim:
        """G T times Eq. 12; nothing where that is infinite."""
        each = dithered_renyi_nats(
            order=self.dither_order,
            firing_probability=probability,
            clip_norm=self.clip_norm,
            dither_standard_deviation=self.dither_standard_deviation,
            form="step-2" if self.dither_form == "step-2" else "eq-12",
        )
        total = self._groups(plan) * plan.steps * each
        finite = math.isfinite(total)
        line = "Eq. 12" if self.dither_form == "eq-12" else "section 11.6, step 2"
        return Claim(
            guarantee=RenyiDP(alpha=self.dither_order, epsilon=total) if finite else NoGuarantee(),
            about=Adjacency.ADD_REMOVE,
            released=Released.EVERY_UPDATE,
            source=f"Zagardo 2025 (FERRET), {line}, added over groups and steps"
            + ("" if finite else f" (infinite at order {self.dither_order:g})"),
            assumptions=(
                "the Gaussian dither is added to fired and silent updates alike, and is ideal",
                *(
                    ["Eq. 12 as printed: section 11.6 derives it by p <= p^alpha, which fails for p < 1"]
                    if self.dither_form == "eq-12"
                    else []
                ),
                "neighbours are data sets with and without one record; the paper leaves that open",
                "the bound is that of a record which is in every sample: it takes no account of sampling",
            ),
        )


def _sampling_assumption(plan: Plan) -> str:
    s = plan.sampling_probability
    if plan.sampling is Sampling.SHUFFLED:
        return (
            f"batches of s N records, s = {s:g}, count as drawn afresh (Lemma 2); they are parts of secretly "
            "shuffled epochs, of which the lemma does not speak"
        )
    return f"each step's sample is Poisson with s = {s:g} and stays secret (Lemma 2)"


@once_a_model
def _tensor_names(plan: Plan) -> tuple[str, ...]:
    """Names of the plan's trainable tensors."""
    return tuple(trainable(build_model(plan).module))


class MaskedSigns(Steps):
    """One run: lines 5 to 15, with the gradients of fired groups alone."""

    def __init__(self, mechanism: FERRET, plan: Plan, model: Model, watch: Watch | None = None) -> None:
        """Draw the whole mask: line 8 of all steps.

        `watch` is called in every step in which a group fired, before the update. Raises `InputError`: the
        mechanism is not settled. `UnsupportedError`: the plan has a gradient canary that is no record.
        """
        super().__init__(plan, model, fused=True)
        canary = plan.insertions.gradient_canary
        if canary is not None and canary.record is None:
            raise UnsupportedError(
                "ferret releases signs, in which a gradient canary beside the records cannot be read; "
                "give the canary a record's place, and play the game of attack sign_transcript"
            )
        if mechanism.firing_probability is None or mechanism.public_seed is None:
            raise InputError("firing_probability is not settled yet: call for_plan first")
        self._mechanism, self._plan, self._watch = mechanism, plan, watch
        self._public_seed: int = mechanism.public_seed
        self._probability: float = mechanism.firing_probability
        self._sums = SumGradients(model, plan, mechanism.micro_batch_size)
        self._parameters: Mapping[str, Tensor] = self._sums.parameters
        self._groups = grouped(list(self._parameters), mechanism.granularity)
        mask = firing_mask(self._public_seed, self._groups, plan.steps, self._probability)  # line 8
        self._due = {int(step): np.flatnonzero(mask[step]).tolist() for step in np.flatnonzero(mask.any(1))}
        seeds = Seeds.of(plan)
        self._coins = np.random.default_rng(seeds.noise)
        self._dither = torch_generator(seeds.noise)
        self._written: list[Tensor] = []
        self._zeros: dict[str, Tensor] = {}
        self._flat: FlatAdamW | None = None
        parameters = list(trainable(model.module).values())
        if mechanism.silent_groups == "zero" and plan.optimizer == "adamw" and FlatAdamW.fits(parameters):
            self._flat = FlatAdamW(parameters, plan.weight_decay)
        elif mechanism.silent_groups == "zero" and (plan.optimizer == "adamw" or plan.weight_decay > 0):
            # To SGD without decay a zero gradient is none: it needs no zeros.
            self._zeros = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._step = -1
        self._fired: list[tuple[int, int]] = []
        self._signs: list[int] = []

    def update(self, sample: IntArray) -> float:
        """Lines 7 to 13: the fired groups' signs, and Delta of every group as its gradient."""
        self._step += 1
        fired = self._due.get(self._step, [])  # line 9
        loss = self._sign(fired, sample) if fired else self._silent(sample)
        if self._mechanism.dither_standard_deviation > 0:
            self._add_dither()
        return loss

    def _sign(self, fired: Sequence[int], sample: IntArray) -> float:
        """Lines 7 and 10 to 12: the fired groups' signs, and updates in the place of their gradients."""
        names = [self._groups[group] for group in fired]
        step = FiredGroups(self._sums, self._step, self._public_seed, names)  # line 10
        inner, loss = step.inner(self._records(sample))  # line 7
        signs = [self._released_sign(value) for value in inner]  # line 11
        if self._watch is not None:
            self._watch(
                FiredStep(
                    step=self._step,
                    sample=sample,
                    groups=tuple(fired),
                    signs=tuple(signs),
                    of_sum=step.of_sum,
                    of_each=step.of_each,
                )
            )
        self._fired.extend((self._step, group) for group in fired)
        self._signs.extend(signs)
        for group, direction, sign in zip(names, step.directions, signs, strict=True):
            if sign:
                targets = [self._delta(name) for name in group]
                direction.write(sign * self._mechanism.clip_norm, targets)  # line 12
        step.close()
        return self._checked(loss)

    def _released_sign(self, inner: float) -> int:
        if not math.isfinite(inner):
            raise diverged(self._step + 1, self._plan)
        if inner == 0:
            return 0 if self._mechanism.zero_gradient == "silent" else 1 - 2 * int(self._coins.integers(2))
        return 1 if inner > 0 else -1

    def _silent(self, sample: IntArray) -> float:
        """A step in which no group fires looks at no record, or at losses alone."""
        if self._mechanism.silent_steps == "skip":
            return math.nan
        return self._checked(self._sums.mean_loss(self._records(sample)))

    def _records(self, sample: IntArray) -> list[Record]:
        return [self._plan.records[i] for i in sample]

    def _checked(self, loss: float | None) -> float:
        """A mean loss, finite; NaN where there is none."""
        if loss is not None and not math.isfinite(loss):
            raise diverged(self._step + 1, self._plan)
        return math.nan if loss is None else loss

    def _delta(self, name: str) -> Tensor:
        """Where the update of a parameter is written: its gradient, which is zero but where Delta is."""
        parameter = self._parameters[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        self._written.append(parameter.grad)
        return parameter.grad

    def descend(self, learning_rate: float) -> None:
        """Line 14: the optimizer's step along Delta, that of silent groups included; see `silent_groups`."""
        if self._flat is not None:
            self._flat.step(learning_rate)
            for target in self._written:
                target.zero_()
        elif self._written or self._zeros:
            for name, zero in self._zeros.items():
                if self._parameters[name].grad is None:
                    self._parameters[name].grad = zero
            super().descend(learning_rate)
        self._written = []

    def close(self) -> None:
        """Give the parameters memory of their own."""
        super().close()
        if self._flat is not None:
            self._flat.close()

    def _add_dither(self) -> None:
        """Appendix B: Gaussian noise on fired and silent updates alike."""
        deviation = self._mechanism.dither_standard_deviation
        for name, parameter in self._parameters.items():
            self._delta(name).add_(gaussian_noise(parameter, deviation, self._dither))

    def released(self) -> Mapping[str, Any]:
        """The signs; with a dither none, for then only the noisy updates are given away."""
        if self._mechanism.dither_standard_deviation > 0:
            return {}
        signs = ReleasedSigns(
            public_seed=self._public_seed,
            groups=self._groups,
            steps=self._plan.steps,
            fired=np.array(self._fired, dtype=np.int64).reshape(-1, 2),
            signs=np.array(self._signs, dtype=np.int64),
        )
        return {"released_signs": signs}

    def metrics(self) -> Mapping[str, float]:
        """p, G, G T s ln 2; how many times a group fired, and in how many steps none did."""
        return {
            "firing_probability": self._probability,
            "groups": float(len(self._groups)),
            "ceiling_nats": ceiling_nats(
                groups=len(self._groups),
                steps=self._plan.steps,
                sampling_probability=self._plan.sampling_probability,
            ),
            "fired": float(len(self._fired)),
            "silent_steps": float(self._plan.steps - len(self._due)),
        }
