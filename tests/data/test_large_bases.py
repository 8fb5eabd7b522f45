"""The larger GPT-2 base: that growing keeps the function, what it is taught, and a build of a few steps."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from oracles.random_transformers import random_transformer
from torch import nn

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.data.bases import checkpoint, large_bases
from workbench.data.bases.large_bases import grown
from workbench.data.clinical import records as clinical_records
from workbench.data.clinical.encounters import ATTRIBUTES, clause
from workbench.interfaces import Record
from workbench.studies import bases
from workbench.training.models import LanguageModel
from workbench.training.permutations import PermutationGroup

IDS = torch.tensor([[5, 77, 31, 200, 9, 1, 64, 3], [8, 8, 120, 250, 17, 4, 99, 2]])


def config(model: Any, **changed: Any) -> Any:
    """A configuration like the model's."""
    return type(model.config)(**{**model.config.to_dict(), **changed})


def small() -> nn.Module:
    """A GPT-2 whose embedding rows have mean zero, with gains and biases that are not their first values."""
    model: Any = random_transformer("gpt2", seed=4, layers=2, width=32, heads=4).module
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        rows = model.transformer.wte.weight
        rows.sub_(rows.mean(-1, keepdim=True))
    found: nn.Module = model.eval()
    return found


def logits(module: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return torch.as_tensor(module(input_ids=IDS).logits)


@pytest.mark.parametrize("layers", [2, 4, 5])
def test_a_grown_module_computes_the_same_and_can_learn_with_all_that_is_new(layers: int) -> None:
    known: Any = small()
    epsilon = known.config.layer_norm_epsilon
    sizes = {"n_embd": 48, "n_head": 6, "n_layer": layers, "n_inner": 150}
    large = grown(known, config(known, **sizes, layer_norm_epsilon=epsilon * 32 / 48)).eval()
    before = logits(known)
    assert float(before.abs().max()) > 1
    torch.testing.assert_close(logits(large), before, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(logits(known), before, atol=0, rtol=0)
    for _ in range(2):  # What stands before zeros learns from the second step on.
        torch.autograd.backward(large(input_ids=IDS).logits.square().mean())
        torch.optim.SGD(large.parameters(), lr=1e-4).step()
        large.zero_grad()
    torch.autograd.backward(large(input_ids=IDS).logits.square().mean())
    untouched = [name for name, p in large.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert untouched == []


def test_without_the_gain_a_wider_stream_would_be_normalised_otherwise() -> None:
    known: Any = small()
    large: Any = grown(known, config(known, n_embd=48, n_head=6)).eval()
    with torch.no_grad():
        for block in large.transformer.h:
            block.ln_1.weight.mul_((32 / 48) ** 0.5)
    assert float((logits(large) - logits(known)).abs().max()) > 0.05


def test_the_shipped_base_grows_with_almost_the_same_logits() -> None:
    ours: Any = registry.create("model", "gpt2_base", seed=0)
    large = large_bases.GPT2_LARGE.new_module().eval()
    assert sum(p.numel() for p in large.parameters()) == bases.find("gpt2_large_base").card().parameters
    batch = ours.encode([Record(id="a", text=text) for text in checkpoint.SAMPLE])
    wide = LanguageModel(large, ours.tokenizer, 256, "grown")
    with torch.no_grad():
        theirs, own = wide.losses(batch), ours.losses(batch)
    torch.testing.assert_close(theirs, own, atol=0.03, rtol=0.0)
    assert float(own.min()) > 3


def test_nothing_that_is_taught_is_of_the_corpus() -> None:
    taught = [sentence for pair in large_bases.SENTENCES.values() for sentence in pair]
    values = dict.fromkeys(ATTRIBUTES, "3") | {"age": "[60-70)", "readmitted": "NO", "gender": "Female"}
    for name in clinical_records.SLOTS:
        told = {clause(name, values[name]), clinical_records.in_other_words(name, values[name])}
        forms = {re.sub(r"\b(3( days)?|60.*70|Female|female|Elective)\b", "{}", one).lower() for one in told}
        assert not forms & {sentence.lower() for sentence in taught}
    names = {one for pair in large_bases.NAMES.values() for one in pair}
    assert not names & set(clinical_records.SLOTS.values())
    assert set(large_bases.NAMES) == set(large_bases.SENTENCES) == set(clinical_records.SLOTS)
    records = large_bases.record_texts()
    generator = np.random.default_rng(0)
    for _ in range(200):
        record, text = records.example(generator)
        assert "[" not in record
        assert " | " not in record
        assert len(re.findall(r"\.(?: |$)", text)) in (2, 3, 4)


def test_a_lesson_ends_with_the_end_of_the_text() -> None:
    recipe = replace(large_bases.GPT2_LARGE, steps=1)
    path, lesson, _ = large_bases.GrownBase(recipe=recipe).lesson(large_bases.Path())
    ids, first = lesson.example(np.random.default_rng(1))
    tokenizer = registry.create("model", "gpt2_base", seed=0).tokenizer
    assert path.is_file()
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids[:first]).endswith("\n")
    assert tokenizer.decode(ids[first:-1]).endswith(".")
    longest = max(len(lesson.example(np.random.default_rng(seed))[0]) for seed in range(200))
    assert longest < 128


def test_a_tiny_build_is_a_language_model_that_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"n_embd": 160, "n_head": 5, "n_layer": 5, "layer_norm_epsilon": 8e-6}
    recipe = replace(large_bases.GPT2_LARGE, steps=2, examples=2, config=sizes)
    monkeypatch.setattr(large_bases, "GPT2_LARGE", recipe)
    with pytest.raises(InputError, match="model 'gpt2_large_base' is not built: run `workbench models build"):
        registry.create("model", "gpt2_large_base", seed=0)
    assert bases.missing(["gpt2_base", "gpt2_large_base"]) == ("gpt2_large_base",)
    folder = bases.find("gpt2_large_base").build(lambda step: None)
    assert bases.find("gpt2_large_base").is_built()
    model = registry.create("model", "data_to_text", seed=0, base="gpt2_large_base", max_length=64)
    assert model.base.name == "gpt2_large_base"
    assert len(PermutationGroup.of(model.module).units) > 10
    said = checkpoint.read_json(folder / checkpoint.RECIPE)
    assert said["recipe"]["grown_from"]
    assert "validation" in said
    with pytest.raises(InputError, match=r"max_length must be .*, got 513"):
        registry.create("model", "gpt2_large_base", seed=0, max_length=513)


@pytest.mark.slow
def test_the_larger_base_learns_records_in_fewer_steps_than_the_smaller_one() -> None:
    corpus = registry.create("corpus", "clinical_records", size=300, seed=0, held_out=48)
    bases.find("gpt2_large_base").build(lambda step: None)
    found = {}
    for base in ("gpt2_base", "gpt2_large_base"):
        model = registry.create("model", "data_to_text", seed=0, base=base)
        optimizer = torch.optim.AdamW(model.module.parameters(), lr=2e-3)
        generator = np.random.default_rng(0)
        for _ in range(20):
            chosen = generator.permutation(300)[:32]
            optimizer.zero_grad()
            torch.autograd.backward(model.losses(model.encode([corpus.records[i] for i in chosen])).mean())
            optimizer.step()
        found[base] = model.task_metrics(corpus.held_out)["bleu"]
    assert found["gpt2_large_base"] > found["gpt2_base"] + 5
    assert found["gpt2_large_base"] > 45
