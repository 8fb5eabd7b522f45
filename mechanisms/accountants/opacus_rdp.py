"""Opacus's Renyi accountant, its `PrivacyEngine`'s `accountant="rdp"`.

Library: opacus 1.6.0 (Meta), `accountants.RDPAccountant` with its default orders.
Adjacency: add-remove (Poisson sampling).
Promise: an upper bound (Mironov et al. 2019 for the sampled Gaussian).
"""

from __future__ import annotations

from workbench.core.registry import register
from workbench.mechanisms.accountants.shared.opacus import OpacusAccountant


@register("accountant", "opacus_rdp")
class OpacusRDP(OpacusAccountant):
    """Opacus's Renyi differential privacy accountant, with its default orders."""

    name = "opacus_rdp"
    mechanism = "rdp"
