"""Label-only membership: its shares against counts by hand, on classifiers and a language model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from workbench.attacks.label_only import LabelOnlyAttack
from workbench.attacks.shared.augmentations import noisy, shifted
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import auc
from workbench.games.membership import MembershipGame, MembershipSeen
from workbench.interfaces import BoolArray, Plan, Record, Scores, Subject
from workbench.training.fine_tuning import record_hits
from workbench.training.models import LanguageModel

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(records: tuple[Record, ...], model: str, steps: int) -> Subject:
    plan = Plan(
        records=records,
        held_out=(),
        model=model,
        steps=steps,
        sampling_probability=0.5,
        learning_rate=0.5 if model == "digits_mlp" else 3e-3,
        optimizer="sgd" if model == "digits_mlp" else "adamw",
    )
    subject: Subject = registry.create("mechanism", "non_private").train(plan)
    return subject


def digits(size: int, seed: int = 0) -> tuple[tuple[Record, ...], BoolArray, Subject]:
    """Candidates, their membership, and a classifier that remembers."""
    records = registry.create("corpus", "digits", size=size, seed=seed).records
    members = np.random.default_rng(seed + 1).random(size) < 0.5
    kept = tuple(record for record, used in zip(records, members, strict=True) if used)
    return records, members, trained(kept, "digits_mlp", 200)


def scored(attack: LabelOnlyAttack, subject: Subject, records: tuple[Record, ...]) -> Scores:
    return attack.score(MembershipSeen(subject=subject, records=records), np.random.default_rng(0))


def test_the_score_is_the_share_of_right_labels() -> None:
    records, _, subject = digits(40)
    found = scored(LabelOnlyAttack(noisy_copies=3, noise=0.4), subject, records)
    copies = shifted(records, 9, "shifts") + noisy(records, 3, 0.4, np.random.default_rng(0))
    assert found.details["queries"] == 12
    labels = sorted({record.label for record in records if record.label is not None})
    for place in range(0, 40, 7):
        right = 0
        for copy in copies:
            losses = subject.losses([replace(copy[place], label=label) for label in labels])
            right += labels[int(np.argmin(losses))] == copy[place].label
        assert found.values[place] == pytest.approx(right / 12)


@pytest.mark.slow
def test_members_score_higher_and_changed_copies_help() -> None:
    """Four pools of 100; chance reaches 0.59 (3 standard errors above one half) once in 700 times."""
    gaps, areas = [], []
    for seed in range(4):
        records, members, subject = digits(100, seed)
        gap = scored(LabelOnlyAttack(shifts=1, noisy_copies=0), subject, records).values
        assert set(gap) <= {0.0, 1.0}
        gaps.append(auc(gap, members, confidence=0.95).estimate)
        several = scored(LabelOnlyAttack(), subject, records).values
        areas.append(auc(several, members, confidence=0.95).estimate)
    assert np.mean(areas) > max(0.59, float(np.mean(gaps)))


@pytest.mark.slow
def test_a_language_model_has_the_share_of_tokens_that_it_guesses() -> None:
    corpus = registry.create("corpus", "clinical", size=16, seed=0, attributes="short")
    subject = trained(corpus.records, "tiny_gpt2", 30)
    found = scored(LabelOnlyAttack(), subject, corpus.records)
    model: Any = subject.model  # type: ignore[attr-defined]
    assert isinstance(model, LanguageModel)
    for record, value in zip(corpus.records[:4], found.values, strict=False):
        batch = model.encode([record])
        with torch.no_grad():
            logits = model.module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        right = logits[0, :-1].argmax(1) == batch["input_ids"][0, 1:]
        assert value == pytest.approx(float(right.double().mean()))
    assert found.details["queries"] == 1


def test_images_move_by_a_pixel() -> None:
    record = Record(id="a", image=(1.0, 2.0, 3.0, 4.0), label=0)
    still, right, down, left, up, *corners = (copy[0].image for copy in shifted([record], 9, "shifts"))
    assert still == record.image
    assert (right, down) == ((0.0, 1.0, 0.0, 3.0), (0.0, 0.0, 1.0, 2.0))
    assert (left, up) == ((2.0, 0.0, 4.0, 0.0), (3.0, 4.0, 0.0, 0.0))
    assert corners[0] == (0.0, 0.0, 0.0, 1.0)
    colours = Record(id="b", image=tuple(map(float, range(12))), label=0)
    assert shifted([colours], 2, "shifts")[1][0].image == (0, 0, 0, 2, 0, 4, 0, 6, 0, 8, 0, 10)


def test_what_cannot_be_asked_is_refused() -> None:
    flat = Record(id="flat", image=(0.0,) * 5, label=0)
    with pytest.raises(InputError, match="shifts must be 1 for images that are not square, and 'flat' has 5"):
        shifted([flat], 2, "shifts")
    with pytest.raises(InputError, match="queries must be 1 for records without an image, such as 'text'"):
        shifted([Record(id="text", text="x")], 2, "queries")
    _, _, subject = digits(20)
    with pytest.raises(UnsupportedError, match="predicts neither a label nor every token"):
        record_hits(subject.model, [Record(id="a", image=(0.0,) * 64)])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"shifts": 0}, "shifts must be a whole number >= 1, got 0"),
        ({"shifts": 10}, "shifts must be at most 9, got 10"),
        ({"noisy_copies": -1}, "noisy_copies must be a whole number >= 0, got -1"),
        ({"noise": 0.0}, "noise must be finite and > 0, got 0"),
        ({"canaries": 1.5}, r"canaries must be in \[0, 1\], got 1.5"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("attack", "label_only", **parameters)


@pytest.mark.parametrize(("attack", "answers"), [("label_only", "predicted labels"), ("loss", "likelihoods")])
def test_the_games_words_say_what_is_asked_for_and_what_a_bound_is_about(attack: str, answers: str) -> None:
    made = registry.create("attack", attack)
    words = (
        MembershipGame().words().text("terms", is_paired=False, shadows=0, crafted=0, answers=made.answers)
    )
    assert f"asks the trained model for its {answers}, knows every candidate" in words
    assert words.endswith("a bound is about all scores together, not about each record")
