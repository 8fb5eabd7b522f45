"""Shuffled DPSGD's audit: three adversaries on the same releases, and which permutations are found again.

The games were judged where they were played; here they are shown by claimed epsilon, with a control whose
claim is true. How much of the permutations the tidying adversary found stands in tables of its own: by unit,
over a training, and by learning rate and noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.checks.published import PublishedCell, QualitativeClaim
from workbench.estimation import auc_below_half
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.games.consecutive import RUN, SINGLE, VIEWS
from workbench.reports.papers.shuffled_dp_sgd.tables import (
    AUDIT,
    NOISES,
    RATES,
    SHUFFLED,
    is_claimed,
    printed_rows,
    used_noise,
)
from workbench.reports.shared.conditions import Asked, seen, untestable
from workbench.reports.shared.context import Context, blank
from workbench.reports.shared.findings import listed
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.numbers import number, real
from workbench.reports.shared.outcomes import NOT_HERE
from workbench.reports.shared.paper_cells import NOT_IN_PAPER
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

WHERES = (SINGLE, RUN)
GAMES = tuple(f"{view}, {where}" for view in VIEWS for where in WHERES)
VERDICTS = {
    "REFUTED": "refuted",
    "NOT_REFUTED": "not refuted",
    "UNDERPOWERED": "underpowered",
    "INVALID": "invalid",
}
"""The judge's answers."""

NO_AUDIT = "the run has no judged games"


def _tag(outcome: Outcome, name: str) -> str:
    return outcome.experiment.tags.get(name, "")


def training_of(context: Context, run: Outcome) -> str:
    """Method, and how it was trained where that has a name of its own."""
    method, training = context.outcomes.value(run, "method"), _tag(run, "training")
    name = f"{method}, {training}" if training else method
    return name if is_claimed(run) else f"{name} (control)"


def games_of(outcome: Outcome) -> dict[str, Mapping[str, Any]]:
    """The judged games of a run by `"VIEW, WHERE"`; empty where it has none."""
    if outcome.status is not Status.DONE or outcome.audit is None:
        return {}
    return {f"{game['view']}, {game['where']}": game for game in outcome.audit["games"]}


def _kind(verdict: Mapping[str, Any] | None) -> str:
    kind = "" if verdict is None else str(verdict["kind"])
    return VERDICTS.get(kind, kind.lower().replace("_", " "))


# Bounds and verdicts


class _Headers:
    """Headers of a run's row: training, claimed epsilon, and the seed where there are several."""

    def __init__(self, context: Context, runs: Sequence[Outcome]) -> None:
        self._context = context
        self.several = len({run.experiment.seed for run in runs}) > 1

    def of(self, run: Outcome) -> tuple[str, ...]:
        epsilon = run.experiment.epsilon
        claimed = "none" if epsilon is None else f"{epsilon:g}"
        return (training_of(self._context, run), claimed, *self.with_seed(str(run.experiment.seed)))

    def with_seed(self, seed: str) -> tuple[str, ...]:
        return (seed,) if self.several else ()

    def finished(self, made: Table | None) -> Table | None:
        """The table without the column of seeds where there is one seed."""
        if made is None or self.several:
            return made
        return replace(made, row_headers=(*made.row_headers[:2], *made.row_headers[3:]))


def _audits(context: Context) -> Table | None:
    """Bounds and verdicts of every adversary in both games; None where nothing is printed or audited."""
    runs, theirs = context.outcomes.part(AUDIT), _printed_audits(context)
    headers = _Headers(context, runs)
    rows: list[Row] = [(headers.of(run), _cells(run, theirs)) for run in runs]
    claimed = {run.experiment.epsilon for run in runs if is_claimed(run)}
    for epsilon, cell in theirs.items():
        if epsilon not in claimed:
            row = (SHUFFLED, f"{epsilon:g}", *headers.with_seed(""))
            rows.append((row, _no_games(cell, NOT_HERE)))
    audited = [run.audit for run in runs if games_of(run) and run.audit is not None]
    models = [context.outcomes.value(run, "trained") for run in runs if games_of(run)]
    given = {run.experiment.delta for run in runs if games_of(run)}
    made = table(
        context,
        "table-6",
        rows,
        audited=bool(audited),
        together=[100.0 * level for level in sorted({real(level["confidence"]) for level in audited})],
        each=[100.0 * level for level in sorted({real(level["judged_at"]) for level in audited})],
        deltas=sorted(delta for delta in given if delta is not None),
        models=list(dict.fromkeys(models)),
        has_control=not all(map(is_claimed, runs)),
    )
    return headers.finished(made)


def _printed_audits(context: Context) -> dict[float, PublishedCell]:
    """The audited epsilon by the claimed one."""
    printed = {}
    for row in printed_rows(context, "table-6"):
        claimed, audited = (
            context.printed("table-6", row, f"{name} epsilon") for name in ("theoretical", "audited")
        )
        if claimed is not None and audited is not None:
            printed[claimed.value] = audited
    return printed


def _no_games(printed: PublishedCell | None, why: str) -> tuple[Cell, ...]:
    """The row of a run without games: the printed number is of the last column."""
    empty = Cell(why_blank=f"ours: {why}")
    return (*[empty] * (len(GAMES) + 1), replace(empty, paper=printed))


def _cells(run: Outcome, theirs: Mapping[float, PublishedCell]) -> tuple[Cell, ...]:
    epsilon, games = run.experiment.epsilon, games_of(run)
    printed = theirs.get(epsilon) if epsilon is not None and is_claimed(run) else None
    if not games or run.audit is None:
        return _no_games(printed, run.error or {Status.MISSING: "not run yet"}.get(run.status, NO_AUDIT))
    blind = games.get(GAMES[0])
    value = math.nan if blind is None else real(blind["details"].get("as_printed"))
    missing = "" if printed else "not audited there"
    as_printed = (
        blank(printed, "no such game")
        if math.isnan(value)
        else Cell(paper=printed, ours=Value(estimate=value), why_blank=missing)
    )
    return (*(_game(games.get(name)) for name in GAMES), _together(run.audit["verdict"]), as_printed)


def _game(game: Mapping[str, Any] | None) -> Cell:
    """The lower bound with the game's own verdict."""
    if game is None:
        return Cell(why_blank="ours: the game was not played")
    bound, verdict = game["bound"], game["verdict"]
    if bound is None:
        return Cell(why_blank=f"ours: {_kind(verdict)}, so there is no bound")
    lower = real(bound["lower"])
    words = f", {_kind(verdict)}" if verdict is not None else ""
    value = Value(estimate=lower, text=f"{number(lower, 3)}{words}", n=int(game["n"]))
    return Cell(ours=value, why_blank=NOT_IN_PAPER)


def _together(verdict: Mapping[str, Any] | None) -> Cell:
    if verdict is None:
        return Cell(why_blank="ours: nobody claims anything")
    lower = math.nan if verdict["bound"] is None else real(verdict["bound"]["lower"])
    return Cell(ours=Value(estimate=lower, text=_kind(verdict)), why_blank=NOT_IN_PAPER)


def _areas(context: Context) -> Table | None:
    """How well each statistic tells the canary, judged or not; None where no run says so."""
    runs = context.outcomes.part(AUDIT)
    headers, areas_by_row, below = _Headers(context, runs), dict[tuple[str, ...], dict[str, float]](), []
    for run in runs:
        for name, game in games_of(run).items():
            row = areas_by_row.setdefault((*headers.of(run), str(game["where"])), {})
            row[str(game["view"])] = real(game["auc"]["estimate"])
            details = {str(key): area for key, area in game["details"].items()}
            row |= {key[5:-1]: real(area) for key, area in details.items() if key.startswith("auc (")}
            ends = (real(game["auc"][end]) for end in ("estimate", "lower", "upper"))
            words = auc_below_half(*ends, confidence=real(game["auc"]["confidence"]))
            below += [f"{', '.join(headers.of(run))}, {name}: {words}"] if words else []
    columns = tuple(dict.fromkeys(name for row in areas_by_row.values() for name in row))
    if not columns:
        return None
    missing = Cell(why_blank="ours: it was not looked at, or is alike in all trials")
    rows = [
        (row, tuple(Cell(ours=Value(estimate=areas[name])) if name in areas else missing for name in columns))
        for row, areas in areas_by_row.items()
    ]
    return headers.finished(table(context, "audit-areas", rows, columns=columns, below=below))


# The permutations


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """The share of the permutations that an attack recovered in one game.

    Attributes:
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
    """The share recovered in a game of a run; None where it was not played or nothing was permuted."""
    if outcome.status is not Status.DONE or outcome.audit is None:
        return None
    form = outcome.audit["recovery"].get(where)
    if form is None or not form["placed"]:
        return None
    by_step = form.get("placed_by_step") or {}
    trials = [int(game["n"]) for game in outcome.audit["games"] if game["where"] == where]
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


def _share_value(share: float, n: int, confidence: float) -> Value:
    """A share of independent releases in percent, with Clopper and Pearson's interval."""
    count, error = round(share * n), (1.0 - confidence) / 2.0
    lower, upper = binomial_lower(count, n, error), binomial_upper(count, n, error)
    return Value(estimate=100.0 * share, lower=100.0 * lower, upper=100.0 * upper, n=n)


def claim_of(run: Outcome) -> str:
    """The claim of a run, and how it was trained where that has a name of its own."""
    epsilon, training = run.experiment.epsilon, _tag(run, "training")
    claim = "no budget" if epsilon is None else f"epsilon {epsilon:g}"
    return f"{claim}, {training}" if training else claim


def _recovery(context: Context) -> Table | None:
    """Share of permutations found again, by unit and over training; None where no game says so."""
    rows: list[Row] = []
    for run in filter(is_claimed, context.outcomes.part(AUDIT)):
        games = {where: recovered(run, where) for where in WHERES}
        units = dict.fromkeys(name for game in games.values() if game for name in game.exact)
        for unit in sorted(units, key=lambda unit: unit != "all"):
            name = "the whole permutation" if unit == "all" else unit
            row = (claim_of(run), str(run.experiment.seed), name)
            rows.append((row, _recovery_cells(context, games, unit)))
    return table(context, "recovery", rows)


def _recovery_cells(context: Context, games: Mapping[str, Recovered | None], unit: str) -> tuple[Cell, ...]:
    not_played, cells = Cell(why_blank="ours: the game was not played"), list[Cell]()
    for where, game in games.items():
        if game is None:
            cells += [not_played] * 2
            continue
        exact, placed = game.exact.get(unit, math.nan), game.placed.get(unit, game.mean_placed)
        value = Value(estimate=100.0 * exact, n=game.trials)
        if where == SINGLE:
            value = _share_value(exact, game.n, context.confidence)
        cells += [Cell(ours=value), Cell(ours=Value(estimate=100.0 * placed, n=game.trials))]
    run = games[RUN]
    series = [] if run is None else list(run.over_run.get(unit, ()))
    if run is None or not series:
        missing = not_played if run is None else Cell(why_blank="ours: the record has no steps of it")
        return (*cells, missing, missing)
    quarter = -(-len(series) // 4)
    parts = (series[:quarter], series[-quarter:])
    return (*cells, *(Cell(ours=Value(estimate=100.0 * _mean(part), n=run.trials)) for part in parts))


SWEEPS: dict[str, tuple[str, str, Callable[[Outcome], float]]] = {
    RATES: ("rates", "learning rate", lambda run: run.experiment.learning_rate),
    NOISES: ("noise", "noise multiplier", used_noise),
}
"""By part of the study: the figure's name, what varies, and its value in a run."""


def swept(context: Context, part: str) -> Mapping[tuple[str, float], tuple[Value, Value]]:
    """Shares found exactly and placed, by model and place; releases of several runs are counted together."""
    *_, place_of = SWEEPS[part]
    games: dict[tuple[str, float], list[Recovered]] = {}
    for run in context.outcomes.part(part):
        recovery = recovered(run, SINGLE)
        if recovery is not None and math.isfinite(place_of(run)):
            model = str(context.outcomes.value(run, "trained"))
            games.setdefault((model, place_of(run)), []).append(recovery)
    return {key: _pooled(context, games[key]) for key in sorted(games)}


def _pooled(context: Context, games: Sequence[Recovered]) -> tuple[Value, Value]:
    n = sum(game.n for game in games)
    exact, placed = (
        sum(share * game.n for share, game in zip(shares, games, strict=True)) / n
        for shares in ([game.exact["all"] for game in games], [game.mean_placed for game in games])
    )
    return _share_value(exact, n, context.confidence), Value(estimate=100.0 * placed, n=n)


def _sweeps(context: Context) -> Table | None:
    """Recovery by learning rate and by noise, from one release; None without such runs."""
    rows: list[Row] = [
        ((model, f"{name} {place:.4g}"), (Cell(ours=exact), Cell(ours=placed)))
        for part, (_, name, _) in SWEEPS.items()
        for (model, place), (exact, placed) in swept(context, part).items()
    ]
    by_rate, by_noise = (
        [run for run in context.outcomes.part(RATES) if run.metrics],
        context.outcomes.part(NOISES),
    )
    return table(
        context,
        "recovery-sweeps",
        rows,
        by_rate=bool(by_rate),
        noises=sorted({used_noise(run) for run in by_rate if not math.isnan(used_noise(run))}),
        by_noise=bool(by_noise),
        rates=sorted({run.experiment.learning_rate for run in by_noise}),
    )


TABLES = {"audits": _audits, "areas": _areas, "recovery": _recovery, "sweeps": _sweeps}


# The conclusion


def at_most(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """No adversary's lower bound exceeds the claimed epsilon: the judge's word on all games of each run."""
    return list(
        _at_most(context, dict.fromkeys(float(place["epsilon"]) for place, _ in listed(claim, "pairs")))
    )


def _at_most(context: Context, wanted: Mapping[float, None]) -> Iterator[Asked]:
    for epsilon in wanted:
        runs = [
            run
            for run in context.outcomes.part(AUDIT)
            if is_claimed(run) and run.experiment.epsilon == epsilon
        ]
        if not runs:
            yield Asked(untestable(f"claimed epsilon {epsilon:g}", NOT_HERE))
        for run in runs:
            where = f"{training_of(context, run)}, claimed epsilon {epsilon:g}, seed {run.experiment.seed}"
            verdict = None if not games_of(run) or run.audit is None else run.audit["verdict"]
            kind = "" if verdict is None else str(verdict["kind"])
            if kind in ("REFUTED", "NOT_REFUTED"):
                yield Asked(seen(where, _judged(run, kind), kind == "NOT_REFUTED"))
                continue
            why = run.error or (f"the audit is {VERDICTS[kind]}" if kind in VERDICTS else "not run yet")
            yield Asked(untestable(where, why), not_run=why == "not run yet")


def _judged(run: Outcome, kind: str) -> str:
    """A run's verdict, and by which of its games it is refuted."""
    games = games_of(run)
    by = [name for name, game in games.items() if (game["verdict"] or {}).get("kind") == "REFUTED"]
    if not by:
        return f"{VERDICTS[kind]} by {len(games)} games of three adversaries"
    return f"{VERDICTS[kind]} by {len(by)} of {len(games)} games ({'; '.join(by)})"
