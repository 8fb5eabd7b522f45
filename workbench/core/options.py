"""Builds commands whose options are the fields of a frozen dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")


def as_command(run: Callable[[Options], int], kind: type[Options]) -> Callable[..., int]:
    """Returns a function whose parameters, for Typer, are the fields of the dataclass `kind`.

    `run` takes the options and returns the exit code; its docstring becomes the command's help.
    """
    hints = get_type_hints(kind, include_extras=True)

    def command(**given: Any) -> int:
        return run(kind(**given))

    parameters = [
        Parameter(
            option.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if option.default is MISSING else option.default,
            annotation=hints[option.name],
        )
        for option in fields(kind)  # type: ignore[arg-type]
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = run.__doc__
    return command
