"""Whether RLDP's controller can spend more than its budget: Eqs. 11 to 15 under policies of our choice.

The paper's proof takes any policy (Theorem 7.13), and its controller learns one. Here the policy is chosen by
somebody who wants to spend, and asks for nothing that Eqs. 11 to 15 do not grant. Everything else is taken at
its best for the paper: one adapter pair, Poisson samples, a record added or removed, sigma_0 by an exact
accountant, and an exact accountant in line 14's ledger, too (upper ends, so that no step size is overstated).
What the steps as run have spent is certified accounting of the very sequence of sigmas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from workbench.accounting.bounds import Bounds
from workbench.attacks.claim_checks.rldp.joint import calibrated
from workbench.attacks.claim_checks.rldp.ledger import (
    ADDED,
    DELTA,
    INTERVAL,
    SAMPLING,
    STEPS,
    WARM_UP,
    run_epsilon,
)
from workbench.attacks.claim_checks.shared.claims import Counterexample, in_balls, setting, settle
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

TANH = 0.999
"""The dial's largest tanh here; every value below 1 is in reach (Eq. 11)."""

_GRAIN = 0.01
"""Noise multipliers are rounded up to powers of 1.01 where there are many: that only lowers epsilon."""

_MANY = 40


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """A run of the controller.

    Attributes:
        base: sigma_0.
        schedule: Noise multipliers with the number of consecutive steps that use each.
        reported: Line 14's ledger just before each decision, and at the end; upper ends.
    """

    base: float
    schedule: tuple[tuple[float, int], ...]
    reported: tuple[float, ...]

    @property
    def is_rounded(self) -> bool:
        """Whether there are so many noise multipliers that `spent` rounds them up."""
        return len(_merged(self.schedule)) > _MANY

    @property
    def spent(self) -> Bounds:
        """Certified epsilon of the steps as run; where it rounds, a lower end alone counts."""
        if not self.is_rounded:
            return run_epsilon(_merged(self.schedule))
        return run_epsilon(_merged([(_rounded_up(sigma), count) for sigma, count in self.schedule]))


@lru_cache(maxsize=4096)
def line_14(sigma: float, steps: int) -> float:
    """What an exact accountant says of all steps so far at the current sigma: the certified upper end."""
    return run_epsilon([(sigma, steps)]).upper


def play(*, budget: float, interval: int, lowering: int | None, beyond: bool, dial: float) -> Trajectory:
    """Eqs. 11 to 15 at each decision, under one policy.

    Args:
        budget: epsilon_max.
        interval: Steps between two decisions, T_RL.
        lowering: How many first decisions ask for less noise, the others for more; None for all of them.
        beyond: Whether the policy goes on where the ledger has passed the budget. Step_t is negative there,
            and so is the dial that lowers sigma.
        dial: Share of the step size that is asked for, in [0, 1).
    """
    base = calibrated(budget, STEPS)
    level, done = math.log(base), 0
    schedule, reported = list[tuple[float, int]](), list[float]()
    moments = [step for step in range(interval, STEPS, interval) if step > WARM_UP]
    for number, moment in enumerate(moments):
        schedule.append((math.exp(level), moment - done))
        reported.append(line_14(math.exp(level), moment))
        size = 0.1 * (1.0 - reported[-1] / budget)
        reach = abs(size) if beyond else max(size, 0.0)
        wish = -1.0 if lowering is None or number < lowering else 1.0
        proposed = level + wish * dial * reach
        proposed = min(max(proposed, math.log(0.5 * base)), math.log(2.0 * base))
        level, done = 0.8 * level + 0.2 * proposed, moment
    schedule.append((math.exp(level), STEPS - done))
    reported.append(line_14(math.exp(level), STEPS))
    return Trajectory(base=base, schedule=tuple(schedule), reported=tuple(reported))


def _merged(schedule: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The same steps, those of one noise multiplier together."""
    counts: dict[float, int] = {}
    for sigma, count in schedule:
        counts[sigma] = counts.get(sigma, 0) + count
    return list(counts.items())


def _rounded_up(sigma: float) -> float:
    return math.exp(_GRAIN * math.ceil(math.log(sigma) / _GRAIN))


@register("claim_check", "rldp_budget_kept")
@setting(f"{ADDED}; the policy is any that Eqs. 11 to 15 allow, and is run by those equations")
@in_balls
def budget_kept(
    *, budgets: Sequence[float] = (8.0,), intervals: Sequence[int] = (INTERVAL,), dial: float = TANH
) -> Finding:
    """Section 4.4: whatever the controller does, the budget is never exceeded.

    Args:
        budgets: epsilon_max, each.
        intervals: T_RL, each.
        dial: Share of Eq. 11's step size that the policy asks for, towards less noise; 0 keeps sigma.
    """
    lines, wrong, within = [], None, True
    for budget in budgets:
        for interval in intervals:
            for beyond in (False, True):
                found = play(budget=budget, interval=interval, lowering=None, beyond=beyond, dial=dial)
                truth = found.spent
                within = within and not found.is_rounded and truth.rigorous and truth.upper <= budget
                last = found.schedule[-1][0]
                where = (
                    f"epsilon_max {budget:g}, a decision every {interval} steps, policy asks for less noise "
                    f"{'throughout' if beyond else 'while the ledger is below the budget'}: sigma from "
                    f"{found.base:.4g} to {last:.4g}"
                )
                lines.append(
                    f"{where}; line 14 reports {found.reported[-1]:.5g} in the end; spent {truth.describe()}"
                )
                if wrong is None and truth.rigorous and truth.lower > budget:
                    wrong = Counterexample(
                        sentence=f"{where}: epsilon is at least {truth.lower:.5g}",
                        values=_values(budget, interval, found, truth),
                    )
    return settle(
        proof="the policies that were tried stay within the budget" if within and dial == 0 else None,
        counterexample=wrong,
        evidence=(
            *lines,
            *(_ceiling(budget, interval) for budget in budgets for interval in intervals),
            "nothing in Algorithm 1 stops a run whose ledger has passed the budget, and step_t, then "
            "negative, grows without bound: Eq. 11 does not clip it at zero",
        ),
    )


def _ceiling(budget: float, interval: int) -> str:
    """What no policy can exceed: sigma_0 until the first decision, and half of it from there on."""
    base = calibrated(budget, STEPS)
    first = next(step for step in range(interval, STEPS, interval) if step > WARM_UP)
    most = run_epsilon([(base, first), (base / 2, STEPS - first)])
    return (
        f"no policy spends more than sigma_0 for {first} steps and sigma_0 / 2 for the rest (Eq. 13 keeps "
        f"sigma at half of sigma_0 or above, claim rldp-eq-13): epsilon_max {budget:g}, {most.describe()}"
    )


@register("claim_check", "rldp_ledger_verifies")
@setting(f"{ADDED}; the policy is any that Eqs. 11 to 15 allow, and is run by those equations")
@in_balls
def ledger_verifies(
    *, budget: float = 8.0, interval: int = INTERVAL, lowering: int = 5, dial: float = TANH
) -> Finding:
    """Section 3.3: a run whose ledger stays within the target has spent no more than the target.

    Args:
        budget: epsilon_max.
        interval: T_RL.
        lowering: The policy's first decisions that ask for less noise; all later ones ask for more.
        dial: Share of Eq. 11's step size that it asks for.

    Raises:
        InputError: `lowering` is negative.
    """
    if lowering < 0:
        raise InputError(f"lowering must be at least 0, got {lowering}")
    found = play(budget=budget, interval=interval, lowering=lowering, beyond=False, dial=dial)
    truth, told = found.spent, max(found.reported)
    least = min(sigma for sigma, _ in found.schedule)
    wrong = None
    if told <= budget and truth.rigorous and truth.lower > budget:
        wrong = Counterexample(
            sentence=(
                f"sigma from {found.base:.4g} down to {least:.4g}, then up to {found.schedule[-1][0]:.4g}: "
                f"line 14 never reports more than {told:.5g} of {budget:g}, and {found.reported[-1]:.5g} in "
                f"the end; epsilon is at least {truth.lower:.5g}"
            ),
            values=_values(budget, interval, found, truth),
        )
    return settle(
        proof=None,
        counterexample=wrong,
        evidence=(
            f"epsilon_max {budget:g}, a decision every {interval} steps, of which the first {lowering} ask "
            f"for less noise and the others for more, within Eq. 11's step size: sigma {found.base:.4g}, at "
            f"least {least:.4g}, in the end {found.schedule[-1][0]:.4g}",
            f"line 14 reports {found.reported[-1]:.5g} in the end and {told:.5g} at most; spent "
            f"{truth.describe()}",
            "line 14 asks what all steps so far would have cost at the current sigma, so noise that is "
            "raised again takes back, in the ledger alone, what was spent before",
        ),
    )


def _values(budget: float, interval: int, found: Trajectory, truth: Bounds) -> dict[str, object]:
    return {
        "target_epsilon": budget,
        "sampling_probability": str(SAMPLING),
        "steps": STEPS,
        "delta": DELTA,
        "decision_interval": interval,
        "sigma_base": found.base,
        "smallest_sigma": min(sigma for sigma, _ in found.schedule),
        "last_sigma": found.schedule[-1][0],
        "largest_reported_epsilon": max(found.reported),
        "reported_epsilon": found.reported[-1],
        "epsilon_at_least": truth.lower,
    }
