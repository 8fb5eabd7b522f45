"""Count what is seen of each step while it is prepared: the records of its batch, and draws of noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from workbench.audit.watched.run_file import FORWARD, PER_RECORD


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
        self._finding = ExitStack()
        self._stack = ExitStack()

    def __enter__(self) -> BatchCounter:
        """Look for the outermost module that is called and holds a parameter."""
        self._finding.callback(register_module_forward_pre_hook(self._found).remove)
        self._finding.callback(register_module_forward_hook(self._first_call, with_kwargs=True).remove)
        self._stack.callback(self._finding.close)
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
        return parameter.shape in self._shapes and torch._C._functorch.is_functorch_wrapped_tensor(parameter)

    def _first_call(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and module is self._root:
            self._finding.close()
            self._called(module, args, kwargs)
            hook = module.register_forward_pre_hook(self._called, with_kwargs=True)
            self._stack.callback(hook.remove)

    def _called(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        tensor = args[0] if args else None
        if not isinstance(tensor, Tensor) or not tensor.dim():
            tensor = next(_tensors([*args, *kwargs.values()]), None)
            if tensor is None:
                return
        tensor, place = _outside_vmap(tensor)
        try:
            # What is kept until the step keeps its memory, so that another batch has another address.
            key = (tensor.data_ptr(), tensor.shape, 0 if tensor.is_inference() else tensor._version)
        except RuntimeError:  # It has no memory, as a sparse tensor or one that is only traced.
            return
        if key not in self._seen:
            self._seen[key] = tensor
            self._forward = _sum(self._forward, tensor.shape[place])


class DrawCounter:
    """Counts normal draws of a parameter's shape, or flat of one or all, while it listens."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._shapes = {tuple(p.shape) for p in parameters}
        self._shapes |= {(p.numel(),) for p in parameters} | {(sum(p.numel() for p in parameters),)}
        self._count, self._square, self._listens = 0, 0.0, False
        self._wrappers = [
            _Wrapper(torch, "normal", self._seen, 1),
            _Wrapper(torch.Tensor, "normal_", self._seen, 2),
            _Wrapper(torch, "randn", self._seen, None),
            _Wrapper(torch, "randn_like", self._seen, None),
        ]

    def __enter__(self) -> DrawCounter:
        """Listen."""
        self.listen(True)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the functions back."""
        self.listen(False)

    def listen(self, whether: bool) -> None:
        """Wrap torch's functions, or give them back."""
        if whether is self._listens:
            return
        self._listens, self._count, self._square = whether, 0, 0.0
        for wrapper in self._wrappers:
            if whether:
                wrapper.put()
            else:
                wrapper.take_off()

    def taken(self, values: int) -> tuple[int | None, float | None]:
        """Draws since the last step, and their scale over so many values; None where it did not listen."""
        if not self._listens:
            return None, None
        count, square = self._count, self._square
        self._count, self._square = 0, 0.0
        return count, math.sqrt(square / values) if count and values and math.isfinite(square) else None

    def _seen(self, values: Any, std: Any) -> None:
        if isinstance(values, Tensor) and values.shape in self._shapes:
            self._count += 1
            self._square += values.numel() * float(std) ** 2 if isinstance(std, int | float) else math.nan


class _Wrapper:
    """A function of torch that tells of what it returns, while it is put in the function's place.

    Args:
        place: Which holds the function; `name`: under this name.
        seen: Is told of what is drawn, and of its standard deviation.
        at: The place of that among the function's arguments; None for 1.
    """

    def __init__(self, place: Any, name: str, seen: Callable[[Any, Any], None], at: int | None) -> None:
        self._place, self._name = place, name
        self._original: Any = None
        self._is_in_place = self._tells = False

        def drawn(*args: Any, **kwargs: Any) -> Any:
            values = self._original(*args, **kwargs)
            if self._tells:
                seen(values, 1.0 if at is None else kwargs.get("std", args[at] if len(args) > at else 1.0))
            return values

        self._drawn = drawn

    def put(self) -> None:
        """Put it in the function's place."""
        self._tells = True
        if not self._is_in_place:
            self._is_own = self._name in vars(self._place)
            self._original = getattr(self._place, self._name)
            setattr(self._place, self._name, self._drawn)
            self._is_in_place = True

    def take_off(self) -> None:
        """Give the function back; where somebody has wrapped this one, be still."""
        self._tells = False
        if getattr(self._place, self._name) is self._drawn:
            if self._is_own:
                setattr(self._place, self._name, self._original)
            else:
                delattr(self._place, self._name)
            self._is_in_place = False


def _records(parameters: Sequence[Any]) -> int | None:
    """The number of per-record gradients of the first parameter that has some."""
    for parameter in parameters:
        samples = getattr(parameter, "grad_sample", None)
        if samples is not None:
            return sum(map(len, samples)) if isinstance(samples, list) else len(samples)
    return None


def _sum(first: int | None, second: int | None) -> int | None:
    return second if first is None else first + (second or 0)


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, in order, with a first dimension."""
    for value in values:
        if isinstance(value, Tensor):
            if value.dim():
                yield value
        elif isinstance(value, Mapping):
            yield from _tensors(list(value.values()))
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _outside_vmap(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor as it was before `torch.func` took it apart, and its dimension of records."""
    functorch, place = torch._C._functorch, 0
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            place = functorch.maybe_get_bdim(tensor)
        tensor = functorch.get_unwrapped(tensor)
    return tensor, place
