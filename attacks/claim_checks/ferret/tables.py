"""FERRET, section 6: the printed settings, head-rooms, firings and membership AUCs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from workbench.attacks.accountant_checks.proof import real
from workbench.attacks.claim_checks.ferret.statements import eq_8
from workbench.attacks.claim_checks.shared.claims import (
    ball,
    counterexample_if,
    in_balls,
    is_proven,
    prove_that,
    rounds_to,
    setting,
    settle,
    show,
)
from workbench.checks.published import published
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding, assume

TABLE_3 = (
    ("FERRET-MAX", 200, "693", "7.2e-4"),
    ("FERRET-HALF", 100, "347", "1.4e-3"),
    ("FERRET-QUARTER", 50, "173", "2.9e-3"),
    ("FERRET-2", 2, "6.93", "0.072"),
)
"""Section 6.4, Table 3: variant, G, ceiling in nats, p* at 0.5 nats; T = 1000, s = 0.005."""

RECORDS, BATCH = 10_000, 50
"""Section 6.2: 10,000 records, batch size 5 with 10 accumulation steps."""

BUDGETS = ("0.1", "0.5", "1", "2")
"""Section 6.2: the private budgets."""


@register("claim_check", "ferret_table_3")
@in_balls
def table_3(*, scale: float = 1.0) -> Finding:
    """Eq. 13 and Table 3: the ceilings G T s ln 2 and the p* at 0.5 nats, to the printed digits."""
    lines, wrong = [], None
    for name, groups, ceiling_printed, best_printed in TABLE_3:
        ceiling = ball(Fraction(groups * 1000 * 5, 1000)) * ball(2).log() * ball(scale)
        best = ball("0.5") / ceiling
        lines.append(f"{name}: ceiling {show(ceiling)} ({ceiling_printed}), p* {show(best)} ({best_printed})")
        for value, printed in ((ceiling, ceiling_printed), (best, best_printed)):
            wrong = wrong or counterexample_if(
                not rounds_to(value, printed),
                f"{name}: {show(value)} does not round to the printed {printed}.",
                {"variant": name, "found": show(value), "printed": printed},
            )
    return settle(
        *lines,
        "the table names HALF and QUARTER where the text has EIGHTH",
        proof="Every ceiling and every p* of Table 3 rounds to the printed digits" if wrong is None else None,
        counterexample=wrong,
    )


def expected_signs(free: str) -> Finding:
    """That the expected number of fired signs depends on neither G nor T; `free` names those in the text."""
    groups, steps = real("groups", low=1), real("steps", low=1)
    rate, budget, ln2 = real("rate", low=0, high=1), real("budget", low=0), real("ln2", low=0, high=1)
    return prove_that(
        f"the expected number of fired signs G T p* is eps / (s ln 2), whatever {free}",
        (groups * steps * (budget / (groups * steps * rate * ln2))).equals(budget / (rate * ln2)),
        rate > 0,
        ln2 > 0,
    )


@register("claim_check", "ferret_fired_signs")
@in_balls
def fired_signs(*, factor: float = 10.0) -> Finding:
    """Section 6.4: at one budget FERRET-2 fires orders of magnitude more sign bits than FERRET-MAX.

    `factor`: how many times more count as orders of magnitude.
    """
    same = expected_signs("G and T")
    run = ball("0.5") / (ball("0.005") * ball(2).log())
    few, many = run / TABLE_3[0][1], run / TABLE_3[-1][1]
    return settle(
        f"{same.verdict}: {same.summary}",
        f"0.5 nats, T = 1000, s = 0.005: {show(run)} signs in a run of either variant; a group fires "
        f"{show(few)} of FERRET-MAX's and {show(many)} of FERRET-2's",
        proof=f"A group of FERRET-2 fires {show(many / few, 4)} times as often",
        proven=many > ball(factor) * few,
        counterexample=counterexample_if(
            is_proven(same),
            f"A run of either variant releases {show(run)} signs at 0.5 nats (section 6.7 says so too).",
            {"FERRET-MAX": show(run), "FERRET-2": show(run)},
        ),
        assumption=assume(
            "the signs of one group are counted, not those of the run",
            lambda counted: counted == "of one group",
            left_open={"signs that are counted": ("of one group", "of the run")},
        ),
    )


@register("claim_check", "ferret_budgets")
@in_balls
def budgets(*, epochs: Sequence[int] = (1, 3, 5), scale: float = 1.0) -> Finding:
    """Section 6.2: p* of Theorem 1 exists for every variant (G >= 2), budget and number of epochs.

    `epochs`: lengths of the runs. `scale`: multiplies the ceilings.
    """
    lines, wrong = [], None
    for count in epochs:
        steps = count * RECORDS // BATCH
        ceiling = ball(Fraction(2 * steps * BATCH, RECORDS)) * ball(2).log() * ball(scale)
        for budget in BUDGETS:
            best = ball(budget) / ceiling
            lines.append(f"FERRET-2, {count} epochs ({steps} steps), {budget} nats: p* = {show(best)}")
            wrong = wrong or counterexample_if(
                best >= 1,
                f"FERRET-2 for {count} epoch(s) ({steps} steps of {BATCH} among {RECORDS} records) has a "
                f"ceiling of {show(ceiling)} nats, below its budget of {budget}: p* would be {show(best)}.",
                {"groups": 2, "steps": steps, "budget_nats": budget, "p": show(best)},
            )
    fixed = ball(10) * ball(2).log() * ball(scale)
    good = all(ball(budget) < fixed for budget in BUDGETS)
    return settle(
        *lines,
        "a p* above 1, clipped to 1, leaks less than the budget: an error on the safe side",
        proof="p* lies in (0, 1) at every budget for two groups, and a fortiori for more" if good else None,
        counterexample=wrong,
        assumption=assume(
            "T = 1000 is taken for every run, as section 6.4 does, although it is five epochs' length",
            lambda steps: steps == 1000,
            left_open={"T in Theorem 1": (1000, "the run's own")},
        ),
        assumed=wrong,
    )


@register("claim_check", "ferret_identical_guarantees")
@in_balls
def identical_guarantees(*, scale: float = 1.0, budgets: Sequence[str] = BUDGETS) -> Finding:
    """Sections 6.4 and 7.4: variants with different numbers of groups are guaranteed the same nats.

    That the number of Eq. 8 is the same is arithmetic; that it is a guarantee is Eq. 8's own entry, on whose
    verdict and assumption this one rests.

    `scale`: multiplies the p* of the variant with most groups. `budgets`: nats.
    """
    bound = eq_8()
    lines, wrong = [], None
    for budget, (name, groups, _, _) in product(budgets, TABLE_3):
        ceiling = ball(Fraction(groups * 5)) * ball(2).log()
        best = ball(budget) / ceiling * (ball(scale) if groups == TABLE_3[0][1] else 1)
        total = ceiling * best
        lines.append(f"{name} at {budget} nats: p* = {show(best)}, by Eq. 8 {show(total, 12)} nats")
        wrong = wrong or counterexample_if(
            not (best < 1 and abs(total - ball(budget)) < ball("1e-30")),
            f"{name} spends {show(total)} nats by Eq. 8, not {budget}.",
            {"variant": name, "budget_nats": budget, "nats": show(total)},
        )
    return settle(
        *lines,
        f"Eq. 8 itself: {bound.verdict}: {bound.summary}",
        "a bound that is the same, not a leakage that is: ferret-section-5.3-head-room has the worst "
        "record's",
        proof="Every variant is guaranteed the same nats at its p*",
        proven=wrong is None and bound.verdict in (VerdictKind.PROVEN, VerdictKind.HOLDS_UNDER),
        counterexample=wrong,
        assumption=next(iter(bound.assumptions), None),
        assumed=wrong is None,
    )


@register("claim_check", "ferret_printed_auc")
@setting(
    "the paper's own attack on its own models, means over five models as printed in Table 2; arithmetic on "
    "the table, no confidence level: none is printed; an AUC of one attack bounds no other attack"
)
def printed_auc(
    *,
    variants: Sequence[str] = ("FERRET-MAX", "FERRET-EIGHTH"),
    baseline: str = "DPSGD",
    slack: str = "0.001",
) -> Finding:
    """Section 6.3: in every setting these variants' AUC is at most the baseline's.

    `variants`, `baseline`: methods of Table 2. `slack`: how far above counts as rounding.
    """
    cells = {(*cell.row, cell.column): cell.printed for cell in published("ferret").table("table-2").cells}
    means = {place: Fraction(printed.split()[0]) for place, printed in cells.items()}
    pairs = [
        (place, value, means[baseline, *place[1:]]) for place, value in means.items() if place[0] in variants
    ]
    broken = [pair for pair in pairs if pair[1] - pair[2] > Fraction(slack)]
    worst = max(pairs, key=lambda pair: pair[1] - pair[2])
    (method, epochs, epsilon), value, other = worst
    return settle(
        f"{len(pairs)} settings; above {baseline} by more than {slack} in {len(broken)}",
        *(
            f"{name}, {count} epochs, epsilon {budget}: {float(auc):.3f} where {baseline} has {float(of):.3f}"
            for (name, count, budget), auc, of in broken
        ),
        proof=f"In no setting is a printed AUC above {baseline}'s by more than {slack}",
        proven=not broken,
        counterexample=counterexample_if(
            broken,
            f"{method} has an AUC of {float(value):.3f} after {epochs} epochs at {epsilon} nats, where "
            f"{baseline} has {float(other):.3f}; it is higher in {len(broken)} of {len(pairs)} settings.",
            {"method": method, "epochs": epochs, "nats": epsilon, "auc": float(value)},
            {"baseline_auc": float(other), "settings_above": len(broken)},
        ),
    )
