"""easy-dp's example: one record's gradient after another, clipped; then noise on their sum.

After the README of easy-dp 0.1.0. Its Poisson sampler needs a process group of torch.distributed; the batches
here are drawn by Poisson sampling without it.
"""

from functools import cache

import torch
from easy_dp.PrivacyEngine import PrivacyEngine
from field_digits import BATCH_SIZE, CLIP, DELTA, EPOCHS, Trained, small_network, tensors
from torch.nn import functional


@cache
def engine_for(n):
    """Its engine for n records; the search for the noise takes ten seconds."""
    return PrivacyEngine(
        len_dataset=n,
        batch_size=BATCH_SIZE,
        max_grad_norm=CLIP,
        num_epochs=EPOCHS,
        target_epsilon=1.0,
        target_delta=DELTA,
    )


def train(records, seed):
    """Train with the loop that the README describes."""
    network = small_network(seed)
    images, labels = tensors(records)
    engine = engine_for(len(records))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(engine.total_steps):
        sums = [torch.zeros_like(p) for p in network.parameters()]
        for i in torch.nonzero(torch.rand(len(records)) < engine.sample_rate)[:, 0]:
            network.zero_grad()
            functional.cross_entropy(network(images[i : i + 1]), labels[i : i + 1]).backward()
            engine.clip_gradient(network.parameters())
            for total, parameter in zip(sums, network.parameters(), strict=True):
                total.add_(parameter.grad)
        for total, parameter in zip(sums, network.parameters(), strict=True):
            parameter.grad = engine.add_noise(total) / BATCH_SIZE
        optimizer.step()
    return Trained(network, engine.target_epsilon, engine.noise_multiplier)
