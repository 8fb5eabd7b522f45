"""What the adapters share: checks of the arguments, and events as runs of Gaussian steps."""

from __future__ import annotations

import math
from typing import NamedTuple

from workbench.accounting.events import Event, Gaussian, SubsampledGaussian
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency


class GaussianRun(NamedTuple):
    """Steps of a Poisson-subsampled Gaussian; sampling probability 1 where nothing is sampled."""

    noise_multiplier: float
    sampling_probability: float
    steps: int


def gaussian_runs(name: str, event: Event) -> list[GaussianRun]:
    """The event's parts, in order.

    Args:
        name: Of the accountant, for the message.
        event: A Gaussian, a Poisson-subsampled Gaussian, or a composition of these.

    Raises:
        UnsupportedError: a part is of another kind.
    """
    runs = []
    for part, count in event.parts():
        if isinstance(part, Gaussian):
            runs.append(GaussianRun(part.noise_multiplier, 1.0, count))
        elif isinstance(part, SubsampledGaussian):
            runs.append(GaussianRun(part.noise_multiplier, part.sampling_probability, count))
        else:
            raise UnsupportedError(
                f"{name} answers for Poisson-subsampled Gaussians only, not {part.describe()}"
            )
    return runs


def require_adjacency(name: str, adjacency: Adjacency, *honoured: Adjacency, of: str = "") -> None:
    """Refuse an adjacency that the library does not name.

    Args:
        name: Of the accountant, for the message.
        adjacency: Of the question.
        honoured: What the library answers for.
        of: The kind of event, where the answer depends on it.

    Raises:
        UnsupportedError: the adjacency is another.
    """
    if adjacency not in honoured:
        known = " and ".join(honoured)
        subject = f" of a {of}" if of else ""
        raise UnsupportedError(f"{name} answers for {known} adjacency{subject} only, not {adjacency}")


def require_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1).

    Raises:
        InputError: as said.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta must be in (0, 1), got {delta!r}")


def require_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is negative or not finite.

    Raises:
        InputError: as said.
    """
    if not 0 <= epsilon < math.inf:
        raise InputError(f"epsilon must be finite and >= 0, got {epsilon!r}")


def require_fpr(fpr: float) -> None:
    """Refuse a false-positive rate outside [0, 1].

    Raises:
        InputError: as said.
    """
    if not 0 <= fpr <= 1:
        raise InputError(f"fpr must be in [0, 1], got {fpr!r}")


def require_run(*, sampling_probability: float, steps: int) -> None:
    """Refuse a run that cannot be.

    Raises:
        InputError: the sampling probability is outside (0, 1], or there is no step.
    """
    if not 0 < sampling_probability <= 1:
        raise InputError(f"sampling_probability must be in (0, 1], got {sampling_probability!r}")
    if not steps >= 1:
        raise InputError(f"steps must be >= 1, got {steps!r}")


def require_target(*, target_epsilon: float, delta: float, sampling_probability: float, steps: int) -> None:
    """Refuse a budget or run that cannot be.

    Raises:
        InputError: an argument is out of range.
    """
    if not 0 < target_epsilon < math.inf:
        raise InputError(f"target_epsilon must be finite and > 0, got {target_epsilon!r}")
    require_delta(delta)
    require_run(sampling_probability=sampling_probability, steps=steps)
