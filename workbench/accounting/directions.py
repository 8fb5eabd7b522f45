"""One order of the neighbours alone: what removing a record does, or what adding one does.

With P the outputs with the record and Q those without, an event is (epsilon, delta)-DP in the direction
`remove` where P(E) <= exp(epsilon) Q(E) + delta for every set E of outputs, and in the direction `add` where
the same holds with P and Q exchanged. Differential privacy is both, and `both` is what is asked by default.
A test that calls a record a member has the true-positive rates of `remove`.
"""

from __future__ import annotations

from workbench.core.arguments import one_of
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Direction


def require_direction(direction: Direction | str, adjacency: Adjacency | str) -> Direction:
    """The direction, where neighbours under this adjacency have one.

    Raises:
        InputError: it is no direction, or the adjacency is none.
        UnsupportedError: neighbours differ by a replaced record, so that neither is the one with the record.
    """
    direction = one_of(Direction, "direction", direction)
    adjacency = one_of(Adjacency, "adjacency", adjacency)
    if direction is not Direction.BOTH and adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedError(
            "direction must be both under replace-one, where both neighbours have a record, "
            f"got {str(direction)!r}"
        )
    return direction
