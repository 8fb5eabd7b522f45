"""A spot check of shipped results: a few trainings, drawn at random, are run again and compared."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from workbench.core.errors import InputError
from workbench.execution.store import Store
from workbench.studies.experiments import Experiment, Outcome, Status, Study
from workbench.studies.jobs import setup_of
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.studies.shipped import Shipped, identity
from workbench.training.setup import content_digest

TOLERANCE = 0.02
"""Two values agree where they differ by this, or by this share of the shipped one. The same packages on the
same kind of machine give the same bits; another processor rounds otherwise, and training carries that on."""


class Agreement(StrEnum):
    """What a recomputed experiment says of the shipped one."""

    AGREES = "agrees"
    DIFFERS = "differs"
    OTHER_RECORDS = "other records"
    """The corpus is another on this machine (it is made of installed packages, whose versions differ)."""
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """An experiment that was run again.

    Attributes:
        metric: That differs most, in units of what is tolerated; empty where nothing was compared.
        shipped, here: Its two values; NaN where nothing was compared.
        compared: Number of metrics.
        seconds: That its training and measuring took here.
    """

    experiment: Experiment
    agreement: Agreement
    metric: str = ""
    shipped: float = math.nan
    here: float = math.nan
    compared: int = 0
    seconds: float = math.nan


def recompute(shipped: Shipped, study: Study, count: int, *, seed: int) -> tuple[Recomputed, ...]:
    """Run experiments of shipped results again, each from its training on.

    Args:
        study: With the experiments that the looks added.
        count: How many, no two of one training; all where there are fewer.
        seed: Of the draw.

    Raises:
        InputError: what the study needs is not here (base models, corpora).
    """
    chosen = drawn(shipped, study, count, seed=seed)
    same = [one for one in chosen if shipped.outcomes[identity(one)]["content"] == _content(one)]
    here: dict[str, Outcome] = {}
    if same:
        wanted = replace(study, experiments=tuple(same))
        with tempfile.TemporaryDirectory() as folder:
            run_study(wanted, out=Path(folder), options=RunOptions(workers=0))
            read = read_results(wanted, Store(Path(folder) / "store"))
            here = {identity(outcome.experiment): outcome for outcome in read.outcomes}
    before = {identity(one.experiment): one for one in shipped.results(study).outcomes}
    return tuple(
        compared(before[key], here[key])
        if (key := identity(experiment)) in here
        else Recomputed(experiment=experiment, agreement=Agreement.OTHER_RECORDS)
        for experiment in chosen
    )


def drawn(shipped: Shipped, study: Study, count: int, *, seed: int) -> list[Experiment]:
    """Experiments that are done, drawn at random, no two with the same training losses."""
    done = [one for one in shipped.results(study).outcomes if one.status is Status.DONE]
    by_training: dict[object, list[Experiment]] = {}
    for outcome in done:
        training = outcome.training_losses or identity(outcome.experiment)
        by_training.setdefault(training, []).append(outcome.experiment)
    if not by_training:
        raise InputError(f"the shipped results of study {study.name!r} hold no experiment that was done")
    generator = random.Random(seed)
    trainings = generator.sample(list(by_training.values()), min(count, len(by_training)))
    return [generator.choice(experiments) for experiments in trainings]


def compared(shipped: Outcome, here: Outcome) -> Recomputed:
    """The metric that differs most between a shipped outcome and the one that was recomputed."""
    experiment = shipped.experiment
    if here.status is not Status.DONE:
        return Recomputed(experiment=experiment, agreement=Agreement.FAILED)
    excesses = {
        name: excess(value, here.metrics.get(name, math.nan)) for name, value in shipped.metrics.items()
    }
    metric = max(excesses, key=lambda name: excesses[name])
    return Recomputed(
        experiment=experiment,
        agreement=Agreement.AGREES if excesses[metric] <= 1.0 else Agreement.DIFFERS,
        metric=metric,
        shipped=shipped.metrics[metric],
        here=here.metrics.get(metric, math.nan),
        compared=len(excesses),
        seconds=here.cost.get("seconds", math.nan) + here.cost.get("training_seconds", 0.0),
    )


def excess(shipped: float, here: float) -> float:
    """How far apart two values are, in units of what is tolerated; 0 where equal, also non-finite."""
    if shipped == here or (math.isnan(shipped) and math.isnan(here)):
        return 0.0
    if not (math.isfinite(shipped) and math.isfinite(here)):
        return math.inf
    return abs(shipped - here) / (TOLERANCE * max(1.0, abs(shipped)))


def exit_code(rows: Sequence[Recomputed]) -> int:
    """0 all that could be compared agree, 1 one differs or failed, 3 nothing could be compared."""
    agreements = {row.agreement for row in rows}
    if agreements & {Agreement.DIFFERS, Agreement.FAILED}:
        return 1
    return 0 if Agreement.AGREES in agreements else 3


def _content(experiment: Experiment) -> str:
    return content_digest(setup_of(experiment))


def by_agreement(rows: Sequence[Recomputed]) -> Mapping[Agreement, int]:
    """How many experiments have which agreement."""
    return {one: sum(row.agreement is one for row in rows) for one in Agreement}
