"""Capacities of the channel to FERRET's signs, beside closed forms, brute force and the paper."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from workbench.attacks.claim_checks.ferret.sign_channel import (
    Channel,
    OpposedTranscript,
    capacity,
    claimed_nats,
    membership_channel,
    record_channel,
)
from workbench.core.errors import InputError

S = (Fraction(1, 200), Fraction(1, 20), Fraction(1, 2), Fraction(1))
HALF = (Fraction(1, 2), Fraction(1, 2))


def entropy(*weights: float) -> float:
    return -sum(w * math.log(w) for w in weights if w > 0)


def number(ball: object) -> float:
    return float(ball.mid())  # type: ignore[attr-defined]


@pytest.mark.parametrize("s", S)
def test_capacity_of_membership_is_the_z_channels(s: Fraction) -> None:
    """Closed form of a Z-channel that shows a one with probability s (Cover and Thomas 2006, problem 7.8)."""
    found = capacity(membership_channel(s))
    share = float(s)
    exact = math.log1p(math.exp(-entropy(share, 1 - share) / share))
    assert number(found.lower) - 1e-12 <= exact <= number(found.upper) + 1e-12
    assert found.upper - found.lower < 1e-9
    at_half = number(membership_channel(s).information(HALF))
    assert at_half == pytest.approx(entropy(share / 2, 1 - share / 2) - entropy(share, 1 - share) / 2)


def signs_turned(s: Fraction, firings: int) -> Channel:
    """In or out by the whole vector of k signs: the others' are all plus, the canary turns all of them."""
    patterns = list(itertools.product((-1, 1), repeat=firings))
    out = tuple(Fraction(int(all(x == 1 for x in p))) for p in patterns)
    turned = tuple(Fraction(int(all(x == -1 for x in p))) for p in patterns)
    return Channel((out, tuple((1 - s) * a + s * b for a, b in zip(out, turned, strict=True))))


@pytest.mark.parametrize("firings", [1, 2, 3])
def test_more_firings_in_a_step_tell_no_more_of_membership(firings: int) -> None:
    s = Fraction(1, 20)
    one, many = capacity(membership_channel(s)), capacity(signs_turned(s, firings))
    assert abs(number(one.lower) - number(many.lower)) < 2e-9


@pytest.mark.parametrize("s", S)
@pytest.mark.parametrize("firings", [1, 2, 3])
def test_what_eq_8_covers(s: Fraction, firings: int) -> None:
    """Signs alone stay below s k ln 2 whatever the prior; with silence as a third symbol they need not."""
    claimed = claimed_nats(s, firings)
    signs = capacity(record_channel(s, 2**firings))
    silent = capacity(record_channel(s, 3**firings))
    assert signs.lower <= claimed or s == 1
    assert number(signs.upper) <= number(claimed) + 1e-9
    assert number(silent.upper) <= float(s) * firings * math.log(3) + 1e-9
    assert number(silent.lower) > number(claimed)  # A certified excess: the lower end is an information.
    assert not capacity(membership_channel(s)).upper > claimed


def test_a_record_channel_in_closed_form() -> None:
    """max over a of h(a s) + a s ln(m - 1) - a h(s), with a the share of records that are not the base."""
    for s, m in itertools.product((0.005, 0.05, 0.5), (2, 3, 9)):
        share = np.linspace(0, 1, 200_001)[1:]
        y = share * s
        values = y * math.log(m - 1) - share * entropy(s, 1 - s) - y * np.log(y) - (1 - y) * np.log1p(-y)
        found = capacity(record_channel(Fraction(s), m))
        assert number(found.lower) == pytest.approx(float(values.max()), abs=2e-9)


def test_capacity_of_channels_that_need_few_inputs() -> None:
    """A noiseless channel, a useless one, and a binary symmetric one beside a row that nobody should use."""
    one, zero = Fraction(1), Fraction(0)
    assert number(capacity(Channel(((one, zero), (zero, one)))).lower) == pytest.approx(math.log(2))
    assert number(capacity(Channel((HALF, HALF))).upper) == pytest.approx(0.0, abs=1e-12)
    symmetric = ((Fraction(9, 10), Fraction(1, 10)), (Fraction(1, 10), Fraction(9, 10)))
    found = capacity(Channel((*symmetric, HALF)))
    assert number(found.upper) == pytest.approx(math.log(2) - entropy(0.1, 0.9), abs=1e-9)


def brute_force(channel: OpposedTranscript, prior: float) -> float:
    """Information of membership and all masks, coins and signs of T steps with G groups."""
    law: dict[tuple[int, ...], list[float]] = {}
    p, s = channel.firing_probability, channel.sampling_probability
    cells = channel.groups * channel.steps
    for mask in itertools.product((0, 1), repeat=cells):
        chance = math.prod(p if z else 1 - p for z in mask)
        for coins in itertools.product((0, 1), repeat=channel.steps):
            turned = [coins[i // channel.groups] for i in range(cells)]
            weight = chance * math.prod(s if c else 1 - s for c in coins)
            inside = tuple((-1 if c else 1) if z else 0 for z, c in zip(mask, turned, strict=True))
            law.setdefault(mask, [0.0, 0.0])[0] += weight
            law.setdefault(inside, [0.0, 0.0])[1] += weight
    given = (1 - prior) * entropy(*(w[0] for w in law.values()))
    given += prior * entropy(*(w[1] for w in law.values()))
    return entropy(*((1 - prior) * w[0] + prior * w[1] for w in law.values())) - given


@pytest.mark.parametrize("prior", [0.5, 0.37])
def test_a_whole_transcript_beside_brute_force(prior: float) -> None:
    channel = OpposedTranscript(groups=2, steps=3, firing_probability=0.4, sampling_probability=0.3)
    assert number(channel.information(prior)) == pytest.approx(brute_force(channel, prior), abs=1e-12)


def test_rates_of_a_whole_transcript() -> None:
    """1 - E[(1 - s)^K] summed over K; beyond it the trials in which fewest steps fired; all at rate 1."""
    channel = OpposedTranscript(groups=3, steps=4, firing_probability=0.2, sampling_probability=0.3)
    fires = 1 - 0.8**3
    masses = [math.comb(4, k) * fires**k * (1 - fires) ** (4 - k) for k in range(5)]
    exact = 1 - sum(mass * 0.7**k for k, mass in enumerate(masses))
    assert number(channel.tpr_without_alarms()) == pytest.approx(exact)
    assert number(channel.success()) == pytest.approx(0.5 + exact / 2)
    assert channel.tpr(0.0) == number(channel.tpr_without_alarms())
    assert channel.tpr(masses[0] + masses[1]) == pytest.approx(exact + masses[0] + 0.7 * masses[1])
    assert channel.tpr(1.0) == pytest.approx(1.0)
    always = OpposedTranscript(groups=1, steps=2, firing_probability=1.0, sampling_probability=1.0)
    assert always.tpr_without_alarms() == 1
    assert number(always.information()) == pytest.approx(math.log(2))


@pytest.mark.parametrize("groups", [2, 18])
@pytest.mark.parametrize("nats", [0.1, 0.5, 1.0, 2.0])
def test_the_transcript_of_an_opposed_canary_stays_below_the_claim(groups: int, nats: float) -> None:
    """What Eq. 8 claims holds for membership; how far below depends on how often groups fire together."""
    p = nats / (groups * 100 * 0.05 * math.log(2))
    channel = OpposedTranscript(groups=groups, steps=100, firing_probability=p, sampling_probability=0.05)
    assert number(channel.claimed()) == pytest.approx(nats)
    assert 0 < number(channel.information()) < nats


def test_refusals() -> None:
    for broken in (((Fraction(1), Fraction(1)),), ((Fraction(1),), HALF), ()):
        with pytest.raises(InputError, match="law"):
            Channel(broken)
    with pytest.raises(InputError, match="sampling_probability must be in"):
        membership_channel(Fraction(0))
    with pytest.raises(InputError, match="patterns must be >= 2, got 1"):
        record_channel(Fraction(1, 2), 1)
    with pytest.raises(InputError, match="make every output possible"):
        membership_channel(Fraction(1, 2)).divergences((Fraction(1), Fraction(0)))
    for changed in ({"groups": 0}, {"firing_probability": 0.0}, {"sampling_probability": 1.5}):
        given = {"groups": 1, "steps": 1, "firing_probability": 0.5, "sampling_probability": 0.5, **changed}
        with pytest.raises(InputError, match=next(iter(changed))):
            OpposedTranscript(**given)  # type: ignore[arg-type]
    channel = OpposedTranscript(groups=1, steps=1, firing_probability=0.5, sampling_probability=0.5)
    with pytest.raises(InputError, match="fpr must be in"):
        channel.tpr(-0.1)
    with pytest.raises(InputError, match="prior must be in"):
        channel.information(1.0)
