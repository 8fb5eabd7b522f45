"""Tasks by prompt, as texts: how MeZO words them, and how answers are scored. No torch.

The prompts are those of Malladi et al. 2023 ("Fine-tuning language models with just forward passes",
appendix on prompts): SST-2 as "<text> It was terrible / great", SQuAD as four lines Title, Context,
Question, Answer. Answers are scored as SQuAD v1.1 is (Rajpurkar et al. 2016): exact match and F1 over the
words that are left when case, punctuation, articles and white space are levelled, each against the answer
that it fits best.

    >>> question_text("Stay", "She stayed for two days.", "How long did she stay?").splitlines()[-1]
    'Answer:'
    >>> f1_score("for two days", ["two days", "days"])
    0.8
    >>> exact_match("The two days.", ["two days"])
    1.0
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import Record

TASKS = ("sentiment", "question")

SENTIMENT_PROMPT = " It was"
"""What follows the text."""
SENTIMENT_OPTIONS = (" terrible", " great")
"""What follows the prompt, for label 0 and for label 1."""

CONTEXT_MARK, QUESTION_MARK, ANSWER_MARK = "\nContext: ", "\nQuestion: ", "\nAnswer:"

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def question_text(title: str, context: str, question: str) -> str:
    """A question about a text as a prompt of four lines, of which the last waits for the answer."""
    return f"Title: {title}{CONTEXT_MARK}{context}{QUESTION_MARK}{question}{ANSWER_MARK}"


def question_parts(text: str) -> tuple[str, str, str] | None:
    """What stands before the context, the context, and what follows it; None for a text of another form."""
    start = text.find(CONTEXT_MARK)
    end = text.rfind(QUESTION_MARK)
    if start < 0 or end < start or not text.endswith(ANSWER_MARK):
        return None
    start += len(CONTEXT_MARK)
    return text[:start], text[start:end], text[end:]


def sentiment_label(record: Record) -> int:
    """Which option is right.

    Raises:
        InputError: the record has no label of the task.
    """
    if record.label not in (0, 1):
        raise InputError(f"record {record.id!r} needs label 0 or 1 for sentiment, got {record.label!r}")
    return record.label


def asked_parts(record: Record) -> tuple[str, str, str]:
    """`question_parts` of a record that is an answered question.

    Raises:
        InputError: it is none.
    """
    parts = question_parts(record.text)
    if parts is None:
        raise InputError(
            f"record {record.id!r} is no question: its text needs lines Title, Context, Question, Answer"
        )
    if not record.answers:
        raise InputError(f"record {record.id!r} has no answer")
    return parts


def check_records(task: str, records: Sequence[Record]) -> None:
    """Refuse records that a task cannot be done on.

    Args:
        task: One of `TASKS`.
        records: All that would be trained on or asked.

    Raises:
        InputError: the task is unknown, or a record is none of the task.
    """
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    for record in records:
        try:
            sentiment_label(record) if task == "sentiment" else asked_parts(record)
        except InputError as error:
            raise InputError(f"task {task!r}: {error}") from error


def normal_answer(text: str) -> str:
    """An answer with case, punctuation, articles and white space levelled."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the answers, levelled; else 0.

    Args:
        predicted: What was said.
        answers: Each is right; at least one.
    """
    found = normal_answer(predicted)
    return float(any(found == normal_answer(answer) for answer in answers))


def f1_score(predicted: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over levelled words, of the answer that fits best, in [0, 1].

    Args:
        predicted: What was said.
        answers: Each is right; at least one.
    """
    return max(_f1(normal_answer(predicted).split(), normal_answer(answer).split()) for answer in answers)


def _f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2.0 * common / (len(found) + len(wanted)) if common else 0.0
