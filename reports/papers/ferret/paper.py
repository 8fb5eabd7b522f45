"""What contradicts itself inside FERRET, computed from its printed numbers; and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.ferret.paper_cells import (
    AUC,
    EPOCHS,
    FERRETS,
    MEAN,
    NO_BUDGET,
    SECONDS,
    TEST,
    budgets,
    mean_cell,
    number,
    stands_for,
    value,
)
from workbench.reports.papers.ferret.paper_claims import claim_check
from workbench.reports.papers.ferret.paper_statements import STATEMENTS
from workbench.reports.papers.ferret.paper_tables import average, gaps, table_checks
from workbench.reports.papers.ferret.paper_words import above, quotient, word_checks
from workbench.reports.shared.published_checks import Check, Interval

BY_SIZE = ("GPT-2", "SmolLM-360M", "BLOOM-560M", "TinyLlama-1.1B", "DeepSeek-1.5B")
"""The models from the smallest to the largest (section 6.2: 137 M to 1.78 B parameters)."""

LN_2 = math.log(2.0)


def checks(paper: PublishedPaper) -> list[Check]:
    """All checks of the paper's printed numbers, in the order of a report."""
    return [
        claim_check(paper),
        *word_checks(paper, STATEMENTS),
        ceiling_check(paper),
        steps_check(paper),
        head_room_check(paper),
        head_room_auc_check(paper),
        variants_check(paper),
        speed_by_size_check(paper),
        *table_checks(paper),
    ]


def inconsistencies(paper: PublishedPaper) -> list[str]:
    """What contradicts itself inside the paper, a sentence each; none is typed in."""
    return [check.finding for check in checks(paper) if check.contradiction]


def remarks(paper: PublishedPaper) -> list[str]:
    """What follows from the printed numbers without contradicting them, a sentence each."""
    confirmed = [
        check.finding
        for check in checks(paper)
        if check.finding and not check.contradiction and not check.failed
    ]
    damaged = [gaps(paper).finding] if gaps(paper).failed else []
    return [released_signs_remark(paper), other_epochs_remark(paper), *confirmed, *damaged]


def steps_of(paper: PublishedPaper, epochs: str) -> float:
    """T: epochs times records over the effective batch of section 6.2."""
    records, batch = (_setting(paper, name) for name in ("records", "batch size"))
    return float(epochs) * records / (batch * _setting(paper, "gradient accumulation steps"))


def sampling_rate(paper: PublishedPaper) -> float:
    """s: the effective batch of section 6.2 over its records."""
    batch = _setting(paper, "batch size") * _setting(paper, "gradient accumulation steps")
    return batch / _setting(paper, "records")


def ceiling_nats(paper: PublishedPaper, groups: float, epochs: str) -> float:
    """G T s ln 2 of Eq. 13: the largest budget that a run of so many epochs can spend."""
    return groups * steps_of(paper, epochs) * sampling_rate(paper) * LN_2


def released_signs(paper: PublishedPaper, budget: str) -> float:
    """Expected number of signs of a whole run: G T p* = epsilon / (s ln 2), whatever G and T."""
    return float(budget) / (sampling_rate(paper) * LN_2)


def ceiling_check(paper: PublishedPaper) -> Check:
    """Settings that the tables print although Theorem 1 gives them no firing probability."""
    failed, checked = [], 0
    groups = {cell.row[0]: cell.value for cell in paper.table("table-3").cells if cell.column == "groups"}
    for method in FERRETS:
        for epochs in EPOCHS if method in groups else ():
            ceiling = ceiling_nats(paper, groups[method], epochs)
            for budget in budgets(method):
                checked += 1
                cell = mean_cell(paper, TEST, (method, epochs, budget))
                if float(budget) > ceiling:
                    failed.append(
                        f"{method} at epsilon {budget} and {epochs} epoch{'s' if epochs != '1' else ''} lies "
                        f"above the ceiling G T s ln 2 = {groups[method]:g} x {steps_of(paper, epochs):g} x "
                        f"{sampling_rate(paper):g} x ln 2 = {ceiling:.4g} nats of Eq. 13, so Theorem 1 gives "
                        f"it no firing probability; Table 5 prints {cell.printed} for it"
                    )
    return _check("ceiling", checked, failed)


def steps_check(paper: PublishedPaper) -> Check:
    """Section 6.4's T and s, said to be of all runs, against section 6.2's records and batches."""
    stated, rate = (_said(paper, "section 6.4", name) for name in ("steps T, all runs", "sampling rate s"))
    off = [epochs for epochs in EPOCHS if steps_of(paper, epochs) != stated]
    failed = []
    if off:
        right = [epochs for epochs in EPOCHS if epochs not in off]
        shown = ", ".join(f"{steps_of(paper, epochs):g} at {epochs}" for epochs in EPOCHS)
        failed.append(
            f"Section 6.4 says that T = {stated:g} in all runs; section 6.2's {_setting(paper, 'records'):g} "
            f"records in batches of {sampling_rate(paper) * _setting(paper, 'records'):g} make T = {shown} "
            f"epochs: it holds for {' and '.join(right) or 'no'} epochs only"
        )
    if not math.isclose(rate, sampling_rate(paper)):
        failed.append(f"Section 6.4 says s = {rate:g}, section 6.2 gives {sampling_rate(paper):g}")
    return _check("steps", 1 + len(EPOCHS), failed)


def head_room_check(paper: PublishedPaper) -> Check:
    """Table 3's ceilings and firing probabilities from its groups, with its own T and s."""
    table = paper.table("table-3")
    steps, rate = (float(table.settings[name]) for name in ("steps", "sampling_probability"))
    failed, checked = [], 0
    for method in dict.fromkeys(cell.row[0] for cell in table.cells):
        ceiling = number(paper, "table-3", (method,), "groups") * steps * rate * LN_2
        for column, ours in (("ceiling", ceiling), ("firing probability at epsilon 0.5", 0.5 / ceiling)):
            cell = table.cell((method,), column)
            checked += 1
            if cell is not None and not Interval(ours, ours).meets(stands_for(cell, 0.0)):
                failed.append(f"Table 3, {method}, {column}: {cell.printed} printed, {ours:.4g} computed")
    right = (
        f"All {checked} ceilings and firing probabilities of Table 3 follow from its G, T = {steps:g} and "
        f"s = {rate:g}"
    )
    return _check("head-room", checked, failed, right)


def head_room_auc_check(paper: PublishedPaper) -> Check:
    """Which cells of Table 2 Table 3's mean ROC AUCs may be the mean of."""
    methods = [method for method in FERRETS if paper.table("table-3").cell((method,), AUC) is not None]
    choices = {
        f"{when}, {which}": {method: _mean_auc(paper, method, epochs, at) for method in methods}
        for when, epochs in [("all epochs", EPOCHS), *((f"{one} epochs", (one,)) for one in EPOCHS)]
        for which, at in (("epsilon 0.5", ("0.5",)), ("all epsilons", budgets(methods[0])))
    }
    shown = {method: _head_room_auc(paper, method) for method in methods}
    fits = {
        name: [method for method in methods if means[method].meets(shown[method])]
        for name, means in choices.items()
    }
    whole = [name for name, found in fits.items() if len(found) == len(methods)]
    failed = []
    if not whole:
        texts = []
        for method in methods:
            names = [name for name, found in fits.items() if method in found]
            texts.append(f"{method}'s {_middle(shown[method]):g} is that of {' or '.join(names) or 'none'}")
        failed.append(
            "No one choice of epochs and epsilons gives the mean ROC AUCs of Table 3 from the cells of Table "
            "2: " + "; ".join(texts)
        )
    right = (
        f"Of {len(choices)} choices of epochs and epsilons, the mean ROC AUCs of Table 3 for "
        f"{_and(methods)} are those of Table 2 at {' or '.join(whole)} only, within rounding"
    )
    return _check("mean ROC AUC of the head-room", len(choices), failed, right)


def variants_check(paper: PublishedPaper) -> Check:
    """Variants with results in Table 3 and nowhere else, and the other way round."""
    inside = list(dict.fromkeys(cell.row[0] for cell in paper.table("table-3").cells))
    outside = [method for method in FERRETS if paper.table("table-2").cell((method, "5"), "0.5")]
    only, lacking = ([one for one in a if one not in b] for a, b in ((inside, outside), (outside, inside)))
    failed = []
    if only or lacking:
        failed.append(
            f"Table 3 prints ROC AUCs of {_and(only)}, which no other table has and section 6.2 does not "
            f"list, and none of {_and(lacking)}, which all others have"
        )
    return _check("variants", len(inside), failed)


def speed_by_size_check(paper: PublishedPaper) -> Check:
    """Section 6.6, item 3: the speed-up over DPSGD is the largest for the largest model."""
    speed: dict[str, Interval] = {}
    for model in BY_SIZE:
        slow, fast = (
            value(paper, SECONDS, (method, "5", "0.1"), model) for method in ("DPSGD", "FERRET-MAX")
        )
        if slow is not None and fast is not None:
            speed[model] = quotient(slow, fast)
    largest = BY_SIZE[-1]
    faster = [model for model in speed if largest in speed and speed[model].lower > speed[largest].upper]
    failed = []
    if faster:
        shown = ", ".join(f"{model} {_middle(one):.3g}" for model, one in speed.items())
        failed.append(
            f"Section 6.6 says that FERRET-MAX's speed-up over DPSGD grows with the model and is the largest "
            f"for {largest}; at epsilon 0.1 and 5 epochs Tables 12 and 14 give, from the smallest model to "
            f"the largest: {shown}; {len(faster)} of {len(speed) - 1} smaller models have a larger one"
        )
    return _check("speed by size", len(speed), failed)


def released_signs_remark(paper: PublishedPaper) -> str:
    """How few signs a run releases, beside the perplexity that it is said to gain."""
    strict = budgets("FERRET-MAX")[0]
    counts = ", ".join(f"{released_signs(paper, budget):.0f} at {budget}" for budget in budgets("FERRET-MAX"))
    before = number(paper, "table-4", (MEAN,), TEST)
    after = ", ".join(
        f"{mean_cell(paper, TEST, (method, '5', strict)).value:g} with {method}" for method in FERRETS
    )
    signs = released_signs(paper, strict)
    return (
        f"Remark, not a contradiction: epsilon = G T s p* ln 2 fixes the expected number of released signs "
        f"of a whole run at epsilon / (s ln 2), whatever the granularity and the epochs: {counts}. At "
        f"epsilon {strict} Table 5 prints a mean test perplexity of {after} after 5 epochs, from {before:g} "
        f"before (Table 4). It matters because all that such a model knows of its data is about {signs:.0f} "
        f"bits: the rest is a function of public randomness (masks, directions) and of the model before "
        f"training"
    )


def other_epochs_remark(paper: PublishedPaper) -> str:
    """Which non-private run the abstract's distance is measured from."""
    near = value(paper, TEST, ("FERRET-EIGHTH", "5", "0.5"))
    said = stands_for_statement(paper, "abstract", "FERRET-EIGHTH above Non-DP, percent")
    shown, near_epochs = [], []
    for epochs in EPOCHS:
        other = value(paper, TEST, ("Non-DP", epochs, NO_BUDGET))
        if near is None or other is None:
            continue
        distance = above(quotient(near, other)).times(100.0)
        shown.append(f"{_middle(distance):+.1f} % from its {_middle(other):g} at {epochs}")
        if distance.meets(said):
            near_epochs.append(f"{epochs} epoch{'' if epochs == '1' else 's'}")
    return (
        "The abstract sets FERRET-EIGHTH at epsilon 0.5 and five epochs beside the tuned non-private run "
        f"without naming that run's epochs; it is {', '.join(shown)} epochs: the "
        f"{_said(paper, 'abstract', 'FERRET-EIGHTH above Non-DP, percent'):g} % is that of "
        f"{_and(near_epochs)}"
    )


def stands_for_statement(paper: PublishedPaper, place: str, quantity: str) -> Interval:
    """What a number of the text may stand for.

    Raises:
        KeyError: the table `statements` has no such row.
    """
    cell = paper.table("statements").cell((place, quantity), "value")
    if cell is None:
        raise KeyError(f"no statement {place}, {quantity}")
    return stands_for(cell, 0.0)


def _mean_auc(paper: PublishedPaper, method: str, epochs: Sequence[str], at: Sequence[str]) -> Interval:
    cells = [value(paper, AUC, (method, one, budget)) for one in epochs for budget in at]
    return average([cell for cell in cells if cell is not None])


def _head_room_auc(paper: PublishedPaper, method: str) -> Interval:
    cell = paper.table("table-3").cell((method,), AUC)
    if cell is None:
        raise KeyError(f"table-3 has no ROC AUC of {method}")
    return stands_for(cell, 0.0)


def _setting(paper: PublishedPaper, name: str) -> float:
    return number(paper, "section-6.2", (name,), "DPSGD and FERRET")


def _said(paper: PublishedPaper, place: str, quantity: str) -> float:
    return number(paper, "statements", (place, quantity), "value")


def _middle(interval: Interval) -> float:
    return round(0.5 * (interval.lower + interval.upper), 9)


def _and(names: Sequence[str]) -> str:
    return " and ".join(names) or "none"


def _check(name: str, checked: int, failed: list[str], right: str = "") -> Check:
    return Check(
        name=name,
        checked=checked,
        failed=tuple(failed),
        finding="; ".join(failed) if failed else right,
        contradiction=bool(failed),
    )
