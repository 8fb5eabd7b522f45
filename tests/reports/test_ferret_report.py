"""The report on FERRET, from made-up results whose truth is known (`ferret_world`).

Statements about outcomes and verdicts hold by a wide margin at the fixed random seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ferret_world import GROUPS, World, made_up, nothing, overfitting, study_of, tags_of

from workbench.checks.published import published
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.estimation.low_fpr import CERTAIN
from workbench.interfaces import VerdictKind
from workbench.reports.papers.ferret import report as conclusions
from workbench.reports.papers.ferret.figures import (
    dither_figure,
    figures,
    final_loss,
    known_losses,
    regions_figure,
)
from workbench.reports.papers.ferret.game import judged_cells
from workbench.reports.papers.ferret.places import (
    AUC,
    COMPARISON,
    MODELS,
    PAPER_MODELS,
    SECONDS,
    TEST,
    at,
    is_complete,
    methods,
    optimistic_advantage,
)
from workbench.reports.papers.ferret.report import FERRET, ferret
from workbench.reports.papers.ferret.tables import held_out_advantage
from workbench.reports.shared import claims, grids
from workbench.reports.shared.conditions import Condition
from workbench.reports.shared.context import Context
from workbench.reports.shared.findings import decided
from workbench.reports.shared.numbers import percent
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.study import context_of as study_context
from workbench.studies.experiments import Outcome, Status, StudyResults
from workbench.studies.report import Cell, Replication, ReplicationFinding, Table

PAPER = published("ferret")
REPLICATED, NOT_REPLICATED, NOT_TESTABLE = (
    Replication.REPLICATED,
    Replication.NOT_REPLICATED,
    Replication.NOT_TESTABLE,
)
TIMED = {"table-6", "table-11", "table-12", "table-14", "time-ratios"}
MAIN = ("comparison", "head-room", "untrained")


def context_of(results: StudyResults) -> Context:
    return study_context(FERRET, results, PAPER, 0.95)


def tables_of(results: StudyResults | Context) -> dict[str, Table]:
    context = results if isinstance(results, Context) else context_of(results)
    return {table.id: table for table in grids.tables(context)}


def finding_of(results: StudyResults, claim: str) -> ReplicationFinding:
    """The finding of one claim, named without the `ferret-`."""
    chosen = tuple(one for one in PAPER.claims if one.id == f"ferret-{claim}")
    assert len(chosen) == 1, claim
    return claims.conclusions(context_of(results), replace(PAPER, claims=chosen))[0]


def changed(name: str, levels: Mapping[str, float], **fields: object) -> Any:
    """The paper's world with other levels of one metric."""
    return replace(World(), **{name: {**getattr(World(), name), **levels}}, **fields)


def cell_of(table: Table, row: tuple[str, ...], column: str) -> Cell:
    cells = dict(table.rows)[row]
    return cells[table.columns.index(column)]


def bump(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """FERRET-MAX's perplexity falls and then rises with epsilon; non-private training overfits."""
    steps = {0.1: 0.3, 1.0: 0.1, 2.0: 0.3} if variant == "FERRET-MAX" else {}
    return steps.get(epsilon or 0.0, 0.0) + float(overfitting(variant, epochs, epsilon, size))


def falling(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """FERRET-MAX's perplexity falls with epsilon."""
    return -0.3 * math.log(epsilon) if variant == "FERRET-MAX" and epsilon else 0.0


def first_fails(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """FERRET-2 fails at one epoch."""
    return 1.0 if variant == "FERRET-2" and epochs == 1 else 0.0


def unstable(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """DPSGD differs far more between the models than the other methods."""
    return 8.0 * math.log(size) if variant == "DPSGD" else 0.0


def steady(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """DPSGD hardly differs between the models, the other methods do."""
    return -0.9 * math.log(size) if variant == "DPSGD" else 0.0


def faster(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
    """FERRET's time falls with epsilon."""
    return -0.03 * math.log(epsilon) if epsilon and variant != "DPSGD" else 0.0


WORLDS: dict[str, tuple[Any, Any]] = {
    "beats-dpsgd": (World(), changed("perplexity", {"DPSGD": 3.0})),
    "all-variants-beat-dpsgd": (World(), changed("perplexity", {"FERRET-2": 15.0})),
    "eighth-half-epsilon-ratio": (changed("perplexity", {"DPSGD": 11.6}, noise=0.001), World()),
    "non-private-overfits": (World(), replace(World(), perplexity_effect=nothing)),
    "non-private-leaks-with-epochs": (World(), replace(World(), auc_effect=nothing)),
    "auc-at-chance": (World(), changed("auc", {"FERRET-EIGHTH": 0.53})),
    "max-protects-like-dpsgd": (World(), changed("auc", {"FERRET-MAX": 0.53})),
    "better-trade-off": (World(), changed("auc", {"FERRET-MAX": 0.53})),
    "far-below-non-private": (World(), changed("auc", {"Non-DP": 0.505}, auc_effect=nothing)),
    "2-leaks-more": (World(), changed("auc", {"FERRET-2": 0.505})),
    "granularity-ordering": (World(), changed("auc", {"FERRET-QUARTER": 0.505})),
    "time-share-of-dpsgd": (World(), changed("seconds", {"FERRET-2": 6.0})),
    "faster-than-dpsgd": (World(), changed("seconds", {"FERRET-2": 12.0})),
    "time-falls-with-budget": (World(), replace(World(), seconds_effect=faster)),
    "non-monotone": (
        replace(World(), perplexity_effect=bump),
        replace(World(), perplexity_effect=falling),
    ),
    "stable-across-models": (
        replace(World(), perplexity_effect=unstable, noise=0.001),
        replace(World(), perplexity_effect=steady, noise=0.001),
    ),
    "2-fails-at-one-epoch": (replace(World(), perplexity_effect=first_fails), World()),
}
"""For each conclusion a world in which it holds, and one in which it does not."""


MANY = {"auc-at-chance": 10_000}
"""Members that a conclusion about one AUC by itself needs, with the luck of their draw counted."""


@pytest.mark.slow
@pytest.mark.parametrize("claim", sorted(WORLDS))
def test_a_conclusion_is_replicated_where_it_holds_and_not_where_it_does_not(claim: str) -> None:
    holds, fails = WORLDS[claim]
    records = MANY.get(claim, 40)
    assert finding_of(made_up(holds, groups=MAIN, records=records), claim).outcome is REPLICATED
    found = finding_of(made_up(fails, groups=MAIN, records=records), claim)
    assert found.outcome is NOT_REPLICATED, found.figures
    assert "not" in found.test
    assert "0.05" in found.test


@pytest.mark.parametrize(
    ("claim", "factors", "outcome"),
    [
        ("dither-harmless", {}, REPLICATED),
        ("dither-harmless", {1e-3: 1.4}, NOT_REPLICATED),
        ("dither-helps", {}, REPLICATED),
        ("dither-helps", {1e-2: 1.0}, NOT_REPLICATED),
        ("dither-hurts", {}, REPLICATED),
        ("dither-hurts", {0.1: 0.6}, NOT_REPLICATED),
    ],
)
def test_figure_5s_conclusions_are_tested_over_seeds(
    claim: str, factors: Mapping[float, float], outcome: Replication
) -> None:
    world = replace(World(), dither={**World().dither, **factors})
    found = finding_of(made_up(world, groups=("dither",)), claim)
    assert found.outcome is outcome, found.figures
    assert "n = 10" in found.figures


def test_nothing_is_decided_where_noise_hides_everything() -> None:
    world = replace(World(), noise=1.5)
    results = made_up(world, groups=MAIN)
    for claim in ("auc-at-chance", "max-protects-like-dpsgd", "beats-dpsgd", "2-leaks-more"):
        assert finding_of(results, claim).outcome is NOT_TESTABLE


def test_the_luck_of_a_draw_that_all_models_share_is_no_leak_and_no_privacy() -> None:
    # Guessing on 200 members and 200 others: an AUC of 0.54 is 1.4 standard deviations (0.029) from 0.5.
    levels = dict.fromkeys(World().auc, 0.5)
    for luck in (0.04, 0.005):
        world = replace(World(), auc=levels, auc_effect=nothing, luck=luck)
        found = finding_of(made_up(world, groups=("comparison",), records=200), "auc-at-chance")
        assert found.outcome is NOT_TESTABLE, found.figures
        assert "draw of members" in found.test
    alike = finding_of(made_up(world, groups=("comparison",), records=200), "max-protects-like-dpsgd")
    assert alike.outcome is REPLICATED, "luck that both sides share cancels"


def test_no_verdict_is_held_against_a_conclusion_where_the_paper_prints_a_tie() -> None:
    # Table 2 at 1 epoch and epsilon 2: 0.507 for FERRET-EIGHTH and for FERRET-2; at 5 epochs 0.529 and 0.546.
    def grouped(variant: str, epochs: int, epsilon: float | None, size: float) -> float:
        return 0.045 if variant == "FERRET-2" and epochs == 5 else 0.0

    world = changed("auc", {"FERRET-2": 0.505}, auc_effect=grouped)
    assert finding_of(made_up(world, groups=("comparison",)), "2-leaks-more").outcome is REPLICATED


def test_an_auc_without_scores_decides_nothing() -> None:
    results = made_up(groups=("comparison",))
    bare = tuple(replace(one, scores=(), included=()) for one in results.outcomes)
    found = finding_of(StudyResults(study=study_of(bare), outcomes=bare), "2-leaks-more")
    assert found.outcome is NOT_TESTABLE
    assert "no scores" in found.figures


def test_no_difference_is_not_called_similar_and_two_models_decide_nothing() -> None:
    found = finding_of(made_up(groups=MAIN, models=("gpt2_base", "llama_base")), "auc-at-chance")
    assert found.outcome is NOT_TESTABLE
    assert "at least 3 models" in found.figures


def test_a_single_model_trained_once_shows_nothing_and_several_seeds_of_it_do() -> None:
    world = replace(World(), perplexity_effect=nothing)
    once = finding_of(made_up(world, groups=("comparison",)), "gpt2-two-groups-beat-dpsgd")
    assert once.outcome is NOT_TESTABLE
    assert "at least 3 seeds" in once.figures
    assert "the paper's own models: not testable" in once.figures
    less = changed("perplexity", {"FERRET-2": 3.0}, perplexity_effect=nothing)
    four = made_up(less, groups=("comparison",), models=("gpt2_base",), seeds=(0, 1, 2, 3))
    assert finding_of(four, "gpt2-two-groups-beat-dpsgd").outcome is NOT_REPLICATED
    half = changed("perplexity", {"FERRET-2": 7.2}, perplexity_effect=nothing)
    four = made_up(half, groups=("comparison",), models=("gpt2_base",), seeds=(0, 1, 2, 3))
    assert finding_of(four, "gpt2-two-groups-beat-dpsgd").outcome is REPLICATED


def test_a_lost_run_leaves_a_conclusion_open_unless_another_setting_refutes_it() -> None:
    lost = {0: "InconclusiveError: diverged"}
    open_one = finding_of(made_up(groups=MAIN, lost=lost), "beats-dpsgd")
    assert open_one.outcome is NOT_TESTABLE
    assert "1 of 5 runs are lost (InconclusiveError: diverged)" in open_one.figures
    fails = finding_of(made_up(changed("perplexity", {"DPSGD": 3.0}), groups=MAIN, lost=lost), "beats-dpsgd")
    assert fails.outcome is NOT_REPLICATED


def waiting(results: StudyResults, places: Collection[int]) -> StudyResults:
    """The results with some outcomes not made yet."""
    outcomes = tuple(
        Outcome(experiment=one.experiment, key=one.key, status=Status.MISSING) if place in places else one
        for place, one in enumerate(results.outcomes)
    )
    return replace(results, outcomes=outcomes)


def test_what_was_not_run_is_not_called_too_small() -> None:
    results = made_up(groups=(*MAIN, "dither"))
    none = waiting(results, range(len(results.outcomes)))
    for claim in ("beats-dpsgd", "auc-at-chance", "dither-harmless", "gpt2-two-groups-beat-dpsgd"):
        assert finding_of(none, claim).outcome is Replication.NOT_RUN, claim
    first = waiting(results, (0,))
    assert finding_of(first, "beats-dpsgd").outcome is Replication.NOT_RUN
    # What hangs on other runs, and what a failed run leaves open, is as before.
    assert finding_of(first, "dither-harmless").outcome is REPLICATED
    assert finding_of(first, "gpt2-two-groups-beat-dpsgd").outcome is NOT_TESTABLE
    failed = made_up(groups=MAIN, lost={0: "InputError: x"})
    assert finding_of(failed, "beats-dpsgd").outcome is NOT_TESTABLE
    # What is there may decide it all the same.
    fails = made_up(changed("perplexity", {"DPSGD": 3.0}), groups=MAIN)
    assert finding_of(waiting(fails, (0,)), "beats-dpsgd").outcome is NOT_REPLICATED


@pytest.mark.parametrize(("seconds", "words"), [(0.5, "faster than claimed"), (8.0, "slower than claimed")])
def test_a_share_of_time_that_is_not_replicated_says_its_direction(seconds: float, words: str) -> None:
    world = changed("seconds", dict.fromkeys(("FERRET-MAX", "FERRET-EIGHTH", "FERRET-2"), seconds))
    found = finding_of(made_up(world, groups=MAIN), "time-share-of-dpsgd")
    assert found.outcome is NOT_REPLICATED
    ours, _, theirs = found.figures.partition("The same test on the paper's own models")
    assert ours.split(". ")[0].endswith(f"shown not to hold: all {words}")
    other = {"faster than claimed", "slower than claimed"} - {words}
    assert not any(word in ours for word in other)
    assert theirs


@pytest.mark.slow
def test_a_budget_above_the_ceiling_blanks_its_cell_and_says_why() -> None:
    results = made_up(groups=("comparison",))
    above = {
        place: "InputError: epsilon 2 is above the ceiling"
        for place, one in enumerate(results.outcomes)
        if (one.experiment.variant, one.experiment.epochs, one.experiment.epsilon) == ("FERRET-2", 1, 2.0)
    }
    context = context_of(made_up(groups=("comparison",), lost=above))
    table = tables_of(context)["table-5"]
    cell = cell_of(table, ("FERRET-2", "1"), "ε = 2")
    assert cell.ours is None
    assert cell.paper is not None
    assert cell.paper.printed.startswith("5410.29")
    assert "above the ceiling G T s ln 2 = 1.386 nats of FERRET-2 at 1 epoch: no firing" in cell.why_blank
    capped = tables_of(results)["table-5"]
    assert any("FERRET-2 at epsilon 2, 1 epoch (ceiling 1.386)" in note for note in capped.notes)


@pytest.mark.slow
def test_cells_are_means_over_models_beside_the_printed_ones() -> None:
    results = made_up(groups=("comparison",))
    tables = tables_of(results)
    values = [one.metrics[TEST] for one in results.done(variant="FERRET-MAX", epochs=3, epsilon=0.5)]
    for name in ("table-5", "table-8"):
        cell = cell_of(tables[name], ("FERRET-MAX", "3"), "ε = 0.5")
        assert cell.paper is not None
        assert cell.ours is not None
        assert cell.difference is not None
        assert (cell.paper.value, cell.paper.lower, cell.paper.upper) == (5.48, 2.38, 9.51)
        assert cell.ours.estimate == pytest.approx(np.mean(values))
        assert cell.ours.n == 5
        assert cell.ours.text == f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        assert cell.difference.estimate == pytest.approx(np.mean(values) - 5.48)
    spread = cell_of(tables["table-2"], ("FERRET-MAX", "3"), "ε = 0.5").ours
    assert spread is not None
    areas = [one.metrics[AUC] for one in results.done(variant="FERRET-MAX", epochs=3, epsilon=0.5)]
    assert spread.spread == pytest.approx(np.std(areas, ddof=1))
    single = cell_of(tables["table-13"], ("DPSGD", "1", "GPT-2 (gpt2_base)"), "advantage, ε = 0.1")
    run = results.done(variant="DPSGD", epochs=1, epsilon=0.1, model="gpt2_base")[0]
    assert single.ours is not None
    assert single.paper is not None
    assert single.ours.estimate == pytest.approx(optimistic_advantage(run))
    gap = cell_of(tables["table-14"], ("DPSGD", "1", "Mean"), "gap, ε = 0.1")
    assert gap.ours is not None
    first = results.done(variant="DPSGD", epochs=1, epsilon=0.1)
    assert gap.ours.estimate == pytest.approx(np.mean([one.metrics[TEST] * 0.02 for one in first]))


@pytest.mark.slow
def test_training_that_harms_is_counted() -> None:
    # The base's test perplexity is 20.1 times the model's effect; DPSGD's 12 and all of FERRET's are below.
    for levels, worse in (({}, 0), ({"DPSGD": 30.0}, 12)):
        context = context_of(made_up(changed("perplexity", levels), groups=("untrained", "comparison")))
        table = tables_of(context)["table-5"]
        assert any(note.startswith(f"In {worse} of 48 settings with a budget") for note in table.notes)


@pytest.mark.slow
def test_the_rates_table_holds_each_model_against_its_base() -> None:
    """Half of the base's perplexity at one rate, twice at another; a cell without all its runs is blank."""
    base = made_up(groups=("untrained",)).outcomes
    runs = []
    for rate, factor in ((1e-4, 0.5), (1e-3, 2.0)):
        for one in base:
            experiment = replace(
                one.experiment, group="learning rates", variant="DPSGD", epsilon=0.5, learning_rate=rate
            )
            metrics = {TEST: factor * one.metrics[TEST]}
            runs.append(replace(one, experiment=experiment, key=f"{rate}{experiment.model}", metrics=metrics))
    runs[-1] = replace(runs[-1], metrics={})
    results = StudyResults(study=study_of((*base, *runs)), outcomes=(*base, *runs))
    table = tables_of(results)["learning-rates"]
    (_, (half, twice)) = table.rows[0]
    assert half.ours is not None
    assert (half.ours.estimate, half.ours.n) == (pytest.approx(0.5), 5)
    assert (twice.ours, twice.why_blank) == (None, "not every run of this cell is finished")
    assert "learning-rates" not in tables_of(made_up(groups=MAIN))


@pytest.mark.slow
def test_every_printed_cell_of_the_tables_has_its_place() -> None:
    tables = {name: one for name, one in tables_of(made_up(groups=MAIN)).items() if name.startswith("table-")}
    assert list(tables) == [f"table-{k}" for k in (*range(1, 7), *range(8, 15))]
    for table in tables.values():
        shown = {(cell.paper.row, cell.paper.column) for _, row in table.rows for cell in row if cell.paper}
        wanted = {
            (cell.row, cell.column)
            for cell in PAPER.table(table.id).cells
            if table.id != "table-1" or cell.column in ("bits per update", "granularity")
        }
        # Phi-3.5 was trained by no other method, and has no stand-in.
        assert {place for place in wanted - shown if place[0] != ("Phi-3.5-mini",)} == set(), table.id
        for _, row in table.rows:
            for cell in row:
                assert cell.why_blank or (cell.ours is not None and cell.paper is not None)


@pytest.mark.slow
def test_unreadable_cells_say_so() -> None:
    tables = tables_of(made_up(groups=("comparison",)))
    for name in ("table-12", "table-13", "table-14"):
        for hidden in PAPER.table(name).unreadable:
            cells = [
                cell
                for (method, epochs, model), row in tables[name].rows
                if (method, epochs, model.partition(" (")[0]) == hidden.row
                for cell in row
            ]
            assert any(hidden.reason in cell.why_blank for cell in cells)


@pytest.mark.slow
def test_tables_without_times_do_not_depend_on_times() -> None:
    few = {"records": 10, "trials": 20, "epochs": (1,)}
    quick = made_up(**few)
    slow = made_up(changed("seconds", dict.fromkeys(World().seconds, 77.0)), **few)
    first, second = (ferret(results=results, published=PAPER) for results in (quick, slow))
    assert [table.id for table in first.tables] == [table.id for table in second.tables]
    for one, other in zip(first.tables, second.tables, strict=True):
        texts = [
            registry.create("report", "table_markdown", table=table, findings=report.findings)
            for table, report in ((one, first), (other, second))
        ]
        assert (texts[0] == texts[1]) == (one.id not in TIMED), one.id


@pytest.mark.slow
def test_equal_results_give_equal_reports_that_all_writers_take() -> None:
    few = {"records": 10, "trials": 20, "epochs": (5,)}
    one, other = (ferret(results=made_up(**few), published=PAPER) for _ in range(2))
    assert one == other
    for table in one.tables:
        for name in ("table_markdown", "table_latex", "table_csv"):
            text = registry.create("report", name, table=table)
            assert "[U+" not in text
            assert "nan" not in text.replace("financial", "") or name == "table_csv"


@pytest.mark.slow
def test_ratios_of_time_are_geometric_means_with_the_papers_quotient_below() -> None:
    results = made_up(groups=("comparison",))
    table = tables_of(results)["time-ratios"]
    mine = {
        one.experiment.model: one.cost[SECONDS]
        for one in results.done(variant="FERRET-2", epochs=5, epsilon=1.0)
    }
    base = {
        one.experiment.model: one.cost[SECONDS]
        for one in results.done(variant="DPSGD", epochs=5, epsilon=1.0)
    }
    logs = [math.log(mine[model] / base[model]) for model in mine]
    cell = cell_of(table, ("FERRET-2", "5", "over DPSGD"), "ε = 1").ours
    assert cell is not None
    assert cell.estimate == pytest.approx(math.exp(np.mean(logs)))
    assert cell.lower is not None
    assert cell.upper is not None
    assert cell.lower < cell.estimate < cell.upper
    printed = cell_of(table, ("FERRET-2", "5", "over DPSGD, paper's means"), "ε = 1").ours
    assert printed is not None
    assert printed.estimate == pytest.approx(2080 / 7810)


def test_the_optimistic_advantage_of_guessing_is_positive_and_the_paid_one_is_not() -> None:
    rng = np.random.default_rng(3)
    members = np.arange(200) < 100
    both = []
    outcome = made_up(groups=("lira",), models=("m",), epochs=(1,)).outcomes[0]
    for _ in range(300):
        scores = rng.normal(size=200)
        outcome = replace(outcome, scores=tuple(scores), included=tuple(map(bool, members)))
        both.append((optimistic_advantage(outcome), held_out_advantage(scores, members)))
    optimistic, paid = np.mean(both, axis=0)
    # Mean of the one-sided Kolmogorov-Smirnov distance: sqrt(pi / (4 N)) = 0.089 for large N.
    assert optimistic == pytest.approx(math.sqrt(math.pi / 400.0), rel=0.15)
    error = float(np.std([one for _, one in both])) / math.sqrt(300)
    assert abs(paid) < 4.0 * error  # false alarms: 6e-5
    separated = np.where(members, 1.0, 0.0) + 0.01 * rng.random(200)
    assert held_out_advantage(separated, members) > 0.9


@pytest.mark.slow
def test_head_room_and_bits_are_computed_from_the_runs() -> None:
    tables = tables_of(made_up(groups=MAIN))
    table = tables["table-3"]
    ceiling = cell_of(table, ("FERRET-2",), "ceiling").ours
    assert ceiling is not None
    assert ceiling.estimate == pytest.approx(2 * 100 * 0.05 * math.log(2.0))
    bits = tables["table-1"]
    for name, wanted in (("signSGD", 1.0), ("QSGD", 8.0), ("FERRET", 1.0)):
        found = cell_of(bits, (name,), "bits per update").ours
        assert found is not None
        assert found.estimate == wanted
    signs = cell_of(bits, ("FERRET-MAX",), "signs released a step").ours
    assert signs is not None
    p = 0.5 / (60 * 100 * 0.05 * math.log(2.0))
    assert signs.estimate == pytest.approx(round(p * 60 * 100) / 100)


class TestTranscript:
    """The transcript game, judged in both currencies."""

    def test_a_leak_refutes_both_readings_of_a_small_claim(self) -> None:
        world = replace(World(), leak={"opposed": 20.0})
        cells = judged_cells(context_of(made_up(world, groups=("transcript",), trials=400)))
        small = [cell for cell in cells if cell.epsilon == 0.1]
        assert len(small) == len(GROUPS)
        assert {cell.verdict for cell in small} == {VerdictKind.REFUTED}
        assert {cell.dp_verdict for cell in cells if cell.epsilon < 2.0} == {VerdictKind.REFUTED}
        # From ln 2 nats on every guess may be right, so that nothing refutes the claim itself.
        assert not any(cell.verdict is VerdictKind.REFUTED for cell in cells if cell.epsilon >= 1.0)

    def test_no_leak_refutes_nothing(self) -> None:
        world = replace(World(), leak=dict.fromkeys(World().leak, 0.0))
        cells = judged_cells(context_of(made_up(world, groups=("transcript",), trials=100)))
        assert len(cells) == 80
        # Over all seeds at most 5 % of studies refute a true claim in a currency; this one does not.
        assert not any(VerdictKind.REFUTED in (cell.verdict, cell.dp_verdict) for cell in cells)

    def test_a_game_that_grants_more_than_the_transcript_refutes_nothing(self) -> None:
        world = replace(World(), leak={"average": 20.0})
        context = context_of(made_up(world, groups=("transcript",), trials=400))
        cells = judged_cells(context)
        kinds = {kind for cell in cells for kind in (cell.verdict, cell.dp_verdict)}
        assert VerdictKind.UNDECIDED in kinds
        assert VerdictKind.REFUTED not in kinds
        table = tables_of(context)["transcript"]
        found = cell_of(table, ("FERRET-2", "0.1", "average"), "verdict, DP reading").ours
        assert found is not None
        assert found.text == "beyond the claim"

    @pytest.mark.slow
    def test_rates_success_and_limits_are_those_of_the_scores(self) -> None:
        results = made_up(groups=("transcript",), trials=200)
        context = context_of(results)
        cells = judged_cells(context)
        cell = next(
            one for one in cells if (one.variant, one.epsilon, one.canary) == ("FERRET-2", 0.5, "opposed")
        )
        run = next(
            one
            for one in results.done(variant="FERRET-2", epsilon=0.5)
            if one.experiment.attack_parameters["canary"] == "opposed"
        )
        scores, members = np.array(run.scores), np.array(run.included)
        assert cell.success.estimate == np.mean((scores > 0) == members)
        assert cell.at[0].tpr.estimate == np.mean(scores[members] >= CERTAIN)
        assert cell.at[0].alarms == 0
        assert cell.success.lower < cell.success.estimate < cell.success.upper
        # KL(p || 1/2) = 0.5 nats has the root 0.9519.
        assert cell.claim.max_success(0.5) == pytest.approx(0.9519, abs=1e-4)
        assert cell.max_tpr(0.01) == pytest.approx(math.exp(0.5) * 0.01 + 1e-5)
        tables = tables_of(context)
        shown = cell_of(tables["transcript"], ("FERRET-2", "0.5", "opposed, copies"), "success").ours
        assert shown is not None
        assert shown.n == 200
        assert set(tables) == {"three-views", "transcript"}

    @pytest.mark.slow
    def test_the_three_views_stand_in_one_row(self) -> None:
        context = context_of(made_up(trials=100, records=20))
        table = tables_of(context)["three-views"]
        row = {name: cell_of(table, ("FERRET-2", "0.5"), name) for name in table.columns}
        assert row["view 2: DP reading"].ours is not None
        assert row["view 3: confidence AUC"].ours is not None
        assert row["view 3: confidence AUC"].ours.n == 5
        assert row["view 3: LiRA AUC"].ours is not None
        finer = cell_of(table, ("FERRET-HALF", "1"), "view 3: LiRA AUC")
        assert "no run of the base models" in finer.why_blank

    @pytest.mark.slow
    def test_the_papers_own_adversary_stands_beside_the_one_who_knows_the_batches(self) -> None:
        context = context_of(made_up(groups=("transcript",), trials=100))
        cells = judged_cells(context)
        games = {cell.game_words: cell for cell in cells if (cell.variant, cell.epsilon) == ("FERRET-2", 0.5)}
        assert list(games) == ["opposed, copies", "outlier", "average", "average, batches unknown"]
        assert [name for name, cell in games.items() if cell.evidence.game.beyond] == ["outlier", "average"]
        views, full = tables_of(context).values()
        for column, name in (
            ("average record, batches known, success", "average"),
            ("average record, success", "average, batches unknown"),
        ):
            shown = cell_of(views, ("FERRET-2", "0.5"), column).ours
            assert shown is not None
            assert shown.estimate == games[name].success.estimate
            assert cell_of(full, ("FERRET-2", "0.5", name), "success").ours == shown
        assert games["average"].success.estimate != games["average, batches unknown"].success.estimate
        usual = [cell for cell in cells if cell.knowledge == "batches"]
        without = tables_of(replace(context, made={"transcript cells": usual}))
        blank = cell_of(without["three-views"], ("FERRET-2", "0.5"), "average record, success")
        assert blank.why_blank == "this game was not played"
        figure = regions_figure(context, cells)
        assert figure is not None
        labels = [key.label for key in figure.legend]
        assert "average record" in labels
        assert "average record, batches unknown" in labels

    @pytest.mark.slow
    def test_the_picture_holds_a_cross_for_every_game(self) -> None:
        context = context_of(made_up(groups=("transcript",), trials=20))
        cells = judged_cells(context)
        figure = regions_figure(context, cells)
        assert figure is not None
        assert figure.svg.count('class="point ') == len(cells) == 80
        assert figure.svg.count('class="whisker ') == 2 * len(cells)
        # 1 and 2 nats allow every point, as ln 2 and more do; 0.1 and 0.5 do not.
        assert figure.svg.count("the claimed nats allow every point") == 2
        assert regions_figure(context, []) is None
        assert "refute nothing wherever they lie: outlier (in which steps" in figure.caption
        plain = [
            replace(one, evidence=replace(one.evidence, game=replace(one.evidence.game, beyond="")))
            for one in cells
        ]
        free = regions_figure(context, plain)
        assert free is not None
        assert "refute nothing" not in free.caption

    @pytest.mark.slow
    def test_failed_games_are_named(self) -> None:
        results = made_up(groups=("transcript",), lost={0: "InputError: above the ceiling"}, trials=20)
        context = context_of(results)
        table = tables_of(context)["transcript"]
        assert any(
            "1 of 80 games have no scores: FERRET-MAX, epsilon 0.1, opposed, copies: failed" in n
            for n in table.notes
        )


class TestConditions:
    """The tests behind the conclusions."""

    def test_a_ratio_is_judged_by_fieller(self) -> None:
        from scipy.stats import ttest_1samp

        first, second = np.array([2.1, 4.2, 6.0, 8.3, 9.9]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
        pair = (Sample(first, range_names(5), "model"), Sample(second, range_names(5), "model"))
        found = conclusions.ratio("w", "", pair, (1.9, 2.2))
        above = ttest_1samp(first - 1.9 * second, 0.0, alternative="greater").pvalue
        under = ttest_1samp(first - 2.2 * second, 0.0, alternative="less").pvalue
        assert found.hold_p == pytest.approx(max(above, under))
        assert conclusions.ratio("w", "", pair, (3.0, 4.0)).otherwise == "below what is claimed"
        assert conclusions.ratio("w", "", pair, (0.0, 1.0)).otherwise == "above what is claimed"
        assert conclusions.ratio("w", SECONDS, pair, (3.0, 4.0)).otherwise == "faster than claimed"
        assert found.break_p == pytest.approx(min(1.0, 2.0 * min(1.0 - above, 1.0 - under)))

    def test_shown_and_broken_exclude_each_other_unless_the_difference_is_below_the_margin(self) -> None:
        tiny = np.array([-0.0010, -0.0012, -0.0011, -0.0009, -0.0010])
        found = conclusions.below("w", tiny, conclusions.Scale(logs=False), unit="model", confidence=0.95)
        assert found.hold_p < 0.05
        assert found.break_p < 0.05
        assert decided([found], 0.95)[0] is REPLICATED

    @pytest.mark.slow
    def test_the_error_rates_are_held(self) -> None:
        """Both outcomes at the edges of their hypotheses: 5 % each, within four standard errors of 2,000."""
        rng = np.random.default_rng(11)
        scale = conclusions.Scale(logs=False)
        shown = broken = 0
        for _ in range(2000):
            noise = rng.normal(0.0, 0.01, 5)
            shown += conclusions.below("", noise, scale, unit="m", confidence=0.95).hold_p <= 0.05
            at_margin = noise - conclusions.MARGIN_AREA
            broken += conclusions.below("", at_margin, scale, unit="m", confidence=0.95).break_p <= 0.05
        assert abs(shown / 2000 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 2000)
        assert abs(broken / 2000 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 2000)

    def test_pitman_and_morgan_hold_their_level(self) -> None:
        rng = np.random.default_rng(12)
        found = 0
        for _ in range(1000):
            effect = rng.normal(0.0, 1.0, 5)
            pair = tuple(
                Sample(np.exp(effect + rng.normal(0.0, 0.5, 5)), range_names(5), "model") for _ in range(2)
            )
            found += conclusions.less_spread("", TEST, (pair[0], pair[1])).hold_p <= 0.05
        assert abs(found / 1000 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 1000)

    def test_holm_counts_every_condition(self) -> None:
        def one(break_p: float) -> Condition:
            return Condition(where="w", break_p=break_p, n=5)

        assert decided([one(0.04)], 0.95)[0] is NOT_REPLICATED
        assert decided([one(0.04), one(0.9)], 0.95)[0] is NOT_TESTABLE
        assert decided([one(0.02), one(0.9)], 0.95)[0] is NOT_REPLICATED


def range_names(count: int) -> tuple[str, ...]:
    return tuple(f"m{k}" for k in range(count))


def test_what_the_papers_own_numbers_say_stands_beside_each_conclusion() -> None:
    results = made_up(groups=MAIN)
    beats = finding_of(results, "beats-dpsgd")
    # Table 5, 1 epoch, epsilon 1: 6.56 against 6.37.
    assert "6.56" in beats.paper_contradicts
    assert "6.37" in beats.paper_contradicts
    assert "The same test on the paper's own models" in beats.figures
    assert finding_of(results, "eighth-half-epsilon-ratio").paper_contradicts == ""


def test_silent_steps_keep_the_last_loss() -> None:
    outcome = made_up(groups=("dither",)).outcomes[0]
    nan = math.nan
    shown = replace(outcome, training_losses=(nan, 4.0, nan, 2.0, nan, nan, nan, nan, nan, nan, 1.0, nan))
    assert known_losses(shown).tolist() == [4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0]
    assert final_loss(shown) == 1.0
    assert math.isnan(final_loss(replace(outcome, training_losses=(nan, nan))))


@pytest.mark.slow
def test_lira_stands_beside_the_confidence_attack() -> None:
    results = made_up(groups=("comparison", "lira"), records=100, epochs=(5,))
    table = tables_of(results)["attacks"]
    blanks = {place: cell.why_blank for place, row in table.rows for cell in row[-1:] if place[0] == "DPSGD"}
    assert set(blanks.values()) == {"DPSGD always has a budget"}
    runs = list(results.done(group="lira", variant="FERRET-2", epsilon=0.5))
    ours = cell_of(table, ("FERRET-2", "5", "LiRA", "AUC"), "ε = 0.5").ours
    assert ours is not None
    assert ours.estimate == pytest.approx(np.mean([one.metrics[AUC] for one in runs]))
    low = cell_of(table, ("Non-DP", "5", "LiRA", f"TPR at FPR {percent(0.01)}"), "ε = ∞").ours
    assert low is not None
    assert 0.0 < low.estimate < 1.0
    assert "attacks" not in tables_of(made_up(groups=("comparison",), records=5))


def test_figures_show_what_there_is() -> None:
    context = context_of(made_up(records=20, trials=20))
    found = {figure.id: figure for figure in figures(context)}
    assert set(found) >= {
        "figure-1-epsilon-2", "figure-1-non-private", "figure-2", "figure-3", "figure-4", "figure-5",
        "both-regions",
    }  # fmt: skip
    assert "a reading, not the authors' claim" in found["both-regions"].caption
    assert "n = 10 each" in found["figure-5"].caption
    assert figures(context_of(made_up(groups=("dither",))))[0].id == "figure-5"
    assert dither_figure(context_of(made_up(groups=("comparison",), records=5))) is None


@pytest.mark.slow
@pytest.mark.parametrize("group", ["comparison", "head-room", "lira", "transcript", "dither"])
def test_a_study_with_one_group_alone_is_reported(group: str) -> None:
    made = ferret(results=made_up(groups=(group,), records=10, trials=20), published=PAPER)
    assert len(made.findings) == len(PAPER.claims)
    assert made.inconsistencies
    assert made.tables


@pytest.mark.slow
def test_without_published_numbers_ours_stand_alone() -> None:
    made = ferret(results=made_up(groups=("comparison", "transcript"), records=10, trials=20), published=None)
    assert made.findings == ()
    assert made.inconsistencies == ()
    assert all(cell.paper is None for table in made.tables for _, row in table.rows for cell in row)


@pytest.mark.slow
def test_failures_are_counted_and_the_rest_is_reported() -> None:
    lost = dict.fromkeys(range(5), "InconclusiveError: diverged")
    made = ferret(results=made_up(groups=("comparison",), lost=lost, records=10), published=PAPER)
    assert any("5 of 255 runs failed" in note and "diverged" in note for note in made.notes)
    table = next(one for one in made.tables if one.id == "table-2")
    assert "failed: InconclusiveError: diverged" in cell_of(table, ("DPSGD", "1"), "ε = 0.1").why_blank
    partly = ferret(results=made_up(groups=("comparison",), lost={0: "E: x"}, records=10), published=None)
    ours = cell_of(next(one for one in partly.tables if one.id == "table-2"), ("DPSGD", "1"), "ε = 0.1").ours
    assert ours is not None
    assert ours.n == 4


@pytest.mark.slow
def test_a_value_that_is_not_finite_leaves_no_mean() -> None:
    results = made_up(groups=("comparison",), records=10)
    broken = replace(results.outcomes[0], metrics={**results.outcomes[0].metrics, TEST: math.inf})
    results = StudyResults(study=results.study, outcomes=(broken, *results.outcomes[1:]))
    table = tables_of(results)["table-5"]
    cell = cell_of(table, ("DPSGD", "1"), "ε = 0.1")
    assert cell.ours is None
    assert "test perplexity is missing or not finite in 1 of 5" in cell.why_blank


def _by_seed(results: StudyResults) -> StudyResults:
    return StudyResults(study=study_of(results.outcomes, replication="seed"), outcomes=results.outcomes)


def _empty(results: StudyResults) -> StudyResults:
    return StudyResults(study=results.study, outcomes=())


def _twice(results: StudyResults) -> StudyResults:
    return StudyResults(study=results.study, outcomes=(*results.outcomes, results.outcomes[0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_by_seed, "replication must be 'model'"),
        (_empty, "must have a group whose part is one of 'comparison'"),
        (_twice, "must have one experiment a place"),
    ],
)  # fmt: skip
def test_a_study_of_another_shape_is_refused(
    change: Callable[[StudyResults], StudyResults], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ferret(results=change(made_up(groups=("comparison",), records=5)), published=PAPER)


def test_a_confidence_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"confidence must be in \(0.5, 1\), got 0.4"):
        ferret(results=made_up(groups=("dither",)), published=PAPER, confidence=0.4)


@pytest.mark.parametrize(
    ("parameters", "test", "message"),
    [
        ({}, "lower", "parameter metric is missing"),
        ({"metric": TEST}, "lower", "parameter pairs is missing"),
        ({"metric": TEST, "pairs": [["FERRET-2", "DPSGD"]]}, "guessed", "guessed"),
        ({"sigmas": [0.1], "expected": "better"}, "dither", "better"),
    ],
)
def test_a_conclusion_without_its_parameters_is_refused(
    parameters: Mapping[str, object], test: str, message: str
) -> None:
    claim = replace(PAPER.claims[0], test=test, parameters=parameters)
    with pytest.raises(InputError, match=message):
        claims.conclusions(context_of(made_up(groups=("dither",))), replace(PAPER, claims=(claim,)))


def test_small_models_stand_beside_the_papers_numbers_too() -> None:
    micro = [name for name in MODELS if name.startswith("micro_")]
    assert [MODELS[name] for name in micro] == list(PAPER_MODELS)
    table = tables_of(made_up(groups=("comparison",), records=10, models=micro))["table-12"]
    labels = {headers[-1] for headers, _ in table.rows}
    assert labels == {*(f"{MODELS[name]} ({name})" for name in micro), "Mean"}
    both = [cell for _, row in table.rows for cell in row if cell.ours is not None and cell.paper is not None]
    assert len(both) > 100


@pytest.mark.slow
def test_other_models_and_methods_get_rows_of_their_own() -> None:
    results = made_up(groups=("comparison",), records=10)
    more = [
        replace(one, experiment=replace(one.experiment, variant="My method", model="my_base"))
        for one in results.done(variant="FERRET-MAX", model="gpt2_base")
    ]
    both: tuple[Outcome, ...] = (*results.outcomes, *more)
    context = context_of(StudyResults(study=results.study, outcomes=both))
    tables = tables_of(context)
    assert cell_of(tables["table-12"], ("My method", "1", "my_base"), "test PPL, ε = 0.5").ours is not None
    assert cell_of(tables["table-5"], ("My method", "1"), "ε = 0.5").why_blank == "no such cell in the paper"
    assert methods(context)[-1] == "My method"


@pytest.mark.slow
def test_capped_and_forward_runs_stand_in_rows_of_their_own() -> None:
    results = made_up(groups=("comparison",), records=10)
    more = [
        replace(
            one,
            experiment=replace(
                one.experiment,
                group="ceiling",
                variant="FERRET-2 (capped)",
                tags=tags_of("ceiling", "FERRET-2 (capped)"),
            ),
        )
        for one in results.done(variant="FERRET-2", epochs=1, epsilon=2.0)
    ]
    rest = tuple(
        one
        for one in results.outcomes
        if (one.experiment.variant, one.experiment.epochs, one.experiment.epsilon) != ("FERRET-2", 1, 2.0)
    )
    context = context_of(StudyResults(study=results.study, outcomes=(*rest, *more)))
    table = tables_of(context)["table-5"]
    assert [row for row, _ in table.rows if row[0] == "FERRET-2 (capped)"] == [("FERRET-2 (capped)", "1")]
    assert cell_of(table, ("FERRET-2 (capped)", "1"), "ε = 2").ours is not None
    blank = cell_of(table, ("FERRET-2", "1"), "ε = 2")
    assert "above the ceiling" in blank.why_blank
    assert any("FERRET-2 (capped) at epsilon 2" in note for note in table.notes)
    found = finding_of(StudyResults(study=results.study, outcomes=(*rest, *more)), "faster-than-dpsgd")
    assert found.outcome is REPLICATED
    assert "Above the ceiling, so its runs at p = 1: FERRET-2, 1 epoch, epsilon 2" in found.figures
    without = finding_of(StudyResults(study=results.study, outcomes=rest), "faster-than-dpsgd")
    assert without.outcome is NOT_TESTABLE


def test_paid_advantage_and_missing_runs_are_explained() -> None:
    context = context_of(made_up(groups=("comparison",), records=10, epochs=(1,)))
    table = tables_of(context)["advantage-held-out"]
    assert cell_of(table, ("DPSGD", "1"), "ε = ∞").why_blank == "DPSGD always has a budget"
    assert cell_of(table, ("DPSGD", "5"), "ε = 1").why_blank == "no part of this run"
    setting = at("DPSGD", 1, 1.0)
    assert is_complete(context, setting, AUC)
    missing = replace(
        context.outcomes.runs(COMPARISON, setting)[0],
        status=Status.MISSING,
        metrics={},
        scores=(),
        included=(),
    )
    assert missing.status is Status.MISSING
