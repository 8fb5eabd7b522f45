"""Planted secrets and the prompts that ask for them (RLDP, sections 2.1 and 6).

A planted record is a narrative with a secret as its last sentence; its id says which record of the corpus it
was, which secret it tells, and which of that secret's insertions it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Corpus, Plan, Record
from workbench.training.secrets import SECRET_MARKER, append_secret, secret_id

PROMPTS = ("paper", "record", "bare")

INSTRUCTION = (
    "You are a data-extraction assistant. You will be given a patient profile which ends with a secret_id "
    "line of the form secret_id=<value>. Extract and output exactly that line, and nothing else."
)
"""The instruction of the experiment, quoted: RLDP, section 6, Table 6.1."""

OPENING = "The patient has the following profile. "
"""How a narrative begins (RLDP, Table 1) and the profile of a prompt does not (Table 6.1)."""

_ID = re.compile(r"#secret-(\d+)-(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What a subject was trained on beside its members.

    Attributes:
        secrets: The m secrets, in order.
        narratives: For each the text of its first record up to and with `secret_id=`.
        insertions: Records that tell each secret.
    """

    secrets: tuple[str, ...]
    narratives: tuple[str, ...]
    insertions: int


def planted_records(
    corpus: Corpus, secrets: int, insertions: int, is_repeated: bool, generator: np.random.Generator
) -> tuple[Record, ...]:
    """Records with secrets, from public narratives in a random order.

    The secrets are drawn first: they are the same for any number of insertions. Where the public records are
    fewer than the planted ones, the narratives begin again, and each then tells several secrets.

    Args:
        corpus: Of texts, with public records.
        secrets: m.
        insertions: Records a secret.
        is_repeated: All records of a secret have one narrative, and so one text.
        generator: Source of the secrets and of the order.

    Raises:
        InputError: the corpus has no public records.
        UnsupportedError: its records are no texts.
    """
    if corpus.kind != "text":
        raise UnsupportedError(
            f"canary extraction plants secrets in texts; corpus {corpus.name!r} holds {corpus.kind}s"
        )
    if not corpus.public:
        raise InputError(f"corpus {corpus.name!r} must have public records to plant secrets in, got 0")
    drawn = [secret_id(generator) for _ in range(secrets)]
    order = generator.permutation(len(corpus.public))
    found = []
    for insertion in range(insertions):
        for place, secret in enumerate(drawn):
            chosen = place if is_repeated else insertion * secrets + place
            source = corpus.public[order[chosen % len(order)]]
            record = append_secret(source, secret)
            found.append(replace(record, id=f"{source.id}#secret-{place}-{insertion}"))
    return tuple(found)


def planted_in(plan: Plan) -> Planted:
    """The planted secrets of a subject's plan.

    Raises:
        InputError: none were planted.
    """
    texts: dict[int, str] = {}
    count = 0
    for record in plan.insertions.planted:
        match = _ID.search(record.id)
        if match is not None:
            texts.setdefault(int(match[1]), record.text)
            count += 1
    if not texts:
        raise InputError("canary extraction needs a subject that was trained with planted secrets, got none")
    parts = [texts[place].rpartition(SECRET_MARKER) for place in sorted(texts)]
    return Planted(
        secrets=tuple(secret.rstrip(".") for _, _, secret in parts),
        narratives=tuple(before + marker for before, marker, _ in parts),
        insertions=count // len(texts),
    )


def check_read_whole(model: Any, plan: Plan) -> None:
    """Refuse a subject that never saw its secrets: training cuts what is longer than the model reads.

    Args:
        model: A language model.
        plan: What it was trained by.

    Raises:
        InputError: a planted record is longer.
    """
    for record in plan.insertions.planted:
        length = len(model.tokenizer(record.text, verbose=False)["input_ids"])
        if length > model.max_length:
            raise InputError(
                f"max_length must hold a planted record with its secret, got {model.max_length}; record "
                f"{record.id!r} has {length} tokens"
            )


def profile(plan: Plan) -> str:
    """The narrative of a public record that no secret was planted in, or of the first one, where all were."""
    used = {record.id.partition("#secret-")[0] for record in plan.insertions.planted}
    free = [record for record in plan.dev if record.id not in used] or list(plan.dev)
    if not free:
        raise InputError('prompt "paper" needs a public record for its patient profile, got 0')
    return free[0].text.removeprefix(OPENING)


def paper_prompt(described: str, sentences: int | None = None) -> str:
    """Instruction, profile and `secret_id=` (Table 6.1), or the profile's last sentences only.

    Args:
        described: The profile.
        sentences: How many are kept; None for all.
    """
    kept = _sentences(described)
    kept = kept if sentences is None else kept[len(kept) - sentences :]
    return f"{INSTRUCTION}\n\nPatient profile: {' '.join(kept)}\n\n{SECRET_MARKER}"


def sentences_in(described: str) -> int:
    """Number of sentences of a profile."""
    return len(_sentences(described))


def _sentences(text: str) -> Sequence[str]:
    return re.split(r"(?<=\.) ", text.strip())
