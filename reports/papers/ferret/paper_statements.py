"""The numbers that FERRET's text prints, each with the cells that it is about."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.ferret.paper_cells import AUC, BUDGETS, FERRETS, SECONDS, TEST, stands_for
from workbench.reports.papers.ferret.paper_words import (
    ONE,
    Statement,
    Values,
    above,
    cells,
    inverse,
    percent,
    quotient,
    ratio,
    saved,
)
from workbench.reports.shared.published_checks import Interval

MAX, EIGHTH, TWO = FERRETS
DEEPSEEK, SMOLLM, TINYLLAMA, BLOOM, GPT2 = (
    "DeepSeek-1.5B",
    "SmolLM-360M",
    "TinyLlama-1.1B",
    "BLOOM-560M",
    "GPT-2",
)


def difference(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
    """FERRET-EIGHTH at epsilon 0.5 less Non-DP at 1 epoch."""
    (one,) = cells(TEST, "FERRET-EIGHTH", ("0.5",))(paper, epochs)
    (other,) = cells(TEST, "Non-DP")(paper, ("1",))
    return [one - other]


def improved(budgets: Sequence[str]) -> Values:
    """Share by which Table 7's test perplexities lie below Table 4's."""

    def values(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
        before = paper.table("table-4").cell(("Phi-3.5-mini",), TEST)
        after = [paper.table("table-7").cell((budget,), TEST) for budget in budgets]
        return [
            ONE - quotient(stands_for(cell, 0.0), stands_for(before, 0.0))
            for cell in after
            if cell is not None and before is not None
        ]

    return values


def deepseek_improved(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
    """Share by which DeepSeek-1.5B's test perplexity fell with FERRET-EIGHTH at epsilon 1."""
    before = paper.table("table-4").cell(("DeepSeek-1.5B",), TEST)
    shown = cells(TEST, "FERRET-EIGHTH", ("1.0",), "DeepSeek-1.5B")(paper, epochs)
    return [] if before is None else [ONE - quotient(one, stands_for(before, 0.0)) for one in shown]


def finer(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
    """ROC AUC of Table 3's variants with more groups than FERRET-2."""
    table = paper.table("table-3")
    return [stands_for(cell, 0.0) for cell in table.cells if cell.column == AUC and cell.row != (TWO,)]


def overfits(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
    """Perplexity of Non-DP at 5 epochs over 1."""
    early, late = (cells(TEST, "Non-DP")(paper, (number,))[0] for number in ("1", "5"))
    return [quotient(late, early)]


def gains(paper: PublishedPaper, epochs: Sequence[str]) -> list[Interval]:
    """DPSGD's perplexity over FERRET-MAX's and FERRET-EIGHTH's."""
    return [one for method in (MAX, EIGHTH) for one in ratio(TEST, ("DPSGD", method))(paper, epochs)]


def _headlines() -> tuple[Statement, ...]:
    """The abstract and section 6.9."""
    above_non_dp = ratio(TEST, (EIGHTH, "Non-DP"), ("0.5",), second_epochs="1")
    times = ratio(SECONDS, (FERRETS, "DPSGD"))
    to_eighth = ratio(TEST, ("DPSGD", EIGHTH), ("0.5",))
    return (
        Statement(
            "abstract", "perplexity of DPSGD over FERRET-EIGHTH, epsilon 0.5, 5 epochs", to_eighth, "5"
        ),
        Statement("abstract", "FERRET-EIGHTH above Non-DP, percent", percent(above_non_dp, of=above), "5"),
        Statement("abstract", "FERRET-EIGHTH above Non-DP, perplexity", difference, "5"),
        Statement("abstract", "AUC of FERRET-MAX and FERRET-EIGHTH", cells(AUC, (MAX, EIGHTH)), which="mean"),
        Statement("abstract", "AUC of Non-DP", cells(AUC, "Non-DP")),
        Statement("abstract", "AUC of FERRET-2", cells(AUC, TWO), which="mean"),
        Statement("abstract", "time over DPSGD's, percent", percent(times)),
        Statement("abstract", "DPSGD's time over FERRET's, at most", inverse(times), which="largest"),
        Statement("abstract", "perplexity of DPSGD over FERRET's, at most", gains, which="largest"),
        Statement("section 6.9", "perplexity of DPSGD over FERRET's, all budgets", gains),
        Statement("section 6.9", "AUC of FERRET", cells(AUC, MAX)),
        Statement("section 6.9", "time over DPSGD's, percent", percent(times)),
        Statement("section 6.9", "DPSGD's time over FERRET's", inverse(times)),
    )


def _privacy() -> tuple[Statement, ...]:
    """Sections 6.3, 6.4, 7.1 and 7.4."""
    lowest = "lowest AUC of FERRET-MAX, at epsilon 1"
    tiny = "AUC of TinyLlama-1.1B, "
    return (
        Statement("section 6.3", lowest, cells(AUC, MAX, ("1.0",)), which="least"),
        Statement("section 6.3", "AUC of DPSGD", cells(AUC, "DPSGD")),
        Statement("section 6.3", "AUC of FERRET-MAX, all settings", cells(AUC, MAX)),
        Statement("section 6.3", "AUC of FERRET-EIGHTH", cells(AUC, EIGHTH)),
        Statement("section 6.3", "AUC of FERRET-2", cells(AUC, TWO)),
        Statement("section 6.4", "AUC of FERRET-2", cells(AUC, TWO)),
        Statement("section 6.4", "AUC of the other variants", finer),
        Statement("section 7.1", "AUC of FERRET-MAX", cells(AUC, MAX)),
        Statement("section 7.1", "AUC of DPSGD", cells(AUC, "DPSGD")),
        Statement("section 7.1", f"{tiny}Non-DP, 1 epoch", cells(AUC, "Non-DP", (), TINYLLAMA), "1"),
        Statement(
            "section 7.1",
            f"{tiny}FERRET-MAX, 3 epochs, epsilon 0.5",
            cells(AUC, MAX, ("0.5",), TINYLLAMA),
            "3",
        ),
        Statement(
            "section 7.1", f"{tiny}FERRET-MAX, 5 epochs, epsilon 1", cells(AUC, MAX, ("1.0",), TINYLLAMA), "5"
        ),
        Statement("section 7.4", "AUC of FERRET-MAX", cells(AUC, MAX)),
        Statement("section 7.4", "AUC of DPSGD", cells(AUC, "DPSGD")),
        Statement("section 7.4", "AUC of FERRET-2", cells(AUC, TWO)),
    )


def _utility() -> tuple[Statement, ...]:
    """Section 6.5."""
    strict = ratio(TEST, ("DPSGD", MAX), ("0.1",))
    halved = ratio(TEST, ("Non-DP", EIGHTH), ("0.5",))
    improvement = "improvement of DeepSeek-1.5B with FERRET-EIGHTH at epsilon 1, percent"
    return (
        Statement("section 6.5", "perplexity of DPSGD over FERRET-MAX, epsilon 0.1, 5 epochs", strict, "5"),
        Statement("section 6.5", "perplexity of Non-DP at 5 epochs over 1 epoch", overfits, "5"),
        Statement("section 6.5", "perplexity of Non-DP over FERRET-EIGHTH, 5 epochs", halved, "5"),
        Statement("section 6.5", "perplexity of TinyLlama-1.1B with FERRET-MAX", _ppl(MAX, TINYLLAMA)),
        Statement("section 6.5", improvement, percent(deepseek_improved), "5"),
    )


def _efficiency() -> tuple[Statement, ...]:
    """Section 6.6 and the times of section 7.1."""
    most, two = (ratio(SECONDS, (method, "DPSGD")) for method in (MAX, TWO))
    share, rest = (ratio(SECONDS, (MAX, "Non-DP"), (budget,)) for budget in ("0.1", "2.0"))
    deepseek = ratio(SECONDS, ("DPSGD", MAX), ("0.1",), model=DEEPSEEK)
    of_non_dp = "time of FERRET-MAX over Non-DP's, epsilon 0.1, 5 epochs, percent"
    of_rest = "time that FERRET-MAX saves of Non-DP's, epsilon 2, 5 epochs, percent"
    return (
        Statement(
            "section 6.6", "time that FERRET-MAX saves of DPSGD's, percent", percent(most, of=saved), "5"
        ),
        Statement("section 6.6", "time that FERRET-2 saves of DPSGD's, percent", percent(two, of=saved), "5"),
        Statement("section 6.6", of_non_dp, percent(share), "5"),
        Statement("section 6.6", of_rest, percent(rest, of=saved), "5"),
        Statement("section 6.6", "DPSGD's time over FERRET-MAX's, DeepSeek-1.5B, epsilon 0.1", deepseek, "5"),
        Statement("section 7.1", "time of FERRET-MAX over DPSGD's, percent", percent(most)),
    )


def _models() -> tuple[Statement, ...]:
    """Sections 6.7 and 6.8, and the perplexities of sections 7.1 to 7.6."""
    above_non_dp = ratio(TEST, (MAX, "Non-DP"), ("0.5",), second_epochs="1")
    tiny = "perplexity of TinyLlama-1.1B, "
    bloom = "perplexity of BLOOM-560M with "
    return (
        Statement("section 6.7", "perplexity of DeepSeek-1.5B with FERRET-MAX", _ppl(MAX, DEEPSEEK)),
        Statement("section 6.7", f"{bloom}FERRET-MAX, epsilon 0.1", _ppl(MAX, BLOOM, "0.1"), "5"),
        Statement("section 6.7", f"{bloom}DPSGD, epsilon 0.1", _ppl("DPSGD", BLOOM, "0.1"), "5"),
        Statement("section 6.7", "perplexity of SmolLM-360M with FERRET-2", _ppl(TWO, SMOLLM)),
        Statement("section 6.7", "perplexity of GPT-2 with DPSGD, 5 epochs", _ppl("DPSGD", GPT2), "5"),
        Statement("section 6.7", "perplexity of GPT-2 with FERRET-MAX, 5 epochs", _ppl(MAX, GPT2), "5"),
        Statement("section 6.7", "perplexity of GPT-2 with FERRET-2, 5 epochs", _ppl(TWO, GPT2), "5"),
        Statement(
            "section 6.8",
            "improvement of Phi-3.5-mini over 5 epochs, percent",
            percent(improved(BUDGETS)),
            "5",
            "least",
        ),
        Statement(
            "section 6.8",
            "improvement of Phi-3.5-mini at epsilon 0.1, percent",
            percent(improved(("0.1",))),
            "5",
        ),
        Statement(
            "section 7.1",
            "FERRET-MAX at epsilon 0.5 above Non-DP at 1 epoch, percent",
            percent(above_non_dp, of=above),
            "5",
        ),
        Statement("section 7.1", f"{tiny}Non-DP, 1 epoch", _ppl("Non-DP", TINYLLAMA), "1"),
        Statement(
            "section 7.1", f"{tiny}FERRET-MAX, 3 epochs, epsilon 0.5", _ppl(MAX, TINYLLAMA, "0.5"), "3"
        ),
        Statement("section 7.1", f"{tiny}FERRET-MAX, 5 epochs, epsilon 1", _ppl(MAX, TINYLLAMA, "1.0"), "5"),
        Statement("section 7.5", "perplexity of FERRET-MAX at epsilon 0.1", _ppl(MAX, "", "0.1"), "5"),
        Statement("section 7.5", "perplexity of DPSGD at epsilon 0.1", _ppl("DPSGD", "", "0.1"), "5"),
        Statement("section 7.6", "perplexity of FERRET-MAX at epsilon 0.5", _ppl(MAX, "", "0.5"), "5"),
        Statement("section 7.6", "perplexity of FERRET-MAX at epsilon 1", _ppl(MAX, "", "1.0"), "5"),
        Statement("section 7.6", "perplexity of FERRET-MAX at epsilon 2", _ppl(MAX, "", "2.0"), "5"),
    )


def _ppl(method: str, model: str, *at: str) -> Values:
    return cells(TEST, method, at, model)


STATEMENTS = (*_headlines(), *_privacy(), *_utility(), *_efficiency(), *_models())
"""All of them; what the text says of the accounting (steps, ceilings, probabilities) stands elsewhere."""
