"""Shuffled DPSGD's shipped study: what its profiles run, and where it is the paper's setting."""

from __future__ import annotations

from functools import cache

import pytest

from workbench.checks.published import published
from workbench.core import registry
from workbench.reports.papers.shuffled_dp_sgd.tables import OVERHEAD, SHUFFLED, UTILITY
from workbench.reports.shared.declared import declared
from workbench.reports.shared.outcomes import METHOD, PART, columns_of
from workbench.studies.experiments import Experiment, Study
from workbench.studies.study import check_experiments, load_study, profiles

PROFILES = ("quick", "medium", "decide", "full")
FURTHER = {
    "DPSGD",
    "Shuffled DPSGD, c' = c",
    "Shuffled DPSGD, left alone at sigma_0",
}
SAME_SIGMA = "DPSGD at the same sigma"
REPORT = declared("shuffled_dp_sgd")
METHODS = set(REPORT.content["own"]["methods"].values())


@cache
def study(profile: str) -> Study:
    return load_study("shuffled_dp_sgd", profile=profile)


def group(profile: str, part: str) -> list[Experiment]:
    return [one for one in study(profile).experiments if columns_of(one)[PART] == part]


def method(one: Experiment) -> str:
    return str(columns_of(one)[METHOD])


def place(one: Experiment) -> tuple[str, str]:
    row, found = columns_of(one), []
    for name in ("stands_for", "dataset"):
        sources, words = REPORT.layout.columns[name]
        value = next(row[source] for source in sources if row.get(source) is not None)
        found.append(str(words.get(str(value), value)))
    return found[0], found[1]


def places(experiments: list[Experiment]) -> set[tuple[str, str]]:
    return {place(one) for one in experiments}


def test_the_first_profile_is_the_quick_one() -> None:
    assert tuple(profiles("shuffled_dp_sgd")) == PROFILES
    assert load_study("shuffled_dp_sgd").profile == "quick"


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_has_all_groups_and_every_experiment_can_be_made(profile: str) -> None:
    found = study(profile)
    assert (found.paper, found.report, found.replication) == ("shuffled_dp_sgd", "shuffled_dp_sgd", "seed")
    assert {columns_of(one)[PART] for one in found.experiments} == set(REPORT.layout.parts) - {OVERHEAD}
    check_experiments(found.experiments)
    assert {one.model for one in found.experiments} <= set(registry.entries("model"))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", UTILITY)
def test_every_place_has_its_baselines_and_somewhere_the_further_variants(profile: str, name: str) -> None:
    found = group(profile, name)
    main = [one for one in found if method(one) in METHODS]
    for spot in places(found):
        own = [one for one in main if place(one) == spot]
        assert {method(one) for one in own} == METHODS
        ghost, shuffled = (
            {(one.epsilon, one.seed) for one in own if method(one) == wanted}
            for wanted in ("Ghost", SHUFFLED)
        )
        assert ghost == shuffled  # so that they can be paired
    assert {method(one) for one in found} == METHODS | FURTHER | {SAME_SIGMA}
    beside = [one for one in found if method(one) == SAME_SIGMA]
    assert places(beside) == places(found)
    assert len({one.seed for one in main}) >= 3


def test_the_full_profile_has_every_place_of_the_paper_and_its_epsilons() -> None:
    for name, table in zip(UTILITY, ("table-3", "table-4", "table-5"), strict=True):
        printed = next(one for one in published("shuffled_dp_sgd").tables if one.id == table)
        rows = {cell.row for cell in printed.cells}
        found = places(group("full", name))
        assert {model for model, _ in found} == {row[0] for row in rows}
        assert {one.epsilon for one in group("full", name)} == {0.1, 0.5, 1.0, None}
    assert len(places(group("full", "classification"))) == 8
    assert len(places(group("full", "generation"))) == 4


@pytest.mark.parametrize("profile", PROFILES)
def test_clips_and_deltas_are_the_printed_ones(profile: str) -> None:
    for one in [one for name in UTILITY for one in group(profile, name)]:
        if one.epsilon is None:
            assert one.delta is None
            continue
        is_vision = columns_of(one)[PART] == "vision"
        if profile != "decide":
            assert one.delta == (5e-6 if is_vision else 1 / (2 * one.members))
        assert one.mechanism_parameters.get("l2_clip_norm", 1.0) == (1.0 if is_vision else 0.1)


def test_the_decide_profile_has_the_epochs_and_deltas_that_are_printed_of_each_dataset() -> None:
    table = next(one for one in published("shuffled_dp_sgd").tables if one.id == "table-1-datasets")
    printed = {
        name: {cell.row[1]: cell.value for cell in table.cells if cell.column == name}
        for name in ("training records", "epochs", "delta")
    }
    for one in [one for name in UTILITY for one in group("decide", name)]:
        _, dataset = place(one)
        assert one.epochs == printed["epochs"][dataset]
        assert one.steps == 10 * one.epochs  # A batch is a tenth of the records, wherever none is printed.
        assert one.batch_size * 10 == one.members
        if one.epsilon is not None:
            delta = printed["delta"].get(dataset, 0.5 / float(printed["training records"][dataset] or 0))
            assert one.delta == pytest.approx(delta, rel=1e-6)
    for name in UTILITY:
        assert places(group("decide", name)) == places(group("full", name))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_audit_holds_three_claims_and_controls(profile: str) -> None:
    found = group(profile, "audit")
    assert {one.attack for one in found} == {"weight_tidying"}
    controls = [one for one in found if one.mechanism == "dp_sgd"]
    own = [one for one in found if one not in controls and "training" not in one.tags]
    assert {one.epsilon for one in own} == {0.1, 0.5, 1.0}
    assert {one.mechanism for one in own} == {"shuffled_dp_sgd"}
    assert {method(one) for one in controls} == {"DPSGD"}
    assert {one.tags.get("training", "") for one in controls} == {"", "beside others"}
    for part in ("audit by rate", "audit by noise"):
        assert {(one.attack, one.mechanism) for one in group(profile, part)} == {
            ("weight_tidying", "shuffled_dp_sgd")
        }
