"""PACZero, by proof: the conversion to attack success (Eq. 2), the lemma, the theorems and their corollaries.

Of PACZero-MI, of PACZero-ZPL (zero nats, and what that does not say), of several releases a step and of the
hybrid. Letters in the information forms: J (or S) the secret index, K the secret subset's sign, W the noisy
value, Y the released bit, V earlier outputs, Z the public directions, B a record's membership, C a fair coin,
A and B further releases. `scale` and the other parameters alter the claim; the tests turn them to see the
verdict change.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

from workbench.attacks.accountant_checks.proof import And, maximum, real
from workbench.attacks.claim_checks.paczero.numerics import binary_mi, noise_between
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    binary_entropy,
    binary_kl,
    counterexample_if,
    from_statement,
    in_balls,
    is_proven,
    prove_that,
    setting,
    settle,
    show,
    tail,
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
from workbench.interfaces.findings import Finding, assume

HALF = Fraction(1, 2)


def _flip_counterexample(scale: float) -> Counterexample | None:
    """A fair secret bit, released after a flip of probability 1/10: it attains the posterior bound."""
    flips = {0: Fraction(9, 20), 1: Fraction(1, 20)}
    law = FiniteLaw("SY", {(s, s ^ f): flips[f] for s, f in product((0, 1), repeat=2)})
    leak = law.information("S", "Y")
    divergence = binary_kl(ball(law.success("S", "Y")), ball(HALF))
    return counterexample_if(
        divergence > ball(scale) * leak,
        f"A fair secret bit released with flips of 1/10 leaks {show(leak)} nats and is guessed with "
        f"probability 9/10, KL(9/10 || 1/2) = {show(divergence)} > {show(ball(scale) * leak)}.",
        {"flip": "1/10", "success": "9/10", "kl_nats": show(divergence), "leak_nats": show(leak)},
    )


@register("claim_check", "paczero_eq_2")
@in_balls
def eq_2(*, scale: float = 1.0, adversaries: tuple[str, ...] = ("at least as good", "worse")) -> Finding:
    """Eq. 2: KL(success || best blind success) is at most the mutual information, for every adversary.

    `scale`: multiplies the information. `adversaries`: which there are, compared with the best blind guess.
    """
    p, q = real("p", low=0, high=1), real("q", low=0, high=1)
    slope = prove_that(
        "d/dq KL(p || q) = (q - p) / (q (1 - q)) <= 0 for q <= p",
        (q - p) / (q * (1 - q)) <= 0,
        q > 0,
        q < 1,
        q <= p,
    )
    blind, bad = Fraction(9, 10), Fraction(1, 10)
    divergence = binary_kl(ball(bad), ball(blind))
    leak = FiniteLaw("XY", {("common", 0): blind, ("rare", 0): bad}).information("X", "Y")
    tight = _flip_counterexample(scale)
    proven = is_proven(slope) and Fraction(scale) >= 1
    worse = Counterexample(
        sentence=(
            "An adversary that always names the rarer of two secrets of law (9/10, 1/10) succeeds with "
            f"probability 1/10; nothing is released, yet KL(1/10 || 9/10) = {show(divergence)} nats."
        ),
        values={"prior": ["9/10", "1/10"], "success": "1/10", "kl_nats": show(divergence), "leak_nats": "0"},
    )
    return settle(
        "KL(p || q) <= I for p the adversary's success and q its success against an independent copy (data "
        "processing), and q <= 1 - delta_0; so KL(p || 1 - delta_0) <= KL(p || q) where 1 - delta_0 <= p:",
        *slope.evidence,
        f"a secret of law (9/10, 1/10), nothing released (I = {show(leak, 3)}), and an adversary that always "
        f"names the rare one: KL(1/10 || 9/10) = {show(divergence, 8)} > 0",
        proof="KL(success || best blind success) is at most the nats released" if proven else None,
        counterexample=tight or (worse if divergence > 0 and "worse" in adversaries else None),
        assumption=assume(
            "the adversary succeeds at least as often as the best blind guess",
            lambda adversary: adversary == "at least as good",
            claimed={"adversaries": tuple(adversaries)},
        ),
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
        f"sum - joint >= 0: {above.describe() if above else 'no certificate'}",
        f"joint - sum >= 0: {below.describe() if below else 'no certificate'}",
        proof="The chain rule holds for any two parts, hence by induction for T" if above and below else None,
        counterexample=counterexample_if(
            not joint.overlaps(summed),
            f"A masked bit and its mask: together {show(joint)} nats, summed {show(summed)}.",
            {"joint_nats": show(joint), "summed_nats": show(summed)},
        ),
    )


@register("claim_check", "paczero_lemma_2")
@setting(ABOUT_A_SUBSET)
def lemma_2(*, capped: bool = False, agreement: str = "1/128", budget: str = "0.33") -> Finding:
    """Lemma 2: a step leaks 0 nats on unanimity and exactly beta_t on disagreement.

    `capped`: whether beta_t is first capped at 0.999 h(q+), as section 3.1 and appendix C have it and
    Algorithm 1's box has not. `agreement`, `budget`: q+ and beta_t of the step that is tried.
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
    return settle(
        *(f"certificate: {proof.describe() if proof else 'none'}" for proof in proofs),
        "the leak falls continuously from h(q+) to 0 as sigma grows, so every beta in (0, h(q+)) has its "
        "sigma; the signs are any, so clipping does not enter",
        f"q+ = {q}: h(q+) = {show(ceiling, 8)} nats, budget {budget}",
        *lines,
        proof="A step's leak is exactly its charge, and its bit leaks no more" if all(proofs) else None,
        counterexample=counterexample_if(
            not feasible,
            f"With q+ = {q} a budget of {budget} nats has no noise: one sign leaks at most h(q+) = "
            f"{show(ceiling)}. (It happens when earlier steps were unanimous and budget piled up.)",
            {"q_plus": agreement, "budget_nats": budget, "largest_leak_nats": show(ceiling)},
        ),
        assumption=assume(
            "the budget lies below h(q+), as section 3.1 and appendix C cap it and Algorithm 1's box does "
            "not",
            lambda cap: cap,
            claimed={"capped": capped},
        ),
    )


@register("claim_check", "paczero_eq_6")
@in_balls
def eq_6(*, scale: float = 1.0) -> Finding:
    """Eq. 6: the adaptive allocation never spends more than MI_tot, whatever the steps turn out to be."""
    return from_statement(
        _never_overspends(scale),
        proof="The budget used stays in [0, MI_tot] after every step, for any total, horizon and sequence",
        note="induction: the budget used starts at 0; a step uses anything from 0 (unanimity) to its share "
        "(a cap only lowers it); remaining = T - t + 1 >= 1",
    )


def _never_overspends(scale: float) -> Finding:
    total, used, spent = real("total", low=0), real("used", low=0), real("spent", low=0)
    remaining = real("remaining", low=1)
    share = maximum(0, total - used) / remaining * Fraction(scale)
    return prove_that(
        "used <= total before a step implies the same after it",
        And(used + spent >= 0, used + spent <= total),
        used <= total,
        spent <= share,
    )


def _leak_of_bit(noise: Fraction) -> Any:
    """Nats that the released bit leaks of a fair sign in this noise."""
    return ball(2).log() - binary_entropy(1 - tail(ball(-1) / ball(noise)))


@register("claim_check", "paczero_theorem_3")
@setting(ABOUT_A_SUBSET)
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
    leak = _leak_of_bit(high)
    steps_hold = all(proofs.values()) and is_proven(allocation, lemma)
    proven = steps_hold and Fraction(scale) >= 1
    claimed = ball(scale) * ball(nats)
    return settle(
        *(f"{name}: {proof.describe() if proof else 'no certificate'}" for name, proof in proofs.items()),
        f"Lemma 2 with the cap: {lemma.verdict}; Eq. 6: {allocation.verdict}",
        f"one step, two candidates that disagree, {budget} nats: the released bit leaks {show(leak, 8)} "
        "nats, for the ledger charges the noisy value that is not released",
        proof="A run leaks at most MI_tot nats about which subset was trained on" if proven else None,
        counterexample=counterexample_if(
            leak > claimed,
            f"One step at {budget} nats leaks {show(leak)} by its bit, more than {show(claimed)}.",
            {"budget_nats": budget, "leak_nats": show(leak), "claimed_nats": show(claimed)},
        ),
    )


@register("claim_check", "paczero_realised_sum")
@setting(ABOUT_A_SUBSET)
def realised_sum(*, averaged: bool = False, budget: str = "0.33", steps: int = 1000) -> Finding:
    """Section 3.1: a run's nats are at most the sum of the charges beta_used, which depends on the run.

    `averaged`: whether the sum is averaged over runs, as Eq. 11 has it. `budget`, `steps`: MI_tot and T of
    the run that is tried.
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
    leak = _leak_of_bit(noise) / 2
    return settle(
        f"one more step: {step.describe() if step else 'no certificate'}",
        f"four candidates, {steps} steps, {budget} nats: step 1 has signs (+, +, -, -) and is charged "
        f"{show(ball(first))}; all others are unanimous, but the last has signs (+, -, +, -) where step 1 "
        "released +, and is charged the rest; its q+ is 1/2 whatever step 1 showed, and its bit leaks "
        f"{show(2 * leak)} nats, in half of the runs",
        proof="A run's nats are at most the expected sum of the charges" if step else None,
        counterexample=counterexample_if(
            not averaged and leak > ball(first),
            f"A run whose charges sum to {show(ball(first))} nats half of the time leaks at least "
            f"{show(leak)} nats: what one run was charged bounds nothing.",
            {"total_nats": budget, "steps": steps, "charged": show(ball(first)), "leak": show(leak)},
        ),
        assumption=assume(
            "the sum is averaged over runs, as Eq. 11 averages it",
            lambda mean: mean,
            claimed={"averaged": averaged},
        ),
    )


@register("claim_check", "paczero_corollary_4")
@setting(ABOUT_A_SUBSET)
def corollary_4(*, scale: float = 1.0) -> Finding:
    """Corollary 4: for any record's membership KL(success || 1/2) is at most MI_tot."""
    member = certify(
        information("S", "Y") - information("B", "Y"), equations={"B is a function of S": entropy("B", "S")}
    )
    blind = blind_success(HALF)
    proven = member is not None and is_proven(blind) and Fraction(scale) >= 1
    return settle(
        f"membership is a function of the secret: {member.describe() if member else 'no certificate'}",
        "every record is in half of the candidates, so every guess, good or bad, is right with probability "
        "1/2 against an independent copy, and data processing gives KL(p || 1/2) <= I",
        *blind.evidence,
        proof="KL(membership success || 1/2) is at most MI_tot, for every adversary" if proven else None,
        counterexample=_flip_counterexample(scale),
    )


def blind_success(prior: Fraction) -> Finding:
    """That a guess without information is right with probability 1/2, at this prior of membership."""
    guess = real("guess", low=0, high=1)
    return prove_that(
        f"guessing 'member' with any probability is right with probability 1/2 at prior {prior}",
        (guess * prior + (1 - guess) * (1 - prior)).equals(HALF),
    )


@register("claim_check", "paczero_theorem_5")
@setting(ABOUT_A_SUBSET)
def theorem_5(*, dissenters: int = 0, candidates: int = 128) -> Finding:
    """Theorem 5: PACZero-ZPL leaks exactly 0 nats.

    `dissenters`: an altered mechanism that releases the secret's sign although so many candidates disagree.
    `candidates`: M, of the altered mechanism.
    """
    proofs = {
        "a step": certify(
            -information("S", "Y", "V"),
            equations={
                "Y is a function of the public past, directions included, and a coin": entropy("Y", "VC"),
                "the coin is fresh": information("C", "SV"),
            },
        ),
        "one more step": certify(
            -information("S", "VY"),
            equations={"past": information("S", "V"), "this step": information("S", "Y", "V")},
        ),
    }
    patterns = [
        (count, signs)
        for count in (2, 3, 4)
        for signs in product((-1, 1), repeat=count)
        if not _zpl(signs, dissenters).information("S", "Y").contains(0)
    ]
    leak = binary_entropy(ball(Fraction(dissenters, candidates))) if 0 < dissenters < candidates else ball(0)
    return settle(
        *(f"{name}: {proof.describe() if proof else 'no certificate'}" for name, proof in proofs.items()),
        "the posterior stays uniform, so unanimity means that all M candidates agree: the sign is public",
        f"all sign patterns of 2 to 4 candidates enumerated: {len(patterns)} leak",
        proof="A PACZero-ZPL run leaks 0 nats, for every M and T",
        proven=all(proofs.values()) and not leak > 0,
        counterexample=counterexample_if(
            leak > 0,
            f"Releasing the secret's sign while {dissenters} of {candidates} "
            f"candidates disagree leaks {show(leak)} nats.",
            {"dissenters": dissenters, "candidates": candidates, "leak_nats": show(leak)},
        ),
    )


def _zpl(signs: tuple[int, ...], dissenters: int) -> FiniteLaw:
    """Secret and released bit of one PACZero-ZPL step."""
    count = len(signs)
    fewer = min(signs.count(1), signs.count(-1))
    law: dict[tuple[int, int], Fraction] = {}
    for secret, sign in enumerate(signs):
        if fewer <= dissenters:
            law[secret, sign] = Fraction(1, count)
        else:
            law |= {(secret, bit): Fraction(1, 2 * count) for bit in (-1, 1)}
    return FiniteLaw("SY", law)


@register("claim_check", "paczero_corollary_6")
@setting(ABOUT_A_SUBSET)
def corollary_6(*, prior: str = "1/2") -> Finding:
    """Corollary 6: against PACZero-ZPL every membership guess is right with probability exactly 1/2."""
    theorem = theorem_5()
    finding = blind_success(Fraction(prior))
    if theorem.verdict != VerdictKind.PROVEN:
        return theorem
    return from_statement(
        finding,
        proof="Every membership guess against PACZero-ZPL is right with probability exactly 1/2",
        note="Theorem 5: the release is independent of the secret, hence of membership; so is the guess",
    )


@register("claim_check", "paczero_not_dp")
@setting(
    "PACZero-ZPL with any number of candidates and records, each record in some candidates and missing in "
    "others; neighbours differ in one record of the universe, which is replaced; the adversary sees the bit"
)
def not_dp(*, flip_probability: str = "1/2", claimed_delta: str = "1/4", steps: int = 1) -> Finding:
    """Sections 1 and 6: PACZero-ZPL satisfies no (epsilon, delta)-DP of use, although it leaks 0 nats.

    `flip_probability`: probability of -1 on disagreement; 0 is an altered mechanism. `claimed_delta`: the
    claim is that no epsilon does at this delta. `steps`: releases.
    """
    minus, allowed = Fraction(flip_probability), Fraction(claimed_delta)
    theorem = theorem_5()
    clip, small, others, records = real("c", low=0), real("a", low=0), real("n", low=0), real("N", low=2)
    turned = prove_that(
        "n scalars of a and one of -c sum to less than 0, for n <= N - 1 and a < c / N",
        others * small - clip < 0,
        clip > 0,
        small * records < clip,
        others <= records - 1,
    )
    delta = 1 - (1 - minus) ** steps
    separated = is_proven(turned) and delta > allowed
    return settle(
        "all N scalars are a > 0: all candidates' means are positive, +1 for certain; one record, replaced "
        "by one with scalar -c at the clip c: the candidates that hold it turn to -1, the others do not, so "
        f"that there is disagreement, and -1 has probability {minus}",
        *turned.evidence,
        f"over T such steps delta >= 1 - (1 - {minus})^T at every epsilon; T = {steps}: {delta}",
        f"Theorem 5 for both universes: {theorem.verdict}",
        proof="For any N >= 2, M and clip, replacing one record can turn unanimity into disagreement: then "
        f"-1 has probability 0 on one side and {minus} on the other, so no epsilon does below delta {delta}, "
        "while the run leaks 0 nats",
        proven=separated and is_proven(theorem),
        counterexample=counterexample_if(
            not minus,
            "Where disagreement releases +1 for certain, both laws are equal: (0, 0)-DP.",
            {"flip_probability": flip_probability, "delta": "0"},
        )
        or counterexample_if(
            allowed >= 1,
            "Every mechanism is (0, 1)-DP.",
            {"delta": claimed_delta},
        ),
    )


@register("claim_check", "paczero_appendix_m")
@setting(ABOUT_A_SUBSET)
def appendix_m(*, scale: float = 1.0) -> Finding:
    """Appendix M: K releases of beta / K nats each leak at most beta nats together."""
    total = quantity("k shares") + quantity("one share")
    proven = certify(
        total * Fraction(scale) - information("J", "AB"),
        facts={
            "k releases": quantity("k shares") - information("J", "A"),
            "one more": quantity("one share") - information("J", "B"),
            "shares >= 0": quantity("k shares"),
            "a share >= 0": quantity("one share"),
        },
        equations={"fresh noise: independent given the secret": information("A", "B", "J")},
    )
    law = FiniteLaw("JAB", {((a, b), a, b): Fraction(1, 4) for a, b in product((0, 1), repeat=2)})
    joint = law.information("J", "AB")
    parts = ball(scale) * (law.information("J", "A") + law.information("J", "B"))
    return settle(
        f"certificate: {proven.describe() if proven else 'none'}",
        proof="K releases leak at most the sum of their shares" if proven else None,
        counterexample=counterexample_if(
            joint > parts,
            f"Two bits of a secret of four values leak {show(joint)} nats, more than {show(parts)}.",
            {"joint_nats": show(joint), "claimed_nats": show(parts)},
        ),
    )


@register("claim_check", "paczero_hybrid")
@setting(ABOUT_A_SUBSET)
def hybrid(*, exact_unanimity: bool = True) -> Finding:
    """Section 6: a PACZero-ZPL tail after a PACZero-MI run adds no nats.

    `exact_unanimity`: whether the tail releases the sign only where no possible candidate disagrees; else it
    does so at a posterior weight of 1e-12 on the other side.
    """
    proven = certify(
        information("S", "V") - information("S", "VY"),
        equations={
            "Y is a function of the past and a coin": entropy("Y", "VC"),
            "the coin is fresh": information("C", "SV"),
        },
    )
    leak = binary_entropy(ball("1e-12"))
    return settle(
        f"certificate: {proven.describe() if proven else 'none'}",
        "but Gaussian noise never rules a candidate out, so with exact unanimity the inherited posterior "
        "makes no step unanimous that a fresh one would not: "
        "the hoped-for gain needs the tolerance, which leaks",
        proof="The tail adds nothing to the run's nats" if proven and exact_unanimity else None,
        counterexample=counterexample_if(
            not exact_unanimity,
            f"A sign released at weight 1e-12 on the other side adds {show(leak)} nats.",
            {"weight": "1e-12", "leak_nats": show(leak)},
        ),
    )


@register("claim_check", "paczero_eq_8")
@in_balls
def eq_8(*, limit: str = "1/2") -> Finding:
    """Section 3.2, Eq. 8: as the budget falls to 0 the noised sign becomes a fair coin.

    `limit`: probability of +1 in the limit; an altered claim where it is not 1/2.
    """
    steepest = 1 / (2 * ball(1).pi()).sqrt()
    wanted, far = ball(Fraction(limit)), ball(10**9)
    reached = 1 - tail(1 / far)
    off = abs(reached - wanted) > ball("1e-8")
    lines = [
        f"sigma = {noise}: {show(binary_mi(Fraction(1, 2), Fraction(noise)), 4)} nats"
        for noise in (1, 10, 100)
    ]
    return settle(
        "the probability is Phi(s / sigma), and Phi rises nowhere faster than 1/sqrt(2 pi) = "
        f"{show(steepest)} < 2/5",
        "a finite sigma leaks a positive amount, which falls in sigma (Eq. 4), so a budget below it needs "
        f"more noise: {', '.join(lines)}",
        proof="The sign of s + N(0, sigma^2) is +1 with probability within 2/(5 sigma) of 1/2, and sigma "
        "grows without limit as the budget falls to 0",
        proven=steepest < ball("0.4") and not off,
        counterexample=counterexample_if(
            off,
            f"At sigma = 1e9 the sign +1 has probability {show(reached, 10)}, not {limit}.",
            {"sigma": "1e9", "probability": show(reached, 10), "claimed": limit},
        ),
    )


@register("claim_check", "paczero_selection")
@setting(ABOUT_A_SUBSET)
def selection(*, runs: int = 1) -> Finding:
    """Section 4.1: choosing a checkpoint of a run by held-out data adds no nats to the run's.

    `runs`: runs on the same secret among which is chosen; the claim is about one.
    """
    proven = certify(
        information("S", "V") - information("S", "C"),
        equations={
            "the held-out data are independent of the secret and the run": information("D", "SV"),
            "the choice is made from the run and the held-out data": information("S", "C", "VD"),
        },
    )
    law = FiniteLaw("SAB", {((a, b), a, b): Fraction(1, 4) for a, b in product((0, 1), repeat=2)})
    single, both = law.information("S", "A"), law.information("S", "AB")
    return settle(
        f"certificate: {proven.describe() if proven else 'none'}",
        "the held-out records are no candidates (1,000 to train, 500 to select)",
        "one run: the choice of learning rate and clip among several (appendix G) "
        "is charged nowhere; runs on one secret add up",
        proof="The chosen checkpoint leaks at most the nats of the run" if proven and runs == 1 else None,
        counterexample=counterexample_if(
            not (runs == 1 or not both > single),
            f"Two runs may each leak {show(single)} nats of one secret, and together {show(both)}.",
            {"one_run_nats": show(single), "two_runs_nats": show(both)},
        ),
    )
