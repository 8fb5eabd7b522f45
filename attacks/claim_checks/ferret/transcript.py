"""FERRET's transcript in the game of in or out: exact nats, success, and trade-off of the worst record.

The worst record opposes all others, which are copies of one, and outweighs any batch of them: its presence in
a batch turns the signs of all groups that fire, so a turned sign is impossible without it
(`_sign_channel.OpposedTranscript`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from workbench.attacks.claim_checks.ferret.sign_channel import OpposedTranscript
from workbench.attacks.claim_checks.paczero.numerics import nats_at
from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, setting, settle, show
from workbench.attacks.claim_checks.shared.information import certify, information, quantity
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

VARIANTS = (("MAX", 200), ("HALF", 100), ("QUARTER", 50), ("EIGHTH", 25), ("2", 2))
"""Section 6.4's 200 tensors: one, two, four and eight a group, and two halves."""
STEPS, RATE, BATCH = 1000, "0.005", 50
"""Sections 6.2 and 6.4: T, s and B of all runs."""
BUDGETS = ("0.1", "0.5", "1", "2")
"""Section 6.2."""

IN_OUT = (
    "the record is in the data or not, with probability 1/2 each; the adversary knows all other records, not "
    "the batches, and sees masks, directions and signs of every step; T = 1000, s = 0.005, p* of Theorem 1; "
    "nats; closed forms in ball arithmetic, no sampling error"
)


def worst_record(nats: Any, groups: int, *, steps: int = STEPS, rate: str = RATE) -> OpposedTranscript:
    """The exact game against the worst record of a run of this budget; p* is cut at 1.

    Args:
        nats: The budget, a ball.
        groups: G.
        steps: T.
        rate: s, in (0, 1], as a decimal.
    """
    sampled = ball(rate)
    firing = nats / (groups * steps * sampled * ball(2).log())
    return OpposedTranscript(
        groups=groups,
        steps=steps,
        firing_probability=firing if firing < 1 else ball(1),
        sampling_probability=sampled,
    )


@register("claim_check", "ferret_membership_nats")
@setting(IN_OUT)
@in_balls
def membership_nats(*, scale: float = 1.0, budgets: Sequence[str] = BUDGETS) -> Finding:
    """Eq. 8 in the game of in or out: so many nats, and the success that they allow.

    Args:
        scale: Multiplies the claimed nats.
        budgets: The claimed nats.
    """
    step, past = quantity("s Pr[a group fires] ln 2"), quantity("earlier steps")
    proofs = {
        "one step": certify(
            step * Fraction(scale) - information("WP", "X", "RV"),
            facts={"s Pr[a group fires] H(X)": step - information("W", "X", "RVPS"), ">= 0": step},
            equations={"masks, directions and sampling are fresh": information("SP", "XRV")},
        ),
        "one more step": certify(
            past + step - information("VW", "X", "R"),
            facts={
                "earlier steps": past - information("V", "X", "R"),
                "this step": step - information("W", "X", "RV"),
            },
        ),
    }
    lines, wrong = [], None
    for budget in budgets:
        claimed = ball(scale) * ball(budget)
        for name, groups in VARIANTS:
            found = worst_record(ball(budget), groups)
            leak, success = found.information(), found.success()
            lines.append(
                f"{budget} nats, {name} (G = {groups}, p* = {show(found.firing_probability, 3)}): the worst "
                f"record's membership leaks {show(leak, 5)} nats, guessed with probability "
                f"{show(success, 5)}; the claim allows {_success_text(claimed)}"
            )
            # By Fano's form of the bound, success above it would be too many nats as well.
            if (leak > claimed or nats_at(success) > claimed) and wrong is None:
                wrong = Counterexample(
                    sentence=(
                        f"A run of FERRET-{name} with a budget of {budget} nats leaks {show(leak)} "
                        f"nats about the worst record's membership, where {show(claimed)} are claimed."
                    ),
                    values={"budget_nats": budget, "groups": groups, "leak_nats": show(leak)}
                    | {"success": show(success), "claimed_nats": show(claimed)},
                )
    return settle(
        proof="A run leaks at most G T s p ln 2 nats about membership, so no guess beats their success"
        if all(proofs.values())
        else None,
        counterexample=wrong,
        evidence=(
            "membership is one bit: a step tells at most ln 2 nats of it, and only where the record was "
            "sampled and a group fired, which has probability s (1 - (1-p)^G) <= s G p; a zero gradient that "
            "stays silent changes nothing here",
            *(f"{name}: {found.describe() if found else 'no certificate'}" for name, found in proofs.items()),
            "success P follows from KL(P || 1/2) <= nats (data processing)",
            *lines,
        ),
    )


def _success_text(nats: Any) -> str:
    """The success that so many nats allow at prior 1/2, for a sentence."""
    if nats >= ball(2).log():
        return "every success (above ln 2 nats)"
    low, high = Fraction(1, 2), Fraction(1)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if nats_at(ball(middle)) < nats else (low, middle)
    return show(ball(low), 5)


@register("claim_check", "ferret_transcript_region")
@setting(
    IN_OUT + "; DP: add or remove that record, every update released; delta as given (the paper has none)"
)
@in_balls
def transcript_region(
    *,
    nats_per_epsilon: str = "1",
    delta: str = "1e-5",
    budgets: Sequence[str] = BUDGETS,
    steps: int = STEPS,
) -> Finding:
    """Sections 6.1, 6.9 and 8: FERRET protects as (epsilon, delta)-DP of the same number would, or better.

    Args:
        nats_per_epsilon: Nats that a FERRET run spends for each unit of DP-SGD's epsilon.
        delta: DP-SGD's.
        budgets: Epsilons.
        steps: T.
    """
    allowed = ball(delta)
    lines, wrong, enough = [], None, True
    for budget in budgets:
        nats = ball(nats_per_epsilon) * ball(budget)
        enough = enough and bool((2 * nats).sqrt() <= allowed)
        for name, groups in VARIANTS:
            found = worst_record(nats, groups, steps=steps)
            told, firing = found.tpr_without_alarms(), found.firing_probability
            average = 1 - (1 - ball(RATE) * (1 - (1 - firing * _overturned()) ** groups)) ** steps
            lines.append(
                f"epsilon = {budget}, {name}: TPR at FPR 0 is {show(told, 5)} where ({budget}, "
                f"{delta})-DP allows {delta}; an average record (a model, see above): {show(average, 3)}"
            )
            if told > allowed and wrong is None:
                wrong = Counterexample(
                    sentence=(
                        f"At epsilon = {budget} FERRET-{name}'s transcript proves the worst record's "
                        f"presence with probability {show(told, 4)}; ({budget}, {delta})-DP allows "
                        f"{delta}. No finite epsilon would do at a delta below that probability."
                    ),
                    values={"epsilon": budget, "delta": delta, "groups": groups, "steps": steps}
                    | {"sampling_probability": RATE, "firing_probability": show(firing)}
                    | {"tpr_at_fpr_0": show(told)},
                )
    return settle(
        proof="So few nats allow no test that (0, delta)-DP does not allow" if enough else None,
        counterexample=wrong,
        evidence=(
            "(epsilon, delta)-DP: TPR <= e^epsilon FPR + delta, so TPR <= delta at FPR 0",
            "the worst record: all others have one gradient, and its own outweighs any batch of them",
            f"the average record's model: its gradient and those of {BATCH} others in its batch are "
            "independent and isotropic, each group for itself, so it turns a fired sign with probability "
            f"arccos(sqrt(B/(B+1)))/pi = {show(_overturned(), 4)}; here the adversary knows the batches too",
            *lines,
        ),
    )


def _overturned() -> Any:
    """How often one of B + 1 independent Gaussian inner products decides the sign of their sum."""
    return (ball(BATCH) / (BATCH + 1)).sqrt().acos() / ball(1).atan() / 4


@register("claim_check", "ferret_head_room")
@setting(IN_OUT)
@in_balls
def head_room(*, reverse: bool = False, budgets: Sequence[str] = BUDGETS) -> Finding:
    """Sections 5.3 and 6.4: with fewer groups, at the same budget, leakage comes closer to the bound.

    Args:
        reverse: Whether the opposite is claimed.
        budgets: The budgets in nats.
    """
    lines, wrong, certain = [], None, True
    for budget in budgets:
        leaks = [(name, worst_record(ball(budget), groups).information()) for name, groups in VARIANTS]
        shares = [f"{name} {show(leak / ball(budget), 5)}" for name, leak in leaks]
        lines.append(f"{budget} nats, leaked share of the bound: {', '.join(shares)}")
        for (finer, less), (coarser, more) in pairwise(leaks):
            rises, falls = bool(more > less), bool(more < less)
            certain = certain and (falls if reverse else rises)
            if (rises if reverse else falls) and wrong is None:
                wrong = Counterexample(
                    sentence=(
                        f"At {budget} nats FERRET-{coarser} leaks {show(more)} nats about the worst record's "
                        f"membership, FERRET-{finer} {show(less)}."
                    ),
                    values={"budget_nats": budget, coarser: show(more), finer: show(less)},
                )
    return settle(
        proof=(
            f"From {VARIANTS[0][0]} to {VARIANTS[-1][0]} the worst record's leak "
            f"{'falls' if reverse else 'rises'} at every budget"
            if certain
            else None
        ),
        counterexample=wrong,
        evidence=(
            *lines,
            "several signs of one step tell no more than one, and fewer groups have fewer of them",
        ),
    )


@register("claim_check", "ferret_updates_of_any_length")
@in_balls
def updates_of_any_length(*, epochs: Sequence[int] = (1, 5), budgets: Sequence[str] = BUDGETS) -> Finding:
    """Section 6.7: a variant makes the same number of updates however many steps it takes.

    Args:
        epochs: Lengths of the runs, 1/s steps each.
        budgets: The budgets in nats.
    """
    from workbench.attacks.accountant_checks.proof import Statement, prove, real

    groups, steps, rate = real("groups", low=1), real("steps", low=1), real("rate", low=0, high=1)
    budget_of_all, ln2 = real("budget", low=0), real("ln2", low=0, high=1)
    same = prove(
        Statement(
            name="the expected number of fired signs G T p* is eps / (s ln 2), whatever T",
            assumptions=(rate > 0, ln2 > 0),
            conclusion=(groups * steps * (budget_of_all / (groups * steps * rate * ln2))).equals(
                budget_of_all / (rate * ln2)
            ),
        )
    )
    lines, wrong = [], None
    for budget in budgets:
        meant = ball(budget) / (ball(RATE) * ball(2).log())
        for count in epochs:
            length = count * RATE_STEPS
            most = ball(VARIANTS[-1][1] * length)
            lines.append(
                f"{budget} nats, {count} epoch(s): {show(meant)} signs; FERRET-2 has {length * 2} at most"
            )
            if meant > most and wrong is None:
                wrong = Counterexample(
                    sentence=(
                        f"FERRET-2 at {budget} nats should fire {show(meant)} signs, and a run of {count} "
                        f"epoch(s), {length} steps, has room for {length * 2}."
                    ),
                    values={"budget_nats": budget, "epochs": count, "signs": show(meant), "room": length * 2},
                )
    proof = "The expected number of fired signs is eps / (s ln 2), whatever G and T"
    return settle(
        proof=proof if same.verdict == VerdictKind.PROVEN else None,
        assumption="the expected number is meant, and the budget lies below the ceiling of the shortest run"
        if wrong
        else None,
        counterexample=wrong,
        evidence=(f"{same.verdict}: {same.summary}", *lines),
    )


RATE_STEPS = 200
"""1 / s: steps of one epoch, 10,000 records in batches of 50."""
