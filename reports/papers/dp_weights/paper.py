"""What contradicts itself inside DP-Weights, computed from its printed numbers."""

from __future__ import annotations

import math

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.dp_weights.group_sizes import group_size_check
from workbench.reports.papers.dp_weights.identities import (
    moment_checks,
    rmse_checks,
    variation_columns,
    wilcoxon_checks,
)
from workbench.reports.papers.dp_weights.layout import GRIDS
from workbench.reports.papers.dp_weights.t_tests import t_test_checks, word_checks
from workbench.reports.shared.published_checks import (
    Check,
    Interval,
    printed,
    repeated_rows,
    repeated_tables,
    short,
)


def checks(paper: PublishedPaper) -> list[Check]:
    """All checks of the paper's printed numbers, in the order of a report."""
    return [
        repeated_tables(paper),
        moment_checks(paper),
        repeated_setting(paper),
        rmse_checks(paper),
        wilcoxon_checks(paper),
        *t_test_checks(paper),
        *word_checks(paper),
        variation_columns(paper),
        group_size_check(paper),
        composition_check(paper),
    ]


def inconsistencies(paper: PublishedPaper) -> list[str]:
    """What contradicts itself inside the paper, a sentence each; none is typed in."""
    return [check.finding for check in checks(paper) if check.contradiction]


def repeated_setting(paper: PublishedPaper) -> Check:
    """Rows that Tables 1 and 2 share although the one grid holds fixed what the other varies."""
    one, other = (paper.table(grid.means) for grid in GRIDS.values())
    check = repeated_rows(one, other)
    fixed = one.settings["epochs"]
    shared = [
        cell.row[0] for cell in other.cells if any(f"epochs {cell.row[0]}," in text for text in check.failed)
    ]
    if not check.failed or fixed in shared:
        return Check(name="repeated setting", checked=check.checked)
    return Check(
        name="repeated setting",
        checked=check.checked,
        failed=check.failed,
        finding=(
            f"{check.finding}; but section 5.1.3 says that the batch sizes were compared at {fixed} epochs, "
            f"and no batch size of {short(one)} has the numbers of epochs {fixed} in {short(other)}"
        ),
        contradiction=True,
    )


def composition_check(paper: PublishedPaper) -> Check:
    """The delta of section 4.2 against delta = 1 / N^2 (section 3.1) with the N of section 3.2."""
    section = paper.table("section-4.2")
    times, epsilon, delta = (
        printed(section, (row,), "value")[0] for row in ("compositions", "composed epsilon", "composed delta")
    )
    single = float(section.settings["epsilon"])
    from_delta = Interval.of(delta).times(1.0 / (times.value + 1.0))
    from_epsilon = math.exp(-((epsilon.value / single) ** 2) / (2.0 * times.value))
    records = int(paper.table("table-1").settings["members"])
    stated = records**-2.0
    agree = Interval(from_epsilon, from_epsilon).meets(from_delta)
    wrong = not Interval(stated, stated).meets(from_delta)
    return Check(
        name="delta of the composition",
        checked=2,
        finding=(
            f"{section.place} prints a composed epsilon and delta that are those of delta = "
            f"{from_epsilon:.3g}{'' if agree else f' and {delta.value / (times.value + 1.0):.3g}'} at each "
            f"of {times.value:g} compositions; sections 3.1 and 3.2 give 1 / N² = {stated:.3g} with N = "
            f"{records}; section 4.2 states no N of its own"
        )
        if wrong
        else "",
        contradiction=wrong,
    )
