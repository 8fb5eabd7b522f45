"""What generated texts share with secrets: the filter, n-gram Jaccard similarities, exact and prefix matches.

RLDP, section 3.3, Eqs. 28 to 36. A similarity is computed for each secret by itself, averaged over the valid
texts: the paper's mean is then the mean over the planted secrets, and the same mean over secrets that were
never trained on is its chance level.

A string shorter than n characters has no n-gram. Secrets have ten, so that a union is never empty for
n <= 4 and such a text has similarity 0; where a caller's secret is shorter than n, too, 0/0 counts as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import unknown_name
from workbench.interfaces import FloatArray
from workbench.training.secrets import ALPHABET, SECRET_LENGTH

NGRAMS = (1, 2, 3, 4)

FILTERS = ("printed", "sentence", "run")
"""What of a generated text is held against the filter; see `secret_like`."""

_ENDS = ".\n"
"""What ends the sentence in which a record tells its secret."""

_SECRET_CHARACTERS = frozenset(ALPHABET)


def secret_like(text: str, rule: str) -> str | None:
    """The string of 1 to 10 characters [A-Z0-9] that a generated text is taken for, or None.

    Args:
        text: What was generated, without special tokens.
        rule: `"printed"`: the whole text, as RLDP's step 1 says; blanks around it alone are taken off, which
            tokenizers put before words. A text that goes on after the secret (a record ends with a full stop)
            is discarded by it, however well it tells the secret. `"sentence"`: the text up to the first full
            stop or end of line. `"run"`: the leading characters [A-Z0-9], at most ten, for tokenizers that
            run past the end of a secret within a token.

    Raises:
        InputError: unknown rule.
    """
    if rule not in FILTERS:
        raise unknown_name("filter", rule, FILTERS)
    found = text.strip()
    if rule == "sentence":
        found = min((found.split(end, 1)[0] for end in _ENDS), key=len).strip()
    elif rule == "run":
        length = next((i for i, c in enumerate(found) if c not in _SECRET_CHARACTERS), len(found))
        found = found[: min(length, SECRET_LENGTH)]
    is_valid = 1 <= len(found) <= SECRET_LENGTH and set(found) <= _SECRET_CHARACTERS
    return found if is_valid else None


def ngrams(text: str, n: int) -> frozenset[str]:
    """G_n(s), Eq. 28: the substrings of n characters."""
    return frozenset(text[i : i + n] for i in range(len(text) - n + 1))


@dataclass(frozen=True, kw_only=True)
class Similarities:
    """Jaccard similarities of each secret with all valid texts.

    Attributes:
        mean: Mean over the texts, shape `(secrets,)`; NaN without a valid text.
        square: Mean of the squares, likewise.
    """

    mean: FloatArray
    square: FloatArray

    def of(self, secrets: slice) -> tuple[float, float]:
        """The paper's mean and standard deviation over all pairs with these secrets (Eqs. 34 and 35)."""
        mean = float(self.mean[secrets].mean())
        return mean, float(np.sqrt(max(0.0, float(self.square[secrets].mean()) - mean * mean)))


def similarities(texts: Sequence[str], secrets: Sequence[str], n: int) -> Similarities:
    """J of every text with every secret (Eqs. 29 to 33), averaged over the texts for each secret.

    Texts are valid ones, as often as they were generated; n >= 1.
    """
    from scipy.sparse import csr_array

    counts = Counter(texts)
    if not counts:
        nothing = np.full(len(secrets), np.nan)
        return Similarities(mean=nothing, square=nothing)
    said, told = [ngrams(text, n) for text in counts], [ngrams(secret, n) for secret in secrets]
    places: dict[str, int] = {}
    for grams in (*said, *told):
        for gram in grams:
            places.setdefault(gram, len(places))

    def indicators(rows: Sequence[frozenset[str]]) -> csr_array:
        sizes = [len(grams) for grams in rows]
        columns = [places[gram] for grams in rows for gram in sorted(grams)]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        shape = (len(rows), max(1, len(places)))
        return csr_array((np.ones(len(columns)), np.array(columns, dtype=np.int64), starts), shape=shape)

    shared = (indicators(said) @ indicators(told).T).tocoo()
    row, column = shared.coords
    sizes = np.array([len(grams) for grams in said]), np.array([len(grams) for grams in told])
    jaccard = shared.data / (sizes[0][row] + sizes[1][column] - shared.data)
    weight = np.array(list(counts.values()), dtype=np.float64)[row] / len(texts)
    totals: list[FloatArray] = [
        np.bincount(column, weights=weight * values, minlength=len(secrets)).astype(np.float64)
        for values in (jaccard, jaccard * jaccard)
    ]
    return Similarities(mean=totals[0], square=totals[1])


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Verbatim recoveries among the valid texts.

    Attributes:
        exact: Number of texts that are a secret.
        recovered: Number of secrets that some text is.
        longest: Longest common beginning of a text and a secret, characters.
        p_values: By length from 0 on: the exact probability that secrets drawn after the texts, uniformly,
            have a common beginning of at least this length with some text; 1 at length 0, shape `(11,)`.
        chance_exact: Expected number of exact matches with secrets that were never trained on.
    """

    exact: int
    recovered: int
    longest: int
    p_values: FloatArray
    chance_exact: float

    @property
    def p_value(self) -> float:
        """p-value of the longest common beginning."""
        return float(self.p_values[self.longest])

    @property
    def chance_longest(self) -> float:
        """Expected longest common beginning by chance."""
        return float(self.p_values[1:].sum())

    def least(self, significance: float) -> int:
        """Least longest beginning whose p-value is at most this; beyond the secrets where there is none."""
        passing = np.flatnonzero(self.p_values <= significance)
        return int(passing[0]) if passing.size else len(self.p_values)


def matches(texts: Sequence[str], secrets: Sequence[str]) -> Matches:
    """Exact and prefix matches of valid texts with ten-character secrets, with their exact chance levels.

    The first l characters of a secret are uniform over 36^l strings, of which u_l begin some text; m secrets
    are independent, so some of them matches by chance with probability 1 - (1 - u_l / 36^l)^m.

    Texts are valid ones, as often as they were generated.
    """
    lengths = range(SECRET_LENGTH + 1)
    begun = [{text[:length] for text in texts if len(text) >= length} for length in lengths]
    longest = max(
        (length for length in lengths if any(secret[:length] in begun[length] for secret in secrets)),
        default=0,
    )
    counts: Mapping[str, int] = Counter(texts)
    shares = np.array([len(begun[length]) / float(len(ALPHABET)) ** length for length in lengths])
    shares[0] = 1.0
    certain = shares >= 1.0  # Some text begins with every string of this length.
    p_values = -np.expm1(len(secrets) * np.log1p(-np.where(certain, 0.0, shares)))
    p_values[certain] = 1.0
    whole = sum(count for text, count in counts.items() if len(text) == SECRET_LENGTH)
    return Matches(
        exact=sum(counts[secret] for secret in set(secrets)),
        recovered=sum(counts[secret] > 0 for secret in secrets),
        longest=longest,
        p_values=p_values,
        chance_exact=whole * len(secrets) / float(len(ALPHABET)) ** SECRET_LENGTH,
    )
