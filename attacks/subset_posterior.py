"""The Bayesian adversary of PACZero: who knows everything but which candidate subset was trained on.

Signs of all candidates at every release are known to whoever knows the records and the weights, so the
probability of what was released is known for each candidate, and with the uniform prior so is the posterior,
exactly. The score of a training is the posterior probability that the secret subset holds the target record:
no guess from the same knowledge is right more often.

Of a release with signs s_m of the candidates, noise sigma and secret j:

| noise | stated law of what is seen |
|---|---|
| 0 | the bit is s_j, or, of a mechanism that then releases the sign of the majority, public |
| sigma | the value is normal around s_j with standard deviation sigma; its sign is released |
| infinite | the bit is a fair coin |

What the adversary sees:

- "values": the values whose signs are released. This is the posterior that the printed ledger keeps
  (Algorithm 1, line 14), and more than the mechanism gives away; its claim (Theorem 3) covers it.
- "bits": the released bits, of likelihood Phi(b s_m / sigma). It also sees sigma. Where the ledger conditions
  on values, sigma is a function of values that were not released, and this adversary stands between the two:
  it knows more than the released bits, and less than the values, so the claim covers it still. Where the
  ledger conditions on bits, sigma is public, and this is the exact posterior from what is released.

An adversary that believes whatever the mechanism says of its noise cannot catch it in a lie: at what is
said to be a coin it learns nothing, whatever the coin really was. So with probability `doubt` it holds a
priori that the noise is less than stated, or that coins are the secret's sign in noise. Where the mechanism
does what it says, the transcript soon shows that, and the guesses become those of the exact posterior; with
`doubt` 0 they are these. Entropies and information are always those of the exact posterior under the stated
law.

Source: Ertan et al. 2026, section 2 and Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy import special
from scipy.special import log_ndtr, logsumexp

from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.estimation.bounded_mean import mean_bounds
from workbench.games.subset.play import (
    SubsetAttack,
    SubsetBelief,
    SubsetMechanism,
    SubsetObservations,
    SubsetReading,
)
from workbench.interfaces import FloatArray, Mechanism, Scores

VIEWS = ("values", "bits")
AGREED = ("secret", "majority")

LEAST_GAP = 1e-9
"""Scores that are equal are told apart by less than this, at random."""

CONFIDENCE = 0.95
"""Of the interval among the details."""


@register("attack", "subset_posterior")
class SubsetPosterior(SubsetAttack):
    """Posterior probability that PACZero's secret subset holds a record; many trainings are scored.

    Attributes:
        view: `"values"` or `"bits"`.
        doubt: Prior probability that the mechanism leaks more than it says, in [0, 1).
        agreed: What the mechanism says that it releases without noise: the `"secret"`'s sign, or that of the
            `"majority"`.
        trials: Number of independent trainings that are judged.
        counted: Trainings in a world so small that secrets and released bits can be counted, in audits; 0 for
            none.

    Raises:
        InputError: a parameter is out of range.
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"counted": 0}

    def __init__(
        self,
        *,
        view: str = "values",
        doubt: float = 0.5,
        agreed: str = "secret",
        trials: int = 1000,
        counted: int = 0,
    ) -> None:
        for name, value, known in (("view", view, VIEWS), ("agreed", agreed, AGREED)):
            if value not in known:
                raise unknown_name(name, value, known)
        if not 0.0 <= doubt < 1.0:
            raise InputError(f"doubt must be in [0, 1), got {doubt!r}")
        if trials != int(trials) or trials < 20:
            raise InputError(f"trials must be a whole number >= 20, got {trials}")
        self.view = view
        self.doubt = float(doubt)
        self.agreed = agreed
        self.trials = int(trials)
        self.counted = whole_number("counted", counted, least=0)

    def informed(self, mechanism: Callable[[], Mechanism], given: Mapping[str, Any]) -> Self:
        """Told which sign the mechanism says that it releases without noise, unless `agreed` was given."""
        made = mechanism() if "agreed" not in given else None
        if isinstance(made, SubsetMechanism):
            self.agreed = made.agreed
        return self

    def beliefs(self, observations: SubsetObservations) -> tuple[SubsetBelief, ...]:
        """The adversary's posterior over candidates, one for each training.

        Raises:
            InputError: a reading is unusable.
        """
        return tuple(self._belief(reading) for reading in observations.trials)

    def score(self, seen: SubsetObservations, generator: np.random.Generator) -> Scores:
        """Posterior probability of each training's target; higher means that the secret subset holds it.

        Returns:
            Scores in [0, 1] up to 1e-9, with details. Means over trials: `mean_entropy` (of the posterior at
            the end, nats) and `information` (ln M less that) with its 95 % interval `information_lower` and
            `information_upper`; `information_bits`, the same from the bits alone; and `unanimity_rate`, the
            share of releases without noise.

        Raises:
            InputError: there are no readings, or unusable ones.
        """
        if not seen.trials:
            raise InputError("subset_posterior scores trainings on candidate subsets, got none")
        beliefs = self.beliefs(seen)
        chances = np.array(
            [
                float(belief.guess[reading.holds_target].sum())
                for belief, reading in zip(beliefs, seen.trials, strict=True)
            ]
        )
        rounded = np.round(chances, 12)  # Sums of equal probabilities differ in their last bits.
        values = rounded + LEAST_GAP * generator.random(rounded.size)
        return Scores(values=values, details=self._details(seen.trials, beliefs))

    def _belief(self, reading: SubsetReading) -> SubsetBelief:
        stated = Law(weight=1.0 - self.doubt, agreed=self.agreed)
        logs = posteriors(log_likelihoods(reading, self.view, stated))
        posterior = np.exp(logs[-1])
        guess = posterior
        if self.doubt > 0.0:
            laws = [stated]
            laws += [replace(law, weight=self.doubt * law.weight) for law in SUSPICIONS]
            guess = mixed(reading, self.view, laws)
        from_bits = posteriors(log_likelihoods(reading, "bits", replace(stated, weight=1.0)))[-1]
        return SubsetBelief(
            posterior=posterior, entropies=entropies(logs)[1:], guess=guess, from_bits=np.exp(from_bits)
        )

    def _details(self, trials: Sequence[SubsetReading], beliefs: Sequence[SubsetBelief]) -> dict[str, float]:
        """Means over trials, by the exact posterior under the stated law."""
        most = math.log(trials[0].holds_target.size)
        final = np.array([float(b.entropies[-1]) if b.entropies.size else most for b in beliefs])
        gained: FloatArray = np.clip(most - final, 0.0, most)
        bits = np.array([float(special.entr(belief.from_bits).sum()) for belief in beliefs])
        found = {
            "mean_entropy": float(final.mean()),
            "information": float(gained.mean()),
            "information_bits": most - float(bits.mean()),
            "unanimity_rate": float(np.mean([np.mean(reading.noise == 0.0) for reading in trials])),
        }
        if gained.size >= 2:
            lower, upper = mean_bounds(gained, confidence=CONFIDENCE, high=most)
            found |= {"information_lower": lower, "information_upper": upper}
        return found


@dataclass(frozen=True, kw_only=True)
class Law:
    """The law of the releases that an adversary assumes.

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

    `view` is `"values"` or `"bits"`.

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

    The laws' prior weights add up to one.

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
