"""The printed numbers of five papers, cell by cell, and what contradicts DP-Weights.

Golden cells are read from the papers (Zagardo 2024 and 2025, Ertan et al. 2026, Yang, Ji and Xiang 2024,
Khadangi et al. 2025); the places stand beside.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.checks.published import (
    PrintedNumber,
    PublishedPaper,
    parse_published,
    printed_numbers,
    published,
)
from workbench.core.errors import InputError
from workbench.reports.papers.dp_weights import group_sizes as sizes
from workbench.reports.papers.dp_weights.paper import wilcoxon_counts
from workbench.reports.papers.dp_weights.report import REPORT as DP_WEIGHTS
from workbench.reports.papers.dp_weights.runs import (
    COMPARISONS,
    GRIDS,
    INTERVAL,
    METRICS,
    STATISTIC,
    detail_tables,
)
from workbench.reports.shared import statements
from workbench.reports.shared.declared import declared
from workbench.reports.shared.printed import Check, Interval, repeated_tables

PAPER = published("dp_weights")
REPORT = declared("dp_weights")

GOLDEN = [
    ("table-1", ("5", "dp_model"), "perplexity_member", "2.79 ± 0.96"),
    ("table-1", ("5", "fine_tuned_model"), "precision", "0.91 ± 0.00"),
    ("table-1", ("100", "non_dp_model"), "f1", "0.45 ± 0.10"),
    ("table-2", ("1", "dp_model"), "perplexity_member", "32.62 ± 15.91"),
    ("table-2", ("20", "non_dp_model"), "perplexity_non_member", "13.11 ± 5.52"),
    ("table-2", ("20", "fine_tuned_model"), "roc_auc", "0.86 ± 0.00"),
    ("table-3", ("RMSE", "perplexity_member"), "DP vs DP-Weights", "12.505"),
    ("table-3", ("Wilcoxon test", "perplexity_member"), "DP vs DP-Weights", "12.0, 5.215e - 07"),
    ("table-3", ("Pearson correlation", "f1"), "DP-Weights vs Fine-Tuned", "nan"),
    ("table-4", ("Wilcoxon test", "recall"), "DP vs DP-Weights", "49.0, 0.0107"),
    ("table-6", ("R² score", "precision"), "DP vs Fine-Tuned", "-0.0002"),
    ("table-7", ("R² score", "perplexity_non_member"), "DP vs DP-Weights", "-95.737"),
    ("table-8", ("Wilcoxon test", "perplexity_non_member"), "DP vs Fine-Tuned", "192.0, 0.813923"),
    ("table-9", ("Wilcoxon test", "roc_auc"), "DP vs DP-Weights", "61.0, 0.0007162"),
    ("table-10", ("Wilcoxon test", "f1"), "DP-Weights vs Fine-Tuned", "82.0, 0.051"),
    ("section-4.3", ("roc_auc", "DP-Weights vs Fine-Tuned"), "95% confidence interval", "(-0.10, -0.001)"),
    (
        "section-4.3",
        ("perplexity_non_member", "DP-Weights vs Fine-Tuned"),
        STATISTIC,
        "16.13, 3.00e-39",
    ),
    ("section-4.4", ("f1", "DP-Weights vs Fine-Tuned"), STATISTIC, "-3.840, 0.000160"),
    ("section-4.1", ("maximum",), "violation rate", "0.000000"),
    ("section-4.2", ("composed epsilon",), "value", "191.94103648752323"),
]

FERRET = published("ferret")

FERRET_GOLDEN = [
    ("table-1", ("QSGD",), "bits per update", "8"),
    ("table-1", ("FERRET",), "granularity", "group"),
    ("section-6.2", ("learning rate",), "Non-DP", "1e-4"),
    ("table-2", ("FERRET-EIGHTH", "5"), "1.0", "0.534 ± 0.038"),
    ("table-2", ("Non-DP", "1"), "inf", "0.759 ± 0.160"),
    ("table-3", ("FERRET-2",), "ceiling", "6.93"),
    ("table-3", ("FERRET-MAX",), "firing probability at epsilon 0.5", "7.2e-4"),
    ("table-4", ("DeepSeek-1.5B",), "perplexity_non_member", "8.31"),
    ("table-5", ("DPSGD", "5"), "0.1", "187.72 [4.14, 908.53]"),
    ("table-5", ("FERRET-2", "1"), "1.0", "89449.92 [3.10, 428515.02]"),
    ("table-6", ("Non-DP", "5"), "inf", "4440 ± 3930"),
    ("table-7", ("0.5",), "minutes and seconds", "36:58"),
    ("table-8", ("FERRET-MAX", "3"), "2.0", "5.59 [2.39, 9.25]"),
    ("table-9", ("FERRET-2", "3"), "1.0", "0.572 [0.537, 0.630]"),
    ("table-10", ("Non-DP", "3"), "inf", "0.882 [0.644, 0.982]"),
    ("table-11", ("FERRET-2", "5"), "2.0", "2620 [490, 5860]"),
    ("table-12", ("DPSGD", "5", "BLOOM-560M"), "perplexity_non_member, 0.1", "908.53"),
    ("table-12", ("FERRET-MAX", "5", "DeepSeek-1.5B"), "perplexity_non_member, 0.1", "3.21"),
    ("table-12", ("FERRET-MAX", "5", "TinyLlama-1.1B"), "roc_auc, 1.0", "0.523"),
    ("table-12", ("Non-DP", "1", "Mean"), "training_seconds, inf", "908"),
    ("table-13", ("FERRET-2", "3", "TinyLlama-1.1B"), "advantage, 1.0", "0.211"),
    ("table-13", ("Non-DP", "3", "BLOOM-560M"), "roc_auc, inf", "0.991"),
    ("table-14", ("DPSGD", "3", "BLOOM-560M"), "gap, 0.1", "3.33"),
    ("table-14", ("FERRET-2", "5", "BLOOM-560M"), "perplexity_member, 1.0", "10.51"),
    ("statements", ("section 6.3", "AUC of FERRET-2"), "value", "[0.541, 0.549]"),
]

PACZERO = published("paczero")

PACZERO_GOLDEN = [
    ("table-1", ("FT", "0 nats", "PACZero-ZPL"), "SST-2 1.3B", "88.99 ± 0.91"),
    ("table-1", ("LoRA", "0.68 nats", "PACZero-MI"), "SQuAD 1.3B", "48.32"),
    ("table-1", ("FT", "epsilon 6", "DP-AggZO K=16"), "SST-2 6.7B", "94.6"),
    ("table-2", ("3e-4",), "test", "87.96"),
    ("table-2", ("0.68",), "unanimity", "40.7"),
    ("table-3", ("DP-AggZO K=64", "1000"), "0.5", "65.94"),
    ("table-4", ("FT", "6.7B", "0.33"), "4th", "92.43"),
    ("table-5", ("LoRA", "1.3B"), "mean", "88.69 ± 1.00"),
    ("appendix-e", ("SST-2", "LoRA", "6.7B", "22"), "test", "86.35"),
    ("table-6", ("LoRA", "6.7B", "0 nats"), "SQuAD", "08.1"),
    ("table-7", ("SST-2", "PACZero-MI", "LoRA 6.7B"), "T", "2000"),
    ("table-8", ("FT", "1000", "5e-4"), "test", "51.95"),
    ("table-9", ("10", "0.68"), "unanimity", "48.5"),
    ("table-10", ("16",), "best evaluation loss", "0.2993"),
    ("table-11", ("0.33",), "unanimity", "47.5"),
    ("table-12", ("quant_full", "2000"), "test", "90.94"),
    ("table-13", ("FT", "1.3B", "infinite"), "3rd", "87.39"),
    ("table-14", ("5000",), "test less that at T = 1000", "-14.67"),
    ("table-15", ("1500",), "seed 2, dev", "86.80"),
    ("table-16", ("500",), "test", "90.37"),
    ("table-17", ("1, 2",), "test", "90.54 ± 0.41"),
    ("table-18", ("LoRA", "16"), "test less that at K = 1", "+0.97"),
    ("table-19", ("FT", "4"), "dev", "89.0"),
    ("table-20", ("SQuAD", "PACZero-ZPL 1.3B FT"), "GPU-hours", "113.6"),
    ("table-21", ("Tables 18 and 19", "6.7B LoRA, K = 16"), "GPU-hours", "34.7"),
    ("statements", ("appendix H", "nats spent at 0.33 nats, clip 25"), "value", "0.3289"),
]


SHUFFLED = published("shuffled_dp_sgd")

SHUFFLED_GOLDEN = [
    ("table-1", ("GPT-2-large",), "trainable parameters", "838"),
    ("table-1-datasets", ("BERT, RoBERTa", "QNLI"), "training records", "108000"),
    ("table-1-datasets", ("BERT, RoBERTa", "MNLI"), "delta, formula", "1/(2N)"),
    ("table-1-datasets", ("GPT-2, GPT-2-large", "E2E"), "delta", "8e-6"),
    ("table-2", ("BERT", "shuffled with same sigma"), "test loss", "1.054"),
    ("table-3", ("ViT", "CIFAR-100"), "Shuffled-DPSGD, 0.1", "67.31"),
    ("table-4", ("BERT", "SST-2"), "Shuffled-DPSGD, 0.1", "87.5"),
    ("table-4", ("RoBERTa", "MNLI"), "Shuffled-DPSGD, 0.5", "79.21"),
    ("table-4", ("RoBERTa", "QNLI"), "MixOpt, 1", "86.14"),
    ("table-5", ("GPT-2", "E2E", "BLEU"), "MixOpt, 0.1", "0.01"),
    ("table-5", ("GPT-2-large", "DART", "METEOR"), "Shuffled-DPSGD, 1", "0.4936"),
    ("table-6", ("second",), "audited epsilon", "0.7005"),
    ("table-7", ("sparse matrix multiplication",), "milliseconds", "322.62"),
    ("table-8", ("GPT-2", "E2E"), "unshuffled", "30min1s"),
    ("statements", ("section VI-B", "distance between the weights of ViT"), "value", "1063.02"),
    ("statements", ("section VI-C", "minutes of the timed samples"), "value", "62"),
    ("texts", ("Eq. 83", "product in zeta_2"), "printed", "c (c + c')"),
]

RLDP = published("rldp")

RLDP_GOLDEN = [
    ("table-2", ("GPT2",), "RLDP, 0.5", "1.487"),
    ("table-2", ("Mistral-7B",), "best baseline, 8", "1.131"),
    ("table-3", ("Llama-1B",), "0.5", "36"),
    ("table-3", ("Mean",), "8", "28"),
    ("table-4", ("GPT2", "8", "RLDP-H"), "perplexity", "5051.562"),
    ("table-4", ("Llama-1B", "4", "PSAC"), "AUC", "0.336"),
    ("table-5", ("Mistral-7B", "0.5", "RLDP-L"), "AUC", "0.651"),
    ("table-5", ("Llama-3B", "8", "Static"), "log-prob", "-3.982"),
    ("table-6", ("GPT2", "0.5", "AdaClip"), "similarity", "0.139"),
    ("table-6", ("Llama-3B", "2", "RLDP-L"), "valid", "47"),
    ("table-7", ("Llama-3B", "8", "RLDP-L"), "similarity", "0.007"),
    ("table-8", ("Mistral-7B", "2", "RLDP-L"), "valid", "3991"),
    ("table-9", ("Mistral-7B", "5", "RLDP-H"), "similarity", "211"),
    ("table-9", ("Llama-1B", "8", "DP-LoRA"), "similarity", "466"),
    ("statements", ("section 4.2", "steps of GPT2's timed run"), "value", "26880"),
    ("texts", ("Tables 4 to 9", "forms of DC-SGD"), "said", "DC-SGD"),
]


def with_cell(table: str, row: tuple[str, ...], column: str, printed: str) -> PublishedPaper:
    """The paper with one cell printed otherwise."""
    numbers = printed_numbers(printed)
    tables = []
    for one in PAPER.tables:
        cells = tuple(
            replace(cell, printed=printed, value=numbers[0].value, decimals=numbers[0].decimals)
            if (one.id, cell.row, cell.column) == (table, row, column)
            else cell
            for cell in one.cells
        )
        tables.append(replace(one, cells=cells))
    return replace(PAPER, tables=tuple(tables))


def check(name: str, paper: PublishedPaper) -> Check:
    return statements.check(DP_WEIGHTS, REPORT, paper, name)


@pytest.mark.parametrize(("table", "row", "column", "printed"), GOLDEN)
def test_golden_cells(table: str, row: tuple[str, ...], column: str, printed: str) -> None:
    cell = PAPER.table(table).cell(row, column)
    assert cell is not None
    assert cell.printed == printed
    assert cell.table == table


@pytest.mark.parametrize(("table", "row", "column", "printed"), FERRET_GOLDEN)
def test_golden_cells_of_ferret(table: str, row: tuple[str, ...], column: str, printed: str) -> None:
    cell = FERRET.table(table).cell(row, column)
    assert cell is not None
    assert cell.printed == printed


@pytest.mark.parametrize(("table", "row", "column", "printed"), PACZERO_GOLDEN)
def test_golden_cells_of_paczero(table: str, row: tuple[str, ...], column: str, printed: str) -> None:
    cell = PACZERO.table(table).cell(row, column)
    assert cell is not None
    assert cell.printed == printed


@pytest.mark.parametrize(("table", "row", "column", "printed"), SHUFFLED_GOLDEN)
def test_golden_cells_of_shuffled_dp_sgd(table: str, row: tuple[str, ...], column: str, printed: str) -> None:
    cell = SHUFFLED.table(table).cell(row, column)
    assert cell is not None
    assert cell.printed == printed


def test_every_table_of_shuffled_dp_sgd_is_whole() -> None:
    # Ten methods and epsilons of 1, 8 and 8 rows; of Table IV four groups of four cells are lost.
    counts = {table.id: len(table.cells) for table in SHUFFLED.tables}
    assert counts.pop("statements") == 57
    assert counts.pop("texts") == 35
    assert counts == {
        "table-1": 5 * 2,
        "table-1-datasets": 7 * 4,
        "table-2": 8 * 2,
        "table-3": 10,
        "table-4": 8 * 10 - 16,
        "table-5": 8 * 10,
        "table-6": 2 * 2,
        "table-7": 3,
        "table-8": 5 * 2,
    }
    table = SHUFFLED.table("table-4")
    lost = Counter((cell.row[0], cell.column) for cell in table.unreadable)
    assert lost == {
        ("BERT", "MixOpt, 0.1"): 4,
        ("BERT", "Ghost, 0.5"): 4,
        ("BERT", "MixOpt, 1"): 4,
        ("RoBERTa", "Ghost, 0.5"): 4,
    }
    assert "86.93 and 82.07" in table.why_unreadable(("BERT", "QNLI"), "MixOpt, 1")


@pytest.mark.parametrize(("table", "row", "column", "printed"), RLDP_GOLDEN)
def test_golden_cells_of_rldp(table: str, row: tuple[str, ...], column: str, printed: str) -> None:
    cell = RLDP.table(table).cell(row, column)
    assert cell is not None
    assert cell.printed == printed


def test_every_table_of_rldp_is_whole() -> None:
    # Two models, or four, at five budgets, with nine methods.
    counts = {table.id: len(table.cells) for table in RLDP.tables}
    assert counts.pop("statements") == 106
    assert counts.pop("texts") == 22
    membership, canaries = 2 * 5 * 9 * 3, 4 * 5 * 9 * 2
    assert counts == {
        "table-2": 4 * 5 * 2,
        "table-3": (4 + 1) * 5,
        "table-4": membership,
        "table-5": membership,
        **{f"table-{number}": canaries for number in (6, 7, 8, 9)},
    }
    methods = {cell.row[2] for cell in RLDP.table("table-6").cells}
    for claim in RLDP.claims:
        named = {*claim.parameters.get("methods", ()), *claim.parameters.get("others", ())} - {"RLDP"}
        assert named <= methods, claim.id


def test_claims_of_shuffled_dp_sgd_name_printed_cells() -> None:
    assert len(SHUFFLED.claims) == 24
    for claim in SHUFFLED.claims:
        settings = list(_settings(claim.parameters))
        assert settings
        assert claim.parameters["metric"]
        assert (claim.test == "figure") == all("cell" not in setting for setting in settings)
        for setting in settings:
            if "cell" in setting:
                table, *row, column = setting["cell"].split(" | ")
                assert table in claim.tables
                assert SHUFFLED.table(table).cell(tuple(row), column) is not None
                # The setting and the place of its number say the same.
                named = [str(setting[name]) for name in ("model", "method") if name in setting]
                assert all(name in setting["cell"] or table in ("table-6", "table-8") for name in named)
                if "epsilon" in setting and table in ("table-3", "table-4", "table-5"):
                    assert column.endswith(f", {setting['epsilon']:g}")


def _settings(value: object) -> Iterator[dict[str, Any]]:
    """The settings of a claim, however deep they stand in pairs, groups and gaps."""
    if isinstance(value, list):
        for one in value:
            yield from _settings(one)
    elif isinstance(value, dict):
        if {"method", "model", "d"} & set(value):
            yield value
        else:
            yield from _settings(list(value.values()))


def test_every_table_of_paczero_is_whole() -> None:
    # 10 rows of 4 cells, of which 6 rows have a number of seeds each; 15 budgets of 3 cells; and so on.
    counts = {table.id: len(table.cells) for table in PACZERO.tables}
    assert counts.pop("statements") > 70
    assert counts == {
        "table-1": 10 * 4 + 6 * 4,
        "table-2": 15 * 3,
        "table-3": 2 * 5,
        "table-4": 8 * 6 - 3,
        "table-5": 4 * 5,
        "appendix-e": 8 + 1,
        "table-6": 12 * 2,
        "table-7": 14 * 4,
        "table-8": 10 * 3 - 1,
        "table-9": 4 * 4 - 1,
        "table-10": 3 * 4,
        "table-11": 15 * 3,
        "table-12": 10 * 2 + 2,
        "table-13": 3 * 4 + 3,
        "table-14": 5 * 3,
        "table-15": 3 * 8,
        "table-16": 3 * 3,
        "table-17": 3 * 4 + 4 + 5,
        "table-18": 2 * (3 + 4 + 4) - 2 + 1,
        "table-19": 2 * (4 + 4 + 4),
        "table-20": 29 * 4 + 1,
        "table-21": 15 * 4 + 3 + 2,
    }


def test_claims_of_paczero_name_printed_cells() -> None:
    assert len(PACZERO.claims) == 34
    for claim in PACZERO.claims:
        settings = list(claim.parameters.get("settings", []))
        settings += [setting for pair in claim.parameters.get("pairs", []) for setting in pair]
        assert len(settings) >= 1
        assert claim.parameters["metric"]
        for setting in settings:
            table, *row, column = setting["cell"].split(" | ")
            assert table in claim.tables
            assert PACZERO.table(table).cell(tuple(row), column) is not None


def test_every_table_of_ferret_is_whole() -> None:
    # Four methods at four epsilons and Non-DP without one, each at three numbers of epochs.
    counts = {table.id: len(table.cells) for table in FERRET.tables}
    assert [counts[f"table-{number}"] for number in (2, 5, 6, 8, 9, 10, 11)] == [51] * 7
    # Five models and their mean, by three or four metrics, of those settings; printed and read, or lost.
    for number, metrics in ((12, 3), (13, 2), (14, 4)):
        table = FERRET.table(f"table-{number}")
        assert len(table.cells) + len(table.unreadable) == 51 * 6 * metrics
        assert all(cell.reason for cell in table.unreadable)
    assert len(FERRET.tables) == 18 - 1, "tables 1 to 14, settings, figures, statements"


def test_an_unreadable_cell_has_a_reason_and_no_number() -> None:
    # Table 13's line of SmolLM-360M and TinyLlama-1.1B (DPSGD, 1 epoch) keeps one number of two.
    table, row = FERRET.table("table-13"), ("DPSGD", "1", "TinyLlama-1.1B")
    assert table.cell(row, "advantage, 0.1") is None
    assert "two rows" in table.why_unreadable(row, "advantage, 0.1")
    assert table.why_unreadable(row, "roc_auc, 0.1") == "", "read: Table 12 tells whose it is"
    assert table.why_unreadable(row, "roc_auc, inf") == "", "nothing is printed there"


def test_claims_of_ferret_name_known_things() -> None:
    assert len(FERRET.claims) == 36
    methods = {cell.row[0] for name in ("table-2", "table-3") for cell in FERRET.table(name).cells}
    for claim in FERRET.claims:
        parameters = claim.parameters
        named = [*parameters.get("variants", []), *parameters.get("order", [])]
        named += [method for pair in parameters.get("pairs", []) for method in pair]
        assert set(named) <= methods
        assert set(parameters.get("epochs", [])) <= {1, 3, 5}
        assert set(parameters.get("epsilons", [])) <= {0.1, 0.5, 1.0, 2.0}
        assert named or claim.test == "dither"


def test_every_table_is_whole() -> None:
    # Tables 1 and 2: 4 settings, 3 models, 7 metrics; 3 to 10: 9 measures of 7 metrics for 3 pairs of models.
    counts = {table.id: len(table.cells) for table in PAPER.tables}
    assert counts["table-1"] == counts["table-2"] == 84
    assert [counts[f"table-{number}"] for number in range(3, 11)] == [189] * 8
    # 7 metrics, 3 pairs; statistic with p-value, interval, words.
    assert counts["section-4.3"] == counts["section-4.4"] == 63
    for table, _, _ in detail_tables(PAPER):
        assert Counter(cell.column for cell in table.cells) == dict.fromkeys(COMPARISONS, 63)
        assert Counter(cell.row[1] for cell in table.cells) == dict.fromkeys(METRICS, 27)


def test_fields_of_cells() -> None:
    mean = PAPER.table("table-1").cell(("5", "dp_model"), "perplexity_member")
    assert mean is not None
    assert (mean.value, mean.spread, mean.decimals, mean.p_value) == (2.79, 0.96, 2, None)
    test = PAPER.table("table-3").cell(("Wilcoxon test", "perplexity_member"), "DP vs DP-Weights")
    assert test is not None
    assert (test.value, test.p_value) == (12.0, 5.215e-7)
    interval = PAPER.table("section-4.3").cell(("roc_auc", "DP-Weights vs Fine-Tuned"), INTERVAL)
    assert interval is not None
    assert (interval.lower, interval.upper, interval.decimals) == (-0.10, -0.001, 2)
    assert interval.value == pytest.approx(-0.0505)
    assert all(table.seeds is None for table in PAPER.tables), "the paper says nowhere how many trainings"


def test_claims_name_known_things() -> None:
    assert len(PAPER.claims) > 30
    for claim in PAPER.claims:
        assert claim.place
        assert claim.tables
        assert set(claim.parameters["groups"]) <= set(GRIDS)
        assert set(claim.parameters["metrics"]) <= set(METRICS)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.79 ± 0.96", [(2.79, 2), (0.96, 2)]),
        ("1.685e-16", [(1.685e-16, 19)]),
        ("12.0, 5.215e - 07", [(12.0, 1), (5.215e-7, 10)]),
        ("(-1.65, 1.28)", [(-1.65, 2), (1.28, 2)]),
        ("0.5 [0.4, 0.61]", [(0.5, 1), (0.4, 1), (0.61, 2)]),
        ("1000", [(1000.0, 0)]),
    ],
)
def test_printed_numbers(text: str, numbers: list[tuple[float, int]]) -> None:
    assert [(one.value, one.decimals) for one in printed_numbers(text)] == numbers


@given(st.integers(-(10**6), 10**6), st.integers(0, 6))
def test_a_number_lies_within_its_own_rounding(units: int, decimals: int) -> None:
    text = f"{units / 10**decimals:.{decimals}f}"
    (number,) = printed_numbers(text)
    assert number.decimals == decimals
    assert abs(number.value - units / 10**decimals) <= number.half_unit


TABLE = """
paper = "p"
title = "P"
[[table]]
id = "t"
title = "T"
place = "Table 1"
row_headers = ["model"]
columns = ["auc", "said"]
words = ["said"]
rows = [["a", "0.5 ± 0.1", "same"], ["b", "0.6 ± 0.1", "other"]]
[[claim]]
id = "c"
place = "Section 1"
statement = "S"
tables = ["t"]
test = "difference"
"""


def test_a_small_file_parses() -> None:
    paper = parse_published(TABLE)
    assert [cell.value for cell in paper.tables[0].cells if cell.column == "auc"] == [0.5, 0.6]
    assert math.isnan(paper.tables[0].cells[1].value)
    assert paper.tables[0].seeds is None


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('["a", "0.5 ± 0.1", "same"]', '["a", "0.5 ± 0.1"]', "row 1 must have 1 headers and 2 cells"),
        ('"b", "0.6', '"a", "0.6', "cell 'a, auc' is given twice"),
        ("0.5 ± 0.1", "0.5 +- 0.1", "a cell must be one of"),
        ("0.5 ± 0.1", "0.5 ± -0.1", "spread must be >= 0"),
        ("0.5 ± 0.1", "0.5, 1.1", "p-value must be in"),
        ("0.5 ± 0.1", "(2, 1)", "lower must be <= upper"),
        ('"same"', '"0.3"', "column of words must not hold a number"),
        ('words = ["said"]', 'words = ["sad"]', "did you mean 'said'"),
        ('title = "T"', 'titel = "T"', "did you mean 'title'"),
        ('tables = ["t"]', 'tables = ["u"]', "unknown table of claim 'c'"),
        ('place = "Section 1"', "place = 1", "claim 'c': place must be a text"),
        ('row_headers = ["model"]', 'row_headers = ["model"]\nseeds = 0', "seeds must be a whole number"),
        ('paper = "p"', "paper = ", "is no TOML"),
        ('columns = ["auc", "said"]', 'columns = ["said", "said"]', "column 'said' is given twice"),
        ("0.6 ± 0.1", "?losst", "unknown reason of table 't', row b, column auc 'losst'"),
        ('rows = [["a"', 'reasons = 3\nrows = [["a"', "reasons must map names to texts"),
    ],
)
def test_a_damaged_file_is_refused(before: str, after: str, message: str) -> None:
    assert before in TABLE
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        parse_published(TABLE.replace(before, after, 1))


def test_an_unreadable_cell_parses() -> None:
    marked = TABLE.replace("rows =", 'reasons = { lost = "the line is missing" }\nrows =')
    (table,) = parse_published(marked.replace("0.6 ± 0.1", "?lost")).tables
    assert table.cell(("b",), "auc") is None
    assert table.why_unreadable(("b",), "auc") == "the line is missing"
    assert [(cell.row, cell.column) for cell in table.unreadable] == [(("b",), "auc")]
    twice = marked.replace("0.6 ± 0.1", "?lost").replace('["b"', '["a"')
    with pytest.raises(InputError, match=r"'a, (said|auc)' is given twice"):
        parse_published(twice)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(InputError, match="did you mean 'dp_weights'"):
        published("dp_weight")
    with pytest.raises(InputError, match="did you mean 'table-1'"):
        PAPER.table("tabel-1")


def test_the_loader_needs_no_slow_library(tmp_path: Path) -> None:
    code = (
        "import sys; from workbench.checks.published import published; published('dp_weights');"
        "print([name for name in ('torch', 'scipy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_which_checks_hold_and_which_do_not() -> None:
    found = {check.name: check for check in statements.checks(DP_WEIGHTS, REPORT, PAPER)}
    held = ("RMSE", "Wilcoxon", "t statistics", "p-values", "middles", "words", "intervals and p-values")
    assert {name: found[name].failed for name in held} == dict.fromkeys(held, ())
    assert [found[name].checked for name in held] == [336, 168, 42, 42, 42, 42, 42]
    contradictions = {name for name, check in found.items() if check.contradiction}
    assert contradictions == {
        "repeated tables",
        "moments",
        "repeated setting",
        "kind of confidence interval",
        "summaries",
        "columns of the coefficients of variation",
        "group sizes",
        "delta of the composition",
    }
    side = statements.paper_side(DP_WEIGHTS, REPORT, PAPER)
    assert len(side.inconsistencies) == len(contradictions)


def test_tables_5_and_6_are_copies_that_fit_no_row_of_table_2() -> None:
    groups = repeated_tables(PAPER).failed
    assert len(groups) == 2
    assert groups[0].startswith("Table 4, Table 5 and Table 10 print the same")
    assert groups[1].startswith("Table 6 and Table 9 print the same")
    failed = Counter(text.partition(",")[0] for text in check("moments", PAPER).failed)
    assert set(failed) == {"Table 5", "Table 6"}
    assert failed["Table 5"] > 20
    assert failed["Table 6"] > 40


def test_tables_whose_stated_settings_agree_are_no_contradiction() -> None:
    # Table 5 states 10 epochs and no batch size, Table 10 the same and batch size 100: they may be one run.
    chosen = tuple(table for table in PAPER.tables if table.id in ("table-5", "table-10"))
    assert len(chosen) == 2
    assert not repeated_tables(replace(PAPER, tables=chosen)).contradiction
    text = repeated_tables(PAPER).finding
    assert "(Table 4: epochs 5; Table 5: epochs 10; Table 10: epochs 10)" in text
    assert "175 cells" in text


def test_a_table_that_differs_in_one_digit_is_no_copy() -> None:
    changed = with_cell("table-6", ("MAE", "f1"), "DP vs DP-Weights", "0.067")
    assert [text[:7] for text in repeated_tables(changed).failed] == ["Table 4"]


def test_identities_find_a_wrong_digit() -> None:
    place = ("table-3", ("MSE", "perplexity_member"), "DP vs DP-Weights")
    changed = with_cell(*place, "157.363")
    assert len(check("RMSE", changed).failed) == 1
    assert any(text.startswith("Table 3, ") for text in check("moments", changed).failed)
    wilcoxon = with_cell("table-3", ("Wilcoxon test", "f1"), "DP vs Fine-Tuned", "60.0, 0.9")
    assert len(check("Wilcoxon", wilcoxon).failed) == 1


def test_t_tests_find_a_wrong_digit() -> None:
    place = ("section-4.4", ("perplexity_member", "DP vs Fine-Tuned"))
    changed = with_cell(*place, STATISTIC, "6.673, 3.47e-10")
    assert len(check("t statistics", changed).failed) == 1
    assert len(check("p-values", changed).failed) == 1
    moved = with_cell(*place, INTERVAL, "(6.60, 12.49)")
    assert len(check("middles", moved).failed) == 1
    assert len(check("t statistics", moved).failed) == 0


def test_words_that_contradict_their_p_value_are_found() -> None:
    changed = with_cell("section-4.3", ("accuracy", "DP vs DP-Weights"), STATISTIC, "-1.96, 0.0418")
    words = check("words", changed)
    assert len(words.failed) == 1
    assert "accuracy" in words.finding


def test_the_wilcoxon_bound_agrees_with_scipy() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    for n in (28, 20, 9):
        differences = rng.normal(0.3, 1.0, n)
        result = stats.wilcoxon(differences)
        p = float(result.pvalue)
        assert n in wilcoxon_counts(float(result.statistic), Interval(p * 0.9999, p * 1.0001))
        tied = np.round(differences * 2.0)
        tied = np.concatenate([tied[tied != 0], np.zeros(28 - np.count_nonzero(tied))])
        result = stats.wilcoxon(tied, method="asymptotic")
        p = float(result.pvalue)
        counts = wilcoxon_counts(float(result.statistic), Interval(p * 0.9999, p * 1.0001))
        assert np.count_nonzero(tied) in counts
    # Statistic 0 at n = 28 has p = 2 / 2^28 = 7.451e-9, which no smaller n reaches.
    assert wilcoxon_counts(0.0, Interval.of(PrintedNumber(value=7.451e-9, decimals=12))) == [28]


@pytest.mark.slow
def test_group_sizes() -> None:
    found = sizes.group_sizes(PAPER)
    assert found.smallest == (10, 10)
    assert found.members[:10] == (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    assert found.pairs[999, 999], "granularity never excludes the stated 1,000 and 1,000"
    assert [size for size in found.equal if size % 10][:1] == [255]
    assert not found.pairs[9, :9].any()


def test_group_sizes_agree_with_counting() -> None:
    rng = np.random.default_rng(1)
    for size in (7, 10, 13):
        first, second = (rng.integers(0, size + 1, 28) for _ in range(2))
        gap = np.abs(first - second) / size

        def shown(value: float) -> Interval:
            return Interval.of(PrintedNumber(value=round(value, 3), decimals=3), floor=0.0)

        distance = sizes.Distances(
            mean_absolute=shown(float(gap.mean())),
            mean_squared=shown(float((gap**2).mean())),
            median=shown(float(np.median(gap))),
            decimals=3,
        )
        assert distance.fit(size), "the true size always fits"
    coarse = sizes.Distances(
        mean_absolute=Interval(0.0855, 0.0865),
        mean_squared=Interval(0.0, 1.0),
        median=Interval(0.0995, 0.1005),
        decimals=3,
    )
    # MAE 0.086 with 10 members: 24 / 280 = 0.0857; with 11: 26 / 308 = 0.0844, 27 / 308 = 0.0877.
    assert coarse.fit(10)
    assert not coarse.fit(11)


def test_a_corrected_paper_loses_its_contradictions() -> None:
    assert check("delta of the composition", PAPER).contradiction
    fixed = with_cell("section-4.2", ("composed delta",), "value", "1.001e-03")
    assert not check("delta of the composition", fixed).contradiction
    assert check("repeated setting", PAPER).contradiction
    moved = with_cell("table-2", ("5", "dp_model"), "recall", "0.51 ± 0.07")
    assert not check("repeated setting", moved).contradiction
