"""The gradients of canaries at recorded weights, by the module and the inputs that the user's scorer uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_pre_hook

from workbench.audit.canaries.record import Update
from workbench.core.errors import UnsupportedError
from workbench.core.one_line import one_line
from workbench.interfaces import Record

MOST_NUMBERS = 100_000_000
"""Entries of the gradients of all canaries that are held at once."""

AT_ONCE = 32
"""Canaries whose gradients are taken in one pass."""


@dataclass(frozen=True)
class Input:
    """What the user's scorer hands to the module for one canary that it scores alone."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    label: int | None

    def tensors(self) -> dict[str, Tensor]:
        """The arguments that are tensors, by name, or by place as text; and the label under `"="`."""
        named = {**{str(place): value for place, value in enumerate(self.args)}, **self.kwargs}
        found = {name: value for name, value in named.items() if isinstance(value, Tensor)}
        return found if self.label is None else {**found, "=": torch.tensor(self.label)}


@dataclass(frozen=True)
class Directions:
    """Where the gradients of canaries come from.

    Attributes:
        module: The user's, as the training left it.
        inputs: Of each canary.
        parameters: Of each optimizer.
        names: Their names in the module; None for those that it has not.
        columns: Of each optimizer, the entries of its gradient that are looked at.
    """

    module: nn.Module
    inputs: tuple[Input, ...]
    parameters: list[list[Tensor]]
    names: list[list[str | None]]
    columns: list[Tensor]

    def at(self, update: Update) -> Tensor:
        """The gradient of each canary's loss at the weights before an update; shape `(canaries, columns)`.

        Entries of parameters that the module has not are 0.

        Raises:
            UnsupportedError: the module fails, or returns what is no logits.
        """
        names, parameters = self.names[update.optimizer], self.parameters[update.optimizer]
        parts = torch.split(update.weights, [p.numel() for p in parameters])
        weights = {
            name: part.view(p.shape).to(p.device, p.dtype)
            for name, part, p in zip(names, parts, parameters, strict=True)
            if name is not None
        }
        step = max(1, min(AT_ONCE, MOST_NUMBERS // update.weights.numel()))
        rows = []
        with _evaluating(self.module):
            for start in range(0, len(self.inputs), step):
                inputs = self.inputs[start : start + step]
                try:
                    found = self._gradients(weights, inputs)
                except UnsupportedError:
                    raise
                except Exception as error:  # the user's module may raise anything
                    said = one_line(f"{type(error).__name__}: {error}", longest=200)
                    raise UnsupportedError(f"no gradient of a canary can be taken: {said}") from error
                flat = [
                    found[name].reshape(len(inputs), -1).to("cpu", torch.float32)
                    if name is not None
                    else torch.zeros(len(inputs), p.numel())
                    for name, p in zip(names, parameters, strict=True)
                ]
                rows.append(torch.cat(flat, dim=1)[:, self.columns[update.optimizer]])
        return torch.cat(rows)

    def _gradients(self, weights: Mapping[str, Tensor], inputs: Sequence[Input]) -> dict[str, Tensor]:
        tensors = [own.tensors() for own in inputs]
        shapes = [{key: value.shape for key, value in own.items()} for own in tensors]
        if len(inputs) > 1 and all(own == shapes[0] for own in shapes):
            stacked = {key: torch.stack([own[key] for own in tensors]) for key in tensors[0]}
            try:
                together = vmap(grad(self._loss), in_dims=(None, None, 0))
                found: dict[str, Tensor] = together(dict(weights), inputs[0], stacked)
            except Exception:  # vmap does not know all that modules do, and says so in many ways.
                pass
            else:
                return found
        rows = [self._alone(weights, own) for own in inputs]
        return {name: torch.stack([row[name] for row in rows]) for name in weights}

    def _loss(self, weights: Mapping[str, Tensor], own: Input, tensors: Mapping[str, Tensor]) -> Tensor:
        args = [tensors.get(str(place), value) for place, value in enumerate(own.args)]
        kwargs = {name: tensors.get(name, value) for name, value in own.kwargs.items()}
        output = functional_call(self.module, dict(weights), tuple(args), kwargs)
        return loss_of(output, args, kwargs, tensors.get("="))

    def _alone(self, weights: Mapping[str, Tensor], own: Input) -> dict[str, Tensor]:
        leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        with torch.enable_grad():
            loss = self._loss(leaves, own, own.tensors())
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if part is None else part
            for (name, leaf), part in zip(leaves.items(), found, strict=True)
        }


def loss_of(output: Any, args: Sequence[Any], kwargs: Mapping[str, Any], label: Tensor | None) -> Tensor:
    """The loss that training most likely took of what a module returned for one record.

    A loss that the module returned itself; cross-entropy of `(1, classes)` with the record's label (logistic
    loss where there is one output); cross-entropy of the next token where logits have the shape `(1, tokens,
    words)` and a tensor of integers `(1, tokens)` went in.

    Raises:
        UnsupportedError: it is none of these.
    """
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own.mean()
    logits = getattr(output, "logits", output[0] if isinstance(output, tuple | list) else output)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise UnsupportedError(f"the module returns {type(logits).__name__}, which are no logits")
    given = [kwargs["input_ids"]] if "input_ids" in kwargs else [*args, *kwargs.values()]
    tokens = [v for v in given if isinstance(v, Tensor) and v.shape == logits.shape[:-1]]
    tokens = [v for v in tokens if not v.is_floating_point()]
    if logits.dim() == 3 and tokens:
        losses = functional.cross_entropy(
            logits[0, :-1].float(), tokens[0][0, 1:].to(logits.device), reduction="none"
        )
        mask = kwargs.get("attention_mask")
        weight = mask[0, 1:].to(losses) if isinstance(mask, Tensor) else torch.ones_like(losses)
        return (losses * weight).sum() / weight.sum()
    if logits.dim() == 2 and logits.shape[0] == 1 and label is not None:
        label = label.to(logits.device)
        if logits.shape[1] == 1:
            return functional.binary_cross_entropy_with_logits(logits[0, 0].float(), label.float())
        return functional.cross_entropy(logits[0].float(), label)
    shape = tuple(logits.shape)
    raise UnsupportedError(f"the module returns a tensor of shape {shape} for one record, which is no logits")


def directions_of(
    ask: Callable[[Sequence[Record]], None], records: Sequence[Record], parameters: list[list[Tensor]]
) -> Directions:
    """Learn the user's module, and its inputs for each canary, while the user's scorer scores it.

    Args:
        ask: Lets the user's scorer score records.
        records: The canaries.
        parameters: That were trained, of each optimizer.

    Raises:
        UnsupportedError: the scorer calls no module that has such parameters, or one of unknown outputs.
        InputError: the scorer fails.
    """
    module = _module_of(ask, records[0], {id(p) for own in parameters for p in own})
    inputs: list[Input] = []
    for record in records:
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def before(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], calls: list[Any] = calls
        ) -> None:
            calls.append((args, kwargs))

        handle = module.register_forward_pre_hook(before, with_kwargs=True)
        try:
            ask([record])
        finally:
            handle.remove()
        if not calls:
            raise UnsupportedError(f"the scorer calls {type(module).__name__} for some records only")
        args, kwargs = calls[0]
        inputs.append(
            Input(
                args=tuple(_copied(value) for value in args),
                kwargs={name: _copied(value) for name, value in kwargs.items()},
                label=record.label,
            )
        )
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    names = [[known.get(id(p)) for p in own] for own in parameters]
    columns = [_columns(sum(p.numel() for p in own), len(records)) for own in parameters]
    return Directions(module, tuple(inputs), parameters, names, columns)


def _module_of(ask: Callable[[Sequence[Record]], None], record: Record, trained: set[int]) -> nn.Module:
    """The first module of the scorer's that has the most of the trained parameters."""
    called: dict[int, nn.Module] = {}

    def before(module: nn.Module, args: Any) -> None:
        called.setdefault(id(module), module)

    handle = register_module_forward_pre_hook(before)
    try:
        ask([record])
    finally:
        handle.remove()
    sizes = {
        key: sum(p.numel() for p in module.parameters() if id(p) in trained) for key, module in called.items()
    }
    best = max(sizes, key=lambda key: sizes[key], default=None)
    if best is None or not sizes[best]:
        raise UnsupportedError("the scorer calls no torch module that has the trained parameters")
    return called[best]


def _columns(size: int, canaries: int) -> Tensor:
    """All entries of a gradient, or as many drawn at random as there is room for."""
    most = MOST_NUMBERS // canaries
    if size <= most:
        return torch.arange(size)
    return torch.randperm(size, generator=torch.Generator().manual_seed(0))[:most].sort().values


def _copied(value: Any) -> Any:
    """A tensor that autograd can use, whatever mode the scorer made it in."""
    return value.detach().clone() if isinstance(value, Tensor) else value


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Dropout and the like are off for a while, and so are hooks on gradients, such as Opacus'."""
    kept = [
        (part, part.training, dict(part._backward_hooks), dict(part._backward_pre_hooks))
        for part in module.modules()
    ]
    module.eval()
    for part, *_ in kept:
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
    try:
        yield
    finally:
        for part, mode, hooks, pre_hooks in kept:
            part.training = mode
            part._backward_hooks.update(hooks)
            part._backward_pre_hooks.update(pre_hooks)
