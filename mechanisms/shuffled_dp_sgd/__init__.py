"""Shuffled DPSGD: clip, add less noise than DP-SGD, and permute the weights after every update.

Source: Yang, Ji and Xiang, "Weights Shuffling for Improving DPSGD in Transformer-based Models". The lines of
Algorithm 1, and where they stand:

     1  draw W_0                                                                    the plan's model
     2  sigma   from Theorem 6 at d, with Theorems 1 and 2                  `ShuffledDPSGD.for_plan`
     3  sigma_0 from the same at d = 1: DP-SGD
     4  for t in 1..T:
     5      take a Poisson sample L_t: each of the N records with probability |B| / N
   6-8      clip each record's gradient to norm c                            `ShuffledDPSGD.noisy`
    10      add up: g
    11      if sigma < sigma_0, for what can be permuted:
    12          g <- g / max(1, |g| / c')
    13          g <- (g + N(0, (sigma c)^2 I)) / |B|
    14          W <- P[W - eta g]                                           `ShuffledSteps.descend`
    15      else:
    16          g <- (g + N(0, (sigma_0 c)^2 I)) / |B|
    17          W <- W - eta g
    20  return W

The permutations are those of Theorems 3 and 4 (`workbench.training.permutations`), fresh in every step and
applied by index operations. The optimizer's state moves along, so that training goes on as if nothing had
been permuted. sigma comes from `workbench.mechanisms.accountants.shuffled_dp_sgd`, the claim from `claim`.

Where the paper is silent or says two things, what is done here, and its option:

- c' is given nowhere. As large as c (`batch_clip_norm=None`), line 12 shrinks a whole batch to what one
  record may add, and line 13 still divides it by |B|.
- Theorem 6 has noise of variance sigma^2, lines 13 and 16 of sigma^2 c^2. sigma is over c here.
- Line 11 asks whether "W_t is linear layer or Transformer block"; elsewhere W_t is all of the weights. Read
  layer by layer: parameters that no permutation moves take the else branch (`uncovered="sigma_0"`), and line
  12 clips the rest. Table I says that 100 % of the weights are shuffled, although Theorems 3 and 4 leave
  embeddings, normalisations, output biases and heads where they are: with `uncovered="sigma"` all of the
  gradient is clipped and noised by lines 12 and 13.
- A step that takes both branches releases two things about a record. Each of sigma and sigma_0 spends the
  whole budget, and nothing adds them up.
- d is the number of all trainable weights in Section VI-D (`dimension="trainable"`), shuffled or not;
  `"shuffled"` counts those that some permutation moves. Theorem 6 permutes d numbers freely, or at
  least so that d arrangements occur; Theorems 3 and 4 permute whole rows, columns and heads.
- Theorem 6 is about a permuted noisy gradient. Line 14 permutes the updated weights, and the weights before
  are known. Section V-A says that with the noise first only the gradients need permuting; line 14 is
  followed.
- zeta_2: Eq. 26 and its derivation, Eq. 83, differ (`zeta_2`). The derivation bounds an approximation of a
  lower bound on delta (Eqs. 31 to 42); equal-entry queries are left out as all but impossible; the norm of
  f(x') is bounded nowhere (the pair of Eqs. 43 and 44 has it at c + c').
- Theorem 1 does not say which share of delta goes to delta' (`slack`).
- Algorithm 1 descends plainly; Section VI names no optimizer. The plan's is used.
- Line 1 draws W_0, while the experiments start from pre-trained weights: the plan says which.
- Theorem 4 has one P_2 for all heads of a block (`value_per_head` for one each), and softmax, which Theorem
  3 calls element-wise, is not; it permutes with its input. Neither speaks of gates or shared heads (`gated`,
  `grouped_heads`).
- The code of Appendix E draws new indices for the rows and the columns of each matrix. Theorems 3 and 4 need
  the same ones in all matrices that meet, and so it is here.
- Table II has DP-SGD "with the same sigma" as its shuffled twin, and nothing is said of what it guarantees.
  With `shuffle=False, clips_batch=False, uncovered="sigma"` the run is DP-SGD with Theorem 6's sigma, and its
  claim what a certified accountant finds for that.
- Line 3 composes sigma_0 by Theorems 1 and 2, the baselines of the experiments by Renyi DP (Section VI-A),
  which needs less noise. The fall-back compares with line 3's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from workbench.core.arguments import require_count
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.games.consecutive import PermutingMechanism
from workbench.interfaces import AuditDefaults, Capabilities, Claim, Model, Plan, Release, Signals
from workbench.mechanisms.accountants.shuffled_dp_sgd import LARGEST_DIMENSION, ZETA_2, noise_multiplier_for
from workbench.mechanisms.shared.gaussian_sums import dp_budget, flat_factors, require_positive, settled_noise
from workbench.mechanisms.shared.shuffling import Layout, Shuffler, released_weights
from workbench.mechanisms.shuffled_dp_sgd.claim import AccountedRun, Coverage, coverage_of
from workbench.training.devices import wide_dtype
from workbench.training.flat import squared_norms
from workbench.training.loop import GradientMechanism, gaussian_noise
from workbench.training.permutations import PermutationGroup, Reach
from workbench.training.steps import PrivatisedSums

DIMENSIONS = ("trainable", "shuffled")
UNCOVERED = ("sigma_0", "sigma")


@register("mechanism", "shuffled_dp_sgd")
@dataclass(frozen=True, kw_only=True)
class ShuffledDPSGD(GradientMechanism, PermutingMechanism):
    """Shuffled DPSGD: little noise, and weights permuted after each step (Yang, Ji and Xiang).

    Attributes:
        l2_clip_norm: c, the most that one record adds to the sum.
        batch_clip_norm: c', the most that the shuffled part of the sum may measure; None for c.
        noise_multiplier: sigma, over c; None for that of Theorem 6, or of line 3 where that is no larger. A
            given one is taken without that comparison; 0 for no noise and no promise.
        unshuffled_noise_multiplier: sigma_0, over c; None for that of line 3 at the plan's budget.
        dimension: d of Theorem 6: `"trainable"`, `"shuffled"`, or a number, 1 to 1e18.
        slack: Share of delta that Theorem 1 keeps for the composition, in (0, 1).
        zeta_2: `"appendix"` (Eq. 83) or `"main text"` (Eq. 26).
        uncovered: Noise on what no permutation moves: `"sigma_0"`, or `"sigma"` with the batch clip.
        shuffle: False for the same run without its permutations. The authors promise nothing of it; it is
            DP-SGD with little noise, and claimed is what the bench's certified accountant finds.
        clips_batch: False to leave out line 12, with the sigma of c' all the same; only without `shuffle`, as
            Theorem 6 speaks of clipped sums.
        carry_noise: Draw the noise in the order of the first weights and permute it with them, so that the
            run agrees with its unshuffled twin but for rounding; the law of the noise is the same.
        value_per_head: One permutation of values for each head, not one for all of a block's.
        gated: Also permute hidden units behind a gate.
        grouped_heads: Also permute values that several heads of queries share.
        covered_parameters: Names of the parameters that are treated as shuffled; None for all that some
            permutation moves.

    Raises `InputError`: a parameter is out of range.
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"clips_batch": True}
    """See `workbench.training.content.settled`."""

    l2_clip_norm: float = 1.0
    batch_clip_norm: float | None = None
    noise_multiplier: float | None = None
    unshuffled_noise_multiplier: float | None = None
    dimension: str | int = "trainable"
    slack: float = 0.5
    zeta_2: str = "appendix"
    uncovered: str = "sigma_0"
    shuffle: bool = True
    carry_noise: bool = False
    value_per_head: bool = False
    gated: bool = False
    grouped_heads: bool = False
    covered_parameters: tuple[str, ...] | None = None
    clips_batch: bool = True

    @property
    def capabilities(self) -> Capabilities:
        """Permuted weights; the noisy sum is never shown."""
        return Capabilities(releases=frozenset({Release.PERMUTED_WEIGHTS}))

    def audit_defaults(self) -> AuditDefaults:
        """Plain steps of a small network on the digits, in games of their own.

        The control is DP-SGD at the noise that a certified accountant asks for.
        """
        return AuditDefaults(
            settings={
                "corpus": "digits",
                "corpus_parameters": {},
                "model": "digits_mlp",
                "model_parameters": {},
                "candidates": 1000,
                "steps": 100,
                "sampling_probability": 0.05,
                "learning_rate": 1.0,
                "optimizer": "sgd",
                "control_mechanism": "dp_sgd",
                "control_learning_rate": None,
                "attacks": ("weight_tidying",),
            }
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(l2_clip_norm=self.l2_clip_norm, batch_clip_norm=self.batch_clip_norm)
        for name in ("noise_multiplier", "unshuffled_noise_multiplier"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name} must be finite and >= 0, got {value!r}")
        if isinstance(self.dimension, str) and self.dimension not in DIMENSIONS:
            raise unknown_name("dimension", self.dimension, DIMENSIONS)
        if not isinstance(self.dimension, str):
            require_count("dimension", self.dimension, least=1, most=LARGEST_DIMENSION)
        if not 0 < self.slack < 1:
            raise InputError(f"slack must be in (0, 1), got {self.slack!r}")
        if self.zeta_2 not in ZETA_2:
            raise unknown_name("zeta_2", self.zeta_2, ZETA_2)
        if self.uncovered not in UNCOVERED:
            raise unknown_name("uncovered", self.uncovered, UNCOVERED)
        names = self.covered_parameters
        if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
            raise InputError(f"covered_parameters must be a list of names, got {names!r}")
        object.__setattr__(self, "covered_parameters", None if names is None else tuple(names))
        if self.shuffle and not self.clips_batch:
            raise InputError(
                "clips_batch must be true where shuffle is, got False: "
                "Theorem 6 speaks of sums that line 12 has clipped"
            )

    def reach(self) -> Reach:
        """Which permutations are drawn from."""
        return Reach(value_per_head=self.value_per_head, gated=self.gated, grouped=self.grouped_heads)

    @property
    def batch_clip(self) -> float:
        """The clipping norm of a batch over that of a record, c' / c; 1 where batches are not clipped."""
        return 1.0 if self.batch_clip_norm is None else self.batch_clip_norm / self.l2_clip_norm

    @property
    def falls_back(self) -> bool:
        """Whether the settled mechanism is DP-SGD with sigma_0, for all of the weights."""
        return self.covered_parameters == ()

    @property
    def is_shuffling(self) -> bool:
        """Whether the settled mechanism permutes."""
        return self.shuffle and bool(self.covered_parameters)

    def for_plan(self, plan: Plan) -> Self:
        """Lines 2, 3 and 11: with sigma, sigma_0, d and the covered parameters settled, or DP-SGD.

        Raises `InputError`: the plan has no budget where one is needed, or `covered_parameters` names others.
        `UnsupportedError`: the budget is in another currency than (epsilon, delta)-DP.
        """
        coverage = self._coverage(plan)
        covered = self.covered_parameters
        if covered is None:
            covered = coverage.covered
        for name in covered:
            if name not in coverage.covered:
                raise unknown_name("covered parameter", name, coverage.covered)
        settled = replace(self, dimension=self._dimension(coverage), covered_parameters=covered)
        sigma, sigma_0 = self.noise_multiplier, self.unshuffled_noise_multiplier
        if sigma_0 is None and sigma == 0:
            sigma_0 = 0.0
        needed = sigma is None or settled.uses_sigma_0(coverage)
        if sigma_0 is None and (needed or plan.budget is not None):
            sigma_0 = settled._calibrated(plan, 1)
        if sigma is None:
            sigma = settled._calibrated(plan, int(settled.dimension))
            if sigma_0 is not None and sigma >= sigma_0:
                covered = ()
        return replace(
            settled, noise_multiplier=sigma, unshuffled_noise_multiplier=sigma_0, covered_parameters=covered
        )

    def uses_sigma_0(self, coverage: Coverage) -> bool:
        """Whether some parameter of the settled mechanism gets sigma_0."""
        covered = self.covered_parameters or ()
        if not covered:
            return True
        return self.uncovered == "sigma_0" and len(covered) < coverage.parameters

    def noises(self, coverage: Coverage) -> dict[str, float]:
        """`"sigma"` and `"sigma_0"` of the settled mechanism, as far as some parameter gets it.

        Raises `InputError`: the mechanism is not settled.
        """
        used = {"sigma": self.noise_multiplier} if not self.falls_back else {}
        if self.uses_sigma_0(coverage):
            used["sigma_0"] = self.unshuffled_noise_multiplier
        return {name: settled_noise(noise) for name, noise in used.items()}

    def _coverage(self, plan: Plan) -> Coverage:
        return coverage_of(plan, self.reach())

    def _dimension(self, coverage: Coverage) -> int:
        if isinstance(self.dimension, int):
            return self.dimension
        return max(1, coverage.trainable if self.dimension == "trainable" else coverage.shuffled)

    def _calibrated(self, plan: Plan, dimension: int) -> float:
        """Line 2, or in one dimension line 3."""
        budget = dp_budget(plan, "shuffled_dp_sgd")
        return noise_multiplier_for(
            epsilon=budget.epsilon,
            delta=budget.delta,
            sampling_probability=plan.sampling_probability,
            steps=plan.steps,
            dimension=dimension,
            batch_clip=self.batch_clip,
            slack=self.slack,
            zeta_2=self.zeta_2,
        )

    def steps(self, plan: Plan, model: Model) -> ShuffledSteps:
        """Noisy sums, each update followed by a permutation."""
        return ShuffledSteps(self, plan, model)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Lines 7 to 13 and 16, not yet divided by |B|; before the permutation, and never released so.

        Raises `InputError`: the mechanism is not settled (`for_plan`).
        """
        return self.noisy(signals, generator)

    def noisy(
        self, signals: Signals, generator: torch.Generator, carry: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The noisy sum as in `privatise`, with the noise passed through `carry` before it is added.

        `signals`: the sample's. `generator`: source of the noise. `carry`: a permutation of the flat vector,
        of which the noise's law knows nothing. Raises `InputError`: the mechanism is not settled.
        """
        sigma, covered = self.noise_multiplier, self.covered_parameters
        if sigma is None or covered is None:
            raise InputError("noise_multiplier is not settled yet: call for_plan first")
        by_lines_12_and_13 = set(signals.layout if self.uncovered == "sigma" and covered else covered)
        parts = _parts(signals.layout, by_lines_12_and_13)
        sigma_0 = self.unshuffled_noise_multiplier
        if sigma_0 is None and not all(shuffled for _, shuffled in parts):
            raise InputError("unshuffled_noise_multiplier is not settled yet: call for_plan first")
        total = signals.weighted_sum(flat_factors(signals.norms(), self.l2_clip_norm))  # lines 6 to 10
        noise = gaussian_noise(total, self.l2_clip_norm, generator)
        for place, shuffled in parts:
            noise[..., place].mul_(sigma if shuffled or sigma_0 is None else sigma_0)  # lines 13 and 16
        released = noise if carry is None else carry(noise)
        if not self.clips_batch:
            return released.add_(total)
        factor = self._batch_factor(total, [place for place, shuffled in parts if shuffled])  # line 12
        for place, shuffled in parts:
            part = total[..., place]
            released[..., place].add_(part * factor if shuffled else part)
        return released

    def _batch_factor(self, total: Tensor, places: list[slice]) -> Tensor:
        """What line 12 multiplies the sum by, shape `(..., 1)`: 1 / max(1, |g| / c'), g in these places."""
        squares = torch.zeros(total.shape[:-1], dtype=wide_dtype(total.device), device=total.device)
        for place in places:
            part = total[..., place]
            squares += squared_norms(part.reshape(-1, part.shape[-1])).view(squares.shape)
        bound = self.batch_clip * self.l2_clip_norm
        return (bound / squares.sqrt()).clamp(max=1.0).to(total.dtype)[..., None]

    released_weights = staticmethod(released_weights)
    """Line 14 for an auditor; the step is eta_t times the result of `privatise`, over |B|."""

    def settings(self) -> Mapping[str, float]:
        """sigma, sigma_0, c, c', d, and as 0 or 1 whether the run falls back to DP-SGD, and clips batches."""
        sigma, sigma_0 = self.noise_multiplier, self.unshuffled_noise_multiplier
        return {
            "noise_multiplier": math.nan if sigma is None else sigma,
            "unshuffled_noise_multiplier": math.nan if sigma_0 is None else sigma_0,
            "l2_clip_norm": self.l2_clip_norm,
            "batch_clip_norm": self.batch_clip * self.l2_clip_norm,
            "dimension": math.nan if isinstance(self.dimension, str) else float(self.dimension),
            "falls_back": float(self.falls_back),
            "clips_batch": float(self.clips_batch and not self.falls_back),
        }

    def claim(self, plan: Plan) -> Claim:
        """What the authors claim: the budget; with a given sigma, the epsilon of their accountant.

        Without permutations, the epsilon of the bench's certified accountant at the budget's delta; none
        where no finite epsilon is found for so little noise. Raises `InputError`: there is no budget to read
        delta from. `UnsupportedError`: the budget is in another currency, or the samples are not Poisson.
        """
        return self._run(plan).claim()

    def accounted(self, plan: Plan, delta: float) -> dict[str, float]:
        """Epsilon of the run at delta by the authors' accountant, for each noise level that it uses.

        Returns under `"sigma"` and `"sigma_0"`, as far as some parameter gets it, each as if it were alone.
        Raises as `for_plan`; `InputError` where delta is outside (0, 1).
        """
        return self._run(plan).epsilons(delta)

    def _run(self, plan: Plan) -> AccountedRun:
        """What the claim is about."""
        settled, coverage = self.for_plan(plan), self._coverage(plan)
        return AccountedRun(
            plan=plan,
            coverage=coverage,
            sigma=settled.noise_multiplier,
            sigma_0=settled.unshuffled_noise_multiplier,
            noises=settled.noises(coverage),
            is_calibrated=self.noise_multiplier is None and self.unshuffled_noise_multiplier is None,
            shuffles=settled.shuffle,
            dimension=int(settled.dimension),
            batch_clip=settled.batch_clip,
            slack=settled.slack,
            zeta_2=settled.zeta_2,
        )


class ShuffledSteps(PrivatisedSums):
    """One run: the noisy sums of DP-SGD, and a fresh permutation after each update (line 14)."""

    def __init__(self, mechanism: ShuffledDPSGD, plan: Plan, model: Model) -> None:
        """Begin a run of a settled mechanism; permutations are drawn from the stream of the secret noise.

        Raises `UnsupportedError`: the plan has a gradient canary that is no record.
        """
        canary = plan.insertions.gradient_canary
        if canary is not None and canary.record is None:
            raise UnsupportedError(
                "shuffled_dp_sgd releases permuted weights, in which the coordinate of a gradient canary "
                "beside the records cannot be read; play the games of attack weight_tidying"
            )
        super().__init__(mechanism, plan, model)
        self._settled = mechanism
        group = PermutationGroup.of(model.module, mechanism.reach())
        self._shuffler = Shuffler(group, plan, shuffles=mechanism.is_shuffling)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Lines 6 to 13 and 16; the noise is carried along where it is to be."""
        if not self._settled.carry_noise:
            return super().privatise(signals, generator)
        return self._settled.noisy(
            signals, generator, carry=lambda noise: self._shuffler.carried.applied(noise, signals.layout)
        )

    def descend(self, learning_rate: float) -> None:
        """Lines 14 and 17: the optimizer's step, then the permutation."""
        super().descend(learning_rate)
        self._shuffler.shuffle(self._parameters, self._optimizer)

    def metrics(self) -> Mapping[str, float]:
        """Those of the `Shuffler`, and `least_noise_multiplier`: the smallest noise that some weight got."""
        noises = self._settled.noises(Coverage.of(self._shuffler.group))
        return {**self._shuffler.metrics(self._parameters), "least_noise_multiplier": min(noises.values())}


def _parts(layout: Layout, shuffled: set[str]) -> list[tuple[slice, bool]]:
    """The flat vector in stretches, each with whether it is among the shuffled parameters."""
    parts: list[tuple[slice, bool]] = []
    for name, (place, _) in layout.items():
        inside = name in shuffled
        if parts and parts[-1][1] == inside and parts[-1][0].stop == place.start:
            parts[-1] = (slice(parts[-1][0].start, place.stop), inside)
        else:
            parts.append((place, inside))
    return parts
