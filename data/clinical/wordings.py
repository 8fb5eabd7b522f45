"""Wordings of an encounter beside the schema's own: those of corpus `clinical_tasks`, and those of its bases.

No wording of the corpus is one that a base has seen a task in; see `workbench.data.bases.texts.encoders`.
"""

from __future__ import annotations

from workbench.data.clinical.encounters import AGE, MISSING, Encounter, Wordings, wordings_of

TOLD = (
    "race", "gender", "age", "time_in_hospital", "medical_specialty", "num_lab_procedures", "num_medications",
    "diag_1", "insulin", "readmitted",
)  # fmt: skip
"""Attributes that are told, retold, stated and asked about; each has a topic of `clinical_questions`."""

RETOLD = wordings_of("retold")
"""How the corpus says the same in other words."""

PUBLIC_RETOLD = wordings_of("public_retold")
"""How the text that bases are taught their tasks on says it."""

DOSES = wordings_of("doses")
"""How the corpus tells what happened to a drug, by its value in the file; the schema's words are no part."""

PUBLIC_DOSES = wordings_of("public_doses")
"""How the text that bases are taught on tells it."""

_WHEN = {"<30": "within 30 days", ">30": "after 30 days", "NO": "never"}


def value_words(attribute: str, value: str) -> str:
    """A value as it stands in a phrase."""
    if attribute == "readmitted":
        return _WHEN.get(value, value)
    if attribute == "time_in_hospital":
        return f"{value} {'day' if value == '1' else 'days'}"
    decade = AGE.fullmatch(value) if attribute == "age" else None
    return f"{decade[1]} to {decade[2]}" if decade is not None else value


def retold(attribute: str, value: str, wordings: Wordings, choice: int) -> str:
    """An attribute in one of its wordings; `choice` counts modulo their number."""
    known = wordings[attribute]
    return known[choice % len(known)].format(value=value_words(attribute, value))


def known_attributes(encounter: Encounter) -> tuple[str, ...]:
    """The told attributes that an encounter has a value of."""
    return tuple(name for name in TOLD if encounter.values[name] != MISSING)
