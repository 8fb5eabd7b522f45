"""What the tables of a Shuffled DPSGD report share: their context, paired differences, notes on scale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from workbench.accounting.bounds import Bounds
from workbench.accounting.subsampled_gaussian import same_sigma_epsilon
from workbench.checks.published import PublishedCell
from workbench.core.errors import UnsupportedError
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    Setting,
    model_of,
    own_dataset_of,
    own_model_of,
    used_noise,
)
from workbench.reports.papers.shuffled_dp_sgd.samples import Measured
from workbench.reports.shared.beside import beside
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_cells import PaperContext, blank
from workbench.reports.shared.paper_conditions import differences
from workbench.reports.shared.paper_samples import UNIT
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell

Context: TypeAlias = PaperContext[Measured]


def less(
    context: Context, groups: str | Iterable[str], first: Setting, second: Setting, name: str
) -> Sample | str:
    """A number of the first less that of the second, paired over seeds; the reason where there is none."""
    groups = (groups,) if isinstance(groups, str) else tuple(groups)
    samples = []
    for setting in (first, second):
        sample = context.measured.sample(groups, setting, name)
        if sample is None:
            return f"{setting.variant}: {context.measured.missing(groups, setting)}"
        samples.append(sample)
    return differences(*samples)


def paired_cell(context: Context, printed: PublishedCell | None, found: Sample | str) -> Cell:
    """The mean of paired differences, or why there is none."""
    if isinstance(found, str):
        return blank(printed, found)
    return beside(printed, context.mean(found))


def certified(outcome: Outcome) -> Bounds | str:
    """Epsilon of a finished run's noise as DP-SGD, add-remove, between certified bounds; or why it has none.

    The run's own noise multiplier, sampling probability, number of steps and delta are asked about: the
    Poisson-sampled Gaussian, whose clipped records add at most the clip to a sum. A batch clip
    is a projection on a ball, which takes no two sums further apart, and a permutation follows the noise:
    neither can raise it.
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


def scale_notes(context: Context, groups: Iterable[str]) -> list[str]:
    """How large our runs are, what stands in for what, and what did not finish."""
    runs = [one for group in groups for one in context.measured.by_group.get(group, ())]
    if not runs:
        return []
    stands = {
        f"{own_model_of(one.experiment)} for {model_of(one.experiment)}"
        for one in runs
        if own_model_of(one.experiment) != model_of(one.experiment)
    }
    tasks = dict.fromkeys(own_dataset_of(one.experiment) for one in runs)
    sizes = sorted({one.experiment.members for one in runs})
    steps = sorted({one.experiment.steps for one in runs})
    seeds = sorted({one.experiment.seed for one in runs})
    notes = [
        f"Ours: {', '.join(sorted(stands)) or 'models of our own'}; {', '.join(tasks)}; N = {listed(sizes)}, "
        f"T = {listed(steps)}, {len(seeds)} {UNIT}{'' if len(seeds) == 1 else 's'}. ± is the standard "
        f"deviation over {UNIT}s, brackets are the {context.interval}; a {UNIT} draws records, samples, "
        "noise and permutations, and runs of one share the records."
    ]
    lost = [one for one in runs if one.status is not Status.DONE]
    if lost:
        notes.append(f"{len(lost)} of {len(runs)} runs behind these numbers failed or are not done.")
    return notes


def listed(values: Iterable[float]) -> str:
    """Numbers in a row."""
    return ", ".join(number(value) for value in values)


def span(values: Iterable[float], digits: int = 3) -> str:
    """The least and the largest of some numbers, in words; one number where they print alike."""
    known = sorted(values)
    ends = [number(known[0], digits), number(known[-1], digits)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
