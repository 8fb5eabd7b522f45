"""The page of a study in a real headless Chromium: it filters, fits, prints, and runs only its own script."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.core import registry
from workbench.studies.report import StudyReport

Builder = Callable[..., StudyReport]
PHONE, PAPER, TABLET, DESKTOP = 390, 718, 800, 1300
CONTEXT: dict[str, Any] = {
    "experiments": {"done": 250, "failed": 2},
    "versions": {"torch": "2.13.0"},
    "command": "workbench run " + "a_very_long_folder_name/" * 12,
}
SHOWN = """
return [...document.querySelectorAll('.item')].filter(part => part.getBoundingClientRect().height > 0)
       .map(part => part.dataset.kind + ':' + part.id)
"""
SETTLED = """
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
"""
TABLES_SEEN = (
    "return [...document.querySelectorAll('details.table table')].map(part => part.checkVisibility())"
)
DRAWINGS = """
return [...document.querySelectorAll('figure > svg, .panel > svg')].map(drawing => {
  const box = drawing.getBoundingClientRect();
  const texts = [...drawing.querySelectorAll('text')]
    .map(text => ({words: text.textContent, at: text.getBoundingClientRect()}));
  const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1
                       || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
  const inside = at => at.left >= box.left - 1 && at.top >= box.top - 1
                    && at.right <= box.right + 1 && at.bottom <= box.bottom + 1;
  const pairs = texts.flatMap((one, place) => texts.slice(place + 1).map(other => [one, other]));
  return {
    width: box.width, height: box.height,
    name: drawing.getAttribute('aria-labelledby').split(' ')
                 .map(id => document.getElementById(id).textContent),
    smallest: Math.min(...texts.map(text => text.at.height)),
    outside: texts.filter(text => !inside(text.at)).map(text => text.words),
    overlaps: pairs.filter(([one, other]) => !apart(one.at, other.at))
                   .map(pair => pair.map(text => text.words)),
  };
});
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[StudyReport], Path]:
    def to_file(report: StudyReport) -> Path:
        path = tmp_path / "index.html"
        page = registry.create("report", "study_html", report=report, context=CONTEXT)
        path.write_text(page, encoding="utf-8", newline="\n")
        return path

    return to_file


@pytest.fixture
def page(study: Builder, write: Callable[[StudyReport], Path]) -> Path:
    """A page with long names, which are what breaks a narrow layout."""
    report = study(tables=3, rows=4)
    endless = "a_name_that_does_not_end_" * 4
    table = report.tables[1]
    headers = [((f"1{endless}", endless), cells) for _, cells in table.rows]
    table = replace(table, rows=tuple(headers), title=endless, columns=(endless, *table.columns[1:]))
    return write(
        replace(report, name=endless, tables=(report.tables[0], table, report.tables[2]), notes=(endless,))
    )


def shown(chromium: Any) -> list[str]:
    """What is seen of the page's entries, after the next frame."""
    chromium.driver.execute_async_script(SETTLED)
    found = chromium.run(SHOWN)
    assert isinstance(found, list)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, TABLET, DESKTOP])
def test_the_page_fetches_nothing_and_fits(chromium: Any, page: Path, width: int) -> None:
    chromium.forget()
    chromium.show(page, width)
    assert chromium.requested() == [page.as_uri()]
    assert chromium.complaints() == []
    assert chromium.overflow() <= 0
    cut_off = chromium.run(
        """return [...document.querySelectorAll('main *')]
           .filter(part => !part.closest('svg, thead, .unseen, [hidden]'))
           .filter(part => part.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
           .map(part => part.tagName + '.' + part.className)"""
    )
    assert cut_off == []
    # In a card the first cell of each metric holds the metric's name, which runs on over its neighbours.
    wider = """return [...document.querySelectorAll('.row tr:not(:first-child) td')]
                      .map(part => part.scrollWidth - part.clientWidth)"""
    assert max(chromium.run(wider)) <= 1
    # And the number stands under that name.
    room = """return [...document.querySelectorAll('.row tr:first-child td')].map(part => {
                const name = getComputedStyle(part, '::before');
                if (name.content === 'none') return 0;
                const room = parseFloat(getComputedStyle(part).paddingTop);
                return room - parseFloat(name.top) - parseFloat(name.height);
              })"""
    assert min(chromium.run(room)) >= 0
    named = "return getComputedStyle(document.querySelector('.row tr:first-child td'), '::before').content"
    assert (chromium.run(named) == "none") is (width == DESKTOP)


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (DESKTOP, "light"), (DESKTOP, "print")])
def test_every_figure_is_drawn_and_nothing_of_it_is_cut_off_or_overlaps(
    chromium: Any, page: Path, width: int, scheme: str
) -> None:
    chromium.show(page, width, scheme)
    drawings = chromium.run(DRAWINGS)
    assert len(drawings) == 8  # Five charts, and three panels.
    for drawing in drawings:
        assert drawing["width"] > 200, drawing
        assert all(drawing["name"]), drawing
        assert drawing["smallest"] >= 10, drawing
        assert drawing["outside"] == [], drawing
        assert drawing["overlaps"] == [], drawing


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_text_and_lines_contrast_in_light_and_dark(
    chromium: Any, page: Path, scheme: str, dark: bool
) -> None:
    chromium.show(page, DESKTOP, scheme)
    seen = chromium.contrast()
    assert (seen["page"] < 0.05) is dark
    assert seen["ratio"] >= 4.5


def test_words_hide_what_does_not_hold_them_and_rows_too(chromium: Any, page: Path) -> None:
    chromium.show(page, DESKTOP)
    everything = shown(chromium)
    assert len(everything) == 3 + 1 + 3 + 6
    words = chromium.driver.find_element("id", "filter-words")
    words.send_keys("number 4 non_dp")
    # The rows of the second table have other names.
    assert shown(chromium) == ["table:t-table-1", "table:t-table-3"]
    rows = chromium.run(
        """return [...document.querySelectorAll('#t-table-1 tbody.row')]
           .filter(row => row.getBoundingClientRect().height > 0)
           .map(row => [...row.querySelectorAll('th[rowspan]')].map(head => head.textContent).join(' '))"""
    )
    assert rows == ["4 non_dp_model"]
    assert (
        chromium.run("return document.getElementById('filter-status').textContent")
        == "2 of 13 entries are shown."
    )
    words.send_keys(" nowhere")
    assert shown(chromium) == []
    assert "Nothing fits" in chromium.run("return document.getElementById('filter-status').textContent")
    headings = (
        "return [...document.querySelectorAll('.filtered h2')].map(h => h.getBoundingClientRect().height)"
    )
    assert set(chromium.run(headings)) == {0}
    chromium.driver.find_element("css selector", "button[type=reset]").click()
    assert shown(chromium) == everything
    assert chromium.run("return document.querySelectorAll('tbody.row[hidden]').length") == 0


def test_verdicts_and_kinds_filter_by_the_keyboard_alone(chromium: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    chromium.show(page, DESKTOP)
    focused = chromium.driver.switch_to
    chromium.driver.find_element("id", "filter-words").send_keys(Keys.TAB)
    for _ in range(2):  # Of the three verdicts all but "not replicated" go.
        if chromium.run("return document.activeElement.value") == "not-replicated":
            focused.active_element.send_keys(Keys.TAB)
        focused.active_element.send_keys(Keys.SPACE, Keys.TAB)
    assert shown(chromium) == ["verdict:v-claim-1", "table:t-table-2"]
    while chromium.run("return document.activeElement.value") != "table":
        focused.active_element.send_keys(Keys.TAB)
    focused.active_element.send_keys(Keys.SPACE)
    assert shown(chromium) == ["verdict:v-claim-1"]
    outline = "return getComputedStyle(document.activeElement.closest('label')).outlineStyle"
    assert chromium.run(outline) == "solid"


def test_the_filter_is_kept_in_the_address_and_links_still_lead(chromium: Any, page: Path) -> None:
    chromium.show(page, DESKTOP, fragment="#q=number+4&kind=table")
    assert shown(chromium) == ["table:t-table-1", "table:t-table-3"]
    assert chromium.run("return document.getElementById('filter-words').value") == "number 4"
    chromium.driver.find_element("id", "filter-words").send_keys("x")
    shown(chromium)
    assert chromium.run("return location.hash") == "#q=number+4x&kind=table"
    chromium.run("location.hash = '#f-roc'")
    assert "figure:f-roc" in shown(chromium)
    top = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
    assert -5 <= chromium.run(top, "f-roc") < 844
    chromium.show(page, DESKTOP)
    link = chromium.driver.find_element("css selector", "#v-claim-0 a[href='#t-table-1']")
    chromium.run("document.getElementById('t-table-1').open = false")
    link.click()
    shown(chromium)
    assert chromium.run("return document.getElementById('t-table-1').open")
    assert -5 <= chromium.run(top, "t-table-1") < 844


def test_tables_fold_and_unfold(chromium: Any, page: Path) -> None:
    chromium.show(page, DESKTOP)
    chromium.driver.find_element("id", "fold").click()
    assert chromium.run(TABLES_SEEN) == [False] * 3
    chromium.driver.find_element("id", "unfold").click()
    assert chromium.run(TABLES_SEEN) == [True] * 3


def test_without_script_everything_is_seen_and_no_dead_control(chromium: Any, page: Path) -> None:
    try:
        chromium.show(page, DESKTOP, script=False)
        assert len(chromium.run(SHOWN)) == 13
        assert chromium.run("return document.getElementById('filter').getBoundingClientRect().height") == 0
        assert (
            min(chromium.run("return [...document.querySelectorAll('table')].map(t => t.offsetHeight)")) > 0
        )
    finally:
        chromium.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_on_paper_folded_tables_are_open_and_the_filter_is_gone(chromium: Any, page: Path) -> None:
    chromium.show(page, PAPER, "print")
    assert chromium.overflow() <= 0
    chromium.run("document.querySelectorAll('details').forEach(part => { part.open = false; })")
    assert chromium.run(TABLES_SEEN) == [True] * 3
    assert chromium.run("return document.getElementById('filter').getBoundingClientRect().height") == 0


def test_hostile_text_does_not_run_and_other_scripts_are_blocked(
    chromium: Any, study: Builder, write: Callable[[StudyReport], Path]
) -> None:
    report = study(hostile=True)
    chromium.forget()
    chromium.show(write(report), DESKTOP)
    assert chromium.run("return document.title") == report.title
    assert chromium.complaints() == []
    # Negative control of the policy: markup that a figure smuggles in is there, and does not run.
    evil = "<script>document.title = 'struck'</script><p onclick=\"document.title = 'struck'\" id=evil>x</p>"
    figure = replace(report.figures[0], svg=evil)
    path = write(replace(report, figures=(figure,)))
    chromium.show(path, DESKTOP)
    chromium.driver.find_element("id", "evil").click()
    assert chromium.run("return document.title") == report.title
    assert any("Content Security Policy" in complaint for complaint in chromium.complaints())
    # And without the policy it would have run.
    text = path.read_text(encoding="utf-8").replace("Content-Security-Policy", "nothing")
    path.write_text(text, encoding="utf-8")
    chromium.show(path, DESKTOP)
    assert chromium.run("return document.title") == "struck"


@pytest.mark.slow
def test_a_study_of_full_size_stays_quick(
    chromium: Any, study: Builder, write: Callable[[StudyReport], Path]
) -> None:
    """Ten tables of 392 cells, each thrice: more than DP-Weights prints. The limits are generous."""
    report = study(tables=10, rows=28)
    path = write(report)
    assert path.stat().st_size < 6e6
    start = time.perf_counter()
    chromium.show(path, DESKTOP)
    shown(chromium)
    assert time.perf_counter() - start < 10.0
    spent = chromium.driver.execute_async_script(
        """const done = arguments[0], words = document.getElementById('filter-words');
           const start = performance.now(), end = () => done(performance.now() - start);
           words.value = '27 non_dp';
           words.dispatchEvent(new Event('input', {bubbles: true}));
           requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(end)));"""
    )
    assert spent < 3000
    rows = "return document.querySelectorAll('tbody.row:not([hidden])').length"
    assert chromium.run(rows) == 10
