"""All comparisons between two variants that a DP-Weights report makes, with the tests that are held to it.

The unit of replication is the study's (a seed): a seed's values are averaged over settings and epsilons, and
the differences of two variants within a seed are tested. "No difference" is answered by an equivalence test
as well, because a test that finds nothing has not shown that there is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.reports.papers.dp_weights.cells import Context, first_unit
from workbench.reports.papers.dp_weights.layout import COMPARISONS, GRIDS, METRIC_WORDS, METRICS
from workbench.reports.papers.dp_weights.samples import Place as Run
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import LEAST_UNITS
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import Answer, Equivalence, NotTestable, Sample, StatisticalTest

MOST_SEEDS = 100_000
"""Beyond this the number of seeds that would be needed is only said to be larger."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What is compared.

    Attributes:
        group: A key of `GRIDS`.
        first, second: Variants.
        metric: Of the outcomes.
        value: Setting of the varied field; None for the mean over all of the grid.
    """

    group: str
    first: str
    second: str
    metric: str
    value: int | None = None

    @property
    def column(self) -> str:
        """The paper's name of the pair; empty where it has none."""
        pairs = {pair: column for column, pair in COMPARISONS.items()}
        return pairs.get((self.first, self.second), "")

    def __str__(self) -> str:
        setting = "" if self.value is None else f" {self.value}"
        return f"{METRIC_WORDS[self.metric]}, {self.group}{setting}, {self.first} less {self.second}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison and its tests.

    Attributes:
        place: What is compared.
        difference: Paired t over units, adjusted for its family.
        equivalence: TOST over units.
        margin: Within what the two count as alike; None where it could not be computed.
        as_printed: The paper's own test on the first seed: every epsilon a replicate.
        lost: Runs of either side without a finite value: group, variant and place.
    """

    place: Place
    difference: Answer
    equivalence: Equivalence | NotTestable
    margin: float | None
    as_printed: Answer
    lost: frozenset[tuple[str, str, Run]]

    @property
    def significant(self) -> bool:
        """Whether a difference is shown, after correction."""
        return isinstance(self.difference, StatisticalTest) and self.difference.significant

    @property
    def equivalent(self) -> bool:
        """Whether the difference is shown to be within the margin."""
        return isinstance(self.equivalence, Equivalence) and self.equivalence.equivalent

    @property
    def direction(self) -> str:
        """`"higher"` or `"lower"`: where the first is estimated to be; empty where unknown."""
        if isinstance(self.difference, NotTestable) or self.difference.estimate == 0.0:
            return ""
        return "higher" if self.difference.estimate > 0 else "lower"

    def describe(self) -> str:
        """Effect, interval, p-values and replicates in one clause."""
        answer = self.difference
        if isinstance(answer, NotTestable):
            return f"{self.place}: not testable, {answer.why}"
        text = f"{self.place}: {number(answer.estimate)}"
        if answer.lower is not None and answer.upper is not None:
            text += f" [{number(answer.lower)}, {number(answer.upper)}]"
        text += f", p = {number(answer.p_value, 3)}"
        if answer.adjusted_p is not None:
            text += f" ({answer.correction} over {answer.family}: {number(answer.adjusted_p, 3)})"
        if isinstance(self.equivalence, Equivalence) and self.margin is not None:
            text += f", within ±{number(self.margin, 3)}: p = {number(self.equivalence.decisive_p, 3)}"
        return f"{text}, n = {answer.n_units}"


def compare(context: Context, places: Sequence[Place]) -> list[Comparison]:
    """The comparisons of one family, their p-values adjusted together by Holm's method.

    Args:
        context: Of the report.
        places: The whole family; what cannot be tested counts with p = 1.
    """
    raw = [_tests(context, place) for place in places]
    adjusted = statistics.adjust([difference for difference, _, _, _ in raw]) if raw else ()
    return [
        Comparison(
            place=place,
            difference=difference,
            equivalence=equivalence,
            margin=margin,
            as_printed=as_printed,
            lost=_lost(context, place),
        )
        for place, difference, (_, equivalence, margin, as_printed) in zip(places, adjusted, raw, strict=True)
    ]


def pooled_places() -> list[Place]:
    """The family of sections 4.3 and 4.4: both grids, all pairs, all metrics."""
    return [
        Place(group=group, first=first, second=second, metric=metric)
        for group in GRIDS
        for metric in METRICS
        for first, second in COMPARISONS.values()
    ]


def seeds_needed(comparison: Comparison, confidence: float) -> int | None:
    """Units with which a difference as large as the margin would be found, and equality shown, four times in
    five.

    The spread seen here is taken for the true one, which few units estimate roughly.

    Args:
        comparison: One that decided nothing.
        confidence: Of the tests before correction.

    Returns:
        None where no spread was seen, or where more than `MOST_SEEDS` are needed.
    """
    answer = comparison.difference
    if isinstance(answer, NotTestable) or answer.spread is None or comparison.margin is None:
        return None
    if not answer.spread > 0.0:
        return None
    effect = comparison.margin / answer.spread
    level = (1.0 - confidence) / answer.family
    low, high = LEAST_UNITS - 1, LEAST_UNITS
    while not _enough(effect, high, level, confidence):
        low, high = high, 2 * high
        if high > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _enough(effect, middle, level, confidence) else (middle, high)
    return high


def _enough(effect: float, count: int, level: float, confidence: float) -> bool:
    """Whether both tests have a power of 0.8: the t test at the margin, the equivalence test at no
    difference.

    By Bonferroni on its two sides, the equivalence test has the power 0.8 at a difference of zero where
    effect * sqrt(n) >= t(1 - alpha) + t(0.9), with n - 1 degrees of freedom; this is slightly more than is
    needed.
    """
    from scipy.stats import t

    degrees = count - 1
    reach = effect * math.sqrt(count)
    missed = 1.0 - statistics.POWER
    equal = reach >= float(t.ppf(confidence, degrees)) + float(t.ppf(1.0 - missed / 2.0, degrees))
    found = statistics.power_of_t(min(effect, 50.0), (count,), confidence=1.0 - level) >= statistics.POWER
    return equal and found


def _tests(context: Context, place: Place) -> tuple[Answer, Equivalence | NotTestable, float | None, Answer]:
    """Difference, equivalence, margin, and the paper's own test."""
    values = None if place.value is None else [place.value]
    grid = GRIDS[place.group]
    pair = context.pair(
        grid, (place.first, place.second), place.metric, values or context.measured.values(place.group)
    )
    if isinstance(pair, str):
        nothing = NotTestable(name="paired t", why=pair, n_units=0, unit=context.unit)
        return nothing, nothing, None, nothing
    margin = context.measured.margin(place.group, place.metric, values)
    difference = statistics.paired_t(*pair, confidence=context.confidence)
    if margin is None:
        why = "the margin needs the fine-tuned model"
        equivalence: Equivalence | NotTestable = NotTestable(
            name="TOST", why=why, n_units=0, unit=context.unit
        )
    else:
        equivalence = statistics.tost_paired(*pair, margin=margin, confidence=context.confidence)
    return difference, equivalence, margin, _by_the_paper(context, place, pair)


def _by_the_paper(context: Context, place: Place, pair: tuple[Sample, Sample]) -> Answer:
    """The paper's own test on the first seed."""
    sides = first_unit(pair)
    if sides is None:
        why = f"no {context.unit} has both models"
        return NotTestable(name="as printed", why=why, n_units=0, unit=context.unit)
    test = statistics.pooled_t_as_printed if place.value is None else statistics.wilcoxon_as_printed
    return test(*sides, confidence=context.confidence)


def _lost(context: Context, place: Place) -> frozenset[tuple[str, str, Run]]:
    values = None if place.value is None else [place.value]
    return frozenset[tuple[str, str, Run]]().union(
        *(
            context.measured.unusable(place.group, variant, place.metric, values)
            for variant in (place.first, place.second)
        )
    )
