"""What mechanisms share that release a clipped sum of per-record vectors with Gaussian noise.

Clip and noise, the noise multiplier that meets a budget, what a given one guarantees, and the claim. A record
adds at most the clipping norm C to a step's sum, the noise has standard deviation sigma C, and samples are
Poisson: T releases of the subsampled Gaussian mechanism under add-remove adjacency, whatever the vectors are.
They are accounted by `workbench.accounting.certified`, or by a registered accountant that the user names.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from workbench.accounting import ApproximateDP, GaussianDP, NoGuarantee
from workbench.accounting.events import gaussian_run
from workbench.accounting.subsampled_gaussian import calibrate_noise_multiplier, epsilon
from workbench.checks.accountants import Accountant, NoiseCalibrator
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.interfaces import Adjacency, Claim, Guarantee, Plan, Released, Sampling, Signals
from workbench.training.loop import gaussian_noise

CERTIFIED = "certified"
"""The accountant where none is named: the bench's certified bounds, their upper ends."""

ACCOUNTANT = "accounted by workbench.accounting.certified (upper end)"


def require_positive(**values: float | None) -> None:
    """Refuse a parameter that is not finite and positive; None passes.

    Raises `InputError`: naming the parameter.
    """
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} must be finite and > 0, got {value!r}")


SCALES = (1e-15, 1e15)
"""Smallest and largest clipping norms, widths and rates: with their squares and sums, numbers of float32."""


def require_scale(**values: float) -> None:
    """Refuse a parameter that weights in float32 cannot be computed with.

    Raises `InputError`: naming the parameter, which is not a positive number within `SCALES`.
    """
    low, high = SCALES
    for name, value in values.items():
        require_positive(**{name: value})
        if not low <= value <= high:
            raise InputError(f"{name} must be in [{low:g}, {high:g}], got {value!r}")


def settled_noise(noise_multiplier: float | None) -> float:
    """A noise multiplier that is given or calibrated. Raises `InputError`: it is neither."""
    if noise_multiplier is None:
        raise InputError("noise_multiplier is not settled yet: call for_plan first")
    return noise_multiplier


def flat_factors(norms: Tensor, l2_clip_norm: float) -> Tensor:
    """Factors of flat clipping for each record's vector, shape `(n,)`: min(1, C / norm)."""
    return (l2_clip_norm / norms).clamp(max=1.0)


def noisy_sum(
    signals: Signals, factors: Tensor, standard_deviation: float, generator: torch.Generator
) -> Tensor:
    """The sum of the records' vectors times their factors, plus Gaussian noise; shape of the weighted sum.

    Args:
        signals: The sample's.
        factors: One a record, shape `(n,)`.
        standard_deviation: Of the noise in each coordinate.
        generator: Source of the noise.
    """
    clipped_sum = signals.weighted_sum(factors)
    return gaussian_noise(clipped_sum, standard_deviation, generator).add_(clipped_sum)


def require_calibrator(accountant: str) -> None:
    """Refuse the name of an accountant that is not registered, or that finds no noise for a budget.

    Raises `InputError`: as said.
    """
    if accountant == CERTIFIED:
        return
    known = registry.entries("accountant")
    if accountant not in known:
        raise unknown_name("accountant", accountant, known)
    if not isinstance(registry.create("accountant", accountant), NoiseCalibrator):
        raise InputError(f"accountant must be one that finds the noise for a budget, got {accountant!r}")


def calibrated(plan: Plan, mechanism: str, accountant: str = CERTIFIED) -> float:
    """The smallest noise multiplier that meets the plan's budget, as the accountant finds it.

    `plan`: its budget, sampling probability and number of steps. `mechanism`: registry name, for messages.
    `accountant`: registry name; any but `CERTIFIED` is asked about (epsilon, delta)-DP alone. Raises
    `InputError`: there is no budget, or it is zero. `UnsupportedError`: the budget is in a currency that the
    noise is not calibrated to, or the accountant's library is missing or finds no noise.
    """
    budget, q, steps = plan.budget, plan.sampling_probability, plan.steps
    if isinstance(budget, ApproximateDP) and accountant != CERTIFIED:
        return _noise_by(accountant, budget, q, steps)
    if isinstance(budget, ApproximateDP):
        return calibrate_noise_multiplier(
            target_epsilon=budget.epsilon, target_delta=budget.delta, sampling_probability=q, steps=steps
        )
    if isinstance(budget, GaussianDP) and q == 1 and accountant == CERTIFIED:
        if budget.mu == 0:
            raise InputError("mu must be > 0 for a run that releases anything, got 0")
        return math.sqrt(steps) / budget.mu
    if budget is None:
        raise InputError(f"{mechanism} needs a budget or a noise_multiplier, got neither")
    if accountant != CERTIFIED:
        raise UnsupportedError(
            f"{mechanism} is calibrated to (epsilon, delta)-DP "
            f"by accountant {accountant!r}, not to {budget.describe()}"
        )
    raise UnsupportedError(
        f"{mechanism} is calibrated to (epsilon, delta)-DP, and at q = 1 to mu-GDP, "
        f"not to {budget.describe()} at q = {q:g}"
    )


def dp_budget(plan: Plan, mechanism: str) -> ApproximateDP:
    """The plan's budget, of a mechanism that knows no other currency than (epsilon, delta)-DP.

    Raises `InputError`: there is none. `UnsupportedError`: it is in another currency.
    """
    if plan.budget is None:
        raise InputError(f"{mechanism} needs a budget of (epsilon, delta)-DP, got none")
    if not isinstance(plan.budget, ApproximateDP):
        raise UnsupportedError(
            f"{mechanism} is calibrated to (epsilon, delta)-DP, not to {plan.budget.describe()}"
        )
    return plan.budget


def accounted(noise_multiplier: float, plan: Plan, mechanism: str, accountant: str = CERTIFIED) -> Guarantee:
    """What a given noise multiplier guarantees: (epsilon, the budget's delta)-DP, or mu-GDP at q = 1.

    `NoGuarantee` where the accountant finds no finite epsilon for so little noise. Raises `InputError`: there
    is no budget to read delta from. `UnsupportedError`: the accountant's library is missing, or it gives no
    number.
    """
    q, steps, budget = plan.sampling_probability, plan.steps, plan.budget
    if isinstance(budget, ApproximateDP):
        sigma, delta = noise_multiplier, budget.delta
        if accountant != CERTIFIED:
            spent = _epsilon_by(accountant, sigma, delta, q, steps)
        else:
            try:
                spent = epsilon(noise_multiplier=sigma, sampling_probability=q, steps=steps, delta=delta)
            except UnsupportedError:
                spent = math.inf
        return ApproximateDP(epsilon=spent, delta=delta) if math.isfinite(spent) else NoGuarantee()
    if q == 1 and accountant == CERTIFIED:
        return GaussianDP(mu=math.sqrt(steps) / noise_multiplier)
    where = ", where q < 1" if accountant == CERTIFIED else f" with accountant {accountant!r}"
    raise InputError(f"{mechanism} needs a budget of (epsilon, delta)-DP to read delta from{where}")


@lru_cache(maxsize=1024)
def _noise_by(accountant: str, budget: ApproximateDP, sampling_probability: float, steps: int) -> float:
    """The noise multiplier that a registered accountant finds."""
    require_calibrator(accountant)
    calibrator: NoiseCalibrator = registry.create("accountant", accountant)
    sigma = calibrator.noise_multiplier(
        target_epsilon=budget.epsilon,
        delta=budget.delta,
        sampling_probability=sampling_probability,
        steps=steps,
        adjacency=Adjacency.ADD_REMOVE,
    )
    if not 0 < sigma < math.inf:
        raise UnsupportedError(f"accountant {accountant!r} finds no noise for {budget.describe()}: {sigma!r}")
    return float(sigma)


@lru_cache(maxsize=1024)
def _epsilon_by(
    accountant: str, noise_multiplier: float, delta: float, sampling_probability: float, steps: int
) -> float:
    """The epsilon that a registered accountant finds; may be infinite."""
    made: Accountant = registry.create("accountant", accountant)
    run = gaussian_run(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=steps
    )
    spent = made.epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE)
    if not spent >= 0:
        raise UnsupportedError(
            f"accountant {accountant!r} finds no epsilon for noise_multiplier {noise_multiplier:g}, "
            f"q = {sampling_probability:g}, T = {steps} at delta {delta:g}"
        )
    return float(spent)


def require_poisson(plan: Plan, mechanism: str) -> None:
    """Refuse samples that the accounting does not cover. Raises `UnsupportedError`: they are not Poisson."""
    if plan.sampling is not Sampling.POISSON:
        raise UnsupportedError(
            f"{mechanism} is accounted for Poisson samples only, got sampling {str(plan.sampling)!r}"
        )


def noise_assumptions(plan: Plan) -> tuple[str, str]:
    """Assumptions of every claim about a noisy sum: on the noise and on the mean."""
    return (
        "the noise is an ideal Gaussian: floating-point effects are not covered",
        (
            "the number that the sum is divided by is public"
            if plan.public_size is not None
            else "the number of records, by which the sum is divided, is public"
        ),
    )


def no_claim(source: str, released: Released = Released.EVERY_UPDATE) -> Claim:
    """The claim of a mechanism that promises nothing."""
    return Claim(guarantee=NoGuarantee(), about=Adjacency.ADD_REMOVE, released=released, source=source)


def noisy_sum_claim(
    plan: Plan,
    noise_multiplier: float | None,
    *,
    mechanism: str,
    source: str,
    releases: str,
    accountant: str = CERTIFIED,
) -> Claim:
    """The plan's budget; with a noise multiplier of the user's, what the accountant finds for it.

    Args:
        plan: The plan.
        noise_multiplier: The user's; None where it is calibrated to the budget.
        mechanism: Registry name, for messages.
        source: Whose algorithm it is.
        releases: What each step releases, for the assumptions: "releases, each of ...".
        accountant: Registry name of the claim's basis.

    Raises `InputError`: there is no budget to read delta from. `UnsupportedError`: the budget is in a
    currency that the noise is not calibrated to, the samples are not Poisson, or the accountant's library is
    missing or finds nothing.
    """
    require_poisson(plan, mechanism)
    if noise_multiplier is None:
        calibrated(plan, mechanism, accountant)  # refuses a budget that the noise cannot be calibrated to
        guarantee: Guarantee | None = plan.budget
    else:
        guarantee = accounted(noise_multiplier, plan, mechanism, accountant)
    if guarantee is None:
        raise InputError("budget must be given, got None")
    basis = ACCOUNTANT if accountant == CERTIFIED else f"accounted by accountant {accountant}"
    return Claim(
        guarantee=guarantee,
        about=Adjacency.ADD_REMOVE,
        released=Released.EVERY_UPDATE,
        source=f"{source}, {basis}",
        assumptions=(
            f"each step's sample is Poisson with q = {plan.sampling_probability:g} and stays secret",
            f"T = {plan.steps} {releases}",
            *noise_assumptions(plan),
        ),
    )
