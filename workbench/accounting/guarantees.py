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
from typing import Any, ClassVar

import numpy as np
from scipy import special

from workbench.core.arguments import number, one_of
from workbench.core.errors import InputError, unknown_name
from workbench.core.keys import JSON
from workbench.core.one_line import object_line
from workbench.interfaces import FloatArray, Guarantee, Secret


def _prior(prior: float) -> float:
    return number("prior", prior, above=0, below=1)


def _rates(fpr: Any) -> FloatArray:
    """False-positive rates as float64; refuses what is no array of numbers in [0, 1]."""
    given = np.asarray(fpr)
    rates: FloatArray = given.astype(np.float64) if given.dtype.kind in "iuf" else np.full(1, np.nan)
    if not np.all((rates >= 0.0) & (rates <= 1.0)):
        raise InputError(f"fpr must lie in [0, 1], got {object_line(fpr)}")
    return rates


class _Plain(Guarantee):
    def to_json(self) -> dict[str, JSON]:
        """Plain form: the currency, and each parameter by name."""
        numbers = {name: str(value) if name == "secret" else value for name, value in vars(self).items()}
        return {"currency": self.currency, **numbers}


@dataclass(frozen=True, kw_only=True)
class ApproximateDP(_Plain):
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
        object.__setattr__(self, "epsilon", number("epsilon", self.epsilon, least=0, below=math.inf))
        object.__setattr__(self, "delta", number("delta", self.delta, least=0, below=1))

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """min(1, e^eps fpr + delta, 1 - e^-eps (1 - delta - fpr)); Kairouz et al. 2015, section 2."""
        rates = _rates(fpr)
        with np.errstate(over="ignore"):
            steep = np.where(rates > 0.0, np.exp(np.minimum(self.epsilon, 700.0)) * rates, 0.0) + self.delta
        flat = 1.0 - np.exp(-self.epsilon) * (1.0 - self.delta - rates)
        return np.asarray(np.clip(np.minimum(steep, flat), 0.0, 1.0), dtype=np.float64)

    def max_success(self, prior: float = 0.5) -> float:
        """Best value of prior * TPR + (1 - prior) * (1 - FPR) at the corners of the trade-off curve."""
        prior = _prior(prior)
        corner = (1.0 - self.delta) / (1.0 + math.exp(min(self.epsilon, 700.0)))
        rates = np.array([0.0, corner, 1.0 - self.delta])
        success = prior * self.max_tpr(rates) + (1.0 - prior) * (1.0 - rates)
        return float(max(np.max(success), prior, 1.0 - prior))

    def describe(self) -> str:
        """`(epsilon = 1, delta = 1e-05)-DP`."""
        return f"(epsilon = {self.epsilon:g}, delta = {self.delta:g})-DP"


@dataclass(frozen=True, kw_only=True)
class GaussianDP(_Plain):
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
        object.__setattr__(self, "mu", number("mu", self.mu, least=0, below=math.inf))

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """The largest true-positive rate at each `fpr`: Phi(Phi^-1(fpr) + mu)."""
        rates = _rates(fpr)
        return np.asarray(special.ndtr(special.ndtri(rates) + self.mu), dtype=np.float64)

    def max_success(self, prior: float = 0.5) -> float:
        """Success of the likelihood-ratio test at the threshold that the prior asks for."""
        prior = _prior(prior)
        if self.mu == 0.0:
            return max(prior, 1.0 - prior)
        threshold = self.mu / 2.0 + math.log((1.0 - prior) / prior) / self.mu
        tpr, tnr = special.ndtr(self.mu - threshold), special.ndtr(threshold)
        return float(prior * tpr + (1.0 - prior) * tnr)

    def describe(self) -> str:
        """The guarantee in words: `mu-GDP with mu = 1`."""
        return f"mu-GDP with mu = {self.mu:g}"


def _binary_renyi(p: FloatArray, q: FloatArray, alpha: float) -> FloatArray:
    """Rényi divergence of order alpha, nats, of Bernoulli(p) from Bernoulli(q); p, q in (0, 1)."""
    with np.errstate(divide="ignore"):
        ones = alpha * np.log(p) + (1.0 - alpha) * np.log(q)
        zeros = alpha * np.log1p(-p) + (1.0 - alpha) * np.log1p(-q)
    return np.asarray(np.logaddexp(ones, zeros) / (alpha - 1.0), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RenyiDP(_Plain):
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
        object.__setattr__(self, "alpha", number("alpha", self.alpha, above=1, below=math.inf))
        object.__setattr__(self, "epsilon", number("epsilon", self.epsilon, least=0, below=math.inf))

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """Largest t for which Bernoulli(t) and Bernoulli(fpr) keep the divergence, both ways.

        A test's outcome is post-processing, so no test does better; the pair itself keeps the guarantee,
        so the curve is attained. Found by bisection, rounded upwards.
        """
        rates = _rates(fpr)
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
        from scipy import optimize  # here, for it takes longer to import than all the rest

        prior = _prior(prior)

        def loss(rate: float) -> float:
            return float(-(prior * self.max_tpr(np.array([rate]))[0] + (1.0 - prior) * (1.0 - rate)))

        best = optimize.minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-12})
        return max(float(-best.fun), prior, 1.0 - prior)

    def describe(self) -> str:
        """`Renyi-DP with epsilon(alpha = 8) = 0.5`."""
        return f"Renyi-DP with epsilon(alpha = {self.alpha:g}) = {self.epsilon:g}"


def binary_kl_nats(p: float, q: float) -> float:
    """KL divergence, nats, of Bernoulli(p) from Bernoulli(q); p in [0, 1], q in (0, 1).

    Raises:
        InputError: p or q is out of range.
    """
    return _binary_kl(number("p", p, least=0, most=1), number("q", q, above=0, below=1))


def _binary_kl(p: float, q: float) -> float:
    return float(special.rel_entr(p, q) + special.rel_entr(1.0 - p, 1.0 - q))


@dataclass(frozen=True, kw_only=True)
class MutualInformation(_Plain):
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
        object.__setattr__(self, "nats", number("nats", self.nats, least=0, below=math.inf))
        object.__setattr__(self, "secret", one_of(Secret, "secret", self.secret))

    def max_success(self, prior: float = 0.5) -> float:
        """Largest p with KL(p || b) <= nats, where b is the success of guessing from the prior alone.

        Xiao & Devadas 2023, Theorem 1.
        """
        from scipy import optimize

        prior = _prior(prior)
        blind = max(prior, 1.0 - prior)
        if self.nats >= _binary_kl(1.0, blind):
            return 1.0
        if self.nats == 0.0:
            return blind
        return float(optimize.brentq(lambda p: _binary_kl(p, blind) - self.nats, blind, 1.0, xtol=1e-15))

    def describe(self) -> str:
        """`mutual information of at most 0.25 nats about the record`."""
        return f"mutual information of at most {self.nats:g} nats about the {self.secret}"


@dataclass(frozen=True, kw_only=True)
class NoGuarantee(_Plain):
    """No promise: every test is allowed."""

    currency: ClassVar[str] = "none"

    def max_tpr(self, fpr: FloatArray) -> FloatArray:
        """The largest true-positive rate: 1 at every `fpr`."""
        return np.ones_like(_rates(fpr))

    def max_success(self, prior: float = 0.5) -> float:
        """The largest success probability of a guess: 1."""
        prior = _prior(prior)
        return 1.0

    def describe(self) -> str:
        """The guarantee in words: `no guarantee`."""
        return "no guarantee"


def guarantee_from_json(form: Mapping[str, JSON]) -> Guarantee:
    """Read what `Guarantee.to_json` wrote.

    Raises:
        InputError: it is no object, of unknown currency, or a parameter is missing or out of range.
    """
    if not isinstance(form, Mapping):
        raise InputError(f"form must be an object with a currency, got {object_line(form)}")
    known: dict[str, type[Guarantee]] = {
        kind.currency: kind for kind in (ApproximateDP, GaussianDP, RenyiDP, MutualInformation, NoGuarantee)
    }
    parameters = dict(form)
    currency = str(parameters.pop("currency", "(missing)"))
    if currency not in known:
        raise unknown_name("currency", currency, known)
    try:
        return known[currency](**parameters)
    except TypeError as error:
        raise InputError(f"guarantee {currency!r} has the wrong parameters: {sorted(parameters)}") from error
