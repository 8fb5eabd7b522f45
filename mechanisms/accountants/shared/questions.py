"""Checks of what accountants are asked, and events as runs of Gaussian steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from workbench.accounting.events import Event, Gaussian, SubsampledGaussian
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency


class GaussianRun(NamedTuple):
    """Steps of a Poisson-subsampled Gaussian; sampling probability 1 where nothing is sampled."""

    noise_multiplier: float
    sampling_probability: float
    steps: int


def gaussian_runs(
    name: str, event: Event, *, kind: str = "Poisson-subsampled Gaussians only"
) -> list[GaussianRun]:
    """The event's parts, in order.

    `name`: of the accountant, for the message. `event`: A Gaussian, a Poisson-subsampled Gaussian, or a
    composition of these. `kind`: what it answers for, for the message. Raises `UnsupportedError`: a part is
    of another kind.
    """
    runs = []
    for part, count in event.parts():
        if isinstance(part, Gaussian):
            runs.append(GaussianRun(part.noise_multiplier, 1.0, count))
        elif isinstance(part, SubsampledGaussian):
            runs.append(GaussianRun(part.noise_multiplier, part.sampling_probability, count))
        else:
            raise UnsupportedError(f"{name} answers for {kind}, not {part.describe()}")
    return runs


def require(name: str, value: float, good: bool, wanted: str) -> None:
    """Refuse an argument that is not `good`, in the words `NAME must be WANTED, got VALUE`.

    Raises `InputError`: as said.
    """
    if not good:
        raise InputError(f"{name} must be {wanted}, got {value!r}")


def require_option(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is none of the known ones."""
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def require_adjacency(name: str, adjacency: Adjacency, *honoured: Adjacency, of: str = "") -> None:
    """Refuse an adjacency that the library does not name.

    Args:
        name: Of the accountant, for the message.
        adjacency: Of the question.
        honoured: What the library answers for.
        of: The kind of event, where the answer depends on it.

    Raises `UnsupportedError`: the adjacency is another.
    """
    if adjacency not in honoured:
        known = " and ".join(honoured)
        subject = f" of a {of}" if of else ""
        raise UnsupportedError(f"{name} answers for {known} adjacency{subject} only, not {adjacency}")


def require_positive(name: str, value: float) -> None:
    """Refuse a number that is not finite and > 0."""
    require(name, value, 0 < value < math.inf, "finite and > 0")


def require_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    require("delta", delta, 0 < delta < 1, "in (0, 1)")


def require_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is negative or not finite."""
    require("epsilon", epsilon, 0 <= epsilon < math.inf, "finite and >= 0")


def require_fpr(fpr: float) -> None:
    """Refuse a false-positive rate outside [0, 1]."""
    require("fpr", fpr, 0 <= fpr <= 1, "in [0, 1]")


def require_run(*, sampling_probability: float, steps: int) -> None:
    """Refuse a sampling probability outside (0, 1], or a run without a step."""
    require("sampling_probability", sampling_probability, 0 < sampling_probability <= 1, "in (0, 1]")
    require("steps", steps, steps >= 1, ">= 1")


class Target(NamedTuple):
    """A budget, and the DP-SGD run that is to meet it."""

    epsilon: float
    delta: float
    sampling_probability: float
    steps: int

    def require_possible(self) -> None:
        """Refuse numbers that are out of range."""
        require_positive("target_epsilon", self.epsilon)
        require_delta(self.delta)
        require_run(sampling_probability=self.sampling_probability, steps=self.steps)
