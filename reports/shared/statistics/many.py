"""Correction for many comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from workbench.core.errors import unknown_name
from workbench.reports.shared.statistics.results import Equivalence, NotTestable, StatisticalTest

CORRECTIONS = {"holm": "Holm", "fdr_bh": "Benjamini-Hochberg"}
"""Their names and how they read. Holm holds the chance of any false alarm, Benjamini-Hochberg the expected
share of false alarms among the findings (for independent or positively dependent tests)."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the k-th smallest of n times n + 1 - k, never below those before it."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


R = TypeVar("R", StatisticalTest | NotTestable, Equivalence | NotTestable)


def adjust(results: Sequence[R], *, method: str = "holm") -> tuple[R, ...]:
    """The same results, each with its p-value adjusted for the whole family.

    The family is everything that was handed in: what is not testable counts with p = 1, so that leaving a
    seed out cannot make another comparison significant.

    Args:
        results: One family of questions, in any order.
        method: A key of `CORRECTIONS`.

    Raises:
        InputError: the method is unknown.
    """
    if method not in CORRECTIONS:
        raise unknown_name("correction", method, CORRECTIONS)
    if not results:
        return ()
    from scipy.stats import false_discovery_control

    raw = [1.0 if isinstance(result, NotTestable) else result.p_value for result in results]
    adjusted = holm(raw) if method == "holm" else false_discovery_control(raw, method="bh")
    return tuple(
        result
        if isinstance(result, NotTestable)
        else replace(
            result,
            adjusted_p=max(result.p_value, min(1.0, float(p_value))),
            family=len(results),
            correction=CORRECTIONS[method],
        )
        for result, p_value in zip(results, adjusted, strict=True)
    )
