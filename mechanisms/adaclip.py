"""AdaCliP: each record's gradient is clipped in coordinates that past releases centred and scaled.

    m = 0, s = a constant
    for t in 1..T:
        take a Poisson sample L_t; B = q N is its expected size, a public number
        scale:   b_j = sqrt(s_j * sum of s)                          for each coordinate j
        for each record i in L_t:   w_i <- (g_i - m) / b,   w_i <- w_i * min(1, 1 / |w_i|)
        noise:   w <- sum of w_i + N(0, sigma^2 I)
        back:    g <- b w + B m
        learn:   g' = g / B
                 v_j = (g'_j - m_j)^2 - (b_j sigma / B)^2, kept within [h_1, h_2]
                 m <- beta_1 m + (1 - beta_1) g',   s^2 <- beta_2 s^2 + (1 - beta_2) v
        descend: hand g' to the optimizer

Why these b: among all scales for which a record centred on its mean has E|w|^2 <= 1, they add the least
noise to g (the paper's theorem; s_j is the standard deviation of coordinate j).

What it costs: nothing beyond the sum. m and s are functions of what was released and of public numbers, so
the transform of step t is public before the sample is drawn.

Sensitivity under add-remove adjacency, where the sample's size is secret. A record adds its clipped w_i to
the sum of w, of norm at most 1, and an absent record adds 0: sensitivity 1 in the mechanism's own
coordinates, against noise sigma. To go back, every record's mean must be returned; n m would tell the
secret n, so it is B m, which is public. In g a record therefore adds b w_i: at most one in the norm |x /
b|. The price is accuracy, not privacy: the n records had n m taken away, so that g is off by (B - n) m, of
mean zero over the Poisson sample, beside what clipping does.

Source: Pichapati, Suresh, Yu, Reddi and Kumar 2019, "AdaCliP: Adaptive clipping for private SGD" (arXiv
1908.07643), restated from public implementations. Uncertain or ours:

- the bounds h_1 and h_2 are numbers that one has to know; here they are the squares of two clipping norms
  over d, so that b lies between `least_l2_clip_norm` and `l2_clip_norm` in any model. The first s is their
  geometric mean, as in a public implementation, where s^2 = sqrt(h_1 h_2). Between equal bounds AdaCliP is
  DP-SGD;
- v estimates the variance of a mean of B records, `variance_of = "mean"`, as public implementations have
  it. The theorem asks for that of one record, which is B times as large: `variance_of = "record"`;
- betas 0.99 and 0.9 are a public implementation's. It averages s itself with v, a square; here the squares
  are averaged. v uses the mean from before the step;
- with few records and many coordinates, noise beyond its own expectation stays in v and widens b, which
  brings more noise: where sigma^2 d is above B^2 or so, b grows until its upper bound holds it.
  `l2_clip_norm` is RLDP's radius, 1.0 (section 3.1), so that AdaCliP never adds more noise than DP-SGD;
- RLDP does not say which AdaClip it ran. It cites this paper and names its moving averages, but runs its
  baselines in Opacus, whose `AdaClipDPOptimizer` is Andrew et al. 2021: mechanism `autoclip` with `estimate
  = "private"`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import Model, Plan, Signals
from workbench.mechanisms.shared.adaptive_sums import AdaptiveSteps, AdaptiveSums
from workbench.mechanisms.shared.gaussian_sums import flat_factors, require_scale
from workbench.training.canary import SignalsWithCanary
from workbench.training.devices import widened
from workbench.training.loop import gaussian_noise
from workbench.training.steps import Steps

VARIANCES = ("mean", "record")


@dataclass(frozen=True, kw_only=True)
class Moments:
    """AdaCliP's estimates of mean and variance, from its releases so far.

    `mean`: m, shape `(d,)`. `variance`: s^2, shape `(d,)`, positive.
    """

    mean: Tensor
    variance: Tensor

    def scale(self) -> Tensor:
        """b_j = sqrt(s_j * sum of s), shape `(d,)`."""
        spread = self.variance.sqrt()
        return (spread * spread.sum()).sqrt()


@register("mechanism", "adaclip")
@dataclass(frozen=True, kw_only=True)
class AdaCliP(AdaptiveSums):
    """Coordinate-wise adaptive clipping (Pichapati et al. 2019).

    Attributes:
        l2_clip_norm: The largest scale b of a coordinate: that of DP-SGD with this clipping norm.
        least_l2_clip_norm: The smallest; > 0, at most `l2_clip_norm`.
        mean_decay: beta_1 of the mean, in [0, 1).
        variance_decay: beta_2 of the variance, in [0, 1).
        variance_of: `"mean"` or `"record"`: whose variance s^2 is.
    """

    mechanism: ClassVar[str] = "adaclip"
    paper: ClassVar[str] = "Pichapati et al. 2019, AdaCliP"
    releases: ClassVar[str] = "releases, each of sensitivity 1 and noise sigma in scaled coordinates"

    least_l2_clip_norm: float = 0.01
    mean_decay: float = 0.99
    variance_decay: float = 0.9
    variance_of: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale(least_l2_clip_norm=self.least_l2_clip_norm)
        if self.least_l2_clip_norm > self.l2_clip_norm:
            raise InputError(
                f"least_l2_clip_norm must be at most l2_clip_norm = {self.l2_clip_norm:g}, "
                f"got {self.least_l2_clip_norm!r}"
            )
        for name in ("mean_decay", "variance_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be in [0, 1), got {getattr(self, name)!r}")
        if self.variance_of not in VARIANCES:
            raise unknown_name("variance_of", self.variance_of, VARIANCES)

    def further_assumptions(self) -> tuple[str, ...]:
        """The moments are free, and the mean is returned B times."""
        return (
            "means and scales of the coordinates are computed from earlier releases alone, and cost nothing",
            "the mean is added back q N times, a public number, not once a record of the sample",
        )

    def variance_bounds(self, dimension: int) -> tuple[float, float]:
        """h_1 and h_2 for d coordinates: the squares of the two clipping norms over d."""
        return self.least_l2_clip_norm**2 / dimension, self.l2_clip_norm**2 / dimension

    def initial(self, signals: Signals) -> Moments:
        """The estimates before any release: mean zero, variance the geometric mean of its bounds."""
        zeros = signals.norms().new_zeros(signals.dimension)
        low, high = self.variance_bounds(signals.dimension)
        return Moments(mean=zeros, variance=torch.full_like(zeros, math.sqrt(low * high)))

    def clipped_sum(self, signals: Signals, moments: Moments, batch_size: float) -> Tensor:
        """b times the sum of the clipped w_i, plus B m; shape of the weighted sum.

        `signals`: the sample's. `moments`: what was learned before this step. `batch_size`: B = q N, public.
        """
        centred = (signals.gradients() - moments.mean) / moments.scale()
        factors = flat_factors(vector_norm(centred, dim=1), 1.0)
        # b w_i = factor_i * (g_i - m): the records' sum, which has the trial axes, and a multiple of m.
        return signals.weighted_sum(factors) + moments.mean * (batch_size - factors.sum())

    def release(
        self, signals: Signals, moments: Moments, batch_size: float, generator: torch.Generator
    ) -> Tensor:
        """`clipped_sum` with Gaussian noise of standard deviation sigma b; the shape of the weighted sum."""
        noise = self.sum_noise_multiplier()
        total = self.clipped_sum(signals, moments, batch_size)
        return total + moments.scale() * gaussian_noise(total, noise, generator)

    def read(
        self, watched: SignalsWithCanary, released: Tensor, moments: Moments, batch_size: float
    ) -> Tensor:
        """What shows a canary best: the release less what is known, along the canary, in scaled coordinates.

        `watched`: what was released of. `released`: shape `(..., d)`, by these moments. Returns shape
        `(...)`: 1 with a canary that is clipped and 0 without, of noise sigma.
        """
        scale = moments.scale()
        known = self.clipped_sum(watched.background, moments, batch_size)
        canary = torch.zeros_like(moments.mean)
        canary[list(watched.coordinates)] = watched.canary.magnitude
        along = widened((canary - moments.mean) / scale)
        statistic: Tensor = widened((released - known) / scale) @ (along / vector_norm(along))
        return statistic.cpu()

    def learned(self, moments: Moments, released: Tensor, batch_size: float) -> Moments:
        """The moments after a release, shape `(d,)`, of a sample of expected size B."""
        mean = released / batch_size
        noise = self.sum_noise_multiplier() * moments.scale() / batch_size
        variance = (mean - moments.mean) ** 2 - noise**2
        if self.variance_of == "record":
            variance = variance * batch_size
        low, high = self.variance_bounds(released.numel())
        beta, gamma = self.mean_decay, self.variance_decay
        return Moments(
            mean=beta * moments.mean + (1 - beta) * mean,
            variance=gamma * moments.variance + (1 - gamma) * variance.clamp(low, high),
        )

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The release of the first step, where nothing is known yet; shape of the weighted sum."""
        return self.release(signals, self.initial(signals), 0.0, generator)

    def steps(self, plan: Plan, model: Model) -> Steps:
        """A run that learns from its releases."""
        return AdaCliPSteps(self, plan, model)


class AdaCliPSteps(AdaptiveSteps[AdaCliP]):
    """One training run of AdaCliP.

    The trace `l2_clip_norm` is the root mean square of b: the clipping norm of a DP-SGD that adds as much
    noise. Further traces: `mean_norm`, that of m.
    """

    def __init__(self, mechanism: AdaCliP, plan: Plan, model: Model) -> None:
        super().__init__(mechanism, plan, model)
        self._moments: Moments | None = None
        self._used: Moments | None = None

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Release by what was learned, and learn from the release."""
        moments = self.mechanism.initial(signals) if self._moments is None else self._moments
        released = self.mechanism.release(signals, moments, self.batch_size, generator)
        self._used = moments
        self._moments = self.mechanism.learned(moments, released, self.batch_size)
        radius = float(moments.scale().square().mean().sqrt())
        self.trace(radius, self.mechanism.sum_noise_multiplier(), mean_norm=float(vector_norm(moments.mean)))
        return released

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The best statistic of the release that was just made; see `AdaCliP.read`."""
        moments = self.mechanism.initial(watched) if self._used is None else self._used
        return self.mechanism.read(watched, released, moments, self.batch_size)
