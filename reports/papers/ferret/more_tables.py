"""FERRET's Tables 1 and 3, and what it leaves out: ratios of time, and an advantage that is paid for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from workbench.estimation.clopper_pearson import half_split
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import BoolArray, FloatArray
from workbench.reports.papers.ferret.cells import (
    WALL_CLOCK,
    Context,
    budgets,
    column,
    draw_notes,
    has_budget,
    no_such_budget,
    printed_column,
    scale_notes,
    settings,
)
from workbench.reports.papers.ferret.layout import (
    AUC,
    CEILING,
    COMPARISON,
    DPSGD,
    FIRED,
    FIRING,
    GRANULARITIES,
    GROUP_COUNT,
    HALF,
    HEAD_ROOM,
    MAX,
    NON_DP,
    QUARTER,
    SECONDS,
    TWO,
    Setting,
    plural_epochs,
)
from workbench.reports.papers.ferret.samples import UNIT, geometric, logarithm, over_models
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import beside, has_curve
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import Sample, matched
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

HEAD_ROOM_EPSILON = 0.5
"""Of Table 3."""

ALPHABETS = {"signSGD": 2, "QSGD": 256, "DP-SIGNSGD": 2, "FERRET": 2}
"""Values that a released update may take: signs, or QSGD's levels at the most bits that Table 1 allows."""

BITS = "bits per update"


def compression_table(context: Context) -> Table:
    """Table 1, computed columns: bits a released update, and what our runs released."""
    shown = context.published("table-1")
    columns = (BITS, "granularity", "groups G", "signs released a step", "mask entropy, bits a step")
    epsilons = [epsilon for epsilon in budgets(context.measured) if epsilon is not None]
    middle = HEAD_ROOM_EPSILON if HEAD_ROOM_EPSILON in epsilons else epsilons[0]
    last = max(context.measured.epochs(), default=0)
    rows = []
    for method, levels in ALPHABETS.items():
        coordinate = method != "FERRET"
        granularity = Value(estimate=math.nan, text="coordinate" if coordinate else "group")
        cells = [
            context.cell("table-1", ((method,), BITS), Value(estimate=math.log2(levels))),
            context.cell("table-1", ((method,), "granularity"), granularity),
        ]
        why = (
            "one update a parameter, and no mask: not trained here"
            if coordinate
            else "differs by grouping: see the rows below"
        )
        rows.append(((method,), (*cells, *[Cell(why_blank=why)] * 3)))
    for variant in GRANULARITIES:
        setting = Setting(variant=variant, epochs=last, epsilon=middle)
        runs = [one for one in _anywhere(context, setting) if one.status is Status.DONE and _released(one)]
        if not runs:
            continue
        bits = beside(None, Value(estimate=math.log2(ALPHABETS["FERRET"])), why="not printed by grouping")
        group = beside(None, Value(estimate=math.nan, text="group"), why="not printed by grouping")
        rates = [_per_model(runs, count) for count in (_groups, _signs_a_step, _mask_bits_a_step)]
        rows.append(
            ((variant,), (bits, group, *(Cell(ours=one, why_blank="not in the paper") for one in rates)))
        )
    return Table(
        id="table-1",
        title="Bits of an update",
        place=shown.place if shown else "",
        row_headers=("method",),
        columns=columns,
        rows=tuple(rows),
        notes=(
            "Bits per update: log2 of the number of values that a released update takes (QSGD: at most, at "
            "8-bit levels); per coordinate, or per group that fires. Columns of Table 1 that nothing "
            "computes (privacy, analysis) are left out.",
            f"Rows by grouping: our runs at epsilon {middle:g} and {plural_epochs(last)}, mean (least to "
            f"largest) over {UNIT}s. Signs released a step: the firings counted, over T.",
            "Mask entropy: G times the entropy of a Bernoulli(p) coin. It is what the mask would cost if "
            "it were sent; with the shared public seed, from which everybody draws mask and directions, it "
            "costs nothing.",
        ),
        decimals={BITS: 0, "groups G": 1, "signs released a step": 3, "mask entropy, bits a step": 2},
    )


def _anywhere(context: Context, setting: Setting) -> list[Outcome]:
    """Runs of a setting, of the comparison or else of the head-room group."""
    return context.measured.runs(setting) or context.measured.runs(setting, HEAD_ROOM)


def _released(one: Outcome) -> bool:
    return all(usable(one.metrics.get(name, math.nan)) for name in (GROUP_COUNT, FIRED, FIRING))


def _groups(one: Outcome) -> float:
    return one.metrics[GROUP_COUNT]


def _signs_a_step(one: Outcome) -> float:
    return one.metrics[FIRED] / one.experiment.steps


def _mask_bits_a_step(one: Outcome) -> float:
    p = min(max(one.metrics[FIRING], 0.0), 1.0)
    entropy = -sum(q * math.log2(q) for q in (p, 1.0 - p) if q > 0.0)
    return one.metrics[GROUP_COUNT] * entropy


def _per_model(runs: Sequence[Outcome], count: Callable[[Outcome], float]) -> Value:
    """Mean (least to largest) over the models."""
    sample = Sample(
        np.array([count(one) for one in runs]),
        tuple(one.experiment.model for one in runs),
        UNIT,
        tuple(one.experiment.seed for one in runs),
    )
    values = sample.by_unit().values
    mean, least, most = (float(find(values)) for find in (np.mean, np.min, np.max))
    text = number(mean) if least == most else f"{number(mean)} ({number(least)} to {number(most)})"
    return Value(estimate=mean, n=sample.n_units, text=text)


def head_room_table(context: Context) -> Table:
    """Table 3: groups, ceiling, firing probability and AUC at epsilon 0.5, with our G, T and s."""
    shown = context.published("table-3")
    firing = f"firing probability at epsilon {HEAD_ROOM_EPSILON:g}"
    columns = ("groups", "ceiling", firing, AUC)
    rows = []
    for variant in (MAX, HALF, QUARTER, TWO):
        runs = head_room_runs(context, variant)
        cells = []
        for name, metric in zip(columns, (GROUP_COUNT, CEILING, FIRING, AUC), strict=True):
            done = [one for one in runs if one.status is Status.DONE]
            values = [context.measured.value(one, metric) for one in done]
            ours, missing = None, "no part of this run" if not runs else "no run of it is finished"
            if values and all(map(usable, values)):
                ours = _head_room_value(context, done, metric)
            elif done:
                missing = f"{metric} is missing or not finite in a finished run"
            elif any(one.error for one in runs):
                missing = f"failed: {next(one.error for one in runs if one.error)}"
            cells.append(context.cell("table-3", ((variant,), name), ours, missing))
        rows.append(((variant,), tuple(cells)))
    return Table(
        id="table-3",
        title=f"Head-room and observed leakage at epsilon {HEAD_ROOM_EPSILON:g}",
        place=shown.place if shown else "",
        row_headers=("method",),
        columns=columns,
        rows=tuple(rows),
        notes=(
            f"G, ceiling and p* are exact numbers of each model: mean (least to largest) over {UNIT}s. AUC: "
            f"mean with {context.interval}.",
            *draw_notes(context),
            *_scale_of_head_room(context),
        ),
        decimals={"groups": 1, "ceiling": 2, firing: 5, AUC: 3},
    )


def head_room_runs(context: Context, variant: str) -> list[Outcome]:
    """Runs behind a row of Table 3: of the head-room group, else of the comparison's longest training."""
    measured = context.measured
    for group in (HEAD_ROOM, COMPARISON):
        for epochs in reversed(measured.epochs(group)):
            setting = Setting(variant=variant, epochs=epochs, epsilon=HEAD_ROOM_EPSILON)
            if measured.runs(setting, group):
                return measured.runs(setting, group)
    return []


def _head_room_value(context: Context, runs: Sequence[Outcome], metric: str) -> Value:
    if metric != AUC:
        return _per_model(runs, lambda one: context.measured.value(one, metric))
    sample = Sample(
        np.array([context.measured.value(one, AUC) for one in runs]),
        tuple(one.experiment.model for one in runs),
        UNIT,
        tuple(one.experiment.seed for one in runs),
    )
    return over_models(sample, context.confidence).mean


def _scale_of_head_room(context: Context) -> list[str]:
    """T and s of our runs beside the paper's."""
    found = {
        (one.experiment.steps, one.experiment.batch_size / one.experiment.members, one.experiment.epochs)
        for variant in (MAX, HALF, QUARTER, TWO)
        for one in head_room_runs(context, variant)
    }
    words = [
        f"T = {steps}, s = {share:.4g} ({plural_epochs(epochs)})" for steps, share, epochs in sorted(found)
    ]
    table = context.published("table-3")
    theirs = ""
    if table is not None and {"steps", "sampling_probability"} <= set(table.settings):
        theirs = f"; the paper: T = {table.settings['steps']}, s = {table.settings['sampling_probability']}"
    return (
        [f"Ours: {'; '.join(words)}{theirs}. The ceiling depends on T and s by their product alone."]
        if words
        else []
    )


def ratio_table(context: Context) -> Table:
    """Training time over DPSGD's and over the non-private one's, by model on a logarithmic scale."""
    measured = context.measured
    columns = budgets(measured)
    rows = []
    for variant, epochs in settings(measured):
        for base in (DPSGD, NON_DP):
            if variant in (DPSGD, base):
                continue
            cells = tuple(_ratio_cell(context, (variant, base), epochs, epsilon) for epsilon in columns)
            rows.append(((variant, str(epochs), f"over {base}"), cells))
            printed = tuple(_printed_ratio(context, (variant, base), epochs, epsilon) for epsilon in columns)
            rows.append(((variant, str(epochs), f"over {base}, paper's means"), printed))
    return Table(
        id="time-ratios",
        title="Training time as a share of DPSGD's and of non-private training's",
        row_headers=("method", "epochs", "ratio"),
        columns=tuple(map(column, columns)),
        rows=tuple(rows),
        notes=(
            "Ratio of the same epochs, and of the same epsilon where both have one: geometric mean over "
            f"{UNIT}s; brackets: {context.percent} t interval of the mean log ratio over {UNIT}s.",
            "Rows “paper's means”: the quotient of the means that its Table 6 prints, which its largest "
            "model decides. They are computed here, not printed there, and have no interval.",
            WALL_CLOCK,
            *scale_notes(context),
        ),
        decimals=dict.fromkeys(map(column, columns), 3),
    )


def _bases(pair: tuple[str, str], epochs: int, epsilon: float | None) -> tuple[Setting, Setting]:
    variant, base = pair
    return (
        Setting(variant=variant, epochs=epochs, epsilon=epsilon),
        Setting(variant=base, epochs=epochs, epsilon=None if base == NON_DP else epsilon),
    )


def _ratio_cell(context: Context, pair: tuple[str, str], epochs: int, epsilon: float | None) -> Cell:
    measured = context.measured
    first, second = _bases(pair, epochs, epsilon)
    none = no_such_budget(first, has_budget=has_budget(measured, first.variant))
    if none or (second.epsilon is None and second.variant == DPSGD):
        return Cell(why_blank=none or f"{DPSGD} always has a budget")
    samples = []
    for setting in (first, second):
        sample = measured.sample(setting, SECONDS)
        if sample is None or np.min(sample.values) <= 0.0:
            return Cell(why_blank=f"{setting.variant}: {measured.missing(setting, SECONDS)}")
        samples.append(sample)
    found = ratio_of(samples[0], samples[1], context.confidence)
    return Cell(why_blank=f"no {UNIT} has both") if found is None else Cell(ours=found)


def ratio_of(first: Sample, second: Sample, confidence: float) -> Value | None:
    """Geometric mean over units of first over second, with its interval; None where no unit has both."""
    pairs = matched(logarithm(first), logarithm(second))
    if pairs.first is None or pairs.second is None:
        return None
    ratios = Sample(
        np.exp(pairs.first.values - pairs.second.values), pairs.first.units, first.unit, pairs.first.cells
    )
    return geometric(ratios, confidence)


def _printed_ratio(context: Context, pair: tuple[str, str], epochs: int, epsilon: float | None) -> Cell:
    table = context.published("table-6")
    if table is None:
        return Cell(why_blank="no printed numbers")
    cells = [
        table.cell((one.variant, str(one.epochs)), printed_column(one.epsilon))
        for one in _bases(pair, epochs, epsilon)
    ]
    if cells[0] is None or cells[1] is None:
        return Cell(why_blank="not printed")
    return Cell(ours=Value(estimate=cells[0].value / cells[1].value))


def held_out_advantage(scores: FloatArray, members: BoolArray) -> float:
    """TPR less FPR at a threshold chosen on one half of each class and judged on the other, both ways round.

    The halves are drawn by a fixed generator, so that equal scores give the same number.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`; at least two of each class.
    """
    half = half_split(members, np.random.default_rng(0))
    found = []
    for chosen in (half, ~half):
        curve = roc_curve(scores[chosen], members[chosen])
        threshold = curve.thresholds[int(np.argmax(curve.tpr - curve.fpr))]
        guess, truth = scores[~chosen] >= threshold, members[~chosen]
        found.append(float(np.mean(guess[truth]) - np.mean(guess[~truth])))
    return float(np.mean(found))


def paid_advantage_table(context: Context) -> Table:
    """The advantage with its threshold chosen on other records than it is judged on."""
    measured = context.measured
    columns = budgets(measured)
    rows = []
    for variant, epochs in settings(measured):
        cells = []
        for epsilon in columns:
            setting = Setting(variant=variant, epochs=epochs, epsilon=epsilon)
            none = no_such_budget(setting, has_budget=has_budget(measured, variant))
            cells.append(Cell(why_blank=none) if none else _paid_cell(context, setting))
        rows.append(((variant, str(epochs)), tuple(cells)))
    sizes = [one.experiment.members for one in measured.by_group[COMPARISON]]
    smallest = min(sizes, default=0)
    guess = math.sqrt(math.pi / (4.0 * smallest)) if smallest else math.nan
    return Table(
        id="advantage-held-out",
        title="Membership advantage at a threshold that is paid for",
        row_headers=("method", "epochs"),
        columns=tuple(map(column, columns)),
        rows=tuple(rows),
        notes=(
            "The threshold is chosen on a random half of members and non-members and judged on the other "
            "half, both ways round: unlike Table 10 it is zero on average where nothing leaks, and can be "
            "negative.",
            f"With {smallest} members and as many non-members pure guessing shows about {guess:.3f} in "
            "Table 10's way (mean of the one-sided two-sample Kolmogorov-Smirnov distance, for large "
            "samples).",
            f"Mean over {UNIT}s; brackets: {context.interval}.",
            *draw_notes(context),
        ),
        decimals=dict.fromkeys(map(column, columns), 3),
    )


def _paid_cell(context: Context, setting: Setting) -> Cell:
    done = [one for one in context.measured.runs(setting) if one.status is Status.DONE]
    if not done or not all(map(_can_be_halved, done)):
        why = context.measured.missing(setting, AUC) if not done else "a finished run has no scores"
        return Cell(why_blank=why)
    sample = Sample(
        np.array([held_out_advantage(np.array(one.scores), np.array(one.included)) for one in done]),
        tuple(one.experiment.model for one in done),
        UNIT,
        tuple(one.experiment.seed for one in done),
    )
    mean = statistics.value_of(statistics.mean_interval(sample, confidence=context.confidence))
    return Cell(ours=Value(estimate=mean.estimate, lower=mean.lower, upper=mean.upper, n=mean.n))


def _can_be_halved(one: Outcome) -> bool:
    return has_curve(one) and 2 <= sum(one.included) <= len(one.included) - 2
