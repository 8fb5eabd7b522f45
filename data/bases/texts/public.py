"""The public text that the bases are pretrained on: what lies on every machine that runs them, no download.

Docstrings of packages that torch and transformers need, of the standard library, and Python's language
reference. What nearly repeats a text of the corpus `docstrings` is left out, so that no base has seen a
record of it. (The shipped `tiny_gpt2` has: its vocabulary and weights come from that corpus, among others.)
"""

from __future__ import annotations

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
from workbench.data.shared.near_duplicates import near_duplicates
from workbench.data.shared.parts import cached_json, normal_form

PACKAGES = ("sympy", "networkx", "huggingface_hub")
"""Distributions that are read: torch requires the first two, transformers the third."""

SIMILARITY = 0.5
"""Jaccard similarity from which a text repeats an earlier one of these; towards the corpus `docstrings` its
own, stricter threshold counts."""

LONGEST_BYTES = 20_000
HELD_OUT_CLASSES = 100
SCHEMA = 1
"""Raised whenever the choice of texts changes; part of the cache key."""

PARTS = {"packages", "python", "docstrings"}
REFERENCE = "pydoc_data.topics"
_NOT_DOCUMENTATION = {"site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip", "pydoc_data"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Texts of one origin, split by hash."""

    name: str
    origin: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Origin, sizes and hash for the recipe."""
        every = sorted((*self.train, *self.held_out))
        return {
            "name": self.name,
            "origin": self.origin,
            "texts": len(every),
            "held_out_texts": len(self.held_out),
            "bytes": sum(len(text.encode()) for text in every),
            "sha256": hashlib.sha256("\0".join(every).encode()).hexdigest(),
        }


def is_held_out(text: str) -> bool:
    """True for one text in `HELD_OUT_CLASSES`, chosen by its hash alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % HELD_OUT_CLASSES == 0


def split(name: str, origin: str, texts: Sequence[str]) -> Source:
    """A source whose held-out texts are chosen by hash; repeated texts count once."""
    distinct = sorted(set(texts))
    return Source(
        name=name,
        origin=origin,
        train=tuple(text for text in distinct if not is_held_out(text)),
        held_out=tuple(text for text in distinct if is_held_out(text)),
    )


@dataclass(frozen=True, kw_only=True)
class Text:
    """The public text that bases are pretrained on.

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
    """The public text; from the user's cache where the versions are unchanged."""
    versions = {**docstrings._versions(PACKAGES), "python": platform.python_version()}
    kept_out = docstrings._versions(docstrings.PACKAGES)
    key = [SCHEMA, SIMILARITY, docstrings.SCHEMA, versions, kept_out]
    parts = cached_json("base-text", key, _collect, lambda content: set(content) == PARTS)
    named = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    origins = {
        "packages": f"docstrings of {named}",
        "python": f"docstrings and language reference of Python {versions['python']}",
    }
    return Text(
        sources=tuple(split(name, origin, parts[name]) for name, origin in origins.items()),
        docstrings=tuple(parts["docstrings"]),
        sha256=hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
    )


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
        near_earlier or near_corpus or normal_form(text) in seen or len(text.encode()) > LONGEST_BYTES
        for text, near_earlier, near_corpus in zip(texts, among, towards, strict=True)
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
