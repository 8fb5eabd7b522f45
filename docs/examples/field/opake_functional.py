"""opake's example: per-record clipping, noise and weights as values, without an optimizer of torch.

After the README of opake 0.16.1, "a minimal DP-SGD training loop". Python 3.11.7, whose dataclasses refuse
one of its classes, cannot import its accounting; nothing is stated here.
"""

import torch
from field_digits import BATCH_SIZE, CLIP, EPOCHS, NOISE_MULTIPLIER, Trained, small_network, tensors
from opake.dpsgd.clipping import clipped_grad
from opake.dpsgd.noise import gaussian_noise
from opake.random import key
from torch.func import functional_call
from torch.nn import functional


def train(records, seed):
    """Train."""
    network = small_network(seed)
    images, labels = tensors(records)

    def loss(parameters, image, label):
        return functional.cross_entropy(functional_call(network, parameters, (image[None],)), label[None])

    clipped, clip_state = clipped_grad(
        loss, clipping_norm=CLIP, batch_argnums=(1, 2), normalize_by=BATCH_SIZE
    )
    noisy, noise_state = gaussian_noise(noise_multiplier=NOISE_MULTIPLIER, key=key(seed % 2**31))
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    rate = BATCH_SIZE / len(records)
    for _ in range(EPOCHS * len(records) // BATCH_SIZE):
        batch = torch.nonzero(torch.rand(len(records)) < rate)[:, 0]
        total, clip_state = clipped(parameters, images[batch], labels[batch], state=clip_state)
        released, noise_state = noisy(total, noise_state)
        parameters = {name: p - 0.5 * released.pytree[name] for name, p in parameters.items()}
    network.load_state_dict(parameters)
    return Trained(network, None, NOISE_MULTIPLIER)
