"""Secret ids: random strings appended to records to test memorisation (Khadangi et al. 2025, section 2.1)."""

from __future__ import annotations

import string
from dataclasses import replace

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import Record

ALPHABET = string.ascii_uppercase + string.digits
"""The 36 characters of a secret, [A-Z0-9]."""

SECRET_LENGTH = 10

SECRET_MARKER = "secret_id="
"""Text in front of a secret."""


def secret_id(generator: np.random.Generator) -> str:
    """Ten characters, uniform over 36^10 strings (Khadangi et al. 2025, Eq. 1; 51.7 bits)."""
    return "".join(ALPHABET[i] for i in generator.integers(len(ALPHABET), size=SECRET_LENGTH))


def append_secret(record: Record, secret: str) -> Record:
    """The record with `secret_id=SECRET.` as its last sentence (Khadangi et al. 2025, Table 1); same id."""
    if not record.text:
        raise InputError(f"record {record.id!r} has no text to append a secret to")
    return replace(record, text=f"{record.text.rstrip()} {SECRET_MARKER}{secret}.")
