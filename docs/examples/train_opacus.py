"""A training function with Opacus: DP-SGD at (epsilon = 1, delta = 1e-5); it returns per-record losses.

    workbench audit --train docs/examples/train_opacus.py:train --corpus digits \
        --candidates 500 --claim "epsilon=1,delta=1e-5,adjacency=add-remove"

The claim is the guarantee that Opacus' own accountant computes, so the audit should not refute it.
"""

import torch
from opacus import PrivacyEngine
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EPSILON = 1.0
DELTA = 1e-5
EPOCHS = 10
BATCH_SIZE = 50


class Trained:
    """What the adversary sees: a model that tells each record's loss."""

    def __init__(self, network, epsilon):
        self.network = network
        self.epsilon = epsilon

    def losses(self, records):
        """One loss a record, nats; lower = more likely a member."""
        images, labels = tensors(records)
        with torch.no_grad():
            return functional.cross_entropy(self.network(images), labels, reduction="none")


def train(records, seed):
    """Train with DP-SGD: Poisson sampling, per-record clipping, noise calibrated to the target.

    Args:
        records: Dicts with the keys `id`, `text`, `label`, `image`.
        seed: Decides initial weights, samples and noise; different in every run.

    Returns:
        An object with a method `losses(records)`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        engine = PrivacyEngine(accountant="prv")
        private, optimizer, loader = engine.make_private_with_epsilon(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
            data_loader=DataLoader(TensorDataset(*tensors(records)), batch_size=BATCH_SIZE),
            target_epsilon=EPSILON,
            target_delta=DELTA,
            epochs=EPOCHS,
            max_grad_norm=1.0,
            noise_generator=torch.Generator().manual_seed(seed),
        )
        for _ in range(EPOCHS):
            for images, labels in loader:
                optimizer.zero_grad()
                functional.cross_entropy(private(images), labels).backward()
                optimizer.step()
    return Trained(network.eval(), epsilon=engine.get_epsilon(DELTA))


def tensors(records):
    """Images, shape `(n, 64)`, and labels, shape `(n,)`, of records."""
    images = torch.tensor([record["image"] for record in records])
    labels = torch.tensor([record["label"] for record in records])
    return images, labels
