"""Corpus `clinical_tasks`: labels that follow from the encounters, balanced, disjoint and reproducible."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data.bases.texts.encoders import PUBLIC_WORDS
from workbench.data.clinical.encounters import MEDICATIONS, SENTENCES, clause
from workbench.data.clinical.examples import BLOCK, MAKERS, direction
from workbench.data.clinical.generator import generate
from workbench.data.clinical.questions import TOPICS
from workbench.data.clinical.tasks import WORDS
from workbench.data.clinical.wordings import DOSES, PUBLIC_DOSES, PUBLIC_RETOLD, RETOLD, TOLD
from workbench.data.shared.parts import normal_form
from workbench.interfaces import Corpus
from workbench.training.tasks import PAIR_MARK, TEXT_TASKS, check_labels, text_parts

BLOCKS = [generate(BLOCK, np.random.default_rng(i)) for i in range(60)]


def corpus(task: str, **given: object) -> Corpus:
    made: Corpus = registry.create(
        "corpus",
        "clinical_tasks",
        **{"size": 40, "seed": 3, "held_out": 10, "public": 10, "task": task, **given},
    )
    return made


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_parts_are_disjoint_balanced_and_the_same_for_the_same_seed(task: str) -> None:
    made = corpus(task)
    every = (*made.records, *made.held_out, *made.public)
    assert (made.kind, made.classes, len(every)) == ("text", len(TEXT_TASKS[task]), 60)
    assert "no real patient" in made.origin
    assert len({normal_form(record.text) for record in every}) == 60
    assert len({record.id for record in every}) == 60
    assert set(Counter(record.label for record in every).values()) == {60 // made.classes}
    assert all(len(text_parts(record.text)) == (1 if task == "outcome" else 2) for record in every)
    check_labels(made.classes, every)
    assert corpus(task) == made
    assert corpus(task, seed=4).records != made.records


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_a_file_of_encounters_is_read_in_the_place_of_the_generator(task: str, uci_file: Path) -> None:
    made = corpus(task, path=str(uci_file), size=12, held_out=3, public=3)
    assert len(made.records) == 12
    assert "diabetic_data.csv" in made.origin
    with pytest.raises(InputError, match="size must leave room for held_out and public: 200 "):
        corpus(task, path=str(uci_file), size=200)


def test_parameters_are_checked() -> None:
    with pytest.raises(InputError, match="unknown task 'pair'; did you mean 'pairs'"):
        corpus("pair")


# What the labels say


def told_by(text: str) -> dict[str, str]:
    """Which attributes the schema's clauses of a text tell, with their sentences."""
    sentences = re.findall(r"[^.]+(?:\.\d+)?\.", text)
    known = {clause(name, one.values[name]): name for block in BLOCKS for one in block for name in TOLD}
    return {known[sentence.strip()]: sentence.strip() for sentence in sentences}


def test_a_treatment_is_raised_or_lowered_on_balance() -> None:
    generator = np.random.default_rng(0)
    made = 0
    for block in BLOCKS:
        for label in (0, 1):
            example = MAKERS["outcome"](block, label, WORDS, generator)
            if example is None:
                assert all(direction(one) != 2 * label - 1 for one in block)
                continue
            made += 1
            counts = {
                kind: sum(
                    phrase.format(drug=drug) in example[0] for drug in MEDICATIONS for phrase in DOSES[kind]
                )
                for kind in ("Up", "Down")
            }
            assert np.sign(counts["Up"] - counts["Down"]) == 2 * label - 1
            assert not re.search(r" is (Up|Down)\.", example[0])
    assert made > 40


def test_a_statement_is_entailed_contradicted_or_not_said() -> None:
    generator = np.random.default_rng(0)
    for block in BLOCKS:
        for label in range(3):
            example = MAKERS["inference"](block, label, WORDS, generator)
            if example is None:
                continue
            narrative, statement = example
            told = told_by(narrative)
            readings = {
                name: value
                for name in TOLD
                for value in {one.values[name] for many in BLOCKS for one in many}
                if statement in {_retold(name, value, i) for i in range(2)}
            }
            ((name, value),) = readings.items()
            assert label == (1 if name not in told else 0 if told[name] == clause(name, value) else 2)


def _retold(name: str, value: str, choice: int) -> str:
    from workbench.data.clinical.wordings import retold

    return retold(name, value, RETOLD, choice)


def test_a_question_is_answered_where_its_attribute_is_told() -> None:
    generator = np.random.default_rng(0)
    asked = {topic.question: name for name, topic in TOPICS.items()}
    for block in BLOCKS:
        for label in (0, 1):
            example = MAKERS["answers"](block, label, WORDS, generator)
            assert example is not None
            assert (asked[example[0]] in told_by(example[1])) == (label == 1)


def test_a_pair_of_one_encounter_never_disagrees_and_another_always_does() -> None:
    generator = np.random.default_rng(0)
    for block in BLOCKS:
        for label in (0, 1):
            example = MAKERS["pairs"](block, label, WORDS, generator)
            if example is None:
                continue
            first = told_by(example[0])
            second = example[1]
            agree = {
                name: any(_retold(name, block[0].values[name], i) in second for i in range(2))
                for name in first
            }
            # Two of three clauses speak of the same attributes; one of the first narrative alone.
            assert sum(agree.values()) == 2 if label == 1 else sum(agree.values()) < 2


def test_bases_meet_the_tasks_in_other_words() -> None:
    for ours, public in ((RETOLD, PUBLIC_RETOLD), (DOSES, PUBLIC_DOSES), (WORDS.asked, PUBLIC_WORDS.asked)):
        for name, phrases in ours.items():
            assert not {phrase.lower() for phrase in phrases} & {phrase.lower() for phrase in public[name]}
    assert set(TOLD) == set(RETOLD) == set(PUBLIC_RETOLD)
    assert not set(SENTENCES["readmitted"].values()) & set(RETOLD["readmitted"])


# Pairs in a record


def test_a_pair_comes_apart_as_it_was_put_together() -> None:
    assert text_parts(f"a\nb{PAIR_MARK}c |||") == ("a\nb", "c |||")
    assert text_parts("a ||| b") == ("a ||| b",)
