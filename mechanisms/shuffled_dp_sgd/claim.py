"""What the authors of Shuffled DPSGD claim of a run, and what the claim leaves out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.accounting import ApproximateDP, NoGuarantee
from workbench.accounting.subsampled_gaussian import epsilon
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Claim, Guarantee, Plan, Released
from workbench.mechanisms.accountants.shuffled_dp_sgd import ShuffledDPSGD, ShuffledGaussianRun
from workbench.mechanisms.shared.gaussian_sums import (
    ACCOUNTANT,
    dp_budget,
    noise_assumptions,
    require_poisson,
)
from workbench.mechanisms.shared.once_a_model import once_a_model
from workbench.training.fine_tuning import build_model
from workbench.training.permutations import PermutationGroup, Reach

SOURCE = "Yang, Ji and Xiang, Algorithm 1 with Theorems 6, 2 and 1"


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The parameters of a model that the permutations of Theorems 3 and 4 move, and those they do not.

    Attributes:
        trainable: Number of trainable numbers.
        shuffled: How many of them some permutation moves.
        log_permutations: Natural logarithm of the number of permutations.
        covered: Names of the parameters that some permutation moves.
        left_alone: The other trainable parameters, each with its reason.
    """

    trainable: int
    shuffled: int
    log_permutations: float
    covered: tuple[str, ...]
    left_alone: Mapping[str, str]

    @classmethod
    def of(cls, group: PermutationGroup) -> Coverage:
        """The coverage of a group of permutations."""
        return cls(
            trainable=group.trainable_count,
            shuffled=group.shuffled_count,
            log_permutations=group.log_size,
            covered=tuple(name for name in group.shapes if name not in group.left_alone),
            left_alone=group.left_alone,
        )

    @property
    def parameters(self) -> int:
        """Number of trainable parameters, as tensors."""
        return len(self.covered) + len(self.left_alone)

    @property
    def share(self) -> float:
        """Share of the trainable numbers that are moved."""
        return self.shuffled / self.trainable

    def reasons(self) -> str:
        """Why the rest is left alone: `8 parameters (6 normalisation, 2 embedding)`; empty for no rest."""
        counts: dict[str, int] = {}
        for reason in self.left_alone.values():
            counts[reason] = counts.get(reason, 0) + 1
        if not counts:
            return ""
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        noun = "parameter" if len(self.left_alone) == 1 else "parameters"
        return f"{len(self.left_alone)} {noun} ({listed})"


@once_a_model
def coverage_of(plan: Plan, reach: Reach) -> Coverage:
    """The coverage of the plan's model, its adapter in place.

    `plan`: names the model; built once for all plans that name the same. `reach`: how far to go beyond the
    theorems as printed. Raises `InputError`: unknown model, or parameters that it refuses.
    `UnsupportedError`: LoRA finds no layer to adapt.
    """
    return Coverage.of(PermutationGroup.of(build_model(plan).module, reach))


@dataclass(frozen=True, kw_only=True)
class AccountedRun:
    """A settled mechanism and its plan, as a claim sees them.

    Attributes:
        plan: The plan.
        coverage: Of the plan's model.
        sigma: Noise multiplier of what is shuffled; None where it is not settled.
        sigma_0: Noise multiplier of the rest, likewise.
        noises: `"sigma"` and `"sigma_0"`, as far as some parameter gets it.
        is_calibrated: Whether both are of the plan's budget, and neither is the user's.
        shuffles: Whether anything may be permuted.
        dimension: d of Theorem 6.
        batch_clip: c' / c.
        slack: Share of delta that Theorem 1 keeps for the composition.
        zeta_2: `"appendix"` or `"main text"`.
    """

    plan: Plan
    coverage: Coverage
    sigma: float | None
    sigma_0: float | None
    noises: Mapping[str, float]
    is_calibrated: bool
    shuffles: bool
    dimension: int
    batch_clip: float
    slack: float
    zeta_2: str

    @property
    def falls_back(self) -> bool:
        """Whether the run is DP-SGD with sigma_0, for all of the weights."""
        return "sigma" not in self.noises

    @property
    def is_bare_dp_sgd(self) -> bool:
        """Whether the run has the noise of Theorem 6, and no permutations."""
        return not self.falls_back and not self.shuffles

    def claim(self) -> Claim:
        """The budget; with a given noise multiplier, the epsilon of the authors' accountant.

        Of a run without permutations, which the authors promise nothing of, what a certified accountant
        finds; none where no finite epsilon is found for so little noise. Raises `InputError`: there is no
        budget to read delta from. `UnsupportedError`: the budget is in another currency, or the samples are
        not Poisson.
        """
        require_poisson(self.plan, "shuffled_dp_sgd")
        guarantee, source = self._guarantee()
        return Claim(
            guarantee=guarantee,
            about=Adjacency.ADD_REMOVE,
            released=Released.EVERY_UPDATE,
            source=source,
            assumptions=() if isinstance(guarantee, NoGuarantee) else self._assumptions(),
        )

    def epsilons(self, delta: float) -> dict[str, float]:
        """Epsilon at delta by the authors' accountant, of each noise level that is used, as if it were alone.

        Nobody says what both together spend. Raises `InputError`: delta is outside (0, 1).
        """
        accountant = ShuffledDPSGD(slack=self.slack, zeta_2=self.zeta_2)
        epsilons: dict[str, float] = {}
        for name, noise in self.noises.items():
            if not noise:
                epsilons[name] = math.inf
                continue
            run = ShuffledGaussianRun(
                noise_multiplier=noise,
                sampling_probability=self.plan.sampling_probability,
                steps=self.plan.steps,
                dimension=self.dimension if name == "sigma" else 1,
                batch_clip=self.batch_clip,
            )
            epsilons[name] = accountant.epsilon(run, delta=delta, adjacency=Adjacency.ADD_REMOVE)
        return epsilons

    def _guarantee(self) -> tuple[Guarantee, str]:
        """The promise, and whose it is."""
        if not all(self.noises.values()):
            return NoGuarantee(), "nobody's: there are weights without noise"
        if self.is_bare_dp_sgd:
            return self._by_its_noise()
        budget = dp_budget(self.plan, "shuffled_dp_sgd")
        line = "line 3 (DP-SGD)" if self.falls_back else f"d = {self.dimension}"
        source = f"{SOURCE}, {line}; accountant shuffled_dp_sgd, zeta_2 of the {self.zeta_2}"
        if self.is_calibrated:
            return budget, source
        largest = max(self.epsilons(budget.delta).values())
        if math.isinf(largest):
            return (
                NoGuarantee(),
                "nobody's: the authors' accountant finds no finite epsilon for so little noise",
            )
        return ApproximateDP(epsilon=largest, delta=budget.delta), source

    def _by_its_noise(self) -> tuple[Guarantee, str]:
        """What a certified accountant finds for a run that does not permute, by its smallest noise.

        A record moves the sum by c at most: line 12 projects on a ball, and moves no two sums further apart.
        """
        nobody = "nobody's: the authors promise nothing without the permutations"
        if not isinstance(self.plan.budget, ApproximateDP):
            return NoGuarantee(), nobody
        delta = self.plan.budget.delta
        try:
            certified = epsilon(
                noise_multiplier=min(self.noises.values()),
                sampling_probability=self.plan.sampling_probability,
                steps=self.plan.steps,
                delta=delta,
            )
        except UnsupportedError:
            return NoGuarantee(), f"{nobody}, and no certified epsilon is finite"
        guarantee = ApproximateDP(epsilon=certified, delta=delta)
        return guarantee, f"DP-SGD with the noise of Theorem 6, {ACCOUNTANT}"

    def _why_unshuffled(self) -> str:
        """Why a run is DP-SGD by line 3."""
        if not self.coverage.covered:
            return f"left alone: {self.coverage.reasons()}"
        if self.sigma is not None and self.sigma_0 is not None and self.sigma >= self.sigma_0:
            return f"sigma = {self.sigma:.6g} is not below sigma_0 = {self.sigma_0:.6g}"
        return "no parameter is to be shuffled"

    def _assumptions(self) -> tuple[str, ...]:
        """What the claim takes for granted, and leaves out."""
        common = (
            f"each step's sample is Poisson with q = {self.plan.sampling_probability:g} and stays secret",
            *noise_assumptions(self.plan),
        )
        releases = f"T = {self.plan.steps} releases of"
        if self.is_bare_dp_sgd:
            noise = f"each sum of sensitivity c and noise of {min(self.noises.values()):.6g} c or more"
            return (f"{releases} unpermuted weights, {noise}", *common)
        if self.falls_back:
            noise = "each sum of sensitivity c and noise sigma_0 c"
            return (f"{releases} unpermuted weights, {noise}; {self._why_unshuffled()}", *common)
        assumptions = [
            f"{releases} permuted weights, each sum of sensitivity c, "
            f"clipped to c' = {self.batch_clip:g} c, and noise sigma c",
            *common,
            "Theorem 6 as printed: its derivation bounds an approximation of a lower bound on delta, and "
            "leaves out queries whose entries are (nearly) equal",
            f"d = {self.dimension} freely permuted numbers stand for the permutations that are drawn, "
            f"exp({self.coverage.log_permutations:.6g}) of them, "
            f"which move {self.coverage.share:.2%} of the weights",
            "permuted updated weights hide a gradient as the permuted gradient would, though the weights "
            "before the update are known",
        ]
        rest = self.coverage.reasons()
        if "sigma_0" in self.noises:
            assumptions.append(
                f"unpermuted, with noise sigma_0 c: {rest}; what they release is not added to the rest"
            )
        elif rest:
            assumptions.append(f"unpermuted, with noise sigma c all the same: {rest}")
        return tuple(assumptions)
