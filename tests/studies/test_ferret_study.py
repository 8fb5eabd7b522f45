"""FERRET's study: what its profiles run, that it is the paper's setting, and that all of it can be run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.cli.app import main
from workbench.core import registry
from workbench.core.registry import Entry
from workbench.data.bases import catalogue as data_bases
from workbench.execution.store import Store
from workbench.games.transcript import MOST_UNKNOWN
from workbench.interfaces import Currency, Plan, Sampling, Schedule
from workbench.studies.experiments import Experiment, Study
from workbench.studies.jobs import Training, jobs_of, membership, setup_of
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.studies.study import load_study, profiles, select
from workbench.training import setup as workers
from workbench.training.models import LanguageModel

PROFILES = ("quick", "medium", "full", "decide")
BASES = ("gpt2_base", "qwen2_base", "llama_base", "bloom_base", "smollm_base")
COMPARED = ("DPSGD", "FERRET-MAX", "FERRET-EIGHTH", "FERRET-2", "Non-DP")
EPSILONS = (0.1, 0.5, 1.0, 2.0)
SMALLER = ("lira", "learning rates")
"""Groups with fewer models in the smaller profiles."""

GAMES = ("transcript", "unknown batches")
SIGMAS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@cache
def study(profile: str) -> Study:
    return load_study("ferret", profile=profile)


def group(profile: str, name: str) -> list[Experiment]:
    return [one for one in study(profile).experiments if one.group == name]


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every base as its recipe makes it before any training: a test waits for no build."""
    known = registry.entries("model")
    shipped = known["gpt2_base"].factory(seed=0)

    def factory(name: str) -> Any:
        recipe = data_bases.RECIPES[name]

        def made(*, seed: int, max_length: int = 256, path: str | None = None) -> LanguageModel:
            return LanguageModel(recipe.new_module(), shipped.tokenizer, max_length, name)

        return made

    for name in data_bases.RECIPES:
        entry = Entry(name=name, factory=factory(name), summary="")
        monkeypatch.setitem(registry._entries["model"], name, entry)
    workers.forget_corpora()
    yield
    workers.forget_corpora()


def plan_of(one: Experiment) -> Plan:
    setup = setup_of(one)
    target = Training(setup=setup, run=0, shadows=0, unreleased=False)
    return workers.make_plan(setup, membership(target), 0)


# What is run


def test_the_first_profile_is_the_quick_one() -> None:
    assert tuple(profiles("ferret")) == PROFILES
    assert load_study("ferret").profile == "quick"


@pytest.mark.parametrize(("profile", "lira_models"), [("quick", 1), ("medium", 2), ("full", 5)])
def test_each_profile_runs_what_the_tables_need(profile: str, lira_models: int) -> None:
    found = study(profile)
    assert (found.paper, found.report, found.replication) == ("ferret", "ferret", "model")
    counts = Counter((one.group, one.variant) for one in found.experiments)
    # Five models, three numbers of epochs, four budgets; one cell lies above the ceiling of two groups.
    comparison = {"DPSGD": 60, "FERRET-MAX": 60, "FERRET-EIGHTH": 60, "FERRET-2": 55, "Non-DP": 15}
    expected = {("comparison", name): count for name, count in comparison.items()}
    expected |= {("head-room", f"FERRET-{name}"): 5 for name in ("MAX", "HALF", "QUARTER", "2")}
    expected |= {("lira", name): lira_models for name in COMPARED}
    expected |= {("transcript", f"FERRET-{name}"): 12 for name in ("MAX", "HALF", "QUARTER", "EIGHTH", "2")}
    expected |= {
        ("unknown batches", f"FERRET-{name}"): 4 for name in ("MAX", "HALF", "QUARTER", "EIGHTH", "2")
    }
    expected |= {("ceiling", "FERRET-2 (capped)"): 5, ("silent steps", "FERRET-MAX (forward)"): 10}
    rate_models = 2 if profile == "quick" else 5
    expected |= {("learning rates", name): 3 * rate_models for name in COMPARED if name != "Non-DP"}
    expected |= {("untrained", "Base"): 5}
    assert counts == {**expected, ("dither", "FERRET, dithered"): 60}
    assert {one.model for one in group(profile, "comparison")} == set(BASES)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_place_of_the_comparison_is_run_once(profile: str) -> None:
    places = Counter(
        (one.variant, one.model, one.epochs, one.epsilon, one.seed) for one in group(profile, "comparison")
    )
    assert set(places.values()) == {1}
    private = {(e, nats) for e in (1, 3, 5) for nats in EPSILONS}
    for variant in COMPARED[:-1]:
        wanted = private - ({(1, 2.0)} if variant == "FERRET-2" else set())
        assert {place[2:4] for place in places if place[0] == variant} == wanted
    assert {place[2:4] for place in places if place[0] == "Non-DP"} == {(1, None), (3, None), (5, None)}


@pytest.mark.parametrize("profile", PROFILES)
def test_the_games_and_the_dither_are_those_of_the_task(profile: str) -> None:
    games = {
        (one.variant, one.epsilon, one.attack_parameters["canary"]) for one in group(profile, "transcript")
    }
    assert len(games) == 5 * 4 * 3
    unknown = group(profile, "unknown batches")
    assert {(one.variant, one.epsilon) for one in unknown} == {game[:2] for game in games}
    for one in unknown:
        played = {name: one.attack_parameters[name] for name in ("canary", "knowledge")}
        assert played == {"canary": "average", "knowledge": "records"}
        known = next(other for other in group(profile, "transcript") if other.variant == one.variant)
        # p* hangs on T s; the likelihood sums over 2^(N - 1) batches, which limits N.
        assert (one.steps, one.batch_size / one.members) == (known.steps, known.batch_size / known.members)
        assert one.members - 1 <= MOST_UNKNOWN
        assert one.attack_parameters["trials"] == known.attack_parameters["trials"]
    dither = group(profile, "dither")
    sigmas = Counter(one.mechanism_parameters.get("dither_standard_deviation", 0.0) for one in dither)
    assert sigmas == dict.fromkeys(SIGMAS, 30 if profile == "decide" else 10)
    assert {one.mechanism_parameters["silent_steps"] for one in dither} == {"forward"}
    assert {one.budget for one in dither} == {None}


# The setting of section 6.2


@pytest.mark.parametrize(
    ("profile", "factor"), [("quick", 10.0), ("medium", 10.0), ("full", 1.0), ("decide", 1.0)]
)
def test_methods_are_trained_as_section_6_2_prints(profile: str, factor: float) -> None:
    """Rates 2e-4 and 1e-4, scaled by one factor; weight decay 1e-3; C = 1; the two schedules."""
    for one in group(profile, "comparison"):
        is_private = one.variant != "Non-DP"
        assert one.learning_rate == pytest.approx(factor * (2e-4 if is_private else 1e-4))
        assert (one.optimizer, one.weight_decay, one.adapter) == ("adamw", 1e-3, "full")
        wanted = (Schedule.CONSTANT, 0.0, Sampling.POISSON)
        assert (one.schedule, one.warmup, one.sampling) == (
            wanted if is_private else (Schedule.LINEAR, 0.1, Sampling.SHUFFLED)
        )
        mechanism = workers.create_mechanism(setup_of(one))
        assert getattr(mechanism, "l2_clip_norm", getattr(mechanism, "clip_norm", 1.0)) == 1.0
        assert mechanism.micro_batch_size == 128  # type: ignore[attr-defined]
        if one.variant == "DPSGD":
            assert mechanism.clipping == "automatic"  # type: ignore[attr-defined]
            assert one.budget == ApproximateDP(epsilon=float(one.epsilon or 0), delta=1e-5)
        elif is_private:
            assert one.currency is Currency.RECORD_NATS
            assert one.delta is None


@pytest.mark.parametrize(
    ("profile", "members", "batch_size", "steps"),
    [
        ("quick", 200, 5, 40),
        ("medium", 1000, 10, 100),
        ("full", 10_000, 50, 200),
        ("decide", 10_000, 50, 200),
    ],
)
def test_sizes_scale_but_epochs_do_not(profile: str, members: int, batch_size: int, steps: int) -> None:
    """T s, which with G decides p* and the ceiling, is the number of epochs, as in the paper."""
    for one in group(profile, "comparison"):
        assert (one.members, one.batch_size, one.steps) == (members, batch_size, steps * one.epochs)
        assert one.steps * one.batch_size / one.members == pytest.approx(one.epochs)


def test_what_is_scaled_is_said() -> None:
    for profile, words in (
        ("quick", "a fiftieth"),
        ("medium", "a tenth"),
        ("full", "N = 10,000"),
        ("decide", "records cut to 16 tokens"),
    ):
        assert any(words in note for note in study(profile).notes)


@pytest.mark.parametrize(
    ("profile", "words"), [("quick", "a fifth of the paper's"), ("medium", "half of the paper's")]
)
def test_how_many_signs_fire_is_said(profile: str, words: str) -> None:
    """epsilon / (s ln 2), of which the paper has 1 / 0.005 a record's worth."""
    one = group(profile, "comparison")[0]
    share = 0.005 / (one.batch_size / one.members)
    assert share == pytest.approx({"a fifth of the paper's": 0.2, "half of the paper's": 0.5}[words])
    (note,) = [note for note in study(profile).notes if "Expected firings, epsilon / (s ln 2)" in note]
    assert words in note
    if profile == "quick":
        ends = [epsilon * one.members / (one.batch_size * math.log(2.0)) for epsilon in (0.1, 2.0)]
        assert f"{ends[0]:.1f} at epsilon 0.1 and {ends[1]:.0f} at 2" in note


def test_the_deciding_profile_keeps_the_papers_regime_and_drops_what_no_conclusion_rests_on() -> None:
    micro = {"gpt2_base": "micro_base"} | {
        f"{family}_base": f"micro_{family}" for family in ("qwen2", "llama", "bloom", "smollm")
    }

    def regime(one: Experiment) -> tuple[Any, ...]:
        """What decides noise, p*, ceilings and firings, and of which family the model is."""
        mechanism = json.dumps(one.mechanism_parameters, sort_keys=True)
        budget = one.epsilon, one.delta, one.currency, one.sampling
        model = micro.get(one.model, one.model)
        return one.variant, model, mechanism, one.members, one.batch_size, one.epochs, *budget

    for name in ("comparison", "head-room", "ceiling"):
        assert Counter(map(regime, group("decide", name))) == Counter(map(regime, group("full", name)))
    assert {one.model for one in group("decide", "comparison")} == set(micro.values())
    dropped = {one.group for one in study("full").experiments} - {
        one.group for one in study("decide").experiments
    }
    assert dropped == {"lira", "learning rates", "silent steps"}


# Everything can be run


def _granularity(one: Experiment) -> str:
    return str(one.mechanism_parameters.get("granularity", "max"))


@pytest.mark.slow
@pytest.mark.usefixtures("unbuilt")
def test_every_experiment_can_be_prepared_and_claims_its_budget() -> None:
    """Over all models, methods and budgets; nothing is trained."""
    for one in study("quick").experiments:
        found = jobs_of(one)
        assert found.refusal is None, f"{one.name}: {found.refusal}"
        claim = workers.create_mechanism(setup_of(one)).claim(plan_of(one))
        if one.variant == "FERRET-2 (capped)":
            assert isinstance(claim.guarantee, MutualInformation)
            assert claim.guarantee.nats == pytest.approx(2 * math.log(2.0))
        elif one.budget is not None:
            assert claim.guarantee == one.budget


@pytest.mark.usefixtures("unbuilt")
def test_table_3_head_room_is_that_of_the_groups() -> None:
    """p* at 0.5 nats and five epochs: 0.072 for two groups, as the paper's Table 3 prints."""
    settled = {}
    for one in group("quick", "head-room"):
        mechanism: Any = workers.create_mechanism(setup_of(one)).for_plan(plan_of(one))  # type: ignore[attr-defined]
        settled[one.model, one.variant] = mechanism.firing_probability
    for model in BASES:
        assert settled[model, "FERRET-2"] == pytest.approx(0.072, abs=5e-4)
        finest = [settled[model, f"FERRET-{name}"] for name in ("MAX", "HALF", "QUARTER", "2")]
        assert finest == sorted(finest)
        assert finest[2] / finest[0] == pytest.approx(4.0, rel=0.1)  # The last bucket may be smaller.


@pytest.mark.parametrize("profile", ["medium", "full"])
def test_larger_profiles_differ_in_sizes_alone(profile: str) -> None:
    def shape(one: Experiment) -> tuple[Any, ...]:
        return one.group, one.variant, one.model, one.epochs, one.epsilon, _granularity(one), one.seed

    quick = Counter(shape(one) for one in study("quick").experiments if one.group not in SMALLER)
    assert Counter(shape(one) for one in study(profile).experiments if one.group not in SMALLER) == quick


def test_the_untrained_models_are_the_bases_as_they_are() -> None:
    """A rate of 1e-30 moves no float32 weight, so Table 4 and the others hold numbers of the same records."""
    one = next(one for one in group("quick", "untrained") if one.model == "gpt2_base")
    plan = plan_of(replace(one, members=10, epochs=1))
    trained = registry.create("mechanism", one.mechanism, **one.mechanism_parameters).train(plan)
    base = registry.create("model", one.model, seed=0, **one.model_parameters)
    for name, parameter in base.module.named_parameters():
        assert torch.equal(parameter, dict(trained.model.module.named_parameters())[name])


@pytest.mark.slow
def test_one_cell_of_each_kind_runs_and_leaves_what_the_report_reads(tmp_path: Path) -> None:
    """The shipped base, with a few records of each; the sizes are cut, the methods are the study's."""
    found = study("quick")
    cells = []
    for name, only in {
        "untrained": ["model=gpt2_base"],
        "learning rates": ["model=gpt2_base", "learning_rate=2e-05"],
        "comparison": ["model=gpt2_base", "epochs=1", "epsilon=0.5", "epsilon=none"],
        "ceiling": ["model=gpt2_base"],
        "silent steps": ["model=gpt2_base", "epsilon=0.1"],
        "transcript": ["variant=FERRET-2", "epsilon=0.5"],
        "unknown batches": ["variant=FERRET-2", "epsilon=0.5"],
        "dither": ["seed=0"],
    }.items():
        cells += list(select(found, only=[f"group={name}", *only]).experiments)
    small = [
        replace(one, members=20)
        if one.model == "gpt2_base"
        else replace(one, attack_parameters={**one.attack_parameters, "trials": 20})
        if one.group in GAMES
        else replace(one, epochs=5)
        for one in cells
    ]
    run_study(replace(found, experiments=tuple(small)), out=tmp_path, options=RunOptions(workers=0))
    outcomes = read_results(replace(found, experiments=tuple(small)), Store(tmp_path / "store")).outcomes
    assert [outcome.error for outcome in outcomes] == [""] * len(small)
    for outcome in outcomes:
        one = outcome.experiment
        if one.group in GAMES:
            assert len(outcome.scores) == 20
            continue
        assert outcome.cost["training_seconds"] > 0
        losses = np.array(outcome.training_losses)
        assert len(losses) == one.steps
        if one.mechanism == "ferret":
            assert {"firing_probability", "groups", "ceiling_nats", "fired", "silent_steps"} <= set(
                outcome.metrics
            )
        if one.group == "dither":
            assert np.isfinite(losses).all()


@pytest.mark.slow
def test_what_a_quick_run_costs_is_foretold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "ferret", "--profile", "quick", "--dry-run", "--json", "plan.json"]) == 0
    out, _ = capsys.readouterr()
    assert "Cost: " in out
    form = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    assert form["totals"]["measurings"] > 350
    assert not Path("studies").exists()
    # Half an hour of a core on an idle machine; a busy one measures more.
    assert 60 < form["cost"]["core_seconds"] < 4 * 30 * 60
