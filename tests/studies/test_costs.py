"""What a study will cost: from records, from a few tried steps, and what stays unknown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_driver as driver
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.keys import plain
from workbench.execution.store import Store
from workbench.interfaces import Capabilities, Currency, Workload
from workbench.mechanisms.ferret import fired_share
from workbench.studies import costs
from workbench.studies.costs import CostEstimate, Sample, estimate, fitted, probe, terms
from workbench.studies.experiments import Experiment, Study
from workbench.studies.jobs import JobKind, StudyJob, jobs_of
from workbench.studies.results import Pending, pending

SECONDS = (0.7, 0.004, 0.012, 0.03)
"""Made-up truth: fixed, a member, a record in an epoch, a step."""


def experiment(**given_fields: Any) -> Experiment:
    base: dict[str, Any] = {
        "group": "one",
        "variant": "Fine-tuned",
        "mechanism": "non_private",
        "attack": "loss",
        "attack_parameters": {"canaries": 0.0},
        "corpus": "digits",
        "model": "digits_logistic",
        "members": 20,
        "epochs": 1,
        "batch_size": 5,
        "learning_rate": 0.1,
        "seed": 0,
    }
    return Experiment(**{**base, **given_fields})


def study_of(*experiments: Experiment) -> Study:
    return Study(
        name="mine",
        title="Mine",
        profile="",
        replication="seed",
        experiments=experiments,
        source_sha256="0" * 64,
    )


def truth(one: Experiment) -> float:
    terms = (1.0, one.members, one.epochs * one.members, one.steps)
    return float(np.dot(SECONDS, terms))


def record(store: Store, job: StudyJob, seconds: float, status: str = "done") -> None:
    """A record as a run writes it, as far as costs are concerned."""
    content = {
        "status": status,
        "cost": {"seconds": seconds, "peak_memory_mb": 1.0},
        "job": job.identity,
        "experiment": plain(job.experiment),
    }
    store.append(job.key, content)


def only(trainings: list[StudyJob]) -> Pending:
    return Pending(trainings=tuple(trainings), measurings=(), done=0, failed=0)


def training_of(one: Experiment) -> StudyJob:
    return jobs_of(one).trainings[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()


SIZES = [(1, 5), (1, 50), (5, 50), (10, 10), (20, 50)]
"""Epochs and batch size of the five records."""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sixth", [(10, 50), (10, 5), (5, 10), (2, 100), (20, 10)])
def test_five_records_tell_a_sixth_within_a_tenth(store: Store, sixth: tuple[int, int], seed: int) -> None:
    """Times scatter by up to 3 % either way; no false alarm is possible at five fixed seeds."""
    generator = np.random.default_rng(seed)
    for number, (epochs, batch_size) in enumerate(SIZES):
        one = experiment(members=100, epochs=epochs, batch_size=batch_size, seed=number)
        record(store, training_of(one), truth(one) * generator.uniform(0.97, 1.03))
    wanted = experiment(members=100, epochs=sixth[0], batch_size=sixth[1], seed=9)
    found = estimate(store, only([training_of(wanted)]))
    assert found.core_seconds == pytest.approx(truth(wanted), rel=0.1)
    assert found.measured_from == 5
    assert found.unknown == ()
    assert not found.is_probed


def test_one_record_is_scaled_by_the_shape(store: Store) -> None:
    small = experiment(members=100, epochs=1, batch_size=10)
    record(store, training_of(small), 2.0)
    large = experiment(members=100, epochs=10, batch_size=10)
    found = estimate(store, only([training_of(small), training_of(large)]))
    own, other = found.job_seconds[training_of(small).key], found.job_seconds[training_of(large).key]
    assert own == pytest.approx(2.0, rel=0.01)
    assert 3 * own < other < 10 * own


def test_members_that_are_not_scored_are_read_by_the_steps_alone() -> None:
    whole, part = (experiment(members=100, scored_members=scored) for scored in (None, 10))
    (_, read, *steps), (_, read_of_part, *same_steps) = (
        costs.terms(JobKind.TRAINING, plain(one), 0) for one in (whole, part)
    )
    assert read - read_of_part == 90
    assert steps == same_steps


def test_one_record_that_took_far_too_long_does_not_decide(store: Store) -> None:
    """The first job of a worker also loads its libraries."""
    for number in range(9):
        one = experiment(members=100, epochs=1 + number % 3, batch_size=10, seed=number)
        record(store, training_of(one), truth(one) + (30.0 if number == 4 else 0.0))
    wanted = experiment(members=100, epochs=2, batch_size=10, seed=99)
    found = estimate(store, only([training_of(wanted)]))
    assert found.core_seconds == pytest.approx(truth(wanted), rel=0.1)


def test_what_decides_the_speed_is_not_mixed_and_the_rest_is_unknown(store: Store) -> None:
    known = experiment()
    record(store, training_of(known), 1.0)
    other = experiment(model="digits_mlp")
    jobs = [
        training_of(experiment(seed=1)),
        training_of(other),
        training_of(experiment(model="digits_mlp", seed=1)),
    ]
    found = estimate(store, only(jobs))
    assert found.core_seconds == pytest.approx(1.0, rel=0.01)
    assert found.unknown == ("2 x training of non_private on digits_mlp: nothing comparable was run yet",)
    assert [(one.jobs, one.core_seconds is None) for one in found.per_kind] == [(1, False), (2, True)]
    assert set(found.job_seconds) == {jobs[0].key}


def test_failures_and_records_of_other_commands_do_not_count(store: Store) -> None:
    failed = training_of(experiment(seed=1))
    record(store, failed, 100.0, status="failed")
    store.append("0" * 32, {"job": {"kind": "training"}, "cost": {"seconds": 5.0}})
    store.append("1" * 32, {"scores": [1.0]})
    found = estimate(store, only([training_of(experiment())]))
    assert found.measured_from == 0
    assert len(found.unknown) == 1
    assert found.core_seconds == 0.0


def test_a_measuring_grows_with_the_records_it_reads(store: Store) -> None:
    for members in (20, 40, 80):
        record(store, jobs_of(experiment(members=members)).measuring, 0.2 + 0.01 * 2 * members)
    wanted = jobs_of(experiment(members=160)).measuring
    todo = Pending(trainings=(), measurings=(wanted,), done=0, failed=0)
    found = estimate(store, todo)
    assert found.core_seconds == pytest.approx(0.2 + 0.01 * 320, rel=0.05)
    assert found.per_kind[0].name == "measuring of non_private on digits_logistic by loss"


def test_wall_time_is_shared_by_workers_but_never_below_the_longest_chain(store: Store) -> None:
    experiments = [experiment(seed=seed) for seed in range(4)]
    jobs = [jobs_of(one) for one in experiments]
    record(store, training_of(experiment(seed=7)), 3.0)
    record(store, jobs_of(experiment(seed=7)).measuring, 1.0)
    found = estimate(store, pending(study_of(*experiments), store))
    assert found.core_seconds == pytest.approx(16.0, rel=0.01)
    assert found.job_seconds.keys() == {one.measuring.key for one in jobs} | {
        one.trainings[0].key for one in jobs
    }
    assert found.wall_seconds(0) == found.wall_seconds(1) == pytest.approx(16.0, rel=0.01)
    assert found.wall_seconds(2) == pytest.approx(8.0, rel=0.01)
    assert found.wall_seconds(100) == pytest.approx(4.0, rel=0.01)


def test_nothing_left_costs_nothing(store: Store) -> None:
    found = estimate(store, only([]))
    assert found == CostEstimate(core_seconds=0.0, per_kind=(), unknown=(), measured_from=0)
    assert found.wall_seconds(2) == 0.0


positive = st.floats(1e-3, 1e3)


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 2000), st.integers(1, 40), st.integers(1, 400), positive),
        min_size=1,
        max_size=6,
    )
)
def test_rates_are_never_negative_and_fit_a_single_record(rows: list[tuple[int, int, int, float]]) -> None:
    samples = [
        Sample(terms=(1.0, float(n), float(n * epochs), float(steps)), seconds=seconds)
        for n, epochs, steps, seconds in rows
    ]
    rates = fitted(JobKind.TRAINING, samples)
    assert (rates >= 0).all()
    assert rates.sum() > 0
    if len(samples) == 1:
        assert float(np.dot(rates, samples[0].terms)) == pytest.approx(samples[0].seconds, rel=1e-3)


def test_probing_tries_what_no_record_tells(store: Store) -> None:
    known, unknown = experiment(), experiment(model="digits_mlp", epochs=4)
    record(store, training_of(experiment(seed=5)), 1.0)
    study = study_of(known, unknown)
    found = probe(store, pending(study, store))
    assert found.unknown == ()
    assert found.is_probed
    assert found.measured_from == 1
    by_name = {one.name: one for one in found.per_kind}
    assert not by_name["training of non_private on digits_logistic"].is_probed
    tried = by_name["training of non_private on digits_mlp"]
    assert tried.is_probed
    assert tried.measured_from == len(costs.SIZES)
    assert tried.core_seconds is not None
    assert 0.0 < tried.core_seconds < 60.0
    assert by_name["measuring of non_private on digits_mlp by loss"].is_probed
    assert len(found.job_seconds) == 4
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in found.job_seconds.values())
    assert len(list(store.records())) == 1


def test_probing_says_what_could_not_be_tried() -> None:
    texts = experiment(corpus="clinical")  # A digits model cannot read them.
    found = driver.probed(study_of(texts))
    assert len(found.unknown) == 2
    assert all(
        "trying it failed: InputError: model 'digits_logistic' cannot read texts" in line
        for line in found.unknown
    )
    found = driver.probed(study_of(experiment()), seconds=0.0)
    assert [line.partition(": ")[2] for line in found.unknown] == [
        "not tried: the 0 seconds for trying were over (--try-for)"
    ] * 2


def test_probing_says_why_an_experiment_cannot_be_prepared(store: Store) -> None:
    one = experiment(members=100_000)
    waiting = Pending(trainings=(), measurings=(jobs_of(one).measuring,), done=0, failed=0)
    found = probe(store, waiting)
    assert len(found.unknown) == 1
    assert "200000 + 50000 + 50000 records wanted" in found.unknown[0]


@pytest.mark.slow
def test_probing_foretells_a_real_training(tmp_path: Path) -> None:
    """Within a factor of four: the machine may be busy, and small batches are cheaper than large ones."""
    import time

    from workbench.execution.processes import one_thread
    from workbench.studies import work

    one = experiment(corpus="clinical", model="tiny_gpt2", members=60, epochs=4, batch_size=20)
    one = Experiment(**{**vars(one), "model_parameters": {"max_length": 64}, "learning_rate": 1e-3})
    found = driver.probed(study_of(one))
    job = training_of(one)
    with one_thread():
        started = time.process_time()
        work.train(job.payload, {}, tmp_path, lambda done, total: None)  # type: ignore[arg-type]
        seconds = time.process_time() - started
    assert seconds / 4 < found.job_seconds[job.key] < 4 * seconds


# Budgets in nats, and bases


def signs(**given_fields: Any) -> Experiment:
    """A training of masked signs, whose silent steps look at no record."""
    fields = {"mechanism": "ferret", "currency": Currency.RECORD_NATS, "epsilon": 0.5, "batch_size": 2}
    return experiment(members=100, model="digits_mlp", **{**fields, **given_fields})


@pytest.mark.parametrize(
    ("nats", "s", "steps", "groups"), [(0.1, 0.02, 250, 50), (0.5, 0.02, 250, 50), (2.0, 0.05, 60, 200)]
)
def test_the_share_of_steps_that_look_at_records_is_that_of_the_mask(
    nats: float, s: float, steps: int, groups: int
) -> None:
    """Against the mask itself: 1 - (1 - p)^G with p of Eq. 8, which many groups come near to."""
    p = nats / (groups * steps * s * math.log(2.0))
    assert fired_share(nats, s, steps) == pytest.approx(1.0 - (1.0 - p) ** groups, rel=0.03)


def test_a_training_costs_less_the_more_of_its_steps_are_silent(store: Store) -> None:
    """Two budgets tell a third within a tenth, at a truth of 2 ms a step and 10 ms a record that is read."""

    def seconds(one: Experiment) -> float:
        read = one.members * one.epochs * fired_share(float(one.epsilon or 0), 0.02, one.steps)
        return 0.2 + 0.002 * one.steps + 0.01 * read

    for number, (nats, epochs) in enumerate([(0.1, 1), (2.0, 1), (0.1, 5), (2.0, 5)]):
        one = signs(epsilon=nats, epochs=epochs, seed=number)
        record(store, training_of(one), seconds(one))
    wanted = [signs(epsilon=nats, epochs=3, seed=9) for nats in (0.1, 0.5, 1.0, 2.0)]
    costs = [estimate(store, only([training_of(one)])).core_seconds for one in wanted]
    assert costs == pytest.approx([seconds(one) for one in wanted], rel=0.1)
    assert costs == sorted(costs)


def test_a_game_costs_no_more_for_its_budget_where_every_step_reads_records() -> None:
    """Whatever the number of epsilon means: silent steps are the masked signs' alone."""
    games = [
        plain(experiment(attack="weight_canary", mechanism="dp_sgd", epsilon=epsilon, delta=1e-5))
        for epsilon in (0.1, 8.0)
    ]
    few, many = (terms(JobKind.MEASURING, game, 0) for game in games)
    assert few == many
    silent, firing = (
        terms(JobKind.MEASURING, plain(signs(attack="sign_transcript", epsilon=nats)), 0)
        for nats in (0.1, 2.0)
    )
    assert silent < firing


def test_what_a_mechanism_declares_of_its_work_is_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No parameter of a mechanism is known by name here: a plug-in's own says how its time grows."""

    class Slow:
        capabilities = Capabilities()

        def workload(self, *, steps: int, sampling_probability: float, budget: float) -> Workload:
            return Workload(passes=3, read_share=0.5, looks=4)

    form = plain(experiment(corpus_parameters={"held_out": 10}))
    usual = terms(JobKind.TRAINING, form, 0)
    monkeypatch.setattr(costs, "mechanism_of", lambda name, parameters: Slow())
    assert terms(JobKind.TRAINING, form, 0) == (1.0, usual[1] + 20.0, 1.5 * usual[2], 3 * usual[3])
    named = plain(experiment(mechanism_parameters={"directions": 5, "evaluation_interval": 1}))
    assert terms(JobKind.TRAINING, named, 0)[2:] == terms(JobKind.TRAINING, form, 0)[2:]


def test_a_probe_tries_masked_signs_whatever_their_ceiling(store: Store) -> None:
    """A few steps of two groups bear no 2 nats; what is tried has a budget of its own."""
    one = signs(epsilon=2.0, epochs=5, mechanism_parameters={"granularity": "2", "measures_quality": False})
    found = probe(store, driver.all_jobs(study_of(one)))
    assert found.unknown == ()
    assert found.core_seconds > 0


def test_a_probe_gives_an_attack_that_compares_models_two_that_differ(store: Store) -> None:
    """Shadows that are all the target itself would leave every score the same, and the attack refused."""
    for one in (experiment(attack="lira", attack_parameters={"shadows": 4}), signs(attack="lira")):
        found = probe(store, driver.all_jobs(study_of(one)))
        assert found.unknown == ()


def test_what_a_base_costs_is_taken_from_another_base_where_it_is_not_known(store: Store) -> None:
    parameters = {"max_length": 16}
    known = experiment(corpus="clinical", model="gpt2_base", model_parameters=parameters)
    record(store, training_of(known), 3.0)
    for model, given_parameters, words in (
        ("llama_base", parameters, "llama_base as gpt2_base"),
        ("gpt2_base", parameters, ""),
        ("llama_base", {**parameters, "path": "own"}, None),
        ("llama_base", {"max_length": 17}, None),
        ("tiny_gpt2", parameters, None),
    ):
        wanted = experiment(corpus="clinical", model=model, model_parameters=given_parameters, seed=1)
        found = estimate(store, only([training_of(wanted)]))
        if words is None:
            assert (found.core_seconds, len(found.unknown)) == (0.0, 1)
        else:
            assert found.core_seconds == pytest.approx(3.0, rel=1e-3)
            assert [one.counted_as for one in found.per_kind] == [words]
