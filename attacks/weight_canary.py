"""The weight canary: a white-box audit of finished weights that were noised once.

A canary record whose effect on the weights is as large as clipping allows is in half of many trainings, each
of which is one trial (`workbench.games.weights`). Three canaries:

- "coordinate": a record whose gradient lies in one weight (the Dirac canary of Nasr et al. 2023): after
  clipping it adds C to that weight's sum in every step that it takes part in.
- "spread": the same gradient in every weight, C / sqrt(d) each. A step that is linear in the gradient moves
  the weights no further for it; one that divides by the gradient's size, such as Adam's, moves each weight.
- "record": a real record that no other resembles. An image is all bright and bears the next label; a text
  repeats one rare word. Its gradient is what the model says.

Two statistics, both learned on the adversary's own references:

- "vector": the projection of the released weights on the difference of the references' means, each weight
  divided by its variance (the noise's, which is public, plus what the batches' order makes of it). Where the
  order hardly matters this is the Neyman-Pearson statistic of N(w_in, s^2 I) against N(w_out, s^2 I).
- "coordinate": the one weight whose means lie furthest apart in its standard deviations; what a guarantee per
  weight speaks of.

Sources: Nasr et al. 2021, "Adversary instantiation: lower bounds for differentially private machine learning"
(crafted gradients, repeated trainings); Nasr et al. 2023, "Tight auditing of differentially private machine
learning" (Dirac canary). The linear discriminant with independent coordinates is Fisher's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.accounting import ApproximateDP
from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.estimation.judge import judge
from workbench.estimation.one_run import coin_sample_size, perfect_guesses_bound
from workbench.execution.tasks import silent
from workbench.games.weights import WeightsAttack, WeightsGame, WeightsSeen, play_weights
from workbench.interfaces import (
    Claim,
    Evidence,
    FloatArray,
    GradientCanary,
    Mechanism,
    Plan,
    Record,
    Scores,
    Verdict,
)
from workbench.training.crafts import RARE_WORD

CANARIES = ("spread", "coordinate", "record")
STATISTICS = ("vector", "coordinate")


@register("attack", "weight_canary")
class WeightCanary(WeightsAttack):
    """White-box audit of noised finished weights: one canary record, many trainings (Nasr et al. 2021).

    Attributes:
        canary: `"spread"`, `"coordinate"` or `"record"`.
        statistic: `"vector"` or `"coordinate"`.
        trials: Number of independent trainings that are judged.
        references: Number of the adversary's own trainings with the canary, and again without.
        magnitude: Raw gradient norm of a gradient canary, far above any clipping norm in use.

    Raises:
        InputError: a parameter is out of range.
    """

    def __init__(
        self,
        *,
        canary: str = "spread",
        statistic: str = "vector",
        trials: int = 200,
        references: int = 16,
        magnitude: float = 100.0,
    ) -> None:
        if canary not in CANARIES:
            raise unknown_name("canary", canary, CANARIES)
        if statistic not in STATISTICS:
            raise unknown_name("statistic", statistic, STATISTICS)
        if not 0 < magnitude < math.inf:
            raise InputError(f"magnitude must be finite and > 0, got {magnitude!r}")
        self.canary = canary
        self.statistic = statistic
        self.trials = whole_number("trials", trials, least=20)
        self.references = whole_number("references", references, least=2)
        self.magnitude = magnitude

    def insert(self, plan: Plan, generator: np.random.Generator) -> tuple[Plan, str]:
        """The plan with the canary in the place of its last record, and that record's id."""
        chosen = plan.records[-1]
        if self.canary == "record":
            return replace(plan, records=(*plan.records[:-1], _odd_one(chosen, plan.records))), chosen.id
        canary = GradientCanary(
            coordinate=int(generator.integers(2**31)),
            magnitude=self.magnitude,
            record=chosen.id,
            spread=0 if self.canary == "spread" else 1,
        )
        return replace(plan, insertions=replace(plan.insertions, gradient_canary=canary)), chosen.id

    def score(self, seen: WeightsSeen, generator: np.random.Generator) -> Scores:
        """The statistic of each released vector of weights; higher means that the canary took part.

        Args:
            seen: Released weights of shape `(n, d)`, and references of shape `(m, d)` with and without the
            canary. generator: Not used.

        Returns:
            Scores with `mean_distance` (between the references' means), `noise_scale` and `mu_expected`
            (how many standard deviations of the statistic the two kinds should lie apart).

        Raises:
            InputError: a kind of reference is missing.
        """
        inside = seen.included
        if min(np.sum(inside), np.sum(~inside)) < 2:
            raise InputError("weight_canary needs two references with the canary and two without")
        means = [seen.references[kind].mean(0) for kind in (inside, ~inside)]
        shift = means[0] - means[1]
        variance = seen.noise_scale**2 + _pooled_variance(seen.references, inside)
        direction, expected = _direction(shift, variance, largest_only=self.statistic == "coordinate")
        details = {
            "mean_distance": float(np.linalg.norm(shift)),
            "noise_scale": seen.noise_scale,
            "mu_expected": expected,
        }
        return Scores(values=(seen.values - (means[0] + means[1]) / 2) @ direction, details=details)


def _pooled_variance(weights: FloatArray, inside: np.ndarray) -> FloatArray:
    """Variance of each weight within the two kinds, shape `(d,)`."""
    squares = sum(((weights[kind] - weights[kind].mean(0)) ** 2).sum(0) for kind in (inside, ~inside))
    pooled: FloatArray = np.asarray(squares, dtype=np.float64) / (len(weights) - 2)
    return pooled


def _direction(shift: FloatArray, variance: FloatArray, *, largest_only: bool) -> tuple[FloatArray, float]:
    """What released weights are projected on, and the distance that it should show, in deviations."""
    spread = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
    apart = shift / spread
    if largest_only:
        best = int(np.argmax(np.abs(apart)))
        direction = np.zeros_like(shift)
        direction[best] = np.sign(shift[best]) / spread[best]
        return direction, float(abs(apart[best]))
    return apart / spread, float(np.linalg.norm(apart))


def _odd_one(record: Record, records: Sequence[Record]) -> Record:
    """The record made unlike every other; it keeps its id."""
    if record.image is None:
        return replace(record, text=RARE_WORD * max(8, len(record.text) // len(RARE_WORD)))
    labels = {other.label for other in records if other.label is not None}
    label = None if record.label is None else (record.label + 1) % (max(labels) + 1)
    return replace(record, image=(1.0,) * len(record.image), label=label)


@dataclass(frozen=True, kw_only=True)
class WeightAudit:
    """An audit of finished weights.

    Attributes:
        evidence: Scores and labels, in their game.
        verdict: The judge's.
        epsilon_reachable: What a perfect attack would have shown with as many trials; NaN where the claim is
            not of (epsilon, delta)-DP.
    """

    evidence: Evidence
    verdict: Verdict
    epsilon_reachable: float


def audit_weights(
    mechanism: Mechanism,
    plan: Plan,
    attack: WeightCanary,
    *,
    claim: Claim | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[int, int], None] = silent,
) -> WeightAudit:
    """Play the weights game against a mechanism and judge its claim.

    Args:
        plan: Data of N records, the last of which is the canary's place; the plan of the world with it.
        claim: The claim under audit; None for the mechanism's own.
        confidence: One-sided; a true claim is refuted with probability at most `1 - confidence`.
        progress: Told of each training that is done.

    Raises:
        InputError: the plan is unusable.
        UnsupportedError: the claim is not one that this game tests.
    """

    drawn, scored, judged = (np.random.default_rng(own) for own in np.random.SeedSequence(seed).spawn(3))
    with_canary, canary = attack.insert(plan, drawn)
    tested = mechanism.claim(with_canary) if claim is None else claim
    played = play_weights(
        mechanism,
        with_canary,
        canary=canary,
        trials=attack.trials,
        references=attack.references,
        seed=seed,
        progress=progress,
    )
    scores = attack.score(played.observations, scored)
    evidence = Evidence(
        scores=scores.values,
        members=played.included,
        game=WeightsGame().terms(with_canary, canary=canary, references=attack.references),
        attack=f"weight_canary ({attack.canary} canary, {attack.statistic} statistic)",
        seeds={"audit": seed},
        details=scores.details,
    )
    verdict = judge(tested, evidence, confidence=confidence, generator=judged)
    reachable = math.nan
    if isinstance(tested.guarantee, ApproximateDP):
        size, prior = coin_sample_size(int(played.included.sum()), int((~played.included).sum()))
        reachable = perfect_guesses_bound(size, prior, tested.guarantee.delta, 1.0 - confidence)
    return WeightAudit(evidence=evidence, verdict=verdict, epsilon_reachable=reachable)
