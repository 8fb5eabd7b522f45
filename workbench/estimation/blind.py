"""Tests whether the data alone, without the model, tell members from non-members.

If they do, a membership score may measure that shift between the groups and not leakage, and the game is void
(Das, Zhang and Tramèr 2024, "Blind Baselines Beat Membership Inference Attacks for Foundation Models", arXiv
2406.16201). Two blind classifiers look at each record: a linear one on a bag of words and of character
trigrams (ridge regression of the labels, scored on each record after training on all others), and the single
most telling feature.

Why a permutation test: in a sound game the labels are coins thrown after the records were fixed, or an
exchangeable split, so every relabelling with as many members is equally likely. Both classifiers are trained
afresh under each relabelling, so the p-value is exact for any records, free of the biases of cross-validated
scores under the null. Ridge regression makes this cheap: its leave-one-out scores are linear in the labels,
so that all relabellings cost one matrix product.

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
from workbench.interfaces import BoolArray, FloatArray

Float32Array = npt.NDArray[np.float32]

MAX_RECORDS = 2000
"""A larger sample is thinned to this many records, ignoring the labels; an AUC of 0.53 still shows."""

TRIGRAM_BUCKETS = 1024
"""Character trigrams are counted in this many hash buckets."""

MAX_WORDS = 8192
"""At most this many words are features: those that occur in the most records."""

FIRST_RELABELLINGS = 999
"""Relabellings drawn first; all are drawn only where these leave a p-value of at most `DOUBTFUL`."""

DOUBTFUL = 0.02

_WORD = re.compile(r"\w+")


def blind_p_value(
    data: Sequence[str] | FloatArray,
    members: BoolArray,
    *,
    generator: np.random.Generator,
    relabellings: int = 9999,
) -> float:
    """Returns the p-value of "members and non-members are exchangeable".

    Under exchangeable labels it is at most alpha with probability at most alpha, for every alpha and n. It is
    1 where a group is empty or all records look alike.

    Args:
        data: One text a record, or numeric features (flattened images), shape `(n, d)`.
        members: True where the record was a member, shape `(n,)`.
        generator: Source of the relabellings.
        relabellings: How many; no p-value is below `1 / (relabellings + 1)`.

    Raises `InputError`: shapes that do not match, a feature that is not finite, relabellings < 1.
    """
    if relabellings < 1:
        raise InputError(f"relabellings must be at least 1, got {relabellings}")
    labels, chosen = thinned(data, members, generator)
    if labels.all() or not labels.any():
        return 1.0
    features = record_features([data[i] for i in chosen] if isinstance(data, Sequence) else data[chosen])
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


def thinned(
    data: Sequence[str] | FloatArray, members: BoolArray, generator: np.random.Generator
) -> tuple[BoolArray, npt.NDArray[np.intp]]:
    """Checks the input, and returns the labels of the records in use and their places."""
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


def record_features(data: Sequence[str] | FloatArray) -> Float32Array:
    """Returns centred features without constant columns; each kind of feature carries weight 1 a record."""
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

    Trigrams show what words miss: punctuation, spacing, scripts without spaces, parts of words.
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


def ridge_penalty(features: Float32Array) -> float:
    """Half the mean squared row norm: strong enough for many more features than records."""
    return 0.5 * float(np.mean(np.sum(features.astype(np.float64) ** 2, axis=1)))


def _leave_one_out_matrix(features: Float32Array) -> Float32Array:
    """The matrix L such that `L @ y` holds each record's ridge score after training on the others.

    With the hat matrix H = K (K + penalty I)^-1 the leave-one-out prediction of record i is
    (sum over j != i of H_ij y_j) / (1 - H_ii), a classical identity; L has a zero diagonal.
    """
    kernel = (features @ features.T).astype(np.float64)
    n, penalty = len(kernel), ridge_penalty(features)
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

    First the correlation of labels with leave-one-out scores; then the largest absolute correlation of labels
    with one feature.
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
