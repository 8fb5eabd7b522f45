"""PACZero's own accounting, as printed (Ertan et al. 2026): nats of mutual information about a secret subset.

One of M public candidate subsets was trained on; the secret is which. In each step every candidate has a sign
(of its mean zeroth-order gradient). Where all candidates that the posterior deems possible agree, the sign is
released free of charge; else PACZero-MI releases the secret's sign in Gaussian noise that leaks exactly the
step's budget, and PACZero-ZPL releases a fair coin. Units are nats throughout. None of this is differential
privacy, which the paper says too: `PacZeroAccountant` refuses every question about a DP epsilon.

What the paper leaves open, or says twice, is an option here, and discussed in `workbench.mechanisms.paczero`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

import numpy as np
from scipy import optimize, special

from workbench.accounting.events import Event
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import Adjacency, FloatArray
from workbench.mechanisms.accountants.shared import binary_channel
from workbench.mechanisms.accountants.shared.questions import require, require_positive

QUADRATURE_NODES = 60
"""Gauss-Hermite nodes (appendix C)."""
CAP = 0.999
"""Share of the binary entropy that a step's budget is capped at (appendix C)."""
TOLERANCE = 1e-12
"""Distance of q+ from 0 or 1 that counts as unanimity (appendix C)."""
LEAST_BUDGET = 1e-300
"""Nats; a release that may tell less is a coin, and charged nothing: floats end soon after."""

CHOICES = {
    "within_step": ("sequential", "joint"),
    "conditioned_on": ("values", "bits"),
    "quadrature": ("gauss-hermite", "certified"),
}
"""Names of the ledger's options."""


def binary_entropy_nats(probability: float) -> float:
    """h(q) = -q ln q - (1-q) ln(1-q) (appendix C). Raises `InputError`: the probability is not in [0, 1]."""
    require("probability", probability, 0 <= probability <= 1, "in [0, 1]")
    if probability == 1:
        return 0.0
    return float(special.entr(probability)) - (1 - probability) * float(special.log1p(-probability))


def binary_mi_nats(*, agreement: float, noise: float, nodes: int = QUADRATURE_NODES) -> float:
    """Eq. 4: mutual information of a sign and its value in Gaussian noise, by Gauss-Hermite quadrature.

    `agreement`: probability q+ of the sign +1, in [0, 1]. `noise`: standard deviation sigma, > 0. `nodes`:
    quadrature nodes; the paper takes 60. Raises `InputError`: a parameter is out of range.
    """
    require("agreement", agreement, 0 <= agreement <= 1, "in [0, 1]")
    require_positive("noise", noise)
    if agreement in (0.0, 1.0):
        return 0.0
    points, weights = _hermite(nodes)
    z = math.sqrt(2.0) * points
    total = 0.0
    for weight, other in ((agreement, 1 - agreement), (1 - agreement, agreement)):
        # At y = s + sigma z the two densities' log ratio is -(2 / sigma^2) (1 + sigma z).
        ratio = -2.0 / noise**2 - 2.0 * z / noise
        loss = -np.logaddexp(math.log(weight), math.log(other) + ratio)
        total += weight * float(np.sum(weights * loss)) / math.sqrt(math.pi)
    return total


@cache
def _hermite(nodes: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights, worked out once."""
    points, weights = np.polynomial.hermite.hermgauss(nodes)
    return points, weights


def noise_for(*, agreement: float, budget_nats: float, nodes: int = QUADRATURE_NODES) -> float:
    """BinaryMI^-1 (section 3.1, appendix C): the noise at which Eq. 4 equals the budget.

    Bisection in ln sigma. A budget of 0 gives infinite noise. Raises `InputError`: the budget is negative, or
    not below h(q+), where no noise has this much information.
    """
    require("budget_nats", budget_nats, budget_nats >= 0, ">= 0")
    if budget_nats == 0:
        return math.inf
    ceiling = binary_entropy_nats(agreement)
    require("budget_nats", budget_nats, budget_nats < ceiling, f"below h(q+) = {ceiling:g}")

    def excess(log_noise: float) -> float:
        return binary_mi_nats(agreement=agreement, noise=math.exp(log_noise), nodes=nodes) - budget_nats

    low, high = -8.0, 1.0
    while excess(high) > 0:
        high += 2.0
        if high > 40:
            return math.inf
    if excess(low) <= 0:
        return math.exp(low)
    return math.exp(float(optimize.bisect(excess, low, high, xtol=1e-13)))


def step_budget_nats(*, total_nats: float, used_nats: float, step: int, steps: int) -> float:
    """Eq. 6: max(0, total - used) / (T - t + 1).

    Args:
        total_nats: MI_tot >= 0.
        used_nats: What the steps before this one consumed.
        step: t, counted from 1.
        steps: T.

    Raises `InputError`: a parameter is out of range.
    """
    require("total_nats", total_nats, 0 <= total_nats < math.inf, "finite and >= 0")
    require("step", step, 1 <= step <= steps, f"in 1..{steps}")
    return max(0.0, total_nats - used_nats) / (steps - step + 1)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The release of one step and its cost in nats.

    Attributes:
        agreement: q+, the posterior's weight on candidates whose sign is +1.
        unanimous: Whether the sign is released as it is.
        budget_nats: beta_used: 0 on unanimity, else the step's (capped) budget.
        noise: sigma; 0 on unanimity, infinite where a fair coin is released.
    """

    agreement: float
    unanimous: bool
    budget_nats: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """Options of the ledger that the paper leaves open, or to its appendices.

    Attributes:
        directions: K, releases a step (appendix M): each has a K-th of the step's budget.
        within_step: Whether the posterior follows each of a step's releases (`"sequential"`), or is brought
            up to date after the last of them (`"joint"`). Both hold: given the secret the releases are
            independent, so that their nats add up to no more than the shares.
        conditioned_on: What the posterior is conditioned on: the noisy `"values"`, as printed, or the
            `"bits"` that are released. The charge is that of the value in both cases; a bit tells no more.
        mi_steps: Steps that the budget is for; those after them have none (section 6, the hybrid). None for
            all.
        quadrature: `"gauss-hermite"`, as printed, or `"certified"`: noise whose information is proven to be
            at most the budget.

    Raises `InputError`: a field is out of range.
    """

    directions: int = 1
    within_step: str = "sequential"
    conditioned_on: str = "values"
    mi_steps: int | None = None
    quadrature: str = "gauss-hermite"

    def __post_init__(self) -> None:
        require("directions", self.directions, self.directions >= 1, ">= 1")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if self.mi_steps is not None:
            require("mi_steps", self.mi_steps, self.mi_steps >= 1, ">= 1")


PRINTED = LedgerOptions()
"""One release a step, and all as section 3.1 and appendix C have it."""


class PacZeroLedger:
    """The ledger of Algorithm 1: posterior, budget, noise.

    For each release call `charge(signs)`, and, if it is not unanimous and its noise is finite,
    `observe(signs, noisy_value)` with the noisy value (before its sign is taken). A step has K releases.

    The charges are summed without rounding, and never exceed the total, to the last bit.
    """

    def __init__(
        self,
        *,
        total_nats: float,
        steps: int,
        candidates: int,
        variant: Literal["mi", "zpl"] = "mi",
        allocation: Literal["adaptive", "uniform"] = "adaptive",
        capped: bool = True,
        tolerance: float = 0.0,
        options: LedgerOptions = PRINTED,
    ) -> None:
        """Start a run.

        Args:
            total_nats: MI_tot >= 0; ignored by PACZero-ZPL, which spends nothing.
            steps: T >= 1.
            candidates: M >= 2.
            variant: PACZero-MI (section 3.1) or PACZero-ZPL (section 3.2).
            allocation: Eq. 6, or MI_tot / T in every step, which section 3.1 compares with.
            capped: Whether the budget is capped at 0.999 h(q+) (appendix C), or not (Algorithm 1's box).
            tolerance: Distance from unanimity that counts as such; 0 as in Algorithm 1, 1e-12 in appendix C.
            options: What the paper leaves open.

        Raises `InputError`: a parameter is out of range.
        """
        require("total_nats", total_nats, 0 <= total_nats < math.inf, "finite and >= 0")
        require("steps", steps, steps >= 1, ">= 1")
        require("candidates", candidates, candidates >= 2, ">= 2")
        require("tolerance", tolerance, 0 <= tolerance <= 0.5, "in [0, 1/2]")
        self.total_nats = total_nats if variant == "mi" else 0.0
        self.steps = steps
        self.variant = variant
        self.allocation = allocation
        self.capped = capped
        self.tolerance = tolerance
        self.options = options
        self.step = 0
        self._releases = 0
        self._share = 0.0
        self._left = Fraction(self.total_nats)
        # Logarithms of the posterior up to a common constant; -inf of a candidate that is out, and stays out.
        self._logs: FloatArray = np.zeros(candidates)
        self._pending: FloatArray = np.zeros(candidates)
        self._last: Charge | None = None

    @property
    def posterior(self) -> FloatArray:
        """Probability of each candidate, shape `(M,)`."""
        weights = self._weights()
        posterior: FloatArray = weights / weights.sum()
        return posterior

    @property
    def entropy_nats(self) -> float:
        """Entropy of the posterior; ln M while nothing is known."""
        return float(special.entr(self.posterior).sum())

    @property
    def used_nats(self) -> float:
        """The charges so far; at most the total."""
        return float(Fraction(self.total_nats) - self._left)

    def charge(self, signs: FloatArray) -> Charge:
        """Charge the next release to the mutual-information budget.

        `signs`: every candidate's sign, +1 or -1, shape `(M,)`. Raises `InputError`: all steps are charged,
        or signs are malformed, or (uncapped) the budget has no noise.
        """
        begins = self._releases % self.options.directions == 0
        require("step", self.step + 1, not begins or self.step < self.steps, f"at most {self.steps}")
        signs = self._checked(signs)
        if begins:
            self.step += 1
            self._share = self._budget() / self.options.directions
        self._releases += 1
        weights = self._weights()
        plus, minus = float(weights[signs > 0].sum()), float(weights[signs < 0].sum())
        agreement, fewer = plus / (plus + minus), min(plus, minus) / (plus + minus)
        possible = signs[self._logs > -math.inf]
        exact = bool(np.all(possible > 0) or np.all(possible < 0))
        if exact or (self.tolerance > 0 and fewer <= self.tolerance):
            self._last = Charge(agreement=agreement, unanimous=True, budget_nats=0.0, noise=0.0)
        else:
            self._last = self._noised(agreement, fewer)
        self._left -= Fraction(self._last.budget_nats)
        self._settle()
        return self._last

    def _noised(self, agreement: float, fewer: float) -> Charge:
        """A release on disagreement; `fewer` is the smaller side's weight."""
        budget = self._share
        if Fraction(budget) > self._left:
            budget = float(self._left)
            if Fraction(budget) > self._left:
                budget = math.nextafter(budget, 0.0)
        if self.capped:
            budget = min(budget, CAP * binary_entropy_nats(fewer))
        if budget < LEAST_BUDGET:
            return Charge(agreement=agreement, unanimous=False, budget_nats=0.0, noise=math.inf)
        if not self.capped and budget >= binary_entropy_nats(fewer):
            raise InputError(
                f"capped must be true for these budgets, got False: step {self.step} may spend {budget:.6g} "
                f"nats, and its sign is worth {binary_entropy_nats(fewer):.6g}, so no noise spends as much"
            )
        if self.options.quadrature == "certified":
            noise = binary_channel.noise_for(fewer, budget)
        else:
            noise = noise_for(agreement=fewer, budget_nats=budget)
        return Charge(agreement=agreement, unanimous=False, budget_nats=budget, noise=noise)

    def observe(self, signs: FloatArray, noisy_value: float) -> None:
        """Algorithm 1, line 14: update the posterior by the noisy value of the release just charged.

        Raises `InputError`: no step was charged, or signs are malformed.
        """
        signs = self._checked(signs)
        if self._last is None:
            raise InputError("observe must follow charge, got no charged step")
        noise = self._last.noise
        if self._last.unanimous or math.isinf(noise):
            return
        if self.options.conditioned_on == "bits":
            bit = 1.0 if noisy_value >= 0 else -1.0
            self._pending += special.log_ndtr(bit * signs / noise)
        else:
            # -(value - sign)^2 / (2 noise^2), without what all candidates have in common.
            self._pending += signs * (noisy_value / noise / noise)
        self._settle()

    def _settle(self) -> None:
        """Bring the posterior up to date; in a joint step once its last release is charged."""
        due = self.options.within_step == "sequential" or self._releases % self.options.directions == 0
        if due and self._pending.any():
            logs = self._logs + self._pending
            self._logs = logs - logs.max()
            self._pending = np.zeros(logs.shape)

    def _weights(self) -> FloatArray:
        """The posterior up to a factor; the likeliest candidate has 1."""
        return np.exp(self._logs).astype(np.float64)

    def _budget(self) -> float:
        """What the step that begins may use."""
        steps = self.steps if self.options.mi_steps is None else self.options.mi_steps
        if self.step > steps:
            return 0.0
        if self.allocation == "uniform":
            return self.total_nats / steps
        return step_budget_nats(
            total_nats=self.total_nats, used_nats=self.used_nats, step=self.step, steps=steps
        )

    def _checked(self, signs: FloatArray) -> FloatArray:
        checked = np.asarray(signs, dtype=np.float64)
        if checked.shape != self._logs.shape or not np.all(np.abs(checked) == 1):
            raise InputError(f"signs must be +1 or -1, one for each of {self._logs.size} candidates")
        return checked


@register("accountant", "paczero")
@dataclass(frozen=True)
class PacZeroAccountant:
    """PACZero's ledger in nats about the secret subset; refuses every question about a DP epsilon."""

    name: str = "paczero"

    def ledger(self, *, total_nats: float, steps: int, candidates: int) -> PacZeroLedger:
        """A fresh PACZero-MI ledger, as section 3.1 and appendix C run it."""
        return PacZeroLedger(total_nats=total_nats, steps=steps, candidates=candidates, tolerance=TOLERANCE)

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Never: the paper claims no DP epsilon (sections 1 and 6). Raises `UnsupportedError`: always."""
        raise UnsupportedError(
            f"{self.name} counts nats about which subset was trained on, which imply no DP epsilon"
        )
