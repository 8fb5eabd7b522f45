"""dp-accounting's privacy loss distributions: its pessimistic, discretised estimate.

Library: dp-accounting 0.6.0 (Google), `pld.PLDAccountant` with its default grid of 1e-4.
Adjacency: add-remove, replace-one (Gaussians and randomised response) and zero-out (`REPLACE_SPECIAL` there),
as far as the library names them for an event; it honours the definition of its events, so that under
replace-one a Gaussian sum moves by twice a record's bound.
Promise: an upper bound, up to rounding in its FFT and a dropped tail mass of exp(-50) a step.

What a user should know, and what this adapter leaves as it is: `compose(event, count)` of a randomised
response uses the event once, whatever the count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workbench.accounting.events import Event
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared import dp_events
from workbench.mechanisms.accountants.shared.optional import library


@register("accountant", "dp_accounting_pld")
@dataclass(frozen=True, kw_only=True)
class DPAccountingPLD(dp_events.DPAccountingAccountant):
    """dp-accounting's PLD accountant, pessimistic (Doroshenko et al. 2022, "Connect the Dots").

    Attributes:
        interval: Width of the grid of privacy losses; the library's default.

    Raises:
        InputError: the interval is not finite and positive.
    """

    interval: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 < self.interval < math.inf:
            raise InputError(f"interval must be finite and > 0, got {self.interval!r}")

    @property
    def name(self) -> str:
        """`dp_accounting_pld`."""
        return "dp_accounting_pld"

    def fresh(self, event: Event, adjacency: Adjacency) -> Any:
        """See `DPAccountingAccountant.fresh`."""
        relation = dp_events.relation(event, adjacency)
        pld = library("dp_accounting.pld", distribution=dp_events.DISTRIBUTION)
        return pld.PLDAccountant(relation, self.interval)
