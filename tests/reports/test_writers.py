"""Writers of tables: paper / ours / difference in every format; no text turns into markup or a formula."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.checks.published import PublishedCell
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.reports.shared.cells import fixed, table_text, value_text
from workbench.reports.shared.writers import latex, markdown
from workbench.studies.report import Cell, Replication, ReplicationFinding, StudyReport, Table, Value

Builder = Callable[..., StudyReport]


def paper_cell(printed: str, number: float, **more: float) -> PublishedCell:
    return PublishedCell(
        paper="p",
        table="table-1",
        row=("5",),
        column="ROC AUC",
        printed=printed,
        value=number,
        decimals=2,
        **more,
    )


def small_table(**changes: object) -> Table:
    """One row of three cells: complete, without the paper's number, without ours."""
    whole = Cell(
        paper=paper_cell("0.69 ± 0.21", 0.69, spread=0.21),
        ours=Value(estimate=0.6543, lower=0.6, upper=0.7, spread=0.031, n=3),
        difference=Value(estimate=-0.0357, lower=-0.09, upper=0.01),
    )
    no_paper = Cell(ours=Value(estimate=2.0, p_value=0.0004, n=2), why_blank="the paper prints nan")
    no_ours = Cell(paper=paper_cell("-1.20", -1.2), why_blank="not run")
    table = Table(
        id="table-1",
        title="Results",
        place="Table 1",
        row_headers=("batch size",),
        columns=("ROC AUC", "t", "z"),
        rows=((("5",), (whole, no_paper, no_ours)),),
        notes=("Spread: standard deviation over seeds.",),
        decimals={"ROC AUC": 2},
    )
    return replace(table, **changes)  # type: ignore[arg-type]


def write(name: str, table: Table, **more: object) -> str:
    text = registry.create("report", name, table=table, **more)
    assert isinstance(text, str)
    assert text == registry.create("report", name, table=table, **more)
    return text


def finding(**changes: str) -> ReplicationFinding:
    one = ReplicationFinding(
        id="similar",
        place="section 4",
        statement="The two are similar.",
        tables=("table-1",),
        outcome=Replication.NOT_REPLICATED,
        test="TOST at level 0.05.",
        figures="difference 0.3, n = 3",
        paper_contradicts="its Table 2",
    )
    return replace(one, **changes)  # type: ignore[arg-type]


# --- what stands in a place ---


def test_values_are_printed_with_all_that_belongs_to_them() -> None:
    value = Value(estimate=0.6543, lower=0.6, upper=0.7, spread=0.031, p_value=0.0004, n=2)
    assert str(value_text(value, 2, usual=3)) == "0.65 ± 0.03 [0.60, 0.70] p = 4e-4 n = 2"
    assert str(value_text(value, 2, usual=2)) == "0.65 ± 0.03 [0.60, 0.70] p = 4e-4"
    assert str(value_text(Value(estimate=0.5), 2, signed=True)) == "+0.50"
    assert str(value_text(Value(estimate=-0.5), 2, signed=True)) == "−0.50"
    assert str(value_text(Value(estimate=-0.001), 2, signed=True)) == "0.00"
    assert str(value_text(Value(estimate=math.nan), 2)) == "n/a"
    assert str(value_text(Value(estimate=1.0, spread=2.0, text="1 of 3"), 2)) == "1 of 3"


@pytest.mark.parametrize(
    ("number", "decimals", "text"),
    [
        (2.5e9 + 0.5, 2, "2.5e9"),
        (math.inf, 2, "∞"),
        (-math.inf, 2, "−∞"),
        (123456.7, 1, "123456.7"),
        (0.12346, None, "0.1235"),
    ],
)
def test_numbers_that_do_not_fit_their_decimals(number: float, decimals: int | None, text: str) -> None:
    assert fixed(number, decimals).replace("\u202f", "") == text


def test_blank_places_carry_the_number_of_their_reason() -> None:
    text = table_text(small_table())
    paper, ours, difference = text.rows[0].lines
    assert [str(one) for one in paper.texts] == ["0.69 ± 0.21", "[1]", "−1.20"]
    assert [str(one) for one in ours.texts] == ["0.65 ± 0.03 [0.60, 0.70]", "2 p = 4e-4 n = 2", "[2]"]
    assert [str(one) for one in difference.texts] == ["−0.04 [−0.09, 0.01]", "", ""]
    assert text.reasons == ("the paper prints nan", "not run")


def test_a_difference_says_whose_uncertainty_it_has() -> None:
    assert "its interval is ours" in table_text(small_table()).notes[-1]


def test_a_blank_without_a_reason_is_said_to_have_none() -> None:
    table = small_table(rows=((("5",), (Cell(), Cell(), Cell(paper=paper_cell("1", 1.0)))),))
    assert table_text(table).reasons == ("no reason was given",)


def test_a_table_of_ours_alone_has_one_line_a_row() -> None:
    table = small_table(place="", rows=((("5",), (Cell(ours=Value(estimate=1.5, n=4)),) * 3),))
    text = table_text(table)
    assert not text.compares
    assert [line.kind for line in text.rows[0].lines] == ["ours"]
    assert "paper" not in write("table_markdown", table).lower()


@pytest.mark.parametrize("name", ["table_markdown", "table_latex", "table_csv"])
def test_a_table_that_is_no_rectangle_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"row \('5',\) of table-1 must have 3 cells, got 1"):
        write(name, small_table(rows=((("5",), (Cell(),)),)))
    with pytest.raises(InputError, match="rows of table-1 must have 1 headers"):
        write(name, small_table(rows=((("5", "6"), (Cell(),) * 3),)))


# --- Markdown ---


def cells(line: str) -> list[str]:
    """The cells of a line of a pipe table, by GitHub's rule: a pipe after a backslash is text."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown_reads_in_a_terminal_and_on_a_forge() -> None:
    text = write(
        "table_markdown", small_table(), findings=[finding(), finding(tables=("table-9",), id="other")]
    )  # type: ignore[arg-type]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert cells(lines[0]) == ["batch size", "", "ROC AUC", "t", "z"]
    assert cells(lines[1])[2].endswith("-:")
    assert cells(lines[2]) == ["5", "paper", "0.69 ± 0.21", "[1]", "−1.20"]
    assert cells(lines[4]) == ["", "difference", "−0.04 [−0.09, 0.01]", "", ""]
    assert "- [1] the paper prints nan" in text
    assert "- Spread: standard deviation over seeds." in text
    assert text.count("The two are similar.") == 1
    assert "**not replicated**" in text
    assert "The paper's own numbers contradict it: its Table 2" in text


def test_wide_tables_put_intervals_on_lines_of_their_own(study: Builder) -> None:
    table = study(tables=1, rows=28).tables[0]
    assert len(table.columns) == 7
    text = write("table_markdown", table)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert max(map(len, lines)) <= 170
    assert {len(cells(line)) for line in lines} == {2 + 1 + 7}


HOSTILE = [
    "a|b",
    "*x*",
    "`x`",
    "<b>",
    "[a](http://x)",
    "# x",
    "- x",
    "1. x",
    "> x",
    "~~x~~",
    "$x$",
    "\\|",
    "a\nb",
    "&lt;",
    "_x_",
    "[ ] x",
    "---",
    "![a](b)",
    "[a]: b",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_escapes_what_would_be_markup(text: str) -> None:
    """Without the backslashes the text is the same, and every special sign has one before it."""
    escaped = markdown(text)
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", escaped) == " ".join(text.split())
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", escaped)
    assert not re.search(
        r"[|*`$~]|<[a-z/!]|\][(:\[]|&\w+;|^[#>]|^[-+] |^\d\. |^---|^\[ \]|(?<!\w)_|_(?!\w)", bare
    )


def test_names_keep_their_look_in_markdown() -> None:
    assert markdown("dp_model, tpr_at_fpr [0.1, 0.2] p < 0.05") == "dp_model, tpr_at_fpr [0.1, 0.2] p < 0.05"


@given(st.text(max_size=40))
def test_no_text_breaks_a_pipe_table(text: str) -> None:
    table = small_table(columns=(text, "t", "z"), decimals={}, title=text)
    lines = [line for line in write("table_markdown", table).splitlines() if line.startswith("|")]
    assert len(lines) == 5
    assert {len(cells(line)) for line in lines} == {5}


# --- LaTeX ---

PREAMBLE = "\\documentclass{article}\n\\usepackage{booktabs,longtable}\n\\begin{document}\n"


def check_latex(text: str) -> None:
    """Braces and environments match, rows have the columns that the head declares, and all is ASCII."""
    assert text.isascii()
    bare = re.sub(r"\\[\\{}$&%#_]", "", text)
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended)
    declared = re.search(r"\\begin{(?:tabular|longtable)}{((?:l|r@{~}l)*)}", text)
    assert declared
    columns = len(declared[1].replace("r@{~}l", "rl"))
    rows = [line for line in text.splitlines() if re.search(r"\\\\\*?$", line) and " & " in line]
    assert rows
    for row in rows:
        wide = sum(int(n) - 1 for n in re.findall(r"\\multicolumn{(\d+)}", row))
        assert len(re.findall(r"(?<!\\)&", row)) + 1 + wide == columns, row


def test_latex_is_booktabs_with_numbers_aligned_at_their_points() -> None:
    text = write("table_latex", small_table(), findings=[finding()])
    check_latex(text)
    for rule in ("\\toprule", "\\midrule", "\\bottomrule", "\\usepackage{booktabs}"):
        assert rule in text
    assert "{}5 & paper & 0.69 & $\\pm$ 0.21 &" in text
    assert "\\caption{Table 1: Results}\\label{tab:table-1}" in text
    assert "[1] the paper prints nan" in text
    assert "\\textbf{Not replicated}: The two are similar." in text


def test_a_long_table_breaks_over_pages(study: Builder) -> None:
    text = write("table_latex", study(tables=1, rows=28).tables[0])
    check_latex(text)
    assert "\\begin{longtable}" in text
    assert "\\endfirsthead" in text
    assert "\\begin{table}" not in text


def test_latex_escapes_every_special_sign() -> None:
    assert latex(r"a_b & 50% #1 $x$ {y} ~ ^ \z") == (
        r"a\_b \& 50\% \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}z"
    )
    assert latex("é ç ï ß Ł ε ≤ 中") == r"\'{e} \c{c} \"{\i} \ss{} \L{} $\varepsilon$ $\le$ [U+4E2D]"
    assert latex("--profile ''") == "-{}-profile '{}'"


@given(st.text(max_size=40))
def test_no_text_breaks_a_latex_table(text: str) -> None:
    row = small_table().rows[0][1]
    table = small_table(
        title=text,
        place=text,
        columns=(text, text + "b", "z"),
        row_headers=(text,),
        rows=(((text,), row),),
        notes=(text,),
    )
    check_latex(write("table_latex", table))


def test_latex_compiles_with_a_plain_preamble(study: Builder, tmp_path: Path) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("pdflatex is not installed, so the tables were checked for their structure only")
    signs = "".join(map(chr, range(32, 0x180))) + "".join(chr(n) for n in range(0x391, 0x3CA))
    tables = [*study(tables=2, rows=20, hostile=True).tables, small_table(title=signs, notes=(signs,))]
    body = "\n".join(write("table_latex", table) for table in tables)
    (tmp_path / "t.tex").write_text(f"{PREAMBLE}{body}\n\\end{{document}}\n", encoding="utf-8")
    made = subprocess.run(
        [program, "-interaction=batchmode", "-halt-on-error", "t.tex"], cwd=tmp_path, check=False
    )
    assert made.returncode == 0, (tmp_path / "t.log").read_text(errors="replace")[-2000:]


# --- CSV ---


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def test_csv_has_one_line_a_cell_at_full_precision() -> None:
    text = write("table_csv", small_table())
    assert text.count("\r\n") == text.count("\n") == 4
    whole, no_paper, no_ours = read_csv(text)
    assert whole == {
        "batch size": "5", "column": "ROC AUC", "paper_printed": "0.69 ± 0.21", "paper_value": "0.69",
        "paper_spread": "0.21", "paper_lower": "", "paper_upper": "", "paper_p_value": "", "unit": "",
        "ours": "0.6543", "ours_lower": "0.6", "ours_upper": "0.7", "ours_spread": "0.031",
        "ours_p_value": "", "ours_n": "3", "difference": "-0.0357", "difference_lower": "-0.09",
        "difference_upper": "0.01", "why_blank": "",
    }  # fmt: skip
    assert (no_paper["paper_printed"], no_paper["ours_p_value"], no_paper["why_blank"]) == (
        "", "0.0004", "the paper prints nan",
    )  # fmt: skip
    assert (no_ours["paper_printed"], no_ours["ours"], no_ours["difference"]) == ("-1.20", "", "")


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r\n=1", " =1", "＝1"])
def test_csv_neutralises_formulas(text: str) -> None:
    table = small_table(
        row_headers=(text,), rows=(((text,), (Cell(why_blank=text),) * 3),), columns=(text, "t", "z")
    )
    rows = list(csv.reader(io.StringIO(write("table_csv", table), newline="")))
    for field in (field for row in rows for field in row):
        assert not field.lstrip().startswith(("=", "+", "-", "@", "＝"))
    assert rows[1][0] == f"'{text.strip()}"


@pytest.mark.parametrize("text", ["-1.20", "+3", "-1e-5"])
def test_csv_leaves_numbers_alone(text: str) -> None:
    table = small_table(rows=(((text,), (Cell(why_blank="x"),) * 3),))
    assert read_csv(write("table_csv", table))[0]["batch size"] == text


def test_csv_header_names_differ() -> None:
    table = small_table(
        row_headers=("column", "ours", "ours"), rows=((("a", "b", "c"), small_table().rows[0][1]),)
    )
    head = write("table_csv", table).split("\r\n")[0].split(",")
    assert len(set(head)) == len(head)


@given(st.text(max_size=30), st.floats())
def test_csv_reads_back(text: str, number: float) -> None:
    row = (Cell(ours=Value(estimate=number), why_blank=text), Cell(), Cell())
    rows = read_csv(write("table_csv", small_table(rows=(((text,), row),))))
    assert len(rows) == 3
    back = float(rows[0]["ours"])
    assert back == number or (math.isnan(back) and math.isnan(number))
