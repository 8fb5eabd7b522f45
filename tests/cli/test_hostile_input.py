"""Hostile words and files: each gets one line and exit code 2, and never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.cli.app import COMMANDS, callback_of, loaded, main
from workbench.core.outputs import require_file_place, require_folder_place, write_atomically

CLAIM = "epsilon=1,delta=1e-5,adjacency=add-remove"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with usable scores, and things that are not what they seem."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    members = generator.random(40) < 0.5
    rows = [
        f"{score},{int(member)}" for score, member in zip(generator.normal(size=40), members, strict=True)
    ]
    text = "\n".join(["score,member", *rows])
    Path("scores.csv").write_text(text, encoding="utf-8")
    with gzip.open("scores.csv.gz", "wt") as file:
        file.write(text)
    Path("not.csv.gz").write_text(text, encoding="utf-8")
    Path("under.csv").write_text("score,member\n1_000,1\n2,0\n", encoding="utf-8")
    Path("wide.csv").write_text("score,member\n１２,1\n2,0\n", encoding="utf-8")
    Path("huge.csv").write_text("score,member\n1e999,1\n2,0\n", encoding="utf-8")
    Path("same.csv").write_text("score,member\n1,1\n1,0\n", encoding="utf-8")
    Path("bytes.csv").write_bytes(bytes(range(256)) * 4)
    half = [f"{place % 7},{place % 2}" for place in range(1000)]
    Path("half.csv").write_text("\n".join(["score,member", *half]), encoding="utf-8")
    Path("empty").touch()
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("there").symlink_to("back")
    Path("proc.xml").symlink_to("/proc/x.xml")
    Path("back").symlink_to("there")
    Path("train.py").write_text("def train(records, seed): ...\n", encoding="utf-8")
    Path("long" * 40).touch()


REFUSED = [
    (
        "audit --candidates 5000 --corpus digits",
        "--candidates must leave room for held_out and public: 5000 + ",
    ),
    # Links that lead in a circle, wherever a path is taken.
    ("audit --scores loop", "--scores 'loop' cannot be opened: Too many levels of symbolic links"),
    ("audit --scores there", "--scores 'there' cannot be opened"),
    ("audit --scores scores.csv --out loop", "--out 'loop' cannot be opened"),
    ("audit --scores scores.csv --out loop/below", "--out 'loop/below' cannot be opened"),
    ("audit --scores scores.csv --json loop", "--json 'loop' cannot be opened"),
    ("audit --scores scores.csv --junit there", "--junit 'there' cannot be opened"),
    ("audit --train loop:train", "--train 'loop' cannot be opened"),
    ("audit --run loop", "--run 'loop' cannot be opened"),
    (
        "audit --checkpoint loop --members empty --nonmembers scores.csv",
        "--checkpoint 'loop' cannot be opened",
    ),
    ("audit --checkpoint folder --members loop --nonmembers empty", "--members 'loop' cannot be opened"),
    ("replay loop:train", "FUNCTION 'loop' cannot be opened"),
    ("replay train.py:train --emit-test loop", "--emit-test 'loop' cannot be opened"),
    ("replay train.py:train --emit-test test.txt", "--emit-test must end in .py, got 'test.txt'"),
    ("plan --cost-from loop", "--cost-from 'loop' cannot be opened"),
    ("plan --json there", "--json 'there' cannot be opened"),
    ("claims --ledger loop", "--ledger 'loop' cannot be opened"),
    ("claims --json loop", "--json 'loop' cannot be opened"),
    ("run ferret --out loop", "--out 'loop' cannot be opened"),
    ("run ferret --base llama_base=loop", "--base 'loop' cannot be opened"),
    ("report ferret --out loop", "--out 'loop' cannot be opened"),
    ("accountants check certified --json loop", "--json 'loop' cannot be opened"),
    # Numbers.
    ("audit --candidates 99999999999", "--candidates must be at most"),
    ("replay train.py:train --candidates 99999999999", "--candidates must be at most"),
    ("audit --train train.py:train --candidates 99999999999", "--candidates must be at most"),
    ("audit --scores scores.csv --seed 1e3", "'--seed': must be a whole number, got '1e3'"),
    ("audit --claim epsilon=1;delta=1e-5", "--claim must have commas between its pairs"),
    ("plan --cost-from none.json", "--cost-from: cannot read none.json: No such file"),
    ("audit --scores none.csv", "--scores: file 'none.csv' does not exist"),
    ("claims --ledger none.toml", "--ledger: cannot read 'none.toml': No such file"),
    ("audit --scores scores.csv --seed 1_000", "'--seed': '1_000' is not a number"),
    ("audit --epsilon 1_0.0", "'--epsilon': '1_0.0' is not a number"),
    ("audit --epsilon 1e999", "'--epsilon': '1e999' is too large"),
    ("audit --epsilon inf", "--epsilon must be finite"),
    ("audit --scores scores.csv --seed 99999999999999999999999", "--seed must be at most"),
    ("audit --scores scores.csv --confidence 0.99999999999", "--confidence must be at most 1 - 1e-9"),
    ("audit --scores scores.csv --confidence 1", "--confidence must be in (0.5, 1)"),
    ("plan --trials 1_00", "'--trials': '1_00' is not a number"),
    ("plan --trials 99999999999", "--trials must be at most 100000"),
    ("plan --confidence 0.99999999999", "--confidence must be at most"),
    ("plan --steps 0", "--steps must be a whole number >= 1"),
    (
        f"audit --scores scores.csv --claim {CLAIM.replace('=1,', '=1_0,')}",
        "epsilon must be a number, got '1_0'",
    ),
    (f"audit --scores scores.csv --claim {CLAIM.replace('=1,', '=１,')}", "epsilon must be a number"),
    (f"audit --scores scores.csv --claim {CLAIM.replace('=1,', '=1e999,')}", "epsilon must be finite"),
    ("audit --scores scores.csv --prior 1e-300", "--prior must be in [1e-09, 1 - 1e-09], got 1e-300"),
    ("audit --scores scores.csv --prior 0.9999999999999", "--prior must be in [1e-09, 1 - 1e-09]"),
    ("plan --prior 1e-300", "--prior must be in [1e-09, 1 - 1e-09]"),
    # Places that take no file, although nobody's permission is lacking.
    ("audit --scores scores.csv --out /proc/out", "--out '/proc/out' cannot be written"),
    ("audit --scores scores.csv --json /proc/report.json", "--json '/proc/report.json' cannot be"),
    ("audit --scores scores.csv --junit /sys/report.xml", "--junit '/sys/report.xml' cannot be"),
    ("audit --out /proc/out", "--out '/proc/out' cannot be written"),
    ("replay train.py:train --out /proc/out", "--out '/proc/out' cannot be written"),
    ("plan --game membership --json /proc/plan.json", "--json '/proc/plan.json' cannot be"),
    ("accountants check certified --junit /proc/x.xml", "--junit '/proc/x.xml' cannot be written"),
    ("accountants check certified --json /proc/new/x.json", "--json '/proc/new/x.json' cannot be written"),
    ("audit --scores scores.csv --junit proc.xml", "--junit 'proc.xml' cannot be written"),
    # Words.
    ("mechanisms list", "no command 'mechanisms'; did you mean 'workbench list mechanisms'?"),
    ("attacks", "no command 'attacks'; did you mean 'workbench list attacks'?"),
    ("fetch data vader", "no command 'fetch'; did you mean 'workbench data fetch'?"),
    ("check accountants certified", "did you mean 'workbench accountants check'?"),
    ("list mechanism", "unknown list 'mechanism'; did you mean 'mechanisms'?"),
    ("list zzz", "unknown list 'zzz'; known: accountants, attacks, claims"),
    ("audit --scores ''", "'--scores': it is empty"),
    ("audit --scores scores.csv --out ''", "'--out': it is empty"),
    ("audit --scores= ", "'--scores': it is empty"),
    ("audit --scores scores.csv --seed 1 --seed 2", "'--seed': it is given 2 times"),
    ("audit --scores scores.csv --scores scores.csv", "'--scores': it is given 2 times"),
    (f"plan --claim {CLAIM} --claim {CLAIM}", "'--claim': it is given 2 times"),
    ("audit --scores scores.csv --trials both", "'both' is not one of"),
    ("audit --scores scores.csv --trials ''", "--trials"),
    ("audit --scores half.csv", "--prior must be stated: exactly half of the 1000 labels are members"),
    # Files.
    ("audit --scores not.csv.gz", "is not a readable CSV file"),
    ("audit --scores under.csv", "row 1: must be a number, got '1_000'"),
    ("audit --scores wide.csv", "row 1: must be a number, got '１２'"),
    ("audit --scores huge.csv", "row 1: must be finite, got '1e999'"),
    ("audit --scores same.csv", "column 'score' is constant (1 in all 2 rows)"),
    ("audit --scores bytes.csv", "is not a readable CSV file"),
    ("audit --scores empty", "must end in one of"),
    ("audit --scores folder", "must end in one of"),
    ("audit --run empty", "empty"),
    ("audit --run folder", "folder"),
    ("replay folder:train", "file 'folder' is not a file"),
    ("replay empty:train", "defines no function"),
    ("replay train.py:", "FUNCTION must be path/to/file.py:function"),
    ("plan --cost-from empty", "is no report of an audit"),
    ("plan --cost-from folder", "cannot read folder: Is a directory"),
    ("claims --ledger empty", "empty"),
    ("run empty", "empty"),
    ("run folder", "folder"),
    ("accountants check none:none", "cannot import 'none'"),
]


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[words for words, _ in REFUSED])
def test_one_line_and_exit_2(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path.cwd().rglob("*"))
    assert main(shlex.split(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sorted(Path.cwd().rglob("*")) == before
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert "Input should be" not in captured.err
    assert "Value error" not in captured.err


def _paths() -> Iterator[tuple[str, str]]:
    for name in COMMANDS:
        given = signature(callback_of(name))
        hints = {parameter.name: str(parameter.annotation) for parameter in given.parameters.values()}
        command: Any = loaded(name)
        for parameter in command.params:
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            if "Path" in hints.get(parameter.name, "") and flags:
                yield name, flags[0]


WITH_A_PATH = tuple(_paths())
NEEDED = {
    "replay": "train.py:train",
    "run": "ferret",
    "report": "ferret",
    "accountants check": "certified",
    "--members": "--checkpoint folder --nonmembers scores.csv",
    "--nonmembers": "--checkpoint folder --members scores.csv",
    "--reference": "--checkpoint folder --members scores.csv --nonmembers empty",
    "--checkpoint": "--members scores.csv --nonmembers empty",
    "--json": "--scores scores.csv",
    "--junit": "--scores scores.csv",
}


def test_there_are_options_that_take_paths() -> None:
    assert len(WITH_A_PATH) >= 16


@pytest.mark.parametrize("place", ["loop", "there", "loop/below", "long" * 80])
@pytest.mark.parametrize(("name", "flag"), WITH_A_PATH)
def test_every_path_is_refused_where_links_lead_in_a_circle(
    name: str, flag: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = NEEDED.get(name, NEEDED.get(flag, "") if name == "audit" else "")
    assert main([*name.split(), *shlex.split(needed), flag, place]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{flag} {place!r} cannot be opened: " in said


MOUNTED = "mount -t tmpfs -o ro none still && exec"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts nothing")
@pytest.mark.parametrize("words", ["audit --out still/out", "audit --scores scores.csv --json still/r.json"])
def test_a_read_only_file_system_is_called_so(words: str) -> None:
    Path("still").mkdir()
    mounted = ["unshare", "-m", "sh", "-c", f"{MOUNTED} true"]
    if subprocess.run(mounted, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounts nothing")
    mounted[-1] = f"{MOUNTED} {shlex.quote(sys.executable)} -m workbench.cli {words}"
    ended = subprocess.run(mounted, check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.endswith("cannot be written: read-only file system\n")


@pytest.mark.parametrize("has_unnamed_files", [True, False])
def test_a_place_is_tried_and_left_as_it_was(
    has_unnamed_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_unnamed_files:
        monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", False)
    before = sorted(Path.cwd().rglob("*"))
    for check in (require_file_place, require_folder_place):
        check("--out", Path("new/below/x"))
        check("--out", Path("x"))
    require_folder_place("--out", Path("folder"))
    require_file_place("--out", Path("scores.csv"))
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_name_of_the_longest_length_is_written() -> None:
    place = Path("é" * 125 + ".json")
    write_atomically(place, "{}")
    assert place.read_text(encoding="utf-8") == "{}"


def test_gzipped_scores_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--scores", "scores.csv.gz", "--quiet"]) in (0, 3)
    assert main(["audit", "--scores", "scores.csv", "--quiet"]) in (0, 3)
    zipped, plain = capsys.readouterr().out.splitlines()
    assert zipped == plain


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--trials independent",
        "--trials independent --family gaussian",
        "--trials independent --claim alpha=4,renyi=1,adjacency=add-remove",
        "--sequential",
    ],
)
def test_the_largest_scores_give_no_warning(more: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Their differences and squares overflow; a warning of numpy's would fail the test."""
    text = Path("scores.csv").read_text(encoding="utf-8")
    Path("large.csv").write_text(f"{text}\n1e308,1\n-1e308,0\n", encoding="utf-8")
    assert main(shlex.split(f"audit --scores large.csv --quiet {more}")) in (0, 3)
    assert capsys.readouterr().err == ""


NOISY = """
import os

print("noise at import")


def train(records, seed):
    print("noise")
    os.write(1, b"noise of C code")
    return lambda others: [float(len(other["text"]) + len(other["id"]) % 3) for other in others]


def stops(records, seed):
    raise KeyboardInterrupt("mine")
"""


@pytest.mark.parametrize(
    "words",
    ["replay noisy.py:train --candidates 40", "audit --train noisy.py:train --candidates 60 --no-replay"],
)
def test_what_a_trainer_prints_is_not_in_the_report_on_the_output_stream(words: str) -> None:
    Path("noisy.py").write_text(NOISY, encoding="utf-8")
    starts = "import sys; from workbench.cli.entry import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        starts,
        *words.split(),
        "--corpus",
        "digits",
        "--json",
        "-",
        "--out",
        "out",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert json.loads(done.stdout)["schema"] == 1
    assert done.returncode in (0, 1, 3)
    assert all(words in done.stderr for words in ("noise at import", "noise\n", "noise of C code"))


@pytest.mark.parametrize(
    "words",
    ["replay noisy.py:stops --candidates 40", "audit --train noisy.py:stops --candidates 60 --no-replay"],
)
def test_an_interrupt_that_a_trainer_raises_is_its_fault(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("noisy.py").write_text(NOISY, encoding="utf-8")
    assert main([*words.split(), "--corpus", "digits", "--out", "out", "--quiet"]) == 2
    assert "error: noisy.py:14: KeyboardInterrupt: mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "plan --out o\udcff",
            "what follows --out must be text in UTF-8, got 'o\\udcff'",
        ),
        ("audit --scores s\udcff.csv", "what follows --scores must be text in UTF-8, got 's\\udcff.csv'"),
        ("plan --json=j\udcff", "an argument must be text in UTF-8, got '--json=j\\udcff'"),
        ("list \udcff", "an argument must be text in UTF-8, got '\\udcff'"),
    ],
)
def test_what_is_no_text_is_refused_by_its_option(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(os.listdir())
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"error: {says}\n"
    assert sorted(os.listdir()) == before


def test_numbers_do_not_become_others_by_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    claim = "epsilon=1,delta=1e-400,adjacency=add-remove"
    assert main(["audit", "--scores", "scores.csv", "--claim", claim]) == 2
    assert "claim: delta is too small for a float, got '1e-400'" in capsys.readouterr().err
    assert main(["audit", "--scores", "scores.csv", "--confidence", "0.99999", "--out", "out", "-q"]) in (
        0,
        3,
    )
    assert "99.999 % confidence" in capsys.readouterr().out


STARTS = "import sys; print('started', flush=True)\nfrom workbench.cli.entry import main; sys.exit(main())"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 1, 3, 6, 10])
@pytest.mark.parametrize("words", ["audit --out out", "replay trainer.py:train --out out"])
def test_an_interrupt_at_any_moment_is_one_line_and_exit_130(words: str, seconds: float) -> None:
    """Also while the command, or its workers, still import; the signal goes to all, as a terminal's does."""
    Path("trainer.py").write_text(
        "import time\n\ndef train(records, seed):\n    time.sleep(60)\n", encoding="utf-8"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS, *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(seconds)
    struck = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    # Three seconds on a quiet machine; others' work counts here.
    assert time.monotonic() - struck < float(os.environ.get("WORKBENCH_INTERRUPT_SECONDS", "30"))
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in said
