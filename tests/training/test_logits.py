"""Logits where something is predicted: the same losses as from whole logits; when they are taken whole."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from zeroth_order_parts import full, lora, ready, texts

from workbench.training import logits
from workbench.training.logits import IGNORED, logits_at, target_losses
from workbench.training.precision import reduced

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(module: nn.Module) -> tuple[dict[str, Tensor], Tensor]:
    """Random tokens, with padding, and targets at some places only."""
    config: Any = module.config
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (5, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    targets = torch.randint(0, config.vocab_size, (5, 9), generator=generator)
    targets[torch.rand(5, 9, generator=generator) < 0.4] = IGNORED
    targets[mask == 0] = IGNORED
    targets[4] = IGNORED
    return {"input_ids": ids, "attention_mask": mask}, targets


@pytest.mark.parametrize("adapter", [full, lora])
def test_chosen_losses_are_those_of_whole_logits(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ready(adapter(texts(2)))[0].module
    inputs, targets = batch(module)
    whole = module(**inputs).logits
    wanted = functional.cross_entropy(
        whole.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    ).view(targets.shape)
    with_gradient = target_losses(module, inputs, targets)
    assert with_gradient.requires_grad
    assert torch.equal(with_gradient, wanted)
    shapes: list[int] = []
    module.get_output_embeddings().register_forward_hook(  # type: ignore[operator]
        lambda layer, given, output: shapes.append(output.numel() // output.shape[-1])
    )
    monkeypatch.setattr(logits, "AT_ONCE", 4 * whole.shape[-1])
    with torch.no_grad():
        found = target_losses(module, inputs, targets)
        torch.testing.assert_close(found, wanted.detach(), atol=1e-5, rtol=1e-5)
        assert not found[targets == IGNORED].any()
        chosen = targets != IGNORED
        some = logits_at(module, inputs, chosen)
        torch.testing.assert_close(some, whole[chosen].detach(), atol=1e-4, rtol=1e-4)
    count = int(chosen.sum())
    assert shapes[:2] == [4, 4]  # tried on four tokens, whole and in parts
    assert shapes[2:-1] == [4] * (count // 4) + [count % 4] * (count % 4 > 0)
    assert shapes[-1] == count


def test_nothing_chosen_has_no_logits() -> None:
    module = ready(full(texts(2)))[0].module
    inputs, targets = batch(module)
    with torch.no_grad():
        assert not target_losses(module, inputs, torch.full_like(targets, IGNORED)).any()


class Capped(nn.Module):
    """A backbone and an output layer, and something after them."""

    base_model_prefix = "backbone"

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.config = inner.config
        self.inner = inner
        self.backbone = inner.base_model
        self.cap = 3.0

    def get_output_embeddings(self) -> nn.Module:
        layer: nn.Module = self.inner.get_output_embeddings()
        return layer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        return self.cap * torch.tanh(logits / self.cap)


def test_logits_that_are_changed_after_the_output_layer_are_taken_whole() -> None:
    module = Capped(ready(full(texts(2)))[0].module)
    inputs, targets = batch(module)
    wanted = target_losses(module, inputs, targets).detach()
    with torch.no_grad():
        torch.testing.assert_close(target_losses(module, inputs, targets), wanted)
        module.cap = 1e9  # remembered as unknown, though it would now pass
        torch.testing.assert_close(
            target_losses(module, inputs, targets), target_losses(module.inner, inputs, targets)
        )
    assert logits._known[module] is None


def test_reduced_losses_are_rounded_less_than_logits() -> None:
    module: Any = ready(full(texts(2)))[0].module
    inputs, targets = batch(module)
    chosen = targets != IGNORED
    device, drawn = torch.device("cpu"), torch.Generator().manual_seed(1)
    with torch.no_grad():
        hidden = module.base_model(**inputs)[0]
        layer = module.get_output_embeddings()
        # Targets that the model finds likely, as in training.
        likely = torch.multinomial(layer(hidden[chosen]).softmax(1), 1, generator=drawn)[:, 0]
        wanted = functional.cross_entropy(layer(hidden[chosen]), likely, reduction="none")
        parts = logits._parts(module, inputs)
        assert parts is not None
        with reduced("bfloat16", device):
            ours = logits._chosen_losses(parts, hidden[chosen], likely)
            rounded = layer(hidden[chosen])
        assert rounded.dtype == torch.bfloat16
        naive = functional.cross_entropy(rounded.float(), likely, reduction="none")
    assert ours.dtype == torch.float32
    assert float((ours - wanted).square().mean()) < 0.5 * float((naive - wanted).square().mean())
    assert float((ours - wanted).abs().max()) < 0.05


def test_a_sure_target_has_no_loss_in_reduced_precision() -> None:
    output = nn.Linear(4, 6, bias=False)
    with torch.no_grad():
        output.weight.copy_(100 * torch.eye(6, 4))
        parts = logits._Parts(lambda ids, mask: ids, output, 6)
        with reduced("bfloat16", torch.device("cpu")):
            found = logits._chosen_losses(parts, torch.eye(4), torch.tensor([0, 1, 2, 0]))
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert float(found[3]) == pytest.approx(100, rel=0.01)


def test_examples() -> None:
    assert doctest.testmod(logits).failed == 0
