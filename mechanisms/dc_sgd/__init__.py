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
a public optimizer of that name, which re-implements or stems from it. Not known to us from the paper, and
therefore uncertain:

- the defaults: 20 bins of width 1, p = 0.3 and sigma_H = 5 are those of public code (which also has 6);
- which norm of its bin DC-SGD-P takes; here the bin's middle;
- the candidates of DC-SGD-E: as in that code a tenth to twice the present norm, laid out again while an end
  one is best, and the rule by which bins are widened and narrowed; the bounds on the norm that the noise of
  nearly empty histograms makes necessary are ours (`workbench.mechanisms.dc_sgd.histograms`);
- what is done where sigma_H leaves no room in a small budget: here sigma_H is then larger, so that the
  histogram never takes more than a quarter of 1 / sigma^2.

With a few records a step the counts are mostly noise at this sigma_H, and the norm wanders; DC-SGD-E may then
differ a thousandfold between steps, which AdamW's second moments take long to forget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import FloatArray, Model, Plan, Signals
from workbench.mechanisms.dc_sgd.histograms import (
    expected_error_norm,
    next_width,
    norm_bins,
    norm_histogram,
    percentile_norm,
)
from workbench.mechanisms.shared.adaptive_sums import AdaptiveSteps, AdaptiveSums
from workbench.mechanisms.shared.gaussian_sums import flat_factors, require_count, require_scale
from workbench.training.canary import SignalsWithCanary
from workbench.training.fine_tuning import averaging_size
from workbench.training.loop import gaussian_noise
from workbench.training.steps import Steps

CHOICES = ("percentile", "expected-error")
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
        bins: K, from 2 to `MOST_BINS`.
        bin_width: Of the first step's bins.
        histogram_noise: The least sigma_H, the standard deviation of each count's noise.

    Raises:
        InputError: a parameter is out of range, or the accountant is unknown or finds no noise for a budget.
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
    histogram_noise: float = 5.0

    def __post_init__(self) -> None:
        """Refuse parameters that are out of range."""
        super().__post_init__()
        if self.choice not in CHOICES:
            raise unknown_name("choice", self.choice, CHOICES)
        require_scale(bin_width=self.bin_width, histogram_noise=self.histogram_noise)
        if not 0 < self.percentile < 1:
            raise InputError(f"percentile must be in (0, 1), got {self.percentile!r}")
        require_count("bins", self.bins, least=2, most=MOST_BINS)

    def count_noise(self) -> float:
        """sigma_H: the standard deviation of each count's noise.

        Raises:
            InputError: the noise multiplier is not settled.
        """
        return max(self.histogram_noise, LEAST_RATIO * self.settled_noise_multiplier())

    def side_queries(self) -> Sequence[float]:
        """sigma_H: one record changes one count by 1."""
        return (self.count_noise(),)

    def release(
        self, signals: Signals, l2_clip_norm: float, bin_width: float, generator: torch.Generator
    ) -> Tensor:
        """One step's two releases, shape `(..., d + bins)`: the clipped sum, and behind it the counts.

        Raises:
            InputError: the noise multiplier is not settled.
        """
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
        """The first step's releases, shape `(..., d + bins)`.

        Raises:
            InputError: the noise multiplier is not settled.
        """
        return self.release(signals, self.l2_clip_norm, self.bin_width, generator)

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The best statistic of both releases of the first step; see `read`."""
        return self.read(watched, released, self.l2_clip_norm, self.bin_width)

    def read(
        self, watched: SignalsWithCanary, released: Tensor, l2_clip_norm: float, bin_width: float
    ) -> Tensor:
        """What shows a canary best: its coordinate of the sum and its count, weighted by their precisions.

        Args:
            watched: What was released of.
            released: Shape `(..., d + bins)`.
            l2_clip_norm: Of that release.
            bin_width: Of that release.

        Returns:
            Shape `(...)`: about 1 with a canary that is clipped and 0 without, of noise sigma.
        """
        sum_noise, count_noise = self.sum_noise_multiplier(), self.count_noise()
        share = watched.observed(released, [l2_clip_norm])
        size = torch.tensor([watched.canary.magnitude * math.sqrt(len(watched.coordinates))])
        place = int(norm_bins(size, width=bin_width, bins=self.bins))
        known = norm_histogram(watched.background.norms(), width=bin_width, bins=self.bins)[place]
        count = released[..., watched.dimension + place].double().cpu() - float(known)
        whole = share / sum_noise**2 + count / count_noise**2
        return whole * self.settled_noise_multiplier() ** 2

    def next_norm(
        self, counts: FloatArray, l2_clip_norm: float, bin_width: float, *, dimension: int, batch_size: float
    ) -> float:
        """The clipping norm of the next step.

        Args:
            counts: Noised, shape `(bins,)`.
            l2_clip_norm: Of this step.
            bin_width: Of this step.
            dimension: d.
            batch_size: q N, which sums are divided by.
        """
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


class DynamicClipping(AdaptiveSteps):
    """One run of DC-SGD: the clipping norm and the bins of each step, from the noised counts of the last.

    Attributes:
        l2_clip_norm: Of the next release.
        bin_width: Of the next release.
    """

    def __init__(self, mechanism: DCSGD, plan: Plan, model: Model) -> None:
        """Begin a run at the mechanism's first clipping norm and bins.

        Args:
            mechanism: Settled for the plan.
            plan: The plan.
            model: Its model, in evaluation mode; trained in place.
        """
        super().__init__(mechanism, plan, model)
        self._dc_sgd = mechanism
        self._batch_size = plan.sampling_probability * averaging_size(plan)
        self.l2_clip_norm, self.bin_width = mechanism.l2_clip_norm, mechanism.bin_width
        self._used = (self.l2_clip_norm, self.bin_width)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """This step's releases, shape `(d + bins,)`; sets the next step's clipping norm and bins."""
        mechanism, norm, width = self._dc_sgd, self.l2_clip_norm, self.bin_width
        released = mechanism.release(signals, norm, width, generator)
        self.trace(norm, mechanism.sum_noise_multiplier(), bin_width=width)
        self._used = (norm, width)
        counts = released[signals.dimension :].double().cpu().numpy()
        if np.isfinite(counts).all():
            self.l2_clip_norm = mechanism.next_norm(
                counts, norm, width, dimension=signals.dimension, batch_size=self._batch_size
            )
            self.bin_width = next_width(counts, width)
        return released

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The best statistic of both releases that were just made; see `DCSGD.read`."""
        return self._dc_sgd.read(watched, released, *self._used)
