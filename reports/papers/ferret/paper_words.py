"""What a number of FERRET's text is about, and whether the cells of the tables give it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper, printed_numbers
from workbench.reports.papers.ferret.paper_cells import BUDGETS, EPOCHS, NO_BUDGET, budgets, value
from workbench.reports.shared.published_checks import Check, Interval

Values = Callable[[PublishedPaper, Sequence[str]], list[Interval]]
"""What a statement is about, at some numbers of epochs."""

READINGS = (EPOCHS, ("1",), ("3",), ("5",))
"""Numbers of epochs that an unqualified statement may mean."""

ONE = Interval(1.0, 1.0)


@dataclass(frozen=True)
class Statement:
    """A number of the text and what it is about.

    Attributes:
        place, quantity: Its row of the table `statements`.
        values: The cells, or what is computed from them.
        epochs: The number of epochs that the text states with it; empty where it states none.
        which: Of several values, what a single number is: `"each"`, `"least"`, `"largest"` or `"mean"`. A
            range is the least and the largest.
    """

    place: str
    quantity: str
    values: Values
    epochs: str = ""
    which: str = "each"


def cells(metric: str, methods: str | Sequence[str], at: Sequence[str] = (), model: str = "") -> Values:
    """The cells of a metric: every budget of the methods, or those of `at`; of a model, else the means."""
    chosen = [methods] if isinstance(methods, str) else list(methods)

    def values(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
        shown = [
            value(paper, metric, (method, number, budget), model or None)
            for method in chosen
            for number in epochs
            for budget in (at or budgets(method))
        ]
        return [one for one in shown if one is not None]

    return values


def ratio(
    metric: str,
    pair: tuple[str | Sequence[str], str],
    at: Sequence[str] = BUDGETS,
    *,
    model: str = "",
    second_epochs: str = "",
) -> Values:
    """First over second, at the same budget; Non-DP has none."""
    firsts = [pair[0]] if isinstance(pair[0], str) else list(pair[0])

    def values(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
        found = []
        for method in firsts:
            for number in epochs:
                for budget in at:
                    one, other = (
                        value(paper, metric, _place(name, when, budget), model or None)
                        for name, when in ((method, number), (pair[1], second_epochs or number))
                    )
                    if one is not None and other is not None:
                        found.append(quotient(one, other))
        return found

    return values


def percent(values: Values, *, of: Callable[[Interval], Interval] = lambda one: one) -> Values:
    """Values as percentages, changed by `of` before."""

    def changed(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
        return [of(one).times(100.0) for one in values(paper, epochs)]

    return changed


def quotient(one: Interval, other: Interval) -> Interval:
    """Of two positive numbers."""
    return Interval(one.lower / other.upper, one.upper / other.lower)


def above(one: Interval) -> Interval:
    """A ratio less one."""
    return one - ONE


def saved(one: Interval) -> Interval:
    """One less a ratio."""
    return ONE - one


def inverse(values: Values) -> Values:
    """One over each."""
    return lambda paper, epochs: [quotient(ONE, one) for one in values(paper, epochs)]


def _place(method: str, epochs: str, budget: str) -> tuple[str, str, str]:
    return method, epochs, NO_BUDGET if method == "Non-DP" else budget


def gives(paper: PublishedPaper, statement: Statement, epochs: Sequence[str]) -> bool:
    """Whether the cells at these numbers of epochs give what the text prints, within rounding."""
    values = statement.values(paper, epochs)
    if not values:
        return False
    shown = [Interval.of(number) for number in printed_numbers(text_of(paper, statement))]
    least, largest = extent(values)
    mean = Interval(sum(one.lower for one in values), sum(one.upper for one in values)).times(1 / len(values))
    ends = {"least": (least,), "largest": (largest,), "mean": (mean,), "each": (least, largest)}
    first, *last = ends[statement.which]
    return first.meets(shown[0]) and all(one.meets(shown[-1]) for one in last)


def extent(values: Sequence[Interval]) -> tuple[Interval, Interval]:
    """The least and the largest of numbers known to intervals."""
    least = Interval(min(one.lower for one in values), min(one.upper for one in values))
    return least, Interval(max(one.lower for one in values), max(one.upper for one in values))


def text_of(paper: PublishedPaper, statement: Statement) -> str:
    """What the text prints.

    Raises:
        KeyError: the table `statements` has no such row.
    """
    cell = paper.table("statements").cell((statement.place, statement.quantity), "value")
    if cell is None:
        raise KeyError(f"no statement {statement.place}, {statement.quantity}")
    return cell.printed


def word_checks(paper: PublishedPaper, statements: Sequence[Statement]) -> list[Check]:
    """The numbers of the text: which no cells give, and which only some of the cells that they are said of.

    Args:
        paper: FERRET's printed numbers.
        statements: What to check.
    """
    wrong: list[str] = []
    partly: list[str] = []
    checked = 0
    for statement in statements:
        readings = [(statement.epochs,)] if statement.epochs else list(READINGS)
        if not statement.values(paper, readings[0]):
            continue  # Our copy lacks the cells.
        checked += 1
        fits = [epochs for epochs in readings if gives(paper, statement, epochs)]
        if not fits:
            wrong.append(_sentence(paper, statement, readings[0]))
        elif fits[0] != readings[0]:
            when = " or ".join(", ".join(epochs) for epochs in fits)
            plural = "" if when == "1" else "s"
            partly.append(f"{_sentence(paper, statement, readings[0])} (of {when} epoch{plural} only)")
    return [
        _check("numbers of the text", checked, wrong, "numbers of the text do not follow from the cells"),
        _check(
            "numbers of some epochs",
            checked,
            partly,
            "numbers are printed without a number of epochs, but hold at some only",
        ),
    ]


def _sentence(paper: PublishedPaper, statement: Statement, epochs: Sequence[str]) -> str:
    values = statement.values(paper, epochs)
    middles = sorted(0.5 * (one.lower + one.upper) for one in values)
    shown = f"{middles[0]:.3g}" if len(middles) == 1 else f"{middles[0]:.3g} to {middles[-1]:.3g}"
    return f"{statement.place}, {statement.quantity}: {text_of(paper, statement)} printed, cells give {shown}"


def _check(name: str, checked: int, failed: list[str], wrong: str) -> Check:
    return Check(
        name=name,
        checked=checked,
        failed=tuple(failed),
        finding=f"{len(failed)} of {checked} {wrong}: {'; '.join(failed)}" if failed else "",
        contradiction=bool(failed),
    )
