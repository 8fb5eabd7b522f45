"""What the black-box membership attacks share: their canaries, and one number a record from a subject."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import Corpus, FloatArray, Insertions, Record
from workbench.training.secrets import append_secret, secret_id

SAME_LOG_LIKELIHOOD_NATS = 1e-3
"""Two passes over one token in one context differ by less (float32, other padding)."""

_WHOLE = 1e-9
"""What a product of a share and a number of tokens may miss a whole number by."""


class TokenScorer(Protocol):
    """The part of a `Subject` that black-box attacks use."""

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """Per-record token log-likelihoods, nats."""

    def token_z_scores(self, records: Sequence[Record]) -> list[FloatArray]:
        """Per-record token log-likelihoods, standardised under the model's own distribution."""


def secret_insertions(corpus: Corpus, share: float, generator: np.random.Generator) -> Insertions:
    """Secret ids appended to a random share of the candidates of a text corpus (RLDP, section 2.1).

    Members and non-members get them alike: secrets are drawn before any membership coin. They depend on
    the corpus, the share and the generator alone, so attacks that ask alike share one subject.

    `share` is in [0, 1]; image corpora get no secrets.
    """
    if corpus.kind != "text":
        return Insertions()
    count = round(share * len(corpus.records))
    chosen = np.sort(generator.permutation(len(corpus.records))[:count])
    return Insertions(replaced=tuple(append_secret(corpus.records[i], secret_id(generator)) for i in chosen))


def checked_share(canaries: float) -> float:
    """The share of candidates with a secret, in [0, 1].

    Raises:
        InputError: it is outside.
    """
    if not 0.0 <= canaries <= 1.0:
        raise InputError(f"canaries must be in [0, 1], got {canaries:g}")
    return canaries


def checked_records(candidates: Sequence[Record], attack: str) -> Sequence[Record]:
    """The candidates, of which there must be some.

    Raises:
        InputError: there are none.
    """
    if not candidates:
        raise InputError(f"attack {attack!r} needs at least one candidate, got 0")
    return candidates


def scored_log_likelihoods(
    subject: TokenScorer, records: Sequence[Record], ending_marker: str
) -> list[FloatArray]:
    """Token log-likelihoods of each record, or of its ending after a marker given all before it.

    The ending begins with the first token that the record and its prompt (the text up to and with the
    marker) do not share, found by comparing log-likelihoods, since an attack sees no tokenizer: in a
    causal model a shared token in a shared context has one likelihood. A token that straddles the
    boundary counts to the ending.

    Args:
        ending_marker: Last occurrence splits the record; empty for the whole record.

    Returns:
        One array a record, nats, at least one token each.

    Raises:
        InputError: the marker is missing in a record, nothing follows it within what the model reads,
            a record has no scored token, or a log-likelihood is not finite.
    """
    whole = _finite(subject.token_log_likelihoods(records), records)
    if not ending_marker:
        return whole
    prompts = []
    for record in records:
        before, marker, _ = record.text.rpartition(ending_marker)
        if not marker:
            raise InputError(f"ending_marker {ending_marker!r} does not occur in record {record.id!r}")
        prompts.append(replace(record, text=before + marker))
    endings = []
    for record, full, prompt in zip(records, whole, subject.token_log_likelihoods(prompts), strict=True):
        ending = full[_shared_length(full, prompt) :]
        if ending.size == 0:
            raise InputError(
                f"ending of record {record.id!r} after {ending_marker!r} "
                "is empty or beyond the model's max_length"
            )
        endings.append(ending)
    return endings


def ending_log_likelihoods(subject: TokenScorer, records: Sequence[Record], share: float) -> list[FloatArray]:
    """Token log-likelihoods of the last share of each record's tokens, given all before them.

    RLDP's split into prompt and ending (section 3.3) without saying where it cuts; in a causal model a
    token's log-likelihood in the whole record is that in its ending given its prompt (Eq. 37), so one pass
    does. The share is of the tokens that the model predicts, up to its `max_length`, rounded up.

    Returns:
        One array a record, nats; empty where the model predicts no token of it, so that it cannot be split.

    Raises:
        InputError: a log-likelihood is not finite.
    """
    found = subject.token_log_likelihoods(records)
    predicted = [place for place, one in enumerate(found) if one.size]
    _finite([found[place] for place in predicted], [records[place] for place in predicted])
    return [one[one.size - math.ceil(share * one.size - _WHOLE) :] for one in found]


def least_likely_mean(log_likelihoods: FloatArray, share: float) -> float:
    """Mean of the share of least likely tokens, rounded down but at least one (Shi et al. 2024, Min-K%)."""
    count = max(1, math.floor(share * log_likelihoods.size + _WHOLE))
    return float(np.sort(log_likelihoods)[:count].mean())


def zlib_bytes(text: str) -> int:
    """Bytes of the text after zlib's default compression, its entropy to a reader who knows no language."""
    return len(zlib.compress(text.encode()))


def _shared_length(full: FloatArray, prompt: FloatArray) -> int:
    """Number of leading tokens with equal log-likelihoods."""
    length = min(len(full), len(prompt))
    differs = np.abs(full[:length] - prompt[:length]) > SAME_LOG_LIKELIHOOD_NATS
    return int(np.argmax(differs)) if differs.any() else length


def _finite(log_likelihoods: list[FloatArray], records: Sequence[Record]) -> list[FloatArray]:
    for record, values in zip(records, log_likelihoods, strict=True):
        if values.size == 0:
            raise InputError(f"record {record.id!r} is too short: the model predicts no token of it")
        if not np.isfinite(values).all():
            raise InputError(
                f"model gives record {record.id!r} a log-likelihood that is not finite; its training "
                "diverged (try a lower learning_rate)"
            )
    return log_likelihoods
