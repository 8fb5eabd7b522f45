"""The tokens of a record, or of its ending alone given all before it, as a language model predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, Record

SAME_LOG_LIKELIHOOD_NATS = 1e-3
"""Two passes over one token in one context differ by less (float32, other padding)."""


class TokenPredictor(Protocol):
    """What predicts the tokens of records."""

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        """Per-record token log-likelihoods, nats."""


def scored_log_likelihoods(
    subject: TokenPredictor, records: Sequence[Record], ending_marker: str
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
    whole = finite_log_likelihoods(subject.token_log_likelihoods(records), records)
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


def _shared_length(full: FloatArray, prompt: FloatArray) -> int:
    """Number of leading tokens with equal log-likelihoods."""
    length = min(len(full), len(prompt))
    differs = np.abs(full[:length] - prompt[:length]) > SAME_LOG_LIKELIHOOD_NATS
    return int(np.argmax(differs)) if differs.any() else length


def finite_log_likelihoods(log_likelihoods: list[FloatArray], records: Sequence[Record]) -> list[FloatArray]:
    """The same log-likelihoods.

    Raises:
        InputError: there are none of a record, or one is not finite.
    """
    for record, values in zip(records, log_likelihoods, strict=True):
        if values.size == 0:
            raise InputError(f"record {record.id!r} is too short: the model predicts no token of it")
        if not np.isfinite(values).all():
            raise InputError(
                f"model gives record {record.id!r} a log-likelihood that is not finite; its training "
                "diverged (try a lower learning_rate)"
            )
    return log_likelihoods
