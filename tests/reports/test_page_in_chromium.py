"""The page in a real headless Chromium: nothing fetched, no complaint, readable on phones and in the dark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench import registry

selenium = pytest.importorskip("selenium.webdriver")

Builders = dict[str, Callable[..., dict[str, Any]]]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE, DESKTOP = 390, 1200


def _program(*names: str) -> str:
    found = next((place for name in names if (place := shutil.which(name))), None)
    if found is None:
        reason = f"none of {', '.join(names)} is installed, so the page was not looked at in a browser"
        if os.environ.get("WORKBENCH_REQUIRE_CHROMIUM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = _program("chromium", "chromium-browser", "google-chrome")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = selenium.ChromeService(_program("chromedriver"), log_output=os.devnull)
    driver = selenium.Chrome(options=options, service=service)
    try:
        driver.get("about:blank")  # Away from the browser's own start page, which has requests of its own.
        yield driver
    finally:
        driver.quit()


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


def _show(browser: Any, page: Path, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())


def _requested(browser: Any) -> list[str]:
    """Addresses that the browser asked for since the last look, by its own log.

    The page's resource timing would not do: it leaves out what a file asks of other files.
    """
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [str(one["request"]["url"]) for one in sent]


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_fetches_nothing_and_fits(browser: Any, page: Path, width: int) -> None:
    _requested(browser)
    browser.get_log("browser")
    _show(browser, page, width)
    assert [address for address in _requested(browser) if not address.startswith("data:,")] == [page.as_uri()]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []
    overflow = "return document.scrollingElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    browser.execute_script("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert browser.execute_script(overflow) <= 0
    cut_off = browser.execute_script(
        """return [...document.querySelectorAll('main *')].filter(part => !part.closest('svg, thead'))
           .filter(part => part.getBoundingClientRect().right > document.documentElement.clientWidth + 1
                        || getComputedStyle(part).display != 'inline'
                           && part.scrollWidth > part.clientWidth + 1)
           .map(part => part.tagName + '.' + part.className)"""
    )
    assert cut_off == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_verdict_is_seen_first_and_every_figure_is_drawn(browser: Any, page: Path, width: int) -> None:
    _show(browser, page, width)
    first = browser.execute_script(
        """const heading = document.querySelector('h1, h2, h3, h4, h5, h6');
           const box = heading.getBoundingClientRect();
           return {tag: heading.tagName, text: heading.innerText, top: box.top, bottom: box.bottom,
                   size: parseFloat(getComputedStyle(heading).fontSize), height: innerHeight}"""
    )
    assert first["tag"] == "H1"
    assert first["text"] in ("Refuted", "Not refuted", "Underpowered", "Invalid")
    assert 0 <= first["top"] < first["bottom"] < first["height"] / 2
    assert first["size"] >= 36
    figures = browser.execute_script(
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


CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const light = colour => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = part => {
  for (; part; part = part.parentElement) {
    const colour = getComputedStyle(part).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return colour;
  }
  return 'white';
};
const ratio = part => {
  const style = getComputedStyle(part), front = part.namespaceURI.endsWith('svg') ? style.fill : style.color;
  const [a, b] = [light(front), light(behind(part.closest('figure') || part))].sort((x, y) => x - y);
  return (b + 0.05) / (a + 0.05);
};
const kinds = 'h1, h2, h3, h4, p, dt, dd, th, td, small, figcaption, .chip, .tag, text';
const parts = [...document.querySelectorAll(kinds)];
return {ratio: Math.min(...parts.map(ratio)), page: light(getComputedStyle(document.body).backgroundColor)};
"""
"""Least contrast of any text with what lies behind it (WCAG 2.2, criterion 1.4.3); the page's luminance."""


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_text_contrasts_in_light_and_dark(browser: Any, page: Path, scheme: str, dark: bool) -> None:
    _show(browser, page, DESKTOP, scheme)
    seen = browser.execute_script(CONTRAST)
    assert (seen["page"] < 0.05) is dark
    assert seen["ratio"] >= 4.5


def test_the_browser_would_have_noticed(browser: Any, tmp_path: Path) -> None:
    """Negative control: a page that fetches, overflows and complains is caught by the same checks."""
    (tmp_path / "style.css").write_text("p { width: 900px }", encoding="utf-8")
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><meta name=viewport content='width=device-width'><link rel=stylesheet href=style.css>"
        "<h1>Bad</h1><p>wide</p><script>console.error('complaint')</script>",
        encoding="utf-8",
    )
    _requested(browser)
    browser.get_log("browser")
    _show(browser, bad, PHONE)
    assert (tmp_path / "style.css").as_uri() in _requested(browser)
    assert any("complaint" in entry["message"] for entry in browser.get_log("browser"))
    overflow = "return document.scrollingElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) > 0
