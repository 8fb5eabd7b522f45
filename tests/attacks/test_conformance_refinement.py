"""Answers within the certified bounds are decided on finer grids, or said to be undecided."""

from __future__ import annotations

import pytest

from workbench.accounting import certified
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import Event
from workbench.attacks.accountant_checks.conformance import CheckStatus, cells, checks, run_checks, truth
from workbench.attacks.accountant_checks.conformance.shapes import RUN, Cell
from workbench.interfaces import Adjacency

CHECK = "never_below_certified_lower[subsampled_gaussian]"
RUNS = tuple(
    Cell(
        shape=RUN,
        parameters={
            "noise_multiplier": noise,
            "sampling_probability": rate,
            "steps": steps,
            "delta": delta,
        },
    )
    for noise, rate, steps, delta in ((1.0, 0.01, 100, 1e-5), (2.0, 0.1, 100, 1e-5), (0.8, 0.03, 40, 1e-7))
)
FINEST = 1e-7


class OfTruth:
    """Answers that are a factor times the truth, known to a relative width of about 1e-7."""

    name = "of_truth"

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        bounds = certified.epsilon_bounds(event, delta, adjacency=adjacency, relative_width=FINEST)
        return self.factor * (bounds.lower + bounds.upper) / 2


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs for a family, and no bounds that another test narrowed."""
    monkeypatch.setattr(truth, "_NARROWED", {})
    families = cells.families("quick")
    monkeypatch.setattr(
        "workbench.attacks.accountant_checks.conformance.families",
        lambda grid: {**families, "subsampled_gaussian": RUNS},
    )


@pytest.mark.parametrize(("shortfall", "held"), [(5e-4, False), (5e-5, True)])
def test_less_than_a_thousandth_below_the_truth_is_caught(shortfall: float, held: bool) -> None:
    """Also where the first bounds hold such answers."""
    accountant = OfTruth(1 - shortfall)
    first = [truth.truth(cell.question) for cell in RUNS]
    answers = [
        accountant.epsilon(q.event, delta=q.argument, adjacency=q.adjacency)
        for q in (cell.question for cell in RUNS)
    ]
    assert held is any(b is not None and a >= b.lower for b, a in zip(first, answers, strict=True))
    for cell, answer in zip(RUNS, answers, strict=True):
        bounds = truth.narrowed_until_decided(cell.question, answer, lambda: True)
        assert bounds is not None
        assert answer < bounds.lower
        assert bounds == truth.truth(cell.question)


@pytest.mark.parametrize("factor", [1 - 1e-7, 1.0, 1 + 1e-7])
def test_what_is_right_to_seven_digits_is_no_failure(factor: float) -> None:
    (result,) = run_checks(OfTruth(factor), only=[CHECK]).results
    assert result.status is CheckStatus.PASSED
    assert not result.under_reports
    assert 1 <= result.undecided <= len(RUNS)
    assert "undecided at a relative width of" in result.describe()
    assert max(truth._NARROWED[cell.question].relative_width for cell in RUNS) <= 2e-6


@pytest.mark.parametrize(("factor", "fails"), [(1 - 5e-4, True), (1 + 5e-4, False)])
def test_the_check_decides_what_the_first_bounds_leave_open(
    factor: float, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By finer bounds; negative control: without these, the answers pass."""
    monkeypatch.setattr(checks, "smallest_counterexample", lambda given, *_, **__: given)
    wide = Bounds(lower=1e-3, upper=100.0, rigorous=True, method="wide")
    monkeypatch.setattr(truth, "_NARROWED", {cell.question: wide for cell in RUNS})
    (result,) = run_checks(OfTruth(factor), only=[CHECK]).results
    assert (result.status is CheckStatus.FAILED) is fails
    assert bool(result.under_reports) is fails
    assert not result.undecided
    monkeypatch.setattr(truth, "WIDTHS", ())
    monkeypatch.setattr(truth, "_NARROWED", {cell.question: wide for cell in RUNS})
    (result,) = run_checks(OfTruth(factor), only=[CHECK]).results
    assert result.status is CheckStatus.PASSED
    assert result.undecided == len(RUNS)


def test_a_budget_of_looseness_is_decided_by_narrower_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers a thousandth above the budget; negative control: without finer bounds, they pass."""
    monkeypatch.setattr(checks, "families", lambda grid: {"subsampled_gaussian": RUNS})
    wide = Bounds(lower=1e-3, upper=100.0, rigorous=True, method="wide")
    for widths, status in ((truth.WIDTHS, CheckStatus.FAILED), ((), CheckStatus.PASSED)):
        monkeypatch.setattr(truth, "WIDTHS", widths)
        monkeypatch.setattr(truth, "_NARROWED", {cell.question: wide for cell in RUNS})
        (result,) = run_checks(OfTruth(1.5 * 1.001), only=["looseness"], looseness_budget=1.5).results
        assert result.status is status
        assert not result.undecided


def test_no_time_is_taken_that_is_not_there() -> None:
    question = RUNS[0].question
    first = truth.truth(question)
    assert first is not None
    claimed = (first.lower + first.upper) / 2
    assert truth.narrowed_until_decided(question, claimed, lambda: False) == first
    assert not truth._NARROWED


def test_bounds_that_do_not_narrow_are_asked_once_more_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def stubborn(event: Event, delta: float, *, adjacency: Adjacency, relative_width: float = 1e-3) -> Bounds:
        asked.append(relative_width)
        return Bounds(lower=1.0, upper=2.0, rigorous=True, method="stubborn")

    truth._certified.cache_clear()
    monkeypatch.setattr(certified, "epsilon_bounds", stubborn)
    bounds = truth.narrowed_until_decided(RUNS[0].question, 1.5, lambda: True)
    truth._certified.cache_clear()
    assert bounds is not None
    assert truth.is_undecided(bounds, 1.5)
    assert asked == [1e-3, truth.WIDTHS[0]]
