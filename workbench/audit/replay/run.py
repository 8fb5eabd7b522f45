"""Runs a forced replay in a process of its own, and makes the report record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.audit.run import EXIT_CODES, REPORT_SCHEMA
from workbench.audit.settings import AuditSettings
from workbench.audit.user_training import SOURCE, UserTraining, as_dicts
from workbench.core.cost import cost_since
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream_seed
from workbench.estimation.judge import claim_form
from workbench.execution.engine import Engine, Job, Progress, hardware, versions
from workbench.execution.store import Store
from workbench.execution.tasks import StepProgress
from workbench.interfaces import VerdictKind
from workbench.training.setup import TrainingSetup, content_digest, forget_corpora, prepare

PROBES = 64
"""Records whose scores under the finished model are compared."""


@dataclass(frozen=True, kw_only=True)
class ReplayJob:
    """Replay a user's training on all candidates of a setup."""

    setup: TrainingSetup
    spec: str


def replay_user(
    job: ReplayJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Replay a user's function; on another machine that of the file's copy in `inputs[SOURCE]`.

    Returns:
        `measured` (see `measure.Measured`; or its `reason` where there is none), and `cost`.

    Raises:
        InputError: the function fails or breaks its contract.
    """
    from workbench.audit.replay.measure import measured

    started = time.perf_counter()
    candidates, _ = prepare(job.setup)
    spec = job.spec
    if SOURCE in inputs:
        path, _, function = spec.rpartition(":")
        spec = f"{inputs[SOURCE] / Path(path).name}:{function}"
    training = UserTraining(spec)
    seeds = [stream_seed(job.setup.seed, "training", run) for run in (0, 1)]
    found = measured(
        lambda records, number: training.trained(records, seeds[number], candidates[:PROBES]),
        as_dicts(candidates),
        seed=job.setup.seed,
        progress=lambda done, total: progress(done, total, "trainings"),
    )
    return {"measured": plain(found), "cost": cost_since(started)}


def audit_replay(
    function_spec: str,
    settings: AuditSettings,
    *,
    out: Path,
    command: str,
    progress: Progress | None = None,
) -> dict[str, JSON]:
    """Replay a user's training function, and hold what it measures against the claim.

    Args:
        function_spec: `path/to/file.py:function`; the contract is in `workbench.audit.user_training`.
        settings: Claim, corpus, candidates (all are trained on), seed and confidence are used.
        out: Folder; the store lies in `out/store`.
        command: The command line, for the report.
        progress: Told of trainings.

    Returns:
        The report record: `verdict` and `replay`, with all that was measured.

    Raises:
        InputError: the function cannot be loaded, fails, or breaks its contract.
        UnsupportedError: the claim is not one of (epsilon, delta)-DP.
    """
    from workbench.audit.replay.judging import judged, measured_from, require_judged

    require_judged(settings.claim)
    started = datetime.now(UTC)
    forget_corpora()
    training = UserTraining(function_spec)
    setup = settings.setup(())
    store = Store(out / "store")
    content = content_digest(setup)
    inputs = {} if settings.scheduler is None else {SOURCE: training.copied_to(store.scratch_folder())}
    payload = ReplayJob(setup=setup, spec=function_spec)
    identity = {"kind": "replay", "source": training.source_sha256, "job": plain(payload), "content": content}
    job = Job(identity=identity, payload=payload, inputs=inputs, label=function_spec, content=content)
    # Never in this process: the user's code may end it, and an exit code of ours is a verdict.
    with Engine(store, workers=1, scheduler=settings.scheduler, progress=progress) as engine:
        (record,) = engine.run("replaying", [job], replay_user, keeps_folder=False)
    store.sweep()
    form: Any = record["measured"]
    if "reason" in form:
        kind, sentence = VerdictKind.INVALID, f"INVALID: forced replay is not possible: {form['reason']}."
        verdict: dict[str, JSON] = {"kind": str(kind), "sentence": sentence, "reasons": [form["reason"]]}
        replay: dict[str, JSON] = dict(form)
    else:
        found = judged(settings.claim, measured_from(form), confidence=settings.confidence)
        kind = found.kind
        verdict = {"kind": str(kind), "sentence": found.sentence, "reasons": []}
        replay = {**form, **plain(found)}
    now = datetime.now(UTC)
    return {
        "schema": REPORT_SCHEMA,
        "kind": "replay",
        "workbench_version": __version__,
        "versions": versions(),
        "hardware": hardware(),
        "created": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": command,
        "seed": settings.seed,
        "exit_code": EXIT_CODES[kind],
        "claim": claim_form(settings.claim),
        "verdict": verdict,
        "replay": replay,
        "cost": record["cost"] | {"whole_seconds": (now - started).total_seconds()},
    }
