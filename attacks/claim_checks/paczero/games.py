"""PACZero, sections 1 and 6: other games than membership in the secret half, and what the nats say."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from workbench.attacks.claim_checks.paczero.statements import theorem_5
from workbench.attacks.claim_checks.shared.claims import (
    ball,
    binary_kl,
    counterexample_if,
    is_proven,
    setting,
    settle,
    show,
)
from workbench.attacks.claim_checks.shared.information import ABOUT_A_SUBSET, certify, entropy, information
from workbench.core.registry import register
from workbench.interfaces.findings import Finding


@register("claim_check", "paczero_universe_membership")
@setting(
    "PACZero-ZPL on a universe of records, half of which are trained on; the record is in the universe or "
    "another "
    "one stands in its place, with probability 1/2 each; the adversary knows all other records and sees "
    "the bits"
)
def universe_membership(*, asked: str = "the universe", steps: int = 1, success: str = "1/2") -> Finding:
    """Sections 1 and 6: what 0 nats say of a membership game, inside the universe and outside it.

    `asked`: what a record is a member of: `"the universe"`, all that training reads, or `"the secret half"`.
    `steps`: releases that the adversary sees. `success`: the largest that is claimed.
    """
    theorem, claimed = theorem_5(), Fraction(success)
    # With it all scalars are positive: +1 for certain. Another record at the clip turns the candidates that
    # hold it: a coin in each step, and a -1 tells it (paczero_not_dp has the arithmetic).
    told = 1 - Fraction(1, 2**steps)
    reached = Fraction(1, 2) + told / 2 if asked == "the universe" else Fraction(1, 2)
    return settle(
        f"Theorem 5: {theorem.verdict}; the secret half is told by nothing that is released",
        "in the universe: all N scalars are positive, so that all candidates agree and +1 is released; "
        "with another "
        "record, whose scalar outweighs them, in its place the candidates disagree and a coin is released",
        f"{steps} step(s): a -1 is seen with probability {told} without the record and never with it, so "
        "that the "
        f"guess is right with probability {reached}; the nats about the half are 0 in both",
        proof=f"Membership in the secret half is guessed with probability 1/2, at most {success}",
        proven=asked == "the secret half" and is_proven(theorem) and claimed >= Fraction(1, 2),
        counterexample=counterexample_if(
            reached > claimed,
            f"Whether a record is in {asked} is guessed with probability {reached} from {steps} step(s) of "
            "a run "
            "that leaks 0 nats about its half.",
            {"asked": asked, "steps": steps, "success": str(reached), "claimed": success, "nats": 0},
        ),
    )


@register("claim_check", "paczero_other_attacks")
@setting(ABOUT_A_SUBSET)
def other_attacks(
    *, nats: str = "0.33", candidates: int = 128, group: int = 3, concrete: str = "1"
) -> Finding:
    """Section 6: reconstruction, group membership and identification have concrete bounds as well.

    For any criterion KL(success || best blind success) is at most the nats, for adversaries who are at least
    as good as the best blind one.

    `nats`: of the run. `candidates`: M. `group`: records whose membership is guessed together, where the
    candidates hold each of their patterns equally often. `concrete`: a bound below this says something.
    """
    answer = certify(
        information("S", "Y") - information("B", "Y"),
        equations={"what is attacked is a function of the secret": entropy("B", "S")},
    )
    blind = {
        "identification or reconstruction of the secret subset": Fraction(1, candidates),
        f"membership of {group} records together": Fraction(-(-candidates // 2**group), candidates),
    }
    bounds = {name: largest_success(ball(Fraction(nats)), prior) for name, prior in blind.items()}
    vague = [name for name, bound in bounds.items() if not bound < ball(Fraction(concrete))]
    return settle(
        f"certificate: {answer.describe() if answer else 'none'}",
        *(
            f"{name}: blindly {float(blind[name]):.4g}, with {nats} nats at most {show(bound, 4)}"
            for name, bound in bounds.items()
        ),
        "data processing to the bit 'succeeded', and a KL divergence that rises in the success above the "
        "blind one",
        proof=f"Each of these attacks succeeds with probability below {concrete} in a run of {nats} nats",
        proven=answer is not None and not vague,
        counterexample=counterexample_if(
            vague,
            f"At {nats} nats the bound on {vague[0] if vague else ''} is 1: a run that shows the secret "
            "keeps it.",
            {"nats": nats, "candidates": candidates, "attacks": list(vague)},
        ),
    )


def largest_success(nats: Any, blind: Fraction) -> Any:
    """The largest p with KL(p || blind) <= nats, from above; 1 where even that is allowed."""
    if -ball(blind).log() <= nats:
        return ball(1)
    low, high = blind, Fraction(1)
    for _ in range(50):
        middle = (low + high) / 2
        if binary_kl(ball(middle), ball(blind)) < nats:
            low = middle
        else:
            high = middle
    return ball(high)
