"""The model behind `workbench.studies.costs`: kinds of jobs, their terms, and fitted coefficients."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.keys import canonical, plain
from workbench.interfaces import Currency, FloatArray
from workbench.studies.fields import STAND_IN
from workbench.studies.jobs import JobKind, StudyJob
from workbench.training.setup import mechanism_of

SHAPES = {JobKind.TRAINING: (0.2, 0.005, 0.01, 0.004), JobKind.MEASURING: (0.05, 0.0025)}
"""Core seconds by term, as `terms` gives them: `tiny_gpt2` on records of 64 tokens, one core of a server of
the year 2023. Only their proportions are used, and only where records leave them open."""

TRUST_IN_SHAPE = 0.02
"""Weight of the shape's proportions against the relative error of one record."""

FIRED_STEP = 15.0
"""What a step of a transcript game costs in which a group fires, in steps in which none does."""

ZEROTH_ORDER = "zeroth order"
"""Stands for the mechanism in kinds of zeroth-order training."""

ROUNDS = 8
"""Of reweighting, which turns least squares into least absolute deviations."""

SMALLEST_ERROR = 0.02
"""Relative error below which a record's weight grows no more."""

KIND_FIELDS = (
    "mechanism",
    "model",
    "model_parameters",
    "adapter",
    "optimizer",
    "corpus",
    "corpus_parameters",
)
"""What decides a job's speed besides its size; for a measuring, the attack does too."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A job that was run: its terms, and its core seconds."""

    terms: tuple[float, ...]
    seconds: float


Samples = dict[str, list[Sample]]
"""By kind."""


def kind_text(kind: JobKind, experiment: Mapping[str, Any]) -> str:
    """Canonical text of all that decides a job's speed but its size.

    Args:
        kind: Of the job.
        experiment: Plain form of an experiment that wants it.
    """
    names = (*KIND_FIELDS, "attack", "attack_parameters") if kind is JobKind.MEASURING else KIND_FIELDS
    form = {name: experiment[name] for name in names}
    if _is_zeroth_order(experiment):  # Forward passes and directions: what else they do is little.
        form["mechanism"] = ZEROTH_ORDER
    return canonical({"kind": str(kind), **form})


def _is_zeroth_order(experiment: Mapping[str, Any]) -> bool:
    """Whether a mechanism sees scalars along directions alone; these cost alike, by their number."""
    try:
        made = mechanism_of(str(experiment["mechanism"]), experiment["mechanism_parameters"])
    except Exception:  # Of any kind: a plug-in's mechanism, whose own job says what is wrong.
        return False
    return made.capabilities.is_zeroth_order


def read_beside(experiment: Mapping[str, Any]) -> int:
    """Held-out records, which a training may read besides its own, before and after."""
    return int(experiment["corpus_parameters"].get("held_out") or 0)


def without_base(kind: str) -> str:
    """A kind without the name of its model, where that is a base: the bases are of one size.

    What stands in for a base (a path among its parameters) may be of any size, and is none.
    """
    from workbench.studies import bases

    form = json.loads(kind)
    if form["model"] not in bases.names() or form["model_parameters"].get(STAND_IN):
        return kind
    return canonical({**form, "model": ""})


def kind_of(job: StudyJob) -> str:
    """The kind of a job; see `kind_text`."""
    return kind_text(job.kind, plain(job.experiment))


def terms(kind: JobKind, experiment: Mapping[str, Any], subjects: int) -> tuple[float, ...]:
    """What the coefficients are multiplied by.

    Args:
        kind: Of the job.
        experiment: Plain form of an experiment that wants it.
        subjects: For a measuring: the target and its shadows; 0 for a game that trains by itself.

    Returns:
        For a training 1, N with the held-out records (and half of these again for each look at them while it
        goes on: they are read before and after), E N (of a budget in nats about a record: the share of
        it that lies in steps in which a group fires) and T, the last two for each of a step's K directions;
        for a measuring 1 and the records read, or the steps of a game's trial, those in which a group is
        expected to fire counting `FIRED_STEP` times.
    """
    members, batch_size = experiment["members"], experiment["batch_size"]
    if kind is JobKind.MEASURING and subjects:
        return (1.0, 2.0 * members * subjects)
    steps = experiment["epochs"] * math.ceil(members / batch_size)
    nats = float(experiment["epsilon"] or 0.0)
    if kind is JobKind.MEASURING:
        return (1.0, steps * (1.0 + FIRED_STEP * fired_share(nats, batch_size / members, steps)))
    read = float(experiment["epochs"] * members)
    if experiment.get("currency") == Currency.RECORD_NATS:
        read *= fired_share(nats, batch_size / members, steps)
    directions = float(experiment["mechanism_parameters"].get("directions", 1))
    own = float(members + read_beside(experiment) * (1.0 + _looks(experiment, steps) / 2.0))
    return (1.0, own, directions * read, directions * steps)


def _looks(experiment: Mapping[str, Any], steps: int) -> int:
    """How often a training looks at the held-out perplexity, besides before and after."""
    parameters = experiment["mechanism_parameters"]
    interval = int(parameters.get("evaluation_interval", 0))
    if interval < 1 or not parameters.get("measures_quality", True):
        return 0
    return 1 + math.ceil(steps / interval)


def fired_share(nats: float, sampling_probability: float, steps: int) -> float:
    """Share of steps in which a mechanism of masked signs is expected to look at a record.

    Of many groups, each firing of which costs s ln 2 nats; Poisson's share of steps with a firing or more.

    Args:
        nats: The budget.
        sampling_probability: s.
        steps: T.
    """
    return -math.expm1(-nats / (sampling_probability * steps * math.log(2.0)))


def terms_of(job: StudyJob) -> tuple[float, ...]:
    """The terms of a job; see `terms`."""
    return terms(job.kind, plain(job.experiment), len(job.needs))


def fitted(kind: JobKind, samples: Sequence[Sample]) -> FloatArray:
    """Core seconds by term, shape `(k,)`, >= 0.

    Each sample is a row `terms / seconds * x = 1`; the shape adds a row `x_j / (scale w_j) = 1` for each
    term, of small weight, which decides only what the samples leave open.

    Args:
        kind: Of the jobs.
        samples: At least one, each with seconds > 0.
    """
    from scipy.optimize import nnls

    shape = np.array(SHAPES[kind])
    size = np.array([sample.terms for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    prior = shape * float(np.median(seconds / (size @ shape)))
    rows = size * prior / seconds[:, None]  # In units of the prior, where all coefficients are about 1.
    weights = np.ones(len(samples))
    found: FloatArray = np.ones(len(shape))
    for _ in range(ROUNDS):
        system = np.vstack([weights[:, None] * rows, TRUST_IN_SHAPE * np.eye(len(shape))])
        wanted = np.concatenate([weights, np.full(len(shape), TRUST_IN_SHAPE)])
        found, _ = nnls(system, wanted)
        errors = np.abs(rows @ found - 1.0)
        weights = np.sqrt(SMALLEST_ERROR / np.maximum(errors, SMALLEST_ERROR))
    return found * prior
