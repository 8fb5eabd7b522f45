"""What contradicts itself inside RLDP, computed from its printed cells.

Expected numbers are worked out by hand from the paper (Khadangi et al. 2025), with the cells named beside
them. Checks are also shown a paper with some cells changed: they must find what they are for and lose what is
mended.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from workbench.attacks.claim_checks.rldp.statements import _above, _printed
from workbench.checks.published import (
    PublishedPaper,
    PublishedTable,
    QualitativeClaim,
    printed_numbers,
    published,
)
from workbench.core.errors import InputError
from workbench.reports.papers.rldp.report import RLDP
from workbench.reports.papers.rldp.runs import chance_similarity, least_similarity
from workbench.reports.shared import claims, statements
from workbench.reports.shared.declared import declared
from workbench.reports.shared.printed import Check, at

PAPER = published("rldp")
CLAIMS = {claim.id: claim for claim in PAPER.claims}
REPORT = declared("rldp")


def check(name: str, paper: PublishedPaper = PAPER) -> Check:
    return statements.check(RLDP, REPORT, paper, name)


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    return claims.contradictions(RLDP, REPORT, paper, claim)


def with_cells(changes: Mapping[str, str]) -> PublishedPaper:
    """The paper with some cells printed otherwise: `"table | row | column"` and the text."""
    new = {}
    for path, printed in changes.items():
        ends = [number.value for number in printed_numbers(printed)]
        one = replace(at(PAPER, path), printed=printed, value=sum(ends) / len(ends))
        new[id(at(PAPER, path))] = replace(one, decimals=printed_numbers(printed)[0].decimals)

    def changed(table: PublishedTable) -> PublishedTable:
        return replace(table, cells=tuple(new.get(id(cell), cell) for cell in table.cells))

    return replace(PAPER, tables=tuple(changed(table) for table in PAPER.tables))


def test_what_contradicts_itself() -> None:
    found = {check.name: check for check in statements.checks(RLDP, REPORT, PAPER)}
    assert {name for name, check in found.items() if not check.failed} == {"means of Table 3", "averages"}
    assert {name for name, check in found.items() if check.failed and not check.contradiction} == {
        "rise of sigma"
    }
    side = statements.paper_side(RLDP, REPORT, PAPER)
    assert len(side.inconsistencies) == len(found) - 3
    assert all(side.remarks)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # 4 models at 5 budgets, three seeds: 20 settings, 60 runs of a form of RLDP.
        ("settings", ["settings (section 4.1): 40 printed, 20 found", "60 or 120 found"]),
        # 1 - 1.329 / 1.528 = 13.02 %, 1.528 - 1.329 = 0.199; 1 - 1.217 / 1.231 = 1.14 %.
        ("drops", ["1.3 printed, 0.199 or 13.02 found", "1.14 to 1.67 found"]),
        # The twenty cells of Table 3 have the mean 26.8; their largest is 36.
        ("shares", ["43 printed, 36 found", "29 printed, 26.8 found", "71 printed, 73.2 found"]),
        # floor(101766 * 0.8 * 0.9) = 73271; 3 * 73271 / 16 = 13738.3.
        ("numbers of steps", ["73271 training records in batches of 16 are 13738 updates"]),
        # (77 - 22) / 60 h at 300 W.
        ("times", ["1 of 6", "230 printed, 275 found"]),
        # GPT2 at 0.5: RLDP-H 0.359, GeoClip 0.367. Mistral-7B at 2: 0.349 - 0.335 is the printed 0.014.
        ("membership", ["3 of 4", "0.0035 found", "0.017 printed"]),
        ("direction of the AUC", ["176 of 180", "0.651"]),
        ("canaries", ["35 printed, 11 found", "AutoClip, DC-SGD"]),
        ("repeated counts", ["3999, 3999, 3991, 3999", "3997, 3997, 3999, 3997"]),
        ("a tenth", ["in 107 of 108 cells", "1 of 72 others"]),
        # 1 / 13 over 3 * 4000 * 10 pairs.
        ("least similarity", ["at least 6.4", "24 cells"]),
        ("unit of Table 9", ["640", "0.58"]),
        # mu = q sqrt(3600 expm1(0.408^-2)) = 0.263.
        ("sigma at epsilon 5", ["epsilon 0.98 after 3600 steps"]),
        ("radii", ["a median of 2.6 and 5.4"]),
        # Steps 112, 224, 336 and 448 of the first 540.
        ("rise of sigma", ["4 decisions", "30 decisions"]),
    ],
)
def test_the_numbers_of_a_check(name: str, words: list[str]) -> None:
    for one in words:
        assert one in check(name).finding


ALL_TENTHS = {
    f"table-8 | {model} | {budget} | {name} | similarity": "0.0001"
    for model, budget, name in itertools.product(
        ("GPT2", "Llama-1B", "Llama-3B"),
        ("2", "4", "5", "8"),
        ("AdaClip", "AutoClip", "DC-SGD", "DP-LoRA", "GeoClip", "PSAC", "RLDP-H", "RLDP-L", "Static"),
    )
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("times", {"statements | section 4.2 | Llama-1B, Wh saved | value": "275"}),
        (
            "numbers of steps",
            {
                "statements | section 4.2 | steps T | value": "13738",
                "statements | section 4.2 | steps of GPT2's timed run | value": "13738",
            },
        ),
        (
            "repeated counts",
            {
                "table-8 | Mistral-7B | 2 | RLDP-L | valid": "3999",
                "table-8 | Mistral-7B | 2 | Static | valid": "3997",
            },
        ),
        ("noise floor", {"table-7 | Llama-3B | 8 | RLDP-L | similarity": "0.004"}),
        ("a tenth", ALL_TENTHS),
        ("sigma at epsilon 5", {"statements | section 4.4 | sigma of Mistral-7B at 5 | value": "0.3354"}),
        (
            "radii",
            {
                "statements | section 4.4 | median radius of GPT2 at 0.5 before step 300 | value": "0.6",
                "statements | section 4.4 | radius of block 0 of GPT2 at 0.5 before step 300 | value": "0.9",
            },
        ),
    ],
)
def test_what_is_mended_is_not_found(name: str, changes: dict[str, str]) -> None:
    assert check(name).contradiction
    assert not check(name, with_cells(changes)).failed


@pytest.mark.parametrize(
    ("name", "path", "printed"),
    [
        ("means of Table 3", "table-3 | Mean | 4", "25"),
        # exp(3.739) = 42.06 at the log-probability's upper end.
        ("averages", "table-4 | GPT2 | 0.5 | Static | perplexity", "42.0"),
    ],
)
def test_a_wrong_digit_is_found(name: str, path: str, printed: str) -> None:
    assert not check(name).failed
    assert check(name, with_cells({path: printed})).contradiction


def test_conclusions_and_their_cells() -> None:
    assert {claim.test for claim in PAPER.claims} == {*REPORT.content["test"]}
    against = {name for name, claim in CLAIMS.items() if contradictions(PAPER, claim)}
    assert against == {
        "rldp-drop-range",
        "rldp-steps-dp-lora",
        "rldp-membership",
        "rldp-membership-nearer-chance",
        "rldp-canaries-lowest",
        "rldp-canaries-floor",
        "rldp-canaries-largest",
        "rldp-canaries-valid",
    }
    assert check("conclusions").finding.startswith("8 of 13 conclusions")
    above = _above(_printed(("table-4", "table-5"), "AUC", min), Fraction("0.001"))
    assert contradictions(PAPER, CLAIMS["rldp-membership"]).startswith(f"{len(above)} of 40 printed")
    with pytest.raises(InputError, match="no such test"):
        contradictions(PAPER, replace(CLAIMS["rldp-membership"], test="no such test"))


@pytest.mark.parametrize(
    ("claim", "path", "printed"),
    [
        ("rldp-lowest-perplexity", "table-2 | GPT2 | RLDP, 8", "1.499"),
        ("rldp-mean-drop", "table-2 | GPT2 | RLDP, 0.5", "6.5"),
        ("rldp-larger-gain-at-tight-budget", "table-2 | Llama-1B | RLDP, 0.5", "1.255"),
        ("rldp-steps-range", "table-3 | Llama-1B | 2", "45"),
        ("rldp-steps-mean", "table-3 | Llama-1B | 2", "99"),
    ],
)
def test_a_cell_against_a_conclusion_is_found(claim: str, path: str, printed: str) -> None:
    assert not contradictions(PAPER, CLAIMS[claim])
    assert contradictions(with_cells({path: printed}), CLAIMS[claim])


def test_chance_is_what_random_secrets_have() -> None:
    """The mean over 50,000 pairs, within 5 standard errors (false alarms below 1e-5), 2 % more for n > 1."""
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 36, size=(2, 50_000, 10))
    shared = (
        (first[:, :, None] == np.arange(36)).any(axis=1),
        (second[:, :, None] == np.arange(36)).any(axis=1),
    )
    single = (shared[0] & shared[1]).sum(axis=1) / (shared[0] | shared[1]).sum(axis=1)
    assert single.mean() == pytest.approx(chance_similarity(1), abs=5.0 * single.std() / 50_000**0.5)
    codes = [36 * one[:, :-1] + one[:, 1:] for one in (first, second)]
    matches = (codes[0][:, :, None] == codes[1][:, None, :]).sum(axis=(1, 2))
    pairs = matches / (18 - matches)
    error = 5.0 * pairs.std() / 50_000**0.5
    assert pairs.mean() == pytest.approx(chance_similarity(2), abs=error + 0.02 * chance_similarity(2))
    assert least_similarity(4) == 1.0 / 13.0
