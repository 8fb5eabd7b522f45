"""Runs a forced replay in a process of its own, and puts what it measures beside a claim."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.audit.replay.judging import Replayed, judged
from workbench.audit.replay.measured import Measured, measured_from
from workbench.audit.replay.stated import Stated
from workbench.audit.user_training import SOURCE, UserTraining, as_dicts
from workbench.core.cost import cost_since
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream_seed
from workbench.execution.engine import Engine
from workbench.execution.tasks import StepProgress
from workbench.interfaces import Claim, Verdict, VerdictKind
from workbench.training.setup import TrainingSetup, prepare

FORM = 34
"""Of what is measured; a stored result of another form is not read."""

PROBES = 64
"""Records whose scores under the finished model are compared."""

PROBES_OF_MODEL = 8
"""The same of a returned language model, whose scores are taken to follow its weights."""


@dataclass(frozen=True, kw_only=True)
class ReplayJob:
    """Replay a user's training on the included candidates of a setup."""

    setup: TrainingSetup
    spec: str
    included: tuple[bool, ...]


def replay_user(
    job: ReplayJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Replay a user's function; on another machine that of the file's copy in `inputs[SOURCE]`.

    Returns:
        `measured` (see `measured.Measured`; or its `reason` where there is none), and `cost`.

    Raises:
        InputError: the function fails or breaks its contract.
    """
    from workbench.audit.replay.generators import own_generators
    from workbench.audit.replay.measure import measured

    started = time.perf_counter()
    candidates, _ = prepare(job.setup)
    spec = job.spec
    if SOURCE in inputs:
        path, _, function = spec.rpartition(":")
        spec = f"{inputs[SOURCE] / Path(path).name}:{function}"
    with each_warning_once(), own_generators():
        training = UserTraining(spec, job.setup.device)
        found = measured(
            lambda records, number: training.asking(
                records,
                stream_seed(job.setup.seed, "training", number),
                candidates[:PROBES],
                most_of_model=PROBES_OF_MODEL,
            ),
            as_dicts([record for record, inside in zip(candidates, job.included, strict=True) if inside]),
            seed=job.setup.seed,
            progress=lambda done, total: progress(done, total, "trainings"),
        )
    return {"measured": plain(found), "cost": cost_since(started)}


@contextmanager
def each_warning_once() -> Iterator[None]:
    """Within the context, a warning that was shown is not shown again: every training gives the same ones."""
    show, shown = warnings.showwarning, set()

    def show_first(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any, **named: Any
    ) -> None:
        key = (str(message), category, filename, lineno)
        if key not in shown:
            shown.add(key)
            show(message, category, filename, lineno, *more, **named)

    warnings.showwarning = show_first
    try:
        yield
    finally:
        if warnings.showwarning is show_first:
            warnings.showwarning = show


def play(
    engine: Engine, payload: ReplayJob, *, training: UserTraining, inputs: Mapping[str, Path], content: str
) -> dict[str, Any]:
    """The record of a replay, from the store or made now; see `replay_user`."""
    job = training.job("replay", payload, inputs=inputs, content=content, form=FORM)
    (record,) = engine.run("replaying", [job], replay_user, keeps_folder=False)
    return dict(record)


def judged_record(
    claim: Claim, record: Mapping[str, Any], *, confidence: float, stated: Stated | None = None
) -> tuple[Verdict | None, dict[str, JSON]]:
    """The verdict of a replay, None where the training cannot be replayed, and its form for the report.

    Raises:
        UnsupportedError: the claim is not of (epsilon, delta)-DP.
    """
    form: Any = record["measured"]
    if "reason" in form:
        reason = str(form["reason"])
        sentence = f"INVALID: forced replay is not possible: {reason}{'' if reason.endswith('?') else '.'}"
        verdict = Verdict(kind=VerdictKind.INVALID, sentence=sentence, significance=1.0 - confidence)
        return None, {**form, "verdict": plain(verdict), "rows": [], "cost": record["cost"]}
    run = measured_from(form)
    found = judged(claim, run, confidence=confidence, stated=stated)
    whole = {**form, **plain(found), "claim": claim.describe(), "rows": _rows(claim, run, found, stated)}
    return found.verdict, {**whole, "cost": record["cost"]}


def _rows(claim: Claim, run: Measured, found: Replayed, stated: Stated | None) -> list[list[str]]:
    """The run as it was, for a reader: names and values, then each fault."""
    sampler, delta = found.sampler, claim.guarantee.to_json()["delta"]
    rate = f"{sampler.kind}, rate {sampler.rate:.3g} [{sampler.lower:.3g}, {sampler.upper:.3g}]"
    drawn = ", ".join(f"{count} {kind}" for kind, count in run.recognised.items()) or "none"
    estimate = "no estimate" if math.isnan(found.estimate) else f"{found.estimate:.4g}"
    bounds = f"{estimate} [{found.lower:.4g}, {found.upper:.4g}] at delta = {delta:g}"
    return [
        ["optimizer steps", f"{run.steps} of {run.parameters:,} parameters"],
        ["sampler", rate],
        ["noise over what one record adds", f"{found.multiplier:.4g}"],
        ["draws of noise", drawn],
        ["epsilon by its own measure", bounds],
        *([["stated", stated.describe()]] if stated is not None else []),
        *([f"fault: {fault.part}", fault.says] for fault in found.faults),
        *([] if run.scores_repeat else [["scores", "differ between equal runs, so they are not compared"]]),
        *([["caution", found.caution]] if found.caution else []),
    ]
