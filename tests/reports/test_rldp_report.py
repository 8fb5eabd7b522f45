"""RLDP's report on made-up results whose truth is known: tables, figures, verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rldp_world import BASELINES, STEPS, World, results

from workbench.accounting.subsampled_gaussian import same_sigma_epsilon
from workbench.checks.published import published
from workbench.core.errors import InputError
from workbench.reports.papers.rldp.report import RLDP, rldp
from workbench.reports.papers.rldp.runs import bars, share_of_steps
from workbench.reports.shared.cells import table_text
from workbench.reports.shared.conditions import Ends, all_of, any_of, asked, varies_less
from workbench.reports.shared.pages.study import study_html
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.study import context_of
from workbench.studies.experiments import Outcome, Status, StudyResults
from workbench.studies.report import Cell, Replication, StudyReport, Table

PAPER = published("rldp")
ONE = (("gpt2", "gpt2_base"),)
"""A study in the place of one model."""


def made(found: StudyResults) -> StudyReport:
    return rldp(results=found, published=PAPER)


@cache
def report() -> StudyReport:
    return made(results())


def outcome_of(found: StudyReport, claim: str) -> Replication:
    return next(one.outcome for one in found.findings if one.id == claim)


def table(found: StudyReport, name: str) -> Table:
    return next(one for one in found.tables if one.id == name)


def row(found: Table, *headers: str) -> dict[str, Cell]:
    return dict(zip(found.columns, dict(found.rows)[headers], strict=True))


def changed(change: Callable[[Outcome], Outcome | None]) -> StudyResults:
    whole = results(World(places=ONE))
    return replace(whole, outcomes=tuple(one for one in map(change, whole.outcomes) if one is not None))


def number_in(cell: Cell) -> float:
    assert cell.ours is not None
    return cell.ours.estimate


# What stands in it


@pytest.mark.slow
def test_every_table_and_figure_is_there_and_can_be_written() -> None:
    found = report()
    assert [one.id for one in found.tables] == [
        "table-2",
        "comparisons",
        "table-3",
        "steps-to-match",
        "privacy",
        "controller",
        *(f"table-{number}" for number in range(4, 10)),
        "canaries",
        "insertions",
        "controls",
        "ablation-interval",
        "sampling",
    ]
    assert {one.id for one in found.figures} == {
        "drops",
        *(f"figure-{number}-epsilon-{budget}" for number in (1, 2) for budget in ("0-5", "8")),
        *(f"figure-{number}-{name}" for number in (5, 6) for name in ("radius", "sigma")),
        *(f"insertions-{name}" for name in ("exposure", "matches", "similarity-1", "similarity-4")),
    }
    for one in found.tables:
        assert "no reason was given" not in table_text(one).reasons, one.id
    assert len(found.findings) == len(PAPER.claims)


@pytest.mark.slow
def test_perplexities_stand_beside_the_papers() -> None:
    cells = row(table(report(), "table-2"), "GPT2", "0.5")
    ours, best = cells["RLDP"], cells["best baseline"]
    assert ours.paper is not None
    assert best.paper is not None
    assert (ours.paper.value, best.paper.value) == (1.487, 2.138)
    # The forms' mean; the lowest of eight baselines of a seed is a little below their common level of 2.2.
    forms = [number_in(cells[name]) for name in ("RLDP-H", "RLDP-L")]
    assert number_in(ours) == pytest.approx(np.mean(forms))
    assert number_in(best) <= min(number_in(cells[name]) for name in BASELINES)
    assert number_in(cells["drop, percent"]) == pytest.approx(10.0, abs=0.5)
    blank = row(table(report(), "table-2"), "Mistral-7B", "2")["RLDP"]
    assert blank.ours is None
    assert "not part of this profile" in blank.why_blank


@pytest.mark.slow
def test_the_part_of_a_record_that_membership_is_scored_by_is_said() -> None:
    def ending(one: Outcome) -> Outcome:
        asked_of = {**one.experiment.attack_parameters, "ending_share": 0.25}
        return replace(one, experiment=replace(one.experiment, attack_parameters=asked_of))

    assert "Ours are of whole records;" in " ".join(table(report(), "table-4").notes)
    notes = " ".join(table(made(changed(ending)), "table-4").notes)
    assert "Ours are of the last 25% of each record's tokens, given the rest;" in notes


@pytest.mark.slow
def test_comparisons_are_corrected_for_their_number() -> None:
    found = table(report(), "comparisons")
    cells = row(found, "GPT2", "8")
    one = cells["Static"].ours
    assert one is not None
    assert one.estimate == pytest.approx(-5.0, abs=0.5)
    assert one.p_value is not None
    assert one.p_value < 0.05
    assert any("all 32 comparisons (Holm)" in note and "lower in 32" in note for note in found.notes)
    alike = World(drop=0.0, matches_at=2.0, places=ONE)
    assert any("lower in 0, higher in 0" in note for note in table(made(results(alike)), "comparisons").notes)


@pytest.mark.slow
def test_steps_to_match_and_runs_that_never_do() -> None:
    cells = row(table(report(), "table-3"), "GPT2")
    first = cells["0.5"]
    assert first.paper is not None
    assert (first.paper.value, number_in(first)) == (28.0, 20.0)
    assert number_in(row(table(report(), "table-3"), "Mean")["8"]) == 20.0
    found = made(results(World(drop=-5.0, matches_at=2.0, places=ONE)))
    cell = row(table(found, "table-3"), "GPT2")["0.5"]
    assert cell.ours is not None
    assert cell.ours.text == "never (12 runs)"
    assert cell.difference is None
    assert outcome_of(found, "rldp-steps-range") is Replication.NOT_REPLICATED


def test_the_first_evaluation_at_the_bar_counts() -> None:
    one = results().outcomes[0]
    curve = {"evaluation_steps": (0.0, 50.0, STEPS), "evaluation_perplexity": (3.0, 2.0, 2.5)}
    run = replace(one, traces=curve)
    assert share_of_steps(run, 2.0) == pytest.approx(50.0)
    assert share_of_steps(run, 5.0) == 0.0
    assert share_of_steps(run, 1.9) is None


def test_a_bar_waits_for_baselines_that_are_not_run() -> None:
    def lose(one: Outcome) -> Outcome:
        is_lost = one.experiment.variant == "PSAC" and one.experiment.seed == 0
        return Outcome(experiment=one.experiment, key=one.key, status=Status.MISSING) if is_lost else one

    found = changed(lose)
    context = context_of(RLDP, found, PAPER, 0.95)
    found_bars = bars(context, {"stands_for": "GPT2", "epsilon": 8.0})
    assert not isinstance(found_bars, str)
    assert sorted(found_bars) == [1, 2, 3, 4, 5]
    assert outcome_of(made(found), "rldp-lowest-perplexity") is Replication.NOT_RUN


@pytest.mark.slow
def test_a_partial_store_is_reported() -> None:
    """Every second run is missing, then all but the first."""
    whole = results(World(places=ONE))
    for kept in (2, len(whole.outcomes)):
        outcomes = tuple(
            one
            if place % kept == 0
            else Outcome(experiment=one.experiment, key=one.key, status=Status.MISSING)
            for place, one in enumerate(whole.outcomes)
        )
        found = made(replace(whole, outcomes=outcomes))
        for one in found.tables:
            assert "no reason was given" not in table_text(one).reasons, one.id


@pytest.mark.slow
def test_what_the_noise_was_worth_stands_beside_the_claim() -> None:
    found = table(report(), "privacy")
    ours = row(found, "GPT2", "8", "RLDP-H")
    assert ours["claimed epsilon"].ours is not None
    assert ours["claimed epsilon"].ours.text == "8 (replace-one)"
    assert number_in(ours["its ledger at the end"]) == pytest.approx(7.99)
    assert number_in(ours["certified: one release a step"]) == pytest.approx(9.6)
    assert number_in(ours["certified: all adapters"]) == 32.0
    # Ten planted records beside 160 members, batches of 16.
    bounds = same_sigma_epsilon(noise_multiplier=1.5, sampling_probability=16 / 170, steps=STEPS, delta=1e-5)
    static = row(found, "GPT2", "8", "Static")
    assert number_in(static["certified: one release a step"]) == bounds.upper
    assert static["certified: all adapters"].ours is None


def test_canary_tables_have_their_chance_level() -> None:
    cells = row(table(report(), "table-6"), "GPT2", "0.5", "RLDP-H")
    assert cells["similarity"].paper is not None
    assert (cells["similarity"].paper.value, number_in(cells["similarity"])) == (
        0.119,
        pytest.approx(0.13, abs=0.005),
    )
    assert number_in(cells["chance"]) == 0.145
    assert cells["runs above chance"].ours is not None
    assert cells["runs above chance"].ours.text == "0 of 6"
    four = row(table(report(), "table-9"), "GPT2", "0.5", "Static")
    assert number_in(four["similarity"]) == pytest.approx(22.0, rel=0.05)  # In 1e-7, as printed.
    both = row(table(report(), "table-6"), "GPT2", "0.5", "DC-SGD")
    assert both["similarity"].ours is not None
    assert both["similarity"].ours.n == 6  # Two forms a seed are one replicate.


def test_where_memorisation_begins() -> None:
    found = table(report(), "insertions")
    told = row(found, "Non-private", "10")
    assert number_in(told["exposure, bits"]) == pytest.approx(8.0, abs=0.5)
    assert told["runs called, corrected"].ours is not None
    assert told["runs called, corrected"].ours.text == "6 of 6"
    # What one run's chance can be, and not how little its mean varies over runs.
    assert told["chance: exposure"].ours is not None
    assert told["chance: exposure"].ours.text == "1.44 (0.8 to 2.3)"
    assert told["chance, 1-grams"].ours is not None
    assert told["chance, 1-grams"].ours.text == "0.145 (0.13 to 0.16)"
    assert row(found, "DP-SGD, epsilon 1", "100")["runs called, corrected"].ours.text == "0 of 6"  # type: ignore[union-attr]
    assert any(
        "Non-private: every run from 10 insertions on; DP-SGD, epsilon 1: no run, up to 100" in note
        for note in found.notes
    )


def test_chance_is_drawn_beside_the_continuations_that_it_is_of() -> None:
    """What chance gives in n-grams depends on what a model says; in exposure it does not."""
    drawn = {one.id: one.svg for one in report().figures}
    for name in ("insertions-similarity-1", "insertions-similarity-4"):
        assert "chance, Non-private" in drawn[name]
        assert "chance, DP-SGD, epsilon 1" in drawn[name]
    assert "chance, Non-private" not in drawn["insertions-exposure"]
    assert "not stated" not in drawn["insertions-exposure"]


def test_training_without_privacy_has_a_row_where_others_have() -> None:
    """It has no budget, so that it would else stand at budgets that the study has no run of."""
    for name in ("canaries", "table-4", "table-6"):
        budgets = [headers[1] for headers, _ in table(report(), name).rows if headers[2] == "Non-private"]
        assert sorted(set(budgets)) == ["0.5", "8"], name


@pytest.mark.slow
def test_the_level_of_the_tests_is_the_reports() -> None:
    found = rldp(results=results(World(places=ONE)), published=PAPER, confidence=0.9)
    assert any("an error of 0.1 in each run" in note for note in table(found, "canaries").notes)
    assert any("at delta 1e-05" in note for note in table(found, "privacy").notes)


def test_what_is_changed_in_one_thing_stands_by_itself() -> None:
    found = table(report(), "controls")
    cells = row(found, "GPT2", "8", "RLDP, radii at rest")
    # At the baselines' level, RLDP-H 5 % below: 100 (1 / 0.95 - 1) % above.
    assert number_in(cells["perplexity against RLDP-H, percent"]) == pytest.approx(5.26, abs=0.4)
    assert [headers[2] for headers, _ in found.rows[:3]] == ["RLDP-H", "RLDP, radii at rest", "Static"]


@pytest.mark.slow
def test_the_page_can_be_made() -> None:
    page = study_html(report=report(), context={})
    assert "Where memorisation begins" in page
    assert "RLDP changed in one thing" in page


# Verdicts

TRUE_IN_THE_WORLD = (
    "rldp-lowest-perplexity",
    "rldp-mean-drop",
    "rldp-drop-range",
    "rldp-larger-gain-at-tight-budget",
    "rldp-steps-range",
    "rldp-steps-mean",
    "rldp-ledger",
    "rldp-membership",
    "rldp-canaries-lowest",
    "rldp-canaries-floor",
    "rldp-canaries-valid",
    "rldp-noise-rises",
    "rldp-noise-falls",
    "rldp-radii-widen",
)


@pytest.mark.parametrize("claim", TRUE_IN_THE_WORLD)
def test_what_is_true_in_the_world_is_replicated(claim: str) -> None:
    assert outcome_of(report(), claim) is Replication.REPLICATED


@cache
def contrary() -> StudyReport:
    """Where the paper's conclusions are false."""
    world = World(
        drop=-5.0,
        matches_at=2.0,
        area=0.6,
        similarity=0.16,
        valid=40.0,
        overspends=0.5,
        rise=0.5,
        worse_often=-10.0,
        seeds=8,
    )
    return made(results(world))


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim",
    [
        *sorted(set(TRUE_IN_THE_WORLD) - {"rldp-canaries-floor", "rldp-noise-falls", "rldp-radii-widen"}),
        "rldp-membership-nearer-chance",
        "rldp-canaries-largest",
        "rldp-ablation-robust",
        "rldp-ablation-interval",
    ],
)
def test_what_is_false_in_the_world_is_not_replicated(claim: str) -> None:
    assert outcome_of(contrary(), claim) is Replication.NOT_REPLICATED


def test_what_a_profile_has_not_is_not_decided() -> None:
    for claim in ("rldp-steps-dp-lora", "rldp-varies-less", "rldp-time"):
        assert outcome_of(report(), claim) is Replication.NOT_TESTABLE


def test_a_wrong_study_is_refused() -> None:
    whole = results(World(seeds=1, places=ONE))
    with pytest.raises(InputError, match="must have a group whose part is one of 'models'"):
        rldp(
            results=replace(
                whole,
                outcomes=tuple(
                    replace(one, experiment=replace(one.experiment, group="else", tags={}))
                    for one in whole.outcomes
                ),
            ),
            published=PAPER,
        )
    with pytest.raises(InputError, match="confidence"):
        rldp(results=whole, published=PAPER, confidence=1.0)
    alone = rldp(results=whole, published=None)
    assert not alone.findings
    assert row(table(alone, "table-2"), "GPT2", "8")["RLDP"].ours is not None


# Conditions


def test_one_number_in_all_seeds_is_a_sign_test() -> None:
    sample = Sample(np.full(5, 20.0), tuple(range(5)), "seed")
    inside = asked("x", sample, Ends(high=43.0), 0.95, not_run=False, measure="").condition
    outside = asked("x", sample, Ends(high=10.0), 0.95, not_run=False, measure="").condition
    assert (inside.hold_p, inside.break_p) == (0.5**5, 1.0)
    assert (outside.hold_p, outside.break_p) == (1.0, 0.5**5)


def test_the_lowest_and_the_largest_of_several() -> None:
    """Of two comparisons one is shown and one is shown not to hold."""
    rng, units = np.random.default_rng(1), tuple(range(6))
    low, high = (
        asked(
            "x",
            Sample(mean + 0.1 * rng.normal(size=6), units, "seed"),
            Ends(high=0.0),
            0.95,
            not_run=False,
            measure="",
        )
        for mean in (-1.0, 1.0)
    )
    both, either = all_of("x", [low, high]).condition, any_of("x", [low, high]).condition
    assert both.hold_p > 0.9
    assert both.break_p == pytest.approx(2.0 * high.condition.break_p)
    assert either.hold_p == pytest.approx(2.0 * low.condition.hold_p)
    assert either.break_p > 0.9


@pytest.mark.slow
def test_spreads_are_compared_as_often_wrongly_as_they_say() -> None:
    """800 pairs of equal variances that share a part: 5 % are called, within 4 standard errors."""
    rng, units = np.random.default_rng(2), tuple(range(6))
    wrong = right = 0
    for _ in range(800):
        shared = rng.normal(size=6)
        first, second = shared + rng.normal(size=6), shared + rng.normal(size=6)
        wrong += varies_less("x", *(Sample(one, units, "seed") for one in (first, second))).hold_p <= 0.05
        tight = shared * 0.1 + 0.1 * rng.normal(size=6)
        right += varies_less("x", *(Sample(one, units, "seed") for one in (tight, second))).hold_p <= 0.05
    assert abs(wrong / 800 - 0.05) < 4.0 * math.sqrt(0.05 * 0.95 / 800)
    assert right / 800 > 0.9
    few = varies_less("x", *(Sample(one[:3], units[:3], "seed") for one in (first, second)))
    assert "at least 4 seeds" in few.why
