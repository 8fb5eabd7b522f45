"""What contradicts itself inside Shuffled DPSGD, computed from its printed cells.

Expected numbers are worked out by hand from the paper (Yang, Ji, Xiang 2024), with the cells named beside
them. Checks are also shown a paper with one cell changed: they must find what they are for and lose what is
mended.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shuffled_world import World, results

from workbench.checks.published import (
    PublishedPaper,
    PublishedTable,
    QualitativeClaim,
    printed_numbers,
    published,
)
from workbench.core.errors import InputError
from workbench.reports.papers.shuffled_dp_sgd import formulas
from workbench.reports.papers.shuffled_dp_sgd.paper import seconds, utility_rows
from workbench.reports.papers.shuffled_dp_sgd.report import SHUFFLED
from workbench.reports.shared import claims, statements
from workbench.reports.shared.declared import declared
from workbench.reports.shared.printed import Check, at
from workbench.reports.shared.study import context_of
from workbench.studies.report import Table

PAPER = published("shuffled_dp_sgd")
CLAIMS = {claim.id: claim for claim in PAPER.claims}
DECLARED = declared("shuffled_dp_sgd")
PAGE = (Path(__file__).parents[2] / "docs" / "shuffled_dp_sgd.md").read_text(encoding="utf-8")


def checked(name: str, paper: PublishedPaper = PAPER) -> Check:
    return statements.check(SHUFFLED, DECLARED, paper, name)


def remark(name: str, paper: PublishedPaper = PAPER) -> str:
    return statements.remark(SHUFFLED, DECLARED, paper, DECLARED.entry("remark", name, "name"))


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    return claims.contradictions(SHUFFLED, DECLARED, paper, claim)


def with_cell(path: str, printed: str, paper: PublishedPaper = PAPER) -> PublishedPaper:
    """The paper with one cell printed otherwise, a number or words."""
    old = at(paper, path)
    if math.isnan(old.value):
        new = replace(old, printed=printed)
    else:
        numbers = printed_numbers(printed)
        ends = [number.value for number in numbers]
        interval = len(ends) == 2
        new = replace(
            old,
            printed=printed,
            value=sum(ends) / len(ends),
            decimals=numbers[0].decimals,
            lower=ends[0] if interval else None,
            upper=ends[-1] if interval else None,
        )

    def changed(one: PublishedTable) -> PublishedTable:
        return replace(one, cells=tuple(new if cell is old else cell for cell in one.cells))

    return replace(paper, tables=tuple(changed(one) for one in paper.tables))


def test_what_contradicts_itself() -> None:
    found = {check.name: check for check in statements.checks(SHUFFLED, DECLARED, PAPER)}
    assert {name for name, check in found.items() if check.contradiction} == {
        "conclusions",
        "numbers of the text",
        "DP-SGD at one epsilon",
        "shuffle ratio",
        "worst case",
        "parameters",
        "permutation space",
        "Theorem 6",
        "units of sigma",
        "normalisation",
        "titles of proofs",
        "code",
        "element-wise",
        "deltas",
        "figure 1",
        "overhead",
        "copies",
    }
    assert {name for name, check in found.items() if not check.failed} == {"bold marks"}


def test_a_report_gets_findings_and_tables() -> None:
    side = statements.paper_side(SHUFFLED, DECLARED, PAPER)
    checks = statements.checks(SHUFFLED, DECLARED, PAPER)
    assert list(side.inconsistencies) == [one.finding for one in checks if one.contradiction]
    remarks = [remark(entry["name"]) for entry in DECLARED.content["remark"]]
    confirmed = [one.finding for one in checks if one.finding and not one.contradiction]
    assert list(side.remarks) == [*remarks, *confirmed]
    assert len(remarks) == 13
    context = context_of(SHUFFLED, results(World(seeds=1)), PAPER, 0.95)
    tables = [SHUFFLED.tables[name](context) for name in ("models", "gains", "epochs")]
    made = [table for table in tables if isinstance(table, Table)]
    assert [table.id for table in made] == ["paper-models", "paper-gains", "paper-overhead"]
    for table in made:
        assert all(len(cells) == len(table.columns) for _, cells in table.rows)
    assert len(made[1].rows) == len(utility_rows(PAPER)) == 1 + 8 + 8


@pytest.mark.parametrize(
    ("check", "path", "printed"),
    [
        ("bold marks", "table-4 | BERT | QQP | Shuffled-DPSGD, 1", "84.26"),
        ("bold marks", "table-4 | RoBERTa | SST-2 | Shuffled-DPSGD, 0.5", "92.63"),
    ],
)
def test_a_wrong_digit_is_found(check: str, path: str, printed: str) -> None:
    assert not checked(check).failed
    assert checked(check, with_cell(path, printed)).contradiction


@pytest.mark.parametrize(
    ("check", "path", "printed"),
    [
        ("parameters", "table-1 | GPT-2-large | trainable parameters", "774"),
        (
            "permutation space",
            "statements | section I | GPT-2's permutations are the factorial of | value",
            "1e3",
        ),
        (
            "worst case",
            "texts | section IV-C | number of permutations in the worst case | printed",
            "k",
        ),
        ("Theorem 6", "texts | Eq. 26 | product in zeta_2 | printed", "c (c + c')"),
        ("units of sigma", "texts | Algorithm 1, line 13 | variance of the noise | printed", "sigma^2"),
        ("units of sigma", "statements | section VI-A | clip of all NLP tasks | value", "1"),
        ("normalisation", "texts | Eq. 16 | power of 2 pi sigma^2 | printed", "d / 2"),
        ("deltas", "table-1-datasets | GPT-2, GPT-2-large | E2E | delta", "1.2e-5"),
        (
            "code",
            "texts | appendix E | where the indices of a matrix are drawn | printed",
            "once for an MLP",
        ),
        (
            "element-wise",
            "texts | Theorem 3 | element-wise functions | printed",
            "ReLu and tanh",
        ),
        ("figure 1", "statements | figure 1 | distance after shuffling | value", "13.10"),
        (
            "overhead",
            "statements | section VI-G | overhead of the training time, percent | value",
            "2.4",
        ),
        ("copies", "table-2 | BERT | non-private | test accuracy", "92.32"),
        ("DP-SGD at one epsilon", "table-2 | ViT | DPSGD | test accuracy", "75.56"),
        (
            "numbers of the text",
            "statements | section VI-E | accuracy below non-private, NLP | value",
            "[2, 11]",
        ),
    ],
)
def test_a_mended_paper_loses_its_contradiction(check: str, path: str, printed: str) -> None:
    assert checked(check).contradiction
    assert not checked(check, with_cell(path, printed)).failed


def test_some_are_mended_one_place_at_a_time() -> None:
    one = with_cell("texts | appendix A | title | printed", "Proof of Theorem 3")
    assert [len(checked("titles of proofs", paper).failed) for paper in (PAPER, one)] == [2, 1]
    # 99.0 % of ViT's weights are in its blocks' layers (84,999,168 of 85,875,556), 68.3 % of GPT-2's.
    one = with_cell("table-1 | ViT | shuffle ratio", "99.0")
    assert [len(checked("shuffle ratio", paper).failed) for paper in (PAPER, one)] == [5, 4]
    assert "GPT-2 100 % printed, 68.3 % moved" in checked("shuffle ratio").finding


def test_the_models_are_counted() -> None:
    # GPT-2 124,439,808 and 774,030,080 parameters, BERT-base 109,482,240 without a classifier (transformers).
    assert formulas.MODELS["GPT-2"].count == 124_439_808
    assert formulas.MODELS["GPT-2-large"].count == 774_030_080
    assert formulas.MODELS["BERT"].count == 109_482_240 + 2 * 769
    assert formulas.MODELS["ViT"].count == 85_798_656 + 100 * 769
    large = formulas.MODELS["GPT-2-large"]
    assert large.count + large.tied == 838_359_040
    assert large.places == (5120, 64)
    tiny = formulas.Architecture(width=2, layers=1, heads=2, outside=0)
    # 8 hidden units, heads of width 1: 8! permutations.
    assert tiny.log_permutations == pytest.approx(math.log(math.factorial(8)))


@pytest.mark.slow
def test_a_block_is_counted_as_torch_counts_it() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(d_model=16, nhead=4, dim_feedforward=64)
    shape = formulas.Architecture(width=16, layers=1, heads=4, outside=0)
    assert shape.count == sum(one.numel() for one in layer.parameters())
    moved = [layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias, layer.self_attn.out_proj.weight]
    moved += [layer.linear1.weight, layer.linear1.bias, layer.linear2.weight]
    assert shape.moved == sum(one.numel() for one in moved)


def test_shuffling_divides_the_distance_by_the_root_of_two() -> None:
    for deviation in (0.5, 1.0, 2.0, 5.0):
        plain, mixed = (
            square(2.0, deviation) for square in (formulas.plain_square, formulas.shuffled_square)
        )
        assert plain / mixed == pytest.approx(2.0, rel=1e-12)
    # By summing over a grid of step 0.05: the densities as Fig. 1 describes them.
    axis = np.arange(-10.0, 10.0, 0.05)
    x, y = np.meshgrid(axis, axis)

    def density(u: float, v: float) -> np.ndarray:
        return np.asarray(np.exp(-0.5 * ((x - u) ** 2 + (y - v) ** 2)) / (2.0 * np.pi))

    plain = density(2.0, 0.0) - density(-2.0, 0.0)
    mixed = 0.5 * (density(2.0, 0.0) + density(0.0, 2.0) - density(-2.0, 0.0) - density(0.0, -2.0))
    for difference, square in ((plain, formulas.plain_square), (mixed, formulas.shuffled_square)):
        assert np.linalg.norm(difference) * 0.05 == pytest.approx(math.sqrt(square(2.0, 1.0)), rel=1e-9)


def test_shared_indices_leave_an_mlp_as_it_is() -> None:
    assert formulas.two_layers_moved(each_its_own=False) < 1e-12
    assert min(formulas.two_layers_moved(each_its_own=True, seed=seed) for seed in range(5)) > 0.1


def test_theorem_6_in_its_two_readings() -> None:
    first, second = (
        formulas.release_epsilon(0.24, dimension=85_800_000, delta=5e-6, zeta_2=name)
        for name in ("main text", "appendix")
    )
    assert first > 1.5 * second
    assert f"{first:.3g} by the one and {second:.3g}" in checked("Theorem 6").finding
    # In one dimension nothing is shuffled, and both are the Gaussian mechanism.
    one, other = (
        formulas.release_epsilon(2.0, dimension=1, delta=1e-5, zeta_2=name)
        for name in ("main text", "appendix")
    )
    assert one == other


def test_numbers_of_the_text() -> None:
    found = checked("numbers of the text")
    assert found.checked == len(DECLARED.entry("check", "numbers of the text", "name")["statements"])
    assert len(found.failed) == 1
    # RoBERTa on SST-2 at 0.1: 94.95 - 92.32; BERT on MNLI at 0.1: 83.27 - 73.04.
    assert "[1, 4] printed, 2.63 to 10.23 found (19 of 24 outside)" in found.finding
    for path, printed in (
        ("table-7 | index shuffle | milliseconds", "1.9799"),
        ("table-8 | GPT-2-large | E2E | shuffled", "44min32s"),
        ("table-8 | BERT | QNLI | shuffled", "28min59s"),
        ("statements | section VI-F | epochs | value", "100"),
        ("table-6 | first | theoretical epsilon", "0.1"),
    ):
        assert len(checked("numbers of the text", with_cell(path, printed)).failed) > 1


def test_durations() -> None:
    one = seconds(at(PAPER, "table-8 | GPT-2 | E2E | unshuffled"))
    assert (one.lower, one.upper) == (1800.5, 1801.5)
    with pytest.raises(ValueError, match="no duration"):
        seconds(at(PAPER, "table-3 | ViT | CIFAR-100 | Ghost, 1"))
    # ViT: 162 less 145 seconds, of 162.
    assert "ViT 10 %" in checked("overhead").finding
    assert "64" not in checked("overhead").finding
    assert "GPT-2-large 2.4 %" in checked("overhead").finding


def test_which_claims_the_cells_contradict() -> None:
    contradicted = {name for name, claim in CLAIMS.items() if contradictions(PAPER, claim)}
    assert contradicted == {
        "shuffled-nlp-best",
        "shuffled-nlp-near-non-private",
        "shuffled-large-near-non-private-bleu",
        "shuffled-overhead",
    }
    assert len(checked("conclusions").failed) == len(contradicted)
    assert {claim.test for claim in PAPER.claims} == set(DECLARED.content["test"])
    assert checked("conclusions").checked == len(CLAIMS) - 3, "three stand on figures alone"


@pytest.mark.parametrize(
    ("claim", "path", "printed"),
    [
        ("invariance-loss", "table-2 | ViT | shuffled with same sigma | test loss", "1.331"),
        ("invariance-accuracy", "table-2 | BERT | shuffled non-private | test accuracy", "92.42"),
        ("cv-best", "table-3 | ViT | CIFAR-100 | Shuffled-DPSGD, 1", "75.53"),
        ("cv-gain-falls", "table-3 | ViT | CIFAR-100 | Shuffled-DPSGD, 1", "78.61"),
        ("cv-baselines-at-chance", "table-3 | ViT | CIFAR-100 | Ghost, 0.1", "2.10"),
        ("cv-over-60", "table-3 | ViT | CIFAR-100 | Shuffled-DPSGD, 0.1", "57.31"),
        ("nlp-flat", "table-4 | BERT | SST-2 | Shuffled-DPSGD, 0.1", "86.9"),
        ("text-best-bleu", "table-5 | GPT-2 | DART | BLEU | Ghost, 1", "42.94"),
        ("text-best-meteor", "table-5 | GPT-2 | E2E | METEOR | Ghost, 1", "0.3528"),
        ("text-gain-at-small-epsilon-bleu", "table-5 | GPT-2-large | DART | BLEU | Ghost, 1", "2.36"),
        ("text-gain-at-small-epsilon-meteor", "table-5 | GPT-2 | E2E | METEOR | MixOpt, 0.1", "0.3108"),
        ("large-near-non-private-meteor", "table-5 | GPT-2-large | E2E | METEOR | Non-private", "0.4825"),
        ("large-smaller-gap-bleu", "table-5 | GPT-2 | E2E | BLEU | Shuffled-DPSGD, 1", "63.93"),
        ("large-smaller-gap-meteor", "table-5 | GPT-2-large | DART | METEOR | Shuffled-DPSGD, 1", "0.4136"),
        ("audit-below", "table-6 | second | audited epsilon", "1.7005"),
        ("index-of-dense", "table-7 | matrix multiplication | milliseconds", "616.6"),
        ("index-of-sparse", "table-7 | index shuffle | milliseconds", "1.1799"),
    ],
)
def test_a_claim_that_holds_fails_on_a_changed_cell(claim: str, path: str, printed: str) -> None:
    one = CLAIMS[f"shuffled-{claim}"]
    assert contradictions(PAPER, one) == ""
    assert contradictions(with_cell(path, printed), one)


def test_rounding_alone_contradicts_nothing() -> None:
    # "0.1 %" stands for up to 0.15: 0.9799 ms of 653.3 ms is 0.14999 %, of 653.2 ms 0.15002 %.
    claim = CLAIMS["shuffled-index-of-dense"]
    path = "table-7 | matrix multiplication | milliseconds"
    assert contradictions(with_cell(path, "653.3"), claim) == ""
    assert contradictions(with_cell(path, "652.9"), claim)
    # Equal to the digits printed: 75.55 against 75.55 is not below.
    equal = with_cell("table-3 | ViT | CIFAR-100 | Shuffled-DPSGD, 1", "75.55")
    assert contradictions(equal, CLAIMS["shuffled-cv-best"]) == ""


def test_an_unknown_test_is_refused() -> None:
    claim = replace(CLAIMS["shuffled-nlp-flat"], test="flatt")
    with pytest.raises(InputError, match="did you mean 'flat'"):
        contradictions(PAPER, claim)


def test_eq_45_by_hand() -> None:
    # 4 of 5 canaries above both others but one: at threshold 0.5 alpha = 1/4, beta = 1/5.
    inside, outside = np.array([0.9, 0.8, 0.7, 0.6, 0.1]), np.array([0.65, 0.4, 0.3, 0.2])
    expected = max(math.log((1.0 - 0.25) / 0.2), math.log((1.0 - 0.2) / 0.25))
    assert formulas.eq_45(inside, outside, delta=0.0, floor=0.2) == pytest.approx(expected)
    # Scores that say nothing of a few records give 0: both errors sum to 1 at every threshold.
    same = np.array([0.1, 0.2, 0.3, 0.4])
    assert formulas.eq_45(same, same + 0.01, delta=0.0, floor=0.25) == pytest.approx(0.0, abs=1e-12)


def test_eq_45_reads_a_leak_where_there_is_none() -> None:
    middle, low, high = formulas.null_audits(PAPER, repetitions=60, seed=1)
    assert low < middle < high
    # The printed 0.4771 and 0.7005 lie between the quantiles of audits of equal scores.
    assert low < 0.4771 < high
    assert low < 0.7005 < high
    # With a high floor little is left to choose from, and the reading shrinks.
    calm = with_cell("statements | section VI-F | alpha left out below | value", "0.2")
    assert formulas.null_audits(calm, repetitions=60, seed=1)[0] < 0.15


def test_noise_of_theorem_6() -> None:
    sigma = formulas.smallest_noise(85_800_000, 5e-6)
    assert formulas.release_epsilon(sigma, dimension=85_800_000, delta=5e-6) <= 1.0
    assert formulas.release_epsilon(sigma - 0.002, dimension=85_800_000, delta=5e-6) > 1.0
    assert f"is {sigma:.3g} c" in remark("approximation")


def test_remarks_follow_the_cells() -> None:
    assert "5 of 13 rows" in remark("implementations")
    assert "Shuffled-DPSGD 9 of 34" in remark("falls")
    risen = with_cell("table-4 | BERT | SST-2 | Shuffled-DPSGD, 1", "88.50")
    assert "Shuffled-DPSGD 8 of 34" in remark("falls", risen)
    assert " 3 print the same number" in remark("repeated")
    other = with_cell("table-4 | RoBERTa | QQP | Ghost, 1", "83.38")
    assert " 2 print the same number" in remark("repeated", other)
    # 87.62 % of 872 lies between 764 (87.6147 %) and 765 (87.7294 %).
    assert "Table IV, RoBERTa, SST-2, MixOpt, 0.1 is neither" in remark("shares")
    assert "right on 6 records more than MixOpt" in remark("chance")
    assert "not at 0.1," in remark("figure 3")
    assert "0 of the 154 numbers" in remark("not printed")
    assert "816 GB/s" in remark("products")  # 800 MB in 0.9799 ms.
    assert "ViT 20,220" in remark("epochs")  # 17 s over 0.9799 ms x 0.858.
    assert "is 0.115 a weight" in remark("weights")  # 1063.02 / sqrt(85.8e6).
    # sigma_0 = 49.1 c: advanced composition with half of delta for the 10,000 steps.
    assert "sigma_0 = 49.1 c at epsilon 1" in remark("accountants")


@pytest.mark.parametrize("sigma", ["0.24", "0.25", "0.3", "1", "4"])
def test_the_page_prints_what_theorem_6_gives(sigma: str) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {sigma} |"))
    for printed, dimension, zeta_2 in zip(
        row.split("|")[2:5], (85_800_000, 85_800_000, 1), ("appendix", "main text", "appendix"), strict=True
    ):
        epsilon = formulas.release_epsilon(float(sigma), dimension=dimension, delta=5e-6, zeta_2=zeta_2)
        assert printed.strip() == ("0" if epsilon == 0.0 else f"{epsilon:.1f}")


def test_the_page_prints_what_the_checks_find() -> None:
    found = {check.name: check for check in statements.checks(SHUFFLED, DECLARED, PAPER)}
    text, claims = found["numbers of the text"], found["conclusions"]
    assert f"{text.checked - len(text.failed)} of {text.checked} numbers" in PAGE
    assert f"{claims.checked - len(claims.failed)} of {claims.checked} conclusions" in PAGE
    for name, model in formulas.MODELS.items():
        assert f"{100 * model.share:.1f} % of {name}'s" in PAGE
    middle, low, high = formulas.null_audits(PAPER)
    assert f"{middle:.1f} in the median (5 to 95 %: {low:.1f} to {high:.1f})" in PAGE.replace("\n  ", " ")
