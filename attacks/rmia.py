"""RMIA, the robust membership inference attack of Zarifzadeh, Liu and Shokri 2024, and InfoRMIA.

"Low-Cost High-Power Membership Inference Attacks" (ICML 2024) asks how often a record's likelihood ratio
beats that of a random record z of the population: with r(x) = p(x | model) / p(x), the score is the share of
z with r(x) / r(z) >= gamma. p(x) is a mean over reference models, in and out alike. InfoRMIA (Tao and Shokri
2025, "(Token-Level) InfoRMIA", arXiv 2510.05582) puts information in the place of the count: log r(x) plus
the divergence of p(z) from p(z | model).

Within one training both orders are the order of r(x), for z and gamma are the same for every x: the count
coarsens it, and the divergence shifts it. They differ where scores of several trainings are pooled.

InfoRMIA's formula and the offline line follow summaries of the papers and other people's code; the papers
themselves were not at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from workbench.attacks.shared.statistics import (
    TokenScorer,
    checked_included,
    checked_records,
    checked_share,
    population_of,
    secret_insertions,
)
from workbench.core.arguments import number, whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.games.membership import MembershipAttack, MembershipSeen
from workbench.interfaces import BoolArray, Corpus, FloatArray, Insertions, Record, Scores
from workbench.training.endings import scored_log_likelihoods

SCORES = ("rmia", "info")
MODES = ("online", "offline")

SMALLEST_PROBABILITY = 1e-300
"""Ratios of probabilities below it stay finite."""


@register("attack", "rmia")
class RmiaAttack(MembershipAttack):
    """Robust membership inference with few reference models (Zarifzadeh et al. 2024), and InfoRMIA.

    The population z are the corpus's held-out records, or where the game gives none the other candidates. No
    coin of the target enters p(x), z or the references' members: bad references and a bad population cost
    power, never validity. A language model's p(x) is the geometric mean of the tokens' probabilities,
    exp(-loss).

    Args:
        shadows: Number of reference models, at least 1; each candidate is in half of them.
        score: `"rmia"`: the share of z that x dominates by `gamma`; equal shares are told apart by r(x).
            `"info"`: InfoRMIA of whole records.
        mode: `"online"`: p(x) is the mean of the references' means with and without x. `"offline"`: the
            mean with x is taken as `a` p_out + (1 - a).
        a: In (0, 1], of the linear correction between the two means. It also serves a candidate that has
            references on one side only. 1: references with and without x count as one.
        gamma: Ratio by which x must beat z; above 0.
        ending_marker: Use only the likelihood of what follows the last occurrence of this text (with
            canaries: `"secret_id="`); empty for the whole record.
        canaries: Share of a text corpus's candidates that get a secret id before the membership coins; the
            same share of z gets one.

    Raises:
        InputError: an unknown score or mode, no reference, or a number out of range.
    """

    def __init__(
        self,
        *,
        shadows: int = 4,
        score: str = "rmia",
        mode: str = "online",
        a: float = 0.3,
        gamma: float = 2.0,
        ending_marker: str = "",
        canaries: float = 1.0,
    ) -> None:
        if score not in SCORES:
            raise unknown_name("score", score, SCORES)
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if not isinstance(ending_marker, str):
            raise InputError(f"ending_marker must be text, got {ending_marker!r}")
        self.references_needed = whole_number("shadows", shadows, least=1)
        self.score_name = score
        self.mode = mode
        self.a = number("a", a, above=0, most=1)
        self.gamma = number("gamma", gamma, above=0, below=math.inf)
        self.ending_marker = ending_marker
        self.canaries = checked_share(canaries)

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Secret ids for a share of the candidates of a text corpus; nothing for images."""
        return secret_insertions(corpus, self.canaries, generator)

    def score(self, seen: MembershipSeen, generator: np.random.Generator) -> Scores:
        """Score every candidate against the population.

        Returns:
            Shape `(n,)`: a share in (0, 1), or for `"info"` nats. Details: the number of references and of z.

        Raises:
            InputError: no candidates, references that do not match them, or none; fewer than two candidates
                where these are the population.
        """
        records, references = checked_records(seen.records, "rmia"), seen.references
        included = checked_included(references, records, "rmia", least=1)
        population = population_of(seen, self.canaries, generator)
        if not population and len(records) < 2:
            raise InputError("attack 'rmia' needs a population or at least 2 candidates, got 1")
        both = [*records, *population]
        outside = np.zeros((len(included), len(population)), dtype=bool)
        shadows = np.stack([self._probabilities(shadow, both) for shadow in references.subjects])
        of_anyone = marginal(shadows, np.hstack([included, outside]), mode=self.mode, a=self.a)
        ratios = np.log(np.maximum(self._probabilities(seen.subject, both), SMALLEST_PROBABILITY) / of_anyone)
        ours, others = ratios[: len(records)], ratios[len(records) :]
        weights = of_anyone[len(records) :] if population else of_anyone
        if self.score_name == "info":
            values = ours + divergence(others if population else ours, weights)
        else:
            values = dominated_shares(ours, others if population else None, self.gamma)
        size = len(population) or len(records) - 1
        details = {"shadows": float(len(references.subjects)), "population": float(size)}
        return Scores(values=values, details=details)

    def _probabilities(self, model: TokenScorer, records: Sequence[Record]) -> FloatArray:
        """p(x | model) of each record, shape `(n,)`."""
        tokens = scored_log_likelihoods(model, records, self.ending_marker)
        probabilities: FloatArray = np.exp([values.mean() for values in tokens])
        return probabilities


def marginal(probabilities: FloatArray, included: BoolArray, *, mode: str, a: float) -> FloatArray:
    """p(x) of each record: the mean of p_in and p_out (Zarifzadeh et al. 2024).

    Where there is no p_in, or offline, it is `a` p_out + (1 - a), so that p(x) is
    ((1 + a) p_out + 1 - a) / 2; where there is no p_out, that line is inverted, and cut at 0.

    Args:
        probabilities: Of each record under each reference, shape `(n_references, n)`, in [0, 1].
        included: Which reference was trained on which record, same shape.
        mode: `"online"` or `"offline"`.
        a: Slope of the line, in (0, 1].

    Returns:
        Shape `(n,)`, at least `SMALLEST_PROBABILITY`.
    """
    inside, outside = _means(probabilities, included), _means(probabilities, ~included)
    without = np.where(np.isnan(outside), np.maximum(inside - (1 - a), 0.0) / a, outside)
    is_given = ~np.isnan(inside) & ((mode == "online") | np.isnan(outside))
    within = np.where(is_given, inside, a * without + (1 - a))
    floored: FloatArray = np.maximum((within + without) / 2, SMALLEST_PROBABILITY)
    return floored


def _means(values: FloatArray, chosen: BoolArray) -> FloatArray:
    """Mean of the chosen values of each column; NaN where none is."""
    counts = chosen.sum(axis=0)
    means = np.full(values.shape[1], np.nan)
    np.divide(np.where(chosen, values, 0.0).sum(axis=0), counts, out=means, where=counts > 0)
    return means


def dominated_shares(ours: FloatArray, others: FloatArray | None, gamma: float) -> FloatArray:
    """Share of the population whose ratio a record's exceeds by gamma (Zarifzadeh et al. 2024).

    Args:
        ours: log r(x) of the candidates, shape `(n,)`, nats.
        others: log r(z) of the population, shape `(m,)`; None for the other candidates.
        gamma: Above 0.

    Returns:
        Shape `(n,)`, in (0, 1): the count and, so that equal counts keep the order of r(x), a part of one
        that grows with it, over m + 1.
    """
    population = np.sort(ours if others is None else others)
    counts = np.searchsorted(population, ours - math.log(gamma), side="right").astype(np.float64)
    if others is None:
        counts -= gamma <= 1.0
    size = len(ours) - 1 if others is None else len(others)
    shares: FloatArray = (counts + 0.5 + np.arctan(ours) / math.pi) / (size + 1)
    return shares


def divergence(ratios: FloatArray, weights: FloatArray) -> float:
    """Relative entropy of p(z) to p(z | model) over the population, nats (Tao and Shokri 2025).

    Args:
        ratios: log p(z | model) / p(z), shape `(m,)`.
        weights: p(z) up to a factor, shape `(m,)`, positive.
    """
    return -float(np.average(ratios, weights=weights))
