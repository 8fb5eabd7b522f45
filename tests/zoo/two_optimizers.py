"""DP-SGD of the last layer after steps of another optimizer, which reads the members (wrong)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from correct import HeadAfterPublicPretraining


class HeadAfterPretrainingOnMembers(HeadAfterPublicPretraining):
    def public(self) -> tuple[Tensor, Tensor]:
        return self.images, self.labels


class HeadAfterPretrainingOnFirsts(HeadAfterPublicPretraining):
    """On the first member of each label."""

    def public(self) -> tuple[Tensor, Tensor]:
        firsts = [int((self.labels == label).nonzero()[0]) for label in self.labels.unique()]
        return self.images[firsts], self.labels[firsts]


class _ByHand(torch.optim.SGD):
    """Steps by gradients that it is given."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for parameter, gradient in zip(self.param_groups[0]["params"], closure, strict=True):
                parameter.sub_(1e-2 * gradient)


class HeadAfterStepsByHand(HeadAfterPretrainingOnMembers):
    """By an optimizer whose gradients are not where those of others are."""

    def pretrained(self, images: Tensor, labels: Tensor) -> None:
        parameters = list(self.network.parameters())
        public = _ByHand(parameters)
        for _ in range(5):
            loss = functional.cross_entropy(self.network(images), labels)
            public.step(torch.autograd.grad(loss, parameters))


head_after_pretraining_on_members = HeadAfterPretrainingOnMembers()
head_after_pretraining_on_firsts = HeadAfterPretrainingOnFirsts()
head_after_steps_by_hand = HeadAfterStepsByHand()
