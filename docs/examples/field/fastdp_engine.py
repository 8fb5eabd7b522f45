"""fastDP's example: its engine attached to an optimizer, and an ordinary loop.

After the README of fast-differential-privacy 2.0.0. The loader is the user's: the README's "standard training
pipeline" shuffles it (`shuffled`); `poisson` draws what the accountant assumes.
"""

import contextlib
import io

import torch
from fastDP import PrivacyEngine
from field_digits import (
    BATCH_SIZE,
    CLIP,
    DELTA,
    EPOCHS,
    NOISE_MULTIPLIER,
    Trained,
    dataset,
    small_network,
    tensors,
)
from torch.nn import functional
from torch.utils.data import DataLoader

STATED = {}
"""Epsilon by its accountant for steps, noise and rate; the same in every training."""


def trained(records, seed, *, poisson=False, **how):
    """Train.

    Args:
        poisson: Draw each batch by Poisson sampling instead of shuffling.
        how: Further arguments of the engine.
    """
    network = small_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    with contextlib.redirect_stdout(io.StringIO()):
        engine = PrivacyEngine(
            network,
            batch_size=BATCH_SIZE,
            sample_size=len(records),
            epochs=EPOCHS,
            noise_multiplier=NOISE_MULTIPLIER,
            target_delta=DELTA,
            max_grad_norm=CLIP,
            **how,
        )
    engine.attach(optimizer)
    images, labels = tensors(records)
    rate = BATCH_SIZE / len(records)
    loader = DataLoader(dataset(records), batch_size=BATCH_SIZE, shuffle=True)

    def batches():
        if not poisson:
            yield from loader
            return
        for _ in range(len(loader)):
            drawn = torch.nonzero(torch.rand(len(records)) < rate)[:, 0]
            yield images[drawn], labels[drawn]

    for _ in range(EPOCHS):
        for inputs, targets in batches():
            functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    key = engine.steps, engine.noise_multiplier, engine.sample_rate
    if key not in STATED:
        STATED[key] = engine.get_privacy_spent(accounting_mode="rdp")["eps_rdp"]
    return Trained(network, STATED[key], engine.noise_multiplier, clip=engine.max_grad_norm)


def shuffled(records, seed):
    """As the README shows it: automatic clipping, book-keeping."""
    return trained(records, seed)


def poisson(records, seed):
    """The same with Poisson sampling."""
    return trained(records, seed, poisson=True)


def abadi(records, seed):
    """Clipping after Abadi et al., ghost mode, Poisson sampling."""
    return trained(records, seed, poisson=True, clipping_fn="Abadi", clipping_mode="ghost")


def layer_wise(records, seed):
    """Each layer clipped to its share, Poisson sampling."""
    return trained(records, seed, poisson=True, clipping_style="layer-wise", clipping_fn="Abadi")


def param_wise(records, seed):
    """Each parameter clipped to its share, Poisson sampling."""
    return trained(records, seed, poisson=True, clipping_style="param-wise", clipping_fn="Abadi")
