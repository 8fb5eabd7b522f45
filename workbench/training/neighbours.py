"""Which neighbours the games of a mechanism decide between: those that its claim is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.core import registry
from workbench.core.errors import unknown_name
from workbench.interfaces import Adjacency

GAME_ADJACENCY = Adjacency.ADD_REMOVE
"""What a coin decides in a game of the bench, unless the mechanism says otherwise (`neighbours_of`).

A coin puts a record in or leaves it out. Under replace-one it decides which of two records is trained on: an
ordinary one, or, where the canary is a gradient that is added to a step's sum, one of gradient zero.
"""


def neighbours_of(mechanism: str, parameters: Mapping[str, Any]) -> Adjacency:
    """Which neighbours a registered mechanism's claim, and so its games, are about.

    Add-remove where it does not say. A mechanism with a parameter `adjacency` says it, by the parameter's
    value or its default.

    Raises:
        InputError: the parameter's value is no adjacency.
    """
    entry = registry.entries("mechanism").get(mechanism)
    own = getattr(entry.factory if entry else None, "adjacency", GAME_ADJACENCY)
    name = str(parameters.get("adjacency", own))
    if name not in list(Adjacency):
        raise unknown_name("adjacency", name, [str(known) for known in Adjacency])
    return Adjacency(name)
