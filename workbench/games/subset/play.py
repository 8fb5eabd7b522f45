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

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.subset_trials import balanced
from workbench.execution.tasks import silent
from workbench.games.base import drawn_seed, quickened
from workbench.games.subset import (
    SubsetMechanism,
    SubsetObservations,
    SubsetReading,
    SubsetRelease,
    secretive,
)
from workbench.interfaces import BoolArray, FloatArray, Insertions, IntArray, Mechanism, Plan, Subject

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
        """Reads one release."""
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
