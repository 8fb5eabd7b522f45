"""Answers within the certified bounds are decided on finer grids, or said to be undecided."""

from __future__ import annotations

import pytest

from workbench.accounting import certified, deciding
from workbench.accounting.bounds import Bounds
from workbench.accounting.deciding import is_undecided, narrowed_until_decided
from workbench.accounting.events import Event
from workbench.attacks.accountant_checks.conformance import CheckStatus, cells, checks, run_checks, truth
from workbench.attacks.accountant_checks.conformance.questions import CalibrationQuestion, Question
from workbench.attacks.accountant_checks.conformance.shapes import RUN, Cell
from workbench.core.errors import InconclusiveError
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


WIDE = Bounds(lower=1e-3, upper=100.0, rigorous=True, method="wide")


def at_first(monkeypatch: pytest.MonkeyPatch, first: Bounds, finer: Bounds | None = None) -> None:
    """Put bounds in the place of the first ones, and perhaps of the finer ones."""
    real = truth._certified

    def certified_bounds(question: Question, **width: float) -> Bounds | str:
        given = finer if width else first
        return real(question, **width) if given is None else given

    monkeypatch.setattr(truth, "_certified", certified_bounds)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs for a family."""
    families = cells.families("quick")
    monkeypatch.setattr(
        "workbench.attacks.accountant_checks.conformance.families",
        lambda grid: {**families, "subsampled_gaussian": RUNS},
    )


@pytest.mark.parametrize(
    ("shortfall", "held"), [pytest.param(5e-4, False, marks=pytest.mark.slow), (5e-5, True)]
)
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
        truths = truth.Truths()
        bounds = truths.narrow(cell.question, answer, lambda: True)
        assert bounds is not None
        assert answer < bounds.lower
        assert bounds == truths.of(cell.question)
        assert truth.Truths().of(cell.question) == truth.truth(cell.question)


@pytest.mark.parametrize("factor", [1 - 1e-7, 1.0, 1 + 1e-7])
def test_what_is_right_to_seven_digits_is_no_failure(factor: float) -> None:
    (result,) = run_checks(OfTruth(factor), only=[CHECK]).results
    assert result.status is CheckStatus.PASSED
    assert not result.under_reports
    assert 1 <= result.undecided <= len(RUNS)
    assert "undecided at a relative width of" in result.describe()


@pytest.mark.parametrize(("factor", "fails"), [(1 - 5e-4, True), (1 + 5e-4, False)])
def test_the_check_decides_what_the_first_bounds_leave_open(
    factor: float, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By finer bounds; negative control: without these, the answers pass."""
    monkeypatch.setattr(checks, "smallest_counterexample", lambda given, *_, **__: given)
    at_first(monkeypatch, WIDE)
    (result,) = run_checks(OfTruth(factor), only=[CHECK]).results
    assert (result.status is CheckStatus.FAILED) is fails
    assert bool(result.under_reports) is fails
    assert not result.undecided
    monkeypatch.setattr(deciding, "WIDTHS", ())
    (result,) = run_checks(OfTruth(factor), only=[CHECK]).results
    assert result.status is CheckStatus.PASSED
    assert result.undecided == len(RUNS)


def test_a_budget_of_looseness_is_decided_by_narrower_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers a thousandth above the budget; negative control: without finer bounds, they pass."""
    monkeypatch.setattr(checks, "families", lambda grid: {"subsampled_gaussian": RUNS})
    at_first(monkeypatch, WIDE)
    for widths, status in ((deciding.WIDTHS, CheckStatus.FAILED), ((), CheckStatus.PASSED)):
        monkeypatch.setattr(deciding, "WIDTHS", widths)
        (result,) = run_checks(OfTruth(1.5 * 1.001), only=["looseness"], looseness_budget=1.5).results
        assert result.status is status
        assert not result.undecided


def test_no_time_is_taken_that_is_not_there() -> None:
    question = RUNS[0].question
    first = truth.truth(question)
    assert first is not None
    claimed, truths = (first.lower + first.upper) / 2, truth.Truths()
    assert truths.narrow(question, claimed, lambda: False) == first
    assert not truths.narrowed


def test_bounds_that_do_not_narrow_are_asked_once_more_and_left() -> None:
    asked: list[float] = []
    stubborn = Bounds(lower=1.0, upper=2.0, rigorous=True, method="stubborn")

    def ask(width: float) -> Bounds:
        asked.append(width)
        return stubborn

    bounds = narrowed_until_decided(stubborn, 1.5, ask)
    assert is_undecided(bounds, 1.5)
    assert asked == [deciding.WIDTHS[0]]


def test_bounds_that_contradict_each_other_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is held against an answer, and the check says so."""
    low = Bounds(lower=1e-6, upper=1e-5, rigorous=True, method="low")
    with pytest.raises(InconclusiveError, match="contradict each other"):
        narrowed_until_decided(WIDE, 5.0, lambda _: low)
    at_first(monkeypatch, WIDE, low)
    (result,) = run_checks(OfTruth(1 - 5e-3), only=[CHECK]).results
    assert result.status is CheckStatus.LEFT_OUT
    assert not result.under_reports
    assert result.cells.without_truth == len(RUNS)
    assert "contradict each other" in " ".join(result.notes)


class Calibrator(OfTruth):
    """The noise at which the truth is a factor times the target."""

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        return certified.calibrate_noise_multiplier(
            target_epsilon=self.factor * target_epsilon,
            target_delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
            adjacency=adjacency,
        )


@pytest.mark.parametrize(
    ("factor", "status"),
    [pytest.param(1.01, CheckStatus.FAILED, marks=pytest.mark.slow), (0.99, CheckStatus.PASSED)],
)
def test_the_target_of_a_calibration_is_decided(
    factor: float, status: CheckStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By finer bounds; negative control: without these, a noise that is too small passes."""
    target = CalibrationQuestion(target_epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=100)
    monkeypatch.setattr(checks, "calibration_cells", lambda grid, seed: (target,))
    at_first(monkeypatch, WIDE)
    only = ["calibration_inverts_accounting_and_lands_on_the_private_side"]
    (result,) = run_checks(Calibrator(factor), only=only).results
    assert result.status is status
    assert not result.undecided
    monkeypatch.setattr(deciding, "WIDTHS", ())
    (result,) = run_checks(Calibrator(factor), only=only).results
    assert not result.under_reports
    assert result.undecided == 1
