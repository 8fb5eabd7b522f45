"""Claims of Shuffled DPSGD and DP-Weights by Monte Carlo: samples and densities of one pair of neighbours.

The same two claims are checked by certified computation in their papers' files; nothing here reads a bound
from there, so that each method stands for itself. Samples are fixed in number before the first is drawn.
"""

from __future__ import annotations

import math

import numpy as np

from workbench.attacks.accountant_checks.monte_carlo import GaussianPair, judge_claim, permuted_gaussians
from workbench.attacks.claim_checks.dp_weights.statements import (
    EXPERIMENTS,
    leave_one_out_distance,
    noise_scales,
)
from workbench.attacks.claim_checks.shared.claims import ball, in_balls, setting
from workbench.attacks.claim_checks.shuffled_dp_sgd.statements import claimed_delta
from workbench.core.registry import register
from workbench.interfaces.findings import Finding

CONFIDENCE = 0.999


@register("claim_check", "shuffled_theorem_6_sampled")
@setting(
    "two adjacent queries of norms 2 and 1 along (1, -1), within c' = 2 and c = 1 apart; the adversary knows "
    "both and sees one noisy vector in random order, in both of its dimensions; intervals at 99.9 %"
)
@in_balls
def shuffled_pair(*, seed: int = 2026, samples: int = 1_000_000, scale: float = 1.0) -> Finding:
    """Theorem 6 for the pair that its proof calls the worst, by samples of the shuffled vectors themselves.

    Args:
        seed: Of the samples.
        samples: In each direction of the pair.
        scale: Multiplies the claimed delta.
    """
    long, short = 2 / math.sqrt(2), 1 / math.sqrt(2)
    pair = permuted_gaussians((long, -long), (short, -short), standard_deviation=3.0)
    claimed = scale * float(claimed_delta(ball("0.1"), ball(3), 2, ball(2)))
    rng = np.random.default_rng(seed)
    return judge_claim(pair, 0.1, min(claimed, 1.0), n=samples, rng=rng, confidence=CONFIDENCE)


@register("claim_check", "dp_weights_guarantee_sampled")
@setting(
    "one record left out of the experiments' training, which moves one weight by the distance that the "
    "sensitivity's check finds; the adversary sees the noised weight; delta 1e-6; intervals at 99.9 %"
)
@in_balls
def noised_weight(*, seed: int = 2026, samples: int = 20_000, scale: float = 1.0) -> Finding:
    """Section 8.1.5's guarantee at epsilon 1, by samples of the noised weight.

    Args:
        seed: Of the samples.
        samples: In each direction of the pair.
        scale: Multiplies the noise, which is the larger of the two printed forms.
    """
    delta = float(EXPERIMENTS.delta)
    forms = noise_scales(EXPERIMENTS.claimed_sensitivity, ball("1"), EXPERIMENTS.delta)
    noise = scale * max(map(float, forms))
    pair = GaussianPair(
        shift=(float(leave_one_out_distance(EXPERIMENTS, EXPERIMENTS.batch_size)),), standard_deviation=noise
    )
    rng = np.random.default_rng(seed)
    return judge_claim(pair, 1.0, delta, n=samples, rng=rng, confidence=CONFIDENCE)
