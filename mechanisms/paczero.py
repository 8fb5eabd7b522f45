"""PACZero: signs of subset means along random directions, and nats about which subset (Ertan et al. 2026).

Source: Ertan, Zhu, Nguyen, van Dijk and Devadas 2026, "PACZero: PAC-Private Fine-Tuning of Language Models
via Sign Quantization", Algorithm 1 with its appendices. M public candidate subsets of the universe U; the
secret is one of them, j*, drawn uniformly; p_1 = 1 / M. The lines of Algorithm 1, of step t, and where they
stand:

     1  inputs: theta, posterior p_t over the candidates, budget beta_t                        `PACZero`
     2  draw a public direction z                                         `workbench.training.zeroth_order`
     4  g_i = (loss_i(theta + mu z) - loss_i(theta - mu z)) / (2 mu)      for each i in U
     5  g_i = clip(g_i, c)                                                         `SubsetBits.coefficients`
     7  s_m = sign(mean of g_i over S_m)                                  for each m      `signs_of_means`
     8  q = p_t's weight on the candidates with s_m = +1                         `SubsetReleases.release`
     9  if q is 0 or 1:
    10      Y = s_j*                                                      free of charge, p_t+1 = p_t
    11  else, PACZero-MI:                                                 (PACZero-ZPL: Y = a fair coin)
    12      sigma such that V = s_j* + N(0, sigma^2) tells beta_t about j*             `PacZeroLedger.charge`
    13      Y = sign V
    14      p_t+1 = p_t given V                                                       `PacZeroLedger.observe`
    16  theta <- (1 - eta lambda) theta - eta Y z                         `workbench.training.zeroth_order`

The ledger is `workbench.mechanisms.accountants.paczero`, the calibration
`workbench.mechanisms.accountants.shared.binary_channel`; the secret is read in `SecretSubset` alone.
`variant="hybrid"` is section 6's "budget-then-ZPL".

What the guarantee is about: *which* candidate was the secret, all of U being public, to the adversary as
well. On unanimous steps, all of U's records move the weights. So records of U can be told from fresh ones,
at 0 nats about j* as at any other number.

Where the paper is open, or says two things:

- Unanimity is q in {0, 1} in Algorithm 1, within 1e-12 of it in appendix C (`tolerance`). On a step within
  the tolerance the candidates do not all agree, and the secret's own sign is released as it is
  (`unanimous_release="secret"`): if it is the odd one out (which has probability below 1e-12, if the
  posterior is right) that sign shows it, the posterior is not told, and so it goes on in the steps after.
  The paper bounds this by h(1e-12) a step and counts it as nothing; so does the ledger here. `"majority"`
  releases the sign of the posterior's greater part: a public function of the past, which leaks 0 nats at
  any tolerance, up to 1/2, where no step is noised or tossed at all. That this should be private shows how
  little 0 nats about j* say.
- The posterior of PACZero-MI never excludes a candidate, since Gaussian noise excludes nothing, and of ZPL
  it never moves. So in exact arithmetic unanimity always means that all M agree, whatever the posterior has
  learnt, and an inherited posterior raises the hybrid's unanimity rate only by the tolerance. The ledger
  keeps logarithms: no candidate is lost to underflow.
- The cap of 0.999 h(q) on the budget is in section 3.1 and appendix C, not in Algorithm 1's box, whose
  calibration then may have no solution: an error here (`capped=False`).
- The budget is said to depend "only on the public transcript", yet q, sigma and beta depend on the noisy
  values V, of which only signs are released. The proof charges for the values (`posterior="values"`), so
  the bound holds; but whoever sees bits alone cannot work out q, sigma or which steps were unanimous.
  `posterior="bits"` conditions on what is released; everything but j* and the noise is then public. A
  release is charged as its value in both cases, and the bound holds in both.
- Lemma 2 has a step leak exactly beta. A calibration is a number, and a rounded one leaks a little more or
  less. `quadrature="certified"` takes noise whose information is proven to be at most beta, "gauss-hermite"
  appendix C's 60 nodes. beta is charged in both cases.
- beta = 0 on disagreement, where the budget is spent (or is 0): BinaryMI^-1 is infinite there, and the
  release a coin. So MI at 0 nats is ZPL, bit for bit.
- Eq. 6 divides by T - t + 1, section 3.1's uniform allocation by T; with K directions each release has a
  K-th of that, and what a unanimous one leaves over goes to later steps, not to its own step's others. In
  the hybrid T is `mi_steps`, and the sum of the charges is at most the total on every path, to the last
  bit.
- K directions (appendix M): it is left open whether the posterior moves between a step's releases. Here it
  does (`within_step="sequential"`), which conditions each release on all before it, as Eq. 3 does;
  `"joint"` updates after the last. The update is the mean of the K bits times their directions.
- Subsets. Section 2 puts each record in exactly M / 2 of the candidates and does not say how; figure 1
  calls them "random subsets". `subsets="pairs"` (halves and their complements) meets section 2. `"halves"`
  (independent ones) does not: a record is in about M / 2, and the prior of its membership is not exactly
  1/2.
- M is 128 for MI and 126 for ZPL "for implementation reasons" (appendix L); here 128 unless told.
- sign(0) = +1, for means and for noisy values (appendix C). Scalars are clipped before the mean (line 5).
- Line 13 adds noise and line 16 moves by the sign: the value itself moves nothing.
- Dev-best (section 4.1) is post-processing if the dev records are public and are no part of U: those of
  `Plan.dev` are taken for such. Weight decay (line 16, 0 in the paper's runs) is the plan's.
- Algorithm 1 runs over all of U in each step: plans need `sampling_probability` 1.

Index, noise and coins come from the plan's secret stream; subsets and directions from `public_seed`, which
is spawned from the plan's where none is given. That keeps the streams independent; but plan seeds are small
numbers, and whoever tries them out against the directions learns the secret. So a release to a real
adversary wants a plan seed too large to be tried out, kept secret, and a `public_seed` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self, cast

import numpy as np

from workbench.accounting import MutualInformation
from workbench.core.arguments import require_count
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.games.subset.play import SubsetMechanism, SubsetRelease
from workbench.interfaces import (
    AuditDefaults,
    BoolArray,
    Capabilities,
    Claim,
    Currency,
    FloatArray,
    IntArray,
    Model,
    Plan,
    Release,
    Released,
    Secret,
)
from workbench.mechanisms.accountants.paczero import CHOICES, TOLERANCE, Charge, LedgerOptions, PacZeroLedger
from workbench.mechanisms.shared.candidate_subsets import (
    SCHEMES,
    Signs,
    candidate_subsets,
    check_subset_count,
    signs_of_means,
)
from workbench.training.fine_tuning import Seeds, check_plan
from workbench.training.subject import TrainedSubject
from workbench.training.zeroth_order import ZerothOrderMechanism, ZerothOrderSteps

Watch = Callable[[SubsetRelease], None]

_CHOICES = {
    "variant": ("mi", "zpl", "hybrid"),
    "subsets": SCHEMES,
    "allocation": ("adaptive", "uniform"),
    "posterior": CHOICES["conditioned_on"],
    "within_step": CHOICES["within_step"],
    "unanimous_release": ("secret", "majority"),
    "quadrature": CHOICES["quadrature"],
}


@register("mechanism", "paczero")
@dataclass(frozen=True, kw_only=True)
class PACZero(ZerothOrderMechanism, SubsetMechanism):
    """PACZero: one bit a step, the sign of a secret subset's mean, and nats about which subset (Ertan 2026).

    Attributes:
        variant: `"mi"` spends a budget of nats, `"zpl"` none, `"hybrid"` in its first `mi_steps` only.
        subset_count: M, even, 2 to 65,536.
        subsets: `"pairs"` or `"halves"`.
        clip: c > 0, bound of a record's scalar; infinite for none.
        allocation: `"adaptive"` (Eq. 6) or `"uniform"`.
        tolerance: Distance of q from 0 or 1 that counts as unanimity, in [0, 1/2].
        capped: Whether a step's budget is capped at 0.999 h(q).
        posterior: What it is conditioned on: `"values"` or `"bits"`.
        within_step: When it moves, with several directions: `"sequential"` or `"joint"`.
        unanimous_release: `"secret"` or `"majority"`.
        mi_steps: Steps of the hybrid's first part; None for the other variants.
        quadrature: `"certified"` or `"gauss-hermite"`.

    Raises `InputError`: a parameter is out of range.
    """

    variant: str = "mi"
    subset_count: int = 128
    subsets: str = "pairs"
    clip: float = math.inf
    allocation: str = "adaptive"
    tolerance: float = TOLERANCE
    capped: bool = True
    posterior: str = "values"
    within_step: str = "sequential"
    unanimous_release: str = "secret"
    mi_steps: int | None = None
    quadrature: str = "certified"

    @property
    def capabilities(self) -> Capabilities:
        """Bits, and nats about which candidate subset was trained on."""
        return replace(
            super().capabilities,
            currency=Currency.SUBSET_NATS,
            releases=frozenset({Release.BITS}),
        )

    def audit_defaults(self) -> AuditDefaults:
        """Hundreds of trainings of a small network on a universe of about 128 digits.

        Outside the claim one longer training on the same universe. A ledger that conditions on the released
        bits promises nothing about the values behind them.
        """
        view = "bits" if self.conditions_on_bits else "values"
        return AuditDefaults(
            number=0.0 if self.variant == "zpl" else 0.33,
            settings={
                "corpus": "digits",
                "corpus_parameters": {},
                "model": "digits_mlp",
                "model_parameters": {},
                "candidates": 256,
                "steps": 100,
                "sampling_probability": 1.0,
                "learning_rate": 3e-3,
                "control_mechanism": "mezo",
                "control_learning_rate": 1e-2,
                "members": {"steps": 4000},
                "attacks": ("subset_posterior", "loss"),
            },
            attack_parameters={"subset_posterior": {"view": view, "trials": 400, "counted": 2000}},
        )

    @property
    def conditions_on_bits(self) -> bool:
        """Whether the ledger conditions on the released bits alone."""
        return self.posterior == "bits"

    @property
    def agreed(self) -> str:
        """Whose sign is released on unanimity."""
        return self.unanimous_release

    @property
    def reads_dev(self) -> bool:
        """Whether checkpoints are chosen by dev records."""
        return bool(self.dev_every)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        check_subset_count(self.subset_count)
        if not self.clip > 0:
            raise InputError(f"clip must be > 0, got {self.clip!r}")
        if not 0 <= self.tolerance <= 0.5:
            raise InputError(f"tolerance must be in [0, 1/2], got {self.tolerance!r}")
        if (self.mi_steps is None) == (self.variant == "hybrid"):
            state = "given" if self.variant == "hybrid" else "left out"
            raise InputError(f"mi_steps must be {state} for variant {self.variant!r}, got {self.mi_steps!r}")
        if self.mi_steps is not None:
            require_count("mi_steps", self.mi_steps, least=1)

    def settings(self) -> Mapping[str, float]:
        """M, of which the posterior's entropy is at most the logarithm."""
        return {"subset_count": float(self.subset_count)}

    def for_plan(self, plan: Plan) -> Self:
        """The mechanism with a public seed, after the plan is checked.

        Raises `InputError`: the plan does not train on all its records in each step, or lacks or has a
        budget. `UnsupportedError`: the budget is in another currency than nats about the candidate subset.
        """
        self._total_nats(plan)
        if plan.sampling_probability != 1:
            raise InputError(
                "sampling_probability must be 1 for paczero, whose steps run over the whole universe, got "
                f"{plan.sampling_probability!r}"
            )
        if self.mi_steps is not None and self.mi_steps > plan.steps:
            raise InputError(f"mi_steps must be at most the plan's {plan.steps} steps, got {self.mi_steps}")
        return replace(self, public_seed=self.seed_of(plan))

    def _total_nats(self, plan: Plan) -> float:
        """MI_tot."""
        budget = plan.budget
        if budget is None:
            if self.variant != "zpl":
                raise InputError(f"variant {self.variant!r} of paczero needs a budget in nats, got none")
            return 0.0
        if not isinstance(budget, MutualInformation) or budget.secret is not Secret.SUBSET:
            raise UnsupportedError(
                "paczero's budget is in nats of mutual information about the candidate subset, "
                f"not {budget.describe()}"
            )
        if self.variant == "zpl" and budget.nats > 0:
            raise InputError(
                f"variant 'zpl' of paczero spends nothing; its budget must be 0, got {budget.nats:g}"
            )
        return budget.nats

    def ledger(self, plan: Plan) -> PacZeroLedger:
        """A fresh ledger for the plan. Raises as `for_plan`."""
        return PacZeroLedger(
            total_nats=self._total_nats(plan),
            steps=plan.steps,
            candidates=self.subset_count,
            variant="zpl" if self.variant == "zpl" else "mi",
            allocation=cast(Literal["adaptive", "uniform"], self.allocation),
            capped=self.capped,
            tolerance=self.tolerance,
            options=LedgerOptions(
                directions=self.directions,
                within_step=self.within_step,
                conditioned_on=self.posterior,
                mi_steps=self.mi_steps,
                quadrature=self.quadrature,
            ),
        )

    def candidate_subsets(self, plan: Plan) -> BoolArray:
        """Which records each candidate holds, shape `(M, N)`; public, and the same for every secret.

        Raises `InputError`: the plan has fewer than two records.
        """
        return candidate_subsets(
            self.subsets, count=self.subset_count, records=len(plan.records), seed=self.seed_of(plan)
        )

    def steps(
        self, plan: Plan, model: Model, secret: int | None = None, watch: Watch | None = None
    ) -> SubsetBits:
        """The bits of one run; `secret` and `watch` as in `train_on`."""
        return SubsetBits(self, plan, model, secret=secret, watch=watch)

    def train_on(
        self,
        plan: Plan,
        *,
        secret: int | None = None,
        watch: Watch | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> TrainedSubject:
        """Train with a given candidate as the secret, in [0, M); None to draw it as `train` does.

        `watch` is called with each release; watching changes no number. Raises `InputError`: the index is out
        of range. Else as `train`. `UnsupportedError, InconclusiveError`: as `train`.
        """
        check_plan(plan)
        if secret is not None and not 0 <= secret < self.subset_count:
            raise InputError(f"secret must be in [0, {self.subset_count}), got {secret}")
        settled = self.for_plan(plan)
        return settled.trained(
            plan, self.claim(plan), progress, lambda plan, model: settled.steps(plan, model, secret, watch)
        )

    def claim(self, plan: Plan) -> Claim:
        """Theorem 3's total, or Theorem 5's nothing, about the secret subset. Raises as `for_plan`."""
        self.for_plan(plan)
        zero = self.variant == "zpl"
        source = {"mi": "Theorem 3", "zpl": "Theorem 5", "hybrid": "section 6, the hybrid schedule"}
        return Claim(
            guarantee=MutualInformation(nats=self._total_nats(plan), secret=Secret.SUBSET),
            about=Secret.SUBSET,
            released=Released.EVERY_UPDATE,
            source=f"Ertan et al. 2026 (PACZero), {source[self.variant]}",
            assumptions=(
                "the secret is one of the candidates, each as likely; universe, candidates and directions "
                "are public, and drawn without regard to it",
                "nats are an average over which candidate it is: they bound no worst case, and are no "
                "epsilon of differential privacy",
                *(
                    []
                    if zero
                    else ["the Gaussian noise is ideal, as are sums and logarithms of probabilities"]
                ),
                *self._notes(),
            ),
        )

    def _notes(self) -> list[str]:
        """Assumptions that only some settings make."""
        notes = []
        if self.variant != "zpl" and self.tolerance > 0 and self.unanimous_release == "secret":
            notes.append(
                f"releases at a posterior within {self.tolerance:g} of unanimity count as 0 nats, "
                f"and not as the entropy of {self.tolerance:g} (appendix C)"
            )
        if (
            self.variant == "zpl"
            and self.tolerance * self.subset_count >= 1
            and self.unanimous_release == "secret"
        ):
            notes.append(
                f"a tolerance of {self.tolerance:g} calls {self.subset_count} candidates unanimous that are "
                "not, and shows the secret's sign"
            )
        if self.variant != "zpl" and self.quadrature == "gauss-hermite":
            notes.append("60 nodes of Gauss-Hermite quadrature evaluate Eq. 4 (appendix C)")
        if self.subsets == "halves":
            notes.append(
                "candidates are independent halves: a record is in about half of them, not exactly, which "
                "Corollary 4's prior of 1/2 wants"
            )
        if self.dev_every:
            notes.append(
                "the dev records, by which a checkpoint is chosen, are public and no part of the universe"
            )
        return notes


class SubsetBits(ZerothOrderSteps):
    """One run: lines 5 to 15; the engine of zeroth-order training does the others."""

    def __init__(
        self,
        mechanism: PACZero,
        plan: Plan,
        model: Model,
        *,
        secret: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Draw the secret, unless its index is given (the noise is the same either way); start the ledger.

        Raises `InputError`: as `ZerothOrderSteps`. `UnsupportedError`: the plan has a gradient canary.
        """
        super().__init__(mechanism, plan, model)
        if plan.insertions.gradient_canary is not None:
            raise UnsupportedError(
                "paczero releases signs of subset means, in which no gradient canary can be read; its own "
                "game is that of attack subset_posterior"
            )
        self._clip, self._watch = mechanism.clip, watch
        subsets = mechanism.candidate_subsets(plan)
        self._held: FloatArray = subsets.astype(np.float64)
        index_seed, noise_seed = Seeds.of(plan).noise.spawn(2)
        drawn = int(np.random.default_rng(index_seed).integers(len(subsets)))
        self._releases = SubsetReleases(
            mechanism.ledger(plan),
            SecretSubset(drawn if secret is None else secret),
            np.random.default_rng(noise_seed),
            unanimous_release=mechanism.unanimous_release,
        )
        self._unanimous = 0
        self._released = 0

    def coefficients(self, differences: FloatArray, sample: IntArray) -> FloatArray:
        """Lines 5 to 15 for each direction: the released bits.

        Raises `InputError`: the sample is not the whole universe, or an uncapped budget has no noise.
        """
        if len(sample) != len(self.plan.records):
            raise InputError(
                f"sampling_probability must be 1 for paczero, got a step of {len(sample)} of "
                f"{len(self.plan.records)} records"
            )
        scalars = np.empty_like(differences)
        scalars[sample] = np.clip(differences, -self._clip, self._clip)  # line 5
        signs = signs_of_means(self._held, scalars)  # line 7
        releases = []
        for direction in range(scalars.shape[1]):
            release = self._releases.release(signs[:, direction])  # lines 8 to 15
            releases.append(release)
            if self._watch is not None:
                self._watch(
                    SubsetRelease(
                        step=self.done - 1,
                        direction=direction,
                        differences=scalars[:, direction].copy(),
                        signs=signs[:, direction].copy(),
                        noise=release.charge.noise,
                        budget_nats=release.charge.budget_nats,
                        value=release.value,
                        bit=release.bit,
                    )
                )
        self._note(releases)
        return np.array([release.bit for release in releases], dtype=np.float64)

    def _note(self, releases: list[SignRelease]) -> None:
        """The step's traces, means over its directions."""
        ledger, charges = self._releases.ledger, [release.charge for release in releases]
        self._unanimous += sum(charge.unanimous for charge in charges)
        self._released += len(charges)
        self.trace("agreement", float(np.mean([charge.agreement for charge in charges])))
        self.trace("unanimous", float(np.mean([charge.unanimous for charge in charges])))
        self.trace("noise", float(np.mean([charge.noise for charge in charges])))
        self.trace("bit", float(np.mean([release.bit for release in releases])))
        self.trace("budget_used", ledger.used_nats)
        self.trace("posterior_entropy", ledger.entropy_nats)

    def metrics(self) -> Mapping[str, float]:
        """Share of releases that were unanimous, nats charged, and `best_step`."""
        return {
            **super().metrics(),
            "unanimity_rate": self._unanimous / self._released if self._released else math.nan,
            "nats_used": self._releases.ledger.used_nats,
        }


class SecretSubset:
    """The index of the secret subset, and the one place where it is read.

    All else that decides about a release is public, or at least a function of past releases and their noise.
    `reads`: how often it was looked at.
    """

    def __init__(self, index: int) -> None:
        self.__index = index
        self.reads = 0

    def sign(self, signs: Signs, charge: Charge) -> int:
        """The secret's sign, for a release that was charged as this.

        Raises `InputError`: the release is a coin, which may depend on no secret.
        """
        if math.isinf(charge.noise):
            raise InputError(
                f"noise must be finite where the secret's sign is asked for, got {charge.noise!r}"
            )
        self.reads += 1
        return int(signs[self.__index])


@dataclass(frozen=True, kw_only=True)
class SignRelease:
    """A released sign, and what it cost.

    Attributes:
        charge: What the ledger says of it.
        value: The secret's sign with its noise; the bit itself where there is none, NaN for a coin.
        bit: -1 or 1.
    """

    charge: Charge
    value: float
    bit: int


class SubsetReleases:
    """Charges and releases, one after the other."""

    def __init__(
        self,
        ledger: PacZeroLedger,
        secret: SecretSubset,
        generator: np.random.Generator,
        *,
        unanimous_release: str = "secret",
    ) -> None:
        """Begin a run.

        Args:
            ledger: A fresh one.
            secret: Which candidate is trained on.
            generator: Of the noise and the coins; as secret as the index.
            unanimous_release: `"secret"`: on unanimity the secret's sign, as printed; `"majority"`: the sign
                that has more of the posterior, which looks at no secret.
        """
        self.ledger = ledger
        self._secret, self._generator, self._unanimous = secret, generator, unanimous_release

    def release(self, signs: Signs) -> SignRelease:
        """Lines 8 to 15 for one direction.

        `signs`: of every candidate, -1 or 1, shape `(M,)`. Raises `InputError`: as `PacZeroLedger.charge`.
        """
        charge = self.ledger.charge(signs.astype(np.float64))  # lines 8 and 12
        if charge.unanimous:  # line 9
            return self._agreed(signs, charge)
        if math.isinf(charge.noise):  # Eq. 8, PACZero-ZPL: of neither secret nor data.
            return SignRelease(charge=charge, value=math.nan, bit=self._coin())
        noise = charge.noise * float(self._generator.standard_normal())
        value = self._secret.sign(signs, charge) + noise  # line 13
        self.ledger.observe(signs.astype(np.float64), value)  # line 14
        return SignRelease(charge=charge, value=value, bit=_sign(value))

    def _agreed(self, signs: Signs, charge: Charge) -> SignRelease:
        """Line 10."""
        if self._unanimous == "majority":
            bit = _sign(2.0 * charge.agreement - 1.0)
        else:
            bit = self._secret.sign(signs, charge)
        return SignRelease(charge=charge, value=float(bit), bit=bit)

    def _coin(self) -> int:
        return 1 - 2 * int(self._generator.integers(2))


def _sign(value: float) -> int:
    """With sign(0) = +1 (appendix C)."""
    return 1 if value >= 0 else -1
