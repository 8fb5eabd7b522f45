"""Measurements with the independent unit that each belongs to, and how two sets of them are matched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

LARGEST = 1e150
"""Sizes beyond this are refused: their squares leave float64."""

ROUNDING = 64.0 * float(np.finfo(np.float64).eps)
"""Values whose spread is below this share of their size are one value and its rounding errors."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Measurements of one quantity under one condition.

    A model that is trained once and measured at 28 noise levels gives 28 values of ONE unit. All tests and
    intervals of `workbench.reports.shared.statistics` count units; only what is named `..._as_printed` counts
    values.

    Attributes:
        values: Shape `(n,)`, finite, smaller than 1e150 in size; kept read-only.
        units: The unit of each value: its seed, its trained model.
        unit: What a unit is called in the singular: `"seed"`.
        cells: What identifies a value within its unit (its epsilon), so that two samples are matched like
            with like; empty where each unit has one value, or where the units' values need no matching.

    Raises:
        InputError: no values, a value that is not finite or too large, lengths that differ, or two values of
            one unit in the same cell.
    """

    values: FloatArray
    units: tuple[str | int, ...]
    unit: str = "seed"
    cells: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        object.__setattr__(self, "units", tuple(self.units))
        object.__setattr__(self, "cells", tuple(self.cells))
        if values.ndim != 1 or values.size == 0:
            raise InputError(f"values must be one or more numbers in a row, got shape {values.shape}")
        if len(self.units) != values.size:
            raise InputError(
                f"units must name the unit of each of {values.size} values, got {len(self.units)}"
            )
        if self.cells and len(self.cells) != values.size:
            raise InputError(
                f"cells must name the cell of each of {values.size} values, got {len(self.cells)}"
            )
        if not self.unit:
            raise InputError("unit must say what a replicate is, got ''")
        bad = np.flatnonzero(~(np.abs(values) < LARGEST))
        if bad.size:
            place = int(bad[0])
            raise InputError(
                f"values must be finite and below {LARGEST:g} in size, "
                f"got {values[place]} for {self.unit} {self.units[place]!r}"
            )
        if self.cells:
            places = list(zip(self.units, self.cells, strict=True))
            if len(set(places)) != len(places):
                twice = next(place for place in places if places.count(place) > 1)
                raise InputError(
                    f"cells must differ within a {self.unit}, got {twice[1]!r} twice for {twice[0]!r}"
                )
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    @property
    def unit_names(self) -> tuple[str | int, ...]:
        """The different units, in order of appearance."""
        return tuple(dict.fromkeys(self.units))

    @property
    def n_units(self) -> int:
        """Number of independent replicates."""
        return len(self.unit_names)

    def by_unit(self) -> Sample:
        """One value a unit: the mean of its measurements.

        Where all units have equally many values, the mean of these is the mean of all values.
        """
        return self.per_unit(lambda values: float(np.mean(values)))

    def per_unit(self, statistic: Callable[[FloatArray], float]) -> Sample:
        """One value a unit: `statistic` of its measurements, given as shape `(m,)`."""
        names = self.unit_names
        groups = self.groups()
        values = np.array([statistic(groups[name]) for name in names], dtype=np.float64)
        return Sample(values, names, self.unit)

    def groups(self) -> dict[str | int, FloatArray]:
        """Each unit's values, shape `(m,)` each, in order of appearance."""
        places: dict[str | int, list[int]] = {}
        for place, name in enumerate(self.units):
            places.setdefault(name, []).append(place)
        return {name: self.values[chosen] for name, chosen in places.items()}

    def every_measurement(self) -> Sample:
        """Each measurement as a unit of its own, which the unit's name says.

        This is pseudo-replication wherever a unit has several measurements; it serves to recompute what a
        paper printed.
        """
        names = tuple(f"{name} / {cell!r}" for name, cell in zip(self.units, self._keys(), strict=True))
        return Sample(self.values, names, "measurement")

    def _keys(self) -> tuple[Hashable, ...]:
        """The cells, or the running number within the unit where there are none."""
        if self.cells:
            return self.cells
        seen: dict[str | int, int] = {}
        keys = []
        for name in self.units:
            seen[name] = seen.get(name, 0) + 1
            keys.append(seen[name])
        return tuple(keys)

    def taken(self, places: Sequence[int]) -> Sample:
        """The measurements at these places, in that order."""
        chosen = list(places)
        return Sample(
            self.values[chosen],
            tuple(self.units[place] for place in chosen),
            self.unit,
            tuple(self.cells[place] for place in chosen) if self.cells else (),
        )


@dataclass(frozen=True)
class Matched:
    """Two samples whose measurements correspond one to one.

    Attributes:
        first, second: Of equal length, with equal units and cells place by place; None where nothing matches.
        left_out: Measurements of either side without a partner.
    """

    first: Sample | None
    second: Sample | None
    left_out: int


def matched(first: Sample, second: Sample) -> Matched:
    """Match like with like: by unit and cell, or by unit and order where neither sample has cells.

    A measurement whose partner is missing (its training failed) is left out on both sides, so that no mean
    is taken over budgets that the other side does not have.

    Raises:
        InputError: the samples have different units of replication, one alone has cells, or neither has and
            a unit has more values on one side than on the other.
    """
    if first.unit != second.unit:
        raise InputError(f"samples must share a unit of replication, got {first.unit!r} and {second.unit!r}")
    if bool(first.cells) != bool(second.cells):
        raise InputError("samples must both name their cells, or neither")
    if not first.cells:
        others = second.groups()
        for name, values in first.groups().items():
            if name in others and values.size != others[name].size:
                raise InputError(
                    f"{first.unit} {name!r} has {values.size} values on one side and {others[name].size} on "
                    f"the other: name their cells, so that they can be matched"
                )
    places = {key: place for place, key in enumerate(zip(second.units, second._keys(), strict=True))}
    pairs = [
        (place, places[key])
        for place, key in enumerate(zip(first.units, first._keys(), strict=True))
        if key in places
    ]
    left_out = first.values.size + second.values.size - 2 * len(pairs)
    if not pairs:
        return Matched(None, None, left_out)
    return Matched(
        first.taken([pair[0] for pair in pairs]), second.taken([pair[1] for pair in pairs]), left_out
    )


def usable(value: float) -> bool:
    """Whether a number may stand in a sample: finite, and its square too."""
    return abs(value) < LARGEST


def spreads(values: FloatArray, size: float | None = None) -> bool:
    """Whether values differ by more than rounding errors of numbers of this size (default: their own)."""
    scale = float(np.max(np.abs(values))) if size is None else size
    return bool(np.ptp(values) > ROUNDING * scale)
