"""Random files and words for every parser: each answers or refuses in one line.

The short part is the same in every run; the slow one (`pytest -m slow`) draws anew, for ten CPU minutes.
"""

from __future__ import annotations

import gzip
import io
import json
import time
import tomllib
from collections.abc import Callable, Mapping
from itertools import count, takewhile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from workbench.audit.claims import claimed
from workbench.audit.replay.stated import stated_from
from workbench.audit.report_file import read_report
from workbench.audit.scores_file import read_scores
from workbench.audit.watched.run_file import read_run
from workbench.checks.ledger import load_ledger
from workbench.cli.accountants import AskOptions, _event
from workbench.cli.parameters import parameters
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.inputs import parsed_json
from workbench.core.registry import create
from workbench.execution.store import Store
from workbench.interfaces import Released
from workbench.studies.study import load_study

SLOW_CPU_SECONDS = 600.0


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, score=[0.5, 1.5], member=[0, 1])
    return buffer.getvalue()


def _file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def parse(folder: Path, content: bytes) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return parse


def _text(parse: Callable[[str], object]) -> Callable[[Path, bytes], object]:
    return lambda folder, content: parse(content.decode("utf-8", "replace"))


def _stored(folder: Path, content: bytes) -> object:
    store = Store(folder / "store")
    (folder / "store/records/key.json").write_bytes(content)
    return store.read("key")


def _records(path: Path) -> object:
    return create("records", "file", path=str(path), prefix="p")


def _parquet() -> bytes:
    buffer = io.BytesIO()
    pd.DataFrame({"text": ["one", "two"]}).to_parquet(buffer)
    return buffer.getvalue()


def _model(folder: Path, content: bytes) -> object:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/config.json").write_bytes(content)
    save_file({"wte.weight": torch.zeros(8, 4)}, folder / "model/model.safetensors")
    return create("model", "huggingface", seed=0, path=str(folder / "model"))


def _json_or_not(text: str) -> object:
    try:
        return parsed_json(text)
    except ValueError:
        return None


PARSERS: Mapping[str, tuple[Callable[[Path, bytes], object], bytes]] = {
    "scores.csv": (_file("x.csv", read_scores), b"score,member,id,text\n0.5,0,a,t\n1.5,1,b,u\n"),
    "scores.npz": (_file("x.npz", read_scores), _npz()),
    "scores.parquet": (_file("x.parquet", read_scores), b"PAR1\x15\x04\x15\x10PAR1"),
    "scores.csv.gz": (
        _file("x.csv.gz", read_scores),
        gzip.compress(b"score,member\n0.5,0\n1.5,1\n", mtime=0),
    ),
    "members.txt": (_file("x.txt", _records), b"one\ntwo\n"),
    "members.tsv": (_file("x.tsv", _records), b'text\tlabel\n"a\tb"\t1\nc\t0\n'),
    "members.parquet": (_file("x.parquet", _records), _parquet()),
    "members.jsonl": (
        _file("x.jsonl", _records),
        b'{"text": "one"}\n{"text": "two"}\n',
    ),
    "members.csv": (
        _file("x.csv", _records),
        b'text,label\n"a, b",1\nc,0\n',
    ),
    "study": (_file("x.toml", lambda path: load_study(str(path))), b'schema = 1\ntitle = "A"\n[base]\n'),
    "ledger": (_file("x.toml", load_ledger), b'[papers]\nmine = "M"\n[[claim]]\nid = "a"\npaper = "mine"\n'),
    "run": (_file("x.run", read_run), b'{"watched_run": 1, "records": 5}\n{"step": 1}\n{"end": "done"}\n'),
    "report": (_file("x.json", read_report), json.dumps({"subjects": [{"attacks": [{}]}]}).encode()),
    "store": (_stored, b'{"sha256": "00", "content": {"a": 1}}'),
    "claim": (
        _text(lambda text: claimed(text, released=Released.SCORES)),
        b"epsilon=1,delta=1e-5,adjacency=add-remove",
    ),
    "event": (
        _text(lambda text: _event(AskOptions(targets=[], delta=1e-5, event=text))),
        b'{"event": "Gaussian", "noise_multiplier": 1.5, "count": 3}',
    ),
    "stated": (
        _text(lambda text: stated_from(parameters("--stated", [text]))),
        b"noise_multiplier=1.5",
    ),
    "model folder": (
        _model,
        b'{"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "vocab_size": 8}',
    ),
    "parameter": (_text(lambda text: parameters("--parameter", [text])), b"key=1e-5"),
    "json": (_text(_json_or_not), b'{"a": [1, 2.5, null]}'),
}


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """A usable content with parts cut, repeated, replaced by random bytes or by marks of its own grammar."""
    content = good
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 12)))
        put = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from(
                    [
                        *(b"", b"nan", b"1e999", b"-1", b"0", b"true", b"null", b"[", b"]", b"{", b"}", b'"'),
                        *(b"\n", b",", b"=", b"\0", b"\xef\xbb\xbf", b"\r", b"9" * 5000, b"[" * 3000),
                        content[start:end] * 2,
                    ]
                ),
                st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")),
            )
        )
        content = content[:start] + put + content[end:]
    return content


def answers_or_refuses(name: str, folder: Path, content: bytes) -> None:
    """Parse; all that may be raised is an error of ours of one line."""
    parse, _ = PARSERS[name]
    said = ""
    try:
        parse(folder, content)
    except (InputError, UnsupportedError) as error:
        said = str(error)
    assert said.isprintable()  # A line break is not.


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_answers_or_refuses(name: str, tmp_path: Path) -> None:
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(spoilt(PARSERS[name][1]), st.binary(max_size=200)))
    def tried(content: bytes) -> None:
        answers_or_refuses(name, tmp_path, content)

    tried()


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_answers_or_refuses_for_long(name: str, tmp_path: Path) -> None:
    end = time.process_time() + SLOW_CPU_SECONDS / len(PARSERS)

    for number in takewhile(lambda _: time.process_time() < end, count()):

        @seed(number)
        @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.one_of(spoilt(PARSERS[name][1]), st.binary(max_size=400)))
        def tried(content: bytes) -> None:
            answers_or_refuses(name, tmp_path, content)

        tried()


def test_another_exception_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARSERS, "bad", (_text(tomllib.loads), b""))  # type: ignore[misc]
    with pytest.raises(tomllib.TOMLDecodeError):
        answers_or_refuses("bad", tmp_path, b"[")
