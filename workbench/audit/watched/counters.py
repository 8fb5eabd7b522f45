"""Count what is seen of each step while it is prepared: the records of its batch, and draws of noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from workbench.audit.watched.run_file import FORWARD, PER_RECORD

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor

ENOUGH = 8  # steps counted by per-record gradients, before calls of the model are no longer looked at


class BatchCounter:
    """Counts the records of each step."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._ours = {id(p) for p in parameters}
        self._shapes = {p.shape for p in parameters}
        self._seen: dict[tuple[Any, ...], Tensor] = {}
        self._forward: int | None = None
        self._per_record: int | None = None
        self._root: torch.nn.Module | None = None
        self._followed: Any = None
        self._counted = 0
        self._calls = ExitStack()
        self._finding = ExitStack()
        self._stack = ExitStack()

    def __enter__(self) -> BatchCounter:
        """Look for the outermost module that is called and holds a parameter."""
        self._finding.callback(register_module_forward_pre_hook(self._found).remove)
        self._finding.callback(register_module_forward_hook(self._first_call, with_kwargs=True).remove)
        self._stack.callback(self._finding.close)
        self._stack.callback(self._calls.close)
        return self

    def __exit__(self, *_: object) -> None:
        """Take the hooks off."""
        self._stack.close()
        self._seen.clear()

    def follow(self, private: Any, *, is_clipping: bool = False) -> None:
        """Count the per-record gradients that an optimizer of Opacus is about to clip, or is clipping now."""
        clip = private.clip_and_accumulate
        if is_clipping:
            self._per_record = _records(self._parameters)

        def counted() -> Any:
            self._per_record = _sum(self._per_record, _records(self._parameters))
            return clip()

        private.clip_and_accumulate = counted
        self._followed = private
        self._stack.callback(vars(private).pop, "clip_and_accumulate", None)

    def taken(self) -> tuple[int | None, str]:
        """The number of records since the last step, and how they were counted."""
        if self._followed is None:
            self._per_record = _records(self._parameters)
        per_record, forward = self._per_record, self._forward
        self._per_record = self._forward = None
        self._seen.clear()
        if per_record is not None:
            self._counted += 1
            if self._counted == ENOUGH and self._followed is not None:
                self._finding.close()
                self._calls.close()
            return per_record, PER_RECORD
        return forward, FORWARD if forward is not None else ""

    def _found(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # The compiled module's own call is seen, outside what is compiled.
        if self._root is None and any(self._is_ours(p) for p in module.parameters()):
            self._root = module

    def _is_ours(self, parameter: Tensor) -> bool:
        """A parameter of the optimizer, or what `torch.func` put in its place."""
        if id(parameter) in self._ours:
            return True
        return parameter.shape in self._shapes and _is_wrapped(parameter)

    def _first_call(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and module is self._root:
            self._finding.close()
            self._called(module, args, kwargs, output)
            hook = module.register_forward_hook(self._called, with_kwargs=True)
            self._calls.callback(hook.remove)

    def _called(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Count a call once its gradient is taken: that of a loss which is only looked at is not."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if isinstance(output, Tensor):
            made: tuple[Tensor, ...] = (output,)
        else:  # A record without the manners of a dict has its parts as attributes.
            made = tuple(_tensors([output], least=0)) or tuple(
                _tensors(list(getattr(output, "__dict__", {}).values()), least=0)
            )
        if any(map(_is_wrapped, made)):
            if any(map(_is_differentiated, made)):
                self._count(_entries(args, kwargs))
            return
        # A hook on a leaf, such as a parameter that is returned, would stay.
        watched = [each for each in made if each.grad_fn is not None]
        if watched and (entries := _entries(args, kwargs)) is not None:
            for each in watched:
                each.register_hook(lambda _: self._count(entries))  # type: ignore[no-untyped-call]

    def _count(self, entries: tuple[tuple[Any, ...], Tensor, int] | None) -> None:
        """Add so many records, unless these very ones are counted."""
        if entries is None:
            return
        key, tensor, count = entries
        if key not in self._seen:
            # What is kept until the step keeps its memory, so that another batch has another address.
            self._seen[key] = tensor
            self._forward = _sum(self._forward, count)


class DrawCounter:
    """Counts normal draws of a parameter's shape, or flat of one or all, while it listens."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._shapes = {tuple(p.shape) for p in parameters}
        self._shapes |= {(p.numel(),) for p in parameters} | {(sum(p.numel() for p in parameters),)}
        self._stack = ExitStack()
        self._count, self._square, self._listens = 0, 0.0, False

    def __enter__(self) -> DrawCounter:
        """Wrap torch's functions, and listen."""
        scale = 1
        for place, name in ((torch, "normal"), (torch.Tensor, "normal_")):
            at = scale if place is torch else scale + 1
            self._stack.enter_context(patch.object(place, name, self._wrapped(getattr(place, name), at)))
        for name in ("randn", "randn_like"):
            self._stack.enter_context(patch.object(torch, name, self._wrapped(getattr(torch, name), None)))
        self.listen(True)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the functions back."""
        self.listen(False)
        self._stack.close()

    def listen(self, whether: bool) -> None:
        """Count what is drawn from now on, or do not."""
        if whether is not self._listens:
            self._listens, self._count, self._square = whether, 0, 0.0

    def taken(self, values: int) -> tuple[int | None, float | None]:
        """Draws since the last step, and their scale over so many values; None where it did not listen."""
        if not self._listens:
            return None, None
        count, square = self._count, self._square
        self._count, self._square = 0, 0.0
        return count, math.sqrt(square / values) if count and values and math.isfinite(square) else None

    def _wrapped(self, draw: Callable[..., Any], at: int | None) -> Callable[..., Any]:
        """The function, its draws noted; `at`: the place of its standard deviation, None for 1."""

        def drawn(*args: Any, **kwargs: Any) -> Any:
            values = draw(*args, **kwargs)
            if self._listens and isinstance(values, Tensor) and values.shape in self._shapes:
                std: Any = 1.0
                if at is not None:
                    std = kwargs.get("std", args[at] if len(args) > at else 1.0)
                self._count += 1
                self._square += values.numel() * float(std) ** 2 if isinstance(std, int | float) else math.nan
            return values

        return drawn


def _records(parameters: Sequence[Any]) -> int | None:
    """The number of per-record gradients of the first parameter that has some."""
    for parameter in parameters:
        samples = getattr(parameter, "grad_sample", None)
        if samples is not None:
            return sum(map(len, samples)) if isinstance(samples, list) else len(samples)
    return None


def _sum(first: int | None, second: int | None) -> int | None:
    return second if first is None else first + (second or 0)


def _tensors(values: Sequence[Any], *, least: int = 1) -> Iterator[Tensor]:
    """The tensors among values, in order, of so many dimensions at least."""
    for value in values:
        if isinstance(value, Tensor):
            if value.dim() >= least:
                yield value
        elif isinstance(value, Mapping):
            yield from _tensors(list(value.values()), least=least)
        elif isinstance(value, list | tuple):
            yield from _tensors(value, least=least)


def _entries(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], Tensor, int] | None:
    """By what a batch is known, the tensor that it is, and its records; None where it has no memory."""
    tensor = args[0] if args else None
    if not isinstance(tensor, Tensor) or not tensor.dim():
        tensor = next(_tensors([*args, *kwargs.values()]), None)
        if tensor is None:
            return None
    tensor, place = _outside_vmap(tensor)
    shape = tensor.shape
    try:
        key = (tensor.data_ptr(), shape, 0 if tensor.is_inference() else tensor._version)
    except RuntimeError:  # As a sparse tensor, or one that is only traced.
        return None
    return key, tensor, shape[place]


def _is_differentiated(tensor: Tensor) -> bool:
    """Whether `torch.func` is to take a gradient of what gives this, at some level."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_gradtrackingtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def _outside_vmap(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor as it was before `torch.func` took it apart, and its dimension of records."""
    functorch, place = torch._C._functorch, 0
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            place = functorch.maybe_get_bdim(tensor)
        tensor = functorch.get_unwrapped(tensor)
    return tensor, place
