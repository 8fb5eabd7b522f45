"""PACZero: the conversion to attack success (Eq. 2), the lemma, the theorems and their corollaries.

Letters in the information forms: J (or S) the secret index, K the secret subset's sign, W the noisy value, Y
the released bit, V earlier outputs, Z the public directions, B a record's membership, C a fair coin.
`scale` multiplies the claimed bound; the tests turn it to see the verdict change.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from workbench.attacks.claim_checks.paczero.binary_channel import binary_mi, noise_between
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    binary_entropy,
    binary_kl,
    from_statement,
    in_balls,
    setting,
    settle,
    show,
)
from workbench.attacks.claim_checks.shared.information import (
    ABOUT_A_SUBSET,
    FiniteLaw,
    certify,
    entropy,
    information,
    quantity,
)
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

HALF = Fraction(1, 2)


def _flipped(flip: Fraction) -> FiniteLaw:
    """A fair secret bit, released after a flip with this probability."""
    return FiniteLaw(
        "SY", {(s, s ^ f): HALF * (flip if f else 1 - flip) for s, f in product((0, 1), repeat=2)}
    )


def _flip_counterexample(scale: float) -> Counterexample | None:
    """The flipped bit, where the posterior bound is attained."""
    law = _flipped(Fraction(1, 10))
    leak = law.information("S", "Y")
    divergence = binary_kl(ball(law.success("S", "Y")), ball(HALF))
    if not divergence > ball(scale) * leak:
        return None
    return Counterexample(
        sentence=(
            f"A fair secret bit released with flips of 1/10 leaks {show(leak)} nats and is guessed with "
            f"probability 9/10, KL(9/10 || 1/2) = {show(divergence)} > {show(ball(scale) * leak)}."
        ),
        values={"flip": "1/10", "success": "9/10", "kl_nats": show(divergence), "leak_nats": show(leak)},
    )


@register("claim_check", "paczero_eq_2")
@in_balls
def eq_2(*, scale: float = 1.0) -> Finding:
    """Eq. 2: KL(success || best blind success) is at most the mutual information, for every adversary."""
    from workbench.attacks.accountant_checks.proof import Statement, prove, real

    p, q = real("p", low=0, high=1), real("q", low=0, high=1)
    slope = prove(
        Statement(
            name="d/dq KL(p || q) = (q - p) / (q (1 - q)) <= 0 for q <= p",
            assumptions=(q > 0, q < 1, q <= p),
            conclusion=(q - p) / (q * (1 - q)) <= 0,
        )
    )
    blind, bad = Fraction(9, 10), Fraction(1, 10)
    divergence = binary_kl(ball(bad), ball(blind))
    leak = FiniteLaw("XY", {("common", 0): blind, ("rare", 0): bad}).information("X", "Y")
    tight = _flip_counterexample(scale)
    proven = slope.verdict == VerdictKind.PROVEN and Fraction(scale) >= 1
    evidence = (
        "KL(p || q) <= I for p the adversary's success and q its success against an independent copy (data "
        "processing), and q <= 1 - delta_0; so KL(p || 1 - delta_0) <= KL(p || q) where 1 - delta_0 <= p:",
        *slope.evidence,
        f"a secret of law (9/10, 1/10), nothing released (I = {show(leak, 3)}), and an adversary that "
        "always names "
        f"the rare one: KL(1/10 || 9/10) = {show(divergence, 8)} > 0",
    )
    worse = Counterexample(
        sentence=(
            "An adversary that always names the rarer of two secrets of law (9/10, 1/10) succeeds with "
            "probability "
            f"1/10; nothing is released, yet KL(1/10 || 9/10) = {show(divergence)} nats."
        ),
        values={"prior": ["9/10", "1/10"], "success": "1/10", "kl_nats": show(divergence), "leak_nats": "0"},
    )
    return settle(
        proof="KL(success || best blind success) is at most the nats released" if proven else None,
        assumption="the adversary succeeds at least as often as the best blind guess",
        counterexample=tight or (worse if divergence > 0 else None),
        evidence=evidence,
    )


@register("claim_check", "paczero_eq_3")
@in_balls
def eq_3(*, scale: float = 1.0) -> Finding:
    """Eq. 3: I(X; Y_1..Y_T) is the sum of the conditional informations."""
    parts = information("X", "V") + information("X", "W", "V")
    difference = parts * Fraction(scale) - information("X", "VW")
    above, below = certify(difference), certify(-difference)
    law = FiniteLaw("XVW", {(x, v, x ^ v): Fraction(1, 4) for x, v in product((0, 1), repeat=2)})
    joint = law.information("X", "VW")
    summed = ball(scale) * (law.information("X", "V") + law.information("X", "W", "V"))
    return settle(
        proof="The chain rule holds for any two parts, hence by induction for T" if above and below else None,
        counterexample=None
        if joint.overlaps(summed)
        else Counterexample(
            sentence=f"A masked bit and its mask: together {show(joint)} nats, summed {show(summed)}.",
            values={"joint_nats": show(joint), "summed_nats": show(summed)},
        ),
        evidence=(
            f"sum - joint >= 0: {above.describe() if above else 'no certificate'}",
            f"joint - sum >= 0: {below.describe() if below else 'no certificate'}",
        ),
    )


@register("claim_check", "paczero_lemma_2")
@setting(ABOUT_A_SUBSET)
@in_balls
def lemma_2(*, capped: bool = False, agreement: str = "1/128", budget: str = "0.33") -> Finding:
    """Lemma 2: a step leaks 0 nats on unanimity and exactly beta_t on disagreement.

    Args:
        capped: Whether beta_t is first capped at 0.999 h(q+), as section 3.1 and appendix C have it and
            Algorithm 1's box has not.
        agreement, budget: q+ and beta_t of the step that is tried.
    """
    given = {"K is a function of J": entropy("K", "J"), "W depends on J by K": information("J", "W", "K")}
    up = certify(information("K", "W") - information("J", "W"), equations=given)
    down = certify(information("J", "W") - information("K", "W"), equations=given)
    bit = certify(
        information("J", "W") - information("J", "Y"), equations={"Y from W": information("J", "Y", "W")}
    )
    constant = certify(-information("J", "W"), equations={"unanimity: W is constant": entropy("W")})
    q, wanted = Fraction(agreement), Fraction(budget)
    ceiling = binary_entropy(ball(q))
    feasible = capped or ball(wanted) < ceiling
    lines = []
    if feasible:
        target = Fraction(str((ceiling * ball("0.999")).mid().str(20, radius=False)))
        target = min(target, wanted) if capped else wanted
        low, high = noise_between(q, target)
        leak = binary_mi(q, high)
        lines.append(
            f"q+ = {q}, beta = {float(target):.8g}: sigma = {float(low):.10g}, leak {show(leak, 8)} nats"
        )
    proofs = (up, down, bit, constant)
    evidence = (
        *(f"certificate: {proof.describe() if proof else 'none'}" for proof in proofs),
        "the leak falls continuously from h(q+) to 0 as sigma grows, so every beta in (0, h(q+)) has its "
        "sigma; the signs are any, so clipping does not enter",
        f"q+ = {q}: h(q+) = {show(ceiling, 8)} nats, budget {budget}",
        *lines,
    )
    return settle(
        proof="A step's leak is exactly its charge, and its bit leaks no more" if all(proofs) else None,
        assumption=None
        if capped
        else "the budget lies below h(q+), as section 3.1 and appendix C cap it and Algorithm 1's box does "
        "not",
        counterexample=None
        if feasible
        else Counterexample(
            sentence=(
                f"With q+ = {q} a budget of {budget} nats has no noise: one sign leaks at most h(q+) = "
                f"{show(ceiling)}. (It happens when earlier steps were unanimous and budget piled up.)"
            ),
            values={"q_plus": agreement, "budget_nats": budget, "largest_leak_nats": show(ceiling)},
        ),
        evidence=evidence,
    )


@register("claim_check", "paczero_eq_6")
@in_balls
def eq_6(*, scale: float = 1.0) -> Finding:
    """Eq. 6: the adaptive allocation never spends more than MI_tot, whatever the steps turn out to be."""
    return from_statement(
        _never_overspends(scale),
        proof="The budget used stays in [0, MI_tot] after every step, for any total, horizon and sequence",
        note="induction: the budget used starts at 0; a step uses anything from 0 (unanimity) to its "
        "share (a cap only lowers it); remaining = T - t + 1 >= 1",
    )


def _never_overspends(scale: float) -> Finding:
    from workbench.attacks.accountant_checks.proof import And, Statement, maximum, prove, real

    total, used, spent = real("total", low=0), real("used", low=0), real("spent", low=0)
    remaining = real("remaining", low=1)
    share = maximum(0, total - used) / remaining * Fraction(scale)
    return prove(
        Statement(
            name="used <= total before a step implies the same after it",
            assumptions=(used <= total, spent <= share),
            conclusion=And(used + spent >= 0, used + spent <= total),
        )
    )


@register("claim_check", "paczero_theorem_3")
@setting(ABOUT_A_SUBSET)
@in_balls
def theorem_3(*, scale: float = 1.0, budget: str = "0.33") -> Finding:
    """Theorem 3: a PACZero-MI run leaks at most MI_tot nats about the secret subset."""
    spent, step = quantity("spent"), quantity("this step")
    proofs = {
        "directions are public": certify(
            information("S", "Y", "Z") - information("S", "Y"),
            equations={"directions independent of the secret": information("S", "Z")},
        ),
        "the bits are a function of the noisy values": certify(
            information("S", "W", "Z") - information("S", "Y", "Z"),
            equations={"Y from W": information("S", "Y", "WZ")},
        ),
        "one more step": certify(
            spent + step - information("S", "VW", "Z"),
            facts={
                "earlier steps": spent - information("S", "V", "Z"),
                "Lemma 2, averaged over the past": step - information("S", "W", "VZ"),
            },
        ),
    }
    lemma, allocation = lemma_2(capped=True), _never_overspends(1.0)
    nats = Fraction(budget)
    _, high = noise_between(HALF, nats)
    flip = 1 - (ball(-1) / ball(high) / ball(2).sqrt()).erfc() / 2
    leak = ball(2).log() - binary_entropy(flip)
    steps_hold = all(proofs.values()) and allocation.verdict == lemma.verdict == VerdictKind.PROVEN
    proven = steps_hold and Fraction(scale) >= 1
    claimed = ball(scale) * ball(nats)
    evidence = (
        *(f"{name}: {proof.describe() if proof else 'no certificate'}" for name, proof in proofs.items()),
        f"Lemma 2 with the cap: {lemma.verdict}; Eq. 6: {allocation.verdict}",
        f"one step, two candidates that disagree, {budget} nats: the released bit leaks {show(leak, 8)} "
        "nats, for "
        "the ledger charges the noisy value that is not released",
    )
    return settle(
        proof="A run leaks at most MI_tot nats about which subset was trained on" if proven else None,
        counterexample=Counterexample(
            sentence=f"One step at {budget} nats leaks {show(leak)} by its bit, more than {show(claimed)}.",
            values={"budget_nats": budget, "leak_nats": show(leak), "claimed_nats": show(claimed)},
        )
        if leak > claimed
        else None,
        evidence=evidence,
    )


@register("claim_check", "paczero_realised_sum")
@setting(ABOUT_A_SUBSET)
@in_balls
def realised_sum(*, averaged: bool = False, budget: str = "0.33", steps: int = 1000) -> Finding:
    """Section 3.1: a run's nats are at most the sum of the charges beta_used, which depends on the run.

    Args:
        averaged: Whether the sum is averaged over runs, as Eq. 11 has it.
        budget, steps: MI_tot and T of the run that is tried.
    """
    step = certify(
        quantity("charged so far") + quantity("mean charge") - information("S", "VW", "Z"),
        facts={
            "charged so far": quantity("charged so far") - information("S", "V", "Z"),
            "Lemma 2, averaged over the past": quantity("mean charge") - information("S", "W", "VZ"),
        },
    )
    total = Fraction(budget)
    first = total / steps
    _, noise = noise_between(HALF, total - first)
    flip = 1 - (ball(-1) / ball(noise) / ball(2).sqrt()).erfc() / 2
    leak = (ball(2).log() - binary_entropy(flip)) / 2
    return settle(
        proof="A run's nats are at most the expected sum of the charges" if step else None,
        assumption=None if averaged else "the sum is averaged over runs, as Eq. 11 averages it",
        counterexample=Counterexample(
            sentence=(
                f"A run whose charges sum to {show(ball(first))} nats half of the time leaks at least "
                f"{show(leak)} nats: what one run was charged bounds nothing."
            ),
            values={"total_nats": budget, "steps": steps, "charged": show(ball(first)), "leak": show(leak)},
        )
        if not averaged and leak > ball(first)
        else None,
        evidence=(
            f"one more step: {step.describe() if step else 'no certificate'}",
            f"four candidates, {steps} steps, {budget} nats: step 1 has signs (+, +, -, -) and is charged "
            f"{show(ball(first))}; all others are unanimous, but the last has signs (+, -, +, -) where step "
            "1 released +, and is charged the rest; its q+ is 1/2 whatever step 1 showed, and its bit leaks "
            f"{show(2 * leak)} nats, in half of the runs",
        ),
    )


@register("claim_check", "paczero_corollary_4")
@setting(ABOUT_A_SUBSET)
@in_balls
def corollary_4(*, scale: float = 1.0) -> Finding:
    """Corollary 4: for any record's membership KL(success || 1/2) is at most MI_tot."""
    member = certify(
        information("S", "Y") - information("B", "Y"), equations={"B is a function of S": entropy("B", "S")}
    )
    blind = blind_success(HALF)
    proven = member is not None and blind.verdict == VerdictKind.PROVEN and Fraction(scale) >= 1
    return settle(
        proof="KL(membership success || 1/2) is at most MI_tot, for every adversary" if proven else None,
        counterexample=_flip_counterexample(scale),
        evidence=(
            f"membership is a function of the secret: {member.describe() if member else 'no certificate'}",
            "every record is in half of the candidates, so every guess, good or bad, is right with "
            "probability "
            "1/2 against an independent copy, and data processing gives KL(p || 1/2) <= I",
            *blind.evidence,
        ),
    )


def blind_success(prior: Fraction) -> Finding:
    """That a guess without information is right with probability 1/2, at this prior of membership."""
    from workbench.attacks.accountant_checks.proof import Statement, prove, real

    guess = real("guess", low=0, high=1)
    return prove(
        Statement(
            name=f"guessing 'member' with any probability is right with probability 1/2 at prior {prior}",
            conclusion=(guess * prior + (1 - guess) * (1 - prior)).equals(HALF),
        )
    )
