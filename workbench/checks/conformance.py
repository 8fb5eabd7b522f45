"""Gives the bench the conformance suite for accountants, and maps its results to exit codes.

The suite lies in a room, which the bench reaches by name; what it returns is described there
(`workbench.attacks.accountant_checks.conformance`: `ConformanceReport`, `CheckResult`).
"""

from __future__ import annotations

import importlib
from typing import Any

GRIDS = ("quick", "full")
"""How many questions the suite asks."""

LOOSENESS = "looseness"
"""The check that a looseness budget is for."""


def suite() -> Any:
    """The module of the conformance suite."""
    return importlib.import_module("workbench.attacks.accountant_checks.conformance")


def breaks(result: Any, *, strict: bool, has_budget: bool) -> bool:
    """Whether a check's result is to fail a build.

    Args:
        strict: Whether every broken promise counts, and not only an under-reported privacy loss.
        has_budget: Whether the user set a looseness budget, so that overstepping it counts.
    """
    if result.status != "failed":
        return False
    return bool(strict or result.fails_ci or (has_budget and result.name == LOOSENESS))


def is_unsettled(result: Any, *, strict: bool) -> bool:
    """Whether a check that broke no promise is open: the accountant crashed where it had to answer."""
    return bool((result.status == "error" or result.raised) and (strict or result.check.fails_ci))
