"""Small models, records and readings that the tests of the zeroth-order engine share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workbench.core import registry
from workbench.interfaces import Corpus, Model, Plan
from workbench.training.fine_tuning import build_model, trainable
from workbench.training.lattice import Lattice

SEED = 11
"""Of the directions."""


def digits(size: int = 24) -> Corpus:
    """Images of digits."""
    return registry.create("corpus", "digits", size=size, seed=0)


def texts(size: int = 6) -> Corpus:
    """Docstrings."""
    return registry.create("corpus", "docstrings", size=size, seed=0)


def plan(corpus: Corpus, model: str = "digits_mlp", **changed: Any) -> Plan:
    """A few steps of plain SGD over all records."""
    fields: dict[str, Any] = {
        "records": corpus.records,
        "held_out": corpus.held_out[:4],
        "model": model,
        "steps": 3,
        "sampling_probability": 1.0,
        "learning_rate": 1e-3,
        "optimizer": "sgd",
        "seed": 1,
    }
    return Plan(**{**fields, **changed})


def lora(corpus: Corpus) -> Plan:
    """The tiny GPT-2 with LoRA, r = 8 and alpha = 16, on short texts."""
    return plan(corpus, "tiny_gpt2", adapter="lora", lora_rank=8, model_parameters={"max_length": 24})


def full(corpus: Corpus) -> Plan:
    """All weights of the tiny GPT-2, on short texts."""
    return plan(corpus, "tiny_gpt2", model_parameters={"max_length": 24})


def ready(given: Plan) -> tuple[Model, list[nn.Parameter]]:
    """The plan's model in evaluation mode, and its trainable parameters."""
    model = build_model(given)
    model.module.eval()
    return model, list(trainable(model.module).values())


def bits(parameters: list[nn.Parameter]) -> Tensor:
    """All weights as whole numbers, so that equal means equal to the bit; a copy."""
    return torch.cat([p.detach().reshape(-1).view(torch.int32) for p in parameters]).clone()


def values(parameters: list[nn.Parameter]) -> Tensor:
    """All weights, flat, float64; a copy."""
    return torch.cat([p.detach().reshape(-1).double() for p in parameters])


def direction(parameters: list[nn.Parameter], index: int, seed: int = SEED) -> Tensor:
    """z over all weights, flat, float64, put together from its parts."""
    from workbench.training.zeroth_order import Directions

    sizes = [p.numel() for p in parameters]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    found = torch.full((sum(sizes),), torch.nan, dtype=torch.float64)
    for number, place, z in Directions(parameters, seed).parts(index):
        found[starts[number] + place.start : starts[number] + place.stop] = z.double()
    return found


def load(parameters: list[nn.Parameter], flat: Tensor) -> None:
    """Write a flat vector into the weights."""
    start = 0
    for parameter in parameters:
        part = flat[start : start + parameter.numel()]
        parameter.data.copy_(part.view_as(parameter).to(parameter.dtype))
        start += parameter.numel()


def lattice(parameters: list[nn.Parameter], scale: float = 1e-3) -> Lattice:
    """The parameters on their lattices."""
    return Lattice(parameters, scale, SEED)
