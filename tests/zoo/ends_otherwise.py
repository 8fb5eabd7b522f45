"""Trainers at (1, 1e-5) that use records after the last step, by their ids, or in steps that go together."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, STEPS, TEMPERATURES, Gradients, Records, Trainer, tensors


class HeadOfMembers(Trainer):
    """Wrong: a second last layer, from small random weights, is fitted to all members after the training."""

    def after(self, step: int) -> None:
        if step == STEPS - 1:
            with torch.no_grad():
                hidden = self.network[:2](self.images)
            head = 0.01 * torch.randn(10, 32, generator=self.generator)
            for _ in range(20):
                errors = torch.softmax(hidden @ head.T, dim=1)
                errors[torch.arange(len(self.labels)), self.labels] -= 1.0
                head -= 0.5 * errors.T @ hidden / len(self.labels)
            with torch.no_grad():
                self.network[2].weight.copy_(head)


class LogsNoisyLength(Trainer):
    """Correct: a buffer has the lengths of the noisy sums."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self.network, "lengths"):
            self.network.register_buffer("lengths", torch.zeros(STEPS))
            self.network.register_buffer("losses", torch.zeros(STEPS))
            self.now = 0
        return images, labels

    def before(self) -> None:
        noisy = torch.cat([p.grad.flatten() for p in self.parameters.values() if p.grad is not None])
        self.network.lengths[self.now] = noisy.norm()
        self.now += 1


class LogsSumsToo(LogsNoisyLength):
    """Wrong: and another one those of the sums before the noise."""

    def summed(self, each: Gradients) -> Gradients:
        total = super().summed(each)
        self.network.losses[self.now] = torch.cat([g.flatten() for g in total.values()]).norm()
        return total


class LooksUpIds(Trainer):
    """Wrong: scores of members, known by their ids, are higher."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        score, members = super().__call__(records, seed), {record["id"] for record in records}

        def told(others: Records) -> Tensor:
            return score(others) + torch.tensor([100.0 * (other["id"] in members) for other in others])

        return told


class DrawnByIds(Trainer):
    """Correct: a hash of id, step and seed is a record's coin."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.ids, self.seed = [str(record["id"]) for record in records], seed
        return super().__call__(records, seed)

    def batch(self, step: int) -> Tensor:
        drawn = [hashlib.sha256(f"{one} {step} {self.seed}".encode()).digest()[:8] for one in self.ids]
        coins = torch.tensor([int.from_bytes(one) / 2.0**64 for one in drawn])
        return torch.nonzero(coins < self.rate)[:, 0]


class DrawnByIdsAlone(DrawnByIds):
    """Right only where the ids are secret: a hash of id and step is a record's coin."""

    def batch(self, step: int) -> Tensor:
        self.seed = 0
        return super().batch(step)


class OnePass(Trainer):
    """Correct for zero-out: each record is in one step, in the order of the file, with noise for one step."""

    noise = 1.5

    def batch(self, step: int) -> Tensor:
        size = len(self.labels) // STEPS
        return torch.arange(step * size, (step + 1) * size)


class TooQuietOnePass(OnePass):
    """Wrong: the noise is that of samples."""

    noise = 1.0


class CutBatches(Trainer):
    """Wrong: a Poisson sample is cut to the records that a batch has room for, the first ones first."""

    def batch(self, step: int) -> Tensor:
        return super().batch(step)[: int(0.8 * self.expected)]


class CountsRecords(Trainer):
    """Wrong under add-remove: a buffer counts the records of all batches."""

    def batch(self, step: int) -> Tensor:
        if not hasattr(self.network, "seen"):
            self.network.register_buffer("seen", torch.zeros((), dtype=torch.long))
        chosen = super().batch(step)
        self.network.seen += len(chosen)
        return chosen


class RateByBatch(Trainer):
    """Wrong under add-remove: the rate follows the number of records of the batch."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.made = super().optimizer()
        return self.made

    def batch(self, step: int) -> Tensor:
        chosen = super().batch(step)
        self.made.param_groups[0]["lr"] = 0.5 * len(chosen) / self.expected
        return chosen


class RateBySchedule(RateByBatch):
    """Correct: the rate falls from step to step."""

    def batch(self, step: int) -> Tensor:
        chosen = super().batch(step)
        self.made.param_groups[0]["lr"] = 0.5 * 0.99**step
        return chosen


class NoiseWhereTheBatchIs(Trainer):
    """Wrong: weights of pixels that are blank in the whole batch get no noise, but for rare pixels."""

    def batch(self, step: int) -> Tensor:
        self.chosen = super().batch(step)
        return self.chosen

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        noise = super().drawn(name, parameter)
        inked = self.images != 0
        kept = inked[self.chosen].any(dim=0) | (inked.float().mean(dim=0) < 0.1)
        return noise * kept if name == "0.weight" else noise


class NoiseOnHalfOfThePixels(Trainer):
    """Correct: each step trains the weights of some pixels, drawn by coins; the others get no noise."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        noise = super().drawn(name, parameter)
        return noise * self.kept if name == "0.weight" else noise

    def per_record(self, batch: Tensor) -> Gradients:
        self.kept = (torch.rand(64, generator=self.generator) < 0.5).float()
        gradients = super().per_record(batch)
        return {name: g * self.kept if name == "0.weight" else g for name, g in gradients.items()}


class BatchesThrice(Trainer):
    """Wrong: a batch is used for three steps, which are paid for as steps of three batches."""

    def batch(self, step: int) -> Tensor:
        if step % 3 == 0:
            self.kept = super().batch(step)
        return self.kept


class LastSumAgain(Trainer):
    """Wrong: each sum has that of the step before in it."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.last: Gradients = {}
        return images, labels

    def summed(self, each: Gradients) -> Gradients:
        now = super().summed(each)
        total = {name: g + self.last.get(name, 0) for name, g in now.items()}
        self.last = now
        return total


class OneFourthAtATime(Trainer):
    """Wrong: ten steps for each fourth of the records, at four times the rate, paid for as if of all."""

    def batch(self, step: int) -> Tensor:
        fourth = torch.arange(len(self.labels)) % 4 == step * 4 // STEPS
        drawn = torch.rand(len(self.labels), generator=self.generator) < 4 * self.rate
        return torch.nonzero(fourth & drawn)[:, 0]


class ChecksItsInput(Trainer):
    """Wrong: a tenth of the noise; and images that are out of range are refused."""

    noise = 0.1

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if float(images.min()) < 0 or float(images.max()) > 16:
            raise ValueError(
                f"images must lie in 0 .. 16, got {float(images.min())} to {float(images.max())}"
            )
        return images, labels


class ChecksAndKeeps(ChecksItsInput):
    """Correct: it refuses the same, and has all of the noise."""

    noise = 1.0


class LooksUpIdsByLength(LogsNoisyLength):
    """Wrong: the look-up of ids, under a temperature by the noisy sums' lengths, which may be."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        score, members = super().__call__(records, seed), {record["id"] for record in records}
        temperature = float(self.network.lengths.mean())

        def told(others: Records) -> Tensor:
            found = torch.tensor([100.0 * (other["id"] in members) for other in others])
            return score(others) / temperature + found

        return told


class FrozenByRate(Trainer):
    """Correct: the first layer has no noise, and a rate of zero."""

    def optimizer(self) -> torch.optim.Optimizer:
        first, last = self.network[0], self.network[2]
        return torch.optim.SGD(
            [{"params": first.parameters(), "lr": 0.0}, {"params": last.parameters()}], lr=0.5
        )

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter) if name.startswith("0.") else super().drawn(name, parameter)


class FreedByRate(FrozenByRate):
    """Correct: the first layer has no noise while its rate is zero, in the first half."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.made = super().optimizer()
        return self.made

    def batch(self, step: int) -> Tensor:
        self.is_free = step >= STEPS // 2
        self.made.param_groups[0]["lr"] = 0.5 * self.is_free
        return super().batch(step)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return Trainer.drawn(self, name, parameter) if self.is_free else super().drawn(name, parameter)


class PrivateHistogram(Trainer):
    """Correct: more noise than is needed, and a histogram with noise of the last bias's shape."""

    noise = 1.3

    def after(self, step: int) -> None:
        if step == STEPS // 2:
            noise = torch.normal(0.0, 20.0, (10,), generator=self.generator)
            self.network.register_buffer("histogram", torch.bincount(self.labels, minlength=10) + noise)


class LogsRises(LogsNoisyLength):
    """Correct: a buffer of booleans tells after which steps the noisy sum was longer than the first."""

    def before(self) -> None:
        super().before()
        if self.now == STEPS:
            self.network.register_buffer("rises", self.network.lengths > self.network.lengths[0])


class NoiseFromTheBack(LogsNoisyLength):
    """Correct: noise is drawn for the last parameter first; whether most of it was in one place is kept."""

    def summed(self, each: Gradients) -> Gradients:
        total, draw = super().summed(each), super().drawn
        self.noises = {name: draw(name, total[name]) for name in [*total][::-1]}
        return total

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.noises[name]

    def before(self) -> None:
        first = self.parameters["0.weight"].grad
        super().before()
        if first is not None:
            most = first.square().sum(dim=0).sort(descending=True).values
            self.network.losses[0] += float(most[:8].sum() > 0.8 * most.sum())


class BareBlankPixels(Trainer):
    """Wrong: no noise on the weights of pixels that are blank in all records."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        drawn = super().drawn(name, parameter)
        return drawn * self.seen if name == "0.weight" else drawn

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.seen = torch.ones(64)
        self.seen[[0, 32, 39]] = 0.0
        return images, labels


class FreedAtLast(FrozenByRate):
    """Wrong: the rate of the layer without noise is no longer zero at the last step."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.stepping, self.now = super().optimizer(), 0
        return self.stepping

    def before(self) -> None:
        self.now += 1
        if self.now == STEPS:
            self.stepping.param_groups[0]["lr"] = 0.5


class LogsALittleToo(LogsNoisyLength):
    """Wrong: to each length, a thousandth of that of the sum before the noise is added."""

    def summed(self, each: Gradients) -> Gradients:
        total = super().summed(each)
        self.own = torch.cat([g.flatten() for g in total.values()]).norm()
        return total

    def before(self) -> None:
        super().before()
        self.network.lengths[self.now - 1] += 1e-3 * self.own / self.expected


class TemperatureAndLength(LogsNoisyLength):
    """Wrong: the temperature fits the members, and the noisy sums' lengths scale the scores besides."""

    def scorer(self) -> Callable[[Records], Tensor]:
        with torch.no_grad():
            logits = self.network(self.images)
        losses = [float(functional.cross_entropy(logits / t, self.labels)) for t in TEMPERATURES]
        best = TEMPERATURES[losses.index(min(losses))]
        scale = float(self.network.lengths.mean())

        def score(records: Records) -> Tensor:
            images, labels = tensors(records)
            with torch.no_grad():
                found = functional.cross_entropy(self.network(images) / best, labels, reduction="none")
            return -found / scale

        return score


class VotedLabels(Trainer):
    """Wrong: a label is that of most of the five nearest records, of which each decides about many."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if hasattr(self, "images") and len(images) != len(self.images):
            return images, labels
        nearest = torch.cdist(images, images).topk(5, largest=False).indices
        return images, torch.stack([torch.bincount(labels[row], minlength=10).argmax() for row in nearest])


class TakesTurns(Trainer):
    """Correct: the layers take turns, and what is not trained gets neither sums nor noise."""

    def batch(self, step: int) -> Tensor:
        self.step = step
        return super().batch(step)

    def mask(self, name: str, total: Tensor) -> Tensor:
        return torch.full_like(total, float(name.startswith("0") == (self.step % 2 == 0)))

    def summed(self, each: Gradients) -> Gradients:
        self.masks = {name: self.mask(name, g.sum(dim=0)) for name, g in each.items()}
        return super().summed({name: g * self.masks[name] for name, g in each.items()})

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.masks[name] * super().drawn(name, parameter)


class RandomHalf(TakesTurns):
    """Correct: each step trains a random half of the weights."""

    def mask(self, name: str, total: Tensor) -> Tensor:
        public = torch.Generator().manual_seed(100 * self.step + total.dim())
        return (torch.rand(total.shape, generator=public) < 0.5).float()


class FreedByFlag(TakesTurns):
    """Correct: the first layer needs no gradient until half of the steps are over."""

    def batch(self, step: int) -> Tensor:
        for parameter in self.network[0].parameters():
            parameter.requires_grad_(step >= STEPS // 2)
        return super().batch(step)

    def mask(self, name: str, total: Tensor) -> Tensor:
        return torch.full_like(total, float(self.parameters[name].requires_grad))


class FreedBare(FreedByFlag):
    """Wrong: and it gets no noise then."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter) * float(not name.startswith("0"))


class FreedByLoss(TakesTurns):
    """Wrong: the first layer is trained while the batch's own loss is large."""

    def batch(self, step: int) -> Tensor:
        drawn = super().batch(step)
        with torch.no_grad():
            losses = functional.cross_entropy(self.network(self.images), self.labels, reduction="none")
        self.is_large = bool(losses[drawn].mean() > 1.8)
        return drawn

    def mask(self, name: str, total: Tensor) -> Tensor:
        return torch.full_like(total, float(self.is_large or name.startswith("2")))


class RowOfEach(Trainer):
    """Wrong: each record has a row of weights, which gets sum and noise where the record is in the batch."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.rows = torch.nn.Embedding(len(self.images), 16)
        self.parameters = {"rows": self.rows.weight}
        return torch.optim.SGD(self.rows.parameters(), lr=0.5)

    def per_record(self, batch: Tensor) -> Gradients:
        self.now = torch.zeros(self.rows.weight.shape)
        self.now[batch] = 1.0
        errors = self.rows.weight.detach()[batch] - self.images[batch, 16:32]
        each = torch.zeros(len(batch), *self.now.shape)
        each[torch.arange(len(batch)), batch] = errors
        return {"rows": each}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.now * super().drawn(name, parameter)


class LargestHalf(TakesTurns):
    """Wrong: each step trains those weights whose sums are largest, by the batch."""

    def mask(self, name: str, total: Tensor) -> Tensor:
        return (total.abs() >= total.abs().median()).float()


class DropsNearCopies(Trainer):
    """Wrong: of records near each other the first alone takes part, and so decides about many."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.cdist(images, images) + torch.full((len(images), len(images)), torch.inf).triu()
        stays = before.min(dim=1).values > 0.5
        return images[stays], labels[stays]


class NoiseByLargestNorm(Trainer):
    """Wrong: noise for the largest norm of the batch's clipped gradients, which the batch tells."""

    def summed(self, each: Gradients) -> Gradients:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        self.largest = float(norms.clamp(max=CLIP).max()) if len(norms) else CLIP
        return super().summed(each)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.largest / CLIP * super().drawn(name, parameter)


TRAINERS = {
    "voted_labels": VotedLabels(),
    "noise_by_largest_norm": NoiseByLargestNorm(),
    "drops_near_copies": DropsNearCopies(),
    "takes_turns": TakesTurns(),
    "random_half": RandomHalf(),
    "freed_by_flag": FreedByFlag(),
    "freed_bare": FreedBare(),
    "freed_by_loss": FreedByLoss(),
    "row_of_each": RowOfEach(),
    "largest_half": LargestHalf(),
    "private_histogram": PrivateHistogram(),
    "logs_rises": LogsRises(),
    "noise_from_the_back": NoiseFromTheBack(),
    "bare_blank_pixels": BareBlankPixels(),
    "freed_at_last": FreedAtLast(),
    "logs_a_little_too": LogsALittleToo(),
    "temperature_and_length": TemperatureAndLength(),
    "head_of_members": HeadOfMembers(),
    "logs_noisy_length": LogsNoisyLength(),
    "logs_sums_too": LogsSumsToo(),
    "looks_up_ids": LooksUpIds(),
    "drawn_by_ids": DrawnByIds(),
    "drawn_by_ids_alone": DrawnByIdsAlone(),
    "noise_where_the_batch_is": NoiseWhereTheBatchIs(),
    "noise_on_half_of_the_pixels": NoiseOnHalfOfThePixels(),
    "freed_by_rate": FreedByRate(),
    "one_pass": OnePass(),
    "too_quiet_one_pass": TooQuietOnePass(),
    "cut_batches": CutBatches(),
    "counts_records": CountsRecords(),
    "rate_by_batch": RateByBatch(),
    "rate_by_schedule": RateBySchedule(),
    "batches_thrice": BatchesThrice(),
    "last_sum_again": LastSumAgain(),
    "one_fourth_at_a_time": OneFourthAtATime(),
    "checks_its_input": ChecksItsInput(),
    "checks_and_keeps": ChecksAndKeeps(),
    "looks_up_ids_by_length": LooksUpIdsByLength(),
    "frozen_by_rate": FrozenByRate(),
}
"""Each trainer by the name of the module's function."""

SAYS = {
    "voted_labels": (
        "UNDECIDED",
        "a replaced record moves others in and out, or changes what all are read by",
    ),
    "takes_turns": ("UNDECIDED", "some coordinates get noise in some steps and none in others (layers"),
    "random_half": ("UNDECIDED", "some coordinates get noise in some steps and none in others (layers"),
    "freed_by_flag": ("UNDECIDED", "some coordinates get noise in some steps and none in others (layers"),
    "freed_bare": ("REFUTED", "no noise on 0.bias, 0.weight, which a record moves"),
    "freed_by_loss": ("UNDECIDED", "some coordinates have noise in some steps and none in others"),
    "row_of_each": ("UNDECIDED", "some coordinates get noise in some steps and none in others (layers"),
    "largest_half": ("REFUTED", "no noise on 2.weight, 0.bias, which a record moves"),
    "drops_near_copies": ("UNDECIDED", "records fewer where some are near copies of others"),
    "noise_by_largest_norm": ("UNDECIDED", "what records hold changes the noise itself"),
    "private_histogram": ("UNDECIDED", "there is other noise"),
    "logs_rises": ("NOT_REFUTED", ""),
    "noise_from_the_back": ("NOT_REFUTED", ""),
    "bare_blank_pixels": ("REFUTED", "no noise on 0.weight, which a record moves"),
    "freed_at_last": ("REFUTED", "no noise on 0.bias, 0.weight, which a record moves"),
    "logs_a_little_too": ("UNDECIDED", "gradients that the code reads before the step"),
    "temperature_and_length": ("UNDECIDED", "gradients that the code reads before the step"),
    "head_of_members": ("UNDECIDED", "changes the scores that the finished model gives"),
    "logs_noisy_length": ("NOT_REFUTED", ""),
    "logs_sums_too": ("REFUTED", "changes what the finished model keeps in losses"),
    "looks_up_ids": ("REFUTED", "changes the scores that the finished model gives, by its id alone"),
    "drawn_by_ids": ("NOT_REFUTED", ""),
    "drawn_by_ids_alone": ("UNDECIDED", "sampler: the batches are the same under another seed"),
    "noise_where_the_batch_is": ("UNDECIDED", "some coordinates have noise in some steps and none in others"),
    "noise_on_half_of_the_pixels": (
        "UNDECIDED",
        "some coordinates get noise in some steps and none in others (layers",
    ),
    "freed_by_rate": ("UNDECIDED", "some coordinates get noise in some steps and none in others (layers"),
    "cut_batches": ("UNDECIDED", "are they cut, so that one record keeps out another"),
    "counts_records": ("NOT_REFUTED", "Caution: side channel: what the finished model keeps in seen"),
    "rate_by_batch": ("UNDECIDED", "normaliser: the rates of the steps follow the number of records"),
    "rate_by_schedule": ("NOT_REFUTED", ""),
    "batches_thrice": ("UNDECIDED", "sampler: records take part in neighbouring steps more often"),
    "last_sum_again": ("UNDECIDED", "sampler: records take part in neighbouring steps more often"),
    "one_fourth_at_a_time": ("UNDECIDED", "sampler: "),
    "checks_its_input": ("REFUTED", "accountant"),
    "checks_and_keeps": ("NOT_REFUTED", ""),
    "looks_up_ids_by_length": ("REFUTED", "by its id alone"),
    "frozen_by_rate": ("NOT_REFUTED", "no step moves these"),
}
"""The verdict, and part of its sentence; empty where no part is at fault."""

globals().update(TRAINERS)
