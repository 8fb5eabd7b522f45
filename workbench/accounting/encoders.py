"""Encoder matrices C of correlated noise by name: banded Toeplitz, buffered linear Toeplitz, and trees.

An entry is the float that the formula gives; the bounds are about the matrix of these floats.
"""

from __future__ import annotations

from collections.abc import Iterable

from workbench.accounting.correlated import MOST_STEPS
from workbench.core.arguments import number, whole_number
from workbench.core.errors import InputError
from workbench.core.one_line import object_line

Matrix = tuple[tuple[float, ...], ...]

_LARGEST_ENTRY = 1e100


def toeplitz_encoder(*, coefficients: tuple[float, ...], steps: int) -> Matrix:
    """The lower triangular Toeplitz matrix whose first column begins with these coefficients, else 0.

    With b coefficients it is b-banded.

    Raises:
        InputError: an argument is out of range.
    """
    row = _numbers("coefficients", coefficients, least=-_LARGEST_ENTRY, most=_LARGEST_ENTRY)
    return _toeplitz(row, whole_number("steps", steps, least=1, most=MOST_STEPS))


def blt_encoder(*, output_scales: tuple[float, ...], buffer_decays: tuple[float, ...], steps: int) -> Matrix:
    """Buffered linear Toeplitz: 1 on the diagonal, and sum_j scale_j decay_j^(k - 1) on the k-th below it.

    Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024; McMahan, Xu and Zhang 2024.

    Args:
        output_scales: Of each buffer.
        buffer_decays: Of each buffer, in [0, 1].
        steps: Rows of the matrix.

    Raises:
        InputError: an argument is out of range, or there are not as many decays as scales.
    """
    scales = _numbers("output_scales", output_scales, least=-_LARGEST_ENTRY, most=_LARGEST_ENTRY)
    decays = _numbers("buffer_decays", buffer_decays, least=0.0, most=1.0)
    if len(scales) != len(decays):
        raise InputError(f"buffer_decays must be as many as output_scales ({len(scales)}), got {len(decays)}")
    count = whole_number("steps", steps, least=1, most=MOST_STEPS)
    buffers, column = list(scales), [1.0]
    for _ in range(count - 1):
        column.append(sum(buffers))
        buffers = [value * decay for value, decay in zip(buffers, decays, strict=True)]
    return _toeplitz(tuple(column), count)


def tree_encoder(*, steps: int) -> Matrix:
    """The binary tree's nodes over so many steps, in the order in which they are complete.

    A node is the sum of the 2^k steps below it, and is released with the last of them; nodes that the run
    does not complete are never released (Dwork, Naor, Pitassi and Rothblum 2010; Kairouz et al. 2021).

    Raises:
        InputError: there are no steps, or too many.
    """
    count = whole_number("steps", steps, least=1, most=MOST_STEPS)
    rows = []
    for end in range(1, count + 1):
        width = 1
        while end % width == 0:
            rows.append((0.0,) * (end - width) + (1.0,) * width + (0.0,) * (count - end))
            width *= 2
    return tuple(rows)


def _toeplitz(column: tuple[float, ...], count: int) -> Matrix:
    """The matrix of a first column, which is cut or filled up with zeros."""
    reverse = tuple(reversed((*column, *(0.0,) * count)[:count]))
    return tuple(reverse[count - 1 - row :] + (0.0,) * (count - 1 - row) for row in range(count))


def _numbers(name: str, values: Iterable[float], *, least: float, most: float) -> tuple[float, ...]:
    """A row of at least one number; bytes are none."""
    try:
        if isinstance(values, bytes | bytearray | memoryview):
            raise TypeError
        row = tuple(values)
    except TypeError:
        raise InputError(f"{name} must be a row of numbers, got {object_line(values)}") from None
    if not row:
        raise InputError(f"{name} must hold at least one number, got none")
    return tuple(float(number(name, value, least=least, most=most)) for value in row)
