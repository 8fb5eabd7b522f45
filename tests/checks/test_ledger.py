"""The ledger: what a file may say, and that every claim gets an answer, whatever its check does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.checks.ledger import Method, PublishedClaim, load_ledger, parse_ledger, select_claims
from workbench.checks.run import check_claim, check_claims, groups
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

ENTRY = {
    "id": "ferret-theorem-1",
    "paper": "ferret",
    "place": "Theorem 1",
    "restatement": "a claim",
    "method": "proof",
    "check": "proves",
}


def entry(**changes: Any) -> str:
    """One [[claim]] table; a change to None leaves the field out."""
    fields = {name: value for name, value in {**ENTRY, **changes}.items() if value is not None}
    lines = (f"{name} = {value if name == 'parameters' else repr(value)}" for name, value in fields.items())
    return "[[claim]]\n" + "\n".join(lines) + "\n"


def proves(*, seed: int = 1) -> Finding:
    return Finding(verdict=VerdictKind.PROVEN, summary=f"holds for seed {seed}", evidence=("a line",))


def raises_inconclusive() -> Finding:
    raise InconclusiveError("Z3 answered unknown\nwithin 10 s")


def divides() -> Finding:
    raise ZeroDivisionError("by zero")


def exits() -> Finding:
    raise SystemExit(0)


def answers_text() -> Any:
    return "PROVEN"


def keeps_an_object() -> Finding:
    where = {"x": object()}
    return Finding(verdict=VerdictKind.REFUTED, summary="no", evidence=("e",), counterexample=where)


COUNTED: list[int] = []


def counts() -> Finding:
    COUNTED.append(1)
    return Finding(verdict=VerdictKind.PROVEN, summary=f"call {len(COUNTED)}", evidence=("e",))


CHECKS = (proves, raises_inconclusive, divides, exits, answers_text, keeps_an_object)


@pytest.fixture(autouse=True)
def _checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of this file, in place of the shipped ones."""
    known = {
        check.__name__: registry.Entry(name=check.__name__, factory=check, summary="")
        for check in (*CHECKS, counts)
    }
    real = registry.entries
    monkeypatch.setattr(registry, "entries", lambda kind: known if kind == "claim_check" else real(kind))


def claim(check: str | None, **changes: Any) -> PublishedClaim:
    fields = {**ENTRY, "id": f"ferret-{check}", "method": Method.PROOF, "check": check, **changes}
    return PublishedClaim(**fields)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[[claim]\n", ["no TOML"]),
        ("[[clam]]\n", ["unknown table 'clam'", "did you mean 'claim'?"]),
        ("claim = 3\n", ["[[claim]]"]),
        ("claim = [3]\n", ["[[claim]]"]),
        ("papers = 3\n", ["papers must be a table"]),
        (entry(statement="x"), ["claim 'ferret-theorem-1'", "unknown field 'statement'", "'restatement'"]),
        (entry(verdict="PROVEN"), ["unknown field 'verdict'"]),
        (entry(id=None), ["claim number 1", "id is missing"]),
        (entry(place=None), ["claim 'ferret-theorem-1'", "place is missing"]),
        (entry(id=""), ["id must be"]),
        (entry(id="a b"), ["'a b'"]),
        (entry(id=7), ["id must be a text, got 7"]),
        (entry(restatement=" "), ["restatement must not be empty"]),
        (entry(paper="feret"), ["unknown paper 'feret'", "did you mean 'ferret'?"]),
        (entry(method="proofs"), ["unknown method 'proofs'", "did you mean 'proof'?"]),
        (entry(check="prove"), ["claim 'ferret-theorem-1'", "unknown check 'prove'", "'proves'"]),
        (entry(check=None), ["check must be given"]),
        (entry(why="x"), ["why goes with method 'not checkable' only"]),
        (entry(method="not checkable"), ["must be absent where not checkable"]),
        (entry(method="not checkable", check=None), ["why must be given"]),
        (entry(parameters="{ sed = 1 }"), ["unknown parameter of check 'proves'", "did you mean 'seed'?"]),
        (entry(parameters="3"), ["parameters must be a table, got 3"]),
        (entry(parameters="{ seed = 1979-05-27 }"), ["parameters must be numbers, texts, lists and tables"]),
        (entry(place="'x'").replace("'x'", "\\u001b[31m"), ["place must hold no control characters"]),
        (entry() + entry(), ["'ferret-theorem-1' is given twice"]),
        ("a = " + "[" * 10_000, ["is no TOML"]),
        (entry(parameters="{ seed = " + "9" * 5000 + " }"), ["is no TOML"]),
    ],
)
def test_a_bad_ledger_gets_one_line_that_says_where(text: str, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_ledger(path)
    for part in (f"ledger {path}: ", *parts):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_ledger_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^ledger: cannot read .*No such file"):
        load_ledger(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no UTF-8"):
        load_ledger(tmp_path / "binary.toml")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(b"\xef\xbb\xbf" + entry().encode())
    assert [one.id for one in load_ledger(tmp_path / "own.toml")] == ["ferret-theorem-1"]


def test_a_ledger_may_bring_its_own_papers() -> None:
    (one,) = parse_ledger('[papers]\nmine = "Our paper"\n' + entry(paper="mine"))
    assert (one.paper, one.method, one.check) == ("mine", Method.PROOF, "proves")


def test_filters_are_papers_and_beginnings_of_ids() -> None:
    ledger = parse_ledger(
        entry(id="ferret-1") + entry(id="rldp-7", paper="rldp") + entry(id="rldp-8", paper="rldp")
    )
    ids = [one.id for one in select_claims(ledger, ["rldp-8", "ferret"])]
    assert ids == ["ferret-1", "rldp-8"]
    assert select_claims(ledger, []) == ledger
    with pytest.raises(InputError, match="unknown paper or claim 'rlpd'; did you mean 'rldp'"):
        select_claims(ledger, ["ferret", "rlpd"])
    with pytest.raises(InputError, match="unknown paper or claim ''"):
        select_claims(ledger, [""])


def test_an_answer_is_the_checks_own() -> None:
    answer = check_claim(claim("proves", parameters={"seed": 7}))
    assert answer.finding == proves(seed=7)
    assert answer.to_json()["verdict"] == "PROVEN"


def test_what_is_not_checkable_is_undecided_with_its_reason() -> None:
    answer = check_claim(claim(None, id="ferret-x", method=Method.NOT_CHECKABLE, why="no weights"))
    assert answer.verdict is VerdictKind.UNDECIDED
    assert "no weights" in answer.summary


def test_an_inconclusive_check_is_undecided() -> None:
    answer = check_claim(claim("raises_inconclusive"))
    assert answer.verdict is VerdictKind.UNDECIDED
    assert answer.summary == "Z3 answered unknown within 10 s"


@pytest.mark.parametrize(
    ("check", "part"),
    [
        ("divides", "ZeroDivisionError: by zero"),
        ("exits", "SystemExit"),
        ("answers_text", "answered str, not a Finding"),
        ("keeps_an_object", "no plain form for object"),
    ],
)
def test_a_crash_is_a_recorded_failure(check: str, part: str) -> None:
    answer = check_claim(claim(check))
    assert answer.finding is None
    assert part in answer.failure
    assert answer.to_json()["verdict"] is None
    assert answer.to_json()["failure"] == answer.failure


def test_every_claim_gets_its_answer_in_the_ledgers_order() -> None:
    given = [claim(check.__name__) for check in CHECKS]
    told: list[tuple[str, int, int]] = []
    answers = check_claims(given, workers=0, progress=lambda *step: told.append(step))
    assert [answer.claim for answer in answers] == given
    assert told[0] == ("claims", 0, len(CHECKS))
    assert told[-1] == ("claims", len(CHECKS), len(CHECKS))


def test_claims_of_one_attack_are_checked_in_one_process() -> None:
    """They share what the attack keeps of its trainings; claims of other methods are tasks of their own."""
    attacks = [claim("counts", id=f"ferret-{n}", method=Method.ATTACK) for n in range(3)]
    given = [claim("proves"), *attacks, claim("divides")]
    COUNTED.clear()
    answers = check_claims(given, workers=0)
    assert [answer.claim for answer in answers] == given
    assert [answer.summary for answer in answers[1:4]] == ["call 1", "call 2", "call 3"]
    assert [[one.id for one in group] for group in groups(given)] == [
        ["ferret-0", "ferret-1", "ferret-2"],
        ["ferret-proves"],
        ["ferret-divides"],
    ]


@pytest.mark.parametrize("bad", [{"workers": -1}, {"limit_seconds": 0.0}, {"limit_seconds": float("nan")}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        check_claims([claim("proves")], **bad)


PLUGIN = """
import os, sys, time
from workbench.interfaces.findings import Finding
from workbench.interfaces import VerdictKind
from workbench.core.registry import register

def _proven(text):
    return Finding(verdict=VerdictKind.PROVEN, summary=text, evidence=("e",))

@register("claim_check", "own_proves")
def own_proves(*, seed: int = 1):
    return _proven(f"seed {seed}, threads {os.environ.get('OMP_NUM_THREADS')}")

@register("claim_check", "own_prints")
def own_prints():
    print("PRINTED")
    return _proven("printed")

@register("claim_check", "own_dies")
def own_dies():
    os._exit(7)

@register("claim_check", "own_crashes")
def own_crashes():
    raise ZeroDivisionError("by zero")

@register("claim_check", "own_hangs")
def own_hangs():
    time.sleep(600)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[PublishedClaim]:
    """An installed plug-in package of checks, for worker processes to find; its claims."""
    (tmp_path / "own_checks.py").write_text(PLUGIN)
    info = tmp_path / "own_checks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-checks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[workbench.claim_checks]\nown = own_checks\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # Spawned workers get their parent's.
    names = ("own_proves", "own_dies", "own_crashes", "own_proves", "own_prints")
    return [
        claim(name, id=f"{name}-{number}", parameters={"seed": number} if name == "own_proves" else {})
        for number, name in enumerate(names)
    ]


@pytest.mark.slow
def test_a_worker_that_dies_takes_no_other_answer_with_it(plugin: list[PublishedClaim]) -> None:
    answers = check_claims(plugin, workers=2)
    assert [answer.claim for answer in answers] == plugin
    assert [answer.finding is None for answer in answers] == [False, True, True, False, False]
    assert answers[0].summary == "seed 0, threads 1"
    assert answers[3].summary == "seed 3, threads 1"
    assert "the check's process died" in answers[1].failure
    assert "(exit code 7)" in answers[1].failure
    assert "ZeroDivisionError" in answers[2].failure


@pytest.mark.slow
def test_a_check_that_hangs_is_ended(plugin: list[PublishedClaim]) -> None:
    started = time.monotonic()
    answers = check_claims([claim("own_hangs"), plugin[0]], workers=1, limit_seconds=15.0)
    assert time.monotonic() - started < 60.0
    assert "did not answer within 15 s" in answers[0].failure
    assert answers[1].summary.startswith("seed 0")


HANGS = """
import signal, sys
from multiprocessing.context import SpawnProcess
import own_checks
from workbench.checks import run as ledger_run
from workbench.checks.ledger import Method, PublishedClaim

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fields = dict(paper="ferret", place="p", restatement="r", method=Method.PROOF, check="own_hangs")
    start = SpawnProcess.start
    def told(process):
        start(process)
        print(process.pid, flush=True)
    SpawnProcess.start = told
    ledger_run.check_claims([PublishedClaim(id=name, **fields) for name in "ab"], workers=2)
"""


def _runs(pid: int) -> bool:
    """Whether a process is there and at work; one that ended but was not waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 2.0])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_no_worker_outlives_its_parent(
    name: str, delay: float, plugin: list[PublishedClaim], tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    assert plugin
    command = [sys.executable, "hangs.py"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        time.sleep(delay)
        if name == "SIGINT":  # A terminal sends it to all; one that is still importing must not mind.
            for worker in workers:
                os.kill(worker, signal.SIGINT)
            time.sleep(0.5)
        parent.send_signal(signal.Signals[name])
        _, complaints = parent.communicate(timeout=30)
    until = time.monotonic() + 20.0
    while any(map(_runs, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_runs, workers))
    assert complaints.count("Traceback") == (1 if name == "SIGINT" else 0)  # The parent's own.
