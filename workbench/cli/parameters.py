"""Parameters as a user types them: `key=value` pairs, and what a factory takes them for; schedulers."""

from __future__ import annotations

import inspect
import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.core import registry
from workbench.core.errors import InputError, unknown_name

_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx)://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}")


def check_scheduler(scheduler: str | None, workers: int | None) -> None:
    """Refuse an address of another form, and `--workers` beside `--scheduler`; None where not given."""
    if workers is not None and scheduler is not None:
        raise InputError("--workers and --scheduler exclude each other")
    if scheduler is not None and not _ADDRESS.fullmatch(scheduler):
        raise InputError(f"--scheduler must be tcp://HOST:PORT, got {scheduler!r}")


def require_scheduler(scheduler: str | None) -> None:
    """Refuse a scheduler where nobody answers, before a folder is made."""
    if scheduler is None:
        return
    from workbench.execution.backend import make_backend

    with tempfile.TemporaryDirectory() as place:
        make_backend(workers=0, scheduler=scheduler, scratch=lambda: Path(place)).close()


def parameters(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` pairs; a value that is a JSON number or boolean becomes one, else it stays text.

    Raises:
        InputError: a pair has no key or no equals sign, or a key is given twice.
    """
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"{flag} must be key=value, got {pair!r}")
        if key in given:
            raise InputError(f"{flag} {key!r} is given twice")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        is_plain = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
        given[key] = value if is_plain else text
    return given


def as_declared(kind: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the factory takes them, where how they are typed does not tell.

    Whole numbers are text where the factory declares text: a name may look like one. The text `inf` is a
    number where the factory's default is infinite.

    Args:
        kind: Of registry.
        name: Registered.
        given: What `parameters` read.
    """
    if not given:
        return {}
    declared = inspect.signature(registry.entries(kind)[name].factory).parameters
    texts = {key for key, one in declared.items() if one.annotation in ("str", str)}
    endless = {key for key, one in declared.items() if one.default == math.inf}

    def declared_value(key: str, value: Any) -> Any:
        if key in endless and value == "inf":
            return math.inf
        return str(value) if key in texts and type(value) is int else value

    return {key: declared_value(key, value) for key, value in given.items()}


def with_variant(mechanism: str, given: Mapping[str, Any], variant: str | None) -> dict[str, Any]:
    """A mechanism's parameters with the variant that `--variant` names.

    Args:
        mechanism: Registered.
        given: Its other parameters.
        variant: What `--variant` says; None where it says nothing.

    Raises:
        InputError: the mechanism has no variants, or the variant is given twice.
    """
    if variant is None:
        return dict(given)
    declared = inspect.signature(registry.entries("mechanism")[mechanism].factory).parameters
    if "variant" not in declared:
        raise InputError(f"--variant goes with a mechanism that has variants, not with {mechanism}")
    if "variant" in given:
        raise InputError("--variant and --mechanism-parameter variant=... exclude each other")
    return {**given, "variant": variant}


def attack_parameters(
    pairs: Sequence[str], attacks: Sequence[str], default: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Parameters by attack from `attack.key=value` pairs, laid over the defaults.

    Args:
        pairs: As they are typed.
        attacks: Names of the audit's attacks.
        default: Parameters by attack.

    Raises:
        InputError: a pair names no attack of this audit, or is no pair.
    """
    by_attack: dict[str, list[str]] = {name: [] for name in attacks}
    for pair in pairs:
        attack, dot, rest = pair.partition(".")
        if not dot:
            raise InputError(f"--attack-parameter must be attack.key=value, got {pair!r}")
        if attack not in by_attack:
            raise unknown_name("attack of this audit", attack, by_attack)
        by_attack[attack].append(rest)
    return {
        name: {**default.get(name, {}), **parameters("--attack-parameter", own)}
        for name, own in by_attack.items()
    }


def known(kind: str, name: str) -> str:
    """The name, if it is registered.

    Raises:
        InputError: it is not.
    """
    entries = registry.entries(kind)
    if name not in entries:
        raise unknown_name(kind, name, entries)
    return name
