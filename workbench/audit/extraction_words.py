"""Canary extraction in plain words: what each subject tells of its planted secrets, beside what chance gives.

Everything is read from the details of attack `canary_extraction`; the verdict is the attack's own, repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from workbench.core.keys import JSON

Form = Mapping[str, JSON]

HEADING = "Canary extraction"
SHOWN, NOT_SHOWN = "MEMORISED", "NOT SHOWN"

NGRAMS = (1, 2, 3, 4)


def extraction_forms(subjects: Sequence[Form]) -> list[dict[str, JSON]]:
    """One form for each subject from which planted secrets were to be extracted; empty for none.

    Args:
        subjects: Judged subjects, as they stand in a report.

    Returns:
        Forms with `subject`, `role`, `verdict` (`SHOWN` or `NOT_SHOWN`), what it `says` in sentences, and the
        `rows` of a table: `name`, `measured`, `chance` (with the range that holds 95 % of secrets never
        trained on, where there is one) and `p_value`.
    """
    forms = []
    for subject in subjects:
        for attack in subject["attacks"]:
            details = attack["details"]
            if "memorised" in details:
                numbers = {name: float(value) for name, value in details.items()}
                forms.append(
                    {
                        "subject": str(subject["name"]),
                        "role": str(subject["role"]),
                        "verdict": SHOWN if numbers["memorised"] else NOT_SHOWN,
                        "says": _sentences(str(subject["name"]), numbers),
                        "rows": _rows(numbers),
                    }
                )
    return forms


def _sentences(name: str, numbers: Mapping[str, float]) -> list[str]:
    count, insertions = round(numbers["secrets"]), round(numbers["insertions"])
    p_value, sure = _shown(numbers["memorised_p_value"]), f"{100.0 * numbers['confidence']:.4g} %"
    planted = (
        f"{count} secrets were planted, each in {insertions} training record{'s' * (insertions > 1)}; a "
        f"secret was trained on {numbers['presentations']:.3g} times, in expectation."
    )
    if numbers["memorised"]:
        verdict = f"{name} depends on its planted secrets: memorised, at {sure} confidence (p = {p_value})."
        found = (
            f"{_count(numbers['secrets_recovered'])} of {count} are generated verbatim, in "
            f"{_count(numbers['exact_matches'])} of {_count(numbers['generated'])} continuations; "
            f"{_count(numbers['secrets_memorised'])} of {count} are memorised by their likelihood alone."
        )
    else:
        verdict = (
            f"That {name} memorised its planted secrets is not shown (p = {p_value}, at {sure} confidence); "
            "this is no statement that they are private."
        )
        found = _power(count, numbers)
    return [verdict, planted, found, _beside(insertions)]


def _power(count: int, numbers: Mapping[str, float]) -> str:
    """What the tests would have shown."""
    needed = round(numbers["secrets_for_power"])
    likely = (
        f"{needed} fully memorised secret{'s' * (needed != 1)} of {count}, with a probability of 80 %"
        if needed <= count
        else f"not even {count} fully memorised secrets"
    )
    return (
        f"What would have been shown: {likely}; a mean exposure of {_shown(numbers['exposure_called'])} bits "
        f"or more; a verbatim beginning of {_count(numbers['prefix_called'])} characters or more."
    )


def _beside(insertions: int) -> str:
    """What the verdict has to do with the claim."""
    group = (
        f"Group privacy multiplies a claim's epsilon by the {insertions} records that tell a secret: this"
        if insertions > 1
        else "This"
    )
    return f"{group} verdict is beside the claim, and has no part in the exit code."


def _rows(numbers: Mapping[str, float]) -> list[dict[str, JSON]]:
    bits = {name: _shown(numbers[f"exposure_{name}"]) for name in ("mean", "most", "low", "high", "highest")}
    generated = f"of {_count(numbers['generated'])}"
    return [
        _row(
            f"mean exposure, bits (at most {bits['most']})",
            bits["mean"],
            _chance(numbers, "exposure"),
            numbers["exposure_p_value"],
        ),
        _row("its interval among all secrets there are", f"{bits['low']} to {bits['high']}"),
        _row("likeliest secret's exposure, bits", bits["highest"], p_value=numbers["secret_p_value"]),
        _row(
            "verbatim continuations",
            f"{_count(numbers['exact_matches'])} {generated}",
            _shown(numbers["chance_exact_matches"]),
        ),
        _row(
            "longest verbatim beginning, characters",
            _count(numbers["prefix_matches"]),
            _shown(numbers["chance_prefix"]),
            numbers["prefix_p_value"],
        ),
        _row("valid continuations", f"{_count(numbers['valid'])} {generated}"),
        *(
            _row(
                f"their mean {n}-gram similarity",
                _shown(numbers[f"jaccard_{n}"]),
                _chance(numbers, f"jaccard_{n}"),
                numbers[f"jaccard_{n}_p_value"],
            )
            for n in NGRAMS
        ),
    ]


def _row(name: str, measured: str, chance: str = "-", p_value: float | None = None) -> dict[str, JSON]:
    shown = "-" if p_value is None else _shown(p_value)
    return {"name": name, "measured": measured, "chance": chance, "p_value": shown}


def _chance(numbers: Mapping[str, float], name: str) -> str:
    low, high = numbers[f"chance_{name}_low"], numbers[f"chance_{name}_high"]
    return f"{_shown(numbers[f'chance_{name}'])} [{_shown(low)} to {_shown(high)}]"


def _count(value: float) -> str:
    return f"{round(value):,}"


def _shown(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "none"
