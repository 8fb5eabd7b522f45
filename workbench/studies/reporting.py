"""`workbench.report`: a study's tables, figures and replication findings, made from its store alone.

Nothing is trained. Everything is computed before the first file is written, each file is replaced whole, and
equal results give equal bytes.
"""

from __future__ import annotations

import json
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.core import registry
from workbench.core.arguments import names_of, number, one_of, path_of
from workbench.core.errors import ArgumentError, InputError, naming_extras
from workbench.core.inputs import parsed_json, read_bytes, read_text
from workbench.core.keys import JSON, plain
from workbench.core.one_line import error_line
from workbench.core.outputs import require_reachable, write_atomically
from workbench.core.results import Result
from workbench.execution.store import Store
from workbench.studies.deciding import MOST_LOOKS, Decisions, Looks
from workbench.studies.repeating import repeat_level, repeat_words
from workbench.studies.report import Replication, ReplicationFinding, StudyReport
from workbench.studies.rounds import published_of
from workbench.studies.starting_points import bases_of, missing_bases, on_device, stand_ins, with_stand_ins

if TYPE_CHECKING:
    from workbench.interfaces import BoolArray, FloatArray
    from workbench.studies.experiments import Study, StudyResults
    from workbench.studies.shipped import Shipped

SCHEMA = 1
"""Of `report.json`; raised whenever the meaning of a field changes."""

GENERIC = "generic"
"""The study report of a study that names none."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


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


class ReportResult(Result):
    """A study's report.

    Attributes:
        made: Tables, figures and findings.
        results: What they are made from.
        folder: Where `write` puts the files.
        shipped: The shipped results that it is made from; None where the study was run here.
    """

    def __init__(self, made: StudyReport, basis: _Basis, folder: Path) -> None:
        self.made, self.results, self.folder, self._basis = made, basis.results, folder, basis
        self.shipped = basis.shipped
        super().__init__(report_json(made, basis.results, basis.confidence, basis.shipped))

    @property
    def verdict(self) -> str:
        """`REPORTED`: the conclusions have outcomes of their own."""
        return "REPORTED"

    @property
    def sentence(self) -> str:
        """What the report is made from, and how many conclusions of the paper have which outcome."""
        done = self.record["experiments"]["done"]
        name, outcomes = self.record["study"]["name"], self.outcomes or "no conclusions"
        return f"{name}: made from {done} experiments; {outcomes}"

    @property
    def outcomes(self) -> str:
        """How many conclusions have which outcome."""
        counted = Counter(finding.outcome for finding in self.findings)
        return ", ".join(f"{counted[outcome]} {outcome}" for outcome in Replication if counted[outcome])

    @property
    def findings(self) -> Sequence[ReplicationFinding]:
        """The paper's conclusions, each with its outcome."""
        return self.made.findings

    @property
    def exit_code(self) -> int:
        """0, whatever the report finds."""
        return 0

    @property
    def bounds(self) -> tuple[()]:
        """None of a report as a whole; its tables have intervals."""
        return ()

    def rows(self) -> list[dict[str, Any]]:
        """A row a conclusion of the paper."""
        return [
            {
                "outcome": str(finding.outcome),
                "conclusion": finding.statement,
                "place": finding.place,
                "found": finding.figures,
                "test": finding.test,
            }
            for finding in self.findings
        ]

    def exported(self, *, onto: str | Path | None = None) -> bytes:
        """The results as compact data, in the form in which the package ships them beside a study's file.

        Args:
            onto: An earlier file of that form, of the same profile, to which these are added: of another part
                of the study, on another machine, say. What both have is this run's.

        Raises `InputError`: they are shipped results already, or `onto` is no such file.
        """
        from workbench.studies import shipped

        if self.shipped is not None:
            raise ArgumentError("export", "needs results that were run here, and these are shipped")
        basis = self._basis
        store = Store(self.folder.parent / "store")
        made = shipped.export(basis.results.study, store, looks=basis.looks, command=basis.running)
        return shipped.encoded(made) if onto is None else _added_to(made, path_of("onto", onto))

    def page(self) -> str:
        """Returns the page that `workbench report` writes as index.html."""
        return _html(self.made, self._basis)[Path("index.html")]

    def write(self, formats: Sequence[Format] = tuple(Format)) -> list[Path]:
        """Writes the files of these formats to `folder`, and returns where they lie below it.

        What an earlier report left over is deleted. Everything is rendered before the first file is written.
        """
        contents: dict[Path, str] = {}
        for form in formats:
            contents.update(_RENDER[one_of(Format, "formats", form)](self.made, self._basis))
        earlier = _earlier_files(self.folder)
        for place, text in contents.items():
            write_atomically(self.folder / place, text)
        for place in earlier - set(contents):
            if place.suffix in {_ENDINGS[form] for form in formats}:
                (self.folder / place).unlink(missing_ok=True)
        return list(contents)


@dataclass(frozen=True, kw_only=True)
class _Basis:
    """The results that a report is made from; `source` is the study as the user named it."""

    results: StudyResults
    confidence: float
    source: str
    looks: Looks
    shipped: Shipped | None = None

    @property
    def _words(self) -> str:
        study = self.results.study
        profile = f" --profile {shlex.quote(study.profile)}" if study.profile else ""
        return f"{shlex.quote(Path(self.source).name)}{profile}"

    @property
    def running(self) -> str:
        """The command that makes the same results anywhere: no folder of this machine is in it."""
        return f"workbench run {self._words}{' --until-decided' if self.looks else ''}"

    @property
    def command(self) -> str:
        """The command that makes the same report anywhere."""
        return f"{self.running} && workbench report {self._words}"


@naming_extras
def report(
    study: str | Path,
    *,
    profile: str | None = None,
    out: str | Path | None = None,
    only: str | Sequence[str] = (),
    base: Mapping[str, str | Path] = _NOTHING,
    confidence: float = 0.95,
) -> ReportResult:
    """Make a study's tables and figures from what its store holds, with the paper's numbers beside ours.

    Experiments that failed or were not run are counted and said; the report is made from the others. Where
    nothing was run, a study that goes by name is reported from the results that the package ships of it.

    Args:
        study: A shipped study's name, or a file.
        profile: One of its profiles; None for the one that was run, or shipped.
        out: Where the study was run; None for `studies/STUDY`.
        only: Only these experiments, as in `run`.
        base: Folders that stood in for base models; none for what was run.
        confidence: Of intervals and tests, in (0.5, 1).

    Raises `InputError`: an argument is unusable, or nothing of the study was run.
    """
    from workbench.studies.run import looks_of
    from workbench.studies.study import load_study

    checked = number("confidence", confidence, above=0.5, below=1)
    name = str(path_of("study", study))
    place = _place(name, out)
    if shipped := _shipped(name, profile, place, is_whole=not (only or base)):
        chosen, looks, read = load_study(name, profile=shipped.profile), shipped.looks, shipped.results
    else:
        chosen = _chosen(name, profile, place, names_of("only", only), base)
        looks = {} if only else looks_of(chosen, place)
        read = partial(_results, out=place, name=name, base=base)
    decisions = Decisions(chosen, published_of(chosen), looks, read, confidence=checked) if looks else None
    results = read(chosen if decisions is None else decisions.study)
    basis = _Basis(results=results, confidence=checked, source=name, looks=looks, shipped=shipped)
    made = _made(results, checked)
    made = _repeated(made, results, checked) if decisions is None else _with_decisions(made, decisions)
    if shipped is not None:
        made = replace(made, notes=(shipped.sentence() + ".", *made.notes))
    return ReportResult(made, basis, place / "report")


def shipped_study(name: str) -> tuple[Shipped, Study]:
    """The results that are shipped of a study, and the study with all experiments that their looks ask for.

    Raises `InputError`: there are none.
    """
    from workbench.studies import shipped
    from workbench.studies.study import load_study

    study = load_study(name)
    found = shipped.read(study.name)
    if found is None:
        raise InputError(f"no results of study {study.name!r} are shipped")
    study = load_study(name, profile=found.profile)
    if not found.looks:
        return found, study
    return found, Decisions(study, published_of(study), found.looks, found.results).study


def _added_to(made: Shipped, path: Path) -> bytes:
    """These results and those of an earlier file, as a file."""
    from workbench.studies import shipped

    try:
        return shipped.encoded(shipped.combined(made, shipped.parse(read_bytes(path))))
    except InputError as error:
        raise ArgumentError("onto", f": {str(path)!r}: {error}") from error
    except OSError as error:
        raise ArgumentError("onto", f": {str(path)!r} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, zlib.error) as error:
        raise ArgumentError(
            "onto", f": {str(path)!r} is not as it was exported: {error_line(error)}"
        ) from error


def _place(name: str, given: str | Path | None) -> Path:
    """The folder of the run: the one that is given, or `studies/STUDY`."""
    from workbench.studies.study import ENDING

    out = Path("studies") / Path(name).name.removesuffix(ENDING) if given is None else path_of("out", given)
    if out.exists() and not out.is_dir():
        raise ArgumentError("out", f"must be a folder, got the file {str(out)!r}")
    return out


def _shipped(name: str, profile: str | None, place: Path, *, is_whole: bool) -> Shipped | None:
    """The shipped results of a study that goes by name, where nothing was run in its folder."""
    from workbench.studies import shipped
    from workbench.studies.study import study_names

    if not is_whole or name not in study_names() or (place / "store").is_dir():
        return None
    found = shipped.read(name)
    return found if found is not None and profile in (None, found.profile) else None


def counts(results: StudyResults) -> dict[str, int]:
    """Number of experiments by status, all statuses named; what two groups share counts once, as in a run."""
    from workbench.studies.experiments import Status

    counted = Counter({outcome.key: outcome.status for outcome in results.outcomes}.values())
    return {str(status): counted[status] for status in Status}


def report_json(
    made: StudyReport, results: StudyResults, confidence: float, shipped: Shipped | None = None
) -> dict[str, JSON]:
    """The report as plain data: `schema`, `study`, `experiments` (counts), `confidence`, and the report;
    `shipped` says who made the results where the study was not run here.

    Of each figure the drawing is left out, which lies beside; numbers that are not finite are texts.
    """
    form: dict[str, Any] = plain(made)
    for figure in form["figures"]:
        del figure["svg"], figure["standalone"]
    for finding in form["findings"]:
        del finding["reads"]
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
        "shipped": None if shipped is None else plain(shipped.made),
        "report": form,
    }


def _chosen(
    name: str, profile: str | None, out: Path, only: Sequence[str], base: Mapping[str, str | Path]
) -> Study:
    """The study under the profile that was run."""
    from workbench.studies.study import load_study, select

    study = load_study(name, profile=profile)
    ran = _ran(out, study.name, is_needed=profile is None)
    if profile is None and ran.get("profile", study.profile) != study.profile:
        study = load_study(name, profile=str(ran["profile"]))
    try:
        study = select(study, only=only)
    except InputError as error:
        raise ArgumentError("only", f": {error}") from error
    study = on_device(study, str(ran.get("device", "")))
    if base:
        return with_stand_ins(study, stand_ins(base))
    used = bases_of(study)
    folders = {name: str(folder) for name, folder in ran.get("bases", {}).items() if name in used}
    return with_stand_ins(study, folders)


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


def _results(study: Study, out: Path, name: str, base: Mapping[str, str | Path]) -> StudyResults:
    """What the store holds of the study; InputError where that is nothing."""
    from workbench.studies.results import read_results

    words = ["workbench", "run", name, *(["--profile", study.profile] if study.profile else [])]
    if out != Path("studies") / study.name:
        words += ["--out", str(out)]
    words += [word for model, folder in base.items() for word in ("--base", f"{model}={folder}")]
    go_on = f"run: {shlex.join(words)}"
    where = f"{str(out)!r} holds no result of study {study.name!r}" + (
        f" (profile {study.profile})" if study.profile else ""
    )
    if not (out / "store").is_dir():
        raise InputError(f"{where}; {go_on}")
    require_reachable("out", out / "report" / "index.html")
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


def _repeated(made: StudyReport, results: StudyResults, confidence: float) -> StudyReport:
    """The report with each conclusion decided only where a repeat with fresh units would decide the same."""
    study = results.study
    if not (made.findings and study.paper and study.report):
        return made
    from workbench.checks.published import published

    units = len({getattr(one.experiment, study.replication) for one in results.outcomes})
    level = 1.0 - confidence
    again: StudyReport = registry.create(
        "study_report",
        study.report,
        results=results,
        published=published(study.paper),
        confidence=1.0 - repeat_level(level, units),
        only_findings=True,
    )
    words = repeat_words(level, units, study.replication)
    findings = (replace(one, test=f"{one.test.rstrip('.')}. {words}") for one in again.findings)
    return replace(made, findings=tuple(findings))


def _with_decisions(made: StudyReport, decisions: Decisions) -> StudyReport:
    """The report with each conclusion as its looks decided it, and a note on what was added."""
    note = (
        f"Seeds were added in rounds to conclusions that were still open, {MOST_LOOKS} looks at most at "
        "each. A conclusion's test says at which look it stands, and each look is paid for. Tables and "
        "figures show all runs, and their intervals pay for no look."
    )
    findings = tuple(standing.finding for standing in decisions.standings().values())
    return replace(made, findings=findings, notes=(*made.notes, note))


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
        form = parsed_json(read_text(folder / "report.json"))["report"]
        tables = [str(table["id"]) for table in form["tables"]]
        figures = [str(figure["id"]) for figure in form["figures"]]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    endings = [ending for _, ending in _TABLES.values()]
    places = {Path("tables") / f"{name}.{ending}" for name in tables for ending in endings}
    places |= {Path("figures") / f"{name}.svg" for name in figures}
    return {place for place in places if len(place.parts) == 2 and (folder / place).is_file()}
