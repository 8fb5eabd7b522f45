"""`workbench list`, `workbench accountants list` and `workbench data fetch`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument

from workbench.cli import terminal
from workbench.cli.parameters import PrintJson, known
from workbench.core import registry
from workbench.core.errors import InputError, MissingExtraError, unknown_name
from workbench.interfaces import CorpusFacets

STUDIES = "studies"
CLAIMS = "claims"

LISTS = {
    "mechanisms": "mechanism",
    "attacks": "attack",
    "games": "game",
    "corpora": "corpus",
    "models": "model",
    "accountants": "accountant",
    "study-reports": "study_report",
}
"""What `workbench list` finds in the registry; studies and published claims, which are files, are listed too.
"""


def list_names(
    what: Annotated[str, Argument(metavar=" | ".join([*LISTS, STUDIES, CLAIMS]), help="What to list.")],
    as_json: PrintJson = False,
) -> int:
    """List what can be audited, and with what; the studies that can be run, and the published claims.

    Exit code: 0 listed, 2 bad input.
    """
    if what not in (*LISTS, STUDIES, CLAIMS):
        raise unknown_name("list", what, [*LISTS, STUDIES, CLAIMS])
    from_files = {STUDIES: _studies, CLAIMS: _claims}
    rows = from_files[what]() if what in from_files else _registered(LISTS[what])
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return 0
    console = terminal.output_console()
    if what == CLAIMS:
        for row in rows:
            console.print(Text.assemble((row["id"], "bold"), f" ({row['place']}; {row['method']})"))
            console.print(Padding(Text(row["claim"]), (0, 0, 0, 4)))
        return 0
    table = Table(*rows[0])
    for row in rows:
        name, *others = (", ".join(value) if isinstance(value, list) else value for value in row.values())
        table.add_row(Text(name, no_wrap=True), *map(Text, others))
    console.print(table)
    return 0


def _registered(kind: str) -> list[dict[str, Any]]:
    known = registry.entries(kind)
    return [{"name": name, "summary": _summary(known, name)} for name in known]


def _summary(known: registry.Entries, name: str) -> str:
    """An entry's summary, or what its module lacks here."""
    try:
        return known[name].summary
    except MissingExtraError as error:
        return f"({error})"


def _studies() -> list[dict[str, Any]]:
    """The shipped studies; the default profile comes first."""
    from workbench.studies.study import profiles, study_names, title

    return [{"name": name, "title": title(name), "profiles": profiles(name)} for name in study_names()]


def _claims() -> list[dict[str, Any]]:
    """The claims of the shipped ledger, which `workbench claims` checks."""
    from workbench.checks.ledger import load_ledger

    return [
        {"id": claim.id, "place": claim.place, "method": str(claim.method), "claim": claim.restatement}
        for claim in load_ledger()
    ]


def list_accountants(as_json: PrintJson = False) -> int:
    """List the registered accountants.

    Exit code: 0 listed, 2 bad input.
    """
    return list_names("accountants", as_json)


def fetch(name: Annotated[str, Argument(help="A corpus; see `workbench list corpora`.")]) -> int:
    """Download a corpus to the user's cache, where it is not there yet.

    Exit code: 0 it is there, 2 bad input, or it could not be had.
    """
    facets = registry.entries("corpus")[known("corpus", name)].facets
    if not isinstance(facets, CorpusFacets) or facets.fetch is None:
        raise InputError(f"corpus {name!r} has nothing to fetch")
    typer.echo(f"{name}: {facets.fetch(None)}")
    return 0
