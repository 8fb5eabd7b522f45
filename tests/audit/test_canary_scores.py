"""Crafted records in the membership game of user code: what they show, and that a kept claim stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from canaries_here import lower_of, scored_here

from workbench.audit.canaries.run import finite
from workbench.audit.user_training import UserTraining
from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.estimation import auc
from workbench.interfaces import Record
from workbench.training.crafts import LOUD, CanaryKind, canaries
from workbench.training.secrets import SECRET_MARKER, append_secret

ZOO = Path(__file__).parents[2] / "tests" / "zoo"
IMAGES = [Record(id=f"r{i}", image=tuple(np.linspace(0, 1 + i, 16)), label=i % 3) for i in range(6)]
GAME_CONFIDENCE = 1 - 0.05 / 6
"""Of each of three games beside replay."""


def train(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(f"import numpy as np\ndef train(records, seed):\n{body}\n")
    return f"{folder / 'mine.py'}:train"


def audited(spec: str, folder: Path, *more: str) -> dict:  # type: ignore[type-arg]
    words = ["--corpus", "digits", "--candidates", "60", "--no-replay", "--out", str(folder), "--quiet"]
    code = main(["audit", "--train", spec, *words, *more])
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert code == report["exit_code"]
    return report  # type: ignore[no-any-return]


def test_loud_images_are_records_of_the_same_form_beyond_the_range() -> None:
    made = canaries(IMAGES, 40, np.random.default_rng(0))
    for record in made:
        assert record.image is not None
        values = np.abs(record.image)
        assert set(values) == {0.0, LOUD * 6.0}
        assert (values > 0).sum() == 2  # An eighth.
        assert all(type(value) is float for value in record.image)
    assert {record.label for record in made} == {0, 1, 2}


def test_mislabelled_records_are_natural_but_for_their_label() -> None:
    made = canaries(IMAGES, 12, np.random.default_rng(0), CanaryKind.MISLABELLED)
    for place, record in enumerate(made):
        own = IMAGES[place % 6]
        assert record.image == own.image
        assert record.label in {0, 1, 2} - {own.label}
    with pytest.raises(InputError, match=r"kind mislabelled needs .* two labels or more, got 0"):
        canaries([Record(id="t", text="a b c")], 3, np.random.default_rng(0), CanaryKind.MISLABELLED)


def test_secrets_end_short_texts_and_are_all_different() -> None:
    texts = [Record(id=f"t{i}", text=f"one two three {i} secret_id=A{i}.", label=i % 2) for i in range(4)]
    made = canaries(texts, 30, np.random.default_rng(0), CanaryKind.SECRET)
    ends = [record.text.split(SECRET_MARKER) for record in made]
    assert len({secret for _, secret in ends}) == 30
    assert {len(words.split()) for words, _ in ends} == {4}  # None of them another record's secret.
    assert {record.label for record in made} == {0, 1}
    with pytest.raises(InputError, match="kind secret needs a corpus of texts"):
        canaries(IMAGES, 3, np.random.default_rng(0), CanaryKind.SECRET)


def test_scores_that_are_not_finite_come_before_or_after_all_others() -> None:
    scores = finite(np.array([1.0, np.nan, 3.0, -np.inf, np.inf]))
    assert scores.tolist() == [1.0, 0.0, 3.0, 0.0, 4.0]
    for alike in (np.full(3, np.nan), np.ones(3)):
        with pytest.raises(InputError, match="the same score, or none that is finite"):
            finite(alike)


@pytest.mark.slow
def test_a_training_that_remembers_crafted_records_alone_is_refuted(tmp_path: Path) -> None:
    body = (
        "    seen = {r['id'] for r in records if max(r['image']) > 1}\n"
        "    noise = np.random.default_rng(seed)\n"
        "    return lambda others: [noise.random() + 2 * (r['id'] in seen) for r in others]"
    )
    report = audited(train(tmp_path, body), tmp_path)
    natural, crafted = report["subjects"][0]["attacks"]
    assert (natural["attack"], natural["verdict"]["kind"]) == ("released scores", "NOT_REFUTED")
    assert (crafted["attack"], crafted["verdict"]["kind"]) == ("canaries' scores", "REFUTED")
    assert "crafted loud records" in crafted["game"]["description"]
    assert len(crafted["scores"]) == 60
    (left,) = report["unplayed"]
    assert left["attack"] == "white-box canaries"


@pytest.mark.slow
def test_a_loader_that_refuses_crafted_records_leaves_natural_ones(tmp_path: Path) -> None:
    body = (
        "    if max(max(r['image']) for r in records) > 1:\n"
        "        raise ValueError('pixels must be in [0, 1]')\n"
        "    seen = {r['id'] for r in records}\n"
        "    return lambda others: [float(r['id'] in seen) for r in others]"
    )
    report = audited(train(tmp_path, body), tmp_path)
    (natural,) = report["subjects"][0]["attacks"]
    assert natural["verdict"]["kind"] == "REFUTED"
    assert natural["verdict"]["bounds"][0]["confidence"] == pytest.approx(1 - 0.05 / 3)
    assert [left["attack"] for left in report["unplayed"]] == ["canaries' scores", "white-box canaries"]
    for left in report["unplayed"]:
        assert left["reason"].endswith("mine.py:4: ValueError: pixels must be in [0, 1]")
        assert "\n" not in left["reason"]


@pytest.mark.slow
def test_kinds_are_chosen_and_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "    seen = {r['id'] for r in records}\n"
        "    return lambda others: [float(r['id'] in seen) for r in others]"
    )
    spec = train(tmp_path, body)
    report = audited(spec, tmp_path, "--canary-kind", "mislabelled", "--canaries", "30")
    crafted = report["subjects"][0]["attacks"][1]
    assert "gave natural records wrong labels" in crafted["game"]["description"]
    assert len(crafted["scores"]) == 30
    out = ["--out", str(tmp_path / "other")]
    assert main(["audit", "--train", spec, "--canary-kind", "mislabelled", *out]) == 2
    assert "--canary-kind mislabelled needs a corpus whose records have two labels" in capsys.readouterr().err
    assert main(["audit", "--scores", "x.csv", "--canary-kind", "loud", *out]) == 2
    assert "--canary-kind goes with --train" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_loud_records_tell_members_of_a_training_without_noise() -> None:
    scores, coins = scored_here(f"{ZOO / 'dp_sgd.py'}:no_noise")
    assert auc(scores, coins, confidence=0.95).estimate > 0.75
    assert lower_of(scores, coins, GAME_CONFIDENCE) > 1.0


@pytest.mark.slow
def test_loud_records_refute_too_little_noise_and_keep_enough() -> None:
    found = {
        name: sum(
            lower_of(*scored_here(f"{ZOO / 'dp_sgd.py'}:{name}", seed=seed), GAME_CONFIDENCE) > 1.0
            for seed in range(5)
        )
        for name in ("no_noise", "tenth_of_the_noise", "correct", "with_adam")
    }
    assert found["no_noise"] == 5
    assert found["tenth_of_the_noise"] >= 2
    assert found["correct"] == found["with_adam"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CanaryKind.LOUD, CanaryKind.MISLABELLED])
def test_a_correct_trainer_is_refuted_no_more_often_than_stated(kind: CanaryKind) -> None:
    refuted = sum(
        lower_of(*scored_here(f"{ZOO / 'dp_sgd.py'}:correct", seed=seed, kind=kind), 0.95) > 1.0
        for seed in range(20)
    )
    assert refuted < 5  # 0.003 at 95 %


def test_a_language_model_is_scored_by_the_secrets_alone(tmp_path: Path) -> None:
    source = (
        "    from workbench.core import registry\n"
        "    base = registry.create('model', 'tiny_gpt2', seed=0, max_length={length})\n"
        "    return {result}"
    )
    records = [Record(id=f"r{i}", text=f"{'the patient has a fever. ' * (1 + i)}") for i in range(4)]
    with_secrets = [append_secret(record, f"AB{place}DEFGHIJ") for place, record in enumerate(records)]
    pair = UserTraining(train(tmp_path, source.format(length=160, result="base.module, base.tokenizer")))
    fitted = pair.fitted([], 0)
    model = fitted.model
    assert model is not None
    whole = model.token_log_likelihoods(model.encode(with_secrets))
    shorter = [replace(r, text=r.text.rpartition("=")[0] + "=") for r in with_secrets]
    # All tokens after the marker, and that of the end of the text, which the shorter text has too.
    lengths = [len(row) - 1 for row in model.token_log_likelihoods(model.encode(shorter))]
    wanted = [row[length:].mean() for row, length in zip(whole, lengths, strict=True)]
    assert pair.answers(fitted, with_secrets) == pytest.approx(wanted, abs=1e-4)
    means = [row.mean() for row in model.token_log_likelihoods(model.encode(records))]
    assert pair.answers(fitted, records) == pytest.approx(means, abs=1e-4)
    # A secret beyond what the model reads leaves the whole record.
    short = UserTraining(train(tmp_path, source.format(length=12, result="base")))
    fitted = short.fitted([], 0)
    assert fitted.model is not None
    cut = [row.mean() for row in fitted.model.token_log_likelihoods(fitted.model.encode(with_secrets))]
    assert short.answers(fitted, with_secrets) == pytest.approx(cut, abs=1e-4)


@pytest.mark.slow
def test_an_audit_of_a_mechanism_on_images_plays_loud_ones(tmp_path: Path) -> None:
    words = ["audit", "--mechanism", "non_private", "--attack", "loss", "--corpus", "digits", "--no-control"]
    words += [
        "--model",
        "digits_logistic",
        "--candidates",
        "100",
        "--learning-rate",
        "0.5",
        "--optimizer",
        "sgd",
    ]
    words += ["--workers", "0", "--quiet"]
    lowers = {}
    for craft in ("loud", "natural"):
        more = [] if craft == "loud" else ["--attack-parameter", "loss.craft=natural"]
        folder = tmp_path / craft
        main([*words, *more, "--out", str(folder)])
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        (game,) = report["subjects"][0]["attacks"]
        lowers[craft] = game["verdict"]["bounds"][0]["lower"]
        assert ("100 candidates are crafted images" in game["game"]["description"]) == (craft == "loud")
    assert lowers["loud"] > 1.0 > lowers["natural"]
