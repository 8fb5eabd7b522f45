"""The command `workbench`, and its exit codes.

0 not refuted (or done), 1 refuted (of a study's run: an experiment failed), 2 bad input, 3 underpowered,
invalid or inconclusive, 130 interrupted, 70 a bug of ours. A user's mistake gets one line on the error
stream, a bug its traceback. `docs/commands/` is built from `COMMANDS`.

A subcommand's module is imported when the subcommand is called, so `workbench --help` answers at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from workbench import __version__
from workbench.cli.streams import output_that_may_close
from workbench.core.errors import InconclusiveError, InputError, InterruptedRunError, UnsupportedError
from workbench.core.one_line import one_line


@dataclass(frozen=True)
class Command:
    """Where a subcommand is defined.

    Attributes:
        module: Below `workbench.cli`.
        function: In it; its docstring is the command's help.
        options: The dataclass of its options, where it takes one; else its parameters are the options.
        summary: The docstring's first line, for the list of commands.
    """

    module: str
    function: str
    options: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "audit": Command("audit", "audit", "AuditOptions", "Test a claimed privacy guarantee by attack."),
    "replay": Command(
        "replay",
        "replay",
        "ReplayOptions",
        "Measure what a training function releases of one record, by replaying it with another one.",
    ),
    "claims": Command(
        "claims",
        "claims",
        "",
        "Check the privacy claims that papers print: PROVEN, REFUTED, HOLDS UNDER, or UNDECIDED.",
    ),
    "report": Command(
        "report",
        "report",
        "ReportOptions",
        "Write a study's tables and figures from what its store holds, with the paper's numbers beside ours.",
    ),
    "run": Command(
        "run", "run", "RunCommandOptions", "Run the experiments of a study that its store does not have yet."
    ),
    "list": Command(
        "lists", "list_names", "", "List what can be audited, and with what; and the studies that can be run."
    ),
    "data fetch": Command(
        "lists", "fetch", "", "Download a corpus to the user's cache, where it is not there yet."
    ),
    "accountants check": Command(
        "accountants",
        "check",
        "CheckOptions",
        "Compare accountants with certified bounds, and fail where one reports too small an epsilon.",
    ),
    "accountants ask": Command(
        "accountants",
        "ask",
        "AskOptions",
        "Ask accountants for the epsilon of one DP-SGD run, and print the certified bounds beside it.",
    ),
    "accountants list": Command("lists", "list_accountants", "", "List the registered accountants."),
    "models build": Command(
        "models",
        "build_models",
        "BuildOptions",
        "Build the base models that are missing, and keep them in the user's cache.",
    ),
    "models list": Command(
        "models",
        "list_models",
        "ListOptions",
        "List the base models: family, size, whether they are built, and how well they know text.",
    ),
}
"""The subcommands, in the order of `workbench --help`; those of two words stand in groups."""

GROUPS: Mapping[str, str] = {
    "data": "The data that an audit trains on.",
    "accountants": "Compare accountants with certified bounds.",
    "models": "The small base models that studies start from.",
}

# The base of all usage errors. Typer brings its own click in newer versions, so it is not importable by name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@dataclass(frozen=True)
class Example:
    """A worked example: a command, and its result."""

    command: str
    says: str


@cache
def examples() -> Mapping[str, Example]:
    """One example of each subcommand, for `--help` and for its page; from the data room."""
    import tomllib
    from importlib.resources import files

    text = (files("workbench.data") / "command_examples.toml").read_text(encoding="utf-8")
    return {name: Example(**example) for name, example in tomllib.loads(text).items()}


def callback_of(name: str) -> Callable[..., int]:
    """The function of a subcommand, with its options as parameters for Typer; imports its module."""
    command = COMMANDS[name]
    module = import_module(f"workbench.cli.{command.module}")
    call: Callable[..., int] = getattr(module, command.function)
    if not command.options:
        return call
    from workbench.core.options import as_command

    return as_command(call, getattr(module, command.options))


class _Group(TyperGroup):
    """Commands that are listed by their summaries, and imported when one is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the words name."""
        name, command, rest = super().resolve_command(ctx, args)
        full = f"{'' if ctx.parent is None else f'{self.name} '}{name}"
        return name, loaded(full) if full in COMMANDS else command, rest


def loaded(name: str) -> Any:
    """A subcommand with its arguments and options, as Typer's own command; imports its module."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    epilog = f"Example: {examples()[name].command}"
    single.command(name.rpartition(" ")[2], epilog=epilog)(callback_of(name))
    return typer.main.get_command(single)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"workbench {__version__}")
        raise typer.Exit


def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _group(says: str, callback: Callable[..., None]) -> typer.Typer:
    """A group that prints its help where no command is given."""
    group = typer.Typer(
        cls=_Group, help=says, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    group.callback(invoke_without_command=True)(callback)
    return group


def _app() -> typer.Typer:
    """The whole command, its subcommands by name and summary alone."""
    top = _group("Audit the privacy guarantee that a trained model claims; run studies of such models.", _top)
    groups = {name: _group(says, _help) for name, says in GROUPS.items()}
    for name, command in COMMANDS.items():
        group = groups.get(name.partition(" ")[0], top)
        group.command(name.rpartition(" ")[2], short_help=command.summary)(lambda: None)
    for name, group in groups.items():
        top.add_typer(group, name=name)
    return top


app = _app()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command on these words (None for those of this process); returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with output_that_may_close():
            code = app(words, prog_name="workbench", standalone_mode=False)
        return _complain("interrupted", 130) if code == 130 else int(code or 0)
    except _UsageError as error:
        return _complain(_usage(error, words), 2)
    except (InputError, UnsupportedError) as error:
        return _complain(str(error), 2)
    except InconclusiveError as error:
        return _complain(str(error), 3)
    except InterruptedRunError as error:
        return _complain(str(error), 130)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    except SystemExit as error:
        if error.code == 130:
            return _complain("interrupted", 130)
        traceback.print_exc()
        return 70
    except UnicodeError as error:
        return _complain(f"a name or path is no text: {error}", 2)
    except OSError as error:
        return _complain(f"{error.filename or 'file system'}: {error.strerror or error}", 2)
    except BaseException:
        # Left alone, the interpreter would exit with 1, which says "refuted".
        traceback.print_exc()
        return 70


def _usage(error: Any, words: Sequence[str]) -> str:
    """The message of a usage error, with the value, which not every version of typer names."""
    message = str(error.format_message())
    flags = getattr(getattr(error, "param", None), "opts", ())
    given = [after for word, after in pairwise(words) if word in flags]
    given += [
        word.partition("=")[2] for word in words if word.startswith(tuple(f"{flag}=" for flag in flags))
    ]
    if not given or given[-1] in message:
        return message
    return f"{message}, got {given[-1]!r}"


def _complain(message: str, code: int) -> int:
    """Print one line on the error stream, whatever the message holds."""
    with suppress(OSError, ValueError):  # Nobody reads it any more.
        print(f"error: {one_line(message)}", file=sys.stderr, flush=True)
    return code
