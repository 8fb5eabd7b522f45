"""`workbench claims`: what it prints and writes, its exit codes, and that a mistake leaves nothing behind."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from workbench.checks.ledger import load_ledger
from workbench.cli.app import main
from workbench.core import registry
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding, assume

LEDGER = """
[[claim]]
id = "ferret-theorem-1"
paper = "ferret"
place = "Theorem 1, Eq. 6"
restatement = "Each fired group leaks ln 2 nats at most."
method = "proof"
check = "refutes"
parameters = { seed = 3 }

[[claim]]
id = "ferret-table-2"
paper = "ferret"
place = "Table 2"
restatement = "The membership AUC is 0.5."
method = "not checkable"
why = "the weights were not published"

[[claim]]
id = "rldp-theorem-7.10"
paper = "rldp"
place = "Theorem 7.10"
restatement = "The composition holds."
method = "certified computation"
check = "{check}"
"""


def refutes(*, seed: int = 1) -> Finding:
    """A refutation with numbers that JSON does not have."""
    return Finding(
        verdict=VerdictKind.REFUTED,
        summary="epsilon is [red]infinite[/red]",
        evidence=("first line", f"seed {seed}"),
        counterexample={"epsilon": math.inf, "steps": 10, "delta": 1e-5},
    )


def holds_under() -> Finding:
    """Holds under an assumption."""
    return Finding(
        verdict=VerdictKind.HOLDS_UNDER,
        summary="holds if q is 1",
        evidence=("e",),
        assumptions=(assume("the sampling probability is 1", lambda q: q == 1, left_open={"q": (0.5, 1)}),),
        confidence=0.99,
    )


def crashes() -> Finding:
    """Crash."""
    raise RuntimeError("no\nluck")


@pytest.fixture(autouse=True)
def _ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ledgers in the current folder; the second one's last check crashes."""
    known = {
        check.__name__: registry.Entry(name=check.__name__, factory=check, summary="")
        for check in (refutes, holds_under, crashes)
    }
    monkeypatch.setattr(registry, "entries", lambda kind: known)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(LEDGER.replace("{check}", "holds_under"))
    (tmp_path / "crash.toml").write_text(LEDGER.replace("{check}", "crashes"))


def run(words: str, capsys: pytest.CaptureFixture[str], ledger: str = "good.toml") -> tuple[int, str, str]:
    code = main(["claims", *words.split(), "--jobs", "0", "--ledger", ledger])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_refuted_claim_is_a_finding_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("", capsys)
    assert code == 0
    rows = [line for line in out.splitlines() if re.match(r"\s*(ferret|rldp)-", line)]
    assert [row.split()[0] for row in rows] == ["ferret-theorem-1", "ferret-table-2", "rldp-theorem-7.10"]
    for row, verdict in zip(rows, ("REFUTED", "UNDECIDED", "HOLDS_UNDER"), strict=True):
        assert verdict in row
    assert "[red]infinite[/red]" in rows[0]  # A summary is text, not markup.
    assert "3 claims: 1 REFUTED, 1 HOLDS_UNDER, 1 UNDECIDED" in out


def test_a_crash_is_in_the_ledger_and_in_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run("--json out.json", capsys, "crash.toml")
    assert code == 3
    assert "FAILED" in out
    last = json.loads((tmp_path / "out.json").read_text())["claims"][-1]
    assert last["verdict"] is None
    assert last["failure"] == "the check failed: RuntimeError: no luck"
    code, out, _ = run("--explain rldp-theorem-7.10", capsys, "crash.toml")
    assert code == 3
    assert "Traceback" in out
    assert run("ferret", capsys, "crash.toml")[0] == 0


def test_filters_and_method_choose_rows(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("rldp ferret-th", capsys)
    assert "2 claims" in out
    assert "Table 2" not in out
    code = main(["claims", "--ledger", "good.toml", "--jobs", "0", "--method", "certified computation"])
    assert code == 0
    assert "1 claim: 1 HOLDS_UNDER" in capsys.readouterr().out
    code = main(["claims", "rldp", "--ledger", "good.toml", "--jobs", "0", "--method", "proof"])
    assert code == 0
    assert "0 claims: none" in capsys.readouterr().out


def test_explain_shows_the_evidence_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--explain ferret-theorem-1", capsys)
    assert code == 0
    for part in (
        "ferret-theorem-1 REFUTED",
        "Place: ferret, Theorem 1, Eq. 6",
        "Claim: Each fired group leaks ln 2 nats at most.",
        "Method: proof",
        "Check: refutes(seed=3)",
        f"Function: {refutes.__module__}:refutes",
        "- first line",
        "- seed 3",
        '- epsilon = "inf"',
        "- steps = 10",
    ):
        assert part in out
    _, out, _ = run("--explain rldp-theorem-7.10", capsys)
    assert "Confidence: 99 %" in out
    assert "- the sampling probability is 1" in out


def test_the_json_file_is_json_and_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json new/out.json", capsys)[0] == 0

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    content = json.loads((tmp_path / "new" / "out.json").read_text(), parse_constant=refuse)
    assert content["schema"] == 2
    assert content["counts"] == {"REFUTED": 1, "HOLDS_UNDER": 1, "UNDECIDED": 1}
    assert {"lm-privacy-workbench", "python", "python-flint", "z3-solver"} <= set(content["versions"])
    first = content["claims"][0]
    assert first.pop("seconds") >= 0
    assert first == {
        "id": "ferret-theorem-1",
        "paper": "ferret",
        "place": "Theorem 1, Eq. 6",
        "restatement": "Each fired group leaks ln 2 nats at most.",
        "method": "proof",
        "check": "refutes",
        "parameters": {"seed": 3},
        "weaker": {},
        "stronger": {},
        "altered": {},
        "function": f"{refutes.__module__}:refutes",
        "why": "",
        "verdict": "REFUTED",
        "summary": "epsilon is [red]infinite[/red]",
        "evidence": ["first line", "seed 3"],
        "counterexample": {"epsilon": "inf", "steps": 10, "delta": 1e-5},
        "assumptions": [],
        "confidence": None,
        "failure": None,
    }


@pytest.mark.parametrize("columns", [30, 79, 120])
def test_a_terminal_of_any_width_keeps_every_word(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert run("ferret --quiet", capsys)[0] == 0
    main(["claims", "ferret", "--quiet", "--jobs", "0", "--ledger", "good.toml"])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= columns
    for word in ("ferret-theorem-1", "REFUTED", "Theorem", "published"):
        assert word in out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("feret", ["unknown paper or claim 'feret'", "did you mean 'ferret'?"]),
        ("--method proofs", ["unknown method 'proofs'", "did you mean 'proof'?"]),
        ("--explain ferret", ["unknown claim 'ferret'", "did you mean"]),
        ("--explain ferret-table-2 rldp", ["--explain takes one claim's id"]),
        ("--json folder", ["--json must be a file, got the folder 'folder'"]),
        ("--json good.toml/x.json", ["--json 'good.toml/x.json' lies below"]),
        ("--json /dev/null", ["--json must be a regular file"]),
        ("--json good.toml", ["--json and --ledger are the same file"]),
        ("--workers -1", ["--workers must be a whole number >= 0, got -1"]),
        ("--jobs -1", ["--workers must be a whole number >= 0, got -1"]),
        ("--jobs 1 --scheduler tcp://h:1", ["--workers and --scheduler exclude each other"]),
        ("--scheduler h:1", ["--scheduler must be tcp://HOST:PORT, got 'h:1'"]),
        ("--jobs many", ["--jobs"]),
    ],
)
def test_a_mistake_gets_one_line_and_exit_2(
    words: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    code = main(["claims", "--ledger", "good.toml", *words.split()])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    for part in ("error: ", *parts):
        assert part in captured.err
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_the_shipped_ledger_is_well_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # The real registry.
    ledger = load_ledger()
    assert {claim.paper for claim in ledger} == {"ferret", "rldp", "paczero", "dp_weights", "shuffled_dp_sgd"}
    assert len(ledger) >= 30
