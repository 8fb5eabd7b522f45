"""deepee's example: a wrapped model with as many replicas as a batch has records, and its watchdog.

After the docstring of `PrivacyWrapper` and the classes that it names, deepee 0.1.9. torch 2.13 refuses its
`parallel_apply` on a machine without an accelerator, so the replicas are called one after another.
"""

import logging

import numpy as np
import torch
from deepee import PrivacyWatchdog, PrivacyWrapper, UniformDataLoader
from field_digits import BATCH_SIZE, CLIP, DELTA, EPOCHS, NOISE_MULTIPLIER, Trained, dataset, small_network
from torch.nn import functional


def one_after_another(models, inputs):
    """What `parallel_apply` returns."""
    return [model(x) for model, x in zip(models, inputs, strict=True)]


def train(records, seed, own_seed=None):
    """Train.

    Args:
        own_seed: The wrapper's argument `seed`.
    """
    logging.disable(logging.WARNING)
    torch.nn.parallel.parallel_apply = one_after_another
    network = small_network(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - its sampler draws from NumPy's own generator
    loader = UniformDataLoader(dataset(records), batch_size=BATCH_SIZE, pin_memory=False)
    watchdog = PrivacyWatchdog(loader, target_epsilon=10.0, target_delta=DELTA)
    private = PrivacyWrapper(
        network,
        num_replicas=BATCH_SIZE,
        L2_clip=CLIP,
        noise_multiplier=NOISE_MULTIPLIER,
        watchdog=watchdog,
        seed=own_seed,
    )
    optimizer = torch.optim.SGD(private.wrapped_model.parameters(), lr=0.5)
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = functional.cross_entropy(private(images), labels, reduction="sum")
            loss.backward()
            private.clip_and_accumulate()
            private.noise_gradient()
            optimizer.step()
            private.prepare_next_batch()
            for model in private.models:
                model.zero_grad()
    return Trained(network, private.current_epsilon, NOISE_MULTIPLIER)


def seeded(records, seed):
    """With the wrapper's own seed, as its argument of that name asks for."""
    return train(records, seed, own_seed=seed % 2**31 + 1)
