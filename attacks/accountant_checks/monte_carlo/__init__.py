"""Monte Carlo verdicts about a claimed (epsilon, delta): any mechanism that gives samples and log-densities.

A pair of neighbours gives outputs of the one and log-densities of both; delta(epsilon) is a mean, estimated
with a confidence interval that holds at every sample size. Each claim is judged in both directions of the
pair, each with half of the allowed error. `pair_of` makes the pair of an event, with exponential tilts that
reach deltas far below 1 / n; a user's own pair is any object with `sample`, `log_density_p` and
`log_density_q`, and `swapped` for its other direction.

One pair refutes a claim about all pairs; it never proves one. NOT_REFUTED is not "private".

>>> import numpy as np
>>> from workbench.accounting.events import Gaussian
>>> pair = pair_of(Gaussian(noise_multiplier=1.0))
>>> finding = judge_claim(pair, 1.0, 1e-3, n=10_000, rng=np.random.default_rng(1))
>>> str(finding.verdict)
'REFUTED'
"""

from __future__ import annotations

from workbench.attacks.accountant_checks.monte_carlo.estimates import (
    DeltaEstimate,
    IntervalMethod,
    MeanInterval,
    ProposesSamples,
    estimate_delta,
    mean_interval,
)
from workbench.attacks.accountant_checks.monte_carlo.events import (
    Direction,
    ProductPair,
    pair_of,
    permuted_gaussians,
)
from workbench.attacks.accountant_checks.monte_carlo.judging import (
    ClaimTest,
    Scope,
    estimate_both,
    judge_claim,
    measure_claim,
)
from workbench.attacks.accountant_checks.monte_carlo.mixtures import MixturePair, VectorMixturePair
from workbench.attacks.accountant_checks.monte_carlo.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    PairOfNeighbours,
    Swappable,
    random_direction,
)

__all__ = [
    "ClaimTest",
    "DeltaEstimate",
    "Direction",
    "DiscretePair",
    "GaussianPair",
    "IntervalMethod",
    "LaplacePair",
    "MeanInterval",
    "MixturePair",
    "PairOfNeighbours",
    "ProductPair",
    "ProposesSamples",
    "Scope",
    "Swappable",
    "VectorMixturePair",
    "estimate_both",
    "estimate_delta",
    "judge_claim",
    "mean_interval",
    "measure_claim",
    "pair_of",
    "permuted_gaussians",
    "random_direction",
]
