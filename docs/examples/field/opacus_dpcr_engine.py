"""opacus-dpcr's example: Opacus' with its engine in the place of Opacus' own.

After the comment that heads its module, "replace PrivacyEngine by DPCREngine"; opacus-dpcr 1.0.0.
"""

import torch
from field_digits import BATCH_SIZE, CLIP, DELTA, EPOCHS, NOISE_MULTIPLIER, Trained, dataset, small_network
from opacus_dpcr import DPCREngine
from torch.nn import functional
from torch.utils.data import DataLoader


def train(records, seed):
    """Train with the engine's default, noise that is fresh in each step."""
    network = small_network(seed)
    engine = DPCREngine(accountant="rdp")
    private, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
        data_loader=DataLoader(dataset(records), batch_size=BATCH_SIZE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP,
    )
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(private(images), labels).backward()
            optimizer.step()
    return Trained(network.eval(), engine.get_epsilon(DELTA), NOISE_MULTIPLIER)
