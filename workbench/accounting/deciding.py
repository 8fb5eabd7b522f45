"""Certified bounds, narrowed until they decide whether a claimed value is below the truth."""

from __future__ import annotations

from collections.abc import Callable

from workbench.accounting.bounds import Bounds
from workbench.core.arguments import number
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError

ROUNDING = 1e-9
"""Relative shortfall up to which a value is below a certified bound by rounding only."""

ROUNDING_OF_EPSILON = 1e-12
"""The same in absolute terms, for epsilons near 0."""

WIDTHS = (1e-4, 1e-5, 1e-6)
"""Relative widths to which bounds are narrowed in turn."""

_LEAST_GAIN = 0.5
"""Bounds that do not become narrower than so much of what they were are not narrowed further."""


def is_undecided(bounds: Bounds, claimed: float) -> bool:
    """Whether a claim lies within bounds, so that they do not tell if it is below the truth.

    Raises:
        InputError: the claim is no number >= 0.
    """
    claimed = number("claimed", claimed, least=0)
    margin = max(ROUNDING * bounds.upper, ROUNDING_OF_EPSILON)
    return bounds.lower <= claimed < bounds.upper - margin


def narrowed_until_decided(
    bounds: Bounds,
    claimed: float,
    ask: Callable[[float], Bounds],
    may_go_on: Callable[[], bool] = lambda: True,
) -> Bounds:
    """Bounds, narrowed until a claim is on one side of them or no finer grid helps.

    Args:
        bounds: The first ones.
        claimed: What the truth is compared with.
        ask: Bounds on the same value at a relative width.
        may_go_on: Whether there is time for narrower bounds; a finer grid takes up to a second.

    Returns:
        The narrowest bounds, which may leave the claim undecided.

    Raises:
        InputError: the claim is no number >= 0.
        InconclusiveError: two enclosures of the same value are disjoint: one of them is wrong.
    """
    for width in WIDTHS:
        if not is_undecided(bounds, claimed) or not may_go_on():
            break
        if bounds.relative_width <= width:
            continue
        try:
            finer = ask(width)
        except (UnsupportedError, InconclusiveError):
            break
        before = bounds
        try:
            bounds = bounds.narrowed_by(finer)
        except InputError as error:
            raise InconclusiveError(
                f"certified bounds contradict each other, a fault of ours: {before.describe()} and "
                f"{finer.describe()}"
            ) from error
        if bounds.width > _LEAST_GAIN * before.width:
            break
    return bounds
