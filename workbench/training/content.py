"""Caches corpora, and fingerprints of corpora and models' files, for the life of a process."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.keys import JSON, canonical, plain
from workbench.interfaces import Corpus, ModelFacets

Parameters = Mapping[str, Any]

CORPORA_KEPT = 64


@dataclass(frozen=True)
class Given:
    """Parameters as a hashable cache key: equal where their canonical texts are."""

    text: str
    parameters: Parameters = field(compare=False)

    @classmethod
    def of(cls, parameters: Parameters) -> Given:
        """The parameters with their text."""
        return cls(canonical(parameters), parameters)


@lru_cache(maxsize=CORPORA_KEPT)
def corpus(name: str, size: int, seed: int, given: Given) -> Corpus:
    """The records of a registered corpus, from a cache."""
    made: Corpus = registry.create("corpus", name, size=size, seed=seed, **given.parameters)
    return made


@lru_cache(maxsize=1024)
def records_digest(name: str, size: int, seed: int, given: Given) -> str:
    """Hash of a corpus's candidates, held-out and public records."""
    loaded = corpus(name, size, seed, given)
    digest = hashlib.sha256()
    for record in (*loaded.records, *loaded.held_out, *loaded.public):
        digest.update(repr((record.id, record.text, record.image, record.label, record.answers)).encode())
    return digest.hexdigest()


def model_facets(name: str) -> ModelFacets:
    """The facets that a model's source declares; empty for an unknown name."""
    entry = registry.entries("model").get(name)
    return entry.facets if entry is not None and isinstance(entry.facets, ModelFacets) else ModelFacets()


@lru_cache(maxsize=64)
def model_fingerprint(name: str, given: Given) -> str:
    """Hash of a model's files, or why they cannot be read, which training will raise; empty without files."""
    fingerprint = model_facets(name).fingerprint
    try:
        return "" if fingerprint is None else str(fingerprint(**given.parameters))
    except InputError as error:
        return f"cannot be read: {error}"


@lru_cache(maxsize=64)
def plugin_digest(kind: str, name: str) -> str:
    """Hash of the code of a plug-in: its file, or all of its package; empty for an entry of the bench's own.

    Read once a process: what is imported does not change.
    """
    entry = registry.entries(kind).get(name)
    module = "" if entry is None else str(entry.factory.__module__)
    top = module.partition(".")[0]
    spec = None
    with suppress(ImportError, ValueError):  # A module that was made without a file has none.
        spec = None if top in ("", "workbench", "__main__") else importlib.util.find_spec(top)
    origin = None if spec is None or spec.origin is None else Path(spec.origin)
    if spec is None or origin is None or not origin.is_file():
        return ""
    folder = origin.parent if spec.submodule_search_locations else None
    digest = hashlib.sha256()
    for path in [origin] if folder is None else sorted(filter(Path.is_file, folder.rglob("*.py"))):
        digest.update(path.relative_to(origin.parent).as_posix().encode())
        with suppress(OSError):  # What cannot be read is not imported either.
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def settled(kind: str, name: str, given: Parameters) -> dict[str, JSON]:
    """Plain form of an entry's parameters, defaults included, for store keys.

    With defaults in the key, results of a version with another default are not reused. A default without a
    plain form is represented by its type's name; an unknown entry has no defaults.

    A parameter that was added to a factory later is left out at the value that means the old behaviour, to
    keep older stores valid: `later_parameters` of the factory, or of a base class, maps it to that value.
    """
    entry = registry.entries(kind).get(name)
    accepted = inspect.signature(entry.factory).parameters.values() if entry is not None else ()
    later = {} if entry is None else _later_parameters(entry.factory)
    defaults: dict[str, JSON] = {}
    for parameter in accepted:
        if parameter.default is not inspect.Parameter.empty:
            try:
                defaults[parameter.name] = plain(parameter.default)
            except TypeError:
                defaults[parameter.name] = type(parameter.default).__qualname__
    whole = {**defaults, **plain(given)}
    return {key: value for key, value in whole.items() if key not in later or value != plain(later[key])}


def _later_parameters(factory: object) -> dict[str, object]:
    """`later_parameters` of a factory, and of a class's bases."""
    later: dict[str, object] = {}
    for owner in reversed(inspect.getmro(factory) if inspect.isclass(factory) else (factory,)):
        later |= vars(owner).get("later_parameters", {})
    return later


def forget() -> None:
    """Clear the caches, because files may have changed."""
    for cached in (corpus, records_digest, model_fingerprint, plugin_digest):
        cached.cache_clear()
