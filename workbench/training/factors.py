"""Per-record gradients of one parameter, held as the factors that they are products of.

A matrix that maps a_t to its output has, for one record, the gradient sum_t e_t a_t^T over positions
t, with e_t the back-propagated error. Its norm needs the factors only (Goodfellow 2015; Li et al. 2022,
"ghost norm"):

    || sum_t e_t a_t^T ||^2 = sum_{s,t} <e_s, e_t> <a_s, a_t>,

at T^2 (p + q) multiplications, against T p q for the p x q matrix itself. An embedding is the same with
one-hot rows. A parameter that is used twice (tied weights) has the factors of both uses in one sum, so
that the cross term 2 <G, G'> is in the norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.training.flat import squared_norms

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
