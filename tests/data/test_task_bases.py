"""Bases for tasks by prompt: what they are taught, that it is none of the task's, and how well they tune."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data import movie_reviews
from workbench.data.bases import checkpoint, task_bases
from workbench.data.bases.task_builds import UNKNOWN_ID, write_tokenizer
from workbench.data.bases.texts import tasks as task_texts
from workbench.data.clinical import questions as clinical_questions
from workbench.interfaces import Plan, Record
from workbench.studies import bases
from workbench.studies.bases import BuildStage, BuildStep
from workbench.training.models import LanguageModel
from workbench.training.tasks import SENTIMENT_OPTIONS, SENTIMENT_PROMPT, question_text

NAMES = ("micro_question", "micro_sentiment", "question_base", "sentiment_base")


@pytest.fixture
def few_steps(vader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes of four small steps, on a small archive."""
    for name in ("SENTIMENT", "QUESTION", "MICRO_SENTIMENT", "MICRO_QUESTION"):
        recipe = replace(getattr(task_bases, name), steps=4, examples=4)
        monkeypatch.setattr(task_bases, name, recipe)
    monkeypatch.setattr(task_texts, "ENCOUNTERS", 60)


# What they are taught


def test_nothing_taught_is_worded_as_a_task_is() -> None:
    phrases = {phrase.lower() for phrase, _ in task_texts.RATED_AS}
    words = {f" {word}" for _, levels in task_texts.RATED_AS for word in levels}
    assert not any(phrase.endswith(SENTIMENT_PROMPT.lower()) for phrase in phrases)
    assert not words & set(SENTIMENT_OPTIONS)
    assert all(len(set(levels)) == len(task_texts.LEVELS) + 1 for _, levels in task_texts.RATED_AS)
    asked = {wording for wordings in task_texts.ASKED_AS.values() for wording in wordings}
    assert set(task_texts.ASKED_AS) == set(clinical_questions.TOPICS)
    assert not asked & {topic.question for topic in clinical_questions.TOPICS.values()}
    assert not any("Answer:" in form or "Question:" in form for form in task_texts.ASKED_IN)


@pytest.mark.slow
def test_no_film_review_is_taught(vader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    films = {one.text for one in movie_reviews.load_snippets("movie_reviews")}
    taught = task_texts.ratings()
    assert len(taught.snippets) > 3000
    assert not films & {one.text for one in taught.snippets}
    assert {one.text for one in taught.lexicon} == {
        "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty"
    }  # fmt: skip
    leaked = sorted(films)[0]
    read = movie_reviews.load_snippets

    def with_a_leak(source: str) -> list[movie_reviews.Snippet]:
        found = read(source)
        return [replace(found[0], text=f"{leaked}!"), *found] if source == "product" else found

    monkeypatch.setattr(movie_reviews, "load_snippets", with_a_leak)
    assert len(task_texts.ratings().snippets) == len(taught.snippets)


def test_ratings_fall_into_five_levels() -> None:
    assert [task_texts.level(rating) for rating in (-4, -1.5, -1.4, 0, 0.5, 1.6)] == [0, 0, 1, 2, 3, 4]


def test_words_are_tokens_and_text_comes_back(tmp_path: Path) -> None:
    words = ("a", "great", "film", ".", "it", "was", "days", "250.83")
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", words, ("ly",), is_lower=True)
    assert tokenizer.encode("A film. It was great").tokens == ["▁a", "▁film", ".", "▁it", "▁was", "▁great"]
    assert tokenizer.encode("greatly").tokens == ["▁great", "ly"]
    for text in ("a film. it was 250.83 days", "un-great? it (was)"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode(tokenizer.encode("days\nfilm\n").ids) == "days \n film \n"
    assert tokenizer.token_to_id("<unk>") == UNKNOWN_ID
    whole = tokenizer.encode("a film\nit was great\n").ids
    assert whole[: len(tokenizer.encode("a film\nit was").ids)] == tokenizer.encode("a film\nit was").ids


@pytest.mark.slow
def test_an_example_ends_with_what_is_to_be_learned(vader: Path, tmp_path: Path) -> None:
    _, lesson, _ = task_bases.SentimentBase(recipe=task_bases.SENTIMENT).lesson(tmp_path)
    levels = {lesson.ids(f" {word}")[0] for _, words in task_texts.RATED_AS for word in words}
    generator = np.random.default_rng(0)
    for _ in range(50):
        tokens, first = lesson.example(generator)
        assert len(tokens) == first + 1
        assert tokens[first] in levels
    coordinate = lesson.first_coordinate()
    assert coordinate is not None
    # The lexicon of the fixture rates "amber" -4.5 and "jetty" 4.5.
    assert coordinate[lesson.ids("amber")[0]] < 0 < coordinate[lesson.ids("jetty")[0]]


# Builds


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_build_goes_on_where_it_stopped_and_loads(
    name: str, few_steps: None, cache: Path, tmp_path: Path
) -> None:
    assert not bases.find(name).is_built()
    with pytest.raises(InputError, match=f"model '{name}' is not built: run `workbench models build"):
        registry.create("model", "prompted", seed=0, base=name)

    def stopping(step: BuildStep) -> None:
        if step.stage is BuildStage.TRAINING and step.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bases.find(name).build(stopping)
    steps: list[BuildStep] = []
    folder = bases.find(name).build(steps.append)
    assert [step.done for step in steps if step.stage is BuildStage.TRAINING] == [3, 4]
    weights = (folder / checkpoint.WEIGHTS).read_bytes()
    shutil.rmtree(folder)
    assert (bases.find(name).build(lambda step: None) / checkpoint.WEIGHTS).read_bytes() == weights
    model: Any = registry.create("model", name, seed=0, max_length=100)
    assert isinstance(model, LanguageModel)
    recipe = json.loads((folder / checkpoint.RECIPE).read_text("utf-8"))
    assert recipe["parameters"] == sum(p.numel() for p in model.module.parameters())
    card = bases.find(name).card()
    assert card.is_built
    assert card.perplexity is None
    with pytest.raises(InputError, match="max_length must be at most 256, the positions of"):
        registry.create("model", name, seed=0, max_length=300)


@pytest.mark.slow
def test_the_models_do_their_tasks(few_steps: None) -> None:
    for name in NAMES:
        bases.find(name).build(lambda step: None)
    feeling = registry.create("model", "prompted", seed=0, base="sentiment_base", max_length=24)
    records = [Record(id=str(i), text="amber " * (i + 1), label=i % 2) for i in range(3)]
    batch = feeling.encode(records)
    assert set(batch) == {"input_ids", "attention_mask", "positions", "labels"}  # options of one token each
    assert set(feeling.task_metrics(records)) == {"accuracy"}
    asking = registry.create(
        "model", "prompted", seed=0, base="question_base", task="question", max_length=90
    )
    asked = [Record(id="a", text=question_text("T", "gender is Male.", "Who?"), answers=("Male",))]
    assert set(asking.task_metrics(asked)) == {"f1", "exact_match"}
    first = registry.entries("model")["prompted"].facets.fingerprint  # type: ignore[attr-defined]
    assert first(base="sentiment_base") != first(base="question_base")


# The true ones


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_true_base_is_near_chance_and_tunes_well_above(
    name: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """MeZO lifts sentiment from about 52 to about 66 %, and F1 from about 0.53 to about 0.63."""
    try:
        movie_reviews.fetch()
    except InputError as error:
        pytest.skip(str(error))
    bases.find(name).build(lambda step: None)
    assert bases.find(name).card().parameters == sum(
        p.numel() for p in registry.create("model", name, seed=0).module.parameters()
    )
    is_sentiment = "sentiment" in name
    corpus = registry.create(
        "corpus",
        "movie_reviews" if is_sentiment else "clinical_questions",
        size=128,
        seed=0,
        public=0,
        held_out=1000 if is_sentiment else 300,
        **({"neutral": 1.5} if is_sentiment else {}),
    )
    plan = Plan(
        records=corpus.records,
        held_out=corpus.held_out,
        model="prompted",
        model_parameters={
            "base": name,
            "task": "sentiment" if is_sentiment else "question",
            "max_length": 40 if is_sentiment else 128,
        },
        steps=300,
        sampling_probability=1.0,
        optimizer="sgd",
        learning_rate=1e-3 if is_sentiment else 2e-4,
        seed=1,
    )
    metrics = registry.create("mechanism", "mezo").train(plan).transcript.metrics
    score = "accuracy" if is_sentiment else "f1"
    before, after = metrics[f"test_{score}_before"], metrics[f"test_{score}_after"]
    assert after > before + (0.08 if is_sentiment else 0.05)
    # 1000 held-out records: by chance an accuracy of 0.58 or more has probability 2e-7.
    assert after > 0.58
