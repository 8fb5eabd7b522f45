"""Looks up plug-ins by kind and name; the bench never imports the rooms that define them.

A file of a room registers a class or function with `@register(kind, name)`, both written as literals. Names
are found by reading the rooms' source files, and a module is imported when one of its names is looked up: a
study of one paper imports no other paper's mechanisms. An installed package lists its modules under the entry
points of `ENTRY_POINTS`; they are imported where a name is not in the rooms, or where all names are listed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from workbench.core.errors import InputError, missing_extra, unknown_name
from workbench.core.one_line import object_line

T = TypeVar("T", bound=Callable[..., Any])

ROOMS = {
    "mechanism": "mechanisms",
    "attack": "attacks",
    "corpus": "data",
    "records": "data",
    "model": "data",
    "base": "data",
    "game": "games",
    "report": "reports",
    "study_report": "reports",
    "accountant": "mechanisms.accountants",
    "claim_check": "attacks.claim_checks",
}
"""The package below `workbench` whose files register each kind."""

ENTRY_POINTS = {kind: f"workbench.{kind}s" for kind in ROOMS} | {
    "corpus": "workbench.corpora",
    "records": "workbench.records",
}
"""The entry-point group of each kind: `workbench.mechanisms`, `workbench.study_reports`, ..."""

_REGISTERS = re.compile(r'^@register\(\s*"(\w+)",\s*"([^"]+)"\s*[,)]', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A factory of the registry, with its name and summary.

    `summary`: first line of the factory's docstring. `facets`: what else the factory declares, a record of
    its kind; None for nothing.
    """

    name: str
    factory: Callable[..., Any]
    summary: str
    facets: object = None


_entries: dict[str, dict[str, Entry]] = {kind: {} for kind in ROOMS}
_with_plugins: set[str] = set()


@lru_cache(maxsize=len(ROOMS))
def _index(room: str) -> Mapping[tuple[str, str], str]:
    """The module that registers each (kind, name) below a package, found in the text of its files."""
    spec = importlib.util.find_spec(f"workbench.{room}")
    index: dict[tuple[str, str], str] = {}
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place)
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join((f"workbench.{room}", *(part for part in parts if part != "__init__")))
            for kind, name in _REGISTERS.findall(path.read_text(encoding="utf-8")):
                index[kind, name] = module
    return index


def _module_of(kind: str, name: str) -> str | None:
    return _index(ROOMS[kind]).get((kind, name))


def register(kind: str, name: str, *, facets: object = None) -> Callable[[T], T]:
    """Registers a class or function under a name that is unique within its kind (a key of `ROOMS`).

    `facets` is what the factory declares besides: `workbench.interfaces.ModelFacets` of a model,
    `CorpusFacets` of a corpus. Raises `InputError`: the kind is unknown, or another factory has the name.
    """
    if kind not in ROOMS:
        raise unknown_name("kind", kind, ROOMS)

    def keep(factory: T) -> T:
        """Register the factory and return it."""
        known = _entries[kind].get(name)
        is_other = known is not None and known.factory.__qualname__ != factory.__qualname__
        if is_other or _module_of(kind, name) not in (None, factory.__module__):
            raise InputError(f"{kind} {name!r} is registered twice")
        summary = (factory.__doc__ or "").strip().split("\n", maxsplit=1)[0]
        _entries[kind][name] = Entry(name=name, factory=factory, summary=summary, facets=facets)
        return factory

    return keep


def _load_plugins(kind: str) -> None:
    """Import the plug-ins of a kind, once."""
    if kind not in _with_plugins:
        _with_plugins.add(kind)
        for point in entry_points(group=ENTRY_POINTS[kind]):
            point.load()


class Entries(Mapping[str, Entry]):
    """The entries of a kind by name, sorted; a look-up imports the module that registers the name."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Entry:
        """Imports the entry's module and returns the entry.

        Raises `KeyError`: the name is unknown. `MissingExtraError`: the module needs an extra's package.
        """
        if name not in self:
            raise KeyError(name)
        if name not in _entries[self._kind]:
            try:
                importlib.import_module(str(_module_of(self._kind, name)))
            except ModuleNotFoundError as error:
                known = missing_extra(error, f"{self._kind.replace('_', ' ')} {name!r}")
                if known is None:
                    raise
                raise known from error
        return _entries[self._kind][name]

    def __contains__(self, name: object) -> bool:
        """Whether the name is registered; plug-ins are imported only where the rooms do not have it."""
        if name in _entries[self._kind] or (isinstance(name, str) and _module_of(self._kind, name)):
            return True
        _load_plugins(self._kind)
        return name in _entries[self._kind]

    def __iter__(self) -> Iterator[str]:
        """Yields all names, those of plug-ins included."""
        _load_plugins(self._kind)
        names = (name for kind, name in _index(ROOMS[self._kind]) if kind == self._kind)
        return iter(sorted({*names, *_entries[self._kind]}))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def entries(kind: str) -> Entries:
    """Returns all entries of a kind; raises `InputError` for an unknown kind."""
    if kind not in ROOMS:
        raise unknown_name("kind", kind, ROOMS)
    return Entries(kind)


@lru_cache(maxsize=1024)
def _parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What a factory takes; kept, because a report creates thousands of small things."""
    return inspect.signature(factory).parameters


def create(kind: str, name: str, /, **parameters: Any) -> Any:
    """Calls the factory that is registered under `name`.

    Raises `InputError`: the name is unknown, or the factory refuses the parameters.
    """
    known = entries(kind)
    if name not in known:
        raise unknown_name(kind, name, known)
    factory = known[name].factory
    accepted = _parameters_of(factory)
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        for parameter in parameters:
            if parameter not in accepted:
                raise unknown_name(f"parameter of {kind} {name!r}:", parameter, accepted)
    _refuse_truths(f"{kind} {name!r}", accepted, parameters)
    try:
        return factory(**parameters)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError) or not parameters:
            raise
        _refuse_types(f"{kind} {name!r}", accepted, parameters)
        given = ", ".join(f"{key}={object_line(value, 60)}" for key, value in parameters.items())
        raise InputError(f"{kind} {name!r} refuses its parameters ({given}): {error}") from error


_PLAIN_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "None": ((type(None),), "nothing"),
}
"""The annotations that a value is compared with once a factory has refused it: types, and words for a user.
"""


def _plain_types(parameter: inspect.Parameter) -> list[tuple[tuple[type, ...], str]]:
    """The plain types that a parameter is declared with; empty where one of them is not plain."""
    annotation = parameter.annotation
    declared = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    known = [_PLAIN_TYPES.get(part.strip()) for part in declared.split("|")]
    plain = [types for types in known if types is not None]
    return plain if len(plain) == len(known) else []


def _mistyped(what: str, name: str, plain: list[tuple[tuple[type, ...], str]], value: object) -> InputError:
    words = " or ".join(word for _, word in plain if word != "nothing")
    return InputError(f"{what}: {name} must be {words}, got {value!r}")


def _refuse_truths(what: str, accepted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Refuses text or numbers for a truth value and the reverse: Python takes the text "false" for true."""
    for name, parameter in accepted.items():
        plain = _plain_types(parameter)
        if name not in given or not plain:
            continue
        allowed = [kind for types, _ in plain for kind in types]
        is_truth = type(given[name]) is bool
        if is_truth != (bool in allowed) and not (bool in allowed and type(given[name]) in allowed):
            raise _mistyped(what, name, plain, given[name])


def _refuse_types(what: str, accepted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Names, in a user's words, a parameter that is missing or of another type than declared."""
    for name, parameter in accepted.items():
        is_named = parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if name not in given:
            if is_named and parameter.default is inspect.Parameter.empty:
                raise InputError(f"{what} needs its parameter {name!r}")
            continue
        plain = _plain_types(parameter)
        if plain and not any(type(given[name]) in types for types, _ in plain):
            raise _mistyped(what, name, plain, given[name])
