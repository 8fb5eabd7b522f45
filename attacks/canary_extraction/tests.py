"""Whether a model knows its planted secrets better than others: exact tests by exchanging secrets.

Planted secrets and reference secrets are drawn alike. If the model does not depend on the values of those
that were planted, nothing tells the two kinds apart: every choice of m among all m + K secrets is equally
likely to be the planted one. A statistic's p-value is its rank among such choices, drawn at random, itself
included ((1 + number at least as large) / (1 + draws); Phipson & Smyth 2010): at most a share a of such
p-values is a or less, whatever the model, for any number of draws.

What is said about planted secrets is about these secrets in this training; other trainings may differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workbench.interfaces import BoolArray, FloatArray, IntArray
from workbench.training.secrets import ALPHABET, SECRET_LENGTH

MOST_EXPOSURE_BITS = SECRET_LENGTH * math.log2(len(ALPHABET))
"""Exposure of the likeliest of all 36^10 secrets."""

SAME = 1e-12
"""Sums of the same numbers in another order differ by a smaller share; they count as equal."""

POWER = 0.8
"""With which a test that missed nothing would have found what is said beside it."""


def choices(secrets: int, of: int, draws: int, generator: np.random.Generator) -> IntArray:
    """Random choices of `secrets` different numbers below `of`, in random order, shape `(draws, secrets)`."""
    found: IntArray = generator.integers(of, size=(draws, secrets))
    while True:
        ordered = np.sort(found, axis=1)
        again = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if not again.size:
            return found
        found[again] = generator.integers(of, size=(again.size, secrets))


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """A statistic of the planted secrets beside its values for other choices of as many secrets.

    Attributes:
        observed: Of the planted ones.
        p_value: Exact, one-sided: large values mean memorised.
        expected: Its mean over choices.
        low, high: Ends of the range that holds the middle of its values, 95 % of them.
        values: For the choices, sorted, shape `(draws,)`.
    """

    observed: float
    p_value: float
    expected: float
    low: float
    high: float
    values: FloatArray

    @classmethod
    def of(cls, observed: float, values: FloatArray) -> Exchanged:
        """From the statistic's values for random choices."""
        if not math.isfinite(observed):
            nothing = float("nan")
            return cls(
                observed=observed, p_value=1.0, expected=nothing, low=nothing, high=nothing, values=values[:0]
            )
        larger = int(np.sum(values >= observed - SAME * abs(observed)))
        low, high = np.quantile(values, [0.025, 0.975])
        return cls(
            observed=observed,
            p_value=(1 + larger) / (1 + len(values)),
            expected=float(values.mean()),
            low=float(low),
            high=float(high),
            values=np.sort(values),
        )

    def least(self, significance: float) -> float:
        """Least value that would be significant; infinite where the draws are too few for any."""
        allowed = math.floor(significance * (1 + len(self.values)) + 1e-9) - 1
        if not 0 <= allowed < len(self.values):
            return math.inf
        # Above this one stand no more than `allowed` draws.
        value = float(self.values[len(self.values) - 1 - allowed])
        return float(np.nextafter(value + 2.0 * SAME * abs(value), math.inf))


def of_means(values: FloatArray, planted: int, drawn: IntArray) -> Exchanged:
    """The mean of a number over the planted secrets.

    Args:
        values: The number for each secret, planted ones first, shape `(m + K,)`.
        planted: m.
        drawn: Of `choices`.
    """
    return Exchanged.of(float(values[:planted].mean()), values[drawn].mean(axis=1))


@dataclass(frozen=True, kw_only=True)
class Exposures:
    """How far up the planted secrets stand among the references, by likelihood after the prompt.

    Attributes:
        bits: Exposure of each planted secret, `log2(K + 1) - log2(rank)` (Carlini et al. 2019, section 4),
            shape `(m,)`; by chance 1.44 bits on average.
        ranks: Rank of each among the K references and itself, 1 being the likeliest; shape `(m,)`.
        mean: The mean of the bits, against exchanged secrets.
        null: Bits of each of the m secrets of every choice, shape `(draws, m)`.
        references: K.
        tied: References that are exactly as likely as each secret, shape `(m,)`; ranks break such ties at
            random.
        above: References that are likelier, shape `(m,)`.
    """

    bits: FloatArray
    ranks: IntArray
    mean: Exchanged
    null: FloatArray
    references: int
    tied: IntArray
    above: IntArray

    @property
    def best_p_value(self) -> float:
        """Of the likeliest planted secret, Bonferroni over all m."""
        return min(1.0, len(self.ranks) * float(self.ranks.min()) / (self.references + 1))

    def memorised(self, significance: float) -> BoolArray:
        """Which secrets are memorised, each tested by its own rank, all errors shared by Holm (1979).

        A rank of a secret that the model does not depend on is uniform over 1 to K + 1, so that
        `rank / (K + 1)` is an exact p-value.
        """
        p_values = self.ranks / (self.references + 1)
        order = np.argsort(p_values, kind="stable")
        thresholds = significance / np.arange(len(order), 0, -1)
        passing = np.cumprod(p_values[order] <= thresholds).astype(bool)
        found = np.zeros(len(order), dtype=np.bool_)
        found[order] = passing
        return found

    def interval(self, confidence: float) -> tuple[float, float]:
        """An interval for the secrets' mean exposure among all secrets there are, in bits.

        A secret's exposure among all 36^10 is `-log2` of the share s of secrets that are at least as likely.
        Of K independent references each is so with probability s, whatever the model does: Clopper-Pearson
        intervals of the m shares, at 1 - confidence over m each (Bonferroni), hold together; their ends give
        those of the mean. Nothing is assumed of m, or of how exposures of one training depend on each other.
        """
        from scipy.stats import beta

        error = (1.0 - confidence) / (2 * len(self.ranks))
        count, most, least_above = self.references, self.above + self.tied, self.above
        upper = np.where(most < count, beta.isf(error, most + 1, np.maximum(count - most, 1)), 1.0)
        lower = np.where(
            least_above > 0, beta.ppf(error, np.maximum(least_above, 1), count - least_above + 1), 0.0
        )
        least = 2.0**-MOST_EXPOSURE_BITS
        return (
            float(np.mean(-np.log2(np.maximum(upper, least)))),
            float(np.mean(-np.log2(np.maximum(lower, least)))),
        )

    def secrets_for_power(self, significance: float) -> int:
        """Least number of fully memorised secrets that the test of the mean finds four times in five.

        The others are taken to stand where chance puts them; m + 1 where even all would not do.
        """
        least, secrets = self.mean.least(significance), len(self.bits)
        most = math.log2(self.references + 1)
        for count in range(secrets + 1):
            means = (count * most + self.null[:, count:].sum(axis=1)) / secrets
            if float(np.mean(means >= least)) >= POWER:
                return count
        return secrets + 1


def exposures(likelihoods: FloatArray, drawn: IntArray, generator: np.random.Generator) -> Exposures:
    """Ranks and exposures of planted secrets, and what other choices of secrets would have had.

    Args:
        likelihoods: Log-likelihood of every secret, planted ones first, after the prompt of each planted one,
            shape `(m, m + K)`; or after one prompt for all, shape `(1, m + K)`.
        drawn: Of `choices`: m among m + K.
        generator: Breaks ties.
    """
    rows, everything = likelihoods.shape
    secrets = drawn.shape[1]
    # Positions from the likeliest on; equal likelihoods in a random order, which exchanges like all else.
    ties = generator.permutation(everything)
    places = np.empty((rows, everything), dtype=np.int64)
    for row in range(rows):
        order = np.lexsort((ties, -likelihoods[row]))
        places[row, order] = np.arange(everything)

    def ranks(chosen: IntArray) -> IntArray:
        """Rank of each chosen secret after its prompt among all that are not chosen, and itself."""
        found = np.empty(chosen.shape, dtype=np.int64)
        for secret in range(secrets):
            row = places[secret if rows > 1 else 0][chosen]
            own = row[:, secret]
            found[:, secret] = own - (row < own[:, None]).sum(axis=1) + 1
        return found

    references = everything - secrets
    own = likelihoods[np.arange(secrets) if rows > 1 else 0, np.arange(secrets)][:, None]
    others = likelihoods[:, secrets:]
    observed = ranks(np.arange(secrets)[None, :])[0]
    most = math.log2(references + 1)
    null = most - np.log2(ranks(drawn))
    bits = most - np.log2(observed)
    return Exposures(
        bits=bits,
        ranks=observed,
        mean=Exchanged.of(float(bits.mean()), null.mean(axis=1)),
        null=null,
        references=references,
        tied=(others == own).sum(axis=1),
        above=(others > own).sum(axis=1),
    )


@dataclass(frozen=True, kw_only=True)
class Tested:
    """One test of the verdict: its p-value, and the share of the error that it may use."""

    name: str
    p_value: float
    share: float


def combined(tests: tuple[Tested, ...]) -> float:
    """One p-value of several tests whose shares of the error, fixed beforehand, add up to at most one."""
    return min(1.0, *(test.p_value / test.share for test in tests))
