"""The channel from a record to FERRET's signs: its capacity computed, with certified ends, not assumed.

One step in which k groups fire, as an adversary sees it who knows the mask, the directions, all other
records and which of them take part. Then the others' signs are one known pattern, the *base*. A record
takes part with probability s; where it does the released pattern is its own, else it is the base (one coin
for all k groups).

- `membership_channel(s)`: in or out. Out: the base. In: another pattern with probability s. This Z-channel is
  the same for every k: to see two signs turn tells no more than to see one.
- `record_channel(s, m)`: which of m possible records it is, each with a pattern of its own, the base among
  them. Signs alone have 2^k patterns. With the silence of zero gradients there are 3^k.

What the paper says of these, in nats, where k groups fired:

- Lemma 1 is the entropy of one sign over the *directions*; given the direction, which is public, it says
  nothing of a record. What bounds the leak is the alphabet: a sign has at most ln 2, k signs k ln 2.
- Lemma 3 adds that the alphabet does not grow with a group's size. Both bound `record_channel(1, 2^k)`.
- Lemma 2 and Eq. 8 put s before it: s k ln 2, summed over the expected number of firings G T p. As the coin
  is independent of record and base, I(W; X) <= I(W; X | S) = s I(W; X | S = 1), so this bounds every channel
  here whose patterns are signs.
- No line covers the silent third symbol: `record_channel(s, 3^k)` may exceed s k ln 2, up to s k ln 3.

Capacities come from Blahut's and Arimoto's iteration in floats. Its prior is rounded to rationals, and both
ends are then evaluated in ball arithmetic: for every prior r, I(r) <= C <= max_x D(W_x || r W). A capacity
is the most that any prior of the record can make of the channel; the game's prior is 1/2.

>>> from fractions import Fraction
>>> found = capacity(membership_channel(Fraction(1, 20)))
>>> f"{float(found.lower.mid()):.6f} <= C <= {float(found.upper.mid()):.6f}"
'0.018692 <= C <= 0.018692'

Sources: Arimoto 1972 and Blahut 1972 (iteration and bounds); Zagardo 2025, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from workbench.attacks.claim_checks.shared.claims import (
    BITS,
    Counterexample,
    ball,
    binary_entropy,
    setting,
    settle,
    show,
)
from workbench.attacks.claim_checks.shared.information import FiniteLaw, certify, information, quantity
from workbench.core.errors import InconclusiveError, InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces.findings import Finding, assume

ROUNDS = 200_000
"""Most rounds of the iteration."""

GRID = 2**60
"""Priors are rounded to multiples of 1 / GRID."""


@dataclass(frozen=True)
class Channel:
    """A channel with finitely many inputs and outputs.

    Attributes:
        law: Probability of each output (column) given each input (row), exact.

    Raises:
        InputError: a row is no probability law, or rows have unequal lengths.
    """

    law: tuple[tuple[Fraction, ...], ...]

    def __post_init__(self) -> None:
        if not self.law or len({len(row) for row in self.law}) != 1:
            raise InputError("law must have rows of one length")
        if any(min(row) < 0 or sum(row) != 1 for row in self.law):
            raise InputError("each row of law must be probabilities that sum to 1")

    def information(self, prior: tuple[Fraction, ...]) -> Any:
        """Mutual information of input and output at this prior, nats: a ball."""
        from flint import ctx

        joint = {
            (x, y): weight * chance
            for x, (weight, row) in enumerate(zip(prior, self.law, strict=True))
            for y, chance in enumerate(row)
        }
        with ctx.workprec(BITS):
            return FiniteLaw("XY", joint).information("X", "Y")

    def divergences(self, prior: tuple[Fraction, ...]) -> list[Any]:
        """Divergence of each input's outputs from those of the prior, nats: balls.

        Raises:
            InputError: an output is possible that the prior makes impossible.
        """
        from flint import ctx

        outputs = [
            sum((weight * row[y] for weight, row in zip(prior, self.law, strict=True)), Fraction(0))
            for y in range(len(self.law[0]))
        ]
        result = []
        with ctx.workprec(BITS):
            for row in self.law:
                if any(chance and not outputs[y] for y, chance in enumerate(row)):
                    raise InputError("prior must make every output possible")
                terms = [
                    ball(chance) * ball(chance / outputs[y]).log() for y, chance in enumerate(row) if chance
                ]
                result.append(sum(terms, ball(0)))
        return result


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """A channel's capacity between two certified ends, nats.

    Attributes:
        lower: The information at `prior`, a ball.
        upper: The largest divergence at it, a ball.
        prior: One that reaches the lower end, exact.
    """

    lower: Any
    upper: Any
    prior: tuple[Fraction, ...]


def capacity(channel: Channel, *, gap: float = 1e-9) -> Capacity:
    """The channel's capacity in nats, enclosed between a lower and an upper end.

    Args:
        gap: Most nats between the ends.

    Raises:
        InconclusiveError: the iteration ended with the ends further apart.
    """
    law = np.array([[float(chance) for chance in row] for row in channel.law])
    used = law[:, law.sum(0) > 0.0]
    prior = np.full(len(law), 1.0 / len(law))
    for _ in range(ROUNDS):
        logs = np.where(used > 0.0, np.log(np.where(used > 0.0, used, 1.0) / (prior @ used)), 0.0)
        divergence = (used * logs).sum(1)
        low = float(prior @ divergence)
        if float(divergence.max()) - low < gap / 4.0:
            break
        prior = prior * np.exp(divergence - divergence.max())
        prior /= prior.sum()
    exact = _rational(prior)
    enclosed = Capacity(
        lower=channel.information(exact), upper=_largest(channel.divergences(exact)), prior=exact
    )
    if not enclosed.upper - enclosed.lower < ball(gap):
        raise InconclusiveError(f"the capacity's ends are still more than {gap:g} nats apart")
    return enclosed


def _rational(prior: np.ndarray) -> tuple[Fraction, ...]:
    """The prior on a grid, every input with at least one part, summing to 1."""
    parts = [max(1, round(float(weight) * GRID)) for weight in prior]
    total = sum(parts)
    return tuple(Fraction(part, total) for part in parts)


def _largest(balls: list[Any]) -> Any:
    """A ball that no ball's value exceeds, and that holds the largest one."""
    best = balls[0]
    for other in balls[1:]:
        best = best.max(other)
    return best


def _checked(sampling_probability: Fraction) -> Fraction:
    if not 0 < sampling_probability <= 1:
        raise InputError(f"sampling_probability must be in (0, 1], got {sampling_probability}")
    return sampling_probability


def membership_channel(sampling_probability: Fraction) -> Channel:
    """Out (first row) or in, of a record that turns the released pattern around when it takes part."""
    s = _checked(sampling_probability)
    return Channel(((Fraction(1), Fraction(0)), (1 - s, s)))


def record_channel(sampling_probability: Fraction, patterns: int) -> Channel:
    """Which of so many possible records it is, each with its own pattern; the first one's is the base.

    Args:
        sampling_probability: s, in (0, 1].
        patterns: m >= 2: 2^k for k signs, 3^k where a zero gradient is silent.

    Raises:
        InputError: a number is out of range.
    """
    s = _checked(sampling_probability)
    if patterns < 2:
        raise InputError(f"patterns must be >= 2, got {patterns}")
    rows = []
    for pattern in range(patterns):
        row = [Fraction(0)] * patterns
        row[0] += 1 - s
        row[pattern] += s
        rows.append(tuple(row))
    return Channel(tuple(rows))


def claimed_nats(sampling_probability: Fraction, firings: int | Fraction) -> Any:
    """Nats that Eq. 8 claims for this many firings: s k ln 2, a ball."""
    from flint import ctx

    with ctx.workprec(BITS):
        return ball(sampling_probability * firings) * ball(2).log()


@dataclass(frozen=True, kw_only=True)
class OpposedTranscript:
    """The whole transcript as a channel from the membership of an opposed canary among copies.

    All other records have one gradient g in every step; the canary's is a multiple of -g that outweighs any
    batch of them (FERRET clips no record). In each step with at least one firing the canary, taking part with
    probability s, turns every sign; without it no sign can turn. So K such steps are a Z-channel that shows a
    member with probability 1 - (1 - s)^K, and K, which is public, is Binomial(T, 1 - (1 - p)^G). No batch
    need be known for it; batches without any record are left out of account.

    Attributes:
        groups, steps: G and T.
        firing_probability: p, of a group in a step: a float, which counts as the rational that it is, a
            fraction or a ball.
        sampling_probability: s, of a record in a step, likewise.

    Raises:
        InputError: a number is out of range.
    """

    groups: int
    steps: int
    firing_probability: Any
    sampling_probability: Any

    def __post_init__(self) -> None:
        if self.groups < 1 or self.steps < 1:
            raise InputError(f"groups and steps must be >= 1, got {self.groups} and {self.steps}")
        for name in ("firing_probability", "sampling_probability"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must be in (0, 1], got {getattr(self, name)!r}")

    def fires(self) -> Any:
        """Probability that at least one group fires in a step: a ball."""
        return self._precisely(lambda p, s: 1 - (1 - p) ** self.groups)

    def claimed(self) -> Any:
        """Eq. 8: G T s p ln 2, nats: a ball."""
        return self._precisely(lambda p, s: self.groups * self.steps * s * p * ball(2).log())

    def tpr_without_alarms(self) -> Any:
        """True-positive rate at false-positive rate 0, 1 - E[(1 - s)^K]: a ball."""
        return self._precisely(lambda p, s: 1 - (1 - s * (1 - (1 - p) ** self.groups)) ** self.steps)

    def success(self) -> Any:
        """Largest probability of guessing a fair membership right: a ball."""
        return self._precisely(lambda p, s: (1 + self.tpr_without_alarms()) / 2)

    def tpr(self, fpr: float) -> float:
        """Largest true-positive rate at a false-positive rate, by the Neyman-Pearson test, ties by coin.

        Where nothing turned, the fewer steps fired the likelier the canary is: of those trials the first are
        called members, as many as the rate allows.
        """
        if not 0.0 <= fpr <= 1.0:
            raise InputError(f"fpr must be in [0, 1], got {fpr!r}")
        left, rate = fpr, float(self.tpr_without_alarms())
        for fired, mass in enumerate(self._fired_steps()):
            taken = min(left, mass)
            rate += taken * (1.0 - float(self.sampling_probability)) ** fired
            left -= taken
        return min(1.0, rate)

    def information(self, prior: float = 0.5) -> Any:
        """Mutual information of membership and transcript at a prior of "in", nats: a ball.

        The mean over K of a Z-channel's h(prior q) - prior h(q), q = 1 - (1 - s)^K.
        """
        if not 0.0 < prior < 1.0:
            raise InputError(f"prior must be in (0, 1), got {prior!r}")

        def mean(p: Any, s: Any) -> Any:
            """The mean over K at these probabilities of firing and of taking part."""
            silent = (1 - p) ** self.groups
            fires, inside, total, ways = 1 - silent, ball(prior), ball(0), 1
            for k in range(1, self.steps + 1):
                ways = ways * (self.steps - k + 1) // k
                mass = ball(ways) * fires**k * silent ** (self.steps - k)
                turned = 1 - (1 - s) ** k
                inner = inside * binary_entropy(turned) if turned != 1 else ball(0)
                total += mass * (binary_entropy(inside * turned) - inner)
            return total

        return self._precisely(mean)

    def _precisely(self, law: Callable[[Any, Any], Any]) -> Any:
        """The law of p and s, as balls, at the working precision."""
        from flint import arb, ctx

        with ctx.workprec(BITS):
            given = (self.firing_probability, self.sampling_probability)
            p, s = (value if isinstance(value, arb) else ball(value) for value in given)
            return law(p, s)

    def _fired_steps(self) -> list[float]:
        """Probability of each K = 0, 1, ..., T."""
        from scipy.stats import binom

        masses: list[float] = binom.pmf(np.arange(self.steps + 1), self.steps, float(self.fires())).tolist()
        return masses


ZERO_GRADIENT = ("silent", "coin")
"""What a group whose gradient is 0 releases when it fires: nothing, or a fair sign."""

ONE_STEP = (
    "one step in which k groups fire; the secret is one record, of whatever law tells most; the adversary "
    "knows all other records, which of them take part, and the directions, and sees the signs; s = 1/200 "
    "unless said otherwise; nats; each capacity between two ends in ball arithmetic, no sampling error"
)


@register("claim_check", "ferret_step_capacity")
@setting(ONE_STEP)
def step_capacity(
    *,
    scale: float = 1.0,
    sampling_probability: str = "1/200",
    firings: Sequence[int] = (1, 2, 3),
    zero_gradient: str = "silent",
) -> Finding:
    """Eq. 8 of one step: k firings tell at most s k ln 2 nats about a record.

    `scale`: multiplies the claimed nats. `sampling_probability`: s, in (0, 1], as a fraction. `firings`: the
    k whose channels are computed. `zero_gradient`: `"silent"`, as after Lemma 1: a step has 3^k outcomes;
    `"coin"`: 2^k. Raises `InputError`: an unknown rule, or s out of range. `InconclusiveError`: a capacity's
    ends did not meet.
    """
    if zero_gradient not in ZERO_GRADIENT:
        raise unknown_name("zero_gradient", zero_gradient, ZERO_GRADIENT)
    s, bound = Fraction(sampling_probability), quantity("s k ln 2")
    proven = certify(
        bound * Fraction(scale) - information("WP", "X", "R"),
        facts={"s H(W|P,S=1) <= s k ln 2": bound - information("W", "X", "RPS"), ">= 0": bound},
        equations={"masks, directions and sampling are fresh": information("SP", "XR")},
    )
    membership = capacity(membership_channel(s))
    lines, wrong, excess = [], None, None
    for k in firings:
        claimed = ball(scale) * claimed_nats(s, k)
        signs, silent = capacity(record_channel(s, 2**k)), capacity(record_channel(s, 3**k))
        lines.append(
            f"k = {k}: claimed {show(claimed)}; membership {_against(membership, claimed)}; which record, "
            f"2^k patterns of signs {_against(signs, claimed)}; 3^k with silence {_against(silent, claimed)}"
        )
        wrong = wrong or _beyond(signs, claimed, k, f"2^{k} patterns of signs")
        excess = excess or _beyond(silent, claimed, k, f"3^{k} patterns of signs and silence")
    # Three symbols tell at most ln 3 a firing, so that a claim as large as that needs no rule for zeros.
    open_to_silence = zero_gradient == "silent" and not ball(scale) * ball(2).log() >= ball(3).log()
    amount = "s k ln 2" if scale == 1.0 else f"{scale:g} s k ln 2"
    return settle(
        "one coin decides for all k groups whether the record takes part; where not, the signs are those of "
        "the others: I(W;X) <= I(W;X|S) = s I(W;X|S=1), and k signs have at most k ln 2 nats",
        f"certificate: {proven.describe() if proven else 'none'}",
        "membership: the record turns the signs or is out; every further sign is turned with the first, so k "
        "changes nothing. Which record: each pattern has a record of its own, one the others' own. A fair "
        "sign at gradient 0 is a mixture of patterns and adds nothing",
        *lines,
        proof=f"k firings tell at most {amount} nats about a record, for every k" if proven else None,
        counterexample=wrong or (excess if open_to_silence else None),
        assumption=assume(
            "a zero gradient is answered by a sign as well, so that no silence depends on the data",
            lambda answer: answer == "coin" or not open_to_silence,
            claimed={"zero_gradient": zero_gradient},
        ),
    )


def _against(nats: Capacity, claimed: Any) -> str:
    """A capacity with its share of what is claimed, and on which side it certainly lies."""
    side = "above" if nats.lower > claimed else "within" if nats.upper <= claimed else "too close to tell"
    return f"{show(nats.lower)} ({show(nats.lower / claimed, 4)} of it, {side})"


def _beyond(nats: Capacity, claimed: Any, k: int, alphabet: str) -> Counterexample | None:
    """The capacity as a counterexample, where its lower end is above what is claimed."""
    if not nats.lower > claimed:
        return None
    return Counterexample(
        sentence=(
            f"A step with {k} firing{'s' if k > 1 else ''} and {alphabet} tells up to {show(nats.lower)} "
            f"nats about a record, more than {show(claimed)}."
        ),
        values={
            "firings": k,
            "prior": [show(ball(share), 4) for share in nats.prior],
            "leak_nats": show(nats.lower),
            "claimed_nats": show(claimed),
        },
    )
