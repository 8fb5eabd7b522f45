"""A stand-in for an accelerator: what lies on it is computed on the CPU, by a device's rules of placement.

A tensor says that it lies on the device; its numbers are those of a CPU tensor within it. An operation
refuses tensors of two places, NumPy cannot read what lies on the device, nothing is drawn there, and on
Apple's device no number has 64 bits. So code that runs here leaves no tensor behind on the CPU, and gives the
numbers of the CPU. Nothing is said of kernels, of rounding or of time: that takes a real device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from workbench.training import devices

CPU = torch.device("cpu")


class Lying(Tensor):
    """A tensor on the stand-in; torch's C++ sees one on the CPU."""

    numbers: Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, numbers: Tensor, place: torch.device) -> Lying:
        made = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
        )
        made.numbers, made.place = numbers, place
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: self.place)
    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: self.place.type == "cuda")
    is_mps = property(lambda self: self.place.type == "mps")

    def numpy(self, **kwargs: Any) -> Any:
        """Refused, as torch does."""
        raise TypeError(f"can't convert {self.place} device type tensor to numpy")

    def tolist(self) -> Any:
        """The numbers; torch copies them to the CPU by itself."""
        return self.numbers.tolist()

    def __repr__(self, **kwargs: Any) -> str:
        return f"Lying({self.numbers!r}, {self.place})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _inner(value: Any) -> Any:
    return value.numbers if isinstance(value, Lying) else value


_COPIES = ("copy_", "_to_copy")
_INDEXED = ("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index")
"""What takes indices on the CPU too."""
_TYPES = (torch.ops.aten._to_copy.default,)
_MAY_DROP = ("dropout", "attention")
"""What draws where dropout is on, which the bench switches off."""


def _require_one_place(func: Any, leaves: list[Any]) -> torch.device | None:
    """The device of an operation's tensors; a `RuntimeError` where they lie apart, as torch's."""
    name = func.overloadpacket.__name__
    places = {t.place for t in leaves if isinstance(t, Lying)}
    plain = [t for t in leaves if isinstance(t, Tensor) and not isinstance(t, Lying) and t.dim()]
    if name in _INDEXED:
        plain = [t for t in plain if t.dtype not in (torch.int64, torch.bool)]
    if (len(places) > 1 or (places and plain)) and name not in _COPIES:
        raise RuntimeError(f"Expected all tensors to be on the same device: {func}, {places} and cpu")
    for generator in (leaf for leaf in leaves if isinstance(leaf, torch.Generator)):
        if places and generator.device not in places:
            raise RuntimeError(f"Expected a {places} device type for generator but found {generator.device}")
    is_draw = torch.Tag.nondeterministic_seeded in func.tags and not any(word in name for word in _MAY_DROP)
    if places and is_draw:
        raise RuntimeError(f"{func} draws on the device, whose numbers are not the CPU's")
    return next(iter(places), None)


def _run(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    held = _require_one_place(func, tree_leaves((args, kwargs)))
    given = kwargs.get("device")
    # A change of type names the device too, which is the CPU to C++; moves do not come here.
    place = held if given is None or (held and func in _TYPES) else torch.device(given)
    inner = dict(kwargs) if given is None else {**kwargs, "device": CPU}
    found = func(*tree_map(_inner, args), **tree_map(_inner, inner))
    if place is None or place.type == "cpu" or func is torch.ops.aten._local_scalar_dense.default:
        return found
    _mode().check(func, found)
    found = tree_map(lambda t: Lying(t, place) if isinstance(t, Tensor) else t, found)
    return found if held is None else return_and_correct_aliasing(func, args, kwargs, found)


class _Move(torch.autograd.Function):
    """A copy of a tensor elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, place: torch.device) -> Tensor:
        ctx.back = tensor.device
        copied = _inner(tensor).detach().clone()
        if place.type == "cpu":
            return copied
        _mode().check("to", copied)
        return Lying(copied, place)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Move.apply(gradient, ctx.back), None


def _moved(tensor: Tensor, place: torch.device | None) -> Tensor:
    return tensor if place is None or place == _place_of(tensor) else _Move.apply(tensor, place)


def _place_of(tensor: Tensor) -> torch.device:
    """Where a tensor lies, also one that `torch.func` has wrapped."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.device


def _set_data(tensor: Tensor, data: Tensor) -> None:
    """`tensor.data = data`, also from one place to another, as `Module.to` does with parameters."""
    if isinstance(tensor, Lying) and isinstance(data, Lying):
        tensor.numbers = data.numbers
    elif isinstance(tensor, Lying) or isinstance(data, Lying):
        torch.utils.swap_tensors(tensor, torch.nn.Parameter(data, requires_grad=tensor.requires_grad))
    else:
        tensor.data = data


class _Dispatch(TorchDispatchMode):
    """What has no tensor on the device yet: `torch.zeros(3, device=...)`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Calls that torch's C++ would take to a real device."""

    def __init__(self, *, has_float64: bool) -> None:
        super().__init__()
        self._has_float64 = has_float64

    def check(self, func: Any, found: Any) -> None:
        """Refuse 64-bit numbers on a device that has none, as torch does on Apple's."""
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float64 and not self._has_float64:
                raise TypeError(f"{func}: the device has no float64")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:
            return _place_of(args[0])
        if func is Tensor.cpu:
            return _moved(args[0], CPU)
        if func == Tensor.data.__set__:
            return _set_data(*args)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func is Tensor.new_tensor:
            made = torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs})
            return _moved(made, args[0].device)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            place = torch.device(kwargs.pop("device"))
            return _moved(func(*args, **kwargs), place)
        return func(*args, **kwargs)

    @staticmethod
    def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        like = args[0] if args and isinstance(args[0], Tensor) else kwargs.pop("other", None)
        if like is not None:
            place, kind = like.device, like.dtype
        else:
            place, kind, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        # Down before the move, up after it: a device without float64 takes what is narrowed first.
        narrowed = tensor if kind is None or place is None or place.type == "cpu" else tensor.to(kind)
        found = _moved(narrowed, place)
        return found if kind is None or kind == found.dtype else found.to(kind)


_active: list[_Functions] = []


def _mode() -> _Functions:
    return _active[-1]


@contextmanager
def stand_in(device: str) -> Iterator[None]:
    """While entered, this device is said to be here, and stood in for; Apple's (`"mps"`) has no float64."""
    functions = _Functions(has_float64=device != "mps")
    _active.append(functions)
    with ExitStack() as stack:
        stack.callback(_active.pop)
        for place, name, value in (
            (devices, "devices_here", lambda: (device, "cpu")),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "get_rng_state", lambda device=None: torch.zeros(16, dtype=torch.uint8)),
            (torch.cuda, "set_rng_state", lambda state, device=None: None),
            (torch.mps, "get_rng_state", lambda: torch.zeros(16, dtype=torch.uint8)),
            (torch.mps, "set_rng_state", lambda state: None),
            (torch, "use_deterministic_algorithms", lambda mode, warn_only=False: None),
        ):
            stack.enter_context(patch.object(place, name, value))
        stack.enter_context(patch.dict(os.environ))
        stack.enter_context(functions)
        stack.enter_context(_Dispatch())
        yield
