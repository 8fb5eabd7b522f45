"""How likely each candidate subset makes what was released: under the stated law, and under laws that leak.

Of a release with signs s_m of the candidates, noise sigma and secret j:

| noise | stated law of what is seen |
|---|---|
| 0 | the bit is s_j, or, of a mechanism that then releases the sign of the majority, public |
| sigma | the value is normal around s_j with standard deviation sigma; its sign is released |
| infinite | the bit is a fair coin |

A `Law` other than the stated one says that the noise is smaller than stated, or that coins are no coins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, logsumexp

from workbench.core.errors import InputError
from workbench.games.subset.play import SubsetReading
from workbench.interfaces import FloatArray


@dataclass(frozen=True, kw_only=True)
class Law:
    """What an adversary takes for the law of the releases.

    Attributes:
        weight: Its prior probability.
        share: The noise as a share of what is stated.
        coin_noise: What is said to be a coin is the sign of the secret's sign in noise of this standard
            deviation; negative for minus the sign, infinite for a coin.
        agreed: What is released without noise: the `"secret"`'s sign, or the `"majority"`'s, which is public.
    """

    weight: float
    share: float = 1.0
    coin_noise: float = math.inf
    agreed: str = "secret"


IMPOSSIBLE = (
    "a transcript must be possible for some candidate, got one that is for none; of a mechanism that "
    "releases the majority's sign where it adds no noise, say agreed='majority'"
)

SUSPICIONS = (
    Law(weight=1 / 3, share=0.5, coin_noise=8.0),
    Law(weight=1 / 3, share=0.25, coin_noise=2.0),
    Law(weight=1 / 3, share=1.0, coin_noise=-2.0),
)
"""Laws of a mechanism that does not do what it says, by how much they leak; weights add up to one."""


def log_likelihoods(reading: SubsetReading, view: str, law: Law) -> FloatArray:
    """Logarithm of each release's likelihood for each candidate, shape `(D, M)`; minus infinity for none.

    Args:
        reading: One training.
        view: `"values"` or `"bits"`.
        law: Of the releases.

    Raises:
        InputError: noise or a value of the reading is unusable.
    """
    signs = reading.signs.astype(np.float64)
    noise, bits, values = reading.noise, reading.bits.astype(np.float64), reading.values
    found = np.zeros(signs.shape)
    plain, coin = noise == 0.0, np.isinf(noise)
    noised = ~plain & ~coin
    if np.isnan(noise).any() or (noise < 0.0).any():
        raise InputError("a reading's noise must be >= 0, got one that is not")
    if law.agreed == "secret":
        found[plain] = np.where(signs[plain] == bits[plain, None], 0.0, -np.inf)
    found[coin] = log_ndtr(bits[coin, None] * signs[coin] / law.coin_noise)
    scale = law.share * noise[noised, None]
    if view == "bits":
        found[noised] = log_ndtr(bits[noised, None] * signs[noised] / scale)
        return found
    if not np.isfinite(values[noised]).all():
        raise InputError("a reading's values must be finite where its noise is, got one that is not")
    # Who sees the values looks at no bit: one that says more than its value would go unseen.
    if np.any(np.where(values[noised] >= 0.0, 1.0, -1.0) != bits[noised]):
        raise InputError("a reading's bits must be the signs of its noisy values, got one that is not")
    found[noised] = -0.5 * ((values[noised, None] - signs[noised]) / scale) ** 2 - np.log(scale)
    return found


def posteriors(likelihoods: FloatArray) -> FloatArray:
    """The posterior's logarithm after each release from a uniform prior, shape `(D + 1, M)`; row 0 the prior.

    Raises:
        InputError: no candidate could have released this.
    """
    count = likelihoods.shape[1]
    start = np.full((1, count), -math.log(count))
    joint = np.concatenate([start, start + np.cumsum(likelihoods, axis=0)])
    total = logsumexp(joint, axis=1, keepdims=True)
    if np.isneginf(total).any():
        raise InputError(IMPOSSIBLE)
    found: FloatArray = joint - total
    return found


def entropies(logs: FloatArray) -> FloatArray:
    """Entropy of each row of logarithms of probabilities, nats, shape of the rows."""
    safe = np.where(np.isneginf(logs), 0.0, logs)
    found: FloatArray = -np.sum(np.exp(logs) * safe, axis=-1)
    return found


def mixed(reading: SubsetReading, view: str, laws: Sequence[Law]) -> FloatArray:
    """The posterior of an adversary who knows the laws but not which of them holds, shape `(M,)`.

    Args:
        reading: One training.
        view: `"values"` or `"bits"`.
        laws: With their prior weights, which add up to one.

    Raises:
        InputError: no candidate could have released this under any law.
    """
    joint = np.stack([math.log(law.weight) + log_likelihoods(reading, view, law).sum(axis=0) for law in laws])
    logs = logsumexp(joint, axis=0)
    total = float(logsumexp(logs))
    if math.isinf(total):
        raise InputError(IMPOSSIBLE)
    found: FloatArray = np.exp(logs - total)
    return found
