"""What a worker does for a study: train a subject, or release, attack and measure one. Pure in its payload.

Both functions have the signature of `workbench.execution.tasks.Work`.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from workbench.core.cost import cost_since
from workbench.core.errors import InconclusiveError
from workbench.core.keys import plain
from workbench.core.streams import stream, stream_seed
from workbench.estimation import midpoint_threshold_metrics
from workbench.estimation.low_fpr import low_fpr_details
from workbench.execution.engine import hardware, versions
from workbench.execution.processes import one_thread
from workbench.execution.tasks import StepProgress
from workbench.games.consecutive.releases import RUN
from workbench.games.plays import transcripts
from workbench.interfaces import (
    AccessLevel,
    BoolArray,
    Claim,
    FloatArray,
    Plan,
    PostHocMechanism,
    Record,
    References,
    Scores,
    Subject,
    Transcript,
)
from workbench.studies.experiments import STEP_TIMES
from workbench.studies.jobs import Measuring, Training, membership
from workbench.training import setup as workers


class _Played(Protocol):
    """What a game that trains by itself leaves."""

    @property
    def subject(self) -> Subject:
        """One of its trainings, for the claim and the metrics."""

    @property
    def included(self) -> BoolArray:
        """The labels of its trials."""


SUBJECTS_KEPT = 2
"""Trained subjects that a worker keeps at hand, because the next budget's release starts from the same."""

_LARGEST_EXPONENT = 700.0

_recent: OrderedDict[str, Subject] = OrderedDict()


def train(
    payload: Training, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Train one subject and save it to the scratch folder.

    Returns:
        `claim`, `losses` (of each step, nats; NaN where no record was looked at), `traces` (of each step, by
        name), `metrics`, `cost` (with `STEP_TIMES`, of the steps alone, as far as the mechanism tells
        them), and `versions` and `hardware` of where this runs.

    Raises:
        ContentError: a corpus or a model's files are not what the experiment's key says.
        InconclusiveError: training left the finite numbers.
    """
    started = time.perf_counter()
    workers.require_content(payload.setup, payload.content)
    with one_thread():
        plan = workers.make_plan(payload.setup, membership(payload), payload.run)
        mechanism = workers.create_mechanism(payload.setup)
        if payload.unreleased and isinstance(mechanism, PostHocMechanism):
            subject = mechanism.train_unreleased(plan, progress)
        else:
            subject = mechanism.train(plan, progress)
        _require_finite_training(subject.transcript, plan.learning_rate)
        subject.save(scratch)
    metrics = _without_times(subject.transcript.metrics)
    return {
        "claim": _claim_form(subject.claim),
        "losses": plain(subject.transcript.losses),
        "traces": plain(subject.transcript.traces),
        "metrics": metrics,
        "cost": {**cost_since(started), **_step_times(subject.transcript.metrics)},
        **_here(),
    }


def measure(
    payload: Measuring, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Release what is released after training, attack it, and measure it.

    Args:
        payload: The job.
        inputs: Folders of the target (`"0"`) and of its shadows (`"1"`, ...); none where a game trains by
            itself.
        scratch: Left empty.
        progress: Told when the subjects are ready, and at the end; in a game, of each trial.

    Returns:
        `claim`, `metrics` (see `workbench.studies.experiments.Outcome`; besides those `threshold`,
        `loss_member` and `loss_non_member` in nats a token, the attack's own as `attack_...`, and the
        transcript's), `scores`, `included`, `seeds`, `cost`, `versions`, `hardware`. Of a game: one score and
        label a trial, no perplexities and losses, and the numbers of
        `workbench.estimation.low_fpr.low_fpr_details`. Of games of consecutive weights also `audit`, see
        `workbench.games.consecutive.study.audit_form`.

    Raises:
        ContentError: a corpus or a model's files are not what the experiment's key says.
        InconclusiveError: a likelihood or a score is not finite: the training diverged.
    """
    if not payload.trainings:
        return _play(payload, progress)
    started = time.perf_counter()
    workers.require_content(payload.setup, payload.trainings[0].content)
    with one_thread():
        subjects = [_subject(payload, run, inputs[str(run)]) for run in range(len(payload.trainings))]
        progress(1, 2)
        candidates, _ = workers.prepare(payload.setup)
        target = _OnePass(subjects[0], candidates)
        likelihoods = target.token_log_likelihoods(candidates)
        if not all(np.isfinite(tokens).all() for tokens in likelihoods):
            raise InconclusiveError(_diverged("a log-likelihood", payload.setup.learning_rate))
        shadows = [membership(training) for training in payload.trainings[1:]]
        attacker = workers.create_attack(payload.setup, payload.attack)
        scores = attacker.score(
            target,
            candidates,
            References(subjects=tuple(subjects[1:]), included=np.array(shadows, dtype=bool)),
            stream(payload.setup.seed, "attack"),
        )
    if not np.isfinite(scores.values).all():
        raise InconclusiveError(_diverged("a score", payload.setup.learning_rate))
    included = membership(payload.trainings[0])
    metrics = _without_times(subjects[0].transcript.metrics)
    metrics |= {f"attack_{name}": float(value) for name, value in scores.details.items()}
    metrics |= _perplexities(likelihoods, included)
    metrics |= _midpoint(scores.values, included)
    progress(2, 2)
    return {
        "claim": _claim_form(subjects[0].claim),
        "metrics": plain(metrics),
        "scores": plain(scores.values),
        "included": plain(included),
        "seeds": {"experiment": payload.setup.seed, "training": subjects[0].plan.seed},
        "cost": cost_since(started),
        **_here(),
    }


def _play(payload: Measuring, progress: StepProgress) -> dict[str, Any]:
    """Play a game that trains by itself, and measure it; returns and raises as `measure`."""
    started = time.perf_counter()
    workers.require_content(payload.setup, payload.content)
    target = Training(setup=payload.setup, run=0, shadows=0, unreleased=False)
    if workers.create_attack(payload.setup, payload.attack).access is AccessLevel.CONSECUTIVE:
        return _play_consecutive(payload, membership(target), started, progress)
    with one_thread():
        plan = workers.make_plan(payload.setup, membership(target), 0)
        played, scores, details = _played(payload, plan, progress)
    metrics = _without_times(played.subject.transcript.metrics)
    metrics |= {f"attack_{name}": float(value) for name, value in details.items()}
    metrics |= low_fpr_details(scores.values, played.included)
    metrics |= _midpoint(scores.values, played.included)
    return {
        "claim": _claim_form(played.subject.claim),
        "metrics": plain(metrics),
        "scores": plain(scores.values),
        "included": plain(played.included),
        "seeds": {"experiment": payload.setup.seed, "training": played.subject.plan.seed},
        "cost": cost_since(started),
        **_here(),
    }


def _played(
    payload: Measuring, plan: Plan, progress: StepProgress
) -> tuple[_Played, Scores, Mapping[str, float]]:
    """Play the game of an attack that trains by itself: what it leaves, its scores, and their details."""
    setup, name = payload.setup, payload.attack
    attacker = workers.create_attack(setup, name)
    if attacker.access is AccessLevel.TRANSCRIPT:
        signs, scores = transcripts(setup, name, plan, progress)
        return signs, scores, scores.details
    from workbench.games.subset.play import play_subsets
    from workbench.games.subset.series import game_details

    reader = cast(Any, attacker)  # What only this game's attacks have: `trials` and `beliefs`.
    seed = stream_seed(setup.seed, "attack")
    mechanism = workers.create_mechanism(setup)
    played = play_subsets(mechanism, plan, trials=reader.trials, seed=seed, progress=progress)
    scored = stream(setup.seed, "attack")
    scores = attacker.score(played.subject, played.observations, References(), scored)
    details = game_details(played, reader.beliefs(played.observations))
    return played, scores, {**scores.details, **details}


def _play_consecutive(
    payload: Measuring, included: BoolArray, started: float, progress: StepProgress
) -> dict[str, Any]:
    """Train a target, and play, read and judge the games of its consecutive weights."""
    from workbench.games.consecutive.study import audit_form, flat_metrics, main_scores, play_consecutive

    setup, name = payload.setup, payload.attack
    with one_thread():
        plan = workers.make_plan(setup, included, 0)
        target = workers.create_mechanism(setup).train(plan)
        _require_finite_training(target.transcript, plan.learning_rate)
        games = play_consecutive(setup, name, target, _of_trainings(progress))
        audit = audit_form(setup, name, target, games)
    scores, members = main_scores(games)
    metrics = _without_times(target.transcript.metrics) | flat_metrics(audit)
    metrics |= low_fpr_details(scores, members) | _midpoint(scores, members)
    return {
        "claim": _claim_form(target.claim),
        "metrics": plain(metrics),
        "scores": plain(scores),
        "included": plain(members),
        "audit": audit,
        "seeds": {"experiment": setup.seed, "training": target.plan.seed},
        "cost": cost_since(started),
        **_here(),
    }


def _of_trainings(progress: StepProgress) -> StepProgress:
    """The trainings of a game alone: releases are quick beside them, and would spoil a job's pace."""

    def trainings(done: int, total: int, part: str = "") -> None:
        if part == RUN:
            progress(done, total)

    return trainings


@lru_cache(maxsize=1)
def _here() -> dict[str, Any]:
    """What this worker computes with; it need not be the parent's machine."""
    return {"versions": versions(), "hardware": hardware()}


def _subject(payload: Measuring, run: int, folder: Path) -> Subject:
    """The subject that is given away: the trained one, or its release under the experiment's budget."""
    training, key = payload.trainings[run], payload.keys[run]
    trained = _recent.get(key)
    if trained is None:
        from workbench.training.subject import load_subject

        plan = workers.make_plan(training.setup, membership(training), run)
        trained = load_subject(folder, workers.create_mechanism(training.setup), plan)
        _recent[key] = trained
    _recent.move_to_end(key)
    while len(_recent) > SUBJECTS_KEPT:
        _recent.popitem(last=False)
    mechanism = workers.create_mechanism(payload.setup)
    if not isinstance(mechanism, PostHocMechanism):
        return trained
    if getattr(mechanism, "measures_quality", False):
        # The measuring reads all candidates itself; reading them in the release too would double its time.
        mechanism = replace(cast(Any, mechanism), measures_quality=False)
    return mechanism.release(trained, workers.make_plan(payload.setup, membership(training), run))


class _OnePass:
    """A subject that reads the candidates once, for the attack and for the perplexities."""

    def __init__(self, subject: Subject, candidates: Sequence[Record]) -> None:
        self._subject = subject
        self._candidates = tuple(candidates)
        self._found: list[FloatArray] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """Those of the candidates are remembered."""
        if tuple(records) != self._candidates:
            return self._subject.token_log_likelihoods(records)
        if self._found is None:
            self._found = self._subject.token_log_likelihoods(records)
        return [tokens.copy() for tokens in self._found]


def _perplexities(likelihoods: Sequence[FloatArray], included: BoolArray) -> dict[str, float]:
    """Exponential of the mean negative log-likelihood over a class's tokens; infinite beyond exp(700)."""
    found = {}
    for name, wanted in (("member", True), ("non_member", False)):
        tokens = [values for values, inside in zip(likelihoods, included, strict=True) if inside == wanted]
        loss = -float(np.concatenate(tokens).mean())
        found[f"loss_{name}"] = loss
        found[f"perplexity_{name}"] = math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf
    return found


def _midpoint(scores: FloatArray, included: BoolArray) -> dict[str, float]:
    found = midpoint_threshold_metrics(scores, included)
    return {
        "roc_auc": found.auc,
        "accuracy": found.accuracy,
        "precision": found.precision,
        "recall": found.recall,
        "f1": found.f1,
        "threshold": found.threshold,
    }


def _require_finite_training(transcript: Transcript, learning_rate: float) -> None:
    """Refuse a training whose loss left the finite numbers.

    An empty sample has no loss; nor has a step of a mechanism that may look at no record, and counts such
    silent steps. Where it says which steps were not silent, those must have one.

    Raises:
        InconclusiveError: it did.
    """
    legal = transcript.sample_sizes == 0
    if "silent_steps" in transcript.metrics:
        silent = np.isnan(transcript.losses)
        if transcript.released_signs is not None:
            silent[transcript.released_signs.fired[:, 0]] = False
        legal |= silent
    wrong = ~np.isfinite(transcript.losses) & ~legal
    if wrong.any():
        raise InconclusiveError(_diverged(f"the loss of step {int(np.argmax(wrong)) + 1}", learning_rate))


def _diverged(what: str, learning_rate: float) -> str:
    return f"{what} is not finite: the training diverged; try a learning_rate below {learning_rate:g}"


def _step_times(metrics: Mapping[str, float]) -> dict[str, float]:
    """What the steps themselves took, without the model's building and its evaluation."""
    return {name: float(metrics[name]) for name in STEP_TIMES if name in metrics}


def _without_times(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without `seconds` and the like, which are costs and differ from run to run."""
    return {name: float(value) for name, value in metrics.items() if not name.endswith("seconds")}


def _claim_form(claim: Claim) -> dict[str, Any]:
    form: dict[str, Any] = plain(claim)
    return {**form, "text": claim.describe()}
