"""What a mechanism of candidate subsets did over its releases: means over many trainings, a small plot "
"each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.core.keys import JSON
from workbench.interfaces import FloatArray
from workbench.reports.shared.numbers import number
from workbench.reports.shared.plots import Plot
from workbench.reports.shared.svg import Chart, nice_ticks

_CURVES = (
    ("entropy", "Posterior entropy", "Entropy, nats", "entropy of the exact posterior over the candidates"),
    ("budget", "Budget used", "Nats charged", "nats that the ledger has charged so far"),
    ("unanimity", "Unanimity", "Share of trainings", "share of trainings in which the candidates agree"),
)
_FLAT = 1e-6
"""Share of its size by which a curve may move and still counts as flat: the record rounds to a millionth."""


def step_plots(curves: Mapping[str, Sequence[JSON]]) -> tuple[Plot, ...]:
    """A plot for each curve that there is.

    Args:
        curves: `entropy`, `budget` and `unanimity`, one number a release each.
    """
    return tuple(
        _plot(f"steps-{name}", title, unit, says, np.array([float(value) for value in curves[name]]))
        for name, title, unit, says in _CURVES
        if len(curves.get(name, ())) > 0
    )


def _plot(identifier: str, title: str, unit: str, says: str, values: FloatArray) -> Plot:
    first, last = float(values[0]), float(values[-1])
    spread, size = float(np.ptp(values)), max(float(np.abs(values).max()), 1.0)
    moved = f"{number(first)} after the first, {number(last)} after the last"
    if spread <= _FLAT * size:
        moved = f"{number(last)} after each of them"
    about = f"{title} over {values.size} releases, mean over trainings: {says}; {moved}."
    chart = Chart(identifier=identifier, title=title, description=about, height=220.0)
    margin = 0.06 * spread if spread > _FLAT * size else 0.05 * size
    x = chart.horizontal(0.5, values.size + 0.5)
    lower = float(values.min()) - margin
    y = chart.vertical(
        min(lower, 0.0) if identifier != "steps-entropy" else lower, float(values.max()) + margin
    )
    x_ticks = [tick for tick in nice_ticks(1, values.size + 0.5) if tick >= 1 and tick == int(tick)]
    y_ticks = nice_ticks(y.lower, y.upper, 4)
    chart.x_axis(x, x_ticks, [number(tick) for tick in x_ticks], "Release")
    chart.y_axis(y, y_ticks, [number(tick) for tick in y_ticks], unit)
    across = x(np.arange(1, values.size + 1, dtype=np.float64))
    chart.line(across, y(values), "curve smooth")
    if values.size == 1:
        chart.dot(float(across[0]), y.at(last), "mark")
    return Plot(svg=chart.svg(), legend=(), caption=about)
