"""LiRA, the likelihood-ratio attack of Carlini et al. 2022 ("Membership Inference Attacks From First
Principles", IEEE S&P), online and offline.

For each candidate the shadow models show how its confidence is distributed with and without it; the
target's confidence is then judged by the ratio of the two Gaussian likelihoods. What sets it apart from
the loss attack: a record that is easy, or hard, for every model is no evidence.

The shadows' coins are independent of the target's (see `workbench.training.shadows`), so the target's labels
remain fair coins given the scores' recipe: bad shadows cost power, never validity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workbench.attacks.shared.augmentations import MOVES, shifted
from workbench.attacks.shared.statistics import (
    TokenScorer,
    checked_included,
    checked_records,
    checked_share,
    secret_insertions,
)
from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.games.membership import MembershipAttack, MembershipSeen
from workbench.interfaces import BoolArray, Corpus, FloatArray, Insertions, Record, Scores
from workbench.training.endings import scored_log_likelihoods

MODES = ("online", "offline")
VARIANCES = ("auto", "fixed", "per_example")

ENOUGH_FOR_OWN_VARIANCE = 64
"""Below this many shadows one variance for all candidates does better (section VI-C of the paper)."""

MOST_QUERIES = 1000

SMALLEST_LOSS_NATS = 2.0**-24
"""Half the spacing of float32 at 1: a smaller loss is a rounded 0, whose logit would be infinite."""

SMALLEST_DEVIATION = 1e-6
"""Shadows that all agree to this many logits give no spread; the ratio stays finite."""


@register("attack", "lira")
class LiraAttack(MembershipAttack):
    """Likelihood-ratio attack with shadow models (Carlini et al. 2022).

    Args:
        shadows: Number of shadow models, at least 4; each candidate is in half of them.
        mode: `"online"`: log N(phi; in) - log N(phi; out). `"offline"`: only shadows that were trained
            without the candidate are used, and the score is how far the target exceeds them.
        variance: `"per_example"`: each candidate has a variance of its own in and out. `"fixed"`: one
            variance for all. `"auto"`: fixed below 64 shadows, as the paper recommends.
        ending_marker: Use only the confidence in what follows the last occurrence of this text (with
            canaries: `"secret_id="`); empty for the whole record.
        canaries: Share of a text corpus's candidates that get a secret id before the membership coins.
        queries: Answers a record, whose scores are averaged as if they were independent. Of images up to 9:
            the record and copies moved by a pixel (the paper queries augmented copies, too). A text's scored
            tokens are cut in so many parts of equal length, each given all before it.

    Raises:
        InputError: an unknown mode or variance, fewer than 4 shadows, no query, or a share outside [0, 1].
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"queries": 1}

    def __init__(
        self,
        *,
        shadows: int = 8,
        mode: str = "online",
        variance: str = "auto",
        ending_marker: str = "",
        canaries: float = 1.0,
        queries: int = 1,
    ) -> None:
        shadows = whole_number("shadows", shadows, least=4)
        if not isinstance(ending_marker, str):
            raise InputError(f"ending_marker must be text, got {ending_marker!r}")
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if variance not in VARIANCES:
            raise unknown_name("variance", variance, VARIANCES)
        self.references_needed = shadows
        self.mode = mode
        self.variance = variance
        self.ending_marker = ending_marker
        self.canaries = checked_share(canaries)
        self.queries = whole_number("queries", queries, least=1, most=MOST_QUERIES)

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Secret ids for a share of the candidates of a text corpus; nothing for images."""
        return secret_insertions(corpus, self.canaries, generator)

    def score(self, seen: MembershipSeen, generator: np.random.Generator) -> Scores:
        """Likelihood ratio of every candidate.

        Returns:
            Shape `(n,)`: online the log-likelihood ratio; offline the standard score of the target among
            the shadows without the candidate, which orders candidates as the paper's Eq. 4 (its normal
            distribution function is increasing) without rounding to 1.

        Raises:
            InputError: no candidates, references that do not match them, or too few of these; more queries
                than moves of an image, or than tokens of a text.
        """
        records, references = checked_records(seen.records, "lira"), seen.references
        checked_included(references, records, "lira", least=2)
        shadows = np.stack([self._logits(shadow, records) for shadow in references.subjects], axis=1)
        target = self._logits(seen.subject, records)
        own = self.variance == "per_example" or (
            self.variance == "auto" and len(references.subjects) >= ENOUGH_FOR_OWN_VARIANCE
        )
        score = online_scores if self.mode == "online" else offline_scores
        included = references.included
        values = np.mean(
            [
                score(of_target, of_shadows, included, per_example_variance=own)
                for of_target, of_shadows in zip(target, shadows, strict=True)
            ],
            axis=0,
        )
        gap = shadows[:, included].mean() - shadows[:, ~included].mean()
        return Scores(
            values=values,
            details={"shadows": float(len(references.subjects)), "mean_shadow_logit_gap": float(gap)},
        )

    def _logits(self, model: TokenScorer, records: Sequence[Record]) -> FloatArray:
        """Logits of the answers to every query, shape `(queries, n)`."""
        if self.queries == 1:
            return record_logits(model, records, self.ending_marker)[None]
        if records[0].image is not None:
            if self.queries > len(MOVES):
                raise InputError(f"queries must be at most {len(MOVES)} for images, got {self.queries}")
            return np.stack(
                [record_logits(model, copy) for copy in shifted(records, self.queries, "queries")]
            )
        return part_logits(model, records, self.queries, self.ending_marker)


def logit_confidence(log_probability: FloatArray) -> FloatArray:
    """Logit-scaled confidence log(p / (1 - p)) from log p (Carlini et al. 2022, section IV-C).

    Stable at both ends: p near 1 through expm1, and where p rounds to 1 the logit stays at 16.6.
    """
    log_probability = np.minimum(log_probability, -SMALLEST_LOSS_NATS)
    logits: FloatArray = log_probability - np.log(-np.expm1(log_probability))
    return logits


def record_logits(subject: TokenScorer, records: Sequence[Record], ending_marker: str = "") -> FloatArray:
    """Logit-scaled confidence of each record, shape `(n,)`.

    A classifier's p is the probability of the label; a language model's the geometric mean of the true
    tokens' probabilities, exp(-loss).
    """
    log_likelihoods = scored_log_likelihoods(subject, records, ending_marker)
    return logit_confidence(np.array([tokens.mean() for tokens in log_likelihoods]))


def part_logits(
    subject: TokenScorer, records: Sequence[Record], parts: int, ending_marker: str = ""
) -> FloatArray:
    """Logit-scaled confidence of each part of a record's scored tokens, shape `(parts, n)`.

    Parts differ in length by at most one token.

    Raises:
        InputError: a record has fewer tokens than parts.
    """
    log_likelihoods = scored_log_likelihoods(subject, records, ending_marker)
    for record, tokens in zip(records, log_likelihoods, strict=True):
        if tokens.size < parts:
            raise InputError(
                f"queries must be at most the scored tokens of each record, got {parts}, "
                f"and {record.id!r} has {tokens.size}"
            )
    means = [[part.mean() for part in np.array_split(tokens, parts)] for tokens in log_likelihoods]
    return logit_confidence(np.array(means).T)


@dataclass(frozen=True, kw_only=True)
class _Side:
    """The shadows' logits of every candidate on one side, in or out.

    Attributes:
        count: Shadows on this side, shape `(n,)`.
        mean: Their mean logit; NaN where there are none.
        squares: Sum of squared deviations from it.
    """

    count: FloatArray
    mean: FloatArray
    squares: FloatArray

    def deviations(self, pooled: float, *, own: bool) -> FloatArray:
        """Standard deviations: pooled, or each candidate's own where two shadows or more show one."""
        shared = np.full(len(self.count), pooled)
        if own:
            enough = self.count >= 2
            shared[enough] = np.sqrt(self.squares[enough] / (self.count[enough] - 1))
        floored: FloatArray = np.maximum(shared, SMALLEST_DEVIATION)
        return floored


def _side(logits: FloatArray, chosen: BoolArray) -> _Side:
    count = chosen.sum(axis=0).astype(np.float64)
    mean = np.full(len(count), np.nan)
    np.divide(np.where(chosen, logits, 0.0).sum(axis=0), count, out=mean, where=count > 0)
    squares = np.where(chosen, (logits - mean) ** 2, 0.0).sum(axis=0)
    return _Side(count=count, mean=mean, squares=squares)


def _pooled_deviation(*sides: _Side) -> float:
    """One standard deviation for all candidates: within candidate and side, unbiased variance.

    The paper's published code takes the deviation of all logits at once, which adds how much candidates
    differ from each other; that scales every score alike and so changes no ranking.
    """
    freedom = sum(float(np.maximum(side.count - 1, 0).sum()) for side in sides)
    if freedom < 1:
        raise InputError("lira needs a candidate with two references on one side, got none: add shadows")
    return float(np.sqrt(sum(float(side.squares.sum()) for side in sides) / freedom))


def online_scores(
    target: FloatArray, shadows: FloatArray, included: BoolArray, *, per_example_variance: bool
) -> FloatArray:
    """Log-likelihood ratio log N(phi; in) - log N(phi; out) (Carlini et al. 2022, Algorithm 1).

    A candidate that no shadow was trained on (or every one) has one mean only; the other is taken at the
    mean distance between in and out over the candidates that have both.

    Args:
        target: Logits of the candidates under the target, shape `(n,)`.
        shadows: The same under each shadow, shape `(n_shadows, n)`.
        included: Which shadow was trained on which candidate, same shape.
        per_example_variance: Own variances, in and out, instead of one for all.

    Returns:
        Shape `(n,)`, nats; higher = member.

    Raises:
        InputError: no candidate has shadows both in and out, or none two on one side.
    """
    inside, outside = _side(shadows, included), _side(shadows, ~included)
    gaps = inside.mean - outside.mean
    if np.isnan(gaps).all():
        raise InputError("lira needs candidates with references both in and out, got none")
    gap = float(np.nanmean(gaps))
    mean_in = np.where(np.isnan(inside.mean), outside.mean + gap, inside.mean)
    mean_out = np.where(np.isnan(outside.mean), inside.mean - gap, outside.mean)
    pooled = _pooled_deviation(inside, outside)
    deviation_in = inside.deviations(pooled, own=per_example_variance)
    deviation_out = outside.deviations(pooled, own=per_example_variance)
    ratio: FloatArray = (
        np.log(deviation_out / deviation_in)
        - 0.5 * ((target - mean_in) / deviation_in) ** 2
        + 0.5 * ((target - mean_out) / deviation_out) ** 2
    )
    return ratio


def offline_scores(
    target: FloatArray, shadows: FloatArray, included: BoolArray, *, per_example_variance: bool
) -> FloatArray:
    """Standard score of the target among the shadows without the candidate (Carlini et al. 2022, Eq. 4).

    The paper's statistic is 1 - Pr[Z > phi] with Z normal: the distribution function of this score. A
    candidate that every shadow was trained on is compared with the mean of all candidates' out means.

    Arguments are those of `online_scores`. Returns standard deviations, shape `(n,)`; higher = member.

    Raises:
        InputError: no candidate has two shadows without it.
    """
    outside = _side(shadows, ~included)
    deviation = outside.deviations(_pooled_deviation(outside), own=per_example_variance)
    mean_out = np.where(np.isnan(outside.mean), np.nanmean(outside.mean), outside.mean)
    scores: FloatArray = (target - mean_out) / deviation
    return scores
