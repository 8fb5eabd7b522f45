"""The loss attack: its scores are their formulas, and it is blind to labels."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from workbench.attacks.loss import LossAttack
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.games.membership import MembershipSeen, References
from workbench.interfaces import Corpus, FloatArray, Record, Scores, Subject
from workbench.training.content import settled
from workbench.training.secrets import SECRET_MARKER

NOTHING = np.random.default_rng(0)
NOBODY = References()


def fake_subject(rule: Callable[[Record], Sequence[float]]) -> Subject:
    """A subject whose token log-likelihoods follow a rule; nothing else of it is used."""

    def token_log_likelihoods(records: Sequence[Record]) -> list[FloatArray]:
        return [np.array(rule(record), dtype=np.float64) for record in records]

    return cast(Subject, SimpleNamespace(token_log_likelihoods=token_log_likelihoods))


def character_model(record: Record, end: float | None = None) -> list[float]:
    """A causal toy model: a character's log-likelihood depends on it and on what precedes it."""
    values = [
        -0.5 - (ord(c) % 7) / 3 - 0.01 * (ord(b) % 5)
        for b, c in zip(record.text, record.text[1:], strict=False)
    ]
    return values if end is None else [*values, end]


def scored(
    attack: LossAttack, subject: Subject, records: Sequence[Record], references: References = NOBODY
) -> Scores:
    seen = MembershipSeen(subject=subject, records=tuple(records), references=references)
    return attack.score(seen, NOTHING)


def scores_of(attack: LossAttack, subject: Subject, records: Sequence[Record]) -> FloatArray:
    return scored(attack, subject, records).values


def test_scores_are_mean_log_likelihood_and_mean_probability() -> None:
    tokens = {"a": [-1.0, -3.0], "b": [-0.5]}
    subject = fake_subject(lambda record: tokens[record.id])
    records = [Record(id="a", text="x"), Record(id="b", text="y")]
    assert scores_of(LossAttack(), subject, records) == pytest.approx([-2.0, -0.5])
    confidence = scores_of(LossAttack(score="confidence"), subject, records)
    assert confidence == pytest.approx([(np.exp(-1) + np.exp(-3)) / 2, np.exp(-0.5)])
    details = scored(LossAttack(), subject, records).details
    assert details["mean_log_likelihood_nats"] == pytest.approx(-1.25)
    assert details["mean_perplexity"] == pytest.approx((np.exp(2) + np.exp(0.5)) / 2)


@pytest.mark.parametrize("end", [None, -0.7])
def test_ending_is_scored_given_its_prompt(end: float | None) -> None:
    """With and without an end-of-text token, which the prompt alone would end in too."""
    records = [Record(id="a", text="the patient. secret_id=QX7"), Record(id="b", text="no. secret_id=AB")]
    subject = fake_subject(lambda record: character_model(record, end))
    found = scores_of(LossAttack(ending_marker=SECRET_MARKER), subject, records)
    for record, value in zip(records, found, strict=True):
        length = len(record.text.rpartition("=")[2]) + (end is not None)
        assert value == pytest.approx(np.mean(character_model(record, end)[-length:]))


def test_ending_tokens_survive_rounding_of_the_prompt() -> None:
    noise = np.random.default_rng(3)
    record = Record(id="a", text="the patient. secret_id=QX7")
    subject = fake_subject(lambda r: [v + 1e-5 * noise.normal() for v in character_model(r)])
    found = scores_of(LossAttack(ending_marker=SECRET_MARKER), subject, [record])
    assert found == pytest.approx([np.mean(character_model(record)[-3:])], abs=1e-4)


def test_calibration_subtracts_the_base_model(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(id=str(i), text="x" * (i + 2)) for i in range(70)]
    batches: list[int] = []

    def encode(batch: Sequence[Record]) -> dict[str, Any]:
        batches.append(len(batch))
        return {"records": batch}

    base = SimpleNamespace(
        module=SimpleNamespace(eval=lambda: None),
        encode=encode,
        token_log_likelihoods=lambda batch: [np.full(2, -float(len(r.text))) for r in batch["records"]],
    )
    built: list[Any] = []

    def build_model(plan: Any) -> Any:
        built.append(plan)
        return base

    monkeypatch.setattr("workbench.training.fine_tuning.build_model", build_model)
    target = fake_subject(lambda record: [-1.0, -2.0])
    cast(Any, target).plan = "the plan"
    found = scores_of(LossAttack(calibrate=True), target, records)
    assert found == pytest.approx([-1.5 + len(record.text) for record in records])
    assert built == ["the plan"]
    assert sum(batches) == 70
    assert max(batches) <= 32


@pytest.mark.parametrize("score", ["log_likelihood", "confidence"])
def test_members_score_higher_and_order_of_candidates_does_not_matter(score: str) -> None:
    """Members have lower losses by two deviations: AUC 0.92, above 0.8 but for one run in 1e5."""
    rng = np.random.default_rng(0)
    members = rng.permutation(np.arange(200) < 100)
    table = rng.normal(-3.0, 0.1, size=(200, 4)) + 0.1 * members[:, None]
    subject = fake_subject(lambda record: table[int(record.id)])
    records = [Record(id=str(i), text="x") for i in range(200)]
    found = scores_of(LossAttack(score=score), subject, records)
    wins = stats.mannwhitneyu(found[members], found[~members]).statistic / 100**2
    assert wins > 0.8
    order = rng.permutation(200)
    assert np.array_equal(
        found[order], scores_of(LossAttack(score=score), subject, [records[i] for i in order])
    )


def test_pure_noise_gives_no_advantage() -> None:
    """Two-sided Mann-Whitney test at 0.001: the false-alarm rate of this test."""
    rng = np.random.default_rng(1)
    members = rng.random(400) < 0.5
    table = rng.normal(-3.0, 1.0, size=(400, 4))
    records = [Record(id=str(i), text="x") for i in range(400)]
    found = scores_of(LossAttack(), fake_subject(lambda record: table[int(record.id)]), records)
    assert stats.mannwhitneyu(found[members], found[~members]).pvalue > 0.001


def a_corpus(kind: str = "text", n: int = 40) -> Corpus:
    records = tuple(Record(id=f"r{i}", text=f"text {i}." if kind == "text" else "") for i in range(n))
    return Corpus(name="c", records=records, held_out=(), public=(), kind=kind, origin="made here")


def test_canaries_replace_the_share_of_candidates_that_was_asked_for() -> None:
    for share, count in ((1.0, 40), (0.25, 10), (0.0, 0)):
        inserted = LossAttack(canaries=share).prepare(a_corpus(), np.random.default_rng(0)).replaced
        assert len(inserted) == count
        assert all(SECRET_MARKER in record.text for record in inserted)
        assert len({record.id for record in inserted}) == count
        assert {record.id for record in inserted} <= {record.id for record in a_corpus().records}
    assert LossAttack().prepare(a_corpus("image"), np.random.default_rng(0)).replaced == ()


def images(labels: int = 3) -> Corpus:
    records = tuple(Record(id=f"r{i}", image=(0.0, 1.0) * 8, label=i % labels) for i in range(40))
    return Corpus(name="c", records=records, held_out=(), public=(), kind="image", origin="made here")


@pytest.mark.parametrize(("craft", "share", "count"), [("loud", 1.0, 40), ("mislabelled", 0.25, 10)])
def test_crafted_images_take_the_places_of_candidates(craft: str, share: float, count: int) -> None:
    attack = LossAttack(craft=craft, canaries=share)
    inserted = attack.prepare(images(), np.random.default_rng(0)).replaced
    assert inserted == attack.prepare(images(), np.random.default_rng(0)).replaced
    natural = {record.id: record for record in images().records}
    assert len({record.id for record in inserted} & set(natural)) == len(inserted) == count
    for record in inserted:
        assert record.image is not None
        if craft == "mislabelled":
            assert (record.image, record.label) != (natural[record.id].image, natural[record.id].label)
            assert record.image == natural[record.id].image
        else:
            assert max(map(abs, record.image)) == 3.0
    # Texts get their secrets, whatever the craft.
    secrets = attack.prepare(a_corpus(), np.random.default_rng(0))
    assert secrets == LossAttack(canaries=share).prepare(a_corpus(), np.random.default_rng(0))


def test_crafts_are_refused_where_they_make_no_sense() -> None:
    with pytest.raises(InputError, match=r"craft 'laud'.*did you mean 'loud'"):
        LossAttack(craft="laud")
    with pytest.raises(InputError, match=r"craft mislabelled needs a corpus .* two labels or more, got 1"):
        LossAttack(craft="mislabelled").prepare(images(labels=1), np.random.default_rng(0))


def test_loss_and_lira_insert_the_same_canaries() -> None:
    """Or they could not share one trained subject."""
    drawn = [
        registry.create("attack", name).prepare(a_corpus(), np.random.default_rng(4))
        for name in ("loss", "lira")
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != LossAttack().prepare(a_corpus(), np.random.default_rng(5))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"score": "log_likelyhood"}, "unknown score 'log_likelyhood'; did you mean 'log_likelihood'"),
        ({"canaries": 1.5}, "canaries must be in \\[0, 1\\], got 1.5"),
        ({"canaries": float("nan")}, "canaries must be in \\[0, 1\\], got nan"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("attack", "loss", **parameters)


@pytest.mark.parametrize(
    ("marker", "text", "rule", "message"),
    [
        ("", "x", lambda record: [], "record 'a' is too short"),
        ("", "x", lambda record: [float("nan")], "record 'a' a log-likelihood that is not finite"),
        (
            "secret_id=",
            "no secret",
            character_model,
            "ending_marker 'secret_id=' does not occur in",
        ),
        ("secret_id=", "cut secret_id=AB", lambda record: [-1.0], "ending of record 'a' after 'secret_id='"),
    ],
)
def test_unusable_records_are_named(
    marker: str, text: str, rule: Callable[[Record], list[float]], message: str
) -> None:
    attack = LossAttack(ending_marker=marker)
    with pytest.raises(InputError, match=message):
        scores_of(attack, fake_subject(rule), [Record(id="a", text=text)])


def test_there_must_be_a_candidate() -> None:
    attack = LossAttack()
    assert attack.game == "membership"
    assert attack.references_needed == 0
    with pytest.raises(InputError, match="at least one candidate, got 0"):
        scored(attack, fake_subject(character_model), [])


LINES = ("the patient is a woman. " * 8, "qJ7 zR1 kW9 vX3", "of one drug only, he stayed.", "ab")


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 1.0])
def test_min_k_and_an_ending_by_share_are_their_naive_formulas(share: float) -> None:
    records = [Record(id=str(i), text=text) for i, text in enumerate(LINES)]
    subject = fake_subject(character_model)
    tokens = [character_model(record) for record in records]
    endings = scores_of(LossAttack(ending_share=share), subject, records)
    least = scores_of(LossAttack(score="min_k", min_k_share=share), subject, records)
    for own, ending, low in zip(tokens, endings, least, strict=True):
        assert ending == pytest.approx(np.mean(own[len(own) - math.ceil(share * len(own)) :]))
        assert low == pytest.approx(np.mean(sorted(own)[: max(1, int(share * len(own)))]))


def test_a_share_that_makes_a_whole_number_of_tokens_keeps_it() -> None:
    """0.7 of 10 is 7.000000000000001 and 0.29 of 100 is 28.999999999999996."""
    for share, tokens, ending, least in ((0.7, 10, 7, 7), (0.29, 100, 29, 29)):
        subject = fake_subject(lambda record, n=tokens: [-float(i) for i in range(n)])  # type: ignore[misc]
        record = [Record(id="a", text="x")]
        found = scored(LossAttack(ending_share=share), subject, record)
        assert found.details["mean_scored_tokens"] == ending
        lowest = scores_of(LossAttack(score="min_k", min_k_share=share), subject, record)
        assert lowest == pytest.approx([-np.mean(range(tokens - least, tokens))])


def test_zlib_divides_by_the_compressed_bytes_of_what_is_scored() -> None:
    records = [Record(id=str(i), text=f"{text} secret_id=QX7.") for i, text in enumerate(LINES)]
    subject = fake_subject(character_model)

    def size(text: str) -> int:
        return len(zlib.compress(text.encode("utf-8")))

    whole = scores_of(LossAttack(score="zlib"), subject, records)
    assert whole == pytest.approx([np.mean(character_model(r)) / size(r.text) for r in records])
    marked = scores_of(LossAttack(score="zlib", ending_marker=SECRET_MARKER), subject, records)
    assert marked == pytest.approx([np.mean(character_model(r)[-4:]) / size("QX7.") for r in records])
    half = scores_of(LossAttack(score="zlib", ending_share=0.5), subject, records)
    for record, value in zip(records, half, strict=True):
        tokens, text = character_model(record), record.text
        ending = tokens[len(tokens) // 2 :]
        assert value == pytest.approx(np.mean(ending) / size(text[len(text) - round(len(text) / 2) :]))
    with pytest.raises(InputError, match=r"score 'zlib' needs texts to compress, and record 'i' has none"):
        scores_of(LossAttack(score="zlib"), subject, [Record(id="i", text="", image=(0.5,))])


def test_a_record_that_cannot_be_split_has_the_median_of_the_others() -> None:
    """Whoever it is: a median moves it neither to the members nor away from them."""
    tokens = {"a": [-1.0, -2.0], "b": [], "c": [-4.0], "d": [-9.0, -3.0]}
    records = [Record(id=name, text="x") for name in tokens]
    found = scored(LossAttack(ending_share=0.5), fake_subject(lambda record: tokens[record.id]), records)
    assert found.values == pytest.approx([-2.0, -3.0, -4.0, -3.0])
    assert found.details["failed_splits"] == 1.0
    assert found.details["mean_log_likelihood_nats"] == pytest.approx(-3.0)
    assert found.details["mean_perplexity"] == pytest.approx(np.mean(np.exp([2.0, 4.0, 3.0])))
    with pytest.raises(InputError, match=r"ending_share must leave a token to score, got 0\.5 and 1"):
        scores_of(LossAttack(ending_share=0.5), fake_subject(lambda record: []), records[:1])
    with pytest.raises(InputError, match="too short"):
        scores_of(LossAttack(), fake_subject(lambda record: tokens[record.id]), records)


def test_shadows_without_a_record_are_its_reference() -> None:
    records = [Record(id=str(i), text="x") for i in range(4)]
    included = np.array([[True, True, False, False], [False, False, True, True], [True, False, False, True]])
    shadows = tuple(
        fake_subject(lambda record, s=s: [-(s + 1.0) * (int(record.id) + 1)])  # type: ignore[misc]
        for s in range(3)
    )
    attack = LossAttack(calibrate=True, reference="shadow", shadows=3)
    assert attack.references_needed == 3
    target = fake_subject(lambda record: [-0.5])
    references = References(subjects=shadows, included=included)
    found = scored(attack, target, records, references).values
    expected = []
    for place in range(4):
        without = [-(s + 1.0) * (place + 1) for s in range(3) if not included[s, place]]
        expected.append(-0.5 - np.mean(without))
    assert found == pytest.approx(expected)
    with pytest.raises(InputError, match="references must hold a model without record '0', got none"):
        scored(attack, target, records, References(subjects=shadows[:1], included=included[:1]))
    with pytest.raises(InputError, match=r"references.included must have shape \(3, 4\), got \(2, 4\)"):
        scored(attack, target, records, References(subjects=shadows, included=included[:2]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"score": "zlip"}, "unknown score 'zlip'; did you mean 'zlib'"),
        ({"calibrate": True, "reference": "shadows"}, "unknown reference 'shadows'; did you mean 'shadow'"),
        ({"reference": "shadow"}, "reference goes with calibrate = true, got 'shadow' without it"),
        (
            {"calibrate": True, "reference": "shadow", "shadows": 1},
            "shadows must be a whole number >= 2",
        ),
        ({"calibrate": True, "reference": "shadow", "shadows": 2.5}, "shadows must be a whole number >= 2"),
        ({"ending_marker": 5}, "ending_marker must be text, got 5"),
        ({"ending_share": 0.0}, r"ending_share must be in \(0, 1\], got 0"),
        ({"min_k_share": 1.5}, r"min_k_share must be in \(0, 1\], got 1.5"),
        ({"ending_share": 0.5, "ending_marker": "="}, "ending_share must be 1 where ending_marker splits"),
    ],
)
def test_parameters_out_of_range_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LossAttack(**given)


def test_what_joined_later_leaves_the_old_keys_as_they_were() -> None:
    old = {"score": "log_likelihood", "ending_marker": "", "calibrate": False, "canaries": 1.0}
    assert settled("attack", "loss", {}) == old
    assert settled("attack", "loss", {"ending_share": 0.5}) == {**old, "ending_share": 0.5}
