"""Writers of a study's tables: Markdown for terminals and forges, LaTeX for papers, CSV for programs.

All three are pure functions of the table: equal tables give equal text.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.core.registry import register
from workbench.reports.shared.cells import (
    Row,
    TableText,
    Text,
    check_shape,
    findings_of,
    narrow_lines,
    table_text,
)
from workbench.reports.shared.drawing.figures import text_width
from workbench.studies.report import Cell, ReplicationFinding, Table, Value

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_MARKDOWN = re.compile(
    r"[\\`*|~$]|<(?=[A-Za-z/!?])|](?=[(\[:])|&(?=[\w#]+;)|(?<![^\W_])_|_(?![^\W_])"
    # At a line's beginning these would open a heading, a list, a rule, a quotation or a box to tick.
    r"|^[#>]|^[-+=](?=\s|$|[-+=])|(?<=^\d)[.)](?=\s)|(?<=^\d\d)[.)](?=\s)|^\[(?=[ xX]\])"
)
COLUMNS = (
    "column", "paper_printed", "paper_value", "paper_spread", "paper_lower", "paper_upper", "paper_p_value",
    "unit", "ours", "ours_lower", "ours_upper", "ours_spread", "ours_p_value", "ours_n", "difference",
    "difference_lower", "difference_upper", "why_blank",
)  # fmt: skip
"""Columns of the CSV after the row's headers."""

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


@register("report", "table_markdown")
def table_markdown(*, table: Table, findings: Sequence[ReplicationFinding] = ()) -> str:
    """A table as Markdown, its columns aligned so that it reads in a terminal too.

    Each row takes a line each for paper, ours and difference; in a table of more than 4 columns intervals
    stand on lines of their own. Blank places carry a number in brackets, and the reasons stand below.

    Args:
        findings: Those that rest on this table are listed under it; others are ignored.

    Raises:
        InputError: the table's rows do not fit its columns.
    """
    text = table_text(table)
    place = f"{markdown(table.place)}: " if table.place else ""
    parts = [f"## {place}{markdown(table.title)}", "", *_pipe_table(table, text), ""]
    parts += [f"- {markdown(note)}" for note in text.notes]
    parts += [f"- [{index}] {markdown(reason)}" for index, reason in enumerate(text.reasons, start=1)]
    relevant = findings_of(table, findings)
    if relevant:
        parts += ["", "### What the paper concludes from it", ""]
    for finding in relevant:
        parts.append(f"- **{finding.outcome.value}**: {markdown(finding.statement)} {_source(finding)}")
        details = [("Found", finding.figures), ("Test", finding.test)]
        details.append(("The paper's own numbers contradict it", finding.paper_contradicts))
        parts += [f"  - {name}: {markdown(words)}" for name, words in details if words]
    return "\n".join(parts).rstrip("\n") + "\n"


def _source(finding: ReplicationFinding) -> str:
    return f"({markdown(finding.place)})" if finding.place else ""


def markdown(text: str) -> str:
    """Text with everything escaped that Markdown (CommonMark and GitHub's) would read as markup.

    Underscores within a word stay as they are: they mean nothing there, and names keep their look.
    """
    line = " ".join(_CONTROL.sub("\ufffd", text).split())
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", line)


def _pipe_table(table: Table, text: TableText) -> list[str]:
    heads = [markdown(head) for head in (*table.row_headers, *([""] if text.compares else ()))]
    columns = [markdown(column) for column in table.columns]
    body = [line for row in text.rows for line in _row_lines(row, text.compares, len(columns))]
    grid = [[*heads, *columns], *body]
    widths = [max(3, *(_cells_wide(line[place]) for line in grid)) for place in range(len(grid[0]))]
    rule = ["-" * width for width in widths[: len(heads)]]
    rule += ["-" * (width - 1) + ":" for width in widths[len(heads) :]]
    lines = [grid[0], rule, *body]
    return [f"| {' | '.join(_padded(line, widths, len(heads)))} |" for line in lines]


def _row_lines(row: Row, compares: bool, columns: int) -> list[list[str]]:
    lines = []
    for place, line in enumerate(narrow_lines(row, columns)):
        heads = [markdown(head) if place == 0 else "" for head in row.headers]
        kind = [line.kind] if compares else []
        lines.append([*heads, *kind, *(markdown(str(text)) for text in line.texts)])
    return lines


def _cells_wide(text: str) -> int:
    """Columns of a terminal."""
    return round(len(text) + (text_width(text, 1.0) - 0.55 * len(text)) / 0.45)


def _padded(line: Sequence[str], widths: Sequence[int], heads: int) -> list[str]:
    padded = []
    for place, (word, width) in enumerate(zip(line, widths, strict=True)):
        gap = " " * (width - _cells_wide(word))
        padded.append(word + gap if place < heads else gap + word)
    return padded


@register("report", "table_latex")
def table_latex(*, table: Table, findings: Sequence[ReplicationFinding] = ()) -> str:
    r"""A table as LaTeX, with the rules of booktabs; a long one breaks over pages.

    Needs `\usepackage{booktabs}` and, for tables of more than 40 lines, `\usepackage{longtable}`.

    Args:
        findings: Those that rest on this table are listed under it; others are ignored.

    Raises:
        InputError: the table's rows do not fit its columns.
    """
    text = table_text(table)
    lines = [latex(note) for note in text.notes]
    lines += [f"[{index}] {latex(reason)}" for index, reason in enumerate(text.reasons, start=1)]
    for finding in findings_of(table, findings):
        words = [finding.statement, f"({finding.place})" if finding.place else "", finding.figures]
        if finding.paper_contradicts:
            words.append(f"The paper's own numbers contradict it: {finding.paper_contradicts}")
        parts = " ".join(latex(part) for part in words if part)
        lines.append(f"\\textbf{{{latex(finding.outcome.value.capitalize())}}}: {parts}")
    return latex_table(table, text, lines)


@register("report", "table_csv")
def table_csv(*, table: Table, findings: Sequence[ReplicationFinding] = ()) -> str:
    """A table as CSV (RFC 4180), one line for each cell, numbers at full precision.

    Text that a spreadsheet would take for a formula is preceded by an apostrophe.

    Args:
        findings: Accepted as all writers of tables do; no part of a file of numbers.

    Raises:
        InputError: the table's rows do not fit its columns.
    """
    check_shape(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*_header_names(table.row_headers), *COLUMNS])
    for headers, row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            writer.writerow([*(_safe(head) for head in headers), _safe(column), *_csv_cell(cell)])
    return out.getvalue()


def _header_names(names: Sequence[str]) -> list[str]:
    """The row headers as names of columns, each of them its own."""
    chosen: list[str] = []
    for name in names:
        free = _safe(name)
        while free in COLUMNS or free in chosen:
            free = f"row_{free}"
        chosen.append(free)
    return chosen


def _csv_cell(cell: Cell) -> list[str]:
    paper, ours, difference = cell.paper, cell.ours, cell.difference
    printed = ["", "", "", "", "", "", ""]
    if paper is not None:
        numbers = (paper.value, paper.spread, paper.lower, paper.upper, paper.p_value)
        printed = [_safe(paper.printed), *map(_number, numbers), _safe(paper.unit)]
    measured = [""] * 6
    if ours is not None:
        measured = [*_ends(ours), _number(ours.spread), _number(ours.p_value)]
        measured.append("" if ours.n is None else str(ours.n))
    return [
        *printed,
        *measured,
        *(["", "", ""] if difference is None else _ends(difference)),
        _safe(cell.why_blank),
    ]


def _ends(value: Value) -> list[str]:
    return [_number(end) for end in (value.estimate, value.lower, value.upper)]


def _number(value: float | None) -> str:
    """The shortest text that reads back as the same number."""
    return "" if value is None else repr(float(value))


def _safe(text: str) -> str:
    line = " ".join(_CONTROL.sub("\ufffd", text).split())
    if line.startswith(_FORMULA) and not _is_number(line):
        return f"'{line}"
    return line


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return not math.isnan(value) and "_" not in text


# LaTeX: text escaped for a plain preamble, rules of booktabs. Each column of the table is two of LaTeX's: the
# number, set flush right, and what follows it, set flush left; numbers of equal decimals so stand with their
# points under each other, without a package of its own.

LONGEST_FLOAT = 40
"""Lines of a table that fit a page; longer ones are set with longtable."""

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}", "'": "'", "`": r"\char96{}",
    "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\le$", "≥": r"$\ge$",
    "≈": r"$\approx$", "≠": r"$\ne$", "→": r"$\to$", "∞": r"$\infty$", "√": r"$\sqrt{\ }$", "²": "$^2$",
    "³": "$^3$", "°": r"$^\circ$", "…": r"\ldots{}", "–": r"\textendash{}", "—": r"\textemdash{}",
    "‘": "`", "’": "'", "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}", "\u00a0": "~", "\u202f": r"\,", "\u2009": r"\,", "§": r"\S{}",
    "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "œ": r"\oe{}", "Œ": r"\OE{}",
    "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "Δ": r"$\Delta$",
    "ε": r"$\varepsilon$", "ϵ": r"$\epsilon$", "η": r"$\eta$", "θ": r"$\theta$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "µ": r"$\mu$", "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$", "Σ": r"$\Sigma$",
    "τ": r"$\tau$", "φ": r"$\varphi$", "χ": r"$\chi$", "ω": r"$\omega$",
}  # fmt: skip
_ACCENTS = {
    "\u0300": r"\`", "\u0301": r"\'", "\u0302": r"\^", "\u0303": r"\~", "\u0304": r"\=", "\u0306": r"\u",
    "\u0307": r"\.", "\u0308": r"\"", "\u030a": r"\r", "\u030b": r"\H", "\u030c": r"\v", "\u0327": r"\c",
}  # fmt: skip
_NUMBER = re.compile(r"[+−]?(\d|∞|n/a)")


def latex(text: str) -> str:
    """Text that LaTeX prints as it stands, with no package beyond the format's own.

    A character that this knows no command for is printed as its code point, `[U+4E2D]`.
    """
    line = " ".join(part for part in re.split(r"[\x00-\x20\x7f-\x9f]+", text) if part)
    # Two hyphens or two quotes in a row would be set as one sign.
    return re.sub(r"(?<=[-'])(?=[-'])", "{}", "".join(_letter(letter) for letter in line))


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter.isascii():
        return letter
    parts = unicodedata.normalize("NFD", letter)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        base = {"i": r"\i", "j": r"\j"}.get(parts[0], parts[0])
        return f"{_ACCENTS[parts[1]]}{{{base}}}"
    return f"[U+{ord(letter):04X}]"


def latex_table(table: Table, text: TableText, below: Sequence[str]) -> str:
    """The whole table; `below` are finished lines of LaTeX that go under it."""
    heads = len(table.row_headers) + int(text.compares)
    body = "\n\\addlinespace\n".join(
        "\n".join(_row(row, text.compares, len(table.columns))) for row in text.rows
    )
    lines = sum(len(narrow_lines(row, len(table.columns))) for row in text.rows)
    caption = latex(f"{table.place}: {table.title}" if table.place else table.title)
    label = re.sub(r"[^A-Za-z0-9-]+", "-", table.id)
    head = [*(latex(name) for name in table.row_headers), *([""] if text.compares else ())]
    head += [f"\\multicolumn{{2}}{{c}}{{{latex(name)}}}" for name in table.columns]
    columns = "l" * heads + "r@{~}l" * len(table.columns)
    parts = _Parts(
        caption=f"\\caption{{{caption}}}\\label{{tab:{label}}}",
        columns=columns,
        head=" & ".join(head) + r" \\",
        body=body,
        width=heads + 2 * len(table.columns),
        notes="".join(f"\n\n\\noindent {line}\\par" for line in below),
    )
    return _long(parts) if lines > LONGEST_FLOAT else _float(parts)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The pieces of a table, as LaTeX; `width` is the number of LaTeX's columns."""

    caption: str
    columns: str
    head: str
    body: str
    width: int
    notes: str


def _float(parts: _Parts) -> str:
    return (
        "% Needs \\usepackage{booktabs}.\n\\begin{table}\n"
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        f"{parts.caption}\n\\begin{{tabular}}{{{parts.columns}}}\n\\toprule\n{parts.head}\n\\midrule\n"
        f"{parts.body}\n\\bottomrule\n\\end{{tabular}}\n"
        f"\\par\\smallskip\\raggedright\\scriptsize{parts.notes}\n\\end{{table}}\n"
    )


def _long(parts: _Parts) -> str:
    return (
        "% Needs \\usepackage{booktabs,longtable}.\n{\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        f"\\begin{{longtable}}{{{parts.columns}}}\n{parts.caption}\\\\\n\\toprule\n{parts.head}\n\\midrule\n"
        f"\\endfirsthead\n\\toprule\n{parts.head}\n\\midrule\n\\endhead\n"
        f"\\midrule\n\\multicolumn{{{parts.width}}}{{r}}{{continued}}\\\\\n\\endfoot\n"
        f"\\bottomrule\n\\endlastfoot\n{parts.body}\n\\end{{longtable}}}}\n"
        f"{{\\raggedright\\scriptsize{parts.notes}\n}}\n"
    )


def _row(row: Row, compares: bool, columns: int) -> list[str]:
    lines = []
    for place, line in enumerate(narrow_lines(row, columns)):
        heads = [latex(head) if place == 0 else "" for head in row.headers]
        kind = [line.kind] if compares else []
        # A bracket after `\\` would be read as its optional argument, so every line opens with a group.
        lines.append(
            ("{}" if heads or kind else "") + " & ".join([*heads, *kind, *map(_cell, line.texts)]) + r" \\"
        )
    # The lines of one row stay on one page.
    return [*(line + "*" for line in lines[:-1]), lines[-1]]


def _cell(text: Text) -> str:
    rest = " ".join(part for part in (text.rest, text.detail, text.mark) if part)
    if not _NUMBER.match(text.value) and str(text):
        return f"\\multicolumn{{2}}{{c}}{{{latex(str(text))}}}"
    return f"{latex(text.value)} & {latex(rest)}"
