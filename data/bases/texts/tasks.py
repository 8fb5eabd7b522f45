"""What the two task bases are pretrained on: public text with human ratings, and generated encounters.

Neither ever sees a prompt, an option or a question as a task words it, only kindred ones. Ratings are those
of the VADER archive (Hutto and Gilbert 2014): newspaper, product and message snippets, and the words of its
lexicon. Of its film reviews nothing is read but to leave out what nearly repeats one.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from workbench.data import movie_reviews
from workbench.data.clinical import questions as clinical_questions
from workbench.data.clinical.encounters import OPENING, Encounter, clause, wordings_of
from workbench.data.clinical.generator import generate
from workbench.data.shared.near_duplicates import near_duplicates
from workbench.data.shared.parts import cache_folder, pick
from workbench.training.tasks import SENTIMENT_OPTIONS, SENTIMENT_PROMPT, question_text

PUBLIC_SOURCES = ("newspaper", "product", "messages")
LEXICON = "vaderSentiment-3.3.2/vaderSentiment/vader_lexicon.txt"
FEWEST_USES = 3
"""Occurrences from which a word of the snippets is a token of its own."""

LEVELS = (-1.5, -0.4, 0.4, 1.5)
"""Where one of the five levels of a rating ends and the next begins."""

RATED_AS = (
    (" overall:", ("awful", "bad", "okay", "good", "excellent")),
    (" in short:", ("horrible", "poor", "okay", "fine", "wonderful")),
    (" the writer's mood is", ("angry", "unhappy", "neutral", "glad", "happy")),
    (" rating:", ("1", "2", "3", "4", "5")),
    (" all in all it is", ("awful", "bad", "okay", "good", "excellent")),
    (" a reader finds this", ("horrible", "poor", "okay", "fine", "wonderful")),
)
"""Phrases after a text, with the words for its levels; none is the task's."""

ASKED_AS = wordings_of("asked_as")
"""Wordings by topic; none is the corpus's."""

ASKED_IN = (
    "{context} Q: {question} A:",
    "Read this: {context}\nAsked: {question}\nReply:",
    "{question}\n{context}\nIt says:",
    "Text: {context}\nAsk: {question}\nSay:",
)
"""Forms of a question; none is the task's."""

ENCOUNTERS = 8000
ENCOUNTER_SEED = 130_2014
"""Of the encounters that are told to a base; corpora draw theirs from their own seeds."""

_TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[^\sa-z0-9]")
_ENDING = re.compile(r"[a-z]{2,4}")
_FEWEST_ENDINGS = 60


@dataclass(frozen=True, kw_only=True)
class RatedText:
    """A snippet or a word, and its mean rating from -4 to 4."""

    text: str
    rating: float


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Public text with sentiment ratings.

    Attributes:
        snippets: Of newspapers, products and messages.
        lexicon: Words with ratings of their own.
        words, endings: Words, and ends of words, that become tokens, sorted.
    """

    snippets: tuple[RatedText, ...]
    lexicon: tuple[RatedText, ...]
    words: tuple[str, ...]
    endings: tuple[str, ...]


def ratings() -> Ratings:
    """The rated public text, from the cached archive."""
    snippets = tuple(RatedText(text=rated.text, rating=rated.rating) for rated in _public_snippets())
    lexicon = tuple(_lexicon())
    counts = Counter(word for rated in snippets for word in _TOKEN.findall(rated.text.lower()))
    phrases = [SENTIMENT_PROMPT, *SENTIMENT_OPTIONS, *(phrase for phrase, _ in RATED_AS)]
    needed = {word for phrase in phrases for word in re.findall(r"[a-z']+|[^\sa-z]", phrase.lower())}
    needed |= {word for _, words in RATED_AS for word in words} | {rated.text for rated in lexicon}
    frequent = {word for word, count in counts.items() if count >= FEWEST_USES}
    ends = Counter(
        word[-length:] for word in needed | set(counts) for length in (2, 3, 4) if len(word) > length + 2
    )
    kept = {end for end, count in ends.items() if count >= _FEWEST_ENDINGS and _ENDING.fullmatch(end)}
    return Ratings(
        snippets=snippets,
        lexicon=lexicon,
        words=tuple(sorted(needed | frequent)),
        endings=tuple(sorted(kept)),
    )


def _public_snippets() -> list[movie_reviews.Snippet]:
    """The snippets of the public sources that repeat no film review, nearly or wholly, nor each other."""
    films = [snippet.text for snippet in movie_reviews.load_snippets("movie_reviews")]
    public: list[movie_reviews.Snippet] = []
    for source in PUBLIC_SOURCES:
        public.extend(movie_reviews.usable(movie_reviews.load_snippets(source)))
    texts = [*films, *(snippet.text for snippet in public)]
    flags = near_duplicates(texts, movie_reviews.SIMILARITY)[len(films) :]
    return [snippet for snippet, flag in zip(public, flags, strict=True) if not flag]


def _lexicon() -> list[RatedText]:
    """The lexicon's entries that are single words of letters."""
    archive = (cache_folder() / movie_reviews.ARCHIVE).read_bytes()
    content = movie_reviews._member(archive, LEXICON).decode("utf-8")
    rows = (line.split("\t") for line in content.splitlines())
    return [
        RatedText(text=row[0], rating=float(row[1]))
        for row in rows
        if len(row) > 1 and re.fullmatch(r"[a-z][a-z'-]+", row[0])
    ]


def level(rating: float) -> int:
    """Which of the five levels a rating is, from 0."""
    return int(np.searchsorted(LEVELS, rating))


@dataclass(frozen=True, kw_only=True)
class Encounters:
    """Public encounters, and the words that their narratives and questions are written with."""

    encounters: tuple[Encounter, ...]
    words: tuple[str, ...]

    def example(self, generator: np.random.Generator, clauses: int) -> tuple[str, str]:
        """A question in one of the public forms, drawn, and its answer."""
        encounter = pick(self.encounters, generator)
        known = clinical_questions.answerable(encounter)
        topic = pick(known, generator)
        context = clinical_questions.narrative(encounter, topic, clauses, generator)
        wordings = ASKED_AS[topic]
        question = pick(wordings, generator)
        form = pick(ASKED_IN, generator)
        answer = clinical_questions.answers_of(encounter, topic)[0]
        return form.format(context=context, question=question), f" {answer}\n"


def encounters() -> Encounters:
    """The public encounters; generated, nobody's."""
    drawn = tuple(generate(ENCOUNTERS, np.random.default_rng(ENCOUNTER_SEED)))
    topics = clinical_questions.TOPICS
    clauses = {clause(name, encounter.values[name]) for encounter in drawn for name in topics}
    questions = [wording for wordings in ASKED_AS.values() for wording in wordings]
    questions += [topic.question for topic in topics.values()]
    frames = [form.format(context="", question="") for form in ASKED_IN]
    texts = [*clauses, *questions, *frames, OPENING, question_text(clinical_questions.TITLE, "", "")]
    words = {word.rstrip(".?:") for text in texts for word in text.split()}
    answering = tuple(encounter for encounter in drawn if clinical_questions.answerable(encounter))
    return Encounters(encounters=answering, words=tuple(sorted(words - {""})))
