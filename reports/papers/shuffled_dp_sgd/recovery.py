"""How much of the permutations is found again: by unit, over a training, and by learning rate and noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.games.consecutive import RUN, SINGLE
from workbench.reports.papers.shuffled_dp_sgd.audit import WHERES, is_claimed
from workbench.reports.papers.shuffled_dp_sgd.cells import Context, listed
from workbench.reports.papers.shuffled_dp_sgd.layout import NOISES, RATES, own_model_of, part_of, used_noise
from workbench.reports.shared.charts import Line, Scales, line_chart
from workbench.reports.shared.numbers import real
from workbench.reports.shared.paper_cells import Row
from workbench.reports.shared.paper_samples import UNIT
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Figure, Table, Value

POINTS = 24
"""Stretches of the steps over which a share is averaged."""

MOST_LINES = 4
EXACT, PLACED = "found exactly", "indices right"

_SWEEPS: dict[str, tuple[str, Callable[[Outcome], float]]] = {
    RATES: ("learning rate", lambda one: one.experiment.learning_rate),
    NOISES: ("noise multiplier", used_noise),
}


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """How much of the permutations was found in one game.

    Attributes:
        n: Releases.
        exact, placed: Shares by unit; `exact` has `"all"` for the whole permutation.
        over_run: Share found exactly by step, of each unit and of the whole, `"all"`.
        placed_over_run: Share of indices matched right, by step, a mean over units.
        trials: Releases, or trainings, that are independent.
    """

    n: int
    exact: Mapping[str, float]
    placed: Mapping[str, float]
    over_run: Mapping[str, Sequence[float]]
    placed_over_run: Sequence[float]
    trials: int

    @property
    def mean_placed(self) -> float:
        """Share of indices that are matched right, a mean over units."""
        return _mean(list(self.placed.values()))


def recovered(outcome: Outcome, where: str) -> Recovered | None:
    """What was found in a game of a run; None where it was not played or nothing was permuted."""
    if outcome.status is not Status.DONE or outcome.audit is None:
        return None
    form = outcome.audit["recovery"].get(where)
    if form is None or not form["placed"]:
        return None
    by_step = form.get("placed_by_step") or {}
    trials = [int(one["n"]) for one in outcome.audit["games"] if one["where"] == where]
    return Recovered(
        n=int(form["n"]),
        exact={name: real(value) for name, value in form["exact"].items()},
        placed={name: real(value) for name, value in form["placed"].items()},
        over_run={
            name: [real(value) for value in series]
            for name, series in (form.get("exact_by_step") or {}).items()
        },
        placed_over_run=[
            _mean([real(value) for value in step]) for step in zip(*by_step.values(), strict=True)
        ],
        trials=trials[0],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def share_value(share: float, n: int, confidence: float) -> Value:
    """A share of independent releases in percent, with Clopper and Pearson's interval."""
    count, error = round(share * n), (1.0 - confidence) / 2.0
    lower, upper = binomial_lower(count, n, error), binomial_upper(count, n, error)
    return Value(estimate=100.0 * share, lower=100.0 * lower, upper=100.0 * upper, n=n)


RECOVERY_COLUMNS = (
    "one release: found exactly",
    "one release: indices right",
    "whole run: found exactly",
    "whole run: indices right",
    "first quarter of the run",
    "last quarter of the run",
)
WHOLE = "the whole permutation"


def recovery_table(context: Context) -> Table | None:
    """Share of permutations found again, by unit and over training; None where no game says so."""
    rows: list[Row] = []
    for one in context.measured.audits():
        if not is_claimed(one):
            continue
        games = {where: recovered(one, where) for where in WHERES}
        units = dict.fromkeys(name for game in games.values() if game for name in game.exact)
        for unit in sorted(units, key=lambda unit: unit != "all"):
            cells = _recovery_cells(context, games, unit)
            shown = WHOLE if unit == "all" else unit
            rows.append(((_claimed(one), str(one.experiment.seed), shown), cells))
    if not rows:
        return None
    return Table(
        id="recovery",
        title="Permutations that the tidying adversary found again, percent",
        row_headers=("claimed", UNIT, "unit"),
        columns=RECOVERY_COLUMNS,
        rows=tuple(rows),
        notes=(
            "Found exactly: share of releases in which the whole of a unit's permutation was found. Indices "
            f"right: share of its indices. Brackets: {context.percent} Clopper-Pearson interval over "
            "releases, which are independent in the game of one release; those of one training are not, and "
            "have none: n counts trainings there.",
            "Quarters: share found exactly in the first and in the last quarter of the steps of a run, of a "
            "unit's permutation or of the whole.",
        ),
        decimals=dict.fromkeys(RECOVERY_COLUMNS, 1),
    )


def _recovery_cells(context: Context, games: Mapping[str, Recovered | None], unit: str) -> tuple[Cell, ...]:
    cells = []
    for where in WHERES:
        game = games[where]
        if game is None:
            cells += [Cell(why_blank="ours: the game was not played")] * 2
            continue
        exact, placed = game.exact.get(unit, math.nan), game.placed.get(unit, game.mean_placed)
        single = where == WHERES[0]
        cells.append(
            Cell(
                ours=share_value(exact, game.n, context.confidence)
                if single
                else Value(estimate=100.0 * exact, n=game.trials)
            )
        )
        cells.append(Cell(ours=Value(estimate=100.0 * placed, n=game.trials)))
    run = games[WHERES[1]]
    series = [] if run is None else list(run.over_run.get(unit, ()))
    if run is None or not series:
        why = "ours: the game was not played" if run is None else "ours: the record has no steps of it"
        return (*cells, *[Cell(why_blank=why)] * 2)
    quarter = -(-len(series) // 4)
    parts = (series[:quarter], series[-quarter:])
    return (*cells, *(Cell(ours=Value(estimate=100.0 * _mean(part), n=run.trials)) for part in parts))


def _claimed(one: Outcome) -> str:
    """The claim of a run, and how it was trained where that has a name of its own."""
    epsilon, part = one.experiment.epsilon, part_of(one.experiment)
    claim = "no budget" if epsilon is None else f"epsilon {epsilon:g}"
    return f"{claim}, {part}" if part else claim


def sweep_table(context: Context) -> Table | None:
    """Recovery by learning rate and by noise, from one release; None without such runs."""
    rows: list[Row] = []
    models: dict[str, None] = {}
    for part, (name, _) in _SWEEPS.items():
        for (model, place), (exact, placed) in _swept(context, part).items():
            models[model] = None
            rows.append(((model, f"{name} {place:.4g}"), (Cell(ours=exact), Cell(ours=placed))))
    if not rows:
        return None
    columns = (EXACT, PLACED)
    return Table(
        id="recovery-sweeps",
        title="Permutations found again from one release, by learning rate and by noise, percent",
        row_headers=("model", "at"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            "Found exactly: share of releases whose whole permutation was found, with its "
            f"{context.percent} Clopper-Pearson interval over releases. Indices right: share of the indices "
            "of all units.",
            _held(context),
        ),
        decimals=dict.fromkeys(columns, 1),
    )


def _held(context: Context) -> str:
    """What was held where the other was varied."""
    rates = [one for one in context.measured.audits(RATES) if one.metrics]
    noises = context.measured.audits(NOISES)
    parts = []
    if rates:
        known = sorted({used_noise(one) for one in rates if not math.isnan(used_noise(one))})
        parts.append(f"noise multiplier {listed(known)} where the learning rate varies")
    if noises:
        parts.append(
            f"learning rate {listed(sorted({one.experiment.learning_rate for one in noises}))} where the "
            "noise varies"
        )
    return f"Held: {'; '.join(parts)}."


def _swept(context: Context, part: str) -> Mapping[tuple[str, float], tuple[Value, Value]]:
    """Shares found exactly and placed, by model and place; releases of several runs are counted together."""
    _, where = _SWEEPS[part]
    games: dict[tuple[str, float], list[Recovered]] = {}
    for one in context.measured.audits(part):
        found = recovered(one, SINGLE)
        if found is not None and math.isfinite(where(one)):
            games.setdefault((own_model_of(one.experiment), where(one)), []).append(found)
    return {key: _pooled(context, games[key]) for key in sorted(games)}


def _pooled(context: Context, games: Sequence[Recovered]) -> tuple[Value, Value]:
    n = sum(game.n for game in games)
    exact, placed = (
        sum(share * game.n for share, game in zip(shares, games, strict=True)) / n
        for shares in ([game.exact["all"] for game in games], [game.mean_placed for game in games])
    )
    return share_value(exact, n, context.confidence), Value(estimate=100.0 * placed, n=n)


def recovery_figures(context: Context) -> list[Figure]:
    """Recovery over the steps of a run, and by learning rate and noise, as far as there are runs."""
    made = [_over_run(context), *(_sweep(context, part) for part in _SWEEPS)]
    return [figure for figure in made if figure is not None]


def _sweep(context: Context, part: str) -> Figure | None:
    name, _ = _SWEEPS[part]
    found = _swept(context, part)
    models = list(dict.fromkeys(model for model, _ in found))[:MOST_LINES]
    lines = []
    for model in models:
        places = [place for own, place in found if own == model]
        for word, index in ((EXACT, 0), (PLACED, 1)):
            values = tuple(found[model, place][index] for place in places)
            lines.append(Line(label=f"{model}, {word}", x=tuple(places), values=values))
    if not lines:
        return None
    return line_chart(
        f"recovery-{part}",
        f"Permutations found again, by {name}",
        lines,
        Scales(x_name=name, y_name="percent", log_x=all(place > 0 for _, place in found)),
        spread=f"{context.percent} Clopper-Pearson interval over releases (of those found exactly)",
        note="From one release, by the tidying adversary.",
    )


def _over_run(context: Context) -> Figure | None:
    drawn: dict[str, tuple[str, Recovered]] = {}
    for one in context.measured.audits():
        found = recovered(one, RUN) if is_claimed(one) else None
        if found is not None and found.over_run.get("all"):
            drawn.setdefault(part_of(one.experiment), (_claimed(one), found))
    lines = []
    for name, found in list(drawn.values())[:MOST_LINES]:
        lines.append(_line(f"{name}, {EXACT}", found.over_run["all"]))
        lines.append(_line(f"{name}, {PLACED}", found.placed_over_run))
    if not lines:
        return None
    return line_chart(
        "recovery-over-run",
        "Permutations found again over the steps of a training",
        lines,
        Scales(x_name="step", y_name="percent", log_x=False),
        spread="",
        note=(
            "By the tidying adversary, in all trainings of the game of whole runs, averaged over stretches "
            'of steps; of each kind of training the first run, table "recovery" has all.'
        ),
    )


def _line(label: str, series: Sequence[float]) -> Line:
    values = np.array(series, dtype=np.float64)
    edges = np.unique(np.linspace(0, values.size, min(POINTS, values.size) + 1).astype(int))
    places, means = [], []
    for first, last in pairwise(edges):
        places.append(float(first + last + 1) / 2.0)
        means.append(Value(estimate=100.0 * float(values[first:last].mean())))
    return Line(label=label, x=tuple(places), values=tuple(means))
