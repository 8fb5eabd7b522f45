"""BLEU and METEOR: values computed by hand from the definitions, several references, and what is refused."""

from __future__ import annotations

import doctest
import math

import pytest

from workbench.core.errors import InputError
from workbench.interfaces import Record
from workbench.training import tasks
from workbench.training.tasks import bleu, check_references, meteor

REFERENCE = "the patient stayed for 3 days ."


def test_bleu_by_hand() -> None:
    # Papineni et al. 2002. 6 of 7 words are right, 4 of 6 pairs, 2 of 5 triples, 1 of 4 fours; equal lengths.
    said = "the patient stayed for 4 days ."
    by_hand = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25
    assert bleu([said], [[REFERENCE]]) == pytest.approx(by_hand)


def test_bleu_counts_over_the_corpus_and_punishes_short_texts() -> None:
    # All words, pairs, triples and fours are right, but 8 words stand in the place of 11.
    texts, references = ["the patient stayed for", "it is not known"], [[REFERENCE], ["it is not known"]]
    assert bleu(texts, references) == pytest.approx(100 * math.exp(1 - 11 / 8))


def test_a_further_reference_can_only_match_more() -> None:
    other = "the stay lasted 4 days ."
    said = "the stay lasted 3 days ."
    alone = bleu([said, REFERENCE], [[other], [REFERENCE]])
    both = bleu([said, REFERENCE], [[other, REFERENCE], [REFERENCE]])
    assert both > alone
    assert both < 100 == bleu([said], [[other, said]])


def test_the_signature_names_the_settings() -> None:
    from sacrebleu import __version__

    ours = f"case:mixed|eff:no|tok:13a|smooth:exp|version:{__version__}"
    for references, written in ((2, "2"), (-1, "var")):
        metric = tasks._bleu_metric()
        metric.num_refs = references
        assert str(metric.get_signature().format()) == f"nrefs:{written}|{ours}"


def test_meteor_by_hand() -> None:
    # Lavie and Agarwal 2007 with alpha 0.9, beta 3, gamma 0.5. "the cat" and "." match, 3 of 4 words of the
    # text and 3 of 5 of the reference, in two chunks.
    precision, recall = 3 / 4, 3 / 5
    mean = precision * recall / (0.9 * precision + 0.1 * recall)
    by_hand = mean * (1 - 0.5 * (2 / 3) ** 3)
    assert meteor(["the cat sat ."], [["the cat was here ."]]) == pytest.approx(by_hand)


def test_meteor_matches_stems_but_no_synonyms_and_takes_the_best_reference() -> None:
    one_chunk = 1 - 0.5 * (1 / 2) ** 3
    assert meteor(["patients stayed"], [["patient stays"]]) == pytest.approx(one_chunk)
    assert meteor(["big"], [["large"]]) == 0.0
    assert meteor(["patients stayed"], [["nothing", "patient stays"]]) == pytest.approx(one_chunk)
    assert meteor(["patients stayed", ""], [["patient stays"], ["x"]]) == pytest.approx(one_chunk / 2)


@pytest.mark.parametrize("score", [bleu, meteor])
@pytest.mark.parametrize(
    ("texts", "references", "message"),
    [
        ([], [], "texts must not be empty"),
        (["a"], [], "got 0 for 1 texts"),
        (["a", "b"], [["a"], []], "at least one a text"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    score: object, texts: object, references: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        score(texts, references)  # type: ignore[operator]


def test_records_without_text_or_reference_are_refused() -> None:
    check_references([Record(id="a", text="age[1]", answers=("one",))])
    for record, message in (
        (Record(id="b", text=" ", answers=("x",)), "record 'b' has no text"),
        (Record(id="c", text="age[1]"), "record 'c' has no reference"),
        (Record(id="d", text="age[1]", answers=(" ",)), "record 'd' has no reference"),
    ):
        with pytest.raises(InputError, match=message):
            check_references([record])


def test_the_examples_in_the_documentation_run() -> None:
    assert doctest.testmod(tasks).failed == 0
