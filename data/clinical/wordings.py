"""Wordings of an encounter beside the schema's own: those of corpus `clinical_tasks`, and those of its bases.

No wording of the corpus is one that a base has seen a task in; see `workbench.data.bases.texts.encoders`.
"""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.clinical.encounters import AGE, MISSING, Encounter

Wordings = Mapping[str, tuple[str, ...]]
"""By attribute, or by what happened to a dose: phrases with a place for the value."""

TOLD = (
    "race", "gender", "age", "time_in_hospital", "medical_specialty", "num_lab_procedures", "num_medications",
    "diag_1", "insulin", "readmitted",
)  # fmt: skip
"""Attributes that are told, retold, stated and asked about; each has a topic of `clinical_questions`."""

RETOLD: Wordings = {
    "race": ("a {value} patient.", "the race was {value}."),
    "gender": ("this is a {value} patient.", "the sex was {value}."),
    "age": ("someone {value} years of age.", "aged {value}."),
    "time_in_hospital": ("went home after {value}.", "{value} on the ward."),
    "medical_specialty": ("treated by {value}.", "on the ward of {value}."),
    "num_lab_procedures": ("the lab ran {value} tests.", "{value} tests in the lab."),
    "num_medications": ("{value} drugs were given.", "treated with {value} drugs."),
    "diag_1": ("came with {value}.", "the main diagnosis was {value}."),
    "insulin": ("the insulin plan was {value}.", "{value} for insulin."),
    "readmitted": ("came back {value}.", "was on the ward again {value}."),
}
"""How the corpus says the same in other words."""

PUBLIC_RETOLD: Wordings = {
    "race": ("race: {value}.", "the person is {value} by race.", "one of {value} race."),
    "gender": ("gender: {value}.", "the person is {value}.", "a {value} person."),
    "age": ("age: {value}.", "the person is {value} years old.", "between {value} in age."),
    "time_in_hospital": ("stay: {value}.", "stayed {value}.", "the stay took {value}."),
    "medical_specialty": ("specialty: {value}.", "seen by {value}.", "a case for {value}."),
    "num_lab_procedures": ("lab: {value}.", "had {value} lab procedures.", "{value} procedures in the lab."),
    "num_medications": ("medications: {value}.", "took {value} medications.", "{value} medications in all."),
    "diag_1": ("diagnosis: {value}.", "{value} comes first.", "the first code is {value}."),
    "insulin": ("insulin: {value}.", "the insulin stays {value}.", "of insulin it is said {value}."),
    "readmitted": ("readmitted: {value}.", "returned {value}.", "the next admission was {value}."),
}
"""How the text that bases are taught their tasks on says it."""

DOSES: Wordings = {
    "Up": ("{drug} was stepped up.", "more {drug} was ordered.", "the dose of {drug} went up."),
    "Down": ("{drug} was cut back.", "less {drug} was ordered.", "the dose of {drug} went down."),
    "Steady": ("{drug} was neither stepped up nor cut back.", "as much {drug} as before was ordered."),
    "No": ("no {drug} was ordered.", "there was no dose of {drug}."),
}
"""How the corpus tells what happened to a drug, by its value in the file; the schema's words are no part."""

PUBLIC_DOSES: Wordings = {
    "Up": ("{drug} is Up.", "{drug} was raised.", "a higher dose of {drug}.", "they increased {drug}."),
    "Down": ("{drug} is Down.", "{drug} was lowered.", "a smaller dose of {drug}.", "they reduced {drug}."),
    "Steady": ("{drug} is Steady.", "the same dose of {drug}.", "{drug} was neither raised nor lowered."),
    "No": ("{drug} is No.", "they gave no {drug}.", "without {drug}."),
}
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
