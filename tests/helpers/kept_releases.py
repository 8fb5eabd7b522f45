"""Keeps what a run's privatise step released, for tests that work out again what followed from it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workbench.interfaces import Signals
from workbench.training.steps import PrivatisedSums


def keep_releases(monkeypatch: pytest.MonkeyPatch, run: type[PrivatisedSums]) -> list[Tensor]:
    """A list that every release of such a run is appended to, until the test ends."""
    kept: list[Tensor] = []
    privatise = run.privatise

    def keeping(self: PrivatisedSums, signals: Signals, generator: torch.Generator) -> Tensor:
        released = privatise(self, signals, generator)
        kept.append(released)
        return released

    monkeypatch.setattr(run, "privatise", keeping)
    return kept
