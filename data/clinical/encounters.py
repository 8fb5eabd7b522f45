"""The Diabetes-130 schema: one hospital encounter, and its narrative in the manner of RLDP's Table 1.

>>> clause("age", "[60-70)")
'the patient ages between 60 and 70 years old.'
>>> clause("weight", "?")
'weight is unknown.'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

ADMISSION_TYPES = {
    "1": "Emergency", "2": "Urgent", "3": "Elective", "4": "Newborn", "5": "Not Available", "6": "NULL",
    "7": "Trauma Center", "8": "Not Mapped",
}  # fmt: skip

DISCHARGE_DISPOSITIONS = {
    "1": "Discharged to home",
    "2": "Discharged/transferred to another short term hospital",
    "3": "Discharged/transferred to SNF",
    "4": "Discharged/transferred to ICF",
    "5": "Discharged/transferred to another type of inpatient care institution",
    "6": "Discharged/transferred to home with home health service",
    "7": "Left AMA",
    "8": "Discharged/transferred to home under care of Home IV provider",
    "9": "Admitted as an inpatient to this hospital",
    "10": "Neonate discharged to another hospital for neonatal aftercare",
    "11": "Expired",
    "12": "Still patient or expected to return for outpatient services",
    "13": "Hospice / home",
    "14": "Hospice / medical facility",
    "15": "Discharged/transferred within this institution to Medicare approved swing bed",
    "16": "Discharged/transferred/referred another institution for outpatient services",
    "17": "Discharged/transferred/referred to this institution for outpatient services",
    "18": "NULL",
    "19": "Expired at home. Medicaid only, hospice",
    "20": "Expired in a medical facility. Medicaid only, hospice",
    "21": "Expired, place unknown. Medicaid only, hospice",
    "22": "Discharged/transferred to another rehab fac including rehab units of a hospital",
    "23": "Discharged/transferred to a long term care hospital",
    "24": "Discharged/transferred to a nursing facility certified under Medicaid but not certified under Medicare",  # noqa: E501
    "25": "Not Mapped",
    "26": "Unknown/Invalid",
    "27": "Discharged/transferred to a federal health care facility",
    "28": "Discharged/transferred/referred to a psychiatric hospital of psychiatric distinct part unit of a hospital",  # noqa: E501
    "29": "Discharged/transferred to a Critical Access Hospital (CAH)",
    "30": "Discharged/transferred to another Type of Health Care Institution not Defined Elsewhere",
}

ADMISSION_SOURCES = {
    "1": "Physician Referral",
    "2": "Clinic Referral",
    "3": "HMO Referral",
    "4": "Transfer from a hospital",
    "5": "Transfer from a Skilled Nursing Facility (SNF)",
    "6": "Transfer from another health care facility",
    "7": "Emergency Room",
    "8": "Court/Law Enforcement",
    "9": "Not Available",
    "10": "Transfer from critical access hospital",
    "11": "Normal Delivery",
    "12": "Premature Delivery",
    "13": "Sick Baby",
    "14": "Extramural Birth",
    "15": "Not Available",
    "17": "NULL",
    "18": "Transfer From Another Home Health Agency",
    "19": "Readmission to Same Home Health Agency",
    "20": "Not Mapped",
    "21": "Unknown/Invalid",
    "22": "Transfer from hospital inpt/same fac reslt in a sep claim",
    "23": "Born inside this hospital",
    "24": "Born outside this hospital",
    "25": "Transfer from Ambulatory Surgery Center",
    "26": "Transfer from Hospice",
}

DESCRIPTIONS: Mapping[str, Mapping[str, str]] = {
    "admission_type_id": ADMISSION_TYPES,
    "discharge_disposition_id": DISCHARGE_DISPOSITIONS,
    "admission_source_id": ADMISSION_SOURCES,
}
"""What the ids mean, as in `IDS_mapping.csv` of the UCI archive (white space and one misprint mended)."""

SENTENCES: Mapping[str, Mapping[str, str]] = {
    "change": {
        "No": "the patient's diabetic medications were not changed.",
        "Ch": "the patient's diabetic medications were changed.",
    },
    "diabetesMed": {
        "Yes": "the patient was prescribed diabetic medication.",
        "No": "the patient was not prescribed diabetic medication.",
    },
    "readmitted": {
        "<30": "the patient was readmitted in less than 30 days.",
        ">30": "the patient was readmitted in more than 30 days.",
        "NO": "the patient was not readmitted.",
    },
}
"""Attributes with a sentence for each value; Table 1 of RLDP prints the first of each kind."""

OPENING = "The patient has the following profile."

AGE = re.compile(r"\[(\d+)-(\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Encounter:
    """One row of the schema.

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
