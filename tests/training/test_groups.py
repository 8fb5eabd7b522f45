"""Group norms, group sums and gradients of per-record signals, against the one-record-at-a-time twin."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import peft
import pytest
import torch
import transformers
from oracles.one_at_a_time import one_at_a_time
from torch import Tensor, nn

from workbench.core.errors import InputError
from workbench.interfaces import GradientCanary, Record, Signals
from workbench.training import flat, lora
from workbench.training.canary import FixedSignals, SignalsWithCanary, SignalsWithCanaryRecord
from workbench.training.flat import FlatLayout
from workbench.training.lora import lora_pairs
from workbench.training.per_record import EmptySignals, MatrixSignals, per_record_signals
from workbench.training.samples import MicroBatchedSignals, micro_batches

# peft asks transformers 5 for a property by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
RECORDS = 5


@dataclass
class Tiny:
    """A model whose records are indices of prepared inputs."""

    module: nn.Module
    inputs: Tensor
    losses: Callable[[Mapping[str, Tensor]], Tensor]

    def encode(self, records: list[Record]) -> dict[str, Tensor]:
        return {"x": self.inputs[[int(record.id) for record in records]]}


def moved(module: nn.Module) -> nn.Module:
    """In float64 and evaluation mode, off the symmetric initial values (LoRA's B starts at zero)."""
    module = module.double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.1)
    return module


def mlp() -> Tiny:
    module = moved(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    inputs = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Tiny(module, inputs, lambda batch: module(batch["x"]).logsumexp(1))


def adapted_gpt2() -> Tiny:
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0
    )
    targets = peft.LoraConfig(r=2, target_modules=["c_attn", "c_fc"], lora_dropout=0.0, fan_in_fan_out=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = moved(peft.get_peft_model(transformers.GPT2LMHeadModel(config), targets))
    inputs = torch.randint(20, (RECORDS, 7), generator=torch.Generator().manual_seed(1))

    def losses(batch: Mapping[str, Tensor]) -> Tensor:
        logits = module(input_ids=batch["x"]).logits[:, :-1].transpose(1, 2)
        return nn.functional.cross_entropy(logits, batch["x"][:, 1:], reduction="none").mean(1)

    return Tiny(module, inputs, losses)


MODELS = {"mlp": mlp, "lora": adapted_gpt2}


def all_records() -> list[Record]:
    return [Record(id=str(i)) for i in range(RECORDS)]


def twin_of(model: Tiny) -> MatrixSignals:
    found = one_at_a_time(model, {"x": model.inputs})  # type: ignore[arg-type]
    assert isinstance(found, MatrixSignals)
    return found


def grouped(layout: Mapping[str, Any]) -> list[list[str]]:
    """Three groups whose names do not follow each other in the layout."""
    names = list(layout)
    return [names[1::3], names[0::3], names[2::3]]


def assert_same(signals: Signals, rows: Tensor) -> None:
    """Every answer is that of the gradients themselves, a row a record, by plain arithmetic."""
    groups = grouped(signals.layout)
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(signals.gradients(), rows, **close)
    columns = [torch.cat([torch.arange(rows.shape[1])[signals.layout[n][0]] for n in g]) for g in groups]
    norms = torch.stack([rows[:, column].norm(dim=1) for column in columns], 1)
    torch.testing.assert_close(signals.group_norms(groups), norms, **close)
    weights = torch.linspace(-1.0, 2.0, rows.shape[0] * 3, dtype=torch.float64).view(-1, 3)
    expected = torch.zeros(rows.shape[1], dtype=torch.float64)
    for group, column in enumerate(columns):
        expected[column] = weights[:, group] @ rows[:, column]
    torch.testing.assert_close(signals.group_sum(weights, groups), expected, **close)
    equal = weights[:, :1].expand(-1, 3)
    torch.testing.assert_close(signals.group_sum(equal, groups), signals.weighted_sum(weights[:, 0]), **close)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["book_keeping", "vmap"])
def test_groups_are_those_of_the_naive_twin(name: str, method: str) -> None:
    model = MODELS[name]()
    rows = torch.stack([twin_of(model).weighted_sum(row) for row in torch.eye(RECORDS, dtype=torch.float64)])
    signals = per_record_signals(model, {"x": model.inputs}, method=method)  # type: ignore[arg-type]
    assert_same(signals, rows)


def test_factors_that_are_not_multiplied_out_have_the_same_groups() -> None:
    # One position against a matrix of 40 x 50: book-keeping keeps the factors, whose norms are Gram sums.
    module = moved(nn.Sequential(nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 3)))
    inputs = torch.randn(RECORDS, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = Tiny(module, inputs, lambda batch: module(batch["x"]).logsumexp(1))
    signals = per_record_signals(model, {"x": inputs}, method="book_keeping")  # type: ignore[arg-type]
    assert any(one._factors for one in signals._gradients)  # type: ignore[attr-defined]
    assert_same(signals, twin_of(model).gradients())


def test_vmap_in_blocks_has_the_same_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    rows = twin_of(model).gradients()
    monkeypatch.setattr("workbench.training.per_record._BLOCK_ELEMENTS", 2 * rows.shape[1])
    assert_same(per_record_signals(model, {"x": model.inputs}, method="vmap"), rows)  # type: ignore[arg-type]


def test_micro_batches_have_the_same_groups() -> None:
    model = mlp()
    rows = twin_of(model).gradients()
    assert_same(MicroBatchedSignals(model, micro_batches(all_records(), 2), most=2), rows)  # type: ignore[arg-type]
    assert_same(FixedSignals(MicroBatchedSignals(model, micro_batches(all_records(), 2), most=2)), rows)  # type: ignore[arg-type]


def test_an_empty_sample_has_empty_groups() -> None:
    layout = FlatLayout.of(mlp().module)
    signals = EmptySignals(layout)
    groups = grouped(layout.places)
    assert signals.gradients().shape == (0, layout.dimension)
    assert signals.group_norms(groups).shape == (0, 3)
    assert not signals.group_sum(torch.zeros(0, 3), groups).any()
    with pytest.raises(InputError, match=r"weights must have shape \(0, 3\)"):
        signals.group_sum(torch.zeros(1, 3), groups)


def test_fixed_signals_keep_apart_what_they_are_asked() -> None:
    known = twin_of(mlp())
    fixed = FixedSignals(known)
    names = list(known.layout)
    first, second = [names[:1], names[1:]], [names[:2], names[2:]]
    weights = torch.linspace(0.0, 1.0, 2 * RECORDS, dtype=torch.float64).view(-1, 2)
    for chosen in (first, first, second, first):
        total = fixed.group_sum(weights, chosen)
        torch.testing.assert_close(total, known.group_sum(weights, chosen))
        total.zero_()  # the caller's copy, not the kept one
        torch.testing.assert_close(fixed.group_norms(chosen), known.group_norms(chosen))
        torch.testing.assert_close(fixed.weighted_sum(weights[:, 0]), known.weighted_sum(weights[:, 0]))


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_canary_has_its_row_and_its_norm_in_each_group(everywhere: bool) -> None:
    known = twin_of(mlp())
    groups = grouped(known.layout)
    canary = GradientCanary(coordinate=33, magnitude=5.0, everywhere=everywhere)
    signals = SignalsWithCanary(known, canary, True, groups=groups)
    assert len(signals.coordinates) == (3 if everywhere else 1)
    own = torch.zeros(1, known.dimension, dtype=torch.float64)
    own[0, list(signals.coordinates)] = 5.0
    rows = torch.cat([known.gradients(), own])
    assert_same(signals, rows)
    torch.testing.assert_close(signals.norms(), rows.norm(dim=1))
    absent = SignalsWithCanary(known, canary, False, groups=groups)
    assert_same(absent, known.gradients())
    trials = SignalsWithCanary(known, canary, True, trials=4, groups=groups)
    weights = torch.ones(RECORDS + 1, 3, dtype=torch.float64)
    torch.testing.assert_close(trials.group_sum(weights, groups), rows.sum(0).expand(4, -1))
    share = known.gradients().sum(0)[list(trials.coordinates)]  # the canary's own part is not in it
    assert trials.known_share.tolist() == pytest.approx(share.tolist())


def test_a_canary_everywhere_stands_in_a_coordinate_of_each_group() -> None:
    known = twin_of(mlp())
    groups = grouped(known.layout)
    for coordinate in range(40):
        canary = GradientCanary(coordinate=coordinate, magnitude=1.0, everywhere=True)
        places = SignalsWithCanary(known, canary, True, groups=groups).coordinates
        for names, place in zip(groups, places, strict=True):
            assert any(known.layout[n][0].start <= place < known.layout[n][0].stop for n in names)


@pytest.mark.parametrize(
    "changes", [{"spread": 1}, {"spread": 40}, {"spread": 0}, {"opposed": True}], ids=str
)
def test_a_canary_record_has_its_row_and_its_norm_in_each_group(changes: dict[str, Any]) -> None:
    known = twin_of(mlp())
    canary = GradientCanary(coordinate=20, magnitude=2.0, record="r", **changes)
    others = torch.arange(float(known.dimension), dtype=torch.float64)
    signals = SignalsWithCanaryRecord(known, canary, others)
    # The canary's own gradient, from the sum that it was tested by before it had a row.
    own = signals.weighted_sum(torch.eye(RECORDS + 1, dtype=torch.float64)[-1])
    assert_same(signals, torch.cat([known.gradients(), own[None]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: [names[1:]], "in none"),
        (lambda names: [names, names[:1]], "twice"),
        (lambda names: [names, ["other"]], "must name trainable parameters, got 'other'"),
        (lambda names: [names, []], "no parameter in group 1"),
    ],
)
def test_groups_that_are_no_partition_are_refused(
    change: Callable[[list[str]], list[list[str]]], message: str
) -> None:
    known = twin_of(mlp())
    groups = change(list(known.layout))
    with pytest.raises(InputError, match=message):
        known.group_norms(groups)
    with pytest.raises(InputError, match=message):
        known.group_sum(torch.zeros(RECORDS, len(groups)), groups)


def test_the_pairs_of_adapters_are_groups() -> None:
    layout = twin_of(adapted_gpt2()).layout
    pairs = lora_pairs(layout)
    assert [name for pair in pairs for name in pair] == list(layout)
    assert len(pairs) == 4  # two layers, two adapters each
    for a, b in pairs:
        assert a.replace("lora_A", "lora_B") == b
    with pytest.raises(InputError, match="must be LoRA matrices"):
        lora_pairs(twin_of(mlp()).layout)
    with pytest.raises(InputError, match="come with its partner"):
        lora_pairs({name: layout[name] for name in list(layout)[:-1]})


@pytest.mark.parametrize("module", [flat, lora], ids=lambda m: str(m.__name__))
def test_doctests(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
