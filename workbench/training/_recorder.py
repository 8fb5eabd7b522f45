"""Watches every operation on a trainable parameter, and knows what each one's per-record gradient is.

The rules below are by operation, not by module type, so that `torch.nn.Linear`, transformers' `Conv1D`,
OPT's shifted position embedding, any family's RMSNorm and a tied output layer need no case of their own.
An operation without a rule runs untouched: its parameters stay in the autograd graph, where book-keeping
finds and refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from workbench.training._factors import Factors
from workbench.training._flat import FlatLayout

Contributions = Iterable[tuple[int, Factors | Tensor]]
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
            output = None if rule is None else rule(self, func, *args, **kwargs)
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


def _by_record(tensor: Tensor, n: int) -> Tensor:
    """Shape `(n, T, features)` of a tensor whose last dimension holds the features."""
    return tensor.reshape(n, -1, tensor.shape[-1])


def _linear(
    recorder: Recorder, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    """y = x W^T + b; W of shape `(out, in)`."""
    return _affine(recorder, func, input, weight, bias, transposed=False)


def _addmm(recorder: Recorder, func: Any, input: Tensor, mat1: Tensor, mat2: Tensor) -> Tensor | None:
    """y = b + x W; W of shape `(in, out)`, as in transformers' Conv1D."""
    if recorder.index(mat1) is not None or input.ndim != 1:
        return None
    return _affine(recorder, func, mat1, mat2, input, transposed=True)


def _affine(
    recorder: Recorder, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool
) -> Tensor | None:
    used = (recorder.index(weight), recorder.index(bias))
    found = recorder.rows(input, 1, used)
    if found is None or recorder.index(input) is not None:
        return None
    x, how = found
    w, b = recorder.constant(weight), recorder.constant(bias)
    output = func(b, x, w) if transposed else func(x, w, b)
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


def _embedding(
    recorder: Recorder,
    func: Any,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    """y = W[ids]. Declined: renormalised in place, or scaled by frequencies in the batch."""
    used = (recorder.index(weight),)
    found = recorder.rows(input, 0, used)
    if found is None or max_norm is not None or scale_grad_by_freq or used[0] is None:
        return None
    ids, how = found
    index, rows = used[0], weight.shape[0]
    output = func(ids, weight.detach(), padding_idx)
    padding = None if padding_idx is None else padding_idx % rows

    def gradients(error: Tensor) -> Contributions:
        e, flat = _by_record(error, recorder.n), ids.reshape(recorder.n, -1)
        if padding is not None:
            e = e.masked_fill((flat == padding)[:, :, None], 0.0)
        yield index, Factors(left=flat, right=e, rows=rows)

    return recorder.record("embedding", output, used, gradients, saved=(input,), how=how)


def _normalised(
    recorder: Recorder,
    output: Tensor,
    x: Tensor,
    how: str,
    weight: Tensor | None,
    bias: Tensor | None,
    normalise: Callable[[Tensor], Tensor],
) -> Tensor:
    """y = normalise(x) * w + b, elementwise over the last dimensions."""
    used = (recorder.index(weight), recorder.index(bias))
    shape = (weight if weight is not None else bias).shape  # type: ignore[union-attr]
    stored = x.detach()

    def gradients(error: Tensor) -> Contributions:
        e = error.reshape(recorder.n, -1, *shape)
        if used[0] is not None:
            yield used[0], (e * normalise(stored).to(e.dtype).reshape(e.shape)).sum(1)
        if used[1] is not None:
            yield used[1], e.sum(1)

    saved = (stored,) if used[0] is not None else ()
    return recorder.record("normalisation", output, used, gradients, saved=saved, how=how)


def _layer_norm(
    recorder: Recorder,
    func: Any,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    used = (recorder.index(weight), recorder.index(bias))
    found = recorder.rows(input, len(normalized_shape), used)
    if found is None or recorder.index(input) is not None:
        return None
    x, how = found
    shape = tuple(normalized_shape)
    output = func(x, shape, recorder.constant(weight), recorder.constant(bias), eps)
    return _normalised(
        recorder, output, x, how, weight, bias, lambda stored: F.layer_norm(stored, shape, eps=eps)
    )


def _rms_norm(
    recorder: Recorder,
    func: Any,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    found = recorder.rows(input, len(normalized_shape), (recorder.index(weight),))
    if found is None or recorder.index(input) is not None:
        return None
    x, how = found
    shape = tuple(normalized_shape)
    output = func(x, shape, recorder.constant(weight), eps)
    return _normalised(
        recorder, output, x, how, weight, None, lambda stored: F.rms_norm(stored, shape, eps=eps)
    )


def _conv2d(
    recorder: Recorder,
    func: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """A linear map of each patch; declined with groups, or padding given by name."""
    used = (recorder.index(weight), recorder.index(bias))
    if groups != 1 or isinstance(padding, str) or input.ndim != 4 or input.shape[0] != recorder.n:
        return None
    if recorder.index(input) is not None:
        return None
    w, b = recorder.constant(weight), recorder.constant(bias)
    output = func(input, w, b, stride, padding, dilation)
    stored, kernel = input.detach(), tuple(weight.shape[2:])

    def gradients(error: Tensor) -> Contributions:
        e = error.flatten(2).transpose(1, 2)
        if used[0] is not None:
            patches = F.unfold(stored, kernel, dilation=dilation, padding=padding, stride=stride)
            yield used[0], Factors(left=e, right=patches.transpose(1, 2).to(e.dtype), rows=e.shape[2])
        if used[1] is not None:
            yield used[1], e.sum(1)

    return recorder.record("conv2d", output, used, gradients, saved=(stored,))


def _summed_to(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Undo broadcasting to `(n, ...)` of a parameter: sum over all that it was repeated along but n."""
    padded = (1,) * (gradient.ndim - len(shape)) + tuple(shape)
    repeated = [d for d in range(1, gradient.ndim) if padded[d] == 1 and gradient.shape[d] != 1]
    return gradient.sum(repeated) if repeated else gradient


def _is_broadcast_over_records(recorder: Recorder, output: Tensor, shape: torch.Size) -> bool:
    if output.ndim < 2 or output.shape[0] != recorder.n:
        return False
    return output.ndim > len(shape) or shape[0] == 1


def _elementwise(recorder: Recorder, func: Any, a: Any, b: Any, *, product: bool) -> Tensor | None:
    index, parameter, other = recorder.index(a), a, b
    if index is None:
        index, parameter, other = recorder.index(b), b, a
    if index is None or not isinstance(other, Tensor) or recorder.index(other) is not None:
        return None
    output = func(recorder.constant(a), recorder.constant(b))
    if not _is_broadcast_over_records(recorder, output, parameter.shape):
        return None
    stored, shape, found = other.detach(), parameter.shape, index

    def gradients(error: Tensor) -> Contributions:
        yield found, _summed_to(error * stored.to(error.dtype) if product else error, shape)

    saved = (stored,) if product else ()
    return recorder.record("product" if product else "sum", output, (index,), gradients, saved=saved)


def _product(recorder: Recorder, func: Any, input: Any, other: Any) -> Tensor | None:
    return _elementwise(recorder, func, input, other, product=True)


def _sum(recorder: Recorder, func: Any, input: Any, other: Any) -> Tensor | None:
    return _elementwise(recorder, func, input, other, product=False)


def _expand(recorder: Recorder, func: Any, tensor: Tensor, *sizes: Any) -> Tensor | None:
    """A parameter repeated for every record, such as a class token."""
    index = recorder.index(tensor)
    output = func(recorder.constant(tensor), *sizes)
    if index is None or not _is_broadcast_over_records(recorder, output, tensor.shape):
        return None
    shape, found = tensor.shape, index

    def gradients(error: Tensor) -> Contributions:
        yield found, _summed_to(error, shape)

    return recorder.record("expand", output, (index,), gradients)


_RULES: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.conv2d: _conv2d,
    torch.conv2d: _conv2d,
    torch.mul: _product,
    Tensor.mul: _product,
    Tensor.__mul__: _product,
    Tensor.__rmul__: _product,
    torch.add: _sum,
    Tensor.add: _sum,
    Tensor.__add__: _sum,
    Tensor.__radd__: _sum,
    Tensor.expand: _expand,
}
