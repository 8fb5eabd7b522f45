"""Model `text_classifier` and its bases: rows, gradients, permutations, subjects, folders, builds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.one_at_a_time import one_at_a_time

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.data.bases import checkpoint, encoder_bases
from workbench.data.bases.texts import encoders as encoder_texts
from workbench.interfaces import Corpus, Plan, Record, TaskModel
from workbench.studies import bases
from workbench.studies.bases import BuildStage, BuildStep
from workbench.training.loop import load_subject
from workbench.training.per_record import per_record_signals
from workbench.training.permutations import PermutationGroup
from workbench.training.tasks import PAIR_MARK
from workbench.training.text_classifier import TextClassifier

NAMES = ("bert_base", "roberta_base")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def hurried(patch: pytest.MonkeyPatch) -> None:
    """Recipes of two small steps, on few encounters."""
    for name in ("BERT", "ROBERTA"):
        recipe = replace(getattr(encoder_bases, name), steps=2, examples=2, narratives=2)
        patch.setattr(encoder_bases, name, recipe)
    patch.setattr(encoder_texts, "ENCOUNTERS", 60)
    patch.setattr(encoder_texts, "EXAMPLES", 12)
    patch.setattr(encoder_texts, "CODES", tuple(str(number) for number in range(150)))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with hurried builds of both bases."""
    folder = tmp_path_factory.mktemp("bases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_CACHE", str(folder))
        hurried(patch)
        for name in NAMES:
            bases.find(name).build(lambda step: None)
    return folder


@pytest.fixture
def quick(built: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hurried bases in the place of the true ones."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(built))
    hurried(monkeypatch)


def model_of(name: str, task: str = "inference", **given: Any) -> TextClassifier:
    made: TextClassifier = registry.create(
        "model", "text_classifier", **{"seed": 0, "base": name, "task": task, **given}
    )
    return made


def corpus_of(task: str, size: int = 8) -> Corpus:
    made: Corpus = registry.create(
        "corpus", "clinical_tasks", size=size, seed=0, task=task, held_out=6, public=0
    )
    return made


def plan_of(name: str, task: str, corpus: Corpus, **given: Any) -> Plan:
    known = {
        "records": corpus.records,
        "held_out": corpus.held_out,
        "model": "text_classifier",
        "model_parameters": {"base": name, "task": task},
        "steps": 2,
        "sampling_probability": 0.5,
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "seed": 1,
    }
    return Plan(**{**known, **given})


# Rows


@pytest.mark.parametrize("name", NAMES)
def test_a_row_depends_on_its_record_alone(name: str, quick: None) -> None:
    model = model_of(name)
    assert isinstance(model, TaskModel)
    records = corpus_of("inference").records
    batch = model.encode(records)
    lengths = {len(model.encode([record])["input_ids"][0]) for record in records}
    assert len(lengths) > 1
    assert batch["input_ids"].shape == (8, max(lengths))
    together = model.losses(batch).detach().numpy()
    alone = [float(model.losses(model.encode([record])).detach()) for record in records]
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    assert [values.shape for values in model.token_log_likelihoods(batch)] == [(1,)] * 8
    assert model.encode([])["labels"].shape == (0,)


def test_the_second_text_is_a_segment_where_the_family_has_them(quick: None) -> None:
    record = Record(id="a", text=f"gender is Male.{PAIR_MARK}the sex was Male.", label=0)
    bert, roberta = (model_of(name) for name in NAMES)
    words = ["▁gender", "▁is", "▁Male", "."], ["▁the", "▁sex", "▁was", "▁Male", "."]
    batch = bert.encode([record])
    assert bert.tokenizer.convert_ids_to_tokens(batch["input_ids"][0]) == [
        "[CLS]", *words[0], "[SEP]", *words[1], "[SEP]"
    ]  # fmt: skip
    assert batch["token_type_ids"][0].tolist() == [0] * 6 + [1] * 6
    batch = roberta.encode([record])
    assert roberta.tokenizer.convert_ids_to_tokens(batch["input_ids"][0]) == [
        "<s>", *words[0], "</s>", "</s>", *words[1], "</s>"
    ]  # fmt: skip
    assert not batch["token_type_ids"].any()


def test_a_long_pair_keeps_both_texts(quick: None) -> None:
    record = Record(id="a", text=f"{'gender is Male. ' * 20}{PAIR_MARK}the sex was Male.", label=0)
    model = model_of("bert_base", max_length=16)
    batch = model.encode([record])
    assert batch["input_ids"].shape == (1, 16)
    assert int(batch["token_type_ids"].sum()) == 6


def test_scores_are_of_every_label(quick: None) -> None:
    model = model_of("bert_base")
    records = corpus_of("inference").records
    scores = model.label_scores(records)
    assert scores.shape == (8, 3)
    np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1, rtol=1e-6)
    labels = [record.label for record in records]
    losses = model.losses(model.encode(records)).detach().numpy()
    np.testing.assert_allclose(-scores[np.arange(8), labels], losses, rtol=1e-5)
    found = model.task_metrics(records)
    assert found == {"accuracy": float(np.mean(scores.argmax(1) == labels))}
    right = [replace(record, label=int(best)) for record, best in zip(records, scores.argmax(1), strict=True)]
    assert model.task_metrics(right) == {"accuracy": 1.0}
    assert model.task_metrics([]) == {}


def test_only_the_head_is_drawn_from_the_seed(quick: None) -> None:
    for name in NAMES:
        first, same, other = (dict(model_of(name, seed=seed).module.named_parameters()) for seed in (0, 0, 1))
        assert all(torch.equal(value, same[key]) for key, value in first.items())
        changed = {key for key, value in first.items() if not torch.equal(value, other[key])}
        assert changed == {key for key in first if key.startswith("classifier.") and "weight" in key}


# Training


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_records_are_those_of_one_at_a_time(name: str, quick: None) -> None:
    model = model_of(name, task="pairs")
    model.module.double().eval()  # what float32 rounds would hide a small mistake
    batch = model.encode(corpus_of("pairs").records[:4])
    weights = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
    fast, naive = per_record_signals(model, batch, method="book_keeping"), one_at_a_time(model, batch)
    torch.testing.assert_close(fast.norms(), naive.norms(), rtol=1e-10, atol=1e-12)
    expected = naive.weighted_sum(weights)
    assert float((fast.weighted_sum(weights) - expected).norm()) < 1e-10 * float(expected.norm())


@pytest.mark.parametrize("name", NAMES)
def test_permutations_cover_blocks_and_head_and_change_no_loss(name: str, quick: None) -> None:
    model = model_of(name)
    group = PermutationGroup.of(model.module)
    first = "bert.pooler.dense.hidden" if name == "bert_base" else "classifier.dense.hidden"
    assert first in {unit.name for unit in group.units}
    assert {unit.kind for unit in group.units} == {"mlp", "query-key", "value"}
    assert set(group.left_alone.values()) == {"embedding", "normalisation", "added after the permuted sum"}
    batch = model.encode(corpus_of("inference").records)
    before = model.losses(batch).detach()
    parameters = dict(model.module.named_parameters())
    weight = parameters[next(key for key in parameters if key.endswith("query.weight"))]
    kept = weight.detach().clone()
    group.draw(np.random.default_rng(0)).apply_(parameters)
    assert not torch.equal(kept, weight)
    torch.testing.assert_close(model.losses(batch).detach(), before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mechanism", ["non_private", "dp_sgd", "shuffled_dp_sgd"])
def test_a_trained_subject_is_scored_and_comes_back(mechanism: str, quick: None, tmp_path: Path) -> None:
    corpus = corpus_of("outcome")
    budget = None if mechanism == "non_private" else ApproximateDP(epsilon=1.0, delta=1e-3)
    plan = plan_of("roberta_base", "outcome", corpus, budget=budget)
    subject = registry.create("mechanism", mechanism).train(plan)
    metrics = subject.transcript.metrics
    assert metrics["test_accuracy_after"] == subject.model.task_metrics(corpus.held_out)["accuracy"]
    assert {"test_accuracy_before", "train_accuracy_after", "test_perplexity_after"} <= set(metrics)
    subject.save(tmp_path)
    again = load_subject(tmp_path, registry.create("mechanism", mechanism), plan)
    np.testing.assert_array_equal(again.losses(corpus.records), subject.losses(corpus.records))
    assert {file.suffix for file in tmp_path.iterdir() if file.is_file()} == {".safetensors", ".json"}


# What is refused


def test_what_cannot_be_is_refused(quick: None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown base 'bert_bas'; did you mean 'bert_base'"):
        model_of("bert_bas")
    with pytest.raises(InputError, match="unknown task 'outcomes'"):
        model_of("bert_base", task="outcomes")
    with pytest.raises(InputError, match="classes must be an integer of at least 2, got 1"):
        model_of("bert_base", classes=1)
    for name in NAMES:
        assert model_of(name, max_length=128).max_length == 128
        with pytest.raises(InputError, match=f"max_length must be at most 128, the positions of {name}"):
            model_of(name, max_length=129)
    model = model_of("bert_base", task="outcome")
    with pytest.raises(InputError, match="'a' needs a label from 0 to 1 for a text classifier of 2 classes"):
        model.encode([Record(id="a", text="b", label=2)])
    with pytest.raises(InputError, match="'a' has no text"):
        model.encode([Record(id="a", image=(0.0,), label=1)])
    check: Any = registry.entries("model")["text_classifier"].facets
    check.check_records([Record(id="a", text="b", label=2)], base="bert_base", task="inference")
    with pytest.raises(InputError, match="label from 0 to 1"):
        check.check_records([Record(id="a", text="b", label=2)], base="bert_base", task="outcome")
    monkeypatch.setenv("WORKBENCH_CACHE", str(cache))
    with pytest.raises(InputError, match="model 'bert_base' is not built: run `workbench models build"):
        model_of("bert_base")


# Folders


def folder_of(model: TextClassifier, folder: Path) -> Path:
    module: Any = model.module
    module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def test_a_folder_takes_the_place_of_a_base(quick: None, tmp_path: Path) -> None:
    own = model_of("roberta_base", task="inference", seed=3)
    folder = folder_of(own, tmp_path / "roberta")
    found = model_of("roberta_base", task="outcome", seed=5, base_path=str(folder))
    assert (found.classes, found.name) == (2, "text_classifier")
    records = corpus_of("outcome").records
    expected = model_of("roberta_base", task="outcome", seed=5)
    torch.testing.assert_close(found.losses(found.encode(records)), expected.losses(expected.encode(records)))
    facets: Any = registry.entries("model")["text_classifier"].facets
    assert facets.fingerprint(base="roberta_base") != facets.fingerprint(
        base="roberta_base", base_path=str(folder)
    )
    given = {"base": "roberta_base", "task": "outcome"}
    assert bases.starts_from("text_classifier", given) == ("roberta_base", "base_path")


def test_a_folder_of_another_family_is_refused(quick: None, tmp_path: Path) -> None:
    folder = folder_of(model_of("bert_base"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "electra"}), "utf-8")
    with pytest.raises(UnsupportedError, match="must hold a BERT or RoBERTa model"):
        model_of("bert_base", base_path=str(folder))
    (folder / "model.safetensors").write_bytes(b"no weights")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(InputError, match="does not give a model"):
        model_of("bert_base", base_path=str(folder))
    with pytest.raises(InputError, match="path must be a local folder with a model, got 'nowhere'"):
        model_of("bert_base", base_path="nowhere")


# Builds


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_build_goes_on_where_it_stopped(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurried(monkeypatch)
    for own in ("BERT", "ROBERTA"):
        monkeypatch.setattr(encoder_bases, own, replace(getattr(encoder_bases, own), steps=4))

    def stopping(step: BuildStep) -> None:
        if step.stage is BuildStage.TRAINING and step.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bases.find(name).build(stopping)
    steps: list[BuildStep] = []
    folder = bases.find(name).build(steps.append)
    assert [step.done for step in steps if step.stage is BuildStage.TRAINING] == [3, 4]
    weights = (folder / checkpoint.WEIGHTS).read_bytes()
    shutil.rmtree(folder)
    assert (bases.find(name).build(lambda step: None) / checkpoint.WEIGHTS).read_bytes() == weights
    assert bases.find(name).card().is_built


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_true_base_tunes_well_above_chance(name: str, cache: Path) -> None:
    """Under a minute of building; then 100 steps a task. Of 256 held-out records."""
    bases.find(name).build(lambda step: None)
    recipe = json.loads((bases.find(name).card().place / checkpoint.RECIPE).read_text("utf-8"))
    assert recipe["parameters"] == bases.find(name).card().parameters
    # By chance 256 coins give 0.62 or more with probability 7e-5, three-sided ones 0.45 with 4e-5.
    for task, least in {"outcome": 0.85, "pairs": 0.62, "inference": 0.6, "answers": 0.85}.items():
        corpus: Corpus = registry.create(
            "corpus", "clinical_tasks", size=768, seed=0, task=task, held_out=256, public=0
        )
        plan = plan_of(name, task, corpus, steps=100, sampling_probability=32 / 768, learning_rate=5e-4)
        metrics = registry.create("mechanism", "non_private").train(plan).transcript.metrics
        assert metrics["test_accuracy_after"] > max(least, metrics["test_accuracy_before"])
