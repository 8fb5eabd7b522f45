"""The errors that the bench raises on purpose.

`InputError` is a user's mistake: the command line prints its line and exits with 2. `UnsupportedError` and
`InconclusiveError` are answers: we cannot answer the question, or the experiment did not settle it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

from workbench.core.one_line import shorten_numbers

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

_MOST_NAMES = 40
"""Known names that an error lists."""

_EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "peft": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "sklearn": "train",
    "statsmodels": "report",
    "stable_baselines3": "studies",
    "gymnasium": "studies",
    "nltk": "studies",
    "sacrebleu": "studies",
}
"""Packages that the base installation lacks, and the extra that brings each."""


class WorkbenchError(Exception):
    """Base of every error that the bench raises on purpose; long whole numbers are shortened in its message.

    >>> str(InputError(f"steps must be at most 10, got {10**300}"))
    'steps must be at most 10, got 1e+300'
    """

    def __str__(self) -> str:
        """The message."""
        return shorten_numbers(super().__str__())


class InputError(WorkbenchError, ValueError):
    """An argument is unusable; the message names the argument and its value."""


class ArgumentError(InputError):
    """An argument is unusable, for a reason that is said apart from its name.

    The command line says the same of the option that gave the argument.

    >>> str(ArgumentError("seed", "must be at least 0, got -1"))
    'seed must be at least 0, got -1'
    """

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(argument, reason)
        self.argument = argument
        self.reason = shorten_numbers(reason)

    def __str__(self) -> str:
        """The name and the reason."""
        return f"{self.argument}{'' if self.reason.startswith(':') else ' '}{self.reason}"


class RoomError(ArgumentError):
    """A corpus has too few records for its three parts.

    >>> str(RoomError("size", (5, 2, 1), "the file has 6"))
    'size must leave room for held_out and public: 5 + 2 + 1 records wanted, the file has 6'
    """

    def __init__(self, argument: str, wanted: tuple[int, int, int], available: str) -> None:
        parts = " + ".join(map(str, wanted))
        words = f"must leave room for held_out and public: {parts} records wanted, {available}"
        super().__init__(argument, words)
        self.args = argument, wanted, available  # By which a worker's is made again.
        self.wanted, self.available = wanted, available

    def of(self, argument: str) -> RoomError:
        """The same of the argument that the number of records comes from."""
        return RoomError(argument, self.wanted, self.available)


class MissingExtraError(InputError):
    """A package is needed that comes with an optional extra, and is not installed."""


class ContentError(InputError):
    """A worker's files differ from those that the run was started with; the job itself is not at fault."""


class UnsupportedError(WorkbenchError):
    """The question is well-formed, but this part cannot answer it; the message says which part can."""


class InconclusiveError(WorkbenchError):
    """The computation ended without settling the question."""


class InterruptedRunError(WorkbenchError):
    """The user stopped a run; the message says which results are kept."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Returns an `InputError` for an unregistered name, with "did you mean" where a known name is close.

    `kind` is what was looked up, in the singular: `"mechanism"`.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = f"; known: {', '.join(names[:_MOST_NAMES])}{more}"
    hint = f"; did you mean {close[0]!r}?" if close else listed
    return InputError(f"unknown {kind} {name!r}{hint}")


def require_package(package: str, wanted: str) -> None:
    """Raises `MissingExtraError` where a package of an extra is not installed; imports nothing."""
    if find_spec(package) is None:
        error = missing_extra(ModuleNotFoundError(name=package), wanted)
        raise error or InputError(f"{wanted} needs {package}, which is not installed")


def missing_extra(error: ImportError, wanted: str = "this") -> MissingExtraError | None:
    """Returns the line for a failed import where an extra brings the package, else None.

    `wanted` is what needs the package: `"mechanism 'mine'"`.

    >>> str(missing_extra(ModuleNotFoundError("No module named 'nltk'", name="nltk")))
    "this needs nltk, which is not installed: pip install 'lm-privacy-workbench[studies]'"
    """
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in _EXTRAS:
        return None
    extra = _EXTRAS[package]
    return MissingExtraError(
        f"{wanted} needs {package}, which is not installed: pip install 'lm-privacy-workbench[{extra}]'"
    )


def naming_extras(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Decorates a function of the public API: a package that it lacks is a `MissingExtraError`."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            if (missing := missing_extra(error, f"workbench.{function.__name__}")) is None:
                raise
            raise missing from error

    return call
