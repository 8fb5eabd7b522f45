"""FERRET, section 5: the lemmas, the total of Eq. 8, and Theorem 1.

Letters in the information forms: X the record, R the other records, S whether X is sampled in the step, P the
step's public masks and directions, V all earlier outputs, W the step's signs, Y an output. `scale` multiplies
the claimed bound; the tests turn it to see the verdict change.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, setting, settle, show
from workbench.attacks.claim_checks.shared.information import (
    ABOUT_A_RECORD,
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
BINARY = "an answer out of two has entropy at most ln 2 (Gibbs' inequality against the fair coin)"


def _ln2() -> Any:
    return ball(2).log()


def _erasure(probability: Fraction) -> FiniteLaw:
    """A fair bit X that is released as Y with this probability (S = 1), else nothing."""
    return FiniteLaw(
        "XSY",
        {
            (x, s, x if s else "silent"): HALF * (probability if s else 1 - probability)
            for x, s in product((0, 1), (0, 1))
        },
    )


@register("claim_check", "ferret_lemma_1")
@in_balls
def lemma_1(*, scale: float = 1.0) -> Finding:
    """Lemma 1: the sign of a fixed non-zero gradient along a uniform direction has entropy ln 2."""
    from workbench.attacks.accountant_checks.proof import Statement, prove, real

    plus, minus = real("plus", low=0, high=1), real("minus", low=0, high=1)
    halves = prove(
        Statement(
            name="the two signs are equally likely",
            assumptions=((plus + minus).equals(1), plus.equals(minus)),
            conclusion=plus.equals(HALF),
        )
    )
    coin = FiniteLaw("Z", {(1,): HALF, (-1,): HALF}).entropy("Z")
    claimed = _ln2() * ball(scale)
    atoms = [_cap_probability(dimension, ball(Fraction(1, 10**30))) for dimension in (2, 3, 100, 10_000)]
    evidence = (
        "u -> -u keeps the uniform law and flips the sign; <g,u> = 0 has probability 0, for <g,u>/|g| is one "
        "coordinate of u, which has a density from dimension 2 on and is +1 or -1 in dimension 1",
        f"Pr[|<g,u>| < 1e-30 |g|] in dimensions 2, 3, 100, 10000: {', '.join(show(a, 3) for a in atoms)}",
        f"{halves.verdict}: {halves.evidence[0]}",
        f"entropy of that coin {show(coin, 12)} nats, claimed {show(claimed, 12)}",
    )
    same = Fraction(scale) == 1
    off = None if coin.overlaps(claimed) else coin
    return settle(
        proof="The sign's entropy is exactly ln 2 nats"
        if same and halves.verdict == VerdictKind.PROVEN
        else None,
        counterexample=None
        if off is None
        else Counterexample(
            sentence=f"Any non-zero gradient's sign has entropy {show(coin)} nats, not {show(claimed)}.",
            values={"gradient": [1], "entropy_nats": show(coin), "claimed_nats": show(claimed)},
        ),
        evidence=evidence,
    )


def _cap_probability(dimension: int, height: Any) -> Any:
    """Probability that one coordinate of a uniform unit vector lies within `height` of 0."""
    a, b = ball(HALF), ball(Fraction(dimension - 1, 2))
    return (height * height).beta_lower(a, b, regularized=True)


@register("claim_check", "ferret_zero_gradient")
@in_balls
def zero_gradient(*, scale: float = 1.0) -> Finding:
    """After Lemma 1: zero gradients, whose sign is not queried, do not affect the privacy analysis."""
    third = Fraction(1, 3)
    law = FiniteLaw("XW", {(x, x): third for x in (-1, 0, 1)})
    leak, claimed = law.information("W", "X"), _ln2() * ball(scale)
    bound = quantity("ln 2")
    answered = certify(
        bound * Fraction(scale) - information("WP", "X"),
        facts={"ln 2 >= H(W|P)": bound - entropy("W", "P"), "ln 2 >= 0": bound},
        equations={"I(P;X) = 0": information("P", "X")},
    )
    silent_is_fine = bool(claimed >= ball(3).log()) and answered is not None
    evidence = (
        "a record whose gradient is -1, 0 or +1 with equal probability, alone in the batch, public u = 1, "
        f"the group fires: outputs minus, silence, plus; I = {show(leak, 10)} nats against "
        f"{show(claimed, 10)}",
        BINARY,
        f"certificate where a zero is answered too: {answered.describe() if answered else 'none'}",
    )
    return settle(
        proof="A fired group leaks at most the claimed nats" if answered else None,
        assumption=None
        if silent_is_fine
        else "a zero gradient is answered by a sign as well, so that no silence depends on the data",
        counterexample=Counterexample(
            sentence=(
                f"A group that stays silent exactly at gradient 0 has three answers and leaks {show(leak)} "
                f"nats, more than {show(claimed)}."
            ),
            values={"gradients": [-1, 0, 1], "leak_nats": show(leak), "claimed_nats": show(claimed)},
        )
        if leak > claimed
        else None,
        evidence=evidence,
    )


@register("claim_check", "ferret_lemma_2")
@setting(ABOUT_A_RECORD)
@in_balls
def lemma_2(*, scale: float = 1.0) -> Finding:
    """Lemma 2: sampling with probability s takes eps0 to s eps0 (Eqs. 9 and 10)."""
    bound = quantity("s eps0")
    proven = certify(
        bound * Fraction(scale) - information("Y", "X", "R"),
        facts={"I(Y;X|R,S) <= s eps0": bound - information("Y", "X", "RS"), "s eps0 >= 0": bound},
        equations={"S independent of the data": information("S", "XR")},
    )
    s = HALF
    law = _erasure(s)
    leak = law.information("Y", "X")
    # As printed, Eq. 9 bounds the leakage of M(D_S) itself: eps0 = s ln 2, the erasure channel's capacity.
    as_printed = ball(scale) * ball(s) * (ball(s) * _ln2())
    as_meant = ball(scale) * ball(s) * _ln2()
    under = leak > as_meant
    worst = as_meant if under else as_printed
    evidence = (
        "I(Y;X|R,S) = s I(Y;X|R,S=1), for an unsampled record leaves the output independent of it",
        f"certificate: {proven.describe() if proven else 'none'}",
        f"one record, a fair bit, released when sampled, s = 1/2: I = {show(leak, 10)} nats; "
        f"s times Eq. 9's bound as printed {show(as_printed, 10)}, as meant {show(as_meant, 10)}",
    )
    return settle(
        proof="The sampled mechanism leaks at most s eps0" if proven else None,
        assumption=None
        if proven and not leak > as_printed
        else "eps0 bounds the leakage given that the record is in the sample (Eq. 9 prints that of the "
        "mechanism that is already sampled), and the conclusion, like Eq. 9, counts it given the other "
        "records",
        counterexample=Counterexample(
            sentence=(
                f"One bit released with probability s = 1/2 leaks {show(leak)} nats where the lemma allows "
                f"{show(worst)}."
            ),
            values={"s": "1/2", "leak_nats": show(leak), "allowed_nats": show(worst)},
        )
        if leak > worst
        else None,
        evidence=evidence,
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
        return settle(
            proof="The first term of Eq. 11 is at most the last" if ends else None,
            counterexample=None,
            evidence=evidence,
        )
    differ = not first.overlaps(second) and not second.overlaps(third)
    return settle(
        proof=None,
        counterexample=Counterexample(
            sentence=(
                f"The three terms of Eq. 11 are {show(first, 4)}, {show(second, 4)} and {show(third, 4)} "
                "nats: neither equality holds. (The first is at most the last, which is what Lemma 2 needs.)"
            ),
            values={"first": show(first), "second": show(second), "third": show(third)},
        )
        if differ
        else None,
        evidence=evidence,
    )


@register("claim_check", "ferret_composition")
@setting(ABOUT_A_RECORD)
@in_balls
def composition(*, scale: float = 1.0) -> Finding:
    """Sections 2.1 and 5.2: the nats I(M(D); X_i) of several releases add up."""
    law = FiniteLaw(
        "XABYZ",
        {(x, a, b, x ^ a ^ b, a ^ b): Fraction(1, 8) for x, a, b in product((0, 1), repeat=3)},
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
    evidence = (
        "three independent fair bits X, A, B; the first release is X+A+B mod 2, the second A+B mod 2",
        f"largest single leakage about any record {show(max(singles, key=lambda v: v.abs_upper()), 3)} nats "
        f"(exactly 0), together {show(joint, 8)} nats about X",
        *(f"certificate {how}: {found.describe() if found else 'none'}" for how, found in proofs.items()),
        "the parities' leakages are 0 for this law only: with A and B known the first release is X",
    )
    return settle(
        proof="The nats of adaptive releases add up" if proven and every_law else None,
        assumption="leakage is counted given all other records, or bounded for every law of the data, as "
        "Lemma 2 does both and section 2.1's definition neither",
        counterexample=Counterexample(
            sentence=(
                "Two parities of independent fair bits leak 0 nats each about every record by section 2.1's "
                f"definition, and {show(joint)} nats together."
            ),
            values={"releases": ["X+A+B", "A+B"], "single_nats": "0", "joint_nats": show(joint)},
        )
        if zero and joint > 0
        else None,
        evidence=evidence,
    )


@register("claim_check", "ferret_eq_8")
@setting(ABOUT_A_RECORD)
@in_balls
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
    evidence = (
        BINARY + "; a mask that is silent with probability 1 - p makes it p ln 2 given the mask",
        *(f"{name}: {proof.describe() if proof else 'no certificate'}" for name, proof in proofs.items()),
        f"{copies} equal records, one drawn into the batch, p = 1/2, one group, one step: every batch gives "
        f"the same sign, I(Y;X_1) = {show(leak, 8)} nats, claimed {show(claimed, 8)}",
        "given all others, whose gradients are 0, and silent at 0: a record with gradient 0, +1 or -1 "
        f"(probabilities 1/4, 3/8, 3/8), sampled with probability {s}, leaks {show(silent, 8)} nats, "
        f"claimed {show(ball(scale) * ball(s * p) * _ln2(), 8)}",
    )
    return settle(
        proof="A run leaks at most G T s p ln 2 nats about a record" if proven else None,
        assumption="leakage is counted given all other records (or records are independent), and a fired "
        "group answers +1 or -1 even at gradient 0",
        counterexample=Counterexample(
            sentence=(
                f"With {copies} equal records, one of them in the batch, a step leaks {show(leak)} nats "
                f"about each where Eq. 8 says {show(claimed)}."
            ),
            values={"records": copies, "p": str(p), "leak_nats": show(leak), "claimed_nats": show(claimed)},
        )
        if leak > claimed
        else None,
        evidence=evidence,
    )


def _duplicates(fire: Fraction) -> FiniteLaw:
    """All records are one fair bit; with probability `fire` its public projection's sign is released."""
    return FiniteLaw(
        "XY", {(x, x if z else "silent"): HALF * (fire if z else 1 - fire) for x in (-1, 1) for z in (0, 1)}
    )


def _silent_at_zero(shown: Fraction) -> FiniteLaw:
    """A record with gradient -1, 0 or +1 whose sign is released with probability `shown`, unless it is 0."""
    law = {(0, 0): Fraction(1, 4)}
    for x in (-1, 1):
        law |= {(x, x): Fraction(3, 8) * shown, (x, 0): Fraction(3, 8) * (1 - shown)}
    return FiniteLaw("XY", law)


@register("claim_check", "ferret_theorem_1")
@in_balls
def theorem_1(*, scale: float = 1.0) -> Finding:
    """Theorem 1: exactly one p in (0, 1) meets a budget in (0, G T s ln 2), p* = eps / (G T s ln 2)."""
    from workbench.attacks.accountant_checks.proof import And, Implies, Statement, prove, real

    budget, ceiling = real("budget", low=0), real("ceiling", low=0)
    other, larger = real("other", low=0, high=1), real("larger", low=0, high=1)
    best = budget / ceiling * Fraction(scale)
    found = prove(
        Statement(
            name="Theorem 1, for every ceiling G T s ln 2 > 0 and every budget below it",
            assumptions=(budget > 0, ceiling > 0, budget < ceiling),
            conclusion=And(
                best > 0,
                best < 1,
                (ceiling * best).equals(budget),
                Implies((ceiling * other).equals(budget), other.equals(best)),
                Implies(other < larger, ceiling * other < ceiling * larger),
            ),
        )
    )
    return settle(
        proof="Exactly one p in (0, 1) meets a budget in (0, G T s ln 2), and it is eps / (G T s ln 2)"
        if found.verdict == VerdictKind.PROVEN
        else None,
        counterexample=Counterexample(sentence=found.summary, values=found.counterexample)
        if found.verdict == VerdictKind.REFUTED
        else None,
        evidence=(*found.evidence, "a budget of 0 would need p = 0, outside (0, 1): budgets are positive"),
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
        proof="A fired group leaks at most ln 2 nats, whatever its size" if proven else None,
        counterexample=Counterexample(
            sentence=f"A record that decides the sign leaks {show(leak)} nats, more than {show(claimed)}.",
            values={"gradient": "-1 or +1", "leak_nats": show(leak), "claimed_nats": show(claimed)},
        )
        if leak > claimed
        else None,
        evidence=(
            BINARY + "; the group's size does not enter",
            f"certificate: {proven.describe() if proven else 'none'}",
            f"attained: a record that decides the sign leaks {show(leak, 10)} nats",
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
            proof=lemma.summary if lemma.verdict == VerdictKind.PROVEN and given_u.overlaps(_ln2()) else None,
            counterexample=None,
            evidence=evidence,
        )
    failing = given_u < _ln2() and given_x > 0
    return settle(
        proof=None,
        counterexample=Counterexample(
            sentence=(
                f"Given the public direction a fixed gradient's sign has entropy {show(given_u, 3)}, not "
                f"ln 2 (Lemma 1 averages over u), and given X_i it still has {show(given_x)} where another "
                "record "
                "decides. Lemma 3 needs neither step."
            ),
            values={"H(sigma|u)": show(given_u), "H(sigma|X_i,u)": show(given_x)},
        )
        if failing
        else None,
        evidence=evidence,
    )
