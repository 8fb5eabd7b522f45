"""Attacks on records at equal utility: PACZero-MI against DPZero at the epsilon that its nats are set beside.

A method that learns less gives less away, so attacks compare where both learn equally well. Two trainings are
set beside each other where their promises allow nearly as many right guesses at even odds (PACZero, section
4.1); whether they are equally accurate is measured, and stands beside what the attacks find.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from workbench.reports.papers.paczero.cells import Context, Row, blank
from workbench.reports.papers.paczero.game import LIRA, LOSS, allowed_of, crossed_success
from workbench.reports.papers.paczero.layout import DPZERO, MI, OUTSIDE, SCORE, UNIT, Setting
from workbench.reports.shared.beside import has_curve
from workbench.reports.shared.paper_conditions import differences
from workbench.reports.shared.statistics import Sample, mean_interval, value_of
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

COLUMNS = ("test", "equal within", "right guesses, loss", "right guesses, LiRA")
MATCHED = 0.01
"""Promises whose allowed shares of right guesses differ by less are set beside each other."""


def utility_table(context: Context) -> Table | None:
    """DPZero less PACZero-MI, pair by pair; None where no two promises match."""
    rows = [_row(context, ours, theirs) for ours, theirs in _pairs(context)]
    if not rows:
        return None
    level = f"{1.0 - context.confidence:.2g}"
    return Table(
        id="equal-utility",
        title="At equal utility? DPZero less PACZero-MI, at promises that allow as many right guesses",
        row_headers=("first", "less"),
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(
            f"Points of test accuracy, and of right guesses whether a record was trained on; paired over "
            f"{UNIT}s, brackets are the {context.interval}. Equal within: the smallest margin within which "
            f"the two are shown to be equally accurate, by two one-sided t tests at level {level}.",
            "What an attack finds compares at equal utility only: where the accuracies are not shown to be "
            "close, the difference of the guesses may be that of what was learnt.",
        ),
        decimals=dict.fromkeys(COLUMNS, 1),
    )


def _pairs(context: Context) -> list[tuple[Setting, Setting]]:
    """Settings of PACZero-MI and of DPZero outside the claim whose promises match."""
    found = {name: _allowed(context, name) for name in (MI, DPZERO)}
    return [
        (ours, theirs)
        for ours, most in found[MI].items()
        for theirs, other in found[DPZERO].items()
        if abs(most - other) < MATCHED
    ]


def _allowed(context: Context, variant: str) -> dict[Setting, float]:
    """The share of right guesses that each budget of a variant allows."""
    found = {}
    for one in context.measured.settings(OUTSIDE, variant=variant):
        setting = Setting(variant=variant, epsilon=one.epsilon)
        most = allowed_of(_done(context, setting))
        if most is not None:
            found[setting] = most
    return found


def _done(context: Context, setting: Setting) -> list[Outcome]:
    return [one for one in context.measured.runs(OUTSIDE, setting) if one.status is Status.DONE]


def _row(context: Context, ours: Setting, theirs: Setting) -> Row:
    names = f"{DPZERO}, {theirs.epsilon:g} epsilon", f"{MI}, {ours.epsilon:g} nats"
    accuracy = _less(_score, context, ours, theirs)
    cells = [_cell(context, accuracy), _margin(context, accuracy)]
    for attack in (LOSS, LIRA):
        cells.append(_cell(context, _less(partial(_guesses, attack), context, ours, theirs)))
    return names, tuple(cells)


def _less(
    measure: Callable[[Context, Setting], Sample | None], context: Context, ours: Setting, theirs: Setting
) -> Sample | str:
    first, second = measure(context, theirs), measure(context, ours)
    return "a run is missing" if first is None or second is None else differences(first, second)


def _score(context: Context, setting: Setting) -> Sample | None:
    return context.measured.sample(OUTSIDE, setting, SCORE)


def _guesses(attack: str, context: Context, setting: Setting) -> Sample | None:
    """Percent of right guesses by an attack, one a seed."""
    known = {
        one.experiment.seed: crossed_success(one)
        for one in _done(context, setting)
        if one.experiment.attack == attack and has_curve(one)
    }
    return Sample(np.array(list(known.values())), tuple(known), UNIT) if known else None


def _cell(context: Context, found: Sample | str) -> Cell:
    if isinstance(found, str):
        return blank(None, found)
    return Cell(ours=value_of(mean_interval(found, confidence=context.confidence)))


def _margin(context: Context, found: Sample | str) -> Cell:
    """The farther end of the interval of twice the tests' level."""
    if isinstance(found, str):
        return blank(None, found)
    if context.confidence <= 0.75:
        return blank(None, "two tests at such a level show nothing")
    both = mean_interval(found, confidence=2.0 * context.confidence - 1.0)
    if both.lower is None or both.upper is None:
        return blank(None, both.why)
    return Cell(ours=Value(estimate=max(-both.lower, both.upper), n=found.values.size))
