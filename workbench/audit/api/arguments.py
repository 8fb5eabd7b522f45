"""Arguments that several audits take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from workbench.core import registry
from workbench.core.arguments import number, path_of, whole_number
from workbench.core.errors import ArgumentError, unknown_name
from workbench.core.one_line import object_line
from workbench.core.outputs import require_folder_place
from workbench.interfaces import Claim

ClaimLike: TypeAlias = str | Claim
"""A claim, or its text: `"epsilon=1,delta=1e-5,adjacency=add-remove"`."""

PathLike: TypeAlias = str | Path

MOST_CONFIDENCE = 1 - 1e-9
"""A larger confidence is a slip: no audit has the trials for it, and it reads as certainty."""


LEAST_PRIOR = 1e-9
"""A rarer member, or non-member, is in no file of scores."""


def confidence_of(value: Any) -> float:
    """A confidence in (0.5, 1), not so near to 1 that it is taken for a slip."""
    checked = number("confidence", value, above=0.5, below=1)
    if checked > MOST_CONFIDENCE:
        raise ArgumentError("confidence", f"must be at most 1 - 1e-9, got {checked!r}")
    return checked


def prior_of(value: Any) -> float:
    """The probability of a coin, not so near to 0 or 1 that all coins fall alike."""
    checked = number("prior", value, above=0, below=1)
    if not LEAST_PRIOR <= checked <= 1 - LEAST_PRIOR:
        raise ArgumentError("prior", f"must be in [{LEAST_PRIOR:g}, 1 - {LEAST_PRIOR:g}], got {checked!r}")
    return checked


def seed_of(value: Any) -> int:
    """A seed, >= 0."""
    return whole_number("seed", value, least=0, most=2**63 - 1)


def known(argument: str, kind: str, name: Any) -> str:
    """A registered name; refuses others, with "did you mean"."""
    if not isinstance(name, str):
        raise ArgumentError(argument, f"must be the name of a {kind}, got {object_line(name)}")
    entries = registry.entries(kind)
    if name not in entries:
        raise unknown_name(kind, name, entries)
    return name


@contextmanager
def kept_in(out: PathLike | None) -> Iterator[Path]:
    """The folder that results are kept in; for None one that is gone afterwards."""
    if out is None:
        with TemporaryDirectory(prefix="workbench-", ignore_cleanup_errors=True) as place:
            yield Path(place)
        return
    path = path_of("out", out)
    require_folder_place("out", path)
    yield path


def call_of(function: str, *arguments: Any, **named: Any) -> str:
    """The call as a reader can repeat it, large arguments cut short; None is left out."""
    words = [object_line(value, 60) for value in arguments]
    words += [f"{name}={object_line(value, 60)}" for name, value in named.items() if value is not None]
    return f"workbench.{function}({', '.join(words)})"
