"""Linear layers in bfloat16, all else in float32, where no gradient is needed.

Weights and inputs of a linear layer are rounded as it runs, so that nothing is kept beside the weights; sums
are float32 inside the product, and its output is float32 again for norms, attention, residuals and losses. An
output layer over a vocabulary stays float32 (`exact`): its rounding would go into the losses as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from workbench.errors import unknown_name

PRECISIONS = ("float32", "bfloat16")

_is_exact: ContextVar[bool] = ContextVar("_is_exact", default=False)


def checked_precision(name: str) -> str:
    """The name of a precision.

    Raises:
        InputError: it is none of `PRECISIONS`.
    """
    if name not in PRECISIONS:
        raise unknown_name("precision", name, PRECISIONS)
    return name


@contextmanager
def reduced(precision: str) -> Iterator[None]:
    """Linear layers in this precision.

    Args:
        precision: One of `PRECISIONS`; float32 changes nothing.
    """
    if precision == "float32":
        yield
        return
    with _HalfLinears():
        yield


@contextmanager
def exact() -> Iterator[None]:
    """Linear layers in float32, inside `reduced`."""
    token = _is_exact.set(True)
    try:
        yield
    finally:
        _is_exact.reset(token)


class _HalfLinears(TorchFunctionMode):
    """Runs what linear layers call (also GPT-2's, whose weights lie the other way) in bfloat16."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace the call where it is a product of float32 matrices."""
        rest = dict(kwargs or {})
        if not rest and not _is_exact.get():
            if func is functional.linear and _are_float32(args[:2]):
                product = functional.linear(args[0].bfloat16(), args[1].bfloat16()).float()
                bias = args[2] if len(args) > 2 else None
                return product if bias is None else product.add_(bias)
            if func is torch.addmm and _are_float32(args):
                return torch.mm(args[1].bfloat16(), args[2].bfloat16()).float().add_(args[0])
        return func(*args, **rest)


def _are_float32(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.dtype == torch.float32 for tensor in tensors)
