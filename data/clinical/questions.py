"""Questions about pseudo-clinical narratives, whose answers are spans of the narrative: extractive, as SQuAD.

One record is one encounter of the corpus `clinical` in a few clauses, and one question about one of them, in
the form that MeZO gives SQuAD (`workbench.training.tasks.question_text`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.clinical import encounter_corpus
from workbench.data.clinical.encounters import MISSING, OPENING, TABLES, Encounter, clause
from workbench.data.shared.parts import checked_count, checked_seed, part_sizes, pick
from workbench.interfaces import Corpus, Record
from workbench.training.tasks import question_text

TITLE = "Hospital encounter"

FEWEST_CLAUSES = 2


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A question about one attribute, and its answers.

    Attributes:
        question: Asked of the patient.
        answers: Patterns of the clause, of which the first group is an answer; the first is trained on.
        unanswered: Values that leave nothing to ask.
    """

    question: str
    answers: tuple[str, ...]
    unanswered: tuple[str, ...] = ()


TOPICS = {
    attribute: Topic(
        question=topic["question"],
        answers=tuple(topic["answers"]),
        unanswered=tuple(topic.get("unanswered", ())),
    )
    for attribute, topic in TABLES["topics"].items()
}
"""What can be asked, by attribute, in the order of the schema."""


def answerable(encounter: Encounter) -> tuple[str, ...]:
    """The attributes of an encounter that have an answer."""
    return tuple(
        name for name, topic in TOPICS.items() if encounter.values[name] not in (MISSING, *topic.unanswered)
    )


def narrative(encounter: Encounter, topic: str, clauses: int, generator: np.random.Generator) -> str:
    """An encounter in a few clauses, the one that is asked about among them, in the order of the schema."""
    others = [name for name in TOPICS if name != topic]
    chosen = {topic, *(others[i] for i in generator.permutation(len(others))[: clauses - 1])}
    clauses_text = (clause(name, encounter.values[name]) for name in TOPICS if name in chosen)
    return " ".join([OPENING, *clauses_text])


def answers_of(encounter: Encounter, topic: str) -> tuple[str, ...]:
    """Every answer to the question about an attribute, each a span of its clause; the first is trained on."""
    text = clause(topic, encounter.values[topic])
    matches = (re.search(pattern, text) for pattern in TOPICS[topic].answers)
    return tuple(dict.fromkeys(match[1] for match in matches if match is not None))


def to_record(encounter: Encounter, clauses: int, generator: np.random.Generator) -> Record | None:
    """A question about an encounter, drawn from those that it answers; None where it answers none."""
    known = answerable(encounter)
    if not known:
        return None
    topic = pick(known, generator)
    context = narrative(encounter, topic, clauses, generator)
    return Record(
        id=f"clinical_questions-{encounter.encounter_id}",
        text=question_text(TITLE, context, TOPICS[topic].question),
        answers=answers_of(encounter, topic),
    )


@register("corpus", "clinical_questions")
def clinical_questions(
    *,
    size: int,
    seed: int,
    clauses: int = 5,
    path: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Questions about hospital encounters, answered by a span of the text (as SQuAD); generated, or UCI's.

    No two records are alike. `Record.answers` holds every accepted span of the narrative, of which the first
    is trained on. Public records follow the private ones' distribution. `size`, `seed`, `held_out`, `public`:
    see `workbench.data.shared.parts.part_sizes`. `clauses`: clauses of a narrative, 2 to 12. `path`: the real
    `diabetic_data.csv`; None generates. Raises `InputError`: a parameter or the file is unusable.
    """
    sizes, generator = part_sizes(size, held_out, public), checked_seed(seed)
    checked_count("clauses", clauses, minimum=FEWEST_CLAUSES)
    if clauses > len(TOPICS):
        raise InputError(f"clauses must be at most {len(TOPICS)}, got {clauses}")

    def make(encounter: Encounter) -> Record | None:
        return to_record(encounter, clauses, generator)

    return encounter_corpus(
        "clinical_questions",
        make,
        sizes,
        generator,
        path,
        apart=f"{clauses} clauses tell {{}} generated questions apart",
        unit="question",
        origin="questions of ours about {what}",
    )
