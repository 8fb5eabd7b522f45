"""Gradients of sums of records in a few parameters, against autograd in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from oracles.one_at_a_time import one_at_a_time
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import GradientCanary, Insertions, Plan, Record
from workbench.mechanisms.non_private import NonPrivate
from workbench.training.canary import SignalsWithCanaryRecord, check_canary
from workbench.training.fine_tuning import FlatAdamW, build_model, trainable
from workbench.training.flat import FlatLayout
from workbench.training.per_record import EmptySignals
from workbench.training.samples import sample_signals
from workbench.training.steps import PrivatisedSums
from workbench.training.subject import TrainedSubject
from workbench.training.sums import SumGradients

VOCABULARY = 40


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Letters:
    """A language model whose tokens are the letters of a text; records of unequal length."""

    kind, name = "language", "test"

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        rows = [[ord(letter) % VOCABULARY for letter in record.text] for record in records]
        length = max(map(len, rows))
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        logits = self.module(**batch, use_cache=False).logits
        mask = batch["attention_mask"][:, 1:].to(logits.dtype)
        losses = nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
        )
        return (losses * mask).sum(1) / mask.sum(1)

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[Any]:
        raise NotImplementedError


def rotary(kind: str, *, tied: bool) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=24, tie_word_embeddings=tied,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    module: nn.Module = getattr(transformers, f"{kind}ForCausalLM")(config)
    return module


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=24, bos_token_id=0, eos_token_id=0,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    module: nn.Module = transformers.GPT2LMHeadModel(config)
    return module


def bloom() -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    module: nn.Module = transformers.BloomForCausalLM(config)
    return module


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "Qwen2": lambda: rotary("Qwen2", tied=False),
    "Llama": lambda: rotary("Llama", tied=False),
    "BLOOM (tied)": bloom,
    "SmolLM (tied Llama)": lambda: rotary("Llama", tied=True),
    "GPT-2 (tied)": gpt2,
}

TEXTS = tuple(
    Record(id=str(i), text=text)
    for i, text in enumerate(
        ("a ferret", "sleeps", "through most of a day", "and fires", "seldom", "if at all")
    )
)


def plan_of(records: tuple[Record, ...] = TEXTS, **changes: Any) -> Plan:
    plan = Plan(
        records=records, held_out=(), model="none", steps=1, sampling_probability=0.5, learning_rate=0.1
    )
    return replace(plan, **changes)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_few_tensors_have_the_gradient_that_all_would_have(family: str) -> None:
    torch.manual_seed(0)
    model = Letters(FAMILIES[family]())
    sums = SumGradients(model, plan_of(), micro_batch_size=4)
    layout = FlatLayout.of(model.module)
    names = list(sums.parameters)
    assert len(names) == len({id(p) for p in sums.parameters.values()})  # Tied ones once.
    rows = one_at_a_time(model, model.encode(TEXTS))._gradients
    total = rows.sum(0)
    generator = torch.Generator().manual_seed(1)
    for asked in ([names[0]], [names[-1]], [names[3], names[7]], names):
        found, loss = sums.gradient(TEXTS, asked)
        for name, gradient in zip(asked, found, strict=True):
            place, shape = layout.places[name]
            torch.testing.assert_close(gradient, total[place].view(shape), atol=2e-6, rtol=1e-4)
        assert loss == pytest.approx(float(model.losses(model.encode(TEXTS)).detach().mean()), rel=1e-5)
        vectors = [torch.randn(sums.parameters[n].shape, generator=generator) for n in asked]
        along = sums.along(
            TEXTS, asked, [lambda g, v=vectors: sum((a * b).sum() for a, b in zip(g, v, strict=True))]
        )
        columns = torch.cat([rows[:, layout.places[n][0]] for n in asked], 1)
        expected = columns @ torch.cat([v.reshape(-1) for v in vectors])
        np.testing.assert_allclose(along[0], expected.numpy(), atol=2e-5, rtol=1e-3)
    assert all(p.requires_grad for p in sums.parameters.values())
    assert sums.mean_loss(TEXTS) == pytest.approx(loss, rel=1e-5)


def test_later_layers_alone_cost_less_than_all() -> None:
    model = Letters(gpt2())
    sums = SumGradients(model, plan_of(), micro_batch_size=8)
    counts = []
    for names in (["transformer.ln_f.weight"], ["transformer.h.1.mlp.c_proj.weight"], list(sums.parameters)):
        with FlopCounterMode(display=False) as counter:
            sums.gradient(TEXTS, names)
        counts.append(counter.get_total_flops())
    with FlopCounterMode(display=False) as counter:
        sums.mean_loss(TEXTS)
    forward = counter.get_total_flops()
    # The last norm needs the way back through the output layer alone; everything, twice the forward pass.
    head = 2 * len(TEXTS) * max(len(r.text) for r in TEXTS) * 16 * VOCABULARY
    assert counts[0] == forward + head
    assert counts[0] < counts[1] < counts[2]
    assert counts[2] > 2.5 * forward


class Summed:
    """Two tensors that are added before use: autograd hands both the same gradient."""

    kind, name = "classification", "test"

    def __init__(self) -> None:
        self.module = nn.ParameterDict({n: nn.Parameter(torch.zeros(3)) for n in ("a", "b", "unused")})

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        return {"x": torch.tensor([record.image for record in records])}

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["x"] @ (self.module["a"] + self.module["b"])

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[Any]:
        raise NotImplementedError


IMAGES = tuple(Record(id=str(i), image=(float(i), 1.0, -1.0), label=0) for i in range(7))


def test_a_tensor_that_nothing_depends_on_has_gradient_zero() -> None:
    sums = SumGradients(Summed(), plan_of(IMAGES), micro_batch_size=3)
    found, _ = sums.gradient(IMAGES, ["a", "unused"])
    assert [g.tolist() for g in found] == [[21.0, 7.0, -7.0], [0.0, 0.0, 0.0]]
    alone, _ = sums.gradient(IMAGES, ["unused"])
    assert alone[0].tolist() == [0.0, 0.0, 0.0]
    assert sums.along(IMAGES, ["unused"], [lambda g: g[0].sum()]).tolist() == [[0.0] * 7]
    nobody, loss = sums.gradient([], ["b"])
    assert (nobody[0].tolist(), loss, sums.mean_loss([])) == ([0.0, 0.0, 0.0], None, None)


def test_records_are_encoded_once_where_that_changes_nothing() -> None:
    class Counted(Summed):
        def __init__(self) -> None:
            super().__init__()
            self.encoded: list[str] = []

        def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
            self.encoded += [record.id for record in records]
            return super().encode(records)

    model = Counted()
    sums = SumGradients(model, plan_of(IMAGES), micro_batch_size=64)
    sums.gradient(IMAGES[:3], ["a"])
    twice, _ = sums.gradient([IMAGES[5], IMAGES[1], IMAGES[1]], ["a"])
    assert model.encoded == ["0", "1", "2", "5"]
    assert twice[0].tolist() == [7.0, 3.0, -3.0]
    stranger = Record(id="z", image=(9.0, 9.0, 9.0), label=0)
    found, _ = sums.gradient([IMAGES[1], stranger], ["a"])
    assert found[0].tolist() == [10.0, 10.0, 8.0]


# --- the opposed canary in the other mechanisms ---------------------------------------------------


def digits_plan(**changes: Any) -> Plan:
    corpus = registry.create("corpus", "digits", size=30, seed=0)
    canary = GradientCanary(coordinate=0, magnitude=0.5, record=corpus.records[2].id, opposed=True)
    plan = Plan(
        records=corpus.records, held_out=(), model="digits_logistic", steps=1, sampling_probability=1.0,
        learning_rate=1.0, optimizer="sgd", insertions=Insertions(gradient_canary=canary),
    )  # fmt: skip
    return replace(plan, **changes)


def weights(subject: TrainedSubject) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable(subject.model.module).values()])


def test_an_opposed_canary_halves_an_ordinary_step() -> None:
    plan = digits_plan()
    model = build_model(plan)
    before = torch.cat([p.detach().reshape(-1) for p in model.module.parameters()])
    others = [r for i, r in enumerate(plan.records) if i != 2]
    gradient = sample_signals(model, others, 64).weighted_sum(torch.ones(29))
    moved = weights(NonPrivate().train(plan)) - before
    torch.testing.assert_close(moved, -0.5 * gradient / 30, atol=1e-6, rtol=1e-4)


def test_an_opposed_canarys_norm_is_seen_by_clipping() -> None:
    background = EmptySignals(FlatLayout.of(nn.Linear(2, 1)))
    canary = GradientCanary(coordinate=0, magnitude=2.0, record="r", opposed=True)
    signals = SignalsWithCanaryRecord(background, canary, torch.tensor([3.0, 0.0, 4.0]))
    assert signals.norms().tolist() == [10.0]
    assert signals.weighted_sum(torch.tensor([0.1])).tolist() == pytest.approx([-0.6, 0.0, -0.8])
    with pytest.raises(InputError, match="others must be given for an opposed canary, got None"):
        SignalsWithCanaryRecord(background, canary)
    with pytest.raises(InputError, match="opposed must be False for a canary without a record"):
        check_canary(replace(canary, record=None))
    with pytest.raises(InputError, match="spread must be at most the 3 trainable parameters, got 4"):
        SignalsWithCanaryRecord(background, replace(canary, opposed=False, spread=4))


# --- AdamW over one vector -------------------------------------------------------------------------


def test_one_vector_takes_the_steps_that_torchs_adamw_takes() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 7), (3,), (1,), (20, 11)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    ours, theirs = ([nn.Parameter(p.clone()) for p in start] for _ in range(2))
    flat = FlatAdamW(ours, weight_decay=0.03)
    optimizer = torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.03)
    for step in range(12):
        rate = 0.1 / (1 + step)
        optimizer.param_groups[0]["lr"] = rate
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            b.grad = torch.zeros_like(b)
            if (step + i) % 3 == 0:
                b.grad = torch.randn(b.shape, generator=generator)
                assert a.grad is not None
                a.grad.copy_(b.grad)
        flat.step(rate)
        optimizer.step()
        flat.gradient.zero_()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    flat.close()
    assert all(p.grad is None and p.untyped_storage().nbytes() == 4 * p.numel() for p in ours)
    assert not FlatAdamW.fits([ours[0], nn.Parameter(torch.zeros(1, dtype=torch.float64))])


@pytest.mark.parametrize("micro_batch_size", [64, 5])
def test_training_without_privacy_needs_no_per_record_gradients(
    micro_batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain backward passes reach the weights that sums of per-record gradients reach."""
    mechanism = NonPrivate(measures_quality=False, micro_batch_size=micro_batch_size)
    plan = digits_plan(
        insertions=Insertions(), model="digits_mlp", steps=4, sampling_probability=0.5, learning_rate=0.1
    )
    wanted = mechanism.trained(
        plan, mechanism.claim(plan), None, lambda own, model: PrivatisedSums(mechanism, own, model)
    )

    def refuse(*_: Any) -> None:
        raise AssertionError("a per-record signal was asked for")

    monkeypatch.setattr("workbench.training.steps.sample_signals", refuse)
    found = mechanism.train(plan)
    np.testing.assert_allclose(found.transcript.losses, wanted.transcript.losses, rtol=1e-5)
    np.testing.assert_allclose(found.losses(plan.records), wanted.losses(plan.records), rtol=1e-3, atol=1e-5)
