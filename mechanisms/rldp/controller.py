"""RLDP's controller: soft actor-critic on the statistics of training (Section 2.4, Eqs. 21 to 27).

    normalise:  s_t <- (statistics - running mean) / running deviation          "re-normalised"
    encode:     z_t = GELU(LayerNorm(W_2 GELU(LayerNorm(W_1 s_t + b_1)) + b_2))  Eq. 22
    act:        a_t = mu(z_t) + sigma(z_t) * N(0, I)                             Eqs. 23 and 24
    push        (s_{t-1}, a_{t-1}, r_t, s_t) into a first-in first-out buffer
    K times:    critics down huber(Q_j(z, a), r + gamma (min Q_target(z', a') - alpha log pi(a' | s')))
                actor down alpha log pi(a | s) - min Q_j(z, a); targets towards critics (Eqs. 25 to 27)

From stable-baselines3 come the replay buffer's storage, the diagonal Gaussian, the layer builder, the Polyak
average and the running moments. Its `SAC` class does not fit: the environment here is the training loop
itself, which calls the controller and is not called by it; its actor squashes actions by a tanh, where Eq. 24
leaves them unbounded; it clamps log standard deviations, its Bellman loss is a square, its temperature is
learned by default, and both its sampling and its buffer draw from the process's global generators.

What the paper leaves open, or says twice:

- It stores z_t in the text and the state s_t in Algorithm 1 (line 35). Here states are stored, as they were
  normalised then, and encoded anew: a stored z_t would belong to an encoder that is no more.
- Which loss trains the shared encoder is not printed. Its symbol in Algorithm 1, f_theta, is the actor's:
  here the actor's loss trains it, through the distribution alone (not through the critics' first argument),
  which is also stable-baselines3's rule for a shared encoder. Targets have no encoder of their own.
- Eq. 27 takes its actions "from the replay buffer"; then Q does not depend on the actor, which is driven away
  from what it did and learns nothing of rewards. The reparameterisation of Eq. 24 exists for fresh actions:
  `actor_loss="reparameterised"`. As printed: `"replayed"`.
- How the state is normalised: running mean and variance over all steps so far, clipped to +-10.
- A two-layer MLP is read as two linear layers with ReLU between; the optimizer is Adam; Huber's threshold is
  1; an episode never ends. Minibatches are drawn with replacement, also from fewer transitions than they
  hold.
- alpha_min, alpha_max and eta_max are inputs of Algorithm 1 that nothing reads: alpha is constant.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.utils import polyak_update
from torch import Tensor, nn
from torch.nn import functional

from workbench.core.errors import InconclusiveError
from workbench.interfaces import FloatArray
from workbench.training.fine_tuning import seed_number

WIDTH = 128
"""Size of z_t, and of the critics' hidden layer."""

LARGEST_ENTRY = 10.0
"""Normalised entries are clipped to it."""

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the SAC controller; see `workbench.mechanisms.rldp.RLDP`, whose parameters they are."""

    updates: int
    batch_size: int
    entropy_temperature: float
    discount: float
    actor_learning_rate: float
    critic_learning_rate: float
    polyak: float
    replay_capacity: int
    actor_loss: str


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Means over one decision's K rounds: Huber-Bellman loss of both critics, and soft-policy loss."""

    critic: float
    actor: float


class _Actor(nn.Module):
    """Encoder and actor head, theta: Eqs. 22 and 23."""

    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        layers = create_mlp(states, 0, [WIDTH, WIDTH], nn.GELU, post_linear_modules=[nn.LayerNorm])
        self.encoder = nn.Sequential(*layers)
        self.mean = nn.Linear(WIDTH, actions)
        self.log_deviation = nn.Linear(WIDTH, actions)

    def encode(self, states: Tensor) -> Tensor:
        """z of each state, shape `(n, 128)`."""
        return self.encoder(states)  # type: ignore[no-any-return]


class _Critics(nn.Module):
    """Q_1 and Q_2."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.pair = nn.ModuleList(nn.Sequential(*create_mlp(WIDTH + actions, 1, [WIDTH])) for _ in range(2))

    def forward(self, encoded: Tensor, actions: Tensor) -> Tensor:
        """Both values of each row, shape `(2, n)`."""
        inputs = torch.cat([encoded, actions], dim=1)
        return torch.stack([critic(inputs)[:, 0] for critic in self.pair])


class SoftActorCritic:
    """Actor, critics and replay buffer; deterministic in its seed, and no reader of global generators."""

    def __init__(self, states: int, actions: int, settings: Settings, seed: np.random.SeedSequence) -> None:
        """Draw the weights, for states and actions of so many entries; the seed is of all that is drawn."""
        weights, noise, rows = seed.spawn(3)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_number(weights))
            self._actor = _Actor(states, actions)
            self._critics = _Critics(actions)
        self._targets = copy.deepcopy(self._critics).requires_grad_(False)
        self._settings = settings
        self._actor_optimizer = torch.optim.Adam(self._actor.parameters(), lr=settings.actor_learning_rate)
        self._critic_optimizer = torch.optim.Adam(
            self._critics.parameters(), lr=settings.critic_learning_rate
        )
        self._distribution = DiagGaussianDistribution(actions)
        self._noise = torch.Generator().manual_seed(seed_number(noise))
        self._rows = np.random.default_rng(rows)
        self._buffer = ReplayBuffer(
            settings.replay_capacity,
            spaces.Box(-np.inf, np.inf, (states,), np.float32),
            spaces.Box(-np.inf, np.inf, (actions,), np.float32),
            device="cpu",
            handle_timeout_termination=False,
        )

    def act(self, state: FloatArray) -> FloatArray:
        """A fresh action at a normalised state, shape `(n + 1,)`."""
        with torch.no_grad():
            states = torch.as_tensor(state, dtype=torch.float32)[None]
            actions, _ = self._drawn(self._actor.encode(states))
        action: FloatArray = actions[0].double().numpy()
        return action

    def store(self, state: FloatArray, action: FloatArray, reward: float, next_state: FloatArray) -> None:
        """Push a transition; the oldest makes room once the buffer is full."""
        self._buffer.add(state, next_state, action, np.array([reward]), np.array([False]), [{}])

    def stored(self) -> int:
        """Number of transitions in the buffer."""
        return self._buffer.size()

    def update(self) -> Losses:
        """K rounds on minibatches of the stored transitions, of which there must be one.

        Raises `InconclusiveError`: a loss or the policy is not finite.
        """
        rounds = [self._round() for _ in range(self._settings.updates)]
        critic, actor = (float(np.mean(losses)) for losses in zip(*rounds, strict=True))
        return Losses(critic=critic, actor=actor)

    def _round(self) -> tuple[float, float]:
        """One critic update, one actor update, one step of the targets."""
        states, actions, rewards, next_states = self._minibatch()
        with torch.no_grad():
            fixed = self._actor.encode(states)
            aims = rewards + self._settings.discount * self._soft_value(self._actor.encode(next_states))
        values = self._critics(fixed, actions)
        critic_loss = functional.huber_loss(values, aims.expand_as(values))
        # The sum over both critics, each of whose losses is its own mean.
        self._critic_optimizer.zero_grad()
        (2 * critic_loss).backward()  # type: ignore[no-untyped-call]
        self._critic_optimizer.step()
        actor_loss = self._actor_loss(states, actions)
        self._actor_optimizer.zero_grad()
        actor_loss.backward()  # type: ignore[no-untyped-call]
        self._actor_optimizer.step()
        polyak_update(self._critics.parameters(), self._targets.parameters(), self._settings.polyak)
        losses = critic_loss.item(), actor_loss.item()
        if not all(map(math.isfinite, losses)):
            raise _diverged()
        return losses

    def _soft_value(self, encoded: Tensor) -> Tensor:
        """min over the targets of Q(z, a') - alpha log pi(a'), with fresh actions, shape `(n,)`."""
        actions, log_density = self._drawn(encoded)
        value: Tensor = self._targets(encoded, actions).amin(0)
        return value - self._settings.entropy_temperature * log_density

    def _actor_loss(self, states: Tensor, replayed: Tensor) -> Tensor:
        """Eq. 27; see the module's text for what the options mean."""
        encoded = self._actor.encode(states)
        if self._settings.actor_loss == "replayed":
            actions, log_density = replayed, self._at(encoded).log_prob(replayed)
        else:
            actions, log_density = self._drawn(encoded)
        value = self._critics(encoded.detach(), actions).amin(0)
        loss: Tensor = (self._settings.entropy_temperature * log_density - value).mean()
        return loss

    def _at(self, encoded: Tensor) -> DiagGaussianDistribution:
        """pi(. | s) at encoded states.

        Raises `InconclusiveError`: it has no finite mean, or no positive finite deviation.
        """
        mean, log_deviation = self._actor.mean(encoded), self._actor.log_deviation(encoded)
        deviation = log_deviation.detach().exp()
        if not bool((mean.detach().isfinite() & deviation.isfinite() & (deviation > 0)).all()):
            raise _diverged()
        return self._distribution.proba_distribution(mean, log_deviation)

    def _drawn(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Fresh actions, shape `(n, actions)`, differentiable in theta, and their log densities `(n,)`."""
        at = self._at(encoded)
        normal = at.distribution
        drawn = torch.randn(normal.mean.shape, generator=self._noise)
        actions = normal.mean + normal.stddev * drawn
        return actions, at.log_prob(actions)

    def _minibatch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States, actions, rewards `(n,)` and next states of transitions drawn with replacement."""
        buffer = self._buffer
        rows = self._rows.integers(0, buffer.size(), self._settings.batch_size)
        return (
            torch.from_numpy(buffer.observations[rows, 0]),
            torch.from_numpy(buffer.actions[rows, 0]),
            torch.from_numpy(buffer.rewards[rows, 0]),
            torch.from_numpy(buffer.next_observations[rows, 0]),
        )


def _diverged() -> InconclusiveError:
    return InconclusiveError(
        "the controller left the finite numbers; try a smaller actor_learning_rate or critic_learning_rate"
    )


class Policy(Protocol):
    """A controller that sets clipping radii and noise as the training goes on."""

    def observe(self, statistics: FloatArray) -> None:
        """The statistics after a step."""

    def state(self) -> FloatArray:
        """The policy's state, from the statistics so far (line 21)."""

    def act(self, state: FloatArray, spent: float) -> FloatArray:
        """An action, shape `(n + 1,)` (line 22); `spent` is the ledger's epsilon over the budget's."""

    def learn(
        self, state: FloatArray, action: FloatArray, reward: float, next_state: FloatArray
    ) -> Losses | None:
        """Learn of a transition and of those before it (lines 35 to 40)."""


class LearnedPolicy:
    """The controller as Algorithm 1 runs it: statistics in, actions out, rewards back."""

    def __init__(self, statistics: int, actions: int, settings: Settings, seed: np.random.SeedSequence):
        self._sac = SoftActorCritic(statistics, actions, settings, seed)
        self._moments = RunningMeanStd(shape=(statistics,))
        self._statistics: FloatArray = np.zeros(statistics)

    def observe(self, statistics: FloatArray) -> None:
        """A step's statistics: they move the running moments, and are the latest ones."""
        self._statistics = statistics
        self._moments.update(statistics[None])

    def state(self) -> FloatArray:
        """The latest statistics, which hold the ledger, normalised.

        Raises `InconclusiveError`: they are not finite.
        """
        deviation = np.sqrt(self._moments.var + 1e-8)
        scaled = (self._statistics - self._moments.mean) / deviation
        state: FloatArray = np.clip(scaled, -LARGEST_ENTRY, LARGEST_ENTRY)
        if not np.isfinite(state).all():
            raise InconclusiveError(
                "the controller's state left the finite numbers; try a smaller learning_rate"
            )
        return state

    def act(self, state: FloatArray, spent: float) -> FloatArray:
        """A fresh action at a state, shape `(n + 1,)`."""
        return self._sac.act(state)

    def learn(self, state: FloatArray, action: FloatArray, reward: float, next_state: FloatArray) -> Losses:
        """Store the transition, and K rounds of updates; raises as `SoftActorCritic.update`."""
        self._sac.store(state, action, reward, next_state)
        return self._sac.update()


FULL_PUSH = 20.0
"""tanh of it is 1 to the last bit."""


class LeastNoise:
    """The worst controller that the proof allows: the widest radii, and always less noise.

    Past the budget the step of Eq. 11 is negative, and so is this one's push.
    """

    def __init__(self, adapters: int, largest_radius: float) -> None:
        self._log_radii = np.full(adapters, math.log(largest_radius))

    def observe(self, statistics: FloatArray) -> None:
        """Ignores the statistics: this policy reads only the ledger."""

    def state(self) -> FloatArray:
        """An empty state, shape `(0,)`: this policy keeps none."""
        return np.zeros(0)

    def act(self, state: FloatArray, spent: float) -> FloatArray:
        """The largest radii, and a full push towards less noise."""
        return np.append(self._log_radii, -math.copysign(FULL_PUSH, 1 - spent))

    def learn(self, state: FloatArray, action: FloatArray, reward: float, next_state: FloatArray) -> None:
        """Does nothing: this policy does not learn."""


def state_size(adapters: int) -> int:
    """Number of entries of the state vector."""
    return 5 * adapters + 6


class NormBuffer:
    """Line 17: the latest norms of each adapter, whose medians are the radii of the warm-up."""

    def __init__(self, capacity: int, adapters: int) -> None:
        """An empty buffer for `capacity` records' norms of each adapter."""
        self._capacity = capacity
        self._norms: FloatArray = np.zeros((0, adapters))

    def add(self, norms: FloatArray) -> None:
        """Append a batch's norms, shape `(records, n)`; the oldest are dropped."""
        self._norms = np.concatenate([self._norms, norms])[-self._capacity :]

    def medians(self, otherwise: FloatArray) -> FloatArray:
        """Median of each adapter's norms, shape `(n,)`; `otherwise` where there is no positive one.

        A radius must be positive (Section 2.3), and an adapter without gradients has median norm zero.
        """
        if not len(self._norms):
            return otherwise
        medians = np.median(self._norms, axis=0)
        return np.where(medians > 0, medians, otherwise).astype(np.float64)


def statistics(norms: FloatArray, loss: float, ledger_epsilon: float) -> FloatArray:
    """Line 15: the state vector before normalisation, shape `(5 n + 6,)` for n adapters.

    These are raw statistics of raw gradients: norms before any clipping, losses before any noise. Nothing
    here is private. `norms`: norms of at least one record, shape `(records, n)`. `loss`: mean loss of the
    batch, nats a token. `ledger_epsilon`: the ledger after the step.
    """
    centred = norms - norms.mean()
    variance = float(np.mean(centred**2))
    scale = math.sqrt(variance)
    # Equal norms have no shape: 0 / 0 counts as 0.
    shape = centred / scale if scale > 0 else centred
    fisher = norms**2
    return np.concatenate(
        [
            np.quantile(norms, QUARTILES, axis=0).ravel(),  # of each adapter's norms, 3 n
            [-loss, ledger_epsilon, variance, loss],  # utility, epsilon, dispersion of all norms, loss
            fisher.mean(0),  # Fisher elements nu_i^2: mean and variance, n each
            fisher.var(0),
            [np.mean(shape**3), np.mean(shape**4)],  # skewness and kurtosis of all norms
        ]
    ).astype(np.float64)
