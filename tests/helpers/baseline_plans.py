"""Signals and plans for the tests of RLDP's baselines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.interfaces import Corpus, Plan
from workbench.training.flat import FlatLayout
from workbench.training.per_record import MatrixSignals

BUDGET = ApproximateDP(epsilon=4.0, delta=1e-5)


class Adapter(nn.Module):
    """The two matrices of a LoRA adapter, by peft's names."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Of rank 2."""
        super().__init__()
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, outputs, bias=False)})


ADAPTERS = FlatLayout.of(nn.ModuleDict({"q": Adapter(3, 4), "v": Adapter(2, 1)}))
"""Matrices of 6, 8, 4 and 2 numbers; d = 20."""


def matrix(gradients: Tensor, layout: FlatLayout | None = None) -> MatrixSignals:
    """Signals of the rows."""
    layout = FlatLayout.of(nn.Linear(gradients.shape[1], 1, bias=False)) if layout is None else layout
    return MatrixSignals(layout, gradients, torch.zeros(len(gradients)))


def seeded(seed: int) -> torch.Generator:
    """A source of noise."""
    return torch.Generator().manual_seed(seed)


def drawn(n: int, d: int, seed: int, scale: float = 1.0) -> Tensor:
    """Normal gradients, shape `(n, d)`."""
    return scale * torch.randn(n, d, generator=seeded(seed))


@cache
def digits() -> Corpus:
    """200 digits."""
    corpus: Corpus = registry.create("corpus", "digits", size=200, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    """A short run on the digits, with some fields changed."""
    plan = Plan(
        records=digits().records,
        held_out=digits().held_out,
        model="digits_logistic",
        steps=30,
        sampling_probability=0.2,
        learning_rate=1.0,
        optimizer="sgd",
        budget=BUDGET,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]
