"""Examples of the four tasks on encounters: what is told, and which label it has.

Used by corpus `clinical_tasks` with its own wordings, and with others by the bases that are taught before. An
example is made from a block of encounters that no other example shares, so examples are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.data.clinical.encounters import MEDICATIONS, Encounter, Wordings, clause
from workbench.data.clinical.wordings import known_attributes, retold
from workbench.data.shared.parts import pick

BLOCK = 8
"""Encounters that an example is made from: its own, and others to compare it with."""

CLAUSES = 3
"""Of a narrative in a pair of the corpus."""

FACTS, DRUGS = 2, 3
"""Clauses of a narrative of a treatment: about the patient, and about drugs."""

Example = tuple[str, ...]
"""One text, or two."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """The wording of examples, where it is not the schema's clause.

    Attributes:
        retold: Attributes.
        doses: What happened to a drug.
        asked: Questions about attributes.
        clauses: Numbers of clauses that a narrative in a pair may have, each as likely.
    """

    retold: Wordings
    doses: Wordings
    asked: Wordings
    clauses: tuple[int, ...] = (CLAUSES,)

    def drawn_clauses(self, generator: np.random.Generator) -> int:
        """The number of clauses of a narrative."""
        return pick(self.clauses, generator)


Maker = Callable[[Sequence[Encounter], int, Words, np.random.Generator], Example | None]
"""An example of the wanted label from a block; None where the block gives none."""


def direction(encounter: Encounter) -> int:
    """Doses that were raised less doses that were lowered: their difference's sign."""
    values = [encounter.values[name] for name in MEDICATIONS]
    return int(np.sign(values.count("Up") - values.count("Down")))


def outcome(
    block: Sequence[Encounter], label: int, words: Words, generator: np.random.Generator
) -> Example | None:
    """A narrative whose treatment was, on balance, raised (1) or lowered (0)."""
    encounter = next((candidate for candidate in block if direction(candidate) == 2 * label - 1), None)
    return None if encounter is None else (treatment_text(encounter, words, generator),)


def treatment_text(encounter: Encounter, words: Words, generator: np.random.Generator) -> str:
    """Facts about the patient, and what happened to drugs, in a random order.

    Every drug whose dose was changed is told, and others up to `DRUGS`: taken ones first.
    """
    drugs = [MEDICATIONS[i] for i in generator.permutation(len(MEDICATIONS))]
    rank = {"Up": 0, "Down": 0, "Steady": 1, "No": 2}
    drugs.sort(key=lambda name: rank[encounter.values[name]])  # a stable sort: ties stay in random order
    changed = sum(rank[encounter.values[name]] == 0 for name in drugs)
    clauses = [_dose(name, encounter, words, generator) for name in drugs[: max(DRUGS, changed)]]
    facts = [name for name in known_attributes(encounter) if name != "insulin"]
    clauses += [clause(name, encounter.values[name]) for name in _some(facts, FACTS, generator)]
    return " ".join(clauses[i] for i in generator.permutation(len(clauses)))


def _dose(drug: str, encounter: Encounter, words: Words, generator: np.random.Generator) -> str:
    known = words.doses[encounter.values[drug]]
    return pick(known, generator).format(drug=drug)


def pairs(
    block: Sequence[Encounter], label: int, words: Words, generator: np.random.Generator
) -> Example | None:
    """A narrative, and another of the same encounter (1) or of the most similar one of the block (0).

    Of three clauses two speak of the same attributes; a single one does.
    """
    first, others = block[0], block[1:]
    count = words.drawn_clauses(generator)
    chosen = _some(known_attributes(first), count + 1, generator)
    shared = chosen[: max(1, count - 1)]
    more = chosen[len(shared) :][: 2 * (count - len(shared))]
    other = first if label == 1 else _alike(first, others, shared, more[1:])
    if other is None:
        return None
    second = [_retold(name, other, words, generator) for name in _mixed([*shared, *more[1:]], generator)]
    return _narrative(first, [*shared, *more[:1]], generator), " ".join(second)


def _alike(
    encounter: Encounter, others: Sequence[Encounter], shared: Sequence[str], more: Sequence[str]
) -> Encounter | None:
    """The encounter that agrees in most of the shared attributes, but not in all, and has a value of each."""
    needed = {*shared, *more}
    usable = [other for other in others if needed <= set(known_attributes(other))]
    usable = [other for other in usable if any(_differ(encounter, other, name) for name in shared)]

    def differences(other: Encounter) -> int:
        return sum(_differ(encounter, other, name) for name in shared)

    return min(usable, key=differences, default=None)


def inference(
    block: Sequence[Encounter], label: int, words: Words, generator: np.random.Generator
) -> Example | None:
    """A narrative, and a statement that it entails (0), says nothing of (1), or contradicts (2)."""
    encounter, others = block[0], block[1:]
    count = words.drawn_clauses(generator)
    chosen = _some(known_attributes(encounter), count + 1, generator)
    included, left_out = chosen[:count], chosen[count:]
    if label == 1:
        statement = _retold(left_out[0], encounter, words, generator)
    elif label == 0:
        statement = _retold(included[0], encounter, words, generator)
    else:
        name = included[0]
        other = _alike(encounter, others, [name], [])
        if other is None:
            return None
        statement = _retold(name, other, words, generator)
    return _narrative(encounter, included, generator), statement


def answers(
    block: Sequence[Encounter], label: int, words: Words, generator: np.random.Generator
) -> Example | None:
    """A question, and a narrative that answers it (1) or does not (0)."""
    encounter = block[0]
    count = words.drawn_clauses(generator)
    chosen = _some(known_attributes(encounter), count + 1, generator)
    topic = chosen[0] if label == 1 else chosen[-1]
    wordings = words.asked[topic]
    question = pick(wordings, generator)
    return question, _narrative(encounter, chosen[:count], generator)


MAKERS: Mapping[str, Maker] = {"outcome": outcome, "pairs": pairs, "inference": inference, "answers": answers}
"""By task of `workbench.training.tasks`."""


def _narrative(encounter: Encounter, attributes: Sequence[str], generator: np.random.Generator) -> str:
    return " ".join(clause(name, encounter.values[name]) for name in _mixed(attributes, generator))


def _retold(name: str, encounter: Encounter, words: Words, generator: np.random.Generator) -> str:
    choice = int(generator.integers(len(words.retold[name])))
    return retold(name, encounter.values[name], words.retold, choice)


def _differ(first: Encounter, second: Encounter, name: str) -> bool:
    return first.values[name] != second.values[name]


def _some(names: Sequence[str], count: int, generator: np.random.Generator) -> list[str]:
    """Some of the names, or all where there are fewer, in a random order."""
    return [names[i] for i in generator.permutation(len(names))[:count]]


def _mixed(names: Sequence[str], generator: np.random.Generator) -> list[str]:
    return _some(names, len(names), generator)
