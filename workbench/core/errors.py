"""The errors that the bench raises on purpose.

`InputError` is a user's mistake: the command line prints its line and exits with 2. `UnsupportedError` and
`InconclusiveError` are answers: we cannot answer the question, or the experiment did not settle it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MOST_NAMES = 40
"""Known names that an error lists."""


class WorkbenchError(Exception):
    """Base of every error that the bench raises on purpose."""


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
        self.reason = reason

    def __str__(self) -> str:
        """The name and the reason."""
        return f"{self.argument}{'' if self.reason.startswith(':') else ' '}{self.reason}"


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
