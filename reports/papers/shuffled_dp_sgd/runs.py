"""Numbers of a Shuffled DPSGD run, and what is compared over runs of one seed.

A seed draws the records, the model's start, the samples, the noise and the permutations: runs of one seed
that differ in the method alone share records and start, and are compared as pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from workbench.accounting.bounds import Bounds
from workbench.accounting.subsampled_gaussian import same_sigma_epsilon
from workbench.core.errors import UnsupportedError
from workbench.reports.shared.conditions import differences
from workbench.reports.shared.context import Context
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import Number, Parts, Setting
from workbench.reports.shared.statistics import Sample, mean_interval
from workbench.studies.experiments import Outcome, Status

GENERATION = "generation"
UTILITY = ("vision", "classification", GENERATION)
"""Parts of the study: Tables III to V."""

INVARIANCE, OVERHEAD = "invariance", "overhead"
TIMED = (OVERHEAD, INVARIANCE)
"""Parts whose runs are timed; the first that has any."""

AUDIT, RATES, NOISES = "audit", "audit by rate", "audit by noise"

NON_PRIVATE, GHOST, SHUFFLED, SAME_SIGMA = "Non-private", "Ghost", "Shuffled DPSGD", "DPSGD at the same sigma"
NON_PRIVATE_SHUFFLED, TWIN, TWIN_SHUFFLED = "Non-private, shuffled", "Twin, unshuffled", "Twin, shuffled"
TWINS = {NON_PRIVATE_SHUFFLED: NON_PRIVATE, TWIN_SHUFFLED: TWIN}
"""Shuffled methods of Table II, and what each is compared with."""

PLAN = ("members", "learning_rate", "epochs", "delta", "batch_size", "steps")
"""Fields of an experiment that stand in a table."""


def _metric(name: str, outcome: Outcome, factor: float = 1.0) -> float:
    return factor * float(outcome.metrics.get(name, math.nan))


def _loss(outcome: Outcome) -> float:
    """Mean loss on held-out records, nats."""
    perplexity = _metric("test_perplexity_after", outcome)
    return math.log(perplexity) if perplexity > 0 else math.nan


def _score(outcome: Outcome) -> float:
    """BLEU of generated texts, else accuracy in percent."""
    is_text = "test_bleu_after" in outcome.metrics
    return NUMBERS["bleu" if is_text else "accuracy"](outcome)


def _shuffling_share(outcome: Outcome) -> float:
    """Percent of a training's steps that shuffling takes, timed inside the steps."""
    parts = ("shuffling_seconds", "training_seconds")
    shuffling, training = (float(outcome.cost.get(part, math.nan)) for part in parts)
    return 100.0 * shuffling / training if training > 0 else math.nan


def _moved_share(outcome: Outcome) -> float:
    share = _metric("shuffled_share", outcome)
    return 100.0 * share if share > 0.0 else math.nan  # A run that permuted nothing says nothing.


def _planned(field: str, outcome: Outcome) -> float:
    value = getattr(outcome.experiment, field)
    return math.nan if value is None else float(value)


def used_noise(outcome: Outcome) -> float:
    """The smallest noise multiplier of any weight: sigma_0 where Shuffled DPSGD fell back to DP-SGD."""
    least = _metric("least_noise_multiplier", outcome)
    return _metric("noise_multiplier", outcome) if math.isnan(least) else least


NUMBERS: Mapping[str, Number] = {
    "accuracy": partial(_metric, "test_accuracy_after", factor=100.0),
    "bleu": partial(_metric, "test_bleu_after"),
    "meteor": partial(_metric, "test_meteor_after", factor=100.0),
    "METEOR, 0 to 1": partial(_metric, "test_meteor_after"),
    "loss": _loss,
    "score": _score,
    "step seconds": lambda one: float(one.cost.get("training_seconds", math.nan)) / one.experiment.steps,
    "shuffling share": _shuffling_share,
    "moved share": _moved_share,
    "millions": lambda one: _metric("dimension", one) / 1e6,
    "used noise": used_noise,
    "c' / c": lambda one: _metric("batch_clip_norm", one) / _metric("l2_clip_norm", one),
    **{field: partial(_planned, field) for field in PLAN},
}


def certified(outcome: Outcome) -> Bounds | str:
    """Epsilon of a finished run's noise as DP-SGD, add-remove, between certified bounds; or why it has none.

    The event is the Poisson-sampled Gaussian with the run's own noise multiplier, sampling probability,
    number of steps and delta, whose clipped records add at most the clip to a sum. A batch clip is a
    projection on a ball, which takes no two sums further apart, and a permutation follows the noise: neither
    can raise it.
    """
    experiment, noise = outcome.experiment, used_noise(outcome)
    if experiment.delta is None:
        return "the run has no delta"
    if not noise > 0.0:
        return "the run has no noise"
    try:
        return same_sigma_epsilon(
            noise_multiplier=noise,
            sampling_probability=experiment.batch_size / experiment.members,
            steps=experiment.steps,
            delta=experiment.delta,
        )
    except UnsupportedError as error:
        return str(error)


def less(context: Context, parts: Parts, first: Setting, second: Setting, name: str) -> Sample | str:
    """A number of the first less that of the second, paired over seeds; the reason where there is none."""
    samples = []
    for setting in (first, second):
        sample = context.outcomes.sample(parts, setting, name)
        if sample is None:
            return f"{setting.get('method')}: {context.outcomes.missing(parts, setting)}"
        samples.append(sample)
    return differences(*samples)


def twin_differences(context: Context, shuffled: Setting, name: str) -> Sample | str:
    """A number of shuffled runs less that of their unshuffled twins, one a seed; or why there is none."""
    return less(context, INVARIANCE, shuffled, shuffled.but(method=TWINS[shuffled.get("method")]), name)


def distinct(context: Context, parts: Iterable[str], *columns: str) -> list[tuple[Any, ...]]:
    """Values of columns that the runs of some parts have together, each once, part by part."""
    table = context.outcomes.table
    rows = (table.loc[table["part"] == part, list(columns)] for part in parts)
    return list(dict.fromkeys(row for some in rows for row in some.itertuples(index=False, name=None)))


def places(context: Context, parts: Iterable[str]) -> list[tuple[str, str]]:
    """Model and dataset of the runs of some parts, as the paper names them, each once."""
    return [(model, dataset) for model, dataset in distinct(context, parts, "stands_for", "dataset")]


def audits(context: Context, part: str = AUDIT) -> list[Outcome]:
    """Runs of the audit, or of one of its sweeps."""
    return context.outcomes.part(part)


def is_claimed(outcome: Outcome) -> bool:
    """Whether a run is of Shuffled DPSGD, and not of the control."""
    return outcome.experiment.mechanism == "shuffled_dp_sgd"


# Words


def span(values: Iterable[float], digits: int = 3) -> str:
    """The least and the largest of some numbers, in words; one number where they print alike."""
    known = sorted(values)
    ends = [number(known[0], digits), number(known[-1], digits)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def scale(context: Context, *parts: str) -> str:
    """How large our runs are, what stands in for what, and what did not finish."""
    runs = context.outcomes.part(parts)
    trained = distinct(context, parts, "trained", "stands_for")
    return context.render(
        "{% include 'scale' %}",
        runs=len(runs),
        stands=sorted(f"{ours} for {theirs}" for ours, theirs in trained if ours != theirs),
        records=[name for (name,) in distinct(context, parts, "records")],
        sizes=sorted({one.experiment.members for one in runs}),
        steps=sorted({one.experiment.steps for one in runs}),
        count=len({one.experiment.seed for one in runs}),
        lost=sum(one.status is not Status.DONE for one in runs),
    )


def stand_ins(context: Context) -> list[str]:
    """Model and dataset in whose places the twins of Table II stand."""
    return sorted({f"{model} on {dataset}" for model, dataset in places(context, (INVARIANCE,))})


def deltas(context: Context, part: str) -> list[str]:
    """At which deltas the epsilons of a part hold."""
    known = {one.experiment.delta for one in context.outcomes.part(part)}
    return [f"{delta:.4g}" for delta in sorted(delta for delta in known if delta is not None)]


def fallen(context: Context) -> int:
    """How many runs fell back to DP-SGD."""
    return sum(
        context.outcomes.number(one, "falls_back") > 0.0
        for part in UTILITY
        for method in (SHUFFLED, SAME_SIGMA, "Shuffled DPSGD, c' = c")
        for one in context.outcomes.done(part, Setting.of(method=method))
    )


def worth(context: Context) -> list[tuple[float, str]]:
    """Certified epsilons of Theorem 6's sigma, by the claimed one."""
    found = []
    for epsilon in context.outcomes.values(UTILITY, "epsilon"):
        runs = [one for part in UTILITY for one in at_one_sigma(context, part, Setting.of(epsilon=epsilon))]
        bounds = [bound for bound in map(certified, runs) if not isinstance(bound, str)]
        if bounds:
            found.append((epsilon, span(one.upper for one in bounds)))
    return found


def at_one_sigma(context: Context, parts: Parts, place: Setting) -> list[Outcome]:
    """Finished runs at Theorem 6's sigma: those without shuffling, else those with it."""
    done = (context.outcomes.done(parts, place.but(method=method)) for method in (SAME_SIGMA, SHUFFLED))
    return next((runs for runs in done if runs), [])


def shuffled_less(context: Context) -> list[tuple[Setting, Sample]]:
    """Shuffled DPSGD less DP-SGD at the same sigma, points, of each place that has both."""
    found = []
    for part in UTILITY:
        for method, model, dataset, epsilon in distinct(
            context, [part], "method", "stands_for", "dataset", "epsilon"
        ):
            place = Setting.of(stands_for=model, dataset=dataset, epsilon=epsilon)
            first, second = (place.but(method=name) for name in (SHUFFLED, SAME_SIGMA))
            sample = less(context, part, first, second, "score") if method == SHUFFLED else ""
            if not isinstance(sample, str):
                found.append((place.but(part=part), sample))
    return found


def differences_said(context: Context) -> dict[str, Any] | None:
    """How many intervals of differences to DP-SGD at the same sigma exclude zero; None without any."""
    samples = [sample for _, sample in shuffled_less(context)]
    if not samples:
        return None
    intervals = [mean_interval(one, confidence=context.confidence) for one in samples]
    ends = [(one.lower, one.upper) for one in intervals if one.lower is not None and one.upper is not None]
    return {
        "span": span(float(one.values.mean()) for one in samples),
        "settings": len(samples),
        "known": len(ends),
        "apart": sum(not lower <= 0.0 <= upper for lower, upper in ends),
    }
