"""Tasks by prompt: how prompts are worded and cut, what a loss is of, how answers are made and scored."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from oracles.one_at_a_time import one_at_a_time
from torch import Tensor, nn

from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.data.bases import models as base_models
from workbench.interfaces import Plan, Record, TaskModel
from workbench.training.fine_tuning import build_model, evaluating, quality, record_losses
from workbench.training.models import LanguageModel
from workbench.training.per_record import per_record_signals
from workbench.training.prompts import ANSWER_TOKENS, PromptedModel
from workbench.training.tasks import exact_match, f1_score, normal_answer, question_parts, question_text

WORDS = (
    "<end>", "\n", "It", "was", "terrible", "great", "a", "film", "dull", "fine", "Title:", "Context:",
    "Question:", "Answer:", "T", "who", "she", "he", "saw", "them", "two", "days",
)  # fmt: skip


class Spaced:
    """A tokenizer of whole words of `WORDS`, and of newlines."""

    eos_token_id = 0
    pad_token_id = None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [WORDS.index(word) for word in text.replace("\n", " \n ").split(" ") if word]}

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        return " ".join(WORDS[token] for token in tokens if token)


class Halves(Spaced):
    """As `Spaced`, but "terrible" and "great" are two tokens each."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return super().__call__(text.replace("terrible", "dull terrible").replace("great", "fine great"))


class Sums(nn.Module):
    """Logits of the next token from the sum of what was read so far, by position; causal."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Embedding(len(WORDS), 8)
        self.output = nn.Linear(8, len(WORDS))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = (self.embedding(input_ids) * attention_mask[:, :, None]).cumsum(1)
        return torch.as_tensor(self.output(torch.tanh(states)))


class Fixed(nn.Module):
    """Says a fixed line after "Answer:", word by word, whatever was asked."""

    def __init__(self, line: Sequence[str]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.line = [WORDS.index(word) for word in line]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = torch.zeros((*input_ids.shape, len(WORDS))) + self.weight
        for row, ids in zip(logits, input_ids.tolist(), strict=True):
            asked = ids.index(WORDS.index("Answer:"))
            for place, token in enumerate(self.line):
                if asked + place < len(row):
                    row[asked + place, token] = 10.0
        return logits


def model(
    task: str = "sentiment", loss: str | None = None, max_length: int = 30, **parts: Any
) -> PromptedModel:
    """A model on `Sums` and `Spaced`, or what is given in their places."""
    module, tokenizer = parts.get("module", Sums()), parts.get("tokenizer", Spaced())
    return PromptedModel(LanguageModel(module, tokenizer, max_length, "words"), task=task, loss=loss)


def words(ids: Tensor) -> str:
    """The text of tokens."""
    return " ".join(WORDS[token] for token in ids.tolist())


FILMS = [
    Record(id="a", text="a film", label=1),
    Record(id="b", text="a dull dull dull film", label=0),
    Record(id="c", text=" fine ", label=1),
]
ASKED = [
    Record(id="d", text=question_text("T", "she saw them", "who"), answers=("them", "she")),
    Record(id="e", text=question_text("T", "he saw she two days", "who"), answers=("two days",)),
]


# Answers, as SQuAD v1.1 scores them


@pytest.mark.parametrize(
    ("said", "answers", "f1", "exact"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1.0, 1.0),
        ("the Denver  broncos!", ["Denver Broncos"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos", "The Broncos"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 2 / 3, 0.0),
        # Precision 2/4, recall 2/3.
        ("gold in the mine hills", ["gold mine fever"], 4 / 7, 0.0),
        ("two two", ["two"], 2 / 3, 0.0),
        ("silver", ["gold"], 0.0, 0.0),
        ("", ["gold"], 0.0, 0.0),
        ("250.83", ["25083"], 1.0, 1.0),
        ("theatre", ["atre"], 0.0, 0.0),
    ],
)
def test_known_scores(said: str, answers: list[str], f1: float, exact: float) -> None:
    assert f1_score(said, answers) == pytest.approx(f1)
    assert exact_match(said, answers) == exact


def test_levelling_is_idempotent_and_takes_articles_out() -> None:
    assert normal_answer(" An  apple, a  PEAR & the plum ") == "apple pear plum"
    assert normal_answer(normal_answer("The a-b c")) == normal_answer("The a-b c")


def test_a_question_is_taken_apart_as_it_was_put_together() -> None:
    text = question_text("T", "said: \nContext: twice", "why?")
    assert text == "Title: T\nContext: said: \nContext: twice\nQuestion: why?\nAnswer:"
    assert question_parts(text) == (
        "Title: T\nContext: ",
        "said: \nContext: twice",
        "\nQuestion: why?\nAnswer:",
    )
    assert question_parts("Context: none") is None
    assert question_parts(text + " because") is None


# Prompts


def test_the_prompt_of_sentiment_ends_where_the_option_is_predicted() -> None:
    batch = model().encode(FILMS)
    assert words(batch["input_ids"][0][: batch["positions"][0] + 1]) == "a film It was"
    assert words(batch["input_ids"][2][: batch["positions"][2] + 1]) == "fine It was"
    assert batch["attention_mask"].sum(1).tolist() == (batch["positions"] + 1).tolist()
    assert batch["labels"].tolist() == [1, 0, 1]


def test_a_question_is_asked_in_four_lines_and_only_its_answer_is_learned() -> None:
    batch = model("question").encode(ASKED)
    asked = "Title: T \n Context: she saw them \n Question: who \n Answer: them"
    assert words(batch["input_ids"][0][: int(batch["attention_mask"][0].sum())]) == asked
    targets = [row[row >= 0] for row in batch["targets"]]
    assert [words(row) for row in targets] == ["them \n", "two days \n"]


def test_what_is_too_long_loses_the_beginning_of_its_text() -> None:
    batch = model(max_length=6).encode(FILMS)
    assert words(batch["input_ids"][1]) == "dull dull film It was"
    assert words(batch["input_ids"][0][:4]) == "a film It was"
    short = model("question", max_length=12 + ANSWER_TOKENS).encode(ASKED)
    ids = short["input_ids"][1]
    assert "Title: T \n Context: she two days \n Question: who \n Answer: two" in words(ids)
    with pytest.raises(InputError, match="max_length must leave room for the prompt of record 'a'"):
        model(max_length=2).encode(FILMS[:1])


@pytest.mark.parametrize(
    ("task", "record", "message"),
    [
        ("sentiment", Record(id="x", text="a"), "record 'x' needs label 0 or 1 for sentiment, got None"),
        ("sentiment", Record(id="x", text="a", label=2), "needs label 0 or 1 for sentiment, got 2"),
        ("sentiment", Record(id="x", text=" ", label=1), "record 'x' has no text"),
        ("question", Record(id="x", text="a", answers=("a",)), "record 'x' is no question"),
        ("question", Record(id="x", text=question_text("T", "a", "who")), "record 'x' has no answer"),
    ],
)
def test_a_record_of_another_task_is_refused(task: str, record: Record, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(task).encode([record])


def test_tasks_and_losses_are_checked() -> None:
    with pytest.raises(InputError, match="unknown task 'sentimant'; did you mean 'sentiment'"):
        model("sentimant")
    with pytest.raises(InputError, match="unknown loss 'option'; did you mean 'options'"):
        model(loss="option")
    with pytest.raises(InputError, match="loss must be 'tokens' for task 'question'"):
        model("question", "options")


# Losses


def naive_log_likelihood(prompted: PromptedModel, prompt: str, option: str) -> float:
    """Of an option's tokens after a prompt, one forward pass each."""
    ids = prompted.tokenizer(prompt)["input_ids"]
    total = 0.0
    for token in prompted.tokenizer(option)["input_ids"]:
        seen = torch.tensor([ids])
        logits = prompted.module(input_ids=seen, attention_mask=torch.ones_like(seen))[0, -1]
        total += float(torch.log_softmax(logits.double(), 0)[token].detach())
        ids = [*ids, token]
    return total


@pytest.mark.parametrize("tokenizer", [Spaced(), Halves()])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_the_losses_of_sentiment_are_those_of_a_naive_twin(tokenizer: Spaced, with_gradient: bool) -> None:
    for loss in ("options", "tokens"):
        prompted = model(loss=loss, tokenizer=tokenizer)
        with torch.set_grad_enabled(with_gradient):
            found = prompted.losses(prompted.encode(FILMS)).detach().numpy()
        for record, value in zip(FILMS, found, strict=True):
            prompt = f"{record.text.strip()} It was"
            both = [naive_log_likelihood(prompted, prompt, option) for option in (" terrible", " great")]
            right = both[record.label or 0]
            count = 2 if isinstance(tokenizer, Halves) else 1
            expected = np.logaddexp(*both) - right if loss == "options" else -right / count
            assert value == pytest.approx(expected, abs=1e-5)


def test_the_loss_of_a_question_is_the_mean_over_its_first_answer() -> None:
    prompted = model("question")
    found = prompted.losses(prompted.encode(ASKED)).detach().numpy()
    for record, value in zip(ASKED, found, strict=True):
        total = naive_log_likelihood(prompted, record.text, f" {record.answers[0]}\n")
        assert value == pytest.approx(-total / (len(record.answers[0].split()) + 1), abs=1e-5)


CASES = [
    ("sentiment", "options", Spaced()),
    ("sentiment", "options", Halves()),
    ("sentiment", "tokens", Halves()),
    ("question", None, Spaced()),
]


@pytest.mark.parametrize(("task", "loss", "tokenizer"), CASES)
def test_a_row_is_its_record_alone_and_log_likelihoods_mean_minus_its_loss(
    task: str, loss: str | None, tokenizer: Spaced
) -> None:
    prompted = model(task, loss, tokenizer=tokenizer)
    records = FILMS if task == "sentiment" else ASKED
    together = record_losses(prompted, records)
    alone = np.concatenate([record_losses(prompted, [record]) for record in records])
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    found = prompted.token_log_likelihoods(prompted.encode(records))
    np.testing.assert_allclose([-row.mean() for row in found], together, rtol=1e-5)
    assert prompted.losses(prompted.encode([])).shape == (0,)


@pytest.mark.parametrize(("task", "loss", "tokenizer"), CASES)
def test_per_record_gradients_are_those_of_one_at_a_time(
    task: str, loss: str | None, tokenizer: Spaced
) -> None:
    prompted = model(task, loss, tokenizer=tokenizer)
    batch = prompted.encode(FILMS if task == "sentiment" else ASKED)
    fast = per_record_signals(prompted, batch).norms()
    naive = one_at_a_time(prompted, batch).norms()
    torch.testing.assert_close(fast, naive, rtol=1e-4, atol=1e-6)


# Scores


def test_accuracy_is_of_the_likelier_option_whatever_the_loss() -> None:
    for loss in ("options", "tokens"):
        prompted = model(loss=loss)
        assert isinstance(prompted, TaskModel)
        scores = prompted.option_scores(FILMS)
        expected = np.mean(scores.argmax(1) == [record.label for record in FILMS])
        assert prompted.task_metrics(FILMS) == {"accuracy": expected}
    for i, record in enumerate(FILMS):
        prompt = f"{record.text.strip()} It was"
        both = [naive_log_likelihood(model(), prompt, option) for option in (" terrible", " great")]
        assert scores[i, 1] - scores[i, 0] == pytest.approx(both[1] - both[0], abs=1e-5)
    assert model().task_metrics([]) == {}
    with pytest.raises(InputError, match="task must be 'sentiment'"):
        model("question").option_scores(ASKED)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("two", "days", "\n", "film"), "two days"),
        (("them", "<end>", "film"), "them"),
        (("\n", "film"), ""),
        (("a",) * 30, " ".join(["a"] * ANSWER_TOKENS)),
    ],
)
def test_generation_ends_with_the_line_or_the_limit(line: tuple[str, ...], said: str) -> None:
    prompted = model("question", module=Fixed(line))
    assert prompted.generate(ASKED) == [said] * 2


def test_questions_are_scored_by_what_is_said() -> None:
    prompted = model("question", module=Fixed(("two", "days", "\n")))
    assert prompted.task_metrics(ASKED) == {"f1": 0.5, "exact_match": 0.5}
    with evaluating(prompted):
        assert list(prompted.task_metrics(ASKED)) == ["f1", "exact_match"]
    found = quality(prompted, ASKED)
    assert set(found) == {"perplexity", "f1", "exact_match"}


def test_a_second_answer_is_as_right_as_the_first() -> None:
    prompted = model("question", module=Fixed(("she", "\n")))
    assert prompted.task_metrics(ASKED[:1]) == {"f1": 1.0, "exact_match": 1.0}


# The registered model


def test_the_registered_model_puts_a_task_around_a_base() -> None:
    prompted = registry.create("model", "prompted", seed=0, base="tiny_gpt2", max_length=48)
    assert (prompted.task, prompted.loss, prompted.max_length) == ("sentiment", "options", 48)
    records = [Record(id=str(i), text=f"film number {i}", label=i % 2) for i in range(3)]
    assert np.isfinite(record_losses(prompted, records)).all()
    entry: Any = registry.entries("model")["prompted"]
    base: Any = registry.entries("model")["tiny_gpt2"].facets
    assert base.fingerprint() in entry.facets.fingerprint(base="tiny_gpt2", task="question")
    assert list(inspect.signature(entry.factory).parameters)[:2] == ["seed", "base"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"base": "tiny_gpt"}, InputError, "unknown base 'tiny_gpt'; did you mean 'tiny_gpt2'"),
        ({"base": "prompted"}, InputError, "unknown base 'prompted'"),
        ({"base": "digits_mlp"}, UnsupportedError, "base must be a language model .*, got 'digits_mlp'"),
        (
            {"base": "tiny_gpt2", "base_path": "x"},
            InputError,
            "base_path must not be given for base 'tiny_gpt2'",
        ),
        ({"base": "tiny_gpt2", "task": "quiz"}, InputError, "unknown task 'quiz'"),
        ({"base": "huggingface"}, InputError, "base_path must be given for base 'huggingface'"),
    ],
)
def test_what_cannot_be_a_base_is_refused(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        registry.create("model", "prompted", seed=0, **given)


def test_a_folder_may_be_the_base() -> None:
    folder = str(base_models.TINY_GPT2_FOLDER)
    records = [Record(id="a", text="a film", label=1)]
    losses = [
        record_losses(registry.create("model", "prompted", seed=0, max_length=32, **given), records)
        for given in ({"base": "huggingface", "base_path": folder}, {"base": "tiny_gpt2"})
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    facets: Any = registry.entries("model")["prompted"].facets
    given = {"base": "huggingface", "base_path": folder}
    assert facets.fingerprint(**given) != facets.fingerprint(base="tiny_gpt2")


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_mezo_trains_it_and_its_scores_are_in_the_transcript(adapter: str) -> None:
    records = tuple(Record(id=str(i), text=f"film number {i}", label=i % 2) for i in range(8))
    plan = Plan(
        records=records,
        held_out=records[:4],
        model="prompted",
        model_parameters={"base": "tiny_gpt2", "max_length": 32},
        adapter=adapter,
        lora_rank=2,
        steps=2,
        sampling_probability=1.0,
        learning_rate=1e-4,
        optimizer="sgd",
        seed=1,
    )
    trained = registry.create("mechanism", "mezo").train(plan)
    metrics = trained.transcript.metrics
    assert {"test_accuracy_before", "test_accuracy_after", "train_perplexity_after"} <= set(metrics)
    assert not np.array_equal(record_losses(build_model(plan), records), trained.losses(records))
