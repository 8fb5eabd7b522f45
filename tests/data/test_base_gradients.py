"""Per-record gradients of the small bases, whole and with LoRA, by every method."""

from __future__ import annotations

import pytest
import torch
from oracles.one_at_a_time import one_at_a_time

from workbench.core import registry
from workbench.data.bases import catalogue as room
from workbench.interfaces import Plan, Record
from workbench.training.lora import with_lora
from workbench.training.models import LanguageModel
from workbench.training.per_record import BookKeepingSignals, per_record_signals

EVERY = (*room.RECIPES, "gpt2_base")
TEXTS = (
    "Patient is 63 years old.",
    "A longer record, with many more words than the others have, so that all of those are padded.",
    "secret_id=A7QK20ZZ91",
)
RECORDS = [Record(id=str(i), text=text) for i, text in enumerate(TEXTS)]


def adapted(module: torch.nn.Module, *, rank: int, targets: str = "all-linear") -> torch.nn.Module:
    """The module with LoRA matrices none of which is zero, as B is at first: there A's gradient vanishes."""
    plan = Plan(
        records=(),
        held_out=(),
        model="",
        steps=1,
        sampling_probability=1.0,
        learning_rate=0.1,
        adapter="lora",
        lora_rank=rank,
        lora_targets=targets,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        found = with_lora(module, plan)
        for key, parameter in found.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=0.1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("name", EVERY)
def test_book_keeping_gives_every_base_its_per_record_gradients(name: str, adapter: str) -> None:
    if name in room.RECIPES:
        module = room.RECIPES[name].new_module()
    else:
        module = registry.create("model", name, seed=0).module
    tokenizer = registry.create("model", "gpt2_base", seed=0).tokenizer
    if adapter == "lora":
        module = adapted(module, rank=2)
    model = LanguageModel(module.eval(), tokenizer, 64, name)
    batch = model.encode(RECORDS)
    found = per_record_signals(model, batch, method="auto")
    assert isinstance(found, BookKeepingSignals)
    naive = one_at_a_time(model, batch)
    torch.testing.assert_close(found.norms(), naive.norms(), atol=1e-5, rtol=1e-4)
    weighting = torch.tensor([0.5, -1.0, 2.0])
    torch.testing.assert_close(
        found.weighted_sum(weighting), naive.weighted_sum(weighting), atol=1e-5, rtol=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["book_keeping", "vmap"])
def test_records_longer_than_the_window_have_their_gradients(method: str) -> None:
    """250 tokens and a window of 128, LoRA on queries and values as RLDP has it."""
    tokenizer = registry.create("model", "gpt2_base", seed=0).tokenizer
    module = adapted(room.RECIPES["mistral_base"].new_module(), rank=8, targets="query-value")
    model = LanguageModel(module.eval(), tokenizer, 256, "mistral_base")
    batch = model.encode([Record(id=str(n), text="and so the patient stayed " * n) for n in (40, 7)])
    assert int(batch["attention_mask"][0].sum()) > 200
    found = per_record_signals(model, batch, method=method)
    naive = one_at_a_time(model, batch)
    torch.testing.assert_close(found.norms(), naive.norms(), atol=1e-5, rtol=1e-4)
    weighting = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(
        found.weighted_sum(weighting), naive.weighted_sum(weighting), atol=1e-5, rtol=1e-3
    )
