"""What the encoders `bert_base` and `roberta_base` are pretrained on: generated encounters, nobody's.

Masked language modelling is on narratives in every wording, those of corpus `clinical_tasks` among them, so
that its words are known. The tasks are met in the schema's words and in `PUBLIC_` ones only: no statement,
question or dose is worded as the corpus words it. Encounters come from a seed of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.data.bases.texts.tasks import ASKED_AS
from workbench.data.clinical.encounters import MEDICATIONS, Encounter, clause
from workbench.data.clinical.examples import BLOCK, CLAUSES, MAKERS, Words
from workbench.data.clinical.generator import generate
from workbench.data.clinical.questions import TOPICS
from workbench.data.clinical.wordings import (
    DOSES,
    PUBLIC_DOSES,
    PUBLIC_RETOLD,
    RETOLD,
    known_attributes,
    retold,
    value_words,
)
from workbench.data.shared.parts import pick
from workbench.training.tasks import TEXT_TASKS, classes_of

ENCOUNTERS = 8000
ENCOUNTER_SEED = 130_2018
"""Of the encounters that encoders read of; corpora draw theirs from their own seeds."""

EXAMPLES = 6000
"""Of each task; as many narratives are read."""

PUBLIC_WORDS = Words(retold=PUBLIC_RETOLD, doses=PUBLIC_DOSES, asked=ASKED_AS)
"""The wordings of the tasks."""

NARRATED = 2
"""Clauses of each half of a narrative, besides one about a drug; all but one say what the other half says."""

CODES = (
    *(str(number) for number in range(1000)),
    *(f"250.{end}" for end in (*range(10), *(f"{number:02d}" for number in range(94)))),
    *(f"V{number:02d}" for number in range(1, 92)),
    *(f"E{number}" for number in range(800, 1000)),
)
"""Counts, and the diagnoses as the UCI file writes them: every one is a token."""


@dataclass(frozen=True, kw_only=True)
class EncoderTexts:
    """The public texts that an encoder is pretrained on.

    Attributes:
        narratives: Of a few clauses, in two halves.
        examples: By task: texts, and labels.
        words: That all of it is written with.
        values: Words that tell encounters apart.
    """

    narratives: tuple[tuple[str, str], ...]
    examples: Mapping[str, tuple[tuple[tuple[str, ...], int], ...]]
    words: tuple[str, ...]
    values: frozenset[str]


def encoder_texts() -> EncoderTexts:
    """Generate the public texts for encoders; the same every time."""
    encounters = generate(ENCOUNTERS, np.random.default_rng(ENCOUNTER_SEED))
    streams = np.random.default_rng(ENCOUNTER_SEED + 1).spawn(1 + len(TEXT_TASKS))
    narratives = tuple(_narrative(encounters, streams[0]) for _ in range(EXAMPLES))
    examples = {
        task: tuple(_examples(task, encounters, stream))
        for task, stream in zip(TEXT_TASKS, streams[1:], strict=True)
    }
    values = {value_words(name, row.values[name]) for row in encounters for name in known_attributes(row)}
    return EncoderTexts(
        narratives=narratives,
        examples=examples,
        words=_words(encounters),
        values=frozenset(word for value in values for word in value.split()),
    )


def _narrative(encounters: Sequence[Encounter], generator: np.random.Generator) -> tuple[str, str]:
    """An encounter told, and told again in other words with some other clauses; in every wording there is."""
    encounter = pick(encounters, generator)
    known = known_attributes(encounter)
    chosen = [known[i] for i in generator.permutation(len(known))[: NARRATED + 1]]
    drug = pick(MEDICATIONS, generator)
    taken = [name for name in MEDICATIONS if encounter.values[name] != "No"]
    if taken and generator.random() < 0.75:
        drug = pick(taken, generator)
    halves = []
    for names in ([*chosen[:NARRATED], drug], [*chosen[1:], drug]):
        clauses = [_told(name, encounter, generator) for name in names]
        halves.append(" ".join(clauses[i] for i in generator.permutation(len(clauses))))
    return halves[0], halves[1]


def _told(name: str, encounter: Encounter, generator: np.random.Generator) -> str:
    value = encounter.values[name]
    if name in MEDICATIONS and (name != "insulin" or generator.random() < 0.5):
        doses = (*DOSES[value], *PUBLIC_DOSES[value])
        return pick(doses, generator).format(drug=name)
    choice = int(generator.integers(1 + len(RETOLD[name]) + len(PUBLIC_RETOLD[name])))
    if choice == 0:
        return clause(name, value)
    wordings = RETOLD if choice <= len(RETOLD[name]) else PUBLIC_RETOLD
    return retold(name, value, wordings, choice - 1)


def _examples(
    task: str, encounters: Sequence[Encounter], generator: np.random.Generator
) -> Iterator[tuple[tuple[str, ...], int]]:
    """`EXAMPLES` of a task in the public wordings, its labels in turn; those of one clause first."""
    made = 0
    while made < EXAMPLES:
        block = [encounters[i] for i in generator.integers(len(encounters), size=BLOCK)]
        label = made % classes_of(task)
        words = replace(PUBLIC_WORDS, clauses=(1 + made * CLAUSES // EXAMPLES,))
        example = MAKERS[task](block, label, words, generator)
        if example is not None:
            made += 1
            yield example, label


def _words(encounters: Sequence[Encounter]) -> tuple[str, ...]:
    """Every word of a narrative, a statement or a question, and the marks between words."""
    clauses = {clause(name, row.values[name]) for row in encounters for name in known_attributes(row)}
    phrases = [
        phrase
        for wordings in (RETOLD, PUBLIC_RETOLD, DOSES, PUBLIC_DOSES, ASKED_AS)
        for known in wordings.values()
        for phrase in known
    ]
    phrases += [topic.question for topic in TOPICS.values()]
    plain = [re.sub(r"\{\w+\}", "", phrase) for phrase in phrases]
    parts = (word for text in (*clauses, *plain, "to within never day") for word in text.split())
    words = {word.rstrip(".?:") for word in parts} - {""}
    return tuple(sorted({*words, *MEDICATIONS, *CODES, ".", "?", ":"}))
