"""Noise that some coordinates get in some steps alone: whether their choice follows from no record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from workbench.audit.replay.crafts import Craft
from workbench.audit.replay.noise import Noise, gaps_of
from workbench.audit.replay.recording import Layout, Recording
from workbench.audit.replay.runs import Runs, agreement
from workbench.core.errors import InputError
from workbench.interfaces import BoolArray

FEWEST = 100
"""Coordinates with noise in each step that has some, at least: of fewer, too little is known by itself."""

FEWEST_STEPS = 3
"""Steps in which coordinates have noise, and a record is, before these say that they follow it."""

ROUNDED = 1e-3
"""Share of its places in which noise may be too small to be seen beside what it is added to."""


def public_gaps(
    runs: Runs, a: Recording, b: Recording, noise: Noise, craft: Craft
) -> tuple[tuple[Tensor, ...], bool]:
    """Of each step, noisy coordinates without noise in it, and whether they are the same on other records.

    On the same ones in reversed order, ids and all, where other records are in each batch; and where nearly
    all are one craft. A choice that follows who is in a batch, or what these hold, is another one there.

    Args:
        noise: Between run A and run B, all coordinates taken for noisy in all steps.
    """
    gaps = gaps_of(a, b, noise)
    if not gaps:
        return (), False
    noisy = noise.scale > 0
    counts = [int((noisy & ~gap).sum()) for gap in gaps]
    if min((count for count in counts if count), default=0) < FEWEST:
        return gaps, False
    kept = {record["label"]: i for i, record in enumerate(runs.records)}.values()
    crafted = dict.fromkeys(set(range(len(runs.records))) - set(kept), craft.record)
    others: list[Sequence[Mapping[str, Any]]] = [list(reversed(runs.records)), runs.with_records(crafted)]
    with suppress(InputError):
        return gaps, all(_are_the_same(runs, (a, b), records, noisy, gaps) for records in others)
    return gaps, False


def of_one_record(noise: Noise, layout: Layout, present: BoolArray) -> list[str]:
    """Tensors of which some coordinates have noise in just the steps that one record is in: rows of its own.

    Args:
        present: In which steps it is, shape `(T,)`.
    """
    if not noise.gaps or not FEWEST_STEPS <= int(present.sum()) < len(present):
        return []
    is_here = torch.from_numpy(present)[:, None]
    return [
        name
        for name, place in layout.slices()
        if bool(
            (
                (torch.stack([~gap[place] for gap in noise.gaps]) == is_here).all(dim=0)
                & (noise.scale[place] > 0)
            ).any()
        )
    ]


def _are_the_same(
    runs: Runs,
    own: tuple[Recording, Recording],
    records: Sequence[Mapping[str, Any]],
    noisy: Tensor,
    gaps: Sequence[Tensor],
) -> bool:
    """Whether nothing is in the gaps on other records, and noise in all other places but for rounding."""
    a, b = own
    with_noise, bare = (runs(records, forced=a, share=share) for share in (1.0, 0.0))
    if not agreement([b, with_noise, bare], a.steps).all():
        return False
    return all(
        not bool(one[gap].any() or other[gap].any())
        and int((one == other)[noisy & ~gap].sum()) <= ROUNDED * int((noisy & ~gap).sum())
        for one, other, gap in zip(with_noise.gradients, bare.gradients, gaps, strict=True)
    )
