"""Studies with budgets in nats, and what else a plan is told since then: weight decay, schedule, warm-up."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_driver as driver
from study_driver import training_key

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError
from workbench.core.registry import Entry
from workbench.execution.store import Store
from workbench.interfaces import Currency, ReleasedSigns, Schedule, Secret, Transcript
from workbench.studies import work
from workbench.studies.experiments import Experiment, Status, Study
from workbench.studies.jobs import jobs_of, membership, setup_of
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.studies.study import load_study, select
from workbench.training import setup as workers

experiment, study_of = driver.experiment, driver.study_of

HERE = RunOptions(workers=0)

FILE = """
schema = 1
title = "Nats beside (epsilon, delta)"
replication = "seed"

[base]
attack = "loss"
attack_parameters = { canaries = 0.0 }
corpus = "digits"
model = "digits_logistic"
members = 100
epochs = 1
batch_size = 10
learning_rate = 1e-3
seed = 0
delta = "1/N^2"

[variant."DP-SGD"]
mechanism = "dp_sgd"

[variant."Nats"]
mechanism = "non_private"
currency = "record-nats"
weight_decay = 1e-3

[variant."Plain"]
mechanism = "non_private"
schedule = "linear"
warmup = 0.1
without = ["epsilon"]

[[group]]
name = "all"
grid = { epsilon = [0.5, 1] }
"""


def study(folder: Path, text: str = FILE) -> Study:
    path = folder / "mine.toml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return load_study(str(path))


def refusal(folder: Path, old: str, new: str) -> str:
    """The one line with which the file, with one thing changed, is refused."""
    assert old in FILE
    with pytest.raises(InputError) as caught:
        study(folder, FILE.replace(old, new))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("study 'mine': ")


def of(found: Study, variant: str) -> list[Experiment]:
    return [one for one in found.experiments if one.variant == variant]


# Budgets


def test_a_study_mixes_budgets_in_nats_and_in_epsilon_and_delta(tmp_path: Path) -> None:
    found = study(tmp_path)
    assert [one.budget for one in of(found, "DP-SGD")] == [
        ApproximateDP(epsilon=epsilon, delta=1e-4) for epsilon in (0.5, 1.0)
    ]
    nats = of(found, "Nats")
    assert [one.budget for one in nats] == [
        MutualInformation(nats=nats, secret=Secret.RECORD) for nats in (0.5, 1.0)
    ]
    assert {one.delta for one in nats} == {None}
    assert [one.budget for one in of(found, "Plain")] == [None]


def test_names_say_in_which_currency_a_budget_is(tmp_path: Path) -> None:
    found = study(tmp_path)
    names = {variant: of(found, variant)[0].name for variant in ("DP-SGD", "Nats", "Plain")}
    assert names == {
        "DP-SGD": "DP-SGD, epsilon 0.5, batch_size 10, epochs 1, seed 0",
        "Nats": "Nats, 0.5 nats, batch_size 10, epochs 1, seed 0",
        "Plain": "Plain, batch_size 10, epochs 1, seed 0",
    }


def test_nats_need_no_delta_at_all(tmp_path: Path) -> None:
    text = FILE.replace('delta = "1/N^2"\n', "").replace('[variant."DP-SGD"]\nmechanism = "dp_sgd"\n', "")
    assert len(of(study(tmp_path, text), "Nats")) == 2


def test_an_axis_of_deltas_does_not_repeat_what_has_none(tmp_path: Path) -> None:
    found = study(
        tmp_path, FILE.replace("epsilon = [0.5, 1] }", "epsilon = [0.5, 1], delta = [1e-5, 1e-6] }")
    )
    assert [len(of(found, variant)) for variant in ("DP-SGD", "Nats", "Plain")] == [4, 2, 1]


def test_nats_about_a_subset_are_another_secret(tmp_path: Path) -> None:
    found = of(study(tmp_path, FILE.replace("record-nats", "subset-nats")), "Nats")
    assert found[0].budget == MutualInformation(nats=0.5, secret=Secret.SUBSET)


def test_a_parameter_that_is_infinite_by_default_may_be_said_to_be(tmp_path: Path) -> None:
    """Said or not, it is the same experiment."""
    text = FILE.replace('"non_private"\ncurrency = "record-nats"', '"paczero"\ncurrency = "subset-nats"')
    text = text.replace("weight_decay = 1e-3\n", 'optimizer = "sgd"\nbatch_size = 100\n%s')
    said, unsaid = (
        of(study(tmp_path, text % clip), "Nats")[0]
        for clip in ("mechanism_parameters = { clip = inf }\n", "")
    )
    assert said.mechanism_parameters == {"clip": float("inf")}
    assert jobs_of(said).measuring.key == jobs_of(unsaid).measuring.key
    assert training_key(said) == training_key(unsaid)


def test_experiments_are_selected_by_their_currency(tmp_path: Path) -> None:
    kept = select(study(tmp_path), only=["currency=record-nats", "epsilon=1"]).experiments
    assert [(one.variant, one.epsilon) for one in kept] == [("Nats", 1.0)]


REFUSALS = {
    "currency": (
        '"record-nats"',
        '"recordnats"',
        "variant 'Nats': unknown currency 'recordnats'; did you mean 'record-nats'?",
    ),
    "schedule": (
        '"linear"',
        '"linea"',
        "variant 'Plain': unknown schedule 'linea'; did you mean 'linear'?",
    ),
    "schedule's type": ('"linear"', "1", "variant 'Plain': schedule must be a text on one line, got 1"),
    "warmup": ("warmup = 0.1", "warmup = 1", "variant 'Plain': warmup must be in [0, 1), got 1"),
    "negative warmup": ("0.1", "-0.1", "variant 'Plain': warmup must be in [0, 1), got -0.1"),
    "warmup's type": ("warmup = 0.1", "warmup = true", "variant 'Plain': warmup must be a number, got True"),
    "weight decay": (
        "weight_decay = 1e-3",
        "weight_decay = -1e-3",
        "variant 'Nats': weight_decay must be finite and >= 0, got -0.001",
    ),
    "infinite weight decay": (
        "weight_decay = 1e-3",
        "weight_decay = inf",
        "variant 'Nats': weight_decay must be finite and >= 0, got inf",
    ),
    "nats with a delta": (
        "weight_decay = 1e-3",
        "delta = 1e-5",
        "variant 'Nats': a budget in record-nats has no delta, got 1e-05",
    ),
    "nats without a number": (
        "weight_decay = 1e-3",
        'without = ["epsilon"]',
        "group 'all', variant 'Nats': currency = 'record-nats' is given without epsilon, the nats",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_mistake_is_refused_in_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    old, new, message = REFUSALS[case]
    assert refusal(tmp_path, old, new).startswith(message)


# From the experiment to the plan


def test_the_plan_has_what_the_study_says(tmp_path: Path) -> None:
    found = study(tmp_path)
    plans = {}
    for variant in ("DP-SGD", "Nats", "Plain"):
        setup = setup_of(of(found, variant)[0])
        job = jobs_of(of(found, variant)[0]).trainings[0]
        plans[variant] = workers.make_plan(setup, membership(job.payload), 0)  # type: ignore[arg-type]
    told = {name: (one.weight_decay, one.schedule, one.warmup) for name, one in plans.items()}
    assert told == {
        "DP-SGD": (0.0, Schedule.CONSTANT, 0.0),
        "Nats": (1e-3, Schedule.CONSTANT, 0.0),
        "Plain": (0.0, Schedule.LINEAR, 0.1),
    }
    assert plans["Nats"].budget == MutualInformation(nats=0.5, secret=Secret.RECORD)


@pytest.mark.parametrize(
    "changes", [{"weight_decay": 0.01}, {"schedule": Schedule.LINEAR}, {"warmup": 0.2}], ids=str
)
def test_each_of_them_makes_another_training(changes: dict[str, Any]) -> None:
    assert training_key(experiment(**changes)) != training_key(experiment())


def test_the_currency_counts_only_through_the_budget() -> None:
    """A mechanism without a promise is trained once, whatever the budget; its measurings differ."""
    found = [
        experiment(mechanism="non_private", epsilon=0.5, delta=delta, currency=currency)
        for currency, delta in ((Currency.DP, 1e-4), (Currency.RECORD_NATS, None))
    ]
    assert training_key(found[0]) == training_key(found[1])
    assert jobs_of(found[0]).measuring.key != jobs_of(found[1]).measuring.key


# What trainings leave behind


def _transcript(
    losses: list[float], sizes: list[int], fired: list[int] | None, *, dithered: bool = False
) -> Transcript:
    signs = None
    if fired is not None and not dithered:
        signs = ReleasedSigns(
            public_seed=0,
            groups=(("weight",),),
            steps=len(losses),
            fired=np.array([[step, 0] for step in fired], dtype=np.int64).reshape(-1, 2),
            signs=np.ones(len(fired), dtype=np.int64),
        )
    return Transcript(
        losses=np.array(losses),
        sample_sizes=np.array(sizes, dtype=np.int64),
        canary_observations=np.zeros(0),
        canary_included=np.zeros(0, dtype=np.bool_),
        metrics={"training_seconds": 0.5} | ({} if fired is None else {"silent_steps": 1.0}),
        released_signs=signs,
    )


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("losses", "sizes", "fired", "step"),
    [
        ([1.0, NAN], [3, 0], None, None),
        ([1.0, NAN], [3, 3], None, 2),
        ([NAN, 1.0, NAN], [3, 3, 3], [1], None),
        ([NAN, NAN, NAN], [3, 3, 3], [1], 2),
        ([NAN, 1.0, INFINITY], [3, 3, 3], [1], 3),
        ([NAN, NAN], [3, 3], [], None),
    ],
)
def test_a_loss_may_lack_only_where_no_record_was_looked_at(
    losses: list[float], sizes: list[int], fired: list[int] | None, step: int | None
) -> None:
    transcript = _transcript(losses, sizes, fired)
    if step is None:
        work.require_finite_training(transcript, 0.1)
    else:
        with pytest.raises(InconclusiveError, match=f"the loss of step {step} is not finite"):
            work.require_finite_training(transcript, 0.1)


def test_a_dither_hides_which_steps_were_silent() -> None:
    work.require_finite_training(_transcript([NAN, 1.0], [3, 3], [1], dithered=True), 0.1)
    with pytest.raises(InconclusiveError, match="the loss of step 2 is not finite"):
        work.require_finite_training(_transcript([NAN, INFINITY], [3, 3], [1], dithered=True), 0.1)


def test_an_outcome_has_the_losses_and_the_seconds_of_its_targets_training(tmp_path: Path) -> None:
    """Two budgets of one training share both; what was silent is NaN there, and no time is a metric."""
    found = study_of(*(experiment(epsilon=e) for e in (1.0, 2.0)), experiment(mechanism="non_private"))
    run_study(found, out=tmp_path, options=HERE)
    first, second, other = read_results(found, Store(tmp_path / "store")).outcomes
    assert [len(one.training_losses) for one in (first, second, other)] == [8, 8, 8]
    assert first.training_losses == second.training_losses
    assert first.cost["training_seconds"] == second.cost["training_seconds"] > 0
    assert first.cost["seconds"] != second.cost["seconds"]
    assert not any(name.endswith("seconds") for one in (first, other) for name in one.metrics)


def test_an_outcome_without_its_trainings_record_lacks_them(tmp_path: Path) -> None:
    found = study_of(experiment())
    run_study(found, out=tmp_path, options=HERE)
    (tmp_path / "store" / "records" / f"{training_key(experiment())}.json").unlink()
    outcome = read_results(found, Store(tmp_path / "store")).outcomes[0]
    assert (outcome.status, outcome.training_losses) == (Status.DONE, ())
    assert set(outcome.cost) == {"seconds", "peak_memory_mb"}


def test_silent_losses_survive_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.entries("mechanism")
    known = registry._entries["mechanism"]
    factory: Any = known["non_private"].factory

    class Silent(factory):  # type: ignore[misc]
        def train(self, plan: Any, progress: Any = None) -> Any:
            subject = super().train(plan, progress)
            losses = [NAN, *subject.transcript.losses.tolist()[1:]]
            steps = list(range(1, len(losses)))
            subject.transcript = _transcript(losses, [10] * len(losses), steps)
            return subject

    monkeypatch.setitem(known, "silent", Entry(name="silent", factory=Silent, summary=""))
    found = study_of(experiment(mechanism="silent"))
    run_study(found, out=tmp_path, options=HERE)
    outcome = read_results(found, Store(tmp_path / "store")).outcomes[0]
    assert outcome.status is Status.DONE, outcome.error
    assert np.isnan(outcome.training_losses[0])
    assert np.isfinite(outcome.training_losses[1:]).all()
    assert outcome.cost["training_seconds"] == 0.5
