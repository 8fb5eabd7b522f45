"""RLDP's shipped study: what its profiles run, and where it is the paper's setting."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from workbench.checks.published import published
from workbench.core import registry
from workbench.data.bases import narrative_bases
from workbench.reports.papers.rldp.runs import BASELINES, INSERTIONS
from workbench.reports.papers.rldp.tables import KNOBS
from workbench.reports.shared.declared import declared
from workbench.reports.shared.outcomes import columns_of
from workbench.studies.experiments import Experiment, Study
from workbench.studies.study import check_experiments, load_study, profiles

PROFILES = ("quick", "medium", "full")
"""Those of all groups; profile `decide` has the ones that conclusions rest on."""

BUDGETS = {0.5, 2.0, 4.0, 5.0, 8.0}
REPORT = declared("rldp")
PAPER_MODELS, METHODS = REPORT.list("$models"), REPORT.list("$methods")
NON_PRIVATE = "Non-private"


@cache
def study(profile: str) -> Study:
    return load_study("rldp", profile=profile)


def tagged(profile: str, column: str, value: str) -> list[Experiment]:
    return [one for one in study(profile).experiments if columns_of(one).get(column) == value]


def group(profile: str, model: str) -> list[Experiment]:
    return tagged(profile, "stands_for", model)


def test_the_first_profile_is_the_quick_one() -> None:
    assert tuple(profiles("rldp")) == (*PROFILES, "decide")


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_has_all_groups_and_every_experiment_can_be_made(profile: str) -> None:
    found = study(profile)
    assert (found.paper, found.report, found.replication) == ("rldp", "rldp", "seed")
    assert {columns_of(one)["part"] for one in found.experiments} == set(REPORT.layout.parts)
    check_experiments(found.experiments)
    assert {one.model for one in found.experiments} <= set(registry.entries("model"))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_family_has_all_methods_and_no_run_stands_twice(profile: str) -> None:
    for name in PAPER_MODELS:
        found = group(profile, name)
        # The quick profile leaves out what is slowest to learn, where there is one seed.
        methods = set(METHODS) - ({"DC-SGD-E"} if profile == "quick" and name != "GPT2" else set())
        assert methods <= {one.variant for one in found}
        twice = Counter((one.variant, one.epsilon, one.seed) for one in found)
        assert set(twice.values()) == {1}
        paired = {
            variant: {(one.epsilon, one.seed) for one in found if one.variant == variant and one.epsilon == 2}
            for variant in methods
        }
        assert len(set(map(frozenset, paired.values()))) == 1  # so that they can be paired
    assert {one.seed for one in group(profile, "GPT2") if one.epsilon == 2} == {0, 1, 2}


def test_the_larger_profiles_have_the_papers_families_budgets_and_seeds() -> None:
    printed = next(one for one in published("rldp").tables if one.id == "table-2")
    assert set(PAPER_MODELS) == {cell.row[0] for cell in printed.cells}
    for profile in ("medium", "full"):
        for name in PAPER_MODELS:
            private = [one for one in group(profile, name) if one.epsilon is not None]
            assert {(one.epsilon, one.seed) for one in private} == {
                (e, s) for e in BUDGETS for s in (0, 1, 2)
            }
            assert any(one.variant == NON_PRIVATE for one in group(profile, name))


def test_decide_is_the_papers_regime_on_bases_of_narratives() -> None:
    """Section 2.1's N, section 3.1's batch and rate, section 4.2's 3,600 steps, section 3.2's controller."""
    full = study("full").experiments
    mechanisms = {(one.variant, one.mechanism_parameters.get("decision_interval")) for one in full}
    check_experiments(study("decide").experiments)
    for one in study("decide").experiments:
        assert (one.members, one.batch_size, one.steps) == (73_264, 16, 3_600)
        assert (one.learning_rate, round(one.warmup * one.steps)) == (5e-4, 100)
        assert one.model in narrative_bases.RECIPES
        assert (one.variant, one.mechanism_parameters.get("decision_interval")) in mechanisms
    for name in PAPER_MODELS:
        found = group("decide", name)
        assert {one.variant for one in found} == {*METHODS, NON_PRIVATE}
        for variant in METHODS:
            runs = {(one.epsilon, one.seed) for one in found if one.variant == variant}
            assert runs == {(budget, seed) for budget in BUDGETS for seed in (0, 1, 2)}
        assert len({one.model for one in found}) == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_adapters_deltas_and_accountants_are_the_printed_ones(profile: str) -> None:
    for name in PAPER_MODELS:
        for one in group(profile, name):
            assert (one.adapter, one.lora_rank, one.lora_alpha, one.lora_targets) == (
                "lora",
                8,
                16.0,
                "query-value",
            )
            assert one.delta == (None if one.epsilon is None else 1e-5)
            if one.variant in BASELINES:
                assert one.mechanism_parameters["accountant"] == "rldp_gdp"
            assert one.mechanism_parameters["evaluation_interval"] > 0


@pytest.mark.parametrize("profile", PROFILES)
def test_secrets_are_planted_once_to_a_hundred_times(profile: str) -> None:
    found = tagged(profile, "part", INSERTIONS)
    counts = {one.attack_parameters.get("insertions") for one in found}
    assert {1, 100} <= counts <= set(range(1, 101))
    for variant in (NON_PRIVATE, "DP-SGD, epsilon 1"):
        assert (
            {1, 100}
            <= {one.attack_parameters.get("insertions") for one in found if one.variant == variant}
            <= counts
        )
    assert {one.epsilon for one in found} == {None, 1.0}
    # One narrative for each insertion.
    assert all(one.corpus_parameters["public"] >= 10 * max(counts) for one in found)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_controllers_ablation_is_a_study_of_its_own(profile: str) -> None:
    found = load_study("rldp_ablation", profile=profile)
    assert (found.paper, found.report, found.replication) == ("rldp", "rldp", "seed")
    check_experiments(found.experiments)
    knobs = {
        name: {
            one.mechanism_parameters[name] for one in found.experiments if name in one.mechanism_parameters
        }
        for name in KNOBS.values()
    }
    assert knobs["sac_batch_size"] == {4, 8, 16, 32}
    assert knobs["sac_updates"] == {1, 2, 4}
    if profile == "full":
        assert knobs["decision_interval"] == {16, 32, 48, 64, 72, 80, 96, 112}
    assert {one.seed for one in found.experiments} == {0, 1, 2}
    assert {one.variant for one in found.experiments} - {"RLDP-H"} <= set(BASELINES)
