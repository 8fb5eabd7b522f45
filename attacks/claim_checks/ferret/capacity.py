"""How much one step of FERRET can tell of a record: the capacity of its channel, computed beside Eq. 8."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from workbench.attacks.claim_checks.ferret.sign_channel import (
    Capacity,
    capacity,
    claimed_nats,
    membership_channel,
    record_channel,
)
from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, setting, settle, show
from workbench.attacks.claim_checks.shared.information import certify, information, quantity
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

ZERO_GRADIENT = ("silent", "coin")
"""What a group whose gradient is 0 releases when it fires: nothing, or a fair sign."""

ONE_STEP = (
    "one step in which k groups fire; the secret is one record, of whatever law tells most; the adversary "
    "knows all other records, which of them take part, and the directions, and sees the signs; s = 1/200 "
    "unless said otherwise; nats; each capacity between two ends in ball arithmetic, no sampling error"
)


@register("claim_check", "ferret_step_capacity")
@setting(ONE_STEP)
@in_balls
def step_capacity(
    *,
    scale: float = 1.0,
    sampling_probability: str = "1/200",
    firings: Sequence[int] = (1, 2, 3),
    zero_gradient: str = "silent",
) -> Finding:
    """Eq. 8 of one step: k firings tell at most s k ln 2 nats about a record.

    Args:
        scale: Multiplies the claimed nats.
        sampling_probability: s, in (0, 1], as a fraction.
        firings: The k whose channels are computed.
        zero_gradient: `"silent"`, as after Lemma 1: a step has 3^k outcomes; `"coin"`: 2^k.

    Raises:
        InputError: an unknown rule, or s out of range.
        InconclusiveError: a capacity's ends did not meet.
    """
    if zero_gradient not in ZERO_GRADIENT:
        raise unknown_name("zero_gradient", zero_gradient, ZERO_GRADIENT)
    s, bound = Fraction(sampling_probability), quantity("s k ln 2")
    proven = certify(
        bound * Fraction(scale) - information("WP", "X", "R"),
        facts={"s H(W|P,S=1) <= s k ln 2": bound - information("W", "X", "RPS"), ">= 0": bound},
        equations={"masks, directions and sampling are fresh": information("SP", "XR")},
    )
    told = capacity(membership_channel(s))
    lines, wrong, excess = [], None, None
    for k in firings:
        claimed = ball(scale) * claimed_nats(s, k)
        signs, silent = capacity(record_channel(s, 2**k)), capacity(record_channel(s, 3**k))
        lines.append(
            f"k = {k}: claimed {show(claimed)}; membership {_against(told, claimed)}; which record, 2^k "
            f"patterns of signs {_against(signs, claimed)}; 3^k with silence {_against(silent, claimed)}"
        )
        wrong = wrong or _beyond(signs, claimed, k, f"2^{k} patterns of signs")
        excess = excess or _beyond(silent, claimed, k, f"3^{k} patterns of signs and silence")
    # Three symbols tell at most ln 3 a firing, so that a claim as large as that needs no rule for zeros.
    open_to_silence = zero_gradient == "silent" and not ball(scale) * ball(2).log() >= ball(3).log()
    amount = "s k ln 2" if scale == 1.0 else f"{scale:g} s k ln 2"
    return settle(
        proof=f"k firings tell at most {amount} nats about a record, for every k" if proven else None,
        assumption="a zero gradient is answered by a sign as well, so that no silence depends on the data"
        if proven and open_to_silence
        else None,
        counterexample=wrong or (excess if open_to_silence else None),
        evidence=(
            "one coin decides for all k groups whether the record takes part; where not, the signs are those "
            "of the others: I(W;X) <= I(W;X|S) = s I(W;X|S=1), and k signs have at most k ln 2 nats",
            f"certificate: {proven.describe() if proven else 'none'}",
            "membership: the record turns the signs or is out; every further sign is turned with the first, "
            "so k changes nothing. Which record: each pattern has a record of its own, one the others' own. "
            "A fair sign at gradient 0 is a mixture of patterns and adds nothing",
            *lines,
        ),
    )


def _against(found: Capacity, claimed: Any) -> str:
    """A capacity with its share of what is claimed, and on which side it certainly lies."""
    side = "above" if found.lower > claimed else "within" if found.upper <= claimed else "too close to tell"
    return f"{show(found.lower)} ({show(found.lower / claimed, 4)} of it, {side})"


def _beyond(found: Capacity, claimed: Any, k: int, alphabet: str) -> Counterexample | None:
    """The capacity as a counterexample, where its lower end is above what is claimed."""
    if not found.lower > claimed:
        return None
    return Counterexample(
        sentence=(
            f"A step with {k} firing{'s' if k > 1 else ''} and {alphabet} tells up to {show(found.lower)} "
            f"nats about a record, more than {show(claimed)}."
        ),
        values={
            "firings": k,
            "prior": [show(ball(share), 4) for share in found.prior],
            "leak_nats": show(found.lower),
            "claimed_nats": show(claimed),
        },
    )
