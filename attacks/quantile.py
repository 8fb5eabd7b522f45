"""Membership by quantile regression: how confident would the model be of such a record, were it no member?

Bertran, Tang, Kearns, Morgenstern, Roth and Wu 2023 ("Scalable Membership Inference Attacks via Quantile
Regression", NeurIPS) learn the distribution of the model's confidence on records that were not trained on,
given the record. One regression replaces all shadow models. Here it is the Gaussian form: a mean and a
standard deviation of the logit-scaled confidence, each by kernel ridge regression, where the authors train
networks and boosted trees; every conditional quantile follows from the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from workbench.attacks.lira import record_logits
from workbench.attacks.shared.statistics import (
    checked_records,
    checked_share,
    population_of,
    secret_insertions,
    zlib_bytes,
)
from workbench.core.arguments import whole_number
from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.games.membership import MembershipAttack, MembershipSeen
from workbench.interfaces import BoolArray, Corpus, FloatArray, Insertions, Record, Scores

FITS = ("held_out", "candidates")

FEWEST = 20
"""Records without which no regression is fitted."""

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
WIDTHS = (0.25, 1.0, 4.0)
"""Of the Gaussian kernel, in units of the root of the number of features."""

SMALLEST_DEVIATION = 1e-3
"""In logits; a regression that fits its records exactly leaves scores finite."""

HALF_NORMAL_LOG_MEAN = -0.635181422730739
"""Mean of log |Z| for a standard normal Z: -(Euler's constant + log 2) / 2."""


@register("attack", "quantile_regression")
class QuantileRegressionAttack(MembershipAttack):
    """Excess of a record's confidence over what a regression expects of a non-member (Bertran et al. 2023).

    Nothing is fitted to a coin of the target: held-out records are nobody's, and fitted to the candidates the
    regression treats members and non-members alike. That costs power, for members pull its mean up, and never
    validity.

    Args:
        fit: `"held_out"`: to the corpus's held-out records, of which there must be 20. `"candidates"`: each
            of `folds` parts of the candidates is judged by a regression on the other parts.
        folds: Number of parts, from 2 to 20.
        ending_marker: Judge only the confidence in what follows the last occurrence of this text (with
            canaries: `"secret_id="`); empty for the whole record.
        canaries: Share of a text corpus's candidates that get a secret id before the membership coins; the
            same share of the held-out records gets one.

    Raises:
        InputError: an unknown fit, folds out of range, or a share outside [0, 1].
    """

    def __init__(
        self, *, fit: str = "held_out", folds: int = 5, ending_marker: str = "", canaries: float = 1.0
    ) -> None:
        if fit not in FITS:
            raise unknown_name("fit", fit, FITS)
        if not isinstance(ending_marker, str):
            raise InputError(f"ending_marker must be text, got {ending_marker!r}")
        self.fit = fit
        self.folds = whole_number("folds", folds, least=2, most=FEWEST)
        self.ending_marker = ending_marker
        self.canaries = checked_share(canaries)

    def prepare(self, corpus: Corpus, generator: np.random.Generator) -> Insertions:
        """Secret ids for a share of the candidates of a text corpus; nothing for images."""
        return secret_insertions(corpus, self.canaries, generator)

    def score(self, seen: MembershipSeen, generator: np.random.Generator) -> Scores:
        """Score every candidate by its standardised excess.

        Returns:
            Shape `(n,)`: (logit - mean) / standard deviation of the conditional distribution. Details: the
            number of records that a regression is fitted to, and the share of their variance that the mean
            explains (that of the last fold where there are several).

        Raises:
            InputError: no candidates, or too few records to fit to.
        """
        records = checked_records(seen.records, "quantile_regression")
        population = population_of(seen, self.canaries, generator) if self.fit == "held_out" else ()
        if self.fit == "held_out":
            _require_enough("held-out records; try fit = 'candidates'", len(population))
            both = [*records, *population]
            known = np.arange(len(both)) >= len(records)
            values, explained = self._excess(seen, both, known)
            values, fitted = values[: len(records)], len(population)
        else:
            _require_enough("candidates", len(records))
            values, explained = np.zeros(len(records)), 0.0
            part = generator.permutation(np.arange(len(records)) % self.folds)
            for fold in range(self.folds):
                found, explained = self._excess(seen, records, part != fold)
                values[part == fold] = found[part == fold]
            fitted = len(records) - len(records) // self.folds
        return Scores(values=values, details={"fitted_records": float(fitted), "explained": explained})

    def _excess(
        self, seen: MembershipSeen, records: Sequence[Record], known: BoolArray
    ) -> tuple[FloatArray, float]:
        """Standardised excess of all records, of a regression on the known ones; and what it explains."""
        logits = record_logits(seen.subject, records, self.ending_marker)
        described = features(records, known.tolist())
        mean, deviation, explained = conditional_moments(described[known], logits[known], described)
        return (logits - mean) / deviation, explained


def _require_enough(what: str, count: int) -> None:
    if count < FEWEST:
        raise InputError(f"attack 'quantile_regression' needs at least {FEWEST} {what}, got {count}")


def features(records: Sequence[Record], known: Sequence[bool]) -> FloatArray:
    """What the regression knows of each record, shape `(n, k)`.

    An image's pixels and label (one column a label); of a text its characters, words, mean word length,
    compressed bytes a character, shares of digits and capitals, and the share of its words that are in fewer
    than 1 % of the known records.

    Args:
        records: All images of one size, or all texts.
        known: The records that say which words are rare; at least one.
    """
    labels = sorted({record.label for record in records if record.label is not None})
    of_label = np.array([[record.label == label for label in labels] for record in records], dtype=np.float64)
    if records[0].image is not None:
        return np.hstack([np.array([record.image for record in records], dtype=np.float64), of_label])
    words = [set(record.text.split()) for record in records]
    counts = Counter(word for own, used in zip(words, known, strict=True) if used for word in own)
    common = {word for word, count in counts.items() if count >= 0.01 * sum(known)}
    return np.hstack([np.array([_of_text(record.text, common) for record in records]), of_label])


def _of_text(text: str, common: set[str]) -> list[float]:
    words, size = text.split(), max(1, len(text))
    return [
        float(len(text)),
        float(len(words)),
        float(np.mean([len(word) for word in words])) if words else 0.0,
        zlib_bytes(text) / size,
        sum(character.isdigit() for character in text) / size,
        sum(character.isupper() for character in text) / size,
        sum(word not in common for word in words) / max(1, len(words)),
    ]


def conditional_moments(
    known: FloatArray, logits: FloatArray, described: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """Mean and standard deviation of the logit given the features: the heads of a Gaussian regression.

    The deviation is learnt from the logarithms of the mean's leave-one-out residuals, so that it holds for
    records that were not fitted to.

    Args:
        known: Features of the records that are fitted to, shape `(m, k)`.
        logits: Theirs, shape `(m,)`.
        described: Features of the records to be judged, shape `(n, k)`.

    Returns:
        Mean and deviation, shape `(n,)`, and the share of the variance that the mean explains of a record
        left out.
    """
    width = known.std(axis=0)
    scale = np.where(width > 0, width, 1.0) * np.sqrt(known.shape[1])
    distances = _squared_distances(known / scale, known / scale)
    to_judged = _squared_distances(described / scale, known / scale)
    mean, residuals = kernel_ridge(distances, logits, to_judged)
    sizes = np.log(np.maximum(np.abs(residuals), SMALLEST_DEVIATION)) - HALF_NORMAL_LOG_MEAN
    deviation = np.exp(kernel_ridge(distances, sizes, to_judged)[0])
    explained = 1 - float(np.mean(residuals**2)) / max(float(np.var(logits)), SMALLEST_DEVIATION**2)
    return mean, np.maximum(deviation, SMALLEST_DEVIATION), explained


def _squared_distances(rows: FloatArray, columns: FloatArray) -> FloatArray:
    squares = (rows**2).sum(axis=1)[:, None] + (columns**2).sum(axis=1) - 2 * rows @ columns.T
    floored: FloatArray = np.maximum(squares, 0.0)
    return floored


def kernel_ridge(
    distances: FloatArray, values: FloatArray, to_judged: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Predictions, and residuals of the fitted records, each predicted by all others.

    A Gaussian kernel; width and penalty have the smallest leave-one-out error, which a ridge regression gives
    without fitting again: the i-th coefficient over the i-th diagonal entry of the inverse.

    Args:
        distances: Squared distances between the m fitted records, shape `(m, m)`.
        values: Theirs, shape `(m,)`.
        to_judged: Squared distances from the judged records to them, shape `(n, m)`.

    Returns:
        Predictions, shape `(n,)`, and residuals, shape `(m,)`.
    """
    centre, best, chosen = values.mean(), np.inf, (np.zeros(len(to_judged)), values)
    for width in WIDTHS:
        eigenvalues, vectors = np.linalg.eigh(np.exp(-distances / (2 * width**2)))
        turned = vectors.T @ (values - centre)
        for penalty in PENALTIES:
            inverse = 1 / (np.maximum(eigenvalues, 0.0) + penalty)
            coefficients = vectors @ (inverse * turned)
            residuals = coefficients / (vectors**2 @ inverse)
            error = float(np.mean(residuals**2))
            if error < best:
                best = error
                chosen = np.exp(-to_judged / (2 * width**2)) @ coefficients + centre, residuals
    return chosen
