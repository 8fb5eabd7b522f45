"""Data to text, as texts: how a record is put to a model, and how generated texts are scored. No torch.

BLEU is sacrebleu's (Post 2018), over the whole corpus and all references. METEOR is nltk's (Lavie and Agarwal
2007, its published weights) without the stage of synonyms: WordNet, which decides those, comes in no package,
so that only equal words and words of equal Porter stem match. Both cut texts into words as WMT's script 13a.

    >>> bleu(["the cat sat on the mat."], [["the cat sat on the mat.", "a cat sat."]])
    100.0
    >>> meteor(["cats sit"], [["the cats sitting"]]) < meteor(["the cats sitting"], [["the cats sitting"]])
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.core.errors import InputError
from workbench.interfaces import Record

TEXT_MARK = "\n"
"""What stands between a record and its text."""


def check_references(records: Sequence[Record]) -> None:
    """Refuse records that no text is given for.

    Args:
        records: All that would be trained on or told.

    Raises:
        InputError: a record has no text, or no reference.
    """
    for record in records:
        if not record.text.strip():
            raise InputError(f"record {record.id!r} has no text")
        if not record.answers or not record.answers[0].strip():
            raise InputError(f"record {record.id!r} has no reference to be told as")


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """BLEU of a corpus, in [0, 100]: sacrebleu's, with the settings of `bleu_signature`.

    Args:
        texts: What was generated; at least one.
        references: For each text those that are right; at least one, and not all as many.

    Raises:
        InputError: there is no text, or one has no reference.
    """
    _check(texts, references)
    most = max(map(len, references))
    # One stream for each place among the references; None where a text has no more.
    streams = [[own[i] if i < len(own) else None for own in references] for i in range(most)]
    score = float(_bleu_metric().corpus_score(list(texts), streams).score)
    return min(100.0, score)  # An exponential of a sum of logarithms may round above.


def bleu_signature(references: int | None = None) -> str:
    """What sacrebleu says of its settings and version, for reports.

    Args:
        references: Of each text; None where it varies.
    """
    metric = _bleu_metric()
    metric.num_refs = -1 if references is None else references
    return str(metric.get_signature().format())


def _bleu_metric() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU()


class _NoSynonyms:
    """In the place of WordNet: no word has a synonym."""

    def synsets(self, word: str) -> tuple[()]:
        """None of any word."""
        del word
        return ()


def meteor(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean METEOR of texts, each against the reference that it fits best, in [0, 1].

    Exact and stem matches only (see the module): with synonyms more words would match.

    Args:
        texts: What was generated; at least one.
        references: For each text those that are right; at least one.

    Raises:
        InputError: there is no text, or one has no reference.
    """
    from nltk.stem.porter import PorterStemmer
    from nltk.translate.meteor_score import meteor_score
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    _check(texts, references)
    cut, stemmer = Tokenizer13a(), PorterStemmer()
    scores = [
        meteor_score(
            [cut(one).split() for one in own], cut(text).split(), stemmer=stemmer, wordnet=_NoSynonyms()
        )
        for text, own in zip(texts, references, strict=True)
    ]
    return float(sum(scores) / len(scores))


def _check(texts: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not texts:
        raise InputError("texts must not be empty")
    if len(texts) != len(references):
        raise InputError(f"references must be one list a text, got {len(references)} for {len(texts)} texts")
    if not all(references):
        raise InputError("references must hold at least one a text")
