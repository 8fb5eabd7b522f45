"""What contradicts itself inside PACZero, computed from its printed cells.

Expected numbers are worked out by hand from the paper (Ertan et al. 2026), with the cells named beside them.
Checks are also shown a paper with one cell changed: they must find what they are for and lose what is mended.
"""

from __future__ import annotations

import math
from dataclasses import replace

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
from workbench.reports.papers.paczero import uncertainty
from workbench.reports.papers.paczero.paper import tolerance_nats
from workbench.reports.papers.paczero.report import PACZERO
from workbench.reports.shared import claims, statements
from workbench.reports.shared.declared import declared
from workbench.reports.shared.printed import TEST_RECORDS, Check, at, is_share

PAPER = published("paczero")
CLAIMS = {claim.id: claim for claim in PAPER.claims}
REPORT = declared("paczero")


def check(name: str, paper: PublishedPaper = PAPER) -> Check:
    return statements.check(PACZERO, REPORT, paper, name)


def remark(name: str, paper: PublishedPaper = PAPER) -> str:
    return statements.remark(PACZERO, REPORT, paper, REPORT.entry("remark", name, "name"))


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    return claims.contradictions(PACZERO, REPORT, paper, claim)


def with_cell(path: str, printed: str, paper: PublishedPaper = PAPER) -> PublishedPaper:
    """The paper with one cell printed otherwise."""
    numbers = printed_numbers(printed)
    old = at(paper, path)
    new = replace(
        old,
        printed=printed,
        value=numbers[0].value,
        decimals=numbers[0].decimals,
        spread=numbers[1].value if "±" in printed else None,
    )

    def changed(one: PublishedTable) -> PublishedTable:
        return replace(one, cells=tuple(new if cell is old else cell for cell in one.cells))

    return replace(paper, tables=tuple(changed(one) for one in paper.tables))


def test_what_contradicts_itself() -> None:
    found = {one.name: one for one in statements.checks(PACZERO, REPORT, PAPER)}
    assert {name for name, one in found.items() if one.contradiction} == {
        "conclusions",
        "numbers of the text",
        "evaluation records",
        "steps",
        "unanimity",
        "within seed noise",
        "names of seeds",
        "multi-seed cells",
    }
    assert {name for name, one in found.items() if not one.failed} == {
        "means and deviations",
        "differences",
        "copies",
        "spans",
        "dev records",
    }
    side = statements.paper_side(PACZERO, REPORT, PAPER)
    assert list(side.inconsistencies) == [one.finding for one in found.values() if one.contradiction]
    assert len(side.remarks) == len(REPORT.content["remark"]) + len(found) - len(side.inconsistencies)
    assert all(side.remarks)
    assert all(
        found[name].checked >= 10 for name in ("means and deviations", "differences", "copies", "spans")
    )


@pytest.mark.parametrize(
    ("name", "path", "printed"),
    [
        ("means and deviations", "table-4 | FT | 1.3B | 0.33 | mean", "89.53 ± 1.12"),
        # The population's deviation.
        ("means and deviations", "table-5 | LoRA | 6.7B | mean", "90.56 ± 0.72"),
        ("means and deviations", "table-17 | 2 | test", "90.35"),
        ("means and deviations", "appendix-e | SQuAD | FT | 1.3B | 1 | test", "63.35"),
        ("differences", "table-14 | 3000 | test", "80.93"),
        ("differences", "table-19 | FT | 16 | test less that at K = 1", "+0.96"),
        ("copies", "table-9 | 10 | 0.33 | test", "90.12 ± 0.43"),
        ("copies", "table-16 | 1000 | dev", "88.40"),
        ("spans", "table-2 | 0.11 | test", "89.65"),
        ("spans", "table-11 | 0.33 | unanimity", "48.5"),
        ("dev records", "table-8 | LoRA | 25 | 5e-4 | dev", "79.90"),
    ],
)
def test_a_wrong_digit_is_found(name: str, path: str, printed: str) -> None:
    assert not check(name).failed
    assert check(name, with_cell(path, printed)).contradiction


def test_mended_papers_lose_their_contradictions() -> None:
    count = "statements | appendix E | multi-seed SST-2 cells of Table 1 | value"
    assert not check("multi-seed cells", with_cell(count, "12")).failed
    low = with_cell("table-9 | 10 | 0.68 | unanimity", "45.4")
    assert "Table 9" in check("unanimity").finding
    assert "Table 9" not in check("unanimity", low).finding
    recipe = with_cell("table-7 | SST-2 | PACZero-MI | LoRA 6.7B | T", "1000")
    assert "6.7B LoRA cells" in check("steps").finding
    assert "6.7B LoRA cells" not in check("steps", recipe).finding
    hours = with_cell("table-21 | total | appendix | GPU-hours", "227")
    assert check("GPU hours").failed
    assert not check("GPU hours", hours).failed
    assert check("clip required").failed
    assert not check("clip required", with_cell("table-8 | LoRA | 1e9 | 5e-4 | dev", "78.20")).failed
    base = with_cell("table-18 | FT | 1 | test", "88.76")
    assert check("baseline of Table 18").failed
    assert not check("baseline of Table 18", base).failed
    assert len(check("seed 0 in the pools").failed) == 3
    assert len(check("seed 0 in the pools", with_cell("table-2 | 0.33 | test", "90.83")).failed) == 2


def test_the_stated_noise_is_exceeded() -> None:
    # Table 4's seeds of FT 6.7B at 0.33 nats are 803, 808, 799 and 806 of 872: mean 804, deviation 3.9158.
    counts = np.array([803, 808, 799, 806])
    assert counts.mean() == 804.0
    spread = 100.0 * counts.std(ddof=1) / TEST_RECORDS
    assert [round(100.0 * (k - 804) / TEST_RECORDS, 3) for k in (808, 810)] == [0.459, 0.688]
    text = check("within seed noise").finding
    assert f"0.459 against {spread:.3f}" in text
    assert f"0.688 against {spread:.3f}" in text
    assert len(check("within seed noise").failed) == 3
    assert len(check("within seed noise", with_cell("table-18 | LoRA | 4 | test", "88.30")).failed) == 2


def test_numbers_of_the_text() -> None:
    found = check("numbers of the text")
    assert found.checked == len(REPORT.entry("check", "numbers of the text", "name")["statements"])
    assert len(found.failed) == 4
    assert "6 printed, 3 found (the headline's 0.33 nats gives the printed number)" in found.finding
    assert "930 printed, 447.1 found (the sum of all SQuAD cells gives the printed number)" in found.finding
    # h(1e-12) = 1e-12 (ln 1e12 + 1) = 2.863e-11 nats.
    assert tolerance_nats(1e-12) == pytest.approx(1e-12 * (12.0 * math.log(10.0) + 1.0), rel=1e-6)
    worse = with_cell("table-1 | FT | 0 nats | PACZero-ZPL | SST-2 1.3B", "88.79 ± 0.91")
    assert len(check("numbers of the text", worse).failed) > 4
    mended = with_cell("statements | appendix H | nats spent at 0.33 nats, clip 25 | value", "0.3300")
    assert len(check("numbers of the text", mended).failed) == 3


def test_which_claims_the_cells_contradict() -> None:
    contradicted = {name for name, claim in CLAIMS.items() if contradictions(PAPER, claim)}
    assert contradicted == {
        "paczero-mi-matches-dp-squad",
        "paczero-zpl-strongest-cell",
        "paczero-unanimity-of-the-loss",
        "paczero-drift-lora",
        "paczero-directions-within-noise",
        "paczero-directions-within-noise-6.7b",
        "paczero-clip-winner",
    }
    assert len(check("conclusions").failed) == len(contradicted)
    assert {claim.test for claim in PAPER.claims} == set(REPORT.content["test"])


@pytest.mark.parametrize(
    ("claim", "path", "printed"),
    [
        ("zpl-near-non-private", "table-1 | FT | 0 nats | PACZero-ZPL | SST-2 1.3B", "88.70 ± 0.91"),
        ("mi-beats-dpzero", "table-1 | FT | 0.33 nats | PACZero-MI | SST-2 1.3B", "86.51 ± 1.12"),
        ("plateau", "table-2 | 1e-2 | test", "86.40"),
        ("plateau-lora", "table-11 | 0.50 | test", "90.46"),
        ("cliff-dpzero", "table-3 | DPZero K=1 | 20000 | 0.5", "55.05"),
        ("cliff-aggzo-above", "table-3 | DP-AggZO K=64 | 1000 | 0.5", "49.89"),
        ("drift", "table-14 | 5000 | test", "77.98"),
        ("quantization-helps", "table-12 | quant_full | 2000 | test", "88.53"),
        ("raw-needs-no-steps", "table-12 | raw_half | 1000 | test", "87.96"),
        ("budget-kept", "statements | appendix H | nats spent at 0.33 nats, clip 25 | value", "0.3301"),
        ("unanimity-by-task", "table-6 | FT | 6.7B | 0.33 nats | SST-2", "31.9"),
    ],
)
def test_a_claim_that_holds_fails_on_a_changed_cell(claim: str, path: str, printed: str) -> None:
    one = CLAIMS[f"paczero-{claim}"]
    assert contradictions(PAPER, one) == ""
    assert contradictions(with_cell(path, printed), one)


def test_rounding_alone_contradicts_nothing() -> None:
    # 91.1 less 88.99 is 2.11 +- 0.055, which prints as the text's 2.1; so may 91.1 less 88.91.
    claim = CLAIMS["paczero-zpl-near-non-private"]
    for value in ("88.91", "88.95", "88.99"):
        assert (
            contradictions(with_cell("table-1 | FT | 0 nats | PACZero-ZPL | SST-2 1.3B", value), claim) == ""
        )


def test_an_unknown_test_is_refused() -> None:
    claim = replace(CLAIMS["paczero-drift"], test="fals")
    with pytest.raises(InputError, match="did you mean 'falls'"):
        contradictions(PAPER, claim)


def test_only_872_records_explain_the_accuracies() -> None:
    cells = [at(PAPER, "table-19 | LoRA | 4 | test"), at(PAPER, "table-4 | FT | 1.3B | 0.33 | 2nd")]
    assert [is_share(one, TEST_RECORDS) for one in cells] == [True, True]  # 819 and 771 of 872.
    assert [is_share(one, 1000) for one in cells] == [False, False]
    assert "only 872 explains" in check("evaluation records").finding
    other = with_cell("table-2 | 0.20 | test", "87.70")
    assert "none explains" in check("evaluation records", other).finding


def test_binomial_intervals_and_p_values() -> None:
    # DP-AggZO at epsilon 0.5: 575 of 872; Clopper-Pearson by scipy's exact interval.
    from scipy import stats

    exact = stats.binomtest(575, 872).proportion_ci(0.95, method="exact")
    assert uncertainty.limits(65.94) == pytest.approx((100.0 * exact.low, 100.0 * exact.high), abs=1e-9)
    assert uncertainty.chance_p(50.0) == pytest.approx(1.0)
    assert uncertainty.chance_p(55.05) < 0.01 < uncertainty.chance_p(53.10)
    # The level of "at chance" is kept: of fair coins, at most 5 % of triples contradict (exact, by counting).
    weights = stats.binom.pmf(np.arange(873), 872, 0.5)
    rejected = sum(w for k, w in enumerate(weights) if uncertainty.chance_p(100.0 * k / 872) * 3 < 0.05)
    assert 1.0 - (1.0 - rejected) ** 3 <= 0.05


def test_runs_that_are_one_run() -> None:
    runs = [[len(group) for group in uncertainty.sweep(PAPER, name).runs] for name in uncertainty.SWEEPS]
    assert runs == [[2, 4, *[1] * 9], [3, 2, 1, 2, *[1] * 7]]
    changed = with_cell("table-2 | 3e-4 | unanimity", "39.1")
    assert len(uncertainty.sweep(changed, "table-2").runs) == 12


def test_turned_bits_agree_with_playing() -> None:
    # 400 disagreement steps at q+ = 1/2 and 2 nats: sigma = sqrt(2 / 4 * 400 / 2) = 10.
    rng = np.random.default_rng(0)
    noise = rng.normal(0.0, 10.0, 400_000)
    turned = np.mean(np.sign(1.0 + noise) != np.sign(noise)) * 400
    expected = uncertainty.turned_bits(2.0, 1000, 0.6)
    # A share of 0.04 from 400,000 draws has a deviation of 3.1e-4, so 0.12 bits: 5 of them (p < 1e-6).
    assert abs(turned - expected) < 0.62
    assert expected == pytest.approx(400 * (0.5398278 - 0.5), rel=1e-5)


def test_trend_and_its_negative_control() -> None:
    nats = [10.0**k for k in range(-4, 1)]
    change, lower, upper, p_value = uncertainty.trend([1.0, 2.1, 2.9, 4.0, 5.0], nats)
    assert lower < change < upper
    assert change == pytest.approx(3.96, abs=0.01)
    assert p_value < 1e-3
    flat = uncertainty.trend([1.0, 1.2, 0.9, 1.1, 1.0], nats)
    assert flat[1] < 0.0 < flat[2]
    assert flat[3] > 0.5
    assert "Table 11, unanimity +6.81 points from end to end (+3.37 to +10.24" in remark("trend")


def test_success_inverts_the_divergence() -> None:
    assert 100.0 * uncertainty.success(0.25) == pytest.approx(84.0, abs=0.3)  # Section 2.
    assert 100.0 * uncertainty.success(1.0 / 128.0) == pytest.approx(56.0, abs=0.3)
    for nats in (0.01, 0.33, 0.68):
        assert uncertainty.divergence(uncertainty.success(nats)) == pytest.approx(nats, abs=1e-12)


def test_remarks_follow_the_cells() -> None:
    assert "have M = 126," in remark("subset count")
    other = with_cell("table-7 | SQuAD | PACZero-ZPL | FT 1.3B | M", "128")
    assert "have M = 126 and 128," in remark("subset count", other)
    text = remark("criteria")
    assert "disagree" in text
    assert "rank 16's (test 91.28)" in text
    agreed = with_cell("table-10 | 16 | best evaluation loss", "0.3093")
    assert "the two agree" in remark("criteria", agreed)
    assert "None is told" in remark("chance")
    assert "Some are told" in remark("chance", with_cell("table-12 | random_sign | 2000 | test", "58.03"))
    assert "clip 25" in remark("unanimity")
    other = with_cell("table-6 | LoRA | 6.7B | 0.33 nats | SST-2", "43.4")
    assert "clip 25" not in remark("unanimity", other)
