"""Test perplexity by learning rate: what the one rate of the comparison leaves open.

The paper prints one rate for DPSGD and FERRET and tunes neither. Whether a method teaches a model anything at
a small scale hangs on it, so the study trains a few cells at several rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from workbench.reports.papers.ferret.cells import Context, column
from workbench.reports.papers.ferret.layout import METHODS, RATES, TEST
from workbench.reports.papers.ferret.samples import UNIT
from workbench.reports.papers.ferret.tables import baseline
from workbench.reports.shared import statistics
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome
from workbench.studies.report import Cell, Table, Value


def rates_table(context: Context) -> Table | None:
    """Test perplexity over the untrained base's, by method and learning rate; None without such runs."""
    runs = context.measured.by_group[RATES]
    rates = sorted({one.experiment.learning_rate for one in runs})
    places = sorted(
        {(one.experiment.variant, one.experiment.epsilon) for one in runs},
        key=lambda place: (METHODS.index(place[0]) if place[0] in METHODS else len(METHODS), str(place)),
    )
    if not places:
        return None
    rows = []
    for variant, epsilon in places:
        here = [one for one in runs if (one.experiment.variant, one.experiment.epsilon) == (variant, epsilon)]
        cells = tuple(
            _cell(context, [one for one in here if one.experiment.learning_rate == rate]) for rate in rates
        )
        rows.append(((variant, column(epsilon)), cells))
    columns = tuple(f"rate {rate:g}" for rate in rates)
    counts = sorted({one.experiment.epochs for one in runs})
    return Table(
        id="learning-rates",
        title="Test perplexity after training as a share of that before, by learning rate",
        row_headers=("method", "budget"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            f"Geometric means over {UNIT}s of the test perplexity over the untrained base's, on the same "
            f"records ({', '.join(map(str, counts))} epochs); brackets: {context.interval} of the logarithm. "
            "Below 1 training taught something, above 1 it harmed. The paper prints one rate, 2e-4, for "
            "DPSGD and FERRET, and tunes neither.",
        ),
        decimals=dict.fromkeys(columns, 4),
    )


def _cell(context: Context, runs: Sequence[Outcome]) -> Cell:
    """Geometric mean of a cell over its models; blank where one is not finished."""
    logs: dict[str, list[float]] = {}
    for one in runs:
        base, after = baseline(context, one.experiment.model, TEST), one.metrics.get(TEST, math.nan)
        if base is None or not usable(after):
            return Cell(why_blank="not every run of this cell is finished")
        logs.setdefault(one.experiment.model, []).append(math.log(after / base.estimate))
    if not logs:
        return Cell(why_blank="not in the study")
    sample = Sample(np.array([np.mean(values) for values in logs.values()]), tuple(logs), UNIT)
    found = statistics.value_of(statistics.mean_interval(sample, confidence=context.confidence))
    ends = [None if end is None else math.exp(end) for end in (found.lower, found.upper)]
    return Cell(ours=Value(estimate=math.exp(found.estimate), lower=ends[0], upper=ends[1], n=found.n))
