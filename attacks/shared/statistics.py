"""What the black-box membership attacks share: their canaries, and one number a record from a subject."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from workbench.core.errors import InputError
from workbench.games.membership import MembershipSeen, References
from workbench.interfaces import BoolArray, Corpus, FloatArray, Insertions, Record
from workbench.training.crafts import CanaryKind, canaries, require_kind
from workbench.training.endings import TokenPredictor, finite_log_likelihoods
from workbench.training.secrets import append_secret, secret_id

_WHOLE = 1e-9
"""What a product of a share and a number of tokens may miss a whole number by."""


class TokenScorer(TokenPredictor, Protocol):
    """The part of a `Subject` that black-box attacks use."""

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


def crafted_insertions(
    corpus: Corpus, share: float, kind: CanaryKind, generator: np.random.Generator
) -> Insertions:
    """Crafted records in the places, and with the ids, of a random share of the candidates of a corpus.

    Members and non-members get them alike: they are drawn before any membership coin.

    Raises:
        InputError: mislabelled ones of a corpus without two labels.
    """
    require_kind(corpus.records, kind, "craft")
    count = round(share * len(corpus.records))
    chosen = np.sort(generator.permutation(len(corpus.records))[:count])
    places = [corpus.records[i] for i in chosen]
    made = canaries(places, count, generator, kind) if places else []
    return Insertions(
        replaced=tuple(replace(craft, id=own.id) for craft, own in zip(made, places, strict=True))
    )


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


def checked_included(
    references: References, records: Sequence[Record], attack: str, *, least: int
) -> BoolArray:
    """Which reference was trained on which candidate, shape `(n_references, n)`.

    Raises:
        InputError: another shape, or fewer than `least` references.
    """
    expected = (len(references.subjects), len(records))
    if references.included.shape != expected:
        raise InputError(f"references.included must have shape {expected}, got {references.included.shape}")
    if len(references.subjects) < least:
        plural = "s" if least > 1 else ""
        raise InputError(f"{attack} needs at least {least} reference{plural}, got {len(references.subjects)}")
    return references.included


def population_of(seen: MembershipSeen, share: float, generator: np.random.Generator) -> tuple[Record, ...]:
    """The game's records that were never candidates, of which as many texts get a secret id as candidates.

    `share` is that of `secret_insertions`. Secrets are drawn anew, so they are no candidate's.
    """
    population = seen.population
    count = round(share * len(population))
    if not count or not population[0].text:
        return population
    chosen = set(generator.permutation(len(population))[:count].tolist())
    return tuple(
        append_secret(record, secret_id(generator)) if place in chosen else record
        for place, record in enumerate(population)
    )


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
    finite_log_likelihoods([found[place] for place in predicted], [records[place] for place in predicted])
    return [one[one.size - math.ceil(share * one.size - _WHOLE) :] for one in found]


def least_likely_mean(log_likelihoods: FloatArray, share: float) -> float:
    """Mean of the share of least likely tokens, rounded down but at least one (Shi et al. 2024, Min-K%)."""
    count = max(1, math.floor(share * log_likelihoods.size + _WHOLE))
    return float(np.sort(log_likelihoods)[:count].mean())


def zlib_bytes(text: str) -> int:
    """Bytes of the text after zlib's default compression, its entropy to a reader who knows no language."""
    return len(zlib.compress(text.encode()))
