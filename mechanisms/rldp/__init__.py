"""RLDP: DP-SGD whose clipping radii and noise are steered by a learned controller, as printed.

Source: Khadangi et al. 2025, "Efficient Differentially Private Fine-Tuning of LLMs via Reinforcement
Learning": Sections 2.2 to 2.4, Algorithm 1 and Section 3.1.

    find sigma_0 at which the ledger reaches epsilon_max after the planned steps             line 3
    for t in 1..T:
        take a Poisson sample (or a batch of a shuffled epoch)
        clip each record's (A_i, B_i) of each LoRA pair i jointly to C_i                     Eqs. 3 to 5
        add N(0, sigma^2 C_i^2 I) to pair i of the sum, divide by q N, descend by AdamW      Eqs. 6 and 16
        note the ledger's epsilon at sigma                                                   line 14
        in warm-up: C_i <- median of the norms so far, uncapped                              line 17
        then, every T_RL steps: soft actor-critic reads statistics of the batch and turns
        all C_i and sigma, and is paid utility gained per epsilon spent                      lines 20 to 43

The parts: `_rldp_release` clips and noises, `_rldp_dials` has actions and rewards, `_rldp_state` the state,
`_rldp_controller` the actor-critic, `_rldp_ledger` the accountants, `_rldp_steps` the run.

Where the paper leaves a choice or contradicts itself (further ones in the parts' own texts):

- Theorem 7.13 claims (epsilon_target, delta)-DP, from the premises that every sigma_t is at least the one
  that was calibrated and that the controller reads released values only. Eqs. 11 to 15 let sigma fall to half
  of it, and Section 2.4's state and the warm-up's medians are raw statistics of the batch. The mechanism does
  what Algorithm 1 does; the claim is the authors' own, with the premises among its assumptions.
- Section 4.4 says that the budget is consumed at the last step "without ever exceeding it", Section 3.3 that
  this is verified at the end. Algorithm 1 has no rule that stops a run or keeps the ledger within: neither
  has this. The ledger is recorded as it is, and the run goes on.
- Definition 7.1 replaces a record, so that a sum moves by 2C; Eq. 6 and the calibration count C. `adjacency`
  names what the claim is about, and changes no number of the run.
- The ledger is told sigma, whatever the number n of adapters; jointly they are a release of sigma / sqrt(n).
  `noise_for="all adapters"`, ours, puts sqrt(n) sigma C_i on each pair instead, so that sigma is what the
  whole release has.
- Line 14's GDP is Eq. 7 or its references' central limit: `accountant`, see `_rldp_ledger`.
- R_max is not printed: `reward_floor`, by default one that never acts. Nor is the length of the buffer whose
  median the warm-up takes: `norm_buffer`.
- T_RL = 112 with minibatches of 4 and two rounds is what Section 4.5 calls close to optimal.
- Section 3.1 has LoRA dropout 0.05: here none, as for all mechanisms (`workbench.training.loop`).
- Fig. 5 has radii of 2.6 to 5.4 before step 300; Eq. 10 caps them by 1 from step 112 on, the first decision.
- Without LoRA the paper says nothing: here the parameters of each layer are then one group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from workbench.accounting import ApproximateDP
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import (
    Adjacency,
    Claim,
    Family,
    Groups,
    Model,
    Plan,
    Released,
    Sampling,
    Signals,
)
from workbench.mechanisms.rldp.ledger import ACCOUNTANTS, calibrated_noise, constant_noise_epsilon
from workbench.mechanisms.rldp.release import clipped_noisy_sum
from workbench.mechanisms.shared.gaussian_sums import require_count, require_positive, require_scale
from workbench.training.canary import Layout
from workbench.training.loop import GradientMechanism
from workbench.training.lora import lora_pairs
from workbench.training.steps import Steps

if TYPE_CHECKING:
    from workbench.mechanisms.rldp.controller import Settings

POLICIES = ("sac", "static", "least-noise")
ACTOR_LOSSES = ("reparameterised", "replayed")
NOISE_FOR = ("one adapter", "all adapters")
CALIBRATION_ERROR = 1e-6
"""Relative; a ledger so close below the budget is the budget, found by bisection."""
MOST_TRANSITIONS = 1_000_000
"""In a minibatch."""
ADJACENCIES = (str(Adjacency.REPLACE_ONE), str(Adjacency.ADD_REMOVE))


@register("mechanism", "rldp")
@dataclass(frozen=True, kw_only=True)
class RLDP(GradientMechanism):
    """RLDP as printed: pairwise clipping, noise on each pair, and a soft actor-critic that steers both.

    Attributes:
        policy: `"sac"`; `"static"`: radii and noise stay once the warm-up is over; `"least-noise"`: an
            adversary that always asks for the largest radii and the smallest noise.
        decision_interval: T_RL, steps between decisions.
        warm_up: T_warm, steps before the first decision may be, whose radii are medians.
        sac_updates: K, rounds at each decision.
        sac_batch_size: Transitions in a minibatch, at most `MOST_TRANSITIONS`.
        entropy_temperature: alpha.
        discount: gamma, in [0, 1).
        actor_learning_rate: Of encoder and actor.
        critic_learning_rate: Of both critics.
        polyak: Share of the critics that their targets take on in a round, in (0, 1].
        replay_capacity: Transitions that are kept.
        actor_loss: `"reparameterised"`, or `"replayed"` as Eq. 27 has it; see `_rldp_controller`.
        reward_floor: R_max.
        initial_clip_norm: C_0 of every pair.
        max_clip_norm: What Eq. 10 caps radii by; the warm-up's are not capped.
        norm_buffer: Most records whose norms the warm-up's medians are of.
        noise_multiplier: sigma_0; None to calibrate it to the plan's budget.
        noise_for: `"one adapter"` as printed, noise sigma C_i on pair i; `"all adapters"`: sqrt(n) times it.
        accountant: What the ledger computes, and sigma_0 is calibrated by: see `_rldp_ledger`.
        adjacency: What the claim is about: `"replace-one"` as in Definition 7.1, or `"add-remove"`.
        accounts_certified: Whether the transcript has `certified_epsilon_one_adapter` and
            `certified_epsilon_joint`, of the noises that were used, under this adjacency; about a second.

    Raises:
        InputError: a parameter is out of range.
    """

    release_family: ClassVar[Family] = Family.GAUSSIAN

    policy: str = "sac"
    decision_interval: int = 112
    warm_up: int = 50
    sac_updates: int = 2
    sac_batch_size: int = 4
    entropy_temperature: float = 0.04
    discount: float = 0.99
    actor_learning_rate: float = 2e-4
    critic_learning_rate: float = 1e-4
    polyak: float = 0.01
    replay_capacity: int = 10_000
    actor_loss: str = "reparameterised"
    reward_floor: float = 10.0
    initial_clip_norm: float = 0.1
    max_clip_norm: float = 1.0
    norm_buffer: int = 1024
    noise_multiplier: float | None = None
    noise_for: str = "one adapter"
    accountant: str = "algorithm-1"
    adjacency: str = "replace-one"
    accounts_certified: bool = False

    def __post_init__(self) -> None:
        """Refuse parameters that are out of range."""
        super().__post_init__()
        for name, value, known in (
            ("policy", self.policy, POLICIES),
            ("actor_loss", self.actor_loss, ACTOR_LOSSES),
            ("noise_for", self.noise_for, NOISE_FOR),
            ("accountant", self.accountant, ACCOUNTANTS),
            ("adjacency", self.adjacency, ADJACENCIES),
        ):
            if value not in known:
                raise unknown_name(name, value, known)
        for name, least in (
            ("decision_interval", 1),
            ("warm_up", 0),
            ("sac_updates", 1),
            ("replay_capacity", 1),
            ("norm_buffer", 1),
        ):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < least:
                raise InputError(f"{name} must be a whole number >= {least}, got {count!r}")
        require_count("sac_batch_size", self.sac_batch_size, least=1, most=MOST_TRANSITIONS)
        require_scale(
            entropy_temperature=self.entropy_temperature,
            actor_learning_rate=self.actor_learning_rate,
            critic_learning_rate=self.critic_learning_rate,
            reward_floor=self.reward_floor,
            initial_clip_norm=self.initial_clip_norm,
            max_clip_norm=self.max_clip_norm,
        )
        require_positive(noise_multiplier=self.noise_multiplier)
        if not 0 <= self.discount < 1:
            raise InputError(f"discount must be in [0, 1), got {self.discount!r}")
        if not 0 < self.polyak <= 1:
            raise InputError(f"polyak must be in (0, 1], got {self.polyak!r}")

    def steps_at_first_noise(self, plan: Plan) -> int:
        """Number of a run's first steps whose noise multiplier is `privatise`'s, sigma_0.

        All of them under the static policy, else those up to the first decision: releases at one state stand
        for no others.
        """
        if self.policy == "static":
            return plan.steps
        interval = self.decision_interval
        first = interval * (self.warm_up // interval + 1)
        return min(first, plan.steps)

    @property
    def neighbours(self) -> Adjacency:
        """`adjacency`, as the bench names it."""
        return Adjacency(self.adjacency)

    def sac_settings(self) -> Settings:
        """SAC's parameters, for the controller."""
        from workbench.mechanisms.rldp.controller import Settings

        return Settings(
            updates=self.sac_updates,
            batch_size=self.sac_batch_size,
            entropy_temperature=self.entropy_temperature,
            discount=self.discount,
            actor_learning_rate=self.actor_learning_rate,
            critic_learning_rate=self.critic_learning_rate,
            polyak=self.polyak,
            replay_capacity=self.replay_capacity,
            actor_loss=self.actor_loss,
        )

    def clipping_groups(self, layout: Layout) -> Groups:
        """The LoRA pairs; without LoRA, the parameters of each layer."""
        if any("lora_" in name for name in layout):
            return lora_pairs(layout)
        layers: dict[str, list[str]] = {}
        for name in layout:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        return list(layers.values())

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """C_0 of each pair, as `privatise` has it; a run has its own."""
        return [self.initial_clip_norm] * len(self.clipping_groups(layout))

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The release of a run's first step: radii C_0 and noise multiplier sigma_0.

        Raises:
            InputError: the noise multiplier is neither given nor calibrated (`for_plan`).
        """
        groups = self.clipping_groups(signals.layout)
        return clipped_noisy_sum(
            signals,
            groups,
            norms=signals.group_norms(groups),
            radii=[self.initial_clip_norm] * len(groups),
            noise_multiplier=self._settled_noise() * self.noise_factor(len(groups)),
            generator=generator,
        )

    def noise_factor(self, adapters: int) -> float:
        """What sigma C_i is multiplied by on each of n adapters: 1 as printed, or sqrt(n)."""
        return 1.0 if self.noise_for == "one adapter" else math.sqrt(adapters)

    def _settled_noise(self) -> float:
        if self.noise_multiplier is None:
            raise InputError("noise_multiplier is not settled yet: call for_plan first")
        return self.noise_multiplier

    def for_plan(self, plan: Plan) -> Self:
        """With sigma_0 calibrated to the plan's budget, unless one was given.

        Raises:
            InputError: the plan has no budget.
            UnsupportedError: the budget is in another currency than (epsilon, delta)-DP.
        """
        budget = _budget(plan)
        if self.noise_multiplier is not None:
            return self
        sigma = calibrated_noise(self.accountant, budget, plan.sampling_probability, plan.steps)
        return replace(self, noise_multiplier=sigma)

    def promised(self, plan: Plan) -> ApproximateDP:
        """(epsilon_max, delta): the budget, or what the ledger gives for a noise multiplier of the user's.

        Raises:
            InputError: the plan has no budget.
            UnsupportedError: the budget is in another currency, or the ledger finds no finite epsilon.
        """
        budget, sigma = _budget(plan), self.noise_multiplier
        if sigma is None:
            return budget
        q = plan.sampling_probability
        found = constant_noise_epsilon(self.accountant, sigma, budget.delta, q, plan.steps)
        if budget.epsilon * (1 - CALIBRATION_ERROR) <= found <= budget.epsilon:
            return budget
        if not 0 < found < math.inf:
            raise UnsupportedError(
                f"rldp's ledger finds no finite epsilon above 0 for noise_multiplier {sigma:g}, q = {q:g}, "
                f"T = {plan.steps} at delta {budget.delta:g}"
            )
        return ApproximateDP(epsilon=found, delta=budget.delta)

    def settings(self) -> Mapping[str, float]:
        """`noise_multiplier` (sigma_0) and `l2_clip_norm` (C_0)."""
        noise = math.nan if self.noise_multiplier is None else self.noise_multiplier
        return {"noise_multiplier": noise, "l2_clip_norm": self.initial_clip_norm}

    def steps(self, plan: Plan, model: Model) -> Steps:
        """A run of Algorithm 1."""
        from workbench.mechanisms.rldp.steps import ControlledSteps

        return ControlledSteps(self, plan, model)

    def claim(self, plan: Plan) -> Claim:
        """Theorem 7.13: (epsilon_target, delta)-DP of the whole procedure, as its authors state it.

        Raises:
            InputError: the plan has no budget.
            UnsupportedError: the budget is in another currency, or the ledger finds no finite epsilon.
        """
        self.for_plan(plan)  # refuses a budget that no noise meets
        q, steps = plan.sampling_probability, plan.steps
        samples = f"each step's sample is Poisson with q = {q:g} and stays secret (Theorem 7.5)"
        if plan.sampling is Sampling.SHUFFLED:
            samples = (
                f"T = {steps} batches of shuffled epochs cost no more than Poisson samples of q = {q:g}: "
                "Section 3.1 has both, and the proof Poisson samples alone"
            )
        return Claim(
            guarantee=self.promised(plan),
            about=self.neighbours,
            released=Released.EVERY_UPDATE,
            source=f"Khadangi et al. 2025, Theorem 7.13, ledger {self.accountant!r}",
            assumptions=(
                samples,
                (
                    f"T = {steps} releases of all adapter pairs cost what one pair of noise sigma_t C_t "
                    "costs (Theorem 7.13, stage 2)"
                    if self.noise_for == "one adapter"
                    else f"T = {steps} releases of all adapter pairs are one Gaussian release each, of noise "
                    "sigma_t (not the paper's: its noise is sqrt(n) times smaller)"
                ),
                "every sigma_t is at least the calibrated sigma_0, and every radius at most "
                f"{self.max_clip_norm:g} (stage 4)",
                "the controller and the warm-up read noised gradients and the ledger only (Lemma 7.14)",
                "the ledger's formula bounds the cost of the steps",
                "the noise is an ideal Gaussian: floating-point effects are not covered",
                (
                    "the number that the sum is divided by is public"
                    if plan.public_size is not None
                    else "the number of records, by which the sum is divided, is public"
                ),
            ),
        )


def _budget(plan: Plan) -> ApproximateDP:
    """The plan's budget, whose epsilon scales the controller's steps (Eq. 11)."""
    budget = plan.budget
    if budget is None:
        raise InputError("rldp needs a budget, got None")
    if not isinstance(budget, ApproximateDP):
        raise UnsupportedError(f"rldp is calibrated to (epsilon, delta)-DP, not to {budget.describe()}")
    if budget.epsilon == 0:
        raise InputError("rldp needs a budget of epsilon > 0, got 0")
    return budget
