"""The public text that the bases are pretrained on: what lies on every machine that runs them, no download.

Docstrings of packages that torch and transformers need, of the standard library, and Python's language
reference as `help()` shows it. None of it is a record of the corpus `docstrings`: other packages are read,
and what nearly repeats a text of that corpus is left out, so that no base has seen a candidate or a held-out
record of it. (The shipped `tiny_gpt2` has: its vocabulary and weights come from that corpus, among others.)
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.data import docstrings
from workbench.data.bases.pretraining import Source, split
from workbench.data.shared.near_duplicates import near_duplicates
from workbench.data.shared.parts import cache_folder, normal_form, write_atomically

PACKAGES = ("sympy", "networkx", "huggingface_hub")
"""Distributions that are read: torch requires the first two, transformers the third."""

SIMILARITY = 0.5
"""Jaccard similarity from which a text repeats an earlier one of these; towards the corpus `docstrings` its
own, stricter threshold counts."""

LONGEST_BYTES = 20_000
SCHEMA = 1
"""Raised whenever the choice of texts changes; part of the cache key."""

PARTS = {"packages", "python", "docstrings"}
REFERENCE = "pydoc_data.topics"
_NOT_DOCUMENTATION = {"site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip", "pydoc_data"}


@dataclass(frozen=True, kw_only=True)
class Text:
    """The public text.

    Attributes:
        sources: What is trained on, and held out of the same origin.
        docstrings: The texts of the corpus `docstrings` that `tiny_gpt2` held out: no base was trained on
            them, so all are judged by them.
        sha256: Of all of it.
    """

    sources: tuple[Source, ...]
    docstrings: tuple[str, ...]
    sha256: str


def load() -> Text:
    """The public text; from the user's cache where the versions are unchanged.

    Raises:
        InputError: none of the packages is installed.
    """
    versions = {**docstrings._versions(PACKAGES), "python": platform.python_version()}
    kept_out = docstrings._versions(docstrings.PACKAGES)
    key = json.dumps([SCHEMA, SIMILARITY, docstrings.SCHEMA, versions, kept_out], sort_keys=True)
    place = cache_folder() / f"base-text-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json.gz"
    found = _read(place)
    if found is None:
        found = _collect()
        write_atomically(place, gzip.compress(json.dumps(found).encode(), mtime=0))
    named = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    origins = {
        "packages": f"docstrings of {named}",
        "python": f"docstrings and language reference of Python {versions['python']}",
    }
    return Text(
        sources=tuple(split(name, origin, found[name]) for name, origin in origins.items()),
        docstrings=tuple(found["docstrings"]),
        sha256=hashlib.sha256(json.dumps(found).encode()).hexdigest(),
    )


def _read(place: Path) -> dict[str, list[str]] | None:
    if not place.is_file():
        return None
    try:
        found: dict[str, list[str]] = json.loads(gzip.decompress(place.read_bytes()))
    except (OSError, EOFError, ValueError):
        return None
    return found if set(found) == PARTS else None


def _collect() -> dict[str, list[str]]:
    """Texts by source, without what repeats the corpus `docstrings` or another text."""
    packages = docstrings.collect(PACKAGES)
    python = [*_reference(), *_standard_library()]
    texts = [*packages, *python]
    corpus = docstrings.load_texts()
    flags = _repeated(texts, corpus)
    split_at = len(packages)
    return {
        "packages": [t for t, flag in zip(packages, flags[:split_at], strict=True) if not flag],
        "python": [t for t, flag in zip(python, flags[split_at:], strict=True) if not flag],
        "docstrings": list(split("docstrings", "", corpus).held_out),
    }


def _repeated(texts: Sequence[str], corpus: Sequence[str]) -> list[bool]:
    """Which texts are too long, nearly repeat an earlier one, or one of the corpus."""
    seen = {normal_form(text) for text in corpus}
    among = near_duplicates(texts, SIMILARITY)
    towards = near_duplicates([*corpus, *texts], docstrings.SIMILARITY)[len(corpus) :]
    return [
        one or other or normal_form(text) in seen or len(text.encode()) > LONGEST_BYTES
        for text, one, other in zip(texts, among, towards, strict=True)
    ]


def _reference() -> list[str]:
    """Python's language reference, a text a topic, cut into its paragraphs' groups."""
    module: Any = importlib.import_module(REFERENCE)
    return [part for text in module.topics.values() for part in _in_parts(text)]


def _in_parts(text: str) -> list[str]:
    """A long text in parts of at most about 2,000 characters, cut between paragraphs."""
    parts: list[str] = [""]
    for paragraph in text.strip().split("\n\n"):
        if parts[-1] and len(parts[-1]) + len(paragraph) > 2000:
            parts.append("")
        parts[-1] += ("\n\n" if parts[-1] else "") + paragraph
    return [part for part in parts if len(part.split()) >= docstrings.FEWEST_WORDS]


def _standard_library() -> list[str]:
    """Cleaned docstrings of the standard library's modules, without its tests, by file."""
    root = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        folders = set(path.relative_to(root).parts[:-1])
        if folders & (docstrings.TEST_FOLDERS | _NOT_DOCUMENTATION):
            continue
        try:
            texts.extend(map(docstrings.clean, docstrings._docstrings_of(path.read_text("utf-8"))))
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
            continue  # a template or a file for another Python version holds no docstrings for us
    return [text for text in texts if len(text.split()) >= docstrings.FEWEST_WORDS]
