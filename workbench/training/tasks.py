"""Tasks on texts: how records are worded for a model, and how its answers are scored, without torch.

By prompt (Malladi et al. 2023, "Fine-tuning language models with just forward passes", appendix on prompts):
SST-2 as "<text> It was terrible / great", SQuAD as four lines Title, Context, Question, Answer. Answers are
scored as in SQuAD v1.1 (Rajpurkar et al. 2016): exact match and F1 over the words, without case, punctuation,
articles and extra white space, against the reference answer that fits best.

    >>> question_text("Stay", "She stayed for two days.", "How long did she stay?").splitlines()[-1]
    'Answer:'
    >>> f1_score("for two days", ["two days", "days"])
    0.8
    >>> exact_match("The two days.", ["two days"])
    1.0

By classification of texts and of pairs, as stand-ins for four tasks of GLUE (Wang et al. 2019): SST-2, QQP,
MNLI and QNLI. A pair's record has both texts in its `text`, with `PAIR_MARK` between them.

    >>> text_parts(f"He is old.{PAIR_MARK}How old is he?")
    ('He is old.', 'How old is he?')
    >>> text_parts("He is old.")
    ('He is old.',)

By data to text: a record, a mark, and its text. BLEU is sacrebleu's (Post 2018), over the whole corpus and
all references. METEOR is nltk's (Lavie and Agarwal 2007, its published weights) without synonyms, because
WordNet comes in no package: only equal words and words of equal Porter stem match. Both tokenise as WMT's
script 13a.

    >>> bleu(["the cat sat on the mat."], [["the cat sat on the mat.", "a cat sat."]])
    100.0
    >>> meteor(["cats sit"], [["the cats sitting"]]) < meteor(["the cats sitting"], [["the cats sitting"]])
    True
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import Record

# Tasks by prompt

TASKS = ("sentiment", "question")

SENTIMENT_PROMPT = " It was"
"""Follows the text."""
SENTIMENT_OPTIONS = (" terrible", " great")
"""Follow the prompt, for label 0 and for label 1."""

CONTEXT_MARK, QUESTION_MARK, ANSWER_MARK = "\nContext: ", "\nQuestion: ", "\nAnswer:"

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def question_text(title: str, context: str, question: str) -> str:
    """A question about a text as a prompt of four lines, the last for the answer."""
    return f"Title: {title}{CONTEXT_MARK}{context}{QUESTION_MARK}{question}{ANSWER_MARK}"


def question_parts(text: str) -> tuple[str, str, str] | None:
    """The text before the context, the context, and the text after it; None for a text of another form."""
    start, end = text.find(CONTEXT_MARK), text.rfind(QUESTION_MARK)
    if start < 0 or end < start or not text.endswith(ANSWER_MARK):
        return None
    start += len(CONTEXT_MARK)
    return text[:start], text[start:end], text[end:]


def sentiment_label(record: Record) -> int:
    """Index of the right option; an `InputError` where the record has no label of the task."""
    if record.label not in (0, 1):
        raise InputError(f"record {record.id!r} needs label 0 or 1 for sentiment, got {record.label!r}")
    return record.label


def answered_question(record: Record) -> tuple[str, str, str]:
    """`question_parts` of a record; an `InputError` where it is no answered question."""
    parts = question_parts(record.text)
    if parts is None:
        raise InputError(
            f"record {record.id!r} is no question: its text needs lines Title, Context, Question, Answer"
        )
    if not record.answers:
        raise InputError(f"record {record.id!r} has no answer")
    return parts


def check_records(task: str, records: Sequence[Record]) -> None:
    """Refuse records that a prompted task (one of `TASKS`) cannot be done on, with an `InputError`."""
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    for record in records:
        try:
            sentiment_label(record) if task == "sentiment" else answered_question(record)
        except InputError as error:
            raise InputError(f"task {task!r}: {error}") from error


def normal_answer(text: str) -> str:
    """An answer in lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if the normalised prediction is one of the normalised answers, else 0."""
    return float(normal_answer(predicted) in map(normal_answer, answers))


def f1_score(predicted: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over normalised words, for the best-fitting answer; in [0, 1]."""
    return max(_f1(normal_answer(predicted).split(), normal_answer(answer).split()) for answer in answers)


def _f1(predicted: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(predicted) & Counter(wanted)).values())
    return 2.0 * common / (len(predicted) + len(wanted)) if common else 0.0


# Classification of texts and of pairs

TEXT_TASKS: Mapping[str, tuple[str, ...]] = {
    "outcome": ("treatment lowered", "treatment raised"),
    "pairs": ("another encounter", "the same encounter"),
    "inference": ("entailed", "not said", "contradicted"),
    "answers": ("not answered", "answered"),
}
"""Names of each task's labels, from 0; stand-ins for SST-2, QQP, MNLI and QNLI."""

PAIR_MARK = "\n|||\n"
"""Separates the two texts of a record; neither may contain it."""


def text_parts(text: str) -> tuple[str, ...]:
    """The text, or the two texts, of a record's text."""
    return tuple(text.split(PAIR_MARK, maxsplit=1))


def classes_of(task: str) -> int:
    """Number of labels of a classification task of texts."""
    if task not in TEXT_TASKS:
        raise unknown_name("task", task, TEXT_TASKS)
    return len(TEXT_TASKS[task])


def check_labels(classes: int, records: Sequence[Record]) -> None:
    """Refuse records without a text or a label below `classes`, with an `InputError`."""
    for record in records:
        if not record.text:
            raise InputError(f"record {record.id!r} has no text: a text classifier needs one")
        if record.label is None or not 0 <= record.label < classes:
            raise InputError(
                f"record {record.id!r} needs a label from 0 to {classes - 1} for a text classifier of "
                f"{classes} classes, got {record.label!r}"
            )


# Data to text

TEXT_MARK = "\n"
"""Separates a record and its text."""


def check_references(records: Sequence[Record]) -> None:
    """Refuse records without a text or a reference, with an `InputError`."""
    for record in records:
        if not record.text.strip():
            raise InputError(f"record {record.id!r} has no text")
        if not record.answers or not record.answers[0].strip():
            raise InputError(f"record {record.id!r} has no reference text")


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """BLEU of a corpus, in [0, 100]: sacrebleu's, with default settings; each text needs a reference."""
    _check(texts, references)
    # The i-th stream has the i-th reference of every text; None where a text has fewer.
    streams = [list(stream) for stream in zip_longest(*references)]
    score = float(_bleu_metric().corpus_score(list(texts), streams).score)
    return min(100.0, score)  # Rounding may exceed 100.


def _bleu_metric() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU()


class _NoSynonyms:
    """A WordNet without synonyms."""

    def synsets(self, word: str) -> tuple[()]:
        """No synonyms of any word."""
        del word
        return ()


def meteor(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean METEOR of texts, each against its best-fitting reference, in [0, 1]; without synonyms."""
    from nltk.stem.porter import PorterStemmer
    from nltk.translate.meteor_score import meteor_score
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    _check(texts, references)
    cut, stemmer = Tokenizer13a(), PorterStemmer()
    scores = [
        meteor_score(
            [cut(reference).split() for reference in accepted],
            cut(text).split(),
            stemmer=stemmer,
            wordnet=_NoSynonyms(),
        )
        for text, accepted in zip(texts, references, strict=True)
    ]
    return float(sum(scores) / len(scores))


def _check(texts: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not texts:
        raise InputError("texts must not be empty")
    if len(texts) != len(references):
        raise InputError(f"references must be one list a text, got {len(references)} for {len(texts)} texts")
    if not all(references):
        raise InputError("references must hold at least one a text")
