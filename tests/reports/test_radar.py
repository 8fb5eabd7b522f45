"""Radar charts: marks where the numbers are, ranges and directions said, nothing filled, gaps where due."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.reports.shared.drawing.radar import (
    Axis,
    Better,
    RadarPanel,
    Series,
    fitted_axis,
    radar,
    radars,
)
from workbench.studies.report import Figure, Value

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text></svg><script>alert(1)</script>&\"'\x00\ud800"
SPREAD = "95 % t interval over seeds"


def axes(count: int = 4, better: Better = Better.LOWER) -> list[Axis]:
    return [Axis(name=f"metric {place}", centre=1.0, rim=0.0, better=better) for place in range(count)]


def value(estimate: float, half: float = 0.1, n: int | None = 3) -> Value:
    return Value(estimate=estimate, lower=estimate - half, upper=estimate + half, n=n)


def series(label: str, *estimates: float | None) -> Series:
    return Series(label=label, values=tuple(None if e is None else value(e) for e in estimates))


def drawn(figure: Figure) -> ET.Element:
    """The page's drawing, parsed; a drawing or a file that is not well-formed fails here."""
    ET.fromstring(figure.standalone)
    return ET.fromstring(figure.svg)


def paths(root: ET.Element, css: str) -> list[str]:
    return [part.get("d", "") for part in root.iter(f"{SVG}path") if part.get("class") == css]


def centres(root: ET.Element, css: str) -> list[tuple[float, float]]:
    """Middle of each round marker: its path starts at its left end, 3.5 pixels from there."""
    found = []
    for path in paths(root, css):
        match = re.match(r"M([\d.]+) ([\d.]+)a3.5", path)
        assert match, path
        found.append((float(match[1]) + 3.5, float(match[2])))
    return found


def test_marks_lie_on_their_axes_at_their_values() -> None:
    figure = radar("f", "A title", axes(), [series("ours", 1.0, 0.75, 0.5, 0.0)], spread=SPREAD)
    root = drawn(figure)
    rings = [
        (float(c.get("cx", "")), float(c.get("cy", "")), float(c.get("r", "")))
        for c in root.iter(f"{SVG}circle")
    ]
    x0, y0, inner = rings[0]
    outer = rings[-1][2]
    marks = centres(root, "point series-1")
    # Naive twin: with one series nothing is moved aside, so the four axes run up, right, down and left.
    radii = [inner + share * (outer - inner) for share in (0.0, 0.25, 0.5, 1.0)]
    expected = [(x0, y0 - radii[0]), (x0 + radii[1], y0), (x0, y0 + radii[2]), (x0 - radii[3], y0)]
    for mark, place in zip(marks, expected, strict=True):
        assert mark == pytest.approx(place, abs=0.11)


def test_nothing_is_filled_and_the_caption_says_why() -> None:
    figure = radar("f", "A title", axes(), [series("a", 0.1, 0.2, 0.3, 0.4)], spread=SPREAD)
    root = drawn(figure)
    assert not list(root.iter(f"{SVG}polygon"))
    trace = paths(root, "trace series-1")[0]
    assert "Z" not in trace
    assert ".trace { fill: none" in figure.standalone
    assert "neither the enclosed area nor the shape means anything" in figure.caption


def test_every_axis_prints_its_range_its_scale_and_which_way_is_better() -> None:
    own = [
        Axis(name="perplexity", centre=1000.0, rim=1.0, better=Better.LOWER, log=True),
        Axis(name="throughput", centre=0.0, rim=50.0, better=Better.HIGHER, unit="records/s"),
        Axis(name="memory", centre=1.0, rim=8.0, better=Better.LOWER, unit="GB"),
        Axis(name="seed", centre=0.0, rim=3.0, better=Better.NEITHER),
    ]
    figure = radar("f", "A title", own, [series("a", 10.0, 20.0, 2.0, 1.0)], spread=SPREAD)
    texts = [text.text or "" for text in drawn(figure).iter(f"{SVG}text")]
    for expected in (
        "1000 → 1",
        "log scale",
        "lower is better",
        "higher is better",
        "inward is better",
        "neither is better",
    ):
        assert expected in texts
    assert "0 → 50 records/s" in " ".join(texts)
    assert (
        "Outward is better, but inward is better on memory and neither way is better on seed."
        in figure.caption
    )
    assert "perplexity, 1000 to 1, logarithmic, lower is better" in figure.caption


def test_one_sense_for_all_axes_is_said_so() -> None:
    figure = radar("f", "t", axes(), [series("a", 0.1, 0.2, 0.3, 0.4)], spread=SPREAD)
    assert "Outward is better on every axis." in figure.caption
    worse = radar("f", "t", axes(better=Better.HIGHER), [series("a", 0.1, 0.2, 0.3, 0.4)], spread=SPREAD)
    assert "Mind the direction: inward is better on metric 0, metric 1" in worse.caption
    assert "Outward is better" not in worse.caption


def test_a_missing_value_leaves_a_gap_and_is_named() -> None:
    whole = series("whole", 0.1, 0.2, 0.3, 0.4)
    broken = Series(label="broken", values=(value(0.1), None, value(0.3), Value(estimate=math.inf)))
    root = drawn(figure := radar("f", "t", axes(), [whole, broken], spread=SPREAD))
    assert paths(root, "trace series-1")[0].count("L") == 4
    # The gaps are on both sides of the second and the fourth axis, which leaves nothing to join.
    assert paths(root, "trace series-2")[0] == ""
    assert len(paths(root, "point series-2")) == 2
    assert "No value, so a gap: broken on metric 1; broken on metric 3 (not finite)." in figure.caption
    assert "gap" not in radar("f", "t", axes(), [whole], spread=SPREAD).caption


def test_a_panel_without_values_is_not_drawn_and_is_named() -> None:
    empty = Series(label="never run", values=(None, None, None, None))
    panels = [
        RadarPanel(heading="first", series=(series("a", 0.1, 0.2, 0.3, 0.4),)),
        RadarPanel(heading="second", series=(empty,)),
    ]
    figure = radars("f", "t", axes(), panels, spread=SPREAD, note="Means.")
    assert figure.svg.count("<svg ") == 1
    assert figure.caption.startswith("Means. No values, so no panel: second. ")
    assert "gap" not in figure.caption
    assert [key.label for key in figure.legend if key.label in ("a", "never run")] == ["a"]


def test_whiskers_reach_from_end_to_end_and_their_caption_is_computed() -> None:
    one = Series(
        label="a", values=(value(0.5, 0.25, n=2), value(0.5, n=3), Value(estimate=0.5, n=3), value(0.1, 0.3))
    )
    root = drawn(figure := radar("f", "t", axes(), [one], spread=SPREAD))
    whisker = paths(root, "whisker series-1")[0]
    y0 = float(next(root.iter(f"{SVG}circle")).get("cy", ""))
    start, end = re.findall(r"[ML][\d.]+ ([\d.]+)", whisker)[:2]
    # From 0.25 to 0.75 of the way from 22 to 118 pixels off the centre.
    assert sorted([y0 - float(start), y0 - float(end)]) == pytest.approx([46.0, 94.0], abs=0.11)
    assert f"Whiskers: {SPREAD}; n = 2 to 3" in figure.caption
    assert "1 of the 4 marks have no spread" in figure.caption
    assert "Whiskers cut at the end of an axis, and there without a cap: 1." in figure.caption
    caps = [part.count("M") - 3 for part in [whisker]]
    assert caps == [5]  # Two caps for each of two whiskers, one for the third, whose other end is cut.


def test_a_value_beyond_its_axis_is_said_to_be() -> None:
    figure = radar("f", "t", axes(), [series("a", 5.0, 0.2, 0.3, 0.4)], spread=SPREAD)
    assert "Beyond its axis, and drawn at the end: a on metric 0 (5)." in figure.caption


def test_small_multiples_share_styles_and_axes() -> None:
    panels = [
        RadarPanel(heading="epsilon 1 to 10", series=(series("b", 0.1, 0.2, 0.3, 0.4),)),
        RadarPanel(
            heading="epsilon 10 to 100",
            series=(series("a", 0.1, 0.2, 0.3, 0.4), series("b", 0.5, 0.6, 0.7, 0.8)),
        ),
    ]
    figure = radars("f", "t", axes(), panels, spread=SPREAD)
    assert [key.label for key in figure.legend] == ["b", "a", f"whisker: {SPREAD}"]
    assert figure.svg.count("<svg") == 2
    first, second = figure.svg.split("epsilon 10 to 100", 1)
    assert "series-2" not in first
    assert "series-1" in second
    ids = re.findall(r'id="([^"]+)"', figure.svg)
    assert len(ids) == len(set(ids)) == 4
    assert len(paths(drawn(figure), "trace series-1")) == 2


def test_hostile_names_stay_text() -> None:
    own = [Axis(name=HOSTILE, centre=0.0, rim=1.0, better=Better.HIGHER, unit=HOSTILE), *axes(3)]
    panel = RadarPanel(heading=HOSTILE, series=(series(HOSTILE, 0.1, None, 0.3, 9.0),))
    figure = radars("f", HOSTILE, own, [panel, panel], spread=HOSTILE, note=HOSTILE, place=HOSTILE)
    root = drawn(figure)
    assert not list(root.iter(f"{SVG}script"))
    ET.fromstring(figure.svg)
    assert "<script" not in figure.svg + figure.standalone
    figure.standalone.encode("utf-8")


def test_equal_arguments_give_equal_bytes() -> None:
    twice = [radar("f", "t", axes(), [series("a", 0.1, 0.2, 0.3, 0.4)], spread=SPREAD) for _ in range(2)]
    assert twice[0] == twice[1]


def test_what_does_not_fit_is_refused() -> None:
    good = series("a", 0.1, 0.2, 0.3, 0.4)
    with pytest.raises(InputError, match="axes must be 3 to 9 in number, got 2"):
        radar("f", "t", axes(2), [series("a", 0.1, 0.2)], spread=SPREAD)
    with pytest.raises(InputError, match="must have 3 values, one an axis, got 4"):
        radar("f", "t", axes(3), [good], spread=SPREAD)
    with pytest.raises(InputError, match="labels must differ"):
        radar("f", "t", axes(), [good, good], spread=SPREAD)
    with pytest.raises(InputError, match="series must be 1 to 8 in number, got 9"):
        radar("f", "t", axes(), [series(str(n), 0.1, 0.2, 0.3, 0.4) for n in range(9)], spread=SPREAD)
    with pytest.raises(InputError, match="identifier"):
        radar("../f", "t", axes(), [good], spread=SPREAD)
    with pytest.raises(InputError, match="positive ends"):
        Axis(name="a", centre=0.0, rim=1.0, better=Better.LOWER, log=True)
    with pytest.raises(InputError, match="must be finite and differ"):
        Axis(name="a", centre=1.0, rim=1.0, better=Better.LOWER)


@given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=6),
    st.sampled_from(list(Better)),
)
def test_a_fitted_axis_holds_its_values_and_points_the_better_way(
    numbers: list[float], better: Better
) -> None:
    axis = fitted_axis("a", [value(number, 0.5) for number in numbers], better)
    for number in numbers:
        assert all(axis.holds(end) for end in (number, number - 0.5, number + 0.5))
    assert axis.outward_is_better is (None if better is Better.NEITHER else True)


def test_a_fitted_axis_is_logarithmic_over_decades_only() -> None:
    axis = fitted_axis("a", [value(2.0, 0.5), value(900.0, 100.0)], Better.LOWER)
    assert (axis.log, axis.centre, axis.rim) == (True, 1000.0, 1.0)
    # 30 is half-way between 1 and 1000 in ratio: log10(1000 / 31.6) / 3.
    assert axis.share(math.sqrt(1000.0)) == pytest.approx(0.5)
    assert not fitted_axis("a", [value(2.0), value(30.0)], Better.LOWER, log=False).log
    assert not fitted_axis("a", [value(0.0), value(30.0)], Better.LOWER).log
    bounded = fitted_axis("a", [value(0.97), value(0.5)], Better.HIGHER, bounds=(0.0, 1.0))
    assert (bounded.centre, bounded.rim) == (0.4, 1.0)
    with pytest.raises(InputError, match="no finite value"):
        fitted_axis("a", [None, Value(estimate=math.nan)], Better.LOWER)
    with pytest.raises(InputError, match="positive values"):
        fitted_axis("a", [value(-1.0)], Better.LOWER, log=True)
