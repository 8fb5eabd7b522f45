"""DP-Weights, Sections 3.6, 4 and 8.1.3: Z3 check, composition formula, Renyi bounds, printed tests."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from workbench.attacks.claim_checks.shared import lemmas
from workbench.attacks.claim_checks.shared.claims import (
    Counterexample,
    against_claim,
    ball,
    counterexample_if,
    gaussian_delta,
    many_steps,
    randomised_response,
    setting,
    settle,
    show,
)
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces.findings import Finding, assume

RELEASES = (
    "any neighbours of a mechanism of the stated guarantee; "
    "the adversary sees all k outputs; balls, nothing is sampled"
)
DISTANCE = (
    "two finished models whose weights are one noise deviation apart; the adversary knows both and sees one "
    "noisy release; closed forms in balls, nothing is sampled"
)
PAIR = "two densities of noisy weights; the adversary knows both and sees one output; nothing is sampled"

_UNITS_A_SECOND = 2_000_000
Exact = int | str | Fraction


def dp_weights_algorithm_2_as_printed(
    *,
    noise_scale: Exact,
    sensitivity: Exact,
    epsilon: Exact,
    delta: Exact,
    terms: int = 10,
    negate: bool = False,
    limit_seconds: float = 10,
) -> bool | None:
    """Run DP-Weights' Algorithm 2 (section 3.6), lines 11 to 16 and the solver's answer, on one noise scale.

    It gives Z3 `(w' = w + Delta and x = noisy_w) implies pdf_w <= TaylorExp(epsilon) pdf_w' + delta` with all
    of them free, and reads "satisfiable" as "differential privacy holds" (section 4.2). But satisfiable means
    that *some* values meet the implication, as those do that break its premise; the truncated exponential is
    nothing like it for large arguments; and a bound on densities, with delta added to one, is not DP.

    Args:
        terms: Terms of the series, the constant one included; left open in print.
        negate: Ask for a counterexample instead: the premise together with the failed conclusion.

    Returns:
        As printed, True where Z3 finds the formula satisfiable (which the paper reads as "holds"); negated,
        True where no counterexample exists. None where Z3 answers unknown.

    Raises:
        InputError: a number is out of range.
    """
    import z3

    sigma, shift, budget, slack = exact_numbers(noise_scale, sensitivity, epsilon, delta)
    if terms < 2:
        raise InputError(f"terms must be at least 2, got {terms}")
    context = z3.Context()
    solver = z3.SolverFor("QF_NRA", ctx=context)
    # Units of work end the search, not seconds, so that a busy machine gives the same answer.
    solver.set("rlimit", int(limit_seconds * _UNITS_A_SECOND))

    def exact(value: Fraction) -> Any:
        return z3.RealVal(f"{value.numerator}/{value.denominator}", context)

    def taylor_exp(argument: Any) -> Any:
        """The truncated series of the exponential."""
        result = power = exact(Fraction(1))
        for i in range(1, terms):
            power = power * argument
            result = result + power * exact(Fraction(1, math.factorial(i)))
        return result

    w, w_other, noisy_w, _, x = (z3.Real(name, context) for name in ("w", "w'", "noisy_w", "noisy_w'", "x"))
    height = exact(Fraction(1 / math.sqrt(2 * math.pi * float(sigma) ** 2)))
    pdf, pdf_other = (
        height * taylor_exp(-(x - v) * (x - v) * exact(1 / (2 * sigma**2))) for v in (w, w_other)
    )
    premise = z3.And(w_other == w + exact(shift), x == noisy_w)
    conclusion = pdf <= taylor_exp(exact(budget)) * pdf_other + exact(slack)
    solver.add(z3.And(premise, z3.Not(conclusion)) if negate else z3.Implies(premise, conclusion))
    answer = solver.check()
    return None if answer == z3.unknown else bool(answer == (z3.unsat if negate else z3.sat))


def exact_numbers(
    noise_scale: Exact, sensitivity: Exact, epsilon: Exact, delta: Exact
) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """The arguments as rationals; `InputError` where one is out of range."""
    values = []
    for name, value in (("noise_scale", noise_scale), ("sensitivity", sensitivity), ("epsilon", epsilon)):
        exact = Fraction(value)
        if exact <= 0:
            raise InputError(f"{name} must be positive, got {value}")
        values.append(exact)
    slack = Fraction(delta)
    if not 0 < slack < 1:
        raise InputError(f"delta must be in (0, 1), got {delta}")
    return values[0], values[1], values[2], slack


def composed(epsilon: Any, delta: Any, count: int) -> tuple[Any, Any]:
    """Epsilon and delta of `count` releases as the paper's Eqs. 8 and 9 print them."""
    return epsilon * (-2 * count * delta.log()).sqrt(), (count + 1) * delta


@register("claim_check", "dp_weights_pointwise")
@setting(PAIR)
def pointwise(*, noise: str = "40000", shift_in_noise: int = 10) -> Finding:
    """Eq. 7: pdf_w(x) <= e^epsilon pdf_w'(x) + delta at every x is differential privacy.

    `noise`: sigma; once 1 / (sigma sqrt(2 pi)) is below delta, the condition holds for any w and w'.
    `shift_in_noise`: |w - w'| over sigma.
    """
    from flint import arb

    epsilon, delta = ball(1), ball("0.00001")
    height = 1 / (ball(noise) * (2 * arb.pi()).sqrt())
    truth = gaussian_delta(ball(shift_in_noise), epsilon)
    wrong = counterexample_if(
        height <= delta and truth > delta,
        f"noise {noise}, weights {shift_in_noise} noises apart: every density is at most {show(height)} <= "
        f"1e-5, so Eq. 7 holds, but delta(1) is {show(truth)}",
        {"noise": noise, "shift_in_noise": shift_in_noise, "highest_density": show(height)},
        {"true_delta": show(truth)},
    )
    return settle(
        "a density has the unit 1 / weight, delta is a probability; closed forms in balls of 192 bits",
        counterexample=wrong,
    )


@register("claim_check", "dp_weights_algorithm_2")
@setting(PAIR)
def solver_check(*, noise: str = "0.01") -> Finding:
    """Algorithm 2 and Section 4.2: Z3 answering "satisfiable" shows that the noise is private.

    `noise`: sigma, for sensitivity 1, epsilon 1, delta 1e-5.
    """
    accepted = dp_weights_algorithm_2_as_printed(noise_scale=noise, sensitivity=1, epsilon=1, delta="0.00001")
    truth = gaussian_delta(1 / ball(noise), ball(1))
    wrong = counterexample_if(
        accepted and truth > ball("0.00001"),
        f"the algorithm accepts noise {noise} at sensitivity 1, where delta(1) is {show(truth)}",
        {"noise": noise, "epsilon": 1, "delta": "0.00001", "true_delta": show(truth)},
    )
    return settle(
        f"the algorithm as printed (10 terms of the series) answers {accepted}",
        "satisfiable means that some values meet the implication, "
        "and values that break its premise always do",
        counterexample=wrong,
    )


@register("claim_check", "dp_weights_composition")
@setting(RELEASES)
def composition(*, count: int = 1000, scale: float = 1.0) -> Finding:
    """Eqs. 8 and 9: k releases compose to epsilon sqrt(2 k log(1 / delta)) and k delta + delta.

    At the paper's own example, epsilon 1 and delta 1e-8 (Section 4.2). Randomised response that tells the
    truth with probability e / (1 + e) is (1, 0)-DP, so (1, 1e-8)-DP.
    """
    epsilon, delta = composed(ball(1), ball("1e-8"), count)
    epsilon *= ball(scale)
    test = many_steps(randomised_response(), count, max(1, round(0.65 * count)))
    wrong = against_claim(
        test,
        epsilon=epsilon,
        delta=delta,
        where={
            "mechanism": "randomised response",
            "releases": count,
            "epsilon_at_least": show(test.epsilon(delta)),
        },
        claim=f"the composition of {count} releases",
    )
    return settle(
        f"claimed ({show(epsilon)}, {show(delta)}); {test.describe()}, Chernoff's bounds in balls",
        "the second term of advanced composition, k epsilon (e^epsilon - 1), is missing",
        counterexample=wrong,
    )


@register("claim_check", "dp_weights_thousand_compositions")
@setting(RELEASES)
def thousand_compositions(*, count: int = 1000, scale: float = 1.0) -> Finding:
    """Section 4.2: after 1000 compositions the condition holds at (191.941..., 1.001e-05).

    For one weight that moves by at most DW, with the noise of Algorithm 2 for epsilon 1, delta 1e-8; the
    empirical term only adds to it.
    """
    epsilon, delta = composed(ball(1), ball("1e-8"), 1000)
    root = (2 * (ball("1.25") / ball("1e-8")).log()).sqrt()
    mu = ball(count).sqrt() / root
    budget = ball(scale) * epsilon
    truth = gaussian_delta(mu, budget)
    wrong = counterexample_if(
        truth > delta,
        f"{count} releases have mu {show(mu)} and delta({show(budget)}) = {show(truth)}",
        {"releases": count, "mu": show(mu), "epsilon": show(budget), "true_delta": show(truth)},
    )
    return settle(
        f"claimed ({show(epsilon, 18)}, {show(delta)}); exact for Gaussians, balls of 192 bits",
        "k Gaussian releases of mu are one of sqrt(k) mu; a smaller mu has a smaller delta",
        "Algorithm 2 itself tests another thing, one release with the composed budget's noise",
        proof=f"{count} releases have mu at most {show(mu)}, and delta({show(budget)}) = {show(truth)}",
        proven=truth <= delta,
        counterexample=wrong,
        assumption=assume(
            "the weight moves by at most Eq. 2's DW, which the noise is scaled by",
            lambda change: change <= 1,
            left_open={"change of the weight over DW": (1, 1000)},
        ),
    )


@register("claim_check", "dp_weights_gaussian_rdp")
@setting(PAIR)
def gaussian_rdp(*, scale: float = 1.0) -> Finding:
    """Section 8.1.3: noise sigma on weights DW apart (Euclidean) has divergence alpha DW^2 / (2 sigma^2)."""
    return lemmas.gaussian_renyi(scale=Fraction(scale))


def subsampled_rdp(alpha: Any, ratio: Any, q: Any) -> Any:
    """log(1 + q^2 (alpha choose 2) (e^((alpha - 1) alpha ratio^2 / 2) - 1)) / (alpha - 1)."""
    grown = ((alpha - 1) * alpha * ratio * ratio / 2).exp() - 1
    return (1 + q * q * alpha * (alpha - 1) / 2 * grown).log() / (alpha - 1)


@register("claim_check", "dp_weights_subsampling")
@setting(DISTANCE)
def subsampling(*, batch_size: int = 5, epochs: int = 10) -> Finding:
    """Section 8.1.3: batches amplify the privacy of noised finished weights, by q = B / N, once an epoch."""
    ratio, alpha = ball(1), ball(2)
    q = ball(Fraction(batch_size, 1000))
    claimed = epochs * subsampled_rdp(alpha, ratio, q)
    truth = alpha * ratio * ratio / 2
    wrong = counterexample_if(
        truth > claimed,
        f"weights one noise apart have divergence {show(truth)} of order 2, but the claim is {show(claimed)} "
        f"({epochs} epochs, q = {batch_size}/1000)",
        {"alpha": 2, "distance_over_noise": 1, "epochs": epochs, "batch_size": batch_size, "records": 1000},
        {"divergence": show(truth), "claimed": show(claimed)},
    )
    return settle(
        "the release is one Gaussian at the end of the training; every record was in a batch of every epoch, "
        "so no secret draw decides whether it took part, and the divergence at distance DW is exact",
        counterexample=wrong,
    )


@register("claim_check", "dp_weights_conversion")
@setting(PAIR)
def conversion(*, scale: float = 1.0) -> Finding:
    """Section 8.1.3: epsilon = min over alpha of epsilon_RDP(alpha) + log(1 / delta) / (alpha - 1).

    `scale`: multiplies log(1 / delta).
    """
    return lemmas.converted_renyi(scale=scale)


@register("claim_check", "dp_weights_final")
@setting(DISTANCE)
def final_guarantee(*, batch_size: int = 1, alpha: int = 5) -> Finding:
    """Section 8.1.3, "final privacy guarantee": noised weights by subsampled Renyi divergences.

    The larger of the printed product and of the sum that the lines before it compose; the value at any
    order is at least the smallest.

    `batch_size`: B, for 1000 records and one epoch. `alpha`: the order.
    """
    ratio, order = ball(1), ball(alpha)
    delta = ball("0.000001")
    divergence = subsampled_rdp(order, ratio, ball(Fraction(batch_size, 1000)))
    price = -delta.log() / (order - 1)
    summed, product = divergence + price, order * ratio * ratio / 2 * divergence + price
    claimed = summed if summed > product else product
    truth = gaussian_delta(ratio, claimed)
    wrong = counterexample_if(
        truth > delta,
        f"weights one noise apart, B = {batch_size}, N = 1000, one epoch: claimed epsilon {show(claimed)}, "
        f"where delta is {show(truth)}, not 1e-6",
        {"distance_over_noise": 1, "batch_size": batch_size, "records": 1000, "epochs": 1, "alpha": alpha},
        {"claimed_epsilon": show(claimed), "true_delta": show(truth)},
    )
    return settle(
        f"as a sum {show(summed)}, as the printed product {show(product)}; exact delta of a Gaussian, balls",
        "sigma_total is taken as the standard deviation of the noise, DW as the distance",
        counterexample=wrong,
    )


P_VALUES = {
    "batch sizes: perplexity (member)": "0.8032",
    "batch sizes: perplexity (non-member)": "0.0069",
    "batch sizes: ROC AUC": "0.0000224",
    "batch sizes: accuracy": "0.0518",
    "batch sizes: precision": "0.0161",
    "batch sizes: recall": "0.8314",
    "batch sizes: F1": "0.3762",
    "epochs: perplexity (member)": "0.227",
    "epochs: perplexity (non-member)": "0.030",
    "epochs: ROC AUC": "0.0000117",
    "epochs: accuracy": "0.292",
    "epochs: precision": "0.255",
    "epochs: recall": "0.252",
    "epochs: F1": "0.815",
}
"""DP-SGD against DP-Weights, Sections 4.3.1 to 4.3.7 and 4.4.1 to 4.4.7."""


@register("claim_check", "dp_weights_printed_tests")
@setting(
    "the paper's own t-tests of its own attack, as printed; arithmetic on them, the runs are not repeated"
)
def printed_tests(*, level: str = "0.05") -> Finding:
    """Section 5.1.3: the statistics show no significant difference between DP-SGD and DP-Weights.

    `level`: of significance, for all tests together (Bonferroni).
    """
    each = Fraction(level) / len(P_VALUES)
    significant = [name for name, value in P_VALUES.items() if Fraction(value) <= each]
    wrong = None
    if significant:
        listed = ", ".join(f"{name} (p = {float(Fraction(P_VALUES[name])):.3g})" for name in significant)
        wrong = Counterexample(
            sentence=f"the paper's own tests differ at level {level} even after Bonferroni: {listed}",
            values={name: P_VALUES[name] for name in significant},
        )
    return settle(
        f"{len(P_VALUES)} printed p-values, each held against {level} / {len(P_VALUES)}",
        "DP-SGD has the lower ROC AUC in both; "
        "a test that finds no difference would not show that there is none",
        counterexample=wrong,
    )
