"""Records every operation on a trainable parameter, with a rule for its per-record gradient.

Rules are by operation, not by module type, so that `torch.nn.Linear`, transformers' `Conv1D`, OPT's shifted
position embedding, any family's RMSNorm and a tied output layer need no case of their own. An operation
without a rule runs unchanged: its parameters stay in the autograd graph, where book-keeping refuses them.

A per-record gradient is held as factors. A matrix that maps a_t to its output has, for one record, the
gradient sum_t e_t a_t^T over positions t, with e_t the back-propagated error. Its norm needs the factors only
(Goodfellow 2015; Li et al. 2022, "ghost norm"):

    || sum_t e_t a_t^T ||^2 = sum_{s,t} <e_s, e_t> <a_s, a_t>,

at T^2 (p + q) multiplications, against T p q for the p x q matrix itself. An embedding is the same with
one-hot rows. A parameter that is used twice (tied weights) has the factors of both uses in one sum, so that
the norm contains the cross term 2 <G, G'>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from workbench.training.flat import FlatLayout, squared_norms

_GRAM_ELEMENTS = 2**24
"""Largest number of Gram entries held at once."""
_KEEP_RATIO = 2
"""A gradient is stored as a matrix if that takes at most this many times the memory of its factors."""


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
        """Numbers stored for one record."""
        return self.left[0].numel() + self.right[0].numel()

    def add_gradients(self, total: Tensor | None) -> Tensor:
        """Per-record gradients, shape `(n, p, q)`, added in place to `total` if it is given."""
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
        left, right = (scale * self.left, self.right) if self.rows < q else (self.left, scale * self.right)
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
        self._shape = shape
        self._factors: list[Factors] = []
        self._matrix: Tensor | None = None

    def add(self, gradients: Factors | Tensor) -> None:
        """Add a use: its factors, or its gradients of shape `(n, *shape)`."""
        if isinstance(gradients, Factors):
            self._factors.append(gradients)
        elif self._matrix is None:
            self._matrix = gradients.flatten(1)
        else:
            self._matrix = self._matrix + gradients.flatten(1)

    def settle(self) -> None:
        """Multiply the factors if their product is needed anyway or takes little more memory than they do.

        Otherwise T is so small against p and q that Gram matrices are cheaper.
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
        """Write the gradients to `rows`, zeros of shape `(n, numel)`."""
        if self._matrix is not None:
            rows.copy_(self._matrix)
        for factors in self._factors:
            rows += factors.add_gradients(None).flatten(1)

    def add_weighted(self, total: Tensor, weights: Tensor) -> None:
        """Add sum_i weights_i gradient_i to `total`, the parameter's part of the flat vector."""
        if self._matrix is not None:
            total += weights @ self._matrix
        for factors in self._factors:
            factors.add_weighted(total.view(factors.rows, -1), weights)


Arguments: TypeAlias = dict[str, Any]
Contributions: TypeAlias = Iterable[tuple[int, Factors | Tensor]]
"""Pairs of a parameter's index and its per-record gradients: factors, or `(n, *shape)`."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One operation on trainable parameters; its name and theirs are for messages.

    Attributes:
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
        uses: The recorded operations, in order.
        pattern: What each use's treatment depends on; equal patterns are treated equally.
        reasons: By a parameter's id, the operation whose rule declined it.
        expanded: Parameters whose input had one row for all records, which was expanded to n.
    """

    def __init__(self, layout: FlatLayout, n: int) -> None:
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
        """Run `func`, by its rule where a trainable parameter is among its arguments."""
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
        """A trainable parameter's index; None for anything else."""
        return self._indices.get(id(tensor))

    def constant(self, tensor: Any) -> Any:
        """The tensor, detached from the graph if it is a trainable parameter."""
        return tensor.detach() if id(tensor) in self._indices else tensor

    def rows(self, tensor: Tensor, features: int, used: Sequence[int | None]) -> tuple[Tensor, str] | None:
        """An operation's input with one row per record, and its original layout; None if it has neither.

        The last `features` dimensions of the tensor are no positions; `used` are the parameters' indices.
        """
        n, positions = self.n, tensor.ndim - features
        if positions >= 1 and tensor.shape[0] == n:
            return tensor, "rows"
        if positions == 1 and features == 1 and tensor.shape[0] % n == 0:
            return tensor, "flattened"
        if positions >= 2 and tensor.shape[0] == 1:
            how, shape = "shared row", tensor.shape[1:]
        elif positions == 1 and features == 0:
            how, shape = "shared vector", tensor.shape
        else:
            return None
        self.expanded.update(self._names[i] for i in used if i is not None)
        return tensor.expand(n, *shape), how

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
        """Record a use, and return the output with which the forward pass continues."""
        if not output.requires_grad:
            # Nothing before it is trained: it becomes a root of the graph, cloned because in-place operations
            # on a root are forbidden.
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
    return _affine(recorder, func, given["input"], (given["weight"], given.get("bias")), transposed=False)


def _addmm(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = b + x W; W of shape `(in, out)`, as in transformers' Conv1D."""
    if given["input"].ndim != 1:
        return None
    parameters = (given["mat2"], given["input"])
    return _affine(recorder, lambda x, w, b: func(b, x, w), given["mat1"], parameters, transposed=True)


def _matmul(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = x W; W of shape `(in, out)`."""
    if given["other"].ndim != 2 or given["input"].ndim < 2:
        return None
    parameters = (given["other"], None)
    return _affine(recorder, lambda x, w, _: func(x, w), given["input"], parameters, transposed=True)


def _affine(
    recorder: Recorder, run: Any, x: Tensor, parameters: tuple[Tensor, Tensor | None], *, transposed: bool
) -> Tensor | None:
    def of_weight(error: Tensor, stored: Tensor) -> Factors:
        a = stored.reshape(recorder.n, -1, stored.shape[-1]).to(error.dtype)
        left, right = (a, error) if transposed else (error, a)
        return Factors(left=left, right=right, rows=left.shape[2])

    return _weight_and_bias(recorder, "linear", run, x, parameters, of_weight=of_weight, features=1)


def _layer_norm(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = (x - mean) / deviation * w + b over the last dimensions."""
    shape, eps = tuple(given["normalized_shape"]), given.get("eps", 1e-5)
    parameters = (given.get("weight"), given.get("bias"))
    return _normalised(
        recorder, lambda x, w=None, b=None: func(x, shape, w, b, eps), given["input"], parameters, len(shape)
    )


def _rms_norm(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = x / root mean square * w over the last dimensions."""
    shape, eps = tuple(given["normalized_shape"]), given.get("eps")
    parameters = (given.get("weight"), None)
    return _normalised(
        recorder, lambda x, w=None, _=None: func(x, shape, w, eps), given["input"], parameters, len(shape)
    )


def _normalised(
    recorder: Recorder, run: Any, x: Tensor, parameters: tuple[Tensor | None, Tensor | None], features: int
) -> Tensor | None:
    def of_weight(error: Tensor, stored: Tensor) -> Tensor:
        normalised: Tensor = run(stored)
        return (error * normalised.to(error.dtype).reshape(error.shape)).sum(1)

    return _weight_and_bias(
        recorder, "normalisation", run, x, parameters, of_weight=of_weight, features=features
    )


def _weight_and_bias(
    recorder: Recorder,
    operation: str,
    run: Any,
    x: Tensor,
    parameters: tuple[Tensor | None, Tensor | None],
    *,
    of_weight: Callable[[Tensor, Tensor], Factors | Tensor],
    features: int,
) -> Tensor | None:
    """An operation on an input, a weight and a bias that is added to the output.

    `of_weight` computes the weight's gradients from the error, of shape `(n, T, *features)`, and the input.
    """
    used = tuple(map(recorder.index, parameters))
    laid_out = recorder.rows(x, features, used)
    if laid_out is None:
        return None
    x, how = laid_out
    output = run(x, *map(recorder.constant, parameters))
    stored = x.detach()

    def gradients(error: Tensor) -> Contributions:
        e = error.reshape(recorder.n, -1, *error.shape[error.ndim - features :])
        if used[0] is not None:
            yield used[0], of_weight(e, stored)
        if used[1] is not None:
            yield used[1], e.sum(1)

    saved = (stored,) if used[0] is not None else ()
    return recorder.record(operation, output, used, gradients, saved=saved, how=how)


def _embedding(recorder: Recorder, func: Any, given: Arguments) -> Tensor | None:
    """y = W[ids]; declined if rows are renormalised in place or scaled by their frequency in the batch."""
    weight, padding = given["weight"], given.get("padding_idx")
    index, rows = recorder.index(weight), weight.shape[0]
    laid_out = recorder.rows(given["input"], 0, (index,))
    is_scaled = given.get("max_norm") is not None or given.get("scale_grad_by_freq")
    if laid_out is None or index is None or is_scaled:
        return None
    ids, how = laid_out
    output = func(ids, weight.detach(), padding)

    def gradients(error: Tensor) -> Contributions:
        e, flat = error.reshape(recorder.n, -1, error.shape[-1]), ids.reshape(recorder.n, -1)
        if padding is not None:
            e = e.masked_fill((flat == padding % rows)[:, :, None], 0.0)
        yield index, Factors(left=flat, right=e, rows=rows)

    return recorder.record("embedding", output, (index,), gradients, saved=(ids,), how=how)


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
        """The weight's and the bias's contributions to each record's gradient."""
        e = error.flatten(2).transpose(1, 2)
        if used[0] is not None:
            patches = nn.functional.unfold(stored, kernel, **window).transpose(1, 2)
            yield used[0], Factors(left=e, right=patches.to(e.dtype), rows=e.shape[2])
        if used[1] is not None:
            yield used[1], e.sum(1)

    return recorder.record("convolution", output, used, gradients, saved=(stored,))


def _elementwise(recorder: Recorder, func: Any, given: Arguments, operation: str) -> Tensor | None:
    """y = x * p (the weight of any family's RMSNorm) or x + p (a position parameter, a bias)."""
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
    """Undo a parameter's broadcasting to `(n, ...)`: sum over all repeated dimensions but the records'."""
    padded = (1,) * (gradient.ndim - len(shape)) + tuple(shape)
    repeated = [d for d in range(1, gradient.ndim) if padded[d] == 1 and gradient.shape[d] != 1]
    return gradient.sum(repeated) if repeated else gradient


@dataclass(frozen=True)
class _Rule:
    """The rule for an operation.

    Attributes:
        treat: From recorder, operation and arguments by name to the output; None to decline.
        places: Names of the arguments, in the order of the signature. A last name with a star takes the rest.
        tensors: Arguments that may be trainable parameters; the rule declines any other.
    """

    treat: Callable[[Recorder, Any, Arguments], Tensor | None]
    places: tuple[str, ...]
    tensors: frozenset[str]

    def bind(self, recorder: Recorder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments | None:
        """The arguments by name; None if they do not match the rule."""
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


_MATMUL = _rule(_matmul, "input other", "other")
_PRODUCT = _rule(partial(_elementwise, operation="product"), "input other", "input other")
_SUM = _rule(partial(_elementwise, operation="sum"), "input other", "input other")

_RULES: dict[Any, _Rule] = {
    nn.functional.linear: _rule(_linear, "input weight bias", "weight bias"),
    torch.addmm: _rule(_addmm, "input mat1 mat2", "input mat2"),
    nn.functional.embedding: _rule(
        _embedding, "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse", "weight"
    ),
    nn.functional.layer_norm: _rule(_layer_norm, "input normalized_shape weight bias eps", "weight bias"),
    nn.functional.rms_norm: _rule(_rms_norm, "input normalized_shape weight eps", "weight"),
    nn.functional.conv2d: _rule(_conv2d, "input weight bias stride padding dilation groups", "weight bias"),
    Tensor.expand: _rule(_expand, "input *sizes", "input"),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _MATMUL),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _PRODUCT),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _SUM),
}
