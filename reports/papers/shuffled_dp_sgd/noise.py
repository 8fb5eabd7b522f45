"""Shuffled DPSGD's Figs. 3 and 4, drawn anew: the noise of Theorem 6 over epsilon and over the dimension.

Both sides are by the paper's accountant, which is asked by its registered name: Theorem 6 per step (the
Gaussian's delta at d = 1), Theorem 2 for the sampling, Theorem 1 for the composition. The paper prints no
batch size but that of the audit and no c', so those are stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.accounting.crossings import crossing
from workbench.accounting.events import gaussian_run
from workbench.checks.accountants import Accountant
from workbench.checks.published import PublishedPaper
from workbench.core.registry import create
from workbench.interfaces import Adjacency, FloatArray
from workbench.reports.papers.shuffled_dp_sgd.cells import Context
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import cell, epsilons, said
from workbench.reports.shared.charts import Line, Scales, line_chart
from workbench.reports.shared.drawing import SeriesChart
from workbench.reports.shared.figures import FigureText, Panel, make_figure
from workbench.reports.shared.numbers import number
from workbench.studies.report import Figure, FigureKey, Value

MAP_EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MAP_DIMENSIONS = (1, 10, 10**2, 10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
MODELS = {
    "ViT": "CIFAR-100",
    "BERT": "SST-2",
    "RoBERTa": "SST-2",
    "GPT-2": "E2E",
    "GPT-2-large": "E2E",
}
"""The panels; which dataset those of BERT, RoBERTa and GPT-2 have is not printed in the text."""

_LEAST, _MOST = 1e-3, 1e6
_PRECISION = 1e-9


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training of Table I.

    Attributes:
        name: Model and dataset.
        dimension: Trainable parameters, all of which the paper counts as shuffled.
        records, epochs, delta: As printed, 1/(2N) worked out.
        batch: Batch size.
    """

    name: str
    dimension: int
    records: int
    epochs: int
    delta: float
    batch: int

    @property
    def rate(self) -> float:
        """Sampling probability."""
        return self.batch / self.records

    @property
    def steps(self) -> int:
        """T."""
        return -(-self.epochs * self.records // self.batch)


def run_of(paper: PublishedPaper, model: str) -> Run:
    """The training of a model on its dataset of `MODELS`, at the batch size of the audit."""
    table, dataset = paper.table("table-1-datasets"), MODELS[model]
    rows = dict.fromkeys(one.row for one in table.cells)
    row = next(row for row in rows if row[1] == dataset and model in row[0].split(", "))
    records = round(cell(paper, table.id, row, "training records").value)
    printed = table.cell(row, "delta")
    has_delta = printed is not None and not math.isnan(printed.value)
    return Run(
        name=f"{model}, {dataset}",
        dimension=round(1e6 * cell(paper, "table-1", (model,), "trainable parameters").value),
        records=records,
        epochs=round(cell(paper, table.id, row, "epochs").value),
        delta=printed.value if printed is not None and has_delta else 1.0 / (2 * records),
        batch=round(said(paper, "section VI-F", "batch size").value),
    )


@lru_cache(maxsize=4096)
def noise(run: Run, epsilon: float, dimension: int) -> float:
    """A sigma / c at which the paper's accountant comes to meet a budget, by one bisection.

    Its formula is not known to fall with sigma, so there may be others; the mechanism's calibration
    (`workbench.mechanisms.accountants.shuffled_dp_sgd.noise_multiplier_for`) looks for all of them.

    Args:
        run: q, T and delta; its own dimension is not used.
        epsilon: Of the whole training.
        dimension: d; 1 for the unshuffled.
    """
    accountant: Accountant = create("accountant", "shuffled_dp_sgd", dimension=dimension)

    def meets(sigma: float) -> bool:
        event = gaussian_run(noise_multiplier=sigma, sampling_probability=run.rate, steps=run.steps)
        return accountant.epsilon(event, delta=run.delta, adjacency=Adjacency.ADD_REMOVE) <= epsilon

    low, high = _LEAST, 1.0
    while not meets(high) and high < _MOST:
        low, high = high, 2.0 * high
    return crossing(meets, low, high, precision=_PRECISION)


def theorem_6_spread(paper: PublishedPaper) -> float:
    """c / sigma of the paper's ViT at epsilon 1: the spread of the lognormals that Theorem 6 sums there."""
    run = run_of(paper, "ViT")
    return 1.0 / noise(run, 1.0, run.dimension)


def noise_figures(context: Context) -> list[Figure]:
    """Figs. 3 and 4; none without the printed numbers."""
    paper = context.paper
    return [] if paper is None else [_over_epsilon(paper), _over_both(paper)]


def curves(paper: PublishedPaper) -> dict[str, tuple[list[float], list[float]]]:
    """sigma / c over Fig. 3's epsilons, shuffled and unshuffled, by model."""
    found = {}
    for model in MODELS:
        run = run_of(paper, model)
        found[model] = (
            [noise(run, epsilon, run.dimension) for epsilon in epsilons(paper, "figure 3")],
            [noise(run, epsilon, 1) for epsilon in epsilons(paper, "figure 3")],
        )
    return found


def noise_grid(
    paper: PublishedPaper,
    budgets: Sequence[float] = MAP_EPSILONS,
    dimensions: Sequence[int] = MAP_DIMENSIONS,
) -> FloatArray:
    """sigma / c of Fig. 4, epsilons down and dimensions across, at ViT's q, T and delta."""
    run = run_of(paper, "ViT")
    return np.array([[noise(run, epsilon, d) for d in dimensions] for epsilon in budgets])


def _over_epsilon(paper: PublishedPaper) -> Figure:
    places = tuple(epsilons(paper, "figure 3"))
    lines = []
    found = curves(paper)
    for model, (shuffled, _) in found.items():
        values = tuple(Value(estimate=value) for value in shuffled)
        lines.append(Line(label=f"{model}, shuffled", x=places, values=values))
    for model in ("ViT", "GPT-2-large"):
        values = tuple(Value(estimate=value) for value in found[model][1])
        lines.append(Line(label=f"{model}, unshuffled", x=places, values=values))
    runs = [run_of(paper, model) for model in MODELS]
    batch = runs[0].batch
    return line_chart(
        "figure-3",
        "The noise that Theorem 6 asks for, over epsilon",
        lines,
        Scales(x_name="epsilon of the whole training", y_name="sigma / c", log_y=True),
        spread="",
        note=(
            f"{'; '.join(run.name for run in runs)}: d, N, epochs and delta of Table I, batches of {batch} "
            "(the audit's, the only size that is printed), c' = c, accountant shuffled_dp_sgd. Unshuffled: "
            "the same accounting at d = 1."
        ),
        place="Fig. 3",
    )


def _over_both(paper: PublishedPaper) -> Figure:
    grid, run = noise_grid(paper), run_of(paper, "ViT")
    chart = SeriesChart(
        identifier="figure-4-map",
        title="Noise over epsilon and dimension",
        description=_map_in_words(grid),
        width=620.0,
        height=320.0,
    )
    wide = (chart.width - chart.left - chart.right) / len(MAP_DIMENSIONS)
    tall = (chart.height - chart.top - chart.bottom) / len(MAP_EPSILONS)
    low, high = math.log(float(grid.min())), math.log(float(grid.max()))
    for i, epsilon in enumerate(MAP_EPSILONS):
        y = chart.top + i * tall
        chart.label(chart.left - 7, y + tall / 2 + 4, f"{epsilon:g}", "tick", "end")
        for j in range(len(MAP_DIMENSIONS)):
            x = chart.left + j * wide
            shade = (math.log(float(grid[i, j])) - low) / (high - low)
            chart.tile((x, y), (wide, tall), shade)
            chart.label(x + wide / 2, y + tall / 2 + 4, number(float(grid[i, j]), 3), "row", "middle")
    base = chart.height - chart.bottom
    for j, dimension in enumerate(MAP_DIMENSIONS):
        words = "1" if dimension == 1 else f"1e{round(math.log10(dimension))}"
        chart.label(chart.left + (j + 0.5) * wide, base + 17, words, "tick", "middle")
    chart.label(
        (chart.left + chart.width - chart.right) / 2, chart.height - 8, "dimension d", "axis", "middle"
    )
    chart.y_name("epsilon of the whole training")
    legend = [FigureKey(css="tile", label="sigma / c: the darker, the more noise", shape="plain area")]
    text = FigureText(
        identifier="figure-4",
        title="The noise that Theorem 6 asks for, over epsilon and the dimension",
        caption=(
            f"sigma / c at ViT's q = {run.rate:g}, T = {run.steps}, delta {run.delta:g}, c' = c; shades are "
            "logarithmic. d = 1 is the unshuffled. The paper's setting is not printed."
        ),
        place="Fig. 4",
    )
    return make_figure(text, [Panel(svg=chart.svg(), width=chart.width, height=chart.height)], legend)


def _map_in_words(grid: FloatArray) -> str:
    rows = (
        f"epsilon {epsilon:g}: {number(float(row[0]), 3)} at d = 1, {number(float(row[-1]), 3)} at d = "
        f"{MAP_DIMENSIONS[-1]:g}"
        for epsilon, row in zip(MAP_EPSILONS, grid, strict=True)
    )
    return f"{'; '.join(rows)}."
