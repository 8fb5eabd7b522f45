"""Trainers at (1, 1e-5) whose samplers leave some records out, or the last batch of an epoch smaller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import Records, Trainer, tensors


class HoldsOut(Trainer):
    """Correct: the held-out records are not looked at."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        held = len(records) // 5
        self.held, self.best, self.worse = tensors(records[:held]), float("inf"), 0
        return super().__call__(records[held:], seed)


class StopsOnHeldOut(HoldsOut):
    """Wrong: nothing more is learned once the held-out records' loss has risen three times."""

    def after(self, step: int) -> None:
        images, labels = self.held
        with torch.no_grad():
            loss = float(functional.cross_entropy(self.network(images), labels))
        self.worse = self.worse if loss <= self.best else self.worse + 1
        self.best = min(self.best, loss)
        if self.worse == 3:
            self.stepping.param_groups[0]["lr"] = 0.0

    def optimizer(self) -> torch.optim.Optimizer:
        self.stepping = super().optimizer()
        return self.stepping


class RateByVotes(Trainer):
    """Correct: other records, half of all, once vote on the rate by randomised response (0.2-DP)."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        half = len(records) // 2
        _, self.voters = tensors(records[:half])
        return super().__call__(records[half:], seed)

    def optimizer(self) -> torch.optim.Optimizer:
        self.stepping = super().optimizer()
        return self.stepping

    def after(self, step: int) -> None:
        if step == 20:
            turned = torch.rand(len(self.voters), generator=self.generator) < 0.45
            rate = 0.5 * float(((self.voters < 5) ^ turned).float().mean())
            self.stepping.param_groups[0]["lr"] = rate


class ShuffledWithARest(Trainer):
    """Wrong: epochs of seven batches, the last of them smaller, under the noise of samples of a tenth."""

    def batch(self, step: int) -> Tensor:
        if step % 7 == 0:
            self.order = torch.randperm(len(self.labels), generator=self.generator)
        size = -(-len(self.labels) // 7) + 1
        return self.order[step % 7 * size : (step % 7 + 1) * size]


holds_out, stops_on_held_out, rate_by_votes = HoldsOut(), StopsOnHeldOut(), RateByVotes()
shuffled_with_a_rest = ShuffledWithARest()
