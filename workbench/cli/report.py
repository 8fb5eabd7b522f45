"""`workbench report`: a study's tables, figures and replication findings, made from its store alone.

Nothing is trained. Exit code: 0 the report is written, whatever it finds; 2 bad input, among it a store that
holds nothing of the study. Everything is computed before the first file is written, each file is replaced
whole, and equal results give equal bytes.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Option

from workbench.cli import terminal
from workbench.cli.display import plural
from workbench.cli.parameters import StudyName
from workbench.cli.starting_points import bases_of, missing_bases, on_device, stand_ins, with_stand_ins
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.keys import JSON, plain
from workbench.core.one_line import one_line
from workbench.core.outputs import require_reachable, write_atomically
from workbench.execution.store import Store
from workbench.studies.report import Replication, ReplicationFinding, StudyReport

if TYPE_CHECKING:
    from workbench.interfaces import BoolArray, FloatArray
    from workbench.studies.experiments import Study, StudyResults

SCHEMA = 1
"""Of `report.json`; raised whenever the meaning of a field changes."""

GENERIC = "generic"
"""The study report of a study that names none."""


class Format(StrEnum):
    """The file formats of a report."""

    HTML = "html"
    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    SVG = "svg"
    JSON = "json"


_TABLES = {
    Format.MARKDOWN: ("table_markdown", "md"),
    Format.LATEX: ("table_latex", "tex"),
    Format.CSV: ("table_csv", "csv"),
}
"""Registered writer and file ending of each table format."""

_ENDINGS = {
    Format.HTML: ".html",
    Format.JSON: ".json",
    Format.SVG: ".svg",
    **{form: f".{ending}" for form, (_, ending) in _TABLES.items()},
}

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
    quiet: Annotated[bool, Option("--quiet", help="Print where the report is, and no findings.")] = False


def report(options: ReportOptions) -> int:
    """Write a study's tables and figures from what its store holds, with the paper's numbers beside ours.

    Reads the store only and never trains. Experiments that failed or were not run are counted and said; the
    report is made from the others. Files: FOLDER/report/index.html, report.json, tables/ and figures/.

    Exit code: 0 the report is written, whatever it finds; 2 bad input, or nothing of the study was run.
    """
    if not 0.5 < options.confidence < 1.0:
        raise InputError(f"--confidence must be in (0.5, 1), got {options.confidence:g}")
    study, out = _chosen(options)
    results = _results(study, out, options)
    made = _made(results, options.confidence)
    formats = list(dict.fromkeys(options.format or list(Format)))
    basis = _Basis(results=results, confidence=options.confidence, source=options.study)
    written = _write(made, basis, out / "report", formats)
    console = terminal.output_console()
    if not options.quiet:
        _print_findings(console, made.findings)
        _print_items(console, "Inconsistent inside the paper", made.inconsistencies)
    _print_places(console, results, out / "report", written)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Basis:
    """The results that a report is made from; `source` is the study as the user named it."""

    results: StudyResults
    confidence: float
    source: str

    @property
    def command(self) -> str:
        """The command that makes the same report anywhere: no folder of this machine is in it."""
        study = self.results.study
        profile = f" --profile {shlex.quote(study.profile)}" if study.profile else ""
        words = f"{shlex.quote(Path(self.source).name)}{profile}"
        return f"workbench run {words} && workbench report {words}"


def counts(results: StudyResults) -> dict[str, int]:
    """Number of experiments by status, those that do not occur included."""
    from workbench.studies.experiments import Status

    counted = Counter(outcome.status for outcome in results.outcomes)
    return {str(status): counted[status] for status in Status}


def report_json(made: StudyReport, results: StudyResults, confidence: float) -> dict[str, JSON]:
    """The report as plain data: `schema`, `study`, `experiments` (counts), `confidence`, and the report.

    Of each figure the drawing is left out, which lies beside; numbers that are not finite are texts.
    """
    form: dict[str, Any] = plain(made)
    for figure in form["figures"]:
        del figure["svg"], figure["standalone"]
    study = results.study
    return {
        "schema": SCHEMA,
        "study": {
            "name": study.name,
            "profile": study.profile,
            "paper": study.paper,
            "replication": study.replication,
            "source_sha256": study.source_sha256,
            "notes": list(study.notes),
        },
        "experiments": dict(counts(results)),
        "confidence": confidence,
        "report": form,
    }


def _chosen(options: ReportOptions) -> tuple[Study, Path]:
    """The study under the profile that was run, and its folder; refuses a folder that cannot be written."""
    from workbench.studies.study import load_study, select

    study = load_study(options.study, profile=options.profile)
    out = options.out or Path("studies") / study.name
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, got the file {str(out)!r}")
    ran = _ran(out, study.name, is_needed=options.profile is None)
    if options.profile is None and ran.get("profile", study.profile) != study.profile:
        study = load_study(options.study, profile=str(ran["profile"]))
    try:
        study = select(study, only=options.only or ())
    except InputError as error:
        raise InputError(f"--only: {error}") from error
    study = on_device(study, str(ran.get("device", "")))
    if options.base:
        return with_stand_ins(study, stand_ins(options.base)), out
    used = bases_of(study)
    folders = {name: str(folder) for name, folder in ran.get("bases", {}).items() if name in used}
    return with_stand_ins(study, folders), out


def _ran(out: Path, name: str, *, is_needed: bool) -> dict[str, JSON]:
    """What `run.json` says of the folder's last run; empty where that was no run of this study."""
    from workbench.studies.run import RUN_FILE, read_run

    if not (out / RUN_FILE).is_file():
        return {}
    try:
        run = read_run(out)
    except InputError:
        if is_needed:
            raise
        return {}
    return run if run["name"] == name else {}


def _results(study: Study, out: Path, options: ReportOptions) -> StudyResults:
    """What the store holds of the study; InputError where that is nothing."""
    from workbench.studies.results import read_results

    words = ["workbench", "run", options.study, *(["--profile", study.profile] if study.profile else [])]
    if out != Path("studies") / study.name:
        words += ["--out", str(out)]
    words += [word for base in options.base or () for word in ("--base", base)]
    go_on = f"run: {shlex.join(words)}"
    where = f"{str(out)!r} holds no result of study {study.name!r}" + (
        f" (profile {study.profile})" if study.profile else ""
    )
    if not (out / "store").is_dir():
        raise InputError(f"{where}; {go_on}")
    require_reachable("--out", out / "report" / "index.html")
    results = read_results(study, Store(out / "store"))
    by_status = counts(results)
    if not by_status["done"]:
        failed = f" ({by_status['failed']} failed)" if by_status["failed"] else ""
        lacking = missing_bases(study)
        if lacking:  # Keys hold what the models' files are, so without them nothing is found.
            failed += f"; base models that it needs are not built here ({', '.join(lacking)})"
        raise InputError(f"{where}{failed}; {go_on}")
    return results


def _made(results: StudyResults, confidence: float) -> StudyReport:
    study = results.study
    paper = None
    if study.paper:
        from workbench.checks.published import published

        paper = published(study.paper)
    made: StudyReport = registry.create(
        "study_report", study.report or GENERIC, results=results, published=paper, confidence=confidence
    )
    return replace(made, notes=(*made.notes, *_below_half(results, confidence)))


def _below_half(results: StudyResults, confidence: float) -> tuple[str, ...]:
    """Notes on runs whose attack has an AUC below one half; see `runs_below_half`."""
    import numpy as np

    from workbench.estimation import runs_below_half

    done = {outcome.key: outcome for outcome in results.done()}  # One that two groups share is one run.
    runs: dict[str, tuple[FloatArray, BoolArray]] = {}
    for key, outcome in done.items():
        name = ", ".join(part for part in (outcome.experiment.group, outcome.experiment.name) if part)
        name = f"{name} ({key[:8]})" if name in runs else name
        runs[name] = (np.array(outcome.scores, dtype=np.float64), np.array(outcome.included, dtype=bool))
    return runs_below_half(runs, confidence=confidence)


def _write(made: StudyReport, basis: _Basis, folder: Path, formats: Sequence[Format]) -> list[Path]:
    """Write the files of these formats, relative to the folder; what an earlier report left over is deleted.

    Everything is rendered before the first file is written.
    """
    contents: dict[Path, str] = {}
    for form in formats:
        contents.update(_RENDER[form](made, basis))
    earlier = _earlier_files(folder)
    for place, text in contents.items():
        write_atomically(folder / place, text)
    for place in earlier - set(contents):
        if place.suffix in {_ENDINGS[form] for form in formats}:
            (folder / place).unlink(missing_ok=True)
    return list(contents)


def _tables(form: Format, made: StudyReport) -> dict[Path, str]:
    name, ending = _TABLES[form]
    extra: dict[str, Any] = {} if form is Format.CSV else {"findings": made.findings}
    return {
        Path("tables") / f"{table.id}.{ending}": registry.create("report", name, table=table, **extra)
        for table in made.tables
    }


def _html(made: StudyReport, basis: _Basis) -> dict[Path, str]:
    from workbench.execution.engine import versions

    study = basis.results.study
    context: dict[str, JSON] = {
        "experiments": dict(counts(basis.results)),
        "confidence": basis.confidence,
        "command": basis.command,
        "replication": study.replication,
        "study_notes": list(study.notes),
        "source_sha256": study.source_sha256,
        "versions": dict(versions()),
    }
    return {Path("index.html"): registry.create("report", "study_html", report=made, context=context)}


def _json(made: StudyReport, basis: _Basis) -> dict[Path, str]:
    form = report_json(made, basis.results, basis.confidence)
    return {Path("report.json"): json.dumps(form, indent=2, ensure_ascii=False, allow_nan=False) + "\n"}


_RENDER: Mapping[Format, Callable[[StudyReport, _Basis], dict[Path, str]]] = {
    Format.HTML: _html,
    Format.JSON: _json,
    Format.SVG: lambda made, _: {
        Path("figures") / f"{figure.id}.svg": figure.standalone for figure in made.figures
    },
    Format.MARKDOWN: lambda made, _: _tables(Format.MARKDOWN, made),
    Format.LATEX: lambda made, _: _tables(Format.LATEX, made),
    Format.CSV: lambda made, _: _tables(Format.CSV, made),
}


def _earlier_files(folder: Path) -> set[Path]:
    """Tables and figures that the folder's `report.json` names, and that lie there."""
    try:
        form = json.loads((folder / "report.json").read_text(encoding="utf-8"))["report"]
        tables = [str(table["id"]) for table in form["tables"]]
        figures = [str(figure["id"]) for figure in form["figures"]]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    endings = [ending for _, ending in _TABLES.values()]
    places = {Path("tables") / f"{name}.{ending}" for name in tables for ending in endings}
    places |= {Path("figures") / f"{name}.svg" for name in figures}
    return {place for place in places if len(place.parts) == 2 and (folder / place).is_file()}


def _print_findings(console: Console, findings: Sequence[ReplicationFinding]) -> None:
    """Print a row a conclusion (on a narrow terminal: a paragraph), then their counts."""
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
    counted = Counter(finding.outcome for finding in findings)
    words = ", ".join(f"{counted[outcome]} {outcome}" for outcome in Replication if counted[outcome])
    console.print(Text(f"{plural(len(findings), 'conclusion')} of the paper: {words}"))


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
