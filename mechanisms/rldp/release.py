"""What RLDP releases in a step: pairs clipped jointly, and noise on each pair (Section 2.3, Eqs. 3 to 6).

A pair is one group of parameters with one radius: the two matrices A and B of a LoRA adapter. Where n pairs
are clipped to radii C_i and get noise of standard deviation sigma C_i, a record moves the sum, each pair
measured in its own C_i, by sqrt(n) at most: all pairs together are one Gaussian release of noise multiplier
sigma / sqrt(n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workbench.interfaces import Groups, Signals
from workbench.training.loop import gaussian_noise

STABILITY = 1e-6
"""What Eq. 5's factor adds to the norm; a record's part so stays below its radius."""


def clip_factors(norms: Tensor, radii: Sequence[float]) -> Tensor:
    """lambda_i = min(1, C_i / (nu_i + 1e-6)) of each record and pair, shape `(n, G)`.

    Args:
        norms: nu_i, the joint norm of each pair's part of each record's gradient (Eq. 4), shape `(n, G)`.
        radii: C_i > 0, G of them.
    """
    return (norms.new_tensor(radii) / (norms + STABILITY)).clamp(max=1.0)


def noise_scales(
    layout: Mapping[str, tuple[slice, torch.Size]], groups: Groups, scales: Sequence[float], like: Tensor
) -> Tensor:
    """Each group's number in each of its coordinates of the flat vector, shape `(d,)`, of `like`'s type."""
    flat = like.new_zeros(like.shape[-1])
    for group, scale in zip(groups, scales, strict=True):
        for name in group:
            flat[layout[name][0]] = scale
    return flat


def clipped_noisy_sum(
    signals: Signals,
    groups: Groups,
    *,
    norms: Tensor,
    radii: Sequence[float],
    noise_multiplier: float,
    generator: torch.Generator,
) -> Tensor:
    """Eqs. 5 and 6: the sum of the jointly clipped pairs, plus N(0, sigma^2 C_i^2 I) on pair i.

    Args:
        signals: The sample's.
        groups: The pairs.
        norms: `signals.group_norms(groups)`, shape `(n, G)`.
        radii: C_i > 0.
        noise_multiplier: sigma.
        generator: Source of the noise.

    Returns:
        Shape of `signals.group_sum`.
    """
    total = signals.group_sum(clip_factors(norms, radii), groups)
    deviations = noise_scales(signals.layout, groups, [noise_multiplier * radius for radius in radii], total)
    return gaussian_noise(total, 1.0, generator).mul_(deviations).add_(total)
