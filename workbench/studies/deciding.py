"""Adds seeds to a study in rounds, to those conclusions of its paper that are still open.

A conclusion is looked at after each round that gave it seeds, `MOST_LOOKS` times at most, and each look
spends an equal share of the error: it tests at level (1 - confidence) / `MOST_LOOKS`. The first look that
decides counts, and the conclusion gets no more seeds. By the union bound a conclusion is decided wrongly with
probability at most 1 - confidence, however its looks depend on each other and whatever the rest of the study
does. A look decides only what a repeat with fresh units would decide too (`workbench.studies.repeating`).

A look at `n` units tests the first `n` of the conclusion's units alone, so it comes out the same when it is
repeated on a store that other conclusions have added to. A conclusion that no round was run for is tested on
the units of the study file, at the whole level.

What a look needs is known from the look before it: a `ReplicationFinding` names the experiments that it was
tested on, and these are repeated with further seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.checks.published import PublishedPaper
from workbench.core import registry
from workbench.core.errors import InputError, unknown_name
from workbench.studies.experiments import Experiment, Status, Study, StudyResults
from workbench.studies.repeating import repeat_level, repeat_words
from workbench.studies.report import ReplicationFinding, StudyReport

MOST_LOOKS = 6
"""Looks at one conclusion, the one before any seed is added included."""

GROWTH = 1.5
"""Factor by which a round raises the number of units, by two at least; some settings of a study file may have
fewer units than others, and catch up first."""

CONFIDENCE = 0.95
"""Of the rounds of `workbench run`."""

UNIT = "seed"
"""The unit of replication that can be added."""

Looks = Mapping[str, Sequence[int]]
"""By the conclusion's id: the number of units at each of its looks, never falling."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a conclusion stands after its last look.

    Attributes:
        looks: How many were made; 0 where the study file's own units count alone.
        units: Number of units at the last of them.
    """

    finding: ReplicationFinding
    looks: int
    units: int

    @property
    def is_open(self) -> bool:
        """Whether it is undecided, more units may decide it, and a look is left."""
        return not self.finding.is_decided and self.finding.units_decide and self.looks < MOST_LOOKS


class Decisions:
    """A study whose conclusions get seeds until they are decided.

    Args:
        study: As its file says.
        paper: Whose conclusions they are.
        looks: That were made, or are to be made once their experiments are run.
        read: Gives what a store has of experiments.
        confidence: Of each decision over all of its looks, in (0.5, 1).

    Raises:
        InputError: the study has no conclusions, another unit of replication, or unusable looks.
    """

    def __init__(
        self,
        study: Study,
        paper: PublishedPaper | None,
        looks: Looks,
        read: Callable[[Study], StudyResults],
        *,
        confidence: float = CONFIDENCE,
    ) -> None:
        if paper is None or not study.report or not paper.claims:
            raise InputError(
                f"study {study.name!r} must have a paper and its report: it has no conclusions to decide"
            )
        if study.replication != UNIT:
            raise InputError(f"replication must be {UNIT!r} for seeds to be added, got {study.replication!r}")
        require_known(looks, paper)
        first = sorted({experiment.seed for experiment in study.experiments})
        for claim, counts in looks.items():
            rising = all(low <= high for low, high in itertools.pairwise(counts))
            if not 1 <= len(counts) <= MOST_LOOKS or counts[0] != len(first) or not rising:
                raise InputError(f"looks at {claim!r} must rise from {len(first)} units, got {list(counts)}")
        self._base, self._paper, self._read, self._confidence = study, paper, read, confidence
        self._looks = {claim: tuple(counts) for claim, counts in looks.items()}
        self._first = first
        self._places: dict[int, tuple[Experiment, str]] = {}
        self._with_seed: dict[tuple[int, int], Experiment] = {}
        self._experiments = {self._place(experiment): experiment for experiment in study.experiments}
        self._wanted: dict[str, Experiment] = {}
        self._keys: dict[str, str] = {}
        self._seen: dict[tuple[str, int], Standing] = {}

    @property
    def looks(self) -> Looks:
        """The looks by conclusion."""
        return self._looks

    @property
    def study(self) -> Study:
        """The study with all experiments that the looks ask for."""
        return self.to_run(self._base.experiments)

    def to_run(self, chosen: Sequence[Experiment]) -> Study:
        """Chosen experiments of the study's own, and all that the looks after the first ask for."""
        self._look(last=False)
        wanted = {self._place(experiment): experiment for experiment in chosen} | self._wanted
        return replace(self._base, experiments=tuple(wanted.values()))

    def standings(self) -> Mapping[str, Standing]:
        """Every conclusion of the paper after its last look, in the paper's order."""
        self._look(last=True)
        last: dict[str, Standing] = {}
        for (claim, _), standing in sorted(self._seen.items(), key=lambda item: item[1].looks):
            last[claim] = standing
        return {claim.id: last[claim.id] for claim in self._paper.claims}

    def next_units(self, standing: Standing) -> int:
        """Number of units at the next look at a conclusion."""
        if any(place not in self._experiments for place in self._repeated(standing.finding, standing.units)):
            return standing.units
        return max(standing.units + 2, math.ceil(GROWTH * standing.units))

    def next_study(self, claims: Collection[str]) -> Study:
        """The experiments that the next look at these open conclusions needs, done or not."""
        standings, wanted = self.standings(), dict[str, Experiment]()
        for claim in claims:
            wanted |= self._repeated(standings[claim].finding, self.next_units(standings[claim]))
        return replace(self._base, experiments=tuple(wanted.values()))

    def with_next_looks(self, claims: Collection[str]) -> Decisions:
        """The same with one more look at these conclusions, which were looked at before."""
        looks = dict(self._looks)
        for claim in claims:
            looks[claim] = (*looks[claim], self.next_units(self.standings()[claim]))
        return self._with(looks, self._seen)

    def again(self) -> Decisions:
        """The same, the last look of each conclusion anew: after what it asks for was run."""
        last = {(claim, len(counts) - 1) for claim, counts in self._looks.items()}
        kept = {place: standing for place, standing in self._seen.items() if place not in last}
        return self._with(self._looks, kept)

    def _with(self, looks: Looks, seen: Mapping[tuple[str, int], Standing]) -> Decisions:
        made = Decisions(self._base, self._paper, looks, self._read, confidence=self._confidence)
        made._experiments, made._keys, made._seen = dict(self._experiments), dict(self._keys), dict(seen)
        made._places, made._with_seed, made._wanted = self._places, self._with_seed, dict(self._wanted)
        return made

    def _look(self, *, last: bool) -> None:
        """Add what the looks ask for, and make those that are not made; the last of each only with `last`."""
        level = (1.0 - self._confidence) / MOST_LOOKS
        others = [claim.id for claim in self._paper.claims if claim.id not in self._looks]
        if last and any((claim, -1) not in self._seen for claim in others):
            for finding in self._findings(others, len(self._first), self._confidence):
                standing = Standing(finding=finding, looks=0, units=len(self._first))
                self._seen[finding.id, -1] = standing
        for look in range(max((len(counts) for counts in self._looks.values()), default=0)):
            asked: dict[int, list[str]] = {}
            for claim, counts in self._looks.items():
                before = self._seen.get((claim, look - 1)) if look else None
                if look >= len(counts) or (look and (before is None or not before.is_open)):
                    continue
                if before is not None:
                    for place, experiment in self._repeated(before.finding, counts[look]).items():
                        self._wanted[place] = self._experiments.setdefault(place, experiment)
                if (claim, look) not in self._seen and (last or look < len(counts) - 1):
                    asked.setdefault(counts[look], []).append(claim)
            for units, claims in asked.items():
                for finding in self._findings(claims, units, 1.0 - level):
                    standing = Standing(finding=finding, looks=look + 1, units=units)
                    explained = replace(standing, finding=_explained(standing, self._confidence))
                    self._seen[finding.id, look] = explained

    def _findings(
        self, claims: Collection[str], units: int, confidence: float
    ) -> tuple[ReplicationFinding, ...]:
        """What the first units say of some conclusions, where a repeat would say the same."""
        results = self._read(replace(self._base, experiments=tuple(self._experiments.values())))
        # What was left out gets no seeds, though a test counts it.
        there = [outcome for outcome in results.outcomes if outcome.status is not Status.MISSING]
        self._keys |= {self._place(outcome.experiment): outcome.key for outcome in there}
        counted = set(itertools.islice(self._seeds(), units))
        outcomes = tuple(outcome for outcome in results.outcomes if outcome.experiment.seed in counted)
        study = replace(self._base, experiments=tuple(outcome.experiment for outcome in outcomes))
        chosen = tuple(claim for claim in self._paper.claims if claim.id in claims)
        made: StudyReport = registry.create(
            "study_report",
            study.report,
            results=StudyResults(study=study, outcomes=outcomes),
            published=replace(self._paper, claims=chosen),
            confidence=1.0 - repeat_level(1.0 - confidence, units),
            only_findings=True,
        )
        return made.findings

    def _seeds(self) -> Iterator[int]:
        """The study's own seeds, then the smallest others."""
        return itertools.chain(self._first, (seed for seed in itertools.count() if seed not in self._first))

    def _repeated(self, finding: ReplicationFinding, units: int) -> dict[str, Experiment]:
        """What a conclusion was tested on, with each of the first units, by place."""
        keys = set(finding.reads)
        read = [one for place, one in self._experiments.items() if self._keys.get(place) in keys]
        settings = {self._place(self._seeded(experiment, 0)): experiment for experiment in read}
        repeated = (
            self._seeded(experiment, seed)
            for seed in itertools.islice(self._seeds(), units)
            for experiment in settings.values()
        )
        return {self._place(experiment): experiment for experiment in repeated}

    def _seeded(self, experiment: Experiment, seed: int) -> Experiment:
        """The experiment with another seed; the same object each time, so that its place is made once."""
        made = (id(experiment), seed)
        if made not in self._with_seed:
            self._place(experiment)  # Which keeps it, so that no other object can have its id.
            self._with_seed[made] = replace(experiment, seed=seed)
        return self._with_seed[made]

    def _place(self, experiment: Experiment) -> str:
        """What two experiments of a study must differ in."""
        if id(experiment) not in self._places:
            self._places[id(experiment)] = experiment, _place(experiment)
        return self._places[id(experiment)][1]


def require_known(claims: Collection[str], paper: PublishedPaper) -> None:
    """Refuse an id that is none of a paper's conclusions.

    Raises:
        InputError: names the id.
    """
    known = [claim.id for claim in paper.claims]
    for claim in claims:
        if claim not in known:
            raise unknown_name("conclusion", claim, known)


def _place(experiment: Experiment) -> str:
    """What two experiments of a study must differ in."""
    from workbench.core.keys import canonical, plain

    return canonical(plain(experiment))


def _explained(standing: Standing, confidence: float) -> ReplicationFinding:
    """The finding, its test followed by what was paid for looking, and what a repeat asks for."""
    level = (1.0 - confidence) / MOST_LOOKS
    looks = (
        f"Look {standing.looks} of at most {MOST_LOOKS}, at {standing.units} {UNIT}s; each look is at level "
    )
    looks += f"{level:.2g}. {repeat_words(level, standing.units, UNIT)}"
    return replace(standing.finding, test=f"{standing.finding.test.rstrip('.')}. {looks}")
