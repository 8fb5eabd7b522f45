"""Telling records: what a loss is of, how texts are generated and end, per-record gradients, a whole run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.one_at_a_time import one_at_a_time
from oracles.random_transformers import Bytes, random_transformer

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Plan, Record, TaskModel
from workbench.training.loop import load_subject
from workbench.training.per_record import per_record_signals
from workbench.training.permutations import PermutationGroup
from workbench.training.prompts import DataToTextModel, Greedy

RECORDS = [
    Record(id="a", text="age[60]", answers=("She is 60.", "Her age is 60.")),
    Record(id="b", text="stay[3 days]", answers=("Three days.",)),
    Record(id="c", text="sex[F]", answers=("A woman, who has a longer text than the others have.",)),
]


class Decoding(Bytes):
    """A tokenizer of bytes that reads them back."""

    def decode(self, tokens: Sequence[int], **_: object) -> str:
        """The text of tokens."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def small(family: str = "gpt2", seed: int = 0, **more: Any) -> DataToTextModel:
    """A model that reads bytes, with random weights."""
    base: Any = random_transformer(family, seed=seed, **{"positions": 96, **more})
    base.tokenizer = Decoding()
    return DataToTextModel(base)


def test_only_the_first_reference_and_its_end_are_trained_on() -> None:
    model = small()
    batch = model.encode(RECORDS)
    assert isinstance(model, TaskModel)
    for record, ids, targets in zip(RECORDS, batch["input_ids"], batch["targets"], strict=True):
        said = bytes(token for token in targets.tolist() if 0 <= token < 256).decode()
        assert said == f" {record.answers[0]}"
        assert targets[targets >= 0][-1] == model.tokenizer.eos_token_id
        first = int((targets >= 0).nonzero()[0])
        assert bytes(ids[: first + 1].tolist()).decode() == f"{record.text}\n"
    spoilt = {**batch, "targets": batch["targets"].clone()}
    spoilt["targets"][:, 0] = 7  # What a language model would be trained on, too.
    assert not torch.allclose(model.losses(spoilt), model.losses(batch))


def test_losses_are_means_over_the_reference_and_rows_are_alone() -> None:
    model = small()
    with torch.no_grad():
        together = model.losses(model.encode(RECORDS))
        alone = torch.cat([model.losses(model.encode([record])) for record in RECORDS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    tokens = model.token_log_likelihoods(model.encode(RECORDS))
    np.testing.assert_allclose([-row.mean() for row in tokens], together.numpy(), rtol=1e-5)
    assert [len(row) for row in tokens] == [len(one.answers[0].encode()) + 2 for one in RECORDS]
    assert model.encode([])["input_ids"].shape[0] == 0


def test_a_long_reference_loses_its_end_and_a_long_record_is_refused() -> None:
    model = small(positions=20)
    batch = model.encode(RECORDS)
    assert batch["input_ids"].shape == (3, 20)
    assert int((batch["targets"][2] >= 0).sum()) == 20 - len("sex[F]\n") + 1
    with pytest.raises(
        InputError, match=r"max_length must leave room for the text of record 'd', which .* got 20"
    ):
        model.encode([Record(id="d", text="x" * 30, answers=("y",))])
    with pytest.raises(InputError, match="record 'e' has no reference"):
        model.encode([Record(id="e", text="x")])


@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama", "qwen2"])
def test_the_cache_says_what_reading_again_says(family: str) -> None:
    model = small(family)
    for parameter in model.module.parameters():
        parameter.data.mul_(1.5)  # Farther from ties than weights that are all but zero.
    prompts = [[65], [66, 67, 68, 69, 70, 71, 72], [80] * 30, [81, 82, 83]]
    common: dict[str, Any] = {
        "module": model.module,
        "padding": 256,
        "is_last": lambda token: token % 16 == 3,
    }
    for most, longest in ((12, 64), (40, 36)):
        fast, slow = (
            Greedy(**common, most=most, longest=longest, is_caching=is_caching).after(prompts)
            for is_caching in (True, False)
        )
        assert fast == slow
        assert [len(said) for said in fast] != [0] * 4
        for prompt, said in zip(prompts, fast, strict=True):
            assert len(said) <= min(most, longest - len(prompt))
            assert not any(token % 16 == 3 for token in said[:-1])
            assert len(said) == min(most, longest - len(prompt)) or said[-1] % 16 == 3
        assert len({tuple(said) for said in fast}) == 4  # or all would agree for nothing


def learned(model: DataToTextModel, steps: int) -> None:
    """Train on `RECORDS`."""
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-2)
    batch = model.encode(RECORDS)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(model.losses(batch).mean())
        optimizer.step()


@pytest.mark.slow
def test_what_was_learned_is_told_and_scored() -> None:
    model = small()
    before = model.task_metrics(RECORDS)
    learned(model, 120)
    assert model.generate(RECORDS) == [record.answers[0] for record in RECORDS]
    after = model.task_metrics(RECORDS)
    assert list(after) == ["bleu", "meteor"]
    assert after["bleu"] == pytest.approx(100.0)
    assert 0.9 < after["meteor"] < 1
    assert before["bleu"] < 10
    # The first `scored` records alone are looked at.
    other = Record(id="z", text="sex[F]", answers=("Something else.",))
    one = DataToTextModel(model.base, scored=3)
    assert one.task_metrics([*RECORDS, other]) == after
    assert model.task_metrics([*RECORDS, other])["bleu"] < 99
    assert model.task_metrics([]) == {}


def test_a_tokenizer_without_an_end_of_text_ends_with_a_newline() -> None:
    model = small()
    model.tokenizer.eos_token_id = None
    targets = model.encode(RECORDS[:1])["targets"][0]
    assert bytes(targets[targets >= 0].tolist()).decode() == " She is 60.\n"


def test_per_record_gradients_and_permutations_of_gpt2() -> None:
    model = small()
    batch = model.encode(RECORDS)
    found = per_record_signals(model, batch, method="book_keeping")
    naive = one_at_a_time(model, batch)
    torch.testing.assert_close(found.norms(), naive.norms(), atol=1e-5, rtol=1e-4)
    weights = torch.tensor([0.5, -1.0, 2.0])
    torch.testing.assert_close(found.weighted_sum(weights), naive.weighted_sum(weights), atol=1e-5, rtol=1e-3)
    assert len(PermutationGroup.of(model.module).units) > 2 * len(model.module.transformer.h)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"base": "tiny_gpt"}, InputError, "unknown base 'tiny_gpt'; did you mean 'tiny_gpt2'"),
        ({"base": "data_to_text"}, InputError, "unknown base 'data_to_text'"),
        ({"base": "prompted"}, InputError, "unknown base 'prompted'"),
        ({"base": "digits_mlp"}, UnsupportedError, "base must be a language model for data to text"),
        ({"base": "huggingface"}, InputError, "base_path must be given for base 'huggingface'"),
        ({"base": "tiny_gpt2", "base_path": "x"}, InputError, "base_path must not be given"),
        ({"base": "gpt2_base", "scored": 0}, InputError, "scored must be .* at least 1, got 0"),
    ],
)
def test_unusable_parameters(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        registry.create("model", "data_to_text", seed=0, **given)


def plan(**changed: Any) -> Plan:
    """Two steps on `RECORDS`."""
    given: dict[str, Any] = {
        "records": tuple(RECORDS),
        "held_out": tuple(RECORDS[:2]),
        "model": "data_to_text",
        "model_parameters": {"base": "gpt2_base", "max_length": 48},
        "steps": 2,
        "sampling_probability": 1.0,
        "learning_rate": 1e-3,
        "seed": 1,
    }
    return Plan(**{**given, **changed})


def test_a_private_run_has_its_scores_and_comes_back_from_its_folder(tmp_path: Path) -> None:
    budget = ApproximateDP(epsilon=1.0, delta=1 / 6)
    mechanism = registry.create("mechanism", "shuffled_dp_sgd", l2_clip_norm=0.1, uncovered="sigma")
    trained = mechanism.train(plan(budget=budget))
    metrics = trained.transcript.metrics
    for part in ("train", "test"):
        for when in ("before", "after"):
            assert 0 <= metrics[f"{part}_bleu_{when}"] <= 100
            assert 0 <= metrics[f"{part}_meteor_{when}"] <= 1
            assert math.isfinite(metrics[f"{part}_perplexity_{when}"])
    trained.save(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".pt", ".pkl", ".bin")]
    loaded = load_subject(tmp_path, mechanism, plan(budget=budget))
    np.testing.assert_allclose(loaded.losses(RECORDS), trained.losses(RECORDS), rtol=1e-5)


def test_the_model_says_what_it_stands_on_and_which_records_it_takes() -> None:
    entry: Any = registry.entries("model")["data_to_text"]
    facets = entry.facets
    assert facets.stands_on == ("base", "base_path")
    assert facets.fingerprint(base="gpt2_base") != facets.fingerprint(base="tiny_gpt2")
    with pytest.raises(InputError, match="record 'q' has no reference"):
        facets.check_records([Record(id="q", text="x")], base="gpt2_base")
    assert set(facets.stands_on) <= set(inspect.signature(entry.factory).parameters)
