"""Watches every operation on a trainable parameter, and knows what each one's per-record gradient is.

The rules below are by operation, not by module type, so that `torch.nn.Linear`, transformers' `Conv1D`,
OPT's shifted position embedding, any family's RMSNorm and a tied output layer need no case of their own.
An operation without a rule runs untouched: its parameters stay in the autograd graph, where book-keeping
finds and refuses them.

A per-record gradient is held as the factors that it is the product of. A matrix that maps a_t to its output
has, for one record, the gradient sum_t e_t a_t^T over positions t, with e_t the back-propagated error. Its
norm needs the factors only (Goodfellow 2015; Li et al. 2022, "ghost norm"):

    || sum_t e_t a_t^T ||^2 = sum_{s,t} <e_s, e_t> <a_s, a_t>,

at T^2 (p + q) multiplications, against T p q for the p x q matrix itself. An embedding is the same with
one-hot rows. A parameter that is used twice (tied weights) has the factors of both uses in one sum, so
that the cross term 2 <G, G'> is in the norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from workbench.training.flat import FlatLayout, squared_norms

_GRAM_ELEMENTS = 2**24
"""Largest number of Gram entries held at once."""
_KEEP_RATIO = 2
"""A gradient is kept as a matrix where that takes at most this many times the memory of its factors."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Per-record gradients sum_t left_t right_t^T of shape `(p, q)`, for one use of a parameter.

    Attributes:
        left: Dense rows, shape `(n, T, p)`; or indices of one-hot rows, integers of shape `(n, T)`.
        right: Shape `(n, T, q)`.
        rows: p.
    """

    left: Tensor
    right: Tensor
    rows: int

    @property
    def indexed(self) -> bool:
        """True where the left rows are one-hot."""
        return self.left.ndim == 2

    @property
    def size(self) -> int:
        """Numbers held for one record."""
        return self.left[0].numel() + self.right[0].numel()

    def add_gradients(self, total: Tensor | None) -> Tensor:
        """Per-record gradients, shape `(n, p, q)`, added to `total` in place if there is one."""
        n, _, q = self.right.shape
        if not self.indexed:
            left = self.left.transpose(1, 2)
            return torch.bmm(left, self.right) if total is None else total.baddbmm_(left, self.right)
        if total is None:
            total = self.right.new_zeros(n, self.rows, q)
        rows = self.left + self.rows * torch.arange(n, device=self.left.device)[:, None]
        total.view(n * self.rows, q).index_add_(0, rows.reshape(-1), self.right.reshape(-1, q))
        return total

    def add_weighted(self, total: Tensor, weights: Tensor) -> None:
        """Add sum_i weights_i gradient_i to `total`, shape `(p, q)`."""
        q = self.right.shape[2]
        scale = weights[:, None, None]
        if self.indexed:
            total.index_add_(0, self.left.reshape(-1), (scale * self.right).reshape(-1, q))
            return
        left, right = self.left, self.right
        if self.rows < q:
            left = scale * left
        else:
            right = scale * right
        total.addmm_(left.reshape(-1, self.rows).T, right.reshape(-1, q))


def inner_products(a: Factors, b: Factors) -> Tensor:
    """Per-record Frobenius inner products of two uses of one parameter, shape `(n,)`, by Gram matrices."""
    n, t_a, _ = a.right.shape
    block = max(1, _GRAM_ELEMENTS // (t_a * b.right.shape[1]))
    parts = []
    for start in range(0, n, block):
        rows = slice(start, start + block)
        right = torch.bmm(a.right[rows], b.right[rows].transpose(1, 2))
        parts.append((right * _left_gram(a, b, rows)).sum((1, 2)))
    return torch.cat(parts)


def _left_gram(a: Factors, b: Factors, rows: slice) -> Tensor:
    left_a, left_b = a.left[rows], b.left[rows]
    if a.indexed and b.indexed:
        return (left_a[:, :, None] == left_b[:, None, :]).to(a.right.dtype)
    if a.indexed:
        return _looked_up(left_a, left_b)
    if b.indexed:
        return _looked_up(left_b, left_a).transpose(1, 2)
    return torch.bmm(left_a, left_b.transpose(1, 2))


def _looked_up(indices: Tensor, dense: Tensor) -> Tensor:
    """Entry `[i, s, t]` is `dense[i, t, indices[i, s]]`: the product of a one-hot row with a dense one."""
    n, t, _ = dense.shape
    index = indices[:, None, :].expand(n, t, indices.shape[1])
    return torch.gather(dense, 2, index).transpose(1, 2)


class ParameterGradients:
    """Per-record gradients of one parameter, collected use by use."""

    def __init__(self, shape: torch.Size) -> None:
        """No use yet: gradients of zero."""
        self._shape = shape
        self._factors: list[Factors] = []
        self._matrix: Tensor | None = None

    def add(self, gradients: Factors | Tensor) -> None:
        """One more use: its factors, or its gradients of shape `(n, *shape)` themselves."""
        if isinstance(gradients, Factors):
            self._factors.append(gradients)
        elif self._matrix is None:
            self._matrix = gradients.flatten(1)
        else:
            self._matrix = self._matrix + gradients.flatten(1)

    def settle(self) -> None:
        """Multiply the factors out where the product is needed or takes about no more memory than they do.

        Where it is not multiplied out, T is so small against p and q that the Gram matrices are cheaper.
        """
        if not self._factors:
            return
        if self._matrix is None and self._shape.numel() > _KEEP_RATIO * sum(f.size for f in self._factors):
            return
        total: Tensor | None = None
        if self._matrix is not None:
            first = self._factors[0]
            total = self._matrix.reshape(len(self._matrix), first.rows, -1).contiguous()
        for factors in sorted(self._factors, key=lambda f: f.indexed):
            total = factors.add_gradients(total)
        assert total is not None
        self._factors = []
        self._matrix = total.flatten(1)

    def squared_norms(self, n: int) -> Tensor | float:
        """Squared Euclidean norms, shape `(n,)`; 0.0 for an unused parameter."""
        if self._matrix is not None:
            return squared_norms(self._matrix)
        total: Tensor | float = 0.0
        for i, a in enumerate(self._factors):
            for b in self._factors[i:]:
                total = total + (1 if a is b else 2) * inner_products(a, b)
        return total

    def write(self, rows: Tensor) -> None:
        """Write the gradients to `rows`, a view of shape `(n, numel)` that holds zeros."""
        if self._matrix is not None:
            rows.copy_(self._matrix)
        for factors in self._factors:
            rows += factors.add_gradients(None).flatten(1)

    def add_weighted(self, total: Tensor, weights: Tensor) -> None:
        """Add sum_i weights_i gradient_i to `total`, a flat view of the parameter's place."""
        if self._matrix is not None:
            total += weights @ self._matrix
        for factors in self._factors:
            factors.add_weighted(total.view(factors.rows, -1), weights)


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

        The last `features` dimensions of the tensor are no positions; `used` are indices of the operation's
        parameters.
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
    laid_out = recorder.rows(x, 1, used)
    if laid_out is None:
        return None
    x, how = laid_out
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
    laid_out = recorder.rows(given["input"], 0, (index,))
    is_scaled = given.get("max_norm") is not None or given.get("scale_grad_by_freq")
    if laid_out is None or index is None or is_scaled:
        return None
    ids, how = laid_out
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
    laid_out = recorder.rows(x, len(shape), used)
    if laid_out is None:
        return None
    x, how = laid_out
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
