"""DP-Weights, sections 3.6, 5.1.3 and 8.2: the printed tables, and the series for the exponential."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from workbench.attacks.claim_checks.shared.claims import (
    ball,
    counterexample_if,
    setting,
    settle,
    show,
)
from workbench.checks.published import published
from workbench.core.registry import register
from workbench.interfaces.findings import Finding


@register("claim_check", "dp_weights_separate_tables")
@setting("the paper's own tables as printed; arithmetic on them, the runs are not repeated")
def separate_tables(
    *, tables: Sequence[str] = ("table-4", "table-5", "table-10"), share: str = "1/2"
) -> Finding:
    """Sections 5.1.3 and 8.2: tables of different epochs and batch sizes hold the results of different runs.

    `tables`: which. `share`: of the cells of a pair; more cells than that with the same printed digits are
    taken for one set of runs that was printed twice.
    """
    cells = {
        name: {(*cell.row, cell.column): cell.printed for cell in published("dp_weights").table(name).cells}
        for name in tables
    }
    titles = {name: published("dp_weights").table(name).title for name in tables}
    lines, wrong = [], None
    for first, second in combinations(tables, 2):
        both = cells[first].keys() & cells[second].keys()
        # Correlations that are printed as "nan" are the same whatever the runs were.
        told = [place for place in both if cells[first][place] != "nan" or cells[second][place] != "nan"]
        same = sum(cells[first][place] == cells[second][place] for place in told)
        lines.append(
            f"{titles[first]}, and {titles[second]}: {same} of {len(told)} cells agree in all digits"
        )
        wrong = wrong or counterexample_if(
            same > Fraction(share) * len(told),
            f"{first} ({titles[first]}) and {second} ({titles[second]}) print the same digits in {same} of "
            f"{len(told)} cells, so that they are one set of runs",
            {"tables": [first, second], "same_cells": same, "cells": len(told)},
        )
    return settle(
        *lines,
        proof=f"No two of the tables agree in more than {share} of their cells",
        proven=wrong is None,
        counterexample=wrong,
    )


@register("claim_check", "dp_weights_taylor")
@setting("densities of one noisy weight and the series that Algorithm 2 takes for them; balls of 192 bits")
def taylor(
    *, terms: int = 10, deviations: Sequence[str] = ("0", "1", "2", "3", "4", "5"), error: str = "1/100"
) -> Finding:
    """Algorithm 2: TaylorExp(x, terms), the series cut after so many terms, stands for the exponential.

    `terms`: the constant one included; left open in print. `deviations`: how far from the weight the density
    is taken, in standard deviations; the argument is minus half their square. `error`: relative, that passes.
    """
    lines, wrong = [], None
    for distance in deviations:
        argument = -(ball(distance) ** 2) / 2
        value = power = ball(1)
        for i in range(1, terms):
            power = power * argument / i
            value += power
        exact = argument.exp()
        lines.append(f"{distance} deviations: {show(value, 4)} for {show(exact, 4)}")
        wrong = wrong or counterexample_if(
            abs(value - exact) > ball(error) * exact,
            f"{distance} deviations from the weight the series of {terms} terms says {show(value, 4)} "
            f"where the exponential is {show(exact, 4)}" + (", a density below 0" if value < 0 else ""),
            {"terms": terms, "deviations": distance, "series": show(value), "exponential": show(exact)},
        )
    return settle(
        *lines,
        "Algorithm 2 leaves the number of terms open; far from the weight any fixed number fails, for a "
        "polynomial grows where the exponential vanishes",
        proof=f"{terms} terms are within {error} of the exponential at these distances",
        proven=wrong is None,
        counterexample=wrong,
    )
