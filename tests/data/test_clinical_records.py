"""Records with narratives: their forms, what their references say, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data import clinical as clinical_package
from workbench.data.clinical.encounters import ATTRIBUTES, MISSING, Encounter, clause
from workbench.data.clinical.generator import generate, marginals
from workbench.data.clinical.records import (
    SLOTS,
    clinical_records,
    in_other_words,
    references,
    slot_value,
    to_text,
)
from workbench.training.tasks import TEXT_MARK

VALUES = {
    **dict.fromkeys(ATTRIBUTES, MISSING),
    "gender": "Female",
    "admission_type_id": "1",
    "time_in_hospital": "3",
    "insulin": "Down",
}
PATIENT = Encounter(encounter_id="1", patient_nbr="1", values=VALUES)
TOLD = ("gender", "admission_type_id", "time_in_hospital", "insulin")


def test_a_record_as_slots_and_as_triples() -> None:
    assert to_text(PATIENT, TOLD, "slots") == "gender[Female] | type[1] | stay[3 days] | insulin[Down]"
    assert to_text(PATIENT, TOLD[1:3], "triples") == "patient : type : 1 | patient : stay : 3 days"


def test_codes_are_said_in_words_and_in_three_ways() -> None:
    assert references(PATIENT, TOLD) == (
        "gender is Female. admission type id is Emergency. the patient stayed "
        "in the hospital for 3 days. insulin is Down.",
        "the patient is female. the type of admission is Emergency. the hospital stay lasted 3 days. "
        "the dose of insulin was lowered.",
        "insulin is Down. the patient stayed in the hospital for 3 days. "
        "admission type id is Emergency. gender is Female.",
    )
    assert references(PATIENT, ("age",)) == ("age is unknown.", "the age of the patient is not known.")


def test_every_value_has_two_wordings_and_says_its_numbers_in_both() -> None:
    for encounter in generate(500, np.random.default_rng(3)):
        for name in SLOTS:
            value = encounter.values[name]
            told, anew = clause(name, value), in_other_words(name, value)
            assert told != anew
            if name not in ("readmitted", "admission_type_id"):
                numbers = re.findall(r"\d+", slot_value(name, value))
                assert [one for one in re.findall(r"\d+", anew) if one in numbers][: len(numbers)] == numbers
    assert set(SLOTS) <= set(marginals())


def test_a_corpus_of_records_that_fit_into_a_small_base() -> None:
    corpus = clinical_records(size=300, seed=1, held_out=50, public=40)
    everyone = (*corpus.records, *corpus.held_out, *corpus.public)
    assert len({record.text for record in everyone}) == 390
    assert {record.text.count("|") for record in everyone} == {3}
    assert all(len(record.answers) == 3 for record in everyone)
    tokenizer = registry.create("model", "gpt2_base", seed=0).tokenizer
    for form in ("slots", "triples"):
        same = clinical_records(size=300, seed=1, held_out=50, public=40, form=form)
        assert [one.answers for one in same.records] == [one.answers for one in corpus.records]
        whole = [f"{one.text}{TEXT_MARK} {one.answers[0]}" for one in same.records]
        assert max(len(tokenizer(text)["input_ids"]) for text in whole) < 128


def test_the_seed_decides_and_more_clauses_say_more() -> None:
    first, again = (clinical_records(size=40, seed=5) for _ in range(2))
    assert first == again
    assert clinical_records(size=40, seed=6).records != first.records
    assert {one.text.count("|") for one in clinical_records(size=40, seed=5, clauses=10).records} == {9}


@pytest.mark.parametrize(("clauses", "message"), [(1, "at least 2"), (11, "at most 10, got 11")])
def test_the_number_of_clauses_is_checked(clauses: int, message: str) -> None:
    with pytest.raises(InputError, match=f"clauses must be .*{message}"):
        clinical_records(size=10, seed=0, clauses=clauses)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(InputError, match="unknown form 'slot'; did you mean 'slots'"):
        clinical_records(size=10, seed=0, form="slot")


def test_records_of_the_real_file(uci_file: Path) -> None:
    corpus = clinical_records(size=100, seed=0, path=str(uci_file), held_out=60, public=60)
    assert len({record.text for record in (*corpus.records, *corpus.held_out, *corpus.public)}) == 220
    assert "records and narratives of ours" in corpus.origin


def test_too_few_clauses_to_tell_so_many_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clinical_package, "MOST_ROUNDS", 1)
    with pytest.raises(InputError, match=r"size must be smaller, got 2000: 2 clauses tell only \d+ of 2000"):
        clinical_records(size=2000, seed=0, clauses=2, held_out=0, public=0)
