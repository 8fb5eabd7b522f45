"""PACZero's report on made-up results whose truth is known: tables, figures, verdicts, and partial stores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from paczero_world import World, results

from workbench.checks.published import published
from workbench.core.errors import InputError
from workbench.games.subset import play as subset_series
from workbench.interfaces import Currency
from workbench.reports.papers.paczero.report import paczero
from workbench.reports.papers.paczero.tables import GAME_CONFIDENCE, crossed_success
from workbench.reports.shared.cells import table_text
from workbench.reports.shared.conditions import Ends, between, seeds_to_decide
from workbench.reports.shared.pages.study import study_html
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome, Status, StudyResults
from workbench.studies.report import Cell, Replication, StudyReport, Table

TABLES = tuple(f"table-{number}" for number in (1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 14, 18))
FIGURES = {
    "plateau-and-cliff",
    "plateau-score",
    "plateau-unanimity",
    "drift",
    "drift-losses",
    "steps-unanimity",
    "steps-budget",
    "steps-entropy",
    "steps-unanimity-by-task",
}


@cache
def report() -> StudyReport:
    return paczero(results=results(), published=published("paczero"))


def made(found: StudyResults) -> StudyReport:
    return paczero(results=found, published=published("paczero"))


def outcome_of(found: StudyReport, claim: str) -> Replication:
    return next(one.outcome for one in found.findings if one.id == claim)


def table(found: StudyReport, name: str) -> Table:
    return next(one for one in found.tables if one.id == name)


def changed(change: Callable[[Outcome], Outcome]) -> StudyResults:
    found = results()
    return replace(found, outcomes=tuple(map(change, found.outcomes)))


# What stands in it


def test_every_table_and_figure_is_there_and_can_be_written() -> None:
    found = report()
    ids = [one.id for one in found.tables]
    assert ids[0] == "inside-and-outside"
    assert tuple(name for name in ids if name.startswith("table-")) == TABLES
    assert ids[-1] == "paper-means"
    assert {one.id for one in found.figures} == FIGURES
    for one in found.tables:
        table_text(one)
        assert all(len(cells) == len(one.columns) for _, cells in one.rows)
    assert len(found.findings) == len(published("paczero").claims)


def test_our_cells_stand_beside_the_papers_of_the_smaller_model() -> None:
    rows = dict(table(report(), "table-1").rows)
    first, other, *_ = rows["FT", "0 nats", "PACZero-ZPL"]
    assert first.paper is not None
    assert first.ours is not None
    assert first.difference is not None
    assert first.paper.value == 88.99
    assert first.ours.n == 6
    assert first.difference.estimate == pytest.approx(first.ours.estimate - 88.99)
    assert other.paper is not None
    assert other.ours is None
    assert "one model" in other.why_blank


def test_the_untrained_model_stands_under_the_trained_ones() -> None:
    rows = dict(table(report(), "table-1").rows)
    for track in ("FT", "LoRA"):
        cell = rows[track, "none", "before training"][0]
        assert cell.ours is not None
        assert (cell.ours.estimate, cell.ours.n) == (50.0, 6)


def test_seeds_stand_one_by_one_without_differences() -> None:
    """The paper's first seed and ours have nothing in common."""
    cells = dict(table(report(), "table-5").rows)["FT", "1.3B"]
    assert [cell.difference for cell in cells[:3]] == [None, None, None]
    assert cells[-1].difference is not None
    assert len({cell.ours.estimate for cell in cells[:3] if cell.ours is not None}) == 3


def test_steps_of_the_paper_are_ours_by_their_share_of_the_longest() -> None:
    rows = dict(table(report(), "table-14").rows)
    levels = [rows[str(steps),][1].ours for steps in (1000, 2000, 3000, 4000, 5000)]
    estimates = [level.estimate for level in levels if level is not None]
    assert np.diff(estimates) == pytest.approx([-3.0] * 4, abs=0.3)
    last = rows["5000",][2].ours
    assert last is not None
    assert last.estimate == pytest.approx(-12.0, abs=0.3)


def test_the_hybrid_stands_beside_its_budget_and_zero_nats() -> None:
    found = table(report(), "hybrid")
    rows = dict(found.rows)
    assert list(rows) == [("PACZero hybrid, 0.33 nats",), ("PACZero-MI, 0.33 nats",), ("PACZero-ZPL",)]
    last = rows["PACZero hybrid, 0.33 nats",][-1].ours
    assert last is not None
    assert last.lower is not None
    assert last.lower < 0.0 < (last.upper or 0.0)


def test_both_sides_of_the_claim_stand_in_one_row() -> None:
    found = table(report(), "inside-and-outside")
    assert found.columns[2:4] == ("inside the claim", "outside the claim")
    rows = dict(found.rows)
    zpl = dict(zip(found.columns, rows["PACZero-ZPL",], strict=True))
    assert zpl["allowed"].ours is not None
    assert zpl["allowed"].ours.estimate == 50.0
    assert zpl["inside the claim"].ours is not None
    assert zpl["outside the claim"].ours is not None
    mi = dict(zip(found.columns, rows["PACZero-MI, 0.33 nats",], strict=True))
    bits, values = mi["inside, from bits alone"].ours, mi["inside the claim"].ours
    assert bits is not None
    assert values is not None
    assert (bits.estimate, values.estimate) == (pytest.approx(59.6), pytest.approx(62.0))
    dp = dict(zip(found.columns, rows["DPZero, 2 epsilon",], strict=True))
    assert dp["inside the claim"].ours is not None
    assert dp["outside the claim"].ours is None
    assert "what its claim is about" in dp["outside the claim"].why_blank
    mezo = dict(zip(found.columns, rows["MeZO",], strict=True))
    assert mezo["allowed"].ours is None
    assert mezo["outside the claim"].ours is not None
    assert "releases no bits" in mezo["inside, from bits alone"].why_blank


def numbers(cell: Cell) -> tuple[float | None, ...]:
    assert cell.ours is not None
    return (cell.ours.estimate, cell.ours.lower, cell.ours.upper)


def test_nats_measured_stand_beside_nats_charged_and_claimed() -> None:
    rows = dict(table(report(), "inside-nats").rows)
    assert list(rows) == [("PACZero-MI, 0.33 nats",), ("PACZero-ZPL",)]  # DPZero and MeZO have no subsets.
    claimed, charged, information, shown = map(numbers, rows["PACZero-MI, 0.33 nats",])
    assert claimed == (0.33, None, None)
    assert charged == (pytest.approx(0.297), None, None)
    assert information == pytest.approx((0.264, 0.231, 0.2805))
    assert shown == pytest.approx((0.03, -0.17, 0.23))
    assert [numbers(cell)[0] for cell in rows["PACZero-ZPL",][:3]] == [0.0, 0.0, 0.0]


def test_attacks_compare_at_a_utility_that_is_measured() -> None:
    """In the world both learn equally well; with DPZero ten points behind, the margin says so."""

    def behind(one: Outcome) -> Outcome:
        if (one.experiment.variant, one.experiment.group) != ("DPZero", "outside the claim"):
            return one
        worse = one.metrics["test_accuracy_after"] - 0.1
        return replace(one, metrics={**one.metrics, "test_accuracy_after": worse})

    margins = []
    for found, mean in ((report(), 0.0), (made(changed(behind)), -10.0)):
        ((names, cells),) = table(found, "equal-utility").rows
        assert names == ("DPZero, 2 epsilon", "PACZero-MI, 0.33 nats")
        values = [cell.ours for cell in cells]
        assert all(value is not None for value in values)
        assert values[0].estimate == pytest.approx(mean, abs=2.0)  # type: ignore[union-attr]
        margins.append(values[1].estimate)  # type: ignore[union-attr]
    assert margins[0] < 5.0
    assert margins[1] > 9.0
    assert table(paczero(results=results(), published=None, confidence=0.7), "equal-utility")


def test_fifty_percent_that_are_arithmetic_are_called_so() -> None:
    """Who doubts nothing would read 50 of coins that are none, too."""

    def doubting(doubt: float) -> list[str]:
        def change(one: Outcome) -> Outcome:
            if one.experiment.attack != "subset_posterior":
                return one
            return replace(one, experiment=replace(one.experiment, attack_parameters={"doubt": doubt}))

        return [
            note for note in table(made(changed(change)), "inside-and-outside").notes if "arithmetic" in note
        ]

    assert len(doubting(0.0)) == 1
    assert not doubting(0.5)


def test_the_game_keeps_its_own_confidence() -> None:
    """Its interval comes with the run, at 95 %, and is not the report's."""
    wide = paczero(results=results(), published=None, confidence=0.8)
    first = table(wide, "inside-and-outside").notes[0]
    assert "95 % interval over independent trainings" in first
    assert "80 % t interval of the mean over seeds" in first
    assert GAME_CONFIDENCE == subset_series.CONFIDENCE


# Verdicts


@pytest.mark.parametrize(
    "claim",
    [
        "paczero-plateau",
        "paczero-plateau-lora",
        "paczero-cliff-dpzero",
        "paczero-cliff-aggzo-above",
        "paczero-drift",
        "paczero-quantization-helps",
        "paczero-directions-within-noise",
        "paczero-zpl-near-non-private",
        "paczero-unanimity-of-the-loss",
        "paczero-unanimity-by-task",
        "paczero-random-sign-at-chance",
        "paczero-budget-kept",
    ],
)
def test_what_is_true_in_the_world_is_replicated(claim: str) -> None:
    assert outcome_of(report(), claim) is Replication.REPLICATED


@cache
def contrary() -> StudyReport:
    """Where every conclusion of the paper is false."""
    world = World(
        plateau=lambda nats: 88.0 + 4.0 * math.log10(nats),
        cliff=lambda epsilon: 85.0,
        drift=lambda steps: 80.0 + steps / 100.0,
        surrogates=dict.fromkeys(("raw_full", "raw_half"), 90.0)
        | dict.fromkeys(("quant_full", "quant_half"), 70.0)
        | {"random_sign": 65.0},
        zpl=70.0,
        unanimity={
            ("sentiment", "FT"): 10.0,
            ("sentiment", "LoRA"): 12.0,
            ("question", "FT"): 30.0,
            ("question", "LoRA"): 40.0,
        },
    )
    return made(results(world))


@pytest.mark.parametrize(
    "claim",
    [
        "paczero-plateau",
        "paczero-plateau-lora",
        "paczero-cliff-dpzero",
        "paczero-drift",
        "paczero-quantization-helps",
        "paczero-zpl-near-non-private",
        "paczero-unanimity-by-task",
        "paczero-random-sign-at-chance",
    ],
)
def test_what_is_false_in_the_world_is_not_replicated(claim: str) -> None:
    assert outcome_of(contrary(), claim) is Replication.NOT_REPLICATED


def test_a_conclusion_about_the_larger_model_alone_is_not_tested() -> None:
    found = report()
    finding = next(one for one in found.findings if one.id == "paczero-directions-help-lora-6.7b")
    assert finding.outcome is Replication.NOT_TESTABLE
    assert "OPT-6.7B" in finding.figures


def test_one_run_above_its_budget_breaks_the_claim_of_a_kept_budget() -> None:
    target = next(one for one in results().outcomes if "nats_used" in one.metrics and one.experiment.epsilon)

    def spend(one: Outcome) -> Outcome:
        if one.key != target.key:
            return one
        return replace(one, metrics={**one.metrics, "nats_used": 1.001 * float(one.experiment.epsilon or 0)})

    assert outcome_of(made(changed(spend)), "paczero-budget-kept") is Replication.NOT_REPLICATED


def test_two_seeds_decide_nothing_about_means() -> None:
    found = made(results(World(seeds=2)))
    decided = {one.id for one in found.findings if one.outcome is Replication.REPLICATED}
    assert decided <= {"paczero-budget-kept"}


def test_few_noisy_seeds_say_how_many_would_decide() -> None:
    found = made(results(World(seeds=3, noise=2.5)))
    finding = next(one for one in found.findings if one.id == "paczero-plateau")
    assert finding.outcome is Replication.NOT_TESTABLE
    assert "seeds would show" in finding.figures


def test_settings_that_a_profile_lacks_are_left_out_and_counted() -> None:
    whole = results()
    kept = tuple(
        one
        for one in whole.outcomes
        if (one.experiment.group, one.experiment.epsilon) not in {("cliff", 0.3), ("cliff", 0.5)}
    )
    finding = next(
        one for one in made(replace(whole, outcomes=kept)).findings if one.id == "paczero-cliff-dpzero"
    )
    assert finding.outcome is Replication.REPLICATED
    assert "2 of 3 of the paper's settings are not part of this profile" in finding.figures


def test_budgets_that_ran_the_same_steps_are_one_setting() -> None:
    """As in the paper, whose six smallest budgets give three results: equal runs show no spread."""
    equal = (1e-4, 1e-3, 1e-2)
    first = {one.experiment.seed: one for one in results().outcomes if is_plateau(one, equal[0])}

    def same(one: Outcome) -> Outcome:
        if not any(is_plateau(one, nats) for nats in equal):
            return one
        like = first[one.experiment.seed]
        return replace(one, metrics=like.metrics, training_losses=like.training_losses)

    finding = next(one for one in made(changed(same)).findings if one.id == "paczero-plateau")
    assert finding.outcome is Replication.REPLICATED
    assert "the 6 conditions" in finding.test  # Of four distinct settings.


def is_plateau(one: Outcome, nats: float) -> bool:
    experiment = one.experiment
    return (experiment.group, experiment.adapter, experiment.epsilon) == ("plateau", "full", nats)


# Partial stores


def test_a_store_without_results_is_not_run() -> None:
    empty = changed(lambda one: Outcome(experiment=one.experiment, key=one.key, status=Status.MISSING))
    found = made(empty)
    assert found.figures == ()
    outcomes = {one.outcome for one in found.findings}
    assert outcomes <= {Replication.NOT_RUN, Replication.NOT_TESTABLE}
    assert outcome_of(found, "paczero-plateau") is Replication.NOT_RUN
    cell = dict(table(found, "table-1").rows)["FT", "0 nats", "PACZero-ZPL"][0]
    assert cell.paper is not None
    assert cell.why_blank.endswith("not run yet")


def test_a_seed_that_failed_is_no_reason_to_count_the_rest() -> None:
    """What diverged is left out of no mean by a verdict: the rest would be the seeds that went well."""

    def fail(one: Outcome) -> Outcome:
        if one.experiment.group == "plateau" and one.experiment.seed == 3:
            return Outcome(
                experiment=one.experiment, key=one.key, status=Status.FAILED, error="diverged at step 3"
            )
        return one

    found = made(changed(fail))
    finding = next(one for one in found.findings if one.id == "paczero-plateau")
    assert finding.outcome is Replication.NOT_TESTABLE
    assert "1 of 6 runs are lost (diverged at step 3)" in finding.figures
    assert any("diverged at step 3" in note for note in found.notes)


@pytest.mark.slow
def test_each_group_can_be_alone() -> None:
    whole = results()
    groups = {one.experiment.group for one in whole.outcomes}
    for group in groups:
        kept = tuple(one for one in whole.outcomes if one.experiment.group == group)
        found = made(replace(whole, outcomes=kept))
        for one in found.tables:
            table_text(one)
        assert found.tables


def test_without_the_printed_numbers_ours_stand_alone() -> None:
    found = paczero(results=results(), published=None)
    assert found.findings == ()
    cells = [cell for _, row in table(found, "table-1").rows for cell in row]
    assert all(cell.paper is None for cell in cells)
    assert any(cell.ours is not None for cell in cells)


def test_a_study_of_other_groups_or_units_is_refused() -> None:
    found = results()
    with pytest.raises(InputError, match="replication must be 'seed'"):
        made(replace(found, study=replace(found.study, replication="model")))
    other = tuple(
        replace(one, experiment=replace(one.experiment, group="mine", tags={})) for one in found.outcomes[:3]
    )
    with pytest.raises(InputError, match="must have a group whose part is one of 'headline'"):
        made(replace(found, outcomes=other))
    with pytest.raises(InputError, match=r"confidence must be in \(0.5, 1\), got 1.0"):
        paczero(results=found, published=None, confidence=1.0)


def test_it_makes_a_page() -> None:
    page = study_html(report=report(), context={})
    assert "Inside the claim and outside" in page
    assert "plateau-and-cliff" in page


# The tests themselves


def test_an_equivalence_is_declared_falsely_at_most_at_its_level() -> None:
    """Means at the margin's edge: level 0.05; 400 data sets, so 0.05 + 4 standard errors is 0.094."""
    generator = np.random.default_rng(3)
    declared = 0
    for _ in range(400):
        sample = Sample(3.0 + generator.normal(size=5), tuple(range(5)), "seed")
        declared += between("edge", sample, Ends(low=-3.0, high=3.0), 0.95).hold_p <= 0.05
    assert declared / 400 < 0.094


def test_the_seeds_that_decide_do_decide_four_times_in_five() -> None:
    """Power at the suggested number: 300 data sets, so 0.8 - 4 standard errors is 0.71."""
    generator = np.random.default_rng(4)
    pilot = Sample(np.array([-1.0, 0.0, 1.0]), (0, 1, 2), "seed")
    ends = Ends(low=-1.0, high=1.0)
    count = seeds_to_decide(pilot, ends, 0.95)
    assert count is not None
    shown = 0
    for _ in range(300):
        sample = Sample(generator.normal(size=count), tuple(range(count)), "seed")
        shown += between("power", sample, ends, 0.95).hold_p <= 0.05
    assert shown / 300 > 0.71
    fewer = Sample(generator.normal(size=count // 4), tuple(range(count // 4)), "seed")
    assert between("power", fewer, ends, 0.95).hold_p > 0.05


def test_success_outside_the_claim_is_not_chosen_on_what_it_is_counted_on() -> None:
    """Scores without information: success 50 % on the average (a threshold chosen on all would give more)."""
    generator = np.random.default_rng(5)
    base = results().outcomes[0]
    found = []
    for _ in range(200):
        members = generator.permutation(60) < 30
        one = replace(base, scores=tuple(generator.normal(size=60)), included=tuple(map(bool, members)))
        found.append(crossed_success(one))
    assert np.mean(found) == pytest.approx(50.0, abs=4 * np.std(found) / math.sqrt(200))
    told = replace(base, scores=tuple(map(float, members)), included=tuple(map(bool, members)))
    assert crossed_success(told) == 100.0


def test_an_invented_budget_is_of_the_study() -> None:
    """The world's runs are experiments that a study could have."""
    budgets = {one.experiment.currency for one in results().outcomes if one.experiment.epsilon == 0.33}
    assert Currency.SUBSET_NATS in budgets
