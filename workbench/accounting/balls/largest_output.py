"""A lower bound for sampled Gaussians that are repeated often and seldom drawn: tests by the largest output.

The record contributes 1 to a sum of 0, drawn with probability q in each of T steps. The test says that it is
there where some step's output exceeds a threshold t. With p = (1 - q) Phi(-t / s) + q Phi((1 - t) / s) and
f = Phi(-t / s) its rates are 1 - (1 - p)^T and 1 - (1 - f)^T. Where a record is in hardly more than one step,
and hardly anything else is seen of it, no test is much better.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from flint import arb, ctx

from workbench.accounting.balls.finite_bounds import pair_of_tests
from workbench.accounting.events import FinitePair

_BITS = 128
_TESTS = 1500
_FARTHEST = 14.0
"""Deviations beyond the record's contribution up to which thresholds go."""


@lru_cache(maxsize=256)
def largest_output_pair(noise_multiplier: float, q: float, steps: int) -> FinitePair:
    """A finite pair that the outputs with and without the record can be turned into, in this order.

    Args:
        noise_multiplier: Of each step, > 0.
        q: Sampling probability in (0, 1).
        steps: How many there are.
    """
    with ctx.workprec(_BITS):
        noise, rate = arb(noise_multiplier), arb(q)
        tests = []
        for place in np.linspace(0.0, _FARTHEST, _TESTS).tolist():
            threshold = 1 + arb(place) * noise
            false = _above(threshold / noise)
            true = (1 - rate) * false + rate * _above((threshold - 1) / noise)
            tests.append((_ever(true, steps), _ever(false, steps)))
        return pair_of_tests(tests)


def _above(deviations: arb) -> arb:
    """P(z > deviations) of a standard normal z."""
    tail: arb = (deviations / arb(2).sqrt()).erfc() / 2
    return tail


def _ever(chance: arb, steps: int) -> arb:
    """That something of this chance happens in one of the steps."""
    return -((-chance).log1p() * steps).expm1()
