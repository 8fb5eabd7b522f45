"""RLDP, section 4.3: the counts and medians that the text states, counted in the printed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import median

from workbench.attacks.claim_checks.rldp.statements import PRINTED
from workbench.attacks.claim_checks.shared.claims import counterexample_if, half_unit, setting, settle
from workbench.checks.published import published
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

Settings = Mapping[tuple[str, str], Mapping[str, str]]
"""By model and epsilon: the printed value of each method."""

VARIANTS = ("RLDP-H", "RLDP-L")


def _settings(tables: Sequence[str], column: str) -> Settings:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for cell in (cell for table in tables for cell in published("rldp").table(table).cells):
        model, epsilon, method = cell.row
        if cell.column == column:
            found.setdefault((model, epsilon), {})[method] = cell.printed
    return found


def _baselines(methods: Mapping[str, str]) -> list[Fraction]:
    return [Fraction(value) for name, value in methods.items() if name not in VARIANTS]


@register("claim_check", "rldp_auc_medians")
@setting(PRINTED)
def auc_medians(*, medians: Sequence[str] = ("-0.005", "-0.003"), rounding: str = "0.0005") -> Finding:
    """Section 4.3: the median difference from the lowest baseline's AUC is this, of RLDP_H and of RLDP_L.

    `medians`: of the two variants. `rounding`: what the printing of two AUCs may have moved a median by, over
    half a unit of the claimed one.
    """
    lines, wrong = [], None
    settings = _settings(("table-4", "table-5"), "AUC")
    for variant, claimed in zip(VARIANTS, medians, strict=True):
        gaps = [Fraction(methods[variant]) - min(_baselines(methods)) for methods in settings.values()]
        middle = median(gaps)
        better = sum(gap <= 0 for gap in gaps)
        lines.append(
            f"{variant}: median difference {float(middle):+.4f} over {len(gaps)} settings, claimed "
            f"{claimed}; "
            f"from {float(min(gaps)):+.3f} to {float(max(gaps)):+.3f}, at most 0 in {better}"
        )
        wrong = wrong or counterexample_if(
            abs(middle - Fraction(claimed)) > half_unit(claimed) + Fraction(rounding),
            f"the printed AUCs of {variant} lie a median of {float(middle):+.4f} from the lowest "
            "baseline's, not "
            f"{claimed}; they are at most it in {better} of {len(gaps)} settings",
            {"variant": variant, "median": float(middle), "claimed": claimed, "settings": len(gaps)},
        )
    return settle(
        *lines,
        proof="Both medians are those of the printed AUCs",
        proven=wrong is None,
        counterexample=wrong,
    )


@register("claim_check", "rldp_character_counts")
@setting(PRINTED)
def character_counts(*, lowest: int = 35, ties: int = 5, higher: int = 0) -> Finding:
    """Section 4.3: RLDP_H's 1-gram similarity is the lowest in 35 of 40 cells, and the other five are ties.

    `lowest`: the fewest cells in which it is lower than every baseline's. `ties`, `higher`: the most in which
    it equals the lowest baseline's, or is above it.
    """
    settings = _settings(("table-6",), "similarity")
    strictly = equal = 0
    above: list[str] = []
    for (model, epsilon), methods in settings.items():
        own, best = Fraction(methods[VARIANTS[0]]), min(_baselines(methods))
        strictly, equal = strictly + (own < best), equal + (own == best)
        if own > best:
            above.append(f"{model}, epsilon {epsilon}: {float(own):g} against {float(best):g}")
    holds = strictly >= lowest and equal <= ties and len(above) <= higher
    return settle(
        f"Table 6 has {len(settings)} cells of model and budget, four models by five budgets (the text "
        "counts "
        f"40): lower than every baseline in {strictly}, equal to the lowest in {equal}, above it in "
        f"{len(above)}",
        *above[:6],
        proof=f"It is the lowest in {strictly} cells and tied in {equal}",
        proven=holds,
        counterexample=counterexample_if(
            not holds,
            f"RLDP-H has the lowest 1-gram similarity in {strictly} of {len(settings)} printed "
            f"cells and ties in {equal}, where {lowest} and at most {ties} are claimed; a baseline is "
            "lower in "
            f"{len(above)}",
            {"lowest": strictly, "ties": equal, "above": len(above), "cells": len(settings)},
        ),
    )


@register("claim_check", "rldp_noise_floor")
@setting(PRINTED)
def noise_floor(
    *, floor: str = "0.005", tables: Sequence[str] = ("table-7", "table-8", "table-9")
) -> Finding:
    """Section 4.3: for n-grams of two and more every method's similarity is below the noise floor.

    `floor`: similarity. `tables`: of 2-, 3- and 4-grams.
    """
    cells = [
        (table, cell.row, Fraction(cell.printed) * (Fraction(1, 10**7) if table == "table-9" else 1))
        for table in tables
        for cell in published("rldp").table(table).cells
        if cell.column == "similarity"
    ]
    table, row, largest = max(cells, key=lambda cell: cell[2])
    limit = Fraction(floor)
    return settle(
        f"{len(cells)} cells, the largest {float(largest):g} ({', '.join(row)}, {table}); below {floor} in "
        f"{sum(value < limit for _, _, value in cells)}",
        "an attack that finds nothing confirms no upper bound on privacy loss",
        proof=f"Every printed similarity is below {floor}",
        proven=largest < limit,
        counterexample=counterexample_if(
            largest >= limit,
            f"{', '.join(row)} has a similarity of {float(largest):g} in {table}, not below {floor}",
            {"table": table, "row": list(row), "similarity": float(largest), "floor": floor},
        ),
    )
