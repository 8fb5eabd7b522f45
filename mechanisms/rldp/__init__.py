"""RLDP: DP-SGD whose clipping radii and noise are steered by a learned controller, as printed.

Source: Khadangi et al. 2025, "Efficient Differentially Private Fine-Tuning of LLMs via Reinforcement
Learning": Sections 2.2 to 2.4, Algorithm 1 and Section 3.1. The lines of Algorithm 1, and where they stand:

     1  inputs: records, theta_0, (epsilon_max, delta), n pairs, SAC's parameters                   `RLDP`
     3  C_i <- C_0; find sigma_0 at which the ledger reaches epsilon_max after T steps    `RLDP.for_plan`
   4-8  optimizer, controller, ledger, statistics; nothing decided before     `ControlledSteps.__init__`
    10  for t in 1..T:
    11      take a sample; its loss, and utility u_t = -loss                                     `update`
    12      per-record gradients
    13      clip pair i to C_i, add N(0, sigma^2 C_i^2 I), AdamW                   `privatise`, `descend`
    14      epsilon_t <- ledger at sigma
    15      norms nu_i of each record and pair (Eq. 4) into the statistics
 16-18      if t <= T_warm: C_i <- median of the norms of pair i
    20      if t > T_warm and T_RL divides t:                                                   `_decide`
 21-22          state s_t, action a_t
    24          C_i <- min(exp(a_i), 1)
 25-30          sigma <- smoothed, by tanh(a_n+1) 0.1 (1 - epsilon_t / epsilon_max)
    31          if there was a decision before:
 32-34              reward r of utility gained per epsilon spent
    35              push (s, a, r, s_t) into the replay buffer
 36-40              K times: update critics, targets and actor on a minibatch
    42          remember s_t, a_t, u_t, epsilon_t
    45  return theta_T

The soft actor-critic is in `controller`, the ledger in `ledger`. An action is drawn before the rounds that
its state completes, and is first used in the next step. An empty sample leaves the statistics as they were;
its step is noise alone, and is paid for.

Where the paper leaves a choice or contradicts itself (further ones in the two modules' texts):

- Theorem 7.13 claims (epsilon_target, delta)-DP, from the premises that every sigma_t is at least the one
  that was calibrated and that the controller reads released values only. Eqs. 11 to 15 let sigma fall to half
  of it, and Section 2.4's state and the warm-up's medians are raw statistics of the batch. The mechanism does
  what Algorithm 1 does; the claim is the authors' own, with the premises among its assumptions.
- Definition 7.1 replaces a record, so that a sum moves by 2C; Eq. 6 and the calibration count C. `adjacency`
  names what the claim is about, and changes no number of the run.
- The ledger is told sigma, whatever the number n of adapters; jointly they are a release of sigma / sqrt(n).
  `noise_for="all adapters"`, ours, puts sqrt(n) sigma C_i on each pair instead, so that sigma is what the
  whole release has.
- Line 24: the text calls the first n entries of an action changes of log C_i, but Eq. 10 sets C_i itself,
  whatever it was. Line 26: past the budget the step is negative, and a push for less noise gives more.
- Line 15: the paper speaks of twelve summaries and a ledger, and lists eleven with it. Whether Fisher moments
  are one pair or one an adapter is not said: here one an adapter, as the elements are. What is printed as
  excess kurtosis lacks the -3; a constant is lost in the normalisation that follows. A batch's loss is the
  mean over its records, so utility is minus the loss, as it is by Eq. 9: both are kept, as listed.
- R_max is not printed: `reward_floor`, by default one that never acts. Nor is the length of the buffer whose
  median the warm-up takes: `norm_buffer`, by default that of a whole warm-up of 50 batches of 16.
- T_RL = 112 with minibatches of 4 and two rounds is what Section 4.5 calls close to optimal. Fig. 5 has radii
  of 2.6 to 5.4 before step 300; Eq. 10 caps them by 1 from step 112 on, the first decision.
- Section 3.1 has LoRA dropout 0.05: here none, as for all mechanisms. Without LoRA the paper says nothing:
  here the parameters of each layer are then one group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.core.arguments import LARGEST, require_count
from workbench.core.errors import InconclusiveError, InputError, unknown_name
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.games.words import Judged
from workbench.interfaces import (
    Adjacency,
    AuditDefaults,
    Capabilities,
    Claim,
    Family,
    FloatArray,
    Groups,
    IntArray,
    Model,
    Plan,
    Sampling,
    Signals,
)
from workbench.mechanisms.rldp.controller import (
    LearnedPolicy,
    LeastNoise,
    NormBuffer,
    Policy,
    Settings,
    state_size,
    statistics,
)
from workbench.mechanisms.rldp.ledger import (
    ACCOUNTANTS,
    Ledger,
    budget_of,
    calibrated_noise,
    certified_epsilons,
    promised_by,
    theorem_7_13,
)
from workbench.mechanisms.rldp.views import steered_views
from workbench.mechanisms.shared.gaussian_sums import require_positive, require_scale, settled_noise
from workbench.training.fine_tuning import Seeds
from workbench.training.flat import FlatLayout, Layout
from workbench.training.loop import GradientMechanism, gaussian_noise
from workbench.training.lora import lora_pairs
from workbench.training.steps import PrivatisedSums, Steps

POLICIES = ("sac", "static", "least-noise")
ACTOR_LOSSES = ("reparameterised", "replayed")
NOISE_FOR = ("one adapter", "all adapters")
ADJACENCIES = (str(Adjacency.REPLACE_ONE), str(Adjacency.ADD_REMOVE))
_COUNTS = (
    ("decision_interval", 1, LARGEST),
    ("warm_up", 0, LARGEST),
    ("sac_updates", 1, 1_000),
    ("sac_batch_size", 1, 10_000),
    ("replay_capacity", 1, LARGEST),
    ("norm_buffer", 1, 100_000),
)
"""Whole numbers, the least and the most of each. A round of SAC takes from 10 ms to half a second at the most
transitions, so that a decision takes minutes at worst; the paper has up to 4 rounds of 32. Each step of the
warm-up takes medians of the whole norm buffer. A replay buffer is no larger than the run fills it."""

STABILITY = 1e-6
"""What Eq. 5's factor adds to the norm; a record's part so stays below its radius."""
SMALLEST_RADIUS = 1e-30
"""Radii below it, which Eq. 10 allows, would be no numbers of float32 once multiplied."""
LARGEST_STEP = 0.1
"""delta_max of Eq. 11."""
FARTHEST = 2.0
"""Eq. 13: sigma is proposed within this factor of its start, on either side."""
MOMENTUM = 0.8
"""beta_sigma of Eq. 14."""
PRICE_FLOOR = 1e-6
"""What Eq. 18 adds to the change of the ledger."""
SMALLEST_RATIO = -0.999
"""Eq. 19."""


LARGEST_READ = 1e6
"""What the controller reads of a ledger that is infinite, as it is where so little noise promises nothing."""


@register("mechanism", "rldp")
@dataclass(frozen=True, kw_only=True)
class RLDP(GradientMechanism):
    """RLDP as printed: pairwise clipping, noise on each pair, and a soft actor-critic that steers both.

    Attributes:
        policy: `"sac"`; `"static"`: radii and noise stay once the warm-up is over; `"least-noise"`: an
            adversary that always asks for the largest radii and the smallest noise.
        decision_interval: T_RL, steps between decisions.
        warm_up: T_warm, steps before the first decision may be, whose radii are medians.
        sac_updates: K, rounds at each decision, 1 to 1,000.
        sac_batch_size: Transitions in a minibatch, 1 to 10,000.
        entropy_temperature: alpha.
        discount: gamma, in [0, 1).
        actor_learning_rate: Of encoder and actor.
        critic_learning_rate: Of both critics.
        polyak: Share of the critics that their targets take on in a round, in (0, 1].
        replay_capacity: Transitions that are kept.
        actor_loss: `"reparameterised"`, or `"replayed"` as Eq. 27 has it; see `controller`.
        reward_floor: R_max.
        initial_clip_norm: C_0 of every pair.
        max_clip_norm: What Eq. 10 caps radii by; the warm-up's are not capped.
        norm_buffer: Most records whose norms the warm-up's medians are of, 1 to 100,000.
        noise_multiplier: sigma_0; None to calibrate it to the plan's budget.
        noise_for: `"one adapter"` as printed, noise sigma C_i on pair i; `"all adapters"`: sqrt(n) times it.
        accountant: What the ledger computes, and sigma_0 is calibrated by: see `ledger`.
        adjacency: What the claim is about: `"replace-one"` as in Definition 7.1, or `"add-remove"`.
        accounts_certified: Whether the transcript has `certified_epsilon_one_adapter` and
            `certified_epsilon_joint`, of the noises that were used, under this adjacency; about a second.

    Raises `InputError`: a parameter is out of range.
    """

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

    @property
    def capabilities(self) -> Capabilities:
        """Noised sums, whose radii and noise the controller steers."""
        return Capabilities(
            family=Family.GAUSSIAN,
            adjacency=self.neighbours,
            adjacencies=tuple(map(Adjacency, ADJACENCIES)),
        )

    def audit_defaults(self) -> AuditDefaults:
        """A canary in every LoRA pair at once, one in one pair, ordinary members, and radii and noise alone.

        These in trainings of a small network by the same plan, for hundreds of language models would take
        hours. The control is DP-SGD at the noise that a certified accountant asks for, on the same plan.
        """
        return AuditDefaults(
            settings={
                "adapter": "lora",
                "lora_rank": 8,
                "lora_alpha": 16.0,
                "lora_targets": "query-value",
                "control_mechanism": "dp_sgd",
                "control_learning_rate": None,
                "attacks": ("joint_canary", "dirac_canary", "loss", "trajectory"),
            },
            attack_parameters={"trajectory": {"data": "digits", "trials": 200, "steps": 50}},
        )

    def views(self, judged: Judged) -> dict[str, JSON]:
        """What the report says of a single release and of the whole run."""
        return steered_views(judged)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (
            ("policy", POLICIES),
            ("actor_loss", ACTOR_LOSSES),
            ("noise_for", NOISE_FOR),
            ("accountant", ACCOUNTANTS),
            ("adjacency", ADJACENCIES),
        ):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name, least, most in _COUNTS:
            require_count(name, getattr(self, name), least=least, most=most)
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

    def for_plan(self, plan: Plan) -> Self:
        """Line 3: with sigma_0 calibrated to the plan's budget, unless one was given.

        Raises `InputError`: the plan has no budget. `UnsupportedError`: the budget is in another currency
        than (epsilon, delta)-DP.
        """
        budget = budget_of(plan)
        if self.noise_multiplier is not None:
            return self
        sigma = calibrated_noise(self.accountant, budget, plan.sampling_probability, plan.steps)
        return replace(self, noise_multiplier=sigma)

    def steps(self, plan: Plan, model: Model) -> Steps:
        """The steps of a run of Algorithm 1."""
        return ControlledSteps(self, plan, model)

    def clipping_groups(self, layout: Layout) -> Groups:
        """The LoRA pairs; without LoRA, the parameters of each layer."""
        if any("lora_" in name for name in layout):
            return lora_pairs(layout)
        layers: dict[str, list[str]] = {}
        for name in layout:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        return list(layers.values())

    def noise_factor(self, adapters: int) -> float:
        """Factor that sigma C_i is multiplied by on each of n adapters: 1 as printed, or sqrt(n)."""
        return 1.0 if self.noise_for == "one adapter" else math.sqrt(adapters)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The release of a run's first step: radii C_0 and noise multiplier sigma_0.

        Raises `InputError`: the noise multiplier is not settled (`for_plan`).
        """
        groups = self.clipping_groups(signals.layout)
        return clipped_noisy_sum(
            signals,
            groups,
            norms=signals.group_norms(groups),
            radii=[self.initial_clip_norm] * len(groups),
            noise_multiplier=settled_noise(self.noise_multiplier) * self.noise_factor(len(groups)),
            generator=generator,
        )

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """C_0 of each pair, as `privatise` has it; a run has its own."""
        return [self.initial_clip_norm] * len(self.clipping_groups(layout))

    def steps_at_first_noise(self, plan: Plan) -> int:
        """Number of first steps at `privatise`'s noise multiplier: all, or those up to the first decision."""
        if self.policy == "static":
            return plan.steps
        return min(self.decision_interval * (self.warm_up // self.decision_interval + 1), plan.steps)

    def settings(self) -> Mapping[str, float]:
        """`noise_multiplier` (sigma_0) and `l2_clip_norm` (C_0)."""
        noise = math.nan if self.noise_multiplier is None else self.noise_multiplier
        return {"noise_multiplier": noise, "l2_clip_norm": self.initial_clip_norm}

    @property
    def neighbours(self) -> Adjacency:
        """`adjacency`, as the bench names it."""
        return Adjacency(self.adjacency)

    def promised(self, plan: Plan) -> ApproximateDP | NoGuarantee:
        """(epsilon_max, delta): the budget, or what the ledger gives for a noise multiplier of the user's.

        Raises as `claim`.
        """
        return promised_by(self.accountant, self.noise_multiplier, plan)

    def claim(self, plan: Plan) -> Claim:
        """Theorem 7.13: (epsilon_target, delta)-DP of the whole procedure, as its authors state it.

        None of a noise multiplier for which the ledger finds no finite epsilon. Raises `InputError`: the plan
        has no budget. `UnsupportedError`: the budget is in another currency, or the ledger finds epsilon 0.
        """
        self.for_plan(plan)  # refuses a budget that no noise meets
        return theorem_7_13(
            plan,
            self.promised(plan),
            accountant=self.accountant,
            adjacency=self.neighbours,
            is_joint=self.noise_for == "all adapters",
            largest_radius=self.max_clip_norm,
        )


class ControlledSteps(PrivatisedSums):
    """One run: Algorithm 1 from line 3 on, in the printed order."""

    def __init__(self, mechanism: RLDP, plan: Plan, model: Model) -> None:
        """Lines 3 to 8; the controller draws from the plan's public stream, as the paper's proof has it.

        Raises `InputError`: the mechanism is not settled.
        """
        super().__init__(mechanism, plan, model)
        promised = mechanism.promised(plan)
        self._settled = mechanism
        self._groups = mechanism.clipping_groups(FlatLayout.of(model.module).places)
        n = len(self._groups)
        self._radii: FloatArray = np.full(n, mechanism.initial_clip_norm)  # lines 3 and 4
        self._sigma = self._sigma_0 = settled_noise(mechanism.noise_multiplier)
        self._policy = self._make_policy(n)  # line 5
        self._largest_epsilon = promised.epsilon if isinstance(promised, ApproximateDP) else math.inf
        self._delta = budget_of(plan).delta
        self._ledger = Ledger(mechanism.accountant, plan.sampling_probability, self._delta)  # line 6
        # line 7
        self._norms: FloatArray = np.zeros((0, n))
        self._loss = math.nan
        self._latest: tuple[FloatArray, float] | None = None
        self._buffer = NormBuffer(mechanism.norm_buffer, n)
        self._previous: tuple[FloatArray, FloatArray, float, float] | None = None  # line 8
        self._series: dict[str, list[float]] = {}

    def _make_policy(self, adapters: int) -> Policy | None:
        """Line 5; None where radii and noise stay."""
        chosen = self._settled
        if chosen.policy == "static":
            return None
        if chosen.policy == "least-noise":
            return LeastNoise(adapters, chosen.max_clip_norm)
        settings = Settings(
            updates=chosen.sac_updates,
            batch_size=chosen.sac_batch_size,
            entropy_temperature=chosen.entropy_temperature,
            discount=chosen.discount,
            actor_learning_rate=chosen.actor_learning_rate,
            critic_learning_rate=chosen.critic_learning_rate,
            polyak=chosen.polyak,
            # A run has fewer transitions than steps: nothing is laid out that it cannot fill.
            replay_capacity=min(chosen.replay_capacity, self._plan.steps),
            actor_loss=chosen.actor_loss,
        )
        return LearnedPolicy(state_size(adapters), adapters + 1, settings, Seeds.of(self._plan).public)

    def update(self, sample: IntArray) -> float:
        """Lines 11 to 13, but for the optimizer's step."""
        self._loss = super().update(sample)
        return self._loss

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Line 13's release; the norms are kept for the statistics, a canary's too."""
        norms = signals.group_norms(self._groups)
        self._norms = norms.cpu().double().numpy()
        return clipped_noisy_sum(
            signals,
            self._groups,
            norms=norms,
            radii=self._radii.tolist(),
            noise_multiplier=self._sigma * self._settled.noise_factor(len(self._groups)),
            generator=generator,
        )

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """sigma C_i of the step's release."""
        return [self._sigma * radius for radius in self._radii.tolist()]

    def descend(self, learning_rate: float) -> None:
        """Line 13's optimizer step, then lines 14 to 43."""
        super().descend(learning_rate)
        t, warm_up = self._done, self._settled.warm_up
        spent = self._ledger.step(self._sigma)  # line 14
        if not math.isfinite(spent) and math.isfinite(self._largest_epsilon):
            raise InconclusiveError(f"step {t} left the ledger infinite at noise_multiplier {self._sigma:g}")
        self._trace_step(spent)
        if len(self._norms) and math.isfinite(self._loss):  # line 15, unless the sample was empty
            self._latest = self._norms, self._loss
            if t <= warm_up:
                self._buffer.add(self._norms)
        if t <= warm_up:  # lines 16 to 18
            self._radii = self._buffer.medians(otherwise=self._radii)
        if self._policy is None or self._latest is None:
            return
        spent = min(spent, LARGEST_READ)
        self._policy.observe(statistics(*self._latest, spent))
        if t > warm_up and t % self._settled.decision_interval == 0:  # line 20
            self._decide(self._policy, -self._latest[1], spent)

    def _decide(self, policy: Policy, utility: float, spent: float) -> None:
        """Lines 21 to 42."""
        share = spent / self._largest_epsilon if math.isfinite(self._largest_epsilon) else 1.0
        state = policy.state()  # line 21
        action = policy.act(state, share)  # line 22
        self._radii = chosen_radii(action[:-1], self._settled.max_clip_norm)  # line 24
        push, log_sigma_0 = float(action[-1]), math.log(self._sigma_0)
        log_sigma = smoothed_log_noise(math.log(self._sigma), log_sigma_0, push, share)  # lines 25 to 29
        self._sigma = math.exp(log_sigma)  # line 30
        paid, losses = math.nan, None
        if self._previous is not None:  # line 31
            previous_state, previous_action, previous_utility, previous_spent = self._previous
            gain, cost = utility - previous_utility, spent - previous_spent  # line 32
            paid = reward(gain, cost, self._settled.reward_floor)  # lines 33 and 34
            losses = policy.learn(previous_state, previous_action, paid, state)  # lines 35 to 40
        self._previous = state, action, utility, spent  # line 42
        self._trace("controller_step", self._done)
        self._trace("controller_reward", paid)
        self._trace("controller_critic_loss", math.nan if losses is None else losses.critic)
        self._trace("controller_actor_loss", math.nan if losses is None else losses.actor)
        for index, entry in enumerate(action.tolist()):
            self._trace(f"controller_action_{index}", entry)

    def _trace_step(self, spent: float) -> None:
        """What the step was clipped to and noised by, and the ledger after it."""
        self._trace("l2_clip_norm", float(self._radii.mean()))
        self._trace("noise_multiplier", self._sigma)
        self._trace("ledger_epsilon", spent)
        for index, radius in enumerate(self._radii.tolist()):
            self._trace(f"clip_{index}", radius)

    def _trace(self, name: str, value: float) -> None:
        self._series.setdefault(name, []).append(float(value))

    def released(self) -> Mapping[str, Any]:
        """The canary's values and coins, and the traces: one number a step, or one a decision."""
        traces = {name: np.array(series) for name, series in self._series.items()}
        return {**super().released(), "traces": traces}

    def metrics(self) -> Mapping[str, float]:
        """The ledger after the last step; where asked for, what the noises were worth (`ledger`).

        Certified numbers are for Poisson samples: there are none where the records are shuffled.
        """
        metrics = {"ledger_epsilon": self._ledger.epsilon}
        if self._settled.accounts_certified and self._plan.sampling is Sampling.POISSON:
            factor = self._settled.noise_factor(len(self._groups))
            alone, joint = certified_epsilons(
                [sigma * factor for sigma in self._series["noise_multiplier"]],
                adapters=len(self._groups),
                sampling_probability=self._plan.sampling_probability,
                delta=self._delta,
                adjacency=self._settled.neighbours,
            )
            metrics |= {"certified_epsilon_one_adapter": alone, "certified_epsilon_joint": joint}
        return metrics


# The equations of the lines above, in their order.


def clip_factors(norms: Tensor, radii: Sequence[float]) -> Tensor:
    """Line 13, Eq. 5: min(1, C_i / (nu_i + 1e-6)) of each record and pair; norms and result `(n, G)`."""
    return (norms.new_tensor(radii) / (norms + STABILITY)).clamp(max=1.0)


def clipped_noisy_sum(
    signals: Signals,
    groups: Groups,
    *,
    norms: Tensor,
    radii: Sequence[float],
    noise_multiplier: float,
    generator: torch.Generator,
) -> Tensor:
    """Line 13, Eqs. 5 and 6: the sum of the jointly clipped pairs, plus N(0, sigma^2 C_i^2 I) on pair i.

    A pair is one group of parameters with one radius: the two matrices A and B of a LoRA adapter. A record
    moves the sum, each of n pairs measured in its own C_i, by sqrt(n) at most: all pairs together are one
    Gaussian release of noise multiplier sigma / sqrt(n).

    Args:
        signals: The sample's.
        groups: The pairs.
        norms: nu_i of each record, the joint norms of Eq. 4, `signals.group_norms(groups)`, shape `(n, G)`.
        radii: C_i > 0, G of them.
        noise_multiplier: sigma.
        generator: Source of the noise.

    Returns shape of `signals.group_sum`.
    """
    total = signals.group_sum(clip_factors(norms, radii), groups)
    deviations = total.new_zeros(total.shape[-1])
    for group, radius in zip(groups, radii, strict=True):
        for name in group:
            deviations[signals.layout[name][0]] = noise_multiplier * radius
    return gaussian_noise(total, 1.0, generator).mul_(deviations).add_(total)


def chosen_radii(log_radii: FloatArray, largest: float) -> FloatArray:
    """Line 24, Eq. 10: C_i = min(exp(a_i), cap), at least `SMALLEST_RADIUS`."""
    # The exponent is capped first: exp of a large action would overflow.
    wished = np.exp(np.minimum(log_radii, math.log(largest)))
    return np.clip(wished, SMALLEST_RADIUS, largest).astype(np.float64)


def noise_step(spent: float) -> float:
    """Line 26, Eq. 11's step_t; negative once more than the budget is spent."""
    return LARGEST_STEP * (1 - spent)


def smoothed_log_noise(log_noise: float, log_first_noise: float, push: float, spent: float) -> float:
    """Lines 25 to 29, Eqs. 11 to 14: log sigma_{t+1} after the push a_{n+1}.

    Sigma stays within a factor of two of its start on both sides: nothing printed keeps it from falling below
    the noise that the budget was calibrated to.
    """
    wished = log_noise + math.tanh(push) * noise_step(spent)  # lines 25 to 27
    reach = math.log(FARTHEST)
    proposed = min(max(wished, log_first_noise - reach), log_first_noise + reach)  # line 28
    return MOMENTUM * log_noise + (1 - MOMENTUM) * proposed  # line 29


def reward(utility_gain: float, spent_gain: float, floor: float) -> float:
    """Lines 32 to 34, Eqs. 17 to 20: max(-R_max, log(1 + max(du / (d_epsilon + 1e-6), -0.999))).

    The ledger of line 14 falls where the noise rises, and then a loss of utility pays. Where it falls by 1e-6
    exactly, the ratio counts as zero. `utility_gain`: du, nats a token. `spent_gain`: d_epsilon. `floor`:
    R_max; above 6.91 it does nothing, for Eq. 19 stops at log(0.001).
    """
    price = spent_gain + PRICE_FLOOR
    ratio = utility_gain / price if price != 0 else 0.0
    return max(-floor, math.log1p(max(ratio, SMALLEST_RATIO)))
