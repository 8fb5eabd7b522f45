"""The command `workbench`, and its exit codes.

0 not refuted (or done), 1 refuted (of a study's run: an experiment failed), 2 bad input, 3 underpowered,
invalid or inconclusive, 130 interrupted, 70 a bug of ours. A user's mistake gets one line on the error
stream, a bug its traceback. `docs/commands/` is built from `COMMANDS`.

A subcommand's module is imported when the subcommand is called, so `workbench --help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from importlib.resources import files
from inspect import Parameter, Signature, signature
from itertools import pairwise
from typing import Annotated, Any, TextIO, TypeVar, cast, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import OptionInfo

from workbench.core.arguments import plain_float
from workbench.core.errors import (
    ArgumentError,
    InconclusiveError,
    InputError,
    InterruptedRunError,
    UnsupportedError,
    missing_extra,
)
from workbench.core.one_line import one_line
from workbench.core.version import __version__

Options = TypeVar("Options")


@dataclass(frozen=True)
class Command:
    """A subcommand, with the keys that `data/commands.toml` explains."""

    module: str
    function: str
    summary: str
    command: str
    says: str
    options: str = ""


def _commands() -> Mapping[str, Command]:
    text = (files("workbench.data") / "commands.toml").read_text(encoding="utf-8")
    return {name: Command(**entry) for name, entry in tomllib.loads(text).items()}


COMMANDS = _commands()
"""The subcommands, in the order of `workbench --help`; those of two words stand in groups."""

GROUPS: Mapping[str, str] = {
    "data": "The data that an audit trains on.",
    "accountants": "Compare accountants with certified bounds.",
    "models": "The small base models that studies start from.",
}

_EVERYWHERE = ("--no-color", "--verbose")
"""Options that may stand before or after a command's name."""

_COMPLETION = "_WORKBENCH_COMPLETE"
"""The variable in which a shell asks for completions."""

_COMPLETING = {"--install-completion", "--show-completion"}
"""Options of typer that leave by SystemExit."""

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# The base of all usage errors. Typer brings its own click in newer versions, so it is not importable by name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def callback_of(name: str) -> Callable[..., int]:
    """The function of a subcommand, with its options as parameters for Typer; imports its module."""
    command = COMMANDS[name]
    module = import_module(f"workbench.cli.{command.module}")
    call: Callable[..., int] = getattr(module, command.function)
    if not command.options:
        return call
    return as_command(call, getattr(module, command.options))


def as_command(run: Callable[[Options], int], kind: type[Options]) -> Callable[..., int]:
    """Returns a function whose parameters, for Typer, are the fields of the dataclass `kind`.

    `run` takes the options and returns the exit code; its docstring becomes the command's help.
    """
    hints = get_type_hints(kind, include_extras=True)

    def command(**given: Any) -> int:
        try:
            return run(kind(**given))
        except ArgumentError as error:
            raise InputError(in_options(error, kind)) from error

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


def in_options(error: ArgumentError, kind: type[Any]) -> str:
    """Returns an error of the Python API with the options of a command in the place of arguments.

    In a reason, other arguments stand in backquotes.
    """
    hints = get_type_hints(kind, include_extras=True)
    spelled = dict(getattr(kind, "called", {}))
    for option in fields(kind):
        shown: Any = next(iter(getattr(hints[option.name], "__metadata__", ())), None)
        is_option = isinstance(shown, OptionInfo)
        flag = f"--{option.name.replace('_', '-')}"
        spelled.setdefault(option.name, flag if is_option else str(getattr(shown, "metavar", option.name)))
    named = ArgumentError(spelled.get(error.argument, error.argument), error.reason)
    return re.sub(r"`(\w+)`", lambda found: spelled.get(found[1], found[0]), str(named))


class _Group(TyperGroup):
    """Commands that are listed by their summaries, and imported when one is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the words name; of words in another order, the error says the right one."""
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except _UsageError:
            meant = _meant(args)
            if not meant:
                raise
            raise InputError(f"no command {args[0]!r}; did you mean 'workbench {meant}'?") from None
        full = f"{'' if ctx.parent is None else f'{self.name} '}{name}"
        return name, loaded(full) if full in COMMANDS else command, rest


def _meant(words: Sequence[str]) -> str:
    """The command that words in another order name (`fetch data`, `mechanisms list`), or empty."""
    from workbench.cli.lists import CLAIMS, LISTS, STUDIES

    named = [name for name in COMMANDS if sorted(name.split()) == sorted(words[:2])]
    lists = [f"list {word}" for word in words[:1] if word in (*LISTS, STUDIES, CLAIMS)]
    return next(iter([*named, *lists]), "")


def loaded(name: str) -> Any:
    """A subcommand with its arguments and options, as Typer's own command; imports its module."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    epilog = f"Example: {COMMANDS[name].command}"
    callback = callback_of(name)
    single.command(name.rpartition(" ")[2], epilog=epilog, cls=_Single, context_settings=_SETTINGS)(callback)
    made: Any = typer.main.get_command(single)
    made.numbers = _numbers(callback)
    return made


class _Single(TyperCommand):
    """A command that reads each option once, none empty, and numbers as they are usually written."""

    numbers: frozenset[str] = frozenset()
    """Names of the parameters that are numbers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; refuses an option with one value that is given twice, and `1_000`."""
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given = Counter(parameter.name for parameter in order)
        for parameter in self.params:
            if not isinstance(parameter, TyperOption):
                continue
            if given[parameter.name] > 1 and not parameter.multiple and not parameter.is_flag:
                raise typer.BadParameter(f"it is given {given[parameter.name]} times", ctx, parameter)
            words = values.get(str(parameter.name))
            for word in words if isinstance(words, list) else [words]:
                if word == "":  # A shell variable that is not set.
                    raise typer.BadParameter("it is empty", ctx, parameter)
                if parameter.name in self.numbers:
                    _check_number(word, ctx, parameter)
        return super().parse_args(ctx, args)


def _check_number(word: Any, ctx: Any, parameter: Any) -> None:
    """Refuse a text that is no number, or beyond all floats."""
    try:
        if isinstance(word, str):
            plain_float(word)
    except OverflowError:
        raise typer.BadParameter(f"{word!r} is too large", ctx, parameter) from None
    except ValueError:
        raise typer.BadParameter(f"{word!r} is not a number", ctx, parameter) from None


def _numbers(callback: Callable[..., int]) -> frozenset[str]:
    """The parameters of a command that are numbers, also where there may be none, or several."""
    hints = {name: parameter.annotation for name, parameter in signature(callback).parameters.items()}
    if any(isinstance(hint, str) for hint in hints.values()):
        hints = get_type_hints(callback)

    def kinds(hint: Any) -> set[Any]:
        return {hint}.union(
            *map(kinds, get_args(hint)[:1] if hasattr(hint, "__metadata__") else get_args(hint))
        )

    return frozenset(name for name, hint in hints.items() if kinds(hint) & {int, float})


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"workbench {__version__}")
        raise typer.Exit


def _top(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Print without colours; also after a command, or NO_COLOR=1.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print where an error came from; also after a command.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _group(says: str, callback: Callable[..., None], *, completes: bool = False) -> typer.Typer:
    """A group that prints its help where no command is given."""
    group = typer.Typer(
        cls=_Group,
        help=says,
        add_completion=completes,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_SETTINGS,
    )
    group.callback(invoke_without_command=True)(callback)
    return group


def _app() -> typer.Typer:
    """The whole command, its subcommands by name and summary alone."""
    says = "Audit the privacy guarantee that a trained model claims; run studies of such models."
    top = _group(says, _top, completes=True)
    groups = {name: _group(says, _help) for name, says in GROUPS.items()}
    for name, command in COMMANDS.items():
        group = groups.get(name.partition(" ")[0], top)
        group.command(name.rpartition(" ")[2], short_help=command.summary)(lambda: None)
    for name, group in groups.items():
        top.add_typer(group, name=name)
    return top


app = _app()


class _Output:
    """An output stream whose reader may leave (`| head`): after that, what is written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._close()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._close()

    def _close(self) -> None:
        """Connect the stream's descriptor, with what is left in its buffer, to the null device."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def output_that_may_close() -> Iterator[None]:
    """Within the context, a reader of the output stream who leaves early causes no error and no other exit
    code.
    """
    if sys.stdout is None:
        yield
        return
    with redirect_stdout(cast(TextIO, _Output(sys.stdout))):
        try:
            yield
        finally:
            sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command on these words (None for those of this process); returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for before, word in zip(["", *given], given, strict=False):
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            place = (
                "an argument"
                if word.startswith("-") or not before.startswith("-")
                else f"what follows {before}"
            )
            return _complain(f"{place} must be text in UTF-8, got {word!a}", 2)
    words = [word for word in given if word not in _EVERYWHERE]
    with _without_colour("--no-color" in given):
        return _called(words, is_verbose="--verbose" in given)


@contextmanager
def _without_colour(wanted: bool) -> Iterator[None]:
    """Within the context, nothing is printed in colour, if that is wanted."""
    before = os.environ.get("NO_COLOR")
    if wanted:
        os.environ["NO_COLOR"] = "1"
    try:
        yield
    finally:
        if wanted:
            del os.environ["NO_COLOR"]
            os.environ.update({} if before is None else {"NO_COLOR": before})


def _called(words: Sequence[str], *, is_verbose: bool) -> int:
    """Run the command on these words; returns the exit code."""
    try:
        with output_that_may_close():
            code = app(words, prog_name="workbench", standalone_mode=False)
        return _complain("interrupted", 130) if code == 130 else int(code or 0)
    except _UsageError as error:
        return _complain(_usage(error, words), 2)
    except (InputError, UnsupportedError) as error:
        if is_verbose:
            traceback.print_exc()
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
        if _COMPLETION in os.environ or {*words[:1]} & _COMPLETING:
            return int(error.code or 0)
        traceback.print_exc()
        return 70
    except UnicodeError as error:
        return _complain(f"a name or path is no text: {error}", 2)
    except OSError as error:
        return _complain(f"{error.filename or 'file system'}: {error.strerror or error}", 2)
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is not None:
            return _complain(str(missing), 2)
        traceback.print_exc()
        return 70
    except BaseException:
        # Left alone, the interpreter would exit with 1, which says "refuted".
        traceback.print_exc()
        return 70


def _usage(error: Any, words: Sequence[str]) -> str:
    """The message of a usage error, with the value, which not every version of typer names."""
    message = str(error.format_message()).replace("Input should be ", "must be ")
    message = message.replace("Value error, ", "")  # Pydantic's words.
    message = message.replace("a valid integer, unable to parse string as an integer", "a whole number")
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
