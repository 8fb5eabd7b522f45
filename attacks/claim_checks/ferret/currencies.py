"""FERRET's nats beside differential privacy: the same epsilon, budgets, the order of guarantees, the dither.

The run that is attacked: all other records have one gradient g in every step, the attacked one has a multiple
of -g that outweighs a batch of them (linear losses do this). For every public direction its presence in the
batch turns the sign, so a sign against g's shows that the record was trained on. The game: it was or it was
not, with probability 1/2 each, all else known.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from workbench.attacks.claim_checks.paczero.numerics import nats_at
from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, settle, show
from workbench.attacks.claim_checks.shared.currencies import dp_success
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

BUDGETS = ("0.1", "0.5", "1", "2")
"""Section 6.2."""

GROUPS, STEPS, RATE = (200, 2), 1000, "0.005"
"""Section 6.4: G of FERRET-MAX and of FERRET-2, T and s of all runs."""


def _telling(nats: Any, groups: int) -> tuple[Any, Any]:
    """p* of Theorem 1 (at most 1), and the probability that the attacked run shows its record."""
    rate = ball(RATE)
    fire = nats / (groups * STEPS * rate * ball(2).log())
    if not fire < 1:
        fire = ball(1)
    step = rate * (1 - (1 - fire) ** groups)
    return fire, 1 - (1 - step) ** STEPS


@register("claim_check", "ferret_same_epsilon")
@in_balls
def same_epsilon(
    *, nats_per_epsilon: str = "1", budgets: Sequence[str] = BUDGETS, delta: str = "1e-5"
) -> Finding:
    """FERRET, H1 and H3: at the same epsilon (nats against DPSGD's at this delta) privacy is equivalent."""
    lines, wrong, bounded = [], None, True
    for budget in budgets:
        nats, allowed = ball(nats_per_epsilon) * ball(budget), dp_success(budget, delta)
        bounded = bounded and bool(nats <= nats_at(allowed))
        runs = [(groups, *_telling(nats, groups)) for groups in GROUPS]
        success = [(1 + told) / 2 for _, _, told in runs]
        lines.append(
            f"epsilon = {budget}: ({budget}, {delta})-DP allows success {show(allowed)}, as "
            f"{show(nats_at(allowed))} nats would; FERRET runs of {show(nats)} nats: "
            + ", ".join(
                f"{show(one)} (G = {groups}, p* = {show(fire, 4)})"
                for one, (groups, fire, _) in zip(success, runs, strict=True)
            )
        )
        if all(one > allowed for one in success) and wrong is None:
            wrong = Counterexample(
                sentence=(
                    f"At epsilon = {budget} membership in a FERRET-MAX run is guessed with probability "
                    f"{show(success[0], 4)}; DP-SGD at ({budget}, {delta}) allows {show(allowed, 4)} at "
                    f"most, which is {show(nats_at(allowed), 3)} nats."
                ),
                values={
                    "epsilon": budget,
                    "groups": GROUPS[0],
                    "steps": STEPS,
                    "sampling_probability": RATE,
                    "firing_probability": show(runs[0][1]),
                    "success": show(success[0]),
                    "dp_success": show(allowed),
                    "delta": delta,
                },
            )
    return settle(
        proof="At these budgets so many nats allow no more membership success than DP at its epsilon"
        if bounded and wrong is None
        else None,
        counterexample=wrong,
        evidence=(
            f"the runs: T = {STEPS}, s = {RATE}, p* of Theorem 1; a record that turns every sign; it is "
            "present or absent with probability 1/2 each, all else known; guess 'present' where a turned "
            "sign is seen: success (1 + Pr[one is seen]) / 2, Pr = 1 - (1 - s (1 - (1-p)^G))^T",
            *lines,
        ),
    )


@register("claim_check", "ferret_informative_budgets")
@in_balls
def informative_budgets(*, budgets: Sequence[str] = BUDGETS) -> Finding:
    """FERRET, abstract: every budget in [0.1, 2] nats is a guarantee against certain membership inference."""
    ceiling = ball(2).log()
    below = any(ball(budget) < ceiling for budget in budgets)
    lines, wrong = [], None
    for budget in budgets:
        full = ball(budget) >= ceiling
        lines.append(
            f"{budget} nats: {'above' if full else 'below'} ln 2; at p* (T = {STEPS}, s = {RATE}, G = "
            f"{GROUPS[0]}) a guess against the attacked run is right with probability "
            f"{show((1 + _telling(ball(budget), GROUPS[0])[1]) / 2)}"
        )
        if full and wrong is None:
            wrong = Counterexample(
                sentence=(
                    f"A budget of {budget} nats is above ln 2 = {show(ceiling)}, all that a fair membership "
                    "bit holds: one step of one group with p = 1 on all records keeps it, and every guess is "
                    "right."
                ),
                values={"budget_nats": budget, "groups": 1, "steps": 1, "p": 1, "s": 1, "success": 1},
            )
    return settle(
        proof="The budget keeps membership success below 1 (Eq. 2 of PACZero, at prior 1/2)"
        if below
        else None,
        assumption=None if wrong is None else f"the budget is below ln 2 = {show(ceiling)} nats",
        counterexample=wrong,
        evidence=(
            "what the number of nats alone excludes; a run at p* < 1 may stay silent, so that its own "
            "success is below 1 at every budget",
            *lines,
        ),
    )


@register("claim_check", "ferret_ordering")
@in_balls
def ordering(*, budget: str = "0.5", delta: str = "1e-5") -> Finding:
    """FERRET, section 8: epsilon-DP implies epsilon-MI-DP, and that implies (epsilon, delta)-DP."""
    from workbench.attacks.accountant_checks.proof import Statement, prove, real

    q = real("q", low=0, high=1)
    curved = prove(Statement(name="q (1-q) <= 1/4, so h'' <= -4", conclusion=q * (1 - q) <= Fraction(1, 4)))
    here, other, weight = real("P(y|x)", low=0), real("P(y|x')", low=0), real("weight", low=0, high=1)
    bound = real("e^epsilon", low=1)
    mixed = weight * here + (1 - weight) * other
    first = prove(
        Statement(
            name="P(y|x) <= e^eps P(y|x') implies P(y|x) <= e^eps (w P(y|x) + (1-w) P(y|x'))",
            assumptions=(here <= bound * other,),
            conclusion=here <= bound * mixed,
        )
    )
    proven = first.verdict == curved.verdict == VerdictKind.PROVEN
    enough = (2 * ball(budget)).sqrt()
    _, told = _telling(ball(budget), GROUPS[0])
    implied = bool(ball(delta) >= enough)
    return settle(
        proof="epsilon-DP implies at most epsilon nats, and these imply (0, sqrt(2 epsilon))-DP"
        if proven
        else None,
        assumption=None
        if implied
        else f"delta is at least sqrt(2 epsilon) ({show(enough, 4)} at {budget} nats), and leakage is "
        "counted given the other records for every law of the data",
        counterexample=Counterexample(
            sentence=(
                f"A FERRET-MAX run of {budget} nats is not (epsilon, {delta})-DP for any epsilon: with "
                f"probability {show(told, 4)} it releases a sign that is impossible without the record."
            ),
            values={"nats": budget, "delta": delta, "impossible_without": show(told)},
        )
        if told > ball(delta)
        else None,
        evidence=(
            "epsilon-DP: P(y|x) / P(y) <= e^epsilon, so the expected logarithm is at most epsilon",
            "a fair coin between two neighbours leaks h((a+b)/2) - (h(a) + h(b))/2 >= (a-b)^2 / 2 by any "
            "test with powers a and b (data processing; h'' <= -4), so |a-b| <= sqrt(2 nats)",
            *first.evidence,
            *curved.evidence,
            f"the run: G = {GROUPS[0]}, T = {STEPS}, s = {RATE}, p* of Theorem 1, a record that turns every "
            "sign; add or remove it",
        ),
    )


@register("claim_check", "ferret_dither_certificate")
@in_balls
def dither_certificate(
    *, dither: str = "0.001", nats: str = "0.5", groups: int = GROUPS[0], useful_epsilon: str = "10"
) -> Finding:
    """FERRET, section 11.3: a dither of at most 1e-3 of the clip norm makes DP accountants usable.

    Args:
        dither: sigma / C.
        nats: Budget of the run, from which p* follows.
        groups: G.
        useful_epsilon: An epsilon above this, at delta = 1e-5, does not count as a certificate; ours.
    """
    shift, delta = 1 / ball(dither), ball("1e-5")
    fire, told = _telling(ball(nats), groups)
    error = (shift / 2 / ball(2).sqrt()).erfc() / 2
    caught, mistaken = told * (1 - error), groups * STEPS * error
    least = ((caught - delta) / mistaken).log()
    useful = not least > ball(useful_epsilon)
    return settle(
        proof="The divergence is finite at every order, so accountants give a number",
        assumption=f"an epsilon of at least {show(least)} at delta = 1e-5, for a run, counts as a certificate"
        if not useful
        else f"this attack's lower bound of {show(least)} on epsilon leaves room for a useful certificate",
        counterexample=None
        if useful
        else Counterexample(
            sentence=(
                f"With sigma = {dither} C a run of {nats} nats (p* = {show(fire, 3)}) has epsilon >= "
                f"{show(least)} at delta = 1e-5."
            ),
            values={"sigma/C": dither, "p": show(fire), "epsilon_lower": show(least), "delta": "1e-5"},
        ),
        evidence=(
            "Gaussian mixtures of one width: every moment of their ratio is finite",
            f"G = {groups}, T = {STEPS}, s = {RATE}; test whether any release lies beyond C / 2 on the "
            f"record's side of its direction: probability at least {show(caught)} with the record, at most "
            f"{show(mistaken, 3)} without (all {groups * STEPS} releases)",
            f"epsilon >= ln((TPR - delta) / FPR) = {show(least)} at delta = 1e-5",
        ),
    )
