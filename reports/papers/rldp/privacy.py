"""What the paper's tables lack: what each run's noise was worth, and what its controller did."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workbench.accounting.subsampled_gaussian import same_sigma_epsilon
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Sampling
from workbench.reports.papers.rldp.cells import Context, places, scale_notes
from workbench.reports.papers.rldp.layout import (
    JOINT,
    LEDGER,
    METHODS,
    NOISE,
    ONE_ADAPTER,
    OURS,
    PAPER_MODELS,
    RADIUS,
    Setting,
    number_of,
)
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_cells import Row
from workbench.reports.shared.paper_samples import UNIT
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Experiment, Outcome
from workbench.studies.report import Cell, Table, Value

CLAIMED, SPENT, ALONE, TOGETHER, SIGMA = (
    "claimed epsilon",
    "its ledger at the end",
    "certified: one release a step",
    "certified: all adapters",
    "noise multiplier",
)

_CONSTANT = "its noise is constant, and the claim is the ledger's"
_ONE_QUERY = "the number beside it is of all that a step releases"


def privacy_tables(context: Context) -> list[Table]:
    """What was claimed and what the noise was worth; and the controllers."""
    made = (_privacy(context), _controllers(context))
    return [table for table in made if table is not None]


def _privacy(context: Context) -> Table | None:
    rows: list[Row] = []
    for group, model, epsilon in places(context):
        for name in (*METHODS, *context.measured.extras(group)):
            setting = Setting(variant=name, epsilon=epsilon)
            runs = context.measured.runs(group, setting)
            if not runs:
                continue
            done = context.measured.done(group, setting)
            why = context.measured.missing(group, setting)
            cells = (
                _claimed(done, epsilon, why),
                _mean(context, group, setting, LEDGER, why if not done else _CONSTANT),
                _alone(done, why),
                _largest(done, JOINT, why if not done else _together_words(done)),
                _sigma(done, why),
            )
            rows.append(((model, f"{epsilon:g}", name), cells))
    if not rows:
        return None
    return Table(
        id="privacy",
        title="What is claimed, and what the noise was worth",
        row_headers=("model", "epsilon", "method"),
        columns=(CLAIMED, SPENT, ALONE, TOGETHER, SIGMA),
        rows=tuple(rows),
        notes=(
            "Claimed: of all updates, by the paper's own accounting. Its ledger: RLDP's after the last step "
            f"(mean over {UNIT}s; where it is above the claim the run overspent by its own measure).",
            "Certified: upper ends for the noise multipliers that the runs used, had they been fixed "
            f"beforehand, each step one Gaussian query of a Poisson sample; the largest over {UNIT}s. "
            "RLDP's controller reads the records, and pays nothing for it: its true epsilon can be larger "
            "than both columns.",
            "All adapters: a record may add its radius to every adapter's release at once, so the joint "
            "noise multiplier is sigma over the root of their number. Of a baseline all that a step releases "
            "is certified together: of DP-LoRA both factors, whose own noise the last column has; of DC-SGD "
            "the sum, whose noise it has, and the histogram. What a method's claim leaves unpaid stands in "
            "its assumptions (`workbench audit --mechanism NAME`).",
            f"Each epsilon is {_deltas(context)}. Neighbours are those of each claim, in brackets; the "
            "paper's Definition 7.1 replaces a record.",
            *scale_notes(context, PAPER_MODELS),
        ),
        decimals={SPENT: 3, ALONE: 3, TOGETHER: 3, SIGMA: 3},
    )


def _deltas(context: Context) -> str:
    """At which delta the epsilons of the tables hold."""
    runs = (one for group in PAPER_MODELS for one in context.measured.by_group.get(group, ()))
    found = sorted({one.experiment.delta for one in runs if one.experiment.delta is not None})
    return f"at delta {' or '.join(f'{delta:g}' for delta in found)}"


def _claimed(done: list[Outcome], epsilon: float, why: str) -> Cell:
    if not done:
        return Cell(why_blank=why)
    about = {str((one.claim or {}).get("about", "")) for one in done} - {""}
    words = f"{epsilon:g}" + (f" ({', '.join(sorted(about))})" if about else "")
    return Cell(ours=Value(estimate=epsilon, text=words))


def _mean(context: Context, group: str, setting: Setting, name: str, why: str) -> Cell:
    value = context.value(group, setting, name)
    return Cell(why_blank=why) if value is None else Cell(ours=value)


def _together_words(done: list[Outcome]) -> str:
    return "the run has no such number" if any(LEDGER in one.metrics for one in done) else _ONE_QUERY


def _largest(done: list[Outcome], name: str, why: str) -> Cell:
    found = [value for value in (number_of(one, name) for one in done) if usable(value)]
    return Cell(ours=Value(estimate=max(found), n=len(found))) if found else Cell(why_blank=why)


def _alone(done: list[Outcome], why: str) -> Cell:
    """The certified epsilon of the noise as one query a step."""
    found, reasons = [], []
    for one in done:
        own = number_of(one, ONE_ADAPTER)
        worth = own if usable(own) else _constant_epsilon(one)
        if isinstance(worth, str):
            reasons.append(worth)
        else:
            found.append(worth)
    if found:
        return Cell(ours=Value(estimate=max(found), n=len(found)))
    return Cell(why_blank=reasons[0] if reasons else why)


def _constant_epsilon(outcome: Outcome) -> float | str:
    """The certified upper end for a run of constant noise multiplier; the reason where there is none."""
    experiment, noise = outcome.experiment, number_of(outcome, NOISE)
    if experiment.sampling is not Sampling.POISSON:
        return "certified bounds are for Poisson samples"
    if LEDGER in outcome.metrics:
        return "the run has no such number"
    if experiment.delta is None or not usable(noise) or noise <= 0.0:
        return "the run has no noise multiplier"
    return _upper(noise, _rate(experiment), experiment.steps, experiment.delta)


@lru_cache(maxsize=256)
def _upper(noise: float, rate: float, steps: int, delta: float) -> float | str:
    try:
        return same_sigma_epsilon(
            noise_multiplier=noise, sampling_probability=rate, steps=steps, delta=delta
        ).upper
    except UnsupportedError as error:
        return str(error)


def _rate(experiment: Experiment) -> float:
    from workbench.studies.setup import setup_of

    return setup_of(experiment).sampling_probability


def _sigma(done: list[Outcome], why: str) -> Cell:
    """Mean of the noise multipliers that were used, with their range where they vary."""
    values = [value for one in done for value in one.traces.get(NOISE, ()) if usable(value)]
    values = values or [value for value in (number_of(one, NOISE) for one in done) if usable(value)]
    if not values:
        return Cell(why_blank=why if not done else "the run has no noise multiplier")
    low, high, mean = min(values), max(values), float(np.mean(values))
    same = high - low <= 1e-9 * high
    text = "" if same else f"{mean:.3f} ({number(low, 3)} to {number(high, 3)})"
    return Cell(ours=Value(estimate=mean, text=text))


PHASE = 0.15
"""Share of the steps that section 4.1 calls exploratory."""

RISE, FALL, WIDER, LATE, LAST = (
    "rise of sigma in the first 15 %",
    "fall from the largest to the last sigma, percent",
    "mean radius after 15 % over the first",
    "mean radius at the end over that after 15 %",
    "mean radius at the end",
)


def rise(outcome: Outcome, share: float = PHASE) -> float:
    """Largest noise multiplier of the first part of a run, less the first; NaN without a trace."""
    sigma = outcome.traces.get(NOISE, ())
    if not sigma:
        return float("nan")
    return max(sigma[: _phase(len(sigma), share)]) - sigma[0]


def fall(outcome: Outcome) -> float:
    """By how many percent the last noise multiplier is below the largest; NaN without a trace."""
    sigma = outcome.traces.get(NOISE, ())
    return 100.0 * (1.0 - sigma[-1] / max(sigma)) if sigma else float("nan")


def widening(outcome: Outcome, share: float = PHASE) -> float:
    """Mean radius after the first part of a run over the first; NaN without a trace."""
    radii = outcome.traces.get(RADIUS, ())
    return radii[_phase(len(radii), share) - 1] / radii[0] if radii and radii[0] > 0 else float("nan")


def late(outcome: Outcome) -> float:
    """Mean radius at the end over that after the first part of a run; NaN without a trace."""
    radii = outcome.traces.get(RADIUS, ())
    if not radii:
        return float("nan")
    early = radii[_phase(len(radii), PHASE) - 1]
    return radii[-1] / early if early > 0 else float("nan")


def last_radius(outcome: Outcome) -> float:
    """Mean radius at the end of a run; NaN without a trace."""
    radii = outcome.traces.get(RADIUS, ())
    return radii[-1] if radii else float("nan")


def _phase(steps: int, share: float) -> int:
    return max(1, round(share * steps))


_BEHAVIOUR = {RISE: rise, FALL: fall, WIDER: widening, LATE: late, LAST: last_radius}


def _controllers(context: Context) -> Table | None:
    rows: list[Row] = []
    for group, model, epsilon in places(context):
        for name in OURS:
            setting = Setting(variant=name, epsilon=epsilon)
            if not context.measured.runs(group, setting):
                continue
            cells = []
            for of in _BEHAVIOUR.values():
                sample = context.measured.computed(group, setting, of)
                cells.append(
                    Cell(why_blank=sample) if isinstance(sample, str) else Cell(ours=context.mean(sample))
                )
            rows.append(((model, f"{epsilon:g}", name), tuple(cells)))
    if not rows:
        return None
    return Table(
        id="controller",
        title="What the controller did (Figs. 5 to 8)",
        row_headers=("model", "epsilon", "method"),
        columns=tuple(_BEHAVIOUR),
        rows=tuple(rows),
        notes=(
            "The paper says: sigma rises by up to 0.3 in the first 15 % of the steps and falls by 8 to 12 % "
            "over the rest; radii widen 1.6 to 2.4 times in the first 15 % and are tightened then. Radius: "
            "the mean over adapters; the first are those of the warm-up. Where no decision is made in the "
            "first 15 %, what stands there is the warm-up's doing and not the controller's.",
            *scale_notes(context, PAPER_MODELS),
        ),
        decimals={RISE: 4, FALL: 2, WIDER: 2, LATE: 2, LAST: 3},
    )
