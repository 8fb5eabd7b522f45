"""dp-accounting's Renyi accountant.

Library: dp-accounting 0.6.0 (Google), `rdp.RdpAccountant` with its default orders.
Adjacency: add-remove and zero-out (`REPLACE_SPECIAL` there); replace-one for plain Gaussians, Laplace and
randomised response only.
Promise: an upper bound (Mironov et al. 2019 for the sampled Gaussian; Canonne et al. 2020 for the way back).

What a user should know, and what this adapter leaves as it is: the library defines a Gaussian event by the
noise over the bound C on one record's contribution. A replaced record moves the sum by up to 2 C, but this
accountant (unlike the library's other one) takes the ratio as if the sum moved by C; the library's issue 378
is open. Under replace-one its Gaussian and Laplace answers are therefore below the truth.
"""

from __future__ import annotations

from typing import Any

from workbench.accounting.events import Event
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared import dp_events
from workbench.mechanisms.accountants.shared.optional import library


@register("accountant", "dp_accounting_rdp")
class DPAccountingRDP(dp_events.DPAccountingAccountant):
    """dp-accounting's Renyi differential privacy accountant, with its default orders."""

    name = "dp_accounting_rdp"

    def fresh(self, event: Event, adjacency: Adjacency) -> Any:
        """See `DPAccountingAccountant.fresh`."""
        relation = dp_events.relation(event, adjacency)
        rdp = library("dp_accounting.rdp", distribution=dp_events.DISTRIBUTION)
        return rdp.RdpAccountant(neighboring_relation=relation)
