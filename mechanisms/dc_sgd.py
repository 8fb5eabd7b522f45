"""DC-SGD: DP-SGD whose clipping norm follows a private histogram of the gradients' norms (Wei et al. 2025).

    for t in 1..T:
        take a Poisson sample L_t: each of the N records with probability q
        release the sum of clip(g_i, C_t) + N(0, (sigma_T C_t)^2 I)       over d coordinates
        release the counts of |g_i| in K bins + N(0, sigma_H^2 I)         over K bins
        descend along the first release / (q N)
        C_(t+1) from the noised counts alone:
            "percentile"      DC-SGD-P: the bin up to which the share p of the norms lies
            "expected-error"  DC-SGD-E: argmin of sigma_T^2 C^2 d / (q N)^2 + mean of max(|g| - C, 0)^2
        wider bins where most norms are beyond the last one, narrower where the upper ones are empty

A record adds a vector of norm at most C_t to the sum and 1 to one count. So the two releases together are one
Gaussian mechanism of noise multiplier sigma with 1 / sigma^2 = 1 / sigma_T^2 + 1 / sigma_H^2, whatever C_t
is; sigma is what the plan's budget allows, and so the histogram is paid. Everything else reads noised counts.
What is released in a step is one vector of d + K numbers, the counts last.

Source: Wei, Li, Gong and Chen 2025, "DC-SGD: Differentially Private SGD with Dynamic Clipping through
Gradient Norm Distribution Estimation", arXiv 2503.22988. Known to us from its abstract, from a formula page
of a catalogue of optimizers (junaidaliop.github.io/zij/math/dcsgd: the split of sigma, both rules) and from
two public versions of the code, lwx0420/DCSGD and DCSGD-new, of which this follows the newer. Not known to
us from the paper, and therefore uncertain:

- the defaults: 20 bins of width 1, p = 0.3 and sigma_H = 5 are those of public code (sigma_H also 6, and 2);
- what the bins follow: in DCSGD-new those of DC-SGD-P reach to twice the clipping norm in each step
  (`bins_follow = "norm"`), those of DC-SGD-E get wider and narrower by the counts, as both do here otherwise;
- how often: the older code makes histograms of fixed bins from a sample of their own, about twice an epoch;
- which norm of its bin DC-SGD-P takes; here the bin's middle;
- the candidates of DC-SGD-E: as in that code a tenth to twice the present norm, laid out again while an end
  one is best, and the rule by which bins are widened and narrowed; the bounds on the norm that the noise of
  nearly empty histograms makes necessary are ours;
- what is done where sigma_H leaves no room in a small budget: here sigma_H is then larger, so that the
  histogram never takes more than a quarter of 1 / sigma^2.

With a few records a step the counts are mostly noise at this sigma_H, and the norm wanders; DC-SGD-E may then
differ a thousandfold between steps, which AdamW's second moments take long to forget.

    >>> counts = norm_histogram(torch.tensor([0.2, 0.3, 1.1, 9.0]), width=0.5, bins=4)
    >>> counts.tolist()
    [2.0, 0.0, 1.0, 1.0]
    >>> percentile_norm(counts.numpy(), 0.5, percentile=0.6, present=1.0)
    1.25
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from workbench.core.arguments import require_count
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import Capabilities, FloatArray, Model, Plan, Release, Signals
from workbench.mechanisms.shared.adaptive_sums import AdaptiveSteps, AdaptiveSums
from workbench.mechanisms.shared.gaussian_sums import flat_factors, require_scale
from workbench.training.canary import SignalsWithCanary
from workbench.training.devices import widened
from workbench.training.loop import gaussian_noise
from workbench.training.steps import Steps

CANDIDATES = 20
"""Clipping norms that are weighed at once: the present one times 1/10, 2/10, ..., 2."""
ROUNDS = 32
"""Most times that the candidates are laid about a new present one."""
FINEST = 1e-3
"""The smallest clipping norm over the width of a bin; the largest is the histogram's end."""
NARROWEST = 1e-12
"""The smallest width of a bin."""
CHOICES = ("percentile", "expected-error")
BINS_FOLLOW = ("counts", "norm")
MOST_BINS = 100_000
LEAST_RATIO = 2.0
"""sigma_H over sigma at least: the histogram then takes at most a quarter of 1 / sigma^2."""


@register("mechanism", "dc_sgd")
@dataclass(frozen=True, kw_only=True)
class DCSGD(AdaptiveSums):
    """DP-SGD with a clipping norm chosen from private histograms, DC-SGD-P or DC-SGD-E (Wei et al. 2025).

    Attributes:
        choice: `"percentile"` or `"expected-error"`.
        percentile: p of DC-SGD-P, in (0, 1).
        bins: K, 2 to 100,000: each step draws noise for every bin.
        bin_width: Of the first step's bins.
        bins_follow: `"counts"`: bins get wider or narrower by the noised counts. `"norm"`: in each step all
            bins together reach to twice the clipping norm, and `bin_width` is not read.
        histogram_noise: The least sigma_H, the standard deviation of each count's noise.
    """

    mechanism: ClassVar[str] = "dc_sgd"
    paper: ClassVar[str] = "Wei et al. 2025, DC-SGD"
    releases: ClassVar[str] = (
        "joint releases of a sum of sensitivity C_t and noise sigma_T C_t, and of a histogram of sensitivity "
        "1 and noise sigma_H, with 1 / sigma^2 = 1 / sigma_T^2 + 1 / sigma_H^2; C_t and the bins are "
        "functions of earlier releases"
    )

    choice: str = "percentile"
    percentile: float = 0.3
    bins: int = 20
    bin_width: float = 1.0
    bins_follow: str = "counts"
    histogram_noise: float = 5.0

    @property
    def capabilities(self) -> Capabilities:
        """Noised sums, each with a noised histogram."""
        return replace(super().capabilities, releases=frozenset({Release.SUMS, Release.COUNTS}))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choice not in CHOICES:
            raise unknown_name("choice", self.choice, CHOICES)
        if self.bins_follow not in BINS_FOLLOW:
            raise unknown_name("bins_follow", self.bins_follow, BINS_FOLLOW)
        require_scale(bin_width=self.bin_width, histogram_noise=self.histogram_noise)
        if not 0 < self.percentile < 1:
            raise InputError(f"percentile must be in (0, 1), got {self.percentile!r}")
        require_count("bins", self.bins, least=2, most=MOST_BINS)

    def width_at(self, l2_clip_norm: float, otherwise: float) -> float:
        """The width of the bins beside a clipping norm; `otherwise` where it does not follow the norm."""
        return 2 * l2_clip_norm / self.bins if self.bins_follow == "norm" else otherwise

    def first_width(self) -> float:
        """The width of the first step's bins."""
        return self.width_at(self.l2_clip_norm, self.bin_width)

    def count_noise(self) -> float:
        """sigma_H: the standard deviation of each count's noise."""
        return max(self.histogram_noise, LEAST_RATIO * self.settled_noise_multiplier())

    def side_queries(self) -> Sequence[float]:
        """sigma_H: one record changes one count by 1."""
        return (self.count_noise(),)

    def release(
        self, signals: Signals, l2_clip_norm: float, bin_width: float, generator: torch.Generator
    ) -> Tensor:
        """One step's two releases, shape `(..., d + bins)`: the clipped sum, and behind it the counts."""
        norms = signals.norms()
        total = signals.weighted_sum(flat_factors(norms, l2_clip_norm))
        counts = norm_histogram(norms, width=bin_width, bins=self.bins).to(total)
        counts = counts.expand(*total.shape[:-1], -1)
        sum_noise = self.sum_noise_multiplier() * l2_clip_norm
        return torch.cat(
            [
                gaussian_noise(total, sum_noise, generator).add_(total),
                gaussian_noise(counts, self.count_noise(), generator).add_(counts),
            ],
            dim=-1,
        )

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The first step's releases, shape `(..., d + bins)`."""
        return self.release(signals, self.l2_clip_norm, self.first_width(), generator)

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The best statistic of both releases of the first step; see `read`."""
        return self.read(watched, released, self.l2_clip_norm, self.first_width())

    def read(
        self, watched: SignalsWithCanary, released: Tensor, l2_clip_norm: float, bin_width: float
    ) -> Tensor:
        """What shows a canary best: its coordinate of the sum and its count, weighted by their precisions.

        `watched`: what was released of. `released`: shape `(..., d + bins)`, at this clipping norm and width.
        Returns shape `(...)`: about 1 with a canary that is clipped and 0 without, of noise sigma.
        """
        sum_noise, count_noise = self.sum_noise_multiplier(), self.count_noise()
        share = watched.observed(released, [l2_clip_norm])
        size = torch.tensor([watched.canary.magnitude * math.sqrt(len(watched.coordinates))])
        place = int(norm_bins(size, width=bin_width, bins=self.bins))
        known = norm_histogram(watched.background.norms(), width=bin_width, bins=self.bins)[place]
        count = released[..., watched.dimension + place].cpu().double() - float(known)
        whole = share / sum_noise**2 + count / count_noise**2
        return whole * self.settled_noise_multiplier() ** 2

    def next_norm(
        self, counts: FloatArray, l2_clip_norm: float, bin_width: float, *, dimension: int, batch_size: float
    ) -> float:
        """The clipping norm of the next step, from this one's noised counts, shape `(bins,)`, and B = q N."""
        if self.choice == "percentile":
            return percentile_norm(counts, bin_width, percentile=self.percentile, present=l2_clip_norm)
        variance = self.sum_noise_multiplier() ** 2 * dimension / batch_size**2
        return expected_error_norm(counts, bin_width, variance=variance, present=l2_clip_norm)

    def settings(self) -> Mapping[str, float]:
        """Those of all adaptive sums, and `histogram_noise`."""
        settled = self.noise_multiplier is not None
        return {
            **super().settings(),
            "histogram_noise": self.count_noise() if settled else self.histogram_noise,
        }

    def steps(self, plan: Plan, model: Model) -> Steps:
        """A run whose clipping norm and bins follow its histograms."""
        return DynamicClipping(self, plan, model)


class DynamicClipping(AdaptiveSteps[DCSGD]):
    """One run of DC-SGD: the clipping norm and the bins of each step, from the noised counts of the last.

    `l2_clip_norm`: of the next release. `bin_width`: of the next release.
    """

    def __init__(self, mechanism: DCSGD, plan: Plan, model: Model) -> None:
        super().__init__(mechanism, plan, model)
        self.l2_clip_norm, self.bin_width = mechanism.l2_clip_norm, mechanism.first_width()
        self._used = (self.l2_clip_norm, self.bin_width)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """This step's releases, shape `(d + bins,)`; sets the next step's clipping norm and bins."""
        mechanism, norm, width = self.mechanism, self.l2_clip_norm, self.bin_width
        released = mechanism.release(signals, norm, width, generator)
        self.trace(norm, mechanism.sum_noise_multiplier(), bin_width=width)
        self._used = (norm, width)
        counts = released[signals.dimension :].cpu().double().numpy()
        if np.isfinite(counts).all():
            self.l2_clip_norm = mechanism.next_norm(
                counts, norm, width, dimension=signals.dimension, batch_size=self.batch_size
            )
            self.bin_width = mechanism.width_at(self.l2_clip_norm, next_width(counts, width))
        return released

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The best statistic of both releases that were just made; see `DCSGD.read`."""
        return self.mechanism.read(watched, released, *self._used)


# Histograms, and what is read off them. Noised counts may be negative, and their total may be: what cannot be
# read off them is left as it was.


def norm_bins(norms: Tensor, *, width: float, bins: int) -> Tensor:
    """The bin of each norm, shape `(n,)`; all beyond the histogram's end (NaN, too) are in the last."""
    places = torch.nan_to_num(widened(norms) / width, nan=math.inf).clamp(max=bins - 1)
    return places.long()


def norm_histogram(norms: Tensor, *, width: float, bins: int) -> Tensor:
    """How many of the norms lie in each bin, shape `(bins,)`; one record changes one count by 1."""
    counts = torch.bincount(norm_bins(norms, width=width, bins=bins), minlength=bins)
    return counts.to(norms.dtype)


def bin_middles(bins: int, width: float) -> FloatArray:
    """The norm that stands for each bin, shape `(bins,)`."""
    middles: FloatArray = (np.arange(bins, dtype=np.float64) + 0.5) * width
    return middles


def percentile_norm(counts: FloatArray, width: float, *, percentile: float, present: float) -> float:
    """DC-SGD-P: the first bin up to which more than the share `percentile` of the records lies.

    Args:
        counts: Noised, shape `(bins,)`.
        width: Of a bin.
        percentile: In (0, 1).
        present: The clipping norm that is kept where the counts do not add up to anything.
    """
    total = float(counts.sum())
    if total <= 0:
        return present
    beyond = np.flatnonzero(np.cumsum(counts) > percentile * total)
    return float(bin_middles(len(counts), width)[beyond[0]])


def expected_error_norm(counts: FloatArray, width: float, *, variance: float, present: float) -> float:
    """DC-SGD-E: the clipping norm C that minimises variance C^2 + mean of max(norm - C, 0)^2.

    Candidates are laid about the present norm, and again about the best of them while that is an end one.

    Args:
        counts: Noised, shape `(bins,)`.
        width: Of a bin.
        variance: Of the mean gradient's noise, summed over its coordinates, at C = 1.
        present: The clipping norm in use; kept where the counts do not add up to anything.
    """
    total = float(counts.sum())
    if total <= 0:
        return present
    middles = bin_middles(len(counts), width)
    least, most = FINEST * width, len(counts) * width
    best = min(max(present, least), most)
    for _ in range(ROUNDS):
        candidates = best * np.arange(1, CANDIDATES + 1) / (CANDIDATES / 2)
        beyond = np.maximum(middles - candidates[:, None], 0.0)
        errors = variance * candidates**2 + (beyond**2 @ counts) / total
        index = int(np.argmin(errors))
        best = min(max(float(candidates[index]), least), most)
        if 0 < index < CANDIDATES - 1 or best in (least, most):
            break
    return best


def next_width(counts: FloatArray, width: float) -> float:
    """Twice the width where over half of the records is in the last bin, half where few are in the upper.

    Few: the upper half of the bins holds less than one bin's even share.
    """
    total, bins = float(counts.sum()), len(counts)
    if total <= 0:
        return width
    if counts[-1] > total / 2:
        return 2 * width
    if counts[bins // 2 :].sum() < total / bins:
        return max(width / 2, NARROWEST)
    return width
