"""PACZero, by computation: the information of a sign in Gaussian noise (Eq. 4), figures and tolerances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.attacks.accountant_checks.proof import And, normal_cdf, real
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    ball,
    binary_entropy,
    counterexample_if,
    from_statement,
    in_balls,
    is_proven,
    nats_at,
    prove_that,
    rounds_to,
    settle,
    show,
    success_under_dp,
)
from workbench.attacks.claim_checks.shared.information import certify, entropy, information
from workbench.core.errors import InconclusiveError
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding, assume

HALF = Fraction(1, 2)
POSTERIORS = (("1/4", "84"), ("1/128", "56"))
"""Section 2: nats, and the percentage that membership success is limited to."""
DP_POSTERIORS = (("1", "73.11"), ("0.1", "52.50"))
"""Section 2: epsilon at delta = 1e-5, and the same percentage."""


def logistic(epsilon: Any) -> Any:
    """e^eps / (1 + e^eps) of a ball."""
    return 1 / (1 + (-epsilon).exp())


@register("claim_check", "paczero_posteriors")
@in_balls
def posteriors(*, scale: float = 1.0) -> Finding:
    """Section 2: 1/4 nats limit membership success to about 84 %, 1/128 nats to about 56 %."""
    lines, wrong = [], None
    for nats, percent in POSTERIORS:
        budget = ball(Fraction(nats)) * ball(scale)
        low, high = Fraction(int(percent) * 2 - 1, 200), Fraction(int(percent) * 2 + 1, 200)
        within = nats_at(ball(low)) <= budget <= nats_at(ball(high))
        lines.append(
            f"{nats} nats: KL({float(low)} || 1/2) = {show(nats_at(ball(low)))}, KL({float(high)} || 1/2) = "
            f"{show(nats_at(ball(high)))}"
        )
        wrong = wrong or counterexample_if(
            not within,
            f"{show(budget)} nats do not allow {percent} % to the nearest percent.",
            {"nats": show(budget), "printed_percent": percent},
        )
    return settle(
        *lines,
        proof="Solving KL(p || 1/2) = B gives 84 % at 1/4 nats and 56 % at 1/128, to the nearest percent",
        proven=wrong is None,
        counterexample=wrong,
    )


@register("claim_check", "paczero_dp_success")
@in_balls
def dp_success(*, scale: float = 1.0) -> Finding:
    """Section 2: (eps, delta)-DP limits membership success to e^eps/(1+e^eps) + delta; two figures."""
    grown, delta = real("exp_epsilon", low=1), real("delta", low=0, high=1)
    bound = prove_that(
        "(x + delta) / (1 + x) <= x / (1 + x) + delta for x = e^eps >= 1",
        (grown + delta) / (1 + grown) <= (grown / (1 + grown) + delta) * Fraction(scale),
    )
    lines, rounded = [], True
    for epsilon, percent in DP_POSTERIORS:
        percentage = (logistic(ball(epsilon)) + ball("1e-5")) * 100 * ball(scale)
        rounded = rounded and rounds_to(percentage, percent)
        lines.append(f"epsilon = {epsilon}, delta = 1e-5: {show(percentage, 8)} %, printed {percent} %")
    return settle(
        "the exact largest success is (e^eps + delta) / (1 + e^eps) (Kairouz, Oh and Viswanath 2015); the "
        "printed value adds delta where delta / (1 + e^eps) would do",
        *bound.evidence,
        *lines,
        proof="The printed value bounds balanced membership success, and both figures round as printed",
        proven=is_proven(bound) and rounded,
        counterexample=counterexample_if(
            bound.verdict is VerdictKind.REFUTED, bound.summary, bound.counterexample
        ),
    )


@register("claim_check", "paczero_eq_4")
@in_balls
def eq_4(*, scale: float = 1.0) -> Finding:
    """Eq. 4 and appendix C: the information falls in sigma, from h(q) to 0, so that a budget fixes sigma."""
    falls = certify(
        information("K", "W") - information("K", "Y"),
        equations={"more noise is noise added to W": information("K", "Y", "W")},
    )
    capped = certify(entropy("K") - information("K", "W"))
    lines, wrong = [], None
    for q in (HALF, Fraction(1, 10), Fraction(1, 128)):
        values = [binary_mi(q, noise) for noise in (Fraction(1, 8), HALF, Fraction(2), Fraction(32))]
        top = binary_entropy(ball(q)) * ball(scale)
        lines.append(f"q = {q}: h = {show(top)}; sigma 1/8, 1/2, 2, 32: {', '.join(map(show, values))}")
        ordered = all(a > b for a, b in pairwise(values)) and values[-1] > 0
        wrong = wrong or counterexample_if(
            not (ordered and top - values[0] < ball("1e-9") and values[0] < top),
            f"At q = {q} the information at sigma = 1/8 is {show(values[0])}, not {show(top)}.",
            {"q": str(q), "sigma": "1/8", "nats": show(values[0]), "claimed_limit": show(top)},
        )
    return settle(
        f"falls: {falls.describe() if falls else 'no certificate'}",
        f"at most h(q): {capped.describe() if capped else 'no certificate'}",
        "to 0: at most ln(1 + 4q(1-q)/sigma^2) / 2; to h(q): the sign is read with error Phi(-1/sigma); "
        "continuous, for the densities are; strictly, for its derivative in 1/sigma^2 is half the mean "
        "squared error of guessing the sign (Guo, Shamai and Verdú 2005)",
        *lines,
        proof="The information falls continuously from h(q) to 0 in sigma, so each budget has its sigma",
        proven=falls and capped and wrong is None,
        counterexample=wrong,
    )


@register("claim_check", "paczero_quadrature")
@in_balls
def quadrature(
    *,
    nodes: int = 60,
    tolerance: str = "5.5e-8",
    noises: Sequence[str] = ("1/5", "3/10", "1/2", "3/4", "1", "2", "5", "40"),
) -> Finding:
    """Appendix C: 60-node Gauss-Hermite quadrature evaluates Eq. 4, also where sigma is small.

    `nodes`: of the quadrature. `tolerance`: error in nats that counts as none: what appendix C treats as zero
    in a whole run. `noises`: the values of sigma that the claim is about, as fractions.
    """
    lines, worst = [], (ball(0), HALF)
    for noise in map(Fraction, noises):
        exact, approximate = binary_mi(HALF, noise), _gauss_hermite(0.5, float(noise), nodes)
        error = exact - ball(approximate)
        lines.append(
            f"q = 1/2, sigma = {float(noise):g}: exact {show(exact, 12)}, quadrature {approximate:.12g}, "
            f"error {show(error, 3)}"
        )
        if abs(error) > abs(worst[0]):
            worst = (error, noise)
    return settle(
        *lines,
        "at the paper's budgets sigma is about 39 (0.33 nats over 1,000 steps); a small one is met where "
        "much budget is left for a step",
        proof=f"The error is at most {tolerance} nats at every sigma named",
        proven=abs(worst[0]) <= ball(tolerance),
        counterexample=counterexample_if(
            abs(worst[0]) > ball(tolerance),
            f"At sigma = {float(worst[1]):g} the channel leaks {show(worst[0], 3)} nats more than the "
            f"quadrature says, in one step, where appendix C counts {tolerance} nats of a whole run as zero.",
            {"sigma": str(worst[1]), "q_plus": "1/2", "error_nats": show(worst[0], 3)},
        ),
    )


def _gauss_hermite(agreement: float, noise: float, nodes: int) -> float:
    """Eq. 4 by Gauss-Hermite quadrature in double precision, as appendix C describes it."""
    points, weights = np.polynomial.hermite.hermgauss(nodes)
    total = 0.0
    for weight in (agreement, 1 - agreement):
        ratio = -2.0 / noise**2 - 2.0 * math.sqrt(2.0) * points / noise
        loss = -np.logaddexp(math.log(weight), math.log(1 - weight) + ratio)
        total += weight * float(weights @ loss) / math.sqrt(math.pi)
    return total


@register("claim_check", "paczero_tolerance")
@in_balls
def tolerance(*, claimed_total: str = "5.5e-8", claimed_orders: int = 6, smallest: str = "1e-4") -> Finding:
    """Appendix C: the unanimity tolerance costs at most 5.5e-8 nats in 2,000 steps, six orders below budgets.

    `claimed_total`: Nats. `claimed_orders`: orders of magnitude between these and a budget. `smallest`: the
    tightest reported budget, nats (Tables 2 and 11).
    """
    each, steps, headline = binary_entropy(ball("1e-12")), 2000, ball("0.33")
    total, short = steps * each, steps * ball("1e-12") * (ball(10) ** 12).log()
    orders, loose = ((budget / total).log() / ball(10).log() for budget in (ball(smallest), headline))
    fine = bool(total <= ball(claimed_total)) and bool(orders >= ball(claimed_orders))
    rounded = bool(short <= ball(claimed_total) + ball("5e-10")) and bool(loose >= ball(claimed_orders))
    said = f"The cost is at most {show(total, 4)} nats, {show(loose, 3)} orders of magnitude below 0.33"
    return settle(
        f"h(1e-12) = {show(each, 8)} nats a step, {show(total, 8)} in 2,000 steps; without h's second term "
        f"{show(short, 8)}, printed 5.5e-8",
        f"{smallest} nats: {show(orders, 4)} orders of magnitude above; 0.33 nats: {show(loose, 4)}",
        "an upper bound on the cost: that every step reaches it is not claimed here",
        proof=said if fine or rounded else None,
        counterexample=counterexample_if(
            not fine,
            f"2,000 times h(tau) is {show(total, 4)} nats, and that lies {show(orders, 3)} orders of "
            f"magnitude below the {smallest} nats of Tables 2 and 11.",
            {"tau": "1e-12", "steps": steps, "nats": show(total), "orders": show(orders, 4)},
        ),
        assumption=assume(
            f"{claimed_total} is tau ln(1/tau) a step, to two digits, and the tightest reported budget is "
            "the smaller headline budget of 0.33 nats",
            lambda budget: fine or ball(budget) >= headline,
            claimed={"smallest": smallest},
        ),
    )


@register("claim_check", "paczero_cap")
@in_balls
def cap(*, share: str = "0.999") -> Finding:
    """Section 3.1 and appendix C: a budget capped at 0.999 h(q+) can always be met by some noise."""
    ceiling, part = real("h", low=0), Fraction(share)
    finding = prove_that(
        f"0 < {share} h < h for h > 0", And(ceiling * part > 0, ceiling * part < ceiling), ceiling > 0
    )
    return from_statement(
        finding,
        proof="The capped budget lies strictly between 0 and h(q+), where a noise exists (Eq. 4)",
        note="h(q) > 0 for q in (0, 1); with share 1 no finite noise reaches h(q)",
    )


@register("claim_check", "paczero_gap")
@in_balls
def gap(*, claimed_bound_nats: float | None = None) -> Finding:
    """Section 1: the variance bound ln(1 + Var / sigma^2) / 2 exceeds Eq. 4 without limit as sigma falls.

    `claimed_bound_nats`: an altered claim, that the excess stays below this.
    """
    lines, gaps = [], []
    for noise in (Fraction(39), Fraction(1), Fraction(1, 4), Fraction(1, 10**3), Fraction(1, 10**9)):
        variance = (1 + 1 / ball(noise) ** 2).log() / 2
        exact = binary_mi(HALF, noise) if noise >= Fraction(1, 4) else ball(2).log()
        gaps.append(variance - exact)
        lines.append(f"q = 1/2, sigma = {float(noise):g}: excess at least {show(gaps[-1])} nats")
    grows = all(a < b for a, b in pairwise(gaps)) and gaps[0] > 0
    exceeded = claimed_bound_nats is not None and gaps[-1] > ball(claimed_bound_nats)
    return settle(
        "ln(1 + v/sigma^2)/2 - h(q) is a lower bound on the excess "
        "and grows without limit as sigma falls to 0",
        *lines,
        "at the paper's budgets (0.33 nats over 1,000 steps: "
        "sigma = 39) the excess is below 1e-6 nats a step",
        proof="The excess over Eq. 4 grows without limit as sigma falls; at the paper's noise it is nil",
        proven=grows and gaps[0] < ball("1e-6") and claimed_bound_nats is None,
        counterexample=counterexample_if(
            exceeded,
            f"At sigma = 1e-9 the excess is at least {show(gaps[-1])} nats.",
            {"sigma": "1e-9", "excess_nats": show(gaps[-1])},
        ),
    )


MATCHED = (("0.33", "2"), ("0.68", "6"))
"""PACZero, section 4.1: total nats, and the epsilon whose membership bound they are matched with."""


@register("claim_check", "paczero_matched_budgets")
@in_balls
def paczero_matched_budgets(*, digits: int = 2) -> Finding:
    """PACZero, section 4.1: 0.33 and 0.68 nats match the membership bounds of epsilon 2 and 6 at delta 1e-5.

    `digits`: decimals of a nat to which they are to match.
    """
    lines, rounded, off = [], True, None
    for nats, epsilon in MATCHED:
        same = nats_at(success_under_dp(epsilon, "1e-5"))
        printed = nats_at(logistic(ball(epsilon)) + ball("1e-5"))
        lines.append(
            f"({epsilon}, 1e-5)-DP: {show(same, 8)} nats ({show(printed, 8)} by the paper's formula); "
            f"the paper takes {nats}"
        )
        close = bool(abs(same - ball(nats)) <= ball(Fraction(1, 2 * 10**digits)))
        rounded = rounded and close
        off = off or counterexample_if(
            not close,
            f"{nats} nats are not, to {digits} decimals, the {show(same)} nats whose membership bound is "
            f"that of ({epsilon}, 1e-5)-DP.",
            {"nats": nats, "epsilon": epsilon, "matching_nats": show(same)},
        )
    return settle(
        *lines,
        "prior 1/2; both budgets were rounded up, so they allow a little more than the DP bounds do",
        proof=f"The budgets are the matching nats to the {digits} decimals printed" if rounded else None,
        counterexample=off,
    )


@register("claim_check", "paczero_zero_epsilon")
@in_balls
def paczero_zero_epsilon(*, delta: str = "0") -> Finding:
    """PACZero, Remark 7 and Table 1: no finite noise gives DP at epsilon = 0 (at this delta)."""
    half = real("half_ratio", low=0)
    positive = prove_that(
        "Phi(x) > Phi(-x) for x = sensitivity / (2 sigma) > 0", normal_cdf(half) > normal_cdf(-half), half > 0
    )
    allowed = ball(delta)
    sigma, wrong = Fraction(40_000), None
    reached = (1 / (2 * ball(sigma)) / ball(2).sqrt()).erf()
    if reached <= allowed:
        wrong = Counterexample(
            sentence=(
                f"Gaussian noise of {sigma} times the sensitivity is (0, {delta})-DP: delta(0) = "
                f"{show(reached)}. Finite noise reaches epsilon = 0 there."
            ),
            values={"noise_multiplier": str(sigma), "delta_at_epsilon_0": show(reached), "delta": delta},
        )
    proven = is_proven(positive)
    return settle(
        "a law of noise that equals its own shift gives all intervals of the shift's length the same mass, "
        "which no probability does",
        *positive.evidence,
        f"noise multiplier {sigma}: delta(0) = {show(reached, 8)}",
        "(0, 0)-DP asks for equal laws; its membership bound is the prior, as 0 nats' is",
        proof="No finite noise has epsilon = 0 at a positive sensitivity; "
        "Gaussian noise has delta(0) = Phi(x) - Phi(-x) > 0",
        proven=proven,
        counterexample=wrong,
        assumption=assume(
            "delta = 0 is asked for (an accountant whose conversion never reports 0, as Rényi's, says as "
            "much at any delta)",
            lambda allowed: Fraction(allowed) == 0,
            claimed={"delta": delta},
        ),
    )


REACH = 16
"""The integral runs over so many standard deviations; what lies outside is bounded."""

TOLERANCE = 2.0**-64
"""Accuracy asked of the integral; the ball says what was reached."""


def binary_mi(agreement: Fraction, noise: Fraction) -> Any:
    """I(xi; xi + N(0, noise^2)), nats, for Pr[xi = +1] = agreement in (0, 1): a ball."""
    from flint import arb

    total = arb(0)
    for share in (agreement, 1 - agreement):
        total += ball(share) * _divergence(share, noise)
    return total


def _divergence(share: Fraction, noise: Fraction) -> Any:
    """KL of the noise around one sign from the mixture of both."""
    from flint import acb, arb

    weight, other, sigma = ball(share), ball(1 - share), ball(noise)
    steep, offset = 2 / sigma, 2 / (sigma * sigma)

    def integrand(z: Any, analytic: bool) -> Any:
        inside = weight + other * (-offset - steep * z).exp()
        return -(-z * z / 2).exp() * inside.log(analytic=analytic)

    # The integrand bends where the two terms are equal, so the range is cut there.
    bend = (weight.log() - other.log() + offset) / -steep
    cuts = [arb(-REACH), arb(REACH)]
    if -REACH < bend < REACH:
        cuts.insert(1, bend.mid())
    inner = arb(0)
    for low, high in pairwise(cuts):
        inner += acb.integral(integrand, acb(low), acb(high), rel_tol=TOLERANCE, abs_tol=TOLERANCE).real
    root = (2 * arb.pi()).sqrt()
    level = offset + 1 - weight.log()
    edge = (-(arb(REACH) ** 2) / 2).exp() / root
    tail = 2 * (level * (arb(REACH) / arb(2).sqrt()).erfc() + steep * edge)
    return inner / root + arb(0, tail.upper())


def noise_between(agreement: Fraction, nats: Fraction, *, rounds: int = 34) -> tuple[Fraction, Fraction]:
    """Noises between which the information falls through `nats`: more at the lower end, less at the upper.

    Raises:
        InconclusiveError: no such noise was found between 2^-6 and 2^20.
    """
    low, high, target = Fraction(1, 64), Fraction(2**20), ball(nats)
    if not (binary_mi(agreement, low) > target and binary_mi(agreement, high) < target):
        raise InconclusiveError(
            f"no noise in [2^-6, 2^20] leaks {float(nats):g} nats at {float(agreement):g}"
        )
    for _ in range(rounds):
        middle = _between(low, high)
        leak = binary_mi(agreement, middle)
        if leak > target:
            low = middle
        elif leak < target:
            high = middle
        else:
            break
    return low, high


def _between(low: Fraction, high: Fraction) -> Fraction:
    """Roughly the geometric mean while the ends are far apart, then the middle; with a short denominator."""
    middle = Fraction((float(low) * float(high)) ** 0.5) if high > 2 * low else (low + high) / 2
    return middle.limit_denominator(2**40)
