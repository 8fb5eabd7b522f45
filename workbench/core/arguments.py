"""Checks of arguments that users give: each returns a plain value or raises a one-line error.

>>> number("delta", 1e-5, above=0, below=1), whole_number("steps", 20.0, least=1)
(1e-05, 20)
>>> number("delta", True)
Traceback (most recent call last):
    ...
workbench.core.errors.ArgumentError: delta must be a number, got True
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from workbench.core.errors import ArgumentError, InputError
from workbench.core.one_line import object_line
from workbench.core.outputs import require_no_circle

Name = TypeVar("Name", bound=StrEnum)

LARGEST = 10**9
"""Whole numbers beyond this are taken for mistakes: no run would end, or no memory would do."""

MOST_TIMES = 10**6
"""As often as an attack or a training may be asked to repeat something."""


def plain_float(text: Any) -> float:
    """Returns `float(text)`, which must be of ASCII without underscores, within the range of floats.

    Raises `ValueError`, `TypeError`, `OverflowError`: it is no such number.

    >>> plain_float("1_000")
    Traceback (most recent call last):
    ValueError: underscores in '1_000'
    """
    if isinstance(text, str) and "_" in text:
        raise ValueError(f"underscores in {text!r}")
    if isinstance(text, str) and not text.isascii():
        raise ValueError(f"{text!r} is not of ASCII")
    value = float(text)
    if math.isinf(value) and isinstance(text, str) and "inf" not in text.lower():
        raise OverflowError(f"{text!r} is too large for a float")
    return value


def plain_scalar(value: Any) -> Any:
    """Returns the Python object that an array or a scalar without dimensions holds; other values as they are.

    So is a masked scalar, whose object is only what lies under the mask.
    """
    mask = getattr(value, "mask", None)
    is_masked = mask is not None and not callable(mask) and getattr(mask, "ndim", 1) == 0 and bool(mask)
    return value.item() if getattr(value, "ndim", None) == 0 and not is_masked else value


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """Returns a number as a plain `int` or `float`, checked to lie in a range.

    Scalars of other libraries (numpy, torch; also arrays and tensors without dimensions) become the float of
    their exact value. NaN passes only where no end is given.

    Args:
        name: Of the parameter, for the error.
        above, least: Lower end, excluded or included. Without one there may be no upper end either.
        below, most: Upper end, excluded or included; without one infinity passes.

    Raises `InputError`: not a number (a boolean, text, several numbers), not exactly a float, or out of
    range.
    """
    plain = plain_scalar(value)
    is_number = isinstance(plain, Real) and not isinstance(plain, bool)
    if not is_number:
        raise ArgumentError(name, f"must be a number, got {object_line(value)}")
    if type(plain) is not float and abs(plain) > sys.float_info.max:
        raise ArgumentError(name, f"must be within the range of floats, got {object_line(plain)}")
    if type(plain) not in (int, float):
        exact, plain = plain, float(plain)
        if exact != plain and not math.isnan(plain):
            raise ArgumentError(
                name, f"must be a number that a float holds exactly, got {object_line(value)}"
            )
    fits = (
        (above is None or plain > above)
        and (least is None or plain >= least)
        and (below is None or plain < below)
        and (most is None or plain <= most)
    )
    if not fits:
        raise ArgumentError(name, f"must be {_range(above, least, below, most)}, got {plain!r}")
    checked: float = plain
    return checked


def _range(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    """A range with a lower end in words: `in (0, 1]`, `finite and > 0`, `>= 0`."""
    low = f"> {above:g}" if above is not None else f">= {least:g}"
    if below == math.inf:
        return "finite" if above == -math.inf else f"finite and {low}"
    if below is None and most is None:
        return low
    start = f"({above:g}" if above is not None else f"[{least:g}"
    return f"in {start}, {below:g})" if below is not None else f"in {start}, {most:g}]"


def whole_number(
    name: str, value: Any, *, least: int, even: bool = False, most: int | None = MOST_TIMES
) -> int:
    """Returns a value as an `int`; 20.0 becomes 20, and so do scalars of other libraries.

    Raises `InputError`: not whole, below `least`, above `most` (None for no limit), or odd where `even` is
    asked.
    """
    kind = "an even whole number" if even else "a whole number"
    try:
        plain = number(name, value, above=-math.inf, below=math.inf)
    except InputError:
        raise ArgumentError(name, f"must be {kind} >= {least}, got {object_line(value)}") from None
    if plain != int(plain) or plain < least or (even and plain % 2):
        raise ArgumentError(name, f"must be {kind} >= {least}, got {plain!r}")
    if most is not None and plain > most:
        raise ArgumentError(name, f"must be at most {most}, got {plain!r}")
    return int(plain)


def one_of(kind: type[Name], name: str, value: Any) -> Name:
    """Returns the enumeration member that is given as itself or by its exact text (`"replace-one"`).

    Raises `InputError`: neither; the message lists the texts.
    """
    try:
        return kind(value if isinstance(value, str) else "")
    except ValueError:
        known = ", ".join(kind)
        raise ArgumentError(name, f"must be one of {known}, got {object_line(value)}") from None


def require_count(name: str, value: float, *, least: int, most: int = LARGEST) -> None:
    """Raises `InputError` unless the value is an `int` in [least, most]; 20.0 and True are refused."""
    if type(value) is not int or value < least:
        raise ArgumentError(name, f"must be a whole number >= {least}, got {value!r}")
    if value > most:
        raise ArgumentError(name, f"must be at most {most}, got {value!r}")


def yes_or_no(name: str, value: Any) -> bool:
    """Returns a boolean, also numpy's.

    Raises `InputError`: something else, such as a text or a number.
    """
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise ArgumentError(name, f"must be True or False, got {object_line(value)}")


def path_of(name: str, value: Any) -> Path:
    """Returns the path that a text or a path object names.

    Raises `InputError`: another kind of object, an empty text, or a path that no file can have, such as links
    that lead in a circle.
    """
    if not isinstance(value, str | Path) or value == "" or "\0" in str(value):
        raise ArgumentError(name, f"must be a path, got {object_line(value)}")
    path = Path(value)
    require_no_circle(name, path)
    return path


def names_of(name: str, value: Any) -> tuple[str, ...]:
    """Returns texts: those of a sequence, or the one that is given.

    Raises `InputError`: something else, or a text twice.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(name, f"must be a text or a list of texts, got {object_line(value)}")
    if len(set(texts)) < len(texts):
        raise ArgumentError(name, f"must not repeat, got {', '.join(texts)}")
    return tuple(str(text) for text in texts)


def parameters_of(name: str, value: Any) -> dict[str, Any]:
    """Returns parameters by name: plain numbers, booleans and texts.

    Raises `InputError`: no mapping, a name that is none, or a value of another kind.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(name, f"must be a dict of parameters by name, got {object_line(value)}")
    given: dict[str, Any] = {}
    for key, entry in value.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise ArgumentError(name, f"must have names as keys, got {object_line(key)}")
        plain = plain_scalar(entry)
        if isinstance(plain, Path):
            plain = str(plain)
        if not isinstance(plain, str | bool | int | float):
            raise ArgumentError(f"{name}[{key!r}]", f"must be a number or a text, got {object_line(entry)}")
        given[key] = plain
    return given
