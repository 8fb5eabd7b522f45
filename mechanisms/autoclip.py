"""AutoClip as RLDP describes it: one clipping norm for all parameters, a quantile of gradient norms.

    for t in 1..T:
        take a Poisson sample L_t
        radius:  C_t <- the p-quantile of the |g_i| of the sample               (`estimate = "sample"`)
        clip:    g_i <- g_i * min(1, C_t / |g_i|)
        noise:   g <- sum of g_i + N(0, (sigma C_t)^2 I)
        descend: hand g / (q N) to the optimizer

A discrepancy. RLDP (section 1) describes "a single global clipping norm" that is estimated by "the p-th
quantile of update norms", and cites Bu et al. 2023 for it. Their "Automatic clipping" has no quantile: it
normalises each gradient, C / (|g| + gamma), and is mechanism `dp_sgd` with `clipping = "automatic"`. A
quantile of the gradients' norms, over the history of training, is Seetharaman et al. 2020, "AutoClip",
which is not about privacy; a quantile that is tracked privately is Andrew et al. 2021. The default follows
RLDP's words; p is not printed there. The others are options of `estimate`:

- "sample": the quantile of this step's sample. Not paid for: see below;
- "history": the quantile of the norms of all records of all samples so far, this one included, as
  Seetharaman et al. take it of the norms of batches' gradients (their percentile is the 10th). Not paid
  for;
- "private": C_1 is given, and C_{t+1} = C_t exp(-eta (f_t - p)), where f_t is a noised share of the records
  whose norm is at most C_t (Andrew et al. 2021, who take p = 0.5 and eta = 0.2). Paid for: f_t is 1/2 plus
  (the sum of +-1/2 over the records + N(0, sigma_b^2)) / (q N), so that an absent record adds 0, a present
  one 1/2 either way, and nothing depends on the sample's secret size. The count gets `count_share` of the
  step's budget: sigma_b = sigma / (2 sqrt(share)), and the sum the rest. They recommend sigma_b = B / 20
  for batches of B = q N records, which is a share of 100 sigma^2 / B^2: nearly nothing for thousands of
  users a round, two fifths of the step at B = 16 and sigma = 1.

What "sample" and "history" leak. The radius is a function of raw norms. One record moves it, with it every
other record's share of the sum, and the noise, by amounts that C_t does not bound: of a sample of one
record and of none, the noise alone tells which it was. The calibration takes C_t for a public number all
the same, as RLDP's must: its noise multiplier is found by the accountant as for a constant norm (section
3.1). The claim says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.core.errors import InconclusiveError, InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import Capabilities, Family, Model, Plan, Signals
from workbench.mechanisms.shared.adaptive_sums import AdaptiveSteps, AdaptiveSums
from workbench.mechanisms.shared.gaussian_sums import SCALES, flat_factors, noisy_sum, require_positive
from workbench.training.flat import Layout
from workbench.training.steps import Steps

ESTIMATES = ("sample", "history", "private")
LARGEST_EXPONENT = 700.0
"""exp of more overflows."""


@register("mechanism", "autoclip")
@dataclass(frozen=True, kw_only=True)
class AutoClip(AdaptiveSums):
    """DP-SGD whose clipping norm follows a quantile of the records' gradient norms (RLDP's AutoClip).

    Attributes:
        l2_clip_norm: The radius where no norm is known: of a first sample without records, or of the first
            step where the estimate is private.
        estimate: `"sample"`, `"history"` or `"private"`.
        quantile: p, the share of records that the radius is to leave unclipped, in (0, 1).
        radius_learning_rate: eta of the private estimate.
        count_share: Share of a step's 1 / sigma^2 that the private estimate's count gets, in (0, 1).
    """

    mechanism: ClassVar[str] = "autoclip"
    paper: ClassVar[str] = "Khadangi et al. 2025 (RLDP), section 1, AutoClip by quantile"
    releases: ClassVar[str] = "releases, each of sensitivity C_t and noise sigma C_t, were C_t public"

    estimate: str = "sample"
    quantile: float = 0.5
    radius_learning_rate: float = 0.2
    count_share: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimate not in ESTIMATES:
            raise unknown_name("estimate", self.estimate, ESTIMATES)
        require_positive(radius_learning_rate=self.radius_learning_rate)
        for name in ("quantile", "count_share"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} must be in (0, 1), got {getattr(self, name)!r}")

    @property
    def is_private(self) -> bool:
        """Whether the radius is public when the sample is drawn."""
        return self.estimate == "private"

    @property
    def capabilities(self) -> Capabilities:
        """Gaussian noise where the radius is public; where it depends on the sample, nothing is known."""
        return Capabilities(family=Family.GAUSSIAN if self.is_private else Family.ANY)

    def further_assumptions(self) -> tuple[str, ...]:
        """The assumption that the claim needs on the quantile, or that nobody paid for it."""
        if self.is_private:
            return ("the radius follows noised counts of each step, which are paid for",)
        return (
            f"the radius is a quantile of raw gradient norms ({self.estimate}), taken of the private records "
            "without noise: NOTHING IS PAID FOR IT, and the sum's sensitivity is not the radius",
        )

    def count_noise(self) -> float:
        """sigma_b of the private estimate: standard deviation of the noise of a count of +-1/2 a record."""
        return self.settled_noise_multiplier() / (2 * math.sqrt(self.count_share))

    def side_queries(self) -> tuple[float, ...]:
        """The private estimate's count, of sensitivity 1/2; else none."""
        return (2 * self.count_noise(),) if self.is_private else ()

    def radius_of(self, norms: Tensor, otherwise: float) -> float:
        """The p-quantile of norms, shape `(n,)`, linear between them; `otherwise` where it is zero."""
        radius = float(torch.quantile(norms.cpu().double(), self.quantile)) if len(norms) else 0.0
        return radius if radius > 0 else otherwise

    def next_radius(self, radius: float, share: float) -> float:
        """C_{t+1} = C_t exp(-eta (share - p)) of the private estimate.

        Raises `InconclusiveError`: the radius leaves the numbers that gradients can be clipped to.
        """
        exponent = -self.radius_learning_rate * (share - self.quantile)
        following = radius * math.exp(exponent) if exponent < LARGEST_EXPONENT else math.inf
        low, high = SCALES
        if not low <= following <= high:
            raise InconclusiveError(
                f"the private radius left [{low:g}, {high:g}]; try a radius_learning_rate below "
                f"{self.radius_learning_rate:g} or a count_share above {self.count_share:g}"
            )
        return following

    def release(self, signals: Signals, radius: float, generator: torch.Generator) -> Tensor:
        """The sum of the gradients clipped to a radius, with noise; shape of the weighted sum."""
        factors = flat_factors(signals.norms(), radius)
        return noisy_sum(signals, factors, self.sum_noise_multiplier() * radius, generator)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The release of the first step; shape of the weighted sum."""
        radius = self.l2_clip_norm
        if not self.is_private:
            radius = self.radius_of(signals.norms(), otherwise=radius)
        return self.release(signals, radius, generator)

    def steps(self, plan: Plan, model: Model) -> Steps:
        """The steps of a run whose clipping norm adapts."""
        return AutoClipSteps(self, plan, model)


class AutoClipSteps(AdaptiveSteps[AutoClip]):
    """One run of AutoClip: the radius, and what it is estimated from."""

    def __init__(self, mechanism: AutoClip, plan: Plan, model: Model) -> None:
        super().__init__(mechanism, plan, model)
        self._radius = self._used = mechanism.l2_clip_norm
        self._history = torch.zeros(0, dtype=torch.float64)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Release by the radius; the private estimate moves it for the next step, the others did before."""
        norms = signals.norms()
        if not self.mechanism.is_private:
            self._radius = self.mechanism.radius_of(self._known(norms), self._radius)
        self._used = self._radius
        self.trace(self._used, self.mechanism.sum_noise_multiplier())
        released = self.mechanism.release(signals, self._used, generator)
        if self.mechanism.is_private:
            self._radius = self.mechanism.next_radius(self._used, self._share(norms, generator))
        return released

    def release_scales(self, layout: Layout) -> list[float]:
        """The last radius where it is public; where it is not, an auditor cannot divide by it."""
        return [self._used if self.mechanism.is_private else 1.0]

    def _known(self, norms: Tensor) -> Tensor:
        """The norms that a quantile is taken of."""
        if self.mechanism.estimate == "sample":
            return norms
        self._history = torch.cat([self._history, norms.cpu().double()])
        return self._history

    def _share(self, norms: Tensor, generator: torch.Generator) -> float:
        """A noised share of the sample's records that the radius left unclipped."""
        halves = float((norms <= self._used).sum()) - len(norms) / 2
        noise = torch.zeros(1, dtype=torch.float64, device=generator.device)
        noise.normal_(0.0, self.mechanism.count_noise(), generator=generator)
        return 0.5 + (halves + float(noise)) / self.batch_size
