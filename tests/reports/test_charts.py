"""Lines, strips, forests and ROC curves: drawn where the numbers are, and honest about what is missing."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from workbench.core.errors import InputError
from workbench.reports.shared.drawing.charts import (
    ForestRow,
    Group,
    Line,
    Scales,
    forest_chart,
    line_chart,
    strip_chart,
)
from workbench.reports.shared.drawing.roc import RocSubject, roc_chart
from workbench.studies.report import Figure, Value

SVG = "{http://www.w3.org/2000/svg}"
SPREAD = "95 % t interval over seeds"
HOSTILE = '</text><script>alert(1)</script>&"\x01'
SCALES = Scales(x_name="epsilon", y_name="ROC AUC")


def value(estimate: float, half: float = 0.05, n: int = 3) -> Value:
    return Value(estimate=estimate, lower=estimate - half, upper=estimate + half, n=n)


def line(label: str, estimates: list[float | None], x: list[float] | None = None) -> Line:
    places = x or [10.0**place for place in range(len(estimates))]
    values = tuple(None if one is None else value(one) for one in estimates)
    return Line(label=label, x=tuple(places), values=values)


def paths(figure: Figure, css: str) -> list[str]:
    """Paths of a class in the page's drawing, which has to be well-formed."""
    root = ET.fromstring(figure.svg)
    return [part.get("d", "") for part in root.iter(f"{SVG}path") if part.get("class") == css]


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


def check_files(figure: Figure) -> None:
    """The figure's own file is well-formed, white, styled, with title, legend and caption inside."""
    root = ET.fromstring(figure.standalone)
    words = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert figure.title.split()[0] in words
    for key in figure.legend:
        assert key.label.split()[0] in words
    assert figure.caption.split()[-1] in words
    assert "var(" not in figure.standalone
    assert 'fill="#ffffff"' in figure.standalone
    assert not re.search(r'(href|src|url\()\s*=?\s*"?https?:', figure.standalone)


def test_a_line_runs_through_its_values_on_a_logarithmic_axis() -> None:
    figure = line_chart("f", "Title", [line("a", [0.2, 0.4, 0.6])], SCALES, spread=SPREAD)
    spots = points(paths(figure, "trace series-1")[0])
    # Equal ratios are equal distances, and equal steps are equal heights.
    assert spots[1][0] - spots[0][0] == pytest.approx(spots[2][0] - spots[1][0], abs=0.11)
    assert spots[0][1] - spots[1][1] == pytest.approx(spots[1][1] - spots[2][1], abs=0.11)
    assert spots[0][1] > spots[1][1]
    assert len(paths(figure, "whisker series-1")) == 3
    assert f"Whiskers: {SPREAD}; n = 3 each." in figure.caption
    check_files(figure)


def test_x_is_sorted_and_a_missing_value_breaks_line_and_band() -> None:
    estimates = [0.2, None, 0.3, 0.4, 0.5, 0.6, math.nan]
    x = [1.0, 2.0, 5.0, 4.0, 3.0, 6.0, 7.0]
    figure = line_chart("f", "Title", [line("a", estimates, x)], SCALES, spread=SPREAD)
    trace = paths(figure, "trace series-1")[0]
    assert trace.count("M") == 2
    across = [spot[0] for spot in points(trace)]
    assert across == sorted(across)
    assert len(paths(figure, "cloud series-1")) == 1  # A lone point has no band.
    assert "so a gap: a at 2; a at 7." in figure.caption
    assert "Bands:" in figure.caption


def test_bands_and_whiskers_in_one_drawing_are_both_named() -> None:
    lines = [
        line("a", [0.2, 0.3, 0.4]),
        Line(label="level", x=(), values=(Value(estimate=0.5, lower=0.4, upper=0.6),)),
    ]
    figure = line_chart("f", "Title", lines, SCALES, spread=SPREAD)
    assert f"Bands and whiskers: {SPREAD}" in figure.caption
    assert {f"band: {SPREAD}", f"whisker: {SPREAD}"} <= {key.label for key in figure.legend}
    assert "Whiskers:" in line_chart("f", "Title", lines[:1], SCALES, spread=SPREAD).caption


def test_a_level_without_a_parameter_is_drawn_over_the_whole_width() -> None:
    level = Line(label="fine-tuned", x=(), values=(value(0.9, n=5),))
    figure = line_chart("f", "Title", [line("a", [0.2, 0.4]), level], SCALES, spread=SPREAD)
    (x0, y0), (x1, y1) = points(paths(figure, "trace series-2")[0])
    assert y0 == y1
    assert x1 - x0 > 300
    assert "Without epsilon, and so level: fine-tuned." in figure.caption
    assert "n = 3 for a; n = 5 for fine-tuned" in figure.caption


def test_a_huge_spread_does_not_flatten_the_lines() -> None:
    wild = Line(label="a", x=(1.0, 2.0), values=(value(0.2), Value(estimate=0.4, lower=-1e9, upper=1e9, n=2)))
    figure = line_chart("f", "Title", [wild], SCALES, spread=SPREAD)
    spots = points(paths(figure, "trace series-1")[0])
    assert abs(spots[0][1] - spots[1][1]) > 30


def test_values_off_a_logarithmic_axis_are_gaps() -> None:
    scales = Scales(x_name="epsilon", y_name="perplexity", log_y=True)
    figure = line_chart("f", "Title", [line("a", [10.0, 0.0, 1000.0])], scales, spread=SPREAD)
    assert "No positive finite value, so a gap: a at 10." in figure.caption
    assert "(log scale)" in figure.svg
    with pytest.raises(InputError, match="x must be positive"):
        line_chart("f", "t", [line("a", [1.0], [0.0])], scales, spread=SPREAD)
    with pytest.raises(InputError, match="no finite value"):
        line_chart("f", "t", [line("a", [None, math.nan])], SCALES, spread=SPREAD)
    with pytest.raises(InputError, match="must have 2 values, got 1"):
        Line(label="a", x=(1.0, 2.0), values=(None,))


def test_few_values_are_points_and_many_are_a_violin() -> None:
    generator = np.random.default_rng(1)
    groups = [
        Group(label="few", values=(0.1, 0.2, 0.4)),
        Group(label="many", values=tuple(generator.normal(size=200))),
        Group(label="broken", values=(math.nan, math.inf, 0.5)),
    ]
    figure = strip_chart("f", "Title", groups, x_name="ROC AUC", unit="one seed")
    small = re.findall(r'class="small series-(\d)"', figure.svg)
    assert (small.count("1"), small.count("2"), small.count("3")) == (3, 0, 1)
    assert len(paths(figure, "cloud series-2")) == 1
    assert not paths(figure, "cloud series-1")
    assert "few 3; many 200; broken 1" in figure.caption
    assert "Points not drawn, for there are too many: many." in figure.caption
    assert "2 of broken" in figure.caption
    check_files(figure)


def test_the_median_of_a_strip_is_where_it_should_be() -> None:
    figure = strip_chart("f", "t", [Group(label="a", values=(0.0, 1.0, 10.0))], x_name="x", unit="one seed")
    ((x0, _), (x1, _)) = points(paths(figure, "middle")[0])
    spots = sorted(float(x) for x in re.findall(r'class="small series-1" cx="([\d.]+)"', figure.svg))
    assert x0 == x1 == pytest.approx(spots[1], abs=0.11)


def test_equal_values_draw_without_a_density_of_zero_width() -> None:
    figure = strip_chart("f", "t", [Group(label="a", values=(0.5,) * 40)], x_name="x", unit="one seed")
    assert "nan" not in figure.svg.lower().replace("nanometre", "")


def test_a_forest_counts_the_intervals_that_exclude_zero() -> None:
    rows = [
        ForestRow(label="apart", difference=value(0.3, 0.1)),
        ForestRow(label="touching", difference=value(0.1, 0.2)),
        ForestRow(label="endless", difference=Value(estimate=0.1, lower=-math.inf, upper=math.inf, n=2)),
        ForestRow(label="missing", difference=Value(estimate=math.nan)),
    ]
    figure = forest_chart("f", "Title", rows, x_name="difference", spread=SPREAD, margin=0.05)
    assert "1 of 3 intervals exclude zero, not corrected for their number." in figure.caption
    assert "No finite difference: missing." in figure.caption
    assert "n = 2 to 3" in figure.caption
    zero = points(paths(figure, "trace zero")[0])[0][0]
    whiskers = [points(path)[:2] for path in paths(figure, "whisker series-1")]
    assert whiskers[0][0][0] > zero
    assert whiskers[1][0][0] < zero < whiskers[1][1][0]
    left, right = (x for x, _ in points(paths(figure, "margin")[0])[:2])
    assert left < zero < right
    check_files(figure)
    with pytest.raises(InputError, match="margin must be positive and finite, got 0"):
        forest_chart("f", "t", rows, x_name="d", spread=SPREAD, margin=0.0)
    with pytest.raises(InputError, match="no finite difference"):
        forest_chart("f", "t", rows[3:], x_name="d", spread=SPREAD)


def subject(label: str, shift: float, n: int = 300) -> RocSubject:
    generator = np.random.default_rng(7)
    members = generator.random(n) < 0.5
    scores = generator.normal(size=n) + shift * members
    return RocSubject(label=label, scores=tuple(scores.tolist()), included=tuple(members.tolist()))


def test_roc_curves_say_what_they_show() -> None:
    exact = RocSubject(label="exact", scores=(3.0, 2.0, 1.0, 0.0), included=(True, False, True, False))
    figure = roc_chart("f", "Title", [exact, subject("strong", 2.0)])
    # Of the four pairs of a member and a non-member the attack orders three: AUC 3/4.
    assert "exact: 2 members, 2 non-members, AUC 0.75, TPR 50\u202f% at FPR 10\u202f%" in figure.caption
    assert len(paths(figure, "cloud series-2")) == 1
    check_files(figure)
    many = roc_chart("f", "Title", [subject(str(place), 0.3 * place) for place in range(5)])
    assert not paths(many, "cloud series-1")
    assert "No bands, for more than 3 would hide each other." in many.caption
    with pytest.raises(InputError, match="must have members and non-members"):
        roc_chart("f", "t", [RocSubject(label="a", scores=(1.0,), included=(True,))])
    with pytest.raises(InputError, match="must be finite"):
        roc_chart("f", "t", [RocSubject(label="a", scores=(1.0, math.nan), included=(True, False))])
    with pytest.raises(InputError, match="must have 2 entries, got 1"):
        roc_chart("f", "t", [RocSubject(label="a", scores=(1.0, 2.0), included=(True,))])


def test_hostile_names_stay_text() -> None:
    figures = [
        line_chart(
            "a", HOSTILE, [line(HOSTILE, [0.1, None])], Scales(x_name=HOSTILE, y_name=HOSTILE), spread=HOSTILE
        ),
        strip_chart("b", HOSTILE, [Group(label=HOSTILE, values=(1.0,))], x_name=HOSTILE, unit=HOSTILE),
        forest_chart(
            "c", HOSTILE, [ForestRow(label=HOSTILE, difference=value(1.0))], x_name=HOSTILE, spread=HOSTILE
        ),
        roc_chart("d", HOSTILE, [RocSubject(label=HOSTILE, scores=(1.0, 0.0), included=(True, False))]),
    ]
    for figure in figures:
        assert "<script" not in figure.svg + figure.standalone
        ET.fromstring(figure.svg)
        ET.fromstring(figure.standalone)


def test_colour_blind_and_grey_readers_tell_series_apart_by_dash_and_marker() -> None:
    lines = [line(str(place), [0.1 * place, 0.1 * place + 0.1]) for place in range(8)]
    figure = line_chart("f", "Title", lines, SCALES, spread=SPREAD)
    shapes = [key.shape for key in figure.legend[:8]]
    assert len(set(shapes)) == 8
    style = figure.standalone.split("<style>")[1].split("</style>")[0]
    dashes = [
        match[1]
        if (match := re.search(rf"\.trace\.series-{n} {{ stroke-dasharray: ([^;]+);", style))
        else "solid"
        for n in range(1, 9)
    ]
    assert len(set(dashes)) == 8
    with pytest.raises(InputError, match="got 9"):
        line_chart("f", "t", [line(str(n), [0.1]) for n in range(9)], SCALES, spread=SPREAD)
