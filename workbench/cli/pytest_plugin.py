"""pytest plugin: `pytest --accountant mypkg.acct:epsilon` runs the conformance suite, one test a check.

Inside a test file, the fixture `accountant_conformance` runs all checks at once, and the decorator
`parametrize_with_accountant_checks` makes a test of each. A test fails where the accountant's answer is below
the certified truth, shows the smallest counterexample and a line that reproduces it, and is skipped where the
accountant refused every question. Other broken promises are expected failures, unless told to be strict.

Only what every pytest run pays for is imported here; the suite comes with the first accountant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.checks.conformance import GRIDS, breaks, is_unsettled, suite

MARKER = "accountant_check"
NOTHING_JUDGED = "every question was refused, left out or answered by infinity, so nothing is shown"
ANSWERS_AT_ALL = "answers_some_question"
"""The last test of an accountant, which fails where all others that ran were skipped."""


class CheckFailedError(Exception):
    """An accountant broke a promise; the message is the check's report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; their names begin with `--accountant`."""
    group = parser.getgroup("accountants", "privacy accountants")
    group.addoption(
        "--accountant",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="compare this accountant with certified bounds, one test a check; may be repeated",
    )
    group.addoption(
        "--accountant-grid",
        default=None,
        choices=GRIDS,
        help="how many questions are asked (default: the ini option accountant_grid)",
    )
    group.addoption(
        "--accountant-looseness-budget",
        type=float,
        default=None,
        metavar="RATIO",
        help="fail where an answer is more than this many times the certified upper bound",
    )
    group.addoption(
        "--accountant-seed",
        type=int,
        default=0,
        help="seed of runs drawn between round values, and of the search",
    )
    group.addoption(
        "--accountant-seconds",
        type=float,
        default=None,
        metavar="SECONDS",
        help="time for an accountant's checks (default: the grid's own)",
    )
    group.addoption(
        "--accountant-strict",
        action="store_true",
        help="also fail on broken promises that are no under-reports",
    )
    parser.addini("accountant_grid", "grid of questions to an accountant: quick or full", default="quick")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the tests that `--accountant` adds."""
    config.addinivalue_line("markers", f"{MARKER}: a conformance check of a privacy accountant")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks of the named accountants, before `-k` and `-m` choose."""
    for target in dict.fromkeys(config.getoption("--accountant")):
        collector = AccountantCollector.from_parent(session, name=target, nodeid=target)
        items.extend(collector.collect())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Share an accountant's time among the checks that `-k`, `-m` and names on the command line chose."""
    chosen = [item.run for item in session.items if isinstance(item, AccountantItem)]
    cases = (getattr(item, "callspec", None) for item in session.items)
    bodies = (case.params.get("accountant_check") for case in cases if case is not None)
    chosen += [body.check for body in bodies if body is not None]
    if chosen:
        suite().share_time_among(chosen)


@pytest.fixture
def accountant_conformance(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function that runs the conformance suite on an accountant, and fails the test where a check fails.

    Call it as `accountant_conformance(accountant, grid=..., looseness_budget=..., strict=...)`,
    with an accountant's object, function or name; what is left out comes from the command line. It returns
    the `ConformanceReport`.
    """

    def conform(accountant: Any, *, strict: bool | None = None, **settings: Any) -> Any:
        """Check an accountant; the test fails with what the checks found."""
        __tracebackhide__ = True
        given = {**_settings(request.config), **settings}
        report = suite().run_checks(accountant, **given)
        failing = [
            result.describe() for result in report.results if _fails(result, request.config, given, strict)
        ]
        _keep_counts(request.node, report.accountant, report.results)
        if not failing and not report.is_informative:
            failing = [NOTHING_JUDGED]
        if failing:
            pytest.fail("\n".join([f"accountant {report.accountant}:", *failing]), pytrace=False)
        return report

    return conform


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Keep the counts of a test that `parametrize_with_accountant_checks` made."""
    check = getattr(item, "funcargs", {}).get("accountant_check")
    if check is not None and call.when == "call" and getattr(check, "result", None) is not None:
        _keep_counts(item, check.accountant, [check.result])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say for each accountant how many cells were judged, and how many were left out for want of time."""
    counts: dict[str, list[int]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            kept = dict(getattr(report, "user_properties", ()))
            if getattr(report, "when", "") == "call" and "accountant" in kept:
                total = counts.setdefault(kept["accountant"], [0, 0])
                for place, name in enumerate((_JUDGED, _LATE)):
                    total[place] += int(kept[name])
    if counts:
        terminalreporter.section("privacy accountants")
    for accountant, (judged, late) in counts.items():
        more = " (--accountant-seconds gives more)" if late else ""
        terminalreporter.line(f"{accountant}: {judged} cells judged, {late} left out for want of time{more}")


_JUDGED, _LATE = "accountant_cells_judged", "accountant_cells_left_out_for_time"


def _keep_counts(item: pytest.Item, accountant: str, results: Iterable[Any]) -> None:
    """Write the counts of an accountant's cells to a test's report, and so to JUnit's properties."""
    cells = [result.cells for result in results]
    item.user_properties += [
        ("accountant", accountant),
        (_JUDGED, str(sum(each.judged for each in cells))),
        (_LATE, str(sum(each.out_of_time for each in cells))),
    ]


def parametrize_with_accountant_checks(*accountants: Any, **settings: Any) -> Any:
    """A decorator that runs a test once for each check of each accountant.

    The test takes one argument, `accountant_check`, and calls it; see the function of the same name in
    `workbench.attacks.accountant_checks.conformance`.

    Args:
        *accountants: Objects, functions or names of accountants.
        **settings: `grid`, `looseness_budget`, `seed`, `seconds`, `strict`.
    """
    return suite().parametrize_with_accountant_checks(accountants, **settings)


class AccountantCollector(pytest.Collector):
    """The checks of one accountant, named as `workbench.checks.accountants.load_accountant` takes it."""

    def collect(self) -> Iterator[pytest.Item]:
        """One item a check; UsageError where there is no such accountant, or a setting is out of range."""
        from workbench.checks.accountants import load_accountant
        from workbench.core.errors import InputError, UnsupportedError
        from workbench.core.one_line import one_line

        settings = _settings(self.config)
        try:
            accountant = load_accountant(self.name)
            checks = list(suite().accountant_checks(accountant, **settings))
        except (InputError, UnsupportedError) as error:
            raise pytest.UsageError(one_line(f"--accountant: {error}")) from error
        results: list[Any] = []
        for name, run in checks:
            yield self._item(AccountantItem, name, run=run, results=results)
        yield self._item(AnswersItem, ANSWERS_AT_ALL, results=results)

    def _item(self, kind: type[_Item], name: str, **keywords: Any) -> pytest.Item:
        """One test; its id is given as a text, for pytest to read its brackets as it does in its cache."""
        item = kind.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}", **keywords)
        item.add_marker(MARKER)
        return item


class _Item(pytest.Item):
    """A test about an accountant."""

    def __init__(self, *, results: list[Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.results = results

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report of a broken promise; of anything else the traceback."""
        if isinstance(excinfo.value, CheckFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where a report says that the test is."""
        return self.config.rootpath, None, self.nodeid


class AccountantItem(_Item):
    """One check of one accountant, as a test."""

    def __init__(self, *, run: Any, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.run = run

    def runtest(self) -> None:
        """Run the check; CheckFailedError where the accountant broke the promise, or crashed and showed
        nothing.
        """
        result = self.run()
        self.results.append(result)
        _keep_counts(self, self.parent.name if self.parent else "", [result])
        if _fails(result, self.config, _settings(self.config)):
            raise CheckFailedError(result.describe())
        if result.status in ("refused", "left out"):
            pytest.skip(result.message)
        if result.status in ("failed", "error"):
            pytest.xfail(result.describe())
        self.add_report_section("call", "accountant", result.describe())


class AnswersItem(_Item):
    """Fails where no check before it judged anything: a run of skipped tests alone is no success."""

    def runtest(self) -> None:
        """Look at the results so far; CheckFailedError where none of them judged anything."""
        if not self.results:
            pytest.skip("no check of this accountant ran")
        answered = any(result.cells.judged for result in self.results)
        if not any(result.finite if answered else result.cells.crashed for result in self.results):
            raise CheckFailedError(NOTHING_JUDGED)


def _fails(result: Any, config: pytest.Config, settings: dict[str, Any], strict: bool | None = None) -> bool:
    """Whether a check's result is to fail its test."""
    strictly = bool(config.getoption("--accountant-strict")) if strict is None else strict
    has_budget = settings.get("looseness_budget") is not None
    return breaks(result, strict=strictly, has_budget=has_budget) or is_unsettled(result, strict=strictly)


def _settings(config: pytest.Config) -> dict[str, Any]:
    """The settings of the command line and the ini file; UsageError where the ini file's grid is none."""
    grid = config.getoption("--accountant-grid") or config.getini("accountant_grid")
    if grid not in GRIDS:
        raise pytest.UsageError(f"accountant_grid must be quick or full, got {grid!r}")
    return {
        "grid": grid,
        "looseness_budget": config.getoption("--accountant-looseness-budget"),
        "seed": config.getoption("--accountant-seed"),
        "seconds": config.getoption("--accountant-seconds"),
    }
