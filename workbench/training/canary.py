"""A gradient canary among real records' signals, so that an audit drives the privatise step that trains.

`SignalsWithCanary` answers the two questions of `workbench.interfaces.Signals` and nothing else. A mechanism
that clips its records by their norms clips the canary in the same stroke; one that forgets to clip lets the
canary through with its full magnitude. The wrapper also keeps what the auditor must know to read the release:
the share that the known records contribute to the canary's coordinate. `SignalsWithCanaryRecord` is for a
canary that is a record of the plan, and takes part where that record does. `WatchedReleases` is one training
run's privatise step with the plan's canary in its samples.

    >>> import torch
    >>> from workbench.interfaces import GradientCanary
    >>> from workbench.training._flat import FlatLayout
    >>> from workbench.training.per_record import EmptySignals
    >>> nobody = EmptySignals(FlatLayout.of(torch.nn.Linear(2, 1)))
    >>> signals = SignalsWithCanary(nobody, GradientCanary(coordinate=4, magnitude=100.0), included=True)
    >>> signals.norms()
    tensor([100.])
    >>> signals.weighted_sum(torch.tensor([0.01]))
    tensor([0., 1., 0.])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.errors import InputError
from workbench.interfaces import GradientCanary, Plan, Signals
from workbench.training.fine_tuning import Seeds


class FixedSignals:
    """Signals asked the same question many times: keeps the last answer, for trials at one state."""

    def __init__(self, signals: Signals) -> None:
        """Remember the answers of `signals`, which must not change."""
        self._signals = signals
        self._norms = signals.norms()
        self._weights: Tensor | None = None
        self._sum: Tensor | None = None

    @property
    def n(self) -> int:
        """Number of records."""
        return self._signals.n

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._signals.dimension

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._signals.layout

    def norms(self) -> Tensor:
        """Euclidean norm of each record's gradient, shape `(n,)`."""
        return self._norms.clone()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`."""
        if self._sum is None or self._weights is None or not torch.equal(weights, self._weights):
            self._weights, self._sum = weights.clone(), self._signals.weighted_sum(weights)
        return self._sum.clone()


def check_canary(canary: GradientCanary) -> None:
    """Refuse a canary that no step can hold.

    Raises:
        InputError: its magnitude is not finite and positive, its coordinate or spread is negative, or it
            is spread or opposed without being a record of the plan.
    """
    if not 0 < canary.magnitude < math.inf:
        raise InputError(f"magnitude must be finite and > 0, got {canary.magnitude!r}")
    if canary.coordinate < 0:
        raise InputError(f"coordinate must be >= 0, got {canary.coordinate}")
    if canary.spread < 0:
        raise InputError(f"spread must be >= 0, got {canary.spread}")
    if canary.record is None and canary.spread != 1:
        raise InputError(f"spread must be 1 for a canary without a record, got {canary.spread}")
    if canary.record is None and canary.opposed:
        raise InputError("opposed must be False for a canary without a record, got True")


def canary_places(canary: GradientCanary, dimension: int) -> list[slice]:
    """The coordinates of a canary that is not opposed, as one or two slices of the flat vector.

    Raises:
        InputError: the canary is spread over more than d coordinates.
    """
    if canary.spread > dimension:
        raise InputError(f"spread must be at most the {dimension} trainable parameters, got {canary.spread}")
    start = canary.coordinate % dimension
    stop = start + (canary.spread or dimension)
    places = [slice(start, min(stop, dimension))]
    return places if stop <= dimension else [*places, slice(0, stop - dimension)]


def canary_entry(canary: GradientCanary, dimension: int) -> float:
    """The value of a canary's gradient in each of its coordinates."""
    return canary.magnitude / math.sqrt(canary.spread or dimension)


class SignalsWithCanary:
    """A sample's signals with a gradient canary as its last record, in none or all of the trials.

    Attributes:
        coordinate: The canary's place in the flat vector: its own coordinate modulo d, because an attack
            draws it before it knows d.
        known_share: What the known records contributed to that coordinate, over all weighted sums that were
            asked for: the auditor subtracts it from the release.
    """

    def __init__(
        self,
        background: Signals,
        canary: GradientCanary,
        included: bool,
        trials: int | None = None,
    ) -> None:
        """Append the canary.

        Args:
            background: The known records' signals.
            canary: The canary.
            included: Whether the sample holds the canary; where not, it is the background's own.
            trials: Number of trials played at once; None for a single one without a trial axis.

        Raises:
            InputError: the canary's magnitude is not finite and positive, or its coordinate is negative.
        """
        check_canary(canary)
        self._background = background
        self._magnitude = canary.magnitude
        self._included = included
        self._trials = trials
        self.coordinate = canary.coordinate % background.dimension
        self.known_share = 0.0

    @property
    def n(self) -> int:
        """Number of records, the canary included."""
        return self._background.n + int(self._included)

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._background.dimension

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._background.layout

    def norms(self) -> Tensor:
        """Norm of each record's gradient, shape `(n,)`; the canary's, last, is its raw magnitude."""
        norms = self._background.norms()
        if not self._included:
            return norms
        return torch.cat([norms, norms.new_full((1,), self._magnitude)])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`; weights of shape `(n,)`.

        Returns:
            Shape `(d,)`, or `(trials, d)`: one row seen `trials` times, which cannot be written to.

        Raises:
            InputError: `weights` is not of shape `(n,)`.
        """
        if weights.shape != (self.n,):
            raise InputError(f"weights must have shape ({self.n},), got {tuple(weights.shape)}")
        total = self._background.weighted_sum(weights[: self._background.n])
        self.known_share += float(total[self.coordinate])
        if self._included:
            total[self.coordinate] += float(weights[-1]) * self._magnitude
        return total if self._trials is None else total.expand(self._trials, -1)


class SignalsWithCanaryRecord:
    """A sample's signals in which one more record, the last, has a canary's gradient."""

    def __init__(self, background: Signals, canary: GradientCanary, others: Tensor | None = None) -> None:
        """Append the canary.

        Args:
            background: The signals of the sample's other records.
            canary: The canary; its coordinates count modulo d.
            others: For an opposed canary: the sum of the gradients of all other records, shape `(d,)`.

        Raises:
            InputError: as `check_canary`; the canary is spread over more than d coordinates, or is opposed
                to a sum that is not given.
        """
        check_canary(canary)
        if canary.opposed and others is None:
            raise InputError("others must be given for an opposed canary, got None")
        self._background = background
        self._canary = canary
        self._opposed = None if others is None or not canary.opposed else others * -canary.magnitude
        self._places = [] if canary.opposed else canary_places(canary, background.dimension)

    @property
    def n(self) -> int:
        """Number of records, the canary included."""
        return self._background.n + 1

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._background.dimension

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._background.layout

    def norms(self) -> Tensor:
        """Norm of each record's gradient, shape `(n,)`; the canary's, last, is its raw magnitude.

        An opposed canary's is the magnitude times the norm of what it opposes.
        """
        norms = self._background.norms()
        if self._opposed is None:
            own = norms.new_full((1,), self._canary.magnitude)
        else:
            own = self._opposed.norm().to(norms.dtype).reshape(1)
        return torch.cat([norms, own])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`.

        Raises:
            InputError: `weights` is not of shape `(n,)`.
        """
        if weights.shape != (self.n,):
            raise InputError(f"weights must have shape ({self.n},), got {tuple(weights.shape)}")
        total = self._background.weighted_sum(weights[:-1])
        if self._opposed is not None:
            return total + weights[-1] * self._opposed
        share = float(weights[-1]) * canary_entry(self._canary, self.dimension)
        for place in self._places:
            total[place] += share
        return total


class WatchedReleases:
    """The releases of one training run: its privatise step, and the plan's gradient canary where it has one.

    Attributes:
        record: Name of the record that stands for the canary; None where no record does.
    """

    def __init__(
        self, privatise: Callable[[Signals, torch.Generator], Tensor], plan: Plan, noise: torch.Generator
    ) -> None:
        """Begin a run.

        Args:
            privatise: The mechanism's privatise step.
            plan: Holds the canary; its seed also tosses the auditor's coins.
            noise: Source of the mechanism's noise.
        """
        self._privatise, self._noise = privatise, noise
        self._canary = plan.insertions.gradient_canary
        self._coins = np.random.default_rng(Seeds.of(plan).canary_coins)
        self._observations: list[float] = []
        self._included: list[bool] = []
        self.record = None if self._canary is None else self._canary.record

    def release(self, signals: Signals, *, with_record: bool, others: Callable[[], Tensor]) -> Tensor:
        """One step's release, with a canary that is no record by the toss of a coin.

        Args:
            signals: Of the sample without the record that stands for the canary.
            with_record: Whether the sample held that record; the canary then takes part.
            others: The sum of the vectors of all of the plan's records but that one, shape `(d,)`; asked for
                an opposed canary only.
        """
        canary = self._canary
        if canary is not None and with_record:
            opposed = others() if canary.opposed else None
            return self._privatise(SignalsWithCanaryRecord(signals, canary, opposed), self._noise)
        if canary is None or canary.record is not None:
            return self._privatise(signals, self._noise)
        included = bool(self._coins.random() < 0.5)
        watched = SignalsWithCanary(signals, canary, included)
        released = self._privatise(watched, self._noise)
        self._observations.append(float(released[watched.coordinate]) - watched.known_share)
        self._included.append(included)
        return released

    def released(self) -> Mapping[str, Any]:
        """Fields of the `Transcript`: the canary's released values, and the auditor's coins."""
        return {
            "canary_observations": np.array(self._observations, dtype=np.float64),
            "canary_included": np.array(self._included, dtype=np.bool_),
        }
