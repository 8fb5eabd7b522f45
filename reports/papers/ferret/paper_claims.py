"""Whether FERRET's printed cells bear out its own conclusions, each by its stated test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.ferret.paper_cells import (
    AUC,
    NO_BUDGET,
    RANGES,
    half_unit,
    named,
    stands_for,
    value,
)
from workbench.reports.shared.published_checks import SLACK, Check, Interval

Setting = tuple[str, str, str]

SHOWN = 4
"""Most contradicting places that a sentence lists."""


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    """Where the paper's own cells contradict a conclusion beyond their rounding; empty where they do not.

    A cell that our copy lacks, or that the paper does not print, contradicts nothing.

    Args:
        paper: FERRET's printed numbers.
        claim: One of its claims.

    Raises:
        InputError: the claim's test is not one of those at the head of `data/published/ferret.toml`.
    """
    found, checked = _places(paper, claim)
    if not found:
        return ""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{len(found)} of {checked} printed: {'; '.join(found[:SHOWN])}{more}"


def claim_check(paper: PublishedPaper) -> Check:
    """Which conclusions the paper's own cells contradict."""
    failed = []
    for claim in paper.claims:
        text = contradictions(paper, claim)
        if text:
            failed.append(f"{claim.place}: {claim.statement.rstrip('.')} ({text.partition(': ')[0]})")
    return Check(
        name="conclusions",
        checked=len(paper.claims),
        failed=tuple(failed),
        finding=(
            f"{len(failed)} of {len(paper.claims)} conclusions are contradicted by cells that the paper "
            f"prints (the cells stand with each conclusion): {'; '.join(failed)}"
        )
        if failed
        else "",
        contradiction=bool(failed),
    )


def _places(paper: PublishedPaper, claim: QualitativeClaim) -> tuple[list[str], int]:
    """One text a place that contradicts the claim, and how many places were compared."""
    if claim.test not in _TESTS:
        raise unknown_name(f"test of claim {claim.id!r}:", claim.test, _TESTS)
    texts = list(_TESTS[claim.test](paper, claim.parameters))
    return [text for text in texts if text], len(texts)


def _lower(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    metric = str(parameters["metric"])
    for one, other, model in _pairs(parameters):
        first, second = value(paper, metric, one, model), value(paper, metric, other, model)
        if first is None or second is None:
            continue
        wrong = first.lower > second.upper + SLACK
        yield f"{named(one, model)}: {_show(first)} against {_versus(one, other, second)}" if wrong else ""


def _ratio(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    metric = str(parameters.get("metric", AUC))
    low, high = parameters["between"]
    for one, other, model in _pairs(parameters):
        first, second = value(paper, metric, one, model), value(paper, metric, other, model)
        if first is None or second is None:
            continue
        ratio = Interval(first.lower / second.upper, first.upper / second.lower)
        middle = _middle(first) / _middle(second)
        text = f"{named(one, model)}: {middle:.3g} times {_versus(one, other, second)}"
        yield "" if ratio.meets(Interval(low, high)) else text


def _between(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    metric = str(parameters["metric"])
    allowed = Interval(*parameters["between"])
    for setting in _settings(parameters):
        shown = value(paper, metric, setting)
        if shown is not None:
            yield "" if shown.meets(allowed) else f"{named(setting)}: {_show(shown)}"


def _ordering(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    table = paper.table("table-3")
    for first, second in pairwise(parameters["order"]):
        cells = [table.cell((method,), str(parameters["metric"])) for method in (first, second)]
        one, other = (stands_for(cell, 0.0) for cell in cells if cell is not None)
        wrong = one.lower > other.upper + SLACK
        yield f"{first}: {_show(one)} against {second}'s {_show(other)}" if wrong else ""


def _trend_over_epsilon(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    for method in parameters["variants"]:
        for epochs in parameters["epochs"]:
            row = [(method, str(epochs), _column(epsilon)) for epsilon in parameters["epsilons"]]
            yield from _trend(paper, parameters, row)


def _trend_over_epochs(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    for method in parameters["variants"]:
        for epsilon in parameters.get("epsilons", [None]):
            row = [(method, str(epochs), _column(epsilon)) for epochs in parameters["epochs"]]
            yield from _trend(paper, parameters, row)


def _trend(paper: PublishedPaper, parameters: Mapping[str, Any], row: list[Setting]) -> Iterator[str]:
    rises = parameters["direction"] == "rises"
    for one, other in pairwise(row):
        first, second = (value(paper, str(parameters["metric"]), setting) for setting in (one, other))
        if first is None or second is None:
            continue
        early, late = (first, second) if rises else (second, first)
        wrong = early.lower > late.upper + SLACK
        yield f"{named(one)}: {_show(first)}, then {_show(second)}" if wrong else ""


def _not_monotone(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    for method in parameters["variants"]:
        for epochs in parameters["epochs"]:
            row = [(method, str(epochs), _column(epsilon)) for epsilon in parameters["epsilons"]]
            shown = [value(paper, str(parameters["metric"]), setting) for setting in row]
            numbers = [_middle(one) for one in shown if one is not None]
            monotone = numbers in (sorted(numbers), sorted(numbers, reverse=True))
            yield f"{named((*row[0][:2], NO_BUDGET))}: {numbers}" if monotone else ""


def _spread(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    metric = str(parameters["metric"])
    for one, other, _ in _pairs(parameters):
        first, second = _over_models(paper, metric, one), _over_models(paper, metric, other)
        text = f"{named(one)}: {_middle(first):.3g} times between models, {other[0]} {_middle(second):.3g}"
        yield text if first.lower > second.upper + SLACK else ""


def _over_models(paper: PublishedPaper, metric: str, setting: Setting) -> Interval:
    """The largest over the least printed value of the models."""
    table = paper.table(RANGES[metric])
    cell = table.cell(setting[:2], setting[2])
    if cell is None:
        raise KeyError(f"{table.id} has no cell {setting}")
    least, most = (stands_for(cell, half_unit(table), part) for part in (1, 2))
    return Interval(most.lower / least.upper, most.upper / least.lower)


def _trade_off(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    protects, works = parameters["metrics"]
    ratios = list(_ratio(paper, {**parameters, "metric": protects}))
    lower = list(_lower(paper, {**parameters, "metric": works}))
    for one, other in zip(ratios, lower, strict=True):
        yield "; ".join(text for text in (one, other) if text)


def _dither(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Figure 5 prints no numbers."""
    return iter(())


_TESTS: dict[str, Callable[[PublishedPaper, Mapping[str, Any]], Iterator[str]]] = {
    "lower": _lower,
    "ratio": _ratio,
    "between": _between,
    "ordering": _ordering,
    "trend over epsilon": _trend_over_epsilon,
    "trend over epochs": _trend_over_epochs,
    "not monotone": _not_monotone,
    "spread": _spread,
    "trade-off": _trade_off,
    "dither": _dither,
}


def _pairs(parameters: Mapping[str, Any]) -> Iterator[tuple[Setting, Setting, str | None]]:
    """Settings of the first and the second of each pair, and the model, or None for the mean."""
    for first, second in parameters["pairs"]:
        for epochs in parameters["epochs"]:
            for other in parameters.get("second_epochs", [epochs]):
                for epsilon in parameters["epsilons"]:
                    for model in parameters.get("models", [None]):
                        yield _setting(first, epochs, epsilon), _setting(second, other, epsilon), model


def _settings(parameters: Mapping[str, Any]) -> Iterator[Setting]:
    for method in parameters["variants"]:
        for epochs in parameters["epochs"]:
            for epsilon in parameters["epsilons"]:
                yield _setting(method, epochs, epsilon)


def _setting(method: str, epochs: int, epsilon: float) -> Setting:
    return method, str(epochs), NO_BUDGET if method == "Non-DP" else _column(epsilon)


def _column(epsilon: float | None) -> str:
    return NO_BUDGET if epsilon is None else f"{float(epsilon):.1f}"


def _versus(one: Setting, other: Setting, second: Interval) -> str:
    epochs = "" if one[1] == other[1] else f" at {other[1]} epoch{'' if other[1] == '1' else 's'}"
    return f"{other[0]}'s {_show(second)}{epochs}"


def _middle(interval: Interval) -> float:
    return round(0.5 * (interval.lower + interval.upper), 9)


def _show(interval: Interval) -> str:
    return f"{_middle(interval):.7g}"
