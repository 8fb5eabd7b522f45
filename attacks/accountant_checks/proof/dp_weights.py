"""DP-Weights' own check with Z3 (its Algorithm 2) as printed, beside checks that ask the right question.

As printed, the algorithm gives a solver the formula

    (w' = w + Delta and x = noisy_w)  implies  pdf_w <= TaylorExp(epsilon) pdf_w' + delta

with w, w', noisy_w, noisy_w' and x free, and reads "satisfiable" as "differential privacy holds" (its
sections 3.6 and 4.2: the condition is "satisfied"). Three things differ from a proof: satisfiable means that
*some* values meet the implication, not all, and values that break its premise do so for any noise; the
exponential is a truncated series, which for large arguments is nothing like it (with an odd degree it makes
densities negative); and a bound on densities at each point, with delta added to a density, is not
(epsilon, delta)-DP, whose delta is a probability. The four checks here take these away one by one:

- `printed`: the algorithm, verbatim;
- `negated`: the same formula, but a proof: the premise and the failed conclusion have no common model;
- `pointwise`: for all x, with the true exponential, by ball arithmetic;
- `correct`: delta(epsilon) of the Gaussian mechanism (Balle and Wang 2018, theorem 8) against delta.

The printed algorithm leaves the number of terms of its series open; `terms` is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from workbench.attacks.accountant_checks.proof.balls import prove_by_balls
from workbench.attacks.accountant_checks.proof.evaluation import decimals, truth_at
from workbench.attacks.accountant_checks.proof.statements import Statement, prove
from workbench.attacks.accountant_checks.proof.terms import Term, exp, normal_cdf, number, real
from workbench.core.errors import InputError
from workbench.interfaces import VerdictKind

_UNITS_A_SECOND = 2_000_000
Exact = int | str | Fraction


@dataclass(frozen=True, kw_only=True)
class ComparedNoiseScale:
    """What each check says of one noise scale.

    Attributes:
        noise_scale: Standard deviation of the noise.
        exact_delta: Of the Gaussian mechanism at epsilon, 12 digits.
        private: Whether exact_delta is at most delta: the truth, by ball arithmetic.
        printed, negated, pointwise: True where the check accepts, False where it rejects, None where it
            reaches no answer.
        correct: The verdict on the claim in the sense of (epsilon, delta)-DP.
    """

    noise_scale: Fraction
    exact_delta: str
    private: bool | None
    printed: bool | None
    negated: bool | None
    pointwise: bool | None
    correct: VerdictKind


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
    """Run DP-Weights' Algorithm 2, lines 11 to 16 and the solver's answer, on one noise scale.

    Args:
        noise_scale, sensitivity, epsilon, delta: sigma, Delta_w, epsilon and delta; exact numbers.
        terms: Terms of the series, the constant one included; left open in print.
        negate: Ask for a counterexample instead: the premise together with the failed conclusion.
        limit_seconds: For Z3.

    Returns:
        As printed, True where Z3 finds the formula satisfiable (which the paper reads as "holds"); negated,
        True where no counterexample exists. None where Z3 answers unknown.

    Raises:
        InputError: a number is out of range.
    """
    import z3

    sigma, shift, budget, slack = _checked(noise_scale, sensitivity, epsilon, delta)
    if terms < 2:
        raise InputError(f"terms must be at least 2, got {terms}")
    context = z3.Context()
    solver = z3.SolverFor("QF_NRA", ctx=context)
    solver.set("timeout", int(limit_seconds * 1000))
    solver.set("rlimit", int(limit_seconds * _UNITS_A_SECOND))

    def exact(value: Fraction) -> Any:
        return z3.RealVal(f"{value.numerator}/{value.denominator}", context)

    def taylor_exp(argument: Any) -> Any:
        result, power, factorial = exact(Fraction(1)), exact(Fraction(1)), 1
        for i in range(1, terms):
            factorial *= i
            power = power * argument
            result = result + power * exact(Fraction(1, factorial))
        return result

    w, w_other, noisy_w, _noisy_other, x = (
        z3.Real(name, context) for name in ("w", "w'", "noisy_w", "noisy_w'", "x")
    )
    height = exact(Fraction(1 / math.sqrt(2 * math.pi * float(sigma) ** 2)))
    pdf = height * taylor_exp(-(x - w) * (x - w) * exact(1 / (2 * sigma**2)))
    pdf_other = height * taylor_exp(-(x - w_other) * (x - w_other) * exact(1 / (2 * sigma**2)))
    premise = z3.And(w_other == w + exact(shift), x == noisy_w)
    conclusion = pdf <= taylor_exp(exact(budget)) * pdf_other + exact(slack)
    solver.add(z3.And(premise, z3.Not(conclusion)) if negate else z3.Implies(premise, conclusion))
    answer = solver.check()
    if answer == z3.unknown:
        return None
    return bool(answer == z3.unsat) if negate else bool(answer == z3.sat)


def gaussian_delta(*, noise_scale: Exact, sensitivity: Exact, epsilon: Exact) -> Term:
    """delta(epsilon) of the Gaussian mechanism as a term (Balle and Wang 2018, theorem 8)."""
    ratio = Fraction(sensitivity) / Fraction(noise_scale)
    budget = Fraction(epsilon)
    near, far = ratio / 2 - budget / ratio, -ratio / 2 - budget / ratio
    return normal_cdf(near) - exp(budget) * normal_cdf(far)


def compare_on(
    noise_scales: Sequence[Exact], *, sensitivity: Exact, epsilon: Exact, delta: Exact, terms: int = 10
) -> list[ComparedNoiseScale]:
    """What the printed check and three better ones say of noise scales, good and broken.

    Args:
        noise_scales: Standard deviations to try, each an exact number.
        sensitivity, epsilon, delta, terms: As in `dp_weights_algorithm_2_as_printed`.

    Raises:
        InputError: a number is out of range.
    """
    rows = []
    for scale in noise_scales:
        sigma, shift, budget, slack = _checked(scale, sensitivity, epsilon, delta)
        printed, negated = (
            dp_weights_algorithm_2_as_printed(
                noise_scale=sigma,
                sensitivity=shift,
                epsilon=budget,
                delta=slack,
                terms=terms,
                negate=negate,
            )
            for negate in (False, True)
        )
        exact = gaussian_delta(noise_scale=sigma, sensitivity=shift, epsilon=budget)
        claim = exact <= number(slack)
        name = f"Gaussian noise of scale {float(sigma):g} is ({float(budget):g}, {float(slack):g})-DP"
        rows.append(
            ComparedNoiseScale(
                noise_scale=sigma,
                exact_delta=decimals(exact, {}, 12),
                private=truth_at(claim, {}),
                printed=printed,
                negated=negated,
                pointwise=_pointwise(sigma, shift, budget, slack),
                correct=prove(Statement(name=name, conclusion=claim)).verdict,
            )
        )
    return rows


def _checked(
    noise_scale: Exact, sensitivity: Exact, epsilon: Exact, delta: Exact
) -> tuple[Fraction, Fraction, Fraction, Fraction]:
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


def _pointwise(sigma: Fraction, shift: Fraction, epsilon: Fraction, delta: Fraction) -> bool | None:
    """Whether the density at 0 exceeds e^epsilon times the one at `shift` nowhere by more than delta.

    Beyond `reach` the first density is below delta, so only the middle needs boxes.
    """
    height = Fraction(1 / math.sqrt(2 * math.pi)) * (1 + Fraction(1, 10**15)) / sigma
    if height <= delta:
        return True
    log_gap = Fraction(math.log(height / delta)) + Fraction(1, 1000)
    reach = sigma * Fraction(math.sqrt(2 * log_gap) + 0.001)
    x = real("x", low=-reach, high=reach)
    square = 2 * sigma**2
    low_height = Fraction(1 / math.sqrt(2 * math.pi)) * (1 - Fraction(1, 10**15)) / sigma
    margin = (
        number(delta) + low_height * exp(epsilon - (x - shift) ** 2 / square) - height * exp(-(x**2) / square)
    )
    verdict = prove_by_balls("pointwise condition", margin).verdict
    return {VerdictKind.PROVEN: True, VerdictKind.REFUTED: False}.get(verdict)
