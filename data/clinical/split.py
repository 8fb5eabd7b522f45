"""Records made of encounters, one of each, no two with the same text: generated, or from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from workbench.core.errors import InputError
from workbench.data.clinical import MOST_ROUNDS
from workbench.data.clinical.encounters import Encounter
from workbench.data.clinical.generator import generate
from workbench.data.shared.parts import Sizes, normal_form
from workbench.interfaces import Record

Maker: TypeAlias = Callable[[Encounter], Record | None]
"""The record of an encounter; None where there is nothing to record."""


def distinct_records(encounters: Iterable[Encounter], make: Maker, seen: set[str]) -> list[Record]:
    """Records of the encounters, without those whose text was made before.

    Args:
        encounters: In order.
        make: Called once for each.
        seen: Normal forms of the texts that were made before; those of these records are added.
    """
    found: list[Record] = []
    for encounter in encounters:
        record = make(encounter)
        if record is not None and normal_form(record.text) not in seen:
            seen.add(normal_form(record.text))
            found.append(record)
    return found


def generated_records(
    sizes: Sizes, make: Maker, generator: np.random.Generator, what: str
) -> Sequence[Record]:
    """Exactly as many records of generated encounters as the parts need.

    Args:
        sizes: Of the parts.
        make: See `Maker`.
        generator: Source of the encounters, and of whatever `make` draws.
        what: For the error, by what they are told apart: a sentence in which {} is how many of how many.

    Raises:
        InputError: the encounters do not give so many.
    """
    records: list[Record] = []
    seen: set[str] = set()
    drawn = 0
    for _ in range(MOST_ROUNDS):
        missing = sizes.total - len(records)
        if missing <= 0:
            return records[: sizes.total]
        batch = generate(missing + missing // 20 + 8, generator, first=drawn)
        drawn += len(batch)
        records.extend(distinct_records(batch, make, seen))
    told = what.format(f"only {len(records)} of {sizes.total}")
    raise InputError(f"size must be smaller, got {sizes.candidates}: {told}")
