"""Shuffled DPSGD's figures: its runs drawn, and Figs. 2 to 4 computed and drawn anew.

The noise of Figs. 3 and 4 is by the paper's accountant, created by its registered name: Theorem 6 per step
(the Gaussian's delta at d = 1), Theorem 2 for the sampling, Theorem 1 for the composition. The paper prints
no batch size but that of the audit and no c', so those are stated. Fig. 2's sums are drawn at the paper's own
number of terms, 1e8, by counts, with a fixed seed, in a few seconds; a second panel has the spread c / sigma
at which Theorem 6 uses the approximation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.accounting.crossings import crossing
from workbench.accounting.events import gaussian_run
from workbench.checks.accountants import Accountant
from workbench.checks.published import PublishedPaper
from workbench.core.registry import create
from workbench.games.consecutive import RUN
from workbench.interfaces import Adjacency, FloatArray
from workbench.reports.papers.shuffled_dp_sgd.audit import SWEEPS, Recovered, claim_of, recovered, swept
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import (
    METHODS,
    Comparison,
    CountedSum,
    LognormalSum,
    SumSample,
    approximate,
    compare,
)
from workbench.reports.papers.shuffled_dp_sgd.paper import epsilons
from workbench.reports.papers.shuffled_dp_sgd.tables import (
    AUDIT,
    GENERATION,
    NON_PRIVATE,
    UTILITY,
    is_claimed,
    places,
    shuffled_less,
)
from workbench.reports.shared.context import Context
from workbench.reports.shared.drawing.charts import (
    ForestRow,
    Line,
    Scales,
    forest_chart,
    line_chart,
)
from workbench.reports.shared.drawing.figures import FigureText, Panel, make_figure, series_css
from workbench.reports.shared.drawing.svg import SeriesChart, ticks_of
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import Setting
from workbench.reports.shared.printed import cell, said
from workbench.studies.report import Cell, Figure, FigureKey, Table, Value

POINTS = 24
"""Stretches of the steps over which a share is averaged."""

MOST_LINES = 4
EXACT, PLACED = "found exactly", "indices right"


def figures(context: Context) -> list[Figure]:
    """All figures: of the study's runs as far as there are any, and those of the paper's formulas."""
    made = [_same_sigma(context), *(_scores(context, part) for part in UTILITY), _sums(context)]
    if context.paper is not None:
        made += [_noise(context, context.paper), _noise_map(context, context.paper)]
    made += [_over_run(context), *(_sweep(context, part) for part in SWEEPS)]
    return [figure for figure in made if figure is not None]


def _words(context: Context, name: str, **facts: Any) -> dict[str, str]:
    """What `report.toml` says of a figure."""
    texts = context.declared.content["figures"][name]
    return {key: context.render(text, **facts).strip() for key, text in texts.items()}


# Runs


def _scores(context: Context, part: str) -> Figure | None:
    """Scores over the claimed epsilon, of the part's first model and dataset that has any."""
    for model, dataset in places(context, [part]):
        lines = []
        for method in context.declared.list("$drawn"):
            place = Setting.of(stands_for=model, dataset=dataset, method=method)
            budgets = context.outcomes.values(part, "epsilon", place)
            values = [context.value(part, place.but(epsilon=epsilon), "score") for epsilon in budgets]
            if any(value is not None for value in values):
                lines.append(Line(label=method, x=tuple(budgets), values=tuple(values)))
        bare = Setting.of(stands_for=model, dataset=dataset, method=NON_PRIVATE)
        level = context.value(part, bare, "score")
        if level is not None and lines:
            lines.append(Line(label=NON_PRIVATE, x=(), values=(level,)))
        if lines:
            words = _words(context, "scores", part=part, model=model, dataset=dataset)
            return line_chart(
                f"scores-{part}",
                words["title"],
                lines,
                Scales(x_name="claimed epsilon", y_name=words["y_name"]),
                spread=context.interval,
                note=words["note"],
                place=words["place"],
            )
    return None


def _same_sigma(context: Context) -> Figure | None:
    """Shuffled DPSGD less DP-SGD at the same sigma, a row each setting."""
    rows = []
    for place, sample in shuffled_less(context):
        of = "BLEU" if place.get("part") == GENERATION else "test accuracy"
        name = f"{place.get('stands_for')}, {place.get('dataset')}, epsilon {place.get('epsilon'):g} ({of})"
        rows.append(ForestRow(label=name, difference=context.mean(sample)))
    words = _words(context, "same-sigma")
    if not rows:
        return None
    return forest_chart(
        "same-sigma-differences",
        words["title"],
        rows,
        x_name="points",
        spread=context.interval,
        note=words["note"],
    )


def _sweep(context: Context, part: str) -> Figure | None:
    file_name, varies, _ = SWEEPS[part]
    rates, lines = swept(context, part), []
    for model in list(dict.fromkeys(model for model, _ in rates))[:MOST_LINES]:
        at = tuple(place for other, place in rates if other == model)
        for word, index in ((EXACT, 0), (PLACED, 1)):
            values = tuple(rates[model, place][index] for place in at)
            lines.append(Line(label=f"{model}, {word}", x=at, values=values))
    if not lines:
        return None
    words = _words(context, "sweep", varies=varies)
    return line_chart(
        f"recovery-{file_name}",
        words["title"],
        lines,
        Scales(x_name=varies, y_name="percent", log_x=all(place > 0 for _, place in rates)),
        spread=words["spread"],
        note=words["note"],
    )


def _over_run(context: Context) -> Figure | None:
    drawn: dict[str, tuple[str, Recovered]] = {}
    for run in filter(is_claimed, context.outcomes.part(AUDIT)):
        recovery = recovered(run, RUN)
        if recovery is not None and recovery.over_run.get("all"):
            drawn.setdefault(run.experiment.tags.get("training", ""), (claim_of(run), recovery))
    lines = []
    for name, recovery in list(drawn.values())[:MOST_LINES]:
        lines.append(_line(f"{name}, {EXACT}", recovery.over_run["all"]))
        lines.append(_line(f"{name}, {PLACED}", recovery.placed_over_run))
    if not lines:
        return None
    words, scales = _words(context, "over-run"), Scales(x_name="step", y_name="percent", log_x=False)
    return line_chart("recovery-over-run", words["title"], lines, scales, spread="", note=words["note"])


def _line(label: str, series: Sequence[float]) -> Line:
    values = np.array(series, dtype=np.float64)
    edges = np.unique(np.linspace(0, values.size, min(POINTS, values.size) + 1).astype(int))
    at, means = [], []
    for first, last in pairwise(edges):
        at.append(float(first + last + 1) / 2.0)
        means.append(Value(estimate=100.0 * float(values[first:last].mean())))
    return Line(label=label, x=tuple(at), values=tuple(means))


# Figs. 3 and 4: the noise of Theorem 6

MAP_EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)

MAP_DIMENSIONS = (1, 10, 10**2, 10**3, 10**4, 10**5, 10**6, 10**7, 10**8, 10**9)

DATASETS = {
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
    """A training run that the paper's Table I lists.

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
        """Sampling probability of a record in a step."""
        return self.batch / self.records

    @property
    def steps(self) -> int:
        """Number of steps T of the training."""
        return -(-self.epochs * self.records // self.batch)


def run_of(paper: PublishedPaper, model: str) -> Run:
    """The training of a model on its dataset of `DATASETS`, at the batch size of the audit."""
    table, dataset = paper.table("table-1-datasets"), DATASETS[model]
    rows = dict.fromkeys(cell.row for cell in table.cells)
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


def curves(paper: PublishedPaper) -> dict[str, tuple[list[float], list[float]]]:
    """sigma / c over Fig. 3's epsilons, shuffled and unshuffled, by model."""
    budgets, runs = epsilons(paper, "figure 3"), {model: run_of(paper, model) for model in DATASETS}
    return {
        model: (
            [noise(run, epsilon, run.dimension) for epsilon in budgets],
            [noise(run, epsilon, 1) for epsilon in budgets],
        )
        for model, run in runs.items()
    }


def noise_grid(
    paper: PublishedPaper,
    budgets: Sequence[float] = MAP_EPSILONS,
    dimensions: Sequence[int] = MAP_DIMENSIONS,
) -> FloatArray:
    """sigma / c of Fig. 4, epsilons down and dimensions across, at ViT's q, T and delta."""
    run = run_of(paper, "ViT")
    return np.array([[noise(run, epsilon, d) for d in dimensions] for epsilon in budgets])


def _noise(context: Context, paper: PublishedPaper) -> Figure:
    """sigma over epsilon, of every model with shuffling and of two without."""
    at, by_model = tuple(epsilons(paper, "figure 3")), curves(paper)
    drawn = [(f"{model}, shuffled", shuffled) for model, (shuffled, _) in by_model.items()]
    drawn += [(f"{model}, unshuffled", by_model[model][1]) for model in ("ViT", "GPT-2-large")]
    words = _words(context, "noise", runs=[run_of(paper, model) for model in DATASETS])
    return line_chart(
        "figure-3",
        words["title"],
        [Line(label=label, x=at, values=tuple(map(_exact, values))) for label, values in drawn],
        Scales(x_name="epsilon of the whole training", y_name="sigma / c", log_y=True),
        spread="",
        note=words["note"],
        place="Fig. 3",
    )


def _exact(value: float) -> Value:
    return Value(estimate=value)


def _noise_map(context: Context, paper: PublishedPaper) -> Figure:
    """sigma over epsilon and the dimension, as tiles."""
    grid = noise_grid(paper)
    words = _words(context, "noise-map", run=run_of(paper, "ViT"))
    chart = SeriesChart(
        identifier="figure-4-map",
        title=words["map"],
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
        power = "1" if dimension == 1 else f"1e{round(math.log10(dimension))}"
        chart.label(chart.left + (j + 0.5) * wide, base + 17, power, "tick", "middle")
    centre = (chart.left + chart.width - chart.right) / 2
    chart.label(centre, chart.height - 8, "dimension d", "axis", "middle")
    chart.y_name("epsilon of the whole training")
    legend = [FigureKey(css="tile", label=words["legend"], shape="plain area")]
    text = FigureText(identifier="figure-4", title=words["title"], caption=words["caption"], place="Fig. 4")
    return make_figure(text, [Panel(svg=chart.svg(), width=chart.width, height=chart.height)], legend)


def _map_in_words(grid: FloatArray) -> str:
    rows = (
        f"epsilon {epsilon:g}: {number(float(row[0]), 3)} at d = 1, {number(float(row[-1]), 3)} at d = "
        f"{MAP_DIMENSIONS[-1]:g}"
        for epsilon, row in zip(MAP_EPSILONS, grid, strict=True)
    )
    return f"{'; '.join(rows)}."


# Fig. 2: sums of lognormals

DRAWS = 3000
"""The paper took 1,000."""

TAIL = 1000
"""Of `CountedSum`: terms that are drawn one by one."""

SEED = 2407


@dataclass(frozen=True, kw_only=True)
class Sums:
    """A sum of lognormals: d terms, the standard deviation of each normal, and its description in words."""

    terms: int
    spread: float
    where: str


def sums_of(paper: PublishedPaper) -> tuple[Sums, Sums]:
    """Fig. 2's sum, and the one of Theorem 6 at the paper's ViT and epsilon 1, whose spread is c / sigma."""
    terms, run = round(said(paper, "figure 2", "dimension").value), run_of(paper, "ViT")
    return (
        Sums(terms=terms, spread=said(paper, "figure 2", "sigma of the normals").value, where="Fig. 2"),
        Sums(terms=terms, spread=1.0 / noise(run, 1.0, run.dimension), where="Theorem 6, ViT at epsilon 1"),
    )


@lru_cache(maxsize=8)
def compared(sums: Sums, confidence: float, draws: int, tail: int) -> Comparison:
    """All approximations against draws, whose terms are drawn one by one up to `tail` (see `CountedSum`)."""
    law = LognormalSum.identical(sums.terms, sums.spread)
    source = CountedSum(law=law, tail=tail)
    return compare(law, seed=SEED, repeats=draws, draws=source, confidence=confidence)


def compared_sums(context: Context) -> list[tuple[Sums, Comparison]]:
    """Both sums compared; empty without the printed numbers."""
    if context.paper is None:
        return []
    return [(sums, compared(sums, context.confidence, DRAWS, TAIL)) for sums in sums_of(context.paper)]


def error_at_low_values(comparison: Comparison, name: str) -> float:
    """Largest distance of an approximation to the draws' distribution function up to their median."""
    logs = comparison.sample.log_sums
    fit = approximate(name, comparison.law, sample=comparison.sample)
    low = logs[: (logs.size + 1) // 2]
    values, below = fit.cdf(low), np.arange(low.size) / logs.size
    return float(np.max(np.maximum(np.abs(values - below), np.abs(values - below - 1.0 / logs.size))))


def far_p(error: float, bound: float, sample: SumSample) -> tuple[float, float]:
    """p-values of "the error is above the bound" and of "it is at most the bound" (small: shown not so).

    The draws' distribution function is within x of that which was drawn from but for a probability of
    2 exp(-2 n x^2), at every n (Massart 1990), which is within the sample's bias of the sum's; an
    approximation's distances, over any values, differ by no more.

    Args:
        error: Largest distance of an approximation to the draws' distribution function.
        bound: That it is held to.
    """
    apart = max(abs(error - bound) - sample.bias, 0.0)
    tail = min(1.0, 2.0 * math.exp(-2.0 * sample.log_sums.size * apart**2))
    return (tail, 1.0) if error < bound else (1.0, tail)


def method_name(method: str) -> str:
    """An approximation as tables call it: authors with their capitals and a dash."""
    words = method.replace("_", " ")
    is_of_authors = method in ("fenton_wilkinson", "schwartz_yeh")
    return words.title().replace(" ", "-") if is_of_authors else words


def _sums_table(context: Context) -> Table | None:
    """Errors of the approximations of Fig. 2, with their intervals."""
    columns, rows = tuple(map(method_name, METHODS)), list[Row]()
    for sums, comparison in compared_sums(context):
        errors = [comparison.errors[name] for name in METHODS]
        values = (Value(estimate=error.estimate, lower=error.lower, upper=error.upper) for error in errors)
        headers = (sums.where, f"{sums.spread:.3g}", f"{sums.terms:g}")
        rows.append((headers, tuple(Cell(ours=value) for value in values)))
    return table(context, "lognormal-sums", rows, columns=columns, draws=DRAWS, seed=SEED)


def _sums(context: Context) -> Figure | None:
    """Distribution functions of both sums and their approximations, a panel each."""
    comparisons = compared_sums(context)
    if not comparisons:
        return None
    panels = [_panel(place, sums, comparison) for place, (sums, comparison) in enumerate(comparisons)]
    names = {name: method_name(name) for name in METHODS}
    legend = [FigureKey(css=series_css(index), label=name) for index, name in enumerate(names.values())]
    words, css = _words(context, "sums", found=comparisons, names=names, draws=DRAWS), series_css(len(names))
    legend.append(FigureKey(css=css, label=words["draws"]))
    legend.append(FigureKey(css=css, label=words["band"], shape="area"))
    text = FigureText(identifier="figure-2", title=words["title"], caption=words["caption"], place="Fig. 2")
    return make_figure(text, panels, legend)


def _panel(place: int, sums: Sums, comparison: Comparison) -> Panel:
    """One sum: curves over log S, standardised by the draws."""
    logs = comparison.sample.log_sums
    centre, scale = float(np.median(logs)), float(np.std(logs))
    across = (comparison.log_sums - centre) / scale
    about = "; ".join(
        f"{method_name(name)}: largest error {number(comparison.errors[name].estimate, 3)}"
        for name in METHODS
    )
    heading = f"{sums.where}: standard deviation {sums.spread:.3g}"
    chart = SeriesChart(identifier=f"figure-2-{place + 1}", title=heading, description=f"{about}.")
    low, high = max(float(across[0]), -4.0), min(float(across[-1]), 6.0)
    x, y = chart.horizontal(low, high), chart.vertical(0.0, 1.0)
    chart.x_axis(x, *ticks_of(x), "log S, standardised")
    chart.y_axis(y, *ticks_of(y), "distribution function")
    kept = (across >= low) & (across <= high)
    places, draws = x(across[kept]), len(METHODS)
    lower, upper = comparison.band
    chart.band(places, y(lower[kept]), y(upper[kept]), draws)
    chart.trace(places, y(comparison.monte_carlo[kept]), draws)
    for index, name in enumerate(METHODS):
        chart.trace(places, y(comparison.curves[name][kept]), index)
    return Panel(svg=chart.svg(), width=chart.width, height=chart.height, heading=heading)


TABLES = {"sums": _sums_table}
