"""Adds a gradient canary to real records' signals, so that an audit runs the privatise step that trains.

`SignalsWithCanary` implements `workbench.interfaces.Signals`. A mechanism that clips records by their norms
clips the canary too; one that forgets to clip releases the canary with its full magnitude. The wrapper also
keeps the known records' contribution to the canary's coordinates, which the auditor subtracts from the
release. `SignalsWithCanaryRecord` is for a canary that is a record of the plan, and takes part where that
record does.

    >>> import torch
    >>> from workbench.interfaces import GradientCanary
    >>> from workbench.training.flat import FlatLayout
    >>> from workbench.training.per_record import EmptySignals
    >>> empty = EmptySignals(FlatLayout.of(torch.nn.Linear(2, 1)))
    >>> signals = SignalsWithCanary(empty, GradientCanary(coordinate=4, magnitude=100.0), included=True)
    >>> signals.norms()
    tensor([100.])
    >>> signals.weighted_sum(torch.tensor([0.01]))
    tensor([0., 1., 0.])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.interfaces import GradientCanary, Groups, Signals
from workbench.training.flat import Grouping, Layout, check_weights, squares_by_parameter


class _SameParameters:
    """Signals over the same parameters as other signals, the background."""

    def __init__(self, background: Signals) -> None:
        self.background = background

    @property
    def n(self) -> int:
        """Number of records."""
        return self.background.n

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self.background.dimension

    @property
    def layout(self) -> Layout:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self.background.layout


class FixedSignals(_SameParameters):
    """Caches norms, gradients and the last sum of signals that do not change: for trials at one state."""

    def __init__(self, signals: Signals) -> None:
        super().__init__(signals)
        self._norms = signals.norms()
        self._last: tuple[Tensor, Groups | None, Tensor] | None = None
        self._gradients: Tensor | None = None
        self._group_norms: dict[tuple[tuple[str, ...], ...], Tensor] = {}

    def norms(self) -> Tensor:
        """Euclidean norm of each record's gradient, shape `(n,)`."""
        return self._norms.clone()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`."""
        return self._cached(weights, None, lambda: self.background.weighted_sum(weights))

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`."""
        if self._gradients is None:
            self._gradients = self.background.gradients()
        return self._gradients.clone()

    def group_norms(self, groups: Groups) -> Tensor:
        """Norm of each group's part of each record's gradient, shape `(n, G)`."""
        key = tuple(tuple(names) for names in groups)
        if key not in self._group_norms:
            self._group_norms[key] = self.background.group_norms(groups)
        return self._group_norms[key].clone()

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Sum over records, each group's part weighted by its own column, shape `(d,)`."""
        key = tuple(tuple(names) for names in groups)
        return self._cached(weights, key, lambda: self.background.group_sum(weights, groups))

    def _cached(self, weights: Tensor, groups: Groups | None, compute: Callable[[], Tensor]) -> Tensor:
        last = self._last
        if last is None or last[1] != groups or not torch.equal(weights, last[0]):
            last = self._last = (weights.clone(), groups, compute())
        return last[2].clone()


def check_canary(canary: GradientCanary) -> None:
    """Refuse a canary whose fields are out of range or contradict each other, with an `InputError`."""
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
    if canary.record is not None and canary.everywhere:
        raise InputError("everywhere must be False for a canary that is a record, got True")


def canary_places(canary: GradientCanary, dimension: int) -> list[slice]:
    """The coordinates of a canary that is not opposed, as one or two slices of the flat vector."""
    if canary.spread > dimension:
        raise InputError(f"spread must be at most the {dimension} trainable parameters, got {canary.spread}")
    start = canary.coordinate % dimension
    stop = start + (canary.spread or dimension)
    places = [slice(start, min(stop, dimension))]
    return places if stop <= dimension else [*places, slice(0, stop - dimension)]


def canary_entry(canary: GradientCanary, dimension: int) -> float:
    """The value of a canary's gradient in each of its coordinates."""
    return canary.magnitude / math.sqrt(canary.spread or dimension)


class SignalsWithCanary(_SameParameters):
    """A sample's signals with a gradient canary as the last record, in none or all of the trials.

    Attributes:
        background: The known records' signals.
        canary: The canary, whether it takes part or not.
        coordinates: The canary's places in the flat vector: one, or one in each group, in the groups' order,
            for a canary everywhere. They count modulo the size of the vector or group, because an auditor
            draws the number before d is known.
        known_share: The known records' contribution to each coordinate, float64, over all computed sums: the
            auditor subtracts it from the release.
    """

    def __init__(
        self,
        background: Signals,
        canary: GradientCanary,
        included: bool,
        trials: int | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Append the canary if it is `included`.

        Args:
            background: The known records' signals.
            canary: The canary.
            included: Whether the canary takes part.
            trials: Number of trials played at once; None for a single one without a trial axis.
            groups: The mechanism's clipping groups; None for one of all parameters.
        """
        check_canary(canary)
        super().__init__(background)
        self.canary = canary
        self._magnitude = canary.magnitude
        self._included = included
        self._trials = trials
        grouping = Grouping.of([list(background.layout)] if groups is None else groups, self.layout)
        self._grouping = grouping
        index = canary.coordinate
        self.coordinates = (
            tuple(grouping.coordinate(group, index, self.layout) for group in range(grouping.size))
            if canary.everywhere
            else (index % self.dimension,)
        )
        self.known_share = np.zeros(len(self.coordinates))

    @property
    def n(self) -> int:
        """Number of records, the canary included."""
        return self.background.n + int(self._included)

    def norms(self) -> Tensor:
        """Norm of each record's gradient, shape `(n,)`, the canary's last and unclipped."""
        norms = self.background.norms()
        if not self._included:
            return norms
        canary_norm = self._magnitude * math.sqrt(len(self.coordinates))
        return torch.cat([norms, norms.new_full((1,), canary_norm)])

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`, the canary's last."""
        rows = self.background.gradients()
        if not self._included:
            return rows
        canary_row = rows.new_zeros(1, self.dimension)
        canary_row[0, list(self.coordinates)] = self._magnitude
        return torch.cat([rows, canary_row])

    def group_norms(self, groups: Groups) -> Tensor:
        """Norm of each group's part of each record's gradient, shape `(n, G)`, the canary's last."""
        norms = self.background.group_norms(groups)
        if not self._included:
            return norms
        squares = [0.0] * norms.shape[1]
        for group in self._groups_of_coordinates(groups):
            squares[group] += 1.0
        canary_norms = [self._magnitude * math.sqrt(square) for square in squares]
        return torch.cat([norms, norms.new_tensor([canary_norms])])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`; weights of shape `(n,)`.

        Returns shape `(d,)`, or `(trials, d)`: one row repeated `trials` times, which cannot be written to.
        """
        check_weights(weights, self.n)
        total = self.background.weighted_sum(weights[: self.background.n])
        canary_weights = [float(weights[-1])] * len(self.coordinates) if self._included else []
        return self._with_canary(total, canary_weights)

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Sum over records, each group's part weighted by its own column; shapes as of `weighted_sum`."""
        check_weights(weights, self.n, len(groups))
        total = self.background.group_sum(weights[: self.background.n], groups)
        places = self._groups_of_coordinates(groups) if self._included else ()
        return self._with_canary(total, [float(weights[-1, group]) for group in places])

    def _groups_of_coordinates(self, groups: Groups) -> list[int]:
        grouping = Grouping.of(groups, self.layout)
        return [grouping.at(coordinate, self.layout) for coordinate in self.coordinates]

    def _with_canary(self, total: Tensor, canary_weights: Sequence[float]) -> Tensor:
        """Note the known records' share of the sum, and add the canary's weights in its coordinates."""
        for i, coordinate in enumerate(self.coordinates):
            self.known_share[i] += float(total[coordinate])
        for coordinate, weight in zip(self.coordinates, canary_weights, strict=self._included):
            total[coordinate] += weight * self._magnitude
        return total if self._trials is None else total.expand(self._trials, -1)

    def observed(self, released: Tensor, scales: Sequence[float] | None = None) -> Tensor:
        """The auditor's statistic of a release: the whitened sum over the canary's coordinates.

        Each coordinate's released value, less the known records' share, over the scale of its noise. Where G
        groups are clipped to C each and get noise of standard deviation sigma C, a canary everywhere adds G /
        sigma to a sum of standard deviation sqrt(G): its mu is sqrt(G) / sigma, the most that any statistic
        of the G coordinates has. Where clipping norms and noise are not proportional to each other, a sum
        with other weights has more, and this one is a lower bound. `released`: the output of `privatise` for
        these signals, shape `(..., d)`. `scales`: noise scale of each clipping group
        (`GradientMechanism.release_scales`); None for 1 each. Returns shape `(...)`, float64, on the CPU.
        """
        if scales is None:
            scales = [1.0] * self._grouping.size
        if len(scales) != self._grouping.size:
            raise InputError(f"scales must have length {self._grouping.size}, got {len(scales)}")
        if not all(0 < scale < math.inf for scale in scales):
            raise InputError(f"scales must be finite and > 0, got {list(scales)}")
        groups = [self._grouping.at(coordinate, self.layout) for coordinate in self.coordinates]
        canary_scales = [scales[group] for group in groups]
        values = released[..., list(self.coordinates)].cpu().double() - torch.from_numpy(self.known_share)
        return (values / torch.tensor(canary_scales, dtype=torch.float64)).sum(-1)


class SignalsWithCanaryRecord(_SameParameters):
    """A sample's signals with one more record, the last, that has a canary's gradient."""

    def __init__(self, background: Signals, canary: GradientCanary, others: Tensor | None = None) -> None:
        """Append the canary; an opposed one needs the sum of all other records' gradients, shape `(d,)`."""
        check_canary(canary)
        if canary.opposed and others is None:
            raise InputError("others must be given for an opposed canary, got None")
        super().__init__(background)
        self._canary = canary
        self._opposed = None if others is None or not canary.opposed else others * -canary.magnitude
        self._places = [] if canary.opposed else canary_places(canary, background.dimension)

    @property
    def n(self) -> int:
        """Number of records, the canary included."""
        return self.background.n + 1

    def norms(self) -> Tensor:
        """Norm of each record's gradient, shape `(n,)`, the canary's last and unclipped."""
        norms = self.background.norms()
        if self._opposed is None:
            canary_norm = norms.new_full((1,), self._canary.magnitude)
        else:
            canary_norm = torch.linalg.vector_norm(self._opposed).to(norms.dtype).reshape(1)
        return torch.cat([norms, canary_norm])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`."""
        check_weights(weights, self.n)
        total = self.background.weighted_sum(weights[:-1])
        if self._opposed is not None:
            return total + weights[-1] * self._opposed
        share = float(weights[-1]) * canary_entry(self._canary, self.dimension)
        for place in self._places:
            total[place] += share
        return total

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`, the canary's last."""
        rows = self.background.gradients()
        return torch.cat([rows, self._canary_row(rows)])

    def group_norms(self, groups: Groups) -> Tensor:
        """Norm of each group's part of each record's gradient, shape `(n, G)`, the canary's last."""
        norms = self.background.group_norms(groups)
        squares = squares_by_parameter(self._canary_row(norms), self.layout)
        return torch.cat([norms, Grouping.of(groups, self.layout).norms(squares, norms.dtype)])

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Sum over records, each group's part weighted by its own column, shape `(d,)`."""
        grouping = Grouping.of(groups, self.layout)
        check_weights(weights, self.n, grouping.size)
        total = self.background.group_sum(weights[:-1], groups)
        canary_row = self._canary_row(total)[0]
        for (place, _), group in zip(self.layout.values(), grouping.of_parameter, strict=True):
            total[place] += weights[-1, group].to(total) * canary_row[place]
        return total

    def _canary_row(self, like: Tensor) -> Tensor:
        """The canary's gradient, shape `(1, d)`, with the type and device of `like`."""
        if self._opposed is not None:
            return self._opposed.to(like)[None]
        row = like.new_zeros(1, self.dimension)
        for place in self._places:
            row[:, place] = canary_entry(self._canary, self.dimension)
        return row
