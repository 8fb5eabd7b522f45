"""The planner's figure: the epsilon that a perfect attack's bound reaches, against the number of trials.

It shows how much room an audit had: where the line crosses the claim, so many trials could refute it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from workbench.core.keys import JSON
from workbench.estimation.perfect import ALMOST_ALWAYS, MOST_TRIALS
from workbench.estimation.power import perfect_reach
from workbench.interfaces import FloatArray, GameTerms, Trials
from workbench.reports.shared.drawing.svg import Chart, decades, nice_ticks
from workbench.reports.shared.numbers import number, percent, real
from workbench.reports.shared.pages.plots import Plot
from workbench.studies.report import FigureKey

_BOUNDS = ("one_run", "clopper_pearson_all")
"""Bounds whose reach `workbench.estimation.perfect` knows."""

Kind = tuple[Trials, float, int, float, float, float]
"""Trials, prior, steps, sampling probability, delta and confidence of a bound."""

Dot = tuple[str, int, float]
"""A game, its number of trials, and the epsilon that it showed."""

_STYLES = ("gdp", "pure", "mi")
_COUNTS = (*(count * 10**power for power in range(1, 6) for count in (1, 3)), MOST_TRIALS)
_ROOM = 4
"""The line goes on to so many times the trials played, at least."""


def reach_plot(
    identifier: str, labelled: Sequence[tuple[str, Mapping[str, JSON]]], *, claimed: float
) -> Plot | None:
    """What a perfect attack can show of epsilon against trials, and what each game showed.

    Args:
        labelled: Games of the report's record with their names.
        claimed: The claimed epsilon; NaN where the claim has none.

    Returns:
        The plot; None where no game is decided by a bound of any family with known coins.
    """
    dots, styles, others = list[Dot](), dict[Kind, str](), list[str]()
    for label, attack in labelled:
        kind, bound = _kind(attack), attack["verdict"]["bound"]
        if kind is None or (kind not in styles and len(styles) == len(_STYLES)):
            others.append(label)
            continue
        styles.setdefault(kind, _STYLES[len(styles)])
        dots.append((label, int(bound["n"]), max(real(bound["lower"]), 0.0)))
    if not dots:
        return None
    most = min(_ROOM * max(n for _, n, _ in dots), MOST_TRIALS)
    last = next(place for place, count in enumerate(_COUNTS) if count >= most)
    counts = _COUNTS[max(0, last - 8) : max(last, 4) + 1]
    curves = {kind: np.array([_reached(kind, n) for n in counts]) for kind in styles}
    games = "; ".join(
        f"{label}: {number(n)} trials showed epsilon ≥ {number(lower)}" for label, n, lower in dots
    )
    apart = f" Decided by a bound that has no such line: {', '.join(others)}." if others else ""
    svg, drawn_claim = _drawn(identifier, f"{games}.{apart}", counts, curves, (styles, dots, claimed))
    legend = [
        FigureKey(css=css, label=f"a perfect attack, {_in_words(kind)}") for kind, css in styles.items()
    ]
    legend.append(FigureKey(css="mark", label="a game of this audit", shape="dot"))
    if drawn_claim:
        legend.append(FigureKey(css="claim", label=f"claimed epsilon = {number(claimed)}"))
    caption = (
        f"The bound of a perfect attack reaches its line with probability {percent(ALMOST_ALWAYS)}, over "
        f"coins. Games: {games}.{apart}"
    )
    return Plot(svg=svg, legend=tuple(legend), caption=caption)


def _kind(attack: Mapping[str, JSON]) -> Kind | None:
    """What the reach of a game's deciding bound depends on, but for the number of trials."""
    game, bound = attack["game"], attack["verdict"]["bound"]
    if bound is None or bound["name"] not in _BOUNDS or bound["quantity"] != "epsilon":
        return None
    if game.get("prior_range") is not None or game.get("sequential"):
        return None
    steps, q = int(game.get("steps", 1)), real(game.get("sampling_probability", 1.0))
    trials, prior = Trials(game["trials"]), real(game["prior"])
    return trials, prior, steps, q, real(bound["delta"]), real(bound["confidence"])


def _reached(kind: Kind, n: int) -> float:
    trials, prior, steps, q, delta, confidence = kind
    terms = GameTerms(description="", trials=trials, prior=prior, steps=steps, sampling_probability=q)
    return perfect_reach(terms, n, delta=delta, confidence=confidence)


def _drawn(
    identifier: str,
    about: str,
    counts: Sequence[int],
    curves: Mapping[Kind, FloatArray],
    marks: tuple[Mapping[Kind, str], Sequence[Dot], float],
) -> tuple[str, bool]:
    """The drawing, and whether the claim is on it; `marks`: styles of the curves, dots, claimed epsilon."""
    styles, dots, claimed = marks
    chart = Chart(
        identifier=identifier,
        title="Epsilon that a perfect attack reaches against the number of trials",
        description=about,
        height=300.0,
    )
    top = max(float(curve.max()) for curve in curves.values())
    top = max([top, *(lower for _, _, lower in dots if lower < math.inf)]) or 1.0
    if claimed < 3.0 * top:  # A claim far above all that can be shown would flatten the lines.
        top = max(top, claimed)
    top *= 1.08
    played = [n for _, n, _ in dots]
    x = chart.horizontal(float(min(counts[0], *played)), float(max(counts[-1], *played)), log=True)
    y = chart.vertical(0.0, top)
    x_ticks, y_ticks = decades(x.lower, x.upper), nice_ticks(0.0, top, 5)
    chart.x_axis(x, x_ticks, [number(tick) for tick in x_ticks], "Trials")
    chart.y_axis(y, y_ticks, [number(tick) for tick in y_ticks], "Epsilon, at least")
    if claimed <= top:
        chart.line(np.array([x.start, x.end]), np.array([y.at(claimed)] * 2), "curve claim")
    for kind, curve in curves.items():
        chart.line(x(np.array(counts, dtype=np.float64)), y(curve), f"curve {styles[kind]}")
    for _, n, lower in dots:
        chart.dot(x.at(n), y.at(min(lower, top)), "mark")
    return chart.svg(), claimed <= top


def _in_words(kind: Kind) -> str:
    trials, _, steps, q, _, confidence = kind
    scores = "one run" if trials is Trials.ONE_RUN else "independent trials"
    single = f", each a release of {number(steps)}" if steps > 1 or q < 1.0 else ""
    return f"{scores}{single}, {percent(confidence, 4)} confidence"
