"""FERRET, section 5: the lemmas, the total of Eq. 8, Theorem 1 and tightness.

Letters in the information forms: X the record, R the other records, S whether X is sampled in the step, P the
step's public masks and directions, V all earlier outputs, W the step's signs, Y an output. `scale` multiplies
the claimed bound; the tests turn it to see the verdict change.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

from workbench.attacks.accountant_checks.proof import And, Implies, real
from workbench.attacks.claim_checks.shared.claims import (
    ball,
    counterexample_if,
    from_statement,
    in_balls,
    is_proven,
    prove_that,
    setting,
    settle,
    show,
)
from workbench.attacks.claim_checks.shared.information import (
    ABOUT_A_RECORD,
    FiniteLaw,
    certify,
    entropy,
    information,
    quantity,
)
from workbench.core.registry import register
from workbench.interfaces.findings import Finding, assume

HALF = Fraction(1, 2)
BINARY = "an answer out of two has entropy at most ln 2 (Gibbs' inequality against the fair coin)"


def _ln2() -> Any:
    return ball(2).log()


@register("claim_check", "ferret_lemma_1")
@in_balls
def lemma_1(*, scale: float = 1.0) -> Finding:
    """Lemma 1: the sign of a fixed non-zero gradient along a uniform direction has entropy ln 2."""
    plus, minus = real("plus", low=0, high=1), real("minus", low=0, high=1)
    halves = prove_that(
        "the two signs are equally likely", plus.equals(HALF), (plus + minus).equals(1), plus.equals(minus)
    )
    coin = FiniteLaw("Z", {(1,): HALF, (-1,): HALF}).entropy("Z")
    claimed = _ln2() * ball(scale)
    atoms = [_cap_probability(dimension, ball(Fraction(1, 10**30))) for dimension in (2, 3, 100, 10_000)]
    same = Fraction(scale) == 1
    return settle(
        "u -> -u keeps the uniform law and flips the sign; <g,u> = 0 has probability 0, for <g,u>/|g| is one "
        "coordinate of u, which has a density from dimension 2 on and is +1 or -1 in dimension 1",
        f"Pr[|<g,u>| < 1e-30 |g|] in dimensions 2, 3, 100, 10000: {', '.join(show(a, 3) for a in atoms)}",
        f"{halves.verdict}: {halves.evidence[0]}",
        f"entropy of that coin {show(coin, 12)} nats, claimed {show(claimed, 12)}",
        proof="The sign's entropy is exactly ln 2 nats" if same and is_proven(halves) else None,
        counterexample=counterexample_if(
            not coin.overlaps(claimed),
            f"Any non-zero gradient's sign has entropy {show(coin)} nats, not {show(claimed)}.",
            {"gradient": [1], "entropy_nats": show(coin), "claimed_nats": show(claimed)},
        ),
    )


def _cap_probability(dimension: int, height: Any) -> Any:
    """Probability that one coordinate of a uniform unit vector lies within `height` of 0."""
    a, b = ball(HALF), ball(Fraction(dimension - 1, 2))
    return (height * height).beta_lower(a, b, regularized=True)


@register("claim_check", "ferret_zero_gradient")
@in_balls
def zero_gradient(*, scale: float = 1.0, answer: str = "silence") -> Finding:
    """After Lemma 1: zero gradients, whose sign is not queried, do not affect the privacy analysis.

    `scale`: multiplies the claimed nats. `answer`: of a fired group at gradient 0: `"silence"`, or `"sign"`.
    """
    gradients = (-1, 0, 1) if answer == "silence" else (-1, 1)
    law = FiniteLaw("XW", {(x, x): Fraction(1, len(gradients)) for x in gradients})
    leak, claimed = law.information("W", "X"), _ln2() * ball(scale)
    bound = quantity("ln 2")
    answered = certify(
        bound * Fraction(scale) - information("WP", "X"),
        facts={"ln 2 >= H(W|P)": bound - entropy("W", "P"), "ln 2 >= 0": bound},
        equations={"I(P;X) = 0": information("P", "X")},
    )
    silent_is_fine = bool(claimed >= ball(3).log())
    return settle(
        f"a record whose gradient is one of {list(gradients)} with equal probability, alone in the batch, "
        f"public u = 1, the group fires, {answer} at gradient 0: I = {show(leak, 10)} nats against "
        f"{show(claimed, 10)}",
        BINARY,
        f"certificate where a zero is answered too: {answered.describe() if answered else 'none'}",
        proof="A fired group leaks at most the claimed nats" if answered else None,
        counterexample=counterexample_if(
            leak > claimed,
            f"A group with {answer} at gradient 0 has {len(gradients)} answers and leaks {show(leak)} nats, "
            f"more than {show(claimed)}.",
            {"gradients": list(gradients), "leak_nats": show(leak), "claimed_nats": show(claimed)},
        ),
        assumption=assume(
            "a zero gradient is answered by a sign as well, so that no silence depends on the data",
            lambda answer: answer == "sign" or silent_is_fine,
            claimed={"answer": answer},
        ),
    )


@register("claim_check", "ferret_lemma_2")
@setting(ABOUT_A_RECORD)
def lemma_2(*, scale: float = 1.0) -> Finding:
    """Lemma 2: sampling with probability s takes eps0 to s eps0 (Eqs. 9 and 10)."""
    bound = quantity("s eps0")
    proven = certify(
        bound * Fraction(scale) - information("Y", "X", "R"),
        facts={"I(Y;X|R,S) <= s eps0": bound - information("Y", "X", "RS"), "s eps0 >= 0": bound},
        equations={"S independent of the data": information("S", "XR")},
    )
    s = HALF
    bits = product((0, 1), (0, 1))
    law = FiniteLaw("XSY", {(x, sampled, x if sampled else "silent"): Fraction(1, 4) for x, sampled in bits})
    leak = law.information("Y", "X")
    # As printed, Eq. 9 bounds the leakage of M(D_S) itself: eps0 = s ln 2, the erasure channel's capacity.
    as_printed = ball(scale) * ball(s) * (ball(s) * _ln2())
    as_meant = ball(scale) * ball(s) * _ln2()
    under = leak > as_meant
    worst = as_meant if under else as_printed
    return settle(
        "I(Y;X|R,S) = s I(Y;X|R,S=1), for an unsampled record leaves the output independent of it",
        f"certificate: {proven.describe() if proven else 'none'}",
        f"one record, a fair bit, released when sampled, s = 1/2: I = {show(leak, 10)} nats; s times Eq. 9's "
        f"bound as printed {show(as_printed, 10)}, as meant {show(as_meant, 10)}",
        proof="The sampled mechanism leaks at most s eps0" if proven else None,
        counterexample=counterexample_if(
            leak > worst,
            f"One bit released with probability s = 1/2 leaks {show(leak)} nats "
            f"where the lemma allows {show(worst)}.",
            {"s": "1/2", "leak_nats": show(leak), "allowed_nats": show(worst)},
        ),
        assumption=assume(
            "eps0 bounds the leakage given that the record is in the sample (Eq. 9 prints that of the "
            "mechanism that is already sampled)",
            lambda about: about == "a record in the sample",
            left_open={"what eps0 is about": ("a record in the sample", "any record")},
        ),
        assumed=not (proven and not leak > as_printed),
    )


@register("claim_check", "ferret_eq_11")
@in_balls
def eq_11(*, relation: str = "=") -> Finding:
    """Eq. 11: I(Y;X|R) = I(Y;X,S|R) = Pr[S=1] I(Y;X|S=1,R); `relation` "<=" compares the two ends."""
    law = FiniteLaw("XSY", {(x, s, x * s): Fraction(1, 4) for x, s in product((0, 1), (0, 1))})
    first, second = law.information("Y", "X"), law.information("Y", "XS")
    third = HALF.numerator * _ln2() / HALF.denominator
    ends = certify(
        information("Y", "X", "RS") - information("Y", "X", "R"),
        equations={"S independent of the data": information("S", "XR")},
    )
    evidence = (
        "a fair bit X, sampled with probability 1/2, output Y = X if sampled and 0 else",
        f"I(Y;X) = {show(first, 8)}, I(Y;X,S) = {show(second, 8)}, "
        f"Pr[S=1] I(Y;X|S=1) = {show(third, 8)} nats",
        f"certificate of first <= last: {ends.describe() if ends else 'none'}",
    )
    if relation == "<=":
        return settle(*evidence, proof="The first term of Eq. 11 is at most the last" if ends else None)
    differ = not first.overlaps(second) and not second.overlaps(third)
    return settle(
        *evidence,
        counterexample=counterexample_if(
            differ,
            f"The three terms of Eq. 11 are {show(first, 4)}, {show(second, 4)} and {show(third, 4)} nats: "
            "neither equality holds. (The first is at most the last, which is what Lemma 2 needs.)",
            {"first": show(first), "second": show(second), "third": show(third)},
        ),
    )


@register("claim_check", "ferret_composition")
@setting(ABOUT_A_RECORD)
def composition(*, scale: float = 1.0) -> Finding:
    """Sections 2.1 and 5.2: the nats I(M(D); X_i) of several releases add up."""
    law = FiniteLaw(
        "XABYZ", {(x, a, b, x ^ a ^ b, a ^ b): Fraction(1, 8) for x, a, b in product((0, 1), repeat=3)}
    )
    singles = [law.information(y, x) for y in "YZ" for x in "XAB"]
    joint = law.information("YZ", "X")
    zero = all(value.contains(0) and abs(value) < ball(Fraction(1, 10**40)) for value in singles)
    total = quantity("e1") + quantity("e2")
    proven = certify(
        total * Fraction(scale) - information("YZ", "X", "R"),
        facts={
            "I(Y;X|R) <= e1": quantity("e1") - information("Y", "X", "R"),
            "I(Z;X|R,Y) <= e2": quantity("e2") - information("Z", "X", "RY"),
            "e1 >= 0": quantity("e1"),
            "e2 >= 0": quantity("e2"),
        },
    )
    every_law = certify(
        total * Fraction(scale) - information("YZ", "X"),
        facts={
            "I(Y;X) <= e1": quantity("e1") - information("Y", "X"),
            "I(Z;X|Y) <= e2, for the data's law given Y is a law as well": quantity("e2")
            - information("Z", "X", "Y"),
            "e1 >= 0": quantity("e1"),
            "e2 >= 0": quantity("e2"),
        },
    )
    proofs = {"with the other records given": proven, "where e1 and e2 hold for every law": every_law}
    return settle(
        "three independent fair bits X, A, B; the first release is X+A+B mod 2, the second A+B mod 2",
        f"largest single leakage about any record {show(max(singles, key=lambda v: v.abs_upper()), 3)} nats "
        f"(exactly 0), together {show(joint, 8)} nats about X",
        *(
            f"certificate {how}: {certificate.describe() if certificate else 'none'}"
            for how, certificate in proofs.items()
        ),
        "the parities' leakages are 0 for this law only: with A and B known the first release is X",
        proof="The nats of adaptive releases add up" if proven and every_law else None,
        counterexample=counterexample_if(
            zero and joint > 0,
            "Two parities of independent fair bits leak 0 nats each about every record by section 2.1's "
            f"definition, and {show(joint)} nats together.",
            {"releases": ["X+A+B", "A+B"], "single_nats": "0", "joint_nats": show(joint)},
        ),
        assumption=assume(
            "each release's nats are bounded for every law of the data, as in Lemma 2 (or counted given all "
            "other records, as there and not in section 2.1)",
            lambda laws: laws == "every law",
            left_open={"laws of the data": ("every law", "one law")},
        ),
    )


@register("claim_check", "ferret_eq_8")
@setting(ABOUT_A_RECORD)
def eq_8(*, scale: float = 1.0, sampling_probability: str = "1/200") -> Finding:
    """Eqs. 8 and 9: a run leaks at most G T s p ln 2 nats about a record."""
    step, past = quantity("s G p ln 2"), quantity("earlier steps")
    group, others = quantity("p ln 2"), quantity("earlier groups")
    fresh = {"masks, directions and sampling are fresh": information("SP", "XRV")}
    proofs = {
        "one more group": certify(
            others + group - entropy("AB", "P"),
            facts={"earlier groups": others - entropy("A", "P"), "this group": group - entropy("B", "P")},
        ),
        "one step": certify(
            step * Fraction(scale) - information("WP", "X", "RV"),
            facts={"s H(W|P,S=1)": step - information("W", "X", "RVPS"), ">= 0": step},
            equations=fresh,
        ),
        "one more step": certify(
            past + step - information("VW", "X", "R"),
            facts={
                "earlier steps": past - information("V", "X", "R"),
                "this step": step - information("W", "X", "RV"),
            },
        ),
        "independent records": certify(
            information("Y", "X", "R") - information("Y", "X"),
            equations={"I(X;R) = 0": information("X", "R")},
        ),
    }
    s, p = Fraction(sampling_probability), HALF
    law = _duplicates(p)
    leak, claimed = law.information("Y", "X"), ball(scale) * ball(s * p) * _ln2()
    alone = ball(p) * _ln2()
    silent = _silent_at_zero(s * p).information("Y", "X")
    proven = all(proofs.values())
    if not proven:
        s, claimed = Fraction(1), ball(scale) * alone
    copies = s.denominator
    return settle(
        BINARY + "; a mask that is silent with probability 1 - p makes it p ln 2 given the mask",
        *(f"{name}: {proof.describe() if proof else 'no certificate'}" for name, proof in proofs.items()),
        f"{copies} equal records, one drawn into the batch, p = 1/2, one group, one step: every batch gives "
        f"the same sign, I(Y;X_1) = {show(leak, 8)} nats, claimed {show(claimed, 8)}",
        "given all others, whose gradients are 0, and silent at 0: a record with gradient 0, +1 or -1 "
        f"(probabilities 1/4, 3/8, 3/8), sampled with probability {s}, leaks {show(silent, 8)} nats, claimed "
        f"{show(ball(scale) * ball(s * p) * _ln2(), 8)}",
        proof="A run leaks at most G T s p ln 2 nats about a record" if proven else None,
        counterexample=counterexample_if(
            leak > claimed,
            f"With {copies} equal records, one of them in the batch, a step leaks {show(leak)} nats about "
            f"each where Eq. 8 says {show(claimed)}.",
            {"records": copies, "p": str(p), "leak_nats": show(leak), "claimed_nats": show(claimed)},
        ),
        assumption=assume(
            "leakage is counted given all other records (or records are independent), and a fired group "
            "answers +1 or -1 even at gradient 0",
            lambda others, zero: others != "depend on the record" and zero == "a sign",
            left_open={
                "other records": ("given", "independent", "depend on the record"),
                "answer at gradient 0": ("a sign", "silence"),
            },
        ),
    )


def _duplicates(fire: Fraction) -> FiniteLaw:
    """All records are one fair bit; with probability `fire` its public projection's sign is released."""
    return FiniteLaw(
        "XY", {(x, x if z else "silent"): HALF * (fire if z else 1 - fire) for x in (-1, 1) for z in (0, 1)}
    )


def _silent_at_zero(release: Fraction) -> FiniteLaw:
    """A record with gradient -1, 0 or +1 whose sign is released with probability `shown`, unless it is 0."""
    law = {(0, 0): Fraction(1, 4)}
    for x in (-1, 1):
        law |= {(x, x): Fraction(3, 8) * release, (x, 0): Fraction(3, 8) * (1 - release)}
    return FiniteLaw("XY", law)


@register("claim_check", "ferret_theorem_1")
@in_balls
def theorem_1(*, scale: float = 1.0) -> Finding:
    """Theorem 1: exactly one p in (0, 1) meets a budget in (0, G T s ln 2), p* = eps / (G T s ln 2)."""
    budget, ceiling = real("budget", low=0), real("ceiling", low=0)
    other, larger = real("other", low=0, high=1), real("larger", low=0, high=1)
    best = budget / ceiling * Fraction(scale)
    finding = prove_that(
        "Theorem 1, for every ceiling G T s ln 2 > 0 and every budget below it",
        And(
            best > 0,
            best < 1,
            (ceiling * best).equals(budget),
            Implies((ceiling * other).equals(budget), other.equals(best)),
            Implies(other < larger, ceiling * other < ceiling * larger),
        ),
        budget > 0,
        ceiling > 0,
        budget < ceiling,
    )
    return from_statement(
        finding,
        "a budget of 0 would need p = 0, outside (0, 1): budgets are positive",
        proof="Exactly one p in (0, 1) meets a budget in (0, G T s ln 2), and it is eps / (G T s ln 2)",
    )


@register("claim_check", "ferret_lemma_3")
@in_balls
def lemma_3(*, scale: float = 1.0) -> Finding:
    """Lemma 3: a fired group leaks at most ln 2 nats, however many tensors it holds."""
    bound = quantity("ln 2")
    proven = certify(
        bound * Fraction(scale) - information("WP", "X"),
        facts={"H(W|P) <= ln 2": bound - entropy("W", "P"), "ln 2 >= 0": bound},
        equations={"I(P;X) = 0": information("P", "X")},
    )
    leak = FiniteLaw("XW", {(x, x): HALF for x in (-1, 1)}).information("W", "X")
    claimed = ball(scale) * _ln2()
    return settle(
        BINARY + "; the group's size does not enter",
        f"certificate: {proven.describe() if proven else 'none'}",
        f"attained: a record that decides the sign leaks {show(leak, 10)} nats",
        proof="A fired group leaks at most ln 2 nats, whatever its size" if proven else None,
        counterexample=counterexample_if(
            leak > claimed,
            f"A record that decides the sign leaks {show(leak)} nats, more than {show(claimed)}.",
            {"gradient": "-1 or +1", "leak_nats": show(leak), "claimed_nats": show(claimed)},
        ),
    )


@register("claim_check", "ferret_lemma_3_steps")
@in_balls
def lemma_3_steps(*, conditioned: bool = True) -> Finding:
    """Lemma 3's proof: H(sigma | u) = ln 2 and H(sigma | X_i, u) = 0; unconditioned, only H(sigma) = ln 2."""
    constant = FiniteLaw("UW", {(u, u): HALF for u in (-1, 1)})
    given_u = constant.entropy("W", "U") if conditioned else constant.entropy("W")
    foreign = FiniteLaw("XRW", {(x, r, r): Fraction(1, 4) for x, r in product((-1, 1), repeat=2)})
    given_x = foreign.entropy("W", "X")
    evidence = (
        f"every record's gradient is +1: H(sigma{' | u' if conditioned else ''}) = {show(given_u, 6)} nats",
        f"the other record decides the sign: H(sigma | X_i, u) = {show(given_x, 6)} nats",
    )
    if not conditioned:
        lemma = lemma_1()
        return settle(
            *evidence, proof=lemma.summary if is_proven(lemma) and given_u.overlaps(_ln2()) else None
        )
    failing = given_u < _ln2() and given_x > 0
    return settle(
        *evidence,
        counterexample=counterexample_if(
            failing,
            f"Given the public direction a fixed gradient's sign has entropy {show(given_u, 3)}, not ln 2 "
            f"(Lemma 1 averages over u), and given X_i it still has {show(given_x)} where another record "
            "decides. Lemma 3 needs neither step.",
            {"H(sigma|u)": show(given_u), "H(sigma|X_i,u)": show(given_x)},
        ),
    )


@register("claim_check", "ferret_tightness")
@setting(ABOUT_A_RECORD)
def tightness(*, sampling_probability: str = "0.005", scale: float = 1.0) -> Finding:
    """Section 5.4: the bound s p ln 2 of one fired group is tight."""
    s = Fraction(sampling_probability)
    claimed, exact = ball(scale) * ball(s) * _ln2(), _supremum(s)
    unsampled = FiniteLaw("XW", {(x, x): Fraction(1, 2) for x in (-1, 1)}).information("W", "X")
    attained = Fraction(scale) == 1 and unsampled.overlaps(_ln2())
    slack = exact < claimed
    excess = "The error is on the safe side." if slack else "The bound is exceeded."
    return settle(
        "given the others and u, with answers +1 and -1, the unsampled sign is +1 with some probability a, "
        "and sampling moves the sign's probability within [(1-s)a, (1-s)a + s]; information is convex in the "
        "channel, so its supremum over a and over the record's law lies at a = 0 or 1: a Z-channel, capacity "
        "ln(1 + s (1-s)^((1-s)/s))",
        f"s = {sampling_probability}, p = 1: "
        f"supremum {show(exact, 10)} nats, claimed {show(claimed, 10)} nats",
        f"s = 1: a record that decides the sign leaks {show(unsampled, 10)} p nats; it may do so for every "
        "public direction, so the direction's randomness hides nothing in the worst case",
        proof="The bound is attained by a record that decides the sign" if attained else None,
        counterexample=counterexample_if(
            slack or exact > claimed,
            f"At s = {sampling_probability} the most that can leak is {show(exact)} p nats a fired group, "
            f"where the bound says {show(claimed)} p, {show(claimed / exact, 4)} times as much. {excess}",
            {"s": sampling_probability, "supremum_nats": show(exact), "claimed_nats": show(claimed)},
        ),
        assumption=assume(
            "every record is in every batch (s = 1)",
            lambda rate: Fraction(rate) == 1,
            claimed={"sampling_probability": sampling_probability},
        ),
    )


def _supremum(s: Fraction) -> Any:
    """Largest leak, nats, of a fired group that holds the record with probability s."""
    if s == 1:
        return _ln2()
    q = ball(s)
    return (1 + q * ((1 - q).log() * (1 - q) / q).exp()).log()


@register("claim_check", "ferret_infinite_information")
@setting(ABOUT_A_RECORD)
def infinite_information(*, values: int = 2, claimed_nats: float | None = None) -> Finding:
    """Section 5: releasing raw gradients gives I(g; X_i) = infinity; with `claimed_nats`, at most so many.

    `values`: number of values that the record takes, equally likely. `claimed_nats`: an altered claim, I(g;
    X_i) <= this; None for the printed one.
    """
    certificate = certify(entropy("X") - information("Y", "X"))
    leak = FiniteLaw("XY", {(x, x): Fraction(1, values) for x in range(values)}).information("Y", "X")
    evidence = (
        f"I(Y;X) <= H(X): {certificate.describe() if certificate else 'no certificate'}",
        f"a record with {values} equally likely values, all of it released: {show(leak, 10)} nats",
        "with n equally likely gradients it is ln n nats, above every bound as n grows",
    )
    if claimed_nats is not None:
        within = certificate is not None and ball(values).log() <= ball(claimed_nats)
        return settle(
            *evidence,
            proof=f"A record of {values} values leaks at most {claimed_nats:g} nats" if within else None,
            counterexample=counterexample_if(
                leak > ball(claimed_nats),
                f"All of the record released leaks {show(leak)} nats, more than {claimed_nats:g}.",
                {"values": values, "leak_nats": show(leak)},
            ),
        )
    return settle(
        *evidence,
        proof="Releasing a record's gradient leaks more nats than any bound" if certificate else None,
        counterexample=counterexample_if(
            leak.is_finite(),
            f"A leak is never above the record's entropy: membership, a fair bit, leaks {show(leak)} nats "
            "even when every raw gradient is released.",
            {"values": values, "leak_nats": show(leak)},
        ),
        assumption=assume(
            "a record's gradient has infinite entropy, as continuous ones have and those of texts have not",
            lambda record: record == "continuous",
            left_open={"the record's law": ("continuous", "texts")},
        ),
    )
