"""Every file that a user gives, in every state that a file may be in: read, or refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from workbench.cli.app import main

MEMBERS = np.random.default_rng(0).random(60) < 0.5
SCORES = np.random.default_rng(1).normal(size=60).round(6)
CSV = "\n".join(["score,member", *(f"{s},{int(m)}" for s, m in zip(SCORES, MEMBERS, strict=True)), ""])
TEXTS = [f"the {number}th record of the list" for number in range(20)]
JSONL = "".join(f"{json.dumps({'text': text})}\n" for text in TEXTS)
TRAINER = "# A trainer.\ndef train(records, seed): ...\nraise ValueError('was imported')\n"
LEDGER = (
    '[papers]\nmine = "Mine"\n[[claim]]\nid = "mine-1"\npaper = "mine"\nplace = "p. 1"\n'
    'restatement = "It is so."\nmethod = "not checkable"\nwhy = "No code."\n'
)
STUDY = """
schema = 1
title = "Mine"
replication = "seed"
[base]
corpus = "digits"
model = "digits_logistic"
members = 20
epochs = 1
batch_size = 10
optimizer = "sgd"
learning_rate = 0.05
attack = "loss"
delta = "1/N^2"
[lists]
seeds = [0, 1]
[profile.quick]
[variant."Plain"]
mechanism = "non_private"
without = ["epsilon"]
[[group]]
name = "g"
grid = { epsilon = [1], seed = "$seeds" }
"""
REPORT = json.dumps({"subjects": [{"attacks": []}]})
RUN = json.dumps({"watched_run": 1}) + "\n"


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, score=SCORES, member=MEMBERS)
    return buffer.getvalue()


def _parquet(columns: Mapping[str, object]) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(dict(columns)), sink)
    return bytes(sink.getvalue().to_pybytes())


@dataclass(frozen=True)
class Target:
    """A kind of file: its name, usable content, the command that reads it, and how that ends with it."""

    name: str
    good: bytes
    words: str
    code: int
    says: str = ""
    """Part of the line with which the command ends after it has read the file, where that is an error."""
    reads: frozenset[str] = frozenset()
    """States in which the file is as good as untouched."""
    is_binary: bool = False
    """Whether a reader of such files may overlook some of the bytes."""


TEXT_STATES = frozenset({"bom", "crlf"})
LUCKY = frozenset(
    {"nul", "latin", "bom", "crlf", "cr", "surrogate", "controls", "twice", "line", "quotes", "zip"}
)
"""States in which a binary file may happen to be read."""
AUDIT = "audit --seed 0 --quiet --out out"
CHECKPOINT = "audit --checkpoint model --out out --nonmembers others.txt --members"

TARGETS = {
    "scores.csv": Target("x.csv", CSV.encode(), f"{AUDIT} --scores x.csv", 0, reads=TEXT_STATES | {"cr"}),
    "scores.csv.gz": Target("x.csv.gz", gzip.compress(CSV.encode()), f"{AUDIT} --scores x.csv.gz", 0),
    "scores.npz": Target("x.npz", _npz(), f"{AUDIT} --scores x.npz", 0, is_binary=True),
    "scores.parquet": Target(
        "x.parquet", _parquet({"score": SCORES, "member": MEMBERS}), f"{AUDIT} --scores x.parquet", 0,
        is_binary=True,
    ),
    "run": Target("x.run", RUN.encode(), f"{AUDIT} --run x.run", 3, reads=frozenset({"crlf"})),
    "ledger": Target("x.toml", LEDGER.encode(), "claims --ledger x.toml", 0, reads=TEXT_STATES),
    "study": Target(
        "x.toml", STUDY.encode(), "report x.toml", 2, "holds no result", reads=TEXT_STATES
    ),
    "cost": Target(
        "x.json", REPORT.encode(), "plan --game membership --trials 100 --cost-from x.json", 0,
        reads=TEXT_STATES | {"cr"},
    ),
    "trainer": Target(
        "x.py", TRAINER.encode(), "replay x.py:train --out out", 2, "was imported",
        reads=TEXT_STATES | {"cr", "twice", "latin", "line"},
    ),
    "trained": Target(
        "x.py", TRAINER.encode(), "audit --train x.py:train --out out", 2, "was imported",
        reads=TEXT_STATES | {"cr", "twice", "latin", "line"},
    ),
    "members.jsonl": Target(
        "x.jsonl", JSONL.encode(), f"{CHECKPOINT} x.jsonl", 2, "--checkpoint",
        reads=TEXT_STATES | {"cr", "twice"},
    ),
    "members.csv": Target(
        "x.csv", ("text\n" + "\n".join(TEXTS)).encode(), f"{CHECKPOINT} x.csv", 2, "--checkpoint",
        reads=TEXT_STATES | {"cr", "twice", "cut", "short", "nul", "controls", "line", "quotes"},
    ),
    "members.txt": Target(
        "x.txt", "\n".join(TEXTS).encode(), f"{CHECKPOINT} x.txt", 2, "--checkpoint",
        reads=TEXT_STATES | {"cr", "twice", "cut", "short", "nul", "controls", "zip", "line", "quotes"},
    ),
    "members.parquet": Target(
        "x.parquet", _parquet({"text": TEXTS}), f"{CHECKPOINT} x.parquet", 2, "--checkpoint",
        is_binary=True,
    ),
}  # fmt: skip

STATES: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "blank": lambda good: b" \n\n\t \n",
    "zeros": lambda good: b"\0" * 200,
    "random": lambda good: bytes(np.random.default_rng(2).integers(0, 256, 4000, dtype=np.uint8)),
    "nul": lambda good: good[: len(good) // 2] + b"\0" + good[len(good) // 2 :],
    "latin": lambda good: good[:3] + b"\xe9" + good[3:],
    "utf-16": lambda good: good.decode("latin-1").encode("utf-16"),
    "utf-32": lambda good: good.decode("latin-1").encode("utf-32"),
    "bom": lambda good: b"\xef\xbb\xbf" + good,
    "crlf": lambda good: good.replace(b"\n", b"\r\n"),
    "cr": lambda good: good.replace(b"\n", b"\r"),
    "surrogate": lambda good: good + b"\xed\xa0\x80\n",
    "controls": lambda good: good + b"\x1b[31m\n",
    "cut": lambda good: good[: 2 * len(good) // 3],
    "short": lambda good: good[:-3],
    "twice": lambda good: good + good,
    "line": lambda good: good + b"x" * 3_000_000 + b"\n",
    "quotes": lambda good: good + b'"""\'"\n',
    "brackets": lambda good: b"[" * 100_000 + b"\n",
    "objects": lambda good: b'{"a":' * 50_000 + b"\n",
    "digits": lambda good: b"9" * 10_000 + b"\n",
    "zip": lambda good: b"PK\x03\x04" + good,
    "gzip": lambda good: gzip.compress(good) + b"rest",
    "pickle": lambda good: b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85R.",
    "elf": lambda good: b"\x7fELF" + bytes(100),
}
"""What may have become of a file."""

PLACES: Mapping[str, Callable[[Path], None]] = {
    "missing": lambda place: None,
    "folder": lambda place: place.mkdir(),
    "pipe": os.mkfifo,
    "endless": lambda place: place.symlink_to("/dev/zero"),
    "terminal": lambda place: place.symlink_to("/dev/tty"),
    "loop": lambda place: place.symlink_to(place.name),
    "dangling": lambda place: place.symlink_to("nowhere"),
    "below a file": lambda place: None,
    "long": lambda place: None,
}
"""What may stand in a file's place."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with what the commands need besides; whoever waits for a pipe is woken after a minute."""
    monkeypatch.chdir(tmp_path)
    Path("others.txt").write_text("\n".join(text.upper() for text in TEXTS), encoding="utf-8")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}", encoding="utf-8")

    def late(number: int, frame: FrameType | None) -> None:
        pytest.fail("the command waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def ended(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the error line of a command; asserts that there is no more to read where it fails."""
    code = main(words)
    captured = capsys.readouterr()
    if code == 2:
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        assert len(captured.err) < 2500
    assert "Traceback" not in captured.err
    for advice in ("allow_pickle", "pickle.load", "weights_only", "trust_remote_code"):
        assert advice not in captured.err
    return code, captured.err


def thinned(kinds: Iterable[str]) -> list[Any]:
    """Every kind of file with each of these; a third of the pairs, in which all occur, are quick."""
    return [
        pytest.param(name, kind, marks=() if (row + column) % 3 == 0 else pytest.mark.slow)
        for row, name in enumerate(TARGETS)
        for column, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("name", TARGETS)
def test_the_untouched_file_is_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = TARGETS[name]
    Path(target.name).write_bytes(target.good)
    code, said = ended(shlex.split(target.words), capsys)
    assert code == target.code
    assert target.says in said


@pytest.mark.parametrize(("name", "state"), thinned(STATES))
def test_a_spoilt_file_is_refused_in_one_line(
    name: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = TARGETS[name]
    Path(target.name).write_bytes(STATES[state](target.good))
    code, said = ended(shlex.split(target.words), capsys)
    is_read = code == target.code and target.says in said and (code != 2 or bool(target.says))
    if not target.is_binary or state not in LUCKY:
        assert is_read == (state in target.reads), said
    assert is_read or code == 2


@pytest.mark.parametrize(("name", "place"), thinned(PLACES))
def test_what_is_no_file_is_refused_in_one_line(
    name: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = TARGETS[name]
    PLACES[place](Path(target.name))
    given = {"below a file": f"others.txt/{target.name}", "long": "y" * 300 + target.name}
    words = target.words.replace(target.name, given.get(place, target.name))
    code, said = ended(shlex.split(words), capsys)
    assert code == 2
    assert not target.says or target.says not in said
