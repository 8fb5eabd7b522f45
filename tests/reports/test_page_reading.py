"""The page of an audit as a reader goes through it: nothing said twice, nothing infinite unexplained."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.estimation.power import Strength, outcomes, perfect_reach
from workbench.interfaces import GameTerms, Trials
from workbench.reports.shared import markup
from workbench.reports.shared.pages.reach import reach_plot

Builders = dict[str, Callable[..., dict[str, Any]]]

PROSE = {"p", "li", "figcaption", "caption", "small"}
LABELS = {"h1", "h2", "h3", "h4", "dt", "dd", "td", "th"}
UNSEEN = {"svg", "style", "title", "pre"}
LEAST_WORDS = 5
"""Shorter pieces are labels, not sentences."""


class Sentences(HTMLParser):
    """The sentences that a reader sees, block by block; a legend names its lines, and says nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks, self.open = [""], list[str]()
        self.feed(text)
        parts = [part for block in self.blocks for part in re.split(r"(?<=[.!?])\s+(?=[A-Z“])", block)]
        words = [(" ".join(part.split()), re.findall(r"[A-Za-z_]{2,}", part)) for part in parts]
        self.all = [sentence for sentence, found in words if len(found) >= LEAST_WORDS]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if ("class", "legend") in attrs or tag in PROSE | LABELS | UNSEEN:
            self.open.append("legend" if tag == "ul" else tag)
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == ("legend" if tag == "ul" else tag):
            self.open.pop()
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in PROSE and not {"legend", *UNSEEN} & set(self.open):
            self.blocks[-1] += data


def render(record: dict[str, Any]) -> str:
    """The page of a record."""
    return str(registry.create("report", "html", report=json.loads(json.dumps(record))))


def repeated(record: dict[str, Any]) -> list[str]:
    """Sentences that stand on the page more than once."""
    return [text for text, count in Counter(Sentences(render(record)).all).items() if count > 1]


@pytest.mark.parametrize("builder", ["full", "scores"])
@pytest.mark.parametrize("kind", ["REFUTED", "NOT_REFUTED", "UNDERPOWERED", "INVALID"])
def test_no_sentence_stands_twice(records: Builders, builder: str, kind: str) -> None:
    record = records[builder](kind)
    assert repeated(record) == []
    assert len(Sentences(render(record)).all) > 15
    assert record["verdict"]["sentence"] in render(record).replace("&gt;", ">")


def test_without_the_filter_sentences_would_stand_twice(
    records: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the check above."""
    monkeypatch.setattr(markup, "Once", lambda: str)
    assert any("does not show that the claim is true" in text for text in repeated(records["full"]()))


def test_only_the_sentences_that_were_said_are_dropped() -> None:
    once = markup.Once()
    assert once("It is so. Nothing is shown.") == "It is so. Nothing is shown."
    assert once("It is not so. Nothing is shown.") == "It is not so."
    assert not once("Nothing is shown.")
    assert once("epsilon >= 0.5 at 1.5 %, e.g. here") == "epsilon >= 0.5 at 1.5 %, e.g. here"


def test_an_estimate_without_a_limit_is_said_so_and_explained(records: Builders) -> None:
    record = records["scores"]("REFUTED")
    bounds = record["subjects"][0]["attacks"][0]["verdict"]["bounds"]
    assert "imit" not in render(record).split("Lower bounds by game")[1].split("</table>")[0]
    bounds[0].update(estimate="inf")
    table = render(record).split("Lower bounds by game")[1].split("</table>")[0]
    assert "∞" not in table
    assert "without a limit</td>" in table
    assert "no score stood on the wrong side" in table
    bounds[0].update(lower="inf")
    assert "≥ ∞" in render(record)


def test_the_allowed_region_and_the_measured_curve_are_in_one_drawing(records: Builders) -> None:
    drawings = re.findall(r"<svg xmlns.*?</svg>", render(records["scores"]()), flags=re.DOTALL)
    (roc,) = [drawing for drawing in drawings if "ROC of the scores attack" in drawing]
    assert 'class="region"' in roc
    assert 'class="curve empirical"' in roc
    assert 'class="curve claim"' in roc


PLANNED = [
    GameTerms(description="planned", trials=Trials.ONE_RUN),
    GameTerms(description="planned", trials=Trials.INDEPENDENT),
    GameTerms(description="planned", trials=Trials.INDEPENDENT, steps=40, sampling_probability=0.25),
]


@pytest.mark.parametrize("game", PLANNED)
def test_the_line_is_what_the_planner_says(game: GameTerms) -> None:
    """Of a game of any family the planner gives the whole confidence to this bound, over all its coins."""
    stated = ApproximateDP(epsilon=1.0, delta=1e-5)
    for n in (30, 100, 400):
        found = outcomes(stated, game, Strength(), n, confidence=0.95, seed=0)
        line = perfect_reach(game, n, delta=1e-5, confidence=0.95)
        assert found.reached(0.99) <= line <= found.reached(0.9)
    assert line > 1.0
    assert perfect_reach(game, 400, delta=0.2, confidence=0.95) < line
    assert perfect_reach(game, 400, delta=1e-5, confidence=0.999) < line


def test_the_planners_figure_has_a_line_a_kind_and_a_dot_a_game(records: Builders) -> None:
    attacks = [(attack["attack"], attack) for attack in records["full"]()["subjects"][0]["attacks"]]
    plot = reach_plot("r", attacks, claimed=1.0)
    assert plot is not None
    assert plot.svg.count("<circle") == len(attacks)
    assert [key.css for key in plot.legend] == ["gdp", "pure", "mark", "claim"]
    assert "loss: 200 trials showed epsilon ≥ 0.2" in plot.caption
    assert "claimed epsilon = 1" in plot.legend[-1].label
    far = reach_plot("r", attacks, claimed=900.0)
    assert far is not None
    assert "curve claim" not in far.svg
    assert reach_plot("r", attacks, claimed=math.nan) is not None


def test_a_game_decided_by_another_bound_is_named_and_has_no_dot(records: Builders) -> None:
    attacks = [(attack["attack"], attack) for attack in records["full"]()["subjects"][0]["attacks"]]
    attacks[0][1]["verdict"]["bound"]["name"] = "gaussian_location"
    plot = reach_plot("r", attacks, claimed=1.0)
    assert plot is not None
    assert plot.svg.count("<circle") == len(attacks) - 1
    assert "no such line: dirac_canary." in plot.caption
    attacks[0][1]["verdict"]["bound"] = None
    assert reach_plot("r", attacks[:1], claimed=1.0) is None


@pytest.mark.parametrize("change", [{"prior_range": [0.45, 0.55]}, {"sequential": True}])
def test_a_game_whose_reach_is_not_known_has_no_line(records: Builders, change: dict[str, Any]) -> None:
    attack = records["scores"]()["subjects"][0]["attacks"][0]
    assert reach_plot("r", [("scores", attack)], claimed=1.0) is not None
    attack["game"].update(change)
    assert reach_plot("r", [("scores", attack)], claimed=1.0) is None
