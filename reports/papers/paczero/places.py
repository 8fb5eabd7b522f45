"""Where a setting of the paper's conclusions stands in a study of ours.

Our one model stands in for the smaller of the paper's two. The paper's steps are ours by their share of the
longest run of the same table, because ours are scaled; DP-AggZO's number of directions is whatever ours has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.reports.papers.paczero.layout import (
    AGGREGATION,
    BASELINES,
    CLIFF,
    CLIP,
    DECOMPOSITION,
    DRIFT,
    HEADLINE,
    MI,
    NOT_HERE,
    PLATEAU,
    QUESTION,
    SENTIMENT,
    Setting,
)
from workbench.reports.papers.paczero.samples import Measured

GROUPS_OF = {
    "table-1": (HEADLINE, BASELINES),
    "table-2": (PLATEAU,),
    "table-3": (CLIFF,),
    "table-4": (HEADLINE,),
    "table-5": (HEADLINE,),
    "table-6": (HEADLINE,),
    "table-9": (CLIP,),
    "table-11": (PLATEAU,),
    "table-12": (DECOMPOSITION,),
    "table-13": (HEADLINE,),
    "table-14": (DRIFT,),
    "table-15": (DRIFT,),
    "table-16": (DRIFT,),
    "table-18": (AGGREGATION,),
    "table-19": (AGGREGATION,),
    "statements": (BASELINES, CLIFF),
}
"""Our groups whose runs regenerate a table."""

TASKS_OF = {"sst2": SENTIMENT, "squad": QUESTION}

LONGEST = {"table-12": 2000.0, "table-14": 5000.0, "table-15": 5000.0, "table-16": 5000.0}
"""The T of the longest runs that ours are scaled from, in tables whose rows differ in T."""

SINGLE_TASK = (PLATEAU, CLIFF, DECOMPOSITION, DRIFT, AGGREGATION, CLIP)
"""Groups of sentiment alone."""

TRACK_OF_ITS_OWN = (DECOMPOSITION,)
"""Groups whose track is whatever the study has."""

OTHER_MODEL = "about OPT-6.7B, and our one model stands in for OPT-1.3B"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a printed setting stands in our study.

    Attributes:
        groups: Whose runs; the first that has any.
        setting: Of the runs.
        why: Why there is no such place; empty where there is.
    """

    groups: tuple[str, ...]
    setting: Setting
    why: str = ""

    def __str__(self) -> str:
        """In words."""
        return str(self.setting)


def place_of(measured: Measured, printed: Mapping[str, Any]) -> Place:
    """The place of a setting as a conclusion names it.

    Args:
        measured: Our outcomes.
        printed: With `task`, `method`, `track`, `cell`, and what applies of `nats`, `epsilon`, `steps`,
            `directions` and `clip`.
    """
    if printed.get("model") == "6.7B":
        return Place(groups=(), setting=Setting(), why=OTHER_MODEL)
    table = str(printed.get("cell", "")).partition(" | ")[0]
    groups = GROUPS_OF.get(table, (HEADLINE, BASELINES))
    budget = float(printed.get("nats", printed.get("epsilon", 0.0))) or None
    single = groups[0] in SINGLE_TASK
    setting = Setting(
        variant=_variant(printed, groups[0]),
        task=None if single else TASKS_OF.get(str(printed.get("task")), str(printed.get("task"))),
        track=None if groups[0] in TRACK_OF_ITS_OWN else str(printed["track"]),
        epsilon=budget,
    )
    longest = LONGEST.get(table)
    if longest is None or "steps" not in printed:
        return _checked(table, printed, Place(groups=groups, setting=setting))
    ours = sorted({one.steps or 0 for one in measured.settings(groups[0])})
    wanted = float(printed["steps"]) / longest * ours[-1] if ours else 0.0
    steps = next((one for one in ours if abs(one - wanted) <= 0.02 * wanted), None)
    if steps is None:
        return Place(groups=groups, setting=setting, why=NOT_HERE)
    return Place(groups=groups, setting=Setting(**{**vars(setting), "steps": steps}))


def _checked(table: str, printed: Mapping[str, Any], place: Place) -> Place:
    """A run of twice the steps is none of ours."""
    is_probe = table == "statements" and "steps" in printed
    return Place(groups=place.groups, setting=place.setting, why=NOT_HERE) if is_probe else place


def _variant(printed: Mapping[str, Any], group: str) -> str | None:
    """What our study calls its method; None in a group of one method."""
    if group == DRIFT:
        return None
    method = str(printed["method"])
    if group == AGGREGATION and int(printed.get("directions", 1)) > 1:
        return f"{MI}, K = {int(printed['directions'])}"
    if group == CLIP and "clip" in printed:
        return f"{MI}, c = {printed['clip']:g}"
    return method
