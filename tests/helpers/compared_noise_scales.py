"""DP-Weights' Algorithm 2 beside three better checks of a noise scale, which take its faults away one by one.

- `printed`: the algorithm, verbatim;
- `negated`: the same formula, but a proof: the premise and the failed conclusion have no common model;
- `pointwise`: for all x, with the true exponential, by ball arithmetic;
- `correct`: delta(epsilon) of the Gaussian mechanism (Balle and Wang 2018, theorem 8) against delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from workbench.attacks.accountant_checks.proof import (
    Statement,
    Term,
    exp,
    normal_cdf,
    number,
    prove,
    prove_by_balls,
    real,
)
from workbench.attacks.accountant_checks.proof.evaluation import decimals, truth_at
from workbench.attacks.claim_checks.dp_weights.composition import (
    Exact,
    dp_weights_algorithm_2_as_printed,
    exact_numbers,
)
from workbench.interfaces import VerdictKind


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
        sigma, shift, budget, slack = exact_numbers(scale, sensitivity, epsilon, delta)
        printed, negated = (
            dp_weights_algorithm_2_as_printed(
                noise_scale=sigma, sensitivity=shift, epsilon=budget, delta=slack, terms=terms, negate=negate
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
