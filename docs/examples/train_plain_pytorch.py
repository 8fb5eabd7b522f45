"""A training function in plain PyTorch, without any privacy; it returns a scorer.

    workbench audit --train docs/examples/train_plain_pytorch.py:train --corpus digits \
        --candidates 500 --claim "epsilon=1,delta=1e-5,adjacency=add-remove"

The claim is false, and the audit refutes it.
"""

import torch
from torch.nn import functional


def train(records, seed):
    """Fit a small network to the records until it knows them by heart.

    Args:
        records: Dicts with the keys `id`, `text`, `label`, `image`.
        seed: Decides the initial weights; different in every run.

    Returns:
        A scorer: from records to one number each, higher = more likely a member.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    images, labels = tensors(records)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    def scorer(records):
        images, labels = tensors(records)
        with torch.no_grad():
            return -functional.cross_entropy(network(images), labels, reduction="none")

    return scorer


def tensors(records):
    """Images, shape `(n, 64)`, and labels, shape `(n,)`, of records."""
    images = torch.tensor([record["image"] for record in records])
    labels = torch.tensor([record["label"] for record in records])
    return images, labels
