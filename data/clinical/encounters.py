"""The Diabetes-130 schema: one hospital encounter, and its narrative in the manner of RLDP's Table 1.

>>> clause("age", "[60-70)")
'the patient ages between 60 and 70 years old.'
>>> clause("weight", "?")
'weight is unknown.'
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from workbench.core.errors import InputError

MISSING = "?"
"""How the public file writes a missing value."""

IDENTIFIERS = ("encounter_id", "patient_nbr")
"""Columns that are not verbalised: Table 1 of RLDP begins with the race."""

MEDICATIONS = (
    "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "acetohexamide", "glipizide",
    "glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol", "troglitazone",
    "tolazamide", "examide", "citoglipton", "insulin", "glyburide-metformin", "glipizide-metformin",
    "glimepiride-pioglitazone", "metformin-rosiglitazone", "metformin-pioglitazone",
)  # fmt: skip
"""The 23 medication columns of the file: each "No", "Steady", "Up" or "Down"."""

ATTRIBUTES = (
    "race", "gender", "age", "weight", "admission_type_id", "discharge_disposition_id", "admission_source_id",
    "time_in_hospital", "payer_code", "medical_specialty", "num_lab_procedures", "num_procedures",
    "num_medications", "number_outpatient", "number_emergency", "number_inpatient", "diag_1", "diag_2",
    "diag_3", "number_diagnoses", "max_glu_serum", "A1Cresult", *MEDICATIONS, "change", "diabetesMed",
    "readmitted",
)  # fmt: skip
"""The 48 verbalised columns of `diabetic_data.csv`, in its order."""

COLUMNS = (*IDENTIFIERS, *ATTRIBUTES)
"""All 50 columns of `diabetic_data.csv`, in its order."""

SHORT_ATTRIBUTES = (
    "race", "gender", "age", "time_in_hospital", "num_lab_procedures", "num_medications", "diag_1", "insulin",
    "readmitted",
)  # fmt: skip
"""The nine attributes of the short narrative, which fits into a hundred tokens or so of the embedded model:
those that tell patients apart, one for each theme of the schema (who, how long, how intensively, what for,
which treatment, with what outcome). Left out is what hardly varies, or is long for what it says."""

BRIEF_ATTRIBUTES = ("age", "time_in_hospital", "num_medications", "insulin", "readmitted")
"""The five attributes of the shortest narrative, one for each question that the short one answers but one:
some sixty tokens, for studies of many trainings."""


TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files("workbench.data").joinpath("clinical/wordings.toml").read_text("utf-8")
)
"""Words of the clinical corpora, by table."""

Wordings = Mapping[str, tuple[str, ...]]
"""By attribute, or by what happened to a dose: phrases with a place for the value."""


def wordings_of(table: str) -> Wordings:
    """The table of this name, of phrases."""
    return {name: tuple(phrases) for name, phrases in TABLES[table].items()}


DESCRIPTIONS: Mapping[str, Mapping[str, str]] = TABLES["descriptions"]
"""What the ids mean, as in `IDS_mapping.csv` of the UCI archive (white space and one misprint mended)."""

SENTENCES: Mapping[str, Mapping[str, str]] = TABLES["sentences"]
"""Attributes with a sentence for each value; Table 1 of RLDP prints the first of each kind."""

OPENING = "The patient has the following profile."

AGE = re.compile(r"\[(\d+)-(\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Encounter:
    """One hospital encounter: a row of the schema.

    Attributes:
        encounter_id: Unique in its file.
        patient_nbr: The patient's number; several encounters of the real file may share it.
        values: One string for each of `ATTRIBUTES`, written as in `diabetic_data.csv`; "?" is missing.

    Raises `InputError`: an attribute is missing or unknown.
    """

    encounter_id: str
    patient_nbr: str
    values: Mapping[str, str]

    def __post_init__(self) -> None:
        if tuple(self.values) != ATTRIBUTES:
            raise InputError(
                f"encounter {self.encounter_id!r} must have the {len(ATTRIBUTES)} attributes of the schema, "
                f"in order, got {len(self.values)}"
            )


def clause(attribute: str, value: str) -> str:
    """One attribute in words, after Table 1 of RLDP; an `InputError` for a value that the schema lacks."""
    if value == MISSING:
        return f"{attribute.replace('_', ' ')} is unknown."
    if attribute in SENTENCES:
        return _known(SENTENCES[attribute], attribute, value)
    if attribute in DESCRIPTIONS:
        value = _known(DESCRIPTIONS[attribute], attribute, value)
    if attribute == "age":
        decade = AGE.fullmatch(value)
        if decade is None:
            raise InputError(f"age must look like '[60-70)', got {value!r}")
        return f"the patient ages between {decade[1]} and {decade[2]} years old."
    if attribute == "time_in_hospital":
        return f"the patient stayed in the hospital for {value} {'day' if value == '1' else 'days'}."
    return f"{attribute.replace('_', ' ')} is {value}."


def _known(table: Mapping[str, str], attribute: str, value: str) -> str:
    if value not in table:
        raise InputError(f"{attribute} must be one of {', '.join(table)} or '?', got {value!r}")
    return table[value]


def verbalise(encounter: Encounter, attributes: Sequence[str] = ATTRIBUTES) -> str:
    """The narrative of an encounter: the opening and one clause for each attribute, in the given order."""
    try:
        clauses = [clause(attribute, encounter.values[attribute]) for attribute in attributes]
    except InputError as error:
        raise InputError(f"encounter {encounter.encounter_id!r}: {error}") from error
    return " ".join([OPENING, *clauses])
