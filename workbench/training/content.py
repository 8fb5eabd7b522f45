"""What names and parameters stand for at present, looked up once a process: corpora, and models' files."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.keys import JSON, canonical, plain
from workbench.interfaces import Corpus, ModelFacets

Parameters = Mapping[str, Any]

CORPORA_KEPT = 64


@dataclass(frozen=True)
class Given:
    """Parameters as a key of a cache: equal where their canonical texts are."""

    text: str
    parameters: Parameters = field(compare=False)

    @classmethod
    def of(cls, parameters: Parameters) -> Given:
        """The parameters with their text."""
        return cls(canonical(parameters), parameters)


@lru_cache(maxsize=CORPORA_KEPT)
def corpus(name: str, size: int, seed: int, given: Given) -> Corpus:
    """A registered corpus."""
    made: Corpus = registry.create("corpus", name, size=size, seed=seed, **given.parameters)
    return made


@lru_cache(maxsize=1024)
def records_digest(name: str, size: int, seed: int, given: Given) -> str:
    """Hash of a corpus's candidates, held-out and public records."""
    found = corpus(name, size, seed, given)
    digest = hashlib.sha256()
    for record in (*found.records, *found.held_out, *found.public):
        digest.update(repr((record.id, record.text, record.image, record.label, record.answers)).encode())
    return digest.hexdigest()


def model_facets(name: str) -> ModelFacets:
    """What a model's source declares; nothing for an unknown name."""
    entry = registry.entries("model").get(name)
    return entry.facets if entry is not None and isinstance(entry.facets, ModelFacets) else ModelFacets()


@lru_cache(maxsize=64)
def model_fingerprint(name: str, given: Given) -> str:
    """Hash of a model's files; empty for a model without files.

    One whose files cannot be read has a hash too: what is planned with it can be counted, and its training
    says what is wrong.
    """
    fingerprint = model_facets(name).fingerprint
    try:
        return "" if fingerprint is None else str(fingerprint(**given.parameters))
    except InputError as error:
        return f"cannot be read: {error}"


def settled(kind: str, name: str, given: Parameters) -> dict[str, JSON]:
    """Plain form of an entry's parameters: what is given, and the defaults of the rest.

    With it in a key, a version that changes a default does not take the old version's results for its own. A
    default without a plain form stands there by the name of its type; an unknown entry has no defaults.

    A parameter that joined a factory later is left out at the value at which the factory does what it did
    before, so that stores from before stay good: the factory's `later_parameters` maps it to that value, or
    those of a class that it inherits from.
    """
    known = registry.entries(kind).get(name)
    accepted = inspect.signature(known.factory).parameters.values() if known is not None else ()
    later = {} if known is None else _later_parameters(known.factory)
    found: dict[str, JSON] = {}
    for one in accepted:
        if one.default is not inspect.Parameter.empty:
            try:
                found[one.name] = plain(one.default)
            except TypeError:
                found[one.name] = type(one.default).__qualname__
    whole = {**found, **plain(given)}
    return {key: value for key, value in whole.items() if key not in later or value != plain(later[key])}


def _later_parameters(factory: object) -> dict[str, object]:
    """Those of the factory; of a class also those that its bases say, the class itself last."""
    found: dict[str, object] = {}
    for one in reversed(inspect.getmro(factory) if inspect.isclass(factory) else (factory,)):
        found |= vars(one).get("later_parameters", {})
    return found


def forget() -> None:
    """Look again: files may have changed since."""
    for cached in (corpus, records_digest, model_fingerprint):
        cached.cache_clear()
