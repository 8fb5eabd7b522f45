"""Opacus's privacy-random-variable accountant, its `PrivacyEngine`'s default.

Library: opacus 1.6.0 (Meta), `accountants.PRVAccountant`, with its default errors: 0.01 in epsilon and
delta / 1000 in delta, both added to the answer.
Adjacency: add-remove (Poisson sampling); the library computes the direction in which the record is removed.
Promise: an upper bound (Gopi, Lee and Wutschitz 2021), up to rounding in its FFT.
"""

from __future__ import annotations

from workbench.core.registry import register
from workbench.mechanisms.accountants.shared.opacus import OpacusAccountant


@register("accountant", "opacus_prv")
class OpacusPRV(OpacusAccountant):
    """Opacus's PRV accountant (Gopi, Lee and Wutschitz 2021), its upper end."""

    name = "opacus_prv"
    mechanism = "prv"
