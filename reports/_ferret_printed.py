"""FERRET's own printed numbers against its conclusions: its means by sight, its five models by our tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from workbench.published import (
    PrintedNumber,
    PublishedPaper,
    PublishedTable,
    QualitativeClaim,
    printed_numbers,
)
from workbench.reports._ferret_layout import (
    ADVANTAGE,
    AUC,
    GAP,
    MODELS,
    NON_DP,
    SECONDS,
    TEST,
    TRAIN,
    WORDS,
    Setting,
)
from workbench.reports._ferret_samples import UNIT
from workbench.reports._numbers import number
from workbench.reports._published_checks import Interval
from workbench.reports.statistics import Sample

MEANS = {AUC: "table-2", TEST: "table-5", SECONDS: "table-6", ADVANTAGE: "table-10"}
"""Where the mean over models is printed."""

BY_MODEL = {
    AUC: ("table-12", "table-13"),
    TEST: ("table-12", "table-14"),
    SECONDS: ("table-12", "table-14"),
    ADVANTAGE: ("table-13",),
    TRAIN: ("table-14",),
    GAP: ("table-14",),
}
"""Where single models are printed; the second table serves where the first cannot be read."""

TENS = 5.0
"""Half a unit of Table 6's last digit: it prints whole tens of seconds."""


def printed_budget(epsilon: float | None) -> str:
    """The name of a budget's column in the printed tables: `"0.5"`, `"1.0"`, `"inf"`."""
    return "inf" if epsilon is None else str(float(epsilon))


class Printed:
    """The paper's numbers as a source of samples and of intervals."""

    def __init__(self, paper: PublishedPaper) -> None:
        """Index the cells.

        Args:
            paper: Its tables; those that are not transcribed give no numbers.
        """
        self._tables: dict[str, PublishedTable] = {table.id: table for table in paper.tables}
        self._cells = {
            (cell.table, cell.row, cell.column): cell for table in paper.tables for cell in table.cells
        }

    def _numbers(self, table: str, row: tuple[str, ...], column: str) -> tuple[PrintedNumber, ...]:
        cell = self._cells.get((table, row, column))
        return () if cell is None or math.isnan(cell.value) else printed_numbers(cell.printed)

    def of_model(self, setting: Setting, metric: str, model: str) -> PrintedNumber | None:
        """A model's number, or None where it is not printed or not readable."""
        row = (setting.variant, str(setting.epochs), model)
        for table in BY_MODEL.get(metric, ()):
            found = self._numbers(table, row, f"{metric}, {printed_budget(setting.epsilon)}")
            if found:
                return found[0]
        return None

    def of_mean(self, setting: Setting, metric: str) -> Interval | None:
        """All means over models that print like the paper's; None where there is none."""
        row = (setting.variant, str(setting.epochs))
        found = self._numbers(MEANS.get(metric, ""), row, printed_budget(setting.epsilon))
        if not found and metric == AUC:
            found = self._numbers("table-3", (setting.variant,), AUC) if setting.epochs == 5 else ()
        if not found:
            return None
        if metric == SECONDS:
            return Interval(found[0].value - TENS, found[0].value + TENS)
        return Interval.of(found[0])

    def value(self, setting: Setting, metric: str, models: Sequence[str] | None) -> Interval | None:
        """The mean over models, or a single model's number, as an interval."""
        if models is None:
            return self.of_mean(setting, metric)
        found = self.of_model(setting, metric, models[0])
        return None if found is None else Interval.of(found)

    def range_ratio(self, setting: Setting) -> Interval | None:
        """Largest over smallest test perplexity of the models, from the printed range."""
        found = self._numbers(
            "table-5", (setting.variant, str(setting.epochs)), printed_budget(setting.epsilon)
        )
        if len(found) < 3:
            return None
        low, high = Interval.of(found[1]), Interval.of(found[2])
        return Interval(high.lower / low.upper, high.upper / low.lower)

    def sample(self, setting: Setting, metric: str, models: Sequence[str] | None) -> Sample | str:
        """The paper's own models as a sample; those that cannot be read are left out."""
        names = list(MODELS.values()) if models is None else list(models)
        found = {name: self.of_model(setting, metric, name) for name in names}
        known = {name: one.value for name, one in found.items() if one is not None}
        if not known:
            return "its models are not printed, or not readable"
        return Sample(np.array(list(known.values())), tuple(known), UNIT)


def contradiction(claim: QualitativeClaim, printed: Printed) -> str:
    """Where the paper's printed means contradict its conclusion, whatever they were rounded from; else empty.

    Args:
        claim: The conclusion; its parameters were read by `_ferret_questions` before.
        printed: The paper's numbers.
    """
    check = _CHECKS.get(claim.test)
    if check is None:
        return ""
    found = check(claim, printed)
    return "; ".join(found)


def _pairs(claim: QualitativeClaim) -> list[tuple[Setting, Setting]]:
    parameters = claim.parameters
    pairs = parameters.get("pairs") or list(pairwise(parameters["order"]))
    found = []
    for first, second in pairs:
        for place, epochs in enumerate(parameters["epochs"]):
            later = parameters.get("second_epochs", parameters["epochs"])
            for spot, epsilon in enumerate(parameters.get("epsilons", [None])):
                budgets = parameters.get("second_epsilons", parameters.get("epsilons", [None]))
                found.append(
                    (
                        _setting(first, epochs, epsilon),
                        _setting(
                            second, later[min(place, len(later) - 1)], budgets[min(spot, len(budgets) - 1)]
                        ),
                    )
                )
    return list(dict.fromkeys(found))


def _setting(variant: str, epochs: int, epsilon: float | None) -> Setting:
    return Setting(
        variant=variant,
        epochs=epochs,
        epsilon=None if variant == NON_DP or epsilon is None else float(epsilon),
    )


def _shown(interval: Interval) -> str:
    return number((interval.lower + interval.upper) / 2.0)


def _lower_of(metric: str) -> Callable[[QualitativeClaim, Printed], list[str]]:
    def check(claim: QualitativeClaim, printed: Printed) -> list[str]:
        wanted = metric or str(claim.parameters["metric"])
        models = claim.parameters.get("models")
        found = []
        for first, second in _pairs(claim):
            one, other = (printed.value(side, wanted, models) for side in (first, second))
            if one is not None and other is not None and one.lower >= other.upper:
                found.append(f"{WORDS[wanted]} of {first} is {_shown(one)}, of {second} {_shown(other)}")
        return found

    return check


def _ratio(claim: QualitativeClaim, printed: Printed) -> list[str]:
    metrics = claim.parameters.get("metrics")
    metric = str(metrics[0] if metrics else claim.parameters["metric"])
    low, high = claim.parameters["between"]
    found = []
    for first, second in _pairs(claim):
        one, other = (printed.value(side, metric, claim.parameters.get("models")) for side in (first, second))
        if one is None or other is None or other.lower <= 0.0:
            continue
        quotient = Interval(one.lower / other.upper, one.upper / other.lower)
        if quotient.upper < low or quotient.lower > high:
            found.append(
                f"{WORDS[metric]} of {first} over {second} is {_shown(one)} / {_shown(other)} = "
                f"{number((one.lower + one.upper) / (other.lower + other.upper), 3)}"
            )
    return found


def _between(claim: QualitativeClaim, printed: Printed) -> list[str]:
    metric = str(claim.parameters["metric"])
    low, high = claim.parameters["between"]
    found = []
    for variant in claim.parameters["variants"]:
        for epochs in claim.parameters["epochs"]:
            for epsilon in claim.parameters.get("epsilons", [None]):
                setting = _setting(variant, epochs, epsilon)
                one = printed.value(setting, metric, claim.parameters.get("models"))
                if one is not None and (one.upper < low or one.lower > high):
                    found.append(f"{WORDS[metric]} of {setting} is {_shown(one)}")
    return found


def _trade_off(claim: QualitativeClaim, printed: Printed) -> list[str]:
    return [*_ratio(claim, printed), *_lower_of(str(claim.parameters["metrics"][1]))(claim, printed)]


def _lines(claim: QualitativeClaim, x_name: str) -> list[list[Setting]]:
    epochs = claim.parameters["epochs"]
    found = []
    for variant in claim.parameters["variants"]:
        budgets = [None] if variant == NON_DP else claim.parameters.get("epsilons", [None])
        if x_name == "epsilon":
            found += [[_setting(variant, count, one) for one in budgets] for count in epochs]
        else:
            found += [[_setting(variant, count, one) for count in epochs] for one in budgets]
    return found


def _trend(x_name: str) -> Callable[[QualitativeClaim, Printed], list[str]]:
    def check(claim: QualitativeClaim, printed: Printed) -> list[str]:
        metric, rises = str(claim.parameters["metric"]), claim.parameters["direction"] == "rises"
        found = []
        for line in _lines(claim, x_name):
            values = [printed.value(setting, metric, claim.parameters.get("models")) for setting in line]
            for place in range(len(line) - 1):
                one, other = values[place], values[place + 1]
                if one is None or other is None:
                    continue
                if (one.lower > other.upper) if rises else (one.upper < other.lower):
                    found.append(
                        f"{WORDS[metric]} goes from {_shown(one)} ({line[place]}) to {_shown(other)} "
                        f"({line[place + 1]})"
                    )
        return found

    return check


def _not_monotone(claim: QualitativeClaim, printed: Printed) -> list[str]:
    metric = str(claim.parameters["metric"])
    found = []
    for line in _lines(claim, "epsilon"):
        values = [printed.value(setting, metric, claim.parameters.get("models")) for setting in line]
        known = [value for value in values if value is not None]
        steps = list(pairwise(known))
        if len(known) < len(line) or not steps:
            continue
        rises = all(one.upper < other.lower for one, other in steps)
        if rises or all(one.lower > other.upper for one, other in steps):
            found.append(f"{WORDS[metric]} of {line[0]} and up only {'rises' if rises else 'falls'}")
    return found


def _spread(claim: QualitativeClaim, printed: Printed) -> list[str]:
    found = []
    for first, second in _pairs(claim):
        one, other = printed.range_ratio(first), printed.range_ratio(second)
        if one is not None and other is not None and one.lower >= other.upper:
            found.append(
                f"largest over smallest of the models is {_shown(one)} for {first}, {_shown(other)} for "
                f"{second}"
            )
    return found


_CHECKS: dict[str, Callable[[QualitativeClaim, Printed], list[str]]] = {
    "lower": _lower_of(""),
    "ordering": _lower_of(""),
    "ratio": _ratio,
    "between": _between,
    "trade-off": _trade_off,
    "trend over epsilon": _trend("epsilon"),
    "trend over epochs": _trend("epochs"),
    "not monotone": _not_monotone,
    "spread": _spread,
}
