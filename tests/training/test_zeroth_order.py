"""The zeroth-order engine: differences beside naive twins, restored weights, moves, batches, precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zeroth_order_parts import (
    SEED,
    bits,
    digits,
    direction,
    full,
    load,
    lora,
    plan,
    ready,
    texts,
    values,
)

from workbench.core.errors import InputError
from workbench.interfaces import Corpus, FloatArray, Model, Plan, Record
from workbench.training.fine_tuning import record_losses
from workbench.training.models import Classifier
from workbench.training.precision import reduced
from workbench.training.zeroth_order import Batches, ZerothOrder

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = 1e-3


def of_digits() -> tuple[Plan, Corpus]:
    """An MLP on digits."""
    corpus = digits(8)
    return plan(corpus), corpus


def of_texts() -> tuple[Plan, Corpus]:
    """All of the tiny GPT-2."""
    corpus = texts(4)
    return full(corpus), corpus


def of_lora() -> tuple[Plan, Corpus]:
    """Its LoRA."""
    corpus = texts(4)
    return lora(corpus), corpus


CASES: dict[str, Callable[[], tuple[Plan, Corpus]]] = {"mlp": of_digits, "gpt2": of_texts, "lora": of_lora}
cases = pytest.mark.parametrize("case", CASES)


def engine(case: str, **changed: Any) -> tuple[ZerothOrder, Model, list[nn.Parameter], Sequence[Record]]:
    """An engine on one of the cases; LoRA's factors are off their zero start."""
    given, corpus = CASES[case]()
    model, own = ready(given)
    if case == "lora":
        generator = torch.Generator().manual_seed(0)
        load(own, values(own) + 0.02 * torch.randn(sum(p.numel() for p in own), generator=generator))
    return ZerothOrder(model, **{"scale": SCALE, "seed": SEED, **changed}), model, own, corpus.records


def out_of_place(model: Model, records: Sequence[Record], z: Tensor) -> FloatArray:
    """Differences by copies of the model, theta + mu z and theta - mu z, with all logits."""
    found = []
    for sign in (1, -1):
        other = copy.copy(model)
        other.module = copy.deepcopy(model.module)
        own = [p for p in other.module.parameters() if p.requires_grad]
        load(own, values(own) + sign * SCALE * z)
        # With gradients on, language models take the logits whole, as a plain loop does.
        found.append(other.losses(other.encode(records)).detach().double().numpy())
    return np.asarray((found[0] - found[1]) / (2 * SCALE))


@cases
def test_differences_are_those_of_copies(case: str) -> None:
    zeroth, model, own, records = engine(case)
    for index in (0, 5):
        zeroth.settle()
        wanted = out_of_place(model, records, direction(own, index))
        found, loss = zeroth.differences(records, index)
        # A loss is off by some 1e-6, and a difference by that over 2 mu; of the step by half a thousandth.
        np.testing.assert_allclose(found, wanted, rtol=5e-3, atol=5e-3)
        zeroth.settle()
        assert loss == pytest.approx(float(record_losses(model, records).mean()), rel=1e-3)
    # Another direction has other differences.
    assert np.abs(found - out_of_place(model, records, direction(own, 0))).max() > 0.05


@cases
def test_differences_are_directional_derivatives(case: str) -> None:
    # The MLP has kinks, which a shorter perturbation crosses more rarely.
    zeroth, model, own, records = engine(case, scale=1e-4 if case == "mlp" else SCALE)
    z = direction(own, 2)
    exact = []
    for record in records:
        loss = model.losses(model.encode([record])).sum()
        gradients = torch.autograd.grad(loss, own)
        exact.append(float(torch.cat([g.reshape(-1).double() for g in gradients]) @ z))
    found, _ = zeroth.differences(records, 2)
    scale = float(np.abs(exact).max())
    np.testing.assert_allclose(found, exact, atol=0.02 * scale + 5e-3)


@cases
def test_weights_return_to_the_bit(case: str) -> None:
    zeroth, model, own, records = engine(case)
    before, losses = bits(own), record_losses(model, records)
    for index in range(6):
        zeroth.differences(records, index)
        assert not torch.equal(bits(own), before)
    zeroth.settle()
    zeroth.settle()
    assert torch.equal(bits(own), before)
    np.testing.assert_array_equal(record_losses(model, records), losses)


def test_weights_return_when_a_loss_raises() -> None:
    zeroth, model, own, records = engine("mlp")
    before = bits(own)
    for good in (0, 1):
        seen = []

        def losses(batch: Mapping[str, Tensor], *, good: int = good, seen: list[int] = seen) -> Tensor:
            seen.append(1)
            if len(seen) > good:
                raise RuntimeError("no more")
            return torch.zeros(len(batch["labels"]))

        model.losses = losses  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="no more"):
            zeroth.differences(records, 3)
        zeroth.settle()
        assert torch.equal(bits(own), before)


@cases
def test_a_move_goes_along_its_directions(case: str) -> None:
    zeroth, _, own, records = engine(case)
    before = values(own)
    zeroth.differences(records, 0)
    zeroth.differences(records, 1)
    zeroth.move([(0, 2e-3), (1, -1e-3)])
    wanted = 2e-3 * direction(own, 0) - 1e-3 * direction(own, 1)
    assert float((values(own) - before - wanted).abs().max()) < 1e-6


@cases
def test_a_move_does_not_care_whether_the_weights_are_still_perturbed(case: str) -> None:
    ends = []
    for settled in (False, True):
        zeroth, _, own, records = engine(case)
        for name in (4, 5):
            zeroth.differences(records, name)
        if settled:
            zeroth.settle()
        zeroth.move([(4, 3e-4), (5, -2e-3)], decay=0.01)
        ends.append(bits(own))
    assert torch.equal(*ends)


def test_lora_has_rank_8_and_alpha_16() -> None:
    model, own = ready(lora(texts(2)))
    config = model.module.peft_config["default"]  # type: ignore[index, union-attr]
    assert (config.r, config.lora_alpha, config.use_rslora) == (8, 16, False)
    assert {8} == {min(parameter.shape) for parameter in own}


def test_a_tied_embedding_is_moved_once() -> None:
    zeroth, model, own, _ = engine("gpt2")
    module: Any = model.module
    tied = module.get_output_embeddings().weight
    assert tied is module.get_input_embeddings().weight
    before, start = tied.detach().clone(), values(own)
    zeroth.move([(0, 0.01)])
    place = next(i for i, p in enumerate(own) if p is tied)
    first = sum(p.numel() for p in own[:place])
    wanted = 0.01 * direction(own, 0)[first : first + tied.numel()]
    assert float(((tied.detach() - before).reshape(-1).double() - wanted).abs().max()) < 1e-6
    assert len(start) == sum(p.numel() for p in module.parameters())


def test_decay_takes_its_share_of_the_old_weights() -> None:
    zeroth, _, own, _ = engine("mlp")
    before = values(own)
    zeroth.move([(3, 1e-2)], decay=0.2)
    wanted = 0.8 * before + 1e-2 * direction(own, 3)
    assert float((values(own) - wanted).abs().max()) < 1e-6
    middle = values(own)
    zeroth.move([], decay=0.5)
    assert float((values(own) - middle / 2).abs().max()) < 1e-6


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(InputError, match=r"decay must be in \[0, 1\), got"):
        engine("mlp")[0].move([], decay=decay)


@pytest.mark.parametrize("amount", [math.nan, math.inf])
def test_an_amount_that_is_no_number_is_refused_before_the_move(amount: float) -> None:
    zeroth, _, own, _ = engine("mlp")
    before = bits(own)
    with pytest.raises(InputError, match="amounts must be finite, got"):
        zeroth.move([(0, 1e-3), (1, amount)])
    assert torch.equal(bits(own), before)


def test_weights_that_leave_the_floats_are_refused() -> None:
    with pytest.raises(InputError, match=r"weights must be finite|scale must be at least"):
        engine("mlp")[0].move([(0, 3e38), (0, 3e38)])


@cases
def test_batches_change_differences_by_rounding_only(case: str) -> None:
    wanted, _ = engine(case)[0].differences(engine(case)[3], 1)
    zeroth, _, _, records = engine(case, micro_batch_size=3)
    turned, _ = zeroth.differences(records[::-1], 1)
    np.testing.assert_allclose(turned[::-1], wanted, atol=5e-3)
    alone = [zeroth.differences([record], 1)[0][0] for record in records]
    np.testing.assert_allclose(alone, wanted, atol=5e-3)


def test_an_empty_sample_has_no_differences() -> None:
    zeroth, _, own, _ = engine("mlp")
    before = bits(own)
    scalars, loss = zeroth.differences([], 0)
    assert scalars.shape == (0,)
    assert math.isnan(loss)
    assert torch.equal(bits(own), before)


def test_losses_are_those_of_the_settled_weights() -> None:
    zeroth, model, _, records = engine("gpt2")
    wanted = record_losses(model, records)
    zeroth.differences(records, 0)
    np.testing.assert_allclose(zeroth.losses(records), wanted, atol=1e-5)


class Watching(nn.Module):
    """A linear classifier that notes in which mode it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append((torch.is_inference_mode_enabled(), self.training))
        scores: Tensor = self.layer(images)
        return scores


def test_passes_are_in_inference_and_evaluation_mode() -> None:
    module = Watching()
    model = Classifier(module, "watching")
    records = [Record(id=str(i), image=(0.1 * i,) * 64, label=i) for i in range(3)]
    zeroth = ZerothOrder(model, scale=SCALE, seed=0)
    zeroth.differences(records, 0)
    zeroth.move([(0, 1e-3)])
    assert module.modes == [(True, False)] * 2
    assert module.training
    # The weights are no inference tensors for it: they can be trained on.
    model.losses(model.encode(records)).sum().backward()
    assert module.layer.weight.grad is not None


class Counting(Classifier):
    """Counts the records that are encoded."""

    encoded = 0

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        self.encoded += len(records)
        return super().encode(records)


def test_a_universe_is_encoded_once_a_run() -> None:
    model = Counting(Watching(), "counting")
    records = [Record(id="same", image=(0.1 * i,) * 64, label=i) for i in range(5)]
    zeroth = ZerothOrder(model, scale=SCALE, seed=0)
    zeroth.differences(records, 0)
    first = model.encoded
    for step in range(1, 20):
        zeroth.differences(list(records), step)
        zeroth.losses(records[:2])
    assert model.encoded == first + 2
    # Records are told apart by themselves, not by their ids.
    other = [Record(id="same", image=(9.0,) * 64, label=0)]
    assert zeroth.losses(other)[0] != zeroth.losses(records[:1])[0]


class Lengths:
    """A model whose records have as many tokens as their text says."""

    kind, name = "language", "lengths"
    module = nn.Linear(1, 1)

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        counts = [int(record.text) for record in records]
        mask = torch.zeros((len(records), 2, max(counts)), dtype=torch.int64)
        for row, count in zip(mask, counts, strict=True):
            row[:, :count] = 1
        return {"attention_mask": mask}


def test_records_of_like_length_go_together() -> None:
    counts = np.random.default_rng(0).integers(100, 1000, 200)
    records = [Record(id=str(i), text=str(count)) for i, count in enumerate(counts)]
    batches = Batches(Lengths(), 16).of(records)  # type: ignore[arg-type]
    places = np.concatenate([own for own, _ in batches])
    assert sorted(places) == list(range(200))
    assert all(len(own) <= 16 for own, _ in batches)
    sizes = [batch["attention_mask"].numel() // 2 for _, batch in batches]
    in_order = sum(16 * max(counts[start : start + 16]) for start in range(0, 200, 16))
    assert sum(sizes) < 1.15 * counts.sum() < 1.5 * counts.sum() < in_order
    again = Batches(Lengths(), 16).of(records)  # type: ignore[arg-type]
    assert all((a == b).all() for (a, _), (b, _) in zip(batches, again, strict=True))


def test_short_records_are_not_torn_apart() -> None:
    records = [Record(id=str(i), text=str(i + 1)) for i in range(40)]
    batches = Batches(Lengths(), 64).of(records)  # type: ignore[arg-type]
    assert len(batches) <= 3


def test_reduced_precision_is_that_of_its_differences() -> None:
    exact, _, own, records = engine("gpt2", scale=0.02)
    rough, other, twin, _ = engine("gpt2", scale=0.02, precision="bfloat16")
    wanted, loss = exact.differences(records, 0)
    found, near = rough.differences(records, 0)
    assert near == pytest.approx(loss, abs=0.01)
    assert not np.array_equal(found, wanted)
    assert np.corrcoef(found, wanted)[0, 1] > 0.9
    exact.settle()
    rough.settle()
    assert torch.equal(bits(own), bits(twin))
    # Only in the engine's passes.
    batch = other.encode(records)
    with torch.inference_mode():
        whole = other.losses(batch)
        with reduced("float32", torch.device("cpu")):
            assert torch.equal(other.losses(batch), whole)
        with reduced("bfloat16", torch.device("cpu")):
            assert not torch.equal(other.losses(batch), whole)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InputError, match=r"precision .*bfloat1.*did you mean 'bfloat16'"):
        engine("mlp", precision="bfloat1")
