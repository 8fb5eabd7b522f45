"""Plans on digits that the tests of Shuffled DPSGD and of its twins share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.interfaces import Corpus, Plan
from workbench.training.fine_tuning import trainable
from workbench.training.subject import TrainedSubject

BUDGET = ApproximateDP(epsilon=1.0, delta=1e-5)


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=120, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=digits().held_out[:30],
        model="digits_mlp",
        steps=12,
        sampling_probability=0.2,
        learning_rate=0.05,
        optimizer="sgd",
        budget=BUDGET,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def weights(subject: TrainedSubject) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in trainable(subject.model.module).values()])
