"""Records of hospital encounters with their narratives: data to text, in the place of E2E and DART.

One record is one encounter of the corpus `clinical`: some of its attributes as slots or triples, with the
codes of the file. Like the meaning representations of E2E and DART it has several references: the narrative
of these attributes, which says the codes in words, the same in other words, and in another order.

    >>> from workbench.data.clinical.encounters import ATTRIBUTES, Encounter
    >>> values = {**dict.fromkeys(ATTRIBUTES, "?"), "age": "[60-70)", "readmitted": "<30"}
    >>> encounter = Encounter(encounter_id="1", patient_nbr="1", values=values)
    >>> to_text(encounter, ("age", "readmitted"), "triples")
    'patient : age : 60-70 | patient : readmitted : <30'
    >>> references(encounter, ("age", "readmitted"))[1]
    'the patient is between 60 and 70 years old. the patient came back within 30 days.'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.data.clinical import encounter_corpus
from workbench.data.clinical.encounters import AGE, DESCRIPTIONS, MISSING, TABLES, Encounter, clause
from workbench.data.shared.parts import checked_count, checked_seed, part_sizes
from workbench.interfaces import Corpus, Record

SLOTS: Mapping[str, str] = TABLES["slots"]
"""What an attribute is called in a record, in the order of the schema."""

FORMS = ("slots", "triples")

SUBJECT = "patient"
"""First part of every triple."""

FEWEST_CLAUSES = 2

IN_OTHER_WORDS: Mapping[str, str] = TABLES["in_other_words"]
"""Another wording of a clause, by attribute, for all values but those of `SAID_ANEW`."""

SAID_ANEW: Mapping[str, Mapping[str, str]] = TABLES["said_anew"]
"""Another wording of a clause, by attribute and value."""


def slot_value(attribute: str, value: str) -> str:
    """A value as a record has it: a code of the file, with a unit where there is one."""
    if value == MISSING:
        return value
    if attribute == "age":
        decade = AGE.fullmatch(value)
        return value if decade is None else f"{decade[1]}-{decade[2]}"
    return _days(value) if attribute == "time_in_hospital" else value


def _days(value: str) -> str:
    return f"{value} {'day' if value == '1' else 'days'}"


def in_other_words(attribute: str, value: str) -> str:
    """A clause that says what the verbaliser's says, in other words."""
    text = clause(attribute, value)
    if value == MISSING:
        return f"the {SLOTS[attribute]} of the patient is not known."
    if value in SAID_ANEW.get(attribute, {}):
        return SAID_ANEW[attribute][value]
    if attribute == "age":
        return f"the patient is between {' and '.join(slot_value(attribute, value).split('-'))} years old."
    if attribute == "admission_type_id":
        value = DESCRIPTIONS["admission_type_id"][value]
    if attribute in IN_OTHER_WORDS:
        return IN_OTHER_WORDS[attribute].format(slot_value(attribute, value))
    return text


def to_text(encounter: Encounter, attributes: Sequence[str], form: str) -> str:
    """Some attributes of an encounter, in the given order, as `"slots"` (as E2E) or `"triples"` (as DART)."""
    values = [(SLOTS[name], slot_value(name, encounter.values[name])) for name in attributes]
    if form == "triples":
        return " | ".join(f"{SUBJECT} : {slot} : {value}" for slot, value in values)
    return " | ".join(f"{slot}[{value}]" for slot, value in values)


def references(encounter: Encounter, attributes: Sequence[str]) -> tuple[str, ...]:
    """Narratives of some attributes: the verbaliser's, another wording, and the first in reverse order."""
    try:
        clauses = [clause(name, encounter.values[name]) for name in attributes]
        anew = [in_other_words(name, encounter.values[name]) for name in attributes]
    except InputError as error:
        raise InputError(f"encounter {encounter.encounter_id!r}: {error}") from error
    return tuple(dict.fromkeys(" ".join(wording) for wording in (clauses, anew, clauses[::-1])))


def to_record(encounter: Encounter, form: str, clauses: int, generator: np.random.Generator) -> Record:
    """A record of an encounter, of attributes that are drawn, in the order of the schema."""
    names = tuple(SLOTS)
    drawn = np.sort(generator.permutation(len(names))[:clauses])
    attributes = [names[i] for i in drawn]
    return Record(
        id=f"clinical_records-{encounter.encounter_id}",
        text=to_text(encounter, attributes, form),
        answers=references(encounter, attributes),
    )


@register("corpus", "clinical_records")
def clinical_records(
    *,
    size: int,
    seed: int,
    form: str = "slots",
    clauses: int = 4,
    path: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Records of hospital encounters, to be told as narratives (as E2E and DART); generated, or UCI's.

    No two records are alike. `Record.answers` holds a record's references, of which the first, the
    verbaliser's narrative without its opening, is trained on. Public records follow the private ones'
    distribution.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        form: "slots" (`age[60-70] | stay[3 days]`, as E2E) or "triples" (`patient : age : 60-70`, as DART).
        clauses: Attributes of a record, 2 to 10. A record of four with its narrative has at most about a
            hundred tokens of the small bases.
        path: The real `diabetic_data.csv`; None generates.

    Raises `InputError`: a parameter or the file is unusable.
    """
    if form not in FORMS:
        raise unknown_name("form", form, FORMS)
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    checked_count("clauses", clauses, minimum=FEWEST_CLAUSES)
    if clauses > len(SLOTS):
        raise InputError(f"clauses must be at most {len(SLOTS)}, got {clauses}")

    def make(encounter: Encounter) -> Record:
        return to_record(encounter, form, clauses, generator)

    return encounter_corpus(
        "clinical_records",
        make,
        sizes,
        generator,
        path,
        apart=f"{clauses} clauses tell {{}} generated records apart",
        unit="record",
        origin="records and narratives of ours about {what}",
    )
