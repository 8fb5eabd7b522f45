"""The page of a study: verdicts first, complete, deterministic, and harmless whatever the report holds."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.reports.shared.pages import study as study_page
from workbench.reports.shared.pages.study import css_string
from workbench.studies.report import Cell, Replication, ReplicationFinding, StudyReport, Value

Builder = Callable[..., StudyReport]

CONTEXT: dict[str, Any] = {
    "experiments": {"done": 250, "failed": 2, "missing": 0},
    "versions": {"torch": "2.13.0", "python": "3.11.9"},
    "hardware": {"cpu": "A processor @ 2.00GHz", "cores": 2},
    "command": "workbench run dp_weights --profile quick",
    "created": "2026-01-01T00:00:00Z",
    "confidence": 0.95,
    "replication": "seed",
    "study_notes": ["Fewer epochs than the paper."],
}
VOID = {"meta", "link", "br", "hr", "img", "input"}
CLOSED_BY = {"td": {"td", "th", "tr"}, "th": {"td", "th", "tr"}, "tr": {"tr"}}
"""Elements that a further one closes, as HTML has it; the end of their table's part does, too."""


class Page(HTMLParser):
    """Elements with their attributes, text by element, and a complaint for each tag that does not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.complaints: list[str] = []
        self.feed(text)
        self.close()
        self.text = re.sub(r"[ \n]+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        while self.open and tag in CLOSED_BY.get(self.open[-1], ()):
            self.open.pop()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while tag == "tbody" and self.open and self.open[-1] in CLOSED_BY:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.complaints.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.words.append(data)


def render(report: StudyReport, context: dict[str, Any] | None = None) -> str:
    page = registry.create(
        "report", "study_html", report=report, context=CONTEXT if context is None else context
    )
    assert isinstance(page, str)
    return page


def parsed(report: StudyReport, context: dict[str, Any] | None = None) -> Page:
    text = render(report, context)
    page = Page(text)
    assert page.complaints == []
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not {"iframe", "object", "embed", "img"} & {tag for tag, _ in page.tags}
    assert [tag for tag, _ in page.tags].count("script") == 1
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "xlink:href", "action", "data"):
            assert name not in attributes
        if "href" in attributes:
            href = attributes["href"] or ""
            assert href == "data:," if tag == "link" else href[1:] in ids and href[0] == "#", href
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in ids
    return page


def test_the_verdicts_come_first_with_their_counts(study: Builder) -> None:
    report = study()
    page = parsed(report)
    headings = [tag for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    order = [
        report.title, "of 3 conclusions", "What the paper concludes, held to our results",
        report.findings[0].statement, "Results, number 1", "All epsilons",
        "Contradictions inside the paper", report.inconsistencies[0],
        "What to know", report.notes[0], "How this was made",
    ]  # fmt: skip
    rest = page.text
    for words in order:
        assert words in rest, words
        rest = rest.split(words, 1)[1]


def test_every_finding_is_told_with_its_test_and_its_tables(study: Builder) -> None:
    report = study()
    page = parsed(report)
    for finding in report.findings:
        for words in (finding.outcome.value, finding.statement, finding.test, finding.figures):
            assert words in page.text
    assert "The paper’s own numbers contradict it. Its Table 2." in page.text
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert "#t-table-1" in links
    # The third finding rests on a table that this report does not have: named, with nothing to follow.
    assert "#t-table-3" not in links
    assert re.search(r"Rests on table-3 ?\.", page.text)


def test_many_findings_are_an_index_of_folded_verdicts(study: Builder) -> None:
    report = study()
    many = tuple(replace(report.findings[0], id=f"claim-{place}") for place in range(20))

    def folds(findings: tuple[ReplicationFinding, ...]) -> list[bool]:
        page = parsed(replace(report, findings=findings))
        found = [a for t, a in page.tags if t == "details" and a.get("data-kind") == "verdict"]
        return ["open" in attributes for attributes in found]

    assert folds(report.findings) == [True] * 3
    assert folds(many) == [False] * 20


def test_conclusions_that_were_not_run_are_folded_away_behind_the_others(study: Builder) -> None:
    report = study()
    unrun = tuple(
        replace(report.findings[0], id=f"unrun-{place}", outcome=Replication.NOT_RUN, test="A long test.")
        for place in range(4)
    )
    text = render(replace(report, findings=(*unrun, *report.findings)))
    folded = text[text.index('<details class="more">') :]
    folded = folded[: folded.index("</section>")]
    assert "4 conclusions whose runs are missing" in folded
    assert [f'id="v-{one.id}"' in folded for one in unrun] == [True] * 4
    assert [f'id="v-{one.id}"' in folded for one in report.findings] == [False] * 3
    assert "A long test." not in text
    assert "whose runs are missing" not in render(report)


def test_a_table_that_nobody_reads_on_the_page_stands_in_its_files(
    study: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = study(tables=1, rows=4)
    (table,) = report.tables
    held = render(report).count("<td")
    monkeypatch.setattr(study_page, "MOST_CELLS", held)
    assert render(report).count("<td") == held
    monkeypatch.setattr(study_page, "MOST_CELLS", held - 1)
    page = parsed(report)
    assert "td" not in [tag for tag, _ in page.tags]
    assert f"{held} cells, which stand in the files tables/{table.id}.md" in page.text


def test_rows_of_the_paper_that_were_not_run_are_folded_away(study: Builder) -> None:
    report = study(tables=1, rows=4)
    (table,) = report.tables
    why = "no run at this setting"
    blank = [tuple(Cell(paper=cell.paper, why_blank=why) for cell in cells) for _, cells in table.rows[:3]]
    lost = tuple((headers, cells) for (headers, _), cells in zip(table.rows[:3], blank, strict=True))
    text = render(replace(report, tables=(replace(table, rows=(*lost, table.rows[3])),)))
    _, _, after = text.partition('<details class="more">')
    folded, _, _ = after.partition("</details>")
    assert "3 rows of the paper that are not run here" in folded
    assert (folded.count('<tr class="paper">'), folded.count('<tr class="ours">')) == (3, 0)
    assert folded.count(why) == 1


def test_many_rows_that_were_not_run_stand_in_the_files_alone(
    study: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = study(tables=1, rows=4)
    (table,) = report.tables
    lost = tuple(
        (headers, tuple(Cell(paper=cell.paper, why_blank="not run") for cell in cells))
        for headers, cells in table.rows[:3]
    )
    report = replace(report, tables=(replace(table, rows=(*lost, table.rows[3])),))
    monkeypatch.setattr(study_page, "MOST_UNRUN", 3 * len(table.columns) - 1)
    page = parsed(report)
    assert f"They stand in the files tables/{table.id}.md" in page.text
    assert [tag for tag, _ in page.tags].count("td") == 3 * len(table.columns)  # Paper, ours, difference.
    shown = parsed(replace(report, tables=(replace(table, rows=lost),)))
    (outer,) = [names for tag, names in shown.tags if tag == "details" and names.get("data-kind") == "table"]
    assert "open" not in outer


def test_names_of_columns_cannot_end_the_style_that_holds_them(study: Builder) -> None:
    report = study(tables=1)
    hostile = "a'; } </style><script>alert(1)</script> \\"
    (table,) = report.tables
    page = parsed(replace(report, tables=(replace(table, columns=(hostile, *table.columns[1:])),)))
    (style,) = [names["style"] or "" for tag, names in page.tags if tag == "table"]
    assert f"--c1: {css_string(hostile)}; --c2:" in style
    assert not set('<>{}"') & set(style)
    assert css_string("a'b\\ c") == r"'a\27 b\5c  c'"


def test_every_number_of_a_table_is_on_the_page_and_blanks_say_why(study: Builder) -> None:
    report = study(tables=1, rows=4)
    page = parsed(report)
    for _, cells in report.tables[0].rows:
        for cell in cells:
            if cell.paper is not None:
                assert cell.paper.printed in page.text
            if cell.ours is not None:
                assert f"{cell.ours.estimate:.2f} ± 0.04" in page.text
            if cell.difference is not None:
                assert f"{abs(cell.difference.estimate):.2f}" in page.text
    for reason in ("diverged to NaN", "the paper prints nan"):
        found = re.search(rf"\[(\d)\] {reason}", page.text)
        assert found
        assert f"blank [{found[1]}]" in page.text
    assert "Unit of replication: the seed." in page.text


def test_bold_marks_exactly_the_differences_whose_interval_excludes_zero(study: Builder) -> None:
    report = study(tables=1, rows=6)
    expected = [
        cell.difference.lower > 0 or cell.difference.upper < 0
        for _, cells in report.tables[0].rows
        for cell in cells
        if cell.difference is not None
        and cell.difference.lower is not None
        and cell.difference.upper is not None
    ]
    page = parsed(report)
    marked = [attributes for tag, attributes in page.tags if tag == "b"]
    assert len(marked) == sum(expected)
    assert 0 < sum(expected) < len(expected)
    assert "is not corrected for many comparisons" in page.text


def test_figures_stand_with_caption_legend_and_place(study: Builder) -> None:
    report = study()
    page = parsed(report)
    for figure in report.figures:
        assert figure.title in page.text
        assert figure.caption in page.text
        for key in figure.legend:
            assert key.label in page.text
    assert [tag for tag, _ in page.tags].count("figure") == len(report.figures)


def test_what_surrounds_the_study_is_told(study: Builder) -> None:
    text = parsed(study(), {**CONTEXT, "something_new": [1, "two"]}).text
    expected = ["250 of 252", "2 failed", "torch", "2.13.0", "processor A processor", CONTEXT["command"]]
    expected += [
        "Unit of replication seed",
        "95\u202f%",
        "Fewer epochs than the paper.",
        "Something new 1, two",
    ]
    for words in expected:
        assert words in text, words


def test_a_study_without_a_paper_has_no_empty_sections(study: Builder) -> None:
    report = replace(study(), findings=(), inconsistencies=(), figures=(), notes=())
    page = parsed(report, {})
    for words in (
        "What the paper concludes",
        "Contradictions",
        "Figures",
        "What to know",
        "How this was made",
    ):
        assert words not in page.text
    nothing = parsed(replace(report, tables=()), {})
    assert report.title in nothing.text


def test_the_only_script_is_ours_and_its_hash_stands_in_the_policy(study: Builder) -> None:
    page = parsed(study(hostile=True))
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a) or ""
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    assert "{{" not in script


def test_hostile_text_stays_text(study: Builder) -> None:
    report = study(hostile=True)
    page = parsed(report, {"command": "<script>", "a<b>": "</dd><script>", "versions": {"<i>": "<b>"}})
    assert report.title in page.text.replace("\ufffd", "")
    assert "<script>document.title" in page.text
    assert "{{ 1 }}" in page.text
    broken = replace(report, title="a\x00b\ud800c", notes=("\x1b[31m",))
    text = render(broken)
    assert "a\ufffdb?c" in text
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text)


def test_equal_reports_give_equal_bytes(study: Builder) -> None:
    assert render(study()) == render(study())


def test_two_things_of_one_name_are_refused(study: Builder) -> None:
    report = study()
    with pytest.raises(InputError, match="two tables of the report have the id 'table-1'"):
        render(replace(report, tables=(report.tables[0],) * 2))
    with pytest.raises(InputError, match="two figures of the report have the id 'figure-3'"):
        render(replace(report, figures=(report.figures[0],) * 2))
    with pytest.raises(InputError, match="two findings"):
        render(replace(report, findings=(report.findings[0],) * 2))


def test_a_wide_table_scrolls_by_itself(study: Builder) -> None:
    table = study(tables=1).tables[0]
    columns = tuple(f"column {place}" for place in range(12))
    wide = replace(table, columns=columns, rows=((("1", "a"), (Cell(ours=Value(estimate=1.0)),) * 12),))
    page = parsed(replace(study(), tables=(wide,)))
    scrolling = [attributes for _, attributes in page.tags if attributes.get("class") == "scroll"]
    assert len(scrolling) == 1
    assert scrolling[0]["tabindex"] == "0"
    assert scrolling[0]["aria-label"]


def test_outcomes_are_words_and_never_promise_more(study: Builder) -> None:
    complete = study()
    waits = replace(complete.findings[0], id="waits", outcome=Replication.NOT_RUN)
    text = parsed(replace(complete, findings=(*complete.findings, waits))).text.lower()
    for outcome in Replication:
        assert outcome.value in text
    assert "it proves no conclusion true or false in general" in text
    assert "not run" not in parsed(complete).text.lower()
