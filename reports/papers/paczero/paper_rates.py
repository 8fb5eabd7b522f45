"""PACZero's accuracies as counts of records: of how many, what is chance, what the seeds tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.reports.papers.paczero.paper_cells import (
    DEV_COLUMNS,
    LARGER_CLASS,
    SST2_COLUMNS,
    TEST_RECORDS,
    cell,
    check,
    count_of,
    is_share,
    said,
    singles,
)
from workbench.reports.papers.paczero.paper_claims import chance_p
from workbench.reports.shared.published_checks import Check
from workbench.studies.report import Cell, Table, Value

METHODS = (("DPZero K=1", "20000"), ("DP-AggZO K=64", "1000"))
EPSILONS = ("0.2", "0.3", "0.5", "1.0", "2.0")

LARGEST_SET = 1000
"""Sizes of a set of test records that are tried: up to what section 4.1 says."""


def test_size_check(paper: PublishedPaper) -> Check:
    """Of how many test records the accuracies of SST-2 can be shares."""
    ones = singles(paper, SST2_COLUMNS)
    stated = round(said(paper, "section 4.1", "evaluation records").value)
    fit = [size for size in range(1, LARGEST_SET + 1) if all(is_share(one, size) for one in ones)]
    misfits = sum(not is_share(one, stated) for one in ones)
    failed = []
    if misfits:
        failed.append(
            f"Section 4.1 says {stated} evaluation records; {misfits} of the {len(ones)} single accuracies "
            f"of SST-2 that the tables print are no whole number of {stated}, and of all sizes up to "
            f"{LARGEST_SET} {_sizes(fit)} every one of them (Appendix M itself writes "
            f"{said(paper, 'appendix M', 'right answers of LoRA 6.7B, K = 4 and 16').value:g} of "
            f"{said(paper, 'appendix M', 'answers of LoRA 6.7B, K = 4 and 16').value:g}), so one run's 95 % "
            f"interval at 89 % is {_width(fit or [stated])} points wide from the test records alone"
        )
    return check("evaluation records", len(ones), failed)


def dev_size_check(paper: PublishedPaper) -> Check:
    """Whether the accuracies on the dev records are shares of the stated number."""
    ones = singles(paper, DEV_COLUMNS)
    stated = round(said(paper, "section 4.1", "dev records").value)
    misfits = [one for one in ones if not is_share(one, stated)]
    failed = (
        [f"{len(misfits)} of {len(ones)} dev accuracies are no whole number of {stated}"] if misfits else []
    )
    right = f"All {len(ones)} single dev accuracies of SST-2 are whole numbers of {stated} records, as stated"
    return check("dev records", len(ones), failed, right=right)


def chance_remark(paper: PublishedPaper) -> str:
    """What the cells that are called chance say against 50 %, with the number of test records."""
    found = list(_called_chance(paper))
    p_values = [chance_p(value) for _, value in found]
    shown = "; ".join(
        f"{name} {value:g} % ({_interval(value)}, p = {p:.2g})"
        for (name, value), p in zip(found, p_values, strict=True)
    )
    least = min(p_values)
    outcome = "None is told" if least * len(found) > 0.05 else f"Some are told (smallest p = {least:.2g})"
    return (
        f"{len(found)} cells are called chance or a passed negative control. {outcome} from 50 % at level "
        f"0.05 with Bonferroni's correction, each of one training and {TEST_RECORDS} records (exact "
        f"binomial 95 % intervals): {shown}. An interval that holds 50 % does not show chance: it leaves "
        f"room for up to {max(_limits(value)[1] for _, value in found):.1f} %; a model that says positive "
        f"of every record has {100 * LARGER_CLASS / TEST_RECORDS:.2f} %, what DPZero prints at epsilon 1.0"
    )


def cliff_remark(paper: PublishedPaper) -> str:
    """From which epsilon a single DP run is above chance."""
    parts = []
    for method, steps in METHODS:
        above = [
            epsilon
            for epsilon in EPSILONS
            if _limits(cell(paper, "table-3", (method, steps), epsilon).value)[0] > 50.0
        ]
        parts.append(f"{method} is from epsilon {above[0]}" if above else f"{method} is at none")
    one = cell(paper, "table-3", ("DP-AggZO K=64", "1000"), "0.5")
    return (
        f"In Table 3 the lower 95 % limit lies above 50 % as follows: {'; '.join(parts)}. So below epsilon "
        f"1, where the abstract sees no usable utility of prior methods, DP-AggZO's {one.value:g} % "
        f"({_interval(one.value)}) is above chance; every cell is one training"
    )


def indistinguishable_remark(paper: PublishedPaper, confidence: float = 0.95) -> str:
    """How far apart the cells may be that are called statistically equivalent or indistinguishable.

    Args:
        paper: PACZero's printed numbers.
        confidence: 1 - confidence is the level of the two one-sided tests.
    """
    shown, single = [], []
    for name, one, other in _equivalences(paper):
        if one is None or other is None or len(one) < 2 or len(other) < 2:
            single.append(f"{name} {_side(paper, name)}")
            continue
        gap, lower, upper, p_value = welch(one, other, confidence=2.0 * confidence - 1.0)
        shown.append(
            f"{name}: {gap:+.2f} ({lower:+.2f} to {upper:+.2f}; p = {p_value:.2g}), equivalent at a margin "
            f"of {max(-lower, upper):.1f} points or more"
        )
    return (
        "Table 1's bold cells are called equivalent to the best PACZero-MI cell or above it (read within "
        "their track: within the column, no LoRA cell of SQuAD is near the best of FT), and the pool of M "
        "= 128 indistinguishable from that of M = 126; no test or margin is given. Welch's "
        f"{100 * (2 * confidence - 1):g} % intervals over seeds (two one-sided tests at "
        f"{1 - confidence:.2g}): {'; '.join(shown)}. Where a side has one seed only the order is known: "
        f"{', '.join(single)}"
    )


def order_remark(paper: PublishedPaper) -> str:
    """FT against LoRA at 6.7B, canonical and headline."""
    row = {"FT": ("FT", "6.7B"), "LoRA": ("LoRA", "6.7B")}
    headline = [_row(paper, "table-5", row[track]) for track in ("FT", "LoRA")]
    canonical = [
        [cell(paper, "table-17", (seed,), "test").value for seed in ("0", "1", "2")],
        [cell(paper, "table-15", ("500",), f"seed {seed}, test").value for seed in ("0", "1", "2")],
    ]
    texts = []
    for name, (one, other) in (("canonical", canonical), ("headline", headline)):
        gap, lower, upper, p_value = welch(one, other, confidence=0.95)
        texts.append(f"{gap:+.2f} in the {name} cells (95 % {lower:+.1f} to {upper:+.1f}, p = {p_value:.2g})")
    return (
        "Appendix L sets FT above LoRA at 6.7B; PACZero-ZPL's difference is "
        f"{' and '.join(texts)}: three seeds a side do not decide its sign"
    )


def cliff_table(paper: PublishedPaper, confidence: float) -> Table:
    """Table 3 with exact binomial intervals and the p-value against 50 %.

    Args:
        paper: PACZero's printed numbers.
        confidence: Of the intervals.
    """
    rows = []
    for method, steps in METHODS:
        cells = []
        for epsilon in EPSILONS:
            one = cell(paper, "table-3", (method, steps), epsilon)
            lower, upper = _limits(one.value, confidence)
            ours = Value(estimate=one.value, lower=lower, upper=upper, n=TEST_RECORDS)
            cells.append(Cell(paper=one, ours=ours))
        rows.append(((method, steps), tuple(cells)))
    return Table(
        id="paper-cliff",
        title="The paper's DP cells with the uncertainty of its test records",
        row_headers=("method", "T"),
        columns=EPSILONS,
        rows=tuple(rows),
        notes=(
            f'All numbers are the paper\'s; "ours" adds the exact binomial {100 * confidence:g} % interval '
            "of "
            f"one training's accuracy on {TEST_RECORDS} records. How trainings differ is not in it: one "
            "seed each.",
        ),
        decimals=dict.fromkeys(EPSILONS, 2),
    )


def welch(
    one: Sequence[float], other: Sequence[float], *, confidence: float
) -> tuple[float, float, float, float]:
    """Difference of means, Welch's interval, and the two-sided p-value.

    Args:
        one, other: Seeds' values, at least two of each.
        confidence: Of the interval.
    """
    from scipy import stats

    answer = stats.ttest_ind(one, other, equal_var=False)
    interval = answer.confidence_interval(confidence)
    gap = float(sum(one) / len(one) - sum(other) / len(other))
    return gap, float(interval.low), float(interval.high), float(answer.pvalue)


def limits(percent: float, records: int = TEST_RECORDS, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided binomial interval of a printed accuracy, in percent.

    Args:
        percent: Printed.
        records: It is a share of.
        confidence: Of the interval.
    """
    right, level = count_of(percent, records), 0.5 * (1.0 - confidence)
    return 100.0 * binomial_lower(right, records, level), 100.0 * binomial_upper(right, records, level)


def _limits(percent: float, confidence: float = 0.95) -> tuple[float, float]:
    return limits(percent, TEST_RECORDS, confidence)


def _interval(percent: float) -> str:
    lower, upper = _limits(percent)
    return f"{lower:.1f} to {upper:.1f}"


def _called_chance(paper: PublishedPaper) -> Iterator[tuple[str, float]]:
    for method, epsilons in (("DPZero K=1", EPSILONS[:4]), ("DP-AggZO K=64", EPSILONS[:2])):
        for epsilon in epsilons:
            one = next(
                one for one in paper.table("table-3").cells if (one.row[0], one.column) == (method, epsilon)
            )
            yield f"{method} at epsilon {epsilon}", one.value
    yield (
        "DP-AggZO K=64 at 0.2 and T = 2000",
        said(paper, "section 4.2", "DP-AggZO at epsilon 0.2, T = 2000").value,
    )
    yield "random_sign", cell(paper, "table-12", ("random_sign", "2000"), "test").value


def _equivalences(
    paper: PublishedPaper,
) -> Iterator[tuple[str, list[float] | None, list[float] | None]]:
    """Name, PACZero-ZPL's seeds and the best PACZero-MI cell's of its track; None where not printed."""
    for name in paper.table("table-1").settings["bold"].split("; "):
        track, column = name.split(" ", 1)
        task, model = column.split(" ")
        best = max(
            (cell(paper, "table-1", (track, nats, "PACZero-MI"), column) for nats in _BUDGETS),
            key=lambda one: one.value,
        )
        if task == "SST-2":
            nats = best.row[1].removesuffix(" nats")
            yield name, _row(paper, "table-5", (track, model)), _row(paper, "table-4", (track, model, nats))
        else:
            yield name, None, None
    canonical = [cell(paper, "table-13", ("FT", "1.3B", "infinite"), n).value for n in ("1st", "2nd", "3rd")]
    yield "M = 128 less M = 126 (FT 1.3B)", canonical, _row(paper, "table-5", ("FT", "1.3B"))


def _side(paper: PublishedPaper, name: str) -> str:
    """A bold cell less the best PACZero-MI cell of its track, by the printed means."""
    track, column = name.split(" ", 1)
    best = max(cell(paper, "table-1", (track, nats, "PACZero-MI"), column).value for nats in _BUDGETS)
    mine = cell(paper, "table-1", (track, "0 nats", "PACZero-ZPL"), column).value
    return f"{mine - best:+.2f}"


_BUDGETS = ("0.33 nats", "0.68 nats")


def _row(paper: PublishedPaper, table: str, row: tuple[str, ...]) -> list[float]:
    found: list[PublishedCell | None] = [
        paper.table(table).cell(row, column) for column in ("1st", "2nd", "3rd", "4th")
    ]
    return [one.value for one in found if one is not None]


def _sizes(fit: Sequence[int]) -> str:
    if not fit:
        return "none explains"
    return f"only {' and '.join(map(str, fit))} explain{'s' if len(fit) == 1 else ''}"


def _width(fit: Sequence[int]) -> str:
    lower, upper = limits(89.0, min(fit))
    return f"{math.ceil(10.0 * (upper - lower)) / 10.0:.1f}"
