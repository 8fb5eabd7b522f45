"""FERRET's run against its worst record, exactly: nats, success and trade-off, beside differential privacy.

The worst record opposes all others, which are copies of one, and outweighs any batch of them (linear losses
do this): its presence in a batch turns the signs of all groups that fire, so a turned sign is impossible
without it (`OpposedTranscript`). The game: it was trained on or it was not, with probability 1/2 each, all
else known.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from workbench.attacks.accountant_checks.proof import real
from workbench.attacks.claim_checks.ferret.sign_channel import OpposedTranscript
from workbench.attacks.claim_checks.ferret.tables import expected_signs
from workbench.attacks.claim_checks.shared.claims import (
    ball,
    counterexample_if,
    gaussian_delta,
    in_balls,
    is_proven,
    nats_at,
    prove_that,
    setting,
    settle,
    show,
    success_under_dp,
    tail,
)
from workbench.attacks.claim_checks.shared.information import certify, information, quantity
from workbench.core.registry import register
from workbench.interfaces.findings import Finding, assume

VARIANTS = (("MAX", 200), ("HALF", 100), ("QUARTER", 50), ("EIGHTH", 25), ("2", 2))
"""Section 6.4's 200 tensors: one, two, four and eight a group, and two halves."""
STEPS, RATE, EPOCH, BATCH = 1000, "0.005", 200, 50
"""Sections 6.2 and 6.4: T, s, 1 / s and B of all runs."""
GROUPS = VARIANTS[0][1]
"""G of FERRET-MAX."""
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
def membership_nats(*, scale: float = 1.0, budgets: Sequence[str] = BUDGETS) -> Finding:
    """Eq. 8 in the game of in or out: so many nats, and the success that they allow.

    `scale`: multiplies the claimed nats. `budgets`: the claimed nats.
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
            run = worst_record(ball(budget), groups)
            leak, success = run.information(), run.success()
            lines.append(
                f"{budget} nats, {name} (G = {groups}, p* = {show(run.firing_probability, 3)}): the worst "
                f"record's membership leaks {show(leak, 5)} nats, guessed with probability "
                f"{show(success, 5)}; the claim allows {_success_text(claimed)}"
            )
            # By Fano's form of the bound, success above it would be too many nats as well.
            wrong = wrong or counterexample_if(
                (leak > claimed or nats_at(success) > claimed),
                f"A run of FERRET-{name} with a budget of {budget} nats leaks {show(leak)} nats about the "
                f"worst record's membership, where {show(claimed)} are claimed.",
                {"budget_nats": budget, "groups": groups, "leak_nats": show(leak)}
                | {"success": show(success), "claimed_nats": show(claimed)},
            )
    return settle(
        "membership is one bit: a step tells at most ln 2 nats of it, and only where the record was sampled "
        "and a group fired, which has probability s (1 - (1-p)^G) <= s G p; a zero gradient that stays "
        "silent changes nothing here",
        *(f"{name}: {run.describe() if run else 'no certificate'}" for name, run in proofs.items()),
        "success P follows from KL(P || 1/2) <= nats (data processing)",
        *lines,
        proof="A run leaks at most G T s p ln 2 nats about membership, so no guess beats their success",
        proven=all(proofs.values()),
        counterexample=wrong,
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
def transcript_region(
    *, nats_per_epsilon: str = "1", delta: str = "1e-5", budgets: Sequence[str] = BUDGETS, steps: int = STEPS
) -> Finding:
    """Sections 6.1, 6.9 and 8: FERRET protects as (epsilon, delta)-DP of the same number would, or better.

    `nats_per_epsilon`: nats that a FERRET run spends for each unit of DP-SGD's epsilon. `delta`: DP-SGD's.
    `budgets`: Epsilons. `steps`: T.
    """
    allowed = ball(delta)
    lines, wrong, enough = [], None, True
    for budget in budgets:
        nats = ball(nats_per_epsilon) * ball(budget)
        enough = enough and bool((2 * nats).sqrt() <= allowed)
        for name, groups in VARIANTS:
            run = worst_record(nats, groups, steps=steps)
            tpr, firing = run.tpr_without_alarms(), run.firing_probability
            average = 1 - (1 - ball(RATE) * (1 - (1 - firing * _overturned()) ** groups)) ** steps
            lines.append(
                f"epsilon = {budget}, {name}: TPR at FPR 0 is {show(tpr, 5)} where ({budget}, {delta})-DP "
                f"allows {delta}; an average record (a model, see above): {show(average, 3)}"
            )
            wrong = wrong or counterexample_if(
                tpr > allowed,
                f"At epsilon = {budget} FERRET-{name}'s transcript proves the worst record's presence with "
                f"probability {show(tpr, 4)}; ({budget}, {delta})-DP allows {delta}. No finite epsilon would "
                "do at a delta below that probability.",
                {"epsilon": budget, "delta": delta, "groups": groups, "steps": steps}
                | {"sampling_probability": RATE, "firing_probability": show(firing)}
                | {"tpr_at_fpr_0": show(tpr)},
            )
    return settle(
        "(epsilon, delta)-DP: TPR <= e^epsilon FPR + delta, so TPR <= delta at FPR 0",
        "the worst record: all others have one gradient, and its own outweighs any batch of them",
        f"the average record's model: its gradient and those of {BATCH} others in its batch are independent "
        "and isotropic, each group for itself, so it turns a fired sign with probability "
        f"arccos(sqrt(B/(B+1)))/pi = {show(_overturned(), 4)}; here the adversary knows the batches too",
        *lines,
        proof="So few nats allow no test that (0, delta)-DP does not allow" if enough else None,
        counterexample=wrong,
    )


def _overturned() -> Any:
    """How often one of B + 1 independent Gaussian inner products decides the sign of their sum."""
    return (ball(BATCH) / (BATCH + 1)).sqrt().acos() / ball(1).atan() / 4


@register("claim_check", "ferret_head_room")
@setting(IN_OUT)
def head_room(*, reverse: bool = False, budgets: Sequence[str] = BUDGETS) -> Finding:
    """Sections 5.3 and 6.4: with fewer groups, at the same budget, leakage comes closer to the bound.

    `reverse`: whether the opposite is claimed. `budgets`: the budgets in nats.
    """
    lines, wrong, certain = [], None, True
    for budget in budgets:
        leaks = [(name, worst_record(ball(budget), groups).information()) for name, groups in VARIANTS]
        shares = [f"{name} {show(leak / ball(budget), 5)}" for name, leak in leaks]
        lines.append(f"{budget} nats, leaked share of the bound: {', '.join(shares)}")
        for (finer, less), (coarser, more) in pairwise(leaks):
            rises, falls = bool(more > less), bool(more < less)
            certain = certain and (falls if reverse else rises)
            wrong = wrong or counterexample_if(
                rises if reverse else falls,
                f"At {budget} nats FERRET-{coarser} leaks {show(more)} nats about the worst record's "
                f"membership, FERRET-{finer} {show(less)}.",
                {"budget_nats": budget, coarser: show(more), finer: show(less)},
            )
    return settle(
        *lines,
        "several signs of one step tell no more than one, and fewer groups have fewer of them",
        proof=f"From {VARIANTS[0][0]} to {VARIANTS[-1][0]} the worst record's leak "
        f"{'falls' if reverse else 'rises'} at every budget",
        proven=certain,
        counterexample=wrong,
    )


@register("claim_check", "ferret_updates_of_any_length")
@in_balls
def updates_of_any_length(*, epochs: Sequence[int] = (1, 5), budgets: Sequence[str] = BUDGETS) -> Finding:
    """Section 6.7: a variant makes the same number of updates however many steps it takes.

    `epochs`: lengths of the runs, 1/s steps each. `budgets`: the budgets in nats.
    """
    same = expected_signs("T")
    lines, wrong = [], None
    for budget in budgets:
        meant = ball(budget) / (ball(RATE) * ball(2).log())
        for count in epochs:
            length = count * EPOCH
            most = ball(VARIANTS[-1][1] * length)
            lines.append(
                f"{budget} nats, {count} epoch(s): {show(meant)} signs; FERRET-2 has {length * 2} at most"
            )
            wrong = wrong or counterexample_if(
                meant > most,
                f"FERRET-2 at {budget} nats should fire {show(meant)} signs, and a run of {count} epoch(s), "
                f"{length} steps, has room for {length * 2}.",
                {"budget_nats": budget, "epochs": count, "signs": show(meant), "room": length * 2},
            )
    proof = "The expected number of fired signs is eps / (s ln 2), whatever G and T"
    return settle(
        f"{same.verdict}: {same.summary}",
        *lines,
        proof=proof if is_proven(same) else None,
        counterexample=wrong,
        assumption=assume(
            "the expected number is meant, and the budget lies below the ceiling of the shortest run",
            lambda budget, count, number: (
                number == "expected"
                and ball(budget) / (ball(RATE) * ball(2).log()) <= VARIANTS[-1][1] * count * EPOCH
            ),
            claimed={"budgets": tuple(budgets), "epochs": tuple(epochs)},
            left_open={"number of updates": ("expected", "realised")},
        ),
    )


@register("claim_check", "ferret_same_epsilon")
@in_balls
def same_epsilon(
    *, nats_per_epsilon: str = "1", budgets: Sequence[str] = BUDGETS, delta: str = "1e-5"
) -> Finding:
    """FERRET, H1 and H3: at the same epsilon (nats against DPSGD's at this delta) privacy is equivalent."""
    lines, wrong, bounded = [], None, True
    for budget in budgets:
        nats, allowed = ball(nats_per_epsilon) * ball(budget), success_under_dp(budget, delta)
        bounded = bounded and bool(nats <= nats_at(allowed))
        runs = [worst_record(nats, groups) for groups in (GROUPS, VARIANTS[-1][1])]
        success = [run.success() for run in runs]
        lines.append(
            f"epsilon = {budget}: ({budget}, {delta})-DP allows success {show(allowed)}, as "
            f"{show(nats_at(allowed))} nats would; FERRET runs of {show(nats)} nats: "
            + ", ".join(
                f"{show(right)} (G = {run.groups}, p* = {show(run.firing_probability, 4)})"
                for right, run in zip(success, runs, strict=True)
            )
        )
        wrong = wrong or counterexample_if(
            all(right > allowed for right in success),
            f"At epsilon = {budget} membership in a FERRET-MAX run is guessed with probability "
            f"{show(success[0], 4)}; DP-SGD at ({budget}, {delta}) allows {show(allowed, 4)} at most, which "
            f"is {show(nats_at(allowed), 3)} nats.",
            {"epsilon": budget, "groups": GROUPS, "steps": STEPS, "sampling_probability": RATE},
            {"firing_probability": show(runs[0].firing_probability), "success": show(success[0])},
            {"dp_success": show(allowed), "delta": delta},
        )
    return settle(
        f"the runs: T = {STEPS}, s = {RATE}, p* of Theorem 1; a record that turns every sign; it is present "
        "or absent with probability 1/2 each, all else known; guess 'present' where a turned sign is seen: "
        "success (1 + Pr[one is seen]) / 2, Pr = 1 - (1 - s (1 - (1-p)^G))^T",
        *lines,
        proof="At these budgets so many nats allow no more membership success than DP at its epsilon",
        proven=bounded and wrong is None,
        counterexample=wrong,
    )


@register("claim_check", "ferret_informative_budgets")
@in_balls
def informative_budgets(*, budgets: Sequence[str] = BUDGETS) -> Finding:
    """FERRET, abstract: every budget in [0.1, 2] nats is a guarantee against certain membership inference."""
    ceiling = ball(2).log()
    lines, wrong = [], None
    for budget in budgets:
        full = ball(budget) >= ceiling
        lines.append(
            f"{budget} nats: {'above' if full else 'below'} ln 2; at p* (T = {STEPS}, s = {RATE}, G = "
            f"{GROUPS}) a guess against the attacked run is right with probability "
            f"{show(worst_record(ball(budget), GROUPS).success())}"
        )
        wrong = wrong or counterexample_if(
            full,
            f"A budget of {budget} nats is above ln 2 = {show(ceiling)}, all that a fair membership bit "
            "holds: one step of one group with p = 1 on all records keeps it, and every guess is right.",
            {"budget_nats": budget, "groups": 1, "steps": 1, "p": 1, "s": 1, "success": 1},
        )
    return settle(
        "what the number of nats alone excludes; a run at p* < 1 may stay silent, so that its own success is "
        "below 1 at every budget",
        *lines,
        proof="The budget keeps membership success below 1 (Eq. 2 of PACZero, at prior 1/2)",
        counterexample=wrong,
        assumption=assume(
            f"the budget is below ln 2 = {show(ceiling)} nats",
            lambda budget: ball(budget) < ceiling,
            claimed={"budgets": tuple(budgets)},
        ),
    )


@register("claim_check", "ferret_ordering")
@in_balls
def ordering(*, budget: str = "0.5", delta: str = "1e-5") -> Finding:
    """FERRET, section 8: epsilon-DP implies epsilon-MI-DP, and that implies (epsilon, delta)-DP."""
    q = real("q", low=0, high=1)
    curved = prove_that("q (1-q) <= 1/4, so h'' <= -4", q * (1 - q) <= Fraction(1, 4))
    here, other, weight = real("P(y|x)", low=0), real("P(y|x')", low=0), real("weight", low=0, high=1)
    bound = real("e^epsilon", low=1)
    mixed = weight * here + (1 - weight) * other
    first = prove_that(
        "P(y|x) <= e^eps P(y|x') implies P(y|x) <= e^eps (w P(y|x) + (1-w) P(y|x'))",
        here <= bound * mixed,
        here <= bound * other,
    )
    proven = is_proven(first, curved)
    enough = (2 * ball(budget)).sqrt()
    tpr = worst_record(ball(budget), GROUPS).tpr_without_alarms()
    return settle(
        "epsilon-DP: P(y|x) / P(y) <= e^epsilon, so the expected logarithm is at most epsilon",
        "a fair coin between two neighbours leaks h((a+b)/2) - (h(a) + h(b))/2 >= (a-b)^2 / 2 by any test "
        "with powers a and b (data processing; h'' <= -4), so |a-b| <= sqrt(2 nats)",
        *first.evidence,
        *curved.evidence,
        f"the run: G = {GROUPS}, T = {STEPS}, s = {RATE}, p* of Theorem 1, "
        "a record that turns every sign; add or remove it",
        proof="epsilon-DP implies at most epsilon nats, and these imply (0, sqrt(2 epsilon))-DP",
        proven=proven,
        counterexample=counterexample_if(
            tpr > ball(delta),
            f"A FERRET-MAX run of {budget} nats is not (epsilon, {delta})-DP for any epsilon: with "
            f"probability {show(tpr, 4)} it releases a sign that is impossible without the record.",
            {"nats": budget, "delta": delta, "impossible_without": show(tpr)},
        ),
        assumption=assume(
            f"delta is at least sqrt(2 epsilon), {show(enough, 4)} at {budget} nats",
            lambda nats, allowed: ball(allowed) >= (2 * ball(nats)).sqrt(),
            claimed={"budget": budget, "delta": delta},
        ),
    )


@register("claim_check", "ferret_dither_certificate")
@setting(
    "add or remove a record; every release of a run of T = 1000 steps, s = 0.005, p* at the budget; "
    "delta 1e-5; balls, nothing is sampled"
)
def dither_certificate(
    *, dither: str = "0.001", nats: str = "0.5", groups: int = GROUPS, useful_epsilon: str = "10"
) -> Finding:
    """FERRET, section 11.3: a dither of at most 1e-3 of the clip norm makes DP accountants usable.

    `dither`: sigma / C. `nats`: budget of the run, from which p* follows. `groups`: G. `useful_epsilon`: the
    largest epsilon, at delta = 1e-5, that counts as a certificate; ours.
    """
    shift, delta, budget = 1 / ball(dither), ball("1e-5"), ball(useful_epsilon)
    run = worst_record(ball(nats), groups)
    error = tail(shift / 2)
    caught, mistaken = run.tpr_without_alarms() * (1 - error), groups * STEPS * error
    # Of a test that is never better than chance nothing is shown: its epsilon may be below 0, or nan.
    least = ((caught - delta) / mistaken).log() if caught > delta + mistaken else ball(0)
    most = dithered_delta(run, shift, budget)
    return settle(
        "Gaussian mixtures of one width: every moment of their ratio is finite, so an accountant gives a "
        f"number; read as one of use, epsilon at most {useful_epsilon} at delta = 1e-5 (10: five times "
        "the largest budget of the paper, unless altered)",
        f"lower: G = {groups}; test whether any release lies beyond C / 2 on the record's side of its "
        f"direction: probability at least {show(caught)} with the record, at most {show(mistaken, 3)} "
        f"without (all {groups * STEPS} releases); epsilon >= ln((TPR - delta) / FPR) = {show(least)}",
        "upper: with all masks and the record's batches shown, a run is k shifts by at most 2 C, a Gaussian "
        f"release of mu = 2 sqrt(k) C / sigma: delta({useful_epsilon}) <= {show(most)}, averaged over k",
        proof=f"A run of {nats} nats with sigma = {dither} C is ({useful_epsilon}, 1e-5)-DP",
        proven=most <= delta,
        counterexample=counterexample_if(
            least > budget,
            f"With sigma = {dither} C a run of {nats} nats (p* = {show(run.firing_probability, 3)}) has "
            f"epsilon >= {show(least)} at delta = 1e-5.",
            {"sigma/C": dither, "p": show(run.firing_probability), "epsilon_lower": show(least)},
            {"delta": "1e-5"},
        ),
    )


MOST_SHIFTS = 40
"""More releases than these that hold the record count as told for certain."""


def dithered_delta(run: OpposedTranscript, shift: Any, epsilon: Any) -> Any:
    """An upper bound on the dithered run's delta(epsilon): the mean over how many releases hold the record.

    A step holds it with probability s, and then each of G groups fires with probability p; masks and coins do
    not depend on the data, so showing them only helps the adversary.
    """
    from flint import arb_series, ctx

    previous = ctx.cap
    ctx.cap = MOST_SHIFTS + 1
    try:
        p, s = run.firing_probability, run.sampling_probability
        counts = (1 - s + s * arb_series([1 - p, p]) ** run.groups) ** run.steps
        masses = [counts[k] for k in range(MOST_SHIFTS + 1)]
    finally:
        ctx.cap = previous
    told = sum(
        (mass * gaussian_delta(2 * shift * ball(k).sqrt(), epsilon) for k, mass in enumerate(masses) if k),
        ball(0),
    )
    return told + 1 - sum(masses, ball(0))
