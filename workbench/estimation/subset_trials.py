"""Lower bounds from independent trainings on secret candidate subsets: of right guesses, and of nats.

In each trial one of M candidates, j, is the secret, drawn uniformly, and an adversary who saw everything else
ends with a probability q(m) for each candidate. Two means over trials bound what a claim of B nats allows:

- guesses: the share of records whose membership is guessed right from q, over those records that exactly half
  of the candidates hold. For each of them a blind guess is right half of the time, so the share is at most
  `max_success` of B at prior 1/2 in expectation (Xiao and Devadas 2023), and so is its mean over records.
- nats: ln(M q'(j)) for q' = (1 - FLOOR) q + FLOOR / M. Its expectation is I(j; what was seen) less the
  relative entropy of the true posterior from q' (Barber and Agakov 2003), so whatever the adversary believes,
  it never exceeds the information, and a mean above B refutes the claim. It lies in [ln FLOOR, ln M].

Neither trusts the mechanism: a q from a wrong law makes both smaller, never too large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from workbench.estimation.bounded_mean import mean_lower
from workbench.estimation.inputs import bound_of_trials
from workbench.interfaces import Bound, Evidence, FloatArray

FLOOR = 0.01
"""Share of a uniform guess in q', so that no secret is thought impossible; costs 0.01 nats at most."""


@dataclass(frozen=True, kw_only=True)
class SubsetEvidence(Evidence):
    """Evidence of a candidate-subset game, with what each trial shows beyond its one target record.

    Attributes:
        candidates: M.
        record_success: Share of the records that are guessed right in each trial, in [0, 1], shape `(n,)`.
        log_scores: ln(M q'(secret)) of each trial, nats, shape `(n,)`.
    """

    candidates: int = 2
    record_success: FloatArray = field(default_factory=lambda: np.zeros(0))
    log_scores: FloatArray = field(default_factory=lambda: np.zeros(0))


def log_score(guess: FloatArray, secret: int) -> float:
    """Ln(M q'(secret)), nats, in [ln FLOOR, ln M], from the probability of each candidate, shape `(M,)`."""
    return math.log((1.0 - FLOOR) * guess.size * float(guess[secret]) + FLOOR)


def perfect_log_score(count: int) -> float:
    """Returns the `log_score` among `count` candidates of an adversary who is sure, and right."""
    return math.log((1.0 - FLOOR) * count + FLOOR)


def success_bound(evidence: SubsetEvidence, values: FloatArray, confidence: float) -> Bound:
    """Returns a one-sided lower bound of the expected share of right guesses.

    `values` are in [0, 1], one a trial: `record_success`, or what a perfect attack would have.
    """
    lower, estimate = mean_lower(values, confidence=confidence), float(values.mean())
    why = "trials are independent; in each the share of right guesses over all records"
    return bound_of_trials(
        "records_guessed", "success", (lower, estimate), why, confidence, n=evidence.scores.size
    )


def nats_bound(evidence: SubsetEvidence, values: FloatArray, confidence: float) -> Bound:
    """Returns a one-sided lower bound of the information about the secret index, nats.

    `values` are the `log_scores` of the evidence's trials, or what a perfect attack would have.
    """
    low, high = math.log(FLOOR), math.log(evidence.candidates)
    lower = mean_lower(values, confidence=confidence, low=low, high=high)
    why = "trials are independent, and the secret of each is uniform over the candidates"
    n = evidence.scores.size
    return bound_of_trials("log_score", "nats", (lower, float(values.mean())), why, confidence, n=n)
