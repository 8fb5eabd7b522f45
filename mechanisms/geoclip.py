"""GeoClip: clip and add noise in a basis that follows the noised gradients (Gilani et al. 2025).

    for t in 1..T:
        take a Poisson sample L_t: each of the N records with probability q
        for each record i in L_t: w_i = M_t (g_i - a_t), clipped to norm 1
        release the sum of w_i + N(0, sigma^2 I)
        descend along G_t = M_t^-1 (release) / (q N) + a_t
        a_(t+1) = beta_1 a_t + (1 - beta_1) G_t
        r_t = G_t - a_(t+1)
        Sigma_(t+1) = beta_2 Sigma_t + (1 - beta_2) q N r_t r_t^T, of eigenvalues lambda
        M_(t+1) = sqrt(gamma / sum of sqrt(lambda)) Lambda^(-1/4) V^T, lambda clamped to [h_1, h_2]

A record adds a vector of norm at most 1 to the sum, whatever M_t and a_t are, and both come from what was
released before: T releases of the subsampled Gaussian mechanism, as of DP-SGD, and the geometry is free.
M_t is the map of least noise among those with E |M (g - a)|^2 <= gamma (their closed form).

"exact" holds all of Sigma, d x d, and decomposes it in every step: small models. "low-rank" holds k of its
axes by a streaming update, and M_t maps to these k coordinates alone.

Source: Gilani, Tasnim, Sankar and Kosut 2025, "GeoClip: Geometry-Aware Clipping for Differentially Private
SGD", arXiv 2506.06549, and the authors' repository (atefeh-gilani/GeoClip), whose decays and h_1 are the
defaults. Where paper and code differ, leave a choice, or the code is not private as it is:

- The released mean of B records spreads less than one record: the paper multiplies its square by B (Eq. 20),
  `covariance_of = "record"`. `"mean"` leaves it as it is: then M is larger by the root of B, and records are
  clipped as much more tightly. Both hold the noise. The code's last version
  takes each record's own noised gradient instead; only their sum is released here.
- Its low-rank run (commit b337a7f) takes the first two mean gradients without clipping or noise, and resets
  the seed of its noise in every step. Here every release is clipped and has fresh noise: until k of them
  have filled the basis, M = I / C and a = 0, which is DP-SGD. The basis begins empty rather than with
  arbitrary axes.
- Its low-rank M drops what lies outside the basis, and a later release then lies within it: the basis
  turns, but never meets a new direction. So it is by default (`outside="dropped"`); with `"kept"`, ours, M
  is that of the low-rank covariance with its missing eigenvalues clamped to h_1 like any other.
- It starts from Sigma = I and M = I, which do not belong together. Here M = I / C, and the exact Sigma
  starts where that is its own map: (gamma C^2 / d) I.
- Under Poisson sampling the shift is added back q N times, not once for each record, as the true number of
  records in a sample is private; q N stands for |B| in Eq. 20 likewise.
- With the exact Sigma, G_t is centred by a_(t+1), as in the code's earlier version; the paper has a_t, which
  makes it smaller by a factor beta_1.
- The paper's k is 50 of 802 and 100 of 2,570 coordinates, its h_2 10 or 1 by dataset; here k = 16 and
  h_2 = 10 unless they are given.

    >>> start = Geometry.ball(3, radius=2.0)
    >>> start.norms(torch.tensor([[0.0, 4.0, 3.0]]))
    tensor([2.5000], dtype=torch.float64)
    >>> start.radius
    2.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from workbench.core.arguments import require_count
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import Model, Plan, Signals
from workbench.mechanisms.shared.adaptive_sums import AdaptiveSteps, AdaptiveSums
from workbench.mechanisms.shared.gaussian_sums import flat_factors, require_positive
from workbench.training.canary import SignalsWithCanary
from workbench.training.loop import gaussian_noise
from workbench.training.steps import Steps

COVARIANCES = ("auto", "exact", "low-rank")
COVARIANCES_OF = ("record", "mean")
OUTSIDE = ("dropped", "kept")
EXACT_UP_TO = 256
"""The largest d that "auto" holds the whole covariance of."""
EXACT_AT_MOST = 4096
"""The largest d of "exact": a decomposition takes minutes beyond."""
VANISHING = 1e-12
"""A direction whose share of the variance is below this is none: rounding left it."""
_AT_ONCE = 1 << 22
"""Numbers that are held in float64 at once."""
MOST_AXES = 1_024
"""Largest k of "low-rank": each step decomposes a matrix of k + 1 gradients."""


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Smoothing constants of one of the two variants of the authors' code.

    Attributes:
        mean_decay: beta_1.
        covariance_decay: beta_2.
        least_variance: h_1.
    """

    mean_decay: float
    covariance_decay: float
    least_variance: float


DEFAULTS: Mapping[str, Smoothing] = {
    "exact": Smoothing(mean_decay=0.99, covariance_decay=0.999, least_variance=1e-15),
    "low-rank": Smoothing(mean_decay=0.9, covariance_decay=0.98, least_variance=1e-8),
}


@register("mechanism", "geoclip")
@dataclass(frozen=True, kw_only=True)
class GeoClip(AdaptiveSums):
    """DP-SGD that clips in a basis adapted from its own releases (Gilani et al. 2025).

    Attributes:
        covariance: `"exact"`, `"low-rank"`, or `"auto"`: exact up to 256 trainable parameters.
        covariance_of: `"record"` or `"mean"`: whose covariance Sigma is.
        rank: k of `"low-rank"`, 1 to 1,024; the first k steps are DP-SGD's, clipped to `l2_clip_norm`.
        outside: What `"low-rank"` does with directions outside its basis: `"dropped"` or `"kept"`.
        gamma: The expected squared norm in the transformed space, where records are clipped to 1.
        mean_decay: beta_1, in [0, 1); None for the variant's own, as are the next two.
        covariance_decay: beta_2, in [0, 1).
        least_variance: h_1, below which no eigenvalue falls.
        most_variance: h_2, which none exceeds.
    """

    mechanism: ClassVar[str] = "geoclip"
    paper: ClassVar[str] = "Gilani et al. 2025, GeoClip"
    releases: ClassVar[str] = (
        "releases, each of sensitivity 1 and noise sigma in coordinates that are functions of earlier ones"
    )

    covariance: str = "auto"
    covariance_of: str = "record"
    rank: int = 16
    outside: str = "dropped"
    gamma: float = 1.0
    mean_decay: float | None = None
    covariance_decay: float | None = None
    least_variance: float | None = None
    most_variance: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.covariance not in COVARIANCES:
            raise unknown_name("covariance", self.covariance, COVARIANCES)
        if self.covariance_of not in COVARIANCES_OF:
            raise unknown_name("covariance_of", self.covariance_of, COVARIANCES_OF)
        if self.outside not in OUTSIDE:
            raise unknown_name("outside", self.outside, OUTSIDE)
        require_count("rank", self.rank, least=1, most=MOST_AXES)
        require_positive(
            gamma=self.gamma, least_variance=self.least_variance, most_variance=self.most_variance
        )
        for name in ("mean_decay", "covariance_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InputError(f"{name} must be in [0, 1), got {value!r}")
        if self.least_variance is not None and self.least_variance > self.most_variance:
            raise InputError(
                f"least_variance must be at most most_variance, {self.most_variance!r}, "
                f"got {self.least_variance!r}"
            )

    def check(self, plan: Plan) -> None:
        """See the base class; the eigenvectors are taken in float64, which Apple's devices do not have."""
        super().check(plan)
        if plan.device == "mps":
            raise UnsupportedError("geoclip computes in float64, which device 'mps' does not have")

    def variant(self, dimension: int) -> str:
        """`"exact"` or `"low-rank"` for d trainable parameters.

        Raises `InputError`: exact is asked for, and d is beyond it.
        """
        if self.covariance == "exact" and dimension > EXACT_AT_MOST:
            raise InputError(
                f"covariance 'exact' takes at most {EXACT_AT_MOST} trainable parameters, got {dimension}; "
                "'low-rank' takes any number"
            )
        if self.covariance != "auto":
            return self.covariance
        return "exact" if dimension <= EXACT_UP_TO else "low-rank"

    def smoothing(self, variant: str) -> Smoothing:
        """The decays and the least eigenvalue, the variant's own where none is given."""
        base = DEFAULTS[variant]
        return Smoothing(
            mean_decay=base.mean_decay if self.mean_decay is None else self.mean_decay,
            covariance_decay=base.covariance_decay
            if self.covariance_decay is None
            else self.covariance_decay,
            least_variance=base.least_variance if self.least_variance is None else self.least_variance,
        )

    def first_covariance(
        self, dimension: int, device: torch.device | None = None
    ) -> ExactCovariance | LowRankCovariance:
        """Sigma before the first step, of d trainable parameters."""
        variant = self.variant(dimension)
        smoothing = self.smoothing(variant)
        stretching = Stretching(gamma=self.gamma, least=smoothing.least_variance, most=self.most_variance)
        if variant == "exact":
            start = self.gamma * self.l2_clip_norm**2 / dimension
            matrix = start * torch.eye(dimension, dtype=torch.float64, device=device)
            return ExactCovariance(matrix=matrix, decay=smoothing.covariance_decay, stretching=stretching)
        return LowRankCovariance(
            basis=torch.zeros(dimension, 0, dtype=torch.float64, device=device),
            variances=torch.zeros(0, dtype=torch.float64, device=device),
            rank=min(self.rank, dimension),
            decay=smoothing.covariance_decay,
            stretching=stretching,
            keep_outside=self.outside == "kept",
        )

    def first_geometry(self, signals: Signals) -> Geometry:
        """Before anything was released: no shift, and M = I / C."""
        return Geometry.ball(signals.dimension, self.l2_clip_norm, signals.norms().device)

    def release(
        self, signals: Signals, geometry: Geometry, shifts: float, generator: torch.Generator
    ) -> Tensor:
        """M^-1 times the noised sum of clipped M (g - a), plus q N shifts a; shape of the weighted sum."""
        total = self.clipped_sum(signals, geometry)
        noise = total.new_zeros(*total.shape[:-1], geometry.axes)
        noise = gaussian_noise(noise, self.sum_noise_multiplier(), generator)
        return total + geometry.undo(noise) + shifts * geometry.shift.to(total)

    def clipped_sum(self, signals: Signals, geometry: Geometry) -> Tensor:
        """M^-1 times the sum of the records' clipped M (g - a), without noise; shape of the weighted sum."""
        rows = signals.gradients()
        factors = flat_factors(geometry.norms(rows), 1.0)
        total = signals.weighted_sum(factors.to(rows))
        return geometry.kept(total - (factors.sum() * geometry.shift).to(total))

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The first step's release: DP-SGD's, clipped to C. Shape of the weighted sum."""
        return self.release(signals, self.first_geometry(signals), 0.0, generator)

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The best statistic of the first step's release; see `read`."""
        return self.read(watched, released, self.first_geometry(watched), 0.0)

    def read(self, watched: SignalsWithCanary, released: Tensor, geometry: Geometry, shifts: float) -> Tensor:
        """What shows a canary best: the release less what is known, along the canary, in the clipped space.

        `watched`: what was released of. `released`: shape `(..., d)`, by this geometry, with so many shifts.
        Returns shape `(...)`: 1 with a canary that is clipped and 0 without, of noise sigma.
        """
        known = self.clipped_sum(watched.background, geometry) + (shifts * geometry.shift).to(released)
        rest = geometry.coordinates((released - known).double())
        canary = torch.zeros_like(geometry.shift)
        canary[list(watched.coordinates)] = watched.canary.magnitude
        along = geometry.coordinates(canary - geometry.shift)
        statistic: Tensor = rest @ (along / vector_norm(along))
        return statistic.cpu()

    def steps(self, plan: Plan, model: Model) -> Steps:
        """A run whose geometry follows its releases."""
        return FollowingGeometry(self, plan, model)


class FollowingGeometry(AdaptiveSteps[GeoClip]):
    """One run of GeoClip: a and M of each step, from the releases before it.

    `geometry`: of the next release.
    """

    def __init__(self, mechanism: GeoClip, plan: Plan, model: Model) -> None:
        """Begin a run without a shift, at M = I / C.

        Raises `InputError`: the exact covariance is asked for, of too many parameters.
        """
        super().__init__(mechanism, plan, model)
        parameters = list(self._parameters.values())
        dimension, device = sum(p.numel() for p in parameters), parameters[0].device
        self._decay = mechanism.smoothing(mechanism.variant(dimension)).mean_decay
        self._covariance = mechanism.first_covariance(dimension, device)
        self._shift = torch.zeros(dimension, dtype=torch.float64, device=device)
        self.geometry = self._used = Geometry.ball(dimension, mechanism.l2_clip_norm, device)

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The best statistic of the release that was just made; see `GeoClip.read`."""
        return self.mechanism.read(watched, released, self._used, self.batch_size)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """This step's release, shape `(d,)`; sets the next step's geometry from it alone."""
        mechanism, geometry = self.mechanism, self.geometry
        released = mechanism.release(signals, geometry, self.batch_size, generator)
        self.trace(geometry.radius, mechanism.sum_noise_multiplier())
        self._used = geometry
        if bool(torch.isfinite(released).all()):
            mean = released.double() / self.batch_size
            self._shift = self._decay * self._shift + (1 - self._decay) * mean
            records = self.batch_size if mechanism.covariance_of == "record" else 1.0
            self._covariance = self._covariance.after(math.sqrt(records) * (mean - self._shift))
            self.geometry = self._covariance.geometry(self._shift) or geometry
        return released


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A shift a, and a linear map M that stretches the axes of a basis; GeoClip clips M (g - a) to norm 1.

    Nothing here is told of a record but `norms`, whose results only make clipping factors.

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
        """The part of vectors that M does not lose, shape `(..., d)`: M^-1 M."""
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

        `shift`: a, shape `(d,)`. `basis`: eigenvectors, shape `(d, k)`; `keep_outside` tells whether
        directions outside are kept. `variances`: eigenvalues, shape `(k,)`.
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
        """The covariance after one more released gradient, less the shift, shape `(d,)`."""
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
        """The covariance after one more released gradient, shape `(d,)`; the leading axes are kept."""
        columns = torch.cat(
            [
                self.basis * (self.decay * self.variances).sqrt(),
                math.sqrt(1 - self.decay) * centred.to(self.basis)[:, None],
            ],
            dim=1,
        )
        basis, values, _ = torch.linalg.svd(columns, full_matrices=False)
        rank = int((values[: self.rank] > math.sqrt(VANISHING) * values[0]).sum())
        return replace(self, basis=basis[:, :rank], variances=values[:rank].square())

    def geometry(self, shift: Tensor) -> Geometry | None:
        """The geometry of the present covariance; None before the basis holds `rank` axes."""
        if self.basis.shape[1] < self.rank:
            return None
        return self.stretching.geometry(shift, self.basis, self.variances, keep_outside=self.keep_outside)
