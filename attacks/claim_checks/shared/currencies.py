"""What "the same epsilon" lets an attacker do, in nats and in differential privacy, across the papers.

The one currency in which all guarantees compare is the largest probability of guessing a fair membership bit:
(e^eps + delta) / (1 + e^eps) under (eps, delta)-DP, the p with KL(p || 1/2) = B under B nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from workbench.attacks.claim_checks.paczero.numerics import logistic, nats_at
from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, settle, show
from workbench.core import registry
from workbench.core.errors import InconclusiveError
from workbench.core.registry import register
from workbench.interfaces import Adjacency, VerdictKind
from workbench.interfaces.findings import Finding

MATCHED = (("0.33", "2"), ("0.68", "6"))
"""PACZero, section 4.1: total nats, and the epsilon whose membership bound they are matched with."""


def dp_success(epsilon: str | float, delta: str | float) -> Any:
    """Largest probability of guessing a fair membership bit under (epsilon, delta)-DP: a ball."""
    grown = ball(epsilon).exp()
    return (grown + ball(delta)) / (1 + grown)


@register("claim_check", "paczero_matched_budgets")
@in_balls
def paczero_matched_budgets(*, digits: int = 2) -> Finding:
    """PACZero, section 4.1: 0.33 and 0.68 nats match the membership bounds of epsilon 2 and 6 at delta 1e-5.

    Args:
        digits: Decimals of a nat to which they are to match.
    """
    lines, rounded, off = [], True, None
    for nats, epsilon in MATCHED:
        same = nats_at(dp_success(epsilon, "1e-5"))
        printed = nats_at(logistic(ball(epsilon)) + ball("1e-5"))
        lines.append(
            f"({epsilon}, 1e-5)-DP: {show(same, 8)} nats ({show(printed, 8)} by the paper's formula); "
            f"the paper takes {nats}"
        )
        close = bool(abs(same - ball(nats)) <= ball(Fraction(1, 2 * 10**digits)))
        rounded = rounded and close
        if not close and off is None:
            off = Counterexample(
                sentence=(
                    f"{nats} nats are not, to {digits} decimals, the {show(same)} nats whose membership "
                    f"bound is that of ({epsilon}, 1e-5)-DP."
                ),
                values={"nats": nats, "epsilon": epsilon, "matching_nats": show(same)},
            )
    return settle(
        proof=f"The budgets are the matching nats to the {digits} decimals printed" if rounded else None,
        counterexample=off,
        evidence=(
            *lines,
            "prior 1/2; both budgets were rounded up, so they allow a little more than the DP bounds do",
        ),
    )


@register("claim_check", "paczero_zero_epsilon")
@in_balls
def paczero_zero_epsilon(*, delta: str = "0") -> Finding:
    """PACZero, Remark 7 and Table 1: no finite noise gives DP at epsilon = 0 (at this delta)."""
    from workbench.attacks.accountant_checks.proof import Statement, normal_cdf, prove, real

    half = real("half_ratio", low=0)
    positive = prove(
        Statement(
            name="Phi(x) > Phi(-x) for x = sensitivity / (2 sigma) > 0",
            assumptions=(half > 0,),
            conclusion=normal_cdf(half) > normal_cdf(-half),
        )
    )
    allowed = ball(delta)
    sigma, wrong = Fraction(40_000), None
    reached = (1 / (2 * ball(sigma)) / ball(2).sqrt()).erf()
    if reached <= allowed:
        wrong = Counterexample(
            sentence=(
                f"Gaussian noise of {sigma} times the sensitivity is (0, {delta})-DP: delta(0) = "
                f"{show(reached)}. "
                "Finite noise reaches epsilon = 0 there."
            ),
            values={"noise_multiplier": str(sigma), "delta_at_epsilon_0": show(reached), "delta": delta},
        )
    proven = positive.verdict == VerdictKind.PROVEN
    return settle(
        proof="No finite noise has epsilon = 0 at a positive sensitivity; Gaussian noise has delta(0) = "
        "Phi(x) - Phi(-x) > 0"
        if proven
        else None,
        assumption=None
        if Fraction(delta) == 0
        else "delta = 0 is asked for, or the accountant's conversion (Rényi's, say) never reports 0",
        counterexample=wrong,
        evidence=(
            "a law of noise that equals its own shift gives all intervals of the shift's length the same "
            "mass, which no probability does",
            *positive.evidence,
            f"noise multiplier {sigma}: delta(0) = {show(reached, 8)}",
            "(0, 0)-DP asks for equal laws; its membership bound is the prior, as 0 nats' is",
        ),
    )


@register("claim_check", "rldp_same_contract")
@in_balls
def rldp_same_contract(
    *, records: int = 73_271, lengths: Sequence[int] = (13_738, 3_600, 26_880), margin: float = 1.0
) -> Finding:
    """RLDP, section 3.3: calibrated by the GDP accountant, all runs meet the same (epsilon, 1e-5) contract.

    Args:
        records: N_train, 0.8 * 0.9 of 101,766 encounters (section 2.1); q = 16 / N_train (section 3.1).
        lengths: Numbers of steps: three epochs at this q, and the two that section 4.2 prints. The claim is
            refuted only where it fails at each.
        margin: Multiplies the claimed epsilon.
    """
    from workbench.accounting.certified import epsilon_bounds
    from workbench.accounting.events import dp_sgd

    q, lines, wrong = 16 / records, [], []
    for steps in lengths:
        failing = None
        for target in (0.5, 2.0, 4.0, 5.0, 8.0):
            noise = max(_gdp_noise(target, q, steps, printed=printed) for printed in (True, False))
            run = dp_sgd(noise_multiplier=noise, sampling_probability=q, steps=steps)
            found = epsilon_bounds(run, 1e-5)
            lines.append(
                f"{steps} steps, target {target:g}: noise multiplier {noise:.6g}, certified epsilon in "
                f"[{found.lower:.6g}, {found.upper:.6g}]; membership success bound "
                f"{show(dp_success(target, '1e-5'), 4)} claimed, "
                f"{show(dp_success(found.lower, '1e-5'), 4)} at least"
            )
            if found.lower > target * margin and failing is None:
                failing = Counterexample(
                    sentence=(
                        f"A DP-SGD run calibrated to ({target:g}, 1e-5) by the GDP accountant (q = "
                        f"16/{records}, {steps} steps, noise {noise:.4f}) has epsilon >= {found.lower:.4g}; "
                        "the like holds at the other lengths that the paper prints."
                    ),
                    values={"target": target, "noise_multiplier": noise, "sampling_probability": q}
                    | {"steps": steps, "epsilon_lower": found.lower, "delta": 1e-5},
                )
        wrong.append(failing)
    return settle(
        proof=None,
        counterexample=wrong[0] if all(wrong) else None,
        evidence=(
            "setting: one record added to or removed from Poisson-sampled batches, constant noise; the "
            "adversary sees every noisy update; delta 1e-5; certified bounds",
            "GDP: the central limit's mu = q sqrt(T (e^(1/sigma^2) - 1)) or Eq. 7's, whichever asks for more "
            "noise; converted exactly",
            f"q = B / N_train = 16/{records} (sections 2.1 and 3.1); section 3.1 also says that the data are "
            "shuffled each epoch, which is no Poisson sampling",
            *lines,
        ),
    )


def _gdp_noise(epsilon: float, q: float, steps: int, *, printed: bool) -> float:
    """The noise multiplier at which Gaussian DP reports this epsilon at delta 1e-5.

    Args:
        epsilon: The target.
        q: Sampling probability.
        steps: T.
        printed: Whether mu is Eq. 7's q sqrt(T) (e^(1/sigma) - 1), not the central limit's.
    """
    from scipy import optimize, special

    def excess(log_noise: float) -> float:
        inverse = math.exp(-log_noise)
        growth = math.expm1(inverse) if printed else math.sqrt(math.expm1(inverse * inverse))
        mu = q * math.sqrt(steps) * growth
        above = special.ndtr(mu / 2 - epsilon / mu)
        below = math.exp(min(700.0, epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))))
        return float(above - below) - 1e-5

    return math.exp(float(optimize.brentq(excess, -2.5, 5.0)))


@register("claim_check", "shuffled_same_epsilon")
@in_balls
def shuffled_same_epsilon(
    *, epsilon: float = 0.1, accountant: str = "shuffled_dp_sgd", delta: float = 1e-5
) -> Finding:
    """Shuffled DPSGD, section VI-E: at the same epsilon it protects as its unshuffled baselines do.

    Args:
        epsilon: One of the compared budgets.
        accountant: Registered accountant whose noise is tried, for one release of the gradient.
        delta: Of that release.
    """
    noise = _noise_for(accountant, epsilon, delta)
    # Records' gradients at 60 degrees from (1, ..., 1), beyond the 45 that the paper's proof leaves out.
    ratio = ball(Fraction(1, 2)) / ball(noise)
    success = 1 - (ratio / 2 / ball(2).sqrt()).erfc() / 2
    allowed = dp_success(epsilon, delta)
    return settle(
        proof=None,
        counterexample=Counterexample(
            sentence=(
                f"Theorem 6 calls noise {noise:.4g} (in clip norms) ({epsilon:g}, {delta:g})-private at "
                "the paper's ViT; "
                f"against it a record is guessed with probability {show(success, 4)}, where that budget "
                "allows "
                f"{show(allowed, 4)}."
            ),
            values={"epsilon": epsilon, "delta": delta, "noise_multiplier": noise}
            | {"success": show(success), "dp_success": show(allowed)},
        )
        if success > allowed
        else None,
        evidence=(
            "setting: one record added or removed; one release of the shuffled noisy gradient at the ViT's "
            "d = 85.8 million, guessed with prior 1/2; c' = c; closed forms in balls",
            "the attack: sum the released coordinates, which shuffling keeps. A record's gradient of norm c "
            "at 60 degrees from (1, ..., 1), all entries unequal, moves the sum over sqrt(d) by c / 2",
            f"noise multiplier {noise!r} of accountant {accountant!r}: success {show(success)}, DP's bound "
            f"{show(allowed)}",
        ),
    )


def _noise_for(name: str, epsilon: float, delta: float) -> float:
    """The smallest noise, to 1e-6, that the accountant gives this epsilon for one Gaussian release."""
    from workbench.accounting.events import Gaussian

    asked = registry.create("accountant", name)

    def enough(noise: float) -> bool:
        event = Gaussian(noise_multiplier=noise)
        return bool(asked.epsilon(event, delta=delta, adjacency=Adjacency.ADD_REMOVE) <= epsilon)

    low, high = 1e-3, 1e3
    if enough(low) or not enough(high):
        raise InconclusiveError(
            f"{name} has no noise multiplier in [{low:g}, {high:g}] at epsilon {epsilon:g}"
        )
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@register("claim_check", "dp_weights_budget_range")
@in_balls
def dp_weights_budget_range(
    *, budgets: Sequence[str] = ("1", "10", "100", "1000"), success: str = "0.9999"
) -> Finding:
    """DP-Weights, section 5.1.3: budgets from 1 to 1,000, averaged, stand for privacy protection.

    Args:
        budgets: Within the averaged range.
        success: What a guarantee must exclude to count as protection; ours, the paper names none.
    """
    lines, wrong = [], None
    limit = (ball(success) / (1 - ball(success))).log()
    excluding = False
    for budget in budgets:
        allowed = dp_success(budget, "1e-6")
        lines.append(f"epsilon = {budget}: wrong guesses may be as rare as {show(1 - allowed, 3)}")
        excluding = excluding or bool(allowed <= ball(success))
        if allowed > ball(success) and wrong is None:
            wrong = Counterexample(
                sentence=(
                    f"({budget}, 1e-6)-DP allows wrong membership guesses to be as rare as "
                    f"{show(1 - allowed, 3)}: "
                    "randomised response at that epsilon does."
                ),
                values={"epsilon": budget, "success": show(allowed, 12)},
            )
    return settle(
        proof=f"The budgets exclude membership success above {success}" if excluding else None,
        assumption=f"epsilon stays below {show(limit, 4)} (delta = 1 / N^2 = 1e-6)" if wrong else None,
        counterexample=wrong,
        evidence=tuple(lines),
    )
