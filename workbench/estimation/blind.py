"""Can members be told from non-members by the data alone, by a classifier that never sees the model?

If it can, a membership score may measure that shift between the two groups and not leakage, and the game
is void (Das, Zhang and Tramèr 2024, "Blind Baselines Beat Membership Inference Attacks for Foundation
Models", arXiv 2406.16201). Two blind classifiers look at each record: a linear one on a bag of words and
of character trigrams (ridge regression of the labels, scored on each record after training on all
others), and the single most telling feature.

Why a permutation test: in a sound game the labels are coins thrown after the records were fixed, or an
exchangeable split, so every relabelling with as many members is equally likely. Both classifiers are
trained afresh under each relabelling, hence the p-value is exact whatever the records are, and none of the
known biases of cross-validated scores under the null touch it. Ridge regression makes this cheap: its
leave-one-out scores are linear in the labels, so that all relabellings cost one matrix product.

Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> members = rng.permutation(np.arange(100) < 50)
    >>> texts = ["seen in 2019" if m and rng.random() < 0.5 else "seen in 2020" for m in members]
    >>> blind_p_value(texts, members, generator=rng) < 0.001
    True
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.stats

from workbench.core.errors import InputError
from workbench.estimation.inputs import check_probability
from workbench.interfaces import BoolArray, FloatArray, Interval

Float32Array = npt.NDArray[np.float32]

MAX_RECORDS = 2000
"""A larger sample is thinned to this many records, blindly to the labels; an AUC of 0.53 still shows."""

TRIGRAM_BUCKETS = 1024
"""Character trigrams are counted in this many hash buckets."""

MAX_WORDS = 8192
"""At most this many words are features: those that the most records mention."""

FIRST_RELABELLINGS = 999
"""Relabellings drawn first; all of them only where these leave a p-value of at most `DOUBTFUL`."""

DOUBTFUL = 0.02

_WORD = re.compile(r"\w+")


def blind_p_value(
    data: Sequence[str] | FloatArray,
    members: BoolArray,
    *,
    generator: np.random.Generator,
    relabellings: int = 9999,
) -> float:
    """P-value of "members and non-members are exchangeable", small where a blind classifier tells them.

    Args:
        data: One text a record, or numeric features (flattened images), shape `(n, d)`.
        members: True where the record was a member, shape `(n,)`.
        generator: Source of the relabellings.
        relabellings: How many; no p-value is below `1 / (relabellings + 1)`.

    Returns:
        A p-value: under exchangeable labels it is at most alpha with probability at most alpha, for every
        alpha and every n. 1 where one of the groups is empty, and where all records look alike.

    Raises:
        InputError: shapes that do not match, a feature that is not finite, relabellings < 1.
    """
    if relabellings < 1:
        raise InputError(f"relabellings must be at least 1, got {relabellings}")
    labels, chosen = _thinned(data, members, generator)
    if labels.all() or not labels.any():
        return 1.0
    features = _features([data[i] for i in chosen] if isinstance(data, Sequence) else data[chosen])
    if features.shape[1] == 0:
        return 1.0
    hat = _leave_one_out_matrix(features)
    first = min(FIRST_RELABELLINGS, relabellings)
    statistics = _statistics(features, hat, _relabelled(labels, first, generator))
    p_value = _combined_p_value(statistics)
    # Both stages give valid p-values and the second only replaces small ones, so the outcome is valid:
    # for alpha <= DOUBTFUL it needs the second to be <= alpha, for a larger alpha the first.
    if p_value <= DOUBTFUL and relabellings > first:
        more = _relabelled(labels, relabellings - first, generator)[:, 1:]
        statistics = np.hstack([statistics, _statistics(features, hat, more)])
        p_value = _combined_p_value(statistics)
    return p_value


def blind_auc(
    data: Sequence[str] | FloatArray,
    members: BoolArray,
    *,
    confidence: float,
    generator: np.random.Generator,
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

    Raises:
        InputError: confidence out of range, or data as in `blind_p_value`.
    """
    check_probability("confidence", confidence)
    labels, chosen = _thinned(data, members, generator)
    features = _features([data[i] for i in chosen] if isinstance(data, Sequence) else data[chosen])
    order = generator.permutation(len(labels))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    estimate, lower, upper = 0.5, 0.0, 1.0
    if 0 < labels[train].sum() < len(train) and 0 < labels[test].sum() < len(test):
        scores = _ridge_scores(features[train], labels[train], features[test])
        estimate, lower, upper = _auc_interval(scores, labels[test], confidence)
    return Interval(
        name="blind_auc",
        estimate=estimate,
        lower=lower,
        upper=upper,
        confidence=confidence,
        assumption="records are exchangeable within members and within non-members",
    )


def _thinned(
    data: Sequence[str] | FloatArray, members: BoolArray, generator: np.random.Generator
) -> tuple[BoolArray, npt.NDArray[np.intp]]:
    """Labels of the records in use and their places, after checking the input."""
    labels = np.asarray(members)
    if labels.ndim != 1 or labels.dtype != np.bool_:
        raise InputError(f"members must be a vector of booleans, got {labels.dtype} of shape {labels.shape}")
    if len(data) != len(labels):
        raise InputError(f"data and members must have the same length, got {len(data)} and {len(labels)}")
    if isinstance(data, np.ndarray) and (data.ndim != 2 or not np.isfinite(data).all()):
        raise InputError(f"numeric data must be finite, of shape (n, d), got shape {data.shape}")
    chosen = np.arange(len(labels))
    if len(labels) > MAX_RECORDS:
        chosen = np.sort(generator.choice(len(labels), MAX_RECORDS, replace=False))
    return labels[chosen], chosen


def _features(data: Sequence[str] | FloatArray) -> Float32Array:
    """Centred features without constant columns; each kind of feature carries weight 1 a record."""
    if isinstance(data, np.ndarray):
        return _weighted(_centred(np.asarray(data, dtype=np.float64), scale=True))
    lowered = [text.lower() for text in data]
    lengths = np.array([[len(text), len(text.split())] for text in lowered], dtype=np.float64)
    blocks = [
        _weighted(_centred(_word_presence(lowered), scale=False)),
        _weighted(_centred(_trigram_frequencies(lowered), scale=False)),
        _weighted(_centred(np.log1p(lengths), scale=True)),
    ]
    return np.hstack(blocks)


def _word_presence(texts: Sequence[str]) -> FloatArray:
    """1 where a record mentions a word; words of one record alone, or of all, tell nothing of others."""
    mentions = [set(_WORD.findall(text)) for text in texts]
    counts: dict[str, int] = {}
    for words in mentions:
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    shared = sorted((w for w, c in counts.items() if 1 < c < len(texts)), key=lambda w: (-counts[w], w))
    column = {word: place for place, word in enumerate(shared[:MAX_WORDS])}
    presence = np.zeros((len(texts), len(column)))
    for row, words in enumerate(mentions):
        presence[row, [column[word] for word in words if word in column]] = 1.0
    return presence


def _trigram_frequencies(texts: Sequence[str]) -> FloatArray:
    """Square roots of the shares of hashed character trigrams, so that each row has norm 1 (or 0).

    They see what words miss: punctuation, spacing, scripts without spaces, parts of words.
    """
    frequencies = np.zeros((len(texts), TRIGRAM_BUCKETS))
    for row, text in enumerate(texts):
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
        if len(codes) >= 3:
            # Knuth's multiplicative hash of the three code points (21 bits each), top bits kept.
            trigrams = (codes[:-2] << np.uint64(42)) | (codes[1:-1] << np.uint64(21)) | codes[2:]
            hashed = (trigrams * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
            frequencies[row] = np.bincount(
                (hashed % np.uint64(TRIGRAM_BUCKETS)).astype(np.intp), minlength=TRIGRAM_BUCKETS
            ) / len(hashed)
    return np.sqrt(frequencies)


def _centred(columns: FloatArray, *, scale: bool) -> FloatArray:
    """Columns less their means, constant ones left out; `scale` gives each the variance 1."""
    centred = columns - columns.mean(axis=0)
    deviations = centred.std(axis=0)
    varying = deviations > 1e-9 * np.maximum(1.0, np.abs(columns).max(axis=0, initial=0.0))
    kept: FloatArray = centred[:, varying]
    return kept / deviations[varying] if scale else kept


def _weighted(block: FloatArray) -> Float32Array:
    """A block scaled to a mean squared row norm of 1, so that no kind of feature drowns another."""
    mean_square = float(np.mean(np.sum(block**2, axis=1))) if block.size else 0.0
    return (block / np.sqrt(mean_square) if mean_square > 0 else block).astype(np.float32)


def _ridge_penalty(features: Float32Array) -> float:
    """Half the mean squared row norm: strong enough for many more features than records."""
    return 0.5 * float(np.mean(np.sum(features.astype(np.float64) ** 2, axis=1)))


def _leave_one_out_matrix(features: Float32Array) -> Float32Array:
    """The matrix L such that `L @ y` holds each record's ridge score after training on the others.

    With the hat matrix H = K (K + penalty I)^-1 the leave-one-out prediction of record i is
    (sum over j != i of H_ij y_j) / (1 - H_ii), a classical identity; L has a zero diagonal.
    """
    kernel = (features @ features.T).astype(np.float64)
    n, penalty = len(kernel), _ridge_penalty(features)
    inverse = scipy.linalg.inv(kernel + penalty * np.eye(n), overwrite_a=True, check_finite=False)
    hat = np.eye(n) - penalty * inverse
    residual = 1.0 - np.diag(hat)
    matrix: FloatArray = hat / residual[:, None]
    np.fill_diagonal(matrix, 0.0)
    return matrix.astype(np.float32)


def _relabelled(labels: BoolArray, count: int, generator: np.random.Generator) -> Float32Array:
    """The centred labels in column 0, then `count` random relabellings, shape `(n, 1 + count)`."""
    values = labels.astype(np.float32) - np.float32(labels.mean())
    drawn = generator.permuted(np.tile(values, (count, 1)), axis=1)
    return np.vstack([values[None, :], drawn]).T


def _statistics(features: Float32Array, loo_matrix: Float32Array, labels: Float32Array) -> FloatArray:
    """Both statistics of every relabelling, shape `(2, count)`, larger = better told apart.

    The first is the correlation of labels with leave-one-out scores; the second the largest absolute
    correlation of labels with one feature (trigram buckets and words alike).
    """
    scores = loo_matrix @ labels
    linear = np.einsum("ij,ij->j", labels, scores) / np.maximum(np.linalg.norm(scores, axis=0), 1e-12)
    normed = features / np.linalg.norm(features, axis=0)
    single = np.empty(labels.shape[1])
    for start in range(0, labels.shape[1], 1000):  # In blocks, to bound memory at d * 1000 numbers.
        block = normed.T @ labels[:, start : start + 1000]
        single[start : start + 1000] = np.maximum(block.max(axis=0), -block.min(axis=0))
    return np.vstack([linear, single]).astype(np.float64)


def _combined_p_value(statistics: FloatArray) -> float:
    """Permutation p-value of the better of the two statistics (Westfall and Young's minimum of p-values).

    Each column's statistics become p-values by rank among all columns, the true labelling included;
    the smaller one is ranked again. Exchangeable columns make the outcome valid, ties counting against us.
    """
    ranks = np.vstack([scipy.stats.rankdata(-_rounded(row), method="max") for row in statistics])
    smallest = ranks.min(axis=0)
    return float(np.mean(smallest <= smallest[0]))


def _rounded(values: FloatArray) -> FloatArray:
    """Values to six digits of their scale, so that rounding errors do not break ties."""
    scale = float(np.abs(values).max())
    return np.round(values / scale, 6) if scale > 0 else values


def _ridge_scores(train: Float32Array, labels: BoolArray, test: Float32Array) -> FloatArray:
    """Scores of the test records from ridge regression on the training records."""
    values = labels.astype(np.float64) - labels.mean()
    kernel = (train @ train.T).astype(np.float64) + _ridge_penalty(train) * np.eye(len(train))
    scores: FloatArray = (test @ train.T).astype(np.float64) @ scipy.linalg.solve(
        kernel, values, assume_a="pos"
    )
    return scores


def _auc_interval(scores: FloatArray, labels: BoolArray, confidence: float) -> tuple[float, float, float]:
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
