"""Groups of parameters: the parts of each record's gradient that a mechanism clips by themselves.

`Grouping` is a checked `workbench.interfaces.Groups`. What it works from are the squared norms of each
parameter's gradient, which every engine of per-record gradients finds on its way to the norm of the whole.

    >>> import torch
    >>> from workbench.training.flat import FlatLayout
    >>> places = FlatLayout.of(torch.nn.Linear(2, 3)).places
    >>> grouping = Grouping.of([["bias"], ["weight"]], places)
    >>> grouping.norms(torch.tensor([[9.0, 16.0]]), torch.float32)
    tensor([[4., 3.]])
    >>> [grouping.coordinate(0, index, places) for index in range(4)]
    [6, 7, 8, 6]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.interfaces import Groups
from workbench.training.flat import squared_norms

Places = Mapping[str, tuple[slice, torch.Size]]
"""Place and shape of each named parameter in the flat vector, as of `Signals.layout`."""


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Groups that hold each parameter of a layout once.

    Attributes:
        of_parameter: For each parameter, in the layout's order, the index of its group.
        size: Number G of groups.
    """

    of_parameter: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, groups: Groups, places: Places) -> Grouping:
        """Check that the groups are a partition of the layout's names.

        Raises:
            InputError: a group is empty, or a name is in no group, in two, or no parameter's.
        """
        found: dict[str, int] = {}
        for index, names in enumerate(groups):
            if not names:
                raise InputError(f"groups must not be empty, got no parameter in group {index}")
            for name in names:
                if name not in places:
                    raise InputError(f"groups must name trainable parameters, got {name!r}")
                if name in found:
                    raise InputError(f"groups must hold each trainable parameter once, got {name!r} twice")
                found[name] = index
        missing = next((name for name in places if name not in found), None)
        if missing is not None:
            raise InputError(f"groups must hold each trainable parameter once, got {missing!r} in none")
        return cls(of_parameter=tuple(found[name] for name in places), size=len(groups))

    def check_weights(self, weights: Tensor, n: int) -> None:
        """Refuse weights that are not one number a record and group.

        Raises:
            InputError: `weights` is not of shape `(n, G)`.
        """
        if weights.shape != (n, self.size):
            raise InputError(f"weights must have shape ({n}, {self.size}), got {tuple(weights.shape)}")

    def norms(self, squares: Tensor, dtype: torch.dtype) -> Tensor:
        """Norm of each group's part, shape `(n, G)`, of squared norms of shape `(n, P)`, by parameter.

        Summed in float64. What rounding left just below zero counts as zero; NaN stays NaN.
        """
        index = torch.tensor(self.of_parameter, device=squares.device)
        total = torch.zeros(len(squares), self.size, dtype=torch.float64, device=squares.device)
        return total.index_add_(1, index, squares.double()).clamp(min=0.0).sqrt().to(dtype)

    def coordinate(self, group: int, index: int, places: Places) -> int:
        """Place in the flat vector of a group's coordinate; `index` counts modulo the group's size.

        Args:
            group: Index of the group.
            index: Counts the group's coordinates in the order of the flat vector, >= 0.
            places: The layout that the groups are of.
        """
        own = [
            place
            for found, (place, _) in zip(self.of_parameter, places.values(), strict=True)
            if found == group and place.stop > place.start
        ]
        left = index % sum(place.stop - place.start for place in own)
        for place in own:
            if left < place.stop - place.start:
                break
            left -= place.stop - place.start
        return int(place.start + left)

    def at(self, coordinate: int, places: Places) -> int:
        """The group that a coordinate of the flat vector lies in."""
        for group, (place, _) in zip(self.of_parameter, places.values(), strict=True):
            if place.start <= coordinate < place.stop:
                return group
        raise InputError(f"coordinate must be one of the trainable parameters, got {coordinate}")


def squares_by_parameter(rows: Tensor, places: Places) -> Tensor:
    """Squared norms of each parameter's part of each row, shape `(n, P)`, float64; rows of shape `(n, d)`."""
    return torch.stack([squared_norms(rows[:, place]) for place, _ in places.values()], dim=1)
