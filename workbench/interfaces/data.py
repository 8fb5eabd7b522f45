"""Records and corpora, and what their sources in the data room declare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Record:
    """One person's datum: `text`, or `image` (a flat float32 vector).

    A question about a text has its `answers`: spans of the text, or the reference texts. The first is trained
    on; each is right.
    """

    id: str
    text: str = ""
    image: tuple[float, ...] | None = None
    label: int | None = None
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Records drawn from one distribution, so that members and non-members are exchangeable.

    Attributes:
        name: Registry name.
        records: The candidate pool; the runner draws members from it by coin, or by exchangeable split.
        held_out: Further records of the same distribution, never candidates (for test perplexity).
        public: Records of a public distribution that anyone may train on.
        kind: `"text"` or `"image"`.
        classes: Number of labels; 0 where records have none.
        origin: Where the data come from, in a sentence, with source and hash.
    """

    name: str
    records: tuple[Record, ...]
    held_out: tuple[Record, ...]
    public: tuple[Record, ...]
    kind: str
    origin: str
    classes: int = 0


@dataclass(frozen=True, kw_only=True)
class CorpusFacets:
    """What a corpus's source declares besides loading it, as the `facets` of `register`.

    A source is called with `size` (of the candidates), `seed` and its parameters, and returns a `Corpus`.
    `fetch`: downloads what is not shipped, unless it is there, and returns its place; called with a function
    that announces a download, or None. None for a corpus that is shipped whole.
    """

    fetch: Callable[[Callable[[str], None] | None], Path] | None = None
