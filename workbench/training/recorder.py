"""Watches every operation on a trainable parameter, and knows what each one's per-record gradient is.

The rules below are by operation, not by module type, so that `torch.nn.Linear`, transformers' `Conv1D`,
OPT's shifted position embedding, any family's RMSNorm and a tied output layer need no case of their own.
An operation without a rule runs untouched: its parameters stay in the autograd graph, where book-keeping
finds and refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from workbench.training.factors import Factors
from workbench.training.flat import FlatLayout

Arguments: TypeAlias = dict[str, Any]
Contributions: TypeAlias = Iterable[tuple[int, Factors | Tensor]]
"""Pairs of a parameter's index and its per-record gradients: factors, or `(n, *shape)`."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One operation on trainable parameters.

    Attributes:
        operation: Its name, for messages.
        parameters: Names of the parameters, for messages.
        edge: Where its output's error arrives in the backward pass.
        gradients: From the error, in the output's shape, to the contributions.
        saved: Inputs that `gradients` reads, with their versions when they were stored.
    """

    operation: str
    parameters: str
    edge: GradientEdge
    gradients: Callable[[Tensor], Contributions]
    saved: tuple[tuple[Tensor, int], ...]

    def is_intact(self) -> bool:
        """False where a stored input was modified in place since."""
        return all(tensor._version == version for tensor, version in self.saved)


class Recorder(TorchFunctionMode):
    """Records the uses of a layout's parameters in one forward pass of n records.

    Attributes:
        uses: What was recorded, in order.
        pattern: What a use's treatment depends on, use by use; equal patterns are treated equally.
        reasons: By a parameter's id, the operation whose rule declined it.
        expanded: Parameters whose input had one row for all records and was given n.
    """

    def __init__(self, layout: FlatLayout, n: int) -> None:
        """Nothing recorded yet."""
        super().__init__()
        self.n = n
        self.uses: list[Use] = []
        self.pattern: list[tuple[str, ...]] = []
        self.reasons: dict[int, str] = {}
        self.expanded: set[str] = set()
        self._names = layout.names
        self._indices = {id(p): i for i, p in enumerate(layout.parameters)}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs `func`, through its rule where a trainable parameter is among its arguments."""
        kwargs = kwargs or {}
        touched = [a for a in (*args, *kwargs.values()) if id(a) in self._indices]
        if touched and torch.is_grad_enabled():
            rule = _RULES.get(func)
            given = rule and rule.bind(self, args, kwargs)
            output = rule.treat(self, func, given) if rule and given else None
            if output is not None:
                return output
            for parameter in touched:
                self.reasons.setdefault(id(parameter), getattr(func, "__name__", str(func)))
        return func(*args, **kwargs)

    def index(self, tensor: Any) -> int | None:
        """A trainable parameter's index, None for anything else."""
        return self._indices.get(id(tensor))

    def constant(self, tensor: Any) -> Any:
        """The same values, outside the graph if they are a trainable parameter's."""
        return tensor.detach() if id(tensor) in self._indices else tensor

    def rows(self, tensor: Tensor, features: int, used: Sequence[int | None]) -> tuple[Tensor, str] | None:
        """An operation's input laid out by record, and how it was found; None where it cannot be.

        Args:
            tensor: Its last `features` dimensions are no positions.
            features: Number of feature dimensions.
            used: Indices of the operation's parameters.
        """
        n, positions = self.n, tensor.ndim - features
        if positions >= 1 and tensor.shape[0] == n:
            return tensor, "rows"
        if positions >= 2 and tensor.shape[0] == 1:
            self._note_expanded(used)
            return tensor.expand(n, *tensor.shape[1:]), "shared row"
        if positions == 1 and features == 0:
            self._note_expanded(used)
            return tensor.expand(n, *tensor.shape), "shared vector"
        if positions == 1 and features == 1 and tensor.shape[0] % n == 0:
            return tensor, "flattened"
        return None

    def _note_expanded(self, used: Sequence[int | None]) -> None:
        self.expanded.update(self._names[i] for i in used if i is not None)

    def record(
        self,
        operation: str,
        output: Tensor,
        used: Sequence[int | None],
        gradients: Callable[[Tensor], Contributions],
        *,
        saved: Sequence[Tensor] = (),
        how: str = "rows",
    ) -> Tensor:
        """Note a use, and return the output that the forward pass goes on with."""
        if not output.requires_grad:
            # Nothing before it is trained: it becomes a root of the graph (cloned, as in-place operations
            # on a root are forbidden).
            output = output.detach().requires_grad_().clone()
        names = tuple(self._names[i] for i in used if i is not None)
        self.pattern.append((operation, how, *names))
        self.uses.append(
            Use(
                operation=operation,
                parameters=", ".join(names),
                edge=get_gradient_edge(output),
                gradients=gradients,
                saved=tuple((tensor, tensor._version) for tensor in saved),
            )
        )
        return output


def _linear(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = x W^T + b; W of shape `(out, in)`."""
    weight, bias = given["weight"], given.get("bias")
    return _affine(recorder, func, given["input"], (weight, bias), transposed=False)


def _addmm(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = b + x W; W of shape `(in, out)`, as in transformers' Conv1D."""
    if given["input"].ndim != 1:
        return None

    def run(x: Tensor, w: Tensor, b: Tensor) -> Any:
        return func(b, x, w)

    return _affine(recorder, run, given["mat1"], (given["mat2"], given["input"]), transposed=True)


def _matmul(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = x W; W of shape `(in, out)`."""
    if given["other"].ndim != 2 or given["input"].ndim < 2:
        return None

    def run(x: Tensor, w: Tensor, _: None) -> Any:
        return func(x, w)

    return _affine(recorder, run, given["input"], (given["other"], None), transposed=True)


def _affine(
    recorder: Recorder, run: Any, x: Tensor, parameters: tuple[Tensor, Tensor | None], *, transposed: bool
) -> Tensor | None:
    used = tuple(map(recorder.index, parameters))
    found = recorder.rows(x, 1, used)
    if found is None:
        return None
    x, how = found
    output = run(x, *map(recorder.constant, parameters))
    stored = x.detach()

    def gradients(error: Tensor) -> Contributions:
        e = _by_record(error, recorder.n)
        if used[0] is not None:
            a = _by_record(stored, recorder.n).to(e.dtype)
            left, right = (a, e) if transposed else (e, a)
            yield used[0], Factors(left=left, right=right, rows=left.shape[2])
        if used[1] is not None:
            yield used[1], e.sum(1)

    saved = (stored,) if used[0] is not None else ()
    return recorder.record("linear", output, used, gradients, saved=saved, how=how)


def _embedding(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = W[ids]. Declined: rows renormalised in place, or scaled by their frequency in the batch."""
    weight, padding = given["weight"], given.get("padding_idx")
    index, rows = recorder.index(weight), weight.shape[0]
    found = recorder.rows(given["input"], 0, (index,))
    if found is None or index is None or given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        return None
    ids, how = found
    output = func(ids, weight.detach(), padding)

    def gradients(error: Tensor) -> Contributions:
        e, flat = _by_record(error, recorder.n), ids.reshape(recorder.n, -1)
        if padding is not None:
            e = e.masked_fill((flat == padding % rows)[:, :, None], 0.0)
        yield index, Factors(left=flat, right=e, rows=rows)

    return recorder.record("embedding", output, (index,), gradients, saved=(ids,), how=how)


def _layer_norm(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = (x - mean) / deviation * w + b over the last dimensions."""
    shape, eps = tuple(given["normalized_shape"]), given.get("eps", 1e-5)
    parameters = (given.get("weight"), given.get("bias"))

    def run(x: Tensor, w: Tensor | None = None, b: Tensor | None = None) -> Any:
        return func(x, shape, w, b, eps)

    return _normalised(recorder, run, given["input"], parameters, shape)


def _rms_norm(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = x / root mean square * w over the last dimensions."""
    shape, eps = tuple(given["normalized_shape"]), given.get("eps")

    def run(x: Tensor, w: Tensor | None = None, _: None = None) -> Any:
        return func(x, shape, w, eps)

    return _normalised(recorder, run, given["input"], (given.get("weight"), None), shape)


def _normalised(
    recorder: Recorder,
    run: Any,
    x: Tensor,
    parameters: tuple[Tensor | None, Tensor | None],
    shape: tuple[int, ...],
) -> Tensor | None:
    used = tuple(map(recorder.index, parameters))
    found = recorder.rows(x, len(shape), used)
    if found is None:
        return None
    x, how = found
    output = run(x, *map(recorder.constant, parameters))
    stored = x.detach()

    def gradients(error: Tensor) -> Contributions:
        e = error.reshape(recorder.n, -1, *shape)
        if used[0] is not None:
            yield used[0], (e * run(stored).to(e.dtype).reshape(e.shape)).sum(1)
        if used[1] is not None:
            yield used[1], e.sum(1)

    saved = (stored,) if used[0] is not None else ()
    return recorder.record("normalisation", output, used, gradients, saved=saved, how=how)


def _conv2d(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """A linear map of each patch; declined with groups, or with padding given by name."""
    x, parameters = given["input"], (given["weight"], given.get("bias"))
    used = tuple(map(recorder.index, parameters))
    padding = given.get("padding", 0)
    if given.get("groups", 1) != 1 or isinstance(padding, str) or x.ndim != 4 or x.shape[0] != recorder.n:
        return None
    window = {"stride": given.get("stride", 1), "padding": padding, "dilation": given.get("dilation", 1)}
    output = func(x, *map(recorder.constant, parameters), **window)
    stored, kernel = x.detach(), tuple(given["weight"].shape[2:])

    def gradients(error: Tensor) -> Contributions:
        e = error.flatten(2).transpose(1, 2)
        if used[0] is not None:
            patches = nn.functional.unfold(stored, kernel, **window).transpose(1, 2)
            yield used[0], Factors(left=e, right=patches.to(e.dtype), rows=e.shape[2])
        if used[1] is not None:
            yield used[1], e.sum(1)

    return recorder.record("convolution", output, used, gradients, saved=(stored,))


def _product(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = x * p, elementwise (the weight of any family's RMSNorm)."""
    return _elementwise(recorder, func, given, "product")


def _sum(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = x + p, elementwise (a position parameter, a bias)."""
    return _elementwise(recorder, func, given, "sum")


def _elementwise(recorder: Recorder, func: Any, given: Arguments, operation: str) -> Tensor | None:
    first, second = given["input"], given["other"]
    parameter, other = (first, second) if recorder.index(first) is not None else (second, first)
    index = recorder.index(parameter)
    if index is None or not isinstance(other, Tensor):
        return None
    output = func(recorder.constant(first), recorder.constant(second))
    if not _is_broadcast_over_records(recorder, output, parameter.shape):
        return None
    stored, shape = other.detach(), parameter.shape

    def gradients(error: Tensor) -> Contributions:
        yield index, _summed_to(error * stored.to(error.dtype) if operation == "product" else error, shape)

    saved = (stored,) if operation == "product" else ()
    return recorder.record(operation, output, (index,), gradients, saved=saved)


def _expand(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """A parameter repeated for every record (a class token)."""
    parameter = given["input"]
    index, shape = recorder.index(parameter), parameter.shape
    output = func(parameter.detach(), *given["sizes"])
    if index is None or not _is_broadcast_over_records(recorder, output, shape):
        return None

    def gradients(error: Tensor) -> Contributions:
        yield index, _summed_to(error, shape)

    return recorder.record("expand", output, (index,), gradients)


def _is_broadcast_over_records(recorder: Recorder, output: Tensor, shape: torch.Size) -> bool:
    if output.ndim < 2 or output.shape[0] != recorder.n:
        return False
    return output.ndim > len(shape) or shape[0] == 1


def _summed_to(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Undo broadcasting to `(n, ...)` of a parameter: sum over all that it was repeated along but n."""
    padded = (1,) * (gradient.ndim - len(shape)) + tuple(shape)
    repeated = [d for d in range(1, gradient.ndim) if padded[d] == 1 and gradient.shape[d] != 1]
    return gradient.sum(repeated) if repeated else gradient


def _by_record(tensor: Tensor, n: int) -> Tensor:
    """Shape `(n, T, features)` of a tensor whose last dimension holds the features."""
    return tensor.reshape(n, -1, tensor.shape[-1])


@dataclass(frozen=True)
class _Rule:
    """How an operation is treated.

    Attributes:
        treat: From recorder, operation and arguments by name to the output; None to decline.
        places: Names of the arguments, in the order of the operation's signature. A trailing name with
            a star takes the rest.
        tensors: Names under which a trainable parameter may stand; anywhere else the rule declines.
    """

    treat: Callable[[Recorder, Any, Arguments], Tensor | None]
    places: tuple[str, ...]
    tensors: frozenset[str]

    def bind(self, recorder: Recorder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments | None:
        """The arguments by name; None where they are not what the rule knows."""
        places = self.places
        rest: tuple[Any, ...] = ()
        if places[-1].startswith("*"):
            places, args, rest = places[:-1], args[: len(places) - 1], tuple(args[len(places) - 1 :])
        given = dict(zip(places, args, strict=False))
        if len(args) > len(places) or set(kwargs) - set(places) or set(kwargs) & set(given):
            return None
        given.update(kwargs)
        if rest:
            given[self.places[-1][1:]] = rest
        trained = {name for name, value in given.items() if recorder.index(value) is not None}
        return given if trained <= self.tensors else None


def _rule(treat: Callable[[Recorder, Any, Arguments], Tensor | None], places: str, tensors: str) -> _Rule:
    return _Rule(treat, tuple(places.split()), frozenset(tensors.split()))


_LINEAR = _rule(_linear, "input weight bias", "weight bias")
_ADDMM = _rule(_addmm, "input mat1 mat2", "input mat2")
_MATMUL = _rule(_matmul, "input other", "other")
_EMBEDDING = _rule(
    _embedding, "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse", "weight"
)
_LAYER_NORM = _rule(_layer_norm, "input normalized_shape weight bias eps", "weight bias")
_RMS_NORM = _rule(_rms_norm, "input normalized_shape weight eps", "weight")
_CONV2D = _rule(_conv2d, "input weight bias stride padding dilation groups", "weight bias")
_PRODUCT = _rule(_product, "input other", "input other")
_SUM = _rule(_sum, "input other", "input other")
_EXPAND = _rule(_expand, "input *sizes", "input")

_RULES: dict[Any, _Rule] = {
    nn.functional.linear: _LINEAR,
    torch.addmm: _ADDMM,
    torch.matmul: _MATMUL,
    Tensor.matmul: _MATMUL,
    Tensor.__matmul__: _MATMUL,
    nn.functional.embedding: _EMBEDDING,
    nn.functional.layer_norm: _LAYER_NORM,
    nn.functional.rms_norm: _RMS_NORM,
    nn.functional.conv2d: _CONV2D,
    torch.mul: _PRODUCT,
    Tensor.mul: _PRODUCT,
    Tensor.__mul__: _PRODUCT,
    Tensor.__rmul__: _PRODUCT,
    torch.add: _SUM,
    Tensor.add: _SUM,
    Tensor.__add__: _SUM,
    Tensor.__radd__: _SUM,
    Tensor.expand: _EXPAND,
}
