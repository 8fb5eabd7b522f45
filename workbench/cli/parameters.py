"""Options that several commands share, and `key=value` parameters as a user types them."""

from __future__ import annotations

import inspect
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from typer import Argument, Option

from workbench.core import registry
from workbench.core.errors import InputError, unknown_name
from workbench.core.inputs import parsed_json

StudyName: TypeAlias = Annotated[
    str, Argument(metavar="STUDY", help="A shipped study (`workbench list studies`), or a file.")
]
Scheduler: TypeAlias = Annotated[
    str | None, Option(metavar="tcp://HOST:PORT", help="Run on the workers of this Dask scheduler instead.")
]
Device: TypeAlias = Annotated[
    str | None,
    Option(
        metavar="cpu|cuda|cuda:N|mps|auto",
        help="What models are trained and asked on; auto: the accelerator, if any (docs/devices.md).",
        show_default="cpu",
    ),
]
ReportFile: TypeAlias = Annotated[
    Path | None,
    Option(metavar="FILE", help="Also write the report here; -: print it, and nothing else there."),
]
JunitFile: TypeAlias = Annotated[Path | None, Option(metavar="FILE", help="Also write JUnit XML here.")]
StatedNumbers: TypeAlias = Annotated[
    list[str] | None,
    Option(
        metavar="KEY=VALUE",
        help="What the code is said to do: noise_multiplier, l2_clip_norm, sampling_probability, steps or "
        "divisor; a replay then tells which part does otherwise. May be repeated.",
        show_default="nothing",
    ),
]
NoProgress: TypeAlias = Annotated[bool, Option("--quiet", "-q", help="Show no progress.")]
PrintJson: TypeAlias = Annotated[bool, Option("--json", help="Print JSON.")]

_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx)://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}")


def check_scheduler(scheduler: str | None, workers: int | None) -> None:
    """Refuse an address of another form, and `--workers` together with `--scheduler`."""
    if workers is not None and scheduler is not None:
        raise InputError("--workers and --scheduler exclude each other")
    if scheduler is not None and not _ADDRESS.fullmatch(scheduler):
        raise InputError(f"--scheduler must be tcp://HOST:PORT, got {scheduler!r}")


def require_device(device: str | None) -> str | None:
    """The name of a device of this machine, None for None; an `InputError` for any other."""
    if device is None:
        return None
    from workbench.training import devices

    return devices.require_device(device, "--device")


def require_scheduler(scheduler: str | None) -> None:
    """Refuse a scheduler that does not answer, before a folder is made."""
    if scheduler is None:
        return
    from workbench.execution.backend import make_backend

    with tempfile.TemporaryDirectory() as place:
        make_backend(workers=0, scheduler=scheduler, scratch=lambda: Path(place)).close()


def parameters(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` pairs; a value that is a JSON number or boolean becomes one, else it stays text.

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
            value = parsed_json(text)
        except ValueError:
            value = text
        is_plain = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
        given[key] = value if is_plain else text
    return given


def as_declared(kind: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that `parameters` read, converted to what the factory of a registered name declares.

    Whole numbers are text where the factory declares text: a name may look like one. The text `inf` is a
    number where the factory's default is infinite.
    """
    if not given:
        return {}
    declared = inspect.signature(registry.entries(kind)[name].factory).parameters
    texts = {key for key, parameter in declared.items() if parameter.annotation in ("str", str)}
    endless = {key for key, parameter in declared.items() if parameter.default == math.inf}

    def declared_value(key: str, value: Any) -> Any:
        if key in endless and value == "inf":
            return math.inf
        return str(value) if key in texts and type(value) is int else value

    return {key: declared_value(key, value) for key, value in given.items()}


def with_variant(mechanism: str, given: Mapping[str, Any], variant: str | None) -> dict[str, Any]:
    """A mechanism's parameters with the variant that `--variant` names, if any.

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


def attack_parameters(pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parameters by attack from `attack.key=value` pairs.

    Raises:
        InputError: a text is no such pair.
    """
    by_attack: dict[str, list[str]] = {}
    for pair in pairs:
        attack, dot, rest = pair.partition(".")
        if not dot:
            raise InputError(f"--attack-parameter must be attack.key=value, got {pair!r}")
        by_attack.setdefault(attack, []).append(rest)
    return {name: parameters("--attack-parameter", typed) for name, typed in by_attack.items()}


def known(kind: str, name: str) -> str:
    """The name, if it is registered; InputError if not."""
    entries = registry.entries(kind)
    if name not in entries:
        raise unknown_name(kind, name, entries)
    return name
