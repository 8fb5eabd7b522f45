"""Stand-ins for the files that corpora read: a UCI table, a VADER archive, text files, dataset folders."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from workbench.data import docstrings, movie_reviews
from workbench.data.bases.texts import tasks as task_texts
from workbench.data.clinical.encounters import COLUMNS
from workbench.data.clinical.generator import generate

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for every test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("WORKBENCH_CACHE", str(folder))
    return folder


def sentence(number: int) -> str:
    """A sentence of its own for each number."""
    drawn = np.random.default_rng(number).choice(WORDS, size=6)
    return f"Sentence {number} says {' '.join(drawn)}."


@pytest.fixture
def uci_file(tmp_path: Path) -> Path:
    """A table in the form of diabetic_data.csv: 300 patients, of whom every third has a second encounter."""
    path = tmp_path / "diabetic_data.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for i, encounter in enumerate(generate(300, np.random.default_rng(5))):
            writer.writerow([1000 + i, 10 + i, *encounter.values.values()])
        for i, encounter in enumerate(generate(100, np.random.default_rng(6))):
            writer.writerow([5000 + i, 10 + 3 * i, *encounter.values.values()])
    return path


def gzipped_tar(members: dict[str, bytes]) -> bytes:
    """A gzipped tar of plain files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def vader_archive(lines: dict[str, list[str]]) -> bytes:
    """An archive with the structure of the package's source archive."""
    inner = {movie_reviews.MEMBERS[source]: "\r\n".join(lines[source]).encode() for source in lines}
    lexicon = "".join(f"{word}\t{i - 4.5}\t0.5\t[]\n" for i, word in enumerate((*WORDS, ":-)")))
    return gzipped_tar(
        {movie_reviews.INNER_ARCHIVE: gzipped_tar(inner), task_texts.LEXICON: lexicon.encode()}
    )


@pytest.fixture
def make_tar() -> Callable[[dict[str, bytes]], bytes]:
    """`gzipped_tar`, for the test modules."""
    return gzipped_tar


@pytest.fixture
def make_archive() -> Callable[[dict[str, list[str]]], bytes]:
    """`vader_archive`, for the test modules."""
    return vader_archive


@pytest.fixture
def save_dataset() -> Callable[..., None]:
    """`save_like_datasets`, for the test modules."""
    return save_like_datasets


@pytest.fixture
def vader(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive of our own making in the cache, its hash taken for the true one."""
    ratings = np.random.default_rng(0).integers(1, 40, size=1200) / 10
    signed = [(1 if i % 2 else -1) * float(rating) for i, rating in enumerate(ratings)]
    flat = [f"{i}\t{rating}\t{sentence(i)}" for i, rating in enumerate(signed, start=1)]
    more = [f"{i}\t{rating}\t{sentence(2000 + i)}" for i, rating in enumerate(signed, start=1)]
    sources = {"movie_reviews": flat, "messages": more}
    for first, source in ((4000, "newspaper"), (6000, "product")):
        sources[source] = [
            f"{1 + i // 6}_{1 + i % 6}\t{rating}\t{sentence(first + i)}" for i, rating in enumerate(signed)
        ]
    content = vader_archive(sources)
    cache.mkdir()
    place = cache / movie_reviews.ARCHIVE
    place.write_bytes(content)
    monkeypatch.setattr(movie_reviews, "SHA256", hashlib.sha256(content).hexdigest())
    return place


@pytest.fixture
def jsonl_file(tmp_path: Path) -> Path:
    """600 sentences with two labels; the first and the second half differ in kind."""
    path = tmp_path / "sentences.jsonl"
    lines = []
    for i in range(600):
        kind = "early" if i < 300 else "late"
        lines.append(json.dumps({"text": f"{sentence(i)} It is {kind}.", "kind": kind}))
    path.write_text("\n".join(lines), "utf-8")
    return path


def save_like_datasets(folder: Path, rows: list[dict[str, Any]], shards: int = 2) -> None:
    """What `Dataset.save_to_disk` of `datasets` 5.2 writes, as far as it is read."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        table = pa.Table.from_pylist(rows[i * len(rows) // shards : (i + 1) * len(rows) // shards])
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state), "utf-8")
    (folder / "dataset_info.json").write_text("{}", "utf-8")


@pytest.fixture
def dataset_folder(tmp_path: Path) -> Path:
    """A saved dataset of 600 labelled sentences."""
    folder = tmp_path / "dataset"
    save_like_datasets(folder, [{"text": sentence(i), "label": i % 3, "id": i} for i in range(600)])
    return folder


@pytest.fixture(scope="session")
def docstrings_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds numpy's docstrings as they are cached, collected once."""
    folder = tmp_path_factory.mktemp("docstrings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_CACHE", str(folder))
        docstrings.load_texts(["numpy"])
    return folder


@pytest.fixture
def task_files(tmp_path: Path) -> dict[str, Path]:
    """600 sentences in GLUE's form of SST-2, and as many paragraphs in that of SQuAD, by corpus."""
    sentiment, questions = tmp_path / "train.tsv", tmp_path / "train-v1.1.json"
    rows = [f"{sentence(i)}\t{i % 2}" for i in range(600)]
    sentiment.write_text("\n".join(["sentence\tlabel", *rows]), "utf-8")
    articles = []
    for i in range(600):
        answer = {"text": sentence(i).split()[3], "answer_start": 0}
        asked = {"id": str(i), "question": f"What is said first in {i}?", "answers": [answer]}
        paragraph = {"context": sentence(i), "qas": [asked]}
        articles.append({"title": f"Article_{i}", "paragraphs": [paragraph]})
    questions.write_text(json.dumps({"data": articles}), "utf-8")
    return {"sst2": sentiment, "squad": questions}


@pytest.fixture
def arguments(
    *,
    vader: Path,
    jsonl_file: Path,
    dataset_folder: Path,
    task_files: dict[str, Path],
    cache: Path,
    docstrings_cache: Path,
) -> Callable[[str], dict[str, Any]]:
    """What a registered corpus is to be called with, besides size and seed."""
    shutil.copytree(docstrings_cache, cache, dirs_exist_ok=True)
    known: dict[str, dict[str, Any]] = {
        "docstrings": {"packages": "numpy", "longest": 400},
        "text_file": {"path": str(jsonl_file), "label_field": "kind"},
        "huggingface_dataset": {"path": str(dataset_folder), "label_field": "label"},
        **{name: {"path": str(path)} for name, path in task_files.items()},
    }
    return lambda name: known.get(name, {})
