"""Small plans for the tests of FERRET, and what they read of a training."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from workbench.accounting import MutualInformation
from workbench.core import registry
from workbench.interfaces import Corpus, Plan, ReleasedSigns, Secret
from workbench.training.fine_tuning import trainable
from workbench.training.subject import TrainedSubject


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=120, seed=0)
    return corpus


def nats(number: float) -> MutualInformation:
    return MutualInformation(nats=number, secret=Secret.RECORD)


def make_plan(**changes: object) -> Plan:
    """Forty steps on handwritten digits, with two nats to spend."""
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_mlp",
        steps=40,
        sampling_probability=0.1,
        learning_rate=1e-2,
        weight_decay=1e-2,
        budget=nats(2.0),
        seed=3,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def parameters(subject: TrainedSubject) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable(subject.model.module).values()])


def signs_of(subject: TrainedSubject) -> ReleasedSigns:
    released = subject.transcript.released_signs
    assert released is not None
    return released
