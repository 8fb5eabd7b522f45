"""The power of an audit before anything is run: what the judge's own bounds would show of an attack.

An attack's strength is a trade-off curve. Its scores are drawn, with the game's coins, and judged by the
tests that would decide (`workbench.estimation.deciding`), again and again; of a perfect attack only the coins
are random, and their quantiles stand for all of them.

>>> strength = Strength.parse("mu=1")
>>> strength.describe(), round(strength.most(ApproximateDP(epsilon=1, delta=1e-5), ONE_RUN), 2)
('mu = 1', 4.38)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from workbench.accounting import ApproximateDP
from workbench.accounting import subsampled_gaussian as accountant
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.arguments import number
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.one_line import one_line
from workbench.estimation.deciding import (
    GAUSSIAN_SHARE,
    deciding_tests,
    free_trials_needed,
    with_participation,
)
from workbench.estimation.one_run import coin_sample_size
from workbench.estimation.perfect import ALMOST_ALWAYS, bound_of_coins, perfect_bound
from workbench.estimation.searching import smallest_count
from workbench.interfaces import BoolArray, Evidence, Family, FloatArray, GameTerms, Trials

REPETITIONS = 100
"""Simulated experiments at one number of trials: shares are known to 0.05 (one standard error)."""

MOST_SIMULATED = 1 << 15
"""Where the search for a number of trials of an imperfect attack ends."""

_COINS = 200

ONE_RUN = GameTerms(description="planned", trials=Trials.ONE_RUN)
"""Labels by fair coins, one run."""


@dataclass(frozen=True, kw_only=True)
class Strength:
    """How well an attack tells members from others: perfectly, as two normals, or at one point of its ROC.

    Attributes:
        mu: Distance of two unit normals, > 0; None for another kind.
        rates: TPR and FPR at one threshold, 0 < FPR < TPR <= 1, with nothing told on either side of it; None
            for another kind. With neither the attack is perfect.

    Raises `InputError`: a number is out of range.
    """

    mu: float | None = None
    rates: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.mu is not None:
            object.__setattr__(self, "mu", number("mu", self.mu, above=0, most=100))
        if self.rates is not None:
            tpr = number("tpr", self.rates[0], above=0, most=1)
            fpr = number("fpr", self.rates[1], above=0, below=1)
            if not fpr < tpr:
                raise InputError(f"tpr must be above fpr, got {tpr:g} and {fpr:g}")
            object.__setattr__(self, "rates", (tpr, fpr))

    @classmethod
    def parse(cls, text: str) -> Strength:
        """Reads `perfect`, `mu=1.5`, or `tpr=0.2,fpr=0.01`. Raises `InputError`: it is none of them."""
        parts = [part.partition("=")[::2] for part in text.replace(" ", "").split(",")]
        pairs = dict(parts)
        if len(pairs) < len(parts):
            twice = next(name for name, _ in parts if [other for other, _ in parts].count(name) > 1)
            raise InputError(f"{twice!r} is given twice in {one_line(repr(text), longest=60)}")
        try:
            if text.strip() == "perfect":
                return cls()
            if set(pairs) == {"mu"}:
                return cls(mu=float(pairs["mu"]))
            if set(pairs) == {"tpr", "fpr"}:
                return cls(rates=(float(pairs["tpr"]), float(pairs["fpr"])))
        except InputError:
            raise
        except ValueError:
            pass
        shown = one_line(repr(text), longest=60)
        raise InputError(f"attack strength must be perfect, mu=..., or tpr=...,fpr=..., got {shown}")

    @property
    def is_perfect(self) -> bool:
        """Whether scores are the labels."""
        return self.mu is None and self.rates is None

    def describe(self) -> str:
        """Returns the strength in words."""
        if self.mu is not None:
            return f"mu = {self.mu:g}"
        return "perfect" if self.rates is None else f"TPR {self.rates[0]:g} at FPR {self.rates[1]:g}"

    def scores(self, members: BoolArray, generator: np.random.Generator) -> FloatArray:
        """Draws a score for each label, shape `(n,)`."""
        if self.mu is not None:
            return generator.normal(size=members.size) + self.mu * members
        if self.rates is None:
            return members.astype(np.float64)
        told = generator.random(members.size) < np.where(members, *self.rates)
        return told + generator.random(members.size)

    def most(self, stated: ApproximateDP, game: GameTerms) -> float:
        """Returns the epsilon at the claim's delta of the attack's own curve: no number of trials shows more.

        Of a single release, the run's, if the release is Gaussian, or else by the share of its steps in which
        a record takes part.
        """
        q, delta = game.sampling_probability, stated.delta
        if self.mu is not None and game.family is Family.GAUSSIAN and delta > 0.0:
            return accountant.mu_to_run_epsilon(
                self.mu, sampling_probability=q, steps=game.steps, delta=delta
            )
        if self.is_perfect:
            return math.inf
        if game.is_single_release:
            delta = min(delta / q, 0.5)
        if self.mu is not None:
            epsilon = epsilon_of_delta(self.mu, delta) if delta > 0.0 else math.inf
        else:
            assert self.rates is not None
            tpr, fpr = self.rates
            corners = [(tpr - delta) / fpr]
            if not game.is_single_release:
                corners.append((1.0 - fpr - delta) / (1.0 - tpr) if tpr < 1.0 else math.inf)
            epsilon = max(0.0, *(math.log(corner) if corner > 0.0 else 0.0 for corner in corners))
        return with_participation(epsilon, q)


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The bounds that equally likely experiments end with: `lowers`, ascending, shape `(experiments,)`."""

    lowers: FloatArray

    def power(self, epsilon: float) -> float:
        """Returns the probability that the bound exceeds epsilon."""
        return float(np.mean(self.lowers > epsilon))

    def reached(self, probability: float) -> float:
        """Returns the largest epsilon that the bound reaches with this probability, in (0, 1)."""
        size = self.lowers.size
        return float(self.lowers[min(size - 1, math.floor(size * (1.0 - probability) + 1e-9))])


@lru_cache(maxsize=4096)
def outcomes(
    stated: ApproximateDP,
    game: GameTerms,
    strength: Strength,
    n: int,
    *,
    confidence: float,
    seed: int,
    repetitions: int = REPETITIONS,
) -> Outcomes:
    """Returns the bounds that the judge's tests would give of so many trials.

    Args:
        stated: Claim; only its delta is read.
        game: Trials, prior of the coins, family; steps and sampling probability of a single release.
            Independent trials are half members.
        strength: Of the attack, in a trial.
        n: Number of trials, at least 4.
        confidence: Of all deciding tests together.
        seed: Of what is drawn.
        repetitions: Simulated experiments of an imperfect attack.
    """
    if strength.is_perfect:
        return Outcomes(lowers=_perfect(stated, game, n, confidence))
    lowers = np.zeros(repetitions)
    for place in range(repetitions):
        generator = np.random.default_rng([seed, n, place])
        members = np.arange(n) < n // 2
        if game.trials is Trials.ONE_RUN:
            members = generator.random(n) < game.prior
        if not 2 <= int(members.sum()) <= n - 2:
            continue
        scores = strength.scores(members, generator)
        evidence = Evidence(scores=scores, members=members, game=game, attack="planned")
        for test in deciding_tests(stated, evidence, confidence, generator):
            try:
                lowers[place] = max(lowers[place], test(scores).lower)
            except UnsupportedError:
                continue  # The guard of a family refuses some of its own data.
    return Outcomes(lowers=np.sort(lowers))


def _perfect(stated: ApproximateDP, game: GameTerms, n: int, confidence: float) -> FloatArray:
    """Bounds of a perfect attack, ascending, at equally likely numbers of heads."""
    q = game.sampling_probability if game.is_single_release else 1.0
    if stated.delta >= q / 2.0:
        return np.zeros(_COINS)
    size, prior, most = n, game.prior, n
    if game.trials is Trials.INDEPENDENT:
        size, prior = coin_sample_size(n // 2, n - n // 2)
        most = n // 2
    heads = binom.ppf((np.arange(_COINS) + 0.5) / _COINS, size, prior).astype(int)
    bounds = [
        0.0
        if count > most or size - count > max(most, n - most)
        else bound_of_coins(
            size,
            int(count),
            trials=game.trials,
            prior=prior,
            delta=stated.delta / q,
            confidence=_free_confidence(stated, game, confidence),
            top_only=game.is_single_release,
        )
        for count in heads
    ]
    return np.sort([with_participation(bound, q) for bound in bounds])


def perfect_reach(
    game: GameTerms, n: int, *, delta: float, confidence: float, probability: float = ALMOST_ALWAYS
) -> float:
    """Returns the epsilon that a perfect attack's bound of any family reaches with a probability.

    Args:
        game: Trials, prior of the coins; steps and sampling probability of a single release.
        n: Number of trials, at least 2.
        delta: Of the claim, for the whole run.
        confidence: Of this bound.
        probability: Over the coins, in (0, 1).
    """
    q = game.sampling_probability if game.is_single_release else 1.0
    if delta >= q / 2.0:
        return 0.0
    reached = perfect_bound(
        n,
        trials=game.trials,
        prior=game.prior,
        delta=delta / q,
        confidence=confidence,
        probability=probability,
        top_only=game.is_single_release,
    )
    return with_participation(reached, q)


def _free_confidence(stated: ApproximateDP, game: GameTerms, confidence: float) -> float:
    """Of the bound of any family; scores without noise are outside the Gaussian one, whose share is lost."""
    if game.family is not Family.GAUSSIAN or stated.delta == 0.0:
        return confidence
    return 1.0 - (1.0 - GAUSSIAN_SHARE) * (1.0 - confidence)


def trials_for_power(
    stated: ApproximateDP,
    game: GameTerms,
    strength: Strength,
    probability: float,
    *,
    confidence: float,
    seed: int,
) -> int | None:
    """Returns with how many trials such an attack refutes the claim with a probability; None where too many.

    An even number, a thirty-second above the smallest at most; `MOST_SIMULATED` at most for an imperfect
    attack, a million for a perfect one. Arguments as of `outcomes`.
    """
    if strength.most(stated, game) <= stated.epsilon:
        return None
    if strength.is_perfect:
        return free_trials_needed(stated, game, _free_confidence(stated, game, confidence), probability)

    def refutes(half: int) -> bool:
        found = outcomes(stated, game, strength, 2 * half, confidence=confidence, seed=seed)
        return found.power(stated.epsilon) >= probability

    half = smallest_count(refutes, start=2, most=MOST_SIMULATED // 2, coarseness=32)
    return None if half is None else 2 * half
