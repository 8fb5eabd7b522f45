"""RLDP's run: Algorithm 1, lines 10 to 44.

    for t in 1..T:
        sample; loss; per-record gradients                               lines 11 and 12
        clip each pair to C_i, add noise sigma C_i, AdamW                13
        ledger at sigma                                                  14
        norms into the statistics; in warm-up C_i <- their median        15 to 18
        after it, every T_RL steps:                                      20
            state, action, dials                                         21 to 30
            reward of the action before, replay, K rounds of SAC         31 to 41

An action is drawn before the rounds that its state completes, and is first used in the next step. An empty
sample leaves the statistics as they were; its step is noise alone, and is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InconclusiveError, InputError
from workbench.interfaces import FloatArray, IntArray, Model, Plan, Sampling, Signals
from workbench.mechanisms.rldp.dials import Dials, noise_step, reward
from workbench.mechanisms.rldp.ledger import Ledger, certified_epsilons
from workbench.mechanisms.rldp.release import clipped_noisy_sum
from workbench.mechanisms.rldp.state import NormBuffer, state_size, statistics
from workbench.training.canary import Layout
from workbench.training.fine_tuning import Seeds
from workbench.training.flat import FlatLayout
from workbench.training.steps import PrivatisedSums

if TYPE_CHECKING:
    from workbench.mechanisms.rldp import RLDP
    from workbench.mechanisms.rldp.controller import Losses

FULL_PUSH = 20.0
"""tanh of it is 1 to the last bit."""


class Policy(Protocol):
    """Who turns the dials."""

    def observe(self, statistics: FloatArray) -> None:
        """The statistics after a step."""

    def act(self, spent: float) -> FloatArray:
        """An action, shape `(n + 1,)`; `spent` is the ledger's epsilon over the budget's."""

    def learn(self, reward: float | None) -> Losses | None:
        """After each `act`: the reward of the action before it; None for the first."""


class LeastNoise:
    """The worst controller that the proof allows: the widest radii, and always less noise.

    Past the budget the step of Eq. 11 is negative, and so is this one's push.
    """

    def __init__(self, adapters: int, largest_radius: float) -> None:
        """A policy without memory."""
        self._log_radii = np.full(adapters, math.log(largest_radius))

    def observe(self, statistics: FloatArray) -> None:
        """It needs to see nothing but the ledger."""

    def act(self, spent: float) -> FloatArray:
        """The largest radii, and a full push towards less noise."""
        return np.append(self._log_radii, -math.copysign(FULL_PUSH, noise_step(spent)))

    def learn(self, reward: float | None) -> None:
        """It has nothing to learn."""


class ControlledSteps(PrivatisedSums):
    """The state of one RLDP run."""

    def __init__(self, mechanism: RLDP, plan: Plan, model: Model) -> None:
        """Begin a run.

        Args:
            mechanism: Settled for the plan.
            plan: The plan; the controller draws from its public stream, for the paper's proof has public
                randomness there.
            model: Its model, in evaluation mode; trained in place.

        Raises:
            InputError: the mechanism is not settled.
        """
        super().__init__(mechanism, plan, model)
        if mechanism.noise_multiplier is None:
            raise InputError("noise_multiplier is not settled yet: call for_plan first")
        self._settled = mechanism
        self._groups = mechanism.clipping_groups(FlatLayout.of(model.module).places)
        adapters = len(self._groups)
        self._dials = Dials(
            radii=np.full(adapters, mechanism.initial_clip_norm),
            noise_multiplier=mechanism.noise_multiplier,
            first_noise_multiplier=mechanism.noise_multiplier,
        )
        budget = mechanism.promised(plan)
        self._largest_epsilon, self._delta = budget.epsilon, budget.delta
        self._ledger = Ledger(mechanism.accountant, plan.sampling_probability, budget.delta)
        self._buffer = NormBuffer(mechanism.norm_buffer, adapters)
        self._policy = self._made_policy(adapters)
        self._norms: FloatArray = np.zeros((0, adapters))
        self._loss = math.nan
        self._seen: tuple[FloatArray, float] | None = None
        self._before: tuple[float, float] | None = None
        self._series: dict[str, list[float]] = {}

    def _made_policy(self, adapters: int) -> Policy | None:
        """None for dials that nobody turns."""
        if self._settled.policy == "static":
            return None
        if self._settled.policy == "least-noise":
            return LeastNoise(adapters, self._settled.max_clip_norm)
        from workbench.mechanisms.rldp.controller import LearnedPolicy

        settings = self._settled.sac_settings()
        # A run has fewer transitions than steps: nothing is laid out that it cannot fill.
        settings = replace(settings, replay_capacity=min(settings.replay_capacity, self._plan.steps))
        seed = Seeds.of(self._plan).public
        return LearnedPolicy(state_size(adapters), adapters + 1, settings, seed)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Line 13's release at the present dials; the norms are kept for the statistics, a canary's too."""
        norms = signals.group_norms(self._groups)
        self._norms = norms.double().cpu().numpy()
        return clipped_noisy_sum(
            signals,
            self._groups,
            norms=norms,
            radii=self._dials.radii.tolist(),
            noise_multiplier=self._dials.noise_multiplier * self._settled.noise_factor(len(self._groups)),
            generator=generator,
        )

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """sigma C_i of the step's release."""
        return [self._dials.noise_multiplier * radius for radius in self._dials.radii.tolist()]

    def update(self, sample: IntArray) -> float:
        """Lines 11 to 13, but for the optimizer's step."""
        self._loss = super().update(sample)
        return self._loss

    def descend(self, learning_rate: float) -> None:
        """The optimizer's step, then the ledger, the statistics and the controller: lines 14 to 43."""
        super().descend(learning_rate)
        step, dials, warm_up = self._done, self._dials, self._settled.warm_up
        spent = self._ledger.step(dials.noise_multiplier)
        if not math.isfinite(spent):
            raise InconclusiveError(
                f"step {step} left the ledger infinite at noise_multiplier {dials.noise_multiplier:g}"
            )
        self._note_step(dials, spent)
        if len(self._norms) and math.isfinite(self._loss):
            self._seen = self._norms, self._loss
            if step <= warm_up:
                self._buffer.add(self._norms)
        if step <= warm_up:
            self._dials = dials.with_radii(self._buffer.medians(otherwise=dials.radii))
        if self._policy is None or self._seen is None:
            return
        self._policy.observe(statistics(*self._seen, spent))
        if step > warm_up and step % self._settled.decision_interval == 0:
            self._decide(self._policy, -self._seen[1], spent)

    def _decide(self, policy: Policy, utility: float, spent: float) -> None:
        """Lines 21 to 42."""
        share = spent / self._largest_epsilon
        action = policy.act(share)
        self._dials = self._dials.turned(action, spent=share, largest_radius=self._settled.max_clip_norm)
        paid: float | None = None
        if self._before is not None:
            past_utility, past_spent = self._before
            paid = reward(utility - past_utility, spent - past_spent, self._settled.reward_floor)
        losses = policy.learn(paid)
        self._before = utility, spent
        self._trace("controller_step", self._done)
        self._trace("controller_reward", math.nan if paid is None else paid)
        self._trace("controller_critic_loss", math.nan if losses is None else losses.critic)
        self._trace("controller_actor_loss", math.nan if losses is None else losses.actor)
        for index, entry in enumerate(action.tolist()):
            self._trace(f"controller_action_{index}", entry)

    def _note_step(self, dials: Dials, spent: float) -> None:
        """What the step was clipped to and noised by, and the ledger after it."""
        self._trace("l2_clip_norm", float(dials.radii.mean()))
        self._trace("noise_multiplier", dials.noise_multiplier)
        self._trace("ledger_epsilon", spent)
        for index, radius in enumerate(dials.radii.tolist()):
            self._trace(f"clip_{index}", radius)

    def _trace(self, name: str, value: float) -> None:
        self._series.setdefault(name, []).append(float(value))

    def released(self) -> Mapping[str, Any]:
        """The canary's values and coins, and the traces: one number a step, or one a decision."""
        traces = {name: np.array(series) for name, series in self._series.items()}
        return {**super().released(), "traces": traces}

    def metrics(self) -> Mapping[str, float]:
        """The ledger after the last step; where asked for, what the noises were worth (`_rldp_ledger`).

        Certified numbers are for Poisson samples: there are none where the records are shuffled.
        """
        found = {"ledger_epsilon": self._ledger.epsilon}
        if self._settled.accounts_certified and self._plan.sampling is Sampling.POISSON:
            factor = self._settled.noise_factor(len(self._groups))
            one, joint = certified_epsilons(
                [sigma * factor for sigma in self._series["noise_multiplier"]],
                adapters=len(self._groups),
                sampling_probability=self._plan.sampling_probability,
                delta=self._delta,
                adjacency=self._settled.neighbours,
            )
            found["certified_epsilon_one_adapter"], found["certified_epsilon_joint"] = one, joint
        return found
