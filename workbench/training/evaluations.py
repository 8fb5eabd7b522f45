"""The looks at a model's quality in the course of a run: before it, between its steps, and after it.

Each set of weights is looked at once for each set of records. An untrained model is the same for all runs
that start from it, so that its quality is remembered in the process, under a hash of its weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from workbench.interfaces import FloatArray, Model, Plan, Record
from workbench.training.fine_tuning import perplexity, quality

KEPT = 32
"""Untrained models and sets of records whose quality is remembered; then all are forgotten."""

_known: dict[tuple[str, tuple[Record, ...]], dict[str, float]] = {}


def qualities(model: Model, plan: Plan, when: str) -> dict[str, float]:
    """Each metric of a plan's training and held-out records, named like `train_perplexity_after`.

    Of the training records the first `plan.scored_members`.

    `when`: `"before"` for the plan's untrained model, whose numbers are remembered; or `"after"`.
    """
    parts = {"train": plan.records[: plan.scored_members], "test": plan.held_out}
    if when == "before":
        state = _state_of(model, plan)
        found = {part: _remembered(state, model, records) for part, records in parts.items()}
    else:
        found = {part: quality(model, records) for part, records in parts.items()}
    return {f"{part}_{name}_{when}": value for part in found for name, value in found[part].items()}


def _remembered(state: str, model: Model, records: Sequence[Record]) -> dict[str, float]:
    """`quality` of records under a model in this state."""
    key = state, tuple(records)
    if key not in _known:
        if len(_known) >= KEPT:
            _known.clear()
        _known[key] = quality(model, records)
    return _known[key]


def _state_of(model: Model, plan: Plan) -> str:
    """A hash of what a plan's untrained model answers: its source, adapter, device, and all its numbers."""
    adapted = [plan.lora_rank, plan.lora_alpha, plan.lora_targets] if plan.adapter == "lora" else []
    source = [plan.model, dict(plan.model_parameters), adapted, plan.device, repr(plan.insertions.new_tokens)]
    digest = hashlib.sha256(json.dumps(source, sort_keys=True, default=repr).encode())
    for name, tensor in model.module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


class Evaluations:
    """Perplexities of a run's held-out records every `interval` steps; none for 0, or without records.

    Those before the first step and after the last are among the run's `qualities`, and are taken from there.
    """

    def __init__(self, model: Model, records: Sequence[Record], interval: int) -> None:
        self._model, self._records = model, records
        self._interval = interval if records else 0
        self._perplexities: dict[int, float] = {}

    def after(self, step: int) -> None:
        """Measure after this many steps, if it is due."""
        if self._interval and step % self._interval == 0:
            self._perplexities[step] = perplexity(self._model, self._records)

    def traces(self, steps: int, metrics: Mapping[str, float]) -> Mapping[str, FloatArray]:
        """`evaluation_steps` (from 0, before the first) and `evaluation_perplexity`; empty if off.

        `steps`: of the run. `metrics`: its qualities before and after.
        """
        if not self._interval:
            return {}
        ends = {0: metrics["test_perplexity_before"], steps: metrics["test_perplexity_after"]}
        perplexities = dict(sorted({**self._perplexities, **ends}.items()))
        return {
            "evaluation_steps": np.array(list(perplexities), dtype=np.float64),
            "evaluation_perplexity": np.array(list(perplexities.values()), dtype=np.float64),
        }
