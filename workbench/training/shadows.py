"""Which candidates each shadow model is trained on (Carlini et al. 2022, section VI-A).

Shadows are trained by the subject's own mechanism on halves of the same candidate pool. Their coins are
thrown independently of the target's: given everything that an attack may learn from the shadows, the
target's membership labels are still fair coins, so a bound from the target's scores stays valid however
good or bad the shadows are.
"""

from __future__ import annotations

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import BoolArray


def shadow_memberships(n_candidates: int, n_shadows: int, generator: np.random.Generator) -> BoolArray:
    """Membership of every candidate in every shadow, balanced for each candidate.

    Each candidate is in exactly half of the shadows, at random which, independently of the other
    candidates; with an odd number of shadows a coin of its own gives it one more or one less. A shadow
    holds about half of the candidates.

    Args:
        n_candidates: Size of the candidate pool, at least 1.
        n_shadows: Number of shadow models, at least 1.
        generator: Source of the coins; must not be the target's.

    Returns:
        True where the shadow is trained on the candidate, shape `(n_shadows, n_candidates)`.

    Raises:
        InputError: a number is below 1.
    """
    for name, value in {"n_candidates": n_candidates, "n_shadows": n_shadows}.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    ranks = generator.random((n_shadows, n_candidates)).argsort(axis=0).argsort(axis=0)
    sizes = n_shadows // 2 + (generator.random(n_candidates) < 0.5) * (n_shadows % 2)
    included: BoolArray = ranks < sizes
    return included
