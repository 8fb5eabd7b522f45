"""Plays the candidate-subset game: trainings on secret subsets, and what the adversary sees of each.

Every training is one independent trial, with its own public randomness (subsets, directions, initial
weights), secret index (drawn uniformly), noise, and target record. The label is whether the secret subset
holds the target. The adversary knows the universe, the mechanism and everything public, and sees every
release: with each release the signs that all candidates would have had, which it computes from the weights of
that step. It lacks only the index and the noise.

The target is drawn among the records that exactly half of the candidates hold, so that a blind guess is right
half of the time, whichever record it is. Of complementary pairs those are all records. Of independent halves
they are the few at which the draw came out even; which ones they are is public and says nothing of the
secret. Where a draw has none, the trial draws its public randomness anew.

A claim of mutual information about the index holds for each value of what is public, hence for this choice
too.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.bounded_mean import mean_bounds
from workbench.estimation.subset_trials import FLOOR, log_score
from workbench.execution.tasks import silent
from workbench.games.base import drawn_seed, quickened
from workbench.interfaces import Attack, BoolArray, FloatArray, Insertions, IntArray, Mechanism, Plan, Subject

TIE = 1e-9
"""Distance of a probability from one half within which a guess is a coin's."""


@dataclass(frozen=True, kw_only=True)
class SubsetBelief:
    """An adversary's belief after one training.

    Attributes:
        posterior: Probability of each candidate under the law that the mechanism states, shape `(M,)`.
        entropies: Entropy of that posterior after each release, nats, shape `(D,)`.
        guess: The probabilities that it guesses by, shape `(M,)`: the posterior itself, or a more suspicious
            one.
        from_bits: The posterior under the stated law of an adversary who sees the released bits and the
            noise, but no values, shape `(M,)`.
    """

    posterior: FloatArray
    entropies: FloatArray
    guess: FloatArray
    from_bits: FloatArray


def record_success(guess: FloatArray, candidates: BoolArray, secret: int) -> float:
    """Share of right guesses over the records that exactly half of the candidates hold; ties count half.

    Args:
        guess: Probability of each candidate, shape `(M,)`.
        candidates: Which records each holds, shape `(M, N)`.
        secret: Index of the candidate that was trained on.

    Raises `InputError`: no record is held by exactly half of the candidates.
    """
    even = balanced(candidates)
    if not even.any():
        raise InputError("candidates must hold some record exactly half of the time, got none")
    chances = guess @ candidates[:, even]
    inside = candidates[secret, even]
    right = np.where(np.abs(chances - 0.5) <= TIE, 0.5, (chances > 0.5) == inside)
    return float(right.mean())


def balanced(candidates: BoolArray) -> BoolArray:
    """Returns which records exactly half of the candidates hold, shape `(N,)`."""
    even: BoolArray = 2 * candidates.sum(axis=0) == candidates.shape[0]
    return even


def index_success(guess: FloatArray, secret: int) -> float:
    """Returns the chance that the likeliest candidate (a random one of several) is the secret."""
    best = guess >= guess.max() - TIE / guess.size
    return float(best[secret]) / float(best.sum())


@dataclass(frozen=True, kw_only=True)
class SubsetRelease:
    """One released bit of a mechanism whose secret is a candidate subset, and everything that led to it.

    Everything but `value` and `bit` is a function of earlier releases and of public data.

    Attributes:
        step: Index from 0.
        direction: Which of the step's K directions, from 0.
        differences: Per-record scalars of the universe, as clipped, shape `(N,)`.
        signs: Sign of each candidate subset's mean, -1 or 1, shape `(M,)`, int8.
        noise: Standard deviation of what was added to the secret's sign; 0 for nothing (unanimity), infinite
            for a fair coin in the sign's place.
        budget_nats: What the ledger charged.
        value: The secret's sign with its noise; the bit itself where nothing was added, NaN for a coin.
        bit: What was released, -1 or 1.
    """

    step: int
    direction: int
    differences: FloatArray
    signs: npt.NDArray[np.int8]
    noise: float
    budget_nats: float
    value: float
    bit: int


@dataclass(frozen=True, kw_only=True)
class SubsetReading:
    """What an adversary sees of one training on a secret candidate subset, over its D = T K releases.

    Attributes:
        signs: Of each candidate in each release, shape `(D, M)`, int8.
        noise: Noise of each release, shape `(D,)`; 0 unanimous, infinite a coin.
        bits: What was released, -1 or 1, shape `(D,)`.
        values: The secret's sign with its noise, shape `(D,)`; NaN for a coin. More than was released.
        holds_target: Which candidates hold the target record, shape `(M,)`.
    """

    signs: npt.NDArray[np.int8]
    noise: FloatArray
    bits: IntArray
    values: FloatArray
    holds_target: BoolArray


@dataclass(frozen=True, kw_only=True)
class SubsetObservations:
    """What the adversary of a candidate-subset game sees, without the secrets: one reading a training."""

    trials: tuple[SubsetReading, ...]


class SubsetMechanism(Mechanism):
    """A mechanism that trains on one of M public candidate subsets, and keeps secret on which.

    The plan's records are the universe. `public_seed`: seed of subsets and directions; None to draw one for
    each training.
    """

    public_seed: int | None

    def with_public_seed(self, seed: int) -> Self:
        """Returns the mechanism with everything public fixed."""
        return replace(self, public_seed=seed)  # type: ignore[type-var]

    @property
    @abstractmethod
    def conditions_on_bits(self) -> bool:
        """Whether its ledger conditions on the released bits alone, not on the values behind them."""

    @property
    @abstractmethod
    def agreed(self) -> str:
        """Whose sign is released without noise on agreement: the `"secret"`'s, or the `"majority"`'s."""

    @property
    @abstractmethod
    def reads_dev(self) -> bool:
        """Whether it chooses among its checkpoints by the plan's dev records."""

    @abstractmethod
    def candidate_subsets(self, plan: Plan) -> BoolArray:
        """Which records each candidate holds, shape `(M, N)`; public, and the same for every secret."""

    @abstractmethod
    def train_on(
        self,
        plan: Plan,
        *,
        secret: int | None = None,
        watch: Callable[[SubsetRelease], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Subject:
        """Train with this index as the secret, in [0, M); None to draw it as `train` does.

        `watch` is called with each release; watching changes no number.
        """


class SubsetAttack(Attack[SubsetObservations]):
    """An attack that scores each training by its beliefs about the candidate subsets.

    Attributes:
        view: `"values"`: the adversary sees the values whose signs are released; `"bits"`: the bits.
        trials: Number of independent trainings.
        counted: Trainings in a setup so small that secrets and released bits can be counted; 0 for none.
    """

    game = "subset"
    view: str
    trials: int
    counted: int = 0

    @abstractmethod
    def beliefs(self, observations: SubsetObservations) -> tuple[SubsetBelief, ...]:
        """Returns the adversary's belief after each training."""


def secretive(mechanism: Mechanism) -> SubsetMechanism:
    """Returns the mechanism as one that trains on a secret candidate subset.

    Raises `InputError`: its public seed is fixed. `UnsupportedError`: it has no candidate subsets.
    """
    if not isinstance(mechanism, SubsetMechanism):
        raise UnsupportedError(
            f"mechanism {type(mechanism).__name__} trains on no secret "
            "candidate subset, so there is none to ask for"
        )
    if mechanism.public_seed is not None:
        raise InputError(
            "public_seed must be None in a candidate-subset game, whose trials draw their own subsets and "
            f"directions, got {mechanism.public_seed}"
        )
    return mechanism


MOST_DRAWS = 200
"""Draws of one trial's public randomness, at most, to have a record that half of the subsets hold."""

MOST_COUNTED = 16
"""Released bits of which all patterns are counted."""


@dataclass(frozen=True, kw_only=True)
class SubsetTrials:
    """The trials that were played.

    Attributes:
        observations: What the adversary sees of each trial.
        included: Whether the secret subset of each trial held the target, shape `(n,)`; the attack never sees
            it.
        secrets: Index of each trial's secret subset, shape `(n,)`; the attack never sees it.
        budgets: Nats that the mechanism's ledger charged for each release, shape `(n, D)`.
        subject: One more training, by the adversary.
        packed: Which records the candidates of each trial hold, as bits; see `candidates`.
        shape: M and N.
    """

    observations: SubsetObservations
    included: BoolArray
    secrets: IntArray
    budgets: FloatArray
    subject: Subject
    packed: tuple[npt.NDArray[np.uint8], ...]
    shape: tuple[int, int]

    def candidates(self, trial: int) -> BoolArray:
        """Returns which records each candidate of a trial held, shape `(M, N)`."""
        bits = np.unpackbits(self.packed[trial], count=self.shape[0] * self.shape[1])
        held: BoolArray = bits.astype(np.bool_).reshape(self.shape)
        return held


def play_subsets(
    mechanism: Mechanism, plan: Plan, *, trials: int, seed: int, progress: Callable[[int, int], None] = silent
) -> SubsetTrials:
    """Trains every trial and reads what the adversary sees of it.

    Args:
        mechanism: One that trains on a secret candidate subset.
        plan: Its records are the universe; its own seed and its held-out records are not used.
        trials: Number of trials, >= 1.
        seed: Of every trial's public randomness, secret, target and noise.

    Raises `InputError`: a number is out of range, or the mechanism's public seed is fixed: trials that share
    subsets and directions would not be independent. `UnsupportedError`: the mechanism has no candidate
    subsets, or no record is held by half of them.
    """
    if trials < 1:
        raise InputError(f"trials must be at least 1, got {trials}")
    settled = quickened(secretive(mechanism), plan)
    dev = plan.dev if settled.reads_dev else ()
    base = replace(plan, held_out=(), dev=dev, insertions=Insertions())
    draws, seeds, adversary = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    subject = settled.train(replace(base, seed=drawn_seed(adversary)))
    readings: list[SubsetReading] = []
    packed: list[npt.NDArray[np.uint8]] = []
    secrets = np.zeros(trials, dtype=np.int64)
    included = np.zeros(trials, dtype=np.bool_)
    budgets: list[list[float]] = []
    shape = (0, 0)
    for index in range(trials):
        world, held = _world(settled, base, seeds)
        shape = (int(held.shape[0]), int(held.shape[1]))
        secrets[index] = draws.integers(shape[0])
        target = int(draws.choice(np.flatnonzero(balanced(held))))
        reader = _Reader(count=shape[0])
        settled.train_on(world, secret=int(secrets[index]), watch=reader)
        readings.append(reader.reading(held[:, target]))
        included[index] = held[secrets[index], target]
        budgets.append(reader.budgets)
        packed.append(np.packbits(held))
        progress(index + 1, trials)
    return SubsetTrials(
        observations=SubsetObservations(trials=tuple(readings)),
        included=included,
        secrets=secrets,
        budgets=np.array(budgets, dtype=np.float64),
        subject=subject,
        packed=tuple(packed),
        shape=shape,
    )


@dataclass(frozen=True, kw_only=True)
class CountedWorld:
    """Many trainings with the same public randomness, for counting.

    Attributes:
        secrets: Index of each training's secret subset, shape `(n,)`.
        codes: The released bits of each, as one whole number, shape `(n,)`.
        charged: Nats that the ledger charged in each, shape `(n,)`.
    """

    secrets: IntArray
    codes: IntArray
    charged: FloatArray


def play_world(mechanism: Mechanism, plan: Plan, *, trials: int, world: int, seed: int) -> CountedWorld:
    """Trains many times on one draw of everything public, each time with another secret.

    For the joint counts of secret and released bits: few subsets and few releases, many trainings.

    Args:
        mechanism: One that trains on a secret candidate subset, and takes a `public_seed`.
        plan: Its records are the universe; its own seed is not used.
        trials: Number of trainings, >= 2.
        world: Seed of subsets, directions and initial weights.
        seed: Of secrets and noise.

    Raises `InputError`: a number is out of range, there are more than `MOST_COUNTED` releases, or the
    mechanism's public seed is already fixed. `UnsupportedError`: the mechanism has no candidate subsets.
    """
    if trials < 2:
        raise InputError(f"trials must be at least 2, got {trials}")
    settled = quickened(secretive(mechanism), plan).with_public_seed(world)
    draws, seeds = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    base = replace(plan, held_out=(), insertions=Insertions(), initial_seed=world)
    count = int(settled.candidate_subsets(base).shape[0])
    secrets, codes, charged = np.zeros(trials, np.int64), np.zeros(trials, np.int64), np.zeros(trials)
    for index in range(trials):
        secrets[index] = draws.integers(count)
        reader = _Reader(count=count)
        secret_plan = replace(base, seed=drawn_seed(seeds))
        settled.train_on(secret_plan, secret=int(secrets[index]), watch=reader)
        bits = reader.reading(np.zeros(count, dtype=np.bool_)).bits
        if bits.size > MOST_COUNTED:
            raise InputError(f"releases must be at most {MOST_COUNTED} to be counted, got {bits.size}")
        codes[index] = int(np.sum((bits > 0).astype(np.int64) << np.arange(bits.size)))
        charged[index] = sum(reader.budgets)
    return CountedWorld(secrets=secrets, codes=codes, charged=charged)


def _world(mechanism: SubsetMechanism, plan: Plan, seeds: np.random.Generator) -> tuple[Plan, BoolArray]:
    """The public part of a trial: a seeded plan, and candidates of which half hold some record."""
    for _ in range(MOST_DRAWS):
        world = replace(plan, seed=drawn_seed(seeds))
        held = np.asarray(mechanism.candidate_subsets(world), dtype=np.bool_)
        if held.ndim != 2 or held.shape[1] != len(plan.records):
            raise InputError(f"candidate_subsets must have shape (M, {len(plan.records)}), got {held.shape}")
        if balanced(held).any():
            return world, held
    raise UnsupportedError(
        f"in {MOST_DRAWS} draws of the candidate subsets no record was held by exactly half of them, so no "
        "guess about one has a prior of one half"
    )


@dataclass
class _Reader:
    """Watches one training, and keeps everything except what reveals the secret by itself."""

    count: int
    budgets: list[float] = field(default_factory=list)
    _signs: list[npt.NDArray[np.int8]] = field(default_factory=list)
    _noise: list[float] = field(default_factory=list)
    _bits: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    def __call__(self, release: SubsetRelease) -> None:
        self._signs.append(np.array(release.signs, dtype=np.int8))
        self._noise.append(float(release.noise))
        self._bits.append(int(release.bit))
        self._values.append(float(release.value))
        self.budgets.append(float(release.budget_nats))

    def reading(self, holds_target: BoolArray) -> SubsetReading:
        """Returns what was read of the whole training."""
        return SubsetReading(
            signs=np.stack(self._signs) if self._signs else np.zeros((0, self.count), dtype=np.int8),
            noise=np.array(self._noise, dtype=np.float64),
            bits=np.array(self._bits, dtype=np.int64),
            values=np.array(self._values, dtype=np.float64),
            holds_target=holds_target.copy(),
        )


CONFIDENCE = 0.95
"""Of the intervals among a game's details, by default."""


def trial_series(played: SubsetTrials, beliefs: Sequence[SubsetBelief]) -> dict[str, FloatArray]:
    """Returns one number a trial, shape `(n,)` each, from the adversary's belief after each trial.

    Returns:
        `record_success`, `log_score` and `index_success` of what the adversary guesses by (see
        `workbench.estimation.subset_trials`); `bits_success`, as `record_success`, of the posterior from the
        released bits alone; `entropy` of the exact posterior under the stated law at the end, and `charged`,
        the ledger's sum, in nats; `unanimity`, the share of releases without noise.
    """
    secrets = [int(trial) for trial in played.secrets]
    guesses = [belief.guess for belief in beliefs]
    most = math.log(played.shape[0])
    return {
        "record_success": _right(played, guesses),
        "bits_success": _right(played, [belief.from_bits for belief in beliefs]),
        "log_score": np.array([log_score(g, j) for g, j in zip(guesses, secrets, strict=True)]),
        "index_success": np.array([index_success(g, j) for g, j in zip(guesses, secrets, strict=True)]),
        "entropy": np.array([float(b.entropies[-1]) if b.entropies.size else most for b in beliefs]),
        "charged": played.budgets.sum(axis=1),
        "unanimity": np.array([float(np.mean(trial.noise == 0.0)) for trial in played.observations.trials]),
    }


def _right(played: SubsetTrials, guesses: Sequence[FloatArray]) -> FloatArray:
    """Share of right guesses about records in each trial, shape `(n,)`."""
    return np.array(
        [
            record_success(guess, played.candidates(trial), int(played.secrets[trial]))
            for trial, guess in enumerate(guesses)
        ]
    )


def step_curves(played: SubsetTrials, beliefs: Sequence[SubsetBelief]) -> dict[str, FloatArray]:
    """Returns means over trials after each release, shape `(D,)` each.

    Returns `entropy` of the exact posterior and `budget`, the ledger's sum so far, in nats; `unanimity`, the
    share of trials without noise there.
    """
    noise = np.stack([trial.noise for trial in played.observations.trials])
    return {
        "entropy": np.mean([belief.entropies for belief in beliefs], axis=0),
        "budget": np.cumsum(played.budgets, axis=1).mean(axis=0),
        "unanimity": np.mean(noise == 0.0, axis=0),
    }


def series_details(
    series: Mapping[str, FloatArray], *, candidates: int, confidence: float
) -> dict[str, float]:
    """Returns means of the series, with intervals that hold at every number of trials.

    `series`: of `trial_series`; all parts of a game, in their order. `candidates`: M. `confidence`: of each
    interval separately, two-sided.

    Returns:
        `success` (right guesses about records), `bits_success` (the same from the released bits alone),
        `information` (ln M less the exact posterior's entropy, nats) and `log_score` (nats that the guesses
        show), each with `_lower` and `_upper`; `mean_entropy`, `charged_nats`, `index_success`,
        `unanimity_rate`, `candidates`.
    """
    most = math.log(candidates)
    gained = np.clip(most - series["entropy"], 0.0, most)
    ranges = {
        "success": (series["record_success"], 0.0, 1.0),
        "bits_success": (series["bits_success"], 0.0, 1.0),
        "information": (gained, 0.0, most),
        "log_score": (series["log_score"], math.log(FLOOR), most),
    }
    details: dict[str, float] = {}
    for name, (values, low, high) in ranges.items():
        lower, upper = mean_bounds(values, confidence=confidence, low=low, high=high)
        details |= {name: float(values.mean()), f"{name}_lower": lower, f"{name}_upper": upper}
    return details | {
        "mean_entropy": float(series["entropy"].mean()),
        "charged_nats": float(series["charged"].mean()),
        "index_success": float(series["index_success"].mean()),
        "unanimity_rate": float(series["unanimity"].mean()),
        "candidates": float(candidates),
    }


def game_details(
    played: SubsetTrials, beliefs: Sequence[SubsetBelief], *, confidence: float = CONFIDENCE
) -> dict[str, float]:
    """Returns `series_details` of a whole game, for a record."""
    return series_details(trial_series(played, beliefs), candidates=played.shape[0], confidence=confidence)
