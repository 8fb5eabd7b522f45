"""How much of a permutation is found as the learning rate or the noise grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.core.errors import InputError
from workbench.games.consecutive import ConsecutiveAttack
from workbench.games.consecutive.play import play_releases
from workbench.interfaces import Mechanism, Model, Plan


@dataclass(frozen=True, kw_only=True)
class RecoveryPoint:
    """How much of the permutations is found at one learning rate and one noise.

    Attributes:
        learning_rate, noise_multiplier: The point.
        recovered: Share of releases in which the whole permutation is found exactly; with `n`, a count.
        placed: Share of indices that are matched right, over all units.
        n: Number of releases.
    """

    learning_rate: float
    noise_multiplier: float
    recovered: float
    placed: float
    n: int


def recovery(
    mechanism: Mechanism,
    model: Model,
    plan: Plan,
    reader: ConsecutiveAttack,
    *,
    learning_rates: Sequence[float],
    noise_multipliers: Sequence[float],
    releases: int,
    seed: int,
) -> tuple[RecoveryPoint, ...]:
    """How the share of permutations that are found falls as the learning rate or the noise grows.

    Args:
        mechanism: With a field `noise_multiplier`.
        model: At the state that is released from.
        plan: Of the run.
        reader: The adversary.
        learning_rates, noise_multipliers: All pairs are played.
        releases: Number of releases of each pair, >= 1.
        seed: The same in each pair.

    Raises As `play_releases`.
    """
    if releases < 1:
        raise InputError(f"releases must be at least 1, got {releases}")
    points = []
    for rate in learning_rates:
        for noise in noise_multipliers:
            noisy = replace(mechanism, noise_multiplier=noise)  # type: ignore[type-var]
            own = replace(plan, learning_rate=rate)
            coins = np.arange(releases) % 2 == 0
            played = play_releases(noisy, model, own, reader, included=coins, seed=seed)
            points.append(
                RecoveryPoint(
                    learning_rate=rate,
                    noise_multiplier=noise,
                    recovered=played.recovered["all"],
                    placed=float(np.mean(list(played.placed.values()))),
                    n=releases,
                )
            )
    return tuple(points)
