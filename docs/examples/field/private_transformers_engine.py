"""private-transformers' example on the digits: its engine attached to Adam, losses handed to the step.

After the README of private-transformers 0.2.3, whose GPT-2 needs an older transformers (`get_head_mask` is
gone); `skip_checks` lets it take a network of linear layers. The loader is the user's: shuffled as in its
examples, or by Poisson sampling, which its argument `batch_size` speaks of.
"""

import torch
from field_digits import BATCH_SIZE, CLIP, DELTA, EPOCHS, NOISE_MULTIPLIER, Trained, small_network, tensors
from private_transformers import PrivacyEngine
from torch.nn import functional

STATED = {}
"""Epsilon by its accountant for the number of steps; the same in every training."""


def trained(records, seed, *, poisson=False, clears=True, **how):
    """Train.

    Args:
        poisson: Draw each batch by Poisson sampling instead of shuffling.
        clears: Clear the gradients after each step, as its scripts do and its README does not.
        how: Further arguments of the engine.
    """
    network = small_network(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    engine = PrivacyEngine(
        network,
        batch_size=BATCH_SIZE,
        sample_size=len(records),
        epochs=EPOCHS,
        max_grad_norm=CLIP,
        noise_multiplier=NOISE_MULTIPLIER,
        target_delta=DELTA,
        skip_checks=True,
        record_snr=False,  # It divides by the norm of the noise, which replay takes away.
        **how,
    )
    engine.attach(optimizer)
    network.train()
    images, labels = tensors(records)
    rate = BATCH_SIZE / len(records)
    for _ in range(EPOCHS):
        order = torch.randperm(len(records)).split(BATCH_SIZE)
        for batch in order:
            drawn = torch.nonzero(torch.rand(len(records)) < rate)[:, 0] if poisson else batch
            loss = functional.cross_entropy(network(images[drawn]), labels[drawn], reduction="none")
            optimizer.step(loss=loss)
            if clears:
                optimizer.zero_grad()  # Otherwise the next raw gradient is added to this sum.
    if engine.steps not in STATED:
        STATED[engine.steps] = engine.get_privacy_spent(accounting_mode="rdp")["eps_rdp"]
    engine.detach()
    return Trained(network, STATED[engine.steps], NOISE_MULTIPLIER)


def shuffled(records, seed):
    """As its examples do."""
    return trained(records, seed)


def poisson(records, seed):
    """The same with Poisson sampling."""
    return trained(records, seed, poisson=True)


def readme(records, seed):
    """As the lines of its README, with Poisson sampling."""
    return trained(records, seed, poisson=True, clears=False)


def ghost(records, seed):
    """Ghost clipping, Poisson sampling."""
    return trained(records, seed, poisson=True, clipping_mode="ghost")
