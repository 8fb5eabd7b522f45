"""Guarantees in their own currencies, and the one currency in which all of them compare.

`max_success(prior)` is the largest probability with which anybody can guess membership; every guarantee
has it. A trade-off curve `max_tpr(fpr)` exists for those that bound every test of two neighbours.

>>> round(ApproximateDP(epsilon=1.0, delta=1e-5).max_success(), 3)
0.731
>>> round(MutualInformation(nats=0.25, secret=Secret.RECORD).max_success(), 2)
0.84
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import optimize, special

from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.keys import JSON
from workbench.interfaces import FloatArray, Guarantee, Secret


def _require(name: str, value: float, condition: bool, wanted: str) -> None:
    """Raise the one-line `InputError` for a number out of range (NaN included)."""
    if not condition:
        raise InputError(f"{name} must be {wanted}, got {value:g}")


def _require_prior(prior: float) -> None:
    _require("prior", prior, 0.0 < prior < 1.0, "in (0, 1)")


def _require_rates(fpr: FloatArray) -> FloatArray:
    rates = np.asarray(fpr, dtype=np.float64)
    if rates.size and not (np.all(rates >= 0.0) and np.all(rates <= 1.0)):
        raise InputError("fpr must lie in [0, 1]")
    return rates


@dataclass(frozen=True, kw_only=True)
class ApproximateDP(Guarantee):
    """(epsilon, delta)-differential privacy (Dwork et al. 2006).

    Attributes:
        epsilon: In [0, inf).
        delta: In [0, 1).

    Raises:
        InputError: a parameter is out of range.
    """

    currency: ClassVar[str] = "(epsilon, delta)-DP"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _require("epsilon", self.epsilon, 0.0 <= self.epsilon < math.inf, "finite and >= 0")
        _require("delta", self.delta, 0.0 <= self.delta < 1.0, "in [0, 1)")

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """min(1, e^eps fpr + delta, 1 - e^-eps (1 - delta - fpr)); Kairouz et al. 2015, section 2."""
        rates = _require_rates(fpr)
        with np.errstate(over="ignore"):
            steep = np.where(rates > 0.0, np.exp(np.minimum(self.epsilon, 700.0)) * rates, 0.0) + self.delta
        flat = 1.0 - np.exp(-self.epsilon) * (1.0 - self.delta - rates)
        return np.asarray(np.clip(np.minimum(steep, flat), 0.0, 1.0), dtype=np.float64)

    def max_success(self, prior: float = 0.5) -> float:
        """Best value of prior * TPR + (1 - prior) * (1 - FPR) at the corners of the trade-off curve."""
        _require_prior(prior)
        corner = (1.0 - self.delta) / (1.0 + math.exp(min(self.epsilon, 700.0)))
        rates = np.array([0.0, corner, 1.0 - self.delta])
        success = prior * self.max_tpr(rates) + (1.0 - prior) * (1.0 - rates)
        return float(max(np.max(success), prior, 1.0 - prior))

    def describe(self) -> str:
        """`(epsilon = 1, delta = 1e-05)-DP`."""
        return f"(epsilon = {self.epsilon:g}, delta = {self.delta:g})-DP"

    def to_json(self) -> dict[str, JSON]:
        """Plain form."""
        return {"currency": self.currency, "epsilon": self.epsilon, "delta": self.delta}


@dataclass(frozen=True, kw_only=True)
class GaussianDP(Guarantee):
    """mu-Gaussian differential privacy (Dong, Roth & Su 2022).

    Attributes:
        mu: In [0, inf); the guarantee says that telling neighbours apart is no easier than telling
            N(0, 1) from N(mu, 1).

    Raises:
        InputError: mu is out of range.
    """

    currency: ClassVar[str] = "mu-GDP"
    mu: float

    def __post_init__(self) -> None:
        _require("mu", self.mu, 0.0 <= self.mu < math.inf, "finite and >= 0")

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """Phi(Phi^-1(fpr) + mu)."""
        rates = _require_rates(fpr)
        return np.asarray(special.ndtr(special.ndtri(rates) + self.mu), dtype=np.float64)

    def max_success(self, prior: float = 0.5) -> float:
        """Success of the likelihood-ratio test at the threshold that the prior asks for."""
        _require_prior(prior)
        if self.mu == 0.0:
            return max(prior, 1.0 - prior)
        threshold = self.mu / 2.0 + math.log((1.0 - prior) / prior) / self.mu
        tpr, tnr = special.ndtr(self.mu - threshold), special.ndtr(threshold)
        return float(prior * tpr + (1.0 - prior) * tnr)

    def describe(self) -> str:
        """`mu-GDP with mu = 1`."""
        return f"mu-GDP with mu = {self.mu:g}"

    def to_json(self) -> dict[str, JSON]:
        """Plain form."""
        return {"currency": self.currency, "mu": self.mu}


def _binary_renyi(p: FloatArray, q: FloatArray, alpha: float) -> FloatArray:
    """Rényi divergence of order alpha, nats, of Bernoulli(p) from Bernoulli(q); p, q in (0, 1)."""
    with np.errstate(divide="ignore"):
        ones = alpha * np.log(p) + (1.0 - alpha) * np.log(q)
        zeros = alpha * np.log1p(-p) + (1.0 - alpha) * np.log1p(-q)
    return np.asarray(np.logaddexp(ones, zeros) / (alpha - 1.0), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RenyiDP(Guarantee):
    """(alpha, epsilon)-Rényi differential privacy (Mironov 2017), in both directions.

    Attributes:
        alpha: Order, in (1, inf).
        epsilon: Divergence in nats, in [0, inf).

    Raises:
        InputError: a parameter is out of range.
    """

    currency: ClassVar[str] = "Renyi-DP"
    alpha: float
    epsilon: float

    def __post_init__(self) -> None:
        _require("alpha", self.alpha, 1.0 < self.alpha < math.inf, "finite and > 1")
        _require("epsilon", self.epsilon, 0.0 <= self.epsilon < math.inf, "finite and >= 0")

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """Largest t for which Bernoulli(t) and Bernoulli(fpr) keep the divergence, both ways.

        A test's outcome is post-processing, so no test does better; the pair itself keeps the guarantee,
        so the curve is attained. Found by bisection, rounded upwards.
        """
        rates = _require_rates(fpr)
        low, high = rates.copy(), np.ones_like(rates)
        inner = (rates > 0.0) & (rates < 1.0)
        if not np.any(inner):
            return rates.copy()
        q = np.clip(rates, 1e-300, 1.0 - 1e-16)
        for _ in range(80):
            middle = 0.5 * (low + high)
            p = np.clip(middle, 1e-300, 1.0 - 1e-16)
            divergence = np.maximum(_binary_renyi(p, q, self.alpha), _binary_renyi(q, p, self.alpha))
            kept = divergence <= self.epsilon
            low, high = np.where(kept, middle, low), np.where(kept, high, middle)
        return np.asarray(np.where(inner, high, rates), dtype=np.float64)

    def max_success(self, prior: float = 0.5) -> float:
        """Maximum of prior * max_tpr(f) + (1 - prior)(1 - f), a concave function of f."""
        _require_prior(prior)

        def loss(rate: float) -> float:
            return float(-(prior * self.max_tpr(np.array([rate]))[0] + (1.0 - prior) * (1.0 - rate)))

        best = optimize.minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-12})
        return max(float(-best.fun), prior, 1.0 - prior)

    def describe(self) -> str:
        """`Renyi-DP with epsilon(alpha = 8) = 0.5`."""
        return f"Renyi-DP with epsilon(alpha = {self.alpha:g}) = {self.epsilon:g}"

    def to_json(self) -> dict[str, JSON]:
        """Plain form."""
        return {"currency": self.currency, "alpha": self.alpha, "epsilon": self.epsilon}


def binary_kl_nats(p: float, q: float) -> float:
    """KL divergence, nats, of Bernoulli(p) from Bernoulli(q); p in [0, 1], q in (0, 1)."""
    return float(special.rel_entr(p, q) + special.rel_entr(1.0 - p, 1.0 - q))


@dataclass(frozen=True, kw_only=True)
class MutualInformation(Guarantee):
    """The release carries at most so many nats about the secret (PAC privacy; Xiao & Devadas 2023).

    It is an average over the prior of the secret, so it bounds no single pair of neighbours and has no
    trade-off curve.

    Attributes:
        nats: In [0, inf).
        secret: What is kept secret: one record given the others, or which candidate subset.

    Raises:
        InputError: nats is out of range.
    """

    currency: ClassVar[str] = "mutual information"
    nats: float
    secret: Secret

    def __post_init__(self) -> None:
        _require("nats", self.nats, 0.0 <= self.nats < math.inf, "finite and >= 0")

    def max_success(self, prior: float = 0.5) -> float:
        """Largest p with KL(p || b) <= nats, where b is the success of guessing from the prior alone.

        Xiao & Devadas 2023, Theorem 1, as PACZero's Eq. 2 uses it.
        """
        _require_prior(prior)
        blind = max(prior, 1.0 - prior)
        if self.nats >= binary_kl_nats(1.0, blind):
            return 1.0
        if self.nats == 0.0:
            return blind
        return float(optimize.brentq(lambda p: binary_kl_nats(p, blind) - self.nats, blind, 1.0, xtol=1e-15))

    def describe(self) -> str:
        """`mutual information of at most 0.25 nats about the record`."""
        return f"mutual information of at most {self.nats:g} nats about the {self.secret}"

    def to_json(self) -> dict[str, JSON]:
        """Plain form."""
        return {"currency": self.currency, "nats": self.nats, "secret": str(self.secret)}


@dataclass(frozen=True, kw_only=True)
class NoGuarantee(Guarantee):
    """No promise: every test is allowed."""

    currency: ClassVar[str] = "none"

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """One everywhere."""
        return np.ones_like(_require_rates(fpr))

    def max_success(self, prior: float = 0.5) -> float:
        """One."""
        _require_prior(prior)
        return 1.0

    def describe(self) -> str:
        """`no guarantee`."""
        return "no guarantee"

    def to_json(self) -> dict[str, JSON]:
        """Plain form."""
        return {"currency": self.currency}


def nats_of_epsilon(epsilon: float, prior: float = 0.5) -> float:
    """The mutual information whose `max_success` equals that of pure epsilon-DP at the same prior.

    An equality of attack success, not a conversion of guarantees: neither implies the other. PACZero,
    section 2, uses it (0.33 nats and epsilon = 2; 0.68 nats and epsilon = 6).

    Raises:
        InputError: epsilon or prior is out of range.
    """
    success = ApproximateDP(epsilon=epsilon, delta=0.0).max_success(prior)
    return binary_kl_nats(success, max(prior, 1.0 - prior))


def guarantee_from_json(form: Mapping[str, JSON]) -> Guarantee:
    """Read what `Guarantee.to_json` wrote.

    Raises:
        InputError: unknown currency, or a parameter that is missing or out of range.
    """
    known: dict[str, type[Guarantee]] = {
        kind.currency: kind for kind in (ApproximateDP, GaussianDP, RenyiDP, MutualInformation, NoGuarantee)
    }
    parameters = dict(form)
    currency = str(parameters.pop("currency", "(missing)"))
    if currency not in known:
        raise unknown_name("currency", currency, known)
    if "secret" in parameters:
        parameters["secret"] = Secret(parameters["secret"])
    try:
        return known[currency](**parameters)
    except TypeError as error:
        raise InputError(f"guarantee {currency!r} has the wrong parameters: {sorted(parameters)}") from error


def require_approximate_dp(guarantee: Guarantee, asker: str) -> ApproximateDP:
    """The guarantee, if it is (epsilon, delta)-DP.

    Raises:
        UnsupportedError: it is of another currency, which is never converted in silence.
    """
    if not isinstance(guarantee, ApproximateDP):
        raise UnsupportedError(f"{asker} needs an (epsilon, delta)-DP guarantee, got {guarantee.describe()}")
    return guarantee
