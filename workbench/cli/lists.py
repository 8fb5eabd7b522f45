"""`workbench list`, `workbench accountants list` and `workbench data fetch`: what is there to work with."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from workbench.cli import terminal
from workbench.core import registry
from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import CorpusFacets

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


def list_accountants(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List the registered accountants.

    Exit code: 0 listed, 2 bad input.
    """
    return list_names("accountants", as_json)


def fetch(name: Annotated[str, typer.Argument(help="A corpus; see `workbench list corpora`.")]) -> int:
    """Download a corpus to the user's cache, where it is not there yet.

    Exit code: 0 it is there, 2 bad input, or it could not be had.
    """
    known = registry.entries("corpus")
    if name not in known:
        raise unknown_name("corpus", name, known)
    facets = known[name].facets
    if not isinstance(facets, CorpusFacets) or facets.fetch is None:
        raise InputError(f"corpus {name!r} has nothing to fetch")
    typer.echo(f"{name}: {facets.fetch(None)}")
    return 0
