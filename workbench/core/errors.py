"""The errors that the bench raises on purpose.

`InputError` is a user's mistake: the command line prints its one line and exits with 2. The other two are
answers, not mistakes: a question that we cannot answer, and an experiment that did not settle one.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class WorkbenchError(Exception):
    """Base of every error that the bench raises on purpose."""


class InputError(WorkbenchError, ValueError):
    """An argument is unusable; the message names the argument and its value."""


class ContentError(InputError):
    """A worker's files are not those that the run was started with: no fault of the job that met it."""


class UnsupportedError(WorkbenchError):
    """The question is well-formed, but this part cannot answer it (say which can)."""


class InconclusiveError(WorkbenchError):
    """The computation ended without settling the question."""


class InterruptedRunError(WorkbenchError):
    """The user stopped a run; the message says what is kept."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not registered, with "did you mean" where one is close.

    Args:
        kind: What was looked up, in the singular (`"mechanism"`).
        name: The name that was given.
        known: The names that exist.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
    return InputError(f"unknown {kind} {name!r}{hint}")
