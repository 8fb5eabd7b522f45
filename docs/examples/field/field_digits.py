"""What the examples of this folder share: digits as tensors, a network, and what each one returns."""

from dataclasses import dataclass

import torch
from torch.nn import functional

DELTA, BATCH_SIZE, EPOCHS, CLIP, NOISE_MULTIPLIER = 1e-5, 20, 4, 1.0, 2.0


@dataclass(frozen=True)
class Trained:
    """A model, and what the library states of it.

    Attributes:
        network: From images to logits.
        epsilon: As the library's own accountant states it, at `DELTA`.
        noise_multiplier: As given to the library, or computed by it.
        clip: The norm that it is told to clip a record's gradient to; None where it moves.
        divisor: What it says that the noisy sum is divided by; None where it does not say.
    """

    network: torch.nn.Module
    epsilon: float
    noise_multiplier: float
    clip: float | None = CLIP
    divisor: float | None = BATCH_SIZE

    def losses(self, records):
        """One loss a record, nats; lower = more likely a member."""
        images, labels = tensors(records)
        with torch.no_grad():
            return functional.cross_entropy(self.network(images), labels, reduction="none")


def tensors(records):
    """Images, shape `(n, 64)`, and labels, shape `(n,)`, of records."""
    images = torch.tensor([record["image"] for record in records])
    labels = torch.tensor([record["label"] for record in records])
    return images, labels


def small_network(seed):
    """Two layers, from weights that the seed decides; seeds torch for what follows."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def dataset(records):
    """The records for a data loader."""
    return torch.utils.data.TensorDataset(*tensors(records))
