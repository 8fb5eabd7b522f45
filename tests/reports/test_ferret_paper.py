"""What contradicts itself inside FERRET, computed from its printed cells.

Expected numbers are worked out by hand from the paper (Zagardo 2025), with the cells named beside them.
Checks are also shown a paper with one cell changed: they must find what they are for and lose what is mended.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import pstdev, stdev

import numpy as np
import pytest

from workbench.checks.published import (
    PublishedPaper,
    PublishedTable,
    QualitativeClaim,
    printed_numbers,
    published,
)
from workbench.core.errors import InputError
from workbench.reports.papers.ferret import paper as ferret
from workbench.reports.papers.ferret.paper import EPOCHS, STATEMENTS, gives, text_of
from workbench.reports.papers.ferret.places import (
    ADVANTAGE,
    AUC,
    BUDGETS,
    BY_MODEL,
    MODEL_MEAN,
    PAPER_MODELS,
    SECONDS,
    TEST,
    TRAIN,
    by_model,
    half_unit,
    in_words,
    printed_places,
    value,
)
from workbench.reports.papers.ferret.report import FERRET
from workbench.reports.shared import claims, printed, statements
from workbench.reports.shared.declared import declared
from workbench.reports.shared.printed import Check, Interval, stands_for
from workbench.reports.shared.statements import PaperSide

PAPER = published("ferret")
CLAIMS = {claim.id: claim for claim in PAPER.claims}
REPORT = declared("ferret")


def with_cell(table: str, row: tuple[str, ...], column: str, printed: str) -> PublishedPaper:
    """The paper with one cell printed otherwise."""
    numbers = printed_numbers(printed)

    def changed(one: PublishedTable) -> PublishedTable:
        cells = tuple(
            replace(cell, printed=printed, value=numbers[0].value, decimals=numbers[0].decimals)
            if (one.id, cell.row, cell.column) == (table, row, column)
            else cell
            for cell in one.cells
        )
        return replace(one, cells=cells)

    paper = replace(PAPER, tables=tuple(changed(one) for one in PAPER.tables))
    assert paper != PAPER, "the cell exists"
    return paper


def found(paper: PublishedPaper = PAPER) -> dict[str, Check]:
    return {check.name: check for check in statements.checks(FERRET, REPORT, paper)}


def check(name: str, paper: PublishedPaper = PAPER) -> Check:
    return statements.check(FERRET, REPORT, paper, name)


def side() -> PaperSide:
    return statements.paper_side(FERRET, REPORT, PAPER)


def remark_on(name: str) -> str:
    return statements.remark(FERRET, REPORT, PAPER, REPORT.entry("remark", name, "name"))


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    return claims.contradictions(FERRET, REPORT, paper, claim)


def test_which_checks_hold_and_which_do_not() -> None:
    by_name = found()
    contradicted = {name for name, check in by_name.items() if check.contradiction}
    assert contradicted == {
        "conclusions",
        "numbers of the text",
        "numbers of some epochs",
        "ceiling",
        "steps",
        "variants",
        "speed by size",
    }
    assert len(side().inconsistencies) == len(contradicted)
    held = ("head-room", "mean ROC AUC of the head-room", "copies", "equal means", "means of the models")
    assert {name: by_name[name].failed for name in held} == dict.fromkeys(held, ())
    assert [by_name[name].checked for name in held] == [8, 8, 1, 153, 134]


def test_means_of_the_tables_by_model_fit_the_summaries_and_the_models() -> None:
    for setting in printed_places():
        for metric in (TEST, AUC, ADVANTAGE, SECONDS, TRAIN):
            for name in BY_MODEL[metric]:
                row, column = setting[:2], f"{metric}, {setting[2]}"
                cells = [
                    PAPER.table(name).cell((*row, model), column) for model in (*PAPER_MODELS, MODEL_MEAN)
                ]
                *models, mean = [None if cell is None else stands_for(cell) for cell in cells]
                if mean is not None and metric != TRAIN:
                    summary = value(PAPER, metric, setting)
                    assert summary is not None
                    assert mean.meets(summary), (name, in_words(setting), metric)
                if mean is not None and None not in models:
                    assert mean.meets(printed.mean([one for one in models if one])), (name, in_words(setting))


def test_a_line_of_two_rows_is_read_in_their_order() -> None:
    # Table 14, Non-DP, 1 epoch: "4.19 2.66 | 4.42 3.25 | 0.23 | 155 908" holds GPT-2 and the mean.
    table = PAPER.table("table-14")
    for model, shown in (("GPT-2", ("4.19", "4.42", "155")), (MODEL_MEAN, ("2.66", "3.25", "908"))):
        cells = [table.cell(("Non-DP", "1", model), f"{metric}, inf") for metric in (TRAIN, TEST, SECONDS)]
        assert tuple(cell.printed for cell in cells if cell) == shown


def test_every_setting_has_its_means() -> None:
    assert len(list(printed_places())) == 51
    for setting in printed_places():
        for metric in (TEST, AUC, ADVANTAGE, SECONDS):
            mean = value(PAPER, metric, setting)
            assert mean is not None, in_words(setting)
            assert 0.0 < mean.lower < mean.upper


def test_times_in_tens_are_known_to_five_seconds() -> None:
    assert half_unit(PAPER.table("table-6")) == half_unit(PAPER.table("table-11")) == 5.0
    assert half_unit(PAPER.table("table-2")) == pytest.approx(0.0005)
    assert value(PAPER, SECONDS, ("FERRET-MAX", "5", "0.1")) == Interval(1495.0, 1505.0)


def test_a_cell_lost_in_one_table_is_read_in_another() -> None:
    # Table 12's row of GPT-2 (DPSGD, 1 epoch) is lost in our copy; Table 14 prints 10.44 for it.
    setting = ("DPSGD", "1", "0.1")
    assert PAPER.table("table-12").why_unreadable(("DPSGD", "1", "GPT-2"), f"{TEST}, 0.1")
    cell = by_model(PAPER, TEST, setting, "GPT-2")
    assert cell is not None
    assert (cell.table, cell.value) == ("table-14", 10.44)


def test_ceilings() -> None:
    # 10,000 records in batches of 5 x 10: T = 200 an epoch, s = 0.005; G T s ln 2 = 2 x 200 x 0.005 x 0.6931.
    assert [ferret.steps_of(PAPER, epochs) for epochs in EPOCHS] == [200, 600, 1000]
    assert ferret.sampling_rate(PAPER) == 0.005
    assert ferret.ceiling_nats(PAPER, 2, "1") == pytest.approx(1.386, abs=5e-4)
    assert ferret.ceiling_nats(PAPER, 2, "5") == pytest.approx(6.93, abs=5e-3)
    (text,) = check("ceiling").failed
    assert text.startswith("FERRET-2 at epsilon 2.0 and 1 epoch lies above the ceiling")
    assert "1.386" in text
    # With four groups the ceiling at one epoch is 2.77 nats, above every budget.
    mended = with_cell("table-3", ("FERRET-2",), "groups", "4")
    assert not check("ceiling", mended).contradiction


def test_steps_hold_for_five_epochs_only() -> None:
    assert "T = 200 at 1, 600 at 3, 1000 at 5" in check("steps").finding
    assert "it holds for 5 epochs only" in check("steps").finding
    other = with_cell("statements", ("section 6.4", "sampling rate s"), "value", "0.05")
    assert len(check("steps", other).failed) == len(check("steps").failed) + 1


def test_head_room_finds_a_wrong_digit() -> None:
    changed = with_cell("table-3", ("FERRET-2",), "ceiling", "6.39")
    assert [text[:18] for text in check("head-room", changed).failed] == ["Table 3, FERRET-2,"]
    changed = with_cell("table-3", ("FERRET-2",), AUC, "0.560")
    made = check("mean ROC AUC of the head-room", changed)
    assert made.contradiction
    assert "FERRET-2's 0.56 is that of none" in made.finding


def test_only_one_choice_of_epsilons_gives_the_mean_auc() -> None:
    # Table 2 at 5 epochs and epsilon 0.5: 0.513 and 0.549; Table 3: 0.512 and 0.549.
    finding = check("mean ROC AUC of the head-room").finding
    assert "5 epochs, epsilon 0.5" in finding
    assert "all epsilons" not in finding


def test_released_signs_do_not_depend_on_granularity() -> None:
    # 0.1 / (0.005 ln 2) = 28.85.
    assert ferret.released_signs(PAPER, "0.1") == pytest.approx(28.85, abs=0.01)
    for groups in (2, 50, 200):
        for epochs in EPOCHS:
            p = 0.1 / ferret.ceiling_nats(PAPER, groups, epochs)
            signs = groups * ferret.steps_of(PAPER, epochs) * p
            assert signs == pytest.approx(ferret.released_signs(PAPER, "0.1"))
    remark = remark_on("signs")
    assert "29 at 0.1, 144 at 0.5, 289 at 1.0, 577 at 2.0" in remark
    assert remark.startswith("Remark, not a contradiction")
    assert remark in side().remarks
    assert remark not in side().inconsistencies


def test_the_23_percent_are_of_one_epoch() -> None:
    # 3.98 / 3.25 = 1.225, 3.98 / 5.97 = 0.667, 3.98 / 7.95 = 0.501.
    remark = remark_on("other epochs")
    assert "+22.5 % from its 3.25 at 1, -33.3 % from its 5.97 at 3, -49.9 % from its 7.95 at 5" in remark
    assert remark.endswith("the 23 % is that of 1 epoch")


def test_the_largest_model_gains_the_least_time() -> None:
    # 17098 / 3327 = 5.14; GPT-2: 1608 / 295 = 5.45 (Tables 12 and 14, epsilon 0.1, 5 epochs).
    finding = check("speed by size").finding
    assert "GPT-2 5.45" in finding
    assert "DeepSeek-1.5B 5.14; 4 of 4 smaller models" in finding
    mended = with_cell("table-12", ("DPSGD", "5", "DeepSeek-1.5B"), f"{SECONDS}, 0.1", "19000")
    assert not check("speed by size", mended).contradiction


def test_variants_of_the_head_room() -> None:
    finding = check("variants").finding
    assert "FERRET-HALF and FERRET-QUARTER" in finding
    assert "none of FERRET-EIGHTH" in finding


def test_deviations_are_of_samples() -> None:
    # DPSGD, 3 epochs, epsilon 0.1: 0.509, 0.509, 0.513, 0.511, 0.512: 0.0018 (n - 1), printed 0.002.
    made = check("kind of deviation")
    assert made.checked == 73
    assert "73 fit the sample standard deviation" in made.finding
    assert "0 only the second, 0 neither" in made.finding


def test_bounds_of_a_deviation_hold_for_every_rounding() -> None:
    rng = np.random.default_rng(3)
    for kind, deviation in (("sample", stdev), ("population", pstdev)):
        for _ in range(200):
            middles = rng.normal(5.0, 1.0, 5).round(1)
            inside = middles + rng.uniform(-0.05, 0.05, 5)
            bounds = printed.deviation([Interval(one - 0.05, one + 0.05) for one in middles], kind)
            assert bounds.lower <= deviation(inside.tolist()) <= bounds.upper


def test_tables_find_a_wrong_digit() -> None:
    row, column = ("FERRET-MAX", "5"), "0.5"
    assert check("copies", with_cell("table-8", row, column, "4.29 [2.40, 7.17]")).contradiction
    assert check("equal means", with_cell("table-9", row, column, "0.514 [0.508, 0.526]")).contradiction
    least = with_cell("table-8", row, column, "4.28 [2.42, 7.17]")
    assert any("least" in text for text in check("means of the models", least).failed)
    mean = with_cell("table-5", row, column, "4.30 [2.40, 7.17]")
    assert any("mean" in text for text in check("means of the models", mean).failed)
    assert check("before training", with_cell("table-4", ("Mean",), TEST, "8.99")).contradiction
    wide = with_cell("table-2", ("DPSGD", "3"), "0.1", "0.511 ± 0.004")
    assert "1 neither" in check("kind of deviation", wide).finding


def test_gaps_are_no_contradiction_where_our_copy_may_be_misread() -> None:
    made = check("gaps")
    assert not made.contradiction
    assert (made.checked, len(made.failed)) == (218, 10)
    assert all(text.startswith("SmolLM-360M") for text in made.failed)
    changed = with_cell("table-14", ("DPSGD", "3", "BLOOM-560M"), "gap, 0.1", "3.43")
    assert len(check("gaps", changed).failed) == 11
    assert made.finding in side().remarks


def test_the_bound_of_the_area_by_the_advantage() -> None:
    # The ROC curve min(1, FPR + J) attains it: area 1 - (1 - J)^2 / 2.
    for advantage in (0.0, 0.1, 0.5, 1.0):
        rates = np.linspace(0.0, 1.0, 100_001)
        area = float(np.trapezoid(np.minimum(1.0, rates + advantage), rates))
        assert area == pytest.approx(0.5 + advantage - advantage**2 / 2.0, abs=1e-6)
    assert check("advantages").failed == ()
    # AUC 0.630 needs an advantage of at least 0.14.
    changed = with_cell("table-13", ("FERRET-2", "3", "TinyLlama-1.1B"), "advantage, 1.0", "0.111")
    assert len(check("advantages", changed).failed) == 1


def test_numbers_of_the_text() -> None:
    wrong, partly = check("numbers of the text"), check("numbers of some epochs")
    assert sorted(text.partition(":")[0] for text in wrong.failed) == [
        "abstract, perplexity of DPSGD over FERRET's, at most",
        "section 6.6, time that FERRET-MAX saves of Non-DP's, epsilon 2, 5 epochs, percent",
        "section 6.8, improvement of Phi-3.5-mini over 5 epochs, percent",
        "section 6.9, perplexity of DPSGD over FERRET's, all budgets",
    ]
    # 1 - 1900 / 4440 = 57.2 %.
    assert any(text.endswith("43 printed, cells give 57.2") for text in wrong.failed)
    # FERRET-2 at 1 epoch and epsilon 2 takes 930 / 1540 = 60.4 % of DPSGD's time.
    headline = (
        "abstract, time over DPSGD's, percent: [19, 33] printed, cells give 19.3 to 60.4 (of 5 epochs only)"
    )
    assert headline in partly.failed


def test_every_statement_is_in_the_text() -> None:
    texts = [text_of(PAPER, statement) for statement in STATEMENTS]
    assert all(texts)
    assert len({(statement["place"], statement["quantity"]) for statement in STATEMENTS}) == len(STATEMENTS)
    rows = {cell.row for cell in PAPER.table("statements").cells}
    left = {quantity for _, quantity in rows - {(one["place"], one["quantity"]) for one in STATEMENTS}}
    assert left == {
        "steps T, all runs",
        "sampling rate s",
        "ceiling of FERRET-2, nats",
        "ceiling of FERRET-MAX over FERRET-2's",
        "firing probability of FERRET-2 at epsilon 0.5",
        "GPT-2 less performant with DPSGD than with FERRET-2, percent",
        "minutes of training of Phi-3.5-mini, at most",
        "largest dither without effect, as a share of the clipping norm",
        "dither from which optimization deteriorates",
    }


@pytest.mark.parametrize(
    ("quantity", "epochs", "expected"),
    [
        # 11.61 / 3.98 = 2.92; 187.72 / 5.81 = 32.3; 1500 / 4440 = 33.8 %; 7.95 / 3.25 = 2.45.
        ("perplexity of DPSGD over FERRET-EIGHTH, epsilon 0.5, 5 epochs", ("5",), True),
        ("perplexity of DPSGD over FERRET-EIGHTH, epsilon 0.5, 5 epochs", ("3",), False),
        ("perplexity of DPSGD over FERRET-MAX, epsilon 0.1, 5 epochs", ("5",), True),
        ("time of FERRET-MAX over Non-DP's, epsilon 0.1, 5 epochs, percent", ("5",), True),
        ("perplexity of Non-DP at 5 epochs over 1 epoch", ("5",), True),
        ("AUC of FERRET-MAX, all settings", EPOCHS, True),
        ("AUC of FERRET-EIGHTH", EPOCHS, True),
        ("improvement of DeepSeek-1.5B with FERRET-EIGHTH at epsilon 1, percent", ("5",), True),
        ("time that FERRET-MAX saves of DPSGD's, percent", ("5",), True),
        ("time that FERRET-2 saves of DPSGD's, percent", ("5",), True),
    ],
)
def test_statements_that_follow(quantity: str, epochs: tuple[str, ...], expected: bool) -> None:
    statement = next(one for one in STATEMENTS if one["quantity"] == quantity)
    assert gives(PAPER, statement, epochs) is expected


def test_claims_against_table_5() -> None:
    text = contradictions(PAPER, CLAIMS["ferret-beats-dpsgd"])
    assert text.startswith("4 of 24 printed: ")
    assert "FERRET-MAX, 1 epoch, epsilon 2.0: 14.58 against DPSGD's 5.94" in text
    assert contradictions(PAPER, CLAIMS["ferret-all-variants-beat-dpsgd"]).startswith("7 of 36 printed")
    mended = with_cell("table-5", ("FERRET-MAX", "1"), "2.0", "5.50 [3.83, 43.22]")
    assert contradictions(mended, CLAIMS["ferret-beats-dpsgd"]).startswith("3 of 24 printed")


def test_which_claims_the_cells_contradict() -> None:
    contradicted = {name for name, claim in CLAIMS.items() if contradictions(PAPER, claim)}
    assert contradicted == {
        "ferret-beats-dpsgd",
        "ferret-all-variants-beat-dpsgd",
        "ferret-improvement-range",
        "ferret-auc-at-chance",
        "ferret-better-trade-off",
        "ferret-max-faster-than-non-private",
        "ferret-stable-across-models",
        "ferret-tinyllama-best",
    }
    assert len(check("conclusions").failed) == len(contradicted)


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        ("ferret-eighth-half-epsilon-ratio", ("table-5", ("DPSGD", "5"), "0.5", "12.61 [3.38, 37.76]")),
        ("ferret-non-private-overfits", ("table-5", ("Non-DP", "3"), "inf", "9.97 [3.23, 10.36]")),
        ("ferret-time-falls-with-budget", ("table-6", ("FERRET-2", "3"), "1.0", "1980 ± 1180")),
        ("ferret-granularity-ordering", ("table-3", ("FERRET-HALF",), AUC, "0.527")),
        ("ferret-2-leaks-more", ("table-2", ("FERRET-2", "5"), "0.5", "0.511 ± 0.025")),
        ("ferret-max-protects-like-dpsgd", ("table-2", ("FERRET-MAX", "5"), "0.5", "0.520 ± 0.007")),
        ("ferret-non-monotone", ("table-5", ("FERRET-MAX", "5"), "0.1", "4.20 [2.44, 9.82]")),
        (
            "ferret-tinyllama-beats-non-private",
            ("table-12", ("FERRET-MAX", "3", "TinyLlama-1.1B"), f"{TEST}, 0.5", "2.48"),
        ),
    ],
)
def test_a_claim_that_holds_fails_on_a_changed_cell(
    claim: str, change: tuple[str, tuple[str, ...], str, str]
) -> None:
    assert contradictions(PAPER, CLAIMS[claim]) == ""
    assert contradictions(with_cell(*change), CLAIMS[claim])


def test_a_tie_within_rounding_contradicts_nothing() -> None:
    # Both 0.507 (Table 2, 1 epoch, epsilon 2).
    one, other = (value(PAPER, AUC, (method, "1", "2.0")) for method in ("FERRET-EIGHTH", "FERRET-2"))
    assert one == other
    assert contradictions(PAPER, CLAIMS["ferret-2-leaks-more"]) == ""


def test_an_unknown_test_is_refused() -> None:
    claim = QualitativeClaim(id="c", place="p", statement="s", tables=(), test="lowerr")
    with pytest.raises(InputError, match="did you mean 'lower'"):
        contradictions(PAPER, claim)


def test_budgets_are_the_columns() -> None:
    assert PAPER.table("table-2").columns == (*BUDGETS, "inf")
    assert math.isnan(PAPER.table("table-7").cells[-1].value), "minutes and seconds are words"
