"""The work functions of a study's jobs: train a subject; or release, attack and measure it.

Both have the signature of `workbench.execution.tasks.Work`, and are pure in their payload.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from workbench.core.cost import cost_since
from workbench.core.errors import InconclusiveError
from workbench.core.keys import plain
from workbench.estimation import midpoint_threshold_metrics
from workbench.estimation.low_fpr import low_fpr_details
from workbench.execution.engine import hardware, versions
from workbench.execution.processes import one_thread
from workbench.execution.tasks import StepProgress
from workbench.games.base import Match, Outcome, Part, game_of, match_of
from workbench.interfaces import BoolArray, Claim, FloatArray, PostHocMechanism, Record, Subject, Transcript
from workbench.studies.experiments import STEP_TIMES
from workbench.studies.jobs import Measuring, Training, membership
from workbench.training.setup import create_mechanism, make_plan, require_content

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
        name), `metrics`, `cost` (with `STEP_TIMES`, where the mechanism measures them), and `versions` and
        `hardware` of where this runs.

    Raises:
        ContentError: a corpus or a model's files are not what the experiment's key says.
        InconclusiveError: training left the finite numbers.
    """
    started = time.perf_counter()
    require_content(payload.setup, payload.content)
    with one_thread():
        plan = make_plan(payload.setup, membership(payload), payload.run)
        mechanism = create_mechanism(payload.setup)
        if payload.unreleased and isinstance(mechanism, PostHocMechanism):
            subject = mechanism.train_unreleased(plan, progress)
        else:
            subject = mechanism.train(plan, progress)
        require_finite_training(subject.transcript, plan.learning_rate)
        subject.save(scratch)
    record = training_record(subject)
    return {**record, "cost": {**cost_since(started), **record["cost"]}}


def training_record(subject: Subject) -> dict[str, Any]:
    """Returns what `train` returns of a trained subject; of its cost, the times of its steps alone."""
    return {
        "claim": _claim_form(subject.claim),
        "losses": plain(subject.transcript.losses),
        "traces": plain(subject.transcript.traces),
        "metrics": _without_times(subject.transcript.metrics),
        "cost": _step_times(subject.transcript.metrics),
        **_here(),
    }


def measure(
    payload: Measuring, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Release what is released after training, attack it, and measure it.

    Args:
        inputs: Folders of the target (`"0"`) and of its shadows (`"1"`, ...); none where a game trains by
            itself.
        scratch: Left empty.
        progress: Called when the subjects are ready, and at the end; in a game, after each trial.

    Returns:
        `claim`, `metrics` (see `workbench.studies.experiments.Outcome`; besides those `threshold`,
        `loss_member` and `loss_non_member` in nats a token, the attack's own as `attack_...`, and the
        transcript's), `scores`, `included`, `seeds`, `cost`, `versions`, `hardware`. Of a game: one score and
        label a trial, no perplexities and losses, and the numbers of
        `workbench.estimation.low_fpr.low_fpr_details`; and what the game itself adds.

    Raises:
        ContentError: a corpus or a model's files are not what the experiment's key says.
        InconclusiveError: a likelihood or a score is not finite: the training diverged.
    """
    if not payload.trainings:
        return _play(payload, progress)
    started = time.perf_counter()
    require_content(payload.setup, payload.trainings[0].content)
    with one_thread():
        subjects = [_subject(payload, run, inputs[str(run)]) for run in range(len(payload.trainings))]
        progress(1, 2)
        match = _match(payload, progress)
        candidates = match.candidates()
        candidates = tuple(candidates[place] for place in match.scored())
        target = cast(Subject, _OnePass(subjects[0], candidates))
        likelihoods = target.token_log_likelihoods(candidates)
        if not all(np.isfinite(tokens).all() for tokens in likelihoods):
            raise InconclusiveError(_diverged("a log-likelihood", payload.setup.learning_rate))
        match = replace(match, plan=subjects[0].plan, target=target, references=tuple(subjects[1:]))
        game = game_of(match.attack)
        outcome = game.outcome(match, game.play(match))
    if not np.isfinite(outcome.scores).all():
        raise InconclusiveError(_diverged("a score", payload.setup.learning_rate))
    metrics = _without_times(subjects[0].transcript.metrics) | dict(outcome.metrics)
    metrics |= _perplexities(likelihoods, outcome.members)
    metrics |= _midpoint(outcome.scores, outcome.members)
    progress(2, 2)
    seed = subjects[0].plan.seed
    return _measured(payload, outcome, subjects[0].claim, metrics=metrics, seed=seed, started=started)


def _play(payload: Measuring, progress: StepProgress) -> dict[str, Any]:
    """Play a game of its own trainings, and measure it; returns and raises as `measure`."""
    started = time.perf_counter()
    require_content(payload.setup, payload.content)
    with one_thread():
        match = _match(payload, progress)
        game = game_of(match.attack)
        game.check(match)
        if game.uses_target:
            target = match.mechanism.train(match.plan)
            require_finite_training(target.transcript, match.plan.learning_rate)
            match = replace(match, plan=target.plan, target=target)
        played = game.play(match)
        outcome = game.outcome(match, played)
    claim, seed, metrics = match.mechanism.claim(match.plan), match.plan.seed, dict[str, float]()
    if played.subject is not None:
        claim, seed = played.subject.claim, played.subject.plan.seed
        metrics = _without_times(played.subject.transcript.metrics)
    metrics |= outcome.metrics
    metrics |= low_fpr_details(outcome.scores, outcome.members)
    metrics |= _midpoint(outcome.scores, outcome.members)
    return _measured(payload, outcome, claim, metrics=metrics, seed=seed, started=started)


def _measured(
    payload: Measuring,
    outcome: Outcome,
    claim: Claim,
    *,
    metrics: Mapping[str, float],
    seed: int,
    started: float,
) -> dict[str, Any]:
    """What a measuring's record keeps."""
    return {
        "claim": _claim_form(claim),
        "metrics": plain(metrics),
        "scores": plain(outcome.scores),
        "included": plain(outcome.members),
        **outcome.extra,
        "seeds": {"experiment": payload.setup.seed, "training": seed},
        "cost": cost_since(started),
        **_here(),
    }


def _match(payload: Measuring, progress: StepProgress) -> Match[Any]:
    """The whole game of an experiment, in one part, on the candidates of its split."""
    setup = payload.setup
    trainings = payload.trainings or (Training(setup=setup, run=0, shadows=0, unreleased=False),)
    rows = [tuple(membership(training).tolist()) for training in trainings]
    part = Part(setup=setup, attack=payload.attack, included=rows[0], shadows=tuple(rows[1:]), by_coin=False)
    return match_of(part, {}, progress)


@lru_cache(maxsize=1)
def _here() -> dict[str, Any]:
    """Versions and hardware of this worker, which need not be those of the parent's machine."""
    return {"versions": versions(), "hardware": hardware()}


def _subject(payload: Measuring, run: int, folder: Path) -> Subject:
    """The subject that is attacked: the trained one, or its release under the experiment's budget."""
    training, key = payload.trainings[run], payload.keys[run]
    trained = _recent.get(key)
    if trained is None:
        from workbench.training.loop import load_subject

        plan = make_plan(training.setup, membership(training), run)
        trained = load_subject(folder, create_mechanism(training.setup), plan)
        _recent[key] = trained
    _recent.move_to_end(key)
    while len(_recent) > SUBJECTS_KEPT:
        _recent.popitem(last=False)
    mechanism = create_mechanism(payload.setup)
    if not isinstance(mechanism, PostHocMechanism):
        return trained
    # The measuring reads all candidates itself; reading them in the release too would double its time.
    return mechanism.without_quality().release(trained, make_plan(payload.setup, membership(training), run))


class _OnePass:
    """A subject that reads the candidates once, for the attack and for the perplexities."""

    def __init__(self, subject: Subject, candidates: Sequence[Record]) -> None:
        self._subject = subject
        self._candidates = tuple(candidates)
        self._found: list[FloatArray] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """As the subject's; those of the candidates are computed once."""
        if tuple(records) != self._candidates:
            return self._subject.token_log_likelihoods(records)
        if self._found is None:
            self._found = self._subject.token_log_likelihoods(records)
        return [tokens.copy() for tokens in self._found]


def _perplexities(likelihoods: Sequence[FloatArray], included: BoolArray) -> dict[str, float]:
    """Exponential of the mean negative log-likelihood over a class's tokens; infinite beyond exp(700)."""
    metrics = {}
    for name, wanted in (("member", True), ("non_member", False)):
        tokens = [values for values, inside in zip(likelihoods, included, strict=True) if inside == wanted]
        loss = -float(np.concatenate(tokens).mean())
        metrics[f"loss_{name}"] = loss
        metrics[f"perplexity_{name}"] = math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf
    return metrics


def _midpoint(scores: FloatArray, included: BoolArray) -> dict[str, float]:
    metrics = midpoint_threshold_metrics(scores, included)
    return {
        "roc_auc": metrics.auc,
        "accuracy": metrics.accuracy,
        "precision": metrics.precision,
        "recall": metrics.recall,
        "f1": metrics.f1,
        "threshold": metrics.threshold,
    }


def require_finite_training(transcript: Transcript, learning_rate: float) -> None:
    """Raise InconclusiveError for a training whose loss left the finite numbers.

    An empty sample has no loss; nor has a step of a mechanism that may look at no record, and counts such
    silent steps. Where it says which steps were not silent, those must have one.
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
    """Seconds of the steps themselves, without building the model and evaluating it."""
    return {name: float(metrics[name]) for name in STEP_TIMES if name in metrics}


def _without_times(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without `seconds` and the like, which are costs and differ from run to run."""
    return {name: float(value) for name, value in metrics.items() if not name.endswith("seconds")}


def _claim_form(claim: Claim) -> dict[str, Any]:
    form: dict[str, Any] = plain(claim)
    return {**form, "text": claim.describe()}
