"""The pytest plugin, in projects of its own: each pytest here is a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ACCOUNTANTS = """
import sys

from workbench.accounting.gaussian import epsilon_of_delta


def good(*, noise_multiplier, sampling_probability, steps, delta):
    if sampling_probability < 1:
        raise NotImplementedError("full batches only")
    print("a print of the accountant's")
    return 1.000001 * epsilon_of_delta(steps**0.5 / noise_multiplier, delta)


def broken(*, noise_multiplier, sampling_probability, steps, delta):
    return 0.9 * good(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability,
                      steps=steps, delta=delta)


def refuses(**question):
    raise NotImplementedError("not today")


def leaves(*, noise_multiplier, sampling_probability, steps, delta):
    sys.exit(0)


def jagged(*, noise_multiplier, sampling_probability, steps, delta):
    true = good(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability,
                steps=steps, delta=delta)
    return true * (3.0 if noise_multiplier > 1 else 1.0)
"""

NEVER_BELOW = "never_below_certified_lower[gaussian]"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a module of accountants."""
    (tmp_path / "acct.py").write_text(ACCOUNTANTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run_pytest(project: Path, *words: str, keeps_cache: bool = False) -> subprocess.CompletedProcess[str]:
    """pytest in the project, with warnings as errors; nothing of this run's own settings reaches it."""
    command = [sys.executable, "-m", "pytest", "-W", "error", "--strict-markers"]
    command += [] if keeps_cache else ["-p", "no:cacheprovider"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return subprocess.run(
        [*command, *words], cwd=project, env=inherited, capture_output=True, text=True, check=False
    )


def outcomes(path: Path) -> dict[tuple[str, str], str]:
    """What became of each test of a JUnit file, by class and name."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        marks = {child.tag: child.get("type", "") for child in case}
        kind = next((tag for tag in ("failure", "error", "skipped") if tag in marks), "passed")
        if kind == "skipped" and "xfail" in marks["skipped"]:
            kind = "xfailed"
        found[case.get("classname", ""), case.get("name", "")] = kind
    return found


@pytest.mark.slow
def test_a_project_without_accountants_notices_nothing(project: Path) -> None:
    (project / "test_own.py").write_text(
        "import sys\n"
        "def test_lean():\n"
        "    heavy = {'numpy', 'scipy', 'torch', 'flint', 'z3', 'workbench.attacks'}\n"
        "    heavy |= {'workbench.core.registry'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    for words in ([], ["-p", "no:workbench"]):
        done = run_pytest(project, "-q", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout
    refused = run_pytest(project, "-p", "no:workbench", "--accountant", "acct:good")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
def test_named_accountants_become_tests_without_a_test_file(project: Path) -> None:
    targets = [f"acct:{name}" for name in ("good", "broken", "refuses", "leaves", "jagged")]
    done = run_pytest(
        project,
        *(word for target in targets for word in ("--accountant", target)),
        *("--accountant-seconds", "4", "--junitxml", "out.xml", "-q"),
        *("-k", "gaussian or noise or answers or laplace", "-m", "accountant_check"),
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    found = outcomes(project / "out.xml")
    assert found["acct:good", NEVER_BELOW] == "passed"
    assert found["acct:good", "never_below_certified_lower[laplace]"] == "skipped"
    assert found["acct:broken", NEVER_BELOW] == "failure"
    assert found["acct:leaves", NEVER_BELOW] == "failure"
    assert found["acct:refuses", NEVER_BELOW] == "skipped"
    assert found["acct:jagged", "monotone_in_noise"] == "xfailed"
    answering = {target: found[target, "answers_some_question"] for target in targets}
    assert answering == {target: "failure" if "refuses" in target else "passed" for target in targets}
    assert not any("edge_cases" in name for _, name in found)  # -k chose.
    (said,) = re.findall(r"acct:good: (\d+) cells judged, \d+ left out for want of time", done.stdout)
    assert int(said) > 20
    assert "smallest counterexample" in done.stdout
    assert "acct import broken" in done.stdout
    assert "Traceback" not in done.stdout
    assert ".py:" not in done.stdout  # No frame of ours, nor of anybody's.
    assert "a print of" not in done.stdout


@pytest.mark.slow
def test_the_last_failures_are_run_again(project: Path) -> None:
    words = ("--accountant", "acct:broken", "--accountant-seconds", "2", "-k", "gaussian", "-q")
    last_line = [
        run_pytest(project, *words, *more, keeps_cache=True).stdout.splitlines()[-1]
        for more in ([], ["--lf"])
    ]
    first, again = (re.match(r"(\d+) failed, (.*) in ", line) for line in last_line)
    assert first is not None
    assert again is not None
    assert first[1] == again[1]
    assert "skipped" in first[2]
    assert "skipped" not in again[2]


@pytest.mark.slow
def test_strictness_counts_every_broken_promise(project: Path) -> None:
    done = run_pytest(
        project,
        *("--accountant", "acct:jagged", "--accountant-seconds", "4", "-k", "noise or looseness"),
        *("--accountant-strict", "--accountant-looseness-budget", "1.5"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "monotone_in_noise: failed" in done.stdout
    assert "looseness: failed" in done.stdout


@pytest.mark.slow
def test_the_fixture_and_the_decorator(project: Path) -> None:
    (project / "test_own.py").write_text(
        "import acct\n"
        "from workbench.cli.pytest_plugin import parametrize_with_accountant_checks\n"
        "def test_good(accountant_conformance):\n"
        "    report = accountant_conformance(acct.good, seconds=4)\n"
        "    assert report.judged > 0\n"
        "def test_broken(accountant_conformance):\n"
        "    accountant_conformance(acct.broken, seconds=4)\n"
        "def test_refuses(accountant_conformance):\n"
        "    accountant_conformance('acct:refuses', seconds=4)\n"
        "@parametrize_with_accountant_checks(acct.good, 'acct:broken', acct.leaves, seconds=4)\n"
        "def test_each(accountant_check):\n"
        "    accountant_check()\n"
    )
    done = run_pytest(project, "-q", "--junitxml", "out.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {name: outcome for (_, name), outcome in outcomes(project / "out.xml").items()}
    assert found["test_good"] == "passed"
    assert found["test_broken"] == found["test_refuses"] == "failure"
    each = {name: outcome for name, outcome in found.items() if name.startswith("test_each")}
    assert [outcome for name, outcome in each.items() if NEVER_BELOW in name] == [
        "passed",
        "failure",
        "failure",
    ]
    assert "smallest counterexample" in done.stdout
    assert "pytest_plugin.py" not in done.stdout
    assert "accountant_conformance.py" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--accountant", "acct:god"], "'acct' has no attribute 'god'"),
        (["--accountant", "nope:good"], "cannot import 'nope'"),
        (
            ["--accountant", "acct:good", "-o", "accountant_grid=tiny"],
            "accountant_grid must be quick or full",
        ),
        (["--accountant", "acct:good", "--accountant-looseness-budget", "0.5"], "looseness_budget must be"),
    ],
)
def test_a_mistake_is_a_usage_error_in_one_line(words: list[str], part: str, project: Path) -> None:
    done = run_pytest(project, "-q", *words)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert part in done.stderr
    assert len([line for line in done.stderr.splitlines() if line]) == 1
    assert "Traceback" not in done.stdout + done.stderr
