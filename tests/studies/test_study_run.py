"""Running a study: what is shared is done once, what is measured is right, and what fails is recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_driver as driver
from study_driver import training_key

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.registry import Entry
from workbench.execution.backend import make_backend
from workbench.execution.processes import one_thread
from workbench.execution.store import Store
from workbench.execution.tasks import WORKER_DIED, Event, Failed, Finished, Started, Task
from workbench.games.membership import MembershipAttack, MembershipSeen
from workbench.interfaces import Scores
from workbench.studies import run as study_run
from workbench.studies.experiments import Experiment, Status
from workbench.studies.jobs import JobKind, jobs_of, setup_of
from workbench.studies.results import pending, read_results
from workbench.studies.run import RunOptions, Skipped, read_run, run_study
from workbench.training import setup as workers

experiment, study_of = driver.experiment, driver.study_of

HERE = RunOptions(workers=0)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Callable[..., Any]], None]:
    """Register something for the length of a test."""

    def add(kind: str, name: str, factory: Callable[..., Any]) -> None:
        registry.entries(kind)
        known = registry._entries[kind]
        monkeypatch.setitem(known, name, Entry(name=name, factory=factory, summary=""))

    return add


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample study, run once in this process."""
    out = tmp_path_factory.mktemp("study")
    run_study(driver.sample_study(), out=out, options=HERE)
    return out


def key(found: Experiment) -> str:
    return jobs_of(found).measuring.key


# What is measured


def test_the_first_members_and_as_many_others_are_scored_where_the_experiment_says_so(tmp_path: Path) -> None:
    """Part of an epoch, too: 40 records in batches of 10, of which 1.5 epochs are six steps."""
    whole = experiment(variant="DP-SGD", mechanism="dp_sgd", epochs=1.5)
    study = study_of(whole, replace(whole, scored_members=7))
    run_study(study, out=tmp_path, options=HERE)
    every, some = read_results(study, Store(tmp_path / "store")).outcomes
    assert len(every.training_losses) == 6
    assert every.training_losses == some.training_losses
    places = np.array(every.included)
    kept = np.sort(np.concatenate([np.flatnonzero(places)[:7], np.flatnonzero(~places)[:7]]))
    assert (len(every.scores), len(some.scores), sum(some.included)) == (80, 14, 7)
    assert some.scores == tuple(np.array(every.scores)[kept])
    assert some.included == tuple(places[kept])
    assert some.metrics["train_perplexity_after"] == pytest.approx(
        some.metrics["perplexity_member"], rel=1e-6
    )
    assert some.metrics["test_perplexity_after"] == every.metrics["test_perplexity_after"]


def test_what_an_attack_without_candidates_scores_cannot_be_fewer() -> None:
    refusal = jobs_of(experiment(attack="sign_transcript", attack_parameters={}, scored_members=7)).refusal
    assert refusal is not None
    assert "scored_members must not be given, got 7: attack 'sign_transcript' scores no" in refusal.message


def test_the_sample_study_ends_as_it_must(ran: Path) -> None:
    results = read_results(driver.sample_study(), Store(ran / "store"))
    by_variant: dict[str, set[Status]] = {}
    for outcome in results.outcomes:
        by_variant.setdefault(outcome.experiment.variant, set()).add(outcome.status)
    assert by_variant == {
        "DP-Weights": {Status.DONE},
        "DP-SGD": {Status.DONE},
        "fine-tuned": {Status.DONE},
        "diverges": {Status.FAILED},
        "too large": {Status.FAILED},
    }
    errors = {outcome.experiment.variant: outcome.error for outcome in results.outcomes if outcome.error}
    assert errors["diverges"].startswith("its training failed: InconclusiveError: step ")
    assert "not finite" in errors["diverges"]
    assert errors["too large"].startswith("RoomError: ")
    assert "2000" in errors["too large"]
    assert len(results.done(variant="DP-Weights", seed=1)) == 3


def test_a_second_run_has_nothing_to_do(ran: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (ran / "store").rglob("*") if path.is_file()}
    summary = run_study(driver.sample_study(), out=ran, options=HERE)
    assert (summary.done, summary.failed, summary.skipped, summary.trained) == (0, 4, 12, 0)
    assert before == {path: path.stat().st_mtime_ns for path in (ran / "store").rglob("*") if path.is_file()}


def test_one_training_for_all_budgets_of_a_post_hoc_mechanism(tmp_path: Path) -> None:
    found = study_of(*(experiment(epsilon=e) for e in (1.0, 2.0, 4.0, 8.0)))
    events: list[Any] = []
    summary = run_study(found, out=tmp_path, options=HERE, listener=events.append)
    assert (summary.done, summary.failed, summary.skipped, summary.trained) == (4, 0, 0, 1)
    assert sum(isinstance(event, Finished) for event in events) == 5
    assert not list((tmp_path / "store" / "scratch").iterdir())
    released = [
        o.metrics["perplexity_member"] for o in read_results(found, Store(tmp_path / "store")).outcomes
    ]
    assert len(set(released)) == 4


@pytest.mark.parametrize("mechanism", ["dp_weights", "dp_sgd", "non_private"])
def test_metrics_are_those_of_the_mechanisms_own_training(tmp_path: Path, mechanism: str) -> None:
    """A naive twin: train in one go, score, and compute each number as its definition reads."""
    found = experiment(mechanism=mechanism)
    run_study(study_of(found), out=tmp_path, options=HERE)
    outcome = read_results(study_of(found), Store(tmp_path / "store")).outcomes[0]
    included = np.array(outcome.included)
    setup = setup_of(found)
    with one_thread():
        subject = workers.create_mechanism(setup).train(workers.make_plan(setup, included, 0))
        candidates = workers.load_corpus(setup).records
        likelihoods = np.array([float(t.mean()) for t in subject.token_log_likelihoods(candidates)])
    metrics = outcome.metrics
    assert outcome.scores == pytest.approx(likelihoods, rel=1e-6)
    assert metrics["perplexity_member"] == pytest.approx(np.exp(-likelihoods[included].mean()))
    assert metrics["perplexity_non_member"] == pytest.approx(np.exp(-likelihoods[~included].mean()))
    assert metrics["perplexity_member"] == pytest.approx(subject.transcript.metrics["train_perplexity_after"])
    pairs = likelihoods[included][:, None] - likelihoods[~included][None, :]
    assert metrics["roc_auc"] == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)
    threshold = (likelihoods[included].mean() + likelihoods[~included].mean()) / 2
    guesses = likelihoods >= threshold
    assert metrics["accuracy"] == pytest.approx((guesses == included).mean())
    assert metrics["precision"] == pytest.approx(included[guesses].mean())
    assert metrics["recall"] == pytest.approx(guesses[included].mean())
    assert metrics["f1"] == pytest.approx(
        2 * metrics["precision"] * metrics["recall"] / (metrics["precision"] + metrics["recall"])
    )
    assert outcome.claim is not None
    assert outcome.claim["text"] == subject.claim.describe()
    assert set(outcome.cost) == {"seconds", "peak_memory_mb", "training_seconds"}
    assert 0 < outcome.cost["training_seconds"] < 60
    assert outcome.training_losses == pytest.approx(subject.transcript.losses.tolist(), rel=1e-6)
    assert not any(name.endswith("seconds") for name in metrics)


def test_an_attack_with_shadows_gets_them_released_under_the_same_budget(tmp_path: Path) -> None:
    found = study_of(
        *(
            experiment(attack="lira", attack_parameters={"shadows": 4, "canaries": 0.0}, epsilon=e)
            for e in (8.0, 64.0)
        )
    )
    summary = run_study(found, out=tmp_path, options=HERE)
    assert (summary.done, summary.failed, summary.trained) == (2, 0, 5)
    first, second = read_results(found, Store(tmp_path / "store")).outcomes
    assert first.scores != second.scores
    assert len(jobs_of(found.experiments[0]).measuring.needs) == 5


@pytest.mark.slow
def test_text_is_measured_too(tmp_path: Path) -> None:
    found = experiment(
        corpus="clinical",
        model="tiny_gpt2",
        model_parameters={"max_length": 32},
        members=10,
        batch_size=5,
        epochs=1,
    )
    run_study(study_of(found), out=tmp_path, options=HERE)
    outcome = read_results(study_of(found), Store(tmp_path / "store")).outcomes[0]
    setup = setup_of(found)
    with one_thread():
        plan = workers.make_plan(setup, np.array(outcome.included), 0)
        own = workers.create_mechanism(setup).train(plan).transcript.metrics
    assert outcome.metrics["perplexity_member"] == pytest.approx(own["train_perplexity_after"], rel=1e-6)
    assert len(outcome.scores) == 20


# Failures


def test_a_release_attack_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    found = study_of(experiment(attack="dirac_canary", attack_parameters={}))
    summary = run_study(found, out=tmp_path, options=HERE)
    assert (summary.failed, summary.trained) == (1, 0)
    outcome = read_results(found, Store(tmp_path / "store")).outcomes[0]
    assert outcome.error.startswith("UnsupportedError: the mechanism releases its final weights; a canary's")


class _Touchy(MembershipAttack):
    """An attack that raises, or scores by what is no number, where it is told to."""

    broken = True

    def __init__(self, *, fault: str = "") -> None:
        self.fault = fault

    def score(self, seen: MembershipSeen, generator: np.random.Generator) -> Scores:
        if self.fault == "raise" and _Touchy.broken:
            raise ZeroDivisionError("two\nlines")
        value = np.nan if self.fault == "nan" and _Touchy.broken else 1.0
        return Scores(values=np.linspace(0.0, value, len(seen.records)))


def test_failures_are_recorded_and_done_again_only_when_asked(
    tmp_path: Path, register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    register("attack", "touchy", _Touchy)
    faults = [experiment(attack="touchy", attack_parameters={"fault": f}) for f in ("", "raise", "nan")]
    found = study_of(*faults)
    summary = run_study(found, out=tmp_path, options=HERE)
    assert (summary.done, summary.failed, summary.trained) == (1, 2, 1)
    store = Store(tmp_path / "store")
    errors = [outcome.error for outcome in read_results(found, store).outcomes]
    assert errors[:2] == ["", "ZeroDivisionError: two lines"]
    assert errors[2].startswith("InconclusiveError: a score is not finite: the training diverged")
    record = store.read(key(faults[1]))
    assert record is not None
    assert record["status"] == "failed"
    assert (record["error"]["kind"], record["error"]["message"]) == ("ZeroDivisionError", "two lines")
    assert 'raise ZeroDivisionError("two\\nlines")' in record["error"]["traceback"]
    diverged = store.read(key(faults[2]))
    assert diverged is not None
    assert set(diverged["error"]) == {"kind", "message"}  # Raised on purpose: the line says all.
    assert record["versions"]["python"]
    assert record["hardware"]["cores"] >= 1
    monkeypatch.setattr(_Touchy, "broken", False)
    assert run_study(found, out=tmp_path, options=HERE).failed == 2
    again = run_study(found, out=tmp_path, options=replace(HERE, retry_failed=True))
    assert (again.done, again.failed, again.skipped, again.trained) == (2, 0, 1, 0)


def test_a_failed_training_fails_its_dependants_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.training.loop import GradientMechanism

    found = study_of(*(experiment(epsilon=e) for e in (1.0, 2.0)), experiment(mechanism="non_private"))
    train = GradientMechanism.trained

    def refuse(self: GradientMechanism, *arguments: Any) -> Any:
        if type(self).__name__ == "DPWeights":
            raise MemoryError("no room")
        return train(self, *arguments)

    monkeypatch.setattr(GradientMechanism, "trained", refuse)
    events: list[Any] = []
    summary = run_study(found, out=tmp_path, options=HERE, listener=events.append)
    assert (summary.done, summary.failed, summary.trained) == (1, 2, 1)
    told = [event.message for event in events if isinstance(event, Failed)]
    assert told == ["no room"] + ["its training failed: no room"] * 2
    outcomes = read_results(found, Store(tmp_path / "store")).outcomes
    assert [o.error for o in outcomes] == ["its training failed: MemoryError: no room"] * 2 + [""]
    monkeypatch.setattr(GradientMechanism, "trained", train)
    assert run_study(found, out=tmp_path, options=HERE).failed == 2
    assert run_study(found, out=tmp_path, options=replace(HERE, retry_failed=True)).done == 2


def test_an_experiment_whose_worker_dies_is_a_recorded_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study_of(*(experiment(epsilon=e) for e in (1.0, 2.0)))
    deadly = key(found.experiments[0])
    real = _Watched.wait

    def wait(self: _Watched, timeout: float) -> list[Event]:
        return [
            Failed(event.task, "worker 1", WORKER_DIED, "killed by signal 9")
            if isinstance(event, Finished) and event.task.id == deadly
            else event
            for event in real(self, timeout)
        ]

    monkeypatch.setattr(_Watched, "wait", wait)
    _watch(monkeypatch)
    summary = run_study(found, out=tmp_path, options=HERE)
    assert (summary.done, summary.failed) == (1, 1)
    outcome = read_results(found, Store(tmp_path / "store")).outcomes[0]
    assert outcome.error == "worker died: killed by signal 9"


# The order of work


class _Watched:
    """A backend in this process that writes down what is asked of it, and claims a larger capacity."""

    capacity = 3

    def __init__(self, before: Callable[[Task], None] | None = None, **arguments: Any) -> None:
        self.inner = make_backend(**arguments)
        self.before = before
        self.submitted: list[Task] = []
        self.under_way = 0
        self.most_under_way = 0

    def submit(self, task: Task) -> None:
        if self.before is not None:
            self.before(task)
        self.submitted.append(task)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.inner.submit(task)

    def wait(self, timeout: float) -> list[Event]:
        events = self.inner.wait(timeout)
        self.under_way -= sum(isinstance(event, Finished | Failed) for event in events)
        return events

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.close()


def _watch(monkeypatch: pytest.MonkeyPatch, before: Callable[[Task], None] | None = None) -> list[_Watched]:
    made: list[_Watched] = []

    def make(**arguments: Any) -> _Watched:
        made.append(_Watched(before, **arguments))
        return made[0]

    monkeypatch.setattr(study_run, "make_backend", make)
    return made


def test_no_more_is_submitted_than_wanted_and_measurings_come_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _watch(monkeypatch)
    found = study_of(*(experiment(seed=s, epsilon=e) for s in range(6) for e in (1.0, 2.0)))
    run_study(found, out=tmp_path, options=HERE)
    kinds = ["m" if task.inputs else "t" for task in made[0].submitted]
    assert (kinds.count("t"), kinds.count("m")) == (6, 12)
    assert made[0].most_under_way == 3
    assert kinds.index("m") <= 4
    assert all(kinds[: i + 1].count("t") <= kinds[:i].count("m") / 2 + 3 for i in range(len(kinds)))


def test_what_another_parent_did_meanwhile_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first submission another parent runs the whole study; one job is under way, none follows."""
    found = study_of(*(experiment(seed=s, epsilon=e) for s in range(2) for e in (1.0, 2.0)))
    real = study_run.make_backend

    def other(task: Task) -> None:
        if len(made[0].submitted) == 0:
            monkeypatch.setattr(study_run, "make_backend", real)
            run_study(found, out=tmp_path, options=HERE)

    made = _watch(monkeypatch, other)
    events: list[Any] = []
    summary = run_study(found, out=tmp_path, options=HERE, listener=events.append)
    assert len(made[0].submitted) == 1
    assert (summary.done, summary.skipped, summary.failed) == (0, 4, 0)
    assert sum(isinstance(event, Skipped) for event in events) == 5


def test_a_subject_that_is_lost_is_trained_again(tmp_path: Path) -> None:
    first, second = study_of(experiment(epsilon=1.0)), study_of(experiment(epsilon=2.0))
    run_study(first, out=tmp_path, options=HERE)
    store = Store(tmp_path / "store")
    place = store.subject_folder(training_key(experiment()))
    assert place is not None
    (place / "parameters.safetensors").write_bytes(b"cut")
    assert len(pending(second, store).trainings) == 1
    summary = run_study(second, out=tmp_path, options=HERE)
    assert (summary.done, summary.failed, summary.trained) == (1, 0, 1)
    assert not pending(first, store).trainings  # Measured already: nothing needs its subject.


def test_pending_counts_what_is_shared_once(tmp_path: Path) -> None:
    shared = experiment()
    found = study_of(shared, replace(shared, group="again"), experiment(epsilon=1.0))
    plan = pending(found, Store(tmp_path))
    assert (len(plan.trainings), len(plan.measurings), plan.done, plan.failed) == (1, 2, 0, 0)
    assert {job.kind for job in plan.trainings} == {JobKind.TRAINING}
    summary = run_study(found, out=tmp_path, options=HERE)
    assert summary.done == 2
    outcomes = read_results(found, Store(tmp_path / "store")).outcomes
    assert [outcome.experiment.group for outcome in outcomes] == ["all", "again", "all"]
    assert outcomes[0].scores == outcomes[1].scores


# What is left behind


def test_missing_experiments_are_missing(tmp_path: Path) -> None:
    outcome = read_results(study_of(experiment()), Store(tmp_path)).outcomes[0]
    assert (outcome.status, outcome.metrics, outcome.scores, outcome.error) == (Status.MISSING, {}, (), "")


def test_the_run_file_remembers_what_was_run(tmp_path: Path) -> None:
    run_study(
        study_of(), out=tmp_path, options=replace(HERE, source="my.toml", command="workbench run my.toml")
    )
    found = read_run(tmp_path)
    assert (found["study"], found["name"], found["profile"]) == ("my.toml", "sample", "quick")
    assert (found["source_sha256"], found["command"]) == ("0" * 64, "workbench run my.toml")
    assert found["created"].endswith("Z")
    for damaged in (
        json.dumps(found)[:40],
        json.dumps(found | {"looks": 3}),
        json.dumps(found | {"only": 3}),
    ):
        (tmp_path / "run.json").write_text(damaged)
        with pytest.raises(InputError, match=r"cannot read .*run\.json: it is damaged"):
            read_run(tmp_path)
    with pytest.raises(InputError, match="no study was run in"):
        read_run(tmp_path / "elsewhere")


def test_an_interrupted_run_keeps_what_is_done(tmp_path: Path) -> None:
    found = study_of(*(experiment(epsilon=e) for e in (1.0, 2.0, 4.0)))
    ended = 0

    def stop(event: Any) -> None:
        nonlocal ended
        ended += isinstance(event, Finished)
        if ended == 2 and isinstance(event, Started):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(found, out=tmp_path, options=HERE, listener=stop)
    store = Store(tmp_path / "store")
    assert [o.status for o in read_results(found, store).outcomes].count(Status.DONE) == 1
    assert not list((tmp_path / "store" / "scratch").iterdir())
    summary = run_study(found, out=tmp_path, options=HERE)
    assert (summary.done, summary.skipped, summary.trained) == (2, 1, 0)


@pytest.mark.slow
def test_a_pool_gives_the_records_of_this_process(ran: Path, tmp_path: Path) -> None:
    run_study(driver.sample_study(), out=tmp_path, options=RunOptions(workers=2))
    records = [dict(Store(place / "store").records()) for place in (ran, tmp_path)]
    assert records[0].keys() == records[1].keys()
    for name, record in records[0].items():
        assert {**record, "cost": 0} == {**records[1][name], "cost": 0}


def test_nothing_heavy_is_imported_to_look_at_a_study(tmp_path: Path) -> None:
    code = (
        "import sys, workbench.studies.run\n"
        "heavy = {'torch', 'distributed', 'statsmodels', 'scipy.stats'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
