"""Opacus's accountants, asked as its training loop asks them: one `step` a step, then `get_epsilon`.

opacus imports torch, so nothing of it is imported before a question comes.
"""

from __future__ import annotations

from typing import ClassVar

from workbench.accounting.events import Event
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.optional import library, quiet
from workbench.mechanisms.accountants.shared.questions import (
    gaussian_runs,
    require_adjacency,
    require_delta,
    require_target,
)


def epsilon(mechanism: str, event: Event, *, delta: float, adjacency: Adjacency) -> float:
    """What the accountant answers after the event's steps.

    Args:
        mechanism: Opacus's name of it: `"rdp"`, `"prv"` or `"gdp"`.
        event: Poisson-subsampled Gaussians, in the order of their steps.
        delta: In (0, 1).
        adjacency: Add-remove.

    Raises:
        InputError: delta is outside (0, 1).
        UnsupportedError: another event or adjacency, or opacus is not installed.
    """
    name = f"opacus_{mechanism}"
    require_delta(delta)
    require_adjacency(name, adjacency, Adjacency.ADD_REMOVE)
    runs = gaussian_runs(name, event)
    accountants = library("opacus.accountants", distribution="opacus")
    with quiet():
        accountant = accountants.create_accountant(mechanism=mechanism)
        for run in runs:
            for _ in range(run.steps):
                accountant.step(noise_multiplier=run.noise_multiplier, sample_rate=run.sampling_probability)
        return float(accountant.get_epsilon(delta=delta))


def noise_multiplier(
    mechanism: str,
    *,
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    adjacency: Adjacency,
) -> float:
    """What `get_noise_multiplier` finds with its default tolerance: an epsilon at most 0.01 below the target.

    Args:
        mechanism: As in `epsilon`.
        target_epsilon: > 0.
        delta: In (0, 1).
        sampling_probability: In (0, 1].
        steps: >= 1.
        adjacency: Add-remove.

    Raises:
        InputError: an argument is out of range.
        UnsupportedError: another adjacency, or opacus is not installed.
    """
    require_target(
        target_epsilon=target_epsilon, delta=delta, sampling_probability=sampling_probability, steps=steps
    )
    require_adjacency(f"opacus_{mechanism}", adjacency, Adjacency.ADD_REMOVE)
    utils = library("opacus.accountants.utils", distribution="opacus")
    with quiet():
        return float(
            utils.get_noise_multiplier(
                target_epsilon=target_epsilon,
                target_delta=delta,
                sample_rate=sampling_probability,
                steps=steps,
                accountant=mechanism,
            )
        )


class OpacusAccountant:
    """What Opacus's accountants have in common: the questions, and the noise for a budget.

    Attributes:
        name: What tables call it.
        mechanism: Opacus's own name of it.
    """

    name: ClassVar[str]
    mechanism: ClassVar[str]

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """What `get_epsilon` answers; the class says what it promises.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: another event or adjacency, or opacus is not installed.
        """
        return epsilon(self.mechanism, event, delta=delta, adjacency=adjacency)

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """What `get_noise_multiplier` finds: this accountant's epsilon is at most 0.01 below the target.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: another adjacency, or opacus is not installed.
        """
        return noise_multiplier(
            self.mechanism,
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
            adjacency=adjacency,
        )
