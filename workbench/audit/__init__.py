"""From a claim and its settings to a report record.

Mechanisms of ours, a user's training function and a file of scores take the same path: play games, judge,
report. The package itself can be called: `workbench.audit(...)` is `workbench.audit.api.audit`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that is a function of the public API too."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """See `workbench.audit.api.audit`."""
        from workbench.audit.api.mechanisms import audit

        return audit(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
