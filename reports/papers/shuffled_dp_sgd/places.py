"""Where a setting of Shuffled DPSGD's conclusions stands in a study of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.reports.papers.shuffled_dp_sgd.cells import Context
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    ACCURACY,
    BLEU,
    CLASSIFICATION,
    GENERATION,
    GHOST,
    INVARIANCE,
    LOSS,
    METEOR,
    NON_PRIVATE,
    SHUFFLED,
    VISION,
    Setting,
)
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import OURS, TASKS
from workbench.reports.papers.shuffled_dp_sgd.tables import MODES
from workbench.reports.papers.shuffled_dp_sgd.times import TIMED
from workbench.reports.shared.statistics import Sample

GROUPS_OF = {
    "table-2": (INVARIANCE,),
    "table-3": (VISION,),
    "table-4": (CLASSIFICATION,),
    "table-5": (GENERATION,),
    "table-8": TIMED,
}
"""Our groups whose runs regenerate a table."""

METHODS = {OURS: SHUFFLED, "Ghost": GHOST, "MixOpt": GHOST, "Non-private": NON_PRIVATE}
"""MixOpt is Ghost's mechanism: one comparison stands for both."""

NUMBERS = {"loss": LOSS, "accuracy": ACCURACY, "bleu": BLEU, "meteor": METEOR}
FACTORS = {METEOR: 100.0}
"""What makes points of a number whose scale ends at 1."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a printed setting stands in our study: whose runs (the first group that has any), and which."""

    groups: tuple[str, ...]
    setting: Setting

    def __str__(self) -> str:
        """In words."""
        return str(self.setting)


def place_of(printed: Mapping[str, Any]) -> Place:
    """The place of a setting as a conclusion names it.

    Args:
        printed: With `cell`, and what applies of `task`, `model`, `method`, `epsilon`.
    """
    table = str(printed["cell"]).partition(" | ")[0]
    method = str(printed["method"])
    if table == "table-2":
        return Place(
            groups=GROUPS_OF[table], setting=Setting(model=str(printed["model"]), variant=MODES[method])
        )
    return Place(
        groups=GROUPS_OF[table],
        setting=Setting(
            model=str(printed["model"]),
            dataset=TASKS[str(printed["task"])],
            variant=METHODS[method],
            epsilon=None if METHODS[method] == NON_PRIVATE else float(printed["epsilon"]),
        ),
    )


def numbers_at(context: Context, place: Place, name: str) -> Sample | str:
    """A number of all runs at a place, in points where its scale ends at 1; the reason where one is lost."""
    found = context.measured.complete(place.groups, place.setting, name)
    if isinstance(found, str) or name not in FACTORS:
        return found
    return Sample(np.array(found.values) * FACTORS[name], found.units, found.unit)


def is_awaited(context: Context, *places: Place) -> bool:
    """Whether a run at one of the places is not made yet."""
    return any(context.measured.is_awaited(place.groups, place.setting) for place in places)
