"""Numbers as a record stores them and as a reader reads them.

>>> number(real("inf")), number(real(None)), number(0.000012345), number(2417)
('∞', 'n/a', '1.234e-5', '2417')
>>> percent(0.7310586) == f"73.1{NARROW_SPACE}%"
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from workbench.core.keys import JSON
from workbench.interfaces import FloatArray

MISSING = "n/a"
NARROW_SPACE = "\u202f"


def real(value: JSON) -> float:
    """A number from its JSON form: `None` is NaN, non-finite ones are the strings `inf`, `-inf`, `nan`."""
    return math.nan if value is None else float(value)


def reals(values: Iterable[JSON]) -> FloatArray:
    """`real` of each value, shape `(n,)`."""
    return np.array([real(value) for value in values], dtype=np.float64)


def number(value: float, digits: int = 4) -> str:
    """A number at `digits` significant digits, whole numbers grouped by thousands."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}".replace(",", NARROW_SPACE) if abs(value) >= 10_000 else str(int(value))
    elif 1e-3 <= abs(value) < 1e6:
        text = f"{value:.{digits}g}"
        text = f"{value:,.0f}".replace(",", NARROW_SPACE) if "e" in text else text
    else:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def percent(value: float, digits: int = 3) -> str:
    """A probability in percent, at `digits` significant digits."""
    return MISSING if math.isnan(value) else f"{number(100.0 * value, digits)}{NARROW_SPACE}%"
