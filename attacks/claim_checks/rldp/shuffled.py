"""RLDP's budget where the data are shuffled: Section 3.1 trains on shuffled epochs, and accounts for Poisson.

The comparison is that of Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024, "How Private are
DP-SGD Implementations?": each epoch deals the records into batches, so a record is in exactly one of them,
and every batch holds as many. What is certain of that is in `workbench.accounting.balls.shuffled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.accounting.bounds import Bounds
from workbench.accounting.events import ShuffledBatches
from workbench.attacks.claim_checks.rldp.joint import calibrated, spent
from workbench.attacks.claim_checks.rldp.ledger import DELTA, STEPS
from workbench.attacks.claim_checks.shared.claims import Counterexample, ball, in_balls, setting, settle, show
from workbench.attacks.claim_checks.shared.distinguishers import Distinguisher, tail
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.interfaces.findings import Finding

BATCHES = 4580
"""Batches of an epoch: 73,271 records in batches of 16, the last one filled up."""

SMALL = ((10, 1), (100, 1), (1000, 1))
"""Batches and epochs of smaller runs."""

_DEALT = (
    "a record is replaced by one of gradient zero, or its gradient is set to zero (zero-out), or another of "
    "the opposite gradient takes its place (replace-one), as said; one adapter pair; each epoch deals the "
    "records into batches of 16 by a secret shuffle; the adversary knows the other records, whose gradients "
    "may all be opposite, and sees every noisy update; delta 1e-5; certified bounds, nothing is sampled"
)


def shuffled(sigma: float, *, batches: int, epochs: int, adjacency: Adjacency) -> Bounds:
    """Certified epsilon of whole shuffled epochs at the experiments' delta."""
    from workbench.accounting.certified import epsilon_bounds

    event = ShuffledBatches(noise_multiplier=sigma, batches=batches, epochs=epochs)
    return epsilon_bounds(event, float(DELTA), adjacency=adjacency)


def part_of_an_epoch(sigma: Any, *, steps: int, batches: int, threshold: Any) -> Distinguisher:
    """The first steps of one shuffled epoch: some batch's sum is large.

    The record contributes 1 where all others contribute -1, its stand-in 0: up to the batch's size, its batch
    gives 2 or 1 and every other batch 0. In a run that ends within the epoch the record may not have had its
    turn; then the two data sets have given the same.
    """
    turn = ball(steps) / batches
    nowhere = steps * tail(threshold / sigma)
    return Distinguisher(
        event=f"of {steps} batches out of {batches}, some sum exceeds {show(threshold, 4)}",
        true_positive=turn * tail((threshold - 2) / sigma),
        false_positive=turn * tail((threshold - 1) / sigma) + nowhere,
    )


def best_part(sigma: float, *, steps: int, batches: int) -> Distinguisher:
    """The threshold that shows most at the experiments' delta, of a grid."""
    tried = [
        part_of_an_epoch(ball(sigma), steps=steps, batches=batches, threshold=ball(place) / 50)
        for place in range(75, 250)
    ]
    able = [test for test in tried if test.true_positive > 2 * ball(DELTA)]
    return max(able, key=lambda test: float(test.epsilon(ball(DELTA)).mid()))


@register("claim_check", "rldp_shuffled_epochs")
@setting(_DEALT)
@in_balls
def shuffled_epochs(
    *, budgets: Sequence[float] = (8.0,), epochs: Sequence[int] = (), sampling: str = "shuffled"
) -> Finding:
    """Section 3.1: the budget accounted for Poisson samples is met by training on shuffled epochs.

    Args:
        budgets: Targets for which sigma is calibrated exactly, for Poisson samples of rate 1 / batches.
        epochs: Further lengths of the run, beside Section 4.2's 3,600 steps, which are less than one epoch.
        sampling: Of the run: `"shuffled"`, or `"poisson"` as accounted.

    Raises:
        InputError: the sampling is unknown.
    """
    if sampling not in ("shuffled", "poisson"):
        raise InputError(f"sampling must be 'shuffled' or 'poisson', got {sampling!r}")
    rate, delta = 1 / BATCHES, ball(DELTA)
    lines, wrong, within = [], None, True
    for budget in budgets:
        sigma = calibrated(budget, STEPS, rate)
        told = spent(sigma, steps=STEPS, sampling=rate)
        lowers = {"zero-out": told.lower}
        within = within and told.rigorous and told.upper <= budget
        if sampling == "poisson":
            lines.append(f"epsilon {budget:g}, {STEPS} steps, sigma {sigma:.4g}: zero-out {told.describe()}")
        else:
            test = best_part(sigma, steps=STEPS, batches=BATCHES)
            lowers = {"zero-out": float(test.epsilon(delta).lower())}
            within = False
            lines.append(
                f"epsilon {budget:g}, {STEPS} steps (0.79 epochs), sigma {sigma:.4g}: zero-out epsilon at "
                f"least {lowers['zero-out']:.5g}; {test.describe()}"
            )
        wrong = wrong or _too_much(budget, sigma, STEPS, lowers)
        for count in epochs:
            sigma = calibrated(budget, count * BATCHES, rate)
            found = _whole(sigma, count, sampling)
            within = within and all(one.rigorous and one.upper <= budget for one in found.values())
            wrong = wrong or _too_much(
                budget, sigma, count * BATCHES, {name: one.lower for name, one in found.items()}
            )
            shown = "; ".join(f"{name} {one.describe()}" for name, one in found.items())
            lines.append(f"epsilon {budget:g}, {count} epoch(s), sigma {sigma:.4g}: {shown}")
    return settle(
        proof="each run is within its budget" if within else None,
        counterexample=wrong,
        evidence=(*lines, *(_small(budgets[-1]) if epochs and sampling == "shuffled" else ())),
    )


def _whole(sigma: float, epochs: int, sampling: str) -> dict[str, Bounds]:
    """The run of whole epochs, by adjacency."""
    if sampling == "poisson":  # A record of gradient zero adds to a Poisson sample what no record adds.
        return {"zero-out": spent(sigma, steps=epochs * BATCHES, sampling=1 / BATCHES)}
    return {
        str(adjacency): shuffled(sigma, batches=BATCHES, epochs=epochs, adjacency=adjacency)
        for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
    }


def _too_much(budget: float, sigma: float, steps: int, lowers: dict[str, float]) -> Counterexample | None:
    name, lower = next(iter(lowers.items()))
    if not lower > budget:
        return None
    return Counterexample(
        sentence=(
            f"noise {sigma:.4g}, exact for ({budget:g}, {DELTA}) and {steps} Poisson-sampled steps, on "
            f"shuffled batches: epsilon is at least {lower:.5g} ({name}: the record's stand-in has gradient "
            "zero)"
        ),
        values={
            "target_epsilon": budget,
            "noise_multiplier": sigma,
            "steps": steps,
            "batches": BATCHES,
            "adjacency": name,
            "epsilon_at_least": lower,
        },
    )


def _small(budget: float) -> list[str]:
    """The same comparison for runs of few batches."""
    lines = []
    for batches, epochs in SMALL:
        sigma = calibrated(budget, batches * epochs, 1 / batches)
        found = shuffled(sigma, batches=batches, epochs=epochs, adjacency=Adjacency.ZERO_OUT)
        lines.append(
            f"smaller: {batches} batches, {epochs} epoch, noise {sigma:.4g} exact for Poisson at epsilon "
            f"{budget:g}: zero-out {found.describe()}"
        )
    return lines
