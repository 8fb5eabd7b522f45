"""PACZero's study: what its profiles run, that it is the paper's setting, and that all of it can be run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.audit.settings import default_settings
from workbench.checks.published import published
from workbench.core import registry
from workbench.core.registry import Entry
from workbench.execution.store import Store
from workbench.execution.tasks import silent
from workbench.games.base import Part, play_part
from workbench.interfaces import Corpus, Plan, Record, Secret
from workbench.reports.shared.declared import declared
from workbench.reports.shared.outcomes import columns_of
from workbench.studies import work
from workbench.studies.experiments import Experiment, Status, Study
from workbench.studies.jobs import Measuring, setup_of
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.studies.study import load_study, profiles
from workbench.training import setup as workers

PROFILES = ("quick", "medium", "decide", "full")
PRIVATE = ("PACZero-MI", "PACZero-ZPL", "PACZero hybrid")
POISSON = ("DPZero", "DP-AggZO")


@cache
def study(profile: str) -> Study:
    return load_study("paczero", profile=profile)


def part_of(one: Experiment) -> str:
    return str(columns_of(one)["part"])


def method_of(one: Experiment) -> str:
    return str(columns_of(one)["method"])


def group(profile: str, name: str) -> list[Experiment]:
    return [one for one in study(profile).experiments if part_of(one) == name]


def printed(table: str) -> list[tuple[str, ...]]:
    found = next(one for one in published("paczero").tables if one.id == table)
    return list(dict.fromkeys(cell.row for cell in found.cells))


def plan_of(one: Experiment) -> Plan:
    """Its plan on records that are none of a corpus's: claims read their number alone."""
    records = tuple(Record(id=str(index), text="a text", label=index % 2) for index in range(one.members))
    return Plan(
        records=records,
        held_out=records[:2],
        dev=records[:2],
        model=one.model,
        steps=one.steps,
        sampling_probability=one.batch_size / one.members,
        learning_rate=one.learning_rate,
        optimizer=one.optimizer,
        budget=one.budget,
        public_size=one.members,
    )


# What is run


def test_the_first_profile_is_the_quick_one() -> None:
    assert tuple(profiles("paczero")) == PROFILES
    assert load_study("paczero").profile == "quick"


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_runs_what_the_verdicts_need(profile: str) -> None:
    found = study(profile)
    assert (found.paper, found.report, found.replication) == ("paczero", "paczero", "seed")
    missing = set(declared("paczero").layout.parts) - {part_of(one) for one in found.experiments}
    unasked = {"quick": {"clip", "cliff, longer"}, "decide": {"clip", "hybrid", "learning rates"}}
    assert missing <= unasked.get(profile, set())
    for name in ("headline", "baselines", "plateau", "cliff", "decomposition", "drift", "aggregation"):
        places = Counter(
            (one.variant, one.corpus, one.adapter, one.epsilon, one.steps) for one in group(profile, name)
        )
        assert min(places.values()) >= 3, f"{name}: fewer seeds than three decide nothing"


def test_the_full_profile_has_every_row_of_the_tables() -> None:
    for table, adapter in (("table-2", "full"), ("table-11", "lora")):
        budgets = {one.epsilon for one in group("full", "plateau") if one.adapter == adapter}
        assert budgets == {float(row[0]) for row in printed(table)}
    cells = {(one.variant, one.epsilon) for one in group("full", "cliff")}
    assert cells == {(name, e) for name in ("DPZero", "DP-AggZO") for e in (0.2, 0.3, 0.5, 1.0, 2.0)}
    assert {one.steps for one in group("full", "drift")} == {int(row[0]) for row in printed("table-14")}
    surrogates = {(method_of(one), one.steps) for one in group("full", "decomposition")}
    wanted = {(row[0], int(row[1])) for row in printed("table-12") if "PACZero" not in row[0]}
    assert wanted <= surrogates
    directions = {
        (one.adapter, int(one.mechanism_parameters.get("directions", 1)))
        for one in group("full", "aggregation")
    }
    assert directions == {(adapter, k) for adapter in ("full", "lora") for k in (1, 4, 16)}


def test_the_decide_profile_keeps_the_papers_universe_steps_and_samples() -> None:
    for one in [
        one for name in ("headline", "baselines", "plateau", "cliff") for one in group("decide", name)
    ]:
        assert one.members == 1000
        is_dp = one.variant in ("DPZero", "DP-AggZO")
        assert one.batch_size == (64 if is_dp else 1000)
        longest = 20_000 if one.variant == "DPZero" and part_of(one) == "cliff" else 1000
        assert longest <= one.steps <= 1.01 * longest
    assert {one.steps for one in group("decide", "cliff, longer")} == {2016}
    assert {one.steps for one in group("decide", "drift")} == {1000, 3000, 5000}
    assert {one.steps for one in group("decide", "decomposition")} == {1000, 2000}


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "decide"])
def test_swept_rates_are_the_papers_multiples_of_the_headline_rate(profile: str) -> None:
    for adapter, track, base in (("full", "FT", 1e-4), ("lora", "LoRA", 1e-3)):
        (own,) = {
            one.learning_rate
            for one in group(profile, "headline")
            if one.adapter == adapter and one.corpus == "movie_reviews"
        }
        swept = [
            one.learning_rate
            for one in group(profile, "learning rates")
            if one.adapter == adapter and "no clip" not in one.variant
        ]
        factors = {float(row[2]) / base for row in printed("table-8") if row[0] == track and row[1] != "1e9"}
        assert sorted({rate / own for rate in swept}) == pytest.approx(sorted(factors))


# The setting of section 4.1 and Table 7


@pytest.mark.parametrize("profile", PROFILES)
def test_methods_are_trained_as_printed(profile: str) -> None:
    for one in study(profile).experiments:
        mechanism = workers.create_mechanism(setup_of(one))
        assert mechanism.scale == 1e-3  # type: ignore[attr-defined]
        assert (one.optimizer, one.weight_decay) == ("sgd", 0.0)
        assert one.adapter == "full" or one.lora_rank == 8
        if one.mechanism == "paczero":
            assert one.batch_size == one.members
            assert mechanism.subset_count == (126 if "ZPL" in one.variant else 128)  # type: ignore[attr-defined]
            assert (mechanism.subsets, mechanism.posterior) == ("pairs", "values")  # type: ignore[attr-defined]
        elif method_of(one) in POISSON:
            assert one.batch_size / one.members == pytest.approx(0.064, abs=0.002)
        if method_of(one) in ("DPZero", "DP-AggZO"):
            assert one.delta == 1e-5


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_compared_has_equal_steps(profile: str) -> None:
    """Ours are matched, which the paper's are not: its DPZero runs have T = 20,000."""
    for name in ("plateau", "aggregation"):
        for adapter in ("full", "lora"):
            assert len({one.steps for one in group(profile, name) if one.adapter == adapter}) <= 1
    headline = {one.steps for one in group(profile, "headline") if one.corpus == "movie_reviews"}
    baseline = {one.steps for one in group(profile, "baselines") if one.corpus == "movie_reviews"}
    assert len(headline) == 1
    assert max(baseline) / min(headline) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_claim_is_the_budget(profile: str) -> None:
    seen = set()
    for one in study(profile).experiments:
        key = (one.variant, one.epsilon, one.steps, one.members, repr(one.mechanism_parameters))
        if key in seen:
            continue
        seen.add(key)
        setup = setup_of(one)
        plan = plan_of(one)
        guarantee = workers.create_mechanism(setup).claim(plan).guarantee
        if one.variant.startswith("PACZero"):
            assert guarantee == MutualInformation(nats=one.epsilon or 0.0, secret=Secret.SUBSET)
        elif one.mechanism in ("dpzero", "dp_aggzo"):
            assert guarantee == ApproximateDP(epsilon=float(one.epsilon or 0), delta=1e-5)
        else:
            assert guarantee.max_success(0.5) == 1.0


@pytest.mark.parametrize("profile", PROFILES)
def test_trainings_are_shared_between_groups(profile: str) -> None:
    """What stands in several groups is one training: the plateau's 0.33 nats is the headline's."""
    found = [one for name in ("headline", "plateau", "aggregation") for one in group(profile, name)]
    same = Counter(
        repr(replace(one, group="", tags={}))
        for one in found
        if method_of(one) == "PACZero-MI" and one.epsilon == 0.33 and one.corpus == "movie_reviews"
    )
    assert max(same.values()) == 3


# That it can be run


@pytest.fixture
def small_world() -> Iterator[None]:
    """A corpus of a few sentences in the place of the film reviews: a test fetches nothing."""
    words = (("dull", "awful", "bad"), ("bright", "great", "good"))

    def corpus(*, size: int, seed: int, held_out: int = 20, public: int = 10, neutral: float = 0.0) -> Corpus:
        def part(name: str, count: int) -> tuple[Record, ...]:
            return tuple(
                Record(id=f"{name}-{i}", text=f"a {words[i % 2][i % 3]} film {i}", label=i % 2)
                for i in range(count)
            )

        return Corpus(
            name="movie_reviews",
            records=part("own", size),
            held_out=part("held", held_out),
            public=part("public", public),
            kind="text",
            classes=2,
            origin="made up",
        )

    with pytest.MonkeyPatch.context() as patch:
        entry = Entry(name="movie_reviews", factory=corpus, summary="")
        assert registry.entries("corpus")["movie_reviews"]  # loaded before it is replaced
        patch.setitem(registry._entries["corpus"], "movie_reviews", entry)
        workers.forget_corpora()
        yield
    workers.forget_corpora()


def cells() -> tuple[Experiment, ...]:
    """One small run of each kind, on the shipped model."""
    chosen: dict[str, Experiment] = {}
    for one in study("quick").experiments:
        if one.corpus == "movie_reviews" and one.attack == "loss":
            chosen.setdefault(one.variant, one)
    model = {"base": "gpt2_base", "task": "sentiment", "max_length": 16}
    small = []
    for one in chosen.values():
        parameters = dict(one.mechanism_parameters)
        if "mi_steps" in parameters:
            parameters["mi_steps"] = 1
        poisson = one.batch_size < one.members
        small.append(
            replace(
                one,
                members=8,
                batch_size=4 if poisson else 8,
                epochs=1 if poisson else 2,
                model_parameters=model,
                corpus_parameters={"held_out": 10, "public": 4},
                mechanism_parameters=parameters,
            )
        )
    return tuple(small)


@pytest.mark.slow
def test_one_cell_of_each_kind_runs(small_world: None, tmp_path: Path) -> None:
    found = replace(study("quick"), experiments=cells())
    run_study(found, out=tmp_path, options=RunOptions(workers=0))
    for outcome in read_results(found, Store(tmp_path / "store")).outcomes:
        assert outcome.status is Status.DONE, f"{outcome.experiment.variant}: {outcome.error}"
        assert 0.0 <= outcome.metrics["test_accuracy_after"] <= 1.0
        assert len(outcome.training_losses) == 2
        if outcome.experiment.mechanism == "paczero":
            assert set(outcome.traces) >= {"unanimous", "budget_used", "posterior_entropy"}
            limit = outcome.experiment.epsilon or 0.0
            assert outcome.metrics["nats_used"] <= limit * (1.0 + 1e-9)


@pytest.mark.slow
def test_the_game_inside_the_claim_runs(tmp_path: Path) -> None:
    chosen = {one.variant: one for one in group("quick", "inside the claim")}
    small = tuple(
        replace(one, members=16, batch_size=16, epochs=6, attack_parameters={"trials": 20, "doubt": 0.0})
        for one in chosen.values()
    )
    found = replace(study("quick"), experiments=small)
    run_study(found, out=tmp_path, options=RunOptions(workers=0))
    for outcome in read_results(found, Store(tmp_path / "store")).outcomes:
        assert outcome.status is Status.DONE, outcome.error
        assert len(outcome.scores) == 20
        metrics = outcome.metrics
        assert metrics["attack_success_lower"] <= metrics["attack_success"] <= metrics["attack_success_upper"]
        if "ZPL" in outcome.experiment.variant:
            assert metrics["attack_information"] == pytest.approx(0.0, abs=1e-9)
            assert metrics["attack_mean_entropy"] == pytest.approx(math.log(126))


@pytest.mark.parametrize("where", ["worker", "study"])
def test_a_game_is_told_of_a_majority_that_is_released(where: str, tmp_path: Path) -> None:
    """Without it, who disagrees with the majority would seem excluded, or the transcript impossible."""
    free = {"variant": "zpl", "unanimous_release": "majority", "tolerance": 0.5, "subset_count": 16}
    small: dict[str, Any] = {"candidates": 24, "steps": 6, "model_parameters": {"hidden": 4}}
    few = replace(default_settings("paczero", free), **small)
    attack = "subset_posterior"
    setup = replace(few, attack_parameters={attack: {"trials": 20}}).setup((attack,))
    if where == "worker":
        included = tuple((np.arange(setup.candidates) % 2 == 0).tolist())
        part = Part(setup=setup, attack=attack, included=included)
        details = play_part(part, {}, tmp_path, silent)["details"]
    else:
        payload = Measuring(trainings=(), keys=(), setup=setup, attack=attack)
        metrics = work.measure(payload, {}, tmp_path, silent)["metrics"]
        details = {name.removeprefix("attack_"): value for name, value in metrics.items()}
    assert details["unanimity_rate"] == 1.0
    assert details["information"] == pytest.approx(0.0, abs=1e-9)
