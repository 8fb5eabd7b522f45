"""Which layers get LoRA matrices, how their product is scaled, and what a study may say of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import plain
from workbench.interfaces import Insertions, Plan, Record
from workbench.studies.experiments import Experiment
from workbench.studies.fields import checked
from workbench.studies.jobs import Training, jobs_of, membership, setup_of
from workbench.training import setup as workers
from workbench.training.fine_tuning import build_model, check_plan, trainable
from workbench.training.flat import FlatLayout
from workbench.training.lora import LORA_TARGETS, lora_pairs, with_lora

# peft asks transformers 5 for a property by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=(Record(id="a", text="a b c"),),
        held_out=(),
        model="tiny_gpt2",
        steps=1,
        sampling_probability=1.0,
        learning_rate=0.1,
        adapter="lora",
        insertions=Insertions(),
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=12,
    )  # fmt: skip
    return transformers.BertModel(config)


def layers(module: nn.Module) -> set[str]:
    """The last parts of the adapted layers' names, before the matrices' own."""
    pairs = lora_pairs(FlatLayout.of(module).places)
    return {a.partition(".lora_A")[0].rpartition(".")[2] for a, _ in pairs}


ALL = {
    "all-linear": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    "attention": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "query-value": {"q_proj", "v_proj"},
}
FUSED = {
    "all-linear": {"c_attn", "c_proj", "c_fc"},
    "attention": {"c_attn", "c_proj"},
    "query-value": {"c_attn"},
}
ENCODER = {"attention": {"query", "key", "value", "dense"}, "query-value": {"query", "value"}}


@pytest.mark.parametrize(
    ("make", "targets", "expected"),
    [(make, targets, names) for make, found in ((llama, ALL), (gpt2, FUSED), (bert, ENCODER))
     for targets, names in found.items()],
)  # fmt: skip
def test_the_targets_are_the_layers_that_they_say(
    make: Callable[[], nn.Module], targets: str, expected: set[str]
) -> None:
    adapted = with_lora(make(), make_plan(lora_targets=targets))
    assert layers(adapted) == expected
    names = list(trainable(adapted))
    if targets == "attention":  # a feed-forward part has a layer of the same name in two of the families
        assert all("attn" in name or "attention" in name for name in names)
    assert len(names) == 2 * len(lora_pairs(FlatLayout.of(adapted).places))


def test_each_layer_has_its_pair_and_the_pairs_are_in_the_layouts_order() -> None:
    layout = FlatLayout.of(with_lora(llama(), make_plan(lora_targets="query-value"))).places
    pairs = lora_pairs(layout)
    assert len(pairs) == 4
    assert [name for pair in pairs for name in pair] == list(layout)


@pytest.mark.parametrize(("alpha", "scale"), [(None, 2.0), (16.0, 16.0 / 3.0), (3, 1.0)])
def test_the_product_is_scaled_by_alpha_over_r(alpha: float | None, scale: float) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain_module = nn.Sequential(nn.Linear(4, 5))
        weight, bias = (p.detach().clone() for p in plain_module[0].parameters())
        adapted = with_lora(plain_module, make_plan(lora_rank=3, lora_alpha=alpha))
    parameters = trainable(adapted)
    (a,) = (p for name, p in parameters.items() if "lora_A" in name)
    (b,) = (p for name, p in parameters.items() if "lora_B" in name)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(adapted(x), x @ weight.T + bias)
    with torch.no_grad():
        b.fill_(0.5)
    torch.testing.assert_close(adapted(x), x @ weight.T + bias + scale * (x @ a.T @ b.T))


def test_the_default_is_what_it_was() -> None:
    """Rank 4, alpha twice the rank, beside all linear layers: a plan from before says nothing else."""
    old, said = (
        trainable(build_model(plan).module)
        for plan in (make_plan(), make_plan(lora_rank=4, lora_alpha=8.0, lora_targets="all-linear"))
    )
    assert list(old) == list(said)
    assert all(torch.equal(old[name], said[name]) for name in old)
    few = trainable(build_model(make_plan(lora_rank=8, lora_alpha=16.0, lora_targets="query-value")).module)
    assert 0 < len(few) < len(old)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_alpha": 0.0}, "lora_alpha must be finite and > 0, got 0.0"),
        ({"lora_alpha": math.inf}, "lora_alpha must be finite and > 0, got inf"),
        ({"lora_targets": "query-key"}, "unknown lora_targets 'query-key'; did you mean 'query-value'"),
    ],
)
def test_what_no_adapter_can_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_plan(make_plan(**changes))
    check_plan(make_plan(**changes, adapter="full"))  # not read


@pytest.mark.parametrize("targets", LORA_TARGETS)
def test_a_module_without_such_layers_is_unsupported(targets: str) -> None:
    with pytest.raises(UnsupportedError, match="LoRA finds no linear layer"):
        with_lora(nn.Sequential(nn.Embedding(3, 2)), make_plan(lora_targets=targets))


def experiment(**changes: Any) -> Experiment:
    return Experiment(
        **{
            "group": "g", "variant": "v", "mechanism": "non_private", "attack": "loss", "corpus": "digits",
            "model": "digits_mlp", "members": 12, "epochs": 1, "batch_size": 12, "learning_rate": 0.1,
            "seed": 0, "adapter": "lora", **changes,
        }
    )  # fmt: skip


def test_a_study_says_them_and_old_keys_stay() -> None:
    asked = experiment(lora_rank=8, lora_alpha=checked("lora_alpha", 12), lora_targets="query-value")
    setup = setup_of(asked)
    target = Training(setup=setup, run=0, shadows=0, unreleased=False)
    plan = workers.make_plan(setup, membership(target), 0)
    assert (plan.lora_rank, plan.lora_alpha, plan.lora_targets) == (8, 12.0, "query-value")
    keys = {
        jobs_of(experiment(**changes)).trainings[0].key
        for changes in ({}, {"lora_alpha": 8.0}, {"lora_targets": "attention"})
    }
    assert len(keys) == 3
    assert not {"lora_alpha", "lora_targets"} & set(plain(setup_of(experiment())))
    assert not {"lora_alpha", "lora_targets"} & set(plain(experiment()))
    assert plain(setup)["lora_targets"] == "query-value"
    with pytest.raises(InputError, match="lora_alpha must be finite and > 0"):
        checked("lora_alpha", 0)
