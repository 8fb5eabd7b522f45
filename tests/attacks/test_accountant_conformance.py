"""The conformance suite catches every animal of the zoo, passes the good accountant, and reports truly."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workbench.accounting import certified
from workbench.accounting.bounds import Bounds
from workbench.accounting.events import Event, Gaussian, Laplace, gaussian_run
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.attacks.accountant_checks.conformance import (
    CHECKS,
    CheckStatus,
    accountant_checks,
    judging,
    run_checks,
    truth,
)
from workbench.attacks.accountant_checks.conformance.cells import RUN, cells_between, families
from workbench.attacks.accountant_checks.conformance.questions import now
from workbench.attacks.accountant_checks.conformance.truth import Truths, by_rounding_only
from workbench.checks.api.accountant import check_accountant
from workbench.checks.conformance import is_unsettled
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency

HERE = Path(__file__).parent
SECONDS = 120.0


def _load(name: str) -> ModuleType:
    """A module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


good_accountant = _load("good_accountant")
zoo = _load("zoo_of_accountants")
broken = _load("broken_accountants")

GAUSSIAN = "never_below_certified_lower[gaussian]"
COMPOSED = "never_below_certified_lower[composed_gaussian]"
SUBSAMPLED = "never_below_certified_lower[subsampled_gaussian]"
CALIBRATION = "calibration_inverts_accounting_and_lands_on_the_private_side"


class Scaled:
    """The certified bounds, moved by a factor: of the upper end, or of the lower one."""

    name = "scaled"

    def __init__(self, factor: float, *, of_lower: bool = False) -> None:
        self.factor, self.of_lower = factor, of_lower

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        bounds = certified.epsilon_bounds(event, delta, adjacency=adjacency)
        return self.factor * (bounds.lower if self.of_lower else bounds.upper)


def _gaussian_function(
    *, noise_multiplier: float, sampling_probability: float, steps: int, delta: float
) -> float:
    if sampling_probability < 1:
        raise NotImplementedError("no sampling here")
    return epsilon_of_delta(math.sqrt(steps) / noise_multiplier, delta)


def _run_line(line: str, folder: Path) -> str:
    """What a reproduction prints, with this interpreter."""
    program, *arguments = shlex.split(line)
    assert program == "python"
    found = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=120
    )
    return found.stdout.strip()


@pytest.mark.slow
def test_a_good_accountant_passes() -> None:
    report = run_checks(good_accountant.Good(), seconds=120)
    bad = [result.describe() for result in report.results if result.status is not CheckStatus.PASSED]
    refused = {result.name for result in report.results if result.status is CheckStatus.REFUSED}
    assert refused == {
        "never_below_certified_lower[gaussian_mixtures]",
        "never_below_certified_lower[shuffled_batches]",
        "never_below_certified_lower[other_samples]",
        "never_below_certified_lower[integer_noise]",
        "never_below_certified_lower[random_allocation]",
        "never_below_certified_lower[capped_batches]",
        "never_below_certified_lower[batch_means]",
        "never_below_certified_lower[correlated_noise]",
        "never_below_certified_lower[choices]",
        "never_below_certified_lower[promises]",
    }, bad
    assert len(bad) == len(refused), bad
    assert not report.fails_ci
    assert not report.under_reports
    assert report.result("looseness").looseness_median < 1.2


@pytest.mark.slow
@pytest.mark.parametrize(
    "animal", zoo.ANIMALS, ids=[f"{animal.kind.__name__}-{animal.check}" for animal in zoo.ANIMALS]
)
def test_each_animal_is_caught(animal: Any) -> None:
    """By its check, with a counterexample that is one."""
    accountant = animal.kind()
    report = run_checks(accountant, only=[animal.check], seconds=SECONDS)
    (result,) = report.results
    assert result.status is CheckStatus.FAILED, result.describe()
    assert result.counterexample
    assert result.reproduction
    assert result.fails_ci is report.fails_ci is animal.stops_ci
    for found in result.under_reports:
        assert found.claimed < found.certified_lower
        assert found.rigorous
    if animal.stops_ci and not result.hidden:
        first = result.under_reports[0]
        assert first.confirmed_by
        assert first.confirmed_value is not None
        assert first.confirmed_value >= first.claimed


HIDDEN = {
    **dict.fromkeys(
        ("rate_0.011_to_0.099", "noise_off_the_lattice", "steps_1001_to_50000", "delta_at_powers_of_ten"),
        "never_below_certified_lower[between]",
    ),
    "after_500_calls": "answers_stay_right",
    "in_a_second_process": "answers_stay_right",
    "tpr_at_1e-6": "tpr_never_below_certified_lower",
    "noise_for_replaced_records": CALIBRATION,
    "fixed_batches_as_poisson_samples": "never_below_certified_lower[other_samples]",
}
"""Broken accountants that no round value shows, each with the check that does."""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another process finds the broken accountants, and where the one that leaves a mark leaves it."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("MARK_OF_THE_FIRST", str(tmp_path / "mark"))


@pytest.mark.slow
@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("name", HIDDEN)
def test_what_hides_between_round_values_is_found(name: str) -> None:
    only = [SUBSAMPLED, HIDDEN[name]] if "calls" in name or "process" in name else [HIDDEN[name]]
    report = run_checks(broken.BROKEN[name], only=only, seconds=SECONDS)
    result = report.result(HIDDEN[name])
    assert result.status is CheckStatus.FAILED, result.describe()
    assert result.under_reports


def some_slow(names: Iterable[str]) -> list[Any]:
    """All of them, every eighth among the slow tests, the others where all are asked for."""
    marks = (pytest.mark.exhaustive, pytest.mark.slow)
    return [pytest.param(name, marks=marks[place % 8 == 0]) for place, name in enumerate(names)]


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("name", some_slow(broken.BROKEN))
def test_each_broken_accountant_is_caught_by_the_quick_grid(name: str) -> None:
    """Within a minute of processor time; a crash, or infinity alone, is no pass and no under-report."""
    start = now()
    report = run_checks(broken.BROKEN[name])
    spent = now() - start
    open_checks = [result.name for result in report.results if is_unsettled(result, strict=False)]
    assert report.fails_ci or open_checks or not report.is_informative
    assert report.fails_ci is (name not in {"raises_for_long_runs", "exits_for_long_runs", "infinity"})
    assert spent < 60


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("name", some_slow(broken.SOUND))
def test_no_sound_accountant_is_flagged(name: str) -> None:
    report = run_checks(broken.SOUND[name], seed=1)
    assert not report.under_reports, [report.describe() for report in report.under_reports]
    assert not report.fails_ci
    assert not [result.describe() for result in report.results if is_unsettled(result, strict=False)]
    assert report.is_informative


def test_random_cells_are_the_seeds_own() -> None:
    assert cells_between("quick", 3) == cells_between("quick", 3)
    assert cells_between("quick", 3) != cells_between("quick", 4)
    cells = cells_between("quick", 0)
    runs = [cell.parameters for cell in cells if cell.shape is RUN]
    assert len(runs) >= 70
    assert sum(2e3 <= run["steps"] <= 5e4 for run in runs) >= 10
    kinds = [type(next(cell.question.event.parts())[0]) for cell in cells]
    assert set(kinds[:45]) == set(kinds)
    asked = [{cell.question.adjacency for cell in part} for part in (cells, cells[: 2 * len(cells) // 3])]
    assert asked == [set(Adjacency), set(Adjacency)]
    assert len(cells_between("full", 0)) == 10 * len(cells)


class LaplaceAlone:
    """Sums of epsilons, each of which takes a while."""

    name = "laplace_alone"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        ((part, count), *others) = event.parts()
        if others or not isinstance(part, Laplace) or adjacency is Adjacency.REPLACE_ONE:
            raise UnsupportedError("Laplace noise alone")
        end = now() + 0.02
        while now() < end:
            pass
        return 1.01 * count / part.scale


@pytest.mark.slow
def test_time_that_refused_checks_leave_goes_to_those_before() -> None:
    laplace = "never_below_certified_lower[laplace]"
    names = [laplace, "delta_never_below_certified_lower", "tpr_never_below_certified_lower"]
    report = run_checks(LaplaceAlone(), only=names, seconds=10.0)
    cells = report.result(laplace).cells
    assert cells.judged > 10
    assert cells.out_of_time == 0


def test_any_beginning_of_a_grid_is_spread_over_it() -> None:
    """A slow accountant is asked about all kinds of runs."""
    first = [cell.parameters for cell in families("quick")["subsampled_gaussian"][:12]]
    for name in ("noise_multiplier", "sampling_probability", "steps", "delta"):
        assert len({values[name] for values in first}) >= 2
    assert min(values["delta"] for values in first) < 1e-9


@pytest.mark.slow
def test_counterexamples_are_small() -> None:
    """One step where one step shows the bug, and round numbers."""
    result = run_checks(
        zoo.SampledTwice(), only=["never_below_certified_lower[subsampled_gaussian]"]
    ).results[0]
    assert result.counterexample["steps"] <= 2
    assert result.counterexample["delta"] == 1e-5
    ignored = run_checks(zoo.CountIgnored(), only=["n_fold_compose_equals_n_composes"]).results[0]
    assert ignored.counterexample["count"] == 2


def test_same_seed_same_counterexample() -> None:
    name = "never_below_certified_lower[gaussian]"
    first, second = (run_checks(zoo.WrongRoot(), only=[name], seed=3).results[0] for _ in range(2))
    assert first.counterexample == second.counterexample
    assert first.under_reports == second.under_reports


@pytest.mark.slow
def test_reproductions_print_the_answer(tmp_path: Path) -> None:
    for name in ("good_accountant", "zoo_of_accountants"):
        (tmp_path / f"{name}.py").write_text((HERE / f"{name}.py").read_text())
    for accountant, check in (
        (zoo.broken_epsilon, "never_below_certified_lower[composed_gaussian]"),
        (zoo.CentralLimit(), "never_below_certified_lower[subsampled_gaussian]"),
        (zoo.CountIgnored(), "n_fold_compose_equals_n_composes"),
        (zoo.CalibratesAddRemove(), "calibration_inverts_accounting_and_lands_on_the_private_side"),
    ):
        result = run_checks(accountant, only=[check], seconds=SECONDS).results[0]
        printed = [float(word) for word in _run_line(result.reproduction, tmp_path).split()]
        expected = result.counterexample.get("answers", [result.under_reports[0].answer])
        assert printed == pytest.approx(expected, rel=1e-12), result.reproduction


def test_the_least_function_is_reproduced_by_calling_it() -> None:
    result = run_checks(zoo.broken_epsilon, only=[COMPOSED]).results[0]
    assert result.reproduction.startswith(
        'python -c "from zoo_of_accountants import broken_epsilon; '
        "print(broken_epsilon(noise_multiplier=1.0, sampling_probability=1.0, steps=2, "
    )


def test_where_the_classical_gaussian_formula_fails() -> None:
    """At delta 1e-5 it is below the truth for sigma below 0.5754, where it answers more than 8.42."""
    classical = zoo.ClassicalGaussian()
    for noise, fails in ((0.57, True), (0.58, False), (1.0, False), (0.3, True)):
        event = Gaussian(noise_multiplier=noise)
        answer = classical.epsilon(event, delta=1e-5, adjacency=Adjacency.ADD_REMOVE)
        bounds = certified.epsilon_bounds(event, 1e-5)
        assert (answer < bounds.lower) is fails
        assert (answer > bounds.upper) is not fails


def test_rounding_is_said_and_is_no_failure() -> None:
    within = run_checks(Scaled(1 - 1e-11, of_lower=True), only=[GAUSSIAN]).results[0]
    assert within.status is CheckStatus.PASSED
    assert within.rounding == within.cells.judged - _zeros() > 0
    assert "rounding" in within.describe()
    beyond = run_checks(Scaled(1 - 1e-7, of_lower=True), only=[GAUSSIAN]).results[0]
    assert beyond.status is CheckStatus.FAILED
    assert beyond.rounding == 0


def test_no_finite_answer_is_near_infinity() -> None:
    assert not by_rounding_only("epsilon", 1e300, math.inf)
    assert by_rounding_only("epsilon", math.inf, math.inf)


def _zeros() -> int:
    """Cells of the Gaussian family whose truth is 0, so that scaling it changes nothing."""
    cells = [cell.question for cell in families("quick")["gaussian"]]
    return sum(certified.epsilon_bounds(q.event, q.argument).lower == 0 for q in cells)


def test_wrong_bounds_of_ours_are_no_under_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with a yardstick that is too long, the second method keeps us from blaming others."""
    true_bounds = Truths.of

    def too_long(truths: Truths, question: Any) -> Bounds | None:
        bounds = true_bounds(truths, question)
        if bounds is None:
            return None
        return Bounds(
            lower=1.5 * bounds.lower, upper=2 * bounds.upper, rigorous=bounds.rigorous, method=bounds.method
        )

    monkeypatch.setattr(Truths, "of", too_long)
    result = run_checks(Scaled(1.01), only=[GAUSSIAN]).results[0]
    assert result.status is CheckStatus.ERROR
    assert not result.under_reports
    assert not result.fails_ci
    assert "does not confirm" in result.describe()


def test_bounds_that_are_not_rigorous_need_a_second_method(monkeypatch: pytest.MonkeyPatch) -> None:
    true_bounds = Truths.of

    def tight_only(truths: Truths, question: Any) -> Bounds | None:
        bounds = true_bounds(truths, question)
        if bounds is None:
            return None
        return Bounds(lower=bounds.lower, upper=bounds.upper, rigorous=False, method="tight")

    monkeypatch.setattr(Truths, "of", tight_only)
    confirmed = run_checks(Scaled(0.9), only=[GAUSSIAN]).results[0]
    assert confirmed.status is CheckStatus.FAILED
    assert all(report.confirmed_by for report in confirmed.under_reports)
    monkeypatch.setattr(judging, "confirmed", lambda question, claimed: None)
    unconfirmed = run_checks(Scaled(0.9), only=[GAUSSIAN]).results[0]
    assert unconfirmed.status is CheckStatus.ERROR
    assert not unconfirmed.under_reports


def test_the_search_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_checks(zoo.WrongRoot(), only=[GAUSSIAN]).results[0]
    assert result.status is CheckStatus.FAILED
    assert list(tmp_path.iterdir()) == []


def test_refusals_are_no_faults() -> None:
    report = run_checks(_gaussian_function, seconds=SECONDS)
    status = {result.name: result.status for result in report.results}
    assert status[GAUSSIAN] is CheckStatus.PASSED
    assert status["never_below_certified_lower[laplace]"] is CheckStatus.REFUSED
    assert status["adjacency_honoured_or_refused"] is CheckStatus.REFUSED
    assert status["edge_cases"] is CheckStatus.PASSED
    assert not report.fails_ci


@pytest.mark.parametrize(
    ("error", "clear"),
    [
        (UnsupportedError("no"), True),
        (NotImplementedError(), True),
        (ValueError("delta too small"), True),
        (ValueError(), False),
        (IndexError("list index out of range"), False),
        (ZeroDivisionError(), False),
        (MemoryError(), False),
    ],
)
def test_what_a_clear_error_is(error: Exception, clear: bool) -> None:
    def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        raise error

    result = run_checks(epsilon, only=[GAUSSIAN]).results[0]
    assert result.status is (CheckStatus.REFUSED if clear else CheckStatus.ERROR)


@pytest.mark.parametrize("answer", [math.nan, -1.0, None, "three", 1j])
def test_what_is_no_answer(answer: Any) -> None:
    def epsilon(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> Any:
        return answer

    result = run_checks(epsilon, only=["edge_cases"]).results[0]
    assert result.status is CheckStatus.FAILED
    assert result.fails_ci
    assert (result.hidden == 0) is (answer == -1.0)  # Below the truth where that is above 0: an under-report.


BETWEEN = "never_below_certified_lower[between]"


def test_what_is_no_answer_is_told_by_each_check_that_met_it_without_the_corners() -> None:
    def cut(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        return math.nan if steps > 3000 else 1e9

    found = {one.check.name: one for one in run_checks(cut, only=[GAUSSIAN, BETWEEN]).results}
    assert not found[GAUSSIAN].hidden
    assert (found[BETWEEN].status, found[BETWEEN].fails_ci) == (CheckStatus.FAILED, True)
    assert found[BETWEEN].hidden > 0
    assert "the truth is above 0" in found[BETWEEN].message


def test_an_answer_that_is_none_counts_where_it_was_remembered_too() -> None:
    def never(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        return math.nan

    alone = run_checks(never, only=[GAUSSIAN]).results[0]
    # All cells but one whose truth is 0; the first was asked before, to warm up.
    assert alone.hidden == alone.cells.crashed - 1
    both = {one.check.name: one for one in run_checks(never, only=[GAUSSIAN, "looseness"]).results}
    assert both["looseness"].hidden > both[GAUSSIAN].hidden == alone.hidden


def test_an_answer_that_is_none_does_not_hide_another_broken_promise() -> None:
    def growing(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        return math.nan if steps == 1 else 1e9 * noise_multiplier

    found = run_checks(growing, only=["monotone_in_noise"]).results[0]
    assert "break the promise" in found.message
    assert found.hidden > 0
    assert any("no number" in note for note in found.notes)


def test_a_count_that_time_cut_short_is_called_the_least() -> None:
    def slow(**question: float) -> float:
        """Uses the time up in its first call."""
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return math.nan

    cut = check_accountant(slow, only="edge_cases", seconds=0.2)
    assert cut.verdict == "FAILED"
    assert cut.sentence.startswith("at least 1 answer is no number where the truth is above 0")
    whole = check_accountant(lambda **question: math.nan, only="edge_cases")
    assert re.match(r"\d+ answers are no number where the truth is above 0", whole.sentence)


def test_a_crash_at_one_question_names_the_question_and_not_the_check() -> None:
    def crashes(*, noise_multiplier: float, sampling_probability: float, steps: int, delta: float) -> float:
        if sampling_probability == 1.0:
            raise KeyError(delta)
        return 1e9

    sentence = check_accountant(crashes, only="edge_cases").sentence
    assert re.match(r"crashed at [^:]+: .*KeyError", sentence)
    assert "edge_cases" not in sentence.partition("KeyError")[0]


def test_time_is_kept_and_what_is_left_out_is_counted() -> None:
    report = run_checks(good_accountant.Good(), only=["never_below_certified_lower"], seconds=1e-3)
    for result in report.results:
        cells = result.cells
        assert cells.planned == cells.judged + cells.refused + cells.out_of_time + cells.without_truth
    assert sum(result.cells.out_of_time for result in report.results) > 100
    assert any(result.status is CheckStatus.LEFT_OUT for result in report.results)
    assert "left out" in " ".join(note for result in report.results for note in result.notes)


@pytest.mark.slow
def test_looseness_is_reported_and_held_to_a_budget() -> None:
    loose = zoo.Loose()
    without = run_checks(loose, only=["looseness"], seconds=SECONDS).results[0]
    assert without.status is CheckStatus.PASSED
    assert without.looseness_median > 9
    within = run_checks(loose, only=["looseness"], looseness_budget=1e9, seconds=SECONDS).results[0]
    assert within.status is CheckStatus.PASSED
    over = run_checks(loose, only=["looseness"], looseness_budget=5, seconds=SECONDS).results[0]
    assert over.status is CheckStatus.FAILED
    assert not over.fails_ci
    assert over.counterexample["ratio"] > 5


@pytest.mark.slow
def test_reports_are_plain_json() -> None:
    report = run_checks(zoo.NanWithoutSampling(), seconds=SECONDS)
    text = json.dumps(report.to_json(), allow_nan=False)
    read = json.loads(text)
    assert [result["name"] for result in read["results"]] == [check.name for check in CHECKS]
    assert read["fails_ci"] is report.fails_ci


def test_every_check_is_yielded_by_name() -> None:
    names = [name for name, _ in accountant_checks(_gaussian_function)]
    assert names == [check.name for check in CHECKS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"grid": "tiny"}, "grid"),
        ({"looseness_budget": 0.5}, "looseness_budget"),
        ({"seconds": 0}, "seconds"),
        ({"only": ["monotone"]}, "check"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run_checks(_gaussian_function, **settings)


def test_what_is_no_accountant() -> None:
    with pytest.raises(InputError, match="accountant"):
        run_checks(3.0)
    with pytest.raises(InputError, match="accountant"):
        run_checks("no_such_accountant")


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    run_checks(_gaussian_function, only=[GAUSSIAN], progress=lambda *step: told.append(step))
    assert told == [(GAUSSIAN, 0, 1), ("", 1, 1)]


@pytest.mark.slow
def test_the_certified_bounds_pass_their_own_suite() -> None:
    report = run_checks("certified", seconds=60)
    assert [result.describe() for result in report.failed] == []


def test_imports_stay_light(tmp_path: Path) -> None:
    """Neither torch nor Hypothesis, nor ball arithmetic, is loaded before it is needed."""
    code = (
        "import sys, workbench.attacks.accountant_checks.conformance\n"
        "print([m for m in ('torch', 'hypothesis', 'flint', 'z3', 'dp_accounting') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"


USERS_TESTS = """
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.attacks.accountant_checks.conformance import parametrize_with_accountant_checks


def good(*, noise_multiplier, sampling_probability, steps, delta):
    if sampling_probability < 1:
        raise NotImplementedError("no sampling here")
    return epsilon_of_delta(steps ** 0.5 / noise_multiplier, delta)


def bad(**given):
    return 0.9 * good(**given)


@parametrize_with_accountant_checks([good, bad], seconds=10)
def test_accountant(accountant_check):
    accountant_check()
"""


@pytest.mark.slow
def test_in_a_users_test_file(tmp_path: Path) -> None:
    """A project with folders of our rooms' names; one passing accountant, and one that under-reports."""
    for folder in ("data", "reports", "attacks"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "test_mine.py").write_text(USERS_TESTS)
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert found.returncode == 1, found.stdout + found.stderr
    failed = [line for line in found.stdout.splitlines() if line.startswith("FAILED")]
    assert failed
    assert all("-bad-" in line or "[bad-" in line for line in failed), failed
    assert any("never_below_certified_lower[gaussian]" in line for line in failed)
    assert "smallest counterexample" in found.stdout
    assert "reproduce: python -c" in found.stdout


def test_an_event_with_many_answers_is_asked_once() -> None:
    """The checks share their answers."""
    asked: list[tuple[Any, ...]] = []

    class Counting(good_accountant.Good):  # type: ignore[name-defined, misc]
        def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
            asked.append((event, delta, adjacency))
            return float(super().epsilon(event, delta=delta, adjacency=adjacency))

    checks = dict(accountant_checks(Counting(), seconds=SECONDS))
    checks[GAUSSIAN]()
    before = len(asked)
    checks[GAUSSIAN]()
    assert len(asked) == before == len(set(asked))
    assert (
        gaussian_run(noise_multiplier=1.0, sampling_probability=1.0, steps=1),
        1e-5,
        "add-remove",
    ) in asked


def test_a_crash_of_ours_is_said_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(event: Event, delta: float, *, adjacency: Adjacency) -> Bounds:
        raise IndexError("no cell")

    truth._certified.cache_clear()
    monkeypatch.setattr(certified, "epsilon_bounds", broken)
    result = run_checks(_gaussian_function, only=[GAUSSIAN]).results[0]
    truth._certified.cache_clear()
    assert result.status is CheckStatus.LEFT_OUT
    assert result.cells.without_truth == result.cells.planned
    assert "a fault of ours" in result.describe()


@pytest.mark.slow
def test_the_full_grid_passes_the_good_accountant() -> None:
    report = run_checks(good_accountant.Good(), grid="full", seconds=60)
    assert [result.describe() for result in report.failed] == []
    assert not [note for result in report.results for note in result.notes if "a fault of ours" in note]
