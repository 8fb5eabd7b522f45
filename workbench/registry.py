"""How the bench reaches a room: by name, never by an import.

A room's file registers what it defines with a decorator; a plug-in package names its modules under the
entry points of `ENTRY_POINTS`: `workbench.mechanisms`, `workbench.attacks`, `workbench.corpora`, and so on.
The modules of a kind are imported on the first look-up of that kind, so listing attacks loads no corpus.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from workbench.errors import InputError, unknown_name

T = TypeVar("T", bound=Callable[..., Any])

ROOMS = {
    "mechanism": "mechanisms",
    "attack": "attacks",
    "corpus": "data",
    "model": "data",
    "base": "data",
    "report": "reports",
    "study_report": "reports.study_reports",
    "accountant": "mechanisms.accountants",
    "claim_check": "attacks.claim_checks",
}
"""Which room holds each kind; module names in a room that start with an underscore are private to it."""

ENTRY_POINTS = {
    "mechanism": "workbench.mechanisms",
    "attack": "workbench.attacks",
    "corpus": "workbench.corpora",
    "model": "workbench.models",
    "base": "workbench.bases",
    "report": "workbench.reports",
    "study_report": "workbench.study_reports",
    "accountant": "workbench.accountants",
    "claim_check": "workbench.claim_checks",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A registered factory.

    Attributes:
        name: The name that users type.
        factory: Called with keyword parameters.
        summary: First line of the factory's docstring.
    """

    name: str
    factory: Callable[..., Any]
    summary: str


_entries: dict[str, dict[str, Entry]] = {kind: {} for kind in ROOMS}
_loaded: set[str] = set()


def register(kind: str, name: str) -> Callable[[T], T]:
    """Register a class or function under `name`.

    Args:
        kind: A key of `ROOMS`.
        name: Unique within its kind.

    Raises:
        InputError: the kind is unknown, or another factory has the name.
    """
    if kind not in ROOMS:
        raise unknown_name("kind", kind, ROOMS)

    def keep(factory: T) -> T:
        known = _entries[kind].get(name)
        if known is not None and known.factory.__qualname__ != factory.__qualname__:
            raise InputError(f"{kind} {name!r} is registered twice")
        summary = (factory.__doc__ or "").strip().split("\n", maxsplit=1)[0]
        _entries[kind][name] = Entry(name=name, factory=factory, summary=summary)
        return factory

    return keep


def _load(kind: str) -> None:
    """Import the room's modules and the plug-ins of a kind, once."""
    if kind in _loaded:
        return
    _loaded.add(kind)
    room = importlib.import_module(f"workbench.{ROOMS[kind]}")
    for module in pkgutil.iter_modules(room.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{room.__name__}.{module.name}")
    for point in entry_points(group=ENTRY_POINTS[kind]):
        point.load()


def entries(kind: str) -> dict[str, Entry]:
    """All entries of a kind, by name, sorted.

    Raises:
        InputError: the kind is unknown.
    """
    if kind not in ROOMS:
        raise unknown_name("kind", kind, ROOMS)
    _load(kind)
    return dict(sorted(_entries[kind].items()))


def create(kind: str, name: str, /, **parameters: Any) -> Any:
    """Call the factory that is registered under `name`.

    Raises:
        InputError: the name is unknown, or the factory refuses the parameters.
    """
    known = entries(kind)
    if name not in known:
        raise unknown_name(kind, name, known)
    factory = known[name].factory
    accepted = inspect.signature(factory).parameters
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
        given = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
        raise InputError(f"{kind} {name!r} refuses its parameters ({given}): {error}") from error


_PLAIN_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "None": ((type(None),), "nothing"),
}
"""Annotations that values are held against once a factory has refused them: types, and words for a user."""


def _plain_types(parameter: inspect.Parameter) -> list[tuple[tuple[type, ...], str]]:
    """The plain types that a parameter is declared to have; none where one of them is not plain."""
    annotation = parameter.annotation
    declared = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    known = [_PLAIN_TYPES.get(part.strip()) for part in declared.split("|")]
    plain = [one for one in known if one is not None]
    return plain if len(plain) == len(known) else []


def _mistyped(what: str, name: str, plain: list[tuple[tuple[type, ...], str]], value: object) -> InputError:
    words = " or ".join(word for _, word in plain if word != "nothing")
    return InputError(f"{what}: {name} must be {words}, got {value!r}")


def _refuse_truths(what: str, accepted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Refuse text or numbers for a truth value, and the reverse: Python takes the text "false" for true.

    Raises:
        InputError: one is.
    """
    for name, parameter in accepted.items():
        plain = _plain_types(parameter)
        if name not in given or not plain:
            continue
        allowed = [kind for types, _ in plain for kind in types]
        is_truth = type(given[name]) is bool
        if is_truth != (bool in allowed) and not (bool in allowed and type(given[name]) in allowed):
            raise _mistyped(what, name, plain, given[name])


def _refuse_types(what: str, accepted: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Say in a user's words which parameter is missing or of another type than is declared, if one is.

    Raises:
        InputError: one is.
    """
    for name, parameter in accepted.items():
        is_named = parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if name not in given:
            if is_named and parameter.default is inspect.Parameter.empty:
                raise InputError(f"{what} needs its parameter {name!r}")
            continue
        plain = _plain_types(parameter)
        if plain and not any(type(given[name]) in types for types, _ in plain):
            raise _mistyped(what, name, plain, given[name])
