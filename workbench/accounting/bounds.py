"""A quantity that is known to lie between two numbers, and how well it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.arguments import number
from workbench.core.errors import InputError
from workbench.core.one_line import object_line
from workbench.interfaces.arrays import FloatArray


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """An enclosure of a true value: lower <= truth <= upper.

    Attributes:
        lower, upper: Ends of the enclosure; `upper` may be infinite where nothing better is known.
        rigorous: True where every error (discretisation, truncation, rounding) is carried in the ends; False
            where the ends are only numerically tight.
        method: How they were computed, in words.
        assumptions: What the ends rest on beyond mathematics and the event itself, one sentence each.

    Raises:
        InputError: lower is above upper, or an end is NaN.
    """

    lower: float
    upper: float
    rigorous: bool
    method: str
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, number(name, getattr(self, name)) + 0.0)  # -0.0 is 0.0.
        if not self.lower <= self.upper:
            raise InputError(f"lower must be at most upper ({self.upper!r}), got {self.lower!r}")

    @property
    def width(self) -> float:
        """upper - lower; 0 where both are the same infinity."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def relative_width(self) -> float:
        """Width over the lower end: 0 for a point, infinite above a lower end of 0."""
        if self.width == 0:
            return 0.0
        return self.width / self.lower if self.lower > 0 else math.inf

    def __contains__(self, value: float) -> bool:
        """True where the value may be the truth."""
        return self.lower <= number("value", value) <= self.upper

    def narrowed_by(self, other: Bounds) -> Bounds:
        """The larger lower end and the smaller upper end of two enclosures of the same value.

        Raises:
            InputError: they are disjoint.
        """
        if self.lower >= other.lower and self.upper <= other.upper:
            return self
        return Bounds(
            lower=max(self.lower, other.lower),
            upper=min(self.upper, other.upper),
            rigorous=self.rigorous and other.rigorous,
            method="; ".join(dict.fromkeys((self.method, other.method))),
            assumptions=tuple(dict.fromkeys((*self.assumptions, *other.assumptions))),
        )

    def describe(self) -> str:
        """`[1.2345, 1.2346] (rigorous; tilted FFT)`."""
        kind = "rigorous" if self.rigorous else "numerically tight"
        return f"[{self.lower:.6g}, {self.upper:.6g}] ({kind}; {self.method})"


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundsArray:
    """Enclosures of several true values, in the shape in which they were asked for.

    Attributes:
        lower, upper: Ends of the enclosures, float64, of one shape.
        rigorous: Whether all of them are (`Bounds`).
        method: How they were computed, in words; all methods that were used.
        assumptions: What some of them rest on.

    Raises:
        InputError: the ends are no numbers, of two shapes, or a lower one is above its upper one.
    """

    lower: FloatArray
    upper: FloatArray
    rigorous: bool
    method: str
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            given = np.asarray(getattr(self, name))
            if given.dtype.kind not in "iuf" or np.isnan(given).any():
                raise InputError(
                    f"{name} must be an array of numbers, got {object_line(getattr(self, name))}"
                )
            object.__setattr__(self, name, given.astype(np.float64))
        if self.lower.shape != self.upper.shape or not (self.lower <= self.upper).all():
            raise InputError("lower must be at most upper in each place, and of its shape")

    @classmethod
    def of(cls, each: Sequence[Bounds], shape: tuple[int, ...]) -> BoundsArray:
        """Bounds in C order as arrays of this shape."""
        return cls(
            lower=np.array([bounds.lower for bounds in each]).reshape(shape),
            upper=np.array([bounds.upper for bounds in each]).reshape(shape),
            rigorous=all(bounds.rigorous for bounds in each),
            method="; ".join(dict.fromkeys(bounds.method for bounds in each)),
            assumptions=tuple(dict.fromkeys(words for bounds in each for words in bounds.assumptions)),
        )
