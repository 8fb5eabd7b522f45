"""The page in a real headless Chromium: nothing fetched, no complaint, readable on phones and in the dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.core import registry

Builders = dict[str, Callable[..., dict[str, Any]]]

PHONE, DESKTOP = 390, 1200


@pytest.fixture(params=["REFUTED", "NOT_REFUTED", "UNDERPOWERED", "INVALID"])
def page(request: pytest.FixtureRequest, records: Builders, tmp_path: Path) -> Path:
    """A page with long names, which are what breaks a narrow layout."""
    record = records["full"](request.param)
    record["command"] += " --train " + "a_very_long_folder_name/" * 12
    record["subjects"][0]["name"] = "a_mechanism_with_a_name_that_does_not_end_" * 3
    record["subjects"][0]["metrics"]["a_metric_with_a_name_that_does_not_end_" * 3] = 1e-12
    record["subjects"][0]["attacks"][1]["attack"] = "an_attack_with_a_name_that_does_not_end_" * 3
    record["subjects"][0]["attacks"][2]["verdict"]["bounds"][0]["lower"] = "inf"
    path = tmp_path / "report.html"
    path.write_text(registry.create("report", "html", report=record), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_fetches_nothing_and_fits(chromium: Any, page: Path, width: int) -> None:
    chromium.forget()
    chromium.show(page, width)
    assert chromium.requested() == [page.as_uri()]
    assert chromium.run("return performance.getEntriesByType('resource').length") == 0
    assert chromium.complaints() == []
    assert chromium.overflow() <= 0
    chromium.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert chromium.overflow() <= 0
    cut_off = chromium.run(
        """return [...document.querySelectorAll('main *')].filter(part => !part.closest('svg, thead'))
           .filter(part => part.getBoundingClientRect().right > document.documentElement.clientWidth + 1
                        || getComputedStyle(part).display != 'inline'
                           && part.scrollWidth > part.clientWidth + 1)
           .map(part => part.tagName + '.' + part.className)"""
    )
    assert cut_off == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_verdict_is_seen_first_and_every_figure_is_drawn(chromium: Any, page: Path, width: int) -> None:
    chromium.show(page, width)
    first = chromium.run(
        """const heading = document.querySelector('h1, h2, h3, h4, h5, h6');
           const box = heading.getBoundingClientRect();
           return {tag: heading.tagName, text: heading.innerText, top: box.top, bottom: box.bottom,
                   size: parseFloat(getComputedStyle(heading).fontSize), height: innerHeight}"""
    )
    assert first["tag"] == "H1"
    assert first["text"] in ("Refuted", "Not refuted", "Underpowered", "Invalid")
    assert 0 <= first["top"] < first["bottom"] < first["height"] / 2
    assert first["size"] >= 36
    figures = chromium.run(
        """return [...document.querySelectorAll('figure > svg')].map(drawing => {
             const box = drawing.getBoundingClientRect();
             const texts = [...drawing.querySelectorAll('text')].map(t => t.getBoundingClientRect());
             const name = drawing.getAttribute('aria-labelledby').split(' ')
                                 .map(id => document.getElementById(id).textContent);
             return {width: box.width, height: box.height, name: name,
                     smallest: Math.min(...texts.map(t => t.height)),
                     outside: texts.filter(t => t.left < box.left - 1 || t.top < box.top - 1
                                   || t.right > box.right + 1 || t.bottom > box.bottom + 1).length}})"""
    )
    assert len(figures) >= 10
    for figure in figures:
        assert figure["width"] > 200, figure
        assert figure["height"] > 60, figure
        assert all(figure["name"]), figure
        assert figure["smallest"] >= 11, figure
        assert figure["outside"] == 0, figure


UNDRAWN = """document.querySelectorAll('details').forEach(part => { part.open = true; });
    return [...document.querySelectorAll('svg')].filter(drawing => {
      const box = drawing.getBoundingClientRect();
      return box.width < 20 || box.height < 5 || getComputedStyle(drawing).visibility != 'visible';
    }).map(drawing => drawing.getAttribute('class') || drawing.textContent)"""


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_no_picture_is_left_out_on_a_narrow_window(chromium: Any, page: Path, width: int) -> None:
    chromium.show(page, width)
    assert chromium.run(UNDRAWN) == []
    chromium.run("document.querySelector('.track').style.display = 'none'")
    assert chromium.run(UNDRAWN) == ["track"]


EMPTY = """return [...document.querySelectorAll('.cards, .plots')].filter(row => {
      const box = row.getBoundingClientRect();
      const parts = [...row.querySelectorAll('p, dl, svg, ul, figcaption')];
      return Math.max(...parts.map(part => part.getBoundingClientRect().left)) < box.left + 0.45 * box.width;
    }).length"""


def test_a_single_game_fills_the_width(chromium: Any, records: Builders, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    record = records["scores"]("NOT_REFUTED")
    path.write_text(registry.create("report", "html", report=record), encoding="utf-8")
    chromium.show(path, DESKTOP)
    assert chromium.run("return document.querySelectorAll('.cards, .plots').length") == 4
    assert chromium.run(EMPTY) == 0
    chromium.run("document.querySelector('.cards > .card').style.cssText = 'columns: 1; max-width: 400px'")
    assert chromium.run(EMPTY) == 1


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_text_contrasts_in_light_and_dark(chromium: Any, page: Path, scheme: str, dark: bool) -> None:
    chromium.show(page, DESKTOP, scheme)
    seen = chromium.contrast()
    assert (seen["page"] < 0.05) is dark
    assert seen["ratio"] >= 4.5


def test_the_browser_would_have_noticed(chromium: Any, tmp_path: Path) -> None:
    """Negative control: a page that fetches, overflows and complains is caught by the same checks."""
    (tmp_path / "style.css").write_text("p { width: 900px }", encoding="utf-8")
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><meta name=viewport content='width=device-width'><link rel=stylesheet href=style.css>"
        "<h1>Bad</h1><p>wide</p><script>console.error('complaint')</script>",
        encoding="utf-8",
    )
    chromium.forget()
    chromium.show(bad, PHONE)
    assert (tmp_path / "style.css").as_uri() in chromium.requested()
    assert any("complaint" in complaint for complaint in chromium.complaints())
    assert chromium.overflow() > 0
