"""The basis in which GeoClip clips and adds noise, and how it follows what was released (Gilani et al. 2025).

A `Geometry` is a shift a and a linear map M: in the directions of an orthonormal basis V it multiplies by
`scales`, in all others by `outside`; or those are dropped. GeoClip clips M (g - a) to norm 1. Nothing here
is told of a record but `norms`, whose results only make clipping factors.

    >>> import torch
    >>> start = Geometry.ball(3, radius=2.0)
    >>> start.norms(torch.tensor([[0.0, 4.0, 3.0]]))
    tensor([2.5000], dtype=torch.float64)
    >>> start.radius
    2.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

VANISHING = 1e-12
"""A direction whose share of the variance is below this is none: rounding left it."""
_AT_ONCE = 1 << 22
"""Numbers that are held in float64 at once."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A shift, and a linear map that stretches the axes of a basis.

    Attributes:
        shift: a, shape `(d,)`.
        basis: V, orthonormal columns, shape `(d, k)`.
        scales: What M multiplies the basis' directions by, shape `(k,)`, > 0.
        outside: What M multiplies all other directions by, > 0; None where they are dropped (k = d has none).
    """

    shift: Tensor
    basis: Tensor
    scales: Tensor
    outside: float | None

    @classmethod
    def ball(cls, dimension: int, radius: float, device: torch.device | None = None) -> Geometry:
        """No shift, and M = I / radius: clipping to `radius`, as of DP-SGD."""
        zeros = torch.zeros(dimension, dtype=torch.float64, device=device)
        return cls(shift=zeros, basis=zeros[:, None][:, :0], scales=zeros[:0], outside=1 / radius)

    @property
    def radius(self) -> float:
        """Root mean square of M^-1 over its axes: the clipping norm at which DP-SGD adds as much noise."""
        dimension, rank = self.basis.shape
        energy, axes = float(self.scales.double().pow(-2).sum()), rank
        if self.outside is not None:
            energy, axes = energy + (dimension - rank) / self.outside**2, dimension
        return math.sqrt(energy / axes)

    def norms(self, rows: Tensor) -> Tensor:
        """The norm of M (row - a), shape `(n,)`, float64; rows of shape `(n, d)`.

        In float64, part by part: what lies outside the basis is a small difference of large numbers, and
        M may stretch it by much.
        """
        parts = torch.split(rows, max(1, _AT_ONCE // self.basis.shape[0]))
        return torch.cat([self._norms(part.double()) for part in parts])

    def _norms(self, rows: Tensor) -> Tensor:
        moved = rows - self.shift.to(rows)
        inside = moved @ self.basis.to(rows)
        squares = (inside * self.scales.to(rows)).square().sum(1)
        if self.outside is not None:
            beyond = moved.square().sum(1) - inside.square().sum(1)
            squares = squares + self.outside**2 * beyond.clamp(min=0.0)
        return squares.sqrt()

    def kept(self, vectors: Tensor) -> Tensor:
        """What M does not lose of vectors, shape `(..., d)`: M^-1 M."""
        if self.outside is not None:
            return vectors
        basis = self.basis.to(vectors)
        return (vectors @ basis) @ basis.T

    def coordinates(self, vectors: Tensor) -> Tensor:
        """M times vectors of shape `(..., d)`: in the basis where the rest is dropped, else in all d axes."""
        basis, scales = self.basis.to(vectors), self.scales.to(vectors)
        inside = vectors @ basis
        if self.outside is None:
            return inside * scales
        return vectors * self.outside + (inside * (scales - self.outside)) @ basis.T

    def undo(self, vectors: Tensor) -> Tensor:
        """M^-1 times what `coordinates` gives, shape `(..., d)`."""
        basis, scales = self.basis.to(vectors), self.scales.to(vectors)
        if self.outside is None:
            return (vectors / scales) @ basis.T
        return vectors / self.outside + ((vectors @ basis) * (1 / scales - 1 / self.outside)) @ basis.T

    @property
    def axes(self) -> int:
        """Number of coordinates that noise is added to."""
        return int(self.basis.shape[0] if self.outside is not None else self.basis.shape[1])


@dataclass(frozen=True, kw_only=True)
class Stretching:
    """How M is made of a covariance: the M of the least noise at E |M (g - a)|^2 = gamma, in closed form.

    Attributes:
        gamma: The expected squared norm.
        least: Eigenvalues are clamped to at least this; also those that a low-rank covariance does not have.
        most: And to at most this.
    """

    gamma: float
    least: float
    most: float

    def geometry(self, shift: Tensor, basis: Tensor, variances: Tensor, *, keep_outside: bool) -> Geometry:
        """M = sqrt(gamma / sum of sqrt(lambda)) Lambda^(-1/4) V^T, and outside the basis the least lambda.

        Args:
            shift: a, shape `(d,)`.
            basis: Eigenvectors, shape `(d, k)`.
            variances: Eigenvalues, shape `(k,)`.
            keep_outside: Whether directions outside the basis are kept.
        """
        clamped = variances.double().clamp(self.least, self.most)
        spread = float(clamped.sqrt().sum())
        if keep_outside:
            spread += (basis.shape[0] - basis.shape[1]) * math.sqrt(self.least)
        size = math.sqrt(self.gamma / spread)
        outside = size * self.least**-0.25 if keep_outside else None
        return Geometry(shift=shift, basis=basis, scales=size * clamped**-0.25, outside=outside)


@dataclass(frozen=True, kw_only=True)
class ExactCovariance:
    """A moving average of the covariance, all d x d of it; an eigendecomposition a step.

    Attributes:
        matrix: Shape `(d, d)`, float64.
        decay: beta_2, the share of the old matrix.
        stretching: How M is made of it.
    """

    matrix: Tensor
    decay: float
    stretching: Stretching

    def after(self, centred: Tensor) -> ExactCovariance:
        """With one more released gradient, less the shift, shape `(d,)`."""
        new = torch.outer(centred.double(), centred.double())
        return replace(self, matrix=self.decay * self.matrix + (1 - self.decay) * new)

    def geometry(self, shift: Tensor) -> Geometry:
        """The geometry of the present covariance."""
        variances, basis = torch.linalg.eigh(self.matrix)
        return self.stretching.geometry(shift, basis, variances, keep_outside=False)


@dataclass(frozen=True, kw_only=True)
class LowRankCovariance:
    """The k leading axes of a moving average of the covariance; begins with none.

    Attributes:
        basis: Orthonormal, shape `(d, j)` with j <= rank.
        variances: Shape `(j,)`.
        rank: k.
        decay: The share of the old covariance.
        stretching: How M is made of it.
        keep_outside: Whether M keeps the directions outside the basis.
    """

    basis: Tensor
    variances: Tensor
    rank: int
    decay: float
    stretching: Stretching
    keep_outside: bool

    def after(self, centred: Tensor) -> LowRankCovariance:
        """With one more released gradient, less the shift, shape `(d,)`; the leading axes are kept."""
        columns = torch.cat(
            [
                self.basis * (self.decay * self.variances).sqrt(),
                math.sqrt(1 - self.decay) * centred.to(self.basis)[:, None],
            ],
            dim=1,
        )
        basis, values, _ = torch.linalg.svd(columns, full_matrices=False)
        found = int((values[: self.rank] > math.sqrt(VANISHING) * values[0]).sum())
        return replace(self, basis=basis[:, :found], variances=values[:found].square())

    def geometry(self, shift: Tensor) -> Geometry | None:
        """The geometry of the present covariance; None before the basis holds `rank` axes."""
        if self.basis.shape[1] < self.rank:
            return None
        return self.stretching.geometry(shift, self.basis, self.variances, keep_outside=self.keep_outside)
