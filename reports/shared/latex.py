r"""LaTeX of a table: text escaped for a plain preamble, numbers aligned at their points, rules of booktabs.

Each column of the table is two of LaTeX's: the number, set flush right, and what follows it, set flush left;
numbers of equal decimals so stand with their points under each other, without a package of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.reports.shared.cells import Row, TableText, Text, narrow_lines
from workbench.studies.report import Table

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
