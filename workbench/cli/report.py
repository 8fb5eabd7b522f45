"""`workbench report`: a study's tables, figures and replication findings, made from its store alone.

Where nothing was run, the results that the package ships of the study take the store's place. Nothing is
trained, unless `--recompute` asks for it. Exit code: 0 the report is written, whatever it finds; 1 a
recomputed experiment differs from the shipped one; 2 bad input, among it a store that holds nothing of the
study; 3 nothing of the shipped results could be recomputed here.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Option

from workbench.cli import terminal
from workbench.cli.display import plural
from workbench.cli.parameters import StudyName
from workbench.cli.starting_points import build_bases, fetch, folders_of
from workbench.core.arguments import require_count
from workbench.core.errors import InputError
from workbench.core.one_line import one_line
from workbench.core.outputs import require_file_place, require_no_circle, write_atomically
from workbench.studies.report import Replication, ReplicationFinding
from workbench.studies.reporting import Format, ReportResult, counts, shipped_study
from workbench.studies.reporting import report as make
from workbench.studies.starting_points import missing_bases

if TYPE_CHECKING:
    from workbench.studies.experiments import StudyResults

_LONGEST = 200
"""Characters of a finding that are printed; the page has it whole."""

_STYLES = {
    Replication.REPLICATED: "bold green",
    Replication.NOT_REPLICATED: "bold red",
    Replication.NOT_TESTABLE: "bold yellow",
    Replication.NOT_RUN: "bold",
}

_NARROW = 100
"""Columns below which findings are printed one below the other, and not as a table."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of `workbench report`."""

    study: StudyName
    profile: Annotated[
        str | None,
        Option(metavar="NAME", help="One of the study's profiles.", show_default="the one that was run"),
    ] = None
    out: Annotated[
        Path | None, Option(metavar="FOLDER", help="Where the study was run.", show_default="studies/STUDY")
    ] = None
    only: Annotated[
        list[str] | None,
        Option(metavar="FIELD=VALUE", help="Only these experiments, as in `workbench run`; may be repeated."),
    ] = None
    base: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=FOLDER",
            help="This folder stood in for a base model, as in `workbench run`; may be repeated.",
            show_default="what was run",
        ),
    ] = None
    confidence: Annotated[float, Option(help="Confidence of intervals and tests, in (0.5, 1).")] = 0.95
    format: Annotated[
        list[Format] | None, Option(help="Write only this format; may be repeated.", show_default="all")
    ] = None
    recompute: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Run N experiments of the shipped results again, drawn at random, each from its training on,"
            " and say whether they agree; writes no report.",
        ),
    ] = None
    draw: Annotated[
        int | None, Option(metavar="SEED", help="Seed of `--recompute`'s draw.", show_default="random")
    ] = None
    export: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Also write what was run as compact data, as the package ships it beside a study's file.",
        ),
    ] = None
    onto: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="With `--export`: an earlier exported file; what it holds of other experiments is kept.",
        ),
    ] = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only where the report is.")] = False


def report(options: ReportOptions) -> int:
    """Write a study's tables and figures from what its store holds, with the paper's numbers beside ours.

    Reads the store only and never trains. Where nothing was run, it reads the results that are shipped with
    the study, and says whose they are. Experiments that failed or were not run are counted and said; the
    report is made from the others. Files: FOLDER/report/index.html, report.json, tables/ and figures/.

    Exit code: 0 the report is written, whatever it finds; 1 a recomputed experiment differs; 2 bad input, or
    nothing of the study was run or is shipped; 3 nothing could be recomputed here.
    """
    for name, value, least in (("recompute", options.recompute, 1), ("draw", options.draw, 0)):
        if value is not None:
            require_count(name, value, least=least)
    if options.export is not None:
        require_file_place("--export", options.export)
    elif options.onto is not None:
        require_no_circle("--onto", options.onto)
        raise InputError(f"--onto goes with --export, got --onto {str(options.onto)!r} alone")
    if options.recompute is not None:
        return _recompute(options, options.recompute)
    result = make(
        options.study,
        profile=options.profile,
        out=options.out,
        only=options.only or (),
        base=folders_of(options.base or ()),
        confidence=options.confidence,
    )
    exported = None if options.export is None else result.exported(onto=options.onto)
    written = result.write(list(dict.fromkeys(options.format or list(Format))))
    console = terminal.output_console()
    if options.export is not None and exported is not None:
        write_atomically(options.export, exported)
    if result.shipped is not None:
        console.print(Text(f"Nothing was run in {result.folder.parent}. {result.shipped.sentence()}."))
        console.print(Text(f"To make them anew: {result.shipped.made['command']}"), soft_wrap=True)
    if not options.quiet:
        _print_findings(console, result)
        _print_items(console, "Inconsistent inside the paper", result.made.inconsistencies)
    _print_places(console, result.results, result.folder, written)
    return result.exit_code


def _recompute(options: ReportOptions, count: int) -> int:
    """Recompute experiments of shipped results, and print how each compares."""
    from workbench.studies import recomputing

    seed = secrets.randbelow(10**6) if options.draw is None else options.draw
    shipped, study = shipped_study(options.study)
    fetch(study, quiet=options.quiet)
    build_bases(missing_bases(study), workers=1, quiet=options.quiet)
    rows = recomputing.recompute(shipped, study, count, seed=seed)
    console = terminal.output_console()
    table = Table("experiment", "", "farthest metric", "shipped", "here", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        numbers = [f"{row.shipped:.6g}", f"{row.here:.6g}"] if row.compared else ["", ""]
        table.add_row(Text(row.experiment.name), str(row.agreement), row.metric, *numbers)
    console.print(Text(f"{shipped.sentence()}."))
    console.print(table)
    counted = recomputing.by_agreement(rows)
    words = ", ".join(f"{number} {agreement}" for agreement, number in counted.items() if number)
    console.print(
        Text(
            f"{plural(len(rows), 'experiment')} drawn (--draw {seed}): {words}. Each metric may differ by "
            f"{recomputing.TOLERANCE:g}, or by {recomputing.TOLERANCE:.0%} of the shipped value if that is "
            "more."
        )
    )
    return recomputing.exit_code(rows)


def _print_findings(console: Console, result: ReportResult) -> None:
    """Print a row a conclusion (on a narrow terminal: a paragraph), then their counts."""
    findings = result.findings
    if not findings:
        return
    if console.width >= _NARROW:
        table = Table("outcome", "conclusion of the paper", "place", box=box.SIMPLE_HEAD, pad_edge=False)
        for finding in findings:
            table.add_row(_outcome(finding), Text(finding.statement), Text(finding.place))
        console.print(table)
    else:
        for finding in findings:
            console.print(Text.assemble(_outcome(finding), ": ", finding.statement))
            console.print(Padding(Text(finding.place), (0, 0, 0, 2), expand=False))
    console.print(Text(f"{plural(len(findings), 'conclusion')} of the paper: {result.outcomes}"))


def _outcome(finding: ReplicationFinding) -> Text:
    return Text(str(finding.outcome), style=_STYLES[finding.outcome])


def _print_items(console: Console, name: str, items: Sequence[str]) -> None:
    if items:
        console.print(Text(f"{name}:", style="bold"))
    for item in items:
        line = Text(f"- {one_line(item, _LONGEST)}", no_wrap=True, overflow="ellipsis")
        console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _print_places(console: Console, results: StudyResults, folder: Path, written: Sequence[Path]) -> None:
    """Print what the report is made of, and where it is."""
    by_status = counts(results)
    lacking = ", ".join(f"{by_status[name]} {name}" for name in ("failed", "missing") if by_status[name])
    profile = f" ({results.study.profile})" if results.study.profile else ""
    made_of = f"{results.study.name}{profile}: made from {plural(by_status['done'], 'experiment')}"
    console.print(Text(f"{made_of}; {lacking}, which are left out" if lacking else made_of), soft_wrap=True)
    for parent in dict.fromkeys(place.parent for place in written):
        group = [place for place in written if place.parent == parent]
        if parent == Path():
            for place in group:
                console.print(Text(f"Report: {folder / place}"), soft_wrap=True)
            continue
        endings = ", ".join(dict.fromkeys(place.suffix for place in group))
        console.print(Text(f"{plural(len(group), 'file')}: {folder / parent} ({endings})"), soft_wrap=True)
