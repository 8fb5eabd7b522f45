"""What the authors of Shuffled DPSGD claim of a run, and what the claim leaves out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.accounting.dp_sgd import epsilon
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Claim, Guarantee, Plan, Released, Sampling
from workbench.mechanisms.accountants.shuffled_dp_sgd import ShuffledDPSGD as Accountant
from workbench.mechanisms.accountants.shuffled_dp_sgd import ShuffledGaussianRun
from workbench.mechanisms.shared.gaussian_sums import ACCOUNTANT
from workbench.mechanisms.shuffled_dp_sgd.coverage import Coverage

if TYPE_CHECKING:
    from workbench.mechanisms.shuffled_dp_sgd import ShuffledDPSGD

SOURCE = "Yang, Ji and Xiang, Algorithm 1 with Theorems 6, 2 and 1"


def claim_of(asked: ShuffledDPSGD, settled: ShuffledDPSGD, coverage: Coverage, plan: Plan) -> Claim:
    """The budget; with a given noise multiplier, the epsilon of the authors' accountant.

    Of a run without permutations, which the authors promise nothing of, what a certified accountant finds.

    Args:
        asked: The mechanism as it was asked for.
        settled: It, settled for the plan.
        coverage: Of the plan's model.
        plan: The plan.

    Raises:
        InputError: there is no budget to read delta from.
        UnsupportedError: the budget is in another currency, the samples are not Poisson, or the accountant
            finds no finite epsilon.
    """
    if plan.sampling is not Sampling.POISSON:
        raise UnsupportedError(
            f"shuffled_dp_sgd is accounted for Poisson samples only, got sampling {str(plan.sampling)!r}"
        )
    guarantee, source = _guarantee(asked, settled, coverage, plan)
    bare = isinstance(guarantee, NoGuarantee)
    return Claim(
        guarantee=guarantee,
        about=Adjacency.ADD_REMOVE,
        released=Released.EVERY_UPDATE,
        source=source,
        assumptions=() if bare else _assumptions(settled, coverage, plan),
    )


def dp_budget(plan: Plan) -> ApproximateDP:
    """The plan's budget.

    Raises:
        InputError: there is none.
        UnsupportedError: it is in another currency.
    """
    if plan.budget is None:
        raise InputError("shuffled_dp_sgd needs a budget of (epsilon, delta)-DP, got none")
    if not isinstance(plan.budget, ApproximateDP):
        raise UnsupportedError(
            f"shuffled_dp_sgd is calibrated to (epsilon, delta)-DP, not to {plan.budget.describe()}"
        )
    return plan.budget


def accounted(settled: ShuffledDPSGD, coverage: Coverage, plan: Plan, delta: float) -> dict[str, float]:
    """Epsilon at delta by the authors' accountant, of each noise level that a settled mechanism uses.

    Returns:
        Under `"sigma"` and `"sigma_0"`, as far as some parameter gets it. Each as if it were alone: nobody
        says what both together spend.

    Raises:
        InputError: delta is outside (0, 1).
    """
    accountant = Accountant(slack=settled.slack, zeta_2=settled.zeta_2)
    found: dict[str, float] = {}
    for name, noise in settled.noises(coverage).items():
        if not noise:
            found[name] = math.inf
            continue
        run = ShuffledGaussianRun(
            noise_multiplier=noise,
            sampling_probability=plan.sampling_probability,
            steps=plan.steps,
            dimension=int(settled.dimension) if name == "sigma" else 1,
            batch_clip=settled.batch_clip,
        )
        found[name] = accountant.epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE)
    return found


def _guarantee(
    asked: ShuffledDPSGD, settled: ShuffledDPSGD, coverage: Coverage, plan: Plan
) -> tuple[Guarantee, str]:
    """The promise, and whose it is."""
    if not all(settled.noises(coverage).values()):
        return NoGuarantee(), "nobody's: there are weights without noise"
    if _is_bare_dp_sgd(settled):
        return _by_its_noise(settled, coverage, plan)
    budget = dp_budget(plan)
    line = "line 3 (DP-SGD)" if settled.falls_back else f"d = {settled.dimension}"
    source = f"{SOURCE}, {line}; accountant shuffled_dp_sgd, zeta_2 of the {settled.zeta_2}"
    if asked.noise_multiplier is None and asked.unshuffled_noise_multiplier is None:
        return budget, source
    found = max(accounted(settled, coverage, plan, budget.delta).values())
    if math.isinf(found):
        used = settled.unshuffled_noise_multiplier if settled.falls_back else settled.noise_multiplier
        raise UnsupportedError(
            f"accountant shuffled_dp_sgd finds no finite epsilon for noise_multiplier {used:g} at delta "
            f"{budget.delta:g}"
        )
    return ApproximateDP(epsilon=found, delta=budget.delta), source


def _is_bare_dp_sgd(settled: ShuffledDPSGD) -> bool:
    """Whether the settled mechanism has the noise of Theorem 6, and no permutations."""
    return not settled.falls_back and not settled.shuffle


def _by_its_noise(settled: ShuffledDPSGD, coverage: Coverage, plan: Plan) -> tuple[Guarantee, str]:
    """What a certified accountant finds for a run that does not permute, by its smallest noise.

    A record moves the sum by c at most: line 12 projects on a ball, which takes no two sums further apart.
    """
    nobody = "nobody's: the authors promise nothing without the permutations"
    if not isinstance(plan.budget, ApproximateDP):
        return NoGuarantee(), nobody
    delta = plan.budget.delta
    try:
        found = epsilon(
            noise_multiplier=min(settled.noises(coverage).values()),
            sampling_probability=plan.sampling_probability,
            steps=plan.steps,
            delta=delta,
        )
    except UnsupportedError:
        return NoGuarantee(), f"{nobody}, and no certified epsilon is finite"
    return ApproximateDP(epsilon=found, delta=delta), f"DP-SGD with the noise of Theorem 6, {ACCOUNTANT}"


def _why_unshuffled(settled: ShuffledDPSGD, coverage: Coverage) -> str:
    """Why a run is DP-SGD by line 3."""
    if not coverage.covered:
        return f"left alone: {coverage.reasons()}"
    sigma, sigma_0 = settled.noise_multiplier, settled.unshuffled_noise_multiplier
    if sigma is not None and sigma_0 is not None and sigma >= sigma_0:
        return f"sigma = {sigma:.6g} is not below sigma_0 = {sigma_0:.6g}"
    return "no parameter is to be shuffled"


def _assumptions(settled: ShuffledDPSGD, coverage: Coverage, plan: Plan) -> tuple[str, ...]:
    """What the claim takes for granted, and leaves out."""
    common = (
        f"each step's sample is Poisson with q = {plan.sampling_probability:g} and stays secret",
        "the noise is an ideal Gaussian: floating-point effects are not covered",
        (
            "the number that the sum is divided by is public"
            if plan.public_size is not None
            else "the number of records, by which the sum is divided, is public"
        ),
    )
    releases = f"T = {plan.steps} releases of"
    if _is_bare_dp_sgd(settled):
        least = min(settled.noises(coverage).values())
        return (
            f"{releases} unpermuted weights, each sum of sensitivity c and noise of {least:.6g} c or more",
            *common,
        )
    if settled.falls_back:
        noise = "each sum of sensitivity c and noise sigma_0 c"
        return (f"{releases} unpermuted weights, {noise}; {_why_unshuffled(settled, coverage)}", *common)
    said = [
        f"{releases} permuted weights, each sum of sensitivity c, clipped to c' = {settled.batch_clip:g} c, "
        "and noise sigma c",
        *common,
        "Theorem 6 as printed: its derivation bounds an approximation of a lower bound on delta, and leaves "
        "out queries whose entries are (nearly) equal",
        f"d = {settled.dimension} freely permuted numbers stand for the permutations that are drawn, "
        f"exp({coverage.log_permutations:.6g}) of them, which move {coverage.share:.2%} of the weights",
        "permuted updated weights hide a gradient as the permuted gradient would, though the weights before "
        "the update are known",
    ]
    rest = coverage.reasons()
    if settled.uses_sigma_0(coverage):
        said.append(f"unpermuted, with noise sigma_0 c: {rest}; what they release is not added to the rest")
    elif rest:
        said.append(f"unpermuted, with noise sigma c all the same: {rest}")
    return tuple(said)
