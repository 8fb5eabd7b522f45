"""`workbench claims`: runs the checks of published claims, and prints their verdicts.

Exit code: 0 the ledger ran, whatever its verdicts (that a published claim is refuted is a finding, not a
failure); 2 bad input; 3 a check crashed or ended without an answer. Nothing is written before all is done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from workbench.checks.ledger import Method, PublishedClaim, load_ledger, select_claims
from workbench.checks.run import CheckedClaim, check_claims
from workbench.cli import terminal
from workbench.cli.parameters import NoProgress, Scheduler, check_scheduler
from workbench.core.errors import InputError, unknown_name
from workbench.core.keys import JSON, plain
from workbench.core.outputs import require_distinct, require_file_place, write_atomically

SCHEMA = 2
"""Of the JSON file; raised whenever the meaning of a field changes."""

FAILED = "FAILED"
"""What stands in a verdict's place where the check gave none."""

PACKAGES = ("numpy", "scipy", "python-flint", "z3-solver", "dp-accounting")
"""Those that decide the ledger's numbers."""

_NARROW = 100
"""Columns below which claims are printed one below the other, and not as a table."""

_ORDER = ("PROVEN", "REFUTED", "HOLDS_UNDER", "UNDECIDED", FAILED)


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
        Path | None, Option("--json", metavar="FILE", help="Also write the ledger with its evidence.")
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

    Exit code: 0 the checks ran, whatever they found; 2 bad input; 3 a check crashed or did not answer.
    """
    if workers is not None and workers < 0:
        raise InputError(f"--workers must be at least 0, got {workers}")
    check_scheduler(scheduler, workers)
    if json_file is not None:
        require_file_place("--json", json_file)
        require_distinct({"--ledger": ledger, "--json": json_file})
    chosen = _chosen(load_ledger(ledger), filters or [], explain, method)
    with terminal.progress_display(quiet) as progress:
        count = 2 if workers is None else workers
        checked = check_claims(chosen, workers=count, scheduler=scheduler, progress=progress)
    if json_file is not None:
        text = json.dumps(ledger_json(checked), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(json_file, text + "\n")
    console = terminal.output_console()
    if explain is not None:
        _print_evidence(console, checked[0])
    else:
        _print_ledger(console, checked)
    return 3 if any(answer.finding is None for answer in checked) else 0


def ledger_json(checked: Sequence[CheckedClaim]) -> dict[str, JSON]:
    """The whole ledger as plain data; numbers that are not finite are texts.

    Returns:
        `schema`, `versions`, `counts` of each verdict, `seconds`, and `claims`: for each its id, paper,
        place, restatement, method, check, parameters, function, verdict (null where the check failed),
        summary, evidence, counterexample, assumptions, confidence, failure and seconds.
    """
    from workbench.execution.engine import versions

    result: dict[str, JSON] = plain(
        {
            "schema": SCHEMA,
            "versions": versions(PACKAGES),
            "counts": _counts(checked),
            "seconds": sum(answer.seconds for answer in checked),
            "claims": [answer.to_json() for answer in checked],
        }
    )
    return result


def _chosen(
    known: Sequence[PublishedClaim], filters: Sequence[str], explain: str | None, method: str | None
) -> Sequence[PublishedClaim]:
    """The claims that the options name."""
    if explain is not None:
        if filters or method is not None:
            raise InputError("--explain takes one claim's id, and no filters beside it")
        matching = [claim for claim in known if claim.id == explain]
        if not matching:
            raise unknown_name("claim", explain, [claim.id for claim in known])
        return matching
    chosen = select_claims(known, filters)
    if method is None:
        return chosen
    if method not in list(Method):
        raise unknown_name("method", method, [str(known_method) for known_method in Method])
    return [claim for claim in chosen if claim.method == method]


def _counts(checked: Sequence[CheckedClaim]) -> dict[str, int]:
    counted = Counter(_verdict(answer) for answer in checked)
    return {verdict: counted[verdict] for verdict in _ORDER if counted[verdict]}


def _verdict(answer: CheckedClaim) -> str:
    return FAILED if answer.verdict is None else str(answer.verdict)


def _print_ledger(console: Console, checked: Sequence[CheckedClaim]) -> None:
    """A row a claim (on a narrow terminal: a paragraph), then how many have which verdict."""
    if console.width >= _NARROW:
        table = Table("claim", "place", "verdict", "finding", box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[0].overflow = "fold"
        for answer in checked:
            cells = (Text(answer.claim.id), Text(answer.claim.place))
            table.add_row(*cells, terminal.verdict_text(_verdict(answer)), Text(answer.summary))
        console.print(table)
    else:
        for answer in checked:
            head = Text.assemble(answer.claim.id, " ", terminal.verdict_text(_verdict(answer)))
            console.print(head)
            for text in (answer.claim.place, answer.summary):
                console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in _counts(checked).items())
    seconds = sum(answer.seconds for answer in checked)
    noun = "claim" if len(checked) == 1 else "claims"
    console.print(Text(f"{len(checked)} {noun}: {counts or 'none'} ({seconds:.1f} s of checking)"))


def _print_evidence(console: Console, answer: CheckedClaim) -> None:
    """Print everything about one claim."""
    claim, finding = answer.claim, answer.finding
    console.print(Text.assemble((claim.id, "bold"), " ", terminal.verdict_text(_verdict(answer))))
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
        lines.append(("Confidence", f"{100 * finding.confidence:g} %"))
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
