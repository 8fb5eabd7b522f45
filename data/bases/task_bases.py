"""The small bases for tasks by prompt, in the place of OPT-1.3B.

`sentiment_base` and `question_base`, and a smaller one of each, `micro_sentiment` and `micro_question`, for
trainings of many steps. All are pretrained once on the user's machine (`workbench models build`, one or two
minutes of one core each). They have met their task under other wordings only
(`workbench.data.bases.texts.tasks`), so that its own prompt starts near chance, or halfway, and tuning
has something to bring out: see model `prompted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.registry import register
from workbench.data import movie_reviews
from workbench.data.bases import checkpoint
from workbench.data.bases.builds import facets_of, language_model
from workbench.data.bases.pretraining import example_pace
from workbench.data.bases.task_builds import (
    UNKNOWN_ID,
    Example,
    Lesson,
    TaskBase,
    TaskRecipe,
    text_sha256,
    write_tokenizer,
)
from workbench.data.bases.texts import tasks as task_texts
from workbench.data.bases.texts.tasks import Encounters, RatedText, Ratings
from workbench.data.shared.parts import pick
from workbench.interfaces import FloatArray

if TYPE_CHECKING:
    from workbench.training.models import LanguageModel

POSITIONS = 256

_ALL = {
    "vocab_size": None,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": None,
    "use_cache": False,
}

SENTIMENT = TaskRecipe(
    name="sentiment_base",
    family="Llama",
    stands_for="OPT-1.3B before SST-2",
    parameters=690_336,
    model_type="llama",
    config={**_ALL, "hidden_size": 48},
    steps=600,
    pace=example_pace(seed=0, peak_learning_rate=3e-3),
    text={
        "archive": movie_reviews.SHA256,
        "words": text_sha256(task_texts.RATED_AS, task_texts.LEVELS, task_texts.PUBLIC_SOURCES),
    },
    examples=96,
    lm_share=0.3,
    lm_tokens=256,
    embedding_pace=0.1,
)

MICRO_SENTIMENT = replace(
    SENTIMENT,
    name="micro_sentiment",
    parameters=214_208,
    config={
        **_ALL,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
    },
    steps=1500,
)

QUESTION = TaskRecipe(
    name="question_base",
    family="Llama",
    stands_for="OPT-1.3B before SQuAD",
    parameters=111_680,
    model_type="llama",
    config={**_ALL, "hidden_size": 64},
    steps=1000,
    pace=example_pace(seed=0, peak_learning_rate=4e-3),
    text={
        "encounters": task_texts.ENCOUNTERS,
        "seed": task_texts.ENCOUNTER_SEED,
        "words": text_sha256(task_texts.ASKED_AS, task_texts.ASKED_IN),
    },
    examples=48,
    lm_share=0.2,
    lm_tokens=1024,
)

MICRO_QUESTION = replace(
    QUESTION,
    name="micro_question",
    parameters=35_360,
    config={
        **QUESTION.config,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
    },
    steps=3000,
)

LONGEST = 40
"""Last tokens of a snippet that are read."""
DROPPED = 0.2
"""Share of a text's tokens that are hidden, so that no few of them are learned by heart."""
LEXICON_SHARE = 0.2
"""Share of the examples that are words of the lexicon, thrown together."""
MOST_RATED, MOST_PLAIN = 5, 8
"""Words of the lexicon in such an example, and words without a rating."""
BAG_SCALE = 0.8
"""The rating of k words is their sum over the root of k, times this."""
FIRST_DEVIATION = 0.4
"""Standard deviation of the fitted coordinate; the others begin with 0.05."""
RIDGE, LEXICON_WEIGHT, FIT_ROUNDS = 15.0, 2.0, 200
"""Of the linear fit of the ratings, by words: its penalty, the weight of the lexicon, iterations."""
CLAUSES = 5
"""Of the narratives that are asked about."""


class RatingLesson(Lesson):
    """Rated texts, each followed by a phrase and the word for its level."""

    def __init__(self, tokenizer: Any, ratings: Ratings) -> None:
        super().__init__(tokenizer)
        self._snippets = [self._rated(rated_text) for rated_text in ratings.snippets]
        self._lexicon = [self._rated(rated_text) for rated_text in ratings.lexicon]
        rated = {rated_text.text for rated_text in ratings.lexicon}
        self._plain = [self.ids(word) for word in ratings.words if word not in rated]
        self._phrases = [
            (self.ids(phrase), [self.ids(f" {word}") for word in words])
            for phrase, words in task_texts.RATED_AS
        ]

    def _rated(self, rated_text: RatedText) -> tuple[list[int], float]:
        return self.ids(rated_text.text)[-LONGEST:], rated_text.rating

    def example(self, generator: np.random.Generator) -> Example:
        """A snippet or a handful of words, some of its tokens hidden, and its level in words."""
        if generator.random() < LEXICON_SHARE:
            tokens, rating = self._bag(generator)
        else:
            tokens, rating = pick(self._snippets, generator)
        hidden = generator.random(len(tokens)) < DROPPED
        seen = [UNKNOWN_ID if lost else token for token, lost in zip(tokens, hidden, strict=True)]
        phrase, words = pick(self._phrases, generator)
        prompt = [*seen, *phrase]
        return [*prompt, *words[task_texts.level(rating)]], len(prompt)

    def _bag(self, generator: np.random.Generator) -> tuple[list[int], float]:
        """Words of the lexicon and others, in a random order, and what they are rated together."""
        count = int(generator.integers(1, MOST_RATED + 1))
        rated = [self._lexicon[i] for i in generator.integers(len(self._lexicon), size=count)]
        others = generator.integers(len(self._plain), size=int(generator.integers(MOST_PLAIN + 1)))
        words = [tokens for tokens, _ in rated] + [self._plain[i] for i in others]
        order = generator.permutation(len(words))
        rating = BAG_SCALE * sum(rating for _, rating in rated) / float(np.sqrt(count))
        return [token for i in order for token in words[i]], rating

    def first_coordinate(self) -> FloatArray:
        """Each token's coefficient in a ridge regression of the ratings on which tokens a text has."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.linalg import lsqr

        texts = [*self._snippets, *self._lexicon]
        weights = np.array([1.0] * len(self._snippets) + [LEXICON_WEIGHT] * len(self._lexicon))
        tokens = [sorted(set(ids)) for ids, _ in texts]
        rows = np.repeat(np.arange(len(texts)), [len(row) for row in tokens])
        columns = np.array([token for row in tokens for token in row])
        present = csr_matrix((weights[rows], (rows, columns)), shape=(len(texts), self.vocabulary))
        ratings = weights * np.array([rating for _, rating in texts])
        fit = np.asarray(lsqr(present, ratings, damp=RIDGE**0.5, iter_lim=FIT_ROUNDS)[0], dtype=np.float64)
        return np.asarray(fit / fit.std() * FIRST_DEVIATION, dtype=np.float64)


class QuestionLesson(Lesson):
    """Questions about encounters in public wordings, with their answers."""

    def __init__(self, tokenizer: Any, encounters: Encounters) -> None:
        super().__init__(tokenizer)
        self._encounters = encounters

    def example(self, generator: np.random.Generator) -> Example:
        """A narrative with a question, and its answer."""
        prompt, answer = self._encounters.example(generator, CLAUSES)
        return self.ids(prompt + answer), len(self.ids(prompt))


@dataclass(frozen=True, kw_only=True)
class SentimentBase(TaskBase):
    """The base that has read ratings; fetches their archive where it is not in the cache."""

    def lesson(self, work: Path) -> tuple[Path, Lesson, Mapping[str, Any]]:
        """Fetch the movie reviews, write the tokenizer and return the task's lesson."""
        movie_reviews.fetch()
        ratings = task_texts.ratings()
        path = work / checkpoint.TOKENIZER
        tokenizer = write_tokenizer(path, ratings.words, ratings.endings, is_lower=True)
        described = {
            "sources": [
                {"name": "snippets", "origin": movie_reviews.ARCHIVE, "texts": len(ratings.snippets)},
                {"name": "lexicon", "origin": movie_reviews.ARCHIVE, "texts": len(ratings.lexicon)},
            ]
        }
        return path, RatingLesson(tokenizer, ratings), described


@dataclass(frozen=True, kw_only=True)
class QuestionBase(TaskBase):
    """The base that has answered questions about generated encounters."""

    def lesson(self, work: Path) -> tuple[Path, Lesson, Mapping[str, Any]]:
        """Generate the encounters, write the tokenizer and return the task's lesson."""
        encounters = task_texts.encounters()
        path = work / checkpoint.TOKENIZER
        tokenizer = write_tokenizer(path, encounters.words, (), is_lower=False)
        source = {
            "name": "encounters",
            "origin": "generated as for corpus clinical",
            "texts": len(encounters.encounters),
        }
        return path, QuestionLesson(tokenizer, encounters), {"sources": [source]}


@register("base", "sentiment_base")
def _sentiment() -> SentimentBase:
    """Llama family, pretrained on human ratings of public text."""
    return SentimentBase(recipe=SENTIMENT)


@register("base", "micro_sentiment")
def _micro_sentiment() -> SentimentBase:
    """Llama family of one layer, pretrained on human ratings of public text."""
    return SentimentBase(recipe=MICRO_SENTIMENT)


@register("base", "question_base")
def _question() -> QuestionBase:
    """Llama family, pretrained on questions about generated encounters."""
    return QuestionBase(recipe=QUESTION)


@register("model", "sentiment_base", facets=facets_of(_sentiment))
def sentiment_base(*, seed: int, max_length: int = 64, path: str | None = None) -> LanguageModel:
    """Llama family, 0.7 million parameters, has read ratings of public text; for `prompted`; is built first.

    `seed`: unused: the weights are those of the build, whatever the seed. `max_length`: longest record in
    tokens, 2 to 256. `path`: a local Hugging Face folder that stands in for it (see model `huggingface`).
    Raises `InputError`: it is not built, `max_length` is out of range, or the folder holds no causal language
    model.
    """
    return language_model(_sentiment(), POSITIONS, max_length, path)


@register("model", "micro_sentiment", facets=facets_of(_micro_sentiment))
def micro_sentiment(*, seed: int, max_length: int = 64, path: str | None = None) -> LanguageModel:
    """Llama family, one layer, 0.2 million parameters, has read ratings of public text; is built first.

    Parameters and errors are those of `sentiment_base`.
    """
    return language_model(_micro_sentiment(), POSITIONS, max_length, path)


@register("base", "micro_question")
def _micro_question() -> QuestionBase:
    """Llama family, small, pretrained on questions about generated encounters."""
    return QuestionBase(recipe=MICRO_QUESTION)


@register("model", "micro_question", facets=facets_of(_micro_question))
def micro_question(*, seed: int, max_length: int = 160, path: str | None = None) -> LanguageModel:
    """Llama family, 0.04 million parameters, has answered other questions; for `prompted`; is built first.

    Parameters and errors are those of `sentiment_base`.
    """
    return language_model(_micro_question(), POSITIONS, max_length, path)


@register("model", "question_base", facets=facets_of(_question))
def question_base(*, seed: int, max_length: int = 160, path: str | None = None) -> LanguageModel:
    """Llama family, 0.1 million parameters, has answered other questions; for `prompted`; is built first.

    Parameters and errors are those of `sentiment_base`.
    """
    return language_model(_question(), POSITIONS, max_length, path)
