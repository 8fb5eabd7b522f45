"""Docstrings: what is cleaned away, what counts as a near-duplicate, and that the cache tells the truth."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.data import docstrings as module
from workbench.data.docstrings import clean, collect, docstrings, load_texts
from workbench.data.shared.near_duplicates import jaccard, near_duplicates, shingles, signatures

MESSY = """
    Sum of ``a`` along :py:func:`an axis <numpy.sum>` [1]_.

    .. versionadded:: 1.2
       This is dropped.

    Parameters
    ----------
    a : array_like
        See :ref:`glossary`::

    Examples
    --------
    >>> f(1)
    2
    ... more

    >>> g(2)
    3

    That was `all`_.
    """


def test_markup_and_doctests_go() -> None:
    assert clean(MESSY) == (
        "Sum of a along an axis.\n\nParameters\na : array_like\n    See glossary:\n\nExamples\n\n"
        "That was all."
    )


@given(st.text())
def test_cleaning_is_total(text: str) -> None:
    cleaned = clean(text)
    assert ">>> " not in cleaned
    assert not cleaned.endswith("\n")


WORDS = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]), min_size=1, max_size=30)


@given(WORDS, WORDS)
def test_jaccard_agrees_with_sets(first: list[str], second: list[str]) -> None:
    """A naive twin on the words themselves."""

    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))}

    expected = len(runs(first) & runs(second)) / len(runs(first) | runs(second))
    assert jaccard(shingles(" ".join(first)), shingles(" ".join(second))) == pytest.approx(expected)


def test_signatures_estimate_the_similarity() -> None:
    """Of 128 hash functions: a standard error of at most 0.045; twenty pairs, their mean within five s.e."""
    errors = []
    for pair in range(20):
        numbers = [str(1000 * pair + i) for i in range(300)]
        sets = [shingles(" ".join(numbers[:200])), shingles(" ".join(numbers[100:]))]
        errors.append(np.mean(np.equal(*signatures(sets))) - jaccard(*sets))
    assert np.mean(errors) == pytest.approx(0.0, abs=5 * 0.045 / np.sqrt(20))
    assert 0.02 < np.std(errors) < 0.08  # hash functions that all agree would err by 0.47 each time


def test_near_duplicates_are_those_of_all_pairs() -> None:
    """Against the naive twin: compare with every text kept so far."""
    generator = np.random.default_rng(2)
    vocabulary = np.array([f"w{i}" for i in range(400)])
    texts = [" ".join(generator.choice(vocabulary, size=40)) for _ in range(60)]
    for i in range(60):
        words = texts[i].split()
        replaced = generator.choice(40, size=i // 4, replace=False)
        for place in replaced:
            words[place] = str(generator.choice(vocabulary))
        texts.append(" ".join(words))
    sets = [shingles(text) for text in texts]
    kept: list[int] = []
    expected = []
    for i in range(len(texts)):
        repeated = any(jaccard(sets[i], sets[j]) >= 0.3 for j in kept)
        expected.append(repeated)
        if not repeated:
            kept.append(i)
    assert near_duplicates(texts, 0.3) == expected
    assert 20 < sum(expected) < 60


def write_package(folder: Path) -> None:
    """A package with a test folder, a broken file, repeated and short docstrings, and a trap."""
    package = folder / "trap_package"
    (package / "tests").mkdir(parents=True)
    long = "The quick brown fox jumps over the lazy dog near the river bank."
    other = "Every good boy deserves fudge and the mice like cheese on Sundays."
    (package / "__init__.py").write_text(f'"""{long}"""\nraise RuntimeError("imported")\n', "utf-8")
    (package / "a.py").write_text(f'def f():\n    """{other}"""\ndef g():\n    """{long}"""\n', "utf-8")
    (package / "b.py").write_text('class C:\n    """Short."""\n', "utf-8")
    (package / "broken.py").write_text("def (:\n", "utf-8")
    (package / "tests" / "test_x.py").write_text(
        '"""A test file is none of the public text we want."""\n', "utf-8"
    )


def test_packages_are_read_but_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = collect(["trap-package"])
    assert texts == [
        "The quick brown fox jumps over the lazy dog near the river bank.",
        "Every good boy deserves fudge and the mice like cheese on Sundays.",
    ]


@pytest.mark.slow
def test_cache_is_used_and_mended(
    cache: Path, docstrings_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (original,) = docstrings_cache.iterdir()
    place = cache / original.name
    cache.mkdir()
    place.write_bytes(gzip.compress(json.dumps(["from the cache"]).encode()))
    assert load_texts(["numpy"]) == ["from the cache"]
    place.write_bytes(b"broken")
    monkeypatch.setattr(module, "collect", lambda packages: ["one text", "another one", "one text"])
    assert load_texts(["numpy"]) == ["one text", "another one"]
    assert json.loads(gzip.decompress(place.read_bytes())) == ["one text", "another one"]


def test_texts_of_numpy(docstrings_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(docstrings_cache))
    texts = load_texts(["numpy", "no-such-distribution"])
    assert len(texts) > 1000
    assert not any(near_duplicates(texts, module.SIMILARITY))
    corpus = docstrings(size=100, seed=0, packages="numpy", longest=300)
    assert max(len(record.text) for record in corpus.records) <= 300
    assert "numpy " in corpus.origin


@pytest.mark.parametrize("packages", ["", "no-such-distribution"])
def test_no_package_at_all(packages: str) -> None:
    with pytest.raises(InputError, match="packages must name an installed distribution"):
        docstrings(size=10, seed=0, packages=packages)


@pytest.mark.slow
def test_about_a_fifth_are_near_duplicates() -> None:
    texts = collect(module.PACKAGES)
    assert 0.1 < np.mean(near_duplicates(texts, module.SIMILARITY)) < 0.3
