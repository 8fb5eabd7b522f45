"""From experiments to jobs: exact splits, and keys that hold what decides a result and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import study_driver as driver
from study_driver import training_key

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.core import registry
from workbench.core.registry import Entry
from workbench.interfaces import Adjacency, Claim, Insertions, Mechanism, Plan, Released, Sampling, Subject
from workbench.studies.experiments import Experiment
from workbench.studies.jobs import Training, jobs_of, membership, setup_of
from workbench.training import setup as workers
from workbench.training.content import _later_parameters

experiment = driver.experiment


def key(found: Experiment) -> str:
    return jobs_of(found).measuring.key


def split(**changes: Any) -> list[bool]:
    """Membership of the target."""
    setup = setup_of(experiment(**changes))
    return list(membership(Training(setup=setup, run=0, shadows=0, unreleased=False)).tolist())


# The experiment as a training setup


def test_members_are_exactly_half_of_the_candidates_and_shared_by_a_seed() -> None:
    splits = [split(seed=seed) for seed in range(3)]
    assert [sum(found) for found in splits] == [40] * 3
    assert splits[0] != splits[1] != splits[2]
    assert split(mechanism="dp_sgd", epsilon=1.0, batch_size=5, epochs=9) == splits[0]


def test_every_split_of_a_small_pool_is_equally_likely() -> None:
    """All 6 splits of 2 from 4, chi-square with 5 degrees of freedom; a false alarm once in 10^5."""
    counts: dict[tuple[bool, ...], int] = {}
    for seed in range(600):
        row = tuple(split(seed=seed, members=2, batch_size=1))
        counts[row] = counts.get(row, 0) + 1
    assert len(counts) == 6
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 30.86


def test_the_plan_is_the_experiments() -> None:
    found = experiment(members=40, batch_size=15, epochs=3, sampling=Sampling.SHUFFLED, optimizer="sgd")
    job = jobs_of(found).trainings[0]
    plan = workers.make_plan(setup_of(found), membership(job.payload), 0)
    assert (plan.steps, plan.sampling_probability, plan.public_size) == (9, 15 / 40, 40)
    assert (plan.sampling, plan.optimizer, plan.learning_rate) == (Sampling.SHUFFLED, "sgd", 0.01)
    assert plan.budget == ApproximateDP(epsilon=8.0, delta=1e-4)
    assert len(plan.records) == 40
    assert plan.insertions == Insertions()


# Keys


SAME_TRAINING: list[dict[str, Any]] = [
    {"epsilon": 1.0},
    {"delta": 1e-6},
    {"epsilon": None, "delta": None},
    {"mechanism_parameters": {"form": "eq. 1"}},
    {"attack_parameters": {"canaries": 0.0, "score": "confidence"}},
    {"attack_parameters": {}},  # Images get no canaries.
]
OTHER_TRAINING: list[dict[str, Any]] = [
    {"mechanism": "dp_sgd"},
    {"mechanism_parameters": {"l2_clip_norm": 2.0}},
    {"model": "digits_mlp"},
    {"members": 41},
    {"epochs": 3},
    {"batch_size": 11},
    {"learning_rate": 0.02},
    {"seed": 1},
    {"sampling": Sampling.SHUFFLED},
    {"optimizer": "sgd"},
    {"corpus_parameters": {"held_out": 80}},
]


@pytest.mark.parametrize("changes", SAME_TRAINING)
def test_one_training_serves_what_comes_after_it(changes: dict[str, Any]) -> None:
    assert training_key(experiment(**changes)) == training_key(experiment())
    assert key(experiment(**changes)) != key(experiment())


@pytest.mark.parametrize("changes", OTHER_TRAINING)
def test_what_decides_the_subject_decides_its_key(changes: dict[str, Any]) -> None:
    assert training_key(experiment(**changes)) != training_key(experiment())
    assert key(experiment(**changes)) != key(experiment())


def test_names_of_groups_and_variants_are_no_part_of_a_key() -> None:
    assert key(experiment(group="other", variant="other")) == key(experiment())


def test_the_budget_counts_where_training_reads_it() -> None:
    keys = {
        mechanism: {training_key(experiment(mechanism=mechanism, epsilon=e)) for e in (1.0, 8.0)}
        for mechanism in ("dp_sgd", "non_private")
    }
    assert {name: len(found) for name, found in keys.items()} == {"dp_sgd": 2, "non_private": 1}


def test_canaries_count_where_an_attack_inserts_them() -> None:
    texts = {"corpus": "clinical", "model": "tiny_gpt2", "members": 20}
    without = {
        training_key(experiment(**texts, attack_parameters=p))
        for p in ({"canaries": 0.0}, {"canaries": 0.0, "calibrate": True})
    }
    assert len(without) == 1
    assert training_key(experiment(**texts, attack_parameters={"canaries": 0.5})) not in without


class _Fickle(Mechanism):
    """Promises nothing without a budget, and something with one: its training reads the budget."""

    def claim(self, plan: Plan) -> Claim:
        return Claim(
            guarantee=plan.budget or NoGuarantee(),
            about=Adjacency.ADD_REMOVE,
            released=Released.FINAL_WEIGHTS,
            source="a test",
        )

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Subject:
        raise AssertionError("nothing is trained here")


def test_a_mechanism_that_promises_nothing_without_a_budget_may_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.entries("mechanism")
    fickle = Entry(name="fickle", factory=_Fickle, summary="")
    monkeypatch.setitem(registry._entries["mechanism"], "fickle", fickle)
    found = {training_key(experiment(mechanism="fickle", epsilon=e)) for e in (1.0, 8.0)}
    assert len(found) == 2


class _Trusting(_Fickle):
    """Takes its budget for granted, as a plug-in may: it is never asked to do without."""

    def claim(self, plan: Plan) -> Claim:
        assert plan.records
        return replace(super().claim(plan), source=f"epsilon {plan.budget.epsilon:g}")  # type: ignore


def test_a_mechanism_that_breaks_without_a_budget_is_not_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.entries("mechanism")
    trusting = Entry(name="trusting", factory=_Trusting, summary="")
    monkeypatch.setitem(registry._entries["mechanism"], "trusting", trusting)
    found = [jobs_of(experiment(mechanism="trusting", epsilon=e)) for e in (1.0, 8.0)]
    assert [jobs.refusal for jobs in found] == [None, None]
    assert len({jobs.trainings[0].key for jobs in found}) == 2


def test_a_default_that_changes_changes_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stated or not, a parameter is what it is; a later version's default is another one."""
    stated = {"l2_clip_norm": 1.0}
    for mechanism in ("dp_sgd", "dp_weights"):
        given = experiment(mechanism=mechanism, mechanism_parameters=stated)
        assert key(given) == key(experiment(mechanism=mechanism))
        assert training_key(given) == training_key(experiment(mechanism=mechanism))
    changes: list[tuple[str, str, dict[str, Any], bool]] = [
        ("mechanism", "dp_weights", {"l2_clip_norm": 2.0}, True),
        ("mechanism", "dp_weights", {"form": "eq. 1"}, False),
        ("model", "digits_logistic", {"added": 1}, True),
        ("attack", "loss", {"score": "confidence"}, False),
    ]
    for kind, name, defaults, is_training in changes:
        before = (key(experiment()), training_key(experiment()))
        entry = registry.entries(kind)[name]
        with monkeypatch.context() as later:
            later.setitem(
                registry._entries[kind], name, replace(entry, factory=_later(entry.factory, defaults))
            )
            after = (key(experiment()), training_key(experiment()))
        assert after[0] != before[0], name
        assert (after[1] != before[1]) == is_training, name


def _later(factory: Any, defaults: dict[str, Any]) -> Any:
    """The factory of a later version, with these defaults."""

    def made(**given: Any) -> Any:
        return factory(**given)

    known = inspect.signature(factory).parameters.values()
    kept = [one for one in known if one.name not in defaults and one.kind is one.KEYWORD_ONLY]
    new = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v) for n, v in defaults.items()]
    made.__signature__ = inspect.Signature([*kept, *new])  # type: ignore[attr-defined]
    made.later_parameters = _later_parameters(factory)  # type: ignore[attr-defined]
    return made
