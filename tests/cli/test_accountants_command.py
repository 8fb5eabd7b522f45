"""`workbench accountants`: verdicts, exit codes and files, none of which an accountant can fake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from workbench.accounting import certified
from workbench.accounting.events import gaussian_run
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.cli.app import main
from workbench.interfaces import Direction

ACCOUNTANTS = """
import functools
import math
import sys
import time

import numpy as np

from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import gaussian_run
from workbench.accounting.gaussian import epsilon_of_delta

print("a print at import")


def good(*, noise_multiplier, sampling_probability, steps, delta):
    if sampling_probability < 1:
        raise NotImplementedError("full batches only")
    print("a print of the accountant's")
    return np.float64(1.000001 * epsilon_of_delta(steps**0.5 / noise_multiplier, delta))


def nearly(*, noise_multiplier, sampling_probability, steps, delta):
    run = gaussian_run(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=steps
    )
    return (1 - 2e-4) * epsilon_bounds(run, delta, relative_width=1e-5).lower


def broken(**question):
    return 0.9 * good(**question)


def loose(**question):
    return 3.0 * good(**question)


def refuses(**question):
    raise NotImplementedError("not today")


def leaves(**question):
    sys.exit(0)


def raises(**question):
    raise KeyError("a\\nb")


def infinite(**question):
    return float("inf")


def jagged(*, noise_multiplier, **rest):
    return good(noise_multiplier=noise_multiplier, **rest) * (3.0 if noise_multiplier > 1 else 1.0)


def array(**question):
    return np.ones(3)


def text(**question):
    return "1.0"


def nothing(**question):
    return None


def nan(**question):
    return np.float64("nan")


def negative(**question):
    return -1.0


def complex_number(**question):
    return np.complex128(1 + 0j)


def wrong(noise, q):
    return 1.0


class Unmakeable:
    def __init__(self):
        sys.exit(0)


def further(*, noise_multiplier, sampling_probability, steps, delta, order):
    return 1.0


def some(*, order, **question):
    return 1.0


def by_place(noise_multiplier, /, sampling_probability, steps, delta):
    return 1.0


async def later(*, noise_multiplier, sampling_probability, steps, delta):
    return 1.0


class Later:
    name = "later"

    async def epsilon(self, event, *, delta, adjacency):
        return 1.0


class Onesided:
    name = "one-sided"

    def epsilon(self, event, *, delta):
        return 1.0


class Adapted:
    name = "adapted"

    def __init__(self):
        def inner(event, *, delta):
            return epsilon_bounds(event, delta).upper

        @functools.wraps(inner)
        def epsilon(event, *, delta, adjacency):
            return inner(event, delta=delta)

        self.epsilon = epsilon


def yielding(*, noise_multiplier, sampling_probability, steps, delta):
    yield 1.0


class LaterCalled:
    async def __call__(self, *, noise_multiplier, sampling_probability, steps, delta):
        return 1.0


later_called = LaterCalled()


class Nameless:
    def epsilon(self, event, *, delta, adjacency):
        return 1.0


nameless = Nameless()


class Unreadable:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Panic(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


class NoNumber:
    def __float__(self):
        raise RuntimeError

    __repr__ = __float__


def panics(**question):
    raise Panic("a\\nb")


def unspeakable(**question):
    raise Unspeakable


def no_number(**question):
    return NoNumber()


def long_number(**question):
    return 10**5000


def rejects(**question):
    raise ValueError("not \\x1b[31m today")


def slow(**question):
    time.sleep(0.3)
    return good(**question)


unreadable = Unreadable()
shortened = functools.partial(broken)


constant = 3.0
"""

RUN = "--noise-multiplier 2 --steps 4 --delta 1e-5"
TRUTH = epsilon_of_delta(4**0.5 / 2.0, 1e-5)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with modules of accountants, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_accountants.py").write_text(ACCOUNTANTS)
    (tmp_path / "fails.py").write_text("raise RuntimeError('no\\nluck')\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "panics.py").write_text("raise BaseException('no\\nluck')\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_accountants", raising=False)


SAMPLED = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)


def own(name: str) -> str:
    return f"own_accountants:{name}"


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["accountants", *words.split()])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("good", 0, "1.000001 times the upper one"),
        ("broken", 1, "UNDER-REPORT: 10 % below the lower one"),
        ("infinite", 0, "inf times the upper one"),
        ("refuses", 3, "refused: not today"),
        ("rejects", 3, r"refused: not \x1b[31m today"),
    ],
)
def test_an_answer_stands_beside_the_certified_bounds(
    name: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, _ = run(f"ask {own(name)} {RUN}", capsys)
    assert got == code
    assert words in out
    ends = re.search(r"certified: \[([\d.]+), ([\d.]+)\], width \S+ \(rigorous; ", out)
    assert ends is not None
    # The printed ends have nine digits.
    assert float(ends[1]) - 1e-8 <= TRUTH <= float(ends[2]) + 1e-8
    assert "a print" not in out


def test_an_answer_within_the_first_bounds_is_decided(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is 0.02 % below the truth, which bounds of a relative width of a thousandth hold."""
    words = "--noise-multiplier 1 --sampling-probability 0.01 --steps 1000 --delta 1e-5"
    answer = (1 - 2e-4) * certified.epsilon_bounds(SAMPLED, 1e-5, relative_width=1e-5).lower
    assert answer in certified.epsilon_bounds(SAMPLED, 1e-5)
    code, out, _ = run(f"ask {own('nearly')} {words}", capsys)
    assert code == 1
    assert "UNDER-REPORT: 0.01" in out  # Of the lower end that decides, which is below the truth.


def test_any_event_is_asked_about_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    event = '{"event":"Laplace","scale":2,"count":10}'
    code, out, _ = run(f"ask dp_accounting_pld --delta 1e-5 --event {event}", capsys)
    assert code == 0
    assert "10 x Laplace (scale 2) at delta = 1e-05, add-remove" in out
    assert "certified: [4.98996" in out


def test_one_direction_is_asked_about_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Adding a record to a Poisson sample shows less than removing it; accountants answer for both."""
    words = "ask certified --noise-multiplier 1 --sampling-probability 0.01 --steps 1000 --delta 1e-5"
    event = gaussian_run(noise_multiplier=1, sampling_probability=0.01, steps=1000)
    for direction in ("add", "remove"):
        code, out, _ = run(f"{words} --direction {direction}", capsys)
        assert code == 0
        assert f"add-remove, {direction} alone" in out
        bounds = certified.epsilon_bounds(event, 1e-5, direction=Direction(direction))
        assert f"certified: [{bounds.lower:.9g}, {bounds.upper:.9g}]" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--event {", "--event must be JSON, got '{'"),
        ("--event __import__('os')", "--event must be JSON, got"),
        ('--event {"event":"Laplace","scale":0}', "scale must be finite and > 0, got 0"),
        ('--event {"event":"Laplace","scale":1} --steps 3', "--event and --steps exclude each other"),
        ('--event {"event":"Laplace","scale":1,"scale":2}', "--event: 'scale' is given twice"),
        ("--event []", "--event: form must hold an event, got an empty list"),
        ("--noise-multiplier １ --steps 2", "'--noise-multiplier': '１' is not a number"),
        ("--noise-multiplier 1", "--noise-multiplier and --steps must be given where --event is not"),
    ],
)
def test_an_event_that_cannot_be_read_is_bad_input(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(f"ask dp_accounting_pld --delta 1e-5 {words}", capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_what_wraps_a_function_is_called_and_not_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    """`functools.wraps` tells of the function's parameters, which lack the adjacency."""
    assert run(f"ask {own('Adapted')} {RUN}", capsys)[0] == 0


def test_an_accountant_in_a_file_is_named_as_a_trainer_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "acct.py").write_text(ACCOUNTANTS, encoding="utf-8")
    for path in ("mine/acct.py", "./mine/acct.py", str(tmp_path / "mine" / "acct.py")):
        code, out, _ = run(f"ask {path}:good {path}:broken {RUN}", capsys)
        assert code == 1
        assert f"{path}:good" in out
    assert run("check mine/acct.py:broken --only never_below_certified_lower --seconds 2", capsys)[0] == 1


def test_one_under_report_among_several_answers_decides(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(f"ask {own('refuses')} {own('broken')} {own('good')} {own('good')} {RUN}", capsys)
    assert code == 1
    assert out.count(own("good")) == 1
    code, out, _ = run(f"ask {own('good')} {RUN} --adjacency replace-one", capsys)
    assert code == 3
    assert "refused" in out
    assert "replace-one" in out


@pytest.mark.parametrize(
    "name",
    ["array", "text", "nothing", "nan", "negative", "complex_number", "no_number", "long_number"],
)
def test_what_is_no_epsilon_is_bad_input(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(f"ask {own(name)} {RUN}", capsys)
    assert (code, out) == (2, "")
    assert f"error: accountant {own(name)!r} must answer a number >= 0, got" in err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("check", ["Missing argument"]),
        ("check nope", ["unknown accountant 'nope'"]),
        ("check opacus_rpd", ["unknown accountant 'opacus_rpd'", "did you mean 'opacus_rdp'?"]),
        ("check :x", ["must read module:function or FILE.py:function, got ':x'"]),
        ("check ./own_accountants:good", ["file './own_accountants' does not exist"]),
        ("check ./folder:good", ["file './folder' is not a file"]),
        ("check nowhere.py:good", ["cannot import 'nowhere.py'", "there is no file 'nowhere.py'"]),
        ("check fails.py:x", ["fails.py:1: RuntimeError: no luck"]),
        ("check ./leaves.py:x", ["leaves.py:2: SystemExit: 0"]),
        (f"check {own('Nameless')}", ["has `epsilon`, but its `name` is missing"]),
        (f"check {own('further')}", ["needs the keyword 'order', which it is never given"]),
        (f"ask {own('some')} {RUN}", ["needs the keyword 'order', which it is never given"]),
        (f"check {own('by_place')}", ["must take 'noise_multiplier' as a keyword"]),
        (f"check {own('later')}", ["by a plain function, not by an `async def`"]),
        (f"check {own('Later')}", ["by a plain function, not by an `async def`"]),
        (f"check {own('later_called')}", ["by a plain function, not by an `async def`"]),
        (f"check {own('Onesided')}", ["as epsilon(event, delta=, adjacency=): got an unexpected keyword"]),
        (f"check {own('yielding')}", ["must answer by `return`, not by `yield`"]),
        (f"check {own('nameless')}", ["has `epsilon`, but its `name` is missing"]),
        ("check nope:x", ["cannot import 'nope'"]),
        ("check fails:x", ["cannot import 'fails': RuntimeError: no luck"]),
        ("check leaves:x", ["cannot import 'leaves': SystemExit: 0"]),
        ("check panics:x", ["cannot import 'panics': BaseException: no luck"]),
        (f"check {own('unreadable')}", ["cannot be looked at: RuntimeError: "]),
        (f"check {own('god')}", ["has no attribute 'god'"]),
        (f"check {own('wrong')}", ["must take the keywords", "it takes (noise, q)"]),
        (f"check {own('Unmakeable')}", ["cannot be made: SystemExit: 0"]),
        (f"check {own('constant')}", ["is no function and no accountant: float"]),
        (f"check {own('good')} --only loosenes", ["unknown check 'loosenes'", "did you mean 'looseness'?"]),
        (f"check {own('good')} --looseness-budget 0.5", ["--looseness-budget must be >= 1, got 0.5"]),
        (f"check {own('good')} --looseness-budget nan", ["--looseness-budget must be >= 1, got nan"]),
        (f"check {own('good')} --seconds 0", ["--seconds must be > 0, got 0"]),
        (f"check {own('good')} --seed -1", ["--seed must be a whole number >= 0, got -1"]),
        (f"check {own('good')} --grid tiny", ["--grid", "quick"]),
        (f"check {own('good')} --json folder", ["--json must be a file, got the folder 'folder'"]),
        (f"check {own('good')} --json fails.py/x.json", ["--json 'fails.py/x.json' lies below"]),
        (f"check {own('good')} --junit /dev/null", ["--junit must be a regular file"]),
        (f"check {own('good')} --json a --junit a", ["--junit and --json are the same file"]),
        (f"ask {own('good')}", ["Missing option"]),
        (f"ask {own('leaves')} {RUN}", ["failed: SystemExit: 0"]),
        (f"ask {own('raises')} {RUN}", ["failed: KeyError"]),
        (f"ask {own('panics')} {RUN}", ["failed: Panic: a b"]),
        (f"ask {own('unspeakable')} {RUN}", ["failed: Unspeakable"]),
        (f"ask {own('good')} --noise-multiplier 0 --steps 1 --delta 1e-5", ["--noise-multiplier must be"]),
        (
            f"ask {own('good')} --noise-multiplier 1 --steps 0 --delta 1e-5",
            ["--steps must be at least 1"],
        ),
        (f"ask {own('good')} --noise-multiplier 1 --steps 1 --delta 0", ["--delta must be in (0, 1), got 0"]),
        (f"ask {own('good')} {RUN} --sampling-probability 2", ["--sampling-probability must be in (0, 1]"]),
        (f"ask {own('good')} {RUN} --adjacency none", ["--adjacency"]),
        (
            f"ask {own('good')} {RUN} --adjacency replace-one --direction add",
            ["--direction must be both under replace-one, got add"],
        ),
        ("ask", ["Missing"]),
        ("chek", ["chek"]),
    ],
)
def test_a_mistake_gets_one_line_and_exit_2_and_writes_nothing(
    words: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "")
    complaints = [line for line in err.splitlines() if not line.startswith("a print")]
    assert len(complaints) == 1
    for part in ("error: ", *parts):
        assert part in complaints[0]
    assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before


CHEAP = "--only never_below_certified_lower[gaussian] --only never_below_certified_lower[composed_gaussian]"


def test_verdicts_files_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        f"check {own('good')} {own('broken')} {CHEAP} --only looseness --json new/a.json --junit a.xml",
        capsys,
    )
    assert code == 1
    assert f"NOT_REFUTED {own('good')}" in out
    assert f"\nREFUTED {own('broken')}" in out
    assert "smallest counterexample" in out
    assert "from own_accountants import broken" in out
    assert "a print" not in out
    assert f"{own('good')}: 3/3" in err

    content = json.loads((tmp_path / "new" / "a.json").read_text(), parse_constant=no_constant)
    assert (content["schema"], content["exit_code"]) == (1, 1)
    assert {"dp-accounting", "python-flint"} <= set(content["versions"])
    good, broken = content["accountants"]
    assert (good["verdict"], broken["verdict"]) == ("NOT_REFUTED", "REFUTED")
    worst = broken["results"][0]["under_reports"][0]
    truth = epsilon_of_delta(1.0 / noise_of(worst), worst["argument"]["delta"])
    assert worst["certified_lower"] <= truth * (1 + 1e-9)
    assert worst["certified_upper"] >= truth * (1 - 1e-9)
    assert worst["answer"] == pytest.approx(0.9 * truth, rel=1e-5)

    root = ElementTree.parse(tmp_path / "a.xml").getroot()
    cases = {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}
    gaussian = "never_below_certified_lower[gaussian]"
    assert cases[f"workbench.checks.accountants.{own('broken')}", gaussian].find("failure") is not None
    assert cases[f"workbench.checks.accountants.{own('good')}", gaussian].find("failure") is None
    assert len(cases) == 6


def noise_of(under_report: dict[str, Any]) -> float:
    """The noise multiplier of one release, out of the words that describe it."""
    found = re.search(r"noise multiplier ([\d.]+)", under_report["event"])
    assert found is not None
    return float(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broken", "shortened"])
def test_the_reproduction_reproduces(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(f"check {own(name)} {CHEAP}", capsys)
    line = re.search(r'reproduce: python -c "(.*)"$', out, re.MULTILINE)
    answered = re.search(r"answered_epsilon = ([\d.]+)", out)
    assert line is not None
    assert answered is not None
    done = subprocess.run(
        [sys.executable, "-c", line[1]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert float(done.stdout.splitlines()[-1]) == float(answered[1])


@pytest.mark.parametrize(
    ("name", "more", "code", "part"),
    [
        ("refuses", CHEAP, 3, "INCONCLUSIVE own_accountants:refuses: every question was refused"),
        ("leaves", CHEAP, 3, "crashed in never_below_certified_lower[gaussian]"),
        ("nan", CHEAP, 1, "the truth is above 0"),
        ("text", CHEAP, 1, "the truth is above 0"),
        ("panics", CHEAP, 3, "Panic: a b"),
        ("unspeakable", CHEAP, 3, "crashed in"),
        ("no_number", CHEAP, 1, "which is no number"),
        ("long_number", CHEAP, 1, "which is no number"),
        ("slow", f"{CHEAP} --seconds 0.1", 0, "cells were left out for want of time"),
        ("infinite", CHEAP, 3, "every answer was infinite"),
        ("loose", f"{CHEAP} --only looseness", 0, "NOT_REFUTED"),
        ("loose", f"{CHEAP} --only looseness --looseness-budget 2", 1, "looseness: failed"),
        ("loose", f"{CHEAP} --only looseness --looseness-budget 4", 0, "NOT_REFUTED"),
        ("jagged", "--only monotone_in_noise", 0, "--strict counts these): monotone_in_noise"),
        ("jagged", "--only monotone_in_noise --strict", 1, "monotone_in_noise: failed"),
    ],
)
def test_the_exit_code_says_what_was_shown(
    name: str, more: str, code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, _ = run(f"check {own(name)} --quiet {more}", capsys)
    assert part in out
    assert got == code


@pytest.mark.slow
def test_a_reader_that_stops_early_does_not_change_the_exit_code(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "workbench.cli"),
        *f"accountants check {own('broken')} {CHEAP}".split(),
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        complaints = process.stderr.read()
    assert process.returncode == 1
    assert "rror" not in complaints


def test_an_undecided_accountant_does_not_hide_a_refuted_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"check {own('broken')} {own('refuses')} {CHEAP} --quiet", capsys)[0] == 1
    assert run(f"check {own('good')} {own('refuses')} {CHEAP} --quiet", capsys)[0] == 3


@pytest.mark.parametrize("columns", [40, 100, 160])
def test_a_terminal_of_any_width_keeps_every_check(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, out, _ = run(f"check {own('good')} {CHEAP} --quiet", capsys)
    joined = re.sub(r"\x1b\[[0-9;]*m", "", out).replace("\n", "").replace(" ", "")
    assert "never_below_certified_lower[gaussian]passed" in joined
    assert "never_below_certified_lower[composed_gaussian]passed" in joined


def test_the_registered_accountants_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("list --json", capsys)
    assert code == 0
    listed = json.loads(out)
    assert {"certified", "dp_accounting_pld", "opacus_rdp"} <= {entry["name"] for entry in listed}
    assert main(["list", "accountants", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed


def test_an_answer_that_is_a_millionth_low_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    keywords = "*, noise_multiplier, sampling_probability, steps, delta"
    for name, factor, code in (("low", 1 - 1e-6, 1), ("high", 1 + 1e-6, 0)):
        Path(f"{name}_accountant.py").write_text(f"def epsilon({keywords}):\n    return {TRUTH * factor!r}\n")
        assert run(f"ask {name}_accountant:epsilon {RUN}", capsys)[0] == code
