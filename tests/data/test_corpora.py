"""What every registered corpus must keep: sizes, ids, disjoint parts, determinism, exchangeability."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data.shared.parts import Sizes, normal_form, split, without_duplicates, write_atomically
from workbench.estimation.blind import blind_p_value
from workbench.interfaces import Corpus, Record

Arguments = Callable[[str], dict[str, Any]]

CASES = [
    *((name, {}) for name in registry.entries("corpus")),
    ("clinical", {"attributes": "short"}),
    *(("movie_reviews", {"source": source}) for source in ("newspaper", "product", "messages")),
]
GENERATED = ("clinical", "clinical_questions", "clinical_records", "clinical_tasks")
"""Corpora without an end."""
IDS = ["-".join([name, *extra.values()]) for name, extra in CASES]


def create(name: str, arguments: Arguments, size: int = 150, seed: int = 3, **more: Any) -> Corpus:
    corpus: Corpus = registry.create("corpus", name, size=size, seed=seed, **arguments(name), **more)
    return corpus


def key(record: Record) -> object:
    return record.image if record.image is not None else normal_form(record.text)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extra"), CASES, ids=IDS)
def test_parts_are_as_asked_for(name: str, extra: dict[str, str], arguments: Arguments) -> None:
    corpus = create(name, arguments, held_out=40, public=30, **extra)
    everyone = corpus.records + corpus.held_out + corpus.public
    assert (len(corpus.records), len(corpus.held_out), len(corpus.public)) == (150, 40, 30)
    assert corpus.name == name
    assert corpus.origin
    assert len({record.id for record in everyone}) == 220
    assert len({key(record) for record in everyone}) == 220
    if corpus.kind == "text":
        assert all(record.text.strip() and record.image is None for record in everyone)
    elif corpus.classes:
        pixels = np.array([record.image for record in everyone])
        assert pixels.min() == 0.0
        assert pixels.max() == 1.0
    labels = {record.label for record in everyone}
    assert labels == (set(range(corpus.classes)) if corpus.classes else {None})


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "extra"), CASES, ids=IDS)
def test_same_seed_same_corpus(name: str, extra: dict[str, str], arguments: Arguments) -> None:
    first, again = (create(name, arguments, size=64, **extra) for _ in range(2))
    other = create(name, arguments, size=64, seed=4, **extra)
    assert first == again
    assert first.records != other.records
    assert len(first.held_out) == len(first.public) == 64


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.entries("corpus"))
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"size": 10, "held_out": -1}, "held_out must be an integer of at least 0, got -1"),
        ({"size": 10, "public": 2.5}, "public must be an integer of at least 0, got 2.5"),
        ({"size": 10, "seed": -2}, "seed must be an integer of at least 0, got -2"),
    ],
)
def test_bad_sizes_are_named(name: str, wrong: dict[str, Any], message: str, arguments: Arguments) -> None:
    with pytest.raises(InputError) as caught:
        create(name, arguments, **wrong)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", [n for n in registry.entries("corpus") if n not in GENERATED])
def test_too_few_records_are_counted(name: str, arguments: Arguments) -> None:
    with pytest.raises(
        InputError, match=r"^size must leave room for held_out and public: 1000000 \+ .* has \d+"
    ):
        create(name, arguments, size=1_000_000)


def features(records: tuple[Record, ...]) -> Any:
    if records[0].image is not None:
        return np.array([record.image for record in records], dtype=np.float64)
    return [record.text for record in records]


def told_apart(first: tuple[Record, ...], second: tuple[Record, ...]) -> float:
    """Permutation p-value of a bag-of-words classifier between two groups."""
    groups = np.arange(len(first) + len(second)) < len(first)
    return blind_p_value(
        features(first + second), groups, generator=np.random.default_rng(0), relabellings=1999
    )


def by_document(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """One record a document, all its snippets together; ids look like `newspaper-17_3`."""
    texts: dict[str, list[str]] = {}
    for record in records:
        texts.setdefault(record.id.split("_")[0], []).append(record.text)
    return tuple(Record(id=name, text=" ".join(parts)) for name, parts in texts.items())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "extra"), CASES, ids=IDS)
def test_records_and_held_out_are_exchangeable(
    name: str, extra: dict[str, str], arguments: Arguments
) -> None:
    """A correct corpus fails with probability 0.002 a case, for the test is a permutation test.

    Newspaper and product snippets are dealt out by document, so there the documents are compared.
    """
    corpus = create(name, arguments, size=200, held_out=200, public=0, **extra)
    first, second = corpus.records, corpus.held_out
    if extra.get("source") in ("newspaper", "product"):
        first, second = by_document(first), by_document(second)
        assert not {record.id for record in first} & {record.id for record in second}
    assert told_apart(first, second) > 0.002


def test_a_split_by_order_is_told_apart(jsonl_file: Path) -> None:
    """Negative control: the file's first and last lines differ, and only the permutation hides it."""
    from workbench.data.user_text import read_file, to_records

    records = to_records(read_file(jsonl_file), "x", "text", None)
    assert told_apart(tuple(records[:200]), tuple(records[-200:])) < 0.002


@given(
    st.integers(1, 30), st.integers(0, 20), st.integers(0, 20), st.integers(0, 5), st.integers(0, 2**32 - 1)
)
def test_split_uses_each_record_at_most_once(a: int, b: int, c: int, spare: int, seed: int) -> None:
    pool = [Record(id=str(i), text=f"t{i}") for i in range(a + b + c + spare)]
    parts = split(pool, Sizes(a, b, c), np.random.default_rng(seed), "pool")
    assert tuple(map(len, parts)) == (a, b, c)
    ids = [record.id for part in parts for record in part]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
@given(st.lists(st.text(max_size=6)))
def test_dropping_duplicates_keeps_first_ones_and_is_idempotent(texts: list[str]) -> None:
    records = [Record(id=str(i), text=text) for i, text in enumerate(texts)]
    kept = without_duplicates(records)
    keys = [normal_form(record.text) for record in kept]
    assert len(set(keys)) == len(keys) == len({normal_form(text) for text in texts})
    assert [int(record.id) for record in kept] == sorted(int(record.id) for record in kept)
    assert without_duplicates(kept) == kept


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "x"
    write_atomically(place, b"old")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError("no room")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        write_atomically(place, b"new")
    assert place.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
