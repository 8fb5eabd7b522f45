"""Trains runs of a study that differ in their seed and members alone as one ensemble.

What an ensemble trains is what the one-at-a-time loop trains, up to float32's rounding, so a training keeps
its key, and its record says the same; its seconds are an equal part of the ensemble's. Only stacked linear
layers are trained so: their bits do not depend on who else is in the ensemble, so a run by itself is an
ensemble of one. The rounding of LoRA adapters does depend on it, and little is saved with them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.core.cost import cost_since
from workbench.core.errors import UnsupportedError
from workbench.core.keys import canonical
from workbench.execution.processes import one_thread
from workbench.execution.tasks import StepProgress
from workbench.studies.jobs import Training, membership
from workbench.training.setup import TrainingSetup, create_mechanism, make_plan, require_content

MOST_TOGETHER = 32
"""Runs of one task."""


@dataclass(frozen=True, kw_only=True)
class Together:
    """Payload: train these runs, which differ in seed and members alone, as one ensemble."""

    trainings: tuple[Training, ...]


def group_of(training: Training) -> str:
    """What trainings of one ensemble have in common; empty for one that no ensemble trains."""
    covered = _Covered.of(training.setup)
    return covered.text if not training.unreleased and _is_covered(covered) else ""


@dataclass(frozen=True)
class _Covered:
    """A setup as a key of a cache: equal where nothing but the seed differs."""

    text: str
    setup: TrainingSetup

    @classmethod
    def of(cls, setup: TrainingSetup) -> _Covered:
        return cls(canonical(replace(setup, seed=0)), setup)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Covered) and self.text == other.text


@lru_cache(maxsize=1024)
def _is_covered(covered: _Covered) -> bool:
    """Whether an ensemble trains such runs, and looks at nothing between their steps."""
    from workbench.training.ensemble.together import refusal
    from workbench.training.loop import GradientMechanism

    try:
        mechanism = create_mechanism(covered.setup)
        reason = refusal(mechanism, covered.setup)
    except Exception:  # Of any kind: the training itself says what is wrong with a plug-in.
        return False
    looks = isinstance(mechanism, GradientMechanism) and mechanism.evaluation_interval > 0
    return not reason and not looks and covered.setup.adapter != "lora"


def train_together(
    payload: Together, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Train the runs, and save each to a scratch folder of its place, `"0"`, `"1"`, ...

    Returns `trainings`: the records that `workbench.studies.work.train` returns, in their order.

    Raises `UnsupportedError`: no ensemble trains them. Otherwise as `workbench.studies.work.train`.
    """
    from workbench.studies.work import require_finite_training, training_record
    from workbench.training.ensemble.together import train_together as trained_together
    from workbench.training.fine_tuning import build_model
    from workbench.training.loop import GradientMechanism

    started, records = time.perf_counter(), []
    for training in payload.trainings:
        require_content(training.setup, training.content)
    with one_thread():
        plans = [make_plan(t.setup, membership(t), t.run) for t in payload.trainings]
        mechanism = create_mechanism(payload.trainings[0].setup)
        if not isinstance(mechanism, GradientMechanism):
            raise UnsupportedError(f"{type(mechanism).__name__} is not a gradient mechanism")
        subjects = trained_together(mechanism, plans, progress)
        for place, (plan, subject) in enumerate(zip(plans, subjects, strict=True)):
            require_finite_training(subject.transcript, plan.learning_rate)
            untrained = build_model(plan)
            untrained.module.eval()
            looks = mechanism.qualities(untrained, plan, "before")
            looks |= mechanism.qualities(subject.model, plan, "after")
            subject.transcript = replace(subject.transcript, metrics={**looks, **subject.transcript.metrics})
            (scratch / str(place)).mkdir()
            subject.save(scratch / str(place))
            records.append(training_record(subject))
    cost = cost_since(started)
    cost["seconds"] /= len(plans)
    return {"trainings": [{**record, "cost": {**cost, **record["cost"]}} for record in records]}
