r"""Opacus' minimal example in each of its modes of per-record gradients, clipping and sampling.

    workbench replay docs/examples/field/opacus_modes.py:hooks \
        --claim "epsilon=1.494,delta=1e-5,adjacency=add-remove"

After its README (make_private, and the training loop as before), tutorials of BatchMemoryManager and of
ghost clipping, and the documentation of its schedulers. Run with opacus 1.6.0.
"""

import warnings

import torch
from field_digits import BATCH_SIZE, CLIP, DELTA, EPOCHS, NOISE_MULTIPLIER, Trained, dataset, small_network
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader

ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


def trained(records, seed, *, target=None, memory=0, schedule=None, accountant="prv", secure=False, **how):
    """Train by Opacus.

    Args:
        target: Epsilon for `make_private_with_epsilon`; `make_private` if None.
        memory: Physical batches of at most so many records, by BatchMemoryManager; 0 for none.
        schedule: From Opacus' optimizer to one of its schedulers.
        accountant: Opacus' name of it.
        secure: Noise by a secure generator.
        how: Further arguments of `make_private`.
    """
    network = small_network(seed)
    engine = PrivacyEngine(accountant=accountant, secure_mode=secure)
    ghost = how.get("grad_sample_mode") == "ghost"
    given = {
        "module": network,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.5),
        "data_loader": DataLoader(dataset(records), batch_size=BATCH_SIZE, shuffle=True),
        "max_grad_norm": CLIP,
        **how,
    }
    criterion = torch.nn.CrossEntropyLoss()
    if target is not None:
        made = engine.make_private_with_epsilon(
            **given, target_epsilon=target, target_delta=DELTA, epochs=EPOCHS
        )
    else:
        made = engine.make_private(
            **given, noise_multiplier=NOISE_MULTIPLIER, **({"criterion": criterion} if ghost else {})
        )
    private, optimizer, *middle, loader = made
    if how.get("wrap_model") is False:
        private = network  # What comes back are its hooks.
    loss_of = middle[0] if middle else criterion
    scheduler = schedule(optimizer) if schedule is not None else None
    sigma = optimizer.noise_multiplier

    def epoch(batches):
        for images, labels in batches:
            optimizer.zero_grad()
            loss_of(private(images), labels).backward()
            optimizer.step()

    for _ in range(EPOCHS):
        if memory:
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=memory, optimizer=optimizer
            ) as smaller:
                epoch(smaller)
        else:
            epoch(loader)
        if scheduler is not None:
            scheduler.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        epsilon = engine.get_epsilon(DELTA)
    moves = "adaptive" in how.values() or scheduler is not None
    return Trained(network.eval(), epsilon, sigma, clip=None if moves else CLIP)


def hooks(records, seed):
    """As the README shows it."""
    return trained(records, seed)


def with_epsilon(records, seed):
    """Noise from a target."""
    return trained(records, seed, target=1.0)


def rdp_accountant(records, seed):
    """The README's other accountant."""
    return trained(records, seed, accountant="rdp")


def gdp_accountant(records, seed):
    """The accountant by the central limit theorem."""
    return trained(records, seed, accountant="gdp")


def functorch(records, seed):
    """Gradients of each record by torch.func."""
    return trained(records, seed, grad_sample_mode="functorch")


def expanded_weights(records, seed):
    """Gradients of each record by torch's expanded weights."""
    return trained(records, seed, grad_sample_mode="ew", loss_reduction="mean")


def ghost(records, seed):
    """Ghost clipping."""
    return trained(records, seed, grad_sample_mode="ghost")


def hooks_unwrapped(records, seed):
    """Hooks without a wrapper of the model."""
    return trained(records, seed, wrap_model=False)


def per_layer(records, seed):
    """Each parameter clipped to its share of C; four parameters of half of it each."""
    return trained(records, seed, clipping="per_layer", max_grad_norm=[CLIP / 2] * 4)


def adaptive(records, seed):
    """A clipping norm that follows a noisy quantile."""
    return trained(records, seed, **ADAPTIVE)


def shuffled(records, seed):
    """Without Poisson sampling: the user's loader, shuffled."""
    return trained(records, seed, poisson_sampling=False)


def memory_manager(records, seed):
    """Poisson batches taken apart into physical ones of eight."""
    return trained(records, seed, memory=8)


def ghost_memory_manager(records, seed):
    """Ghost clipping, and physical batches of eight."""
    return trained(records, seed, memory=8, grad_sample_mode="ghost")


def noise_schedule(records, seed):
    """Noise that falls by a tenth in each epoch."""
    return trained(records, seed, schedule=lambda optimizer: ExponentialNoise(optimizer, gamma=0.9))


def clip_schedule(records, seed):
    """A clipping norm that falls by a tenth in each epoch."""
    return trained(records, seed, schedule=lambda optimizer: ExponentialGradClip(optimizer, gamma=0.9))


def rand_on_empty(records, seed):
    """A batch that is drawn empty gets a random record."""
    return trained(records, seed, rand_on_empty=True)


def secure_mode(records, seed):
    """Noise by a secure generator, which torchcsprng would give."""
    return trained(records, seed, secure=True)
