"""The AUC of the blind classifier of `workbench.estimation.blind`, to compare its p-values with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
import scipy.stats

from workbench.estimation.blind import Float32Array, record_features, ridge_penalty, thinned
from workbench.estimation.inputs import check_probability
from workbench.interfaces import BoolArray, FloatArray, Interval


def blind_auc(
    data: Sequence[str] | FloatArray, members: BoolArray, *, confidence: float, generator: np.random.Generator
) -> Interval:
    """AUC of the linear blind classifier on records that it was not trained on.

    Trained on one random half, measured on the other: given the first half its scores on the second are
    those of a fixed function, so the interval needs no correction for reuse. Whether the groups differ
    is for `blind_p_value` to say, which uses every record and hence sees smaller differences.

    Args:
        data, members: As in `blind_p_value`.
        confidence: Two-sided, in (0, 1).
        generator: Source of the split.

    Returns:
        The interval of the AUC of this trained classifier: Mann-Whitney's estimate, with the variance
        of DeLong et al. (1988) on the logit scale; [0, 1] where a half lacks a group or the classifier
        separates the test half without an error.

    Raises `InputError`: confidence out of range, or data as in `blind_p_value`.
    """
    check_probability("confidence", confidence)
    labels, chosen = thinned(data, members, generator)
    features = record_features([data[i] for i in chosen] if isinstance(data, Sequence) else data[chosen])
    order = generator.permutation(len(labels))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    estimate, lower, upper = 0.5, 0.0, 1.0
    if 0 < labels[train].sum() < len(train) and 0 < labels[test].sum() < len(test):
        scores = _ridge_scores(features[train], labels[train], features[test])
        estimate, lower, upper = auc_interval(scores, labels[test], confidence)
    return Interval(
        name="blind_auc",
        estimate=estimate,
        lower=lower,
        upper=upper,
        confidence=confidence,
        assumption="records are exchangeable within members and within non-members",
    )


def _ridge_scores(train: Float32Array, labels: BoolArray, test: Float32Array) -> FloatArray:
    """Scores of the test records from ridge regression on the training records."""
    values = labels.astype(np.float64) - labels.mean()
    kernel = (train @ train.T).astype(np.float64) + ridge_penalty(train) * np.eye(len(train))
    scores: FloatArray = (test @ train.T).astype(np.float64) @ scipy.linalg.solve(
        kernel, values, assume_a="pos"
    )
    return scores


def auc_interval(scores: FloatArray, labels: BoolArray, confidence: float) -> tuple[float, float, float]:
    """Mann-Whitney AUC with DeLong's variance, the interval taken on the logit scale."""
    wins = (scores[labels][:, None] > scores[~labels]) + 0.5 * (scores[labels][:, None] == scores[~labels])
    estimate = float(wins.mean())
    n_in, n_out = wins.shape
    if min(n_in, n_out) < 2 or not 0.0 < estimate < 1.0:
        return estimate, 0.0, 1.0
    variance = np.var(wins.mean(axis=1), ddof=1) / n_in + np.var(wins.mean(axis=0), ddof=1) / n_out
    half = scipy.stats.norm.ppf(0.5 + confidence / 2) * np.sqrt(variance) / (estimate * (1 - estimate))
    centre = np.log(estimate / (1 - estimate))
    lower, upper = 1 / (1 + np.exp(half - centre)), 1 / (1 + np.exp(-half - centre))
    return estimate, float(lower), float(upper)
