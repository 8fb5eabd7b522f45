"""Statements of differential privacy that several papers print, each proven from algebra that Z3 checks.

Every function proves one lemma, or says at which point the algebra fails. What a proof takes for granted
(an elementary inequality, the linearity of integrals) stands in its evidence. `scale` multiplies the
claimed bound; at 1 it is the lemma as known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from workbench.attacks.accountant_checks.proof import (
    And,
    Formula,
    Statement,
    Term,
    exp,
    holds_under,
    log,
    minimum,
    normal_cdf,
    number,
    prove_by_balls,
    real,
    sqrt,
)
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    gaussian_delta,
    is_proven,
    prove_that,
    settle,
    show,
)
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Assumption, Finding

EXP_TANGENT = "e^x >= 1 + x for all real x"
LINEAR = "integrals are linear and monotone"


def together(
    name: str, parts: Sequence[Finding], *, premises: Sequence[str] = (), necessary: bool = False
) -> Finding:
    """PROVEN where all parts are; else UNDECIDED, or the first REFUTED part where each part is necessary.

    Args:
        premises: What is used and not proven here, one sentence each.
        necessary: Whether the whole fails where a part fails.
    """
    evidence = (
        *(line for part in parts for line in (part.summary, *part.evidence)),
        *(f"taken for granted: {premise}" for premise in premises),
    )
    refuted = [part for part in parts if part.verdict is VerdictKind.REFUTED]
    if necessary and refuted:
        return replace(refuted[0], summary=f"{name}: {refuted[0].summary}", evidence=evidence)
    proven = is_proven(*parts)
    return Finding(
        verdict=VerdictKind.PROVEN if proven else VerdictKind.UNDECIDED,
        summary=f"{name}: {'proven' if proven else 'a step of the proof fails or is undecided'}",
        evidence=evidence,
    )


def close(p: Term, q: Term, factor: Term, delta: Term) -> Formula:
    """p and q are the probabilities of one answer out of two under (ln factor, delta)-close laws."""
    return And(
        p <= factor * q + delta,
        q <= factor * p + delta,
        1 - p <= factor * (1 - q) + delta,
        1 - q <= factor * (1 - p) + delta,
    )


def subsampling(name: str, *, assumption: Assumption, scale: Fraction = Fraction(1)) -> Finding:
    """e^epsilon' = 1 + scale * q * (e^epsilon - 1), delta' = q * delta, where one record is replaced.

    The unknowns are an event's probabilities: p0 where the record is left out, p1 and r1 where one or the
    other of the two records is in. Unassumed, only p1 and r1 are close; the assumption brings p0 near both.
    A counterexample is a mechanism with two answers on a data set of one record.
    """
    factor, q, delta = real("e_eps", low=1), real("q", low=0, high=1), real("delta", low=0, high=1)
    p0, p1, r1 = (real(symbol, low=0, high=1) for symbol in ("p0", "p1", "r1"))
    amplified = 1 + scale * q * (factor - 1)
    mixed, other = (1 - q) * p0 + q * p1, (1 - q) * p0 + q * r1
    replaced = holds_under(
        Statement(
            name=name,
            assumptions=(close(p1, r1, factor, delta),),
            conclusion=mixed <= amplified * other + q * delta,
        ),
        assumption=assumption,
        formula=And(close(p0, p1, factor, delta), close(p0, r1, factor, delta)),
    )
    if replaced.verdict is not VerdictKind.HOLDS_UNDER:
        return replaced
    ways = [
        prove_that(
            "the same where the record is removed",
            mixed <= amplified * p0 + q * delta,
            close(p0, p1, factor, delta),
        ),
        prove_that(
            "the same where the record is added",
            p0 <= amplified * mixed + q * delta,
            close(p0, p1, factor, delta),
        ),
    ]
    added = together("add-remove adjacency", ways, premises=(LINEAR,))
    return replace(
        replaced,
        verdict=VerdictKind.HOLDS_UNDER if is_proven(added) else VerdictKind.UNDECIDED,
        evidence=(*replaced.evidence, *added.evidence),
    )


def gaussian_renyi(*, scale: Fraction = Fraction(1), shift: Fraction = Fraction(1)) -> Finding:
    """The order-alpha divergence of a Gaussian is at most scale * alpha / (2 sigma^2).

    `shift` is the largest shift of the mean, in the unit in which the noise is sigma.
    """
    alpha, y, m = real("alpha", low=1), real("y"), real("m", low=0)
    sigma = real("sigma", low=0)
    square = prove_that(
        "completing the square in alpha (y - m)^2 + (1 - alpha) y^2",
        (alpha * (y - m) ** 2 + (1 - alpha) * y**2).equals((y - alpha * m) ** 2 - alpha * (alpha - 1) * m**2),
    )
    bound = prove_that(
        "alpha m^2 / (2 sigma^2) is at most the claimed bound",
        alpha * m**2 / (2 * sigma**2) <= scale * alpha / (2 * sigma**2),
        sigma > 0,
        alpha > 1,
        m <= shift,
    )
    return together(
        "Renyi divergence of the Gaussian mechanism",
        [square, bound],
        premises=("a Gaussian density integrates to 1", "a rotation puts the shift on one axis"),
        necessary=True,
    )


def renyi_mixture() -> Finding:
    """(P, Q) -> E_Q[(P / Q)^alpha] is jointly convex: t^alpha lies above its tangents, alpha > 1.

    With s = ln t: e^(alpha s) >= alpha e^s - (alpha - 1) follows from weighted means, and those from the
    tangent of exp at 0. The variables stand for e^((alpha - 1) s) and e^-s.
    """
    alpha, s, grown, shrunk = real("alpha", low=1), real("s"), real("grown"), real("shrunk")
    return together(
        "t^alpha lies above its tangents",
        [
            prove_that(
                "e^((alpha - 1) s) / alpha + (1 - 1 / alpha) e^-s >= 1",
                grown / alpha + (1 - 1 / alpha) * shrunk >= 1,
                grown >= 1 + (alpha - 1) * s,
                shrunk >= 1 - s,
            )
        ],
        premises=(EXP_TANGENT, "a supremum of linear functions is convex", LINEAR),
    )


def renyi_composition(*, scale: Fraction = Fraction(1)) -> Finding:
    """Adaptive composition adds Renyi divergences: the step of the induction, over any weights.

    a_i are the first output's terms q(y) (p(y) / q(y))^alpha, c_i the second step's moments given y.
    """
    weights = [real(f"a{i}", low=0) for i in range(3)]
    moments = [real(f"c{i}", low=0) for i in range(3)]
    first, second = real("first", low=1), real("second", low=1)
    whole = weights[0] * moments[0] + weights[1] * moments[1] + weights[2] * moments[2]
    return together(
        "the moments of a composition multiply",
        [
            prove_that(
                "sum of a_i c_i <= (sum of a_i) (largest c_i)",
                whole <= scale * first * second,
                weights[0] + weights[1] + weights[2] <= first,
                *(moment <= second for moment in moments),
            )
        ],
        premises=(f"{LINEAR}, which carries three outputs to any number", "induction over the steps"),
        necessary=True,
    )


def renyi_conversion() -> Finding:
    """(alpha, rho)-RDP gives (rho + ln(1 / delta) / (alpha - 1), delta)-DP.

    R is the likelihood ratio, K = e^epsilon and u = (R / K)^(alpha - 1), which is at least 1 where R >= K.
    Pointwise R - K <= R u; its mean under Q is delta(epsilon) <= E[R^alpha] e^(-(alpha - 1) epsilon).
    """
    ratio, threshold, u = real("R", low=0), real("K", low=0), real("u", low=0)
    order, rho, price, epsilon = real("a", low=0), real("rho", low=0), real("L", low=0), real("epsilon")
    return together(
        "conversion from Renyi to (epsilon, delta)",
        [
            prove_that(
                "(R - K)^+ <= R (R / K)^(alpha - 1)",
                ratio - threshold <= ratio * u,
                threshold > 0,
                ratio >= threshold,
                u >= 1,
            ),
            prove_that(
                "(alpha - 1) (rho - epsilon) <= ln delta",
                order * (rho - epsilon) <= -price,
                order > 0,
                (order * (epsilon - rho)).equals(price),
            ),
        ],
        premises=(LINEAR, "a power with a positive exponent is monotone"),
    )


def converted_renyi(*, scale: float = 1.0) -> Finding:
    """The conversion of `renyi_conversion` with scale * ln(1 / delta), and a Gaussian that may break it."""
    proof = renyi_conversion()
    return settle(
        *proof.evidence,
        "a Gaussian of mu = 1 at alpha = 2, rho = 1, delta = 1e-6, exact delta in ball arithmetic",
        proof=proof.summary,
        proven=scale >= 1 and is_proven(proof),
        counterexample=_conversion_fails(scale),
    )


def _conversion_fails(scale: float) -> Counterexample | None:
    delta = ball("0.000001")
    epsilon = 1 - ball(scale) * delta.log()
    truth = gaussian_delta(ball(1), epsilon)
    if not truth > delta:
        return None
    return Counterexample(
        sentence=f"a Gaussian of mu = 1 has delta({show(epsilon)}) = {show(truth)}, above 1e-6",
        values={"mu": 1, "alpha": 2, "epsilon": show(epsilon), "true_delta": show(truth)},
    )


def post_processing(*, scale: Fraction = Fraction(1)) -> Finding:
    """Averaging an event's probabilities over independent randomness keeps (epsilon, delta)."""
    factor, delta = real("e_eps", low=1), real("delta", low=0, high=1)
    weights = [real(f"w{i}", low=0) for i in range(3)]
    ps = [real(f"p{i}", low=0, high=1) for i in range(3)]
    qs = [real(f"q{i}", low=0, high=1) for i in range(3)]
    mixed_p = weights[0] * ps[0] + weights[1] * ps[1] + weights[2] * ps[2]
    mixed_q = weights[0] * qs[0] + weights[1] * qs[1] + weights[2] * qs[2]
    return together(
        "post-processing",
        [
            prove_that(
                "a mean of p_i <= e^epsilon q_i + delta",
                mixed_p <= factor * mixed_q + scale * delta,
                (weights[0] + weights[1] + weights[2]).equals(1),
                *(p <= factor * q + delta for p, q in zip(ps, qs, strict=True)),
            )
        ],
        premises=("the preimage of an event under a fixed map is an event", LINEAR),
        necessary=True,
    )


def adaptive_composition(*, scale: Fraction = Fraction(1)) -> Finding:
    """Adaptively chosen (epsilon_t, delta_t) whose sums stay within (E, D) on every path compose to (E, D).

    One backward step: given an output y of the first mechanism, e_eps1 e_eps2(y) <= E and delta1 +
    delta2(y) <= D. phi(y) = min(1, (E / e_eps1) r(y)) carries the first mechanism's guarantee over.
    """
    first, second, whole = (real(symbol, low=1) for symbol in ("e_eps1", "e_eps2", "E"))
    d1, d2, total = (real(symbol, low=0, high=1) for symbol in ("delta1", "delta2", "D"))
    p, r = real("p", low=0, high=1), real("r", low=0, high=1)
    phi = minimum(1, whole / first * r)
    budget = (first * second <= scale * whole, d1 + d2 <= total)
    return together(
        "adaptive composition within a fixed budget",
        [
            prove_that(
                "the second step's event is at most phi plus the delta that is left",
                p <= phi + total - d1,
                p <= second * r + d2,
                *budget,
            ),
            prove_that("e_eps1 phi is at most E r", first * phi <= whole * r),
        ],
        premises=(
            "an (epsilon, delta) guarantee on events is one on functions with values in [0, 1]",
            LINEAR,
            "induction over the steps, backwards",
        ),
    )


def classical_gaussian(*, limit: Fraction = Fraction(1)) -> Finding:
    """sigma >= sqrt(2 ln(1.25 / delta)) / epsilon is (epsilon, delta)-DP at sensitivity 1, epsilon <= limit.

    With s^2 = 2 ln(1.25 / delta), delta(epsilon) <= Phi(-x) at x = s - epsilon / (2 s), and x^2 >= s^2 -
    epsilon; so 1/2 e^(-x^2 / 2) <= 1/2 e^(epsilon / 2) e^(-s^2 / 2), which is at most delta = 1.25 e^(-s^2
    / 2) while e^(epsilon / 2) <= 2.5. Where x < 0, delta is close to 1 and a box in ball arithmetic settles
    it.
    """
    s, epsilon = real("s", low=0), real("epsilon", low=0, high=limit)
    least = Fraction(668, 1000)
    most = Fraction(math.ceil(math.sqrt(limit / 2) * 10_000) + 1, 10_000)
    root, eps = real("s", low=max(least, most)), real("epsilon", low=0, high=limit)
    steps = [
        prove_that(
            "(s - epsilon / (2 s))^2 >= s^2 - epsilon", (s - epsilon / (2 * s)) ** 2 >= s**2 - epsilon, s > 0
        ),
        prove_that("e^(epsilon / 2) <= 2.5", exp(epsilon / 2) <= Fraction(5, 2)),
        prove_that("s >= 0.668 where delta < 1", sqrt(2 * log(number("1.25"))) >= least),
        prove_that("x >= 0 where s is large", 2 * root**2 >= eps),
    ]
    if most > least:
        small = real("s", low=least, high=most)
        steps.append(
            prove_by_balls(
                "delta is at least Phi(epsilon / (2 s) - s) where s is small",
                Fraction(5, 4) * exp(-(small**2) / 2) - normal_cdf(eps / (2 * small) - small),
            )
        )
    return together(
        f"the classical Gaussian mechanism for epsilon <= {limit}",
        steps,
        premises=("Phi(-x) <= e^(-x^2 / 2) / 2 for x >= 0", "more noise never loses privacy"),
    )
