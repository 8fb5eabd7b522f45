"""PyVacy's example: its DPSGD in an ordinary loop, and its moments accountant.

After the README of pyvacy 0.0.32: the optimizer takes the clipping norm, the noise multiplier and the batch
size, and the training is done "as usual".
"""

from functools import cache

from field_digits import BATCH_SIZE, CLIP, DELTA, EPOCHS, NOISE_MULTIPLIER, Trained, dataset, small_network
from pyvacy import analysis, optim
from torch.nn import functional
from torch.utils.data import DataLoader


@cache
def stated(n):
    """Epsilon by its accountant, for n records; the same in every training."""
    return analysis.moments_accountant(
        N=n, batch_size=BATCH_SIZE, noise_multiplier=NOISE_MULTIPLIER, epochs=EPOCHS, delta=DELTA
    )


def train(records, seed):
    """Train; the optimizer clips and adds noise within its step."""
    network = small_network(seed)
    optimizer = optim.DPSGD(
        l2_norm_clip=CLIP,
        noise_multiplier=NOISE_MULTIPLIER,
        batch_size=BATCH_SIZE,
        params=network.parameters(),
        lr=0.5,
    )
    loader = DataLoader(dataset(records), batch_size=BATCH_SIZE, shuffle=True)
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
    return Trained(network, stated(len(records)), NOISE_MULTIPLIER, divisor=1.0)
