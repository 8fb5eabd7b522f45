"""`workbench report`: reads the store alone, writes whole files, and counts what is not there."""

from __future__ import annotations

import csv
import json
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.checks.published import PublishedPaper
from workbench.cli.app import main
from workbench.core import registry
from workbench.core.keys import JSON
from workbench.studies import running
from workbench.studies.experiments import StudyResults
from workbench.studies.report import (
    Cell,
    Figure,
    Replication,
    ReplicationFinding,
    StudyReport,
    Table,
    Value,
)
from workbench.studies.reporting import Format

TINY = """
schema = 1
title = "Noise against utility, on [digits]"
replication = "seed"

[base]
attack = "loss"
corpus = "digits"
model = "digits_logistic"
members = 30
epochs = 2
batch_size = 10
learning_rate = 0.05
delta = "1/N^2"

[lists]
seeds = [0, 1]

[profile.quick]
lists = { seeds = [0] }

[profile.two]

[variant."DP-SGD"]
mechanism = "dp_sgd"

[variant."Not private"]
mechanism = "non_private"
without = ["epsilon"]

[[group]]
name = "budget"
grid = { epsilon = [8], seed = "$seeds" }
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the second profile was run: 2 variants, 2 seeds."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "tiny.toml", "--profile", "two", "--workers", "0", "--quiet"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of what was run, in the current folder."""
    shutil.copytree(ran, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study report with a table, a figure and three findings; `ids` are the table's and figure's."""
    given: dict[str, Any] = {"ids": ("table-1", "figure-1"), "findings": 3}

    def make(
        *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
    ) -> StudyReport:
        given.update(results=results, published=published, confidence=confidence)
        table_id, figure_id = given["ids"]
        row = (("a",), (Cell(ours=Value(estimate=1.5), why_blank="no paper"),))
        findings = [
            ReplicationFinding(
                id=f"finding-{index}",
                place="Section 3",
                statement=f"Noise [b]hurts[/b] in {index} ways.",
                tables=(table_id,),
                outcome=outcome,
                test="a test",
                figures="x" * 500 if index else "short",
            )
            for index, outcome in enumerate(Replication)
        ]
        return StudyReport(
            name="tiny",
            title="Tiny",
            profile="two",
            tables=(Table(id=table_id, title="T", row_headers=("r",), columns=("c",), rows=(row,)),),
            figures=(
                Figure(id=figure_id, title="F", caption="C", svg="<svg/>", standalone="<svg>alone</svg>"),
            ),
            findings=tuple(findings[: given["findings"]]),
            inconsistencies=("Table 1 and [i]Table 2[/i] are the same.",),
        )

    entries = registry.entries

    def patched(kind: str) -> Mapping[str, registry.Entry]:
        if kind != "study_report":
            return entries(kind)
        return {"generic": registry.Entry(name="generic", factory=make, summary="")}

    monkeypatch.setattr(registry, "entries", patched)
    return given


def report(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["report", *words.split()])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


HOME = Path("studies") / "tiny"
PLACE = HOME / "report"


def test_a_report_of_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = report("tiny.toml", capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "tiny (two): made from 4 experiments"
    assert f"Report: {PLACE / 'index.html'}" in lines
    found = files_of(PLACE)
    tables = {Path(name).stem for name in found if name.startswith("tables/")}
    assert tables
    assert {f"tables/{table}.{ending}" for table in tables for ending in ("md", "tex", "csv")} <= set(found)
    assert f"{3 * len(tables)} files: {PLACE / 'tables'} (.md, .tex, .csv)" in lines
    page = found["index.html"].decode()
    assert "Noise against utility, on [digits]" in page
    assert "workbench run tiny.toml --profile two" in page
    form = json.loads(found["report.json"])
    assert form["study"]["profile"] == "two"
    assert form["experiments"] == {"done": 4, "failed": 0, "missing": 0}
    assert form["confidence"] == 0.95
    assert {table["id"] for table in form["report"]["tables"]} == tables
    for table in tables:
        assert list(csv.reader(found[f"tables/{table}.csv"].decode().splitlines()))


def test_flipped_scores_are_said_in_the_reports_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from workbench.studies import results as study_results

    assert report("tiny.toml --format json", capsys)[0] == 0
    assert "below one half" not in (PLACE / "report.json").read_text()
    reading = study_results.read_results

    def flipped(*given: Any) -> StudyResults:
        """Scores that put every member last; a second group asks for the same runs."""
        results = reading(*given)
        outcomes = [
            replace(one, scores=tuple(0.0 if inside else 1.0 for inside in one.included))
            for one in results.outcomes
        ]
        again = [replace(one, experiment=replace(one.experiment, group="again")) for one in outcomes]
        return replace(results, outcomes=(*outcomes, *again))

    monkeypatch.setattr(study_results, "read_results", flipped)
    assert report("tiny.toml --format json --format html", capsys)[0] == 0
    notes = json.loads((PLACE / "report.json").read_text())["report"]["notes"]
    (note,) = [one for one in notes if "AUC" in one]
    assert "in 4 of 4 runs" in note
    assert "flipped, the lowest is 1.000" in note
    assert "Such an AUC does not show privacy" in (PLACE / "index.html").read_text()


def test_equal_results_give_equal_bytes_wherever_they_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("tiny.toml", capsys)[0] == 0
    first = files_of(PLACE)
    assert report("tiny.toml", capsys)[0] == 0
    assert files_of(PLACE) == first
    shutil.copytree(HOME / "store", tmp_path / "elsewhere" / "store")
    assert report(f"{tmp_path / 'tiny.toml'} --profile two --out {tmp_path / 'elsewhere'}", capsys)[0] == 0
    assert files_of(tmp_path / "elsewhere" / "report") == first
    assert str(tmp_path).encode() not in b"".join(first.values())


def test_nothing_is_trained_and_the_store_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a report trains nothing and asks nobody")

    before = files_of(HOME / "store")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for work in ("train", "measure"):
        monkeypatch.setattr(f"workbench.studies.work.{work}", refuse)
    assert report("tiny.toml", capsys)[0] == 0
    assert files_of(HOME / "store") == before


def test_the_profile_is_the_one_that_was_run_unless_one_is_named(
    stand_in: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("tiny.toml --confidence 0.9", capsys)[0] == 0
    assert (stand_in["results"].study.profile, stand_in["confidence"]) == ("two", 0.9)
    assert stand_in["published"] is None
    code, out, _ = report("tiny.toml --profile quick", capsys)
    assert code == 0
    assert stand_in["results"].study.profile == "quick"
    assert "tiny (quick): made from 2 experiments" in out
    (HOME / "run.json").unlink()
    assert report("tiny.toml", capsys)[0] == 0
    assert stand_in["results"].study.profile == "quick"


def test_what_is_missing_or_failed_is_said(
    stand_in: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "check_records", lambda study: None)  # As where a worker has fewer records.
    text = TINY.replace("grid = {", "grid = { members = [30, 900],")
    Path("tiny.toml").write_text(text, encoding="utf-8")
    assert main(["run", "tiny.toml", "--workers", "0", "--quiet"]) == 1
    capsys.readouterr()
    code, out, _ = report("tiny.toml --profile two", capsys)
    assert code == 0
    assert "made from 4 experiments; 2 failed, 2 missing, which are left out" in out
    assert json.loads((PLACE / "report.json").read_text())["experiments"] == {
        "done": 4,
        "failed": 2,
        "missing": 2,
    }
    code, out, _ = report("tiny.toml --profile two --only members=30 --only seed=1", capsys)
    assert code == 0
    assert "made from 2 experiments\n" in out
    code, out, err = report("tiny.toml --only members=900", capsys)
    assert (code, out) == (2, "")
    assert "holds no result of study 'tiny' (profile quick) (2 failed); run: workbench run tiny.toml" in err


def test_findings_are_printed_with_their_outcome(
    stand_in: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = report("tiny.toml", capsys)
    words = " ".join(out.split())
    assert "3 conclusions of the paper: 1 replicated, 1 not replicated, 1 not testable at our scale" in words
    assert "Noise [b]hurts[/b] in 2 ways." in words
    assert "- Table 1 and [i]Table 2[/i] are the same." in words
    assert "xx" not in words  # What was found, of 500 characters each, stands on the page.
    assert "1 file: studies/tiny/report/figures (.svg)" in words
    assert "hurts" not in report("tiny.toml --quiet", capsys)[1]
    stand_in["findings"] = 0
    assert "conclusion" not in report("tiny.toml", capsys)[1]


@pytest.mark.parametrize("columns", [30, 99, 140])
@pytest.mark.usefixtures("stand_in")
def test_a_terminal_of_any_width_keeps_every_word(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = re.sub(r"\x1b\[[0-9;]*m", "", report("tiny.toml --format csv", capsys)[1])
    for word in ("[b]hurts[/b]", "Section", "replicated", "testable"):
        assert word in out
    findings = out[: out.index("3 conclusions")]
    assert max(map(len, findings.splitlines())) <= columns


@pytest.mark.parametrize(
    ("form", "files"),
    [
        (Format.HTML, {"index.html"}),
        (Format.JSON, {"report.json"}),
        (Format.SVG, {"figures/figure-1.svg"}),
        (Format.MARKDOWN, {"tables/table-1.md"}),
        (Format.LATEX, {"tables/table-1.tex"}),
        (Format.CSV, {"tables/table-1.csv"}),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_a_format_can_be_asked_for(form: Format, files: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert report(f"tiny.toml --format {form} --format {form}", capsys)[0] == 0
    assert set(files_of(PLACE)) == files
    if form is Format.SVG:
        assert (PLACE / "figures/figure-1.svg").read_text() == "<svg>alone</svg>"


def test_what_an_earlier_report_left_over_goes_and_nothing_else(
    stand_in: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("tiny.toml", capsys)[0] == 0
    (PLACE / "tables" / "mine.md").write_text("notes")
    stand_in["ids"] = ("table-2", "figure-2")
    assert report("tiny.toml --format csv --format svg", capsys)[0] == 0
    assert set(files_of(PLACE)) == {
        *("index.html", "report.json", "figures/figure-2.svg"),
        *("tables/table-1.md", "tables/table-1.tex", "tables/table-2.csv", "tables/mine.md"),
    }
    assert report("tiny.toml", capsys)[0] == 0
    form = json.loads((PLACE / "report.json").read_text())
    form["report"]["tables"] = [{"id": "../../run"}, {"id": "table-2"}]
    (PLACE / "report.json").write_text(json.dumps(form))
    (HOME / "run.md").write_text("not ours")
    stand_in["ids"] = ("table-3", "figure-2")
    assert report("tiny.toml", capsys)[0] == 0
    names = set(files_of(PLACE))
    assert not any("table-2" in name for name in names)
    assert "tables/mine.md" in names
    assert (HOME / "run.md").is_file()


@pytest.mark.usefixtures("stand_in")
def test_nothing_is_written_where_a_writer_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create = registry.create

    def fail(kind: str, name: str, /, **parameters: JSON) -> Any:
        if name == "table_csv":
            raise RuntimeError("no luck")
        return create(kind, name, **parameters)

    monkeypatch.setattr(registry, "create", fail)
    assert report("tiny.toml", capsys)[0] == 70
    assert not PLACE.exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("tny.toml", ["cannot read tny.toml"]),
        ("dp_weigths", ["unknown study 'dp_weigths'; did you mean 'dp_weights'?"]),
        (
            "dp_weights --profile quick",
            [
                "'studies/dp_weights' holds no result of study 'dp_weights' (profile quick); ",
                "run: workbench run",
            ],
        ),
        (
            "tiny.toml --out new",
            ["'new' holds no result", "run: workbench run tiny.toml --profile quick --out new"],
        ),
        ("tiny.toml --profile three", ["unknown profile 'three'"]),
        ("tiny.toml --out tiny.toml", ["--out must be a folder, got the file 'tiny.toml'"]),
        ("tiny.toml --out tiny.toml/x", ["'tiny.toml/x' holds no result"]),
        ("tiny.toml --confidence 95", ["--confidence must be in (0.5, 1), got 95"]),
        ("tiny.toml --confidence nan", ["--confidence must be in (0.5, 1), got nan"]),
        ("tiny.toml --format pdf", ["--format", "markdown"]),
        ("tiny.toml --only sed=1", ["--only: unknown field 'sed'; did you mean 'seed'?"]),
        ("tiny.toml --only seed=5", ["--only: no experiment has seed = 5; there are 0, 1"]),
    ],
)
def test_a_mistake_gets_one_line_and_exit_2_and_writes_nothing(
    words: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, err = report(words, capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for part in ("error: ", *parts):
        assert part in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_memory_of_the_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    (HOME / "run.json").write_text("{")
    code, _, err = report("tiny.toml", capsys)
    assert code == 2
    assert "run.json: it is damaged" in err
    assert report("tiny.toml --profile two", capsys)[0] == 0


def test_a_place_where_no_report_can_lie_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    PLACE.touch()
    code, out, err = report("tiny.toml", capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "lies below" in err
