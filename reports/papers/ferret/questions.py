"""What FERRET's conclusions ask, as conditions on samples of any source: our runs, or its own tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from workbench.checks.published import QualitativeClaim
from workbench.core.errors import InputError, unknown_name
from workbench.reports.papers.ferret import conditions
from workbench.reports.papers.ferret.conditions import Condition, untestable
from workbench.reports.papers.ferret.layout import NON_DP, WORDS, Setting
from workbench.reports.shared.statistics import Sample


class Source(Protocol):
    """Where samples come from."""

    def sample(self, setting: Setting, metric: str, models: Sequence[str] | None) -> Sample | str:
        """A metric at a setting by unit, or the reason why there is none.

        Args:
            setting: Where.
            metric: Name of a metric.
            models: The paper's names of single models; None for the mean over all.
        """


def asked(claim: QualitativeClaim, source: Source, confidence: float) -> list[Condition]:
    """The conditions of a conclusion, all of which it says to hold.

    Args:
        claim: Of any test but the dither's, which has no settings.
        source: Of the samples.
        confidence: Of intervals in words.

    Raises:
        InputError: the test or a parameter is unknown or missing.
    """
    if claim.test not in _ASKERS:
        raise unknown_name(f"test of claim {claim.id!r}:", claim.test, (*_ASKERS, DITHER_TEST))
    question = _Question(claim, source, confidence)
    return _ASKERS[claim.test](question)


DITHER_TEST = "dither"


class _Question:
    """A claim's parameters, read."""

    def __init__(self, claim: QualitativeClaim, source: Source, confidence: float) -> None:
        self.claim, self.source, self.confidence = claim, source, confidence
        self.models: Sequence[str] | None = claim.parameters.get("models")

    def get(self, name: str) -> Any:
        found: Mapping[str, Any] = self.claim.parameters
        if name not in found or found[name] in ([], ""):
            raise InputError(f"claim {self.claim.id!r}: parameter {name} is missing or empty")
        return found[name]

    def between(self) -> tuple[float, float]:
        low, high = self.get("between")
        return float(low), float(high)

    def epsilons(self, *variants: str) -> list[float | None]:
        """Budgets of the settings; one None where no variant has a budget."""
        if all(variant == NON_DP for variant in variants):
            return [None]
        return [float(epsilon) for epsilon in self.get("epsilons")]

    def settings(self, first: str, second: str) -> list[tuple[Setting, Setting]]:
        """Both sides of every comparison of a pair."""
        parameters = self.claim.parameters
        found = []
        for place, epochs in enumerate(self.get("epochs")):
            others = parameters.get("second_epochs", self.get("epochs"))
            for spot, epsilon in enumerate(self.epsilons(first, second)):
                budgets = parameters.get("second_epsilons", self.epsilons(first, second))
                found.append(
                    (
                        _setting(first, epochs, epsilon),
                        _setting(
                            second, others[min(place, len(others) - 1)], budgets[min(spot, len(budgets) - 1)]
                        ),
                    )
                )
        return list(dict.fromkeys(found))

    def pair(self, sides: tuple[Setting, Setting], metric: str) -> tuple[Sample, Sample] | str:
        found = []
        for setting in sides:
            sample = self.source.sample(setting, metric, self.models)
            if isinstance(sample, str):
                return f"{setting}: {sample}"
            found.append(sample)
        return found[0], found[1]

    def words(self, metric: str, *settings: Setting) -> str:
        models = "" if self.models is None else f" of {', '.join(self.models)}"
        return f"{WORDS.get(metric, metric)}{models}, {' against '.join(map(str, settings))}"

    def compare(
        self, metric: str, make: Callable[[str, tuple[Sample, Sample]], Condition]
    ) -> list[Condition]:
        """A condition for each pair of variants in each setting."""
        found = []
        for first, second in self.get("pairs"):
            for sides in self.settings(first, second):
                where, pair = self.words(metric, *sides), self.pair(sides, metric)
                found.append(untestable(where, pair) if isinstance(pair, str) else make(where, pair))
        return found

    def along(
        self, metric: str, variants: Sequence[str], x_name: str, make: Callable[..., Condition]
    ) -> list[Condition]:
        """A condition for each variant (and number of epochs) along epsilon or the epochs."""
        found = []
        epochs = [int(count) for count in self.get("epochs")]
        for variant in variants:
            budgets = self.epsilons(variant)
            lines: list[tuple[list[Setting], list[float]]] = (
                [
                    (
                        [_setting(variant, count, one) for one in budgets],
                        [float(one or 0.0) for one in budgets],
                    )
                    for count in epochs
                ]
                if x_name == "epsilon"
                else [
                    ([_setting(variant, count, one) for count in epochs], list(map(float, epochs)))
                    for one in budgets
                ]
            )
            for settings, x in lines:
                where = f"{self.words(metric, settings[0])} to {x_name} {x[-1]:g}"
                samples = [self.source.sample(setting, metric, self.models) for setting in settings]
                lost = next(
                    (f"{s}: {one}" for s, one in zip(settings, samples, strict=True) if isinstance(one, str)),
                    "",
                )
                found.append(untestable(where, lost) if lost else make(where, samples, x))
        return found


def _setting(variant: str, epochs: int, epsilon: float | None) -> Setting:
    return Setting(
        variant=variant,
        epochs=int(epochs),
        epsilon=None if variant == NON_DP or epsilon is None else float(epsilon),
    )


def _lower(question: _Question) -> list[Condition]:
    metric = str(question.get("metric"))
    return question.compare(
        metric, lambda where, pair: conditions.lower(where, metric, pair, question.confidence)
    )


def _ratio(question: _Question) -> list[Condition]:
    metric, between = str(question.get("metric")), question.between()
    return question.compare(
        metric,
        lambda where, pair: conditions.ratio(where, pair, between, question.confidence, metric=metric),
    )


def _spread(question: _Question) -> list[Condition]:
    metric = str(question.get("metric"))
    return question.compare(
        metric, lambda where, pair: conditions.less_spread(where, metric, pair, question.confidence)
    )


def _trade_off(question: _Question) -> list[Condition]:
    first, second = (str(metric) for metric in question.get("metrics"))
    between = question.between()
    return [
        *question.compare(
            first,
            lambda where, pair: conditions.ratio(where, pair, between, question.confidence, metric=first),
        ),
        *question.compare(
            second, lambda where, pair: conditions.lower(where, second, pair, question.confidence)
        ),
    ]


def _between(question: _Question) -> list[Condition]:
    metric, ends = str(question.get("metric")), question.between()
    found = []
    for variant in question.get("variants"):
        for epochs in question.get("epochs"):
            for epsilon in question.epsilons(variant):
                setting = _setting(variant, epochs, epsilon)
                where = question.words(metric, setting)
                sample = question.source.sample(setting, metric, question.models)
                found.append(
                    untestable(where, sample)
                    if isinstance(sample, str)
                    else conditions.inside(where, sample, ends, question.confidence, metric=metric)
                )
    return found


def _ordering(question: _Question) -> list[Condition]:
    metric, order = str(question.get("metric")), list(question.get("order"))
    found = []
    for first, second in pairwise(order):
        for sides in question.settings(first, second):
            where, pair = question.words(metric, *sides), question.pair(sides, metric)
            found.append(
                untestable(where, pair)
                if isinstance(pair, str)
                else conditions.lower(where, metric, pair, question.confidence)
            )
    return found


def _trend(x_name: str) -> Callable[[_Question], list[Condition]]:
    def ask(question: _Question) -> list[Condition]:
        metric, direction = str(question.get("metric")), str(question.get("direction"))
        if direction not in ("rises", "falls"):
            raise unknown_name(f"direction of claim {question.claim.id!r}:", direction, ("rises", "falls"))
        return question.along(
            metric,
            question.get("variants"),
            x_name,
            lambda where, samples, x: conditions.trend(
                where, metric, (samples, x), direction=direction, confidence=question.confidence
            ),
        )

    return ask


def _not_monotone(question: _Question) -> list[Condition]:
    metric = str(question.get("metric"))
    return question.along(
        metric,
        question.get("variants"),
        "epsilon",
        lambda where, samples, x: conditions.not_monotone(where, metric, samples, x, question.confidence),
    )


_ASKERS: dict[str, Callable[[_Question], list[Condition]]] = {
    "lower": _lower,
    "ratio": _ratio,
    "between": _between,
    "ordering": _ordering,
    "trend over epsilon": _trend("epsilon"),
    "trend over epochs": _trend("epochs"),
    "not monotone": _not_monotone,
    "spread": _spread,
    "trade-off": _trade_off,
}
