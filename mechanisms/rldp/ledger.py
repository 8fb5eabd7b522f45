"""RLDP's privacy ledger: the noise that it calibrates, what is claimed by it, and what the noise was worth.

Three readings of "GDP(sigma_t, sample_rate, t)":

- `"algorithm-1"`, line 14: the Gaussian-DP central limit mu = q sqrt(t (exp(1 / sigma^2) - 1)) at the noise
  of this step, as though all t steps had used it. Lowering sigma raises the ledger at once, raising it lowers
  it: what was spent at another noise is forgotten.
- `"per-step"`, Section 2.3's "actual parameters used": mu = q sqrt(sum over s of (exp(1 / sigma_s^2) - 1)).
- `"eq-7"`: mu as printed, q sqrt(t) (exp(1 / sigma) - 1), at the noise of this step.

mu becomes epsilon by the duality of Gaussian DP. None is a bound. They count one adapter, whatever their
number, and records that come and go, whatever the adjacency.

Section 4.4 says that the budget is consumed at the last step "without ever exceeding it", Section 3.3 that
this is verified at the end. Algorithm 1 has no rule that stops a run or keeps the ledger within: neither has
this. The ledger is recorded as it is, never clipped at the budget, and a run that passes it goes on.

`certified_epsilons` is what the bench's certified bounds say of a sequence of noises, had it been fixed
beforehand; a run that chooses its noise by what it saw of the records can be worse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import Composed, Event, Gaussian, SubsampledGaussian
from workbench.accounting.events import gaussian_run as dp_sgd_event
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Claim, FloatArray, Plan, Released, Sampling
from workbench.mechanisms.accountants.rldp import RldpCentralLimit, RldpEq7, eq_7_epsilon, eq_7_mu
from workbench.mechanisms.shared.gaussian_sums import dp_budget, noise_assumptions

ACCOUNTANTS = ("algorithm-1", "per-step", "eq-7")

CALIBRATION_ERROR = 1e-6
"""Relative; a ledger so close below the budget is the budget, found by bisection."""

NOISE_GRID = 16
"""Most noises that are told apart in certified bounds; each is rounded down, so the bound stays one."""


@lru_cache(maxsize=1024)
def calibrated_noise(
    accountant: str, budget: ApproximateDP, sampling_probability: float, steps: int
) -> float:
    """sigma_0: the smallest noise multiplier whose ledger after all steps is within the budget, by bisection.

    Raises `InputError`: the budget's epsilon is zero, or needs more noise than can be had.
    """
    return _formula(accountant).noise_multiplier(
        target_epsilon=budget.epsilon,
        delta=budget.delta,
        sampling_probability=sampling_probability,
        steps=steps,
        adjacency=Adjacency.ADD_REMOVE,
    )


def constant_noise_epsilon(
    accountant: str, noise_multiplier: float, delta: float, sampling_probability: float, steps: int
) -> float:
    """The ledger's epsilon of a run whose noise stays as it is; infinite where there is next to none."""
    run = dp_sgd_event(
        noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=steps
    )
    return _formula(accountant).epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE)


def budget_of(plan: Plan) -> ApproximateDP:
    """The plan's budget, whose epsilon scales the controller's steps (Eq. 11).

    Raises `InputError`: there is none, or its epsilon is zero. `UnsupportedError`: it is in another currency.
    """
    budget = dp_budget(plan, "rldp")
    if budget.epsilon == 0:
        raise InputError("rldp needs a budget of epsilon > 0, got 0")
    return budget


def promised_by(accountant: str, noise_multiplier: float | None, plan: Plan) -> ApproximateDP | NoGuarantee:
    """The budget, or what the ledger gives for a noise multiplier of the user's.

    `NoGuarantee` where the ledger finds no finite epsilon for so little noise. Raises `InputError`: the plan
    has no budget. `UnsupportedError`: the budget is in another currency, or the ledger finds epsilon 0.
    """
    budget, q = budget_of(plan), plan.sampling_probability
    if noise_multiplier is None:
        return budget
    epsilon = constant_noise_epsilon(accountant, noise_multiplier, budget.delta, q, plan.steps)
    if budget.epsilon * (1 - CALIBRATION_ERROR) <= epsilon <= budget.epsilon:
        return budget
    if not epsilon > 0:
        raise UnsupportedError(
            f"rldp's ledger finds no epsilon above 0 for noise_multiplier {noise_multiplier:g}, "
            f"q = {q:g}, T = {plan.steps} at delta {budget.delta:g}"
        )
    if math.isinf(epsilon):
        return NoGuarantee()
    return ApproximateDP(epsilon=epsilon, delta=budget.delta)


def theorem_7_13(
    plan: Plan,
    guarantee: ApproximateDP | NoGuarantee,
    *,
    accountant: str,
    adjacency: Adjacency,
    is_joint: bool,
    largest_radius: float,
) -> Claim:
    """The authors' claim of a run, with the premises of their proof among its assumptions.

    The noise is scaled to all adapters together where it `is_joint`; radii are capped by `largest_radius`.
    """
    q, steps = plan.sampling_probability, plan.steps
    if isinstance(guarantee, NoGuarantee):
        source = f"nobody's: ledger {accountant!r} finds no finite epsilon for so little noise"
        return Claim(guarantee=guarantee, about=adjacency, released=Released.EVERY_UPDATE, source=source)
    samples = f"each step's sample is Poisson with q = {q:g} and stays secret (Theorem 7.5)"
    if plan.sampling is Sampling.SHUFFLED:
        samples = (
            f"T = {steps} batches of shuffled epochs cost no more than Poisson samples of q = {q:g}: "
            "Section 3.1 has both, and the proof Poisson samples alone"
        )
    cost = (
        "are one Gaussian release each, of noise sigma_t (not the paper's: "
        "its noise is sqrt(n) times smaller)"
        if is_joint
        else "cost what one pair of noise sigma_t C_t costs (Theorem 7.13, stage 2)"
    )
    return Claim(
        guarantee=guarantee,
        about=adjacency,
        released=Released.EVERY_UPDATE,
        source=f"Khadangi et al. 2025, Theorem 7.13, ledger {accountant!r}",
        assumptions=(
            samples,
            f"T = {steps} releases of all adapter pairs {cost}",
            "every sigma_t is at least the calibrated sigma_0, and every radius at most "
            f"{largest_radius:g} (stage 4)",
            "the controller and the warm-up read noised gradients and the ledger only (Lemma 7.14)",
            "the ledger's formula bounds the cost of the steps",
            *noise_assumptions(plan),
        ),
    )


def _formula(accountant: str) -> RldpEq7:
    return RldpEq7() if accountant == "eq-7" else RldpCentralLimit()


class Ledger:
    """The privacy spent so far in a run, by an accountant."""

    def __init__(self, accountant: str, sampling_probability: float, delta: float) -> None:
        """Nothing is spent; `accountant` is one of `ACCOUNTANTS`."""
        self._accountant = accountant
        self._probability, self._delta = sampling_probability, delta
        self._steps = 0
        self._mu_squared = 0.0
        self.epsilon = 0.0

    def step(self, noise_multiplier: float) -> float:
        """Epsilon after one more step at this noise."""
        self._steps += 1
        self.epsilon = eq_7_epsilon(self._mu(noise_multiplier), self._delta)
        return self.epsilon

    def _mu(self, noise_multiplier: float) -> float:
        if self._accountant != "per-step":
            return eq_7_mu(
                noise_multiplier=noise_multiplier,
                sampling_probability=self._probability,
                steps=self._steps,
                mu="printed" if self._accountant == "eq-7" else "central limit",
            )
        q = self._probability
        mu = eq_7_mu(noise_multiplier=noise_multiplier, sampling_probability=q, steps=1, mu="central limit")
        self._mu_squared += mu * mu
        return math.sqrt(self._mu_squared)


def certified_epsilons(
    noise_multipliers: Sequence[float],
    *,
    adapters: int,
    sampling_probability: float,
    delta: float,
    adjacency: Adjacency,
) -> tuple[float, float]:
    """Upper ends of certified bounds on epsilon for Poisson samples: of one adapter, and of all jointly.

    Args:
        noise_multipliers: sigma_t of each step, at least one; taken as fixed beforehand.
        adapters: n; jointly they are one Gaussian release of noise multiplier sigma_t / sqrt(n).
        sampling_probability: q in (0, 1].
        delta: In (0, 1).
        adjacency: Add-remove, or replace-one.

    Returns both at most by the grid's rounding above the bounds of the sequence itself; infinite where no
    bound was found.
    """
    counts = Counter(rounded_down(np.asarray(noise_multipliers, dtype=np.float64)).tolist())

    def upper(scale: float) -> float:
        """Certified upper end of epsilon with all noise multiplied by `scale`."""
        # Rounded down once more: the product itself is rounded.
        noises = {math.nextafter(sigma * scale, 0.0): count for sigma, count in counts.items()}
        run = Composed(events=tuple((_release(s, sampling_probability), n) for s, n in noises.items()))
        try:
            return epsilon_bounds(run, delta, adjacency=adjacency).upper
        except UnsupportedError:  # beyond the range of certified bounds, after a training that is done
            return math.inf

    return upper(1.0), upper(adapters**-0.5)


def rounded_down(noise_multipliers: FloatArray) -> FloatArray:
    """Each noise as the largest of at most `NOISE_GRID` numbers that is not above it; same shape."""
    kinds = np.unique(noise_multipliers)
    if len(kinds) > NOISE_GRID:
        wished = np.geomspace(kinds[0], kinds[-1], NOISE_GRID)
        # Every grid point is one of the noises: the smallest of those in its cell.
        kinds = kinds[np.unique(np.searchsorted(kinds, wished * (1 - 1e-12)))]
    return kinds[np.searchsorted(kinds, noise_multipliers, side="right") - 1].astype(np.float64)


def _release(noise_multiplier: float, sampling_probability: float) -> Event:
    if sampling_probability == 1:
        return Gaussian(noise_multiplier=noise_multiplier)
    return SubsampledGaussian(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)
