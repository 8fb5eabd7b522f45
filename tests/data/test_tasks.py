"""Corpora of tasks by prompt: questions about encounters, SST-2 and SQuAD from files, neutral snippets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data import clinical as clinical_package
from workbench.data.clinical.encounters import clause
from workbench.data.clinical.generator import generate
from workbench.data.clinical.questions import TOPICS, answerable, answers_of, clinical_questions, to_record
from workbench.data.glue_squad import read_squad, sst2
from workbench.data.movie_reviews import Snippet, load_snippets, movie_reviews, without_near_duplicates
from workbench.data.shared.near_duplicates import near_duplicates
from workbench.interfaces import Corpus, Record
from workbench.training.tasks import question_parts


def context(record: Record) -> str:
    """The context of a question."""
    parts = question_parts(record.text)
    assert parts is not None
    return parts[1]


def texts(corpus: Corpus) -> list[str]:
    """Of all parts."""
    return [record.text for record in (*corpus.records, *corpus.held_out, *corpus.public)]


# Questions about encounters


def test_every_answer_is_a_span_of_its_context_and_the_sizes_are_exact() -> None:
    corpus = clinical_questions(size=1000, seed=3, held_out=1000, public=500)
    assert (len(corpus.records), len(corpus.held_out), len(corpus.public)) == (1000, 1000, 500)
    for record in corpus.records:
        assert record.answers
        assert all(answer in context(record) for answer in record.answers)
        assert len(set(record.answers)) == len(record.answers)
    assert len(set(texts(corpus))) == 2500
    asked = {record.text.split("\nQuestion: ")[1] for record in corpus.records}
    assert len(asked) == len(TOPICS)


def test_the_seed_decides_the_questions() -> None:
    first, again = (clinical_questions(size=40, seed=5) for _ in range(2))
    assert first == again
    assert clinical_questions(size=40, seed=6).records != first.records


@pytest.mark.parametrize(
    ("attribute", "value", "answers"),
    [
        ("age", "[60-70)", ("between 60 and 70 years old", "between 60 and 70", "60 and 70")),
        ("time_in_hospital", "1", ("1 day", "for 1 day", "1")),
        ("readmitted", "<30", ("in less than 30 days", "less than 30 days")),
        ("admission_source_id", "7", ("Emergency Room",)),
        ("diag_1", "250.83", ("250.83",)),
        ("insulin", "No", ("No",)),
    ],
)
def test_answers_of_each_kind_of_clause(attribute: str, value: str, answers: tuple[str, ...]) -> None:
    (encounter,) = generate(1, np.random.default_rng(0))
    changed = type(encounter)(
        encounter_id="a", patient_nbr="a", values={**encounter.values, attribute: value}
    )
    assert answers_of(changed, attribute) == answers
    assert all(answer in clause(attribute, value) for answer in answers)


def test_nothing_is_asked_that_the_narrative_does_not_tell() -> None:
    (encounter,) = generate(1, np.random.default_rng(0))
    values = {**encounter.values, "readmitted": "NO", "race": "?", "admission_source_id": "17"}
    changed = type(encounter)(encounter_id="a", patient_nbr="a", values=values)
    assert not {"readmitted", "race", "admission_source_id"} & set(answerable(changed))
    asked = {str(to_record(changed, 3, np.random.default_rng(seed))) for seed in range(60)}
    assert not any("race of" in one or "readmitted?" in one for one in asked)


@pytest.mark.parametrize(("clauses", "message"), [(1, "at least 2"), (13, "at most 12, got 13")])
def test_the_number_of_clauses_is_checked(clauses: int, message: str) -> None:
    with pytest.raises(InputError, match=f"clauses must be .*{message}"):
        clinical_questions(size=10, seed=0, clauses=clauses)


def test_questions_about_the_real_file(uci_file: Path) -> None:
    corpus = clinical_questions(size=100, seed=0, path=str(uci_file))
    assert len(texts(corpus)) == len(set(texts(corpus))) == 228
    assert all(answer in context(record) for record in corpus.records for answer in record.answers)


def test_too_few_clauses_to_tell_so_many_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clinical_package, "MOST_ROUNDS", 1)
    with pytest.raises(InputError, match=r"size must be smaller, got 2000: 2 clauses tell only \d+ of 2000"):
        clinical_questions(size=2000, seed=0, clauses=2, held_out=0, public=0)


# Film reviews


def test_neutral_snippets_go_and_are_counted(vader: Path) -> None:
    corpus = movie_reviews(size=200, seed=0, neutral=0.8)
    ratings = {f"movie_reviews-{one.id}": one.rating for one in load_snippets("movie_reviews")}
    assert min(abs(ratings[record.id]) for record in corpus.records) > 0.8
    kept = sum(abs(rating) > 0.8 for rating in ratings.values())
    assert f"{kept} of 1200 snippets are distinct and not neutral (rated beyond 0.8)" in corpus.origin
    positive = sum(rating > 0.8 for rating in ratings.values()) / kept
    assert f"{100 * max(positive, 1 - positive):.1f} % of them" in corpus.origin


@pytest.mark.parametrize("neutral", [-0.1, 4.0, float("nan")])
def test_neutral_is_checked(vader: Path, neutral: float) -> None:
    with pytest.raises(InputError, match=r"neutral must be in \[0, 4\)"):
        movie_reviews(size=10, seed=0, neutral=neutral)


def test_parts_hold_no_near_duplicates(vader: Path) -> None:
    film = "One of the worst movies of the year, and watching it was a pain"
    rows = [film, f"{film}!", f"Well: {film} indeed", "A small film with a big heart."]
    snippets = [Snippet(id=str(i), document=str(i), rating=1.0, text=text) for i, text in enumerate(rows)]
    assert [one.id for one in without_near_duplicates(snippets)] == ["0", "3"]
    assert not any(near_duplicates(texts(movie_reviews(size=300, seed=0)), 0.5))


# SST-2 and SQuAD from files


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """A folder as GLUE's, with sentences of our own; one has quotation marks, one is there twice."""
    rows = [f'film number {i} is "{"fine" if i % 3 else "dull"}" \t{int(i % 3 > 0)}' for i in range(60)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows, rows[0], ""]), "utf-8")
    others = [f"another film , number {i} , is good\t1" for i in range(20)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence\tlabel", *others, rows[3]]), "utf-8")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tno label here\n", "utf-8")
    return tmp_path


def test_sst2_is_read_as_glue_writes_it(glue: Path) -> None:
    corpus = sst2(size=30, seed=0, path=str(glue / "train.tsv"), held_out=10, public=20)
    assert (len(corpus.records), len(corpus.held_out), len(corpus.public)) == (30, 10, 20)
    found = {record.text: record.label for record in (*corpus.records, *corpus.held_out, *corpus.public)}
    assert found == {f'film number {i} is "{"fine" if i % 3 else "dull"}"': int(i % 3 > 0) for i in range(60)}
    assert "of the candidates positive" in corpus.origin


def test_held_out_records_may_come_from_a_second_file(glue: Path) -> None:
    corpus = sst2(
        size=40,
        seed=0,
        path=str(glue / "train.tsv"),
        held_out_path=str(glue / "dev.tsv"),
        held_out=20,
        public=20,
    )
    assert all(record.text.startswith("another film") for record in corpus.held_out)
    with pytest.raises(InputError, match=r"21 \+ 0 records wanted, .*dev.tsv' has 20"):
        sst2(
            size=1,
            seed=0,
            path=str(glue / "train.tsv"),
            held_out_path=str(glue / "dev.tsv"),
            held_out=21,
            public=0,
        )


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("test.tsv", None, "has no column 'label'"),
        ("nothing.tsv", None, "path must be a readable file"),
        ("train.tsv", "a film\t2\n", "line 63 of .* must have label 0 or 1, got '2'"),
        ("train.tsv", "a film\n", "line 63 of .* has 1 cells, the header 2"),
    ],
)
def test_a_bad_sst2_file_is_named_in_one_line(glue: Path, name: str, line: str | None, message: str) -> None:
    if line is not None:
        with (glue / name).open("a", encoding="utf-8") as stream:
            stream.write(line)
    with pytest.raises(InputError, match=message) as caught:
        sst2(size=5, seed=0, path=str(glue / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["sst2", "squad"])
def test_a_path_is_needed(name: str) -> None:
    with pytest.raises(InputError, match=f"path must be given for corpus '{name}'"):
        registry.create("corpus", name, size=5, seed=0)


def squad_file(path: Path, articles: int = 4, paragraphs: int = 5) -> Path:
    """A file of SQuAD's form, of our own wording; each paragraph has a question without an answer, too."""
    found: list[dict[str, Any]] = []
    for a in range(articles):
        told = []
        for p in range(paragraphs):
            text = f"The bridge of town {a} has {p + 2} arches and was built in {1800 + 10 * a + p}."
            asked = [
                ("arches", f"How many arches has bridge {a}?", [str(p + 2), str(p + 2), f"{p + 2} arches"]),
                ("year", f"When was bridge {a} built?", [str(1800 + 10 * a + p)]),
                ("why", "Why?", []),
            ]
            told.append(
                {
                    "context": text,
                    "qas": [
                        {
                            "id": f"{a}-{p}-{kind}",
                            "question": question,
                            "answers": [{"text": one, "answer_start": text.find(one)} for one in answers],
                        }
                        for kind, question, answers in asked
                    ],
                }
            )
        found.append({"title": f"Town_{a}", "paragraphs": told})
    path.write_text(json.dumps({"version": "1.1", "data": found}), "utf-8")
    return path


def test_squad_gives_one_answered_question_a_paragraph(tmp_path: Path) -> None:
    path = squad_file(tmp_path / "train-v1.1.json")
    corpus: Corpus = registry.create("corpus", "squad", size=10, seed=0, path=str(path), held_out=5, public=5)
    every = (*corpus.records, *corpus.held_out, *corpus.public)
    assert len({context(record) for record in every}) == len(every) == 20
    assert {record.id.rsplit("-", 1)[1] for record in every} == {"arches", "year"}
    assert all(answer in context(record) for record in every for answer in record.answers)
    one = next(record for record in every if record.id.endswith("arches"))
    assert one.text.startswith("Title: Town_")
    assert len(one.answers) == 2
    assert read_squad(path, np.random.default_rng(1)) == read_squad(path, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not of SQuAD's form .*TypeError"),
        ('{"data": [{"title": "a", "paragraphs": [{"qas": []}]}]}', "KeyError 'context'"),
    ],
)
def test_a_bad_squad_file_is_named_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, "utf-8")
    with pytest.raises(InputError, match=message) as caught:
        registry.create("corpus", "squad", size=5, seed=0, path=str(path))
    assert "\n" not in str(caught.value)
