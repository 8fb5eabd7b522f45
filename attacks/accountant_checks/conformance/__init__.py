"""A conformance suite for anybody's accountant: named checks against certified two-sided values.

An accountant's answer is understood as an upper bound, so an answer below the certified *lower* bound is
wrong, whatever the accountant's method: `never_below_certified_lower[...]` finds these, family by family, and
a build should stop at them. The other checks find what bounds alone do not: steps in the wrong direction
(which alone stop no build: a sound bound need not be monotone), answers that depend on what was asked before,
counts and orders that change the answer, an adjacency that is ignored, a calibration that lands on the wrong
side, corners that give NaN. Where a check fails, it prints the smallest counterexample that Hypothesis finds
and a line for a shell that prints the accountant's answer there.

What counts as an under-report: an answer strictly below the certified lower bound. Where the shortfall is at
most 1e-9 of the bound (1e-12 in epsilon), floating-point rounding explains it: it is counted apart, as
rounding, said in the result's notes, and no failure. Under-reports that rest on bounds which do not carry
every error fail only where a second, independent method finds the same. The worst and the smallest of each
check are computed a second time where a second method covers the event, and say so.

An accountant may refuse any question with a clear error; a check of which every cell was refused ends as
refused, which is neither passed nor failed. Time is limited: what was not asked for want of it is counted in
the result. A single call is never cut off.

In a user's own test file, each promise one test:

    from workbench.attacks.accountant_checks.conformance import parametrize_with_accountant_checks

    @parametrize_with_accountant_checks(["mypkg.acct:epsilon"])
    def test_accountant(accountant_check):
        accountant_check()

and the same without pytest:

>>> from workbench.accounting.gaussian import epsilon_of_delta
>>> def epsilon(*, noise_multiplier, sampling_probability, steps, delta):
...     return epsilon_of_delta(steps**0.5 / noise_multiplier, delta)
>>> checks = dict(accountant_checks(epsilon))
>>> checks["never_below_certified_lower[gaussian]"]().status
<CheckStatus.PASSED: 'passed'>
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from workbench.attacks.accountant_checks.conformance.again import asked_again
from workbench.attacks.accountant_checks.conformance.cells import families
from workbench.attacks.accountant_checks.conformance.checks import (
    calibration,
    edge_cases,
    faults_met,
    looseness,
    never_below,
    never_below_between,
    never_below_delta,
    never_below_tpr,
    with_faults,
)
from workbench.attacks.accountant_checks.conformance.judging import Context
from workbench.attacks.accountant_checks.conformance.pairs import adjacency, monotone, n_fold, order
from workbench.attacks.accountant_checks.conformance.questions import Asker, Tally, as_accountant, now
from workbench.attacks.accountant_checks.conformance.results import (
    Cells,
    Check,
    CheckResult,
    CheckStatus,
    ConformanceReport,
    UnderReport,
)
from workbench.checks.accountants import Accountant
from workbench.checks.conformance import breaks, is_unsettled
from workbench.core.errors import InputError, unknown_name

__all__ = [
    "CHECKS",
    "GRIDS",
    "Cells",
    "Check",
    "CheckResult",
    "CheckStatus",
    "ConformanceReport",
    "UnderReport",
    "accountant_checks",
    "parametrize_with_accountant_checks",
    "run_checks",
]


Body: TypeAlias = Callable[[Context, Check], CheckResult]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A check, what runs it, and its share of the time against the others'."""

    check: Check
    body: Body
    share: float


def _planned(name: str, summary: str, body: Body, share: float, *, fails_ci: bool = True) -> Planned:
    return Planned(check=Check(name=name, summary=summary, fails_ci=fails_ci), body=body, share=share)


def _family(family: str, words: str, share: float) -> Planned:
    def run(context: Context, check: Check) -> CheckResult:
        return never_below(context, check, families(context.grid)[family])

    summary = f"no epsilon is below the certified lower bound: {words}"
    return _planned(f"never_below_certified_lower[{family}]", summary, run, share)


def _monotone(short: str, parameter: str, *, rising: bool) -> Planned:
    verb = "fall" if rising else "rise"
    summary = f"epsilon does not {verb} as the {parameter.replace('_', ' ')} grows"
    body = monotone(parameter, rising=rising)
    return _planned(f"monotone_in_{short}", summary, body, 0.5)


PLAN: tuple[Planned, ...] = (
    _family("gaussian", "one Gaussian release", 1.0),
    _family("composed_gaussian", "several Gaussian releases", 1.0),
    _family("subsampled_gaussian", "DP-SGD runs with Poisson sampling", 6.0),
    _family("replace_one", "replace-one neighbours", 2.0),
    _family("laplace", "Laplace noise, once and repeated", 1.0),
    _family("randomised_response", "randomised response, once and repeated", 1.0),
    _family("heterogeneous", "compositions of different events", 1.0),
    _family("other_samples", "fixed batches, subsampled Laplace noise, several records a user", 1.0),
    _family("integer_noise", "discrete Laplace and Gaussian noise, Skellam noise", 0.5),
    _planned(
        "delta_never_below_certified_lower",
        "no delta is below the certified lower bound",
        never_below_delta,
        2.5,
    ),
    _planned(
        "tpr_never_below_certified_lower",
        "no true-positive rate is below the certified lower bound",
        never_below_tpr,
        2.0,
    ),
    _planned(
        "calibration_inverts_accounting_and_lands_on_the_private_side",
        "the noise for a budget keeps the certified epsilon, and the accountant's own, within it",
        calibration,
        3.0,
    ),
    _planned(
        "adjacency_honoured_or_refused",
        "replace-one neighbours get an answer of their own, or none",
        adjacency,
        0.5,
    ),
    _planned(
        "n_fold_compose_equals_n_composes",
        "an event with a count is accounted as that many single ones",
        n_fold,
        1.0,
    ),
    _planned(
        "order_of_composition_does_not_matter", "a composition is accounted alike in any order", order, 1.0
    ),
    _monotone("noise", "noise_multiplier", rising=False),
    _monotone("sampling", "sampling_probability", rising=True),
    _monotone("steps", "steps", rising=True),
    _monotone("delta", "delta", rising=False),
    _planned(
        "never_below_certified_lower[between]",
        "no epsilon is below the certified lower bound: drawn at random, between the grid's round values",
        never_below_between,
        8.0,
    ),
    _planned(
        "answers_stay_right",
        "asked again after easier questions and many calls, in another order and process, no epsilon is "
        "below the certified bound",
        asked_again,
        3.0,
    ),
    _planned(
        "looseness", "how far answers are above the certified upper bound", looseness, 0.5, fails_ci=False
    ),
    # Few accountants answer these, and some at ten seconds a call.
    _family("promises", "mechanisms of which a promise, or each output's chance, is known", 0.5),
    _family("correlated_noise", "correlated noise, whole runs and on samples", 1.0),
    _family("choices", "exponential mechanism, best of several runs, sparse vector", 1.5),
    _family("capped_batches", "Poisson samples with a cap", 1.0),
    _family("batch_means", "sums over the real batch size", 1.0),
    _family("gaussian_mixtures", "pairs of Gaussian mixtures", 0.5),
    _family("shuffled_batches", "shuffled batches", 0.5),
    _family("random_allocation", "each record in one batch at random", 0.5),
    # It looks at all that was asked before, too.
    _planned(
        "edge_cases",
        "corners give a number that is not below the truth, infinity, or a clear error",
        edge_cases,
        2.0,
    ),
)
"""Every check, in the order in which they run."""

GRIDS = {"quick": 25.0, "full": 900.0}
"""The grids, each with the seconds of processor time that an accountant's checks may take, unless told
otherwise; searches for small counterexamples come on top."""

_SHRINKING, _CONFIRMING, _EXTRA = 0.08, 0.04, 0.5
"""Shares of an accountant's time that one search for a small counterexample, one check's second
computations, and all of these together, may take beyond it."""

T = TypeVar("T", bound=Callable[..., Any])

CHECKS: tuple[Check, ...] = tuple(planned.check for planned in PLAN)
"""Every check, in their order."""


class _Suite:
    """One accountant's checks: they share its answers and its time."""

    def __init__(
        self,
        accountant: Any,
        chosen: Sequence[Planned],
        *,
        grid: str,
        looseness_budget: float | None,
        seed: int,
        seconds: float | None,
    ) -> None:
        if grid not in GRIDS:
            raise unknown_name("grid", grid, GRIDS)
        if looseness_budget is not None and not looseness_budget >= 1:
            raise InputError(f"looseness_budget must be >= 1, got {looseness_budget!r}")
        if seconds is not None and not seconds > 0:
            raise InputError(f"seconds must be > 0, got {seconds!r}")
        self.accountant: Accountant = as_accountant(accountant)
        self.seconds = GRIDS[grid] if seconds is None else seconds
        finite = min(self.seconds, GRIDS["full"])
        self.context = Context(
            asker=Asker(accountant=self.accountant, most_extra_seconds=_EXTRA * finite),
            grid=grid,
            looseness_budget=looseness_budget,
            seed=seed,
            shrink_seconds=_SHRINKING * finite,
            confirm_seconds=_CONFIRMING * finite,
        )
        self._spent = 0.0
        self._warm = False
        self.choose(chosen)

    def choose(self, planned: Sequence[Planned]) -> None:
        """Share the time among these checks alone; the corners report all answers that are none.

        Where the corners are not among them, each check reports those of its own that came and are no number.
        """
        self.shares = sum(one.share for one in planned)
        self._has_corners = any(one.body is edge_cases for one in planned)

    @property
    def has_time(self) -> bool:
        """Whether a part of the time is left that is worth a second look."""
        return self._spent < 0.95 * self.seconds

    def run(self, planned: Planned) -> CheckResult:
        """Run one check within its share of what is left."""
        asker = self.context.asker
        self._warm_up()
        start, extra = now(), asker.extra_seconds
        left = max(self.seconds - self._spent, 0.0)
        share = min(planned.share / self.shares, 1.0) if self.shares > 0 else 1.0
        asker.deadline = start + (left * share if math.isfinite(left) else math.inf)
        asker.here = Tally()
        try:
            found = planned.body(self.context, planned.check)
            return with_faults(self.context, found, [] if self._has_corners else faults_met(self.context))
        finally:
            self._spent += now() - start - (asker.extra_seconds - extra)
            self.shares = max(self.shares - planned.share, 0.0)

    def _warm_up(self) -> None:
        """Ask once, so that importing a library counts for no check."""
        if not self._warm:
            self._warm = True
            asker = self.context.asker
            asker.ask(families(self.context.grid)["gaussian"][0].question)
            asker.total, asker.here = Tally(), Tally()


@dataclass(frozen=True, eq=False)
class PlannedCheck:
    """One check of one accountant, ready to run: call it without arguments."""

    suite: _Suite
    planned: Planned

    def __call__(self) -> CheckResult:
        """Run it within its share of the accountant's time."""
        return self.suite.run(self.planned)


def share_time_among(checks: Sequence[PlannedCheck]) -> None:
    """Share each accountant's time among these of its checks alone, as the others are not going to be run."""
    for check in checks:
        check.suite.choose([other.planned for other in checks if other.suite is check.suite])


def accountant_checks(
    accountant: Any,
    *,
    grid: str = "quick",
    looseness_budget: float | None = None,
    seed: int = 0,
    seconds: float | None = None,
) -> Iterator[tuple[str, PlannedCheck]]:
    """Every check of an accountant by name, ready to run; they share its answers.

    Args:
        accountant: An object with the methods of `workbench.checks.accountants.Accountant`, the least
            function, or the text that `load_accountant` takes: a registered name, or `module:function`.
        grid: `"quick"` or `"full"`.
        looseness_budget: Largest allowed ratio of an answer to the certified upper bound, >= 1; None for any.
        seed: Of the cells between the grid's, and of the search for small counterexamples.
        seconds: Processor time for all checks together, infinity for no limit; None for the grid's own
            (`GRIDS`).

    Yields:
        The check's name, and the check, which runs when it is called.

    Raises:
        InputError: the accountant is none, or an argument is out of range.
    """
    suite = _Suite(accountant, PLAN, grid=grid, looseness_budget=looseness_budget, seed=seed, seconds=seconds)
    for planned in PLAN:
        yield planned.check.name, PlannedCheck(suite, planned)


def run_checks(
    accountant: Any,
    *,
    grid: str = "quick",
    looseness_budget: float | None = None,
    seed: int = 0,
    seconds: float | None = None,
    only: Iterable[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> ConformanceReport:
    """Run the checks of an accountant.

    Args:
        accountant, grid, looseness_budget, seed, seconds: As of `accountant_checks`.
        only: Names of the checks to run; None for all. A name without brackets takes all its families.
        progress: Called with a check's name, the number of checks done, and their total: before each check,
            and once at the end with an empty name.

    Raises:
        InputError: as of `accountant_checks`, or a check's name is unknown.
    """
    chosen = _chosen(only)
    suite = _Suite(
        accountant, chosen, grid=grid, looseness_budget=looseness_budget, seed=seed, seconds=seconds
    )
    start = time.perf_counter()
    results = []
    for done, planned in enumerate(chosen):
        if progress is not None:
            progress(planned.check.name, done, len(chosen))
        results.append(suite.run(planned))
    # What checks left that came after, and were refused, goes to those before; answers are remembered.
    unfinished = [i for i, one in enumerate(results) if one.cells.out_of_time and not one.fails_ci]
    if unfinished and suite.has_time:
        again = [i for i, one in enumerate(chosen) if i in unfinished or one.body is edge_cases]
        suite.shares = sum(chosen[i].share for i in again)
        for i in again:
            results[i] = suite.run(chosen[i])
    if progress is not None:
        progress("", len(chosen), len(chosen))
    total = suite.context.asker.total
    return ConformanceReport(
        accountant=suite.accountant.name,
        grid=grid,
        seed=seed,
        results=tuple(results),
        calls=total.calls,
        milliseconds_per_call=total.milliseconds_per_call,
        seconds=time.perf_counter() - start,
    )


def _chosen(only: Iterable[str] | None) -> tuple[Planned, ...]:
    if only is None:
        return PLAN
    names = list(only)
    known = {planned.check.name for planned in PLAN}
    known |= {name.partition("[")[0] for name in known}
    for name in names:
        if name not in known:
            raise unknown_name("check", name, known)
    return tuple(
        planned
        for planned in PLAN
        if planned.check.name in names or planned.check.name.partition("[")[0] in names
    )


def parametrize_with_accountant_checks(
    accountants: Sequence[Any],
    *,
    grid: str = "quick",
    looseness_budget: float | None = None,
    seed: int = 0,
    seconds: float | None = None,
    strict: bool = False,
) -> Callable[[T], T]:
    """A decorator that makes a test of every check of every accountant.

    The test gets `accountant_check`, a function without parameters. Called, it runs the check and returns its
    result; it fails the test where a build should stop or the accountant crashed in such a check, skips it
    where the accountant refused or nothing was judged, and marks it as an expected failure where another
    promise was broken.

    Args:
        accountants: Each as of `accountant_checks`.
        grid, looseness_budget, seed, seconds: As of `accountant_checks`.
        strict: Fail the test for every broken promise and crash.

    Raises:
        InputError: an accountant is none, or an argument is out of range.
    """
    import pytest

    cases = [
        pytest.param(
            CheckAsTest(_label(accountant), check, strict, looseness_budget is not None),
            id=f"{_label(accountant)}-{name}",
        )
        for accountant in accountants
        for name, check in accountant_checks(
            accountant, grid=grid, looseness_budget=looseness_budget, seed=seed, seconds=seconds
        )
    ]

    def decorate(test: T) -> T:
        marked: T = pytest.mark.parametrize("accountant_check", cases)(test)
        return marked

    return decorate


def _label(accountant: Any) -> str:
    if isinstance(accountant, str):
        return accountant
    return str(getattr(accountant, "name", None) or getattr(accountant, "__qualname__", type(accountant)))


class CheckAsTest:
    """A check of an accountant as the body of a pytest test.

    Attributes:
        accountant: How its tests are labelled.
        check: What it runs.
        result: What the check found; None before it ran.
    """

    def __init__(self, accountant: str, check: PlannedCheck, strict: bool, has_budget: bool) -> None:
        self.accountant, self.check, self.result = accountant, check, None
        self._strict, self._has_budget = strict, has_budget

    result: CheckResult | None

    def __call__(self) -> CheckResult:
        """Run the check, and fail, skip or pass the test."""
        import pytest

        self.result = answer = self.check()
        if answer.status in (CheckStatus.REFUSED, CheckStatus.LEFT_OUT):
            pytest.skip(answer.describe())
        broken = breaks(answer, strict=self._strict, has_budget=self._has_budget)
        if broken or is_unsettled(answer, strict=self._strict):
            pytest.fail(answer.describe(), pytrace=False)
        if answer.status is not CheckStatus.PASSED:
            pytest.xfail(answer.describe())
        return answer
