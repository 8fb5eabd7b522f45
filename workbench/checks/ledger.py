"""The ledger of published privacy claims: what a paper states, where, and which check answers it.

`data/published/claims.toml` holds one `[[claim]]` table an entry, and the papers' names in `[papers]`; a
user's own ledger is a file of the same form, which may name further papers. No verdict is stored:
`workbench.checks.run` computes them.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.core import registry
from workbench.core.errors import ArgumentError, InputError, MissingExtraError, unknown_name
from workbench.core.inputs import read_text
from workbench.core.keys import JSON, plain

_SHIPPED = "data/published/claims.toml"

VERSIONS = ("weaker", "stronger", "altered")
"""Fields of an entry that hold the parameters of a version of its claim."""


class Method(StrEnum):
    """How an entry of the ledger of claims is checked."""

    PROOF = "proof"
    CERTIFIED = "certified computation"
    MONTE_CARLO = "Monte Carlo"
    ATTACK = "attack"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True, kw_only=True)
class PublishedClaim:
    """A privacy claim of a paper.

    Attributes:
        id: The paper, then the place: `"mechanism-theorem-1"`; letters, digits, `-`, `_` and `.`.
        paper: A key of `papers()`, or of the file's own `[papers]`.
        place: Section, theorem or equation in the paper.
        restatement: What is claimed, in our words, with its quantities.
        check: Registered name of the check; None where the method is `NOT_CHECKABLE`.
        parameters: Keyword arguments of the check: the claim's own quantities, but for the check's defaults.
        weaker, stronger, altered: Arguments, over `parameters`, of a version of the claim that it implies, of
            one that implies it, and of one that is neither; empty where there is none.
        why: For `NOT_CHECKABLE`: why not by us.

    Raises:
        InputError: the fields do not fit each other, or one is empty.
    """

    id: str
    paper: str
    place: str
    restatement: str
    method: Method
    check: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    weaker: Mapping[str, Any] = field(default_factory=dict)
    stronger: Mapping[str, Any] = field(default_factory=dict)
    altered: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def __post_init__(self) -> None:
        if not all(letter.isalnum() or letter in "-_." for letter in self.id) or not self.id:
            raise InputError(f"claim id must be letters, digits, '-', '_' and '.', got {self.id!r}")
        for name in ("paper", "place", "restatement"):
            if not getattr(self, name).strip():
                raise InputError(f"claim {self.id!r}: {name} must not be empty")
        checkable = self.method is not Method.NOT_CHECKABLE
        if checkable and not self.check:
            raise InputError(f"claim {self.id!r}: check must be given with method {str(self.method)!r}")
        if checkable and self.why:
            raise InputError(f"claim {self.id!r}: why goes with method 'not checkable' only")
        if not checkable and (self.check or self.parameters or self.versions()):
            raise InputError(f"claim {self.id!r}: check and parameters must be absent where not checkable")
        if not checkable and not self.why.strip():
            raise InputError(f"claim {self.id!r}: why must be given with method 'not checkable'")

    def versions(self) -> dict[str, PublishedClaim]:
        """The weaker, the stronger and the altered version, those that there are."""
        return {
            kind: replace(self, parameters={**self.parameters, **changes}, weaker={}, stronger={}, altered={})
            for kind in VERSIONS
            if (changes := getattr(self, kind))
        }

    def to_json(self) -> dict[str, JSON]:
        """Plain form of what the ledger says, with the function that checks it."""
        return {
            "id": self.id,
            "paper": self.paper,
            "place": self.place,
            "restatement": self.restatement,
            "method": str(self.method),
            "check": self.check,
            "parameters": dict(self.parameters),
            **{kind: dict(getattr(self, kind)) for kind in VERSIONS},
            "function": function_of(self),
            "why": self.why,
        }


@cache
def papers() -> Mapping[str, str]:
    """The papers that the shipped ledger covers: key, and the name that tables use."""
    return MappingProxyType(tomllib.loads(_shipped())["papers"])


def _shipped() -> str:
    return (files("workbench.data") / "published" / "claims.toml").read_text(encoding="utf-8")


_TEXTS = ("id", "paper", "place", "restatement", "method", "check", "why")
_REQUIRED = ("id", "paper", "place", "restatement", "method")


def load_ledger(path: Path | None = None) -> tuple[PublishedClaim, ...]:
    """All claims of a ledger file, in its order; None for the shipped one.

    Raises:
        InputError: the file cannot be read or is no TOML; an entry has an unknown field, paper, method,
            check or parameter, lacks a field, or repeats another's id. The message says which.
    """
    source = str(path) if path is not None else _SHIPPED
    try:
        text = _shipped() if path is None else read_text(path)
        return parse_ledger(text)
    except OSError as error:
        raise ArgumentError("ledger", f": cannot read {source!r}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"ledger {source}: is no UTF-8 text: {error}") from error
    except InputError as error:
        raise InputError(f"ledger {source}: {error}") from error


def parse_ledger(text: str) -> tuple[PublishedClaim, ...]:
    """The claims of a ledger's text; see `load_ledger`."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Besides a syntax error: too deep, or too long a number.
        raise InputError(f"is no TOML: {error}") from error
    for name in content:
        if name not in ("claim", "papers"):
            raise unknown_name("table", name, ("claim", "papers"))
    named = {**papers(), **_own_papers(content.get("papers", {}))}
    tables = content.get("claim", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError("entries must be [[claim]] tables")
    claims = tuple(_claim(table, number, named) for number, table in enumerate(tables, start=1))
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise InputError(f"claim id {claim.id!r} is given twice")
        seen.add(claim.id)
    for claim in claims:
        _require_check(claim)
    return claims


def select_claims(claims: Sequence[PublishedClaim], filters: Iterable[str]) -> tuple[PublishedClaim, ...]:
    """The claims that a filter names, in the ledger's order; all of them without a filter.

    Args:
        filters: Papers, by key or by the name that tables use (capitals do not matter), or beginnings of ids.

    Raises:
        InputError: a filter names none.
    """
    wanted = list(filters)
    for text in wanted:
        if not any(_matches(claim, text) for claim in claims):
            known = {name for claim in claims for name in (claim.paper, claim.id)}
            raise unknown_name("paper or claim", text, known)
    return tuple(claim for claim in claims if not wanted or any(_matches(claim, text) for text in wanted))


def function_of(claim: PublishedClaim) -> str | None:
    """The function that checks a claim, as `module:function`; None where nothing here can check it."""
    if claim.check is None:
        return None
    known = registry.entries("claim_check")
    if claim.check not in known:
        return None
    try:
        factory = known[claim.check].factory
    except MissingExtraError:
        return None
    return f"{factory.__module__}:{factory.__qualname__}"


def _matches(claim: PublishedClaim, text: str) -> bool:
    names = (claim.paper.casefold(), papers().get(claim.paper, claim.paper).casefold())
    return bool(text) and (text.casefold() in names or claim.id.startswith(text))


def _own_papers(table: Any) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise InputError('papers must be a table of texts: name = "title"')
    return table


def _claim(table: Mapping[str, Any], number: int, papers: Mapping[str, str]) -> PublishedClaim:
    """One entry, its fields checked one by one."""
    label = f"claim {table['id']!r}" if isinstance(table.get("id"), str) else f"claim number {number}"
    known = [known_field.name for known_field in fields(PublishedClaim)]
    try:
        for name in table:
            if name not in known:
                raise unknown_name("field", name, known)
        for name in _REQUIRED:
            if name not in table:
                raise InputError(f"{name} is missing")
        for name in _TEXTS:
            if not isinstance(table.get(name, ""), str):
                raise InputError(f"{name} must be a text, got {table[name]!r}")
            if any(ord(letter) < 32 and letter not in "\n\t" for letter in table.get(name, "")):
                raise InputError(f"{name} must hold no control characters, got {table[name]!r}")
        for name in ("parameters", *VERSIONS):
            if not isinstance(table.get(name, {}), dict):
                raise InputError(f"{name} must be a table, got {table[name]!r}")
            try:
                plain(table.get(name, {}))
            except TypeError as error:
                raise InputError(f"{name} must be numbers, texts, lists and tables: {error}") from error
        if table["paper"] not in papers:
            raise unknown_name("paper", table["paper"], papers)
        if table["method"] not in list(Method):
            raise unknown_name("method", table["method"], [str(method) for method in Method])
    except InputError as error:
        raise InputError(f"{label}: {error}") from error
    return PublishedClaim(**{**table, "method": Method(table["method"])})


def _require_check(claim: PublishedClaim) -> None:
    """Refuse a check that is not registered, and parameters that it does not take."""
    if claim.check is None:
        return
    known = registry.entries("claim_check")
    if claim.check not in known:
        error = unknown_name("check", claim.check, known)
        raise InputError(f"claim {claim.id!r}: {error}")
    try:
        accepted = inspect.signature(known[claim.check].factory).parameters
    except MissingExtraError:  # It can be listed all the same; its check says what is missing.
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        return
    for name in (name for version in ("parameters", *VERSIONS) for name in getattr(claim, version)):
        if name not in accepted:
            error = unknown_name(f"parameter of check {claim.check!r}:", name, accepted)
            raise InputError(f"claim {claim.id!r}: {error}")
