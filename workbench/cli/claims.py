"""`workbench claims`: runs the checks of published claims, and prints their verdicts.

Exit code: 0 the ledger ran, whatever its verdicts (that a published claim is refuted is a finding, not a
failure); 2 bad input, or a check needs a package that is not installed; 3 a check crashed or ended without an
answer. Nothing is written before all is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from workbench.checks.api import claims as checks
from workbench.checks.api.claims import ClaimsResult, verdict_of
from workbench.checks.ledger import Method
from workbench.checks.run import CheckedClaim
from workbench.cli import terminal
from workbench.cli.parameters import NoProgress, Scheduler, check_scheduler
from workbench.core.errors import ArgumentError, InputError
from workbench.core.outputs import require_distinct, require_file_place, write_atomically
from workbench.core.templates import percent

_NARROW = 100
"""Columns below which claims are printed one below the other, and not as a table."""


def claims(
    filters: Annotated[
        list[str] | None,
        Argument(metavar="PAPER|ID", help="Papers, or beginnings of ids; all claims without."),
    ] = None,
    *,
    explain: Annotated[
        str | None, Option(metavar="ID", help="Check this claim, and show the evidence in full.")
    ] = None,
    method: Annotated[
        str | None, Option(help=f"Only claims checked by this method: {', '.join(map(str, Method))}.")
    ] = None,
    json_file: Annotated[
        Path | None,
        Option(
            "--json",
            metavar="FILE",
            help="Also write the ledger with its evidence; -: print it, and nothing else there.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None, Option(metavar="FILE.toml", help="Another ledger than the shipped one.")
    ] = None,
    workers: Annotated[
        int | None, Option("--workers", "--jobs", help="Worker processes; 0: this one.", show_default="2")
    ] = None,
    scheduler: Scheduler = None,
    quiet: NoProgress = False,
) -> int:
    """Check the privacy claims that papers print: PROVEN, REFUTED, HOLDS UNDER, or UNDECIDED.

    Exit code: 0 the checks ran, whatever they found; 2 bad input, or a check needs a package that is not
    installed (the others ran); 3 a check crashed or did not answer.
    """
    check_scheduler(scheduler, workers)
    if json_file is not None:
        require_file_place("--json", json_file)
        require_distinct({"--ledger": ledger, "--json": json_file})
    if explain is not None and (filters or method is not None):
        raise InputError("--explain takes one claim's id, and no filters beside it")
    given: dict[str, Any] = {"method": method, "ledger": ledger, "workers": workers, "scheduler": scheduler}
    try:
        with terminal.progress_display(quiet) as progress:
            result = checks.claims(*(filters or ()), only=explain, progress=progress, **given)
    except ArgumentError as error:
        raise InputError(f"--{error}") from error
    checked = result.checked
    with terminal.json_place(json_file) as place:
        if place is not None:
            text = json.dumps(result.record, indent=2, ensure_ascii=False, allow_nan=False)
            write_atomically(place, text + "\n")
        console = terminal.output_console()
        if explain is not None:
            _print_evidence(console, checked[0])
        else:
            _print_ledger(console, result)
    return result.exit_code


def _print_ledger(console: Console, result: ClaimsResult) -> None:
    """A row a claim (on a narrow terminal: a paragraph), then how many have which verdict."""
    if console.width >= _NARROW:
        table = Table("claim", "place", "verdict", "finding", box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[0].overflow = "fold"
        for answer in result.checked:
            cells = (Text(answer.claim.id), Text(answer.claim.place))
            table.add_row(*cells, terminal.verdict_text(verdict_of(answer)), Text(answer.summary))
        console.print(table)
    else:
        for answer in result.checked:
            head = Text.assemble(answer.claim.id, " ", terminal.verdict_text(verdict_of(answer)))
            console.print(head)
            for text in (answer.claim.place, answer.summary):
                console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
    console.print(Text(result.sentence))


def _print_evidence(console: Console, answer: CheckedClaim) -> None:
    """Print everything about one claim."""
    claim, finding = answer.claim, answer.finding
    console.print(Text.assemble((claim.id, "bold"), " ", terminal.verdict_text(verdict_of(answer))))
    plain_form = answer.to_json()
    given = ", ".join(f"{name}={value!r}" for name, value in plain_form["parameters"].items())
    lines: list[tuple[str, str]] = [
        ("Place", f"{claim.paper}, {claim.place}"),
        ("Claim", claim.restatement),
        ("Method", str(claim.method)),
    ]
    if claim.check is not None:
        lines += [("Check", f"{claim.check}({given})"), ("Function", str(plain_form["function"]))]
    lines.append(("Finding", answer.summary))
    if finding is not None and finding.confidence is not None:
        lines.append(("Confidence", percent(finding.confidence, 4)))
    for name, text in lines:
        console.print(Text.assemble((f"{name}: ", "bold"), text))
    _print_items(console, "Evidence", plain_form["evidence"])
    _print_items(console, "Counterexample", _assignments(plain_form["counterexample"]))
    _print_items(console, "Assumptions", [_words(assumption) for assumption in plain_form["assumptions"]])
    if answer.details:
        console.print(Text(answer.details.rstrip()))
    console.print(Text(f"Checked in {answer.seconds:.1f} s"))


def _words(assumption: Mapping[str, Any]) -> str:
    """An assumption, with what it takes to be left open by the claim."""
    free = "; ".join(f"{name}: {', '.join(map(str, v))}" for name, v in assumption["left_open"].items())
    return f"{assumption['text']} (the claim leaves open {free})"


def _print_items(console: Console, name: str, items: Sequence[str]) -> None:
    if items:
        console.print(Text(f"{name}:", style="bold"))
    for item in items:
        console.print(Padding(Text(f"- {item}"), (0, 0, 0, 2), expand=False))


def _assignments(values: Mapping[str, Any]) -> list[str]:
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    return [f"{name} = {value}" for name, value in texts.items()]
