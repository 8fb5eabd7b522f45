"""An RLDP study's outcomes by group and setting, and as samples over seeds.

A seed draws the records, the secrets, the split, the samples and the noise: runs of one seed that differ in
the method alone share records, secrets and start, and are compared as pairs.

The strongest baseline is not known beforehand. Where RLDP is compared with "the best", it is with the lowest
final perplexity of any baseline in the same seed: nothing is chosen over seeds, so nothing need be paid for,
and the bar is never easier than that of any one baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.reports.papers.rldp.layout import (
    BASELINES,
    CURVE,
    FINAL,
    GROUPS,
    METHODS,
    NON_PRIVATE,
    PARTS,
    RLDP,
    Setting,
    insertions_of,
    number_of,
    part_of,
    share_of_steps,
    variant_of,
)
from workbench.reports.shared.paper_samples import UNIT, RunSetting, SeededRuns
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome, Status, StudyResults

NEVER = 100.0
"""Percent of the steps that a run counts with that never matches: at least so many."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The lowest final perplexity of the baselines of a seed, and whose it is."""

    perplexity: float
    variant: str


@dataclass(frozen=True, kw_only=True)
class Matches:
    """When runs reach their bars.

    Attributes:
        sample: Percent of the steps, a value a seed (the mean over its runs); `NEVER` for a run that never
            does. None where there is no run.
        runs, never: How many there are, and how many of them never match.
        why: Why there is no sample; else empty.
    """

    sample: Sample | None
    runs: int = 0
    never: int = 0
    why: str = ""


class Measured(SeededRuns):
    """The outcomes of a study, by group.

    Args:
        results: With the unit of replication "seed".

    Raises:
        InputError: the study declares another unit of replication.
    """

    def __init__(self, results: StudyResults) -> None:
        super().__init__(results, GROUPS, number_of)
        self._samples: dict[tuple[str | tuple[str, ...], RunSetting, str], Sample | None] = {}

    def sample(self, groups: str | Iterable[str], setting: RunSetting, name: str) -> Sample | None:
        """As of any study; each sample is made once."""
        place = groups if isinstance(groups, str) else tuple(groups), setting, name
        if place not in self._samples:
            self._samples[place] = super().sample(place[0], setting, name)
        return self._samples[place]

    def budgets(self, group: str) -> list[float]:
        """Epsilons of a group's runs, ascending."""
        runs = self.by_group.get(group, ())
        return sorted({one.experiment.epsilon for one in runs if one.experiment.epsilon is not None})

    def variants(self, group: str) -> list[str]:
        """Variants of a group's runs, in the study's order."""
        return list(dict.fromkeys(variant_of(one.experiment) for one in self.by_group.get(group, ())))

    def extras(self, group: str) -> list[str]:
        """Variants of a group that no table of the paper has, but with a budget."""
        known = {*METHODS, NON_PRIVATE}
        return [name for name in self.variants(group) if name not in known]

    def parts(self, group: str) -> list[str]:
        """What the names of a group's runs say after the comma, in the study's order."""
        return list(dict.fromkeys(part_of(one.experiment) for one in self.by_group.get(group, ())))

    def insertions(self, group: str) -> list[int]:
        """How often secrets are planted in a group's runs, ascending."""
        found = {insertions_of(one.experiment) for one in self.by_group.get(group, ())}
        return sorted(value for value in found if isinstance(value, int))

    def bars(self, group: str, epsilon: float, others: Sequence[str] = BASELINES) -> dict[int, Bar] | str:
        """The lowest final perplexity of the baselines, by seed; the reason where there is none.

        A seed with a baseline that is not run yet is left out: its bar could still fall. A run that failed
        has no perplexity and is no bar.

        Args:
            group: Of the runs.
            epsilon: Their budget.
            others: Baselines, or names of `PARTS`.
        """
        found: dict[int, Bar] = {}
        waiting: set[int] = set()
        names = [variant for name in others for variant in PARTS.get(name, (name,))]
        for name in names:
            for one in self.runs(group, Setting(variant=name, epsilon=epsilon)):
                seed, value = one.experiment.seed, number_of(one, FINAL)
                if one.status is Status.MISSING:
                    waiting.add(seed)
                elif usable(value) and (seed not in found or value < found[seed].perplexity):
                    found[seed] = Bar(perplexity=value, variant=name)
        kept = {seed: bar for seed, bar in sorted(found.items()) if seed not in waiting}
        if kept:
            return kept
        if waiting:
            return "a baseline is not run yet"
        missing = {self.missing(group, Setting(variant=name, epsilon=epsilon)) for name in names}
        return " and ".join(sorted(missing)) if len(missing) == 1 else "no baseline has a number"

    def drop(
        self, group: str, epsilon: float, variant: str = RLDP, others: Sequence[str] = BASELINES
    ) -> Sample | str:
        """By how much a method's final perplexity is below the best baseline's of its seed, percent."""
        setting = Setting(variant=variant, epsilon=epsilon)
        ours, bars = self.complete(group, setting, FINAL), self.bars(group, epsilon, others)
        if isinstance(ours, str):
            return ours
        if isinstance(bars, str):
            return bars
        pairs = [
            (int(seed), 100.0 * (1.0 - float(value) / bars[int(seed)].perplexity))
            for seed, value in zip(ours.units, ours.values, strict=True)
            if int(seed) in bars
        ]
        if not pairs:
            return f"no {UNIT} has both"
        return Sample(np.array([value for _, value in pairs]), tuple(seed for seed, _ in pairs), UNIT)

    def matches(
        self, group: str, epsilon: float, variant: str = RLDP, others: Sequence[str] = BASELINES
    ) -> Matches:
        """After which share of the steps a method's runs reach the best baseline's final perplexity.

        Args:
            group: Of the runs.
            epsilon: Their budget.
            variant: The method, or a name of `PARTS`: then the mean over its forms stands for a seed.
            others: Whose final perplexity is the bar.
        """
        bars = self.bars(group, epsilon, others)
        if isinstance(bars, str):
            return Matches(sample=None, why=bars)
        setting = Setting(variant=variant, epsilon=epsilon)
        runs = self.done(group, setting)
        known = [one for one in runs if one.experiment.seed in bars and one.traces.get(CURVE)]
        if not known:
            why = "the runs have no curve of evaluations" if runs else self.missing(group, setting)
            return Matches(sample=None, why=why)
        shares = [(one, share_of_steps(one, bars[one.experiment.seed].perplexity)) for one in known]
        by_seed: dict[int, list[float]] = {}
        for one, share in shares:
            by_seed.setdefault(one.experiment.seed, []).append(NEVER if share is None else share)
        means = np.array([float(np.mean(values)) for values in by_seed.values()])
        return Matches(
            sample=Sample(means, tuple(by_seed), UNIT),
            runs=len(shares),
            never=sum(share is None for _, share in shares),
        )

    def curves(self, group: str, setting: Setting, name: str, x_name: str = "") -> dict[float, Sample]:
        """A trace over steps: at each step that all of a setting's finished runs have, a sample over seeds.

        Args:
            group: Of the runs.
            setting: Of the runs.
            name: Of the trace.
            x_name: Of the trace that says at which steps; empty for one number a step, counted from 1.
        """
        found: dict[float, dict[int, list[float]]] = {}
        runs = [one for one in self.done(group, setting) if one.traces.get(name)]
        for one in runs:
            values = one.traces[name]
            steps = one.traces.get(x_name, ()) if x_name else range(1, len(values) + 1)
            for step, value in zip(steps, values, strict=False):
                if usable(value):
                    found.setdefault(float(step), {}).setdefault(one.experiment.seed, []).append(value)
        whole = {one.experiment.seed for one in runs}
        return {
            step: Sample(np.array([float(np.mean(v)) for v in by.values()]), tuple(by), UNIT)
            for step, by in sorted(found.items())
            if set(by) == whole
        }

    def computed(self, group: str, setting: Setting, of: Callable[[Outcome], float]) -> Sample | str:
        """A number that is computed of each run of a setting, one a seed; the reason where a run is lost.

        Args:
            group: Of the runs.
            setting: Of the runs.
            of: NaN where a run has no such number.
        """
        runs = self.runs(group, setting)
        lost = [one for one in runs if one.status is not Status.DONE]
        if lost and len(lost) < len(runs):
            first = next((one.error for one in lost if one.error), "not run yet")
            return f"{len(lost)} of {len(runs)} runs are lost ({first})"
        by_seed: dict[int, list[float]] = {}
        for one in self.done(group, setting):
            value = of(one)
            if usable(value):
                by_seed.setdefault(one.experiment.seed, []).append(value)
        if not by_seed:
            return self.missing(group, setting)
        return Sample(np.array([float(np.mean(v)) for v in by_seed.values()]), tuple(by_seed), UNIT)
