"""PACZero-ZPL: zero nats, and what that does not say; several releases a step; the hybrid.

Letters in the information forms: J (or S) the secret index, Y the released bit, V earlier outputs, C a fair
coin, A and B further releases. `scale` and the other parameters alter the claim, for the tests.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from workbench.attacks.claim_checks.paczero.binary_channel import binary_mi
from workbench.attacks.claim_checks.paczero.statements import blind_success
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    binary_entropy,
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


@register("claim_check", "paczero_theorem_5")
@setting(ABOUT_A_SUBSET)
@in_balls
def theorem_5(*, dissenters: int = 0, candidates: int = 128) -> Finding:
    """Theorem 5: PACZero-ZPL leaks exactly 0 nats.

    Args:
        dissenters: An altered mechanism that releases the secret's sign although so many candidates disagree.
        candidates: M, of the altered mechanism.
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
        proof="A PACZero-ZPL run leaks 0 nats, for every M and T"
        if all(proofs.values()) and not leak > 0
        else None,
        counterexample=Counterexample(
            sentence=(
                f"Releasing the secret's sign while {dissenters} of {candidates} candidates disagree leaks "
                f"{show(leak)} nats."
            ),
            values={"dissenters": dissenters, "candidates": candidates, "leak_nats": show(leak)},
        )
        if leak > 0
        else None,
        evidence=(
            *(f"{name}: {proof.describe() if proof else 'no certificate'}" for name, proof in proofs.items()),
            "the posterior stays uniform, so unanimity means that all M candidates agree: the sign is public",
            f"all sign patterns of 2 to 4 candidates enumerated: {len(patterns)} leak",
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
@in_balls
def corollary_6(*, prior: str = "1/2") -> Finding:
    """Corollary 6: against PACZero-ZPL every membership guess is right with probability exactly 1/2."""
    theorem = theorem_5()
    found = blind_success(Fraction(prior))
    if theorem.verdict != VerdictKind.PROVEN:
        return theorem
    return from_statement(
        found,
        proof="Every membership guess against PACZero-ZPL is right with probability exactly 1/2",
        note="Theorem 5: the release is independent of the secret, hence of membership; so is the guess",
    )


@register("claim_check", "paczero_not_dp")
@in_balls
def not_dp(*, flip_probability: str = "1/2") -> Finding:
    """Sections 1 and 6: PACZero-ZPL satisfies no (epsilon, delta)-DP of use, although it leaks 0 nats.

    Args:
        flip_probability: Probability of -1 on disagreement; 0 is an altered mechanism.
    """
    minus = Fraction(flip_probability)
    theorem = theorem_5()
    return settle(
        proof=(
            "Replacing one record can turn unanimity into disagreement: then -1 has probability 0 on one "
            "side "
            f"and {minus} on the other, so one step has delta >= {minus} at every epsilon, while it leaks "
            "0 nats"
        )
        if minus > 0 and theorem.verdict == VerdictKind.PROVEN
        else None,
        counterexample=None
        if minus > 0
        else Counterexample(
            sentence="Where disagreement releases +1 for certain, both laws are equal: (0, 0)-DP.",
            values={"flip_probability": flip_probability, "delta": "0"},
        ),
        evidence=(
            "two candidates {a} and {b}, gradients +1 and +1: unanimous, +1 for certain; replace b by a "
            "record "
            f"with gradient -1: disagreement, -1 with probability {minus}",
            f"over T such steps delta >= 1 - (1 - {minus})^T at every epsilon",
            "a record is in only half of the candidates, so one record cannot turn + unanimity into - "
            "unanimity",
            f"Theorem 5 for both universes: {theorem.verdict}",
        ),
    )


@register("claim_check", "paczero_appendix_m")
@setting(ABOUT_A_SUBSET)
@in_balls
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
        proof="K releases leak at most the sum of their shares" if proven else None,
        counterexample=Counterexample(
            sentence=f"Two bits of a secret of four values leak {show(joint)} nats, more than {show(parts)}.",
            values={"joint_nats": show(joint), "claimed_nats": show(parts)},
        )
        if joint > parts
        else None,
        evidence=(f"certificate: {proven.describe() if proven else 'none'}",),
    )


@register("claim_check", "paczero_hybrid")
@setting(ABOUT_A_SUBSET)
@in_balls
def hybrid(*, exact_unanimity: bool = True) -> Finding:
    """Section 6: a PACZero-ZPL tail after a PACZero-MI run adds no nats.

    Args:
        exact_unanimity: Whether the tail releases the sign only where no possible candidate disagrees; else
            it does so at a posterior weight of 1e-12 on the other side.
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
        proof="The tail adds nothing to the run's nats" if proven and exact_unanimity else None,
        counterexample=None
        if exact_unanimity
        else Counterexample(
            sentence=f"A sign released at weight 1e-12 on the other side adds {show(leak)} nats.",
            values={"weight": "1e-12", "leak_nats": show(leak)},
        ),
        evidence=(
            f"certificate: {proven.describe() if proven else 'none'}",
            "but Gaussian noise never rules a candidate out, so with exact unanimity the inherited "
            "posterior makes "
            "no step unanimous that a fresh one would not: the hoped-for gain needs the tolerance, which "
            "leaks",
        ),
    )


@register("claim_check", "paczero_eq_8")
@in_balls
def eq_8(*, limit: str = "1/2") -> Finding:
    """Section 3.2, Eq. 8: as the budget falls to 0 the noised sign becomes a fair coin.

    Args:
        limit: Probability of +1 in the limit; an altered claim where it is not 1/2.
    """
    steepest = 1 / (2 * ball(1).pi()).sqrt()
    wanted, far = ball(Fraction(limit)), ball(10**9)
    reached = 1 - ((1 / far) / ball(2).sqrt()).erfc() / 2
    off = abs(reached - wanted) > ball("1e-8")
    lines = [
        f"sigma = {noise}: {show(binary_mi(Fraction(1, 2), Fraction(noise)), 4)} nats"
        for noise in (1, 10, 100)
    ]
    return settle(
        proof="The sign of s + N(0, sigma^2) is +1 with probability within 2/(5 sigma) of 1/2, and sigma "
        "grows without limit as the budget falls to 0"
        if steepest < ball("0.4") and not off
        else None,
        counterexample=Counterexample(
            sentence=f"At sigma = 1e9 the sign +1 has probability {show(reached, 10)}, not {limit}.",
            values={"sigma": "1e9", "probability": show(reached, 10), "claimed": limit},
        )
        if off
        else None,
        evidence=(
            "the probability is Phi(s / sigma), and Phi rises nowhere faster than 1/sqrt(2 pi) = "
            f"{show(steepest)} < 2/5",
            "a finite sigma leaks a positive amount, which falls in sigma (Eq. 4), so a budget below it "
            f"needs more noise: {', '.join(lines)}",
        ),
    )


@register("claim_check", "paczero_selection")
@setting(ABOUT_A_SUBSET)
@in_balls
def selection(*, runs: int = 1) -> Finding:
    """Section 4.1: choosing a checkpoint of a run by held-out data adds no nats to the run's.

    Args:
        runs: Runs on the same secret among which is chosen; the claim is about one.
    """
    proven = certify(
        information("S", "V") - information("S", "C"),
        equations={
            "the held-out data are independent of the secret and the run": information("D", "SV"),
            "the choice is made from the run and the held-out data": information("S", "C", "VD"),
        },
    )
    law = FiniteLaw("SAB", {((a, b), a, b): Fraction(1, 4) for a, b in product((0, 1), repeat=2)})
    one, both = law.information("S", "A"), law.information("S", "AB")
    return settle(
        proof="The chosen checkpoint leaks at most the nats of the run" if proven and runs == 1 else None,
        counterexample=None
        if runs == 1 or not both > one
        else Counterexample(
            sentence=f"Two runs may each leak {show(one)} nats of one secret, and together {show(both)}.",
            values={"one_run_nats": show(one), "two_runs_nats": show(both)},
        ),
        evidence=(
            f"certificate: {proven.describe() if proven else 'none'}",
            "the held-out records are no candidates (1,000 to train, 500 to select)",
            "one run: the choice of learning rate and clip among several (appendix G) is charged nowhere; "
            "runs on one secret add up",
        ),
    )
