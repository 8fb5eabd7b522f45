"""Parses a claim as a user types it: `epsilon=1,delta=1e-5,adjacency=add-remove`.

One currency, and what the claim is about; nothing is guessed, because a number without its adjacency (or
its secret) can be neither confirmed nor refuted:

| currency | keys |
|---|---|
| (epsilon, delta)-DP | `epsilon`, `delta` (0 for pure differential privacy), `adjacency` |
| mu-GDP | `mu`, `adjacency` |
| Rényi DP | `alpha`, `renyi` (the divergence in nats), `adjacency` |
| mutual information | `nats`, `secret` |

and, for all of them, `released` if the claim covers more than the caller takes for granted.

>>> parse_claim("epsilon=1,delta=1e-5,adjacency=add-remove").describe()
'(epsilon = 1, delta = 1e-05)-DP, adjacency: add-remove, released: scores'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from workbench.accounting import ApproximateDP, GaussianDP, MutualInformation, RenyiDP
from workbench.core.arguments import plain_float
from workbench.core.errors import ArgumentError, InputError, unknown_name
from workbench.core.one_line import object_line, one_line
from workbench.interfaces import Adjacency, Claim, Guarantee, Released, Secret

Choice = TypeVar("Choice", bound=StrEnum)

EXAMPLE = "epsilon=1,delta=1e-5,adjacency=add-remove"


@dataclass(frozen=True, kw_only=True)
class _Currency:
    """How one currency is written: its numbers, in order, and the key that says what it is about."""

    numbers: tuple[str, ...]
    about: str
    build: Callable[[Mapping[str, float], Adjacency | Secret], Guarantee]


_CURRENCIES = (
    _Currency(
        numbers=("epsilon", "delta"),
        about="adjacency",
        build=lambda given, _: ApproximateDP(epsilon=given["epsilon"], delta=given["delta"]),
    ),
    _Currency(numbers=("mu",), about="adjacency", build=lambda given, _: GaussianDP(mu=given["mu"])),
    _Currency(
        numbers=("alpha", "renyi"),
        about="adjacency",
        build=lambda given, _: RenyiDP(alpha=given["alpha"], epsilon=given["renyi"]),
    ),
    _Currency(
        numbers=("nats",),
        about="secret",
        build=lambda given, about: MutualInformation(nats=given["nats"], secret=Secret(about)),
    ),
)
_NUMBERS = {number: currency for currency in _CURRENCIES for number in currency.numbers}
_KEYS = (*_NUMBERS, "adjacency", "secret", "released")
_HINTS = {"delta": " (delta=0 states pure differential privacy)"}


def parse_claim(text: str, *, source: str = "the user", released: Released = Released.SCORES) -> Claim:
    """The claim that a text of comma-separated `key=value` pairs makes.

    `source`: whose claim it is. `released`: what the adversary sees, where `text` does not say. Raises
    `InputError`: an unknown, doubled or missing key, or a value out of range; one line that names it.
    """
    given = _pairs(text)
    currency = _currency(given, text)
    for key in given:
        if key not in (*currency.numbers, currency.about, "released"):
            raise ArgumentError(
                "claim", f": {key!r} does not go with {currency.numbers[0]!r} in {_short(text)}"
            )
    choices: type[Adjacency] | type[Secret] = Adjacency if currency.about == "adjacency" else Secret
    about = _choice(currency.about, _required(given, currency.about, text, choices), choices)
    numbers = {key: _number(key, _required(given, key, text)) for key in currency.numbers}
    try:
        guarantee = currency.build(numbers, about)
    except InputError as error:
        raise ArgumentError("claim", f": {error}") from error
    if "released" in given:
        released = _choice("released", given["released"], Released)
    return Claim(guarantee=guarantee, about=about, released=released, source=source)


def claimed(value: Any, *, released: Released, name: str = "claim") -> Claim:
    """The claim that a caller gives as a text or as an object.

    `released`: what the adversary sees, where a text does not say. Raises `InputError`: as `parse_claim`; or
    the value is something else, such as a guarantee without what it is about.
    """
    if isinstance(value, Claim):
        return value
    if isinstance(value, Guarantee):
        raise ArgumentError(
            name,
            f"must say what it is about: Claim(guarantee=..., about=Adjacency.ADD_REMOVE, ...) or a text "
            f"such as {EXAMPLE!r}, got {value.describe()}",
        )
    if not isinstance(value, str):
        raise ArgumentError(name, f"must be a text such as {EXAMPLE!r} or a Claim, got {object_line(value)}")
    return parse_claim(value, released=released)


def require_gaussian_curve(claim: Claim) -> None:
    """Refuse claims that scores of a Gaussian family say nothing about beyond what any scores do.

    Raises `InputError`: the claim is in another currency than mu, or epsilon with a delta above 0.
    """
    guarantee = claim.guarantee
    if isinstance(guarantee, GaussianDP) or (isinstance(guarantee, ApproximateDP) and guarantee.delta > 0.0):
        return
    raise InputError(
        "family gaussian goes with a claim in mu, or in epsilon with a delta above 0, got "
        f"{guarantee.describe()}"
    )


def _pairs(text: str) -> dict[str, str]:
    """Keys and values of the text, each key once."""
    given: dict[str, str] = {}
    if ";" in text:
        raise ArgumentError("claim", f"must have commas between its pairs, got {_short(text)}")
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise ArgumentError("claim", f"must be key=value pairs such as {EXAMPLE!r}, got {_short(text)}")
        if key not in _KEYS:
            raise _prefixed(unknown_name("key", key, _KEYS))
        if key in given:
            raise ArgumentError("claim", f": {key!r} is given twice in {_short(text)}")
        given[key] = value
    return given


def _currency(given: Mapping[str, str], text: str) -> _Currency:
    """The currency whose numbers are given; the first one, where several are mixed."""
    for key in given:
        if key in _NUMBERS:
            return _NUMBERS[key]
    raise ArgumentError("claim", f": one of epsilon, mu, renyi or nats is missing in {_short(text)}")


def _required(given: Mapping[str, str], key: str, text: str, choices: type[StrEnum] | None = None) -> str:
    if key in given:
        return given[key]
    hint = f": {' | '.join(choices)}" if choices else _HINTS.get(key, "")
    raise ArgumentError("claim", f": {key} is missing in {_short(text)}{hint}")


def _number(key: str, value: str) -> float:
    try:
        found = plain_float(value)
    except (ValueError, OverflowError) as error:
        kind = "finite" if isinstance(error, OverflowError) else "a number"
        raise ArgumentError("claim", f": {key} must be {kind}, got {_short(value)}") from None
    if found == 0 and set(value.lower().partition("e")[0]) & set("123456789"):
        raise ArgumentError("claim", f": {key} is too small for a float, got {_short(value)}")
    return found


def _choice(key: str, value: str, choices: type[Choice]) -> Choice:
    try:
        return choices(value)
    except ValueError:
        raise _prefixed(unknown_name(key, value, [choice.value for choice in choices])) from None


def _prefixed(error: InputError) -> InputError:
    return ArgumentError("claim", f": {error}")


def _short(text: str) -> str:
    """The text in quotes, cut to a length that still reads as one line."""
    return one_line(repr(text), longest=80)
