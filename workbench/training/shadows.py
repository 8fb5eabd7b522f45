"""Chooses the candidates that each shadow model is trained on (Carlini et al. 2022, section VI-A).

Shadows are trained by the subject's mechanism on halves of the same candidate pool. Their coins are
independent of the target's: given the shadows, the target's membership labels are still fair coins, so a
bound from the target's scores is valid however good or bad the shadows are.
"""

from __future__ import annotations

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import BoolArray


def shadow_memberships(n_candidates: int, n_shadows: int, generator: np.random.Generator) -> BoolArray:
    """Membership of every candidate in every shadow, shape `(n_shadows, n_candidates)`.

    Each candidate is in exactly half of the shadows, chosen at random and independently of the other
    candidates; of an odd number of shadows in the half rounded up or down, by a coin. `generator` must not be
    the target's.
    """
    for name, value in {"n_candidates": n_candidates, "n_shadows": n_shadows}.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    ranks = generator.random((n_shadows, n_candidates)).argsort(axis=0).argsort(axis=0)
    sizes = n_shadows // 2 + (generator.random(n_candidates) < 0.5) * (n_shadows % 2)
    included: BoolArray = ranks < sizes
    return included
